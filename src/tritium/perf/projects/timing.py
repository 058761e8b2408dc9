"""Timed programs for people and for other tools: a table, verdicts beside the first, and hyperfine's file formats."""

from __future__ import annotations

import csv
import io
import json
from statistics import mean, median, stdev
from typing import Any

from tritium import escape
from tritium.perf.amounts import seconds_text
from tritium.perf.gate.compare import compare_paired
from tritium.perf.gate.page import amount
from tritium.perf.gate.verdict import Rules, Suite, Verdict, suite_of
from tritium.perf.records.run import Results, Run
from tritium.perf.stats.estimates import median_interval
from tritium.perf.tables.table import Table

WORDS = {
    "SLOWER": "slower", "FASTER": "faster", "EQUIVALENT": "as fast", "CHANGED-SMALL": "a small change",
    "INCONCLUSIVE": "not decided",
}  # fmt: skip


def judged(results: Results, rules: Rules) -> Suite:
    """Return the verdicts of every program beside the first."""
    base = results.arms[0]
    verdicts: list[Verdict] = []
    for arm in results.arms[1:]:
        verdicts += compare_paired(results, base, arm, rules).verdicts
    return suite_of(
        verdicts, gates=results.plan.gates, base=base, head=", ".join(results.arms[1:]), command=results.command,
        created=results.created, notes=results.notes,
    )  # fmt: skip


def page(results: Results, suite: Suite) -> str:
    """Return the table of a terminal: the time of each program, then each beside the first."""
    heads = ("command", "median", "95 %", "fastest … slowest", "user", "system", "peak memory", "runs")
    rows = tuple(_row(run) for run in results)
    below = [
        f"{escape.terminal(r.arm)}: {r.status}: {escape.terminal(r.reason, None)}" for r in results if r.status != "ok"
    ]
    lines = [Table("", heads, rows, frozenset(heads[1:]), tuple(below)).text(), ""]
    lines += [_sentence(v) for v in suite.verdicts]
    if suite.noise:
        lines.append(f"{suite.noise}.")
    lines += [f"note: {escape.terminal(note, None)}" for note in results.notes]
    return "\n".join(lines).rstrip()


def _row(run: Run) -> tuple[str, ...]:
    wall = run.of("wall")
    if wall is None or not wall.flat:
        return (escape.terminal(run.arm), run.status, *[""] * 6)
    low, high = median_interval(wall.flat) if len(wall.flat) > 1 else (wall.flat[0], wall.flat[0])
    memory = run.of("rss_bytes")
    peak = amount(max(memory.flat), "B") if memory is not None and memory.flat else "-"
    return (
        escape.terminal(run.arm), seconds_text(median(wall.flat)), f"{seconds_text(low)} … {seconds_text(high)}",
        f"{seconds_text(min(wall.flat))} … {seconds_text(max(wall.flat))}", *(_median(run, m) for m in ("user", "system")),
        peak, str(len(wall.flat)),
    )  # fmt: skip


def _median(run: Run, metric: str) -> str:
    series = run.of(metric)
    return "-" if series is None or series.median is None else seconds_text(series.median)


def _sentence(v: Verdict) -> str:
    name, base = escape.terminal(v.arm), escape.terminal(v.base_arm)
    if v.ratio is None or v.interval95 is None:
        return f"{v.outcome:<14} {name}: {escape.terminal(v.reason, None)}"
    ratio, (low, high) = v.ratio, v.interval95
    how = f"takes {ratio:.3f} ({low:.3f} … {high:.3f}) times as long as"
    if ratio < 1:
        how = f"is {1 / ratio:.3f} ({1 / high:.3f} … {1 / low:.3f}) times as fast as"
    tail = f"; {escape.terminal(v.reason, None)}" if v.reason else ""
    more = f", about {v.more_generations} more runs" if v.more_generations else ""
    return f"{v.outcome:<14} {name} {how} {base}{tail}{more}"


def figures(run: Run) -> dict[str, Any]:
    """Return the figures of a program as hyperfine names them."""
    wall, codes = run.of("wall"), list(run.facts.get("exit_codes", ()))
    times = list(wall.flat) if wall is not None else []
    if not times:
        return {"command": run.arm, "error": run.reason or run.status}
    memory = run.of("rss_bytes")
    return {
        "command": run.arm, "mean": mean(times), "stddev": stdev(times) if len(times) > 1 else None, "median": median(times),
        **{m: mean(s.flat) for m in ("user", "system") if (s := run.of(m)) is not None},
        "min": min(times), "max": max(times), "times": times, "exit_codes": codes,
        **({"memory_usage_byte": [int(v) for v in memory.flat]} if memory is not None and memory.flat else {}),
        **({"parameters": run.facts["parameters"]} if run.facts.get("parameters") else {}),
    }  # fmt: skip


def as_json(results: Results) -> str:
    """Return the results as hyperfine's --export-json has them."""
    return json.dumps({"results": [figures(run) for run in results]}, indent=2, allow_nan=False) + "\n"


def as_markdown(results: Results, suite: Suite) -> str:
    """Return a table as hyperfine's --export-markdown has it, with the interval of the ratio and the verdict."""
    ratios = {v.arm: v for v in suite.verdicts if v.metric == "wall"}
    lines = [
        "| Command | Mean [ms] | Min [ms] | Max [ms] | Relative (95 %) | Verdict |", "|:---|---:|---:|---:|---:|:---|",
    ]  # fmt: skip
    for run in results:
        f = figures(run)
        if "error" in f:
            lines.append(f"| {escape.markdown(run.arm)} | | | | | {escape.markdown(run.status)} |")
            continue
        v = ratios.get(run.arm)
        relative, outcome = "1.00", ""
        if v is not None and v.ratio is not None and v.interval95 is not None:
            relative, outcome = f"{v.ratio:.3f} ({v.interval95[0]:.3f} … {v.interval95[1]:.3f})", v.outcome
        spread = f" ± {1e3 * f['stddev']:.1f}" if f["stddev"] is not None else ""
        lines.append(
            f"| {escape.markdown(run.arm)} | {1e3 * f['mean']:.1f}{spread} | {1e3 * f['min']:.1f} | {1e3 * f['max']:.1f} "
            f"| {relative} | {outcome} |"
        )
    return "\n".join(lines) + "\n"


def as_csv(results: Results) -> str:
    """Return a table as hyperfine's --export-csv has it; names cannot become formulas."""
    names = ("command", "mean", "stddev", "median", "user", "system", "min", "max")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for run in results:
        f = figures(run)
        writer.writerow([escape.csv(run.arm), *("" if f.get(n) is None else repr(f[n]) for n in names[1:])])
    return text.getvalue()

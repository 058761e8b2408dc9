"""The machine and the measurement: environment and differences, noise, how to reproduce, and the raw data.

Knows nothing of how a page looks, and reads nothing of the machine it runs on: only the results. The raw data are a
compressed results file that loads back, and a table of figures; what does not fit is thinned step by step, as the page
says.
"""

from __future__ import annotations

import base64
import csv as csv_text
import gzip
import io
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from tritium import escape
from tritium.machine.facts import digest
from tritium.perf.amounts import bytes_text, many, percent, rate_text, scaled, seconds_text
from tritium.perf.records.environment import Environment, Hard, differences
from tritium.perf.records.json_io import plain
from tritium.perf.records.run import Machine, Results, Run, Series, process_spread, rounds_of
from tritium.perf.tables import tables
from tritium.perf.tables.tables import time_interval
from tritium.perf.work.canary import SIZES
from tritium.see.reports.blocks import Block, Cell, Code, Facts, Fold, Grid, Line, Lines, Tone
from tritium.see.reports.inputs import Inputs, half_widths
from tritium.see.reports.sections import Section, absent

MOST = 250_000  # characters of compressed data in a page
DIGITS = 6  # of thinned values
BYTES_A_VALUE = 8.5  # of a double as compressed JSON, at least
HEADS = ("case", "arm", "status", "reason", "metric", "unit", "kind", "median", "low", "high", "samples")
SOON_NOISY = 0.01  # half the spread of canaries between processes above which small differences are lost in noise


# ---- environment


def threads_text(hard: Hard) -> str:
    """Return the number of threads that measured; "" where it is unknown."""
    return many(hard.threads, "thread") if hard.threads else ""


def environment(inputs: Inputs) -> Section:
    """Return the section of the environment, and its differences from that of the baseline."""
    results = inputs.results
    facts = _side_by_side(results.machines) if len(results.machines) > 1 else machine(results.environment)
    return Section("environment", "Environment", (*_differences(inputs), *facts))


def _side_by_side(machines: Sequence[Machine]) -> Iterator[Block]:
    """Yield the facts of all machines beside each other, and what each measured."""
    facts = [dict(_facts(m.environment)) | {"cases": str(len(m.cases))} for m in machines]
    names = [name for name in facts[0] if any(fact[name] for fact in facts)]
    rows = tuple((Cell(name), *(Cell(fact[name]) for fact in facts)) for name in names)
    yield Grid(
        ("fact", *(m.name for m in machines)), rows, caption="Contenders of one case were measured on one machine"
    )


def machine(env: Environment) -> Iterator[Block]:
    """Yield the facts of an environment, and its ceilings."""
    yield Facts(tuple((name, Cell(value)) for name, value in _facts(env) if value))
    if env.limits is not None:
        yield Fold("Ceilings of this machine, measured", (_ceilings(env),))


def _differences(inputs: Inputs) -> Iterator[Block]:
    if inputs.baseline is not None:
        hard, soft = differences(inputs.baseline.environment, inputs.results.environment)
    elif inputs.verdicts is not None:
        hard, soft = inputs.verdicts.hard, inputs.verdicts.soft
    else:
        return
    if not hard and not soft:
        yield Line("The same machine, versions and settings before and after.", "good")
        return
    if hard:
        yield Line(f"Not comparable: {many(len(hard), 'field')} that speed depends on differ.", "bad")
    rows: list[tuple[Cell, ...]] = []
    kinds: tuple[tuple[dict[str, tuple[str, str]], Tone, str], ...] = (
        (hard, "bad", "prevents a comparison"), (soft, "unsure", "worth knowing"),
    )  # fmt: skip
    for fields, tone, word in kinds:
        rows += [(Cell(name), Cell(a), Cell(b), Cell(word, tone, badge=True)) for name, (a, b) in fields.items()]
    yield Grid(("differs", "before", "after", "effect"), tuple(rows), caption="What differs from the baseline")


def _facts(env: Environment) -> list[tuple[str, str]]:
    hard = env.hard
    usable = (
        f"{hard.usable} of {hard.cpus} CPUs" if hard.threads else many(hard.cpus, "CPU")
    )  # imported: only the total is known
    cores = ", ".join(filter(None, (usable, threads_text(hard)))) if hard.cpus else ""
    commit = f"{env.commit[:12]}{' and changes' if env.dirty else ''}" if env.commit else ""
    return [
        ("processor", hard.cpu),
        ("CPUs", cores),
        ("GPUs", ", ".join(hard.gpus)),
        ("memory", f"{env.memory_gib:g} GiB" if env.memory_gib else ""),
        ("system", " ".join(filter(None, (hard.system, env.kernel, hard.architecture)))),
        ("runs under", env.virtual),
        ("governor", env.governor),
        ("power", env.power_source),
        ("load before", f"{env.load:g}" if env.load else ""),
        ("temperature", "" if env.temperature_c is None else f"{env.temperature_c:g} °C"),
        ("Tritium", f"{env.tritium or 'version unknown'} ({hard.loops} loops)" if hard.loops else env.tritium),
        ("commit", commit),
        ("Python", env.python),
        ("packages", ", ".join(f"{k} {v}" for k, v in env.packages.items())),
        ("variables", ", ".join(f"{k}={v}" for k, v in env.variables.items())),
        ("fingerprint", hard.key),
    ]


def _ceilings(env: Environment) -> Grid:
    limits = env.limits
    assert limits is not None
    rows = [
        ("arithmetic, f32", rate_text(limits.flops, "FLOP"), ""),
        ("arithmetic, int8", rate_text(limits.int_ops, "OP"), ""),
    ]
    for level in limits.levels:
        rate = "not measured" if level.rate is None else rate_text(level.rate, "B")
        rows.append((level.name, rate, "" if level.nbytes is None else f"up to {bytes_text(level.nbytes)}"))
    cells = tuple(tuple(Cell(text) for text in row) for row in rows)
    caption = f"At {many(limits.threads, 'thread')}"
    return Grid(("ceiling", "rate", "holds"), cells, frozenset({"rate", "holds"}), caption)


# ---- noise


def noise(inputs: Inputs) -> Section:
    """Return the section on the reliability of this run: canaries, disturbed rounds, the gate's false alarms."""
    blocks: list[Block] = []
    rows = [row for run in inputs.results.runs if run.case in SIZES and (row := _canary(run)) is not None]
    if rows:
        heads = ("canary", "contender", "time", "spread", "from first to last")
        blocks.append(
            Grid(
                heads,
                tuple(rows),
                frozenset(heads[2:]),
                "Canaries: work that no version changes shows the machine itself",
            )
        )
    lines = [Line(text, tone) for text, tone in _samples(inputs)]
    if inputs.selftest is not None:
        lines += [Line(text.strip(), tone) for text, tone in _selftest(inputs)]
    else:
        lines.append(
            Line(
                "False alarms of this machine: not measured here. tritium selftest --aa --json > selftest.json, then --selftest selftest.json.",
                "quiet",
            )
        )
    blocks.append(Lines(tuple(lines)))
    return Section("noise", "Noise and false alarms", tuple(blocks))


def _canary(run: Run) -> tuple[Cell, ...] | None:
    wall = run.of("wall")
    each = [median(rounds) for rounds in rounds_of(wall) if rounds] if wall is not None else []
    if not each or wall is None or wall.median is None or min(each) <= 0:
        return None
    spread = process_spread(run)
    drift = each[-1] / each[0] - 1
    tone: Tone = "unsure" if spread > SOON_NOISY else ""
    return (
        Cell(run.case), Cell(run.arm), Cell(seconds_text(wall.median), sort=wall.median),
        Cell(f"±{percent(spread, 1)}", tone, spread, f"10th to 90th percentile of {many(len(each), 'process')}"),
        Cell(f"{100 * drift:+.1f} %", sort=drift),
    )  # fmt: skip


def _samples(inputs: Inputs) -> Iterator[tuple[str, Tone]]:
    for warning, _ in tables.warnings(inputs.results):
        yield f"{warning}.", "unsure"
    widths = half_widths(inputs)
    if widths:
        middle, widest = percent(median(widths), 1), percent(max(widths), 1)
        yield f"Half the 95 % interval of a time is {middle} of it in the median cell, {widest} in the widest.", ""
    if inputs.verdicts is not None and (margins := sorted({v.margin for v in inputs.verdicts.verdicts})):
        yield f"A change counts from {' or '.join(percent(m, 1) for m in margins)} on: the margins of the verdicts.", ""
    plan = inputs.results.plan
    if not plan.gates:
        subject = "An import" if inputs.imported else f"The {plan.name} plan"
        yield f"{subject} of {many(plan.generations, 'process')} shows intervals and never gates.", "unsure"


def _selftest(inputs: Inputs) -> Iterator[tuple[str, Tone]]:
    selftest = inputs.selftest
    assert selftest is not None
    alarms, suites = selftest.false_alarms
    for number, line in enumerate(selftest.page().splitlines()):
        first: Tone = "good" if alarms == 0 else "unsure"
        yield line, first if number == 0 and suites else ""


# ---- reproduce and raw data


def reproduce(inputs: Inputs) -> Section:
    """Return the section with the commands that measure the same again."""
    results, env, plan = inputs.results, inputs.results.environment, inputs.results.plan
    lines = commands(env, "" if inputs.imported else results.command)
    versions = [f"Tritium {env.tritium}" if env.tritium else "", f"Python {env.python}" if env.python else ""]
    facts = [
        ("commit", commit_text(env)),
        ("versions", ", ".join(filter(None, (*versions, *(f"{k} {v}" for k, v in env.packages.items()))))),
        ("plan", f"{plan.name}: {many(plan.generations, 'process')}, {many(plan.rounds, 'round')} of {many(plan.batches, 'batch')}"),
        ("seed", "" if inputs.imported else str(plan.seed)),
        ("metrics", ", ".join(plan.metrics)),
        ("took", seconds_text(results.elapsed_s) if results.elapsed_s else ""),
        ("measured", results.created),
    ]  # fmt: skip
    blocks: list[Block] = [Code("\n".join(lines))] if lines else []
    if inputs.imported:
        origin = f"Measured by {results.suite}, not by Tritium: its file does not have the command. Run it again there."
        blocks.append(Line(origin, "quiet"))
    blocks.append(Facts(tuple((k, Cell(v)) for k, v in facts if v)))
    if inputs.verdicts is not None and inputs.verdicts.command:
        blocks.append(Line("The verdict was made by:"))
        blocks.append(Code(inputs.verdicts.command))
    return Section("reproduce", "How to reproduce", tuple(blocks))


def commands(env: Environment, command: str) -> list[str]:
    """Return the commands, line by line: the commit, the packages, the variables, the command."""
    lines = [f"git checkout {shlex.quote(env.commit)}"] if env.commit else []
    if env.packages:
        lines.append("python -m pip install " + " ".join(shlex.quote(f"{k}=={v}") for k, v in env.packages.items()))
    lines += [f"export {k}={shlex.quote(v)}" for k, v in env.variables.items()]
    return [*lines, command] if command else lines


def commit_text(env: Environment) -> str:
    """Return the commit, with a note where it alone does not give this code."""
    changed = " with uncommitted changes: the commit alone does not give this code" if env.dirty else ""
    return env.commit + changed or "not known"


@dataclass(frozen=True)
class Data:
    """The data inside a page."""

    sha256: str  # stored in the results file; "": there is no such file
    download: str  # stored in the download; "": there is none
    inside: str  # as text: "every value"
    nbytes: int  # of the results as JSON; 0: they are not inside
    results: str  # base64 of gzip of a results file; "": not inside
    figures: str  # CSV


def data_of(results: Results, sha256: str = "") -> Data:
    """Return as much of the results as fits a page, and the figures of all; `sha256`: that stored in their file.

    Read from a file, an integer may be a double (64, 64.0), which changes the hash of the content, not its meaning.
    """
    figures, complete = figures_csv(results), plain(results)
    if BYTES_A_VALUE * sum(len(s.flat) for r in results.runs for s in r.series) < MOST:
        sha256_inside = digest(complete)
        text, archive = _pack(complete, sha256_inside, results.schema)
        if len(archive) <= MOST:
            return Data(sha256, sha256_inside, "every value, as measured", text, archive, figures)
    body = plain(_keep_rounds(results))
    sha256_inside = digest(body)
    text, archive = _pack(body, sha256_inside, results.schema)
    if len(archive) <= MOST:
        description = f"a value for each round, {DIGITS} digits; the file of results has every batch"
        return Data(sha256, sha256_inside, description, text, archive, figures)
    return Data(
        sha256, "", "figures only: the raw values would not fit; they are in the file of results", 0, "", figures
    )


def _pack(body: dict[str, Any], sha256: str, schema: int) -> tuple[int, str]:
    """Return the size of a results file in bytes, and the file compressed."""
    text = json.dumps({"schema": schema, "sha256": sha256, "results": body}, allow_nan=False).encode()
    return len(text), base64.b64encode(gzip.compress(text, 6, mtime=0)).decode()


def _keep_rounds(results: Results) -> Results:
    """Return the results with a value for each round instead of every batch, to six digits, and a note of it."""
    note = f"thinned for a report: a value for each round, {DIGITS} digits"
    runs = tuple(replace(run, series=tuple(_thin(s) for s in run.series)) for run in results.runs)
    return replace(results, runs=runs, notes=(*results.notes, note))


def _thin(series: Series) -> Series:
    values = tuple(tuple((float(f"{v:.{DIGITS}g}"),) for v in process) for process in rounds_of(series))
    details = {k: v for k, v in series.details.items() if k != "broken"}
    return replace(series, values=values, details=details)


def figures_csv(results: Results) -> str:
    """Return CSV with a row for each metric of each run, without raw values. No cell is a formula."""
    out = io.StringIO()
    rows = csv_text.writer(out, quoting=csv_text.QUOTE_NONNUMERIC, lineterminator="\n")
    rows.writerow(HEADS)
    for run in results.runs:
        run_cells = [escape.csv(text) for text in (run.case, run.arm, run.status, run.reason)]
        for s in run.series or (Series("", ""),):
            low, high = (time_interval(s) if s.flat and s.unit == "s" else None) or ("", "")
            metric_cells = [escape.csv(s.metric), escape.csv(s.unit), escape.csv(s.kind if s.metric else "")]
            middle = "" if s.median is None else s.median
            rows.writerow([*run_cells, *metric_cells, middle, low, high, len(s.flat)])
    return out.getvalue()


def data(inputs: Inputs, content: Data) -> Section:
    """Return the section on the data inside the page."""
    results = inputs.results
    size = scaled(float(max(content.nbytes, 1)), ((1e6, "MB"), (1e3, "kB"), (1, "B")))
    canaries = ", canaries among them" if len(results.cases) > len(inputs.cases) else ""
    facts = (
        ("schema", f"results {results.schema}"),
        ("runs", f"{len(results.runs):,} ({many(len(results.cases), 'case')}{canaries})"),
        ("inside", f"{content.inside}, {size} as JSON" if content.nbytes else content.inside),
        ("sha256 of the results file", content.sha256),
        ("sha256 of the download", content.download if content.download != content.sha256 else ""),
    )
    return Section("data", "Raw data", (Facts(tuple((k, Cell(v)) for k, v in facts if v)),))


def missing(sections: list[Section]) -> Section:
    """Return the section of what this report does not have, why, and how to get it."""
    lines = tuple(Line(f"{s.title}: {s.absent}.", "quiet") for s in sections)
    return (
        Section("absent", "Not in this report", (Lines(lines),))
        if lines
        else absent("absent", "Not in this report", "")
    )

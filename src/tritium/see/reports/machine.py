"""The machine and the measurement: environment and differences, noise, how to reproduce, and the raw data.

Knows nothing of how a page looks, and never asks the machine it runs on: only what the results tell. The raw data are a file of
results that loads back, packed small, and a table of figures; what does not fit is thinned step by step, and the page says to what.
"""

from __future__ import annotations

import base64
import csv as csv_text
import gzip
import io
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from tritium import escape
from tritium.machine.facts import digest
from tritium.perf.amounts import bytes_text, many, percent, rate_text, scaled, seconds_text
from tritium.perf.records.environment import Environment, Hard, differences
from tritium.perf.records.json_io import plain
from tritium.perf.records.run import Results, Run, Series, rounds_of
from tritium.perf.tables import tables
from tritium.perf.tables.tables import time_interval
from tritium.perf.work.canary import SIZES
from tritium.see.reports.blocks import Block, Cell, Code, Facts, Fold, Grid, Line, Lines, Tone
from tritium.see.reports.inputs import Given, half_widths
from tritium.see.reports.sections import Section, absent

MOST = 250_000  # characters of packed data in a page
DIGITS = 6  # of thinned values
BYTES_A_VALUE = 8.5  # of a double written as JSON, packed: fewer never
HEADS = ("case", "arm", "status", "reason", "metric", "unit", "kind", "median", "low", "high", "samples")
SOON_NOISY = 0.02  # spread of canaries between processes from which on small differences drown


# ---- environment


def threads_text(hard: Hard) -> str:
    """How many threads measured; nothing where nobody tells."""
    return many(hard.threads, "thread") if hard.threads else ""


def environment(given: Given) -> Section:
    """Where it was measured; and in what two measurements differ."""
    return Section("environment", "Environment", (*_differences(given), *machine(given.results.environment)))


def machine(env: Environment) -> Iterator[Block]:
    """What an environment tells of itself, and its ceilings."""
    yield Facts(tuple((name, Cell(value)) for name, value in _facts(env) if value))
    if env.limits is not None:
        yield Fold("Ceilings of this machine, measured", (_ceilings(env),))


def _differences(given: Given) -> Iterator[Block]:
    if given.baseline is not None:
        hard, soft = differences(given.baseline.environment, given.results.environment)
    elif given.verdicts is not None:
        hard, soft = given.verdicts.hard, given.verdicts.soft
    else:
        return
    if not hard and not soft:
        yield Line("The same machine, versions and settings before and after.", "good")
        return
    if hard:
        yield Line(f"Not comparable: {many(len(hard), 'field')} that speed depends on differ.", "bad")
    rows: list[tuple[Cell, ...]] = []
    kinds: tuple[tuple[dict[str, tuple[str, str]], Tone, str], ...] = (
        (hard, "bad", "forbids to compare"), (soft, "unsure", "worth knowing"),
    )  # fmt: skip
    for fields, tone, word in kinds:
        rows += [(Cell(name), Cell(a), Cell(b), Cell(word, tone, badge=True)) for name, (a, b) in fields.items()]
    yield Grid(("differs", "before", "after", "which"), tuple(rows), caption="What differs from the baseline")


def _facts(env: Environment) -> list[tuple[str, str]]:
    hard = env.hard
    usable = f"{hard.usable} of {hard.cpus} CPUs" if hard.threads else many(hard.cpus, "CPU")  # imported: all are told
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
        ("Tritium", f"{env.tritium or 'version not told'} ({hard.loops} loops)" if hard.loops else env.tritium),
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


def noise(given: Given) -> Section:
    """How far this run can be believed: canaries, broken rounds, and the gate's own false alarms."""
    blocks: list[Block] = []
    rows = [row for run in given.results.runs if run.case in SIZES and (row := _canary(run)) is not None]
    if rows:
        heads = ("work no version changes", "arm", "time", "spread", "from first to last")
        blocks.append(Grid(heads, tuple(rows), frozenset(heads[2:]), "Canaries: what the machine itself did meanwhile"))
    lines = [Line(text, tone) for text, tone in _samples(given)]
    if given.selftest is not None:
        lines += [Line(text.strip(), tone) for text, tone in _selftest(given)]
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
    spread = (max(each) - min(each)) / median(each)
    drift = each[-1] / each[0] - 1
    tone: Tone = "unsure" if spread > SOON_NOISY else ""
    return (
        Cell(run.case), Cell(run.arm), Cell(seconds_text(wall.median), sort=wall.median),
        Cell(percent(spread, 1), tone, spread, f"slowest to fastest of {many(len(each), 'process')}"),
        Cell(f"{100 * drift:+.1f} %", sort=drift),
    )  # fmt: skip


def _samples(given: Given) -> Iterator[tuple[str, Tone]]:
    cells = len(given.runs)
    for word, said in tables.FLAGS.items():
        count = sum(any(word in f for f in run.flags) for run in given.runs)
        if count:
            yield f"{count} of {many(cells, 'cell')}: {said}", "unsure"
    widths = half_widths(given)
    if widths:
        middle, widest = percent(median(widths), 1), percent(max(widths), 1)
        yield f"Half the 95 % interval of a time is {middle} of it in the median cell, {widest} in the widest.", ""
    if given.verdicts is not None and (margins := sorted({v.margin for v in given.verdicts.verdicts})):
        yield f"A change counts from {' or '.join(percent(m, 1) for m in margins)} on: the margins of the verdicts.", ""
    plan = given.results.plan
    if not plan.gates:
        which = "An import" if given.imported else f"The {plan.name} plan"
        yield f"{which} of {many(plan.generations, 'process')} shows intervals and never gates.", "unsure"


def _selftest(given: Given) -> Iterator[tuple[str, Tone]]:
    found = given.selftest
    assert found is not None
    alarms, suites = found.false_alarms
    for number, line in enumerate(found.page().splitlines()):
        first: Tone = "good" if alarms == 0 else "unsure"
        yield line, first if number == 0 and suites else ""


# ---- reproduce and raw data


def reproduce(given: Given) -> Section:
    """What to type to measure the same again."""
    results, env, plan = given.results, given.results.environment, given.results.plan
    lines = typed(env, "" if given.imported else results.command)
    versions = [f"Tritium {env.tritium}" if env.tritium else "", f"Python {env.python}" if env.python else ""]
    facts = [
        ("commit", commit_text(env)),
        ("versions", ", ".join(filter(None, (*versions, *(f"{k} {v}" for k, v in env.packages.items()))))),
        ("plan", f"{plan.name}: {many(plan.generations, 'process')}, {many(plan.rounds, 'round')} of {many(plan.batches, 'batch')}"),
        ("seed", "" if given.imported else str(plan.seed)),
        ("metrics", ", ".join(plan.metrics)),
        ("took", seconds_text(results.elapsed_s) if results.elapsed_s else ""),
        ("measured", results.created),
    ]  # fmt: skip
    blocks: list[Block] = [Code("\n".join(lines))] if lines else []
    if given.imported:
        told = f"Measured by {results.suite}, not by Tritium: its file does not tell the command. Run the same there again."
        blocks.append(Line(told, "quiet"))
    blocks.append(Facts(tuple((k, Cell(v)) for k, v in facts if v)))
    if given.verdicts is not None and given.verdicts.command:
        blocks.append(Line("The verdict was made by:"))
        blocks.append(Code(given.verdicts.command))
    return Section("reproduce", "How to reproduce", tuple(blocks))


def typed(env: Environment, command: str) -> list[str]:
    """What to type, line by line: the commit, the packages, the variables, the command."""
    lines = [f"git checkout {shlex.quote(env.commit)}"] if env.commit else []
    if env.packages:
        lines.append("python -m pip install " + " ".join(shlex.quote(f"{k}=={v}") for k, v in env.packages.items()))
    lines += [f"export {k}={shlex.quote(v)}" for k, v in env.variables.items()]
    return [*lines, command] if command else lines


def commit_text(env: Environment) -> str:
    """The commit, and whether it alone gives this code."""
    changed = " with uncommitted changes: the commit alone does not give this code" if env.dirty else ""
    return env.commit + changed or "not known"


@dataclass(frozen=True)
class Data:
    """What a page carries."""

    sha256: str  # that the file of the results has in it; "": there is no such file
    download: str  # that the download has in it; "": there is none
    inside: str  # "every value", in words
    nbytes: int  # of the results as JSON; 0: they are not inside
    results: str  # base64 of gzip of a results file; "": not inside
    figures: str  # CSV


def data_of(results: Results, sha256: str = "") -> Data:
    """As much of the results as a page can carry, and the figures of all; `sha256`: what their file has in it.

    Read from a file, a whole number may be a double (64, 64.0), which changes the hash of what is inside, not its meaning.
    """
    figures, whole = figures_csv(results), plain(results)
    if BYTES_A_VALUE * sum(len(s.flat) for r in results.runs for s in r.series) < MOST:
        inside = digest(whole)
        text, packed = _packed(whole, inside, results.schema)
        if len(packed) <= MOST:
            return Data(sha256, inside, "every value, as measured", text, packed, figures)
    body = plain(_rounds(results))
    inside = digest(body)
    text, packed = _packed(body, inside, results.schema)
    if len(packed) <= MOST:
        told = f"a value for each round, {DIGITS} digits; the file of results has every batch"
        return Data(sha256, inside, told, text, packed, figures)
    return Data(
        sha256, "", "figures only: the raw values would not fit; they are in the file of results", 0, "", figures
    )


def _packed(body: dict[str, Any], sha256: str, schema: int) -> tuple[int, str]:
    """The bytes of a results file, and the file packed."""
    text = json.dumps({"schema": schema, "sha256": sha256, "results": body}, allow_nan=False).encode()
    return len(text), base64.b64encode(gzip.compress(text, 6, mtime=0)).decode()


def _rounds(results: Results) -> Results:
    """The value of each round instead of every batch, to six digits; the results say so themselves."""
    said = f"thinned for a report: a value for each round, {DIGITS} digits"
    runs = tuple(replace(run, series=tuple(_thin(s) for s in run.series)) for run in results.runs)
    return replace(results, runs=runs, notes=(*results.notes, said))


def _thin(series: Series) -> Series:
    values = tuple(tuple((float(f"{v:.{DIGITS}g}"),) for v in generation) for generation in rounds_of(series))
    details = {k: v for k, v in series.details.items() if k != "broken"}
    return replace(series, values=values, details=details)


def figures_csv(results: Results) -> str:
    """A row for each metric of each run, without raw values. No cell is a formula."""
    out = io.StringIO()
    rows = csv_text.writer(out, quoting=csv_text.QUOTE_NONNUMERIC, lineterminator="\n")
    rows.writerow(HEADS)
    for run in results.runs:
        about = [escape.csv(text) for text in (run.case, run.arm, run.status, run.reason)]
        for s in run.series or (Series("", ""),):
            low, high = (time_interval(s) if s.flat and s.unit == "s" else None) or ("", "")
            words = [escape.csv(s.metric), escape.csv(s.unit), escape.csv(s.kind if s.metric else "")]
            middle = "" if s.median is None else s.median
            rows.writerow([*about, *words, middle, low, high, len(s.flat)])
    return out.getvalue()


def data(given: Given, found: Data) -> Section:
    """What is inside the page, and what it is called."""
    results = given.results
    size = scaled(float(max(found.nbytes, 1)), ((1e6, "MB"), (1e3, "kB"), (1, "B")))
    canaries = ", canaries among them" if len(results.cases) > len(given.cases) else ""
    facts = (
        ("schema", f"results {results.schema}"),
        ("runs", f"{len(results.runs):,} ({many(len(results.cases), 'case')}{canaries})"),
        ("inside", f"{found.inside}, {size} as JSON" if found.nbytes else found.inside),
        ("sha256 of the results file", found.sha256),
        ("sha256 of the download", found.download if found.download != found.sha256 else ""),
    )
    return Section("data", "Raw data", (Facts(tuple((k, Cell(v)) for k, v in facts if v)),))


def missing(sections: list[Section]) -> Section:
    """What is not in this report, why, and how to get it."""
    lines = tuple(Line(f"{s.title}: {s.absent}.", "quiet") for s in sections)
    return (
        Section("absent", "Not in this report", (Lines(lines),))
        if lines
        else absent("absent", "Not in this report", "")
    )

"""Comparison tables: a row for each case, with its time, interval, and every other contender beside.

Knows nothing of terminals or files, and never prints. A failed cell shows its status; the reason is below the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Literal, NamedTuple

from tritium import escape
from tritium.errors import ArgumentError
from tritium.perf.amounts import TIMES, bytes_text, joules_text, rate_text, seconds_text
from tritium.perf.gate.verdict import STEADY, TOO_NOISY, Rules, Suite, Verdict, disturbance, is_disturbed
from tritium.perf.records.run import LEAST_PROCESSES, Results, Run, Series, rounds_of
from tritium.perf.stats.estimates import walsh_interval
from tritium.perf.tables.table import NONE, Table
from tritium.perf.work.canary import is_canary

RULES = Rules(metrics=("wall",), minimum_samples=2)


# ---- times and rates


def time_interval(wall: Series) -> tuple[float, float] | None:
    """Return the 95 % interval of the time of a call; each fresh process counts once. None for one process."""
    each = [median(rounds) for rounds in rounds_of(wall) if rounds]
    if len(each) < 2 or wall.median is None or min(each) <= 0:
        return None
    low, high = walsh_interval([math.log(v) for v in each])
    return min(math.exp(low), wall.median), max(math.exp(high), wall.median)


def time_text(run: Run) -> str:
    """Return the median of a call with its interval; the status if there is none."""
    wall = run.of("wall")
    if run.status not in ("ok", "interrupted") or wall is None or wall.median is None:
        return run.status if run.status != "ok" else NONE
    interval = time_interval(wall)
    if interval is None:
        return seconds_text(wall.median)
    scale, unit = next(((o, u) for o, u in TIMES if wall.median >= o), TIMES[-1])
    value = wall.median / scale
    places = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    middle, low, high = (f"{v / scale:.{places}f}" for v in (wall.median, *interval))
    return f"{middle} {unit} ({low}…{high})"


def speed_text(run: Run, results: Results) -> tuple[str, str]:
    """Return the rate of what limits the call, arithmetic or bytes, and the share of this machine's ceiling."""
    seconds, limits, work = run.seconds, results.environment.limits, run.work
    if not seconds or not (work.flops or work.moved):
        return (rate_text(run.items_per_s, work.item) if seconds and run.items_per_s else NONE), NONE
    busy, share = work.flops > 8 * work.moved, NONE
    if limits is not None:
        arithmetic, least = work.flops / limits.rate(work.integer), limits.least_s(work.flops, work.moved, work.integer)
        busy = least is not None and arithmetic >= least
        part = 100 * least / seconds if least is not None else None
        share = NONE if part is None else f"{part:.0f} %" if part >= 1 else "<1 %"
    if busy:
        return rate_text(work.flops / seconds, "OP" if work.integer else "FLOP"), share
    return rate_text(work.moved / seconds, "B"), share


# ---- one contender beside another


def speedups(results: Results) -> dict[str, Suite]:
    """Return, for each other contender, its comparison with the first: verdicts whose ratio is first / other."""
    shown = without_canaries(results)
    if len(results.arms) < 2 or not shown.runs:
        return {}
    from tritium.perf.gate.compare import compare_paired  # one arm is compared with nothing

    return {arm: compare_paired(shown, arm, results.arms[0], RULES) for arm in results.arms[1:]}


def without_canaries(results: Results) -> Results:
    """Return the results without canaries."""
    return replace(results, runs=tuple(r for r in results.runs if not is_canary(r.case)))


def told_apart(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the interval unless it is a single point: one round has no interval."""
    return None if interval is None or interval[0] == interval[1] else interval


def ratio_text(ratio: float | None, interval: tuple[float, float] | None, brief: bool = False) -> str:
    """Return how many times as fast the first contender is, with the interval; '~' if it contains 1."""
    if ratio is None or ratio <= 0:
        return NONE
    fast = 1 / ratio
    places = 3 if fast < 0.0995 else 2 if fast < 9.995 else 1 if fast < 99.95 else 0
    text = f"{fast:.{places}f}×"
    if (interval := told_apart(interval)) is None:
        return text
    low, high = 1 / interval[1], 1 / interval[0]
    same = " ~" if low <= 1 <= high else ""
    return text + same if brief else f"{text} ({low:.{places}f}…{high:.{places}f}){same}"


# ---- the verdict in one sentence


Standing = Literal["faster", "slower", "alike", "noisy", "measured", "nothing"]


class Headline(NamedTuple):
    """The verdict on a run in one sentence: how the first contender compares with a library."""

    text: str
    standing: Standing
    disturbed: int = 0  # cells that other load broke into
    cells: int = 0
    arm: str = ""  # the contender that it names beside the first
    noise: str = ""  # what disturbed the run, where it is too noisy to tell


def headline(results: Results, beside: dict[str, Suite] | None = None) -> Headline:
    """Return the verdict of a run without a gate, or that it is too noisy to tell."""
    disturbed, cells, *_ = noise = disturbance(results)
    if not cells:
        return Headline("Nothing could be measured", "nothing", disturbed, cells)
    suites = speedups(results) if beside is None else beside
    text, standing, arm = _standing(results, suites)
    if not noise.noisy:
        return Headline(text, standing, disturbed, cells, arm)
    interval = told_apart(suites[arm].geomean_interval) if arm else None
    if interval is not None and is_undecided(interval):
        return Headline(f"{TOO_NOISY}: {noise}", "noisy", disturbed, cells, arm, str(noise))
    if interval is not None and half_width(interval) > STEADY:  # paired rounds still order the contenders
        between = f"{ratio_text(interval[1], None)} to {ratio_text(interval[0], None)}"
        text = f"{results.arms[0]} is {between} as fast as {arm}"
    return Headline(f"{TOO_NOISY} precisely: {text}; {noise}", "noisy", disturbed, cells, arm, str(noise))


def _standing(results: Results, suites: dict[str, Suite]) -> tuple[str, Standing, str]:
    """Return the sentence on the first contender beside a library, its standing, and the library's name."""
    arm, suite = _library(results, suites)
    if suite is None or suite.geomean is None:
        cases = len({run.case for run in without_canaries(results).runs if run.status == "ok"})
        return f"{cases} case{'s' * (cases != 1)} measured", "measured", ""
    interval = told_apart(suite.geomean_interval)
    first, ratio = results.arms[0], ratio_text(suite.geomean, None)
    if interval is not None and is_undecided(interval):
        return f"{first} and {arm}: no difference is shown", "alike", arm
    return f"{first} is {ratio} as fast as {arm}", "faster" if suite.geomean <= 1 else "slower", arm


def half_width(interval: tuple[float, float]) -> float:
    """Return half the width of a ratio's interval, relative to its geometric middle: 0.05 is ±5 %."""
    low, high = interval
    return math.sqrt(high / low) - 1 if low > 0 else math.inf


def is_undecided(interval: tuple[float, float]) -> bool:
    """Return True if the interval of a ratio contains 1."""
    return interval[0] <= 1 <= interval[1]


def is_variant(arm: str, first: str) -> bool:
    """Return True if a contender is the first one with other kernels, not another library: "tritium portable"."""
    return arm.startswith(f"{first} ")


def _library(results: Results, suites: dict[str, Suite]) -> tuple[str, Suite | None]:
    """Return the contender a headline names: another library rather than a variant of the first contender."""
    usable = {arm: suite for arm, suite in suites.items() if suite.geomean is not None}
    others = [arm for arm in usable if not is_variant(arm, results.arms[0])]
    arm = next(iter([*others, *usable, *suites]), "")
    return arm, suites.get(arm)


def _beside(first: Run | None, other: Run | None, verdict: Verdict | None, brief: bool) -> str:
    """Return the cell of another contender in the row of a case."""
    if other is None or other.seconds is None or other.status != "ok":
        return other.status if other is not None and other.status != "ok" else NONE
    if first is None or first.seconds is None:
        return seconds_text(other.seconds)
    if verdict is not None and verdict.ratio is not None:
        return ratio_text(verdict.ratio, verdict.interval95, brief)
    return ratio_text(first.seconds / other.seconds, None, brief)


def comparison(
    results: Results, *, brief: bool = False, rates: bool = True, beside: dict[str, Suite] | None = None
) -> Table:
    """Return a row for each case: the first contender's time, rate and share of the ceiling, and its speedup over each other.

    Its joules are beside its time where they were measured or estimated.

    For narrow pages `rates=False` leaves out rate and share, and `brief` the intervals of the ratios.
    """
    if not results.arms:
        raise ArgumentError("comparison: these results have no contender.")
    first, others = results.arms[0], results.arms[1:]
    suites = speedups(results) if beside is None else beside
    verdicts = {(v.case, arm): v for arm, s in suites.items() for v in s.verdicts if v.metric == "wall"}
    joules = any(energy_text(run) != NONE for run in results if run.arm == first)
    rows = []
    for case in (c for c in results.cases if not is_canary(c)):
        run = results.of(case, first)
        time = "skipped" if run is None else time_text(run) + mark(run)
        speed = (speed_text(run, results) if run is not None else (NONE, NONE)) if rates else ()
        speed = (*((energy_text(run),) if joules else ()), *speed)
        more = []
        for arm in others:
            other = results.of(case, arm)
            more.append(_beside(run, other, verdicts.get((case, arm)), brief) + ("" if other is None else mark(other)))
        rows.append((case, time, *speed, *more))
    figures = (*(("energy",) if joules else ()), *(("rate", "of ceiling") if rates else ()))
    heads = ("case", first, *figures, *(f"vs {arm}" for arm in others))
    geo = [ratio_text(s.geomean, s.geomean_interval, brief) for s in suites.values()]
    if len(rows) > 1 and any(g != NONE for g in geo):
        rows.append(("geometric mean", *[""] * (len(heads) - 1 - len(geo)), *geo))
    below = (*_legend(results), *clocks(results), *remarks(results), *troubles(results))
    return Table("", heads, tuple(rows), frozenset(heads[1:]), below)


def energy_text(run: Run | None) -> str:
    """Return the joules of a call, "-" where there are none; an estimate is called one."""
    series = run.of("energy") if run is not None else None
    if series is None or series.median is None:
        return NONE
    return joules_text(series.median) + (" (estimate)" if series.kind == "estimate" else "")


def mark(run: Run) -> str:
    """Return the mark of a measured cell that other load took time from, "" for any other."""
    return " !" if run.status == "ok" and is_disturbed(run) else ""


def _legend(results: Results) -> list[str]:
    """Return the lines that explain ratios and intervals."""
    if len(results.arms) < 2:
        return []
    ratios = f"2.00×: {escape.terminal(results.arms[0])} takes half the time. ~: the interval contains 1, no difference is shown."
    return ["", ratios, _intervals(results)]


def _intervals(results: Results) -> str:
    """Return how many processes the intervals are over; where time was dealt, not all cells have the same number."""
    walls = [wall for run in without_canaries(results).runs if run.status == "ok" and (wall := run.of("wall"))]
    counts = [sum(map(bool, wall.values)) for wall in walls] or [results.plan.generations]
    least, most = min(counts), max(counts)
    if most <= 1:
        return "One process for each contender: the intervals leave out variance between processes."
    confidence = min(0.95, 1 - 2.0 ** (1 - most))  # coverage of the widest interval of that many values
    span = f"{least} to {most}" if least < most else most
    less = f", less sure over fewer than {LEAST_PROCESSES}" if least < min(most, LEAST_PROCESSES) else ""
    return f"{100 * confidence:.0f} % intervals over {span} processes{less}."


def clocks(results: Results) -> list[str]:
    """Return what the timed section includes if a device has its own memory or transfers were requested; nothing on the CPU."""
    if results.kind == "import":
        return []  # what another tool timed is not known
    contexts = [run.context for run in without_canaries(results).runs]
    lines = []
    if any(c.device != "cpu" and not c.transfer for c in contexts):
        lines.append("Device work only: transfers are excluded, and the result is complete when the clock stops.")
    if any(c.transfer for c in contexts):
        lines.append("With transfer: from NumPy arrays to NumPy arrays, both directions are timed.")
    return lines


def remarks(results: Results) -> list[str]:
    """Return what a contender did differently from the others, each once: dequantised ternary weights, f16 computed in f32."""
    notes: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for run in without_canaries(results).runs:
        for note in (str(run.facts.get(key, "")) for key in ("weights", "note")):
            if run.status == "ok" and ("dequantised" in note or note == run.facts.get("note")):
                arms, operations = notes.setdefault(note, ({}, {}))
                arms[run.arm] = operations[run.context.operation] = None
    return [
        escape.terminal(f"{', '.join(arms)}: {', '.join(operations)}: {note}", 300)
        for note, (arms, operations) in notes.items()
    ]


def troubles(results: Results) -> list[str]:
    """Return the failures, each reason once, and warnings about the samples."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    shown = without_canaries(results).runs
    for run in shown:
        if run.status != "ok":
            groups.setdefault((run.arm, run.status, run.reason), []).append(run.case)
    lines = []
    for (arm, status, reason), cases in groups.items():
        listed = ", ".join(cases) if len(cases) < 3 else f"{len(cases)} cases ({cases[0]} …)"
        lines.append(escape.terminal(f"{arm}: {status}: {listed}" + (f": {reason}" if reason else ""), 400))
    measured = [run for run in shown if run.status == "ok"]
    for flag, warning in FLAGS.items():
        count = sum(any(flag in f for f in run.flags) for run in measured)
        if count:
            lines.append(f"{count} of {len(measured)} cells: {warning}")
    return lines


FLAGS = {
    "no steady state": "no steady state; the times may still change.",
    "broke in": "disturbed by other load or the hypervisor (marked !); up to 20 % of rounds were repeated, the intervals include the rest.",
    "modes": "the times have several modes.",
    "waited": "the process waited most of the time: other load had its CPUs (marked !).",
}


# ---- tables of suites


class Column(NamedTuple):
    """A column of a suite's table: its head, and the function that writes its cells."""

    head: str
    cell: Callable[[Run, Results], str]


def _metric(name: str, shown: Callable[[float], str]) -> Callable[[Run, Results], str]:
    """Return the function that writes the median of a metric."""

    def cell(run: Run, results: Results) -> str:
        series = run.of(name)
        if series is None:
            return NONE
        return shown(series.median) if series.median is not None else "not measured"

    return cell


def _fact(name: str, shown: Callable[[float], str]) -> Callable[[Run, Results], str]:
    """Return the function that writes a fact of a run."""

    def cell(run: Run, results: Results) -> str:
        value = run.facts.get(name)
        return shown(value) if isinstance(value, (int, float)) else str(value) if value is not None else NONE

    return cell


def _items(run: Run, results: Results) -> str:
    """Return the throughput of a run in its items."""
    return rate_text(run.items_per_s, run.work.item) if run.items_per_s else NONE


COLUMNS: dict[str, tuple[Column, ...]] = {
    "memory": (
        Column("time", lambda run, _: time_text(run)),
        Column("peak", _metric("peak_bytes", bytes_text)),
        Column("left", _metric("allocated_bytes", bytes_text)),
        Column("resident", _metric("rss_bytes", bytes_text)),
    ),
    "workloads": (
        Column("time", lambda run, _: time_text(run)),
        Column("throughput", _items),
        Column("rate", lambda run, results: speed_text(run, results)[0]),
        Column("of ceiling", lambda run, results: speed_text(run, results)[1]),
        Column("peak", _metric("peak_bytes", bytes_text)),
    ),
}


def details(results: Results, suite: str) -> Table | None:
    """Return what a suite measures besides time, by contender; None if time is all."""
    columns = COLUMNS.get(suite)
    if columns is None:
        return None
    heads = ("case", "contender", *(column.head for column in columns))
    rows = tuple(
        (run.case, run.arm, *(column.cell(run, results) if run.status == "ok" else NONE for column in columns))
        for run in results.runs
        if not is_canary(run.case)
    )
    absent = {
        f"{s.metric} of {run.arm}: not measured: {s.reason}"
        for run in results.runs
        for s in run.series
        if s.kind == "not measured"
    }
    return Table("", heads, rows, frozenset(heads[2:]), tuple(sorted(absent)))


STEPS = ("quantize", "dequantize", "matmul")


def quantization(results: Results) -> Table:
    """Return a row for each scheme and size on the first contender: the time of each step, the bytes and the loss."""
    heads = ("scheme", "size", *STEPS, "bytes", "smaller", "bits", "SQNR", "matmul of one token")
    cells: dict[tuple[str, str], dict[str, Run]] = {}
    for run in without_canaries(results).runs:
        if run.arm == results.arms[0]:
            size = "x".join(map(str, run.context.shape))
            cells.setdefault((run.context.precision, size), {})[run.context.operation] = run
    rows = []
    for (scheme, size), steps in cells.items():
        any_ok = next((r for r in steps.values() if r.status == "ok"), None)
        facts = [cell(any_ok, results) if any_ok is not None else NONE for cell in STORED_FACTS]
        product = steps.get("matmul")
        rate = rate_text(product.items_per_s, "token") if product is not None and product.items_per_s else NONE
        times = [time_text(steps[s]) if s in steps else NONE for s in STEPS]
        rows.append((scheme, size, *times, *facts, rate))
    return Table(f"By scheme, {results.arms[0]}", heads, tuple(rows), frozenset(heads[2:]))


STORED_FACTS = (
    _fact("bytes after", bytes_text),
    _fact("times smaller", lambda v: f"{v:.2f}×"),
    _fact("bits a weight", lambda v: f"{v:.2f}"),
    _fact("sqnr dB", lambda v: f"{v:.1f} dB"),
)


def advice(results: Results, other: str, usual: str) -> list[str]:
    """Return, for cases whose names differ by one word, which is faster on the first contender, and by how much.

    The usual case may lack its word: "add 1024x1024 f32" beside "add 1024x1024 f32 strided".
    """
    lines = []
    for case in results.cases:
        words = case.split()
        if other not in words:
            continue
        twins = (" ".join(usual if w == other else w for w in words), " ".join(w for w in words if w != other))
        runs = [r for name in (case, *twins) if (r := results.of(name, results.arms[0])) is not None and r.seconds]
        if len(runs) != 2:
            continue
        ratio = (runs[0].seconds or 1) / (runs[1].seconds or 1)
        name = twins[1]
        if any(map(is_disturbed, runs)):
            lines.append(f"{name}: no advice, other load disturbed {other} or {usual}: measure again.")
        elif 0.97 < ratio < 1.03:
            lines.append(f"{name}: {other} and {usual} take the same time ({ratio:.2f}×).")
        elif _overlap(*runs):
            lines.append(f"{name}: no difference between {other} and {usual} is shown; their intervals overlap.")
        else:
            best, worse = (usual, other) if ratio > 1 else (other, usual)
            lines.append(f"{name}: prefer {best}, {max(ratio, 1 / ratio):.2f}× as fast as {worse}.")
    return lines


def _overlap(a: Run, b: Run) -> bool:
    """Return True if the intervals of two times overlap; a single process has no interval."""
    ends = [time_interval(wall) for run in (a, b) if (wall := run.of("wall")) is not None]
    return len(ends) == 2 and all(ends) and max(e[0] for e in ends if e) <= min(e[1] for e in ends if e)

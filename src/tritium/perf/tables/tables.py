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
from tritium.perf.amounts import TIMES, bytes_text, joules_text, many, rate_text, seconds_text, verb
from tritium.perf.gate.page import deciding
from tritium.perf.gate.verdict import DECIDED, Interval, Outcome, Rules, Suite, Verdict, noise_text, told_apart
from tritium.perf.records.run import LEAST_PROCESSES, Flag, Results, Run, Series, flag_counts, rounds_of
from tritium.perf.stats.estimates import rate_above, walsh_interval
from tritium.perf.stats.resample import NORMAL
from tritium.perf.tables.table import NONE, Table
from tritium.perf.work.canary import is_canary

RULES = Rules(metrics=("wall",), minimum_samples=2)
FALSE_SHARE = 0.05  # of coloured differences that may be false: Benjamini-Hochberg


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


Standing = Literal["faster", "slower", "alike", "undecided", "measured", "nothing"]


class Headline(NamedTuple):
    """The verdict on a run in one sentence: how the first contender compares with a library."""

    text: str
    standing: Standing
    arm: str = ""  # the contender that it names beside the first
    deciding: str = ""  # of one that is undecided: what would decide it


def headline(results: Results, beside: dict[str, Suite] | None = None) -> Headline:
    """Return the verdict of a run without a gate. It stands where the interval of the mean ratio decides it."""
    cases = len({run.case for run in without_canaries(results).runs if run.status == "ok"})
    if not cases:
        return Headline("Nothing could be measured", "nothing")
    arm, suite = _library(results, speedups(results) if beside is None else beside)
    if suite is None or suite.geomean is None:
        return Headline(f"{many(cases, 'case')} measured", "measured")
    first, interval = results.arms[0], suite.geomean_interval
    outcome = ratio_outcome(suite.geomean, interval)
    if outcome == "EQUIVALENT":
        return Headline(f"{first} is as fast as {arm}", "alike", arm)
    if outcome == "INCONCLUSIVE" and interval is not None and told_apart(interval):
        more = would_decide(results, suite.geomean, interval)
        return Headline(f"{first} and {arm}: no difference is shown", "undecided", arm, more)
    standings: dict[Outcome, Standing] = {"FASTER": "faster", "SLOWER": "slower"}
    standing = standings.get(outcome, "undecided")  # one round has no interval
    return Headline(f"{first} is {ratio_text(suite.geomean, None)} as fast as {arm}", standing, arm)


def ratio_outcome(ratio: float, interval: Interval | None) -> Outcome:
    """Return the outcome of a ratio of times, first contender to the other, where its interval decides it."""
    low, high = told_apart(interval) or (0.0, math.inf)
    edge = 1 + RULES.margin("wall")
    if 1 / edge < low and high < edge:
        return "EQUIVALENT"
    return "INCONCLUSIVE" if low <= 1 <= high else "FASTER" if ratio < 1 else "SLOWER"


def outcome_beside(v: Verdict | None) -> Outcome | Literal[""]:
    """Return the outcome of the first contender beside another in a case; of many differences few are by chance."""
    if v is None or v.ratio is None:
        return "MISSING" if v is not None and v.outcome == "MISSING" else ""
    outcome = ratio_outcome(v.ratio, v.interval95)
    by_chance = outcome != "EQUIVALENT" and v.q is not None and v.q > FALSE_SHARE
    return "INCONCLUSIVE" if by_chance else outcome


def would_decide(results: Results, ratio: float, interval: Interval) -> str:
    """Return how many more processes would decide a ratio whose interval is too wide, and how long they take."""
    from tritium.perf.gate.judge import Estimate, needed  # two contenders were compared

    processes = results.plan.generations
    sd = math.log(interval[1] / interval[0]) / 2 / NORMAL.inv_cdf(0.975) * math.sqrt(processes)
    estimate = Estimate(math.log(ratio), {}, 1.0, sd, processes)
    return deciding(needed(estimate, math.log1p(RULES.margin("wall"))), results.process_s)


def noise(results: Results, suites: dict[str, Suite]) -> str:
    """Return how noisy the machine was, by the ratios to other contenders; by the times of one alone."""
    verdicts = [v for s in suites.values() for v in s.verdicts if v.metric == "wall" and told_apart(v.interval95)]
    if not verdicts:
        return noise_text(time_intervals(results))
    decided = sum(outcome_beside(v) in DECIDED for v in verdicts)
    return noise_text((v.interval95 for v in verdicts), decided, len(verdicts))


def time_intervals(results: Results) -> list[Interval]:
    """Return the intervals of all times that have one."""
    walls = [run.of("wall") for run in without_canaries(results).runs if run.status == "ok"]
    return [between for wall in walls if wall is not None and (between := time_interval(wall)) is not None]


def is_variant(arm: str, first: str) -> bool:
    """Return True if a contender is no other library: the first one with other kernels or on another device."""
    return arm.startswith((f"{first} ", f"{first}:"))


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
    suites, disturbed = speedups(results) if beside is None else beside, disturbed_cells(results)
    verdicts = {(v.case, arm): v for arm, s in suites.items() for v in s.verdicts if v.metric == "wall"}
    joules = any(energy_text(run) != NONE for run in results if run.arm == first)
    rows = []
    for case in (c for c in results.cases if not is_canary(c)):
        run = results.of(case, first)
        time = "skipped" if run is None else time_text(run) + MARK * (run.key in disturbed)
        speed = (speed_text(run, results) if run is not None else (NONE, NONE)) if rates else ()
        speed = (*((energy_text(run),) if joules else ()), *speed)
        more = []
        for arm in others:
            other = results.of(case, arm)
            more.append(_beside(run, other, verdicts.get((case, arm)), brief) + MARK * ((case, arm) in disturbed))
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


def disturbed_cells(results: Results) -> frozenset[tuple[str, str]]:
    """Return the cells that other load disturbed more than twice as often as the other cases of the same run.

    On a machine where every cell is disturbed none is: the intervals tell how noisy it is. Contenders take turns in the rounds
    of a case, so that it counts once among the others.
    """
    cells = {run.key: run.disturbed_rounds for run in without_canaries(results).runs if run.status == "ok"}
    cases: dict[str, tuple[int, int]] = {}
    for (case, _), rounds in cells.items():
        cases[case] = max(cases.get(case, (0, 0)), rounds)
    hits, total = (sum(rounds[i] for rounds in cases.values()) for i in (0, 1))
    return frozenset(
        key
        for key, (own, rounds) in cells.items()
        if rate_above(own, rounds, hits - cases[key[0]][0], total - cases[key[0]][1], len(cases))
    )


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
    return [*lines, *(f"{warning}." for warning, _ in warnings(results))]


def warnings(results: Results) -> list[tuple[str, str]]:
    """Return what a reader must know of some cells, each with what to do."""
    measured = [run for run in without_canaries(results).runs if run.status == "ok"]
    counts = {flag: sum(flag in flag_counts(run.flags) for run in measured) for flag in WARNINGS}
    counts[Flag.DISTURBED] = len(disturbed_cells(results))
    return [
        (f"{n} of {many(len(measured), 'cell')} {verb(n, one, more)} {what}", remedy)
        for flag, (one, more, what, remedy) in WARNINGS.items()
        if (n := counts[flag])
    ]


WARNINGS = {
    Flag.UNSTEADY: ("reached", "reached", "no steady state", "use a longer warm-up"),
    Flag.DISTURBED: (
        "was", "were", "disturbed by other load more than twice as often as the other cases (marked !)",
        "the intervals include it; measure again where they do not decide",
    ),
    Flag.MODES: ("has", "have", "times of several modes", "look at the card before trusting a median"),
}  # fmt: skip
MARK = " !"  # of a cell that other load disturbed unusually often


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
        best, worse, (ratio, interval) = other, usual, _twin_ratio(*runs)
        if ratio > 1:
            best, worse, (ratio, interval) = usual, other, _twin_ratio(*reversed(runs))
        outcome, figure = ratio_outcome(ratio, interval), ratio_text(ratio, interval).removesuffix(" ~")
        if outcome == "EQUIVALENT":
            lines.append(f"{twins[1]}: {other} and {usual} take the same time: {figure}.")
        elif outcome == "INCONCLUSIVE":
            lines.append(f"{twins[1]}: no difference between {other} and {usual} is shown: {figure}.")
        else:
            lines.append(f"{twins[1]}: prefer {best}, {figure} as fast as {worse}.")
    return lines


def _twin_ratio(run: Run, other: Run) -> tuple[float, Interval | None]:
    """Return the time of a case relative to another that the same processes measured, and its interval."""
    from tritium.perf.gate.compare import log_ratios  # most suites have no twins
    from tritium.perf.gate.judge import estimate

    before, after = other.of("wall"), run.of("wall")
    logs = log_ratios(before, after) if before is not None and after is not None else []
    if not logs:
        return (run.seconds or 1) / (other.seconds or 1), None
    ratio = estimate(logs, RULES, 1)
    low, high = ratio.intervals[0.95]
    return math.exp(ratio.log), (math.exp(low), math.exp(high))

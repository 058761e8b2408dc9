"""Sections of resources: memory, energy, history, roofline, and the profile with its flame graph.

Missing measurements are shown with the reason; nothing is estimated here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tritium.perf.amounts import many, seconds_text
from tritium.perf.records.run import Run
from tritium.perf.tables import tables
from tritium.perf.tables.table import NONE, Table
from tritium.perf.work.canary import is_canary
from tritium.see.charts import charts
from tritium.see.charts.roofline import roofs_of
from tritium.see.reports.blocks import Block, Cell, Drawing, Fold, Grid, Line, Lines, Picture, figure_cell
from tritium.see.reports.cases import ROWS, reason
from tritium.see.reports.inputs import Inputs, anchor, share
from tritium.see.reports.sections import Section, absent

if TYPE_CHECKING:
    from tritium.perf.store.trends import Trend
    from tritium.see.trace.flame_diff import Change

TRENDS = 12  # charts of histories; the table has all
OPS = 15  # changes that are listed
SHOWN = ("calls", "operations")  # parts of a profile that are open; the others are folded
LEAST_POINTS = 2
ONE_EACH = (
    "The changes below are of one profile each and may be due to the load of the machine. tritium profile diff with "
    "--also-before and --also-after separates differences of versions from noise."
)


# ---- memory


def memory(inputs: Inputs) -> Section:
    """Return the section of peaks by case and contender, and of a tracked run."""
    blocks: list[Block] = []
    measured = [run for run in inputs.runs if (s := run.of("peak_bytes")) is not None and s.median is not None]
    if measured:
        cases = sorted({run.case for run in measured}, key=lambda c: -max(_peak(r) for r in measured if r.case == c))[
            :ROWS
        ]
        rows = tuple(
            _memory_bar(run, len(inputs.results.arms) > 1)
            for case in inputs.cases if case in cases
            for arm in inputs.results.arms if (run := inputs.run_of(case, arm)) is not None and run.of("peak_bytes") is not None
        )  # fmt: skip
        note = "" if len({r.case for r in measured}) <= ROWS else f"the {ROWS} largest; the raw data has all"
        chart = charts.Bars(
            "Peak memory of a call",
            rows,
            "B",
            subtitle="bytes allocated at once at most, counted",
            note=note,
        )
        blocks.append(Picture("memory", chart, told=True))
    if inputs.memory is not None:
        blocks += inputs.memory.blocks()
    reasons = sorted(
        {
            f"{r.arm}: {reason(s)}"
            for r in inputs.runs
            if (s := r.of("peak_bytes")) is not None and s.kind == "not measured"
        }
    )
    if not blocks:
        detail = f" ({reasons[0]})" if reasons else ""
        return absent(
            "memory",
            "Memory",
            f"no peak was measured{detail}; tritium bench memory measures it, --memory FILE adds a tracked run",
        )
    if reasons:
        blocks.append(Lines(tuple(Line(text, "quiet") for text in reasons[:4])))
    return Section("memory", "Memory", tuple(blocks))


def _peak(run: Run) -> float:
    series = run.of("peak_bytes")
    return (series.median or 0.0) if series is not None else 0.0


def _memory_bar(run: Run, several: bool) -> charts.Bar:
    series = run.of("peak_bytes")
    group = run.arm if several else ""
    if series is None or series.median is None:
        return charts.Bar(
            run.case, None, group=group, absent="" if series is None else reason(series), link="#" + anchor(run.case)
        )
    estimate = series.kind == "estimate"
    return charts.Bar(run.case, series.median, group=group, estimate=estimate, link="#" + anchor(run.case))


# ---- energy


def energy(inputs: Inputs) -> Section:
    """Return the section of joules a call; hatched where estimated; the reason where nothing was measured."""
    measured = [run for run in inputs.runs if run.of("energy") is not None]
    if not measured:
        return absent(
            "energy",
            "Energy",
            "not requested in this run; tritium bench energy measures it where there is a sensor",
        )
    from tritium.perf.tables import energy as energy_tables  # most results have none

    rows = tuple(_energy_bar(run, len(inputs.results.arms) > 1) for run in measured[: 2 * ROWS])
    chart = charts.Bars("Energy of a call", rows, "J", subtitle="joules of one call; hatched: an estimate")
    blocks: list[Block] = [Picture("energy", chart)] if any(bar.value is not None for bar in rows) else []
    for table in (energy_tables.league(inputs.results), energy_tables.table(inputs.results)):
        if table is None:
            continue
        cells = tuple(tuple(Cell(text) for text in row) for row in table.rows)
        blocks.append(
            Grid(table.heads, cells, table.right, table.title or "Power and efficiency", filtered=not table.title)
        )
        if table.below:
            blocks.append(Lines(tuple(Line(text, "quiet") for text in table.below)))
    return Section("energy", "Energy", tuple(blocks))


def _energy_bar(run: Run, several: bool) -> charts.Bar:
    series = run.of("energy")
    group = run.arm if several else ""
    assert series is not None
    if series.median is None:
        return charts.Bar(run.case, None, group=group, absent=reason(series), link="#" + anchor(run.case))
    estimate = series.kind == "estimate"
    return charts.Bar(
        run.case, series.median, group=group, estimate=estimate, note=series.source, link="#" + anchor(run.case)
    )


# ---- the suite's own result


def suite(inputs: Inputs) -> Section | None:
    """Return the section of what the suite shows on a terminal besides its comparison; None where that is all.

    Energy, crossovers and the guide have sections of their own.
    """
    tables_of_suite: Sequence[Table] = inputs.findings.tables
    if inputs.results.suite == "energy" or any(run.of("energy") is not None for run in inputs.runs):
        from tritium.perf.tables.energy import HEADS, LEAGUE_HEADS

        tables_of_suite = [t for t in tables_of_suite if t.heads not in (HEADS, LEAGUE_HEADS)]
    blocks: list[Block] = []
    for table in tables_of_suite:
        cells = tuple(
            tuple(
                figure_cell(text) if head in table.right else Cell(text)
                for text, head in zip(row, table.heads, strict=True)
            )
            for row in table.rows
        )
        blocks.append(Grid(table.heads, cells, table.right, table.title or "By case and contender", filtered=True))
        if table.below:
            blocks.append(Lines(tuple(Line(text, "quiet") for text in table.below)))
    if inputs.findings.advice:
        blocks.append(Lines(tuple(Line(text) for text in inputs.findings.advice)))
    if inputs.results.suite == "quantization":
        return Section("schemes", "Schemes", (*_accuracy(inputs), *blocks))
    return Section("suite", f"Results of the suite {inputs.results.suite}", tuple(blocks)) if blocks else None


def _accuracy(inputs: Inputs) -> Iterable[Picture]:
    """Yield the chart of the SQNR of each scheme, where it was measured."""
    measured = {
        run.context.precision: run
        for run in inputs.runs
        if run.arm == inputs.results.arms[0] and isinstance(run.facts.get("sqnr dB"), (int, float))
    }
    bars = tuple(charts.Bar(scheme, float(run.facts["sqnr dB"])) for scheme, run in measured.items())
    if bars:
        subtitle = "SQNR, signal to quantisation noise; more is better"
        yield Picture(
            "sqnr", charts.Bars("Accuracy of each scheme", bars, "dB", subtitle=subtitle, better="more is better")
        )


# ---- history


def history(inputs: Inputs) -> Section:
    """Return the section of earlier times with their change points; the most changed first."""
    trends = {key: t for key, t in inputs.trends.items() if len(t.points) >= LEAST_POINTS}
    if not trends:
        reason_text = "no earlier runs were given; tritium history --add results.json adds them, tritium report --history shows them"
        return absent("history", "History", inputs.no_history or reason_text)
    ranked = sorted(trends.items(), key=lambda item: (-_largest_change(item[1]), item[0]))
    canaries = [item for item in ranked if is_canary(item[0][0])]
    ranked = [item for item in ranked if not is_canary(item[0][0])]
    pictures = _trend_pictures(ranked[:TRENDS])
    rows = tuple(_trend_row(case, arm, t) for (case, arm), t in (*ranked, *canaries))
    heads = ("case", "contender", "runs", "levels", "now", "against its best", "last change")
    grid = Grid(
        heads, rows, frozenset({"runs", "levels", "now", "against its best"}), "Every case over time", filtered=True
    )
    from tritium.perf.store.trends import sensitivity  # needed for a history only

    least = Line(f"{sensitivity([t for _, t in ranked]).capitalize()}.", "quiet")
    blocks: list[Block] = [least, *pictures[:2], grid]
    if len(pictures) > 2:
        blocks.append(Fold(f"Histories of {many(len(pictures) - 2, 'more case')}", pictures[2:]))
    if canaries:
        blocks.append(Fold("The machine itself: canaries, work that no version changes", _trend_pictures(canaries)))
    return Section(
        "history", "History", tuple(blocks), "Points are runs of this machine; a step is a change point, not noise."
    )


def _trend_pictures(ranked: Iterable[tuple[tuple[str, str], Trend]]) -> tuple[Picture, ...]:
    return tuple(Picture(f"trend-{case}-{arm}", trend_chart(case, arm, t)) for (case, arm), t in ranked)


def _point_labels(t: Trend) -> list[str]:
    """Return a label for each run by which it differs from the others: its commit, its date, or its time of day too."""
    commits = [p.commit[:7] for p in t.points]
    return commits if all(commits) and len(set(commits)) == len(commits) else date_labels(t)


def date_labels(t: Trend) -> list[str]:
    """Return the date of each run, with as much of the time of day as it takes for them to differ."""
    labels: list[str] = []
    for ends in (slice(0, 10), slice(5, 16), slice(5, 19)):  # 2026-11-17, 11-17 09:16, 11-17 09:16:05
        labels = [p.created[ends].replace("T", " ") for p in t.points]
        if len(set(labels)) == len(labels):
            break
    return labels


def _largest_change(t: Trend) -> float:
    return max((abs(math.log(s.ratio)) for s in t.steps), default=0.0)


def trend_chart(case: str, arm: str, t: Trend) -> charts.Trend:
    """Return the chart of a case over time."""
    from tritium.perf.store import trends  # needed for a history only

    canaries = [p.canary for p in t.points if p.canary is not None]
    middle = sorted(canaries)[len(canaries) // 2] if canaries else 0.0
    points = tuple(
        charts.TrendPoint(label, p.value, math.exp(p.low), math.exp(p.high), p.created, p.commit[:10])
        for label, p in zip(_point_labels(t), t.points, strict=True)
    )
    ends = [0, *(s.index for s in t.steps), len(t.points)]
    levels = tuple(
        charts.TrendLevel(a, b - 1, s.value, math.exp(s.low), math.exp(s.high))
        for a, b, s in zip(ends, ends[1:], t.segments, strict=False)
    )
    marks = [a.fingerprint != b.fingerprint for a, b in zip(t.points, t.points[1:], strict=False)]
    return charts.Trend(
        f"{case} on {arm}", points, t.points[-1].unit,
        steps=tuple(charts.TrendStep(s.index, s.ratio, s.ratio > 1, "another machine" if s.new_machine else f"p {s.p:.2g}") for s in t.steps),
        levels=levels, epochs=tuple(i for i, new in enumerate(marks, 1) if new),
        canary=tuple(None if p.canary is None else math.exp(middle - p.canary) for p in t.points) if canaries else (),
        subtitle="; ".join(trends.describe(t)[:2]),
    )  # fmt: skip


def _trend_row(case: str, arm: str, t: Trend) -> tuple[Cell, ...]:
    against, last = t.against_best, t.steps[-1] if t.steps else None
    worse = against.low > 1
    change = Cell("none", "quiet", 0.0)
    if last is not None:
        place = last.point.commit[:10] or last.point.created[:16].replace("T", " ")
        change = Cell(f"{100 * (last.ratio - 1):+.1f} % at {place}", "bad" if last.ratio > 1 else "good", last.ratio)
    return (
        Cell(case, link=anchor(case)), Cell(arm), Cell(str(len(t.points)), sort=float(len(t.points))),
        Cell(str(len(t.segments)), sort=float(len(t.segments))), Cell(seconds_text(t.last.value), sort=t.last.value),
        Cell(f"{100 * (against.ratio - 1):+.1f} %", "bad" if worse else "", against.ratio), change,
    )  # fmt: skip


# ---- roofline


def roofline(inputs: Inputs) -> Section:
    """Return the section of all cases of the first contender under this machine's measured roofs."""
    limits = inputs.results.environment.limits
    if limits is None:
        return absent(
            "roofline",
            "Roofline",
            "the ceilings of that machine are not in the results; runs of tritium bench have them",
        )
    dots = [
        charts.Dot(
            run.case, run.work.flops / run.work.moved, run.work.flops / run.seconds, run.context.operation,
            note=_share_text(run, inputs),
        )
        for run in inputs.runs
        if run.arm == inputs.first and run.status == "ok" and run.seconds and run.work.flops and run.work.moved
    ]  # fmt: skip
    if not dots:
        return absent("roofline", "Roofline", "no case states its arithmetic and its bytes")
    integer = any(run.work.integer for run in inputs.runs if run.arm == inputs.first)
    chart = charts.Roofline(
        "Arithmetic and bytes", roofs_of(limits.ceilings, integer), tuple(dots), "OP/s" if integer else "FLOP/s",
        subtitle=f"{inputs.first} under the ceilings of this machine at {many(limits.threads, 'thread')}; a dot is a case",
    )  # fmt: skip
    runs = [run for run in inputs.runs if run.arm == inputs.first and share(run, inputs.results) is not None]
    ranked = sorted(runs, key=lambda run: share(run, inputs.results) or 0)
    rows = tuple(_roof_row(run, inputs) for run in ranked)
    heads = ("case", "time", "rate", "of ceiling", "FLOP per byte")
    grid = Grid(heads, rows, frozenset(heads[1:]), "Distance to the ceiling, farthest first", filtered=True)
    return Section(
        "roofline",
        "Roofline",
        (Picture("roofline", chart), Fold(f"{many(len(rows), 'case')} by distance to the ceiling", (grid,))),
    )


def _share_text(run: Run, inputs: Inputs) -> str:
    return tables.speed_text(run, inputs.results)[1] + " of its ceiling"


def _roof_row(run: Run, inputs: Inputs) -> tuple[Cell, ...]:
    rate, part = tables.speed_text(run, inputs.results)
    intensity = run.work.flops / run.work.moved if run.work.moved else None
    return (
        Cell(run.case, link=anchor(run.case)), Cell(seconds_text(run.seconds or 0), sort=run.seconds), Cell(rate),
        Cell(part, sort=share(run, inputs.results)), Cell(NONE if intensity is None else f"{intensity:.3g}", sort=intensity),
    )  # fmt: skip


# ---- profile


def profile(inputs: Inputs) -> Section:
    """Return the section of a profile: all that a terminal shows; and the difference to an earlier one.

    The timeline is on the profile's own page: tritium profile show FILE --output profile.html.
    """
    current = inputs.profile
    if current is None:
        reason_text = (
            "no profile was given; tritium profile --output profile.json records one, --profile profile.json shows it"
        )
        return absent("profile", "Profile", reason_text)
    from tritium.see.trace import flame, flame_diff  # needed for a profile only

    parts = {part.id: part for part in current.parts()}
    blocks: list[Block] = []
    for name in SHOWN:
        if (part := parts.pop(name, None)) is not None:
            blocks += [Line(part.lede, "quiet"), *part.blocks]
    blocks += [
        Fold(part.title, (*([Line(part.lede, "quiet")] if part.lede else []), *part.blocks)) for part in parts.values()
    ]
    tree, title = current.tree(), current.timeline.name or "profile"
    if inputs.before is not None:
        blocks.append(Line(ONE_EACH, "unsure"))
        earlier = inputs.before.tree()
        changes = tuple(_change(c) for c in flame_diff.changes(earlier, tree)[:OPS] if c.delta)
        inline, standalone = flame.diff_inline(earlier, tree, title), flame.diff_svg(earlier, tree, title)
        blocks.append(Drawing("flame-diff", "What changed since the earlier profile", inline, changes, standalone))
    return Section("profile", "Profile", tuple(blocks))


def _change(c: Change) -> str:
    times = "" if c.ratio is None else f", ×{c.ratio:.2f}"
    sign = "+" if c.delta > 0 else "−"
    return f"{c.name}: {sign}{seconds_text(abs(c.delta) / 1e9)} ({seconds_text(c.before / 1e9)} → {seconds_text(c.after / 1e9)}{times})"

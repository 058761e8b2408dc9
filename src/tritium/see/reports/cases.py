"""Sections by case: ratios with their intervals, overview and speed-up charts, cards with every raw value, the device
matrix, the sizes at which contenders cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tritium.perf.amounts import bytes_text, joules_text, many, seconds_text
from tritium.perf.gate import page as verdict_page
from tritium.perf.gate.verdict import OUTCOMES, Suite, Verdict, told_apart
from tritium.perf.records.run import EXCUSED, Run, Series, is_of_load, rounds_of, values_of
from tritium.perf.stats.estimates import describe
from tritium.perf.tables import tables
from tritium.perf.tables.selection import device_selection_guide
from tritium.perf.tables.table import NONE
from tritium.perf.tables.tables import outcome_beside, ratio_text, speed_text, time_interval, time_text
from tritium.see.charts import charts
from tritium.see.reports.blocks import Block, Card, Cell, Fold, Grid, Line, Lines, Picture, Span, Tone
from tritium.see.reports.inputs import TONES, WORDS, Inputs, anchor, share
from tritium.see.reports.sections import Section, absent

if TYPE_CHECKING:
    from tritium.perf.tables.crossover import Crossover

ROWS = 40  # of one chart; the table has them all
BARS = 150  # of all charts of an overview
CARDS = 120  # further cases are in the tables and in the raw data
OPEN = 3  # overview charts that are open
WORST = 4.0  # times the best: the deepest colour of the matrix
DISTURBED = "other load disturbed it more than twice as often as the other cases"
CROSSING: dict[str, Tone] = {"crosses": "good", "several": "unsure"}
ONE_SIZE = (
    "two sizes of an operation on two contenders are needed: tritium compare --devices cpu,mlx --sizes 256,512,1024"
)


# ---- ratios


def ratios(inputs: Inputs) -> Section:
    """Return the section of the forest: every ratio with its interval and margin."""
    blocks: list[Block] = []
    if inputs.verdicts is not None and inputs.verdicts.verdicts:
        blocks += _gate(inputs)
    if inputs.time_verdicts:
        blocks += _arms(inputs)
    if not blocks:
        why = "only one contender and no baseline: give --baseline FILE, or measure with --peers numpy"
        return absent("ratios", "Ratios", why)
    banded = any(
        c.span is not None and c.span.margin for b in blocks if isinstance(b, Grid) for row in b.rows for c in row
    )
    lede = "Each row: the ratio as a dot, and its 95 % interval as a line."
    if banded:
        lede += " The band is the margin: a change inside it does not count."
    return Section("ratios", "Ratios", tuple(blocks), lede)


def _gate(inputs: Inputs) -> list[Block]:
    suite = inputs.verdicts
    assert suite is not None
    rows = tuple(_verdict_row(v, suite) for v in suite.verdicts)
    margin = max((v.margin for v in suite.verdicts), default=0.0)
    total = None
    if suite.geomean is not None and suite.geomean_interval is not None:
        total = charts.Ratio("all together", suite.geomean, *suite.geomean_interval)
    forest = charts.Forest(
        "Change of every case", tuple(_ratio(v, v.case if v.metric == "wall" else f"{v.case} · {v.metric}") for v in suite.verdicts[:ROWS]),
        margin=margin, total=total, subtitle="new / old with the 95 % interval; right of the band is slower, or more",
        note="" if len(rows) <= ROWS else f"the {ROWS} worst of {len(rows)}; the table has all",
    )  # fmt: skip
    heads = ("case", "contender", "verdict", "change", "interval", "severity", "metric", "before → after", "note")
    places = [i for i, head in enumerate(heads) if _tells(head, [row[i].text for row in rows])]
    columns = tuple(tuple(row[i] for i in places) for row in rows)
    grid = Grid(
        tuple(heads[i] for i in places),
        columns,
        frozenset({"change"}),
        "Every verdict",
        filtered=True,
        ends=("less", "more"),
    )
    return [Picture("forest", forest), grid]


def _tells(head: str, texts: Sequence[str]) -> bool:
    """Return True if a column of verdicts tells them apart: one contender, time alone or no remark need none."""
    if head == "contender":
        return len(set(texts)) > 1
    return {"metric": {"time"}, "note": {""}, "severity": {""}}.get(head) != set(texts)


def _ratio(v: Verdict, name: str) -> charts.Ratio:
    low, high = v.interval95 or (None, None)
    why = v.reason if v.ratio is None else ""
    return charts.Ratio(
        name, v.ratio, low, high, v.outcome, absent=why, note=v.reason, link="#" + anchor(v.case), margin=v.margin
    )


def _verdict_row(v: Verdict, suite: Suite) -> tuple[Cell, ...]:
    order = float(OUTCOMES.index(v.outcome))
    low, high = v.interval95 or (None, None)
    span = None if v.ratio is None else Span(v.ratio, low, high, v.margin)
    values = (
        f"{verdict_page.measured(v.old, v.unit)} → {verdict_page.measured(v.new, v.unit)}" if v.old and v.new else NONE
    )
    note = "; ".join(p for p in (v.level, v.reason, verdict_page.advice(v, suite)) if p)
    change = NONE if v.ratio is None else f"{100 * (v.ratio - 1):+.1f} %"
    chance = "" if v.p_adjusted is None else f"p {v.p_adjusted:.2g} after Holm"
    return (
        Cell(v.case, link=anchor(v.case)),
        Cell(v.arm or NONE),
        Cell(WORDS[v.outcome], TONES[v.outcome], order, chance, badge=True),
        Cell(change, TONES[v.outcome], v.ratio, verdict_page.figure(v)),
        Cell("", TONES[v.outcome], v.ratio, span=span),
        Cell(verdict_page.severity_text(v), sort=v.severity, tip=verdict_page.NOISE if v.severity is not None else ""),
        Cell(verdict_page.METRIC_NAMES.get(v.metric, v.metric)),
        Cell(values, sort=v.new),
        Cell(note, "quiet"),
    )


def _arms(inputs: Inputs) -> list[Block]:
    rows, speedups = [], []
    for case in inputs.cases:
        for arm in inputs.comparisons:
            v, run = inputs.time_verdicts.get((case, arm)), inputs.run_of(case, arm)
            if v is None or v.ratio is None:
                if run is not None and run.status != "ok":
                    rows.append(_lost_row(case, arm, run))
                continue
            rows.append(_arm_row(v, arm, inputs.mark(case, inputs.first, arm)))
            speedups.append(_speedup(v, arm, len(inputs.comparisons) > 1))
    heads = ("case", "beside", "times as fast", "interval", "result")
    caption = f"{inputs.first} beside every other contender"
    grid = Grid(heads, tuple(rows), frozenset({"times as fast"}), caption, filtered=True, ends=("slower", "faster"))
    means = [(s.geomean, s.geomean_interval) for s in inputs.comparisons.values()]
    total = next(((mean, interval) for mean, interval in means if mean is not None and interval is not None), None)
    forest = charts.Forest(
        f"{inputs.first} beside the others", tuple(_ratio_of(v, arm) for (_, arm), v in list(inputs.time_verdicts.items())[:ROWS]),
        margin=tables.RULES.margin("wall"),
        total=charts.Ratio("all together", total[0], *total[1]) if total is not None and len(means) == 1 else None,
        subtitle="time of the first contender / time of the other",
    )  # fmt: skip
    return [grid, Picture("forest", forest, shown=False)]


def _ratio_of(v: Verdict, arm: str) -> charts.Ratio:
    low, high = v.interval95 or (None, None)
    return charts.Ratio(
        v.case, v.ratio, low, high, outcome_beside(v), arm, absent=v.reason if v.ratio is None else "", margin=v.margin
    )


def _invert(v: Verdict) -> tuple[float, float | None, float | None]:
    """Return a ratio of times and its interval as times as fast."""
    interval = told_apart(v.interval95)
    return (
        1 / (v.ratio or 1),
        None if interval is None else 1 / interval[1],
        None if interval is None else 1 / interval[0],
    )


def _arm_row(v: Verdict, arm: str, mark: str) -> tuple[Cell, ...]:
    outcome = outcome_beside(v)
    tone: Tone = "fine" if outcome == "INCONCLUSIVE" else TONES[outcome]
    word = "no difference shown" if outcome == "INCONCLUSIVE" else WORDS[outcome]
    fast, low, high = _invert(v)
    tip = "" if v.q is None else f"q {v.q:.2g}: of the differences coloured at 0.05, one in twenty may be false"
    return (
        Cell(v.case, link=anchor(v.case)),
        Cell(arm),
        Cell(ratio_text(v.ratio, v.interval95).removesuffix(" ~") + mark, tone, fast, DISTURBED if mark else ""),
        Cell("", tone, fast, span=Span(fast, low, high)),
        Cell(word, tone, fast, tip, badge=True),
    )


def _lost_row(case: str, arm: str, run: Run) -> tuple[Cell, ...]:
    lost = Cell(run.status, _tone(run), -1.0, run.reason, badge=True)
    return (Cell(case, link=anchor(case)), Cell(arm), Cell(NONE, "quiet", -1.0), Cell("", sort=-1.0), lost)


def _speedup(v: Verdict, arm: str, several: bool) -> charts.Ratio:
    fast, low, high = _invert(v)
    return charts.Ratio(
        v.case, fast, low, high, outcome_beside(v), f"vs {arm}" if several else "", link="#" + anchor(v.case)
    )


# ---- overview


def overview(inputs: Inputs) -> Section:
    """Return the section of call times, a bar chart for each operation; and of speed-ups."""
    blocks: list[Block] = []
    verdicts = [(v, arm) for (_, arm), v in inputs.time_verdicts.items() if v.ratio]
    if verdicts:
        several = len(inputs.comparisons) > 1
        extremes = sorted(verdicts, key=lambda f: f[0].ratio or 1)
        hidden = max(0, len(extremes) - ROWS)
        if hidden:
            extremes = [*extremes[: ROWS // 2], *extremes[-ROWS // 2 :]]
        keys = {(v.case, arm) for v, arm in extremes}
        by_case = [(v, arm) for case in inputs.cases for v, arm in verdicts if v.case == case and (case, arm) in keys]
        rows = tuple(_speedup(v, arm, several) for v, arm in by_case)
        chart = charts.Speedup(
            "Speed-up", rows, base="" if several else next(iter(inputs.comparisons)),
            subtitle=f"How many times as fast {inputs.first} is; log axis, 95 % intervals",
            note=f"the {ROWS // 2} largest and the {ROWS // 2} smallest of {len(verdicts)}" if hidden else "",
        )  # fmt: skip
        blocks.append(Picture("speedup", chart))
    groups = _operations(inputs)
    most = max(6, BARS // (len(groups) * len(inputs.results.arms) or 1))
    pictures = [_bars(inputs, operation, cases, most) for operation, cases in groups.items()]
    blocks += pictures[:OPEN]
    if len(pictures) > OPEN:
        blocks.append(
            Fold(f"{many(len(pictures) - OPEN, 'more chart')}: every other operation", tuple(pictures[OPEN:]))
        )
    if not pictures:
        return absent("overview", "Overview", "no case has a time")
    return Section("overview", "Overview", tuple(blocks))


def _operations(inputs: Inputs) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for run in inputs.runs:
        cases = out.setdefault(run.context.operation, [])
        if run.case not in cases:
            cases.append(run.case)
    if len(out) > max(1, len(inputs.cases) // 2):  # nearly one operation per case: draw one chart
        return {"": list(inputs.cases)}
    return out


def _bars(inputs: Inputs, operation: str, cases: Sequence[str], most: int) -> Picture:
    rows = []
    step = -(-len(cases) // most)
    for case in cases[::step]:
        for arm in inputs.results.arms[:8]:
            run = inputs.run_of(case, arm)
            if run is not None:
                rows.append(_bar(case, arm if len(inputs.results.arms) > 1 else "", run, inputs))
    note = "" if step == 1 else f"every {step}. of {len(cases)} cases; the tables have all"
    title = f"{operation}: time of a call" if operation else "Time of a call"
    chart = charts.Bars(title, tuple(rows), "s", subtitle="medians with 95 % intervals; shorter is better", note=note)
    return Picture(f"overview-{operation}" if operation else "overview", chart)


def _bar(case: str, arm: str, run: Run, inputs: Inputs) -> charts.Bar:
    wall = run.of("wall")
    if wall is None or wall.median is None or run.status not in ("ok", "interrupted"):
        return charts.Bar(case, None, group=arm, absent=_why(run), link="#" + anchor(case))
    low, high = time_interval(wall) or (None, None)
    rate, part = speed_text(run, inputs.results)
    note = rate if part == NONE else f"{rate}, {part} of the ceiling"
    return charts.Bar(case, wall.median, low, high, arm, note="" if rate == NONE else note, link="#" + anchor(case))


def _tone(run: Run) -> Tone:
    """Return the tone of a run without a time: only a failure is bad."""
    return "" if run.status == "ok" else "quiet" if run.status in EXCUSED else "bad"


def _why(run: Run) -> str:
    return f"{run.status}: {run.reason}" if run.reason else run.status if run.status != "ok" else "no time was measured"


# ---- cards


def cards(inputs: Inputs) -> Section:
    """Return the section of cards, one for each case; the most notable first where there are too many."""
    if not inputs.cases:
        return absent("cases", "Cases", "there is no case in these results")
    chosen_cases = list(inputs.cases)
    if len(chosen_cases) > CARDS:
        chosen_cases = sorted(chosen_cases, key=lambda c: -_notable(inputs, c))[:CARDS]
    blocks: list[Block] = [_card(inputs, case) for case in chosen_cases]
    lede = "Open a case for its raw values in time order, its intervals, memory, energy and how it was checked."
    if len(chosen_cases) < len(inputs.cases):
        lede += f" The {CARDS} most notable of {len(inputs.cases)}; the tables and the raw data have all."
    return Section("cases", "Cases", tuple(blocks), lede)


def _notable(inputs: Inputs, case: str) -> float:
    """Return a score of how notable a case is: distance of its ratios from 1, failures and flags."""
    distances = [
        abs((v.ratio or 1) - 1)
        for v in (
            *inputs.gate_verdicts.get(case, ()),
            *(inputs.time_verdicts.get((case, a)) for a in inputs.comparisons),
        )
        if v
    ]
    runs = [r for arm in inputs.results.arms if (r := inputs.run_of(case, arm)) is not None]
    return max(distances, default=0.0) + sum(r.status != "ok" for r in runs) + 0.1 * sum(bool(r.flags) for r in runs)


def _card(inputs: Inputs, case: str) -> Card:
    runs = [run for arm in inputs.results.arms if (run := inputs.run_of(case, arm)) is not None]
    blocks: list[Block] = []
    if any(run.of("wall") is not None for run in runs):
        strips = tuple(strip for run in runs if (strip := _strip(run)) is not None)
        subtitle = "every round in time order; a line where a fresh process begins"
        blocks.append(
            Picture(
                f"times-{case}", charts.Distribution(f"{case}: every round", strips, "s", subtitle=subtitle), small=True
            )
        )
    blocks.append(Lines(tuple(Line(text, tone) for text, tone in _remarks(inputs, case, runs))))
    blocks.append(_figures(inputs, case, runs))
    first = inputs.run_of(case, inputs.first) or (runs[0] if runs else None)
    brief = NONE if first is None else time_text(first) + inputs.mark(*first.key)
    return Card(anchor(case), case, _badge(inputs, case, runs), brief, tuple(blocks))


def _badge(inputs: Inputs, case: str, runs: Sequence[Run]) -> Cell:
    """Return the word on a closed card: the gate's verdict, else the first contender's ratio to the next."""
    if verdicts := inputs.gate_verdicts.get(case):
        worst = min(verdicts, key=lambda v: OUTCOMES.index(v.outcome))
        return Cell(WORDS[worst.outcome], TONES[worst.outcome], badge=True)
    failed = [run for run in runs if run.status != "ok"]
    if failed and len(failed) == len(runs):
        return Cell(failed[0].status, _tone(failed[0]), badge=True)
    for arm in sorted(
        inputs.comparisons, key=lambda arm: tables.is_variant(arm, inputs.first)
    ):  # another library before a variant
        if (v := inputs.time_verdicts.get((case, arm))) is not None and v.ratio:
            outcome = outcome_beside(v)
            text = ratio_text(v.ratio, v.interval95, brief=True).removesuffix(" ~")
            return Cell(f"{text} vs {arm}", "fine" if outcome == "INCONCLUSIVE" else TONES[outcome], badge=True)
    wrong = [run for run in failed if run.status not in EXCUSED]
    return Cell(f"{many(len(wrong), 'contender')} failed", "bad", badge=True) if wrong else Cell("")


def _strip(run: Run) -> charts.Strip | None:
    wall = run.of("wall")
    if wall is None or not wall.flat:
        return charts.Strip(run.arm, (), absent=_why(run)) if run.status != "ok" else None
    rounds = rounds_of(wall)
    breaks, count = [], 0
    for process in rounds:
        if count and process:
            breaks.append(count)
        count += len(process)
    low, high = time_interval(wall) or (None, None)
    return charts.Strip(
        run.arm, tuple(values_of(wall)), tuple(breaks) if len(breaks) < 60 else (), wall.median, low, high
    )


FIGURES = ("contender", "time", "rate", "of ceiling", "first call", "peak memory", "energy", "outliers", "samples")


def _figures(inputs: Inputs, case: str, runs: Sequence[Run]) -> Grid:
    rows = []
    for run in runs:
        wall, ceiling_part = run.of("wall"), share(run, inputs.results)
        rate, ceiling_text = speed_text(run, inputs.results) if run.status == "ok" else (NONE, NONE)
        rows.append((
            Cell(run.arm),
            Cell(time_text(run), _tone(run), run.seconds, run.reason),
            Cell(rate),
            Cell(ceiling_text, sort=ceiling_part),
            Cell(NONE if run.first_call_s is None else seconds_text(run.first_call_s), sort=run.first_call_s),
            _metric(run, "peak_bytes"),
            _metric(run, "energy"),
            *_sample(wall),
        ))  # fmt: skip
    empty = {h for i, h in enumerate(FIGURES) if i > 1 and all(row[i].text == NONE for row in rows)}
    columns = [i for i, h in enumerate(FIGURES) if h not in empty]
    heads = tuple(FIGURES[i] for i in columns)
    return Grid(
        heads, tuple(tuple(row[i] for i in columns) for row in rows), frozenset(heads[1:]), f"Figures of {case}"
    )


def _sample(wall: Series | None) -> tuple[Cell, Cell]:
    """Return the outliers, mild and severe, and the number of samples."""
    if wall is None or not wall.flat:
        return Cell(NONE), Cell(NONE)
    s = describe(wall.flat)
    count = float(s.outliers_mild + s.outliers_severe)
    outliers = Cell(
        f"{s.outliers_mild} + {s.outliers_severe}", sort=count, tip="beyond 1.5 and beyond 3 interquartile ranges"
    )
    return outliers, Cell(f"{s.n}", sort=float(s.n))


SHOWN = {"peak_bytes": bytes_text, "energy": joules_text}


def _metric(run: Run, metric: str) -> Cell:
    series = run.of(metric)
    if series is None:
        return Cell(NONE)
    if series.median is None:
        return Cell("not measured", "quiet", tip=reason(series))
    word = " (estimate)" if series.kind == "estimate" else ""
    return Cell(SHOWN[metric](series.median) + word, sort=series.median, tip=series.source)


def reason(series: Series) -> str:
    """Return why a series has no values, in a word and in a sentence."""
    sentence = str(series.details.get("says", ""))
    text = f"{series.reason}: {sentence}" if sentence and sentence not in series.reason else series.reason
    return f"not measured: {text or 'reason unknown'}"


def _remarks(inputs: Inputs, case: str, runs: Sequence[Run]) -> list[tuple[str, Tone]]:
    """Return the remarks on a case, each once."""
    out: dict[tuple[str, Tone], None] = {}
    for v in inputs.gate_verdicts.get(case, ()):
        note = "; ".join(p for p in (verdict_page.figure(v), v.reason) if p)
        out[f"{WORDS[v.outcome]}: {v.metric} {note}", TONES[v.outcome]] = None
    contenders: dict[tuple[str, Tone], list[str]] = {}
    for run in runs:
        if run.status != "ok":
            contenders.setdefault((_why(run), _tone(run)), []).append(run.arm)
        for flag in run.flags:
            usual = is_of_load(flag) and run.key not in inputs.disturbed
            contenders.setdefault((flag, "quiet" if usual else "unsure"), []).append(run.arm)
        for series in run.series:
            if series.kind == "not measured":
                contenders.setdefault((f"{series.metric}: {reason(series)}", "quiet"), []).append(run.arm)
        contenders.setdefault((f"answer: {run.checked or 'check not stated'}", "quiet"), []).append(run.arm)
    out |= {(f"{', '.join(arms)}: {text}", tone): None for (text, tone), arms in contenders.items()}
    return list(out)


# ---- devices


def devices(inputs: Inputs) -> Section:
    """Return the matrix of all cases and contenders, coloured by distance from the best; failures, guide and notes included."""
    arms = inputs.results.arms
    blocks: list[Block] = []
    if len(arms) > 1 or any(run.status != "ok" for run in inputs.runs):
        blocks += _matrix(inputs)
    guide = inputs.findings.guide
    if not guide and inputs.comparisons:
        guide = device_selection_guide(inputs.results).recommendations
    if guide:
        lines = [Line(f"{r.use_case}: {r.choice}: {r.evidence}.", link=_first_link(inputs, r.cases)) for r in guide]
        blocks.append(Lines(tuple(lines)))
    notes = [text for write in (tables.clocks, tables.remarks, tables.troubles) for text in write(inputs.results)]
    if notes:
        blocks.append(Lines(tuple(Line(text, "quiet") for text in notes)))
    if not blocks:
        return absent("devices", "Devices", "only one contender was measured: tritium compare measures several")
    return Section("devices", "Devices and failures", tuple(blocks))


def _matrix(inputs: Inputs) -> list[Block]:
    """Return the table and the chart of every case on every contender."""
    arms = inputs.results.arms
    rows = tuple(_matrix_row(inputs, case, arms) for case in inputs.cases)
    grid = Grid(
        ("case", *arms),
        rows,
        frozenset(arms),
        "Every case on every contender; 1× is the best of its row",
        filtered=True,
    )
    heat = charts.Heat(
        "Devices", inputs.cases[:ROWS], arms, tuple(tuple(_heat(inputs.run_of(c, a)) for a in arms) for c in inputs.cases[:ROWS]), "s",
        subtitle="time of a call, relative to the best of its row",
    )  # fmt: skip
    return [grid, Picture("devices", heat, shown=False)]


def _first_link(inputs: Inputs, cases: Sequence[str]) -> str:
    return anchor(cases[0]) if cases and cases[0] in inputs.cases else ""


def _heat(run: Run | None) -> charts.Cell:
    if run is None:
        return charts.Cell(None, "not measured")
    if run.status != "ok" or run.seconds is None:
        return charts.Cell(None, run.status if run.status != "ok" else "not measured", run.reason)
    wall = run.of("wall")
    low, high = (time_interval(wall) if wall is not None else None) or (None, None)
    return charts.Cell(run.seconds, low=low, high=high)


def _matrix_row(inputs: Inputs, case: str, arms: Sequence[str]) -> tuple[Cell, ...]:
    runs = [inputs.run_of(case, arm) for arm in arms]
    times = [r.seconds for r in runs if r is not None and r.status == "ok" and r.seconds]
    best = min(times, default=0.0)
    cells = []
    for run in runs:
        if run is None:
            cells.append(Cell("not run", "quiet"))
        elif run.status != "ok" or not run.seconds:
            lost = run.status != "ok"
            cells.append(Cell(run.status if lost else NONE, _tone(run), tip=run.reason, badge=lost))
        else:
            times_best = run.seconds / best
            mark = inputs.mark(*run.key)
            tip = f"{seconds_text(run.seconds)}, {times_best:.2f}× the best of this case{f'; {DISTURBED}' if mark else ''}"
            heat = min(1.0, (times_best - 1) / (WORST - 1))
            cells.append(
                Cell(seconds_text(run.seconds) + mark, sort=run.seconds, tip=tip, heat=heat if len(times) > 1 else None)
            )
    return (Cell(case, link=anchor(case)), *cells)


# ---- crossovers


def crossovers(inputs: Inputs) -> Section:
    """Return the section of sizes at which the faster contender changes; each tip has the ratio of every size."""
    title = "Crossover sizes"
    if inputs.revisions is not None:
        return absent("crossovers", title, "the contenders are two revisions, which are not chosen by size")
    if len(inputs.results.arms) < 2:
        return absent("crossovers", title, ONE_SIZE)
    from tritium.perf.tables import crossover  # needs two contenders

    all_crossovers = crossover.crossovers(inputs.results)
    if not all_crossovers:
        return absent("crossovers", title, ONE_SIZE)
    rows, lines = crossover.notable(all_crossovers, inputs.first)
    blocks: list[Block] = []
    if rows:
        blocks.append(
            Grid(crossover.HEADS, tuple(map(_crossing, rows)), caption="Where the faster contender depends on the size")
        )
    if lines:
        blocks.append(Lines(tuple(Line(text, "quiet") for text in lines)))
    lede = (
        "A contender is named where the whole 95 % interval of the ratio is on its side, by at least 3 %; a crossing is "
        "interpolated between two such sizes, on logarithmic axes."
    )
    return Section("crossovers", title, tuple(blocks), lede)


def _crossing(c: Crossover) -> tuple[Cell, ...]:
    ratios = "; ".join(f"{'x'.join(map(str, p.shape))}: {ratio_text(p.ratio, p.interval)}" for p in c.points)
    tip = f"how many times as fast {c.arms[1]} is: {ratios}"
    faster = Cell(c.text, CROSSING.get(c.kind, ""), c.size, tip)
    return Cell(c.case), Cell(" and ".join(c.arms)), Cell(c.range_text), faster

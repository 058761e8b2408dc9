"""Case by case: ratios with their intervals, overview and speed-up charts, cards with every raw value, the device matrix,
the sizes at which arms cross.

Knows nothing of how a page looks, and computes no statistics of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tritium.perf.amounts import bytes_text, joules_text, many, seconds_text
from tritium.perf.gate.verdict import OUTCOMES, Suite, Verdict
from tritium.perf.records.run import Run, Series, rounds_of, values_of
from tritium.perf.stats.estimates import describe
from tritium.perf.tables import tables
from tritium.perf.tables.selection import device_selection_guide
from tritium.perf.tables.table import NONE
from tritium.perf.tables.tables import ratio_text, speed_text, time_interval, time_text
from tritium.see.charts import charts
from tritium.see.reports.blocks import Block, Card, Cell, Fold, Grid, Line, Lines, Picture, Span, Tone
from tritium.see.reports.inputs import TONES, WORDS, Given, anchor, share, standing
from tritium.see.reports.sections import Section, absent

if TYPE_CHECKING:
    from tritium.perf.tables.crossover import Crossover

ROWS = 40  # of one chart; the table has them all
BARS = 150  # of all charts of an overview
CARDS = 120  # the rest is in the tables and in the raw data
OPEN = 3  # overview charts that are open
WORST = 4.0  # times the best: the deepest colour of the matrix
CROSSING: dict[str, Tone] = {"crosses": "good", "several": "unsure"}
ONE_SIZE = "two sizes of an operation on two arms are needed: tritium compare --devices cpu,mlx --sizes 256,512,1024"


# ---- ratios


def ratios(given: Given) -> Section:
    """The forest: every ratio with its interval and margin."""
    blocks: list[Block] = []
    if given.verdicts is not None and given.verdicts.verdicts:
        blocks += _gate(given)
    if given.against:
        blocks += _arms(given)
    if not blocks:
        why = "one arm and nothing earlier to stand beside: give --baseline FILE, or measure with --peers numpy"
        return absent("ratios", "Ratios", why)
    banded = any(
        c.span is not None and c.span.margin for b in blocks if isinstance(b, Grid) for row in b.rows for c in row
    )
    lede = "Each row: the ratio as a dot, and its 95 % interval as a line."
    if banded:
        lede += " The band is the margin: a change inside it does not count."
    return Section("ratios", "Ratios", tuple(blocks), lede)


def _gate(given: Given) -> list[Block]:
    suite = given.verdicts
    assert suite is not None
    rows = tuple(_verdict_row(v, suite, given.first) for v in suite.verdicts)
    margin = max((v.margin for v in suite.verdicts), default=0.0)
    total = None
    if suite.geomean is not None and suite.geomean_interval is not None:
        total = charts.Ratio("all together", suite.geomean, *suite.geomean_interval)
    forest = charts.Forest(
        "Change of every case", tuple(_ratio(v, v.case if v.metric == "wall" else f"{v.case} · {v.metric}") for v in suite.verdicts[:ROWS]),
        margin=margin, total=total, subtitle="new / old with the 95 % interval; right of the band is slower, or more",
        note="" if len(rows) <= ROWS else f"the {ROWS} worst of {len(rows)}; the table has all",
    )  # fmt: skip
    heads = ("case", "verdict", "change", "interval", "metric", "before → after", "note")
    grid = Grid(heads, rows, frozenset({"change"}), "Every verdict", filtered=True, ends=("less", "more"))
    return [Picture("forest", forest), grid]


def _ratio(v: Verdict, name: str) -> charts.Ratio:
    low, high = v.interval95 or (None, None)
    why = v.reason if v.ratio is None else ""
    return charts.Ratio(
        name, v.ratio, low, high, v.outcome, absent=why, note=v.reason, link="#" + anchor(v.case), margin=v.margin
    )


def _verdict_row(v: Verdict, suite: Suite, first: str) -> tuple[Cell, ...]:
    from tritium.perf.gate import page as verdict_page  # where a gate judged

    order = float(OUTCOMES.index(v.outcome))
    low, high = v.interval95 or (None, None)
    span = None if v.ratio is None else Span(v.ratio, low, high, v.margin)
    values = f"{verdict_page.amount(v.old, v.unit)} → {verdict_page.amount(v.new, v.unit)}" if v.old and v.new else NONE
    note = "; ".join(p for p in (v.level, v.reason, verdict_page.advice(v, suite)) if p)
    change = NONE if v.ratio is None else f"{100 * (v.ratio - 1):+.1f} %"
    chance = "" if v.p_adjusted is None else f"p {v.p_adjusted:.2g} after Holm"
    return (
        Cell(v.case if v.arm in ("", first) else f"{v.case} [{v.arm}]", link=anchor(v.case)),
        Cell(WORDS[v.outcome], TONES[v.outcome], order, chance, badge=True),
        Cell(change, TONES[v.outcome], v.ratio, verdict_page.figure(v)),
        Cell("", TONES[v.outcome], v.ratio, span=span),
        Cell(v.metric),
        Cell(values, sort=v.new),
        Cell(note, "quiet"),
    )


def _arms(given: Given) -> list[Block]:
    rows, found = [], []
    for case in given.cases:
        for arm in given.beside:
            v, run = given.against.get((case, arm)), given.of(case, arm)
            if v is None or v.ratio is None:
                if run is not None and run.status != "ok":
                    rows.append(_lost_row(case, arm, run))
                continue
            rows.append(_arm_row(v, arm))
            found.append(_speedup(v, arm, len(given.beside) > 1))
    heads = ("case", "beside", "times as fast", "interval", "shown")
    caption = f"{given.first} beside every other arm"
    grid = Grid(heads, tuple(rows), frozenset({"times as fast"}), caption, filtered=True, ends=("slower", "faster"))
    means = [(s.geomean, s.geomean_interval) for s in given.beside.values()]
    together = next(((mean, between) for mean, between in means if mean is not None and between is not None), None)
    forest = charts.Forest(
        f"{given.first} beside the others", tuple(_ratio_of(v, arm) for (_, arm), v in list(given.against.items())[:ROWS]),
        margin=tables.RULES.margin("wall"),
        total=charts.Ratio("all together", together[0], *together[1]) if together is not None and len(means) == 1 else None,
        subtitle="time of the first arm / time of the other",
    )  # fmt: skip
    return [grid, Picture("forest", forest, shown=False)]


def _ratio_of(v: Verdict, arm: str) -> charts.Ratio:
    low, high = v.interval95 or (None, None)
    return charts.Ratio(
        v.case, v.ratio, low, high, standing(v), arm, absent=v.reason if v.ratio is None else "", margin=v.margin
    )


def _inverted(v: Verdict) -> tuple[float, float | None, float | None]:
    """Times as fast: a ratio of times turned over, and its interval."""
    between = tables.told_apart(v.interval95)
    return 1 / (v.ratio or 1), None if between is None else 1 / between[1], None if between is None else 1 / between[0]


def _arm_row(v: Verdict, arm: str) -> tuple[Cell, ...]:
    outcome = standing(v)
    tone: Tone = "fine" if outcome == "INCONCLUSIVE" else TONES[outcome]
    word = "no difference shown" if outcome == "INCONCLUSIVE" else WORDS[outcome]
    fast, low, high = _inverted(v)
    tip = "" if v.q is None else f"q {v.q:.2g}: of differences coloured at 0.05, one in twenty may be none"
    return (
        Cell(v.case, link=anchor(v.case)),
        Cell(arm),
        Cell(ratio_text(v.ratio, v.interval95).removesuffix(" ~"), tone, fast),
        Cell("", tone, fast, span=Span(fast, low, high)),
        Cell(word, tone, fast, tip, badge=True),
    )


def _lost_row(case: str, arm: str, run: Run) -> tuple[Cell, ...]:
    cells = (Cell(NONE, "quiet", -1.0), Cell("", sort=-1.0), Cell(run.status, "bad", -1.0, run.reason, badge=True))
    return (Cell(case, link=anchor(case)), Cell(arm), *cells)


def _speedup(v: Verdict, arm: str, several: bool) -> charts.Ratio:
    fast, low, high = _inverted(v)
    return charts.Ratio(v.case, fast, low, high, standing(v), f"vs {arm}" if several else "", link="#" + anchor(v.case))


# ---- overview


def overview(given: Given) -> Section:
    """Bars of the time of a call, an operation in each chart; and speed-ups."""
    blocks: list[Block] = []
    found = [(v, arm) for (_, arm), v in given.against.items() if v.ratio]
    if found:
        several = len(given.beside) > 1
        chosen = sorted(found, key=lambda f: f[0].ratio or 1)
        left = max(0, len(chosen) - ROWS)
        if left:
            chosen = [*chosen[: ROWS // 2], *chosen[-ROWS // 2 :]]
        wanted = {(v.case, arm) for v, arm in chosen}
        rows = tuple(_speedup(v, arm, several) for v, arm in found if (v.case, arm) in wanted)
        chart = charts.Speedup(
            "Speed-up", rows, base="" if several else next(iter(given.beside)),
            subtitle=f"How many times as fast {given.first} is; log axis, 95 % intervals",
            note=f"the {ROWS // 2} largest and the {ROWS // 2} smallest of {len(found)}" if left else "",
        )  # fmt: skip
        blocks.append(Picture("speedup", chart))
    groups = _operations(given)
    most = max(6, BARS // (len(groups) * len(given.results.arms) or 1))
    made = [_bars(given, operation, cases, most) for operation, cases in groups.items()]
    blocks += made[:OPEN]
    if len(made) > OPEN:
        blocks.append(Fold(f"{many(len(made) - OPEN, 'more chart')}: every other operation", tuple(made[OPEN:])))
    if not made:
        return absent("overview", "Overview", "no case has a time")
    return Section("overview", "Overview", tuple(blocks))


def _operations(given: Given) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for run in given.runs:
        listed = out.setdefault(run.context.operation, [])
        if run.case not in listed:
            listed.append(run.case)
    if len(out) > max(1, len(given.cases) // 2):  # nearly every case is an operation of its own: one chart
        return {"": list(given.cases)}
    return out


def _bars(given: Given, operation: str, cases: Sequence[str], most: int) -> Picture:
    rows = []
    step = -(-len(cases) // most)
    for case in cases[::step]:
        for arm in given.results.arms[:8]:
            run = given.of(case, arm)
            if run is not None:
                rows.append(_bar(case, arm if len(given.results.arms) > 1 else "", run, given))
    note = "" if step == 1 else f"every {step}. of {len(cases)} cases; the tables have all"
    title = f"{operation}: time of a call" if operation else "Time of a call"
    chart = charts.Bars(title, tuple(rows), "s", subtitle="medians with 95 % intervals; shorter is better", note=note)
    return Picture(f"overview-{operation}" if operation else "overview", chart)


def _bar(case: str, arm: str, run: Run, given: Given) -> charts.Bar:
    wall = run.of("wall")
    if wall is None or wall.median is None or run.status not in ("ok", "interrupted"):
        return charts.Bar(case, None, group=arm, absent=_why(run), link="#" + anchor(case))
    low, high = time_interval(wall) or (None, None)
    rate, part = speed_text(run, given.results)
    note = rate if part == NONE else f"{rate}, {part} of the ceiling"
    return charts.Bar(case, wall.median, low, high, arm, note="" if rate == NONE else note, link="#" + anchor(case))


def _why(run: Run) -> str:
    return f"{run.status}: {run.reason}" if run.reason else run.status if run.status != "ok" else "no time was taken"


# ---- cards


def cards(given: Given) -> Section:
    """A card for each case; the most notable first where there are too many."""
    if not given.cases:
        return absent("cases", "Cases", "there is no case in these results")
    shown = list(given.cases)
    if len(shown) > CARDS:
        shown = sorted(shown, key=lambda c: -_notable(given, c))[:CARDS]
    made: list[Block] = [_card(given, case) for case in shown]
    lede = "Open a case for its raw values in the order of time, its intervals, memory, energy and how it was checked."
    if len(shown) < len(given.cases):
        lede += f" The {CARDS} most notable of {len(given.cases)}; the tables and the raw data have all."
    return Section("cases", "Cases", tuple(made), lede)


def _notable(given: Given, case: str) -> float:
    """How much there is to see: distance of its ratios from 1, failures and flags."""
    far = [
        abs((v.ratio or 1) - 1)
        for v in (*given.judged.get(case, ()), *(given.against.get((case, a)) for a in given.beside))
        if v
    ]
    runs = [r for arm in given.results.arms if (r := given.of(case, arm)) is not None]
    return max(far, default=0.0) + sum(r.status != "ok" for r in runs) + 0.1 * sum(bool(r.flags) for r in runs)


def _card(given: Given, case: str) -> Card:
    runs = [run for arm in given.results.arms if (run := given.of(case, arm)) is not None]
    blocks: list[Block] = []
    if any(run.of("wall") is not None for run in runs):
        strips = tuple(strip for run in runs if (strip := _strip(run)) is not None)
        about = "every round in the order of time; a line where a fresh process begins"
        blocks.append(
            Picture(
                f"times-{case}", charts.Distribution(f"{case}: every round", strips, "s", subtitle=about), small=True
            )
        )
    blocks.append(Lines(tuple(Line(text, tone) for text, tone in _remarks(given, case, runs))))
    blocks.append(_figures(given, case, runs))
    first = given.of(case, given.first) or (runs[0] if runs else None)
    return Card(
        anchor(case), case, _mark(given, case, runs), NONE if first is None else time_text(first), tuple(blocks)
    )


def _mark(given: Given, case: str, runs: Sequence[Run]) -> Cell:
    """The word on a closed card: the gate's verdict, else how the first arm stands beside the next."""
    if judged := given.judged.get(case):
        worst = min(judged, key=lambda v: OUTCOMES.index(v.outcome))
        return Cell(WORDS[worst.outcome], TONES[worst.outcome], badge=True)
    lost = [run for run in runs if run.status != "ok"]
    if lost and len(lost) == len(runs):
        return Cell(lost[0].status, "bad", badge=True)
    for arm in sorted(given.beside, key=lambda a: a.startswith(f"{given.first} ")):  # another library before a variant
        if (v := given.against.get((case, arm))) is not None and v.ratio:
            outcome = standing(v)
            text = ratio_text(v.ratio, v.interval95, brief=True).removesuffix(" ~")
            return Cell(f"{text} vs {arm}", "fine" if outcome == "INCONCLUSIVE" else TONES[outcome], badge=True)
    return Cell(f"{many(len(lost), 'arm')} failed", "bad", badge=True) if lost else Cell("")


def _strip(run: Run) -> charts.Strip | None:
    wall = run.of("wall")
    if wall is None or not wall.flat:
        return charts.Strip(run.arm, (), absent=_why(run)) if run.status != "ok" else None
    rounds = rounds_of(wall)
    breaks, at = [], 0
    for generation in rounds:
        if at and generation:
            breaks.append(at)
        at += len(generation)
    low, high = time_interval(wall) or (None, None)
    return charts.Strip(
        run.arm, tuple(values_of(wall)), tuple(breaks) if len(breaks) < 60 else (), wall.median, low, high
    )


FIGURES = ("arm", "time", "rate", "of ceiling", "first call", "peak memory", "energy", "outliers", "samples")


def _figures(given: Given, case: str, runs: Sequence[Run]) -> Grid:
    rows = []
    for run in runs:
        wall, part = run.of("wall"), share(run, given.results)
        rate, said = speed_text(run, given.results) if run.status == "ok" else (NONE, NONE)
        rows.append((
            Cell(run.arm),
            Cell(time_text(run), "bad" if run.status != "ok" else "", run.seconds, run.reason),
            Cell(rate),
            Cell(said, sort=part),
            Cell(NONE if run.first_call_s is None else seconds_text(run.first_call_s), sort=run.first_call_s),
            _metric(run, "peak_bytes"),
            _metric(run, "energy"),
            *_sample(wall),
        ))  # fmt: skip
    empty = {h for i, h in enumerate(FIGURES) if i > 1 and all(row[i].text == NONE for row in rows)}
    kept = [i for i, h in enumerate(FIGURES) if h not in empty]
    heads = tuple(FIGURES[i] for i in kept)
    return Grid(heads, tuple(tuple(row[i] for i in kept) for row in rows), frozenset(heads[1:]), f"Figures of {case}")


def _sample(wall: Series | None) -> tuple[Cell, Cell]:
    """Outliers, mild and severe, and how many samples there are."""
    if wall is None or not wall.flat:
        return Cell(NONE), Cell(NONE)
    s = describe(wall.flat)
    beyond = float(s.outliers_mild + s.outliers_severe)
    told = Cell(
        f"{s.outliers_mild} + {s.outliers_severe}", sort=beyond, tip="beyond 1.5 and beyond 3 interquartile ranges"
    )
    return told, Cell(f"{s.n}", sort=float(s.n))


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
    """Why a series has no values, in a word and in a sentence."""
    says = str(series.details.get("says", ""))
    told = f"{series.reason}: {says}" if says and says not in series.reason else series.reason
    return f"not measured: {told or 'nobody knows why'}"


def _remarks(given: Given, case: str, runs: Sequence[Run]) -> list[tuple[str, Tone]]:
    """What a reader must know of it, each once."""
    out: dict[tuple[str, Tone], None] = {}
    for v in given.judged.get(case, ()):
        from tritium.perf.gate.page import figure  # where a gate judged

        note = "; ".join(p for p in (figure(v), v.reason) if p)
        out[f"{WORDS[v.outcome]}: {v.metric} {note}", TONES[v.outcome]] = None
    told: dict[tuple[str, Tone], list[str]] = {}
    for run in runs:
        if run.status != "ok":
            told.setdefault((_why(run), "bad"), []).append(run.arm)
        for flag in run.flags:
            told.setdefault((flag, "unsure"), []).append(run.arm)
        for series in run.series:
            if series.kind == "not measured":
                told.setdefault((f"{series.metric}: {reason(series)}", "quiet"), []).append(run.arm)
        told.setdefault((f"answer: {run.checked or 'not told how it was checked'}", "quiet"), []).append(run.arm)
    out |= {(f"{', '.join(arms)}: {text}", tone): None for (text, tone), arms in told.items()}
    return list(out)


# ---- devices


def devices(given: Given) -> Section:
    """The matrix: every case on every arm, coloured by its distance from the best; failures stand in it."""
    arms = given.results.arms
    if len(arms) < 2:
        lost = [run for run in given.runs if run.status != "ok"]
        if not lost:
            return absent("devices", "Devices", "one arm was measured: tritium compare stands several side by side")
    rows = tuple(_matrix_row(given, case, arms) for case in given.cases)
    grid = Grid(
        ("case", *arms), rows, frozenset(arms), "Every case on every arm; 1× is the best of its row", filtered=True
    )
    heat = charts.Heat(
        "Devices", given.cases[:ROWS], arms, tuple(tuple(_heat(given.of(c, a)) for a in arms) for c in given.cases[:ROWS]), "s",
        subtitle="time of a call, relative to the best of its row",
    )  # fmt: skip
    blocks: list[Block] = [grid, Picture("devices", heat, shown=False)]
    if given.beside:
        guide = device_selection_guide(given.results).recommendations
        lines = [
            Line(f"{r.use_case}: {' or '.join(r.arms) or 'not told'}. {r.evidence}.", link=_first_link(given, r.cases))
            for r in guide
        ]
        blocks.append(Lines(tuple(lines)))
    troubles = tuple(Line(text, "quiet") for text in (*tables.remarks(given.results), *tables.troubles(given.results)))
    if troubles:
        blocks.append(Lines(troubles))
    return Section("devices", "Devices and failures", tuple(blocks))


def _first_link(given: Given, cases: Sequence[str]) -> str:
    return anchor(cases[0]) if cases and cases[0] in given.cases else ""


def _heat(run: Run | None) -> charts.Cell:
    if run is None:
        return charts.Cell(None, "not measured")
    if run.status != "ok" or run.seconds is None:
        return charts.Cell(None, run.status if run.status != "ok" else "not measured", run.reason)
    wall = run.of("wall")
    low, high = (time_interval(wall) if wall is not None else None) or (None, None)
    return charts.Cell(run.seconds, low=low, high=high)


def _matrix_row(given: Given, case: str, arms: Sequence[str]) -> tuple[Cell, ...]:
    runs = [given.of(case, arm) for arm in arms]
    times = [r.seconds for r in runs if r is not None and r.status == "ok" and r.seconds]
    best = min(times, default=0.0)
    cells = []
    for run in runs:
        if run is None:
            cells.append(Cell("not run", "quiet"))
        elif run.status != "ok" or not run.seconds:
            cells.append(
                Cell(run.status if run.status != "ok" else NONE, "bad", tip=run.reason, badge=run.status != "ok")
            )
        else:
            times_best = run.seconds / best
            told = f"{seconds_text(run.seconds)}, {times_best:.2f}× the best of this case"
            heat = min(1.0, (times_best - 1) / (WORST - 1))
            cells.append(
                Cell(seconds_text(run.seconds), sort=run.seconds, tip=told, heat=heat if len(times) > 1 else None)
            )
    return (Cell(case, link=anchor(case)), *cells)


# ---- crossovers


def crossovers(given: Given) -> Section:
    """A row where the faster of two arms depends on the size, with what was measured at each size in its tip."""
    title = "Crossover sizes"
    if given.revisions is not None:
        return absent("crossovers", title, "the arms are two revisions, of which one is not chosen by size")
    if len(given.results.arms) < 2:
        return absent("crossovers", title, ONE_SIZE)
    from tritium.perf.tables import crossover  # of two arms

    found = crossover.crossovers(given.results)
    if not found:
        return absent("crossovers", title, ONE_SIZE)
    rows, lines = crossover.notable(found, given.first)
    blocks: list[Block] = []
    if rows:
        blocks.append(
            Grid(crossover.HEADS, tuple(map(_crossing, rows)), caption="Where the faster arm depends on the size")
        )
    if lines:
        blocks.append(Lines(tuple(Line(text, "quiet") for text in lines)))
    lede = (
        "An arm is named where the whole 95 % interval of the ratio is on its side, by at least 3 %; a crossing is found "
        "on the straight line between two such sizes, on logarithmic axes."
    )
    return Section("crossovers", title, tuple(blocks), lede)


def _crossing(c: Crossover) -> tuple[Cell, ...]:
    told = "; ".join(f"{'x'.join(map(str, p.shape))}: {ratio_text(p.ratio, p.interval)}" for p in c.points)
    tip = f"how many times as fast {c.arms[1]} is: {told}"
    faster = Cell(c.text, CROSSING.get(c.kind, ""), c.size, tip)
    return Cell(c.case), Cell(" and ".join(c.arms)), Cell(c.range_text), faster

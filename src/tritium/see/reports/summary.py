"""The banner, the executive summary and the recommendations of a report, each tied to a number of the page.

Every sentence has a number of this run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from tritium.perf.amounts import bytes_text, many, percent, seconds_text, verb
from tritium.perf.gate.page import advice, ending, joint_advice, subject
from tritium.perf.gate.verdict import OUTCOMES, Suite, Verdict
from tritium.perf.records.environment import OVER
from tritium.perf.records.run import EXCUSED, GATING, Run
from tritium.perf.tables import pages, tables
from tritium.perf.tables.tables import outcome_beside, ratio_text, time_text
from tritium.see.reports.blocks import Banner, Line, Lines, Tone
from tritium.see.reports.inputs import TONES, WORDS, Inputs, anchor, half_widths, share
from tritium.see.reports.machine import threads_text
from tritium.see.reports.sections import Section

MOST = 6  # sentences of a summary
MOST_ADVICE = 10
WORTH_NAMING = 1.05  # a contender that is faster by less is not recommended
FAR = 0.25  # share of the ceiling below which there is much to gain
COLD = 20.0  # times a later call: a first call that takes longer is cold
FELT_S = 0.05
ALWAYS = ("SLOWER", "EQUIVALENT")


# ---- banner


def banner(inputs: Inputs) -> Section:
    """Return the section of the verdict at a glance."""
    headline, tone, lede, counts = _judged(inputs.verdicts) if inputs.verdicts is not None else _measured(inputs)
    results, hard = inputs.results, inputs.results.environment.hard
    facts = (
        results.suite or results.kind,
        _date(results.created),
        hard.cpu,
        "imported" if inputs.imported else f"{results.plan.name} plan",
    )
    notes = list(inputs.verdicts.notes) if inputs.verdicts is not None else list(results.notes)
    if not results.complete:
        notes.append("interrupted: the remaining runs are missing.")
    suite = inputs.verdicts
    command = (suite.command if suite is not None else "") or ("" if inputs.imported else results.command)
    code = "" if suite is None else ending(suite)
    block = Banner(headline, tone, lede, counts, tuple(filter(None, facts)), command, code, tuple(notes[:6]))
    return Section("verdict", "Verdict", (block,))


Glance = tuple[str, Tone, str, tuple[tuple[int, str, Tone], ...]]
STATUS: dict[str, tuple[str, Tone]] = {
    "AllPass": ("No regression", "good"),
    "Inconclusive": ("Inconclusive", "unsure"),
    "NotComparable": ("Not comparable", "unsure"),
    "NoBaseline": ("No baseline", "unsure"),
}


def _judged(suite: Suite) -> Glance:
    counts = tuple(
        (suite.counts.get(o, 0), WORDS[o], TONES[o]) for o in OUTCOMES if suite.counts.get(o, 0) or o in ALWAYS
    )
    lede = subject(suite)
    if suite.geomean is not None and suite.geomean_interval is not None:
        low, high = suite.geomean_interval
        together = f"all together {_percent(suite.geomean)} time ({_percent(low)} … {_percent(high)})"
        lede = f"{lede}; {together}" if lede else together
    if suite.overall_status in STATUS:
        headline, tone = STATUS[suite.overall_status]
        if suite.overall_status == "AllPass" and (faster := suite.counts.get("FASTER", 0)):
            headline = f"No regression, {faster} faster"
    else:
        counts_by_word = [(suite.counts.get(o, 0), WORDS[o]) for o in ("SLOWER", "MISSING")]
        headline, tone = " and ".join(f"{n} {word}" for n, word in counts_by_word if n), "bad"
    return headline, tone, _sentences(lede, suite.noise), counts


def _sentences(*texts: str) -> str:
    """Return the texts that are not empty as sentences."""
    return " ".join(f"{text}." for text in texts if text)


def _measured(inputs: Inputs) -> Glance:
    """Return the glance without a gate: the first contender beside the others, or what was measured."""
    ok = sum(run.status == "ok" for run in inputs.runs)
    excused = [(sum(run.status == status for run in inputs.runs), status) for status in EXCUSED]
    lost = len(inputs.runs) - ok - sum(count for count, _ in excused)
    groups: list[tuple[int, str, Tone]] = [(lost, "not measured", "bad"), *((*group, "fine") for group in excused)]
    failures = tuple(group for group in groups if group[0])
    if not ok:
        return "Nothing could be measured", "bad", "see the reasons below", failures
    if not inputs.comparisons:
        lede = (
            f"{many(len(inputs.results.plan.metrics), 'metric')} by {many(inputs.results.plan.generations, 'process')}"
        )
        counted = f"{many(len(inputs.cases), 'case')} measured"
        tallies: tuple[tuple[int, str, Tone], ...] = ((ok, "measured", ""), *failures)
        return counted, "", _sentences(lede, inputs.noise), tallies
    outcomes = [outcome_beside(v) for v in inputs.time_verdicts.values()]
    alike: tuple[tuple[int, str, Tone], ...] = ((outcomes.count("EQUIVALENT"), "as fast", "fine"),)
    counts: tuple[tuple[int, str, Tone], ...] = (
        (outcomes.count("FASTER"), "faster", "good"),
        (outcomes.count("SLOWER"), "slower", "bad"),
        *(alike if alike[0][0] else ()),
        (outcomes.count("INCONCLUSIVE"), "no difference shown", "fine"),
        *failures,
    )
    headline = tables.headline(inputs.results, inputs.comparisons)
    if headline.standing == "measured":
        return f"{inputs.first} beside {', '.join(inputs.comparisons)}", "", "", counts
    lede = _sentences(_means(inputs), headline.deciding.capitalize(), inputs.noise)
    return headline.text, HEADLINE_TONES[headline.standing], lede, counts


HEADLINE_TONES: dict[tables.Standing, Tone] = {
    "faster": "good", "slower": "bad", "alike": "fine", "undecided": "unsure", "nothing": "bad",
}  # fmt: skip


def _means(inputs: Inputs) -> str:
    """Return the speed of the first contender beside each other, and the number of cases, which may differ."""
    arms = {name: s for name, s in inputs.comparisons.items() if s.geomean is not None}
    ratios = {name: f"{ratio_text(s.geomean, s.geomean_interval)} beside {name}" for name, s in arms.items()}
    over = {name: many(len(_timed(s)), "case") for name, s in arms.items()}
    if len(set(over.values())) == 1:
        return f"Geometric mean over {next(iter(over.values()))}: {', '.join(ratios.values())}"
    return f"Geometric mean: {', '.join(f'{ratios[name]} over {over[name]}' for name in arms)}"


def _timed(suite: Suite) -> list[Verdict]:
    return [v for v in suite.verdicts if v.metric == "wall" and v.ratio]


def _times(fast: float) -> str:
    return f"{fast:.2f}×" if fast < 9.995 else f"{fast:.1f}×" if fast < 99.95 else f"{fast:.0f}×"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _date(created: str) -> str:
    """Return 2026-01-31T12:00:00Z in readable form; any other text unchanged."""
    return f"{created[:10]} {created[11:16]} UTC" if created[10:11] == "T" and created.endswith("Z") else created


# ---- summary


def summary(inputs: Inputs) -> Section:
    """Return the section of three to six sentences, each with its number."""
    lines = [line for write in SENTENCES for line in write(inputs)][:MOST]
    return Section("summary", "Summary", (Lines(tuple(lines)),))


def _scope_lines(inputs: Inputs) -> Iterator[Line]:
    results, plan = inputs.results, inputs.results.plan
    hard = results.environment.hard
    duration = f" in {seconds_text(results.elapsed_s)}" if results.elapsed_s else ""
    arms = f" on {many(len(results.arms), 'contender')}" if len(results.arms) > 1 else ""
    samples = sum(len(s.flat) for run in inputs.runs for s in run.series if s.metric == "wall")
    where = f" on {', '.join(filter(None, (hard.cpu, threads_text(hard))))}" if hard.cpu else ""
    processes = f"{many(plan.generations, 'process')} each"
    yield Line(
        f"{many(len(inputs.cases), 'case')}{arms}, {samples:,} timed batches by {processes}{duration}{where}.",
        link="cases",
    )


def _verdict_lines(inputs: Inputs) -> Iterator[Line]:
    suite = inputs.verdicts
    if suite is None or not suite.verdicts:
        return
    slower = sorted(suite.of("SLOWER"), key=lambda v: -(v.ratio or 0))
    if slower:
        worst = slower[0]
        detail = f"; the worst, {worst.case}, by {_percent(worst.ratio or 1)}{_between(worst)}"
        sentence = (
            f"{len(slower)} of {many(len(suite.verdicts), 'verdict')} {verb(len(slower), 'is', 'are')} SLOWER{detail}."
        )
        yield Line(sentence, "bad", anchor(worst.case))
    else:
        quiet = len(suite.of("EQUIVALENT"))
        sentence = (
            f"None of {many(len(suite.verdicts), 'verdict')} is SLOWER; {quiet} {verb(quiet, 'is', 'are')} EQUIVALENT."
        )
        yield Line(sentence, "good" if suite.overall_status == "AllPass" else "unsure", "ratios")
    if faster := sorted(suite.of("FASTER"), key=lambda v: v.ratio or 1):
        best = faster[0]
        by = f"{_percent(best.ratio or 1)}{_between(best)}"
        line = f"{len(faster)} {verb(len(faster), 'is', 'are')} FASTER; the most, {best.case}, by {by}."
        yield Line(line, "good", anchor(best.case))
    if unsure := suite.of("INCONCLUSIVE"):
        text = f"{len(unsure)} {verb(len(unsure), 'is', 'are')} INCONCLUSIVE"
        detail = joint_advice(unsure, suite.process_s)
        yield Line(f"{text}; {detail}." if detail else f"{text}.", "unsure", "ratios")


def _between(v: Verdict) -> str:
    return f" ({_percent(v.interval95[0])} … {_percent(v.interval95[1])})" if v.interval95 else ""


def _comparison_lines(inputs: Inputs) -> Iterator[Line]:
    for arm, suite in sorted(inputs.comparisons.items(), key=lambda item: tables.is_variant(item[0], inputs.first))[:2]:
        if suite.geomean is None:
            continue
        outcomes = [(outcome_beside(v), v) for v in _timed(suite)]
        counts = {o: sum(s == o for s, _ in outcomes) for o in ("FASTER", "SLOWER", "EQUIVALENT", "INCONCLUSIVE")}
        alike = f"as fast in {counts['EQUIVALENT']}, " * bool(counts["EQUIVALENT"])
        line = (
            f"{inputs.first} is {ratio_text(suite.geomean, suite.geomean_interval)} as fast as {arm}: faster in "
            f"{counts['FASTER']} of {many(len(outcomes), 'case')}, slower in {counts['SLOWER']}, {alike}no difference shown in "
            f"{counts['INCONCLUSIVE']}."
        )
        outcome = tables.ratio_outcome(suite.geomean, suite.geomean_interval)
        yield Line(line, "unsure" if outcome == "INCONCLUSIVE" else TONES[outcome], "ratios")
    if best := [v for v in inputs.time_verdicts.values() if outcome_beside(v) == "FASTER"]:
        v = min(best, key=lambda v: v.ratio or 1)
        yield Line(
            f"The largest gain is {v.case}: {ratio_text(v.ratio, v.interval95)} beside {v.base_arm}.",
            "good",
            anchor(v.case),
        )


def _ceiling_lines(inputs: Inputs) -> Iterator[Line]:
    shares = [
        (s, run) for run in inputs.runs if run.arm == inputs.first and (s := share(run, inputs.results)) is not None
    ]
    if not shares:
        return
    (least, far), (most, near) = min(shares, key=lambda f: f[0]), max(shares, key=lambda f: f[0])
    line = (
        f"The median case of {inputs.first} reaches {percent(median(s for s, _ in shares))} of this machine's ceiling"
    )
    range_text = f"; from {percent(least)} ({far.case}) to {percent(most)} ({near.case})" if len(shares) > 1 else ""
    if most <= OVER:
        yield Line(f"{line}{range_text}.", "", "roofline")
    else:
        warning = "Nothing is faster than a ceiling: this one was measured too low, as on a busy machine; run tritium ceilings --refresh."
        yield Line(f"{line}{range_text}. {warning}", "unsure", "roofline")


def _failure_lines(inputs: Inputs) -> Iterator[Line]:
    failed = [run for run in inputs.runs if run.status != "ok"]
    if failed:
        kinds = ", ".join(f"{sum(r.status == k for r in failed)} {k}" for k in dict.fromkeys(r.status for r in failed))
        sentence = f"{len(failed)} of {many(len(inputs.runs), 'cell')} {verb(len(failed), 'was', 'were')} not measured: {kinds}."
        yield Line(sentence, "fine" if all(run.status in EXCUSED for run in failed) else "bad", "devices")


def _memory_lines(inputs: Inputs) -> Iterator[Line]:
    peaks = [(peak, run) for run in inputs.runs if (s := run.of("peak_bytes")) is not None and (peak := s.median)]
    if peaks:
        peak, run = max(peaks, key=lambda f: f[0])
        yield Line(f"The largest peak is {bytes_text(peak)}: {run.case} on {run.arm}.", "", "memory")


def _flagship_lines(inputs: Inputs) -> Iterator[Line]:
    """Yield the figures of the ternary product and of the packaged model, as the terminal names them below its verdict."""
    if inputs.verdicts is not None:
        return  # a gate judges
    if text := pages.flagship_text(inputs.results, inputs.comparisons):
        yield Line(f"{text}.", "", "cases")


def _range_lines(inputs: Inputs) -> Iterator[Line]:
    """Yield the longest and the shortest call of the first contender."""
    times = [
        (run.seconds, run) for run in inputs.runs if run.arm == inputs.first and run.status == "ok" and run.seconds
    ]
    if len(times) == 1:
        yield Line(f"A call of {times[0][1].case} takes {time_text(times[0][1])}.", "", anchor(times[0][1].case))
    elif times:
        (low, fast), (high, slow) = min(times, key=lambda f: f[0]), max(times, key=lambda f: f[0])
        if low == high:
            yield Line(f"A call takes {seconds_text(low)} in all of {many(len(times), 'case')}.", "", "overview")
            return
        yield Line(
            f"Calls take from {seconds_text(low)} ({fast.case}) to {seconds_text(high)} ({slow.case}).", "", "overview"
        )


def _interval_lines(inputs: Inputs) -> Iterator[Line]:
    """Yield the precision of the times: by their intervals, or by their spread where one process gives no interval."""
    if widths := half_widths(inputs):
        yield Line(
            f"Half the 95 % interval of a time is {percent(median(widths), 1)} of it in the median cell.", "", "noise"
        )
        return
    walls = [wall for run in inputs.runs if (wall := run.of("wall")) is not None and wall.median]
    spreads = [(max(wall.flat) - min(wall.flat)) / wall.median for wall in walls if wall.median]
    if spreads:
        yield Line(
            f"Batches of one case spread over {percent(median(spreads), 1)} of their median, in the median cell.",
            "",
            "noise",
        )


SENTENCES: tuple[Callable[[Inputs], Iterator[Line]], ...] = (
    _scope_lines, _verdict_lines, _comparison_lines, _flagship_lines, _failure_lines,
    _ceiling_lines, _memory_lines, _range_lines, _interval_lines,
)  # fmt: skip


# ---- recommendations


def recommendations(inputs: Inputs) -> Section:
    """Return the section of what to do next, by the numbers of this run; each line links to its number."""
    lines = [line for write in ADVICE for line in write(inputs)][:MOST_ADVICE]
    if not lines:
        lines = [
            Line(
                f"Nothing stands out in {many(len(inputs.cases), 'case')}: no case is slower, far from its ceiling or unsteady.",
                "good",
                "cases",
            )
        ]
    return Section("advice", "What to do next", (Lines(tuple(lines), numbered=True),))


def _regression_advice(inputs: Inputs) -> Iterator[Line]:
    if inputs.verdicts is None:
        return
    for v in inputs.verdicts.of("SLOWER")[:3]:
        yield Line(
            f"Look at {v.case} first: {v.metric} {_percent(v.ratio or 1)}{_between(v)}. A profile before and one after, "
            "and tritium profile diff, name the operations.", "bad", anchor(v.case),
        )  # fmt: skip
    for v in inputs.verdicts.of("MISSING")[:2]:
        yield Line(f"Bring {v.case} back, or take it out of the baseline: {v.reason}.", "bad", anchor(v.case))
    unsure = [v for v in inputs.verdicts.of("INCONCLUSIVE") if v.more_generations]
    if unsure:
        v = max(unsure, key=lambda v: v.more_generations or 0)
        yield Line(f"{v.case} is not decided: {advice(v, inputs.verdicts)}.", "unsure", anchor(v.case))


def _contender_advice(inputs: Inputs) -> Iterator[Line]:
    """Yield other contenders that are clearly faster."""
    slower = [
        (v, arm)
        for (_, arm), v in inputs.time_verdicts.items()
        if outcome_beside(v) == "SLOWER" and (v.ratio or 0) >= WORTH_NAMING
    ]
    for v, arm in sorted(slower, key=lambda f: -(f[0].ratio or 0))[:3]:
        ratio, interval = v.ratio or 1, v.interval95
        range_text = f" ({interval[0]:.2f}…{interval[1]:.2f})" if interval else ""
        yield Line(
            f"For {v.case}, {arm} is {_times(ratio)}{range_text} as fast as {inputs.first}.", "bad", anchor(v.case)
        )


def _ceiling_advice(inputs: Inputs) -> Iterator[Line]:
    """Yield cases with the most time beyond what the ceilings need."""
    gaps = [
        ((run.seconds or 0) * (1 - s), s, run)
        for run in inputs.runs
        if run.arm == inputs.first
        and (s := share(run, inputs.results)) is not None
        and s * (run.seconds or 0) / _ends(run)[0] < FAR
        and len(inputs.cases) > 1
    ]
    for gap_s, s, run in sorted(gaps, key=lambda f: -f[0])[:2]:
        yield Line(
            f"{run.case} reaches {percent(s)} of its ceiling: {seconds_text(gap_s)} of {seconds_text(run.seconds or 0)} a call is not "
            "explained by arithmetic or bytes. tritium profile shows where it goes.", "unsure", anchor(run.case),
        )  # fmt: skip


def _ends(run: Run) -> tuple[float, float]:
    """Return the ends of the interval of a time: advice that holds at the nearer one is decided."""
    wall = run.of("wall")
    return (tables.time_interval(wall) if wall is not None else None) or (run.seconds or 0, run.seconds or 0)


def _cold_advice(inputs: Inputs) -> Iterator[Line]:
    first_calls = [
        (run.first_call_s / _ends(run)[1], run)
        for run in inputs.runs
        if run.arm == inputs.first and run.first_call_s and run.seconds and run.first_call_s > FELT_S
    ]
    times, run = max(first_calls, key=lambda f: f[0], default=(0.0, None))
    if run is not None and times > COLD:
        yield Line(
            f"Call {run.case} once before it matters: its first call took {seconds_text(run.first_call_s or 0)}, "
            f"{times:,.0f} times a later one.", "", anchor(run.case),
        )  # fmt: skip


def _peak_advice(inputs: Inputs) -> Iterator[Line]:
    """Yield a contender that needs much more memory than another for the same case."""
    worst: tuple[float, Run, Run] | None = None
    for case in inputs.cases:
        runs = [r for arm in inputs.results.arms if (r := inputs.run_of(case, arm)) is not None and _peak(r) >= 1 << 20]
        if len(runs) > 1:
            most, least = max(runs, key=_peak), min(runs, key=_peak)
            if worst is None or _peak(most) / _peak(least) > worst[0]:
                worst = (_peak(most) / _peak(least), most, least)
    if worst is not None and worst[0] >= 1.5:
        _, most, least = worst
        yield Line(
            f"Where memory is short, run {most.case} on {least.arm}: its peak is {bytes_text(_peak(least))}, on {most.arm} "
            f"{bytes_text(_peak(most))}.", "", anchor(most.case),
        )  # fmt: skip


def _peak(run: Run) -> float:
    series = run.of("peak_bytes")
    return (series.median or 0.0) if series is not None else 0.0


def _noise_advice(inputs: Inputs) -> Iterator[Line]:
    """Yield what would decide what is not decided, and the cells that a reader is warned of."""
    open_ = [v for v in inputs.time_verdicts.values() if outcome_beside(v) == "INCONCLUSIVE"]
    if detail := joint_advice(open_, inputs.results.process_s):
        count = f"{len(open_)} of {many(len(inputs.time_verdicts), 'comparison')} {verb(len(open_), 'is', 'are')}"
        yield Line(f"{count} not decided: {detail}.", "unsure", "ratios")
    for warning, remedy in tables.warnings(inputs.results):
        yield Line(f"{warning}: {remedy}.", "unsure", "noise")


def _plan_advice(inputs: Inputs) -> Iterator[Line]:
    plan = inputs.results.plan
    if plan.gates:
        return
    few = f"{many(plan.generations, 'process')} a side cannot decide a gate"
    if plan.name == "quick":
        yield Line(f"Measure without --quick before deciding: {few}.", "unsure", "reproduce")
    else:
        yield Line(f"Measure by at least {GATING} processes before deciding: {few}.", "unsure", "reproduce")


def _memory_advice(inputs: Inputs) -> Iterator[Line]:
    if inputs.memory is not None:
        for a in inputs.memory.advice[:2]:
            yield Line(f"{a.description} (saves {bytes_text(a.potential_savings)} of {a.of}).", "", "memory")


ADVICE: tuple[Callable[[Inputs], Iterator[Line]], ...] = (
    _noise_advice, _regression_advice, _contender_advice, _ceiling_advice, _peak_advice, _cold_advice, _memory_advice, _plan_advice,
)  # fmt: skip

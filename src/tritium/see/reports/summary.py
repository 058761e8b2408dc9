"""What it comes to: the banner, the executive summary, and recommendations, each tied to a number of the page.

Knows nothing of how a page looks. A sentence without a number of this run is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from tritium.perf.amounts import bytes_text, many, percent, seconds_text, verb
from tritium.perf.gate.verdict import OUTCOMES, Suite, Verdict
from tritium.perf.records.environment import OVER
from tritium.perf.records.run import GATING, Run
from tritium.perf.tables import tables
from tritium.perf.tables.tables import ratio_text, time_text
from tritium.see.reports.blocks import Banner, Line, Lines, Tone
from tritium.see.reports.inputs import TONES, WORDS, Given, anchor, half_widths, share, standing
from tritium.see.reports.machine import threads_text
from tritium.see.reports.sections import Section

MOST = 6  # sentences of a summary
MOST_ADVICE = 10
WORTH_NAMING = 1.05  # another arm that is faster by less is not worth a recommendation
FAR = 0.25  # share of the ceiling below which there is much to gain
COLD = 20.0  # a first call that takes so many later ones
FELT_S = 0.05
ALWAYS = ("SLOWER", "EQUIVALENT")


# ---- banner


def banner(given: Given) -> Section:
    """The verdict at a glance."""
    found = _judged(given.verdicts) if given.verdicts is not None else _measured(given)
    headline, tone, lede, counts = found
    results, hard = given.results, given.results.environment.hard
    about = (
        results.suite or results.kind,
        _date(results.created),
        hard.cpu,
        "imported" if given.imported else f"{results.plan.name} plan",
    )
    notes = list(given.verdicts.notes) if given.verdicts is not None else list(results.notes)
    if not results.complete:
        notes.append("interrupted: the rest of the runs is not there.")
    suite = given.verdicts
    command = (suite.command if suite is not None else "") or ("" if given.imported else results.command)
    code = "" if suite is None else _ending(suite)
    made = Banner(headline, tone, lede, counts, tuple(filter(None, about)), command, code, tuple(notes[:6]))
    return Section("verdict", "Verdict", (made,))


def _ending(suite: Suite) -> str:
    from tritium.perf.gate.page import ending  # where a gate judged

    return ending(suite)


Glance = tuple[str, Tone, str, tuple[tuple[int, str, Tone], ...]]
STATUS: dict[str, tuple[str, Tone]] = {
    "AllPass": ("No regression", "good"),
    "Inconclusive": ("Inconclusive", "unsure"),
    "NotComparable": ("Not comparable", "unsure"),
    "NoBaseline": ("No baseline", "unsure"),
}


def _judged(suite: Suite) -> Glance:
    from tritium.perf.gate.page import subject

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
        return headline, tone, lede, counts
    named = [(suite.counts.get(o, 0), WORDS[o]) for o in ("SLOWER", "MISSING")]
    return " and ".join(f"{n} {word}" for n, word in named if n), "bad", lede, counts


def _measured(given: Given) -> Glance:
    """Without a gate: how the first arm stands beside the others; or what was measured."""
    ok = sum(run.status == "ok" for run in given.runs)
    failed = len(given.runs) - ok
    lost: tuple[tuple[int, str, Tone], ...] = ((failed, "not measured", "bad"),) if failed else ()
    if not ok:
        return "Nothing could be measured", "bad", "the reasons stand below", lost
    if not given.beside:
        lede = f"{many(len(given.results.plan.metrics), 'metric')} by {many(given.results.plan.generations, 'process')}"
        return f"{many(len(given.cases), 'case')} measured", "", lede, ((ok, "measured", ""), *lost)
    found = [standing(v) for v in given.against.values()]
    counts: tuple[tuple[int, str, Tone], ...] = (
        (found.count("FASTER"), "faster", "good"),
        (found.count("SLOWER"), "slower", "bad"),
        (found.count("INCONCLUSIVE"), "no difference shown", "fine"),
        *lost,
    )
    headline = tables.headline(given.results, given.beside)
    if headline.standing == "measured":
        return f"{given.first} beside {', '.join(given.beside)}", "", "", counts
    noisy = 2 * headline.disturbed > headline.cells
    tone = "unsure" if noisy else HEADLINE_TONES[headline.standing]
    lede = _means(given)
    if noisy and headline.standing != "noisy":
        lede += f" {headline.disturbed} of {headline.cells} cells were disturbed by other load."
    return headline.text, tone, lede, counts


HEADLINE_TONES: dict[tables.Standing, Tone] = {
    "faster": "good", "slower": "bad", "alike": "fine", "noisy": "unsure", "nothing": "bad",
}  # fmt: skip


def _means(given: Given) -> str:
    """How fast the first arm is beside each other, and over how many cases: one may have done fewer."""
    arms = {name: s for name, s in given.beside.items() if s.geomean is not None}
    told = {name: f"{ratio_text(s.geomean, s.geomean_interval)} beside {name}" for name, s in arms.items()}
    over = {name: many(len(_timed(s)), "case") for name, s in arms.items()}
    if len(set(over.values())) == 1:
        return f"Geometric mean over {next(iter(over.values()))}: {', '.join(told.values())}."
    return f"Geometric mean: {', '.join(f'{told[name]} over {over[name]}' for name in arms)}."


def _timed(suite: Suite) -> list[Verdict]:
    return [v for v in suite.verdicts if v.metric == "wall" and v.ratio]


def _variant(given: Given, arm: str) -> bool:
    return arm.startswith(f"{given.first} ")


def _times(fast: float) -> str:
    return f"{fast:.2f}×" if fast < 9.995 else f"{fast:.1f}×" if fast < 99.95 else f"{fast:.0f}×"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _date(created: str) -> str:
    """2026-01-31T12:00:00Z as a person writes it; what is no date stays as it is."""
    return f"{created[:10]} {created[11:16]} UTC" if created[10:11] == "T" and created.endswith("Z") else created


# ---- summary


def summary(given: Given) -> Section:
    """Three to six sentences, each with its number."""
    lines = [line for tell in SENTENCES for line in tell(given)][:MOST]
    return Section("summary", "Summary", (Lines(tuple(lines)),))


def _what(given: Given) -> Iterator[Line]:
    results, plan = given.results, given.results.plan
    hard = results.environment.hard
    took = f" in {seconds_text(results.elapsed_s)}" if results.elapsed_s else ""
    arms = f" on {many(len(results.arms), 'arm')}" if len(results.arms) > 1 else ""
    samples = sum(len(s.flat) for run in given.runs for s in run.series if s.metric == "wall")
    where = f" on {', '.join(filter(None, (hard.cpu, threads_text(hard))))}" if hard.cpu else ""
    processes = f"{many(plan.generations, 'process')} each"
    yield Line(
        f"{many(len(given.cases), 'case')}{arms}, {samples:,} timed batches by {processes}{took}{where}.", link="cases"
    )


def _verdict(given: Given) -> Iterator[Line]:
    suite = given.verdicts
    if suite is None or not suite.verdicts:
        return
    slower = sorted(suite.of("SLOWER"), key=lambda v: -(v.ratio or 0))
    if slower:
        worst = slower[0]
        more = f"; the worst, {worst.case}, by {_percent(worst.ratio or 1)}{_between(worst)}"
        told = f"{len(slower)} of {many(len(suite.verdicts), 'verdict')} {verb(len(slower), 'is', 'are')} SLOWER{more}."
        yield Line(told, "bad", anchor(worst.case))
    else:
        quiet = len(suite.of("EQUIVALENT"))
        told = (
            f"None of {many(len(suite.verdicts), 'verdict')} is SLOWER; {quiet} {verb(quiet, 'is', 'are')} EQUIVALENT."
        )
        yield Line(told, "good", "ratios")
    if faster := sorted(suite.of("FASTER"), key=lambda v: v.ratio or 1):
        best = faster[0]
        by = f"{_percent(best.ratio or 1)}{_between(best)}"
        line = f"{len(faster)} {verb(len(faster), 'is', 'are')} FASTER; the most, {best.case}, by {by}."
        yield Line(line, "good", anchor(best.case))
    if unsure := suite.of("INCONCLUSIVE"):
        needed = [v.more_generations for v in unsure if v.more_generations is not None]
        more = f"; about {many(max(needed), 'more process')} would decide all of them" if needed else ""
        yield Line(f"{len(unsure)} {verb(len(unsure), 'is', 'are')} INCONCLUSIVE{more}.", "unsure", "ratios")


def _between(v: Verdict) -> str:
    return f" ({_percent(v.interval95[0])} … {_percent(v.interval95[1])})" if v.interval95 else ""


def _beside(given: Given) -> Iterator[Line]:
    for arm, suite in sorted(given.beside.items(), key=lambda item: _variant(given, item[0]))[:2]:
        if suite.geomean is None:
            continue
        told = [(standing(v), v) for v in _timed(suite)]
        counted = {o: sum(s == o for s, _ in told) for o in ("FASTER", "SLOWER", "INCONCLUSIVE")}
        line = (
            f"{given.first} is {ratio_text(suite.geomean, suite.geomean_interval)} as fast as {arm}: faster in "
            f"{counted['FASTER']} of {many(len(told), 'case')}, slower in {counted['SLOWER']}, no difference shown in "
            f"{counted['INCONCLUSIVE']}."
        )
        tone: Tone = "good" if suite.geomean < 1 else "bad"
        yield Line(line, tone, "ratios")
    best = [v for (_, _), v in given.against.items() if standing(v) == "FASTER" and v.ratio]
    if best:
        v = min(best, key=lambda v: v.ratio or 1)
        yield Line(
            f"The largest gain is {v.case}: {ratio_text(v.ratio, v.interval95)} beside {v.base_arm}.",
            "good",
            anchor(v.case),
        )


def _ceiling(given: Given) -> Iterator[Line]:
    found = [(s, run) for run in given.runs if run.arm == given.first and (s := share(run, given.results)) is not None]
    if not found:
        return
    (least, far), (most, near) = min(found, key=lambda f: f[0]), max(found, key=lambda f: f[0])
    line = f"The median case of {given.first} reaches {percent(median(s for s, _ in found))} of this machine's ceiling"
    more = f"; from {percent(least)} ({far.case}) to {percent(most)} ({near.case})" if len(found) > 1 else ""
    if most <= OVER:
        yield Line(f"{line}{more}.", "", "roofline")
    else:
        low = (
            "Nothing is faster than a ceiling: it was found too low, as on a busy machine; tritium ceilings --refresh."
        )
        yield Line(f"{line}{more}. {low}", "unsure", "roofline")


def _trouble(given: Given) -> Iterator[Line]:
    failed = [run for run in given.runs if run.status != "ok"]
    if failed:
        kinds = ", ".join(f"{sum(r.status == k for r in failed)} {k}" for k in dict.fromkeys(r.status for r in failed))
        told = f"{len(failed)} of {many(len(given.runs), 'cell')} {verb(len(failed), 'was', 'were')} not measured: {kinds}."
        yield Line(told, "bad", "devices")


def _memory(given: Given) -> Iterator[Line]:
    found = [(peak, run) for run in given.runs if (s := run.of("peak_bytes")) is not None and (peak := s.median)]
    if found:
        peak, run = max(found, key=lambda f: f[0])
        yield Line(f"The largest peak is {bytes_text(peak)}: {run.case} on {run.arm}.", "", "memory")


def _range(given: Given) -> Iterator[Line]:
    """The longest and the shortest call of the first arm."""
    found = [(run.seconds, run) for run in given.runs if run.arm == given.first and run.status == "ok" and run.seconds]
    if len(found) == 1:
        yield Line(f"A call of {found[0][1].case} takes {time_text(found[0][1])}.", "", anchor(found[0][1].case))
    elif found:
        (low, fast), (high, slow) = min(found, key=lambda f: f[0]), max(found, key=lambda f: f[0])
        if low == high:
            yield Line(f"A call takes {seconds_text(low)} in all of {many(len(found), 'case')}.", "", "overview")
            return
        yield Line(
            f"Calls take from {seconds_text(low)} ({fast.case}) to {seconds_text(high)} ({slow.case}).", "", "overview"
        )


def _doubt(given: Given) -> Iterator[Line]:
    """How far the times can be believed: by their intervals, or by their spread where one process tells no interval."""
    if widths := half_widths(given):
        yield Line(
            f"Half the 95 % interval of a time is {percent(median(widths), 1)} of it in the median cell.", "", "noise"
        )
        return
    walls = [wall for run in given.runs if (wall := run.of("wall")) is not None and wall.median]
    apart = [(max(wall.flat) - min(wall.flat)) / wall.median for wall in walls if wall.median]
    if apart:
        yield Line(
            f"Batches of one case lie {percent(median(apart), 1)} of their median apart, in the median cell.",
            "",
            "noise",
        )


SENTENCES: tuple[Callable[[Given], Iterator[Line]], ...] = (
    _what, _verdict, _beside, _trouble, _ceiling, _memory, _range, _doubt,
)  # fmt: skip


# ---- recommendations


def recommendations(given: Given) -> Section:
    """What to do next, by the numbers of this run; each leads to its number."""
    lines = [line for tell in ADVICE for line in tell(given)][:MOST_ADVICE]
    if not lines:
        lines = [
            Line(
                f"Nothing stands out in {many(len(given.cases), 'case')}: no case is slower, far from its ceiling or unsteady.",
                "good",
                "cases",
            )
        ]
    return Section("advice", "What to do next", (Lines(tuple(lines), numbered=True),))


def _regressions(given: Given) -> Iterator[Line]:
    if given.verdicts is None:
        return
    from tritium.perf.gate.page import advice

    for v in given.verdicts.of("SLOWER")[:3]:
        yield Line(
            f"Look at {v.case} first: {v.metric} {_percent(v.ratio or 1)}{_between(v)}. A profile before and one after, "
            "and tritium profile diff, name the operations.", "bad", anchor(v.case),
        )  # fmt: skip
    for v in given.verdicts.of("MISSING")[:2]:
        yield Line(f"Bring {v.case} back, or take it out of the baseline: {v.reason}.", "bad", anchor(v.case))
    unsure = [v for v in given.verdicts.of("INCONCLUSIVE") if v.more_generations]
    if unsure:
        v = max(unsure, key=lambda v: v.more_generations or 0)
        yield Line(f"{v.case} is not decided: {advice(v, given.verdicts)}.", "unsure", anchor(v.case))


def _others(given: Given) -> Iterator[Line]:
    """Another arm that is surely faster."""
    found = [
        (v, arm) for (_, arm), v in given.against.items() if standing(v) == "SLOWER" and (v.ratio or 0) >= WORTH_NAMING
    ]
    for v, arm in sorted(found, key=lambda f: -(f[0].ratio or 0))[:3]:
        ratio, between = v.ratio or 1, v.interval95
        sure = f" ({between[0]:.2f}…{between[1]:.2f})" if between else ""
        yield Line(f"For {v.case}, {arm} is {_times(ratio)}{sure} as fast as {given.first}.", "bad", anchor(v.case))


def _far(given: Given) -> Iterator[Line]:
    """Time that the ceilings say need not be spent: the largest first."""
    found = [
        ((run.seconds or 0) * (1 - s), s, run)
        for run in given.runs
        if run.arm == given.first and (s := share(run, given.results)) is not None and s < FAR and len(given.cases) > 1
    ]
    for lost, s, run in sorted(found, key=lambda f: -f[0])[:2]:
        yield Line(
            f"{run.case} reaches {percent(s)} of its ceiling: {seconds_text(lost)} of {seconds_text(run.seconds or 0)} a call is not "
            "explained by arithmetic or bytes. tritium profile tells where it goes.", "unsure", anchor(run.case),
        )  # fmt: skip


def _cold(given: Given) -> Iterator[Line]:
    found = [
        (run.first_call_s / run.seconds, run)
        for run in given.runs
        if run.arm == given.first and run.first_call_s and run.seconds and run.first_call_s > FELT_S
    ]
    times, run = max(found, key=lambda f: f[0], default=(0.0, None))
    if run is not None and times > COLD:
        yield Line(
            f"Call {run.case} once before it matters: its first call took {seconds_text(run.first_call_s or 0)}, "
            f"{times:,.0f} times a later one.", "", anchor(run.case),
        )  # fmt: skip


def _peaks(given: Given) -> Iterator[Line]:
    """An arm that needs much more memory than another for the same case."""
    worst: tuple[float, Run, Run] | None = None
    for case in given.cases:
        runs = [r for arm in given.results.arms if (r := given.of(case, arm)) is not None and _peak(r) >= 1 << 20]
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


def _noise(given: Given) -> Iterator[Line]:
    for word, one, more, told in (
        ("broke in", "had", "had", "rounds that other work broke into: end it, or measure on a quiet machine"),
        ("modes", "has", "have", "times of several modes: look at the card before believing a median"),
        ("no steady state", "reached", "reached", "no steady state: give a longer warm-up"),
    ):
        hit = sum(any(word in f for f in run.flags) for run in given.runs)
        if hit:
            yield Line(f"{hit} of {many(len(given.runs), 'cell')} {verb(hit, one, more)} {told}.", "unsure", "noise")


def _plan(given: Given) -> Iterator[Line]:
    plan = given.results.plan
    if plan.gates:
        return
    few = f"{many(plan.generations, 'process')} a side cannot decide a gate"
    if plan.name == "quick":
        yield Line(f"Measure without --quick before deciding: {few}.", "unsure", "reproduce")
    else:
        yield Line(f"Measure by at least {GATING} processes before deciding: {few}.", "unsure", "reproduce")


def _from_memory(given: Given) -> Iterator[Line]:
    if given.memory is not None:
        for a in given.memory.advice[:2]:
            yield Line(f"{a.description} (saves {bytes_text(a.potential_savings)} of {a.of}).", "", "memory")


ADVICE: tuple[Callable[[Given], Iterator[Line]], ...] = (
    _regressions, _others, _far, _peaks, _cold, _from_memory, _noise, _plan,
)  # fmt: skip

"""Tables of energy: power, joules a call with and without what idling takes, and the league of contenders.

An estimate is called one in every cell and never has a place in the league.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tritium import escape
from tritium.perf import amounts
from tritium.perf.records.run import Results, Series
from tritium.perf.tables import tables
from tritium.perf.tables.table import NONE, Table

HEADS = ("case", "contender", "time", "power", "energy/op", "above idle", "ops/J", "ops/°C", "battery")
LEAGUE_HEADS = ("place", "contender", "energy", "time", "least energy in")
MARGIN = 0.05  # relative difference of energy below which two contenders share a place


def table(results: Results) -> Table:
    """Return the table of power, joules per call, calls per joule and per degree, battery hours; or why they are unknown."""
    rows: list[tuple[str, ...]] = []
    absent: dict[str, None] = {}
    for run in tables.without_canaries(results).runs:
        series = run.of("energy")
        if run.status != "ok" or series is None:
            rows.append((run.case, run.arm, run.status if run.status != "ok" else NONE, *[NONE] * 6))
            continue
        if series.median is None:
            absent[_why(series)] = None
            rows.append((run.case, run.arm, tables.time_text(run), "not measured", *[NONE] * 5))
            continue
        rows.append((run.case, run.arm, tables.time_text(run), *_figures(series)))
    below = [escape.terminal(f"energy: not measured: {reason}", 400) for reason in absent]
    return Table("", HEADS, tuple(rows), frozenset(HEADS[2:]), tuple(below))


def _why(series: Series) -> str:
    """Return the reason of an absent value, as a word and a sentence."""
    sentence = str(series.details.get("says", ""))
    return (
        f"{series.reason}: {sentence}"
        if sentence and sentence not in series.reason
        else series.reason or "unknown reason"
    )


def above_idle_j(series: Series) -> float | None:
    """Return the joules of a call beyond what idling for as long would have taken; None where that is unknown."""
    known = _details(series)
    above, calls = known.get("above_idle_j"), known.get("calls")
    return None if above is None or not calls else above / calls


def _details(series: Series) -> dict[str, Any]:
    """Return the provenance of a series; that of several windows is inside."""
    known: dict[str, Any] = series.details.get("details", series.details)
    return known


def _figures(series: Series) -> tuple[str, ...]:
    """Return the energy cells of a run."""
    known, joules = _details(series), series.median or 0.0
    suffix = " (estimate)" if series.kind == "estimate" else ""
    watts, per_degree, hours = known.get("watts"), known.get("calls_per_degree"), known.get("battery_hours")
    above = above_idle_j(series)
    return (
        f"{watts:.3g} W{suffix}" if watts is not None else NONE,
        amounts.joules_text(joules) + suffix,
        NONE if above is None else "nothing" if above <= 0 else amounts.joules_text(above) + suffix,
        amounts.count_text(1 / joules) + suffix if joules > 0 else NONE,
        amounts.count_text(per_degree) + suffix if per_degree is not None else NONE,
        f"{hours:.1f} h{suffix}" if hours is not None else str(known.get("battery_says") or NONE),
    )


# ---- league


def league(results: Results) -> Table | None:
    """Return the contenders by the joules they take, over the cases that all of them measured; None with fewer than two.

    The figures are geometric means, relative to the least. Contenders within 5 % of the one before share its place.
    """
    joules = {arm: _by_case(results, arm) for arm in results.arms}
    joules = {arm: cases for arm, cases in joules.items() if cases}
    shared = sorted(set.intersection(*map(set, joules.values()))) if joules else []
    if len(joules) < 2 or not shared:
        return None
    energy = {arm: _mean([cases[c][0] for c in shared]) for arm, cases in joules.items()}
    seconds = {arm: _mean([cases[c][1] for c in shared]) for arm, cases in joules.items()}
    least_j, least_s = min(energy.values()), min(seconds.values())
    won = {arm: sum(min(joules, key=lambda a: joules[a][c][0]) == arm for c in shared) for arm in joules}
    rows, place, before = [], 1, 0.0
    for number, arm in enumerate(sorted(energy, key=lambda a: energy[a]), 1):
        place = number if energy[arm] > (1 + MARGIN) * before else place
        before = energy[arm]
        wins = f"{won[arm]} of {amounts.many(len(shared), 'case')}"
        rows.append((f"{place}", arm, f"{energy[arm] / least_j:.2f}×", f"{seconds[arm] / least_s:.2f}×", wins))
    return Table(
        "League of energy: geometric means beside the least", LEAGUE_HEADS, tuple(rows), frozenset(LEAGUE_HEADS[2:]),
        (f"Measured joules only, of the {amounts.many(len(shared), 'case')} that all contenders have; places within 5 % are shared.",),
    )  # fmt: skip


def _by_case(results: Results, arm: str) -> dict[str, tuple[float, float]]:
    """Return the measured joules and the seconds of each case of a contender."""
    out = {}
    for run in tables.without_canaries(results).runs:
        series = run.of("energy")
        if run.arm != arm or run.status != "ok" or series is None or series.kind != "measured":
            continue
        if series.median and run.seconds:
            out[run.case] = (series.median, run.seconds)
    return out


def _mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))

"""Separate runs: what looks at the machine explain is taken off, what they leave open widens the interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from made_results import results
from tritium.perf.gate import judge, separate
from tritium.perf.gate.compare import Rules, compare_stored
from tritium.perf.gate.noise import QUIET
from tritium.perf.gate.page import sensitivity_text
from tritium.perf.gate.regression import rules_of
from tritium.perf.gate.verdict import Verdict, sensitivity_of, suite_of
from tritium.perf.records.case import Context, Work
from tritium.perf.records.run import Results, Run, Series
from tritium.perf.work.canary import COMPUTE, MEMORY

RULES = Rules(margins={"wall": 0.05}, paired=False, metrics=("wall",))
Look = Callable[[int], float]


def watched(
    name: str, log: Look, *, follows: float = 1.0, own: Look = lambda g: 0.0, sd: float = 0.004, seed: int = 0
) -> Run:
    """A case whose rounds follow a look at the machine, by process: 15 processes of 2 rounds."""
    rng = np.random.default_rng(seed)
    wall, looks = [], []
    for g in range(15):
        level = follows * log(g) + own(g) + rng.normal(0, sd)
        wall.append(tuple((1e-3 * math.exp(level + rng.normal(0, sd / 3)),) for _ in range(2)))
        looks.append(tuple((2e-6 * math.exp(log(g)),) * 2 for _ in range(2)))
    series = (Series("wall", "s", tuple(wall)), Series("clock", "s", tuple(looks)))
    return Run(name, "tritium", Context(name), Work(1), series=series)


def of(*runs: Run) -> Results:
    return replace(results({}), runs=runs)


def speeds(share: int) -> Look:
    """Two speeds, a third apart: `share` of 15 processes have the slow one."""
    return lambda g: 0.3 if (7 * g) % 15 < share else 0.0


def moved(old: Run, new: Run) -> separate.Shift:
    shift = separate.shift(old, new, "wall", of(old), of(new))
    assert shift is not None
    return shift


@pytest.mark.parametrize("follows", [0.0, 0.6, 1.4])
def test_how_closely_a_case_follows_the_clock_is_told_by_its_rounds(follows: float) -> None:
    shift = moved(watched("a", speeds(3), follows=follows, seed=1), watched("a", speeds(11), follows=follows, seed=2))
    assert shift.drift == pytest.approx(0.3)
    assert shift.log == pytest.approx(0.0, abs=0.01)
    assert shift.unknown < 0.02


def test_a_clock_that_only_moved_between_the_runs_leaves_doubt() -> None:
    shift = moved(watched("a", lambda g: 0.0, seed=1), watched("a", lambda g: 0.2, seed=2))
    assert shift.log == pytest.approx(0.0, abs=0.01)  # a case usually follows the clock
    assert shift.unknown == pytest.approx(math.hypot(0.2 * separate.CLOCK[1], separate.FLOOR), abs=0.002)


def test_looks_that_disagree_do_not_weaken_what_follows_them() -> None:
    """Noise of the looks alone would make a case seem not to follow the clock."""
    rng = np.random.default_rng(5)

    def noisy(log: float, seed: int) -> Run:
        run = watched("a", lambda g: log, seed=seed)
        looks = tuple(
            tuple(tuple(2e-6 * math.exp(log + rng.normal(0, 0.05)) for _ in range(2)) for _ in range(2))
            for _ in range(15)
        )
        return replace(run, series=(run.series[0], replace(run.series[1], values=looks)))

    old, new = noisy(0.0, 1), noisy(0.2, 2)
    assert moved(old, new).log == pytest.approx(0.0, abs=0.06)
    sure = [replace(r, series=(r.series[0], replace(r.series[1], values=as_sure(r.series[1])))) for r in (old, new)]
    assert moved(*sure).log > 0.1


def as_sure(series: Series) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Two equal looks at each round instead of two that disagree."""
    return tuple(tuple((float(np.median(r)),) * 2 for r in g) for g in series.values)


def test_cores_that_share_a_core_are_taken_off_beside_the_clock() -> None:
    def pair(shared: int, seed: int) -> Run:
        slow = speeds(shared)
        run = watched("a", lambda g: 0.0, own=lambda g: 1.7 * slow(g), seed=seed)
        team = tuple(tuple((3e-5 * math.exp(slow(g)),) * 2 for _ in range(2)) for g in range(15))
        return replace(run, series=(*run.series, Series("team", "s", team)))

    old, new = pair(3, 1), pair(12, 2)
    assert moved(old, new).log == pytest.approx(0.0, abs=0.02)
    alone = [replace(r, series=r.series[:2]) for r in (old, new)]
    assert moved(*alone).log > 0.3


def test_waiting_for_a_cpu_is_taken_off_and_doubted() -> None:
    def run(share: float, seed: int) -> Run:
        made = watched("a", lambda g: 0.0, own=lambda g: -math.log1p(-share), seed=seed)
        return replace(made, series=(*made.series, Series("waiting", "1", (((share,),) * 2,) * 15)))

    shift = moved(run(0.0, 1), run(0.5, 2))
    assert shift.log == pytest.approx(0.0, abs=0.01)
    assert shift.unknown == pytest.approx(0.5 * math.log(2), abs=0.01)
    assert compare_stored(of(run(0.0, 1)), of(run(0.5, 2)), RULES).exit_code == 0


def test_a_neighbour_for_half_of_a_run_moves_the_centre_and_not_the_fastest() -> None:
    hidden = watched("a", lambda g: 0.0, own=lambda g: 0.4 if g >= 5 else 0.0, seed=2)
    suite = compare_stored(of(watched("a", lambda g: 0.0, seed=1)), of(hidden), RULES)
    (verdict,) = suite.verdicts
    assert (verdict.outcome, suite.exit_code) == ("INCONCLUSIVE", 0)
    assert verdict.reason.startswith("the fastest processes are not slower by as much (")
    slower = watched("a", lambda g: 0.0, own=lambda g: 0.4, seed=2)
    assert compare_stored(of(watched("a", lambda g: 0.0, seed=1)), of(slower), RULES).exit_code == 1


def test_cases_that_lie_apart_widen_every_interval() -> None:
    shifts = [separate.Shift(np.full(15, 0.0) + np.linspace(-0.01, 0.01, 15), np.linspace(-0.01, 0.01, 15) + d, 0.0, 0.001, False)
              for d in (-0.05, -0.04, 0.0, 0.01, 0.02, 0.03, 0.04, 0.05)]  # fmt: skip
    wider = separate.spread(shifts)
    assert wider > 5
    assert separate.spread(shifts[:7]) == 1.0  # too few to tell
    assert separate.spread(shifts[:7], usual=2.5) == 2.5
    narrow, wide = (separate.estimate(shifts[0], RULES, 8, by) for by in (1.0, wider))
    assert wide.intervals[0.95][1] - wide.log == pytest.approx(wider * (narrow.intervals[0.95][1] - narrow.log))
    assert wide.p > narrow.p


def test_the_noise_of_this_machine_widens_intervals() -> None:
    old, new = of(watched("a", lambda g: 0.0, seed=1)), of(watched("a", lambda g: 0.0, own=lambda g: 0.12, seed=2))
    assert compare_stored(old, new, RULES).exit_code == 1
    known = replace(QUIET, separate=12.0)
    suite = compare_stored(old, new, replace(RULES, separate=rules_of(paired=False, known=known).separate))
    assert suite.exit_code == 0
    assert any("lie 12.0 times as far apart" in note for note in suite.notes)


@pytest.mark.parametrize("metric", ["energy", "rss_bytes"])
def test_what_is_no_time_does_not_follow_the_clock(metric: str) -> None:
    old, new = (replace(r, series=(replace(r.series[0], metric=metric), r.series[1]))
                for r in (watched("a", speeds(3), seed=1), watched("a", speeds(11), seed=2)))  # fmt: skip
    shift = separate.shift(old, new, metric, of(old), of(new))
    assert shift is not None
    assert shift.log > 0.25
    assert shift.unknown == pytest.approx(math.hypot(separate.UNKNOWN, separate.FLOOR))


def test_a_case_that_moves_its_bytes_follows_memory() -> None:
    base = results({"copy": 1e-3, "sum": 1e-3}, seed=1)
    copying = replace(base.runs[0], work=Work(0, 16 << 20, 16 << 20))
    assert separate.memory_share(copying, base) == pytest.approx(1.0)
    half = replace(copying, work=Work(0, 8 << 20, 8 << 20))
    seconds, canary = half.seconds or 0, base.of(MEMORY, "tritium")
    assert canary is not None
    share = (16 << 20) * (canary.seconds or 0) / (32 << 20) / seconds
    assert separate.memory_share(half, base) == pytest.approx((share - 0.2) / 0.8)
    assert separate.memory_share(base.runs[1], base) == 0.0
    assert separate.memory_share(copying, replace(base, runs=base.runs[:2])) == 0.0  # no canary


def test_without_probes_the_compute_canary_speaks_as_far_as_is_usual() -> None:
    old, new = results({"a": 1e-3}, seed=1), results({"a": 1e-3}, seed=2, compute=1.3)
    shift = separate.shift(old.runs[0], new.runs[0], "wall", old, new)
    assert shift is not None
    assert shift.log == pytest.approx(0.0, abs=0.03)
    assert shift.unknown == pytest.approx(0.5 * math.log(1.3), abs=0.01)
    assert {r.case for r in old} == {"a", COMPUTE, MEMORY}


def test_looks_that_are_not_beside_every_round_are_left_out() -> None:
    old, new = watched("a", speeds(3), seed=1), watched("a", speeds(11), seed=2)
    few = replace(old, series=(old.series[0], replace(old.series[1], values=old.series[1].values[:14])))
    assert moved(few, new).unseen
    assert not moved(old, new).unseen


def test_three_processes_are_certain_of_nothing() -> None:
    shift = separate.Shift(np.array([0.0, 0.001, 0.002]), np.array([0.5, 0.501, 0.502]), 0.0, 0.001, False)
    estimate = separate.estimate(shift, RULES, 4, 1.0)
    assert math.isinf(estimate.sensitivity(0.05, judge.certainty(RULES, 4)))
    assert estimate.processes(0.05, judge.certainty(RULES, 4), 0.1) is None


# ---- what would have been found


def estimate(half: float, floor: float = 0.0, generations: int = 15) -> judge.Estimate:
    """An estimate of 0 whose intervals are those of a normal distribution."""
    sd = half / 1.959964
    normal = separate.NORMAL
    intervals = {
        c: (-normal.inv_cdf((1 + c) / 2) * sd, normal.inv_cdf((1 + c) / 2) * sd) for c in judge.levels(RULES, 1)
    }
    return judge.Estimate(0.0, intervals, 1.0, sd * math.sqrt(generations), generations, floor)


def test_the_sensitivity_is_what_nine_of_ten_find() -> None:
    half = 0.1
    needs = judge.certainty(RULES, 1)
    z = separate.NORMAL.inv_cdf((1 + needs) / 2)
    assert estimate(half).sensitivity(0.01, needs) == pytest.approx((z + 1.281552) * half / 1.959964, rel=1e-5)
    assert estimate(half).sensitivity(0.4, needs) == pytest.approx(0.4 + 1.281552 * half / 1.959964, rel=1e-5)


def test_a_tail_must_be_found_too() -> None:
    known = replace(estimate(0.1), tail=judge.Tail(0.0, 0.2))
    assert known.sensitivity(0.05, judge.certainty(RULES, 1)) == pytest.approx(0.05 + 1.644854 * 0.2, rel=1e-5)


def test_so_many_processes_find_what_was_asked_for() -> None:
    needs = judge.certainty(RULES, 1)
    now = estimate(0.1).sensitivity(0.01, needs)
    assert estimate(0.1).processes(0.01, needs, now) == 15
    assert estimate(0.1).processes(0.01, needs, now / 2) == 60
    assert estimate(0.1, floor=0.1 / 1.959964).processes(0.01, needs, now / 2) is None  # more do not help
    assert estimate(0.1).processes(0.2, needs, 0.15) is None  # below the margin


def verdict(case: str, sensitivity: float | None, processes: int | None = 15) -> Verdict:
    return Verdict(
        case, "wall", "a", "a", "INCONCLUSIVE", ratio=1.0, sensitivity=sensitivity, processes=processes, generations=15
    )


@pytest.mark.parametrize(
    ("sensitivities", "processes", "paired", "text"),
    [
        ([0.31, 0.12, 0.12], 60, False,
         "a slow-down above 31 % of any case would have been found nine times in ten, above 12 % of half of them; "
         "for 10 % run --processes 60, about 9 min each; for 10 % in less time: measure both revisions in one job, "
         "tritium regression-test --against REV"),
        ([0.31, 0.12, 0.12], 60, True,
         "a slow-down above 31 % of any case would have been found nine times in ten, above 12 % of half of them; "
         "for 10 % run --processes 60, about 9 min"),
        ([0.31], None, False,
         "a slow-down above 31 % of any case would have been found nine times in ten; for 10 % in less time: "
         "measure both revisions in one job, tritium regression-test --against REV"),
        ([0.08, 0.07], 12, False, "a slow-down above 8 % of any case would have been found nine times in ten, above 8 % of half of them"),
        ([None, 0.07, 0.07], 12, True,
         "no slow-down of every case, however clear, would have been certain; for 10 % run --processes 12, about 2 min"),
    ],
)  # fmt: skip
def test_what_would_have_been_found_is_said(
    sensitivities: list[float | None], processes: int | None, paired: bool, text: str
) -> None:
    verdicts = [verdict(f"c{i}", s, processes) for i, s in enumerate(sensitivities)]
    suite = suite_of(verdicts, paired=paired, process_s=9.0, **sensitivity_of(verdicts, RULES))
    assert sensitivity_text(suite) == text


def test_cases_that_are_slower_do_not_count_for_the_sensitivity() -> None:
    slower = replace(verdict("c", 5.0), outcome="SLOWER")
    assert sensitivity_of([slower], RULES) == {}
    assert sensitivity_of([slower, verdict("d", 0.2)], RULES)["sensitivity"] == 0.2
    assert sensitivity_of([verdict("d", 0.2)], replace(RULES, sensitivity=0.07))["target"] == 0.07
    assert sensitivity_of([verdict("d", 0.2)], RULES)["target"] == pytest.approx(0.1)


def test_a_sensitivity_narrows_the_margin_to_its_half() -> None:
    assert rules_of(paired=False, sensitivity="8%").margin("wall") == 0.04
    assert rules_of(paired=True, sensitivity="30%").margin("wall") == 0.03
    assert rules_of("10%", paired=True, sensitivity="8%").margin("wall") == 0.10
    assert rules_of(paired=False, sensitivity="8%").margin("peak_bytes") == 0.02

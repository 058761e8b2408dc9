"""Verdicts: every outcome, the order of severity, error control over a suite, and what may never pass."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from made_results import ENVIRONMENT, changed, results, run, without
from tritium.errors import ArgumentError
from tritium.perf.gate import judge, separate
from tritium.perf.gate.compare import (
    Rules,
    Suite,
    Verdict,
    allow,
    compare_paired,
    compare_stored,
    log_ratios,
    markdown,
    no_baseline,
    page,
)
from tritium.perf.gate.noise import QUIET
from tritium.perf.gate.page import amount
from tritium.perf.gate.regression import rules_of
from tritium.perf.gate.verdict import EXIT_CODES, OUTCOMES, level_of, status_of, suite_of
from tritium.perf.records import json_io as records
from tritium.perf.records.case import Context
from tritium.perf.records.run import PLANS, Results, Run, Series
from tritium.perf.work.canary import is_canary
from tritium.perf.work.peers import PEERS

CASES = {"matmul": 1e-3, "add": 1e-4, "softmax": 5e-4, "bitlinear": 2e-3, "sum": 3e-5}
STORED = Rules(margins={"wall": 0.05, "peak_bytes": 0.02, "energy": 0.05}, paired=False)


def one(suite: Suite, case: str, metric: str = "wall") -> Verdict:
    return next(v for v in suite.verdicts if v.case == case and v.metric == metric)


def paired(
    slower: dict[str, float] | None = None, *, sd: float = 0.01, seed: int = 0, generations: int = 15
) -> Results:
    """Arms base and head; the generation's level is shared, as interleaving makes it."""
    rng = np.random.default_rng(seed)
    made = results(CASES, arms={"base": 1.0, "head": 1.0}, seed=seed, sd=sd, generations=generations)
    for case, factor in (slower or {}).items():
        made = replace(
            made,
            runs=tuple(
                run(case, "head", CASES[case] * factor, rng, sd=sd, generations=generations)
                if r.key == (case, "head")
                else r
                for r in made
            ),
        )
    return made


# ---- side by side


def test_what_takes_a_tenth_longer_is_slower_and_fails_the_gate() -> None:
    suite = compare_paired(paired({"add": 1.1}), "base", "head")
    found = one(suite, "add")
    assert found.outcome == "SLOWER"
    assert found.ratio == pytest.approx(1.1, abs=0.02)
    assert found.interval is not None
    assert 1 < found.interval[0] < found.ratio < found.interval[1]
    assert not found.passes
    assert (suite.overall_status, suite.exit_code) == ("HasRegressions", 1)


def test_what_takes_a_tenth_less_is_faster_and_passes() -> None:
    suite = compare_paired(paired({"add": 1 / 1.1}), "base", "head")
    assert one(suite, "add").outcome == "FASTER"
    assert suite.exit_code == 0


def test_the_same_code_twice_is_equivalent() -> None:
    suite = compare_paired(paired(sd=0.005), "base", "head")
    assert suite.counts["EQUIVALENT"] == len(CASES)
    assert (suite.overall_status, suite.exit_code) == ("AllPass", 0)


def test_a_certain_change_inside_the_margin_is_changed_small_and_passes() -> None:
    suite = compare_paired(paired({"add": 1.015}, sd=0.002), "base", "head")
    assert one(suite, "add").outcome == "CHANGED-SMALL"
    assert suite.exit_code == 0


def test_noise_beyond_the_margin_is_inconclusive_and_says_how_many_generations_more() -> None:
    suite = compare_paired(paired(sd=0.1, seed=3), "base", "head")
    found = [v for v in suite.verdicts if v.outcome == "INCONCLUSIVE"]
    assert found
    assert all(v.more_generations is not None and v.more_generations > 0 for v in found)
    assert suite.exit_code == 0
    assert "more processes: --processes" in page(suite)


def test_an_interval_wholly_below_the_margin_is_no_reason_to_fail() -> None:
    rules = Rules()
    wide = judge.Estimate(-0.03, {0.95: (-0.07, 0.01), 0.9: (-0.06, 0.005), 0.99: (-0.09, 0.03)}, 0.2, 0.05, 15)
    (found,) = judge.decide([wide], [0.03], rules)
    assert found.outcome == "INCONCLUSIVE"
    assert found.passes
    assert "not slower" in found.reason


def test_few_samples_are_inconclusive_however_clear_they_look() -> None:
    suite = compare_paired(paired({"add": 2.0}, generations=3), "base", "head")
    assert one(suite, "add").outcome == "INCONCLUSIVE"
    assert one(suite, "matmul").reason == "9 samples; 10 are needed"
    assert one(suite, "matmul").more_generations == 1
    assert (suite.exit_code, suite.sensitivity) == (4, None)
    assert "no slow-down of every case, however clear, would have been certain" in page(suite)
    enough = compare_paired(paired({"add": 2.0}, generations=3), "base", "head", Rules(minimum_samples=9))
    assert (one(enough, "add").outcome, enough.exit_code, enough.sensitivity) == ("INCONCLUSIVE", 0, None)


def test_more_samples_can_be_asked_for() -> None:
    suite = compare_paired(paired(sd=0.005), "base", "head", Rules(minimum_samples=46))
    assert {v.outcome for v in suite.verdicts} == {"INCONCLUSIVE"}


@pytest.mark.parametrize("arm", ["base", "head"])
def test_no_steady_state_is_at_best_inconclusive(arm: str) -> None:
    suite = compare_paired(changed(paired(sd=0.005), "add", arm, steady=False), "base", "head")
    assert one(suite, "add").outcome == "INCONCLUSIVE"
    assert "no steady state" in one(suite, "add").reason
    assert (suite.exit_code, suite.sensitivity) == (0, None)


def test_a_case_the_new_arm_lacks_is_missing_and_fails() -> None:
    suite = compare_paired(without(paired(), "add", "head"), "base", "head")
    assert one(suite, "add").outcome == "MISSING"
    assert suite.exit_code == 1


@pytest.mark.parametrize("status", ["failed", "wrong", "timed out", "crashed", "out of memory", "skipped"])
def test_a_case_that_fails_now_and_did_not_before_is_a_regression(status: str) -> None:
    given = changed(paired(), "add", "head", status=status, reason="why", series=())
    found = one(compare_paired(given, "base", "head"), "add")
    assert found.outcome == "MISSING"
    assert status in found.reason
    assert "why" in found.reason


def test_a_case_that_failed_before_and_works_now_is_new() -> None:
    given = changed(paired(sd=0.005), "add", "base", status="failed", series=())
    suite = compare_paired(given, "base", "head")
    assert suite.new_cases == ("add",)
    assert suite.exit_code == 0


def test_what_an_interrupted_run_did_not_reach_is_inconclusive_not_missing() -> None:
    given = replace(changed(paired(sd=0.005), "add", "head", status="interrupted", series=()), complete=False)
    suite = compare_paired(given, "base", "head")
    assert one(suite, "add").outcome == "INCONCLUSIVE"
    assert suite.exit_code == 4


def test_a_canary_that_differs_between_arms_forbids_the_comparison() -> None:
    given = paired({"add": 1.1})
    rng = np.random.default_rng(1)
    slow = run("canary compute", "head", 1.2e-6, rng, sd=0.002)
    given = replace(given, runs=tuple(slow if r.key == ("canary compute", "head") else r for r in given))
    suite = compare_paired(given, "base", "head")
    assert {v.outcome for v in suite.verdicts} == {"NOT COMPARABLE"}
    assert suite.exit_code == 5
    assert "canary compute took 1.1" in suite.verdicts[0].reason


def test_quick_plans_never_gate() -> None:
    suite = compare_paired(replace(paired({"add": 1.5}), plan=PLANS["quick"]), "base", "head")
    assert not suite.gates
    assert suite.overall_status == "Inconclusive"
    assert "quick runs do not gate" in page(suite)


def test_only_rounds_that_both_arms_have_are_compared() -> None:
    a = Series("wall", "s", (((1.0, 3.0, 2.0), ()), ((4.0,),), ()))
    b = Series("wall", "s", (((4.0,), (9.0,)), ((8.0,), (1.0,)), ((1.0,),)))
    assert log_ratios(a, b) == [[pytest.approx(math.log(2))], [pytest.approx(math.log(2))]]


def test_the_mean_of_all_cases_is_told_and_decides_nothing() -> None:
    suite = compare_paired(paired(dict.fromkeys(CASES, 1.02), sd=0.002), "base", "head")
    assert suite.geomean == pytest.approx(1.02, abs=0.003)
    assert suite.geomean_interval is not None
    assert suite.geomean_interval[0] > 1
    assert suite.exit_code == 0


def test_one_change_among_many_cases_must_be_clearer_than_alone() -> None:
    rng = np.random.default_rng(5)
    changed_case = [[float(v)] for v in 0.04 + rng.normal(0, 0.045, 15)]
    alone = judge.judge([changed_case], 0.03)[0]
    many = judge.judge([changed_case, *([[float(v)] for v in rng.normal(0, 0.01, 15)] for _ in range(49))], 0.03)
    assert alone.p == many[0].p
    assert alone.p_adjusted < many[0].p_adjusted
    assert many[0].q <= many[0].p_adjusted


def test_more_looks_ask_for_more_at_each() -> None:
    assert Rules(looks=3).look_alpha == pytest.approx(0.44 * Rules().look_alpha)


# ---- exact values


def exact(old: float, new: float, metric: str = "peak_bytes") -> Verdict:
    given = paired(sd=0.005)
    for arm, value in (("base", old), ("head", new)):
        had = given.of("add", arm)
        assert had is not None
        held = Series(metric, "B", ((((value,),) * 3),) * 3, exact=True)
        given = changed(given, "add", arm, series=(*had.series, held))
    return one(compare_paired(given, "base", "head"), "add", metric)


@pytest.mark.parametrize(
    ("old", "new", "outcome", "level"),
    [
        (1000, 1000, "EQUIVALENT", ""), (1000, 1010, "CHANGED-SMALL", ""), (1000, 1040, "SLOWER", ""), (1000, 1080, "SLOWER", "warning"),
        (1000, 1200, "SLOWER", "critical"), (1000, 900, "FASTER", ""), (0, 0, "EQUIVALENT", ""), (0, 64, "SLOWER", "critical"),
        (64, 0, "FASTER", ""),
    ],
)  # fmt: skip
def test_exact_values_are_compared_exactly(old: float, new: float, outcome: str, level: str) -> None:
    found = exact(old, new)
    assert (found.outcome, found.level) == (outcome, level)
    assert found.exact
    assert found.p is None


def test_exact_values_that_vary_more_than_they_changed_are_inconclusive() -> None:
    a = Series("peak_bytes", "B", (((100.0,), (200.0,)),), exact=True)
    b = Series("peak_bytes", "B", (((150.0,), (300.0,)),), exact=True)
    given = paired(sd=0.005)
    for arm, held in (("base", a), ("head", b)):
        had = given.of("add", arm)
        assert had is not None
        given = changed(given, "add", arm, series=(*had.series, held))
    assert one(compare_paired(given, "base", "head"), "add", "peak_bytes").outcome == "INCONCLUSIVE"


def test_energy_that_is_no_longer_measured_does_not_pass() -> None:
    given = paired(sd=0.005)
    joules = Series("energy", "J", ((((1.0,),) * 3),) * 15)
    for arm, held in (("base", joules), ("head", Series("energy", "J", (), "not measured", "no_permission"))):
        had = given.of("add", arm)
        assert had is not None
        given = changed(given, "add", arm, series=(*had.series, held))
    found = one(compare_paired(given, "base", "head"), "add", "energy")
    assert found.outcome == "INCONCLUSIVE"
    assert "no_permission" in found.reason


def test_estimates_never_gate() -> None:
    given = paired(sd=0.005)
    for arm, value in (("base", 1.0), ("head", 9.0)):
        had = given.of("add", arm)
        assert had is not None
        guess = Series("energy", "J", ((((value,),) * 3),) * 15, kind="estimate")
        given = changed(given, "add", arm, series=(*had.series, guess))
    assert compare_paired(given, "base", "head").exit_code == 0


# ---- a stored baseline


def test_a_stored_run_of_the_same_speed_is_equivalent() -> None:
    suite = compare_stored(results(CASES, seed=1), results(CASES, seed=2), STORED)
    assert suite.counts["EQUIVALENT"] == len(CASES)
    assert suite.exit_code == 0
    assert not suite.paired


def test_a_stored_run_shows_a_tenth_more_work_in_one_case() -> None:
    suite = compare_stored(results(CASES, seed=1), results(CASES | {"add": 1.1e-4}, seed=2), STORED)
    assert one(suite, "add").outcome == "SLOWER"
    assert suite.exit_code == 1


def test_a_machine_that_got_slower_as_a_whole_is_no_regression() -> None:
    suite = compare_stored(results(CASES, seed=1), results(CASES, seed=2, compute=1.12, memory=1.12), STORED)
    assert suite.exit_code == 0
    assert one(suite, "add").raw_ratio == pytest.approx(1.12, abs=0.03)
    assert one(suite, "add").ratio == pytest.approx(1.0, abs=0.03)
    assert suite.drift == pytest.approx(1.12, abs=0.03)
    assert any("the clock took +12" in note for note in suite.notes)


def watched(given: Results, slow: float, share: float, seed: int, clock: float = 1.4e-6) -> Results:
    """The same run on a machine that is slow for a share of the rounds, as looks at the clock tell."""
    rng = np.random.default_rng(seed)

    def seen(run: Run) -> Run:
        wall = run.series[0]
        states = [[slow if rng.random() < share else 1.0 for _ in g] for g in wall.values]
        times = tuple(
            tuple(tuple(v * f for v in b) for b, f in zip(g, k, strict=True))
            for g, k in zip(wall.values, states, strict=True)
        )
        looks = tuple(tuple((clock * f, clock * f * 1.001) for f in k) for k in states)
        return replace(run, series=(replace(wall, values=times), Series("clock", "s", looks)))

    return replace(given, runs=tuple(seen(r) for r in given))


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_rounds_in_which_the_cpu_was_shared_do_not_count(share: float) -> None:
    old = watched(results(CASES, seed=1), 1.5, share, 3)
    new = watched(results(CASES, seed=2), 1.5, 1 - share, 4)
    suite = compare_stored(old, new, STORED)
    assert suite.exit_code == 0
    assert all(v.ratio == pytest.approx(1.0, abs=0.03) for v in suite.verdicts)


def test_a_slower_case_is_found_though_the_cpu_was_shared() -> None:
    slower = {name: s * (1.1 if name == "add" else 1) for name, s in CASES.items()}
    suite = compare_stored(
        watched(results(CASES, seed=1), 1.5, 0.5, 3), watched(results(slower, seed=2), 1.5, 0.5, 4), STORED
    )
    assert suite.exit_code == 1
    assert [v.case for v in suite.verdicts if v.outcome == "SLOWER"] == ["add"]


def test_a_core_that_runs_slower_is_no_regression() -> None:
    suite = compare_stored(
        watched(results(CASES, seed=1), 1.5, 0.3, 3),
        watched(results(CASES, seed=2, compute=1.06), 1.5, 0.3, 4, 1.06 * 1.4e-6),
        STORED,
    )
    assert suite.exit_code == 0
    assert suite.drift == pytest.approx(1.06, abs=0.01)


def test_other_work_that_slows_most_batches_is_not_seen_as_a_change() -> None:
    busy = results(CASES, seed=2)
    rng = np.random.default_rng(7)

    def disturbed(s: Series) -> Series:
        slow = [[[v * (1 + (rng.random() < 0.6) * rng.random()) for v in b] for b in g] for g in s.values]
        return replace(s, values=tuple(tuple(tuple(b) for b in g) for g in slow))

    busy = replace(busy, runs=tuple(replace(r, series=tuple(map(disturbed, r.series))) for r in busy))
    suite = compare_stored(results(CASES, seed=1), busy, STORED)
    assert suite.counts["SLOWER"] == 0
    assert all(v.ratio is not None and abs(v.ratio - 1) < 0.15 for v in suite.verdicts)


def test_other_hardware_is_not_comparable_and_says_which_field() -> None:
    other = replace(ENVIRONMENT, hard=replace(ENVIRONMENT.hard, cpu="another"), kernel="6.2")
    suite = compare_stored(results(CASES), replace(results(CASES), environment=other), STORED)
    assert {v.outcome for v in suite.verdicts} == {"NOT COMPARABLE"}
    assert suite.exit_code == 5
    assert suite.hard == {"cpu": ("a cpu", "another")}
    assert suite.soft == {"kernel": ("6.1", "6.2")}
    assert "cpu was a cpu, is another" in suite.verdicts[0].reason


def test_a_case_that_crashes_now_is_missing_also_where_times_are_not_comparable() -> None:
    now = changed(results(CASES, seed=1, compute=1.6), "add", status="crashed", reason="SIGSEGV", series=())
    now = replace(now, environment=replace(ENVIRONMENT, hard=replace(ENVIRONMENT.hard, cpu="another")))
    suite = compare_stored(results(CASES), now, STORED)
    assert {v.case: v.outcome for v in suite.verdicts} == dict.fromkeys(CASES, "NOT COMPARABLE") | {"add": "MISSING"}
    assert one(suite, "add").reason == "crashed now, measured before: SIGSEGV"
    assert (suite.overall_status, suite.exit_code) == ("HasRegressions", 1)


@pytest.mark.parametrize(("sensitivity", "code"), [(None, 0), (2.0, 0), (1.0, 4)])
def test_a_machine_that_drifted_far_finds_only_what_is_larger(sensitivity: float | None, code: int) -> None:
    rules = replace(STORED, sensitivity=sensitivity)
    suite = compare_stored(results(CASES, seed=1), results(CASES, seed=2, compute=1.4, memory=1.4), rules)
    assert suite.exit_code == code
    assert suite.sensitivity is not None
    assert 1.0 < suite.sensitivity < 2.0
    assert ("--against" in page(suite)) == (sensitivity != 2.0)


@pytest.mark.parametrize(("sensitivity", "code"), [(None, 0), (0.2, 0), (0.1, 4)])
def test_without_canaries_less_is_found(sensitivity: float | None, code: int) -> None:
    rules = replace(STORED, sensitivity=sensitivity)
    suite = compare_stored(results(CASES, canary=False), results(CASES, canary=False, seed=1), rules)
    assert suite.exit_code == code
    assert suite.drift is None
    assert any("its drift is unknown" in note for note in suite.notes)


def test_two_arms_may_be_on_two_devices_one_may_not() -> None:
    both = results({"add": 1e-4}, arms={"tritium": 1.0, "tritium:mlx": 2.0})
    both = changed(both, "add", "tritium:mlx", context=Context("add", device="mlx"))
    (found,) = compare_paired(both, "tritium", "tritium:mlx").verdicts
    assert found.outcome == "SLOWER"
    old = results({"add": 1e-4})
    (found,) = compare_stored(old, changed(old, "add", context=Context("add", device="mlx"))).verdicts
    assert (found.outcome, "device was cpu, is mlx" in found.reason) == ("NOT COMPARABLE", True)


def test_the_same_name_with_other_work_is_not_comparable() -> None:
    now = results(CASES)
    had = now.of("add", "tritium")
    assert had is not None
    now = changed(now, "add", context=replace(had.context, shape=(7,)))
    found = one(compare_stored(results(CASES), now, STORED), "add")
    assert found.outcome == "NOT COMPARABLE"
    assert "shape" in found.reason


def test_peers_are_not_judged() -> None:
    old = results(CASES, arms={"tritium": 1.0, "numpy": 1.0}, seed=1)
    new = results(CASES, arms={"tritium": 1.0, "numpy": 2.0}, seed=2)
    suite = compare_stored(without(old, "sum", "numpy"), without(new, "sum", "numpy"), STORED)
    assert {v.arm for v in suite.verdicts} == {"tritium"}


def test_every_peer_is_known_as_one() -> None:
    assert set(separate.OTHERS) == {*PEERS, "reference"}


def test_cases_only_the_new_run_has_are_reported_not_judged() -> None:
    suite = compare_stored(results(CASES), results(CASES | {"fresh": 1e-3}, seed=1), STORED)
    assert suite.new_cases == ("fresh",)
    assert "fresh" in page(suite)
    assert not [v for v in suite.verdicts if v.case == "fresh"]


def test_a_missing_case_fails_even_when_all_else_is_well() -> None:
    suite = compare_stored(results(CASES), without(results(CASES, seed=1), "add"), STORED)
    assert suite.counts["MISSING"] == 1
    assert suite.exit_code == 1


def test_a_quick_file_on_either_side_is_inconclusive() -> None:
    quick = replace(results(CASES, seed=1), plan=PLANS["quick"])
    assert compare_stored(quick, results(CASES), STORED).exit_code == 4
    assert compare_stored(results(CASES), quick, STORED).exit_code == 4


@pytest.mark.slow
def test_unchanged_separate_runs_pass_and_changed_ones_do_not() -> None:
    rng = np.random.default_rng(11)
    unchanged, found = [], []
    for i in range(40):
        machine = {
            "compute": float(np.exp(rng.normal(0, 0.03))),
            "memory": float(np.exp(rng.normal(0, 0.05))),
            "sd": 0.015,
        }
        old, new = results(CASES, seed=2 * i), results(CASES, seed=2 * i + 1, **machine)
        unchanged.append(compare_stored(old, new, STORED).exit_code)
        slower = results(CASES | {"softmax": 5.5e-4}, seed=2 * i + 1, **machine)
        found.append(compare_stored(old, slower, STORED).exit_code)
    assert unchanged.count(1) == 0
    assert unchanged.count(0) >= 36
    assert found.count(1) >= 38


# ---- the suite


def verdict(outcome: str, **fields: object) -> Verdict:
    passes = outcome not in ("SLOWER", "MISSING", "NOT COMPARABLE", "INCONCLUSIVE")
    return Verdict("case", "wall", "a", "b", outcome, **({"passes": passes} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (("EQUIVALENT", "FASTER", "CHANGED-SMALL"), 0), (("EQUIVALENT", "INCONCLUSIVE"), 4),
        (("INCONCLUSIVE", "NOT COMPARABLE"), 5), (("NOT COMPARABLE", "SLOWER", "INCONCLUSIVE"), 1), (("MISSING", "EQUIVALENT"), 1),
        ((), 4),
    ],
)  # fmt: skip
def test_the_worst_verdict_gives_the_exit_code(outcomes: tuple[str, ...], code: int) -> None:
    assert suite_of([verdict(o) for o in outcomes]).exit_code == code


def test_a_critical_regression_has_its_own_status_and_the_same_exit_code() -> None:
    suite = suite_of([verdict("SLOWER", level="critical"), verdict("SLOWER")])
    assert (suite.overall_status, suite.exit_code) == ("HasCriticalRegressions", 1)


@pytest.mark.parametrize(("ratio", "level"), [(1.04, ""), (1.05, "warning"), (1.149, "warning"), (1.15, "critical")])
def test_alert_thresholds_give_the_level(ratio: float, level: str) -> None:
    assert level_of(ratio, Rules()) == level


def test_an_exit_code_is_never_a_count() -> None:
    assert suite_of([verdict("SLOWER")] * 300).exit_code == 1
    assert set(EXIT_CODES.values()) == {0, 1, 3, 4, 5}


@pytest.mark.parametrize(
    ("name", "outcome"), [("inconclusive", "INCONCLUSIVE"), ("not-comparable", "NOT COMPARABLE")]
)  # fmt: skip
def test_what_is_allowed_passes_and_keeps_its_status(name: str, outcome: str) -> None:
    suite = suite_of([verdict(outcome)])
    allowed = allow(suite, [name])
    assert (allowed.exit_code, allowed.overall_status) == (0, suite.overall_status)
    assert f"--allow-{name}" in page(allowed)


def test_a_regression_cannot_be_allowed() -> None:
    assert allow(suite_of([verdict("SLOWER")]), ["inconclusive", "not-comparable", "missing-baseline"]).exit_code == 1
    with pytest.raises(ArgumentError, match="Did you mean 'inconclusive'"):
        allow(suite_of([]), ["inconclusiv"])


def test_no_baseline_is_exit_code_3() -> None:
    suite = no_baseline("v1", "there is none")
    assert (suite.exit_code, suite.overall_status) == (3, "NoBaseline")
    assert "there is none" in page(suite)
    assert allow(suite, ["missing-baseline"]).exit_code == 0


@given(st.lists(st.sampled_from(OUTCOMES), max_size=8))
def test_a_suite_passes_only_when_every_verdict_does(outcomes: list[str]) -> None:
    verdicts = [verdict(o) for o in outcomes]
    assert (status_of(verdicts) == "AllPass") == (bool(verdicts) and all(v.passes for v in verdicts))


@given(st.floats(-0.2, 0.2), st.floats(0.0005, 0.05), st.floats(1e-6, 1.0), st.floats(0.01, 0.15))
def test_swapping_old_and_new_swaps_slower_and_faster(log: float, half: float, p: float, margin: float) -> None:
    wide = {0.95: 1.2 * half, 0.9: half, 0.99: 1.6 * half}
    there = judge.Estimate(log, {c: (log - w, log + w) for c, w in wide.items()}, p, 0.01, 15)
    back = judge.Estimate(-log, {c: (-log - w, -log + w) for c, w in wide.items()}, p, 0.01, 15)
    mirror = {"SLOWER": "FASTER", "FASTER": "SLOWER"}
    a, b = (judge.decide([e], [margin], Rules())[0].outcome for e in (there, back))
    assert mirror.get(a, a) == b


@given(st.floats(0.5, 0.999), st.integers(0, 1000))
def test_every_confidence_gives_a_judgement(confidence: float, seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.02, 0.02, 15)
    (found,) = judge.judge([[[float(v)] for v in values]], 0.03, Rules(confidence=confidence))
    assert found.interval[0] <= found.ratio <= found.interval[1]


def test_verdicts_are_the_same_for_the_same_results() -> None:
    given = paired({"add": 1.05}, sd=0.03)
    assert compare_paired(given, "base", "head") == compare_paired(given, "base", "head")


def test_a_suite_can_be_written_and_read_back() -> None:
    suite = compare_stored(results(CASES), without(results(CASES, seed=1), "add"), STORED)
    text = records.dumps(suite)
    back = records.read(Suite, records.loads(text, "verdict.json"), "verdict.json")
    assert back == suite
    assert '"overall_status": "HasRegressions"' in text


# ---- pages


def test_the_page_begins_with_counts_and_then_what_is_slower() -> None:
    lines = page(compare_paired(paired({"add": 1.2}), "base", "head")).splitlines()
    assert lines[0].startswith("1 SLOWER · ")
    assert lines[1].startswith("Intervals are ±")
    assert lines[3].lstrip().startswith("SLOWER")
    assert "add" in lines[3]
    assert "margin ±3 %" in lines[3]
    assert "CRITICAL" in lines[3]
    assert lines[-1] == "critical regression: exit code 1"
    assert not any("EQUIVALENT" in line for line in lines[1:])


def test_the_page_counts_what_it_leaves_out() -> None:
    suite = suite_of([verdict("MISSING", reason="gone")] * 30)
    assert "… and 18 more MISSING" in page(suite)


def test_names_cannot_speak_to_a_terminal_or_to_markdown() -> None:
    evil = "x\x1b[31m|<script>`@team"
    suite = suite_of([replace(verdict("MISSING", reason=evil), case=evil)], notes=(evil,))
    assert "\x1b" not in page(suite)
    assert "\x1b" not in markdown(suite)
    row = next(line for line in markdown(suite).splitlines() if line.startswith("| MISSING"))
    assert row.replace("\\|", "").count("|") == 7
    assert "``x" in row  # a code span: HTML and mentions mean nothing in it


def test_markdown_lists_every_verdict() -> None:
    suite = compare_paired(paired({"add": 1.2}), "base", "head")
    text = markdown(suite)
    assert all(f"| {v.outcome} |" in text for v in suite.verdicts)
    assert text.startswith("### ❌ 1 SLOWER")


def test_exact_values_are_shown_with_both_amounts() -> None:
    suite = suite_of([exact(4096, 8192)])
    assert "4.00 KiB → 8.00 KiB (+100.0 %)" in page(suite)
    assert "4.00 KiB → 8.00 KiB (+100.0 %)" in markdown(suite)
    assert "0 B → 64.0 B" in page(suite_of([exact(0, 64)]))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00194, "s", "1.94 ms"), (2.5e-8, "s", "25.0 ns"), (12.0, "s", "12.0 s"), (3 << 20, "B", "3.00 MiB"), (0.5, "J", "0.500 J"),
        (0.0, "B", "0 B"), (1234.0, "1", "1.23 k"), (7.0, "", "7.00"),
    ],
)  # fmt: skip
def test_amounts_have_the_unit_a_person_would_choose(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text


def test_no_baseline_has_a_page_in_markdown_too() -> None:
    assert "no baseline: nothing was compared" in markdown(no_baseline("v1", "there is none"))


@pytest.mark.parametrize("how", ["side by side", "stored"])
def test_values_without_a_logarithm_are_inconclusive(how: str) -> None:
    nothing = Series("wall", "s", ((((0.0,),) * 3),) * 15)
    if how == "stored":
        suite = compare_stored(results(CASES), changed(results(CASES, seed=1), "add", series=(nothing,)), STORED)
    else:
        suite = compare_paired(changed(paired(sd=0.005), "add", "head", series=(nothing,)), "base", "head")
    assert one(suite, "add").reason == "no values that can be matched"
    assert one(suite, "add").passes


@pytest.mark.parametrize("stored", [False, True])
def test_one_generation_decides_nothing(stored: bool) -> None:
    if stored:
        suite = compare_stored(results(CASES, generations=1), results(CASES, generations=1, seed=1), STORED)
    else:
        suite = compare_paired(paired({"add": 2.0}, generations=1), "base", "head")
    assert (suite.exit_code, suite.sensitivity) == (4, None)
    assert suite.counts["INCONCLUSIVE"] == len(CASES)


def test_nothing_to_judge_gives_no_judgement() -> None:
    assert judge.judge([], 0.03) == []
    assert separate.geomean([]) is None


def test_a_suite_of_nothing_does_not_pass() -> None:
    empty = replace(results({}), runs=())
    both = compare_stored(empty, empty, STORED), compare_paired(replace(empty, arms=("base", "head")), "base", "head")
    for suite in both:
        assert suite.exit_code == 4
        assert "nothing was judged" in page(suite)


def test_a_series_without_values_is_told() -> None:
    old = results({"add": 1e-4})
    wall = Series("wall", "s", ((),) * 15)
    (found,) = compare_stored(old, changed(old, "add", series=(wall,)), STORED).verdicts
    assert (found.outcome, found.reason) == ("INCONCLUSIVE", "measured before, not now: it has no values")


def test_how_many_more_is_never_less_than_holm_needs() -> None:
    cases = {f"c{i}": 1e-3 for i in range(50)}
    equal = results(cases, arms={"base": 1.0, "head": 1.0}, generations=8)
    slow = results(cases, arms={"base": 1.0, "head": 1.5}, generations=8)
    mixed = replace(equal, runs=tuple(s if s.key == ("c7", "head") else e for e, s in zip(equal, slow, strict=True)))
    found = next(v for v in compare_paired(mixed, "base", "head").verdicts if v.case == "c7")
    assert found.outcome == "INCONCLUSIVE"
    assert found.more_generations is not None
    assert 8 + found.more_generations >= 14


def test_what_is_not_comparable_for_one_reason_is_said_once() -> None:
    other = replace(ENVIRONMENT, hard=replace(ENVIRONMENT.hard, cpu="another"))
    text = page(compare_stored(results(CASES), replace(results(CASES), environment=other), STORED))
    assert text.count("unlike machines") == 1


def test_a_noise_that_no_patience_beats_is_said_to_be_one() -> None:
    suite = suite_of([verdict("INCONCLUSIVE", ratio=1.0, interval=(0.5, 2.0), generations=15, more_generations=5000)])
    assert "more than 100 more processes would be needed: a quieter machine needs fewer" in page(suite)


def test_stored_runs_say_that_both_need_more() -> None:
    found = verdict("INCONCLUSIVE", ratio=1.0, interval=(0.9, 1.1), generations=15, more_generations=5)
    assert "about 5 more processes in both runs: --processes 20" in page(suite_of([found], paired=False))
    assert "about 1 more process: --processes 16" in page(suite_of([replace(found, more_generations=1)]))


@pytest.mark.slow
def test_the_simulation_of_separate_runs_prints_its_table() -> None:
    script = Path(__file__).parents[3] / "bench" / "separate_runs.py"
    done = subprocess.run(
        [sys.executable, str(script), "--pairs", "1"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| 1 |") == 5


def test_the_geometric_mean_of_one_case_is_its_ratio_even_where_a_round_was_spoilt() -> None:
    both = results({"add": 1e-4}, arms={"base": 1.0, "head": 1.1}, rounds=5)
    run = both.of("add", "head")
    assert run is not None
    wall = run.series[0]
    spoilt = tuple((tuple(50 * v for v in g[0]), *g[1:]) for g in wall.values)
    suite = compare_paired(changed(both, "add", "head", series=(replace(wall, values=spoilt),)), "base", "head")
    assert suite.geomean == pytest.approx(suite.verdicts[0].ratio)


@pytest.mark.parametrize("arms", [("bas", "head"), ("base", "haed")])
def test_an_arm_that_is_not_there_is_an_error_and_not_a_verdict(arms: tuple[str, str]) -> None:
    with pytest.raises(ArgumentError, match="Did you mean"):
        compare_paired(results({"add": 1e-4}, arms={"base": 1.0, "head": 1.0}), *arms)


@pytest.mark.parametrize("generations", [1, 2, 4])
def test_a_few_processes_are_not_equivalent_however_alike(generations: int) -> None:
    both = results({"add": 1e-4}, arms={"base": 1.0, "head": 1.0}, generations=generations, rounds=20, sd=1e-5)
    (found,) = compare_paired(both, "base", "head", Rules(sensitivity=0.1)).verdicts
    assert (found.outcome, found.passes) == ("INCONCLUSIVE", False)
    assert found.reason.endswith("; 5 are needed")
    assert found.more_generations is not None
    assert generations + found.more_generations >= 5


# ---- noise


def test_a_gate_says_second_how_noisy_the_machine_was_and_stands_all_the_same() -> None:
    """The flags of a file decide nothing: noise is in the intervals."""
    given = results({f"case {i}": 1e-3 for i in range(5)})
    flags = ("3 rounds kept though other work broke in",)
    every = replace(given, runs=tuple(replace(r, flags=flags) for r in given), elapsed_s=90.0)
    suite = compare_stored(given, every)
    assert (suite.overall_status, suite.exit_code, suite.process_s) == ("AllPass", 0, 6.0)
    first, second = page(suite).splitlines()[:2]
    assert first == "0 SLOWER · 5 EQUIVALENT"
    assert second == f"{suite.noise}."
    assert re.fullmatch(r"Intervals are ±\d\.\d % wide at the median; 5 of 5 comparisons are decided", suite.noise)
    assert markdown(suite).startswith("### ✅ 0 SLOWER · 5 EQUIVALENT\n\nIntervals are ±")


def test_a_slow_down_that_the_intervals_show_stands_on_a_noisy_machine() -> None:
    both = replace(paired({"add": 1.5, "mul": 1.0}, sd=0.1), elapsed_s=45.0)
    suite = compare_paired(both, "base", "head")
    assert (one(suite, "add").outcome, suite.exit_code, suite.process_s) == ("SLOWER", 1, 3.0)
    assert suite.noise.startswith("This machine is noisy: intervals are ±")
    assert suite.noise.endswith("; 1 of 5 comparisons is decided all the same")


def test_the_counts_of_several_metrics_name_the_number_of_cases() -> None:
    given = results({"a": 1e-3, "b": 1e-3})
    peak = Series("peak_bytes", "B", (((4096.0,),),), exact=True)
    both = replace(given, runs=tuple(replace(r, series=(*r.series, peak)) for r in given))
    lines = page(compare_stored(both, both)).splitlines()
    assert lines[0] == "0 SLOWER · 4 EQUIVALENT (time and memory of 2 cases)"
    assert lines[-1] == "no regression: exit code 0"


# ---- instructions beside time


def counted(seconds: float, instructions: float, source: str = "perf_event_open") -> Results:
    timed = results({"a": seconds}, seed=3)
    count = Series("instructions", "1", tuple(((instructions,),) for _ in range(15)), source=source, exact=True)
    runs = tuple(r if is_canary(r.case) else replace(r, series=(*r.series, count)) for r in timed)
    return replace(timed, runs=runs)


@pytest.mark.parametrize(
    ("time", "work", "status", "says"),
    [
        (1.0, 1.0, "AllPass", ""),
        (1.0, 1.05, "HasRegressions", "more work that does not take longer here"),
        (1.5, 1.0, "HasCriticalRegressions", "not more work, but slower work"),
        (1.5, 1.5, "HasCriticalRegressions", ""),
        (0.5, 1.0, "AllPass", "not less work, but faster work"),
        (0.5, 1.2, "HasCriticalRegressions", "more work takes less time"),
    ],
)
def test_instructions_gate_and_disagreements_are_told(time: float, work: float, status: str, says: str) -> None:
    suite = compare_stored(counted(1e-3, 1e6), counted(time * 1e-3, work * 1e6), rules_of(None, paired=False))
    assert suite.overall_status == status
    told = [note for note in suite.notes if "disagree" in note]
    assert len(told) == bool(says)
    assert says in "".join(told)
    assert not says or says in page(suite)


def test_counts_of_different_counters_are_not_compared() -> None:
    suite = compare_stored(counted(1e-3, 1e6), counted(1e-3, 1e6, "callgrind"), Rules(paired=False))
    (verdict,) = [v for v in suite.verdicts if v.metric == "instructions"]
    assert verdict.outcome == "INCONCLUSIVE"
    assert "counted by perf_event_open before, by callgrind now" in verdict.reason


def test_a_threshold_of_time_does_not_loosen_what_is_counted() -> None:
    rules = rules_of("20%", paired=False, known=replace(QUIET, floor=0.3))
    assert (rules.margin("instructions"), rules.margin("peak_bytes")) == (0.01, 0.02)
    assert rules.margin("wall") == 0.6

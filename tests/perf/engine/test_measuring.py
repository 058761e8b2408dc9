"""The engine: what is measured beside what, and what becomes of cases that hang, crash or answer wrongly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from made_results import ENVIRONMENT
from simulated_workers import Machine, arms, cases
from tritium.errors import ArgumentError
from tritium.perf.engine import callgrind
from tritium.perf.engine.measuring import Bench, Limits, measure
from tritium.perf.gate.compare import compare_paired
from tritium.perf.records.case import Arm, Case, Context, Recipe
from tritium.perf.records.run import Plan, Results, rounds_of
from tritium.perf.work.canary import canaries

RECIPES = Path(__file__).parents[2] / "helpers" / "perf_recipes.py"
PLAN = Plan(
    "tiny", generations=2, rounds=2, batches=2, least_batch_s=1e-4, timeout_s=20, threads=1, canary=False, metrics=("wall", "cpu")
)  # fmt: skip
TRITIUM, OTHER = Arm("tritium"), Arm("other", candidate="numpy")


def case(recipe: str, name: str = "", **arguments: Any) -> Case:
    return Case(name or recipe, Recipe(f"{RECIPES}:{recipe}", arguments), Context(recipe))


def status(results: Results, name: str, arm: str = "tritium") -> tuple[str, str]:
    run = results.of(name, arm)
    assert run is not None
    return run.status, run.reason


@pytest.fixture(scope="module")
def pair() -> Results:
    """Two cases on two arms, with the canaries."""
    plan = replace(PLAN, canary=True, rounds=3, metrics=("wall", "cpu", "peak_bytes", "rss_bytes", "instructions"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callgrind.shutil, "which", lambda name: None)  # valgrind takes a minute where it is installed
        return measure(
            [case("add"), case("add", "larger", n=5000)], [TRITIUM, OTHER], plan, kind="compare", suite="pair"
        )


@pytest.mark.slow
def test_every_case_has_a_run_on_every_arm(pair: Results) -> None:
    names = ["add", "larger", *(c.name for c in canaries())]
    assert [(r.case, r.arm) for r in pair] == [(n, a) for n in names for a in ("tritium", "other")]
    assert all(r.status == "ok" for r in pair)
    assert pair.complete


def test_raw_values_are_kept_by_generation_round_and_batch(pair: Results) -> None:
    for run in pair:
        wall = run.of("wall")
        assert wall is not None
        assert wall.unit == "s"
        rounds = 3
        assert [[len(r) for r in g] for g in wall.values] == [[2] * rounds] * 2
        assert all(v > 0 for v in wall.flat)
        assert run.seconds == pytest.approx(median(wall.flat))
        assert len(rounds_of(wall)) == 2


def test_a_batch_is_calibrated_and_arms_are_warmed_up_alike(pair: Results) -> None:
    for name in ("add", "larger"):
        runs = [pair.of(name, a) for a in pair.arms]
        assert all(r is not None and r.iterations > 1 for r in runs)
        assert len({r.warmup for r in runs if r}) == 1
        assert runs[0] is not None
        assert runs[0].warmup >= 16


def test_the_answer_is_checked_before_it_is_timed(pair: Results) -> None:
    run = pair.of("add", "tritium")
    assert run is not None
    assert run.checked.startswith(("within", "the same"))
    assert run.first_call_s is not None
    assert run.facts == {"n": 1000}


def test_what_cannot_be_read_says_why(pair: Results) -> None:
    run = pair.of("add", "tritium")
    assert run is not None
    told = run.of("instructions")
    assert told is not None
    assert told.flat or (told.kind == "not measured" and told.reason)


def test_the_environment_and_the_ceilings_are_kept(pair: Results) -> None:
    assert pair.environment.hard.threads == 1
    assert pair.environment.limits is not None
    assert pair.environment.limits.least_s(10**9, 10**6) > 0


@pytest.mark.slow
def test_every_bad_case_is_one_run_and_the_rest_is_measured() -> None:
    plan = replace(PLAN, generations=1, timeout_s=3)
    bad = ("wrong", "misshapen", "raising", "hanging", "crashing", "exiting", "killed", "telling_nan")
    results = measure([*(case(b) for b in bad), case("add"), case("loud")], [TRITIUM], plan)
    found = {b: status(results, b) for b in bad}
    assert found["wrong"][0] == "wrong"
    assert "0.333 of the largest" in found["wrong"][1]
    assert found["misshapen"] == ("wrong", "the answer has the shape (4,), the right one (5,)")
    assert found["raising"][0] == "failed"
    assert "ValueError: this recipe is broken (perf_recipes.py:" in found["raising"][1]
    assert found["hanging"] == ("timed out", "it took more than 3 s in all")
    assert found["crashing"][0] == "crashed"
    assert "SIGSEGV" in found["crashing"][1]
    assert found["exiting"] == ("crashed", "the process ended with exit code 3")
    assert found["killed"][0] == "out of memory"
    assert found["telling_nan"][0] == "failed"
    assert status(results, "add") == status(results, "loud") == ("ok", "")


def test_an_allocation_bomb_is_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from tritium.perf.engine import process

    monkeypatch.setattr(process, "free_memory", lambda: 1 << 30)  # what a worker may take: nine tenths of it
    results = measure([case("bomb"), case("add")], [TRITIUM], replace(PLAN, generations=1))
    assert status(results, "bomb")[0] == "out of memory"
    assert status(results, "add") == ("ok", "")


def test_a_case_an_arm_cannot_do_is_skipped_there_with_the_reason() -> None:
    results = measure([case("unsupported")], [TRITIUM, OTHER], replace(PLAN, generations=1))
    assert status(results, "unsupported") == ("ok", "")
    assert status(results, "unsupported", "other") == ("skipped", "numpy has no such operation")


def test_a_crash_in_a_later_generation_keeps_the_samples_before(tmp_path: Path) -> None:
    results = measure([case("late", folder=str(tmp_path), after=1), case("add")], [TRITIUM], PLAN)
    run = results.of("late", "tritium")
    assert run is not None
    assert run.status == "crashed"
    assert run.of("wall") is not None
    assert status(results, "add") == ("ok", "")


def test_an_arm_that_does_not_start_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "tritium").mkdir()
    (tmp_path / "tritium" / "__init__.py").write_text("raise ImportError('half a package')\n")
    broken = Arm("broken", environment=(("PYTHONPATH", str(tmp_path)),))
    results = measure([case("add")], [TRITIUM, broken], replace(PLAN, generations=1))
    assert status(results, "add") == ("ok", "")
    assert status(results, "add", "broken")[0] == "failed"
    assert "half a package" in status(results, "add", "broken")[1]


def test_ctrl_c_keeps_what_was_measured_and_resume_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = tmp_path / "journal"
    cases, arms = [case("add")], [TRITIUM]
    whole = Bench.generation

    def interrupted(self: Any, number: int) -> None:
        if number == 1:
            raise KeyboardInterrupt
        whole(self, number)

    monkeypatch.setattr(Bench, "generation", interrupted)
    first = measure(cases, arms, PLAN, journal=journal)
    assert not first.complete
    assert "interrupted" in first.notes[-1]
    kept = first.runs[0].of("wall")
    assert kept is not None
    assert len(kept.values) == 1
    monkeypatch.undo()
    second = measure(cases, arms, PLAN, journal=journal, resume=True)
    assert second.complete
    assert "resumed after 1 of 2 processes" in second.notes
    wall = second.runs[0].of("wall")
    assert wall is not None
    assert wall.values[0] == kept.values[0]
    assert len(wall.values) == 2


def test_a_journal_of_another_plan_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    measure([case("add")], [TRITIUM], replace(PLAN, generations=1), journal=journal)
    with pytest.raises(ArgumentError, match="another plan"):
        measure([case("add", n=7)], [TRITIUM], PLAN, journal=journal, resume=True)


def test_the_same_seed_gives_the_same_order() -> None:
    orders = []
    for _ in range(2):
        seen: list[str] = []
        measure(
            [case("add", str(i)) for i in range(4)], [TRITIUM], replace(PLAN, generations=1, batches=1),
            progress=lambda done, total, what, seen=seen: seen.append(what),
        )  # fmt: skip
        orders.append(seen)
    assert orders[0] == orders[1]
    assert orders[0][0] == "looking at the machine"
    assert len(set(orders[0])) == 5


@pytest.mark.parametrize(
    ("change", "said"),
    [({"generations": 0}, "generations must be 1 or more"), ({"threads": 10_000}, "this process may use")],
)
def test_a_plan_that_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        measure([case("add")], [TRITIUM], replace(PLAN, **change))


def test_two_cases_of_one_name_are_refused() -> None:
    with pytest.raises(ArgumentError, match="two cases are called 'add'"):
        measure([case("add"), case("add")], [TRITIUM], PLAN)


def test_no_arm_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no arm was given"):
        measure([case("add")], [], PLAN)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    code = f"""
import os
from tritium.perf.records.case import Arm, Case, Recipe
from tritium.perf.engine.measuring import Bench, Limits, measure
from tritium.perf.engine.process import Process
from tritium.perf.records.case import Context
from tritium.perf.records.run import Plan
begun = Process.wait_until_ready
def ready(self, *_):
    begun(self)
    print(self.child.pid, flush=True)
Process.wait_until_ready = ready
measure([Case("hanging", Recipe({str(RECIPES) + ":hanging"!r}), Context("x"))], [Arm("a")], Plan(threads=1, canary=False))
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(100):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        state = Path(f"/proc/{worker}/stat").read_text(encoding="ascii").rsplit(")", 1)[-1].split()[0]
        if state == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the worker is still there")


# ---- rounds that are broken


def answers(*looks: float, stolen: float = 0.0, switches: int = 0) -> list[dict[str, Any]]:
    """What the workers of a round answered: a probe of the clock from each, and what disturbed the last."""
    found: list[dict[str, Any]] = [{"clock": [0.5 * look, look], "stolen": 0.0, "switches": 0} for look in looks]
    found[-1] |= {"stolen": stolen, "switches": switches}
    return found


@pytest.mark.parametrize(
    ("round_", "is_broken"),
    [
        (answers(1.0, 1.149), False), (answers(1.0, 1.151), True), (answers(1.2, 1.0, 1.1), True), (answers(7.0), False),
        (answers(1.0, 1.0, stolen=0.05), False), (answers(1.0, 1.0, stolen=0.051), True),
        (answers(1.0, switches=6), False), (answers(1.0, switches=7), True), ([], False),
    ],
)  # fmt: skip
def test_a_round_of_a_quiet_machine_is_broken_beyond_three_limits(
    round_: list[dict[str, Any]], is_broken: bool
) -> None:
    assert Limits().broken(round_, batches=2) == is_broken
    settled = Limits()
    assert not any(settled.broken(answers(1.0, 1.01), 2) for _ in range(50))
    assert settled.broken(round_, batches=2) == is_broken


def test_rounds_that_are_always_disturbed_are_not_repeated_and_worse_ones_are() -> None:
    limits = Limits()
    first = [limits.broken(answers(1.0, 1.4, stolen=0.2, switches=20), 2) for _ in range(30)]
    assert first == [True] * 20 + [False] * 10
    assert limits.broken(answers(1.0, 1.41), 2)
    assert limits.broken(answers(1.0, stolen=0.21), 2)
    assert limits.broken(answers(1.0, switches=21), 2)
    assert not limits.broken(answers(1.0, 1.4, stolen=0.2, switches=20), 2)


@pytest.mark.parametrize(("every", "share"), [(5, 0.0), (8, 0.0), (11, 1.0)])
def test_load_of_one_round_in_eight_is_usual_and_of_one_in_eleven_is_not(every: int, share: float) -> None:
    limits = Limits()
    found = [limits.broken(answers(1.0, 1.3 if i % every == 0 else 1.0), 3) for i in range(40 * every)]
    busy = found[5 * every :: every]
    assert sum(busy) == share * len(busy)
    assert sum(found) - sum(busy) == sum(found[: 5 * every : every])


# ---- a budget, on simulated workers

QUICK = Plan("simulated", generations=28, rounds=3, threads=1, metrics=("wall", "cpu"), gates=False, budget_s=60)
BOTH = ("tritium", "numpy")


def simulated(
    patch: pytest.MonkeyPatch, call_s: Any, names: str = "a b c", contenders: tuple[str, ...] = BOTH, plan: Plan = QUICK,
    machine: dict[str, Any] | None = None, **more: Any,
) -> tuple[Machine, Results]:  # fmt: skip
    computer = Machine(call_s, **machine or {}).install(patch, ENVIRONMENT)
    return computer, measure(cases(*names.split()), arms(contenders), plan, **more)


def processes(results: Results, name: str, arm: str) -> list[int]:
    """Return the numbers of the processes in which a cell was measured."""
    run = results.of(name, arm)
    wall = run.of("wall") if run is not None else None
    return [i for i, rounds in enumerate(wall.values) if rounds] if wall is not None else []


def test_a_decided_comparison_has_six_processes_and_the_time_goes_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """a is twice as fast in tritium, b the same, c is 4 % faster: that takes more processes than six, and b takes all there are."""
    ratio = {"a": 2.0, "b": 1.0, "c": 1.04}
    machine, results = simulated(
        monkeypatch,
        lambda case, arm, call: 1e-3 * (ratio.get(case, 1) if arm == "numpy" else 1),
        machine={"noise": 0.05},
    )
    counts = {name: len(processes(results, name, "numpy")) for name in "abc"}
    assert counts["a"] == 6
    assert 6 < counts["c"] < counts["b"] <= 28
    assert results.plan.generations == machine.processes("numpy") == max(counts.values())
    for name in "abc":  # side by side: never one without the other
        assert processes(results, name, "tritium") == processes(results, name, "numpy")
    assert processes(results, "canary compute", "tritium") == [*range(results.plan.generations)]


def test_a_contender_that_is_decided_everywhere_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = {"tritium": 1e-3, "alike": 1e-3, "slow": 5e-3}
    machine, results = simulated(
        monkeypatch,
        lambda case, arm, call: speed[arm],
        contenders=("tritium", "alike", "slow"),
        machine={"noise": 0.05},
    )
    assert machine.processes("slow") == 6
    assert machine.processes("alike") > 6
    assert processes(results, "a", "slow") == [*range(6)]
    assert len(processes(results, "canary memory", "slow")) == 6


def test_ratios_are_of_one_process_where_cells_have_different_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process has its own speed in all contenders: paired by process the ratio is exactly two."""
    plan = replace(QUICK, budget_s=20)
    _, results = simulated(
        monkeypatch,
        lambda case, arm, call: 0.3 if arm == "other" else 1e-3,
        contenders=("tritium", "alike", "other"),
        plan=plan,
    )
    first, other = (results.of("a", arm) for arm in ("tritium", "other"))
    assert first is not None
    assert other is not None
    (mine,), (theirs,) = ((s for s in run.series if s.metric == "wall") for run in (first, other))
    assert len(theirs.values) <= len(mine.values)
    verdict = compare_paired(results, "tritium", "other").verdicts[0]
    assert verdict.ratio == pytest.approx(300, rel=0.05)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6))
def test_the_budget_holds_and_everything_is_measured_once_where_it_can_be(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    budget_s = float(rng.choice([2, 20, 60, 300]))
    speed = {(c, a): float(10 ** rng.uniform(-6, 1.5)) for c in "abcd" for a in ("x", "y", "z")}
    with monkeypatch.context() as patch:
        machine, results = simulated(
            patch, lambda case, arm, call: speed.get((case, arm), 1e-6), "a b c d", ("x", "y", "z"),
            replace(QUICK, budget_s=budget_s), {"start_s": float(rng.uniform(0.1, 3)), "noise": 0.05, "seed": seed},
        )  # fmt: skip
    assert machine.now - 1000 <= budget_s
    statuses = {run.status for run in results}
    assert statuses <= {"ok", "too slow", "interrupted"}
    if "interrupted" in statuses:  # only where the time was used up by what came before
        assert machine.now - 1000 > budget_s - 6
    assert results.complete
    assert all(run.seconds for run in results if run.status == "ok")


def test_a_long_call_that_takes_500_times_as_long_is_stopped_after_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = {("a", "numpy"): 0.88, ("b", "numpy"): 0.3, ("c", "numpy"): 0.0051}
    fast = {"c": 1e-5}
    machine, results = simulated(
        monkeypatch, lambda case, arm, call: speed.get((case, arm), fast.get(case, 1e-3)), machine={"noise": 0.0}
    )
    assert status(results, "a", "numpy") == ("too slow", "stopped: a call takes 880 ms (880× a call of tritium)")
    assert [command for arm, command, name, _ in machine.log if (arm, name) == ("numpy", "a")] == [
        "make", "first", "calibrate", "drop",
    ]  # fmt: skip
    assert status(results, "a") == ("ok", "")
    assert status(results, "b", "numpy") == ("ok", "")  # 300 times: it gets the few calls it needs
    run = results.of("b", "numpy")
    assert run is not None
    assert all(
        rounds == (pytest.approx((0.3,)),)
        for rounds in (g for s in run.series for g in s.values if s.metric == "wall")
        if rounds
    )
    assert status(results, "c", "numpy") == ("ok", "")  # 510 times, but short


def test_a_first_call_that_does_not_end_takes_its_share_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, results = simulated(
        monkeypatch, lambda case, arm, call: 1e9 if (case, arm) == ("b", "numpy") else 1e-3, machine={"noise": 0.0}
    )
    # Of 60 s for five cases on two contenders a quarter: 15 s, of which making it took 10 ms.
    assert status(results, "b", "numpy") == (
        "too slow",
        "stopped: it took more than 15 s in all (14,990× a call of tritium)",
    )
    assert {status(results, name, arm) for name in "abc" for arm in BOTH if (name, arm) != ("b", "numpy")} == {
        ("ok", "")
    }
    assert processes(results, "b", "tritium") == [0, 1, 2, 3, 4, 5]  # alone, as many as an interval takes
    assert sum(name == "b" and command == "first" for arm, command, name, _ in machine.log if arm == "numpy") == 1


def test_a_contender_whose_calls_do_not_fit_is_stopped_though_nothing_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, results = simulated(monkeypatch, lambda case, arm, call: 4.0, "a", ("tritium",), machine={"noise": 0.0})
    assert status(results, "a") == ("too slow", "stopped: a call takes 4 s")


def test_one_disturbed_call_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calibration of numpy took 0.9 s once; its first call did not."""
    calls = lambda case, arm, call: 0.9 if (case, arm, call) == ("a", "numpy", 2) else 1e-3
    _, results = simulated(monkeypatch, calls, "a", machine={"noise": 0.0})
    assert status(results, "a", "numpy") == ("ok", "")


def test_a_cell_keeps_its_samples_when_a_later_process_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def call_s(case: str, arm: str, call: int) -> float:
        return 1e9 if (case, arm) == ("a", "numpy") and machine.processes("numpy") == 3 else 1e-3

    machine = Machine(call_s).install(monkeypatch, ENVIRONMENT)
    results = measure(cases("a"), arms(BOTH), QUICK)
    assert status(results, "a", "numpy") == ("ok", "")
    assert processes(results, "a", "numpy")[:3] == [0, 1, 3]
    assert processes(results, "a", "tritium")[:3] == [0, 1, 2]


def test_what_the_time_did_not_suffice_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, results = simulated(
        monkeypatch, lambda case, arm, call: 1e-3, plan=replace(QUICK, budget_s=2), machine={"start_s": 1.7}
    )
    ended = [run for run in results if run.status == "interrupted"]
    assert ended
    assert {run.reason for run in ended} == {"the 2 s of the run ended before the first sample"}
    assert machine.now - 1000 == pytest.approx(1.8)  # a tenth is left for the page
    _, nothing = simulated(
        monkeypatch, lambda case, arm, call: 1e-3, plan=replace(QUICK, budget_s=2), machine={"start_s": 9.0}
    )
    assert {run.status for run in nothing} == {"interrupted"}
    assert nothing.plan.generations == 1


def test_what_was_spent_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, _ = simulated(monkeypatch, lambda case, arm, call: 1e-3, machine={"noise": 0.5}, spent_s=40)
    assert machine.now - 1000 == pytest.approx(15, abs=1.5)


def test_a_plan_that_gates_measures_every_cell_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(QUICK, gates=True, generations=15, budget_s=600)
    _, results = simulated(monkeypatch, lambda case, arm, call: 1e-3 if arm == "numpy" else 2e-3, plan=plan)
    assert {len(processes(results, name, arm)) for name in "abc" for arm in BOTH} == {15}


def test_processes_are_the_most_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, _ = simulated(
        monkeypatch, lambda case, arm, call: 1e-3, plan=replace(QUICK, generations=4), machine={"noise": 0.5}
    )
    assert machine.processes("numpy") == 4


def test_a_worker_that_does_not_start_in_the_time_left_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    _, results = simulated(
        monkeypatch, lambda case, arm, call: 1e-3, plan=replace(QUICK, budget_s=1), machine={"start_s": 5.0}
    )
    assert {run.status for run in results} == {"interrupted"}


def test_progress_tells_the_time_used_of_the_budget_and_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, str]] = []
    simulated(
        monkeypatch,
        lambda case, arm, call: 1e-3,
        progress=lambda *line: seen.append(line),
        spent_s=3.0,
        machine={"start_s": 2.0},
    )
    assert seen[0] == (0, 52_000, "looking at the machine")  # 60 s, of which 3 are spent, and 5 are for the page
    done, total, what = seen[1]
    assert (done, total) == (4000, 52_000)
    assert what.endswith(" (process 1)")
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)


def test_a_budget_is_resumed_with_what_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Bench.generation

    def interrupted(self: Any, number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt
        whole(self, number)

    journal, fast = tmp_path / "journal", lambda case, arm, call: 1e-3 if arm == "numpy" else 2e-3
    with monkeypatch.context() as patch:
        patch.setattr(Bench, "generation", interrupted)
        _, first = simulated(patch, fast, journal=journal)
    assert not first.complete
    _, second = simulated(monkeypatch, fast, journal=journal, resume=True)
    assert processes(second, "a", "numpy") == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_real_contender_that_hangs_is_stopped_and_the_rest_is_measured() -> None:
    plan = replace(QUICK, rounds=2, batches=2, least_batch_s=1e-4, canary=False, budget_s=12)
    results = measure([case("hanging"), case("add"), case("larger", n=5000)], [TRITIUM, OTHER], plan)
    assert status(results, "hanging")[0] == "too slow"
    assert status(results, "add") == status(results, "add", "other") == ("ok", "")
    assert results.elapsed_s < 13

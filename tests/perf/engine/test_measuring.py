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

import pytest

from tritium.errors import ArgumentError
from tritium.perf.engine import callgrind
from tritium.perf.engine.measuring import Bench, Limits, measure
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
    assert len(set(orders[0])) == 4


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
def ready(self):
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

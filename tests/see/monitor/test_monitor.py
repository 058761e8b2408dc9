"""The watch: rounds judged beside the first, levels from verdicts, failures survived, moments not made up for."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hostile import NAMES
from made_results import ENVIRONMENT, changed, results, without
from tritium.errors import ArgumentError, FormatError
from tritium.perf.gate.verdict import Verdict, suite_of
from tritium.perf.records.run import PLANS, Results
from tritium.perf.store import results as store
from tritium.perf.suites.config import Alerts
from tritium.perf.work.canary import is_canary
from tritium.see.monitor import monitor
from tritium.see.monitor.alerts import Alert, Desk, Level
from tritium.see.monitor.monitor import Monitor, Round

CASES = {"matmul": 1e-3, "add": 1e-4, "softmax": 5e-4, "bitlinear": 2e-3, "sum": 3e-5}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path / "cache"))


def made(seed: int, **slower: float) -> Results:
    """A round by the quick plan; some cases take so many times as long."""
    cases = {name: s * slower.get(name, 1.0) for name, s in CASES.items()}
    return replace(results(cases, seed=seed, generations=8), plan=PLANS["quick"])


class Time:
    """A clock, and waits that take no time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.waits.append(round(seconds, 6))
        self.now += seconds
        return False


def watch(*rounds: Any, takes_s: float = 10.0, **more: Any) -> tuple[Monitor, list[Round], Time]:
    """A monitor of given rounds; an exception is raised. It is run, and what it reported is given."""
    time, given, told = Time(), list(rounds), list[Round]()

    def measure(number: int) -> Results:
        time.now += takes_s
        found = given[number - 1]
        if isinstance(found, BaseException):
            raise found
        return found

    about = {"desk": Desk(), "every_s": 60.0, "clock": time, "wait": time.wait} | more
    watching = Monitor(measure, **about)  # type: ignore[arg-type]
    watching.run(len(rounds), told.append)
    return watching, told, time


def events(told: list[Round]) -> list[list[tuple[str, str, str]]]:
    return [[(a.event, a.standing.case, a.level) for a in found.alerts] for found in told]


# ---- rounds


def test_the_first_round_is_the_baseline_and_equal_ones_tell_nothing() -> None:
    watching, told, _ = watch(made(1), made(2), made(3))
    assert [found.baseline for found in told] == [True, False, False]
    assert events(told) == [[], [], []]
    assert watching.desk.worst == "ok"
    assert watching.rounds == 3


def test_what_gets_slower_worse_and_well_again_is_told_once_each() -> None:
    _, told, _ = watch(made(1), made(2, add=1.1), made(3, add=1.1), made(4, add=1.3), made(5, add=1.3), made(6))
    assert events(told) == [
        [], [("raised", "add", "warning")], [], [("worse", "add", "critical")], [], [("recovered", "add", "ok")],
    ]  # fmt: skip
    (alert,) = told[1].alerts
    assert alert.standing.ratio == pytest.approx(1.1, rel=0.03)
    assert alert.standing.interval is not None
    assert "beside the baseline" in alert.standing.says


def test_a_change_below_the_warning_is_no_alert() -> None:
    assert events(watch(made(1), made(2, add=1.08), levels=Alerts(0.15, 0.3))[1]) == [[], []]


def test_a_case_that_is_lost_is_critical() -> None:
    lost = without(made(2), "add")
    failed = changed(made(3), "softmax", status="crashed", reason="signal 11", series=())
    _, told, _ = watch(made(1), lost, failed)
    assert events(told)[1] == [("raised", "add", "critical")]
    assert sorted(events(told)[2]) == [("raised", "softmax", "critical"), ("recovered", "add", "ok")]


@pytest.mark.parametrize("alone", [False, True])
def test_a_critical_case_that_then_crashes_sends_an_alert(alone: bool) -> None:
    def crashed(seed: int) -> Results:
        lost = changed(made(seed, add=2.0), "add", status="crashed", reason="signal 11", series=())
        return only(lost) if alone else lost

    def only(given: Results) -> Results:
        return replace(given, runs=tuple(r for r in given if r.case == "add" or is_canary(r.case))) if alone else given

    rounds = (only(made(1)), only(made(2, add=2.0)), crashed(3), crashed(4), only(made(5)))
    watching, told, _ = watch(*rounds)
    assert events(told)[1] == [("raised", "add", "critical")]
    assert ("raised", "add", "critical") in events(told)[2]
    assert any("signal 11" in a.standing.says for a in told[2].alerts)
    assert not any(case == "add" for _, case, _ in events(told)[3])  # told once
    assert [e for e in events(told)[4] if e[1] == "add"] == [("recovered", "add", "ok")] * 2
    assert watching.desk.worst == "ok"


def unsteady(seed: int, **slower: float) -> Results:
    """A round of a busy machine, in which nothing can be decided."""
    flags = ("no steady state", "3 rounds kept though other work broke in")
    given = made(seed, **slower)
    return replace(given, runs=tuple(replace(run, flags=flags, steady=False) for run in given))


def test_a_monitor_that_can_decide_nothing_says_that_it_is_blind_once() -> None:
    watching, told, _ = watch(made(1), unsteady(2, add=1.27), unsteady(3, add=1.27), made(4), made(5, add=1.3))
    assert told[1].suite is not None
    assert set(told[1].suite.counts) >= {"INCONCLUSIVE"}
    assert events(told) == [
        [], [("raised", "all cases", "warning")], [], [("recovered", "all cases", "ok")], [("raised", "add", "critical")],
    ]  # fmt: skip
    (alert,) = told[1].alerts
    assert alert.standing.kind == "blind"
    assert "INCONCLUSIVE" in alert.standing.says
    assert re.search(
        r"; no steady state now: .*\. Intervals are ±\d\.\d % wide at the median; 0 of 5", alert.standing.says
    )
    assert alert.standing.says.endswith(
        ". A quieter machine needs fewer, and tritium doctor names what disturbs this one"
    )
    assert "is blind, no case could be decided: 5 INCONCLUSIVE" in told[1].line()
    assert "tritium_monitor_blind 0.0" in watching.page()


def test_a_blind_monitor_has_an_open_alert_and_a_metric() -> None:
    watching, _, _ = watch(made(1), unsteady(2))
    assert watching.desk.worst == "warning"  # exit code 1 after --times
    assert "tritium_monitor_blind 1.0" in watching.page()
    assert 'tritium_monitor_alert{kind="blind"' in watching.page()


def test_a_crash_on_a_machine_whose_canary_moved_is_an_alert() -> None:
    def moved(seed: int, **how: Any) -> Results:
        slower = replace(results(CASES, seed=seed, generations=8, compute=1.6), plan=PLANS["quick"])
        return changed(slower, "add", **how) if how else slower

    crash = {"status": "crashed", "reason": "the process ended by SIGSEGV", "series": ()}
    _, told, _ = watch(made(1), moved(2, **crash), moved(3, **crash), moved(4), made(5))
    assert events(told) == [[], [("raised", "add", "critical")], [], [("recovered", "add", "ok")], []]
    assert told[1].alerts[0].standing.says == "crashed now, measured before: the process ended by SIGSEGV"


def test_a_given_baseline_is_what_rounds_are_judged_by() -> None:
    _, told, _ = watch(made(2, matmul=1.3), baseline=made(1))
    assert not told[0].baseline
    assert events(told) == [[("raised", "matmul", "critical")]]


def test_another_machine_is_told_once_and_changes_no_level() -> None:
    other = replace(made(3), environment=replace(ENVIRONMENT, hard=replace(ENVIRONMENT.hard, cpu="another")))
    _, told, _ = watch(made(1), made(2, add=1.3), other, other, made(4, add=1.3))
    assert events(told)[2:] == [
        [("raised", "the comparison with the baseline", "warning")], [], [("recovered", "the comparison with the baseline", "ok")],
    ]  # fmt: skip


VERDICTS: list[tuple[str, bool, str, Level | None]] = [
    ("SLOWER", False, "warning", "warning"), ("SLOWER", False, "critical", "critical"), ("SLOWER", False, "", "ok"),
    ("MISSING", False, "", "critical"), ("INCONCLUSIVE", False, "", None), ("INCONCLUSIVE", True, "", "ok"),
    ("NOT COMPARABLE", False, "", None), ("CHANGED-SMALL", True, "", "ok"), ("FASTER", True, "", "ok"), ("EQUIVALENT", True, "", "ok"),
]  # fmt: skip


@pytest.mark.parametrize(("outcome", "passes", "graded", "level"), VERDICTS)
def test_every_verdict_has_its_level_or_leaves_it_as_it_is(
    outcome: Any, passes: bool, graded: Any, level: Level | None
) -> None:
    verdict = Verdict(
        "x", "wall", "tritium", "tritium", outcome, 1.1, (1.0, 1.2), passes=passes, level=graded, reason="why"
    )
    kind = "missing" if outcome == "MISSING" else "change"
    found = [f for f in monitor.standings(suite_of([verdict])) if f.kind == kind]
    assert [f.level for f in found] == ([] if level is None else [level])


def test_a_call_over_the_limit_is_critical_whatever_it_took_before() -> None:
    _, told, _ = watch(made(1), made(2), made(3, bitlinear=0.5), limit_s=1.5e-3)
    assert events(told) == [[("raised", "bitlinear", "critical")], [], [("recovered", "bitlinear", "ok")]]
    assert "the limit is 1.5 ms" in told[0].alerts[0].standing.says


def test_only_what_certainly_lies_above_the_limit_is_told() -> None:
    noisy = replace(results({"x": 1e-3}, seed=3, sd=0.5), plan=PLANS["quick"])
    assert [f.level for f in monitor.over_limit(noisy, 1e-3)] == ["ok"]


# ---- failures


def test_a_round_that_fails_is_told_once_and_the_next_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    watching, told, _ = watch(made(1), OSError("no\nmemory"), ValueError("x"), made(2), made(3, add=1.3))
    assert events(told) == [
        [], [("raised", "the round", "warning")], [], [("recovered", "the round", "ok")], [("raised", "add", "critical")],
    ]  # fmt: skip
    assert told[1].failed == "OSError: no\\nmemory"
    assert (watching.rounds, watching.failures) == (5, 2)
    assert "round 2 failed" in caplog.text


def test_a_round_in_which_nothing_could_be_measured_failed_and_is_no_baseline() -> None:
    none = made(1)
    for case in CASES:
        none = changed(none, case, status="failed", reason="no kernel", series=())
    _, told, _ = watch(none, made(1), made(2))
    assert "nothing could be measured. matmul: failed: no kernel" in told[0].failed
    assert [found.baseline for found in told] == [False, True, False]


def test_a_round_that_cannot_be_judged_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "compare_stored", lambda *_: 1 / 0)
    _, told, _ = watch(made(1), made(2))
    assert "ZeroDivisionError" in told[1].failed


def test_a_history_that_cannot_be_written_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    kept: list[Results] = []

    def keep(found: Results) -> None:
        kept.append(found)
        raise OSError("disk full")

    _, told, _ = watch(made(1), made(2), keep=keep)
    assert (len(kept), len(told)) == (2, 2)
    assert "disk full" in caplog.text


# ---- time


def test_rounds_begin_at_multiples_of_the_interval() -> None:
    assert watch(made(1), made(2), made(3), takes_s=10)[2].waits == [50.0, 50.0]


def test_moments_that_were_missed_are_not_made_up_for() -> None:
    assert watch(made(1), made(2), made(3), takes_s=150)[2].waits == [30.0, 30.0]


def test_the_time_until_the_next_round_is_told() -> None:
    assert [found.next_s for found in watch(made(1), made(2))[1]] == [50.0, None]


# ---- ending


def test_a_signal_while_it_waits_ends_it() -> None:
    time = Time()

    def wait(_: float) -> bool:
        watching.interrupt()
        raise AssertionError("it must not go on")

    watching = Monitor(lambda _: made(1), Desk(), clock=time, wait=wait)
    assert watching.run() == "ok"
    assert watching.rounds == 1


def test_a_signal_while_it_measures_ends_it_without_a_verdict() -> None:
    def measure(_: int) -> Results:
        with pytest.raises(KeyboardInterrupt):
            watching.interrupt()  # as the measurement takes Ctrl-C to itself
        return replace(made(1), complete=False)

    told: list[Round] = []
    watching = Monitor(measure, Desk())
    watching.run(None, told.append)
    assert (watching.rounds, told[0].alerts, told[0].baseline) == (0, (), False)
    assert "was interrupted" in told[0].line()


def test_a_signal_while_alerts_are_sent_waits_for_them() -> None:
    taken: list[Alert] = []

    class Slow:
        name = key = "slow"

        def send(self, alert: Alert) -> None:
            watching.interrupt()
            taken.append(alert)

    watching = Monitor(lambda _: made(2, add=1.3), Desk([Slow()]), baseline=made(1))
    assert watching.run() == "critical"
    assert len(taken) == 1


def test_a_second_signal_ends_it_wherever_it_is() -> None:
    watching = Monitor(lambda _: made(1), Desk())
    watching.interrupt()
    with pytest.raises(KeyboardInterrupt):
        watching.interrupt()


def test_another_thread_may_stop_it() -> None:
    watching = Monitor(lambda _: made(1), Desk(), every_s=3600)
    began = threading.Event()
    thread = threading.Thread(target=watching.run, args=(None, lambda _: began.set()))
    thread.start()
    assert began.wait(30)
    watching.stop()
    thread.join(30)
    assert not thread.is_alive()


# ---- from one start to the next


def test_the_first_round_and_open_alerts_live_on_after_a_restart(tmp_path: Path) -> None:
    kept, state = tmp_path / "m" / "baseline.json", tmp_path / "m" / "alerts.json"

    def start(*rounds: Results) -> list[Round]:
        return watch(*rounds, desk=Desk(state=state), keep_baseline=kept)[1]

    start(made(1))
    assert events(start(made(2, add=1.3))) == [[("raised", "add", "critical")]]
    assert events(start(made(3, add=1.3))) == [[]]
    assert events(start(made(4))) == [[("recovered", "add", "ok")]]


def test_a_damaged_baseline_says_how_to_begin_anew(tmp_path: Path) -> None:
    (tmp_path / "baseline.json").write_text("{")
    with pytest.raises(FormatError, match="--forget"):
        Monitor(lambda _: made(1), Desk(), keep_baseline=tmp_path / "baseline.json")


def test_a_baseline_that_cannot_be_kept_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    watch(made(1), keep_baseline=tmp_path / "file" / "baseline.json")
    assert "not saved for the next start" in caplog.text


# ---- what is measured


def test_the_quick_suite_is_few_cases_of_tritium_alone_measured_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    def measure(cases: Any, arms: Any, plan: Any, **about: Any) -> Results:
        seen.append((cases, arms, plan, about))
        return made(1)

    monkeypatch.setattr("tritium.perf.engine.measuring.measure", measure)
    monitor.measurement()(3)
    cases, arms, plan, about = seen[0]
    assert {c.context.operation for c in cases} == {"matmul", "add", "softmax", "quantize", "bitlinear"}
    assert all(arm.name.startswith("tritium") for arm in arms)
    assert (plan.name, plan.generations, plan.seed) == ("quick", 8, 3)
    assert about["command"] == "tritium monitor --suite quick"
    monitor.measurement("layout", threads=1, generations=5)(1)
    assert seen[1][2].generations == 5
    assert seen[1][3]["suite"] == "layout"


def test_a_baselines_own_cases_are_measured_without_the_libraries_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "tritium.perf.engine.measuring.measure", lambda cases, arms, plan, **_: seen.append((cases, arms))
    )
    base = results({"matmul 512x512 f32": 1e-3}, arms={"tritium": 1.0, "numpy": 1.5})
    monitor.measurement(None, base)(1)
    ((cases, arms),) = seen
    assert [c.name for c in cases] == ["matmul 512x512 f32"]
    assert [arm.name for arm in arms] == ["tritium"]


def test_an_unknown_suite_is_refused_before_the_first_round() -> None:
    with pytest.raises(ArgumentError, match="is not a suite"):
        monitor.measurement("qick")


# ---- Prometheus


def test_the_page_tells_rounds_alerts_and_ratios() -> None:
    watching, _, _ = watch(made(1), made(2, add=1.3))
    text = watching.page()
    assert "tritium_monitor_rounds 2.0\n" in text
    assert 'tritium_monitor_alert{kind="change",case="add",arm="tritium",metric="wall",level="critical"} 1.0\n' in text
    assert 'tritium_monitor_ratio{case="matmul",arm="tritium",metric="wall",outcome="EQUIVALENT"}' in text
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))


def test_a_case_has_one_spelling_on_the_whole_page() -> None:
    name = 'a\\b "c" \n'
    watching, _, _ = watch(
        *(replace(results({name: s}, seed=i), plan=PLANS["quick"]) for i, s in enumerate((1e-3, 2e-3)))
    )
    labels = {found for line in watching.page().splitlines() for found in re.findall(r'case="((?:[^"\\]|\\.)*)"', line)}
    assert {label for label in labels if not label.startswith("canary")} == {r"a\\b \"c\" \\n"}


def test_there_is_a_page_before_the_first_round() -> None:
    assert "tritium_monitor_rounds 0.0\n" in Monitor(lambda _: made(1), Desk()).page()


@pytest.mark.parametrize("name", NAMES[::25])
def test_a_hostile_case_is_only_a_name_in_lines_and_on_the_page(name: str) -> None:
    before, after = (
        replace(results({f"x {name}": s}, seed=i), plan=PLANS["quick"]) for i, s in enumerate((1e-3, 2e-3))
    )
    watching, told, _ = watch(before, after, OSError(name))
    for line in (*(found.line() for found in told), *(a.line() for found in told for a in found.alerts)):
        assert line.isprintable()
    for line in watching.page().split("\n"):
        assert not line or line.startswith(("tritium_", "# HELP tritium_", "# TYPE tritium_"))


def test_a_kept_file_of_the_first_round_is_results(tmp_path: Path) -> None:
    watch(made(1), keep_baseline=tmp_path / "baseline.json")
    assert store.load(tmp_path / "baseline.json").kind == "baseline"


def test_failures_of_a_measurement_that_are_our_own_are_logged_without_a_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "tritium"):
        watch(ArgumentError("no device"))
    assert "\n" not in caplog.records[0].getMessage()


def test_the_trace_of_another_failure_is_logged_and_obeyed_by_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tritium"):
        watch(OSError("\x1b[31m \ud83d"))
    said = caplog.records[0].getMessage()
    assert "Traceback" in said
    assert all(line.isprintable() for line in said.splitlines())

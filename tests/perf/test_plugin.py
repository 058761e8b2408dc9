"""The pytest plugin: measures, returns what the function returns, writes what others read, and stays out of the way."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from measured import HOSTILE
from tritium.errors import ArgumentError
from tritium.perf import plugin
from tritium.perf.formats import imports
from tritium.perf.plugin import Bench
from tritium.perf.records.json_io import loads, read
from tritium.perf.records.run import Run
from tritium.perf.store import results as store
from tritium.perf.tables import tables
from tritium.perf.work.canary import is_canary

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
assert tables  # a session inside this process must not be the first to import it

TESTS = """
import pytest

def test_sum(tritium_bench):
    tritium_bench.extra_info["size"] = 100
    tritium_bench.group = "sums"
    assert tritium_bench(sum, range(100)) == 4950
    assert tritium_bench.stats["rounds"] >= 5

@pytest.mark.parametrize("n", [3, 5])
def test_sorted(tritium_bench, n):
    assert tritium_bench.pedantic(sorted, args=([2, 1],), rounds=6, iterations=10) == [1, 2]
"""


def session(pytester: pytest.Pytester, *args: Any, tests: str = TESTS, apart: bool = False) -> pytest.RunResult:
    """A pytest of its own with our plugin and no other; `apart`: in a process of its own."""
    pytester.makepyfile(test_it=tests)
    pytester._monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester._monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    start = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
    return start("-p", "tritium_pytest", "--tritium-budget", "0.02", "-p", "no:cacheprovider", *map(str, args))


# ---- the fixture


def bench(**more: Any) -> Bench:
    return Bench("test_it", "file.py::test_it", **({"budget_s": 0.01} | more))


def kept(b: Bench) -> Run:
    return read(Run, loads(b.record(), ""), "")


def test_the_fixture_returns_what_the_function_returns() -> None:
    b = bench()
    assert b(lambda x, *, y: x + y, 1, y=2) == 3
    assert b.stats is not None


def test_every_batch_is_kept_with_how_it_was_made() -> None:
    b = bench()
    b(sum, range(100))
    assert b.stats is not None
    run = kept(b)
    assert list(run.series[0].flat) == b.stats.data
    assert run.iterations == b.stats.iterations > 1
    assert run.first_call_s
    assert [s.metric for s in run.series] == ["wall", "cpu"]
    assert run.case == "file.py::test_it"


def test_the_figures_are_read_in_every_way_pytest_benchmark_allows() -> None:
    b = bench()
    b(sum, range(10))
    assert b.stats is not None
    assert b.stats.mean == b.stats["mean"] == b.stats.stats.mean == b.stats.get("mean")
    assert b.stats.get("nothing", 5) == 5
    with pytest.raises(AttributeError, match="no figure 'median_'"):
        _ = b.stats.median_


def test_a_decorator_measures_too() -> None:
    @bench()
    def found() -> int:
        return 7

    assert found == 7


def test_pedantic_makes_as_many_calls_as_it_is_told() -> None:
    calls: list[int] = []
    b = bench()
    assert b.pedantic(lambda x: calls.append(x) or len(calls), args=(1,), rounds=4, warmup_rounds=2, iterations=5) == 30
    assert len(calls) == 30
    assert b.stats is not None
    assert (b.stats.rounds, b.stats.iterations) == (4, 5)
    assert kept(b).warmup == 2


def test_pedantic_gives_each_round_what_setup_makes_and_teardown_gets_it_back() -> None:
    seen: list[str] = []
    made = iter(range(10))

    def setup() -> Any:
        return (next(made),), {"y": 1}

    b = bench()
    found = b.pedantic(
        lambda x, y: x + y, setup=setup, teardown=lambda x, y: seen.append(f"{x}{y}"), rounds=3, warmup_rounds=1
    )
    assert found == 4
    assert seen == ["01", "11", "21", "31"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"iterations": 1.5}, "iterations is 1.5"),
        ({"warmup_rounds": -1}, "warmup_rounds is -1"),
        ({"setup": lambda: None, "iterations": 2}, "setup runs before a round"),
        ({"setup": lambda: ((1,), {}), "args": (2,)}, "Give them once"),
    ],
)
def test_pedantic_refuses_what_makes_no_sense(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        bench().pedantic(abs, **asked)


def test_there_is_no_record_of_what_was_not_measured() -> None:
    with pytest.raises(ArgumentError, match="nothing was measured"):
        bench().record()


def test_a_fixture_measures_once() -> None:
    b = bench()
    b(int)
    with pytest.raises(ArgumentError, match="once in a test"):
        b(int)


def test_switched_off_it_calls_once_and_measures_nothing() -> None:
    calls: list[int] = []
    for act in (lambda b: b(calls.append, 1), lambda b: b.pedantic(calls.append, args=(1,), rounds=9)):
        b = bench(disabled=True)
        act(b)
        assert b.stats is None
        assert not b.enabled
    assert calls == [1, 1]


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_collection_and_tracer_are_as_before_even_after_an_error(collects: bool) -> None:
    def trace(*_: Any) -> None:
        return None

    before, was = sys.gettrace(), gc.isenabled()
    states: list[Any] = []

    def failing() -> None:
        states.append((gc.isenabled(), sys.gettrace()))
        raise KeyError("x")

    try:
        (gc.enable if collects else gc.disable)()
        sys.settrace(trace)
        with pytest.raises(KeyError):
            bench()(failing)
        after = gc.isenabled(), sys.gettrace()
    finally:
        sys.settrace(before)
        (gc.enable if was else gc.disable)()
    assert states == [(False, None)]
    assert after == (collects, trace)


def test_what_json_cannot_hold_is_kept_by_its_repr() -> None:
    class Thing:
        def __repr__(self) -> str:
            return "Thing!"

    b = bench(params={"x": Thing(), "n": float("nan")})
    b.extra_info = {1: {2.5}, "deep": [Thing()]}
    b(int)
    told = kept(b).facts["pytest"]
    assert told["params"] == {"x": "Thing!", "n": "nan"}
    assert told["extra_info"] == {"1": "{2.5}", "deep": ["Thing!"]}


# ---- a session


def test_a_session_prints_a_table_and_writes_both_files(pytester: pytest.Pytester) -> None:
    found = session(pytester, "--tritium-json", "out.json", "--tritium-results", "results.json")
    found.assert_outcomes(passed=3)
    found.stdout.fnmatch_lines(
        ["*tritium_bench*", "test *median*95 %*batches*calls*", "*sums: test_sum*", "written: out.json"]
    )
    data = json.loads((pytester.path / "out.json").read_text())
    names = [b["fullname"] for b in data["benchmarks"]]
    assert names == ["test_it.py::test_sum", "test_it.py::test_sorted[3]", "test_it.py::test_sorted[5]"]
    first, second = data["benchmarks"][:2]
    assert (first["name"], first["group"], first["extra_info"]["size"]) == ("test_sum", "sums", 100)
    assert (second["param"], second["params"], second["stats"]["iterations"]) == ("3", {"n": 3}, 10)
    assert second["stats"]["rounds"] == len(second["stats"]["data"]) == 6
    saved = store.load(pytester.path / "results.json")
    assert saved.cases == tuple(names)
    assert not saved.plan.gates
    assert imports.load(pytester.path / "out.json").runs == saved.runs


def timed_by(load: plugin.Load, wall: float = 0.01, cpu: float = 0.01, name: str = "test_it") -> str:
    """The record of a test whose batches ran under this load."""
    b = Bench(name, f"file.py::{name}")
    b._keep(plugin.Timed([wall] * 10, [cpu] * 10, 1, load=load))
    return b.record()


QUIET = plugin.Load(0, 0, 0.0, 1e-6)
BUSY = plugin.Load(31, 0, 0.0, 1e-6)  # more than three involuntary switches a batch


@pytest.mark.parametrize(("busy", "of", "marked"), [(0, 5, 0), (1, 5, 1), (2, 5, 2), (3, 5, 0), (5, 5, 0), (1, 1, 0)])
def test_a_test_is_marked_where_other_load_took_more_time_from_it_than_from_the_others(
    busy: int, of: int, marked: int
) -> None:
    records = [timed_by(BUSY if i < busy else QUIET, name=f"test_{i}") for i in range(of)]
    lines = plugin.finish(records).lines
    assert sum(" ! " in line for line in lines) == marked
    assert any(line.startswith("!: other load") for line in lines) == bool(marked)
    assert ("other work or the hypervisor broke in" in lines) == bool(marked)
    assert lines[0].startswith("test ")


def moving(*clocks: float) -> list[str]:
    """The records of a session on a machine of this speed, test by test."""
    return [timed_by(QUIET._replace(clock_s=c), name=f"test_{i}") for i, c in enumerate(clocks)]


@pytest.mark.parametrize(
    ("clocks", "sentence"),
    [
        ((1e-6, 1.01e-6, 1e-6), ""),
        ((1e-6, 1.0625e-6, 1.125e-6), ""),  # ±4.7 %
        ((1e-6, 1.3e-6, 1.6e-6), "its speed moved by ±18 % from test to test; differences below 37 % between two sessions decide nothing."),
    ],
)  # fmt: skip
def test_a_machine_whose_own_speed_changes_during_a_session_says_what_that_hides(
    clocks: tuple[float, ...], sentence: str
) -> None:
    records = moving(*clocks)
    first = plugin.finish(records).lines[0]
    assert first.startswith("test ") if not sentence else first == f"This machine is noisy: {sentence}"
    assert not any(is_canary(run.case) for run in plugin.gathered(records))


def test_an_earlier_session_on_a_moving_machine_hides_as_much(tmp_path: Path) -> None:
    plugin.finish(moving(1e-6, 1.3e-6, 1.6e-6), json=str(tmp_path / "noisy.json"))
    plugin.finish(moving(1e-6, 1e-6, 1e-6), json=str(tmp_path / "quiet.json"))

    def first(earlier: str) -> str:
        return plugin.finish(moving(1e-6, 1e-6, 1e-6), compare=str(tmp_path / earlier)).lines[0]

    assert first("noisy.json").startswith("This machine is noisy: its speed moved by ±18 %")
    assert first("quiet.json").startswith("test ")


def test_a_call_that_sleeps_is_not_disturbed_and_one_that_waits_for_a_cpu_is() -> None:
    slept, pushed = QUIET._replace(waits=10), QUIET._replace(switches=12)
    stolen = QUIET._replace(stolen=0.06)
    records = timed_by(slept, cpu=1e-4), timed_by(pushed, cpu=4e-3), timed_by(stolen)
    assert [read(Run, loads(text, ""), "").disturbed_rounds for text in records] == [(0, 10), (10, 10), (10, 10)]


def test_a_later_session_is_shown_beside_an_earlier_one(pytester: pytest.Pytester) -> None:
    session(pytester, "--tritium-json", "out.json")
    more = TESTS + "\ndef test_new(tritium_bench):\n    tritium_bench(int)\n"
    found = session(pytester, "--tritium-compare", "out.json", tests=more)
    found.assert_outcomes(passed=4)
    found.stdout.fnmatch_lines(
        ["test *was*now / was*", "*test_new* - *new", "*gates nothing: tritium regression-test does."]
    )
    assert re.search(r"sums: test_sum .*\d\.\d{3} \(\d+\.\d{3} … \d+\.\d{3}\)", found.stdout.str())


def test_times_of_another_machine_are_not_compared(pytester: pytest.Pytester) -> None:
    session(pytester, "--tritium-json", "out.json")
    data = json.loads((pytester.path / "out.json").read_text())
    data["tritium"]["environment"]["hard"]["cpu"] = "another CPU"
    (pytester.path / "out.json").write_text(json.dumps(data))
    found = session(pytester, "--tritium-compare", "out.json")
    found.assert_outcomes(passed=3)
    found.stdout.fnmatch_lines(["not compared: cpu was another CPU, is *"])


def test_files_of_pytest_benchmark_are_compared_where_the_cpu_is_the_same(pytester: pytest.Pytester) -> None:
    session(pytester, "--tritium-json", "out.json")
    data = json.loads((pytester.path / "out.json").read_text())
    del data["tritium"]
    for row in data["benchmarks"]:
        del row["extra_info"]["tritium"]
    (pytester.path / "out.json").write_text(json.dumps(data))
    found = session(pytester, "--tritium-compare", "out.json")
    found.stdout.fnmatch_lines(["*gates nothing: tritium regression-test does."])


def test_a_failed_test_is_named_and_not_exported(pytester: pytest.Pytester) -> None:
    found = session(
        pytester,
        "--tritium-json",
        "out.json",
        tests="def test_it(tritium_bench):\n    assert tritium_bench(int) == 1\n",
    )
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*test_it (the test failed)*"])
    data = json.loads((pytester.path / "out.json").read_text())
    assert data["benchmarks"] == []
    assert data["tritium"]["runs"][0]["status"] == "failed"


def test_a_session_without_measurements_prints_nothing_and_imports_nothing_of_ours(pytester: pytest.Pytester) -> None:
    code = "import sys\ndef test_it():\n    assert not [m for m in sys.modules if m.split('.')[0] in ('tritium', 'numpy')]\n"
    found = session(pytester, tests=code, apart=True)
    found.assert_outcomes(passed=1)
    assert "tritium_bench" not in found.stdout.str()


def test_options_and_mark_are_explained_and_checked(pytester: pytest.Pytester) -> None:
    assert "--tritium-compare" in session(pytester, "--help").stdout.str()
    assert "tritium_bench(group=None" in session(pytester, "--markers").stdout.str()
    found = session(pytester, "--tritium-compare", "nothing.json")
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    assert "no file nothing.json" in found.stderr.str()
    assert session(pytester, "--tritium-budget", "0").ret == pytest.ExitCode.USAGE_ERROR


def test_the_mark_sets_group_and_budget(pytester: pytest.Pytester) -> None:
    code = """
import pytest

@pytest.mark.tritium_bench(group="marked", budget_s=0.01)
def test_it(tritium_bench):
    assert (tritium_bench.group, tritium_bench.budget_s) == ("marked", 0.01)
    tritium_bench(int)
"""
    found = session(pytester, "--strict-markers", tests=code)
    found.assert_outcomes(passed=1)
    found.stdout.fnmatch_lines(["marked: test_it *"])


def test_a_file_that_cannot_be_written_or_read_is_told_and_fails_the_session(pytester: pytest.Pytester) -> None:
    (pytester.path / "bad.json").write_text("{")
    for option, name in (("--tritium-json", "test_it.py/out.json"), ("--tritium-compare", "bad.json")):
        found = session(pytester, option, name)
        assert found.ret == pytest.ExitCode.USAGE_ERROR
        found.stdout.fnmatch_lines(["error: *"])
        assert "INTERNALERROR" not in found.stdout.str()


def test_switched_off_a_session_calls_once_and_writes_an_empty_file(pytester: pytest.Pytester) -> None:
    code = "def test_it(tritium_bench):\n    assert tritium_bench(int) == 0\n    assert tritium_bench.stats is None\n"
    found = session(pytester, "--tritium-off", "--tritium-json", "out.json", tests=code)
    found.assert_outcomes(passed=1)
    assert json.loads((pytester.path / "out.json").read_text())["benchmarks"] == []


@pytest.mark.slow
def test_the_workers_of_xdist_send_what_they_measured(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    found = session(pytester, "-p", "xdist", "-n", "2", "--tritium-json", "out.json", apart=True)
    found.assert_outcomes(passed=3)
    found.stdout.fnmatch_lines([plugin.BESIDE])
    data = json.loads((pytester.path / "out.json").read_text())
    assert len(data["benchmarks"]) == 3
    assert plugin.BESIDE in data["benchmarks"][0]["extra_info"]["tritium"]["flags"]


def test_pytest_benchmark_beside_it_works_and_gets_our_fields(pytester: pytest.Pytester) -> None:
    if find_spec("pytest_benchmark") is None:
        pytest.skip("pytest-benchmark is not installed")
    code = TESTS + "\ndef test_theirs(benchmark):\n    import tritium\n    benchmark.pedantic(int, rounds=3)\n"
    found = session(
        pytester,
        "-p",
        "pytest_benchmark.plugin",
        "--benchmark-json",
        "theirs.json",
        "--tritium-json",
        "ours.json",
        tests=code,
        apart=True,
    )
    found.assert_outcomes(passed=4)
    theirs = json.loads((pytester.path / "theirs.json").read_text())
    assert [b["name"] for b in theirs["benchmarks"]] == ["test_theirs"]
    assert theirs["machine_info"]["tritium"]["cpus"] == os.cpu_count()
    assert theirs["tritium_environment"]["hard"]["cpu"]
    assert imports.load(pytester.path / "theirs.json").cases == ("test_it.py::test_theirs",)
    assert len(json.loads((pytester.path / "ours.json").read_text())["benchmarks"]) == 3


def test_the_hooks_for_pytest_benchmark_give_nothing_to_who_never_used_tritium() -> None:
    code = (
        "import sys, tritium_pytest as p; info = {}; p.pytest_benchmark_update_machine_info(None, info);"
        "p.pytest_benchmark_update_json(None, [], info); print(info, 'tritium' in sys.modules, 'numpy' in sys.modules)"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=env)
    assert done.stdout.split() == ["{}", "False", "False"]


def test_hostile_groups_are_printed_harmlessly(pytester: pytest.Pytester) -> None:
    names = [n for n in HOSTILE.values() if n and "\ud800" not in n]
    code = f"""
import pytest

@pytest.mark.parametrize("i", range({len(names)}))
def test_it(tritium_bench, i):
    tritium_bench.group = {names!r}[i]
    tritium_bench.pedantic(int)
"""
    found = session(pytester, tests=code)
    text = found.stdout.str()
    table = text[text.index(" tritium_bench ") :]
    assert all(c.isprintable() or c == "\n" for c in table)
    assert not [line for line in table.splitlines() if line.startswith("::") or "##[" in line]


# ---- sessions over time


def test_a_session_is_stored_and_a_slower_one_is_named(tmp_path: Path) -> None:
    folder = str(tmp_path / "kept")
    stored = plugin.finish([timed_by(QUIET)], autosave=True, store=folder, root=tmp_path)
    assert stored.lines[-1].startswith("stored as ")
    compare: dict[str, Any] = {"compare": "last", "compare_fail": "20%", "store": folder, "root": tmp_path}
    same = plugin.finish([timed_by(QUIET)], **compare)
    assert (same.slower, "no test is slower by more than 20 %" in same.lines) == ([], True)
    slower = plugin.finish([timed_by(QUIET, wall=0.015)], **compare)
    assert [(s.name, round(s.ratio, 6)) for s in slower.slower] == [("file.py::test_it", 1.5)]
    assert any(line.startswith("SLOWER file.py::test_it: +50.0 %") for line in slower.lines)
    by_id = stored.lines[-1].split()[2].rstrip(";")
    assert plugin.finish([timed_by(QUIET, wall=0.015)], **(compare | {"compare": by_id})).slower == slower.slower


def test_a_machine_that_spreads_widens_the_margin(tmp_path: Path) -> None:
    noisy = [timed_by(QUIET._replace(clock_s=c), name=f"test_{i}") for i, c in enumerate((1e-6, 1.3e-6, 1.6e-6))]
    plugin.finish(noisy, autosave=True, store=str(tmp_path), root=tmp_path)
    later = [timed_by(QUIET, wall=0.013, name=f"test_{i}") for i in range(3)]
    judged = plugin.finish(later, compare="last", compare_fail="5%", store=str(tmp_path), root=tmp_path)
    assert judged.slower == []
    assert any("and not 5 %: twice the spread of the canary" in line for line in judged.lines)


def test_a_slower_test_fails_the_session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ("--tritium-store", "kept")
    assert session(pytester, "--tritium-compare", "last", *kept).ret == pytest.ExitCode.USAGE_ERROR
    session(pytester, "--tritium-autosave", *kept).stdout.fnmatch_lines(
        ["stored as *; --tritium-compare last compares with it"]
    )
    monkeypatch.setattr(plugin.sessions, "slower", lambda *_: [plugin.sessions.Slow("test_sum", 1.5, 1.4, 1.6, 0.1)])
    failed = session(pytester, "--tritium-compare", "last", "--tritium-compare-fail", "10%", *kept)
    failed.assert_outcomes(passed=3)
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    failed.stdout.fnmatch_lines(["SLOWER test_sum: +50.0 % (+40.0 … +60.0 %), more than 10 %"])


def test_wrong_options_of_a_comparison_are_refused_before_anything_runs(pytester: pytest.Pytester) -> None:
    for options, words in (
        (["--tritium-compare-fail", "5%"], "needs --tritium-compare"),
        (["--tritium-compare", "no-such-baseline"], "no stored run of this project and no baseline"),
    ):
        refused = session(pytester, *options)
        assert refused.ret == pytest.ExitCode.USAGE_ERROR
        assert words in refused.stderr.str()

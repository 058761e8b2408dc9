"""The door of the pytest plugin: fixtures `tritium_bench` and `no_leaks`, options, and hooks for pytest-benchmark.

It lies outside of the package `tritium`, so that a pytest that asks for neither fixture does not import it: everybody's
pytest starts with this file where Tritium is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tritium.perf.plugin import Bench
    from tritium.see.memory.plugin import NoLeaks

BENCH: pytest.StashKey[Bench] = pytest.StashKey()
LEAKS: pytest.StashKey[NoLeaks] = pytest.StashKey()
RECORD = "tritium_run"  # the field of a report that brings a run from where it was measured
MARK = (
    "tritium_bench(group=None, budget_s=None): how the fixture tritium_bench measures a test: "
    "the group it is shown in, and the seconds it may take."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tritium", "measuring with the fixture tritium_bench")
    group.addoption("--tritium-json", metavar="FILE", help="Write what was measured as pytest-benchmark does.")
    group.addoption("--tritium-results", metavar="FILE", help="Write what was measured as a results file of tritium.")
    group.addoption(
        "--tritium-compare", metavar="RUN",
        help="Show the times beside earlier ones: a file (ours, or of pytest-benchmark), a baseline, a stored run, or last.",
    )  # fmt: skip
    group.addoption(
        "--tritium-compare-fail", metavar="SHARE",
        help="Fail if a test is slower than in --tritium-compare by more than this share, such as 0.1 or 10%%.",
    )  # fmt: skip
    group.addoption("--tritium-autosave", action="store_true", help="Store what was measured in the project's history.")
    group.addoption(
        "--tritium-store", metavar="DIR", help="Folder of that history; default: in the user's data folder."
    )
    group.addoption(
        "--tritium-budget", metavar="SECONDS", type=float, default=1.0, help="Seconds to measure a test; default 1."
    )
    group.addoption("--tritium-off", action="store_true", help="Call what would be measured once, and do not measure.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    budget, earlier = config.getoption("tritium_budget"), config.getoption("tritium_compare")
    if not 0 < budget < 1e6:
        raise pytest.UsageError(f"--tritium-budget is {budget:g}; seconds above 0 are needed.")
    if config.getoption("tritium_compare_fail") is not None and not earlier:
        raise pytest.UsageError("--tritium-compare-fail needs --tritium-compare: an earlier run to compare with.")
    if not hasattr(config, "workerinput"):  # the workers of xdist send reports; only their controller writes and prints
        config.pluginmanager.register(Gathered(config), "tritium_gathered")
        if earlier:
            _check_comparison(config, earlier)


def _check_comparison(config: pytest.Config, earlier: str) -> None:
    """Raise UsageError before anything is measured if there is no such run, or no such share."""
    from tritium.errors import TritiumError
    from tritium.perf.projects.sessions import earlier as earlier_session
    from tritium.perf.suites.config import fraction

    limit = config.getoption("tritium_compare_fail")
    try:
        if not Path(earlier).is_file():
            earlier_session(earlier, config.rootpath, config.getoption("tritium_store"))
        if limit is not None:
            fraction(limit, "--tritium-compare-fail")
    except TritiumError as error:
        raise pytest.UsageError(f"--tritium-compare: {error}") from None


@pytest.fixture
def tritium_bench(request: pytest.FixtureRequest) -> Bench:
    """Measures a call: `result = tritium_bench(function, *args, **kwargs)`. Call-compatible with pytest-benchmark's fixture."""
    from tritium.perf.plugin import Bench

    node, config = request.node, request.config
    mark = node.get_closest_marker("tritium_bench")
    about: dict[str, Any] = {"budget_s": config.getoption("tritium_budget"), "group": None}
    about |= {k: v for k, v in (mark.kwargs if mark else {}).items() if v is not None}
    spec = getattr(node, "callspec", None)
    bench = Bench(
        node.name, node.nodeid, param=spec.id if spec else None, params=spec.params if spec else None,
        disabled=config.getoption("tritium_off"), beside=getattr(config, "workerinput", {}).get("workercount", 1), **about,
    )  # fmt: skip
    node.stash[BENCH] = bench
    return bench


@pytest.fixture
def no_leaks(request: pytest.FixtureRequest) -> Iterator[NoLeaks]:
    """Fails a test that leaves tensors alive, and names op, line and size. `no_leaks.keep(x)`: x is meant to stay."""
    from tritium.see.memory.plugin import NoLeaks

    node = request.node
    tracker = node.stash[LEAKS] = NoLeaks(node.nodeid)
    with tracker:
        yield tracker
    del node.stash[LEAKS]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """After the test, while its fixtures live: what it made and nobody but they holds must be gone."""
    result = yield
    tracker = pyfuncitem.stash.get(LEAKS, None)
    if tracker is not None:
        held = [
            v for v in pyfuncitem.funcargs.values() if v is not tracker and not type(v).__module__.startswith("_pytest")
        ]
        if said := tracker.complaint(held):
            pytest.fail(said, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    bench = item.stash.get(BENCH, None)
    if bench is not None and bench.stats is not None and call.when == "call":
        why = "" if report.passed else "the test was skipped" if report.skipped else "the test failed"
        setattr(report, RECORD, bench.record(why))
    return report


class Gathered:
    """What was measured in a session, by this process or by the workers of xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.records: list[str] = []
        self.said: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if record := getattr(report, RECORD, None):
            self.records.append(record)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        names = ("json", "results", "compare", "compare_fail", "autosave", "store")
        options = {name: self.config.getoption(f"tritium_{name}") for name in names}
        if not self.records and not (options["json"] or options["results"]):
            return
        from tritium.errors import TritiumError
        from tritium.perf.plugin import finish

        try:
            self.said, slower = finish(self.records, **options, root=self.config.rootpath)
            if slower:
                session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        except (TritiumError, OSError) as error:
            self.said = [f"error: {error}"]
            session.exitstatus = session.exitstatus or pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.said:
            terminalreporter.section("tritium_bench")
            for line in self.said:
                terminalreporter.write_line(line)


# ---- for those who measure with pytest-benchmark


def _used() -> bool:
    """Whether the tests of this session used Tritium at all: who does not gets no field of ours."""
    return "tritium" in sys.modules


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    if _used():
        from tritium.perf.plugin import machine

        machine_info["tritium"] = machine()


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, benchmarks: Any, output_json: dict[str, Any]) -> None:
    if _used():
        from tritium.perf.plugin import surroundings

        output_json["tritium_environment"] = surroundings()

"""A suite over several machines: nothing is lost with a worker, contenders stay together, and kinds of machines stand side by side."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tritium as tt
from tritium.perf.gate.compare import compare_paired
from tritium.perf.records import json_io as records
from tritium.perf.records.case import Work
from tritium.perf.records.environment import Environment, this_environment
from tritium.perf.records.run import Results, Run, Series
from tritium.perf.store import results as store
from tritium.perf.suites import cluster, suites
from tritium.perf.work.canary import is_canary
from tritium.see.reports.inputs import Inputs
from tritium.see.reports.machine import environment as environment_section

OPTIONS = suites.options_of("compare", quick=True).changed(
    operations=("add", "exp", "tanh"), tensor_sizes=((8, 8),), peers=("numpy",), data_types=("f32",)
)


class Task:
    """A task that is done when the test says so."""

    def __init__(self, value: Callable[[], Any], *, at_once: bool) -> None:
        self.value, self.at_once, self.cancelled = value, at_once, False

    def done(self) -> bool:
        return self.at_once

    def result(self) -> Any:
        return self.value()

    def cancel(self) -> None:
        self.cancelled = True


class Machines:
    """A cluster of made-up machines: host by worker, kind by host; `losing` workers never finish and disappear."""

    def __init__(self, workers: dict[str, str], kinds: dict[str, str], losing: dict[str, int] | None = None) -> None:
        self.hosts, self.kinds, self.losing = dict(workers), kinds, dict(losing or {})
        self.asked: list[tuple[str, list[str]]] = []
        self.most_at_once = 0

    def workers(self) -> set[str]:
        for worker, polls in list(self.losing.items()):
            self.losing[worker] = polls - 1
            if polls <= 0:
                self.hosts.pop(worker, None)
        return set(self.hosts)

    def environment(self, host: str) -> Environment:
        ours = this_environment(1, limits=False)
        return replace(ours, hard=replace(ours.hard, cpu=self.kinds[host]))

    def submit(self, worker: str, fn: Callable[..., Any], *args: Any) -> Task:
        host = self.hosts[worker]
        if fn is cluster.look:
            return Task(lambda: {"host": host, "environment": records.plain(self.environment(host))}, at_once=True)
        _, cases = args
        self.asked.append((worker, cases))
        return Task(lambda: records.plain(self.results(host, cases)), at_once=worker not in self.losing)

    def results(self, host: str, cases: list[str]) -> Results:
        grid = suites.grid(OPTIONS)
        runs = []
        for case in grid.cases:
            for i, arm in enumerate(grid.arms):
                values = tuple(((0.001 * (1 + i),),) for _ in range(8))
                if case.name in cases:
                    runs.append(Run(case.name, arm.name, case.context, Work(), series=(Series("wall", "s", values),)))
        arms = tuple(arm.name for arm in grid.arms)
        return Results(
            "compare", "compare", "2026-01-01T00:00:00Z", "", OPTIONS.plan, self.environment(host), arms, tuple(runs)
        )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "POLL_S", 0.0)
    monkeypatch.setattr(cluster, "ALONE_S", 0.05)


def measured(machines: Machines, **options: Any) -> Results:
    return cluster.measure(OPTIONS, suites.grid(OPTIONS), machines, **options)


def outcomes(results: Results) -> dict[str, str]:
    """Return the verdict on the second contender's time in every case of the suite itself."""
    verdicts = compare_paired(results, *results.arms[:2]).verdicts
    return {v.case: v.outcome for v in verdicts if v.metric == "wall" and not is_canary(v.case)}


def test_machines_of_one_kind_share_the_cases_and_contenders_stay_together() -> None:
    machines = Machines({"w1": "a", "w2": "b"}, {"a": "fast", "b": "fast"})
    steps: list[tuple[int, int, str]] = []
    results = measured(machines, progress=lambda *step: steps.append(step))
    assert results.complete
    assert sorted(case for _, cases in machines.asked for case in cases) == sorted(results.cases)
    assert {worker for worker, _ in machines.asked} == {"w1", "w2"}
    assert {m.name: set(m.cases) for m in results.machines} == {
        host: {c for w, cases in machines.asked if machines.hosts[w] == host for c in cases} for host in "ab"
    }
    assert steps[-1][:2] == (3, 3)
    assert len(results.runs) == len(results.cases) * len(results.arms)


def test_what_a_lost_worker_had_is_measured_again_with_the_same_verdicts() -> None:
    without = measured(Machines({"w1": "a", "w2": "b"}, {"a": "fast", "b": "fast"}))
    results = measured(Machines({"w1": "a", "w2": "b"}, {"a": "fast", "b": "fast"}, losing={"w1": 3}))
    assert set(results.cases) == set(without.cases)
    assert any("a worker on a was lost; measured again" in note for note in results.notes)
    assert outcomes(results) == outcomes(without)
    assert [m.name for m in results.machines] == ["b"]


def test_a_host_with_several_workers_measures_one_thing_at_a_time() -> None:
    machines = Machines({"w1": "a", "w2": "a"}, {"a": "fast"})
    results = measured(machines)
    assert results.complete
    assert len(machines.asked) == 3  # one after the other: the first worker that is free takes the next


def test_unlike_machines_measure_all_cases_side_by_side() -> None:
    results = measured(Machines({"w1": "a", "w2": "b"}, {"a": "fast", "b": "slow"}))
    assert len(results.cases) == 6
    assert {case.rpartition(" @ ")[2] for case in results.cases} == {"a", "b"}
    section = environment_section(Inputs(results))
    heads = [block.heads for block in section.blocks if hasattr(block, "heads")]
    assert ("fact", "a", "b") in heads
    again = store._loaded(store._text(records.plain(results)).encode(), "these")[0]
    assert again.machines == results.machines


def test_it_resumes_from_its_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    first = measured(Machines({"w1": "a"}, {"a": "fast"}), journal=journal)
    resumed = replace(OPTIONS, resume=True)
    lines = journal.read_bytes().splitlines(keepends=True)
    first_chunk = next(i for i, line in enumerate(lines) if b'"cases"' in line)
    journal.write_bytes(b"".join(lines[: first_chunk + 1]))  # as if it had been interrupted after it
    machines = Machines({"w1": "a"}, {"a": "fast"})
    results = cluster.measure(resumed, suites.grid(OPTIONS), machines, journal=journal)
    assert len(machines.asked) == 2
    assert set(results.cases) == set(first.cases)
    other = resumed.changed(generations=3)
    with pytest.raises(tt.errors.ArgumentError, match="the journal is of another plan"):
        cluster.measure(other, suites.grid(OPTIONS), machines, journal=journal)


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    def interrupt(*step: Any) -> None:
        raise KeyboardInterrupt

    machines = Machines({"w1": "a"}, {"a": "fast"})
    results = measured(machines, progress=interrupt, journal=tmp_path / "journal")
    assert (results.complete, len(results.cases)) == (False, 1)
    assert "interrupted; 1 measured case is kept" in results.notes
    resumed = cluster.measure(
        replace(OPTIONS, resume=True), suites.grid(OPTIONS), machines, journal=tmp_path / "journal"
    )
    assert (resumed.complete, len(resumed.cases), len(machines.asked)) == (True, 3, 3)


def test_a_function_runs_once_on_each_machine() -> None:
    class Each(Machines):
        def submit(self, worker: str, fn: Callable[..., Any], *args: Any) -> Task:
            host = self.hosts[worker]
            return Task(lambda: fn(host) if args else host, at_once=True)

    machines = Each({"w1": "a", "w2": "a", "w3": "b"}, {"a": "fast", "b": "fast"})
    assert cluster.on_each_machine(machines, str.upper, 1) == {"a": "A", "b": "B"}


def test_without_workers_it_ends_with_what_it_has() -> None:
    with pytest.raises(tt.errors.ClusterError, match="nothing was measured"):
        measured(Machines({"w1": "a"}, {"a": "fast"}, losing={"w1": 4}))


def test_workers_with_another_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = Machines({"w1": "a"}, {"a": "fast"})
    ours = machines.environment("a")
    monkeypatch.setattr(machines, "environment", lambda host: replace(ours, tritium="0.0.1"))
    with pytest.raises(
        tt.errors.ClusterError, match=r"'a' has tritium 0\.0\.1.*Install the same version on all machines"
    ):
        measured(machines)


@pytest.mark.parametrize("address", ["local:0", "local:x", "host:8786", ""])
def test_addresses_that_mean_nothing_are_refused(address: str) -> None:
    pytest.importorskip("distributed", reason="Dask's distributed is not installed")
    with pytest.raises(tt.errors.ArgumentError, match="--on"), cluster.connected(address):
        pass


@pytest.mark.skipif(os.environ.get("TRITIUM_LONG") != "1", reason="TRITIUM_LONG=1 runs it")
def test_a_killed_worker_of_dask_loses_nothing_and_changes_no_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("distributed", reason="Dask's distributed is not installed")
    monkeypatch.setattr(cluster, "ALONE_S", 60.0)
    monkeypatch.setattr(cluster, "POLL_S", 0.1)
    options = OPTIONS.changed(operations=("softmax", "gelu"), tensor_sizes=((256, 256),), generations=12)
    with cluster.connected("local:2") as machines:
        without = cluster.measure(options, suites.grid(options), machines)
    with cluster.connected("local:2") as machines:
        pids: dict[str, int] = {}

        class Killing:
            """Kills the worker that got the first chunk, which it would not finish."""

            def workers(self) -> set[str]:
                return machines.workers()

            def submit(self, worker: str, fn: Callable[..., Any], *args: Any) -> Any:
                if fn is not cluster.measure_cases or pids:
                    return machines.submit(worker, fn, *args)
                pids[worker] = machines.submit(worker, os.getpid).result()
                task = machines.submit(worker, time.sleep, 600)
                os.kill(pids[worker], signal.SIGKILL)
                return task

        results = cluster.measure(options, suites.grid(options), Killing(), journal=tmp_path / "journal")
    assert results.complete
    assert pids
    assert len(results.cases) - 2 == len(suites.grid(options).cases)  # and two canaries
    assert all(run.status == "ok" for run in results)
    assert any("was lost; measured again" in note for note in results.notes)
    # NumPy takes several times as long for both, so that the verdicts are those of any two runs.
    assert outcomes(results) == outcomes(without)
    assert set(outcomes(results).values()) == {"SLOWER"}


def test_commands_refuse_what_a_cluster_cannot_do(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from tritium.cli.bench import compare
    from tritium.cli.tune import tune

    own = tmp_path / "own.py"
    own.write_text("")
    refused = CliRunner().invoke(compare, ["--on", "local:1", "--load", str(own)])
    assert (refused.exit_code, "--on measures what every machine has" in refused.output) == (2, True)
    refused = CliRunner().invoke(tune, ["--on", "local:1", "--list"])
    assert (refused.exit_code, "--list is for this machine; leave --on out" in refused.output) == (2, True)

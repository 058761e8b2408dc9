"""A suite on the machines of a Dask cluster: which machine measures which cases, and one result of them all.

All contenders of a case are measured on one machine, by the engine that measures here. Machines of one kind share the cases; machines of
different kinds measure all of them, and their cases are named after them. One measurement runs on a machine at a time, however many
workers it has. What a worker was measuring when it was lost is measured again by another one.

    with connected("local:2") as cluster:
        results = measure(options, grid, cluster)
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from tritium.errors import ArgumentError, ClusterError, imported, shown
from tritium.machine.facts import digest, usable_threads
from tritium.perf.amounts import many
from tritium.perf.engine.measuring import Progress
from tritium.perf.records import json_io as records
from tritium.perf.records.environment import Environment, command_line, this_environment
from tritium.perf.records.run import Machine, Results, Run
from tritium.perf.store import results as store
from tritium.perf.suites import suites
from tritium.perf.suites.config import Options
from tritium.perf.suites.suites import Grid
from tritium.perf.work.canary import is_canary

LOCAL = "local:"
ERROR = 40  # the level of logging below which local workers are silent
MOST_LOCAL = 64  # workers on this machine
START_S = 60.0  # to reach a scheduler, and for a first worker
ALONE_S = 30.0  # without any worker: the run ends with what it has
POLL_S = 0.1
CHUNKS = 4  # for each machine: a lost one costs a part of its cases
MOST_LOST = 3  # workers that one chunk may lose before it is given up


class Task(Protocol):
    """A function that a worker runs."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...
    def cancel(self) -> Any: ...


class Cluster(Protocol):
    """Workers by their addresses, each of which runs a function at a time."""

    def workers(self) -> set[str]: ...
    def submit(self, worker: str, fn: Callable[..., Any], *args: Any) -> Task: ...


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a scheduler, tcp://host:port or tls://host:port, or start workers on this machine: local:N."""
    distributed = imported("--on", "distributed")
    count = _local_workers(address)
    with suppress(ValueError):  # of signals: a client that is closed by Ctrl-C
        try:
            if count:
                options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": ERROR}
                cluster = distributed.LocalCluster(n_workers=count, **options)
                client = distributed.Client(cluster)
            else:
                cluster, client = None, distributed.Client(address, timeout=START_S)
        except (OSError, TimeoutError, ValueError) as error:
            raise ClusterError(
                f"--on {shown(address)}: no scheduler answers there ({error}). Start one: dask scheduler."
            ) from None
        try:
            yield _Dask(client)
        finally:
            client.close(timeout=5)
            if cluster is not None:
                cluster.close(timeout=5)


def _local_workers(address: str) -> int:
    """Return the number of workers of local:N; 0 for an address."""
    if not address.startswith(LOCAL):
        if "://" not in address:
            raise ArgumentError(
                f"--on {shown(address)}: an address tcp://host:port of a Dask scheduler is needed, or local:N."
            )
        return 0
    number = address.removeprefix(LOCAL)
    if not number.isdecimal() or not 1 <= int(number) <= MOST_LOCAL:
        raise ArgumentError(f"--on {shown(address)}: local:N needs a number of workers from 1 to {MOST_LOCAL}.")
    return int(number)


class _Dask:
    """The workers of a Dask client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def workers(self) -> set[str]:
        return set(self._client.scheduler_info(n_workers=-1)["workers"])

    def submit(self, worker: str, fn: Callable[..., Any], *args: Any) -> Task:
        task: Task = self._client.submit(fn, *args, workers=[worker], allow_other_workers=False, pure=False, retries=0)
        return task


# ---- on a worker


def look() -> dict[str, Any]:
    """Return what this machine is, as plain JSON."""
    threads = usable_threads()
    return {"host": socket.gethostname(), "environment": records.plain(this_environment(threads, limits=False))}


def measure_cases(options: Options, cases: list[str]) -> dict[str, Any]:
    """Measure cases of a suite here, with the contenders that are here; return the results as plain JSON."""
    grid = suites.grid(options)
    chosen = [case for case in grid.cases if case.name in cases]
    if len(chosen) != len(cases):
        missing = next(name for name in cases if name not in {case.name for case in chosen})
        raise ArgumentError(f"the suite {options.suite} has no case {missing!r} on {socket.gethostname()}.")
    if (budget_s := options.plan.budget_s) is not None:
        options = options.changed(budget_s=budget_s * len(chosen) / len(grid.cases))
    plain: dict[str, Any] = records.plain(suites.measure(options, replace(grid, cases=tuple(chosen))))
    return plain


# ---- here


@dataclass
class Chunk:
    """Cases that one machine of a kind measures at a stretch."""

    kind: str
    cases: list[str]
    lost: int = 0  # workers that were lost with it


@dataclass
class _Worker:
    host: str
    kind: str
    environment: Environment
    chunk: Chunk | None = None
    task: Task | None = None


@dataclass
class _Sweep:
    """The state of one measurement over several machines."""

    options: Options
    grid: Grid
    cluster: Cluster
    progress: Progress | None
    log: store.Journal | None
    waiting: list[Chunk] = field(default_factory=list)
    done: list[tuple[str, str, Results]] = field(default_factory=list)  # kind, host, results
    workers: dict[str, _Worker] = field(default_factory=dict)
    looks: dict[str, Task] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    def run(self) -> bool:
        """Measure everything; return True if nothing is left."""
        alone = began = time.monotonic()
        while True:
            present = self.cluster.workers()
            self._meet(present)
            self._collect(present)
            busy = {w.host for w in self.workers.values() if w.task is not None}
            for address, worker in self.workers.items():
                if worker.task is None and worker.host not in busy and (chunk := self._next(worker.kind)):
                    busy.add(worker.host)
                    worker.chunk, worker.task = (
                        chunk,
                        self.cluster.submit(address, measure_cases, self.options, chunk.cases),
                    )
            if self.workers and not self.waiting and not busy and not self.looks:
                return True
            now = time.monotonic()
            alone = now if busy or self.looks else alone
            if now - alone > (ALONE_S if self.workers or self.kinds else START_S) and now - began > ALONE_S:
                cases = sum(len(chunk.cases) for chunk in self.waiting)
                self.notes.append(f"no worker is left for {cases} cases; --resume measures them when there is one")
                return False
            time.sleep(POLL_S)

    def _meet(self, present: set[str]) -> None:
        """Ask new workers what they are; a kind of machine that is new has all cases to measure."""
        for address in sorted(present - set(self.workers) - set(self.looks)):
            self.looks[address] = self.cluster.submit(address, look)
        for address, task in list(self.looks.items()):
            if address not in present:
                task.cancel()
                del self.looks[address]
            elif task.done():
                del self.looks[address]
                facts = task.result()
                environment = records.read(Environment, facts["environment"], f"the facts of {address}")
                self._check_version(environment, facts["host"])
                kind = environment.hard.key
                self.workers[address] = _Worker(facts["host"], kind, environment)
                if kind not in self.kinds:
                    self.kinds.append(kind)
                    self._divide(kind)

    def _check_version(self, environment: Environment, host: str) -> None:
        ours = this_environment(1, limits=False)
        if (environment.tritium, environment.commit) != (ours.tritium, ours.commit):
            raise ClusterError(
                f"{shown(host)} has tritium {environment.tritium} {environment.commit[:12]}, and this machine {ours.tritium} "
                f"{ours.commit[:12]}: results of both would not be of one program. Install the same version on all machines."
            )

    def _divide(self, kind: str) -> None:
        measured = {case for k, _, results in self.done if k == kind for case in results.cases}
        names = [case.name for case in self.grid.cases if case.name not in measured]
        size = -(-len(names) // CHUNKS)
        self.waiting += [Chunk(kind, names[i : i + size]) for i in range(0, len(names), max(size, 1))]

    def _next(self, kind: str) -> Chunk | None:
        index = next((i for i, chunk in enumerate(self.waiting) if chunk.kind == kind), None)
        return None if index is None else self.waiting.pop(index)

    def _collect(self, present: set[str]) -> None:
        """Keep what is done; what a lost worker had is waiting again."""
        for address, worker in list(self.workers.items()):
            if worker.task is not None and worker.task.done() and address in present:
                self._finished(worker)
            elif address not in present:
                self._lost(address, worker)

    def _lost(self, address: str, worker: _Worker) -> None:
        del self.workers[address]
        if worker.task is None or worker.chunk is None:
            return
        worker.task.cancel()
        worker.chunk.lost += 1
        listed = ", ".join(worker.chunk.cases[:3]) + (" …" if len(worker.chunk.cases) > 3 else "")
        self.notes.append(f"a worker on {worker.host} was lost; measured again: {listed}")
        if worker.chunk.lost >= MOST_LOST:
            raise ClusterError(
                f"{worker.chunk.lost} workers were lost while they measured {listed}: it may be the reason."
            )
        self.waiting.insert(0, worker.chunk)

    def _finished(self, worker: _Worker) -> None:
        task, chunk, worker.task, worker.chunk = worker.task, worker.chunk, None, None
        assert task is not None
        assert chunk is not None
        results = records.read(Results, task.result(), f"the results of {worker.host}")
        self.done.append((worker.kind, worker.host, results))
        if self.log is not None:
            cell = {"kind": worker.kind, "host": worker.host, "results": records.plain(results)}
            self.log.append({"what": "cases", **cell})
        if self.progress is not None:
            whole = len(self.grid.cases) * len(self.kinds)
            self.progress(len(_cases(self.done)), whole, f"{chunk.cases[-1]} ({worker.host})")

    def stop(self) -> None:
        """Cancel what is under way."""
        for task in [*self.looks.values(), *(w.task for w in self.workers.values() if w.task is not None)]:
            task.cancel()


def _cases(done: list[tuple[str, str, Results]]) -> list[str]:
    """Return the cases of results, without canaries."""
    return [case for _, _, results in done for case in results.cases if not is_canary(case)]


def _count(done: list[tuple[str, str, Results]]) -> str:
    return many(len(_cases(done)), "measured case")


def measure(
    options: Options, grid: Grid, cluster: Cluster, *, progress: Progress | None = None, journal: Path | None = None
) -> Results:
    """Measure a grid on the workers of a cluster; with a journal it can be interrupted and resumed."""
    began, created = time.monotonic(), records.utc_now()
    log, done = _opened(options, grid, journal)
    sweep = _Sweep(options, grid, cluster, progress, log, done=done, notes=list(grid.notes))
    if done:
        sweep.notes.append(f"resumed with {_count(done)}")
    try:
        complete = sweep.run()
    except KeyboardInterrupt:
        complete = False
        sweep.notes.append(f"interrupted; {_count(sweep.done)} {'is' if len(_cases(sweep.done)) == 1 else 'are'} kept")
    finally:
        sweep.stop()
        if log is not None:
            log.close()
    if not sweep.done:
        raise ClusterError(
            "nothing was measured: " + (sweep.notes[-1] if sweep.notes else "the cluster has no workers") + "."
        )
    return merged(sweep.done, replace(_empty(options, sweep.done), created=created, notes=tuple(dict.fromkeys(sweep.notes)),
                  complete=complete, elapsed_s=round(time.monotonic() - began, 3)))  # fmt: skip


def _opened(
    options: Options, grid: Grid, path: Path | None
) -> tuple[store.Journal | None, list[tuple[str, str, Results]]]:
    """Return the journal and what it holds already."""
    if path is None:
        return None, []
    settings = [records.plain(x) for x in (options.plan, options.config, grid.cases)]
    key = digest([options.suite, settings, [arm.name for arm in grid.arms], this_environment(1, limits=False).commit])
    if options.resume and path.exists():
        entries, _ = store.Journal.read(path)
        if not entries or entries[0].get("key") != key:
            raise ArgumentError(
                f"{path}: the journal is of another plan, suite or version; resume with the same arguments, or delete it."
            )
        cells = [e for e in entries if e.get("what") == "cases"]
        done = [(e["kind"], e["host"], records.read(Results, e["results"], f"{path}")) for e in cells]
        return store.Journal(path), done
    log = store.Journal(path, truncate=True)
    log.append({"what": "sweep", "key": key})
    return log, []


def on_each_machine(cluster: Cluster, fn: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Return what a function returns on every machine, by host; a machine whose workers are all lost is left out."""
    results: dict[str, Any] = {}
    while left := {a: cluster.submit(a, socket.gethostname) for a in sorted(cluster.workers())}:
        hosts: dict[str, str] = {}
        for address, task in left.items():
            if _waited(cluster, address, task):
                hosts.setdefault(task.result(), address)
        new = {host: address for host, address in hosts.items() if host not in results}
        if not new:
            break
        tasks = {host: (address, cluster.submit(address, fn, *args)) for host, address in new.items()}
        results |= {host: task.result() for host, (address, task) in tasks.items() if _waited(cluster, address, task)}
    return results


def _waited(cluster: Cluster, worker: str, task: Task) -> bool:
    """Wait until a task is done; return False if its worker was lost."""
    while not task.done():
        if worker not in cluster.workers():
            task.cancel()
            return False
        time.sleep(POLL_S)
    return worker in cluster.workers()


# ---- one result


def _empty(options: Options, done: list[tuple[str, str, Results]]) -> Results:
    first = done[0][2]
    arms = tuple(dict.fromkeys(arm for _, _, results in done for arm in results.arms))
    return replace(first, kind=options.kind, suite=options.suite, command=command_line(), arms=arms, runs=())


def merged(done: list[tuple[str, str, Results]], whole: Results) -> Results:
    """Return one result of all machines; where they are of several kinds, cases are named after the machine."""
    kinds = list(dict.fromkeys(kind for kind, _, _ in done))
    names = {kind: next(host for k, host, _ in done if k == kind) for kind in kinds}
    runs: dict[tuple[str, str], Run] = {}
    for kind, _, results in done:
        for run in results:
            # Canaries were measured beside every chunk; those of the first stand for a kind of machine.
            case = (
                run.case
                if len(kinds) == 1 or (is_canary(run.case) and kind == kinds[0])
                else f"{run.case} @ {names[kind]}"
            )
            runs.setdefault((case, run.arm), replace(run, case=case))
    machines = [
        Machine(host, results.environment, tuple(c for c in results.cases if not is_canary(c)))
        for _, host, results in done
    ]
    by_host: dict[str, Machine] = {}
    for m in machines:
        known = by_host.get(m.name)
        by_host[m.name] = m if known is None else replace(known, cases=(*known.cases, *m.cases))
    notes = tuple(note for _, _, results in done for note in results.notes)
    return replace(
        whole, environment=done[0][2].environment, runs=tuple(runs.values()), machines=tuple(by_host.values()),
        notes=tuple(dict.fromkeys((*whole.notes, *notes))),
    )  # fmt: skip

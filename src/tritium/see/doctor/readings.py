"""What a machine tells of itself when it is asked: every reading once, each a value or absent with the reason.

Knows nothing of what is good or bad. Readings are taken when a check first asks for one; those that take time (a second of
watching, two products, a race) are taken once for all.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal

from tritium import buffer, settings
from tritium.backends import device
from tritium.machine import tuned
from tritium.machine.ceilings import ceilings
from tritium.machine.facts import this_machine
from tritium.perf.meters.absent import Absent
from tritium.perf.meters.nvidia import nvidia
from tritium.perf.meters.sensors import CGROUPS, PROC, SYS, Thermal, busy_s, groups, number, text, thermal
from tritium.perf.records.case import THREADS
from tritium.perf.records.environment import this_environment
from tritium.perf.work.canary import clock
from tritium.threads import get_num_threads

WATCH_S = 1.0
PRODUCT = 512
PRODUCT_S = 0.2

Reader = Callable[["Readings"], Any]


class Readings:
    """Readings by name, each taken when it is first asked for; one that fails is absent."""

    def __init__(self, readers: Mapping[str, Reader]) -> None:
        self._readers = dict(readers)
        self._taken: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._taken:
            try:
                self._taken[name] = self._readers[name](self)
            except Exception as error:  # a look that fails must not end all others: it says why there is nothing to see
                settings.log.debug("doctor: %s could not be read", name, exc_info=True)
                self._taken[name] = Absent("unsupported", f"it could not be read: {type(error).__name__}: {error}")
        return self._taken[name]


# ---- what readings are made of


@dataclass(frozen=True)
class Watch:
    """A second in which this process did nothing but a fixed piece of arithmetic."""

    seconds: float
    load: float
    switches: int  # how often the system put this process aside
    busy: float | None  # CPUs that other processes used
    stolen: float | None  # share of all CPU time
    looks: tuple[float, ...]  # seconds of the piece of arithmetic
    before: Thermal = field(default_factory=Thermal)
    after: Thermal = field(default_factory=Thermal)


@dataclass(frozen=True)
class Siblings:
    """Which CPUs share a core."""

    cpus: int  # that this process may use
    groups: tuple[tuple[int, ...], ...]  # ours, by core
    outside: tuple[int, ...]  # not ours, but of our cores

    @property
    def shared(self) -> tuple[tuple[int, ...], ...]:
        return tuple(g for g in self.groups if len(g) > 1)


@dataclass(frozen=True)
class Threads:
    """How many threads there are to be, and who says so."""

    now: int
    usable: int
    variables: Mapping[str, str]
    pools: tuple[tuple[str, int], ...]  # other libraries in this process


@dataclass(frozen=True)
class Native:
    absence: str  # "" where the native library is there
    asked: bool  # TRITIUM_PURE


@dataclass(frozen=True)
class Isa:
    now: str
    known: tuple[str, ...]  # narrow to wide
    asked: str  # TRITIUM_ISA
    rejected: str  # what it asked for in vain


@dataclass(frozen=True)
class Blas:
    name: str
    absent: str = ""  # how to get one


@dataclass(frozen=True)
class Product:
    """One dense product, by us and by NumPy: GFLOP/s."""

    size: int
    ours: float
    numpy: float
    numpy_blas: str
    slower: float  # times as long as NumPy's, at least, by the intervals of both
    peak: float | None  # FLOP/s this machine can do, where that was measured


@dataclass(frozen=True)
class TunedFile:
    state: Literal["absent", "void", "kept"]
    why: str = ""
    choices: int = 0
    followed: str = "exact"  # none, exact, all
    last: str = ""  # the day of the last race
    age_days: int | None = None


@dataclass(frozen=True)
class Gpu:
    name: str
    slowed: tuple[str, ...]
    others: str


# ---- the machine


def governors(root: Path = SYS) -> dict[str, int] | Absent:
    """How many CPUs each governor drives."""
    files = (root / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = Counter(name for name in map(text, files) if name)
    return dict(found) or Absent("unsupported", "this system shows no CPU governor (virtual machines often do not)")


def turbo(root: Path = SYS) -> bool | Absent:
    cpus = root / "devices/system/cpu"
    off, boost = number(cpus / "intel_pstate/no_turbo"), number(cpus / "cpufreq/boost")
    if off is not None:
        return off == 0
    return boost == 1 if boost is not None else Absent("unsupported", "this system does not tell whether turbo is on")


def steal_s(proc: Path = PROC) -> float | None:
    """Seconds the hypervisor took from all CPUs since the start; None where the system does not tell."""
    first = text(proc / "stat").partition("\n")[0].split()
    return int(first[8]) / os.sysconf("SC_CLK_TCK") if len(first) > 8 and first[0] == "cpu" else None


def watch(root: Path = SYS, proc: Path = PROC, seconds: float = WATCH_S) -> Watch:
    """Look at the clock again and again for a second, and at what the machine did meanwhile."""
    look, cpus = clock(), os.cpu_count() or 1
    before, busy, stolen = thermal(root), busy_s(proc), steal_s(proc)
    switches, own, start = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw, process_time(), perf_counter()
    looks: list[float] = []
    while (spent := perf_counter() - start) < seconds or not looks:
        looks.append(look())
    own = process_time() - own
    busy_now, stolen_now = busy_s(proc), steal_s(proc)
    return Watch(
        seconds=spent,
        load=os.getloadavg()[0],
        switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches,
        busy=None if busy is None or busy_now is None else max(0.0, (busy_now - busy - own) / spent),
        stolen=None if stolen is None or stolen_now is None else (stolen_now - stolen) / spent / cpus,
        looks=tuple(looks),
        before=before,
        after=thermal(root),
    )


def _of_watch(name: str, why: str) -> Reader:
    def read(of: Readings) -> Any:
        seen = of["watch"]
        value = seen if isinstance(seen, Absent) else getattr(seen, name)
        return Absent("unsupported", why) if value is None else value

    return read


def _heat(name: str) -> Reader:
    def read(of: Readings) -> Any:
        seen = of["watch"]
        if isinstance(seen, Absent):
            return seen
        found: Thermal = getattr(seen, name)
        nothing = found.temperature_c is None and found.throttle_events is None
        return (
            Absent("no_device", "no temperature sensor and no count of slow-downs is shown here") if nothing else found
        )

    return read


def quota(proc: Path = PROC, mount: Path = CGROUPS) -> float | Absent | None:
    """CPUs the cgroups allow; None: as many as there are."""
    if not (proc / "self/cgroup").exists():
        return Absent("unsupported", "this system has no cgroups")
    folders, unified = groups("cpu", proc, mount)
    least: float | None = None
    for folder in folders:
        if unified:
            allowed, _, period = text(folder / "cpu.max").partition(" ")
        else:
            allowed, period = text(folder / "cpu.cfs_quota_us"), text(folder / "cpu.cfs_period_us")
        if allowed.isdigit() and period.isdigit() and int(allowed) > 0 and int(period) > 0:
            cpus = int(allowed) / int(period)
            least = cpus if least is None else min(least, cpus)
    return least


def throttled(proc: Path = PROC, mount: Path = CGROUPS) -> int:
    """Periods in which a cgroup of ours had used up its quota, so far."""
    for folder in groups("cpu", proc, mount)[0]:
        told = dict(line.split(" ", 1) for line in text(folder / "cpu.stat").splitlines() if " " in line)
        if told.get("nr_throttled", "").isdigit():
            return int(told["nr_throttled"])
    return 0


def siblings(root: Path = SYS, allowed: frozenset[int] | None = None) -> Siblings | Absent:
    """Which CPUs are threads of one core."""
    if allowed is None:
        allowed = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
    cores: dict[tuple[str, str], list[int]] = {}
    for folder in (root / "devices/system/cpu").glob("cpu[0-9]*/topology"):
        core = text(folder / "physical_package_id"), text(folder / "core_id")
        cpu = folder.parent.name.removeprefix("cpu")
        if core[1] and cpu.isdigit():
            cores.setdefault(core, []).append(int(cpu))
    ours = [tuple(sorted(allowed & set(cpus))) for cpus in cores.values()]
    if not any(ours):
        return Absent("unsupported", "this system does not tell which CPUs share a core")
    outside = [cpu for cpus in cores.values() if allowed & set(cpus) for cpu in set(cpus) - allowed]
    return Siblings(len(allowed), tuple(sorted(g for g in ours if g)), tuple(sorted(outside)))


def _environment(of: Readings) -> Any:
    return this_environment(get_num_threads(), limits=False)


def _power(of: Readings) -> Any:
    return of["environment"].power_source or Absent("no_device", "the system shows no power supply")


def _virtual(of: Readings) -> Any:
    if not sys.platform.startswith("linux"):
        return Absent("unsupported", "this system does not tell whether it is a virtual machine")
    return of["environment"].virtual


def _noise(of: Readings) -> Any:
    from tritium.perf.gate.noise import noise_floor

    return noise_floor()


def _pressure(of: Readings) -> Any:
    from tritium.see.memory.pressure import pressure

    found = pressure("cpu")
    return found if found.limit else Absent("unsupported", found.evidence.removeprefix("not measured: "))


def gpus(of: Readings) -> Any:
    found = nvidia()
    here = [s for s in found if not isinstance(s, Absent)]
    if not here:
        return found[0]
    states = [(s, s.state() if s.state else Thermal()) for s in here]
    return tuple(Gpu(s.domain, state.slowed or (), s.others() if s.others else "") for s, state in states)


# ---- Tritium


def _native(of: Readings) -> Native:
    return Native("" if buffer.native is not None else buffer.native_absence, settings.pure())


def isa(of: Readings) -> Isa | Absent:
    native = buffer.native
    if native is None:
        return Absent("unsupported", f"there is no native library: {buffer.native_absence}")
    return Isa(native.isa(), tuple(native.isas()), os.environ.get("TRITIUM_ISA", ""), native.isa_rejected() or "")


def blas(of: Readings) -> Blas:
    _ = device("cpu").backend  # whoever is asked first loads it
    if buffer.native is None:
        return Blas(f"NumPy's: {numpy_blas()}")
    found = buffer.native.blas_info()
    if found["vendor"] == "none":
        return Blas("", "pip install scipy-openblas32")
    return Blas(f"{found['vendor']} {found['config']}".strip())


def numpy_blas() -> str:
    """The BLAS that NumPy says it was built with."""
    import numpy as np

    try:
        told: Any = np.show_config(mode="dicts")
        return str(told["Build Dependencies"]["blas"]["name"])
    except (KeyError, TypeError):
        return "it does not tell which"


def product(of: Readings) -> Product:
    """The same product by Tritium and by NumPy, timed here and now."""
    from tritium.perf.engine import worker
    from tritium.perf.suites import quick
    from tritium.perf.work.recipes import grid

    (case,) = grid(["matmul"], [(PRODUCT, PRODUCT)])
    ours, theirs = (
        quick.measured(case, worker.resolve(case.recipe.target)(name, **case.recipe.arguments), seconds=PRODUCT_S)
        for name in ("tritium", "numpy")
    )
    kept = of["ceilings"]
    row = (
        None if kept is None or isinstance(kept, Absent) else kept.peak("f32", min(get_num_threads(), kept.threads[-1]))
    )
    return Product(
        PRODUCT,
        ours.gflops,
        theirs.gflops,
        numpy_blas(),
        ours.interval[0] / theirs.interval[1],
        row.best if row is not None else None,
    )


def threads(of: Readings) -> Threads:
    import threadpoolctl

    pools = [
        (f"{p['internal_api']} ({p['prefix']})", int(p["num_threads"]))
        for p in threadpoolctl.threadpool_info()
        if p["internal_api"] != "tritium"
    ]
    said = {name: os.environ[name] for name in THREADS if name in os.environ}
    return Threads(get_num_threads(), this_machine().usable, said, tuple(pools))


def kept_ceilings(of: Readings) -> Any:
    """What is kept of this machine; None where nothing was ever measured. Nothing is measured here."""
    file = settings.cache_dir() / f"ceilings-{this_machine().key}.json"
    return ceilings(quick=True) if file.exists() else None


def tuned_file(of: Readings) -> TunedFile:
    machine = this_machine()
    path = tuned.path(machine)
    if not path.exists():
        return TunedFile("absent")
    try:
        body = tuned.checked(json.loads(path.read_bytes()), machine)
        days = [datetime.fromisoformat(t["created"]) for t in body["tunings"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return TunedFile("void", f"{path.name}: {error}")
    last = max(days, default=None)
    age = None if last is None else (datetime.now(UTC) - last).days
    return TunedFile("kept", "", len(body["choices"]), settings.tuned(), f"{last:%Y-%m-%d}" if last else "", age)


def drift(of: Readings) -> Any:
    """The first kept race of the runtime, run again."""
    from tritium.perf.tune import choices as tune_choices, racing as tune

    state = of["tuned"]
    if isinstance(state, Absent) or state.state != "kept":
        return Absent("unsupported", "nothing that was tuned here can be raced again")
    for race in tune_choices.races(quick=True):
        if not race.absent and tune.latest(race.op, race.shape, race.dtype, race.device) is not None:
            return tuple(tune_choices.revalidate([race.op], quick=True))
    return Absent("unsupported", "no race of the runtime's own is kept")


READERS: dict[str, Reader] = {
    "environment": _environment,
    "cpus": lambda of: os.cpu_count() or 1,
    "governor": lambda of: governors(),
    "turbo": lambda of: turbo(),
    "watch": lambda of: watch(),
    "stolen": _of_watch("stolen", "this system does not tell what a hypervisor takes"),
    "others": _of_watch("busy", "this system does not tell what other processes use"),
    "looks": _of_watch("looks", "nobody looked"),
    "heat before": _heat("before"),
    "heat after": _heat("after"),
    "quota": lambda of: quota(),
    "throttled": lambda of: throttled(),
    "siblings": lambda of: siblings(),
    "power": _power,
    "virtual": _virtual,
    "noise": _noise,
    "pressure": _pressure,
    "gpus": gpus,
    "native": _native,
    "isa": isa,
    "blas": blas,
    "product": product,
    "threads": threads,
    "ceilings": kept_ceilings,
    "tuned": tuned_file,
    "drift": drift,
}

"""Readings of the machine and of the setup of Tritium: each a value, or absent with the reason.

A reading is taken when a check first needs it, and only once: some take time (a second of timing, two matrix
products, a tuning race).
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
from tritium.backends.cpu.device import faster_unbuilt
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
    """Readings by name, each taken on first access; one whose reader raises is absent."""

    def __init__(self, readers: Mapping[str, Reader]) -> None:
        self._readers = dict(readers)
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            try:
                self._values[name] = self._readers[name](self)
            except Exception as error:  # one failing reader must not end the other checks; the reason is shown
                settings.log.debug("doctor: %s could not be read", name, exc_info=True)
                self._values[name] = Absent("unsupported", f"it could not be read: {type(error).__name__}: {error}")
        return self._values[name]


# ---- types of readings


@dataclass(frozen=True)
class Watch:
    """State of the machine during a second in which this process only ran a fixed piece of arithmetic."""

    seconds: float
    load: float
    switches: int  # involuntary context switches of this process
    busy: float | None  # CPUs that other processes used
    stolen: float | None  # share of all CPU time
    timings: tuple[float, ...]  # seconds of each run of the arithmetic
    before: Thermal = field(default_factory=Thermal)
    after: Thermal = field(default_factory=Thermal)


@dataclass(frozen=True)
class Siblings:
    """CPUs grouped by the core they share."""

    cpus: int  # CPUs this process may use
    groups: tuple[tuple[int, ...], ...]  # CPUs of this process, by core
    outside: tuple[int, ...]  # other CPUs on the same cores

    @property
    def shared(self) -> tuple[tuple[int, ...], ...]:
        return tuple(g for g in self.groups if len(g) > 1)


@dataclass(frozen=True)
class Threads:
    """Number of threads in use, usable CPUs, and the environment variables that set them."""

    now: int
    usable: int
    variables: Mapping[str, str]
    pools: tuple[tuple[str, int], ...]  # other libraries in this process


@dataclass(frozen=True)
class Native:
    absence: str  # why there is no native library; "": there is one
    forced: bool  # TRITIUM_PURE is set


@dataclass(frozen=True)
class Isa:
    now: str
    known: tuple[str, ...]  # narrow to wide
    requested: str  # TRITIUM_ISA
    rejected: str  # requested, but not supported
    unbuilt: str = ""  # better for this CPU, but not part of this build


@dataclass(frozen=True)
class Blas:
    name: str
    absent: str = ""  # how to install one


@dataclass(frozen=True)
class Product:
    """GFLOP/s of one dense product with Tritium and with NumPy."""

    size: int
    ours: float
    numpy: float
    numpy_blas: str
    slower: float  # time over NumPy's: lower end of ours over upper end of NumPy's interval
    peak: float | None  # FLOP/s of this machine, if its ceilings were measured


@dataclass(frozen=True)
class TunedFile:
    state: Literal["absent", "void", "kept"]
    why: str = ""
    choices: int = 0
    followed: str = "exact"  # none, exact, all
    last: str = ""  # date of the last race
    age_days: int | None = None


@dataclass(frozen=True)
class Gpu:
    name: str
    slowed: tuple[str, ...]
    others: str


# ---- the machine


def read_governors(root: Path = SYS) -> dict[str, int] | Absent:
    """Return the number of CPUs under each frequency governor."""
    files = (root / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    counts = Counter(name for name in map(text, files) if name)
    return dict(counts) or Absent("unsupported", "this system has no CPU governor (virtual machines often have none)")


def read_turbo(root: Path = SYS) -> bool | Absent:
    cpus = root / "devices/system/cpu"
    off, boost = number(cpus / "intel_pstate/no_turbo"), number(cpus / "cpufreq/boost")
    if off is not None:
        return off == 0
    return boost == 1 if boost is not None else Absent("unsupported", "this system does not report whether turbo is on")


def read_steal_s(proc: Path = PROC) -> float | None:
    """Return the steal time of all CPUs since boot in seconds; None if the system does not report it."""
    first = text(proc / "stat").partition("\n")[0].split()
    return int(first[8]) / os.sysconf("SC_CLK_TCK") if len(first) > 8 and first[0] == "cpu" else None


def watch_machine(root: Path = SYS, proc: Path = PROC, seconds: float = WATCH_S) -> Watch:
    """Time a fixed piece of arithmetic for a second, and record the load of the machine meanwhile."""
    work, cpus = clock(), os.cpu_count() or 1
    before, busy, stolen = thermal(root), busy_s(proc), read_steal_s(proc)
    switches, own, start = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw, process_time(), perf_counter()
    timings: list[float] = []
    while (elapsed := perf_counter() - start) < seconds or not timings:
        timings.append(work())
    own = process_time() - own
    busy_now, stolen_now = busy_s(proc), read_steal_s(proc)
    return Watch(
        seconds=elapsed,
        load=os.getloadavg()[0],
        switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches,
        busy=None if busy is None or busy_now is None else max(0.0, (busy_now - busy - own) / elapsed),
        stolen=None if stolen is None or stolen_now is None else (stolen_now - stolen) / elapsed / cpus,
        timings=tuple(timings),
        before=before,
        after=thermal(root),
    )


def _read_watch(name: str, why: str) -> Reader:
    def read(readings: Readings) -> Any:
        watch = readings["watch"]
        value = watch if isinstance(watch, Absent) else getattr(watch, name)
        return Absent("unsupported", why) if value is None else value

    return read


def _read_heat(name: str) -> Reader:
    def read(readings: Readings) -> Any:
        watch = readings["watch"]
        if isinstance(watch, Absent):
            return watch
        state: Thermal = getattr(watch, name)
        absent = state.temperature_c is None and state.throttle_events is None
        return Absent("no_device", "no temperature sensor and no throttle counter") if absent else state

    return read


def read_quota(proc: Path = PROC, mount: Path = CGROUPS) -> float | Absent | None:
    """Return the CPU quota of the cgroups in CPUs; None: no quota."""
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


def read_throttled(proc: Path = PROC, mount: Path = CGROUPS) -> int:
    """Return the number of periods in which a cgroup of this process was throttled."""
    for folder in groups("cpu", proc, mount)[0]:
        statistics = dict(line.split(" ", 1) for line in text(folder / "cpu.stat").splitlines() if " " in line)
        if statistics.get("nr_throttled", "").isdigit():
            return int(statistics["nr_throttled"])
    return 0


def read_siblings(root: Path = SYS, allowed: frozenset[int] | None = None) -> Siblings | Absent:
    """Return the CPUs grouped by the core they share."""
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
        return Absent("unsupported", "this system does not report which CPUs share a core")
    outside = [cpu for cpus in cores.values() if allowed & set(cpus) for cpu in set(cpus) - allowed]
    return Siblings(len(allowed), tuple(sorted(g for g in ours if g)), tuple(sorted(outside)))


def _read_environment(readings: Readings) -> Any:
    return this_environment(get_num_threads(), limits=False)


def _read_power(readings: Readings) -> Any:
    return readings["environment"].power_source or Absent("no_device", "the system reports no power supply")


def _read_virtual(readings: Readings) -> Any:
    if not sys.platform.startswith("linux"):
        return Absent("unsupported", "this system does not report whether it is a virtual machine")
    return readings["environment"].virtual


def _read_noise(readings: Readings) -> Any:
    from tritium.perf.gate import noise

    return noise.known().floor


def _read_pressure(readings: Readings) -> Any:
    from tritium.see.memory.pressure import pressure

    state = pressure("cpu")
    return state if state.limit else Absent("unsupported", state.evidence.removeprefix("not measured: "))


def read_gpus(readings: Readings) -> Any:
    sensors = nvidia()
    present = [s for s in sensors if not isinstance(s, Absent)]
    if not present:
        return sensors[0]
    states = [(s, s.state() if s.state else Thermal()) for s in present]
    return tuple(Gpu(s.domain, state.slowed or (), s.others() if s.others else "") for s, state in states)


# ---- Tritium


def _read_native(readings: Readings) -> Native:
    return Native("" if buffer.native is not None else buffer.native_absence, settings.pure())


def read_isa(readings: Readings) -> Isa | Absent:
    native = buffer.native
    if native is None:
        return Absent("unsupported", f"there is no native library: {buffer.native_absence}")
    requested, rejected = os.environ.get("TRITIUM_ISA", ""), native.isa_rejected() or ""
    return Isa(native.isa(), tuple(native.isas()), requested, rejected, faster_unbuilt())


def read_blas(readings: Readings) -> Blas:
    _ = device("cpu").backend  # loads the BLAS
    if buffer.native is None:
        return Blas(f"NumPy's: {read_numpy_blas()}")
    info = buffer.native.blas_info()
    if info["vendor"] == "none":
        return Blas("", "pip install scipy-openblas32")
    return Blas(f"{info['vendor']} {info['config']}".strip())


def read_numpy_blas() -> str:
    """Return the name of the BLAS that NumPy was built with."""
    import numpy as np

    try:
        config: Any = np.show_config(mode="dicts")
        return str(config["Build Dependencies"]["blas"]["name"])
    except (KeyError, TypeError):
        return "unknown BLAS"


def measure_product(readings: Readings) -> Product:
    """Time the same product with Tritium and with NumPy."""
    from tritium.perf.engine import worker
    from tritium.perf.suites import quick
    from tritium.perf.work.recipes import grid

    (case,) = grid(["matmul"], [(PRODUCT, PRODUCT)])
    ours, theirs = (
        quick.measured(case, worker.resolve(case.recipe.target)(name, **case.recipe.arguments), seconds=PRODUCT_S)
        for name in ("tritium", "numpy")
    )
    limits = readings["ceilings"]
    peak = (
        None
        if limits is None or isinstance(limits, Absent)
        else limits.peak("f32", min(get_num_threads(), limits.threads[-1]))
    )
    return Product(
        PRODUCT,
        ours.gflops,
        theirs.gflops,
        read_numpy_blas(),
        ours.interval[0] / theirs.interval[1],
        peak.best if peak is not None else None,
    )


def read_threads(readings: Readings) -> Threads:
    import threadpoolctl

    pools = [
        (f"{p['internal_api']} ({p['prefix']})", int(p["num_threads"]))
        for p in threadpoolctl.threadpool_info()
        if p["internal_api"] != "tritium"
    ]
    variables = {name: os.environ[name] for name in THREADS if name in os.environ}
    return Threads(get_num_threads(), this_machine().usable, variables, tuple(pools))


def read_ceilings(readings: Readings) -> Any:
    """Return the stored ceilings of this machine; None if they were never measured. Measures nothing."""
    file = settings.cache_dir() / f"ceilings-{this_machine().key}.json"
    return ceilings(quick=True) if file.exists() else None


def read_tuned_file(readings: Readings) -> TunedFile:
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


def measure_drift(readings: Readings) -> Any:
    """Run the first stored tuning race of the runtime again."""
    from tritium.perf.tune import choices as tune_choices, racing as tune

    state = readings["tuned"]
    if isinstance(state, Absent) or state.state != "kept":
        return Absent("unsupported", "there is no tuned choice to measure again")
    for race in tune_choices.races(quick=True):
        if not race.absent and tune.latest(race.op, race.shape, race.dtype, race.device) is not None:
            return tuple(tune_choices.revalidate([race.op], quick=True))
    return Absent("unsupported", "no race of the runtime is stored")


READERS: dict[str, Reader] = {
    "environment": _read_environment,
    "cpus": lambda readings: os.cpu_count() or 1,
    "governor": lambda readings: read_governors(),
    "turbo": lambda readings: read_turbo(),
    "watch": lambda readings: watch_machine(),
    "stolen": _read_watch("stolen", "this system does not report steal time"),
    "others": _read_watch("busy", "this system does not report the CPU use of other processes"),
    "timings": _read_watch("timings", "nothing was timed"),
    "heat before": _read_heat("before"),
    "heat after": _read_heat("after"),
    "quota": lambda readings: read_quota(),
    "throttled": lambda readings: read_throttled(),
    "siblings": lambda readings: read_siblings(),
    "power": _read_power,
    "virtual": _read_virtual,
    "noise": _read_noise,
    "pressure": _read_pressure,
    "gpus": read_gpus,
    "native": _read_native,
    "isa": read_isa,
    "blas": read_blas,
    "product": measure_product,
    "threads": read_threads,
    "ceilings": read_ceilings,
    "tuned": read_tuned_file,
    "drift": measure_drift,
}

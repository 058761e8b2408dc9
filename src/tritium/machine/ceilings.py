"""Measure the ceilings of this machine: peak FLOP/s, int8 OP/s, and bandwidth of every cache and of memory.

Measurements are stored in a file per machine, so that every benchmark can read them.

A file belongs to one fingerprint: the CPU's name and instruction flags, the CPUs there are, those this process may use
(affinity and cgroup), the memory it may use, the operating system, and the loops used, native or NumPy's. Another
fingerprint has another file. A file that is damaged, of another schema or of another machine is reported and replaced by a new measurement.

Method. Compute: a loop of one instruction with as many independent chains as keep the units busy; all
threads start together, and a sample is timed from the first start to the last end. Memory: every thread streams through its own
working set, which fits the level and is larger than the level below; DRAM's is twice the last cache, or 256 MiB if that
is more, and never more than a quarter of memory. Copy and triad count each array once, as STREAM does. Where there
are variants of a stream (one or four concurrent streams; regular or non-temporal stores), the fastest is reported by name.
The ceiling is the best sample, so that no sample exceeds it. Median and spread are reported with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tritium import settings
from tritium.arguments import checked
from tritium.buffer import native, native_absence
from tritium.errors import ArgumentError, nearest
from tritium.machine.facts import (
    Cache,
    Machine,
    bytes_text,
    caches,
    free_memory,
    listed,
    sealed,
    this_machine,
    unsealed,
)

SCHEMA = 1
UNITS = {"f32": "FLOP/s", "int8": "OP/s", "bytes": "B/s"}
MAX_FILE_BYTES = 1 << 20
MIN_DRAM_BYTES, MAX_DRAM_BYTES = 256 << 20, 2 << 30


@dataclass(frozen=True)
class Ceiling:
    """One limit at one number of threads: every sample in FLOP/s, OP/s or B/s, or the reason why there is none."""

    name: str  # an instruction family ("avx512vnni") or a level and an access ("L2 read")
    kind: str  # "f32", "int8" or "bytes"
    threads: int
    how: str  # the instruction, or the working set
    samples: tuple[float, ...] = ()
    absent: str = ""

    @property
    def unit(self) -> str:
        return UNITS[self.kind]

    @property
    def best(self) -> float:
        """Return the ceiling: the best sample; 0 where there is none."""
        return max(self.samples, default=0.0)

    @property
    def median(self) -> float:
        return middle(self.samples) if self.samples else 0.0

    @property
    def spread(self) -> float:
        """Return the interquartile range of the samples as a fraction of their median."""
        ordered, n = sorted(self.samples), len(self.samples)
        return (ordered[3 * n // 4] - ordered[n // 4]) / self.median if n else 0.0

    def share(self, rate: float) -> float | None:
        """Return the fraction of this ceiling that a rate in the same unit reaches; None where it was not measured."""
        return rate / self.best if self.samples else None

    def __str__(self) -> str:
        if not self.samples:
            return f"not measured: {self.absent}"
        return f"{scaled(self.best, self.unit)} (median {scaled(self.median, self.unit)}, spread {self.spread:.0%})"


@dataclass(frozen=True)
class Ceilings:
    """All ceilings of a machine, and where and when they were measured."""

    machine: Machine
    caches: tuple[Cache, ...]
    rows: tuple[Ceiling, ...]
    quick: bool
    measured_at: str  # UTC
    elapsed_s: float
    path: str = ""  # the file they are stored in; empty where it could not be written

    @property
    def threads(self) -> tuple[int, ...]:
        return tuple(sorted({row.threads for row in self.rows}))

    @property
    def disturbed(self) -> bool:
        """Return True if other load seems to have disturbed it: more than a quarter of the ceilings have a spread above 15 %."""
        wide = [row.spread > 0.15 for row in self.rows if row.samples]
        return sum(wide) > len(wide) / 4

    def of(self, name: str, threads: int = 1) -> Ceiling:
        """Return the ceiling of a name at a number of threads."""
        for row in self.rows:
            if row.name == name and row.threads == threads:
                return row
        names = list(dict.fromkeys(row.name for row in self.rows))
        if name in names:
            raise ArgumentError(
                f"ceilings: {name} was measured with {listed(self.threads)} threads, not {threads}; "
                f"measure with tt.ceilings(threads=[{threads}])."
            )
        raise ArgumentError(f"ceilings: there is no {name!r}; there are {listed(names)}.{nearest(name, names)}")

    def peak(self, kind: str, threads: int = 1) -> Ceiling | None:
        """Return the highest compute ceiling of a kind, f32 or int8; None where none was measured."""
        if kind not in UNITS:
            raise ArgumentError(
                f"ceilings: there is no kind {kind!r}; there are {listed(UNITS)}.{nearest(kind, UNITS)}"
            )
        rows = [r for r in self.rows if r.kind == kind and r.threads == threads and r.samples]
        return max(rows, key=lambda row: row.best, default=None)

    def share(
        self,
        *,
        gflops: float | None = None,
        gops: float | None = None,
        gbs: float | None = None,
        threads: int = 1,
        name: str | None = None,
    ) -> float | None:
        """Return the fraction of a ceiling that is reached by GFLOP/s (f32), GOP/s (int8) or GB/s; None where there is none.

        Without a name it is the highest one of its kind, for bytes that of reading DRAM.
        """
        rates = {k: v for k, v in (("f32", gflops), ("int8", gops), ("bytes", gbs)) if v is not None}
        if len(rates) != 1:
            raise ArgumentError(f"ceilings.share: {len(rates)} rates were given; give one of gflops, gops and gbs.")
        ((kind, rate),) = rates.items()
        if name is None and kind == "bytes":
            name = "DRAM read"
        row = self.of(name, threads) if name else self.peak(kind, threads)
        if row is not None and row.kind != kind:
            raise ArgumentError(f"ceilings.share: {name} is in {row.unit}, the rate given in {UNITS[kind]}.")
        return row.share(rate * 1e9) if row is not None else None


@checked
def ceilings(*, refresh: bool = False, quick: bool = False, threads: int | Iterable[int] | None = None) -> Ceilings:
    """Return this machine's ceilings at 1 thread and at all (or at `threads`), measured once and then read from a file.

    `refresh` measures again. `quick` takes fewer, shorter samples; a later call without it measures again.
    A full measurement takes a few seconds. Other load on the machine lowers the results.
    """
    machine = this_machine()
    counts = sorted({1, machine.usable} if threads is None else {threads} if isinstance(threads, int) else set(threads))
    for n in counts:
        if not isinstance(n, int) or not 1 <= n <= machine.usable:
            raise ArgumentError(f"ceilings: {n!r} threads cannot be measured; this process may use {machine.usable}.")
    path = settings.cache_dir() / f"ceilings-{machine.key}.json"
    stored = None if refresh else _load(path, machine)
    if stored is not None and stored.quick and not quick:
        stored = None
    missing = [n for n in counts if stored is None or n not in stored.threads]
    if stored is not None and not missing:
        return stored
    result = _measure(machine, missing, quick, stored)
    try:
        _write(path, result)
    except OSError as error:
        settings.log.warning("ceilings: %s could not be written (%s); they will be measured again", path, error)
        return result
    return replace(result, path=str(path))


# ---- measuring


class _Sampling(NamedTuple):
    """The number of samples and the length of each: many short ones, so that some are undisturbed."""

    samples: int
    seconds: float


def _measure(machine: Machine, counts: Sequence[int], quick: bool, stored: Ceilings | None) -> Ceilings:
    """Measure the ceilings at these thread counts and add them to the stored ones."""
    started = time.perf_counter()
    levels = caches()
    loops = _numpy_loops if native is None else _native_loops
    plan = _Sampling(5, 0.002) if quick else _Sampling(25, 0.003)
    rows = list(stored.rows) if stored else []
    for n in counts:
        rows += loops(levels, n, *plan)
    order = {name: i for i, name in enumerate(dict.fromkeys(row.name for row in rows))}
    return Ceilings(
        machine=machine,
        caches=levels,
        rows=tuple(sorted(rows, key=lambda row: (order[row.name], row.threads))),
        quick=quick and (stored is None or stored.quick),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        elapsed_s=round(time.perf_counter() - started + (stored.elapsed_s if stored else 0), 2),
    )


def _native_loops(levels: Sequence[Cache], threads: int, samples: int, seconds: float) -> list[Ceiling]:
    rows = []
    for name, kind, instruction, absence in native.ceiling_peaks():
        rates = () if absence else tuple(native.ceiling_peak_rates(name, threads, samples, seconds))
        rows.append(Ceiling(name, kind, threads, instruction, rates, absence))

    def measure_streams(titles: Mapping[str, tuple[str, ...]], nbytes: int, size_text: str) -> None:
        loops = [loop for variants in titles.values() for loop in variants]
        rates = dict(zip(loops, native.ceiling_stream_rates(loops, nbytes, threads, samples, seconds), strict=True))
        for title, variants in titles.items():
            fastest = max(variants, key=lambda loop: max(rates[loop]))
            how = f"{size_text}{VARIANTS.get(fastest, '')}"
            rows.append(Ceiling(title, "bytes", threads, how, tuple(rates[fastest])))

    for i, cache in enumerate(levels):
        title = f"L{cache.level} read"
        nbytes, absence = working_set(levels, i, threads)
        if absence:
            rows.append(Ceiling(title, "bytes", threads, bytes_text(cache.nbytes), (), absence))
        else:
            measure_streams(
                {title: ("read", "read4") if cache.level > 2 else ("read",)}, nbytes, f"{bytes_text(nbytes)} a thread"
            )
    if not levels:
        why = "the system does not report the sizes of its caches"
        rows += [Ceiling(f"L{level} read", "bytes", threads, "", (), why) for level in (1, 2, 3)]
    dram = {"DRAM read": ("read", "read4"), "DRAM copy": ("copy", "copy_nt"), "DRAM triad": ("triad", "triad_nt")}
    nbytes, absence = dram_bytes(levels)
    if absence:
        rows += [Ceiling(title, "bytes", threads, "", (), absence) for title in dram]
    else:
        measure_streams(dram, nbytes // threads, f"{bytes_text(nbytes)} in all")
    return rows


VARIANTS = {"read4": ", four streams", "copy_nt": ", non-temporal stores", "triad_nt": ", non-temporal stores"}


def working_set(levels: Sequence[Cache], i: int, threads: int) -> tuple[int, str]:
    """Return the bytes a thread streams through to measure a level, or why it cannot be measured: half its share of the level,
    more than the level below holds, and at most eight times that.
    """
    cache = levels[i]
    share = cache.nbytes // min(threads, cache.shared_by) // 2
    if i == 0:
        return share, ""
    below = levels[i - 1].nbytes // min(threads, levels[i - 1].shared_by)
    if share < 1.5 * below:
        return (
            0,
            f"half of a thread's share of L{cache.level} is {bytes_text(share)}, L{levels[i - 1].level} holds {bytes_text(below)}",
        )
    return min(share, 8 * below), ""


def dram_bytes(levels: Sequence[Cache], memory: int | None = None) -> tuple[int, str]:
    """Return the bytes all threads together stream through to measure DRAM, or why it cannot be measured."""
    if memory is None:
        memory = free_memory()
    usable = this_machine().usable
    last = max((c.nbytes * -(-usable // c.shared_by) for c in levels), default=0)
    needed = min(max(2 * last, MIN_DRAM_BYTES), MAX_DRAM_BYTES)
    if memory // 4 < needed:
        return 0, f"it takes {bytes_text(needed)}, a quarter of the free memory is {bytes_text(memory // 4)}"
    if last and needed < 1.25 * last:
        return 0, f"the caches hold {bytes_text(last)}, too close to the {bytes_text(needed)} that are read at most"
    return needed, ""


def _numpy_loops(levels: Sequence[Cache], threads: int, samples: int, seconds: float) -> list[Ceiling]:
    """Measure with NumPy: lower bounds, since its loops are not written to reach a limit."""
    import numpy as np
    import threadpoolctl

    n = 768
    a, b, out = (np.ones((n, n), np.float32) for _ in range(3))
    with threadpoolctl.threadpool_limits(limits=threads):
        rates = _rates(lambda: np.matmul(a, b, out=out), 2.0 * n**3, samples, seconds)
    rows = [Ceiling("numpy_f32", "f32", threads, f"numpy matmul {n}³, a lower bound", rates)]
    why = f"NumPy has no fast int8 product, and there is no native library: {native_absence}"
    rows.append(Ceiling("int8", "int8", threads, "", (), why))
    titles = ("DRAM read", "DRAM copy")
    nbytes, absence = dram_bytes(levels)
    if threads > 1:
        absence = f"only the native loops run on several threads; {native_absence}"
    if absence:
        return rows + [Ceiling(title, "bytes", threads, "", (), absence) for title in titles]
    memory = np.ones(nbytes // 8, np.uint64)
    half = memory.size // 2
    streams: list[tuple[Callable[[], Any], int]] = [
        (lambda: np.bitwise_or.reduce(memory), memory.nbytes),
        (lambda: np.copyto(memory[:half], memory[half : 2 * half]), 16 * half),
    ]
    for title, (call, work) in zip(titles, streams, strict=True):
        how = f"{bytes_text(nbytes)}, numpy, a lower bound"
        rows.append(Ceiling(title, "bytes", threads, how, _rates(call, work, samples, seconds)))
    return rows


def _rates(call: Callable[[], Any], work: float, samples: int, seconds: float) -> tuple[float, ...]:
    """Return the work per second of a call, one value per sample of at least that many seconds."""
    call()
    out = []
    for _ in range(samples):
        start, calls = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - start) < seconds or not calls:
            call()
            calls += 1
        out.append(work * calls / elapsed)
    return tuple(out)


# ---- the file


def as_dict(measured: Ceilings) -> dict[str, Any]:
    """Return the ceilings as JSON values, with best, median and spread beside the samples."""
    rows = [
        asdict(row) | {"unit": row.unit, "best": row.best, "median": row.median, "spread": row.spread}
        for row in measured.rows
    ]
    return {"schema": SCHEMA} | asdict(measured) | {"rows": rows}


def _write(path: Path, measured: Ceilings) -> None:
    """Write the file atomically."""
    import json

    from tritium.machine.files import write_bytes

    text = json.dumps(sealed(SCHEMA, "ceilings", asdict(measured)), indent=1, allow_nan=False)
    write_bytes(path, text.encode(), parents=True)


def _load(path: Path, machine: Machine) -> Ceilings | None:
    """Read the stored ceilings; None where there is no file, or it is invalid, which is logged."""
    import json

    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {bytes_text(MAX_FILE_BYTES)}")
        return replace(_read(json.loads(path.read_bytes()), machine), path=str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        settings.log.warning("ceilings: %s is not used (%s); measuring again", path, error)
        return None


def _read(document: Any, machine: Machine) -> Ceilings:
    """Return the ceilings of a document, every field checked; raise ValueError with the reason otherwise."""
    body = unsealed(document, SCHEMA, "ceilings")
    if body["machine"] != asdict(machine):
        raise ValueError("it belongs to another machine")
    rows = tuple(Ceiling(**row | {"samples": tuple(row["samples"])}) for row in body["rows"])
    for row in rows:
        if row.kind not in UNITS or not all(isinstance(v, float) and 0 < v < 1e18 for v in row.samples):
            raise ValueError(f"{row.name!r} has an unknown kind, or samples that are not positive rates")
        if bool(row.samples) == bool(row.absent):
            raise ValueError(f"{row.name!r} has neither samples nor a reason, or both")
    parts = {"machine": machine, "caches": tuple(Cache(**c) for c in body["caches"]), "rows": rows}
    return Ceilings(**body | parts)


# ---- numbers


def middle(values: Sequence[float]) -> float:
    """Return the median, without the time it takes to import `statistics`."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def scaled(value: float, unit: str, like: float | None = None) -> str:
    """Format a rate with three digits: 743 GOP/s, 5.87 TOP/s; in the unit that suits `like`, if that is passed."""
    power, prefix = (12, "T") if (like or value) >= 999.5e9 else (9, "G")
    return f"{value / 10**power:.3g} {prefix}{unit}"

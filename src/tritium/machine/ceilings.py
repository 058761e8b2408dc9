"""What this machine can do at most, measured: FLOP/s, int8 OP/s, and bytes a second of every cache and of memory.

Knows nothing of kernels or tensors. What was measured is kept in a file per machine, so that a benchmark can ask each time.

A file belongs to one fingerprint: the CPU's name and instruction flags, the CPUs there are, those this process may use
(affinity and cgroup), the memory it may use, the operating system, and whether native loops or NumPy did the work. Another
fingerprint is another file. A file that is damaged, of another schema or of another machine is reported and measured anew.

How it is measured. Compute: a loop of one instruction with as many independent chains as keep the units busy; all
threads start together, and a sample is timed from the first start to the last end. Memory: every thread walks its own
working set, which fits the level and is larger than the level below; DRAM's is twice the last cache, or 256 MiB if that
is more, and never more than a quarter of memory. Copy and triad count each array once, as STREAM does. Where a stream
can be walked in more than one way (one front or four; stores through or past the caches), the faster is kept and named.
The ceiling is the best sample: one that its own samples exceed would be none. Median and spread stand beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tritium import settings
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
    """One limit at one number of threads: every sample in FLOP/s, OP/s or B/s, or why there is none."""

    name: str  # an instruction family ("avx512vnni") or a level and what is done there ("L2 read")
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
        """The ceiling: the best sample; 0 where there is none."""
        return max(self.samples, default=0.0)

    @property
    def median(self) -> float:
        return middle(self.samples) if self.samples else 0.0

    @property
    def spread(self) -> float:
        """The width of the middle half of the samples, as a fraction of their median."""
        ordered, n = sorted(self.samples), len(self.samples)
        return (ordered[3 * n // 4] - ordered[n // 4]) / self.median if n else 0.0

    def share(self, rate: float) -> float | None:
        """The fraction of this ceiling that a rate in the same unit reaches; None where it was not measured."""
        return rate / self.best if self.samples else None

    def __str__(self) -> str:
        if not self.samples:
            return f"not measured: {self.absent}"
        return f"{scaled(self.best, self.unit)} (median {scaled(self.median, self.unit)}, spread {self.spread:.0%})"


@dataclass(frozen=True)
class Ceilings:
    """All ceilings of a machine, and where and when they were found."""

    machine: Machine
    caches: tuple[Cache, ...]
    rows: tuple[Ceiling, ...]
    quick: bool
    measured_at: str  # UTC
    elapsed_s: float
    path: str = ""  # the file they are kept in; empty when it could not be written

    @property
    def threads(self) -> tuple[int, ...]:
        return tuple(sorted({row.threads for row in self.rows}))

    @property
    def disturbed(self) -> bool:
        """Whether other work seems to have run beside: the samples of a quarter of all rows differ by more than 15 %."""
        wide = [row.spread > 0.15 for row in self.rows if row.samples]
        return sum(wide) > len(wide) / 4

    def of(self, name: str, threads: int = 1) -> Ceiling:
        """The ceiling of that name."""
        for row in self.rows:
            if row.name == name and row.threads == threads:
                return row
        names = list(dict.fromkeys(row.name for row in self.rows))
        if name in names:
            raise ArgumentError(
                f"ceilings: {name} was measured with {listed(self.threads)} threads, not {threads}; "
                f"ask with tt.ceilings(threads=[{threads}])."
            )
        raise ArgumentError(f"ceilings: there is no {name!r}; there are {listed(names)}.{nearest(name, names)}")

    def peak(self, kind: str, threads: int = 1) -> Ceiling | None:
        """The highest compute ceiling of a kind, f32 or int8; None where none was measured."""
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
        """The fraction of a ceiling that is reached by GFLOP/s (f32), GOP/s (int8) or GB/s; None where there is none.

        Without a name it is the highest one of its kind, for bytes that of reading DRAM.
        """
        given = {k: v for k, v in (("f32", gflops), ("int8", gops), ("bytes", gbs)) if v is not None}
        if len(given) != 1:
            raise ArgumentError(f"ceilings.share: {len(given)} rates were given; give one of gflops, gops and gbs.")
        ((kind, rate),) = given.items()
        if name is None and kind == "bytes":
            name = "DRAM read"
        row = self.of(name, threads) if name else self.peak(kind, threads)
        if row is not None and row.kind != kind:
            raise ArgumentError(f"ceilings.share: {name} is in {row.unit}, the rate given in {UNITS[kind]}.")
        return row.share(rate * 1e9) if row is not None else None


def ceilings(*, refresh: bool = False, quick: bool = False, threads: int | Iterable[int] | None = None) -> Ceilings:
    """This machine's ceilings at 1 thread and at all (or at the counts given), measured once and then read from a file.

    `refresh` measures again. `quick` is satisfied with fewer, shorter samples; a later call without it measures anew.
    The whole takes a few seconds. Other work on the machine lowers what is found.
    """
    machine = this_machine()
    counts = sorted({1, machine.usable} if threads is None else {threads} if isinstance(threads, int) else set(threads))
    for n in counts:
        if not isinstance(n, int) or not 1 <= n <= machine.usable:
            raise ArgumentError(f"ceilings: {n!r} threads cannot be measured; this process may use {machine.usable}.")
    path = settings.cache_dir() / f"ceilings-{machine.key}.json"
    kept = None if refresh else _kept(path, machine)
    if kept is not None and kept.quick and not quick:
        kept = None
    missing = [n for n in counts if kept is None or n not in kept.threads]
    if kept is not None and not missing:
        return kept
    found = _measured(machine, missing, quick, kept)
    try:
        _write(path, found)
    except OSError as error:
        settings.log.warning("ceilings: %s could not be written (%s); they will be measured again", path, error)
        return found
    return replace(found, path=str(path))


# ---- measuring


def _measured(machine: Machine, counts: Sequence[int], quick: bool, kept: Ceilings | None) -> Ceilings:
    """The ceilings at these thread counts, beside those already kept."""
    started = time.perf_counter()
    levels = caches()
    loops = _numpy_loops if native is None else _native_loops
    plan = (
        (5, 0.002) if quick else (25, 0.003)
    )  # samples, and seconds of each: many short ones, so that some are undisturbed
    rows = list(kept.rows) if kept else []
    for n in counts:
        rows += loops(levels, n, *plan)
    order = {name: i for i, name in enumerate(dict.fromkeys(row.name for row in rows))}
    return Ceilings(
        machine=machine,
        caches=levels,
        rows=tuple(sorted(rows, key=lambda row: (order[row.name], row.threads))),
        quick=quick and (kept is None or kept.quick),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        elapsed_s=round(time.perf_counter() - started + (kept.elapsed_s if kept else 0), 2),
    )


def _native_loops(levels: Sequence[Cache], threads: int, samples: int, seconds: float) -> list[Ceiling]:
    rows = []
    for name, kind, instruction, absence in native.ceiling_peaks():
        rates = () if absence else tuple(native.ceiling_peak_rates(name, threads, samples, seconds))
        rows.append(Ceiling(name, kind, threads, instruction, rates, absence))

    def streams(titles: Mapping[str, tuple[str, ...]], nbytes: int, told: str) -> None:
        ways = [way for of in titles.values() for way in of]
        rates = dict(zip(ways, native.ceiling_stream_rates(ways, nbytes, threads, samples, seconds), strict=True))
        for title, of in titles.items():
            way = max(of, key=lambda way: max(rates[way]))
            how = f"{told}{WAYS.get(way, '')}"
            rows.append(Ceiling(title, "bytes", threads, how, tuple(rates[way])))

    for i, cache in enumerate(levels):
        title = f"L{cache.level} read"
        nbytes, absence = working_set(levels, i, threads)
        if absence:
            rows.append(Ceiling(title, "bytes", threads, bytes_text(cache.nbytes), (), absence))
        else:
            streams(
                {title: ("read", "read4") if cache.level > 2 else ("read",)}, nbytes, f"{bytes_text(nbytes)} a thread"
            )
    if not levels:
        why = "the system does not tell the sizes of its caches"
        rows += [Ceiling(f"L{level} read", "bytes", threads, "", (), why) for level in (1, 2, 3)]
    dram = {"DRAM read": ("read", "read4"), "DRAM copy": ("copy", "copy_nt"), "DRAM triad": ("triad", "triad_nt")}
    nbytes, absence = dram_bytes(levels)
    if absence:
        rows += [Ceiling(title, "bytes", threads, "", (), absence) for title in dram]
    else:
        streams(dram, nbytes // threads, f"{bytes_text(nbytes)} in all")
    return rows


WAYS = {"read4": ", four fronts", "copy_nt": ", stored past the caches", "triad_nt": ", stored past the caches"}


def working_set(levels: Sequence[Cache], i: int, threads: int) -> tuple[int, str]:
    """The bytes a thread walks to measure a level, or why it cannot be measured: half its share of the level, at most
    eight times the level below, and more than that holds.
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
    """The bytes all threads walk together to measure DRAM, or why it cannot be measured."""
    if memory is None:
        memory = free_memory()
    usable = this_machine().usable
    last = max((c.nbytes * -(-usable // c.shared_by) for c in levels), default=0)
    wanted = min(max(2 * last, MIN_DRAM_BYTES), MAX_DRAM_BYTES)
    if memory // 4 < wanted:
        return 0, f"it takes {bytes_text(wanted)}, a quarter of the free memory is {bytes_text(memory // 4)}"
    if last and wanted < 1.25 * last:
        return 0, f"the caches hold {bytes_text(last)}, too near to the {bytes_text(wanted)} that are walked at most"
    return wanted, ""


def _numpy_loops(levels: Sequence[Cache], threads: int, samples: int, seconds: float) -> list[Ceiling]:
    """What NumPy reaches: lower bounds, since its loops are not made to reach a limit."""
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
        absence = f"with several threads only the native loops do; {native_absence}"
    if absence:
        return rows + [Ceiling(title, "bytes", threads, "", (), absence) for title in titles]
    memory = np.ones(nbytes // 8, np.uint64)
    half = memory.size // 2
    ways: list[tuple[Callable[[], Any], int]] = [
        (lambda: np.bitwise_or.reduce(memory), memory.nbytes),
        (lambda: np.copyto(memory[:half], memory[half : 2 * half]), 16 * half),
    ]
    for title, (call, work) in zip(titles, ways, strict=True):
        how = f"{bytes_text(nbytes)}, numpy, a lower bound"
        rows.append(Ceiling(title, "bytes", threads, how, _rates(call, work, samples, seconds)))
    return rows


def _rates(call: Callable[[], Any], work: float, samples: int, seconds: float) -> tuple[float, ...]:
    """Work a second of a call, one value a sample of at least that many seconds."""
    call()
    out = []
    for _ in range(samples):
        start, turns = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - start) < seconds or not turns:
            call()
            turns += 1
        out.append(work * turns / elapsed)
    return tuple(out)


# ---- the file


def as_dict(found: Ceilings) -> dict[str, Any]:
    """The ceilings as JSON has them, with the figures a reader wants beside the samples."""
    rows = [
        asdict(row) | {"unit": row.unit, "best": row.best, "median": row.median, "spread": row.spread}
        for row in found.rows
    ]
    return {"schema": SCHEMA} | asdict(found) | {"rows": rows}


def _write(path: Path, found: Ceilings) -> None:
    """All of the file or nothing: written beside it, flushed to the disk, then renamed."""
    import json
    import tempfile

    body = asdict(found)
    text = json.dumps(sealed(SCHEMA, "ceilings", body), indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _kept(path: Path, machine: Machine) -> Ceilings | None:
    """What the file holds; None where there is none, or one that cannot be trusted, which is reported."""
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
    """The ceilings of a document, every field checked; ValueError says what is wrong."""
    body = unsealed(document, SCHEMA, "ceilings")
    if body["machine"] != asdict(machine):
        raise ValueError("it belongs to another machine")
    rows = tuple(Ceiling(**row | {"samples": tuple(row["samples"])}) for row in body["rows"])
    for row in rows:
        if row.kind not in UNITS or not all(isinstance(v, float) and 0 < v < 1e18 for v in row.samples):
            raise ValueError(f"{row.name!r} has samples that cannot be")
        if bool(row.samples) == bool(row.absent):
            raise ValueError(f"{row.name!r} has neither samples nor a reason, or both")
    parts = {"machine": machine, "caches": tuple(Cache(**c) for c in body["caches"]), "rows": rows}
    return Ceilings(**body | parts)


# ---- words


def middle(values: Sequence[float]) -> float:
    """The median, without the time it takes to import `statistics`."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def scaled(value: float, unit: str, like: float | None = None) -> str:
    """A rate with three digits: 743 GOP/s, 5.87 TOP/s; in the unit that suits `like`, if that is given."""
    power, prefix = (12, "T") if (like or value) >= 999.5e9 else (9, "G")
    return f"{value / 10**power:.3g} {prefix}{unit}"

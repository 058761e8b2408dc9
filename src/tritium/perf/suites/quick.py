"""One-liners: an op timed in this process, with every sample and an interval.

For a quick look at a prompt, or for the floor of a test; a reliable comparison needs fresh processes and interleaved
contenders: `tritium compare`, or `tt.perf.measure`.

    us, gflops = tt.perf.matmul(1024)
    print(tt.perf.matmul(1024))                   1.94 ms (1.92 … 1.97, 95 % within this process)  24 samples  1107 GFLOP/s
    tt.perf.assert_performance(tt.perf.matmul(2048), at_least=500, tolerance=0.1)
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from tritium import backends, dtype as dt, ops, settings
from tritium.arguments import checked_except
from tritium.errors import ArgumentError, FormatError, PerformanceError, VerifyError, shown
from tritium.machine import files
from tritium.machine.facts import this_machine
from tritium.perf.engine import worker
from tritium.perf.records import json_io as records
from tritium.perf.records.case import Case, Made, UnsupportedError, Work
from tritium.perf.records.run import Run, rounds_of
from tritium.perf.stats import estimates as stats
from tritium.perf.work import moves, quantised
from tritium.perf.work.operations import operation_named, work_of
from tritium.perf.work.recipes import grid, refuses

BATCH_S = 0.005  # minimum duration of a timed batch of calls
LEAST, MOST = 7, 25  # timed batches: fewer for slow calls
WINDOW = 4  # warm-up batches compared with the ones before
WARM_SHARE = 0.3  # of the budget


@dataclass(frozen=True)
class Timed:
    """The timing of one call: seconds of every batch, divided by its calls. Unpacks to the figures named in `gives`."""

    name: str
    samples: tuple[float, ...]
    work: Work
    calls: int  # in a batch
    checked: str  # result of checking the answer before timing
    steady: bool = True
    gives: tuple[str, ...] = ("us", "gflops")

    @property
    def seconds(self) -> float:
        """Return the median of the batches."""
        return median(self.samples)

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the seconds of a call in this process; another process may differ by more."""
        low, high = stats.walsh_interval([math.log(s) for s in self.samples])
        return math.exp(low), math.exp(high)

    @property
    def ms(self) -> float:
        return self.seconds * 1e3

    @property
    def us(self) -> float:
        return self.seconds * 1e6

    @property
    def ns(self) -> float:
        return self.seconds * 1e9

    @property
    def gflops(self) -> float:
        """Return 1e9 operations per second; 0 without arithmetic."""
        return self.work.flops / self.seconds / 1e9

    @property
    def gbs(self) -> float:
        """Return 1e9 bytes per second, each counted once; 0 without memory traffic."""
        return self.work.moved / self.seconds / 1e9

    @property
    def throughput(self) -> float:
        """Return calls per second."""
        return 1 / self.seconds

    def __iter__(self) -> Iterator[float]:
        return (getattr(self, name) for name in self.gives)

    def __str__(self) -> str:
        unit, factor = next(
            (u for u in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)) if self.seconds * u[1] >= 1), ("ns", 1e9)
        )
        low, high = (v * factor for v in self.interval)
        parts = [f"{self.seconds * factor:.3g} {unit} ({low:.3g} … {high:.3g}, 95 % within this process)"]
        parts.append(f"{len(self.samples)} samples")
        parts += [f"{self.gflops:.4g} G{'' if self.work.integer else 'FL'}OP/s"] if self.work.flops else []
        parts += [f"{self.gbs:.3g} GB/s"] if self.work.moved else []
        parts += ["no steady state"] if not self.steady else []
        return f"{self.name}: " + "  ".join(parts)


@dataclass(frozen=True)
class Both:
    """Two timings that a guide names together. Unpacks to one figure of each."""

    first: Timed
    second: Timed
    gives: str = "us"

    def __iter__(self) -> Iterator[float]:
        return (getattr(t, self.gives) for t in (self.first, self.second))

    def __str__(self) -> str:
        return f"{self.first}\n{self.second}"


# ---- timing

LONGEST_S = 86400


def measured(case: Case, prepared: Made, *, seconds: float = 0.5, gives: tuple[str, ...] = ("us", "gflops")) -> Timed:
    """Check the answer, calibrate the calls of a batch, warm up until steady, then time batches for about so long."""
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= LONGEST_S:
        raise ArgumentError(
            f"{case.name}: seconds must be a time above 0, a day ({LONGEST_S}) at most, given {shown(seconds)}."
        )
    result = prepared.call()
    if prepared.wait is not None:
        prepared.wait(result)
    check = worker.checked(prepared, result)
    if "status" in check:
        raise VerifyError(f"{case.name}: {check['reason']}; it was not timed.")
    calls, _ = worker.calibrated(prepared.call, prepared.wait, BATCH_S)
    warmup: list[float] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        spent = 0.0
        while stats.steady(warmup, window=WINDOW, tolerance=0.02) is None and spent < WARM_SHARE * seconds:
            warmup.append(_batch(prepared, calls))
            spent += warmup[-1] * calls
        each = median(warmup[-WINDOW:]) * calls
        count = max(LEAST, min(MOST, int((1 - WARM_SHARE) * seconds / each)))
        samples = tuple(_batch(prepared, calls) for _ in range(count))
    finally:
        if collecting:
            gc.enable()
        if prepared.close is not None:
            prepared.close()
    steady = stats.steady(warmup, window=WINDOW, tolerance=0.02) is not None
    return Timed(case.name, samples, prepared.work or case.work, calls, check["checked"], steady, gives)


def _batch(prepared: Made, calls: int) -> float:
    """Return the seconds of a call in one batch."""
    return worker.batch(prepared.call, prepared.wait, calls)[0] / calls / 1e9


def _only(cases: Sequence[Case], reason: str) -> Case:
    """Return the first case, or raise ArgumentError."""
    if not cases:
        raise ArgumentError(reason)
    return cases[0]


def _time_case(case: Case, seconds: float, gives: tuple[str, ...], candidate: str = "tritium") -> Timed:
    """Build a case on a candidate and time it."""
    try:
        call = worker.resolve(case.recipe.target)(candidate, **case.recipe.arguments)
    except UnsupportedError as error:
        raise ArgumentError(f"{case.name}: {error}") from None
    return measured(case, call, seconds=seconds, gives=gives)


@checked_except("seconds")
def timed(
    operation: str,
    shape: int | Sequence[int],
    dtype: Any = "f32",
    device: Any = None,
    *,
    layout: str = "contiguous",
    seconds: float = 0.5,
    gives: tuple[str, ...] = ("us", "gflops"),
) -> Timed:
    """Time any op of `tritium bench --list`, on values of a fixed seed."""
    sizes = ops.size_of(shape)
    kind, device_name = dt.dtype(dtype).name, str(backends.device(device))
    cases = grid([operation], [sizes], [kind], devices=[device_name], layouts=[layout])
    return _time_case(_only(cases, refuses(operation, sizes, kind)), seconds, gives)


# ---- the guides' one-liners


@checked_except("seconds")
def matmul(size: int = 1024, dtype: Any = "f32", device: Any = None, *, seconds: float = 0.5) -> Timed:
    """Time a square product: (µs, GFLOP/s)."""
    return timed("matmul", (size, size), dtype, device, seconds=seconds)


@checked_except("seconds")
def benchmark_matmul_with_size(
    shape: Sequence[int], dtype: Any = "f32", device: Any = None, *, seconds: float = 0.5
) -> Timed:
    """Time a product of (m, k) by [k, k], or of (m, k, n): (µs, GFLOP/s)."""
    return timed("matmul", shape, dtype, device, seconds=seconds)


@checked_except("seconds")
def benchmark_elementwise(
    operation: str = "add",
    shape: Sequence[int] = (1024, 1024),
    dtype: Any = "f32",
    device: Any = None,
    *,
    seconds: float = 0.5,
) -> Timed:
    """Time one element-wise op: (µs, GB/s)."""
    return timed(operation, shape, dtype, device, seconds=seconds, gives=("us", "gbs"))


@checked_except("seconds")
def benchmark_reduction(
    shape: Sequence[int] = (1000, 1000), dtype: Any = "f32", device: Any = None, *, seconds: float = 0.5
) -> Timed:
    """Time the sum of all elements: (µs, GB/s)."""
    return timed("sum", shape, dtype, device, seconds=seconds, gives=("us", "gbs"))


@checked_except("seconds")
def benchmark_quantization(
    shape: Sequence[int] = (1024, 1024), scheme: str = "ternary", device: Any = None, *, seconds: float = 0.5
) -> Both:
    """Time quantising and dequantising a matrix: (µs, µs)."""
    steps = ("quantize", "dequantize")
    sizes = ops.size_of(shape)
    cases = quantised.quantisation([sizes], [scheme], steps, device=str(backends.device(device)))
    first, second = (_time_case(case, seconds, ("us", "gbs")) for case in cases)
    return Both(first, second)


@checked_except("seconds")
def benchmark_device_transfer(
    shape: Sequence[int] = (1024, 1024), device: Any = None, dtype: Any = "f32", *, seconds: float = 0.5
) -> Both:
    """Time a copy to a device and back to the host: (µs, µs). On the CPU both are copies of memory."""
    sizes = ops.size_of(shape)
    cases = moves.transfer([sizes], [dt.dtype(dtype).name], ("upload", "download"), device=str(backends.device(device)))
    first, second = (_time_case(case, seconds, ("us", "gbs")) for case in cases)
    return Both(first, second)


@checked_except("seconds")
def benchmark_memory_allocation(device: Any = None, *, seconds: float = 0.5) -> Both:
    """Time allocating 1 KiB and 16 MiB: (ns, ns)."""
    cases = moves.memory(what=["allocate"], device=str(backends.device(device)))
    first, second = (_time_case(case, seconds, ("ns",)) for case in cases)
    return Both(first, second, "ns")


@checked_except("seconds")
def benchmark_with_dtype(dtype: Any, size: int = 512, device: Any = None, *, seconds: float = 0.5) -> Timed:
    """Time the same product with weights of a dtype: f32, f16, bf16, i8, i4, tern2, tern5. (µs, GFLOP/s)"""
    return timed("linear", (size, size), dtype, device, seconds=seconds)


@checked_except("seconds")
def benchmark_strided(
    operation: str = "add",
    shape: Sequence[int] = (1024, 1024),
    dtype: Any = "f32",
    device: Any = None,
    *,
    seconds: float = 0.5,
) -> Timed:
    """Time the same op on strided memory, every other column: (µs, GB/s)."""
    return timed(operation, shape, dtype, device, layout="strided", seconds=seconds, gives=("us", "gbs"))


@checked_except("seconds")
def benchmark_dispatch(size: int = 8, *, seconds: float = 0.5) -> Both:
    """Time the overhead of a call: an addition of a few elements in Tritium and in NumPy: (ns, ns)."""
    sizes = ops.size_of(size)
    case = _only(grid(["add"], [sizes]), refuses("add", sizes, "f32"))
    first, second = (
        replace(_time_case(case, seconds, ("ns",), candidate), name=f"{case.name}, {candidate}")
        for candidate in ("tritium", "numpy")
    )
    return Both(first, second, "ns")


@checked_except("taken")
def calculate_gflops(taken: Timed | float, shape: Sequence[int], operation: str = "matmul") -> float:
    """Return 1e9 operations per second of an op of that shape, from a timing or from seconds."""
    flops = work_of(operation_named(operation), ops.size_of(shape), "f32").flops
    seconds = taken.seconds if isinstance(taken, Timed) else taken
    if not isinstance(seconds, (int, float)) or not 0 < seconds < 1e300:
        raise ArgumentError(f"calculate_gflops: seconds must be a time above 0, given {shown(taken)}.")
    return flops / seconds / 1e9


# ---- floors


@dataclass(frozen=True)
class Floor:
    """The result of an assertion."""

    outcome: Literal["passed", "inconclusive", "no floor"]
    text: str
    measured: float
    interval: tuple[float, float]
    least: float | None


@checked_except("measured", "at_least")
def assert_performance(
    measured: Timed | Run | float,
    at_least: float | None = None,
    *,
    tolerance: float = 0.1,
    metric: str = "gflops",
    floors: str | Path | None = None,
    name: str = "",
    strict: bool = False,
) -> Floor:
    """Raise PerformanceError if a speed is below a floor: `at_least` less the tolerance.

    For a timing or a run the whole interval must be below; if the floor is inside it, the outcome is "inconclusive" and a
    warning is logged, or with `strict` PerformanceError is raised then too. `metric` is a rate of the timing or run: gflops,
    gbs, throughput, items_per_s. `floors` is a file {"machine key": {"case name": floor}} for machines that differ; a machine
    that is not in it has no floor.
    """
    if not 0 <= tolerance < 1:
        raise ArgumentError(f"assert_performance: tolerance must be a fraction from 0 to 1, given {shown(tolerance)}.")
    label = name or getattr(measured, "name", "") or getattr(measured, "case", "") or "the measured speed"
    low, value, high = _rates(measured, metric)
    if floors is not None:
        at_least = _floor_of(Path(floors), label)
        if at_least is None:
            text = f"{label}: {floors} has no floor for this machine ({this_machine().key}); {value:.4g} {metric} was measured"
            return Floor("no floor", text, value, (low, high), None)
    if at_least is None:
        raise ArgumentError("assert_performance: no floor was given; name at_least=… or floors=FILE.")
    if (
        not isinstance(at_least, (int, float)) or not 0 < at_least < math.inf or not math.isfinite(value)
    ):  # NaN would pass
        raise ArgumentError(
            f"assert_performance: {label}: numbers are compared; {value!r} was measured, at least {shown(at_least)} is "
            f"required."
        )
    least = at_least * (1 - tolerance)
    interval = f" ({low:.4g} … {high:.4g})" if low < high else ""
    text = (
        f"{label}: {value:.4g} {metric}{interval}, at least {least:.4g} is required ({at_least:g} less {tolerance:.0%})"
    )
    if high < least:
        raise PerformanceError(f"{text}: too slow. Look for other work on this machine, then for what changed.")
    if low < least:
        text = f"{text}: inconclusive, the floor is within the interval; measure longer (seconds=…)"
        if strict:
            raise PerformanceError(text)
        settings.log.warning("%s", text)
        return Floor("inconclusive", text, value, (low, high), least)
    return Floor("passed", text, value, (low, high), least)


def _rates(measured: Timed | Run | float, metric: str) -> tuple[float, float, float]:
    """Return the lower end, the middle and the upper end of a rate; a bare number is all three."""
    if isinstance(measured, (int, float)):
        return float(measured), float(measured), float(measured)
    if not isinstance(measured, (Timed, Run)):
        raise ArgumentError(
            f"assert_performance: a timing, a run or a number is needed, given {shown(measured)}; tt.perf.timed measures one."
        )
    if metric not in ("gflops", "gbs", "throughput", "items_per_s"):
        raise ArgumentError(
            f"assert_performance: {metric!r} is no rate; there are gflops, gbs, throughput and items_per_s."
        )
    work = measured.work
    each = {"gflops": work.flops / 1e9, "gbs": work.moved / 1e9, "throughput": 1.0, "items_per_s": work.items}[metric]
    if not each:
        raise ArgumentError(f"assert_performance: this work has no {metric}: {work}.")
    if isinstance(measured, Timed):
        short, middle, long = measured.interval[0], measured.seconds, measured.interval[1]
    else:
        short, middle, long = _run_seconds(measured)
    return each / long, each / middle, each / short


def _run_seconds(run: Run) -> tuple[float, float, float]:
    """Return the lower end, the median and the upper end of a run's seconds.

    Each process is one value: rounds of one process are not independent.
    """
    wall = run.of("wall")
    rounds = [g for g in rounds_of(wall) if g] if wall is not None else []
    times = [median(g) for g in rounds] if len(rounds) > 1 else list(rounds[0]) if rounds else []
    if run.status != "ok" or not times:
        raise PerformanceError(
            f"{run.case} on {run.arm} has no times: {run.status}: {run.reason or 'nothing was measured'}."
        )
    low, high = stats.walsh_interval([math.log(t) for t in times])
    return math.exp(low), median(times), math.exp(high)


def _floor_of(path: Path, name: str) -> float | None:
    """Return the floor of a case on this machine."""
    floors = records.loads(files.decoded(files.read_bytes(path), str(path)), str(path))
    if not isinstance(floors, dict) or not all(isinstance(v, dict) for v in floors.values()):
        raise FormatError(f'{path}: {{"machine key": {{"case name": floor}}}} is needed.')
    floor = floors.get(this_machine().key, {}).get(name)
    if floor is not None and (isinstance(floor, bool) or not isinstance(floor, (int, float)) or floor <= 0):
        raise FormatError(f"{path}: the floor of {name!r} must be a number above 0, given {floor!r}.")
    return floor

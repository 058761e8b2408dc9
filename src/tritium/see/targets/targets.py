"""The guides' performance targets in one table, measured and compared with this machine's ceilings.

The targets are the guides', for their own libraries and machines; a figure is measured now or absent with the reason. A
target is reached if the whole interval reaches it; guide 003 has none.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np

from tritium import backends, memory, ops
from tritium.arguments import checked
from tritium.buffer import native, native_absence
from tritium.errors import DeviceError, TritiumError
from tritium.functions import randn
from tritium.machine.facts import seconds_text
from tritium.perf.engine import worker
from tritium.perf.records.case import Case, Context, Made, Recipe, Work
from tritium.perf.records.environment import Limits, this_machines_limits
from tritium.perf.stats.estimates import share_interval, walsh_interval
from tritium.perf.suites import quick
from tritium.perf.work.recipes import grid
from tritium.threads import get_num_threads, set_num_threads

SECONDS, QUICK_S = 0.5, 0.1  # of timing for each figure
SCALAR = ("aarch64", "arm64")  # where the portable kernels compute one element at a time; x86-64 always has SSE2
CACHED = (64, 256)  # 64 KiB of f32: compares arithmetic, not memory
COMPILES = 7
MIXTURE = (
    (1000,), (33, 33), (64, 64), (100, 100), (130, 130), (256, 256), (600, 600), (1000, 1000), (1025, 1024), (2048, 2048),
)  # fmt: skip
STEADY = 300  # calls over which the pool is observed
OWN_CLOCK = ("cuda",)  # devices whose own events time a call: the host's clock around it would time the host too

Outcome = Literal["pass", "not reached", "undecided", "not measured"]
Unit = Literal["s", "GFLOP/s", "x", "%"]


@dataclass(frozen=True)
class Figure:
    """A measured value with its 95 % interval and the value the ceilings allow, all in the unit of the target."""

    value: float
    low: float
    high: float
    possible: float | None = None
    how: str = ""


@dataclass(frozen=True)
class Target:
    """One cell of a guide's table."""

    guide: str
    section: str
    what: str
    device: str  # "cpu", "metal", "mlx", "cuda", "gpu"; "": the default device
    asked: str  # in the guide's words
    limit: float
    unit: Unit
    lower: bool  # less is better
    figure: Callable[[Bench, str], Figure | str]


@dataclass(frozen=True)
class Reached:
    """A target and its outcome on this machine."""

    target: Target
    outcome: Outcome
    figure: Figure | None = None
    reason: str = ""  # why it was not measured


class Bench:
    """A cache of timings: several targets need the same ones."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._timed: dict[tuple[str, tuple[int, ...], str], quick.Timed] = {}

    def timed(self, operation: str, shape: tuple[int, ...], device: str) -> quick.Timed:
        key = (operation, shape, device)
        if key not in self._timed:
            self._timed[key] = self._measure(operation, shape, device)
        return self._timed[key]

    def _measure(self, operation: str, shape: tuple[int, ...], device: str) -> quick.Timed:
        if device.partition(":")[0] not in OWN_CLOCK:
            return quick.timed(operation, shape, "f32", device, seconds=self.seconds)
        (case,) = grid([operation], [shape], ["f32"], devices=[device])
        work = worker.resolve(case.recipe.target)("tritium", **case.recipe.arguments)
        return time_by_device(case, work, backends.device(device).backend.timer, seconds=self.seconds)

    @cached_property
    def limits(self) -> Limits:
        return this_machines_limits(get_num_threads())

    def least_s(self, work: Work, device: str) -> float | None:
        """Return the lower bound of a call's time; None if the device has no measured ceilings."""
        return self.limits.least_s(work.flops, work.moved, work.integer) if device == "cpu" else None

    @cached_property
    def steady(self) -> tuple[memory.Stats, memory.Stats]:
        """Return the pool's statistics before and after repeated calls, past warm-up."""
        x, w, b = randn((64, 64), seed=1), randn((64, 64), seed=2), randn((64,), seed=3)
        for _ in range(10):
            ops.relu(x @ w + b)
        before = memory.stats()
        for _ in range(STEADY):
            ops.relu(x @ w + b)
        return before, memory.stats()


def time_by_device(case: Case, work: Made, timer: Callable[[], Callable[[], int]], *, seconds: float) -> quick.Timed:
    """Time a call with the device's clock, after the host's clock has checked its result and warmed it up."""
    by_host = quick.measured(case, work, seconds=seconds / 2)
    samples = []
    for _ in by_host.samples:
        stop = timer()
        for _ in range(by_host.calls):
            work.call()
        samples.append(stop() / by_host.calls / 1e9)
    return replace(by_host, samples=tuple(samples), name=f"{by_host.name}, by the device's clock")


# ---- figures


def time_call(operation: str, shape: tuple[int, ...]) -> Callable[[Bench, str], Figure]:
    """Return a figure: seconds of a call."""

    def figure(bench: Bench, device: str) -> Figure:
        t = bench.timed(operation, shape, device)
        return Figure(t.seconds, *t.interval, bench.least_s(t.work, device), t.name)

    return figure


def rate(size: int) -> Callable[[Bench, str], Figure]:
    """Return a figure: GFLOP/s of a square product."""

    def figure(bench: Bench, device: str) -> Figure:
        t = bench.timed("matmul", (size, size), device)
        least = bench.least_s(t.work, device)
        low, high = (t.work.flops / s / 1e9 for s in reversed(t.interval))
        return Figure(t.gflops, low, high, t.work.flops / least / 1e9 if least else None, t.name)

    return figure


def times_cpu(operation: str) -> Callable[[Bench, str], Figure]:
    """Return a figure: speedup over the CPU."""

    def figure(bench: Bench, device: str) -> Figure:
        here, there = (bench.timed(operation, (1000, 1000), d) for d in ("cpu", device))
        (a, b), (c, d) = here.interval, there.interval
        return Figure(here.seconds / there.seconds, a / d, b / c, None, f"{here.name}, cpu over {device}")

    return figure


def times_scalar(bench: Bench, device: str) -> Figure | str:
    """Return the speedup of an elementwise product over the portable kernel, in the first cache."""
    if native is None:
        return f"there is no native library: {native_absence}"
    x, y = (randn(CACHED, seed=i) for i in (1, 2))
    out = ops.empty(CACHED)
    timings = []
    for isa in ("portable", None):
        call = partial(native.kernel("multiply", isa), x, y, out=out)
        timings.append(quick.measured(_case("multiply"), Made(call), seconds=bench.seconds))
    plain, wide = timings
    (a, b), (c, d) = plain.interval, wide.interval
    figure = Figure(
        plain.seconds / wide.seconds, a / d, b / c, None, "multiply, kernels of one thread in the first cache"
    )
    if platform.machine() in SCALAR:
        return figure
    return (
        f"no kernel for {platform.machine()} computes one element at a time: the portable ones use 128-bit vectors (speedup over those: "
        f"{figure.value:.2g})"
    )


def times_one_by_one(bench: Bench, device: str) -> Figure | str:
    """Return the speedup of a sum on one thread over scalar code that adds one element after another."""
    if not subtracts_in_order():
        return f"nothing to compare with: subtract.reduce of NumPy {np.__version__} does not go element by element"
    with one_thread():
        ours = quick.timed("sum", (1000, 1000), "f32", device, seconds=bench.seconds)
    data = np.full(1_000_000, -1, np.float32)
    scalar = quick.measured(_case("in order"), Made(lambda: np.subtract.reduce(data)), seconds=bench.seconds)
    (a, b), (c, d) = scalar.interval, ours.interval
    return Figure(
        scalar.seconds / ours.seconds, a / d, b / c, None,
        "sum of 1000x1000 on one thread beside numpy.subtract.reduce, which takes one element after the other",
    )  # fmt: skip


def subtracts_in_order() -> bool:
    """Return True if NumPy subtracts one element after another: 2^24 - -1 is 2^24 in f32, - -2 is more."""
    data = np.full(1000, -1, np.float32)
    data[0] = 1 << 24
    return bool(np.subtract.reduce(data) == 1 << 24)


@contextmanager
def one_thread() -> Iterator[None]:
    before = get_num_threads()
    set_num_threads(1)
    try:
        yield
    finally:
        set_num_threads(before)


def _case(name: str) -> Case:
    return Case(name, Recipe(""), Context(name))


def allocation(bench: Bench, device: str) -> Figure:
    """Return the time to create and free a small tensor from Python."""
    t = quick.benchmark_memory_allocation(device, seconds=bench.seconds).first
    own = f"; of which the pool takes {native.pool_bench(1024, 100_000):.0f} ns" if native is not None else ""
    return Figure(t.seconds, *t.interval, None, f"tt.empty of 1 KiB from Python{own if device == 'cpu' else ''}")


def transfer(bench: Bench, device: str) -> Figure:
    t = quick.benchmark_device_transfer((1000, 1000), device, seconds=bench.seconds).first
    return Figure(t.seconds, *t.interval, None, f"{t.name}: 4 MB to the device")


def pool_share(bench: Bench, device: str) -> Figure:
    """Return the share of allocations served from idle blocks, past warm-up."""
    before, after = bench.steady
    hits, requests = after.hits - before.hits, after.allocations - before.allocations
    low, high = share_interval(hits, requests)
    return Figure(
        hits / requests, low, high, 1.0, f"{hits} of {requests} allocations of {STEADY} calls of relu(x @ w + b)"
    )


def overhead(bench: Bench, device: str) -> Figure:
    """Return the share of block bytes beyond the requested ones: the mean over even and odd shapes."""
    shares = {shape: _overhead_share(shape) for shape in MIXTURE}
    mean = sum(shares.values()) / len(shares)
    best, worst = (f(shares, key=lambda shape: shares[shape]) for f in (min, max))
    return Figure(
        mean, mean, mean, 0.0,
        f"the mean over tensors of {len(shares)} shapes: from {shares[best]:.1%} ({_size(best)}) to {shares[worst]:.1%} ({_size(worst)})",
    )  # fmt: skip


def _overhead_share(shape: tuple[int, ...]) -> float:
    before = memory.stats()
    tensors = [ops.empty(shape) for _ in range(4)]
    after = memory.stats()
    blocks = after.current_block_bytes - before.current_block_bytes
    del tensors
    return max(0.0, 1 - (after.current_bytes - before.current_bytes) / blocks) if blocks > 0 else 0.0


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def success_share(bench: Bench, device: str) -> Figure:
    count = 0
    for i in range(1000):
        try:
            ops.empty((64 + i % 64, 64))
        except MemoryError:
            continue
        count += 1
    low, high = share_interval(count, 1000)
    return Figure(count / 1000, low, high, 1.0, f"{count} of 1000 allocations")


def copy_free_share(bench: Bench, device: str) -> Figure:
    """Return the share of operations of the guide's zero-copy block that allocated nothing."""
    x, y = randn((512, 512), seed=1), randn((512, 512), seed=2)
    acts: tuple[Callable[[], Any], ...] = (
        lambda: x.view(256, 1024), lambda: x[128:256], lambda: x.transpose(0, 1), lambda: x.clone(),
        lambda: x.add_(y), lambda: x.mul_(0.5),
    )  # fmt: skip
    free = 0
    for act in acts:
        act()  # a scalar becomes a tensor at the first call
        with memory.usage() as used:
            act()
        free += used.peak_above_start < x.nbytes
    share = free / len(acts)
    return Figure(
        share, share, share, 1.0, f"{free} of {len(acts)} operations: view, slice, transpose, clone, add_, mul_"
    )


def call_cost(bench: Bench, device: str) -> Figure:
    """Return the time of the smallest call as a share of a large one: the overhead of a call."""
    call = quick.benchmark_dispatch(seconds=bench.seconds).first
    t = bench.timed("matmul", (1000, 1000), device)
    (a, b), (c, d) = call.interval, t.interval
    return Figure(
        call.seconds / t.seconds, a / d, b / c, None, "an addition of 8 elements beside a product of 1000x1000"
    )


def compile_time(bench: Bench, device: str) -> Figure:
    """Return the time to trace, optimise and plan a feed-forward block."""
    from time import perf_counter

    from tritium.compiler.compile import compile as compiled

    x, w1, w2 = randn((32, 256), seed=1), randn((256, 512), seed=2), randn((512, 256), seed=3)
    x, w1, w2 = (t.to_device(device) for t in (x, w1, w2))
    timings = []
    for _ in range(COMPILES + 1):

        def block(h: Any) -> Any:
            up = h @ w1
            return ops.softmax((ops.sigmoid(up) * up + 1.0) @ w2 + h)

        start = perf_counter()
        compiled(block).program(x)
        timings.append(perf_counter() - start)
    first, *rest = timings  # the first includes the compiler's imports
    low, high = np.exp(walsh_interval(np.log(rest))).tolist()
    return Figure(
        float(np.median(rest)),
        low,
        high,
        None,
        f"a feed-forward block; the first, with its imports: {seconds_text(first)}",
    )


# ---- the table


def _rows() -> tuple[Target, ...]:
    summary, traits, floor = (
        "Benchmark Results Summary",
        "Key Performance Characteristics",
        "Performance Regression Testing",
    )
    targets, watching = "Performance Targets", "Automated Monitoring"
    million = (1000, 1000)
    product, add, total = time_call("matmul", million), time_call("add", million), time_call("sum", million)
    larger = time_call("matmul", (1024, 1024))
    return (
        Target("000", summary, "matrix multiplication, 1024x1024", "cpu", "15-25 GFLOPS", 15, "GFLOP/s", False, rate(1024)),
        Target("000", summary, "matrix multiplication, 1024x1024", "metal", "200-500 GFLOPS", 200, "GFLOP/s", False, rate(1024)),
        Target("000", summary, "matrix multiplication, 2048x2048", "mlx", "800-1200 GFLOPS", 800, "GFLOP/s", False, rate(2048)),
        Target("000", summary, "element-wise, beside scalar code", "cpu", "5-15x speedup", 5, "x", False, times_scalar),
        Target("000", summary, "element-wise, beside the CPU", "metal", "10-30x speedup", 10, "x", False, times_cpu("add")),
        Target("000", summary, "element-wise, beside the CPU", "mlx", "15-40x speedup", 15, "x", False, times_cpu("add")),
        Target("000", summary, "reduction, beside scalar code", "cpu", "3-8x speedup", 3, "x", False, times_one_by_one),
        Target("000", summary, "reduction, beside the CPU", "metal", "8-20x speedup", 8, "x", False, times_cpu("sum")),
        Target("000", summary, "reduction, beside the CPU", "mlx", "10-25x speedup", 10, "x", False, times_cpu("sum")),
        Target("000", summary, "memory allocation, 1 KiB", "cpu", "<100ns", 100e-9, "s", True, allocation),
        Target("000", summary, "memory allocation, 1 KiB", "metal", "<500ns", 500e-9, "s", True, allocation),
        Target("000", summary, "memory allocation, 1 KiB", "mlx", "<50ns", 50e-9, "s", True, allocation),
        Target("000", summary, "device transfer, 4 MB", "metal", "<2ms", 2e-3, "s", True, transfer),
        Target("000", summary, "device transfer, 4 MB", "cuda", "<2ms (of Metal)", 2e-3, "s", True, transfer),
        Target("000", summary, "device transfer, 4 MB", "mlx", "<200μs", 200e-6, "s", True, transfer),
        Target("000", summary, "allocations served by the pool", "cpu", "95% pool utilization", 0.95, "%", False, pool_share),
        Target("000", summary, "allocations that succeed", "cpu", "98% success rate", 0.98, "%", False, success_share),
        Target("000", traits, "memory beyond what was asked for", "cpu", "<5% metadata overhead", 0.05, "%", True, overhead),
        Target("000", traits, "operations without a copy", "cpu", "80% of operations", 0.80, "%", False, copy_free_share),
        Target("000", traits, "a call of 8 elements beside 1000x1000", "cpu", "<1% overhead", 0.01, "%", True, call_cost),
        Target("000", floor, "matrix multiplication, 2048x2048", "", "500 GFLOPS less 10%", 450, "GFLOP/s", False, rate(2048)),
        Target("001", targets, "matrix multiply, 1000x1000", "cpu", "< 10ms", 10e-3, "s", True, product),
        Target("001", targets, "matrix multiply, 1000x1000", "gpu", "< 1ms", 1e-3, "s", True, product),
        Target("001", targets, "element-wise, 1M elements", "cpu", "< 1ms", 1e-3, "s", True, add),
        Target("001", targets, "element-wise, 1M elements", "gpu", "< 0.1ms", 0.1e-3, "s", True, add),
        Target("001", targets, "reduction, 1M elements", "cpu", "< 2ms", 2e-3, "s", True, total),
        Target("001", targets, "reduction, 1M elements", "gpu", "< 0.2ms", 0.2e-3, "s", True, total),
        Target("001", targets, "graph compilation", "cpu", "< 100ms", 0.1, "s", True, compile_time),
        Target("001", targets, "graph compilation", "gpu", "< 100ms", 0.1, "s", True, compile_time),
        Target("002", watching, "matrix multiplication, 1024x1024", "gpu", "alert above 100ms", 0.1, "s", True, larger),
    )  # fmt: skip


TARGETS = _rows()


# ---- measuring


@checked
def measure_targets(
    targets: tuple[Target, ...] = TARGETS,
    *,
    seconds: float = SECONDS,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[Reached, ...]:
    """Measure every target, with about `seconds` of timing for each figure."""
    bench, out = Bench(seconds), []
    for i, target in enumerate(targets):
        if progress is not None:
            progress(i, len(targets), target.what)
        out.append(measure_target(target, bench))
    return tuple(out)


def measure_target(target: Target, bench: Bench) -> Reached:
    try:
        device = str(backends.device(target.device or None))
    except DeviceError as error:
        return Reached(target, "not measured", reason=str(error).rstrip("."))
    try:
        result = target.figure(bench, device)
    except TritiumError as error:
        return Reached(target, "not measured", reason=f"{type(error).__name__}: {error}".rstrip("."))
    if isinstance(result, str):
        return Reached(target, "not measured", reason=result)
    return Reached(target, judge(target, result), result)


def judge(target: Target, figure: Figure) -> Outcome:
    """Return "pass" if the whole interval reaches the target, "not reached" if none of it does."""
    worst, best = (figure.high, figure.low) if target.lower else (figure.low, figure.high)
    if worst < target.limit if target.lower else worst >= target.limit:
        return "pass"
    return "undecided" if (best < target.limit if target.lower else best >= target.limit) else "not reached"


# ---- words


def value_text(value: float, unit: Unit, like: float | None = None) -> str:
    """Return a value with its unit; `like`: in the scale that suits this value, without the unit."""
    if unit == "%":
        return _digits(100 * value) + " %" * (like is None)
    if unit != "s":
        return _digits(value) + f" {unit}" * (like is None)
    if like is None:
        return seconds_text(value)
    scale = next((s for s in (1.0, 1e-3, 1e-6) if like >= s), 1e-9)
    return _digits(value / scale)


def _digits(value: float) -> str:
    """Return three significant digits, without an exponent if readable: 1230."""
    return f"{float(f'{value:.3g}'):g}"


HEADS = ("guide", "target", "asked", "measured", "possible here", "outcome", "by")


def rows(results: tuple[Reached, ...]) -> list[list[str]]:
    """Return a table row for each result, with the columns `HEADS`."""
    out = []
    for r in results:
        t, f = r.target, r.figure
        measured = possible = by = "-"
        if f is not None:
            around = f" ({value_text(f.low, t.unit, f.value)} … {value_text(f.high, t.unit, f.value)})"
            measured = value_text(f.value, t.unit) + (around if f.low < f.high else "")
            possible = "-" if f.possible is None else value_text(f.possible, t.unit)
            by = f.how or "-"
        out.append([t.guide, f"{t.what} ({t.device or 'default'})", t.asked, measured, possible, r.outcome, by])
    return out


def counts(results: tuple[Reached, ...]) -> dict[Outcome, int]:
    """Return the number of results of each outcome."""
    return {outcome: sum(r.outcome == outcome for r in results) for outcome in get_args(Outcome)}


def summary(results: tuple[Reached, ...]) -> list[str]:
    """Return the tally of outcomes as text, and the notes."""
    tally = ", ".join(f"{n} {outcome}" for outcome, n in counts(results).items() if n)
    return [f"{tally}. The targets are the guides' own.", *notes(results)]


def notes(results: tuple[Reached, ...]) -> list[str]:
    """Return notes on targets beyond this machine, and the reasons for those not measured."""
    out = []
    for r in results:
        t, f = r.target, r.figure
        if f is not None and f.possible is not None and (f.possible > t.limit if t.lower else f.possible < t.limit):
            out.append(
                f"{t.guide} {t.what}: beyond this machine, whose ceilings allow {value_text(f.possible, t.unit)}"
            )
    reasons: dict[str, int] = {}
    for r in results:
        if r.outcome == "not measured":
            reasons[r.reason] = reasons.get(r.reason, 0) + 1
    return out + [f"not measured ({n}): {why}" for why, n in reasons.items()]

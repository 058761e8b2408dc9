"""Split data into batches, and find the best batch size.

Knows nothing of the computation of a batch: that is the caller's function.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from tritium import ops
from tritium.arguments import checked_except
from tritium.buffer import native
from tritium.compiler import order as schedule
from tritium.compiler.compile import Compiled
from tritium.errors import ArgumentError, BatchError, shown
from tritium.graph.graph import Graph
from tritium.machine import tuned
from tritium.machine.facts import bytes_text, free_memory, seconds_text
from tritium.memory import resident_bytes, usage
from tritium.op import Kind, outputs
from tritium.tensor import Tensor
from tritium.threads import get_num_threads

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PER_THREAD = 2  # samples for each thread: one at work, one ready
DEFAULT = 32  # items per batch by default
RUNS = 3
SEARCH_RUNS = 5
NEAR = 0.98  # of the highest rate: the smallest batch that reaches it wins: lower latency, less memory
SLOWDOWN = 1.5  # against the best measured size: warn above this

# ---- batches


@dataclass(frozen=True)
class Batch:
    """A contiguous part of the items."""

    number: int
    first: int  # the number of its first item
    items: Any  # a part of a tensor or array, else a list
    count: int

    def __str__(self) -> str:
        if not self.count:
            return f"batch {self.number} (no items)"
        last = self.first + self.count - 1
        return f"batch {self.number} (item{'s' * (self.count > 1)} {self.first}{f' to {last}' * (self.count > 1)})"


@checked_except("fn", "data", "size")
def process_in_batches(
    fn: Callable[[Any], Any],
    data: Iterable[Any],
    size: int | None = None,
    *,
    op: str | None = None,
    stream: bool = False,
) -> Any:
    """Call fn on batches of `size` items (32 by default) and join the results in order.

    A tensor or array is split along its first axis; other data, generators too, is passed as lists. fn returns as many results as
    its batch has items: tensors are joined along axis 0, other results are a list. It may also return a dict or tuple of
    tensors and arrays with as many rows each, which are joined part by part. `stream=True` yields the results one by
    one and computes each batch when its first result is requested. `op` is a name that find_optimal_batch_size measured: its
    size is the default, and a size that was measured far slower causes a warning.
    """
    if not callable(fn):
        raise ArgumentError(f"process_in_batches: {fn!r} cannot be called; give a function of one batch.")
    if isinstance(data, (dict, str, bytes)):
        raise ArgumentError(
            f"process_in_batches: data must be a tensor, an array or items, given {type(data).__name__}."
        )
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ArgumentError(f"process_in_batches: size must be 1 or more items, given {size!r}.")
    batches = _batches(data, (DEFAULT if size is None else size) if op is None else _size_for(op, size))
    if stream:
        return (result for batch in batches for result in _results(fn, batch))
    parts = [_results(fn, batch) for batch in batches]
    return _join(parts)


def _join(parts: list[Any]) -> Any:
    """Return the results of all batches as one."""
    if parts and all(isinstance(p, Rows) for p in parts):
        return parts[0].joined(parts)
    if any(isinstance(p, Rows) for p in parts):
        raise BatchError(
            "process_in_batches: some batches gave a dict or tuple of tensors, others did not; return the same for each."
        )
    if parts and all(isinstance(p, Tensor) for p in parts):
        return ops.concat(parts) if len(parts) > 1 else parts[0].clone()
    if parts and all(isinstance(p, np.ndarray) for p in parts):
        return np.concatenate(parts)
    return [result for part in parts for result in part]


def _size_for(op: str, size: int | None) -> int:
    """Return the size measured under a name, or `size` itself, with a warning where it was measured far slower."""
    known = measured_size(op)
    if size is None:
        if known is None:
            raise ArgumentError(
                f"process_in_batches: no size was measured under {op!r}; call find_optimal_batch_size({op!r}, maximum, fn), or "
                f"give a size."
            )
        return int(known)
    if known is not None and (advice := known.advice(size)):
        warnings.warn(f"process_in_batches, {op}: {advice}", stacklevel=4)  # above the check of the arguments
    return size


def _batches(data: Any, size: int) -> Iterator[Batch]:
    if isinstance(data, (Tensor, np.ndarray)):
        if not data.ndim:
            raise ArgumentError("process_in_batches: a 0-d tensor has no items; give data with a first axis.")
        return _split(data, size)
    if not isinstance(data, Iterable) and not hasattr(data, "__getitem__"):
        raise ArgumentError(f"process_in_batches: {type(data).__name__} is not a tensor, list or generator of items.")
    try:
        items = iter(data)
    except TypeError:
        raise ArgumentError(
            f"process_in_batches: {shown(data)} has no items; give a tensor, list or generator."
        ) from None
    return _collect(items, size)


def _split(data: Any, size: int) -> Iterator[Batch]:
    """Yield parts along axis 0; one empty part for empty data, since only fn knows the shape of its results."""
    for number, first in enumerate(range(0, max(len(data), 1), size)):
        part = data[first : first + size]
        yield Batch(number, first, part, len(part))


def _collect(items: Iterator[Any], size: int) -> Iterator[Batch]:
    """Yield the items in lists."""
    number = first = 0
    while True:
        part: list[Any] = []
        try:
            part.extend(islice(items, size))
        except Exception as error:
            item = first + len(part)
            raise BatchError(
                f"process_in_batches: the data failed at item {item}, while batch {number} was read: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not part:
            return
        yield Batch(number, first, part, len(part))
        number, first = number + 1, first + len(part)


class Rows:
    """The results of a batch as a dict or tuple of tensors and arrays, with one row for each item."""

    def __init__(self, value: Any, keys: tuple[Any, ...], parts: list[Any], count: int) -> None:
        self.value, self.keys, self.parts, self.count = value, keys, parts, count

    def rebuilt(self, parts: Iterable[Any]) -> Any:
        """Return a value like this one with other parts."""
        if isinstance(self.value, dict):
            return dict(zip(self.keys, parts, strict=True))
        return type(self.value)(*parts) if hasattr(self.value, "_fields") else tuple(parts)

    def joined(self, others: list[Rows]) -> Any:
        """Return the rows of all batches, part by part."""
        for other in others:
            if (type(other.value), other.keys) != (type(self.value), self.keys):
                raise BatchError(
                    f"process_in_batches: one batch gave {self.described()}, another {other.described()}; return the same parts "
                    f"for each."
                )
        return self.rebuilt(_join([o.parts[i] for o in others]) for i in range(len(self.keys)))

    def described(self) -> str:
        names = ", ".join(map(repr, self.keys))
        return f"a dict of {names}" if isinstance(self.value, dict) else f"a tuple of {len(self.keys)}"

    def __iter__(self) -> Iterator[Any]:
        return (self.rebuilt(row) for row in zip(*self.parts, strict=True))


def _rows_of(value: Any, count: int) -> Rows | None:
    """Return a dict or tuple of tensors and arrays, nested too, as rows; None: it is something else."""
    if not isinstance(value, (dict, tuple)) or not value:
        return None
    keys = tuple(value) if isinstance(value, dict) else tuple(range(len(value)))
    parts: list[Any] = []
    part: Any
    for x in value.values() if isinstance(value, dict) else value:
        if isinstance(x, (Tensor, np.ndarray)):
            part = x if x.ndim and len(x) == count else None
        else:
            part = _rows_of(x, count)
        if part is None:
            return None
        parts.append(part)
    return Rows(value, keys, parts, count)


def _results(fn: Callable[[Any], Any], batch: Batch) -> Any:
    try:
        results = fn(batch.items)
        if isinstance(results, Iterator):
            results = list(results)
    except Exception as error:
        raise BatchError(f"process_in_batches: {batch} failed: {type(error).__name__}: {error}") from error
    nested = _rows_of(results, batch.count)
    if nested is not None:
        return nested
    if isinstance(results, dict):
        raise BatchError(
            f"process_in_batches: {batch} gave {shown(results)}; the parts of a dict must be tensors or arrays with a row for "
            f"each of the {batch.count} items."
        )
    if not hasattr(results, "__len__") or (isinstance(results, (Tensor, np.ndarray)) and not results.ndim):
        kind = "a 0-d tensor" if hasattr(results, "ndim") else type(results).__name__
        raise BatchError(
            f"process_in_batches: {batch} gave {kind}; return a sequence or tensor of {batch.count} results."
        )
    if len(results) != batch.count:
        raise BatchError(
            f"process_in_batches: {batch} gave {len(results)} results for {batch.count} items; give one for each."
        )
    return results


# ---- how large


class Trial(NamedTuple):
    """Measurements of one batch size."""

    size: int
    seconds: tuple[float, ...]  # every run
    peak_bytes: int  # of tensors, above what was there before
    failed: str = ""  # why it has no times

    @property
    def per_item_s(self) -> float:
        return float(np.median(self.seconds)) / self.size if self.seconds else float("inf")

    @property
    def items_per_s(self) -> float:
        return 1 / self.per_item_s


class BatchSize(int):
    """A batch size and the reason for it. It is an int; printing it shows the reason."""

    why: str
    trials: tuple[Trial, ...]

    def __new__(cls, size: int, why: str, trials: tuple[Trial, ...] = ()) -> BatchSize:
        self = super().__new__(cls, size)
        self.why, self.trials = why, trials
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.size, self.why, self.trials

    @property
    def size(self) -> int:
        return int(self)

    def advice(self, size: int) -> str:
        """Return how much slower a batch of `size` items was measured than this one; "" where the difference is small."""
        ran = [t for t in self.trials if t.seconds]
        best = next((t for t in ran if t.size == self.size), None)
        smaller = [t for t in ran if t.size <= size] or ran[:1]
        if best is None or size >= self.size:
            return ""
        nearest = max(smaller, key=lambda t: t.size)
        fastest_s = min(nearest.seconds) / nearest.size
        if fastest_s < SLOWDOWN * max(best.seconds) / best.size:
            return ""
        return (
            f"a batch of {size} is small: {nearest.size} at a time gave {nearest.items_per_s:.3g} items/s, {best.size} gave "
            f"{best.items_per_s:.3g} items/s, {nearest.per_item_s / best.per_item_s:.1f} times as many (median of {len(best.seconds)} runs)."
        )

    def __repr__(self) -> str:
        return f"{self.size}: {self.why}"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.size, spec)


@checked_except("fn", "maximum")
def find_optimal_batch_size(
    graph: Any = None,
    maximum: int | None = None,
    fn: Callable[[int], Any] | None = None,
    *,
    memory: int | None = None,
    threads: int | None = None,
    measure: Callable[[int], Any] | None = None,
    sizes: Sequence[int] | None = None,
    runs: int | None = None,
) -> BatchSize:
    """Return the number of samples to compute at once, by a search, by a formula or by measuring given sizes.

    With a name, the largest size and fn: fn(n) computes a batch of n, or returns how long that took (a timedelta, or
    seconds). 1, 2, 4 … and the largest are tried in order until memory runs out; then all run several times in random order. The
    smallest within 2 % of the highest rate wins, and is known to process_in_batches(op=name).
    With a graph, a compiled program or a compiled function (its last program counts) of one sample: as many as the
    memory holds, at most two for each thread, at least
    one. With `measure`: measure(n) computes a batch of n; the size with the lowest median time per item that stays within
    the memory wins. `memory` is in bytes, by default what is free.
    """
    for name, n in (("memory", memory), ("threads", threads), ("runs", runs)):
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < (name != "memory")):
            value = n if isinstance(n, (int, float, str)) else type(n).__name__
            raise ArgumentError(f"find_optimal_batch_size: {name} must be a whole number above 0, given {value!r}.")
    room = available_memory() if memory is None else memory
    if isinstance(graph, str):
        result = _measured_by_name[graph] = _search(graph, maximum, fn, sizes, runs or SEARCH_RUNS, room)
        return result
    if maximum is not None or fn is not None:
        raise ArgumentError(
            "find_optimal_batch_size: maximum and fn go with a name: find_optimal_batch_size('name', 128, fn)."
        )
    per_sample = None if graph is None else bytes_per_sample(graph)
    if measure is not None:
        return _measure_sizes(measure, SIZES if sizes is None else sizes, runs or RUNS, room, per_sample)
    if per_sample is None:
        raise ArgumentError(
            "find_optimal_batch_size: give a graph of one sample, or measure=, a function of a batch size, or a name, the "
            "largest size and that function."
        )
    return _by_formula(per_sample, room, get_num_threads() if threads is None else threads)


def _by_formula(per_sample: int, room: int, count: int) -> BatchSize:
    by_memory, by_threads = room // max(per_sample, 1), PER_THREAD * count
    holds = f"{bytes_text(room)} of memory at {bytes_text(per_sample)} per sample"
    work = f"{PER_THREAD} x {count} thread{'s' * (count > 1)}"
    if by_memory < 1:
        return BatchSize(
            1, f"one sample needs {bytes_text(per_sample)}, more than the {bytes_text(room)} of memory available"
        )
    if by_memory < by_threads:
        return BatchSize(by_memory, f"{holds} hold {by_memory}; {work} could use {by_threads}")
    return BatchSize(by_threads, f"{work}; {holds} would hold {by_memory}")


def bytes_per_sample(graph: Any) -> int:
    """Return the bytes one call needs: arguments, results and temporaries in the best order; not captured tensors, which exist anyway."""
    if isinstance(graph, Compiled):
        program = graph.last_program
        if program is None:
            raise ArgumentError(
                "find_optimal_batch_size: the compiled function was not called yet; call it with one sample, or give "
                "compiled.program(x)."
            )
        graph = program
    known = getattr(graph, "bytes_per_call", None)
    if known is not None:
        return int(known)
    if not isinstance(graph, Graph):
        raise ArgumentError(
            f"find_optimal_batch_size: {type(graph).__name__} is not a graph or a program; make one with trace(fn, spec) or "
            f"compile(fn).program(x)."
        )
    number = {node: i for i, node in enumerate(graph.order())}
    items = []
    for node in number:
        inputs = tuple(number[i] for i in node.inputs if i is not None)
        nbytes = 0 if node.op in (ops.given, ops.const) else sum(s.nbytes for s in outputs(node.spec))
        items.append(schedule.Item(inputs, nbytes, inputs[0] if node.op.kind is Kind.VIEW else None))
    keep = frozenset(number[n] for n in graph.roots)
    return sum(n.spec.nbytes for n in graph.inputs) + schedule.peak(items, keep, schedule.order(items, keep))


def available_memory() -> int:
    """Return the bytes this process can still allocate: what the machine has free, and what its own limit leaves."""
    free = free_memory()
    if native is not None and (limit := native.memory_limit()):
        free = min(free, max(0, limit - (resident_bytes() or 0)))
    return free


def _measure_sizes(
    measure: Callable[[int], Any], sizes: Sequence[int], runs: int, room: int, per_sample: int | None
) -> BatchSize:
    order = sorted(set(sizes))
    if not callable(measure) or not order or any(not isinstance(n, int) or n < 1 for n in order):
        raise ArgumentError(
            f"find_optimal_batch_size: measure must be a function and sizes whole numbers above 0, given {measure!r} and "
            f"{tuple(sizes)!r}."
        )
    trials: list[Trial] = []
    left_out = ""
    for n in order:
        # Before a size is tried: going over the memory of the machine may end the process.
        expected = (
            per_sample * n if per_sample is not None else trials[-1].peak_bytes * n // trials[-1].size if trials else 0
        )
        if expected > room and n > order[0]:
            left_out = f"; {n} and more would take about {bytes_text(expected)}, and {bytes_text(room)} may be used"
            break
        trials.append(_trial(measure, n, runs))
    fitting = [t for t in trials if t.peak_bytes <= room] or trials[:1]
    best = min(fitting, key=lambda t: t.per_item_s)
    times = ", ".join(f"{t.size}: {seconds_text(t.per_item_s)}" for t in trials)
    over = [str(t.size) for t in trials if t not in fitting]
    left_out += f"; over the {bytes_text(room)} that may be used: {', '.join(over)}" if over else ""
    why = f"least time per item of those measured ({times}; median of {runs} run{'s' * (runs > 1)}), {bytes_text(best.peak_bytes)} at its peak"
    return BatchSize(best.size, why + left_out, tuple(trials))


def _trial(measure: Callable[[int], Any], n: int, runs: int) -> Trial:
    with usage() as used:
        measure(n)  # the first run warms up: it is not timed
    seconds = []
    for _ in range(runs):
        start = perf_counter()
        measure(n)
        seconds.append(perf_counter() - start)
    return Trial(n, tuple(seconds), max(0, used.peak_above_start))


# ---- by name

_measured_by_name: dict[str, BatchSize] = {}


def measured_size(op: str) -> BatchSize | None:
    """Return the size measured under a name, in this process or stored by `perf.tune.tune_batch`; None if there is none."""
    if op in _measured_by_name:
        return _measured_by_name[op]
    choice = tuned.choices().get(f"batch/{op}")
    return None if choice is None or not isinstance(choice.value, int) else BatchSize(choice.value, choice.why)


def _search(op: str, maximum: Any, fn: Any, sizes: Sequence[int] | None, runs: int, room: int) -> BatchSize:
    if not isinstance(maximum, int) or isinstance(maximum, bool) or maximum < 1 or not callable(fn):
        raise ArgumentError(
            f"find_optimal_batch_size: {op!r} needs the largest size, a whole number above 0, and a function of a size; given "
            f"{maximum!r} and {fn!r}."
        )
    order = sorted({*(1 << i for i in range(maximum.bit_length())), maximum} if sizes is None else set(sizes))
    if not order or any(not isinstance(n, int) or not 1 <= n <= maximum for n in order):
        raise ArgumentError(f"find_optimal_batch_size: sizes must lie between 1 and {maximum}, given {order}.")
    trials, ended = _sizes_that_fit(fn, order, room)
    fitting = [n for n, t in trials.items() if not t.failed]
    if not fitting:
        raise BatchError(
            f"find_optimal_batch_size: no batch of {op!r} ran: {'; '.join(t.failed for t in trials.values())}"
        )
    shuffled = random.Random(len(fitting))
    times: dict[int, list[float]] = {n: [] for n in fitting}
    for _ in range(runs):
        for n in shuffled.sample(fitting, len(fitting)):
            times[n].append(timed(fn, n))
    done = tuple(t._replace(seconds=tuple(times.get(n, ()))) for n, t in trials.items())
    highest = max(t.items_per_s for t in done)
    best = next(t for t in done if t.items_per_s >= NEAR * highest)
    rates = ", ".join(f"{t.size}: {t.items_per_s:.3g}/s" if t.seconds else f"{t.size}: {t.failed}" for t in done)
    return BatchSize(
        best.size,
        f"the smallest within 2 % of the highest rate ({rates}; median of {runs} run{'s' * (runs > 1)}){ended}",
        done,
    )


def _sizes_that_fit(fn: Callable[[int], Any], order: Sequence[int], room: int) -> tuple[dict[int, Trial], str]:
    """Run each size once, the smallest first; return the trials, and why larger ones were not tried."""
    trials: dict[int, Trial] = {}
    ran: Trial | None = None
    for n in order:
        expected = ran.peak_bytes * n // ran.size if ran is not None else 0
        if expected > room:
            return trials, f"; {n} and more would take about {bytes_text(expected)}, and {bytes_text(room)} may be used"
        try:
            with usage() as used:
                timed(fn, n)
        except MemoryError:
            trials[n] = Trial(n, (), 0, "out of memory")
            return trials, f"; {n} ran out of memory, larger ones were not tried"
        except Exception as error:
            trials[n] = Trial(n, (), 0, f"{type(error).__name__}: {error}")
            continue
        peak = max(0, used.peak_above_start)
        if peak > room:
            trials[n] = Trial(n, (), peak, f"takes {bytes_text(peak)}, and {bytes_text(room)} may be used")
            return trials, f"; {n} and more take over {bytes_text(room)}"
        ran = trials[n] = Trial(n, (), peak)
    return trials, ""


def timed(fn: Callable[[Any], Any], argument: Any) -> float:
    """Return the seconds of one call: its return value if that is a time, else the time until its result was ready."""
    start = perf_counter()
    result = fn(argument)
    if isinstance(result, Tensor):
        result.device.backend.synchronize()
    elapsed = perf_counter() - start
    reported = seconds_in(result)
    return elapsed if reported is None else reported


def seconds_in(result: Any) -> float | None:
    """Return the seconds a function returned; None if it returned something else."""
    if isinstance(result, timedelta):
        result = result.total_seconds()
    if isinstance(result, bool) or not isinstance(result, (int, float)):
        return None
    if not isfinite(result) or result <= 0:
        raise ArgumentError(f"the function returned {result!r}, which is no time; return seconds above 0, or nothing.")
    return float(result)


@checked_except("size")
def advise_batch(fn: Callable[[int], Any], size: int, *, maximum: int = 128, memory: int | None = None) -> BatchSize:
    """Measure a batch size and larger ones; warn, with both rates, where larger batches are far faster.

    fn(n) computes a batch of n, or returns how long that took. Returns the best size, with all measurements in `.trials`.
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ArgumentError(f"advise_batch: size must be 1 or more items, given {size!r}.")
    most = max(maximum, size)
    larger = {size << i for i in range(1, (most // size).bit_length()) if size << i <= most}
    room = available_memory() if memory is None else memory
    best = _search("advise_batch", most, fn, sorted({size, most, *larger}), SEARCH_RUNS, room)
    if advice := best.advice(size):
        warnings.warn(advice, stacklevel=3)  # above the check of the arguments
    return best

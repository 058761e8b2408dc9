"""Record a program while it runs: every call timed, and operands inspected for the first call of each kind.

Calls are timed by the recorder, which lets native code replay them; operands are inspected only for calls that reach
Python: the first of each kind, and every product. Findings about layouts and values are about those.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from tritium import launch, memory, ops, recording
from tritium.buffer import host
from tritium.compiler import program
from tritium.dtype import f32
from tritium.op import OPS, Interpreter, Kind, Op, Spec, Specs, eager
from tritium.quant import scale_of
from tritium.see.memory import hub
from tritium.tensor import Tensor

LEAST_STRIDED = 1 << 12  # elements: below, strides cost less than the call
LEAST_WEIGHTS = 1 << 14  # elements of a matrix whose values are inspected
SMALL_NS = 50_000  # in a shorter call the overhead dominates


@dataclass(frozen=True)
class Calls:
    """All calls of one kernel on one kind of operands."""

    op: Op
    kernel: str
    device: str
    inputs: Specs
    out: Any
    elapsed_ns: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def total_ns(self) -> int:
        return int(self.elapsed_ns.sum())

    def __str__(self) -> str:
        return f"{self.op.name}({', '.join(str(s) for s in self.inputs if s is not None)})"


@dataclass(frozen=True)
class Copied:
    """Copies made at one line of the program by a view op whose input layout cannot be viewed that way."""

    op: str
    site: str
    count: int
    nbytes: int


@dataclass(frozen=True)
class Strided:
    """A call with a non-contiguous operand."""

    op: str
    site: str
    spec: Spec
    strides: tuple[int, ...]
    inputs: Specs


@dataclass(frozen=True)
class Ternary:
    """f32 weights of which every value is -s, 0 or s."""

    op: str
    site: str
    spec: Spec
    scale: float
    zeros: float  # share of zeros


@dataclass(frozen=True)
class Chains:
    """Consecutive elementwise calls, each on the result of the previous one."""

    calls: int
    elapsed_ns: int
    saved_bytes: int  # memory traffic that fusion would save
    names: tuple[str, ...]  # of the most frequent chain
    times: int  # occurrences of that chain


class Transfers(NamedTuple):
    """Counts of transfers between devices."""

    transfers: int = 0
    nbytes: int = 0
    elapsed_ns: int = 0


class Compilations(NamedTuple):
    """Calls of compiled functions, and programs compiled for them."""

    calls: int = 0
    programs: int = 0


@dataclass(frozen=True)
class Run:
    """The record of one run of a program."""

    seconds: float
    calls: tuple[Calls, ...] = ()
    eager_calls: int = 0  # outside compiled functions
    chains: Chains | None = None
    before: memory.Stats | None = None
    after: memory.Stats | None = None
    transfers: Transfers = field(default_factory=Transfers)
    compiled: Compilations = field(default_factory=Compilations)
    copies: tuple[Copied, ...] = ()
    strided: tuple[Strided, ...] = ()
    ternary: tuple[Ternary, ...] = ()
    dropped: int = 0


# ---- recording


@dataclass
class Notes:
    """Observations of the operand inspector."""

    copies: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    strided: dict[tuple[str, str], Strided] = field(default_factory=dict)
    ternary: dict[tuple[str, str, Spec], Ternary | None] = field(default_factory=dict)


def site() -> str:
    """Return the line of the user's program that led here: "file:line"."""
    return hub.site(*hub.place(sys._getframe(1)))


class OperandInspector:
    """An interpreter that inspects the operands of calls and passes them on to another interpreter."""

    def __init__(self, interpreter: Interpreter, notes: Notes) -> None:
        self.interpreter, self.notes = interpreter, notes

    def emit(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any, call: Any) -> Any:
        product = op in (ops.matmul, ops.linear) and len(inputs) > 1
        # Without `call`, native code cannot replay it: every product comes through here, with its weights.
        result = self.interpreter.emit(op, inputs, attrs, out, None if product else call)
        if op.kind is Kind.VIEW:
            self.view(op, inputs[0], attrs)
        elif op.kind in (Kind.MAP, Kind.REDUCE):
            self.elements(op, inputs)
        elif product:
            self.weights(op, inputs[1])
        return result

    def view(self, op: Op, x: Any, attrs: dict[str, Any]) -> None:
        if isinstance(x, Tensor) and op.view is not None and op.view(x.layout, **attrs) is None:
            totals = self.notes.copies.setdefault((op.name, site()), [0, 0])
            totals[0] += 1
            totals[1] += x.nbytes

    def elements(self, op: Op, inputs: tuple[Any, ...]) -> None:
        for x in inputs:
            if not isinstance(x, Tensor) or x.size < LEAST_STRIDED or x.is_contiguous() or 0 in x.strides:
                continue
            specs = tuple(i.spec if isinstance(i, Tensor) else None for i in inputs)
            self.notes.strided.setdefault((op.name, site()), Strided(op.name, site(), x.spec, x.strides, specs))

    def weights(self, op: Op, w: Any) -> None:
        if not isinstance(w, Tensor) or w.dtype is not f32 or w.ndim != 2 or w.size < LEAST_WEIGHTS:
            return
        key = (op.name, site(), w.spec)
        if w.device.type == "cpu" and key not in self.notes.ternary:
            scale = scale_of(host(w))
            self.notes.ternary[key] = Ternary(*key, *scale) if scale is not None and scale.scale else None


@contextmanager
def watching() -> Iterator[Callable[[], Run]]:
    """Record the block: `with watching() as result:` …, then result() returns the Run. One at a time in a process."""
    notes, recorder = Notes(), recording.Recorder()
    for op in OPS.values():
        op.forget()  # so that the first call of each kind reaches Python again, where it is inspected
    before, transfers, programs = memory.stats(), _transfers(), program.counters.programs
    interpreter = eager[0]
    eager[0] = OperandInspector(interpreter, notes)
    result = Run(0.0)
    recorder.start()
    start = perf_counter()
    try:
        yield lambda: result
    finally:
        seconds = perf_counter() - start
        recorder.stop()
        eager[0] = interpreter
        events, spans = recorder.read()
        runs = sum(isinstance(what, launch.Ran) for what in events)
        result = replace(
            summarize(events, np.asarray(spans), seconds),
            before=before,
            after=memory.stats(),
            transfers=_subtract(_transfers(), transfers),
            compiled=Compilations(runs, program.counters.programs - programs),
            copies=tuple(Copied(name, place, n, size) for (name, place), (n, size) in notes.copies.items()),
            strided=tuple(notes.strided.values()),
            ternary=tuple(t for t in notes.ternary.values() if t is not None),
            dropped=recorder.dropped,
        )


def _transfers() -> Transfers:
    c = launch.counters
    return Transfers(c.transfers, c.transfer_bytes, c.transfer_ns)


def _subtract(now: Transfers, then: Transfers) -> Transfers:
    return Transfers(*(a - b for a, b in zip(now, then, strict=True)))


def summarize(events: Sequence[Any], spans: np.ndarray[Any, Any], seconds: float) -> Run:
    """Group the spans by kind of call, and find the chains among those outside compiled functions."""
    spans = spans.reshape(-1, 3)
    order = np.lexsort((-spans[:, 1], spans[:, 0], spans[:, 2]))
    kinds: dict[Any, tuple[Any, list[int]]] = {}
    eager_calls: list[tuple[Any, int, int]] = []  # outside compiled functions: event, elapsed, thread
    ends: dict[int, int] = {}
    for i in order:
        event, (start, elapsed, thread) = events[i], spans[i].tolist()
        if isinstance(event, launch.Ran):
            ends[thread] = max(ends.get(thread, 0), start + elapsed)
        elif isinstance(event, launch.Launched) and event.op is not None:
            key = (event.op.name, event.kernel, str(event.device), event.inputs, event.out)
            kinds.setdefault(key, (event, []))[1].append(elapsed)
            if start >= ends.get(thread, 0):
                eager_calls.append((event, elapsed, thread))
    calls = tuple(
        Calls(w.op, w.kernel, str(w.device), w.inputs, w.out, np.asarray(times, np.int64))
        for w, times in kinds.values()
    )
    return Run(seconds, calls, len(eager_calls), find_chains(eager_calls))


def find_chains(calls: Sequence[tuple[Any, int, int]]) -> Chains | None:
    """Return the chains of small calls of kind MAP in which each takes an operand with the spec of the previous result.

    Specs do not identify a tensor, so a chain ends where its first op occurs again.
    """
    runs: list[list[tuple[Any, int]]] = []
    last: tuple[Any, int] | None = None  # the previous call and its thread
    for call, elapsed, thread in calls:
        small = call.op.kind is Kind.MAP and elapsed < SMALL_NS and isinstance(call.out, Spec)
        continues = small and last is not None and last[1] == thread and last[0].out in call.inputs
        repeats = continues and len(runs[-1]) > 1 and call.op is runs[-1][0][0].op  # the next iteration of a loop
        if continues and not repeats:
            runs[-1].append((call, elapsed))
        elif small:
            runs.append([(call, elapsed)])
        last = (call, thread) if small else None
    long = [c for c in runs if len(c) > 1]
    if not long:
        return None
    names: dict[tuple[str, ...], int] = {}
    for c in long:
        key = tuple(w.op.name for w, _ in c)
        names[key] = names.get(key, 0) + 1
    most_frequent = max(names, key=lambda key: names[key])
    return Chains(
        sum(map(len, long)),
        sum(ns for c in long for _, ns in c),
        sum(2 * w.out.nbytes for c in long for w, _ in c[:-1]),
        most_frequent,
        names[most_frequent],
    )

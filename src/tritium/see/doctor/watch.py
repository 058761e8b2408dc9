"""A program while it runs: every call timed, and the first of each kind looked at where it reaches Python.

Knows nothing of what is good or bad. Calls are timed by the recorder, which lets native code replay them; their operands are
seen only where a call comes through Python, which is the first of each kind, and every product: what is said of layouts and
values is said of those.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

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
LEAST_WEIGHTS = 1 << 14  # elements of a matrix whose values are looked at
SMALL_NS = 50_000  # a call that is shorter is mostly call


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
    """Copies that a view made because its layout left no other way, at one place of the program."""

    op: str
    site: str
    count: int
    nbytes: int


@dataclass(frozen=True)
class Strided:
    """A call that was given memory with gaps."""

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
    zeros: float  # their share


@dataclass(frozen=True)
class Chains:
    """Calls element by element, one after another, each on a result of the one before."""

    calls: int
    elapsed_ns: int
    saved_bytes: int  # that one pass would not move
    names: tuple[str, ...]  # of the most frequent chain
    times: int  # that it occurred


@dataclass(frozen=True)
class Run:
    """What was seen of a program."""

    seconds: float
    calls: tuple[Calls, ...] = ()
    eager_calls: int = 0  # outside compiled functions
    chains: Chains | None = None
    before: memory.Stats | None = None
    after: memory.Stats | None = None
    transfers: tuple[int, int, int] = (0, 0, 0)  # count, bytes, ns
    compiled: tuple[int, int] = (0, 0)  # calls of compiled functions, programs made for them
    copies: tuple[Copied, ...] = ()
    strided: tuple[Strided, ...] = ()
    ternary: tuple[Ternary, ...] = ()
    dropped: int = 0


# ---- looking


@dataclass
class Notes:
    """What the looker wrote down."""

    copies: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    strided: dict[tuple[str, str], Strided] = field(default_factory=dict)
    ternary: dict[tuple[str, str, Spec], Ternary | None] = field(default_factory=dict)


def site() -> str:
    """The place in the user's program that led here: "file:line"."""
    return hub.site(*hub.place(sys._getframe(1)))


class Looker:
    """Stands before whoever runs calls and looks at what they are given."""

    def __init__(self, runs: Interpreter, notes: Notes) -> None:
        self.runs, self.notes = runs, notes

    def emit(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any, call: Any) -> Any:
        product = op in (ops.matmul, ops.linear) and len(inputs) > 1
        # A call that is not told as it was written is not remembered: products keep coming through here, each with its weights.
        result = self.runs.emit(op, inputs, attrs, out, None if product else call)
        if op.kind is Kind.VIEW:
            self.view(op, inputs[0], attrs)
        elif op.kind in (Kind.MAP, Kind.REDUCE):
            self.elements(op, inputs)
        elif product:
            self.weights(op, inputs[1])
        return result

    def view(self, op: Op, x: Any, attrs: dict[str, Any]) -> None:
        if isinstance(x, Tensor) and op.view is not None and op.view(x.layout, **attrs) is None:
            noted = self.notes.copies.setdefault((op.name, site()), [0, 0])
            noted[0] += 1
            noted[1] += x.nbytes

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
            found = scale_of(host(w))
            self.notes.ternary[key] = Ternary(*key, *found) if found is not None and found.scale else None


@contextmanager
def watching() -> Iterator[Callable[[], Run]]:
    """`with watching() as seen:` … then seen() tells what ran meanwhile. One at a time in a process."""
    notes, recorder = Notes(), recording.Recorder()
    for row in OPS.values():
        row.forget()  # the first call of each kind is to reach Python again, where it is looked at
    before, moved, programs = memory.stats(), _moved(), program.counters.programs
    own = eager[0]
    eager[0] = Looker(own, notes)
    found = Run(0.0)
    recorder.start()
    start = perf_counter()
    try:
        yield lambda: found
    finally:
        seconds = perf_counter() - start
        recorder.stop()
        eager[0] = own
        whats, spans = recorder.read()
        ran = sum(isinstance(what, launch.Ran) for what in whats)
        found = replace(
            summed(whats, np.asarray(spans), seconds),
            before=before,
            after=memory.stats(),
            transfers=_less(_moved(), moved),
            compiled=(ran, program.counters.programs - programs),
            copies=tuple(Copied(op, at, n, size) for (op, at), (n, size) in notes.copies.items()),
            strided=tuple(notes.strided.values()),
            ternary=tuple(t for t in notes.ternary.values() if t is not None),
            dropped=recorder.dropped,
        )


def _moved() -> tuple[int, int, int]:
    c = launch.counters
    return c.transfers, c.transfer_bytes, c.transfer_ns


def _less(now: Any, then: Any) -> Any:
    return tuple(a - b for a, b in zip(now, then, strict=True))


def summed(whats: Sequence[Any], spans: np.ndarray[Any, Any], seconds: float) -> Run:
    """The spans by kind of call, and the chains among those outside compiled functions."""
    spans = spans.reshape(-1, 3)
    order = np.lexsort((-spans[:, 1], spans[:, 0], spans[:, 2]))
    kinds: dict[Any, tuple[Any, list[int]]] = {}
    bare: list[tuple[Any, int, int]] = []  # outside compiled functions: what, elapsed, thread
    ends: dict[int, int] = {}
    for i in order:
        what, (start, elapsed, thread) = whats[i], spans[i].tolist()
        if isinstance(what, launch.Ran):
            ends[thread] = max(ends.get(thread, 0), start + elapsed)
        elif isinstance(what, launch.Launched) and what.op is not None:
            key = (what.op.name, what.kernel, str(what.device), what.inputs, what.out)
            kinds.setdefault(key, (what, []))[1].append(elapsed)
            if start >= ends.get(thread, 0):
                bare.append((what, elapsed, thread))
    calls = tuple(
        Calls(w.op, w.kernel, str(w.device), w.inputs, w.out, np.asarray(times, np.int64))
        for w, times in kinds.values()
    )
    return Run(seconds, calls, len(bare), chains(bare))


def chains(bare: Sequence[tuple[Any, int, int]]) -> Chains | None:
    """Small calls of kind MAP that follow one another, each on a result like that of the one before.

    Whose result it is cannot be told from specs, so a chain ends where its first operation comes again.
    """
    found: list[list[tuple[Any, int]]] = []
    last: tuple[Any, int] | None = None  # the call before, and its thread
    for what, elapsed, thread in bare:
        small = what.op.kind is Kind.MAP and elapsed < SMALL_NS and isinstance(what.out, Spec)
        follows = small and last is not None and last[1] == thread and last[0].out in what.inputs
        again = follows and len(found[-1]) > 1 and what.op is found[-1][0][0].op  # of a loop: its next turn
        if follows and not again:
            found[-1].append((what, elapsed))
        elif small:
            found.append([(what, elapsed)])
        last = (what, thread) if small else None
    long = [c for c in found if len(c) > 1]
    if not long:
        return None
    names: dict[tuple[str, ...], int] = {}
    for c in long:
        key = tuple(w.op.name for w, _ in c)
        names[key] = names.get(key, 0) + 1
    often = max(names, key=lambda key: names[key])
    return Chains(
        sum(map(len, long)),
        sum(ns for c in long for _, ns in c),
        sum(2 * w.out.nbytes for c in long for w, _ in c[:-1]),
        often,
        names[often],
    )

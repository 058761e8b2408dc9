"""A graph as functions of the values that a device's library keeps: no tensor of ours is made between them.

Knows nothing of compilers, nor of what the functions do. What it cannot list runs node by node: graphs that write their
arguments or have a tensor without elements; sources; packed elements that are made; views that are copies; rows that convert or
have no kernel of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

from tritium import ops, settings
from tritium.backends.reference.packed import Packed
from tritium.backends.values.device import ValueBackend
from tritium.backends.values.namespace import Fitted
from tritium.graph.graph import Graph, Node
from tritium.layout import Layout, is_contiguous
from tritium.op import Kind, Spec, outputs


class Step(NamedTuple):
    """One function: the values it reads and the one it makes, by number; and those that nobody reads after it."""

    fn: Callable[..., Any]
    reads: tuple[int, ...]
    makes: int
    over: list[int]


class ValueSteps(NamedTuple):
    """The functions in order. The operands are the first values; the last is None, which stands for operands left out."""

    steps: list[Step]
    results: list[int]
    made: int  # values besides the operands

    def run(self, operands: Sequence[Any]) -> list[Any]:
        values = [*operands, *[None] * self.made]
        for fn, reads, makes, over in self.steps:
            values[makes] = fn(*[values[i] for i in reads])
            for i in over:
                values[i] = None  # its memory serves the next
        return [values[i] for i in self.results]


class UnlistedError(Exception):
    """Why a graph runs node by node."""


def listed(graph: Graph, operands: Sequence[Node], backend: ValueBackend) -> ValueSteps | None:
    """The functions of a graph of these operands; None: it runs node by node."""
    try:
        return _Listing(graph, operands, backend).steps()
    except UnlistedError as why:
        settings.log.debug("%s: a program runs node by node: %s", backend.device, why)
        return None


def _looks(n: Node) -> bool:
    """Whether a node only looks at the memory of another."""
    return n.op.kind is Kind.VIEW and n.op is not ops.item


def _packed(n: Node) -> bool:
    return any(s.dtype.is_packed for s in outputs(n.spec))


def seen(value: Any, spec: Spec) -> Any:
    """A value as kernels take it: bytes of packed elements with what they mean."""
    return Packed(value, spec.dtype, spec.shape) if spec.dtype.is_packed else value


class _Listing:
    """Writes the steps of a graph."""

    def __init__(self, graph: Graph, operands: Sequence[Node], backend: ValueBackend) -> None:
        self.graph, self.backend = graph, backend
        self.order = graph.order()
        self.kept = len(operands)  # whoever gave the operands holds them
        self.given = {n: i for i, n in enumerate(operands)}
        made = [n for n in self.order if n not in self.given or _packed(n)]
        self.number = self.given | {n: i for i, n in enumerate(made, self.kept)}
        self.none = self.kept + len(made)
        self.lie: dict[Node, tuple[Node, Layout]] = {}  # the node whose value it is seen in, and how

    def steps(self) -> ValueSteps:
        graph = self.graph
        if graph.writes or any(not s.size for n in self.order for s in outputs(n.spec)):
            raise UnlistedError("arguments that are written, or no elements")
        if any(_packed(n) for n in (*(n for n in self.order if n not in self.given), *graph.outputs)):
            raise UnlistedError("packed elements that are made")
        read = {i for n in self.order if not _looks(n) for i in n.inputs} | set(graph.outputs)
        found = [s for n in self.order if (s := self._step(n, n in read)) is not None]
        results = [self.number[n] for n in graph.outputs]
        last = {i: k for k, s in enumerate(found) for i in s.reads}
        for i, k in last.items():
            if self.kept <= i < self.none and i not in results:
                found[k].over.append(i)
        return ValueSteps(found, results, self.none + 1 - self.kept)

    def _step(self, n: Node, is_read: bool) -> Step | None:
        at = self.number[n]
        if _looks(n):
            base, lies = self.lie[n] = self._view(n)
            return Step(self._look(base, lies), (self.number[base],), at, []) if is_read else None
        if isinstance(n.spec, Spec):
            self.lie[n] = n, Layout(n.spec.shape, n.spec.strides, 0)
        if n in self.given:
            return Step(partial(seen, spec=n.spec), (self.given[n],), at, []) if _packed(n) else None
        fn = itemgetter(dict(n.attrs)["index"]) if n.op is ops.item else self._function(n)
        return Step(fn, tuple(self.none if i is None else self.number[i] for i in n.inputs), at, [])

    def _view(self, n: Node) -> tuple[Node, Layout]:
        assert n.op.view is not None
        assert n.inputs[0] is not None
        base, before = self.lie[n.inputs[0]]
        lies = n.op.view(before, **dict(n.attrs))
        if lies is None:
            raise UnlistedError(f"{n.op.name} that is a copy")
        return base, lies

    def _look(self, base: Node, lies: Layout) -> Callable[[Any], Any]:
        reshape, strided = self.backend.reshape, self.backend.strided
        flat = is_contiguous(lies.shape, lies.strides) and lies.offset == 0
        if flat and prod(lies.shape) == base.spec.size:
            return lambda value: reshape(value, lies.shape)
        return lambda value: strided(value, lies)

    def _function(self, n: Node) -> Callable[..., Any]:
        """What a call of a row comes to, as `Eager` and the backend's `run` would have it."""
        if n.op.kind in (Kind.SOURCE, Kind.DYNAMIC) or n.op is ops.update_cache:
            raise UnlistedError(n.op.name)
        attrs = dict(n.attrs)
        specs = tuple(None if i is None else i.spec for i in n.inputs)
        decision = n.op.decide(specs, attrs)
        layouts = tuple(None if i is None else self.lie[i][1] for i in n.inputs)
        kernel = self.backend.choose(n.op, specs, attrs, layouts)
        if kernel is None or decision.inputs != specs or decision.out != n.spec:
            raise UnlistedError(f"{n.op.name} that is lowered or converts")
        fn = self.backend.ready(kernel, n.spec, attrs)
        return fn.choose(*specs) if isinstance(fn, Fitted) else fn

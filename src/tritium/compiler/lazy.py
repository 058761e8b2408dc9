"""lazy: expressions that are recorded now and computed once, when a value is read.

An expression reads tensors as they were when it was recorded: later writes to them copy first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextvars import Token
from typing import Any
from weakref import WeakSet

from tritium import backends, ops
from tritium.arguments import checked
from tritium.compiler.program import Program
from tritium.eager import EAGER
from tritium.errors import TraceError
from tritium.graph.graph import Cell, Graph, Node, Trace, Traced, tracing
from tritium.op import Call, Kind, Op, Spec, interpreter
from tritium.tensor import Tensor

MAX_PROGRAMS = 128
_lock = threading.Lock()
_programs: OrderedDict[Any, Program] = OrderedDict()  # by structure: equal expressions share a program


class LazyTrace(Trace):
    """A trace whose nodes can be computed before it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[Node, Tensor] = {}
        self.cells: WeakSet[Cell] = WeakSet()  # of tensors that are alive: their values may be read
        self.alive: list[
            Tensor
        ] = []  # tensors whose id() is a key of _inputs, so that no other tensor gets the same id

    def read(self, x: Tensor) -> Node:
        if not isinstance(x.storage, Traced) and not self._is_unchanged(x):
            self._inputs.pop(id(x), None)
            node = super().read(x)
            self.alive.append(x)
            token = interpreter.set(None)
            try:
                self.captured[node] = x.clone()
            finally:
                interpreter.reset(token)
            return node
        return super().read(x)

    def _is_unchanged(self, x: Tensor) -> bool:
        """Return True if a captured tensor still shares memory with its clone; a write would have moved it."""
        node = self._inputs.get(id(x))
        return node is not None and self.captured[node].address == x.address

    def tensor(self, node: Node, owner: str = "made") -> Tensor:
        x = super().tensor(node, owner)
        self.cells.add(x.storage.cell)
        return x

    def emit(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any, call: Call | None) -> Any:
        if op.kind is not Kind.DYNAMIC:
            return super().emit(op, inputs, attrs, out, call)
        token = interpreter.set(None)
        try:  # the size of the result depends on values, so they are read now
            return EAGER.emit(op, inputs, attrs, out, None)
        finally:
            interpreter.reset(token)

    def materialize(self, x: Tensor) -> Tensor:
        """Return the value of a tensor of this trace; compute it on the first call."""
        token = interpreter.set(None)
        try:
            value = self._value(x.storage.cell.node)
            for op, attrs in x.storage.chain:
                value = EAGER.emit(op, (value,), dict(attrs), None, None)
            return value.clone()
        finally:
            interpreter.reset(token)

    def _value(self, node: Node) -> Tensor:
        if node in self.captured:
            return self.captured[node]
        if node not in self.values:
            outputs = (node, *self._shared(node))
            graph, args = self._graph(outputs)
            device = args[0].device if args else backends.device(None)
            key = (structure(graph), device, tuple(a.layout for a in args))
            with _lock:
                program = _programs.get(key)
                if program is not None:
                    _programs.move_to_end(key)
            if program is None:
                program = Program(graph, device.backend, tuple(a.layout for a in args), name="lazy")
                with _lock:
                    _programs[key] = program
                    while len(_programs) > MAX_PROGRAMS:
                        _programs.popitem(last=False)
            results = program(*args)
            self.values |= dict(zip(outputs, (results,) if len(outputs) == 1 else results, strict=True))
            self._forget(node)
        return self.values[node]

    def _shared(self, node: Node) -> list[Node]:
        """Return the nodes on the way to a node whose values are read later: by a tensor, or on the way to another one."""
        known = self.captured.keys() | self.values.keys()
        inside = Graph((), (node,), {}, True).order(frozenset(known))
        cone = set(inside)
        live = {cell.node for cell in list(self.cells)}
        others = tuple(n for n in live if n not in cone and n not in known)
        read = live | set(Graph((), others, {}, False).order(frozenset(cone | known))) if others else live
        return [
            n
            for n in inside
            if n in read and n not in known and n is not node and isinstance(n.spec, Spec) and _is_work(n)
        ]

    def _forget(self, last: Node) -> None:
        """Drop the values that no tensor reads any more."""
        live = tuple({cell.node for cell in list(self.cells)})
        needed = {last, *Graph((), live, {}, False).order(frozenset(self.values))}
        self.values = {n: x for n, x in self.values.items() if n in needed}

    def _graph(self, nodes: tuple[Node, ...]) -> tuple[Graph, list[Tensor]]:
        """Return the graph of nodes with captured tensors and computed values as arguments, and those arguments."""
        known = self.captured | self.values
        order = Graph((), nodes, {}, True).order(frozenset(known))
        needed = [n for n in order if n in known]
        trace = Trace()
        copies: dict[Node, Node] = {}
        for i, n in enumerate(needed):
            copies[n] = trace.read(trace.argument(i, n.spec))
        inputs = tuple(copies[n] for n in needed)
        for n in order:
            if n not in copies:
                ins = tuple(None if i is None else copies[i] for i in n.inputs)
                copies[n] = trace.node(n.op, ins, n.spec, dict(n.attrs))
        return Graph(inputs, tuple(copies[n] for n in nodes), {}, len(nodes) == 1), [known[n] for n in needed]


def _is_work(n: Node) -> bool:
    """Return True if computing a node again would take time: it is no view and no constant."""
    return n.op.kind is not Kind.VIEW and n.op not in (ops.given, ops.const)


def structure(graph: Graph) -> Any:
    """Return a hashable key that is equal for two graphs exactly if they have the same nodes and edges."""
    number: dict[Node, int] = {}
    entries = []
    for n in graph.order():
        entries.append((n.op, tuple(None if i is None else number[i] for i in n.inputs), n.key, n.spec))
        number[n] = len(number)
    return (
        tuple(entries),
        tuple(number[n] for n in graph.inputs if n in number),
        tuple(number[n] for n in graph.outputs),
    )


class Lazy:
    """The context manager of `with tt.lazy():`: calls inside are recorded, and computed when a value is read."""

    def __init__(self) -> None:
        self.trace = LazyTrace()
        self._token: Token[Any] | None = None

    def __enter__(self) -> Lazy:
        if interpreter.get() is not None:
            raise TraceError(
                "lazy() inside a traced function or another lazy(): calls are recorded there already; leave this lazy() out."
            )
        self._token = interpreter.set(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        interpreter.reset(self._token)


@checked
def lazy(fn: Callable[..., Any] | None = None, *args: Any) -> Any:
    """Record an expression and compute it once, when its value is read: `with tt.lazy(): y = a @ b + c`, then `float(y[0, 0])`.

    `y.materialize()` returns the value as a tensor. `tt.lazy(fn, *args)` does the same for the result of a function.
    """
    if fn is None:
        return Lazy()
    with tracing(LazyTrace()):
        return fn(*args)

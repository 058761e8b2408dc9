"""lazy: expressions that are recorded now and computed once, by `materialize()`.

Knows nothing of perf. An expression reads tensors as they were when it was recorded: later writes to them copy first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextvars import Token
from typing import Any

from tritium import backends
from tritium.compiler.program import Program
from tritium.errors import TraceError, checked
from tritium.graph.graph import Graph, Node, Trace, Traced, tracing
from tritium.op import interpreter
from tritium.tensor import Tensor

MAX_PROGRAMS = 128
_lock = threading.Lock()
_programs: OrderedDict[Any, Program] = OrderedDict()  # by structure: equal expressions share a program


class LazyTrace(Trace):
    """A trace whose nodes can be computed before it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[Node, Tensor] = {}
        self.alive: list[Tensor] = []  # tensors whose id() is a key of _cells, so that no other tensor gets the same id

    def read(self, x: Tensor) -> Node:
        if not isinstance(x.storage, Traced) and not self._is_unchanged(x):
            self._cells.pop(id(x), None)
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
        cell = self._cells.get(id(x))
        return cell is not None and self.captured[cell.node].address == x.address

    def materialize(self, x: Tensor) -> Tensor:
        """Return the value of a tensor of this trace; compute it on the first call."""
        token = interpreter.set(None)
        try:
            return self._value(self.read(x)).clone()
        finally:
            interpreter.reset(token)

    def _value(self, node: Node) -> Tensor:
        if node in self.captured:
            return self.captured[node]
        if node not in self.values:
            graph, args = self._graph(node)
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
            self.values[node] = program(*args)
        return self.values[node]

    def _graph(self, node: Node) -> tuple[Graph, list[Tensor]]:
        """Return the graph of a node with captured tensors and computed values as arguments, and those arguments."""
        known = self.captured | self.values
        pending = Graph((), (node,), {}, True)
        needed = [n for n in pending.order(frozenset(known)) if n in known]
        trace = Trace()
        copies: dict[Node, Node] = {}
        for i, n in enumerate(needed):
            copies[n] = trace.read(trace.argument(i, n.spec))
        inputs = tuple(copies[n] for n in needed)
        for n in pending.order(frozenset(known)):
            if n not in copies:
                ins = tuple(None if i is None else copies[i] for i in n.inputs)
                copies[n] = trace.node(n.op, ins, n.spec, dict(n.attrs))
        return Graph(inputs, (copies[node],), {}, True), [known[n] for n in needed]


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
    """The context manager of `with tt.lazy():`: calls inside are recorded; `y.materialize()` computes, inside or after."""

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
    """Record an expression and compute it once, when needed: `with tt.lazy(): y = a @ b + c`, then `y.materialize()`.

    `tt.lazy(fn, *args)` does the same for the result of a function.
    """
    if fn is None:
        return Lazy()
    with tracing(LazyTrace()):
        return fn(*args)

"""lazy: expressions that are written down now and computed once, when `materialize()` asks for them.

Knows nothing of perf. What an expression reads is held as it was when it was written: a later write makes a copy.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextvars import Token
from typing import Any

from tritium import backends
from tritium.compiler.program import Program
from tritium.errors import TraceError
from tritium.graph.graph import Graph, Node, Trace, Traced, tracing
from tritium.op import interpreter
from tritium.tensor import Tensor

MAX_PROGRAMS = 128
_lock = threading.Lock()
_programs: OrderedDict[Any, Program] = OrderedDict()  # by structure: equal expressions share one


class LazyTrace(Trace):
    """A trace whose nodes can be computed."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[Node, Tensor] = {}
        self.kept: list[Tensor] = []  # whose identity stands for a node: another must not take their address

    def read(self, x: Tensor) -> Node:
        if not isinstance(x.storage, Traced) and not self._is_as_it_was(x):
            self._cells.pop(id(x), None)
            node = super().read(x)
            self.kept.append(x)
            token = interpreter.set(None)
            try:
                self.captured[node] = x.clone()
            finally:
                interpreter.reset(token)
            return node
        return super().read(x)

    def _is_as_it_was(self, x: Tensor) -> bool:
        """Whether a tensor met before still shares the memory that was held for it: a write would have moved it."""
        cell = self._cells.get(id(x))
        return cell is not None and self.captured[cell.node].address == x.address

    def materialize(self, x: Tensor) -> Tensor:
        """The value of a tensor of this trace, computed if it was not yet."""
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
        """What a node needs, from captured tensors and values known already as arguments."""
        known = self.captured | self.values
        whole = Graph((), (node,), {}, True)
        needed = [n for n in whole.order(frozenset(known)) if n in known]
        fresh = Trace()
        new: dict[Node, Node] = {}
        for i, n in enumerate(needed):
            new[n] = fresh.read(fresh.argument(i, n.spec))
        inputs = tuple(new[n] for n in needed)
        for n in whole.order(frozenset(known)):
            if n not in new:
                ins = tuple(None if i is None else new[i] for i in n.inputs)
                new[n] = fresh.node(n.op, ins, n.spec, dict(n.attrs))
        return Graph(inputs, (new[node],), {}, True), [known[n] for n in needed]


def structure(graph: Graph) -> Any:
    """A hashable value that two graphs share exactly when they compute the same from their arguments."""
    number: dict[Node, int] = {}
    rows = []
    for n in graph.order():
        rows.append((n.op, tuple(None if i is None else number[i] for i in n.inputs), n.key, n.spec))
        number[n] = len(number)
    return tuple(rows), tuple(number[n] for n in graph.inputs if n in number), tuple(number[n] for n in graph.outputs)


class Lazy:
    """`with tt.lazy():`: calls inside are written down; `y.materialize()` computes, inside or after."""

    def __init__(self) -> None:
        self.trace = LazyTrace()
        self._token: Token[Any] | None = None

    def __enter__(self) -> Lazy:
        if interpreter.get() is not None:
            raise TraceError(
                "lazy() inside a traced function or another lazy(): what is there is written down already."
            )
        self._token = interpreter.set(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        interpreter.reset(self._token)


def lazy(fn: Callable[..., Any] | None = None, *args: Any) -> Any:
    """Write an expression down and compute it once, when asked: `with tt.lazy(): y = a @ b + c`, then `y.materialize()`.

    `tt.lazy(fn, *args)` does the same for the result of a function.
    """
    if fn is None:
        return Lazy()
    with tracing(LazyTrace()):
        return fn(*args)

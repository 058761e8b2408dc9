"""A graph as one call of a device's own compiler, on the values its tensors hold.

Knows nothing of that compiler, nor of how a graph was optimised. The compiler sees the nodes run on values of its own; from
then on no Python runs between them.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from tritium import ops
from tritium.backends import packed
from tritium.backends.values import Doubt, ValueBackend
from tritium.errors import DeviceError
from tritium.graph import Graph, run_node
from tritium.op import Spec, interpreter
from tritium.tensor import Tensor, wrap


class ForeignProgram:
    """Call it as the graph. What it captured is read anew at each call; donated arguments get their new values."""

    def __init__(self, graph: Graph, backend: ValueBackend) -> None:
        self.graph, self.backend = graph, backend
        # Numbers are operands too: a compiler that writes them down as text may lose the sign of 0.
        numbers = [n for n in graph.order() if n.op is ops.const]
        self._numbers = {n: run_node(n, [], backend.device) for n in numbers}
        self._doubts: list[Doubt] = []
        self._run = backend.compiled(self._nodes)

    @property
    def is_compiled(self) -> bool:
        """Whether the compiler is there."""
        return self._run is not None

    def _nodes(self, *values: Any) -> list[Any]:
        """The nodes one after another on values that stand for the operands; the compiler calls it to see them."""
        graph, backend = self.graph, self.backend
        inside = (*graph.captured, *self._numbers)
        specs = [n.spec for n in (*graph.inputs, *inside)]
        tensors = [wrap(backend.hold(v, s)) for v, s in zip(values, specs, strict=True)]
        count = len(graph.inputs)
        inner = graph._replace(captured=dict(zip(inside, tensors[count:], strict=True)))
        backend.tracing.append([])
        token = interpreter.set(None)
        try:
            found = inner(*tensors[:count])
        finally:
            interpreter.reset(token)
            self._doubts = backend.tracing.pop()
        results = (found,) if isinstance(found, Tensor) else found
        written = tuple(tensors[i] for i, _ in graph.writes)
        bad = [d.bad for d in self._doubts]
        any_bad = [reduce(or_, (b.any() for b in bad))] if bad else []  # one look tells whether all is well
        return [*(_value(backend, x) for x in (*results, *written)), *any_bad, *bad]

    def __call__(self, *args: Tensor) -> Any:
        graph, backend = self.graph, self.backend
        assert self._run is not None
        given = (*args, *graph.captured.values(), *self._numbers.values())
        for x in given:
            if x.device is not backend.device:
                raise DeviceError(
                    f"tensors are on {backend.device} and {x.device}; move one with .to({str(backend.device)!r}): transfers "
                    f"are never hidden."
                )
        found = self._run(*(_value(backend, x) for x in given))
        count = len(graph.outputs)
        self._check(found[count + len(graph.writes) :])
        results: list[Tensor] = []
        for k, (n, value) in enumerate(zip(graph.outputs, found, strict=False)):
            same = graph.returned[k] if graph.returned else None
            results.append(_held(backend, value, n.spec) if same is None else args[same])
        for (i, n), value in zip(graph.writes, found[count:], strict=False):
            backend.put(args[i], _seen(value, n.spec))
        return results[0] if graph.single else tuple(results)

    def _check(self, flags: list[Any]) -> None:
        """Raise what the checks of this run found; nothing was written yet."""
        if flags and self.backend.is_true(flags[0]):
            for d, bad in zip(self._doubts, flags[1:], strict=True):
                if self.backend.is_true(bad):
                    raise d.error(d.message)


def _value(backend: ValueBackend, x: Tensor) -> Any:
    """What stands for a tensor: of a packed dtype its bytes."""
    found = backend.array(x)
    return found.data if isinstance(found, packed.Packed) else found


def _seen(value: Any, spec: Spec) -> Any:
    return packed.Packed(value, spec.dtype, spec.shape) if spec.dtype.is_packed else value


def _held(backend: ValueBackend, value: Any, spec: Spec) -> Tensor:
    return wrap(backend.hold(value, spec))

"""A graph run by a device's own library: as one call of its compiler, or as a list of functions on the library's arrays.

Knows nothing of that compiler, of the functions, nor of how a graph was optimised. The compiler traces the nodes on arrays
of its own; from then on no Python runs between them. These cannot be listed as functions and run node by node: graphs that
write their arguments or have an empty tensor; sources; results of packed dtypes; views that copy; ops that convert or have
no kernel of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from operator import is_, itemgetter
from typing import Any, NamedTuple

from tritium import buffer, ops, settings
from tritium.backends.reference.packed import Packed
from tritium.backends.values.device import Doubt, Form, ValueBackend
from tritium.backends.values.namespace import Fitted
from tritium.compiler.decode_step import DecodeStep, find_decode_steps
from tritium.errors import DeviceError
from tritium.graph.graph import Graph, Joined, Node, run_node
from tritium.layout import Layout, is_contiguous
from tritium.op import Kind, Spec, interpreter, outputs
from tritium.tensor import Tensor, wrap


class ForeignProgram:
    """A compiled graph, called like the graph. Captured tensors are read at each call; donated arguments are written."""

    def __init__(self, graph: Graph, backend: ValueBackend) -> None:
        self.graph, self.backend = graph, backend
        # Constants are operands too: a compiler that prints them as text may lose the sign of 0.
        numbers = [n for n in graph.order() if n.op is ops.const]
        self._numbers = {n: run_node(n, [], backend.device) for n in numbers}
        self._inside = _Inside(backend, (*graph.captured.values(), *self._numbers.values()))
        self._argument, self._specs = partial(_argument, backend), [n.spec for n in graph.inputs]
        self._again: tuple[Any, Any] | None = None
        self._operands = (*graph.inputs, *graph.captured, *self._numbers)
        self._listed: list[ValueSteps | None] = []  # one entry, after the nodes were traced
        self._doubts: list[Doubt] = []
        matches = find_decode_steps(graph) if backend.writes_arguments else []
        self.decode_steps = [
            t for t in matches if backend.takes_new(t.x.spec, t.cache.spec, t.places.spec, t.interleaved)
        ]
        written = tuple(i for i, _ in graph.writes)
        nbytes, calls = sum(n.spec.nbytes for n in graph.outputs), max(len(graph.calls()), 1)
        form = Form(len(graph.inputs), written, len(graph.outputs), lambda: self._doubts, nbytes, calls)
        self._run = backend.compiled(self._nodes, form)

    @property
    def is_compiled(self) -> bool:
        """Return True if the compiler is available."""
        return self._run is not None

    @property
    def alone(self) -> str:
        """Return the reason why the compiler runs the nodes one after another; "" if it does not."""
        return str(getattr(self._run, "alone", ""))

    def _nodes(self, *values: Any) -> list[Any]:
        """Run the nodes one after another on values of the operands; the compiler calls it to trace them."""
        backend = self.backend
        if not self._listed:
            self._listed = [None if self.decode_steps else list_steps(self.graph, self._operands, backend)]
        steps = self._listed[0]
        backend.tracing.append([])
        token = interpreter.set(None)
        try:
            results = self._on_tensors(values) if steps is None else steps.run(values)
        finally:
            interpreter.reset(token)
            doubts = backend.tracing.pop()
        self._doubts = [d._replace(bad=None) for d in doubts]  # the messages are the same in every call
        bad = [d.bad for d in doubts]
        any_bad = [backend.any_of(bad)] if bad else []
        return [*results, *any_bad, *bad]

    def _on_tensors(self, values: tuple[Any, ...]) -> list[Any]:
        """Run the graph on tensors; return the results and the final values of donated arguments."""
        graph, backend, operands = self.graph, self.backend, self._operands
        tensors = [wrap(backend.hold(v, n.spec)) for v, n in zip(values, operands, strict=True)]
        count = len(graph.inputs)
        inner = graph._replace(captured=dict(zip(operands[count:], tensors[count:], strict=True)))
        joined = [Joined(t.nodes, partial(self._attend, t)) for t in self.decode_steps]
        env = inner.run(dict(zip(operands, tensors, strict=True)), over=backend.writes_arguments, joined=joined)
        # The compiler copies final values into the donated arguments one after another, so those in memory of another argument
        # are copied first.
        lent = [t.storage for t in tensors[:count]]
        become = {i: _own(env[n], lent, tensors[i]) for i, n in graph.writes}
        outcome = inner._replace(writes=()).results(env, tuple(become.get(i, tensors[i]) for i in range(count)))
        overwritten = [tensors[i].storage for i in become]
        results = [_own(x, overwritten) for x in ((outcome,) if isinstance(outcome, Tensor) else outcome)]
        return [_value(backend, x) for x in (*results, *become.values())]

    def _attend(self, t: DecodeStep, env: dict[Node, Any]) -> dict[Node, Any]:
        """Run a decode step as one call, which writes the KV cache in place.

        No earlier node of the program writes the cache, nor the positions unless the program computes them.
        """
        settled = t.places.op is ops.given
        x, cos, sin, cache, places = (env[n] for n in (t.x, t.cos, t.sin, t.cache, t.places))
        norms = None if t.norms is None else t.norms.map(env.__getitem__)
        value = self.backend.attend_new(x, cos, sin, cache, places, t.scale, settled, norms)
        return {t.update: cache, t.attention: _held(self.backend, value, t.attention.spec)}

    def __call__(self, *args: Tensor) -> Any:
        graph, backend = self.graph, self.backend
        assert self._run is not None
        for i, _ in graph.writes:
            backend.owned(args[i])
        values = (*map(self._argument, args, self._specs), *self._inside.values())
        returned = backend.on_device(self._run, *values)
        count = len(graph.outputs)
        self._check(returned[count + len(graph.writes) :])
        results: list[Tensor] = []
        for k, (n, value) in enumerate(zip(graph.outputs, returned, strict=False)):
            same = graph.returned[k] if graph.returned else None
            results.append(_held(backend, value, n.spec) if same is None else args[same])
        for (i, n), value in zip(graph.writes, returned[count:], strict=False):
            if value is not args[i].storage.value:
                backend.put(args[i], seen(value, n.spec))
        return results[0] if graph.single else tuple(results)

    def again(self, args: tuple[Tensor, ...]) -> Any:
        """Return the fast path for calls with arguments like these; None: there is none."""
        graph, backend = self.graph, self.backend
        direct = getattr(self._run, "direct", None)
        plain = not any(n.spec.dtype.is_packed for n in (*graph.inputs, *graph.outputs)) and not any(
            i is not None for i in graph.returned or ()
        )
        empty = any(x.storage.value is None for x in args)
        if (
            direct is None
            or buffer.native is None
            or empty
            or not plain
            or len(graph.outputs) > buffer.native.MAX_OUTPUTS
        ):
            return None
        if self._again is None or self._again[0] is not direct:
            specs = [n.spec for n in graph.outputs]
            fast_path = buffer.native.Again(
                direct.again, backend.storage, backend.device, args, tuple(i for i, _ in graph.writes),
                tuple(x.storage for x in self._inside.tensors), tuple(s.dtype for s in specs), tuple(s.shape for s in specs),
                not graph.single,
            )  # fmt: skip
            self._again = direct, fast_path
        return self._again[1]

    def _check(self, flags: list[Any]) -> None:
        """Raise the error of the first deferred check that failed; nothing was written yet."""
        if flags and flags[0] is not None and self.backend.is_true(flags[0]):
            for d, bad in zip(self._doubts, flags[1:], strict=True):
                if self.backend.is_true(bad):
                    raise d.error(d.message)


class _Inside:
    """The values of captured tensors and constants, cached while their storages hold the same values."""

    def __init__(self, backend: ValueBackend, tensors: tuple[Tensor, ...]) -> None:
        self._backend, self.tensors = backend, tensors
        self._known: tuple[list[Any], list[Any]] = ([], [])

    def values(self) -> list[Any]:
        held, values = self._known  # replaced as a whole: several threads may read it
        for x in self.tensors if len(held) != len(self.tensors) else ():
            _check_device(self._backend, x)
        now = [x.storage.value for x in self.tensors]
        if len(held) == len(now) and all(map(is_, held, now)):
            return values
        values = [_value(self._backend, x) for x in self.tensors]
        self._known = [x.storage.value for x in self.tensors], values
        return values


def _check_device(backend: ValueBackend, x: Tensor) -> None:
    if x.storage.device is not backend.device:
        here = str(backend.device)
        raise DeviceError(
            f"tensors are on {here} and {x.device}; move one with .to({here!r}): transfers are never hidden."
        )


def _argument(backend: ValueBackend, x: Tensor, spec: Spec) -> Any:
    """Return the value of an argument: that of its storage if the argument is all of it."""
    _check_device(backend, x)
    stored = x.storage
    whole = x.strides == spec.strides and x.nbytes == stored.nbytes and stored.shape == spec.shape
    if whole and stored.value is not None:
        return stored.value
    return _value(backend, x)


def _value(backend: ValueBackend, x: Tensor) -> Any:
    """Return the library's array of a tensor; the bytes of a packed one."""
    array = backend.array(x)
    return array.data if isinstance(array, Packed) else array


def _own(x: Tensor, lent: list[Any], to: Tensor | None = None) -> Tensor:
    """Return a tensor, copied if it is in borrowed memory, unless it is exactly its target."""
    there = to is not None and x.storage is to.storage and (x.offset, x.strides) == (to.offset, to.strides)
    return x if there or not any(x.storage is s for s in lent) else ops.copy(x)


def _held(backend: ValueBackend, value: Any, spec: Spec) -> Tensor:
    return wrap(backend.hold(value, spec))


# ---- as functions on arrays: no Tensor is created between them


class ValueStep(NamedTuple):
    """One function: the numbers of the values it reads and writes, and of those that are not read after it."""

    fn: Callable[..., Any]
    reads: tuple[int, ...]
    makes: int
    over: list[int]


class ValueSteps(NamedTuple):
    """The functions in order. The operands are the first values; the last is None, for operands left out."""

    steps: list[ValueStep]
    results: list[int]
    extra: int  # slots for values besides the operands

    def run(self, operands: Sequence[Any]) -> list[Any]:
        values = [*operands, *[None] * self.extra]
        for fn, reads, makes, over in self.steps:
            values[makes] = fn(*[values[i] for i in reads])
            for i in over:
                values[i] = None  # its memory is free for the next step
        return [values[i] for i in self.results]


class UnlistedError(Exception):
    """The reason why a graph runs node by node."""


def list_steps(graph: Graph, operands: Sequence[Node], backend: ValueBackend) -> ValueSteps | None:
    """Return the functions of a graph of these operands; None: it runs node by node."""
    try:
        return _Listing(graph, operands, backend).steps()
    except UnlistedError as why:
        settings.log.debug("%s: a program runs node by node: %s", backend.device, why)
        return None


def _is_view(n: Node) -> bool:
    """Return True if a node is a view of another."""
    return n.op.kind is Kind.VIEW and n.op is not ops.item


def _is_packed(n: Node) -> bool:
    return any(s.dtype.is_packed for s in outputs(n.spec))


def seen(value: Any, spec: Spec) -> Any:
    """Return a value as kernels take it: bytes of packed elements with their dtype and shape."""
    return Packed(value, spec.dtype, spec.shape) if spec.dtype.is_packed else value


class _Listing:
    """The walk over a graph that lists its functions."""

    def __init__(self, graph: Graph, operands: Sequence[Node], backend: ValueBackend) -> None:
        self.graph, self.backend = graph, backend
        self.order = graph.order()
        self.operand_count = len(operands)  # the caller holds the operands, so they are not freed
        self.operand_number = {n: i for i, n in enumerate(operands)}
        computed = [n for n in self.order if n not in self.operand_number or _is_packed(n)]
        self.number = self.operand_number | {n: i for i, n in enumerate(computed, self.operand_count)}
        self.none = self.operand_count + len(computed)
        self.layouts: dict[Node, tuple[Node, Layout]] = {}  # the node that holds its elements, and the layout in it

    def steps(self) -> ValueSteps:
        graph = self.graph
        if graph.writes or any(not s.size for n in self.order for s in outputs(n.spec)):
            raise UnlistedError("arguments that are written, or no elements")
        if any(_is_packed(n) for n in (*(n for n in self.order if n not in self.operand_number), *graph.outputs)):
            raise UnlistedError("packed elements that are made")
        read = {i for n in self.order if not _is_view(n) for i in n.inputs} | set(graph.outputs)
        value_steps = [s for n in self.order if (s := self._step(n, n in read)) is not None]
        results = [self.number[n] for n in graph.outputs]
        last = {i: k for k, s in enumerate(value_steps) for i in s.reads}
        for i, k in last.items():
            if self.operand_count <= i < self.none and i not in results:
                value_steps[k].over.append(i)
        return ValueSteps(value_steps, results, self.none + 1 - self.operand_count)

    def _step(self, n: Node, is_read: bool) -> ValueStep | None:
        number = self.number[n]
        if _is_view(n):
            base, layout = self.layouts[n] = self._view(n)
            return ValueStep(self._view_function(base, layout), (self.number[base],), number, []) if is_read else None
        if isinstance(n.spec, Spec):
            self.layouts[n] = n, Layout(n.spec.shape, n.spec.strides, 0)
        if n in self.operand_number:
            return (
                ValueStep(partial(seen, spec=n.spec), (self.operand_number[n],), number, []) if _is_packed(n) else None
            )
        fn = itemgetter(dict(n.attrs)["index"]) if n.op is ops.item else self._function(n)
        return ValueStep(fn, tuple(self.none if i is None else self.number[i] for i in n.inputs), number, [])

    def _view(self, n: Node) -> tuple[Node, Layout]:
        assert n.op.view is not None
        assert n.inputs[0] is not None
        base, before = self.layouts[n.inputs[0]]
        layout = n.op.view(before, **dict(n.attrs))
        if layout is None:
            raise UnlistedError(f"{n.op.name} that is a copy")
        return base, layout

    def _view_function(self, base: Node, layout: Layout) -> Callable[[Any], Any]:
        reshape, strided = self.backend.reshape, self.backend.strided
        flat = is_contiguous(layout.shape, layout.strides) and layout.offset == 0
        if flat and prod(layout.shape) == base.spec.size:
            return lambda value: reshape(value, layout.shape)
        return lambda value: strided(value, layout)

    def _function(self, n: Node) -> Callable[..., Any]:
        """Return the function of an op's call, as `Eager` and the backend's `run` would choose it."""
        if n.op.kind in (Kind.SOURCE, Kind.DYNAMIC) or n.op is ops.update_cache:
            raise UnlistedError(n.op.name)
        attrs = dict(n.attrs)
        specs = tuple(None if i is None else i.spec for i in n.inputs)
        decision = n.op.decide(specs, attrs)
        layouts = tuple(None if i is None else self.layouts[i][1] for i in n.inputs)
        kernel = self.backend.choose(n.op, specs, attrs, layouts)
        if kernel is None or decision.inputs != specs or decision.out != n.spec:
            raise UnlistedError(f"{n.op.name} that is lowered or converts")
        fn = self.backend.ready(kernel, n.spec, attrs)
        return fn.choose(*specs) if isinstance(fn, Fitted) else fn

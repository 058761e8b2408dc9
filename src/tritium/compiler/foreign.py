"""A graph run by a device's own library: as one call of its compiler, or as functions of the values it keeps, one after another.

Knows nothing of that compiler, of what the functions do, nor of how a graph was optimised. The compiler sees the nodes run on
values of its own; from then on no Python runs between them. What cannot be listed as functions runs node by node: graphs that
write their arguments or have a tensor without elements; sources; packed elements that are made; views that are copies; ops that
convert or have no kernel of their own.
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
    """Call it as the graph. What it captured is read anew at each call; donated arguments get their new values."""

    def __init__(self, graph: Graph, backend: ValueBackend) -> None:
        self.graph, self.backend = graph, backend
        # Numbers are operands too: a compiler that writes them down as text may lose the sign of 0.
        numbers = [n for n in graph.order() if n.op is ops.const]
        self._numbers = {n: run_node(n, [], backend.device) for n in numbers}
        self._inside = _Inside(backend, (*graph.captured.values(), *self._numbers.values()))
        self._argument, self._specs = partial(_argument, backend), [n.spec for n in graph.inputs]
        self._again: tuple[Any, Any] | None = None
        self._operands = (*graph.inputs, *graph.captured, *self._numbers)
        self._listed: list[ValueSteps | None] = []  # once the nodes have been asked for
        self._doubts: list[Doubt] = []
        found = find_decode_steps(graph) if backend.writes_arguments else []
        self.decode_steps = [t for t in found if backend.takes_new(t.x.spec, t.cache.spec, t.interleaved)]
        written = tuple(i for i, _ in graph.writes)
        nbytes, calls = sum(n.spec.nbytes for n in graph.outputs), max(len(graph.calls()), 1)
        form = Form(len(graph.inputs), written, len(graph.outputs), lambda: self._doubts, nbytes, calls)
        self._run = backend.compiled(self._nodes, form)

    @property
    def is_compiled(self) -> bool:
        """Whether the compiler is there."""
        return self._run is not None

    @property
    def alone(self) -> str:
        """Why the compiler runs the nodes as they are, one after another; empty: it does not."""
        return str(getattr(self._run, "alone", ""))

    def _nodes(self, *values: Any) -> list[Any]:
        """The nodes one after another on values that stand for the operands; the compiler calls it to see them."""
        backend = self.backend
        if not self._listed:
            self._listed = [None if self.decode_steps else list_steps(self.graph, self._operands, backend)]
        steps = self._listed[0]
        backend.tracing.append([])
        token = interpreter.set(None)
        try:
            found = self._on_tensors(values) if steps is None else steps.run(values)
        finally:
            interpreter.reset(token)
            doubts = backend.tracing.pop()
        self._doubts = [d._replace(bad=None) for d in doubts]  # those of any call say the same
        bad = [d.bad for d in doubts]
        any_bad = [backend.any_of(bad)] if bad else []
        return [*found, *any_bad, *bad]

    def _on_tensors(self, values: tuple[Any, ...]) -> list[Any]:
        """Results, and what arguments become: as a graph runs on any tensors."""
        graph, backend, operands = self.graph, self.backend, self._operands
        tensors = [wrap(backend.hold(v, n.spec)) for v, n in zip(values, operands, strict=True)]
        count = len(graph.inputs)
        inner = graph._replace(captured=dict(zip(operands[count:], tensors[count:], strict=True)))
        joined = [Joined(t.nodes, partial(self._attend, t)) for t in self.decode_steps]
        made = inner.run(dict(zip(operands, tensors, strict=True)), over=backend.writes_arguments, joined=joined)
        # Whoever compiles it puts what arguments become into them, one after the other: what lies in another is copied before.
        lent = [t.storage for t in tensors[:count]]
        become = {i: _own(made[n], lent, tensors[i]) for i, n in graph.writes}
        found = inner._replace(writes=()).results(made, tuple(become.get(i, tensors[i]) for i in range(count)))
        over = [tensors[i].storage for i in become]
        results = [_own(x, over) for x in ((found,) if isinstance(found, Tensor) else found)]
        return [_value(backend, x) for x in (*results, *become.values())]

    def _attend(self, t: DecodeStep, env: dict[Node, Any]) -> dict[Node, Any]:
        """New tokens as one call, which writes the cache where it lies. Before it nothing in the program writes there, nor where
        the places are, unless they are made in it."""
        settled = t.places.op is ops.given
        x, cos, sin, cache, places = (env[n] for n in (t.x, t.cos, t.sin, t.cache, t.places))
        value = self.backend.attend_new(x, cos, sin, cache, places, t.scale, settled)
        return {t.update: cache, t.attention: _held(self.backend, value, t.attention.spec)}

    def __call__(self, *args: Tensor) -> Any:
        graph, backend = self.graph, self.backend
        assert self._run is not None
        for i, _ in graph.writes:
            backend.owned(args[i])
        values = (*map(self._argument, args, self._specs), *self._inside.values())
        found = backend.on_device(self._run, *values)
        count = len(graph.outputs)
        self._check(found[count + len(graph.writes) :])
        results: list[Tensor] = []
        for k, (n, value) in enumerate(zip(graph.outputs, found, strict=False)):
            same = graph.returned[k] if graph.returned else None
            results.append(_held(backend, value, n.spec) if same is None else args[same])
        for (i, n), value in zip(graph.writes, found[count:], strict=False):
            if value is not args[i].storage.value:
                backend.put(args[i], seen(value, n.spec))
        return results[0] if graph.single else tuple(results)

    def again(self, args: tuple[Tensor, ...]) -> Any:
        """What a call with the memory of these arguments may be tried on first; None: there is nothing."""
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
            made = buffer.native.Again(
                direct.again, backend.storage, backend.device, args, tuple(i for i, _ in graph.writes),
                tuple(x.storage for x in self._inside.tensors), tuple(s.dtype for s in specs), tuple(s.shape for s in specs),
                not graph.single,
            )  # fmt: skip
            self._again = direct, made
        return self._again[1]

    def _check(self, flags: list[Any]) -> None:
        """Raise what the checks of this run found; nothing was written yet."""
        if flags and flags[0] is not None and self.backend.is_true(flags[0]):
            for d, bad in zip(self._doubts, flags[1:], strict=True):
                if self.backend.is_true(bad):
                    raise d.error(d.message)


class _Inside:
    """The values of tensors that are the same at each call; nothing is asked anew of those that hold the same as before."""

    def __init__(self, backend: ValueBackend, tensors: tuple[Tensor, ...]) -> None:
        self._backend, self.tensors = backend, tensors
        self._known: tuple[list[Any], list[Any]] = ([], [])

    def values(self) -> list[Any]:
        held, values = self._known  # replaced as a whole: several threads may ask
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
    """The value of an argument; of one that is all of its storage, what that holds."""
    _check_device(backend, x)
    stored = x.storage
    whole = x.strides == spec.strides and x.nbytes == stored.nbytes and stored.shape == spec.shape
    if whole and stored.value is not None:
        return stored.value
    return _value(backend, x)


def _value(backend: ValueBackend, x: Tensor) -> Any:
    """What stands for a tensor: of a packed dtype its bytes."""
    found = backend.array(x)
    return found.data if isinstance(found, Packed) else found


def _own(x: Tensor, lent: list[Any], to: Tensor | None = None) -> Tensor:
    """A tensor, copied where it lies in memory that is lent, unless that is where it belongs."""
    there = to is not None and x.storage is to.storage and (x.offset, x.strides) == (to.offset, to.strides)
    return x if there or not any(x.storage is s for s in lent) else ops.copy(x)


def _held(backend: ValueBackend, value: Any, spec: Spec) -> Tensor:
    return wrap(backend.hold(value, spec))


# ---- as functions of values: no tensor of ours is made between them


class ValueStep(NamedTuple):
    """One function: the values it reads and the one it makes, by number; and those that nobody reads after it."""

    fn: Callable[..., Any]
    reads: tuple[int, ...]
    makes: int
    over: list[int]


class ValueSteps(NamedTuple):
    """The functions in order. The operands are the first values; the last is None, which stands for operands left out."""

    steps: list[ValueStep]
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


def list_steps(graph: Graph, operands: Sequence[Node], backend: ValueBackend) -> ValueSteps | None:
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

    def _step(self, n: Node, is_read: bool) -> ValueStep | None:
        at = self.number[n]
        if _looks(n):
            base, lies = self.lie[n] = self._view(n)
            return ValueStep(self._look(base, lies), (self.number[base],), at, []) if is_read else None
        if isinstance(n.spec, Spec):
            self.lie[n] = n, Layout(n.spec.shape, n.spec.strides, 0)
        if n in self.given:
            return ValueStep(partial(seen, spec=n.spec), (self.given[n],), at, []) if _packed(n) else None
        fn = itemgetter(dict(n.attrs)["index"]) if n.op is ops.item else self._function(n)
        return ValueStep(fn, tuple(self.none if i is None else self.number[i] for i in n.inputs), at, [])

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

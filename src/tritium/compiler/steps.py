"""Lowering: from an optimised graph to kernel calls on memory with fixed offsets.

Knows nothing of tracing or rewrite rules. Temporaries are in one arena, planned ahead; results are the caller's own memory;
donated arguments are written in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

from tritium import buffer, ops
from tritium.backends import Backend, Device
from tritium.backends.reference.fused import constant
from tritium.buffer import ALIGNMENT
from tritium.compiler.order import Item, order
from tritium.compiler.plan import Block, Plan, plan
from tritium.graph.graph import Graph, Node
from tritium.launch import Launched, launched
from tritium.layout import Layout, basic_index, contiguous, is_contiguous
from tritium.op import Cost, Kind, Op, Spec, outputs


@dataclass(eq=False, slots=True)
class Memory:
    """A range of bytes: in the arena, or outside it."""

    where: str  # "arena", "constant", "argument", "captured" or "result"
    index: int  # offset in the arena or the constants; index of the argument, captured tensor or result
    nbytes: int
    first: int = -1  # the step that writes it
    last: int = -1  # the last step that uses it
    pending: int = 0  # reads still to come


class Value(NamedTuple):
    """An array: memory, spec and layout."""

    memory: Memory
    spec: Spec
    layout: Layout


class Call(NamedTuple):
    """One kernel call of a program."""

    kernel: Any  # a native kernel
    attrs: dict[str, Any]
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    node: Node
    op: Op
    op_attrs: dict[str, Any]  # as the graph has them, before the backend adapts them

    @property
    def cost(self) -> Cost:
        """Return the work and bytes of this call."""
        out = tuple(o.spec for o in self.outputs)
        ins = (None if x is None else x.spec for x in self.inputs)
        return self.op.cost(out[0] if len(out) == 1 else out, *ins, **self.op_attrs)

    def launch_record(self, device: Device) -> Launched:
        """Return the launch record that a profiler shows for this call: the same as for an eager call."""
        ins = tuple(None if x is None else x.spec for x in self.inputs)
        return launched(self.op, self.kernel.isa, device, ins, tuple(o.spec for o in self.outputs), self.op_attrs)


class Result(NamedTuple):
    """A result of the program."""

    value: Value
    node: Node


class Steps(NamedTuple):
    """A lowered program: calls in order, results, and the plan of the arena."""

    calls: list[Call]
    results: list[Result]
    plan: Plan
    blocks: list[Memory]
    constants: bytes
    nodes: list[Node]  # in execution order


class UnableError(Exception):
    """The reason why a graph cannot run natively: a node without a native kernel."""


def ordered(graph: Graph) -> list[Node]:
    """Return the nodes in the order with the lowest peak memory."""
    nodes = graph.order()
    number = {n: i for i, n in enumerate(nodes)}
    items = []
    for n in nodes:
        free = n.op in (ops.given, ops.const)
        alias = None
        if n.op.kind is Kind.VIEW and n.inputs[0] is not None:
            alias = number[n.inputs[0]]
        size = 0 if free or alias is not None else sum(s.nbytes for s in outputs(n.spec))
        items.append(Item(tuple(number[i] for i in n.inputs if i is not None), size, alias))
    keep = frozenset(number[n] for n in graph.roots)
    return [nodes[i] for i in order(items, keep)]


class Builder:
    """The walk over the nodes that records kernel calls."""

    def __init__(self, graph: Graph, backend: Backend, layouts: tuple[Layout, ...]) -> None:
        self.graph, self.backend = graph, backend
        self.nodes = ordered(graph)
        self.values: dict[Node, tuple[Value, ...]] = {}
        self.calls: list[Call] = []
        self.blocks: list[Memory] = []
        self.results = 0
        self.constants = bytearray()
        self.known: dict[Any, Value] = {}
        self.chains = self._chains()
        for i, n in enumerate(graph.inputs):
            self._outside(n, "argument", i, layouts[i])
        for i, (n, t) in enumerate(graph.captured.items()):
            self._outside(n, "captured", i, t.layout)
        self.reads = self._count_reads()
        self.parts: dict[Node, list[Node]] = {}  # of nodes of several results
        for n in self.nodes:
            if n.op is ops.item and n.inputs[0] is not None:
                self.parts.setdefault(n.inputs[0], []).append(n)

    def _outside(self, n: Node, where: str, index: int, layout: Layout) -> None:
        base = Layout(layout.shape, layout.strides, 0)
        self.values[n] = (Value(Memory(where, index, n.spec.nbytes), n.spec, base),)

    def _chains(self) -> dict[Node, int]:
        """Return the nodes that may be written over a donated argument: those on the path from it to its final value."""
        chains: dict[Node, int] = {}
        for i, n in self.graph.writes:
            node: Node | None = n
            while node is not None and node.op is not ops.given:
                chains[node] = i
                continues = node.op is ops.update or node.op.kind is Kind.VIEW
                continues = continues or self.backend.overwrites(node.op, dict(node.attrs), 0)
                node = node.inputs[0] if continues and node.inputs else None
        return chains

    def _count_reads(self) -> dict[Node, int]:
        """Count the reads of each node by steps and results; reads of a view count for its base."""
        reads: dict[Node, int] = {}
        for n in self.nodes:
            if n.op.kind is not Kind.VIEW:
                for i in n.inputs:
                    if i is not None:
                        reads[i] = reads.get(i, 0) + 1
        for n in self.graph.roots:
            reads[n] = reads.get(n, 0) + 1
        for n in reversed(self.nodes):  # reads of a view are reads of its base
            if n.op.kind is Kind.VIEW and n.inputs[0] is not None:
                reads[n.inputs[0]] = reads.get(n.inputs[0], 0) + reads.get(n, 0)
        return reads

    # -- memory

    def new(self, spec: Spec, reads: int) -> Value:
        memory = Memory("arena", len(self.blocks), _padded(spec.nbytes), len(self.calls), pending=reads)
        self.blocks.append(memory)
        return Value(memory, spec, Layout(spec.shape, spec.strides, 0))

    def reuse(self, n: Node, spec: Spec, xs: list[Value | None], reads: int) -> Value | None:
        """Return the memory of an operand without later reads if the op may write its result there, else None."""
        for i, x in enumerate(xs):
            if x is None or not self.backend.overwrites(n.op, dict(n.attrs), i):
                continue
            same = x.spec.shape == spec.shape and x.spec.dtype.nbytes == spec.dtype.nbytes and _is_contiguous(x)
            if same and self.is_free(n, x) and not self._is_read_elsewhere(n, x, xs, i):
                x.memory.pending = reads
                return Value(x.memory, spec, x.layout)
        return None

    def is_free(self, n: Node, x: Value) -> bool:
        if x.memory.where == "arena":
            return x.memory.pending == 0
        is_donated = x.memory.where == "argument" and self.chains.get(n) == x.memory.index
        return is_donated and x.memory.pending == 0

    def _is_read_elsewhere(self, n: Node, x: Value, xs: list[Value | None], index: int) -> bool:
        """Return True if another operand reads the same memory in a way that forbids overwriting it."""
        for k, o in enumerate(xs):
            is_same = k != index and o is not None and o.memory is x.memory
            if is_same and (o.layout != x.layout or not self.backend.overwrites(n.op, dict(n.attrs), k)):  # type: ignore[union-attr]
                return True
        return False

    # -- nodes

    def run(self) -> Steps:
        for node in self.graph.inputs + tuple(self.graph.captured):
            self.values[node][0].memory.pending = self.reads.get(node, 0)
        for n in self.nodes:
            if n not in self.values:
                self.values[n] = self._value(n)
        results = [Result(self._result(n, same), n) for n, same in zip_longest(self.graph.outputs, self.graph.returned)]
        written = [self._write_back(i, n) for i, n in self.graph.writes]
        for r in (*results, *written):
            r.value.memory.last = len(self.calls)
        self._own_results(results)
        arena = [m for m in self.blocks if m.where == "arena"]
        planned = plan([Block(m.nbytes, m.first, max(m.first, m.last)) for m in arena])
        for m, offset in zip(arena, planned.offsets, strict=True):
            m.index = offset
        calls = [self._read_next(c) for c in self.calls]
        return Steps(calls, results, planned, arena, bytes(self.constants), self.nodes)

    def _own_results(self, results: list[Result]) -> None:
        """Move returned values from the arena to memory of the caller's own."""
        for r in results:
            if r.value.memory.where == "arena":
                r.value.memory.where, r.value.memory.index = "result", self.results
                self.results += 1

    def _value(self, n: Node) -> tuple[Value, ...]:
        attrs = dict(n.attrs)
        if n.op is ops.const:
            return (self._constant(n.spec, attrs["value"]),)
        if n.op is ops.item and n.inputs[0] is not None:
            return (self.values[n.inputs[0]][attrs["index"]],)
        if n.op.kind is Kind.VIEW:
            return (self._view(n, attrs),)
        special = _SPECIAL.get(n.op)
        if special is not None:
            return (special(self, n, attrs),)
        return self._call(n, attrs)

    def _constant(self, spec: Spec, value: Any) -> Value:
        data = constant(value, spec).tobytes()
        key = (spec, data)
        if key not in self.known:
            self.constants += bytes(-len(self.constants) % 8)
            memory = Memory("constant", len(self.constants), len(data))
            self.constants += data
            self.known[key] = Value(memory, spec, contiguous(spec.shape))
        return self.known[key]

    def _view(self, n: Node, attrs: dict[str, Any]) -> Value:
        assert n.inputs[0] is not None
        assert n.op.view is not None
        x = self.values[n.inputs[0]][0]
        seen = n.op.view(x.layout, **attrs)
        if seen is None:  # the layout leaves no other way than a copy
            copied = self.new(x.spec, self.reads.get(n, 0))
            self.read(x, self.reads.get(n, 0))
            self.call(ops.copy, {}, [x], (copied,), n)
            x, seen = copied, n.op.view(copied.layout, **attrs)
            assert seen is not None
        return Value(x.memory, Spec(seen.shape, x.spec.dtype), seen)

    def read(self, x: Value | None, times: int = 1) -> None:
        if x is not None:
            x.memory.pending -= times

    def _call(self, n: Node, attrs: dict[str, Any]) -> tuple[Value, ...]:
        attrs.pop("device", None)
        xs = [None if i is None else self.values[i][0] for i in n.inputs]
        for x in xs:
            self.read(x)
        specs = outputs(n.spec)
        if n.op is ops.empty:
            return (self.new(specs[0], self.reads.get(n, 0)),)
        if n.op.kind is Kind.SOURCE:
            attrs["dtype"] = specs[0].dtype
        reads = self._reads_of(n, len(specs))
        placed = self.reuse(n, specs[0], xs, reads[0]) if len(specs) == 1 else None
        outs = (placed,) if placed else tuple(self.new(s, r) for s, r in zip(specs, reads, strict=True))
        self.call(n.op, attrs, xs, outs, n)
        return outs

    def _reads_of(self, n: Node, count: int) -> list[int]:
        """Return the number of reads of each result; several results are read through items."""
        if isinstance(n.spec, Spec):
            return [self.reads.get(n, 0)]
        reads = [0] * count
        for part in self.parts.get(n, ()):
            reads[dict(part.attrs)["index"]] = self.reads.get(part, 0)
        return reads

    def call(self, op: Op, attrs: dict[str, Any], xs: list[Value | None], outs: tuple[Value, ...], node: Node) -> None:
        """Record one kernel call."""
        specs = tuple(None if x is None else x.spec for x in xs)
        selected = self.backend.native_call(op, specs, attrs, tuple(None if x is None else x.layout for x in xs))
        if isinstance(selected, str):
            raise UnableError(selected)
        for v in (*xs, *outs):
            if v is not None:
                v.memory.last = len(self.calls)
        kernel, kernel_attrs = selected
        self.calls.append(Call(kernel, kernel_attrs, tuple(xs), outs, node, op, attrs))

    def _read_next(self, c: Call) -> Call:
        """Mark a fused call whose results other calls read: they should stay in the CPU cache."""
        if "tape" not in c.attrs or all(o.memory.where == "result" for o in c.outputs):
            return c
        return c._replace(attrs=c.attrs | {"read_next": 1})

    def part(self, base: Value, layout: Layout) -> Value:
        return Value(base.memory, Spec(layout.shape, base.spec.dtype), layout)

    def copy_to(self, x: Value, to: Value, node: Node) -> None:
        if x.spec.shape != to.spec.shape:
            seen = ops.broadcast_to.view(x.layout, shape=to.spec.shape)  # type: ignore[misc]
            assert seen is not None
            x = Value(x.memory, Spec(to.spec.shape, x.spec.dtype), seen)
        if prod(to.spec.shape):
            self.call(ops.copy, {}, [x], (to,), node)

    def _result(self, n: Node, same: int | None) -> Value:
        """Return a donated argument that is a result, or the computed value.

        A constant, or a donated argument that is written only at the end, is copied.
        """
        if same is not None:
            return self.values[self.graph.inputs[same]][0]
        value = self.values[n][0]
        late = [
            self.values[self.graph.inputs[i]][0].memory for i, last in self.graph.writes if not self._in_place(i, last)
        ]
        if value.memory.where != "constant" and not any(value.memory is m for m in late):
            return value
        copied = self.new(value.spec, 1)
        self.copy_to(value, copied, n)
        return copied

    def _in_place(self, index: int, n: Node) -> bool:
        """Return True if the final value of a donated argument was computed in place."""
        return self.values[n][0].memory is self.values[self.graph.inputs[index]][0].memory

    def _write_back(self, index: int, n: Node) -> Result:
        """Copy the final value of a donated argument to it, unless it was computed in place."""
        value = self.values[n][0]
        target = self.values[self.graph.inputs[index]][0]
        if value.memory is not target.memory or value.layout != target.layout:
            if value.memory is target.memory:  # a view of itself needs a temporary copy
                value, seen = self.new(value.spec, 0), value
                self.copy_to(seen, value, n)
            self.copy_to(value, target, n)
        return Result(target, n)


def _update(b: Builder, n: Node, attrs: dict[str, Any]) -> Value:
    """Lower a write through a view: in place if the old contents have no later reads."""
    assert n.inputs[0] is not None
    assert n.inputs[1] is not None
    x, value = b.values[n.inputs[0]][0], b.values[n.inputs[1]][0]
    b.read(x)
    b.read(value)
    to = x if _is_contiguous(x) and b.is_free(n, x) else None
    if to is not None and value.memory is to.memory:  # source and target share memory
        held = b.new(value.spec, 0)
        b.copy_to(value, held, n)
        value = held
    if to is None:
        to = b.new(n.spec, 0)
        b.copy_to(x, to, n)
    to.memory.pending = b.reads.get(n, 0)
    b.copy_to(value, b.part(to, attrs["layout"]), n)
    return Value(to.memory, n.spec, to.layout)


def _join(b: Builder, n: Node, attrs: dict[str, Any]) -> Value:
    """Lower concat and stack: copy every input to its part."""
    xs = [b.values[i][0] for i in n.inputs if i is not None]
    for x in xs:
        b.read(x)
    to = b.new(n.spec, b.reads.get(n, 0))
    axis = attrs["axis"]
    if n.op is ops.concat and axis is None:
        raise UnableError("concat(axis=None)")
    axis %= len(n.spec.shape)
    position = 0
    for x in xs:
        size = x.spec.shape[axis] if n.op is ops.concat else 1
        key: list[Any] = [(0, s, 1) for s in n.spec.shape]
        key[axis] = (position, position + size, 1) if n.op is ops.concat else position
        b.copy_to(x, b.part(to, basic_index(to.layout, tuple(key))), n)
        position += size
    return to


_SPECIAL = {ops.update: _update, ops.concat: _join, ops.stack: _join}


def _is_contiguous(x: Value) -> bool:
    """Return True if a value is contiguous, starts at offset 0 and is not packed."""
    return x.layout.offset == 0 and is_contiguous(x.layout.shape, x.layout.strides) and not x.spec.dtype.is_packed


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


# ---- the native program


def native_program(
    steps: Steps, graph: Graph, layouts: tuple[Layout, ...], spans: tuple[Any, ...] | None = None
) -> Any:
    """Return the native object that runs all steps in one call.

    `spans`: the launch records that a profiler shows, of the program and then of each step.
    """
    captured = list(graph.captured.values())
    bases = {"arena": 0, "constant": 1, "argument": 2, "captured": 2 + len(graph.inputs)}
    bases["result"] = bases["captured"] + len(captured)
    numbers: dict[Any, int] = {}
    operands: list[Any] = []

    def operand(v: Value | None) -> int:
        if v is None:
            return -1
        key = (id(v.memory), v.spec.dtype, v.layout)
        if key not in numbers:
            m, t, layout = v.memory, v.spec.dtype, _layout_of(v)
            inner = layout.offset // (t.rows * t.block) * t.nbytes
            base = bases[m.where] + (m.index if m.where in ("argument", "captured", "result") else 0)
            offset = inner + (m.index if m.where in ("arena", "constant") else 0)
            numbers[key] = len(operands)
            operands.append((base, offset, t, layout.shape, layout.strides))
        return numbers[key]

    calls = [
        (c.kernel, c.attrs, tuple(operand(x) for x in c.inputs), tuple(operand(o) for o in c.outputs))
        for c in steps.calls
    ]
    donated = {i for i, _ in graph.writes}
    args = [(n.spec.dtype, n.spec.shape, layouts[i].strides, i in donated) for i, n in enumerate(graph.inputs)]
    results = _results(steps, graph, bases)
    return buffer.native.Program(
        args, captured, steps.constants, steps.plan.peak_bytes, operands, calls, results, single=graph.single,
        about=spans,
    )  # fmt: skip


def _layout_of(v: Value) -> Layout:
    """Return a value's layout; empty values get a contiguous one."""
    return v.layout if v.spec.size else Layout(v.spec.shape, v.spec.strides, 0)


def _results(steps: Steps, graph: Graph, bases: dict[str, int]) -> list[Any]:
    out: list[Any] = []
    seen: dict[int, int] = {}
    for k, r in enumerate(steps.results):
        m, layout, t = r.value.memory, _layout_of(r.value), r.value.spec.dtype
        array = (t, layout.shape, layout.strides, layout.offset)
        if k < len(graph.returned) and graph.returned[k] is not None:
            out.append(("arg", graph.returned[k]))
        elif m.where == "result" and id(m) not in seen:
            seen[id(m)] = k
            out.append(("new", *array, m.nbytes))
        elif m.where == "result":
            out.append(("same", seen[id(m)], *array))
        else:
            out.append(("clone", bases[m.where] + m.index, *array))
    return out


def build(graph: Graph, backend: Backend, layouts: tuple[Layout, ...]) -> Steps:
    """Lower a graph for arguments of these layouts; raise UnableError if a node has no native kernel."""
    able = backend.native_call(ops.copy, (Spec((1,)),), {}, (contiguous((1,)),))
    if isinstance(able, str):
        raise UnableError(able)
    return Builder(graph, backend, layouts).run()

"""Lowering: from an optimised graph to kernel calls on memory with fixed offsets.

Temporaries are in one arena, planned ahead; results are the caller's own memory; donated arguments are written in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

from tritium import buffer, ops
from tritium.backends import Backend, Device, Kernel
from tritium.backends.reference.fused import constant
from tritium.buffer import ALIGNMENT
from tritium.compiler.order import Item, order
from tritium.compiler.plan import Block, Plan, blocks_below, plan
from tritium.eager import lowered
from tritium.graph.graph import Graph, Names, Node, Where
from tritium.graph.size import sizes_of, traced_value
from tritium.launch import Launched, PythonKernel, launched
from tritium.layout import Layout, basic_index, contiguous, contiguous_strides, is_contiguous
from tritium.op import Cost, Kind, Op, Spec, Specs, outputs

MAX_VARYING_BLOCKS = 512  # temporaries of a program whose sizes vary: each is compared with those alive with it

# Members by names of their own: Python 3.11 takes ten times as long to read one from its enum.
VIEW, SOURCE = Kind.VIEW, Kind.SOURCE


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

    kernel: Any  # a native kernel, or a PythonKernel
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

    def launch_record(self, device: Device, graph: Graph) -> Launched:
        """Return the launch record that a profiler shows for this call: that of an eager call, with the node's name."""
        return launch_records([self], device, graph)[0]


def launch_records(calls: list[Call], device: Device, graph: Graph) -> list[Launched]:
    """Return the launch records that a profiler shows for calls: those of eager calls, with the names of nodes."""
    names, captured = graph.names, graph.captured
    known: dict[Any, Launched] = {}  # by the objects of a call: a loop repeats most of them
    records = []
    for c in calls:
        operands = (*c.inputs, *c.outputs)
        key = (c.op, id(c.kernel), c.node.key, *[None if v is None else id(v.spec) for v in operands])
        record = known.get(key) if c.op is c.node.op else None
        if record is None:
            ins = tuple([None if x is None else x.spec for x in c.inputs])
            record = launched(c.op, c.kernel.isa, device, ins, tuple([o.spec for o in c.outputs]), c.op_attrs)
            known[key] = record
        if isinstance(names, Names) and (names.has_scopes or any(i in captured for i in c.node.inputs)):
            record = Launched(*record[:-1], where=Where(names, c.node))
        records.append(record)
    return records


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
    python: dict[int, str]  # calls of a kernel in Python, by their index: the reason why it is not a native one


class UnableError(Exception):
    """The reason why a graph cannot run natively: there is no native library, or an op has no kernel at all."""


def ordered(graph: Graph) -> list[Node]:
    """Return the nodes in the order with the lowest peak memory."""
    nodes = graph.order()
    number = {n: i for i, n in enumerate(nodes)}
    items = []
    for n in nodes:
        op, inputs, spec = n.op, n.inputs, n.spec
        alias = number[inputs[0]] if op.kind is VIEW and inputs[0] is not None else None
        size = 0
        if alias is None and op is not ops.given and op is not ops.const:
            size = traced_value(spec.nbytes if isinstance(spec, Spec) else sum(s.nbytes for s in spec))
        items.append(Item(tuple([number[i] for i in inputs if i is not None]), size, alias))
    keep = frozenset(number[n] for n in graph.roots)
    return [nodes[i] for i in order(items, keep)]


class Builder:
    """The walk over the nodes that records kernel calls."""

    def __init__(
        self, graph: Graph, backend: Backend, layouts: tuple[Layout, ...], disabled: frozenset[str] = frozenset()
    ) -> None:
        self.graph, self.backend = graph, backend
        self.nodes = graph.order() if "order" in disabled else ordered(graph)
        self.shares = "place" not in disabled
        self.values: dict[Node, tuple[Value, ...]] = {}
        self.calls: list[Call] = []
        self.blocks: list[Memory] = []
        self.results = 0
        self.constants = bytearray()
        self.known: dict[Any, Value] = {}
        self.python: dict[int, str] = {}
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
                is_first = (
                    node.op is not ops.item or dict(node.attrs)["index"] == 0
                )  # only that is written over an operand
                continues = node.op is ops.update or (node.op.kind is VIEW and is_first)
                continues = continues or self.backend.overwrites(node.op, dict(node.attrs), 0)
                node = node.inputs[0] if continues and node.inputs else None
        return chains

    def _count_reads(self) -> dict[Node, int]:
        """Count the reads of each node by steps and results; reads of a view count for its base."""
        reads: dict[Node, int] = {}
        for n in self.nodes:
            if n.op.kind is not VIEW:
                for i in n.inputs:
                    if i is not None:
                        reads[i] = reads.get(i, 0) + 1
        for n in self.graph.roots:
            reads[n] = reads.get(n, 0) + 1
        for n in reversed(self.nodes):  # reads of a view are reads of its base
            if n.op.kind is VIEW and n.inputs[0] is not None:
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
            if x is None or x.spec.shape != spec.shape or not self.is_free(n, x):
                continue
            same = x.spec.dtype.nbytes == spec.dtype.nbytes and _is_contiguous(x)
            may = same and self.backend.overwrites(n.op, dict(n.attrs), i)
            if may and not self._is_read_elsewhere(n, x, xs, i):
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
        planned = self._plan(arena)
        for m, offset in zip(arena, planned.offsets, strict=True):
            m.index = offset
        calls = [self._read_next(c) for c in self.calls]
        return Steps(calls, results, planned, arena, bytes(self.constants), self.nodes, self.python)

    def _plan(self, arena: list[Memory]) -> Plan:
        """Return the plan of the arena. If sizes vary, which blocks are below which is decided for the traced ones."""
        blocks = [Block(traced_value(m.nbytes), m.first, max(m.first, m.last)) for m in arena]
        planned = plan(blocks, shared=self.shares)
        sizes = next((sizes for m in arena if (sizes := sizes_of(m.nbytes)) is not None), None)
        if sizes is None:
            return planned
        if len(blocks) > MAX_VARYING_BLOCKS:
            raise UnableError(f"its sizes vary, and it has {len(blocks)} temporaries, more than {MAX_VARYING_BLOCKS}")
        ends: list[Any] = [0] * len(blocks)
        for i, below in blocks_below(blocks, planned, shared=self.shares):
            ends[i] = sizes.largest([0, *(ends[k] for k in below)]) + arena[i].nbytes
        offsets = tuple(end - m.nbytes for end, m in zip(ends, arena, strict=True))
        return replace(planned, offsets=offsets, peak_bytes=sizes.largest([0, *ends]))

    def _own_results(self, results: list[Result]) -> None:
        """Move returned values from the arena to memory of the caller's own."""
        for r in results:
            if r.value.memory.where == "arena":
                r.value.memory.where, r.value.memory.index = "result", self.results
                self.results += 1

    def _value(self, n: Node) -> tuple[Value, ...]:
        attrs, op = dict(n.attrs), n.op
        if op is ops.const:
            return (self._constant(n.spec, attrs["value"]),)
        if op is ops.item and n.inputs[0] is not None:
            return (self.values[n.inputs[0]][attrs["index"]],)
        if op.kind is VIEW:
            return (self._view(n, attrs),)
        special = _SPECIAL.get(op)
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
        return Value(x.memory, n.spec, seen)

    def read(self, x: Value | None, times: int = 1) -> None:
        if x is not None:
            x.memory.pending -= times

    def _call(self, n: Node, attrs: dict[str, Any]) -> tuple[Value, ...]:
        attrs.pop("device", None)
        values = self.values
        xs = [None if i is None else values[i][0] for i in n.inputs]
        for x in xs:
            if x is not None:
                x.memory.pending -= 1
        specs = outputs(n.spec)
        if n.op is ops.empty:
            return (self.new(specs[0], self.reads.get(n, 0)),)
        if n.op.kind is SOURCE:
            attrs["dtype"] = specs[0].dtype
        reads = self._reads_of(n, len(specs))
        # Of several results only the first of an op that works in place may be in the memory of an operand.
        placed = self.reuse(n, specs[0], xs, reads[0]) if len(specs) == 1 or n.op.inplace else None
        first = placed or self.new(specs[0], reads[0])
        outs = (first, *(self.new(s, r) for s, r in zip(specs[1:], reads[1:], strict=True)))
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
        specs = tuple([None if x is None else x.spec for x in xs])
        layouts = tuple([None if x is None else x.layout for x in xs])
        selected = self.backend.native_call(op, specs, attrs, layouts)
        if isinstance(selected, str):
            self.python[len(self.calls)] = selected
            selected = self._python_kernel(op, specs, attrs, layouts), dict(attrs)
        for v in (*xs, *outs):
            if v is not None:
                v.memory.last = len(self.calls)
        kernel, kernel_attrs = selected
        self.calls.append(Call(kernel, kernel_attrs, tuple(xs), outs, node, op, attrs))

    def _python_kernel(
        self, op: Op, specs: Specs, attrs: dict[str, Any], layouts: tuple[Layout | None, ...]
    ) -> PythonKernel:
        """Return the kernel of an op that has no native one: it is called from Python between native steps."""
        kernel = self.backend.choose(op, specs, attrs, layouts)
        if kernel is None and op.lower is not None:
            kernel = Kernel("lowered", partial(_run_lowered, op, self.backend.device, specs))
        if kernel is None:
            raise UnableError(self.python[len(self.calls)])
        return PythonKernel(self.backend, op, kernel)

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
    position = 0
    if axis is None:  # each input is one part of the flat result, in which it keeps its shape
        for x in xs:
            b.copy_to(x, b.part(to, Layout(x.spec.shape, contiguous_strides(x.spec.shape), position)), n)
            position += x.spec.size
        return to
    axis %= len(n.spec.shape)
    for x in xs:
        size = x.spec.shape[axis] if n.op is ops.concat else 1
        key: list[Any] = [(0, s, 1) for s in n.spec.shape]
        key[axis] = (position, position + size, 1) if n.op is ops.concat else position
        b.copy_to(x, b.part(to, basic_index(to.layout, tuple(key))), n)
        position += size
    return to


def _run_lowered(op: Op, device: Device, specs: Specs, *ins: Any, out: Any, **attrs: Any) -> None:
    """Run an op without a kernel by the ops it lowers to."""
    lowered(op, device, op.decide(specs, attrs), ins, attrs, out)


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
    return buffer.native.Program(*program_arguments(steps, graph, layouts), single=graph.single, about=spans)


def program_arguments(steps: Steps, graph: Graph, layouts: tuple[Layout, ...]) -> tuple[Any, ...]:
    """Return the arguments of the native program: its arguments, captured tensors, constants, arena, operands, steps, results."""
    captured = list(graph.captured.values())
    bases = {"arena": 0, "constant": 1, "argument": 2, "captured": 2 + len(graph.inputs)}
    bases["result"] = bases["captured"] + len(captured)
    numbers: dict[Any, int] = {}
    seen: dict[int, int] = {id(None): -1}  # by id() of a value: most are read where they were written, by one object
    operands: list[Any] = []

    def operand(v: Value) -> int:
        key = (id(v.memory), v.spec.dtype.name, v.layout)
        if key not in numbers:
            m, t, layout = v.memory, v.spec.dtype, _layout_of(v)
            inner = layout.offset // (t.rows * t.block) * t.nbytes
            is_inside = m.where in ("arena", "constant")
            base, offset = (bases[m.where], inner + m.index) if is_inside else (bases[m.where] + m.index, inner)
            numbers[key] = len(operands)
            operands.append((base, offset, t, layout.shape, layout.strides))
        seen[id(v)] = number = numbers[key]
        return number

    def numbered(values: tuple[Value | None, ...]) -> tuple[int, ...]:
        numbers = []
        for v in values:
            number = seen.get(id(v))
            numbers.append(operand(v) if number is None and v is not None else number)
        return tuple(numbers)  # type: ignore[arg-type]

    calls = [(c.kernel, c.attrs, numbered(c.inputs), numbered(c.outputs)) for c in steps.calls]
    donated = {i for i, _ in graph.writes}
    args = [(n.spec.dtype, n.spec.shape, layouts[i].strides, i in donated) for i, n in enumerate(graph.inputs)]
    results = _results(steps, graph, bases)
    return args, captured, steps.constants, steps.plan.peak_bytes, operands, calls, results


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


def build(graph: Graph, backend: Backend, layouts: tuple[Layout, ...], disabled: frozenset[str] = frozenset()) -> Steps:
    """Lower a graph for arguments of these layouts; raise UnableError if there is no native library, or no kernel of an op.

    `disabled`: passes that are left out, of "order", "place" and "native".
    """
    if "native" in disabled:
        raise UnableError("the pass native is disabled")
    able = backend.native_call(ops.copy, (Spec((1,)),), {}, (contiguous((1,)),))
    if isinstance(able, str):
        raise UnableError(able)
    unknown = sorted({str(s.dtype) for n in graph.order() for s in outputs(n.spec) if s.dtype.code < 0})
    if unknown:
        raise UnableError(f"native programs do not store {' or '.join(unknown)}")
    return Builder(graph, backend, layouts, disabled).run()

"""Batching, as vmap does it: the graph of one sample becomes a graph of n, with a new first axis, or a reason why not.

Each op has a rule that rewrites its call for operands with a batch axis; operands without one (captured tensors,
constants) are shared by all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod
from typing import Any, NamedTuple, TypeVar

from tritium import ops
from tritium.dtype import i64
from tritium.errors import ArgumentError, TritiumError
from tritium.fragment import Fragment
from tritium.graph.graph import Graph, Node, Trace
from tritium.layout import Layout, Shape, broadcast_shapes
from tritium.op import Axes, Op, Spec, outputs


class Value(NamedTuple):
    """The batched counterpart of a node of the graph of one sample."""

    node: Any  # a Node; for a fused call with several results, a tuple of Node
    is_batched: bool  # its first axis is the batch axis; otherwise all samples share it
    spec: Any  # without the batch axis: Spec, or a tuple of Spec

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)


class Call(NamedTuple):
    """A call of the graph of one sample, on batched operands."""

    op: Op
    xs: tuple[Value | None, ...]
    attrs: dict[str, Any]
    spec: Any


class _NoBatchError(TritiumError):
    """The reason why a call cannot be batched, which `batched` returns."""


def batched(graph: Graph, n: int, which: Collection[int] | None = None) -> Graph | str:
    """Return the graph that takes n values of each argument in `which` (default: all), stacked along a new first axis.

    Its results are those of the n calls, stacked. If a node cannot be batched, return the reason, which names the node.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ArgumentError(f"batched: n must be 1 or more samples, given {n!r}.")
    several = set(range(len(graph.inputs))) if which is None else set(which)
    if unknown := several - set(range(len(graph.inputs))):
        raise ArgumentError(f"batched: the graph has no argument {min(unknown)}; it takes {len(graph.inputs)}.")
    for index, _ in graph.writes:
        if index not in several:
            return f"argument {index} is written, so what one sample leaves there is what the next one reads"
    for i in sorted(several):
        if (spec := graph.inputs[i].spec).dtype.is_packed:
            return f"argument {i} ({spec}) is packed, and packed tensors cannot be stacked"
    w = Writer(n)
    env = {x: w.placeholder(x, i in several) for i, x in enumerate(graph.inputs)}
    env |= {x: w.placeholder(x, False) for x in graph.captured}
    for number, node in enumerate(graph.order()):
        if node not in env:
            xs = tuple(None if x is None else env[x] for x in node.inputs)
            try:
                env[node] = w.write(Call(node.op, xs, dict(node.attrs), node.spec))
            except TritiumError as error:
                return f"%{number} = {node.op.name}: {error}"
    results = [w.materialize(env[x]) for x in graph.roots]
    new_outputs = tuple(results[: len(graph.outputs)])
    writes = tuple((i, x) for (i, _), x in zip(graph.writes, results[len(new_outputs) :], strict=True))
    captured = {env[x].node: tensor for x, tensor in graph.captured.items()}
    return graph._replace(
        inputs=tuple(env[x].node for x in graph.inputs), outputs=new_outputs, captured=captured, writes=writes
    )


class Writer:
    """The trace that batched calls are recorded in, and the operations that rules are made of."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.trace = Trace()

    def placeholder(self, node: Node, is_batched: bool) -> Value:
        spec = self.stacked(node.spec) if is_batched else node.spec
        placeholder = self.trace.node(node.op, (), spec, dict(node.attrs) | {"spec": spec})
        return Value(placeholder, is_batched, node.spec)

    def stacked(self, spec: Spec) -> Spec:
        """Return the spec of n samples."""
        return Spec((self.n, *spec.shape), spec.dtype)

    def write(self, call: Call) -> Value:
        """Record one call for all samples. A call whose operands are all shared is recorded unchanged."""
        if not any(x is not None and x.is_batched for x in call.xs):
            inputs = tuple(None if x is None else x.node for x in call.xs)
            return Value(self.trace.node(call.op, inputs, call.spec, call.attrs), False, call.spec)
        rule = find_rule(call.op)
        if rule is None:
            raise _NoBatchError("the op has no batching rule; run the samples one by one.")
        node = rule(self, call)
        specs = tuple(x.spec for x in node) if isinstance(node, tuple) else outputs(node.spec)
        expected = tuple(self.stacked(s) for s in outputs(call.spec))
        assert specs == expected, f"{call.op.name}: {specs} instead of {expected}"
        return Value(node, True, call.spec)

    def emit(self, op: Op, *inputs: Node | None, **attrs: Any) -> Node:
        """Record a call; the op decides the spec of the result."""
        specs = tuple(None if x is None else x.spec for x in inputs)
        return self.trace.node(op, inputs, op.decide(specs, attrs).out, attrs)

    def emit_like(self, call: Call, *inputs: Node | None, **attrs: Any) -> Node:
        """Record a call of the same op on other operands; `attrs` replace attributes."""
        return self.emit(call.op, *inputs, **call.attrs | attrs)

    def align(self, x: Value, ndim: int) -> Node:
        """Return x with axes of size 1 after the batch axis, such that it broadcasts to `ndim` axes of a sample."""
        if not x.is_batched or x.ndim >= ndim:
            return x.node
        return self.emit(ops.expand_dims, x.node, axis=tuple(range(1, 1 + ndim - x.ndim)))

    def expand(self, x: Value, shape: Shape | None = None) -> Node:
        """Return a view of x with a batch axis, broadcast to a shape (default: its own)."""
        shape = (self.n, *(x.spec.shape if shape is None else shape))
        node = self.align(x, len(shape) - 1)
        return node if node.spec.shape == shape else self.emit(ops.broadcast_to, node, shape=shape)

    def reshape(self, node: Node, *shape: int) -> Node:
        """Reshape each sample."""
        return node if node.spec.shape == (self.n, *shape) else self.emit(ops.reshape, node, shape=(self.n, *shape))

    def move_axes(self, node: Node, source: int | tuple[int, ...], destination: int | tuple[int, ...]) -> Node:
        """Move axes of a batched node; the batch axis is number 0."""
        if source == destination:
            return node
        return self.emit(ops.moveaxis, node, source=source, destination=destination)

    def materialize(self, x: Value) -> Node:
        """Return the node of a result: batched, and in memory of its own."""
        return x.node if x.is_batched else self.emit(ops.copy, self.expand(x))


Rule = Callable[[Writer, Call], Node | tuple[Node, ...]]
AnyRule = TypeVar("AnyRule", bound=Rule)

RULES: dict[Op, Rule] = {}  # of ops whose axes follow no common rule


def rule_for(*targets: Op) -> Callable[[AnyRule], AnyRule]:
    """Register the batching rule of ops."""

    def register(rule: AnyRule) -> AnyRule:
        RULES.update(dict.fromkeys(targets, rule))
        return rule

    return register


def shift_axes(axis: Any) -> Any:
    """Shift axes by the new first one; negative axes stay."""
    if isinstance(axis, (tuple, list)):
        return tuple(shift_axes(a) for a in axis)
    return axis + 1 if axis >= 0 else axis


def sample_axes(x: Value) -> tuple[int, ...]:
    """Return all axes of a sample, without the batch axis."""
    return tuple(range(1, 1 + x.ndim))


def operand(call: Call, i: int) -> Value:
    """Return an operand that is not optional."""
    x = call.xs[i]
    assert x is not None
    return x


def operand_nodes(call: Call) -> list[Node | None]:
    """Return the nodes of all operands."""
    return [None if x is None else x.node for x in call.xs]


# ---- rules, by the axes an op works along


def batch_leading(w: Writer, call: Call) -> Node:
    """Batch an op that works on the last axes or on single elements of one operand: leading axes are free."""
    return w.emit_like(call, *operand_nodes(call))


def batch_elementwise(w: Writer, call: Call) -> Node:
    """Batch an op whose operands broadcast against each other."""
    ndim = max(x.ndim for x in call.xs if x is not None)
    return w.emit_like(call, *(None if x is None else w.align(x, ndim) for x in call.xs))


def batch_first_operand(w: Writer, call: Call) -> Node:
    """Batch an op of which only the first operand may differ between samples."""
    for name, x in zip(call.op.inputs[1:], call.xs[1:], strict=True):
        if x is not None and x.is_batched:
            raise _NoBatchError(f"{name} ({x.spec}) differs from sample to sample, and the op takes one for all.")
    return batch_leading(w, call)


ONE_MATRIX = "it works on one matrix of weights; do it once, before the samples."


def refuse(why: str) -> Callable[..., None]:
    """Register ops that cannot be batched, with the reason."""

    def rule(w: Writer, call: Call) -> Node:
        raise _NoBatchError(why)

    return lambda *targets: RULES.update(dict.fromkeys(targets, rule))


@rule_for(ops.rope)
def batch_rope(w: Writer, call: Call) -> Node:
    """Broadcast the angles to the tokens of each sample."""
    x, angles = operand(call, 0), (operand(call, 1), operand(call, 2))
    return w.emit_like(call, w.expand(x), *(w.align(a, x.ndim - 1) for a in angles))


def batch_axes(w: Writer, call: Call) -> Node:
    """Batch an op along one axis or several; None: all of them."""
    x, axis = operand(call, 0), call.attrs["axis"]
    return w.emit_like(call, x.node, axis=sample_axes(x) if axis is None else shift_axes(axis))


def batch_flat_axis(w: Writer, call: Call) -> Node:
    """Batch an op along one axis; None: the flattened elements."""
    x, axis = operand(call, 0), call.attrs["axis"]
    if axis is not None:
        return w.emit_like(call, x.node, axis=shift_axes(axis))
    flat = w.emit_like(call, w.reshape(x.node, x.spec.size), axis=1)
    return w.reshape(flat, *call.spec.shape)


def batch_reduction(w: Writer, call: Call) -> Node:
    """Batch a reduction; over all axes as one flat axis, so that sums are taken in the same order."""
    over_all = call.attrs["axis"] is None
    return batch_flat_axis(w, call) if over_all else batch_axes(w, call)


# ---- views


@rule_for(ops.reshape)
def batch_reshape(w: Writer, call: Call) -> Node:
    return w.reshape(operand(call, 0).node, *call.spec.shape)


@rule_for(ops.permute_dims)
def batch_permute_dims(w: Writer, call: Call) -> Node:
    x = operand(call, 0)
    return w.emit_like(call, x.node, axes=(0, *(a % x.ndim + 1 for a in call.attrs["axes"])))


@rule_for(ops.moveaxis)
def batch_moveaxis(w: Writer, call: Call) -> Node:
    source, destination = shift_axes(call.attrs["source"]), shift_axes(call.attrs["destination"])
    return w.emit_like(call, operand(call, 0).node, source=source, destination=destination)


@rule_for(ops.broadcast_to)
def batch_broadcast_to(w: Writer, call: Call) -> Node:
    return w.expand(operand(call, 0), call.spec.shape)


@rule_for(ops.expand_dims)
def batch_expand_dims(w: Writer, call: Call) -> Node:
    return w.emit_like(call, operand(call, 0).node, axis=shift_axes(call.attrs["axis"]))


@rule_for(ops.squeeze)
def batch_squeeze(w: Writer, call: Call) -> Node:
    x, axis = operand(call, 0), call.attrs["axis"]
    ones = tuple(d + 1 for d, size in enumerate(x.spec.shape) if size == 1)
    return w.emit_like(call, x.node, axis=ones if axis is None else shift_axes(axis))


@rule_for(ops.index)
def batch_index(w: Writer, call: Call) -> Node:
    return w.emit_like(call, operand(call, 0).node, key=((0, w.n, 1), *call.attrs["key"]))


@rule_for(ops.item)
def batch_item(w: Writer, call: Call) -> Node:
    node = operand(call, 0).node
    if isinstance(node, tuple):
        return node[call.attrs["index"]]
    return w.trace.node(call.op, (node,), node.spec[call.attrs["index"]], call.attrs)


# ---- products


@rule_for(ops.matmul)
def batch_matmul(w: Writer, call: Call) -> Node:
    """Batch a product: more rows of one product if only one side is batched, else one product for each sample."""
    a, b = operand(call, 0), operand(call, 1)
    if not b.is_batched and b.ndim <= 2:
        return w.emit_like(call, a.node, b.node)
    if not a.is_batched and b.ndim == 1 and a.ndim <= 2:  # a @ b is b @ a.T, whose rows are the samples
        return w.emit_like(call, b.node, a.node if a.ndim == 1 else w.emit(ops.matrix_transpose, a.node))
    rows = w.emit(ops.expand_dims, a.node, axis=-2) if a.ndim == 1 else a.node
    columns = w.emit(ops.expand_dims, b.node, axis=-1) if b.ndim == 1 else b.node
    ndim = max(a.ndim, b.ndim, 2)
    left = w.align(a._replace(node=rows, spec=Spec((1,) * max(a.ndim, 2))), ndim)
    right = w.align(b._replace(node=columns, spec=Spec((1,) * max(b.ndim, 2))), ndim)
    return w.reshape(w.emit_like(call, left, right), *call.spec.shape)


@rule_for(ops.factorize)
def batch_factorize(w: Writer, call: Call) -> Node:
    """Batch a factorisation: it takes stacks of matrices. A vector that is solved for becomes a column."""
    if len(call.xs) == 1:
        return batch_leading(w, call)
    a, b = operand(call, 0), operand(call, 1)
    columns = w.emit(ops.expand_dims, b.node, axis=-1) if b.ndim == 1 else b.node
    ndim = max(a.ndim, b.ndim, 2)
    right = w.align(b._replace(node=columns, spec=Spec((1,) * max(b.ndim, 2))), ndim)
    return w.reshape(w.emit_like(call, w.align(a, ndim), right), *call.spec.shape)


# ---- moving elements


@rule_for(ops.concat, ops.stack)
def batch_join(w: Writer, call: Call) -> Node:
    """Batch concat and stack."""
    axis = call.attrs["axis"]
    parts = [w.expand(x) for x in call.xs if x is not None]
    if axis is None:
        flat = [w.reshape(p, prod(p.spec.shape[1:])) for p in parts]
        return w.emit_like(call, *flat, axis=1)
    return w.emit_like(call, *parts, axis=shift_axes(axis))


@rule_for(ops.roll)
def batch_roll(w: Writer, call: Call) -> Node:
    x, shift, axis = operand(call, 0), call.attrs["shift"], call.attrs["axis"]
    if axis is not None:
        return w.emit_like(call, x.node, axis=shift_axes(axis))
    total = shift if isinstance(shift, int) else sum(shift)
    return w.reshape(w.emit_like(call, w.reshape(x.node, x.spec.size), shift=total, axis=1), *x.spec.shape)


@rule_for(ops.take)
def batch_take(w: Writer, call: Call) -> Node:
    x, indices = operand(call, 0), operand(call, 1)
    axis = (call.attrs["axis"] or 0) % x.ndim
    if not indices.is_batched:
        return w.emit_like(call, x.node, indices.node, axis=axis + 1)
    if not x.is_batched:  # the batch axis is among those of the indices
        return w.move_axes(w.emit_like(call, x.node, indices.node, axis=axis), axis, 0)
    ones = (1,) * axis, (1,) * (x.ndim - axis - 1)
    positions = w.reshape(indices.node, *ones[0], indices.spec.size, *ones[1])
    return w.reshape(w.emit(ops.take_along_axis, x.node, positions, axis=axis + 1), *call.spec.shape)


@rule_for(ops.take_rows)
def batch_take_rows(w: Writer, call: Call) -> Node:
    for name, x in zip(("w", "scale"), call.xs, strict=False):
        if x is not None and x.is_batched:
            raise _NoBatchError(f"{name} ({x.spec}) differs from sample to sample, and the op takes one table for all.")
    return w.emit_like(call, *(operand(call, i).node for i in range(3)))


@rule_for(ops.take_along_axis)
def batch_take_along_axis(w: Writer, call: Call) -> Node:
    x, indices = operand(call, 0), operand(call, 1)
    return w.emit_like(call, w.expand(x), w.expand(indices), axis=shift_axes(call.attrs["axis"]))


@rule_for(ops.scatter)
def batch_scatter(w: Writer, call: Call) -> Node:
    x, indices, values = (operand(call, i) for i in range(3))
    if indices.is_batched:
        raise _NoBatchError(f"indices ({indices.spec}) differ from sample to sample, and the op takes one set for all.")
    ndim = x.ndim - 1 + indices.ndim
    return w.emit_like(call, w.expand(x), indices.node, w.align(values, ndim), axis=shift_axes(call.attrs["axis"]))


class IndexBlock(NamedTuple):
    """The axes of the broadcast index tensors, among the axes of the result of indexing."""

    ndim: int
    position: int  # of its first axis
    is_split: bool  # slices are between the tensors, so NumPy puts the block first


def index_block(call: Call, indices: tuple[Value, ...]) -> IndexBlock:
    """Return the block of an index that has tensors."""
    key = call.attrs["key"]
    positions = [i for i, k in enumerate(key) if k == "at" or isinstance(k, int)]
    is_split = positions != list(range(positions[0], positions[-1] + 1))
    ndim = len(broadcast_shapes(*(x.spec.shape for x in indices)))
    return IndexBlock(ndim, 0 if is_split else positions[0], is_split)


def index_per_sample(
    w: Writer, call: Call, indices: tuple[Value, ...], block: int
) -> tuple[list[Node], tuple[Any, ...]]:
    """Return the index that reads row i of sample i: the number of the sample is one more index tensor."""
    numbers = w.emit(ops.arange, start=w.n, stop=None, step=1, dtype=i64)
    index_nodes = [w.reshape(numbers, *(1,) * block), *(w.align(x, block) for x in indices)]
    return index_nodes, ("at", *call.attrs["key"])


@rule_for(ops.gather)
def batch_gather(w: Writer, call: Call) -> Node:
    x, indices = operand(call, 0), tuple(operand(call, i) for i in range(1, len(call.xs)))
    block = index_block(call, indices)
    if not any(i.is_batched for i in indices):
        read = w.emit_like(call, *operand_nodes(call), key=((0, w.n, 1), *call.attrs["key"]))
        return w.move_axes(read, block.ndim, 0) if block.is_split else read
    if not x.is_batched:
        read = w.emit_like(call, x.node, *(w.align(i, block.ndim) for i in indices))
        return w.move_axes(read, block.position, 0)
    per_sample_indices, key = index_per_sample(w, call, indices, block.ndim)
    return _move_block(w, w.emit_like(call, x.node, *per_sample_indices, key=key), block, 1, 1 + block.position)


@rule_for(ops.put)
def batch_put(w: Writer, call: Call) -> Node:
    """Batch put: x with the elements that an index selects set to a value."""
    x, value = operand(call, 0), operand(call, 1)
    indices = tuple(operand(call, i) for i in range(2, len(call.xs)))
    block = index_block(call, indices)
    part = ops.gathered(x.spec.shape, tuple(i.spec.shape for i in indices), call.attrs["key"])
    if any(i.is_batched for i in indices):
        per_sample_indices, key = index_per_sample(w, call, indices, block.ndim)
        values = _move_block(w, w.expand(value, part), block, 1 + block.position, 1)
        return w.emit_like(call, w.expand(x), values, *per_sample_indices, key=key)
    values = w.move_axes(w.expand(value, part), 0, block.ndim) if block.is_split else w.align(value, len(part))
    return w.emit_like(call, w.expand(x), values, *(i.node for i in indices), key=((0, w.n, 1), *call.attrs["key"]))


def _move_block(w: Writer, node: Node, block: IndexBlock, source: int, destination: int) -> Node:
    """Move the axes of the index tensors to another position."""
    step = range(block.ndim)
    return w.move_axes(node, tuple(source + i for i in step), tuple(destination + i for i in step))


@rule_for(ops.update)
def batch_update(w: Writer, call: Call) -> Node:
    x, value, part = operand(call, 0), operand(call, 1), call.attrs["layout"]
    if x.spec.dtype.is_packed:
        raise _NoBatchError(f"{x.spec} is packed, and a part of each sample cannot be written.")
    layout = Layout((w.n, *part.shape), (x.spec.size, *part.strides), part.offset)
    return w.emit_like(call, w.expand(x), w.align(value, len(part.shape)), layout=layout)


@rule_for(ops.searchsorted)
def batch_searchsorted(w: Writer, call: Call) -> Node:
    x1 = operand(call, 0)
    if x1.is_batched:
        raise _NoBatchError(f"x1 ({x1.spec}) differs from sample to sample, and the op takes one for all.")
    return batch_leading(w, call)


@rule_for(ops.quantize, ops.dequantize)
def batch_quantized(w: Writer, call: Call) -> Node:
    """Batch scales that are given: one for all stays, others are broadcast to the rows of each sample."""
    x, numbers = operand(call, 0), [s for s in call.xs[1:] if s is not None]
    if x.spec.dtype.is_packed or call.attrs["dtype"].is_packed:
        raise _NoBatchError(ONE_MATRIX)
    if not any(s.is_batched or s.ndim for s in numbers):
        return batch_leading(w, call)
    if not x.ndim:
        raise _NoBatchError("its scale differs from sample to sample, and x is a single number without rows.")
    rows = numbers[0].spec.shape or x.spec.shape[:-1]
    return w.emit_like(call, w.expand(x), *(None if s is None else w.expand(s, rows) for s in call.xs[1:]))


@rule_for(ops.fused)
def unfuse(w: Writer, call: Call) -> Node | tuple[Node, ...]:
    """Record the steps of a fused call one by one: they are fused again afterwards, for the new shapes."""
    fragment: Fragment = call.attrs["body"]
    values: list[Value | None] = list(call.xs)
    for s in fragment.steps:
        xs = tuple(None if i is None else values[i] for i in s.inputs)
        values.append(w.write(Call(s.op, xs, dict(s.attrs), s.spec)))
    results = tuple(w.materialize(x) for i in fragment.outputs if (x := values[i]) is not None)
    return results if len(results) > 1 else results[0]


# ---- the rule of each op

BY_AXES: dict[Axes, Rule] = {
    Axes.EACH: batch_elementwise,
    Axes.LAST: batch_leading,
    Axes.SHARED: batch_first_operand,
    Axes.NAMED: batch_axes,
    Axes.REDUCED: batch_reduction,
    Axes.FLAT: batch_flat_axis,
}
refuse(ONE_MATRIX)(ops.quantize_ternary, ops.quantize_int8, ops.quantize_int4)
refuse("it has an axis of sequences of its own; give it all of them at once.")(
    ops.attention,
    ops.update_cache,
    ops.quantized_attention,
    ops.update_quantized_cache,
    ops.causal_conv1d,
    ops.gated_delta_rule,
)
refuse("it has axes of tokens of its own; give it all of them at once.")(ops.expert_matmul, ops.bounded_argmax)


def find_rule(op: Op) -> Rule | None:
    """Return the batching rule of an op: its own, or that of the axes it works along; None: it has none."""
    return RULES.get(op) or BY_AXES.get(op.axes)

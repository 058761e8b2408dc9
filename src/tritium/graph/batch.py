"""One graph for many samples: the same calls with a new first axis, or the reason why there is no such graph.

Knows nothing of devices or values. Each row has a rule that says how its call looks when some of its operands hold one
value for each sample; operands that do not (captured tensors, constants) are shared by all samples.
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
    """What stands for a node of the graph of one sample."""

    node: Any  # a Node; of a fused call with several results, one for each
    many: bool  # it has a first axis with one value for each sample
    spec: Any  # of one sample: Spec, or a tuple of Spec

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)


class Call(NamedTuple):
    """A node of the graph of one sample, its operands replaced."""

    op: Op
    xs: tuple[Value | None, ...]
    attrs: dict[str, Any]
    spec: Any


class _NoBatchError(TritiumError):
    """A call that cannot be made once for many samples: why. Becomes the answer of `batched`."""


def batched(graph: Graph, n: int, which: Collection[int] | None = None) -> Graph | str:
    """The graph that takes n values of each argument in `which` (all, when left out) stacked along a new first axis.

    Its results are those of the n calls, stacked. Where that cannot be, the reason, which names the node.
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
    env = {x: w.given(x, i in several) for i, x in enumerate(graph.inputs)}
    env |= {x: w.given(x, False) for x in graph.captured}
    for number, node in enumerate(graph.order()):
        if node not in env:
            xs = tuple(None if x is None else env[x] for x in node.inputs)
            try:
                env[node] = w.write(Call(node.op, xs, dict(node.attrs), node.spec))
            except TritiumError as error:
                return f"%{number} = {node.op.name}: {error}"
    results = [w.own(env[x]) for x in graph.roots]
    made = tuple(results[: len(graph.outputs)])
    writes = tuple((i, x) for (i, _), x in zip(graph.writes, results[len(made) :], strict=True))
    captured = {env[x].node: tensor for x, tensor in graph.captured.items()}
    return graph._replace(
        inputs=tuple(env[x].node for x in graph.inputs), outputs=made, captured=captured, writes=writes
    )


class Writer:
    """Writes down the calls of n samples."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.trace = Trace()

    def given(self, node: Node, many: bool) -> Value:
        spec = self.stacked(node.spec) if many else node.spec
        made = self.trace.node(node.op, (), spec, dict(node.attrs) | {"spec": spec})
        return Value(made, many, node.spec)

    def stacked(self, spec: Spec) -> Spec:
        return Spec((self.n, *spec.shape), spec.dtype)

    def write(self, call: Call) -> Value:
        """One call for all samples. What depends on no sample stays as it is."""
        if not any(x is not None and x.many for x in call.xs):
            inputs = tuple(None if x is None else x.node for x in call.xs)
            return Value(self.trace.node(call.op, inputs, call.spec, call.attrs), False, call.spec)
        rule = rule_of(call.op)
        if rule is None:
            raise _NoBatchError("there is no rule for many samples of it; run the samples one by one.")
        node = rule(self, call)
        specs = tuple(x.spec for x in node) if isinstance(node, tuple) else outputs(node.spec)
        wanted = tuple(self.stacked(s) for s in outputs(call.spec))
        assert specs == wanted, f"{call.op.name}: {specs} instead of {wanted}"
        return Value(node, True, call.spec)

    def emit(self, op: Op, *inputs: Node | None, **attrs: Any) -> Node:
        """A call as the row's rule decides it."""
        specs = tuple(None if x is None else x.spec for x in inputs)
        return self.trace.node(op, inputs, op.decide(specs, attrs).out, attrs)

    def again(self, call: Call, *inputs: Node | None, **attrs: Any) -> Node:
        """The same row on other operands."""
        return self.emit(call.op, *inputs, **call.attrs | attrs)

    def aligned(self, x: Value, ndim: int) -> Node:
        """x such that it broadcasts to `ndim` axes of a sample: sizes of 1 between the samples and its own axes."""
        if not x.many or x.ndim >= ndim:
            return x.node
        return self.emit(ops.expand_dims, x.node, axis=tuple(range(1, 1 + ndim - x.ndim)))

    def whole(self, x: Value, shape: Shape | None = None) -> Node:
        """x for each sample, broadcast to a shape: a view."""
        shape = (self.n, *(x.spec.shape if shape is None else shape))
        node = self.aligned(x, len(shape) - 1)
        return node if node.spec.shape == shape else self.emit(ops.broadcast_to, node, shape=shape)

    def shaped(self, node: Node, *shape: int) -> Node:
        return node if node.spec.shape == (self.n, *shape) else self.emit(ops.reshape, node, shape=(self.n, *shape))

    def moved(self, node: Node, source: int | tuple[int, ...], destination: int | tuple[int, ...]) -> Node:
        if source == destination:
            return node
        return self.emit(ops.moveaxis, node, source=source, destination=destination)

    def own(self, x: Value) -> Node:
        """A result: one for each sample, in memory of its own."""
        return x.node if x.many else self.emit(ops.copy, self.whole(x))


Rule = Callable[[Writer, Call], Node | tuple[Node, ...]]
AnyRule = TypeVar("AnyRule", bound=Rule)

RULES: dict[Op, Rule] = {}  # of rows that follow a rule of their own


def rule_for(*rows: Op) -> Callable[[AnyRule], AnyRule]:
    """Register the rule of rows whose axes are their own matter."""

    def register(rule: AnyRule) -> AnyRule:
        RULES.update(dict.fromkeys(rows, rule))
        return rule

    return register


def later(axis: Any) -> Any:
    """The same axes behind a new first one; those counted from the end stay."""
    if isinstance(axis, (tuple, list)):
        return tuple(later(a) for a in axis)
    return axis + 1 if axis >= 0 else axis


def own_axes(x: Value) -> tuple[int, ...]:
    """All axes of a sample."""
    return tuple(range(1, 1 + x.ndim))


def operand(call: Call, i: int) -> Value:
    x = call.xs[i]
    assert x is not None
    return x


def nodes(call: Call) -> list[Node | None]:
    return [None if x is None else x.node for x in call.xs]


# ---- rules, by what a row does with its axes


def same(w: Writer, call: Call) -> Node:
    """Leading axes are free: the row works on the last ones or on single elements of its one operand."""
    return w.again(call, *nodes(call))


def broadcast(w: Writer, call: Call) -> Node:
    """Element by element."""
    ndim = max(x.ndim for x in call.xs if x is not None)
    return w.again(call, *(None if x is None else w.aligned(x, ndim) for x in call.xs))


def shared(w: Writer, call: Call) -> Node:
    """Only the first operand may differ between samples; the others may not."""
    for name, x in zip(call.op.inputs[1:], call.xs[1:], strict=True):
        if x is not None and x.many:
            raise _NoBatchError(f"{name} ({x.spec}) differs from sample to sample, and the row takes one for all.")
    return same(w, call)


def refuse(why: str) -> Callable[..., None]:
    """Register rows that have no batch, and why."""

    def rule(w: Writer, call: Call) -> Node:
        raise _NoBatchError(why)

    return lambda *rows: RULES.update(dict.fromkeys(rows, rule))


@rule_for(ops.rope)
def turned(w: Writer, call: Call) -> Node:
    """Angles broadcast to the tokens of each sample."""
    x, angles = operand(call, 0), (operand(call, 1), operand(call, 2))
    return w.again(call, w.whole(x), *(w.aligned(a, x.ndim - 1) for a in angles))


def along_axis(w: Writer, call: Call) -> Node:
    """One axis or several; None means all."""
    x, axis = operand(call, 0), call.attrs["axis"]
    return w.again(call, x.node, axis=own_axes(x) if axis is None else later(axis))


def along_one_axis(w: Writer, call: Call) -> Node:
    """One axis; None means the elements one after another."""
    x, axis = operand(call, 0), call.attrs["axis"]
    if axis is not None:
        return w.again(call, x.node, axis=later(axis))
    flat = w.again(call, w.shaped(x.node, x.spec.size), axis=1)
    return w.shaped(flat, *call.spec.shape)


def reduced(w: Writer, call: Call) -> Node:
    """Along axes; all of them as one, so that sums are taken in the same order."""
    whole = call.attrs["axis"] is None
    return along_one_axis(w, call) if whole else along_axis(w, call)


# ---- views


@rule_for(ops.reshape)
def reshaped(w: Writer, call: Call) -> Node:
    return w.shaped(operand(call, 0).node, *call.spec.shape)


@rule_for(ops.permute_dims)
def permuted(w: Writer, call: Call) -> Node:
    x = operand(call, 0)
    return w.again(call, x.node, axes=(0, *(a % x.ndim + 1 for a in call.attrs["axes"])))


@rule_for(ops.moveaxis)
def axis_moved(w: Writer, call: Call) -> Node:
    source, destination = later(call.attrs["source"]), later(call.attrs["destination"])
    return w.again(call, operand(call, 0).node, source=source, destination=destination)


@rule_for(ops.broadcast_to)
def repeated(w: Writer, call: Call) -> Node:
    return w.whole(operand(call, 0), call.spec.shape)


@rule_for(ops.expand_dims)
def expanded(w: Writer, call: Call) -> Node:
    return w.again(call, operand(call, 0).node, axis=later(call.attrs["axis"]))


@rule_for(ops.squeeze)
def squeezed(w: Writer, call: Call) -> Node:
    x, axis = operand(call, 0), call.attrs["axis"]
    ones = tuple(d + 1 for d, size in enumerate(x.spec.shape) if size == 1)
    return w.again(call, x.node, axis=ones if axis is None else later(axis))


@rule_for(ops.index)
def indexed(w: Writer, call: Call) -> Node:
    return w.again(call, operand(call, 0).node, key=((0, w.n, 1), *call.attrs["key"]))


@rule_for(ops.item)
def one_of_several(w: Writer, call: Call) -> Node:
    node = operand(call, 0).node
    if isinstance(node, tuple):
        return node[call.attrs["index"]]
    return w.trace.node(call.op, (node,), node.spec[call.attrs["index"]], call.attrs)


# ---- products


@rule_for(ops.matmul)
def product(w: Writer, call: Call) -> Node:
    """Where only one side has samples, they are more rows of one product; else one product for each sample."""
    a, b = operand(call, 0), operand(call, 1)
    if not b.many and b.ndim <= 2:
        return w.again(call, a.node, b.node)
    if not a.many and b.ndim == 1 and a.ndim <= 2:  # a @ b is b @ a.T, whose rows are the samples
        return w.again(call, b.node, a.node if a.ndim == 1 else w.emit(ops.matrix_transpose, a.node))
    rows = w.emit(ops.expand_dims, a.node, axis=-2) if a.ndim == 1 else a.node
    columns = w.emit(ops.expand_dims, b.node, axis=-1) if b.ndim == 1 else b.node
    ndim = max(a.ndim, b.ndim, 2)
    left = w.aligned(a._replace(node=rows, spec=Spec((1,) * max(a.ndim, 2))), ndim)
    right = w.aligned(b._replace(node=columns, spec=Spec((1,) * max(b.ndim, 2))), ndim)
    return w.shaped(w.again(call, left, right), *call.spec.shape)


# ---- moving elements


@rule_for(ops.concat, ops.stack)
def joined(w: Writer, call: Call) -> Node:
    """concat and stack."""
    axis = call.attrs["axis"]
    parts = [w.whole(x) for x in call.xs if x is not None]
    if axis is None:
        flat = [w.shaped(p, prod(p.spec.shape[1:])) for p in parts]
        return w.again(call, *flat, axis=1)
    return w.again(call, *parts, axis=later(axis))


@rule_for(ops.roll)
def rolled(w: Writer, call: Call) -> Node:
    x, shift, axis = operand(call, 0), call.attrs["shift"], call.attrs["axis"]
    if axis is not None:
        return w.again(call, x.node, axis=later(axis))
    total = shift if isinstance(shift, int) else sum(shift)
    return w.shaped(w.again(call, w.shaped(x.node, x.spec.size), shift=total, axis=1), *x.spec.shape)


@rule_for(ops.take)
def taken(w: Writer, call: Call) -> Node:
    x, indices = operand(call, 0), operand(call, 1)
    axis = (call.attrs["axis"] or 0) % x.ndim
    if not indices.many:
        return w.again(call, x.node, indices.node, axis=axis + 1)
    if not x.many:  # the samples stand among the indices
        return w.moved(w.again(call, x.node, indices.node, axis=axis), axis, 0)
    around = (1,) * axis, (1,) * (x.ndim - axis - 1)
    places = w.shaped(indices.node, *around[0], indices.spec.size, *around[1])
    return w.shaped(w.emit(ops.take_along_axis, x.node, places, axis=axis + 1), *call.spec.shape)


@rule_for(ops.take_along_axis)
def taken_along(w: Writer, call: Call) -> Node:
    x, indices = operand(call, 0), operand(call, 1)
    return w.again(call, w.whole(x), w.whole(indices), axis=later(call.attrs["axis"]))


@rule_for(ops.scatter)
def scattered(w: Writer, call: Call) -> Node:
    x, indices, values = (operand(call, i) for i in range(3))
    if indices.many:
        raise _NoBatchError(
            f"indices ({indices.spec}) differ from sample to sample, and the row takes one set for all."
        )
    ndim = x.ndim - 1 + indices.ndim
    return w.again(call, w.whole(x), indices.node, w.aligned(values, ndim), axis=later(call.attrs["axis"]))


class Places(NamedTuple):
    """An index with tensors: how many axes they have together, and where those stand among the axes of what is read."""

    block: int
    at: int  # axes before the block
    apart: bool  # slices stand between the tensors, so NumPy puts the block first


def places(call: Call, indices: tuple[Value, ...]) -> Places:
    key = call.attrs["key"]
    at = [i for i, k in enumerate(key) if k == "at" or isinstance(k, int)]
    apart = at != list(range(at[0], at[-1] + 1))
    block = len(broadcast_shapes(*(x.spec.shape for x in indices)))
    return Places(block, 0 if apart else at[0], apart)


def per_sample(w: Writer, call: Call, indices: tuple[Value, ...], block: int) -> tuple[list[Node], tuple[Any, ...]]:
    """The index that reads row i of sample i: the number of the sample is one more index tensor."""
    number = w.emit(ops.arange, start=w.n, stop=None, step=1, dtype=i64)
    found = [w.shaped(number, *(1,) * block), *(w.aligned(x, block) for x in indices)]
    return found, ("at", *call.attrs["key"])


@rule_for(ops.gather)
def gathered(w: Writer, call: Call) -> Node:
    x, indices = operand(call, 0), tuple(operand(call, i) for i in range(1, len(call.xs)))
    found = places(call, indices)
    if not any(i.many for i in indices):
        read = w.again(call, *nodes(call), key=((0, w.n, 1), *call.attrs["key"]))
        return w.moved(read, found.block, 0) if found.apart else read
    if not x.many:
        read = w.again(call, x.node, *(w.aligned(i, found.block) for i in indices))
        return w.moved(read, found.at, 0)
    numbered, key = per_sample(w, call, indices, found.block)
    return _block_at(w, w.again(call, x.node, *numbered, key=key), found, 1, 1 + found.at)


@rule_for(ops.put)
def replaced(w: Writer, call: Call) -> Node:
    """put: x with the elements an index names set to a value."""
    x, value = operand(call, 0), operand(call, 1)
    indices = tuple(operand(call, i) for i in range(2, len(call.xs)))
    found = places(call, indices)
    part = ops.gathered(x.spec.shape, tuple(i.spec.shape for i in indices), call.attrs["key"])
    if any(i.many for i in indices):
        numbered, key = per_sample(w, call, indices, found.block)
        laid = _block_at(w, w.whole(value, part), found, 1 + found.at, 1)
        return w.again(call, w.whole(x), laid, *numbered, key=key)
    laid = w.moved(w.whole(value, part), 0, found.block) if found.apart else w.aligned(value, len(part))
    return w.again(call, w.whole(x), laid, *(i.node for i in indices), key=((0, w.n, 1), *call.attrs["key"]))


def _block_at(w: Writer, node: Node, found: Places, source: int, destination: int) -> Node:
    """The axes of the index tensors in another place."""
    step = range(found.block)
    return w.moved(node, tuple(source + i for i in step), tuple(destination + i for i in step))


@rule_for(ops.update)
def updated(w: Writer, call: Call) -> Node:
    x, value, seen = operand(call, 0), operand(call, 1), call.attrs["layout"]
    if x.spec.dtype.is_packed:
        raise _NoBatchError(f"{x.spec} is packed, and a part of each sample cannot be written.")
    layout = Layout((w.n, *seen.shape), (x.spec.size, *seen.strides), seen.offset)
    return w.again(call, w.whole(x), w.aligned(value, len(seen.shape)), layout=layout)


@rule_for(ops.searchsorted)
def searched(w: Writer, call: Call) -> Node:
    x1 = operand(call, 0)
    if x1.many:
        raise _NoBatchError(f"x1 ({x1.spec}) differs from sample to sample, and the row takes one for all.")
    return same(w, call)


@rule_for(ops.fused)
def unfolded(w: Writer, call: Call) -> Node | tuple[Node, ...]:
    """The steps of a fused call, one by one: fusing is done again afterwards, for the new shapes."""
    body: Fragment = call.attrs["body"]
    values: list[Value | None] = list(call.xs)
    for s in body.steps:
        xs = tuple(None if i is None else values[i] for i in s.inputs)
        values.append(w.write(Call(s.op, xs, dict(s.attrs), s.spec)))
    found = tuple(w.own(x) for i in body.outputs if (x := values[i]) is not None)
    return found if len(found) > 1 else found[0]


# ---- which row follows which rule

BY_AXES: dict[Axes, Rule] = {
    Axes.EACH: broadcast,
    Axes.LAST: same,
    Axes.SHARED: shared,
    Axes.NAMED: along_axis,
    Axes.REDUCED: reduced,
    Axes.FLAT: along_one_axis,
}
refuse("it works on one matrix of weights; do it once, before the samples.")(
    ops.dequantize, ops.quantize_ternary, ops.quantize_int8, ops.quantize_int4
)
refuse("it has an axis of sequences of its own; give it all of them at once.")(ops.attention, ops.update_cache)


def rule_of(op: Op) -> Rule | None:
    """Return the rule of a row: its own, or that of the axes it works along; None: it has no batch."""
    return RULES.get(op) or BY_AXES.get(op.axes)

"""Lower products summed over named indices to ops: names and layouts in, steps out.

Knows nothing of tensors or kernels, nor of which order is best: it lowers a given order, and the steps have the cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

from tritium import dtype as dt, layout as lay, ops
from tritium.dtype import DType
from tritium.errors import ArgumentError, DTypeError, ShapeError
from tritium.fragment import Step
from tritium.layout import Layout, Shape
from tritium.op import Cost, Kind, Op, Spec

Names = tuple[str, ...]  # of indices, one for each axis; "…2" is the second axis from the right under an ellipsis
Order = tuple[tuple[int, ...], ...]  # the values that are joined; the result is appended to the list

LAUNCH_FLOPS = 2048  # overhead of one small product of a batch, in flops


class Operand(NamedTuple):
    """The properties of an operand that a plan depends on."""

    shape: Shape
    dtype: DType
    strides: Shape
    scale: Spec | None = None  # of quantised weights
    group: int = 0

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, self.dtype)

    @property
    def is_weight(self) -> bool:
        """Return True if only a product with activations can read it."""
        return self.scale is not None or self.dtype.is_packed


class Contraction(NamedTuple):
    """One line of a path: the operands joined, the ops that run, and their cost."""

    names: str
    rows: str
    cost: Cost
    copies: int
    out: Spec

    @property
    def nbytes(self) -> int:
        return self.cost.read + self.cost.written


class Lowered(NamedTuple):
    """One contraction order, lowered to steps."""

    steps: tuple[Step, ...]
    contractions: tuple[Contraction, ...]
    result: int
    out: Spec

    @property
    def cost(self) -> int:
        """Return the sum of flops and bytes."""
        return sum(sum(c.cost) for c in self.contractions)


def count_text(n: int, singular: str, plural: str) -> str:
    return f"{n} {singular if n == 1 else plural}"


# ---- names


class Terms(NamedTuple):
    """Names of the axes of every operand and of the result."""

    inputs: tuple[Names, ...]
    out: Names


def parse(spec: str, operands: tuple[Operand, ...], context: str) -> Terms:
    """Parse a spec string into index names, with ellipses expanded."""
    text = spec.replace(" ", "")
    left, arrow, right = text.partition("->")
    for c in left + right:
        if not (c.isalpha() or c in ".," or (ord(c) > 127 and not c.isspace())):  # opt_einsum names many indices so
            raise ArgumentError(f"{context}: {c!r} is no index; use letters, '...', ',' between operands and one '->'.")
    if "," in right:
        raise ArgumentError(
            f"{context}: the result must be one term, given {right!r}; write one einsum for each result."
        )
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ArgumentError(
            f"{context} names {count_text(len(terms), 'operand', 'operands')}, {len(operands)} given; write one term for each."
        )
    inputs = tuple(
        _expand(t, len(o.shape) - len(t.replace("...", "")), f"operand {i} ({o.spec})", context)
        for i, (t, o) in enumerate(zip(terms, operands, strict=True))
    )
    count = Counter(n for names in inputs for n in names)
    dots = tuple(sorted((n for n in count if len(n) > 1), key=lambda n: -int(n[1:])))
    if not arrow:
        return Terms(inputs, (*dots, *sorted(n for n, times in count.items() if times == 1 and len(n) == 1)))
    if dots and "." not in right:
        raise ArgumentError(
            f"{context}: '...' stands for {count_text(len(dots), 'axis', 'axes')}, but the result has no '...'; write ->...{right}."
        )
    out = _expand(right, len(dots) if "." in right else 0, "the result", context)
    for n in out:
        if n not in count:
            raise ArgumentError(f"{context}: index {n!r} of the result is in no operand.")
        if out.count(n) > 1:
            raise ArgumentError(f"{context}: index {n!r} is in the result twice; a result names each index once.")
    return Terms(inputs, out)


def _expand(term: str, width: int, what: str, context: str) -> Names:
    """Return the names of one term, those of the axes under its ellipsis counted from the right."""
    head, dots, tail = term.partition("...")
    if "." in head + tail:
        raise ArgumentError(f"{context}: {term!r} has a '.' out of place; an ellipsis is three dots, once in a term.")
    if width < 0 or (width and not dots):
        need = "at least " * bool(dots) + count_text(len(head + tail), "axis", "axes")
        raise ShapeError(
            f"{context}: {term!r} needs {need}, but {what} has {width + len(head + tail)}; '...' stands for any."
        )
    return (*head, *(f"…{d}" for d in range(width, 0, -1)), *tail)


def sizes_of(terms: Terms, operands: tuple[Operand, ...], context: str) -> dict[str, int]:
    """Return the size of every index. A size of 1 is broadcast, as in NumPy, but not along a diagonal."""
    known: dict[str, tuple[int, int]] = {}  # size, and the operand it comes from
    for i, (names, o) in enumerate(zip(terms.inputs, operands, strict=True)):
        for name, n in zip(names, o.shape, strict=True):
            first = o.shape[names.index(name)]
            if n != first:
                raise ShapeError(
                    f"{context}: index {name!r} is repeated in operand {i} ({o.spec}) with sizes {first} and {n}; "
                    f"a diagonal needs equal sizes."
                )
            size, where = known.get(name, (1, i))
            if 1 != n != size != 1:
                raise ShapeError(
                    f"{context}: index {name!r} has size {size} in operand {where} ({operands[where].spec}) and {n} in "
                    f"operand {i} ({o.spec}); sizes must be equal or 1."
                )
            if size == 1:
                known[name] = (n, i)
    return {name: n for name, (n, _) in known.items()}


# ---- planning: names and layouts in, steps out


class Value(NamedTuple):
    """An input or output of a step."""

    number: int
    names: Names
    spec: Spec
    layout: Layout
    scale: int | None = None  # the number of the value that scales these weights
    group: int = 0
    is_weight: bool = False

    def axes(self, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(self.names.index(n) for n in names)

    def size(self, names: Iterable[str]) -> int:
        return prod(self.spec.shape[d] for d in self.axes(names))

    def in_memory(self, names: Iterable[str]) -> Names:
        """Return names from the largest stride to the smallest: the order in which axes merge."""
        return tuple(sorted(names, key=lambda n: -abs(self.layout.strides[self.names.index(n)])))


class Writer:
    """A builder of steps that tracks the layout of each result."""

    def __init__(self, context: str, operands: tuple[Operand, ...]) -> None:
        self.context = context
        self.specs = [o.spec for o in operands] + [o.scale for o in operands if o.scale is not None]
        self.steps: list[Step] = []
        self.lines: list[Contraction] = []
        self.written = 0  # number of steps that belong to a line
        self.last = -1  # the value that the last line computes

    def call(self, op: Op, inputs: tuple[Value, ...], names: Names, **attrs: Any) -> Value:
        """Append one step; operands are cast where the op computes in another dtype."""
        bound = op.complete(attrs)
        missing = (None,) * (0 if op.variadic else op.arity - len(inputs))
        decision = op.decide((*(x.spec for x in inputs), *missing), bound)
        ready = [
            x if s is None or x.spec.dtype is s.dtype else self.call(ops.astype, (x,), x.names, dtype=s.dtype)
            for x, s in zip(inputs, decision.inputs, strict=False)
        ]
        out: Spec = decision.out
        layout = op.view(inputs[0].layout, **bound) if op.kind is Kind.VIEW and op.view else lay.contiguous(out.shape)
        assert layout is not None
        self.steps.append(Step(op, tuple(x.number for x in ready), tuple(attrs.items()), out))
        self.specs.append(out)
        return Value(len(self.specs) - 1, names, out, layout)

    def permuted(self, x: Value, names: Names) -> Value:
        return x if names == x.names else self.call(ops.permute_dims, (x,), names, axes=x.axes(names))

    def reshaped(self, x: Value, shape: Shape) -> Value:
        """Return a view in another shape, after an explicit copy step where the layout needs one."""
        if shape == x.spec.shape:
            return x
        if lay.reshape(x.layout, shape) is None:
            x = self.call(ops.copy, (x,), x.names)
        return self.call(ops.reshape, (x,), x.names, shape=shape)

    def line(self, inputs: str, out: Value) -> None:
        """End a contraction: all steps since the last line; steps that only view the last line's result are merged into it."""
        new, self.written = self.steps[self.written :], len(self.steps)
        op_names = [s.op.name for s in new if s.op.kind is not Kind.VIEW]
        if new and not op_names and self.lines and new[0].inputs == (self.last,):
            before = self.lines.pop()
            text = f"{before.names.partition('->')[0]}->{_text(out.names)}"
            self.lines.append(before._replace(names=text, out=out.spec))
        elif new:
            costs = [
                s.op.cost(s.spec, *(self.specs[i] for i in s.inputs if i is not None), **dict(s.attrs)) for s in new
            ]
            cost = Cost(*(sum(c[i] for c in costs) for i in range(3)))
            moved = sum(name in ("copy", "gather") for name in op_names)
            text = f"{inputs}->{_text(out.names)}"
            self.lines.append(Contraction(text, " ".join(op_names) or "view", cost, moved, out.spec))
        self.last = out.number


def _weight_error(w: Value, context: str) -> DTypeError:
    return DTypeError(
        f"{context}: {w.spec} holds quantised weights, which only a product over their last index reads, as in "
        f"'mk,nk->mn' (scaled weights take floats, packed integers take i8); dequantize() them first."
    )


def lower(
    terms: Terms, sizes: dict[str, int], operands: tuple[Operand, ...], order: Order | None, context: str
) -> Lowered:
    """Lower one order to steps; without one, values are joined as quantised weights allow."""
    w = Writer(context, operands)
    common = None if any(o.is_weight for o in operands) else dt.promote(*(o.dtype for o in operands))
    values = [_prepare(w, v, sizes, common) for v in _inputs(terms, operands)]
    uses = Counter(n for v in values for n in {*v.names})  # how many values have each index: those still to be joined
    uses.update(terms.out)
    values = [_sum_unused(w, v, {n for n in v.names if uses[n] > 1}) for v in values]
    index = 0
    while len(values) > 1:
        group = _next_pair(values, terms.out, context) if order is None else order[index]
        parts = [values[i] for i in group]
        for i in sorted(group, reverse=True):
            del values[i]
        joined = parts[0]
        for k, part in enumerate(parts[1:], 2):
            uses.subtract({*joined.names})
            uses.subtract({*part.names})
            is_last = not values and k == len(parts)
            read = f"{_text(joined.names)},{_text(part.names)}"
            keep = {n for n in (*joined.names, *part.names) if uses[n] > 0}
            joined = _contract(w, joined, part, keep, terms.out if is_last else ())
            joined = w.permuted(joined, terms.out) if is_last else joined
            uses.update({*joined.names})
            w.line(read, joined)
        values.append(joined)
        index += 1
    (last,) = values
    if last.is_weight:
        raise _weight_error(last, context)
    out = w.permuted(last, terms.out)
    w.line(_text(last.names), out)
    return Lowered(tuple(w.steps), tuple(w.lines), out.number, out.spec)


def _inputs(terms: Terms, operands: tuple[Operand, ...]) -> list[Value]:
    """Return the operands as values; their scales are the values after them."""
    scale = len(operands)
    values = []
    for i, (names, o) in enumerate(zip(terms.inputs, operands, strict=True)):
        own_scale = None
        if o.scale is not None:
            own_scale, scale = scale, scale + 1
        values.append(Value(i, names, o.spec, Layout(o.shape, o.strides), own_scale, o.group, o.is_weight))
    return values


def _text(names: Names) -> str:
    """Return names as in a spec string."""
    dots = [i for i, n in enumerate(names) if len(n) > 1]
    return "".join("..." if i in dots[:1] else "" if i in dots else n for i, n in enumerate(names))


def _prepare(w: Writer, v: Value, sizes: dict[str, int], common: DType | None) -> Value:
    """Return one operand in the common dtype, without axes of size 1 that others broadcast, and with diagonals extracted."""
    source = v
    repeated = [s for s in dict.fromkeys(v.names) if v.names.count(s) > 1]
    key = tuple(0 if n == 1 != sizes[s] else (0, n, 1) for s, n in zip(v.names, v.spec.shape, strict=True))
    if v.is_weight:
        if repeated or 0 in key:
            raise _weight_error(v, w.context)
        return v
    if 0 in key:
        v = w.call(ops.index, (v,), tuple(s for s, k in zip(v.names, key, strict=True) if k != 0), key=key)
    for name in repeated:
        v = _diagonal(w, v, name) if name in v.names else v
    if common is not None and v.spec.dtype is not common:
        v = w.call(ops.astype, (v,), v.names, dtype=common)
    if v is not source:
        w.line(_text(source.names), v)
    return v


def _diagonal(w: Writer, v: Value, name: str) -> Value:
    """Return the axes of one name as one axis, moved last: a strided view where they merge, else gathered."""
    axes = sorted((d for d, s in enumerate(v.names) if s == name), key=lambda d: -abs(v.layout.strides[d]))
    rest = [d for d, s in enumerate(v.names) if s != name]
    n, k = v.spec.shape[axes[0]], len(axes)
    sizes = tuple(v.spec.shape[d] for d in rest)
    names = (*(v.names[d] for d in rest), name)
    full = tuple((0, m, 1) for m in sizes)
    if rest + axes != list(range(len(v.names))):
        v = w.call(ops.permute_dims, (v,), v.names, axes=(*rest, *axes))
    if lay.reshape(v.layout, (*sizes, n**k)) is None:
        positions = w.call(ops.arange, (), (), start=n)
        return w.call(ops.gather, (v, *(positions,) * k), names, key=(*full, *(lay.AT,) * k))
    v = w.call(ops.reshape, (v,), v.names, shape=(*sizes, n**k))
    return w.call(ops.index, (v,), names, key=(*full, (0, n**k, sum(n**i for i in range(k)))))


def _sum_unused(w: Writer, v: Value, keep: set[str]) -> Value:
    """Return the value summed over the indices that nothing else needs."""
    axes = tuple(d for d, s in enumerate(v.names) if s not in keep)
    if not axes:
        return v
    if v.is_weight:
        raise _weight_error(v, w.context)
    if v.spec.dtype is dt.bool_:
        raise DTypeError(f"{w.context}: bool has no arithmetic, given {v.spec}; cast it with .to('i64') first.")
    out = w.call(ops.sum, (v,), tuple(s for s in v.names if s in keep), axis=axes, dtype=v.spec.dtype)
    w.line(_text(v.names), out)
    return out


def _next_pair(values: list[Value], out: Names, context: str) -> tuple[int, int]:
    """Return two values that may be joined: weights and their activations, else the first two that are not weights."""
    plain = [i for i, v in enumerate(values) if not v.is_weight]
    for j, q in enumerate(values):
        for i in plain:
            later = {*out, *(s for k, v in enumerate(values) if k not in (i, j) for s in v.names)}
            if q.is_weight and _is_weight_product(values[i], q, later):
                return i, j
    if len(plain) < 2:
        raise _weight_error(next(v for v in values if v.is_weight), context)
    return plain[0], plain[1]


def _is_weight_product(x: Value, q: Value, keep: set[str]) -> bool:
    """Return True if the contraction of x and q is x @ q.T."""
    n, k = q.names if len(q.names) == 2 else ("", "")
    fits_type = not x.is_weight and (q.scale is not None or x.spec.dtype is dt.i8)
    return fits_type and k in x.names and k not in keep and n in keep and n not in x.names


def _contract(w: Writer, a: Value, b: Value, keep: set[str], out: Names) -> Value:
    """Append one contraction. `out` is the index order of the result where this is the last, else empty."""
    if a.is_weight or b.is_weight:
        x, q = (b, a) if a.is_weight else (a, b)
        if not _is_weight_product(x, q, keep):
            raise _weight_error(q, w.context)
        n, k = q.names
        x = w.permuted(x, (*(s for s in x.names if s != k), k))
        names = (*x.names[:-1], n)
        if q.scale is None:
            return w.call(ops.integer_matmul, (x, q), names)
        scale = Value(q.scale, (), w.specs[q.scale], lay.contiguous(w.specs[q.scale].shape))
        return w.call(ops.quantized_matmul, (x, q, scale), names, group=q.group)
    common = [s for s in a.names if s in b.names]
    summed = [s for s in common if s not in keep]
    if not summed:
        return _multiply(w, a, b, out or tuple(dict.fromkeys(a.names + b.names)))
    return _matmul(w, a, b, tuple(s for s in (out or a.names) if s in common and s in keep), summed, out)


def _multiply(w: Writer, a: Value, b: Value, names: Names) -> Value:
    """Append an elementwise product, with axes of size 1 where only the other operand has an index."""
    ready = []
    for v in (a, b):
        v = w.permuted(v, tuple(s for s in names if s in v.names))
        first = next((d for d, s in enumerate(names) if s in v.names), len(names))
        new = tuple(d for d, s in enumerate(names[first:]) if s not in v.names)
        ready.append(w.call(ops.expand_dims, (v,), v.names, axis=new) if new else v)
    return w.call(ops.multiply, tuple(ready), names)


class Side(NamedTuple):
    """An operand viewed as matrices: the axes in front, and those merged into rows (or columns)."""

    lead: Names
    free: Names
    cost: int


def _side(v: Value, other: Value, batch: Names, summed: Names, out: Names) -> Side:
    """Return the free indices in an order that needs no copy: the result's, that of memory, or the largest with the rest in front."""
    free = [s for s in v.names if s not in batch and s not in summed]
    by_memory = v.in_memory(free)
    by_result = tuple(s for s in out if s in free) or by_memory
    inner = max(free, key=lambda s: v.size((s,)), default="")
    ahead = tuple(s for s in by_memory if s != inner)
    reread = v.size(ahead) * (other.spec.nbytes + LAUNCH_FLOPS)  # the other operand is read for each product
    choices = [Side((), by_result, 0), Side((), by_memory, 0), Side(ahead, (inner,), reread)]
    fit = [c for c in choices[: 3 if len(free) > 1 else 2] if _is_view(v, (*batch, *c.lead), c.free, summed)]
    return min([*fit, Side((), by_result, 2 * v.spec.nbytes)], key=lambda c: c.cost)


def _is_view(v: Value, lead: Names, free: Names, summed: Names) -> bool:
    permuted = lay.permute(v.layout, v.axes((*lead, *free, *summed)))
    return lay.reshape(permuted, (*permuted.shape[: len(lead)], v.size(free), v.size(summed))) is not None


def _matmul(w: Writer, a: Value, b: Value, batch: Names, common: list[str], out: Names) -> Value:
    """Append [batch, left, summed] @ [batch, summed, right]; operands are viewed as matrices and copied only where needed."""
    orders = dict.fromkeys(v.in_memory(common) for v in (a, b))
    candidates = [(_side(a, b, batch, g, out), _side(b, a, batch, g, out), g) for g in orders]
    left, right, summed = min(candidates, key=lambda t: t[0].cost + t[1].cost)
    left_names, right_names = ((*side.lead, *side.free) for side in (left, right))
    if out and left_names and right_names and out.index(left_names[0]) > out.index(right_names[0]):
        a, b, left, right = b, a, right, left
    lead = (*batch, *left.lead, *right.lead)
    names = (*lead, *left.free, *right.free)
    sizes = {s: n for v in (a, b) for s, n in zip(v.names, v.spec.shape, strict=True)}
    products = prod(sizes[s] for s in lead) if lead else 0
    if _use_multiply_sum(a, left, right, products, prod(sizes[s] for s in (*names, *summed))):
        product = _multiply(w, a, b, (*names, *summed))
        axes = tuple(range(len(names), len(names) + len(summed)))
        return w.call(ops.sum, (product,), names, axis=axes, dtype=product.spec.dtype)
    ready = []
    for v, side, first in ((a, left, True), (b, right, False)):
        groups = (side.free, summed) if first else (summed, side.free)
        v = w.permuted(v, tuple(s for g in (lead, *groups) for s in g if s in v.names))
        inner = tuple(v.size(g) for g in groups) if lead or side.free else (v.size(summed),)
        ready.append(w.reshaped(v, (*(sizes[s] if s in v.names else 1 for s in lead), *inner)))
    product = w.call(ops.matmul, tuple(ready), names)
    return w.reshaped(product, tuple(sizes[s] for s in names))


def _use_multiply_sum(a: Value, left: Side, right: Side, products: int, work: int) -> bool:
    """Return True to multiply elementwise and then sum: for dot products, and batches of small matrix-vector products.

    Matmul kernels are made for matrices. Half floats always use them, since they round once.
    """
    if a.spec.dtype in (dt.f16, dt.bf16) or (left.free and right.free):
        return False
    return not (left.free or right.free) or LAUNCH_FLOPS * products > 16 * work

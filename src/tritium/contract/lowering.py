"""Names and layouts in, steps out: how products summed over named indices become rows of the table.

Knows nothing of tensors or kernels, nor of which order is best: it is told one, and its steps tell what it costs.
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
Order = tuple[tuple[int, ...], ...]  # which values are joined; the result goes to the end of the list

PRODUCT = 2048  # what one small product of a batch costs before it starts, in flops


class Operand(NamedTuple):
    """What a plan depends on."""

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
        """Whether only a product with activations reads it."""
        return self.scale is not None or self.dtype.is_packed


class Contraction(NamedTuple):
    """One line of a path: what was joined, by which rows, at what cost."""

    names: str
    rows: str
    cost: Cost
    copies: int
    out: Spec

    @property
    def nbytes(self) -> int:
        return self.cost.read + self.cost.written


class Lowered(NamedTuple):
    """One order as steps."""

    steps: tuple[Step, ...]
    contractions: tuple[Contraction, ...]
    result: int
    out: Spec

    @property
    def cost(self) -> int:
        """Flops and bytes together."""
        return sum(sum(c.cost) for c in self.contractions)


def count_text(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


# ---- names


class Terms(NamedTuple):
    """Names of the axes of every operand and of the result."""

    inputs: tuple[Names, ...]
    out: Names


def parse(spec: str, operands: tuple[Operand, ...]) -> Terms:
    """The text as names, ellipses spelled out."""
    said = f"einsum {spec!r}"
    text = spec.replace(" ", "")
    left, arrow, right = text.partition("->")
    for c in left + right:
        if not (c.isalpha() or c in ".,"):
            raise ArgumentError(f"{said}: {c!r} is no index; use letters, '...', ',' between operands and one '->'.")
    if "," in right:
        raise ArgumentError(f"{said}: the result must be one term, given {right!r}; write one einsum for each result.")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ArgumentError(
            f"{said} names {count_text(len(terms), 'operand', 'operands')}, {len(operands)} given; write one term for each."
        )
    inputs = tuple(
        _spelled(t, len(o.shape) - len(t.replace("...", "")), f"operand {i} ({o.spec})", said)
        for i, (t, o) in enumerate(zip(terms, operands, strict=True))
    )
    count = Counter(n for names in inputs for n in names)
    dots = tuple(sorted((n for n in count if len(n) > 1), key=lambda n: -int(n[1:])))
    if not arrow:
        return Terms(inputs, (*dots, *sorted(n for n, times in count.items() if times == 1 and len(n) == 1)))
    if dots and "." not in right:
        raise ArgumentError(
            f"{said}: '...' stands for {count_text(len(dots), 'axis', 'axes')}, but the result has no '...'; write ->...{right}."
        )
    out = _spelled(right, len(dots) if "." in right else 0, "the result", said)
    for n in out:
        if n not in count:
            raise ArgumentError(f"{said}: index {n!r} of the result is in no operand.")
        if out.count(n) > 1:
            raise ArgumentError(f"{said}: index {n!r} stands twice in the result; a result names each index once.")
    return Terms(inputs, out)


def _spelled(term: str, width: int, what: str, said: str) -> Names:
    """One term with names for the axes under its ellipsis, counted from the right."""
    head, dots, tail = term.partition("...")
    if "." in head + tail:
        raise ArgumentError(f"{said}: {term!r} has a '.' out of place; an ellipsis is three dots, once in a term.")
    if width < 0 or (width and not dots):
        need = "at least " * bool(dots) + count_text(len(head + tail), "axis", "axes")
        raise ShapeError(
            f"{said}: {term!r} needs {need}, but {what} has {width + len(head + tail)}; '...' stands for any."
        )
    return (*head, *(f"…{d}" for d in range(width, 0, -1)), *tail)


def sizes_of(terms: Terms, operands: tuple[Operand, ...], said: str) -> dict[str, int]:
    """The size of every index. A size of 1 is repeated to fit, as in NumPy, but not along a diagonal."""
    found: dict[str, tuple[int, int]] = {}  # size, and the operand that says so
    for i, (names, o) in enumerate(zip(terms.inputs, operands, strict=True)):
        for name, n in zip(names, o.shape, strict=True):
            first = o.shape[names.index(name)]
            if n != first:
                raise ShapeError(
                    f"{said}: index {name!r} is repeated in operand {i} ({o.spec}) with sizes {first} and {n}; "
                    f"a diagonal needs equal sizes."
                )
            size, where = found.get(name, (1, i))
            if 1 != n != size != 1:
                raise ShapeError(
                    f"{said}: index {name!r} has size {size} in operand {where} ({operands[where].spec}) and {n} in "
                    f"operand {i} ({o.spec}); sizes must be equal or 1."
                )
            if size == 1:
                found[name] = (n, i)
    return {name: n for name, (n, _) in found.items()}


# ---- planning: names and layouts in, steps out


class Value(NamedTuple):
    """Something a step reads or makes."""

    at: int
    names: Names
    spec: Spec
    layout: Layout
    scale: int | None = None  # the value that scales these weights
    group: int = 0
    is_weight: bool = False

    def axes(self, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(self.names.index(n) for n in names)

    def size(self, names: Iterable[str]) -> int:
        return prod(self.spec.shape[d] for d in self.axes(names))

    def in_memory(self, names: Iterable[str]) -> Names:
        """Names from the widest stride to the narrowest: the order in which axes merge."""
        return tuple(sorted(names, key=lambda n: -abs(self.layout.strides[self.names.index(n)])))


class Writer:
    """Writes steps, and knows the layout of what each makes."""

    def __init__(self, said: str, operands: tuple[Operand, ...]) -> None:
        self.said = said
        self.specs = [o.spec for o in operands] + [o.scale for o in operands if o.scale is not None]
        self.steps: list[Step] = []
        self.lines: list[Contraction] = []
        self.written = 0  # steps that are in a line
        self.made = -1  # the value the last line made

    def call(self, op: Op, inputs: tuple[Value, ...], names: Names, **attrs: Any) -> Value:
        """One step; operands are cast where the row computes in another dtype."""
        bound = op.defaults | attrs
        missing = (None,) * (0 if op.variadic else op.arity - len(inputs))
        decision = op.decide((*(x.spec for x in inputs), *missing), bound)
        ready = [
            x if s is None or x.spec.dtype is s.dtype else self.call(ops.astype, (x,), x.names, dtype=s.dtype)
            for x, s in zip(inputs, decision.inputs, strict=False)
        ]
        out: Spec = decision.out
        seen = op.view(inputs[0].layout, **bound) if op.kind is Kind.VIEW and op.view else lay.contiguous(out.shape)
        assert seen is not None
        self.steps.append(Step(op, tuple(x.at for x in ready), tuple(attrs.items()), out))
        self.specs.append(out)
        return Value(len(self.specs) - 1, names, out, seen)

    def permuted(self, x: Value, names: Names) -> Value:
        return x if names == x.names else self.call(ops.permute_dims, (x,), names, axes=x.axes(names))

    def reshaped(self, x: Value, shape: Shape) -> Value:
        """A view, after a copy that everyone can see where there is no other way."""
        if shape == x.spec.shape:
            return x
        if lay.reshape(x.layout, shape) is None:
            x = self.call(ops.copy, (x,), x.names)
        return self.call(ops.reshape, (x,), x.names, shape=shape)

    def line(self, read: str, out: Value) -> None:
        """Everything written since the last line is one contraction; a mere view of what that made belongs to it."""
        new, self.written = self.steps[self.written :], len(self.steps)
        rows = [s.op.name for s in new if s.op.kind is not Kind.VIEW]
        if new and not rows and self.lines and new[0].inputs == (self.made,):
            before = self.lines.pop()
            text = f"{before.names.partition('->')[0]}->{_text(out.names)}"
            self.lines.append(before._replace(names=text, out=out.spec))
        elif new:
            costs = [
                s.op.cost(s.spec, *(self.specs[i] for i in s.inputs if i is not None), **dict(s.attrs)) for s in new
            ]
            cost = Cost(*(sum(c[i] for c in costs) for i in range(3)))
            moved = sum(name in ("copy", "gather") for name in rows)
            text = f"{read}->{_text(out.names)}"
            self.lines.append(Contraction(text, " ".join(rows) or "view", cost, moved, out.spec))
        self.made = out.at


def _refuse_weight(w: Value, said: str) -> DTypeError:
    return DTypeError(
        f"{said}: {w.spec} holds quantised weights, which only a product over their last index reads, as in "
        f"'mk,nk->mn' (scaled weights take floats, packed integers take i8); dequantize() them first."
    )


def lower(
    terms: Terms, sizes: dict[str, int], operands: tuple[Operand, ...], order: Order | None, said: str
) -> Lowered:
    """Steps for one order; without one, values are joined as quantised weights allow."""
    w = Writer(said, operands)
    common = None if any(o.is_weight for o in operands) else dt.promote(*(o.dtype for o in operands))
    values = [_looked_at(w, v, sizes, common) for v in _inputs(terms, operands)]
    values = [_summed(w, v, {*terms.out, *_names(values, i)}) for i, v in enumerate(values)]
    turn = 0
    while len(values) > 1:
        picked = _allowed(values, terms.out, said) if order is None else order[turn]
        parts = [values[i] for i in picked]
        values = [v for i, v in enumerate(values) if i not in picked]
        done = parts[0]
        for k, part in enumerate(parts[1:], 2):
            later = [*values, *parts[k:]]
            read = f"{_text(done.names)},{_text(part.names)}"
            done = _joined(w, done, part, {*terms.out, *_names(later)}, () if later else terms.out)
            done = done if later else w.permuted(done, terms.out)
            w.line(read, done)
        values.append(done)
        turn += 1
    (last,) = values
    if last.is_weight:
        raise _refuse_weight(last, said)
    out = w.permuted(last, terms.out)
    w.line(_text(last.names), out)
    return Lowered(tuple(w.steps), tuple(w.lines), out.at, out.spec)


def _inputs(terms: Terms, operands: tuple[Operand, ...]) -> list[Value]:
    """The operands as values; their scales are the values after them."""
    scale = len(operands)
    values = []
    for i, (names, o) in enumerate(zip(terms.inputs, operands, strict=True)):
        mine = None
        if o.scale is not None:
            mine, scale = scale, scale + 1
        values.append(Value(i, names, o.spec, Layout(o.shape, o.strides), mine, o.group, o.is_weight))
    return values


def _names(values: list[Value], without: int = -1) -> set[str]:
    return {n for i, v in enumerate(values) if i != without for n in v.names}


def _text(names: Names) -> str:
    """Names as a user writes them."""
    dots = [i for i, n in enumerate(names) if len(n) > 1]
    return "".join("..." if i in dots[:1] else "" if i in dots else n for i, n in enumerate(names))


def _looked_at(w: Writer, v: Value, sizes: dict[str, int], common: DType | None) -> Value:
    """One operand in the common dtype, without axes of size 1 that others repeat, and with its diagonals taken."""
    given = v
    repeated = [s for s in dict.fromkeys(v.names) if v.names.count(s) > 1]
    key = tuple(0 if n == 1 != sizes[s] else (0, n, 1) for s, n in zip(v.names, v.spec.shape, strict=True))
    if v.is_weight:
        if repeated or 0 in key:
            raise _refuse_weight(v, w.said)
        return v
    if 0 in key:
        v = w.call(ops.index, (v,), tuple(s for s, k in zip(v.names, key, strict=True) if k != 0), key=key)
    for name in repeated:
        v = _diagonal(w, v, name) if name in v.names else v
    if common is not None and v.spec.dtype is not common:
        v = w.call(ops.astype, (v,), v.names, dtype=common)
    if v is not given:
        w.line(_text(given.names), v)
    return v


def _diagonal(w: Writer, v: Value, name: str) -> Value:
    """The axes of one name as one axis, put last: evenly spaced elements where they merge, else gathered."""
    same = sorted((d for d, s in enumerate(v.names) if s == name), key=lambda d: -abs(v.layout.strides[d]))
    rest = [d for d, s in enumerate(v.names) if s != name]
    n, k = v.spec.shape[same[0]], len(same)
    sizes = tuple(v.spec.shape[d] for d in rest)
    names = (*(v.names[d] for d in rest), name)
    whole = tuple((0, m, 1) for m in sizes)
    if rest + same != list(range(len(v.names))):
        v = w.call(ops.permute_dims, (v,), v.names, axes=(*rest, *same))
    if lay.reshape(v.layout, (*sizes, n**k)) is None:
        at = w.call(ops.arange, (), (), start=n)
        return w.call(ops.gather, (v, *(at,) * k), names, key=(*whole, *(lay.AT,) * k))
    v = w.call(ops.reshape, (v,), v.names, shape=(*sizes, n**k))
    return w.call(ops.index, (v,), names, key=(*whole, (0, n**k, sum(n**i for i in range(k)))))


def _summed(w: Writer, v: Value, keep: set[str]) -> Value:
    """Without the indices that nobody else needs."""
    gone = tuple(d for d, s in enumerate(v.names) if s not in keep)
    if not gone:
        return v
    if v.is_weight:
        raise _refuse_weight(v, w.said)
    if v.spec.dtype is dt.bool_:
        raise DTypeError(f"{w.said}: bool has no arithmetic, given {v.spec}; cast it with .to('i64') first.")
    out = w.call(ops.sum, (v,), tuple(s for s in v.names if s in keep), axis=gone, dtype=v.spec.dtype)
    w.line(_text(v.names), out)
    return out


def _allowed(values: list[Value], out: Names, said: str) -> tuple[int, int]:
    """Two values that may be joined: weights with what they multiply, else the first two without weights."""
    plain = [i for i, v in enumerate(values) if not v.is_weight]
    for j, q in enumerate(values):
        for i in plain:
            later = {*out, *(s for k, v in enumerate(values) if k not in (i, j) for s in v.names)}
            if q.is_weight and _fits(values[i], q, later):
                return i, j
    if len(plain) < 2:
        raise _refuse_weight(next(v for v in values if v.is_weight), said)
    return plain[0], plain[1]


def _fits(x: Value, q: Value, keep: set[str]) -> bool:
    """Whether x @ q.T is what is asked."""
    n, k = q.names if len(q.names) == 2 else ("", "")
    fits_type = not x.is_weight and (q.scale is not None or x.spec.dtype is dt.i8)
    return fits_type and k in x.names and k not in keep and n in keep and n not in x.names


def _joined(w: Writer, a: Value, b: Value, keep: set[str], out: Names) -> Value:
    """One contraction. `out` is the order of the result where this is the last, else empty."""
    if a.is_weight or b.is_weight:
        x, q = (b, a) if a.is_weight else (a, b)
        if not _fits(x, q, keep):
            raise _refuse_weight(q, w.said)
        n, k = q.names
        x = w.permuted(x, (*(s for s in x.names if s != k), k))
        names = (*x.names[:-1], n)
        if q.scale is None:
            return w.call(ops.integer_matmul, (x, q), names)
        scale = Value(q.scale, (), w.specs[q.scale], lay.contiguous(w.specs[q.scale].shape))
        return w.call(ops.quantized_matmul, (x, q, scale), names, group=q.group)
    both = [s for s in a.names if s in b.names]
    gone = [s for s in both if s not in keep]
    if not gone:
        return _product(w, a, b, out or tuple(dict.fromkeys(a.names + b.names)))
    return _matmul(w, a, b, tuple(s for s in (out or a.names) if s in both and s in keep), gone, out)


def _product(w: Writer, a: Value, b: Value, names: Names) -> Value:
    """Element by element, each operand with axes of size 1 where the other has an index of its own."""
    ready = []
    for v in (a, b):
        v = w.permuted(v, tuple(s for s in names if s in v.names))
        first = next((d for d, s in enumerate(names) if s in v.names), len(names))
        new = tuple(d for d, s in enumerate(names[first:]) if s not in v.names)
        ready.append(w.call(ops.expand_dims, (v,), v.names, axis=new) if new else v)
    return w.call(ops.multiply, tuple(ready), names)


class Side(NamedTuple):
    """How one operand becomes a matrix: axes that stay before it, and those that become its rows (or columns)."""

    lead: Names
    free: Names
    cost: int


def _side(v: Value, other: Value, batch: Names, gone: Names, out: Names) -> Side:
    """Free indices in an order that needs no copy: the result's, that of memory, or the largest with the rest in front."""
    free = [s for s in v.names if s not in batch and s not in gone]
    by_memory = v.in_memory(free)
    wanted = tuple(s for s in out if s in free) or by_memory
    inner = max(free, key=lambda s: v.size((s,)), default="")
    ahead = tuple(s for s in by_memory if s != inner)
    again = v.size(ahead) * (other.spec.nbytes + PRODUCT)  # the other operand is read for each product
    choices = [Side((), wanted, 0), Side((), by_memory, 0), Side(ahead, (inner,), again)]
    fit = [c for c in choices[: 3 if len(free) > 1 else 2] if _is_view(v, (*batch, *c.lead), c.free, gone)]
    return min([*fit, Side((), wanted, 2 * v.spec.nbytes)], key=lambda c: c.cost)


def _is_view(v: Value, lead: Names, free: Names, gone: Names) -> bool:
    seen = lay.permute(v.layout, v.axes((*lead, *free, *gone)))
    return lay.reshape(seen, (*seen.shape[: len(lead)], v.size(free), v.size(gone))) is not None


def _matmul(w: Writer, a: Value, b: Value, batch: Names, gone: list[str], out: Names) -> Value:
    """batch, left, summed times batch, summed, right: operands are looked at as matrices, copied only where they must be."""
    orders = dict.fromkeys(v.in_memory(gone) for v in (a, b))
    tried = [(_side(a, b, batch, g, out), _side(b, a, batch, g, out), g) for g in orders]
    left, right, summed = min(tried, key=lambda t: t[0].cost + t[1].cost)
    mine, theirs = ((*side.lead, *side.free) for side in (left, right))
    if out and mine and theirs and out.index(mine[0]) > out.index(theirs[0]):
        a, b, left, right = b, a, right, left
    lead = (*batch, *left.lead, *right.lead)
    names = (*lead, *left.free, *right.free)
    sizes = {s: n for v in (a, b) for s, n in zip(v.names, v.spec.shape, strict=True)}
    products = prod(sizes[s] for s in lead) if lead else 0
    if _one_by_one(a, left, right, products, prod(sizes[s] for s in (*names, *summed))):
        made = _product(w, a, b, (*names, *summed))
        axes = tuple(range(len(names), len(names) + len(summed)))
        return w.call(ops.sum, (made,), names, axis=axes, dtype=made.spec.dtype)
    ready = []
    for v, side, first in ((a, left, True), (b, right, False)):
        groups = (side.free, summed) if first else (summed, side.free)
        v = w.permuted(v, tuple(s for g in (lead, *groups) for s in g if s in v.names))
        inner = tuple(v.size(g) for g in groups) if lead or side.free else (v.size(summed),)
        ready.append(w.reshaped(v, (*(sizes[s] if s in v.names else 1 for s in lead), *inner)))
    made = w.call(ops.matmul, tuple(ready), names)
    return w.reshaped(made, tuple(sizes[s] for s in names))


def _one_by_one(a: Value, left: Side, right: Side, products: int, work: int) -> bool:
    """Whether to multiply element by element and then sum: for dots, and for batches of small matrices times vectors.

    The kernels of matmul are made for matrices. Half floats stay with it, since it rounds them once.
    """
    if a.spec.dtype in (dt.f16, dt.bf16) or (left.free and right.free):
        return False
    return not (left.free or right.free) or PRODUCT * products > 16 * work

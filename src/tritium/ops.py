"""The op table: every op is defined here, and nowhere else in the package.

A rule defines the spec of the result; `backends/reference/kernels.py` its values.

A rule's positional-only parameters are tensors (seen as Specs), its keywords attributes. Names and meanings are those
of the Python array API standard 2024.12 where it has the name.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import cache
from math import ceil
from typing import Any, Literal, NamedTuple, get_args

from tritium import dtype as dt, layout as lay
from tritium.dtype import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from tritium.errors import ArgumentError, BoundsError, DTypeError, ShapeError, shown
from tritium.fragment import Fragment, Step
from tritium.layout import Layout, Shape, axes_of, axis_of, broadcast_shapes, text
from tritium.op import OPS, SCALARS, Axes, Decision, Fuse, Kind, Op, Scale, Spec, Specs, Trait, op

SOURCE, VIEW, MAP, REDUCE = Kind.SOURCE, Kind.VIEW, Kind.MAP, Kind.REDUCE
CONTRACT, MOVE, DYNAMIC, FUSED = Kind.CONTRACT, Kind.MOVE, Kind.DYNAMIC, Kind.FUSED
COMMUTES, ASSOCIATES, IN_PLACE = Trait.COMMUTES, Trait.ASSOCIATES, Trait.IN_PLACE
SYMMETRIC, IDEMPOTENT, INVOLUTION = COMMUTES | Trait.SYMMETRIC, Trait.IDEMPOTENT, Trait.INVOLUTION
NO_ROUNDING, NO_WRAP, ORDERS, INTERNAL = Trait.NO_ROUNDING, Trait.NO_WRAP, Trait.ORDERS, Trait.INTERNAL
CHEAP, TRANSCENDENTAL, KEEPS_REALS = Trait.CHEAP, Trait.TRANSCENDENTAL, Trait.KEEPS_REALS
STAYS = NO_ROUNDING | NO_WRAP  # the result is a number of the operands' dtype, whatever the lanes
LARGER_OF_TWO = COMMUTES | ASSOCIATES | STAYS | ORDERS | CHEAP
OF_BITS = SYMMETRIC | ASSOCIATES | NO_WRAP


# ---- samples: what tests, docs and smoke benchmarks feed a row with


class Draw(NamedTuple):
    """One input of a sample: its spec and the range its values come from."""

    spec: Spec
    low: float = -3.0
    high: float = 3.0


class Sample(NamedTuple):
    """One call of a row: how each tensor is drawn (None: left out), and the attributes."""

    inputs: tuple[Draw | None, ...]
    attrs: tuple[tuple[str, Any], ...] = ()


def sample(*inputs: Draw | Spec | None, low: float = -3.0, high: float = 3.0, **attrs: Any) -> Sample:
    drawn = tuple(Draw(x, low, high) if isinstance(x, Spec) else x for x in inputs)
    return Sample(drawn, tuple(attrs.items()))


def F32(*shape: int) -> Spec:
    return Spec(shape, f32)


def I64(*shape: int) -> Spec:
    return Spec(shape, i64)


SHAPES: tuple[Shape, ...] = ((3, 4), (), (0, 3), (37,))
PAIRS: tuple[tuple[Shape, Shape], ...] = (
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((3, 1), (1, 5)),
    ((2, 0), (1, 1)),
    ((), (7,)),
)


@cache  # most rows of a family have the same samples
def over(dtypes: tuple[DType, ...], *, low: float = -3.0, high: float = 3.0, arity: int = 1) -> tuple[Sample, ...]:
    """Every shape in the first dtype, one odd shape in the others."""
    shapes: list[tuple[Shape, ...]] = [(s,) * 1 for s in SHAPES] if arity == 1 else list(PAIRS)
    out = [sample(*(Spec(s, dtypes[0]) for s in group), low=low, high=high) for group in shapes]
    for t in dtypes[1:]:
        out.append(sample(*(Spec((2, 5), t) for _ in range(arity)), low=low, high=high))
    return tuple(out)


# ---- domains: the dtype a row computes in


def real_only(t: DType) -> DType:
    """Any dtype but a complex one, whose numbers have no order."""
    if t.is_complex:
        raise DTypeError(f"real numbers are needed, not {t}; take real(x), imag(x) or abs(x).")
    return t


def floating(t: DType) -> DType:
    """Integers and bools are computed in the default float."""
    return t if real_only(t).is_float else dt.DEFAULTS["float"]


def inexact(t: DType) -> DType:
    """As `floating`; complex numbers are computed in their own dtype."""
    return t if t.is_complex else floating(t)


def arithmetic(t: DType) -> DType:
    """Numbers of any kind, complex ones too."""
    if t.kind == "bool":
        raise DTypeError("bool has no arithmetic; use logical_and/or/xor, or .to('i64') first.")
    return t


def numeric(t: DType) -> DType:
    """Real numbers."""
    return arithmetic(real_only(t))


def bits(t: DType) -> DType:
    if t.is_float or t.is_complex:
        raise DTypeError(f"bits of {t} cannot be combined; cast to an integer dtype first.")
    return t


def integer(t: DType) -> DType:
    if not t.is_integer:
        raise DTypeError(f"an integer dtype is needed, not {t}; cast with .to('i64').")
    return t


def truth(t: DType) -> DType:
    """Anything but 0 is true."""
    return bool_


# ---- families


def unary(
    name: str,
    doc: str,
    *,
    expr: str | None = None,
    domain: Callable[[DType], DType] = floating,
    out: DType | None = None,
    part: bool = False,
    low: float = -3.0,
    high: float = 3.0,
    ulps: float = 4,
    traits: Trait = Trait.NONE,
    **columns: Any,
) -> Op:
    """A row y[i] = f(x[i]). `part`: of a complex number it is a real one."""
    kinds: tuple[DType, ...] = (f32, f64, f16, bf16)
    if domain in (numeric, arithmetic, any_dtype):
        kinds += (i32, i8, i64)
    if domain is bits:
        kinds = (i32, i8, i64, bool_)
    if domain is truth:
        kinds = (bool_,)

    def rule(x: Spec, /) -> Spec:
        return Spec(x.shape, out or (x.dtype.real if part else x.dtype))

    traits = traits if out else traits | IN_PLACE
    samples = over(kinds, low=low, high=high)
    return Op(rule, MAP, name=name, doc=doc, domain=domain, expr=expr, ulps=ulps, traits=traits, samples=samples,
              **columns)  # fmt: skip


def transcendental(name: str, doc: str, **columns: Any) -> Op:
    """A row y[i] = f(x[i]) that takes many operations an element; in an expr, f has the row's name."""
    return unary(name, doc, expr=f"{name}({{0}})", traits=TRANSCENDENTAL, **{"domain": inexact, **columns})


def any_dtype(t: DType) -> DType:
    return t


def binary(
    name: str,
    doc: str,
    *,
    expr: str | None = None,
    domain: Callable[[DType], DType] = arithmetic,
    out: DType | None = None,
    traits: Trait = Trait.NONE,
    low: float = -3.0,
    high: float = 3.0,
    ulps: float = 0,
    **columns: Any,
) -> Op:
    """A row z[i] = f(x[i], y[i]), broadcast."""
    kinds: tuple[DType, ...] = (f32, f64, f16, bf16, i32, i8, i64)
    if domain in (floating, inexact):
        kinds = (f32, f64, f16, bf16)
    if domain is bits or domain is integer:
        kinds = (i32, i8, i64)
    if domain is truth:
        kinds = (bool_,)

    def rule(x1: Spec, x2: Spec, /) -> Spec:
        return Spec(broadcast_shapes(x1.shape, x2.shape, what=name), out or x1.dtype)

    traits = traits if out else traits | IN_PLACE
    samples = over(kinds, low=low, high=high, arity=2)
    return Op(rule, MAP, name=name, doc=doc, domain=domain, expr=expr, ulps=ulps, traits=traits, samples=samples,
              **columns)  # fmt: skip


def comparison(name: str, doc: str, sign: str, **columns: Any) -> Op:
    """A row of bools: how two elements compare."""
    domain = real_only if ORDERS in columns["traits"] else any_dtype
    return binary(name, doc, expr=f"{{0}} {sign} {{1}}", domain=domain, out=bool_, **columns)


def reduced_shape(x: Spec, axis: Any, keepdims: bool, what: str) -> Shape:
    """Return the shape after a reduction: reduced axes are removed, or stay as 1."""
    axes = axes_of(axis, x.ndim, what)
    return tuple(1 if d in axes else n for d, n in enumerate(x.shape) if keepdims or d not in axes)


def refuse_empty(x: Spec, axis: Any, what: str) -> None:
    """Raise where an op that is undefined for no elements has an empty axis, also where the result is empty: devices differ there."""
    none = [d for d in axes_of(axis, x.ndim, what) if not x.shape[d]]
    if none:
        where = "" if axis is None else f" along axis {none[0]}"
        raise ShapeError(
            f"{what}: {x} has no elements{where}, and {what} of nothing is undefined; at least one is needed. Look at the "
            f"size first, or name an axis that is not empty."
        )


REDUCED = (
    sample(F32(3, 4)), sample(F32(3, 4), axis=0), sample(F32(3, 4, 5), axis=(0, 2), keepdims=True),
    sample(F32(33, 65), axis=-1), sample(F32()), sample(Spec((6, 5), f64), axis=1), sample(Spec((4, 9), f16), axis=1),
    sample(Spec((4, 9), bf16), axis=0),
)  # fmt: skip
INT_REDUCED = tuple(sample(Spec((4, 7), t), axis=a) for t in (i32, i8, i64) for a in (0, 1, None))
EMPTY_REDUCED = (sample(F32(0, 3), axis=0), sample(F32(0)))


def reduction(
    name: str,
    doc: str,
    *,
    domain: Callable[[DType], DType] = numeric,
    out: DType | None = None,
    empty: bool = True,
    ulps: float = 8,
    **columns: Any,
) -> Op:
    """A row that joins the elements along axes into one."""

    def rule(x: Spec, /, *, axis: Any = None, keepdims: bool = False) -> Spec:
        if not empty:
            refuse_empty(x, axis, name)
        return Spec(reduced_shape(x, axis, keepdims, name), out or x.dtype)

    samples = REDUCED + (() if domain in (floating, inexact) else INT_REDUCED) + (EMPTY_REDUCED if empty else ())
    return Op(rule, REDUCE, name=name, doc=doc, domain=domain, flops=per_input(1), ulps=ulps, axes=Axes.REDUCED, samples=samples,
              **columns)  # fmt: skip


def per_input(n: int) -> Callable[..., int]:
    return lambda out, x, *rest, **attrs: n * x.size


def free(out: Any, *ins: Any, **attrs: Any) -> int:
    return 0


# ---- sources


def size_of(shape: int | Sequence[int]) -> Shape:
    """A shape in Python's own types, checked: sizes are integers of 0 or more, and memory could hold the elements."""
    sizes = lay.listed(shape)
    if builtins.any(not isinstance(n, int) or n < 0 for n in sizes):
        listed = ", ".join(shown(n) for n in sizes)
        raise ShapeError(
            f"({listed}{',' if len(sizes) == 1 else ''}) is not a shape; give sizes of 0 or more, such as (64, 64)."
        )
    lay.check_extent(sizes)
    return sizes if builtins.bool not in map(type, sizes) else tuple(map(builtins.int, sizes))


@op(SOURCE, flops=free, traits=INTERNAL)
def const(*, value: Any, dtype: DType) -> Spec:
    """A number known when the graph is made."""
    return Spec((), dtype)


@op(SOURCE, flops=free, traits=INTERNAL)
def given(*, index: int, spec: Spec) -> Spec:
    """A graph input: an argument (0, 1, …) or a captured tensor (-1, -2, …)."""
    return spec


@op(SOURCE, flops=free, packed=True)
def empty(shape: Any, dtype: DType | None = None, device: Any = None) -> Spec:
    """Memory of a shape; its values are whatever was there."""
    return Spec(size_of(shape), dtype or f32)


def _read_fill(attrs: dict[str, Any]) -> dict[str, Any]:
    """A tensor of one number stands for its number, in its own dtype unless another is named."""
    fill = attrs["fill_value"]
    if getattr(fill, "shape", None) != () or not hasattr(fill, "item"):
        return attrs
    return attrs | {"fill_value": fill.item(), "dtype": attrs["dtype"] or fill.dtype}


@op(
    SOURCE,
    flops=free,
    settle=_read_fill,
    varies="fill_value",
    samples=[sample(shape=(2, 3), fill_value=1.5), sample(shape=(4,), fill_value=-2, dtype=i8)],
)
def full(shape: Any, fill_value: Any, dtype: DType | None = None, device: Any = None) -> Spec:
    """A tensor in which every element is `fill_value`."""
    if not isinstance(fill_value, SCALARS):
        raise ArgumentError(f"full: fill_value must be a number, given {type(fill_value).__name__}.")
    kind = dtype or dt.promote(dt.of_scalar(fill_value))
    dt.check_fits(fill_value, kind)
    return Spec(size_of(shape), kind)


@op(SOURCE, flops=free, samples=[sample(start=7), sample(start=1, stop=6, step=2, dtype=f64), sample(start=5, stop=0, step=-1),
                                 sample(start=3, stop=1)])  # fmt: skip
def arange(
    start: float, stop: float | None = None, step: float = 1, *, dtype: DType | None = None, device: Any = None
) -> Spec:
    """Numbers from start up to, not including, stop."""
    if step == 0:
        raise ArgumentError("arange: step is 0; give a step that leads from start to stop.")
    first, last = (0, start) if stop is None else (start, stop)
    for v in (first, last, step):
        if isinstance(v, int) and not -(2**63) <= v < 2**64:
            raise ArgumentError(
                f"arange: {lay.count_text(v)} does not fit in 64 bits; give smaller numbers, or floats."
            )
    kind = dtype or dt.promote(*(dt.of_scalar(v) for v in (first, last, step)))
    if kind is bool_:
        raise DTypeError("arange: bool has no arithmetic; use an integer dtype and cast the result with .to('bool').")
    return Spec((builtins.max(0, _steps(first, last, step)),), kind)


def _steps(first: float, last: float, step: float) -> int:
    """Return the number of steps from first to last: exact for integers, which may exceed the precision of floats."""
    if isinstance(first, int) and isinstance(last, int) and isinstance(step, int):
        return -((first - last) // step)
    try:
        return ceil((last - first) / step)
    except (OverflowError, ValueError):  # infinite, or not a number
        raise ArgumentError(
            f"arange: from {shown(first)} to {shown(last)} in steps of {shown(step)} is no finite number of elements; give finite numbers "
            f"and a larger step."
        ) from None


@op(SOURCE, samples=[sample(start=0.0, stop=1.0, num=5), sample(start=-1.0, stop=1.0, num=4, dtype=f64, endpoint=False),
                     sample(start=2.0, stop=2.0, num=1)], ulps=2)  # fmt: skip
def linspace(
    start: float | complex,
    stop: float | complex,
    num: int,
    *,
    dtype: DType | None = None,
    device: Any = None,
    endpoint: bool = True,
) -> Spec:
    """`num` evenly spaced numbers from start to stop."""
    ends = dt.promote(f32, dt.of_scalar(start), dt.of_scalar(stop))
    if dtype is not None and ends.is_complex and not dtype.is_complex:
        raise DTypeError(
            f"linspace: {start!r} to {stop!r} are complex numbers, and {dtype} is not; use 'c64' or 'c128'."
        )
    return Spec(size_of(num), dtype or ends)


def _settle_diagonal(attrs: dict[str, Any]) -> dict[str, Any]:
    """Kernels take a diagonal in 64 bits; those further than MAX_ELEMENTS from the main one are outside of every matrix."""
    k, most = attrs.get("k", 0), lay.MAX_ELEMENTS
    if not isinstance(k, int):
        raise ArgumentError(f"k={shown(k)} is no diagonal; give an integer.")
    return attrs | {"k": builtins.min(builtins.max(k, -most), most)}


@op(
    SOURCE,
    flops=free,
    settle=_settle_diagonal,
    samples=[sample(n_rows=3), sample(n_rows=2, n_cols=4, k=1), sample(n_rows=4, n_cols=3, k=-2, dtype=i32)],
)
def eye(n_rows: int, n_cols: int | None = None, *, k: int = 0, dtype: DType | None = None, device: Any = None) -> Spec:
    """Ones on the k-th diagonal, zeros elsewhere."""
    return Spec(size_of((n_rows, n_rows if n_cols is None else n_cols)), dtype or f32)


def seeded(name: str, doc: str, default: DType, ulps: float) -> Op:
    def rule(shape: Any, *, seed: int, dtype: DType | None = None, device: Any = None) -> Spec:
        kind = dtype or default
        if not kind.is_float:
            raise DTypeError(f"{name}: {kind} was asked; use a float dtype, or randint for integers.")
        return Spec(size_of(shape), kind)

    return Op(rule, SOURCE, name=name, doc=doc, traits=INTERNAL, varies="seed", ulps=ulps, flops=lambda out, **attrs: 10 * out.size,
              samples=[sample(shape=(3, 5), seed=7), sample(shape=(0,), seed=1), sample(shape=(9,), seed=2**40 + 1, dtype=f64),
                       sample(shape=(6,), seed=3, dtype=f16)])  # fmt: skip


random_uniform = seeded("random_uniform", "Uniform numbers in [0, 1) of a seed: the same on every device.", f32, 0)
random_normal = seeded("random_normal", "Gaussian numbers (mean 0, deviation 1) of a seed.", f32, 4)


@op(SOURCE, traits=INTERNAL, varies="seed", samples=[Sample((), (("low", 0), ("high", 10), ("shape", (4, 5)), ("seed", 3))),
                     Sample((), (("low", -128), ("high", 128), ("shape", (7,)), ("seed", 5), ("dtype", i8)))])  # fmt: skip
def random_integers(
    low: int, high: int, shape: Any, *, seed: int, dtype: DType | None = None, device: Any = None
) -> Spec:
    """Integers in [low, high) of a seed: the same on every device."""
    kind = integer(dtype or i64)
    info = dt.iinfo(kind)
    if not info.min <= low < high <= info.max + 1:
        raise ArgumentError(
            f"random_integers: [{low}, {high}) is empty or does not fit {kind} ({info.min} to {info.max})."
        )
    return Spec(size_of(shape), kind)


# ---- views: the same storage, another layout


def seen(x: Spec, function: Callable[..., Layout | None], **attrs: Any) -> Spec:
    layout = function(lay.contiguous(x.shape), **attrs)
    assert layout is not None
    return Spec(layout.shape, x.dtype)


@op(
    VIEW,
    view=lay.reshape,
    fuses=Fuse.SHAPE,
    samples=[sample(F32(3, 4), shape=(2, 6)), sample(F32(3, 4), shape=(-1,)), sample(F32(0, 3), shape=(3, 0))],
)
def reshape(x: Spec, /, shape: Any) -> Spec:
    """The same elements in another shape; copies only when the layout leaves no other way, and counts it."""
    return Spec(lay.infer_shape(x.shape, shape), x.dtype)


@op(VIEW, view=lay.permute, samples=[sample(F32(2, 3, 4), axes=(2, 0, 1)), sample(F32(3, 4), axes=(1, 0))])
def permute_dims(x: Spec, /, axes: tuple[int, ...]) -> Spec:
    """The axes in another order."""
    return seen(x, lay.permute, axes=axes)


@op(VIEW, view=lay.matrix_transpose, axes=Axes.LAST, samples=[sample(F32(3, 4)), sample(F32(2, 3, 4))])
def matrix_transpose(x: Spec, /) -> Spec:
    """The last two axes exchanged."""
    return seen(x, lay.matrix_transpose)


@op(VIEW, view=lay.moveaxis, samples=[sample(F32(2, 3, 4), source=0, destination=-1)])
def moveaxis(x: Spec, /, source: Any, destination: Any) -> Spec:
    """Axes moved to other places, the rest in order."""
    return seen(x, lay.moveaxis, source=source, destination=destination)


@op(VIEW, view=lay.broadcast_to, samples=[sample(F32(4), shape=(3, 4)), sample(F32(3, 1), shape=(3, 5))])
def broadcast_to(x: Spec, /, shape: tuple[int, ...]) -> Spec:
    """Repeated to a larger shape without copying."""
    return seen(x, lay.broadcast_to, shape=size_of(shape))


@op(VIEW, view=lay.expand_dims, fuses=Fuse.SHAPE, samples=[sample(F32(3, 4), axis=1), sample(F32(), axis=0)])
def expand_dims(x: Spec, /, axis: Any = 0) -> Spec:
    """New axes of size 1."""
    return seen(x, lay.expand_dims, axis=axis)


@op(VIEW, view=lay.squeeze, fuses=Fuse.SHAPE, samples=[sample(F32(3, 1, 4), axis=1), sample(F32(1, 1), axis=(0, 1))])
def squeeze(x: Spec, /, axis: Any = None) -> Spec:
    """Axes of size 1 removed (all of them when none is named)."""
    return seen(x, lay.squeeze, axis=axis)


@op(
    VIEW,
    view=lay.flip,
    axes=Axes.NAMED,
    samples=[sample(F32(3, 4)), sample(F32(3, 4), axis=1), sample(F32(0, 3), axis=0)],
)
def flip(x: Spec, /, *, axis: Any = None) -> Spec:
    """Elements in reverse order along axes."""
    return seen(x, lay.flip, axis=axis)


@op(
    VIEW,
    view=lay.basic_index,
    packed=True,
    traits=INTERNAL,
    samples=[sample(F32(5, 4), key=((1, 4, 2), 2)), sample(Spec((5,), f32), key=((4, -1, -2), None))],
)
def index(x: Spec, /, *, key: tuple[Any, ...]) -> Spec:
    """The part named by a normal key of ints, (start, stop, step) and None: what x[1:4:2, 2] reads."""
    out = lay.basic_index(Layout(x.shape, x.strides), key=key)
    if x.dtype.is_packed:
        inner = 2 if x.dtype.rows > 1 else 1
        whole_rows = out.shape[-inner:] == x.shape[-inner:] and out.strides[-inner:] == x.strides[-inner:]
        if not whole_rows or builtins.min(out.strides, default=0) < 0 or out.offset % (x.dtype.rows * x.dtype.block):
            what = "rows" if inner == 1 else "whole matrices"
            raise DTypeError(
                f"index: only {what} of {x} can be looked at, in order; repack(w, 'i8') gives its integers."
            )
    return Spec(out.shape, x.dtype)


# ---- element by element: arithmetic

add = binary("add", "Sum, element by element.", expr="{0} + {1}", traits=SYMMETRIC | ASSOCIATES | CHEAP, operator="add")
subtract = binary("subtract", "Difference, element by element.", expr="{0} - {1}", traits=CHEAP, operator="sub",
                  aliases=("sub",))  # fmt: skip
multiply = binary("multiply", "Product, element by element.", expr="{0} * {1}", traits=SYMMETRIC | ASSOCIATES | CHEAP,
                  operator="mul", aliases=("mul",))  # fmt: skip
divide = binary("divide", "Quotient, element by element; integers become floats.", expr="{0} / {1}", domain=inexact,
                operator="truediv", aliases=("div",))  # fmt: skip
floor_divide = binary("floor_divide", "Quotient rounded down; an integer divided by 0 gives 0, with one infinity it is the quotient.",
                      domain=numeric, operator="floordiv")  # fmt: skip
remainder = binary("remainder", "What floor division leaves, with the sign of the divisor; an integer modulo 0 is 0.",
                   domain=numeric, operator="mod")  # fmt: skip
pow = binary("pow", "x1 to the power x2.", expr="pow({0}, {1})", low=0.1, ulps=4, traits=TRANSCENDENTAL, operator="pow")
maximum = binary(
    "maximum", "The larger of two; NaN wins.", expr="maximum({0}, {1})", domain=numeric, traits=LARGER_OF_TWO
)
minimum = binary(
    "minimum", "The smaller of two; NaN wins.", expr="minimum({0}, {1})", domain=numeric, traits=LARGER_OF_TWO
)
atan2 = binary("atan2", "The angle of the point (x2, x1).", domain=floating, expr="atan2({0}, {1})", ulps=4,
               traits=TRANSCENDENTAL)  # fmt: skip
hypot = binary("hypot", "sqrt(x1² + x2²) without overflow in between.", domain=floating, expr="hypot({0}, {1})", ulps=2)
copysign = binary("copysign", "The size of x1 with the sign of x2.", domain=floating, expr="copysign({0}, {1})",
                  traits=NO_ROUNDING)  # fmt: skip
logaddexp = binary("logaddexp", "log(exp(x1) + exp(x2)), safely.", domain=floating, expr="logaddexp({0}, {1})", ulps=8,
                   ulps_of=Scale.UNIT, traits=COMMUTES | TRANSCENDENTAL)  # fmt: skip
nextafter = binary(
    "nextafter", "The next representable number from x1 towards x2.", domain=floating, traits=NO_ROUNDING
)

equal = comparison("equal", "Whether elements are equal.", "==", traits=SYMMETRIC)
not_equal = comparison("not_equal", "Whether elements differ.", "!=", traits=SYMMETRIC)
less = comparison("less", "Whether x1 < x2.", "<", traits=ORDERS, operator="lt")
less_equal = comparison("less_equal", "Whether x1 <= x2.", "<=", traits=ORDERS, operator="le")
greater = comparison("greater", "Whether x1 > x2.", ">", traits=ORDERS, operator="gt")
greater_equal = comparison("greater_equal", "Whether x1 >= x2.", ">=", traits=ORDERS, operator="ge")

logical_and = binary("logical_and", "Both.", expr="{0} & {1}", domain=truth, traits=SYMMETRIC | ASSOCIATES)
logical_or = binary("logical_or", "Either.", expr="{0} | {1}", domain=truth, traits=SYMMETRIC | ASSOCIATES)
logical_xor = binary("logical_xor", "One but not both.", expr="{0} ^ {1}", domain=truth, traits=SYMMETRIC | ASSOCIATES)
bitwise_and = binary("bitwise_and", "Bits set in both.", expr="{0} & {1}", domain=bits, traits=OF_BITS, operator="and")
bitwise_or = binary("bitwise_or", "Bits set in either.", expr="{0} | {1}", domain=bits, traits=OF_BITS, operator="or")
bitwise_xor = binary(
    "bitwise_xor", "Bits set in one of both.", expr="{0} ^ {1}", domain=bits, traits=OF_BITS, operator="xor"
)
bitwise_left_shift = binary("bitwise_left_shift", "Bits moved up; shifting by the width or more gives 0.", domain=integer, low=0,
                            operator="lshift")  # fmt: skip
bitwise_right_shift = binary("bitwise_right_shift", "Bits moved down, keeping the sign.", domain=integer, low=0,
                             traits=NO_WRAP, operator="rshift")  # fmt: skip

abs = unary("abs", "Distance from 0.", expr="abs({0})", domain=arithmetic, part=True, ulps=0, traits=IDEMPOTENT | NO_ROUNDING | CHEAP,
            operator="abs")  # fmt: skip
negative = unary("negative", "Change of sign.", expr="-{0}", domain=arithmetic, ulps=0, traits=INVOLUTION | NO_ROUNDING | CHEAP,
                 operator="neg", aliases=("neg",))  # fmt: skip
positive = unary("positive", "The number itself.", expr="{0}", domain=arithmetic, ulps=0, traits=STAYS | KEEPS_REALS,
                 operator="pos")  # fmt: skip
square = unary("square", "x * x.", expr="{0} * {0}", domain=arithmetic, ulps=0, traits=CHEAP)
sqrt = unary("sqrt", "Square root.", expr="sqrt({0})", domain=inexact, low=0, ulps=0)
rsqrt = unary("rsqrt", "1 / sqrt(x).", expr="1 / sqrt({0})", low=0.1, ulps=2, lower=lambda x: divide(1.0, sqrt(x)))
reciprocal = unary("reciprocal", "1 / x.", expr="1 / {0}", domain=inexact, low=0.5, ulps=0)
sign = unary(
    "sign",
    "-1, 0 or 1; of a complex number x / abs(x); NaN stays NaN.",
    expr="sign({0})",
    domain=arithmetic,
    ulps=0,
    traits=STAYS,
)
ceil_ = unary("ceil", "Rounded up.", expr="ceil({0})", domain=numeric, ulps=0, traits=IDEMPOTENT | STAYS)
floor = unary("floor", "Rounded down.", expr="floor({0})", domain=numeric, ulps=0, traits=IDEMPOTENT | STAYS)
trunc = unary("trunc", "Rounded towards 0.", expr="trunc({0})", domain=numeric, ulps=0, traits=IDEMPOTENT | STAYS)
round = unary("round", "Rounded to the nearest integer, halves to the even one.", expr="rint({0})", domain=arithmetic, ulps=0,
              traits=IDEMPOTENT | STAYS)  # fmt: skip

exp = transcendental("exp", "e to the power x.")
expm1 = transcendental("expm1", "exp(x) - 1, exact near 0.")
log = transcendental("log", "Natural logarithm.", low=0.01)
log1p = transcendental("log1p", "log(1 + x), exact near 0.", low=-0.9)
log2 = transcendental("log2", "Logarithm to base 2.", low=0.01)
log10 = transcendental("log10", "Logarithm to base 10.", low=0.01)
sin = transcendental("sin", "Sine.")
cos = transcendental("cos", "Cosine.")
tan = transcendental("tan", "Tangent.", low=-1.5, high=1.5)
asin = transcendental("asin", "Inverse sine.", low=-1, high=1)
acos = transcendental("acos", "Inverse cosine.", low=-1, high=1)
atan = transcendental("atan", "Inverse tangent.")
sinh = transcendental("sinh", "Hyperbolic sine.")
cosh = transcendental("cosh", "Hyperbolic cosine.")
tanh = transcendental("tanh", "Hyperbolic tangent.")
asinh = transcendental("asinh", "Inverse hyperbolic sine.")
acosh = transcendental("acosh", "Inverse hyperbolic cosine.", low=1, high=9)
atanh = transcendental("atanh", "Inverse hyperbolic tangent.", low=-0.99, high=0.99)
erf = transcendental("erf", "The error function.", domain=floating)


def _copied(x: Any) -> Any:
    return OPS["copy"](x)


real = unary("real", "The real part; of a real number the number itself.", domain=any_dtype, part=True, ulps=0,
             traits=IDEMPOTENT | KEEPS_REALS, fuses=Fuse.NONE, lower=_copied)  # fmt: skip
imag = unary("imag", "The imaginary part; of a real number 0.", domain=any_dtype, part=True, ulps=0, fuses=Fuse.NONE,
             lower=lambda x: logical_and(x, False))  # fmt: skip
conj = unary("conj", "The complex conjugate; of a real number the number itself.", domain=any_dtype, ulps=0,
             traits=INVOLUTION | KEEPS_REALS, fuses=Fuse.NONE, lower=_copied)  # fmt: skip

isnan = unary("isnan", "Whether an element is not a number.", expr="{0} != {0}", domain=any_dtype, out=bool_, ulps=0)
isinf = unary("isinf", "Whether an element is infinite.", expr="isinf({0})", domain=any_dtype, out=bool_, ulps=0)
isfinite = unary("isfinite", "Whether an element is neither infinite nor NaN.", expr="isfinite({0})", domain=any_dtype,
                 out=bool_, ulps=0)  # fmt: skip
signbit = unary("signbit", "Whether the sign bit is set, also of -0 and -NaN.", expr="signbit({0})", domain=floating, out=bool_,
                ulps=0)  # fmt: skip
logical_not = unary("logical_not", "The opposite.", expr="~{0}", domain=truth, ulps=0, traits=INVOLUTION)
bitwise_invert = unary("bitwise_invert", "Every bit flipped.", expr="~{0}", domain=bits, ulps=0, traits=INVOLUTION | NO_WRAP,
                       operator="invert")  # fmt: skip


@op(MAP, common=(1, 2), expr="where({0}, {1}, {2})", traits=STAYS, samples=[
    sample(Spec((3, 4), bool_), F32(3, 4), F32(3, 4)), sample(Spec((4,), bool_), F32(3, 1), F32()),
    sample(Spec((2, 0), bool_), I64(2, 0), I64(1, 1))])  # fmt: skip
def where(condition: Spec, x1: Spec, x2: Spec, /) -> Any:
    """x1 where the condition holds, x2 elsewhere."""
    shape = broadcast_shapes(condition.shape, x1.shape, x2.shape, what="where")
    return Decision((Spec(condition.shape, bool_), x1, x2), Spec(shape, x1.dtype))


@op(MAP, domain=numeric, traits=IN_PLACE | STAYS | ORDERS, expr="minimum(maximum({0}, {1}), {2})", aliases=("clamp",), samples=[
    sample(F32(3, 4), F32(), F32(4)), sample(F32(5), None, F32()), sample(F32(5), F32(), None), sample(Spec((6,), i32), None, None),
    sample(Spec((6,), i32), Spec((), i32), Spec((), i32)), sample(Spec((4,), f16), Spec((), f16), None)])  # fmt: skip
def clip(x: Spec, min: Spec | None = None, max: Spec | None = None, /) -> Spec:
    """Kept between min and max; either may be left out."""
    limits = [s.shape for s in (min, max) if s is not None]
    return Spec(broadcast_shapes(x.shape, *limits, what="clip"), x.dtype)


@op(MAP, flops=free, common=(), traits=CHEAP, samples=[
    sample(F32(3, 4), dtype=f64), sample(F32(2, 5), dtype=f16), sample(F32(2, 5), dtype=bf16),
    sample(Spec((5,), i32), dtype=f32), sample(F32(6), dtype=i8, high=200, low=-200), sample(Spec((5,), i64), dtype=i8, low=-900, high=900),
    sample(F32(4), dtype=bool_), sample(Spec((4,), bool_), dtype=f32), sample(F32(0, 2), dtype=i32)])  # fmt: skip
def astype(x: Spec, /, dtype: DType, *, copy: bool = True) -> Spec:
    """Another dtype. Floats become integers by truncation, held to the range of the integer; NaN becomes 0."""
    if x.dtype.is_complex and not (dtype.is_complex or dtype is bool_):
        raise DTypeError(
            f"astype: {x} cannot become {dtype}, which has no imaginary part; take real(x), imag(x) or abs(x)."
        )
    return Spec(x.shape, dtype)


@op(MAP, domain=numeric, fuses=Fuse.NONE, operator="divmod", samples=over((f32, f64, i32), arity=2, low=0.5))
def divmod(x1: Spec, x2: Spec, /) -> Any:
    """Quotient rounded down, and what it leaves: two results of one pass."""
    out = Spec(broadcast_shapes(x1.shape, x2.shape, what="divmod"), x1.dtype)
    return out, out


@op(VIEW, flops=free, common=(), view=lambda x, index: x, traits=INTERNAL)
def item(x: Spec, /, *, index: int) -> Any:
    """One result of a graph node that has several."""
    return x


# ---- what networks need

relu = unary("relu", "x where positive, else 0; NaN stays NaN.", expr="maximum({0}, 0)", domain=numeric, ulps=0,
             traits=IDEMPOTENT | STAYS | CHEAP)  # fmt: skip
relu2 = unary("relu2", "The square of relu, as in BitNet 2B-4T.", expr="maximum({0}, 0) * maximum({0}, 0)", domain=numeric,
              ulps=0, lower=lambda x: square(relu(x)), traits=CHEAP)  # fmt: skip
sigmoid = unary("sigmoid", "1 / (1 + exp(-x)).", expr="1 / (1 + exp(-{0}))", ulps=6, traits=TRANSCENDENTAL)
silu = unary("silu", "x * sigmoid(x), also called swish.", expr="{0} / (1 + exp(-{0}))", ulps=6,
             lower=lambda x: multiply(x, sigmoid(x)), traits=TRANSCENDENTAL, aliases=("swish",), ulps_of=Scale.UNIT)  # fmt: skip


@op(MAP, domain=floating, traits=IN_PLACE | TRANSCENDENTAL, ulps=16, ulps_of=Scale.UNIT, flops=per_input(8), samples=[
    *over((f32, f64, f16, bf16)), sample(F32(9), approximate="tanh"), sample(Spec((4,), bf16), approximate="tanh")],
    lower=lambda x, approximate: multiply(multiply(x, 0.5), add(1.0, _gelu_inner(x, approximate))))  # fmt: skip
def gelu(x: Spec, /, *, approximate: str = "none") -> Spec:
    """x times the chance that a Gaussian is below x: exact, or by tanh as GPT-2 does."""
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate={shown(approximate)} is unknown; use 'none' (exact) or 'tanh'.")
    return x


def _gelu_inner(x: Any, approximate: str) -> Any:
    if approximate == "none":
        return erf(multiply(x, 0.7071067811865476))
    cube = multiply(multiply(multiply(x, x), x), 0.044715)
    return tanh(multiply(add(x, cube), 0.7978845608028654))


ROWS = [sample(F32(3, 4)), sample(F32(2, 3, 33)), sample(F32(0, 5)), sample(Spec((3, 7), f64)), sample(Spec((3, 7), f16)),
        sample(Spec((2, 9), bf16))]  # fmt: skip


def _softmax_rule(x: Spec, /, *, axis: int = -1) -> Spec:
    axis_of(axis, x.ndim, "softmax")
    return x


def _shifted(x: Any, axis: int) -> Any:
    return subtract(x, max(x, axis=axis, keepdims=True))


def _softmax_lower(x: Any, axis: int) -> Any:
    e = exp(_shifted(x, axis))
    return divide(e, sum(e, axis=axis, keepdims=True))


def _log_softmax_lower(x: Any, axis: int) -> Any:
    y = _shifted(x, axis)
    return subtract(y, log(sum(exp(y), axis=axis, keepdims=True)))


def _norm_lower(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    centred = subtract(x, mean(x, axis=-1, keepdims=True))
    return _scaled(centred, weight, bias, eps)


def _scaled(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    y = multiply(x, rsqrt(add(mean(square(x), axis=-1, keepdims=True), eps)))
    y = y if weight is None else multiply(y, weight)
    return y if bias is None else add(y, bias)


def _softmax(name: str, doc: str, lower: Callable[..., Any]) -> Op:
    return Op(_softmax_rule, REDUCE, name=name, doc=doc, domain=floating, ulps=16, ulps_of=Scale.UNIT, flops=per_input(5),
              fuses=Fuse.ROW, axes=Axes.NAMED, traits=IN_PLACE | TRANSCENDENTAL, lower=lower,
              samples=[*ROWS, sample(F32(3, 4), axis=0)])  # fmt: skip


softmax = _softmax("softmax", "exp(x) over its sum along an axis, safely.", _softmax_lower)
log_softmax = _softmax("log_softmax", "The logarithm of softmax, safely.", _log_softmax_lower)


def _agree(x: Spec, parameter: Spec | None, what: str) -> None:
    if parameter is not None and parameter.shape != x.shape[-1:]:
        raise ShapeError(f"{what} {parameter} must have the size of the last axis of x {x}.")


@op(REDUCE, domain=floating, ulps=32, ulps_of=Scale.UNIT, flops=per_input(8), traits=IN_PLACE, fuses=Fuse.ROW, axes=Axes.SHARED,
    lower=_norm_lower, samples=[
    sample(F32(3, 8), F32(8), F32(8)), sample(F32(2, 3, 33), None, None), sample(F32(3, 8), F32(8), None, eps=1e-3),
    sample(Spec((3, 8), f64), Spec((8,), f64), None), sample(Spec((3, 8), bf16), Spec((8,), bf16), Spec((8,), bf16)),
    sample(Spec((2, 9), f16), None, None), sample(F32(0, 5), None, None)])  # fmt: skip
def layer_norm(x: Spec, weight: Spec | None = None, bias: Spec | None = None, /, *, eps: float = 1e-5) -> Spec:
    """(x - mean) / sqrt(variance + eps) along the last axis, times weight, plus bias."""
    axis_of(-1, x.ndim, "layer_norm")
    _agree(x, weight, "layer_norm: weight")
    _agree(x, bias, "layer_norm: bias")
    return x


@op(REDUCE, domain=floating, ulps=32, ulps_of=Scale.UNIT, flops=per_input(4), traits=IN_PLACE, fuses=Fuse.ROW, axes=Axes.SHARED,
    lower=lambda x, weight, eps: _scaled(x, weight, None, eps), samples=[
    sample(F32(3, 8), F32(8)), sample(F32(2, 3, 33), None), sample(Spec((3, 8), f64), Spec((8,), f64)),
    sample(Spec((3, 8), bf16), Spec((8,), bf16)), sample(Spec((2, 9), f16), None), sample(F32(0, 5), None)])  # fmt: skip
def rms_norm(x: Spec, weight: Spec | None = None, /, *, eps: float = 1e-5) -> Spec:
    """x / sqrt(mean(x²) + eps) along the last axis, times weight."""
    axis_of(-1, x.ndim, "rms_norm")
    _agree(x, weight, "rms_norm: weight")
    return x


@op(
    MOVE,
    flops=free,
    axes=Axes.LAST,
    samples=[sample(Draw(I64(5), 0, 4), num_classes=4), sample(Draw(I64(2, 3), 0, 7), num_classes=7, dtype=i8)],
)
def one_hot(x: Spec, /, *, num_classes: int, dtype: DType | None = None) -> Spec:
    """A last axis in which the place named by the integer is 1 and the others are 0."""
    integer(x.dtype)
    return Spec((*x.shape, *size_of(num_classes)), dtype or f32)


# ---- reductions


def _wide(t: DType) -> DType:
    """The dtype of a sum: integers and bools are added in 64 bits."""
    return t if t.is_float or t.is_complex else dt.DEFAULTS["unsigned" if t.kind == "unsigned" else "signed"]


def _summing(name: str, doc: str, **columns: Any) -> Op:
    def rule(x: Spec, /, *, axis: Any = None, dtype: DType | None = None, keepdims: bool = False) -> Any:
        shape = reduced_shape(x, axis, keepdims, name)
        if dtype is not None:
            return Decision((Spec(x.shape, dtype),), Spec(shape, dtype))
        return Spec(shape, _wide(x.dtype))

    more = (sample(Spec((5,), bool_)), sample(F32(4, 3), axis=0, dtype=f64), sample(Spec((4,), i32), dtype=f32),
            *(sample(Spec((64, 3), i32), axis=1, dtype=t) for t in (bool_, i8, i32)))  # fmt: skip
    return Op(rule, REDUCE, name=name, doc=doc, flops=per_input(1), ulps=8, axes=Axes.REDUCED,
              samples=REDUCED + INT_REDUCED + EMPTY_REDUCED + more, **columns)  # fmt: skip


sum = _summing("sum", "Sum over axes; small integers and bools are summed in 64 bits.", fuses=Fuse.FOLD,
               ulps_of=Scale.TERMS)  # fmt: skip
prod_ = _summing("prod", "Product over axes; small integers and bools are multiplied in 64 bits.")
max = reduction("max", "The largest along axes; NaN wins.", empty=False, ulps=0, fuses=Fuse.FOLD, traits=ORDERS)
min = reduction("min", "The smallest along axes; NaN wins.", empty=False, ulps=0, fuses=Fuse.FOLD, traits=ORDERS)
mean = reduction("mean", "The average over axes.", domain=inexact, fuses=Fuse.FOLD, ulps_of=Scale.TERMS)
all = reduction("all", "Whether every element along axes is true.", domain=any_dtype, out=bool_, ulps=0)
any = reduction("any", "Whether some element along axes is true.", domain=any_dtype, out=bool_, ulps=0)
count_nonzero = reduction("count_nonzero", "How many elements along axes are not 0.", domain=any_dtype, out=i64, ulps=0)


def _spread(name: str, doc: str) -> Op:
    def rule(x: Spec, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Spec:
        return Spec(reduced_shape(x, axis, keepdims, name), x.dtype)

    return Op(rule, REDUCE, name=name, doc=doc, domain=floating, flops=per_input(4), ulps=32, ulps_of=Scale.UNIT, axes=Axes.REDUCED,
              samples=[*REDUCED, sample(F32(4, 6), axis=1, correction=1.0)])  # fmt: skip


var = _spread("var", "Variance over axes: the mean of squared distances from the mean, divided by n - correction.")
std = _spread("std", "Standard deviation over axes: the square root of var.")


def _place(name: str, doc: str) -> Op:
    def rule(x: Spec, /, *, axis: int | None = None, keepdims: bool = False) -> Spec:
        refuse_empty(x, axis, name)
        return Spec(reduced_shape(x, axis, keepdims, name), i64)

    return Op(rule, REDUCE, name=name, doc=doc, domain=numeric, flops=per_input(1), axes=Axes.FLAT, traits=ORDERS, samples=[
        sample(F32(3, 4)), sample(F32(3, 4), axis=0), sample(F32(33, 65), axis=-1, keepdims=True), sample(F32(1)),
        sample(Spec((4, 7), i32), axis=1), sample(Spec((4, 7), f16), axis=1), sample(Spec((5,), f64))])  # fmt: skip


argmax = _place("argmax", "Where the largest along an axis stands (the first of equals; NaN wins).")
argmin = _place("argmin", "Where the smallest along an axis stands (the first of equals; NaN wins).")


def _running(name: str, doc: str, **columns: Any) -> Op:
    def rule(x: Spec, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False) -> Any:
        if axis is None and x.ndim != 1:
            raise ArgumentError(f"{name}: {x} has {x.ndim} dimensions; name the axis.")
        along = axis_of(0 if axis is None else axis, x.ndim, name)
        shape = tuple(n + (include_initial and d == along) for d, n in enumerate(x.shape))
        if dtype is not None:
            return Decision((Spec(x.shape, dtype),), Spec(shape, dtype))
        wide = _wide(x.dtype)
        return Decision((Spec(x.shape, wide),), Spec(shape, wide))

    return Op(rule, REDUCE, name=name, doc=doc, flops=per_input(1), ulps=8, axes=Axes.FLAT, **columns, samples=[
        sample(F32(7)), sample(F32(3, 4), axis=0), sample(F32(3, 4), axis=-1, include_initial=True), sample(Spec((5,), i32)),
        sample(Spec((4,), i8), dtype=i32), sample(F32(0)), sample(Spec((6,), f16)),
        *(sample(Spec((3, 9), i32), axis=a, dtype=t, include_initial=True) for t in (bool_, i8, i32) for a in (0, 1))])  # fmt: skip


cumulative_sum = _running("cumulative_sum", "Running sums along an axis.", ulps_of=Scale.TERMS, aliases=("cumsum",))
cumulative_prod = _running("cumulative_prod", "Running products along an axis.", aliases=("cumprod",))


# ---- contractions


def _inner(out: Spec, a: Spec, b: Spec, **attrs: Any) -> int:
    return 2 * out.size * (a.shape[-1] if a.shape else 1)


ALGORITHMS = ("blas", "naive", "blocked", "parallel")


def _inner_weights(out: Spec, x: Spec, w: Spec, *rest: Any, **attrs: Any) -> int:
    return 2 * out.size * w.shape[-1]


@op(CONTRACT, domain=arithmetic, flops=_inner, ulps=8, fuses=Fuse.PRODUCT, operator="matmul", samples=[
    sample(F32(3, 4), F32(4, 5)), sample(F32(4), F32(4)), sample(F32(3, 4), F32(4)), sample(F32(4), F32(4, 5)),
    sample(F32(2, 3, 4), F32(4, 5)), sample(F32(5, 1, 3, 4), F32(2, 4, 3)), sample(F32(0, 4), F32(4, 5)), sample(F32(3, 0), F32(0, 5)),
    sample(Spec((6, 7), f64), Spec((7, 3), f64)), sample(Spec((6, 7), f16), Spec((7, 3), f16)), sample(Spec((6, 7), bf16), Spec((7, 3), bf16)),
    sample(Spec((3, 4), i32), Spec((4, 5), i32)), sample(Spec((3, 4), i8), Spec((4, 5), i8)), sample(F32(33, 65), F32(65, 17)),
    *(sample(F32(7, 9), F32(9, 5), algorithm=a) for a in ALGORITHMS)])  # fmt: skip
def matmul(x1: Spec, x2: Spec, /, *, algorithm: str = "blas") -> Spec:
    """Matrix product over the last two axes; leading axes broadcast. `algorithm` picks another way to the same result."""
    if algorithm not in ALGORITHMS:
        raise ArgumentError(f"matmul: algorithm={shown(algorithm)} is unknown; use one of {', '.join(ALGORITHMS)}.")
    if x1.ndim == 0 or x2.ndim == 0:
        raise ShapeError(f"matmul: {x1} @ {x2}: a scalar has no matrix product; use multiply.")
    a = x1.shape if x1.ndim > 1 else (1, *x1.shape)
    b = x2.shape if x2.ndim > 1 else (*x2.shape, 1)
    if a[-1] != b[-2]:
        raise ShapeError(f"matmul: inner sizes differ: {x1} @ {x2} has {a[-1]} against {b[-2]}. Transpose one with .T?")
    try:
        lead = broadcast_shapes(a[:-2], b[:-2], what="leading axes")
    except ShapeError as error:
        raise ShapeError(f"matmul: {x1} @ {x2}: {error}") from None
    rows = a[-2:-1] if x1.ndim > 1 else ()
    columns = b[-1:] if x2.ndim > 1 else ()
    return Spec(lead + rows + columns, x1.dtype)


# ---- quantised weights and products: integers in, exact integers out, one rounding at the end

TERNARY = (dt.tern2, dt.tern5, dt.tern2_r64, dt.tern5_r80, dt.tern2_r16)
WEIGHTS = (i8, *dt.PACKED)
TILED = tuple(t for t in dt.PACKED if t.rows > 1)


def _is_weight(w: Spec, what: str) -> None:
    if w.dtype not in WEIGHTS or w.ndim != 2:
        raise DTypeError(
            f"{what}: the weights must be a matrix [N, K] of i8 or a packed dtype, given {w}; tritium.quant makes one."
        )


def _agree_inner(x: Spec, w: Spec, what: str) -> None:
    if not x.ndim or x.shape[-1] != w.shape[-1]:
        raise ShapeError(f"{what}: x must end in the {w.shape[-1]} columns of w, given x {x} and w {w}.")


def _sums_fit(w: Spec, columns: int, what: str) -> None:
    """Sums are int32: so many columns of the largest weight and the largest activation, 128, must fit."""
    most = (2**31 - 1) // (128 * (builtins.max(-w.dtype.values[0], 1) if w.dtype.is_packed else 128))
    if columns > most:
        raise ShapeError(
            f"{what}: int32 sums of {w.dtype} weights are exact for up to {most} columns, given {columns}; split the columns, "
            f"or give scales to groups of them."
        )


def _half_or_single(x: Spec) -> DType:
    return x.dtype if x.dtype in (f16, bf16, f32) else f32


def _check_group(group: Any, what: str) -> None:
    if not isinstance(group, int) or isinstance(group, bool) or not 0 <= group < 2**62:
        raise ArgumentError(f"{what}: group must be 0 (no groups) or a number of columns, given {shown(group)}.")


def _check_flag(value: Any, name: str, what: str) -> None:
    if not isinstance(value, bool):
        raise ArgumentError(f"{what}: {name} must be True or False, given {shown(value)}.")


def _scale_spec(w: Spec, scale: Spec, group: int, what: str) -> Spec:
    """The shapes a scale may have: one number, one for each row, or one for each group of columns in each row."""
    *lead, k = w.shape or (1,)
    _check_group(group, what)
    shapes: tuple[Shape, ...] = ((*lead, -(-k // group)),) if group else ((), tuple(lead))
    if scale.shape not in shapes:
        needed = " or ".join(dict.fromkeys(text(s) for s in shapes))
        raise ShapeError(f"{what}: scale must have shape {needed} for {w} and group={group}, given {scale}.")
    return Spec(scale.shape, f32)


def _zero_spec(zero: Spec | None, scale: Spec, what: str) -> Spec | None:
    """Zero points are integers, one for each scale."""
    if zero is None:
        return None
    if not zero.dtype.is_integer:
        raise DTypeError(f"{what}: zero must be integers, given {zero}; quantize_int8(w, symmetric=False) makes them.")
    if zero.shape != scale.shape:
        raise ShapeError(f"{what}: zero must have the shape of scale, {text(scale.shape)}, given {zero}.")
    return Spec(zero.shape, i32)


def _settle_group(attrs: dict[str, Any]) -> dict[str, Any]:
    """group=None is 0: no groups."""
    return attrs if attrs["group"] is not None else {**attrs, "group": 0}


def _settle_sharing(attrs: dict[str, Any]) -> dict[str, Any]:
    """group=None is 0; axis=-2 is 0, the rows of a matrix."""
    axis = 0 if type(attrs["axis"]) is int and attrs["axis"] == -2 else attrs["axis"]
    return {**_settle_group(attrs), "axis": axis}


def _settle_local_sharing(attrs: dict[str, Any]) -> dict[str, Any]:
    """group='auto' is 64 columns, or whole rows with an axis; without groups each row has a scale."""
    group = attrs["group"]
    if isinstance(group, str) and group == "auto":
        group = 64 if attrs["axis"] is None else 0
    settled = _settle_sharing({**attrs, "group": group})
    whole_rows = settled["axis"] is None and type(settled["group"]) is int and settled["group"] == 0
    return {**settled, "axis": 0} if whole_rows else settled


@op(REDUCE, common=(), flops=per_input(4), fuses=Fuse.ROW, axes=Axes.LAST, results=("q", "scale", "sum"), samples=[
    sample(F32(3, 40)), sample(F32(0, 8)), sample(F32(7), low=-1e-6, high=1e-6),
    sample(Spec((2, 3, 33), f16)), sample(Spec((4, 16), bf16)), sample(F32(2, 0))])  # fmt: skip
def quantize_activations(x: Spec, /) -> Any:
    """Each token (the last axis) as int8: (q, scale, sum of q), x ≈ q * scale; a token with NaN or infinity has scale NaN."""
    if not x.ndim:
        raise ShapeError("quantize_activations: at least one axis is needed; the last one is a token.")
    results = (Spec(x.shape, i8), Spec(x.shape[:-1], f32), Spec(x.shape[:-1], i32))
    return Decision((Spec(x.shape, _half_or_single(x)),), results)


def I8(*shape: int) -> Draw:
    return Draw(Spec(shape, i8), -128, 128)


def SCALE(*shape: int) -> Draw:
    return Draw(F32(*shape), 0.5, 2)


def HALF_SCALE(*shape: int) -> Draw:
    return Draw(Spec(shape, f16), 0.5, 2)


Activations = Literal["token", "group", "float"]
ACTIVATIONS = get_args(Activations)  # how a product with quantised weights takes x


def check_activations(activations: Any, group: int, what: str) -> None:
    """Raise unless weights with such groups can be multiplied with x so."""
    if activations not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ArgumentError(f"{what}: activations={shown(activations)} is unknown; use one of {known}.")
    if activations == "group" and not group:
        raise ArgumentError(
            f"{what}: activations='group' needs weights with a scale for each group of columns, given group=0; use "
            f"activations='token', or quantise with quant.ternary(w, group=128)."
        )


@op(CONTRACT, common=(), packed=True, flops=_inner_weights, axes=Axes.SHARED, samples=[
    sample(I8(3, 40), Spec((7, 40), dt.tern2)), sample(I8(33), Spec((5, 33), dt.tern5)), sample(I8(2, 2, 70), I8(70, 70)),
    sample(I8(4, 9), Spec((3, 9), dt.i4)), *(sample(I8(9, 130), Spec((90, 130), t)) for t in TILED),
    sample(I8(0, 8), Spec((4, 8), dt.tern2)), sample(I8(3, 0), Spec((4, 0), dt.tern2_r64))])  # fmt: skip
def integer_matmul(q: Spec, w: Spec, /) -> Spec:
    """q @ w.T for int8 activations and integer weights, packed or not: exact int32 sums."""
    _is_weight(w, "integer_matmul")
    _agree_inner(q, w, "integer_matmul")
    _sums_fit(w, w.shape[1], "integer_matmul")
    if q.dtype is not i8:
        raise DTypeError(f"integer_matmul: q must be i8, given {q}; quantize_activations(x) makes it.")
    return Spec(q.shape[:-1] + w.shape[:1], i32)


@op(CONTRACT, common=(), packed=True, flops=_inner_weights, fuses=Fuse.PRODUCT, axes=Axes.SHARED, samples=[
    sample(F32(3, 40), Spec((7, 40), dt.tern2), SCALE(), None), sample(F32(40), Spec((7, 40), dt.tern5), SCALE(7), F32(7)),
    *(sample(F32(5, 130), Spec((90, 130), t), SCALE(90), F32(90)) for t in TILED),
    *(sample(F32(2, 200), Spec((90, 200), t), SCALE(90, 4), None, group=64) for t in (*TILED, dt.i4)),
    sample(Spec((2, 2, 33), bf16), Spec((5, 33), dt.tern2), SCALE(), None),
    sample(Spec((3, 33), f16), Spec((5, 33), i8), SCALE(5), None),
    *(sample(F32(3, 1100), Spec((70, 1100), t), HALF_SCALE(70, 23), F32(70), group=48, activations="group") for t in TILED),
    sample(F32(2, 33), Spec((5, 33), dt.tern2), SCALE(5, 7), None, group=5), sample(F32(0, 8), Spec((4, 8), dt.tern2), F32(), None),
    sample(F32(2, 33), Spec((5, 33), dt.tern2), HALF_SCALE(5, 7), None, group=5, activations="group"),
    sample(F32(3, 0), Spec((4, 0), dt.tern2), F32(), F32(4))])  # fmt: skip
def quantized_matmul(
    x: Spec, w: Spec, scale: Spec, bias: Spec | None = None, /, group: int = 0, activations: str = "token"
) -> Any:
    """x @ (w * scale).T + bias. activations: how x is multiplied: int8 with a scale for each token, or for each group of columns too;
    these sums are exact, and the result is the same on every kernel. 'float': x as it is, in f32, for comparison."""
    check_activations(activations, group, "quantized_matmul")
    _is_weight(w, "quantized_matmul")
    _agree_inner(x, w, "quantized_matmul")
    if bias is not None and bias.shape != w.shape[:1]:
        raise ShapeError(f"quantized_matmul: bias must have shape [{w.shape[0]}] for w {w}, given {bias}.")
    x = Spec(x.shape, _half_or_single(x))
    wide = _scale_spec(w, scale, group, "quantized_matmul")
    if activations != "float":
        _sums_fit(w, builtins.min(group or w.shape[1], w.shape[1]), "quantized_matmul")
    ready = (x, w, scale if scale.dtype is f16 else wide, None if bias is None else Spec(bias.shape, f32))
    return Decision(ready, Spec(x.shape[:-1] + w.shape[:1], x.dtype))


@op(MOVE, common=(), flops=free, packed=True, axes=Axes.LAST, samples=[
    *(sample(Draw(Spec((90, 130), i8), -1, 2), dtype=t) for t in dt.PACKED),
    *(sample(Spec((90, 131), t), dtype=i8) for t in dt.PACKED), sample(Spec((0, 7), dt.tern2), dtype=i8),
    sample(Spec((5, 9), dt.tern2), dtype=dt.tern5), sample(Spec((2, 3, 7), dt.tern5), dtype=dt.tern2)])  # fmt: skip
def repack(w: Spec, /, dtype: DType) -> Spec:
    """The same integers in another packing: dtype is i8 or a packed dtype that holds them."""
    for t in (w.dtype, dtype):
        if t not in WEIGHTS:
            raise DTypeError(
                f"repack: works between i8 and packed dtypes, given {w} and {dtype}; use .to(dtype) for others."
            )
    if w.dtype.is_packed and dtype.is_packed and w.dtype.values[1] > dtype.values[1]:
        low, high = dtype.values
        raise DTypeError(f"repack: {dtype} holds {low} to {high}, too few values for {w}; repack to i8 first.")
    if w.ndim < 1:
        raise ShapeError("repack: at least one axis is needed.")
    return Spec(w.shape, dtype)


ZERO = Draw(Spec((5,), i32), -8, 8)


@op(MAP, common=(), packed=True, fuses=Fuse.CODES, axes=Axes.OWN, flops=per_input(4), settle=_settle_group, samples=[
    sample(F32(5, 9), SCALE(), None), sample(F32(5, 9), SCALE(5), ZERO), sample(F32(2, 3, 7), SCALE(), None),
    sample(F32(2, 3, 7), SCALE(2, 3), None), sample(F32(4, 10), SCALE(4, 3), None, group=4), sample(Spec((3, 8), bf16), SCALE(), None),
    sample(F32(5, 9), SCALE(5), ZERO, dtype=dt.i4), sample(F32(), SCALE(), None), sample(F32(0, 4), SCALE(), None)])  # fmt: skip
def quantize(x: Spec, scale: Spec, zero: Spec | None = None, /, group: int = 0, *, dtype: DType = i8) -> Any:
    """x as integers with a scale of your own: rint(x / scale) + zero, held to the range of dtype, i8 or i4."""
    if dtype not in (i8, dt.i4):
        raise DTypeError(f"quantize: dtype must be i8 or i4, given {dtype}; quantize_ternary(w) makes ternary weights.")
    if x.dtype.is_packed:
        raise DTypeError(f"quantize: x must be numbers, given {x}, which is quantised; repack(w, dtype) packs it anew.")
    if dtype is dt.i4 and x.ndim != 2:
        raise ShapeError(f"quantize: i4 is stored as a matrix [N, K], given {x}; reshape it first.")
    ready = _scale_spec(x, scale, group, "quantize")
    return Decision((Spec(x.shape, f32), ready, _zero_spec(zero, ready, "quantize")), Spec(x.shape, dtype))


@op(MAP, common=(), packed=True, fuses=Fuse.NONE, axes=Axes.OWN, settle=_settle_group, samples=[
    sample(Spec((5, 9), dt.tern2), SCALE(), None), sample(I8(5, 9), SCALE(5), Draw(Spec((5,), i32), -9, 9)),
    sample(Spec((4, 10), dt.i4), SCALE(4, 3), None, group=4), sample(Spec((66, 70), dt.tern2_r64), SCALE(66), None, dtype=f16),
    sample(I8(2, 3, 7), SCALE(2, 3), None), sample(I8(7), SCALE(), Draw(Spec((), i32), -9, 9))])  # fmt: skip
def dequantize(w: Spec, scale: Spec, zero: Spec | None = None, /, group: int = 0, *, dtype: DType = f32) -> Any:
    """(w - zero) * scale as floats."""
    if w.dtype is not i8:
        _is_weight(w, "dequantize")
    if not dtype.is_float:
        raise DTypeError(f"dequantize: dtype must be a float dtype, given {dtype}.")
    ready = _scale_spec(w, scale, group, "dequantize")
    return Decision((w, ready, _zero_spec(zero, ready, "dequantize")), Spec(w.shape, dtype))


def _gathered(out: Spec, w: Spec, scale: Spec, indices: Spec, **attrs: Any) -> tuple[int, int]:
    """Of a table, the rows that are named."""
    rows = builtins.min(indices.size, w.shape[0])
    read = (w.nbytes + (scale.nbytes if scale.ndim else 0)) * rows // builtins.max(w.shape[0], 1)
    return read + indices.nbytes, out.nbytes


@op(MOVE, common=(), packed=True, flops=lambda out, *ins, **attrs: out.size, moved=_gathered, settle=_settle_group, samples=[
    sample(Spec((7, 40), dt.tern2), SCALE(), Draw(I64(4), -7, 7)),
    sample(Spec((7, 33), dt.tern5), SCALE(7), Draw(Spec((2, 3), i32), 0, 7)),
    sample(Spec((5, 200), dt.i4), SCALE(5, 4), Draw(I64(), 0, 5), group=64),
    sample(I8(5, 9), SCALE(5, 2), Draw(I64(3), 0, 5), group=5),
    *(sample(Spec((90, 130), t), SCALE(90, 2), Draw(Spec((6,), i32), -90, 90), group=128) for t in TILED),
    sample(Spec((90, 130), dt.tern2), Draw(Spec((90,), f16), 0.5, 2), Draw(I64(5), 0, 90)),
    sample(Spec((4, 8), dt.tern2), SCALE(), Draw(I64(0), 0, 4)), sample(Spec((4, 0), dt.tern2), SCALE(4), Draw(I64(2), 0, 4))])  # fmt: skip
def take_rows(w: Spec, scale: Spec, indices: Spec, /, group: int = 0) -> Any:
    """Rows of a matrix of integer weights as f32: w[indices] * scale; negatives count from the end. The matrix stays packed."""
    _is_weight(w, "take_rows")
    _index_spec(indices, "take_rows")
    ready = Spec(_scale_spec(w, scale, group, "take_rows").shape, f16 if scale.dtype is f16 else f32)
    ids = Spec(indices.shape, i32 if indices.dtype is i32 else i64)
    return Decision((w, ready, ids), Spec((*indices.shape, w.shape[1]), f32))


def _weight_rule(x: Spec, axis: int | None, group: int, what: str) -> Shape:
    """The shape of the scales of a float matrix: per tensor, per row (axis=0) or per group of columns."""
    if x.ndim != 2:
        raise ShapeError(f"{what}: a matrix [N, K] is needed, given {x}; reshape it first.")
    _check_group(group, what)
    if not (axis is None or (type(axis) is int and axis == 0)) or (axis == 0 and group):
        raise ArgumentError(
            f"{what}: axis is None (one scale) or 0 (one for each row), or group is a number of columns (one for each "
            f"group in each row); given axis={shown(axis)}, group={shown(group)}."
        )
    return (x.shape[0], -(-x.shape[1] // group)) if group else () if axis is None else x.shape[:1]


def _single(x: Spec) -> Specs:
    return (Spec(x.shape, f32),)


FLOAT_WEIGHTS = (
    sample(F32(5, 9)), sample(F32(5, 9), axis=0), sample(F32(5, 9), group=4), sample(F32(0, 4)), sample(F32(3, 0), axis=0),
    sample(Spec((4, 8), bf16)), sample(F32(3, 5), low=0, high=1e-30),
)  # fmt: skip


@op(REDUCE, common=(), packed=True, flops=per_input(4), fuses=Fuse.CODES, results=("t", "scale"),
    settle=_settle_sharing, samples=FLOAT_WEIGHTS)  # fmt: skip
def quantize_ternary(w: Spec, /, *, axis: int | None = None, group: int = 0, dtype: DType = dt.tern2) -> Any:
    """Weights as -1, 0, 1 and a scale, the mean of their sizes (absmean): (packed, scale), w ≈ t * scale."""
    if dtype not in TERNARY:
        raise DTypeError(f"quantize_ternary: dtype must be one of {', '.join(t.name for t in TERNARY)}, given {dtype}.")
    shape = _weight_rule(w, axis, group, "quantize_ternary")
    return Decision(_single(w), (Spec(w.shape, dtype), Spec(shape, f32)))


@op(REDUCE, common=(), flops=per_input(4), fuses=Fuse.CODES, results=("q", "scale", "zero"), settle=_settle_sharing, samples=[
    *FLOAT_WEIGHTS, sample(F32(5, 9), symmetric=False), sample(F32(5, 9), symmetric=False, axis=0),
    sample(F32(5, 9), symmetric=False, group=4)])  # fmt: skip
def quantize_int8(w: Spec, /, *, axis: int | None = None, group: int = 0, symmetric: bool = True) -> Any:
    """Weights as int8: (q, scale, zero), w ≈ (q - zero) * scale; symmetric: zero is 0."""
    _check_flag(symmetric, "symmetric", "quantize_int8")
    shape = _weight_rule(w, axis, group, "quantize_int8")
    return Decision(_single(w), (Spec(w.shape, i8), Spec(shape, f32), Spec(shape, i32)))


@op(REDUCE, common=(), flops=per_input(4), fuses=Fuse.CODES, results=("q", "scale", "zero"), settle=_settle_local_sharing, samples=[
    sample(F32(5, 9)), sample(F32(5, 64)), sample(F32(5, 9), group=4), sample(F32(0, 4)), sample(F32(5, 9), axis=0),
    sample(F32(5, 9), group=None), sample(F32(5, 9), symmetric=False, group=4), sample(F32(4, 8), symmetric=False, axis=0)])  # fmt: skip
def quantize_int4(
    w: Spec, /, *, axis: int | None = None, group: int | str | None = "auto", symmetric: bool = True
) -> Any:
    """Weights as int4, two to a byte: (packed, scale[, zero]); group: 'auto' is 64 columns, 0 or axis=0 whole rows."""
    _check_flag(symmetric, "symmetric", "quantize_int4")
    if not isinstance(group, int):
        raise ArgumentError(
            f"quantize_int4: group must be 'auto', 0 or None (whole rows), or a number of columns, given {shown(group)}."
        )
    scales = Spec(_weight_rule(w, axis, group, "quantize_int4"), f32)
    zeros = () if symmetric else (Spec(scales.shape, i32),)
    return Decision(_single(w), (Spec(w.shape, dt.i4), scales, *zeros))


# ---- attention: what a transformer needs beside its products


def _is_half_or_single(x: Spec, what: str) -> None:
    if x.dtype not in (f16, bf16, f32):
        raise DTypeError(f"{what} must be f32, f16 or bf16, given {x}.")


@op(CONTRACT, common=(), ulps=64, flops=_inner_weights, axes=Axes.SHARED, samples=[
    sample(F32(3, 40), F32(7, 40), F32(7)), sample(F32(40), Spec((7, 40), f16), None), sample(F32(2, 3, 33), Spec((5, 33), bf16), F32(5)),
    sample(Spec((3, 33), f16), Spec((5, 33), f16), None), sample(Spec((2, 70), bf16), Spec((67, 70), bf16), None),
    sample(F32(9, 130), Spec((90, 130), f16), None), sample(F32(0, 8), Spec((4, 8), f16), None),
    sample(F32(3, 0), Spec((4, 0), f16), F32(4))])  # fmt: skip
def linear(x: Spec, w: Spec, bias: Spec | None = None, /) -> Any:
    """x @ w.T + bias for weights that may be half floats: they are read as they are, sums are f32."""
    if w.ndim != 2:
        raise ShapeError(f"linear: w must be a matrix [N, K], given {w}.")
    _is_half_or_single(w, "linear: w")
    _agree_inner(x, w, "linear")
    if bias is not None and bias.shape != w.shape[:1]:
        raise ShapeError(f"linear: bias must have shape [{w.shape[0]}] for w {w}, given {bias}.")
    x = Spec(x.shape, _half_or_single(x))
    return Decision((x, w, None if bias is None else Spec(bias.shape, f32)), Spec(x.shape[:-1] + w.shape[:1], x.dtype))


def _head_sample(tokens: int, rows: int, columns: int, dtype: DType = f16, **attrs: Any) -> Sample:
    """A call of `bounded_argmax`."""
    table, copy, each = Spec((rows, columns), dtype), Spec((rows, columns), i8), F32(rows)
    return sample(
        F32(tokens, columns),
        table,
        copy,
        Draw(each, 0, 0.02),
        Draw(each, 0, 1),
        Draw(each, 0, 1),
        low=-1,
        high=1,
        **attrs,
    )


@op(CONTRACT, common=(), packed=True, traits=INTERNAL | ORDERS, ulps=64, ulps_of=Scale.UNIT, results=("index", "value", "rows"),
    flops=lambda out, x, table, *rest, **attrs: 5 * x.shape[0] * table.size,
    moved=lambda out, x, table, copy, *rest, **attrs: (copy.nbytes + 12 * copy.shape[0], 16 * x.shape[0]), samples=[
    _head_sample(1, 70, 40), _head_sample(3, 300, 33, bf16), _head_sample(2, 5, 1), _head_sample(4, 130, 256, multiplier=-0.3)])  # fmt: skip
def bounded_argmax(
    x: Spec, table: Spec, copy: Spec, scale: Spec, error: Spec, norm: Spec, /, *, multiplier: float = 1.0
) -> Any:
    """The largest of the logits x @ table.T * multiplier by way of an int8 copy: (its index, its value, the rows of the table that were read).

    x [n, k] is f32; copy [v, k] is int8 with a scale for each row, and error and norm [v] are no less than the length of what a row lost
    and of its copy. Only rows whose logit may be the largest by these are read: the result is that of the whole table, the first of
    equals; NaN counts as the largest. `docs/certified.md` has the bounds."""
    if x.ndim != 2 or table.ndim != 2 or x.shape[1:] != table.shape[1:] or not (table.size and x.size):
        raise ShapeError(f"bounded_argmax: x [n, k] and table [v, k] with elements are needed, given {x} and {table}.")
    _is_half_or_single(table, "bounded_argmax: table")
    _is_weight(copy, "bounded_argmax")
    each = (table.shape[0],)
    if copy.shape != table.shape or (scale.shape, error.shape, norm.shape) != (each, each, each):
        raise ShapeError(
            f"bounded_argmax: copy {text(table.shape)} and scale, error and norm {text(each)} are needed for table {table}, given {copy}, "
            f"{scale}, {error} and {norm}."
        )
    count = x.shape[:1]
    ready = (Spec(x.shape, f32), table, copy, *_singles(scale, error, norm))
    return Decision(ready, (Spec(count, i64), Spec(count, f32), Spec(count, i32)))


@op(MOVE, common=(), ulps=64, ulps_of=Scale.UNIT, flops=lambda out, *ins, **attrs: 3 * out.size, samples=[
    sample(F32(2, 3, 4, 8), F32(2, 3, 4), F32(2, 3, 4)), sample(F32(3, 4, 8), F32(3, 4), F32(3, 4), interleaved=True),
    sample(Spec((2, 3, 2, 6), f16), F32(3, 3), F32(3, 3)), sample(Spec((1, 3, 2, 64), bf16), F32(1, 3, 32), F32(1, 3, 32)),
    sample(F32(2, 5, 3, 128), F32(5, 64), F32(5, 64)), sample(F32(0, 2, 4), F32(0, 2), F32(0, 2)),
    sample(F32(2, 3, 4, 8), F32(3, 4), F32(3, 4), heads=3),
    sample(Spec((3, 4, 6), f16), F32(3, 3), F32(3, 3), interleaved=True, heads=1),
    sample(F32(2, 3, 4, 9), F32(3, 2), F32(3, 2), size=4), sample(Spec((2, 5, 3, 64), bf16), F32(5, 8), F32(5, 8), size=16, heads=2),
    sample(F32(3, 4, 8), F32(3, 1), F32(3, 1), interleaved=True, size=2)])  # fmt: skip
def rope(
    x: Spec, cos: Spec, sin: Spec, /, *, interleaved: bool = False, heads: int | None = None, size: int | None = None
) -> Any:
    """Pairs of each head of x [..., T, heads, D] turned by angles [..., T, D / 2]: pairs (i, i + D / 2), or (2i, 2i + 1) interleaved.

    heads: only the first so many are turned, the others pass as they are. size: of each head only the first so many elements are
    turned, by angles [..., T, size / 2] and as if they were all of it; the others pass."""
    if size is not None and (size % 2 or not 0 <= size <= (x.shape or (0,))[-1]):
        raise ArgumentError(f"rope: size must be even and from 0 to the last axis of x {x}, given {shown(size)}.")
    if x.ndim < 3 or (size is None and x.shape[-1] % 2):
        raise ShapeError(f"rope: x must be [..., tokens, heads, an even size], given {x}.")
    _is_half_or_single(x, "rope: x")
    turned = (*x.shape[:-2], (x.shape[-1] if size is None else size) // 2)
    for name, angle in (("cos", cos), ("sin", sin)):
        if angle.ndim < 2 or broadcast_shapes(angle.shape, turned, what=f"rope: {name}") != turned:
            raise ShapeError(f"rope: {name} must broadcast to {text(turned)} for x {x}, given {angle}.")
    if heads is not None and not 0 <= heads <= x.shape[-2]:
        raise ArgumentError(f"rope: heads must be from 0 to the {x.shape[-2]} heads of x {x}, given {heads}.")
    return Decision((x, Spec(cos.shape, f32), Spec(sin.shape, f32)), x)


def _agree_places(places: Spec | None, batch: int, what: str, *, paged: bool = False) -> None:
    """Raise unless places are rows of three, or where caches may be paged, of three and the blocks of each sequence."""
    if places is None:
        return
    columns = places.shape[1] if places.ndim == 2 else 0
    if places.shape != (batch, columns) or places.dtype is not i32 or columns < 3 or (columns > 3 and not paged):
        rows, also = (
            (f"[{batch}, 3 + blocks]", "and where the cache is paged the numbers of its blocks, ")
            if paged
            else (f"[{batch}, 3]", "")
        )
        raise ShapeError(
            f"{what}: places must be i32 {rows}, for each sequence (slot, start, count), {also}given {places}."
        )


def context_of(cache: Spec, places: Spec | None) -> int:
    """Return how many tokens of a sequence a cache has room for: those of a slot or, where places name blocks, of so many blocks."""
    blocks = 0 if places is None else places.shape[1] - 3
    return cache.shape[2] * (blocks or 1)


def PLACES(batch: int, blocks: int = 0) -> Draw:
    return Draw(Spec((batch, 3 + blocks), i32), 0, 3)


def KV_ROWS(*shape: int) -> Draw:
    """Bytes below 60: read as f16, two of them are a scale of at most 1."""
    return Draw(Spec(shape, u8), 0, 60)


def _written_places(out: Spec, cache: Spec, values: Spec, places: Spec) -> tuple[int, int]:
    """The cache stays where it is."""
    return values.nbytes + places.nbytes, values.size * cache.dtype.nbytes


@op(MOVE, common=(), flops=free, moved=_written_places, traits=IN_PLACE, samples=[
    sample(F32(3, 2, 6, 8), F32(2, 3, 2, 8), PLACES(2)), sample(Spec((3, 2, 6, 8), f16), F32(1, 3, 2, 8), PLACES(1)),
    sample(Spec((4, 1, 5, 33), bf16), Spec((3, 2, 1, 33), bf16), PLACES(3)), sample(F32(3, 2, 6, 8), F32(0, 3, 2, 8), PLACES(0)),
    sample(Spec((4, 2, 6, 8), f16), F32(1, 3, 2, 8), PLACES(1, 2))])  # fmt: skip
def update_cache(cache: Spec, values: Spec, places: Spec, /) -> Any:
    """cache [slots, heads, capacity, D] with values [batch, T, heads, D] written where places [batch, 3] say.

    A row of places is the (slot, start, count) of a sequence: cache[slot, h, start + t] = values[b, t, h] for t < count; the
    last of equals wins. A paged cache is [blocks, heads, n, D] with rows (slot, start, count, block, block, ...): token i of a
    sequence is at cache[its block i // n, h, i % n], and the slot only names the sequence. No two slots have a block in common."""
    for x, name in ((cache, "cache"), (values, "values")):
        _is_half_or_single(x, f"update_cache: {name}")
    if cache.ndim != 4 or values.ndim != 4 or values.shape[2:] != (cache.shape[1], cache.shape[3]):
        raise ShapeError(
            f"update_cache: cache [slots, heads, capacity, D] and values [batch, T, heads, D] are needed, given {cache} and {values}."
        )
    _agree_places(places, values.shape[0], "update_cache", paged=True)
    return cache


def _attention_flops(
    out: Spec, q: Spec, k: Spec, v: Spec, places: Spec | None = None, *, window: int | None = None, **attrs: Any
) -> int:
    """As if all the capacity were filled: how full the cache is, is known only when it runs."""
    keys = context_of(k, places)
    return 4 * q.size * builtins.min(keys, keys if window is None else window)


@op(REDUCE, common=(), ulps=64, ulps_of=Scale.UNIT, flops=_attention_flops, by_values=3, samples=[
    sample(F32(2, 3, 4, 8), F32(3, 2, 6, 8), F32(3, 2, 6, 8), PLACES(2)), sample(F32(2, 3, 4, 8), F32(2, 2, 7, 8), F32(2, 2, 7, 8), None),
    sample(F32(1, 4, 6, 64), Spec((3, 3, 9, 64), f16), Spec((3, 3, 9, 64), f16), PLACES(1), scale=0.25),
    sample(Spec((2, 3, 4, 33), bf16), Spec((3, 1, 70, 33), bf16), Spec((3, 1, 70, 33), bf16), PLACES(2)),
    sample(F32(1, 2, 2, 128), Spec((1, 2, 140, 128), f16), Spec((1, 2, 140, 128), f16), None),
    sample(F32(0, 3, 4, 8), F32(3, 2, 6, 8), F32(3, 2, 6, 8), PLACES(0)),
    sample(F32(2, 3, 4, 8), F32(3, 2, 6, 8), F32(3, 2, 6, 8), PLACES(2), window=2),
    sample(F32(2, 3, 4, 8), Spec((4, 2, 2, 8), f16), Spec((4, 2, 2, 8), f16), PLACES(2, 3)),
    sample(Spec((1, 9, 4, 33), bf16), Spec((1, 2, 140, 33), bf16), Spec((1, 2, 140, 33), bf16), None, window=67)])  # fmt: skip
def attention(
    q: Spec, k: Spec, v: Spec, places: Spec | None = None, /, *, scale: float | None = None, window: int | None = None
) -> Any:
    """Causal attention of q [batch, T, heads, D] over caches k, v [slots, kv heads, capacity, D], in f64, rounded once.

    Query t of a sequence at places (slot, start, count) sees keys 0 to start + t of its slot, and is 0 for t >= count. Several
    heads may share a kv head. scale: 1 / sqrt(D). Without places the queries are the last T of the capacity, each sequence in
    its own slot. window: it sees only the last `window` of those keys, its own among them. What a query gives does not depend on
    the others. Places may name the blocks of a paged cache, as of `update_cache`."""
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        _is_half_or_single(x, f"attention: {name}")
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape or k.dtype is not v.dtype or q.shape[3] != k.shape[3]:
        raise ShapeError(
            f"attention: q [batch, T, heads, D] and k, v [slots, kv heads, capacity, D] are needed, given {q}, {k} and {v}."
        )
    heads, shared = q.shape[2], k.shape[1]
    if heads % builtins.max(shared, 1) or not shared:
        raise ShapeError(f"attention: the {heads} heads of q must be a multiple of the {shared} kv heads.")
    _agree_places(places, q.shape[0], "attention", paged=True)
    if places is None and (q.shape[0] != k.shape[0] or q.shape[1] > k.shape[2]):
        raise ShapeError(
            f"attention: without places, q {q} must have a slot for each sequence and room for its tokens in k {k}."
        )
    if window is not None and not 1 <= window < 2**31:
        raise ArgumentError(f"attention: window must be None or a number of keys, 1 or more, given {shown(window)}.")
    return q


# ---- caches of integers: rows as blocks of 32 elements with a scale

KV_BLOCK = 32  # elements that share a scale
KV_BYTES = {8: 34, 4: 18}  # of a block: its scale in f16, then its integers


def kv_row_bytes(size: int, bits: int) -> int:
    """Return the bytes of one head of one token in a cache of integers."""
    return size // KV_BLOCK * KV_BYTES[bits]


def kv_bits(nbytes: int, size: int, what: str) -> int:
    """Return the bits of an element by the bytes of a row of so many; raise where no cache of integers has such rows."""
    for bits in KV_BYTES:
        if size and size % KV_BLOCK == 0 and nbytes == kv_row_bytes(size, bits):
            return bits
    raise ShapeError(
        f"{what}: heads of {size} elements are kept as blocks of {KV_BLOCK}, each of {KV_BYTES[8]} bytes (8 bits) or {KV_BYTES[4]} "
        f"(4 bits), given rows of {nbytes} bytes; D must be a multiple of {KV_BLOCK}."
    )


def _is_quantized_cache(cache: Spec, size: int, what: str) -> None:
    if cache.dtype is not u8 or cache.ndim != 4:
        raise DTypeError(f"{what} must be u8 [slots, heads, capacity, bytes of a row], given {cache}.")
    kv_bits(cache.shape[3], size, what)


@op(MOVE, common=(), flops=lambda out, cache, values, places: 8 * values.size, moved=_written_places, traits=IN_PLACE, samples=[
    sample(Spec((3, 2, 6, 34), u8), F32(2, 3, 2, 32), PLACES(2)), sample(Spec((3, 1, 5, 36), u8), F32(1, 4, 1, 64), PLACES(1)),
    sample(Spec((4, 1, 5, 68), u8), Spec((3, 2, 1, 64), bf16), PLACES(3)),
    sample(Spec((3, 2, 6, 18), u8), F32(0, 3, 2, 32), PLACES(0))])  # fmt: skip
def update_quantized_cache(cache: Spec, values: Spec, places: Spec, /) -> Any:
    """cache u8 [slots, heads, capacity, bytes] with values [batch, T, heads, D] written as integers where places [batch, 3] say.

    A row of places is the (slot, start, count) of a sequence, as of `update_cache`. A head of a token is D / 32 blocks of a scale in
    f16 and 32 integers, of 8 bits (34 bytes) or 4 bits (18 bytes; element i in the low half of byte i, i + 16 in the high one, plus
    8), as in GGML's Q8_0 and Q4_0; how many bits follows from the bytes. The scale of 4 bits is the one of a few with the least error."""
    _is_half_or_single(values, "update_quantized_cache: values")
    if values.ndim != 4 or cache.ndim != 4 or values.shape[2] != cache.shape[1]:
        raise ShapeError(
            f"update_quantized_cache: cache [slots, heads, capacity, bytes] and values [batch, T, heads, D] are needed, given {cache} "
            f"and {values}."
        )
    _is_quantized_cache(cache, values.shape[3], "update_quantized_cache: cache")
    _agree_places(places, values.shape[0], "update_quantized_cache")
    return cache


@op(REDUCE, common=(), ulps=64, ulps_of=Scale.UNIT, flops=_attention_flops, by_values=3, samples=[
    sample(F32(2, 3, 4, 32), KV_ROWS(3, 2, 6, 34), KV_ROWS(3, 2, 6, 34), PLACES(2)),
    sample(F32(1, 4, 6, 64), KV_ROWS(3, 3, 9, 68), KV_ROWS(3, 3, 9, 36), PLACES(1), scale=0.25),
    sample(Spec((2, 3, 4, 32), bf16), KV_ROWS(3, 1, 70, 18), KV_ROWS(3, 1, 70, 18), PLACES(2), window=2)])  # fmt: skip
def quantized_attention(
    q: Spec, k: Spec, v: Spec, places: Spec, /, *, scale: float | None = None, window: int | None = None
) -> Any:
    """As `attention`, over caches k, v u8 [slots, kv heads, capacity, bytes] that `update_quantized_cache` wrote; each has 8 or 4 bits."""
    _is_half_or_single(q, "quantized_attention: q")
    if q.ndim != 4 or k.ndim != 4 or k.shape[:3] != v.shape[:3]:
        raise ShapeError(
            f"quantized_attention: q [batch, T, heads, D] and k, v [slots, kv heads, capacity, bytes] are needed, given {q}, {k} and "
            f"{v}."
        )
    for x, name in ((k, "k"), (v, "v")):
        _is_quantized_cache(x, q.shape[3], f"quantized_attention: {name}")
    heads, shared = q.shape[2], k.shape[1]
    if heads % builtins.max(shared, 1) or not shared:
        raise ShapeError(f"quantized_attention: the {heads} heads of q must be a multiple of the {shared} kv heads.")
    _agree_places(places, q.shape[0], "quantized_attention")
    if window is not None and not 1 <= window < 2**31:
        raise ArgumentError(
            f"quantized_attention: window must be None or a number of keys, 1 or more, given {shown(window)}."
        )
    return q


# ---- mixers of tokens beside attention, rotations, and products with chosen weights


def _largest_power(n: int) -> int:
    """Return the largest power of two that divides n; 1 for 0."""
    return n & -n or 1


@op(REDUCE, common=(), flops=lambda out, *ins, **attrs: out.size * (out.shape[-1:] or (1,))[-1].bit_length(), traits=IN_PLACE,
    axes=Axes.SHARED, samples=[
    sample(F32(3, 8), None), sample(F32(2, 3, 40), F32(40)), sample(F32(7), F32(7)), sample(F32(4, 64), F32(64), block=16),
    sample(F32(3, 48), F32(48), inverse=True), sample(Spec((2, 32), f16), F32(32)), sample(Spec((2, 96), bf16), None, block=32),
    sample(F32(0, 8), None), sample(F32(2, 0), F32(0)), sample(F32(1, 1), None)])  # fmt: skip
def hadamard(x: Spec, signs: Spec | None = None, /, *, block: int | None = None, inverse: bool = False) -> Any:
    """The orthonormal Walsh-Hadamard transform H of each block of the last axis: H (signs * x), or signs * (H x) with inverse=True.

    H[i, j] = (-1)^popcount(i & j) / sqrt(block), Sylvester's order. block: a power of two that divides the last axis; None: the largest
    one (1024 of 5120). signs: a number for each element of the last axis, 1 or -1, which makes the two directions inverses. In f32:
    sums and differences of elements 1, 2, 4 … apart, then one product, so that every device has the same bits."""
    if not x.ndim:
        raise ShapeError("hadamard: at least one axis is needed; the last one is transformed.")
    n = x.shape[-1]
    _check_flag(inverse, "inverse", "hadamard")
    if block is not None and (block < 1 or block & (block - 1) or n % block):
        raise ArgumentError(
            f"hadamard: block must be a power of two that divides the {n} elements of the last axis, given {shown(block)}; "
            f"None is {_largest_power(n)}."
        )
    if signs is not None and signs.shape != (n,):
        raise ShapeError(f"hadamard: signs must have shape [{n}] for x {x}, given {signs}.")
    x = Spec(x.shape, _half_or_single(x))
    return Decision((x, None if signs is None else Spec(signs.shape, f32)), x)


def _is_state(state: Spec, places: Spec, batch: int, what: str) -> None:
    """States are written where they are: in f32, whose rounding they add up."""
    if state.dtype is not f32:
        raise DTypeError(f"{what}: state must be f32, given {state}; make it with zeros(shape).")
    _agree_places(places, batch, what)


def _singles(*xs: Spec | None) -> Specs:
    return tuple(None if x is None else Spec(x.shape, f32) for x in xs)


def _moved_states(out: Any, state: Spec, *ins: Spec | None) -> tuple[int, int]:
    """One state of each sequence is read and written; the others stay where they are."""
    rows = [x for x in ins if x is not None]
    mine = rows[0].shape[0] * (state.nbytes // builtins.max(state.shape[0], 1))
    return builtins.sum(x.nbytes for x in rows) + mine, out[1].nbytes + mine


@op(MOVE, common=(), ulps=8, ulps_of=Scale.UNIT, moved=_moved_states, traits=IN_PLACE, results=("state", "y"),
    flops=lambda out, state, x, w, *rest, **attrs: 2 * x.size * w.shape[0], samples=[
    sample(F32(3, 3, 5), F32(1, 4, 5), F32(4, 5), PLACES(1), None), sample(F32(4, 3, 33), F32(1, 3, 33), F32(4, 33), PLACES(1), F32(33)),
    sample(F32(3, 0, 8), F32(1, 3, 8), F32(1, 8), PLACES(1), None), sample(F32(3, 1, 300), F32(1, 2, 300), F32(2, 300), PLACES(1), None),
    sample(F32(3, 2, 4), F32(0, 3, 4), F32(3, 4), PLACES(0), None)])  # fmt: skip
def causal_conv1d(state: Spec, x: Spec, weight: Spec, places: Spec, bias: Spec | None = None, /) -> Any:
    """A causal convolution of each channel of x [batch, T, C] with weight [K, C]: (state, y), y[t] = sum_j weight[j] * x[t - K + 1 + j] + bias.

    state [slots, K - 1, C] holds the last inputs of each slot, oldest first. A row of places [batch, 3] is the (slot, start, count) of a
    sequence: start tokens came before (0: the old state is taken as zeros), count of the T are real; the others change nothing and give
    0. No two sequences with tokens may have one slot. Sums are f32, in order: the same bits in any chunk and batch."""
    if state.ndim != 3 or x.ndim != 3 or weight.ndim != 2 or not weight.shape[0]:
        raise ShapeError(
            f"causal_conv1d: state [slots, K - 1, C], x [batch, T, C] and weight [K, C] are needed, given {state}, {x} and {weight}."
        )
    taps, channels = weight.shape
    if (
        state.shape[1:] != (taps - 1, channels)
        or x.shape[2] != channels
        or (bias is not None and bias.shape != (channels,))
    ):
        raise ShapeError(
            f"causal_conv1d: weight {weight} needs state [slots, {taps - 1}, {channels}], x [batch, T, {channels}] and bias "
            f"[{channels}] or None, given {state}, {x} and {bias}."
        )
    _is_state(state, places, x.shape[0], "causal_conv1d")
    return Decision((*_singles(state, x, weight), places, *_singles(bias)), (state, Spec(x.shape, f32)))


def _delta_sample(slots: int, batch: int, tokens: int, heads: tuple[int, int], sizes: tuple[int, int]) -> Sample:
    """A call of the gated delta rule: (key heads, heads) and (Dk, Dv)."""
    keys, values = F32(batch, tokens, heads[0], sizes[0]), F32(batch, tokens, heads[1], sizes[1])
    gate = Draw(F32(batch, tokens, heads[1]), 0, 1)
    return sample(F32(slots, heads[1], *sizes), keys, keys, values, gate, gate, PLACES(batch), low=-0.5, high=0.5)


@op(MOVE, common=(), ulps=64, ulps_of=Scale.UNIT, moved=_moved_states, traits=IN_PLACE, results=("state", "y"),
    flops=lambda out, state, q, k, v, *rest, **attrs: 7 * v.size * k.shape[3], samples=[
    _delta_sample(3, 1, 3, (2, 2), (4, 5)), _delta_sample(3, 1, 4, (2, 4), (8, 70)), _delta_sample(3, 1, 2, (2, 2), (16, 64)),
    _delta_sample(3, 0, 3, (1, 1), (4, 4))])  # fmt: skip
def gated_delta_rule(state: Spec, q: Spec, k: Spec, v: Spec, decay: Spec, beta: Spec, places: Spec, /) -> Any:
    """The gated delta rule of linear attention, token by token: (state, y), y[t] = state.T q[t] after the state took token t.

    For each head: state *= decay[t]; state += outer(k[t], beta[t] * (v[t] - state.T k[t])). state [slots, heads, Dk, Dv] is f32;
    q, k [batch, T, key heads, Dk], v [batch, T, heads, Dv], decay, beta [batch, T, heads]; key head h serves heads / key heads heads in
    a row. A row of places [batch, 3] is the (slot, start, count) of a sequence: start tokens came before (0: the old state is taken
    as zeros), count of the T are real; the others change nothing and give 0. No two sequences with tokens may have one slot. Sums are
    f32, in order of Dk: the same bits in any chunk and batch."""
    shapes = [x.ndim for x in (state, q, k, v)]
    if shapes != [4, 4, 4, 4] or q.shape != k.shape or q.shape[:2] != v.shape[:2]:
        raise ShapeError(
            f"gated_delta_rule: state [slots, heads, Dk, Dv], q and k [batch, T, key heads, Dk] and v [batch, T, heads, Dv] are needed, "
            f"given {state}, {q}, {k} and {v}."
        )
    batch, _, heads, columns = v.shape
    if k.shape[2] < 1 or heads % k.shape[2] or state.shape[1:] != (heads, k.shape[3], columns):
        raise ShapeError(
            f"gated_delta_rule: the heads of v must be a multiple of those of k, and state [slots, {heads}, {k.shape[3]}, {columns}] is "
            f"needed for k {k} and v {v}, given {state}."
        )
    if decay.shape != v.shape[:3] or beta.shape != v.shape[:3]:
        raise ShapeError(
            f"gated_delta_rule: decay and beta must be {text(v.shape[:3])} for v {v}, given {decay} and {beta}."
        )
    _is_state(state, places, batch, "gated_delta_rule")
    return Decision((*_singles(state, q, k, v, decay, beta), places), (state, Spec(v.shape, f32)))


def _expert_scale(w: Spec, scale: Spec, group: int) -> Spec:
    """Scales of experts: one number, one for each expert, for each row of each, or for each group of columns."""
    _check_group(group, "expert_matmul")
    experts, rows, columns = w.shape
    shapes: tuple[Shape, ...] = ((), (experts,), (experts, rows))
    if group:
        shapes = ((experts, rows, -(-columns // group)),)
    if scale.shape not in shapes:
        needed = " or ".join(text(s) for s in shapes)
        raise ShapeError(f"expert_matmul: scale must have shape {needed} for w {w} and group={group}, given {scale}.")
    return scale if scale.dtype is f16 else Spec(scale.shape, f32)


def _chosen_bytes(out: Spec, x: Spec, w: Spec, scale: Spec, experts: Spec, **attrs: Any) -> tuple[int, int]:
    """Of the weights no more than those of the experts that can be chosen."""
    most = builtins.min(experts.size, w.shape[0])
    return x.nbytes + experts.nbytes + (w.nbytes + scale.nbytes) * most // builtins.max(w.shape[0], 1), out.nbytes


CHOICE = Draw(Spec((3, 2), i32), 0, 4)


@op(CONTRACT, common=(), packed=True, moved=_chosen_bytes, flops=lambda out, x, w, *rest, **attrs: 2 * out.size * w.shape[2], samples=[
    sample(F32(3, 40), Spec((4, 7, 40), dt.tern2), SCALE(), CHOICE), sample(F32(3, 2, 40), Spec((4, 7, 40), dt.tern5), SCALE(4), CHOICE),
    *(sample(F32(3, 130), Spec((4, 90, 130), t), SCALE(4, 90), CHOICE) for t in TILED),
    sample(F32(3, 33), I8(4, 5, 33), SCALE(4, 5, 7), CHOICE, group=5),
    *(sample(F32(3, 2, 200), Spec((4, 90, 200), t), SCALE(4, 90, 4), CHOICE, group=64) for t in (*TILED, dt.i4)),
    sample(Spec((3, 33), bf16), Spec((4, 5, 33), i8), SCALE(4, 5), CHOICE),
    sample(Spec((3, 33), f16), Spec((4, 5, 33), dt.tern2), SCALE(), CHOICE),
    sample(F32(3, 33), Spec((4, 5, 33), dt.tern2), SCALE(4, 5, 7), CHOICE, group=5),
    *(sample(F32(3, 1100), Spec((4, 70, 1100), t), HALF_SCALE(4, 70, 23), CHOICE, group=48, activations="group") for t in TILED),
    sample(F32(3, 2, 33), Spec((4, 5, 33), dt.tern5), HALF_SCALE(4, 5, 7), CHOICE, group=5, activations="group"),
    sample(F32(0, 8), Spec((4, 3, 8), dt.tern2), F32(), Draw(Spec((0, 2), i32), 0, 4)),
    sample(F32(3, 0), Spec((4, 3, 0), dt.tern2), F32(), CHOICE)])  # fmt: skip
def expert_matmul(x: Spec, w: Spec, scale: Spec, experts: Spec, /, group: int = 0, activations: str = "token") -> Any:
    """x @ (w[e] * scale[e]).T for each expert e that a token chose, as `quantized_matmul` computes it; no other expert is looked at.

    w [E, N, K] are integers, packed or not; experts i32 [..., active]. x [..., K] is multiplied with the weights of all its experts,
    x [..., active, K] each row with those of its own: [..., active, N]. scale: one, [E], [E, N] or, for groups, [E, N, groups].
    activations: how x is multiplied, as in `quantized_matmul`."""
    check_activations(activations, group, "expert_matmul")
    if w.dtype not in WEIGHTS or w.ndim != 3:
        raise DTypeError(
            f"expert_matmul: the weights must be [experts, N, K] of i8 or a packed dtype, given {w}; nn.Experts makes them."
        )
    if experts.dtype is not i32 or not experts.ndim:
        raise DTypeError(f"expert_matmul: experts must be i32 [..., active], given {experts}; cast with .to('i32').")
    if x.ndim < 1 or x.shape[:-1] not in (experts.shape, experts.shape[:-1]) or x.shape[-1] != w.shape[2]:
        lead = ", ".join(str(n) for n in experts.shape[:-1])
        raise ShapeError(
            f"expert_matmul: x must be [{lead}{', ' if lead else ''}{w.shape[2]}], or have an axis of {experts.shape[-1]} experts before "
            f"the last, for w {w} and experts {experts}, given {x}."
        )
    x, ready = Spec(x.shape, _half_or_single(x)), _expert_scale(w, scale, group)
    if activations != "float":
        _sums_fit(w, builtins.min(group or w.shape[2], w.shape[2]), "expert_matmul")
    return Decision((x, w, ready, experts), Spec((*experts.shape, w.shape[1]), x.dtype))


# ---- moving elements


@op(
    MOVE,
    flops=free,
    common=(),
    packed=True,
    axes=Axes.LAST,
    samples=[sample(F32(3, 4)), sample(F32()), sample(Spec((5, 3), i8)), sample(F32(0, 2))],
)
def copy(x: Spec, /) -> Spec:
    """The same values in new memory, row by row."""
    return x


@op(
    MOVE,
    flops=free,
    samples=[sample(F32(2, 3), F32(4, 3)), sample(F32(2, 3), F32(2, 1), F32(2, 0), axis=1), sample(F32(2), I64(3))],
)
def concat(*xs: Spec, axis: int | None = 0) -> Spec:
    """Joined one after another along an existing axis (axis=None: flattened first)."""
    if axis is None:
        return Spec((_total(x.size for x in xs),), xs[0].dtype)
    along = axis_of(axis, xs[0].ndim, "concat")
    for x in xs[1:]:
        if x.ndim != xs[0].ndim or _without(x.shape, along) != _without(xs[0].shape, along):
            raise ShapeError(f"concat: {xs[0]} and {x} must have equal sizes except along axis {along}.")
    shape = list(xs[0].shape)
    shape[along] = _total(x.shape[along] for x in xs)
    return Spec(tuple(shape), xs[0].dtype)


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def _total(sizes: Any) -> int:
    n = 0
    for size in sizes:
        n += size
    return n


@op(
    MOVE,
    flops=free,
    samples=[sample(F32(2, 3), F32(2, 3)), sample(F32(2), F32(2), F32(2), axis=-1), sample(F32(), F32())],
)
def stack(*xs: Spec, axis: int = 0) -> Spec:
    """Joined along a new axis."""
    for x in xs[1:]:
        if x.shape != xs[0].shape:
            raise ShapeError(
                f"stack: {xs[0]} and {x} must have the same shape; use concat to join along an existing axis."
            )
    position = axis_of(axis, xs[0].ndim + 1, "stack")
    return Spec((*xs[0].shape[:position], len(xs), *xs[0].shape[position:]), xs[0].dtype)


@op(
    MOVE,
    flops=free,
    samples=[sample(F32(5), shift=2), sample(F32(3, 4), shift=(1, -1), axis=(0, 1)), sample(F32(3, 4), shift=3)],
)
def roll(x: Spec, /, shift: int | tuple[int, ...], *, axis: Any = None) -> Spec:
    """Elements moved along axes; what falls off one end enters at the other (axis=None: over the flattened tensor)."""
    if axis is not None:
        n = len(axes_of(axis, x.ndim, "roll"))
        if not isinstance(shift, int) and len(shift) != n:
            raise ShapeError(f"roll: {len(shift)} shifts but {n} axes; give as many of each.")
    return x


@op(
    MOVE,
    flops=free,
    axes=Axes.LAST,
    settle=_settle_diagonal,
    samples=[sample(F32(4, 4)), sample(F32(2, 3, 5), k=1)],
)
def tril(x: Spec, /, *, k: int = 0) -> Spec:
    """The part of each matrix on and below its k-th diagonal; zeros above."""
    axis_of(-2, x.ndim, "tril")
    return x


@op(
    MOVE,
    flops=free,
    axes=Axes.LAST,
    settle=_settle_diagonal,
    samples=[sample(F32(4, 4)), sample(F32(2, 3, 5), k=-1)],
)
def triu(x: Spec, /, *, k: int = 0) -> Spec:
    """The part of each matrix on and above its k-th diagonal; zeros below."""
    axis_of(-2, x.ndim, "triu")
    return x


def _index_spec(indices: Spec, what: str) -> None:
    if not indices.dtype.is_integer:
        raise DTypeError(f"{what}: indices must be integers, given {indices}; cast with .to('i64').")


def _picked(out: Spec, x: Spec, *indices: Spec, **attrs: Any) -> tuple[int, int]:
    """Of a table, the elements that are named."""
    return builtins.min(out.nbytes, x.nbytes) + _total(i.nbytes for i in indices), out.nbytes


@op(MOVE, flops=free, moved=_picked, common=(), samples=[sample(F32(5, 3), Draw(I64(4), 0, 5), axis=0), sample(F32(5), Draw(I64(2, 3), -5, 5)),
                                          sample(F32(2, 6), Draw(Spec((3,), i32), 0, 6), axis=-1)])  # fmt: skip
def take(x: Spec, indices: Spec, /, *, axis: int | None = None) -> Spec:
    """The slices of x along an axis that `indices` names; negatives count from the end."""
    _index_spec(indices, "take")
    if axis is None and x.ndim != 1:
        raise ArgumentError(f"take: {x} has {x.ndim} dimensions; name the axis.")
    along = axis_of(0 if axis is None else axis, x.ndim, "take")
    return Spec(x.shape[:along] + indices.shape + x.shape[along + 1 :], x.dtype)


@op(
    MOVE,
    flops=free,
    moved=_picked,
    common=(),
    samples=[sample(F32(3, 4), Draw(I64(3, 2), 0, 4)), sample(F32(5, 2), Draw(I64(3, 2), 0, 5), axis=0)],
)
def take_along_axis(x: Spec, indices: Spec, /, *, axis: int = -1) -> Spec:
    """For every place, the element of x whose index along the axis is given there."""
    _index_spec(indices, "take_along_axis")
    along = axis_of(axis, x.ndim, "take_along_axis")
    if indices.ndim != x.ndim:
        raise ShapeError(f"take_along_axis: {x} and indices {indices} must have the same number of dimensions.")
    lead = broadcast_shapes(_without(x.shape, along), _without(indices.shape, along), what="take_along_axis")
    return Spec((*lead[:along], indices.shape[along], *lead[along:]), x.dtype)


@op(
    MOVE,
    flops=free,
    common=(0, 2),
    samples=[sample(F32(5, 3), Draw(I64(4), 0, 5), F32(4, 3)), sample(F32(6), Draw(I64(2), 0, 6), F32())],
)
def scatter(x: Spec, indices: Spec, values: Spec, /, *, axis: int = 0, mode: str = "set") -> Spec:
    """x with the slices named by `indices` set to (or, mode='add', increased by) `values`; the last of equals wins."""
    _index_spec(indices, "scatter")
    if mode not in ("set", "add"):
        raise ArgumentError(f"scatter: mode={shown(mode)} is unknown; use 'set' or 'add'.")
    along = axis_of(axis, x.ndim, "scatter")
    where = x.shape[:along] + indices.shape + x.shape[along + 1 :]
    if values.ndim > len(where) or broadcast_shapes(values.shape, where, what="scatter: values") != where:
        raise ShapeError(
            f"scatter: values {values} do not broadcast to the {text(where)} that indices {indices} name in {x}."
        )
    return x


@op(MOVE, flops=free, moved=_picked, common=(), traits=INTERNAL, samples=[
    sample(F32(5, 4), Draw(I64(3), 0, 5), key=("at", (0, 4, 2))),
    sample(F32(5, 4), Draw(I64(2, 1), 0, 5), Draw(I64(3), 0, 4), key=("at", "at"))])  # fmt: skip
def gather(*xs: Spec, key: tuple[Any, ...]) -> Spec:
    """The elements x[rows, 1:3] selects with integer tensors: `key` has 'at' in place of each of them."""
    return Spec(gathered(xs[0].shape, tuple(x.shape for x in xs[1:]), key), xs[0].dtype)


def gathered(shape: Shape, indices: tuple[Shape, ...], key: tuple[Any, ...]) -> Shape:
    """Return the shape by NumPy's rule: index tensors broadcast, in place of the first, or in front if they are not adjacent."""
    positions = [i for i, k in enumerate(key) if k == "at" or isinstance(k, int)]
    block = broadcast_shapes(*indices, what="index")
    apart = positions != list(range(positions[0], positions[-1] + 1))
    out: list[int] = list(block) if apart else []
    d = 0
    for i, k in enumerate(key):
        if k is None:
            out.append(1)
            continue
        if i in positions:
            if not apart and i == positions[0]:
                out += block
        else:
            out.append(len(range(*k)))
        d += 1
    return tuple(out)


@op(MOVE, flops=free, common=(0, 1), traits=IN_PLACE | INTERNAL, samples=[
    sample(F32(5, 4), F32(3, 2), Draw(I64(3), 0, 5), key=("at", (0, 4, 2))),
    sample(F32(5, 4), F32(), Draw(I64(2, 1), 0, 5), Draw(I64(3), 0, 4), key=("at", "at"))])  # fmt: skip
def put(*xs: Spec, key: tuple[Any, ...]) -> Spec:
    """x (the first) with the elements an index names set to value (the second): what x[rows, 1:3] = value leaves."""
    part = gathered(xs[0].shape, tuple(x.shape for x in xs[2:]), key)
    if xs[1].ndim > len(part) or broadcast_shapes(xs[1].shape, part, what="put") != part:
        raise ShapeError(f"put: value {xs[1]} does not broadcast to the {text(part)} that the index names.")
    return xs[0]


@op(
    MOVE,
    flops=free,
    common=(),
    traits=INTERNAL,
    samples=[sample(F32(4, 6), F32(2, 3), layout=Layout((2, 3), (12, 2), 1))],
)
def update(x: Spec, value: Spec, /, *, layout: Layout) -> Spec:
    """x with the part that `layout` sees replaced by value: a write through a view, as a graph says it."""
    if broadcast_shapes(value.shape, layout.shape, what="update") != layout.shape:
        raise ShapeError(f"update: {value} does not broadcast to {text(layout.shape)}.")
    return x


@op(
    MOVE,
    domain=numeric,
    axes=Axes.NAMED,
    traits=ORDERS,
    samples=[sample(F32(7)), sample(F32(3, 5), axis=0), sample(Spec((4, 6), i32), descending=True), sample(F32(0))],
)
def sort(x: Spec, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Spec:
    """Sorted along an axis; NaN comes last."""
    axis_of(axis, x.ndim, "sort")
    return x


@op(
    MOVE,
    domain=numeric,
    axes=Axes.NAMED,
    traits=ORDERS,
    samples=[sample(F32(7)), sample(F32(3, 5), axis=0), sample(Spec((4, 6), i32), descending=True), sample(F32(0))],
)
def argsort(x: Spec, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Spec:
    """The indices that sort x along an axis."""
    axis_of(axis, x.ndim, "argsort")
    return Spec(x.shape, i64)


@op(
    MOVE,
    domain=numeric,
    axes=Axes.NAMED,
    traits=ORDERS,
    samples=[sample(F32(7), k=3), sample(F32(3, 5), k=2, axis=0), sample(Spec((4, 6), i32), k=6, largest=False)],
)
def topk(x: Spec, /, k: int, *, axis: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest (or smallest) elements along an axis and their indices, in order; of equals the first come first. NaN
    counts as the largest."""
    along = axis_of(axis, x.ndim, "topk")
    if not isinstance(k, int) or not 0 <= k <= x.shape[along]:
        raise ArgumentError(f"topk: k={shown(k)} of the {x.shape[along]} elements along axis {along} of {x} cannot be chosen; "
                            f"give 0 to {x.shape[along]}.")  # fmt: skip
    shape = (*x.shape[:along], k, *x.shape[along + 1 :])
    return Spec(shape, x.dtype), Spec(shape, i64)


@op(
    MOVE,
    domain=numeric,
    traits=ORDERS,
    samples=[sample(Draw(F32(1), 0, 1), F32(5)), sample(Draw(F32(1), 0, 1), F32(2, 3), side="right")],
)
def searchsorted(x1: Spec, x2: Spec, /, *, side: str = "left") -> Spec:
    """The index at which each element of x2 would be inserted in the sorted x1 to keep it sorted."""
    if x1.ndim != 1:
        raise ShapeError(f"searchsorted: x1 must have one dimension, given {x1}.")
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side={shown(side)} is unknown; use 'left' or 'right'.")
    return Spec(x2.shape, i64)


# ---- what NumPy computes as a whole: factorisations of matrices, Fourier transforms


def _square(x: Spec, method: str) -> Shape:
    """The leading axes of square matrices."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{method}: square matrices [..., N, N] are needed, given {x}.")
    return x.shape[:-2]


def _matrices(x: Spec, method: str) -> tuple[Shape, int, int]:
    if x.ndim < 2:
        raise ShapeError(f"{method}: matrices [..., M, N] are needed, given {x}.")
    return x.shape[:-2], x.shape[-2], x.shape[-1]


def _solution(a: Spec, b: Spec) -> Spec:
    lead = _square(a, "solve")
    if b.ndim == 0 or b.shape[builtins.max(b.ndim - 2, 0)] != a.shape[-1]:
        raise ShapeError(f"solve: x2 must be a vector of {a.shape[-1]} or matrices of as many rows, given {a} and {b}.")
    if b.ndim == 1:
        return Spec(a.shape[:-1], a.dtype)
    return Spec((*broadcast_shapes(lead, b.shape[:-2], what="solve"), *b.shape[-2:]), a.dtype)


def _qr(x: Spec, *, mode: str) -> tuple[Spec, Spec]:
    if mode not in ("reduced", "complete"):
        raise ArgumentError(f"qr: mode={mode!r} is unknown; use 'reduced' or 'complete'.")
    lead, m, n = _matrices(x, "qr")
    k = m if mode == "complete" else builtins.min(m, n)
    return Spec((*lead, m, k), x.dtype), Spec((*lead, k, n), x.dtype)


def _svd(x: Spec, *, full_matrices: bool) -> tuple[Spec, Spec, Spec]:
    lead, m, n = _matrices(x, "svd")
    k = builtins.min(m, n)
    left, right = (m, n) if full_matrices else (k, k)
    return Spec((*lead, m, left), x.dtype), Spec((*lead, k), x.dtype.real), Spec((*lead, right, n), x.dtype)


def _values(x: Spec) -> Spec:
    lead, m, n = _matrices(x, "svdvals")
    return Spec((*lead, builtins.min(m, n)), x.dtype.real)


def _slogdet(x: Spec) -> tuple[Spec, Spec]:
    lead = _square(x, "slogdet")
    return Spec(lead, x.dtype), Spec(lead, x.dtype.real)


# What each factorisation gives for the specs of its operands.
FACTORISATIONS: dict[str, Callable[..., Any]] = {
    "cholesky": lambda x, upper: Spec((*_square(x, "cholesky"), *x.shape[-2:]), x.dtype),
    "det": lambda x: Spec(_square(x, "det"), x.dtype),
    "eigh": lambda x: (Spec((*_square(x, "eigh"), x.shape[-1]), x.dtype.real), x),
    "eigvalsh": lambda x: Spec((*_square(x, "eigvalsh"), x.shape[-1]), x.dtype.real),
    "inv": lambda x: Spec((*_square(x, "inv"), *x.shape[-2:]), x.dtype),
    "qr": _qr,
    "slogdet": _slogdet,
    "solve": _solution,
    "svd": _svd,
    "svdvals": _values,
}


@op(REDUCE, domain=inexact, traits=INTERNAL, ulps=64, ulps_of=Scale.UNIT, flops=lambda out, x, *rest, **attrs: x.size * x.shape[-1],
    samples=[sample(F32(4, 4), method="det"), sample(Spec((2, 3, 3), f64), method="inv"), sample(F32(5, 3), method="svdvals"),
             sample(F32(2, 3, 3), F32(2, 3, 1), method="solve"), sample(F32(4, 2), method="qr", options=(("mode", "reduced"),))])  # fmt: skip
def factorize(*xs: Spec, method: str, options: tuple[tuple[str, Any], ...] = ()) -> Any:
    """A factorisation of matrices, or what follows from one: a method of `tritium.linalg`."""
    return FACTORISATIONS[method](*xs, **dict(options))


# Whether each transform reads and writes complex numbers.
TRANSFORMS = {
    "fft": (True, True),
    "ifft": (True, True),
    "rfft": (False, True),
    "irfft": (True, False),
    "hfft": (True, False),
    "ihfft": (False, True),
}


@op(REDUCE, domain=inexact, traits=INTERNAL, ulps=64, ulps_of=Scale.UNIT, axes=Axes.NAMED, flops=per_input(20),
    samples=[sample(F32(3, 8), kind="fft", n=8), sample(Spec((4, 6), f64), kind="rfft", n=6, axis=1),
             sample(F32(5), kind="ihfft", n=4)])  # fmt: skip
def transform(x: Spec, /, *, kind: str, n: int, axis: int = -1, norm: str = "backward") -> Decision:
    """A discrete Fourier transform of n points along an axis: one of `tritium.fft`."""
    along = axis_of(axis, x.ndim, kind)
    reads, writes = TRANSFORMS[kind]
    if norm not in ("backward", "ortho", "forward"):
        raise ArgumentError(f"{kind}: norm={norm!r} is unknown; use 'backward', 'ortho' or 'forward'.")
    if n < 1:
        raise ArgumentError(
            f"{kind}: a transform has at least one point, given n={n}; the axis has {x.shape[along]} elements."
        )
    if not reads:
        real_only(x.dtype)
    whole = f64 if x.dtype.real is f64 else f32
    source = dt.complex_of(whole) if x.dtype.is_complex or not writes else whole  # fft reads real numbers as they are
    shape = (*x.shape[:along], n if reads else n // 2 + 1, *x.shape[along + 1 :])
    return Decision((Spec(x.shape, source),), Spec(shape, dt.complex_of(whole) if writes else whole))


# ---- several calls as one: what the compiler puts in place of a group of nodes


def _steps_flops(out: Any, *ins: Any, body: Fragment) -> int:
    """The sum over its steps."""
    return _total(cost.flops for _, cost in body.costs())


_relu_of_sum = Fragment(
    (F32(3, 4), F32(4)),
    (Step(add, (0, 1), (), F32(3, 4)), Step(relu, (2,), (), F32(3, 4))),
    (3,),
)


@op(
    FUSED,
    common=(),
    packed=True,
    traits=INTERNAL,
    flops=_steps_flops,
    samples=[sample(F32(3, 4), F32(4), body=_relu_of_sum)],
)
def fused(*xs: Spec, body: Fragment) -> Any:
    """The steps of `body` in one pass over memory."""
    if xs != body.inputs:
        needed, got = (", ".join(map(str, specs)) for specs in (body.inputs, xs))
        raise ShapeError(f"fused: the body takes {needed}, given {got}.")
    return body.out


# ---- results whose shape depends on values


@op(DYNAMIC, common=(), samples=[sample(F32(3, 4)), sample(Spec((6,), bool_))])
def nonzero(x: Spec, /) -> Any:
    """The indices of the elements that are not 0: one tensor per dimension."""
    if x.ndim == 0:
        raise ShapeError("nonzero: a 0-d tensor has no indices; add a dimension with x[None].")
    return tuple(Spec((None,), i64) for _ in x.shape)  # type: ignore[arg-type]


DISTINCT = ("indices", "inverse", "counts")  # what may be told of distinct elements beside their values


@op(
    DYNAMIC,
    common=(),
    traits=INTERNAL,
    samples=[sample(F32(3, 4)), sample(I64(20), parts=DISTINCT), sample(F32(0), parts=("counts",))],
)
def distinct(x: Spec, /, *, parts: tuple[str, ...] = ()) -> Any:
    """The distinct elements in ascending order, and of each its first index and count, and of each element the place of its value."""
    lengths = {"indices": (None,), "inverse": x.shape, "counts": (None,)}
    first = Spec((None,), x.dtype)  # type: ignore[arg-type]
    rest = tuple(Spec(lengths[p], i64) for p in DISTINCT if p in parts)  # type: ignore[arg-type]
    return (first, *rest) if rest else first


def check_mask(mask: Spec, x: Spec) -> None:
    """A mask has the leading sizes of what it picks from; a size of 0 stands for any and picks nothing."""
    if mask.ndim > x.ndim or builtins.any(m not in (n, 0) for m, n in zip(mask.shape, x.shape, strict=False)):
        raise BoundsError(f"masked: the mask {mask} must have the leading sizes of {x}.")


@op(
    DYNAMIC,
    common=(),
    traits=INTERNAL,
    samples=[sample(F32(3, 4), Spec((3, 4), bool_)), sample(F32(3, 4), Spec((3,), bool_))],
)
def masked(x: Spec, mask: Spec, /) -> Any:
    """The elements (or slices) of x at which the mask is true: what x[mask] reads."""
    if mask.dtype is not bool_:
        raise DTypeError(f"masked: the mask must be bool, given {mask}.")
    check_mask(mask, x)
    return Spec((None, *x.shape[mask.ndim :]), x.dtype)  # type: ignore[arg-type]


# ---- rows by what their columns say


def rows_with(trait: Trait) -> frozenset[Op]:
    """Return the rows that have a trait."""
    return frozenset(o for o in OPS.values() if trait in o.traits)


def rows_that_fuse(*parts: Fuse) -> frozenset[Op]:
    """Return the rows that have one of these parts in a fused call."""
    return frozenset(o for o in OPS.values() if o.fuses in parts)

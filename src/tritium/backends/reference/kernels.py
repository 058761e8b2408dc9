"""The definition of every op, in NumPy: the fast kernels are held to it, and it is the backend of last resort.

A kernel is NumPy's own shape: kernel(*ins, out=None, **attrs).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tritium import ops
from tritium.backends.reference import (
    attention,
    certified,
    fourier,
    fused,
    kv_blocks,
    linalg,
    mixers,
    philox,
    quantized,
)
from tritium.backends.reference.cast import HALF, cast
from tritium.errors import BoundsError
from tritium.layout import Layout
from tritium.op import OPS, Kind, Op

Arr = np.ndarray[Any, Any]
Fn = Callable[..., Any]


def stored(fn: Fn) -> Fn:
    """A function that returns its result becomes a kernel that writes it."""

    def kernel(*xs: Arr | None, out: Arr, **attrs: Any) -> None:
        out[...] = fn(*xs, **attrs)

    return kernel


def wide(fn: Fn) -> Fn:
    """f16 and bf16 are computed in f32 and rounded once, at the end."""

    def kernel(*xs: Arr | None, out: Arr, **attrs: Any) -> None:
        if not any(x is not None and x.dtype in HALF for x in xs):
            fn(*xs, out=out, **attrs)
            return
        wider = [x.astype(np.float32) if x is not None and x.dtype in HALF else x for x in xs]
        result = np.empty(out.shape, np.float32) if out.dtype in HALF else out
        fn(*wider, out=result, **attrs)
        if result is not out:
            out[...] = result.astype(out.dtype)

    return kernel


# ---- element by element


def _quiet(fn: Fn) -> Fn:
    def kernel(*xs: Arr | None, out: Any, **attrs: Any) -> None:
        with np.errstate(all="ignore"):
            fn(*xs, out=out, **attrs)

    return kernel


def _pow(x1: Arr, x2: Arr, *, out: Arr) -> None:
    if x1.dtype.kind in "iu" and (x2 < 0).any():
        raise BoundsError(
            "pow: an integer to a negative power is not an integer; cast to a float dtype first: x.to('f32')."
        )
    np.power(x1, x2, out=out)


def _floor_divide(x1: Arr, x2: Arr) -> Arr:
    """With one infinity the standard's answer is the quotient itself: inf // 2 is inf, -1 // inf is -0 (NumPy: -1)."""
    whole = np.floor_divide(x1, x2)
    if x1.dtype.kind in "biu":  # bf16 is a float too, of a kind that NumPy does not know
        return whole
    return np.where(np.isinf(x1) != np.isinf(x2), x1 / x2, whole)


def _divmod(x1: Arr, x2: Arr, *, out: tuple[Arr, Arr]) -> None:
    out[0][...] = _floor_divide(x1, x2)
    np.remainder(x1, x2, out=out[1])


def _expm1(x: Arr, *, out: Arr) -> None:
    """Complex numbers that are large or not finite by exp: NumPy's own expm1 multiplies infinities with the sine of 0 there."""
    result = np.expm1(x)
    if x.dtype.kind == "c":
        large = ~np.isfinite(x) | (x.real >= 40)
        result = np.where(large, np.exp(x) - 1, result)
        result.real[...] = np.where(x == 0, 0, result.real)  # of -0 the standard makes 0
    out[...] = result


def _tanh(x: Arr, *, out: Arr) -> None:
    """Complex numbers of an infinite real part end in a 0 with the sign of the imaginary part, as the standard has it; C's sign
    is that of the sine of twice that part."""
    result = np.tanh(x)
    if x.dtype.kind == "c":
        result = np.asarray(result)
        end = np.isinf(x.real) & np.isfinite(x.imag)
        result.imag[...] = np.where(end, np.copysign(0, x.imag), result.imag)
    out[...] = result


_ERF = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Arr) -> Arr:
    return np.asarray(_ERF(x), np.float64)


def _relu(x: Arr, *, out: Arr) -> None:
    np.add(np.maximum(x, 0), 0, out=out)  # adding 0 turns -0 into 0


def _sigmoid(x: Arr) -> Arr:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, e) / (1 + e))


def _silu(x: Arr) -> Arr:
    """In f64, rounded once: it stands between the quantisers of a network, where every device gives the same bits."""
    y = x.astype(np.float64)
    return np.asarray(y / (1 + np.exp(-y)))


def _nextafter(x: Arr, y: Arr) -> Arr:
    """Of equals the second, as C has it: NumPy's f16 gives the first, which shows where both are 0."""
    return np.asarray(np.where(x == y, y, np.nextafter(x, y)))


def _gelu(x: Arr, *, approximate: str) -> Arr:
    y = x.astype(np.float64)
    if approximate == "none":
        inner = _erf(y * math.sqrt(0.5))
    else:
        inner = np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))
    return np.asarray(0.5 * y * (1 + inner))


def _clip(x: Arr, low: Arr | None, high: Arr | None) -> Arr:
    y = x if low is None else np.maximum(x, low)
    return y if high is None else np.asarray(np.minimum(y, high))


def _shift(fn: Fn, beyond: Callable[[Arr], Any]) -> Fn:
    def kernel(x1: Arr, x2: Arr) -> Arr:
        bits = x1.dtype.itemsize * 8
        inside = (x2 >= 0) & (x2 < bits)
        return np.asarray(np.where(inside, fn(x1, np.where(inside, x2, 0)), beyond(x1)))

    return kernel


def _truth(fn: Fn) -> Fn:
    """A question only floats can answer differently. NumPy 2.4 writes strided results of some of these wrongly: no out=."""
    return lambda x: fn(x) if x.dtype.kind in "fc" or x.dtype in HALF else fn(np.float32(0))


_UFUNCS: dict[str, Fn] = {
    name: getattr(np, name)
    for name in """add subtract multiply divide remainder maximum minimum hypot copysign logaddexp equal
    not_equal less less_equal greater greater_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor abs
    negative positive square sqrt reciprocal sign exp log log1p log2 log10 sin cos tan sinh cosh logical_not
    """.split()
} | {
    "atan2": np.arctan2, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "bitwise_invert": np.invert, "relu": _relu, "pow": _pow, "expm1": _expm1, "tanh": _tanh,
}  # fmt: skip

_STORED: dict[str, Fn] = {
    "ceil": lambda x: np.ceil(x) if x.dtype.kind == "f" else x,
    "floor": lambda x: np.floor(x) if x.dtype.kind == "f" else x,
    "trunc": lambda x: np.trunc(x) if x.dtype.kind == "f" else x,
    "round": lambda x: np.rint(x) if x.dtype.kind in "fc" else x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": _erf,
    "relu2": lambda x: np.square(np.maximum(x, 0)),
    "sigmoid": _sigmoid,
    "silu": _silu,
    "gelu": _gelu,
    "clip": _clip,
    "floor_divide": _floor_divide,
    "real": np.real,
    "imag": lambda x: np.imag(x) if x.dtype.kind == "c" else 0,  # of bf16 NumPy has none
    "conj": lambda x: np.conjugate(x) if x.dtype.kind == "c" else x,
}

# ---- along axes


def _widest(kind: Any, other: Any) -> Any:
    """The dtype in which many numbers are added: f64 or c128, whose roundings are too small to be seen; else the other."""
    return {"f": np.float64, "c": np.complex128}.get(kind.kind, other)


def _axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, (list, tuple)) else axis


def _accumulate(fn: Fn) -> Fn:
    """f32 is accumulated in f64, so that the reference is the more exact side of a comparison."""

    def kernel(x: Arr, *, out: Arr, axis: Any = None, keepdims: bool = False, dtype: Any = None, **attrs: Any) -> None:
        kind = _widest(x.dtype, out.dtype)
        out[...] = fn(x, axis=_axes(axis), keepdims=keepdims, dtype=kind, **attrs)

    return kernel


def _plain(fn: Fn) -> Fn:
    def kernel(x: Arr, *, out: Arr, axis: Any = None, keepdims: bool = False) -> None:
        out[...] = fn(x, axis=_axes(axis), keepdims=keepdims)

    return kernel


def _mean(x: Arr, *, out: Arr, axis: Any = None, keepdims: bool = False) -> None:
    total = np.sum(x, axis=_axes(axis), keepdims=keepdims, dtype=_widest(x.dtype, np.float64))
    out[...] = total / np.float64(_count(x, axis))


def _var(x: Arr, *, out: Arr, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> None:
    """Two passes: the mean, then the squared distances from it. Nothing, or no freedom left, gives NaN or infinity."""
    wide_x = x.astype(np.float64)
    count = _count(x, axis)
    middle = np.sum(wide_x, axis=_axes(axis), keepdims=True) / np.float64(count)
    squares = np.sum(np.square(wide_x - middle), axis=_axes(axis), keepdims=keepdims)
    out[...] = squares / np.float64(max(count - correction, 0))


def _std(x: Arr, *, out: Arr, **attrs: Any) -> None:
    wide_out = np.empty(out.shape, np.float64)
    _var(x, out=wide_out, **attrs)
    out[...] = np.sqrt(wide_out)


def _count(x: Arr, axis: Any) -> int:
    """Return the number of elements that are joined into one."""
    joined = range(x.ndim) if axis is None else (axis if isinstance(axis, tuple) else (axis,))
    return math.prod(x.shape[a] for a in joined)


def _running(fn: Fn, first: int) -> Fn:
    def kernel(x: Arr, *, out: Arr, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> None:
        along = 0 if axis is None else axis
        kind = _widest(x.dtype, out.dtype)
        result = fn(x, axis=along, dtype=kind)
        if include_initial:
            start = np.full_like(np.take(result, [0], axis=along) if x.shape[along] else np.zeros(
                tuple(1 if d == along % x.ndim else n for d, n in enumerate(x.shape)), kind), first)  # fmt: skip
            result = np.concatenate([start, result], axis=along)
        out[...] = result

    return kernel


def _softmax(x: Arr, *, axis: int) -> Arr:
    y = x.astype(np.float64)
    e = np.exp(y - y.max(axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def _log_softmax(x: Arr, *, axis: int) -> Arr:
    y = x.astype(np.float64)
    y = y - y.max(axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(y - np.log(np.exp(y).sum(axis=axis, keepdims=True)))


def _layer_norm(x: Arr, weight: Arr | None, bias: Arr | None, *, eps: float) -> Arr:
    y = x.astype(np.float64)
    y = y - y.mean(axis=-1, keepdims=True)
    return _rms_norm(y, weight, eps=eps) + (0 if bias is None else bias)


def _rms_norm(x: Arr, weight: Arr | None, *, eps: float) -> Arr:
    """Squares are added in f64, where those of f32 are exact; the scale is rounded once, then each product. So every device
    gives the same bits, in whatever order it adds."""
    squares = np.square(x.astype(np.float64)).mean(axis=-1, keepdims=True)
    y = x * (1 / np.sqrt(squares + eps)).astype(x.dtype)
    return np.asarray(y if weight is None else y * weight)


_REDUCTIONS: dict[str, Fn] = {
    "sum": _accumulate(np.sum),
    "prod": _accumulate(np.prod),
    "mean": _mean,
    "max": _plain(np.max),
    "min": _plain(np.min),
    "all": _plain(np.all),
    "any": _plain(np.any),
    "count_nonzero": _plain(np.count_nonzero),
    "argmax": _plain(np.argmax),
    "argmin": _plain(np.argmin),
    "var": _var,
    "std": _std,
    "cumulative_sum": _running(np.cumsum, 0),
    "cumulative_prod": _running(np.cumprod, 1),
    "softmax": stored(_softmax),
    "log_softmax": stored(_log_softmax),
    "layer_norm": stored(_layer_norm),
    "rms_norm": stored(_rms_norm),
}

# ---- products


def _naive(a: Arr, b: Arr) -> Arr:
    """One dot product at a time: the definition, and the bottom of the ladder."""
    rows, columns = a.shape[-2], b.shape[-1]
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = np.zeros((*lead, rows, columns), a.dtype)
    for i in range(rows):
        for j in range(columns):
            out[..., i, j] = (a[..., i, :] * b[..., :, j]).sum(axis=-1)
    return out


def _blocked(a: Arr, b: Arr, block: int = 64) -> Arr:
    """Blocks that stay in the cache."""
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = np.zeros((*lead, rows, columns), a.dtype)
    for i in range(0, rows, block):
        for j in range(0, columns, block):
            for k in range(0, inner, block):
                out[..., i : i + block, j : j + block] += (
                    a[..., i : i + block, k : k + block] @ b[..., k : k + block, j : j + block]
                )
    return out


def matmul(a: Arr, b: Arr, *, out: Arr, algorithm: str = "blas") -> None:
    if algorithm == "blas" or algorithm == "parallel":
        np.matmul(a, b, out=out)
        return
    x = a if a.ndim > 1 else a[None]
    y = b if b.ndim > 1 else b[:, None]
    out[...] = {"naive": _naive, "blocked": _blocked}[algorithm](x, y).reshape(out.shape)


# ---- moving


def _along(axis: int | None) -> int:
    return 0 if axis is None else axis


def _checked(indices: Arr, size: int, what: str) -> Arr:
    bad = (indices < -size) | (indices >= size)
    if bad.any():
        raise BoundsError(f"{what}: index {indices[bad].flat[0]} is outside an axis of size {size}.")
    return indices


def _take(x: Arr, indices: Arr, *, axis: int | None) -> Arr:
    return np.asarray(np.take(x, _checked(indices, x.shape[_along(axis)], "take"), axis=_along(axis)))


def _take_along_axis(x: Arr, indices: Arr, *, axis: int) -> Arr:
    _checked(indices, x.shape[axis], "take_along_axis")
    shape = list(np.broadcast_shapes(_drop(x.shape, axis), _drop(indices.shape, axis)))
    along = axis % x.ndim
    wide_x = np.broadcast_to(x, (*shape[:along], x.shape[along], *shape[along:]))
    wide_i = np.broadcast_to(indices, (*shape[:along], indices.shape[along], *shape[along:]))
    return np.take_along_axis(wide_x, wide_i, axis=along)


def _drop(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    along = axis % len(shape)
    return shape[:along] + shape[along + 1 :]


def _scatter(x: Arr, indices: Arr, values: Arr, *, out: Arr, axis: int, mode: str) -> None:
    position = (slice(None),) * (axis % x.ndim) + (_checked(indices, x.shape[axis], "scatter"),)
    if out is not x:
        out[...] = x
    if mode == "set":
        out[position] = values
    else:
        np.add.at(out, position, values)  # type: ignore[arg-type]


def _gather(x: Arr, *indices: Arr, key: tuple[Any, ...]) -> Any:
    return x[numpy_key(x.shape, indices, key)]


def numpy_key(shape: tuple[int, ...], indices: tuple[Arr, ...], key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key of rows `gather` and of index assignment as NumPy reads it."""
    left = iter(indices)
    out: list[Any] = []
    d = 0
    for k in key:
        if k is None:
            out.append(None)
            continue
        if k == "at":
            out.append(_checked(next(left), shape[d], "index"))
        else:
            out.append(k if isinstance(k, int) else _slice(*k))
        d += 1
    return tuple(out)


def _put(x: Arr, value: Arr, *indices: Arr, out: Arr, key: tuple[Any, ...]) -> None:
    position = numpy_key(x.shape, indices, key)
    if out is not x:
        out[...] = x
    out[position] = value


def _slice(start: int, stop: int, step: int) -> slice:
    if start < 0:  # before the first element, going down: nothing
        return slice(0, 0)
    return slice(start, None if stop < 0 else stop, step)


def _update(x: Arr, value: Arr, *, out: Arr, layout: Layout) -> None:
    whole = np.ascontiguousarray(x).copy()
    item = whole.dtype.itemsize
    strides = tuple(s * item for s in layout.strides)
    if 0 not in layout.shape:
        np.ndarray(layout.shape, whole.dtype, whole, layout.offset * item, strides)[...] = value
    out[...] = whole


def _one_hot(x: Arr, *, out: Arr, num_classes: int, dtype: Any = None) -> None:
    _checked(x, num_classes, "one_hot")
    out[...] = x[..., None].astype(np.int64) % max(num_classes, 1) == np.arange(num_classes)


def _sortable(x: Arr) -> Arr:
    """bf16 has no order of its own in NumPy that knows NaN."""
    return x.astype(np.float32) if x.dtype in HALF else x


def _sorted(x: Arr, *, axis: int, descending: bool, stable: bool) -> Arr:
    return np.take_along_axis(x, argsort(x, axis=axis, descending=descending, stable=stable), axis)


def argsort(x: Arr, *, axis: int, descending: bool, stable: bool) -> Arr:
    x = _sortable(x)
    kind: Any = "stable" if stable else None
    if not descending:
        return np.argsort(x, axis=axis, kind=kind)
    turned = np.flip(x, axis)
    order = np.flip(np.argsort(turned, axis=axis, kind=kind), axis)
    return np.asarray(x.shape[axis] - 1 - order)


def _topk(x: Arr, *, out: tuple[Arr, Arr], k: int, axis: int, largest: bool, sorted: bool) -> None:
    order = argsort(x, axis=axis, descending=largest, stable=True)
    first = np.take(order, np.arange(k), axis=axis)
    out[0][...] = np.take_along_axis(x, first, axis)
    out[1][...] = first


def _tri(fn: Fn) -> Fn:
    return lambda x, *, k: fn(x, k)


_MOVES: dict[str, Fn] = {
    "where": np.where,
    "concat": lambda *xs, axis: np.concatenate(xs, axis=axis),
    "stack": lambda *xs, axis: np.stack(xs, axis=axis),
    "roll": lambda x, *, shift, axis: np.roll(x, shift, _axes(axis)),
    "tril": _tri(np.tril),
    "triu": _tri(np.triu),
    "take": _take,
    "take_along_axis": _take_along_axis,
    "gather": _gather,
    "sort": _sorted,
    "argsort": argsort,
    "searchsorted": lambda x1, x2, *, side: np.searchsorted(_sortable(x1), _sortable(x2), side=side),
    "bitwise_left_shift": _shift(np.left_shift, np.zeros_like),
    "bitwise_right_shift": _shift(np.right_shift, lambda x: np.where(x < 0, -1, 0).astype(x.dtype)),
}

# ---- sources


def _full(*, out: Arr, shape: Any, fill_value: Any, dtype: Any = None) -> None:
    out[...] = fill_value


def _arange(*, out: Arr, start: Any, stop: Any, step: Any, dtype: Any = None) -> None:
    """Integers wrap, as in NumPy; all else is computed in f64."""
    first = 0 if stop is None else start
    if out.dtype.kind in "iu" and isinstance(first, int) and isinstance(step, int):
        counted = np.arange(out.size, dtype=np.uint64) * np.uint64(step % 2**64) + np.uint64(first % 2**64)
        out[...] = counted.astype(out.dtype)
    else:
        cast(first + np.arange(out.size, dtype=np.float64) * step, out=out)


def _linspace(*, out: Arr, start: complex, stop: complex, num: int, endpoint: bool, dtype: Any = None) -> None:
    cast(np.linspace(start, stop, num, endpoint=endpoint, dtype=_widest(out.dtype, np.float64)), out=out)


def _eye(*, out: Arr, n_rows: int, n_cols: int | None, k: int, dtype: Any = None) -> None:
    out[...] = np.eye(n_rows, n_cols, k)


KERNELS: dict[Op, Fn] = {}
KERNELS |= {OPS[n]: _quiet(wide(fn)) for n, fn in _UFUNCS.items()}
KERNELS |= {OPS[n]: _quiet(wide(stored(fn))) for n, fn in _STORED.items()}
KERNELS |= {OPS[n]: _quiet(wide(fn)) for n, fn in _REDUCTIONS.items()}
KERNELS |= {OPS[n]: stored(fn) for n, fn in _MOVES.items()}
KERNELS |= {OPS[n]: _quiet(stored(_truth(getattr(np, n)))) for n in ("isnan", "isinf", "isfinite", "signbit")}
KERNELS |= {
    ops.nextafter: _quiet(stored(_nextafter)),
    ops.matmul: _quiet(wide(matmul)),
    ops.astype: _quiet(cast),
    ops.scatter: _scatter,
    ops.update: _update,
    ops.put: _put,
    ops.divmod: _quiet(_divmod),
    ops.topk: _topk,
    ops.one_hot: _one_hot,
    ops.full: _full,
    ops.arange: _quiet(_arange),
    ops.linspace: _quiet(_linspace),
    ops.eye: _eye,
    ops.random_uniform: philox.uniform,
    ops.random_normal: philox.normal,
    ops.random_integers: philox.integers,
    ops.factorize: _quiet(linalg.factorize),
    ops.transform: _quiet(fourier.transform),
}
KERNELS |= quantized.KERNELS | {
    row: _quiet(fn) for row, fn in (attention.KERNELS | certified.KERNELS | kv_blocks.KERNELS | mixers.KERNELS).items()
}
KERNELS[ops.fused] = fused.kernel(KERNELS)


def _distinct(x: Arr, *, parts: tuple[str, ...]) -> Any:
    """NaN differs from every number, itself too."""
    unique: Any = np.unique
    options = {
        "return_index": "indices" in parts,
        "return_inverse": "inverse" in parts,
        "return_counts": "counts" in parts,
    }
    values, *rest = _listed(unique(_sortable(x).reshape(-1), equal_nan=False, **options))
    extras = [np.asarray(r, np.int64) for r in rest]
    if "inverse" in parts:
        position = int("indices" in parts)
        extras[position] = extras[position].reshape(x.shape)
    values = values.astype(x.dtype)
    return (values, *extras) if extras else values


def _listed(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


# Rows whose result is as large as the values say: the kernel makes the memory.
DYNAMIC: dict[Op, Fn] = {
    ops.nonzero: lambda x: tuple(np.asarray(i, np.int64) for i in np.nonzero(x)),
    ops.distinct: _distinct,
    ops.masked: lambda x, mask: x[mask] if mask.size else np.empty((0, *x.shape[mask.ndim :]), x.dtype),
}


def missing() -> list[str]:
    """Rows without a definition here; a test keeps it empty."""
    free = (Kind.VIEW, Kind.DYNAMIC)
    done = {ops.const, ops.given, ops.empty}
    return [o.name for o in OPS.values() if o.kind not in free and o not in done and o not in KERNELS]

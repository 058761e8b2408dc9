"""Rows of the table written once over a small namespace, for devices whose own library keeps values.

A maker takes what will come out and the attributes, and gives a function of values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tritium import dtype as dt, ops
from tritium.backends.reference import kernels as reference
from tritium.backends.reference.cast import number
from tritium.backends.values import (
    attention as elements_attention,
    mixers as elements_mixers,
    quantized as elements_quantized,
    random as elements_random,
)
from tritium.backends.values.namespace import (
    HALF,
    Namespace as Namespace,
    Value as Value,
    cast,
    deep,
    flat,
    index_dtype,
    legal,
    places,
    size_of,
    wide,
    wider,
)
from tritium.dtype import DType
from tritium.fragment import Fragment, Step
from tritium.layout import Layout, Shape, axes_of, axis_of, contiguous_strides
from tritium.op import Kind, Op, Spec

Fn = Callable[..., Any]
Maker = Callable[..., Fn]


# ---- moving


def _take(xp: Namespace, x: Value, indices: Value, axis: int, what: str) -> Value:
    shape = tuple(int(n) for n in x.shape)
    out = (*shape[:axis], *(int(n) for n in indices.shape), *shape[axis + 1 :])
    positions = legal(xp, indices, shape[axis], what)
    return xp.take(x, positions, axis) if size_of(shape) and size_of(out) else xp.full(out, 0, xp.dtype_of(x))


def _take_along(xp: Namespace, x: Value, indices: Value, axis: int, out: Shape) -> Value:
    shape = tuple(int(n) for n in x.shape)
    positions = xp.broadcast_to(legal(xp, indices, shape[axis], "take_along_axis"), out)
    x = xp.broadcast_to(x, (*out[:axis], shape[axis], *out[axis + 1 :]))
    return (
        xp.take_along_axis(x, positions, axis) if size_of(shape) and size_of(out) else xp.full(out, 0, xp.dtype_of(x))
    )


def _scatter(xp: Namespace, x: Value, indices: Value, values: Value, axis: int, mode: str, what: str) -> Value:
    shape = tuple(int(n) for n in x.shape)
    named = tuple(int(n) for n in indices.shape)
    positions = flat(xp, legal(xp, indices, shape[axis], what))
    where = (*shape[:axis], *named, *shape[axis + 1 :])
    if not size_of(shape) or not size_of(where):
        return x
    values = xp.reshape(xp.broadcast_to(values, where), (*shape[:axis], size_of(named), *shape[axis + 1 :]))
    first = (axis, *(d for d in range(len(shape)) if d != axis))
    there = tuple(first.index(d) for d in range(len(shape)))
    write = xp.put if mode == "set" else xp.add_at
    turned = write(xp.transpose(x, first), positions, xp.transpose(values, first))
    return xp.transpose(turned, there)


def one_axis(shape: Shape, key: tuple[Any, ...]) -> int | None:
    """The axis that a key names by one index tensor while it leaves the others whole; None: it does more."""
    if len(key) != len(shape):
        return None
    indexed = [d for d, k in enumerate(key) if k == "at"]
    whole = all(k == "at" or k == (0, n, 1) for k, n in zip(key, shape, strict=True))
    return indexed[0] if whole and len(indexed) == 1 else None


def _named(xp: Namespace, shape: Shape, indices: tuple[Value, ...], key: tuple[Any, ...]) -> Value:
    """Return the offsets in flat memory of the elements that an index names, in the shape of what it reads (`ops.gathered`)."""
    t = index_dtype(size_of(shape))
    strides, left = contiguous_strides(shape), iter(indices)
    indexed = [i for i, k in enumerate(key) if k == "at" or isinstance(k, int)]
    block = len(np.broadcast_shapes(*(tuple(i.shape) for i in indices)))
    apart = indexed != list(range(indexed[0], indexed[-1] + 1))
    before = [i for i, k in enumerate(key) if i not in indexed and (apart or i < indexed[0])]
    free = [i for i in range(len(key)) if i not in indexed]
    ndim, lead = block + len(free), 0 if apart else len(before)
    total, d = xp.full((1,) * ndim, 0, t), 0
    for i, k in enumerate(key):
        order = free.index(i) if i in free else 0
        axis = order + (block if order >= lead else 0)
        if k is None:
            continue
        if k == "at":
            index = legal(xp, next(left), shape[d], "index")
            shown = (*(int(n) for n in index.shape), *(1 for _ in range(ndim - lead - block)))
            total = total + xp.reshape(xp.astype(index, t) * strides[d], shown)
        elif isinstance(k, int):
            total = total + k * strides[d]
        else:
            n = len(range(*k))
            steps = xp.arange(n, t) * (k[2] * strides[d]) + max(k[0], 0) * strides[d]
            total = total + xp.reshape(steps, (n, *(1 for _ in range(ndim - axis - 1))))
        d += 1
    return total


def _gather(xp: Namespace, x: Value, indices: tuple[Value, ...], key: tuple[Any, ...], out: Shape) -> Value:
    shape = tuple(int(n) for n in x.shape)
    axis = one_axis(shape, key)
    if axis is not None:
        return _take(xp, x, indices[0], axis, "index")
    offsets = xp.broadcast_to(_named(xp, shape, indices, key), out)
    return xp.take(flat(xp, x), offsets, 0) if size_of(shape) and size_of(out) else xp.full(out, 0, xp.dtype_of(x))


def _put(xp: Namespace, x: Value, value: Value, indices: tuple[Value, ...], key: tuple[Any, ...]) -> Value:
    shape = tuple(int(n) for n in x.shape)
    axis = one_axis(shape, key)
    if axis is not None:
        return _scatter(xp, x, indices[0], value, axis, "set", "index")
    part = ops.gathered(shape, tuple(tuple(i.shape) for i in indices), key)
    offsets = xp.broadcast_to(_named(xp, shape, indices, key), part)
    if not size_of(shape) or not size_of(part):
        return x
    return xp.reshape(xp.put(flat(xp, x), flat(xp, offsets), flat(xp, xp.broadcast_to(value, part))), shape)


def update(xp: Namespace, x: Value, layout: Layout, value: Value) -> Value:
    """x with the elements that a layout sees in its memory replaced."""
    shape = tuple(int(n) for n in x.shape)
    if 0 in layout.shape:
        return x
    offsets = flat(xp, places(xp, layout))
    return xp.reshape(xp.put(flat(xp, x), offsets, flat(xp, xp.broadcast_to(value, layout.shape))), shape)


def _rolled(xp: Namespace, x: Value, shift: Any, axis: Any) -> Value:
    shape = tuple(int(n) for n in x.shape)
    if axis is None:
        return xp.reshape(_rolled(xp, flat(xp, x), shift if isinstance(shift, int) else sum(shift), 0), shape)
    axes = axes_of(axis, len(shape), "roll")
    shifts = (shift,) * len(axes) if isinstance(shift, int) else shift
    for a, s in zip(axes, shifts, strict=True):
        cut = -s % shape[a] if shape[a] else 0
        if cut:
            before = (slice(None),) * a
            x = xp.concat([x[(*before, slice(cut, shape[a]))], x[(*before, slice(0, cut))]], a)
    return x


def _diagonal(xp: Namespace, rows: int, columns: int) -> Value:
    """Of each place of a matrix, its column less its row."""
    return xp.arange(columns, dt.i32)[None, :] - xp.arange(rows, dt.i32)[:, None]


def _searchsorted(xp: Namespace, x1: Value, x2: Value, side: str) -> Value:
    """By halves; NaN counts as larger than any number."""
    x1, x2 = wider(xp, x1), wider(xp, x2)
    n = int(x1.shape[0])
    low, high = (xp.full(tuple(x2.shape), k, dt.i32) for k in (0, n))
    for _ in range(n.bit_length()):
        middle = (low + high) >> 1
        probe = xp.take(x1, xp.minimum(middle, xp.full((), n - 1, dt.i32)), 0)
        before = _before(probe, x2) if side == "left" else ~_before(x2, probe)
        before = before & (low < high)
        low, high = xp.where(before, middle + 1, low), xp.where(before, high, middle)
        high = xp.maximum(low, high)
    return xp.astype(low, dt.i64)


def _before(a: Value, b: Value) -> Value:
    return (a < b) | ((b != b) & (a == a))


def _moves(xp: Namespace) -> dict[Op, Maker]:
    def take(out: Spec, axis: int | None) -> Fn:
        return lambda x, i: _take(xp, x, i, axis_of(axis or 0, len(x.shape), "take"), "take")

    def take_along_axis(out: Spec, axis: int) -> Fn:
        return lambda x, i: _take_along(xp, x, i, axis % len(out.shape), out.shape)

    def scatter(out: Spec, axis: int, mode: str) -> Fn:
        return lambda x, i, v: _scatter(xp, x, i, v, axis % len(out.shape), mode, "scatter")

    def gather(out: Spec, key: tuple[Any, ...]) -> Fn:
        return lambda x, *indices: _gather(xp, x, indices, key, out.shape)

    def put(out: Spec, key: tuple[Any, ...]) -> Fn:
        return lambda x, value, *indices: _put(xp, x, value, indices, key)

    def roll(out: Spec, shift: Any, axis: Any) -> Fn:
        return lambda x: _rolled(xp, x, shift, axis)

    def triangle(keep: Callable[[Value, int], Value]) -> Maker:
        def maker(out: Spec, k: int) -> Fn:
            zero = xp.full((), 0, out.dtype)
            return lambda x: xp.where(keep(_diagonal(xp, *out.shape[-2:]), k), x, zero)

        return maker

    return {
        ops.take: take,
        ops.take_along_axis: take_along_axis,
        ops.scatter: scatter,
        ops.gather: gather,
        ops.put: put,
        ops.update: lambda out, layout: lambda x, value: update(xp, x, layout, value),
        ops.roll: roll,
        ops.tril: triangle(lambda d, k: d <= k),
        ops.triu: triangle(lambda d, k: d >= k),
        ops.searchsorted: lambda out, side: lambda x1, x2: _searchsorted(xp, x1, x2, side),
    }


# ---- sources


def _sources(xp: Namespace) -> dict[Op, Maker]:
    def full(out: Spec, shape: Any, fill_value: Any, dtype: DType) -> Fn:
        return lambda: xp.full(out.shape, fill_value, out.dtype)

    def arange(out: Spec, start: Any, stop: Any, step: Any, dtype: DType) -> Fn:
        attrs = {"start": start, "stop": stop, "step": step}
        if out.dtype.is_integer and all(isinstance(v, int) for v in (start, step)):
            first = 0 if stop is None else start
            return lambda: xp.astype(xp.arange(out.size, dt.i64) * step + first, out.dtype)
        return lambda: xp.array(_on_host(ops.arange, out, attrs))

    def linspace(out: Spec, start: float, stop: float, num: int, endpoint: bool, dtype: DType) -> Fn:
        attrs = {"start": start, "stop": stop, "num": num, "endpoint": endpoint}
        return lambda: xp.array(_on_host(ops.linspace, out, attrs))

    def eye(out: Spec, n_rows: int, n_cols: int | None, k: int, dtype: DType) -> Fn:
        return lambda: xp.astype(_diagonal(xp, *out.shape) == k, out.dtype)

    def one_hot(out: Spec, num_classes: int, dtype: DType | None) -> Fn:
        def run(x: Value) -> Value:
            classes = legal(xp, x, num_classes, "one_hot")
            return xp.astype(classes[..., None] == xp.arange(num_classes, index_dtype(num_classes)), out.dtype)

        return run

    return {ops.full: full, ops.arange: arange, ops.linspace: linspace, ops.eye: eye, ops.one_hot: one_hot}


def _on_host(row: Op, out: Spec, attrs: dict[str, Any]) -> np.ndarray[Any, Any]:
    """A source as the reference makes it: each of its numbers is worked out in f64 and rounded once."""
    result = np.empty(out.shape, out.dtype.numpy)
    reference.KERNELS[row](out=result, **attrs)
    return result


# ---- along axes


def _var(xp: Namespace, x: Value, axis: Any, correction: float, keepdims: bool) -> Value:
    """Two passes: the mean, then the squared distances from it."""
    axes = axes_of(axis, len(x.shape), "var")
    count = math.prod(int(x.shape[a]) for a in axes)
    apart = x - xp.sum(x, axes, True) / number_of(xp, count, x)
    return xp.sum(apart * apart, axes, keepdims) / number_of(xp, max(count - correction, 0), x)


def number_of(xp: Namespace, n: float, like: Value) -> Value:
    """A number as a value: dividing by 0 then gives NaN or infinity, as it does everywhere."""
    return xp.full((), float(n), xp.dtype_of(like))


def _softmax(xp: Namespace, x: Value, axis: int) -> Value:
    along = (axis % len(x.shape),)
    if not size_of(tuple(x.shape)):
        return x
    e = xp.exp(x - xp.max(x, along, True))
    return e / xp.sum(e, along, True)


def _log_softmax(xp: Namespace, x: Value, axis: int) -> Value:
    along = (axis % len(x.shape),)
    if not size_of(tuple(x.shape)):
        return x
    y = x - xp.max(x, along, True)
    return y - xp.log(xp.sum(xp.exp(y), along, True))


def _layer_norm(xp: Namespace, x: Value, weight: Value | None, bias: Value | None, eps: float) -> Value:
    y = x - _average(xp, x)
    y = y / xp.sqrt(_average(xp, y * y) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _rms_norm(xp: Namespace) -> Maker:
    """As the reference does it: the squares in f64 where the device has it, the scale and each product rounded."""

    def maker(out: Spec, eps: float) -> Fn:
        def run(x: Value, weight: Value | None) -> Value:
            y: Value = wider(xp, x)
            inside = xp.astype(x, dt.f64) if xp.has_f64 else y
            squares = _average(xp, inside * inside)
            scale = number_of(xp, 1, inside) / xp.sqrt(squares + number_of(xp, eps, inside))
            y = y * xp.astype(scale, xp.dtype_of(y))
            return cast(xp, y if weight is None else y * wider(xp, weight), out.dtype)

        return run

    return maker


def _average(xp: Namespace, x: Value) -> Value:
    last = len(x.shape) - 1
    return xp.sum(x, (last,), True) / number_of(xp, int(x.shape[last]), x)


def _running(xp: Namespace, fn: Fn, first: int) -> Maker:
    """Running sums or products; of bools, whether any or all so far are true."""

    def maker(out: Spec, axis: int | None, dtype: DType | None, include_initial: bool) -> Fn:
        along = axis_of(axis or 0, len(out.shape), "cumulative")
        start = tuple(1 if d == along else n for d, n in enumerate(out.shape))
        inside = dt.i32 if out.dtype is dt.bool_ else dt.f32 if out.dtype in HALF else out.dtype

        def run(x: Value) -> Value:
            y = cast(xp, x, inside)
            y = fn(y, along) if size_of(tuple(x.shape)) else y
            if include_initial:
                y = xp.concat([xp.full(start, first, inside), y], along)
            return cast(xp, y, out.dtype)

        return run

    return maker


def _reductions(xp: Namespace) -> dict[Op, Maker]:
    def make(fn: Fn, how: Callable[..., Maker] = wide) -> Maker:
        return how(xp, lambda *xs, **attrs: fn(xp, *xs, **attrs))

    def std(xp: Namespace, x: Value, **attrs: Any) -> Value:
        return xp.sqrt(_var(xp, x, **attrs))

    return {
        ops.var: make(_var, deep),
        ops.std: make(std, deep),
        ops.softmax: make(_softmax),
        ops.log_softmax: make(_log_softmax),
        ops.layer_norm: make(_layer_norm, deep),
        ops.rms_norm: _rms_norm(xp),
        ops.cumulative_sum: _running(xp, xp.cumsum, 0),
        ops.cumulative_prod: _running(xp, xp.cumprod, 1),
    }


# ---- several rows as one call


def fused(xp: Namespace, rows: dict[Op, Maker]) -> Maker:
    """The steps of a body, one after another, by the makers of their rows."""

    def maker(out: Any, body: Fragment) -> Fn:
        steps = [(s.inputs, _step(xp, s, rows)) for s in body.steps]

        def run(*xs: Value) -> Any:
            values: list[Any] = list(xs)
            for inputs, fn in steps:
                values.append(fn(*(None if i is None else values[i] for i in inputs)))
            results = tuple(values[v] for v in body.outputs)
            return results[0] if isinstance(out, Spec) else results

        return run

    return maker


def _step(xp: Namespace, step: Step, rows: dict[Op, Maker]) -> Fn:
    attrs, spec = dict(step.attrs), step.spec
    if step.op is ops.const:
        return lambda: xp.array(number(attrs["value"], spec.dtype))
    if step.op is ops.item:
        return lambda x: x[attrs["index"]]
    if step.op.kind is Kind.VIEW:
        return lambda x: xp.reshape(x, spec.shape)  # a fragment only ever adds or drops axes of size 1
    return rows[step.op](spec, **attrs)


def makers(xp: Namespace) -> dict[Op, Maker]:
    """A maker for each row that is more than one function of a library; `fused` is for the whole table."""
    rows = _moves(xp) | _sources(xp) | _reductions(xp)
    rows |= elements_random.makers(xp) | elements_quantized.makers(xp)
    rows |= elements_attention.makers(xp) | elements_mixers.makers(xp)
    rows[ops.astype] = lambda out, dtype, copy: lambda x: cast(xp, x, out.dtype)
    return rows

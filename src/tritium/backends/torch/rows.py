"""The function of torch that carries out each op. What takes more than a few lines is in `elements`, over torch's namespace.

A kernel is a maker: maker(out, **attrs) gives a function of torch tensors. What it gives is new memory, never that of
an operand, since results may be written in place later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tritium import dtype as dt, ops
from tritium.backends import Kernel
from tritium.backends.reference import kernels as reference
from tritium.backends.torch import (
    attention as torch_attention,
    products as torch_products,
    unsigned as torch_unsigned,
)
from tritium.backends.torch.maps import Fn, Maker, copied, maps, same, wide
from tritium.backends.torch.space import HALF, TWINS, UNSIGNED, Space, Value, signed, write
from tritium.backends.values import elements, mixers as elements_mixers
from tritium.backends.values.namespace import Bound, Fitted
from tritium.dtype import DType
from tritium.errors import BoundsError
from tritium.layout import Layout
from tritium.op import Op, Spec, outputs

# ---- along axes


def along(fn: Fn, *, everything: tuple[int, ...] | None = None, **more: Any) -> Maker:
    """fn(x, dim, keepdim) as a reduction; `everything` is what it takes for all axes. No axes: each element alone."""

    def make(out: Spec, axis: Any = None, keepdims: bool = False) -> Fn:
        if axis == ():
            return lambda x: fn(x.unsqueeze(-1), (-1,), False, **more)
        dims = everything if axis is None else axis if isinstance(axis, tuple) else (axis,)
        return Bound(fn, (dims, keepdims), more)

    return make


def _total(fn: Fn, truth: Fn) -> Maker:
    """sum and prod, whose result may have a dtype of its own; of bools they are any and all."""

    def make(out: Spec, axis: Any = None, dtype: DType | None = None, keepdims: bool = False) -> Fn:
        maker = along(truth) if out.dtype is dt.bool_ else along(fn, dtype=TWINS[out.dtype])
        return maker(out, axis, keepdims)

    return make


def _prod(space: Space) -> Fn:
    def prod(x: Value, dim: tuple[int, ...] | None, keepdim: bool, dtype: torch.dtype) -> Value:
        x = x.to(space.widest if dtype.is_floating_point else dtype)
        if not x.ndim:
            return torch.prod(x).to(dtype)
        axes = range(x.ndim) if dim is None else (a % x.ndim for a in dim)
        for axis in sorted(axes, reverse=True):
            x = torch.prod(x, axis, keepdim=keepdim, dtype=x.dtype)
        return x.to(dtype)

    return prod


def _var(x: Value, dim: tuple[int, ...] | None, keepdim: bool, correction: float) -> Value:
    """Two passes, as the reference: torch's one pass loses digits where the mean is far from 0."""
    squares = torch.square(x - torch.mean(x, dim=dim, keepdim=True))
    count = math.prod(x.shape[d] for d in (range(x.ndim) if dim is None else dim))
    return torch.sum(squares, dim=dim, keepdim=keepdim) / max(count - correction, 0)


def _spread(space: Space, last: Fn | None = None) -> Maker:
    def make(out: Spec, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Fn:
        inner, to = along(_var, correction=correction)(out, axis, keepdims), space.twin(out.dtype)

        def run(x: Value) -> Value:
            variance = inner(x.to(space.widest))
            return (variance if last is None else last(variance)).to(to)

        return run

    return make


def _all(x: Value, dim: tuple[int, ...] | None, keepdim: bool) -> Value:
    return torch.all(x != 0, dim=dim, keepdim=keepdim)


def _any(x: Value, dim: tuple[int, ...] | None, keepdim: bool) -> Value:
    return torch.any(x != 0, dim=dim, keepdim=keepdim)


def _count(x: Value, dim: tuple[int, ...] | None, keepdim: bool) -> Value:
    return torch.sum(x != 0, dim=dim, keepdim=keepdim, dtype=torch.int64)


def _place(fn: Fn) -> Maker:
    def make(out: Spec, axis: int | None, keepdims: bool) -> Fn:
        if axis is None and keepdims:
            return lambda x: fn(x).reshape(out.shape)
        return fn if axis is None else Bound(fn, (axis, keepdims))

    return make


def _running(space: Space, fn: Fn, first: int) -> Maker:
    def make(out: Spec, axis: int | None, dtype: DType | None, include_initial: bool) -> Fn:
        t = out.dtype
        to = TWINS[t]
        inner = space.widest if t.is_float else torch.int64 if t is dt.bool_ else to

        def run(x: Value) -> Value:
            y = fn(x, axis or 0, dtype=inner)
            y = y != 0 if t is dt.bool_ else y.to(to)
            if not include_initial:
                return y
            shape = list(x.shape)
            shape[axis or 0] = 1
            return torch.cat((torch.full(shape, first, dtype=to, device=x.device), y), axis or 0)

        return run

    return make


def _softmax(fn: Fn) -> Maker:
    return lambda out, axis: Bound(fn, (axis,))


def _layer_norm(space: Space) -> Maker:
    def make(out: Spec, eps: float) -> Fn:
        to = space.twin(out.dtype)

        def run(x: Value, weight: Value | None, bias: Value | None) -> Value:
            y = x.to(space.widest)
            y = y - torch.mean(y, dim=-1, keepdim=True)
            y = y / torch.sqrt(torch.mean(torch.square(y), dim=-1, keepdim=True) + eps)
            y = y if weight is None else y * weight
            return (y if bias is None else y + bias).to(to)

        return run

    return make


def _rms_norm(space: Space) -> Maker:
    """Not torch's own, whose last bits depend on its order of adding: as the reference does it."""

    def make(out: Spec, eps: float) -> Fn:
        def run(x: Value, weight: Value | None) -> Value:
            squares = torch.mean(torch.square(x.to(space.widest)), -1, keepdim=True)
            y = x * torch.rsqrt(squares + eps).to(x.dtype)
            return y if weight is None else y * weight

        return run

    return make


def _reductions(space: Space) -> dict[Op, Maker]:
    return {
        ops.sum: wide(_total(torch.sum, _any)),
        ops.prod_: wide(_total(_prod(space), _all)),
        ops.mean: wide(along(torch.mean)),
        ops.max: along(torch.amax, everything=()),
        ops.min: along(torch.amin, everything=()),
        ops.all: along(_all),
        ops.any: along(_any),
        ops.count_nonzero: along(_count),
        ops.var: _spread(space),
        ops.std: _spread(space, torch.sqrt),
        ops.argmax: _place(torch.argmax),
        ops.argmin: _place(torch.argmin),
        ops.cumulative_sum: wide(_running(space, torch.cumsum, 0)),
        ops.cumulative_prod: wide(_running(space, torch.cumprod, 1)),
        ops.softmax: wide(_softmax(torch.softmax)),
        ops.log_softmax: wide(_softmax(torch.log_softmax)),
        ops.layer_norm: _layer_norm(space),
        ops.rms_norm: wide(_rms_norm(space)),
    }


# ---- moving, and sources


def _concat(out: Spec, axis: int | None) -> Fn:
    if axis is None:
        return lambda *xs: torch.cat([x.reshape(-1) for x in xs])
    return Bound(torch.cat, (axis,), together=True)


def _roll(out: Spec, shift: Any, axis: Any) -> Fn:
    if axis is None:
        whole = shift if isinstance(shift, int) else sum(shift)
        return lambda x: torch.roll(x, whole)
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    return lambda x: torch.roll(x, shifts, axes) if axes else x.clone()


def _sort(out: Spec, axis: int, descending: bool, stable: bool) -> Fn:
    return lambda x: torch.sort(x, dim=axis, descending=descending, stable=True)[0]


def _argsort(out: Spec, axis: int, descending: bool, stable: bool) -> Fn:
    return lambda x: torch.sort(x, dim=axis, descending=descending, stable=True)[1]


def _topk(out: tuple[Spec, Spec], k: int, axis: int, largest: bool, sorted: bool) -> Fn:
    """torch.topk leaves the order of equal elements open."""

    def fn(x: Any) -> tuple[Any, Any]:
        values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
        return values.narrow(axis, 0, k), indices.narrow(axis, 0, k)

    return fn


def _sources(space: Space) -> dict[Op, Maker]:
    def empty(out: Spec, shape: Any, dtype: DType) -> Fn:
        return lambda: torch.empty(out.shape, dtype=space.twin(out.dtype), device=space.device)

    def full(out: Spec, shape: Any, fill_value: Any, dtype: DType) -> Fn:
        return lambda: torch.full(out.shape, fill_value, dtype=space.twin(out.dtype), device=space.device)

    return {ops.empty: empty, ops.full: full}


def _moves() -> dict[Op, Maker]:
    return {
        ops.concat: _concat,
        ops.stack: lambda out, axis: Bound(torch.stack, (axis,), together=True),
        ops.roll: _roll,
        ops.tril: lambda out, k: lambda x: torch.tril(x, k),
        ops.triu: lambda out, k: lambda x: torch.triu(x, k),
        ops.sort: _sort,
        ops.argsort: _argsort,
        ops.topk: _topk,
    }


def _taken(out: Spec, along: int, what: str) -> Callable[..., Fn]:
    """Return a function that chooses how to take along an axis. The host reads indices at once here: torch's own function
    refuses those outside, and negative ones, which are looked at then."""

    def plain(x: Value, indices: Value) -> Value:
        try:
            return torch.index_select(x, along, indices)
        except (IndexError, RuntimeError):
            return checked(x, indices)

    def shaped(x: Value, indices: Value) -> Value:
        return plain(x, indices.reshape(-1)).reshape(out.shape)

    def checked(x: Value, indices: Value) -> Value:
        if not indices.numel():
            return x.new_empty(out.shape)
        positions, size = indices.reshape(-1).to(torch.int64), x.shape[along]
        low, high = (int(n) for n in torch.aminmax(positions))
        if low < -size or high >= size:
            raise BoundsError(f"{what}: an index is outside an axis of size {size}.")
        return torch.index_select(
            x, along, positions if low >= 0 else torch.where(positions < 0, positions + size, positions)
        ).reshape(out.shape)

    def choose(x: Spec, indices: Spec) -> Fn:
        if not out.size or indices.dtype not in (dt.i32, dt.i64):
            return checked
        return plain if indices.ndim == 1 else shaped

    return choose


def _take(space: Space) -> Maker:
    return lambda out, axis: Fitted(space, _taken(out, axis or 0, "take"))


def _gather(space: Space, general: Maker) -> Maker:
    """One tensor of indices for one axis takes; others come from `elements`."""

    def make(out: Spec, key: tuple[Any, ...]) -> Fn:
        def choose(x: Spec, *indices: Spec) -> Fn:
            axis = elements.one_axis(x.shape, key)
            return general(out, key=key) if axis is None else _taken(out, axis, "index")(x, *indices)

        return Fitted(space, choose)

    return make


def _update(out: Spec, layout: Layout) -> Fn:
    def run(x: Value, value: Value) -> Value:
        whole = x.clone(memory_format=torch.contiguous_format)
        return write(whole, layout, value.expand(layout.shape)) if 0 not in layout.shape else whole

    return run


# ---- rows whose result is as large as the values say


def _nonzero(x: Value) -> tuple[Value, ...]:
    return tuple(i.clone(memory_format=torch.contiguous_format) for i in torch.nonzero(x, as_tuple=True))


DYNAMIC: dict[Op, Fn] = {
    ops.nonzero: lambda x: _nonzero(signed(x) if x.dtype in UNSIGNED else x),
    ops.masked: lambda x, mask: x[mask] if mask.numel() else x.new_empty((0, *x.shape[mask.ndim :])),
}


# ---- all of them

_MAY_GIVE_BACK = (ops.scatter, ops.put, ops.repack, ops.update_cache)  # an operand, where there is nothing to do
_IN_DOUBLE = (
    ops.random_normal,
    ops.quantize_ternary,
    ops.quantize_int8,
    ops.quantize_int4,
)  # rows that need f64 whatever their dtypes


def _memory(x: Any) -> int:
    return x.untyped_storage().data_ptr() if isinstance(x, torch.Tensor) else x.data.untyped_storage().data_ptr()


def apart(maker: Maker) -> Maker:
    """Results in memory of their own: copied where it is that of an operand, or of another result."""

    def make(out: Any, **attrs: Any) -> Fn:
        fn = maker(out, **attrs)

        def run(*xs: Any) -> Any:
            outcome = fn(*xs)
            addresses = {_memory(x) for x in xs if x is not None}
            results = []
            for f in outcome if not isinstance(out, Spec) else (outcome,):
                results.append(copied(f) if _memory(f) in addresses else f)
                addresses.add(_memory(results[-1]))
            return results[0] if isinstance(out, Spec) else tuple(results)

        return run

    return make


def _elsewhere(maker: Maker, space: Space) -> Maker:
    """A row made over the CPU's namespace, for a device without f64: there and back."""

    def make(out: Any, **attrs: Any) -> Fn:
        fn = maker(out, **attrs)
        for spec in outputs(out):
            space.twin(spec.dtype)

        def back(x: Any) -> Any:
            return x.to(space.device) if isinstance(x, torch.Tensor) else x._replace(data=x.data.to(space.device))

        def run(*xs: Any) -> Any:
            result = fn(*(x.cpu() for x in xs))
            return back(result) if isinstance(out, Spec) else tuple(map(back, result))

        return run

    return make


def makers(space: Space) -> dict[Op, Maker]:
    """A maker for every row that torch carries out."""
    rows = elements.makers(space)
    for row in (*_MAY_GIVE_BACK, *elements_mixers.makers(space)):
        rows[row] = apart(rows[row])
    if space.on_host:
        rows |= {
            ops.attention: torch_attention.attention,
            ops.update_cache: torch_attention.update_cache,
            ops.take: _take(space),
            ops.gather: _gather(space, rows[ops.gather]),
        }
        host = (ops.factorize, ops.transform, ops.update_quantized_cache, ops.quantized_attention, ops.bounded_argmax)
        rows |= {row: _by_reference(row) for row in host}
    rows[ops.attention] = _steadily(space, rows[ops.attention])
    if not space.has_f64:
        there = elements.makers(Space(torch.device("cpu"), space.doubt))
        rows |= {row: _elsewhere(there[row], space) for row in _IN_DOUBLE}
    rows |= maps(space) | _reductions(space) | _moves() | _sources(space) | torch_products.makers(space)
    rows[ops.matmul] = wide(rows[ops.matmul])
    rows[ops.update] = _update
    rows |= {ops.real: same(copied), ops.imag: same(torch.zeros_like), ops.conj: same(copied)}  # of real numbers
    rows[ops.fused] = apart(elements.fused(space, rows))
    return rows


def _by_reference(row: Op) -> Maker:
    """A row that the reference computes on the memory of torch's CPU: its bits, and NumPy's speed."""
    kernel = reference.KERNELS[row]

    def make(out: Any, **attrs: Any) -> Fn:
        specs, several = outputs(out), not isinstance(out, Spec)

        def run(*xs: Value) -> Any:
            arrays = [(x.float() if x.dtype in HALF else x).numpy() for x in xs]
            results = tuple(
                np.empty(s.shape, (dt.f32 if s.dtype in (dt.f16, dt.bf16) else s.dtype).numpy) for s in specs
            )
            kernel(*arrays, out=results if several else results[0], **attrs)
            values = tuple(torch.from_numpy(r).to(TWINS[s.dtype]) for r, s in zip(results, specs, strict=True))
            return values if several else values[0]

        return run

    return make


def _steadily(space: Space, maker: Maker) -> Maker:
    return lambda out, **attrs: torch_products.steady(space, maker(out, **attrs))


def kernels(space: Space) -> dict[Op, list[Kernel]]:
    """The kernels of every row, best first."""
    return {row: torch_unsigned.kernels(row, maker) for row, maker in makers(space).items()}

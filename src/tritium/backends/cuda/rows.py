"""The kernels of all ops on a GPU: Tritium's where Triton is installed, torch's for the others.

A check of values is left to `doubt`, which waits for the device, unless a program is being captured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from tritium import dtype as dt, ops
from tritium.backends import Kernel
from tritium.backends.cuda.capability import HOPPER
from tritium.backends.cuda.experts import products as cuda_experts
from tritium.backends.cuda.fused import kernel as cuda_fused
from tritium.backends.cuda.fused.code import FOLDS
from tritium.backends.cuda.fused.form import MANY
from tritium.backends.cuda.gpu import gpu
from tritium.backends.cuda.graph import in_own_graph
from tritium.backends.cuda.linear import products as cuda_products
from tritium.backends.reference.attention import factor_of, outside
from tritium.backends.reference.packed import Packed
from tritium.backends.torch import unsigned as torch_unsigned
from tritium.backends.torch.products import steady
from tritium.backends.torch.space import Space, Value
from tritium.backends.values.device import HeadNorms
from tritium.backends.values.elements import one_axis
from tritium.backends.values.mixers import check_turns
from tritium.backends.values.packed import meaningless
from tritium.errors import QuantError
from tritium.fragment import Fragment
from tritium.layout import Layout, axes_of, axis_of, reshape
from tritium.op import Op, Spec

Fn = Callable[..., Any]


def _module(name: str) -> Any:
    """Return a module with kernels, which imports Triton."""
    return import_module(f"tritium.backends.cuda.{name}")


# ---- attention


def _check_places(space: Any, places: Any, cache: Value, tokens: int, what: str) -> None:
    """Raise, now or after a program, where a sequence is outside its cache; the same places are checked once."""
    caches = _module("attention.cache")
    slots, capacity, block = caches.room(cache, places)
    key = (slots, capacity, tokens)
    now = space.tracing()
    seen, checked = getattr(places, "checked", (None, None))
    if now is not None and seen is now and checked == key:
        return
    space.doubt(caches.outside(cache, places, tokens), outside(what, *key, block))
    if now is not None:
        places.checked = (now, key)


def write_places(space: Space, cache: Value, values: Value, places: Value) -> None:
    """Run `update_cache` on the cache in place."""
    _check_places(space, places, cache, values.shape[1], "update_cache")
    _module("attention.cache").write(cache, values, places)


def _update_cache(space: Space) -> Fn:
    def run(cache: Value, values: Value, places: Value) -> Value:
        copy = cache.clone(memory_format=torch.contiguous_format)
        write_places(space, copy, values, places)
        return copy

    return lambda out: run


def _attention(space: Space) -> Fn:
    attend = _module("attention.attend").attend

    def maker(out: Spec, scale: float | None, window: int | None) -> Fn:
        factor = factor_of(out.shape[-1], scale)

        def run(q: Value, k: Value, v: Value, places: Value | None) -> Value:
            if places is not None:
                _check_places(space, places, k, q.shape[1], "attention")
            result: Value = attend(q, k, v, places, factor, window)
            return result

        return run

    return maker


MOST_NEW = 64  # sequences whose new tokens one launch takes: each looks at the places of all


def takes_new(space: Space, x: Spec, cache: Spec, places: Spec, interleaved: bool) -> bool:
    """Return True if one launch can run `rope`, `update_cache` and `attention` of new tokens."""
    (batch, _, every, size), (slots, both, capacity, _) = x.shape, cache.shape
    block = capacity if places.shape[1] > 3 else 0
    kinds = x.dtype is dt.f32 and cache.dtype in (dt.f16, dt.bf16) and not interleaved
    there = 0 < batch <= MOST_NEW and slots > 0 and capacity > 0
    return (
        kinds
        and there
        and bool(_module("attention.attend").decodes(space.device, size, every - both, both // 2, block))
    )


def attend_new(
    space: Space, x: Value, cos: Value, sin: Value, cache: Value, places: Value, scale: float | None, settled: bool,
    norms: HeadNorms[Value] | None = None,
) -> Value:  # fmt: skip
    """Run these three ops as one launch, on the cache in place, after one of the norms if there are any."""
    _check_places(space, places, cache, x.shape[1], "update_cache")
    if norms is not None:
        x = _module("attention.cache").norm(x, norms, cache.shape[1] // 2)
    run = steady(space, _module("attention.attend").attend_new)
    result: Value = run(x, cos, sin, cache, places, factor_of(x.shape[-1], scale), settled)
    return result


def _rope(space: Space, otherwise: Fn) -> Fn:
    def maker(out: Spec, interleaved: bool, heads: int | None, size: int | None) -> Fn:
        if len(out.shape) != 4:
            return otherwise(out, interleaved=interleaved, heads=heads, size=size)
        turned, to = _module("attention.cache").rope, space.twin(out.dtype)
        return lambda x, cos, sin: turned(x, cos, sin, to, interleaved, heads, size)

    return maker


# ---- linear attention


def _gated_delta_rule(space: Space) -> Fn:
    def run(
        state: Value, q: Value, k: Value, v: Value, decay: Value, beta: Value, places: Value
    ) -> tuple[Value, Value]:
        check_turns(space, places, state.shape[0], v.shape[1], "gated_delta_rule")
        now = state.clone(memory_format=torch.contiguous_format)
        return now, _module("delta").delta_rule(now, q, k, v, decay, beta, places)

    return lambda out: run


# ---- weights of half floats


def _linear(space: Space, otherwise: Fn) -> Fn:
    def maker(out: Spec) -> Fn:
        module, to, library = _module("head.halves"), space.twin(out.dtype), otherwise(out)

        def run(x: Value, w: Value, bias: Value | None) -> Value:
            result: Value = module.linear(x, w, bias, to) if module.takes(x, w) else library(x, w, bias)
            return result

        return run

    return maker


def _accepts_bounded(specs: Any, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
    """Return True if a head of half floats and its int8 copy are contiguous, and their rows fit a CTA."""
    table, copy = specs[1:3]
    whole = all(layout is None or layout.is_contiguous for layout in layouts[1:])
    kinds = table.dtype in (dt.f16, dt.bf16) and copy.dtype is dt.i8
    return kinds and whole and table.shape[1] <= _module("head.certified").LONGEST


def _bounded(out: tuple[Spec, ...], multiplier: float) -> Fn:
    module = _module("head.certified")

    def run(x: Value, table: Value, *copy: Value) -> Any:
        return module.largest(x, table, module.Copy(*copy), multiplier)

    return run


# ---- rows of a table


def _takes(x: Spec, indices: Spec, axis: int | None, layouts: tuple[Layout | None, ...]) -> bool:
    """Return True if whole contiguous rows are taken, by indices of a dtype that the kernel reads."""
    row_by_row = axis == 0 and (layouts[0] is None or layouts[0].is_contiguous)
    return row_by_row and not x.dtype.is_packed and indices.dtype in (dt.i32, dt.i64)


def _accepts_take(specs: Any, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
    return _takes(specs[0], specs[1], axis_of(attrs["axis"] or 0, specs[0].ndim, "take"), layouts)


def _accepts_gather(specs: Any, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
    return len(specs) == 2 and _takes(specs[0], specs[1], one_axis(specs[0].shape, attrs["key"]), layouts)


def _taken(space: Space, what: str) -> Fn:
    take = _module("take").take

    def run(x: Value, indices: Value) -> Value:
        rows: Value
        rows, bad = take(x, indices)
        if bad.numel():
            space.doubt(bad, f"{what}: an index is outside an axis of size {x.shape[0]}.")
        return rows

    return lambda out, **attrs: run


def _accepts_table(specs: Any, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
    """Return True if the kernel unpacks the table and reads the indices as they are."""
    return bool(_module("table").reads(specs[0].dtype)) and specs[2].dtype in (dt.i32, dt.i64)


def _rows_of_table(space: Space) -> Fn:
    take = _module("table").take_rows

    def maker(out: Spec, group: int) -> Fn:
        def run(w: Any, scale: Value, indices: Value) -> Value:
            data, kind = (w.data, w.dtype) if isinstance(w, Packed) else (w, dt.i8)
            rows: Value
            rows, bad, damaged = take(data, kind, w.shape, scale, indices, group)
            if bad.numel():
                space.doubt(bad, f"take_rows: an index is outside an axis of size {w.shape[0]}.")
            if kind.is_ternary and damaged.numel():
                space.doubt(damaged, meaningless(kind), QuantError)
            return rows

        return run

    return maker


# ---- the place of the largest

_LONG = range(1024, 1 << 31)  # rows worth several CTAs, with indices that the kernel's keys can hold


def _row_size(x: Spec, axis: int | None) -> int:
    """Return the number of elements reduced together, or 0 where they are not those of the last axis."""
    if axis is None:
        return x.size
    return x.shape[-1] if axis_of(axis, x.ndim, "argmax") == x.ndim - 1 else 0


def _accepts_argmax(specs: Any, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
    """Return True if rows are long and have one stride."""
    x, size = specs[0], _row_size(specs[0], attrs["axis"])
    if x.dtype not in (dt.f32, dt.f16, dt.bf16) or size not in _LONG or not x.size:
        return False
    if layouts[0] is None:
        return True
    rows = reshape(layouts[0], (-1, size))
    return rows is not None and rows.strides[1] == 1


def _argmax(out: Spec, axis: int | None, keepdims: bool) -> Fn:
    argmax = _module("head.argmax").argmax
    return lambda x: argmax(x.reshape(-1) if axis is None else x).view(out.shape)


# ---- the choice of experts

_SCORES, _CHOICES = 4096, 64  # elements of a row, and of them chosen, that the kernels take


def _last(x: Spec, axis: int, what: str) -> bool:
    return x.ndim > 0 and x.size > 0 and axis_of(axis, x.ndim, what) == x.ndim - 1


def _accepts_topk(specs: Any, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
    """Return True if few of the elements of short rows are chosen, the largest."""
    x = specs[0]
    fits = x.dtype in (dt.f32, dt.f16, dt.bf16) and 0 < attrs["k"] <= _CHOICES and bool(attrs["largest"])
    return fits and _last(x, attrs["axis"], "topk") and x.shape[-1] <= _SCORES


def _accepts_sort(specs: Any, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
    """Return True if short rows of integers are sorted."""
    x = specs[0]
    fits = x.dtype in (dt.i32, dt.i64) and not attrs["descending"]
    return fits and _last(x, attrs["axis"], "sort") and x.shape[-1] <= _CHOICES


def _accepts_along(specs: Any, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
    """Return True if elements are taken along the last axis, by indices that have the other axes too."""
    x, indices = specs
    kinds = not x.dtype.is_packed and not x.dtype.is_complex and indices.dtype in (dt.i32, dt.i64)
    return (
        kinds and indices.size > 0 and x.shape[:-1] == indices.shape[:-1] and _last(x, attrs["axis"], "take_along_axis")
    )


def _topk(out: tuple[Spec, Spec], k: int, axis: int, largest: bool, sorted: bool) -> Fn:
    return lambda x: _module("experts.routing").topk(x, k)


def _sort(out: Spec, axis: int, descending: bool, stable: bool) -> Fn:
    result: Fn = _module("experts.routing").sort
    return result


def _along(space: Space) -> Fn:
    def run(x: Value, indices: Value) -> Value:
        values: Value
        values, bad = _module("experts.routing").along(x, indices)
        space.doubt(bad, f"take_along_axis: an index is outside an axis of size {x.shape[-1]}.")
        return values

    return lambda out, axis: run


# ---- folds of rows

_LARGE = 1 << 20  # elements, from which a Triton kernel is faster than torch's in spite of its longer launch
_FOLDED = 1 << 24  # the same of folds, which torch launches sooner


def _accepts_fold(specs: Any, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]) -> bool:
    """Return True if many elements are reduced, along rows, and there are many rows."""
    x = specs[0]
    if x.size < _FOLDED or not x.dtype.is_float or x.size < MANY * x.shape[-1] or attrs["axis"] is None:
        return False
    return axes_of(attrs["axis"], x.ndim, "a fold") == (x.ndim - 1,)


def _folded(row: Op, torch_kernel: Kernel) -> Fn:
    """Return a maker that uses a Triton kernel where rows are contiguous.

    The value itself is checked: a backend caches one choice of a shape for all non-contiguous layouts, and a program
    may be called with any layout.
    """
    ours: Fn = cuda_fused.single(row, torch_kernel.fn)

    def maker(out: Spec, **attrs: Any) -> Fn:
        library, rows = torch_kernel.fn(out, **attrs), ours(out, **attrs)
        return lambda x: (rows if x.stride(-1) == 1 or x.shape[-1] == 1 else library)(x)

    return maker


# ---- all of them

_AS_EXACT = (ops.softmax, ops.log_softmax, ops.layer_norm)  # rows that torch computes as well


def _single(row: Op, torch_kernel: Kernel) -> Fn:
    ours: Fn = cuda_fused.single(row, torch_kernel.fn)

    def maker(out: Any, **attrs: Any) -> Fn:
        small = row in _AS_EXACT and out.size < _LARGE
        return (torch_kernel.fn if small else ours)(out, **attrs)

    return maker


def _cast(torch_kernel: Kernel) -> Fn:
    """Return a maker of casts from half floats to f32: by a Triton kernel, which starts early, in a program only.

    Outside a program the host would take longer to launch it.
    """
    ours: Fn = cuda_fused.single(ops.astype, torch_kernel.fn)

    def maker(out: Spec, **attrs: Any) -> Fn:
        library, early = torch_kernel.fn(out, **attrs), ours(out, **attrs)
        if out.dtype is not dt.f32:
            return library

        def run(x: Value) -> Value:
            halves = x.dtype in (torch.float16, torch.bfloat16)
            result: Value = (early if halves and in_own_graph() else library)(x)
            return result

        return run

    return maker


def refuses(body: Fragment) -> str | None:
    """Return the reason why a fusion group would not gain as one call, or None if it gains."""
    return (cuda_products if cuda_products.has_product(body) else cuda_fused).refuses(body)


def _fused(space: Space) -> Fn:
    def maker(out: Any, body: Fragment) -> Fn:
        return (
            cuda_products.fused_product(space, body) if cuda_products.has_product(body) else cuda_fused.maker(out, body)
        )

    return maker


def _fusible(specs: Any, attrs: Mapping[str, Any], layouts: Any) -> bool:
    return refuses(attrs["body"]) is None


def kernels(space: Space, torch_kernels: Mapping[Op, Sequence[Kernel]], has_triton: bool) -> dict[Op, list[Kernel]]:
    """Return the kernels of every op, best first: Tritium's before torch's."""
    table = {row: list(listed) for row, listed in torch_kernels.items()}
    table[ops.matmul] = torch_unsigned.kernels(ops.matmul, cuda_products.matmul(space, table[ops.matmul][0].fn))
    if not has_triton:
        return table
    ours: dict[Op, Fn] = {
        **{row: make(space) for row, make in (cuda_products.ROWS | cuda_experts.ROWS).items()},
        ops.attention: _attention(space),
        ops.update_cache: _update_cache(space),
        ops.rope: _rope(space, table[ops.rope][0].fn),
        ops.linear: _linear(space, table[ops.linear][0].fn),
        ops.gated_delta_rule: _gated_delta_rule(space),
    }
    for row, maker in ours.items():
        table[row] = [Kernel("triton", lambda out, maker=maker, **attrs: steady(space, maker(out, **attrs)))]
    table[ops.fused] = [Kernel("triton", _fused(space), _fusible), *table[ops.fused]]
    table[ops.take] = [Kernel("triton", _taken(space, "take"), _accepts_take), *table[ops.take]]
    table[ops.gather] = [Kernel("triton", _taken(space, "index"), _accepts_gather), *table[ops.gather]]
    table[ops.take_rows] = [Kernel("triton", _rows_of_table(space), _accepts_table), *table[ops.take_rows]]
    table[ops.argmax] = [Kernel("triton", _argmax, _accepts_argmax), *table[ops.argmax]]
    table[ops.bounded_argmax] = [Kernel("triton", _bounded, _accepts_bounded)]
    table[ops.topk] = [Kernel("triton", _topk, _accepts_topk), *table[ops.topk]]
    table[ops.sort] = [Kernel("triton", _sort, _accepts_sort), *table[ops.sort]]
    table[ops.take_along_axis] = [Kernel("triton", _along(space), _accepts_along), *table[ops.take_along_axis]]
    table[ops.astype] = [table[ops.astype][0]._replace(fn=_cast(table[ops.astype][0])), *table[ops.astype][1:]]
    for row in FOLDS:
        table[row] = [Kernel("triton", _folded(row, table[row][0]), _accepts_fold), *table[row]]
    for row in cuda_fused.SINGLE:
        table[row] = [table[row][0]._replace(name="triton", fn=_single(row, table[row][0])), *table[row][1:]]
    return table


def product_words(place: torch.device) -> str:
    """Return a text that says which kernels the products of this GPU use."""
    device = gpu(place)
    own = device.has_gluon and device.capability == HOPPER
    return (
        "kernels for Hopper" if own else "kernels for any GPU (those for Hopper need capability 9.0 and Triton's Gluon)"
    )

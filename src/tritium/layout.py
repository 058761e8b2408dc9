"""Layouts: shape, strides and offset of a tensor in a flat storage, and the views that need no copy.

Strides and offsets count elements.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from math import prod
from typing import Any, NamedTuple

from tritium.errors import BoundsError, ShapeError, TraceError, ViewError, shown

Shape = tuple[int, ...]

MAX_ELEMENTS = 2**53  # more than any memory holds; native code counts elements and bytes of a layout in 64 bits
MAX_SIZES = 1024  # of a shape that is read from an iterable without a length


class Layout(NamedTuple):
    """A layout: element (i, j, …) is at offset + i * strides[0] + j * strides[1] + …"""

    shape: Shape
    strides: Shape
    offset: int = 0

    @property
    def is_contiguous(self) -> bool:
        return is_contiguous(self.shape, self.strides)


def contiguous_strides(shape: Shape) -> Shape:
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * max(shape[d + 1], 1)
    return tuple(strides)


def in_tiles(shape: Shape, rows: int, block: int) -> Shape:
    """Return the shape padded to whole tiles of `rows` x `block` in its last two axes."""
    if rows == block == 1:
        return shape
    *lead, n, k = (1, 1, *shape)[-max(len(shape), 2) :]
    return (*lead, -(-n // rows) * rows, -(-k // block) * block)


@lru_cache(maxsize=4096)
def tiled_strides(shape: Shape, rows: int, block: int) -> Shape:
    """Return contiguous strides of a packed tensor: they count elements, padding included."""
    padded = contiguous_strides(in_tiles(shape, rows, block))
    return padded[len(padded) - len(shape) :]


def contiguous(shape: Shape) -> Layout:
    return Layout(shape, contiguous_strides(shape))


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Return True if a layout is row-major without gaps; dimensions of size 1 do not matter, and empty ones are contiguous."""
    if 0 in shape:
        return True
    expected = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1:
            if s != expected:
                return False
            expected *= n
    return True


def text(shape: tuple[int | None, ...]) -> str:
    return "[" + ",".join("?" if n is None else count_text(n) for n in shape) + "]"


def count_text(n: int) -> str:
    """Return a count as digits, or as the power of 2 below it: Python refuses to write integers of thousands of digits."""
    size = (
        abs(n).bit_length() if type(n) is int else 0
    )  # of other integers, such as a size that varies, the text is short
    return str(n) if size <= 128 else f"{'-' if n < 0 else ''}2**{size - 1}…"


def check_extent(shape: Shape, what: str = "") -> None:
    """Raise unless the strides and the number of elements of a shape can be counted. An axis of size 0 counts as 1: the
    other axes have strides all the same."""
    extent = prod(max(n, 1) for n in shape)
    if extent > MAX_ELEMENTS:
        spanned = "has" if 0 not in shape else "is empty, but its other axes span"
        raise ShapeError(
            f"{what + ': ' if what else ''}the shape {text(shape)} {spanned} {count_text(extent)} elements, more than can "
            f"be addressed; at most {MAX_ELEMENTS} (2**53) are possible. Give smaller sizes or counts."
        )


def axis_of(axis: int, ndim: int, what: str) -> int:
    """Return a non-negative axis, counted from the end when negative."""
    if isinstance(axis, bool):  # a flag in the place of an axis: x.sum(True)
        raise BoundsError(f"{what}: axis must be one integer, given {axis}.")
    try:
        axis = operator.index(axis)
    except TraceError:
        raise
    except Exception:
        raise BoundsError(f"{what}: axis must be one integer, given {shown(axis)}.") from None
    if not -ndim <= axis < ndim:
        raise BoundsError(
            f"{what}: axis {count_text(axis)} does not exist in {ndim} dimension(s); valid are {-ndim} to {ndim - 1}."
        )
    return axis % ndim


def axes_of(axis: int | tuple[int, ...] | None, ndim: int, what: str) -> tuple[int, ...]:
    """Return distinct non-negative axes; None means all of them."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    result = tuple(axis_of(a, ndim, what) for a in axes)
    if len(set(result)) != len(result):
        raise ShapeError(f"{what}: axis {axes} names an axis twice; name each once.")
    return result


def broadcast_shapes(*shapes: Shape, what: str = "broadcast") -> Shape:
    """Return the broadcast shape: aligned at the right, a size of 1 repeats."""
    out: list[int] = []
    for d in range(1, max((len(s) for s in shapes), default=0) + 1):
        size = 1
        for s in shapes:
            n = s[-d] if d <= len(s) else 1
            if n == 1 or n == size:
                continue
            if size != 1:
                both = " and ".join(text(s) for s in shapes)
                raise ShapeError(
                    f"{what}: {both} do not broadcast: axis {-d} has sizes {size} and {n}. "
                    f"Sizes must be equal or 1; reshape one, or add an axis with x[..., None]."
                )
            size = n
        out.append(size)
    return tuple(reversed(out))


# ---- views: a layout in, a layout out


def permute(x: Layout, axes: tuple[int, ...]) -> Layout:
    order = axes_of(axes, len(x.shape), "permute_dims")
    if len(order) != len(x.shape):
        raise ShapeError(f"permute_dims: {axes} names {len(order)} of {len(x.shape)} axes; name every axis once.")
    return Layout(tuple(x.shape[a] for a in order), tuple(x.strides[a] for a in order), x.offset)


def moveaxis(x: Layout, source: int | tuple[int, ...], destination: int | tuple[int, ...]) -> Layout:
    ndim = len(x.shape)
    here, there = axes_of(source, ndim, "moveaxis"), axes_of(destination, ndim, "moveaxis")
    if len(here) != len(there):
        raise ShapeError(f"moveaxis: {len(here)} source axes but {len(there)} destinations; give as many of each.")
    order = [a for a in range(ndim) if a not in here]
    for to, frm in sorted(zip(there, here, strict=True)):
        order.insert(to, frm)
    return permute(x, tuple(order))


def broadcast_to(x: Layout, shape: int | Shape) -> Layout:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if len(shape) < len(x.shape) or broadcast_shapes(x.shape, shape, what="broadcast_to") != shape:
        raise ShapeError(
            f"broadcast_to: {text(x.shape)} does not broadcast to {text(shape)}; sizes must be equal or 1."
        )
    lead = len(shape) - len(x.shape)
    strides = (0,) * lead + tuple(
        0 if n == 1 and m != 1 else s for n, m, s in zip(x.shape, shape[lead:], x.strides, strict=True)
    )
    return Layout(shape, strides, x.offset)


def expand_dims(x: Layout, axis: int | tuple[int, ...]) -> Layout:
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    ndim = len(x.shape) + len(axes)
    new = axes_of(axes, ndim, "expand_dims")
    sizes = iter(zip(x.shape, x.strides, strict=True))
    both = [(1, 0) if d in new else next(sizes) for d in range(ndim)]
    return Layout(tuple(n for n, _ in both), tuple(s for _, s in both), x.offset)


def squeeze(x: Layout, axis: int | tuple[int, ...] | None) -> Layout:
    drop = axes_of(axis, len(x.shape), "squeeze") if axis is not None else [d for d, n in enumerate(x.shape) if n == 1]
    for d in drop:
        if x.shape[d] != 1:
            raise ShapeError(f"squeeze: axis {d} of {text(x.shape)} has size {x.shape[d]}; only axes of size 1 can go.")
    keep = [d for d in range(len(x.shape)) if d not in drop]
    return Layout(tuple(x.shape[d] for d in keep), tuple(x.strides[d] for d in keep), x.offset)


def flip(x: Layout, axis: int | tuple[int, ...] | None) -> Layout:
    turn = axes_of(axis, len(x.shape), "flip")
    if 0 in x.shape:
        return x
    offset = x.offset + sum((x.shape[d] - 1) * x.strides[d] for d in turn)
    return Layout(x.shape, tuple(-s if d in turn else s for d, s in enumerate(x.strides)), offset)


def matrix_transpose(x: Layout) -> Layout:
    ndim = len(x.shape)
    if ndim < 2:
        raise ShapeError(f"matrix_transpose: needs at least 2 dimensions, given {text(x.shape)}; add one with x[None].")
    return permute(x, (*range(ndim - 2), ndim - 1, ndim - 2))


def listed(shape: Any) -> tuple[Any, ...]:
    """Return what a shape lists, or one size as a tuple; more than any tensor has are cut off."""
    if isinstance(shape, (tuple, list)):
        return tuple(shape)
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Iterable) or getattr(shape, "ndim", 1) == 0:
        return (shape,)
    return tuple(islice(shape, MAX_SIZES))


def sizes_of(shape: Any, what: str) -> Shape:
    """Return sizes as a tuple of Python's integers, of any sign."""
    sizes = listed(shape)
    if not all(isinstance(n, int) for n in sizes):
        raise ShapeError(f"{what}: {shown(shape)} is not a shape; give integers, such as (64, 64).")
    return sizes


def infer_shape(old: Shape, new: int | tuple[int, ...], what: str = "reshape") -> Shape:
    """Return the new shape with its one -1 worked out, checked to hold as many elements as the old."""
    shape = sizes_of(new, what)
    if sum(n == -1 for n in shape) > 1 or any(n < -1 for n in shape):
        raise ShapeError(f"{what}: {text(shape)} is not a shape; sizes are 0 or more, and one may be -1.")
    size, known = prod(old), prod(n for n in shape if n != -1)
    if -1 in shape and known and size % known == 0:
        shape = tuple(size // known if n == -1 else n for n in shape)
    if -1 in shape or prod(shape) != size:
        raise ShapeError(f"{what}: {text(old)} has {size} elements, which do not fill {text(shape)}.")
    return shape


def reshape(x: Layout, shape: int | tuple[int, ...]) -> Layout | None:
    """Return the same elements in another shape, or None when they would have to move."""
    new = infer_shape(x.shape, shape)
    if is_contiguous(x.shape, x.strides):
        return Layout(new, contiguous_strides(new), x.offset)
    old = [(n, s) for n, s in zip(x.shape, x.strides, strict=True) if n != 1]
    strides = [0] * len(new)
    i = 0  # first old dimension of the group that new[j:] must match
    j = 0
    while j < len(new):
        if new[j] == 1:
            strides[j] = 1
            j += 1
            continue
        if i == len(old):
            return None
        have, want = old[i][0], new[j]
        last = j + 1
        while have != want:
            if have < want:
                i += 1
                if i == len(old) or old[i - 1][1] != old[i][0] * old[i][1]:
                    return None
                have *= old[i][0]
            else:
                if last == len(new):
                    return None
                want *= new[last]
                last += 1
        stride = old[i][1]
        for d in range(last - 1, j - 1, -1):
            strides[d] = stride
            stride *= new[d]
        i += 1
        j = last
    return Layout(new, tuple(strides), x.offset)


Key = tuple[Any, ...]
AT = "at"  # placeholder in a key for an index tensor


def normal_key(key: Any, shape: Shape) -> Key:
    """Return a basic index as a tuple of int, (start, stop, step) and None: ellipsis filled in, negatives counted."""
    parts = key if isinstance(key, tuple) else (key,)
    if (plain := _plain_key(parts, shape)) is not None:
        return plain
    for p in parts:
        if isinstance(p, bool) or not (
            p is None or p is Ellipsis or isinstance(p, (slice, str)) or hasattr(p, "__index__")
        ):
            raise BoundsError(
                f"{shown(p)} is not an index; use integers, slices, None, ... or tensors of integers or bools."
            )
    if sum(p is Ellipsis for p in parts) > 1:
        raise BoundsError("An index can hold one ellipsis (...) only.")
    used = sum(p is not None and p is not Ellipsis for p in parts)
    if used > len(shape):
        raise BoundsError(f"{used} indices were given for {text(shape)}, which has {len(shape)} dimension(s).")
    if Ellipsis not in parts:
        parts = (*parts, Ellipsis)
    out: list[Any] = []
    d = 0
    for p in parts:
        if p is None:
            out.append(None)
        elif p is Ellipsis:
            for _ in range(len(shape) - used):
                out.append((0, shape[d], 1))
                d += 1
        elif isinstance(p, str):
            out.append(AT)
            d += 1
        elif isinstance(p, slice):
            start, stop, step = _slice_ends(p, shape[d])
            reach = max(shape[d], 1)  # a longer step names no more elements, and its stride may not fit in 64 bits
            out.append((start, stop, max(-reach, min(step, reach))))
            d += 1
        else:
            i = _index_of(p)
            if not -shape[d] <= i < shape[d]:
                raise BoundsError(
                    f"Index {count_text(i)} is outside axis {d} of {text(shape)}, which has size {shape[d]}."
                )
            out.append(i if i >= 0 else i + shape[d])
            d += 1
    return tuple(out)


def _plain_key(parts: Key, shape: Shape) -> Key | None:
    """Return the normal key of integers inside their axes and slices of step 1; None if it has other parts."""
    if len(parts) > len(shape):
        return None
    out: list[Any] = []
    for p, size in zip(parts, shape, strict=False):
        if type(p) is int and -size <= p < size:
            out.append(p if p >= 0 else p + size)
        elif (
            type(p) is slice
            and type(size) is int
            and p.step is None
            and type(p.start) in _ENDS
            and type(p.stop) in _ENDS
        ):
            out.append(p.indices(size))
        else:
            return None
    out += [(0, size, 1) for size in shape[len(parts) :]]
    return tuple(out)


_ENDS = (int, type(None))


def _slice_ends(part: slice, size: int) -> tuple[int, int, int]:
    ends = (part.start, part.stop, part.step)
    if any(map(_varies, (size, *ends))) and all(x is None or type(x) is int or _varies(x) for x in ends):
        return _general_slice_ends(*ends, size)
    try:
        return part.indices(size)
    except TraceError:
        raise
    except Exception as error:
        raise BoundsError(
            f"{shown(part)} is not a slice of integers ({error}); give integers, a step other than 0."
        ) from None


def _general_slice_ends(start: Any, stop: Any, step: Any, size: int) -> tuple[int, int, int]:
    """Return what slice.indices returns, by arithmetic and comparisons alone: sizes that vary note them."""
    step = 1 if step is None else step
    if step == 0:
        raise BoundsError("A slice has the step 0; give a step other than 0.")
    low, high = (0, size) if step > 0 else (-1, size - 1)

    def end(x: Any, default: int) -> int:
        if x is None:
            return default
        return max(x + size, low) if x < 0 else min(x, high)

    return end(start, low if step > 0 else high), end(stop, high if step > 0 else low), step


def _count(start: int, stop: int, step: int) -> int:
    """Return the number of elements of a slice."""
    if type(start) is type(stop) is type(step) is int:
        return len(range(start, stop, step))
    return max(0, -((start - stop) // step) if step > 0 else -((stop - start) // -step))


def _varies(x: Any) -> bool:
    """Return True for a size that varies (`graph.size`): arithmetic keeps it, what is written in C does not."""
    return getattr(type(x), "varies", False) is True


def _index_of(part: Any) -> int:
    if _varies(part):
        index: int = part
        return index
    try:
        return operator.index(part)
    except TraceError:
        raise
    except Exception:
        raise BoundsError(
            f"{shown(part)} is not an index; use integers, slices, None, ... or tensors of integers or bools."
        ) from None


@lru_cache(maxsize=4096)  # loops take the same parts of values of one layout
def basic_index(x: Layout, key: Key) -> Layout:
    """Return the layout of the part that a normal key selects."""
    shape: list[int] = []
    strides: list[int] = []
    offset, d = x.offset, 0
    for p in key:
        if p is None:
            shape.append(1)
            strides.append(0)
            continue
        if isinstance(p, int):
            offset += p * x.strides[d]
        else:
            start, stop, step = p
            n = _count(start, stop, step)
            shape.append(n)
            strides.append(step * x.strides[d])
            offset += start * x.strides[d] if n else 0
        d += 1
    return Layout(tuple(shape), tuple(strides), offset)


def view(x: Layout, shape: int | tuple[int, ...]) -> Layout:
    """Return the layout in another shape, like reshape, but raise where reshape would copy."""
    layout = reshape(x, shape)
    if layout is None:
        raise ViewError(
            f"view: {text(x.shape)} with strides {x.strides} cannot be seen as {text(infer_shape(x.shape, shape))} "
            f"without moving elements; use .reshape(…), which copies, or .contiguous() first."
        )
    return layout

"""The layout of the integers of each packed dtype, in NumPy: the definition that native kernels and file formats are held to.

`Packed` is what the reference kernels see of a packed tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tritium import dtype as dt
from tritium.buffer import Array, host
from tritium.dtype import DType
from tritium.errors import QuantError
from tritium.layout import in_tiles

Arr = np.ndarray[Any, Any]


class Packed(NamedTuple):
    """The bytes of a packed tensor as `buffer.host` shows them, and what they mean."""

    data: Arr
    dtype: DType
    shape: tuple[int, ...]


def seen(a: Array) -> Any:
    """Return what the reference's kernels take for an array: NumPy's, or Packed."""
    return Packed(host(a), a.dtype, a.shape) if a.dtype.is_packed else host(a)


def empty(shape: tuple[int, ...], t: DType) -> Packed:
    """Memory for a packed tensor."""
    lead = max(len(shape) - (2 if t.rows > 1 else 1), 0)
    inner = int(np.prod(in_tiles(shape[lead:], t.rows, t.block))) // (t.rows * t.block) * t.nbytes
    return Packed(np.empty((*shape[:lead], inner), np.uint8), t, shape)


def pack(values: Arr, t: DType) -> Packed:
    """Integers in a packed dtype; a value it cannot hold is an error naming its place."""
    out = empty(values.shape, t)
    encode(values, out)
    return out


def encode(values: Arr, out: Packed) -> None:
    """Write integers into packed memory; rows and columns of padding hold 0."""
    t = out.dtype
    low, high = t.values
    bad = (values < low) | (values > high)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        raise QuantError(
            f"{t} holds {low} to {high}, but element {list(index)} is {values[index]}; quantise the tensor first."
        )
    padded = np.zeros(in_tiles(values.shape, t.rows, t.block), np.int8)
    padded[_inside(values.shape, padded.ndim)] = values
    if t.rows > 1:
        *lead, n, k = padded.shape
        tiles = padded.reshape(*lead, n // t.rows, t.rows, k // t.block, t.block).swapaxes(-3, -2)
        out.data[...] = _TILES[t.name][0](tiles).reshape(out.data.shape)
    else:
        blocks = padded.reshape(*padded.shape[:-1], padded.shape[-1] // t.block, t.block)
        out.data[...] = _ROWS[t.name][0](blocks).reshape(out.data.shape)


def decode(w: Packed) -> Arr:
    """The integers as int8; a code that means nothing is an error naming its element."""
    values = _values(w)
    if w.dtype.is_ternary and (first := _first(values > 1)) >= 0:
        place = [int(i) for i in np.unravel_index(first, w.shape)]
        raise QuantError(
            f"{w.dtype}: the code of element {place} means no weight; the data is damaged or of another layout."
        )
    return values


def first_illegal(w: Packed) -> int:
    """Return the index, counted row by row, of the first code that means nothing; -1: all are legal."""
    return _first(_values(w) > 1) if w.dtype.is_ternary else -1


def _first(bad: Arr) -> int:
    return int(np.flatnonzero(bad)[0]) if bad.any() else -1


def _values(w: Packed) -> Arr:
    """The integers; what is not one of -1, 0, 1 in a ternary dtype comes out larger than 1."""
    t = w.dtype
    padded = in_tiles(w.shape, t.rows, t.block)
    if t.rows > 1:
        *lead, n, k = padded
        data = w.data.reshape(*lead, n // t.rows, k // t.block, t.nbytes)
        tiles = _TILES[t.name][1](data)
        values = tiles.swapaxes(-3, -2).reshape(padded)
    else:
        values = _ROWS[t.name][1](w.data[..., None]).reshape(padded)
    return np.ascontiguousarray(values[_inside(w.shape, len(padded))])


def _inside(shape: tuple[int, ...], ndim: int) -> tuple[Any, ...]:
    """Return the index of the elements in the padded shape, which has at least two axes."""
    return (*(0 for _ in range(ndim - len(shape))), *(slice(0, n) for n in shape))


def _shift(codes: Arr, bits: int) -> Arr:
    """Fields of `bits` bits from the lowest on, along the last axis, joined into bytes."""
    return _joined(codes, [1 << bits * i for i in range(codes.shape[-1])])


def _joined(codes: Arr, places: Sequence[int]) -> Arr:
    """The sum of codes times the worth of their places, along the last axis; modulo 256."""
    out = codes[..., 0].astype(np.uint8) * np.uint8(places[0])
    for i, place in enumerate(places[1:], 1):
        out += codes[..., i].astype(np.uint8) * np.uint8(place)
    return out


def _fields(data: Arr, bits: int) -> Arr:
    """The inverse of `_shift`: bytes [..., 1] become fields along the last axis."""
    return (data >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)


_DIGITS = 3 ** np.arange(5)  # of tern5: the first element counts 1, the last 81


def _tern2_rows(b: Arr) -> Arr:
    return _shift(b + 1, 2)


def _tern2_row_values(data: Arr) -> Arr:
    return _fields(data, 2).astype(np.int8) - 1


def _tern5_rows(b: Arr) -> Arr:
    return _joined(b + 1, (1, 3, 9, 27, 81))


def _tern5_row_values(data: Arr) -> Arr:
    digits = (data.astype(np.int16) // _DIGITS % 3 - 1).astype(np.int8)
    return np.where(data > 242, np.int8(127), digits)


def _i4_rows(b: Arr) -> Arr:
    return _shift(b & 15, 4)


def _i4_row_values(data: Arr) -> Arr:
    return ((_fields(data, 4).astype(np.int8) ^ 8) - 8).astype(np.int8)


_ROWS = {
    "tern2": (_tern2_rows, _tern2_row_values),
    "tern5": (_tern5_rows, _tern5_row_values),
    "i4": (_i4_rows, _i4_row_values),
}

# A tile is `fields` sets of `lanes` rows; each byte holds the same lane and column of every field. Lines of 4 columns
# follow one another: byte [k // 4][lane][k % 4]. So one vector of activations, four columns wide, meets every byte of a
# line, and a product needs no shuffles.


def _to_lines(tiles: Arr, fields: int) -> Arr:
    """[..., rows, block] -> [..., lines, lanes, 4, fields]."""
    *lead, rows, block = tiles.shape
    split = tiles.reshape(*lead, fields, rows // fields, block // 4, 4)
    axis = len(lead)
    return np.moveaxis(split, (axis, axis + 1, axis + 2, axis + 3), (axis + 3, axis + 1, axis, axis + 2))


def _from_lines(fields: Arr, rows: int, block: int) -> Arr:
    """The inverse of `_to_lines`."""
    *lead, _, _, _, _ = fields.shape
    axis = len(lead)
    split = np.moveaxis(fields, (axis + 3, axis + 1, axis, axis + 2), (axis, axis + 1, axis + 2, axis + 3))
    return split.reshape(*lead, rows, block)


def _lines(data: Arr, t: DType, fields: int) -> Arr:
    return data.reshape(*data.shape[:-1], t.block // 4, t.rows // fields, 4, 1)


def _r64(tiles: Arr) -> Arr:
    return _shift(_to_lines(tiles, 4) + 1, 2)


def _r64_values(data: Arr) -> Arr:
    t = dt.tern2_r64
    return _from_lines(_fields(_lines(data, t, 4), 2).astype(np.int8) - 1, t.rows, t.block)


def _r16(tiles: Arr) -> Arr:
    """The field in the highest bits is the signed weight itself: sdot then needs no mask for it."""
    lines = _to_lines(tiles, 4)
    return _joined(lines + np.array([1, 1, 1, 0], np.int8), (1, 4, 16, 64))


def _r16_values(data: Arr) -> Arr:
    t = dt.tern2_r16
    fields = _fields(_lines(data, t, 4), 2)
    fields[..., 3] = (fields[..., 3] + 1) & 3  # -1, 0, 1 in two's complement are 3, 0, 1
    return _from_lines(fields.astype(np.int8) - 1, t.rows, t.block)


_R80_LEGAL = np.isin(np.arange(256), (np.arange(243) * 256 + 242) // 243)


def _r80(tiles: Arr) -> Arr:
    number = _joined(_to_lines(tiles, 5) + 1, (81, 27, 9, 3, 1))  # the first field counts most
    return ((number.astype(np.uint16) * 256 + 242) // 243).astype(np.uint8)


def _r80_values(data: Arr) -> Arr:
    """The byte is number / 243 as a binary fraction: times 3, the integer part is the next digit."""
    t = dt.tern5_r80
    lines = _lines(data, t, 5)
    powers = (3 ** np.arange(5)).astype(np.uint8)
    digits = (((lines * powers).astype(np.uint16) * 3) >> 8).astype(np.int8) - 1
    return _from_lines(np.where(_R80_LEGAL[lines], digits, np.int8(127)), t.rows, t.block)


def _i8_r16(tiles: Arr) -> Arr:
    return _to_lines(tiles, 1)[..., 0].astype(np.uint8) ^ np.uint8(128)


def _i8_r16_values(data: Arr) -> Arr:
    t = dt.i8_r16
    return _from_lines((_lines(data, t, 1) ^ 128).view(np.int8), t.rows, t.block)


def _i4_r32(tiles: Arr) -> Arr:
    return _shift(_to_lines(tiles, 2) + 8, 4)


def _i4_r32_values(data: Arr) -> Arr:
    t = dt.i4_r32
    return _from_lines(_fields(_lines(data, t, 2), 4).astype(np.int8) - 8, t.rows, t.block)


_TILES = {
    "tern2_r64": (_r64, _r64_values),
    "tern2_r16": (_r16, _r16_values),
    "tern5_r80": (_r80, _r80_values),
    "i8_r16": (_i8_r16, _i8_r16_values),
    "i4_r32": (_i4_r32, _i4_r32_values),
}

"""The layout of the integers of each packed dtype, over values of a library: that of `backends.reference.packed`, in its order.

A byte holds one to five fields; a dtype says how they are read and joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tritium import dtype as dt
from tritium.backends.reference.packed import Packed
from tritium.backends.values.namespace import Namespace, Value, size_of
from tritium.dtype import DType
from tritium.errors import QuantError
from tritium.layout import Shape, in_tiles

ILLEGAL = 127  # what a code that means nothing reads as
DIGITS = (1, 3, 9, 27, 81)


class Code(NamedTuple):
    """The number of integers in a byte; bytes (as i16) to each of them; them (as i16) to bytes."""

    fields: int
    read: Callable[[Namespace, Value], list[Value]]
    join: Callable[[Namespace, Sequence[Value]], Value]


def _bits(bits: int, low: int) -> Code:
    """Fields of so many bits from the lowest on, each the integer less the lowest one."""
    mask = (1 << bits) - 1
    count = 8 // bits

    def read(xp: Namespace, data: Value) -> list[Value]:
        return [((data >> bits * i) & mask) + low for i in range(count)]

    def join(xp: Namespace, values: Sequence[Value]) -> Value:
        return _sum([(v - low) << bits * i for i, v in enumerate(values)])

    return Code(count, read, join)


def _sum(parts: Sequence[Value]) -> Value:
    total = parts[0]
    for p in parts[1:]:
        total = total + p
    return total


def _i4_read(xp: Namespace, data: Value) -> list[Value]:
    return [(((data >> 4 * i) & 15) ^ 8) - 8 for i in range(2)]


def _i4_join(xp: Namespace, values: Sequence[Value]) -> Value:
    return (values[0] & 15) + ((values[1] & 15) << 4)


def _tern5_read(xp: Namespace, data: Value) -> list[Value]:
    illegal = xp.full((), ILLEGAL, dt.i16)
    return [xp.where(data > 242, illegal, data // d % 3 - 1) for d in DIGITS]


def _tern5_join(xp: Namespace, values: Sequence[Value]) -> Value:
    return _sum([(v + 1) * d for v, d in zip(values, DIGITS, strict=True)])


def _r16_read(xp: Namespace, data: Value) -> list[Value]:
    """The field in the highest bits is the signed weight itself."""
    *others, last = _bits(2, 0).read(xp, data)
    return [f - 1 for f in others] + [((last + 1) & 3) - 1]


def _r16_join(xp: Namespace, values: Sequence[Value]) -> Value:
    *others, last = values
    return _bits(2, 0).join(xp, [*(v + 1 for v in others), last & 3])


_R80_LEGAL = np.isin(np.arange(256), (np.arange(243) * 256 + 242) // 243)


def _r80_read(xp: Namespace, data: Value) -> list[Value]:
    """The byte is number / 243 as a binary fraction: times 3, the integer part is the next digit."""
    legal = xp.take(xp.array(_R80_LEGAL), xp.astype(data, dt.i32), 0)
    illegal = xp.full((), ILLEGAL, dt.i16)
    return [xp.where(legal, ((((data * d) & 255) * 3) >> 8) - 1, illegal) for d in DIGITS]


def _r80_join(xp: Namespace, values: Sequence[Value]) -> Value:
    number = xp.astype(_sum([(v + 1) * d for v, d in zip(values, reversed(DIGITS), strict=True)]), dt.i32)
    return (number * 256 + 242) // 243


CODES = {
    dt.tern2: _bits(2, -1),
    dt.tern5: Code(5, _tern5_read, _tern5_join),
    dt.i4: Code(2, _i4_read, _i4_join),
    dt.tern2_r64: _bits(2, -1),
    dt.tern2_r16: Code(4, _r16_read, _r16_join),
    dt.tern5_r80: Code(5, _r80_read, _r80_join),
    dt.i8_r16: _bits(8, -128),
    dt.i4_r32: _bits(4, -8),
}


def _swapped(xp: Namespace, x: Value, one: int, two: int) -> Value:
    axes = list(range(len(x.shape)))
    axes[one], axes[two] = axes[two], axes[one]
    return xp.transpose(x, tuple(axes))


def decode(xp: Namespace, w: Packed | Value, *, checked: bool) -> Value:
    """The integers as int8. checked: a code that means nothing raises when a result is read."""
    if not isinstance(w, Packed):
        return w
    t, code = w.dtype, CODES[w.dtype]
    padded = in_tiles(w.shape, t.rows, t.block)
    fields = [xp.astype(f, dt.i8) for f in code.read(xp, xp.astype(w.data, dt.i16))]
    values = _from_tiles(xp, fields, padded, t) if t.rows > 1 else xp.reshape(xp.stack(fields, -1), padded)
    inside = (*(1 for _ in padded[len(w.shape) :]), *w.shape)
    if inside != padded:
        values = values[tuple(slice(0, n) for n in inside)]
    values = xp.reshape(values, w.shape)
    if checked and t.is_ternary:
        xp.doubt(values > 1, meaningless(t), QuantError)
    return values


def meaningless(t: DType) -> str:
    """Return what is said of codes that mean nothing."""
    return f"{t}: a code means no weight; the data is damaged or of another layout."


def _from_tiles(xp: Namespace, fields: list[Value], padded: Shape, t: DType) -> Value:
    """Bytes of tiles lie [k // 4][lane][k % 4], a field for each set of lanes."""
    *lead, n, k = padded
    lanes, tiles = t.rows // len(fields), (*lead, n // t.rows, k // t.block)
    lines = [xp.reshape(f, (*tiles, t.block // 4, lanes, 4)) for f in fields]
    axis = len(tiles)
    rows = xp.stack([_swapped(xp, x, axis, axis + 1) for x in lines], axis)
    return xp.reshape(_swapped(xp, xp.reshape(rows, (*tiles, t.rows, t.block)), axis - 1, axis), padded)


def encode(xp: Namespace, values: Value, t: DType, *, checked: bool) -> Packed:
    """Integers in a packed dtype; rows and columns of padding hold 0. checked: a value it cannot hold raises later."""
    shape = tuple(values.shape)
    if checked:
        low, high = t.values
        bad = (values < low) | (values > high)
        xp.doubt(bad, f"{t} holds {low} to {high}, but an element is outside; quantise the tensor first.", QuantError)
    padded = in_tiles(shape, t.rows, t.block)
    x = xp.reshape(xp.astype(values, dt.i16), (*(1 for _ in padded[len(shape) :]), *shape))
    after = tuple(p - n for p, n in zip(padded, tuple(x.shape), strict=True))
    x = xp.pad(x, after, 0) if any(after) else x
    code = CODES[t]
    parts = _to_tiles(xp, x, padded, t, code.fields) if t.rows > 1 else _in_row(xp, x, padded, t)
    data = xp.astype(code.join(xp, parts), dt.u8)
    return Packed(xp.reshape(data, bytes_shape(shape, t)), t, shape)


def _in_row(xp: Namespace, x: Value, padded: Shape, t: DType) -> list[Value]:
    blocks = xp.reshape(x, (*padded[:-1], padded[-1] // t.block, t.block))
    return [blocks[..., i] for i in range(t.block)]


def _to_tiles(xp: Namespace, x: Value, padded: Shape, t: DType, fields: int) -> list[Value]:
    *lead, n, k = padded
    axis = len(lead) + 2
    tiles = _swapped(xp, xp.reshape(x, (*lead, n // t.rows, t.rows, k // t.block, t.block)), axis - 1, axis)
    lines = xp.reshape(tiles, (*lead, n // t.rows, k // t.block, fields, t.rows // fields, t.block // 4, 4))
    return [_swapped(xp, lines[..., i, :, :, :], axis, axis + 1) for i in range(fields)]


def bytes_shape(shape: Shape, t: DType) -> Any:
    """The shape of the bytes of a packed tensor, as `packed.empty` makes them."""
    lead = max(len(shape) - (2 if t.rows > 1 else 1), 0)
    inner = size_of(in_tiles(shape[lead:], t.rows, t.block)) // (t.rows * t.block) * t.nbytes
    return (*shape[:lead], inner)

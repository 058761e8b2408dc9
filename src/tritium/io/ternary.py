"""The one layout of a ternary matrix in memory: 2-bit codes along K, lowest bits first, and multipliers in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from tritium.errors import FormatError

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK = 1 << 22  # values processed at a time: bounds the memory of every codec
_SPREAD = np.array([sum(((b >> 2 * i) & 3) << 8 * i for i in range(4)) for b in range(256)], "<u4")  # byte -> 4 codes
ZEROS = np.uint8(0b01010101)  # four weights of zero
_GATHER = np.uint32(1 << 24 | 1 << 18 | 1 << 12 | 1 << 6)  # times 4 codes in a word: the packed byte on top


def rows_at_a_time(n: int, k: int, step: int = 1) -> Iterator[slice]:
    """Yield slices of the rows, each of at most CHUNK values (or `step` rows)."""
    if not k:
        return
    count = max(CHUNK // max(k, 1) // step, 1) * step
    for r in range(0, n, count):
        yield slice(r, min(r + count, n))


def pack(codes: Array) -> Array:
    """Pack codes 0..2, uint8 [rows, K], four to a byte, uint8 [rows, ceil(K/4)]; the last byte is padded with code 1, weight 0."""
    rows, k = codes.shape
    if k % 4:
        codes = np.concatenate([codes, np.ones((rows, -k % 4), np.uint8)], axis=1)
    words = np.ascontiguousarray(codes).view("<u4")
    return ((words * _GATHER) >> np.uint32(24)).astype(np.uint8)


def pack_fields(data: Array, shift: int) -> Array:
    """Return the two bits at `shift` of every byte as codes of adjacent values, packed four to a byte: a quarter of the bytes.

    The last axis must be contiguous and a multiple of 4."""
    words = data.view("<u4")
    return (((words >> np.uint32(shift)) & np.uint32(0x03030303)) * _GATHER >> np.uint32(24)).astype(np.uint8)


def all_legal(data: Array) -> bool:
    """Return True if no byte holds a code 3 in any of its four fields; `data` as in pack_fields."""
    words = data.view("<u4")
    return not (words & (words >> np.uint32(1)) & np.uint32(0x55555555)).any()


def unpack(packed: Array, k: int) -> Array:
    """Unpack uint8 [rows, ceil(K/4)] to codes, uint8 [rows, K]."""
    return _SPREAD[packed].view(np.uint8)[:, :k]


def as_matrix(shape: tuple[int, ...]) -> Any:
    """Return the shape of a stack of matrices as that of one, its rows one below the other; others as they are."""
    return (prod(shape[:-1]), shape[-1]) if len(shape) > 2 else shape


@dataclass(frozen=True, eq=False)
class Ternary:
    """W[n,k] = (code[n,k] - 1) * scale. One scale for all, one for each row, or one for `group` values of a row."""

    codes: Array  # uint8 [N, ceil(K/4)]
    shape: tuple[int, int]
    scale: Array  # float32 (), (N,) or (N, K/group)
    group: int = 0

    def __post_init__(self) -> None:
        n, k = self.shape
        if self.codes.dtype != np.uint8 or self.codes.shape != (n, -(-k // 4)):
            raise FormatError(
                f"Ternary: codes are {self.codes.dtype}{list(self.codes.shape)}, needed uint8[{n}, {-(-k // 4)}] for {n}×{k}."
            )
        if self.group and k % self.group:
            raise FormatError(f"Ternary: groups of {self.group} do not divide K = {k}.")
        fits = [(n, k // self.group)] if self.group else [(), (n,)]
        if self.scale.dtype != np.float32 or self.scale.shape not in fits:
            raise FormatError(
                f"Ternary: scale is {self.scale.dtype}{list(self.scale.shape)}, needed float32 of shape "
                f"{' or '.join(map(str, fits))} for {n}×{k} in groups of {self.group}."
            )

    @classmethod
    def from_values(cls, values: Any, scale: Any = 1.0, group: int = 0) -> Ternary:
        """Create one from weights -1, 0, +1 of shape [N, K]."""
        t = np.asarray(values)
        if t.ndim != 2 or not np.isin(t, (-1, 0, 1)).all():
            raise FormatError(f"Ternary: needed a matrix of -1, 0 and +1, given {t.dtype}{list(t.shape)}.")
        codes = (t.astype(np.int8) + 1).astype(np.uint8)
        return cls(pack(codes), (t.shape[0], t.shape[1]), np.asarray(scale, np.float32), group)

    def values(self) -> Array:
        """Return the weights, int8 [N, K] of -1, 0, +1."""
        return unpack(self.codes, self.shape[1]).astype(np.int8) - np.int8(1)

    def dense(self, rows: slice = slice(None)) -> Array:
        """Return the weights as float32 [N, K]: value times scale."""
        t = unpack(self.codes[rows], self.shape[1]).astype(np.float32) - np.float32(1)
        if self.group:
            t.reshape(len(t), self.shape[1] // self.group, self.group)[:] *= self.scale[rows, :, None]
        else:
            t *= self.scale[rows, None] if self.scale.ndim else self.scale
        return t

    def take(self, order: Array) -> Ternary:
        """Return the matrix with its rows in another order, or some of them."""
        scale = self.scale[order] if self.scale.ndim else self.scale
        return Ternary(self.codes[order], (len(order), self.shape[1]), scale, self.group)

    def regrouped(self, group: int) -> Ternary:
        """Return the same matrix with a scale for each `group` columns, repeated where it has fewer; 0: as it is."""
        if not group or self.group == group:
            return self
        scales = self.scales(group)
        assert scales is not None  # groups are made narrower, never wider
        return Ternary(self.codes, self.shape, np.ascontiguousarray(scales), group)

    def take_columns(self, order: Array) -> Ternary:
        """Return the matrix with its columns in another order; raise where that divides a group with a scale of its own."""
        n, k = self.shape
        groups = order.reshape(-1, self.group) if self.group else order[None]
        if self.group and (
            (groups != groups[:, :1] + np.arange(self.group)).any() or (groups[:, 0] % self.group).any()
        ):
            fewest = self.simplified()  # blocks of a file may repeat the scale of a row
            if fewest.group:
                raise FormatError(
                    f"Ternary: columns are to be ordered so that groups of {self.group} do not stay whole."
                )
            return fewest.take_columns(order)
        codes = np.empty_like(self.codes)
        for rows in rows_at_a_time(n, k):
            codes[rows] = pack(unpack(self.codes[rows], k)[:, order])
        scale = self.scale[:, groups[:, 0] // self.group] if self.group else self.scale
        return Ternary(codes, self.shape, scale, self.group)

    def used(self) -> Array:
        """Return a mask shaped like the scale: True where a scale has an effect, that is, one of its weights is not zero."""
        n, k = self.shape
        width = self.group or k
        out = np.zeros((n, k // width if width else 0), bool)
        for r in rows_at_a_time(*self.shape):
            if width == k:
                out[r] = (self.codes[r] != ZEROS).any(axis=1, keepdims=True) if k else False
            elif width % 4 == 0:
                out[r] = (self.codes[r] != ZEROS).reshape(-1, k // width, width // 4).any(2)
            else:
                out[r] = (unpack(self.codes[r], k) != 1).reshape(-1, k // width, width).any(2)
        if self.group:
            return out
        return np.asarray(out.any(axis=1) if self.scale.ndim else out.any())

    def scales(self, group: int) -> Array | None:
        """Return the scales for groups of this width, float32 (N, K/group); None where one group would need two scales."""
        n, k = self.shape
        if not self.group:
            column = self.scale if self.scale.ndim else np.broadcast_to(self.scale, (n,))
            return np.broadcast_to(column[:, None], (n, k // group))
        if self.group % group == 0:
            return np.repeat(self.scale, self.group // group, axis=1)
        if group % self.group:
            return None
        parts = self.scale.reshape(n, k // group, -1), self.used().reshape(n, k // group, -1)
        return _common_scale(*parts, axis=2)

    def simplified(self) -> Ternary:
        """Return the same matrix with the fewest scales. A scale whose weights are all zero has no effect and equals any other."""
        if not self.scale.ndim or not self.scale.size:
            return self
        used = self.used()
        common = _common_scale(self.scale, used, axis=None)
        if common is not None:
            return Ternary(self.codes, self.shape, np.asarray(common, np.float32), 0)
        rows = _common_scale(self.scale, used, axis=1) if self.group else None
        return self._coarser() if rows is None else Ternary(self.codes, self.shape, rows, 0)

    def _coarser(self) -> Ternary:
        """Return the same matrix with groups as wide as its scales allow: a file may repeat a scale for each of its blocks."""
        n, k = self.shape
        if not self.group or k % (2 * self.group):
            return self
        pairs = self.scale.reshape(n, -1, 2)
        if np.mean(pairs[..., 0] == pairs[..., 1]) < 0.5:  # a glance: only groups of zeros may differ
            return self
        wide = self.scales(2 * self.group)
        return self if wide is None else Ternary(self.codes, self.shape, wide, 2 * self.group)._coarser()


def _common_scale(scale: Array, used: Array, axis: int | None) -> Array | None:
    """Return the common scale along an axis among those in use; where all weights are zero, the largest stored there."""
    low = np.min(scale, axis=axis, initial=np.inf, where=used)
    high = np.max(scale, axis=axis, initial=-np.inf, where=used)
    unused = low > high
    if not np.all((low == high) | unused):
        return None
    return np.where(unused, np.max(scale, axis=axis, initial=0), high).astype(np.float32)


def stack_rows(parts: list[Ternary]) -> Ternary:
    """Return matrices of one input below each other: one scale for all where there is but one matrix, else one for each row or, if
    any has groups, each group."""
    if len(parts) == 1:
        return parts[0]
    columns = parts[0].shape[1]
    # A part may have fewer scales than the others: they are repeated.
    group = gcd(*(p.group or columns for p in parts)) if any(p.group for p in parts) else 0
    scales: list[Array] = []
    for p in parts:
        rows = p.scale if p.scale.ndim else np.full(p.shape[0], p.scale, np.float32)
        narrow = p.scales(group) if group else rows
        assert narrow is not None  # a group of all divides each
        scales.append(narrow)
    codes, shape = np.concatenate([p.codes for p in parts]), (sum(p.shape[0] for p in parts), parts[0].shape[1])
    return Ternary(codes, shape, np.concatenate(scales), group)

"""Ternary or int8 weights on a GPU in the layouts that its kernels read, made there from how they are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from tritium.backends.cuda.gpu import capturing, make_apart
from tritium.backends.cuda.linear.choice import wide

Value: TypeAlias = torch.Tensor
CHUNK = 1 << 26  # codes that are unpacked at a time
PAIRS = 0, 1, 2, 3, 15, 4, 5, 6, 7  # codes of two weights a and b by 3 (a + 1) + b + 1; see `cuda.linear.fragments`


class Weights:
    """Weights [n, k] as kernels read them: every layout is made on the device when it is first needed, and cached."""

    def __init__(self, data: Value, shape: tuple[int, int], packed: bool, ternary: bool) -> None:
        self.data, self.shape, self.packed, self.ternary = data, shape, packed, ternary
        self._arrangements: dict[str, Value] = {}

    @property
    def wide(self) -> int:
        return wide(self.shape[1])

    def _codes(self, low: int, high: int) -> Value:
        """Return w + 1 of some rows as uint8, columns padded with codes that are multiplied with zeros."""
        part = self.data[low:high]
        if self.packed:
            codes = torch.stack([(part >> (2 * i)) & 3 for i in range(4)], -1).reshape(high - low, -1)
        else:
            codes = (part + 1).view(torch.uint8)
        codes = codes[:, : self.shape[1]]
        return torch.nn.functional.pad(codes, (0, self.wide - codes.shape[1]))

    def _each(self, out: Value, rows: int, make: Any) -> Value:
        """Fill out a few rows at a time."""
        step = max(CHUNK // self.wide // rows, 1) * rows
        for low in range(0, self.shape[0], step):
            part = make(self._codes(low, min(low + step, self.shape[0])))
            out[low // rows :][: part.shape[0]] = part
        return out

    def _arranged(self, name: str, make: Callable[[], Value]) -> Value:
        """Return a layout, made once and cached.

        Not cached in a capture: memory made there has its values only after the graph has run.
        """
        arranged = self._arrangements.get(name)
        if arranged is None and capturing():
            return make()
        if (
            arranged is None
        ):  # apart also since kernels read weights before the one in front of them has ended, which must not be their maker
            arranged = self._arrangements[name] = make_apart(make, self.data.device)
        return arranged

    def keeps(self, name: str) -> bool:
        """Return True if a layout is cached, so that no kernel that may still run writes it."""
        return self._arrangements.get(name, self.data) is not self.data

    def planes(self) -> Value:
        """Return uint8 [n, wide / 4]: four codes a byte, columns a quarter of a row apart."""
        return self._arranged("planes", self._planes)

    def _planes(self) -> Value:
        out = self.data.new_empty((self.shape[0], self.wide // 4), dtype=torch.uint8)
        return self._each(out, 1, lambda c: _joined(c.view(c.shape[0], 4, -1), 1))

    def lines(self) -> Value:
        """Return uint8 [n, wide / 4]: 128 columns in 32 bytes, codes of a byte 32 columns apart; see
        `cuda.linear.grouped`.
        """
        return self._arranged("lines", self._lines)

    def _lines(self) -> Value:
        out = self.data.new_empty((self.shape[0], self.wide // 4), dtype=torch.uint8)
        return self._each(out, 1, lambda c: _joined(c.view(c.shape[0], -1, 4, 32), 2).reshape(c.shape[0], -1))

    def units(self, group: int) -> Value:
        """Return uint8 [n, units of `group` bytes]: column i of four groups in byte i; see `cuda.linear.group_tiles`."""
        return self._arranged(f"units of {group}", lambda: self._units(group))

    def _units(self, group: int) -> Value:
        count = -(-self.wide // (4 * group))
        out = self.data.new_empty((self.shape[0], count * group), dtype=torch.uint8)
        return self._each(out, 1, lambda c: _in_units(c, count, group))

    def fragments(self) -> Value:
        """Return int32 [n / 16, wide / 128, 32, 4]; see `cuda.linear.fragments`."""
        return self._arranged("fragments", self._fragments)

    def _fragments(self) -> Value:
        out = self.data.new_empty((-(-self.shape[0] // 16), self.wide // 128, 512), dtype=torch.uint8)
        return self._each(out, 16, _in_fragments).view(torch.int32).view(*out.shape[:2], 32, 4)

    def pairs(self) -> Value:
        """Return int32 as `fragments` does, with a nibble for each two weights; see `cuda.linear.fragments`."""
        return self._arranged("pairs", self._pairs)

    def _pairs(self) -> Value:
        out = self.data.new_empty((-(-self.shape[0] // 16), self.wide // 128, 512), dtype=torch.uint8)
        return self._each(out, 16, _in_pairs).view(torch.int32).view(*out.shape[:2], 32, 4)

    def straight(self) -> Value:
        """Return int8 [n, wide]."""
        return self._arranged("straight", self._straight)

    def _straight(self) -> Value:
        if not self.ternary:
            fits = self.wide == self.shape[1] and self.data.is_contiguous() and self.data.data_ptr() % 16 == 0
            return (
                self.data if fits else torch.nn.functional.pad(self.data.contiguous(), (0, self.wide - self.shape[1]))
            )
        out = self.data.new_empty((self.shape[0], self.wide), dtype=torch.int8)
        self._each(out, 1, lambda c: c.view(torch.int8) - 1)
        out[:, self.shape[1] :] = 0
        return out

    def held(self) -> dict[str, int]:
        """Return the bytes of each layout made so far."""
        return {name: x.numel() * x.element_size() for name, x in self._arrangements.items()}


def _joined(codes: Value, axis: int) -> Value:
    """Join four codes along an axis to one byte."""
    c0, c1, c2, c3 = codes.unbind(axis)
    return c0 | c1 << 2 | c2 << 4 | c3 << 6


def _in_units(codes: Value, count: int, group: int) -> Value:
    """Return rows in the order of `cuda.linear.group_tiles`: of each four columns of four groups four bytes.

    The first two have the codes of the first and the third group, the others those of the second and the fourth, by column.
    """
    padded = torch.nn.functional.pad(codes, (0, count * 4 * group - codes.shape[1]))
    c0, c1, c2, c3 = padded.view(-1, count, 4, group // 4, 2, 2).unbind(2)
    fours = torch.stack((c0 | c2 << 2, c1 | c3 << 2), 3)  # [rows, unit, word, pair of groups, pair of columns, column]
    return (fours[..., 0] | fours[..., 1] << 4).reshape(codes.shape[0], count * group)


def _nibbles(pairs: Value) -> Value:
    """Join the codes of `PAIRS` of adjacent pairs of weights to bytes."""
    codes = torch.tensor(PAIRS, dtype=torch.uint8, device=pairs.device)[pairs.int()]
    return codes[..., 0] | codes[..., 1] << 4


def _in_fragments(codes: Value) -> Value:
    """Return rows in the order of `cuda.linear.fragments`."""
    return _joined(_fields(codes), 3)


def _in_pairs(codes: Value) -> Value:
    """Return rows in that order; of each four bytes with four fields the pairs of the first two fields, then the others."""
    c0, c1, c2, c3 = _fields(codes).unbind(3)
    fours = torch.stack([(3 * a + b).view(*a.shape[:2], 128, 2, 2) for a, b in ((c0, c1), (c2, c3))], 3)
    return _nibbles(fours).reshape(*c0.shape)


def _fields(codes: Value) -> Value:
    """Return codes as [tile, block, byte, field] of `cuda.linear.fragments`.

    Axes of the codes: [tile, row half, row, block, j half, quarter, j pair, k half, byte].
    """
    short = -codes.shape[0] % 16
    codes = torch.nn.functional.pad(codes, (0, 0, 0, short))
    parts = codes.view(codes.shape[0] // 16, 2, 8, codes.shape[1] // 128, 2, 4, 2, 2, 4)
    return parts.permute(0, 3, 2, 5, 7, 1, 8, 4, 6).reshape(parts.shape[0], parts.shape[3], 512, 4)


def ternary(data: Value, shape: tuple[int, int]) -> Weights:
    """Return the weights of a tern2 tensor [n, k] from its bytes, four columns a byte, row by row."""
    n, k = shape
    return Weights(data.reshape(n, -(-k // 4)), (n, k), packed=True, ternary=True)


def ternary_of(w: Value) -> Weights:
    """Return the weights of int8 [n, k] of -1, 0 and 1."""
    return Weights(w, (w.shape[0], w.shape[1]), packed=False, ternary=True)


def int8(w: Value) -> Weights:
    """Return the weights of int8 [n, k] of any values."""
    return Weights(w, (w.shape[0], w.shape[1]), packed=False, ternary=False)

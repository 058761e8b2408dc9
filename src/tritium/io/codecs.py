"""Codecs between the bytes of each ternary layout and the one layout in memory; pure NumPy, in bounded chunks.

Every `decode` raises for codes that are not ternary and scales that are not finite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tritium.errors import FormatError
from tritium.io.reader import EMPTY, Buffer, fault, product
from tritium.io.ternary import CHUNK, ZEROS, Array, Ternary, all_legal, pack, pack_fields, rows_at_a_time, unpack

Shape = tuple[int, int]


def _matrix(shape: Any, name: str) -> Shape:
    if len(shape) != 2:
        raise fault(
            name, f"a tensor of shape {tuple(shape)}", "a matrix [N, K]", "Only matrices are stored as ternary."
        )
    n, k = int(shape[0]), int(shape[1])
    product((n, k), name)
    return n, k


def _bytes(buffer: Buffer | Array, size: int, name: str) -> Array:
    """Return the buffer as uint8, of exactly `size` bytes."""
    if isinstance(buffer, np.ndarray):
        data = np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    else:
        data = np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)
    if data.size != size:
        raise fault(f"{name} data", f"{data.size} bytes", f"{size} bytes for this shape")
    return data


def _legal(codes: Array, first_row: int, name: str, meaning: str = "no ternary value") -> Array:
    if codes.size and codes.max() > 2:
        r, c = np.unravel_index(int((codes > 2).argmax()), codes.shape)
        raise fault(
            f"{name} data, row {first_row + int(r)}, column {int(c)}",
            f"code 3 ({meaning})",
            "0, 1 or 2 for -1, 0, +1",
            "The data is damaged, or its layout is not the declared one: see `tritium inspect`.",
        )
    return codes


def _finite(scale: Array, name: str) -> Array:
    scale = np.asarray(scale, np.float32)
    if not np.isfinite(scale).all():
        index = np.unravel_index(int((~np.isfinite(scale)).argmax()), scale.shape) if scale.ndim else ()
        raise fault(f"{name} scale{[int(i) for i in index] or ''}", f"{scale[index]}", "a finite number")
    return scale


def single(t: Ternary, name: str, others: str = "tq2_0, tq1_0, q2_0, pq2_0, ptq1_0 or mlx") -> np.float32:
    """Return the one scale of the whole matrix; raise where it has several."""
    scale = t.simplified().scale
    if scale.ndim:
        raise fault(
            f"{name} encoding",
            f"{scale.size} different scales (one per {'group' if scale.ndim == 2 else 'row'})",
            "one scale for the whole tensor",
            f"Write {others}, which keep a scale for each block.",
        )
    return np.float32(scale)


class I2S:
    """bitnet.cpp's I2_S: flat blocks of 4·lane values, first lane in the highest bits; one fp32 scale and 28 zeros at the end."""

    def __init__(self, name: str, lane: int) -> None:
        self.name, self.lane, self.block = name, lane, 4 * lane

    def nbytes(self, shape: Shape) -> int:
        return product(shape, self.name) // 4 + 32

    def decode(self, buffer: Buffer | Array, shape: Shape) -> Ternary:
        n, k = _matrix(shape, self.name)
        check_k(self.name, k, self.block)
        data = _bytes(buffer, self.nbytes((n, k)), self.name)
        body, tail = data[: n * k // 4].reshape(n, k // 4), data[n * k // 4 :]
        out = np.empty((n, k // 4), np.uint8)
        for r in rows_at_a_time(n, k):
            lanes = body[r].reshape(-1, self.lane)
            if not all_legal(lanes):
                codes = (lanes[:, None] >> np.array([6, 4, 2, 0], np.uint8)[:, None]) & np.uint8(3)
                _legal(codes.reshape(-1, k), r.start, self.name)
            packed = out[r].reshape(-1, 4, self.lane // 4)
            for i in range(4):
                packed[:, i] = pack_fields(lanes, 6 - 2 * i)
        scale = _finite(tail[:4].view("<f4")[0], self.name)
        return Ternary(out, (n, k), scale)

    def decode_rows(self, buffer: Buffer | Array, shape: Shape, rows: slice) -> Ternary:
        """Decode some rows; no bytes of others are read."""
        n, k = _matrix(shape, self.name)
        data = _bytes(buffer, self.nbytes((n, k)), self.name)
        some = data[rows.start * k // 4 : rows.stop * k // 4]
        return self.decode(np.concatenate([some, data[n * k // 4 :]]), (rows.stop - rows.start, k))

    def encode(self, t: Ternary) -> Array:
        n, k = t.shape
        check_k(self.name, k, self.block)
        out = np.zeros(self.nbytes(t.shape), np.uint8)
        body = out[: n * k // 4].reshape(n, k // 4)
        for r in rows_at_a_time(n, k):
            c = unpack(t.codes[r], k).reshape(-1, 4, self.lane)
            body[r] = (c[:, 0] << 6 | c[:, 1] << 4 | c[:, 2] << 2 | c[:, 3]).reshape(-1, k // 4)
        out[n * k // 4 :][:4] = np.array([single(t, self.name)], "<f4").view(np.uint8)
        return out

    def fits(self, t: Ternary) -> int:
        """Raise where the layout has no room for the shape or the scales."""
        check_k(self.name, t.shape[1], self.block)
        single(t, self.name)
        return 0

    def stored_scales(self, buffer: Buffer) -> Array:
        """Return the scales of a tensor without decoding its weights."""
        return np.frombuffer(buffer[-32:-28], "<f4")


class Blocks(ABC):
    """Layouts of ggml with one fp16 scale for each block of `block` values. A subclass defines how a block stores its codes."""

    name: str
    block: int
    record: np.dtype[Any]
    three = "no ternary value"

    def nbytes(self, shape: Shape) -> int:
        check_k(self.name, shape[1], self.block)
        return product(shape, self.name) // self.block * self.record.itemsize

    def decode(self, buffer: Buffer | Array, shape: Shape) -> Ternary:
        """Decode blocks. One with d = 0 has only zero weights whatever its codes, so its codes are read as zeros too."""
        n, k = _matrix(shape, self.name)
        check_k(self.name, k, self.block)
        records = _bytes(buffer, self.nbytes((n, k)), self.name).view(self.record).reshape(n, k // self.block)
        out = np.empty((n, k // 4), np.uint8)
        scale = _finite(records["d"].astype(np.float32), self.name)
        for r in rows_at_a_time(n, k):
            packed = self.packed(records[r], r.start)
            packed[scale[r] == 0] = ZEROS
            out[r] = packed.reshape(-1, k // 4)
        return Ternary(out, (n, k), scale, self.block)

    def decode_rows(self, buffer: Buffer | Array, shape: Shape, rows: slice) -> Ternary:
        """Decode some rows; no bytes of others are read."""
        n, k = _matrix(shape, self.name)
        row = self.nbytes((1, k))
        data = _bytes(buffer, self.nbytes((n, k)), self.name)
        return self.decode(data[rows.start * row : rows.stop * row], (rows.stop - rows.start, k))

    def encode(self, t: Ternary) -> Array:
        """Encode into blocks. A block of zeros keeps its scale, so that codes and scales both survive a round trip; ggml's own
        quantiser stores d = 0 there, which decodes to the same weights but loses the scale."""
        n, k = t.shape
        out = np.zeros((n, k // self.block if k else 0), self.record)
        check_k(self.name, k, self.block)
        out["d"] = self.scales(t)
        for r in rows_at_a_time(n, k):
            self.gather(unpack(t.codes[r], k).reshape(-1, k // self.block, self.block), out[r])
        return out.reshape(-1).view(np.uint8)

    def fits(self, t: Ternary) -> int:
        """Raise where the layout has no room for the shape or the scales."""
        check_k(self.name, t.shape[1], self.block)
        self.scales(t)
        return 0

    def stored_scales(self, buffer: Buffer) -> Array:
        """Return the scales of a tensor without decoding its weights."""
        return np.frombuffer(buffer, self.record)["d"].astype(np.float32) if len(buffer) else np.empty(0, np.float32)

    def scales(self, t: Ternary) -> Array:
        """Return the scales as they will be stored, fp16 (N, K/block)."""
        wide = t.scales(self.block)
        if wide is None:
            raise fault(
                f"{self.name} encoding",
                f"a scale for each {t.group} values",
                f"one for each {self.block}",
                f"Write {', '.join(_finer(t.group))} or f32.",
            )
        return to_f16(wide, self.name)

    def packed(self, records: Array, first_row: int) -> Array:
        """Return the codes of records packed as in memory, uint8 [rows, blocks, block / 4]; raise for illegal codes."""
        codes = self.spread(records, first_row)
        _legal(codes.reshape(len(records), -1), first_row, self.name, self.three)
        return pack(codes.reshape(len(records), -1)).reshape(*records.shape, -1)

    @abstractmethod
    def spread(self, records: Array, first_row: int) -> Array:
        """Return the codes of records, uint8 [rows, blocks, block]."""

    @abstractmethod
    def gather(self, codes: Array, out: Array) -> None:
        """Write codes, uint8 [rows, blocks, block], into records."""


def to_f16(scale: Array, name: str) -> Array:
    """Return scales as fp16; raise where one would overflow to infinity or underflow to 0."""
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
    lost = ~np.isfinite(half) | ((half == 0) & (scale != 0))
    if lost.any():
        raise fault(
            f"{name} encoding", f"the scale {scale[lost][0]:g}", "one that fp16 can hold (6e-8 to 65504)",
            "Write i2_s, hf or f32, which keep fp32 scales.",
        )  # fmt: skip
    return half


def check_k(name: str, k: int, block: int) -> None:
    if k % block:
        raise fault(f"{name}", f"K = {k} columns", f"a multiple of {block}", f"{_fitting(k)} can hold it.")


def _finer(group: int) -> list[str]:
    """Return the formats whose blocks fit into groups of this width."""
    return [name for name, block in BLOCK.items() if name in ("q2_0", "pq2_0", "ptq1_0", "mlx") and group % block == 0]


def _fitting(k: int) -> str:
    fits = [name for name, block in BLOCK.items() if k % block == 0]
    return ", ".join(fits)


class TQ2(Blocks):
    """256 values: two halves of 32 bytes, byte m holding values m, m+32, m+64, m+96 from the lowest bits; scale last."""

    name, block = "tq2_0", 256
    record = np.dtype([("qs", "u1", 64), ("d", "<f2")])
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]

    def spread(self, records: Array, first_row: int) -> Array:
        qs = records["qs"].reshape(*records.shape, 2, 1, 32)
        return ((qs >> self.shifts) & np.uint8(3)).reshape(*records.shape, 256)

    def packed(self, records: Array, first_row: int) -> Array:
        halves = np.ascontiguousarray(records["qs"]).reshape(*records.shape, 2, 32)
        if not all_legal(halves):
            return super().packed(records, first_row)  # raises, naming the place
        out = np.empty((*records.shape, 2, 4, 8), np.uint8)
        for i in range(4):
            out[..., i, :] = pack_fields(halves, 2 * i)
        return out.reshape(*records.shape, 64)

    def gather(self, codes: Array, out: Array) -> None:
        c = codes.reshape(*out.shape, 2, 4, 32)
        out["qs"] = (c[..., 0, :] | c[..., 1, :] << 2 | c[..., 2, :] << 4 | c[..., 3, :] << 6).reshape(*out.shape, 64)


class Q2(Blocks):
    """Blocks of values in their order, four a byte from the lowest bits; scale first. The same bytes as in memory."""

    three = "it means +2 here: these weights have four levels and are not ternary"

    def __init__(self, name: str, block: int) -> None:
        self.name, self.block = name, block
        self.record = np.dtype([("d", "<f2"), ("qs", "u1", block // 4)])

    def spread(self, records: Array, first_row: int) -> Array:
        qs = np.ascontiguousarray(records["qs"]).reshape(-1, self.block // 4)
        return unpack(qs, self.block).reshape(*records.shape, self.block)

    def gather(self, codes: Array, out: Array) -> None:
        out["qs"] = pack(codes.reshape(-1, self.block)).reshape(*out.shape, self.block // 4)


_POWERS = np.array([81, 27, 9, 3, 1], np.uint16)
_BYTE = ((np.arange(243) * 256 + 242) // 243).astype(np.uint8)  # five digits base 3 as a fraction of 256, rounded up
_CANONICAL = np.isin(np.arange(256), _BYTE)
_CANONICAL_4 = np.isin(np.arange(256), _BYTE[::3])  # the last bytes of a block hold four digits, the fifth is 0


class DigitBytes(NamedTuple):
    """A run of bytes of a block and the values it holds."""

    start: int
    stop: int
    digits: int  # base-3 digits in each byte
    first: int  # index of the first value


class Digits(Blocks):
    """Five digits base 3 a byte, in runs of bytes whose first digits are neighbours, then their second ones …; the bytes of the last
    run hold four values each. TQ1_0: 256 values in runs of 32, 16 and 4 bytes; PTQ1_0: 128 values in runs of 16, 8 and 2.
    Scale last."""

    def __init__(self, name: str, runs: tuple[int, int, int]) -> None:
        parts, start, first = [], 0, 0
        for width, digits in zip(runs, (5, 5, 4), strict=True):
            parts.append(DigitBytes(start, start + width, digits, first))
            start, first = start + width, first + width * digits
        self.name, self.block, self.parts = name, first, tuple(parts)
        self.record = np.dtype([("qs", "u1", start), ("d", "<f2")])
        self.last = parts[-1].start  # of the bytes with four digits

    def spread(self, records: Array, first_row: int) -> Array:
        body = np.ascontiguousarray(records["qs"])
        self._check(body, first_row)
        out = np.empty((*records.shape, self.block), np.uint8)
        for a, b, digits, first in self.parts:
            # A fraction of 256: which third it is in is the digit, and three times it is the next fraction.
            rest = body[..., a:b].copy()
            for n in range(digits):
                start = first + n * (b - a)
                np.add(rest > 85, rest > 170, out=out[..., start : start + b - a], dtype=np.uint8, casting="unsafe")
                rest *= np.uint8(3)
        return out

    def _check(self, body: Array, first_row: int) -> None:
        good = _CANONICAL[body]
        good[..., self.last :] = _CANONICAL_4[body[..., self.last :]]
        if not good.all():
            r, b, i = (int(x) for x in np.unravel_index(int((~good).argmax()), good.shape))
            raise fault(
                f"{self.name} data, row {first_row + r}, block {b}, byte {i}",
                f"{body[r, b, i]:#04x}, which no five ternary digits encode to",
                f"one of the {81 if i >= self.last else 243} bytes that they encode to",
                "The data is damaged, or its layout is not the declared one: see `tritium inspect`.",
            )

    def gather(self, codes: Array, out: Array) -> None:
        for a, b, digits, first in self.parts:
            c = codes[..., first : first + digits * (b - a)].reshape(*out.shape, digits, b - a)
            q = np.zeros((*out.shape, b - a), np.uint8)
            for n in range(digits):
                q += c[..., n, :] * np.uint8(_POWERS[n])
            out["qs"][..., a:b] = _BYTE[q]


class HF:
    """Hugging Face's packing: byte [r, k] holds rows r, r+R, r+2R, r+3R with R = N/4, the first in the lowest bits."""

    name, block = "hf", 1

    def fits(self, t: Ternary) -> int:
        """Raise where the layout has no room for the shape or the scales."""
        self.check(t.shape[0])
        single(t, self.name)
        return 0

    def nbytes(self, shape: Shape) -> int:
        return product(shape, self.name) // 4

    def check(self, n: int) -> None:
        if n % 4:
            raise fault(
                self.name, f"N = {n} rows", "a multiple of 4", "i2_s, tq2_0, tq1_0, q2_0, mlx or f32 can hold it."
            )

    def decode(self, buffer: Buffer | Array, shape: Shape, scale: Any = 1.0, *, inverted: bool = False) -> Ternary:
        """Decode packed rows; `inverted`: weight_scale divides (linear_class "bitlinear") instead of multiplying ("autobitlinear")."""
        n, k = _matrix(shape, self.name)
        self.check(n)
        quarter = n // 4
        body = _bytes(buffer, n * k // 4, self.name).reshape(quarter, k)
        out = np.empty((n, -(-k // 4)), np.uint8)
        for r in rows_at_a_time(quarter, 4 * k):
            regular = k % 4 == 0 and all_legal(body[r])
            for i in range(4):
                first = i * quarter + r.start
                if regular:
                    out[first : first + r.stop - r.start] = pack_fields(body[r], 2 * i)
                    continue
                codes = _legal((body[r] >> np.uint8(2 * i)) & np.uint8(3), first, self.name)
                out[first : first + len(codes)] = pack(codes)
        return Ternary(out, (n, k), self.multiplier(scale, inverted=inverted))

    def decode_rows(self, buffer: Buffer | Array, shape: Shape, rows: slice, scale: Any, *, inverted: bool) -> Ternary:
        """Decode some rows; a byte holds four of them that are a quarter of the matrix apart, and only bytes of these are read."""
        n, k = _matrix(shape, self.name)
        self.check(n)
        quarter = n // 4
        body = _bytes(buffer, n * k // 4, self.name).reshape(quarter, k)
        out = np.empty((rows.stop - rows.start, -(-k // 4)), np.uint8)
        for i in range(4):
            first, last = max(rows.start, i * quarter), min(rows.stop, (i + 1) * quarter)
            for r in rows_at_a_time(max(last - first, 0), k):
                start = first + r.start
                fields = body[start - i * quarter : first + r.stop - i * quarter] >> np.uint8(2 * i)
                codes = _legal(fields & np.uint8(3), start, self.name)
                out[start - rows.start : start - rows.start + len(codes)] = pack(codes)
        return Ternary(out, (rows.stop - rows.start, k), self.multiplier(scale, inverted=inverted))

    def multiplier(self, scale: Any, *, inverted: bool) -> Array:
        stored = np.asarray(scale, np.float32)
        if stored.size != 1:
            raise fault(f"{self.name} weight_scale", f"{stored.size} values", "1: one for the tensor")
        stored = _finite(stored.reshape(()), self.name)
        if not inverted:
            return stored
        with np.errstate(divide="ignore", over="ignore"):
            return _finite(np.float32(1) / stored, f"{self.name} 1/weight_scale")

    def encode(self, t: Ternary) -> Array:
        """Return the packed rows, uint8 [N/4, K]; the scale is stored in a tensor of its own, as a multiplier."""
        n, k = t.shape
        self.check(n)
        quarter = n // 4
        out = np.zeros((quarter, k), np.uint8)
        for r in rows_at_a_time(quarter, 4 * k):
            for i in range(4):
                part = t.codes[i * quarter + r.start : i * quarter + r.stop]
                out[r] |= unpack(part, k) << np.uint8(2 * i)
        return out


@dataclass(frozen=True)
class Affine:
    """MLX's own 2-bit form of a matrix: words [N, K/16], scales and biases [N, K/group]; w = scale·code + bias."""

    words: Array
    scales: Array
    biases: Array
    group: int


class MLX:
    """uint32 words of 16 codes from the lowest bits. With bias = -scale, scale·code + bias is exactly (code - 1)·scale."""

    name = "mlx"
    groups = (128, 64, 32)
    block = groups[-1]

    def fits(self, t: Ternary) -> int:
        """Return the group it will be stored in; raise where there is none."""
        return self.group_for(t)

    def decode(self, buffer: Buffer | Array, shape: Shape, scales: Any, biases: Any, group: int) -> Ternary:
        n, k = _matrix(shape, self.name)
        if group not in self.groups:
            raise fault(f"{self.name} group size", f"{group}", f"one of {self.groups}")
        check_k(self.name, k, group)
        s, b = (np.asarray(x, np.float32) for x in (scales, biases))
        if s.shape != (n, k // group) or b.shape != s.shape:
            raise fault(
                f"{self.name} scales and biases", f"shapes {list(s.shape)} and {list(b.shape)}", f"[{n}, {k // group}]"
            )
        _finite(s, self.name)
        if not np.array_equal(b, -s):
            index = tuple(int(x) for x in np.unravel_index(int((b != -s).argmax()), s.shape))
            raise fault(
                f"{self.name} biases{list(index)}", f"{b[index]:g} beside the scale {s[index]:g}", "the scale negated",
                "These weights have four levels and are not ternary: quantise the ternary model by `tritium convert --to mlx`.",
            )  # fmt: skip
        packed = _bytes(buffer, n * k // 4, self.name).reshape(n, k // 4)
        out = np.empty((n, k // 4), np.uint8)
        for r in rows_at_a_time(n, k):
            codes = _legal(unpack(packed[r], k), r.start, self.name).reshape(-1, k // group, group)
            codes[s[r] == 0] = 1
            out[r] = pack(codes.reshape(-1, k))
        return Ternary(out, (n, k), s, group)

    def group_for(self, t: Ternary) -> int:
        """Return the widest group that K and the scales allow."""
        for group in self.groups:
            if t.shape[1] % group == 0 and t.scales(group) is not None:
                return group
        check_k(self.name, t.shape[1], self.groups[-1])
        raise fault(f"{self.name} encoding", f"a scale for each {t.group} values", f"groups of {' or '.join(map(str, self.groups))}",
                    "Write f32.")  # fmt: skip

    def encode(self, t: Ternary, group: int | None = None) -> Affine:
        group = group or self.group_for(t)
        scales = t.scales(group)
        assert scales is not None
        scales = np.ascontiguousarray(scales)
        return Affine(np.ascontiguousarray(t.codes).view("<u4"), scales, -scales, group)


class Floats:
    """Plain numbers. Already ternary ones (0 and ±s) are read exactly; masters are ternarised by their mean magnitude."""

    name = "float"
    groups = (256, 128, 64, 32)

    def decode(self, w: Array) -> Ternary:
        return self.exact(w) or self.absmean(w)

    def exact(self, w: Array) -> Ternary | None:
        """Return the ternary matrix these numbers are; None where they are not one per tensor, row or usual group."""
        n, k = _matrix(w.shape, self.name)
        if not n * k:
            return Ternary(np.ones((n, -(-k // 4)), np.uint8), (n, k), np.zeros((), np.float32))
        for width in (0, k, *(g for g in self.groups if g < k and k % g == 0)):
            if (match := self._exact(w, width)) is not None:
                group = width if width not in (0, k) else 0
                return Ternary(match[0], (n, k), match[1].reshape(()) if not width else match[1].reshape(n, -1) if group
                               else match[1].reshape(n), group)  # fmt: skip
        return None

    def _exact(self, w: Array, width: int) -> tuple[Array, Array] | None:
        """Return codes and scales for groups of `width` values (0: the whole tensor); None if any value is not 0 or ±scale."""
        n, k = w.shape
        out = np.empty((n, -(-k // 4)), np.uint8)
        scales = np.empty((n, k // width) if width else (1, 1), np.float32)
        if not width:
            scales[:] = max(float(np.abs(_f32(w[r])).max()) for r in rows_at_a_time(n, k))
        for r in rows_at_a_time(n, k):
            x = _f32(w[r]).reshape(-1, k // (width or k), width or k)
            size = np.abs(x)
            if width:
                scales[r] = size.max(2)
            s = scales[r][..., None] if width else scales[..., None]
            if not ((size == s) | (size == 0)).all():
                return None
            out[r] = pack((np.sign(x) + 1).astype(np.uint8).reshape(-1, k))
        return out, _finite(scales, self.name)

    def absmean(self, w: Array) -> Ternary:
        """Quantise to ternary: g = max(mean|W|, 1e-5), t = clip(round(W/g), -1, 1), in fp32, ties to even; the mean is
        summed in fp64."""
        n, k = _matrix(w.shape, self.name)
        total = 0.0
        for r in rows_at_a_time(n, k):
            x = _finite_weights(_f32(w[r]), r.start)
            total += float(np.abs(x).sum(dtype=np.float64))
        g = np.float32(max(total / max(n * k, 1), 1e-5))
        out = np.empty((n, -(-k // 4)), np.uint8)
        for r in rows_at_a_time(n, k):
            t = np.clip(np.rint(_f32(w[r]) / g), -1, 1)
            out[r] = pack((t + 1).astype(np.uint8))
        return Ternary(out, (n, k), np.asarray(g, np.float32))

    def encode(self, t: Ternary, dtype: Any = np.float32) -> Array:
        """Return value times scale, rounded once to the dtype."""
        out = np.empty(t.shape, dtype)
        for r in rows_at_a_time(*t.shape):
            out[r] = t.dense(r).astype(dtype)
        return out


def _f32(w: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return w.astype(np.float32, copy=False)


def _finite_weights(x: Array, first_row: int) -> Array:
    if not np.isfinite(x).all():
        r, c = (int(i) for i in np.unravel_index(int((~np.isfinite(x)).argmax()), x.shape))
        raise fault(f"weights, row {first_row + r}, column {c}", f"{x[r, c]}", "a finite number")
    return x


i2_s = I2S("i2_s", 32)
i2_s_arm64 = I2S("i2_s (ARM-64)", 16)
tq2_0 = TQ2()
tq1_0 = Digits("tq1_0", (32, 16, 4))
ptq1_0 = Digits("ptq1_0", (16, 8, 2))
q2_0 = Q2("q2_0", 64)
pq2_0 = Q2("pq2_0", 128)
hf = HF()
mlx = MLX()
floats = Floats()

# The layouts of GGUF by the name of their ggml type: a reader looks up the codec of a tensor here.
GGUF: dict[str, I2S | Blocks] = {
    "I2_S": i2_s,
    "TQ1_0": tq1_0,
    "TQ2_0": tq2_0,
    "Q2_0": q2_0,
    "PQ2_0": pq2_0,
    "PTQ1_0": ptq1_0,
}

# The number K must be a multiple of, for each layout that can be written; error messages list those that fit a shape.
BLOCK = {c.name: c.block for c in (i2_s, tq2_0, tq1_0, q2_0, pq2_0, ptq1_0, mlx, hf)} | {"f32": 1, "f16": 1, "bf16": 1}

__all__ = [
    "BLOCK", "CHUNK", "EMPTY", "GGUF", "Affine", "FormatError", "Ternary",
    "floats", "hf", "i2_s", "i2_s_arm64", "mlx", "pq2_0", "ptq1_0", "q2_0", "tq1_0", "tq2_0",
]  # fmt: skip

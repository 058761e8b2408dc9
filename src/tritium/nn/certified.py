"""A float output head that is read through an int8 copy: bounds on all logits, and the exact ones of few rows.

The copy has half the bytes of an f16 table, or fewer. Of a row w of the table, its int8 row v (integers times their scale), the
input x, and y, which is x as a sum of two int8 vectors y1 and y2, the logit that the table gives is within

    |w - v| |x| (1 + g)  +  |v| (|x - y| + g |x| + 16 u (|y1| + |y2|))

of the copy's: u is 2^-24, g what f32 sums of this length lose in any order. `docs/certified.md` has the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from tritium import buffer, dtype as dt, ops, quant
from tritium.backends.reference.certified import LEAST, MORE, MOST, UNIT
from tritium.errors import ArgumentError, ShapeError
from tritium.functions import asarray
from tritium.nn.linear import QuantLinear
from tritium.op import Spec
from tritium.tensor import Tensor

Array = np.ndarray[Any, np.dtype[Any]]
FLOOR = 2.0**-60  # added to every norm: more than underflow takes away
CHUNK = 1 << 18  # weights that are quantised at once, in the caches
MANY = 8  # the CPU reads a table as a whole where more than one in so many of its rows could decide
TOGETHER = 8  # inputs for which the table is read as fast as for one
WORTH = 32 << 20  # bytes that must be saved: fewer are read in the time that bounds take
WORTH_THERE = 64 << 20  # the same on a GPU, which reads them faster
OFF, NO_COPY = "it was turned off", "the prepacked file has no int8 copy; write it again to have one"


class Bounds:
    """Of one input, a number for each logit and how far from it the logit may be: error * a + norm * b of its row, f32 [vocab].

    Distances of all rows are computed when they are first asked for, into memory that is written over by the next input."""

    def __init__(self, centre: Array, rows: Rows, a: np.float32, b: np.float32, memory: tuple[Array, Array]) -> None:
        self.centre = centre
        self._rows, self._a, self._b, self._memory = rows, a, b, memory

    @cached_property
    def distance(self) -> Array:
        """Return how far from its number each logit may be."""
        distance, spare = self._memory
        np.multiply(self._rows.error, self._a, out=distance)
        distance += np.multiply(self._rows.norm, self._b, out=spare)
        return distance

    def some(self, ids: Array) -> Array:
        """Return the distances of some rows: the bits of `distance`."""
        return np.asarray(self._rows.error[ids] * self._a + self._rows.norm[ids] * self._b)

    @property
    def most(self) -> float:
        """Return a number that no distance exceeds: rounding keeps order."""
        return float(self._rows.most_error * self._a + self._rows.most_norm * self._b)

    @property
    def lower(self) -> Array:
        """Return what each logit is at least."""
        return np.asarray(self.centre - self.distance)

    @property
    def upper(self) -> Array:
        """Return what each logit is at most."""
        return np.asarray(self.centre + self.distance)


class Rows(NamedTuple):
    """Two numbers for each row of a head, f32 [vocab], and the largest of each."""

    error: Array
    norm: Array
    most_error: np.float32
    most_norm: np.float32


@dataclass
class HeadStatistics:
    """Counts of tokens that the int8 copy was enough for and of those it was not, and of rows of the table that were read."""

    decided: int = 0  # tokens that were decided by bounds and few rows
    whole: int = 0  # tokens for which bounds were computed, and then the whole table
    resting: int = 0  # tokens for which the whole table was read at once, since bounds had not been enough
    rows: int = 0  # rows of the table that were read by themselves

    @property
    def tokens(self) -> int:
        """Return all tokens."""
        return self.decided + self.whole + self.resting

    def __str__(self) -> str:
        if not self.tokens:
            return "no token yet"
        mean = f", {self.rows / self.decided:.0f} rows each" if self.decided else ""
        return f"{self.decided} of {self.tokens} tokens decided by bounds{mean}; {self.whole + self.resting} read the whole head"


class CertifiedHead:
    """A float table, its int8 copy, and for each row how far the copy is from it at most, and how long the copy is."""

    def __init__(self, table: Tensor, copy: QuantLinear, error: Tensor, norm: Tensor, multiplier: float = 1.0) -> None:
        rows = (table.shape[0],)
        if copy.weight.shape != table.shape or error.shape != rows or norm.shape != rows:
            raise ShapeError(
                f"CertifiedHead: a copy of shape {list(table.shape)} and two numbers for each row are needed, given {copy}, "
                f"{error.spec} and {norm.spec}."
            )
        self.table, self.copy, self.error, self.norm, self.multiplier = table, copy, error, norm, multiplier
        both = [np.asarray(t.numpy()) for t in (error, norm)]
        most = [np.float32(a.max(initial=0)) for a in both]
        if not all(isfinite(m) and float(a.min(initial=0)) >= 0 for a, m in zip(both, most, strict=True)):
            raise ArgumentError("CertifiedHead: an error or a norm of a row is negative or not finite.")
        self._rows = Rows(both[0], both[1], most[0], most[1])
        self._longest = float(most[0]) + float(most[1])
        self.statistics, self._lock = HeadStatistics(), Lock()

    @property
    def nbytes(self) -> int:
        """Return the bytes of the copy and of its bounds."""
        return self.copy.nbytes + self.error.nbytes + self.norm.nbytes

    def approximate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x [n, hidden_size] followed by what its int8 form loses, [2 n, hidden_size], and the copy's logits [n, vocab]."""
        q, scale, _ = ops.quantize_activations(x)
        both = ops.concat(x, x - q.to(dt.f32) * ops.expand_dims(scale, -1), axis=0)
        logits, count = self.copy(both), x.shape[0]
        return both, logits[:count] + logits[count:]

    def lengths(self, both: Tensor) -> Tensor:
        """Return of each input that `approximate` was given its length, that of what its int8 form loses, and those of both parts
        of this form together, f64 [n, 3]."""
        q, scale, _ = ops.quantize_activations(both)
        parts, count = q.to(dt.f64) * ops.expand_dims(scale.to(dt.f64), -1), both.shape[0] // 2
        x, first, second = both[:count].to(dt.f64), parts[:count], parts[count:]

        def length(rows: Tensor) -> Tensor:
            return ops.sqrt(ops.sum(rows * rows, axis=-1))

        return ops.stack(length(x), length(x - first - second), length(first) + length(second), axis=-1)

    def bounds(self, lengths: Array, logits: Array, memory: list[Array] | None = None) -> list[Bounds | None]:
        """Return the bounds of each input, of which `lengths` and the copy's logits are given; None where nothing can be said.

        memory: rows that are written over, and more of them as they are needed; None: new ones."""
        count = logits.shape[0]
        memory = [] if memory is None else memory
        memory += [np.empty_like(self._rows.error) for _ in range(count + 1 - len(memory))]
        spare, *rows = memory
        return [
            self._within(length, lost, size, logits[i], rows[i], spare)
            for i, (length, lost, size) in enumerate(lengths[:count].tolist())
        ]

    def _within(
        self, length: float, lost: float, parts: float, logits: Array, distance: Array, spare: Array
    ) -> Bounds | None:
        """Return the bounds for an input of this length, what its int8 form lost of it, and the lengths of its parts."""
        k, m = self.table.shape[1], abs(self.multiplier)
        g = k * UNIT / (1 - k * UNIT)
        largest = self._longest * length * (1 + g) * max(1.0, m) * MORE
        if not (length * min(1.0, m) >= LEAST and largest < MOST and g < 0.5 and isfinite(lost)):
            return None
        a = m * MORE * (length * (1 + g + 4 * UNIT))
        b = m * MORE * (lost + length * (g + 4 * UNIT) + 16 * UNIT * parts)
        centre = logits if self.multiplier == 1 else logits * np.float32(self.multiplier)
        return Bounds(centre, self._rows, np.float32(a), np.float32(b), (distance, spare))

    def largest(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return for each row of x [n, hidden_size] the token of the largest logit, that logit and how many rows of the table were
        read, [n] each: one op, for devices that decide by themselves."""
        weight = self.copy.weight
        index, value, rows = ops.bounded_argmax(
            x, self.table, weight.data, weight.scale, self.error, self.norm, multiplier=float(self.multiplier)
        )
        return index, value, rows

    def count_read(self, rows: Sequence[int]) -> int:
        """Add tokens to the statistics, by how many rows of the table were read for each; return for how many it was read as a whole."""
        most = self.table.shape[0] // MANY if self.table.device.type == "cpu" else self.table.shape[0] - 1
        whole = [n for n in rows if n > most]
        self.count(decided=len(rows) - len(whole), whole=len(whole), rows=sum(rows) - sum(whole))
        return len(whole)

    def to(self, device: Any, table: Tensor) -> CertifiedHead:
        """Return the same on another device, where its table is already."""
        error, norm = self.error.to(device=device), self.norm.to(device=device)
        return CertifiedHead(table, self.copy.to(device), error, norm, self.multiplier)

    def read(self, x: Array, ids: Array) -> Array:
        """Return the logits of one input x [hidden_size] of some rows: the bits that the whole table gives."""
        count = 1 << max(4, (ids.size - 1).bit_length())  # few sizes, so that calls are remembered
        indices = np.zeros(min(count, max(ids.size, self.table.shape[0])), np.int64)
        indices[: ids.size] = ids
        rows = ops.take(self.table, asarray(indices, device="cpu"), axis=0)
        return np.asarray(self._logits(x[None], rows)[0, : ids.size])

    def whole(self, x: Array) -> Array:
        """Return all logits of inputs [n, hidden_size]."""
        return self._logits(x, self.table)

    def _logits(self, x: Array, table: Tensor) -> Array:
        logits = ops.linear(asarray(x, device="cpu"), table)
        return np.asarray((logits if self.multiplier == 1 else logits * self.multiplier).numpy())

    def count(self, **more: int) -> None:
        """Add to the statistics."""
        with self._lock:
            for name, number in more.items():
                setattr(self.statistics, name, getattr(self.statistics, name) + number)


def refusal(table: Tensor | QuantLinear, forced: bool = False) -> str:
    """Return why a head is not read through an int8 copy; "" if it pays, or can be where it is `forced`."""
    if isinstance(table, QuantLinear):
        return f"its weights are {table.weight.scheme} already"
    on_host = table.device.type == "cpu"
    if on_host and buffer.native is None:
        return "without the native library sums have no fixed order"
    if not on_host and not _decides(table):
        return f"{table.device} reads the whole head"
    saved, worth = table.nbytes - table.size - 12 * table.shape[0], WORTH if on_host else WORTH_THERE
    if saved < worth and not forced:
        return f"an int8 copy would save {max(saved, 0) >> 20} MB a token, too few of {worth >> 20} MB that pay"
    return ""


def _decides(table: Tensor) -> bool:
    """Return True if the device of a table has a kernel that reads it through an int8 copy."""
    (rows, columns), each = table.shape, Spec(table.shape[:1])
    specs = (Spec((1, columns)), table.spec, Spec((rows, columns), dt.i8), each, each, each)
    layouts = (None, table.layout, *[None] * 4)
    backend = table.device.backend
    return (
        bool(table.size)
        and backend.runs_ahead
        and backend.choose(ops.bounded_argmax, specs, {"multiplier": 1.0}, layouts) is not None
    )


def certify(table: Tensor, multiplier: float = 1.0, *, threads: int = 1) -> CertifiedHead | None:
    """Return a head with an int8 copy of its table; None where a number of the table is not finite. threads: that quantise it."""
    (n, k), host = table.shape, table.to(device="cpu")
    q, scale = np.empty((n, k), np.int8), np.empty(n, np.float32)
    error, norm = np.empty(n, np.float32), np.empty(n, np.float32)
    rows = max(1, CHUNK // max(k, 1))

    def part(first: int) -> None:
        chunk = slice(first, min(first + rows, n))
        q[chunk], scale[chunk], error[chunk], norm[chunk] = _quantised(host[chunk].to(dt.f32).numpy())

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"), ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(0, n, rows)))
    if not (np.isfinite(error).all() and np.isfinite(norm).all()):
        return None
    weight = quant.Quantized("int8", asarray(q, device="cpu"), asarray(scale, device="cpu"))
    lost, length = asarray(error, device="cpu"), asarray(norm, device="cpu")
    head = CertifiedHead(host, QuantLinear(weight), lost, length, multiplier)
    return head if host is table else head.to(table.device, table)


def _quantised(w: Array) -> tuple[Array, Array, Array, Array]:
    """Return rows of f32 as int8 and their scales; no less than the length of what each lost, and than its int8 length."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
        scale = np.maximum(np.abs(w).max(axis=1, initial=0) / np.float32(127), np.float32(2.0**-126))
        ratio = w / scale[:, None]
        np.rint(ratio, out=ratio)
        np.clip(ratio, -127, 127, out=ratio)
        q = ratio.astype(np.int8)
        ratio *= scale[:, None]
        norm = _length(ratio)
        np.subtract(w, ratio, out=ratio)
        error = _length(ratio) + 4 * UNIT * norm
        return q, scale, _upward(error), _upward(norm)


def _length(rows: Array) -> Array:
    """Return the length of each row of f32, no less than it is: sums of squares lose at most k u of them, in any order."""
    k = rows.shape[1]
    lost = (k + 2) * UNIT / (1 - (k + 2) * UNIT)
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows).astype(np.float64)) * (1 + lost))


def _upward(a: Array) -> Array:
    return np.asarray((a * MORE + FLOOR).astype(np.float32))

"""The largest logit through an int8 copy of a head in NumPy, and the numbers of its bounds, which every kernel takes from here.

`docs/certified.md` has the proof.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tritium import ops
from tritium.backends.reference.quantized import Weight, integers
from tritium.op import Op

Arr = np.ndarray[Any, Any]
UNIT = 2.0**-24  # of f32
MORE = 1 + 2.0**-18  # a factor that makes a number no less than it is, however it was rounded
LEAST, MOST = 2.0**-20, 2.0**126  # length of an input, and size of a logit; beyond, nothing is bounded
SMALLEST = np.float32(2.0**-60)  # the largest of a vector, at least: it is divided by


class Factors(NamedTuple):
    """Factors of the lengths of an input with k columns in its bounds, and the least length that has any."""

    least: float
    near: float  # the length: what the error of a row is multiplied by
    far: float  # the length, as part of what the norm of a row is multiplied by
    lost: float  # the length of what the int8 parts lost
    parts: float  # the lengths of the int8 parts
    reach: float  # the length: times the error and the norm of a row no partial sum is larger


def factors(k: int, multiplier: float) -> Factors:
    """Return the factors, each f32 and no less than it is."""
    m, g = abs(float(np.float32(multiplier))), k * UNIT / (1 - k * UNIT)
    exact = (
        LEAST / min(1.0, m) if m else np.inf,
        m * MORE * (1 + g + 4 * UNIT), m * MORE * (g + 4 * UNIT), m * MORE, m * MORE * 16 * UNIT, (1 + g) * max(1.0, m) * MORE,
    )  # fmt: skip
    return Factors(*(float(np.nextafter(np.float32(n), np.float32(np.inf))) for n in exact))


def _int8(v: Arr) -> tuple[Arr, np.float32]:
    """Return a vector as integers up to 127, and their scale."""
    largest = np.maximum(np.abs(v).max(initial=0), SMALLEST)
    return np.rint(v * (np.float32(127) / largest)), largest / np.float32(127)


def _length(v: Arr) -> float:
    return float(np.sqrt((v * v).sum()))


def _bounds(x: Arr, copy: Arr, scale: Arr, error: Arr, norm: Arr, multiplier: float) -> tuple[Arr, Arr]:
    """Return what each logit of one input is at least and at most."""
    by = factors(x.size, multiplier)
    finite = bool(np.isfinite(x).all())
    x = np.where(finite, x, np.float32(0))
    first, first_scale = _int8(x)
    second, second_scale = _int8(x - first * first_scale)
    y1, y2 = first.astype(np.float64) * float(first_scale), second.astype(np.float64) * float(second_scale)
    length, lost = _length(x.astype(np.float64)), _length(x.astype(np.float64) - y1 - y2)
    a = np.float32(length * by.near)
    b = np.float32(lost * by.lost + length * by.far + (_length(y1) + _length(y2)) * by.parts)
    reach = np.float32(length * by.reach if finite and length >= by.least else np.inf)
    one, two = (
        (copy @ q.astype(np.int64)).astype(np.float32) * (s * scale)
        for q, s in ((first, first_scale), (second, second_scale))
    )
    centre = (one + two) * np.float32(multiplier)
    distance = error * a + norm * b
    known = (error + norm) * reach < np.float32(MOST)
    return np.where(known, centre - distance, -np.inf), np.where(known, centre + distance, np.inf)


def _bounded_argmax(
    x: Arr, table: Arr, copy: Weight, scale: Arr, error: Arr, norm: Arr, *, multiplier: float, out: tuple[Arr, Arr, Arr]
) -> None:
    index, value, rows = out
    whole = integers(copy).astype(np.int64)
    with np.errstate(all="ignore"):
        for i, token in enumerate(x.astype(np.float32)):
            lower, upper = _bounds(token, whole, scale, error, norm, multiplier)
            ids = np.flatnonzero(upper >= lower.max())
            logits = (table[ids].astype(np.float32) @ token) * np.float32(multiplier)
            best = int(logits.argmax())
            index[i], value[i], rows[i] = ids[best], logits[best], ids.size


KERNELS: dict[Op, Any] = {ops.bounded_argmax: _bounded_argmax}

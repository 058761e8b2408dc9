"""Compare the weights of two models and name the first difference: tensor, row, column, both values.

Knows nothing of containers: it compares ternary values and scales, not their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from pathlib import Path

import numpy as np

from tritium.arguments import checked
from tritium.errors import ArgumentError
from tritium.escape import visible
from tritium.io.model import experts, names
from tritium.io.model.entry import Entry, ModelFile
from tritium.io.model.opening import open as open_model
from tritium.io.stream import Progress
from tritium.io.ternary import Array, Ternary, rows_at_a_time, unpack


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison. `scale_error` is the largest relative difference of two scales that was tolerated."""

    same: bool
    tensors: int  # compared
    ternary: int  # of them
    values: int
    scale_error: float
    difference: str = ""
    notes: tuple[str, ...] = ()


@checked
def verify(
    a: str | Path | ModelFile,
    b: str | Path | ModelFile,
    *,
    rtol: float = 0.0,
    variant: str | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Compare two models, of any formats. Ternary values must be equal; scales and plain numbers within `rtol`, exactly by default.

    A scale whose weights are all zero is not compared: it has no effect. fp16 formats (tq1_0, tq2_0, q2_0) round
    scales by up to 1/2048 = 4.9e-4, so pass that as `rtol` to compare them with their source.
    """
    if not 0 <= rtol < float("inf"):
        raise ArgumentError(f"verify: rtol must be a number from 0 up, given {rtol}.")
    first = a if isinstance(a, ModelFile) else open_model(a, variant=variant)
    second = b if isinstance(b, ModelFile) else open_model(b, variant=variant)
    left, right, notes = _shared(first, second)
    total, done, ternary, values, worst = sum(e.nbytes for e in left.values()), 0, 0, 0, 0.0
    for name in [n for n in left if n not in right] + [n for n in right if n not in left]:
        holder = first if name in left else second
        text = f"tensor {visible(name)!r} is only in {visible(holder.path.name)}"
        return Verdict(False, 0, 0, 0, 0.0, text, notes)
    for count, (name, entry) in enumerate(left.items()):
        result = compare(entry, right[name], rtol)
        ternary += result.ternary
        worst = max(worst, result.scale_error)
        if result.difference:
            text = f"tensor {visible(name)!r}{result.difference}"
            return Verdict(False, count, ternary, values, worst, text, notes)
        values += int(np.prod(entry.shape, dtype=object))
        done += entry.nbytes
        if progress:
            progress(done, total, name)
    return Verdict(True, len(left), ternary, values, worst, "", notes)


def _shared(first: ModelFile, second: ModelFile) -> tuple[dict[str, Entry], dict[str, Entry], tuple[str, ...]]:
    """Return the entries by common name, without a head tied to the embeddings that only one of the models stores."""
    left, right, notes = first.named, second.named, []
    if experts.has_stacks(left.values()) != experts.has_stacks(right.values()):
        left, right = ({e.common: e for e in experts.stack(named.values())} for named in (left, right))
    for entries, model, other in ((left, first, right), (right, second, left)):
        if "lm_head.weight" in entries and "lm_head.weight" not in other and model.config.get("tie_word_embeddings"):
            del entries["lm_head.weight"]
            notes.append(f"{visible(model.path.name)} stores its tied head twice; the copy was not compared")
    return left, right, tuple(notes)


@dataclass(frozen=True)
class Compared:
    """The result for one tensor."""

    ternary: bool = False
    scale_error: float = 0.0
    difference: str = ""


def compare(a: Entry, b: Entry, rtol: float = 0.0) -> Compared:
    """Compare two weights by value."""
    left_shape, right_shape = (_squeezed(e) for e in (a, b))
    if left_shape != right_shape:
        return Compared(difference=f": shape {list(a.shape)} and {list(b.shape)}")
    left, right = a.find_ternary(), b.find_ternary()
    if left is not None and right is not None:
        return compare_ternary(left, right, rtol)
    if (left is not None and b.role != "plain") or (right is not None and a.role != "plain"):
        kinds = [f"{e.stored} ({'ternary' if t is not None else 'not ternary'})" for e, t in ((a, left), (b, right))]
        return Compared(difference=f": {kinds[0]} and {kinds[1]}")
    return _compare_plain(a, b, rtol)


def _squeezed(e: Entry) -> tuple[int, ...]:
    """Return the shape of a tensor without the sides of 1 that GGUF leaves out."""
    return tuple(n for n in e.shape if n != 1) if names.is_squeezed(e.name, e.arch) else e.shape


def compare_ternary(a: Ternary, b: Ternary, rtol: float = 0.0) -> Compared:
    """Compare the codes first, then the scales that have an effect."""
    n, k = a.shape
    if not np.array_equal(a.codes, b.codes):
        for r in rows_at_a_time(n, k):
            left, right = unpack(a.codes[r], k), unpack(b.codes[r], k)
            if (left != right).any():
                i, j = (int(x) for x in np.unravel_index(int((left != right).argmax()), left.shape))
                values = " and ".join(("-1", "0", "+1")[codes[i, j]] for codes in (left, right))
                return Compared(True, 0.0, f", row {r.start + i}, column {j}: {values}")
    width = gcd(a.group or k, b.group or k) or 1
    used = Ternary(a.codes, a.shape, np.zeros((n, k // width), np.float32), width).used()
    left_s, right_s = a.scales(width), b.scales(width)
    assert left_s is not None
    assert right_s is not None
    error = _relative(left_s, right_s) * used
    worst = float(error.max(initial=0.0))
    if worst <= rtol:
        return Compared(True, worst)
    i, j = (int(x) for x in np.unravel_index(int((error > rtol).argmax()), error.shape))
    where = (
        ""
        if not (a.scale.ndim or b.scale.ndim)
        else f", row {i}" + (f", columns from {j * width}" if width < k else "")
    )
    text = f"{where}: scale {left_s[i, j]:.9g} and {right_s[i, j]:.9g}, apart by {error[i, j]:.2g}"
    return Compared(True, worst, text)


def _relative(a: Array, b: Array) -> Array:
    size = np.maximum(np.abs(a), np.abs(b)).astype(np.float64)
    error: Array = np.abs(a.astype(np.float64) - b) / np.where(size == 0, 1, size)
    return error


def _compare_plain(a: Entry, b: Entry, rtol: float) -> Compared:
    """Compare numbers as fp32, in chunks; NaN equals NaN. A ternary table and the same one as floats are equal."""
    first = 0
    for left, right in zip(a.chunks(), b.chunks(), strict=True):
        with np.errstate(over="ignore"):
            x, y = (part.astype(np.float32) + np.float32(e.shift) for part, e in ((left, a), (right, b)))
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        if rtol and not same.all():
            same |= _relative(x, y) <= rtol
        if not same.all():
            i, j = (int(v) for v in np.unravel_index(int((~same).argmax()), same.shape))
            where = f", row {first + i}, column {j}" if len(a.shape) > 1 else f", element {first + i}"
            return Compared(difference=f"{where}: {x[i, j]:.9g} and {y[i, j]:.9g}")
        first += len(left)
    return Compared()

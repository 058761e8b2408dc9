"""Cases of quantisation: schemes x granularity x sizes; the time of each step, the bytes stored and the error.

Times come from the measurement; bytes and errors are facts of the case, over the whole matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

import tritium as tt
from tritium.errors import ArgumentError
from tritium.perf.records.case import Case, Context, Made, Recipe, UnsupportedError, Work
from tritium.perf.words import nearest
from tritium.perf.work.libraries import OWN, Library, library_of
from tritium.perf.work.operations import ROUNDING, Shape, drawn, dtype_named

Data = np.ndarray[Any, Any]
STEPS = ("quantize", "dequantize", "matmul")


class Scheme(NamedTuple):
    """The storage of weights in a scheme."""

    dtype: str
    granularity: str = "tensor"  # what shares a scale: "tensor", "channel" (a row), or "group"
    group: int = 0
    symmetric: bool = True

    def scales(self, shape: Shape) -> int:
        """Return how many scales a matrix has."""
        if self.dtype == "f16":
            return 0
        return {"tensor": 1, "channel": shape[0], "group": shape[0] * -(-shape[1] // max(self.group, 1))}[
            self.granularity
        ]

    def nbytes(self, shape: Shape) -> int:
        """Return the bytes of the integers, their scales and zero points."""
        return tt.Spec(shape, dtype_named(self.dtype)).nbytes + self.scales(shape) * (4 if self.symmetric else 8)


SCHEMES = {
    "ternary": Scheme("tern2"), "ternary-tern5": Scheme("tern5"), "ternary-channel": Scheme("tern2", "channel"),
    "ternary-g128": Scheme("tern2", "group", 128), "int4-g64": Scheme("i4", "group", 64), "int4-g128": Scheme("i4", "group", 128),
    "int8": Scheme("i8"), "int8-channel": Scheme("i8", "channel"), "int8-asymmetric": Scheme("i8", symmetric=False),
    "fp16": Scheme("f16"),
}  # fmt: skip


def quantisation(
    shapes: Sequence[Sequence[int]] = ((1024, 1024),),
    schemes: Sequence[str] | None = None,
    steps: Sequence[str] = STEPS,
    *,
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
) -> list[Case]:
    """Return cases of quantising, dequantising, and multiplying one token by the quantised weights: every scheme, every size."""
    cases = []
    for name in schemes or SCHEMES:
        if name not in SCHEMES:
            raise ArgumentError(
                f"quantisation: {name!r} is no scheme.{nearest(name, SCHEMES)} There are {', '.join(SCHEMES)}."
            )
        for shape in map(tuple, shapes):
            if len(shape) != 2 or min(shape) < 1:
                raise ArgumentError(
                    f"quantisation: a matrix (rows, columns), each 1 or more, is needed, given {shape}."
                )
            for step in steps:
                arguments = {
                    "step": step,
                    "scheme": name,
                    "shape": list(shape),
                    "seed": seed,
                    "threads": threads,
                    "device": device,
                }
                context = Context(step, shape, name, device, parameters=prod(shape), threads=threads or 1)
                recipe = Recipe("tritium.perf.work.quantised:quantised", arguments)
                cases.append(
                    Case(f"{step} {name} {shape[0]}x{shape[1]}", recipe, context, _work(step, SCHEMES[name], shape))
                )
    return cases


def _work(step: str, scheme: Scheme, shape: Shape) -> Work:
    """Return the work of one step."""
    full, stored, n = 4 * prod(shape), scheme.nbytes(shape), prod(shape)
    if step == "quantize":
        return Work(4 * n, full, stored, items=n, item="weight")
    if step == "dequantize":
        return Work(n, stored, full, items=n, item="weight")
    integer = scheme.dtype != "f16" and scheme.symmetric
    return Work(2 * n, stored + 4 * shape[1], 4 * shape[0], integer, 1, "token")


def quantised(
    candidate: str,
    *,
    step: str,
    scheme: str,
    shape: Sequence[int],
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
) -> Made:
    """Build one step of one scheme."""
    if step not in STEPS:
        raise ArgumentError(f"quantised: {step!r} is no step.{nearest(step, STEPS)} There are {', '.join(STEPS)}.")
    library = library_of(candidate, device, threads)
    rng = np.random.default_rng(seed)
    w = drawn(tuple(shape), partial(rng.standard_normal, dtype=np.float32)) * np.float32(0.02)
    x = rng.standard_normal((1, shape[1]), np.float32)
    if library.name in OWN:
        return _own(library, step, scheme, w, x)
    if library.name != "numpy":
        raise UnsupportedError(
            f"the schemes of quantisation are written for Tritium and NumPy, not for {library.name}."
        )
    return _numpy(step, scheme, w, x)


def _own(library: Library, step: str, name: str, w: Data, x: Data) -> Made:
    """Build a step with Tritium."""
    if library.compiles:
        raise UnsupportedError("quantisation runs before anything is compiled.")
    make = tt.quant.SCHEMES[name]
    full, token = library.array(w), library.array(x)
    stored = make(full)
    restored = library.back(stored.dequantize())
    facts = storage_facts(w, restored, stored.nbytes) | {
        "granularity": SCHEMES[name].granularity,
        "stored as": str(stored.data.dtype),
    }
    if step == "matmul":
        ready = stored.tiled()
        return Made(
            partial(ready.matmul, token), library.wait, library.back, lambda: _product(x, restored), 0.02, facts
        )
    if step == "dequantize":
        return Made(stored.dequantize, library.wait, library.back, lambda: restored, 0.0, facts)
    return Made(
        partial(make, full), library.wait, lambda q: library.back(q.dequantize()), lambda: right(name, w, restored),
        tolerance(name, w), facts,
    )  # fmt: skip


def _product(x: Data, w: Data) -> Data:
    return np.asarray(x.astype(np.float64) @ w.astype(np.float64).T)


def storage_facts(w: Data, restored: Data, nbytes: int) -> dict[str, Any]:
    """Return the bytes stored and the error. Nothing infinite: without error there is no ratio."""
    error = (restored - w).ravel()
    noise, signal, size = (float(np.vdot(a, a)) for a in (error, w.ravel(), restored.ravel()))
    norms = math.sqrt(signal * size)
    return {
        "bytes before": w.nbytes, "bytes after": nbytes, "times smaller": w.nbytes / nbytes, "bits a weight": 8 * nbytes / w.size,
        "mse": noise / w.size, "sqnr dB": 10 * math.log10(signal / noise) if noise and signal else None,
        "cosine": float(np.vdot(w.ravel(), restored.ravel())) / norms if norms else None,
        "largest error": float(max(error.max(), -error.min())),
    }  # fmt: skip


def right(name: str, w: Data, restored: Data) -> Data:
    """Return the expected result of a scheme. Ternary: its definition, except elements within rounding of an edge; others: the weights."""
    if not name.startswith("ternary"):
        return w
    scale = _scale(SCHEMES[name], np.abs(w.astype(np.float64)), np.mean)
    t = w / scale
    exact = np.clip(np.rint(t), -1, 1) * scale
    return np.where(np.abs(np.abs(t) - 0.5) > 1e-3, exact, restored)


def tolerance(name: str, w: Data) -> float:
    """Return half a step of the scheme, relative to the largest weight; ternary is checked against its definition."""
    if name.startswith("ternary"):
        return 10 * ROUNDING["f32"]
    levels = {"i8": 127, "i4": 7, "f16": 1024}[SCHEMES[name].dtype]
    return 0.51 / levels


def _scale(scheme: Scheme, size: Data, reduce: Any) -> Data:
    """Return, for each element, the mean or the maximum of the magnitudes that share its scale."""
    if scheme.granularity == "tensor":
        return np.asarray(reduce(size))
    if scheme.granularity == "channel":
        return np.asarray(reduce(size, axis=1, keepdims=True))
    starts = range(0, size.shape[1], scheme.group)
    groups = [reduce(size[:, a : a + scheme.group], axis=1, keepdims=True) for a in starts]
    widths = [min(scheme.group, size.shape[1] - a) for a in starts]
    return np.repeat(np.concatenate(groups, axis=1), widths, axis=1)


# ---- NumPy, as its users write it: one integer per byte


def numpy_quantize(name: str, w: Data) -> tuple[Data, Data | None]:
    """Return codes and the scale of each element (None: floats)."""
    scheme = SCHEMES[name]
    if scheme.dtype == "f16":
        return w.astype(np.float16), None
    ternary = name.startswith("ternary")
    limit = np.float32({"i8": 127, "i4": 7}.get(scheme.dtype, 1))
    scale = np.maximum(
        _scale(scheme, np.abs(w), np.mean if ternary else np.max), np.float32(1e-5 if ternary else 1e-30)
    )
    scale = scale if ternary else scale / limit
    return np.clip(np.rint(w / scale), -limit, limit).astype(np.int8), scale


def _numpy(step: str, name: str, w: Data, x: Data) -> Made:
    """Build a step with NumPy."""
    if not SCHEMES[name].symmetric:
        raise UnsupportedError(f"{name} is not written for NumPy.")
    codes, scale = numpy_quantize(name, w)

    def dequantize(codes: Data, scale: Data | None) -> Data:
        return codes.astype(np.float32) if scale is None else np.multiply(codes, scale, dtype=np.float32)

    restored = dequantize(codes, scale)
    stored = codes.nbytes + 4 * SCHEMES[name].scales(w.shape)
    facts = storage_facts(w, restored, stored) | {
        "granularity": SCHEMES[name].granularity,
        "stored as": str(codes.dtype),
    }
    own = _work(step, SCHEMES[name], w.shape)
    traffic = {
        "quantize": (w.nbytes, stored),
        "dequantize": (stored, w.nbytes),
        "matmul": (w.nbytes + x.nbytes, own.written),
    }[step]
    work = Work(own.flops, *traffic, False, own.items, own.item)
    if step == "matmul":
        facts["weights"] = "dequantised to f32 before timing"
        return Made(
            lambda: x @ restored.T, None, np.asarray, lambda: _product(x, restored), ROUNDING["f32"], facts, work
        )
    if step == "dequantize":
        return Made(partial(dequantize, codes, scale), None, np.asarray, lambda: restored, 0.0, facts, work)
    return Made(
        partial(numpy_quantize, name, w), None, lambda result: dequantize(*result), lambda: right(name, w, restored),
        tolerance(name, w), facts, work,
    )  # fmt: skip

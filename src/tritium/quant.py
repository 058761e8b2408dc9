"""Quantisation of weights and activations: real packed storage, what it costs, and what it loses.

Knows nothing of layers or files. Plain functions over the rows `quantize_*`, `dequantize` and `quantized_matmul`.

    q = tt.quant.ternary(w)            # absmean, 2 bits a weight
    print(q.nbytes, q.quality(w))      # bytes, and how far from w it is
    print(tt.quant.pareto(w))          # every scheme on your own tensor
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tritium import dtype as dt, ops
from tritium.errors import ArgumentError, QuantError, ShapeError, nearest
from tritium.functions import asarray, randn
from tritium.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Quantized:
    """A matrix as small integers and scales: w ≈ (data - zero) * scale."""

    scheme: str
    data: Tensor
    scale: Tensor | None = None  # None: floats, nothing to scale
    zero: Tensor | None = None  # None: the integers are symmetric
    group: int = 0  # columns that share a scale; 0: a whole row or the whole matrix does

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def nbytes(self) -> int:
        """Return bytes of everything that must be kept: integers, scales and zero points."""
        return self.data.nbytes + sum(t.nbytes for t in (self.scale, self.zero) if t is not None)

    @property
    def bits(self) -> float:
        """Return bits for one weight, scales included."""
        return 8 * self.nbytes / max(self.data.size, 1)

    def dequantize(self, dtype: Any = dt.f32) -> Tensor:
        """Return the dequantised floats."""
        if self.scale is None:
            return self.data.to(dtype)
        return ops.dequantize(self.data, self.scale, self.zero, self.group, dtype=dtype)

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x @ w.T + bias. Integers multiply int8 activations exactly; floats, and zero points by groups, go through
        floats."""
        x = x if isinstance(x, Tensor) else asarray(np.asarray(x))
        x = x if x.dtype.is_float else x.to(dt.f32)
        if self.scale is not None and self.zero is None:
            return ops.quantized_matmul(x, self.data, self.scale, bias, self.group)
        if self.scale is None or self.zero is None or self.group:
            y = ops.matmul(x, self.dequantize(x.dtype).T)
        else:  # sum q (w - zero) = sum q w - zero * sum q
            q, token, total = (t if t.dtype is dt.i8 else t[..., None] for t in ops.quantize_activations(x))
            sums = ops.integer_matmul(q, self.data).to(dt.i64) - total.to(dt.i64) * self.zero
            y = (sums.to(dt.f32) * (token * self.scale)).to(x.dtype)
        return y if bias is None else y + bias

    def check(self) -> None:
        """Raise unless the scale fits the integers."""
        if self.scale is not None:
            ops.dequantize.decide((self.data.spec, self.scale.spec, None), {"group": self.group, "dtype": dt.f32})

    def to(self, device: Any) -> Quantized:
        """Return the same on another device."""
        scale, zero = (None if t is None else t.to(device=device) for t in (self.scale, self.zero))
        return replace(self, data=self.data.to(device=device), scale=scale, zero=zero)

    def tiled(self) -> Quantized:
        """Return the integers in the order in which this device's kernels read them fastest; for weights that stay."""
        liked = self.data.device.backend.tiling(self.data.dtype)
        return self if liked is self.data.dtype else replace(self, data=ops.repack(self.data, liked))

    def plain(self) -> Quantized:
        """Return the integers packed along rows again: the form that is saved and compared."""
        base = CANONICAL.get(self.data.dtype)
        return self if base is None else replace(self, data=ops.repack(self.data, base))

    def quality(self, w: Any, x: Tensor | None = None) -> Quality:
        """Measure the error against the floats `w`; the product is compared on `x`, or on Gaussian tokens."""
        return _quality(self, _matrix(w, "quality"), x, quantize_ms=math.nan)


CANONICAL = {
    dt.tern2_r64: dt.tern2,
    dt.tern2_r16: dt.tern2,
    dt.tern5_r80: dt.tern5,
    dt.i8_r16: dt.i8,
    dt.i4_r32: dt.i4,
}


def _matrix(w: Any, what: str) -> Tensor:
    w = w if isinstance(w, Tensor) else asarray(np.asarray(w))
    if w.ndim != 2:
        raise ShapeError(f"quant.{what}: a matrix [N, K] is needed, given {w.spec}; reshape it first.")
    return w


class TernaryScale(NamedTuple):
    """Of values that are all -scale, 0 or scale."""

    scale: float  # 0: there are only zeros
    zeros: float  # their share


def scale_of(values: np.ndarray[Any, Any]) -> TernaryScale | None:
    """Return the s of a matrix of which every value is -s, 0 or s; None where they are anything else."""
    if len(np.unique(np.abs(values[:16, :16]))) > 2:  # a glance: most weights are told by it
        return None
    sizes = np.abs(values)
    most = sizes.max(initial=0)
    zero = sizes == 0
    if not np.isfinite(most) or not bool((zero | (sizes == most)).all()):
        return None
    return TernaryScale(float(most), float(zero.mean()) if zero.size else 0.0)


# ---- weights


def ternary(w: Any, *, axis: int | None = None, group: int = 0, dtype: Any = dt.tern2) -> Quantized:
    """Quantise by absmean: g = max(mean|w|, 1e-5), t = clip(round(w / g), -1, 1), half to even. One g for all, for each row
    (axis=0) or for each group of columns. dtype: 'tern2' (2 bits) or 'tern5' (1.6 bits)."""
    data, scale = ops.quantize_ternary(_matrix(w, "ternary"), axis=axis, group=group, dtype=dtype)
    return Quantized("ternary", data, scale, None, group)


def int8(w: Any, *, axis: int | None = None, group: int = 0, symmetric: bool = True) -> Quantized:
    """Quantise to int8. Symmetric: scale = max|w| / 127. Asymmetric: 256 levels between the smallest and the largest, 0 exactly one."""
    q, scale, zero = ops.quantize_int8(_matrix(w, "int8"), axis=axis, group=group, symmetric=symmetric)
    return Quantized("int8" if symmetric else "int8-asymmetric", q, scale, None if symmetric else zero, group)


def int4(w: Any, *, group: int = 64) -> Quantized:
    """Quantise to int4: two values a byte, scale = max|w| / 7 for each group of columns. Products are fastest in groups of 64 or a multiple."""
    data, scale = ops.quantize_int4(_matrix(w, "int4"), group=group)
    return Quantized("int4", data, scale, None, group)


def fp16(w: Any) -> Quantized:
    """Convert to half floats; raise for values beyond their range."""
    w = _matrix(w, "fp16")
    data = ops.astype(w, dt.f16)
    bad = ~np.isfinite(data.to("cpu").numpy())
    if bad.any():
        index = [int(i) for i in np.argwhere(bad)[0]]
        value = w[tuple(index)].item()
        raise QuantError(
            f"quant.fp16: element {index} is {value}, which f16 (to 65504) does not hold; use bf16 or f32."
        )
    return Quantized("fp16", data)


def from_integers(t: Any, scale: Any = 1.0, *, group: int = 0, dtype: Any = dt.tern2) -> Quantized:
    """Check and pack integers you already have, with their scale as a multiplier: one number, one for each row, or
    one for each group of columns."""
    integers = t if isinstance(t, Tensor) else asarray(np.asarray(t))
    kind = dt.dtype(dtype)
    if integers.dtype.is_float:
        back = ops.astype(ops.astype(integers, dt.i8), integers.dtype)
        if not bool(ops.all(ops.equal(back, integers))):
            raise QuantError(
                "from_integers: some elements are not whole numbers; quantise floats with quant.ternary(w)."
            )
    if integers.dtype.is_packed:
        check_codes(integers)
    else:
        _check_range(integers, kind)
        integers = ops.astype(integers, dt.i8)
    data = integers if integers.dtype is kind else ops.repack(integers, kind)
    quantized = Quantized("ternary" if kind.is_ternary else kind.name, data, _multiplier(scale), None, group)
    quantized.check()
    return quantized


def _check_range(t: Tensor, kind: dt.DType) -> None:
    low, high = kind.values if kind.is_packed else (-128, 127)
    values = t.to("cpu").numpy()
    bad = (values < low) | (values > high)
    if bad.any():
        index = [int(i) for i in np.argwhere(bad)[0]]
        raise QuantError(f"from_integers: element {index} is {values[tuple(index)]}, but {kind} holds {low} to {high}.")


def check_codes(w: Tensor) -> None:
    """Raise for the first code of a packed tensor that is no weight: its bytes are damaged or misread."""
    index = w.device.backend.first_illegal(w)
    if index >= 0:
        row, column = divmod(index, w.shape[-1])
        raise QuantError(
            f"{w.spec}: the code of element [{row}, {column}] means no weight; the bytes are damaged or of another layout."
        )


def _multiplier(scale: Any) -> Tensor:
    """Return a scale as an f32 tensor; it must be finite there."""
    if not isinstance(scale, Tensor):
        try:
            with np.errstate(over="ignore"):
                scale = asarray(np.asarray(scale, np.float32))
        except (TypeError, ValueError):
            raise ArgumentError(f"scale must be a number or an array of numbers, given {scale!r}.") from None
    scale = scale.to(dt.f32)
    if not bool(ops.all(ops.isfinite(scale))):
        raise QuantError("A scale is NaN, or infinite in f32; weights need finite scales.")
    return scale


# ---- activations


class Activations(NamedTuple):
    """Tokens as int8: x ≈ q * scale[..., None]."""

    q: Tensor
    scale: Tensor
    sum: Tensor  # of q along each token: what products with unsigned codes subtract


def activations(x: Tensor) -> Activations:
    """Quantise activations to int8 by absmax per token: amax = max(|x|, 1e-5), q = rint(x * (127 / amax)), scale = amax / 127."""
    result = Activations(*ops.quantize_activations(x))
    if bool(ops.any(ops.isnan(result.scale))):
        values = x.to("cpu").to(dt.f32).numpy()
        index = [int(i) for i in np.argwhere(~np.isfinite(values))[0]]
        raise QuantError(
            f"quant.activations: element {index} is {values[tuple(index)]}; quantisation needs finite numbers."
        )
    return result


# ---- what is lost, and what it costs


class Quality(NamedTuple):
    """One row of the comparison of schemes."""

    scheme: str
    bits: float  # for one weight, scales included
    bytes_before: int
    bytes_after: int
    mse: float
    sqnr_db: float  # signal to quantisation noise; infinite when nothing was lost
    cosine: float
    max_error: float
    matmul_error: float  # |y - y_float| / |y_float| over the tokens tried
    quantize_ms: float
    dequantize_ms: float
    matmul_ms: float
    best: bool = False  # no other scheme is both smaller and closer

    @property
    def ratio(self) -> float:
        """Return the compression ratio."""
        return self.bytes_before / max(self.bytes_after, 1)


def _milliseconds(fn: Callable[[], Any], tries: int = 5) -> float:
    """Return the median of a few calls, after one to warm up."""
    fn()
    times = []
    for _ in range(tries):
        start = time.perf_counter_ns()
        fn()
        times.append(time.perf_counter_ns() - start)
    return sorted(times)[tries // 2] / 1e6


def _quality(q: Quantized, w: Tensor, x: Tensor | None, quantize_ms: float) -> Quality:
    if w.shape != q.shape:
        raise ShapeError(f"quality: the floats {w.spec} and the quantised {q.data.spec} differ in shape.")
    x = randn((16, w.shape[1]), seed=0) if x is None else x if isinstance(x, Tensor) else asarray(np.asarray(x))
    if x.ndim != 2 or x.shape[1] != w.shape[1] or not x.shape[0]:
        raise ShapeError(f"quality: x must be tokens [M, {w.shape[1]}], at least one, given {x.spec}.")
    full, near = (t.to("cpu").to(dt.f64).numpy() for t in (w, q.dequantize()))
    error = near - full
    noise, signal = float((error**2).sum()), float((full**2).sum())
    norms = math.sqrt(signal) * float(np.linalg.norm(near))
    tokens = x.to("cpu").to(dt.f64).numpy()
    want = tokens @ full.T
    ready = q.tiled()
    got = ready.matmul(x).to("cpu").to(dt.f64).numpy()
    return Quality(
        scheme=q.scheme,
        bits=q.bits,
        bytes_before=w.nbytes,
        bytes_after=q.nbytes,
        mse=noise / max(full.size, 1),
        sqnr_db=math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf,
        cosine=float((full * near).sum()) / norms if norms else float(noise == 0),
        max_error=float(np.abs(error).max(initial=0)),
        matmul_error=float(np.linalg.norm(got - want) / max(float(np.linalg.norm(want)), 1e-30)),
        quantize_ms=quantize_ms,
        dequantize_ms=_milliseconds(q.dequantize),
        matmul_ms=_milliseconds(lambda: ready.matmul(x[:1])),
    )


SCHEMES: dict[str, Callable[[Tensor], Quantized]] = {
    "ternary": ternary,
    "ternary-tern5": lambda w: ternary(w, dtype=dt.tern5),
    "ternary-channel": lambda w: ternary(w, axis=0),
    "ternary-g128": lambda w: ternary(w, group=128),
    "int4-g64": int4,
    "int4-g128": lambda w: int4(w, group=128),
    "int8": int8,
    "int8-channel": lambda w: int8(w, axis=0),
    "int8-asymmetric": lambda w: int8(w, symmetric=False),
    "fp16": fp16,
}


def quality(w: Any, scheme: str = "ternary", *, x: Tensor | None = None) -> Quality:
    """Quantise `w` by a scheme and say what it costs: bytes, MSE, SQNR, cosine, largest error, error of a product."""
    if scheme not in SCHEMES:
        raise ArgumentError(f"quality: {scheme!r} is no scheme.{nearest(scheme, SCHEMES)} Known: {', '.join(SCHEMES)}.")
    full = _matrix(w, "quality")
    make = SCHEMES[scheme]
    row = _quality(make(full), full, x, _milliseconds(lambda: make(full), 3))
    return row._replace(scheme=scheme)


class Pareto(tuple[Quality, ...]):
    """Qualities from the smallest to the largest; printing it gives a table."""

    __slots__ = ()

    def __str__(self) -> str:
        heads = ["scheme", "bits", "smaller", "SQNR dB", "cosine", "max error", "matmul error", "1 token ms", "best"]
        lines = [
            [q.scheme, f"{q.bits:.2f}", f"{q.ratio:.1f}x", f"{q.sqnr_db:.1f}", f"{q.cosine:.4f}", f"{q.max_error:.3g}",
             f"{q.matmul_error:.2%}", f"{q.matmul_ms:.3f}", "*" if q.best else ""]
            for q in self
        ]  # fmt: skip
        widths = [max(len(r[i]) for r in [heads, *lines]) for i in range(len(heads))]
        return "\n".join(
            "  ".join(c.ljust(n) for c, n in zip(r, widths, strict=True)).rstrip() for r in [heads, *lines]
        )


def pareto(
    w: Any, *, x: Tensor | None = None, schemes: Mapping[str, Callable[[Tensor], Quantized]] | None = None
) -> Pareto:
    """Return the quality of every scheme that can hold your tensor, smallest first. `best`: no other is both smaller and closer in its
    products."""
    full = _matrix(w, "pareto")
    ternary(full)  # names what is not finite; what a scheme then refuses is outside its range
    rows = []
    for name, make in (SCHEMES if schemes is None else schemes).items():
        try:
            elapsed_ms = _milliseconds(lambda make=make: make(full), 3)  # type: ignore[misc]
        except QuantError:
            continue
        rows.append(_quality(make(full), full, x, elapsed_ms)._replace(scheme=name))
    rows.sort(key=lambda q: (q.bytes_after, q.matmul_error))
    return Pareto(q._replace(best=not any(_beats(other, q) for other in rows)) for q in rows)


def _beats(a: Quality, b: Quality) -> bool:
    """Return True if a is no larger and no worse than b, and not the same in both."""
    no_worse = a.bytes_after <= b.bytes_after and a.matmul_error <= b.matmul_error
    return no_worse and (a.bytes_after < b.bytes_after or a.matmul_error < b.matmul_error)

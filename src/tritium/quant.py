"""Quantisation of weights and activations: real packed storage, what it costs, and what it loses.

Plain functions over the rows `quantize_*`, `dequantize` and `quantized_matmul`.

    q = tt.quant.ternary(w)            # absmean, 2 bits a weight
    print(q.nbytes, q.quality(w))      # bytes, and how far from w it is
    print(tt.quant.pareto(w))          # every scheme on your own tensor
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tritium import dtype as dt, ops
from tritium.arguments import WAYS_TO, checked, checked_class
from tritium.errors import ArgumentError, QuantError, ShapeError, nearest
from tritium.functions import asarray, randn, zeros
from tritium.interop import adopt_foreign, is_foreign, read_tensor
from tritium.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Quantized:
    """A matrix as small integers and scales: w ≈ (data - zero) * scale."""

    scheme: str
    data: Tensor
    scale: Tensor | None = None  # f32, or f16 as some files have it; None: floats, nothing to scale
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

    def matmul(self, x: Tensor, bias: Tensor | None = None, *, activations: str = "token") -> Tensor:
        """Return x @ w.T + bias. Integers multiply int8 activations exactly; floats, and zero points by groups, go through
        floats. activations: 'token' (a scale for each token), 'group' (for each group of columns too) or 'float' (x as it is);
        only symmetric integers have a choice."""
        x = read_tensor(x, "quant")
        x = x if x.dtype.is_float else x.to(dt.f32)
        if self.scale is not None and self.zero is None:
            return ops.quantized_matmul(x, self.data, self.scale, bias, self.group, activations)
        if activations != "token":
            raise ArgumentError(
                f"Quantized.matmul: activations={activations!r} needs symmetric integers, given {self.scheme!r}; leave it out."
            )
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
        """Return the integers in the order in which this device's kernels read them fastest; for weights that stay. The scales
        of groups then are column after column, since a kernel needs those of many rows at once."""
        liked = self.data.device.backend.tiling(self.data.dtype)
        data = self.data if liked is self.data.dtype else ops.repack(self.data, liked)
        by_columns = liked.rows > 1 and self.scale is not None and self.scale.ndim == 2 and self.scale.strides[0] != 1
        scale = self.scale.T.contiguous().T if by_columns and self.scale is not None else self.scale
        return self if data is self.data and scale is self.scale else replace(self, data=data, scale=scale)

    def plain(self) -> Quantized:
        """Return the integers packed along rows again: the form that is saved and compared."""
        base = CANONICAL.get(self.data.dtype)
        scale = None if self.scale is None else self.scale.contiguous()
        if base is None:
            return self if scale is self.scale else replace(self, scale=scale)
        return replace(self, data=ops.repack(self.data, base), scale=scale)

    def quality(self, w: Any, x: Tensor | None = None) -> Quality:
        """Measure the error against the floats `w`; the product is compared on `x`, or on Gaussian tokens."""
        (row,) = _qualities({self.scheme: self}, _matrix(w, "quality"), x, {})
        return row


WAYS_TO[Quantized] = "tritium.quant.ternary(w) makes one of floats [out, in]; a layer's from_float(w) does both"
SCALE_DTYPES = (dt.f32, dt.f16)
CANONICAL = {
    dt.tern2_r64: dt.tern2,
    dt.tern2_r16: dt.tern2,
    dt.tern5_r80: dt.tern5,
    dt.i8_r16: dt.i8,
    dt.i4_r32: dt.i4,
}


def _matrix(w: Any, what: str) -> Tensor:
    w = read_tensor(w, f"quant.{what}")
    if w.ndim != 2:
        raise ShapeError(f"quant.{what}: a matrix [N, K] is needed, given {w.spec}; reshape it first.")
    return w


class TernaryScale(NamedTuple):
    """Of values that are all -scale, 0 or scale."""

    scale: float  # 0: there are only zeros
    zeros: float  # their share


@checked
def scale_of(values: np.ndarray[Any, Any]) -> TernaryScale | None:
    """Return the s of a matrix of which every value is -s, 0 or s; None where they are anything else."""
    if values.ndim != 2 or (values.dtype.kind not in "biuf" and values.dtype != dt.bf16.numpy):
        raise ShapeError(f"quant.scale_of: a matrix of numbers is needed, given {values.dtype}{list(values.shape)}.")
    if len(np.unique(np.abs(values[:16, :16]))) > 2:  # a glance: most weights are told by it
        return None
    sizes = np.abs(values)
    most = sizes.max(initial=0)
    zero = sizes == 0
    if not np.isfinite(most) or not bool((zero | (sizes == most)).all()):
        return None
    return TernaryScale(float(most), float(zero.mean()) if zero.size else 0.0)


# ---- weights


@checked
def ternary(
    w: Any, *, axis: int | None = None, group: int | None = 0, dtype: Any = dt.tern2, scale_dtype: Any = dt.f32
) -> Quantized:
    """Quantise by absmean: g = max(mean|w|, 1e-5), t = clip(round(w / g), -1, 1), half to even. One g for all, for each row
    (axis=0) or for each group of columns. dtype: 'tern2' (2 bits) or 'tern5' (1.6 bits). scale_dtype: 'f32', or 'f16', to
    which g is rounded once t is known."""
    kind = dt.dtype(scale_dtype)
    if kind not in SCALE_DTYPES:
        raise ArgumentError(f"quant.ternary: scale_dtype must be f32 or f16, given {kind}.")
    data, scale = ops.quantize_ternary(_matrix(w, "ternary"), axis=axis, group=group, dtype=dtype)
    return Quantized("ternary", data, _multiplier(scale.to(kind)), None, group or 0)


@checked
def int8(w: Any, *, axis: int | None = None, group: int | None = 0, symmetric: bool = True) -> Quantized:
    """Quantise to int8. Symmetric: scale = max|w| / 127. Asymmetric: 256 levels between the smallest and the largest, 0 exactly one."""
    q, scale, zero = ops.quantize_int8(_matrix(w, "int8"), axis=axis, group=group, symmetric=symmetric)
    return Quantized("int8" if symmetric else "int8-asymmetric", q, scale, None if symmetric else zero, group or 0)


@checked
def int4(w: Any, *, axis: int | None = None, group: int | str | None = "auto", symmetric: bool = True) -> Quantized:
    """Quantise to int4, -8 to 7, two values a byte. Symmetric: the smallest scale that holds all numbers, max(max w / 7, max -w / 8).
    Asymmetric: 16 levels between the smallest and the largest, 0 exactly one. One scale for each group of columns ('auto': 64), or for
    each row (axis=0, or group=0 or None). Products are fastest in groups of 64 or a multiple."""
    data, scale, *zero = ops.quantize_int4(_matrix(w, "int4"), axis=axis, group=group, symmetric=symmetric)
    columns = 64 if group == "auto" else int(group or 0)
    return Quantized(
        "int4" if symmetric else "int4-asymmetric",
        data,
        scale,
        zero[0] if zero else None,
        columns if scale.ndim > 1 else 0,
    )


@checked
def fp16(w: Any) -> Quantized:
    """Convert to half floats; raise for values beyond their range."""
    w = _matrix(w, "fp16")
    data = ops.astype(w, dt.f16)
    halves = data.to("cpu").numpy()
    if _has_nonfinite(halves):
        index = [int(i) for i in np.argwhere(~np.isfinite(halves))[0]]
        value = w[tuple(index)].item()
        raise QuantError(
            f"quant.fp16: element {index} is {value}, which f16 (to 65504) does not hold; use bf16 or f32."
        )
    return Quantized("fp16", data)


@checked
def _has_nonfinite(halves: np.ndarray[Any, Any]) -> bool:
    """Return True if one of the half floats is NaN or infinite: their bits are the largest of their sign."""
    if not halves.size:
        return False
    positive, negative = halves.view(np.int16).max(), halves.view(np.uint16).max()
    return bool(positive >= 0x7C00 or negative >= 0xFC00)


@checked
def from_integers(t: Any, scale: Any = 1.0, *, group: int = 0, dtype: Any = dt.tern2) -> Quantized:
    """Check and pack integers you already have, with their scale as a multiplier: one number, one for each row, or
    one for each group of columns."""
    integers = read_tensor(t, "quant.from_integers")
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


@checked
def check_codes(w: Tensor) -> None:
    """Raise for the first code of a packed tensor that is no weight: its bytes are damaged or misread."""
    index = w.device.backend.first_illegal(w)
    if index >= 0:
        row, column = divmod(index, w.shape[-1])
        raise QuantError(
            f"{w.spec}: the code of element [{row}, {column}] means no weight; the bytes are damaged or of another layout."
        )


def _multiplier(scale: Any) -> Tensor:
    """Return a scale as a tensor, f16 as it is, all others as f32; it must be finite there."""
    if is_foreign(scale):
        scale = adopt_foreign(scale)
    if not isinstance(scale, Tensor):
        try:
            with np.errstate(over="ignore"):
                half = isinstance(scale, np.ndarray) and scale.dtype == np.float16
                scale = asarray(scale if half else np.asarray(scale, np.float32))
        except (TypeError, ValueError):
            raise ArgumentError(f"scale must be a number or an array of numbers, given {scale!r}.") from None
    scale = scale if scale.dtype is dt.f16 else scale.to(dt.f32)
    if not bool(ops.all(ops.isfinite(scale))):
        raise QuantError(f"A scale is NaN, or infinite in {scale.dtype}; weights need finite scales.")
    return scale


# ---- activations


class Activations(NamedTuple):
    """Tokens as int8: x ≈ q * scale[..., None]; in groups, scale and sum have one number for each group of columns."""

    q: Tensor
    scale: Tensor
    sum: Tensor  # of q along each token: what products with unsigned codes subtract


@checked
def activations(x: Tensor, *, group: int | None = 0) -> Activations:
    """Quantise activations to int8 by absmax per token, or per group of columns of each token: amax = max(|x|, 1e-5),
    q = rint(x * (127 / amax)), scale = amax / 127."""
    if group is not None and group < 0:
        raise ArgumentError(f"quant.activations: group must be 0 (whole tokens) or a number of columns, given {group}.")
    result = Activations(*ops.quantize_activations(x)) if not group else _in_groups(x, group)
    if bool(ops.any(ops.isnan(result.scale))):
        values = x.to("cpu").to(dt.f32).numpy()
        index = [int(i) for i in np.argwhere(~np.isfinite(values))[0]]
        raise QuantError(
            f"quant.activations: element {index} is {values[tuple(index)]}; quantisation needs finite numbers."
        )
    return result


def _in_groups(x: Tensor, group: int) -> Activations:
    """Quantise groups as tokens of their own; the last of a token is filled up with zeros, which change nothing."""
    x = read_tensor(x, "quant.activations")
    if not x.ndim:
        raise ShapeError("quant.activations: at least one axis is needed; the last one is a token.")
    *lead, k = x.shape
    group = min(group, max(k, 1))
    groups = -(-k // group)
    if short := groups * group - k:
        x = ops.concat([x, zeros((*lead, short), x.dtype, device=x.device)], axis=-1)
    q, scale, total = ops.quantize_activations(x.reshape(*lead, groups, group))
    return Activations(q.reshape(*lead, groups * group)[..., :k], scale, total)


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
    matmul_ms: float  # of one token, the median
    best: bool = False  # no other scheme is as small, as close and as fast, and better in one of the three
    matmul_interval_ms: tuple[float, float] = (math.nan, math.nan)  # 95 % confidence interval of the median

    @property
    def ratio(self) -> float:
        """Return the compression ratio."""
        return self.bytes_before / max(self.bytes_after, 1)


class Timing(NamedTuple):
    """The median time of a call and its 95 % confidence interval, in milliseconds."""

    median: float
    low: float
    high: float


SAMPLES, FEW_SAMPLES = 25, 5  # of the time that schemes are compared by, and of the others
SAMPLE_NS = 100_000  # a shorter call is repeated within a sample, so that the clock does not matter


def _time(calls: Mapping[str, Callable[[], Any]], samples: int = SAMPLES) -> dict[str, Timing]:
    """Return the timing of each call. They take turns, so that a disturbance does not hit one alone."""
    repeats = {}
    for name, call in calls.items():
        call()
        repeats[name] = max(SAMPLE_NS // max(_elapsed(call, 1), 1), 1)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(samples):
        for name, call in calls.items():
            times[name].append(_elapsed(call, repeats[name]) / repeats[name] / 1e6)
    return {name: _timing(values) for name, values in times.items()}


def _elapsed(call: Callable[[], Any], repeats: int) -> int:
    start = time.perf_counter_ns()
    for _ in range(repeats):
        call()
    return time.perf_counter_ns() - start


def _timing(values: list[float]) -> Timing:
    """Return the median of samples and the order statistics that enclose it in 95 % of all cases (or the extremes)."""
    ordered, n = sorted(values), len(values)
    rank, tail = 0, 0.5**n
    while rank < n // 2 and tail + math.comb(n, rank + 1) * 0.5**n <= 0.025:
        rank += 1
        tail += math.comb(n, rank) * 0.5**n
    return Timing(ordered[n // 2], ordered[rank], ordered[-1 - rank])


def _tokens(x: Any, w: Tensor) -> Tensor:
    """Return the tokens that products are compared on; Gaussian ones where none are given."""
    x = randn((16, w.shape[1]), seed=0) if x is None else read_tensor(x, "quant")
    if x.ndim != 2 or x.shape[1] != w.shape[1] or not x.shape[0]:
        raise ShapeError(f"quality: x must be tokens [M, {w.shape[1]}], at least one, given {x.spec}.")
    return x


def _losses(q: Quantized, w: Tensor, x: Tensor) -> Quality:
    """Return the bytes and the error of a scheme; its times are still unknown."""
    if w.shape != q.shape:
        raise ShapeError(f"quality: the floats {w.spec} and the quantised {q.data.spec} differ in shape.")
    full, near = (t.to("cpu").to(dt.f64).numpy() for t in (w, q.dequantize()))
    error = near - full
    noise, signal = float((error**2).sum()), float((full**2).sum())
    norms = math.sqrt(signal) * float(np.linalg.norm(near))
    want = x.to("cpu").to(dt.f64).numpy() @ full.T
    got = q.tiled().matmul(x).to("cpu").to(dt.f64).numpy()
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
        quantize_ms=math.nan,
        dequantize_ms=math.nan,
        matmul_ms=math.nan,
    )


def _qualities(
    quantized: Mapping[str, Quantized], w: Tensor, x: Any, makers: Mapping[str, Callable[[Tensor], Quantized]]
) -> list[Quality]:
    """Return the quality of each scheme; without a maker, the time of quantising stays unknown."""
    tokens = _tokens(x, w)
    ready = {name: q.tiled() for name, q in quantized.items()}
    wait = w.device.backend.synchronize
    rows = {name: _losses(q, w, tokens) for name, q in quantized.items()}
    products = _time({name: _waiting(wait, partial(q.matmul, tokens[:1])) for name, q in ready.items()})
    back = _time({name: _waiting(wait, q.dequantize) for name, q in quantized.items()}, FEW_SAMPLES)
    forward = _time({name: _waiting(wait, partial(make, w)) for name, make in makers.items()}, FEW_SAMPLES)
    return [
        row._replace(
            quantize_ms=forward[name].median if name in forward else math.nan,
            dequantize_ms=back[name].median,
            matmul_ms=products[name].median,
            matmul_interval_ms=(products[name].low, products[name].high),
        )
        for name, row in rows.items()
    ]


def _waiting(wait: Callable[[], None], call: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        call()
        wait()

    return run


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


@checked
def quality(w: Any, scheme: str = "ternary", *, x: Tensor | None = None) -> Quality:
    """Quantise `w` by a scheme and say what it costs: bytes, MSE, SQNR, cosine, largest error, error of a product."""
    if scheme not in SCHEMES:
        raise ArgumentError(f"quality: {scheme!r} is no scheme.{nearest(scheme, SCHEMES)} Known: {', '.join(SCHEMES)}.")
    full = _matrix(w, "quality")
    make = SCHEMES[scheme]
    (row,) = _qualities({scheme: make(full)}, full, x, {scheme: make})
    return row._replace(scheme=scheme)


@checked_class
class Pareto(tuple[Quality, ...]):
    """Qualities from the smallest to the largest; printing it gives a table. `refused`: schemes that cannot hold the tensor, and why."""

    refused: Mapping[str, str] = MappingProxyType({})

    def __str__(self) -> str:
        heads = [
            "scheme", "bits", "smaller", "SQNR dB", "cosine", "max error", "matmul error", "1 token ms", "95 % interval", "best",
        ]  # fmt: skip
        lines = [
            [q.scheme, f"{q.bits:.2f}", f"{q.ratio:.1f}x", f"{q.sqnr_db:.1f}", f"{q.cosine:.4f}", f"{q.max_error:.3g}",
             f"{q.matmul_error:.2%}", f"{q.matmul_ms:.3f}", "{:.3f}-{:.3f}".format(*q.matmul_interval_ms), "*" if q.best else ""]
            for q in self
        ]  # fmt: skip
        widths = [max(len(r[i]) for r in [heads, *lines]) for i in range(len(heads))]
        text = ["  ".join(c.ljust(n) for c, n in zip(r, widths, strict=True)).rstrip() for r in [heads, *lines]]
        return "\n".join([*text, *(f"{scheme}: not possible: {why}" for scheme, why in self.refused.items())])


@checked
def pareto(
    w: Any, *, x: Tensor | None = None, schemes: Mapping[str, Callable[[Tensor], Quantized]] | None = None
) -> Pareto:
    """Return the quality of every scheme on your tensor, smallest first; `refused` names those that cannot hold it, with the reason.

    `best` marks the schemes that no other dominates: none is at most as large, at most as wrong in its products and at most as slow
    (one token), and better in one of these. Of two times, one is slower only if their 95 % intervals do not overlap.
    """
    full = _matrix(w, "pareto")
    ternary(full)  # names what is not finite; what a scheme then refuses is outside its range
    makers = SCHEMES if schemes is None else schemes
    if not isinstance(makers, Mapping) or not all(callable(make) for make in makers.values()):
        raise ArgumentError(f"pareto: schemes must be a dict of functions that quantise a matrix, given {makers!r}.")
    quantized, refused = {}, {}
    for name, make in makers.items():
        try:
            quantized[name] = make(full)
        except QuantError as error:
            refused[name] = str(error)
    rows = _qualities(quantized, full, x, {name: makers[name] for name in quantized})
    rows = [row._replace(scheme=name) for name, row in zip(quantized, rows, strict=True)]
    rows.sort(key=lambda q: (q.bytes_after, q.matmul_error))
    table = Pareto(q._replace(best=not any(_dominates(other, q) for other in rows)) for q in rows)
    table.refused = MappingProxyType(refused)
    return table


def _dominates(a: Quality, b: Quality) -> bool:
    """Return True if a is no larger, no worse and no slower than b, and better in one of the three."""
    faster, slower = _is_faster(a, b), _is_faster(b, a)
    no_worse = a.bytes_after <= b.bytes_after and a.matmul_error <= b.matmul_error and not slower
    return no_worse and (a.bytes_after < b.bytes_after or a.matmul_error < b.matmul_error or faster)


def _is_faster(a: Quality, b: Quality) -> bool:
    return a.matmul_interval_ms[1] < b.matmul_interval_ms[0]

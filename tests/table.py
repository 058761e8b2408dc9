"""The table as tests see it: data for every sample, and how close two results must be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import tritium as tt
from tritium import ops
from tritium.backends import reference
from tritium.op import OPS, Kind, Op, Spec
from tritium.ops import Draw, Sample

SKIP = {ops.const, ops.given, ops.item, ops.empty}
LAYOUTS = ("contiguous", "transposed", "sliced", "reversed", "broadcast")


def cases(*kinds: Kind) -> list[tuple[Op, Sample]]:
    return [(o, s) for o in OPS.values() if o not in SKIP and (not kinds or o.kind in kinds) for s in o.samples]


def case_id(value: Any) -> str | None:
    if isinstance(value, Op):
        return value.name
    if isinstance(value, Sample):
        said = [str(d.spec) if d else "none" for d in value.inputs]
        return ",".join(said + [f"{k}={v}" for k, v in value.attrs])
    return None


def draw(d: Draw | None, rng: np.random.Generator) -> np.ndarray[Any, Any] | None:
    """Values of a sample's input as a NumPy array of its dtype."""
    if d is None:
        return None
    t = d.spec.dtype
    if t.kind == "bool":
        return rng.integers(0, 2, d.spec.shape).astype(bool)
    if t.is_integer:
        low, high = int(np.ceil(d.low)), max(int(d.high), int(np.ceil(d.low)) + 1)
        low = max(low, 0) if t.kind == "unsigned" else low
        return rng.integers(low, high, d.spec.shape).astype(t.numpy)
    return np.asarray(rng.uniform(d.low, d.high, d.spec.shape)).astype(t.numpy)


def arrays(sample: Sample, seed: int = 0) -> list[np.ndarray[Any, Any] | None]:
    rng = np.random.default_rng(seed)
    return [draw(d, rng) for d in sample.inputs]


def laid(data: np.ndarray[Any, Any] | None, how: str) -> tt.Tensor | None:
    """The values of `data` in a tensor whose memory is laid out another way."""
    if data is None:
        return None
    if how == "contiguous" or data.ndim == 0:
        return tt.tensor(data)
    if how == "transposed":
        return tt.tensor(np.ascontiguousarray(data.T)).permute(*reversed(range(data.ndim)))
    if how == "sliced":
        wide = np.zeros(tuple(2 * n + 1 for n in data.shape), data.dtype)
        wide[tuple(slice(1, None, 2) for _ in data.shape)] = data
        return tt.tensor(wide)[tuple(slice(1, None, 2) for _ in data.shape)]
    if how == "reversed":
        return tt.flip(tt.tensor(np.flip(data).copy()))
    first = np.ascontiguousarray(data[:1])
    return tt.broadcast_to(tt.tensor(first), data.shape)


def same_values(data: np.ndarray[Any, Any] | None, how: str) -> np.ndarray[Any, Any] | None:
    """What `laid` shows: broadcast repeats the first slice."""
    if data is None or how != "broadcast" or data.ndim == 0 or not data.shape[0]:
        return data
    return np.broadcast_to(data[:1], data.shape)


def expected(op: Op, data: list[Any], attrs: dict[str, Any]) -> Any:
    """What the reference says."""
    specs = tuple(None if x is None else Spec(x.shape, tt.DType.__class__ and tt.dtype.dtype(x.dtype)) for x in data)
    decision = op.decide(specs, attrs)
    ready = []
    for x, s in zip(data, decision.inputs, strict=True):
        if x is not None and x.dtype != s.dtype.numpy:
            y = np.empty(x.shape, s.dtype.numpy)
            reference.cast(x, out=y)
            x = y
        ready.append(x)
    attrs = {k: v for k, v in attrs.items() if k != "device"}
    if op.kind is Kind.DYNAMIC:
        return reference.DYNAMIC[op](*ready, **attrs)
    if not isinstance(decision.out, Spec):
        made = tuple(np.empty(s.shape, s.dtype.numpy) for s in decision.out)
        reference.KERNELS[op](*ready, out=made, **attrs)
        return made
    out = np.empty(decision.out.shape, decision.out.dtype.numpy)
    reference.KERNELS[op](*ready, out=out, **attrs)
    return out


def scale(op: Op, data: list[Any], attrs: dict[str, Any], result: np.ndarray[Any, Any]) -> Any:
    """The size against which rounding counts: for sums of terms, the sum of their absolute values."""
    if op.kind is Kind.CONTRACT or op.name in ("sum", "mean", "cumulative_sum", "var", "std"):
        with np.errstate(all="ignore"):
            sizes = [np.abs(x.astype(np.float64)) if x is not None else None for x in data]
            if op.name in ("var", "std"):
                return np.maximum(np.abs(result.astype(np.float64)), 1)
            return expected(op, [s if s is None else s.astype(np.float64) for s in sizes], {**attrs, **({"dtype": None} if "dtype" in attrs else {})})
    if op.name in ("softmax", "log_softmax", "layer_norm", "rms_norm", "gelu", "silu", "logaddexp"):
        return np.maximum(np.abs(result.astype(np.float64)), 0.25)
    return np.abs(result.astype(np.float64))


def assert_close(op: Op, got: Any, want: Any, data: list[Any], attrs: dict[str, Any]) -> None:
    """Equal for integers; within the row's ulps for floats; NaN and infinities in the same places."""
    if isinstance(want, tuple):
        for g, w in zip(got, want, strict=True):
            assert_close(op, g, w, data, attrs)
        return
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, got.dtype, want.shape, want.dtype)
    kind = tt.dtype.dtype(want.dtype)
    if not kind.is_float or op.ulps == 0:
        np.testing.assert_array_equal(got, want)
        if kind.is_float:
            number = ~np.isnan(want.astype(np.float64))
            np.testing.assert_array_equal(np.signbit(got.astype(np.float64))[number], np.signbit(want.astype(np.float64))[number])
        return
    eps, tiny = tt.finfo(kind).eps, tt.finfo(kind).smallest_normal
    g, w = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(w)
    np.testing.assert_array_equal(g[~finite], w[~finite])
    size = np.broadcast_to(scale(op, data, attrs, want), w.shape)
    ulps = max(op.ulps, 1) if kind.nbytes > 2 else 1.01
    bound = ulps * eps * size + tiny
    worst = np.max(np.abs(g[finite] - w[finite]) / bound[finite], initial=0)
    assert worst <= 1, f"{op.name}: off by {worst * ulps:.2f} ulps, allowed {ulps}"


def rows() -> Iterator[Op]:
    return (o for o in OPS.values() if o not in SKIP)

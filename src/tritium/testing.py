"""The conformance kit: data for every sample of the table, how close results must be, and a check of a whole backend.

Imports nothing but NumPy and this package, so that third parties can run it against their own backend:

    from tritium.testing import check_backend
    check_backend("mydevice")      # raises with every disagreement listed
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tritium import backends, dtype as dt, ops
from tritium.backends.reference import kernels as reference, packed
from tritium.backends.reference.cast import cast
from tritium.errors import DeviceError
from tritium.functions import asarray, tensor as new_tensor
from tritium.op import OPS, Kind, Op, Scale, Spec, outputs
from tritium.ops import Draw, Sample
from tritium.tensor import Tensor

Data = np.ndarray[Any, Any] | None

NOT_CALLED = {ops.const, ops.given, ops.item, ops.empty}  # rows that have no values of their own
LAYOUTS = ("contiguous", "transposed", "sliced", "reversed", "broadcast")


def cases(*kinds: Kind) -> list[tuple[Op, Sample]]:
    """Return every op of these kinds (all, when none is named) with each of its samples."""
    return [(o, s) for o in OPS.values() if o not in NOT_CALLED and (not kinds or o.kind in kinds) for s in o.samples]


def case_id(value: Any) -> str | None:
    """Return a short name of an op or sample, for test reports."""
    if isinstance(value, Op):
        return value.name
    if isinstance(value, Sample):
        inputs = [str(d.spec) if d else "none" for d in value.inputs]
        return ",".join(inputs + [f"{k}={v}" for k, v in value.attrs])
    return None


class Integers(np.ndarray[Any, Any]):
    """Values of a packed operand, and the dtype that will hold them."""

    packed: dt.DType

    @staticmethod
    def pack(values: np.ndarray[Any, Any], t: dt.DType) -> Integers:
        out = values.view(Integers)
        out.packed = t
        return out


def spec_of(x: Data) -> Spec | None:
    """Return the spec of a tensor of these values."""
    if x is None:
        return None
    return Spec(x.shape, x.packed if isinstance(x, Integers) else dt.dtype(x.dtype))


def draw(d: Draw | None, rng: np.random.Generator) -> Data:
    """Return values for one input of a sample, in its dtype."""
    if d is None:
        return None
    t = d.spec.dtype
    if t.is_packed:
        low, high = t.values
        return Integers.pack(rng.integers(low, high + 1, d.spec.shape).astype(np.int8), t)
    if t.kind == "bool":
        return rng.integers(0, 2, d.spec.shape).astype(bool)
    if t.is_integer:
        low = int(np.ceil(max(d.low, 0) if t.kind == "unsigned" else d.low))
        return rng.integers(low, max(int(d.high), low + 1), d.spec.shape).astype(t.numpy)
    return np.asarray(rng.uniform(d.low, d.high, d.spec.shape)).astype(t.numpy)


def arrays(op: Op, sample: Sample, seed: int = 0) -> list[Data]:
    """Return values for every input of a sample; sorted where the op needs it."""
    rng = np.random.default_rng(seed)
    drawn = [draw(d, rng) for d in sample.inputs]
    if op is ops.searchsorted and drawn[0] is not None:
        drawn[0] = np.sort(drawn[0])
    return drawn


def laid(data: np.ndarray[Any, Any], how: str, device: Any = "cpu") -> Tensor:
    """Return the values of `data` in a tensor whose memory is laid out in another way; packed ones have one way only."""
    if isinstance(data, Integers):
        return ops.repack(new_tensor(np.asarray(data), device="cpu"), data.packed).to(device)
    if how == "contiguous" or data.ndim == 0:
        return new_tensor(data, device=device)
    every_other = tuple(slice(1, None, 2) for _ in data.shape)
    if how == "transposed":
        return new_tensor(np.ascontiguousarray(data.T), device=device).permute(*reversed(range(data.ndim)))
    if how == "sliced":
        wide = np.zeros(tuple(2 * n + 1 for n in data.shape), data.dtype)
        wide[every_other] = data
        return new_tensor(wide, device=device)[every_other]
    if how == "reversed":
        return ops.flip(new_tensor(np.flip(data).copy(), device=device))
    return ops.broadcast_to(new_tensor(np.ascontiguousarray(data[:1]), device=device), data.shape)


def as_laid(data: Data, how: str) -> Data:
    """Return the values that `laid` shows: 'broadcast' repeats the first slice."""
    if data is None or how != "broadcast" or data.ndim == 0 or not data.shape[0] or isinstance(data, Integers):
        return data
    return np.broadcast_to(data[:1], data.shape)


def call(op: Op, xs: list[Any], attrs: dict[str, Any], **more: Any) -> Any:
    return op(xs, **attrs, **more) if op.variadic else op(*xs, **attrs, **more)


def expected(op: Op, data: list[Data], attrs: dict[str, Any]) -> Any:
    """Return the reference result for these values."""
    attrs = op.complete(attrs)
    decision = op.decide(tuple(spec_of(x) for x in data), attrs)
    ready = [_as(x, s) for x, s in zip(data, decision.inputs, strict=True)]
    attrs = {k: v for k, v in attrs.items() if k != "device"}
    if op.kind is Kind.DYNAMIC:
        return reference.DYNAMIC[op](*ready, **attrs)
    several = not isinstance(decision.out, Spec)
    results = tuple(_empty(s) for s in outputs(decision.out))
    reference.KERNELS[op](*ready, out=results if several else results[0], **attrs)
    decoded = tuple(packed.decode(m) if isinstance(m, packed.Packed) else m for m in results)
    return decoded if several else decoded[0]


def _empty(s: Spec) -> Any:
    return packed.empty(s.shape, s.dtype) if s.dtype.is_packed else np.empty(s.shape, s.dtype.numpy)


def values(x: Tensor) -> np.ndarray[Any, Any]:
    """Return the elements on the host; of a packed tensor, its integers."""
    x = x.to("cpu")
    return (ops.repack(x, dt.i8) if x.dtype.is_packed else x).numpy()


def _as(x: Data, spec: Spec | None) -> Any:
    if isinstance(x, Integers):
        return packed.pack(np.asarray(x), x.packed)
    if x is None or spec is None or x.dtype == spec.dtype.numpy:
        return x
    out = np.empty(x.shape, spec.dtype.numpy)
    cast(x, out=out)
    return out


def _scale(op: Op, data: list[Data], attrs: dict[str, Any], result: np.ndarray[Any, Any]) -> Any:
    """Return the size against which rounding counts: for sums of terms, the sum of their sizes."""
    size = np.abs(result.astype(np.float64))
    if op.ulps_of is Scale.TERMS:
        attrs = attrs | {"dtype": None} if "dtype" in attrs else attrs
        with np.errstate(all="ignore"):
            wide = np.float32 if op is ops.linear else np.float64  # its weights are f32 at most
            return expected(op, [None if x is None else np.abs(x.astype(wide)) for x in data], attrs)
    if op is ops.layer_norm and data[0] is not None:  # subtracting a large mean from close values costs digits
        x = data[0].astype(np.float64)
        size = size + np.abs(x).max(axis=-1, keepdims=True, initial=0) / np.sqrt(
            x.var(axis=-1, keepdims=True) + attrs["eps"]
        )
    return np.maximum(size, 0.25) if op.ulps_of is Scale.UNIT else size


_EITHER_ZERO = (ops.maximum, ops.minimum)  # of 0 and -0 they give either: NumPy's own choice differs by machine


def assert_close(op: Op, got: Any, want: Any, data: list[Data], attrs: dict[str, Any]) -> None:
    """Raise unless results agree: equal integers; floats within the op's ulps; NaN, infinities and signs of zero in the same places."""
    if isinstance(want, tuple):
        for g, w in zip(got, want, strict=True):
            assert_close(op, g, w, data, attrs)
        return
    if got.shape != want.shape or got.dtype != want.dtype:
        raise AssertionError(f"{op.name}: {got.dtype}{got.shape} instead of {want.dtype}{want.shape}")
    kind = dt.dtype(want.dtype)
    if not kind.is_float:
        np.testing.assert_array_equal(got, want, err_msg=op.name)
        return
    g, w = got.astype(np.float64), want.astype(np.float64)
    if op.ulps == 0:
        np.testing.assert_array_equal(g, w, err_msg=op.name)
        number = ~np.isnan(w)
        if op in _EITHER_ZERO:
            number &= w != 0
        np.testing.assert_array_equal(np.signbit(g)[number], np.signbit(w)[number], err_msg=f"{op.name}: signs")
        return
    finite = np.isfinite(w)
    np.testing.assert_array_equal(g[~finite], w[~finite], err_msg=op.name)
    limits = dt.finfo(kind)
    ulps = max(op.ulps, 1) if kind.nbytes > 2 else 1.01  # half floats are computed in f32 and rounded once
    bound = ulps * limits.eps * np.broadcast_to(_scale(op, data, attrs, want), w.shape) + limits.smallest_normal
    worst = np.max(np.abs(g[finite] - w[finite]) / bound[finite], initial=0)
    if not worst <= 1:  # also where it is NaN
        raise AssertionError(f"{op.name}: off by {worst * ulps:.2f} ulps, allowed {ulps}")


# ---- a backend as a whole


def check_backend(name: str) -> int:
    """Run every row and sample on a device against the reference, and try transfers, views and writes there.

    The number of calls that agreed. What the device refuses by DeviceError (a row, a dtype) does not count; anything
    else that differs is collected and raised as one AssertionError.
    """
    device = backends.device(name)
    problems: list[str] = []
    agreed = 0
    for check in (_check_transfer, _check_views, _check_writes, _check_mixing):
        try:
            check(device)
            agreed += 1
        except Exception as error:
            problems.append(f"{check.__name__.removeprefix('_check_')}: {type(error).__name__}: {error}")
    for op, sample in cases():
        try:
            agreed += _check_case(op, sample, device)
        except Exception as error:
            problems.append(f"{op.name} {case_id(sample)}: {type(error).__name__}: {error}")
    if problems:
        raise AssertionError(f"{len(problems)} disagreements on {name}:\n" + "\n".join(problems))
    return agreed


def _check_case(op: Op, sample: Sample, device: backends.Device) -> int:
    attrs = dict(sample.attrs)
    data = arrays(op, sample)
    try:
        if op.kind is Kind.SOURCE:
            got = call(op, [], attrs, device=device)
        else:
            got = call(op, [None if x is None else laid(x, "contiguous").to(device) for x in data], attrs)
    except DeviceError:
        return 0
    several = got if isinstance(got, tuple) else (got,)
    if any(g.device is not device for g in several):
        raise AssertionError("the result is on another device")
    host = tuple(values(g) for g in several)
    if op.kind is Kind.VIEW:
        want = call(op, [None if x is None else laid(x, "contiguous") for x in data], attrs).numpy()
    else:
        want = expected(op, data, attrs)
    assert_close(op, host if isinstance(got, tuple) else host[0], want, data, op.complete(attrs))
    return 1


def _sample() -> np.ndarray[Any, Any]:
    return np.arange(12, dtype=np.float32).reshape(3, 4)


def _check_transfer(device: backends.Device) -> None:
    x = asarray(_sample()).to(device)
    if x.device is not device or x.to(device) is not x:
        raise AssertionError("x.to(device) must move once and then be x itself")
    np.testing.assert_array_equal(x.to("cpu").numpy(), _sample())
    np.testing.assert_array_equal(x.T[1:, ::2].to("cpu").numpy(), _sample().T[1:, ::2])


def _check_views(device: backends.Device) -> None:
    x = asarray(_sample()).to(device)
    x.T[0].copy_(-1.0)
    want = _sample()
    want[:, 0] = -1
    np.testing.assert_array_equal(x.to("cpu").numpy(), want)


def _check_writes(device: backends.Device) -> None:
    x = asarray(_sample()).to(device)
    before = x.clone()
    x += x.T.T
    np.testing.assert_array_equal(x.to("cpu").numpy(), 2 * _sample())
    np.testing.assert_array_equal(before.to("cpu").numpy(), _sample())


def _check_mixing(device: backends.Device) -> None:
    if device.type == "cpu":
        return
    try:
        ops.add(asarray(_sample()).to(device), asarray(_sample()))
    except DeviceError:
        return
    raise AssertionError("adding tensors of two devices must raise DeviceError")

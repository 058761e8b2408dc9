"""Linear layers with quantised weights, prepared once for a device, then called.

    layer = tt.nn.BitLinear.from_float(w, bias)     # w: [out, in] floats
    y = layer(x)                                    # x: [in], [tokens, in] or [..., in]

A BitLinear computes, for each token x (one row of the last axis):

    x = rms_norm(x) * norm                          only when it has a norm
    amax = max(|x|, 1e-5);  q = rint(x * (127 / amax))
    acc[n] = sum_k q[k] * t[n, k]                   exact, int32
    y[n] = acc[n] * (amax / 127 * scale[n]) + bias[n]

With scales for groups of columns, each group has a sum of its own, and with activations="group" an amax of its own: the
formulas are in docs/ternary.md. Each step is one f32 operation (the norm adds its squares in f64), so the result has the same
bits on every kernel.
|y - float model| comes from rounding x to 127 steps: at most sum_k |t[n, k]| * scale[n] * amax / 254 (and a few ulps).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np

from tritium import dtype as dt, ops, quant
from tritium.arguments import checked, checked_class, checked_except
from tritium.errors import ArgumentError, DTypeError, ShapeError, TraceError, shown
from tritium.functions import asarray
from tritium.interop import is_foreign, read_array, read_tensor
from tritium.op import Spec
from tritium.quant import Quantized
from tritium.tensor import Tensor

_matmul = ops.quantized_matmul


def _vector(v: Any, size: int, what: str) -> Tensor | None:
    """Return a bias or norm as an f32 tensor, checked to have the right size."""
    if v is None:
        return None
    t = _tensor(v, what)
    if t.shape != (size,):
        raise ShapeError(f"{what} must have shape [{size}], given {t.spec}.")
    return t.to(dt.f32).clone()


def _tensor(v: Any, what: str) -> Tensor:
    """Return numbers as a tensor: bytes unchanged, all others as f32."""
    if isinstance(v, Tensor) or is_foreign(v):
        t = read_tensor(v, what)
        return t if t is v or t.dtype is dt.u8 else t.to(dt.f32)
    try:
        data = read_array(v, what)
    except ArgumentError:
        raise ArgumentError(f"{what} must be numbers, given {shown(v)}.") from None
    return asarray(data if data.dtype == np.uint8 else data.astype(np.float32))


def _scale(v: Any) -> Tensor:
    """Return a scale as a tensor: f16 unchanged, all others as f32."""
    half = getattr(v, "dtype", None) == np.float16
    return asarray(read_array(v, "weight_scale")) if half and not isinstance(v, Tensor) else _tensor(v, "weight_scale")


# What each kind of activations is, in words.
ACTIVATIONS = {"token": "int8 per token", "group": "int8 per group", "float": "float"}


def _own(t: Tensor) -> Tensor:
    """Return a clone, so that writes to the source do not change the layer; read-only memory is shared."""
    return t.clone() if t.storage.writable else t


@checked_class
class QuantLinear:
    """y = x @ (integers * scale).T + bias: any scheme of `quant` that has no zero point.

    activations: 'token' (int8, a scale for each token), 'group' (int8, a scale for each group of columns of a token; the weights
    must have groups) or 'float' (x as it is, in f32, for comparison).
    `QuantLinear.from_float(w, "int8")` is the layer for large output heads: one scale for each row of the vocabulary.
    """

    __slots__ = ("_activations", "_bias", "_data", "_group", "_scale", "weight")

    def __init__(self, weight: Quantized, bias: Any = None, *, activations: str = "token") -> None:
        if weight.scale is None or weight.zero is not None:
            raise ArgumentError(
                f"{type(self).__name__}: scheme {weight.scheme!r} has no integer product; use ternary, symmetric int8 or int4."
            )
        weight.check()
        ops.check_activations(activations, weight.group, type(self).__name__)
        self._activations = activations
        tiled = weight.tiled()
        assert tiled.scale is not None
        self._scale: Tensor = _own(tiled.scale) if tiled.scale is weight.scale else tiled.scale
        self.weight = replace(tiled, data=_own(tiled.data), scale=self._scale)
        self._bias = _vector(bias, weight.shape[0], "bias")
        if self._bias is not None:
            self._bias = self._bias.to(device=weight.data.device)
        self._data, self._group = self.weight.data, weight.group

    @classmethod
    def from_float(
        cls, w: Any, scheme: str = "int8", bias: Any = None, *, group: int = 64, activations: str = "token"
    ) -> Self:
        """Quantise a float matrix [out, in]: 'int8' (a scale for each row), 'int4' (for each group) or 'ternary'."""
        makers = {
            "int8": lambda: quant.int8(w, axis=0),
            "int4": lambda: quant.int4(w, group=group),
            "ternary": lambda: quant.ternary(w),
        }
        if scheme not in makers:
            raise ArgumentError(f"from_float: scheme {scheme!r} is unknown; use {', '.join(makers)}.")
        return cls(makers[scheme](), bias, activations=activations)

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    @property
    def activations(self) -> str:
        """Return how x is multiplied: 'token', 'group' or 'float'."""
        return self._activations

    @property
    def bias(self) -> Tensor | None:
        return self._bias

    @property
    def device(self) -> Any:
        return self._data.device

    @property
    def nbytes(self) -> int:
        """Return the bytes of weights, scales and bias."""
        return self.weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: Tensor, /, *, out: Tensor | None = None) -> Tensor:
        """Apply the layer to the last axis of x."""
        if out is None:
            return _matmul(x, self._data, self._scale, self._bias, self._group, self._activations)
        return _matmul(x, self._data, self._scale, self._bias, self._group, self._activations, out=out)

    forward = __call__

    def dequantize(self) -> Tensor:
        """Return the weights as a float matrix."""
        return self.weight.dequantize()

    def to(self, device: Any) -> Self:
        """Return the layer on another device, its weights repacked for it."""
        bias = None if self._bias is None else self._bias.to(device=device)
        return type(self)(self.weight.plain().to(device), bias, activations=self._activations)

    def with_activations(self, activations: str) -> Self:
        """Return the layer with another kind of activations; the weights are the same memory."""
        ops.check_activations(activations, self._group, type(self).__name__)
        layer = copy(self)
        layer._activations = activations
        return layer

    def kernel(self, tokens: int = 1, dtype: Any = dt.f32) -> str:
        """Return the name of the kernel that a call with this many tokens uses."""
        if not isinstance(tokens, int) or tokens < 0:
            raise ArgumentError(f"kernel: tokens must be 0 or more, given {tokens!r}.")
        x = Spec((tokens, self.in_features), dt.dtype(dtype))
        specs = (x, self._data.spec, self._scale.spec, None if self._bias is None else self._bias.spec)
        layouts = (None, self._data.layout, self._scale.layout, None)
        attrs = {"group": self._group, "activations": self._activations}
        kernel = self.device.backend.choose(_matmul, specs, attrs, layouts)
        return "none" if kernel is None else kernel.name

    def __repr__(self) -> str:
        weights = f"{self.weight.scheme} {self._data.dtype}, scale {self._scale.spec}"
        how = f"activations {ACTIVATIONS[self._activations]}"
        return f"{type(self).__name__}({self.in_features} -> {self.out_features}, {weights}, {how}, {self.device})"


@checked_class
class BitLinear(QuantLinear):
    """A linear layer whose weights are -1, 0 and 1."""

    __slots__ = ("_eps", "_norm")

    def __init__(
        self, weight: Quantized, bias: Any = None, *, norm: Any = None, eps: float = 1e-5, activations: str = "token"
    ) -> None:
        if not weight.data.dtype.is_ternary:
            raise DTypeError(
                f"BitLinear: ternary weights are needed, given {weight.data.spec}; QuantLinear takes others."
            )
        super().__init__(weight, bias, activations=activations)
        if not isinstance(eps, (int, float)) or not eps >= 0:
            raise ArgumentError(f"BitLinear: eps must be a number that is not negative, given {eps!r}.")
        self._norm = _vector(norm, self.in_features, "norm")
        if self._norm is not None:
            self._norm = self._norm.to(device=self.device)
        self._eps = eps

    @classmethod
    def from_float(  # type: ignore[override]
        cls, w: Any, bias: Any = None, *, axis: int | None = None, group: int = 0, norm: Any = None, eps: float = 1e-5,
        storage: Any = dt.tern2, scale_dtype: Any = dt.f32, activations: str = "token",
    ) -> Self:  # fmt: skip
        """Quantise a float matrix [out, in] by absmean; see `quant.ternary` for axis, group and scale_dtype."""
        weight = quant.ternary(w, axis=axis, group=group, dtype=storage, scale_dtype=scale_dtype)
        return cls(weight, bias, norm=norm, eps=eps, activations=activations)

    @classmethod
    def from_ternary(
        cls, t: Any, bias: Any = None, *, scale: Any = 1.0, group: int = 0, norm: Any = None, eps: float = 1e-5,
        storage: Any = dt.tern2, activations: str = "token",
    ) -> Self:  # fmt: skip
        """Create a layer from weights that are -1, 0 and 1 already, and their scale as a multiplier."""
        weight = quant.from_integers(t, scale, group=group, dtype=storage)
        return cls(weight, bias, norm=norm, eps=eps, activations=activations)

    @classmethod
    @checked_except("shape")
    def from_packed(
        cls, data: Any, shape: tuple[int, int] | None = None, bias: Any = None, *, scale: Any = 1.0, group: int = 0,
        norm: Any = None, eps: float = 1e-5, activations: str = "token",
    ) -> Self:  # fmt: skip
        """Create a layer from a packed tensor, or the bytes of one: uint8 [out, ceil(in / 4)], codes t + 1 along a row, lowest bits first.

        Bytes need `shape`, since the last byte of a row may be padded. A code of 3 is an error.
        """
        packed = data if isinstance(data, Tensor) and data.dtype.is_packed else unpacked(data, shape)
        if shape is not None and tuple(shape) != packed.shape:
            raise ShapeError(f"from_packed: shape={shape} was given with {packed.spec}; leave it out.")
        weight = quant.from_integers(packed, scale, group=group, dtype=packed.dtype)
        return cls(weight, bias, norm=norm, eps=eps, activations=activations)

    @property
    def norm(self) -> Tensor | None:
        return self._norm

    @property
    def nbytes(self) -> int:
        return super().nbytes + (0 if self._norm is None else self._norm.nbytes)

    def __call__(self, x: Tensor, /, *, out: Tensor | None = None) -> Tensor:
        """Apply the layer to the last axis of x."""
        if self._norm is not None:
            return self._apply_normed(x, out)
        if out is None:
            return _matmul(x, self._data, self._scale, self._bias, self._group, self._activations)
        return _matmul(x, self._data, self._scale, self._bias, self._group, self._activations, out=out)

    def _apply_normed(self, x: Tensor, out: Tensor | None) -> Tensor:
        """Apply the norm, which computes in f32, then the product; a half float is rounded once, at the end."""
        x = read_tensor(x, "BitLinear")
        wide = ops.rms_norm(x, self._norm, eps=self._eps)
        y = _matmul(wide, self._data, self._scale, self._bias, self._group, self._activations, out=out)
        return y if out is not None or y.dtype is x.dtype or not x.dtype.is_float else y.to(x.dtype)

    forward = __call__

    def to(self, device: Any) -> Self:
        bias, norm = (None if t is None else t.to(device=device) for t in (self._bias, self._norm))
        weight = self.weight.plain().to(device)
        return type(self)(weight, bias, norm=norm, eps=self._eps, activations=self._activations)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what must be saved as plain tensors of their own: `weight` (bytes of tern2), `weight_scale`, and where there
        are any `weight_group` (columns that share a scale), `activations` (1: a scale for each group, 2: floats), `bias`, `norm`."""
        w = self.weight.plain()
        data = w.data if w.data.dtype is dt.tern2 else ops.repack(w.data, dt.tern2)
        out = {"weight": as_bytes(data.clone()), "weight_scale": self._scale.clone()}
        if self._group:
            out["weight_group"] = ops.full((), self._group, dt.i64)
        if self._activations != "token":
            out["activations"] = ops.full((), ops.ACTIVATIONS.index(self._activations), dt.i64)
        return out | {k: t.clone() for k, t in (("bias", self._bias), ("norm", self._norm)) if t is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the tensors of `state_dict()`; names and shapes must be those of this layer, or nothing is changed."""
        current = self.state_dict()
        if set(state) != set(current):
            missing, extra = sorted(set(current) - set(state)), sorted(set(state) - set(current))
            raise ArgumentError(f"load_state_dict: missing {missing}, unexpected {extra}.")
        state = {
            name: _scale(v) if name == "weight_scale" else _tensor(v, f"load_state_dict: {name}")
            for name, v in state.items()
        }
        for name, t in current.items():
            if state[name].shape != t.shape:
                raise ShapeError(f"load_state_dict: {name} must have shape {t.shape}, given {state[name].shape}.")
        if self._group and (group := int(state["weight_group"].item())) != self._group:
            raise ArgumentError(
                f"load_state_dict: scales of groups of {group} columns were given; this layer's groups have {self._group}."
            )
        kinds = dict(enumerate(ops.ACTIVATIONS))
        if self._activations != "token" and kinds.get(int(state["activations"].item())) != self._activations:
            raise ArgumentError(
                f"load_state_dict: activations are {shown(kinds.get(int(state['activations'].item())))}; this layer's are "
                f"{self._activations!r}."
            )
        loaded = type(self).from_packed(
            state["weight"], (self.out_features, self.in_features), state.get("bias"), scale=state["weight_scale"],
            group=self._group, norm=state.get("norm"), eps=self._eps, activations=self._activations,
        )  # fmt: skip
        if self.weight.plain().data.dtype is dt.tern5:
            stored = replace(loaded.weight, data=ops.repack(loaded.weight.data, dt.tern5))
            loaded = type(self)(stored, loaded.bias, norm=loaded.norm, eps=self._eps, activations=self._activations)
        for name in ("weight", "_data", "_scale", "_bias", "_norm"):
            setattr(self, name, getattr(loaded, name))


@checked
def as_bytes(w: Tensor) -> Tensor:
    """Return a tensor packed along its rows as its bytes: u8 [..., bytes of a row], the same memory."""
    t = w.dtype
    if w.is_traced:
        raise TraceError(
            "as_bytes: a traced tensor has no memory while the graph is traced; call it on a tensor with values."
        )
    if not t.is_packed or t.rows > 1:
        raise DTypeError(
            f"as_bytes: a tensor packed along its rows is needed, given {w.spec}; repack it to tern2, tern5 or i4."
        )
    row = -(-w.shape[-1] // t.block) * t.nbytes
    strides = tuple(s // t.block * t.nbytes for s in w.strides[:-1])
    return Tensor(w.storage, dt.u8, (*w.shape[:-1], row), (*strides, 1), w.offset // t.block * t.nbytes)


@checked_except("shape")
def unpacked(data: Any, shape: tuple[int, int] | None) -> Tensor:
    """Return the tern2 tensor over the memory of packed bytes; its codes are checked."""
    raw = _tensor(data, "from_packed: data")
    known = isinstance(shape, (tuple, list)) and len(shape) == 2 and all(isinstance(n, int) and n >= 0 for n in shape)
    if shape is None or not known or raw.dtype is not dt.u8 or raw.shape != (shape[0], -(-shape[1] // 4)):
        needed = (
            f"uint8 [{shape[0]}, {-(-shape[1] // 4)}]" if shape is not None and known else "uint8 [out, ceil(in / 4)]"
        )
        raise ShapeError(f"from_packed: {needed} and shape=(out, in) are needed, given {raw.spec} and shape={shape}.")
    raw = raw.contiguous()
    w = Tensor(raw.storage, dt.tern2, tuple(shape), Spec(tuple(shape), dt.tern2).strides, raw.offset * 4)
    quant.check_codes(w)
    return w

"""Layers whose weights are folded with a signed Hadamard transform: their input is rotated before the product.

rotation = tt.nn.Rotation(block=1024, signs=signs)          # signs: 1 or -1 for each column
layer = tt.nn.RotatedLinear.from_layer(folded, rotation)    # layer(x) = folded(H (signs * x))
"""

from __future__ import annotations

from typing import Any, Self

from tritium import ops
from tritium.arguments import checked_class
from tritium.errors import ArgumentError
from tritium.interop import read_tensor
from tritium.nn.linear import BitLinear
from tritium.quant import Quantized
from tritium.tensor import Tensor


@checked_class
class Rotation:
    """The transform H (signs * x) of the last axis, in blocks; see `tt.hadamard`."""

    __slots__ = ("block", "signs")

    def __init__(self, *, block: int, signs: Any = None) -> None:
        self.block, self.signs = block, None if signs is None else read_tensor(signs, "Rotation: signs")

    def __call__(self, x: Tensor) -> Tensor:
        """Return x rotated."""
        return ops.hadamard(x, self.signs, block=self.block)

    def inverse(self, x: Tensor) -> Tensor:
        """Return x rotated back."""
        return ops.hadamard(x, self.signs, block=self.block, inverse=True)

    def to(self, device: Any) -> Rotation:
        """Return the same transform on another device."""
        return Rotation(block=self.block, signs=None if self.signs is None else self.signs.to(device=device))


@checked_class
class RotatedLinear(BitLinear):
    """A BitLinear of a rotated input."""

    __slots__ = ("rotation",)

    def __init__(self, weight: Quantized, bias: Any = None, *, rotation: Rotation, **options: Any) -> None:
        super().__init__(weight, bias, **options)
        if self.norm is not None:
            raise ArgumentError("RotatedLinear: a norm of the input would have to come before the rotation; give none.")
        self.rotation = rotation

    @classmethod
    def from_layer(cls, layer: BitLinear, rotation: Rotation) -> Self:
        """Return a layer that rotates its input before this one."""
        return cls(layer.weight, layer.bias, rotation=rotation, activations=layer.activations)

    def __call__(self, x: Tensor, /, *, out: Tensor | None = None) -> Tensor:
        """Apply the layer to the last axis of x."""
        return super().__call__(self.rotation(x), out=out)

    forward = __call__

    def to(self, device: Any) -> Self:
        """Return the layer on another device, its weights repacked for it."""
        bias = None if self.bias is None else self.bias.to(device=device)
        weight, rotation = self.weight.plain().to(device), self.rotation.to(device)
        return type(self)(weight, bias, rotation=rotation, activations=self.activations)


@checked_class
class RotatedEmbedding:
    """Token embeddings whose rows are stored rotated: they are rotated back when they are looked up."""

    __slots__ = ("inner", "rotation")

    def __init__(self, inner: Any, rotation: Rotation) -> None:
        self.inner, self.rotation = inner, rotation

    @property
    def weight(self) -> Any:
        """Return the table."""
        return self.inner.weight

    def __call__(self, ids: Tensor) -> Tensor:
        return self.rotation.inverse(self.inner(ids))

    def to(self, device: Any) -> RotatedEmbedding:
        """Return the same module on another device."""
        return RotatedEmbedding(self.inner.to(device), self.rotation.to(device))

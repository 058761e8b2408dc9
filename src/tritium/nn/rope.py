"""Rotary position embeddings: the frequencies of a head's pairs, scaled for longer contexts, and their rotation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tritium import dtype as dt, ops
from tritium.arguments import checked_class, checked_except
from tritium.errors import ArgumentError, shown
from tritium.functions import asarray
from tritium.tensor import Tensor

SCALINGS: dict[str, tuple[str, ...]] = {  # kinds of RoPE scaling, and the fields each needs
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "factors": ("factors",),
    "yarn": ("factor", "original_max_position_embeddings"),
}
MOST_SIZE = 1 << 20  # of a head


class Angles(NamedTuple):
    """Rotation angles of each pair of a head at each position: cosine and sine, f32 [batch, tokens, D / 2]."""

    cos: Tensor
    sin: Tensor


@checked_class
class RoPE:
    """Rotary position embeddings: pair i of a head of size D is rotated by position / theta^(2i / D).

    Pairs are (i, i + D/2), as Hugging Face and `bitnet` files have them, or (2i, 2i + 1) with interleaved=True, as `llama`
    files do; rows of Q and K are permuted between the two. `size` may be less than that of a head: the rest is not rotated.
    `scaling` is that of a configuration: {"rope_type": "linear", "factor": …}, {"rope_type": "llama3", …}, {"rope_type": "yarn",
    "factor": …, "original_max_position_embeddings": …} or {"rope_type": "factors", "factors": [one for each pair]}; cosine and
    sine are multiplied by its "attention_factor".
    """

    __slots__ = ("attention_factor", "frequencies", "interleaved")

    @checked_except("theta")
    def __init__(
        self, size: int, theta: float = 10000.0, *, interleaved: bool = False, scaling: Mapping[str, Any] | None = None
    ) -> None:
        if (
            not 2 <= size <= MOST_SIZE
            or size % 2
            or not isinstance(theta, (int, float, np.integer, np.floating))
            or not theta > 0
        ):
            raise ArgumentError(
                f"RoPE: an even size and a positive theta are needed, given {shown(size)} and {shown(theta)}."
            )
        scaling = scaling or {}
        frequencies = np.float64(theta) ** -(np.arange(0, size, 2) / size)
        self.frequencies = asarray(scaled(frequencies, scaling).astype(np.float32))
        self.attention_factor = float(scaling.get("attention_factor") or _attention_factor(scaling))
        self.interleaved = interleaved

    def angles(self, positions: Tensor) -> Angles:
        """Return the angles of positions [batch, tokens]; they are the same for every layer.

        The product is f32, as in training; its cosine and sine are taken in f64 and rounded, so that they are the same on
        every device that has f64."""
        angles = ops.expand_dims(positions.to(dt.f32), -1) * self.frequencies
        if self.frequencies.device.backend.has_f64:
            angles = angles.to(dt.f64)
        cos, sin = ops.cos(angles).to(dt.f32), ops.sin(angles).to(dt.f32)
        if self.attention_factor == 1:
            return Angles(cos, sin)
        return Angles(cos * self.attention_factor, sin * self.attention_factor)

    def __call__(self, x: Tensor, angles: Angles, heads: int | None = None) -> Tensor:
        """Rotate x [batch, tokens, heads, D]; with `heads`, only the first `heads` of them."""
        size = 2 * self.frequencies.shape[0]
        if x.shape[-1] == size:
            return ops.rope(x, angles.cos, angles.sin, interleaved=self.interleaved, heads=heads)
        return ops.rope(x, angles.cos, angles.sin, interleaved=self.interleaved, heads=heads, size=size)

    def to(self, device: Any) -> RoPE:
        """Return the same module on another device."""
        moved = RoPE.__new__(RoPE)
        moved.frequencies, moved.interleaved = self.frequencies.to(device=device), self.interleaved
        moved.attention_factor = self.attention_factor
        return moved


def scaled(frequencies: np.ndarray[Any, Any], scaling: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the RoPE frequencies scaled for longer contexts, as a configuration defines."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return frequencies
    if kind not in SCALINGS:
        raise ArgumentError(f"RoPE: scaling {kind!r} is unknown; known are {', '.join(SCALINGS)}.")
    if kind == "factors":  # one for each pair, as stored in GGUF
        return np.asarray(frequencies / np.asarray(scaling["factors"], np.float64))
    factor = float(scaling["factor"])
    if kind == "linear":
        return frequencies / factor
    if kind == "yarn":
        return _yarn(frequencies, factor, scaling)
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    cycles = float(scaling["original_max_position_embeddings"]) * frequencies / (2 * np.pi)  # within the first context
    smooth = np.clip((cycles - low) / (high - low), 0, 1)
    return np.asarray((1 - smooth) * frequencies / factor + smooth * frequencies)


def _yarn(
    frequencies: np.ndarray[Any, Any], factor: float, scaling: Mapping[str, Any]
) -> np.ndarray[Any, Any]:  # fmt: skip
    """Return YaRN's frequencies: those of pairs that turn often as they are, of others divided, a ramp between."""
    pairs = len(frequencies)
    step = math.log(frequencies[0] / frequencies[1]) if pairs > 1 else 0.0  # between neighbours
    if not step:
        return frequencies / factor
    original = float(scaling["original_max_position_embeddings"])
    low, high = (
        math.log(original / (float(scaling.get(name) or default) * 2 * math.pi)) / step
        for name, default in (("beta_fast", 32), ("beta_slow", 1))
    )
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    ramp = np.clip((np.arange(pairs) - low) / (high - low if high != low else 0.001), 0, 1)
    return np.asarray(frequencies / factor * ramp + frequencies * (1 - ramp))


def _attention_factor(scaling: Mapping[str, Any]) -> float:
    """Return what a configuration that does not say it multiplies cosine and sine by: 1, or YaRN's."""
    factor = float(scaling.get("factor") or 1) if scaling.get("rope_type", scaling.get("type")) == "yarn" else 1.0
    return 0.1 * math.log(factor) + 1 if factor > 1 else 1.0

"""The rounded values that a forward pass saves for the backward pass."""

from __future__ import annotations

from typing import NamedTuple

import torch

MOST_TOKENS = 1 << 17  # whose products of two int8 are added in int32


class Rounded(NamedTuple):
    """Tokens q int8 [m, wide] with their scales a f32 [m], and codes uint8 [n, wide / 4] with their scales g f32, one or [n].

    Codes are w + 1 in two bits, four a byte, columns a quarter of a row apart.
    """

    q: torch.Tensor
    a: torch.Tensor
    codes: torch.Tensor
    g: torch.Tensor

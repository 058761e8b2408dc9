"""Gradients by central differences in f64: what the gradients of losses and layers are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def differences(f: Callable[[Any], Any], point: Any, h: float = 1e-4) -> Any:
    """Return the gradient of f at a point by central differences in f64; all its steps at once, by vmap."""
    still = point.detach().double()
    steps = h * torch.eye(still.numel(), dtype=torch.float64).view(-1, *still.shape)
    above, below = (torch.func.vmap(f)(still + sign * steps) for sign in (1, -1))
    return ((above - below) / (2 * h)).view_as(point)

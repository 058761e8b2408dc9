"""Compute capabilities that kernels tell apart."""

from __future__ import annotations

HOPPER = (9, 0)
AMPERE = (8, 0)  # from here on Triton multiplies int8 on tensor cores

"""Heads and inputs that are hard to bound: outliers, equals, zeros, the smallest and the largest numbers, NaN."""

from __future__ import annotations

import numpy as np

HEADS = (
    "gauss",
    "outlier columns",
    "outlier rows",
    "equal rows",
    "pairs",
    "zeros",
    "denormal",
    "large",
    "mixed",
    "not finite",
)
INPUTS = ("normal", "outliers", "row", "zero", "tiny", "denormal", "large", "nan", "infinite")


def head_of(kind: str, vocab: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Return a table [vocab, width] of this kind, f32."""
    w = rng.normal(size=(vocab, width)).astype(np.float32) * np.float32(0.05)
    if kind == "outlier columns":
        w[:, rng.integers(0, width, 3)] *= 100
    elif kind == "outlier rows":
        w *= rng.lognormal(0, 3, (vocab, 1)).astype(np.float32)
    elif kind == "equal rows":
        w[:] = w[0]
    elif kind == "pairs":
        w[1::2] = w[: vocab - 1 : 2][: len(w[1::2])]
    elif kind == "zeros":
        w[rng.random(w.shape) < 0.9] = 0
        w[::3] = 0
    elif kind == "denormal":
        w *= np.float32(1e-38)
    elif kind == "large":
        w *= np.float32(1e18)
    elif kind == "mixed":
        w *= (10.0 ** rng.integers(-30, 15, (vocab, width))).astype(np.float32)
    elif kind == "not finite":
        w[rng.integers(0, vocab), rng.integers(0, width)] = rng.choice([np.nan, np.inf, -np.inf])
    return w


def input_of(kind: str, width: int, rng: np.random.Generator) -> np.ndarray:
    """Return an input [width] of this kind, f32."""
    x = rng.normal(size=width).astype(np.float32)
    if kind == "outliers":
        x[rng.integers(0, width, 2)] *= 1000
    elif kind == "row":
        x = np.sign(x) * np.float32(0.5)
    elif kind == "zero":
        x[:] = 0
    elif kind in ("tiny", "denormal"):
        x *= np.float32(1e-20 if kind == "tiny" else 1e-40)
    elif kind == "large":
        x *= np.float32(1e15)
    elif kind in ("nan", "infinite"):
        x[rng.integers(0, width)] = np.nan if kind == "nan" else -np.inf
    return x

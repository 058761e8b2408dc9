"""Plain formulas of mixers in f64, written from their papers, and operands to try them with."""

from __future__ import annotations

from typing import Any

import numpy as np

import tritium as tt

Arr = np.ndarray[Any, Any]


def draw(shape: tuple[int, ...], seed: int = 0, kind: str = "f32") -> Arr:
    return np.asarray(np.random.default_rng(seed).normal(size=shape)).astype(tt.Spec((), getattr(tt, kind)).dtype.numpy)


def gates(shape: tuple[int, ...], seed: int) -> list[Arr]:
    """Decay and beta: numbers between 0 and 1."""
    rng = np.random.default_rng(seed)
    return [rng.uniform(0, 1, shape).astype(np.float32) for _ in range(2)]


def sylvester(size: int) -> Arr:
    """The Hadamard matrix of a power of two: each is four of the one before."""
    h = np.ones((1, 1))
    while h.shape[0] < size:
        h = np.block([[h, h], [h, -h]])
    return h


def delta_rule(state: Arr, q: Arr, k: Arr, v: Arr, decay: Arr, beta: Arr) -> tuple[Arr, Arr]:
    """(state, y) of one sequence; state [heads, Dk, Dv], q and k [T, key heads, Dk], v [T, heads, Dv]."""
    tokens, heads, _ = v.shape
    per = heads // k.shape[1]
    state, rows = state.astype(np.float64), []
    for t in range(tokens):
        row = []
        for h in range(heads):
            key, query = k[t, h // per].astype(np.float64), q[t, h // per].astype(np.float64)
            s = state[h] * decay[t, h]
            state[h] = s + np.outer(key, beta[t, h] * (v[t, h] - s.T @ key))
            row.append(state[h].T @ query)
        rows.append(row)
    return state, np.array(rows).reshape(v.shape)


def silu(x: Arr) -> Arr:
    return np.asarray(x / (1 + np.exp(-x)))


def mixture(x: Arr, router: Arr, gate: Arr, up: Arr, down: Arr, active: int) -> Arr:
    """A mixture of experts: softmax over all, the `active` largest, divided by their sum; x [T, h]."""
    scores = x @ router.T
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    y = np.zeros_like(x)
    for t, row in enumerate(p):
        chosen = np.argsort(-row, kind="stable")[:active]
        for e in chosen:
            inner = silu(gate[e] @ x[t]) * (up[e] @ x[t])
            y[t] += row[e] / row[chosen].sum() * (down[e] @ inner)
    return y

"""The ops of mixers in NumPy: the Hadamard transform, ops with a state of their sequence, products of experts.

Every float step is one f32 operation in a fixed order, so that every native kernel gives the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tritium import ops
from tritium.backends.reference.cast import cast
from tritium.backends.reference.packed import Packed
from tritium.backends.reference.quantized import KERNELS as QUANTIZED, integers
from tritium.errors import BoundsError
from tritium.op import Op

Arr = np.ndarray[Any, Any]
Turns = list[tuple[int, int, int]]


def block_of(size: int, block: int | None) -> int:
    """Return the elements that a Hadamard transform joins: the largest power of two that divides the axis, unless one is named."""
    return (size & -size or 1) if block is None else block


def _hadamard(x: Arr, signs: Arr | None, *, out: Arr, block: int | None, inverse: bool) -> None:
    y = x.astype(np.float32)
    n = block_of(x.shape[-1], block)
    if signs is not None and not inverse:
        y = y * signs
    half = 1
    while half < n:
        pairs = y.reshape(*y.shape[:-1], y.shape[-1] // (2 * half), 2, half)
        one, two = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack([one + two, one - two], -2).reshape(y.shape)
        half *= 2
    y = y * np.float32(1 / np.sqrt(n))
    cast(y * signs if signs is not None and inverse else y, out=out)


# ---- rows with a state


def beyond(what: str, slots: int, tokens: int) -> str:
    """Return what is wrong where some sequence of a device has no state of its own: which one is not known on the host."""
    return (
        f"{what}: a sequence is at (slot, start, count) outside {slots} slots and the {tokens} tokens given, or two sequences "
        f"are in one slot. Make more states, or give fewer tokens."
    )


def checked_turns(places: Arr, slots: int, tokens: int, what: str) -> Turns:
    """Return the places of all sequences, or raise for the first that has no state, or not one of its own."""
    turns = [(int(slot), int(start), int(count)) for slot, start, count in places]
    for b, (slot, start, count) in enumerate(turns):
        if not (0 <= slot < slots and start >= 0 and 0 <= count <= tokens):
            raise BoundsError(
                f"{what}: sequence {b} is at (slot {slot}, start {start}, count {count}), outside {slots} slots and the {tokens} "
                f"tokens given. Make more states, or give fewer tokens."
            )
        same = [o for o, other in enumerate(turns[:b]) if other[0] == slot and other[2] and count]
        if same:
            raise BoundsError(
                f"{what}: sequences {same[0]} and {b} are both in slot {slot}; each needs a state of its own."
            )
    return turns


def _causal_conv1d(state: Arr, x: Arr, weight: Arr, places: Arr, bias: Arr | None, *, out: tuple[Arr, Arr]) -> None:
    now, y = out
    turns = checked_turns(places, state.shape[0], x.shape[1], "causal_conv1d")
    if now.ctypes.data != state.ctypes.data:  # else it is written in place
        now[...] = state
    y[...] = 0
    taps = weight.shape[0]
    for b, (slot, start, count) in enumerate(turns):
        if not count:
            continue
        before = now[slot] if start else np.zeros_like(now[slot])
        line = np.concatenate([before, x[b, :count]])
        sums = weight[0] * line[:count]
        for j in range(1, taps):
            sums = sums + weight[j] * line[j : j + count]
        y[b, :count] = sums if bias is None else sums + bias
        now[slot] = line[count:]


def _gated_delta_rule(
    state: Arr, q: Arr, k: Arr, v: Arr, decay: Arr, beta: Arr, places: Arr, *, out: tuple[Arr, Arr]
) -> None:
    now, y = out
    turns = checked_turns(places, state.shape[0], v.shape[1], "gated_delta_rule")
    if now.ctypes.data != state.ctypes.data:  # else it is written in place
        now[...] = state
    y[...] = 0
    per = v.shape[2] // k.shape[2]
    for b, (slot, start, count) in enumerate(turns):
        if not count:
            continue
        s = now[slot].copy() if start else np.zeros_like(now[slot])
        for t in range(count):
            key, query = k[b, t].repeat(per, axis=0), q[b, t].repeat(per, axis=0)
            s *= decay[b, t][:, None, None]
            delta = (v[b, t] - _asked(s, key)) * beta[b, t][:, None]
            s += key[:, :, None] * delta[:, None, :]
            y[b, t] = _asked(s, query)
        now[slot] = s


def _asked(s: Arr, key: Arr) -> Arr:
    """Return the sum over rows i of s[h, i] * key[h, i], in order."""
    sums = np.zeros((s.shape[0], s.shape[2]), np.float32)
    for i in range(s.shape[1]):
        sums += s[:, i] * key[:, i, None]
    return sums


# ---- experts


def _expert_matmul(
    x: Arr, w: Arr | Packed, scale: Arr, experts: Arr, *, group: int, activations: str = "token", out: Arr
) -> None:
    matrices = integers(w)
    bad = (experts < 0) | (experts >= matrices.shape[0])
    if bad.any():
        raise BoundsError(
            f"expert_matmul: index {int(experts[bad][0])} is outside an axis of size {matrices.shape[0]}."
        )
    rows = x[..., None, :] if x.ndim == experts.ndim else x
    rows = np.broadcast_to(rows, (*experts.shape, x.shape[-1]))
    for e in np.unique(experts):
        chosen = experts == e
        y = np.empty((int(chosen.sum()), matrices.shape[1]), out.dtype)
        own = scale[e] if scale.ndim else scale
        how = {"group": group, "activations": activations}
        QUANTIZED[ops.quantized_matmul](rows[chosen], matrices[e], np.asarray(own), None, **how, out=y)
        out[chosen] = y


KERNELS: dict[Op, Any] = {
    ops.hadamard: _hadamard,
    ops.causal_conv1d: _causal_conv1d,
    ops.gated_delta_rule: _gated_delta_rule,
    ops.expert_matmul: _expert_matmul,
}

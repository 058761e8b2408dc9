"""The rows of mixers over values of a library: the Hadamard transform, rows with a state of their sequence, products of experts.

Sequences of a batch are computed together, token by token; sums over a state are the library's own, so that their last bits may
differ from the CPU's. The Hadamard transform and the products of experts, but for those of float activations, have the reference's
bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tritium import dtype as dt, ops
from tritium.backends.reference.mixers import beyond, block_of
from tritium.backends.reference.packed import Packed
from tritium.backends.values.namespace import Namespace, Value, cast, size_of
from tritium.backends.values.quantized import scaled
from tritium.op import Op, Spec

Fn = Callable[..., Any]


def _hadamard(xp: Namespace, x: Value, signs: Value | None, block: int | None, inverse: bool) -> Value:
    shape, y = tuple(int(n) for n in x.shape), xp.astype(x, dt.f32)
    if not size_of(shape):
        return y
    n = block_of(shape[-1], block)
    if signs is not None and not inverse:
        y = y * signs
    half = 1
    while half < n:
        pairs = xp.reshape(y, (*shape[:-1], shape[-1] // (2 * half), 2, half))
        one, two = pairs[..., 0, :], pairs[..., 1, :]
        y = xp.reshape(xp.stack([one + two, one - two], len(shape)), shape)
        half *= 2
    y = y * xp.full((), float(1 / n**0.5), dt.f32)
    return y * signs if signs is not None and inverse else y


# ---- rows with a state


def check_turns(xp: Namespace, places: Value, slots: int, tokens: int, what: str) -> None:
    """Raise, now or after a program, where a sequence has no state, or shares the state of another."""
    slot, start, count = (places[:, i] for i in range(3))
    outside = (slot < 0) | (slot >= slots) | (start < 0) | (count < 0) | (count > tokens)
    number = xp.arange(int(places.shape[0]), dt.i32)
    earlier = number[None, :] < number[:, None]
    live = (count[:, None] > 0) & (count[None, :] > 0)
    shared = earlier & live & (slot[:, None] == slot[None, :])
    xp.doubt(outside[:, None] | shared, beyond(what, slots, tokens))


def _turns(xp: Namespace, places: Value, slots: int, tokens: int, what: str) -> tuple[Value, Value, Value]:
    """(slot, start, count) of all sequences, held to the states; what is outside, or shares a slot, raises later."""
    check_turns(xp, places, slots, tokens, what)
    slot, start, count = (places[:, i] for i in range(3))
    zero, last, most = (xp.full((), n, dt.i32) for n in (0, max(slots - 1, 0), tokens))
    return (
        xp.maximum(xp.minimum(slot, last), zero),
        start,
        xp.maximum(xp.minimum(count, most), zero),
    )


def _own(xp: Namespace, state: Value, slot: Value, start: Value) -> Value:
    """The states of sequences; zeros for those that begin."""
    states = xp.take(state, slot, 0)
    begins = xp.reshape(start == 0, (int(start.shape[0]), *(1 for _ in state.shape[1:])))
    return xp.where(begins, xp.full((), 0.0, dt.f32), states)


def _kept(xp: Namespace, state: Value, slot: Value, count: Value, states: Value) -> Value:
    """`state` with those of sequences that had tokens; the others are written to a row of nobody."""
    slots = int(state.shape[0])
    target = xp.where(count > 0, slot, xp.full((), slots, dt.i32))
    spare = xp.full((1, *(int(n) for n in state.shape[1:])), 0.0, dt.f32)
    return xp.put(xp.concat([state, spare], 0), target, states)[:slots]


def _causal_conv1d(
    xp: Namespace, state: Value, x: Value, weight: Value, places: Value, bias: Value | None
) -> tuple[Value, Value]:
    batch, tokens, channels = (int(n) for n in x.shape)
    taps = int(weight.shape[0])
    slot, start, count = _turns(xp, places, int(state.shape[0]), tokens, "causal_conv1d")
    if not (batch and tokens and channels):
        return state, xp.full((batch, tokens, channels), 0.0, dt.f32)
    line = xp.concat([_own(xp, state, slot, start), x], 1) if taps > 1 else x
    y = weight[0] * line[:, :tokens]
    for j in range(1, taps):
        y = y + weight[j] * line[:, j : j + tokens]
    y = y if bias is None else y + bias
    real = (xp.arange(tokens, dt.i32)[None, :] < count[:, None])[:, :, None]
    y = xp.where(real, y, xp.full((), 0.0, dt.f32))
    if taps == 1:
        return state, y
    last = count[:, None] + xp.arange(taps - 1, dt.i32)[None, :]
    index = xp.broadcast_to(last[:, :, None], (batch, taps - 1, channels))
    return _kept(xp, state, slot, count, xp.take_along_axis(line, index, 1)), y


def _gated_delta_rule(
    xp: Namespace, state: Value, q: Value, k: Value, v: Value, decay: Value, beta: Value, places: Value
) -> tuple[Value, Value]:
    batch, tokens, heads, columns = (int(n) for n in v.shape)
    key_heads, size = (int(n) for n in k.shape[2:])
    slot, start, count = _turns(xp, places, int(state.shape[0]), tokens, "gated_delta_rule")
    if not (batch and tokens and heads and columns and size):
        return state, xp.full((batch, tokens, heads, columns), 0.0, dt.f32)
    s = _own(xp, state, slot, start)
    wide = (batch, tokens, key_heads, heads // key_heads, size)
    k, q = (xp.reshape(xp.broadcast_to(x[:, :, :, None, :], wide), (batch, tokens, heads, size)) for x in (k, q))
    zero, rows = xp.full((), 0.0, dt.f32), []
    for t in range(tokens):
        real = xp.reshape(count > t, (batch, 1, 1))
        key, query = k[:, t][:, :, :, None], q[:, t][:, :, :, None]
        faded = s * decay[:, t][:, :, None, None]
        delta = (v[:, t] - xp.sum(faded * key, (2,))) * beta[:, t][:, :, None]
        now = faded + key * delta[:, :, None, :]
        rows.append(xp.where(real, xp.sum(now * query, (2,)), zero))
        s = xp.where(real[..., None], now, s)
    return _kept(xp, state, slot, count, s), xp.stack(rows, 1)


# ---- experts


def expert_of(w: Packed | Value, take: Callable[[Value], Value]) -> Packed | Value:
    """One matrix of weights [E, N, K]; `take` picks it from a value."""
    return Packed(take(w.data), w.dtype, w.shape[1:]) if isinstance(w, Packed) else take(w)


def _expert_matmul(
    xp: Namespace, x: Value, w: Packed | Value, scale: Value, experts: Value, group: int, activations: str, n: int
) -> Value:
    """Pair by pair while there are no more of them than experts; else expert by expert, and each pair keeps its own: which experts
    were chosen is not known on the host."""
    shape, count, k = tuple(int(s) for s in experts.shape), int(w.shape[0]), int(x.shape[-1])
    xp.doubt((experts < 0) | (experts >= count), f"expert_matmul: an index is outside an axis of size {count}.")
    pairs = size_of(shape)
    if not (pairs and n and count):
        return xp.full((*shape, n), 0.0, dt.f32)
    rows = x if len(x.shape) > len(shape) else xp.broadcast_to(x[..., None, :], (*shape, k))
    rows, chosen = xp.reshape(rows, (pairs, k)), xp.reshape(experts, (pairs,))
    held = xp.maximum(xp.minimum(chosen, xp.full((), count - 1, dt.i32)), xp.full((), 0, dt.i32))

    def product(some: Value, index: Value) -> Value:
        def take(value: Value) -> Value:
            return xp.take(value, index, 0)[0]

        own = take(scale) if len(scale.shape) else scale
        return scaled(xp, some, expert_of(w, take), own, None, group, activations)

    if pairs <= count:
        y = xp.concat([product(rows[p : p + 1], held[p : p + 1]) for p in range(pairs)], 0)
    else:
        number = xp.arange(count, dt.i32)
        y = xp.full((pairs, n), 0.0, dt.f32)
        for e in range(count):
            y = xp.where((chosen == e)[:, None], product(rows, number[e : e + 1]), y)
    return xp.reshape(y, (*shape, n))


def makers(xp: Namespace) -> dict[Op, Fn]:
    """The rows of mixers."""

    def hadamard(out: Spec, block: int | None, inverse: bool) -> Fn:
        return lambda x, signs: cast(xp, _hadamard(xp, x, signs, block, inverse), out.dtype)

    def causal_conv1d(out: tuple[Spec, ...]) -> Fn:
        return lambda *xs: _causal_conv1d(xp, *xs)

    def gated_delta_rule(out: tuple[Spec, ...]) -> Fn:
        return lambda *xs: _gated_delta_rule(xp, *xs)

    def expert_matmul(out: Spec, group: int, activations: str) -> Fn:
        return lambda x, w, scale, experts: cast(
            xp, _expert_matmul(xp, x, w, scale, experts, group, activations, out.shape[-1]), out.dtype
        )

    return {
        ops.hadamard: hadamard,
        ops.causal_conv1d: causal_conv1d,
        ops.gated_delta_rule: gated_delta_rule,
        ops.expert_matmul: expert_matmul,
    }

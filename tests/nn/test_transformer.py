"""The parts of a transformer against their formulas, each alone, and the two conventions of rotary positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from tritium import nn
from tritium.errors import ArgumentError, ShapeError
from tritium.io.model.names import deinterleave, interleave
from tritium.nn.rope import SCALINGS, scaled
from tritium.nn.transformer import ACTIVATIONS

HEADS, KV, SIZE, WIDTH, INNER = 4, 2, 8, 24, 40
ROWS = (HEADS + 2 * KV) * SIZE


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ternary(n: int, k: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-1, 2, (n, k)).astype(np.int8)


def linear(t: Any, scale: Any = 0.2) -> nn.BitLinear:
    return nn.BitLinear.from_ternary(t, scale=scale)


def product(x: Any, t: Any, scale: float = 0.2) -> Any:
    """A projection in f64."""
    amax = np.maximum(np.abs(x).max(-1, keepdims=True), 1e-5)
    return np.rint(x * (127 / amax)) @ t.T.astype(np.float64) * amax / 127 * scale


def at(positions: Any) -> tt.Tensor:
    return tt.tensor(np.asarray(positions, np.int32))


# ---- small parts


def test_an_embedding_gives_the_rows_of_its_table_in_f32() -> None:
    table = floats(10, 6)
    for dtype in ("f32", "f16", "bf16"):
        kept = tt.tensor(table).to(dtype)
        y = nn.Embedding(kept)(at([[3, 0], [9, 3]]))
        assert y.dtype == "f32"
        np.testing.assert_array_equal(y.numpy(), kept.to("f32").numpy()[[[3, 0], [9, 3]]])


def test_a_token_beyond_the_table_is_an_error() -> None:
    with pytest.raises(IndexError):
        nn.Embedding(tt.tensor(floats(10, 6)))(at([[10]]))


def test_rms_norm_is_its_formula() -> None:
    x, w = floats(3, 5, WIDTH), floats(WIDTH, seed=1)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3) * w
    np.testing.assert_allclose(nn.RMSNorm(w, 1e-3)(tt.tensor(x)).numpy(), want, rtol=2e-6, atol=1e-7)


def test_the_weight_of_a_norm_may_be_half_floats() -> None:
    w = tt.tensor(floats(WIDTH)).to("bf16")
    norm = nn.RMSNorm(w)
    assert norm.weight.dtype == "f32"
    np.testing.assert_array_equal(norm.weight.numpy(), w.to("f32").numpy())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_mlp_is_its_formula(name: str) -> None:
    gate, up, down = ternary(INNER, WIDTH, 1), ternary(INNER, WIDTH, 2), ternary(WIDTH, INNER, 3)
    mlp = nn.MLP(linear(np.concatenate([gate, up])), linear(down), name)
    x = floats(2, 3, WIDTH)
    act = {
        "relu2": lambda v: np.maximum(v, 0) ** 2,
        "silu": lambda v: v / (1 + np.exp(-v)),
        "relu": lambda v: np.maximum(v, 0),
        "gelu": lambda v: tt.gelu(tt.tensor(v.astype(np.float32))).numpy().astype(np.float64),
        "gelu_pytorch_tanh": lambda v: v / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))),
    }[name]
    hidden = act(product(x, gate)) * product(x, up)
    found, want = mlp(tt.tensor(x)).numpy(), product(hidden, down)
    step = np.abs(hidden).max(-1, keepdims=True) / 127 * 0.2  # a number may fall to the other of two steps
    assert (np.abs(found - want) <= 2 * step).all()
    assert np.median(np.abs(found - want)) < 1e-5


def test_a_sub_norm_stands_before_the_last_product() -> None:
    gate_up, down, w = ternary(2 * INNER, WIDTH, 1), ternary(WIDTH, INNER, 3), floats(INNER, seed=4)
    x = tt.tensor(floats(2, 3, WIDTH))
    norm = nn.RMSNorm(w)
    both = linear(gate_up)(x)
    want = linear(down)(norm(tt.relu2(both[..., :INNER]) * both[..., INNER:]))
    np.testing.assert_array_equal(nn.MLP(linear(gate_up), linear(down), "relu2", norm)(x).numpy(), want.numpy())


def test_a_head_is_a_norm_and_a_product() -> None:
    x, table, w = floats(5, WIDTH), floats(30, WIDTH, seed=1), floats(WIDTH, seed=2)
    normed = nn.RMSNorm(w)(tt.tensor(x)).numpy().astype(np.float64)
    for dtype, within in (("f32", 1e-5), ("f16", 0.02), ("bf16", 0.15)):
        head = nn.Head(nn.RMSNorm(w), tt.tensor(table).to(dtype))
        np.testing.assert_allclose(head(tt.tensor(x)).numpy(), normed @ table.T, atol=within)
    eight = nn.Head(nn.RMSNorm(w), nn.QuantLinear.from_float(table, "int8"))
    np.testing.assert_allclose(eight(tt.tensor(x)).numpy(), normed @ table.T, atol=0.3)


# ---- rotary positions


@given(st.integers(1, 32), st.floats(2, 1e6), st.integers(0, 9000))
def test_pairs_of_halves_are_turned_by_position_over_theta(half: int, theta: float, position: int) -> None:
    x = floats(1, 1, 2, 2 * half, seed=half)
    rope = nn.RoPE(2 * half, theta)
    y = rope(tt.tensor(x), rope.angles(at([[position]]))).numpy()
    angle = position * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    want = np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)
    np.testing.assert_allclose(y, want, atol=2e-6 * (position + 2))  # an angle of f32 is off by its ulp


@given(st.integers(1, 6), st.integers(1, 16), st.integers(1, 5), st.integers(0, 99))
def test_the_two_conventions_differ_by_the_order_of_rows(heads: int, half: int, tokens: int, seed: int) -> None:
    """Rows of Q and K in pairs, as `llama` files keep them, turned in pairs: the same numbers in the order of pairs."""
    size = 2 * half
    x = floats(1, tokens, heads, size, seed=seed)
    order = interleave(heads * size, heads)
    pairs = x.reshape(1, tokens, -1)[..., order].reshape(x.shape)
    one, two = nn.RoPE(size, 1e4), nn.RoPE(size, 1e4, interleaved=True)
    angles = one.angles(at(np.arange(tokens)[None] * 7))
    found = two(tt.tensor(pairs), angles).numpy().reshape(1, tokens, -1)
    want = one(tt.tensor(x), angles).numpy().reshape(1, tokens, -1)
    np.testing.assert_array_equal(found, want[..., order])
    np.testing.assert_array_equal(found[..., deinterleave(heads * size, heads)], want)


def test_attention_is_the_same_in_both_conventions() -> None:
    """Q and K rows permuted, V and the result as they are."""
    t, out = ternary(ROWS, WIDTH), ternary(WIDTH, HEADS * SIZE, 1)
    q, k = HEADS * SIZE, KV * SIZE
    order = np.concatenate([interleave(q, HEADS), q + interleave(k, KV), np.arange(q + k, ROWS)])
    x = tt.tensor(floats(1, 6, WIDTH))
    found = []
    for rows, interleaved in ((t, False), (t[order], True)):
        rope = nn.RoPE(SIZE, 1e4, interleaved=interleaved)
        attention = nn.Attention(linear(rows), linear(out), rope, heads=HEADS, kv_heads=KV)
        cache = nn.KVCache.empty(slots=1, heads=KV, capacity=6, size=SIZE, dtype="f32")
        found.append(attention(x, rope.angles(at([np.arange(6)])), cache, at([[0, 0, 6]])).numpy())
    np.testing.assert_allclose(*found, atol=1e-2)  # sums of another order: a number may fall to another step
    assert np.median(np.abs(found[0] - found[1])) < 1e-6


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}


def test_llama3_keeps_high_frequencies_and_divides_low_ones() -> None:
    """By wavelength, as its authors wrote it: one number at a time."""
    turns = 500000.0 ** -(np.arange(0, 128, 2) / 128)
    want = []
    for f in turns:
        wavelength = 2 * np.pi / f
        if wavelength < 8192 / 4.0:
            want.append(f)
        elif wavelength > 8192 / 1.0:
            want.append(f / 8.0)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            want.append((1 - smooth) * f / 8.0 + smooth * f)
    assert len({round(w / f, 6) for w, f in zip(want, turns, strict=True)}) > 3
    np.testing.assert_allclose(scaled(turns, LLAMA3), want, rtol=1e-12)
    np.testing.assert_allclose(nn.RoPE(128, 5e5, scaling=LLAMA3).frequencies.numpy(), want, rtol=1e-7)


def test_linear_scaling_divides_positions() -> None:
    stretched = nn.RoPE(16, 1e4, scaling={"rope_type": "linear", "factor": 4.0})
    plain = nn.RoPE(16, 1e4)
    for a, b in zip(stretched.angles(at([[8, 40]])), plain.angles(at([[2, 10]])), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_the_old_key_of_scaling_is_read_and_default_changes_nothing() -> None:
    turns = np.ones(4)
    np.testing.assert_array_equal(scaled(turns, {"type": "linear", "factor": 2.0}), turns / 2)
    np.testing.assert_array_equal(scaled(turns, {"rope_type": "default"}), turns)
    np.testing.assert_array_equal(
        scaled(turns, {"rope_type": "factors", "factors": [1, 2, 4, 8]}), [1, 0.5, 0.25, 0.125]
    )
    with pytest.raises(ArgumentError, match=f"scaling 'dynamic' is unknown; known are {', '.join(SCALINGS)}"):
        scaled(turns, {"rope_type": "dynamic"})


# ---- attention


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_attention_is_its_formula_for_sequences_of_different_lengths() -> None:
    """Two sequences in slots 2 and 0, the second already two tokens long, the first padded."""
    t, out, w = ternary(ROWS, WIDTH), ternary(WIDTH, HEADS * SIZE, 1), floats(HEADS * SIZE, seed=5)
    rope = nn.RoPE(SIZE, 1e4)
    attention = nn.Attention(linear(t), linear(out), rope, heads=HEADS, kv_heads=KV, sub_norm=nn.RMSNorm(w))
    cache = nn.KVCache.empty(slots=3, heads=KV, capacity=8, size=SIZE, dtype="f32")
    whole = {2: floats(3, WIDTH, seed=6), 0: floats(5, WIDTH, seed=7)}
    before = tt.tensor(whole[0][None, :2])
    attention(before, rope.angles(at([[0, 1]])), cache, at([[0, 0, 2]]))
    x = np.stack([np.concatenate([whole[2][:2], np.full((1, WIDTH), 1e3, np.float32)]), whole[0][2:]])
    places = at([[2, 0, 2], [0, 2, 3]])
    y = attention(tt.tensor(x), rope.angles(at([[0, 1, 2], [2, 3, 4]])), cache, places).numpy()
    for row, (slot, count) in enumerate(((2, 2), (0, 5))):
        qkv = product(whole[slot][:count], t).reshape(count, -1, SIZE)
        q, k, v = qkv[:, :HEADS], qkv[:, HEADS : HEADS + KV], qkv[:, HEADS + KV :]
        angle = np.arange(count)[:, None, None] * 1e4 ** (-np.arange(SIZE // 2) * 2 / SIZE)
        q, k = (turned(a, angle) for a in (q, k))
        mixed = np.empty((count, HEADS, SIZE))
        for i in range(count):
            for h in range(HEADS):
                g = h * KV // HEADS
                mixed[i, h] = softmax(k[: i + 1, g] @ q[i, h] / np.sqrt(SIZE)) @ v[: i + 1, g]
        flat = mixed.reshape(count, -1)
        want = product(flat / np.sqrt((flat**2).mean(-1, keepdims=True) + 1e-5) * w, out)
        new = {2: 2, 0: 3}[slot]
        np.testing.assert_allclose(y[row, :new], want[-new:], atol=2e-5)


def turned(x: Any, angle: Any) -> Any:
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def test_a_block_adds_both_parts_to_what_came_in() -> None:
    rope = nn.RoPE(SIZE, 1e4)
    attention = nn.Attention(
        linear(ternary(ROWS, WIDTH)), linear(ternary(WIDTH, HEADS * SIZE, 1)), rope, heads=HEADS, kv_heads=KV
    )
    mlp = nn.MLP(linear(ternary(2 * INNER, WIDTH, 2)), linear(ternary(WIDTH, INNER, 3)))
    one, two = nn.RMSNorm(floats(WIDTH, seed=4)), nn.RMSNorm(floats(WIDTH, seed=5))
    x, places, angles = tt.tensor(floats(1, 4, WIDTH)), at([[0, 0, 4]]), rope.angles(at([[0, 1, 2, 3]]))
    empty = lambda: nn.KVCache.empty(slots=1, heads=KV, capacity=4, size=SIZE, dtype="f32")
    h = x + attention(one(x), angles, empty(), places)
    want = h + mlp(two(h))
    np.testing.assert_array_equal(nn.Block(one, attention, two, mlp)(x, angles, empty(), places).numpy(), want.numpy())


# ---- what does not fit


def test_parts_that_do_not_fit_are_told() -> None:
    rope = nn.RoPE(SIZE)
    good = linear(ternary(ROWS, WIDTH)), linear(ternary(WIDTH, HEADS * SIZE))
    with pytest.raises(ShapeError, match="4 heads and 1 kv heads of 8 need 48 rows of Q, K and V"):
        nn.Attention(*good, rope, heads=HEADS, kv_heads=1)
    with pytest.raises(ShapeError, match="32 columns of the result"):
        nn.Attention(good[0], linear(ternary(WIDTH, 16)), rope, heads=HEADS, kv_heads=KV)
    with pytest.raises(ShapeError, match="twice the columns of down"):
        nn.MLP(linear(ternary(INNER, WIDTH)), linear(ternary(WIDTH, INNER)))
    with pytest.raises(ArgumentError, match="activation 'swish' is unknown"):
        nn.MLP(linear(ternary(2 * INNER, WIDTH)), linear(ternary(WIDTH, INNER)), "swish")
    with pytest.raises(ShapeError, match=r"a table \[vocab_size, hidden_size\] is needed"):
        nn.Embedding(tt.ones((3,)))
    with pytest.raises(ShapeError, match="one weight for each column"):
        nn.RMSNorm(floats(2, 3))


@pytest.mark.parametrize(("size", "theta"), [(0, 1e4), (7, 1e4), (8, 0), (8, -1), (8, float("nan"))])
def test_a_rotation_needs_an_even_size_and_a_positive_base(size: int, theta: float) -> None:
    with pytest.raises(ArgumentError, match="an even size and a positive theta"):
        nn.RoPE(size, theta)

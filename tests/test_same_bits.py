"""Rows that stand between the quantisers of a network give the same bits on every instruction set and device.

They are computed in f64 and rounded once, so the order in which something is added does not show: two ways differ only where a
sum of f64 lies within its own rounding of the middle between two f32, about once in 10^8 numbers. Seeds are fixed for that.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tritium as tt
from isas import BASES as ISAS
from tritium import nn, ops
from tritium.backends.reference import kernels as reference
from tritium.buffer import native
from tritium.models import load as model
from tritium.op import Op

DEVICES = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"needs {name}"))
    for name in ("torch", "mlx")
]
KINDS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
PROMPTS = ("And it came to pass", "Therefore")  # some parted, in f32

every_isa = pytest.mark.parametrize("isa", ISAS)
every_device = pytest.mark.parametrize("device", DEVICES)
every_kind = pytest.mark.parametrize("kind", KINDS)


def floats(seed: int, *shape: int, kind: str = "f32", size: float = 1.0) -> Any:
    return (np.random.default_rng(seed).normal(size=shape) * size).astype(KINDS[kind])


def bits(x: Any) -> Any:
    return x.view(np.uint16 if x.dtype.itemsize == 2 else np.uint32)


def by_reference(op: Op, *xs: Any, **attrs: Any) -> Any:
    out = np.empty_like(xs[0])
    reference.KERNELS[op](*xs, out=out, **(op.complete(attrs)))
    return bits(out)


def by_kernel(isa: str, op: Op, *xs: Any, **attrs: Any) -> Any:
    ts = [None if x is None else tt.tensor(x) for x in xs]
    out = tt.ones(ts[0].shape, dtype=ts[0].dtype)
    native.kernel(op.name, isa)(*ts, out=out, **(op.complete(attrs)))
    return bits(out.numpy())


def on_device(device: str, op: Op, *xs: Any, **attrs: Any) -> list[Any]:
    """What an eager call and a compiled one give."""
    there = [tt.tensor(x).to(device) for x in xs]
    calls = (op, tt.compile(lambda *ts: op(*ts, **attrs)))
    return [bits(fn(*there, **(attrs if fn is op else {})).to("cpu").numpy()) for fn in calls]


def norm_operands(kind: str) -> tuple[Any, Any]:
    """Rows of very different sizes, and their weights."""
    sizes = np.exp(floats(1, 60, 1, size=3)).astype(np.float32)
    return (floats(2, 60, 769) * sizes).astype(KINDS[kind]), floats(3, 769, kind=kind)


def attention_operands(kind: str, tokens: int) -> tuple[Any, ...]:
    """Two sequences of a cache of half floats, beyond one block and one part of the keys."""
    cache = "f16" if kind == "f32" else kind
    places = np.array([[2, 600 - tokens, tokens], [0, 3, tokens - 1]], np.int32)
    return (
        floats(4, 2, tokens, 4, 64, kind=kind, size=3), floats(5, 3, 2, 600, 64, kind=cache), floats(6, 3, 2, 600, 64, kind=cache),
        places,
    )  # fmt: skip


# ---- instruction sets


@every_isa
@every_kind
def test_rms_norm_is_the_references_on_every_instruction_set(isa: str, kind: str) -> None:
    x, weight = norm_operands(kind)
    np.testing.assert_array_equal(by_kernel(isa, ops.rms_norm, x, weight), by_reference(ops.rms_norm, x, weight))


@every_isa
@every_kind
@pytest.mark.parametrize("tokens", [2, 70])
def test_attention_is_the_references_on_every_instruction_set(isa: str, kind: str, tokens: int) -> None:
    xs = attention_operands(kind, tokens)
    np.testing.assert_array_equal(by_kernel(isa, ops.attention, *xs), by_reference(ops.attention, *xs))


@every_isa
@every_kind
def test_silu_is_the_references_on_every_instruction_set(isa: str, kind: str) -> None:
    x = floats(7, 20000, kind=kind, size=8)
    np.testing.assert_array_equal(by_kernel(isa, ops.silu, x), by_reference(ops.silu, x))


@every_isa
def test_silu_of_what_is_far_out_is_its_limit(isa: str) -> None:
    x = np.array([-0.0, 0.0, 150, -150, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)
    out = tt.empty(9)
    native.kernel("silu", isa)(tt.tensor(x), out=out)
    np.testing.assert_array_equal(out.numpy(), [-0.0, 0.0, 150, -0.0, x[4], -0.0, np.inf, np.nan, np.nan])


# ---- devices


@every_device
@every_kind
def test_rms_norm_has_the_same_bits_on_a_device(device: str, kind: str) -> None:
    x, weight = norm_operands(kind)
    for got in on_device(device, ops.rms_norm, x, weight, eps=1e-6):
        np.testing.assert_array_equal(got, by_reference(ops.rms_norm, x, weight, eps=1e-6))


@every_device
@pytest.mark.parametrize(("kind", "tokens"), [("f32", 2), ("f32", 70), ("bf16", 70)])
def test_attention_has_the_same_bits_on_a_device(device: str, kind: str, tokens: int) -> None:
    xs = attention_operands(kind, tokens)
    for got in on_device(device, ops.attention, *xs):
        np.testing.assert_array_equal(got, by_reference(ops.attention, *xs))


@every_device
def test_silu_has_the_same_bits_on_a_device(device: str) -> None:
    x = floats(8, 20000, size=8)
    for got in on_device(device, ops.silu, x):
        np.testing.assert_array_equal(got, by_reference(ops.silu, x))


@every_device
@pytest.mark.parametrize(("size", "theta"), [(64, 1e4), (128, 5e5)])
def test_angles_have_the_same_bits_on_a_device(device: str, size: int, theta: float) -> None:
    rope, positions = nn.RoPE(size, theta), tt.arange(1024, dtype="i32").reshape(1, -1)
    near, far = rope.angles(positions), rope.to(device).angles(positions.to(device))
    for a, b in zip(near, far, strict=True):
        np.testing.assert_array_equal(bits(b.to("cpu").numpy()), bits(a.numpy()))


@every_device
def test_a_block_has_the_same_bits_on_a_device(device: str) -> None:
    network = model.load().network
    block, far = network.blocks[0], network.blocks[0].to(device)
    shape = {"slots": 1, "heads": block.attention.kv_heads, "capacity": 32, "size": block.attention.size}
    x, places = tt.randn((1, 24, 256), seed=5), tt.tensor([[0, 0, 24]], dtype="i32")
    positions = tt.arange(24, dtype="i32").reshape(1, -1)
    near = block(x, network.rope.angles(positions), nn.KVCache.empty(**shape), places)
    turned = network.rope.to(device).angles(positions.to(device))
    got = far(x.to(device), turned, nn.KVCache.empty(**shape, device=device), places.to(device))
    np.testing.assert_array_equal(bits(got.to("cpu").numpy()), bits(near.numpy()))


@every_device
def test_tokens_are_the_same_to_the_end(device: str) -> None:
    near, far = (model.load(device=d) for d in ("cpu", device))
    for prompt in PROMPTS:
        assert list(far.generate(prompt, max_tokens=60).tokens) == list(near.generate(prompt, max_tokens=60).tokens)

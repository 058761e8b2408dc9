"""Training steps on a GPU: forward passes have the bits of the formulas, and so do int8 gradients.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from triton_runs import CUDA, INTERPRETED, PLACE, built, compiles, in_both_modes, passes, runs

torch = pytest.importorskip("torch", reason="training needs PyTorch: pip install torch triton")
from tritium.backends.cuda.train import step  # noqa: E402
from tritium.torch import steps  # noqa: E402
from tritium.torch.formulas import from_planes  # noqa: E402

on_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
SHAPES = [(33, 140, 9)] + ([] if INTERPRETED else [(5, 3, 1), (300, 520, 200), (1000, 2560, 333), (64, 128, 9)])
KINDS = (
    [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
)  # the interpreter cuts bf16 instead of rounding


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install torch triton")
@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


def drawn(n: int, k: int, m: int, kind: Any, seed: int = 0) -> tuple[Any, ...]:
    """Weights, tokens, a bias and gradients that are small numbers, as those of training are."""
    make = torch.Generator().manual_seed(seed)
    sizes = (n, k), (m, k), (n,), (m, n)
    w, x, bias, dy = (torch.randn(size, generator=make) for size in sizes)
    return w.to(PLACE, kind), x.to(PLACE, kind), bias.to(PLACE), (dy * 1e-6).to(PLACE, kind)


def both(w: Any, x: Any, bias: Any, axis: int | None) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the forward pass by kernels and by the formulas."""
    return step.forward(x, w, bias, axis, x.dtype), steps.reference_forward(x, w, bias, axis, x.dtype)


def assert_same(n: int, k: int, m: int, axis: int | None, kind: Any, seed: int = 0) -> None:
    w, x, bias, dy = drawn(n, k, m, kind, seed)
    (y, kept), (expected, known) = both(w, x, bias, axis)
    assert torch.equal(y, expected)
    assert torch.equal(kept.q, known.q)
    assert torch.equal(kept.a, known.a)
    assert torch.equal(kept.g, known.g)
    assert torch.equal(from_planes(kept.codes, k), from_planes(known.codes, k))
    t = from_planes(known.codes, k)
    assert torch.equal(from_planes(step.turned_codes(kept.codes, k), n), t.t())
    values = t.float() * (known.g[:, None] if axis == 0 else known.g)
    assert torch.equal(step.dense(kept.codes, kept.g, k, kind), values.to(kind))
    tokens = known.q[:, :k].float() * known.a[:, None]
    assert torch.equal(step.token_floats(kept.q, kept.a, k, kind), tokens.to(kind))
    dx, dw = step.int8_gradients(dy, kept, k, torch.float32, True, True)
    by_formula = steps.reference_gradients(dy, known, k, torch.float32, "int8", True, True)
    assert torch.equal(dx, by_formula[0])
    assert torch.equal(dw, by_formula[1])
    found = step.plain_gradients(dy, kept, k, torch.float32, True, True)
    expected = steps.reference_gradients(dy, known, k, torch.float32, "bf16", True, True)
    for one, two in zip(found, expected, strict=True):
        assert float((one - two).norm()) <= (1e-2 if kind is torch.bfloat16 else 1e-5) * float(two.norm())


@runs
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize(("n", "k", "m"), SHAPES)
def test_forward_and_int8_gradients_have_the_bits_of_the_formulas(
    n: int, k: int, m: int, axis: int | None, kind: Any
) -> None:
    assert_same(n, k, m, axis, kind)


@runs
@settings(deadline=None, max_examples=1 if INTERPRETED else 6)
@given(
    *(st.integers(1, most) for most in ((20, 70, 5) if INTERPRETED else (700, 2000, 500))),
    st.sampled_from([None, 0]),
    st.integers(0, 99),
)
def test_any_shape_has_them(n: int, k: int, m: int, axis: int | None, seed: int) -> None:
    assert_same(n, k, m, axis, KINDS[-1], seed)


@runs
@pytest.mark.parametrize("bad", [float("nan")] + [float("inf")] * (not INTERPRETED))
def test_what_is_no_number_stays_visible(bad: float) -> None:
    w, x, bias, dy = drawn(20, 40, 4, torch.float32)
    x[1, 3] = bad
    y, kept = step.forward(x, w, bias, None, torch.float32)
    assert y.isfinite().all(1).tolist() == [True, False, True, True]
    dy[2, 5] = bad
    dx, dw = step.int8_gradients(dy, kept._replace(a=kept.a.nan_to_num(0.0)), 40, torch.float32, True, True)
    assert dx.isfinite().all(1).tolist() == [True, True, False, True]
    assert dw.isfinite().all(1).logical_not().nonzero().flatten().tolist() == [5]
    w[0, 0] = bad
    y, _ = step.forward(x, w, bias, None, torch.float32)
    assert not y.isfinite().any() or bad == float("inf")


@runs
@pytest.mark.parametrize("way", [step.plain_gradients] + [step.int8_gradients] * (not INTERPRETED))
def test_only_what_is_needed_is_made(way: Any) -> None:
    w, x, bias, dy = drawn(20, 40, 4, torch.float32)
    _, saved = step.forward(x, w, bias, None, torch.float32)
    dx, dw = way(dy, saved, 40, torch.float32, True, True)
    alone, nothing = way(dy, saved, 40, torch.float32, True, False)
    assert torch.equal(alone, dx)
    assert nothing is None
    nothing, alone = way(dy, saved, 40, torch.float32, False, True)
    assert torch.equal(alone, dw)
    assert nothing is None


@runs
def test_no_tokens_give_no_gradient() -> None:
    w, x, bias, dy = drawn(20, 40, 0, torch.float32)
    y, kept = step.forward(x, w, bias, None, torch.float32)
    assert y.shape == (0, 20)
    dx, dw = step.plain_gradients(dy, kept, 40, torch.float32, True, True)
    assert dx.shape == (0, 40)
    assert not dw.any()


@on_cuda
def test_a_step_can_be_captured_and_sees_new_weights() -> None:
    w, x, bias, _ = drawn(512, 640, 256, torch.bfloat16)
    step.forward(x, w, bias, None, torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, _ = step.forward(x, w, bias, None, torch.bfloat16)
    w.neg_()
    graph.replay()
    assert torch.equal(y, steps.reference_forward(x, w, bias, None, torch.bfloat16)[0])


# ---- what is compiled


@compiles
@pytest.mark.parametrize("kind", ["*bf16", "*fp32"])
def test_weights_are_read_in_whole_words(kind: str) -> None:
    from tritium.backends.cuda.train import kernels

    types = {"w": kind, "g": "*fp32", "codes": "*u8"}
    fixed = {"K": 2560, "KB": 640, "BLOCK": step.BLOCK // 2, "EARLY": True}
    made = built(kernels.tensor_codes, types, fixed, 90, ("w", "codes"), num_warps=step.WARPS, enable_fp_fusion=False)
    assert made.asm["ptx"].count("ld.global.v4.b32") >= 4

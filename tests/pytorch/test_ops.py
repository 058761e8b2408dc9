"""Operators of PyTorch for ternary layers: values, fakes, gradients, packed weights that are written, and wrong arguments."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tritium.errors import ArgumentError

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
from tritium.torch import BitLinear, ops, pack, ternarise, unpack  # noqa: E402

OPTIONS = [
    {"axis": None, "group": 0, "activations": "token"},
    {"axis": 0, "group": 0, "activations": "token"},
    {"axis": None, "group": 20, "activations": "token"},
    {"axis": None, "group": 20, "activations": "group"},
    {"axis": None, "group": 20, "activations": "float"},
]


def drawn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def module(options: dict[str, Any], bias: bool = True) -> BitLinear:
    torch.manual_seed(0)
    return BitLinear(40, 12, bias=bias, **options)


def latent(one: BitLinear, x: Any) -> Any:
    return torch.ops.tritium.bit_linear(x, one.weight, one.bias, one.axis, one.group, one.activations)


# ---- codes


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 30), st.integers(0, 99))
def test_codes_are_four_weights_a_byte_and_come_back(n: int, k: int, seed: int) -> None:
    t = torch.randint(-1, 2, (n, k), generator=torch.Generator().manual_seed(seed)).to(torch.int8)
    codes = pack(t)
    assert codes.dtype is torch.uint8
    assert codes.shape == (n, -(-k // 4))
    assert torch.equal(unpack(codes, k), t)
    assert int(codes[0, 0]) & 3 == int(t[0, 0]) + 1


# ---- values


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", [(40,), (5, 40), (2, 3, 40)])
def test_both_operators_give_what_the_layer_gives(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    one, x = module(options).eval().requires_grad_(False), drawn(*shape)
    t, g = ternarise(one.weight, axis=one.axis, group=one.group)
    want = one(x)
    assert torch.equal(latent(one, x), want)
    given = torch.ops.tritium.ternary_linear(x, pack(t), g, one.bias, one.group, one.activations)
    assert torch.equal(given, want)


def test_strided_tokens_are_taken() -> None:
    one, x = module(OPTIONS[0]).eval().requires_grad_(False), drawn(40, 6).t()
    assert torch.equal(latent(one, x), one(x.contiguous()))


def test_a_write_to_codes_scales_or_bias_is_seen() -> None:
    one, x = module(OPTIONS[1]), drawn(5, 40)
    t, g = ternarise(one.weight, axis=0)
    codes, bias = pack(t), one.bias.detach().clone()

    def run() -> Any:
        return torch.ops.tritium.ternary_linear(x, codes, g, bias, 0, "token")

    first = run()
    assert torch.equal(run(), first)
    g.mul_(2)
    bias.mul_(2)
    torch.testing.assert_close(run(), 2 * first)
    codes.copy_(pack(-t))
    torch.testing.assert_close(run() - bias, -2 * (first - bias / 2))


def test_weights_of_inference_mode_are_packed_at_every_call() -> None:
    with torch.inference_mode():
        one, x = module(OPTIONS[0]).eval(), drawn(5, 40)
        first = latent(one, x)
        one.weight.mul_(-1)
        assert not torch.equal(latent(one, x), first)


# ---- compilers


@pytest.mark.parametrize("options", OPTIONS[:3])
def test_the_operators_pass_torchs_own_checks(options: dict[str, Any]) -> None:
    """Schema, fake, gradient registration and tracing with AOTAutograd."""
    one = module(options)
    x = drawn(5, 40).requires_grad_()
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(
        torch.ops.tritium.bit_linear, (x, one.weight, one.bias, one.axis, one.group, one.activations), test_utils=checks
    )
    t, g = ternarise(one.weight, axis=one.axis, group=one.group)
    torch.library.opcheck(
        torch.ops.tritium.ternary_linear, (x, pack(t), g, None, one.group, one.activations), test_utils=checks
    )


# ---- gradients


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_the_formulas(options: dict[str, Any], bias: bool) -> None:
    one, x = module(options, bias), drawn(2, 5, 40).requires_grad_()
    way = drawn(2, 5, 12, seed=3)
    (one(x) * way).sum().backward()  # in training: torch's own operations
    wanted = [x.grad, one.weight.grad, one.bias.grad if bias else None]
    x.grad = one.weight.grad = None
    one.zero_grad()
    (latent(one, x) * way).sum().backward()
    for found, want in zip([x.grad, one.weight.grad, one.bias.grad if bias else None], wanted, strict=True):
        if want is not None:
            torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-4)


def test_tokens_and_bias_of_packed_weights_have_gradients() -> None:
    t, g = ternarise(drawn(12, 40), axis=0)
    x, bias = drawn(5, 40).requires_grad_(), drawn(12).requires_grad_()
    way = drawn(5, 12, seed=3)
    (torch.ops.tritium.ternary_linear(x, pack(t), g, bias, 0, "token") * way).sum().backward()
    torch.testing.assert_close(x.grad, way @ (t.float() * g[:, None]))
    torch.testing.assert_close(bias.grad, way.sum(0))


# ---- wrong arguments


def test_wrong_arguments_are_told() -> None:
    one = module(OPTIONS[0])
    with pytest.raises(ArgumentError, match="tokens have 39 columns and weights 40"):
        latent(one, drawn(5, 39))
    with pytest.raises(ArgumentError, match="'token', 'group' \\(with a group\\) or 'float'"):
        torch.ops.tritium.bit_linear(drawn(5, 40), one.weight, None, None, 0, "group")
    with pytest.raises(ArgumentError, match="codes are uint8 \\[rows, 10\\]"):
        torch.ops.tritium.ternary_linear(
            drawn(5, 40), torch.zeros(12, 9, dtype=torch.uint8), torch.ones(()), None, 0, "token"
        )


def test_a_call_is_launched_again_only_with_the_same_tensors_unwritten() -> None:
    weight, bias = torch.ones(2, 4), torch.ones(2)
    kept = [ops._kept_now(t) for t in (weight, bias)]
    again, bare = ops._Again(kept[0], kept[1], lambda x, _: x), ops._Again(kept[0], None, lambda x, _: x)
    assert again.is_of(weight, bias)
    assert bare.is_of(weight, None)
    assert not again.is_of(weight.clone(), bias)
    assert not again.is_of(weight, bias.clone())
    assert not again.is_of(weight, None)
    assert not bare.is_of(weight, bias)
    bias.add_(1)
    assert not again.is_of(weight, bias)
    assert bare.is_of(weight, None)
    weight.mul_(2)
    assert not bare.is_of(weight, None)
    with torch.inference_mode():
        assert ops._kept_now(torch.ones(2)) is None  # torch does not count writes to it


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_calls_on_a_gpu_see_every_write_and_are_forgotten_with_their_weights() -> None:
    weight, x = torch.randn(64, 128, device="cuda"), torch.randn(3, 128, device="cuda")
    first = [torch.ops.tritium.bit_linear(x, weight, None, None, 0, "token") for _ in range(3)]
    assert all(torch.equal(first[0], y) for y in first)
    weight.neg_()
    for _ in range(3):
        assert torch.equal(torch.ops.tritium.bit_linear(x, weight, None, None, 0, "token"), -first[0])
    key = next(key for key in ops._again if key[0] == id(weight))
    del weight
    gc.collect()
    assert key not in ops._again

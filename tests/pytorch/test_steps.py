"""Training steps as operators of PyTorch: values, gradients, compiled whole; and which layers run on them."""

from __future__ import annotations

from typing import Any

import pytest

from tritium.errors import ArgumentError

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tritium.torch import BitLinear, Recipe, bit_linears, prepare, replace_linears, steps  # noqa: E402

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of CUDA")
AXES = pytest.mark.parametrize("axis", [None, 0])
BOTH = pytest.mark.parametrize("gradients", steps.GRADIENTS)


def layer(axis: int | None = None, **options: Any) -> BitLinear:
    torch.manual_seed(0)
    return BitLinear(40, 24, bias=True, axis=axis, **options)


def drawn(*shape: int, seed: int = 1) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def call(one: BitLinear, x: Any, gradients: str = "bf16") -> Any:
    return torch.ops.tritium.train_linear(x, one.weight, one.bias, one.axis, x.dtype, gradients)[0]


def gradients_of(y: Any, x: Any, one: BitLinear) -> list[Any]:
    return list(torch.autograd.grad(y, (x, one.weight, one.bias), drawn(*y.shape, seed=2).to(y)))


def near(found: Any, expected: Any) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


# ---- the operator


@AXES
def test_it_is_the_layer_and_has_its_gradients(axis: int | None) -> None:
    one, x = layer(axis), drawn(2, 3, 40).requires_grad_()
    y, expected = call(one, x), one(x)
    assert torch.equal(y, expected)
    for found, known in zip(gradients_of(y, x, one), gradients_of(expected, x, one), strict=True):
        torch.testing.assert_close(found, known, rtol=1e-5, atol=1e-6)


@AXES
def test_int8_gradients_are_near(axis: int | None) -> None:
    one, x = layer(axis), drawn(64, 40).requires_grad_()
    found, known = (gradients_of(call(one, x, way), x, one) for way in ("int8", "bf16"))
    assert 0 < near(found[0], known[0]) < 0.01
    assert 0 < near(found[1], known[1]) < 0.01
    assert torch.equal(found[2], known[2])


@BOTH
def test_it_compiles_whole(gradients: str) -> None:
    one, x = layer(), drawn(5, 40).requires_grad_()
    whole = torch.compile(lambda x: call(one, x, gradients), backend="aot_eager", fullgraph=True)
    y, z = call(one, x, gradients), whole(x)
    assert torch.equal(y, z)
    assert all(torch.equal(a, b) for a, b in zip(gradients_of(y, x, one), gradients_of(z, x, one), strict=True))


def test_its_fake_and_schema_are_right() -> None:
    one, x, axis = layer(0), drawn(5, 40).requires_grad_(), 0
    torch.library.opcheck(
        torch.ops.tritium.train_linear.default, (x, one.weight, one.bias, axis, torch.float32, "int8")
    )
    _, q, a, codes, g = torch.ops.tritium.train_linear(x, one.weight, None, axis, torch.float32, "bf16")
    for needed in ((True, True), (False, True)):
        args = (drawn(5, 24), q, a.detach(), codes, g.detach(), 40, torch.float32, "bf16", *needed)
        torch.library.opcheck(torch.ops.tritium.train_gradients.default, args)


def test_what_is_kept_is_small() -> None:
    one, x = BitLinear(256, 512), drawn(64, 256)
    _, q, a, codes, g = torch.ops.tritium.train_linear(x, one.weight, None, None, torch.bfloat16, "bf16")
    assert sum(t.numel() * t.element_size() for t in (q, a)) == 64 * (256 + 4)
    assert sum(t.numel() * t.element_size() for t in (codes, g)) == 512 * 256 // 4 + 4


def test_only_needed_gradients_are_made() -> None:
    one, x = layer().requires_grad_(False), drawn(5, 40).requires_grad_()
    (dx,) = torch.autograd.grad(call(one, x).sum(), x)
    assert dx.shape == x.shape
    one.requires_grad_(True)
    call(one, x.detach()).sum().backward()
    assert one.weight.grad is not None


def test_what_it_does_not_do_is_an_error() -> None:
    one, x = layer(), drawn(5, 40).requires_grad_()
    with pytest.raises(ArgumentError, match="no second derivatives"):
        torch.autograd.grad(call(one, x).sum(), x, create_graph=True)
    with pytest.raises(ArgumentError, match="tokens of 40 columns"):
        call(one, drawn(5, 39))
    with pytest.raises(ArgumentError, match="and 'fp8'"):
        call(one, x, "fp8")


# ---- layers


def test_gradients_are_an_option_of_layers_models_and_recipes() -> None:
    assert "gradients='int8'" in repr(layer(gradients="int8"))
    with pytest.raises(ArgumentError, match="gradients are 'bf16' or 'int8', given 'f8'"):
        layer(gradients="f8")
    model = replace_linears(torch.nn.Sequential(torch.nn.Linear(8, 8)), gradients="int8")
    assert [m.gradients for m in bit_linears(model).values()] == ["int8"]
    recipe = Recipe.from_scratch(4, gradients="int8")
    model = prepare(torch.nn.Sequential(torch.nn.Linear(8, 8)), recipe)
    assert [m.gradients for m in bit_linears(model).values()] == ["int8"]
    with pytest.raises(ArgumentError, match="gradients are one of"):
        Recipe.from_scratch(4, gradients="f8")


def test_on_the_cpu_layers_compute_in_torch() -> None:
    one = layer()
    assert not one._steps_through_kernels(drawn(3, 40).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert not one._steps_through_kernels(drawn(3, 40))


@on_gpu
def test_on_a_gpu_large_steps_run_on_kernels() -> None:
    one = BitLinear(1024, 1024, device="cuda", dtype=torch.bfloat16)
    small, large = (torch.zeros(tokens, 1024, device="cuda", dtype=torch.bfloat16) for tokens in (1024, 8192))
    assert (one._steps_through_kernels(small), one._steps_through_kernels(large)) == (False, True)
    one.gradients = "int8"
    assert one._steps_through_kernels(small)


@on_gpu
@AXES
@BOTH
@pytest.mark.parametrize("masters", [False, True])
def test_on_a_gpu_bf16_runs_on_kernels(axis: int | None, gradients: str, masters: bool) -> None:
    torch.manual_seed(0)
    one = BitLinear(
        256,
        384,
        bias=True,
        axis=axis,
        gradients=gradients,
        device="cuda",
        dtype=torch.float32 if masters else torch.bfloat16,
    )
    one.kernels = True
    x = drawn(4, 50, 256).cuda().to(one.weight.dtype).requires_grad_()
    whole = torch.compile(one, fullgraph=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=masters):
        assert one._steps_through_kernels(x)
        y, again, z = one(x), checkpoint(one, x, use_reentrant=False), whole(x)
    expected, _ = steps.reference_forward(
        x.detach().flatten(0, 1), one.weight.detach(), one.bias.detach(), axis, torch.bfloat16
    )
    for found in (y, again, z):
        assert torch.equal(found.flatten(0, 1), expected)
    by_kernels = [gradients_of(found, x, one) for found in (y, again, z)]
    one.kernels = False
    with torch.autocast("cuda", torch.bfloat16, enabled=masters):
        known = gradients_of(one(x), x, one)
    for found in by_kernels:
        for a, b in zip(found, known, strict=True):
            assert a.dtype is b.dtype
            assert near(a, b) < 0.02


@on_gpu
@pytest.mark.parametrize("options", [{"group": 64}, {"scales": "learned"}, {"activations": "float"}, {"lambda_": 0.5}])
def test_other_layers_compute_in_torch_there_too(options: dict[str, Any]) -> None:
    one = BitLinear(256, 64, device="cuda", dtype=torch.bfloat16, **options)
    one.kernels = True
    x = drawn(8, 256).cuda().bfloat16()
    assert not one._steps_through_kernels(x)
    assert one(x).dtype is torch.bfloat16

"""Training steps on the CPU's kernels: the bits of torch's operations, which layers take them, and what is kept for the backward pass."""

from __future__ import annotations

from typing import Any

import pytest

from tritium import buffer

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
from tritium.torch import BitLinear, Recipe, Windows, fit, prepare  # noqa: E402
from tritium.torch.layer import LARGE_MATRIX  # noqa: E402

pytestmark = pytest.mark.skipif(not buffer.native, reason="the pure-Python build has no kernels")


def layer_of(columns: int, rows: int, bias: bool = False, **options: Any) -> Any:
    torch.manual_seed(columns + rows)
    layer = BitLinear(columns, rows, bias=bias, **options)
    if bias:
        torch.nn.init.normal_(layer.bias)
    layer.kernels = True
    return layer


def on_kernels(layer: Any, x: Any) -> bool:
    return type(layer(x).grad_fn).__name__ == "PackedStepBackward"


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize(
    ("columns", "rows", "tokens", "bias"),
    [
        (48, 12, (3, 5), True),
        (50, 12, (7,), False),
        (64, 128, (), True),
        (256, 512, (2, 33), True),
        (130, 33, (4,), False),
    ],
)
def test_values_and_gradients_have_the_bits_of_torch_s_operations(
    columns: int, rows: int, tokens: tuple[int, ...], bias: bool, axis: int | None
) -> None:
    layer = layer_of(columns, rows, bias, axis=axis)
    x = torch.randn(*tokens, columns, requires_grad=True)
    dy = torch.randn(*tokens, rows)
    assert on_kernels(layer, x)
    fast = layer(x)
    found = fast, *torch.autograd.grad(fast, (x, *layer.parameters()), dy)
    layer.kernels = False
    slow = layer(x)
    assert not on_kernels(layer, x)
    wanted = slow, *torch.autograd.grad(slow, (x, *layer.parameters()), dy)
    assert [torch.equal(a, b) for a, b in zip(found, wanted, strict=True)] == [True] * len(wanted)


def test_gradients_of_gradients_are_those_of_torch_s_operations() -> None:
    layer, x = layer_of(32, 8, bias=True), torch.randn(5, 32, requires_grad=True)
    results = []
    for layer.kernels in (True, False):
        inputs = x, layer.weight, layer.bias
        first = torch.autograd.grad(layer(x).square().sum(), inputs, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), inputs))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_matrices_are_packed_from_the_size_on_that_pays() -> None:
    x = torch.randn(2, 512)
    large, small = BitLinear(512, LARGE_MATRIX // 512), BitLinear(512, LARGE_MATRIX // 512 - 1)
    assert on_kernels(large, x)
    assert not on_kernels(small, x)
    small.kernels, large.kernels = True, False
    assert on_kernels(small, x)
    assert not on_kernels(large, x)


@pytest.mark.parametrize(
    "options", [{"group": 16}, {"scales": "learned"}, {"activations": "float"}, {"lambda_": 0.5}], ids=str
)
def test_other_forms_take_torch_s_operations(options: dict[str, Any]) -> None:
    assert not on_kernels(layer_of(32, 8, **options), torch.randn(3, 32))


def test_other_dtypes_autocast_compiling_and_transforms_take_torch_s_operations() -> None:
    layer, x = layer_of(32, 8), torch.randn(3, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert not on_kernels(layer, x)
    assert not on_kernels(layer, x[:0])
    assert not on_kernels(layer, x.double())
    eager = layer(x)
    torch.testing.assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), eager, rtol=0, atol=0)
    torch.testing.assert_close(torch.func.vmap(layer)(x), eager, rtol=0, atol=0)
    assert not on_kernels(layer_of(32, 8).bfloat16(), x.bfloat16())


def test_two_bits_a_weight_are_kept_for_the_backward_pass_beside_the_parameters() -> None:
    layer, x = layer_of(256, 128), torch.randn(4, 256, requires_grad=True)
    saved: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = layer(x)
    assert {id(t) for t in saved} <= {id(x), id(layer.weight)}
    assert y.grad_fn.packed.data.nbytes == 256 * 128 // 4


def test_weights_that_diverged_are_refused() -> None:
    layer = layer_of(32, 8)
    layer.weight.data[0, 0] = torch.nan
    with pytest.raises(Exception, match="element \\[0, 0\\] is nan"):
        layer(torch.randn(3, 32))


def test_a_training_has_the_losses_of_torch_s_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    from small_network import Network, text

    recipe = Recipe.from_scratch(4, learning_rate=1e-2)
    losses = []
    for size in (0, 1 << 60):
        monkeypatch.setattr("tritium.torch.layer.LARGE_MATRIX", size)
        losses.append(fit(prepare(Network(), recipe), Windows(text(), length=16, batch=4), recipe))
    assert losses[0] == losses[1]

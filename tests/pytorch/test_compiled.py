"""Training compiled whole by torch.compile: every form of a layer, lambda that moves, and LoRA have the losses and gradients of eager."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
from small_network import Network, text  # noqa: E402
from tritium.torch import (  # noqa: E402
    BitLinear,
    LoraLinear,
    PackedLinear,
    Recipe,
    Schedule,
    Windows,
    add_adapters,
    fit,
    lora_linears,
    next_token_loss,
    prepare,
)

nn = torch.nn
LONG = os.environ.get("TRITIUM_LONG") == "1"  # compiling a network takes 10 seconds and more
IDS = text(length=40)[:36].view(2, 18)
FORMS: list[dict[str, Any]] = [
    {}, {"axis": 0}, {"group": 16}, {"group": 16, "activations": "group"}, {"activations": "float"},
    {"scales": "learned"}, {"scales": "learned", "axis": 0}, {"scales": "learned", "group": 16}, {"scale_dtype": "f16"},
]  # fmt: skip
long = pytest.mark.skipif(not LONG, reason="takes minutes: .ci/long compiled")


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Logits(nn.Sequential):
    """Layers one after the other, from tokens to logits."""

    def __init__(self, *layers: nn.Module) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Embedding(32, 32), *layers)


def gradients(model: nn.Module, loss: Any) -> tuple[Any, dict[str, Any]]:
    """Return the loss of a batch and the gradient of every parameter that is trained."""
    model.zero_grad(set_to_none=True)
    value = loss(model, IDS)
    value.backward()
    return value.detach(), {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def assert_compiled_is_eager(model: nn.Module, backend: str = "aot_eager", **close: float) -> None:
    """Compile the loss without a break; its value and gradients are to the bit those of eager, or as close as said."""
    value, slopes = gradients(model, next_token_loss)
    whole, found = gradients(model, torch.compile(next_token_loss, backend=backend, fullgraph=True))
    assert all(grad is not None and grad.any() for grad in slopes.values())
    bounds = close or {"rtol": 0.0, "atol": 0.0}
    torch.testing.assert_close(whole, value, **bounds)
    for name, grad in slopes.items():
        torch.testing.assert_close(found[name], grad, **bounds, msg=lambda m, n=name: f"{n}: {m}")


def adapted(model: nn.Module) -> nn.Module:
    """Give a model adapters that are not zero."""
    torch.manual_seed(1)
    for layer in lora_linears(add_adapters(model, rank=2)).values():
        nn.init.normal_(layer.lora_B.weight, std=0.2)
    return model


def test_a_layer_of_each_form_is_trained_in_one_graph() -> None:
    forms = [form | ({"norm": "rms"} if "axis" in form else {}) for form in FORMS]
    model = Logits(*(BitLinear(32, 32, **form) for form in forms))
    with torch.no_grad():
        for layer in list(model)[1:]:
            layer.weight.add_(torch.eye(32))  # what passes eight layers has a gradient at each
    assert_compiled_is_eager(model)


def test_layers_with_adapters_are_trained_in_one_graph() -> None:
    model = adapted(Logits(*(BitLinear(32, 32, **form) for form in ({}, {"axis": 0}, {"group": 16}))))
    model.append(PackedLinear.from_layer(BitLinear(32, 32)))
    assert sum(isinstance(m, LoraLinear) for m in model) == 3
    assert_compiled_is_eager(model)


def test_a_lambda_that_moves_is_not_compiled_anew_at_each_step() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    recipe = Recipe.fine_tune(6, learning_rate=0.01, lambda_=Schedule(((0.0, 0.0), (0.9, 1.0))))
    model = prepare(Logits(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32)), recipe)
    plain, batches = copy.deepcopy(model), Windows(text(), length=8, batch=2)
    counter = CompileCounterWithBackend("aot_eager")
    losses = fit(model, batches, recipe, loss=torch.compile(next_token_loss, backend=counter, fullgraph=True))
    assert losses == fit(plain, batches, recipe)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert counter.frame_count <= 3  # at 0, between, at 1


@long
@pytest.mark.parametrize("lambda_", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_network_of_each_form_is_trained_in_one_graph(form: dict[str, Any], lambda_: float) -> None:
    recipe = Recipe.from_scratch(3, lambda_=Schedule.constant(lambda_), **form)
    model = prepare(Network(layers=1), recipe)
    for name, p in model.named_parameters():
        p.requires_grad_(lambda_ > 0 or not name.endswith(".scale"))  # of plain layers it does nothing
    assert_compiled_is_eager(model)


@long
@pytest.mark.parametrize("form", FORMS[:5], ids=str)
def test_a_network_with_adapters_is_trained_in_one_graph(form: dict[str, Any]) -> None:
    assert_compiled_is_eager(adapted(prepare(Network(layers=1), Recipe.from_scratch(3, **form))))


@long
@pytest.mark.parametrize("lora", [False, True])
def test_inductor_has_nearly_the_losses_and_gradients_of_eager(lora: bool) -> None:
    model = Logits(*(BitLinear(32, 32, **form) for form in FORMS[:4]))
    assert_compiled_is_eager(adapted(model) if lora else model, "inductor", rtol=1e-4, atol=1e-6)

"""LoRA over packed weights: values and gradients beside BitLinear and PEFT, PEFT's files, merges, and the model of the package."""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritium as tt
from tritium import io
from tritium.errors import ArgumentError, FormatError, MissingFileError
from tritium.models.load import shipped as shipped_file

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
from small_network import Network, text  # noqa: E402
from tritium.torch import (  # noqa: E402
    BitLinear,
    PackedLinear,
    Recipe,
    Schedule,
    Windows,
    add_adapters,
    fit,
    flips_of_rounding,
    load_adapters,
    lora_linears,
    merge_adapters,
    next_token_loss,
    pack_linears,
    prepare,
    remove_adapters,
    save_adapters,
)

nn, functional = torch.nn, torch.nn.functional
FORMS: list[dict[str, Any]] = [
    {}, {"axis": 0}, {"group": 16}, {"group": 16, "activations": "group"}, {"activations": "float"}, {"scales": "learned", "norm": "rms"},
]  # fmt: skip


def normal(*shape: int, seed: int = 1) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(**options: Any) -> Any:
    return prepare(Network(), Recipe.from_scratch(3, **options))


def adapted(seed: int = 2, **options: Any) -> Any:
    """Return a network with adapters that are not zero."""
    model = add_adapters(network(activations="float"), **options)
    torch.manual_seed(seed)
    for layer in lora_linears(model).values():
        nn.init.normal_(layer.lora_B.weight, std=0.2)
    return model


IDS = text(length=20)[None, :16]


# ---- packed layers


@pytest.mark.parametrize(
    ("columns", "options"), [(48, f) for f in FORMS] + [(50, f) for f in FORMS if "group" not in f], ids=str
)
def test_a_packed_layer_computes_what_its_bitlinear_does(columns: int, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = BitLinear(columns, 12, bias=True, **options)
    packed = PackedLinear.from_layer(layer)
    x, y = normal(2, 3, columns).requires_grad_(), normal(2, 3, columns).requires_grad_()
    up = normal(2, 3, 12, seed=4)
    a, b = layer(x), packed(y)
    torch.testing.assert_close(b, a, rtol=0, atol=0)
    a.backward(up)
    b.backward(up)
    torch.testing.assert_close(y.grad, x.grad, rtol=1e-5, atol=1e-6)
    assert packed.codes.numel() == 12 * -(-columns // 4)
    assert not any(p.requires_grad for p in packed.parameters())
    t, g = packed.ternary()
    assert torch.equal(t, layer.ternary()[0])
    assert torch.equal(g, layer.ternary()[1])


def test_nothing_dense_is_kept_for_the_backward_pass() -> None:
    packed = PackedLinear.from_layer(BitLinear(256, 128))
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        packed(normal(4, 256).requires_grad_())
    assert sum(t.numel() * t.element_size() for t in kept) <= 256 * 128 // 4 + 4


def test_autocast_and_half_floats_keep_their_dtype() -> None:
    model, x = adapted(dtype=torch.bfloat16), IDS
    exact = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype is torch.bfloat16
        torch.testing.assert_close(model(x).float(), exact, rtol=0.1, atol=0.1)
    half = PackedLinear.from_layer(BitLinear(64, 8))
    assert half(normal(3, 64).half()).dtype is torch.float16


def test_transformers_layers_are_packed_with_their_own_scale() -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    from transformers.integrations import bitnet as theirs

    t = torch.randint(-1, 2, (12, 40), generator=torch.Generator().manual_seed(0), dtype=torch.int8)
    old: Any = theirs.BitLinear(40, 12, bias=False, dtype=torch.float32)
    old.weight, old.weight_scale = theirs.pack_weights(t.clone()), torch.tensor([1 / 0.37])
    auto: Any = theirs.AutoBitLinear(40, 12, bias=False)
    auto.weight.data, auto.weight_scale = t.float(), torch.tensor([0.37])
    for packed in pack_linears(nn.Sequential(old, auto)):
        assert torch.equal(packed.ternary()[0], t)
        assert packed.ternary()[1].item() == pytest.approx(0.37, rel=1e-7)


# ---- adapters


def test_a_new_adapter_changes_nothing_and_alone_is_trained() -> None:
    base = network()
    before = base(IDS)
    model = add_adapters(copy.deepcopy(base), rank=4)
    torch.testing.assert_close(model(IDS), before, rtol=0, atol=0)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 28
    assert all(".lora_A." in name or ".lora_B." in name for name in trained)
    torch.testing.assert_close(remove_adapters(model)(IDS), before, rtol=0, atol=0)


def test_targets_are_names_or_their_ends() -> None:
    model = add_adapters(network(), targets=["q_proj", "layers.1.mlp.up_proj"])
    assert list(lora_linears(model)) == [
        "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj",
    ]  # fmt: skip
    with pytest.raises(ArgumentError, match="no ternary layer is named 'w1'"):
        add_adapters(network(), targets=["w1"])
    with pytest.raises(ArgumentError, match="rank is at least 1"):
        add_adapters(network(), rank=0)
    with pytest.raises(ArgumentError, match="adapters already"):
        add_adapters(model)
    with pytest.raises(ArgumentError, match="no BitLinear"):
        add_adapters(Network())


def test_gradients_of_an_adapter_are_their_formulas() -> None:
    torch.manual_seed(0)
    model = add_adapters(nn.Sequential(BitLinear(32, 8)), rank=3, alpha=6)
    layer, x, up = model[0], normal(5, 32).requires_grad_(), normal(5, 8, seed=3)
    nn.init.normal_(layer.lora_B.weight)
    model(x).backward(up)
    a, b = (m.weight.detach() for m in (layer.lora_A, layer.lora_B))
    t, g = layer.base.ternary()
    torch.testing.assert_close(layer.lora_A.weight.grad, 2 * (up @ b).T @ x.detach())
    torch.testing.assert_close(layer.lora_B.weight.grad, 2 * up.T @ (x.detach() @ a.T))
    torch.testing.assert_close(x.grad, up @ (t * g) + 2 * up @ b @ a)


# ---- PEFT


def dense_twin(model: Any) -> Any:
    """Return the network with plain linear layers of the same values."""
    twin = Network()
    twin.load_state_dict(
        {name: p for name, p in model.state_dict().items() if "lora_" not in name and "base." not in name}, strict=False
    )
    for name, layer in lora_linears(model).items():
        t, g = layer.base.ternary()
        twin.get_submodule(name).weight.data = t * g
    return twin


@pytest.mark.parametrize("rank_stabilised", [False, True])
def test_peft_reads_our_files_and_computes_the_same(rank_stabilised: bool, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    model = adapted(rank=4, alpha=8, rank_stabilised=rank_stabilised)
    save_adapters(model, tmp_path / "a", base="small", task=None)  # a task asks for methods of transformers' models
    theirs = peft.PeftModel.from_pretrained(dense_twin(model), str(tmp_path / "a"))
    torch.testing.assert_close(theirs(IDS), model(IDS), rtol=1e-4, atol=1e-4)


def test_files_of_peft_are_read_and_compute_the_same(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    model = network(activations="float")
    twin = dense_twin(add_adapters(copy.deepcopy(model)))
    theirs = peft.get_peft_model(twin, peft.LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"]))
    for name, p in theirs.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(p, std=0.3)
    theirs.save_pretrained(str(tmp_path))
    load_adapters(model, tmp_path, trainable=True)
    assert len(lora_linears(model)) == 4
    torch.testing.assert_close(model(IDS), theirs(IDS), rtol=1e-4, atol=1e-4)
    assert all(m.lora_A.weight.requires_grad for m in lora_linears(model).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_survive_their_files_to_the_bit(dtype: Any, tmp_path: Path) -> None:
    model = adapted(rank=4, dtype=dtype, dropout=0.1, targets=["v_proj"])
    save_adapters(model, tmp_path / "a")
    again = load_adapters(network(activations="float"), tmp_path / "a")
    assert torch.equal(again.eval()(IDS), model.eval()(IDS))
    assert not any(p.requires_grad for p in again.parameters())
    layer = next(iter(lora_linears(again).values()))
    assert (layer.lora_A.weight.dtype, layer.dropout.p, layer.rank) == (dtype, 0.1, 4)
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}


def changed(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"peft_type": "IA3"}, "'IA3'"), ({"use_dora": True}, "use_dora"), ({"r": 5}, "needs floats of"), ({"r": 0}, "r = 0"),
        ({"r": 10**9}, "rank"),
        ({"lora_alpha": "x"}, "lora_alpha"), ({"rank_pattern": {"a": 2}}, "rank_pattern"), ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"), ({"fan_in_fan_out": True}, "fan_in_fan_out"),
    ],
)  # fmt: skip
def test_a_configuration_that_asks_for_more_is_refused(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    save_adapters(adapted(rank=4), tmp_path / "a")
    changed(tmp_path / "a", **changes)
    with pytest.raises(FormatError, match=match):
        load_adapters(network(), tmp_path / "a")


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="adapter_config"):
        load_adapters(network(), tmp_path)
    save_adapters(adapted(rank=4), tmp_path / "a")
    with pytest.raises(FormatError, match="no ternary layer of that name"):
        load_adapters(network(skip=("lm_head", "q_proj")), tmp_path / "a")
    weights = tmp_path / "a" / "adapter_model.safetensors"
    weights.write_bytes(struct.pack("<Q", 1 << 60))
    with pytest.raises(FormatError):
        load_adapters(network(), tmp_path / "a")
    weights.unlink()
    with pytest.raises(MissingFileError, match=r"\.bin"):
        load_adapters(network(), tmp_path / "a")
    (tmp_path / "a" / "adapter_config.json").write_text("[" * 100_000)
    with pytest.raises(FormatError, match="no JSON"):
        load_adapters(network(), tmp_path / "a")
    with pytest.raises(ArgumentError, match="no adapter"):
        save_adapters(network(), tmp_path / "b")


# ---- merging


def test_a_merge_of_float_activations_is_exact_but_for_the_order_of_sums() -> None:
    model = adapted(rank=4)
    before = model(IDS)
    report = merge_adapters(model)
    assert report.exact
    assert len(report.layers) == 14
    assert not lora_linears(model)
    torch.testing.assert_close(model(IDS), before, rtol=1e-4, atol=1e-4)


def test_a_merge_of_int8_activations_says_that_it_is_not_exact() -> None:
    model = add_adapters(network(), rank=4)
    for layer in lora_linears(model).values():
        nn.init.normal_(layer.lora_B.weight, std=0.2)
    before = model(IDS)
    assert not merge_adapters(model).exact
    difference = (model(IDS) - before).abs().max() / before.abs().max()
    assert 0 < difference < 0.05
    with pytest.raises(ArgumentError, match="no adapter"):
        merge_adapters(model)


def test_a_norm_in_the_layer_cannot_be_merged() -> None:
    model = add_adapters(network(norms="all"), rank=2)
    with pytest.raises(ArgumentError, match="has a norm inside"):
        merge_adapters(model)


def test_a_merge_keeps_the_sub_norm_before_the_sum() -> None:
    model = add_adapters(network(norms="sub", activations="float"), rank=2)
    for name, weight in model.named_parameters():
        if "lora_B" in name or "rms_norm" in name:
            nn.init.normal_(weight, std=0.5)
    before = model(IDS)
    assert merge_adapters(model).exact
    torch.testing.assert_close(model(IDS), before, rtol=1e-4, atol=1e-4)


def test_rounding_a_merged_matrix_again_would_drop_a_small_adapter() -> None:
    model = add_adapters(network(), rank=2)
    assert set(flips_of_rounding(model).values()) == {0.0}
    for layer in lora_linears(model).values():
        nn.init.normal_(layer.lora_B.weight, std=0.01)
    assert max(flips_of_rounding(model).values()) < 0.01
    for layer in lora_linears(model).values():
        nn.init.normal_(layer.lora_B.weight, std=5.0)
    assert min(flips_of_rounding(model).values()) > 0.1


# ---- the model of the package


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model of the package in transformers, and a text unlike its own in two parts: to learn and held out."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("accelerate", reason="transformers loads packed models with accelerate")
    folder = tmp_path_factory.mktemp("shipped") / "kjv"
    io.convert(shipped_file(), folder, to="hf")
    with torch.compiler.set_stance("force_eager"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    code = b"\n".join(p.read_bytes() for p in sorted(Path(tt.__file__).parent.glob("*.py"))[:8])
    tokens = torch.frombuffer(bytearray(code), dtype=torch.uint8).long()
    return model, tokens[:-8192], tokens[-8192:]


def bits(model: Any, tokens: Any) -> float:
    with torch.no_grad():
        return next_token_loss(model.eval(), tokens[: 4 * 129].view(4, 129)).item() / np.log(2)


def greedy(model: Any, prompt: bytes, count: int = 12) -> list[int]:
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids


def test_lora_on_the_shipped_model_learns_a_new_text_and_its_merge_answers_as_it_did(
    shipped: Any, tmp_path: Path
) -> None:
    model, learn, held = shipped
    recipe = Recipe.fine_tune(10, learning_rate=2e-2, lambda_=Schedule.constant(1.0))
    add_adapters(model, rank=8)
    before = bits(model, held)
    fit(model, Windows(learn, length=64, batch=4), recipe)
    after = bits(model, held)
    assert after < before - 0.5
    answer = greedy(model, b"def read(path)")
    save_adapters(model, tmp_path / "adapter")
    merge_adapters(model)
    assert abs(bits(model, held) - after) < 0.02
    assert greedy(model, b"def read(path)") == answer


@pytest.mark.parametrize("columns", [64, 30])
@pytest.mark.parametrize("axis", [None, 0])
def test_a_frozen_layer_has_the_same_bits_on_the_kernels(
    columns: int, axis: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = PackedLinear.from_layer(BitLinear(columns, 24, bias=True, axis=axis))
    x = torch.randn(3, 5, columns, requires_grad=True)
    fast = layer(x)
    monkeypatch.setattr("tritium.torch.adapters.native", False)
    slow = layer(x)
    assert torch.equal(fast, slow)
    dy = torch.randn_like(fast)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, dy)[0] for y in (fast, slow)))

"""Adapters trained in torch, written as PEFT's files and served beside the exported base: the logits are those of torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import families
import tritium as tt

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
transformers = pytest.importorskip("transformers", reason="the networks are those of transformers")

from torch_families import made  # noqa: E402
from tritium.torch import (  # noqa: E402
    Recipe,
    Schedule,
    Windows,
    add_adapters,
    byte_tokenizer,
    export,
    fit,
    load_adapters,
    lora_linears,
    prepare,
    save_adapters,
)

TEXTS = np.random.default_rng(3).integers(0, 256, (9, 4))
CLOSE, STEP = (
    1e-5,
    0.02,
)  # of the largest logit: f32 sums in another order; an activation that fell to another int8 step
FORMS: dict[str, dict[str, Any]] = {
    "no norms": {}, "sub-norms": {"norms": "sub"}, "sub-norms, learned scales": {"norms": "sub", "scales": "learned"},
    "sub-norms, groups": {"norms": "sub", "group": 32, "activations": "float"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _eager() -> Any:
    """transformers compiles its quantisation, which takes longer than all else here."""
    with torch.compiler.set_stance("force_eager"):
        yield


def network(**options: Any) -> Any:
    """Return a small Llama, prepared, its inserted norms not all ones."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=256,
        max_position_embeddings=64, rms_norm_eps=1e-5, attn_implementation="eager",
    )  # fmt: skip
    net = prepare(transformers.LlamaForCausalLM(config).eval(), Recipe.from_scratch(4, **options))
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if "rms_norm" in name:
                weight.uniform_(0.2, 1.8)
    return net


def trained(net: Any) -> Any:
    """Return a copy of a network with adapters that were trained for some steps."""
    tuned = add_adapters(copy.deepcopy(net), rank=3, alpha=12)
    tokens = torch.randint(256, (400,), generator=torch.Generator().manual_seed(1))
    recipe = Recipe.fine_tune(4, learning_rate=3e-2, lambda_=Schedule.constant(1.0))
    fit(tuned, Windows(tokens, length=16, batch=2), recipe)
    return tuned.eval()


def logits_of(net: Any) -> Any:
    with torch.no_grad():
        return net(torch.tensor(TEXTS)).logits[:, -1].numpy()


def served(model: Any, adapter: str | None) -> Any:
    session = model.session(slots=len(TEXTS))
    for slot in range(len(TEXTS)):
        session.use(slot, adapter)
    return np.stack([session.extend(slot, ids.tolist()) for slot, ids in enumerate(TEXTS)])


def assert_same(found: Any, wanted: Any) -> None:
    """Assert that the logits of most texts are the same but for the order of sums, and those of none far from it."""
    apart = np.abs(found - wanted).max(1) / np.abs(wanted).max()
    assert np.median(apart) <= CLOSE, apart
    assert apart.max() <= STEP, apart


@pytest.mark.parametrize(
    ("form", "name"), [(form, "f32" if "groups" in form else "hf") for form in FORMS] + [("sub-norms", "i2_s")]
)
def test_a_served_adapter_has_the_logits_of_torch(form: str, name: str, tmp_path: Path) -> None:
    net = network(**FORMS[form])
    tuned = trained(net)
    base = tmp_path / ("m.gguf" if name == "i2_s" else "m")
    export(net, base, format=name)
    save_adapters(tuned, tmp_path / "a")
    activations = {"activations": FORMS[form]["activations"]} if "groups" in form else {}
    model = tt.load(base, kv="f32", **activations).with_adapters({"a": tmp_path / "a"})
    assert_same(served(model, None), logits_of(net))
    assert_same(served(model, "a"), logits_of(tuned))
    assert np.abs(served(model, None) - logits_of(tuned)).max() > STEP


def test_a_served_adapter_of_layers_with_norms_inside_has_the_logits_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 128, "vocab_size": 256}
    net = prepare(made("qwen3", families.CONFIGS["qwen3"] | sizes), Recipe.from_scratch(4, norms="all"))
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if "rms_norm" in name:
                weight.uniform_(0.2, 1.8)
    tuned = trained(net)
    export(net, tmp_path / "m.gguf", format="i2_s")
    save_adapters(tuned, tmp_path / "a")
    model = tt.load(tmp_path / "m.gguf", kv="f32").with_adapters({"a": tmp_path / "a"})
    assert_same(served(model, "a"), logits_of(tuned))
    assert np.abs(served(model, None) - logits_of(tuned)).max() > STEP


@pytest.mark.parametrize("norms", ["sub", "all"])
def test_peft_beside_the_exported_model_of_transformers_computes_the_same(norms: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    pytest.importorskip("accelerate", reason="transformers loads packed models with accelerate")
    net = network(norms=norms)
    tuned = trained(net)
    export(net, tmp_path / "m")
    save_adapters(tuned, tmp_path / "a")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(theirs, str(tmp_path / "a")).eval()
    assert_same(logits_of(adapted), logits_of(tuned))


def test_an_adapter_that_peft_trained_beside_sub_norms_is_read_with_its_meaning(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    pytest.importorskip("accelerate", reason="transformers loads packed models with accelerate")
    net = network(norms="sub")
    export(net, tmp_path / "m")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    adapted = peft.get_peft_model(theirs, peft.LoraConfig(r=2, target_modules=["o_proj", "down_proj"])).eval()
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    adapted.save_pretrained(str(tmp_path / "a"))
    assert_same(logits_of(load_adapters(net, tmp_path / "a")), logits_of(adapted))


def test_norms_of_all_layers_are_inside_them_and_those_of_some_before() -> None:
    net = network(norms="all")
    assert not any(layer.base.sub_norm for layer in lora_linears(add_adapters(net)).values())
    layers = lora_linears(add_adapters(network(norms="sub")))
    assert {name.rpartition(".")[2] for name, layer in layers.items() if layer.base.sub_norm} == {"o_proj", "down_proj"}


def test_a_server_answers_with_an_adapter_what_torch_generates(tmp_path: Path) -> None:
    pytest.importorskip("h11", reason="needs the extra 'run'")
    from calls import post
    from tritium.serve.server import Server

    net = network(norms="sub")
    tuned = trained(net)
    export(net, tmp_path / "m", tokenizer=byte_tokenizer())
    save_adapters(tuned, tmp_path / "a")
    model = tt.load(tmp_path / "m", kv="f32").with_adapters({"tuned": tmp_path / "a"})
    prompt = "In the"
    with Server(model, port=0, slots=2) as server:
        for name, torchs in ((model.name, net), ("tuned", tuned)):
            status, answer = post(server, "completions", prompt=prompt, max_tokens=6, model=name)
            assert (status, answer["choices"][0]["text"]) == (200, greedy(torchs, prompt, 6))
    assert greedy(net, prompt, 6) != greedy(tuned, prompt, 6)


def greedy(net: Any, prompt: str, count: int) -> str:
    """Return the likeliest text as the server decodes it: bytes are tokens."""
    ids = list(prompt.encode())
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(net(torch.tensor([ids])).logits[0, -1].argmax()))
    return bytes(ids[-count:]).decode(errors="replace")

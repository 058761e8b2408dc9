"""Configurations of every family: both worlds say the same, prepacked files keep them, and what is not understood is refused by name."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from families import CONFIGS, LONG, YARN
from tritium.errors import FormatError, TritiumError
from tritium.families import ARCHS, BY_ARCH, BY_TYPE, FAMILIES
from tritium.families.common import FIXED, LAYER, READ
from tritium.families.config import Config
from tritium.families.description import ACTIVATIONS, Attention, DeltaNet, Experts
from tritium.families.rope import SCALINGS, for_context
from tritium.io import gguf
from tritium.io.model import names
from tritium.io.model.supported import check_keys
from tritium.nn import rope as nn_rope, transformer

ONE_EACH = {name: CONFIGS[name] for name in FAMILIES}


def test_every_family_has_its_names() -> None:
    assert (
        set(ARCHS)
        == set(BY_ARCH)
        == {"bitnet-b1.58", "bitnet-25", "bitnet", "llama", "qwen3", "minicpm", "gemma3", "maple", "qwen35"}
    )
    for model_type, family in BY_TYPE.items():
        assert model_type in family.model_types
        assert all(arch.model_type in family.model_types for arch in family.archs)


def test_what_families_may_name_is_what_modules_compute() -> None:
    assert set(ACTIVATIONS) == set(transformer.ACTIVATIONS)
    assert set(SCALINGS) - {"longrope"} == set(nn_rope.SCALINGS)  # LongRoPE becomes factors
    assert all(SCALINGS[kind] == fields for kind, fields in nn_rope.SCALINGS.items())


@pytest.mark.parametrize("name", FAMILIES)
def test_no_field_or_tensor_of_a_family_has_two_meanings(name: str) -> None:
    family = FAMILIES[name]
    assert not family.reads & (family.ignores | set(family.fixed) | READ)
    tensors = LAYER | dict(family.tensors)
    assert len(set(tensors.values())) == len(tensors)


def gguf_values(raw: dict[str, bytes]) -> dict[str, Any]:
    """Return the values of keys, as a reader has them."""
    return {key: gguf.Value(memoryview(b), *_kind(b)).read() for key, b in raw.items()}


def _kind(raw: bytes) -> tuple[int, int, int]:
    kind = int.from_bytes(raw[:4], "little")
    if kind != gguf.ARRAY:
        return kind, -1, 1
    return kind, int.from_bytes(raw[4:8], "little"), int.from_bytes(raw[8:16], "little")


@pytest.mark.parametrize("name", [n for n in CONFIGS if n not in ("minicpm", "gemma3") and "norms" not in n])
def test_a_configuration_comes_back_from_gguf(name: str) -> None:
    config = CONFIGS[name]
    arch = names.arch_of(config)
    assert arch is not None
    metadata = gguf_values(names.config_to_gguf(config, arch)) | {
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1,
    }  # fmt: skip
    check_keys(metadata, arch.gguf)
    back = Config.from_hf(names.config_from_gguf(metadata, arch, tied=config["tie_word_embeddings"]))
    ours = Config.from_hf(config)
    for field in (
        "vocab_size",
        "hidden_size",
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
        "context",
        "eps",
        "rope_theta",
        "scaling",
    ):
        assert getattr(back, field) == getattr(ours, field), field
    here, there = ours.description, back.description
    assert [layer.mlp for layer in here.layers] == [layer.mlp for layer in there.layers]
    if name != "qwen3_5":  # whose heads have another order there
        assert here == there


def test_the_multipliers_of_minicpm_come_back_from_gguf() -> None:
    config = {k: v for k, v in CONFIGS["minicpm"].items() if k != "rope_scaling"} | {"num_hidden_layers": 7}
    arch = names.arch_of(config)
    assert arch is not None
    back = names.config_from_gguf(gguf_values(names.config_to_gguf(config, arch)), arch, tied=True)
    assert {k: back[k] for k in ("scale_emb", "scale_depth", "dim_model_base")} == {
        "scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 16.0,
    }  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_goes_through_json(name: str) -> None:
    config = Config.from_hf(CONFIGS[name])
    again = Config.from_dict(json.loads(json.dumps(config.as_dict())))
    assert again == config
    assert again.description == config.description


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("field", "value"), [("attention_bias", True), ("use_mla", 1), ("final_logit_softcapping", 30.0)]
)
def test_a_field_that_changes_the_answer_is_refused_by_name(name: str, field: str, value: Any) -> None:
    with pytest.raises(FormatError, match=f"the configuration, {field}: found .*not supported"):
        Config.from_hf(ONE_EACH[name] | {field: value})


@pytest.mark.parametrize(
    ("name", "more", "field"),
    [
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types"),
        ("minicpm", {"scale_emb": "12"}, "scale_emb"),
        ("minicpm", {"sparse_config": {"block": 64}}, "sparse_config"),
        ("minicpm", {"rope_scaling": LONG | {"long_factor": [1.0, 2.0]}}, "rope_scaling.long_factor"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"sliding_window": 0}, "sliding_window"),
        ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}, "rope_parameters.sliding_attention"),
        ("maple", {"num_experts_per_tok": 7}, "num_experts_per_tok"),
        ("maple", {"num_shared_experts": 1}, "num_shared_experts"),
        ("maple", {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ("qwen3_5", {"attn_output_gate": False}, "attn_output_gate"),
        ("qwen3_5", {"linear_num_value_heads": 3}, "linear_num_value_heads"),
        ("qwen3_5", {"layer_types": ["mamba"] * 4}, "layer_types"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_computed_is_refused_by_name(name: str, more: dict[str, Any], field: str) -> None:
    with pytest.raises(FormatError, match=f"the configuration, {field}: found"):
        Config.from_hf(ONE_EACH[name] | more)


def test_the_text_part_of_a_multi_modal_configuration_is_read() -> None:
    inner = {k: v for k, v in CONFIGS["qwen3_5"].items() if k != "model_type"}
    outer = {
        "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 7,
        "text_config": inner | {"model_type": "qwen3_5_text"}, "vision_config": {"depth": 2}, "tie_word_embeddings": False,
    }  # fmt: skip
    assert Config.from_hf(outer).description == Config.from_hf(CONFIGS["qwen3_5"]).description
    with pytest.raises(FormatError, match="audio_config"):
        Config.from_hf(outer | {"audio_config": {"depth": 2}})


def test_new_and_old_configurations_of_gemma_say_the_same() -> None:
    old = CONFIGS["gemma3"]
    new = {k: v for k, v in old.items() if k not in ("rope_theta", "rope_local_base_freq", "sliding_window_pattern")} | {
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        },
    }  # fmt: skip
    assert Config.from_hf(new).description == Config.from_hf(old).description


def test_descriptions_say_what_the_models_of_2026_have() -> None:
    maple, qwen = (Config.from_hf(CONFIGS[name]).description for name in ("maple", "qwen3_5"))
    first, last = (maple.layers[i].mixer for i in (0, 3))
    assert isinstance(first, Attention)
    assert isinstance(last, Attention)
    assert (first.window, first.rope is None, last.window, last.rope is None) == (9, False, None, True)
    assert isinstance(maple.layers[0].mlp, Experts)
    assert [isinstance(layer.mixer, DeltaNet) for layer in qwen.layers] == [True, True, True, False]
    assert len(Config.from_hf(CONFIGS["gemma3"]).description.ropes) == 2
    assert len(maple.ropes) == len(qwen.ropes) == 1


def test_yarn_and_longrope_are_completed() -> None:
    yarn = dict(Config.from_hf(CONFIGS["qwen3"] | {"rope_scaling": YARN}).scaling)
    assert (yarn["beta_fast"], yarn["beta_slow"], yarn["truncate"]) == (32.0, 1.0, True)
    assert yarn["attention_factor"] == pytest.approx(1.1386294)
    scaling = Config.from_hf(CONFIGS["minicpm"]).scaling
    long, short = for_context(scaling, 128), for_context(scaling, 32)
    assert (long["factors"], short["factors"]) == (tuple(LONG["long_factor"]), tuple(LONG["short_factor"]))
    assert long["attention_factor"] == short["attention_factor"] == pytest.approx(1.1832160)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)
FIELDS = sorted(
    set(FIXED).union(*(f.reads | set(f.fixed) | f.ignores for f in FAMILIES.values()))
    | {"rope_parameters", "text_config"}
)


@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
@settings(max_examples=60)
def test_no_configuration_crashes(name: str, more: dict[str, Any]) -> None:
    with suppress(TritiumError):
        config = Config.from_hf(ONE_EACH[name] | more)
        assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config


@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
@settings(max_examples=40)
def test_no_stored_configuration_crashes(name: str, own: dict[str, Any]) -> None:
    with suppress(TritiumError):
        Config.from_dict(Config.from_hf(ONE_EACH[name]).as_dict() | {"own": own})


@given(
    st.sampled_from(sorted(ARCHS)),
    st.dictionaries(
        st.sampled_from(sorted({"rope.scaling.type", "rope.dimension_count", "ssm.inner_size"}.union(
            *(f.ignores_keys | {key for key, _ in f.keys.values()} for f in FAMILIES.values())))),
        st.none() | st.booleans() | st.integers(0, 2**32 - 1) | st.floats(width=32) | st.text(max_size=6) | st.lists(st.booleans(), max_size=5),
        max_size=5,
    ),
)  # fmt: skip
@settings(max_examples=60)
def test_no_metadata_of_gguf_crashes(arch: str, more: dict[str, Any]) -> None:
    family = BY_ARCH[arch]
    metadata = {f"{arch}.{key}": value for key, value in more.items() if value is not None}
    metadata |= {f"{arch}.block_count": 2, f"{arch}.embedding_length": 64, f"{arch}.attention.head_count": 4}
    with suppress(TritiumError):
        config = names.config_from_gguf(metadata, ARCHS[arch], tied=True) | {"vocab_size": 80, "intermediate_size": 96}
        assert Config.from_hf(config).family == family.name

"""Configurations: both worlds say the same, fields that change the answer are refused by name, nothing else is believed."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from models import Shape
from tritium.errors import FormatError, TritiumError
from tritium.families.common import FIXED
from tritium.io import gguf
from tritium.io.model import names
from tritium.io.model.supported import check_keys
from tritium.models.config import MOST, MOST_LAYERS, STORED, Config

LLAMA3 = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
SAID = Shape(family="llama", theta=10000.0).config()
WRONG: dict[str, list[Any]] = {
    "attention_bias": [True, 0], "mlp_bias": [True], "pretraining_tp": [2, True], "partial_rotary_factor": [0.5],
    "sliding_window": [4096], "attn_logit_softcapping": [50.0], "final_logit_softcapping": [30.0], "logits_scaling": [8.0],
    "residual_multiplier": [0.2], "embedding_multiplier": [12.0], "attention_multiplier": [0.1], "num_local_experts": [8],
    "is_encoder_decoder": [True],
}  # fmt: skip


def test_every_refused_field_has_an_example_here() -> None:
    assert set(WRONG) == set(FIXED)


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in WRONG.items() for v in values])
def test_a_field_that_changes_the_answer_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(FormatError, match=f"the configuration, {field}: found .*it is not supported"):
        Config.from_hf(SAID | {field: value})


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in FIXED.items() for v in values])
def test_a_value_that_changes_nothing_is_read(field: str, value: Any) -> None:
    assert Config.from_hf(SAID | {field: value}) == Config.from_hf(SAID)


def test_a_part_of_the_head_that_is_turned_is_refused_wherever_it_is_said() -> None:
    with pytest.raises(FormatError, match="partial_rotary_factor"):
        Config.from_hf(SAID | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})


UNKNOWN: dict[str, Any] = {
    "scale_emb": 12, "use_qk_norm": True, "gdn_activation_layout": "grouped", "text_config": {"hidden_size": 8},
    "layer_types": ["full_attention"], "activation_transform": "", "schema_version": 0,
}  # fmt: skip


@pytest.mark.parametrize("field", UNKNOWN)
def test_a_field_nobody_here_has_heard_of_is_refused_by_name(field: str) -> None:
    with pytest.raises(FormatError, match=f"the configuration, {field}: found .*not understood.*not supported"):
        Config.from_hf(SAID | {field: UNKNOWN[field]})
    assert Config.from_hf(SAID | {field: None}) == Config.from_hf(SAID | {field: False}) == Config.from_hf(SAID)


@pytest.mark.parametrize("block", ["quantization", "quantization_config"])
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"mode": "mxfp4"}, "mode"),
        ({"rotation": "orthogonal"}, "rotation"),
        ({"transform_config": {"groups": 1}}, "transform_config"),
        ({"quant_method": "gptq"}, "quant_method"),
        ({"model.layers.0.mlp.up_proj": {"bits": 2, "mode": "nvfp4"}}, "model.layers.0.mlp.up_proj.mode"),
        ({"model.layers.0.mlp.up_proj": {"bits": 2, "signs": 1}}, "model.layers.0.mlp.up_proj"),
    ],
)
def test_a_way_to_quantise_that_is_not_computed_is_refused_by_name(
    fields: dict[str, Any], name: str, block: str
) -> None:
    with pytest.raises(FormatError, match=rf"the configuration, {block}\.{name}: "):
        Config.from_hf(SAID | {block: {"group_size": 64, "bits": 2} | fields})


def test_the_fields_of_published_models_are_understood() -> None:
    """Those of microsoft's 2B-4T, Falcon-E, 1bitLLM and a pack of MLX, and what transformers writes without being asked."""
    more: dict[str, Any] = {
        "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_bitnet.BitNetConfig"}, "dtype": "bfloat16",
        "initializer_range": 0.02, "torch_dtype": "bfloat16", "transformers_version": "4.52.0", "use_cache": True,
        "pad_token_id": 0, "weight_bits": 1, "input_bits": 8, "_name_or_path": "x", "num_return_sequences": 1, "top_k": 50,
        "id2label": {"0": "LABEL_0"}, "quantization": {"group_size": 64, "bits": 2, "model.layers.0.mlp.up_proj": True},
        "quantization_config": {
            "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline", "use_rms_norm": False,
            "rms_norm_eps": 1e-6, "modules_to_not_convert": None,
        },
    }  # fmt: skip
    assert Config.from_hf(SAID | more) == Config.from_hf(SAID)


@pytest.mark.parametrize(
    "key",
    [
        "prism.rotation.size",
        "qwen3.block_count",
        "llama.attention.qk_norm",
        "llama.rope.dimension_sections",
        "general",
        "x",
    ],
)
@pytest.mark.parametrize("value", [7, "a", [1, 2], True])
def test_a_gguf_key_that_is_not_understood_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(FormatError, match=f"GGUF metadata, {key}: found .*not understood"):
        check_keys({"general.architecture": "llama", "llama.block_count": 2, key: value}, "llama")


def test_gguf_keys_that_describe_are_let_pass() -> None:
    check_keys(
        {"general.url": "x", "quantize.imatrix.file": "x", "tokenizer.ggml.tokens": ["a"], "split.count": 1,
         "llama.nextn_predict_layers": 0}, "llama",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"hidden_act": "gelu_new"}, "hidden_act"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1.0}}, "rope_scaling.beta_slow"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 8}}, "rope_scaling.long_factor"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"rope_type": ["linear"]}}, "rope_scaling.rope_type"),
        ({"rope_scaling": "linear"}, "rope_scaling.rope_type"),
        ({"rope_scaling": [1]}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor"),
        ({"rope_scaling": {k: v for k, v in LLAMA3.items() if k != "low_freq_factor"}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "factors", "factors": [1.0, 2.0]}}, "rope_scaling.factors"),
        ({"rope_scaling": {"rope_type": "factors", "factors": [0.0] * 8}}, "rope_scaling.factors"),
        ({"quantization_config": {"quant_method": "bitnet", "use_rms_norm": True}}, "quantization_config.use_rms_norm"),
        ({"num_hidden_layers": MOST_LAYERS + 1}, "num_hidden_layers"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
        ({"eos_token_id": "2"}, "eos_token_id"),
        ({"eos_token_id": [2, 1.5]}, "eos_token_id"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_theta": -1}, "rope_theta"),
    ],
)
def test_other_values_that_are_not_computed_are_refused_by_name(more: dict[str, Any], field: str) -> None:
    with pytest.raises(FormatError, match=field):
        Config.from_hf(SAID | more)


SIZES = [
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "head_dim",
]  # fmt: skip


@pytest.mark.parametrize("field", SIZES)
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True, [], MOST + 1, 10**30])
def test_a_size_that_is_no_size_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(FormatError, match=f"the configuration, {field}"):
        Config.from_hf(SAID | {field: value})


@pytest.mark.parametrize("field", SIZES[:5])
def test_a_size_that_is_missing_is_told(field: str) -> None:
    with pytest.raises(FormatError, match=field):
        Config.from_hf({k: v for k, v in SAID.items() if k != field})


def test_sizes_that_may_be_left_out() -> None:
    least = {k: v for k, v in SAID.items() if k not in ("num_key_value_heads", "max_position_embeddings")}
    config = Config.from_hf(least)
    assert (config.kv_heads, config.head_dim, config.context) == (4, 16, 2048)


def test_what_is_left_out_depends_on_the_family() -> None:
    """The defaults of transformers; a GGUF file has its own."""
    gone = ("rms_norm_eps", "rope_theta", "hidden_act", "tie_word_embeddings")
    for family, want in {"bitnet": (1e-5, 5e5, "relu2", False), "llama": (1e-6, 1e4, "silu", False)}.items():
        config = Config.from_hf({k: v for k, v in SAID.items() if k not in gone} | {"model_type": family})
        assert (config.eps, config.rope_theta, config.activation, config.tied) == want


def test_the_new_and_the_old_way_to_say_rope_are_the_same() -> None:
    old = {k: v for k, v in SAID.items() if k != "rope_theta"}
    new = old | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}
    assert Config.from_hf(old | {"rope_theta": 5e5, "rope_scaling": LLAMA3}) == Config.from_hf(new)
    plain = old | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    assert Config.from_hf(plain) == Config.from_hf(SAID)
    assert Config.from_hf(SAID | {"rope_scaling": None}) == Config.from_hf(SAID)


def test_tokens_of_the_end_may_be_several_or_none() -> None:
    assert Config.from_hf(SAID | {"eos_token_id": [3, 4]}).eos == (3, 4)
    assert Config.from_hf(SAID | {"eos_token_id": None, "bos_token_id": None}).eos == ()
    assert Config.from_hf(SAID | {"eos_token_id": []}).eos == ()
    assert Config.from_hf(SAID | {"bos_token_id": None}).bos is None


@pytest.mark.parametrize(
    "arch", [a for a in names.ARCHS.values() if a.model_type in ("bitnet", "llama")], ids=lambda a: a.gguf
)
def test_a_configuration_comes_back_from_gguf(arch: names.Arch) -> None:
    said = Shape(family=arch.model_type, activation=arch.activation, eps=1e-6).config()
    metadata = {k: gguf_value(v) for k, v in names.config_to_gguf(said, arch).items()}
    metadata |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    back = names.config_from_gguf(metadata, arch, tied=True)
    assert Config.from_hf(back) == Config.from_hf(said)


def gguf_value(raw: bytes) -> Any:
    """One number of GGUF: its kind in four bytes, then the number."""
    kind = int.from_bytes(raw[:4], "little")
    return np.frombuffer(raw[4:], {4: "<u4", 6: "<f4"}[kind])[0].item()


def test_gguf_numbers_are_written_as_this_test_reads_them() -> None:
    assert gguf_value(gguf.number("u32", 7)) == 7
    assert gguf_value(gguf.number("f32", 0.5)) == 0.5


# ---- our own form


@pytest.mark.parametrize("scaling", [None, LLAMA3, {"rope_type": "linear", "factor": 2.0}])
def test_a_configuration_goes_through_json(scaling: Any) -> None:
    config = Config.from_hf(SAID | {"rope_scaling": scaling, "eos_token_id": [1, 2]})
    assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    factors = replace(config, scaling=(("rope_type", "factors"), ("factors", tuple(np.arange(1.0, 9.0)))))
    assert Config.from_dict(json.loads(json.dumps(factors.as_dict()))) == factors


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Config.from_hf(SAID).hidden_size = 3  # type: ignore[misc]


def test_fields_are_read_under_their_former_names_with_a_note() -> None:
    config = Config.from_hf(SAID)
    for new, old in STORED.items():
        with pytest.warns(DeprecationWarning, match=f"Config.{old} is now Config.{new}"):
            assert getattr(config, old) == getattr(config, new)


def test_prepacked_files_store_the_former_names() -> None:
    """Files written before the fields were renamed are read as ever."""
    assert set(STORED.values()) < set(Config.from_hf(SAID).as_dict())


def test_the_bytes_of_a_token_in_the_cache() -> None:
    assert Config.from_hf(SAID).cache_bytes == 2 * 2 * 2 * 16  # keys and values, layers, kv heads, size


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8) | st.just("llama"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from([*SAID, *FIXED, "rope_scaling", "rope_parameters", "head_dim"]), JSON))
def test_no_configuration_of_others_crashes(more: dict[str, Any]) -> None:
    for said in (more, SAID | more):
        with suppress(TritiumError):
            Config.from_hf(said)


@given(st.dictionaries(st.sampled_from(sorted(Config.from_hf(SAID).as_dict())), JSON), st.booleans())
def test_no_configuration_of_ours_crashes(more: dict[str, Any], whole: bool) -> None:
    said = Config.from_hf(SAID).as_dict() | more if whole else more
    with suppress(TritiumError):
        assert Config.from_dict(said).heads % Config.from_dict(said).kv_heads == 0


@given(
    st.dictionaries(st.sampled_from([*LLAMA3, "factors", "type"]), JSON),
    st.sampled_from(["linear", "llama3", "factors"]),
)
def test_no_scaling_crashes(more: dict[str, Any], kind: str) -> None:
    with suppress(TritiumError):
        Config.from_hf(SAID | {"rope_scaling": LLAMA3 | {"rope_type": kind} | more})

"""The supported configuration fields and metadata keys: any other that could change the results is rejected by name.

Knows nothing of weights. The tables list what is supported, not what is rejected: an unknown field may change the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.io import gguf
from tritium.io.reader import fault

REMEDY = "This model is computed differently, so its results would be wrong here; it is not supported."
UNKNOWN = (
    "It is not understood and may change the results, so the model is not supported; remove it only if it does not."
)

# ---- fields of config.json

# Fields that change the computation, with the only supported values (None: also where the field is absent).
FIXED: dict[str, tuple[Any, ...]] = {
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "pretraining_tp": (None, 1),
    "partial_rotary_factor": (None, 1, 1.0),
    "sliding_window": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "logits_scaling": (None, 1, 1.0),
    "residual_multiplier": (None, 1, 1.0),
    "embedding_multiplier": (None, 1, 1.0),
    "attention_multiplier": (None,),
    "num_local_experts": (None, 0, 1),
    "is_encoder_decoder": (None, False),
}
# Fields that Config.from_hf reads.
READ = frozenset((
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta", "hidden_act",
    "tie_word_embeddings", "rope_scaling", "rope_parameters", "bos_token_id", "eos_token_id", "quantization",
    "quantization_config",
))  # fmt: skip
# Fields that describe the file, its training, its labels or defaults of sampling: no logit depends on them.
DESCRIPTIVE = frozenset((
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "architectures",
    "attention_dropout", "attn_implementation", "auto_map", "author", "bad_words_ids", "begin_suppress_tokens",
    "chunk_size_feed_forward", "decoder_start_token_id", "description", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "hidden_dropout", "id2label", "ignore_keys_at_rope_validation",
    "initializer_range", "input_bits", "label2id", "length_penalty", "license", "max_length", "max_sequence_length",
    "min_length", "name", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix", "problem_type",
    "remove_invalid_values", "repetition_penalty", "resid_dropout", "return_dict", "return_dict_in_generate",
    "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tokenizer_class",
    "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p", "unk_token_id", "unsloth_fixed",
    "unsloth_version", "use_bfloat16", "use_cache", "weight_bits",
))  # fmt: skip
# Fields of scaled RoPE: those of every kind that is computed, and those that only name the kind.
ROPE = frozenset((
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "factors",
    "original_max_position_embeddings", "partial_rotary_factor",
))  # fmt: skip
# Fields of quantization_config (transformers) and quantization (MLX, which also writes its block under the other name).
QUANTIZATION: dict[str, tuple[Any, ...] | None] = {  # None: read where weights are decoded, or without effect
    "quant_method": (None, "bitnet"), "linear_class": None, "quantization_mode": None, "modules_to_not_convert": None,
    "rms_norm_eps": None, "group_size": None, "bits": None, "mode": (None, "affine"),
    "use_rms_norm": (None, False),
}  # fmt: skip


def check_config(config: Mapping[str, Any]) -> None:
    """Raise unless every field of config.json is supported, naming the field. Absent, null and false have no effect."""
    for field, value in config.items():
        if field in FIXED:
            _check_value(field, value, FIXED[field])
        elif field not in READ and field not in DESCRIPTIVE and not _off(value):
            raise _refused(field, value, "a known field", UNKNOWN)
    for block in ("rope_parameters", "rope_scaling"):
        _check_rope(block, config.get(block))
    for block in ("quantization", "quantization_config"):
        check_quantization(block, config.get(block))


def _check_rope(block: str, fields: Any) -> None:
    if not isinstance(fields, Mapping):
        return  # the reader of this field raises for what is not an object
    for key, value in fields.items():
        if key in FIXED:
            _check_value(key, value, FIXED[key])
        elif key not in ROPE and not _off(value):
            raise _refused(f"{block}.{key}", value, "a known field", UNKNOWN)


def check_quantization(block: str, fields: Any) -> None:
    """Check the fields of a quantisation block, including those MLX writes into it for single modules."""
    if fields is None:
        return
    if not isinstance(fields, Mapping):
        raise _refused(block, fields, "an object")
    for key, value in fields.items():
        if key in QUANTIZATION:
            allowed = QUANTIZATION[key]
            if allowed is not None:
                _check_value(f"{block}.{key}", value, allowed)
        elif isinstance(value, Mapping) and set(value) <= {"group_size", "bits", "mode"}:
            _check_value(f"{block}.{key}.mode", value.get("mode"), QUANTIZATION["mode"] or ())
        elif not _off(value) and not (value is True and "." in key):  # MLX: true is a module quantised as all are
            raise _refused(f"{block}.{key}", value, "a known field", UNKNOWN)


def _check_value(field: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if not any(type(a) is type(value) and a == value for a in allowed):
        raise _refused(field, value, " or ".join(str(a) for a in allowed if a is not None) or "not there")


def _off(value: Any) -> bool:
    """Return True if an unknown field is off and so has no effect."""
    return value is None or value is False


def _refused(field: str, value: Any, needed: str, remedy: str = REMEDY) -> FormatError:
    return fault(f"the configuration, {visible(field)}", visible(repr(value)), needed, remedy)


# ---- keys of GGUF

# Keys after the architecture that change the computation, with the values that do not.
FIXED_KEYS: dict[str, tuple[Any, ...]] = {
    "rope.scale_linear": (1,), "rope.scaling.type": ("none", "linear"), "rope.scaling.attn_factor": (1,),
    "expert_count": (0,), "attention.sliding_window": (0,), "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,), "logit_scale": (0, 1), "residual_scale": (0, 1), "embedding_scale": (0, 1),
    "attention.scale": (0,), "attention.clamp_kqv": (0,), "attention.max_alibi_bias": (0,), "attention.causal": (True,),
    "use_parallel_residual": (False,),
}  # fmt: skip
# Keys after the architecture that are read, or have no effect where the others have the values above.
READ_KEYS = frozenset((
    "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.freq_base",
    "rope.dimension_count", "attention.key_length", "attention.value_length", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.finetuned", "tensor_data_layout",
    "pooling_type",
))  # fmt: skip
# First words of keys on which no logit depends; mradermacher's are written by a widely used script.
DESCRIPTIVE_SPACES = frozenset(("general", "tokenizer", "quantize", "imatrix", "split", "mradermacher"))


def check_keys(metadata: Mapping[str, Any], arch: str) -> None:
    """Raise unless every key of a GGUF file is supported for its architecture, naming the key."""
    for key in metadata:
        value = gguf.scalar(metadata, key)  # None for a list, which is not one of the values without effect
        space, _, rest = key.partition(".")
        if key.startswith(f"{arch}."):
            own = key.removeprefix(f"{arch}.")
            if own in FIXED_KEYS:
                if value not in FIXED_KEYS[own]:
                    raise _refused_key(metadata, key, " or ".join(str(v) for v in FIXED_KEYS[own]), REMEDY)
            elif own not in READ_KEYS and value not in (False, 0):
                raise _refused_key(metadata, key, "a known key", UNKNOWN)
        elif not (space in DESCRIPTIVE_SPACES and rest):
            raise _refused_key(metadata, key, f"a key of general, tokenizer or {arch}", UNKNOWN)


def _refused_key(metadata: Mapping[str, Any], key: str, needed: str, remedy: str) -> FormatError:
    value = gguf.scalar(metadata, key)
    return fault(f"GGUF metadata, {visible(key)}", "a list" if value is None else visible(repr(value)), needed, remedy)


# ---- transforms of the activations

TRANSFORM = "hadamard"
SIGNS = ".signs"  # sign vectors of a Hadamard transform, beside the packed weight in Prism's MLX packs
FREE_TEXT = frozenset(("_name_or_path", "name", "description", "license", "author", "chat_template"))


def transform_in_gguf(metadata: Mapping[str, Any], tensors: Iterable[str]) -> str:
    """Return why the weights of a GGUF file need a transform of the activations; "" where they do not."""
    arch = gguf.scalar(metadata, "general.architecture")
    locations = [f"the key {key}" for key in metadata if TRANSFORM in key.lower()]
    if isinstance(arch, str) and TRANSFORM in arch.lower():
        locations.append(f"general.architecture {arch!r}")
    return _transformed(locations + _transform_tensors(tensors))


def transform_in_config(config: Mapping[str, Any], notes: Mapping[str, Any], tensors: Iterable[str]) -> str:
    """Return the same for config.json, the metadata in a safetensors header and the names of the tensors."""
    locations: list[str] = []
    stack: list[tuple[str, Any]] = [("config.json", dict(config)), ("safetensors metadata", dict(notes))]
    while stack:  # not recursive: a hostile file is nested deeper than the stack
        location, value = stack.pop()
        if isinstance(value, str) and TRANSFORM in value.lower():
            locations.append(f"{location} {value!r}")
        elif isinstance(value, list):
            stack += [(location, item) for item in value if isinstance(item, str | list | dict)]
        elif isinstance(value, dict):
            for key, item in value.items():
                if TRANSFORM in key.lower() and not _off(item):
                    locations.append(f"{location}, the field {key}")
                elif isinstance(item, str | list | dict) and key not in FREE_TEXT:
                    stack.append((f"{location}, {key}", item))
    return _transformed(sorted(locations) + _transform_tensors(tensors))


def _transform_tensors(tensors: Iterable[str]) -> list[str]:
    return [f"the tensor {name}" for name in tensors if TRANSFORM in name.lower() or name.endswith(SIGNS)]


def _transformed(locations: list[str]) -> str:
    if not locations:
        return ""
    more = f" and {len(locations) - 1} more" if len(locations) > 1 else ""
    return (
        f"This model rotates its activations by a Hadamard transform ({visible(locations[0])}{more}), which is not computed here; "
        "its weights alone compute wrong results. It is not supported: use a runtime that has this transform, or a model without it."
    )

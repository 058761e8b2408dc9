"""The tables that all families share: names of tensors, fields of config.json, keys of GGUF. They list what is supported, not what
is rejected: an unknown field may change the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritium.families.family import Family
from tritium.families.fields import refused
from tritium.families.rope import FIELDS as ROPE

UNKNOWN = (
    "It is not understood and may change the results, so the model is not supported; remove it only if it does not."
)

# ---- names of tensors, Hugging Face to GGUF

MODEL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
LINEARS = frozenset(name for name in LAYER if name.endswith("_proj"))
QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
PROJECTION_NORMS = {f"{name}.norm": f"{LAYER[name]}_norm_in" for name in sorted(LINEARS)}  # of BitNet-embedding
WRAPPERS = (  # what names begin with in checkpoints of a whole multi-modal model, or of a decoder without its head
    ("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.lm_head.", "lm_head."),
    ("layers.", "model.layers."), ("embed_tokens.", "model.embed_tokens."), ("norm.", "model.norm."),
    ("model.word_embeddings.", "model.embed_tokens."),  # of Maple
)  # fmt: skip

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
# Fields that every family reads.
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
# Fields of quantization_config (transformers) and quantization (MLX, which also writes its block under the other name).
QUANTIZATION: dict[str, tuple[Any, ...] | None] = {  # None: read where weights are decoded, or without effect
    "quant_method": (None, "bitnet"), "linear_class": None, "quantization_mode": None, "modules_to_not_convert": None,
    "rms_norm_eps": None, "group_size": None, "bits": None, "mode": (None, "affine"),
    "use_rms_norm": (None, False),
}  # fmt: skip


def check_config(config: Mapping[str, Any], family: Family) -> None:
    """Raise unless every field of config.json is supported, naming the field. Absent, null and false have no effect."""
    own = family.reads | family.ignores
    fixed = {k: v for k, v in FIXED.items() if k not in own} | dict(family.fixed)
    known = READ | DESCRIPTIVE | own
    for name, value in config.items():
        if name in fixed:
            _check_value(name, value, fixed[name])
        elif name not in known and not is_off(value):
            raise refused(name, value, "a known field", UNKNOWN)
    for block in ("rope_parameters", "rope_scaling"):
        _check_rope(block, config.get(block), fixed)
    for block in ("quantization", "quantization_config"):
        check_quantization(block, config.get(block))


def _check_rope(block: str, fields: Any, fixed: Mapping[str, tuple[Any, ...]]) -> None:
    if not isinstance(fields, Mapping):
        return  # the reader of this field raises for what is not an object
    for key, value in fields.items():
        if key in fixed:
            _check_value(key, value, fixed[key])
        elif key not in ROPE and not is_off(value):
            raise refused(f"{block}.{key}", value, "a known field", UNKNOWN)


def check_quantization(block: str, fields: Any) -> None:
    """Check the fields of a quantisation block, including those MLX writes into it for single modules."""
    if fields is None:
        return
    if not isinstance(fields, Mapping):
        raise refused(block, fields, "an object")
    for key, value in fields.items():
        if key in QUANTIZATION:
            allowed = QUANTIZATION[key]
            if allowed is not None:
                _check_value(f"{block}.{key}", value, allowed)
        elif isinstance(value, Mapping) and set(value) <= {"group_size", "bits", "mode"}:
            _check_value(f"{block}.{key}.mode", value.get("mode"), QUANTIZATION["mode"] or ())
        elif not is_off(value) and not (value is True and "." in key):  # MLX: true is a module quantised as all are
            raise refused(f"{block}.{key}", value, "a known field", UNKNOWN)


def _check_value(field: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if not any(type(a) is type(value) and a == value for a in allowed):
        raise refused(field, value, " or ".join(str(a) for a in allowed if a is not None) or "not there")


def is_off(value: Any) -> bool:
    """Return True if an unknown field is off and so has no effect."""
    return value is None or value is False


# ---- keys of GGUF, after the architecture

KEYS = {  # field of config.json: (key, its type)
    "vocab_size": ("vocab_size", "u32"),
    "max_position_embeddings": ("context_length", "u32"),
    "hidden_size": ("embedding_length", "u32"),
    "num_hidden_layers": ("block_count", "u32"),
    "intermediate_size": ("feed_forward_length", "u32"),
    "num_attention_heads": ("attention.head_count", "u32"),
    "num_key_value_heads": ("attention.head_count_kv", "u32"),
    "rms_norm_eps": ("attention.layer_norm_rms_epsilon", "f32"),
    "rope_theta": ("rope.freq_base", "f32"),
}
# Keys that change the computation, with the values that do not.
FIXED_KEYS: dict[str, tuple[Any, ...]] = {
    "rope.scale_linear": (1,), "rope.scaling.yarn_ext_factor": (1,), "expert_count": (0,),
    "rope.scaling.type": ("none", "linear", "yarn", "longrope"),
    "attention.sliding_window": (0,), "attn_logit_softcapping": (0,), "final_logit_softcapping": (0,), "logit_scale": (0, 1),
    "residual_scale": (0, 1), "embedding_scale": (0, 1), "attention.scale": (0,), "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,), "attention.causal": (True,), "use_parallel_residual": (False,),
}  # fmt: skip
# Keys that are read, or have no effect where the others have the values above.
READ_KEYS = frozenset((
    "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.freq_base",
    "rope.dimension_count", "attention.key_length", "attention.value_length", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.finetuned", "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_attn_factor", "tensor_data_layout",
    "pooling_type",
))  # fmt: skip
# First words of keys on which no logit depends; mradermacher's are written by a widely used script.
DESCRIPTIVE_SPACES = frozenset(("general", "tokenizer", "quantize", "imatrix", "split", "mradermacher"))

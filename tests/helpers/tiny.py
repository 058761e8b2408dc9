"""Tiny models for the tests of tritium.io: two layers, hidden 256, written as a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tritium.io import Ternary, codecs, safetensors
from tritium.io.stream import Piece

BF16 = np.dtype(ml_dtypes.bfloat16)
HIDDEN, INNER, HEADS, KV, LAYERS, VOCAB = 256, 512, 4, 2, 2, 64
PROJECTIONS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN // HEADS * KV, HIDDEN),
    "self_attn.v_proj": (HIDDEN // HEADS * KV, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
}  # fmt: skip


def config(model_type: str = "bitnet", **more: Any) -> dict[str, Any]:
    """config.json of a tiny model."""
    return {
        "model_type": model_type,
        "architectures": ["BitNetForCausalLM" if model_type == "bitnet" else "LlamaForCausalLM"],
        "hidden_act": "relu2" if model_type == "bitnet" else "silu",
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV,
        "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1,
    } | more  # fmt: skip


AUTO = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}


def weights(seed: int = 0, model_type: str = "bitnet") -> tuple[dict[str, Ternary], dict[str, np.ndarray]]:
    """Ternary projections with scales that bf16 holds, and the other tensors in bf16."""
    rng = np.random.default_rng(seed)
    ternary, plain = {}, {}
    plain["model.embed_tokens.weight"] = rng.normal(size=(VOCAB, HIDDEN)).astype(BF16)
    plain["model.norm.weight"] = rng.normal(size=HIDDEN).astype(BF16)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name, shape in PROJECTIONS.items():
            scale = np.float32(BF16.type(rng.uniform(0.01, 2)))
            ternary[f"{layer}{name}.weight"] = Ternary.from_values(rng.integers(-1, 2, shape), scale)
        sizes = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
        if model_type == "bitnet":
            sizes |= {"self_attn.attn_sub_norm": HIDDEN, "mlp.ffn_sub_norm": INNER}
        for name, size in sizes.items():
            plain[f"{layer}{name}.weight"] = rng.normal(size=size).astype(BF16)
    return ternary, plain


def piece(name: str, array: Any) -> Piece:
    """An array as a piece of a safetensors file."""
    a = np.asarray(array, order="C")
    return Piece(name, a.shape, safetensors.NAMES[a.dtype], a.nbytes, lambda: [a])


def save(path: Path, tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
    """A safetensors file."""
    with path.open("wb") as file:
        safetensors.write(file, metadata or {}, [piece(n, a) for n, a in tensors.items()])
    return path


def hf_packed(
    folder: Path, model_type: str = "bitnet", *, divide: bool = False, seed: int = 0, own_head: bool = False
) -> Path:
    """A model directory in Hugging Face's packing; `divide` writes 1/scale and the class that divides."""
    folder.mkdir()
    ternary, plain = weights(seed, model_type)
    tensors: dict[str, Any] = dict(plain)
    for name, t in ternary.items():
        tensors[name] = codecs.hf.encode(t)
        scale = t.scale.reshape(1)
        tensors[name.removesuffix("weight") + "weight_scale"] = np.float32(1) / scale if divide else scale.astype(BF16)
    if own_head:
        tensors["lm_head.weight"] = plain["model.embed_tokens.weight"][::-1].copy()
    quant = {"quant_method": "bitnet"} if divide else AUTO
    about = config(model_type, quantization_config=quant, tie_word_embeddings=not own_head)
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"add_bos_token": True, "chat_template": "{{ messages }}"})
    )
    save(folder / "model.safetensors", tensors, {"format": "pt"})
    return folder


def mlx_packed(folder: Path, group: int = 128, *, tied: bool = False, seed: int = 0, **more: Any) -> Path:
    """A llama of which all matrices are ternary, tables included, with an fp16 scale for each group of columns: MLX's 2-bit form."""
    folder.mkdir()
    rng, (ternary, plain) = np.random.default_rng(seed), weights(seed, "llama")
    shapes = {name: t.shape for name, t in ternary.items()} | {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    shapes |= {} if tied else {"lm_head.weight": (VOCAB, HIDDEN)}
    tensors: dict[str, Any] = {n: a.astype(np.float16) for n, a in plain.items() if n not in shapes}
    for name, (n, k) in shapes.items():
        scale = rng.uniform(0.01, 2, (n, k // group)).astype(np.float16).astype(np.float32)
        parts = codecs.mlx.encode(Ternary.from_values(rng.integers(-1, 2, (n, k)), scale, group), group)
        stem = name.removesuffix("weight")
        tensors |= {
            name: parts.words,
            f"{stem}scales": parts.scales.astype(np.float16),
            f"{stem}biases": parts.biases.astype(np.float16),
        }
    quantization = {"group_size": group, "bits": 2}
    (folder / "config.json").write_text(
        json.dumps(config("llama", quantization=quantization, tie_word_embeddings=tied, **more))
    )
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    save(folder / "model.safetensors", tensors, {"format": "mlx"})
    return folder


def tokenizer() -> dict[str, Any]:
    """A byte-level BPE of 64 tokens, some of them special, one number unused."""
    from tritium.io.model.tokenizer import SPLITS

    letters = [chr(97 + i) for i in range(26)]
    tokens = letters + [a + "b" for a in letters] + ["Ġ", "é"]
    vocab = {t: i + 2 for i, t in enumerate(tokens)} | {"<s>": 0, "</s>": 1, "<user>": 58}
    split = {"type": "Split", "pattern": {"Regex": SPLITS["llama-bpe"]}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "added_tokens": [
            {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": i < 2}
            for i, t in ((0, "<s>"), (1, "</s>"), (58, "<user>"))
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [[a, "b"] for a in letters]},
    }  # fmt: skip

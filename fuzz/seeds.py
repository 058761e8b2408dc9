"""The seed corpus: small files, valid ones and one for each known way to break a reader. `python fuzz/seeds.py` writes it.

Knows nothing of running. Large inputs, which test memory and time, are made when needed and not kept.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import mutate
import result_files
from mutate import gstring, gvalue, shape

CORPUS = Path(__file__).parent / "corpus"
Seeds = dict[str, bytes]
HUGE = (1 << 64) - 1


def gguf_file(
    pairs: list[tuple[Any, bytes]],
    rows: list[tuple[Any, tuple[int, ...], int, int]],
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int | None, int | None] = (None, None),
) -> bytes:
    """A GGUF file as told, right or wrong."""
    tensors, keys = (len(x) if n is None else n for n, x in zip(counts, (rows, pairs), strict=True))
    head = [b"GGUF", struct.pack("<IQQ", version, tensors, keys)]
    for key, value in pairs:
        head += [gstring(key), value]
    for name, dims, kind, offset in rows:
        head += [gstring(name), struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)]
    start = b"".join(head)
    return start + bytes(-len(start) % 32) + data


LLAMA = [
    ("general.architecture", gvalue(8, "llama")),
    ("llama.attention.head_count", gvalue(4, 2)),
    ("llama.attention.head_count_kv", gvalue(4, 1)),
]
HEADS = ("llama.attention.head_count", gvalue(10, 1 << 62))
TOKENS = [
    ("tokenizer.ggml.model", gvalue(8, "gpt2")),
    ("tokenizer.ggml.tokens", gvalue(8, ["a", "b", "ab", "<s>"])),
    ("tokenizer.ggml.token_type", gvalue(5, [1, 1, 1, 3])),
    ("tokenizer.ggml.merges", gvalue(8, ["a b"])),
    ("tokenizer.ggml.bos_token_id", gvalue(4, 3)),
    ("tokenizer.ggml.add_bos_token", gvalue(7, 1)),
]
SCALE = struct.pack("<f", 0.5) + bytes(28)


COMMON = {
    "block_count": gvalue(4, 2), "embedding_length": gvalue(4, 64), "feed_forward_length": gvalue(4, 96), "vocab_size": gvalue(4, 8),
    "attention.head_count": gvalue(4, 2), "attention.head_count_kv": gvalue(4, 1), "attention.key_length": gvalue(4, 32),
    "attention.layer_norm_rms_epsilon": gvalue(6, 1e-6), "context_length": gvalue(4, 64),
}  # fmt: skip
OWN: dict[str, dict[str, bytes]] = {  # keys of an architecture beside those that all have
    "qwen3": {"rope.scaling.type": gvalue(8, "yarn"), "rope.scaling.factor": gvalue(6, 4.0)},
    "minicpm": {"embedding_scale": gvalue(6, 12.0), "residual_scale": gvalue(6, 0.5), "logit_scale": gvalue(6, 4.0)},
    "gemma3": {"attention.sliding_window": gvalue(4, 8), "attention.sliding_window_pattern": gvalue(4, 2)},
    "maple": {
        "expert_count": gvalue(4, 4), "expert_used_count": gvalue(4, 2), "expert_feed_forward_length": gvalue(4, 32),
        "attention.sliding_window": gvalue(4, 8), "attention.sliding_window_pattern": gvalue(7, [1, 0]),
        "swiglu_clamp_exp": gvalue(6, [7.0, 7.0]), "rope.dimension_count": gvalue(4, 16),
    },
    "qwen35": {
        "ssm.conv_kernel": gvalue(4, 4), "ssm.state_size": gvalue(4, 16), "ssm.group_count": gvalue(4, 1),
        "ssm.time_step_rank": gvalue(4, 2), "ssm.inner_size": gvalue(4, 32), "rope.dimension_count": gvalue(4, 8),
        "nextn_predict_layers": gvalue(4, 1),
    },
}  # fmt: skip
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 8, "head_dim": 32,
}  # fmt: skip
FAMILIES: list[dict[str, Any]] = [
    {"model_type": "qwen3", "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    {"model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256,
     "rope_scaling": {"rope_type": "longrope", "long_factor": [2.0] * 16, "short_factor": [1.0] * 16}},
    {"model_type": "gemma3_text", "sliding_window": 8, "rope_parameters": {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {}}},
    {"model_type": "maple", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "partial_rotary_factor": 0.5,
     "layer_types": ["sliding_attention", "full_attention"]},
    {"model_type": "qwen3_5", "text_config": {"linear_num_key_heads": 1, "linear_num_value_heads": 2}, "vision_config": {}},
]  # fmt: skip
ROTATION = [
    ("prism.hadamard.version", gvalue(4, 1)), ("prism.hadamard.block_size", gvalue(4, 8)),
    ("prism.hadamard.transform", gvalue(8, "normalized-sylvester-walsh-hadamard")),
    ("prism.hadamard.axis", gvalue(8, "input-last-dimension")), ("prism.hadamard.sign_mode", gvalue(8, "explicit")),
    ("prism.hadamard.weight_names", gvalue(8, ["blk.0.ffn_up.weight"])), ("prism.hadamard.sign_widths", gvalue(5, [8])),
    ("prism.hadamard.sign_values", gvalue(5, [1, -1] * 4)),
]  # fmt: skip


def family_file(arch: str, more: list[tuple[Any, bytes]] | None = None) -> bytes:
    """A GGUF file of a family: its keys, and a tensor with a name of its own."""
    keys = [(f"{arch}.{key}", value) for key, value in (COMMON | OWN[arch]).items()]
    name = "blk.0.ssm_a" if arch == "qwen35" else "blk.0.attn_q_norm.weight"
    return gguf_file(
        [("general.architecture", gvalue(8, arch)), *keys, *(more or [])], [(name, (2,), 0, 0)], b"\0\0\x80\xbf" * 8
    )


def gguf_seeds() -> Seeds:
    f32 = [("x", (4, 2), 0, 0)]
    kv = lambda value, key="k": gguf_file([(key, value)], [])
    return {
        "valid-empty": gguf_file([], []),
        "valid-f32": gguf_file([("a", gvalue(4, 1))], f32, bytes(32)),
        "valid-tokenizer": gguf_file([*LLAMA, *TOKENS], []),
        "valid-i2_s": gguf_file(LLAMA, [("blk.0.attn_q.weight", (128, 4), 36, 0)], b"\x55" * 128 + SCALE),
        "valid-tq2_0": gguf_file([], [("blk.0.ffn_up.weight", (256, 1), 35, 0)], b"\x55" * 64 + b"\0\x38" + bytes(30)),
        "valid-tq1_0": gguf_file([], [("t", (256, 1), 34, 0)], b"\x80" * 48 + b"\x7f" * 4 + b"\0\x38" + bytes(10)),
        "valid-q2_0": gguf_file([], [("t", (64, 2), 42, 0)], (b"\0\x38" + b"\x55" * 16) * 2 + bytes(28)),
        "valid-q8_0": gguf_file([], [("token_embd.weight", (32, 1), 8, 0)], b"\0\x38" + bytes(62)),
        **{f"valid-{arch}": family_file(arch) for arch in OWN},
        "valid-rotated": family_file("qwen3", ROTATION),
        "valid-two-tensors": gguf_file([], [("a", (4,), 0, 0), ("b", (4,), 1, 32)], bytes(64)),
        "count-overflow-keys": gguf_file([], [], counts=(0, HUGE)),
        "count-overflow-tensors": gguf_file([], [], counts=(HUGE, 0)),
        "count-wraps-times-size": gguf_file([("k", struct.pack("<IIQ", 9, 10, 1 << 61))], []),
        "count-of-strings": gguf_file([("k", struct.pack("<IIQ", 9, 8, 1 << 60))], []),
        "count-million-in-40-bytes": gguf_file([], [], counts=(1 << 20, 1 << 20))[:40],
        "string-endless": kv(struct.pack("<IQ", 8, HUGE)),
        "string-key-endless": gguf_file([], [], counts=(0, 1))[:24] + struct.pack("<Q", 1 << 63) + b"k" * 16,
        "dims-product-wraps": gguf_file([], [("x", (1 << 32, 1 << 32), 0, 0)]),
        "dims-exabytes": gguf_file([], [("x", (1 << 60, 4), 0, 0)], bytes(64)),
        "dims-negative": gguf_file([], [("x", (HUGE, 1), 0, 0)], bytes(64)),
        "dims-zero": gguf_file([], [("x", (4, 0), 0, 0)]),
        "dims-zero-and-huge": gguf_file([], [("x", (1 << 62, 0), 0, 0)]),
        "dims-zero-columns-huge-rows": gguf_file(LLAMA, [("blk.0.attn_q.weight", (0, 1 << 60), 0, 0)]),
        "dims-many": gguf_file([], [], counts=(1, 0))[:24] + gstring("x") + struct.pack("<I", (1 << 32) - 1) + bytes(32),
        "alignment-zero": kv(gvalue(4, 0), "general.alignment"),
        "alignment-huge": gguf_file([("general.alignment", gvalue(4, 1 << 31))], f32, bytes(32)),
        "alignment-odd": kv(gvalue(4, 33), "general.alignment"),
        "alignment-array": kv(gvalue(4, [32]), "general.alignment"),
        "offset-past-end": gguf_file([], [("x", (4,), 0, 1 << 40)], bytes(32)),
        "offset-wraps": gguf_file([], [("x", (4,), 0, (1 << 64) - 32)], bytes(32)),
        "offset-unaligned": gguf_file([], [("x", (4,), 0, 4)], bytes(64)),
        "overlap": gguf_file([], [("a", (16,), 0, 0), ("b", (16,), 0, 32)], bytes(128)),
        "type-confused-tokens": gguf_file([*TOKENS[:1], ("tokenizer.ggml.tokens", gvalue(1, [1, 2]))], []),
        "type-negative": gguf_file([], [("x", (4,), (1 << 32) - 1, 0)], bytes(32)),
        "type-of-value-unknown": kv(struct.pack("<I", 13)),
        "type-array-of-arrays": kv(struct.pack("<IIQ", 9, 9, 1) + gvalue(4, [1])),
        "type-truth-2": kv(gvalue(7, 2)),
        "name-holds-an-index": gguf_file([], [("direction.99999999999", (4,), 0, 0)], bytes(32)),
        "name-layer-huge": gguf_file(LLAMA, [("blk.4294967295.attn_q.weight", (4, 4), 0, 0)], bytes(64)),
        "name-terminal": gguf_file([("\x1b[2J", gvalue(4, 1))], [("\x1b]0;x\x07", (4,), 99, 0)]),
        "key-twice": gguf_file([("k", gvalue(4, 1)), ("k", gvalue(4, 2))], []),
        "tensor-twice": gguf_file([], [("x", (4,), 0, 0), ("x", (4,), 0, 32)], bytes(64)),
        "key-not-utf8": gguf_file([(b"\xff\xfe", gvalue(4, 1))], []),
        "heads-do-not-divide": gguf_file([LLAMA[0], HEADS, LLAMA[2]], [("blk.0.attn_q.weight", (4, 4), 0, 0)], bytes(64)),
        "heads-are-a-truth": gguf_file(
            [LLAMA[0], ("llama.attention.head_count", gvalue(7, 1)), LLAMA[2]], [("blk.0.attn_q.weight", (4, 4), 0, 0)], bytes(64)
        ),
        "heads-without-rows": gguf_file([LLAMA[0], HEADS, LLAMA[2]], [("blk.0.attn_q.weight", (4, 0), 0, 0)]),
        "opaque-tl1": gguf_file([("general.architecture", gvalue(8, "bitnet"))], [("x", (128, 1), 38, 0)], bytes(64)),
        "version-1": gguf_file([], [], version=1),
        "big-endian": gguf_file([], [], version=3 << 24),
        "cut-in-magic": b"GGU",
        "cut-in-data": gguf_file([], f32, bytes(31)),
    }  # fmt: skip


def st_file(rows: dict[str, Any] | str, data: bytes = b"", size: int | None = None) -> bytes:
    """A safetensors file as told, right or wrong."""
    text = rows.encode() if isinstance(rows, str) else json.dumps(rows, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def row(dtype: str, dims: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": dims, "data_offsets": [begin, end]}


def st_seeds() -> Seeds:
    hf = {"a.weight": row("U8", [1, 4], 0, 4), "a.weight_scale": row("F32", [1], 4, 8)}
    mlx = {
        "m.weight": row("U32", [1, 2], 0, 8),
        "m.scales": row("F16", [1, 1], 8, 10),
        "m.biases": row("F16", [1, 1], 10, 12),
    }
    config = json.dumps({"quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear"}})
    return {
        "valid-empty": st_file({}),
        "valid-f32": st_file({"a": row("F32", [2, 2], 0, 16)}, bytes(16)),
        "valid-notes": st_file({"__metadata__": {"k": "v"}, "a": row("BF16", [2], 0, 4)}, bytes(4)),
        "valid-hf": st_file(hf | {"__metadata__": {"config": config}}, b"\x55" * 4 + struct.pack("<f", 0.5)),
        "valid-mlx": st_file(mlx, b"\x55" * 8 + struct.pack("<ee", 1, -1)),
        "valid-spaces": st_file(' {"a" : {"dtype":"U8","shape":[ ],"data_offsets":[0, 1]} }  ', b"\0"),
        "length-endless": st_file({}, size=HUGE),
        "length-beyond-end": st_file({}, size=100),
        "length-zero": st_file("", bytes(8)),
        "cut-in-length": b"\2\0\0",
        "dims-product-wraps": st_file({"a": row("U8", [1 << 32, 1 << 32], 0, 0)}),
        "dims-exabytes": st_file({"a": row("F32", [1 << 60, 4], 0, 16)}, bytes(16)),
        "dims-zero-and-huge": st_file({"a": row("F32", [0, 1 << 62], 0, 0)}),
        "dims-zero": st_file({"a.weight": row("U8", [0, 4], 0, 0), "a.weight_scale": row("F32", [0], 0, 0)}),
        "dims-negative": st_file({"a": row("U8", [-1], 0, 0)}),
        "dims-many": st_file({"a": row("U8", [1] * 64, 0, 1)}, b"\0"),
        "offset-past-end": st_file({"a": row("U8", [8], 0, 8)}, bytes(4)),
        "offset-backwards": st_file({"a": row("U8", [8], 8, 0)}, bytes(8)),
        "offset-digits": st_file('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,' + "9" * 5000 + "]}}"),
        "overlap": st_file({"a": row("U8", [8], 0, 8), "b": row("U8", [8], 4, 12)}, bytes(12)),
        "gap": st_file({"a": row("U8", [4], 0, 4), "b": row("U8", [4], 8, 12)}, bytes(12)),
        "type-unknown": st_file({"a": row("F4", [4], 0, 4)}, bytes(4)),
        "type-confused": st_file({"a": {"dtype": 5, "shape": "4", "data_offsets": {}}}),
        "type-of-scale": st_file({"a.weight": row("U8", [1, 4], 0, 4), "a.weight_scale": row("U8", [1], 4, 5)}, bytes(5)),
        "key-twice": st_file('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
        "key-unknown": st_file('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}}'),
        "key-surrogate": st_file('{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
        "name-path": st_file({"../../etc/passwd": row("U8", [0], 0, 0)}),
        "deep": st_file('{"a":' + "[" * 3000 + "]" * 3000 + "}"),
        "notes-not-text": st_file({"__metadata__": {"k": 1}}),
        "notes-config-broken": st_file({"__metadata__": {"config": "[[["}} | hf, bytes(8)),
        "not-utf8": struct.pack("<Q", 4) + b'{"\xff"',
        "pickle": b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x05posix\x94.",
    }  # fmt: skip


PLAIN: dict[str, Callable[[Random, int, int], bytes]] = {  # where the usual maker also makes bad scales and numbers
    "hf": lambda rng, n, k: b"\0" + SCALE[:4] + rng.randbytes(n * k // 4).translate(mutate.LEGAL),
    "floats": lambda rng, n, k: b"\0" + b"".join(struct.pack("<f", rng.choice((0.0, 0.5, -0.5))) for _ in range(n * k)),
}


def codec_seeds(name: str) -> Seeds:
    """Valid matrices of several shapes, and shapes that do not fit their bytes."""
    block, rows, make = mutate.LAYOUTS[name]
    make, rng = PLAIN.get(name, make), Random(name)
    body = make(rng, rows, block)
    fit = {f"valid-{n}x{k}": shape(n, k) + make(rng, n, k)
           for n, k in ((rows, block), (2 * rows, block), (rows, 2 * block), (3 * rows, 3 * block), (0, block), (rows, 0))}  # fmt: skip
    three = bytearray(body)
    three[{"q2_0": 4, "pq2_0": 4, "hf": -1, "mlx": -1}.get(name, 0)] = 0x01 if name in ("tq1_0", "ptq1_0") else 0xFF
    return fit | {
        "rank-0": shape() + body,
        "rank-1": shape(block) + body,
        "rank-3": shape(1, rows, block) + body,
        "dims-product-wraps": shape(1 << 32, 1 << 32) + body,
        "dims-huge": shape(rows << 40, block << 16) + body,
        "dims-zero-and-huge": shape(0, block << 40) + body[-32:],
        "dims-negative": shape(-rows, -block) + body,
        "dims-odd": shape(rows, block + 1) + body,
        "cut": shape(rows, block) + body[:-1],
        "long": shape(rows, block) + body + b"\0",
        "empty": b"",
        "illegal-code": shape(rows, block) + bytes(three),
        "all-ones": shape(rows, block) + b"\xff" * len(body),
        "scale-not-finite": shape(rows, block)
        + body[: rows * block // 4]
        + b"\0\0\xc0\x7f"
        + body[rows * block // 4 + 4 :],
    }


def special_seeds() -> dict[str, Seeds]:
    """What the codecs with scales beside them need on top."""
    head = lambda group, kind, *sizes: struct.pack("<iBHHHH", group, kind, *sizes)
    one = struct.pack("<ff", 1, -1)
    return {
        "hf": {
            "scale-zero-inverted": shape(4, 2) + b"\x01" + bytes(4) + b"\x55" * 2,
            "scale-none": shape(4, 2) + b"\x08" + b"\x55" * 2,
            "scale-two": shape(4, 2) + b"\x10" + bytes(8) + b"\x55" * 2,
            "rows-odd": shape(3, 4) + b"\x00" + bytes(4) + b"\x55" * 3,
        },
        "mlx": {
            "group-zero": shape(1, 32) + head(0, 0, 1, 1, 1, 1) + one + b"\x55" * 8,
            "group-negative": shape(1, 32) + head(-32, 0, 1, 1, 1, 1) + one + b"\x55" * 8,
            "scales-none": shape(1, 32) + head(32, 0, 0, 0, 0, 0) + b"\x55" * 8,
            "scales-of-other-shape": shape(2, 32) + head(32, 0, 1, 2, 2, 1) + one * 2 + b"\x55" * 16,
            "bias-not-negated": shape(1, 32) + head(32, 0, 1, 1, 1, 1) + struct.pack("<ff", 1, 1) + b"\x55" * 8,
        },
        "floats": {
            "nan": shape(1, 2) + b"\x00" + struct.pack("<ff", 1, float("nan")),
            "inf": shape(1, 2) + b"\x00" + struct.pack("<ff", float("inf"), 0),
            "f64-beyond-f32": shape(1, 2) + b"\x03" + struct.pack("<dd", 1e300, -1e300),
            "dense": shape(2, 2) + b"\x00" + struct.pack("<4f", 0.1, -0.7, 2.0, 0.4),
            "denormal": shape(1, 2) + b"\x00" + struct.pack("<ff", 1e-45, -1e-45),
        },
    }


PATHS = (
    "../a.safetensors", "/etc/passwd", "..", ".", "", "a\\b", "C:x", "nul\0", "\ud800", "x" * 5000, "link.safetensors", "none", "CON",
)  # fmt: skip


def json_seeds() -> dict[str, Seeds]:
    dump = lambda value: json.dumps(value).encode()
    quant = lambda **more: {"quantization_config": {"quant_method": "bitnet", **more}}
    base = {"architectures": ["BitNetForCausalLM"], "model_type": "bitnet", "hidden_act": "relu2", "hidden_size": 8,
            "num_attention_heads": 2, "num_key_value_heads": 1, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "vocab_size": 4}  # fmt: skip
    added = [{"id": 3, "content": "<s>", "special": True}]
    bpe = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, "added_tokens": added}
    split = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Split", "pattern": {"Regex": "x"}}, {"type": "ByteLevel", "use_regex": False}],
    }
    common = {
        "not-an-object": b"[1]", "empty": b"", "null": b"null", "twin-keys": b'{"a":1,"a":2}', "not-utf8": b'{"\xff":1}',
        "deep-list": b'{"a":' + b"[" * 50000 + b"]" * 50000 + b"}", "deep-object": b'{"a":' * 50000 + b"1" + b"}" * 50000, "cut": b'{"a":[1,2',
        "digits": b'{"a":' + b"9" * 5000 + b"}", "nan": b'{"a":NaN,"b":-Infinity}', "bom": b'\xef\xbb\xbf{"a":1}',
    }  # fmt: skip
    config = {
        "valid-bitnet": dump(base | quant(linear_class="autobitlinear")), "valid-divide": dump(quant()),
        "valid-llama": dump({"model_type": "llama"}), **{f"family-{c['model_type']}": dump(SIZES | c) for c in FAMILIES},
        "valid-mlx": dump({"quantization": {"group_size": 32, "bits": 2, "layer": {"group_size": 32, "bits": 2}}}),
        "kept-modules": dump(quant(modules_to_not_convert=["lm_head"])), "kept-modules-number": dump(quant(modules_to_not_convert=5)),
        "quant-list": dump({"quantization_config": [1]}), "quant-text": dump({"quantization_config": "x"}),
        "linear-class-list": dump(quant(linear_class=[[]])),
        "linear-class-deep": b'{"quantization_config":{"quant_method":"bitnet","linear_class":' + b"[" * 985 + b"]" * 985 + b"}}",
        "architectures-number": dump({"architectures": 5}), "architectures-object": dump({"architectures": {"a": 1}}),
        "bits-0": dump({"quantization": {"bits": 0}}), "bits-true": dump({"quantization": {"bits": True, "group_size": -1}}),
        "group-huge": dump({"quantization": {"layer": {"bits": 2, "group_size": 10**30}}}),
        "heads-fraction": dump(base | {"num_attention_heads": 0.5}),
        "heads-negative": dump(base | {"num_attention_heads": -1}), "size-text": dump(base | {"hidden_size": "8"}),
        "size-infinite": dump(base | {"hidden_size": float("inf")}),
        "rope-list": dump(base | {"rope_parameters": [1]}), "rope-scaled": dump(base | {"rope_scaling": {"rope_type": "yarn"}}),
        "theta-huge": dump(base | {"rope_theta": 1e300}), "eps-huge-whole": dump(base | {"rms_norm_eps": 10**400}),
        "vocab-negative": dump(base | {"vocab_size": -1}),
    }  # fmt: skip
    index = {
        "valid": dump({"metadata": {"total_size": 1}, "weight_map": {"x.weight": "b.safetensors", "layer.weight": "a.safetensors"}}),
        "map-missing": dump({}), "map-list": dump({"weight_map": []}), "map-numbers": dump({"weight_map": {"a": 1}}),
        "map-empty": dump({"weight_map": {}}),
        **{f"path-{i}": dump({"weight_map": {"a": name}}) for i, name in enumerate(PATHS)},
        "tensor-missing": dump({"weight_map": {"none": "b.safetensors"}}),
        "itself": dump({"weight_map": {"a": "model.safetensors.index.json"}}),
    }  # fmt: skip
    tokenizer = {
        "valid-bpe": dump(bpe), "valid-split": dump(bpe | {"pre_tokenizer": split}),
        "valid-side": dump(bpe) + b"\0" + dump({"add_bos_token": True, "chat_template": "{{ x }}"}),
        "valid-pairs": dump({"model": {"vocab": {"a": 0}, "merges": [["a", "a"]]}}),
        "not-bpe": dump({"model": {"type": "Unigram", "vocab": [["a", 0]]}}),
        "id-huge": dump({"model": {"vocab": {"a": 1 << 21}}}), "id-beyond": dump({"model": {"vocab": {"a": 1 << 40}}}),
        "id-negative": dump({"model": {"vocab": {"a": -1}}}),
        "id-true": dump({"model": {"vocab": {"a": True}}}), "surrogate-token": dump({"model": {"vocab": {"\ud800": 0}}}),
        "surrogate-merge": dump({"model": {"vocab": {"a": 0}, "merges": ["\udfff a"]}}),
        "merge-number": dump({"model": {"vocab": {"a": 0}, "merges": [5]}}),
        "added-object": dump(bpe | {"added_tokens": {"a": 1}}), "added-no-content": dump(bpe | {"added_tokens": [{"id": 4}]}),
        "pattern-text": dump(bpe | {"pre_tokenizer": {"type": "Split", "pattern": "x"}}), "pre-list": dump(bpe | {"pre_tokenizer": [1]}),
        "side-broken": dump(bpe) + b"\0[", "side-template-list": dump(bpe) + b"\0" + dump({"chat_template": [1], "add_bos_token": 3}),
    }  # fmt: skip
    return {"config": common | config, "index": common | index, "tokenizer": common | tokenizer}


def seeds() -> dict[str, Seeds]:
    """All seeds, by reader and name."""
    gguf, st, special = gguf_seeds(), st_seeds(), special_seeds()
    found = {
        "gguf": gguf,
        "safetensors": st,
        "gguf_model": gguf,
        "hf_model": st,
        "inspect": gguf | st,
        "convert": gguf | st,
    }
    found |= {name: codec_seeds(name) | special.get(name, {}) for name in mutate.LAYOUTS}
    return found | json_seeds() | result_files.seeds()


SHARED = {
    "gguf_model": ("gguf",),
    "hf_model": ("safetensors",),
    "inspect": ("gguf", "safetensors"),
    "convert": ("gguf", "safetensors"),
}


def homes(reader: str) -> list[Path]:
    """The folders of a reader's seeds; those of whole models share the seeds of the containers."""
    return [CORPUS / name for name in SHARED.get(reader, (reader,))]


def kept(reader: str) -> Seeds:
    """The seeds of a reader as they are in the tree, valid ones first."""
    found = {path.name: path.read_bytes() for home in homes(reader) for path in sorted(home.iterdir())}
    return {name: found[name] for name in sorted(found, key=lambda name: not name.startswith("valid"))}


def big(reader: str) -> dict[str, Callable[[], bytes]]:
    """Inputs of some megabytes that ask for far more memory or time than their size; each is made when called."""
    if reader in ("gguf", "gguf_model"):
        return _big_gguf()
    if reader in ("safetensors", "hf_model"):
        return _big_safetensors()
    if reader == "convert":
        return {}  # it writes, and reads back what it wrote: its time is that of the work
    if reader == "inspect":
        return _big_gguf() | {f"safetensors {name}": make for name, make in _big_safetensors().items()}
    if reader in mutate.LAYOUTS:
        block, rows, make = mutate.LAYOUTS[reader]
        n, k = 256 * rows, 32 * -(-64 // block) * block
        return {
            "valid": lambda: shape(n, k) + make(Random(1), n, k),
            "ones": lambda: shape(n, k) + b"\xff" * len(make(Random(1), n, k)),
        }
    count = 1 << (19 if reader in result_files.NAMES else 21)
    return {
        "lists": lambda: b'{"a":[' + b"[]," * count + b"[]]}",
        "objects": lambda: b'{"a":[' + b"{}," * count + b"{}]}",
        "keys": lambda: b"{" + b",".join(b'"%x":0' % i for i in range(1 << 18)) + b"}",
        "emoji": lambda: '{"a":"😀'.encode() + b"x" * (12 << 20) + b'"}',
    }


def most(module: str, name: str) -> int:
    """A limit of a reader: the large inputs go just up to it."""
    return int(getattr(import_module(f"tritium.io.{module}"), name))


def _big_gguf() -> dict[str, Callable[[], bytes]]:
    array = lambda kind, size, count: struct.pack("<IIQ", 9, kind, count) + bytes(size * count)
    keys = lambda: [(f"{i:x}", gvalue(0, 1)) for i in range(most("gguf", "MAX_PAIRS"))]
    rows = lambda: [(f"{i:x}", (0,), 0, 0) for i in range(most("gguf", "MAX_TENSORS"))]
    found: dict[str, Callable[[], bytes]] = {
        "strings": lambda: gguf_file([("k", array(8, 8, most("gguf", "MAX_STRINGS")))], []),
        "keys": lambda: gguf_file(keys(), []),
        "tensors": lambda: gguf_file([], rows()),
        "keys and tensors": lambda: gguf_file(keys(), rows()),
        "i2_s": lambda: gguf_file([], [("x", (4096, 4096), 36, 0)], b"\x55" * (1 << 22) + SCALE),
    }
    for key in ("general.architecture", "general.alignment", "llama.attention.head_count", "tokenizer.ggml.model"):
        first, q = LLAMA[: not key.startswith("general.")], ("blk.0.attn_q.weight", (4, 0), 0, 0)
        found[f"{key} as bytes"] = lambda key=key, first=first, q=q: gguf_file(
            [*first, (key, array(0, 1, 1 << 24))], [q]
        )
    return found


def _big_safetensors() -> dict[str, Callable[[], bytes]]:
    rows = lambda dims: {f"{i:x}": row("U8", dims, 0, 0) for i in range(most("safetensors", "MAX_TENSORS"))}
    notes = lambda: {"__metadata__": {f"{i:x}": "x" * 60 for i in range(most("safetensors", "MAX_NOTES"))}}
    room = lambda: most("safetensors", "MAX_HEADER") - 100
    note = lambda start: st_file('{"__metadata__":{"k":"' + start + "x" * room() + '"}}')
    size = 1 << 22
    return {
        "tensors": lambda: st_file(rows([0])),
        "tensors and notes": lambda: st_file(rows([0] * 8) | notes()),
        "note": lambda: note("x"),
        "note with emoji": lambda: note("😀"),
        "note with emoji and escape": lambda: note("😀\\n"),
        "spaces": lambda: st_file("{" + " " * room() + "}"),
        "hf packed": lambda: st_file(
            {"a.weight": row("U8", [1024, 4096], 0, size), "a.weight_scale": row("F32", [1], size, size + 4)},
            b"\x55" * size + struct.pack("<f", 1),
        ),
    }


PARTS = {"gguf": ("gguf", "ggml", "reader"), "safetensors": ("safetensors", "reader")}
PARTS |= dict.fromkeys(mutate.LAYOUTS, ("codecs", "ternary", "reader"))


def digest(reader: str) -> str:
    """Which code a reader is: a hash of the modules it is made of (all of tritium.io for whole models and side files,
    the formats, records and stores of tritium.perf for result files)."""
    home = Path(__file__).parents[1] / "src" / "tritium" / "io"
    files = [home / f"{name}.py" for name in PARTS.get(reader, ())] or sorted(home.rglob("*.py"))
    if reader in result_files.NAMES:
        perf = home.parent / "perf"
        files = sorted(file for part in ("formats", "records", "store") for file in (perf / part).glob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def write() -> int:
    """Writes the corpus anew; how many files it has."""
    count = 0
    for reader in {home.name for name in seeds() for home in homes(name)}:
        where = CORPUS / reader
        where.mkdir(parents=True, exist_ok=True)
        found = seeds()[reader]
        for old in where.iterdir():
            if old.name not in found:
                old.unlink()
        for name, data in found.items():
            (where / name).write_bytes(data)
            count += 1
    return count


if __name__ == "__main__":
    sys.stdout.write(f"{write()} seeds in {CORPUS}\n")

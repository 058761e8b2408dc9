"""Makes a model with random ternary weights, by default of the shape of BitNet b1.58 2B-4T, for every engine to load.

Knows nothing of how a model is run. The weights mean nothing; their sizes, scales and norms are those of a real model.

    python bench/make_model.py model.gguf                                        2B-4T, I2_S, as bitnet.cpp reads it
    python bench/make_model.py model.gguf --format tq2_0 --arch bitnet           the same weights, as llama.cpp runs them
    python bench/make_model.py folder --format hf --embedding bf16               the same for transformers
    python bench/make_model.py small.gguf --layers 2 --hidden 256 --intermediate 768 --heads 4 --kv-heads 2 --vocab 512

A tensor depends on the seed, its name and its shape alone, so files of different formats and architectures hold the same
model. Scales, norms and embeddings are numbers that bf16 and fp16 both hold exactly: no format rounds them. The
vocabulary is byte-level BPE: token b is byte b, then a few merges, fillers, and the tokens of begin and end last.
Architectures: bitnet-b1.58 (relu² and sub-norms), bitnet (SiLU and sub-norms), llama (SiLU, none, rows of Q and K paired).
The file is streamed: memory stays near 0.2 GB at any size.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tritium.errors import TritiumError
from tritium.io import codecs, ggml, gguf, safetensors
from tritium.io.formats import BF16, FORMATS
from tritium.io.model import names, tokenizer
from tritium.io.stream import Piece, appearing
from tritium.io.ternary import Array, Ternary, rows_at_a_time

ARCHITECTURES = ("bitnet-b1.58", "bitnet", "llama")
FLOATS = {"f16": "F16", "bf16": "BF16", "f32": "F32"}
WRITTEN = [f.name for f in FORMATS.values() if f.container == "gguf"] + ["hf"]
MERGES = "Ġ t|h e|i n|r e|o n|Ġt he|e r|Ġ a|a n|o r|e n|Ġ s|i t|Ġ o|e s|in g".split("|")
BYTES = 256
SPECIAL = {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>"}  # the last tokens
TERNARY = np.array([0, 1, 1, 2], np.uint8)  # two random bits as a code: half of the weights are zero
FOUR = sum(TERNARY[np.arange(256) >> 2 * i & 3] << np.uint8(2 * i) for i in range(4)).astype(np.uint8)
LEAST_F16 = 2.0**-14  # below it fp16 has fewer bits than bf16


@dataclass(frozen=True)
class Shape:
    """The sizes of a model. The defaults are BitNet b1.58 2B-4T's."""

    layers: int = 30
    hidden: int = 2560
    intermediate: int = 6912
    heads: int = 20
    kv_heads: int = 5
    vocab: int = 128256
    context: int = 4096

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    def faults(self) -> Iterator[str]:
        """What no engine could run."""
        if min(vars(self).values()) < 1:
            yield "every size must be at least 1"
        elif self.hidden % (2 * self.heads):
            yield f"--hidden {self.hidden} must be a multiple of twice --heads {self.heads}"
        elif self.heads % self.kv_heads:
            yield f"--heads {self.heads} must be a multiple of --kv-heads {self.kv_heads}"
        elif self.hidden % 4 or self.intermediate % 4:
            yield "--hidden and --intermediate must be multiples of 4"
        elif self.vocab < BYTES + len(SPECIAL):
            yield f"--vocab {self.vocab} must be at least {BYTES + len(SPECIAL)}: every byte is a token"


@dataclass(frozen=True)
class Tensor:
    """A tensor to be made; `gain` is how much larger its result is than its input, 0 for one that is not a projection."""

    name: str
    shape: tuple[int, ...]
    gain: float = 0.0
    heads: int = 0  # of Q and K


def tensors(shape: Shape, arch: names.Arch) -> Iterator[Tensor]:
    """The tensors of a model, under Hugging Face's names, in the order of the file."""
    s, kv = shape, shape.kv_heads * shape.head
    down = (2 * s.layers) ** -0.5  # what returns to the residual adds up to one
    yield Tensor("model.embed_tokens.weight", (s.vocab, s.hidden))
    for i in range(s.layers):
        layer = [
            Tensor("input_layernorm", (s.hidden,)),
            Tensor("self_attn.q_proj", (s.hidden, s.hidden), 1, s.heads),
            Tensor("self_attn.k_proj", (kv, s.hidden), 1, s.kv_heads),
            Tensor("self_attn.v_proj", (kv, s.hidden), 1),
            Tensor("self_attn.attn_sub_norm", (s.hidden,)),
            Tensor("self_attn.o_proj", (s.hidden, s.hidden), down),
            Tensor("post_attention_layernorm", (s.hidden,)),
            Tensor("mlp.gate_proj", (s.intermediate, s.hidden), 1),
            Tensor("mlp.up_proj", (s.intermediate, s.hidden), 1),
            Tensor("mlp.ffn_sub_norm", (s.intermediate,)),
            Tensor("mlp.down_proj", (s.hidden, s.intermediate), down),
        ]
        for t in layer:
            if arch.gguf.startswith("bitnet") or "sub_norm" not in t.name:
                yield Tensor(f"model.layers.{i}.{t.name}.weight", t.shape, t.gain, t.heads)
    yield Tensor("model.norm.weight", (s.hidden,))


# ---- numbers


def random(seed: int, t: Tensor) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(t.name.encode())])


def simple(x: Array) -> Array:
    """float32 rounded to numbers that bf16 and fp16 both hold."""
    return np.where(np.abs(x) < LEAST_F16, 0, x).astype(BF16).astype(np.float32)


def ternary(seed: int, t: Tensor) -> Ternary:
    """Weights whose product with numbers of size one has the size `gain`."""
    n, k = t.shape
    r = random(seed, t)
    scale = scale_of(r, t)
    return Ternary(FOUR[r.integers(0, 256, (n, k // 4), np.uint8)], (n, k), scale.reshape(()))


def scale_of(r: np.random.Generator, t: Tensor) -> Array:
    """The scale of a projection, float32 [1]; the first of its random numbers."""
    size = t.gain * (2 / t.shape[1]) ** 0.5
    return simple(np.maximum(size * r.uniform(0.9, 1.1, 1), LEAST_F16))


def norm(seed: int, t: Tensor) -> Array:
    return simple(random(seed, t).normal(1.0, 0.1, t.shape).astype(np.float32))


def embedding(seed: int, t: Tensor, dtype: np.dtype[Any]) -> Iterator[Array]:
    """Rows of length one, near enough: logits have the size of one."""
    n, k = t.shape
    r, size = random(seed, t), np.float32(k**-0.5)
    for rows in rows_at_a_time(n, k):
        yield simple(r.standard_normal((rows.stop - rows.start, k), np.float32) * size).astype(dtype)


# ---- what goes beside them


def configuration(shape: Shape, arch: names.Arch) -> dict[str, Any]:
    """config.json."""
    return {
        "architectures": [arch.model_class], "model_type": arch.model_type, "hidden_act": arch.activation,
        "tie_word_embeddings": True, "vocab_size": shape.vocab, "max_position_embeddings": shape.context,
        "hidden_size": shape.hidden, "num_hidden_layers": shape.layers, "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "bos_token_id": shape.vocab - 2, "eos_token_id": shape.vocab - 1,
    }  # fmt: skip


def byte_names() -> list[str]:
    """The character by which byte-level BPE writes each byte: itself where it can be seen, else one from 256 on."""
    seen = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(b if b in seen else next(others)) for b in range(BYTES)]


def vocabulary(vocab: int) -> dict[str, Any]:
    """The tokenizer keys of GGUF, as Python values."""
    room = vocab - BYTES - len(SPECIAL)
    merges = MERGES[:room]
    plain = byte_names() + [m.replace(" ", "") for m in merges]
    fillers = [f"<{i}>" for i in range(len(plain), vocab - len(SPECIAL))]
    types = [tokenizer.NORMAL] * (vocab - len(SPECIAL)) + [tokenizer.CONTROL] * len(SPECIAL)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": plain + fillers + list(SPECIAL.values()),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": vocab - 2,
        "tokenizer.ggml.eos_token_id": vocab - 1,
        "tokenizer.ggml.add_bos_token": True,
    }


ENCODE: dict[str, Callable[[Any], bytes]] = {
    "model": gguf.string, "pre": gguf.string, "tokens": partial(gguf.array, "str"), "merges": partial(gguf.array, "str"),
    "token_type": partial(gguf.array, "i32"), "bos_token_id": partial(gguf.number, "u32"),
    "eos_token_id": partial(gguf.number, "u32"), "add_bos_token": partial(gguf.number, "bool"),
}  # fmt: skip


# ---- writing


@dataclass(frozen=True)
class Recipe:
    """What to make."""

    shape: Shape
    arch: names.Arch
    format: str
    embedding: str  # a dtype of FLOATS
    seed: int


def plain_piece(recipe: Recipe, t: Tensor, name: str, vectors: str) -> Piece:
    """A tensor of plain numbers: the embedding in its dtype, norms in that of `vectors`."""
    matrix = len(t.shape) == 2
    kind = recipe.embedding if matrix else vectors
    dtype = safetensors.DTYPES[kind]
    chunks = (lambda: embedding(recipe.seed, t, dtype)) if matrix else (lambda: [norm(recipe.seed, t).astype(dtype)])
    return Piece(name, t.shape, kind, int(np.prod(t.shape)) * dtype.itemsize, chunks)


def gguf_pieces(recipe: Recipe) -> Iterator[Piece]:
    codec, kind = FORMATS[recipe.format].codec, recipe.format.upper()
    for t in tensors(recipe.shape, recipe.arch):
        name = names.to_gguf(t.name) or t.name
        if not t.gain:
            yield plain_piece(recipe, t, name, "F32")
            continue

        def chunks(t: Tensor = t) -> list[Array]:
            made = ternary(recipe.seed, t)
            paired = recipe.arch.interleaved and t.heads
            return [codec.encode(made.take(names.interleave(t.shape[0], t.heads)) if paired else made)]

        yield Piece(name, t.shape, kind, codec.nbytes(t.shape), chunks)


def hf_pieces(recipe: Recipe) -> Iterator[Piece]:
    kind = recipe.embedding  # libraries want one dtype for all numbers
    dtype = safetensors.DTYPES[kind]
    for t in tensors(recipe.shape, recipe.arch):
        if not t.gain:
            yield plain_piece(recipe, t, t.name, kind)
            continue
        n, k = t.shape
        codecs.hf.check(n)
        yield Piece(t.name, (n // 4, k), "U8", n * k // 4, partial(packed, recipe.seed, t))
        scale = scale_of(random(recipe.seed, t), t).astype(dtype)
        yield Piece(f"{t.name}_scale", (1,), kind, dtype.itemsize, partial(iter, [scale]))


def packed(seed: int, t: Tensor) -> list[Array]:
    return [codecs.hf.encode(ternary(seed, t))]


def write_gguf(recipe: Recipe, target: Path, overwrite: bool) -> None:
    shape, arch = recipe.shape, recipe.arch
    metadata = {
        "general.architecture": gguf.string(arch.gguf),
        "general.name": gguf.string(f"random {shape.layers}x{shape.hidden}, seed {recipe.seed}"),
        "general.file_type": gguf.number("u32", ggml.FILE_TYPE[recipe.format.upper()]),
        "general.quantization_version": gguf.number("u32", 2),
    }
    metadata |= names.config_to_gguf(configuration(shape, arch), arch)
    metadata |= {key: ENCODE[key.rpartition(".")[2]](value) for key, value in vocabulary(shape.vocab).items()}
    pieces = list(gguf_pieces(recipe))
    with appearing(target, folder=False, overwrite=overwrite) as path, path.open("wb") as file:
        gguf.write(file, metadata, pieces, progress=tell, total=sum(p.nbytes for p in pieces))


def write_hf(recipe: Recipe, target: Path, overwrite: bool) -> None:
    config = configuration(recipe.shape, recipe.arch)
    config["quantization_config"] = {
        "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline",
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip
    config["torch_dtype"] = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}[recipe.embedding]
    beside, _ = tokenizer.from_gguf(vocabulary(recipe.shape.vocab))
    pieces = list(hf_pieces(recipe))
    with appearing(target, folder=True, overwrite=overwrite) as folder:
        for name, content in ({"config.json": config} | beside).items():
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        with (folder / "model.safetensors").open("xb") as file:
            safetensors.write(file, {"format": "pt"}, pieces, progress=tell, total=sum(p.nbytes for p in pieces))


def tell(done: int, total: int, name: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{100 * done // max(total, 1):3d} % {name:<56}")


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="a file, or a folder for hf")
    parser.add_argument("--format", choices=WRITTEN, default="i2_s")
    parser.add_argument("--arch", choices=ARCHITECTURES, default=ARCHITECTURES[0])
    parser.add_argument(
        "--embedding", choices=FLOATS, default="f16", help="the dtype of the embedding, which is the head"
    )
    for name, value in vars(Shape()).items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=value, metavar="N", help=f"{value} unless told"
        )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--overwrite", action="store_true")
    args = parser.parse_args(given)
    args.shape = Shape(**{name: getattr(args, name) for name in vars(Shape())})
    for fault in args.shape.faults():
        parser.error(fault)
    return args


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    recipe = Recipe(args.shape, names.ARCHS[args.arch], args.format, FLOATS[args.embedding], args.seed)
    write = write_hf if args.format == "hf" else write_gguf
    try:
        write(recipe, args.target, args.overwrite)
    except TritiumError as error:
        sys.exit(str(error))
    sys.stderr.write(f"\r{f'wrote {args.target}':<62}\n")


if __name__ == "__main__":
    main()

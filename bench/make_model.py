"""Makes a model with random ternary weights, of any family, format and size, for every engine to load.

The weights mean nothing; their sizes, scales and norms are those of a real model.

    python bench/make_model.py model.gguf                                        BitNet b1.58 2B-4T, I2_S, for bitnet.cpp
    python bench/make_model.py model.gguf --format tq2_0 --arch bitnet           the same weights, as llama.cpp runs them
    python bench/make_model.py folder --format hf --embedding bf16               the same for transformers
    python bench/make_model.py 8b.gguf --preset bonsai-8b                        Ternary-Bonsai-8B's shape, Q2_0
    python bench/make_model.py small.gguf --family qwen3 --format q2_0 --layers 2 --hidden 256 --intermediate 768 \\
        --heads 4 --kv-heads 2 --head-dim 128 --vocab 512

A tensor depends on the seed, its name and its shape alone, so files of different formats and architectures hold the same
model. Scales, norms and embeddings are numbers that bf16 and fp16 both hold exactly: no format rounds them. Weights have one
scale a tensor, or with --group one for each group of columns; with --ternary-tables the embedding and the head are ternary too.
The vocabulary is byte-level BPE: token b is byte b, then a few merges, fillers, and the tokens of begin and end last.
Fields of a configuration that have no option are those of the family, or --set FIELD=JSON. The file is streamed.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tritium.errors import TritiumError
from tritium.families import ARCHS, FAMILIES
from tritium.families.config import Config
from tritium.io import ggml, gguf, safetensors
from tritium.io.formats import (
    BF16,
    FORMATS,
    TABLES,
    config_for,
    gguf_pieces,
    one_dtype,
    safetensors_pieces,
    survey,
)
from tritium.io.model import experts, names, tokenizer
from tritium.io.model.entry import Entry, ModelFile
from tritium.io.stream import appearing
from tritium.io.ternary import Array, Ternary, rows_at_a_time
from tritium.models.parts import shapes_in_files

FLOATS = {"f16": "F16", "bf16": "BF16", "f32": "F32"}
MERGES = "Ġ t|h e|i n|r e|o n|Ġt he|e r|Ġ a|a n|o r|e n|Ġ s|i t|Ġ o|e s|in g".split("|")
BYTES = 256
SPECIAL = {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>"}  # the last tokens
TERNARY = np.array([0, 1, 1, 2], np.uint8)  # two random bits as a code: half of the weights are zero
FOUR = sum(TERNARY[np.arange(256) >> 2 * i & 3] << np.uint8(2 * i) for i in range(4)).astype(np.uint8)
LEAST_F16 = 2.0**-14  # below it fp16 has fewer bits than bf16
DOWN = ("o_proj.weight", "down_proj.weight", "out_proj.weight")  # what returns to the residual


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
    head_dim: int = 0  # 0: hidden / heads

    @property
    def head(self) -> int:
        return self.head_dim or self.hidden // self.heads

    def faults(self) -> Iterator[str]:
        """What no engine could run."""
        if min(n for name, n in vars(self).items() if name != "head_dim") < 1 or self.head_dim < 0:
            yield "every size must be at least 1"
        elif self.head % 2 or (not self.head_dim and self.hidden % (2 * self.heads)):
            yield f"--hidden {self.hidden} must be a multiple of twice --heads {self.heads}, or --head-dim an even number"
        elif self.heads % self.kv_heads:
            yield f"--heads {self.heads} must be a multiple of --kv-heads {self.kv_heads}"
        elif self.hidden % 4 or self.intermediate % 4:
            yield "--hidden and --intermediate must be multiples of 4"
        elif self.vocab < BYTES + len(SPECIAL):
            yield f"--vocab {self.vocab} must be at least {BYTES + len(SPECIAL)}: every byte is a token"


@dataclass(frozen=True)
class Preset:
    """The shape of a published model, and how its file stores it."""

    family: str
    shape: Shape
    format: str = "q2_0"
    group: int = 128
    tied: bool = True
    tables: bool = True
    fields: dict[str, Any] = field(default_factory=dict)


QWEN = {"rope_theta": 1e6, "rms_norm_eps": 1e-6}
PRESETS = {
    "bitnet-2b-4t": Preset("bitnet", Shape(), "i2_s", 0, tables=False),
    "bonsai-1.7b": Preset("qwen3", Shape(28, 2048, 6144, 16, 8, 151936, 65536, 128), fields=QWEN),
    "bonsai-4b": Preset("qwen3", Shape(36, 2560, 9728, 32, 8, 151936, 65536, 128), fields=QWEN),
    "bonsai-8b": Preset("qwen3", Shape(36, 4096, 12288, 32, 8, 151936, 65536, 128), tied=False, fields=QWEN),
    "bonsai-27b": Preset("qwen3_5", Shape(64, 5120, 17408, 24, 4, 248320, 262144, 256), tied=False),
    "bitnet-embedding-0.6b": Preset(
        "qwen3", Shape(28, 1024, 3072, 16, 8, 151936, 32768, 128), "i2_s", 0, tables=False,
        fields=QWEN | {"projection_norms": True},
    ),
    "bitnet-embedding-270m": Preset(
        "gemma3", Shape(18, 640, 2048, 4, 1, 262144, 32768, 256), "i2_s", 0, tables=False, fields={"projection_norms": True},
    ),
}  # fmt: skip


# ---- numbers


def random(seed: int, name: str, part: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode()), part])


def simple(x: Array) -> Array:
    """float32 rounded to numbers that bf16 and fp16 both hold."""
    return np.where(np.abs(x) < LEAST_F16, 0, x).astype(BF16).astype(np.float32)


def ternary(seed: int, name: str, shape: tuple[int, int], gain: float, group: int) -> Ternary:
    """Weights whose product with numbers of size one has the size `gain`."""
    (n, k), r = shape, random(seed, name)
    size = gain * (2 / k) ** 0.5
    scales = r.uniform(0.9, 1.1, (n, k // group) if group else ())
    scale = simple(np.maximum(size * scales, LEAST_F16))
    return Ternary(FOUR[r.integers(0, 256, (n, k // 4), np.uint8)], (n, k), scale, group)


def norm(seed: int, name: str, shape: tuple[int, ...], middle: float) -> Array:
    return simple(random(seed, name).normal(middle, 0.1, shape).astype(np.float32))


def rows(seed: int, name: str, shape: tuple[int, ...], part: slice) -> Array:
    """Rows of length one, near enough: logits have the size of one."""
    numbers = random(seed, name, part.start).standard_normal((part.stop - part.start, *shape[1:]), np.float32)
    return simple(numbers * np.float32(shape[-1] ** -0.5))


# ---- what goes beside them


def configuration(recipe: Recipe) -> dict[str, Any]:
    """config.json."""
    shape, arch = recipe.shape, recipe.arch
    common = {
        "architectures": [arch.model_class], "model_type": arch.model_type, "hidden_act": arch.activation,
        "tie_word_embeddings": recipe.tied, "vocab_size": shape.vocab, "max_position_embeddings": shape.context,
        "hidden_size": shape.hidden, "num_hidden_layers": shape.layers, "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "bos_token_id": shape.vocab - 2, "eos_token_id": shape.vocab - 1,
    }  # fmt: skip
    return common | own_fields(recipe) | recipe.fields


def own_fields(recipe: Recipe) -> dict[str, Any]:
    """The fields that a family has of its own, in proportion to the shape."""
    shape, kind = recipe.shape, recipe.arch.model_type
    if kind == "maple":
        return {
            "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": shape.intermediate, "sliding_window": 512,
            "norm_topk_prob": True, "nope_on_global_attention": True,
        }  # fmt: skip
    if kind == "minicpm":
        return {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
    if kind == "gemma3_text":
        return {
            "sliding_window": 512, "sliding_window_pattern": 6, "query_pre_attn_scalar": shape.head, "rope_local_base_freq": 10000.0,
        }  # fmt: skip
    if kind == "qwen3_5_text":
        return {
            "linear_num_key_heads": 4 * shape.kv_heads, "linear_num_value_heads": 2 * shape.heads, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": shape.head // 2, "linear_value_head_dim": shape.head // 2, "full_attention_interval": 4,
            "partial_rotary_factor": 0.25,
        }  # fmt: skip
    return {}


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
    group: int = 0
    tied: bool = True
    tables: bool = False  # the embedding and the head are ternary
    fields: dict[str, Any] = field(default_factory=dict)


def entries(recipe: Recipe, config: dict[str, Any]) -> Iterator[Entry]:
    """The tensors of the model, under Hugging Face's names, each made when it is read."""
    down = (2 * recipe.shape.layers) ** -0.5  # what returns to the residual adds up to one
    for name, shape in shapes_in_files(Config.from_hf(config)):
        if name == "lm_head.weight" and recipe.tied:
            continue
        if names.is_linear(name, recipe.arch) or (recipe.tables and name in TABLES):
            group = recipe.group if not shape[1] % (recipe.group or 1) else 0
            make = partial(ternary, recipe.seed, name, shape, down if name.endswith(DOWN) else 1.0, group)
            yield entry(recipe, name, shape, role="ternary", decode=make)
        elif len(shape) > 1:
            yield entry(recipe, name, shape, **plain(partial(rows, recipe.seed, name, shape), shape, recipe))
        else:
            middle = 1.0 - names.norm_shift(name, recipe.arch)
            whole = partial(norm, recipe.seed, name, shape, middle)
            dtype = safetensors.DTYPES[recipe.embedding]
            yield entry(recipe, name, shape, numbers=lambda whole=whole, dtype=dtype: whole().astype(dtype))


def plain(make: Callable[[slice], Array], shape: tuple[int, ...], recipe: Recipe) -> dict[str, Any]:
    """The readers of a matrix of plain numbers: of all rows, and of some."""
    dtype, (n, *others) = safetensors.DTYPES[recipe.embedding], shape

    def some(part: slice) -> Array:
        return make(part).astype(dtype)

    def whole() -> Array:  # the parts in which it is read and written
        return np.concatenate([some(part) for part in rows_at_a_time(n, prod(others))])

    return {"numbers": whole, "some": some if len(shape) == 2 else None}


def entry(recipe: Recipe, name: str, shape: tuple[int, ...], **readers: Any) -> Entry:
    kind = recipe.embedding
    size = prod(shape) * safetensors.DTYPES[kind].itemsize
    shift = names.norm_shift(name, recipe.arch)
    return Entry(
        name=name, shape=shape, stored=kind, nbytes=size, offset=0, file="random", arch=recipe.arch, raw=lambda: memoryview(b""),
        shift=shift, **readers,
    )  # fmt: skip


def write(recipe: Recipe, target: Path, overwrite: bool) -> None:
    """Write the model; it appears whole or not at all."""
    form, config = FORMATS[recipe.format], configuration(recipe)
    made = list(entries(recipe, config))
    config.pop("projection_norms", None)  # no field of config.json: the tensors say it
    config["quantization_config"] = {"modules_to_not_convert": ["lm_head"]}
    model = ModelFile(
        path=target, container="safetensors", entries={e.name: e for e in made}, metadata={}, config=config, arch=recipe.arch, beliefs=(),
    )  # fmt: skip
    surveys = [survey(e, form) for e in (experts.stack(made) if form.container == "gguf" else made)]
    with appearing(target, folder=form.container == "safetensors", overwrite=overwrite) as path:
        if form.container == "gguf":
            pieces = gguf_pieces(surveys, model, form, recipe.arch)
            with path.open("wb") as file:
                gguf.write(file, metadata(recipe, config), pieces, progress=tell, total=sum(p.nbytes for p in pieces))
            return
        dtype = one_dtype(surveys, model, form)
        pieces = safetensors_pieces(surveys, model, form, dtype)
        beside, _ = tokenizer.from_gguf(vocabulary(recipe.shape.vocab))
        for name, content in ({"config.json": config_for(model, form, surveys, dtype)} | beside).items():
            (path / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        with (path / "model.safetensors").open("xb") as file:
            notes = {"format": "mlx" if form.name == "mlx" else "pt"}
            safetensors.write(file, notes, pieces, progress=tell, total=sum(p.nbytes for p in pieces))


def metadata(recipe: Recipe, config: dict[str, Any]) -> dict[str, bytes]:
    """The keys of a GGUF file."""
    shape, arch = recipe.shape, recipe.arch
    general = {
        "general.architecture": gguf.string(arch.gguf),
        "general.name": gguf.string(f"random {shape.layers}x{shape.hidden}, seed {recipe.seed}"),
        "general.file_type": gguf.number("u32", ggml.FILE_TYPE[recipe.format.upper()]),
        "general.quantization_version": gguf.number("u32", 2),
    }
    text = {key: ENCODE[key.rpartition(".")[2]](value) for key, value in vocabulary(shape.vocab).items()}
    return general | names.config_to_gguf(config, arch) | text


def tell(done: int, total: int, name: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{100 * done // max(total, 1):3d} % {name:<56}")


def setting(text: str) -> tuple[str, Any]:
    """FIELD=JSON."""
    name, sign, value = text.partition("=")
    try:
        return name, json.loads(value if sign else "")
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=JSON, such as sliding_window=512") from None


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="a file, or a folder for formats of safetensors")
    parser.add_argument(
        "--preset", choices=PRESETS, default="bitnet-2b-4t", help="a published model's shape and format"
    )
    parser.add_argument("--family", choices=FAMILIES, help="that of the preset unless told")
    parser.add_argument("--arch", choices=ARCHS, help="the GGUF architecture, where a family has several")
    parser.add_argument("--format", choices=FORMATS, help="that of the preset unless told")
    parser.add_argument("--embedding", choices=FLOATS, default="f16", help="the dtype of the embedding and the head")
    parser.add_argument("--ternary-tables", action=argparse.BooleanOptionalAction, help="a ternary embedding and head")
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction, help="the head is the embedding")
    parser.add_argument("--group", type=int, metavar="N", help="columns of one scale; 0: one scale a tensor")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="FIELD=JSON", help="of config.json")
    for name in vars(Shape()):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help="that of the preset unless told")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--overwrite", action="store_true")
    args = parser.parse_args(given)
    preset = PRESETS[args.preset]
    own = {name: getattr(args, name) for name in vars(Shape())}
    args.shape = Shape(**{name: getattr(preset.shape, name) if n is None else n for name, n in own.items()})
    for fault in args.shape.faults():
        parser.error(fault)
    return args


def recipe_of(args: argparse.Namespace) -> Recipe:
    """What the options say, and the preset for the others; another family has one scale a tensor unless told."""
    preset = PRESETS[args.preset]
    arch = ARCHS[args.arch] if args.arch else FAMILIES[args.family or preset.family].archs[0]
    same = FAMILIES[preset.family] is FAMILIES[args.family or preset.family]
    form = args.format or preset.format

    def choose(option: Any, usual: Any, otherwise: Any) -> Any:
        return option if option is not None else usual if same else otherwise

    tables = choose(args.ternary_tables, preset.tables, False) and FORMATS[form].tables
    fields = (preset.fields if same else {}) | dict(args.set)
    group, tied = choose(args.group, preset.group, 0), choose(args.tied, preset.tied, True)
    return Recipe(args.shape, arch, form, FLOATS[args.embedding], args.seed, group, tied, tables, fields)


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    try:
        write(recipe_of(args), args.target, args.overwrite)
    except TritiumError as error:
        sys.exit(str(error))
    sys.stderr.write(f"\r{f'wrote {args.target}':<62}\n")


if __name__ == "__main__":
    main()

"""PyTorch models written as files: packed Hugging Face directories, GGUF, and whatever else `tritium.io` writes.

What is written are the ternary weights and scales the layers compute with, to the bit.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tritium import io
from tritium.errors import ArgumentError, FormatError, nearest
from tritium.families import BY_ARCH, FAMILIES
from tritium.io import codecs, safetensors
from tritium.io.convert import SIDE_FILES
from tritium.io.formats import survey
from tritium.io.model import names
from tritium.io.model.tokenizer import from_gguf
from tritium.io.stream import Piece
from tritium.io.ternary import Array
from tritium.machine.files import scratch
from tritium.models.text.tokenizer import ALPHABET
from tritium.torch.formulas import spread
from tritium.torch.layer import BitLinear, bit_linears, has_sub_norms

DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}
HEAD = "lm_head.weight"
log = logging.getLogger("tritium")
SUB_NORMS = {
    "o_proj": "attn_sub_norm",
    "down_proj": "ffn_sub_norm",
}  # layers before which a BitNet has a norm, and its name


def export(
    model: nn.Module,
    path: str | Path,
    *,
    format: str = "hf",
    config: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    overwrite: bool = False,
    exact: bool = False,
) -> io.Converted:
    """Write a model whose linear layers are BitLinear, in a format of `tritium.io.FORMATS`. It appears whole or not at all.

    Names are those of transformers (`model.layers.0.self_attn.q_proj`). `config` is config.json; by default the model's own
    `.config`. `tokenizer` is a folder or a GGUF file that holds one, a dictionary of file names and contents (`byte_tokenizer()`), or
    anything with `save_pretrained`. Linear layers that are no BitLinear are written as they are. `exact` refuses a format that would round
    a scale; by default the largest change is `.scale_error` of the result. A Llama with sub-norms is written as a BitNet.
    """
    if format not in io.FORMATS:
        raise FormatError(
            f"export: {format!r} is no format.{nearest(format, io.FORMATS)} Known: {', '.join(io.FORMATS)}."
        )
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper would stand in every name
    layers, path = bit_linears(model), Path(path)
    if not layers:
        raise ArgumentError("export: the model has no BitLinear; call replace_linears(model) and train it first.")
    configuration = _config(model, layers, config)
    normed = configuration.get("quantization_config", {}).get("use_rms_norm") and io.FORMATS[format].container == "gguf"
    if normed:
        configuration = _with_projection_norms(configuration, format)
    _refuse_misread(layers, configuration, format)
    if not path.parent.is_dir():
        raise FormatError(f"export: the folder {path.parent} does not exist; make it first.")
    # packed as transformers has it, then to its place as any model: checked, rounded where the format must, read back
    with scratch(path) as temporary:
        folder = Path(temporary, path.name.partition(".")[0] or "model")
        folder.mkdir()
        _write_tokenizer(folder, tokenizer)
        (folder / "config.json").write_text(json.dumps(configuration), encoding="utf-8")
        with (folder / "model.safetensors").open("xb") as file:
            tied = bool(configuration.get("tie_word_embeddings"))
            pieces = (
                replace(p, name=_projection_norm_name(p.name)) if normed else p for p in _pieces(model, layers, tied)
            )
            safetensors.write(file, {"format": "pt"}, list(pieces))
        if exact:
            _refuse_rounding(folder, format)
        return io.convert(folder, path, to=format, overwrite=overwrite)


def _refuse_rounding(folder: Path, format: str) -> None:
    """Raise unless a format keeps every scale to the bit."""
    surveys = [survey(entry, io.FORMATS[format]) for entry in io.open(folder).entries.values()]
    worst = max(surveys, key=lambda s: s.error)
    if worst.error:
        raise FormatError(
            f"export: {format} rounds the scale of {worst.entry.name} by {worst.error:.1e} of it, and exact=True was given. Scales "
            "of groups are f16 in training and stay; one for a tensor is kept by i2_s, hf, mlx and f32, those of rows by mlx and f32; "
            "trained with scale_dtype='f16', they stay in every format that has room for them, but bf16."
        )


def _refuse_misread(layers: Mapping[str, BitLinear], config: Mapping[str, Any], format: str) -> None:
    """Raise where a file would hold plain numbers of a layer with int8 activations, and its family computes such a matrix in floats."""
    arch = names.arch_of(config)
    if arch is None or (_one_scale(layers) and io.FORMATS[format].codec is not None):
        return  # ternary in the file, and so computed as ternary
    for name, layer in layers.items():
        if layer.activations != "float" and not names.is_linear(f"{name}.weight", arch):
            last = name.rpartition(".")[2]
            raise FormatError(
                f"export: {name} is a BitLinear with int8 activations, and a {config.get('model_type')!r} in this form has it in floats: its "
                f"results would be others. Prepare the model with skip=(…, {last!r}), or use one scale a tensor and a packed format."
            )


def _config(model: nn.Module, layers: Mapping[str, BitLinear], config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return config.json: the model's, with the quantisation that is written."""
    base = config if config is not None else getattr(model, "config", None)
    if base is not None and hasattr(base, "to_dict"):
        base = base.to_dict()
    if not isinstance(base, Mapping):
        raise ArgumentError(
            "export: the model has no .config; give config=, a dictionary as config.json has it (model_type, hidden_size, …)."
        )
    norms = {layer.rms_norm is not None for layer in layers.values()}
    if has_sub_norms(layers.values()):
        base, norms = _as_bitnet(base, layers), {False}  # the norms have names of their own there
    dense = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and not isinstance(m, BitLinear)]
    quant: dict[str, Any] = {
        "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline",
        "modules_to_not_convert": dense or None,
    }  # fmt: skip
    if True in norms:
        eps = {layer.rms_norm.eps for layer in layers.values() if layer.rms_norm is not None}
        quant |= {"use_rms_norm": True, "rms_norm_eps": eps.pop()}
        if eps:
            raise FormatError("export: the norms of the BitLinear layers differ in eps; a file knows one.")
    fields = {k: v for k, v in base.items() if k not in ("dtype", "quantization_config")}
    fields["architectures"] = fields.get("architectures") or _classes(model, fields)
    if not _one_scale(layers):
        if True in norms:
            raise FormatError(
                "export: layers with norms of their own need one scale for each; no file holds norms beside scales of groups."
            )
        return fields
    return fields | {"quantization_config": {k: v for k, v in quant.items() if v is not None}}


def _with_projection_norms(config: Mapping[str, Any], format: str) -> dict[str, Any]:
    """Return the configuration of a network with a norm inside each projection for GGUF, where the names of tensors say that there are
    norms; raise where its family has none."""
    arch, quant = names.arch_of(config), dict(config["quantization_config"])
    if arch is None or "projection_norms" not in BY_ARCH[arch.gguf].reads:
        able = ", ".join(sorted(name for name, family in FAMILIES.items() if "projection_norms" in family.reads))
        raise FormatError(
            f"export: the BitLinear layers have norms of their own, which a {config.get('model_type')!r} in {format} has no place for "
            f"({able} have one). Write 'hf', or put the norms before the layers, as BitNet b1.58 does."
        )
    eps, usual = quant.pop("rms_norm_eps"), config.get("rms_norm_eps", 1e-6)
    if eps != usual:
        raise FormatError(f"export: the norms of the BitLinear layers have eps {eps}, the model {usual}; GGUF has one.")
    del quant["use_rms_norm"]
    return dict(config) | {"quantization_config": quant}


def _projection_norm_name(name: str) -> str:
    """Return the name that Qwen3 and Gemma 3 have for the norm inside a projection; any other name as it is."""
    return name.replace("_proj.rms_norm.", "_proj.norm.")


def _as_bitnet(config: Mapping[str, Any], layers: Mapping[str, BitLinear]) -> dict[str, Any]:
    """Return the configuration of a Llama with sub-norms, which is a BitNet with SiLU; raise where it is none."""
    odd = [name for name, layer in layers.items() if (layer.rms_norm is not None) != name.endswith(tuple(SUB_NORMS))]
    if odd:
        raise FormatError(
            f"export: some BitLinear layers have a norm and some have none, {odd[0]} among them; files know norms before all of them, "
            f"or before {' and '.join(SUB_NORMS)} alone."
        )
    if config.get("model_type") != "llama" or config.get("attention_bias") or config.get("mlp_bias"):
        raise FormatError(
            f"export: norms before {' and '.join(SUB_NORMS)} alone are BitNet's; a {config.get('model_type')!r} (with biases, if it is "
            "a llama) is none with them. Give all layers a norm (norms='all' of a recipe), or none."
        )
    eps = {layer.rms_norm.eps for layer in layers.values() if layer.rms_norm is not None}
    if eps != {config.get("rms_norm_eps", 1e-6)}:
        raise FormatError(
            f"export: the sub-norms have eps {sorted(map(str, eps))}, the model {config.get('rms_norm_eps', 1e-6)}; a BitNet has one."
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = config.get("rope_theta", rope.get("rope_theta", 10000.0))
    return dict(config) | {
        "model_type": "bitnet", "architectures": ["BitNetForCausalLM"], "hidden_act": config.get("hidden_act", "silu"),
        "rope_theta": theta,
    }  # fmt: skip


def _classes(model: nn.Module, config: Mapping[str, Any]) -> list[str] | None:
    """Return the name of the model's class, by which transformers and vLLM find it; of a model that is not of transformers, that of
    its family's; None where it is neither."""
    if hasattr(getattr(model, "config", None), "to_dict"):
        return [type(model).__name__]
    arch = names.arch_of(config)
    return None if arch is None else [arch.model_class]


def _pieces(model: nn.Module, layers: Mapping[str, BitLinear], tied: bool) -> Iterator[Piece]:
    """Yield the tensors of a directory, each computed when it is written: packed, or as the values they stand for where a
    layer has more scales than a packed one can hold."""
    packed, few = _one_scale(layers), has_sub_norms(layers.values())
    for name, t in model.state_dict().items():
        name = _sub_norm_name(name) if few else name
        if name == HEAD and tied:
            continue  # it is the embedding
        stem = name.removesuffix(".weight")
        if name.endswith(".weight") and stem in layers and not packed:
            kind = "F16" if layers[stem].group else "F32"  # exact: scales of groups are f16
            yield _piece(name, tuple(t.shape), kind, t, partial(_dense, layers[stem]))
        elif name.endswith(".weight") and stem in layers:
            n, k = t.shape
            if n % 4:
                raise FormatError(f"export: {name} has {n} rows; files of this kind need a multiple of 4.")
            yield _piece(name, (n // 4, k), "U8", t, partial(_packed, layers[stem]))
            yield _piece(f"{stem}.weight_scale", (1,), "F32", t, partial(_scale, layers[stem]))
        elif name.endswith(".scale") and name.removesuffix(".scale") in layers:
            continue  # learned: it is written beside the weights
        elif t.dtype in DTYPES:
            yield _piece(name, tuple(t.shape), DTYPES[t.dtype], t, _plain)
        else:
            raise FormatError(f"export: {name} is {t.dtype}; parameters are floats.")


def _sub_norm_name(name: str) -> str:
    """Return the name a BitNet has for the norm of a layer; any other name as it is."""
    for layer, norm in SUB_NORMS.items():
        name = name.replace(f"{layer}.rms_norm.", f"{norm}.")
    return name


def _piece(
    name: str, shape: tuple[int, ...], kind: str, t: torch.Tensor, how: Callable[[torch.Tensor], Array]
) -> Piece:
    size = math.prod(shape) * safetensors.DTYPES[kind].itemsize
    return Piece(name, shape, kind, size, lambda: [how(t)])


def _one_scale(layers: Mapping[str, BitLinear]) -> bool:
    """Return True if every layer has one scale, which is what a packed directory of transformers can hold."""
    return all(layer.axis is None and not layer.group for layer in layers.values())


def _dense(layer: BitLinear, weight: torch.Tensor) -> Array:
    """Return the ternary values of a layer times their scales."""
    t, g = layer.ternary()
    dense: Array = (t * spread(g, layer.group)).to(torch.float16 if layer.group else torch.float32).cpu().numpy()
    return dense


def _packed(layer: BitLinear, weight: torch.Tensor) -> Array:
    return codecs.hf.encode(io.Ternary.from_values(layer.ternary()[0].cpu().numpy()))


def _scale(layer: BitLinear, weight: torch.Tensor) -> Array:
    scale: Array = layer.ternary()[1].reshape(1).cpu().numpy()
    return scale


def _plain(t: torch.Tensor) -> Array:
    """Return the bytes of a tensor: NumPy has no bf16."""
    flat: Array = t.detach().cpu().contiguous().view(torch.uint8).reshape(-1).numpy()
    return flat


# ---- tokenizers


def _write_tokenizer(folder: Path, tokenizer: Any) -> None:
    if tokenizer is None:
        return
    if isinstance(tokenizer, Mapping):
        for name, content in tokenizer.items():
            text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False)
            (folder / Path(name).name).write_text(text + "\n", encoding="utf-8")
    elif hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(folder)
    elif isinstance(tokenizer, str | Path) and Path(tokenizer).suffix == ".gguf":
        files, warnings = from_gguf(io.open(tokenizer).metadata)
        for warning in warnings:
            log.warning("export: %s", warning)
        _write_tokenizer(folder, files)
    elif isinstance(tokenizer, str | Path) and Path(tokenizer).is_dir():
        for name in SIDE_FILES:
            if (Path(tokenizer) / name).is_file():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes((Path(tokenizer) / name).read_bytes())
    else:
        raise ArgumentError(
            f"export: tokenizer is a folder, a GGUF file, files by name, or has save_pretrained; given {tokenizer!r}."
        )


def byte_tokenizer(end: int = 0) -> dict[str, Any]:
    """Return the files of a vocabulary of the 256 bytes: token b is byte b. `end` is the byte that begins and ends a text."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model: dict[str, Any] = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {c: b for b, c in enumerate(ALPHABET)}, "merges": [],
    }  # fmt: skip
    whole: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model,
    }  # fmt: skip
    side = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": ALPHABET[end], "eos_token": ALPHABET[end], "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    return {"tokenizer.json": whole, "tokenizer_config.json": side}

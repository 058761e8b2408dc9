"""Ternary model files in PyTorch: the codes and scales of a file become layers, packed or as latent weights.

What a layer computes with at its first step are the codes and scales of the file, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tritium import io
from tritium.errors import ArgumentError, FormatError, PackageError
from tritium.escape import visible
from tritium.families.config import Config
from tritium.families.description import Experts
from tritium.io.model import names
from tritium.models import hub
from tritium.models.load import read_config
from tritium.models.parts import shapes_in_files
from tritium.models.weights import check_names, default_activations
from tritium.torch.adapters import PackedLinear
from tritium.torch.formulas import TINY, learned, spread
from tritium.torch.layer import BitLinear
from tritium.torch.replace import PACKED

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
NOT_IN_CONFIG = ("quantization_config", "quantization", "auto_map", "torch_dtype", "dtype", "architectures")


def load(
    path: str | Path, *, trainable: bool = False, activations: str | None = None, dtype: torch.dtype = torch.float32,
    revision: str | None = None, file: str | None = None, offline: bool | None = None,
) -> nn.Module:  # fmt: skip
    """Return the model of transformers that a ternary file is of, in eval mode: a GGUF file, a directory of Hugging Face or MLX, or a
    name owner/repo.

    Its ternary layers are frozen `PackedLinear`, for `add_adapters`, or with `trainable` `BitLinear`, as `load_ternary` makes them. `dtype` is
    that of embeddings, norms and latent weights. revision, file, offline: of a model by name, see `tritium.fetch`.
    """
    located, _ = hub.locate(path, revision=revision, file=file, offline=offline, check=Config.from_hf)
    opened = io.open(located)
    config = read_config(opened)
    _refuse(opened, config)
    model = _empty_model(opened, config, dtype)
    _fill(model, opened, config, trainable, activations)
    return model.eval()


@torch.no_grad()
def load_ternary(
    model: nn.Module, path: str | Path, *, trainable: bool = False, activations: str | None = None
) -> nn.Module:
    """Fill a model whose modules have transformers' names with a ternary file, in the model itself, and return it.

    Linear layers that are ternary in the file become frozen `PackedLinear` layers of its codes and scales, or with `trainable` `BitLinear`
    layers whose latent weights are code times scale, with that scale as a learned one: the mean magnitude of such weights is another
    number. Of masters the latent weights are the masters and the scale their mean, as they were trained. Everything else takes the
    numbers of the file; without `trainable` nothing requires gradients. `activations`: as of `tritium.load`.
    """
    opened = io.open(path)
    config = read_config(opened)
    _refuse(opened, config)
    _fill(model, opened, config, trainable, activations)
    return model


def _refuse(opened: io.ModelFile, config: Config) -> None:
    """Raise for files whose weights are no linear layers of PyTorch."""
    where, description = visible(opened.path.name), config.description
    if description.hadamard is not None:
        raise FormatError(
            f"{where}: its weights are rotated by Hadamard transforms, which no layer of PyTorch undoes. `tritium.load` runs it."
        )
    if any(isinstance(layer.mlp, Experts) for layer in description.layers):
        raise FormatError(
            f"{where}: a {config.family} model has experts, whose matrices are no linear layers here. `tritium.load` runs it."
        )
    check_names(opened.named, config)


# ---- the model


class _Unfilled(TorchFunctionMode):
    """Tensors that are made without numbers have no memory yet: each is filled from the file, or refused."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **{**(kwargs or {}), **({"device": "meta"} if func is torch.empty else {})})


def _empty_model(opened: io.ModelFile, config: Config, dtype: torch.dtype) -> nn.Module:
    """Return the model of transformers that the configuration of a file describes, large tensors without memory."""
    try:
        import transformers
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError as error:
        raise PackageError(f"tritium.torch.load: needs transformers ({error}): pip install transformers.") from None
    fields = _fields(opened, config)
    kind = fields.pop("model_type")
    if kind not in CONFIG_MAPPING:
        raise FormatError(
            f"{visible(opened.path.name)}: transformers {transformers.__version__} has no model of type {visible(str(kind))!r}. Build one "
            "whose modules have the names of its files, and fill it: tritium.torch.load_ternary(model, path)."
        )
    auto: Any = transformers.AutoModelForCausalLM
    with _Unfilled():
        model: nn.Module = auto.from_config(transformers.AutoConfig.for_model(kind, **fields), dtype=dtype)
    return model


def _fields(opened: io.ModelFile, config: Config) -> dict[str, Any]:
    """Return the configuration of a file as transformers reads it, without what says how the weights are stored."""
    if opened.gguf is None:
        whole = opened.config
        text = whole.get("text_config")
        fields = dict(text) if isinstance(text, Mapping) else dict(whole)
    else:
        assert opened.arch is not None
        fields = names.config_from_gguf(opened.metadata, opened.arch, tied=HEAD not in opened.named)
        fields["vocab_size"] = config.vocab_size
        if any(name.startswith("rope_f") for name in opened.named):
            raise FormatError(
                f"{visible(opened.path.name)}: its RoPE is scaled by factors that GGUF keeps as tensors, which no configuration of "
                "transformers says. Build the model of its original config.json and fill it: tritium.torch.load_ternary(model, path)."
            )
    if opened.arch is not None:
        fields["model_type"] = opened.arch.model_type
    return {k: v for k, v in fields.items() if k not in NOT_IN_CONFIG}


# ---- its numbers


@torch.no_grad()
def _fill(model: nn.Module, opened: io.ModelFile, config: Config, trainable: bool, activations: str | None) -> None:
    """Put the layers and numbers of a file into a model; raise where one of both has what the other lacks."""
    entries, arch = opened.named, opened.arch
    linears = {names.common(f"{n}.weight", arch): n for n, m in _linears(model)}
    in_file = [name for name, _ in shapes_in_files(config) if name in entries]
    layers: dict[str, str] = {}
    for name in in_file:
        entry = entries[name]
        if name in linears and (names.is_linear(name, arch) or entry.role == "ternary"):
            old = model.get_submodule(linears[name])
            norm = entries.get(name.replace(".weight", ".norm.weight"))
            new = _layer(old, entry, norm, config, trainable, activations)
            if new is not None:
                model.set_submodule(linears[name], new.train(old.training))
                layers[name] = linears[name]
    if not layers:
        raise FormatError(
            f"{visible(opened.path.name)}: no layer of it is both ternary and a linear layer of the model, which has "
            f"{', '.join(list(linears)[:4]) or 'no linear layers'}, …. Load other files with transformers, and `prepare` the model."
        )
    places = _places(model, arch)
    inside = tuple(f"{name.removesuffix('.weight')}.norm." for name in layers)
    plain = [name for name in in_file if name not in layers and not name.startswith(inside)]
    plain += [name for name in (f"{n.removesuffix('.weight')}.bias" for n in layers) if name in entries]
    if HEAD in plain and _is_tied_already(model, places, opened):
        plain.remove(HEAD)
    for name in plain:
        if name not in places:
            raise FormatError(
                f"load_ternary: {visible(opened.path.name)} has {name!r}, and the model has no tensor of that name. Build the model that "
                "the file is of, its modules named as in transformers."
            )
        _put(model, places[name], _numbers(entries[name], name))
    if HEAD not in entries and HEAD in places:
        _put(model, places[HEAD], _numbers(entries[EMBEDDING], EMBEDDING))  # a head that is tied in the file alone
    missing = sorted(set(places) - set(plain) - {HEAD})
    unfilled = [n for n, t in _tensors(model) if t.is_meta]
    if missing or unfilled:
        raise FormatError(
            f"load_ternary: {visible(opened.path.name)} has no {(missing + unfilled)[0]!r}, which the model has. Build the model that the "
            "file is of."
        )
    model.requires_grad_(trainable)


def _is_tied_already(model: nn.Module, places: Mapping[str, str], opened: io.ModelFile) -> bool:
    """Return True if the head of the model is its embedding, which the file stores twice; raise if the head in the file is another."""
    tensors = dict(_tensors(model))
    head, table = (tensors.get(places.get(name, "")) for name in (HEAD, EMBEDDING))
    if head is None or head is not table:
        return False
    if not np.array_equal(opened.named[HEAD].float32(), opened.named[EMBEDDING].float32()):
        raise FormatError(
            f"load_ternary: {visible(opened.path.name)} has a head of its own, and that of the model is its embedding. Build the model with "
            "tie_word_embeddings=False."
        )
    return True


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the linear layers of a model, those of transformers and ours too, by each of their names."""
    for name, m in model.named_modules(remove_duplicate=False):
        if name and (isinstance(m, nn.Linear | PackedLinear) or f"{type(m).__module__}.{type(m).__name__}" == PACKED):
            yield name, m


def _layer(
    old: Any, entry: io.Entry, norm: io.Entry | None, config: Config, trainable: bool, activations: str | None
) -> nn.Module | None:
    """Return a layer of the codes and scales of an entry; None where its numbers are not ternary."""
    t = entry.find_ternary()
    if t is None:
        return None
    if (old.out_features, old.in_features) != t.shape:
        raise FormatError(
            f"{entry.where}: it has shape {list(t.shape)}, and the layer of the model [{old.out_features}, {old.in_features}]. Build the "
            "model that the file is of."
        )
    bias = old.bias
    place: Any = (bias if bias is not None else old.codes if isinstance(old, PackedLinear) else old.weight).device
    place = torch.device("cpu") if place.type == "meta" else place
    before = None if norm is None else _rms_norm(norm, config.eps, place)
    how = activations or default_activations(config, t.group)
    if trainable:
        dtype = old.weight.dtype if isinstance(old, nn.Linear) else torch.float32
        layer = _latent(entry, t, how, dtype).to(place)
        layer.bias, layer.rms_norm = bias, before
        return layer
    codes, scale = _signed(t)
    return PackedLinear(codes.to(place), scale.to(place), bias, group=t.group, activations=how, norm=before)


def _rms_norm(entry: io.Entry, eps: float, place: torch.device) -> nn.RMSNorm:
    weight = torch.from_numpy(np.array(entry.float32()))
    norm = nn.RMSNorm(len(weight), eps=eps, device="meta")
    norm.weight = nn.Parameter(weight.to(place))
    return norm


def _signed(t: io.Ternary) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 weights and f32 scales that are not negative: the sign of a scale goes to its codes, and weights of a scale of zero
    are zeros."""
    codes, scale = torch.from_numpy(t.values()), torch.from_numpy(np.array(t.scale))
    return codes * spread(scale, t.group).sign().to(torch.int8), scale.abs()


def _latent(entry: io.Entry, t: io.Ternary, activations: str, dtype: torch.dtype) -> BitLinear:
    """Return a trainable layer: of masters with their mean as scale, of ternary weights with a learned scale that is theirs."""
    rows, columns = t.shape
    axis = 0 if not t.group and t.scale.ndim else None
    form: dict[str, Any] = {
        "axis": axis,
        "group": t.group,
        "activations": activations,
        "device": "meta",
        "dtype": dtype,
    }
    codes, scale = _signed(t)
    if entry.role == "master" and not _is_exact(entry, t):
        layer = BitLinear(columns, rows, **form)
        layer.weight = nn.Parameter(torch.from_numpy(np.array(entry.float32())).to(dtype))
        return layer
    layer = BitLinear(columns, rows, scales="learned", **form)
    used = torch.from_numpy(np.array(t.used()))
    effective = learned(scale, t.group)
    if not torch.equal(effective[used], scale[used]):
        worst = scale[used][(effective - scale)[used].abs().argmax()]
        raise ArgumentError(
            f"{entry.where}: a scale is {worst.item():.9g}, and a trainable layer has scales of at least {TINY:g}, those of groups in f16. "
            "Load it packed (trainable=False)."
        )
    layer.weight = nn.Parameter((codes * spread(scale, t.group)).to(dtype))
    layer.scale = nn.Parameter(scale.clamp_min(TINY))
    return layer


def _is_exact(entry: io.Entry, t: io.Ternary) -> bool:
    """Return True if the numbers of masters are ternary as they are."""
    return bool((entry.float32() == t.dense()).all())


def _numbers(entry: io.Entry, name: str) -> torch.Tensor:
    """Return plain numbers of a file as Hugging Face's files have them: norms of some families are stored less 1 there."""
    shift = names.norm_shift(name, entry.arch) - entry.shift
    numbers = torch.from_numpy(np.array(entry.float32()))
    return numbers - shift if shift else numbers


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _places(model: nn.Module, arch: names.Arch | None) -> dict[str, str]:
    """Return the tensors of a model that a file fills: by their names in files, those in the model."""
    ours = [n for n, m in model.named_modules(remove_duplicate=False) if isinstance(m, BitLinear | PackedLinear)]
    own = {f"{n}.{part}" for n in ours for part in ("weight", "scale", "codes", "rms_norm.weight")}
    stored = model.state_dict(keep_vars=True)
    return {
        names.common(n, arch): n for n in stored if n not in own and not (n.endswith(".bias") and stored[n] is None)
    }


def _put(model: nn.Module, name: str, value: torch.Tensor) -> None:
    """Write a tensor of a model; one without memory is made, under all of its names."""
    old = dict(_tensors(model))[name]
    if old.numel() != value.numel() or [n for n in old.shape if n != 1] != [n for n in value.shape if n != 1]:
        raise FormatError(
            f"load_ternary: {name} has shape {list(old.shape)} in the model and {list(value.shape)} in the file. Build the model that the "
            "file is of."
        )
    if not old.is_meta:
        old.copy_(value.view(old.shape))
        return
    new = value.view(old.shape).to(old.dtype)
    tensor = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    for other in [n for n, t in _tensors(model) if t is old]:
        owner, _, last = other.rpartition(".")
        setattr(model.get_submodule(owner), last, tensor)

"""Describe a model file in full: tensors, types, scales, the decisions made in reading it and why, and what looks wrong.

A guess is labelled as one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritium.arguments import checked
from tritium.errors import FormatError
from tritium.escape import visible
from tritium.families.config import Config
from tritium.io import codecs, ggml, gguf
from tritium.io.model import names
from tritium.io.model.entry import Entry, ModelFile
from tritium.io.model.opening import open as open_model
from tritium.io.ternary import Array, rows_at_a_time, unpack

LARGE = 8.0  # a mean |W| above, or 1/mean |W| below its inverse, is not plausible


@dataclass(frozen=True)
class Kind:
    """Tensors that are alike in all layers: one line of the report."""

    pattern: str
    count: int
    shape: tuple[int, ...]
    stored: str
    nbytes: int
    scales: str  # "tensor", "block" or "" where there are none
    scale_low: float | None
    scale_high: float | None
    zeros: float | None  # share of zero weights; None unless all bytes were read


@dataclass(frozen=True)
class Inspected:
    """The description of a model file."""

    path: str
    container: str
    architecture: str
    nbytes: int
    weights: int
    ternary_weights: int
    ternary_nbytes: int
    kinds: tuple[Kind, ...]
    beliefs: tuple[str, ...]
    warnings: tuple[str, ...]
    tensors: tuple[dict[str, Any], ...]

    @property
    def bits_per_weight(self) -> float:
        """Return the bits per ternary weight, scales and padding included; 0 where there is none."""
        return 8 * self.ternary_nbytes / self.ternary_weights if self.ternary_weights else 0.0

    def as_dict(self) -> dict[str, Any]:
        parts = {"kinds": tuple(dict(vars(kind)) for kind in self.kinds), "tensors": tuple(map(dict, self.tensors))}
        return dict(vars(self)) | parts | {"bits_per_weight": self.bits_per_weight}


@checked
def inspect(path: str | Path, *, variant: str | None = None, deep: bool = False) -> Inspected:
    """Describe a model file. `deep` decodes every ternary weight: it counts zeros and names what cannot be decoded."""
    model = open_model(path, variant=variant)
    entries = list(model.entries.values())
    ternary = [e for e in entries if e.role == "ternary"]
    notes, warnings = list(model.beliefs), []
    for check in (_opaque, _inverted, _finite, _file_type, _dense, _arm64, _activations):
        believed, wrong = check(model)
        notes += believed
        warnings += wrong
    zeros = _zeros(ternary, warnings) if deep else {}
    return Inspected(
        path=str(model.path),
        container=f"GGUF v{model.gguf.version}" if model.gguf else "safetensors",
        architecture=_architecture(model),
        nbytes=model.nbytes,
        weights=sum(_count(e) for e in entries),
        ternary_weights=sum(_count(e) for e in ternary),
        ternary_nbytes=sum(e.nbytes for e in ternary),
        kinds=_kinds(entries, zeros),
        beliefs=tuple(notes),
        warnings=tuple(warnings),
        tensors=tuple(
            {"name": e.name, "shape": list(e.shape), "stored": e.stored, "nbytes": e.nbytes, "offset": e.offset,
             "file": e.file, "role": e.role} for e in entries
        ),
    )  # fmt: skip


def _activations(model: ModelFile) -> tuple[list[str], list[str]]:
    """Return how the model's activations are quantised when it is run, and why; nothing for what cannot be run."""
    linears = [e for e in model.entries.values() if e.role == "ternary" and names.is_linear(e.name, model.arch)]
    if not linears or model.refused or model.arch is None:
        return [], []
    try:
        fields = model.config or names.config_from_gguf(model.metadata, model.arch, tied=False)
        group = min(linears, key=lambda e: e.nbytes).ternary().group
        how, why = Config.from_hf({"vocab_size": 1} | fields).description.activations(group)
    except FormatError:
        return [], []  # what is wrong is said where it is loaded
    return [f"activations are int8, a scale for each {how}, unless another kind is chosen: {why}"], []


def _count(e: Entry) -> int:
    return int(np.prod(e.shape, dtype=object))


def _architecture(model: ModelFile) -> str:
    name = gguf.scalar(model.metadata, "general.architecture") if model.gguf else model.config.get("model_type", "")
    return visible(str(name or ""))


def _kinds(entries: list[Entry], zeros: dict[str, tuple[int, int]]) -> tuple[Kind, ...]:
    alike: dict[tuple[str, tuple[int, ...], str], list[Entry]] = {}
    for e in entries:
        pattern = re.sub(r"\.\d+\.", ".*.", e.name)
        alike.setdefault((pattern, e.shape, e.stored), []).append(e)
    out = []
    for (pattern, shape, stored), group in alike.items():
        parts = [_scales(e) for e in group]
        scales = np.concatenate(parts) if parts else np.empty(0, np.float32)
        scales = scales[np.isfinite(scales)]
        per = "" if not scales.size else "tensor" if all(len(p) == 1 for p in parts) else "block"
        counts = [zeros[e.name] for e in group if e.name in zeros]
        share = sum(z for z, _ in counts) / max(sum(n for _, n in counts), 1) if counts else None
        low, high = (float(scales.min()), float(scales.max())) if scales.size else (None, None)
        out.append(Kind(pattern, len(group), shape, stored, sum(e.nbytes for e in group), per, low, high, share))
    return tuple(out)


def _scales(e: Entry) -> Array:
    if e.scale is None:
        return np.empty(0, np.float32)
    return e.scale().reshape(-1).astype(np.float32)


def _zeros(ternary: list[Entry], warnings: list[str]) -> dict[str, tuple[int, int]]:
    """Return (zeros, weights) of each tensor; a tensor that cannot be decoded becomes a warning."""
    out = {}
    for e in ternary:
        if e.refused:
            continue  # reported once for all of them, by _opaque
        try:
            t = e.ternary()
        except FormatError as error:
            warnings.append(str(error))
            continue
        zeros = sum(int((unpack(t.codes[r], t.shape[1]) == 1).sum()) for r in rows_at_a_time(*t.shape))
        out[e.name] = zeros, _count(e)
    return out


# ---- checks: each returns (beliefs, warnings)

Findings = tuple[list[str], list[str]]


def _opaque(model: ModelFile) -> Findings:
    return [], sorted({model.refused, *(e.refused for e in model.entries.values())} - {""})


def _inverted(model: ModelFile) -> Findings:
    """Warn where scales look inverted: weight_scale is mean|W| or 1/mean|W|, and a mean far above 1 is not plausible."""
    parts = [_scales(e) for e in model.entries.values() if e.stored == "HF packed"]
    scales = np.concatenate(parts) if parts else np.empty(0, np.float32)
    if not scales.size:
        return [], []
    middle = float(np.median(scales))
    if model.inverted is None:
        guess = "divide" if middle > LARGE else "multiply" if middle < 1 / LARGE else "either"
        return [], [f"no quantization_config defines weight_scale; its median {middle:.3g} suggests: {guess} (a guess). "
                    "Use --variant multiply or --variant divide"]  # fmt: skip
    wrong = middle < 1 / LARGE if model.inverted else middle > LARGE
    if not wrong:
        return [], []
    means, other = ("1/mean|W|", "multiply") if model.inverted else ("mean|W|", "divide")
    return [], [f"scales look inverted: the configuration makes weight_scale {means}, but their median is {middle:.3g}. "
                f"A guess from their magnitude; --variant {other} inverts them"]  # fmt: skip


def _finite(model: ModelFile) -> Findings:
    bad = [e for e in model.entries.values() if not np.isfinite(_scales(e)).all()]
    return [], [f"{visible(bad[0].name)!r} has a scale that is not finite ({len(bad)} such tensors)"] if bad else []


def _file_type(model: ModelFile) -> Findings:
    """Warn where general.file_type is wrong: it is only a hint, forks number it differently, but it misleads other programs."""
    file_type = gguf.scalar(model.metadata, "general.file_type") if model.gguf else None
    stored = {e.stored for e in model.entries.values() if e.role == "ternary"}
    halves = (
        ["scales are fp16, one for each block: up to 4.9e-4 off an fp32 scale"]
        if any(isinstance(codecs.GGUF.get(s), codecs.Blocks) for s in stored)
        else []
    )
    expected = {ggml.FILE_TYPE[s] for s in stored if s in ggml.FILE_TYPE}
    expected |= {ggml.FILE_TYPE["Q2_0"]} if "PQ2_0" in stored else set()  # what early files of Prism's declare
    if file_type is None or not expected or file_type in expected:
        return halves, []
    return halves, [
        f"general.file_type is {visible(str(file_type))}, but the tensors are {', '.join(sorted(stored))}; the types of the tensors were used"
    ]


def _dense(model: ModelFile) -> Findings:
    maybe = [e for e in model.entries.values() if e.role == "maybe"]
    if not maybe or any(e.role in ("ternary", "master") for e in model.entries.values()):
        return [], []
    return ["plain numbers: converting reads them all and finds out whether they are exactly ternary"], []


def _arm64(model: ModelFile) -> Findings:
    """Guess the column order of I2_S, which type id 36 leaves open, from the weights: column j of ffn_down and row j of
    ffn_gate and ffn_up belong to the same neuron, and neurons differ in their number of non-zero weights."""
    layers = _neurons(model)
    if not layers:
        return [], []
    score = {}
    for codec in (codecs.i2_s, codecs.i2_s_arm64):
        total = 0.0
        for down, rows in layers:
            columns = _density(codec.decode(down.raw(), down.shape).codes, down.shape, 0)  # type: ignore[arg-type]
            r = np.corrcoef(rows, columns)[0, 1] if rows.std() and columns.std() else 0.0
            total += down.shape[1] * r * r
        score[codec] = total / len(layers)  # about 1 where they are unrelated
    usual, arm = score[codecs.i2_s], score[codecs.i2_s_arm64]
    scores = f"neurons match {usual:.1f} as 128-value blocks, {arm:.1f} as ARM's 64-value blocks (1: not at all)"
    if max(usual, arm) < 12 or max(usual, arm) < 3 * min(usual, arm):
        return [f"type id 36 does not define the block order, and the weights do not reveal it: {scores}"], []
    if usual > arm:
        return [f"block order confirmed by the weights: {scores}"], []
    remedy = (
        "read it with --variant arm64" if "requested" not in " ".join(model.beliefs) else "--variant arm64 is right"
    )
    return [], [f"this I2_S looks written by an ARM build of bitnet.cpp: {scores}; {remedy} (a guess from the weights)"]


def _neurons(model: ModelFile, most: int = 4) -> list[tuple[Entry, Array]]:
    """Return (ffn_down, number of non-zero weights in each row of ffn_gate and ffn_up) of some layers in I2_S."""
    out: list[tuple[Entry, Array]] = []
    for e in model.entries.values():
        if not e.name.endswith(".ffn_down.weight") or e.stored != "I2_S" or len(out) == most:
            continue
        partners = [model.entries.get(e.name.replace("ffn_down", other)) for other in ("ffn_gate", "ffn_up")]
        matching = [n for n in partners if n is not None and n.stored == "I2_S" and n.shape == e.shape[::-1]]
        if not matching:
            continue
        try:
            rows = sum(_density(n.ternary().codes, n.shape, 1) for n in matching)
            codecs.i2_s.decode(e.raw(), e.shape)  # type: ignore[arg-type]
        except FormatError:
            return []
        out.append((e, np.asarray(rows)))
    return out


def _density(packed: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return the number of non-zero weights along an axis."""
    n, k = shape
    parts = [(unpack(packed[r], k) != 1).sum(axis=axis) for r in rows_at_a_time(n, k)]
    return np.concatenate(parts) if axis else np.sum(parts, axis=0)

"""What a model file is, said in full: tensors, types, scales, what is believed of it and why, and what looks wrong.

Knows nothing of printing. A guess is called one.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.io import codecs, ggml, gguf
from tritium.io.model.entry import Entry, ModelFile
from tritium.io.model.opening import open as open_model
from tritium.io.ternary import Array, rows_at_a_time, unpack

LARGE = 8.0  # a mean |W| above, or 1/mean |W| below its inverse, is not plausible


@dataclass(frozen=True)
class Kind:
    """Tensors alike in all layers: one line of the report."""

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
    """The report."""

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
        """Bits a ternary weight takes, scales and padding counted; 0 when there is none."""
        return 8 * self.ternary_nbytes / self.ternary_weights if self.ternary_weights else 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"bits_per_weight": self.bits_per_weight}


def inspect(path: str | Path, *, variant: str | None = None, deep: bool = False) -> Inspected:
    """Tell what a model file is. `deep` decodes every ternary weight: counts zeros, and names what cannot be decoded."""
    model = open_model(path, variant=variant)
    entries = list(model.entries.values())
    ternary = [e for e in entries if e.role == "ternary"]
    notes, warnings = list(model.beliefs), []
    for check in (_opaque, _inverted, _finite, _file_type, _dense, _arm64):
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


def _count(e: Entry) -> int:
    return int(np.prod(e.shape, dtype=object))


def _architecture(model: ModelFile) -> str:
    said = gguf.scalar(model.metadata, "general.architecture") if model.gguf else model.config.get("model_type", "")
    return visible(str(said or ""))


def _kinds(entries: list[Entry], zeros: dict[str, tuple[int, int]]) -> tuple[Kind, ...]:
    alike: dict[tuple[str, tuple[int, ...], str], list[Entry]] = {}
    for e in entries:
        pattern = re.sub(r"\.\d+\.", ".*.", e.name)
        alike.setdefault((pattern, e.shape, e.stored), []).append(e)
    out = []
    for (pattern, shape, stored), group in alike.items():
        parts = [_scales(e) for e in group]
        found = np.concatenate(parts) if parts else np.empty(0, np.float32)
        found = found[np.isfinite(found)]
        per = "" if not found.size else "tensor" if all(len(p) == 1 for p in parts) else "block"
        counts = [zeros[e.name] for e in group if e.name in zeros]
        share = sum(z for z, _ in counts) / max(sum(n for _, n in counts), 1) if counts else None
        low, high = (float(found.min()), float(found.max())) if found.size else (None, None)
        out.append(Kind(pattern, len(group), shape, stored, sum(e.nbytes for e in group), per, low, high, share))
    return tuple(out)


def _scales(e: Entry) -> Array:
    if e.scale is None:
        return np.empty(0, np.float32)
    return e.scale().reshape(-1).astype(np.float32)


def _zeros(ternary: list[Entry], warnings: list[str]) -> dict[str, tuple[int, int]]:
    """(zeros, weights) of each tensor; what cannot be decoded becomes a warning."""
    out = {}
    for e in ternary:
        if e.refused:
            continue  # told once for all of them
        try:
            t = e.ternary()
        except FormatError as error:
            warnings.append(str(error))
            continue
        zeros = sum(int((unpack(t.codes[r], t.shape[1]) == 1).sum()) for r in rows_at_a_time(*t.shape))
        out[e.name] = zeros, _count(e)
    return out


# ---- what looks wrong: each gives (beliefs, warnings)

Findings = tuple[list[str], list[str]]


def _opaque(model: ModelFile) -> Findings:
    return [], sorted({model.refused, *(e.refused for e in model.entries.values())} - {""})


def _inverted(model: ModelFile) -> Findings:
    """weight_scale is mean|W| or 1/mean|W|; a mean far above 1 is not plausible for either."""
    parts = [_scales(e) for e in model.entries.values() if e.stored == "HF packed"]
    found = np.concatenate(parts) if parts else np.empty(0, np.float32)
    if not found.size:
        return [], []
    middle = float(np.median(found))
    if model.inverted is None:
        guess = "divide" if middle > LARGE else "multiply" if middle < 1 / LARGE else "either"
        return [], [f"no quantization_config tells what weight_scale means; their median {middle:.3g} suggests: {guess} (a guess). "
                    "Say --variant multiply or --variant divide"]  # fmt: skip
    wrong = middle < 1 / LARGE if model.inverted else middle > LARGE
    if not wrong:
        return [], []
    means, other = ("1/mean|W|", "multiply") if model.inverted else ("mean|W|", "divide")
    return [], [f"scales look inverted: the configuration makes weight_scale {means}, but their median is {middle:.3g}. "
                f"A guess from their size; --variant {other} reads them the other way"]  # fmt: skip


def _finite(model: ModelFile) -> Findings:
    bad = [e for e in model.entries.values() if not np.isfinite(_scales(e)).all()]
    return [], [f"{visible(bad[0].name)!r} has a scale that is not finite ({len(bad)} such tensors)"] if bad else []


def _file_type(model: ModelFile) -> Findings:
    """general.file_type is only a hint, and forks number it differently; a wrong one misleads other programs."""
    said = gguf.scalar(model.metadata, "general.file_type") if model.gguf else None
    stored = {e.stored for e in model.entries.values() if e.role == "ternary"}
    halves = (
        ["scales are fp16, one for each block: up to 4.9e-4 off an fp32 scale"]
        if stored & {"TQ1_0", "TQ2_0", "Q2_0", "PQ2_0"}
        else []
    )
    expected = {ggml.FILE_TYPE[s] for s in stored if s in ggml.FILE_TYPE}
    if said is None or not expected or said in expected:
        return halves, []
    return halves, [
        f"general.file_type is {visible(str(said))}, but the tensors are {', '.join(sorted(stored))}; the tensors were believed"
    ]


def _dense(model: ModelFile) -> Findings:
    maybe = [e for e in model.entries.values() if e.role == "maybe"]
    if not maybe or any(e.role in ("ternary", "master") for e in model.entries.values()):
        return [], []
    return ["plain numbers: whether they are exactly ternary is told by converting, which reads them all"], []


def _arm64(model: ModelFile) -> Findings:
    """Id 36 does not say in which of two orders the columns are. A network does: column j of ffn_down and row j of ffn_gate
    and ffn_up belong to the same neuron, and neurons differ in how many weights they use."""
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
        score[codec] = total / len(layers)  # about 1 where nothing is related
    usual, arm = score[codecs.i2_s], score[codecs.i2_s_arm64]
    told = f"neurons match {usual:.1f} as 128-value blocks, {arm:.1f} as ARM's 64-value blocks (1: not at all)"
    if max(usual, arm) < 12 or max(usual, arm) < 3 * min(usual, arm):
        return [f"type id 36 does not say which block order it is, and the weights do not tell: {told}"], []
    if usual > arm:
        return [f"block order confirmed by the weights: {told}"], []
    remedy = (
        "read it with --variant arm64"
        if "asked for" not in " ".join(model.beliefs)
        else "rightly read with --variant arm64"
    )
    return [], [f"this I2_S looks written by an ARM build of bitnet.cpp: {told}; {remedy} (a guess from the weights)"]


def _neurons(model: ModelFile, most: int = 4) -> list[tuple[Entry, Array]]:
    """(ffn_down, share of used weights in each row of ffn_gate and ffn_up) of some layers in I2_S."""
    out: list[tuple[Entry, Array]] = []
    for e in model.entries.values():
        if not e.name.endswith(".ffn_down.weight") or e.stored != "I2_S" or len(out) == most:
            continue
        near = [model.entries.get(e.name.replace("ffn_down", other)) for other in ("ffn_gate", "ffn_up")]
        mine = [n for n in near if n is not None and n.stored == "I2_S" and n.shape == e.shape[::-1]]
        if not mine:
            continue
        try:
            rows = sum(_density(n.ternary().codes, n.shape, 1) for n in mine)
            codecs.i2_s.decode(e.raw(), e.shape)  # type: ignore[arg-type]
        except FormatError:
            return []
        out.append((e, np.asarray(rows)))
    return out


def _density(packed: Array, shape: tuple[int, ...], axis: int) -> Array:
    """How many weights are not zero, along an axis."""
    n, k = shape
    parts = [(unpack(packed[r], k) != 1).sum(axis=axis) for r in rows_at_a_time(n, k)]
    return np.concatenate(parts) if axis else np.sum(parts, axis=0)

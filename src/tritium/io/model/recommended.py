"""The sampling that a model file recommends: keys `general.sampling.*` of GGUF, and generation_config.json of Hugging Face.

Knows nothing of samplers: values are numbers under the names of `tritium.Sampler`; whoever uses them checks their ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tritium.escape import visible
from tritium.io import gguf

PREFIX = "general.sampling."
KEYS = {
    "temperature": ("temp", "f32"), "top_k": ("top_k", "i32"), "top_p": ("top_p", "f32"), "min_p": ("min_p", "f32"),
    "repetition_penalty": ("penalty_repeat", "f32"), "repetition_window": ("penalty_last_n", "i32"),
}  # fmt: skip
CONFIG = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
)  # fields of generation_config.json
Values = dict[str, float]


def from_gguf(metadata: Mapping[str, Any]) -> tuple[Values, list[str]]:
    """Return what the keys of a GGUF file recommend, and warnings for those that cannot be followed."""
    names = {PREFIX + key: name for name, (key, _) in KEYS.items()}
    fields = {key: gguf.scalar(metadata, key) for key in metadata if key.startswith(PREFIX)}
    return _known(
        {names.get(key, ""): value for key, value in fields.items()}, [key for key in fields if key not in names]
    )


def from_config(config: Mapping[str, Any]) -> tuple[Values, list[str]]:
    """Return what a generation_config.json recommends: without `do_sample` the likeliest token, whatever its temperature says."""
    fields = {name: config[name] for name in CONFIG if config.get(name) is not None}
    if config.get("do_sample") is not True:
        fields = {name: value for name, value in fields.items() if name == "repetition_penalty"}
    elif "temperature" not in fields:
        fields["temperature"] = 1.0
    return _known(fields, [])


def to_gguf(values: Mapping[str, float]) -> dict[str, bytes]:
    """Return the keys of GGUF for what is recommended; what GGUF has no key for is left out."""
    kinds = {name: KEYS[name] for name in values if name in KEYS}
    return {
        PREFIX + key: gguf.number(kind, values[name] if kind == "f32" else int(values[name]))
        for name, (key, kind) in kinds.items()
    }


def to_config(values: Mapping[str, float]) -> dict[str, Any]:
    """Return a generation_config.json for what is recommended; none for nothing."""
    fields = {name: values[name] for name in CONFIG if name in values}
    return {"generation_config.json": {"do_sample": values.get("temperature", 0) > 0} | fields} if fields else {}


def _known(fields: Mapping[str, Any], unknown: list[str]) -> tuple[Values, list[str]]:
    """Return the finite numbers, as short as f32 holds them, and warnings for everything else."""
    warnings = [f"the file recommends {visible(key)}, which no sampler here has" for key in unknown]
    values: Values = {}
    for name, value in fields.items():
        if not name:
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or abs(value) > 1e9
        ):
            warnings.append(f"the file recommends {name} {visible(repr(value))}, which is no number")
        else:
            values[name] = value if isinstance(value, int) else float(f"{value:.7g}")
    return values, warnings

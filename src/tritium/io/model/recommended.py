"""The sampling that a model file recommends: keys `general.sampling.*` of GGUF, and generation_config.json of Hugging Face.

Knows nothing of samplers: values are numbers under the names of `tritium.Sampler`; whoever uses them checks their ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritium.escape import visible
from tritium.io import gguf

PREFIX = "general.sampling."
KEYS = {
    "temperature": ("temp", "f32"), "top_k": ("top_k", "i32"), "top_p": ("top_p", "f32"), "min_p": ("min_p", "f32"),
    "repetition_penalty": ("penalty_repeat", "f32"), "repetition_window": ("penalty_last_n", "i32"),
}  # fmt: skip
FILE = "generation_config.json"
CONFIG = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
)  # fields of generation_config.json
DRAWN = {"top_k", "top_p", "min_p", "typical_p"}  # of use only where tokens are drawn
DEFAULT = 0.8  # temperature of llama.cpp
WHOLE = {"top_k", "repetition_window"}
MOST = (1 << 31) - 1
Values = dict[str, float]


def from_gguf(metadata: Mapping[str, Any]) -> tuple[Values, list[str]]:
    """Return what the keys of a GGUF file recommend, and warnings for those that cannot be followed.

    As llama.cpp reads them: tokens are drawn at temperature 0.8 where the file names none, and of the last tokens that a penalty sees -1
    are all and 0 are none.
    """
    names = {PREFIX + key: name for name, (key, _) in KEYS.items()}
    fields = {key: gguf.scalar(metadata, key) for key in metadata if key.startswith(PREFIX)}
    unknown = [key for key in fields if key not in names]
    values, warnings = _known({names[key]: value for key, value in fields.items() if key in names}, unknown)
    window = values.get("repetition_window")
    if window == 0:
        values.pop("repetition_penalty", None)
        del values["repetition_window"]
    elif window == -1:
        values["repetition_window"] = 0
    if "temperature" not in values and values.keys() & DRAWN:
        values["temperature"] = DEFAULT
    return values, warnings


def from_config(config: Mapping[str, Any]) -> tuple[Values, list[str]]:
    """Return what a generation_config.json recommends: without `do_sample` the likeliest token, whatever its temperature says."""
    draws = config.get("do_sample")
    values, warnings = _known({name: config[name] for name in CONFIG if config.get(name) is not None}, [])
    if draws is not None and not isinstance(draws, bool):
        warnings.append(f"the file recommends do_sample {visible(repr(draws))}, which is neither true nor false")
    if draws is not True:
        values = {name: value for name, value in values.items() if name not in (*DRAWN, "temperature")}
    elif "temperature" not in values:
        values["temperature"] = 1.0
    return values, warnings


def to_gguf(values: Mapping[str, float]) -> tuple[dict[str, bytes], list[str]]:
    """Return the keys of GGUF for what is recommended, and warnings for what GGUF has no key for."""
    written = dict(values)
    if written.get("repetition_window") == 0:
        written["repetition_window"] = -1
    keys = {
        PREFIX + KEYS[name][0]: gguf.number(KEYS[name][1], value) for name, value in written.items() if name in KEYS
    }
    return keys, [f"GGUF has no key for the recommended {name}: left out" for name in written if name not in KEYS]


def to_config(values: Mapping[str, float]) -> tuple[dict[str, Any], list[str]]:
    """Return a generation_config.json for what is recommended (none for nothing), and warnings for what it has no field for."""
    fields = {name: values[name] for name in CONFIG if name in values}
    warnings = [f"{FILE} has no field for the recommended {name}: left out" for name in values if name not in CONFIG]
    return ({FILE: {"do_sample": values.get("temperature", 0) > 0} | fields} if fields else {}), warnings


def _known(fields: Mapping[str, Any], unknown: list[str]) -> tuple[Values, list[str]]:
    """Return the numbers, as short as f32 holds them and whole where they must be, and warnings for everything else."""
    warnings = [f"the file recommends {visible(key)}, which no sampler here has" for key in unknown]
    values: Values = {}
    for name, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not -MOST <= value <= MOST:
            warnings.append(
                f"the file recommends {name} {visible(repr(value)[:40])}, which is no number that can be used"
            )
        elif name in WHOLE and value != int(value):
            warnings.append(f"the file recommends {name} {value}, which is no whole number")
        else:
            values[name] = int(value) if name in WHOLE else float(f"{value:.7g}")
    return values, warnings

"""The supported metadata keys of GGUF, and transforms of activations: what could change the results is rejected by name.

The tables of keys are those of `tritium.families`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.families import BY_ARCH
from tritium.families.common import DESCRIPTIVE_SPACES, FIXED_KEYS, READ_KEYS, UNKNOWN, is_off
from tritium.families.fields import REMEDY
from tritium.io import gguf
from tritium.io.reader import fault

# ---- keys of GGUF


def check_keys(metadata: Mapping[str, Any], arch: str) -> None:
    """Raise unless every key of a GGUF file is supported for its architecture, naming the key."""
    family = BY_ARCH[arch]
    read = READ_KEYS | family.ignores_keys | {key for key, _ in family.keys.values()}
    fixed = {k: v for k, v in FIXED_KEYS.items() if k not in read} | dict(family.fixed_keys)
    rotated = bool(hadamard_fields(metadata, arch))
    for key in metadata:
        value = gguf.scalar(metadata, key)  # None for a list, which is not one of the values without effect
        space, _, rest = key.partition(".")
        if key.startswith(f"{arch}."):
            own = key.removeprefix(f"{arch}.")
            if own in fixed:
                if value not in fixed[own]:
                    raise _refused_key(metadata, key, " or ".join(str(v) for v in fixed[own]), REMEDY)
            elif own not in read and value not in (False, 0):
                raise _refused_key(metadata, key, "a known key", UNKNOWN)
        elif key.startswith(PRISM) and rotated:
            continue
        elif not (space in DESCRIPTIVE_SPACES and rest):
            raise _refused_key(metadata, key, f"a key of general, tokenizer or {arch}", UNKNOWN)


def _refused_key(metadata: Mapping[str, Any], key: str, needed: str, remedy: str) -> FormatError:
    value = gguf.scalar(metadata, key)
    return fault(f"GGUF metadata, {visible(key)}", "a list" if value is None else visible(repr(value)), needed, remedy)


# ---- transforms of the activations

TRANSFORM = re.compile(
    "hadamard", re.IGNORECASE | re.ASCII
)  # str.lower() of a long text takes several times its memory
SIGNS = ".signs"  # sign vectors of a Hadamard transform, beside the packed weight in Prism's MLX packs
FREE_TEXT = frozenset(("_name_or_path", "name", "description", "license", "author", "chat_template"))


PRISM = "prism.hadamard."
CONTRACT: dict[str, tuple[Any, ...]] = {  # Prism's keys of one value, with those that are computed
    "version": (1,), "transform": ("normalized-sylvester-walsh-hadamard",), "axis": ("input-last-dimension",),
    "sign_mode": ("identity", "explicit"),
}  # fmt: skip
LISTS = {
    "weight_names": 1 << 14,
    "inverse_weight_names": 1,
    "sign_widths": 64,
    "sign_values": 1 << 18,
}  # and most items
TABLE = "token_embd.weight"


def hadamard_fields(metadata: Mapping[str, Any], arch: str) -> dict[str, Any]:
    """Return the rotation of a GGUF file as fields of a configuration; {} where it has none that is computed here."""
    keys = {key.removeprefix(PRISM) for key in metadata if key.startswith(PRISM)}
    family = BY_ARCH.get(arch)
    if not keys or family is None or "hadamard_block" not in family.reads:
        return {}
    if keys - set(CONTRACT) - set(LISTS) - {"block_size", "gdn_v_grouped"}:
        return {}
    if any(gguf.scalar(metadata, PRISM + key) not in values for key, values in CONTRACT.items()):
        return {}
    lists = {key: _bounded(metadata, PRISM + key, most) for key, most in LISTS.items()}
    block, grouped = (gguf.scalar(metadata, PRISM + key) for key in ("block_size", "gdn_v_grouped"))
    signs = _signs(lists["sign_widths"], lists["sign_values"])
    explicit = gguf.scalar(metadata, PRISM + "sign_mode") == "explicit"
    if not isinstance(block, int) or not lists["weight_names"] or signs is None or explicit != bool(signs):
        return {}
    if lists["inverse_weight_names"] not in ([], [TABLE]) or not all(isinstance(n, str) for n in lists["weight_names"]):
        return {}
    return {
        "hadamard_block": block, "hadamard_signs": signs, "hadamard_names": sorted(lists["weight_names"]),
        "hadamard_inverse": bool(lists["inverse_weight_names"]), "hadamard_grouped": bool(grouped),
    }  # fmt: skip


def _bounded(metadata: Mapping[str, Any], key: str, most: int) -> list[Any]:
    """Return a list of a GGUF file; [] where it is absent, no list, or longer than any that is read."""
    if isinstance(metadata, gguf.Metadata):
        stored = metadata.values_by_key.get(key)
        listed = stored is not None and stored.kind == gguf.ARRAY and stored.count <= most and len(stored.raw) < 1 << 22
        return stored.read() if stored is not None and listed else []
    value = metadata.get(key)
    return value if isinstance(value, list) and len(value) <= most else []


def _signs(widths: list[Any], values: list[Any]) -> list[list[Any]] | None:
    """Return for each width its signs as hexadecimal digits, 1 for minus; None for what are no signs."""
    if not all(isinstance(w, int) and 0 < w <= len(values) for w in widths) or sum(widths) != len(values):
        return None
    if not all(value in (1, -1) for value in values):
        return None
    signs, start = [], 0
    for width in widths:
        bits = "".join("1" if v == -1 else "0" for v in values[start : start + width])
        signs.append([width, f"{int(bits, 2):x}"])
        start += width
    return signs


def transform_in_gguf(metadata: Mapping[str, Any], tensors: Iterable[str]) -> str:
    """Return why the weights of a GGUF file need a transform of the activations that is not computed; "" where they do not."""
    arch = gguf.scalar(metadata, "general.architecture")
    if isinstance(arch, str) and hadamard_fields(metadata, arch):
        metadata = {key: None for key in metadata if not key.startswith(PRISM)}
    locations = [f"the key {key}" for key in metadata if TRANSFORM.search(key)]
    if isinstance(arch, str) and TRANSFORM.search(arch):
        locations.append(f"general.architecture {arch!r}")
    return _transformed(locations + _transform_tensors(tensors))


def transform_in_config(config: Mapping[str, Any], notes: Mapping[str, Any], tensors: Iterable[str]) -> str:
    """Return the same for config.json, the metadata in a safetensors header and the names of the tensors."""
    locations: list[str] = []
    stack: list[tuple[str, Any]] = [("config.json", dict(config)), ("safetensors metadata", dict(notes))]
    while stack:  # not recursive: a hostile file is nested deeper than the stack
        location, value = stack.pop()
        if isinstance(value, str) and TRANSFORM.search(value):
            locations.append(f"{location} {value!r}")
        elif isinstance(value, list):
            stack += [(location, item) for item in value if isinstance(item, str | list | dict)]
        elif isinstance(value, dict):
            for key, item in value.items():
                if TRANSFORM.search(key) and not is_off(item):
                    locations.append(f"{location}, the field {key}")
                elif isinstance(item, str | list | dict) and key not in FREE_TEXT:
                    stack.append((f"{location}, {key}", item))
    return _transformed(sorted(locations) + _transform_tensors(tensors))


def _transform_tensors(tensors: Iterable[str]) -> list[str]:
    return [f"the tensor {name}" for name in tensors if TRANSFORM.search(name) or name.endswith(SIGNS)]


def _transformed(locations: list[str]) -> str:
    if not locations:
        return ""
    more = f" and {len(locations) - 1} more" if len(locations) > 1 else ""
    return (
        f"This model rotates its activations by a Hadamard transform ({visible(locations[0])}{more}), which is not computed here; "
        "its weights alone compute wrong results. It is not supported: use a runtime that has this transform, or a model without it."
    )

"""Pooling of hidden states into embeddings, as the files of sentence-transformers and of GGUF state it.

Knows nothing of how it is computed, nor of prompts, for which GGUF has no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritium.escape import visible
from tritium.io import gguf
from tritium.io.reader import contained, fault, read_json

MODULES, FOLDER, PROMPTS = "modules.json", "1_Pooling", "config_sentence_transformers.json"
MODES = {  # fields of sentence-transformers' pooling that are computed here
    "pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last",
}  # fmt: skip
MODE_NAMES = {"cls": "cls", "mean": "mean", "lasttoken": "last"}  # of the field pooling_mode
GGUF_POOLINGS = {1: "mean", 2: "cls", 3: "last"}  # of the key pooling_type; 0 says nothing
MOST_BYTES = 1 << 20  # of a file that says how texts are embedded
_TYPES = "sentence_transformers.models."


def of_config(config: Mapping[str, Any]) -> str:
    """Return the pooling in 1_Pooling/config.json: one mode that is on, or its name."""
    where, name = f"{FOLDER}/config.json", config.get("pooling_mode")
    on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    pooling = MODE_NAMES.get(name) if isinstance(name, str) else MODES.get(on[0]) if len(on) == 1 else None
    if pooling is None:
        raise fault(
            where, visible(str(name if name is not None else on)), f"one of {', '.join((*MODES, *MODE_NAMES))}",
            "Other ways of pooling are not computed here; choose one with pooling=.",
        )  # fmt: skip
    return pooling


def of_gguf(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return the pooling of a GGUF file, "" where it says nothing, and the key that says so."""
    key = f"{gguf.scalar(metadata, 'general.architecture')}.pooling_type"
    kind = gguf.scalar(metadata, key)
    if kind in (None, 0):
        return "", key
    if isinstance(kind, bool) or kind not in GGUF_POOLINGS:
        raise fault(
            f"GGUF metadata, {visible(key)}", visible(repr(kind)), "0 (none), 1 (mean), 2 (cls) or 3 (last)",
            "Other ways of pooling are not computed here; choose one with pooling=.",
        )  # fmt: skip
    return GGUF_POOLINGS[kind], key


def to_gguf(folder: Path, arch: str) -> tuple[dict[str, bytes], list[str]]:
    """Return the keys for the files of a model folder, and warnings for what GGUF cannot say."""
    if not (folder / FOLDER / "config.json").is_file():
        return {}, []
    pooling = of_config(read_json(contained(folder / FOLDER, "config.json"), MOST_BYTES))
    number = next(n for n, name in GGUF_POOLINGS.items() if name == pooling)
    lost = f"{PROMPTS} has no place in GGUF: give the prompt of a text yourself"
    warnings = [lost] if (folder / PROMPTS).is_file() else []
    return {f"{arch}.pooling_type": gguf.number("u32", number)}, warnings


def from_gguf(metadata: Mapping[str, Any], hidden_size: Any) -> dict[str, Any]:
    """Return the files of sentence-transformers for the key of a GGUF file, by path; {} where it has none."""
    pooling, _ = of_gguf(metadata)
    if not pooling:
        return {}
    names = ("Transformer", ""), ("Pooling", FOLDER), ("Normalize", "2_Normalize")
    modules = [{"idx": i, "name": str(i), "path": path, "type": _TYPES + kind} for i, (kind, path) in enumerate(names)]
    modes = {field: name == pooling for field, name in MODES.items()}
    return {MODULES: modules, f"{FOLDER}/config.json": {"word_embedding_dimension": hidden_size} | modes}

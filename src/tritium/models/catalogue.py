"""The list of models: families that run here, formats that are read and written, and known repositories of the hub.

Families and formats are those of the code; repositories are in `data/models.json`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any, NamedTuple

from tritium.families import BY_TYPE, FAMILIES
from tritium.io import FORMATS, codecs

FILE = "models.json"
ROOM = 1.5  # bytes of memory for each byte of a model: its KV cache and other programs need some too


class FamilyRow(NamedTuple):
    """A family by its names: model_type in config.json, architectures in GGUF, classes in transformers."""

    name: str
    model_types: tuple[str, ...]
    gguf: tuple[str, ...]
    classes: tuple[str, ...]


class FormatRow(NamedTuple):
    """A format of model files: its name, its container, whether `convert` writes it, and what it is."""

    name: str
    container: str
    written: bool
    doc: str


@dataclass(frozen=True)
class Known:
    """A repository of the Hugging Face hub with a ternary model."""

    repo: str
    architecture: str
    parameters: str
    format: str
    gigabytes: float | None  # of what is fetched
    use: str  # the command it is made for
    file: str | None  # where several are equally good

    @property
    def runs(self) -> bool:
        """Return True if its family runs here."""
        return self.architecture in BY_TYPE

    @property
    def command(self) -> str:
        """Return what to type."""
        texts = " texts.txt" if self.use == "embed" else ""
        return f"tritium {self.use} {self.repo}{texts}{f' --file {self.file}' if self.file else ''}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"runs": self.runs, "command": self.command}


def families() -> list[FamilyRow]:
    """Return the families that run here."""
    return [
        FamilyRow(
            f.name, f.model_types, tuple(a.gguf for a in f.archs), tuple(dict.fromkeys(a.model_class for a in f.archs))
        )
        for f in FAMILIES.values()
    ]


def formats() -> list[FormatRow]:
    """Return the formats that are read, and which of them are written."""
    rows = [FormatRow(f.name, f.container, True, f.doc) for f in FORMATS.values()]
    only_read = [name.lower() for name in codecs.GGUF if name.lower() not in FORMATS]
    rows += [FormatRow(name, "gguf", False, "ternary type of another program") for name in only_read]
    return [
        *rows,
        FormatRow("prepacked", ".tritium", False, "tiles of this machine's kernels; written by `tritium prepack`"),
    ]


def known() -> list[Known]:
    """Return the known repositories."""
    text = (files("tritium") / "data" / FILE).read_text(encoding="utf-8")
    return [Known(**row) for row in json.loads(text)["models"]]


def chats_within(memory: int) -> list[Known]:
    """Return the models that chat in so many bytes of memory, the smallest first: those of a stated size, and one repository of each."""
    one_each = {(row.architecture, row.parameters): row for row in reversed(known()) if row.runs and row.use == "chat"}
    sizes = {row: row.gigabytes for row in one_each.values() if row.gigabytes and ROOM * 1e9 * row.gigabytes <= memory}
    return sorted(sizes, key=sizes.__getitem__)


def table() -> str:
    """Return the known repositories as Markdown: docs/models.md has it, and a test keeps both equal."""
    lines = ["| what to type | architecture | parameters | files | fetched |", "|---|---|---|---|---|"]
    for row in known():
        fetched = "" if row.gigabytes is None else f"{row.gigabytes:g} GB"
        mark = "" if row.runs else " (not yet)"
        lines.append(f"| `{row.command}` | `{row.architecture}`{mark} | {row.parameters} | {row.format} | {fetched} |")
    return "\n".join(lines)

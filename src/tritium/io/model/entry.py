"""One weight of a model and the model it belongs to: readable as ternary, as numbers or as bytes, only when asked for.

Knows nothing of files: readers fill it with the calls that read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.io import codecs, gguf
from tritium.io.model import names
from tritium.io.reader import fault
from tritium.io.safetensors import DTYPES
from tritium.io.ternary import Array, Ternary

FLOATS = {name: DTYPES[name] for name in ("F32", "F16", "BF16", "F64")}


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """One weight. Rows of Q and K are given in Hugging Face's order, whatever the file has."""

    name: str  # as in the file
    shape: tuple[int, ...]  # of the weight, not of its packed bytes
    stored: str
    nbytes: int  # with its scales
    offset: int  # in its file
    file: str
    role: str = "plain"  # or "ternary", "master" (of a ternary weight), "maybe" (floats that may be exactly ternary)
    refused: str = ""  # why it cannot be decoded
    why: str = ""  # how its type was told, where the id alone does not tell
    raw: Callable[[], memoryview] = field(repr=False)
    scale: Callable[[], Array] | None = field(default=None, repr=False)  # as stored, before any meaning
    decode: Callable[[], Ternary] | None = field(default=None, repr=False)
    numbers: Callable[[], Array] | None = field(default=None, repr=False)
    heads: int = 0  # of Q and K whose rows the file keeps in pairs, for interleaved RoPE

    @property
    def common(self) -> str:
        """The name under which it is compared with other files."""
        return names.common(self.name)

    @property
    def where(self) -> str:
        return f"{visible(self.file)}, tensor {visible(self.name)!r}"

    def _read(self, call: Callable[[], Any]) -> Any:
        if self.refused:
            raise fault(self.where, self.stored, "a weight that can be used as it is stored", self.refused)
        try:
            found = call()
        except FormatError as error:
            raise FormatError(f"{self.where}: {error}") from None
        if not self.heads or found is None:
            return found
        order = names.deinterleave(self.shape[0], self.heads)
        return found.take(order) if isinstance(found, Ternary) else found[order]

    def ternary(self) -> Ternary:
        """Codes and scales, with as few scales as say the same; an error where the weight is not ternary."""
        if self.refused or (self.decode is None and (self.numbers is None or len(self.shape) != 2)):
            raise fault(self.where, self.stored, "a ternary layout", self.refused or "It is no ternary matrix.")
        found: Ternary | None
        if self.decode is not None:
            found = self._read(self.decode)
        else:
            read = codecs.floats.decode if self.role == "master" else codecs.floats.exact
            found = self._read(lambda: read(self.numbers()))  # type: ignore[misc]
        if found is None:
            raise fault(self.where, "dense weights", "ternary ones (0 and ±s)", NOT_TRAINED)
        return found.simplified()

    def find_ternary(self) -> Ternary | None:
        """As ternary(); None for numbers that are not ternary and need not be."""
        if self.role == "plain":
            return None
        if self.role != "maybe":
            return self.ternary()
        found: Ternary | None = self._read(lambda: codecs.floats.exact(self.numbers()))  # type: ignore[misc]
        return found.simplified() if found is not None else None

    def array(self) -> Array:
        """The numbers in the dtype they are stored in; fp32 for ternary and quantised ones."""
        if self.numbers is not None:
            found: Array = self._read(self.numbers)
            return found
        return self.ternary().dense()

    def float32(self) -> Array:
        """The numbers in fp32."""
        return self.array().astype(np.float32, copy=False)


NOT_TRAINED = (
    "This network was not trained to be ternary; rounding it loses its meaning. Train it so first, or say ternarise=True"
    " (--ternarise) to round it all the same."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelFile:
    """An opened model."""

    path: Path
    container: str  # "gguf" or "safetensors"
    entries: dict[str, Entry]
    metadata: Mapping[str, Any]  # GGUF's keys, or the notes of a safetensors file
    config: dict[str, Any]  # of Hugging Face; empty when there is none
    arch: names.Arch | None
    beliefs: tuple[str, ...]  # what was decided, and why
    gguf: gguf.GgufFile | None = field(default=None, repr=False)
    inverted: bool | None = None  # weight_scale divides
    refused: str = ""  # why nothing can be computed with it, or written from it

    def refuse(self, reason: str) -> ModelFile:
        """The same model, none of whose weights can be read; with no reason, the model itself."""
        if not reason:
            return self
        entries = {name: replace(e, refused=e.refused or reason) for name, e in self.entries.items()}
        return replace(self, entries=entries, refused=reason)

    def check(self) -> None:
        """Raise where the model is one that can only be looked at."""
        if self.refused:
            raise FormatError(f"{visible(self.path.name)}: {self.refused}")

    @property
    def nbytes(self) -> int:
        return sum(e.nbytes for e in self.entries.values())

    @property
    def folder(self) -> Path:
        """Where its side files are."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def named(self) -> dict[str, Entry]:
        """Entries by their common names."""
        found: dict[str, Entry] = {}
        for e in self.entries.values():
            if e.common in found:
                raise fault(e.where, f"the same weight as {visible(found[e.common].name)!r}", "one name for one weight")
            found[e.common] = e
        return found


def role_of(name: str, shape: tuple[int, ...], stored: str, masters: bool) -> str:
    """What plain numbers may be: a projection's are masters where the model says so; unknown matrices may be ternary."""
    if len(shape) != 2 or stored not in FLOATS:
        return "plain"
    if names.is_linear(name):
        return "master" if masters else "maybe"
    return "plain" if names.known(name) else "maybe"

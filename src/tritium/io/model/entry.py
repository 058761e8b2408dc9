"""One weight of a model and the model it belongs to: read on demand as ternary, as numbers or as bytes.

Knows nothing of files: readers provide the functions that read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.io import codecs, gguf
from tritium.io.dequantize import READABLE
from tritium.io.model import names
from tritium.io.reader import fault
from tritium.io.safetensors import DTYPES
from tritium.io.ternary import Array, Ternary, as_matrix, rows_at_a_time

FLOATS = {name: DTYPES[name] for name in ("F32", "F16", "BF16", "F64")}


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """One weight. Rows of Q and K are in Hugging Face's order, whatever the order in the file."""

    name: str  # as in the file
    shape: tuple[int, ...]  # of the weight, not of its packed bytes; a stack of experts has three axes
    stored: str
    nbytes: int  # with its scales
    offset: int  # in its file
    file: str
    role: str = "plain"  # or "ternary", "master" (of a ternary weight), "maybe" (floats that may be exactly ternary)
    refused: str = ""  # why it cannot be decoded
    why: str = ""  # reason for its type, where the id is ambiguous
    raw: Callable[[], memoryview] = field(repr=False)
    scale: Callable[[], Array] | None = field(default=None, repr=False)  # as stored, not interpreted
    decode: Callable[[], Ternary] | None = field(default=None, repr=False)
    decode_rows: Callable[[slice], Ternary] | None = field(
        default=None, repr=False
    )  # a few rows alone, in the file's order
    numbers: Callable[[], Array] | None = field(default=None, repr=False)
    some: Callable[[slice], Array] | None = field(default=None, repr=False)  # numbers of a few rows alone
    heads: int = 0  # of Q and K whose rows the file stores in pairs, for interleaved RoPE
    arch: names.Arch | None = field(default=None, repr=False)  # whose names its name is one of
    rows: Array | None = field(
        default=None, repr=False
    )  # the order in which they are Hugging Face's; None: as they are
    columns: Array | None = field(default=None, repr=False)
    shift: float = 0.0  # of a norm: what is added to its weight before it multiplies

    @cached_property
    def common(self) -> str:
        """Return the name by which it is compared with other files."""
        return names.common(self.name, self.arch)

    @property
    def where(self) -> str:
        return f"{visible(self.file)}, tensor {visible(self.name)!r}"

    def _read(self, call: Callable[[], Any], rows: Array | None = None) -> Any:
        """Return what a reader does, its rows and columns in Hugging Face's order; rows: those that are to be taken, if not all."""
        if self.refused:
            raise fault(self.where, self.stored, "a weight that can be used as it is stored", self.refused)
        try:
            value = call()
        except FormatError as error:
            raise FormatError(f"{self.where}: {error}") from None
        if value is None:
            return value
        rows = self._order if rows is None else rows
        if rows is not None:
            value = value.take(rows) if isinstance(value, Ternary) else value[rows]
        if self.columns is not None:
            value = value.take_columns(self.columns) if isinstance(value, Ternary) else value[:, self.columns]
        return value

    @property
    def _order(self) -> Array | None:
        """Return the rows of the file in Hugging Face's order; None where it has that order."""
        return names.deinterleave(self.shape[0], self.heads) if self.heads else self.rows

    def ternary_rows(self, rows: Array) -> Ternary:
        """Return some rows as ternary() does; where the layout keeps rows apart, only the bytes from the first to the last of them
        are read."""
        if self.decode_rows is None or not len(rows):
            return self.ternary().take(rows)
        stored = rows if self._order is None else self._order[rows]
        first, read = int(stored.min()), self.decode_rows
        part: Ternary = self._read(lambda: read(slice(first, int(stored.max()) + 1)), stored - first)
        return part.simplified()

    def ternary(self) -> Ternary:
        """Return codes and scales, with the fewest scales, of a stack as of one matrix; raise where the weight is not ternary."""
        if self.refused or (self.decode is None and (self.numbers is None or len(self.shape) < 2)):
            raise fault(self.where, self.stored, "a ternary layout", self.refused or "It is not a ternary matrix.")
        result: Ternary | None
        if self.decode is not None:
            result = self._read(self.decode)
        else:
            read = codecs.floats.decode if self.role == "master" else codecs.floats.exact
            result = self._read(lambda: read(self.numbers().reshape(as_matrix(self.shape))))  # type: ignore[misc]
        if result is None:
            raise fault(self.where, "dense weights", "ternary ones (0 and ±s)", NOT_TRAINED)
        return result.simplified()

    def find_ternary(self) -> Ternary | None:
        """Return the same as ternary(), but None for numbers that need not be ternary and are not."""
        if self.role == "plain":
            return None
        if self.role != "maybe":
            return self.ternary()
        result: Ternary | None = self._read(lambda: codecs.floats.exact(self.numbers()))  # type: ignore[misc]
        return result.simplified() if result is not None else None

    def array(self) -> Array:
        """Return the numbers in their stored dtype; fp32 for ternary and quantised ones."""
        if self.numbers is not None:
            values: Array = self._read(self.numbers)
            return values
        return self.ternary().dense().reshape(self.shape)

    def chunks(self) -> Iterator[Array]:
        """Yield the numbers of array() as rows of a matrix, a bounded number at a time."""
        n, k = as_matrix(self.shape) if len(self.shape) > 1 else (prod(self.shape), 1)
        if self.role == "ternary" and not self.refused:
            t = self.ternary()
            yield from (t.dense(r) for r in rows_at_a_time(n, k))
        elif self.some is not None and not self.heads and self.rows is None and self.columns is None:
            read = self.some
            for r in rows_at_a_time(n, k):
                part: Array = self._read(lambda r=r: read(r))  # type: ignore[misc]
                yield part
        else:
            rows = self.array().reshape(n, k)
            yield from (rows[r] for r in rows_at_a_time(n, k))

    def float32(self) -> Array:
        """Return the numbers in fp32."""
        return self.array().astype(np.float32, copy=False)


NOT_TRAINED = (
    "This network was not trained to be ternary; rounding it loses its meaning. Train it for that first, or pass ternarise=True"
    " (--ternarise) to round it anyway."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelFile:
    """An opened model."""

    path: Path
    container: str  # "gguf" or "safetensors"
    entries: dict[str, Entry]
    metadata: Mapping[str, Any]  # GGUF's keys, or __metadata__ of a safetensors file
    config: dict[str, Any]  # Hugging Face's config.json; empty where there is none
    arch: names.Arch | None
    beliefs: tuple[str, ...]  # decisions made in reading it, and why
    gguf: gguf.GgufFile | None = field(default=None, repr=False)
    inverted: bool | None = None  # weight_scale divides
    refused: str = ""  # why it can be neither run nor converted

    def refuse(self, reason: str) -> ModelFile:
        """Return the model with all weights marked unreadable for a reason; without a reason, the model itself."""
        if not reason:
            return self
        entries = {name: replace(e, refused=e.refused or reason) for name, e in self.entries.items()}
        return replace(self, entries=entries, refused=reason)

    def check(self) -> None:
        """Raise where the model can only be inspected."""
        if self.refused:
            raise FormatError(f"{visible(self.path.name)}: {self.refused}")

    @property
    def nbytes(self) -> int:
        return sum(e.nbytes for e in self.entries.values())

    @property
    def folder(self) -> Path:
        """Return the folder of its side files."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def named(self) -> dict[str, Entry]:
        """Return the entries by their common names."""
        result: dict[str, Entry] = {}
        for e in self.entries.values():
            if e.common in result:
                raise fault(
                    e.where, f"the same weight as {visible(result[e.common].name)!r}", "one name for one weight"
                )
            result[e.common] = e
        return result


def role_of(
    name: str, shape: tuple[int, ...], stored: str, masters: bool, arch: names.Arch | None = None
) -> str:  # fmt: skip
    """Return the role of plain or dequantised numbers: a projection's are masters if `masters` is set; unknown matrices of
    floats may be ternary."""
    if len(shape) != 2 or (stored not in FLOATS and stored not in READABLE):
        return "plain"
    if names.is_linear(name, arch):
        return "master" if masters else "maybe"
    return "plain" if names.known(name, arch) or stored in READABLE else "maybe"

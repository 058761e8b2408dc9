"""Tensors in a safetensors file: save them under names, load them over the mapped bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tritium import backends, dtype as dt
from tritium.arguments import checked
from tritium.errors import ArgumentError, DTypeError, FormatError, shown
from tritium.escape import visible
from tritium.interop import from_numpy, is_foreign, read_tensor
from tritium.io import safetensors
from tritium.io.reader import fault, map_file
from tritium.io.stream import Piece, appearing
from tritium.tensor import Tensor

PLACES = safetensors.MAX_DIMS


class Tensors(dict[str, Tensor]):
    """Tensors by name, and the metadata of the file they come from: text by key."""

    def __init__(self, tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = (), metadata: Any = ()) -> None:
        super().__init__(tensors)
        self.metadata: dict[str, str] = dict(metadata)


@checked
def save(
    path: str | os.PathLike[str],
    tensors: Any,
    *,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = True,
) -> None:
    """Write tensors by name to a safetensors file, which other libraries read too.

    The file appears in one step: a reader sees all of the old one or all of the new one, also when writing fails.
    """
    if not isinstance(tensors, Mapping):
        raise ArgumentError(
            f"save: a dict of tensors by name is needed, given {shown(tensors)}; write save({str(path)!r}, {{'x': x}})."
        )
    notes = _texts(metadata or {})
    pieces = [_piece(name, value) for name, value in tensors.items()]
    for what, count, most in (
        ("tensors", len(pieces), safetensors.MAX_TENSORS),
        ("notes", len(notes), safetensors.MAX_NOTES),
    ):
        if count > most:
            raise ArgumentError(f"save: {count} {what} are too many for one file; at most {most} are read again.")
    # Wide elements first: then every tensor begins at a multiple of its element, and is mapped without a copy.
    pieces.sort(key=lambda p: -safetensors.DTYPES[p.type].itemsize)
    with appearing(Path(path), folder=False, overwrite=overwrite) as temporary, open(temporary, "wb") as file:
        safetensors.write(file, notes, pieces)


def _texts(metadata: Mapping[str, str]) -> dict[str, str]:
    for key, value in metadata.items():
        _check_text(key, "a key of the metadata")
        _check_text(value, f"the metadata of {key!r}")
    return dict(metadata)


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"save: {what} holds a lone surrogate, which no file stores; give other text.") from None


def _piece(name: Any, value: Any) -> Piece:
    """Return the piece of a file that holds a tensor."""
    if not isinstance(name, str) or name == "__metadata__":
        raise ArgumentError(f"save: a name is a string other than '__metadata__', given {shown(name)}.")
    _check_text(name, "a name")
    if not isinstance(value, (Tensor, np.ndarray, np.generic, bool, int, float)) and not is_foreign(value):
        raise ArgumentError(f"save: {name!r} must be a tensor or an array, given {shown(value)}.")
    x = read_tensor(value, f"save: {name!r}")
    x._memory(f"save: {name!r}")
    if x.dtype.is_packed:
        raise DTypeError(
            f"save: {name!r} is {x.spec}, and the format has no packed dtypes; save its bytes with tritium.nn.as_bytes(…), or its "
            f"integers with repack(x, 'i8')."
        )
    if x.ndim > PLACES:
        raise ArgumentError(f"save: {name!r} has {x.ndim} dimensions, a file takes at most {PLACES}; reshape it first.")
    kind = safetensors.NAMES[np.dtype(x.dtype.numpy)]
    return Piece(name, x.shape, kind, x.nbytes, lambda: [np.ascontiguousarray(x._host())])


@checked
def load_tensors(path: str | os.PathLike[str], *, device: Any = None, mapped: bool = True) -> Tensors:
    """Read the tensors of a safetensors file by name; `.metadata` of the result is the text stored with them.

    On the CPU they are read-only views of the mapped file: nothing is read before it is used, and clone() makes a copy that can
    be written. With mapped=False the file is read into memory at once, so that it may be cut short afterwards. A file whose
    header, sizes or bools are not as the format says is refused.
    """
    there = None if device is None else backends.device(device)
    file = safetensors.parse(map_file(Path(path), mapped))
    out = Tensors(metadata=file.metadata)
    for name, t in file.tensors.items():
        part = f"{visible(Path(path).name)}: tensor {visible(name)!r}"
        data = file.array(name)
        try:
            dt.dtype(data.dtype)
        except DTypeError:
            raise FormatError(f"{part} is {t.dtype}, which is no dtype here; store it as F16 or BF16.") from None
        if data.dtype == np.bool_ and data.size and data.view(np.uint8).max() > 1:
            raise fault(part, "a byte above 1 among its bools", "0 or 1")
        out[name] = from_numpy(data, device=there or "cpu")
    return out

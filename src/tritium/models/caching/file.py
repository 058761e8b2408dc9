"""The contents of a slot as a file: its tokens, their keys and values, and the states of recurrent layers, in a safetensors file.

A file may come from anyone: its size is bounded by what a slot of this session can hold before a byte is read, every size in it
is checked against the session's own, and a checksum of each part before anything is written to a slot.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.io import safetensors
from tritium.io.reader import fault, read_side
from tritium.io.stream import Piece, appearing
from tritium.machine.facts import sealed, unsealed
from tritium.models.caching.memory import Bytes, SlotMemory

FORMAT = "tritium session"
SCHEMA = 1
DESCRIPTION = "session"  # the part that holds the JSON text
TOKENS = "tokens"
MAX_DESCRIPTION = 1 << 20  # bytes
REMEDY = "Save the session again with this model, or read its text again."


class SavedSlot(NamedTuple):
    """The contents of a slot when it was saved."""

    tokens: list[int]
    parts: list[Bytes]  # as `SlotMemory.read` returns them
    states: list[Bytes]


def write_slot(path: Path, memory: SlotMemory, slot: int, tokens: Sequence[int], *, overwrite: bool) -> None:
    """Write the tokens of a slot and their memory."""
    arrays: dict[str, np.ndarray[Any, Any]] = {TOKENS: np.asarray(tokens, np.int64)}
    arrays |= {f"tokens.{i}": np.ascontiguousarray(p) for i, p in enumerate(memory.read(slot, 0, len(tokens)))}
    arrays |= {f"state.{i}": part for i, part in enumerate(memory.read_state(slot))}
    body = {"tokens": len(tokens), "checksums": {name: _checksum(data) for name, data in arrays.items()}}
    text = json.dumps(sealed(SCHEMA, DESCRIPTION, body)).encode()
    arrays[DESCRIPTION] = np.frombuffer(text, np.uint8)
    pieces = [
        Piece(name, data.shape, safetensors.NAMES[data.dtype], data.nbytes, lambda data=data: [data])  # type: ignore[misc]
        for name, data in arrays.items()
    ]
    with appearing(path, folder=False, overwrite=overwrite) as temporary, open(temporary, "wb") as file:
        safetensors.write(file, {"format": FORMAT}, pieces)


def read_slot(path: Path, memory: SlotMemory, capacity: int) -> SavedSlot:
    """Read what `write_slot` wrote, for a slot of so many tokens; raise FormatError and nothing else for any other bytes."""
    where = visible(path.name)
    most = capacity * (memory.token_bytes + 8) + memory.state_bytes + 2 * MAX_DESCRIPTION
    file = safetensors.parse(read_side(path, most, f"A slot of this session holds {capacity} tokens."))
    body = _description(file, where)
    count, checksums = body.get("tokens"), body.get("checksums")
    if type(count) is not int or not 0 <= count <= capacity or not isinstance(checksums, dict):
        raise fault(where, f"{count!r:.40} tokens", f"0 to {capacity}, and a checksum of each part", REMEDY)
    shapes: dict[str, tuple[int, ...]] = {TOKENS: (count,)}
    shapes |= {f"tokens.{i}": (heads, count, width) for i, (heads, width) in enumerate(memory.token_shapes)}
    shapes |= {f"state.{i}": (size,) for i, size in enumerate(memory.state_sizes)}
    stored = {name: t.shape for name, t in file.tensors.items() if name != DESCRIPTION}
    if stored != shapes:
        raise fault(where, _difference(stored, shapes), _difference(shapes, stored), REMEDY)
    for name in shapes:
        dtype = "I64" if name == TOKENS else "U8"
        if file.tensors[name].dtype != dtype:
            raise fault(f"{where}: {name}", file.tensors[name].dtype, dtype, REMEDY)
        if checksums.get(name) != zlib.crc32(file.data(name)):
            raise fault(f"{where}: {name}", "bytes that do not match their checksum", "the bytes that were saved")
    arrays = {name: file.array(name) for name in shapes}
    parts = [arrays[f"tokens.{i}"] for i in range(len(memory.token_shapes))]
    states = [arrays[f"state.{i}"] for i in range(len(memory.state_sizes))]
    return SavedSlot(arrays[TOKENS].tolist(), parts, states)


def _description(file: safetensors.SafetensorsFile, where: str) -> dict[str, Any]:
    entry = file.tensors.get(DESCRIPTION)
    if file.metadata.get("format") != FORMAT or entry is None or entry.dtype != "U8":
        raise fault(where, "no session", f"a file of the format {FORMAT!r}", "Save one with session.save(…).")
    if entry.nbytes > MAX_DESCRIPTION:
        raise fault(where, f"a description of {entry.nbytes} bytes", f"at most {MAX_DESCRIPTION}")
    try:
        return unsealed(json.loads(str(file.data(DESCRIPTION), "ascii")), SCHEMA, DESCRIPTION)
    except (ValueError, RecursionError) as error:
        reason = str(error) if type(error) is ValueError else "it is not JSON"
        raise FormatError(f"{where}: the session cannot be used: {reason}. {REMEDY}") from None


def _difference(some: dict[str, tuple[int, ...]], others: dict[str, tuple[int, ...]]) -> str:
    """Return the first part that others have not or have with another shape."""
    name = next((n for n, shape in some.items() if others.get(n) != shape), None)
    return "no more parts" if name is None else f"{visible(name)} of shape {list(some[name])}"


def _checksum(data: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(data.reshape(-1).view(np.uint8).data)

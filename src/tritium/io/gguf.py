"""The GGUF container, read from any buffer and written to any stream; tensors are views, metadata is preserved byte for byte.

Knows nothing of models: it does not interpret names, architectures or weights.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from tritium.escape import visible
from tritium.io import ggml
from tritium.io.reader import Buffer, Reader, align, disjoint, fault
from tritium.io.stream import Piece, Wrote, pour

MAGIC = b"GGUF"
MAX_PAIRS, MAX_TENSORS = (
    1 << 12,
    1 << 13,
)  # the largest models have fewer than 100 keys and 2,000 tensors: experts are stacked
MAX_STRINGS = 1 << 20
MAX_KEY, MAX_NAME = (1 << 16) - 1, 255
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 16
STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
SIZES = {kind: struct.calcsize("<" + code) for kind, code in NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class Value:
    """One metadata value: its bytes as in the file, from the type on, and their type."""

    raw: memoryview
    kind: int
    item: int = -1  # the kind of an array's items
    count: int = 1

    def read(self) -> Any:
        """Return the value in Python; arrays are lists."""
        if self.kind == STRING:
            return _text(self.raw[12:])
        if self.kind != ARRAY:
            value = struct.unpack_from("<" + NUMBERS[self.kind], self.raw, 4)[0]
            return bool(value) if self.kind == BOOL else value
        if self.item == STRING:
            return list(self._strings())
        numbers = np.frombuffer(self.raw[16:], "?" if self.item == BOOL else "<" + NUMBERS[self.item])
        return numbers.tolist()

    def _strings(self) -> Iterator[str]:
        position = 16
        for _ in range(self.count):
            (n,) = struct.unpack_from("<Q", self.raw, position)
            yield _text(self.raw[position + 8 : position + 8 + n])
            position += 8 + n


def _text(raw: memoryview) -> str:
    """Decode a string value, which may hold any bytes (they are copied unchanged); only keys and names must be UTF-8."""
    return str(raw, "utf-8", "replace")


class Metadata(Mapping[str, Any]):
    """Keys and values; a value is decoded from its bytes on access."""

    def __init__(self, values: dict[str, Value]) -> None:
        self.values_by_key = values

    def __getitem__(self, key: str) -> Any:
        return self.values_by_key[key].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_key)

    def __len__(self) -> int:
        return len(self.values_by_key)

    def __contains__(self, key: object) -> bool:
        return key in self.values_by_key


def scalar(metadata: Mapping[str, Any], key: str) -> Any:
    """Return a value that should be one number or string; None where it is absent or a list (which is not read)."""
    if isinstance(metadata, Metadata):
        value = metadata.values_by_key.get(key)
        return None if value is None or value.kind == ARRAY else value.read()
    item = metadata.get(key)
    return None if isinstance(item, list) else item


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file; shape as NumPy has it (K last), offset from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: ggml.Type
    offset: int
    nbytes: int
    why: str = ""


@dataclass(frozen=True)
class GgufFile:
    """The contents of a GGUF file. None of the tensor data has been read."""

    view: memoryview
    version: int
    alignment: int
    metadata: Metadata
    tensors: dict[str, GgufTensor]

    def data(self, name: str) -> memoryview:
        """Return the bytes of a tensor, not copied."""
        t = self.tensors[name]
        return self.view[t.offset : t.offset + t.nbytes]


Tensor = GgufTensor  # public names of both in tt.io.gguf
File = GgufFile


def parse(buffer: Buffer) -> GgufFile:
    """Parse the header of a GGUF file and check all of it; raise FormatError and nothing else."""
    r = Reader(buffer, "GGUF")
    _magic(r)
    version = _version(r)
    n_tensors = r.count(r.u64("tensor count"), 1, "tensor count", MAX_TENSORS)
    n_pairs = r.count(r.u64("metadata count"), 13, "metadata count", MAX_PAIRS)
    values: dict[str, Value] = {}
    for i in range(n_pairs):
        key = r.text(f"key {i}", MAX_KEY)
        if key in values:
            raise fault("GGUF metadata", f"the key {visible(key)!r} twice", "each key once")
        values[key] = _value(r, visible(key))
    metadata = Metadata(values)
    alignment = _alignment(metadata)
    r.count(n_tensors, 24, "tensor count")
    tensors = _tensors(r, n_tensors, metadata, alignment)
    return GgufFile(r.view, version, alignment, metadata, tensors)


def _magic(r: Reader) -> None:
    magic = bytes(r.take(4, "magic"))
    if magic != MAGIC:
        raise fault("GGUF magic", repr(magic), repr(MAGIC), "This is not a GGUF file.")


def _version(r: Reader) -> int:
    version = r.u32("version")
    if version in (2, 3):
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, 2, 3):
        raise fault(
            "GGUF version", "a big-endian file", "a little-endian one", "Convert it with gguf's convert_endian script."
        )
    raise fault(
        "GGUF version", str(version), "2 or 3", "Version 1 was short-lived: convert the original checkpoint again."
    )


def _value(r: Reader, key: str) -> Value:
    start, part = r.position, f"value of {key!r}"
    kind, item, count = r.u32(part), -1, 1
    if kind == STRING:
        r.take(r.count(r.u64(part), 1, part, 1 << 24), part)
    elif kind == ARRAY:
        item, count = r.u32(part), r.u64(part)
        if item == STRING:
            _skip_strings(r, r.count(count, 8, part, MAX_STRINGS), part)
        elif item in NUMBERS:
            body = r.take(r.count(count, SIZES[item], part) * SIZES[item], part)
            if item == BOOL and count and np.frombuffer(body, np.uint8).max() > 1:
                raise fault(f"GGUF {part}", "a truth value other than 0 and 1", "0 or 1")
        else:
            raise fault(
                f"GGUF {part}", f"an array of type {item}", "numbers, truth values or strings (0 to 8, 10 to 12)"
            )
    elif kind in NUMBERS:
        body = r.take(SIZES[kind], part)
        if kind == BOOL and body[0] > 1:
            raise fault(f"GGUF {part}", f"the truth value {body[0]}", "0 or 1")
    else:
        raise fault(f"GGUF {part}", f"type {kind}", "0 to 12")
    return Value(r.view[start : r.position], kind, item, count)


def _skip_strings(r: Reader, count: int, part: str) -> None:
    """Skip the strings of an array without decoding them: a vocabulary has hundreds of thousands."""
    view, position, end, length = r.view, r.position, r.end, struct.Struct("<Q").unpack_from
    for i in range(count):
        if end - position < 8 or length(view, position)[0] > min(end - position - 8, 1 << 24):
            raise fault(
                f"GGUF {part}, string {i} at byte {position}",
                f"{end - position} bytes left",
                "its length and that many bytes",
            )
        position += 8 + length(view, position)[0]
    r.position = position


def _alignment(metadata: Metadata) -> int:
    value = metadata.values_by_key.get("general.alignment")
    if value is None:
        return 32
    alignment = value.read() if value.kind in (4, 10) else f"a value of type {value.kind}"
    good = (
        isinstance(alignment, int)
        and alignment > 0
        and alignment & (alignment - 1) == 0
        and 8 <= alignment <= MAX_ALIGNMENT
    )
    if not good:
        raise fault("GGUF general.alignment", visible(repr(alignment)), f"a power of two from 8 to {MAX_ALIGNMENT}")
    return int(alignment)


def _tensors(r: Reader, count: int, metadata: Metadata, alignment: int) -> dict[str, GgufTensor]:
    listed: dict[str, tuple[list[int], int, int]] = {}
    for i in range(count):
        name = r.text(f"name of tensor {i}", MAX_NAME)
        part = f"tensor {visible(name)!r}"
        if name in listed:
            raise fault("GGUF tensors", f"the name {visible(name)!r} twice", "each name once")
        n_dims = r.u32(part)
        if n_dims > MAX_DIMS:
            raise fault(f"GGUF {part}", f"{n_dims} dimensions", f"at most {MAX_DIMS}")
        dims = [r.u64(part) for _ in range(n_dims)]
        type_id, offset = r.u32(part), r.u64(part)
        if offset % alignment:
            raise fault(f"GGUF {part}", f"offset {offset}", f"a multiple of the alignment, {alignment}")
        listed[name] = dims, type_id, offset
    data = align(r.position, alignment)
    room = max(r.end - data, 0)
    arch = scalar(metadata, "general.architecture")
    arch = arch if isinstance(arch, str) else ""
    starts = sorted({offset for _, _, offset in listed.values()})
    out = {}
    for name, (dims, type_id, offset) in listed.items():
        after = bisect_right(starts, offset)
        span = (starts[after] if after < len(starts) else room) - offset
        part = f"GGUF tensor {visible(name)!r}"
        choice = ggml.resolve(type_id, dims, arch, span, alignment, part)
        out[name] = GgufTensor(name, tuple(reversed(dims)), choice.type, data + offset, choice.nbytes, choice.why)
    disjoint(((t.offset, t.nbytes, t.name) for t in out.values()), r.end, "GGUF")
    return out


# ---- writing


def string(text: str) -> bytes:
    """Encode a string value."""
    return struct.pack("<I", STRING) + _string(text)


def _string(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise fault("text for GGUF", "a lone surrogate in it", "characters that UTF-8 has") from None
    return struct.pack("<Q", len(data)) + data


def number(kind: str, value: Any) -> bytes:
    """Encode a number value; `kind` is u8 … f64 or bool."""
    code = KINDS[kind]
    return struct.pack("<I" + NUMBERS[code], code, value)


def array(kind: str, values: Iterable[Any]) -> bytes:
    """Encode an array value; `kind` is str, or that of a number."""
    listed = list(values)
    code = STRING if kind == "str" else KINDS[kind]
    head = struct.pack("<IIQ", ARRAY, code, len(listed))
    if code == STRING:
        return head + b"".join(map(_string, listed))
    return head + struct.pack(f"<{len(listed)}{NUMBERS[code]}", *listed)


KINDS = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "u64": 10, "i64": 11, "f64": 12}


def write(
    file: BinaryIO, metadata: Mapping[str, bytes | memoryview], pieces: list[Piece], **options: Any
) -> list[Wrote]:
    """Write a version 3 file: metadata values as raw bytes (see string, number, array), then the tensors, one at a time."""
    raw = metadata.get("general.alignment")
    alignment = struct.unpack_from("<I", raw, 4)[0] if raw is not None else 32
    head = [MAGIC, struct.pack("<IQQ", 3, len(pieces), len(metadata))]
    for key, value in metadata.items():
        head += [_string(key), bytes(value)]
    offset = 0
    for p in pieces:
        dims = tuple(reversed(p.shape))
        head += [_string(p.name), struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, ggml.BY_NAME[p.type].id, offset)]
        offset = align(offset + p.nbytes, alignment)
    start = b"".join(head)
    file.write(start + bytes(align(len(start), alignment) - len(start)))
    return pour(file, pieces, alignment=alignment, **options)

"""The safetensors container, read from any buffer and written to any stream; tensors are views.

The header has a small parser of its own: no object is built that is not part of a safetensors header.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from tritium.escape import visible
from tritium.io.reader import Buffer, Reader, disjoint, fault, product
from tritium.io.stream import Piece, Wrote, pour

MAX_HEADER = 1 << 23  # bytes; 16,384 tensors take about 2 MB
MAX_TENSORS, MAX_NOTES = 1 << 14, 1 << 12
MAX_DIMS = 8
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_), "U8": np.dtype("u1"), "I8": np.dtype("i1"), "U16": np.dtype("<u2"), "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"), "I32": np.dtype("<i4"), "U64": np.dtype("<u8"), "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16), "F32": np.dtype("<f4"), "F64": np.dtype("<f8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """A tensor of the file; offset from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class SafetensorsFile:
    """The contents of a safetensors file. None of the tensor data has been read."""

    view: memoryview
    metadata: dict[str, str]
    tensors: dict[str, SafetensorsTensor]

    def data(self, name: str) -> memoryview:
        """Return the bytes of a tensor, not copied."""
        t = self.tensors[name]
        return self.view[t.offset : t.offset + t.nbytes]

    def array(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """Return a tensor as a NumPy array over the file's bytes."""
        t = self.tensors[name]
        raw = np.frombuffer(self.data(name), np.uint8) if t.nbytes else np.empty(0, np.uint8)
        return raw.view(DTYPES[t.dtype]).reshape(t.shape)


Tensor = SafetensorsTensor  # public names of both in tt.io.safetensors
File = SafetensorsFile


def parse(buffer: Buffer) -> SafetensorsFile:
    """Parse the header of a safetensors file and check all of it; raise FormatError and nothing else."""
    r = Reader(buffer, "safetensors")
    size = r.count(r.u64("header length"), 1, "header length", MAX_HEADER)
    start = r.position + size
    try:
        text = str(r.take(size, "header"), "utf-8")
    except UnicodeDecodeError as error:
        raise fault("safetensors header", f"byte {error.start} that is not UTF-8", "JSON in UTF-8") from None
    metadata, headers = _Header(text).read()
    tensors = {}
    for name, (dtype, shape, begin, end) in headers.items():
        part = f"safetensors tensor {visible(name)!r}"
        needed = product(shape, part) * DTYPES[dtype].itemsize
        if end - begin != needed:
            raise fault(part, f"{end - begin} bytes", f"{needed} for {dtype}{list(shape)}")
        tensors[name] = SafetensorsTensor(name, dtype, shape, start + begin, needed)
    disjoint(((t.offset, t.nbytes, t.name) for t in tensors.values()), r.end, "safetensors")
    unnamed = r.end - start - sum(t.nbytes for t in tensors.values())
    if unnamed:
        raise fault(
            "safetensors data", f"{unnamed} bytes that belong to no tensor", "every byte named, as the format says"
        )
    return SafetensorsFile(r.view, metadata, tensors)


_SPACES = frozenset(" \t\r\n")
_SPACE = re.compile(r"[ \t\r\n]*")
_INTEGER = re.compile(r"[ \t\r\n]*(0|[1-9][0-9]{0,18})(?![0-9.eE])")
# A tensor as every writer known writes it; whatever else is parsed sign by sign, which also finds the place of a fault.
_USUAL = re.compile(
    r'[ \t\r\n]*\{[ \t\r\n]*"dtype"[ \t\r\n]*:[ \t\r\n]*"([A-Z0-9_]+)"[ \t\r\n]*,[ \t\r\n]*"shape"[ \t\r\n]*:[ \t\r\n]*'
    r'\[((?:0|[1-9][0-9]{0,18})(?:,[ ]?(?:0|[1-9][0-9]{0,18})){0,7}|)\][ \t\r\n]*,[ \t\r\n]*"data_offsets"[ \t\r\n]*:[ \t\r\n]*'
    r"\[(0|[1-9][0-9]{0,18}),[ ]?(0|[1-9][0-9]{0,18})\][ \t\r\n]*\}"
)


class _TensorHeader(NamedTuple):
    """One tensor's entry in the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class _Header:
    """A parser of {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {"key": "text"}}."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def fail(self, needed: str) -> Exception:
        excerpt = self.text[self.position : self.position + 20]
        return fault(
            f"safetensors header at character {self.position}", repr(excerpt) if excerpt else "its end", needed
        )

    def space(self) -> None:
        if self.text[self.position : self.position + 1] in _SPACES:
            self.position = _SPACE.match(self.text, self.position).end()  # type: ignore[union-attr]

    def sign(self, *expected: str) -> str:
        character = self.text[self.position : self.position + 1]
        if character in _SPACES:
            self.space()
            character = self.text[self.position : self.position + 1]
        if character not in expected:
            raise self.fail(" or ".join(map(repr, expected)))
        self.position += 1
        return character

    def word(self) -> str:
        self.sign('"')
        try:
            string, self.position = scanstring(self.text, self.position, True)
        except ValueError:
            raise self.fail("a JSON string") from None
        if not string.isascii() and any("\ud800" <= c <= "\udfff" for c in string):
            raise self.fail("a string without lone surrogates")
        return str(string)

    def integers(self, most: int) -> tuple[int, ...]:
        self.sign("[")
        numbers: list[int] = []
        self.space()
        if self.text.startswith("]", self.position):
            self.position += 1
            return ()
        while True:
            number = _INTEGER.match(self.text, self.position)
            if number is None or len(numbers) == most:
                raise self.fail(f"a list of at most {most} whole numbers, 0 or more")
            numbers.append(int(number[1]))
            self.position = number.end()
            if self.sign(",", "]") == "]":
                return tuple(numbers)

    def keys(self) -> Any:
        """Yield the keys of an object; the caller must parse each value before it requests the next key."""
        self.sign("{")
        self.space()
        if self.text.startswith("}", self.position):
            self.position += 1
            return
        seen: set[str] = set()
        while True:
            key = self.word()
            if key in seen:
                raise fault("safetensors header", f"the key {visible(key)!r} twice", "each key once")
            seen.add(key)
            self.sign(":")
            yield key
            if self.sign(",", "}") == "}":
                return

    def read(self) -> tuple[dict[str, str], dict[str, _TensorHeader]]:
        notes: dict[str, str] = {}
        headers: dict[str, _TensorHeader] = {}
        for name in self.keys():
            if name == "__metadata__":
                for key in self.keys():
                    notes[key] = self.word()
                    if len(notes) > MAX_NOTES:
                        raise self.fail(f"at most {MAX_NOTES} metadata entries")
                continue
            headers[name] = self.tensor(name)
            if len(headers) > MAX_TENSORS:
                raise self.fail(f"at most {MAX_TENSORS} tensors")
        self.space()
        if self.position != len(self.text):
            raise self.fail("nothing but spaces after the header")
        return notes, headers

    def tensor(self, name: str) -> _TensorHeader:
        usual = _USUAL.match(self.text, self.position)
        if usual is not None and usual[1] in DTYPES and int(usual[3]) <= int(usual[4]):
            self.position = usual.end()
            sizes = tuple(map(int, usual[2].split(","))) if usual[2] else ()
            return _TensorHeader(usual[1], sizes, int(usual[3]), int(usual[4]))
        dtype, shape, span = "", None, None
        part = f"safetensors tensor {visible(name)!r}"
        for key in self.keys():
            if key == "dtype":
                dtype = self.word()
            elif key == "shape":
                shape = self.integers(MAX_DIMS)
            elif key == "data_offsets":
                span = self.integers(2)
            else:
                raise fault(part, f"the key {visible(key)!r}", "dtype, shape and data_offsets")
        if dtype not in DTYPES:
            raise fault(part, f"dtype {visible(dtype)!r}", f"one of {', '.join(DTYPES)}", "Store it as one of these.")
        if shape is None or span is None or len(span) != 2 or span[0] > span[1]:
            raise fault(part, f"shape {shape} and data_offsets {span}", "both, with offsets [begin, end] in order")
        return _TensorHeader(dtype, shape, span[0], span[1])


# ---- writing


def write(file: BinaryIO, metadata: Mapping[str, str], pieces: list[Piece], **options: Any) -> list[Wrote]:
    """Write a safetensors file; the type of a piece is a dtype name (F32, U8 …). Data begins at a multiple of 64 bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for p in pieces:
        header[p.name] = {"dtype": p.type, "shape": list(p.shape), "data_offsets": [offset, offset + p.nbytes]}
        offset += p.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % 64)
    file.write(struct.pack("<Q", len(text)) + text)
    return pour(file, pieces, **options)

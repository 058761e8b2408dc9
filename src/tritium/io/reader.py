"""A cursor over untrusted bytes: every count is checked against the remaining bytes before anything is allocated."""

from __future__ import annotations

import json
import mmap
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tritium.errors import FormatError
from tritium.escape import visible

Buffer = bytes | bytearray | memoryview | mmap.mmap

MAX_STRING = 1 << 24  # bytes; a str may take four times as much
MAX_DIMENSION = (1 << 63) - 1
EMPTY = 1 << 20  # the largest product of the other sides of a tensor without values
DAMAGED = "The file is damaged or was cut short: fetch it again."


def fault(part: str, actual: str, needed: str, remedy: str = DAMAGED) -> FormatError:
    """Return the error for bad input: which part, what it is, what was needed, what to do."""
    return FormatError(f"{part}: found {actual}, needed {needed}. {remedy}")


def product(dims: Iterable[int], part: str) -> int:
    """Return the number of elements; raise for negative sizes and counts no machine can address."""
    total, empty = 1, False
    for d in dims:
        if not 0 <= d <= MAX_DIMENSION:
            raise fault(part, f"a dimension of {d}", f"0 to {MAX_DIMENSION}")
        empty |= d == 0
        total *= d or 1
        if total > MAX_DIMENSION:
            raise fault(part, f"dimensions whose product exceeds {MAX_DIMENSION}", "a product below 2**63")
    if empty and total > EMPTY:
        raise fault(
            part, f"an empty tensor with sides of {total} in all", f"at most {EMPTY}, since no data confirms them"
        )
    return 0 if empty else total


def align(n: int, to: int) -> int:
    """Return n rounded up to a multiple of `to`."""
    return -(-n // to) * to


_LAYOUTS = {code: struct.Struct("<" + code) for code in "IQ"}  # of one number


class Reader:
    """A position in a buffer that cannot be moved past the end."""

    __slots__ = ("end", "position", "view", "what")

    def __init__(self, buffer: Buffer, what: str) -> None:
        self.view = memoryview(buffer).cast("B")
        self.position, self.end, self.what = 0, len(self.view), what

    @property
    def remaining(self) -> int:
        return self.end - self.position

    def need(self, n: int, part: str) -> None:
        """Raise unless n more bytes remain."""
        if not 0 <= n <= self.end - self.position:
            raise fault(
                f"{self.what}, {part} at byte {self.position}", f"{self.remaining} bytes left", f"{n} bytes", DAMAGED
            )

    def count(self, n: int, each: int, part: str, most: int = MAX_DIMENSION) -> int:
        """Check a count read from the file: n items of at least `each` bytes must fit into the remaining bytes."""
        if n < 0 or n > most or n > self.remaining // each:
            room = min(self.remaining // each, most)
            raise fault(f"{self.what}, {part} at byte {self.position}", f"a count of {n}", f"at most {room}")
        return n

    def take(self, n: int, part: str) -> memoryview:
        """Read the next n bytes, not copied."""
        self.need(n, part)
        self.position += n
        return self.view[self.position - n : self.position]

    def number(self, code: str, part: str) -> Any:
        """Read one little-endian number; `code` as in the struct module."""
        layout, position = _LAYOUTS[code], self.position
        if layout.size > self.end - position:
            self.need(layout.size, part)  # raises
        self.position = position + layout.size
        return layout.unpack_from(self.view, position)[0]

    def u32(self, part: str) -> int:
        return int(self.number("I", part))

    def u64(self, part: str) -> int:
        return int(self.number("Q", part))

    def text(self, part: str, most: int = MAX_STRING) -> str:
        """Read a UTF-8 string after its length in 8 bytes."""
        n = self.count(self.u64(part), 1, f"length of {part}", most)
        try:
            return str(self.take(n, part), "utf-8")
        except UnicodeDecodeError as error:
            raise fault(f"{self.what}, {part}", f"byte {error.start} that is not UTF-8", "text in UTF-8") from None


def disjoint(spans: Iterable[tuple[int, int, str]], size: int, what: str) -> None:
    """Raise unless the spans (start, length, name) are within `size` bytes and do not overlap."""
    end, before = 0, ""
    for start, length, name in sorted(spans):
        if start < 0 or length < 0 or start + length > size:
            raise fault(
                f"{what}, tensor {visible(name)!r}",
                f"data at bytes {start} to {start + length}",
                f"data within the {size} bytes there are",
            )
        if length == 0:
            continue
        if start < end:
            raise fault(
                f"{what}, tensor {visible(name)!r}",
                f"data beginning at byte {start}, inside that of {visible(before)!r}",
                f"a start at byte {end} or later",
            )
        end, before = start + length, name


# ---- files


def map_file(path: Path, mapped: bool = True) -> memoryview:
    """Map the bytes of a file read-only; an empty file is an empty view. Not `mapped`: read them into memory.

    A file that is cut short while it is mapped ends the process (SIGBUS) at the next access; bytes in memory stay.
    """
    with _opened(path) as (file, size):
        if not mapped:
            return _read(file, size, path)
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")


def read_start(path: Path, most: int) -> bytes:
    """Read the first bytes of a file, at most so many."""
    with _opened(path) as (file, _):
        return file.read(most)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file and yield it with its size; the system's errors become FormatError."""
    try:
        # Non-blocking: opening a pipe without a writer would wait for ever.
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FormatError(f"{visible(path.name)} is a pipe, a device or a folder; a regular file is needed.")
            yield file, status.st_size
    except (OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        why = getattr(error, "strerror", None) or type(error).__name__
        raise FormatError(f"{visible(path.name)}: cannot be read: {why}.") from None


LINE = 64  # bytes of a cache line: kernels read tiles by whole lines


def _read(file: BinaryIO, size: int, path: Path) -> memoryview:
    """Read a file into memory aligned to cache lines, as its mapping would be; raise where it is cut short meanwhile."""
    try:
        space = np.empty(size + LINE, np.uint8)
    except MemoryError:
        raise FormatError(
            f"{visible(path.name)}: {size} bytes do not fit into memory; let it be mapped instead (mmap=True)."
        ) from None
    start = -space.ctypes.data % LINE
    view = memoryview(space.data)[start : start + size]
    count = 0
    while count < size:
        n = file.readinto(view[count:])  # type: ignore[attr-defined]
        if not n:
            raise fault(visible(path.name), f"{count} bytes", f"the {size} it had when it was opened")
        count += n
    return view.toreadonly()


def forget(view: memoryview) -> None:
    """Release the memory of mapped bytes that are not needed for now; an access reads them from the file again."""
    owner = view.obj
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED") or not len(view):
        return
    start = np.frombuffer(view, np.uint8).ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    first, end = align(start, mmap.PAGESIZE), (start + view.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        owner.madvise(mmap.MADV_DONTNEED, first, end - first)


def contained(base: Path, name: str) -> Path:
    """Return the path of a file that a model directory names; raise unless it is a plain name inside the directory.

    The cache of the Hugging Face hub keeps `snapshots/<revision>/<name>` as links into `blobs/` beside it, and those may lead on to
    `blobs/<xx>/` beside all repositories; both are followed, also from a folder within the revision.
    """
    plain = bool(name) and name.isprintable() and name not in (".", "..") and not set(name) & {"/", "\\", "\0", ":"}
    if not plain:
        raise fault(
            f"{base.name}",
            f"a reference to the file {visible(name)!r}",
            "a plain file name inside the model directory",
            "Do not trust this model: a name that leads elsewhere is a known attack.",
        )
    root = Path(os.path.realpath(base))
    inside = root / name
    if not os.path.islink(inside):
        return inside
    target = inside.resolve()
    repository = next((p.parent for p in root.parents[:2] if p.name == "snapshots"), None)
    linked = repository is not None and (
        target.parent == repository / "blobs" or target.parent.parent == repository.parent / "blobs"
    )
    if target.parent != root and not linked:
        raise fault(
            f"{base.name}",
            f"{visible(name)!r}, a link that leads to {visible(str(target))}",
            "a file inside the model directory",
            "Copy the file into the directory if you trust it.",
        )
    return target


_COUNTED = 1 << 18  # bytes of a JSON text that are counted at once


def _object_bytes(data: memoryview) -> int:
    """Estimate the bytes of the Python objects for a JSON text, including the text itself as str."""
    counts = np.zeros(256, np.int64)
    for start in range(0, len(data), _COUNTED):  # in parts: NumPy counts bytes as numbers of 8 bytes each
        counts += np.bincount(np.frombuffer(data[start : start + _COUNTED], np.uint8), minlength=256)
    width = 4 if counts[0xF0:].any() else 2 if counts[0xC4:].any() else 1
    boxes = counts[ord("[")] + counts[ord("{")]
    # A long value that is not ASCII is in memory twice, each character as wide as the widest.
    text = len(data) * (1 if width == 1 else 2 * width)
    return int(text + 72 * boxes + 28 * counts[ord('"')] + 16 * counts[ord(",")])


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {visible(key)!r} twice")
        result[key] = value
    return result


def read_side(path: Path, most: int, remedy: str) -> memoryview:
    """Read a side file into memory, where a change of the file does no harm; raise above `most` bytes, which are not read."""
    with _opened(path) as (file, size):
        if size > most:
            raise fault(visible(path.name), f"{size} bytes", f"at most {most}", remedy)
        return _read(file, size, path)


def read_json(path: Path, most: int = 16 << 20, growth: int = 2) -> dict[str, Any]:
    """Read a JSON object from a side file; raise for duplicate keys, endless nesting, files above `most` bytes, and those that
    would take more than `growth` times their size plus 64 MB, which is estimated before any object is created."""
    name = visible(path.name)
    data = read_side(path, most, "This is no configuration of a model.")
    room = growth * len(data) + (64 << 20)
    if _object_bytes(data) > room:
        raise fault(
            name,
            f"JSON that would take {_object_bytes(data) >> 20} MB",
            f"at most {room >> 20} MB",
            "This is no file of a model.",
        )
    try:
        result = json.loads(str(data, "utf-8"), object_pairs_hook=_unique_keys)
    except RecursionError:
        raise fault(name, "JSON nested without end", "the plain JSON of a model") from None
    except ValueError as error:
        raise fault(name, f"{visible(str(error))}", "valid JSON in UTF-8") from None
    if not isinstance(result, dict):
        raise fault(name, f"a {type(result).__name__}", "a JSON object")
    return result

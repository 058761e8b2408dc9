"""Tensors poured into a file one after another, with a checksum each; files that appear whole or not at all.

Knows nothing of formats.
"""

from __future__ import annotations

import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tritium.errors import FormatError
from tritium.escape import visible

Progress = Callable[[int, int, str], None]  # bytes done, bytes in all, what is being worked on


@dataclass(frozen=True)
class Piece:
    """A tensor to be written: its bytes come from `chunks`, called once, when their turn comes."""

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int
    chunks: Callable[[], Iterable[Any]]


@dataclass(frozen=True)
class Wrote:
    """What was written of a tensor."""

    name: str
    nbytes: int
    crc32: int


def pour(
    file: BinaryIO,
    pieces: list[Piece],
    *,
    alignment: int = 1,
    progress: Progress | None = None,
    done: int = 0,
    total: int = 0,
) -> list[Wrote]:
    """Write the pieces, each padded to the alignment; checks that each is as long as it said."""
    out = []
    for p in pieces:
        size, crc = 0, 0
        for chunk in p.chunks():
            raw = chunk.reshape(-1).view(np.uint8).data if isinstance(chunk, np.ndarray) else chunk
            file.write(raw)
            size, crc = size + len(raw), zlib.crc32(raw, crc)
            if progress:
                progress(done + size, total, p.name)
        if size != p.nbytes:
            raise FormatError(
                f"{visible(p.name)}: {size} bytes were made where {p.nbytes} were announced. This is a bug of the writer."
            )
        file.write(bytes(-size % alignment))
        done += size
        out.append(Wrote(p.name, size, crc))
    return out


def check_free(target: Path, overwrite: bool) -> None:
    """Its folder is there, and it is not, or may be replaced."""
    if not target.parent.is_dir():
        raise FormatError(
            f"{visible(str(target))}: the folder {visible(str(target.parent))} does not exist; make it first."
        )
    if target.exists() and not target.is_file() and (not target.is_dir() or target.is_symlink()):
        raise FormatError(f"{visible(str(target))} is a device, a pipe or a link to a folder; it is never replaced.")
    if (target.exists() or target.is_symlink()) and not overwrite:
        raise FormatError(
            f"{visible(str(target))} exists already. Choose another name, or say overwrite=True (--overwrite)."
        )


@contextmanager
def appearing(target: Path, *, folder: bool, overwrite: bool) -> Iterator[Path]:
    """A temporary path beside the target that takes its name when the block ends well, and vanishes when it does not.

    What was there stays until then: a reader sees the old or the new, whole.
    """
    check_free(target, overwrite)
    if target.is_dir() and not folder:
        raise FormatError(
            f"{visible(str(target))} is a folder and a file was to be written there. Choose another name."
        )
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        if folder:
            temporary.mkdir()
        yield temporary
        for path in [*temporary.iterdir(), temporary] if folder else [temporary]:
            _sync(path)
        _rename(temporary, target)
        _sync(target.parent)
    except OSError as error:
        raise FormatError(f"{visible(str(target))}: cannot be written: {error}.") from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def _rename(temporary: Path, target: Path) -> None:
    """os.replace cannot put a folder over a full one: the old one steps aside first and is removed last."""
    if not (target.is_dir() and not target.is_symlink()):
        os.replace(temporary, target)
        return
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
    os.replace(target, aside)
    try:
        os.replace(temporary, target)
    except OSError:
        os.replace(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Write tensors to a file one after another, with a checksum each; replace files atomically.

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

Progress = Callable[[int, int, str], None]  # bytes done, bytes in total, the current task


@dataclass(frozen=True)
class Piece:
    """A tensor to be written: its bytes come from `chunks`, which is called once, just before they are written."""

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int
    chunks: Callable[[], Iterable[Any]]


@dataclass(frozen=True)
class Wrote:
    """The size and checksum of a tensor as written."""

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
    """Write the pieces, each padded to the alignment; raise where one is not of its declared size."""
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
                f"{visible(p.name)}: {size} bytes were written, {p.nbytes} were declared. This is a bug of the writer."
            )
        file.write(bytes(-size % alignment))
        done += size
        out.append(Wrote(p.name, size, crc))
    return out


def check_free(target: Path, overwrite: bool) -> None:
    """Raise unless the folder of a target exists, and the target does not or may be replaced."""
    if not target.parent.is_dir():
        raise FormatError(
            f"{visible(str(target))}: the folder {visible(str(target.parent))} does not exist; make it first."
        )
    if target.exists() and not target.is_file() and (not target.is_dir() or target.is_symlink()):
        raise FormatError(f"{visible(str(target))} is a device, a pipe or a link to a folder; it is never replaced.")
    if (target.exists() or target.is_symlink()) and not overwrite:
        raise FormatError(
            f"{visible(str(target))} exists already. Choose another name, or pass overwrite=True (--overwrite)."
        )


@contextmanager
def appearing(target: Path, *, folder: bool, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path beside the target; it is renamed to the target on success and removed on failure.

    The old target stays until then: a reader sees all of the old one or all of the new one.
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
    """Replace the target; os.replace cannot replace a folder that is not empty, so the old one is renamed first and removed last."""
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

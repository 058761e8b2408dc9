"""Write tensors to a file one after another, with a checksum each; replace files atomically."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.machine.files import replacing

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
        raise FormatError(_taken(target))


@contextmanager
def appearing(target: Path, *, folder: bool, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary file or folder beside the target; it takes the target's name on success and is removed on failure.

    The old target stays until then: a reader sees all of the old one or all of the new one.
    """
    check_free(target, overwrite)
    if target.is_dir() and not folder:
        raise FormatError(
            f"{visible(str(target))} is a folder and a file was to be written there. Choose another name."
        )
    try:
        with replacing(target, folder=folder, overwrite=overwrite) as temporary:
            yield temporary
    except FileExistsError as error:
        raise FormatError(_taken(target)) from error
    except OSError as error:
        raise unwritten(target, error) from error


def _taken(target: Path) -> str:
    return f"{visible(str(target))} exists already. Choose another name, or pass overwrite=True (--overwrite)."


REMEDIES = {
    errno.EACCES: "Choose a folder you may write to.",
    errno.EPERM: "Choose a folder you may write to.",
    errno.EROFS: "The file system is read-only: choose another folder.",
    errno.ENOSPC: "Free some space, or choose another place.",
    errno.EDQUOT: "Free some space, or choose another place.",
    errno.ENOENT: "Its folder is gone: make it again, or choose another.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}


def unwritten(target: Path, error: OSError) -> FormatError:
    """Return the error for a file that the system did not write, with what to do about it."""
    reason = error.strerror or str(error)
    remedy = REMEDIES.get(error.errno or 0, "Choose another place.")
    return FormatError(f"{visible(str(target))}: cannot be written: {reason}; nothing was changed. {remedy}")

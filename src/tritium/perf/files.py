"""Durable files: written whole or not at all, read with a limit, and a lock that does not outlive its owner.

Knows nothing of what the files hold. A file is written beside its place, flushed to the disk, renamed, and the folder
flushed: a reader sees the old or the new, whole. What could not be written is still in memory: write it elsewhere.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gzip
import io
import os
import re
import secrets
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any, TypeVar

from tritium import settings
from tritium.errors import BusyError, FormatError, MissingFileError, SaveError

T = TypeVar("T")
MAX_BYTES = 256 << 20  # of a file that is read
GZIP = b"\x1f\x8b"  # how a gzip file begins
GZIP_LEVEL = 3  # traces repeat themselves: more effort gains little
UNFINISHED = re.compile(r"\.\d+\.[0-9a-f]{8}\.tmp$")
STALE_S = 60  # an unfinished file nobody holds is a dead writer's when it is older
FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone leaves the bytes in the drive's cache
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)  # file systems that have no fsync of a folder
LOCK_BUSY = (errno.EAGAIN, errno.EACCES)
MNT_LOCAL = 0x1000  # macOS, sys/mount.h


def write_text(path: str | os.PathLike[str], text: str, *, parents: bool = False) -> Path:
    """Write a text file the durable way. A device or pipe (/dev/stdout) is written to as it is."""
    return write_bytes(
        path, text.encode("utf-8", "backslashreplace"), parents=parents
    )  # a lone surrogate: as JSON escapes it


def write_bytes(path: str | os.PathLike[str], data: bytes, *, parents: bool = False) -> Path:
    """Write a file so that there is the old or the new one, whole, whatever happens. `parents`: make its folders."""
    original = Path(path)
    target = Path(os.path.realpath(original))  # a link keeps pointing to the file
    try:
        if original.exists() and not stat.S_ISREG(original.stat().st_mode):
            return _write_through(original, data)
        if parents:
            make_folder(target.parent)
        sweep(target.parent, escape(target.name[:100]))
        temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        _replace(temporary, target, data)
    except OSError as error:
        raise unsaved(original, error, "what was there before is untouched") from error
    try:
        sync_folder(target.parent)
    except OSError as error:
        raise unsaved(original, error, "the new file is there and whole, but may not outlive a power cut") from error
    return original


def write_chunks(path: str | os.PathLike[str], chunks: Iterable[str]) -> Path:
    """Write a text that comes in pieces, and its folders; gzipped where the path ends with .gz, the same text as the same bytes."""
    if not os.fspath(path).endswith(".gz"):
        raw = b"".join(chunk.encode("utf-8", "backslashreplace") for chunk in chunks)
        return write_bytes(path, raw, parents=True)
    out = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=out, mtime=0) as packed:
        for chunk in chunks:
            packed.write(chunk.encode("utf-8", "backslashreplace"))
    return write_bytes(path, out.getvalue(), parents=True)


def read_bytes(path: str | os.PathLike[str], most: int = MAX_BYTES) -> bytes:
    """The content of a plain file of at most so many bytes."""
    where = named(path)
    try:
        handle = again(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not make us wait
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise FormatError(f"{where}: a plain file is needed; this is a folder, a device or a pipe.")
            with open(handle, "rb", closefd=False) as file:
                raw = file.read(most + 1)
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise MissingFileError(errno.ENOENT, "There is no such file; check the path", str(path)) from None
    except OSError as error:
        raise FormatError(f"{where}: cannot be read: {error.strerror}.") from error
    if len(raw) > most:
        raise FormatError(f"{where}: larger than {most >> 20} MiB, the most that is read. It is no file of tritium's.")
    return raw


def unpacked(raw: bytes, most: int, where: str) -> bytes:
    """The content of a gzip file of one member; other bytes as they are. A few that would become very many are refused."""
    if not raw.startswith(GZIP):
        return raw
    stream = zlib.decompressobj(wbits=31)
    try:
        text = stream.decompress(raw, most + 1)
    except zlib.error as error:
        raise FormatError(f"{where}: damaged: it cannot be unpacked ({error}).") from None
    if len(text) > most:
        raise FormatError(f"{where}: unpacks to more than {most >> 20} MiB, the most that is read.")
    if not stream.eof or stream.unused_data:
        raise FormatError(f"{where}: damaged: it {'goes on after its end' if stream.eof else 'ends too early'}.")
    return text


def decoded(raw: bytes, where: str) -> str:
    """Text of bytes that must be UTF-8."""
    if not raw:
        raise FormatError(f"{where}: empty.")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: not text: byte {error.start} is not UTF-8.") from None


def again(call: Callable[..., T], *arguments: Any) -> T:
    """Call until no signal interrupts it."""
    while True:
        try:
            return call(*arguments)
        except InterruptedError:
            continue


def _replace(temporary: Path, target: Path, data: bytes) -> None:
    """Write beside the target and take its name; nothing is left beside it when that fails."""
    handle = again(os.open, temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            with suppress(OSError):  # held while we live, so that nobody sweeps it; some file systems have no locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):  # who may read the old one may read the new one
                os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))
            write_all(handle, data)
            sync(handle)
            again(os.replace, temporary, target)
        finally:
            os.close(handle)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_all(handle: int, data: bytes) -> None:
    """Write every byte: a write may take only some of them."""
    rest = memoryview(data)
    while rest:
        count = again(os.write, handle, rest)
        if count <= 0:
            raise OSError(errno.EIO, "the system wrote nothing")
        rest = rest[count:]


def sync(handle: int) -> None:
    """Wait until the disk has it."""
    if FULL_SYNC is not None:
        with suppress(OSError):  # a file system that has none has fsync
            again(fcntl.fcntl, handle, FULL_SYNC)
            return
    again(os.fsync, handle)


def _write_through(path: Path, data: bytes) -> Path:
    handle = again(os.open, path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        write_all(handle, data)
    finally:
        os.close(handle)
    return path


def sync_folder(folder: Path) -> None:
    handle = again(os.open, folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        again(os.fsync, handle)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each known to the disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with suppress(FileExistsError):
        again(os.mkdir, folder)
    sync_folder(folder.parent)


def sweep(folder: Path, name: str = "*") -> None:
    """Remove what writers of this file, or of any, left unfinished in a folder when they were killed."""
    for left in folder.glob(f".{name}.*.tmp"):
        with suppress(OSError):
            if not UNFINISHED.search(left.name) or time.time() - left.lstat().st_mtime < STALE_S:
                continue
            handle = os.open(left, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
            finally:
                os.close(handle)


def named(path: str | os.PathLike[str]) -> str:
    """A path as a message shows it: control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in os.fspath(path))


def unsaved(path: Path, error: OSError, state: str) -> SaveError:
    reason = error.strerror or str(error)
    what = " Free some space, or choose another place." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    failure = SaveError(f"{named(path)}: not saved: {reason}; {state}.{what}")
    failure.errno = error.errno
    return failure


# ---- lock


@contextmanager
def lock(path: str | os.PathLike[str], wait_s: float = 30.0) -> Iterator[None]:
    """Hold a file's lock; whoever else asks waits, then is told who holds it. A dead owner holds nothing.

    The system frees the lock when its owner ends, however it ends. The file keeps the owner's number for messages, and
    stays: removing it would let two hold it.
    """
    place = Path(path)
    try:
        make_folder(place.absolute().parent)
        handle = again(os.open, place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise unsaved(place, error, "the lock cannot be taken") from error
    try:
        _wait(handle, place, wait_s)
    except BaseException:
        os.close(handle)
        raise
    try:
        if (owner := _owner(handle)) is not None:
            settings.log.info("%s: process %d ended without giving the lock back.", named(place), owner)
        with suppress(OSError):  # only for messages
            os.pwrite(handle, b"%-20d" % os.getpid(), 0)
        yield
    finally:
        with suppress(OSError):
            os.ftruncate(handle, 0)
        os.close(handle)


def _wait(handle: int, path: Path, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    pause_s = 0.001
    while True:
        try:
            return again(fcntl.flock, handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in LOCK_BUSY:
                raise unsaved(path, error, "this file system has no locks; use a local folder") from error
            if time.monotonic() >= until:
                raise BusyError(
                    f"{named(path)}: {_holder(handle)} for more than {wait_s:g} s. Try again later."
                ) from None
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


def _owner(handle: int) -> int | None:
    text = os.pread(handle, 20, 0).strip()
    return int(text) if text.isdigit() else None


def _holder(handle: int) -> str:
    owner = _owner(handle)
    if owner is None:
        return "another process has held the lock"
    try:
        os.kill(owner, 0)
    except ProcessLookupError:
        return f"process {owner} is gone, but one it started has held its lock"
    except PermissionError:
        pass
    return f"process {owner} has held the lock"


# ---- file systems

NETWORK = frozenset(
    "9p afs afpfs beegfs ceph cifs coda fuse.glusterfs fuse.rclone fuse.s3fs fuse.sshfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 "
    "orangefs prl_fs smb2 smb3 smbfs vboxsf webdav".split()
)


def network_filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The kind of network file system a path lies on; "" where it is local, or cannot be told."""
    if sys.platform == "darwin":
        return _network_by_statfs(path)
    try:
        lines = [line.split() for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()]
    except OSError:
        return ""
    place = Path(os.path.realpath(path))
    mount, kind = Path("/"), ""
    for _, path_text, name, *_ in (line for line in lines if len(line) >= 3):
        point = Path(
            path_text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
        )
        if place.is_relative_to(point) and len(point.parts) >= len(mount.parts):  # a later mount hides an earlier one
            mount, kind = point, name
    return kind if kind in NETWORK else ""


def _network_by_statfs(path: Path) -> str:
    """macOS: the flags of struct statfs say whether a file system is local."""
    system, space = ctypes.CDLL(None), ctypes.create_string_buffer(4096)
    call = (
        getattr(system, "statfs$INODE64", None) or system.statfs
    )  # the old name gives Intel machines an old structure
    if call(os.fsencode(path), space) != 0:
        return ""
    flags = int.from_bytes(space.raw[64:68], sys.byteorder)
    return "" if flags & MNT_LOCAL else space.raw[72:88].split(b"\0")[0].decode()

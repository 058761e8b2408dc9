"""Durable files: written whole or not at all, read with a limit, and a lock that does not outlive its owner.

A writer works on a temporary path beside the target, which it holds locked; at the end the temporary takes the target's name in
one step. The system drops the lock of a process that ends, however it ends: a temporary that nobody holds has no writer any
more, and the next writer in that folder removes it.

A folder that is not empty cannot be renamed over. Linux (renameat2) and macOS (renamex_np) exchange two names in one step. Where
the file system cannot, the old folder is renamed to `.NAME.….old` first, then the new one takes its place: killed between the
two, the next writer gives the old folder its name back.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gzip
import io
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tritium import settings
from tritium.errors import BusyError, FormatError, MissingFileError, SaveError

UNFINISHED = re.compile(r"\.(?P<name>.+)\.\d+\.[0-9a-f]{8}\.tritium\.(?P<kind>tmp|old)")
MAX_NAME = 200  # bytes of the target's name in that of its temporary: file systems allow 255 in all
FOLDER = -100 if sys.platform.startswith("linux") else -2  # AT_FDCWD: paths are relative to the current folder
NO_REPLACE, EXCHANGE = (1, 2) if sys.platform.startswith("linux") else (4, 2)  # flags of renameat2, of renamex_np
NUMBERS = {"x86_64": 316, "aarch64": 276, "riscv64": 276, "ppc64le": 357, "s390x": 347}  # of the system call renameat2
NO_SUCH_CALL = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)  # also where a container filters system calls
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone leaves the bytes in the drive's cache
MAX_BYTES = 256 << 20  # of a file that is read
GZIP = b"\x1f\x8b"  # how a gzip file begins
GZIP_LEVEL = 3  # traces repeat themselves: more effort gains little
LOCK_BUSY = (errno.EAGAIN, errno.EACCES)
MNT_LOCAL = 0x1000  # macOS, sys/mount.h
CLOSED = os.O_CLOEXEC | os.O_NOFOLLOW


T = TypeVar("T")


class UnflushedError(OSError):
    """A file or folder has its new name, but the folder of that name could not be flushed to the disk."""


@contextmanager
def replacing(target: Path, *, folder: bool = False, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary file or folder beside the target; it takes the target's name on success and is removed on failure.

    Until then the old target stays: a reader sees all of the old one or all of the new one. Raises OSError; FileExistsError
    where there is a target now that may not be replaced.
    """
    sweep(target.parent)
    temporary, handle = create(target, folder)
    try:
        yield temporary
        for path in [*temporary.iterdir(), temporary] if folder else [temporary]:
            sync(path)
        with suppress(OSError):
            os.fchmod(handle, stat.S_IMODE(os.stat(target).st_mode))
        place(temporary, target, overwrite)
        try:
            sync(target.parent)
        except OSError as error:
            raise UnflushedError(error.errno, error.strerror, str(target)) from error
    finally:
        remove(temporary)
        os.close(handle)


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside the target for steps on the way to it; it is removed at the end."""
    sweep(target.parent)
    temporary, handle = create(target, folder=True)
    try:
        yield temporary
    finally:
        remove(temporary)
        os.close(handle)


# ---- whole files


def write_text(path: str | os.PathLike[str], text: str, *, parents: bool = False) -> Path:
    """Write a text file the durable way."""
    return write_bytes(
        path, text.encode("utf-8", "backslashreplace"), parents=parents
    )  # a lone surrogate: as JSON escapes it


def write_bytes(path: str | os.PathLike[str], data: bytes, *, parents: bool = False) -> Path:
    """Write a file so that there is the old or the new one, whole, whatever happens. `parents`: make its folders.

    A device or pipe (/dev/stdout) is written to as it is. Raises SaveError, which says what is there now.
    """
    original = Path(path)
    target = Path(os.path.realpath(original))  # a link keeps pointing to the file
    try:
        if original.exists() and not stat.S_ISREG(original.stat().st_mode):
            return _write_through(original, data)
        if parents:
            make_folder(target.parent)
        with replacing(target) as temporary:
            _write_through(temporary, data)
    except UnflushedError as error:
        raise unsaved(original, error, "the new file is there and whole, but may not outlive a power cut") from error
    except OSError as error:
        raise unsaved(original, error, "what was there before is untouched") from error
    return original


def _write_through(path: Path, data: bytes) -> Path:
    handle = again(os.open, path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        write_all(handle, data)
    finally:
        os.close(handle)
    return path


def write_all(handle: int, data: bytes) -> None:
    """Write every byte: a write may take only some of them."""
    rest = memoryview(data)
    while rest:
        count = again(os.write, handle, rest)
        if count <= 0:
            raise OSError(errno.EIO, "the system wrote nothing")
        rest = rest[count:]


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each known to the disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with suppress(FileExistsError):
        again(os.mkdir, folder)
    sync(folder.parent)


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
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise FormatError(f"{where}: a plain file is needed; this is a folder, a device or a pipe.")
            with open(handle, "rb", closefd=False) as file:
                raw = file.read(min(status.st_size, most) + 1)  # a larger request would allocate all of it first
                if status.st_size < len(raw) <= most:  # it grew, or is a file of /proc, whose size is 0
                    raw += file.read(most + 1 - len(raw))
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


def named(path: str | os.PathLike[str]) -> str:
    """A path as a message shows it: control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in os.fspath(path))


def unsaved(path: Path, error: OSError, state: str) -> SaveError:
    reason = error.strerror or str(error)
    what = " Free some space, or choose another place." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    failure = SaveError(f"{named(path)}: not saved: {reason}; {state}.{what}")
    failure.errno = error.errno
    return failure


# ---- temporaries


def unfinished(target: Path, kind: str = "tmp") -> Path:
    """Return a new name for a temporary beside the target: hidden, with this process's number."""
    return target.with_name(f".{_short(target.name)}.{os.getpid()}.{secrets.token_hex(4)}.tritium.{kind}")


def _short(name: str) -> str:
    return os.fsencode(name)[:MAX_NAME].decode(sys.getfilesystemencoding(), "ignore")


def create(target: Path, folder: bool) -> tuple[Path, int]:
    """Create a temporary that did not exist, and return it with the handle that holds its lock.

    A link that someone planted under its name is never followed. Who may read the old target may read the new one.
    """
    while True:
        temporary = unfinished(target)
        if folder:
            again(os.mkdir, temporary)
            handle = again(os.open, temporary, os.O_RDONLY | os.O_DIRECTORY | CLOSED)
        else:
            handle = again(os.open, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | CLOSED, 0o666)
        try:
            if _lock(handle, without=True) and _is(handle, temporary):
                with suppress(OSError):
                    os.fchmod(handle, stat.S_IMODE(os.stat(target).st_mode) | (0o700 if folder else 0o600))
                return temporary, handle
        except BaseException:
            os.close(handle)
            remove(temporary)
            raise
        os.close(handle)  # another writer swept it before it was locked: take another name


def _lock(handle: int, *, without: bool = False) -> bool:
    """Lock an open file or folder; `without`: the answer for a file system that has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return without
    return True


def _is(handle: int, path: Path) -> bool:
    """Return True if the path still names the open file."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    return False


def remove(path: Path) -> None:
    """Remove a file or a folder, where there is one; links in it are removed, not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the temporaries of dead writers from a folder; give an old folder its name back if the new one never took it.

    Only what this user owns and nobody holds locked is touched.
    """
    try:
        names = [name for name in os.listdir(folder) if UNFINISHED.fullmatch(name)]
    except OSError:
        return  # the write that follows says why
    for name in names:
        with suppress(OSError):
            _sweep_one(folder / name)


def _sweep_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | CLOSED)
    try:
        if os.fstat(handle).st_uid != os.geteuid() or not _lock(handle) or not _is(handle, path):
            return
        match = UNFINISHED.fullmatch(path.name)
        if match is not None and match["kind"] == "old" and (lost := _lost(path, match["name"])) is not None:
            rename_new(path, lost)
        else:
            remove(path)
    finally:
        os.close(handle)


def _lost(path: Path, name: str) -> Path | None:
    """Return the path an old folder had, if there is nothing now; the name of a long one is known only by its beginning."""
    target = path.with_name(name)
    return None if os.path.lexists(target) else target


def set_aside(target: Path) -> Path | None:
    """Return the old folder that a killed writer left under another name, if there is one and no target."""
    if os.path.lexists(target):
        return None
    with suppress(OSError):
        for name in sorted(os.listdir(target.parent)):
            match = UNFINISHED.fullmatch(name)
            if match is not None and match["kind"] == "old" and match["name"] == _short(target.name):
                return target.with_name(name)
    return None


# ---- names


def place(temporary: Path, target: Path, overwrite: bool) -> None:
    """Give a finished temporary the name of its target; what had it is gone, or under the temporary's name."""
    if not overwrite:
        rename_new(temporary, target)
    elif not target.is_dir() or target.is_symlink():
        again(os.replace, temporary, target)
    elif not rename_with(EXCHANGE, temporary, target):
        _replace_in_two_steps(temporary, target)


def _replace_in_two_steps(temporary: Path, target: Path) -> None:
    """Rename the old folder, then the new one. The old one is held locked: a sweep between the two leaves it alone."""
    aside = unfinished(target, "old")
    handle = os.open(target, os.O_RDONLY | os.O_DIRECTORY | CLOSED)
    try:
        _lock(handle)
        os.replace(target, aside)
        try:
            os.replace(temporary, target)
        except BaseException:
            os.replace(aside, target)
            raise
    finally:
        os.close(handle)
    remove(aside)


def rename_new(source: Path, target: Path) -> None:
    """Rename to a name that nothing has; FileExistsError where something has it by now."""
    if rename_with(NO_REPLACE, source, target):
        return
    if source.is_dir():  # a folder replaces no file, and no folder that holds anything
        os.rename(source, target)
        return
    try:
        os.link(source, target)  # never replaces
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        os.replace(source, target)
    else:
        os.unlink(source)


def rename_with(flags: int, source: Path, target: Path) -> bool:
    """Rename with a flag of the system's own call; False where the system or the file system does not have it."""
    paths = os.fsencode(source), os.fsencode(target)
    system = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        status = system.renamex_np(*paths, ctypes.c_uint(flags))
    elif not sys.platform.startswith("linux"):
        return False
    elif hasattr(system, "renameat2"):
        status = system.renameat2(FOLDER, paths[0], FOLDER, paths[1], ctypes.c_uint(flags))
    elif (number := NUMBERS.get(platform.machine())) is not None:  # an older libc
        status = system.syscall(number, FOLDER, paths[0], FOLDER, paths[1], ctypes.c_uint(flags))
    else:
        return False
    if status == 0:
        return True
    code = ctypes.get_errno()
    if code in NO_SUCH_CALL:
        return False
    raise OSError(code, os.strerror(code), str(source), None, str(target))


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    handle = again(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        try:
            again(os.fsync, handle) if folder else flush(handle)
        except OSError as error:
            if error.errno not in NO_FOLDER_SYNC or not folder:
                raise
    finally:
        os.close(handle)


def flush(handle: int) -> None:
    """Wait until the disk has an open file."""
    if FULL_SYNC is not None:
        with suppress(OSError):  # a file system that has none has fsync
            again(fcntl.fcntl, handle, FULL_SYNC)
            return
    again(os.fsync, handle)


def again(call: Callable[..., T], *arguments: Any) -> T:
    """Call until no signal interrupts it."""
    while True:
        try:
            return call(*arguments)
        except InterruptedError:
            continue


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

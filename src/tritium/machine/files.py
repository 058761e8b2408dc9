"""Replace files and folders atomically, and remove what killed writers left.

Knows nothing of what the files hold. A writer works on a temporary path beside the target, which it holds locked; at the end the
temporary takes the target's name in one step. The system drops the lock of a process that ends, however it ends: a temporary
that nobody holds has no writer any more, and the next writer in that folder removes it.

A folder that is not empty cannot be renamed over. Linux (renameat2) and macOS (renamex_np) exchange two names in one step. Where
the file system cannot, the old folder is renamed to `.NAME.….old` first, then the new one takes its place: killed between the
two, the next writer gives the old folder its name back.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNFINISHED = re.compile(r"\.(?P<name>.+)\.\d+\.[0-9a-f]{8}\.tritium\.(?P<kind>tmp|old)")
MAX_NAME = 200  # bytes of the target's name in that of its temporary: file systems allow 255 in all
FOLDER = -100 if sys.platform.startswith("linux") else -2  # AT_FDCWD: paths are relative to the current folder
NO_REPLACE, EXCHANGE = (1, 2) if sys.platform.startswith("linux") else (4, 2)  # flags of renameat2, of renamex_np
NUMBERS = {"x86_64": 316, "aarch64": 276, "riscv64": 276, "ppc64le": 357, "s390x": 347}  # of the system call renameat2
NO_SUCH_CALL = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)  # also where a container filters system calls
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
CLOSED = os.O_CLOEXEC | os.O_NOFOLLOW


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
        sync(target.parent)
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


def write(target: Path, data: bytes) -> None:
    """Replace a file by these bytes; make its folder where there is none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary, open(temporary, "wb") as file:
        file.write(data)


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
            os.mkdir(temporary)
            handle = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | CLOSED)
        else:
            handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | CLOSED, 0o666)
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
        os.replace(temporary, target)
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
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC or not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise
    finally:
        os.close(handle)

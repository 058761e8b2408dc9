"""Snapshots of a process: its counts and state, written once a second into a folder of the user's own.

The folder is the user's own: mode 700, owned by the user, no link. Files are read as those of a stranger all the same:
counted, small, strict.
"""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tritium import escape, settings
from tritium.errors import FormatError, SaveError
from tritium.machine.files import decoded, named, read_bytes
from tritium.perf.records.json_io import dumps, loads, read

SCHEMA = 1
MOST_BYTES = 64 << 10  # of a file
MOST_FILES = 256
SUFFIX = ".json"


@dataclass(frozen=True)
class Snapshot:
    """Counts of one process since it started, and its present state. Rates are the viewer's to compute."""

    pid: int
    name: str  # program and subcommand, never its arguments: those may hold a prompt or a key
    version: str
    started_s: float  # seconds since 1970
    time_s: float
    interval_s: float
    cpu_s: float  # of all threads
    rss: int
    pool: int  # bytes of Tritium's pool in use
    pool_idle: int
    peak_pool: int
    ops: dict[str, int] = field(default_factory=dict)  # calls by op
    prefill_tokens: int = 0
    decode_tokens: int = 0
    requests_done: int = 0
    requests_failed: int = 0
    running: int = 0
    waiting: int = 0
    publish_s: float = 0.0  # CPU seconds that publishing itself took
    schema: int = SCHEMA


def folder(*, make: bool = False) -> Path:
    """Return the folder of live files, made on request; raise SaveError if others could read or replace it."""
    path = settings.runtime_dir() or Path(tempfile.gettempdir()) / f"tritium-{os.getuid()}"
    place = path / "live"
    if make:
        for part in (path, place):
            try:
                os.mkdir(part, 0o700)
            except FileExistsError:
                continue
            except OSError as error:
                raise SaveError(f"{named(part)}: cannot be made: {error.strerror}.") from None
    for part in (path, place):
        try:
            status = os.lstat(part)
        except FileNotFoundError:
            return place  # nobody publishes
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise SaveError(
                f"{named(part)}: not a folder of this user alone. Remove it, or set TRITIUM_RUNTIME to another folder."
            )
    return place


def write(snapshot: Snapshot, place: Path) -> None:
    """Write the file of a process whole: a reader finds the old or the new one. It need not outlive a power cut."""
    path = place / f"{snapshot.pid}{SUFFIX}"
    temporary = place / f".{snapshot.pid}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(dumps(snapshot, ascii_only=True))
    os.replace(temporary, path)


def remove(pid: int, place: Path) -> None:
    """Remove the files of a process."""
    for name in (f"{pid}{SUFFIX}", f".{pid}.new"):
        (place / name).unlink(missing_ok=True)


def snapshots(place: Path | None = None) -> tuple[list[Snapshot], list[str]]:
    """Return what living processes publish, by their ids, and why a file was left out. Files of dead ones are removed."""
    place = folder() if place is None else place
    out: list[Snapshot] = []
    faults: list[str] = []
    try:
        with os.scandir(place) as entries:
            names = sorted(
                e.name for e, _ in zip(entries, range(4 * MOST_FILES), strict=False) if e.name.endswith(SUFFIX)
            )
    except FileNotFoundError:
        return [], []
    for name in names[:MOST_FILES]:
        pid = int(name.removesuffix(SUFFIX)) if name.removesuffix(SUFFIX).isdecimal() and len(name) < 16 else 0
        if not pid:
            continue
        if not is_alive(pid):
            remove(pid, place)
            continue
        try:
            out.append(_read(place / name, pid))
        except FileNotFoundError:
            continue  # it ended meanwhile
        except FormatError as error:
            faults.append(str(error))
    return sorted(out, key=lambda s: s.pid), faults


def _read(path: Path, pid: int) -> Snapshot:
    where = named(path)
    snapshot = read(Snapshot, loads(decoded(read_bytes(path, MOST_BYTES), where), where), where)
    if snapshot.pid != pid or snapshot.schema != SCHEMA:
        raise FormatError(
            f"{where}: of process {snapshot.pid}, schema {snapshot.schema}; {pid} and {SCHEMA} are needed."
        )
    return snapshot


def is_alive(pid: int) -> bool:
    """Return True if a process of this user has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return False  # the id is another user's by now
    return True


def program_name(arguments: list[str]) -> str:
    """Return the name of a program for others to read: the file, and the subcommand of ours."""
    first = Path(arguments[0]).name if arguments and arguments[0] else "python"
    if first in ("tritium", "__main__.py"):
        word = next((a for a in arguments[1:] if not a.startswith("-")), "")
        return escape.visible(f"tritium {word}".strip() if word.isidentifier() or "-" in word else "tritium", 60)
    return escape.visible(first, 60)

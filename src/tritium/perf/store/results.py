"""Results on the disk: saved whole with the hash of their content, read strictly; and a journal that survives a kill.

Knows nothing of measuring, baselines or history; files.py knows how a file becomes durable.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

from tritium import settings
from tritium.errors import BusyError, FormatError, SaveError
from tritium.machine.facts import digest
from tritium.machine.files import (
    LOCK_BUSY,
    again,
    decoded,
    flush,
    lock,
    make_folder,
    named,
    read_bytes,
    sync,
    unsaved,
    write_all,
    write_text,
)
from tritium.perf.records.json_io import check_schema, dumps, loads, plain, read
from tritium.perf.records.run import SCHEMA, Results

__all__ = ["Journal", "load", "load_with_digest", "lock", "save", "write_text"]


# ---- results

DERIVED = "derived"  # what others computed of the results, for programs that only read; it is left alone here


def save(results: Results, path: str | os.PathLike[str]) -> Path:
    """Write results with the hash of their content; the file there before stays whole until the new one is."""
    text = _text(plain(results))
    _loaded(text.encode("utf-8", "backslashreplace"), "these results")  # nothing is written that could not be read
    return write_text(path, text, parents=True)


def load(path: str | os.PathLike[str]) -> Results:
    """Read results, or say what is wrong with the file."""
    return load_with_digest(path)[0]


def load_with_digest(path: str | os.PathLike[str]) -> tuple[Results, str]:
    """Results, and the hash of their content."""
    return _loaded(read_bytes(path), named(path))


def _loaded(raw: bytes, where: str) -> tuple[Results, str]:
    """Results and their hash from the bytes of a results file."""
    document = loads(decoded(raw, where), where)
    if not isinstance(document, dict) or not isinstance(document.get("results"), dict):
        raise FormatError(
            f'{where}: not results of tritium: an object with "schema", "sha256" and "results" is needed.'
        )
    check_schema(document.get("schema"), SCHEMA, where)
    if unknown := sorted(set(document) - {"schema", "sha256", "results", DERIVED}):
        raise FormatError(f"{where}: unknown key {unknown[0]!r} beside schema, sha256 and results.")
    body = document["results"]
    check_schema(body.get("schema", SCHEMA), SCHEMA, f"{where}: results")
    sha = digest(body)
    if document.get("sha256") != sha:
        raise FormatError(
            f"{where}: damaged, or changed by hand: its content is not what its sha256 stands for. "
            "Take a copy from elsewhere, or measure again."
        )
    return read(Results, body, where), sha


def _text(body: dict[str, Any]) -> str:
    """One run to a line: a person can look for one, and a diff shows which changed."""
    head = ",\n".join(f"{json.dumps(k)}: {dumps(v)}" for k, v in body.items() if k != "runs")
    runs = ",\n".join(dumps(run) for run in body["runs"])
    return (
        f'{{"schema": {SCHEMA}, "sha256": "{digest(body)}", "results": {{\n{head},\n"runs": [\n{runs}\n]}}}}\n'
    )  # fmt: skip


# ---- journal


class Journal:
    """Records appended one by one, each on the disk before `append` returns; one process writes, any may read.

    A record is a line: its length and CRC-32 in hexadecimal, then JSON. What a kill left of the last one is cut off when
    the journal is opened again. `truncate`: what it holds is thrown away first.
    """

    HEADER = b"tritium journal 1\n"

    def __init__(self, path: str | os.PathLike[str], *, truncate: bool = False) -> None:
        self.path = Path(path)
        try:
            make_folder(self.path.absolute().parent)
            self._handle = again(os.open, self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise unsaved(self.path, error, "the journal cannot be opened") from error
        self._broken = False
        try:
            self._own()
            if truncate:
                again(os.ftruncate, self._handle, 0)
            self._end = self._repair()
        except OSError as error:
            os.close(self._handle)
            raise unsaved(self.path, error, "the journal cannot be opened") from error
        except BaseException:
            os.close(self._handle)
            raise

    def append(self, record: dict[str, Any]) -> None:
        """Add a record and wait until the disk has it; on failure the journal ends where it ended before."""
        if self._broken:
            raise SaveError(
                f"{named(self.path)}: nothing more is written here: an earlier record could not be taken back."
            )
        line = _framed(record)
        try:
            again(os.lseek, self._handle, self._end, os.SEEK_SET)
            write_all(self._handle, line)
            flush(self._handle)
        except BaseException as error:
            self._take_back()
            if isinstance(error, OSError):
                raise unsaved(self.path, error, "the records before this one are untouched") from error
            raise
        self._end += len(line)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle, self._broken = -1, True

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], bool]:
        """The records, and whether the last one was torn (it is left out). Damage before the end is an error."""
        records, end, total = cls._scan(read_bytes(path), named(path))
        return records, end != total

    @classmethod
    def _scan(cls, raw: bytes, where: str) -> tuple[list[dict[str, Any]], int, int]:
        """The records, where the last whole one ends, and where the file ends."""
        if not raw.startswith(cls.HEADER):
            if cls.HEADER.startswith(raw):
                return [], 0, len(raw)
            raise FormatError(f"{where}: not a journal of this version of tritium: {raw[:20]!r} is how it begins.")
        records: list[dict[str, Any]] = []
        offset = len(cls.HEADER)
        while offset < len(raw):
            frame = _frame(raw, offset)
            if frame is None:
                _check_torn(raw, offset, len(records), where)
                break
            payload, offset = frame
            records.append(_journal_record(payload, len(records), where))
        return records, offset, len(raw)

    def _own(self) -> None:
        try:
            again(fcntl.flock, self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in LOCK_BUSY:
                raise BusyError(f"{named(self.path)}: another process is writing this journal. Wait for it.") from None
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                raise

    def _repair(self) -> int:
        raw = read_bytes(self.path)
        _, end, total = self._scan(raw, named(self.path))
        if end != total:
            settings.log.warning("%s: the last record was torn; %d bytes are left out.", named(self.path), total - end)
            again(os.ftruncate, self._handle, end)
        if end == 0:
            write_all(self._handle, self.HEADER)
            end = len(self.HEADER)
        flush(self._handle)
        sync(self.path.absolute().parent)
        return end

    def _take_back(self) -> None:
        try:
            again(os.ftruncate, self._handle, self._end)
        except OSError:
            self._broken = True


HEAD = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{8}) ")


def _framed(record: dict[str, Any]) -> bytes:
    payload = dumps(record).encode("utf-8", "backslashreplace")
    return b"%08x %08x %b\n" % (len(payload), zlib.crc32(payload), payload)


def _frame(raw: bytes, offset: int) -> tuple[bytes, int] | None:
    """The payload that begins here and where the next begins; None where there is no whole one."""
    head = HEAD.match(raw, offset)
    if head is None:
        return None
    size, check = int(head[1], 16), int(head[2], 16)
    start, end = offset + 18, offset + 18 + size
    if raw[end : end + 1] != b"\n" or zlib.crc32(raw[start:end]) != check:
        return None
    return raw[start:end], end + 1


def _check_torn(raw: bytes, offset: int, number: int, where: str) -> None:
    """A bad record at the end is what a kill leaves; one with whole records behind it is damage."""
    line = raw.find(b"\n", offset) + 1
    while line:
        if _frame(raw, line) is not None:
            raise FormatError(f"{where}: record {number + 1} (byte {offset}) is damaged, and whole ones follow it.")
        line = raw.find(b"\n", line) + 1


def _journal_record(payload: bytes, number: int, where: str) -> dict[str, Any]:
    place = f"{where}: record {number + 1}"
    record = loads(decoded(payload, place), place)
    if not isinstance(record, dict):
        raise FormatError(f"{place}: an object is needed.")
    return record

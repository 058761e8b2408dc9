"""The event hub of memory tracking: buffer, copy and transfer events with the op, the line of code and the thread.

While an op runs, only what cannot be determined later is recorded: a tuple in a queue, which the trackers process in
batches. There is one watcher of buffers, installed only while a tracker is attached.
"""

from __future__ import annotations

import atexit
import os
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any, Protocol

from tritium import buffer, launch
from tritium.arguments import GENERATED
from tritium.recording import acting

# kind, address or id, bytes, detail, time in ns, op, code, instruction offset, thread.
# The detail is True for a reused block, (source, target) of a transfer, or the device of a manually tracked buffer.
# A plain tuple: one is made for every allocation of the tracked program.
Raw = tuple[str, Any, int, Any, int, Any, CodeType | None, int, str]

BATCH = 4096  # events in the queue before the trackers process them
TRIES = 100  # attempts to start at a moment without pending events
PACKAGE = str(Path(__file__).parents[2]) + os.sep  # as code objects name their files
STANDARD = sysconfig.get_path("stdlib") + os.sep
# Origin of a file: user code; this package; modules every op passes through; a command, which has no user code behind it.
USER, OURS, MACHINERY, COMMAND = range(4)
CARRIES_OUT = (
    "backends", "buffer", "pure", "launch", "eager", "op.", "ops.", "tensor", "functions", "interop", "indexing", "see",
    "arguments",
)  # fmt: skip


class Listener(Protocol):
    """A tracker, as the hub knows it."""

    sites: bool

    def begin(self) -> None: ...
    def take(self, batch: Sequence[Raw]) -> None: ...


class _Local(threading.local):
    name = ""


_local = _Local()
_listeners: tuple[Listener, ...] = ()
_pending: deque[Raw] = deque()
_lock = threading.Lock()  # of the accounts; a watcher that cannot acquire it leaves its event in the queue
_changing = threading.RLock()
_origins: dict[str, int] = {}  # by file
_lines: dict[tuple[int, int], tuple[CodeType, str]] = {}


# ---- recording while an op runs


def _record(kind: str, address: int, nbytes: int, reused: bool) -> None:
    code: CodeType | None
    try:
        frame = sys._getframe(1)
        code = frame.f_code
        if _origins.get(code.co_filename) == USER:  # the caller is user code: no search needed
            offset = frame.f_lasti
        else:
            code, offset = place(frame)
    except ValueError:  # no Python code runs: the interpreter is ending
        code, offset = None, 0
    _pending.append(
        (kind, address, nbytes, reused, perf_counter_ns(), acting(), code, offset, _local.name or _thread_name())
    )
    if len(_pending) >= BATCH:
        drain(False)


def _record_without_site(kind: str, address: int, nbytes: int, reused: bool) -> None:
    _pending.append(
        (kind, address, nbytes, reused, perf_counter_ns(), acting(), None, 0, _local.name or _thread_name())
    )
    if len(_pending) >= BATCH:
        drain(False)


def _record_from_launch(kind: str, nbytes: int, where: str, elapsed_ns: int) -> None:
    """Record a hidden copy or a transfer reported by launch."""
    detail = tuple(where.partition("->")[::2]) if kind == "transfer" else where
    publish(make_event(kind, elapsed_ns, nbytes, detail, acting(), sys._getframe(1)))


def make_event(kind: str, key: Any, nbytes: int, detail: Any, op: Any, frame: FrameType) -> Raw:
    """Return an event that happens now, at the line of user code that led to this frame."""
    return (kind, key, nbytes, detail, perf_counter_ns(), op, *place(frame), _local.name or _thread_name())


def publish(raw: Raw) -> None:
    """Queue an event for all listeners; nothing happens without any."""
    if _listeners:
        _pending.append(raw)
        if len(_pending) >= BATCH:
            drain(False)


def _thread_name() -> str:
    _local.name = threading.current_thread().name
    return _local.name


def place(frame: FrameType) -> tuple[CodeType, int]:
    """Return the innermost code outside this package and the instruction offset; without any, the innermost of OURS."""
    current: FrameType | None = frame
    inner = None
    while current is not None:
        kind = _origins.get(current.f_code.co_filename)
        if kind is None:
            kind = _origins[current.f_code.co_filename] = _classify(current.f_code.co_filename)
        if kind == USER:
            return current.f_code, current.f_lasti
        if kind == COMMAND:
            break
        if kind == OURS and inner is None:
            inner = current
        current = current.f_back
    result = inner or frame
    return result.f_code, result.f_lasti


def _classify(file: str) -> int:
    if file == GENERATED:
        return MACHINERY
    if not file.startswith(PACKAGE):
        standard = (
            file.startswith(STANDARD) and "-packages" not in file
        )  # threads, caches, contexts call on behalf of others
        return MACHINERY if standard or file.startswith("<frozen ") else USER
    name = file[len(PACKAGE) :]
    return COMMAND if name.startswith("cli") else MACHINERY if name.startswith(CARRIES_OUT) else OURS


# ---- listeners


def drain(wait: bool = True) -> None:
    """Pass the queued events to all listeners."""
    if not _lock.acquire(wait):
        return
    try:
        batch = [_pending.popleft() for _ in range(len(_pending))]
        for listener in _listeners:
            listener.take(batch)
    finally:
        _lock.release()


def deliver(listener: Listener, raw: Raw) -> None:
    """Pass an event to one listener only, after all earlier events."""
    drain()
    with _lock:
        listener.take([raw])


def read(query: Callable[[], Any]) -> Any:
    """Return the result of a query of the accounts, with every event so far processed."""
    drain()
    with _lock:
        return query()


def attach(listener: Listener) -> None:
    """Attach a listener. `begin` reads the current figures; no event is both in them and delivered later."""
    global _listeners
    with _changing:
        _watch((*_listeners, listener))
        for _ in range(TRIES):
            drain()
            listener.begin()
            if not _pending:
                break
        _listeners = (*_listeners, listener)


def detach(listener: Listener) -> None:
    """Detach a listener after it has processed the events so far."""
    global _listeners
    with _changing:
        drain()
        _listeners = tuple(other for other in _listeners if other is not listener)
        _watch(_listeners)


def is_attached(listener: Listener) -> bool:
    return any(other is listener for other in _listeners)


def _watch(listeners: Sequence[Listener]) -> None:
    watcher = None if not listeners else _record if any(w.sites for w in listeners) else _record_without_site
    buffer.watch(watcher)
    launch.counters.heard = _record_from_launch if listeners else None
    if not listeners:
        _pending.clear()


@atexit.register
def _end() -> None:
    """Detach all listeners at exit: tensors are freed later than that."""
    global _listeners
    if _listeners:
        _listeners = ()
        _watch(())


def _reset_locks() -> None:
    """Replace the locks in a forked child: a thread of the parent may have held them."""
    global _lock, _changing
    _lock, _changing = threading.Lock(), threading.RLock()


os.register_at_fork(after_in_child=_reset_locks)

# ---- names


def site(code: CodeType | None, offset: int) -> str:
    """Return "file:line", the file relative to the working directory; "" if unknown."""
    if code is None:
        return ""
    key = (id(code), offset)
    entry = _lines.get(key)
    if entry is None:
        if len(_lines) >= 100_000:
            _lines.clear()
        entry = _lines[key] = (
            code,
            f"{_file(code.co_filename)}:{_line(code, offset)}",
        )  # the reference to the code keeps its id unique
    return entry[1]


def _line(code: CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


def _file(name: str) -> str:
    if name.startswith(PACKAGE):
        return f"tritium/{name[len(PACKAGE) :]}"
    try:
        here = os.getcwd() + os.sep
    except OSError:  # the folder was deleted
        return name
    return name[len(here) :] if name.startswith(here) else name


def op_name(op: Any) -> str:
    """Return the name of an op, a program or a user's label; "" for None."""
    if op is None or isinstance(op, str):
        return op or ""
    return str(getattr(op, "name", "") or type(op).__name__.lower())

"""One ear for all who track memory: what buffers, copies and transfers tell, with the op, the line of code and the thread.

Knows nothing of accounts. While an op runs, only what cannot be learnt later is noted: a tuple in a queue. The trackers
take the queue a batch at a time. There is one watcher of buffers; it is here while somebody tracks, and gone otherwise.
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
from tritium.recording import acting

# kind, address or id, bytes, detail, when, what was carried out, code, place in it, thread.
# The detail is whether an idle block was used again, of a transfer where from and to, or the device of a buffer told by hand.
Raw = tuple[str, Any, int, Any, int, Any, CodeType | None, int, str]

BATCH = 4096  # events in the queue before the trackers take them
TRIES = 100  # to begin at a moment when no event is on its way
PACKAGE = str(Path(__file__).parents[2]) + os.sep  # as code objects name their files
STANDARD = sysconfig.get_path("stdlib") + os.sep
# Whose a file is: the user's; ours; what every op goes through; a command, behind which there is no user's code.
USER, OURS, MACHINERY, COMMAND = range(4)
CARRIES_OUT = (
    "backends", "buffer", "pure", "launch", "eager", "op.", "ops.", "tensor", "functions", "interop", "indexing", "see",
)  # fmt: skip


class Listener(Protocol):
    """A tracker, as the hub knows it."""

    sites: bool

    def begin(self) -> None: ...
    def take(self, batch: Sequence[Raw]) -> None: ...


class _Here(threading.local):
    name = ""


_here = _Here()
_listeners: tuple[Listener, ...] = ()
_pending: deque[Raw] = deque()
_lock = threading.Lock()  # of the accounts; a watcher that finds it taken leaves its event in the queue
_changing = threading.RLock()
_whose: dict[str, int] = {}  # by file
_lines: dict[tuple[int, int], tuple[CodeType, str]] = {}


# ---- what is noted while an op runs


def _heard(kind: str, address: int, nbytes: int, reused: bool) -> None:
    code: CodeType | None
    try:
        frame = sys._getframe(1)
        code = frame.f_code
        if _whose.get(code.co_filename) == USER:  # the caller is the user's code: nothing to look for
            at = frame.f_lasti
        else:
            code, at = place(frame)
    except ValueError:  # no Python code runs: the interpreter is ending
        code, at = None, 0
    _pending.append((kind, address, nbytes, reused, perf_counter_ns(), acting(), code, at, _here.name or _name()))
    if len(_pending) >= BATCH:
        drain(False)


def _heard_without_sites(kind: str, address: int, nbytes: int, reused: bool) -> None:
    _pending.append((kind, address, nbytes, reused, perf_counter_ns(), acting(), None, 0, _here.name or _name()))
    if len(_pending) >= BATCH:
        drain(False)


def _told(kind: str, nbytes: int, where: str, elapsed_ns: int) -> None:
    """A hidden copy or a transfer, from launch."""
    detail = tuple(where.partition("->")[::2]) if kind == "transfer" else where
    tell(noted(kind, elapsed_ns, nbytes, detail, acting(), sys._getframe(1)))


def noted(kind: str, key: Any, nbytes: int, detail: Any, op: Any, frame: FrameType) -> Raw:
    """An event that happens now, at the user's line that led to this frame."""
    return (kind, key, nbytes, detail, perf_counter_ns(), op, *place(frame), _here.name or _name())


def tell(raw: Raw) -> None:
    """An event for everybody who listens."""
    if _listeners:
        _pending.append(raw)
        if len(_pending) >= BATCH:
            drain(False)


def _name() -> str:
    _here.name = threading.current_thread().name
    return _here.name


def place(frame: FrameType) -> tuple[CodeType, int]:
    """The innermost code outside of this package, and where in it; where there is none, the innermost that is no machinery."""
    at: FrameType | None = frame
    inner = None
    while at is not None:
        whose = _whose.get(at.f_code.co_filename)
        if whose is None:
            whose = _whose[at.f_code.co_filename] = _who(at.f_code.co_filename)
        if whose == USER:
            return at.f_code, at.f_lasti
        if whose == COMMAND:
            break
        if whose == OURS and inner is None:
            inner = at
        at = at.f_back
    found = inner or frame
    return found.f_code, found.f_lasti


def _who(file: str) -> int:
    if not file.startswith(PACKAGE):
        standard = (
            file.startswith(STANDARD) and "-packages" not in file
        )  # threads, caches, contexts: they call for others
        return MACHINERY if standard or file.startswith("<frozen ") else USER
    name = file[len(PACKAGE) :]
    return COMMAND if name.startswith("cli") else MACHINERY if name.startswith(CARRIES_OUT) else OURS


# ---- who listens


def drain(wait: bool = True) -> None:
    """Hand what waits in the queue to everybody who listens."""
    if not _lock.acquire(wait):
        return
    try:
        batch = [_pending.popleft() for _ in range(len(_pending))]
        for listener in _listeners:
            listener.take(batch)
    finally:
        _lock.release()


def alone(listener: Listener, raw: Raw) -> None:
    """An event for one listener only, after all that came before it."""
    drain()
    with _lock:
        listener.take([raw])


def read(looks: Callable[[], Any]) -> Any:
    """What a look at the accounts gives, with every event until now in them."""
    drain()
    with _lock:
        return looks()


def attach(listener: Listener) -> None:
    """Let someone listen from now on. `begin` reads the figures of the moment; no event is in them and told as well."""
    global _listeners
    with _changing:
        _listen((*_listeners, listener))
        for _ in range(TRIES):
            drain()
            listener.begin()
            if not _pending:
                break
        _listeners = (*_listeners, listener)


def detach(listener: Listener) -> None:
    """What was told until now is taken; nothing later."""
    global _listeners
    with _changing:
        drain()
        _listeners = tuple(other for other in _listeners if other is not listener)
        _listen(_listeners)


def listening(listener: Listener) -> bool:
    return any(other is listener for other in _listeners)


def _listen(who: Sequence[Listener]) -> None:
    watcher = None if not who else _heard if any(w.sites for w in who) else _heard_without_sites
    buffer.watch(watcher)
    launch.counters.heard = _told if who else None
    if not who:
        _pending.clear()


@atexit.register
def _end() -> None:
    """Tensors die while the interpreter ends, when there is nobody left to tell."""
    global _listeners
    if _listeners:
        _listeners = ()
        _listen(())


def _forked() -> None:
    """A child has the accounts of its parent, and locks that perhaps nobody there will ever give back."""
    global _lock, _changing
    _lock, _changing = threading.Lock(), threading.RLock()


os.register_at_fork(after_in_child=_forked)

# ---- names


def site(code: CodeType | None, at: int) -> str:
    """file:line, the file relative to where we are; "" where it is not known."""
    if code is None:
        return ""
    key = (id(code), at)
    found = _lines.get(key)
    if found is None:
        if len(_lines) >= 100_000:
            _lines.clear()
        found = _lines[key] = (code, f"{_file(code.co_filename)}:{_line(code, at)}")  # the code keeps its id its own
    return found[1]


def _line(code: CodeType, at: int) -> int:
    for start, end, line in code.co_lines():
        if start <= at < end and line is not None:
            return line
    return code.co_firstlineno


def _file(name: str) -> str:
    if name.startswith(PACKAGE):
        return f"tritium/{name[len(PACKAGE) :]}"
    try:
        here = os.getcwd() + os.sep
    except OSError:  # the folder is gone
        return name
    return name[len(here) :] if name.startswith(here) else name


def op_name(op: Any) -> str:
    """What an op, a program or a word of the user's is called; "" for nothing."""
    if op is None or isinstance(op, str):
        return op or ""
    return str(getattr(op, "name", "") or type(op).__name__.lower())

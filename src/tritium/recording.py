"""Record what ran and when as spans of time, while a recorder is active. Native replay continues meanwhile.

Knows nothing of ops or kernels: the code that runs something describes it. Times are those of time.perf_counter_ns.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from typing import Any, NamedTuple, Self, TypeVar, cast

import numpy as np

from tritium import buffer
from tritium.errors import ArgumentError

MOST = 100_000_000  # spans of one recorder: 3.2 GB
Columns = np.ndarray[Any, np.dtype[np.int64]]
Function = TypeVar("Function", bound=Callable[..., Any])

# The spans of those who record now; empty: nobody does. Every change of it is one step of the interpreter: no lock is held
# where a fork, or the end of an object, could meet it.
active: dict[Any, None] = {}
marker: Any = None  # .push(name) and .pop() of whoever shows scopes in another profiler; nvtx sets it
acting = buffer.acting  # the row, or the program's Ran, that this thread is at; None while nobody watches memory


class PureSpans:
    """The spans that one recorder keeps, in plain Python; the native library has the same."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.since_ns, self.dropped = capacity, 0, 0
        self.kept: deque[tuple[Any, int, int, int]] = deque()

    def start(self) -> None:
        self.since_ns = perf_counter_ns()

    def stop(self) -> None:
        """Do nothing: it is no longer active."""

    def add(self, what: Any, start_ns: int, elapsed_ns: int) -> None:
        if start_ns < self.since_ns:
            return
        if len(self.kept) < self.capacity:
            self.kept.append((what, start_ns, elapsed_ns, threading.get_ident()))
        else:
            self.dropped += 1

    def read(self) -> tuple[list[Any], bytearray]:
        return _columns(list(self.kept))

    def take(self) -> tuple[list[Any], bytearray]:
        spans: list[tuple[Any, int, int, int]] = []
        with suppress(IndexError):  # another thread takes too
            for _ in range(len(self.kept)):
                spans.append(self.kept.popleft())
        return _columns(spans)


def _columns(spans: list[tuple[Any, int, int, int]]) -> tuple[list[Any], bytearray]:
    return [s[0] for s in spans], bytearray(np.array([s[1:] for s in spans], np.int64).tobytes())


def _pure_add(what: Any, start_ns: int, elapsed_ns: int) -> None:
    for spans in tuple(active):
        spans.add(what, start_ns, elapsed_ns)


def _pure_cost_ns(n: int) -> float:
    spans = PureSpans(n)
    began = perf_counter_ns()
    for _ in range(n):
        start = perf_counter_ns()
        spans.add(None, start, perf_counter_ns() - start)
    return (perf_counter_ns() - began) / n


Spans: Any = PureSpans
add: Callable[[Any, int, int], None] = _pure_add  # what, start_ns, elapsed_ns: a span of this thread, for all
_cost_ns: Callable[[int], float] = _pure_cost_ns
if buffer.native is not None:
    Spans, add, _cost_ns = buffer.native.Spans, buffer.native.add_span, buffer.native.span_cost_ns


class Recorder:
    """Keeps the spans that begin and end while it runs, at most `capacity`; those that no longer fit are counted.

    Several may run at once, started and stopped by any thread; each keeps every span. A forked process records nothing
    until it starts a recorder of its own.
    """

    def __init__(self, capacity: int = 1_000_000) -> None:
        if not isinstance(capacity, int) or not 1 <= capacity <= MOST:
            raise ArgumentError(f"Recorder: capacity={capacity!r} is no number of spans; give 1 to {MOST}.")
        self._spans = Spans(capacity)
        weakref.finalize(self, _stop, self._spans)  # one that is let go while it runs, or at exit

    def start(self) -> None:
        """Keep what begins from now on; what was kept before stays."""
        if not active:
            _forget_threads()
        self._spans.start()
        active[self._spans] = None

    def stop(self) -> None:
        """Keep no more. What was kept can still be read."""
        _stop(self._spans)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def dropped(self) -> int:
        """Return the number of spans that were dropped because the recorder was full."""
        return int(self._spans.dropped)

    def read(self) -> tuple[list[Any], Columns]:
        """Return all spans so far, in no particular order: what ran (Launched, Ran, Scope), and int64[n, 3]: start_ns,
        elapsed_ns and the thread, as threading.get_ident() names it."""
        return _read(*self._spans.read())

    def take(self) -> tuple[list[Any], Columns]:
        """Return all spans so far and drop them: for periodic readers."""
        return _read(*self._spans.take())


def _read(whats: list[Any], numbers: bytearray) -> tuple[list[Any], Columns]:
    return whats, np.ndarray((len(whats), 3), np.int64, numbers)


def _stop(spans: Any) -> None:
    active.pop(spans, None)
    spans.stop()


def _begin_anew() -> None:
    """Stop all recorders in a forked process, where nothing would read them."""
    for spans in tuple(active):
        _stop(spans)
    _open.clear()
    _forget_threads()


os.register_at_fork(after_in_child=_begin_anew)


def carry_out(what: Any, fn: Callable[..., Any], *args: Any) -> Any:
    """Call fn(*args) as one span, with `what` as the result of acting() meanwhile."""
    if not active:
        return buffer.carry_out(what, fn, *args)
    start = perf_counter_ns()
    result = buffer.carry_out(what, fn, *args)
    add(what, start, perf_counter_ns() - start)
    return result


def event_cost_ns() -> float:
    """Measure the cost of one recorded span: two looks at the clock and keeping it. The median of short loops.

    Python's own path to a kernel, for calls that are not replayed, takes some microseconds more to say what ran.
    """
    return sorted(_cost_ns(500) for _ in range(9))[4]


def scope_cost_ns(scopes: int = 100) -> float | None:
    """Measure the cost of one entered and left scope while someone records: some microseconds, more than that of a span.

    None while others record, who would keep the scopes of the measurement.
    """
    if active:
        return None
    one, times = scope("cost of a scope"), list[float]()
    with Recorder(9 * scopes):
        for _ in range(9):
            start = perf_counter_ns()
            for _ in range(scopes):
                with one:
                    pass
            times.append((perf_counter_ns() - start) / scopes)
    return sorted(times)[4]


# ---- scopes


class Scope(NamedTuple):
    """The description in the span of a scope."""

    name: str


class Stage(NamedTuple):
    """The description in the span of a scope that takes over work: the item that the stage before it had finished."""

    name: str
    run: int  # of a pipeline: the stages of one run hand over to each other
    number: int  # of the stage
    item: int


traced: dict[int, list[str]] = {}  # by thread that traces a function: the names of the scopes it is in there
# By thread the scopes it is in, when it entered them, and who shows them elsewhere.
_open: dict[int, list[tuple[scope, int, Any]]] = {}
# By identity the names of the threads that had it in scopes, each since when: it is used again once its thread has ended.
_named: dict[int, list[tuple[int, str]]] = {}
_turn = object()  # another whenever names are to be learnt anew


class _Here(threading.local):
    """Thread-local state: the recording in which the thread's name was last noted."""

    turn: object = None


_here = _Here()


def _forget_threads() -> None:
    global _turn
    _named.clear()
    _turn = object()


def open_scopes() -> list[tuple[Scope | Stage, int, int]]:
    """Return the scopes that are open now, of all threads: what, since when, and the thread."""
    return [(one.what, start, thread) for thread, stack in list(_open.items()) for one, start, _ in list(stack)]


def named_threads() -> dict[int, list[tuple[int, str]]]:
    """Return by identity the names of the threads that entered scopes since recording began, each with when it was first seen."""
    return {thread: list(since) for thread, since in list(_named.items())}


def _meet(thread: int) -> None:
    """Note the name of this thread: when the profile ends it may be gone, and its identity another's."""
    _here.turn = _turn
    _named.setdefault(thread, []).append((perf_counter_ns(), threading.current_thread().name))


def _marked(what: Scope | Stage) -> Any:
    """Open the scope in another profiler too; who closes it there, None: nobody asked."""
    mark = marker
    if mark is not None:
        mark.push(what.name)
    return mark


def stage(name: str, run: int, number: int, item: int) -> scope:
    """Return the scope of one item in one stage of a pipeline; it waits for the same item in the stage before."""
    one = scope(name)
    one.what = Stage(name, run, number, item)
    return one


class scope:  # noqa: N801 (it is used as a word)
    """A name for a stretch of a program: `with scope("attention"):`, or `@scope("attention")` over a function.

    Its time is kept while someone records; otherwise it costs one test. One object may be entered again inside itself
    and by several threads at once. In a compiled function it is entered when the function is traced, not when its
    program runs: nodes recorded in it have its name. There should be no `await` and no `yield` inside: what other tasks
    do meanwhile is not its own, and a profile puts scopes that overlap so apart.
    """

    __slots__ = ("what",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ArgumentError(f"scope: a name is needed, given {type(name).__name__}: scope('attention').")
        self.what: Scope | Stage = Scope(name)

    def __repr__(self) -> str:
        return f"scope({self.what.name!r})"

    def __enter__(self) -> Self:
        if traced and (names := traced.get(threading.get_ident())) is not None:
            names.append(self.what.name)
        if active:
            thread = threading.get_ident()
            if _here.turn is not _turn:
                _meet(thread)
            _open.setdefault(thread, []).append((self, perf_counter_ns(), _marked(self.what)))
        return self

    def __exit__(self, *_: object) -> None:
        if traced and (names := traced.get(threading.get_ident())):
            names.pop()
        if _open:
            self._leave(threading.get_ident())

    def _leave(self, thread: int) -> None:
        stack = _open.get(thread, [])
        for i in range(len(stack) - 1, -1, -1):  # the last one, unless someone entered and left crosswise
            if stack[i][0] is self:
                _, start, mark = stack.pop(i)
                add(self.what, start, perf_counter_ns() - start)
                if mark is not None:
                    mark.pop()
                break
        if not stack:
            _open.pop(thread, None)

    def __call__(self, fn: Function) -> Function:
        if (
            not callable(fn)
            or inspect.iscoroutinefunction(fn)
            or inspect.isasyncgenfunction(fn)
            or inspect.isgeneratorfunction(fn)
        ):
            raise ArgumentError(
                f"{self!r}: {fn!r} is no plain function; use `with {self!r}:` around a part of it without await or yield."
            )

        @functools.wraps(fn)
        def inner(*args: Any, **kwargs: Any) -> Any:
            if not (active or traced):
                return fn(*args, **kwargs)
            with self:
                return fn(*args, **kwargs)

        return cast(Function, inner)

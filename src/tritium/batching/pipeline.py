"""Pipelines: stages that run concurrently, one thread each, with bounded channels between them and results in order.

Knows nothing of tensors or graphs: a stage is any callable of one item. A failure travels down the channels
behind the items before it, so a pipeline yields exactly what a plain loop over the stages yields.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any, NamedTuple

from tritium import recording
from tritium.arguments import checked_class, checked_except
from tritium.errors import ArgumentError, PipelineError, shown

Stage = Callable[[Any], Any]


class StageStats(NamedTuple):
    """Counts and times of one stage in a run."""

    name: str
    items: int  # finished
    busy_s: float  # in the stage itself
    waiting_in_s: float  # for an item: the stages before are slower
    waiting_out_s: float  # for room: the stages after are slower

    @property
    def waiting_s(self) -> float:
        return self.waiting_in_s + self.waiting_out_s


class PipelineStats(tuple[StageStats, ...]):
    """One entry for each stage; prints as a table that names the stage that bounds the pipeline."""

    @property
    def slowest(self) -> StageStats:
        """Return the stage that was busy longest: the others wait for it."""
        return max(self, key=lambda s: s.busy_s)

    def __str__(self) -> str:
        width = max(5, *(len(s.name) for s in self))
        lines = [f"{'stage':{width}}  {'items':>8}  {'busy':>10}  {'wait in':>10}  {'wait out':>10}"]
        for s in self:
            times = "  ".join(f"{t:>8.3f} s" for t in (s.busy_s, s.waiting_in_s, s.waiting_out_s))
            bounds = "  bounds the pipeline" if s is self.slowest and s.busy_s else ""
            lines.append(f"{s.name:{width}}  {s.items:>8}  {times}{bounds}")
        return "\n".join(lines)


@checked_class
class Pipeline:
    """`Pipeline([load, run, save], depth=2)`: every stage in a thread of its own, `depth` items between two of them.

    `for result in pipeline(items)` yields the results in order. Items are read as room becomes free: at most depth + 1 for
    each stage ahead of the consumer, so an endless source is fine. Threads end when the loop ends, however it ends.
    """

    @checked_except("stages", "depth")
    def __init__(self, stages: Sequence[Stage], depth: int = 2) -> None:
        if (
            callable(stages)
            or not isinstance(stages, Iterable)
            or hasattr(stages, "dtype")
            or isinstance(stages, range)
        ):
            raise ArgumentError(f"Pipeline: {shown(stages)} is not a list of stages; give Pipeline([load, run, save]).")
        self.stages = tuple(stages)
        if not self.stages:
            raise ArgumentError("Pipeline: no stages were given; give at least one callable of one item.")
        for i, stage in enumerate(self.stages):
            if not callable(stage):
                raise ArgumentError(f"Pipeline: stage {i} is {shown(stage)}, which cannot be called; give a function.")
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            raise ArgumentError(f"Pipeline: depth must be 1 or more items between two stages, given {depth!r}.")
        self.depth = depth
        self._latest = _Run(self.stages, depth, copy_context())

    def __call__(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the results in order; work starts when the first is requested."""
        if not isinstance(items, Iterable) and not hasattr(items, "__getitem__"):
            raise ArgumentError(f"Pipeline: {type(items).__name__} is not a list, generator or other source of items.")
        self._latest = run = _Run(self.stages, self.depth, copy_context())
        return run.results(items)

    def run(self, items: Iterable[Any]) -> list[Any]:
        """Return all results as a list."""
        return list(self(items))

    def stats(self) -> PipelineStats:
        """Return how the stages of the latest run spent their time; may be called while it runs."""
        return PipelineStats(
            StageStats(name_of(s), t.items, t.busy_s, t.waiting_in_s, t.waiting_out_s)
            for s, t in zip(self.stages, self._latest.tallies, strict=True)
        )


def name_of(stage: Stage) -> str:
    return str(getattr(stage, "__name__", type(stage).__name__))


class _ClosedError(Exception):
    """The channel was closed: its messages have no reader any more."""


class _End:
    """The message after the last item."""


@dataclass(frozen=True)
class _Failure:
    """The message in place of an item that failed: the stage (None: the source), and the error."""

    stage: int | None
    item: int
    error: BaseException


class _Channel:
    """Up to `depth` messages between one writer and one reader. Closing it wakes both."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.messages: deque[Any] = deque()
        self.closed = False
        self.changed = threading.Condition()

    def put(self, message: Any) -> None:
        with self.changed:
            while len(self.messages) >= self.depth and not self.closed:
                self.changed.wait()
            if self.closed:
                raise _ClosedError
            self.messages.append(message)
            self.changed.notify()

    def get(self) -> Any:
        with self.changed:
            while not self.messages and not self.closed:
                self.changed.wait()
            if self.closed:
                raise _ClosedError
            message = self.messages.popleft()
            self.changed.notify()
            return message

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.messages.clear()
            self.changed.notify_all()


@dataclass
class _Tally:
    """Counts and times of a stage so far; only its own thread writes them."""

    items: int = 0
    busy_s: float = 0.0
    waiting_in_s: float = 0.0
    waiting_out_s: float = 0.0


_runs = count()


class _Run:
    """One pass of items through the stages: a channel after every stage, the last of them read by the consumer."""

    def __init__(self, stages: tuple[Stage, ...], depth: int, context: Context) -> None:
        self.stages, self.context = stages, context
        self.channels = [_Channel(depth) for _ in stages]
        self.tallies = [_Tally() for _ in stages]
        self.number = next(_runs)  # names this run in a profile

    def results(self, items: Iterable[Any]) -> Iterator[Any]:
        feeds: list[Callable[[], Any]] = [_numbered(items), *(c.get for c in self.channels[:-1])]
        # Daemons: a consumer that is never finished nor dropped must not keep the process alive.
        threads = [
            threading.Thread(
                target=self.context.copy().run, args=(self._work, k, feed), name=f"pipeline-{k}", daemon=True
            )
            for k, feed in enumerate(feeds)
        ]
        try:
            for t in threads:
                t.start()
            while True:
                message = self.channels[-1].get()
                if message is _End:
                    return
                if isinstance(message, _Failure):
                    raise self._error(message) from message.error
                yield message[1]
                del message  # a large result must not stay alive until the next one arrives
        finally:
            self._stop(threads)

    def _stop(self, threads: list[threading.Thread]) -> None:
        for c in self.channels:
            c.close()
        if threading.current_thread() in threads:  # the garbage collector may drop an unfinished loop in any thread
            return
        for t in threads:
            if t.ident is not None:
                t.join()

    def _work(self, k: int, feed: Callable[[], Any]) -> None:
        try:
            while self._step(k, feed):
                pass
        except _ClosedError:
            pass
        for c in self.channels[:k]:  # results of the stages before this one have no reader now
            c.close()

    def _step(self, k: int, feed: Callable[[], Any]) -> bool:
        """Process one message; return False after the last. A function of its own, so that no item outlives its step."""
        tally, start = self.tallies[k], perf_counter()
        message = feed()
        received = perf_counter()
        tally.waiting_in_s += received - start
        if message is not _End and not isinstance(message, _Failure):
            number, value = message
            try:
                message = (number, self._call(k, number, value))
                tally.items += 1
            except BaseException as error:
                message = _Failure(k, number, error)
            del value
        done = perf_counter()
        tally.busy_s += done - received
        more = message is not _End and not isinstance(message, _Failure)
        self.channels[k].put(message)
        tally.waiting_out_s += perf_counter() - done
        return more

    def _call(self, k: int, number: int, value: Any) -> Any:
        """Call a stage; in a profile it is a scope that waits for the same item in the stage before."""
        if not recording.active:
            return self.stages[k](value)
        with recording.stage(name_of(self.stages[k]), self.number, k, number):
            return self.stages[k](value)

    def _error(self, failure: _Failure) -> PipelineError:
        k, why = failure.stage, f"{type(failure.error).__name__}: {failure.error}"
        where = "the source" if k is None else f"stage {k} ({name_of(self.stages[k])})"
        return PipelineError(f"Pipeline: {where} failed at item {failure.item}: {why}", stage=k, item=failure.item)


def _numbered(items: Iterable[Any]) -> Callable[[], Any]:
    """Return a function that reads the source: (number, item), then the end or the error it raised."""
    iterator: Iterator[Any] | None = None
    number = 0

    def feed() -> Any:
        nonlocal iterator, number
        try:
            if iterator is None:
                iterator = iter(items)
            message = (number, next(iterator))
        except StopIteration:
            return _End
        except BaseException as error:
            return _Failure(None, number, error)
        number += 1
        return message

    return feed

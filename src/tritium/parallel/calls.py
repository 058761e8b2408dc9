"""The calls of a model's programs, which every rank must make alike: rank 0 sends what it calls, the others compare or follow.

Knows nothing of models: a program is a function of tokens, places and caches. Where a program is run by every rank, the others compare
what they were called with; where rank 0 leads (a server, a command), they wait for its calls and make them.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, RLock, Thread
from typing import Any, NamedTuple

import numpy as np

from tritium.errors import RankError
from tritium.functions import asarray
from tritium.parallel.group import Group

Array = np.ndarray[Any, np.dtype[Any]]
IDLE_S = 3.0  # after which a leader tells the others that it is there and has nothing for them
MESSAGE = 1024  # numbers that are sent in one piece; longer calls take a second one
HEADER = 6
CALL, OPEN, DROP, IDLE, AGAIN, END = range(1, 7)


class Message(NamedTuple):
    """A message of rank 0: its kind, and numbers."""

    kind: int
    numbers: tuple[
        int, ...
    ] = ()  # of a call: program, session, sequences, tokens of each; of a session: number, slots, capacity, dtype
    arrays: tuple[Array, ...] = ()  # of a call: tokens, places and chosen rows


class Calls:
    """The channel from rank 0 to all others for the programs of one network."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.is_following = False
        self._lock = RLock()
        self._opened = 0
        self._dropped: list[int] = []
        self._end = Event()

    # ---- what a session needs

    def open(self, session: Any, slots: int, capacity: int, dtype: int) -> int:
        """Return the number of a new session, which all ranks make alike."""
        with self._lock:
            self._opened += 1
            numbers = (self._opened, slots, capacity, dtype)
            if not self.is_following:
                self._agree(Message(OPEN, numbers))
                weakref.finalize(session, self._dropped.append, self._opened)
            return self._opened

    def run(self, number: int, program: int, fn: Callable[..., Any], ids: Any, places: Any, *rest: Any) -> Any:
        """Run a program of a session on all ranks."""
        arrays = [np.asarray(t.numpy(), np.int32) for t in (ids, places, *(t for t in rest[:1] if t.ndim == 1))]
        with self._lock:
            self._agree(Message(CALL, (program, number, *arrays[0].shape), tuple(arrays)))
            try:
                return fn(ids, places, *rest)
            except BaseException as error:
                self.group.break_off(f"a step was left in the middle by {type(error).__name__}")
                raise

    def _agree(self, message: Message) -> None:
        """Send a message, or compare it with the one of rank 0."""
        if self.group.rank == 0:
            while self._dropped:
                self._send(Message(DROP, (self._dropped.pop(),)))
            self._send(message)
            return
        sent = self._receive()
        while sent.kind in (DROP, IDLE):
            sent = self._receive()
        same = sent[:2] == message[:2] and all(map(np.array_equal, sent.arrays, message.arrays))
        if not same:
            self.group.break_off("it was called with something else than rank 0")
            raise RankError(
                f"Rank {self.group.rank} was called with something else than rank 0: every rank must make the same calls, with the same "
                "tokens. Give samplers a seed, or let rank 0 lead and the others follow()."
            )

    # ---- messages

    def _send(self, message: Message) -> None:
        flat = np.concatenate([np.zeros(0, np.int32), *(a.reshape(-1) for a in message.arrays)])
        head = np.zeros(MESSAGE, np.int32)
        head[:2] = message.kind, flat.size
        head[2 : 2 + len(message.numbers)] = message.numbers
        head[HEADER : HEADER + flat.size] = flat[: MESSAGE - HEADER]
        self.group.broadcast(head)
        if flat.size > MESSAGE - HEADER:
            self.group.broadcast(np.ascontiguousarray(flat[MESSAGE - HEADER :]))

    def _receive(self) -> Message:
        head = self.group.broadcast(np.zeros(MESSAGE, np.int32))
        kind, size = head[:2].tolist()
        flat = head[HEADER : HEADER + size]
        if size > MESSAGE - HEADER:
            flat = np.concatenate([flat, self.group.broadcast(np.zeros(size - (MESSAGE - HEADER), np.int32))])
        count = {CALL: 4, OPEN: 4, DROP: 1}.get(kind, 0)
        numbers = tuple(head[2 : 2 + count].tolist())
        if kind != CALL:
            return Message(kind, numbers)
        rows, tokens = numbers[2:]
        ids, places, chosen_rows = np.split(flat, np.cumsum([rows * tokens, rows * 3]))
        arrays = (ids.reshape(rows, tokens), places.reshape(rows, 3), *([chosen_rows] if chosen_rows.size else []))
        return Message(kind, numbers, arrays)

    # ---- leading and following

    def lead(self) -> None:
        """Have rank 0 keep in touch while it has no calls, and tell the others when it ends."""
        if self.group.ranks > 1:
            Thread(target=self._stay_in_touch, name="tritium-rank-0", daemon=True).start()
            atexit.register(self.end)

    def _stay_in_touch(self) -> None:
        while not self._end.wait(IDLE_S):
            with self._lock:
                if self._end.is_set() or self.group.has_failed:
                    return
                try:
                    self._send(Message(IDLE))
                except RankError:
                    return  # the group tells it, and so does the next call

    def end(self, *, again: bool = False) -> None:
        """Tell the others that no more calls of this network will come; again: and that it is read once more."""
        with self._lock, suppress(RankError):  # who is gone need not be told
            if not self._end.is_set() and not self.group.has_failed:
                self._send(Message(AGAIN if again else END))
        self._end.set()

    def follow(self, make: Callable[[int, int, int], Any], programs: Sequence[Callable[..., Any]]) -> bool:
        """Make the calls of rank 0 until it ends; return True if it then reads the network again. make: a session from slots, capacity
        and dtype, whose caches programs write."""
        sessions: dict[int, Any] = {}
        self.is_following = True
        try:
            while (message := self._receive()).kind not in (AGAIN, END):
                if message.kind == OPEN:
                    number, *sizes = message.numbers
                    sessions[number] = make(*sizes)
                elif message.kind == DROP:
                    sessions.pop(message.numbers[0], None)
                elif message.kind == CALL:
                    program, number = message.numbers[:2]
                    programs[program](*map(asarray, message.arrays), *sessions[number].caches)
            return message.kind == AGAIN
        finally:
            self.is_following = False

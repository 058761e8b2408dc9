"""The threads that turn bodies into prompts and formats into grammars, with a bound on what waits for them and a share for each client.

Short bodies have a thread of their own: however many long ones are being split into tokens, a short request waits for
short ones only. Formats have one too, so that a large one delays other formats alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tritium.serve.protocols.common import ProtocolError

SHORT_BYTES = 64 << 10  # of a body; longer ones take the lane for long bodies
SHORT_BODIES = 128  # that wait or are read at once
LONG_BODIES = 16
FORMATS = 64

T = TypeVar("T")


class Lane:
    """One thread and what waits for it; a client may hold half of the places."""

    def __init__(self, name: str, places: int) -> None:
        self.places, self.share = places, max(1, places // 2)
        self.held: Counter[str] = Counter()  # bodies by client; changed by the event loop alone
        self._pool = ThreadPoolExecutor(1, f"tritium-serve-{name}")

    async def run(self, client: str, call: Callable[[], T]) -> T:
        """Call in the thread; ProtocolError at once when there is no place."""
        if self.held.total() >= self.places:
            raise _busy(503, f"{self.places} requests wait to be read, the most this server keeps.")
        if self.held[client] >= self.share:
            raise _busy(429, f"{self.share} requests from your address wait to be read, the most this server keeps.")
        self.held[client] += 1
        future = self._pool.submit(_call, call)
        # A client that leaves frees its place only when the thread is done with its body.
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _soon(loop, lambda: self._free(client)))
        return await asyncio.wrap_future(future)

    def _free(self, client: str) -> None:
        self.held[client] -= 1
        if not self.held[client]:
            del self.held[client]

    def close(self) -> None:
        """End the thread, after the body it is reading."""
        self._pool.shutdown(cancel_futures=True)


class Intake:
    """A lane for short bodies, one for long ones, and one for formats."""

    def __init__(self) -> None:
        self.short, self.long = Lane("short", SHORT_BODIES), Lane("long", LONG_BODIES)
        self.formats = Lane("formats", FORMATS)

    async def run(self, nbytes: int, client: str, call: Callable[[], T]) -> T:
        """Call in the thread for bodies of this size; ProtocolError at once when too many wait."""
        return await (self.short if nbytes <= SHORT_BYTES else self.long).run(client, call)

    def close(self) -> None:
        """End the threads."""
        for lane in (self.short, self.long, self.formats):
            lane.close()


def _call(call: Callable[[], T]) -> T:
    try:
        return call()
    except Exception:
        raise
    except BaseException as error:  # a panic of a binding; in the event loop it would end more than this request
        raise RuntimeError(f"a body could not be read: {type(error).__name__}: {error}") from error


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # the loop has ended, and its counts with it
        return


def _busy(status: int, message: str) -> ProtocolError:
    return ProtocolError(status, f"{message} Try again later.", code="busy", headers={"retry-after": "1"})

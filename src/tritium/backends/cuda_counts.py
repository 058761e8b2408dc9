"""Memory of a GPU that launches hand on: numbers that are zero between them, and room for sums of parts.

Knows nothing of kernels.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import torch

from tritium.backends.cuda_weights import Value, capturing


class Counters:
    """Numbers that are zero between launches, for programs of one launch that count each other.

    A launch takes those of its stream, where launches follow each other. One that goes into a graph takes some that nobody
    else gets: its graph may run beside anything. They are kept for good, since nobody says when a graph is gone.
    """

    AHEAD = 1 << 16  # that are ready for a capture, which can zero none: those of some hundred launches
    LINE = 32  # of them are given together, so that no two launches write to one line of the cache

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._kept: list[torch.Tensor] = []
        self._fresh = self._zeros(0)
        self._streams: dict[int, torch.Tensor] = {}
        self._lock = threading.Lock()

    def _zeros(self, n: int) -> torch.Tensor:
        made = torch.zeros(n, dtype=torch.int32, device=self.device)
        self._kept.append(made)
        return made

    def some(self, n: int) -> torch.Tensor:
        """n of them for a launch on the current stream."""
        n = -(-n // self.LINE) * self.LINE
        on_gpu = self.device.type == "cuda"
        with self._lock:
            if capturing():
                if self._fresh.numel() < n:  # the graph zeroes them itself, each time it runs
                    return torch.zeros(n, dtype=torch.int32, device=self.device)
                found, self._fresh = self._fresh[:n], self._fresh[n:]
                return found
            stream = torch.cuda.current_stream(self.device) if on_gpu else None
            key = stream.cuda_stream if stream is not None else 0
            if key not in self._streams or self._streams[key].numel() < n:
                self._streams[key] = self._zeros(2 * n)
            if stream is not None and self._fresh.numel() < self.AHEAD:
                self._fresh = self._zeros(2 * self.AHEAD)
                stream.synchronize()  # graphs that take them run on other streams
            return self._streams[key]


@lru_cache
def counters(device: torch.device) -> Counters:
    """Those of a device."""
    return Counters(device)


class Workspace:
    """Sums of the parts of tiles that programs share, and how many of them are there: counts are zero between launches.

    One launch at a time may use it. Launches on a stream follow each other, so there is one for each stream. Graphs captured on
    one stream share its workspace: they are replayed one after the other, as those of `cuda_graph` are, or each is given its own.
    A graph names memory by its address, so what was handed out stays for as long as the workspace: room at least doubles when it
    grows, and all that was left behind is less than what is used. Nothing grows while a stream is captured, for what is made
    then belongs to that graph and is zero only where it has run: who captures with too little room gets memory of the graph, which
    each replay sets to zero.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.partial = self.counts = torch.zeros(0, dtype=torch.int32, device=device)
        self._left: list[Value] = []  # rooms before: captured graphs may name them
        self._lock = threading.Lock()

    def sized(self, sums: int, tiles: int) -> tuple[Value, Value]:
        """Room for so many sums, of any values, and so many counts, all zero."""
        enough = self.partial.numel() >= sums and self.counts.numel() >= tiles
        if not enough and capturing():
            return self._new(torch.empty, sums), self._new(torch.zeros, tiles)
        with self._lock:
            if self.partial.numel() < sums:
                self.partial = self._new(torch.empty, self._grown(self.partial, sums))
            if self.counts.numel() < tiles:
                self.counts = self._new(torch.zeros, self._grown(self.counts, tiles))
            return self.partial, self.counts

    def _new(self, make: Any, size: int) -> Value:
        made: Value = make(size, dtype=torch.int32, device=self.device)
        return made

    def _grown(self, room: Value, least: int) -> int:
        self._left.append(room)
        return max(least, 2 * room.numel())


_spaces: dict[tuple[int, int], Workspace] = {}


def workspace(device: torch.device) -> Workspace:
    """That of the current stream of a device."""
    on_gpu = device.type == "cuda"
    key = (device.index or 0, torch.cuda.current_stream(device).cuda_stream) if on_gpu else (0, 0)
    found = _spaces.get(key)
    return found if found is not None else _spaces.setdefault(key, Workspace(device))

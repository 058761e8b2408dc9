"""GPU memory shared by successive launches: counters that are zero between them."""

from __future__ import annotations

import threading
from functools import lru_cache

import torch

from tritium.backends.cuda.gpu import capturing, make_apart


class Counters:
    """Counters that are zero between launches, by which the CTAs of one launch count each other.

    A launch takes those of its stream, where launches run in order. A launch that is captured takes counters of its
    own, since its graph may run beside anything. They are never freed: nothing reports when a graph is destroyed.
    """

    AHEAD = 1 << 16  # that are ready for a capture, which can zero none: those of some hundred launches
    LINE = 32  # of them are handed out together, so that no two launches write to one line of the cache

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._kept: list[torch.Tensor] = []
        self._fresh = self._zeros(0)
        self._streams: dict[int, torch.Tensor] = {}
        self._lock = threading.Lock()

    def _zeros(self, n: int) -> torch.Tensor:
        zeros = make_apart(lambda: torch.zeros(n, dtype=torch.int32, device=self.device), self.device)
        self._kept.append(zeros)
        return zeros

    def some(self, n: int) -> torch.Tensor:
        """Return n counters for a launch on the current stream."""
        n = -(-n // self.LINE) * self.LINE
        on_gpu = self.device.type == "cuda"
        with self._lock:
            if capturing():
                if self._fresh.numel() < n:  # the graph zeroes them itself, each time it runs
                    return torch.zeros(n, dtype=torch.int32, device=self.device)
                counts, self._fresh = self._fresh[:n], self._fresh[n:]
                return counts
            stream = torch.cuda.current_stream(self.device) if on_gpu else None
            key = stream.cuda_stream if stream is not None else 0
            if key not in self._streams or self._streams[key].numel() < n:
                self._streams[key] = self._zeros(2 * n)
            if stream is not None and self._fresh.numel() < self.AHEAD:
                self._fresh = self._zeros(2 * self.AHEAD)
            return self._streams[key]


@lru_cache
def counters(device: torch.device) -> Counters:
    """Return the counters of a device."""
    return Counters(device)

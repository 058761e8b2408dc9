"""The memory of the slots of a session as bytes: what each token takes, and what each recurrent state takes.

Knows nothing of models or tokens. A session has two kinds of tensors: positional ones [slots, heads, capacity, D], of which tokens
take a part each, and states [slots, ...], which hold all tokens of a slot as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tritium import ops
from tritium.functions import asarray
from tritium.tensor import Tensor

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class SlotMemory:
    """Reads and writes the memory of slots. One thread at a time, and never while a program runs."""

    def __init__(self, positional: Sequence[Tensor], states: Sequence[Tensor] = ()) -> None:
        self._positional, self._states = tuple(positional), tuple(states)
        self._host = all(t.device.type == "cpu" for t in (*positional, *states))
        # On the host both are views: the same memory that programs read and write.
        self._positional_views = [_as_bytes(t) for t in positional] if self._host else []
        self._state_views = [_as_bytes(t) for t in states] if self._host else []

    @property
    def token_shapes(self) -> list[tuple[int, int]]:
        """Return heads and bytes of a head for one token, for each positional tensor."""
        return [(t.shape[1], t.shape[3] * t.dtype.numpy.itemsize) for t in self._positional]

    @property
    def token_bytes(self) -> int:
        """Return the bytes of one token."""
        return sum(heads * width for heads, width in self.token_shapes)

    @property
    def state_sizes(self) -> list[int]:
        """Return the bytes of a slot in each state."""
        return [t.nbytes // t.shape[0] for t in self._states]

    @property
    def state_bytes(self) -> int:
        """Return the bytes of all states of one slot; 0: nothing is recurrent."""
        return sum(self.state_sizes)

    def read(self, slot: int, start: int, stop: int) -> list[Bytes]:
        """Return tokens of a slot as [heads, tokens, bytes], one array for each positional tensor; on the host a view."""
        if self._host:
            return [view[slot, :, start:stop] for view in self._positional_views]
        return [_as_bytes(t[slot, :, start:stop]) for t in self._positional]

    def write(self, slot: int, start: int, parts: Sequence[Bytes]) -> None:
        """Write tokens that `read` returned, from a position on."""
        if self._host:
            for view, part in zip(self._positional_views, parts, strict=True):
                view[slot, :, start : start + part.shape[1]] = part
            return
        for t, part in zip(self._positional, parts, strict=True):
            values = np.ascontiguousarray(part).view(t.dtype.numpy).swapaxes(0, 1)[None]
            places = asarray(np.array([[slot, start, part.shape[1]]], np.int32), device=t.device)
            ops.update_cache(t, asarray(np.ascontiguousarray(values), device=t.device), places, out=t)

    def copy(self, source: int, slot: int, start: int, stop: int) -> None:
        """Copy tokens of one slot to the same positions of another."""
        self.write(slot, start, self.read(source, start, stop))

    def read_state(self, slot: int) -> list[Bytes]:
        """Return a copy of the states of a slot."""
        if self._host:
            return [view[slot].reshape(-1).copy() for view in self._state_views]
        return [_as_bytes(t[slot]).reshape(-1).copy() for t in self._states]

    def write_state(self, slot: int, parts: Sequence[Bytes]) -> None:
        """Write states that `read_state` returned."""
        if self._host:
            for view, part in zip(self._state_views, parts, strict=True):
                view[slot] = part.reshape(view.shape[1:])
            return
        for t, part in zip(self._states, parts, strict=True):
            t[slot] = asarray(part.view(t.dtype.numpy).reshape(t.shape[1:]), device=t.device)


def _as_bytes(t: Tensor) -> Bytes:
    """Return the elements of a tensor as bytes: a view of a contiguous one on the host, else a copy."""
    array = np.asarray(t.numpy())
    return (array if array.flags.c_contiguous else np.ascontiguousarray(array)).view(np.uint8)

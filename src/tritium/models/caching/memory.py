"""The memory of the slots of a session as bytes: what each token takes, and what each recurrent state takes.

A session has two kinds of tensors: positional ones [slots, heads, capacity, D], of which tokens take a part each, and states [slots, ...],
which hold all tokens of a slot as one. Positional ones may be paged: [blocks, heads, BLOCK, D].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tritium import ops
from tritium.functions import asarray
from tritium.models.caching.blocks import BLOCK, Blocks, blocks_for
from tritium.tensor import Tensor

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class SlotMemory:
    """Reads and writes the memory of slots. One thread at a time, and never while a program runs."""

    def __init__(
        self, positional: Sequence[Tensor], states: Sequence[Tensor] = (), blocks: Blocks | None = None,
        hold: Callable[[Mapping[int, int]], None] | None = None,
    ) -> None:  # fmt: skip
        self._positional, self._states, self._blocks = tuple(positional), tuple(states), blocks
        self._hold = hold  # gives slots of a paged cache the blocks for so many tokens
        self._host = blocks is None and all(t.device.type == "cpu" for t in (*positional, *states))
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
        return [_as_bytes(self._tokens(t, slot, start, stop)) for t in self._positional]

    def _tokens(self, t: Tensor, slot: int, start: int, stop: int) -> Tensor:
        """Return tokens of a slot on their device, [heads, tokens, D]."""
        if self._blocks is None:
            return t[slot, :, start:stop]
        first = start // BLOCK
        numbers = self._blocks.rows(slot)[first : blocks_for(stop)]
        blocks = ops.permute_dims(ops.take(t, asarray(numbers, device=t.device), axis=0), (1, 0, 2, 3))
        tokens = blocks.reshape(t.shape[1], len(numbers) * BLOCK, t.shape[3])
        return tokens[:, start - first * BLOCK : stop - first * BLOCK]

    def write(self, slot: int, start: int, parts: Sequence[Bytes]) -> None:
        """Write tokens that `read` returned, from a position on."""
        if self._host:
            for view, part in zip(self._positional_views, parts, strict=True):
                view[slot, :, start : start + part.shape[1]] = part
            return
        for t, part in zip(self._positional, parts, strict=True):
            self._put(t, slot, start, asarray(np.ascontiguousarray(part).view(t.dtype.numpy), device=t.device))

    def _put(self, t: Tensor, slot: int, start: int, tokens: Tensor) -> None:
        """Write tokens [heads, tokens, D] to a slot on their device."""
        count = tokens.shape[1]
        place = np.array([[slot, start, count]], np.int32)
        if self._blocks is not None and self._hold is not None:
            self._hold({slot: start + count})
            place = np.concatenate((place, self._blocks.rows([slot])), axis=1)
        values = ops.expand_dims(ops.permute_dims(tokens, (1, 0, 2)), 0)
        ops.update_cache(t, values, asarray(place, device=t.device), out=t)

    def copy(self, source: int, slot: int, start: int, stop: int) -> None:
        """Copy tokens of one slot to the same positions of another, where they are."""
        if self._host:
            self.write(slot, start, self.read(source, start, stop))
            return
        for t in self._positional:
            self._put(t, slot, start, self._tokens(t, source, start, stop))

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

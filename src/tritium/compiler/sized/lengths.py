"""Lengths: the sizes that the tensors of calls of one structure had, and which of them vary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tritium.graph.size import LEAST, MOST, Sizes
from tritium.layout import Shape, contiguous_strides
from tritium.op import Spec
from tritium.tensor import Tensor

MAX_VALUES = 3  # of a size, with a program each; with one more it varies
MAX_SEEN = 32  # calls whose sizes are remembered
MAX_PROGRAMS = 8  # of sizes that vary, for calls of one structure: each serves the sizes that branch alike

Place = tuple[int, int]  # a tensor of a call, and an axis of it


class Lengths:
    """The sizes of calls of one structure that needed a program."""

    def __init__(self) -> None:
        self.seen: list[tuple[Shape, ...]] = []
        self.constants: dict[Place, str] = {}  # why a size cannot vary
        self.keys: list[Any] = []  # of the cached programs for sizes that vary, the last one first

    def see(self, shapes: tuple[Shape, ...]) -> None:
        """Remember the sizes of a call that needs a new program."""
        if shapes not in self.seen:
            self.seen = [*self.seen[1 - MAX_SEEN :], shapes]

    def groups(self, shapes: tuple[Shape, ...]) -> list[list[Place]]:
        """Return the sizes of a call that vary. Those that were equal in every call are one group: they are one size."""
        by_values: dict[tuple[int, ...], list[Place]] = {}
        for leaf, shape in enumerate(shapes):
            for axis, size in enumerate(shape):
                values = tuple(call[leaf][axis] for call in self.seen)
                if LEAST <= size <= MOST and len({n for n in values if n >= LEAST}) > MAX_VALUES:
                    by_values.setdefault(values, []).append((leaf, axis))
        # If one place of a group needs a program for each size, all do: they are the same size.
        return [places for places in by_values.values() if not any(p in self.constants for p in places)]

    def fix(self, reasons: Mapping[Place, str]) -> None:
        """Keep a program for each value of these sizes from now on."""
        self.constants |= reasons


def describe(leaves: Sequence[Tensor], groups: Iterable[list[Place]], names: Sequence[str], sizes: Sizes) -> list[Any]:
    """Return the tensors of a call as a trace takes them, with a size that varies for each group."""
    shapes: list[list[Any]] = [list(x.shape) for x in leaves]
    for places in groups:
        leaf, axis = places[0]
        size = sizes.add(f"{names[leaf]}.shape[{axis}]", leaves[leaf].shape[axis])
        for leaf, axis in places:
            shapes[leaf][axis] = size
    described: list[Spec | Tensor] = []
    for x, shape in zip(leaves, map(tuple, shapes), strict=True):
        if x.is_contiguous():
            described.append(Spec(shape, x.dtype))
        else:
            described.append(Tensor(x.storage, x.dtype, shape, x.strides, x.offset))
    return described


def strides_of(x: Spec | Tensor) -> Shape:
    """Return the strides of a tensor that was described."""
    if isinstance(x, Tensor):
        return x.strides
    return x.strides if x.dtype.is_packed else contiguous_strides(x.shape)

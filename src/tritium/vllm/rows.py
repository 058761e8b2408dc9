"""The weights of a file as tensors whose rows are read when they are used: those that a rank takes, and no others.

An engine narrows a weight to a rank's rows before it copies them; narrowing here reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tritium.io.model.entry import Entry, ModelFile
from tritium.io.reader import forget
from tritium.parallel.shares import part

aten = torch.ops.aten
Read = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


class FileRows(torch.Tensor):
    """A matrix of a file. A slice of its rows is one too; any other op reads the rows that it has."""

    read: Read
    rows: range

    @staticmethod
    def __new__(cls, read: Read, rows: range, columns: int, dtype: torch.dtype) -> FileRows:
        matrix: FileRows = torch.Tensor._make_wrapper_subclass(cls, (len(rows), columns), dtype=dtype)
        return matrix

    def __init__(self, read: Read, rows: range, columns: int, dtype: torch.dtype) -> None:
        self.read, self.rows = read, rows

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"FileRows({tuple(self.shape)}, rows {self.rows.start} to {self.rows.stop})"

    def load(self) -> torch.Tensor:
        """Return its numbers."""
        numbers = self.read(np.arange(self.rows.start, self.rows.stop))
        return torch.from_numpy(np.array(numbers)).reshape(self.shape).to(self.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.slice.Tensor and not kwargs:
            x: Any = args[0]
            bounds = tuple(args[1:])
            dim, start, stop, step = bounds + (0, None, None, 1)[len(bounds) :]
            if dim in (0, -2) and step == 1:
                return cls(x.read, x.rows[slice(start, stop)], x.shape[1], x.dtype)
        if func in (aten.detach.default, aten.alias.default):
            return cls(args[0].read, args[0].rows, args[0].shape[1], args[0].dtype)
        args, kwargs = pytree.tree_map_only(cls, lambda x: x.load(), (args, kwargs or {}))
        return func(*args, **kwargs)


def narrowest(file: ModelFile, rank: int, ranks: int) -> int:
    """Return the fewest columns that share a scale in one rank's part of the ternary weights; 0 where rows have one each."""
    groups = {0}
    for entry in file.entries.values():
        if entry.role == "ternary":
            own = part(entry.shape[0], rank, ranks)
            groups.add(entry.ternary_rows(np.arange(own.start, own.stop)).group)
            forget(entry.raw())
    return min(groups - {0}, default=0)


def tensors(file: ModelFile, group: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a file by Hugging Face's names: integers and scales, for groups of so many columns, of ternary ones, numbers
    of the others."""
    for name, entry in file.named.items():
        if entry.role == "ternary":
            rows, columns = range(entry.shape[0]), entry.shape[1]
            scales = columns // group if group else 1
            yield name, FileRows(_values(entry), rows, columns, torch.int8)
            yield (
                f"{name.removesuffix('.weight')}.weight_scale",
                FileRows(_scales(entry, group), rows, scales, torch.float32),
            )
        else:
            yield name, _numbers(entry)


def _values(entry: Entry) -> Read:
    return lambda rows: entry.ternary_rows(rows).values()


def _scales(entry: Entry, group: int) -> Read:
    """Return what reads the scales of rows, each with as many as the groups of a row."""

    def read(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        scale = entry.ternary_rows(rows).regrouped(group).scale
        return scale if scale.ndim else np.full(len(rows), scale, np.float32)

    return read


def _numbers(entry: Entry) -> torch.Tensor:
    numbers = entry.float32()
    return torch.from_numpy(np.array(numbers + np.float32(entry.shift) if entry.shift else numbers))

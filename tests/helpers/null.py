"""A second device for tests: its own memory, the reference's kernels with some rows left out, and a count of transfers.

Rows of LOWERED have no kernel but are made of rows that have one; rows of MISSING have neither.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tritium import buffer, ops, pure
from tritium.backends import Backend, Device, Kernel
from tritium.backends.reference import kernels as reference, packed
from tritium.buffer import Array
from tritium.op import OPS

LOWERED = tuple(row for row in OPS.values() if row.lower)
MISSING = (ops.sort, ops.cumulative_sum, ops.masked)


class Null(Backend):
    """Memory of its own, seen by NumPy; nothing else may touch it."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.storage = type("NullStorage", (pure.Storage,), {"__slots__": (), "device": device})
        known = {row: fn for row, fn in reference.KERNELS.items() if row not in LOWERED + MISSING}
        self.kernels = {row: [Kernel("null", fn)] for row, fn in known.items()}
        self.dynamic = {row: fn for row, fn in reference.DYNAMIC.items() if row not in MISSING}
        self.uploads = self.downloads = 0

    def allocate(self, nbytes: int) -> Any:
        return self.storage(nbytes)

    def array(self, a: Array) -> np.ndarray[Any, Any]:
        assert isinstance(a.storage, self.storage), f"{a.storage!r} is not memory of {self.device}"
        return packed.seen(a)

    def upload(self, data: np.ndarray[Any, Any], to: Array) -> None:
        self.uploads += 1
        buffer.host(to)[...] = data

    def download(self, a: Array) -> np.ndarray[Any, Any]:
        self.downloads += 1
        return buffer.host(a).copy()

    def describe(self) -> dict[str, str]:
        return {"kernels": "the reference's, on memory of its own"}


class Broken(Null):
    """Wrong in ways the conformance kit must see."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)

        def off_by_one(x1: Any, x2: Any, *, out: Any) -> None:
            np.add(x1, x2 + 1, out=out)

        def fails(x: Any, *, out: Any) -> None:
            raise RuntimeError("no such thing")

        self.kernels = dict(self.kernels) | {
            ops.add: [Kernel("wrong", off_by_one)],
            ops.exp: [Kernel("failing", fails)],
        }

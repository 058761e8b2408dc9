"""Ops that a test registers for a while, with a kernel in Python and no native one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tritium as tt
from tritium.backends import Kernel
from tritium.op import OPS, Kind, Op, op


@contextmanager
def registered(
    rule: Callable[..., Any], kernel: Callable[..., Any] | None, kind: Kind = Kind.MOVE, **columns: Any
) -> Iterator[Op]:
    """Yield an op of this rule; the CPU has this kernel for it, or none."""
    row = op(kind, **columns)(rule)
    kernels: Any = tt.device("cpu").backend.kernels
    if kernel is not None:
        kernels[row] = [Kernel("own", kernel)]
    try:
        yield row
    finally:
        del OPS[row.name]
        kernels.pop(row, None)

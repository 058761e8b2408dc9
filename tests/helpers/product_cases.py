"""What tests of native products share: operands of every dtype and layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import tritium as tt
from tritium import dtype as dt
from tritium.tensor import Tensor

BY_CODE = {t.code: t for t in (dt.i8, *dt.PACKED)}


def draw(t: dt.DType, shape: tuple[int, int], seed: int) -> Any:
    low, high = t.values if t.is_packed else (-128, 127)
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(np.int8)


def packed(w: Any, t: dt.DType) -> Tensor:
    return tt.repack(tt.tensor(w), t)


def layouts(x: Any) -> Iterator[tuple[str, Tensor]]:
    yield "contiguous", tt.tensor(x)
    yield "columns apart", tt.tensor(np.repeat(x, 3, axis=-1))[..., ::3]
    yield "rows apart", tt.tensor(np.repeat(x, 2, axis=0))[::2]
    yield "transposed", tt.tensor(np.ascontiguousarray(x.T)).T
    yield "backwards", tt.flip(tt.tensor(np.flip(x).copy()))

"""Rows that torch carries out on complex numbers, on the host.

Rows of real numbers are made for floats and integers: none of them is used for complex numbers unless it only moves
elements, and is listed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tritium import ops
from tritium.backends import Kernel
from tritium.backends.torch.maps import Fn, Maker, copied, same
from tritium.backends.torch.space import Value
from tritium.op import OPS, Op, Spec

_FUNCTIONS = """add subtract multiply divide pow abs negative square reciprocal sqrt exp log log1p log2 log10 sin cos tan asin acos
    atan sinh cosh tanh asinh acosh atanh equal not_equal isnan isinf isfinite""".split()
_SAME_FOR_ALL = """where concat stack roll copy tril triu take take_along_axis gather put update scatter astype sum mean all any
    count_nonzero cumulative_sum factorize transform""".split()


def _matmul(out: Spec, algorithm: str) -> Fn:
    return torch.matmul


def _part(which: str) -> Maker:
    return lambda out: lambda x: getattr(x, which).clone(memory_format=torch.contiguous_format)


def kernels(real: Mapping[Op, Sequence[Kernel]]) -> dict[Op, Sequence[Kernel]]:
    """The kernels of each row that takes complex numbers, best first; `real` has those of all rows."""
    makers: dict[Op, Any] = {OPS[name]: same(getattr(torch, _THEIRS.get(name, name))) for name in _FUNCTIONS}
    makers |= {
        ops.positive: same(copied),
        ops.sign: same(torch.sgn),
        ops.conj: same(torch.conj_physical),
        ops.real: _part("real"),
        ops.imag: _part("imag"),
        ops.matmul: _matmul,
        ops.logical_not: same(_is_zero),
    }
    return {OPS[n]: real[OPS[n]] for n in _SAME_FOR_ALL if OPS[n] in real} | {
        row: [Kernel("torch", fn)] for row, fn in makers.items()
    }


_THEIRS = {"equal": "eq", "not_equal": "ne"}


def _is_zero(x: Value) -> Value:
    return x == 0

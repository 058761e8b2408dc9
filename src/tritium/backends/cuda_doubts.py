"""What is doubtful on a GPU, told to the host by one Triton kernel: it writes only where something is.

Knows nothing of what is checked, of messages or of graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from tritium.backends.cuda_order import begin
from tritium.backends.cuda_ternary import current, gpu

TOGETHER = 8  # that one launch looks at
FEW, MANY = 128, 4096  # elements that a program looks at
_SIZES = tuple(f"n{k}" for k in range(TOGETHER))
_PLACES = (*(f"b{k}" for k in range(TOGETHER)), "told")


@triton.jit
def _look(bad, size, at, told):
    if tl.max(tl.load(bad + at, mask=at < size, other=0).to(tl.int32), 0) != 0:
        tl.store(told, 1)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_PLACES)
def tell_kernel(
    b0, b1, b2, b3, b4, b5, b6, b7, n0, n1, n2, n3, n4, n5, n6, n7, told, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """told[k] = 1 where any of the nk bytes of bk is not 0. Programs look at BLOCK of them; several may write the same."""
    begin(EARLY)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    k = tl.program_id(1)
    if k == 0:
        _look(b0, n0, at, told)
    elif k == 1:
        _look(b1, n1, at, told + 1)
    elif k == 2:
        _look(b2, n2, at, told + 2)
    elif k == 3:
        _look(b3, n3, at, told + 3)
    elif k == 4:
        _look(b4, n4, at, told + 4)
    elif k == 5:
        _look(b5, n5, at, told + 5)
    elif k == 6:
        _look(b6, n6, at, told + 6)
    else:
        _look(b7, n7, at, told + 7)


def tell(bad: Sequence[torch.Tensor], told: torch.Tensor) -> None:
    """Make told[k] true where any element of bad[k] is; others stay as they are. `told` is bools, of the GPU or pinned ones."""
    flat = [(b if b.dtype is torch.bool else b != 0).contiguous().view(torch.uint8) for b in bad]
    for first in range(0, len(flat), TOGETHER):
        some = flat[first : first + TOGETHER]
        most = max(b.numel() for b in some)
        if not most:
            continue
        block = FEW if most <= FEW else MANY
        filled = [*some, *some[:1] * (TOGETHER - len(some))]
        with current(some[0]):
            tell_kernel[(triton.cdiv(most, block), len(some))](
                *filled, *(b.numel() for b in filled), told[first:].view(torch.uint8), BLOCK=block,
                num_warps=1 if block == FEW else 4, **gpu(some[0].device).starting,
            )  # fmt: skip

"""The end of a program on a GPU in one Triton kernel: copy small values to their places, and report failed deferred
checks.

Only flags of failed checks are written. The host reads them in pinned memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from tritium.backends.cuda.gpu import current, gpu
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.order import begin

TOGETHER = 8  # values and doubts of one launch
FEW, SOME, MANY = 128, 1024, 4096  # bytes that a CTA takes
SMALL = 1 << 14  # bytes up to which a value is copied here; larger ones torch copies faster
_SIZES = (*(f"n{k}" for k in range(TOGETHER)), "copies")
_PLACES = tuple(f"{letter}{k}" for letter in "bt" for k in range(TOGETHER))


@triton.jit
def _one(b, t, size, offset, copied):
    """Copy bytes of b to t, or set t[0] to 1 where any of them is not 0."""
    inside = offset < size
    data = tl.load(b + offset, mask=inside, other=0)
    if copied:
        tl.store(t + offset, data, mask=inside)
    elif tl.max(data.to(tl.int32), 0) != 0:
        tl.store(t, 1)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_PLACES)
def settle_kernel(
    b0, b1, b2, b3, b4, b5, b6, b7, t0, t1, t2, t3, t4, t5, t6, t7, n0, n1, n2, n3, n4, n5, n6, n7, copies,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Copy the nk bytes of bk to tk for the first `copies`; for the others set tk[0] to 1 where any of them is not 0.

    A CTA takes BLOCK bytes of one; several may write the same 1.
    """
    begin(EARLY)
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    k = tl.program_id(1)
    copied = k < copies
    if k == 0:
        _one(b0, t0, n0, offset, copied)
    elif k == 1:
        _one(b1, t1, n1, offset, copied)
    elif k == 2:
        _one(b2, t2, n2, offset, copied)
    elif k == 3:
        _one(b3, t3, n3, offset, copied)
    elif k == 4:
        _one(b4, t4, n4, offset, copied)
    elif k == 5:
        _one(b5, t5, n5, offset, copied)
    elif k == 6:
        _one(b6, t6, n6, offset, copied)
    else:
        _one(b7, t7, n7, offset, copied)


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["value", "here"])
def pinned_kernel(value, here, size, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Copy one value as `settle_kernel` does, with few arguments, since the host launches it once a step."""
    begin(EARLY)
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(here + offset, tl.load(value + offset, mask=offset < size, other=0), mask=offset < size)


def settle(
    copies: Sequence[tuple[torch.Tensor, torch.Tensor]], bad: Sequence[torch.Tensor] = (), flags: torch.Tensor | None = None
) -> None:  # fmt: skip
    """Copy values to their places, given as (place, value), and set flags[k] where any element of bad[k] is true.

    No value overlaps the place of another. Other flags stay as they are. `flags` are bools of the GPU or in pinned
    memory.
    """
    small = []
    for to, value in copies:
        if _is_small(to, value):
            small += [(_bytes(value), _bytes(to))] if value.numel() else []
        else:
            to.copy_(value)
    looked = [((b if b.dtype is torch.bool else b != 0).contiguous(), k) for k, b in enumerate(bad)]
    marks = [] if flags is None else [(_bytes(b), flags[k:].view(torch.uint8)) for b, k in looked]
    jobs = [*small, *marks]
    for first in range(0, len(jobs), TOGETHER):
        some = jobs[first : first + TOGETHER]
        most = max(b.numel() for b, _ in some)
        if not most:
            continue
        block = FEW if most <= FEW else MANY
        filled = [*some, *some[:1] * (TOGETHER - len(some))]
        with current(some[0][0]):
            settle_kernel[(triton.cdiv(most, block), len(some))](
                *(b for b, _ in filled), *(t for _, t in filled), *(b.numel() for b, _ in filled), len(small) - first,
                BLOCK=block, num_warps=1 if block == FEW else 4, **gpu(some[0][0].device).starting,
            )  # fmt: skip


def write_pinned(value: torch.Tensor, here: torch.Tensor) -> None:
    """Write a small value to pinned memory, which must stay valid until the kernel is done.

    A copy would run on another engine: it waits for the kernels before it, and those after it wait for it (15 µs on an
    H200, where a kernel takes 3).
    """
    size = value.nbytes
    block, warps = (FEW, 1) if size <= FEW else (SOME, 4)
    with current(value):
        pinned_kernel[(triton.cdiv(size, block),)](
            _bytes(value), _bytes(here), size, BLOCK=block, num_warps=warps, **gpu(value.device).starting
        )


def can_write_pinned(value: torch.Tensor) -> bool:
    """Return True if `write_pinned` takes a value: few bytes, contiguous."""
    return 0 < value.nbytes <= SMALL and value.is_contiguous()


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1).view(torch.uint8)


def _is_small(to: torch.Tensor, value: torch.Tensor) -> bool:
    """Return True if a copy is of few bytes that are contiguous on both sides."""
    alike = to.dtype is value.dtype and to.shape == value.shape and to.device == value.device
    return alike and value.nbytes <= SMALL and to.is_contiguous() and value.is_contiguous()


fix_cache_keys(globals())

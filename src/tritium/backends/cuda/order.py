"""Programmatic dependent launch: a kernel may start before the one in front of it is done, and waits before it reads or
writes anything that one may.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tritium.backends.cuda.keys import fix_cache_keys


@triton.jit
def let_next_start(EARLY: tl.constexpr):
    """Allow the next kernel of the stream to start; it waits for this one where it needs its results."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait(EARLY: tl.constexpr):
    """Wait until the kernels before have ended, and all they wrote is visible."""
    if EARLY:
        gdc_wait()


@triton.jit
def begin(EARLY: tl.constexpr):
    """Allow the next kernel to start, then wait: for kernels that do nothing before they wait."""
    let_next_start(EARLY)
    wait(EARLY)


@triton.jit
def ask(x, n, MOST: tl.constexpr, EARLY: tl.constexpr):
    """Prefetch the first n elements of x, at most MOST of them, to L2.

    Nothing is read, so it may come before the wait. The first CTA prefetches all: lines that many CTAs ask for are
    served one by one.
    """
    if EARLY and tl.program_id(0) == 0:
        LINE: tl.constexpr = 1024 // x.dtype.element_ty.primitive_bitwidth
        o = tl.arange(0, MOST // LINE if MOST > LINE else 1) * LINE
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; // $0", "=r,l", [(x + tl.minimum(o, n - 1)).to(tl.int64)], dtype=tl.int32,
            is_pure=False, pack=1,
        )  # fmt: skip


fix_cache_keys(globals())

"""Products of a few tokens with weights of half floats in one Triton kernel: weights are read once; sums are f32.

The sums of a token are added in an order that depends on nothing but its columns: it gives the same bits alone and in
any batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tritium.backends.cuda.gpu import gpu
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.order import begin

ROWS, COLUMNS = 8, 256  # of weights, that a CTA takes together
STAGES = 1  # parts of rows that are on their way together
TOGETHER = 4  # tokens for which it keeps sums: more of them leave too few registers for weights on their way
MOST = 16  # tokens, up to which it is used: they share weights by way of the cache, and of more a library makes more


@triton.jit
def row_sums(
    from_w, there, x, first, TOKENS, K,
    M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """Return the sums [BN] of rows of weights with each of M tokens of x from the first on.

    Rows are given by their addresses [BN, 1]. SOME: those that are not `there` [BN, 1] are not read, and their sums are 0.

    The columns k, k + BK, k + 2 BK … are added up in order, then the BK sums: a logit has the same bits wherever its row is.
    """
    rk = tl.arange(0, BK)
    sums = ()
    for _ in tl.static_range(M):
        sums = sums + (tl.zeros((BN, BK), tl.float32),)
    for k in tl.range(0, K, BK, num_stages=STAGES):
        inside = k + rk < K
        read = there & inside[None, :] if SOME else inside[None, :]
        part = tl.load(from_w + (k + rk)[None, :], mask=read, other=0.0).to(tl.float32)
        longer = ()
        for i in tl.static_range(M):
            token = tl.minimum(first + i, TOKENS - 1).to(tl.int64)
            values = tl.load(x + token * K + k + rk, mask=inside, other=0.0)
            longer = longer + (tl.fma(part, tl.broadcast_to(values[None, :], (BN, BK)), sums[i]),)
        sums = longer
    results = ()
    for i in tl.static_range(M):
        results = results + (tl.sum(sums[i], 1),)
    return results


@triton.jit
def few(
    x, w, bias, out, TOKENS, N, K,
    M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute out [TOKENS, N] of x [TOKENS, K] and w [N, K]: BN rows of weights and M tokens a CTA.

    CTAs of the same rows are adjacent.
    """
    begin(EARLY)
    first = tl.program_id(0) * M
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    from_w = w + tl.minimum(rn, N - 1).to(tl.int64)[:, None] * K
    sums = row_sums(from_w, (rn < N)[:, None], x, first, TOKENS, K, M, BN, BK, STAGES, SOME=False)
    for i in tl.static_range(M):
        y = sums[i]
        if BIAS:
            y += tl.load(bias + rn, mask=rn < N, other=0.0).to(tl.float32)
        to = out + (first + i).to(tl.int64) * N + rn
        tl.store(to, y.to(out.dtype.element_ty), mask=(rn < N) & (first + i < TOKENS))


def takes(x: torch.Tensor, w: torch.Tensor) -> bool:
    """Return True if a product has contiguous weights of half floats, and not too many tokens."""
    tokens = x.numel() // max(x.shape[-1], 1)
    return w.dtype in (torch.float16, torch.bfloat16) and w.is_contiguous() and 0 < tokens <= MOST and w.numel() > 0


def linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, to: torch.dtype) -> torch.Tensor:
    """Return x [..., k] times w.T plus bias, as [..., n]."""
    lead, (n, k) = x.shape[:-1], w.shape
    flat = x.reshape(-1, k).float().contiguous()
    tokens = flat.shape[0]
    out = torch.empty((tokens, n), dtype=to, device=x.device)
    several = min(triton.next_power_of_2(tokens), TOGETHER)
    few[(triton.cdiv(tokens, several), triton.cdiv(n, ROWS))](
        flat, w, out if bias is None else bias.contiguous(), out, tokens, n, k, M=several, BN=ROWS, BK=COLUMNS,
        STAGES=STAGES, BIAS=bias is not None, num_warps=4, enable_fp_fusion=False, **gpu(x.device).starting,
    )  # fmt: skip
    return out.reshape(*lead, n)


fix_cache_keys(globals())

"""The gated delta rule by a Triton kernel: a CTA keeps some columns of a head's state in registers for all tokens.

Columns are independent, so CTAs share nothing; a token is computed in the same order whether it comes alone or
not.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tritium.backends.cuda.gpu import gpu
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.order import begin

ELEMENTS = 4096  # of a state that a CTA keeps: what registers of four warps hold
MOST_COLUMNS = 64


@triton.jit
def _line(x, b, h, strides):
    """Return the address of head h of the first token of sequence b in x [batch, tokens, heads, size] or [batch,
    tokens, heads].
    """
    return x + b.to(tl.int64) * strides[0] + h * strides[2]


@triton.jit
def delta_kernel(
    state, q, k, v, decay, beta, places, y, tokens, slots, q_strides, k_strides, v_strides, decay_strides, beta_strides,
    DK: tl.constexpr, DV: tl.constexpr, PER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Update some columns of the state of one head of a sequence in place, and write y [batch, tokens, heads, DV].

    The state is contiguous.
    """
    begin(EARLY)
    b, h, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    i, c = tl.arange(0, ROWS), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    slot, start, count = tl.load(places + b * 3), tl.load(places + b * 3 + 1), tl.load(places + b * 3 + 2)
    inside = (slot >= 0) & (slot < slots) & (start >= 0) & (count > 0) & (count <= tokens)
    slot, count = tl.where(inside, slot, 0), tl.where(inside, count, 0)
    lines = (slot.to(tl.int64) * heads + h) * DK + i
    cells, fits = state + lines[:, None] * DV + c[None, :], (i < DK)[:, None] & (c < DV)[None, :]
    s = tl.where(
        start > 0, tl.load(cells, mask=fits, other=0.0), 0.0
    )  # old numbers are nothing to a sequence that begins
    keys, queries = _line(k, b, h // PER, k_strides) + i, _line(q, b, h // PER, q_strides) + i
    values, fades, strengths = (
        _line(v, b, h, v_strides) + c,
        _line(decay, b, h, decay_strides),
        _line(beta, b, h, beta_strides),
    )
    to = y + (b.to(tl.int64) * tokens * heads + h) * DV + c
    for _ in range(count):
        key, query = tl.load(keys, mask=i < DK, other=0.0), tl.load(queries, mask=i < DK, other=0.0)
        s = s * tl.load(fades)
        delta = (tl.load(values, mask=c < DV, other=0.0) - tl.sum(s * key[:, None], 0)) * tl.load(strengths)
        s += key[:, None] * delta[None, :]
        tl.store(to, tl.sum(s * query[:, None], 0), mask=c < DV)
        keys, queries, values = keys + k_strides[1], queries + q_strides[1], values + v_strides[1]
        fades, strengths, to = fades + decay_strides[1], strengths + beta_strides[1], to + heads * DV
    for _ in range(count, tokens):
        tl.store(to, tl.zeros((COLUMNS,), tl.float32), mask=c < DV)
        to += heads * DV
    if count > 0:
        tl.store(cells, s, mask=fits)


def _in_lines(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def delta_rule(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor,
    places: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return the result of the op `gated_delta_rule`; the contiguous state is updated in place.

    Sequences outside the state change nothing.
    """
    batch, tokens, heads, columns = v.shape
    size = k.shape[3]
    y = torch.empty((batch, tokens, heads, columns), dtype=torch.float32, device=v.device)
    if not y.numel():
        return y
    if not size:
        return y.zero_()
    q, k, v = (_in_lines(x) for x in (q, k, v))
    rows = triton.next_power_of_2(size)
    together = min(triton.next_power_of_2(columns), MOST_COLUMNS, max(ELEMENTS // rows, 1))
    delta_kernel[(batch, heads, triton.cdiv(columns, together))](
        state, q, k, v, decay, beta, places.contiguous(), y, tokens, state.shape[0], tuple(q.stride()[:3]), tuple(k.stride()[:3]),
        tuple(v.stride()[:3]), tuple(decay.stride()), tuple(beta.stride()), DK=size, DV=columns, PER=heads // k.shape[2], ROWS=rows,
        COLUMNS=together, num_warps=4, **gpu(v.device).starting,
    )  # fmt: skip
    return y


fix_cache_keys(globals())

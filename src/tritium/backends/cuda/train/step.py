"""A training step of a ternary layer on a GPU: forward by int8 products with exact sums, backward by bf16 or int8 ones.

Weights are ternarised anew in each call. Everything can be captured by CUDA graphs: nothing waits for the device. On CPU tensors Triton's
interpreter runs the plain kernels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from tritium.backends.cuda.counts import counters
from tritium.backends.cuda.gpu import current, gpu
from tritium.backends.cuda.linear import choice as tuned, ternary
from tritium.backends.cuda.linear.choice import Case, Choice
from tritium.backends.cuda.linear.replay import launch
from tritium.backends.cuda.linear.weights import Value, Weights
from tritium.backends.cuda.train.rounded import Rounded

BLOCK = 4096  # elements of a CTA
BESIDE = 8  # CTAs that fit on a multiprocessor, of what goes over weights in turns
ROW_BYTES = 8192  # of codes that a CTA makes at a time
WARPS, FEW_WARPS = 8, 4  # of a CTA; the second of what reduces rows or tiles
NARROW = (
    1 << 20
)  # weights in bf16, from which on eight are added in f32 first: a sum of so many is no half-way case of f32
MOST_ELEMENTS = (1 << 31) - 2 * BLOCK  # that a launch counts in 32 bits
TILE = 128, 64  # tokens and columns of gradients that a CTA takes
TURNED_CODES, TURNED_BYTES = (64, 64), (128, 128)  # that a CTA transposes


class Fresh(Weights):
    """Weights that were made by a kernel just before: no product may read them before that has ended."""

    def __init__(self, data: Value, shape: tuple[int, int], ternary: bool) -> None:
        super().__init__(data, shape, packed=ternary, ternary=ternary)
        self._arrangements["planes" if ternary else "straight"] = data


def _options(x: Value, warps: int = WARPS) -> dict[str, Any]:
    """Return launch options: one rounding for each float operation; a kernel may start before the one in front of it is done."""
    return {"num_warps": warps, "enable_fp_fusion": False, **gpu(x.device).starting}


def _kernels() -> Any:
    from tritium.backends.cuda.train import kernels

    return kernels


# ---- weights


def ternarise(weight: Value, axis: int | None) -> tuple[Value, Value]:
    """Return (codes, g) of latent weights [n, k], with one scale or (axis 0) one for each row, as `formulas.absmean` has it."""
    n, k = weight.shape
    weight, kb = weight.contiguous(), tuned.wide(k) // 4
    codes = torch.empty((n, kb), dtype=torch.uint8, device=weight.device)
    kernels = _kernels()
    device, narrow = weight.device, weight.dtype is torch.bfloat16 and n * k >= NARROW
    with current(weight):
        if axis is not None:
            g = torch.empty(n, dtype=torch.float32, device=device)
            block = min(max(1 << (kb - 1).bit_length(), 128), ROW_BYTES)
            launch(
                kernels.row_codes, (n,),
                weight, g, codes, K=k, KB=kb, BLOCK=block, PASSES=-(-kb // block), **_options(weight, FEW_WARPS),
            )  # fmt: skip
            return codes, g
        g = torch.empty((), dtype=torch.float32, device=device)
        blocks = -(-n * k // BLOCK)
        programs = -(-blocks // -(-blocks // (BESIDE * gpu(device).processors)))  # as many blocks for each
        partial = torch.empty(programs, dtype=torch.float64, device=device)
        launch(
            kernels.magnitudes, (programs,),
            weight, partial, counters(device).some(1), g, n * k, n * k, PARTS=1 << (programs - 1).bit_length(), BLOCK=BLOCK,
            NARROW=narrow, ASM=gpu(device).capability > (0, 0), **_options(weight),
        )  # fmt: skip
        block = BLOCK // 2
        grid, fixed = (-(-n * kb // block),), {"K": k, "KB": kb, "BLOCK": block}
        launch(kernels.tensor_codes, grid, weight, g, codes, n, **fixed, **_options(weight))
    return codes, g


def dense(codes: Value, g: Value, columns: int, dtype: torch.dtype) -> Value:
    """Return ternary weights [n, columns] times their scales."""
    n, kb = codes.shape
    out = torch.empty((n, columns), dtype=dtype, device=codes.device)
    with current(codes):
        launch(
            _kernels().dense, (-(-n * kb // BLOCK),),
            codes, g, out, n, K=columns, KB=kb, ROWS=g.ndim > 0, BLOCK=BLOCK, **_options(codes),
        )  # fmt: skip
    return out


def turned_codes(codes: Value, columns: int) -> Value:
    """Return the codes of the transposed weights, [columns, wide(n) / 4]."""
    n, kb = codes.shape
    nb = tuned.wide(n) // 4
    out = torch.empty((columns, nb), dtype=torch.uint8, device=codes.device)
    with current(codes):
        launch(
            _kernels().turned_codes, (-(-nb // TURNED_CODES[0]), -(-kb // TURNED_CODES[1])),
            codes, out, n, K=columns, KB=kb, NB=nb, ROWS=TURNED_CODES[0], BYTES=TURNED_CODES[1], **_options(codes),
        )  # fmt: skip
    return out


# ---- tokens


def token_floats(q: Value, a: Value, columns: int, dtype: torch.dtype) -> Value:
    """Return int8 tokens [m, wide] times their scales, [m, columns]."""
    m, wide = q.shape
    out = torch.empty((m, columns), dtype=dtype, device=q.device)
    most = MOST_ELEMENTS // wide
    with current(q):
        for low in range(0, m, most):
            rows = min(most, m - low)
            launch(
                _kernels().token_floats, (-(-rows * wide // BLOCK),),
                q[low:], a[low:], out[low:], rows, K=columns, KP=wide, BLOCK=BLOCK, **_options(q),
            )  # fmt: skip
    return out


def turned_bytes(q: Value, columns: int) -> Value:
    """Return int8 [columns, wide(m)], the transpose of tokens [m, wide] with zeros behind it."""
    m, kp = q.shape
    mp = tuned.wide(m)
    out = torch.empty((columns, mp), dtype=torch.int8, device=q.device)
    with current(q):
        launch(
            _kernels().turned_bytes, (-(-mp // TURNED_BYTES[0]), -(-columns // TURNED_BYTES[1])),
            q, out, m, mp, columns, kp, BM=TURNED_BYTES[0], BK=TURNED_BYTES[1], **_options(q),
        )  # fmt: skip
    return out


# ---- forward


@lru_cache(maxsize=4096)
def pick(n: int, k: int, m: int, codes: bool, device: torch.device) -> Choice:
    """Return the kernel of a product: the usual one, unless that needs weights in another layout than they are made in."""
    g, case = gpu(device), Case(n, k, m, codes)
    c = tuned.choose(case, g.capability if g.has_gluon else (0, 0), g.processors)
    if c.kernel != "fragments":
        return c
    times = {
        c: us for c in tuned.wgmmas(case, g.processors) if (us := tuned.tile_us(case, c, g.processors)) is not None
    }
    return min(times, key=lambda c: times[c])


def forward(x: Value, weight: Value, bias: Value | None, axis: int | None, dtype: torch.dtype) -> tuple[Value, Rounded]:
    """Return tokens [m, k] through a layer of latent weights [n, k], [m, n] of a dtype, and what the backward pass needs."""
    n, k = weight.shape
    codes, g = ternarise(weight, axis)
    tokens = ternary.quantise(x)
    with current(x):
        picked = pick(n, k, x.shape[0], True, x.device) if x.shape[0] else None
        y = ternary.product(tokens, Fresh(codes, (n, k), True), g, bias, dtype, choice=picked)
    return y, Rounded(tokens.q, tokens.scale, codes, g)


# ---- backward


def plain_gradients(
    dy: Value, saved: Rounded, columns: int, dtype: torch.dtype, for_x: bool, for_w: bool
) -> tuple[Value | None, Value | None]:  # fmt: skip
    """Return (dx, dw): dy @ (g t) and dy.T @ (q a), products of the dtype of dy, dw in `dtype`; None where it is not needed."""
    dx = dy @ dense(saved.codes, saved.g, columns, dy.dtype) if for_x else None
    dw = wide_product(dy.t(), token_floats(saved.q, saved.a, columns, dy.dtype), dtype) if for_w else None
    return dx, dw


def wide_product(a: Value, b: Value, dtype: torch.dtype) -> Value:
    """Return a @ b in a dtype; f32 sums of bf16 factors are stored as they are."""
    if dtype is torch.float32 and a.is_cuda and a.dtype is not dtype and torch.version.hip is None:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


def int8_gradients(
    dy: Value, saved: Rounded, columns: int, dtype: torch.dtype, for_x: bool, for_w: bool
) -> tuple[Value | None, Value | None]:  # fmt: skip
    """Return (dx, dw) by int8 products: dy rounded to int8 for each token, and times the scales of tokens for each of its columns."""
    (m, n), device = dy.shape, dy.device
    peaks = torch.zeros(2 * m + n, dtype=torch.int32, device=device)
    rows, total, columns_of = peaks[:m], peaks[m : 2 * m], peaks[2 * m :]
    of_token, of_row = (
        torch.empty(m, dtype=torch.float32, device=device),
        torch.empty(n, dtype=torch.float32, device=device),
    )
    q = torch.empty((m, tuned.wide(n)) if for_x else (0, 0), dtype=torch.int8, device=device)
    turned = torch.empty((n, tuned.wide(m)) if for_w else (0, 0), dtype=torch.int8, device=device)
    by_row, kernels = saved.g.ndim > 0, _kernels()
    flags = {"BY_ROW": by_row, "FOR_X": for_x, "FOR_W": for_w, "BM": TILE[0], "BN": TILE[1]}
    grid = -(-tuned.wide(m) // TILE[0]), -(-tuned.wide(n) // TILE[1])
    with current(dy):
        launch(
            kernels.gradient_peaks,
            grid,
            dy,
            saved.a,
            saved.g,
            rows,
            columns_of,
            m,
            n,
            **flags,
            **_options(dy, FEW_WARPS),
        )
        launch(
            kernels.gradient_bytes, grid,
            dy, saved.a, saved.g, rows, columns_of, q, of_token, total, turned, of_row, m, n, tuned.wide(n), tuned.wide(m),
            **flags, **_options(dy, FEW_WARPS),
        )  # fmt: skip
    one = torch.ones((), dtype=torch.float32, device=device)
    dx = dw = None
    if for_x:
        tokens = ternary.Tokens(q, of_token, total, n)
        w = Fresh(turned_codes(saved.codes, columns), (columns, n), True)
        picked = pick(columns, n, m, True, device)
        dx = ternary.product(tokens, w, one if by_row else saved.g, None, dy.dtype, choice=picked)
    if for_w:
        tokens = ternary.Tokens(turned, of_row, of_row.view(torch.int32), m)
        w = Fresh(turned_bytes(saved.q, columns), (columns, m), False)
        dw = ternary.product(tokens, w, one, None, dtype, choice=pick(columns, m, n, False, device))
    return dx, dw

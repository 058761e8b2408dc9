"""The dense rows of bench/cuda.py: fused operations as a share of the bandwidth, and what a call costs the host.

The ceiling is the best of several plain reading kernels, measured in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from cuda_report import REPLAY_US, TIMES_TORCH, Options, Samples, Shown, Taken, at_most, share, text, times
from cuda_timing import Call, host_in_turn, in_turn
from devices import OPS

import tritium as tt
from tritium.perf.tables.table import Table

ROWS, QUICK_ROWS, COLUMNS = 1 << 14, 1 << 12, 1 << 14  # 2^28 elements of f32
READERS = ((2048, 16, 4), (4096, 8, 8), (8192, 4, 8), (8192, 16, 16), (16384, 4, 16))  # (block, loops, warps)
EAGER, COMPILED, OURS = "torch eager", "torch.compile", "tritium"
EPS = 1e-5
SIDE = 64
SMALL = ("add", "relu", "matmul", "sum", "softmax", "exp")


# ---- the ceiling


@triton.jit
def _read(x, out, BLOCK: tl.constexpr, LOOPS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Sums of pieces of x: nearly all of the traffic is reading."""
    at = tl.program_id(0).to(tl.int64) * BLOCK * LOOPS + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(LOOPS):
        total += tl.load(x + at + i * BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


def read_ceiling(x: torch.Tensor, rounds: int) -> float:
    """Bytes a second, the median of the fastest reader."""
    readers: dict[str, Call] = {"torch.sum": partial(torch.sum, x)}
    for block, loops, warps in READERS:
        programs = x.numel() // (block * loops)
        out = torch.empty(programs, device="cuda")
        readers[f"{block}×{loops}"] = partial(_read[(programs,)], x, out, BLOCK=block, LOOPS=loops, num_warps=warps)
    found = in_turn(readers, rounds)
    best = min(taken.median for taken in found.values() if isinstance(taken, Samples))
    return x.numel() * x.element_size() / best * 1e6


# ---- fused operations


class Dense(NamedTuple):
    """An operation by torch and by Tritium, on x [rows, columns] and a vector v [columns]; bytes moved for an element of x."""

    theirs: Callable[[Any, Any], Any]
    ours: Callable[[Any, Any], Any]
    nbytes: int


def quantised(x: Any, v: Any) -> Any:
    y = torch.nn.functional.rms_norm(x, (x.shape[-1],), v, EPS)
    amax = y.abs().amax(-1, keepdim=True).clamp_min(1e-5)
    return torch.round(y * (127 / amax)).to(torch.int8), amax / 127


DENSE = {
    "bias + relu": Dense(lambda x, v: torch.relu(x + v), lambda x, v: tt.relu(x + v), 8),
    "softmax": Dense(lambda x, v: torch.softmax(x, -1), lambda x, v: tt.softmax(x, axis=-1), 8),
    "sum": Dense(lambda x, v: x.sum(-1), lambda x, v: x.sum(axis=-1), 4),
    "rmsnorm + quantise": Dense(quantised, lambda x, v: tt.quantize_activations(tt.rms_norm(x, v, eps=EPS)), 5),
    "gelu": Dense(lambda x, v: torch.nn.functional.gelu(x), lambda x, v: tt.gelu(x), 8),
}


def arm(make: Callable[[], Callable[..., Any]], *operands: Any) -> Call | str:
    """A call that is compiled and warm, or why there is none. A program settles on its operands within a few calls."""
    try:
        call = partial(make(), *operands)
        for _ in range(5):
            call()
        torch.cuda.synchronize()
    except Exception as error:  # one empty cell
        torch.cuda.synchronize()
        return f"not run: {type(error).__name__}: {str(error).partition(chr(10))[0][:80]}"
    return call


def far(row: Dense, x: torch.Tensor, v: torch.Tensor) -> str:
    """How far ours is from torch's in a few rows, where it is too far; "": it is not."""
    x = x[:8]
    theirs, ours = row.theirs(x, v), row.ours(tt.from_torch(x), tt.from_torch(v))
    one, two = (y[0] if isinstance(y, tuple) else y for y in (theirs, ours))
    off = (one.double() - two.torch().double()).abs().max().item()
    most = 1.0 if one.dtype is torch.int8 else 1e-3  # a quantised value may fall on either side of a half
    return "" if off <= most else f"WRONG: off by {off:.3g}"


def dense(options: Options) -> Iterator[Shown]:
    rows = QUICK_ROWS if options.quick else ROWS
    x = torch.randn((rows, COLUMNS), device="cuda")
    v = torch.rand((COLUMNS,), device="cuda") + 0.5
    x_, v_ = tt.from_torch(x), tt.from_torch(v)
    ceiling = read_ceiling(x, options.rounds)
    shown, goals, record = [], [], []
    for name, row in DENSE.items():
        arms: dict[str, Call | str] = {
            EAGER: arm(lambda row=row: row.theirs, x, v),
            COMPILED: arm(lambda row=row: torch.compile(row.theirs, dynamic=False), x, v),
            OURS: far(row, x, v) or arm(lambda row=row: tt.compile(row.ours), x_, v_),
        }
        taken = in_turn(arms, options.rounds)
        shares = [_of(ceiling, taken[a], row.nbytes * x.numel()) for a in arms]
        shown.append((name, *(text(taken[a]) for a in arms), *shares))
        goals += times(f"{name}: times torch.compile", taken[COMPILED], taken[OURS], 1.0)
        record.append({"row": name, "bytes": row.nbytes * x.numel(), "us": _raw(taken)})
        torch.cuda.empty_cache()
    heads = ("row", *(f"{a}, µs" for a in arms), *(f"{a}, %" for a in arms))
    said = f"f32 [{rows}, {COLUMNS}]; 100 % is the read ceiling measured beside: {ceiling / 1e12:.2f} TB/s."
    table = Table("Dense rows as a share of the bandwidth", heads, tuple(shown), frozenset(heads[1:]), ("", said))
    yield Shown(table, tuple(goals), {"read_bytes_per_s": ceiling, "rows": record})


def _of(ceiling: float, taken: Taken, nbytes: int) -> str:
    return f"{100 * nbytes / (taken.median * 1e-6) / ceiling:.0f}" if isinstance(taken, Samples) else "-"


def _raw(taken: dict[str, Taken]) -> dict[str, Any]:
    return {name: t.us if isinstance(t, Samples) else t for name, t in taken.items()}


# ---- the host


def host(options: Options) -> Iterator[Shown]:
    """What the host spends on a call: eager ones beside torch's own, and the replay of a program."""
    x, y = (torch.rand((SIDE, SIDE), device="cuda") + 0.1 for _ in range(2))
    given = {"x": (tt.from_torch(x), x), "y": (tt.from_torch(y), y)}
    shown, goals, record = [], [], {}
    for name in SMALL:
        small = OPS[name]
        ours, theirs = zip(*(given[operand] for operand in small.operands), strict=True)
        calls = {OURS: partial(small.ours(tt), *ours), "torch": partial(small.torch(torch), *theirs)}
        taken = host_in_turn(calls, options.rounds)
        found = list(share(f"host, {name} {SIDE}×{SIDE}: times torch", taken[OURS], taken["torch"], TIMES_TORCH))
        shown.append(
            (
                name,
                text(taken["torch"]),
                text(taken[OURS]),
                f"{found[0].value:.2f}",
                f"{TIMES_TORCH:g} {found[0].verdict}",
            )
        )
        goals += found
        record[name] = _raw(taken)
    program = tt.compile(lambda a, b: tt.softmax(tt.relu(a @ b + a) * b, axis=-1))
    replay = host_in_turn({OURS: partial(program, given["x"][0], given["y"][0])}, options.rounds)
    found = list(at_most("host, replay of a program: µs", replay[OURS], REPLAY_US))
    shown.append(("a program of 5 rows", "-", text(replay[OURS]), "-", f"{REPLAY_US:g} µs {found[0].verdict}"))
    record["program"] = _raw(replay)
    heads = ("call", "torch", "tritium", "ratio", "limit")
    table = Table(f"Host time of a call, f32 {SIDE}×{SIDE}: µs", heads, tuple(shown), frozenset(heads[1:]))
    yield Shown(table, (*goals, *found), record)

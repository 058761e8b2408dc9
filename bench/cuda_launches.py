"""Whether products stay exact in graphs of many launches back to back: every kernel, with early starts and without.

What is wanted is kept by the host, where no kernel can harm it unseen, and each element is compared there. torch's own
`_int_mm` runs in the same way: where it is wrong too, the fault is not ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple

import torch
from cuda_report import Goal, Options, Shown
from cuda_timing import captured

from tritium.backends.cuda.capability import HOPPER
from tritium.backends.cuda.gpu import gpu as gpu_of
from tritium.backends.cuda.linear import ternary as cuda_ternary, weights as cuda_weights
from tritium.backends.cuda.linear.choice import PLAIN, Case, Choice, choice, fits
from tritium.backends.cuda.linear.spread import ALONG
from tritium.perf.tables.table import Table

BACK_S, QUICK_BACK_S = 45.0, 15.0  # compiling included
LAUNCHES, REPLAYS = 24, 50
SHAPES, QUICK_SHAPES = ((2560, 2560), (2560, 6912), (3840, 2560)), ((2560, 2560),)
LEVELS = ("0", "1")  # of TRITIUM_CUDA_EARLY
TITLES = {"0": "in turn", "1": "early"}
POISON = -0x5A5A5A5B  # no sum comes near it
SHOWN, EACH = 24, 4  # mismatches that are told: of all, of one arm
CONTROL = "torch _int_mm"


class Arm(NamedTuple):
    """One way to multiply m tokens; without a choice it is torch's."""

    name: str
    m: int
    choice: Choice | None


ARMS = (
    Arm("gemv", 1, choice("gemv", 8, 8, 4, 4)),
    Arm("gemv, 8 tokens", 8, choice("gemv", 8, 8, 4, 4)),
    Arm("gemv_plain", 4, choice("gemv_plain", 8, 128, 4)),
    Arm("fragments", 8, choice("fragments", 2, 4, 1, 1, 14)),
    Arm("fragments, 2 groups", 16, choice("fragments", 2, 2, 1, 2, 10)),
    Arm("gemm_plain", 128, choice("gemm_plain", 64, 64, 64, 1, 4, 3)),
    Arm("gemm_plain, split", 128, choice("gemm_plain", 64, 64, 64, 4, 4, 3)),
    Arm("wgmma", 256, choice("wgmma", 128, 128, 64, 0, 5, 168, 240, 0)),
    Arm("wgmma, small tiles", 128, choice("wgmma", 128, 32, 128, 0, 6, 168, 240, 0)),
    Arm("wgmma, programs stay", 256, choice("wgmma", 128, 32, 128, 0, 6, 168, 240, 1)),
    Arm("wgmma, in turns", 256, choice("wgmma", 64, 16, 128, 1, 6, 104, 136, 1)),
    Arm("wgmma, split", 128, choice("wgmma", 128, 64, 64, 0, 4, 80, 104, -3)),
    Arm("wgmma, two tensors", 320, choice("wgmma", 256, 160, 32, 0, 4, 168, 240, 0)),
    Arm("wgmma, two tensors, split", 80, choice("wgmma", 128, 80, 64, 0, 6, 104, 136, -3)),
    Arm("wgmma, last round shared", 320, choice("wgmma", 64, 64, 128, 1, 5, 168, 240, ALONG)),
    Arm(CONTROL, 128, None),
)
MOST = max(arm.m for arm in ARMS)


@contextmanager
def starting(level: str) -> Iterator[None]:
    """With TRITIUM_CUDA_EARLY as given: which kernels may start before the one in front of them is done."""
    before = os.environ.get("TRITIUM_CUDA_EARLY")
    os.environ["TRITIUM_CUDA_EARLY"] = level
    try:
        yield
    finally:
        if before is None:
            del os.environ["TRITIUM_CUDA_EARLY"]
        else:
            os.environ["TRITIUM_CUDA_EARLY"] = before


def possible(n: int, k: int, gpu: Any) -> list[Arm]:
    """The arms that this GPU and this shape allow."""
    own = gpu.has_gluon and gpu.capability == HOPPER
    return [
        a for a in ARMS if a.choice is None or ((own or a.choice.kernel in PLAIN) and fits(Case(n, k, a.m), a.choice))
    ]


# ---- what is wanted


class Operands:
    """Weights and tokens of one shape, other ones for each launch, and the sums, which the host keeps."""

    def __init__(
        self, n: int, k: int, seed: int, place: str = "cuda", launches: int = LAUNCHES, tokens: int = MOST
    ) -> None:
        random = torch.Generator(place).manual_seed(seed)
        draw = {"dtype": torch.int8, "device": place, "generator": random}
        self.n, self.k = n, k
        self.w = [torch.randint(-1, 2, (n, k), **draw) for _ in range(launches)]
        self.q = [torch.randint(-127, 128, (tokens, k), **draw) for _ in range(launches)]
        self.ternary = [cuda_weights.ternary_of(w) for w in self.w]
        self.sums = torch.stack([_sums(q, w) for q, w in zip(self.q, self.w, strict=True)])
        self.totals = torch.stack([q.sum(1, dtype=torch.int32).cpu() for q in self.q])


def _sums(q: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """q times w.T on the host. f64 holds every sum; computed twice, for a device that errs now and then errs elsewhere."""
    first, second = ((q.double() @ w.double().t()).cpu() for _ in range(2))
    if not torch.equal(first, second):
        where = (first != second).nonzero()
        raise RuntimeError(
            f"torch's own f64 product of the same numbers came out different at {len(where)} places, first {where[0].tolist()}: "
            "this GPU or its driver errs; run `nvidia-smi -q -d ECC` and take another one."
        )
    return first.to(torch.int32)


# ---- what is found


class Mismatch(NamedTuple):
    """One element, and what it looks like."""

    replay: int
    launch: int
    row: int  # the token
    column: int  # the row of weights
    got: int
    wanted: int
    total: int
    like: str

    def __str__(self) -> str:
        return (
            f"replay {self.replay}, launch {self.launch}, row {self.row}, column {self.column}: got {self.got}, wanted {self.wanted}, "
            f"difference {self.got - self.wanted}, the token's total {self.total}{f'; {self.like}' if self.like else ''}"
        )


def likeness(got: int, launch: int, sums: Sequence[int], totals: Sequence[int]) -> str:
    """What a wrong sum may come from; sums and totals are those of all launches at its place."""
    wanted, total = sums[launch], totals[launch]
    others = [i for i in range(len(sums)) if i != launch]
    if got == POISON:
        return "not written"
    if got == wanted + total:
        return "no total was taken away"
    for i in others:
        if got == sums[i]:
            return f"the sum of launch {i}"
        if got == wanted + total - totals[i]:
            return f"the total of launch {i} was taken away"
    flipped = (got ^ wanted) & 0xFFFFFFFF
    return f"bit {flipped.bit_length() - 1} differs" if flipped & (flipped - 1) == 0 else ""


def different(found: torch.Tensor, sums: torch.Tensor, totals: torch.Tensor, replay: int) -> tuple[int, list[Mismatch]]:
    """How many elements of found [launches, tokens, n] are wrong, and the first few."""
    if torch.equal(found, sums):
        return 0, []
    where = (found != sums).nonzero()
    told: list[Mismatch] = []
    for i, m, n in where[:EACH].tolist():
        got = int(found[i, m, n])
        like = likeness(got, i, sums[:, m, n].tolist(), totals[:, m].tolist())
        told.append(Mismatch(replay, i, m, n, got, int(sums[i, m, n]), int(totals[i, m]), like))
    return len(where), told


def watched(
    replay: Callable[[], None],
    outputs: Sequence[torch.Tensor],
    sums: torch.Tensor,
    totals: torch.Tensor,
    times: int = REPLAYS,
) -> tuple[int, list[Mismatch]]:
    """Poison all outputs, replay, compare on the host, many times: how many elements were wrong, and the first few."""
    on_gpu = outputs[0].is_cuda
    here = torch.empty(sums.shape, dtype=torch.int32, pin_memory=on_gpu)
    wrong, told = 0, list[Mismatch]()
    for turn in range(times):
        for out in outputs:
            out.fill_(POISON)
        replay()
        for to, out in zip(here, outputs, strict=True):
            to.copy_(out, non_blocking=True)
        if on_gpu:
            torch.cuda.synchronize()
        count, some = different(here, sums, totals, turn)
        wrong, told = wrong + count, [*told, *some][:EACH]
    return wrong, told


# ---- runs


def calls(arm: Arm, o: Operands, keep: list[torch.Tensor]) -> list[Callable[[], None]]:
    """One call for each launch. The first half have their tokens already, so that products touch; the others make them between
    the products, in memory that is used again and again."""
    qs = [q[: arm.m] for q in o.q]
    if arm.choice is None:
        return [lambda q=q, w=w: keep.append(torch._int_mm(q, w.t())) for q, w in zip(qs, o.w, strict=True)]
    tiled, half = arm.choice.kernel == "fragments", len(qs) // 2
    given: list[Any] = [cuda_ternary.integers(q, tiled) for q in qs[:half]] + qs[half:]
    return [
        lambda q=q, w=w: keep.append(cuda_ternary.integer_product(q, w, choice=arm.choice))
        for q, w in zip(given, o.ternary, strict=True)
    ]


def run_arm(arm: Arm, o: Operands) -> tuple[int, list[Mismatch]]:
    outputs: list[torch.Tensor] = []
    graph = captured(calls(arm, o, outputs))
    outputs = outputs[-graph.calls :]  # those before are of the rehearsals
    return watched(graph, outputs, o.sums[:, : arm.m].contiguous(), o.totals)


def compiled(arms: Sequence[Arm], o: Operands, jobs: int) -> None:
    """Several at a time: compiling takes far longer than running."""

    def once(arm: Arm) -> None:
        if arm.choice is not None:
            for call in calls(arm, o, [])[:: max(len(o.q) - 1, 1)]:
                call()

    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        list(pool.map(once, arms))
    torch.cuda.synchronize()


def back_to_back(options: Options) -> Iterator[Shown]:
    """Every arm at every shape and level, until the time is up; what was not reached is a dash."""
    until = monotonic() + (QUICK_BACK_S if options.quick else BACK_S)
    shapes = QUICK_SHAPES if options.quick else SHAPES
    gpu = gpu_of(torch.device("cuda", torch.cuda.current_device()))
    found: dict[tuple[str, str, str], int] = {}
    told: list[str] = []
    checked = 0
    for i, (n, k) in enumerate(shapes):
        if monotonic() > until:
            break
        operands, arms = Operands(n, k, options.seed + i), possible(n, k, gpu)
        for level in LEVELS:
            if monotonic() > until:
                break
            with starting(level):
                compiled(arms, operands, options.jobs)
                for arm in arms:
                    if monotonic() > until:
                        break
                    wrong, some = run_arm(arm, operands)
                    found[f"{n}×{k}", arm.name, level] = wrong
                    checked += LAUNCHES * REPLAYS * arm.m * n
                    told += [f"{n}×{k}, {arm.name}, {TITLES[level]}: {one}" for one in some]
        del operands
        torch.cuda.empty_cache()
    yield shown(found, LEVELS, told, checked)


def shown(found: dict[tuple[str, str, str], int], levels: Sequence[str], told: Sequence[str], checked: int) -> Shown:
    rows = tuple(
        (shape, name, *(str(found.get((shape, name, level), "-")) for level in levels))
        for shape, name in dict.fromkeys((shape, name) for shape, name, _ in found)
    )
    heads = ("n × k", "kernel", *(TITLES[level] for level in levels))
    below = (
        "",
        f"Wrong elements of {checked:,} compared on the host: graphs of {LAUNCHES} launches, {REPLAYS} replays, outputs poisoned before each.",
        *told[:SHOWN],
    )
    total = float(sum(wrong for (_, name, _), wrong in found.items() if name != CONTROL))
    record = {"wrong": [[*which, wrong] for which, wrong in found.items()], "told": list(told), "checked": checked}
    return Shown(
        Table("Back to back", heads, rows, frozenset(heads[2:]), below),
        (Goal("wrong elements back to back", total, total, total, 0.0, lower=True),), record,
    )  # fmt: skip

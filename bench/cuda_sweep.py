"""The time of every candidate kernel over random shapes on a Hopper GPU: the data that the model of their times is fitted to.

`bench/cuda_fit.py` reads what this writes, and prints the constants of `cuda.linear.model`.

    python bench/cuda_sweep.py --output sweep.json --seconds 240 --jobs 14

Shapes are drawn as `bench/cuda.py --random-shapes` draws them, a few batches for each. Kernels are compiled first, in processes of
their own. A candidate is a CUDA graph of several launches over rotating weights, and its result is compared with `_int_mm`, to the
bit, before it is timed; fp8 is timed beside it. What was not reached when the time is up is not in the file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from cuda_draws import COLUMNS, draw_size

from tritium.backends.cuda.capability import HOPPER
from tritium.backends.cuda.linear import choice as cuda_tuned
from tritium.backends.cuda.linear.choice import Case, Choice, parsed
from tritium.backends.cuda.linear.spread import spread, tensors

CLASSES = (1, 1), (2, 8), (9, 31), (32, 96), (97, 256), (257, 512), (513, 2048), (2049, 8192)
FEW = 3  # candidates of the kernels that are compiled for every number of columns
MOST_WORK = 2e12  # multiplications of a case
WORTH = 1.3  # times the least estimate, above which a candidate is not tried
LAUNCHES, MOST_LAUNCHES, COLD = 6, 24, 96 << 20
SAMPLE_S = 0.0012
SAMPLES = 3


def cases(shapes: int, seed: int, fewest: int = 1) -> list[Case]:
    """Random shapes, each with one batch of the classes between 32 and 512 tokens, every third with one of all from `fewest` on."""
    random = np.random.default_rng(seed)
    drawn: list[Case] = []
    for i in range(shapes):
        n, k = draw_size(random), draw_size(random)
        for low, high in CLASSES:
            m = min(round(math.exp(random.uniform(math.log(low), math.log(high + 1)))), high)
            rare = high <= 31 or low > 512
            if low >= fewest and n * k * m <= MOST_WORK and (not rare or i % 3 == 0):
                drawn.append(Case(n, k, m))
    return drawn


def estimate(case: Case, c: Choice, processors: int) -> float:
    """Return a rough time in µs, by which candidates far from the best are left out before anything is measured."""
    rows, tokens, step = (c.get(name) for name in ("rows", "tokens", "bytes"))
    steps, tiles = -(-cuda_tuned.words(case) * 4 // step), -(-case.n // rows) * -(-case.m // tokens)
    dealt = spread(c.get("spread"), tiles, steps, tokens, processors)
    each = rows / 64 * step / 8 * sum(max(t, 24 if i else 64) for i, t in enumerate(tensors(tokens))) / 2 / 1980
    results = rows * tokens / 1024
    rounds = -(-(dealt.whole * dealt.split) // processors)
    joins = max(dealt.split, dealt.parts) - 1
    of_tail = (tiles > dealt.whole) * (1 / max(dealt.pieces, dealt.parts))
    time = 3 + 0.04 * results + (rounds / dealt.split + of_tail) * steps * (1.1 * each + 0.04)
    return time + (rounds + (of_tail > 0) - 1) * (0.3 + 0.04 * results) + (joins > 0) * (1 + joins * 0.03 * results)


def tried(case: Case, processors: int) -> list[Choice]:
    """Return the candidates that are worth timing."""
    if case.m <= 8:
        kernel = "gemv" if case.m == 1 else "fragments"
        listed = cuda_tuned.shortlist(case, HOPPER, processors, 60)
        return [c for c in listed if c.kernel == kernel][:FEW] + [c for c in listed[:2] if c.kernel == kernel]
    every = list(cuda_tuned.wgmmas(case, processors))
    times = {c: estimate(case, c, processors) for c in every}
    least = min(times.values())
    chosen = [c for c in every if times[c] <= WORTH * least]
    if case.m <= 40:
        cuts = [c for c in cuda_tuned.fragment_cuts(case) if c.get("groups") * 8 >= min(case.m, 32)]
        chosen += sorted(cuts, key=lambda c: cuda_tuned._unusual(case, c))[: FEW - 1]
    return chosen


def kernel_key(case: Case, c: Choice, processors: int) -> tuple[Any, ...]:
    """Return what a compiled kernel depends on."""
    if c.kernel != "wgmma":
        return (c, case.k, case.m if c.kernel == "gemv" else 0)
    steps = -(-cuda_tuned.words(case) * 4 // c.get("bytes"))
    tiles = -(-case.n // c.get("rows")) * -(-case.m // c.get("tokens"))
    dealt = spread(c.get("spread"), tiles, steps, c.get("tokens"), processors)
    return (c.config[:-1], dealt.split, dealt.pieces, dealt.parts > 1)


# ---- compiling


def compile_one(case: tuple[int, int, int], name: str) -> str:
    """Launch one kernel on weights of zeros, in a process of its own; return why it failed, or ""."""
    import torch

    from tritium.backends.cuda.linear import ternary as cuda_ternary, weights as cuda_weights

    n, k, m = case
    c = parsed(name)
    try:
        w = cuda_weights.ternary_of(torch.zeros((n, k), dtype=torch.int8, device="cuda"))
        x = torch.ones((m, k), device="cuda", dtype=torch.bfloat16)
        tokens = cuda_ternary.quantise(x, tiled=c is not None and c.kernel == "fragments")
        cuda_ternary.product(tokens, w, torch.ones((), device="cuda"), None, torch.bfloat16, choice=c)
        torch.cuda.synchronize()
    except Exception as error:  # it is left out of the sweep, and told
        return f"{name}: {type(error).__name__}: {str(error)[-200:]}"
    return ""


def compile_all(wanted: Sequence[tuple[tuple[int, int, int], str]], jobs: int, until: float) -> list[str]:
    """Compile kernels in several processes, into Triton's cache; return what failed."""
    failures: list[str] = []
    pool = ProcessPoolExecutor(jobs, get_context("spawn"))
    futures = [pool.submit(compile_one, *one) for one in wanted]
    try:
        for future in as_completed(futures, timeout=max(until - monotonic(), 1)):
            if why := future.result():
                failures.append(why)
    except TimeoutError:
        failures.append("not all kernels were compiled in time")
    pool.shutdown(wait=False, cancel_futures=True)
    return failures


# ---- timing


class Bench:
    """The weights and tokens of one shape."""

    def __init__(self, n: int, k: int, most: int, seed: int) -> None:
        import torch

        from tritium.backends.cuda.linear import weights as cuda_weights

        random = torch.Generator("cuda").manual_seed(seed)
        self.n, self.k = n, k
        count = min(max(LAUNCHES, -(-COLD // (n * k // 4))), MOST_LAUNCHES)
        count = min(count, max(2, (8 << 30) // (n * k)))
        codes = torch.randint(-1, 2, (count, n, k), dtype=torch.int8, device="cuda", generator=random)
        self.first = codes[0].clone()
        self.ternary = [cuda_weights.ternary_of(w) for w in codes]
        self.fp8 = [w.to(torch.float8_e4m3fn) for w in codes[: max(2, min(count, (256 << 20) // (n * k)))]]
        self.x = torch.randn((most, k), device="cuda", generator=random).bfloat16()
        self.scale = torch.full((), 0.02, device="cuda")
        self.one = torch.ones((), device="cuda")

        for w in self.ternary:
            w.planes()


def wanted_result(b: Bench, tokens: Any) -> Any:
    """Return the product with the first weights, computed by torch."""
    import torch

    q = tokens.straight().q[:, : b.k]
    filled = torch.zeros((max(32, q.shape[0]), b.k), dtype=torch.int8, device="cuda")
    filled[: q.shape[0]] = q
    sums = torch._int_mm(filled, b.first.t())[: q.shape[0]]
    return (sums.float() * (tokens.scale * b.scale)[:, None]).to(torch.bfloat16)


@cache
def _anchor() -> Any:
    """Return a graph whose pool of memory all others share: it is there as long as one of them is."""
    import torch

    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    torch.zeros(1, device="cuda")
    graph.capture_end()
    return graph


def time_graph(calls: Sequence[Any], check: Any = None) -> float | None:
    """Return µs of one call, the least of a few samples of a graph of all; None where a result is wrong."""
    import torch
    from cuda_timing import side

    stream = side()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        first = calls[0]()
        if check is not None and not torch.equal(first, check):
            return None
        for call in calls[1:]:
            call()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(
            pool=_anchor().pool()
        )  # not by `torch.cuda.graph`, which empties the cache of memory each time
        for call in calls:
            call()
        graph.capture_end()
        graph.replay()
        values = []
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = 2
        for _ in range(SAMPLES + 1):
            begin.record(stream)
            for _ in range(times):
                graph.replay()
            end.record(stream)
            end.synchronize()
            ms = begin.elapsed_time(end)
            values.append(1e3 * ms / times / len(calls))
            times = min(max(math.ceil(SAMPLE_S * 1e3 / max(ms / times, 1e-3)), 1), 64)
    return min(values[1:])


def time_case(b: Bench, case: Case, choices: Sequence[Choice], until: float) -> dict[str, Any]:
    import torch

    from tritium.backends.cuda.linear import ternary as cuda_ternary

    x = b.x[: case.m]
    tokens = {tiled: cuda_ternary.quantise(x, tiled=tiled) for tiled in (False, True)}
    check = wanted_result(b, tokens[False])
    x8 = x.to(torch.float8_e4m3fn)
    fp8 = [
        lambda w=w: torch._scaled_mm(x8, w.t(), b.one, b.one, out_dtype=torch.bfloat16, use_fast_accum=True)
        for w in b.fp8
    ]
    record: dict[str, Any] = {"n": case.n, "k": case.k, "m": case.m, "fp8": time_graph(fp8), "us": {}, "wrong": []}
    for c in choices:
        if monotonic() > until:
            break
        t = tokens[c.kernel == "fragments"]
        calls = [
            lambda w=w, c=c, t=t: cuda_ternary.product(t, w, b.scale, None, torch.bfloat16, choice=c) for w in b.ternary
        ]
        try:
            us = time_graph(calls, check)
        except Exception as error:  # told in the file; the others are timed
            record["wrong"].append(f"{c}: {type(error).__name__}: {str(error)[:100]}")
            continue
        if us is None:
            record["wrong"].append(f"{c}: wrong result")
        else:
            record["us"][str(c)] = round(us, 4)
    return record


def sweep(drawn: Sequence[Case], jobs: int, compile_s: float, seconds: float, seed: int, output: Path) -> None:
    import torch

    processors = torch.cuda.get_device_properties(0).multi_processor_count
    by_case = {case: tried(case, processors) for case in drawn}
    used = Counter(kernel_key(case, c, processors) for case, choices in by_case.items() for c in choices)
    kernels: dict[tuple[Any, ...], tuple[tuple[int, int, int], str]] = {}
    for case, choices in by_case.items():
        choices[:] = [c for c in choices if c.kernel != "wgmma" or used[kernel_key(case, c, processors)] > 1]
        for c in choices:
            key = kernel_key(case, c, processors)
            proxy = min(case.k, 16384) // COLUMNS * COLUMNS if c.kernel == "wgmma" else case.k
            kernels.setdefault(key, ((case.n, proxy, case.m), str(c)))
    begun = monotonic()
    wanted = [kernels[key] for key in sorted(kernels, key=lambda key: -len(str(key)))]
    failures = compile_all(wanted, jobs, begun + compile_s)
    print(f"{len(kernels)} kernels, {len(failures)} failed, {monotonic() - begun:.0f} s", *failures[:20], sep="\n")
    records: list[dict[str, Any]] = []
    until = monotonic() + seconds
    for i, (n, k) in enumerate(dict.fromkeys((case.n, case.k) for case in drawn)):
        of_shape = [case for case in drawn if (case.n, case.k) == (n, k)]
        if monotonic() > until:
            break
        b = Bench(n, k, max(case.m for case in of_shape), seed + i)
        for case in of_shape:
            if monotonic() < until:
                records.append(time_case(b, case, by_case[case], until))
        del b
        if i % 4 == 3:
            output.write_text(json.dumps(records))
            torch.cuda.empty_cache()
    output.write_text(json.dumps(records))
    timed, wrong = sum(len(r["us"]) for r in records), [why for r in records for why in r["wrong"]]
    print(f"{len(records)} cases, {timed} times, {len(wrong)} failed", *wrong[:10], sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    parser.add_argument("--compile-seconds", type=float, default=150, help="most time to compile")
    parser.add_argument("--seconds", type=float, default=240, help="most time to measure")
    parser.add_argument("--fewest", type=int, default=1, help="least tokens of a case")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    sweep(
        cases(args.shapes, args.seed, args.fewest),
        args.jobs,
        args.compile_seconds,
        args.seconds,
        args.seed,
        args.output,
    )
    return 0


if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # this folder last: a library may look for a package that is named like this file
    sys.exit(main())

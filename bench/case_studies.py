"""The two case studies of docs/case-studies, measured: a ladder of matrix products, and batches with less and less memory.

Knows nothing of the inside of the library: each step is what its page shows.

    python bench/case_studies.py                     both tables, as the pages show them
    python bench/case_studies.py --only batches      one of them
    python bench/case_studies.py --rounds 3          a shorter look
    python bench/case_studies.py --json study.json   every raw value too

Method. Every step of every round runs in a process of its own, so that none inherits the warm pool or the resident memory of
another; the order of the steps is shuffled in each round. A process makes its inputs, notes its resident memory, runs the step
twice, checks the result against NumPy's float64, and then times it: loops of at least 2 ms (one run, if that is longer), 15 of
them, or 3 if they are longer than a second. Its value is their median. Shown is the median over the rounds, and lowest to highest.
Memory is that of one run: requests to the pool, requests the pool passed on to the system, the most bytes alive above the start
(results included), and how much the resident memory of the process had grown at its highest.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
from timing import machine, timed

import tritium as tt

LOOP_NS, LONG_NS = 2_000_000, 1_000_000_000
LOOPS, FEW = 15, 3
SIZE = 1000  # of the ladder: what the guide takes
BLOCK = 256
LADDER = {
    "naive": "`naive`",
    "blocked": "`blocked`",
    "parallel": "`parallel`",
    "by hand": f"blocks of {BLOCK} by hand, each a product",
    "blas": "`blas`, the default",
}


class Batch(NamedTuple):
    """Items of one size: x[m,k] @ w[k,n]."""

    title: str
    items: int
    m: int
    k: int
    n: int


BATCHES = {
    "small": Batch("256 items of f32[16,64], weights f32[64,32]", 256, 16, 64, 32),
    "large": Batch("32 items of f32[512,1024], weights f32[1024,256]", 32, 512, 1024, 256),
}
STEPS = {
    "system": "no pool: each temporary from the system",
    "plain": "plain code: three requests to the pool an item",
    "tensor_pool": "TensorPool, `out=` and in place",
    "compiled": "compiled: one arena",
    "run_many": "compiled, `run_many`",
    "in_batches": "compiled, 8 items at a time of one tensor",
}


class Sample(NamedTuple):
    """What one process found of one step."""

    ns: float
    requests: int
    from_system: int
    peak_bytes: int
    grown_bytes: int


# ---- the steps


def by_hand(a: Any, b: Any) -> Any:
    """The guide's blocks, as slices of tensors."""
    c = tt.zeros((a.shape[0], b.shape[1]), dtype=a.dtype)
    for i in range(0, a.shape[0], BLOCK):
        for j in range(0, b.shape[1], BLOCK):
            for p in range(0, a.shape[1], BLOCK):
                c[i : i + BLOCK, j : j + BLOCK] += a[i : i + BLOCK, p : p + BLOCK] @ b[p : p + BLOCK, j : j + BLOCK]
    return c


def ladder(algorithm: str) -> tuple[Callable[[], Any], Callable[[Any], float]]:
    a, b = (tt.randn((SIZE, SIZE), dtype="f64", seed=i) for i in (1, 2))
    want = np.asarray(a) @ np.asarray(b)
    if algorithm == "by hand":
        run = lambda: by_hand(a, b)
    else:
        run = lambda: tt.matmul(a, b, algorithm=algorithm)
    return run, lambda c: float(abs(np.asarray(c) - want).max())


def batches(size: str, step: str) -> tuple[Callable[[], Any], Callable[[Any], float]]:
    _, items, m, k, n = BATCHES[size]
    w = tt.randn((k, n), seed=0)
    batch = [tt.randn((m, k), seed=i + 1) for i in range(items)]

    def plain() -> list[Any]:
        out = []
        for x in batch:
            active = tt.relu(x)
            scores = active @ w
            out.append(tt.softmax(scores))
        return out

    pool = tt.memory.TensorPool(1)

    def tensor_pool() -> list[Any]:
        out = []
        with pool.borrow((m, k)) as active:
            for x in batch:
                tt.relu(x, out=active)
                scores = active @ w
                out.append(scores.softmax_())
        return out

    compiled = tt.compile(lambda x: tt.softmax(tt.relu(x) @ w))
    one = tt.stack(batch) if step == "in_batches" else batch[0]
    runs = {
        "system": plain,
        "plain": plain,
        "tensor_pool": tensor_pool,
        "compiled": lambda: [compiled(x) for x in batch],
        "run_many": lambda: compiled.run_many(batch),
        "in_batches": lambda: tt.process_in_batches(compiled, one, size=8),
    }
    if step == "system":
        tt.memory.configure(limit=0)  # nothing idle is kept
    return runs[step], lambda out: max(_distance(x, w, y) for x, y in zip(batch[:3], out, strict=False))


def _distance(x: Any, w: Any, y: Any) -> float:
    """Of a result from float64 NumPy's."""
    scores = np.maximum(np.asarray(x, np.float64), 0) @ np.asarray(w, np.float64)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return float(abs(np.asarray(y) - scores / scores.sum(axis=-1, keepdims=True)).max())


# ---- one process


def highest_resident(start: bool = False) -> int:
    """The most memory this process had, since the start where Linux lets it be forgotten; 0 where no system tells."""
    status = Path("/proc/self/status")
    if status.exists():
        if start:
            tt.memory.trim()
            Path("/proc/self/clear_refs").write_text("5")
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if "VmHWM" in line)
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(study: str, size: str, step: str) -> Sample:
    run, distance = ladder(step) if study == "ladder" else batches(size, step)
    before = highest_resident(start=True)
    run()
    with tt.memory.usage() as used:
        result = run()
    grown = highest_resident() - before
    wrong = distance(result)
    if wrong > 1e-3:
        raise SystemExit(f"{study} {size} {step}: {wrong} away from the reference")
    del result
    start = perf_counter_ns()
    run()
    once = max(1, perf_counter_ns() - start)
    loops = max(1, LOOP_NS // once)
    times = [timed(run, loops) / loops for _ in range(FEW if once > LONG_NS else LOOPS)]
    misses = used.after.misses - used.before.misses
    return Sample(statistics.median(times), used.allocations, misses, used.peak_above_start, grown)


# ---- the rounds


def rounds(study: str, size: str, steps: list[str], count: int) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {step: [] for step in steps}
    for seed in range(count):
        for step in random.Random(seed).sample(steps, len(steps)):
            child = [sys.executable, str(Path(__file__).resolve()), "--child", study, size, step]
            done = subprocess.run(child, check=True, capture_output=True, text=True)
            found[step].append(Sample(*json.loads(done.stdout)))
    return found


def milliseconds(samples: list[Sample], items: int = 1) -> tuple[float, str]:
    """The median, and the cells of a table: it and the range."""
    times = sorted(s.ns / 1e6 / items for s in samples)
    middle = statistics.median(times)
    digits = 1 if middle >= 10 else 3 if middle >= 0.01 else 5
    return middle, f"{middle:,.{digits}f} | {times[0]:,.{digits}f} to {times[-1]:,.{digits}f}"


def size_text(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.2f} MB"


def ladder_table(found: dict[str, list[Sample]]) -> list[str]:
    lines = ["| algorithm | ms | lowest to highest | GFLOP/s | × naive |", "|---|---|---|---|---|"]
    first = milliseconds(found["naive"])[0]
    for step, samples in found.items():
        middle, cells = milliseconds(samples)
        lines.append(f"| {LADDER[step]} | {cells} | {2 * SIZE**3 / middle / 1e6:,.1f} | {first / middle:,.1f} |")
    return lines


def batch_table(found: dict[str, list[Sample]]) -> list[str]:
    lines = [
        "| step | ms a batch | lowest to highest | requests | from the system | peak | process grew by |",
        "|---|---|---|---|---|---|---|",
    ]
    for step, samples in found.items():
        s = samples[0]
        grown = statistics.median(x.grown_bytes for x in samples)
        cells = f"{s.requests} | {s.from_system} | {size_text(s.peak_bytes)} | {size_text(grown)}"
        lines.append(f"| {STEPS[step]} | {milliseconds(samples)[1]} | {cells} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("ladder", "batches"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(*given.child)))
        return
    raw: dict[str, Any] = {"machine": machine(), "threads": tt.get_num_threads(), "tritium": tt.__version__}
    print(f"{raw['machine']}, {raw['threads']} threads, {given.rounds} rounds")
    if given.only != "batches":
        found = raw["ladder"] = rounds("ladder", str(SIZE), list(LADDER), given.rounds)
        print(f"\nf64[{SIZE},{SIZE}] @ f64[{SIZE},{SIZE}]\n", *ladder_table(found), sep="\n")
    if given.only != "ladder":
        for size, about in BATCHES.items():
            found = raw[size] = rounds("batches", size, list(STEPS), given.rounds)
            print(f"\n{about.title}\n", *batch_table(found), sep="\n")
    if given.json:
        given.json.write_text(json.dumps(raw, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

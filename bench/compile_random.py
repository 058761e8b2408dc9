"""Random functions of awkward ops, eager and compiled: is a compiled function ever slower?

The functions are those of the tests: sorting, indexing, scatters, writes, quantisation, several results, an op with a kernel
in Python, between plain ops.

    python bench/compile_random.py                       200 functions, small and large (some 6 minutes)
    python bench/compile_random.py --functions 30        a short look
    python bench/compile_random.py --json random.json    every raw value too

Method. Each function runs on two matrices of 2 x 4 and of 256 x 256 numbers, on one thread, in one process; it is compiled
before. A round is a loop of eager calls and one of compiled calls, at least 0.2 ms each, the order reversed at every other round. Times are
those that the thread had a CPU: neighbours on a shared machine add little. A function counts as slower if the fastest compiled
round is slower than the fastest eager one by more than the spread, which is the distance from the fastest to the median round
of either, and by more than 3 %. Slower ones are listed, with their ops. The garbage collector is off.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
from itertools import repeat
from pathlib import Path
from statistics import median, quantiles
from time import thread_time_ns
from typing import Any, NamedTuple

from timing import Call, machine

import tritium as tt

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))

import awkward

SHAPES = {"small": (2, 4), "large": (256, 256)}
LOOP_NS = 200_000
SHARE = 0.03


class Cell(NamedTuple):
    """One function at one size: ns a call, by round."""

    seed: int
    size: str
    ops: str
    eager: list[float]
    compiled: list[float]

    @property
    def ratio(self) -> float:
        return min(self.compiled) / min(self.eager)

    @property
    def is_slower(self) -> bool:
        """Whether compiled is slower than eager by more than the spread of both."""
        spread = max(median(ns) - min(ns) for ns in (self.eager, self.compiled))
        return min(self.compiled) - min(self.eager) > max(spread, SHARE * min(self.eager))


def timed(call: Call, loops: int) -> float:
    start = thread_time_ns()
    for _ in repeat(None, loops):
        call()
    return (thread_time_ns() - start) / loops


def loops_for(call: Call) -> int:
    call()
    return max(1, int(LOOP_NS / max(timed(call, 3), 1)))


def measure(seed: int, size: str, words: Any, rounds: int) -> Cell:
    ops, fn = awkward.function(seed, words)
    x, y = awkward.operands(SHAPES[size], seed)
    compiled = tt.compile(fn)
    calls = {"eager": lambda: fn(x, y), "compiled": lambda: compiled(x, y)}
    loops = {name: loops_for(call) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds):
        for name in sorted(calls, reverse=bool(i % 2)):
            samples[name].append(timed(calls[name], loops[name]))
    return Cell(seed, size, ops, **samples)


def summary(cells: list[Cell]) -> str:
    lines = []
    for size in SHAPES:
        ratios = [c.ratio for c in cells if c.size == size]
        low, middle, high = quantiles(ratios, n=4)
        slower = [c for c in cells if c.size == size and c.is_slower]
        lines.append(
            f"{size}: compiled takes {middle:.2f} of the eager time (quartiles {low:.2f} to {high:.2f}, at most "
            f"{max(ratios):.2f}); slower beyond the spread: {len(slower)} of {len(ratios)}"
        )
        for c in sorted(slower, key=lambda c: -c.ratio):
            eager, compiled = min(c.eager) / 1e3, min(c.compiled) / 1e3
            lines.append(f"  {c.ratio:.2f}: eager {eager:.1f} us, compiled {compiled:.1f} us, seed {c.seed}: {c.ops}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", type=int, default=200, help="Number of functions (default: 200).")
    parser.add_argument("--rounds", type=int, default=12, help="Rounds of each function (default: 12).")
    parser.add_argument("--seed", type=int, default=0, help="First seed (default: 0).")
    parser.add_argument("--json", type=Path, help="Write every raw value to a file.")
    options = parser.parse_args()
    logging.getLogger("tritium").setLevel(logging.ERROR)  # kernels in Python are what is measured
    tt.set_num_threads(1)
    gc.disable()
    cells = []
    with awkward.words() as words:
        for seed in range(options.seed, options.seed + options.functions):
            for size in SHAPES:
                cells.append(measure(seed, size, words, options.rounds))
            gc.collect()
    print(f"{machine()}, tritium {tt.__version__}, {options.functions} functions of seeds from {options.seed}")
    print(summary(cells))
    if options.json:
        options.json.write_text(json.dumps([c._asdict() for c in cells]))


if __name__ == "__main__":
    main()

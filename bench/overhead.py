"""What it costs to record spans and to track memory: off, and on.

The limits that the project set itself stand beside the figures.

    python bench/overhead.py                        all of it, about a minute
    python bench/overhead.py --quick                a short look
    python bench/overhead.py --json overhead.json   every raw value too

Method. Calls of about 5, 50 and 500 us are found first: the smallest sizes that take as long on this machine. On against off, in one
process: a round times a loop of calls without and with it, in turns first and second; shown is the median over rounds of
(on / off - 1) with its 95 % interval. Starting and stopping are not timed. Kernels run on one thread, and times are those it had a CPU:
what is asked is the work added, and neighbours on a shared machine add little. Off cannot be switched off, so it is measured on the
shortest call there is, where a test of a global weighs most: in a process of its own, calls before anything was ever started,
then calls after all was started and stopped again; shown is the difference in ns between the fastest samples of each (a neighbour
on the same core slows some and speeds none), the median over processes with its 95 % interval, and what share of a call of 50 us it is.
A call tests two globals of native code (does someone record, does someone watch memory), a program the same two for all its
steps. The garbage collector is off.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import repeat
from pathlib import Path
from statistics import median
from time import thread_time_ns
from typing import Any, NamedTuple

from results import Column, Entry, add_option, figure, value, write
from timing import Call, machine

import tritium as tt
from tritium import recording
from tritium.perf.stats import estimates as stats

TARGETS_US = (5, 50, 500)
LIMITED_US = 45  # limits are for calls of about 50 us and more
LIMITS = {"recording off": 0.001, "recording on": 0.05, "memory on": 0.10}
SAMPLE_NS, SHORT_NS = 500_000, 100_000
STEPS = tuple(round(8 * 2 ** (i / 4)) for i in range(60))  # sizes that are tried


class Cell(NamedTuple):
    """One figure with its raw values: what is compared, the call, and its times by round."""

    what: str
    call: str
    size: int
    off_ns: list[float]
    on_ns: list[float]

    @property
    def call_us(self) -> float:
        return median(self.off_ns) / 1000

    @property
    def extra(self) -> list[float]:
        return [on / off - 1 for on, off in zip(self.on_ns, self.off_ns, strict=True)]


def timed(call: Call, loops: int) -> int:
    start = thread_time_ns()
    for _ in repeat(None, loops):
        call()
    return thread_time_ns() - start


# ---- what is called


def matmul(n: int) -> Call:
    return partial(tt.matmul, tt.randn((n, n), seed=0), tt.randn((n, n), seed=1))


def add(n: int) -> Call:
    return partial(tt.add, tt.randn((n * 8,), seed=0), tt.randn((n * 8,), seed=1))


def product(n: int) -> Call:
    n = -(-n // 64) * 64
    layer = tt.nn.BitLinear.from_float(tt.randn((n, n), seed=0))
    return partial(layer, tt.randn((1, n), seed=1))


def program(n: int) -> Call:
    run = tt.compile(lambda x, w: tt.softmax(tt.gelu(tt.matmul(x, w) + 1.0) * 0.5, axis=-1))
    return partial(run, tt.randn((n, n), seed=0), tt.randn((n, n), seed=1))


CALLS: dict[str, Callable[[int], Call]] = {
    "matmul": matmul,
    "add": add,
    "ternary layer": product,
    "compiled program": program,
}


def call_ns(call: Call) -> float:
    call()
    loops = max(1, round(200_000 / max(1, timed(call, 1))))
    return min(timed(call, loops) for _ in range(3)) / loops


def sized(make: Callable[[int], Call]) -> list[int]:
    """For each target the smallest size whose call takes that long."""
    sizes: list[int] = []
    for n in STEPS:
        took_us = call_ns(make(n)) / 1000
        sizes += [n for target in TARGETS_US[len(sizes) :] if took_us >= target]
        if len(sizes) == len(TARGETS_US):
            break
    return sizes


# ---- on against off


class Recording:
    """Recording while it is entered; what was recorded is thrown away on the way out."""

    def __init__(self) -> None:
        self.recorder = recording.Recorder()

    def __enter__(self) -> None:
        self.recorder.start()

    def __exit__(self, *_: object) -> None:
        self.recorder.stop()
        self.recorder.take()


WHAT: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "recording on": Recording,
    "memory on": tt.track_memory,
}


def measure(what: str, name: str, size: int, rounds: int) -> Cell:
    call = CALLS[name](size)
    loops = max(1, round(SAMPLE_NS / call_ns(call)))
    off: list[float] = []
    on: list[float] = []
    once = Recording() if what == "recording on" else None
    for i in range(rounds):
        for is_on in (False, True) if i % 2 else (True, False):
            with (once or WHAT[what]()) if is_on else nullcontext():
                timed(call, 2)  # the caches hold again what is called
                (on if is_on else off).append(timed(call, loops) / loops)
    return Cell(what, name, size, off, on)


# ---- off against never


def never_and_off(samples: int) -> dict[str, list[float]]:
    """ns of the shortest call: before anything was started in this process, and after all was stopped again."""
    x = tt.ones(8)
    call = partial(tt.add, x, x)
    loops = max(1, round(SHORT_NS / call_ns(call)))
    timed(call, 100 * loops)
    never = [timed(call, loops) / loops for _ in range(samples)]
    for make in WHAT.values():
        with make():
            call()
    return {"never": never, "off": [timed(call, loops) / loops for _ in range(samples)]}


def off_cost(processes: int, samples: int) -> list[dict[str, list[float]]]:
    command = [sys.executable, __file__, "--child", str(samples)]
    return [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(processes)
    ]


def scope_ns() -> float:
    """What a scope costs while nobody records."""

    def entered() -> None:
        with s:
            pass

    def plain() -> None:
        pass

    s = tt.scope("scope")
    rounds = [(timed(entered, 10_000) - timed(plain, 10_000)) / 10_000 for _ in range(31)]
    return median(rounds)


# ---- in words


def verdict(low: float, high: float, limit: float) -> str:
    if high <= limit:
        return "met"
    return "MISSED" if low > limit else "unsure"


def line(cell: Cell) -> tuple[str, str]:
    """A line of the table, and whether the limit is met ("" where there is none)."""
    middle, (low, high) = median(cell.extra), stats.median_interval(cell.extra)
    limited = cell.call_us >= LIMITED_US
    said = verdict(low, high, LIMITS[cell.what]) if limited else ""
    limit = f"{LIMITS[cell.what]:.0%}" if limited else "none: a short call"
    extra_ns = middle * cell.call_us * 1000
    figures = f"{middle:+8.2%} ({low:+.2%} … {high:+.2%})"
    return (
        f"{cell.what:<13} {cell.call:<17} {cell.call_us:8.1f} us {figures:<32} {extra_ns:+9.0f} ns  {limit:<18} {said}",
        said,
    )


def off_lines(found: list[dict[str, list[float]]]) -> tuple[list[str], str]:
    extra = [min(f["off"]) - min(f["never"]) for f in found]
    middle, (low, high) = median(extra), stats.median_interval(extra)
    share = middle / 50_000
    said = verdict(low / 50_000, high / 50_000, LIMITS["recording off"])
    call = median(min(f["never"]) for f in found)
    return [
        f"off           add, 8 elements   {call / 1000:8.2f} us {middle:+.2f} ns a call ({low:+.2f} … {high:+.2f} in {len(found)} processes)",
        f"              that is {share:+.4%} of a call of 50 us; limit {LIMITS['recording off']:.1%}  {said}",
    ], said


def write_results(path: Path, cells: list[tuple[str, Cell]], off: list[dict[str, list[float]]]) -> None:
    """Write the extra time of every call as a results file; `cells` with the time that was aimed at."""
    columns = [
        Column("call", "µs", "median time of a call without it"),
        Column("extra", "%", "time added to a call"),
        Column("limit", "%", "most the project allows itself, for calls of about 50 µs and more"),
    ]
    shares = [100 * (min(f["off"]) - min(f["never"])) / 50_000 for f in off]
    never = figure([min(f["never"]) for f in off], scale=1e-3, processes=len(off))
    limit = value(100 * LIMITS["recording off"])
    extra = figure(shares, processes=len(off))
    rows = [Entry(("off", "add of 8 elements, as a share of 50 µs"), {"call": never, "extra": extra, "limit": limit})]
    for size, cell in cells:
        figures = {"call": figure(cell.off_ns, scale=1e-3), "extra": figure(cell.extra, scale=100)}
        if cell.call_us >= LIMITED_US:
            figures["limit"] = value(100 * LIMITS[cell.what])
        rows.append(Entry((cell.what, f"{cell.call}, {size}"), figures))
    write(path, "What recording spans and tracking memory cost", ("what", "call of"), columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short look: few rounds")
    parser.add_argument("--rounds", type=int, help="rounds of each figure")
    parser.add_argument("--processes", type=int, help="processes that measure the cost of what is off")
    parser.add_argument("--only", help=f"some of: {', '.join(CALLS)}")
    parser.add_argument("--json", type=Path)
    add_option(parser)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    gc.disable()
    tt.set_num_threads(1)
    if args.child:
        print(json.dumps(never_and_off(args.child)))
        return
    rounds = args.rounds or (15 if args.quick else 301)
    names = [n for n in CALLS if not args.only or n in args.only.split(",")]
    print(f"{machine()}; 1 thread; {rounds} rounds")
    print(
        f"a span costs {recording.event_cost_ns():.0f} ns, a scope {recording.scope_cost_ns() or 0:.0f} ns; "
        f"a scope while nobody records {scope_ns():.0f} ns\n"
    )
    off = off_cost(args.processes or (2 if args.quick else 11), rounds)
    lines, said = off_lines(off)
    print("\n".join(lines))
    sizes = {name: sized(CALLS[name]) for name in names}
    cells: list[tuple[str, Cell]] = []
    verdicts = [said]
    for what in WHAT:
        for name in names:
            for size in dict.fromkeys(sizes[name]):
                target = TARGETS_US[sizes[name].index(size)]
                cells.append((f"about {target} µs", measure(what, name, size, rounds)))
                text, said = line(cells[-1][1])
                verdicts.append(said)
                print(text, flush=True)
    if args.json:
        kept = {"machine": machine(), "off": off, "cells": [c._asdict() for _, c in cells]}
        args.json.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    if args.results:
        write_results(args.results, cells, off)
    sys.exit("a limit is missed" if "MISSED" in verdicts else 0)


if __name__ == "__main__":
    main()

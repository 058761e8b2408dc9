"""Ternary products side by side in one run: tritium, numpy, torch and mlx over batches and shapes, at several thread counts.

Knows nothing of the inside of any library: each is called as its users call it, allocating its result.

    python bench/ternary.py                              five batches, five shapes, 1 and 2 threads
    python bench/ternary.py --quick --batches 1,16       a short look
    python bench/ternary.py --kernels                    tritium's own kernels side by side, one for each instruction set
    python bench/ternary.py --groups 128,64 --libs tritium    a scale for each group of columns beside one for all; and for each
                                                         group of activations too ("both")
    python bench/ternary.py --peer peer.py               one more library, see below; bench/ggml_peer.py: bitnet.cpp, llama.cpp
    python bench/ternary.py --json ternary.json          every raw value too

Method. One child process per thread count, confined to that many CPUs before anything is imported. Weights are
numpy.random.default_rng(0).integers(-1, 2, (n, k), int8) times 1/32, activations are f32, and every call quantises its own
activations where the product needs integers. Weights are cold: each library has so many copies of them that together
they exceed the last-level cache, or 512 MB where that is less (at most 1024 copies), and every call takes the next one. A
virtual machine may report the cache of its whole host: then the weights are colder than they need be, no more. Every
answer is checked before it is timed: tritium's bit for bit against the integer formula, and 16 tokens of all against
float64 within 0.1 % (float products) or 4 % (int8 activations). A sample is a loop of calls lasting at least 2 ms;
libraries take turns in rounds, a random order and then its reverse (--cpu-time: CPU time of the calling thread, which other
processes lengthen only by what they take of caches and memory); with several threads each first waits until the
spinning threads of the one before are asleep. A library that would take more than some seconds for one call (going by 16
tokens) is left out of that cell, and a note says so.

Shown is the median with its 95 % bootstrap interval. GOP/s counts 2·batch·n·k, GB/s the bytes of the weights. Shares are
of `tritium ceilings`: of the int8 instruction that the kernel uses, and of reading DRAM. A ratio is the peer's median time
over tritium's, resampled by whole rounds: above 1, tritium is faster.

A peer module has candidates(n, k, batch, threads) -> {name: callable(x) -> y} on NumPy arrays of f32, uses the weights
above, and rotates over its own copies; quiet(), if it has one, is called before another library's turn.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter_ns, sleep, thread_time_ns
from typing import Any

from results import Column, Entry, add_option, figure, ratio, value, write
from ternary_products import (
    BASE,
    LIBRARIES,
    SCALE,
    Array,
    Call,
    Maker,
    Matrix,
    Product,
    head_products,
    peer_products,
    use_groups,
    use_kernels,
)
from ternary_report import report
from timing import REST_S, SETTLE_NS, THREAD_VARIABLES, cpus, in_turns, machine, timed

BATCHES = (1, 4, 16, 128, 512)
SHAPES = ((2560, 2560), (6912, 2560), (2560, 6912), (4096, 4096), (4096, 14336))
HEAD = (128256, 2560)  # vocabulary × hidden size of BitNet b1.58 2B-4T
COLD_BYTES = 512 << 20
CHECKED = 16  # tokens whose answers are compared with float64
SAMPLE_NS = 2_000_000


# ---- timing


@dataclass
class Field:
    """The calls of one cell of the table, taking turns."""

    calls: dict[str, Call]
    quiet: dict[str, Callable[[], None] | None]
    threads: int
    clock: Callable[[], int] = perf_counter_ns
    last: str = ""

    def settle(self, name: str) -> None:
        """Let the threads of whoever ran before go to sleep, then bring this one to speed."""
        if self.last and (quiet := self.quiet.get(self.last)):
            quiet()
        if self.threads > 1:
            sleep(REST_S)
        self.last = name
        end = perf_counter_ns() + SETTLE_NS
        self.calls[name]()
        while perf_counter_ns() < end:
            self.calls[name]()

    def loops_for(self, name: str) -> tuple[int, int]:
        """How many calls make a sample, and how many ns that sample takes."""
        loops = 1
        while True:
            self.settle(name)
            elapsed = timed(self.calls[name], loops, self.clock)
            if elapsed >= SAMPLE_NS:
                return loops, elapsed
            loops = max(loops + 1, math.ceil(loops * 1.2 * SAMPLE_NS / max(elapsed, 1)))

    def run(self, budget_s: float, least: int, most: int) -> dict[str, list[float]]:
        """ns per call of every one, a value a round; orders are random, balanced by their reverses."""
        gc.collect()
        plan = {name: self.loops_for(name) for name in self.calls}
        rest_ns = int(REST_S * 1e9) if self.threads > 1 else 0
        round_ns = sum(elapsed + rest_ns + max(SETTLE_NS, elapsed // loops) for loops, elapsed in plan.values())
        pairs = min(max(int(budget_s * 1e9 / round_ns / 2), least // 2), most // 2)
        samples: dict[str, list[float]] = {name: [] for name in self.calls}
        for name in in_turns(self.calls, pairs):
            self.settle(name)
            samples[name].append(timed(self.calls[name], plan[name][0], self.clock) / plan[name][0])
        return samples


def answers(m: Matrix, x: Array) -> tuple[Array, Array]:
    """What float64 says of the first tokens, and the bits of the integer formula for all: its sums are integers below
    2^24, so that an f32 product has them exactly.
    """
    import numpy as np

    amax = np.maximum(np.abs(x).max(axis=-1, keepdims=True), np.float32(1e-5))
    q = np.rint(x * (np.float32(127) / amax))
    sums = q @ m.t.astype(np.float32).T
    exact = sums * (amax / np.float32(127) * np.float32(SCALE))
    return (x[:CHECKED].astype(np.float64) @ m.t.T) * SCALE, exact


def wrong(product: Product, y: Any, want: Array, exact: Array) -> str:
    """Why an answer is refused; empty when it is right."""
    import numpy as np

    got = np.asarray(y)
    if got.shape != exact.shape:
        return f"gives shape {got.shape}, not {exact.shape}"
    if product.exact and not np.array_equal(got, exact):
        return f"differs from the integer formula in {np.count_nonzero(got != exact)} of {exact.size} values"
    off = float(np.linalg.norm(got[:CHECKED] - want) / np.linalg.norm(want))
    return "" if off <= product.tolerance else f"is {off:.2%} off"


@dataclass
class Run:
    """One thread count: what is measured, and what came out."""

    threads: int
    quick: bool
    makers: dict[str, Maker]
    peers: Sequence[str]
    cold: int
    clock: Callable[[], int] = perf_counter_ns
    notes: list[str] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)

    def products(self, m: Matrix) -> dict[str, Product]:
        found: dict[str, Product] = {}
        for library, maker in self.makers.items():
            try:
                found |= maker(m, self.threads)
            except ImportError as error:
                if library == BASE:
                    raise SystemExit(f"tritium, the base of the comparison, does not import: {error}") from error
                self.notes.append(f"{library} is not installed ({error})")
        return found

    def shape(self, n: int, k: int, batches: Sequence[int]) -> None:
        """All batches of one shape."""
        import numpy as np

        m = Matrix(n, k, self.cold)
        mine = self.products(m)
        for batch in batches:
            theirs = {}
            for path in self.peers:
                theirs |= peer_products(path, m, batch, self.threads)
            x = np.random.default_rng(batch).standard_normal((batch, k)).astype(np.float32)
            self.cell(m, x, mine | theirs)

    def cell(self, m: Matrix, x: Array, products: dict[str, Product]) -> None:
        batch, (want, exact), calls = len(x), answers(m, x), {}
        where = f"batch {batch}, {m.n}×{m.k}"
        for name, product in products.items():
            try:
                if (seconds := expected_s(product, x)) > (3 if self.quick else 8):
                    self.notes.append(f"{name} would take some {seconds:.0f} s for one call of {where}: left out")
                    continue
                call = product.call(x)
                if why := wrong(product, call(), want, exact):
                    raise ValueError(why)
                calls[name] = call
            except Exception as error:  # a peer that does not run here is a note, not the end of the run
                if product.exact:
                    raise SystemExit(f"{name}, {where}: {error}") from error
                self.notes.append(f"{name} did not run {where}: {str(error).splitlines()[0]}")
        quiet = {name: products[name].quiet for name in calls}
        samples = Field(calls, quiet, self.threads, self.clock).run(*((0.6, 4, 12) if self.quick else (4.0, 8, 40)))
        self.cells.append(record(m.n, m.k, batch, samples, products))


def expected_s(product: Product, x: Array) -> float:
    """How long a call on many tokens may take, going by one on a few; 0 where it cannot be long or be told."""
    if len(x) <= 2 * CHECKED or not product.nbytes:
        return 0.0
    call = product.call(x[:CHECKED])
    call()
    return timed(call, 1) / 1e9 * len(x) / CHECKED


def record(n: int, k: int, batch: int, samples: dict[str, list[float]], products: dict[str, Product]) -> dict[str, Any]:
    kernels = {name: of(batch) for name in samples if (of := products[name].kernel)}
    nbytes = {name: products[name].nbytes for name in samples}
    return {"n": n, "k": k, "batch": batch, "ns": samples, "nbytes": nbytes, "kernels": kernels}


def overhead(quick: bool) -> dict[str, list[float]]:
    """ns of a BitLinear of 256×256 as a user calls it, and of its bare kernel on memory that is there already."""
    import numpy as np

    import tritium as tt
    from tritium.op import Spec

    rng = np.random.default_rng(0)
    layer = tt.nn.BitLinear.from_ternary(rng.integers(-1, 2, (256, 256), dtype=np.int8), scale=SCALE)
    x = tt.asarray(rng.standard_normal((1, 256)).astype(np.float32))
    w, scale, out = layer.weight.data, layer.weight.scale, layer(x)
    specs = (Spec(x.shape, x.dtype), w.spec, scale.spec, None)
    row = tt.ops.quantized_matmul
    kernel = layer.device.backend.choose(row, specs, {"group": 0}, (x.layout, w.layout, scale.layout, None))
    calls = {"layer(x)": lambda: layer(x), "kernel": lambda: kernel.fn(x, w, scale, None, group=0, out=out)}
    return Field(calls, {}, 1).run(0.5 if quick else 2.0, 10, 100)


def head(quick: bool, threads: int, cold: int, notes: list[str]) -> dict[str, Any]:
    """An output head with a scale for each int8 row, one token, beside torch's float and int8 ones."""
    import numpy as np

    n, k = (HEAD[0] // 4, HEAD[1]) if quick else HEAD
    rng = np.random.default_rng(1)
    w, x = rng.standard_normal((n, k), dtype=np.float32), rng.standard_normal((1, k), dtype=np.float32)
    products = head_products(w, cold, threads, notes)
    want = x.astype(np.float64) @ w.T
    calls = {name: product.call(x) for name, product in products.items()}
    for name, product in products.items():
        if why := wrong(product, calls[name](), want, want):
            raise SystemExit(f"{name}, int8 head: {why}")
    return record(n, k, 1, Field(calls, {}, threads).run(0.6 if quick else 4.0, 6, 40), products)


# ---- processes


def child(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    """All cells at one thread count; the process has been confined to as many CPUs."""
    gc.disable()
    makers: dict[str, Maker] = {BASE: use_kernels} if args.kernels else {name: LIBRARIES[name] for name in args.libs}
    for group in args.groups:
        makers[f"g{group}"] = partial(use_groups, group=group)
        makers[f"g{group} both"] = partial(use_groups, group=group, activations="group")
    clock = thread_time_ns if args.cpu_time else perf_counter_ns
    run = Run(threads, args.quick, makers, args.peer, args.cold, clock)
    for n, k in args.shapes:
        run.shape(n, k, args.batches)
        gc.collect()
    extras = not args.kernels and not args.no_extras
    of_head = head(args.quick, threads, args.cold, run.notes) if extras else None
    versions = {"python": platform.python_version()}
    for name in ("tritium", "numpy", "torch", "mlx"):
        if name in sys.modules:
            versions[name] = getattr(sys.modules[name], "__version__", None) or importlib.metadata.version(name)
    spent = overhead(args.quick) if extras and threads == 1 else {}
    return {
        "threads": threads, "versions": versions, "notes": run.notes, "cells": run.cells, "head": of_head, "overhead_ns": spent
    }  # fmt: skip


def run_child(threads: int, cold: int) -> dict[str, Any]:
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "child.json")
        command = [
            sys.executable,
            "-W",
            "ignore",
            *sys.argv,
            "--threads",
            str(threads),
            "--cold",
            str(cold),
            "--child",
            str(out),
        ]
        if subprocess.run(command, env=environment, check=False).returncode:
            raise SystemExit(f"the run with {threads} thread(s) failed; see above")
        return dict(json.loads(out.read_text()))


def write_results(path: Path, results: list[dict[str, Any]]) -> None:
    """Write rates and ratios of all cells as a results file.

    mlx is left out where it computes on the CPU: its 2-bit product is made for Apple's GPUs.
    """
    unlike = () if platform.system() == "Darwin" else ("mlx",)
    rows, peers = [], dict[str, None]()
    for result in results:
        for cell in result["cells"]:
            work, ours = 2 * cell["batch"] * cell["n"] * cell["k"], cell["ns"][BASE]
            figures = {BASE: figure([work / ns for ns in ours])}
            for name, samples in cell["ns"].items():
                if name != BASE and not name.startswith(unlike):
                    peers[name] = None
                    figures[f"× {name}"] = ratio(samples, ours)
            labels = (str(cell["batch"]), str(result["threads"]), f"{cell['n']}×{cell['k']}")
            rows.append(Entry(labels, figures))
    columns = [Column(BASE, "GOP/s", "2·batch·n·k operations over the time of a call, activations quantised in it")]
    columns += [
        Column(f"× {name}", "×", f"time of {name} / time of {BASE}: above 1, {BASE} is faster", "ratio")
        for name in peers
    ]
    notes = [f"{note}." for result in results for note in result["notes"] if not note.startswith(unlike)]
    title, threads = "Ternary products beside other libraries", max(result["threads"] for result in results)
    labels = ("batch", "threads", "out × in")
    write(path, title, labels, columns, rows, threads=threads, versions=results[0]["versions"], notes=notes)


def write_kernels(path: Path, results: list[dict[str, Any]], ceilings: Any) -> None:
    """Write what the kernel of each instruction set reaches, and of the peak of its instruction, as a results file."""
    rows = []
    for result in results:
        threads = result["threads"]
        for cell in result["cells"]:
            work, ours = 2 * cell["batch"] * cell["n"] * cell["k"], cell["ns"][BASE]
            for name, samples in cell["ns"].items():
                isa = cell["kernels"][name]
                if name == BASE or isa == "portable":
                    continue
                peak = ceilings.of(isa, threads).best / 1e9
                rates = [work / ns for ns in samples]
                figures = {
                    "kernel": figure(rates), "peak": value(peak), "of its peak": figure(rates, scale=100 / peak),
                    f"× {BASE}": ratio(samples, ours),
                }  # fmt: skip
                rows.append(Entry((isa, str(cell["batch"]), str(threads), f"{cell['n']}×{cell['k']}"), figures))
    columns = [
        Column("kernel", "GOP/s", "2·batch·n·k operations over the time of a call, activations quantised in it"),
        Column("peak", "GOP/s", "the instruction that the kernel multiplies with, from registers, sums included"),
        Column("of its peak", "%", "kernel / peak"),
        Column(f"× {BASE}", "×", f"time of the kernel / time of {BASE}, which takes one of them", "ratio"),
    ]
    labels, threads = ("instruction set", "batch", "threads", "out × in"), max(result["threads"] for result in results)
    title = "Ternary kernels of one machine's instruction sets"
    write(path, title, labels, columns, rows, threads=threads, versions=results[0]["versions"])


def cold_bytes() -> int:
    """The last-level cache, or 512 MB where that is less or unknown."""
    from tritium.machine.facts import caches

    largest = max((cache.nbytes for cache in caches()), default=COLD_BYTES)
    return min(largest, COLD_BYTES)


def libraries(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in LIBRARIES]:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; there are {', '.join(LIBRARIES)}")
    return names if BASE in names else [BASE, *names]


def sizes(text: str) -> list[tuple[int, int]]:
    return [(int(n), int(k)) for n, _, k in (part.partition("x") for part in text.split(","))]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    usable = cpus()
    few = [1] if len(usable) == 1 else [1, 2]
    parser.add_argument("--threads", type=numbers, default=few, help="thread counts, one run each (1,2)")
    parser.add_argument("--batches", type=numbers, default=list(BATCHES), help="(1,4,16,128,512)")
    parser.add_argument("--shapes", type=sizes, default=list(SHAPES), help="out x in: 2560x2560,6912x2560,…")
    parser.add_argument("--libs", type=libraries, default=list(LIBRARIES), help=",".join(LIBRARIES))
    parser.add_argument("--kernels", action="store_true", help="tritium's own kernels instead of other libraries")
    parser.add_argument("--groups", type=numbers, default=[], help="tritium with groups of so many columns too: 128,64")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="FILE", help="one more library, given by its module"
    )
    parser.add_argument("--quick", action="store_true", help="fewer samples, a smaller head")
    parser.add_argument("--no-extras", action="store_true", help="neither the output head nor the cost of a call")
    parser.add_argument(
        "--cpu-time", action="store_true", help="of one thread, without extras: for a machine with other load"
    )
    parser.add_argument("--refresh", action="store_true", help="measure the ceilings again")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every raw value (ns a call)")
    add_option(parser)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cold", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cpu_time and not (args.threads == [1] and (args.no_extras or args.kernels)):
        parser.error("--cpu-time is the time of one thread: it needs --threads 1 and --no-extras")
    if usable and max(args.threads) > len(usable):
        parser.error(f"--threads {max(args.threads)}: this process may use {len(usable)} CPU(s)")
    return args


def main() -> None:
    args = arguments()
    if args.child:
        (threads,) = args.threads
        if usable := cpus():
            os.sched_setaffinity(0, usable[:threads])
        args.child.write_text(json.dumps(child(args, threads)))
        return
    import tritium as tt
    from tritium.buffer import native, native_absence

    if args.kernels and native is None:
        raise SystemExit(f"--kernels compares native kernels, and there are none: {native_absence}")
    load, cold = os.getloadavg()[0], cold_bytes()
    ceilings = tt.ceilings(refresh=args.refresh, quick=args.quick, threads=args.threads)
    results = [run_child(threads, cold) for threads in args.threads]
    print(report(results, ceilings, cold, load, args.markdown))
    if args.results and args.kernels:
        write_kernels(args.results, results, ceilings)
    elif args.results:
        write_results(args.results, results)
    if args.json:
        from tritium.machine.ceilings import as_dict

        document = {"schema": 1, "machine": machine(), "load": load, "cold_bytes": cold, "ceilings": as_dict(ceilings)}
        unfinished = args.json.with_name(args.json.name + ".tmp")
        unfinished.write_text(json.dumps(document | {"runs": results}, indent=1, allow_nan=False))
        unfinished.replace(args.json)


if __name__ == "__main__":
    main()

"""Small dense ops side by side in one run: tritium, numpy, torch, jax and mlx, at 1 and 2 threads.

Knows nothing of the inside of any library: each is called as its users call it eagerly, allocating its result.

    python bench/dense.py                          all rows, 1 and 2 threads
    python bench/dense.py --quick --only add,relu  a short look
    python bench/dense.py --json dense.json        every raw value too
    python bench/dense.py --results dense.json     figures with intervals, machine and command: see bench/results.py
    python bench/dense.py --all                    every op of the table at 8 and 1,000,000 elements: see bench/dense_ops.py
    python bench/dense.py --all --only sort,topk   some of them
    python bench/dense.py --loops                  loops of 100 to 1,000,000 turns over data: see bench/dense_loops.py

Method. One child process per thread count, confined to that many CPUs before anything is imported, so that the same
limit holds for libraries that have no switch of their own. Inputs are made once, outside the timing; every output is
compared with a float64 reference before it is timed. A sample is a loop of calls lasting at least 1 ms (one call, if
that is longer), after 2 ms of the same call untimed, so that no library pays for the spinning threads or the cold
caches another has left. The libraries take turns in rounds: a random order, then its reverse. Asynchronous and lazy
libraries are synchronised in every call. The garbage collector is off. Shown is the median of the samples with half
the width of its 95 % bootstrap interval; a ratio is the peer's median over tritium's, resampled by whole rounds.
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
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter_ns, sleep, thread_time_ns
from typing import Any

from results import Entry, add_option, compared, compared_columns, write
from timing import REST_S, SETTLE_NS, THREAD_VARIABLES, Call, cpus, in_turns, machine, timed

Function = Callable[..., Any]
SAMPLE_NS = 1_000_000
EPS = 1e-5

# The inputs, as arrays of one library.
Data = namedtuple("Data", "a b x y weight bias s t")
SHAPES = Data((1_000_000,), (1_000_000,), (1000, 1000), (1000, 1000), (1000,), (1000,), (8,), (8,))


@dataclass(frozen=True)
class Row:
    """One line of the table: how a library is called, and what float64 NumPy says the answer is."""

    title: str
    call: Callable[[Library, Data], Call | None]
    answer: Callable[[Any, Data], Any] | None
    tolerance: float = 1e-5  # of the answer's largest magnitude
    gflop: float = 0.0  # arithmetic of a call, where that is the limit
    gbytes: float = 0.0  # bytes that must be read and written, where those are


@dataclass(frozen=True)
class Library:
    """What one library calls the things in the table; None where it has no such thing."""

    array: Function
    add: Function
    relu: Function
    sum: Function
    softmax: Function
    layer_norm: Function
    matmul: Function
    gelu: Function | None = None
    empty: Function | None = None
    compile: Function = lambda function: function
    finish: Function | None = None  # waits for a result, or makes a lazy one happen


def np_softmax(np: Any, x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def np_layer_norm(np: Any, x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + EPS) * weight + bias


def chain(library: Library, a: Any, b: Any) -> Any:
    return library.relu(a * b + a)


def relu_chain(np: Any, d: Data) -> Any:
    return np.maximum(d.a * d.b + d.a, 0)


ROWS = {
    "add": Row("add 1M", lambda lib, d: partial(lib.add, d.a, d.b), lambda np, d: d.a + d.b, gbytes=0.012),
    "relu": Row("relu 1M", lambda lib, d: partial(lib.relu, d.a), lambda np, d: np.maximum(d.a, 0), gbytes=0.008),
    "sum": Row("sum 1M", lambda lib, d: partial(lib.sum, d.a), lambda np, d: d.a.sum(), tolerance=1e-4, gbytes=0.004),
    "softmax": Row(
        "softmax 1000²", lambda lib, d: partial(lib.softmax, d.x), lambda np, d: np_softmax(np, d.x), gbytes=0.008
    ),
    "layernorm": Row(
        "layernorm 1000²",
        lambda lib, d: partial(lib.layer_norm, d.x, d.weight, d.bias),
        lambda np, d: np_layer_norm(np, d.x, d.weight, d.bias),
        gbytes=0.008,
    ),
    "gelu": Row(
        "GELU 1M (exact)",
        lambda lib, d: lib.gelu and partial(lib.gelu, d.a),
        lambda np, d: 0.5 * d.a * (1 + np.vectorize(math.erf)(d.a / math.sqrt(2))),
    ),
    "chain": Row("relu(a*b+a) 1M", lambda lib, d: partial(chain, lib, d.a, d.b), relu_chain),
    "compiled": Row(
        "the same, compiled", lambda lib, d: partial(lib.compile(partial(chain, lib)), d.a, d.b), relu_chain
    ),
    "matmul": Row("matmul 1000³", lambda lib, d: partial(lib.matmul, d.x, d.y), lambda np, d: d.x @ d.y, gflop=2.0),
    "call": Row("add, 8 elements", lambda lib, d: partial(lib.add, d.s, d.t), lambda np, d: d.s + d.t),
    "empty": Row("empty, 8 elements", lambda lib, d: lib.empty and partial(lib.empty, (8,)), None),
    "empty4m": Row("empty, 4 MB", lambda lib, d: lib.empty and partial(lib.empty, (1024, 1024)), None),
}


def use_tritium(threads: int) -> Library:
    import tritium as tt

    tt.set_num_threads(threads)
    return Library(
        array=tt.asarray, add=tt.add, relu=tt.relu, sum=tt.sum, softmax=partial(tt.softmax, axis=-1),
        layer_norm=partial(tt.layer_norm, eps=EPS), matmul=tt.matmul, gelu=tt.gelu, empty=tt.empty,
        compile=tt.compile,
    )  # fmt: skip


def use_numpy(threads: int) -> Library:
    import numpy as np

    try:
        from scipy.special import erf  # numpy has none of its own
    except ImportError:
        erf = None
    half, root = np.float32(0.5), np.float32(math.sqrt(0.5))
    return Library(
        array=lambda x: x, add=np.add, relu=lambda x: np.maximum(x, 0), sum=np.sum, softmax=partial(np_softmax, np),
        layer_norm=partial(np_layer_norm, np), matmul=np.matmul, empty=partial(np.empty, dtype=np.float32),
        gelu=erf and (lambda x: half * x * (1 + erf(x * root))),
    )  # fmt: skip


def use_torch(threads: int) -> Library:
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    return Library(
        array=torch.from_numpy, add=torch.add, relu=torch.relu, sum=torch.sum, softmax=partial(torch.softmax, dim=-1),
        layer_norm=lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias, EPS), matmul=torch.matmul,
        gelu=F.gelu, empty=torch.empty, compile=torch.compile,
    )  # fmt: skip


def use_jax(threads: int) -> Library:
    import jax
    from jax import numpy as jnp

    return Library(  # it has no layer_norm of its own, and its users jit theirs
        array=jnp.asarray, add=jnp.add, relu=jax.nn.relu, sum=jnp.sum, softmax=jax.nn.softmax,
        layer_norm=jax.jit(partial(np_layer_norm, jnp)), matmul=jnp.matmul,
        gelu=partial(jax.nn.gelu, approximate=False), compile=jax.jit, finish=jax.block_until_ready,
    )  # fmt: skip


def use_mlx(threads: int) -> Library:
    import mlx.core as mx
    from mlx import nn

    mx.set_default_device(mx.cpu)
    return Library(
        array=mx.array, add=mx.add, relu=nn.relu, sum=mx.sum, softmax=partial(mx.softmax, axis=-1),
        layer_norm=partial(mx.fast.layer_norm, eps=EPS), matmul=mx.matmul, gelu=nn.gelu, compile=mx.compile,
        finish=lambda out: mx.eval(out) or out,
    )  # fmt: skip


LIBRARIES = {"tritium": use_tritium, "numpy": use_numpy, "torch": use_torch, "jax": use_jax, "mlx": use_mlx}


def settle(call: Call) -> None:
    """Let the threads of whoever ran before go to sleep, then bring this one to speed."""
    sleep(REST_S)
    end = perf_counter_ns() + SETTLE_NS
    call()
    while perf_counter_ns() < end:
        call()


def loops_for(call: Call, clock: Callable[[], int]) -> tuple[int, int]:
    """How many calls make a sample, and how many ns that sample takes."""
    loops = 1
    while True:
        settle(call)
        elapsed = min(timed(call, loops, clock) for _ in range(2))
        if elapsed >= SAMPLE_NS:
            return loops, elapsed
        loops = max(loops + 1, math.ceil(loops * 1.2 * SAMPLE_NS / max(elapsed, 1)))


def interleave(
    calls: dict[str, Call], budget_s: float, least: int, most: int, clock: Callable[[], int] = perf_counter_ns
) -> dict[str, list[float]]:
    """ns per call of every library, one value a round; orders are random, balanced by their reverses."""
    gc.collect()
    plan = {name: loops_for(call, clock) for name, call in calls.items()}
    rest_ns = int(REST_S * 1e9)
    round_ns = sum(elapsed + rest_ns + max(SETTLE_NS, elapsed // loops) for loops, elapsed in plan.values())
    pairs = min(max(int(budget_s * 1e9 / round_ns / 2), least // 2), most // 2)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name in in_turns(calls, pairs):
        settle(calls[name])
        samples[name].append(timed(calls[name], plan[name][0], clock) / plan[name][0])
    return samples


def check(name: str, row: Row, out: Any, exact: Data) -> None:
    import numpy as np

    if row.answer:
        want, got = np.asarray(row.answer(np, exact)), np.asarray(out).astype(np.float64)
        worst = np.abs(got - want).max() if got.shape == want.shape else math.inf
        if not worst <= row.tolerance * np.abs(want).max():
            raise SystemExit(f"{name} gives a wrong {row.title}: off by {worst:.3g} of {np.abs(want).max():.3g}")


def measure(names: Sequence[str], rows: Sequence[str], threads: int, quick: bool) -> dict[str, Any]:
    """Every row at one thread count; the process has been confined to as many CPUs."""
    import numpy as np

    gc.disable()
    rng = np.random.default_rng(0)
    data = Data(*(rng.standard_normal(shape, dtype=np.float32) for shape in SHAPES))
    exact = Data(*(value.astype(np.float64) for value in data))
    libraries, notes, versions = {}, [], {"python": platform.python_version()}
    for name in names:
        try:
            libraries[name] = LIBRARIES[name](threads)
            versions[name] = getattr(sys.modules[name], "__version__", None) or importlib.metadata.version(name)
        except ImportError as error:
            if name == names[0]:
                raise SystemExit(f"{name}, the base of the comparison, does not import: {error}") from error
            notes.append(f"{name} is not installed (pip install '.[bench]' brings the peers)")
    inputs = {name: Data(*map(library.array, data)) for name, library in libraries.items()}
    results = {}
    for row in rows:
        if row == "compiled" and quick:
            notes.append("compiled peers are left out of a quick run")
            continue
        calls = {}
        for name, library in libraries.items():
            if call := ROWS[row].call(library, inputs[name]):
                if library.finish:
                    call = partial(lambda finish, call: finish(call()), library.finish, call)
                try:
                    check(name, ROWS[row], call(), exact)
                    calls[name] = call
                except Exception as error:  # a peer's compiler that does not start is a note, not the end of the run
                    if name == names[0]:
                        raise
                    notes.append(f"{name} did not run {row}: {str(error).splitlines()[0]}")
        if names[0] in calls:
            results[row] = interleave(calls, *((0.5, 6, 20) if quick else (6.0, 10, 100)))
    pool_ns = pool() if "tritium" in libraries else {}
    return {"threads": threads, "versions": versions, "notes": notes, "ns": results, "pool_ns": pool_ns}


def pool() -> dict[str, list[float]]:
    """ns for one allocation and its release inside tritium's native pool."""
    try:
        from tritium._native import pool_bench
    except ImportError:
        return {}
    return {title: [pool_bench(n, 100_000) for _ in range(9)] for title, n in (("32 B", 32), ("4 MB", 4 << 20))}


def run_child(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
    environment |= {"JAX_PLATFORMS": "cpu", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "child.json")
        command = [sys.executable, __file__, "--libs", ",".join(args.libs), "--only", ",".join(args.only)]
        command += ["--threads", str(threads), "--child", str(out)] + ["--quick"] * args.quick
        if subprocess.run(command, env=environment, check=False).returncode:
            raise SystemExit(f"the run with {threads} thread(s) failed; see above")
        return dict(json.loads(out.read_text()))


def ceilings(threads: int) -> Callable[[Row, float], str]:
    """Says how much of what this machine can do a row reached: of f32 arithmetic, or of reading the last cache."""
    import tritium as tt

    found = tt.ceilings(threads=threads)

    def share(row: Row, us: float) -> str:
        if row.gflop:
            part = found.share(gflops=row.gflop / us * 1e6, threads=threads)
        elif row.gbytes:
            part = found.share(gbs=row.gbytes / us * 1e6, threads=threads, name="L3 read")
        else:
            return ""
        return "" if part is None else f"{part:.0%} of {'f32' if row.gflop else 'L3 read'}"

    return share


def table(result: dict[str, Any], base: str) -> str:
    """The result of one thread count as a Markdown table."""
    import numpy as np

    names = [base] + [name for name in LIBRARIES if name in result["versions"] and name != base]
    lines = [["µs", *names, "best peer", f"{base} of ceiling"]]
    limits = ceilings(result["threads"])
    for row, samples in result["ns"].items():
        rounds = len(samples[base])
        chosen = np.random.default_rng(0).integers(rounds, size=(2000, rounds))  # the same for all: ratios stay paired
        boot = {name: np.median(np.array(values)[chosen], axis=1) for name, values in samples.items()}
        us = {name: float(np.median(values)) / 1000 for name, values in samples.items()}
        cells = dict.fromkeys(names, "")
        for name in samples:
            low, high = np.percentile(boot[name], [2.5, 97.5]) / 1000
            cells[name] = f"{us[name]:.0f}" if us[name] >= 100 else f"{us[name]:.3g}"
            cells[name] += f" ±{50 * (high - low) / us[name]:.0f}%"
            cells[name] += "" if name == base else f" ({us[name] / us[base]:.2f}x)"
        told, peers = "", [name for name in samples if name != base]
        if peers:
            best = min(peers, key=us.__getitem__)
            low, high = np.percentile(boot[best] / boot[base], [2.5, 97.5])
            told = f"{best} {us[best] / us[base]:.2f}x ({low:.2f} … {high:.2f})"
        lines.append([ROWS[row].title, *cells.values(), told, limits(ROWS[row], us[base])])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def report(results: list[dict[str, Any]], base: str, load: float) -> None:
    print(f"{machine()}, load before the run {load:.1f}")
    print(", ".join(f"{name} {version}" for name, version in results[0]["versions"].items()))
    print(f"Median µs of a call, ± half of its 95 % interval (peer / {base}: above 1, {base} is faster).")
    for result in results:
        print(f"\n{result['threads']} thread{'s' * (result['threads'] > 1)}\n\n{table(result, base)}")
        told = [f"{n} {sorted(v)[4]:.0f} ns ({min(v):.0f} … {max(v):.0f})" for n, v in result["pool_ns"].items()]
        if told:
            print(f"\nPool, allocate and release in native code: {', '.join(told)}")
    notes = [note for result in results for note in result["notes"]]
    if not cpus():
        notes.append("a process cannot be confined to CPUs here, so jax and mlx choose their own thread counts")
    if load > 0.5:
        notes.append(f"other work was running (load {load:.1f}), which costs libraries with spinning threads most")
    print("".join(f"\nNote: {note}." for note in dict.fromkeys(notes)))


def write_results(path: Path, results: list[dict[str, Any]], base: str) -> None:
    """Write the figures of all thread counts as a results file."""
    rows = [
        Entry((ROWS[row].title, str(result["threads"])), compared(samples, base, 1e-3))
        for result in results
        for row, samples in result["ns"].items()
    ]
    names = [base] + [name for name in LIBRARIES if name in results[0]["versions"] and name != base]
    columns = compared_columns(names, base, "µs", "median time of a call")
    notes = [f"{note}." for result in results for note in result["notes"]]
    title = "Small dense operations beside other libraries"
    threads = max(result["threads"] for result in results)
    write(
        path, title, ("case", "threads"), columns, rows, threads=threads, versions=results[0]["versions"], notes=notes
    )


def choice(known: Sequence[str], text: str) -> list[str]:
    unknown = [name for name in text.split(",") if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    return text.split(",")


def measure_all(args: argparse.Namespace, names: Sequence[str], threads: int) -> None:
    """Time every op of the table, in this process."""
    if usable := cpus():
        os.sched_setaffinity(0, usable[:threads])
    import dense_ops
    from threadpoolctl import threadpool_limits

    if "torch" in args.libs:
        try:
            import torch
        except ImportError:
            args.libs = [name for name in args.libs if name != "torch"]
        else:
            torch.set_num_threads(threads)
    libraries = [name for name in args.libs if name in ("tritium", "numpy", "torch")]
    gc.disable()
    clock = thread_time_ns if args.cpu_time else perf_counter_ns
    with threadpool_limits(threads):  # NumPy's BLAS, which began before the CPUs were chosen
        result = dense_ops.measure(names, libraries, partial(interleave, clock=clock), args.quick)
    print(f"{machine()}, {threads} thread{'s' * (threads > 1)}{', CPU time' * args.cpu_time}")
    print(dense_ops.report(result["ns"], libraries, result["notes"]))
    if args.results:
        dense_ops.write_results(args.results, result, libraries, threads)


def measure_loops(args: argparse.Namespace, threads: int) -> None:
    """Time loops over data, in this process."""
    import dense_loops

    import tritium as tt

    tt.set_num_threads(threads)
    gc.disable()
    decades = dense_loops.DECADES[:3] if args.quick else dense_loops.DECADES
    results = dense_loops.measure([name for name in args.libs if name in ("tritium", "numpy")], decades)
    print(f"{machine()}, {threads} thread{'s' * (threads > 1)}; ns of a turn by decade")
    print(dense_loops.report(results))
    if args.results:
        dense_loops.write_results(args.results, results, threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    rows, libraries = list(ROWS), list(LIBRARIES)
    parser.add_argument("--threads", default="1,2", help="thread counts, one run each (1,2)")
    parser.add_argument("--only", default="", help=f"rows: {','.join(rows)}; with --all the names of ops")
    parser.add_argument("--all", action="store_true", help="every op of the table beside numpy and torch")
    parser.add_argument("--loops", action="store_true", help="loops over data, by the hundred and by the million")
    parser.add_argument(
        "--cpu-time", action="store_true", help="with --all and one thread: for a machine with other load"
    )
    parser.add_argument("--libs", type=partial(choice, libraries), default=libraries, help="the first is the base")
    parser.add_argument("--quick", action="store_true", help="fewer samples, no compiled peers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every raw value (ns a call)")
    add_option(parser)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    counts, usable = [int(count) for count in args.threads.split(",")], cpus()
    if args.cpu_time and not (args.all and counts[0] == 1):
        parser.error("--cpu-time is the time of one thread: it needs --all and --threads 1")
    if args.all:
        measure_all(args, args.only.split(",") if args.only else (), counts[0])
        return
    if args.loops:
        measure_loops(args, counts[0])
        return
    try:
        args.only = choice(rows, args.only) if args.only else rows
    except argparse.ArgumentTypeError as error:
        parser.error(f"--only: {error}")
    if args.child:
        if usable:
            os.sched_setaffinity(0, usable[: counts[0]])
        args.child.write_text(json.dumps(measure(args.libs, args.only, counts[0], args.quick)))
        return
    if usable and max(counts) > len(usable):
        parser.error(f"--threads {args.threads}: this process may use {len(usable)} CPU(s)")
    load = os.getloadavg()[0]
    results = [run_child(args, count) for count in counts]
    report(results, args.libs[0], load)
    if args.results:
        write_results(args.results, results, args.libs[0])
    if args.json:
        document = {"schema": 1, "machine": machine(), "load": load, "base": args.libs[0], "runs": results}
        unfinished = args.json.with_name(args.json.name + ".tmp")
        unfinished.write_text(json.dumps(document, indent=1, allow_nan=False))
        unfinished.replace(args.json)


if __name__ == "__main__":
    main()

"""Compiled functions side by side in one run: tritium eager and compiled, numpy, torch, torch.compile, jax.jit, mx.compile.

Knows nothing of the inside of any library: each is called as its users call it, allocating its result.

    python bench/compile.py                              everything, 1 and 2 threads (some 25 minutes)
    python bench/compile.py --quick --cases chains,mlp   a short look
    python bench/compile.py --markdown                   tables for a page
    python bench/compile.py --json compile.json          every raw value too

Cases. chains: 2 to 20 element-wise rows on 1K to 16M numbers. rows: softmax of a scaled and masked matrix, rms_norm
and the rounding to int8, layer_norm and gelu. mlp: the feed-forward block of BitNet b1.58 2B with BitLinear (other
libraries: f32 weights), beside its bare kernels: in turn, as a call runs them, and each alone in a loop, where the
caches keep its weights. steps: what one step of a program costs. memory: the arena of reference models beside what is
alive together. growth: how long graphs of 100 to 20,000 nodes take to compile.

Method. One child process per thread count, confined to that many CPUs before anything is imported. Inputs are made
once, outside the timing. Every answer is compared with float64 (large ones with tritium's eager answer) before it is
timed, and tritium's compiled answer with its eager one bit by bit. Compilers run before the timing, for these shapes
alone. A sample is a loop of calls lasting at least 1 ms, after 2 ms of the same call untimed; libraries take turns in
rounds, a random order and then its reverse. A peer that needs more than a second for one call is named in a note
instead. Asynchronous and lazy libraries are waited for in every call. The garbage collector is off, except while
compile times are measured. Shown is the median; ± is half of its 95 % bootstrap interval; a ratio is the peer's
median over that of tritium compiled: above 1, tritium is faster. `steps`, `memory` and `growth` are measured with the
first thread count alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from compile_words import (
    CHAINS,
    COMPILED,
    EAGER,
    IN_TURN,
    LIBRARIES,
    TINY,
    Words,
    gated_mlp,
    load,
    masked_softmax,
    norm_gelu,
    norm_quantise,
    numpy_words,
    version,
)
from dense import choice, interleave
from results import Entry, add_option, compared, compared_columns, write
from timing import THREAD_VARIABLES, Call, cpus, machine, timed

Array = Any
Build = Callable[[Words], Callable[..., Any] | None]
LENGTHS = [2, 5, 10, 20]
SIZES = [1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24]
NODES = [100, 1000, 5000, 20_000]
COUNTS = [1, 10, 100, 1000]
MOST_EXACT = 1 << 20  # numbers whose answer is computed in float64
TORCH_STEPS = 10  # torch.compile takes minutes for a hundred steps
FLOAT, INT8 = 1e-5, 4e-2  # how far from the right answer a result may be, of its largest magnitude
# A function, its arguments (matrices, and rows of as many columns), and the shapes of the matrices.
ROWS: dict[str, tuple[Build, tuple[str, ...], list[tuple[int, int]]]] = {
    "softmax(x * scale + mask)": (masked_softmax, ("matrix", "matrix"), [(128, 1024), (4096, 512)]),
    "rms_norm, int8": (norm_quantise, ("matrix", "row"), [(1, 2560), (128, 2560), (4096, 2560)]),
    "layer_norm, gelu": (norm_gelu, ("matrix", "row", "row"), [(1, 2560), (128, 2560), (4096, 2560)]),
}


@dataclass
class Run:
    """One thread count: what is measured, and what came out."""

    threads: int
    quick: bool
    names: list[str]
    notes: list[str] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)
    libraries: dict[str, Words] = field(default_factory=dict)

    def load(self) -> None:
        """Import the libraries; late, so that what needs none of them is measured without them."""
        self.libraries = self.libraries or load(self.names, self.threads, self.notes)

    def time(self, calls: dict[str, Call]) -> dict[str, list[float]]:
        return interleave(calls, *((0.2, 2, 6) if self.quick else (1.5, 6, 40)))

    def cell(self, section: str, title: str, calls: dict[str, Call], **about: Any) -> dict[str, Any]:
        """Time the calls and keep what came out."""
        made = {"section": section, "title": title, "ns": self.time(calls), **about}
        self.cells.append(made)
        told = ", ".join(f"{name} {median(ns) / 1e3:.4g} µs" for name, ns in made["ns"].items())
        print(f"{title}: {told}", file=sys.stderr, flush=True)
        return made

    def calls(
        self, title: str, build: Build, arrays: list[Array], tolerance: float = FLOAT, skip: tuple[str, ...] = ()
    ) -> dict[str, Call]:
        """What every library makes of a function, checked and ready to be timed."""
        self.load()
        want, found = exact(build, arrays), {}
        for library, words in self.libraries.items():
            fn = build(words)
            if fn is None:
                self.notes.append(f"{library} has no {title}")
                continue
            args = [words.array(x) for x in arrays]
            for name, form in words.forms.items():
                if name in skip:
                    continue
                try:
                    call = partial(form(fn), *args)
                    if words.finish:
                        call = partial(lambda finish, call: finish(call()), words.finish, call)
                    got = listed(call())
                    want = got if want is None else want
                    if why := wrong(got, want, tolerance):
                        raise ValueError(why)
                    if library != EAGER and (spent_s := timed(call, 1) / 1e9) > (0.2 if self.quick else 1.0):
                        self.notes.append(f"{name} takes {spent_s:.1f} s for {title}: left out of the rounds")
                        continue
                    found[name] = call
                except Exception as error:  # a peer's compiler that does not start is a note, not the end of the run
                    if library == EAGER:
                        raise SystemExit(f"{name}, {title}: {error}") from error
                    self.notes.append(f"{name} did not run {title}: {(str(error).splitlines() or [repr(error)])[0]}")
        if different := bits_apart(found):
            self.notes.append(f"{title}: {different} numbers of tritium compiled are not those of tritium bit by bit")
        return found


def listed(out: Any) -> list[Array]:
    import numpy as np

    return [np.asarray(x) for x in (out if isinstance(out, (tuple, list)) else (out,))]


def exact(build: Build, arrays: list[Array]) -> list[Array] | None:
    """The answer in float64; None where that takes too long, or NumPy has not all it needs."""
    import numpy as np

    fn = build(numpy_words({})) if arrays[0].size <= MOST_EXACT else None
    return listed(fn(*(x.astype(np.float64) for x in arrays))) if fn else None


def wrong(got: list[Array], want: list[Array], tolerance: float) -> str:
    """Why an answer is refused; empty when it is right. Numbers rounded to int8 may be one step apart."""
    import numpy as np

    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            return f"gives shape {a.shape}, not {b.shape}"
        limit = 1.0 if a.dtype == np.int8 else tolerance * max(1e-30, float(np.abs(b).max(initial=0)))
        off = float(np.abs(a.astype(np.float64) - b).max(initial=0))
        if not off <= limit:
            return f"is off by {off:.3g} where {limit:.3g} is allowed"
    return ""


def bits_apart(calls: dict[str, Call]) -> int:
    """In how many numbers our two answers differ."""
    if EAGER not in calls or COMPILED not in calls:
        return 0
    pairs = zip(listed(calls[EAGER]()), listed(calls[COMPILED]()), strict=True)
    return sum(int((a != b).sum()) for a, b in pairs)


def about(calls: dict[str, Call]) -> dict[str, Any]:
    """Launches, bytes and memory of our two calls."""
    from compile_models import facts, peak_bytes

    call: Any = calls[COMPILED]
    found: dict[str, Any] = facts(call.func.program(*call.args))
    return found | {"eager_peak": peak_bytes(calls[EAGER]), "peak": peak_bytes(calls[COMPILED])}


def numbers(*shape: int, seed: int = 0) -> Array:
    import numpy as np

    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# ---- the cases


def chains(run: Run, args: argparse.Namespace) -> None:
    for kind, build in CHAINS.items():
        for length in args.lengths:
            for size in args.sizes:
                title = f"{kind} chain of {length}, {size} numbers"
                arrays = [numbers(size), numbers(size, seed=1)]
                made = run.calls(title, partial(build, length=length), arrays, tolerance=1e-4)
                run.cell("chains", title, made, kind=kind, length=length, size=size, **about(made))
                gc.collect()


def rows(run: Run, args: argparse.Namespace) -> None:
    for name, (build, kinds, shapes) in ROWS.items():
        for shape in shapes[:2] if run.quick else shapes:
            title = f"{name}, {shape[0]}×{shape[1]}"
            arrays = [numbers(*(shape if kind == "matrix" else shape[1:]), seed=i) for i, kind in enumerate(kinds)]
            made = run.calls(title, build, arrays)
            run.cell("rows", title, made, **about(made))
            if build is norm_quantise:
                ours = table_rows(made, arrays)
                run.cell("rows", f"{title}, by our rows", ours, **about(ours))
            gc.collect()


def table_rows(made: dict[str, Call], arrays: list[Array]) -> dict[str, Call]:
    """The same with tt.rms_norm and tt.quantize_activations, which a user would take, beside the peers' arithmetic."""
    import tritium as tt

    given = [tt.asarray(x) for x in arrays]

    def fn(x: Any, weight: Any) -> Any:
        return tt.quantize_activations(tt.rms_norm(x, weight))

    return made | {EAGER: partial(fn, *given), COMPILED: partial(tt.compile(fn), *given)}


def mlp(run: Run, args: argparse.Namespace) -> None:
    import numpy as np
    from compile_models import HIDDEN, SCALE, WIDTH, feed_forward, kernels, ternary

    import tritium as tt

    run.load()
    weights = [ternary(n, k, i).astype(np.float32) * np.float32(SCALE)
               for i, (n, k) in enumerate(((HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)))]  # fmt: skip
    fn = feed_forward()

    def build(words: Words) -> Callable[..., Any]:
        if EAGER in words.forms:
            return lambda x, weight: fn(x)
        gate, up, down = ((lambda x, w=words.array(w): x @ w.T) for w in weights)
        return gated_mlp(words, gate, up, down)

    for batch in (1, 128):
        title, arrays = f"MLP with BitLinear, batch {batch}", [numbers(batch, WIDTH), np.ones(HIDDEN, np.float32)]
        made = run.calls(title, build, arrays, tolerance=INT8)
        given = tt.asarray(arrays[0])
        bare = kernels(fn, given)
        alone = {f"kernel {name}": call for name, call in bare.items()}
        alone[IN_TURN] = partial(lambda calls: [call() for call in calls], list(bare.values()))
        cell = run.cell("mlp", title, made | alone, batch=batch, **about(made))
        program: Any = made[COMPILED]
        native = program.func.program(*program.args).native
        cell["own"] = [sum(native.time(*program.args)[1]) for _ in range(3 if run.quick else 30)]


def steps(run: Run, args: argparse.Namespace) -> None:
    for kind, (build, shape) in TINY.items():
        for count in COUNTS[:3] if run.quick else COUNTS:
            title = f"{kind}, {count} steps"
            skip = ("torch.compile",) if count > TORCH_STEPS else ()
            # Running sums of running sums grow beyond every number: zeros stay zeros, and nothing is cheaper for it.
            made = run.calls(title, partial(build, length=count), [numbers(*shape) * 0], skip=skip)
            launches = about(made)["launches"]
            run.cell("steps", title, made, kind=kind, count=count, launches=launches)
    run.notes.append(f"torch.compile is left out of more than {TORCH_STEPS} steps, which it compiles for minutes")


def memory(run: Run, args: argparse.Namespace) -> None:
    from compile_models import plans

    run.cells += [{"section": "memory", **plan} for plan in plans()]


def growth(run: Run, args: argparse.Namespace) -> None:
    from compile_models import compile_times

    gc.enable()
    for nodes in args.nodes:
        found = compile_times(nodes, 3 if run.quick or nodes > 2000 else 9)
        run.cells.append({"section": "growth", "title": f"{nodes} nodes", **found})
    gc.disable()


CASES = {"growth": growth, "memory": memory, "chains": chains, "rows": rows, "mlp": mlp, "steps": steps}
ONCE = ("growth", "memory", "steps")


# ---- processes


def child(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    """All cases at one thread count; the process has been confined to as many CPUs."""
    gc.disable()
    import tritium as tt

    tt.set_num_threads(threads)
    run, load_before = Run(threads, args.quick, args.libs), os.getloadavg()[0]
    for name, case in CASES.items():
        if name in args.cases:
            case(run, args)
    versions = {"python": platform.python_version()} | {n: version(n) for n in LIBRARIES if n in sys.modules}
    loads = [load_before, os.getloadavg()[0]]
    return {"threads": threads, "versions": versions, "notes": run.notes, "cells": run.cells, "loads": loads}


def run_child(args: argparse.Namespace, threads: int, first: bool) -> dict[str, Any]:
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
    environment |= {"JAX_PLATFORMS": "cpu", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    if threads == 1:
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    cases = [name for name in args.cases if first or name not in ONCE]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "child.json")
        command = [sys.executable, "-W", "ignore", *sys.argv, "--threads", str(threads), "--child", str(out)]
        command += ["--cases", ",".join(cases)]
        if cases and subprocess.run(command, env=environment, check=False).returncode:
            raise SystemExit(f"the run with {threads} thread(s) failed; see above")
        return dict(json.loads(out.read_text())) if cases else {}


def write_results(path: Path, results: list[dict[str, Any]]) -> None:
    """Write the compiled functions of all thread counts as a results file."""
    from compile_report import peers_of

    timed_sections = ("chains", "rows", "mlp")
    cells = [(r["threads"], cell) for r in results for cell in r["cells"] if cell["section"] in timed_sections]
    if not cells:
        raise SystemExit(f"--results: no function was timed; --cases needs one of {', '.join(timed_sections)}")
    names = [COMPILED, EAGER, *peers_of([cell for _, cell in cells])]
    rows = []
    for threads, cell in cells:
        samples = {name: cell["ns"][name] for name in names if name in cell["ns"]}
        rows.append(Entry((cell["title"], str(threads)), compared(samples, COMPILED, 1e-3)))
    columns = compared_columns(names, COMPILED, "µs", "median time of a call")
    versions = {name: text for r in results for name, text in r["versions"].items()}
    notes = [f"{note}." for r in results for note in r["notes"]]
    title, threads = "Compiled functions beside other compilers", max(r["threads"] for r in results)
    write(path, title, ("case", "threads"), columns, rows, threads=threads, versions=versions, notes=notes)


def whole(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    usable = cpus()
    parser.add_argument("--threads", type=whole, default=[1] if len(usable) == 1 else [1, 2], help="one run each (1,2)")
    parser.add_argument("--cases", type=partial(choice, list(CASES)), default=list(CASES), help=",".join(CASES))
    parser.add_argument("--libs", type=partial(choice, list(LIBRARIES)), default=list(LIBRARIES))
    parser.add_argument("--lengths", type=whole, help="of chains (2,5,10,20; quick: 2,10)")
    parser.add_argument("--sizes", type=whole, help="of chains (1024 … 16777216; quick: three of them)")
    parser.add_argument("--nodes", type=whole, help="of graphs that are compiled (100,1000,5000,20000)")
    parser.add_argument("--quick", action="store_true", help="fewer samples, sizes and steps")
    parser.add_argument("--markdown", action="store_true", help="tables for a page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every raw value (ns a call)")
    add_option(parser)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.lengths = args.lengths or (LENGTHS[::2] if args.quick else LENGTHS)
    args.sizes = args.sizes or (SIZES[:5:2] if args.quick else SIZES)
    args.nodes = args.nodes or (NODES[:3] if args.quick else NODES)
    args.libs = ["tritium", *(name for name in args.libs if name != "tritium")]
    from tritium import buffer

    if buffer.native is None:
        parser.error(f"it times native programs, and there is no native library: {buffer.native_absence}")
    if usable and max(args.threads) > len(usable):
        parser.error(f"--threads {max(args.threads)}: this process may use {len(usable)} CPU(s)")
    return args


def main() -> None:
    args = arguments()
    if args.child:
        if usable := cpus():
            os.sched_setaffinity(0, usable[: args.threads[0]])
        args.child.write_text(json.dumps(child(args, args.threads[0])))
        return
    results = [found for i, count in enumerate(args.threads) if (found := run_child(args, count, i == 0))]
    from compile_report import report

    print(report(results, args.markdown))
    if args.results:
        write_results(args.results, results)
    if args.json:
        document = {"schema": 1, "machine": machine(), "runs": results}
        unfinished = args.json.with_name(args.json.name + ".tmp")
        unfinished.write_text(json.dumps(document, indent=1, allow_nan=False))
        unfinished.replace(args.json)


if __name__ == "__main__":
    main()

"""Whole models side by side: this package, llama.cpp, ik_llama.cpp, bitnet.cpp and Litespark on the same weights, threads and machine.

    python bench/make_model.py 2b.gguf                                     # BitNet b1.58 2B-4T's shape, random weights
    tritium prepack 2b.gguf 2b.tritium
    python bench/model.py --ours 2b.tritium \\
        --peer "llama.cpp TQ2_0" llama.cpp/build/bin/llama-bench 2b-tq2.gguf --threads 2
    python bench/make_model.py i2s.gguf --arch bitnet && python bench/model.py --ours 2b.tritium \\
        --peer "bitnet.cpp I2_S" bitnet/llama-bench i2s.gguf --threads 2     # built by bench/peers.sh
    python bench/make_model.py 2b --format bf16 && python bench/model.py --ours 2b.tritium \\
        --litespark "Litespark 1.0.3" litespark/bin/python 2b --threads 2  # an interpreter that has litespark-inference
    python bench/model.py --ours 2b.tritium --parts                        # what the time of a token and of a prompt goes to
    python bench/model.py --ours 8b.gguf --memory                          # the most memory while it loads and writes

Engines take turns, each in a process of its own, for several rounds; a figure is the median of the rounds with the
smallest and the largest. The tokens of a prompt and how many are written are the same for all. Peers are built by you,
from their own sources; `llama-bench` of either is what is called.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results import Column, Entry, Need, add_option, figure, ratio, value, write
from timing import machine

SURE_ROUNDS = 6  # from which on a median has an interval of 95 %
Rates = tuple[float, float]  # tokens a second of prefill and of decode


@dataclass
class Engine:
    """One of those that are compared."""

    name: str
    run: Callable[[], Rates]
    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)


def ours(path: str, args: argparse.Namespace, *more: str) -> Callable[[], Rates]:
    def run() -> Rates:
        command = [sys.executable, "-m", "tritium", "bench", "model", path, "--json", "--threads", str(args.threads)]
        command += ["-p", str(args.prefill), "-n", str(args.decode), "-r", str(args.repetitions), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
        rows = json.loads(done.stdout)["rows"]
        return rows["prefill"]["median"], rows["decode"]["median"]

    return run


def peer(program: str, path: str, args: argparse.Namespace, *more: str) -> Callable[[], Rates]:
    def run() -> Rates:
        command = [program, "-m", path, "-t", str(args.threads), "-r", str(args.repetitions), "-o", "json", *more]
        command += ["-p", str(args.prefill), "-n", str(args.decode)]
        # Several engines have libraries of the same names: each takes those beside it.
        beside = os.pathsep.join(filter(None, (str(Path(program).parent), os.environ.get("LD_LIBRARY_PATH"))))
        paths = os.environ | {"LD_LIBRARY_PATH": beside}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=paths)
        if done.returncode:
            raise SystemExit(f"{program} ended with {done.returncode}: {done.stderr[-500:]}")
        rows = json.loads(done.stdout[done.stdout.index("[") :])
        found = {("decode" if row["n_gen"] else "prefill"): statistics.median(row["samples_ts"]) for row in rows}
        return found["prefill"], found["decode"]

    return run


def litespark(python: str, folder: str, args: argparse.Namespace) -> Callable[[], Rates]:
    def run() -> Rates:
        command = [python, str(Path(__file__).with_name("litespark.py")), folder]
        command += ["--prefill", str(args.prefill), "--decode", str(args.decode)]
        threads = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=threads)
        except OSError as error:
            raise SystemExit(
                f"{python} cannot be started ({error}): give the interpreter that has litespark-inference."
            ) from None
        if done.returncode:
            raise SystemExit(done.stderr[-500:].strip() or f"{python} {ending(done.returncode)}")
        rates = json.loads(done.stdout.splitlines()[-1])
        return statistics.median(rates["prefill"]), statistics.median(rates["decode"])

    return run


def ending(code: int) -> str:
    """Return how a process ended; an illegal instruction is a kernel that was built for another processor."""
    if code >= 0:
        return f"ended with {code}"
    what = "; its kernel needs instructions that this processor does not have" if -code == signal.SIGILL else ""
    return f"was ended by {signal.Signals(-code).name}{what}"


def compare(engines: list[Engine], rounds: int) -> None:
    for i in range(rounds):
        for engine in engines[i % len(engines) :] + engines[: i % len(engines)]:
            prefill, decode = engine.run()
            engine.prefill.append(prefill)
            engine.decode.append(decode)
            print(
                f"  round {i + 1}: {engine.name}: prefill {prefill:.1f}, decode {decode:.2f} tokens/s", file=sys.stderr
            )


def table(engines: list[Engine]) -> str:
    """Medians with spread, and how many times slower the others are than the first."""

    def cell(values: list[float], first: list[float]) -> str:
        middle, best = statistics.median(values), statistics.median(first)
        return f"{middle:.2f} ({min(values):.2f} … {max(values):.2f}) | {best / middle:.2f}"

    lines = ["| engine | prefill, tokens/s | ours is × | decode, tokens/s | ours is × |", "|---|---|---|---|---|"]
    for e in engines:
        lines.append(f"| {e.name} | {cell(e.prefill, engines[0].prefill)} | {cell(e.decode, engines[0].decode)} |")
    return "\n".join(lines)


def write_results(args: argparse.Namespace, engines: list[Engine]) -> None:
    """Write the rates of all engines as a results file."""
    spread = "95 %" if args.rounds >= SURE_ROUNDS else f"smallest and largest of {args.rounds} rounds"
    kinds = {"prefill": f"prefill of {args.prefill}", "decode": f"decode of {args.decode}"}
    columns, rows = [], []
    for kind, name in kinds.items():
        columns.append(Column(name, "tokens/s", f"tokens of {kind} in a second", interval=spread))
        columns.append(Column(f"× {kind}", "×", f"{kind} of the first row / of this one", "ratio", spread))
    for engine in engines:
        figures = {}
        for kind, name in kinds.items():
            rates, first = getattr(engine, kind), getattr(engines[0], kind)
            figures[name] = figure(rates, processes=args.rounds)
            if engine is not engines[0]:
                figures[f"× {kind}"] = ratio(first, rates, processes=args.rounds)
        rows.append(Entry((engine.name,), figures))
    others = args.peer + args.ik + args.litespark
    models = [*args.ours, *(path for _, _, path in others)]
    needs = [Need("file", path, "bench/make_model.py and tritium prepack write it") for path in models]
    needs += [Need("file", program, "build it from its sources") for program in {p for _, p, _ in others}]
    labels = ("engine, weights and output head",)
    title = "Whole models beside other engines"
    write(args.results, title, labels, columns, rows, threads=args.threads, versions=dict(args.version), needs=needs)


# ---- what a token's time goes to


def turns(calls: list[Callable[[], Any]], rounds: int = 5) -> float:
    """Seconds for all calls in turn: by the time one comes again, its weights have left the caches."""
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for call in calls:
            call()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def kernels(model: Any, held: int) -> Iterator[tuple[str, float]]:
    """Each kernel of a decode step alone, over all layers in turn."""
    import numpy as np

    import tritium as tt

    c, blocks = model.config, model.network.blocks
    rng = np.random.default_rng(0)

    def token(width: int) -> Any:
        return tt.asarray(rng.standard_normal((1, 1, width)).astype(np.float32))

    x, y, h = token(c.hidden_size), token(c.heads * c.head_dim), token(c.intermediate_size)
    places = tt.asarray(np.array([[0, held, 1]], np.int32))
    caches = [tt.nn.KVCache.empty(slots=1, heads=c.kv_heads, capacity=held + 1, size=c.head_dim) for _ in blocks]
    for cache in caches:
        cache.kv.numpy()[...] = 0.5
    turned = c.heads + c.kv_heads
    joined = token((turned + c.kv_heads) * c.head_dim).reshape(1, 1, turned + c.kv_heads, c.head_dim)
    q, new = joined[:, :, : c.heads], joined[:, :, c.heads :]
    angles = model.network.rope.angles(tt.asarray(np.array([[held]], np.int32)))
    yield "norm + Q, K and V", turns([lambda b=b: b.attention.qkv(b.attention_norm(x)) for b in blocks])
    yield "rope", turns([lambda: tt.rope(joined, *angles, heads=turned) for _ in blocks])
    yield "cache", turns([lambda s=s: tt.update_cache(s.kv, new, places, out=s.kv) for s in caches])
    yield f"attention over {held} tokens", turns([lambda s=s: tt.attention(q, s.k, s.v, places) for s in caches])
    yield (
        "norm + result",
        turns([lambda b=b: b.attention.out(b.attention.sub_norm(y) if b.attention.sub_norm else y) for b in blocks]),
    )
    yield "norm + gate and up", turns([lambda b=b: b.mlp.gate_up(b.mlp_norm(x)) for b in blocks])
    both = token(2 * c.intermediate_size)
    yield (
        "activation",
        turns(
            [
                lambda b=b: b.mlp.activation(both[..., : c.intermediate_size]) * both[..., c.intermediate_size :]
                for b in blocks
            ]
        ),
    )
    yield "norm + down", turns([lambda b=b: b.mlp.down(b.mlp.sub_norm(h) if b.mlp.sub_norm else h) for b in blocks])
    yield "head", turns([lambda: model.network.head(x.reshape(1, c.hidden_size))] * 3) / 3


def prompt_parts(model: Any, tokens: int, rounds: int = 5) -> list[str]:
    """Read a prompt a few times under the profiler; return a line for each kind of kernel, all layers together, of the middle time."""
    import tritium as tt

    def read() -> float:
        session = model.session(context=tokens + 1)
        begun = time.perf_counter()
        session.extend(0, [i % model.config.vocab_size for i in range(tokens)])
        return time.perf_counter() - begun

    read()  # compiles
    profiles = []
    for _ in range(rounds):
        with tt.profile(ceilings=False) as profile:
            seconds = read()
        profiles.append((seconds, profile))
    seconds, profile = sorted(profiles, key=lambda pair: pair[0])[rounds // 2]
    own: dict[str, int] = {}
    for row in profile.ops("layer"):
        name = f"{row.name} {row.detail.rpartition('.')[2] if '.' in row.detail else ''}".strip()
        own[name] = own.get(name, 0) + row.own_ns
    total = sum(own.values())
    lines = [
        f"{name:<48} {ns / 1e6:8.3f} ms  {ns / total:6.1%}" for name, ns in sorted(own.items(), key=lambda x: -x[1])
    ]
    return [
        *lines,
        f"{'sum of the kernels':<48} {total / 1e6:8.3f} ms",
        f"{f'a prompt of {tokens} tokens':<48} {1e3 * seconds:8.3f} ms  {1e9 * seconds / total:.3f} x",
    ]


def parts(path: str, args: argparse.Namespace) -> str:
    import tritium as tt

    tt.set_num_threads(args.threads)
    model = tt.load(path)
    session = model.session(context=args.prefill + args.decode + 1)
    session.extend(0, list(range(args.prefill)))
    session.step([0], [1])
    steps = []
    for i in range(args.decode - 1):
        begun = time.perf_counter()
        session.step([0], [i])
        steps.append(time.perf_counter() - begun)
    step = statistics.median(steps)
    rows = list(kernels(model, args.prefill + args.decode // 2))
    total = sum(seconds for _, seconds in rows)
    lines = [f"{name:<28} {1e3 * seconds:8.3f} ms  {seconds / total:6.1%}" for name, seconds in rows]
    lines += [
        f"{'sum of the kernels':<28} {1e3 * total:8.3f} ms",
        f"{'a decode step':<28} {1e3 * step:8.3f} ms  {step / total:.3f} x",
        "",
        *prompt_parts(model, args.prefill),
    ]
    return "\n".join(lines)


# ---- memory


MEMORY = {
    "file": "size of the file", "cache": "KV cache of the prompt and what is written", "private": "most memory of its own, sampled",
    "mapped": "most memory that is pages of files, sampled; the system may take them back", "resident": "most of both at one moment",
    "beyond": "resident - file - cache",
}  # fmt: skip


def resident() -> dict[str, int]:
    """Return the bytes of this process now, of its own and of files, and the most it ever had, as Linux counts them."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    kinds = {"RssAnon": "private", "RssFile": "mapped", "VmHWM": "resident"}
    counted = {key: int(value.split()[0]) * 1024 for key, _, value in (x.partition(":") for x in lines) if key in kinds}
    return {name: counted[key] for key, name in kinds.items()}


def load_and_write(path: str, args: argparse.Namespace) -> dict[str, int]:
    """Load a model, read a prompt and write tokens in this process; return the bytes of `MEMORY`."""
    import tritium as tt

    tt.set_num_threads(args.threads)
    most, done = resident(), threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            for name, size in resident().items():
                most[name] = max(most[name], size)

    watcher = threading.Thread(target=watch)
    watcher.start()
    model = tt.load(path)
    session = model.session(context=args.prefill + args.decode)
    session.extend(0, list(range(args.prefill)))
    for i in range(args.decode):
        session.step([0], [i])
    done.set()
    watcher.join()
    sizes = {"file": os.path.getsize(path), "cache": session.nbytes} | most | {"resident": resident()["resident"]}
    return sizes | {"beyond": sizes["resident"] - sizes["file"] - sizes["cache"]}


def memory(args: argparse.Namespace) -> None:
    """Print the memory of each model in a process of its own."""
    rows = []
    for path in args.ours:
        command = [sys.executable, __file__, "--ours", path, "--inside", "--threads", str(args.threads)]
        command += ["--prefill", str(args.prefill), "--decode", str(args.decode)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        sizes = json.loads(done.stdout.splitlines()[-1])
        print(os.path.basename(path), *(f"{name} {size / 1e9:.3f} GB" for name, size in sizes.items()), sep="  ")
        rows.append(Entry((os.path.basename(path),), {name: value(size / 1e9) for name, size in sizes.items()}))
    if args.results:
        columns = [Column(name, "GB", what) for name, what in MEMORY.items()]
        needs = [Need("file", path, "bench/make_model.py writes it") for path in args.ours]
        write(args.results, "Memory of a model", ("model",), columns, rows, threads=args.threads, needs=needs)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument(
        "--ours", action="append", default=[], metavar="FILE", help="a model for this package; may be given again"
    )
    parser.add_argument("--peer", action="append", default=[], nargs=3, metavar=("NAME", "LLAMA_BENCH", "FILE"))
    parser.add_argument(
        "--ik",
        action="append",
        default=[],
        nargs=3,
        metavar=("NAME", "LLAMA_BENCH", "FILE"),
        help="with run-time repacking",
    )
    parser.add_argument(
        "--litespark",
        action="append",
        default=[],
        nargs=3,
        metavar=("NAME", "PYTHON", "FOLDER"),
        help="an interpreter that has litespark-inference, and a folder of bf16 numbers",
    )
    parser.add_argument("--parts", action="store_true", help="what the time of a token and of a prompt goes to")
    parser.add_argument("--memory", action="store_true", help="the most memory while each of --ours loads and writes")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # of --memory: measure in this process
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prefill", type=int, default=128)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--repetitions", type=int, default=3, help="of each engine in a round, 3 or more; their median counts"
    )
    parser.add_argument(
        "--version", action="append", default=[], nargs=2, metavar=("NAME", "TEXT"), help="of a peer, for --results"
    )
    add_option(parser)
    return parser


def main() -> None:
    parser = arguments()
    args = parser.parse_args()
    if not args.ours:
        parser.error("--ours FILE is needed: a model of any format this package reads")
    if args.repetitions < 3:
        parser.error(f"--repetitions must be 3 or more, given {args.repetitions}: a median of fewer means nothing")
    if args.inside:
        print(json.dumps(load_and_write(args.ours[0], args)))
        return
    print(
        f"{machine()}, {args.threads} threads, load {os.getloadavg()[0]:.1f}; prompt {args.prefill}, then {args.decode} tokens"
    )
    if args.memory:
        memory(args)
        return
    if args.parts:
        for path in args.ours:
            print(f"\n{os.path.basename(path)}\n{parts(path, args)}")
        return
    engines = [Engine(f"tritium, {os.path.basename(path)}", ours(path, args)) for path in args.ours]
    engines += [Engine(name, peer(program, path, args)) for name, program, path in args.peer]
    engines += [Engine(name, peer(program, path, args, "-rtr", "1")) for name, program, path in args.ik]
    engines += [Engine(name, litespark(python, folder, args)) for name, python, folder in args.litespark]
    names = [engine.name for engine in engines]
    if args.results and len({*names}) < len(names):  # said before the minutes are spent
        parser.error(f"--results needs a name for every engine; two are alike: {', '.join(names)}")
    compare(engines, args.rounds)
    print(table(engines))
    if args.results:
        write_results(args, engines)


if __name__ == "__main__":
    main()

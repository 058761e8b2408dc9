"""Time to the first result of a function in a fresh process: compiled there, loaded from a file, and from a folder of programs.

    python bench/saved.py               all functions, 5 processes of each kind in turn
    python bench/saved.py --runs 3 --only "20 steps"

Imports and weights are not timed: tracing, optimising and planning are, or reading and checking the file, and the first call.
Shown are the shortest times, since the load of other work only adds to them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import tritium as tt

Work = tuple[Callable[[Any], Any], Any]


def lstm(steps: int) -> Work:
    """Return the steps of an LSTM, written out, and their inputs."""
    w, u, b = tt.randn((64, 256), seed=1), tt.randn((64, 256), seed=2), tt.zeros(256)

    def run(xs: Any) -> Any:
        h = c = tt.zeros((1, 64))
        for i in range(steps):
            gates = xs[i : i + 1] @ w + h @ u + b
            keep, add, out, new = (gates[:, k * 64 : (k + 1) * 64] for k in range(4))
            c = tt.sigmoid(keep) * c + tt.sigmoid(add) * tt.tanh(new)
            h = tt.sigmoid(out) * tt.tanh(c)
        return h

    return run, tt.randn((steps, 64), seed=3)


def transformer(blocks: int) -> Work:
    """Return ternary blocks with attention in plain ops, and their input."""
    shapes = ((768, 256), (256, 256), (1024, 256), (256, 1024))
    layers = [
        [tt.nn.BitLinear.from_float(tt.randn(shape, seed=4 * i + k)) for k, shape in enumerate(shapes)]
        for i in range(blocks)
    ]
    gain = tt.ones(256)

    def run(x: Any) -> Any:
        for qkv, out, up, down in layers:
            mixed = qkv(tt.rms_norm(x, gain))
            q, k, v = (mixed[:, i * 256 : (i + 1) * 256] for i in range(3))
            x = x + out(tt.softmax(q @ k.T * 0.0625) @ v)
            x = x + down(tt.gelu(up(tt.rms_norm(x, gain))))
        return x

    return run, tt.randn((16, 256), seed=3)


FUNCTIONS: dict[str, Callable[[], Work]] = {
    "LSTM, 20 steps": lambda: lstm(20),
    "LSTM, 400 steps": lambda: lstm(400),
    "transformer, 1 block": lambda: transformer(1),
    "transformer, 12 blocks": lambda: transformer(12),
}
WAYS = ("compiled", "loaded", "cached")


def time_first(name: str, way: str, path: str) -> float:
    """Return the seconds to the first result in this process; way "saved" writes the file instead."""
    fn, x = FUNCTIONS[name]()
    tt.compile(lambda x: x + 1).save(f"{path}.warm", x)  # imports what both ways need
    tt.load_program(f"{path}.warm")(x)
    if way == "saved":
        tt.compile(fn).save(path, x)
        tt.compile(fn, cache=f"{path}.folder")(x)
        return 0.0
    tt.compile(lambda x: x + 1, cache=f"{path}.warm.folder")(x)
    start = perf_counter()
    if way == "loaded":
        tt.load_program(path)(x)
    else:
        tt.compile(fn, cache=f"{path}.folder" if way == "cached" else None)(x)
    return perf_counter() - start


def in_child(name: str, way: str, path: str) -> float:
    """Return the seconds that a fresh process measures."""
    command = [sys.executable, __file__, "--child", name, way, path]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="processes of each kind")
    parser.add_argument("--only", default="", help="functions whose name has this in it")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(time_first(*options.child))
        return
    print(f"{'function':24} {'calls':>6} {'compiled':>10} {'loaded':>10} {'cached':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for name in (n for n in FUNCTIONS if options.only in n):
            path = str(Path(folder) / "program")
            in_child(name, "saved", path)
            times = [[in_child(name, way, path) for way in WAYS] for _ in range(options.runs)]
            compiled, loaded, cached = map(min, zip(*times, strict=True))
            fn, x = FUNCTIONS[name]()
            print(f"{name:24} {len(tt.trace(fn, x).calls()):6} {compiled:8.3f} s {loaded:8.3f} s {cached:8.3f} s")


if __name__ == "__main__":
    main()

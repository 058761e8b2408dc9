"""What a call of a new length costs a compiled function: with one program for sizes that vary, and with a program for each size.

Knows nothing of the inside of the compiler: functions are called with tensors of lengths that they have not met.

    python bench/lengths.py            both ways, three functions, lengths 1 to 400
    python bench/lengths.py --json F   every raw value too

Method. Each function is called once with each length, in order, as a decode loop does; a call is timed alone, without and with
`disable="sizes"`, one way after the other, with one thread. The first 40 calls are left out: programs for sizes that vary are
compiled there. The call after a first one has the same length, so the difference is what a new length costs. Results are
compared with the function as written, bit by bit.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

os.environ.setdefault("TRITIUM_NUM_THREADS", "1")  # waiting for threads would hide what a new length costs

import tritium as tt

WARM = 40
HIDDEN = 64


def decode_step() -> Callable[..., Any]:
    """Attention of one query over a KV cache of the given length."""
    wq, wo = (tt.randn((HIDDEN, HIDDEN), seed=i) for i in range(2))

    def step(x: Any, keys: Any, values: Any) -> Any:
        q = (x @ wq).reshape(4, 1, 16)
        k, v = (t.reshape(t.shape[0], 4, 16).permute(1, 0, 2) for t in (keys, values))
        scores = tt.softmax(q @ k.mT * 0.25)
        return x + (scores @ v).permute(1, 0, 2).reshape(1, HIDDEN) @ wo

    return step


def block() -> Callable[..., Any]:
    """A transformer block with ternary weights on all tokens of a text."""
    gain = tt.ones(HIDDEN)
    layers = [tt.nn.BitLinear.from_float(tt.randn((HIDDEN, HIDDEN), seed=i)) for i in range(4)]
    up, gate = (tt.nn.BitLinear.from_float(tt.randn((2 * HIDDEN, HIDDEN), seed=i)) for i in (5, 6))
    down = tt.nn.BitLinear.from_float(tt.randn((HIDDEN, 2 * HIDDEN), seed=7))

    def run(x: Any) -> Any:
        n = x.shape[0]
        h = tt.rms_norm(x, gain)
        q, k, v = (layer(h).reshape(n, 4, 16).permute(1, 0, 2) for layer in layers[:3])
        mask = tt.where(tt.tril(tt.ones((n, n))) > 0, 0.0, -1e9)
        scores = tt.softmax(q @ k.mT * 0.25 + mask)
        x = x + layers[3]((scores @ v).permute(1, 0, 2).reshape(n, HIDDEN))
        h = tt.rms_norm(x, gain)
        return x + down(tt.silu(gate(h)) * up(h))

    return run


def ragged() -> Callable[..., Any]:
    """Elements and rows of a batch, whose first two sizes vary."""
    return lambda x, w: (tt.softmax(x * 2 + 1) * w).sum(axis=1)


def inputs(name: str, n: int) -> tuple[Any, ...]:
    if name == "decode step":
        return tt.randn((1, HIDDEN), seed=1), *(tt.randn((n, HIDDEN), seed=s) for s in (2, 3))
    if name == "ragged batch":
        return tt.randn((1 + n % 7, n, HIDDEN), seed=1), tt.randn(HIDDEN, seed=2)
    return (tt.randn((n, HIDDEN), seed=1),)


FUNCTIONS = {"decode step": decode_step, "transformer block": block, "ragged batch": ragged}


def parts(result: Any) -> list[bytes]:
    return [x.numpy().tobytes() for x in (result if isinstance(result, tuple) else (result,))]


def measure(name: str, most: int) -> dict[str, Any]:
    fn = FUNCTIONS[name]()
    ways = {"one program": tt.compile(fn), "one for each size": tt.compile(fn, disable="sizes")}
    new: dict[str, list[int]] = {way: [] for way in ways}
    again: dict[str, list[int]] = {way: [] for way in ways}
    gc.disable()
    for way, compiled in ways.items():
        for n in range(1, most + 1):
            args = inputs(name, n)
            want = parts(fn(*args))
            start = perf_counter_ns()
            result = compiled(*args)
            new[way].append(perf_counter_ns() - start)
            if parts(result) != want:
                raise SystemExit(f"{name}, {way}, length {n}: other bits than the function as written")
            again[way].append(min(_timed(compiled, args) for _ in range(3)))
    gc.enable()
    costs = {way: [max(a - b, 0) for a, b in zip(new[way], again[way], strict=True)] for way in ways}
    programs = {way: c.cache_info().misses for way, c in ways.items()}
    return {"name": name, "new_ns": new, "again_ns": again, "cost_ns": costs, "compiled": programs}


def _timed(fn: Callable[..., Any], args: tuple[Any, ...]) -> int:
    start = perf_counter_ns()
    fn(*args)
    return perf_counter_ns() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=400, help="The longest length.")
    parser.add_argument("--json", type=Path, help="Write every raw value to a file.")
    options = parser.parse_args()
    results = [measure(name, options.most) for name in FUNCTIONS]
    print(
        "| function | way | programs compiled | cost of a new length | worst | a call again |\n|---|---|---|---|---|---|"
    )
    for r in results:
        for way, cost in r["cost_ns"].items():
            late = [ns / 1e3 for ns in cost[WARM:]]
            again = median(r["again_ns"][way][WARM:]) / 1e3
            print(
                f"| {r['name']} | {way} | {r['compiled'][way]} | {median(late):.3g} µs | {max(late):.4g} µs | {again:.3g} µs |"
            )
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()

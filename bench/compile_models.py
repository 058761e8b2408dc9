"""The networks that bench/compile.py plans and compiles: a transformer with BitLinear, an MLP, einsum, an autoencoder."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import numpy as np

import tritium as tt
from tritium.compiler import steps
from tritium.compiler.fuse import fuse
from tritium.compiler.passes import simplify
from tritium.compiler.patterns import apply_patterns
from tritium.compiler.program import Program
from tritium.graph.graph import Graph, run_node
from tritium.op import Kind

Function = Callable[..., Any]
WIDTH, HIDDEN = 2560, 6912  # of BitNet b1.58 2B-4T
SCALE = 1 / 32


def ternary(n: int, k: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-1, 2, (n, k), dtype=np.int8)


def linear(n: int, k: int, seed: int = 0, norm: Any = None) -> Any:
    return tt.nn.BitLinear.from_ternary(ternary(n, k, seed), scale=SCALE, norm=norm)


def floats(*shape: int) -> Any:
    return tt.asarray(np.random.default_rng(0).standard_normal(shape, dtype=np.float32) * np.float32(0.1))


def gated(gate: Function, up: Function, down: Function) -> Function:
    """The feed-forward block of BitNet; `down` has the norm."""
    return lambda x: down(tt.relu2(gate(x)) * up(x)) + x


@dataclass(frozen=True)
class Block:
    """The weights of one transformer block."""

    heads: int
    norm: Any
    q: Any
    k: Any
    v: Any
    o: Any
    mlp: Function

    @classmethod
    def of(cls, width: int, heads: int, hidden: int, seed: int) -> Block:
        ones = np.ones(width, np.float32)
        q, k, v = (linear(width, width, seed + i) for i in range(3))
        gate, up = (linear(hidden, width, seed + i) for i in (4, 5))
        down = linear(width, hidden, seed + 6, np.ones(hidden, np.float32))
        return cls(heads, tt.asarray(ones), q, k, v, linear(width, width, seed + 3, ones), gated(gate, up, down))

    def __call__(self, x: Any, mask: Any) -> Any:
        tokens, width = x.shape
        h = tt.rms_norm(x, self.norm)
        q, k, v = (
            part(h).reshape(tokens, self.heads, width // self.heads).permute_dims((1, 0, 2))
            for part in (self.q, self.k, self.v)
        )
        mixed = tt.softmax(q @ k.mT * (width // self.heads) ** -0.5 + mask) @ v
        return self.mlp(x + self.o(mixed.permute_dims((1, 0, 2)).reshape(tokens, width)))


def transformer(layers: int, width: int, heads: int, hidden: int, kinds: int = 1) -> Function:
    """`layers` blocks, which take turns with `kinds` sets of weights."""
    blocks = [Block.of(width, heads, hidden, 7 * i) for i in range(kinds)]

    def run(x: Any, mask: Any) -> Any:
        for i in range(layers):
            x = blocks[i % kinds](x, mask)
        return x

    return run


def feed_forward() -> Function:
    ones = np.ones(HIDDEN, np.float32)
    return gated(linear(HIDDEN, WIDTH), linear(HIDDEN, WIDTH, 1), linear(WIDTH, HIDDEN, 2, ones))


def einsum_network(x: Any, a: Any, b: Any, c: Any) -> Any:
    h = tt.einsum("bi,ij,jk->bk", x, a, b)
    scores = tt.einsum("bk,ck->bc", tt.tanh(h), c)
    return tt.einsum("bc,ck->bk", tt.softmax(scores), c)


def autoencoder(sizes: tuple[int, ...]) -> Function:
    weights = [(floats(n, k), floats(k)) for n, k in pairwise(sizes)]

    def run(x: Any) -> Any:
        for i, (w, bias) in enumerate(weights):
            x = x @ w + bias
            x = tt.gelu(x) if i < len(weights) - 1 else tt.sigmoid(x)
        return x

    return run


# The networks whose arena is compared with what is alive together: a function, and its arguments.
MODELS: dict[str, Callable[[], tuple[Function, tuple[Any, ...]]]] = {
    "transformer, 12 layers, 128 tokens": lambda: (
        transformer(12, 768, 12, 2048), (floats(128, 768), floats(128, 128))),
    "transformer, 12 layers, 1 token": lambda: (transformer(12, 768, 12, 2048), (floats(1, 768), floats(1, 1))),
    "MLP with BitLinear, batch 1": lambda: (feed_forward(), (floats(1, WIDTH),)),
    "MLP with BitLinear, batch 128": lambda: (feed_forward(), (floats(128, WIDTH),)),
    "einsum network": lambda: (
        einsum_network, (floats(256, 512), floats(512, 1024), floats(1024, 256), floats(100, 256))),
    "autoencoder, batch 256": lambda: (autoencoder((784, 512, 128, 32, 128, 512, 784)), (floats(256, 784),)),
}  # fmt: skip


def facts(program: Program) -> dict[str, int]:
    """Launches, bytes and memory of a program, and of its rows called one by one."""
    rows = program.source.order()
    return {
        "rows": sum(n.op.kind not in (Kind.VIEW, Kind.SOURCE) for n in rows),
        "launches": program.launches,
        "eager_bytes": sum(c.read + c.written for c in map(program.cost_of, rows)),
        "bytes": program.bytes_moved,
        "arena": program.arena_bytes,
        "naive": program.naive_bytes,
        "bound": program.lower_bound_bytes,
    }


def peak_bytes(call: Callable[[], Any]) -> int:
    """What a call has alive at its worst moment, results included; the second one, when all is there that stays."""
    call()
    with tt.memory.usage() as used:
        call()
    return used.peak_above_start


def plans() -> list[dict[str, Any]]:
    """The memory of every reference model."""
    found = []
    for title, make in MODELS.items():
        fn, args = make()
        compiled = tt.compile(fn)
        about: dict[str, Any] = facts(compiled.program(*args))
        found.append({"title": title, **about, "eager_peak": peak_bytes(lambda fn=fn, args=args: fn(*args)),
                      "peak": peak_bytes(lambda fn=compiled, args=args: fn(*args))})  # fmt: skip
    return found


# ---- how long it takes to compile


def deep(nodes: int) -> tuple[Function, tuple[Any, ...]]:
    """A transformer of about so many nodes: products, maps, norms, softmax, views."""
    args = (floats(4, 64), floats(4, 4))
    one, two = (len(tt.trace(transformer(n, 64, 4, 128, n), *args).order()) for n in (1, 2))
    layers = max(1, round((nodes - one) / (two - one)) + 1)
    return transformer(layers, 64, 4, 128, layers), args


def passes(graph: Graph, args: tuple[Any, ...]) -> dict[str, int]:
    """ns of every pass, each on what the one before it gave."""
    backend = tt.device("cpu").backend
    layouts = tuple(x.layout for x in args)
    spent: dict[str, int] = {}

    def timed(name: str, fn: Function, *given: Any) -> Any:
        start = perf_counter_ns()
        out = fn(*given)
        spent[name] = perf_counter_ns() - start
        return out

    simple = timed("simplify", simplify, graph, lambda n, xs: run_node(n, xs, backend.device)).graph
    custom = timed("patterns", apply_patterns, simple).graph
    fused = timed("fuse", fuse, custom, backend.refuses).graph
    timed("schedule", steps.ordered, fused)
    built = timed("steps", steps.build, fused, backend, layouts)
    spent["steps"] -= spent["schedule"]  # which building the steps does once more
    timed("native", steps.native_program, built, fused, layouts)
    return spent


def compile_times(nodes: int, repeats: int) -> dict[str, Any]:
    """Medians of tracing, of each pass, and of all together as a first call does it."""
    fn, args = deep(nodes)
    backend = tt.device("cpu").backend
    rounds: list[dict[str, int]] = []
    for _ in range(repeats):
        start = perf_counter_ns()
        graph = tt.trace(fn, *args)
        traced = perf_counter_ns()
        Program(graph, backend, tuple(x.layout for x in args))
        done = perf_counter_ns()
        rounds.append({"trace": traced - start, **passes(graph, args), "total": done - start})
    ns = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    return {"nodes": len(graph.order()), "ns": ns, "totals": [r["total"] for r in rounds]}


# ---- the kernels of the feed-forward block, one by one


def kernels(fn: Function, *args: Any) -> dict[str, Callable[[], Any]]:
    """Every row that a function calls, as a bare call of its kernel on memory that is there already."""
    graph = tt.trace(fn, *args)
    values = graph.run(dict(graph.captured) | dict(zip(graph.inputs, args, strict=True)), keep=True)
    backend, calls = tt.device("cpu").backend, {}
    for n in graph.order():
        if n.op.kind in (Kind.VIEW, Kind.SOURCE):
            continue
        xs = [None if i is None else values[i] for i in n.inputs]
        specs = tuple(None if x is None else x.spec for x in xs)
        layouts = tuple(None if x is None else x.layout for x in xs)
        kernel = backend.choose(n.op, specs, dict(n.attrs), layouts)
        if kernel is None:
            raise SystemExit(f"{n.op.name} of {specs} has no kernel")
        calls[f"{len(calls)} {n.op.name}"] = _bare(kernel.fn, xs, dict(n.attrs), tt.empty(n.spec.shape))
    return calls


def _bare(kernel: Function, xs: list[Any], attrs: dict[str, Any], out: Any) -> Callable[[], Any]:
    return lambda: kernel(*xs, **attrs, out=out)

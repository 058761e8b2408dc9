"""Golden graph texts: what the compiler makes of reference networks, for a runner that takes every fusion.

A refactoring must not change them; an optimisation changes them on purpose: `python tests/graph/test_golden.py` writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tritium as tt
from tritium.compiler.fuse import fuse
from tritium.compiler.passes import simplify
from tritium.graph.graph import run_node

GOLDEN = Path(__file__).parents[1] / "golden"
TOKENS, WIDTH, HEADS, HIDDEN = 8, 64, 4, 160


def tern(n: int, k: int) -> tt.Spec:
    return tt.Spec((n, k), tt.tern2)


def f32(*shape: int) -> tt.Spec:
    return tt.Spec(shape)


def bitlinear(x: Any, w: Any, scale: Any, norm: Any = None) -> Any:
    return tt.quantized_matmul(x if norm is None else tt.rms_norm(x, norm), w, scale)


def attention(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (t.reshape(TOKENS, HEADS, WIDTH // HEADS).permute_dims((1, 0, 2)) for t in (q, k, v))
    scores = q @ k.mT * (WIDTH // HEADS) ** -0.5
    mask = tt.where(tt.tril(tt.ones((TOKENS, TOKENS))) > 0.0, 0.0, -1e30)
    return (tt.softmax(scores + mask) @ v).permute_dims((1, 0, 2)).reshape(TOKENS, WIDTH)


def transformer_block(x: Any, norms: Any, q: Any, k: Any, v: Any, o: Any, gate: Any, up: Any, down: Any, s: Any) -> Any:
    h = tt.rms_norm(x, norms[0])
    mixed = attention(bitlinear(h, q, s), bitlinear(h, k, s), bitlinear(h, v, s))
    x = x + bitlinear(mixed, o, s, norms[1])
    h = tt.rms_norm(x, norms[2])
    return x + bitlinear(tt.relu2(bitlinear(h, gate, s)) * bitlinear(h, up, s), down, s)


def bitlinear_mlp(x: Any, up: Any, down: Any, s: Any, norm: Any, bias: Any) -> Any:
    h = tt.silu(bitlinear(x, up, s, norm) + bias)
    return bitlinear(h, down, s) + x


def einsum_network(x: Any, a: Any, b: Any, c: Any) -> Any:
    h = tt.einsum("bi,ij,jk->bk", x, a, b)
    scores = tt.einsum("bk,ck->bc", tt.tanh(h), c)
    return tt.einsum("bc,ck->bk", tt.softmax(scores), c)


NETWORKS: dict[str, tuple[Callable[..., Any], tuple[tt.Spec, ...]]] = {
    "transformer_block": (
        transformer_block,
        (f32(TOKENS, WIDTH), f32(3, WIDTH), *[tern(WIDTH, WIDTH)] * 4, tern(HIDDEN, WIDTH), tern(HIDDEN, WIDTH),
         tern(WIDTH, HIDDEN), f32()),
    ),
    "bitlinear_mlp": (
        bitlinear_mlp,
        (f32(1, WIDTH), tern(HIDDEN, WIDTH), tern(WIDTH, HIDDEN), f32(), f32(WIDTH), f32(HIDDEN)),
    ),
    "einsum_network": (einsum_network, (f32(8, 32), f32(32, 128), f32(128, 16), f32(10, 16))),
}  # fmt: skip


def text(name: str) -> str:
    fn, specs = NETWORKS[name]
    simple = simplify(tt.trace(fn, *specs), lambda n, xs: run_node(n, xs, tt.device("cpu")))
    return str(fuse(simple.graph, lambda _: None).graph) + "\n"


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_is_the_one_that_was_looked_at(name: str) -> None:
    assert text(name) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for network in NETWORKS:
        (GOLDEN / f"{network}.txt").write_text(text(network), encoding="utf-8")

"""Computes what 1, 8 and 64 GPUs give for decoders of 2B, 8B, 27B and 70B: from measured products and stated speeds of links.

Nothing is measured here. A product's time is a + b · weights, fitted to the times in docs/results of one token on an H200; what a layer
needs besides its products is what the measured step of the 2B model leaves of them. Every rank has the heads and rows that
`tritium.parallel` gives it, and four gathers a layer, whose latency and bandwidth are those stated in `LINKS`.

    python bench/scale.py              the table of docs/scale.md
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tritium.perf.records import speed

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CONTEXT = 4096  # tokens whose keys and values are read
HEAD_BYTES = 2  # of a weight of the output head, f16
PACKED = 0.25  # bytes of a ternary weight


class Shape(NamedTuple):
    """A dense decoder."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Return rows and columns of the products of a layer: Q, K and V; out; gate and up; down."""
        width = self.heads * self.head_dim
        kv = 2 * self.kv_heads * self.head_dim
        inner = self.intermediate
        return (width + kv, self.hidden), (self.hidden, width), (2 * inner, self.hidden), (self.hidden, inner)

    @property
    def gathered(self) -> tuple[int, ...]:
        """Return the numbers that are gathered in a layer: of attention, of its output, of the MLP, of its output."""
        return self.heads * self.head_dim, self.hidden, self.intermediate, self.hidden

    @property
    def weights(self) -> int:
        return self.layers * sum(n * k for n, k in self.matrices)


SHAPES = {
    "2B": Shape(30, 2560, 6912, 20, 5, 128, 128256),
    "8B": Shape(36, 4096, 12288, 32, 8, 128, 151936),
    "27B": Shape(64, 5120, 17408, 40, 8, 128, 151936),
    "70B": Shape(80, 8192, 28672, 64, 8, 128, 128256),
}


class Link(NamedTuple):
    """A gather between GPUs: stated, not measured."""

    name: str
    latency_us: float  # of a small one
    bytes_a_us: float  # that a GPU receives


LINKS = {
    1: Link("none", 0.0, float("inf")),
    8: Link("NVLink 4, one machine", 8.0, 450e3),
    64: Link("InfiniBand NDR, 8 machines", 25.0, 50e3),
}


@dataclass(frozen=True)
class Fit:
    """Times of a product of one token, in µs: start + each · weights."""

    start: float
    each: float
    layer: float  # what a layer needs besides its products

    @property
    def bytes_a_us(self) -> float:
        return PACKED / self.each


def _median(name: str, labels: tuple[str, ...], figure: str) -> float:
    """Return the median of a figure of one row of a results file."""
    row = next(r for r in speed.load(RESULTS / f"{name}.json").rows if r.labels == labels)
    return float(row.figures[figure].median)


def fit() -> Fit:
    """Return the times of products, and of the rest of a layer, as measured."""
    points = []
    for name in ("cuda-products", "cuda-random"):
        for row in speed.load(RESULTS / f"{name}.json").rows:
            tokens, shape = row.labels
            if tokens == "1":
                n, k = map(int, shape.partition(",")[0].split("×"))  # a draw also names its tokens
                points.append((n * k, row.figures["tritium"].median))
    weights, times = np.array(points, float).T
    each, start = np.polyfit(weights, times, 1, w=1 / times)
    step = _median("cuda-model", ("bitnet-2b-4t", "128", "1"), "step")
    chain = _median("cuda-chain", ("tritium",), "time")
    small = SHAPES["2B"]
    head = small.vocab * small.hidden * HEAD_BYTES / (PACKED / each)
    return Fit(float(start), float(each), (step - chain - head) / small.layers)


def step_us(shape: Shape, ranks: int, known: Fit) -> float:
    """Return the time of a token of one sequence over so many GPUs."""
    products = sum(known.start + known.each * n * k / ranks for n, k in shape.matrices)
    kv = 2 * min(shape.kv_heads, max(shape.kv_heads / ranks, 1)) * shape.head_dim * CONTEXT * 2 / known.bytes_a_us
    link = LINKS[ranks]
    gathers = (
        sum(link.latency_us + 4 * n * (ranks - 1) / ranks / link.bytes_a_us for n in shape.gathered)
        if ranks > 1
        else 0.0
    )
    head = shape.vocab * shape.hidden * HEAD_BYTES / ranks / known.bytes_a_us + (link.latency_us if ranks > 1 else 0.0)
    return shape.layers * (products + known.layer + kv + gathers) + head


def table() -> str:
    """Return the table of docs/scale.md."""
    known = fit()
    lines = [
        "| shape | GPUs | as | weights on a GPU | µs a token | tokens/s of one sequence | of all replicas |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, shape in SHAPES.items():
        for gpus, ranks in ((1, 1), (8, 8), (64, 64), (64, 8), (64, 1)):
            if ranks > shape.heads:
                continue  # a rank would have no head
            replicas = gpus // ranks
            step = step_us(shape, ranks, known)
            gib = (shape.weights * PACKED + shape.vocab * shape.hidden * HEAD_BYTES) / ranks / 2**30
            how = f"{replicas} × {ranks}" if replicas > 1 else f"{ranks} rank{'s' * (ranks > 1)}"
            lines.append(
                f"| {name} | {gpus} | {how} | {gib:.2f} GiB | {step:,.0f} | {1e6 / step:,.0f} | {replicas * 1e6 / step:,.0f} |"
            )
    return "\n".join(lines)


def main() -> int:
    known = fit()
    print(
        f"a product of one token: {known.start:.2f} µs + {1e6 * known.each:.4f} µs for a million weights ({known.bytes_a_us / 1e6:.2f} TB/s)"
    )
    print(f"the rest of a layer: {known.layer:.2f} µs")
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())

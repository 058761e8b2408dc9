"""Boxes in layers: where each stands, so that edges lead down, few of them cross and most run straight.

Knows nothing of graphs or of drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

MARGIN = 28.0
BEND = "bend"  # the look of what is only a point of an edge
_SPACE = 26.0
_MANY = 3000  # boxes and bends: from here on fewer rounds, so that the time stays short


@dataclass(slots=True, eq=False)
class Box:
    """Something with a place: a node, an output, or the bend of an edge that passes a layer."""

    look: str
    title: str = ""
    name: str = ""
    lines: tuple[str, ...] = ()
    tip: str = ""
    layer: int = 0
    x: float = 0.0  # of its middle
    y: float = 0.0  # of its top
    width: float = 10.0
    height: float = 0.0


@dataclass(slots=True, eq=False)
class Edge:
    """From a box to one further down; `port` says where it enters, from -0.5 (left) to 0.5."""

    source: Box
    target: Box
    port: float = 0.0
    label: str = ""


class Placed(NamedTuple):
    """The boxes of each layer from left to right, the edges between neighbouring layers, and each layer's top and bottom."""

    layers: list[list[Box]]
    edges: list[Edge]
    bands: list[tuple[float, float]]


def place(boxes: list[Box], edges: list[Edge], longest: int, copy: Callable[[Box], Box]) -> Placed:
    """Give every box its place. An edge that passes more than `longest` layers starts from a copy of its source."""
    boxes = list(boxes)
    _set_layers(boxes, edges)
    _shorten(boxes, edges, longest, copy)
    edges = _bend(boxes, edges)
    layers = _ordered(boxes, edges)
    _set_x(layers, edges)
    return Placed(layers, edges, _set_y(layers, edges))


def _set_layers(boxes: list[Box], edges: list[Edge]) -> None:
    """Each box right below the lowest it reads; what reads nothing right above the highest that reads it."""
    reads: dict[Box, list[Box]] = {b: [] for b in boxes}
    for e in edges:
        reads[e.target].append(e.source)
    for b in _topological(boxes, reads):
        b.layer = 1 + max((s.layer for s in reads[b]), default=-1)
    first: dict[Box, int] = {}
    for e in edges:
        first[e.source] = min(first.get(e.source, e.target.layer), e.target.layer)
    for b in boxes:
        if not reads[b] and b in first:
            b.layer = first[b] - 1


def _topological(boxes: list[Box], reads: Mapping[Box, list[Box]]) -> list[Box]:
    """Boxes come in order but for numbers that stand alone, which read nothing."""
    return sorted(boxes, key=lambda b: bool(reads[b]))


def _shorten(boxes: list[Box], edges: list[Edge], longest: int, copy: Callable[[Box], Box]) -> None:
    """An edge that would pass many layers starts from a small copy of its source instead."""
    copies: dict[tuple[Box, int], Box] = {}
    for e in edges:
        if e.target.layer - e.source.layer <= longest:
            continue
        key = (e.source, e.target.layer - 1)
        if key not in copies:
            copies[key] = copy(e.source)
            copies[key].layer = key[1]
            boxes.append(copies[key])
        e.source = copies[key]


def _bend(boxes: list[Box], edges: list[Edge]) -> list[Edge]:
    """Edges between neighbouring layers only: a longer one bends in every layer it passes, with others of its source."""
    bends: dict[tuple[Box, str, int], Box] = {}
    out: list[Edge] = []
    for e in edges:
        above = e.source
        for layer in range(e.source.layer + 1, e.target.layer):
            key = (e.source, e.label, layer)
            bend = bends.get(key)
            if bend is None:
                bend = bends[key] = Box(BEND, layer=layer)
                boxes.append(bend)
                out.append(Edge(above, bend))
            above = bend
        out.append(Edge(above, e.target, e.port, e.label))
    return out


Near = dict[Box, list[tuple[Box, float]]]  # what a box is joined to, and where the edge enters


def _ordered(boxes: list[Box], edges: list[Edge]) -> list[list[Box]]:
    """The boxes of each layer from left to right, such that few edges cross: each near the middle of its neighbours."""
    layers: list[list[Box]] = [[] for _ in range(1 + max((b.layer for b in boxes), default=-1))]
    for b in boxes:
        layers[b.layer].append(b)
    up: Near = {b: [] for b in boxes}
    down: Near = {b: [] for b in boxes}
    for e in edges:
        up[e.target].append((e.source, 0.0))
        down[e.source].append((e.target, e.port))
    place = {b: float(i) for layer in layers for i, b in enumerate(layer)}
    for sweep in range(13 if len(boxes) < _MANY else 5):
        near, rows = (up, layers) if sweep % 2 == 0 else (down, layers[::-1])
        for layer in rows:
            middle = {b: _mean([place[n] + p for n, p in near[b]], place[b]) for b in layer}
            layer.sort(key=middle.__getitem__)
            for i, b in enumerate(layer):
                place[b] = float(i)
    for _ in range(12 if len(boxes) < _MANY else 2):
        if not sum([_exchange(layer, place, up, down) for layer in layers]):
            break
    return layers


def _exchange(layer: list[Box], place: dict[Box, float], up: Near, down: Near) -> bool:
    """Neighbours change places where that leaves fewer crossings; whether any did."""
    found = False
    for i in range(len(layer) - 1):
        a, b = layer[i], layer[i + 1]
        before = sum(_crossings(near[a], near[b], place) for near in (up, down))
        if before and sum(_crossings(near[b], near[a], place) for near in (up, down)) < before:
            layer[i], layer[i + 1] = b, a
            place[a], place[b] = place[b], place[a]
            found = True
    return found


def _crossings(left: list[tuple[Box, float]], right: list[tuple[Box, float]], place: Mapping[Box, float]) -> int:
    """How many edges of a box cross those of the one to its right."""
    ends = [place[n] + p for n, p in right]
    return sum(place[n] + p > end for n, p in left for end in ends)


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _set_x(layers: list[list[Box]], edges: list[Edge]) -> None:
    """Boxes near what they read and what reads them, in their order, without touching."""
    up: dict[Box, list[Edge]] = {b: [] for layer in layers for b in layer}
    down: dict[Box, list[Edge]] = {b: [] for layer in layers for b in layer}
    for e in edges:
        up[e.target].append(e)
        down[e.source].append(e)
    for layer in layers:
        _spread(layer, [0.0] * len(layer), [1.0] * len(layer))
    for sweep in range(16 if len(up) < _MANY else 6):
        rows = layers if sweep % 2 == 0 else layers[::-1]
        last = sweep >= (12 if len(up) < _MANY else 4)
        for layer in rows:
            wanted, weights = [], []
            for b in layer:
                above = _pull(b, up)
                below = [e.target.x + e.port * e.target.width for e in down[b]]
                use = above + below if last else above if sweep % 2 == 0 else below
                wanted.append(_mean(use, b.x))
                weights.append(1.0 if up[b] else 0.02)  # inputs give way
            _spread(layer, wanted, weights)
    _straighten(layers, up, down)
    left = min((b.x - b.width / 2 for layer in layers for b in layer), default=0.0)
    for layer in layers:
        for b in layer:
            b.x += MARGIN - left


def _pull(b: Box, up: Mapping[Box, list[Edge]]) -> list[float]:
    """Where what a box reads would have it: what was computed counts, inputs only where there is nothing else."""
    computed = [e for e in up[b] if up[e.source]]
    return [e.source.x - e.port * b.width for e in computed or up[b]]


def _spread(layer: list[Box], wanted: list[float], weights: list[float]) -> None:
    """The places nearest to those wanted (least squares) that keep order and distance: neighbours that are too close
    move as one block."""
    blocks: list[list[float]] = []  # middle, weight, how many
    offset = 0.0
    offsets = []
    for i, b in enumerate(layer):
        if i:
            offset += (layer[i - 1].width + b.width) / 2 + _SPACE
        offsets.append(offset)
        blocks.append([wanted[i] - offset, weights[i], 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            at, weight, count = blocks.pop()
            before = blocks[-1]
            before[0] = (before[0] * before[1] + at * weight) / (before[1] + weight)
            before[1] += weight
            before[2] += count
    i = 0
    for at, _, count in blocks:
        for _ in range(int(count)):
            layer[i].x = at + offsets[i]
            i += 1


def _straighten(layers: list[list[Box]], up: Mapping[Box, list[Edge]], down: Mapping[Box, list[Edge]]) -> None:
    """Boxes and bends that follow one another without a branch stand exactly below each other, where there is room."""
    place = {b: i for layer in layers for i, b in enumerate(layer)}
    chains = _chains(place, up, down)

    def room(b: Box) -> tuple[float, float]:
        layer, i = layers[b.layer], place[b]
        low = layer[i - 1].x + (layer[i - 1].width + b.width) / 2 + _SPACE if i else -1e9
        high = layer[i + 1].x - (layer[i + 1].width + b.width) / 2 - _SPACE if i + 1 < len(layer) else 1e9
        return low, high

    for sweep in range(6):
        for chain in chains if sweep % 2 == 0 else chains[::-1]:
            part: list[Box] = []
            low, high = -1e9, 1e9
            for b in chain:
                left, right = room(b)
                if max(low, left) > min(high, right):
                    _align(part, low, high, up, down)
                    part, low, high = [], -1e9, 1e9
                    left, right = room(b)
                part.append(b)
                low, high = max(low, left), min(high, right)
            _align(part, low, high, up, down)


def _chains(boxes: Iterable[Box], up: Mapping[Box, list[Edge]], down: Mapping[Box, list[Edge]]) -> list[list[Box]]:
    """Boxes each of which is the only computed operand of the next, and its only reader; and bends of one edge."""
    computed = {b: sum(bool(up[e.source]) for e in up[b]) for b in up}
    chains: list[list[Box]] = []
    taken: set[Box] = set()
    for b in boxes:
        chain: list[Box] = []
        while b not in taken:
            taken.add(b)
            chain.append(b)
            after = [e.target for e in down[b] if len(up[e.target]) == 1 or (computed[e.target] == 1 and up[b])]
            bends = [t for t in after if t.look == BEND]
            if b.look == BEND and bends:
                b = bends[0]
            elif len(down[b]) == 1 and after:
                b = after[0]
        chains.append(chain)
    return chains


def _align(
    part: list[Box], low: float, high: float, up: Mapping[Box, list[Edge]], down: Mapping[Box, list[Edge]]
) -> None:
    """One x for all: where the boxes at its ends pull it."""
    if part and low <= high:
        above = _pull(part[0], up)
        below = [e.target.x + e.port * e.target.width for e in down[part[-1]]]
        middle = sum(b.x for b in part) / len(part)
        x = min(max(_mean(above + below, middle), low), high)
        for b in part:
            b.x = x


def _set_y(layers: list[list[Box]], edges: list[Edge]) -> list[tuple[float, float]]:
    """The top and bottom of each layer. The gap below one grows with how far its edges lean."""
    lean = [0.0] * len(layers)
    for e in edges:
        run = abs(e.target.x + e.port * e.target.width - e.source.x)
        lean[e.source.layer] = max(lean[e.source.layer], run, 200.0 if e.label else 0.0)
    bands: list[tuple[float, float]] = []
    y = MARGIN
    for layer, far in zip(layers, lean, strict=True):
        tall = max(b.height for b in layer)
        for b in layer:
            b.y = y + (tall - b.height) / 2
        bands.append((y, y + tall))
        y += tall + min(90.0, 34 + 0.1 * far)
    return bands

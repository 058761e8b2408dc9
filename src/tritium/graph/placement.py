"""A layered layout: positions of boxes such that edges lead down, few of them cross and most are straight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

MARGIN = 28.0
BEND = "bend"  # the look of a box that is only a point of an edge
_SPACE = 26.0
_MANY = 3000  # boxes and bends; above this, fewer rounds, to bound the time


@dataclass(slots=True, eq=False)
class Box:
    """A box with a position: a node, an output, or the bend of an edge that passes a layer."""

    look: str
    title: str = ""
    name: str = ""
    lines: tuple[str, ...] = ()
    tip: str = ""
    layer: int = 0
    x: float = 0.0  # of its centre
    y: float = 0.0  # of its top
    width: float = 10.0
    height: float = 0.0


@dataclass(slots=True, eq=False)
class Edge:
    """An edge from a box to a lower one; `port`: the point it enters at, from -0.5 (left) to 0.5."""

    source: Box
    target: Box
    port: float = 0.0
    label: str = ""


class Placed(NamedTuple):
    """A finished layout: boxes of each layer from left to right, edges between neighbouring layers, top and bottom of layers."""

    layers: list[list[Box]]
    edges: list[Edge]
    bands: list[tuple[float, float]]


def place(boxes: list[Box], edges: list[Edge], longest: int, copy: Callable[[Box], Box]) -> Placed:
    """Set the position of every box. An edge that passes more than `longest` layers starts from a copy of its source."""
    boxes = list(boxes)
    _set_layers(boxes, edges)
    _shorten(boxes, edges, longest, copy)
    edges = _bend(boxes, edges)
    layers = _order(boxes, edges)
    _set_x(layers, edges)
    return Placed(layers, edges, _set_y(layers, edges))


def _set_layers(boxes: list[Box], edges: list[Edge]) -> None:
    """Put each box right below its lowest source, and a box without sources right above its highest reader."""
    reads: dict[Box, list[Box]] = {b: [] for b in boxes}
    for e in edges:
        reads[e.target].append(e.source)
    for b in _sort_sources_first(boxes, reads):
        b.layer = 1 + max((s.layer for s in reads[b]), default=-1)
    first: dict[Box, int] = {}
    for e in edges:
        first[e.source] = min(first.get(e.source, e.target.layer), e.target.layer)
    for b in boxes:
        if not reads[b] and b in first:
            b.layer = first[b] - 1


def _sort_sources_first(boxes: list[Box], reads: Mapping[Box, list[Box]]) -> list[Box]:
    """Return boxes without sources first; the others are in topological order already."""
    return sorted(boxes, key=lambda b: bool(reads[b]))


def _shorten(boxes: list[Box], edges: list[Edge], longest: int, copy: Callable[[Box], Box]) -> None:
    """Start edges that would pass many layers from a small copy of their source."""
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
    """Split edges at every layer they pass; edges of one source and label share the bends."""
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


Near = dict[Box, list[tuple[Box, float]]]  # the neighbours of a box, and the port of each edge


def _order(boxes: list[Box], edges: list[Edge]) -> list[list[Box]]:
    """Return the boxes of each layer from left to right, each near the mean of its neighbours, so that few edges cross."""
    layers: list[list[Box]] = [[] for _ in range(1 + max((b.layer for b in boxes), default=-1))]
    for b in boxes:
        layers[b.layer].append(b)
    up: Near = {b: [] for b in boxes}
    down: Near = {b: [] for b in boxes}
    for e in edges:
        up[e.target].append((e.source, 0.0))
        down[e.source].append((e.target, e.port))
    position = {b: float(i) for layer in layers for i, b in enumerate(layer)}
    for sweep in range(13 if len(boxes) < _MANY else 5):
        near, sweep_layers = (up, layers) if sweep % 2 == 0 else (down, layers[::-1])
        for layer in sweep_layers:
            middle = {b: _mean([position[n] + p for n, p in near[b]], position[b]) for b in layer}
            layer.sort(key=middle.__getitem__)
            for i, b in enumerate(layer):
                position[b] = float(i)
    for _ in range(12 if len(boxes) < _MANY else 2):
        if not sum([_exchange(layer, position, up, down) for layer in layers]):
            break
    return layers


def _exchange(layer: list[Box], position: dict[Box, float], up: Near, down: Near) -> bool:
    """Swap neighbours where that leaves fewer crossings; return True if any were swapped."""
    changed = False
    for i in range(len(layer) - 1):
        a, b = layer[i], layer[i + 1]
        before = sum(_count_crossings(near[a], near[b], position) for near in (up, down))
        if before and sum(_count_crossings(near[b], near[a], position) for near in (up, down)) < before:
            layer[i], layer[i + 1] = b, a
            position[a], position[b] = position[b], position[a]
            changed = True
    return changed


def _count_crossings(
    left: list[tuple[Box, float]], right: list[tuple[Box, float]], position: Mapping[Box, float]
) -> int:
    """Count the edges of a box that cross those of the one to its right."""
    ends = [position[n] + p for n, p in right]
    return sum(position[n] + p > end for n, p in left for end in ends)


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _set_x(layers: list[list[Box]], edges: list[Edge]) -> None:
    """Set x of all boxes: near their sources and readers, in the order of their layer, without overlap."""
    up: dict[Box, list[Edge]] = {b: [] for layer in layers for b in layer}
    down: dict[Box, list[Edge]] = {b: [] for layer in layers for b in layer}
    for e in edges:
        up[e.target].append(e)
        down[e.source].append(e)
    for layer in layers:
        _spread(layer, [0.0] * len(layer), [1.0] * len(layer))
    for sweep in range(16 if len(up) < _MANY else 6):
        sweep_layers = layers if sweep % 2 == 0 else layers[::-1]
        last = sweep >= (12 if len(up) < _MANY else 4)
        for layer in sweep_layers:
            targets, weights = [], []
            for b in layer:
                above = _pull(b, up)
                below = [e.target.x + e.port * e.target.width for e in down[b]]
                pulls = above + below if last else above if sweep % 2 == 0 else below
                targets.append(_mean(pulls, b.x))
                weights.append(1.0 if up[b] else 0.02)  # inputs yield to computed boxes
            _spread(layer, targets, weights)
    _straighten(layers, up, down)
    left = min((b.x - b.width / 2 for layer in layers for b in layer), default=0.0)
    for layer in layers:
        for b in layer:
            b.x += MARGIN - left


def _pull(b: Box, up: Mapping[Box, list[Edge]]) -> list[float]:
    """Return the x at which each source would put a box; inputs count only if no source is computed."""
    computed = [e for e in up[b] if up[e.source]]
    return [e.source.x - e.port * b.width for e in computed or up[b]]


@dataclass(slots=True)
class _Block:
    """Neighbouring boxes that move as one."""

    middle: float
    weight: float
    count: int = 1


def _spread(layer: list[Box], targets: list[float], weights: list[float]) -> None:
    """Set x nearest to the targets (weighted least squares) such that order and distance are kept.

    Neighbours that are too close move as one block.
    """
    blocks: list[_Block] = []
    offset = 0.0
    offsets = []
    for i, b in enumerate(layer):
        if i:
            offset += (layer[i - 1].width + b.width) / 2 + _SPACE
        offsets.append(offset)
        blocks.append(_Block(targets[i] - offset, weights[i]))
        while len(blocks) > 1 and blocks[-2].middle >= blocks[-1].middle:
            right, left = blocks.pop(), blocks[-1]
            left.middle = (left.middle * left.weight + right.middle * right.weight) / (left.weight + right.weight)
            left.weight += right.weight
            left.count += right.count
    i = 0
    for block in blocks:
        for _ in range(block.count):
            layer[i].x = block.middle + offsets[i]
            i += 1


def _straighten(layers: list[list[Box]], up: Mapping[Box, list[Edge]], down: Mapping[Box, list[Edge]]) -> None:
    """Align chains of boxes and bends without branches exactly below each other, where there is room."""
    index = {b: i for layer in layers for i, b in enumerate(layer)}
    chains = _chains(index, up, down)

    def room(b: Box) -> tuple[float, float]:
        layer, i = layers[b.layer], index[b]
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
    """Return runs of boxes, each the only computed source of the next and read by it alone, and runs of bends of one edge."""
    computed = {b: sum(bool(up[e.source]) for e in up[b]) for b in up}
    chains: list[list[Box]] = []
    visited: set[Box] = set()
    for b in boxes:
        chain: list[Box] = []
        while b not in visited:
            visited.add(b)
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
    """Set one x for all boxes of a run: the mean of what its ends are connected to."""
    if part and low <= high:
        above = _pull(part[0], up)
        below = [e.target.x + e.port * e.target.width for e in down[part[-1]]]
        middle = sum(b.x for b in part) / len(part)
        x = min(max(_mean(above + below, middle), low), high)
        for b in part:
            b.x = x


def _set_y(layers: list[list[Box]], edges: list[Edge]) -> list[tuple[float, float]]:
    """Set y of all boxes; return the top and bottom of each layer. The gap below one grows with the slant of its edges."""
    lean = [0.0] * len(layers)
    for e in edges:
        run = abs(e.target.x + e.port * e.target.width - e.source.x)
        lean[e.source.layer] = max(lean[e.source.layer], run, 200.0 if e.label else 0.0)
    bands: list[tuple[float, float]] = []
    y = MARGIN
    for layer, distance in zip(layers, lean, strict=True):
        height = max(b.height for b in layer)
        for b in layer:
            b.y = y + (height - b.height) / 2
        bands.append((y, y + height))
        y += height + min(90.0, 34 + 0.1 * distance)
    return bands

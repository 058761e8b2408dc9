"""The nesting of spans: parents, own time, and the call tree.

A span's own time is its time minus that of the spans directly inside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tritium.see.trace.timeline import Column, Timeline


def parents(t: Timeline) -> Column:
    """Return for every span the index of the one that directly encloses it; -1: none."""
    out = np.full(len(t), -1, np.int64)
    open_: list[int] = []
    lane = -1
    starts, ends, lanes = t.start_ns.tolist(), t.end_ns.tolist(), t.lane.tolist()
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if lanes[i] != lane:
            open_, lane = [], lanes[i]
        while open_ and (ends[open_[-1]] < end or ends[open_[-1]] <= start):
            open_.pop()
        if open_:
            out[i] = open_[-1]
        open_.append(i)
    return out


def own_ns(t: Timeline, above: Column | None = None) -> Column:
    """Return the own time of every span; `above`: its parents, if already computed."""
    above = parents(t) if above is None else above
    out = t.elapsed_ns.copy()
    inside = above >= 0
    np.subtract.at(out, above[inside], t.elapsed_ns[inside])
    return np.maximum(out, 0)


@dataclass
class Node:
    """A node of the call tree: all spans of one name with the same path."""

    name: str
    total_ns: int = 0
    own_ns: int = 0
    count: int = 0
    children: dict[str, Node] = field(default_factory=dict)

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
        """Iterate over the nodes below this one with their paths, the longest first among siblings."""
        todo = [((*path, c.name), c) for c in self._sorted()]
        while todo:
            prefix, node = todo.pop()
            yield prefix, node
            todo += [((*prefix, c.name), c) for c in node._sorted()]

    def _sorted(self) -> list[Node]:
        return sorted(self.children.values(), key=lambda c: (c.total_ns, c.name))


def tree(t: Timeline) -> Node:
    """Return the call tree of a timeline; with several lanes, they are its first level."""
    root = Node("all")
    above, own = parents(t).tolist(), own_ns(t).tolist()
    elapsed, what, lane = t.elapsed_ns.tolist(), t.what.tolist(), t.lane.tolist()
    by_lane = len(set(lane)) > 1
    tops = {i: root.children.setdefault(t.lanes[i], Node(t.lanes[i])) if by_lane else root for i in sorted(set(lane))}
    nodes: list[Node] = []
    for i, parent in enumerate(above):
        caller = nodes[parent] if parent >= 0 else tops[lane[i]]
        name = t.whats[what[i]].name
        node = caller.children.get(name)
        if node is None:
            node = caller.children[name] = Node(name)
        node.total_ns += elapsed[i]
        node.own_ns += own[i]
        node.count += 1
        nodes.append(node)
        if parent < 0:
            root.total_ns += elapsed[i]
            if by_lane:
                tops[lane[i]].total_ns += elapsed[i]
    return root

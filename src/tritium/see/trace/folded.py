"""Folded stacks, `a;b;c 123`: what flamegraph.pl, inferno, speedscope and difffolded.pl read.

Knows nothing of drawing. A line is a way into the program and the ns spent there itself; two columns are before and
after. A name with a separator in it gets another character there: a line has the frames it says.
"""

from __future__ import annotations

from tritium import escape
from tritium.see.trace.timeline import Samples, Timeline
from tritium.see.trace.tree import Node, tree

SEPARATORS = str.maketrans({";": ":", " ": "_"})


def text(t: Timeline) -> str:
    """Every stack with its own ns, in order; the first frame is the lane where there are several."""
    return of_tree(tree(t))


def two_column(a: Timeline, b: Timeline) -> str:
    """Every stack with its own ns before and after: 0 where it was not there."""
    apart = len(set(a.lane.tolist())) > 1 or len(set(b.lane.tolist())) > 1
    before, after = (_stacks(_with_lanes(t) if apart else tree(t)) for t in (a, b))
    ways = sorted({*before, *after})
    return "".join(f"{way} {before.get(way, 0)} {after.get(way, 0)}\n" for way in ways)


def of_tree(root: Node) -> str:
    """The stacks of a call tree."""
    return "".join(f"{way} {own}\n" for way, own in sorted(_stacks(root).items()))


def sampled(samples: Samples) -> Node:
    """The call tree of Python stacks; a sample stands for the time between two."""
    root = Node("Python stacks")
    for which in samples.stack.tolist():
        root.total_ns += samples.every_ns
        node = root
        for frame in samples.stacks[which]:
            name = samples.frames[frame]
            node = node.children.setdefault(name, Node(name))
            node.total_ns += samples.every_ns
            node.count += 1
        node.own_ns += samples.every_ns
    return root


def frame(name: str) -> str:
    """A name as one frame of a line."""
    return escape.visible(name).translate(SEPARATORS).strip("_") or "(unnamed)"


def _stacks(root: Node) -> dict[str, int]:
    """Own ns by way; ways whose names look the same are one."""
    found: dict[str, int] = {}
    for path, node in root.walk():
        if node.own_ns:
            way = ";".join(map(frame, path))
            found[way] = found.get(way, 0) + node.own_ns
    return found


def _with_lanes(t: Timeline) -> Node:
    """The tree under its lanes, also where there is only one: both columns must agree on what the first frame is."""
    root = tree(t)
    lanes = sorted(set(t.lane.tolist()))
    if len(lanes) != 1:
        return root
    name = t.lanes[lanes[0]]
    return Node("all", root.total_ns, 0, 0, {name: Node(name, root.total_ns, 0, 0, root.children)})

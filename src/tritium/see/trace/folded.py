"""Folded stacks, `a;b;c 123`, as read by flamegraph.pl, inferno, speedscope and difffolded.pl.

A line is a stack and its own time in ns; two columns are before and after. Separators inside a name are replaced, so
that a line has the right number of frames.
"""

from __future__ import annotations

from collections.abc import Iterable

from tritium import escape
from tritium.see.trace.timeline import Samples, Timeline
from tritium.see.trace.tree import Node, tree

SEPARATORS = str.maketrans({";": ":", " ": "_"})


def text(t: Timeline) -> str:
    """Return every stack with its own ns, in order; with several lanes, the lane is the first frame."""
    return format_tree(tree(t))


def two_column(a: Timeline, b: Timeline) -> str:
    """Return every stack with its own ns before and after: 0 if it is absent."""
    by_lane = len(set(a.lane.tolist())) > 1 or len(set(b.lane.tolist())) > 1
    before, after = (_stacks(_with_lanes(t) if by_lane else tree(t)) for t in (a, b))
    stacks = sorted({*before, *after})
    return "".join(f"{stack} {before.get(stack, 0)} {after.get(stack, 0)}\n" for stack in stacks)


def format_tree(root: Node) -> str:
    """Return the stacks of a call tree."""
    return "".join(f"{stack} {own}\n" for stack, own in sorted(_stacks(root).items()))


LATE = "(GIL held by a native call, or no CPU)"  # the frame of time in which no stack could be read


def build_sample_tree(samples: Samples) -> Node:
    """Return the call tree of Python stacks; a sample counts as the time since the one before it.

    The late part of a sample is a frame of its own below the line at which the thread was when it ended.
    """
    root = Node("Python stacks")
    columns = (samples.stack, samples.weight_ns, samples.late_ns)
    for which, weight, late in zip(*(c.tolist() for c in columns), strict=True):
        names = [samples.frames[frame] for frame in samples.stacks[which]]
        _count(root, names, weight - late)
        if late:
            _count(root, [*names, LATE], late)
    return root


def _count(root: Node, names: Iterable[str], ns: int) -> None:
    """Add a time to a stack of the tree."""
    root.total_ns += ns
    node = root
    for name in names:
        node = node.children.setdefault(name, Node(name))
        node.total_ns += ns
        node.count += 1
    node.own_ns += ns


def frame(name: str) -> str:
    """Return a name as one frame of a line."""
    return escape.visible(name).translate(SEPARATORS).strip("_") or "(unnamed)"


def _stacks(root: Node) -> dict[str, int]:
    """Return the own ns by stack; stacks with equal escaped names are merged."""
    totals: dict[str, int] = {}
    for path, node in root.walk():
        if node.own_ns:
            path_text = ";".join(map(frame, path))
            totals[path_text] = totals.get(path_text, 0) + node.own_ns
    return totals


def _with_lanes(t: Timeline) -> Node:
    """Return the tree below its lanes, even if there is only one: both columns need the same first frame."""
    root = tree(t)
    lanes = sorted(set(t.lane.tolist()))
    if len(lanes) != 1:
        return root
    name = t.lanes[lanes[0]]
    return Node("all", root.total_ns, 0, 0, {name: Node(name, root.total_ns, 0, 0, root.children)})

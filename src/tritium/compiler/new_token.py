"""One new token of each sequence, found in a graph: the rows that turn its heads, write its key and value to a donated cache and
attend to what stands there.

Knows nothing of devices. One that has a call for all of them carries them out together.
"""

from __future__ import annotations

from typing import NamedTuple

from tritium import ops
from tritium.compiler.passes import Note
from tritium.graph.graph import Graph, Node
from tritium.op import Kind


class NewToken(NamedTuple):
    """What is read: heads x [batch, 1, heads + 2 kv heads, D] of Q, K and V, their angles, the cache and the places. What others
    read: the cache with the new keys and values, and the attention."""

    x: Node
    cos: Node
    sin: Node
    cache: Node
    places: Node
    update: Node
    attention: Node
    nodes: tuple[Node, ...]  # that it stands for, the attention last

    @property
    def interleaved(self) -> bool:
        return bool(dict(self.nodes[0].attrs)["interleaved"])

    @property
    def scale(self) -> float | None:
        found: float | None = dict(self.attention.attrs)["scale"]
        return found


def note(t: NewToken) -> Note:
    """That it is one call."""
    names = [n.op.name for n in t.nodes if n.op.kind is not Kind.VIEW]
    return Note("new token", "+".join(names), True, f"{len(names)} calls become one")


def new_tokens(graph: Graph) -> list[NewToken]:
    """Every one in a graph, in order."""
    order = graph.order()
    users: dict[Node, set[Node]] = {}
    for n in order:
        for i in n.inputs:
            if i is not None:
                users.setdefault(i, set()).add(n)
    found = (_found(n, graph, users) for n in order if n.op is ops.attention)
    return [t for t in found if t is not None]


def _found(attention: Node, graph: Graph, users: dict[Node, set[Node]]) -> NewToken | None:
    """The one that ends in an attention."""
    q, k, v, places = attention.inputs
    assert q is not None
    assert k is not None
    assert v is not None
    turned, update = q.inputs[:1], k.inputs[:1]
    if places is None or not turned or not update or turned[0] is None or update[0] is None:
        return None
    return _checked(attention, (q, k, v), turned[0], update[0], places, graph, users)


def _checked(
    attention: Node, seen: tuple[Node, Node, Node], turned: Node, update: Node, places: Node, graph: Graph,
    users: dict[Node, set[Node]],
) -> NewToken | None:  # fmt: skip
    if turned.op is not ops.rope or update.op is not ops.update_cache or turned.spec.ndim != 4:
        return None
    (x, cos, sin), (cache, values, where) = turned.inputs, update.inputs
    if x is None or cos is None or sin is None or cache is None or values is None:
        return None
    q, k, v = seen
    heads, shared = q.spec.shape[2], k.spec.shape[1]
    every = heads + 2 * shared
    split = (
        _is_part(q, turned, 2, 0, heads)
        and _is_part(values, turned, 2, heads, every)
        and _is_part(k, update, 1, 0, shared)
        and _is_part(v, update, 1, shared, 2 * shared)
        and turned.spec.shape[1:3] == (1, every)
        and update.spec.shape[1] == 2 * shared
        and dict(turned.attrs)["heads"] == heads + shared
        and where is places
    )
    inner = {turned: {q, values}, values: {update}, q: {attention}, k: {attention}, v: {attention}}
    alone = all(users[n] == by and n not in graph.roots for n, by in inner.items())
    mine = users[update] == {k, v} and users[cache] == {update} and update not in graph.outputs
    donated = any(n is update and graph.inputs[i] is cache for i, n in graph.writes)
    if not (split and alone and mine and donated):
        return None
    return NewToken(x, cos, sin, cache, places, update, attention, (turned, values, update, q, k, v, attention))


def _is_part(n: Node, of: Node, axis: int, first: int, end: int) -> bool:
    """Whether a node is places `first` to `end` along an axis of another, and all of its other axes."""
    if n.op is not ops.index or n.inputs != (of,):
        return False
    want = [(0, size, 1) for size in of.spec.shape]
    want[axis] = (first, end, 1)
    return dict(n.attrs)["key"] == tuple(want)

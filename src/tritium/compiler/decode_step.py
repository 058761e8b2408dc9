"""The attention of a decode step in a graph: the ops that normalise the heads of one new token of each sequence, apply RoPE
to them, write its key and value to a donated KV cache and attend to the cache.

A device that has one call for all of these ops runs them together.
"""

from __future__ import annotations

from typing import NamedTuple

from tritium import ops
from tritium.backends.values.device import HeadNorms
from tritium.compiler.passes import Note
from tritium.graph.graph import Graph, Node
from tritium.op import Kind


class DecodeStep(NamedTuple):
    """The nodes of one attention of a decode step.

    It reads the heads x [batch, 1, heads + 2 kv heads, head_dim] of Q, K and V, the weights of their norms if they have
    any, their angles, the KV cache, and the position of each token in it. Others read the cache with the new keys and
    values, and the attention.
    """

    x: Node
    cos: Node
    sin: Node
    cache: Node
    places: Node
    update: Node
    attention: Node
    nodes: tuple[Node, ...]  # that run as one call, the attention last
    norms: HeadNorms[Node] | None = None

    @property
    def interleaved(self) -> bool:
        rotated = next(n for n in self.nodes if n.op is ops.rope)
        return bool(dict(rotated.attrs)["interleaved"])

    @property
    def scale(self) -> float | None:
        factor: float | None = dict(self.attention.attrs)["scale"]
        return factor


def note(step: DecodeStep) -> Note:
    """Return the note that the ops of a decode step run as one call."""
    names = [n.op.name for n in step.nodes if n.op.kind is not Kind.VIEW]
    return Note("decode step", "+".join(names), True, f"{len(names)} calls become one")


def find_decode_steps(graph: Graph) -> list[DecodeStep]:
    """Return every decode step of a graph, in order."""
    order = graph.order()
    users: dict[Node, set[Node]] = {}
    for n in order:
        for i in n.inputs:
            if i is not None:
                users.setdefault(i, set()).add(n)
    matches = (_match(n, graph, users) for n in order if n.op is ops.attention)
    return [step for step in matches if step is not None]


def _match(attention: Node, graph: Graph, users: dict[Node, set[Node]]) -> DecodeStep | None:
    """Return the decode step that ends in an attention, if there is one."""
    query, key, value, places = attention.inputs
    assert query is not None
    assert key is not None
    assert value is not None
    rotated, update = query.inputs[:1], key.inputs[:1]
    if places is None or not rotated or not update or rotated[0] is None or update[0] is None:
        return None
    return _match_operands(attention, (query, key, value), rotated[0], update[0], places, graph, users)


def _match_operands(
    attention: Node, operands: tuple[Node, Node, Node], rotated: Node, update: Node, places: Node, graph: Graph,
    users: dict[Node, set[Node]],
) -> DecodeStep | None:  # fmt: skip
    if rotated.op is not ops.rope or update.op is not ops.update_cache or rotated.spec.ndim != 4:
        return None
    (x, cos, sin), (cache, values, slots) = rotated.inputs, update.inputs
    if x is None or cos is None or sin is None or cache is None or values is None:
        return None
    q, k, v = operands
    heads, kv_heads = q.spec.shape[2], k.spec.shape[1]
    total = heads + 2 * kv_heads
    is_split = (
        _is_part(q, rotated, 2, 0, heads)
        and _is_part(values, rotated, 2, heads, total)
        and _is_part(k, update, 1, 0, kv_heads)
        and _is_part(v, update, 1, kv_heads, 2 * kv_heads)
        and rotated.spec.shape[1:3] == (1, total)
        and update.spec.shape[1] == 2 * kv_heads
        and dict(rotated.attrs)["heads"] == heads + kv_heads
        and slots is places
        and dict(attention.attrs)["window"] is None
        and dict(rotated.attrs)["size"] is None
    )
    readers = {rotated: {q, values}, values: {update}, q: {attention}, k: {attention}, v: {attention}}
    is_inner_private = all(users[n] == by and n not in graph.roots for n, by in readers.items())
    is_cache_private = users[update] == {k, v} and users[cache] == {update} and update not in graph.outputs
    is_donated = any(n is update and graph.inputs[i] is cache for i, n in graph.writes)
    if not (is_split and is_inner_private and is_cache_private and is_donated):
        return None
    nodes = (rotated, values, update, q, k, v, attention)
    step = DecodeStep(x, cos, sin, cache, places, update, attention, nodes)
    return _with_norms(step, heads, kv_heads, graph, users)


def _with_norms(step: DecodeStep, heads: int, kv_heads: int, graph: Graph, users: dict[Node, set[Node]]) -> DecodeStep:
    """Return a decode step with the norms of the heads of Q and K before it, where nothing else reads them."""
    joined, total = step.x, heads + 2 * kv_heads
    if joined.op is not ops.concat or len(joined.inputs) != 3 or dict(joined.attrs)["axis"] != 2:
        return step
    q, k, v = joined.inputs
    if q is None or k is None or v is None or q.op is not ops.rms_norm or k.op is not ops.rms_norm or not v.inputs:
        return step
    q_heads, k_heads, x = q.inputs[0], k.inputs[0], v.inputs[0]
    if q_heads is None or k_heads is None or x is None or x.spec != joined.spec:
        return step
    is_split = (
        _is_part(q_heads, x, 2, 0, heads)
        and _is_part(k_heads, x, 2, heads, heads + kv_heads)
        and _is_part(v, x, 2, heads + kv_heads, total)
    )
    of_q, of_k = (n.inputs[1] if len(n.inputs) > 1 else None for n in (q, k))
    is_like = all(w is None or w.spec.dtype is x.spec.dtype for w in (of_q, of_k))
    readers = {joined: {step.nodes[0]}, q: {joined}, k: {joined}, v: {joined}, q_heads: {q}, k_heads: {k}}
    is_private = all(users[n] == by and n not in graph.roots for n, by in readers.items())
    if not (is_split and is_like and is_private):
        return step
    norms = HeadNorms(of_q, of_k, dict(q.attrs)["eps"], dict(k.attrs)["eps"])
    return step._replace(x=x, nodes=(q_heads, q, k_heads, k, v, joined, *step.nodes), norms=norms)


def _is_part(n: Node, base: Node, axis: int, first: int, end: int) -> bool:
    """Return True if a node is the slice [first:end] along one axis of another."""
    if n.op is not ops.index or n.inputs != (base,):
        return False
    expected = [(0, size, 1) for size in base.spec.shape]
    expected[axis] = (first, end, 1)
    return dict(n.attrs)["key"] == tuple(expected)

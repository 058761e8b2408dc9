"""Groups of nodes become one `fused` node: one pass over memory instead of several.

Knows nothing of devices: the backend says if it can run a fragment. A node joins the group of its consumers if all of them
are in one group, so there are no cycles between groups. A group has one of four forms:

    elementwise   maps of one shape
    rows          also reductions along the last axis, softmax, norms, quantisation, and values with one number per row
    product       one matrix product, maps of its result's shape after it, and before it a norm and maps of its first
                  operand's shape, unless another group takes them
    codes         a quantiser and the dequantize that alone reads its integers, which are then never stored
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from tritium import dtype as dt, ops
from tritium.compiler.passes import Note
from tritium.fragment import Fragment, Step
from tritium.graph.graph import Graph, Node, Trace
from tritium.layout import axes_of
from tritium.op import Fuse, Kind, Spec, outputs

MAX_INPUTS, MAX_OUTPUTS, MAX_STEPS = 16, 4, 64

Refuses = Callable[[Fragment], str | None]  # the reason why a fragment cannot run as one call; None: it can

NORMS = frozenset({ops.layer_norm, ops.rms_norm})

# Members by names of their own: Python 3.11 takes ten times as long to read one from its enum.
MAP, FOLD, ROW, PRODUCT, CODES, SHAPE = Fuse.MAP, Fuse.FOLD, Fuse.ROW, Fuse.PRODUCT, Fuse.CODES, Fuse.SHAPE
VIEW, SOURCE = Kind.VIEW, Kind.SOURCE


@dataclass(eq=False, slots=True)
class Group:
    """Nodes that will run as one call, last first."""

    shape: tuple[int, ...]
    form: str = "elementwise"
    nodes: list[Node] = field(default_factory=list)
    reads: set[Node] = field(default_factory=set)
    results: int = 1
    product: Node | None = None
    before: set[Node] = field(default_factory=set)  # nodes that compute the product's first operand

    @property
    def has_maps_before(self) -> bool:
        return any(_is_map(n) for n in self.before)


class Opportunity(NamedTuple):
    """Several nodes that can run as one call."""

    nodes: tuple[Node, ...]
    fragment: Fragment
    reason: str  # why it is not applied; "" if it is

    @property
    def form(self) -> str:
        parts = {s.op.fuses for s in self.fragment.steps}
        if CODES in parts:
            return "codes"
        return "product" if PRODUCT in parts else "rows" if parts & {ROW, FOLD} else "elementwise"


class Fused(NamedTuple):
    """The graph with its fused nodes, the origin of its nodes, and all opportunities."""

    graph: Graph
    origin: dict[Node, Node]
    opportunities: list[Opportunity]


# ---- kinds of nodes


def _folds_rows(n: Node) -> bool:
    """Return True for a reduction along the last axis alone."""
    x = n.inputs[0] if n.op.fuses is FOLD else None
    if x is None or not x.spec.ndim:
        return False
    axis = dict(n.attrs)["axis"]
    return axis is not None and axes_of(axis, x.spec.ndim, n.op.name) == (x.spec.ndim - 1,)


def _is_rowwise(n: Node) -> bool:
    x = n.inputs[0] if n.op.fuses is ROW else None
    if x is None or not x.spec.ndim:
        return False
    axis = dict(n.attrs).get("axis", -1)
    return axes_of(axis, x.spec.ndim, n.op.name) == (x.spec.ndim - 1,)


def _is_number_per_row(n: Node) -> bool:
    """Return True for one of several results of a row-wise op that has one number for each row, such as a token's scale."""
    maker = n.inputs[0] if n.op is ops.item else None
    if maker is None or not _is_rowwise(maker):
        return False
    x = maker.inputs[0]
    return x is not None and n.spec.shape == x.spec.shape[:-1]


def _is_product(n: Node) -> bool:
    if n.op is ops.matmul:
        for i in n.inputs:
            if i is not None and (i.spec.dtype is not dt.f32 or len(i.spec.shape) < 2):
                return False
        return bool(dict(n.attrs)["algorithm"] == "blas")
    return n.op.fuses is PRODUCT


def _is_map(n: Node) -> bool:
    return n.op.fuses is MAP and isinstance(n.spec, Spec)


def _is_row_view(n: Node) -> bool:
    """Return True for a view that adds or removes an axis of size 1 at the end."""
    x = n.inputs[0] if n.op.fuses is SHAPE else None
    if x is None:
        return False
    return n.spec.shape == (*x.spec.shape, 1) or x.spec.shape == (*n.spec.shape, 1)


def _quantiser_of(n: Node) -> Node | None:
    """Return the quantiser whose integers a dequantize reads; None for other nodes."""
    q = n.inputs[0] if n.op is ops.dequantize else None
    q = q.inputs[0] if q is not None and q.op is ops.item else q
    return q if q is not None and q.op.fuses is CODES else None


def _is_per_row(n: Node, shape: tuple[int, ...]) -> bool:
    return bool(shape) and n.spec.shape in ((*shape[:-1], 1), shape[:-1]) and shape[-1] != 1


def _start(n: Node) -> Group | None:
    """Return a new group for a node, or None if it cannot be fused."""
    x = n.inputs[0] if n.inputs else None
    if _is_map(n):
        return Group(n.spec.shape)
    if (_folds_rows(n) or _is_rowwise(n)) and x is not None:
        return Group(x.spec.shape, "rows")
    if _is_product(n):
        return Group(n.spec.shape, "product", product=n)
    if _quantiser_of(n) is not None:
        return Group(n.spec.shape, "codes")
    return None


def _joins(n: Node, g: Group, users: list[Node], reduced: set[Node]) -> str | None:
    """Return the form of the group with this node added; None: it cannot join."""
    same = isinstance(n.spec, Spec) and n.spec.shape == g.shape
    if g.form == "codes":
        return "codes" if len(g.nodes) == 1 and _quantiser_of(g.nodes[0]) is n else None
    if g.form == "product":
        return "product" if _is_map(n) and same and all(_is_map(u) and u not in g.before for u in users) else None
    if _is_map(n):
        if same:
            return g.form
        return "rows" if _is_per_row(n, g.shape) and n in reduced else None
    if _folds_rows(n) or _is_rowwise(n):
        x = n.inputs[0]
        return "rows" if x is not None and x.spec.shape == g.shape else None
    return "product" if _is_product(n) and same and g.form == "elementwise" else None


# ---- groups


class _Grouping:
    """The walk from outputs to inputs that forms groups. Products in `bare` get no maps before them."""

    def __init__(self, graph: Graph, refuses: Refuses, bare: set[Node]) -> None:
        self.order = graph.order()
        self.place = {n: i for i, n in enumerate(self.order)}
        self.outputs = set(graph.roots)
        self.refuses, self.bare = refuses, bare
        self.fragments: dict[Any, Fragment] = {}
        self.accepted: dict[Any, bool] = {}  # maps the backend can fuse, by op, dtypes and attributes
        self.users: dict[Node, list[Node]] = {n: [] for n in self.order}
        self.group: dict[Node, Group] = {}
        self.groups: list[Group] = []
        self.reduced: set[Node] = set()  # values with one number per row that come from a reduction
        self.anchored: set[Node] = set()  # products, row-wise ops and the maps of their results, which stay with them
        self.passed: set[Node] = set()  # items, and views of per-row values, which their readers read through
        users = self.users
        for n in self.order:
            for i in n.inputs:
                if i is not None:
                    users[i].append(n)
            if n.inputs:
                self._classify(n)

    def _classify(self, n: Node) -> None:
        """Add a node to the sets it belongs to; its inputs are classified already."""
        fuses, inputs, reduced = n.op.fuses, n.inputs, self.reduced
        is_item = n.op is ops.item
        folds = fuses is FOLD and _folds_rows(n)
        if folds or (is_item and _is_number_per_row(n)) or (not reduced.isdisjoint(inputs) and self._stays_per_row(n)):
            reduced.add(n)
        if folds or _is_product(n) or (fuses is ROW and _is_rowwise(n)) or self._is_anchored(n):
            self.anchored.add(n)
        is_passed = is_item or (fuses is SHAPE and inputs[0] in reduced and _is_row_view(n))
        if is_passed and n not in self.outputs:
            self.passed.add(n)

    def _is_anchored(self, n: Node) -> bool:
        if self.anchored.isdisjoint(n.inputs):
            return False
        return _is_map(n) or n.op is ops.item or n in self.reduced

    def _stays_per_row(self, n: Node) -> bool:
        if _is_row_view(n):
            return True
        return _is_map(n) and any(i in self.reduced and i.spec.shape == n.spec.shape for i in n.inputs if i is not None)

    def real_users(self, n: Node) -> list[Node]:
        """Return the readers of a node; items and views of per-row values are replaced by their own readers."""
        readers, stack = [], list(self.users[n])
        if self.passed.isdisjoint(stack):
            return stack[::-1]
        while stack:
            u = stack.pop()
            if u in self.passed:
                stack += self.users[u]
            else:
                readers.append(u)
        return readers

    def run(self) -> list[Group]:
        for n in reversed(self.order):
            kind = n.op.kind
            if kind is VIEW or kind is SOURCE or (_is_map(n) and not self._accepts(n)):
                continue
            users = self.real_users(n)
            joined = self._common_group(n, users)
            before = joined is not None and self._feeds_product(n, joined, users)
            form = "product" if before else _joins(n, joined, users, self.reduced) if joined else None
            if joined is None or form is None or not self._fits(n, joined):
                joined = _start(n)
                if joined is None:
                    continue
                self.groups.append(joined)
                form = joined.form
            elif before:
                joined.before.add(n)
            elif n in self.outputs:
                joined.results += 1
            self._put(n, joined, form or joined.form)
        return [g for g in self.groups if len(g.nodes) > 1]

    def _feeds_product(self, n: Node, g: Group, users: list[Node]) -> bool:
        """Return True if a norm or map is used only to compute the first operand of the group's product."""
        p = g.product
        if p is None or p.op is not ops.quantized_matmul or n in self.outputs:
            return False
        x, *others = p.inputs
        if any(u is not p and u not in g.before for u in users) or (p in users and (n is not x or n in others)):
            return False
        if n.op in NORMS:
            return users == [p]
        fits = x is not None and _is_map(n) and n.spec.shape == x.spec.shape
        return fits and n not in self.anchored and p not in self.bare

    def _accepts(self, n: Node) -> bool:
        """Return True if the backend can fuse such a map; cached by op, dtypes and attributes."""
        dtypes = [None if i is None else i.spec.dtype.name for i in n.inputs]
        key = (n.op, n.spec.dtype.name, n.key, *dtypes)
        accepted = self.accepted.get(key)
        if accepted is None:
            positions = iter(range(len(n.inputs)))
            inputs = tuple(None if i is None else next(positions) for i in n.inputs)
            specs = tuple(Spec((8,), i.spec.dtype) for i in n.inputs if i is not None)
            step = Step(n.op, inputs, n.attrs, Spec((8,), n.spec.dtype))
            accepted = self.accepted[key] = self.refuses(Fragment(specs, (step,), (len(specs),))) is None
        return accepted

    def _common_group(self, n: Node, users: list[Node]) -> Group | None:
        """Return the group of all users of a node, or None. Several groups are merged if none has other readers."""
        group = self.group
        if len(users) == 1:
            return group.get(users[0])
        groups = list(dict.fromkeys([group.get(u) for u in users]))
        if len(groups) == 1:
            return groups[0]
        if not groups or len(groups) > MAX_OUTPUTS or any(g is None or g.form in ("product", "codes") for g in groups):
            return None
        first, *others = sorted((g for g in groups if g is not None), key=lambda g: -prod(g.shape))
        if not all(self._may_merge(g, first, n) for g in others):
            return None
        for g in others:
            self._merge(g, first)
        return first

    def _may_merge(self, g: Group, into: Group, n: Node) -> bool:
        """Return True if two groups can merge: compatible shapes, within the limits, no readers outside, no cycle."""
        reduces = into.shape != g.shape
        if reduces and not all(m in self.reduced and _is_per_row(m, into.shape) for m in g.nodes):
            return False
        if len(into.reads | g.reads) > MAX_INPUTS or into.results + g.results > MAX_OUTPUTS:
            return False
        if any(self.group.get(u) is not g for m in g.nodes for u in self.real_users(m)):
            return False
        earliest = min(self.place[m] for m in into.nodes)
        return all(r is n or self.place[r] < earliest for r in g.reads)

    def _merge(self, g: Group, into: Group) -> None:
        into.form = "rows" if "rows" in (g.form, into.form) or g.shape != into.shape else into.form
        into.nodes = sorted((*into.nodes, *g.nodes), key=lambda m: -self.place[m])
        into.reads |= g.reads
        into.results += g.results
        for m in g.nodes:
            self.group[m] = into
        self.groups.remove(g)

    def _fits(self, n: Node, g: Group) -> bool:
        room = len(g.nodes) < MAX_STEPS
        if room and len(g.reads) + len(n.inputs) > MAX_INPUTS:
            more = {i for i in n.inputs if i is not None and i.op is not ops.const}
            room = len((g.reads - {n}) | more) <= MAX_INPUTS
        return room and (n not in self.outputs or g.results < MAX_OUTPUTS)

    def _put(self, n: Node, g: Group, form: str) -> None:
        g.form = form
        g.nodes.append(n)
        if form == "product" and _is_product(n):
            g.product = n
        g.reads.discard(n)
        for i in n.inputs:
            if i is not None and i.op is not ops.const:
                g.reads.add(i)
        self.group[n] = g


# ---- from a group to a fragment


class _Writer:
    """A fragment being written: the steps of a group, with the constants, items and row views they need."""

    def __init__(self, members: set[Node], reads_constants: bool) -> None:
        self.members = members
        self.reads_constants = reads_constants  # from memory, like other inputs; else they are steps
        self.inputs: list[Node] = []
        self.steps: list[Node] = []
        self.written: set[Node] = set()

    def is_inside(self, n: Node) -> bool:
        """Return True for a member of the group, and for an item or row view of one."""
        while n.op is ops.item or _is_row_view(n):
            if n in self.members:
                return True
            x = n.inputs[0]
            assert x is not None
            n = x
        return n in self.members

    def add(self, n: Node) -> None:
        for i in n.inputs:
            if i is None or i in self.written:
                continue
            is_step = i.op is ops.const and not self.reads_constants
            if is_step or (i not in self.members and self.is_inside(i)):
                self.add(i)
            elif i not in self.members and i not in self.inputs:
                self.inputs.append(i)
        self.steps.append(n)
        self.written.add(n)

    def fragment(self, results: list[Node], known: dict[Any, Fragment]) -> Fragment:
        """Return the fragment; equal ones are one object, so that what is known of it is found at once."""
        number: dict[Node | None, int | None] = {n: k for k, n in enumerate((*self.inputs, *self.steps))}
        number[None] = None
        operands = [tuple([number[i] for i in n.inputs]) for n in self.steps]
        specs = tuple([i.spec for i in self.inputs])
        outs = tuple([number[r] for r in results])
        key = (specs, outs, tuple([(n.op, ins, n.key, n.spec) for n, ins in zip(self.steps, operands, strict=True)]))
        fragment = known.get(key)
        if fragment is None:
            steps = [Step(n.op, ins, n.attrs, n.spec) for n, ins in zip(self.steps, operands, strict=True)]
            fragment = known[key] = Fragment(specs, tuple(steps), outs)  # type: ignore[arg-type]
        return fragment


def _write(g: Group, results: list[Node], known: dict[Any, Fragment]) -> tuple[Fragment, list[Node]]:
    writer = _Writer(set(g.nodes), reads_constants=g.form == "codes")
    for n in reversed(g.nodes):
        writer.add(n)
    for r in results:
        if r not in writer.written:
            writer.add(r)
    return writer.fragment(results, known), writer.inputs


def pattern(fragment: Fragment) -> str:
    """Return the ops of a fragment as a name, such as matmul+add+gelu."""
    names = fragment.names
    return "+".join(names) if len(names) <= 6 else "+".join((*names[:5], f"{len(names) - 5} more"))


# ---- the pass


def fuse(graph: Graph, refuses: Refuses) -> Fused:
    """Replace every group that the backend accepts by one fused node.

    A refused group is tried smaller: a product without the maps before it, which are then grouped without it; a group
    that is still refused is reduced to its maps.
    """
    opportunities: list[Opportunity] = []
    bare: set[Node] = set()
    while True:
        walk = _Grouping(graph, refuses, bare)
        offers = [_offer(g, walk, refuses) for g in walk.run()]
        too_large = [o for o in offers if o.reason is not None and o.group.has_maps_before]
        if not too_large:
            break
        opportunities += (o.opportunity for o in too_large)
        bare |= {o.group.product for o in too_large if o.group.product is not None}
    parts = [part for o in offers for part in _accept(o, walk, refuses, opportunities)]
    return _rebuild(graph, parts, opportunities)


def _results_of(nodes: list[Node], walk: _Grouping) -> list[Node]:
    """Return the nodes of a group that are read outside it: results, or items of several results."""
    members, out = set(nodes), []
    for n in reversed(nodes):
        several = not isinstance(n.spec, Spec)
        for v in walk.users[n] if several else (n,):
            if v in walk.outputs:
                out.append(v)
                continue
            for u in walk.users[v]:
                if u not in members and _is_outside(u, members, walk):
                    out.append(v)
                    break
    return out


def _is_outside(user: Node, members: set[Node], walk: _Grouping) -> bool:
    """Return True if a reader is outside the group; a row view with readers only inside is not."""
    if user in members:
        return False
    if _is_row_view(user) and user.inputs[0] in walk.reduced and user not in walk.outputs:
        return any(_is_outside(u, members, walk) for u in walk.users[user])
    return True


class _Part(NamedTuple):
    """A group as a fragment, with its inputs and results."""

    fragment: Fragment
    inputs: list[Node]
    results: list[Node]


class _Offer(NamedTuple):
    """A group as a part, and the reason why the backend refuses it."""

    group: Group
    part: _Part
    reason: str | None

    @property
    def opportunity(self) -> Opportunity:
        return Opportunity(tuple(reversed(self.group.nodes)), self.part.fragment, self.reason or "")


def _offer(g: Group, walk: _Grouping, refuses: Refuses) -> _Offer:
    results = _results_of(g.nodes, walk)
    fragment, inputs = _write(g, results, walk.fragments)
    reason = "too many results" if len(results) > MAX_OUTPUTS else None
    reason = reason or ("too many inputs" if len(inputs) > MAX_INPUTS else refuses(fragment))
    return _Offer(g, _Part(fragment, inputs, results), reason)


def _accept(o: _Offer, walk: _Grouping, refuses: Refuses, opportunities: list[Opportunity]) -> list[_Part]:
    if len(o.part.fragment.names) < 2:
        return []
    opportunities.append(o.opportunity)
    if o.reason is None:
        return [o.part]
    if o.group.form in ("elementwise", "codes"):
        return []
    accepted = []
    for g in _maps_of(o.group, walk):
        accepted += _accept(_offer(g, walk, refuses), walk, refuses, opportunities)
    return accepted


def _maps_of(g: Group, walk: _Grouping) -> list[Group]:
    """Return the maps of a refused group, grouped by their consumers."""
    group: dict[Node, Group] = {}
    out: list[Group] = []
    for n in g.nodes:
        if not _is_map(n):
            continue
        users = walk.users[n]
        joined = group.get(users[0]) if users and n not in walk.outputs else None
        if joined is None or any(group.get(u) is not joined for u in users) or joined.shape != n.spec.shape:
            joined = Group(n.spec.shape)
            out.append(joined)
        joined.nodes.append(n)
        group[n] = joined
    return [part for part in out if len(part.nodes) > 1]


def _rebuild(graph: Graph, parts: list[_Part], opportunities: list[Opportunity]) -> Fused:
    """Return the graph with each part as one node, placed after all its inputs."""
    trace = Trace()
    part_of = {r: p for p in parts for r in p.results}
    new: dict[Node, Node] = {}
    origin: dict[Node, Node] = {}
    stack = list(reversed(graph.roots))
    while stack:
        n = stack[-1]
        if n in new:
            stack.pop()
            continue
        part = part_of.get(n)
        missing = [i for i in (n.inputs if part is None else part.inputs) if i is not None and i not in new]
        if missing:
            stack += reversed(missing)
            continue
        stack.pop()
        if part is not None:
            _place_part(part, trace, new, origin)
        else:
            ins = tuple([None if i is None else new[i] for i in n.inputs])
            new[n] = n if ins == n.inputs else Node(n.op, ins, n.attrs, n.spec, n.key)
            origin[new[n]] = n
    done = graph._replace(
        outputs=tuple(new[n] for n in graph.outputs), writes=tuple((i, new[n]) for i, n in graph.writes)
    )
    return Fused(done, origin, opportunities)


def _place_part(part: _Part, trace: Trace, new: dict[Node, Node], origin: dict[Node, Node]) -> None:
    fragment = part.fragment
    node = trace.node(ops.fused, tuple([new[i] for i in part.inputs]), fragment.out, {"body": fragment})
    if len(part.results) == 1:
        (result,) = part.results
        new[result] = node
        origin[node] = result
        return
    for k, r in enumerate(part.results):
        new[r] = trace.node(ops.item, (node,), outputs(fragment.out)[k], {"index": k})
        origin[new[r]] = r


def note(o: Opportunity) -> Note:
    """Return the note of an opportunity: its gain, or why it was not applied."""
    gain = f"{len(o.fragment.names)} calls become one, {saved_bytes(o.fragment)} bytes less to move"
    return Note("fusion", pattern(o.fragment), not o.reason, o.reason or gain)


def saved_bytes(fragment: Fragment) -> int:
    """Return the bytes of memory traffic that a fragment saves over its steps one by one."""
    together = ops.fused.cost(fragment.out, *fragment.inputs, body=fragment)
    return sum(c.read + c.written for _, c in fragment.costs()) - together.read - together.written

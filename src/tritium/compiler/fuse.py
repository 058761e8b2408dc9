"""Groups of nodes become one `fused` node: one pass over memory instead of several.

Knows nothing of devices: who runs a fragment says whether it can. A node joins the group of its consumers if all of them
are in one group, so no group ever waits for itself. Three forms, told by what a group holds:

    elementwise   maps of one shape
    rows          also reductions along the last axis, softmax, norms, quantisation, and numbers of one row each
    product       one matrix product, maps of its result's shape after it, and before it a norm and maps of its first
                  operand's shape, which no earlier group takes
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

Refuses = Callable[[Fragment], str | None]  # why a fragment cannot run as one call; None: it can

NORMS = frozenset({ops.layer_norm, ops.rms_norm})


@dataclass(eq=False)
class Group:
    """Nodes that will be one call, last first."""

    shape: tuple[int, ...]
    form: str = "elementwise"
    nodes: list[Node] = field(default_factory=list)
    reads: set[Node] = field(default_factory=set)
    results: int = 1
    product: Node | None = None
    before: set[Node] = field(default_factory=set)  # what makes the product's first operand

    @property
    def has_maps_before(self) -> bool:
        return any(_is_map(n) for n in self.before)


class Opportunity(NamedTuple):
    """Several nodes that can be one call."""

    nodes: tuple[Node, ...]
    fragment: Fragment
    reason: str  # why it stays apart; "" if it is applied

    @property
    def form(self) -> str:
        parts = {s.op.fuses for s in self.fragment.steps}
        return "product" if Fuse.PRODUCT in parts else "rows" if parts & {Fuse.ROW, Fuse.FOLD} else "elementwise"


class Fused(NamedTuple):
    """The graph with its fused nodes, where nodes come from, and what was found."""

    graph: Graph
    origin: dict[Node, Node]
    opportunities: list[Opportunity]


# ---- what a node is for the fuser


def _folds_rows(n: Node) -> bool:
    """A reduction along the last axis alone."""
    x = n.inputs[0] if n.op.fuses is Fuse.FOLD else None
    if x is None or not x.spec.ndim:
        return False
    axis = dict(n.attrs)["axis"]
    return axis is not None and axes_of(axis, x.spec.ndim, n.op.name) == (x.spec.ndim - 1,)


def _is_rowwise(n: Node) -> bool:
    x = n.inputs[0] if n.op.fuses is Fuse.ROW else None
    if x is None or not x.spec.ndim:
        return False
    axis = dict(n.attrs).get("axis", -1)
    return axes_of(axis, x.spec.ndim, n.op.name) == (x.spec.ndim - 1,)


def _is_product(n: Node) -> bool:
    if n.op is ops.matmul:
        sides = [i for i in n.inputs if i is not None]
        whole = all(i.spec.ndim >= 2 and i.spec.dtype is dt.f32 for i in sides)
        return whole and dict(n.attrs)["algorithm"] == "blas"
    return n.op.fuses is Fuse.PRODUCT


def _is_map(n: Node) -> bool:
    return n.op.fuses is Fuse.MAP and isinstance(n.spec, Spec)


def _is_row_view(n: Node) -> bool:
    """A view between one number a row and the same with an axis of size 1 at the end."""
    x = n.inputs[0] if n.op.fuses is Fuse.SHAPE else None
    if x is None:
        return False
    return n.spec.shape == (*x.spec.shape, 1) or x.spec.shape == (*n.spec.shape, 1)


def _per_row(n: Node, shape: tuple[int, ...]) -> bool:
    return bool(shape) and n.spec.shape in ((*shape[:-1], 1), shape[:-1]) and shape[-1] != 1


def _start(n: Node) -> Group | None:
    """The group a node begins."""
    x = n.inputs[0] if n.inputs else None
    if _is_map(n):
        return Group(n.spec.shape)
    if (_folds_rows(n) or _is_rowwise(n)) and x is not None:
        return Group(x.spec.shape, "rows")
    if _is_product(n):
        return Group(n.spec.shape, "product", product=n)
    return None


def _joins(n: Node, g: Group, users: list[Node], reduced: set[Node]) -> str | None:
    """The form the group has with this node; None: it stays out."""
    same = isinstance(n.spec, Spec) and n.spec.shape == g.shape
    if g.form == "product":
        return "product" if _is_map(n) and same and all(_is_map(u) and u not in g.before for u in users) else None
    if _is_map(n):
        if same:
            return g.form
        return "rows" if _per_row(n, g.shape) and n in reduced else None
    if _folds_rows(n) or _is_rowwise(n):
        x = n.inputs[0]
        return "rows" if x is not None and x.spec.shape == g.shape else None
    return "product" if _is_product(n) and same and g.form == "elementwise" else None


# ---- groups


class _Grouping:
    """The walk from outputs to inputs. No map joins what stands before the products of `bare`."""

    def __init__(self, graph: Graph, refuses: Refuses, bare: set[Node]) -> None:
        self.order = graph.order()
        self.place = {n: i for i, n in enumerate(self.order)}
        self.outputs = set(graph.roots)
        self.refuses, self.bare = refuses, bare
        self.taken: dict[Any, bool] = {}  # which maps the runner knows, by row, dtypes and attributes
        self.users: dict[Node, list[Node]] = {}
        self.group: dict[Node, Group] = {}
        self.groups: list[Group] = []
        self.reduced: set[Node] = set()  # numbers of one row each that come from a reduction
        self.led: set[Node] = set()  # products, functions of rows, and the maps of what they make: those stay with them
        for n in self.order:
            for i in n.inputs:
                if i is not None:
                    self.users.setdefault(i, []).append(n)
            if _folds_rows(n) or (n.inputs and any(i in self.reduced for i in n.inputs) and self._stays_per_row(n)):
                self.reduced.add(n)
            if _is_product(n) or _folds_rows(n) or _is_rowwise(n) or self._is_led(n):
                self.led.add(n)

    def _is_led(self, n: Node) -> bool:
        goes_on = _is_map(n) or n.op is ops.item or n in self.reduced
        return goes_on and any(i in self.led for i in n.inputs)

    def _stays_per_row(self, n: Node) -> bool:
        if _is_row_view(n):
            return True
        return _is_map(n) and any(i in self.reduced and i.spec.shape == n.spec.shape for i in n.inputs if i is not None)

    def real_users(self, n: Node) -> list[Node]:
        """Who reads a node, seen through the parts of several results and through views of one number a row."""
        found, stack = [], list(self.users.get(n, ()))
        while stack:
            u = stack.pop()
            if (u.op is ops.item or (_is_row_view(u) and n in self.reduced)) and u not in self.outputs:
                stack += self.users.get(u, ())
            else:
                found.append(u)
        return found

    def run(self) -> list[Group]:
        for n in reversed(self.order):
            if n.op.kind in (Kind.VIEW, Kind.SOURCE) or (_is_map(n) and not self._takes(n)):
                continue
            users = self.real_users(n)
            joined = self._common_group(n, users)
            before = joined is not None and self._stands_before(n, joined, users)
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

    def _stands_before(self, n: Node, g: Group, users: list[Node]) -> bool:
        """Whether a norm or a map makes the first operand of the group's product, and nothing else."""
        p = g.product
        if p is None or p.op is not ops.quantized_matmul or n in self.outputs:
            return False
        x, *others = p.inputs
        if any(u is not p and u not in g.before for u in users) or (p in users and (n is not x or n in others)):
            return False
        if n.op in NORMS:
            return users == [p]
        fits = x is not None and _is_map(n) and n.spec.shape == x.spec.shape
        return fits and n not in self.led and p not in self.bare

    def _takes(self, n: Node) -> bool:
        """Whether the runner knows such a map; asked once for each row and dtypes."""
        key = (n.op, tuple(None if i is None else i.spec.dtype for i in n.inputs), n.spec.dtype, n.key)
        if key not in self.taken:
            places = iter(range(len(n.inputs)))
            inputs = tuple(None if i is None else next(places) for i in n.inputs)
            specs = tuple(Spec((8,), i.spec.dtype) for i in n.inputs if i is not None)
            step = Step(n.op, inputs, n.attrs, Spec((8,), n.spec.dtype))
            self.taken[key] = self.refuses(Fragment(specs, (step,), (len(specs),))) is None
        return self.taken[key]

    def _common_group(self, n: Node, users: list[Node]) -> Group | None:
        """The group of all users of a node; groups that lead nowhere else are made one for its sake."""
        groups = list({id(self.group.get(u)): self.group.get(u) for u in users}.values())
        if len(groups) == 1:
            return groups[0]
        if not groups or len(groups) > MAX_OUTPUTS or any(g is None or g.form == "product" for g in groups):
            return None
        first, *others = sorted((g for g in groups if g is not None), key=lambda g: -prod(g.shape))
        if not all(self._may_merge(g, first, n) for g in others):
            return None
        for g in others:
            self._merge(g, first)
        return first

    def _may_merge(self, g: Group, into: Group, n: Node) -> bool:
        """Whether a group ends in results only, has the other's rows, and waits for nothing that could wait for it."""
        rows = into.shape != g.shape
        if rows and not all(m in self.reduced and _per_row(m, into.shape) for m in g.nodes):
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
        more = {i for i in n.inputs if i is not None and i.op is not ops.const}
        room = len((g.reads - {n}) | more) <= MAX_INPUTS and len(g.nodes) < MAX_STEPS
        return room and (n not in self.outputs or g.results < MAX_OUTPUTS)

    def _put(self, n: Node, g: Group, form: str) -> None:
        g.form = form
        g.nodes.append(n)
        if form == "product" and _is_product(n):
            g.product = n
        g.reads.discard(n)
        g.reads.update(i for i in n.inputs if i is not None and i.op is not ops.const)
        self.group[n] = g


# ---- from a group to a fragment


class _Writer:
    """Writes the steps of a group, with the constants, parts and row views it needs."""

    def __init__(self, members: set[Node]) -> None:
        self.members = members
        self.inputs: list[Node] = []
        self.steps: list[tuple[Node, tuple[Node | None, ...]]] = []
        self.made: set[Node] = set()

    def inside(self, n: Node) -> bool:
        """A member, or a part or view of one that only leads from member to member."""
        while n.op is ops.item or _is_row_view(n):
            if n in self.members:
                return True
            x = n.inputs[0]
            assert x is not None
            n = x
        return n in self.members

    def add(self, n: Node) -> None:
        for i in n.inputs:
            if i is None or i in self.made:
                continue
            if i.op is ops.const or (i not in self.members and self.inside(i)):
                self.add(i)
            elif i not in self.members and i not in self.inputs:
                self.inputs.append(i)
        self.steps.append((n, n.inputs))
        self.made.add(n)

    def fragment(self, results: list[Node]) -> Fragment:
        number = {n: k for k, n in enumerate((*self.inputs, *(s for s, _ in self.steps)))}
        steps = tuple(
            Step(n.op, tuple(None if i is None else number[i] for i in ins), n.attrs, n.spec) for n, ins in self.steps
        )
        return Fragment(tuple(i.spec for i in self.inputs), steps, tuple(number[r] for r in results))


def _write(g: Group, results: list[Node]) -> tuple[Fragment, list[Node]]:
    writer = _Writer(set(g.nodes))
    for n in reversed(g.nodes):
        writer.add(n)
    for r in results:
        if r not in writer.made:
            writer.add(r)
    return writer.fragment(results), writer.inputs


def pattern(fragment: Fragment) -> str:
    """The rows of a fragment, such as matmul+add+gelu."""
    names = fragment.names
    return "+".join(names) if len(names) <= 6 else "+".join((*names[:5], f"{len(names) - 5} more"))


# ---- the pass


def fuse(graph: Graph, refuses: Refuses) -> Fused:
    """Every group that its runner takes becomes one node. One that is refused is tried smaller: a product without the maps before
    it, which are then grouped as if it were not there, and whatever is still refused without all but its maps."""
    found: list[Opportunity] = []
    bare: set[Node] = set()
    while True:
        walk = _Grouping(graph, refuses, bare)
        offers = [_offer(g, walk, refuses) for g in walk.run()]
        too_large = [o for o in offers if o.reason is not None and o.group.has_maps_before]
        if not too_large:
            break
        found += (o.opportunity for o in too_large)
        bare |= {o.group.product for o in too_large if o.group.product is not None}
    parts = [part for o in offers for part in _accepted(o, walk, refuses, found)]
    return _rebuild(graph, parts, found)


def _results_of(nodes: list[Node], walk: _Grouping) -> list[Node]:
    """What others read of a group: whole results, or parts of several."""
    members, out = set(nodes), []
    for n in reversed(nodes):
        several = not isinstance(n.spec, Spec)
        for v in walk.users.get(n, ()) if several else (n,):
            if v in walk.outputs or any(_outside(u, members, walk) for u in walk.users.get(v, ())):
                out.append(v)
    return out


def _outside(user: Node, members: set[Node], walk: _Grouping) -> bool:
    """Whether a reader stands outside; a row view that leads only inside does not."""
    if user in members:
        return False
    if _is_row_view(user) and user.inputs[0] in walk.reduced and user not in walk.outputs:
        return any(_outside(u, members, walk) for u in walk.users.get(user, ()))
    return True


class _Part(NamedTuple):
    """A group as a fragment: what it reads and what others read of it."""

    fragment: Fragment
    inputs: list[Node]
    results: list[Node]


class _Offer(NamedTuple):
    """A group as a part, and why its runner does not take it."""

    group: Group
    part: _Part
    reason: str | None

    @property
    def opportunity(self) -> Opportunity:
        return Opportunity(tuple(reversed(self.group.nodes)), self.part.fragment, self.reason or "")


def _offer(g: Group, walk: _Grouping, refuses: Refuses) -> _Offer:
    results = _results_of(g.nodes, walk)
    fragment, inputs = _write(g, results)
    reason = "too many results" if len(results) > MAX_OUTPUTS else None
    reason = reason or ("too many inputs" if len(inputs) > MAX_INPUTS else refuses(fragment))
    return _Offer(g, _Part(fragment, inputs, results), reason)


def _accepted(o: _Offer, walk: _Grouping, refuses: Refuses, found: list[Opportunity]) -> list[_Part]:
    if len(o.part.fragment.names) < 2:
        return []
    found.append(o.opportunity)
    if o.reason is None:
        return [o.part]
    if o.group.form == "elementwise":
        return []
    accepted = []
    for g in _maps_of(o.group, walk):
        accepted += _accepted(_offer(g, walk, refuses), walk, refuses, found)
    return accepted


def _maps_of(g: Group, walk: _Grouping) -> list[Group]:
    """The maps of a refused group as groups of their own: again by their consumers."""
    group: dict[Node, Group] = {}
    out: list[Group] = []
    for n in g.nodes:
        if not _is_map(n):
            continue
        users = walk.users.get(n, [])
        joined = group.get(users[0]) if users and n not in walk.outputs else None
        if joined is None or any(group.get(u) is not joined for u in users) or joined.shape != n.spec.shape:
            joined = Group(n.spec.shape)
            out.append(joined)
        joined.nodes.append(n)
        group[n] = joined
    return [part for part in out if len(part.nodes) > 1]


def _rebuild(graph: Graph, parts: list[_Part], found: list[Opportunity]) -> Fused:
    """The graph anew, from the roots back: a group is placed where all it reads is there."""
    trace = Trace()
    part_of = {r: p for p in parts for r in p.results}
    new: dict[Node, Node] = {}
    origin: dict[Node, Node] = {}
    stack = list(reversed(graph.roots))
    while stack:
        n = stack[-1]
        part = part_of.get(n)
        needs = n.inputs if part is None else part.inputs
        missing = [] if n in new else [i for i in needs if i is not None and i not in new]
        if missing:
            stack += reversed(missing)
            continue
        stack.pop()
        if n in new:
            continue
        if part is not None:
            _place_part(part, trace, new, origin)
        else:
            ins = tuple(None if i is None else new[i] for i in n.inputs)
            new[n] = n if ins == n.inputs else Node(n.op, ins, n.attrs, n.spec, n.key)
            origin[new[n]] = n
    done = graph._replace(
        outputs=tuple(new[n] for n in graph.outputs), writes=tuple((i, new[n]) for i, n in graph.writes)
    )
    return Fused(done, origin, found)


def _place_part(part: _Part, trace: Trace, new: dict[Node, Node], origin: dict[Node, Node]) -> None:
    node = trace.node(ops.fused, tuple(new[i] for i in part.inputs), part.fragment.out, {"body": part.fragment})
    for k, r in enumerate(part.results):
        several = len(part.results) > 1
        new[r] = trace.node(ops.item, (node,), outputs(part.fragment.out)[k], {"index": k}) if several else node
        origin[new[r]] = r


def note(o: Opportunity) -> Note:
    """What became of an opportunity."""
    gain = f"{len(o.fragment.names)} calls become one, {saved_bytes(o.fragment)} bytes less to move"
    return Note("fusion", pattern(o.fragment), not o.reason, o.reason or gain)


def saved_bytes(fragment: Fragment) -> int:
    """Bytes that the steps one by one would read and write beyond what the fragment does."""
    together = ops.fused.cost(fragment.out, *fragment.inputs, body=fragment)
    return sum(c.read + c.written for _, c in fragment.costs()) - together.read - together.written

"""Algebraic simplification: rewrite rules that remove a node or replace it by a cheaper one.

Knows nothing of devices: the function that evaluates constants is passed in. A rule keeps every bit of the result, signed
zeros and NaN included, so x + 0.0 stays (it turns -0.0 into 0.0) and x - 0.0 is removed. Equal calls become one node on
the way (CSE); the operands of symmetric ops such as add and multiply match in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tritium import dtype as dt, ops
from tritium.graph.graph import Graph, Node, Trace
from tritium.graph.size import is_varying
from tritium.layout import axis_of, broadcast_shapes
from tritium.op import Fuse, Kind, Op, Spec, Trait, outputs
from tritium.tensor import Tensor

Rule = Callable[["Rewrite", Node], Node | None]
Evaluate = Callable[[Node, list[Any]], Tensor]

# Members by names of their own: Python 3.11 takes ten times as long to read one from its enum.
MAP, DYNAMIC = Kind.MAP, Kind.DYNAMIC

MAX_CONSTANT_BYTES = 1 << 20  # a larger constant is computed at each call, which needs no memory between calls


class Note(NamedTuple):
    """A remark of a pass: the rewrite it did, or did not do, and the reason."""

    what: str
    node: str  # as printed before the pass
    applied: bool
    why: str


class Rewrite:
    """A graph being rewritten: the new node of each old one."""

    def __init__(self, graph: Graph, evaluate: Evaluate | None) -> None:
        self.graph, self.evaluate = graph, evaluate
        self.trace = Trace()
        self.new: dict[Node, Node] = {}
        self.origin: dict[Node, Node] = {}  # new node -> the first old one with the same value
        self.captured = dict(graph.captured)
        self.trace.lowest = min((dict(n.attrs)["index"] for n in graph.captured), default=0)
        self.known: dict[Node, Tensor | None] = {}  # constant nodes, and their values once evaluated
        self.notes: dict[Any, Note] = {}

    def keep(self, old: Node) -> Node:
        """Return the node of an old call with its new inputs: itself if they are the same and no equal call has come before."""
        inputs = tuple([None if i is None else self.new[i] for i in old.inputs])
        return self.intern(old.op, inputs, old.attrs, old.spec, old.key, old)

    def intern(
        self, op: Op, inputs: tuple[Node | None, ...], attrs: Any, spec: Any, key: Any, old: Node | None = None
    ) -> Node:
        """Return the node of a call; equal calls share one, which is `old` if it has these inputs."""
        sides = inputs
        if op in _ANY_ORDER and len(inputs) == 2 and id(inputs[0]) > id(inputs[1]):
            sides = (inputs[1], inputs[0])
        identity: tuple[Any, ...] = (op, sides, key)
        nodes = self.trace.nodes
        node = nodes.get(identity)
        if node is not None and node.spec != spec:
            identity = (op, sides, key, spec)
            node = nodes.get(identity)
        if node is None:
            same = old is not None and old.inputs == inputs
            node = nodes[identity] = old if same and old is not None else Node(op, inputs, attrs, spec, key)
        return node

    def node(self, op: Op, inputs: tuple[Node | None, ...], **attrs: Any) -> Node:
        """Record a call with default attributes filled in; the op decides the spec."""
        decision = op.decide(tuple(None if i is None else i.spec for i in inputs), op.complete(attrs))
        return self.trace.node(op, inputs, decision.out, op.complete(attrs))

    def capture(self, value: Tensor) -> Node:
        """Add a tensor that was computed once as a captured input of the graph."""
        self.trace.lowest -= 1
        node = self.trace.placeholder(self.trace.lowest, value.spec)
        self.captured[node] = value
        return node

    def note(self, what: str, node: Node, why: str, applied: bool = True) -> None:
        self.notes[(what, node, applied)] = Note(what, repr(node), applied, why)


# ---- rules: each returns the replacement of a node, or None

RULES: dict[Op, tuple[str, Rule]] = {}


def rewrites(what: str, *targets: Op) -> Callable[[Rule], Rule]:
    """Register a rule for ops, under the name that explain() shows."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, (what, rule)))
        return rule

    return register


def _number(node: Node | None) -> Any:
    """Return the value of a constant node; None: it is none."""
    return node.attrs[0][1] if node is not None and node.op is ops.const else None


def _is_constant(node: Node | None, value: float, negative_zero: bool = False) -> bool:
    """Return True if a node is this constant, the sign of zero included."""
    number = _number(node)
    if number is None or isinstance(number, (bool, complex)) or number != value:
        return False
    if node is not None and node.spec.dtype.is_complex:  # x * 1 reads the 0 of the other part: -0, inf and NaN change
        return False
    return value != 0 or not node_is_float(node) or (str(float(number))[0] == "-") == negative_zero


def node_is_float(node: Node | None) -> bool:
    return node is not None and bool(node.spec.dtype.is_float)


def _operand(node: Node, index: int) -> Node | None:
    """Return an input if it has the shape and dtype of the result, so that it can replace it."""
    x = node.inputs[index]
    return x if x is not None and x.spec == node.spec else None


def _has_number(node: Node) -> bool:
    """Return True if an operand is a constant: rules of neutral elements look at nothing else."""
    const = ops.const
    return any(i is not None and i.op is const for i in node.inputs)


def _neutral_right(value: float, negative_zero: bool = False) -> Rule:
    """Return the rule that replaces `x op value` by x."""

    def rule(r: Rewrite, n: Node) -> Node | None:
        return _operand(n, 0) if _is_constant(n.inputs[1], value, negative_zero) else None

    return rule


def _neutral(value: float, negative_zero: bool = False) -> Rule:
    """Return the rule that replaces `x op value` and `value op x` by x."""

    def rule(r: Rewrite, n: Node) -> Node | None:
        if not _has_number(n):
            return None
        if _is_constant(n.inputs[1], value, negative_zero):
            return _operand(n, 0)
        return _operand(n, 1) if _is_constant(n.inputs[0], value, negative_zero) else None

    return rule


@rewrites("identity", ops.add)
def _zero_added(r: Rewrite, n: Node) -> Node | None:
    """Replace x + 0 by x. For floats only x + -0.0 qualifies: -0.0 + 0.0 is 0.0."""
    if not _has_number(n):
        return None
    better = _neutral(0.0, negative_zero=node_is_float(n))(r, n)
    if better is None and node_is_float(n) and any(_is_constant(i, 0.0) for i in n.inputs):
        r.note("identity", n, "x + 0.0 turns -0.0 into 0.0; write x - 0.0 if that does not matter", applied=False)
    return better


rewrites("identity", ops.subtract)(_neutral_right(0.0))
rewrites("identity", ops.multiply)(_neutral(1.0))
rewrites("identity", ops.divide)(_neutral_right(1.0))


def _inverse(r: Rewrite, n: Node) -> Node | None:
    """Replace f(f(x)) by x."""
    x = n.inputs[0]
    return x.inputs[0] if x is not None and x.op is n.op else None


def _again(r: Rewrite, n: Node) -> Node | None:
    """Replace f(f(x)) by f(x)."""
    x = n.inputs[0]
    return x if x is not None and x.op is n.op and x.key == n.key else None


@rewrites("identity", ops.positive)
@rewrites("copy of a value", ops.copy)
@rewrites("view of itself", ops.broadcast_to)
def _itself(r: Rewrite, n: Node) -> Node | None:
    return _operand(n, 0)


@rewrites("identity", ops.clip)
def _unclipped(r: Rewrite, n: Node) -> Node | None:
    return _operand(n, 0) if n.inputs[1] is None and n.inputs[2] is None else None


@rewrites("constant condition", ops.where)
def _chosen(r: Rewrite, n: Node) -> Node | None:
    """Replace where(constant, x, y) by x or y."""
    condition = _number(n.inputs[0])
    return None if condition is None else _operand(n, 1 if condition else 2)


@rewrites("cast there and back", ops.astype)
def _cast(r: Rewrite, n: Node) -> Node | None:
    x = n.inputs[0]
    assert x is not None
    if x.spec.dtype is n.spec.dtype:
        return x
    if x.op is not ops.astype or x.inputs[0] is None:
        return None
    before = x.inputs[0].spec.dtype
    if before is n.spec.dtype and holds(x.spec.dtype, before):
        return x.inputs[0]
    if before is n.spec.dtype:
        r.note("cast there and back", n, f"{x.spec.dtype} does not hold every {before}: the cast rounds", applied=False)
    return None


def holds(wide: dt.DType, narrow: dt.DType) -> bool:
    """Return True if every value of `narrow` is exact in `wide`, so that a round trip changes nothing."""
    if wide.is_packed or narrow.is_packed:
        return False
    if wide.is_complex or narrow.is_complex:
        return wide.is_complex and holds(wide.real, narrow.real)
    if wide.is_float and narrow.is_float:
        a, b = dt.finfo(wide), dt.finfo(narrow)
        return bool(a.eps <= b.eps and a.max >= b.max and a.smallest_normal <= b.smallest_normal)
    if narrow is dt.bool_:
        return True
    if wide is dt.bool_ or narrow.is_float:
        return False
    low, high = dt.iinfo(narrow).min, dt.iinfo(narrow).max
    if wide.is_float:
        return bool(2 / dt.finfo(wide).eps >= max(-low, high))
    return bool(dt.iinfo(wide).min <= low and high <= dt.iinfo(wide).max)


@rewrites("repacked there and back", ops.repack)
def _repacked(r: Rewrite, n: Node) -> Node | None:
    """Replace repack(repack(x)) by one repack or none: integers keep their values in every packing that holds them."""
    x = n.inputs[0]
    assert x is not None
    if x.spec.dtype is n.spec.dtype:
        return x
    if x.op is ops.repack and x.inputs[0] is not None:
        source = x.inputs[0]
        return source if source.spec == n.spec else r.node(ops.repack, (source,), dtype=n.spec.dtype)
    return None


QUANTIZERS = frozenset({ops.quantize_activations}) | ops.rows_that_fuse(Fuse.CODES)


@rewrites("quantise what was dequantised", *QUANTIZERS)
def _kept_rounding(r: Rewrite, n: Node) -> Node | None:
    """Keep quantize(dequantize(x)), with a note: the new scale may differ."""
    x = n.inputs[0]
    if x is not None and x.op is ops.dequantize:
        r.note("quantise what was dequantised", n, "the scale is computed again and may differ", applied=False)
    return None


@rewrites("dequantise as arithmetic", ops.dequantize)
def _dequantized(r: Rewrite, n: Node) -> Node | None:
    """Replace dequantize of int8 with one scale per row by arithmetic, which fuses with the ops around it. Right after a
    quantiser of weights it stays: the two are one call."""
    q, scale, zero = n.inputs
    maker = q.inputs[0] if q is not None and q.op is ops.item else q
    if maker is not None and maker.op in QUANTIZERS:
        r.note("quantise and dequantise", n, "it rounds: the values are not those before", applied=False)
    attrs = dict(n.attrs)
    if maker is not None and maker.op.fuses is Fuse.CODES:
        return None
    if q is None or scale is None or zero is not None or q.spec.dtype is not dt.i8 or attrs["group"]:
        return None
    if attrs["dtype"] is not dt.f32:
        return None
    if scale.spec.shape:
        scale = r.node(ops.expand_dims, (scale,), axis=len(scale.spec.shape))
    return r.node(ops.multiply, (r.node(ops.astype, (q,), dtype=dt.f32), scale))


@rewrites("views joined", ops.reshape)
def _reshaped(r: Rewrite, n: Node) -> Node | None:
    x = n.inputs[0]
    assert x is not None
    if x.spec == n.spec:
        return x
    if x.op is ops.reshape and x.inputs[0] is not None:
        return r.node(ops.reshape, (x.inputs[0],), shape=n.spec.shape)
    return None


@rewrites("views joined", ops.index)
def _unchanged_index(r: Rewrite, n: Node) -> Node | None:
    """Replace x[:, None] by expand_dims, and x[:] by x."""
    x = n.inputs[0]
    assert x is not None
    key = dict(n.attrs)["key"]
    sizes = iter(x.spec.shape)
    for k in key:
        if k is not None and k != (0, next(sizes), 1):
            return None
    axes = tuple(i for i, k in enumerate(key) if k is None)
    return r.node(ops.expand_dims, (x,), axis=axes) if axes else x


def _axes(n: Node) -> tuple[int, ...] | None:
    """Return the order of axes of a view that only permutes them; None for other nodes."""
    ndim = n.spec.ndim
    if n.op is ops.matrix_transpose:
        return (*range(ndim - 2), ndim - 1, ndim - 2)
    if n.op is ops.permute_dims:
        return tuple(axis_of(a, ndim, "permute_dims") for a in dict(n.attrs)["axes"])
    return None


@rewrites("views joined", ops.permute_dims, ops.matrix_transpose)
def _permuted(r: Rewrite, n: Node) -> Node | None:
    outer = _axes(n)
    x = n.inputs[0]
    assert outer is not None
    assert x is not None
    if outer == tuple(range(len(outer))):
        return x
    inner = _axes(x)
    if inner is None or x.inputs[0] is None:
        return None
    joined = tuple(inner[a] for a in outer)
    if joined == tuple(range(len(joined))):
        return x.inputs[0]
    return r.node(ops.permute_dims, (x.inputs[0],), axes=joined)


@rewrites("transpose into a product", ops.matmul)
def _turned_product(r: Rewrite, n: Node) -> Node | None:
    """Read the operands of a product without copies: products take any strides."""
    sides = tuple([_uncopied(i) for i in n.inputs])
    if sides == n.inputs:
        return None
    return r.intern(n.op, sides, n.attrs, n.spec, n.key)


def _uncopied(x: Node | None) -> Node | None:
    while x is not None and x.op is ops.copy:
        x = x.inputs[0]
    return x


@rewrites("written as it is", ops.update)
def _written_number(r: Rewrite, n: Node) -> Node | None:
    """Write a scalar without broadcasting it first: a write broadcasts by itself."""
    x, value = n.inputs
    if value is not None and value.op in (ops.full, ops.broadcast_to):
        number = _as_scalar(r, value) if value.op is ops.full else value.inputs[0]
        return r.intern(n.op, (x, number), n.attrs, n.spec, n.key)
    return None


@rewrites("a number", ops.full)
def _single_number(r: Rewrite, n: Node) -> Node | None:
    return _as_scalar(r, n) if n.spec.shape == () else None


RULES |= dict.fromkeys(ops.rows_with(Trait.INVOLUTION), ("double negation", _inverse))
RULES |= dict.fromkeys(ops.rows_with(Trait.IDEMPOTENT), ("once is enough", _again))
_ANY_ORDER = ops.rows_with(Trait.SYMMETRIC)


# ---- constants


def _is_known(r: Rewrite, n: Node) -> bool:
    """Return True if a node depends on constants only and is small enough to be folded."""
    if n.op is ops.const:
        return True
    if n.op in (ops.given, ops.empty):
        return False
    for i in n.inputs:
        if i is not None and i not in r.known:
            if i.op is not ops.const:
                return False
            r.known[i] = None
    if n.op.kind is DYNAMIC or is_varying((n.spec, n.attrs)):
        return False
    return sum(s.nbytes for s in outputs(n.spec)) <= MAX_CONSTANT_BYTES


def _value(r: Rewrite, target: Node) -> Tensor:
    """Evaluate a constant node, its inputs first."""
    assert r.evaluate is not None
    stack = [target]
    while stack:
        n = stack[-1]
        missing = [i for i in n.inputs if i is not None and r.known[i] is None]
        stack += missing
        if not missing:
            stack.pop()
            if r.known[n] is None:
                r.known[n] = r.evaluate(n, [None if i is None else r.known[i] for i in n.inputs])
    value = r.known[target]
    assert value is not None
    return value


def _as_constant(r: Rewrite, n: Node, constants: dict[Node, Node]) -> Node:
    """Return the constant or captured tensor that replaces a constant node."""
    if n.op is ops.const or not isinstance(n.spec, Spec):
        return n
    if n not in constants:
        value = _value(r, n)
        if n.spec.shape == () and not n.spec.dtype.is_packed:
            constants[n] = r.node(ops.const, (), value=value.item(), dtype=n.spec.dtype)
        else:
            constants[n] = r.capture(value)
            r.origin[constants[n]] = r.origin[n]
        r.note("constant folding", n, "depends on constants only: computed once")
    return constants[n]


def _inline_scalars(r: Rewrite, n: Node) -> Node:
    """Replace `full` operands of a map by scalars, if the other operands have the shape of the result."""
    full = ops.full
    for i in n.inputs:
        if i is not None and i.op is full:
            break
    else:
        return n
    if n.op.kind is not MAP:
        return n
    rest = [i for i in n.inputs if i is not None and i.op not in (ops.full, ops.const)]
    if not isinstance(n.spec, Spec) or broadcast_shapes(*(i.spec.shape for i in rest)) != n.spec.shape:
        return n
    inputs = tuple(_as_scalar(r, i) for i in n.inputs)
    return r.intern(n.op, inputs, n.attrs, n.spec, n.key)


def _as_scalar(r: Rewrite, i: Node | None) -> Node | None:
    """Return the constant of a `full` node; other nodes as they are."""
    if i is None or i.op is not ops.full:
        return i
    kind = i.spec.dtype
    value = dict(i.attrs)["fill_value"]
    if is_varying(value):  # no constant: it is computed for the sizes of a call
        return i
    return r.node(ops.const, (), value=bool(value) if kind is dt.bool_ else value, dtype=kind)


# ---- the pass


class Simplified(NamedTuple):
    """The graph after the rules, the origin of its nodes, and the notes."""

    graph: Graph
    origin: dict[Node, Node]
    notes: list[Note]


def simplify(graph: Graph, evaluate: Evaluate | None = None) -> Simplified:
    """Apply the rules once, from inputs to outputs; the rule of a replacement is applied to it in turn."""
    r = Rewrite(graph, evaluate)
    constants: dict[Node, Node] = {}
    new, origin, source, rules = r.new, r.origin, ops.given, RULES
    for node in graph.inputs:
        new[node] = node
    for old in graph.order():
        if old.op is source:
            n = old
        else:
            n = _inline_scalars(r, r.keep(old))
            while (entry := rules.get(n.op)) is not None and (better := entry[1](r, n)) is not None and better is not n:
                r.note(entry[0], n, f"is {better!r}")
                n = better
            if _is_known(r, n):
                r.known.setdefault(n, None)
        new[old] = n
        if n not in origin:
            origin[n] = old
    if r.evaluate is not None:
        _place_constants(r, graph, constants)
    results = tuple(r.new[n] for n in graph.outputs)
    writes = tuple((i, r.new[n]) for i, n in graph.writes)
    done = graph._replace(outputs=results, writes=writes)
    captured_nodes = [n for n in done.order() if n in r.captured]
    needed = {n: r.captured[n] for n in sorted(captured_nodes, key=lambda n: -dict(n.attrs)["index"])}
    return Simplified(done._replace(captured=needed), r.origin, list(r.notes.values()))


def _place_constants(r: Rewrite, graph: Graph, constants: dict[Node, Node]) -> None:
    """Replace constant nodes where other nodes or results read them."""
    if all(n.op is ops.const for n in r.known):
        return

    def final_of(i: Node, reader: Node | None) -> Node:
        if i not in r.known:
            return final[i]
        fresh = i.op is ops.full and (reader is None or reader.op is ops.update)  # it is written, or the caller owns it
        return i if fresh else _as_constant(r, i, constants)

    final: dict[Node, Node] = {}
    # Each tensor that is captured is one of its own, so only equal numbers can make two calls equal.
    may_merge = any(n.op is not ops.const and isinstance(n.spec, Spec) and not n.spec.shape for n in r.known)
    roots = tuple(r.new[n] for n in graph.roots)
    for n in graph._replace(outputs=roots, writes=()).order():
        if n in r.known:
            continue
        inputs = tuple([None if i is None else final.get(i) or final_of(i, n) for i in n.inputs])
        if inputs == n.inputs:
            final[n] = n
            continue
        if may_merge:
            node = r.intern(n.op, inputs, n.attrs, n.spec, n.key)
        else:
            node = Node(n.op, inputs, n.attrs, n.spec, n.key)
        final[n] = node
        r.origin.setdefault(node, r.origin[n])
    r.new.update({old: final_of(r.new[old], None) for old in dict.fromkeys(graph.roots)})

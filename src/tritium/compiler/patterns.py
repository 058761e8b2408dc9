"""Subgraphs that are replaced: fusions defined by the user, and attention, which is computed in blocks.

A user's fusion is a chain of ops by name and a function that computes the same. The function is traced like any other, so
its ops are fused, planned and timed as if they had been written in place of the chain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tritium import ops
from tritium.arguments import checked, checked_class
from tritium.compiler.passes import Note
from tritium.errors import ArgumentError, TritiumError, nearest
from tritium.graph.graph import Graph, Node, Trace, tracing
from tritium.op import OPS, Axes, Kind, Op, Spec, Trait
from tritium.tensor import Tensor


@checked_class
@dataclass(frozen=True)
class FusionPattern:
    """A chain of ops, each reading the result of the one before, and a function that replaces it.

    `implementation` takes the operands in the order of the chain: those of the first op, then those that each next op
    reads besides the result before it. It returns one tensor of the same spec. Its result is compared with that of the
    ops when it is first used.
    """

    name: str
    operations: tuple[str, ...]
    implementation: Callable[..., Tensor]

    def __post_init__(self) -> None:
        if isinstance(self.operations, str):
            raise ArgumentError(
                f"FusionPattern {self.name!r}: a tuple of op names is needed, given {self.operations!r}."
            )
        object.__setattr__(self, "operations", tuple(self.operations))
        if not self.operations or not callable(self.implementation):
            raise ArgumentError(f"FusionPattern {self.name!r}: names of ops and a callable are needed.")
        for name in self.operations:
            if name not in OPS:
                raise ArgumentError(f"FusionPattern {self.name!r}: there is no op {name!r}.{nearest(name, OPS)}")
            if OPS[name].kind in (Kind.SOURCE, Kind.DYNAMIC):
                raise ArgumentError(f"FusionPattern {self.name!r}: {name} computes nothing that could be fused.")


MAX_CHECKED = 1024
_patterns: dict[str, FusionPattern] = {}
_checked: dict[FusionPattern, set[Any]] = {}  # signatures of calls in which a pattern was compared with its ops
generation = 0  # counts changes of the patterns: programs are compiled again after one
listeners: list[Callable[[], None]] = []  # called after each change


@checked
def add_pattern(pattern: FusionPattern) -> None:
    """Use a pattern from now on; a pattern of the same name is replaced."""
    global generation
    if not isinstance(pattern, FusionPattern):
        raise ArgumentError(f"add_pattern: a FusionPattern is needed, given {type(pattern).__name__}.")
    _patterns[pattern.name] = pattern
    _checked.pop(pattern, None)
    generation += 1
    _notify()


def _notify() -> None:
    for listener in listeners:
        listener()


@checked
def remove_pattern(name: str) -> None:
    """Remove a pattern."""
    global generation
    if name not in _patterns:
        raise ArgumentError(f"remove_pattern: there is no pattern {name!r}.{nearest(name, _patterns)}")
    _checked.pop(_patterns.pop(name), None)
    generation += 1
    _notify()


def patterns() -> tuple[FusionPattern, ...]:
    """Return the patterns in use, the longest first."""
    return tuple(sorted(_patterns.values(), key=lambda p: -len(p.operations)))


def find(operations: tuple[str, ...]) -> FusionPattern | None:
    """Return the pattern of exactly this chain, or None."""
    return next((p for p in patterns() if p.operations == operations), None)


def is_checked(pattern: FusionPattern, signature: Any) -> bool:
    """Return True if a pattern was compared with its ops in a call of these attributes and specs."""
    return signature in _checked.get(pattern, ())


def mark_checked(pattern: FusionPattern, signature: Any) -> None:
    """Remember that a pattern was compared with its ops in a call of these attributes and specs."""
    signatures = _checked.setdefault(pattern, set())
    if len(signatures) >= MAX_CHECKED:
        signatures.clear()
    signatures.add(signature)


# ---- the pass


class Applied(NamedTuple):
    """The graph with implementations in place of their chains, the origin of its nodes, and the notes."""

    graph: Graph
    origin: dict[Node, Node]
    used: tuple[FusionPattern, ...]
    notes: list[Note]


class _Match(NamedTuple):
    """A chain of nodes that a pattern replaces."""

    pattern: FusionPattern
    chain: tuple[Node, ...]  # first to last
    operands: tuple[Node, ...]


def apply_patterns(graph: Graph) -> Applied:
    """Replace every chain that a pattern matches, the longest patterns first.

    Only the last node of a chain may be read from outside.
    """
    if not _patterns:
        return Applied(graph, {}, (), [])
    order = graph.order()
    users: dict[Node, list[Node]] = {}
    for n in order:
        for i in n.inputs:
            if i is not None:
                users.setdefault(i, []).append(n)
    matched: set[Node] = set()
    matches: dict[Node, _Match] = {}
    for p in patterns():
        for n in reversed(order):
            match = _match(p, n, users, set(graph.roots), matched)
            if match is not None:
                matches[n] = match
                matched.update(match.chain)
    return _place(graph, order, matches)


def _match(
    p: FusionPattern, last: Node, users: dict[Node, list[Node]], roots: set[Node], matched: set[Node]
) -> _Match | None:
    """Return the match of a pattern that ends at a node, or None."""
    chain = [last]
    others: list[list[Node]] = []
    for k in range(len(p.operations) - 1, -1, -1):
        n = chain[-1]
        if n.op.name != p.operations[k] or n in matched or not hasattr(n.spec, "dtype"):
            return None
        inputs = [i for i in n.inputs if i is not None]
        if k == 0:
            others.append(inputs)
            break
        before = _previous(n, p.operations[k - 1], users, roots)
        if before is None:
            return None
        others.append([i for i in inputs if i is not before])
        chain.append(before)
    operands = tuple(i for group in reversed(others) for i in group)
    return _Match(p, tuple(reversed(chain)), operands)


def _previous(n: Node, name: str, users: dict[Node, list[Node]], roots: set[Node]) -> Node | None:
    """Return the previous node of a chain: the first operand, or any operand of a commutative op."""
    candidates = n.inputs if n.op.traits & Trait.COMMUTES else n.inputs[:1]
    for i in candidates:
        if i is not None and i.op.name == name and users[i] == [n] and i not in roots:
            return i
    return None


def _place(graph: Graph, order: list[Node], matches: dict[Node, _Match]) -> Applied:
    trace = Trace()
    trace.captured = dict(graph.captured)
    trace.lowest = min((dict(n.attrs)["index"] for n in graph.captured), default=0)
    new: dict[Node, Node] = {}
    origin: dict[Node, Node] = {}
    notes: list[Note] = []
    used: list[FusionPattern] = []
    for n in order:
        inputs = tuple(None if i is None else new[i] for i in n.inputs)
        if n.op is ops.given:
            new[n] = n
        else:
            new[n] = trace.node(n.op, inputs, n.spec, dict(n.attrs))
        match = matches.get(n)
        if match is not None:
            replacement = _trace_implementation(trace, match, tuple(new[i] for i in match.operands), n)
            if isinstance(replacement, str):
                notes.append(Note("pattern", match.pattern.name, False, replacement))
            else:
                new[n] = replacement
                used.append(match.pattern)
                notes.append(
                    Note("pattern", match.pattern.name, True, f"replaces {'+'.join(match.pattern.operations)}")
                )
        origin.setdefault(new[n], n)
    done = graph._replace(
        outputs=tuple(new[n] for n in graph.outputs),
        writes=tuple((i, new[n]) for i, n in graph.writes),
        captured=trace.captured,
    )
    return Applied(done, origin, tuple(used), notes)


def _trace_implementation(trace: Trace, match: _Match, operands: tuple[Node, ...], n: Node) -> Node | str:
    """Trace the implementation; return its node, or the reason why it cannot be traced."""
    with tracing(trace):
        try:
            result = match.pattern.implementation(*(trace.tensor(i, "argument") for i in operands))
            node = trace.read(result) if isinstance(result, Tensor) else None
        except TritiumError as error:
            return f"its implementation cannot be traced: {error}"
        except Exception as error:
            raise RuntimeError(f"The implementation of the pattern {match.pattern.name!r} failed: {error}") from error
    if node is None or node.spec != n.spec:
        actual = getattr(node, "spec", type(result).__name__)
        raise ArgumentError(
            f"FusionPattern {match.pattern.name!r}: its implementation returned {actual}, but "
            f"{'+'.join(match.pattern.operations)} returns {n.spec}."
        )
    return node


# ---- attention, in blocks of rows

SCORES_BYTES = 8 << 20  # smaller scores are no burden
BLOCK_BYTES = 4 << 20  # of scores that are computed at a time
MAX_BLOCKS = 64  # larger ones where there would be more: each is a few steps of the program
MIN_ROWS = 32  # of a block: a product of fewer does not pay


class Blocking(NamedTuple):
    """A product of weights of rows, which are computed from the scores of another product: attention."""

    product: Node
    shape: tuple[int, ...]  # of the scores without the last axis
    block: tuple[int, ...]  # that is computed at a time

    def concat(self, trace: Trace, new: dict[Node, Node], box: tuple[range, ...] = ()) -> Node:
        """Record the blocks inside a box of the leading axes, and join them."""
        axis = len(box)
        if axis == len(self.shape):
            return Slices(trace, new, box).slice(self.product, True)
        size, step = self.shape[axis], self.block[axis]
        parts = [self.concat(trace, new, (*box, range(i, min(i + step, size)))) for i in range(0, size, step)]
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].spec.shape)
        shape[axis] = size
        return trace.node(ops.concat, tuple(parts), Spec(tuple(shape), parts[0].spec.dtype), {"axis": axis})


def block_attention(graph: Graph) -> Applied:
    """Compute softmax(q @ k.T …) @ v for some rows of q at a time, so that the scores of all rows are never in memory.

    Rows do not depend on each other, so any ops between the products are possible that work on elements or along rows.
    """
    order = graph.order()
    blockings = _blockings(graph, order)
    if not blockings:
        return Applied(graph, {}, (), [])
    trace = Trace()
    trace.captured = dict(graph.captured)
    trace.lowest = min((dict(n.attrs)["index"] for n in graph.captured), default=0)
    new: dict[Node, Node] = {}
    origin: dict[Node, Node] = {}
    notes = []
    for n in order:
        inputs = tuple(None if i is None else new[i] for i in n.inputs)
        if n.op is ops.given:
            new[n] = n
        elif n in blockings:
            blocking = blockings[n]
            new[n] = blocking.concat(trace, new)
            why = f"scores of {list(blocking.block)} of {list(blocking.shape)} rows at a time"
            notes.append(Note("attention", repr(n), True, why))
        else:
            new[n] = trace.node(n.op, inputs, n.spec, dict(n.attrs))
        origin.setdefault(new[n], n)
    done = graph._replace(
        outputs=tuple(new[n] for n in graph.outputs),
        writes=tuple((i, new[n]) for i, n in graph.writes),
        captured=trace.captured,
    )
    return Applied(done, origin, (), notes)


def _blockings(graph: Graph, order: list[Node]) -> dict[Node, Blocking]:
    """Return the attention in a graph, by its last product."""
    candidates = [n for n in order if n.op is ops.matmul and _is_large(n.inputs[0])]
    if not candidates:
        return {}
    users: dict[Node, list[Node]] = {}
    for n in order:
        for i in n.inputs:
            if i is not None:
                users.setdefault(i, []).append(n)
    blockings = (_blocking(n, users, set(graph.roots)) for n in candidates)
    return {b.product: b for b in blockings if b is not None}


def _is_large(n: Node | None) -> bool:
    return n is not None and len(n.spec.shape) >= 2 and n.spec.nbytes >= SCORES_BYTES and n.spec.dtype.is_float


def _blocking(product: Node, users: dict[Node, list[Node]], roots: set[Node]) -> Blocking | None:
    """Return how a product is computed in blocks; None if its first operand is no weights that nothing else reads."""
    weights = product.inputs[0]
    assert weights is not None
    rows = weights.spec.shape[-2]
    inside: dict[Node, None] = {}
    waiting = [weights]
    has_scores = works_along_rows = False
    while waiting:
        n = waiting.pop()
        if n in inside or len(n.spec.shape) < 2 or n.spec.shape[-2] != rows:
            continue
        is_scores = n.op is ops.matmul and _is_large(n)
        if not is_scores and not _keeps_rows(n):
            continue
        inside[n] = None
        has_scores = has_scores or is_scores
        works_along_rows = works_along_rows or (not is_scores and n.op.axes is not Axes.EACH)
        waiting += [] if is_scores else [i for i in n.inputs if i is not None]
    large = [n for n in inside if _is_large(n)]
    is_private = all(n not in roots and all(u in inside or u is product for u in users[n]) for n in large)
    shape = weights.spec.shape[:-1]
    # Operands of a block are parts of those of the whole only if the last product has the leading axes of the scores.
    if not (has_scores and works_along_rows and is_private and product.spec.shape[:-1] == shape):
        return None
    block = _block_of(weights.spec)
    return None if block == shape else Blocking(product, shape, block)


def _block_of(scores: Spec) -> tuple[int, ...]:
    """Return the part of the scores that is computed at a time, without the last axis: rows first, then matrices."""
    room = max(BLOCK_BYTES, scores.nbytes // MAX_BLOCKS)
    nbytes = scores.shape[-1] * scores.dtype.nbytes
    block: list[int] = []
    for axis, size in enumerate(reversed(scores.shape[:-1])):
        least = MIN_ROWS if axis == 0 else 1
        block.append(min(size, max(least, room // nbytes)))
        nbytes = nbytes * size if block[-1] == size else room + 1
    return tuple(reversed(block))


def _keeps_rows(n: Node) -> bool:
    """Return True if a row of the result depends on the same row of the operands only."""
    if not isinstance(n.spec, Spec) or not n.inputs:
        return False
    if n.op.kind is Kind.MAP and n.op.axes is Axes.EACH:
        return True
    x, attrs = n.inputs[0], dict(n.attrs)
    if x is None or len(n.inputs) != 1 or n.op.axes not in (Axes.NAMED, Axes.REDUCED):
        return False
    is_last = attrs.get("axis") in (-1, (-1,), len(x.spec.shape) - 1, (len(x.spec.shape) - 1,))
    return is_last and len(n.spec.shape) == len(x.spec.shape)


class Slices:
    """The calls of one block of a product, recorded in a trace. `box` has the part of each axis but the last."""

    def __init__(self, trace: Trace, new: dict[Node, Node], box: tuple[range, ...]) -> None:
        self.trace, self.new, self.box = trace, new, box
        self.known: dict[tuple[Node, bool], Node] = {}

    def slice(self, n: Node, of_rows: bool) -> Node:
        """Return the part of a node inside the box, with these rows or all, computed from parts of its operands if possible."""
        key = (n, of_rows)
        if key not in self.known:
            self.known[key] = self._slice(n, of_rows)
        return self.known[key]

    def _parts(self, shape: tuple[int, ...], of_rows: bool) -> tuple[range, ...]:
        """Return the part of each axis; axes of size 1 and missing ones are broadcast."""
        ends = (*self.box[:-1], self.box[-1] if of_rows else None, None)
        used = ends[len(ends) - len(shape) :] if len(shape) <= len(ends) else (None,) * len(shape)
        return tuple(range(n) if e is None or n == 1 else e for n, e in zip(shape, used, strict=True))

    def _slice(self, n: Node, of_rows: bool) -> Node:
        shape, attrs = n.spec.shape, dict(n.attrs)
        parts = self._parts(shape, of_rows)
        part = tuple(map(len, parts))
        if part == shape:
            return self.new[n]
        inputs: tuple[Node | None, ...] | None = None
        first, second = (*n.inputs, None, None)[:2]
        if n.op is ops.matmul and first is not None and second is not None:
            if len(first.spec.shape) >= 2 and len(second.spec.shape) >= 2:
                inputs = (self.slice(first, of_rows), self.slice(second, False))
        elif _keeps_rows(n):
            inputs = tuple(None if i is None else self.slice(i, of_rows) for i in n.inputs)
        elif n.op in (ops.tril, ops.triu) and first is not None:
            inputs = (self.slice(first, of_rows),)
            attrs["k"] += parts[-2].start  # row r of the whole is row r - start of the part
        elif n.op in (ops.full, ops.broadcast_to):
            inputs = tuple(None if i is None else self.slice(i, of_rows) for i in n.inputs)
            attrs["shape"] = part
        if inputs is not None:
            return self.trace.node(n.op, inputs, Spec(part, n.spec.dtype), attrs)
        key = tuple((r.start, r.stop, 1) for r in parts)
        return self.trace.node(ops.index, (self.new[n],), Spec(part, n.spec.dtype), {"key": key})


def count_operands(operations: tuple[tuple[Op, dict[str, Any]], ...]) -> int:
    """Return how many operands a chain reads besides the results within it."""
    count = 0
    results: tuple[str, ...] = ()
    for k, (op, _) in enumerate(operations):
        count += len([name for name in _needed(op, results) if k == 0 or name != op.inputs[0]])
        results = op.results
    return count


def _needed(op: Op, results: tuple[str, ...]) -> list[str]:
    """Return the inputs that an op must get besides those that the results before it have the names of."""
    return [name for name in op.inputs if name not in op.optional and name not in results[1:]]


def compose(operations: tuple[tuple[Op, dict[str, Any]], ...]) -> Callable[..., Any]:
    """Return the chain as a function: each op takes the result before it, then its share of the operands left.

    Of several results the first is taken, and the others as the inputs of their names: dequantize takes the scales and
    zero points of the quantiser before it, and its groups unless it has its own.
    """

    def chain(*operands: Any) -> Any:
        left = iter(operands)
        result: Any = None
        before: Op | None = None
        for k, (op, attrs) in enumerate(operations):
            if op.variadic:
                result, before = op(*((result,) if k else ()), **attrs), op
                continue
            values = dict(zip(before.results, result, strict=False)) if before is not None and before.results else {}
            named = {name: values[name] for name in op.inputs[1:] if name in values}
            needed = _needed(op, before.results if before is not None else ())
            args = {name: next(left) for name in needed if k == 0 or name != op.inputs[0]}
            if k:
                args[op.inputs[0]] = result[0] if isinstance(result, tuple) else result
            result = op(**args, **named, **_carried(operations, k))
            before = op
        return result

    return chain


def _carried(operations: tuple[tuple[Op, dict[str, Any]], ...], k: int) -> dict[str, Any]:
    """Return the attributes of a step; dequantize takes the groups of the quantiser before it."""
    op, attrs = operations[k]
    before, earlier = operations[k - 1] if k else (None, {})
    if before is None or op is not ops.dequantize or "group" not in before.params or "group" in attrs:
        return attrs
    return {**attrs, "group": before.complete(earlier)["group"]}

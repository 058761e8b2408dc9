"""Fusions a user adds: a chain of rows by name, and a function that computes the same.

Knows nothing of devices. The function is traced like any other, so what it is made of is fused, planned and timed as if
it had been written there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tritium import ops
from tritium.compiler.passes import Note
from tritium.errors import ArgumentError, TritiumError, nearest
from tritium.graph.graph import Graph, Node, Trace, tracing
from tritium.op import OPS, Kind, Op, Trait
from tritium.tensor import Tensor


@dataclass(frozen=True)
class FusionPattern:
    """A chain of rows, each reading the result of the one before, and what to do instead.

    `implementation` takes the operands in the order in which the chain meets them: those of the first row, then of each
    next one what it reads besides. It gives one tensor of the same spec. Its result is compared with that of the rows
    when it is first used.
    """

    name: str
    operations: tuple[str, ...]
    implementation: Callable[..., Tensor]

    def __post_init__(self) -> None:
        if isinstance(self.operations, str):
            raise ArgumentError(f"FusionPattern {self.name!r}: a tuple of rows is needed, given {self.operations!r}.")
        object.__setattr__(self, "operations", tuple(self.operations))
        if not self.operations or not callable(self.implementation):
            raise ArgumentError(f"FusionPattern {self.name!r}: names of rows and a callable are needed.")
        for name in self.operations:
            if name not in OPS:
                raise ArgumentError(f"FusionPattern {self.name!r}: there is no row {name!r}.{nearest(name, OPS)}")
            if OPS[name].kind in (Kind.SOURCE, Kind.DYNAMIC):
                raise ArgumentError(f"FusionPattern {self.name!r}: {name} computes nothing that could be fused.")


MAX_CHECKED = 1024
_patterns: dict[str, FusionPattern] = {}
_checked: dict[FusionPattern, set[Any]] = {}  # by what calls a pattern was compared with its rows
generation = 0  # grows when the patterns change, so that programs made before are made anew
listeners: list[Callable[[], None]] = []  # called then


def add_pattern(pattern: FusionPattern) -> None:
    """Use a pattern from now on; a pattern of the same name is replaced."""
    global generation
    if not isinstance(pattern, FusionPattern):
        raise ArgumentError(f"add_pattern: a FusionPattern is needed, given {type(pattern).__name__}.")
    _patterns[pattern.name] = pattern
    _checked.pop(pattern, None)
    generation += 1
    _tell()


def _tell() -> None:
    for listener in listeners:
        listener()


def remove_pattern(name: str) -> None:
    """Forget a pattern."""
    global generation
    if name not in _patterns:
        raise ArgumentError(f"remove_pattern: there is no pattern {name!r}.{nearest(name, _patterns)}")
    _checked.pop(_patterns.pop(name), None)
    generation += 1
    _tell()


def patterns() -> tuple[FusionPattern, ...]:
    """Those in use, the longest first."""
    return tuple(sorted(_patterns.values(), key=lambda p: -len(p.operations)))


def find(operations: tuple[str, ...]) -> FusionPattern | None:
    """The pattern of exactly this chain."""
    return next((p for p in patterns() if p.operations == operations), None)


def is_checked(pattern: FusionPattern, about: Any) -> bool:
    """Whether a pattern gave what its rows give in a call of such attributes and specs."""
    return about in _checked.get(pattern, ())


def mark_checked(pattern: FusionPattern, about: Any) -> None:
    kept = _checked.setdefault(pattern, set())
    if len(kept) >= MAX_CHECKED:
        kept.clear()
    kept.add(about)


# ---- in graphs


class Applied(NamedTuple):
    """The graph with the implementations in place of their chains."""

    graph: Graph
    origin: dict[Node, Node]
    used: tuple[FusionPattern, ...]
    notes: list[Note]


class _Match(NamedTuple):
    pattern: FusionPattern
    chain: tuple[Node, ...]  # first to last
    operands: tuple[Node, ...]


def apply_patterns(graph: Graph) -> Applied:
    """Every chain that a pattern names, the longest patterns first; what is inside a chain must serve it alone."""
    if not _patterns:
        return Applied(graph, {}, (), [])
    order = graph.order()
    users: dict[Node, list[Node]] = {}
    for n in order:
        for i in n.inputs:
            if i is not None:
                users.setdefault(i, []).append(n)
    taken: set[Node] = set()
    matches: dict[Node, _Match] = {}
    for p in patterns():
        for n in reversed(order):
            found = _match(p, n, users, set(graph.roots), taken)
            if found is not None:
                matches[n] = found
                taken.update(found.chain)
    return _place(graph, order, matches)


def _match(
    p: FusionPattern, last: Node, users: dict[Node, list[Node]], roots: set[Node], taken: set[Node]
) -> _Match | None:
    """The chain that ends at a node, if it is this pattern's."""
    chain = [last]
    besides: list[list[Node]] = []
    for k in range(len(p.operations) - 1, -1, -1):
        n = chain[-1]
        if n.op.name != p.operations[k] or n in taken or not hasattr(n.spec, "dtype"):
            return None
        inputs = [i for i in n.inputs if i is not None]
        if k == 0:
            besides.append(inputs)
            break
        before = _before(n, p.operations[k - 1], users, roots)
        if before is None:
            return None
        besides.append([i for i in inputs if i is not before])
        chain.append(before)
    operands = tuple(i for some in reversed(besides) for i in some)
    return _Match(p, tuple(reversed(chain)), operands)


def _before(n: Node, wanted: str, users: dict[Node, list[Node]], roots: set[Node]) -> Node | None:
    """The node before in a chain: the first operand, or any where the order does not matter."""
    places = n.inputs if n.op.traits & Trait.COMMUTES else n.inputs[:1]
    for i in places:
        if i is not None and i.op.name == wanted and users[i] == [n] and i not in roots:
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
            made = _traced(trace, match, tuple(new[i] for i in match.operands), n)
            if isinstance(made, str):
                notes.append(Note("pattern", match.pattern.name, False, made))
            else:
                new[n] = made
                used.append(match.pattern)
                notes.append(
                    Note("pattern", match.pattern.name, True, f"stands for {'+'.join(match.pattern.operations)}")
                )
        origin.setdefault(new[n], n)
    done = graph._replace(
        outputs=tuple(new[n] for n in graph.outputs),
        writes=tuple((i, new[n]) for i, n in graph.writes),
        captured=trace.captured,
    )
    return Applied(done, origin, tuple(used), notes)


def _traced(trace: Trace, match: _Match, operands: tuple[Node, ...], n: Node) -> Node | str:
    """The implementation written down in place of the chain, or why not."""
    with tracing(trace):
        try:
            result = match.pattern.implementation(*(trace.tensor(i, "argument") for i in operands))
            made = trace.read(result) if isinstance(result, Tensor) else None
        except TritiumError as error:
            return f"its implementation cannot be written down: {error}"
        except Exception as error:
            raise RuntimeError(f"The implementation of the pattern {match.pattern.name!r} failed: {error}") from error
    if made is None or made.spec != n.spec:
        given = getattr(made, "spec", type(result).__name__)
        raise ArgumentError(
            f"FusionPattern {match.pattern.name!r}: its implementation gave {given}, but "
            f"{'+'.join(match.pattern.operations)} gives {n.spec}."
        )
    return made


def compose(operations: tuple[tuple[Op, dict[str, Any]], ...]) -> Callable[..., Any]:
    """The chain itself as a function: each row takes the result before it first, then what is left of the operands."""

    def chain(*operands: Any) -> Any:
        left = list(operands)
        result: Any = None
        for k, (op, attrs) in enumerate(operations):
            count = len(op.inputs) - len(op.optional) - (k > 0)
            rest, left = left[:count], left[count:]
            result = op(*((result,) if k else ()), *rest, **attrs)
        return result

    return chain

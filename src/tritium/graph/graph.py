"""The same calls, written down: nodes from outputs back to inputs, and Trace, who writes them.

Knows nothing of passes or devices. Equal calls give one node, so a repeated expression costs nothing; what no output
needs is never reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from tritium import backends, dtype as dt, ops
from tritium.eager import EAGER, check_count, check_out, constant, lift, spec_of
from tritium.errors import ArgumentError, TraceError
from tritium.fragment import spec_text, value_text
from tritium.garbage import no_collections
from tritium.layout import Layout
from tritium.op import Call, Kind, Op, Spec, exact, interpreter
from tritium.tensor import Tensor


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Node:
    """One call: its row, the nodes it reads, its attributes, and what comes out."""

    op: Op
    inputs: tuple[Node | None, ...]
    attrs: tuple[tuple[str, Any], ...]
    spec: Any  # Spec, or a tuple of Spec
    key: Any = None  # the attributes such that 0.0, -0.0, 0 and False stay apart

    def __repr__(self) -> str:
        return f"<node {self.op.name}: {spec_text(self.spec)}>"


@dataclass(eq=False, slots=True)
class Cell:
    """Memory that does not exist yet: the node that made its present contents. A write replaces the node."""

    node: Node
    nbytes: int  # of the storage it stands for
    owner: str  # "made" inside the traced function, "donated" to it, "argument" or "captured" from outside
    trace: Trace


@dataclass(frozen=True, eq=False, slots=True)
class Traced:
    """Stands where a storage would: a cell and the views taken of it, read anew at each use."""

    cell: Cell
    chain: tuple[tuple[Op, tuple[tuple[str, Any], ...]], ...] = ()
    device: None = None

    @property
    def remedy(self) -> str:
        """What to do for a value."""
        if hasattr(self.cell.trace, "materialize"):
            return "call materialize() on it first"
        return "do this outside the traced function, or use where(…) to choose by value"

    def clone(self) -> Traced:
        """Another cell with the same contents: writes to either are not seen by the other."""
        return Traced(Cell(self.cell.node, self.cell.nbytes, "made", self.cell.trace), self.chain)

    @property
    def nbytes(self) -> int:
        return self.cell.nbytes


class Trace:
    """Records calls. Arguments whose number is in `donate` may be written."""

    def __init__(self, donate: frozenset[int] = frozenset()) -> None:
        self.donate = donate
        self.nodes: dict[Any, Node] = {}
        self.captured: dict[Node, Tensor] = {}
        self.lowest = 0  # index of a captured tensor
        self._cells: dict[int, Cell] = {}  # by identity of the captured tensor's storage and layout

    def node(self, op: Op, inputs: tuple[Node | None, ...], spec: Any, attrs: dict[str, Any]) -> Node:
        frozen = tuple(attrs.items())
        attrs_key = exact(frozen)
        key = (op, inputs, attrs_key, spec)
        found = self.nodes.get(key)
        if found is None:
            found = self.nodes[key] = Node(op, inputs, frozen, spec, attrs_key)
        return found

    def tensor(self, node: Node, owner: str = "made") -> Tensor:
        spec = node.spec
        return Tensor(Traced(Cell(node, spec.nbytes, owner, self)), spec.dtype, spec.shape, spec.strides, 0)

    def argument(self, index: int, like: Spec | Tensor) -> Tensor:
        """An argument; of a tensor also how it lies, which decides whether a view of it is a copy."""
        owner = "donated" if index in self.donate else "argument"
        spec = like.spec if isinstance(like, Tensor) else like
        strides, nbytes = spec.strides, spec.nbytes
        if isinstance(like, Tensor):
            strides, nbytes = like.strides, like.storage.nbytes
        node = self.given(index, spec)
        chain: tuple[Any, ...] = ()
        axes = tuple(sorted(range(spec.ndim), key=lambda d: -abs(strides[d])))
        if strides != spec.strides and axes != tuple(range(spec.ndim)):  # the cell holds it as memory does
            turned = Spec(tuple(spec.shape[d] for d in axes), spec.dtype)
            node = self.node(ops.permute_dims, (node,), turned, {"axes": axes})
            chain = ((ops.permute_dims, (("axes", tuple(axes.index(d) for d in range(spec.ndim))),)),)
        return Tensor(Traced(Cell(node, nbytes, owner, self), chain), spec.dtype, spec.shape, strides, 0)

    def given(self, index: int, spec: Spec) -> Node:
        """The node of an argument (0, 1, …) or of a captured tensor (-1, -2, …)."""
        return self.node(ops.given, (), spec, {"index": index, "spec": spec})

    def read(self, x: Tensor) -> Node:
        """The node of a tensor: its cell's present contents seen through its views. Memory becomes an input."""
        storage = x.storage
        if not isinstance(storage, Traced):
            cell = self._cells.get(id(x))
            if cell is None:
                self.lowest -= 1
                node = self.given(self.lowest, x.spec)
                self.captured[node] = x
                cell = self._cells[id(x)] = Cell(node, x.nbytes, "captured", self)
            return cell.node
        if storage.cell.trace is not self:
            raise TraceError(
                f"A traced tensor {x.spec} of another trace was used here; it has no value outside its own function. "
                f"Pass it as an argument instead."
            )
        node = storage.cell.node
        for op, attrs in storage.chain:
            spec = op.decide((node.spec,), dict(attrs)).out
            node = self.node(op, (node,), spec, dict(attrs))
        return node

    def emit(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any, call: Call | None) -> Any:
        inputs = tuple(x if isinstance(x, Tensor) else lift(x, op, i) for i, x in enumerate(inputs))
        specs = tuple(spec_of(x) for x in inputs)
        decision = op.decide(specs, attrs)
        if op.kind is Kind.DYNAMIC:
            raise TraceError(
                f"{op.name} of {specs[0]}: the size of the result depends on values, which are not known while the graph is "
                f"written down. Use where(…) with a mask, or call {op.name} outside the traced function."
            )
        if op.kind is Kind.VIEW and isinstance(inputs[0], Tensor):
            return self._look(op, inputs[0], attrs, decision.out)
        nodes = tuple(self._operand(x, s) for x, s in zip(inputs, decision.inputs, strict=True))
        attrs = {k: v for k, v in attrs.items() if k != "device" or v is not None}
        node = self.node(op, nodes, decision.out, attrs)
        if out is not None:
            check_count(op, decision.out, out)
        if not isinstance(decision.out, Spec):
            parts = [self.node(ops.item, (node,), s, {"index": i}) for i, s in enumerate(decision.out)]
            return tuple(self.tensor(p) if out is None else self.write(out[i], p, op) for i, p in enumerate(parts))
        return self.tensor(node) if out is None else self.write(out, node, op)

    def _operand(self, x: Any, spec: Spec | None) -> Node | None:
        if x is None or spec is None:
            return None
        if not isinstance(x, Tensor):
            x = bool(x) if spec.dtype is dt.bool_ else x
            dt.check_fits(x, spec.dtype)
            return self.node(ops.const, (), Spec((), spec.dtype), {"value": x, "dtype": spec.dtype})
        node = self.read(x)
        return self.cast(node, spec.dtype)

    def cast(self, node: Node, kind: dt.DType) -> Node:
        if node.spec.dtype is kind:
            return node
        return self.node(ops.astype, (node,), Spec(node.spec.shape, kind), {"dtype": kind, "copy": True})

    def _look(self, op: Op, x: Tensor, attrs: dict[str, Any], spec: Spec) -> Tensor:
        assert op.view is not None
        seen = op.view(x.layout, **attrs)
        frozen = tuple(attrs.items())
        if seen is None or not isinstance(x.storage, Traced):  # a copy in eager, or a view of memory from outside
            return self.tensor(self.node(op, (self.read(x),), spec, attrs), "made" if seen is None else "captured")
        return Tensor(Traced(x.storage.cell, (*x.storage.chain, (op, frozen))), x.dtype, *seen)

    def write(self, out: Tensor, node: Node, op: Op) -> Tensor:
        """Replace what a cell holds, whole or through a view."""
        storage = out.storage
        if not isinstance(storage, Traced) or storage.cell.owner not in ("made", "donated"):
            raise TraceError(
                f"{op.name}: the traced function writes to {_whose(storage)} ({out.spec}). Write to a copy: y = x.clone()."
                + (" Or let it be written: compile(fn, donate=…)." if _whose(storage) == "an argument" else "")
            )
        check_out(op, node.spec, out)
        node = self.cast(node, out.dtype)
        cell = storage.cell
        whole = cell.node.spec
        if not storage.chain:
            cell.node = node
        else:
            part = Layout(whole.shape, whole.strides, 0)  # the row sees the whole lying row by row
            for view, attrs in storage.chain:
                assert view.view is not None
                seen = view.view(part, **dict(attrs))
                assert seen is not None  # it was one where there may be gaps
                part = seen
            cell.node = self.node(ops.update, (cell.node, node), whole, {"layout": part})
        return out


def _whose(storage: Any) -> str:
    if not isinstance(storage, Traced):
        return "a tensor from outside"
    return "an argument" if storage.cell.owner == "argument" else f"a tensor that was {storage.cell.owner}"


class Joined(NamedTuple):
    """Nodes that a device carries out as one call, where the last of them stands. No other node reads what is inside."""

    nodes: tuple[Node, ...]
    call: Callable[[dict[Node, Any]], dict[Node, Any]]  # from the values known so far to those that others read


class Graph(NamedTuple):
    """A function written down: arguments, results, and the tensors it captured."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    captured: dict[Node, Tensor]
    single: bool  # the function returned one tensor, not a tuple
    writes: tuple[tuple[int, Node], ...] = ()  # of a donated argument: its number, and what it holds at the end
    returned: tuple[
        int | None, ...
    ] = ()  # of each result: the donated argument that it is; else it is the caller's own

    @property
    def roots(self) -> tuple[Node, ...]:
        """What must be computed: the results, and what donated arguments will hold."""
        return (*self.outputs, *(n for _, n in self.writes))

    def order(self, known: frozenset[Node] = frozenset()) -> list[Node]:
        """Every node the roots need, inputs first. What is not needed is not here, nor what `known` nodes need."""
        done: dict[Node, None] = {}
        stack = [(n, False) for n in reversed(self.roots)]
        while stack:
            node, ready = stack.pop()
            if node in done:
                continue
            if ready or node in known:
                done[node] = None
            else:
                stack += [(node, True), *((i, False) for i in reversed(node.inputs) if i is not None)]
        return list(done)

    def calls(self) -> list[Node]:
        """Those of `order` that are computed: not what is there, nor what only looks at it."""
        return [n for n in self.order() if n.op.kind not in (Kind.VIEW, Kind.SOURCE)]

    def __call__(self, *args: Tensor) -> Any:
        """Run the nodes one after another on real tensors."""
        if len(args) != len(self.inputs):
            raise ArgumentError(f"The graph takes {len(self.inputs)} tensors, {len(args)} were given.")
        env: dict[Node, Any] = dict(self.captured)
        for node, x in zip(self.inputs, args, strict=True):
            if not isinstance(x, Tensor):
                raise ArgumentError(
                    f"The graph takes tensors, given {type(x).__name__}; make one with tritium.asarray(…)."
                )
            if x.spec != node.spec:
                raise ArgumentError(f"Argument {dict(node.attrs)['index']} must be {node.spec}, given {x.spec}.")
            env[node] = x
        now = interpreter.get()
        return self.results(self.run(env), args) if now is None else self._written_into(now, env)

    def _written_into(self, now: Any, env: dict[Node, Any]) -> Any:
        """The nodes once more, in another trace."""
        if self.writes:
            raise TraceError(
                "A graph that writes a donated argument cannot be part of another trace; call its function."
            )
        for node in self.order():
            if node in env:
                continue
            attrs = dict(node.attrs)
            xs = tuple(None if i is None else env[i] for i in node.inputs)
            if node.op is ops.const:
                attrs = {"shape": (), "fill_value": attrs["value"], "dtype": attrs["dtype"], "device": None}
                env[node] = now.emit(ops.full, (), attrs, None, None)
            elif node.op is ops.item and node.inputs[0] is not None:
                env[node] = env[node.inputs[0]][attrs["index"]]
            else:
                env[node] = now.emit(node.op, xs, attrs, None, None)
        results = tuple(env[n] for n in self.outputs)
        return results[0] if self.single else results

    def run(
        self, env: dict[Node, Any], keep: bool = False, over: bool = False, joined: Sequence[Joined] = ()
    ) -> dict[Node, Any]:
        """The value of every root (with `keep`, of every node), from those of the inputs. `over`: what a donated argument becomes
        is written over it at once, where nobody reads the argument any more. `joined`: what is carried out as one call."""
        order = self.order()
        places = (
            {n: self.inputs[i] for i, n in self.writes if n.op.inplace and n.inputs[:1] == (self.inputs[i],)}
            if over
            else {}
        )
        device = next((x.device for x in env.values()), None)
        left: dict[Node, int] = {}
        for node in order:
            for i in node.inputs:
                if i is not None:
                    left[i] = left.get(i, 0) + 1
        for node in self.roots:
            left[node] = left.get(node, 0) + 1
        last = {j.nodes[-1]: j for j in joined}
        inside = {n for j in joined for n in j.nodes[:-1]}
        for node in order:
            if node in inside:
                continue
            group = last.get(node)
            if group is not None:
                env.update(group.call(env))
            elif node not in env:
                xs = [None if i is None else env[i] for i in node.inputs]
                to = places.get(node)
                out = env[to] if to is not None and left[to] == 1 and not _is_seen(to, env, left) else None
                env[node] = run_node(node, xs, device, out)
            for i in (i for n in (group.nodes if group is not None else (node,)) for i in n.inputs):
                if i is not None:
                    left[i] -= 1
                    if not keep and not left[i] and i.op is not ops.given:
                        env.pop(i, None)  # its memory serves the next node
        return env

    def results(self, env: dict[Node, Any], args: tuple[Tensor, ...]) -> Any:
        """What the caller gets: tensors of its own; donated arguments are written."""
        taken = {id(x.storage) for x in (*args, *self.captured.values())}
        results: list[Tensor] = []
        for n, same in zip_longest(self.outputs, self.returned):
            if same is not None:
                results.append(args[same])
                continue
            # Every result is the caller's own; sharing memory until written costs nothing.
            results.append(env[n].clone() if id(env[n].storage) in taken else env[n])
            taken.add(id(results[-1].storage))
        news = [(args[i], env[n].clone()) for i, n in self.writes if env[n] is not args[i]]
        for to, value in news:
            ops.copy(value, out=to)
        return results[0] if self.single else tuple(results)

    def find_fusion_opportunities(self) -> Any:
        """Groups of nodes that can be one call, with the bytes and the time that should save."""
        return _ask("find_fusion_opportunities")(self)

    def generate_execution_plan(self) -> Any:
        """The steps a program of this graph runs, where their results lie, and how long they should take."""
        return _ask("generate_execution_plan")(self)

    def topological_sort(self) -> list[Node]:
        """The nodes in an order in which each comes after all it reads; the same every time."""
        return self.order()

    def __str__(self) -> str:
        return self.text()

    def text(self, names: Mapping[Node, str] | None = None) -> str:
        """One line for each node, inputs that nothing reads last; `names` follow as comments. `graph.text.parse` reads it."""
        order = dict.fromkeys((*self.order(), *self.inputs, *self.captured))
        number = {node: f"%{i}" for i, node in enumerate(order)}
        lines = []
        for n in order:
            args = ["none" if i is None else number[i] for i in n.inputs] + [f"{k}={value_text(v)}" for k, v in n.attrs]
            line = f"{number[n]}: {spec_text(n.spec)} = {n.op.name}({', '.join(args)})"
            lines.append(f"{line}  # {names[n]}" if names and n in names else line)
        lines += [f"write {i} = {number[n]}" for i, n in self.writes]
        results = ", ".join(number[n] for n in self.outputs)
        alone = len(self.outputs) == 1 and not self.single  # a tuple of one, as Python writes it
        return "\n".join([*lines, f"return {results}{',' if alone else ''}".rstrip()])

    def svg(self) -> str:
        """A picture of the graph."""
        found: str = _ask("svg")(self)
        return found


answers: dict[str, Callable[[Graph], Any]] = {}  # what those above know of a graph; each puts its own here


def _ask(what: str) -> Callable[[Graph], Any]:
    if what not in answers:
        raise ArgumentError(f"Graph.{what}: nobody knows it yet; import tritium and make graphs with tritium.trace.")
    return answers[what]


def _is_seen(base: Node, env: Mapping[Node, Any], left: Mapping[Node, int]) -> bool:
    """Whether a view of a node, or a view of one, is still to be read."""

    def under(n: Node) -> Node:
        while n.op.kind is Kind.VIEW and n.inputs[0] is not None:
            n = n.inputs[0]
        return n

    return any(n is not base and left.get(n, 0) and under(n) is base for n in env)


def run_node(node: Node, xs: list[Any], device: Any, out: Any = None) -> Any:
    attrs = dict(node.attrs)
    if node.op is ops.const:
        return constant(attrs["value"], attrs["dtype"], device or backends.device(None))
    if node.op is ops.item:
        return xs[0][attrs["index"]]
    if node.op.kind is Kind.SOURCE and device is not None:
        attrs.setdefault("device", device)
    return EAGER.emit(node.op, tuple(xs), attrs, out, None)


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    token = interpreter.set(trace)
    try:
        yield trace
    finally:
        interpreter.reset(token)


def trace(fn: Callable[..., Any], *specs: Spec | Tensor, donate: Iterable[int] = ()) -> Graph:
    """Write down what fn does with tensors of these specs. Tensors it meets besides become captured inputs.

    A tensor stands for its spec and its layout: whether a reshape of it is a view or a copy. `donate` numbers the
    arguments that fn may write: at the end they hold what it left there.
    """
    if not callable(fn):
        raise ArgumentError(f"trace: a function is needed, given {type(fn).__name__}.")
    given: list[Spec | Tensor] = []
    for s in specs:
        if not isinstance(s, (Tensor, Spec)):
            raise ArgumentError(f"trace: {s!r} is not a Spec or a tensor; describe each argument as Spec((2, 3), f32).")
        given.append(s if isinstance(s, Tensor) else Spec(ops.size_of(s.shape), dt.dtype(s.dtype)))
    donated = frozenset(donate)
    if not donated <= frozenset(range(len(given))):
        raise ArgumentError(
            f"trace: donate={sorted(donated)} names arguments that are not there; there are {len(given)}."
        )
    with no_collections(), tracing(Trace(donated)) as t:  # many small objects and no garbage: to walk them takes time
        arguments = [t.argument(i, s) for i, s in enumerate(given)]
        inputs = tuple(t.given(i, a.spec) for i, a in enumerate(arguments))
        before = [a.storage.cell.node for a in arguments]
        result = fn(*arguments)
        several = result if isinstance(result, tuple) else (result,)
        for r in several:
            if not isinstance(r, Tensor):
                raise TraceError(
                    f"trace: the function returned {type(r).__name__}; return a tensor or a tuple of tensors."
                )
        outputs = tuple(t.read(r) for r in several)
        changed = [i for i in sorted(donated) if arguments[i].storage.cell.node is not before[i]]
        writes = tuple((i, t.read(arguments[i])) for i in changed)
        written = {i: arguments[i] for i, _ in writes}
        same = tuple(next((i for i, a in written.items() if _is(r, a)), None) for r in several)
        return Graph(inputs, outputs, t.captured, not isinstance(result, tuple), writes, same)


def _is(result: Tensor, argument: Tensor) -> bool:
    """Whether a result is an argument itself: its cell, and all of it."""
    mine, its = result.storage, argument.storage
    return isinstance(mine, Traced) and mine.cell is its.cell and mine.chain == its.chain

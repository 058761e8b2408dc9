"""Graph and Trace: the calls of a function as nodes linked from outputs to inputs, and the interpreter that records them.

Knows nothing of passes or devices. Equal calls share one node, so a repeated expression costs nothing; nodes that no
output needs are never reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from tritium import backends, dtype as dt, ops
from tritium.eager import EAGER, check_count, check_out, constant, lift, spec_of
from tritium.errors import ArgumentError, TraceError, checked, checked_except
from tritium.fragment import spec_text, value_text
from tritium.garbage import no_collections
from tritium.layout import Layout
from tritium.op import Call, Kind, Op, Spec, exact, interpreter
from tritium.tensor import Tensor


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Node:
    """One call: its op, input nodes and attributes, and the spec of its result."""

    op: Op
    inputs: tuple[Node | None, ...]
    attrs: tuple[tuple[str, Any], ...]
    spec: Any  # Spec, or a tuple of Spec
    key: Any = None  # the attributes, hashable, with 0.0, -0.0, 0 and False distinct

    def __repr__(self) -> str:
        return f"<node {self.op.name}: {spec_text(self.spec)}>"


@dataclass(eq=False, slots=True)
class Cell:
    """A storage that does not exist yet: the node that computes its current contents. A write replaces the node."""

    node: Node
    nbytes: int  # of the storage
    owner: str  # "made" inside the traced function, "donated" to it, "argument" or "captured" from outside
    trace: Trace


@dataclass(frozen=True, eq=False, slots=True)
class Traced:
    """The storage of a traced tensor: a cell and the chain of views of it, evaluated at each use."""

    cell: Cell
    chain: tuple[tuple[Op, tuple[tuple[str, Any], ...]], ...] = ()
    device: None = None

    @property
    def remedy(self) -> str:
        """Return advice for an error message: what to do to get at a value."""
        if hasattr(self.cell.trace, "materialize"):
            return "call materialize() on it first"
        return "do this outside the traced function, or use where(…) to choose by value"

    def clone(self) -> Traced:
        """Return another cell with the same contents: a write to one does not change the other."""
        return Traced(Cell(self.cell.node, self.cell.nbytes, "made", self.cell.trace), self.chain)

    @property
    def nbytes(self) -> int:
        return self.cell.nbytes


class Trace:
    """An interpreter that records calls as nodes. Arguments whose index is in `donate` may be written."""

    def __init__(self, donate: frozenset[int] = frozenset()) -> None:
        self.donate = donate
        self.nodes: dict[Any, Node] = {}
        self.captured: dict[Node, Tensor] = {}
        self.lowest = 0  # index of the last captured tensor: -1, -2, …
        self._cells: dict[int, Cell] = {}  # by id() of the captured tensor

    def node(self, op: Op, inputs: tuple[Node | None, ...], spec: Any, attrs: dict[str, Any]) -> Node:
        frozen = tuple(attrs.items())
        attrs_key = exact(frozen)
        key = (op, inputs, attrs_key, spec)
        node = self.nodes.get(key)
        if node is None:
            node = self.nodes[key] = Node(op, inputs, frozen, spec, attrs_key)
        return node

    def tensor(self, node: Node, owner: str = "made") -> Tensor:
        spec = node.spec
        return Tensor(Traced(Cell(node, spec.nbytes, owner, self)), spec.dtype, spec.shape, spec.strides, 0)

    def argument(self, index: int, like: Spec | Tensor) -> Tensor:
        """Return the tensor of an argument. Strides of a tensor `like` are kept: they decide whether a view is a copy."""
        owner = "donated" if index in self.donate else "argument"
        spec = like.spec if isinstance(like, Tensor) else like
        strides, nbytes = spec.strides, spec.nbytes
        if isinstance(like, Tensor):
            strides, nbytes = like.strides, like.storage.nbytes
        node = self.placeholder(index, spec)
        chain: tuple[Any, ...] = ()
        axes = tuple(sorted(range(spec.ndim), key=lambda d: -abs(strides[d])))
        if strides != spec.strides and axes != tuple(range(spec.ndim)):  # the cell's axes are in memory order
            turned = Spec(tuple(spec.shape[d] for d in axes), spec.dtype)
            node = self.node(ops.permute_dims, (node,), turned, {"axes": axes})
            chain = ((ops.permute_dims, (("axes", tuple(axes.index(d) for d in range(spec.ndim))),)),)
        return Tensor(Traced(Cell(node, nbytes, owner, self), chain), spec.dtype, spec.shape, strides, 0)

    def placeholder(self, index: int, spec: Spec) -> Node:
        """Return the node of an argument (0, 1, …) or of a captured tensor (-1, -2, …)."""
        return self.node(ops.given, (), spec, {"index": index, "spec": spec})

    def read(self, x: Tensor) -> Node:
        """Return the node of a tensor: its cell's current contents through its views. A real tensor becomes an input."""
        storage = x.storage
        if not isinstance(storage, Traced):
            cell = self._cells.get(id(x))
            if cell is None:
                self.lowest -= 1
                node = self.placeholder(self.lowest, x.spec)
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
                f"traced. Use where(…) with a mask, or call {op.name} outside the traced function."
            )
        if op.kind is Kind.VIEW and isinstance(inputs[0], Tensor):
            return self._view(op, inputs[0], attrs, decision.out)
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

    def _view(self, op: Op, x: Tensor, attrs: dict[str, Any], spec: Spec) -> Tensor:
        assert op.view is not None
        seen = op.view(x.layout, **attrs)
        frozen = tuple(attrs.items())
        if seen is None or not isinstance(x.storage, Traced):  # a copy in eager, or a view of memory from outside
            return self.tensor(self.node(op, (self.read(x),), spec, attrs), "made" if seen is None else "captured")
        return Tensor(Traced(x.storage.cell, (*x.storage.chain, (op, frozen))), x.dtype, *seen)

    def write(self, out: Tensor, node: Node, op: Op) -> Tensor:
        """Replace the contents of a cell: all of it, or the part that a view selects."""
        storage = out.storage
        if not isinstance(storage, Traced) or storage.cell.owner not in ("made", "donated"):
            raise TraceError(
                f"{op.name}: the traced function writes to {_describe(storage)} ({out.spec}). Write to a copy: y = x.clone()."
                + (" Or let it be written: compile(fn, donate=…)." if _describe(storage) == "an argument" else "")
            )
        check_out(op, node.spec, out)
        node = self.cast(node, out.dtype)
        cell = storage.cell
        whole = cell.node.spec
        if not storage.chain:
            cell.node = node
        else:
            part = Layout(whole.shape, whole.strides, 0)  # the op sees the whole as contiguous
            for view, attrs in storage.chain:
                assert view.view is not None
                seen = view.view(part, **dict(attrs))
                assert seen is not None  # it was a view of strided memory, so it is one here
                part = seen
            cell.node = self.node(ops.update, (cell.node, node), whole, {"layout": part})
        return out


def _describe(storage: Any) -> str:
    """Return the kind of tensor a storage belongs to, for an error message."""
    if not isinstance(storage, Traced):
        return "a tensor from outside"
    return "an argument" if storage.cell.owner == "argument" else f"a tensor that was {storage.cell.owner}"


class Joined(NamedTuple):
    """Nodes that a device runs as one call, in place of the last of them. No node outside reads an inner one."""

    nodes: tuple[Node, ...]
    call: Callable[[dict[Node, Any]], dict[Node, Any]]  # from the values computed so far to those that other nodes read


class Graph(NamedTuple):
    """A traced function: its inputs, its outputs, and the tensors it captured."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    captured: dict[Node, Tensor]
    single: bool  # the function returned one tensor, not a tuple
    writes: tuple[tuple[int, Node], ...] = ()  # index of a donated argument, and its final value
    returned: tuple[int | None, ...] = ()  # for each output: the index of the donated argument that it is, or None

    @property
    def roots(self) -> tuple[Node, ...]:
        """Return the nodes that must be computed: the outputs, and the final values of donated arguments."""
        return (*self.outputs, *(n for _, n in self.writes))

    @checked
    def order(self, known: frozenset[Node] = frozenset()) -> list[Node]:
        """Return every node the roots need, inputs first. Nodes that only `known` nodes need are left out."""
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

    @checked
    def calls(self) -> list[Node]:
        """Return the nodes of `order` that run a kernel: no sources and no views."""
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
        active = interpreter.get()
        return self.results(self.run(env), args) if active is None else self._record_into(active, env)

    def _record_into(self, trace: Any, env: dict[Node, Any]) -> Any:
        """Record the nodes again, in another trace."""
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
                env[node] = trace.emit(ops.full, (), attrs, None, None)
            elif node.op is ops.item and node.inputs[0] is not None:
                env[node] = env[node.inputs[0]][attrs["index"]]
            else:
                env[node] = trace.emit(node.op, xs, attrs, None, None)
        results = tuple(env[n] for n in self.outputs)
        return results[0] if self.single else results

    def run(
        self, env: dict[Node, Any], keep: bool = False, over: bool = False, joined: Sequence[Joined] = ()
    ) -> dict[Node, Any]:
        """Compute the value of every root (with `keep`, of every node) from those of the inputs.

        `over`: write the final value of a donated argument over it at once if no later node reads the argument.
        `joined`: groups of nodes that run as one call.
        """
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
                out = env[to] if to is not None and left[to] == 1 and not _has_live_view(to, env, left) else None
                env[node] = run_node(node, xs, device, out)
            for i in (i for n in (group.nodes if group is not None else (node,)) for i in n.inputs):
                if i is not None:
                    left[i] -= 1
                    if not keep and not left[i] and i.op is not ops.given:
                        env.pop(i, None)  # its memory serves the next node
        return env

    def results(self, env: dict[Node, Any], args: tuple[Tensor, ...]) -> Any:
        """Return the results in memory of the caller's own, and write donated arguments."""
        shared = {id(x.storage) for x in (*args, *self.captured.values())}
        results: list[Tensor] = []
        for n, same in zip_longest(self.outputs, self.returned):
            if same is not None:
                results.append(args[same])
                continue
            # Every result is the caller's own; sharing memory until written costs nothing.
            results.append(env[n].clone() if id(env[n].storage) in shared else env[n])
            shared.add(id(results[-1].storage))
        news = [(args[i], env[n].clone()) for i, n in self.writes if env[n] is not args[i]]
        for to, value in news:
            ops.copy(value, out=to)
        return results[0] if self.single else tuple(results)

    @checked
    def find_fusion_opportunities(self) -> Any:
        """Return groups of nodes that can run as one call, with the bytes and the time that should save."""
        return _method("find_fusion_opportunities")(self)

    @checked
    def generate_execution_plan(self) -> Any:
        """Return the steps a program of this graph runs, the memory of their results, and their estimated time."""
        return _method("generate_execution_plan")(self)

    @checked
    def topological_sort(self) -> list[Node]:
        """Return the nodes such that each comes after its inputs; the order is deterministic."""
        return self.order()

    def __str__(self) -> str:
        return self.text()

    @checked
    def text(self, names: Mapping[Node, str] | None = None) -> str:
        """Return one line per node, unused inputs last, with `names` as comments. `graph.text.parse` reads it back."""
        order = dict.fromkeys((*self.order(), *self.inputs, *self.captured))
        number = {node: f"%{i}" for i, node in enumerate(order)}
        lines = []
        for n in order:
            args = ["none" if i is None else number[i] for i in n.inputs] + [f"{k}={value_text(v)}" for k, v in n.attrs]
            line = f"{number[n]}: {spec_text(n.spec)} = {n.op.name}({', '.join(args)})"
            lines.append(f"{line}  # {names[n]}" if names and n in names else line)
        lines += [f"write {i} = {number[n]}" for i, n in self.writes]
        results = ", ".join(number[n] for n in self.outputs)
        alone = len(self.outputs) == 1 and not self.single  # a trailing comma marks a tuple of one
        return "\n".join([*lines, f"return {results}{',' if alone else ''}".rstrip()])

    @checked
    def svg(self) -> str:
        """Return a picture of the graph as SVG."""
        picture: str = _method("svg")(self)
        return picture


methods: dict[str, Callable[[Graph], Any]] = {}  # implemented in modules that import this one; each registers its own


def _method(name: str) -> Callable[[Graph], Any]:
    if name not in methods:
        raise ArgumentError(f"Graph.{name} is not loaded; import tritium and make graphs with tritium.trace.")
    return methods[name]


def _has_live_view(base: Node, env: Mapping[Node, Any], left: Mapping[Node, int]) -> bool:
    """Return True if a later node reads a view of this node, direct or through other views."""

    def root(n: Node) -> Node:
        while n.op.kind is Kind.VIEW and n.inputs[0] is not None:
            n = n.inputs[0]
        return n

    return any(n is not base and left.get(n, 0) and root(n) is base for n in env)


def run_node(node: Node, xs: list[Any], device: Any, out: Any = None) -> Any:
    """Run one node eagerly on the values of its inputs."""
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
    """Record the calls inside the with block in a trace."""
    token = interpreter.set(trace)
    try:
        yield trace
    finally:
        interpreter.reset(token)


@checked_except("specs")
def trace(fn: Callable[..., Any], *specs: Spec | Tensor, donate: Iterable[int] = ()) -> Graph:
    """Record the calls of fn on tensors of these specs as a graph. Other tensors that it reads become captured inputs.

    A tensor in place of a spec also fixes the layout, which decides whether a reshape is a view or a copy. `donate` lists
    the indices of arguments that fn may write; a call of the graph then writes them too.
    """
    if not callable(fn):
        raise ArgumentError(f"trace: a function is needed, given {type(fn).__name__}.")
    descriptions: list[Spec | Tensor] = []
    for s in specs:
        if not isinstance(s, (Tensor, Spec)):
            raise ArgumentError(f"trace: {s!r} is not a Spec or a tensor; describe each argument as Spec((2, 3), f32).")
        descriptions.append(s if isinstance(s, Tensor) else Spec(ops.size_of(s.shape), dt.dtype(s.dtype)))
    donated = frozenset(donate)
    if not donated <= frozenset(range(len(descriptions))):
        raise ArgumentError(
            f"trace: donate={sorted(donated)} names arguments that do not exist; there are {len(descriptions)}."
        )
    with (
        no_collections(),
        tracing(Trace(donated)) as t,
    ):  # many small objects and no garbage: a collection would only cost time
        arguments = [t.argument(i, s) for i, s in enumerate(descriptions)]
        inputs = tuple(t.placeholder(i, a.spec) for i, a in enumerate(arguments))
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
        same = tuple(next((i for i, a in written.items() if _is_argument(r, a)), None) for r in several)
        return Graph(inputs, outputs, t.captured, not isinstance(result, tuple), writes, same)


def _is_argument(result: Tensor, argument: Tensor) -> bool:
    """Return True if a result is all of an argument: the same cell and the same views."""
    storage, other = result.storage, argument.storage
    return isinstance(storage, Traced) and storage.cell is other.cell and storage.chain == other.chain

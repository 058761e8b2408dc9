"""Graph and Trace: the calls of a function as nodes linked from outputs to inputs, and the interpreter that records them.

Equal calls share one node, so a repeated expression costs nothing; nodes that no output needs are never reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from threading import get_ident
from typing import Any, ClassVar, NamedTuple

from tritium import backends, dtype as dt, ops, recording
from tritium.arguments import checked, checked_except
from tritium.buffer import native
from tritium.eager import EAGER, check_count, check_out, constant, lift, spec_of
from tritium.errors import ArgumentError, TraceError, shown
from tritium.fragment import spec_text, value_text
from tritium.garbage import no_collections
from tritium.graph.number import Number
from tritium.graph.size import Sizes, is_varying
from tritium.layout import Layout
from tritium.op import Call, Kind, Op, Spec, exact, interpreter
from tritium.tensor import Tensor

# Members by names of their own: Python 3.11 takes ten times as long to read one from its enum.
VIEW, SOURCE, DYNAMIC = Kind.VIEW, Kind.SOURCE, Kind.DYNAMIC


@dataclass(eq=False, slots=True, repr=False)
class Node:
    """One call: its op, input nodes and attributes, and the spec of its result. Never changed: equal calls share it."""

    # Not frozen: a frozen dataclass takes three times as long to make, and a long graph has many nodes.

    op: Op
    inputs: tuple[Node | None, ...]
    attrs: tuple[tuple[str, Any], ...]
    spec: Any  # Spec, or a tuple of Spec
    key: Any = None  # the attributes, hashable, with 0.0, -0.0, 0 and False distinct

    def __repr__(self) -> str:
        return f"<node {self.op.name}: {spec_text(self.spec)}>"


@dataclass(eq=False, slots=True, weakref_slot=True)
class Cell:
    """A storage that does not exist yet: the node that computes its current contents. A write replaces the node."""

    node: Node
    nbytes: int | None  # of the storage; None: those of the node
    owner: str  # "made" inside the traced function, "donated" to it, "argument" or "captured" from outside
    trace: Trace


@dataclass(eq=False, slots=True)
class Traced:
    """The storage of a traced tensor: a cell and the chain of views of it, evaluated at each use."""

    cell: Cell
    chain: tuple[tuple[Op, tuple[tuple[str, Any], ...]], ...] = ()
    device: ClassVar[None] = None

    @property
    def remedy(self) -> str:
        """Return advice for an error message: what to do to get at a value."""
        if hasattr(self.cell.trace, "materialize"):
            return "it is lazy: call materialize() first, which has its own memory"
        return "do this outside the traced function, or use where(…) to choose by value"

    def clone(self) -> Traced:
        """Return another cell with the same contents: a write to one does not change the other."""
        return Traced(Cell(self.cell.node, self.cell.nbytes, "made", self.cell.trace), self.chain)

    @property
    def nbytes(self) -> int:
        nbytes: int = self.cell.node.spec.nbytes if self.cell.nbytes is None else self.cell.nbytes
        return nbytes


class Trace:
    """An interpreter that records calls as nodes. Arguments whose index is in `donate` may be written."""

    def __init__(self, donate: frozenset[int] = frozenset()) -> None:
        self.donate = donate
        self.nodes: dict[Any, Node] = {}
        self.captured: dict[Node, Tensor] = {}
        self.lowest = 0  # index of the last captured tensor: -1, -2, …
        self._inputs: dict[int, Node] = {}  # by id() of the captured tensor
        self._computed: dict[Node, Node] = {}  # from the node of a lazy tensor to its value, which is captured
        self.scopes: dict[Node, str] = {}  # of nodes that were recorded inside `scope`: their names, outer first
        self.open_scopes: list[str] = []

    def node(self, op: Op, inputs: tuple[Node | None, ...], spec: Any, attrs: dict[str, Any]) -> Node:
        return self._intern(op, inputs, spec, tuple(attrs.items()))

    def _intern(self, op: Op, inputs: tuple[Node | None, ...], spec: Any, frozen: tuple[tuple[str, Any], ...]) -> Node:
        """Return the node of a call; equal calls share one."""
        attrs_key = exact(frozen) if frozen else ()
        key: tuple[Any, ...] = (op, inputs, attrs_key)  # which decide the spec of nearly all calls
        node = self.nodes.get(key)
        if node is not None and node.spec != spec:
            key = (op, inputs, attrs_key, spec)
            node = self.nodes.get(key)
        if node is None:
            node = self.nodes[key] = Node(op, inputs, frozen, spec, attrs_key)
            if self.open_scopes:
                self.scopes[node] = "/".join(self.open_scopes)
        return node

    def tensor(self, node: Node, owner: str = "made") -> Tensor:
        spec = node.spec
        return Tensor(Traced(Cell(node, None, owner, self)), spec.dtype, spec.shape, spec.strides, 0)

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
        if type(storage) is Traced and storage.cell.trace is self:
            node = storage.cell.node
            for op, frozen in storage.chain:
                node = self._intern(op, (node,), op.decide((node.spec,), dict(frozen)).out, frozen)
            return node
        if not isinstance(storage, Traced):
            captured = self._inputs.get(id(x))
            if captured is None:
                self.lowest -= 1
                captured = self._inputs[id(x)] = self.placeholder(self.lowest, x.spec)
                self.captured[captured] = x
            return captured
        if x._is_lazy:
            return self._read_computed(x)
        raise TraceError(
            f"A traced tensor {x.spec} of another trace was used here; it has no value outside its own function. "
            f"Pass it as an argument instead."
        )

    def _read_computed(self, x: Tensor) -> Node:
        """Return the node of a lazy tensor of another trace: its value is captured."""
        node = x.storage.cell.trace.read(x)
        if node not in self._computed:
            value = x.materialize()
            self.lowest -= 1
            self._computed[node] = self.placeholder(self.lowest, value.spec)
            self.captured[self._computed[node]] = value
        return self._computed[node]

    def emit(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any, call: Call | None) -> Any:
        nodes: list[Node | None] = []  # of tensors of this trace without views; None for what takes more to read
        specs = []
        for x in inputs:
            if not isinstance(x, Tensor):
                inputs = tuple([x if isinstance(x, Tensor) else lift(x, op, i, inputs) for i, x in enumerate(inputs)])
                specs, nodes = [_spec_of(x) for x in inputs], [None] * len(inputs)
                break
            node = self._node_of(x)
            nodes.append(node)
            specs.append(_spec_of(x) if node is None else node.spec)
        decision = op.decide(tuple(specs), attrs)
        if op.kind is DYNAMIC:
            raise TraceError(
                f"{op.name} of {specs[0]}: the size of the result depends on values, which are not known while the graph is "
                f"traced. Use where(…) with a mask, or call {op.name} outside the traced function."
            )
        if op.kind is VIEW and isinstance(inputs[0], Tensor):
            return self._view(op, inputs[0], attrs, decision.out)
        for i, spec in enumerate(decision.inputs):
            node = nodes[i]
            if node is None or spec is None or node.spec.dtype is not spec.dtype:
                nodes[i] = self._operand(inputs[i], spec)
        if "device" in attrs and attrs["device"] is None:
            attrs = {k: v for k, v in attrs.items() if k != "device"}
        call_node = self._intern(op, tuple(nodes), decision.out, tuple(attrs.items()) if attrs else ())
        if out is not None:
            check_count(op, decision.out, out)
        if not isinstance(decision.out, Spec):
            parts = [self.node(ops.item, (call_node,), s, {"index": i}) for i, s in enumerate(decision.out)]
            to = (None,) * len(parts) if out is None else out
            return tuple(self.tensor(p) if o is None else self.write(o, p, op) for p, o in zip(parts, to, strict=True))
        return self.tensor(call_node) if out is None else self.write(out, call_node, op)

    def _node_of(self, x: Tensor) -> Node | None:
        """Return the node of a tensor of this trace, if it has no views; else None."""
        storage = x.storage
        if type(storage) is Traced and not storage.chain and storage.cell.trace is self:
            return storage.cell.node
        return None

    @contextmanager
    def function(self) -> Iterator[None]:
        """Run the traced function inside the with block."""
        yield

    def close(self) -> None:
        """Forget calls and inputs: a traced tensor that outlives the function keeps the trace alive."""
        self.nodes, self._inputs, self._computed = {}, {}, {}

    def _operand(self, x: Any, spec: Spec | None) -> Node | None:
        if x is None or spec is None:
            return None
        if isinstance(x, Tensor):
            node = self.read(x)
            return node if node.spec.dtype is spec.dtype else self.cast(node, spec.dtype)
        if type(x) is Number and spec.dtype is not dt.bool_:
            dt.check_fits(x.traced, spec.dtype)
            return self.placeholder(x.numbers.index(x, spec.dtype), Spec((), spec.dtype))
        x = bool(x) if spec.dtype is dt.bool_ else x
        dt.check_fits(x, spec.dtype)
        if is_varying(x):  # a tensor of one number, which is computed for the sizes of a call
            return self.node(ops.full, (), Spec((), spec.dtype), {"shape": (), "fill_value": x, "dtype": spec.dtype})
        return self.node(ops.const, (), Spec((), spec.dtype), {"value": x, "dtype": spec.dtype})

    def cast(self, node: Node, kind: dt.DType) -> Node:
        if node.spec.dtype is kind:
            return node
        return self.node(ops.astype, (node,), Spec(node.spec.shape, kind), {"dtype": kind, "copy": True})

    def _view(self, op: Op, x: Tensor, attrs: dict[str, Any], spec: Spec) -> Tensor:
        assert op.view is not None
        seen = op.view(x.layout, **attrs)
        storage = x.storage
        if seen is None or not isinstance(storage, Traced):  # a copy in eager, or a view of memory from outside
            return self.tensor(self.node(op, (self.read(x),), spec, attrs), "made" if seen is None else "captured")
        traced = Traced(storage.cell, (*storage.chain, (op, tuple(attrs.items()))))
        offset = 0 if is_varying(seen.offset) else seen.offset  # a traced tensor has no memory in which one could count
        return Tensor(traced, x.dtype, seen.shape, seen.strides, offset)

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


class SizedTrace(Trace):
    """A trace of arguments with sizes that vary. Its own code may use them as keys; that of the traced function may not."""

    def __init__(self, donate: frozenset[int], sizes: Sizes) -> None:
        super().__init__(donate)
        self.sizes = sizes

    def emit(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any, call: Call | None) -> Any:
        with self.sizes.trusted():
            return super().emit(op, inputs, attrs, out, call)

    @contextmanager
    def function(self) -> Iterator[None]:
        with self.sizes.trusted(False):
            yield


def _spec_of(x: Any) -> Spec | None:
    """Return the spec of an operand: that of its node, if it is a traced tensor without views."""
    if isinstance(x, Tensor) and type(storage := x.storage) is Traced and not storage.chain:
        spec: Spec = storage.cell.node.spec
        return spec
    return spec_of(x)


def _describe(storage: Any) -> str:
    """Return the kind of tensor a storage belongs to, for an error message."""
    if not isinstance(storage, Traced):
        return "a tensor from outside"
    return "an argument" if storage.cell.owner == "argument" else f"a tensor that was {storage.cell.owner}"


MOST_DRAWN = 200  # nodes of a graph that a notebook draws


class Joined(NamedTuple):
    """Nodes that a device runs as one call, in place of the last of them. No node outside reads an inner one."""

    nodes: tuple[Node, ...]
    call: Callable[[dict[Node, Any]], dict[Node, Any]]  # from the values computed so far to those that other nodes read


class Names(Mapping[Node, str]):
    """The names of nodes, found when they are first read: a search for captured tensors takes time that few calls need."""

    def __init__(self, find: Callable[[], dict[Node, str]], has_scopes: bool) -> None:
        self._find: Callable[[], dict[Node, str]] | None = find
        self.has_scopes = has_scopes  # so that any node may have a name, not only inputs and readers of weights
        self._names: dict[Node, str] = {}

    def _all(self) -> dict[Node, str]:
        if (find := self._find) is not None:
            self._names, self._find = find(), None
        return self._names

    def __getitem__(self, node: Node) -> str:
        return self._all()[node]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class Where:
    """The name of a node as a text that is found when it is first needed."""

    __slots__ = ("names", "node")

    def __init__(self, names: Mapping[Node, str], node: Node) -> None:
        self.names, self.node = names, node

    def __str__(self) -> str:
        return self.names.get(self.node, "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (str, Where)) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


NO_NAMES: Mapping[Node, str] = {}


def plain_order(roots: tuple[Node, ...], known: frozenset[Node]) -> list[Node]:
    """Return every node the roots need, inputs first; known nodes need nothing."""
    done: dict[Node | None, None] = {None: None}  # an operand that was left out needs nothing
    stack: list[Node | None] = list(reversed(roots))
    while stack:
        node = stack[-1]
        if node is not None and node not in done:
            ready = len(stack)
            if node not in known:
                for i in node.inputs[::-1]:
                    if i not in done:
                        stack.append(i)
            if len(stack) > ready:
                continue
            done[node] = None
        stack.pop()
    del done[None]
    return list(done)  # type: ignore[arg-type]


_order: Callable[[tuple[Node, ...], frozenset[Node]], list[Node]] = (
    plain_order if native is None else native.order_nodes
)


class _Parts(NamedTuple):
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    captured: dict[Node, Tensor]
    single: bool  # the function returned one tensor, not a tuple
    writes: tuple[tuple[int, Node], ...] = ()  # index of a donated argument, and its final value
    returned: tuple[int | None, ...] = ()  # for each output: the index of the donated argument that it is, or None
    names: Mapping[Node, str] = NO_NAMES  # of arguments, captured tensors and nodes, as the function has them


class Graph(_Parts):
    """A traced function: its inputs, its outputs, and the tensors it captured."""

    _nodes: tuple[Node, ...] | None = None  # in order: several passes read it

    def _replace(self, /, **parts: Any) -> Graph:
        """Return the graph with other parts; it has the same nodes if the roots are the same."""
        graph = Graph(*map(parts.pop, self._fields, self))
        if parts:
            raise TypeError(f"Graph has no {', '.join(parts)}; its parts are {', '.join(self._fields)}.")
        if graph.outputs is self.outputs and graph.writes is self.writes:
            graph._nodes = self._nodes
        return graph

    @property
    def roots(self) -> tuple[Node, ...]:
        """Return the nodes that must be computed: the outputs, and the final values of donated arguments."""
        return (*self.outputs, *(n for _, n in self.writes))

    @checked
    def order(self, known: frozenset[Node] = frozenset()) -> list[Node]:
        """Return every node the roots need, inputs first. Nodes that only `known` nodes need are left out."""
        if not known and self._nodes is not None:
            return list(self._nodes)
        nodes = _order(self.roots, known)
        if not known:
            self._nodes = tuple(nodes)
        return nodes

    @checked
    def calls(self) -> list[Node]:
        """Return the nodes of `order` that run a kernel: no sources and no views."""
        return [n for n in self.order() if n.op.kind not in (VIEW, SOURCE)]

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
        """Return one line per node, unused inputs last, with names as comments. `graph.text.parse` reads it back."""
        names = self.names if names is None else names
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

    def _repr_svg_(self) -> str | None:
        return self.svg() if len(self.order()) <= MOST_DRAWN else None  # a notebook shows the text of larger ones


methods: dict[str, Callable[[Graph], Any]] = {}  # implemented in modules that import this one; each registers its own


def _method(name: str) -> Callable[[Graph], Any]:
    if name not in methods:
        raise ArgumentError(f"Graph.{name} is not loaded; import tritium and make graphs with tritium.trace.")
    return methods[name]


def _has_live_view(base: Node, env: Mapping[Node, Any], left: Mapping[Node, int]) -> bool:
    """Return True if a later node reads a view of this node, direct or through other views."""

    def root(n: Node) -> Node:
        while n.op.kind is VIEW and n.inputs[0] is not None:
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
    if node.op.kind is SOURCE and device is not None:
        attrs.setdefault("device", device)
    return EAGER.emit(node.op, tuple(xs), attrs, out, None)


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Record the calls inside the with block in a trace."""
    token = interpreter.set(trace)
    thread = get_ident()
    before = recording.traced.get(thread)
    recording.traced[thread] = trace.open_scopes
    try:
        yield trace
    finally:
        interpreter.reset(token)
        if before is None:
            recording.traced.pop(thread, None)
        else:
            recording.traced[thread] = before


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
            raise ArgumentError(
                f"trace: {shown(s)} is not a Spec or a tensor; describe each argument as Spec((2, 3), f32)."
            )
        descriptions.append(s if isinstance(s, Tensor) else Spec(ops.size_of(s.shape), dt.dtype(s.dtype)))
    donated = frozenset(donate)
    if not donated <= frozenset(range(len(descriptions))):
        raise ArgumentError(
            f"trace: donate={sorted(donated)} names arguments that do not exist; there are {len(descriptions)}."
        )
    return record(fn, descriptions, Trace(donated))


def record(fn: Callable[..., Any], descriptions: Sequence[Spec | Tensor], trace: Trace) -> Graph:
    """Record the calls of fn on tensors of these descriptions in a new trace, as a graph."""
    with (
        no_collections(),
        tracing(trace) as t,
    ):  # many small objects and no garbage: a collection would only cost time
        arguments = [t.argument(i, s) for i, s in enumerate(descriptions)]
        inputs = tuple(t.placeholder(i, a.spec) for i, a in enumerate(arguments))
        before = [a.storage.cell.node for a in arguments]
        with t.function():
            result = fn(*arguments)
        several = result if isinstance(result, tuple) else (result,)
        for r in several:
            if not isinstance(r, Tensor):
                raise TraceError(
                    f"trace: the function returned {type(r).__name__}; return a tensor or a tuple of tensors."
                )
        outputs = tuple(t.read(r) for r in several)
        changed = [i for i in sorted(trace.donate) if arguments[i].storage.cell.node is not before[i]]
        writes = tuple((i, t.read(arguments[i])) for i in changed)
        written = {i: arguments[i] for i, _ in writes}
        same = tuple(next((i for i, a in written.items() if _is_argument(r, a)), None) for r in several)
        t.close()
        return Graph(inputs, outputs, t.captured, not isinstance(result, tuple), writes, same, t.scopes)


def name_nodes(graph: Graph, inputs: Mapping[Node, str]) -> dict[Node, str]:
    """Return names of all nodes: of inputs as given, of others their scopes and the layer whose weights they read."""
    names = dict(inputs)
    for node in graph.order():
        if node in names or node.op.kind is SOURCE:
            continue
        weights = [i for i in node.inputs if i is not None and i.op is ops.given and dict(i.attrs)["index"] < 0]
        layer = next((p for i in weights if (p := names.get(i, "").rpartition(".")[0])), "")
        name = "/".join(part for part in (graph.names.get(node, ""), layer) if part)
        if name:
            names[node] = name
    return names


def constant_node(value: Any, kind: dt.DType) -> Node:
    """Return the node of a Python number in a dtype."""
    attrs = (("value", value), ("dtype", kind))
    return Node(ops.const, (), attrs, Spec((), kind), exact(attrs))


def append_inputs(graph: Graph, specs: Sequence[Spec]) -> Graph:
    """Return the graph with further inputs of these specs after its own: numbers that became arguments."""
    first = len(graph.inputs)
    known = {dict(n.attrs)["index"]: n for n in graph.order() if n.op is ops.given}
    keys = [tuple({"index": first + i, "spec": spec}.items()) for i, spec in enumerate(specs)]
    new = [known.get(first + i) or Node(ops.given, (), keys[i], spec, exact(keys[i])) for i, spec in enumerate(specs)]
    return graph._replace(inputs=(*graph.inputs, *new))


def is_same(one: Graph, other: Graph, constants: Mapping[Node, Node]) -> bool:
    """Return True if two graphs have the same calls; `constants` maps inputs of the first to constants they stand for."""
    if (one.writes and [i for i, _ in one.writes]) != (other.writes and [i for i, _ in other.writes]):
        return False
    if len(one.roots) != len(other.roots) or one.returned != other.returned:
        return False
    pairs: dict[Node, Node] = {}
    waiting = list(zip(one.roots, other.roots, strict=True))
    while waiting:
        a, b = waiting.pop()
        if pairs.get(a) is b:
            continue
        if a in pairs or len(a.inputs) != len(b.inputs) or a.spec != b.spec:
            return False
        pairs[a] = b
        if a in one.captured or b in other.captured:
            if not _is_same_value(one.captured.get(a), other.captured.get(b)):
                return False
            continue
        expected = constants.get(a, a)
        if expected.op is not b.op or expected.key != b.key:
            return False
        for i, k in zip(a.inputs, b.inputs, strict=True):
            if (i is None) != (k is None):
                return False
            if i is not None and k is not None:
                waiting.append((i, k))
    return True


def _is_same_value(one: Tensor | None, other: Tensor | None) -> bool:
    """Return True if two captured tensors are one, or equal ones that each trace made for itself."""
    if one is other or one is None or other is None:
        return one is other
    return one.spec == other.spec and one.nbytes <= 1 << 20 and one._host().tobytes() == other._host().tobytes()


def _is_argument(result: Tensor, argument: Tensor) -> bool:
    """Return True if a result is all of an argument: the same cell and the same views."""
    storage, other = result.storage, argument.storage
    return isinstance(storage, Traced) and storage.cell is other.cell and storage.chain == other.chain

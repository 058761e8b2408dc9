"""GraphBuilder: a graph built node by node, by name, and NamedGraph, which is run with a dict of tensors.

Every method is an op, recorded by the same Trace as a traced function.

    b = GraphBuilder()
    x = b.input("x", (64, 256))
    h = b.relu(b.matmul(x, w, name="h"))            # w: a tensor, captured
    b.output("y", h)
    y = b.build().execute({"x": data})["y"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tritium import backends, dtype as dt, ops
from tritium.arguments import checked_class, checked_except
from tritium.backends import Device
from tritium.compiler.explain import (
    ExecutionPlan,
    FusionOpportunity,
    find_fusion_opportunities,
    generate_execution_plan,
)
from tritium.compiler.program import Program
from tritium.errors import ArgumentError, DeviceError, TraceError, TritiumError, nearest, shown
from tritium.fragment import spec_text
from tritium.functions import asarray
from tritium.graph import text as graph_text
from tritium.graph.graph import MOST_DRAWN, Graph, Node, Trace, tracing
from tritium.op import OPS, Op, Spec
from tritium.tensor import Tensor

_INTERNAL = ("const", "given", "item")  # ops that only a graph itself creates
_INDEXING = (
    ops.index,
    ops.gather,
    ops.put,
    ops.update,
)  # ops of indexing; their keys are checked here, since the ops do not
_SCHEMES = {"activations": "quantize_activations", "ternary": "quantize_ternary", "int8": "quantize_int8",
            "int4": "quantize_int4"}  # fmt: skip


class UnknownOpError(TritiumError, AttributeError):
    """An attribute of a builder that is not the name of an op."""


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class NamedNode:
    """A node of a builder and its name."""

    name: str
    node: Node
    builder: GraphBuilder

    @property
    def spec(self) -> Any:
        """Return the spec of the node, or a tuple of specs if its op has several results."""
        return self.node.spec

    @property
    def shape(self) -> tuple[int, ...]:
        sizes: tuple[int, ...] = self.spec.shape
        return sizes

    @property
    def dtype(self) -> dt.DType:
        kind: dt.DType = self.spec.dtype
        return kind

    def __repr__(self) -> str:
        return f"<{self.name!r}: {spec_text(self.spec)}>"


@checked_class
class GraphBuilder:
    """A graph under construction; `build()` returns the graph that the outputs need.

    Each op is a method (`b.matmul(x, w)`, `b.softmax(x, axis=0)`); all take `name=`. Operands are nodes of this
    builder, tensors and arrays (captured) and Python numbers.
    """

    def __init__(self) -> None:
        self._trace = Trace()
        self._names: dict[str, NamedNode] = {}
        self._inputs: dict[str, Node] = {}
        self._outputs: dict[str, NamedNode] = {}
        self._counts: dict[str, int] = {}
        self._generated: set[str] = set()  # names that the user did not choose
        self._device: tuple[str, Device] | None = None  # the first operand with a device, and that device

    def input(self, name: str, shape: Any, dtype: Any = dt.f32, device: Any = None) -> NamedNode:
        """Add an argument of the graph. device=None: that of the other tensors."""
        self._check_name("input", name)
        if device is not None:
            self._place("input", f"input {name!r}", backends.device(device))
        spec = Spec(ops.size_of(shape), dt.dtype(dtype))
        node = self._trace.read(self._trace.argument(len(self._inputs), spec))
        self._inputs[name] = node
        return self._named(name, node)

    def output(self, name: str | NamedNode, value: NamedNode | None = None) -> None:
        """Add a result of the graph: output("y", y), or output(y), which uses the node's own name."""
        if isinstance(name, NamedNode):
            name, value = (name.name, name) if value is None else ("", None)
        if not isinstance(name, str) or not isinstance(value, NamedNode):
            raise ArgumentError("GraphBuilder.output takes a name and a node, output('y', y), or a node alone.")
        self._check_owner("output", value)
        if not isinstance(value.spec, Spec):
            raise ArgumentError(f"GraphBuilder.output: {value!r} has {len(value.spec)} results; name one of them.")
        if name in self._outputs:
            raise ArgumentError(f"GraphBuilder.output: {name!r} was set before, to {self._outputs[name]!r}.")
        self._outputs[name] = value

    def quantize(
        self, x: Any, scheme: Any = "activations", *rest: Any, device: Any = None, name: str | None = None, **attrs: Any
    ) -> Any:
        """Quantise x to small integers: quantize(x, 0.1), quantize(x, 0.1, zero), quantize(x, "int8").

        `scheme` is a scale of your own (a number, a tensor or a node), which gives one node of integers, or the name of a scheme that
        computes it: 'activations' (q, scale, sums), 'ternary', 'int4' (packed, scale), 'int8' (q, scale, zero). A device, as in
        quantize(x, 0.1, "cpu"), must be that of the other tensors.
        """
        if rest and isinstance(rest[-1], (str, Device)):
            *rest, device = rest  # type: ignore[assignment]
        if isinstance(scheme, str) and (scheme not in _SCHEMES or rest):
            surplus = f" A scheme takes no {rest[0]!r}." if rest else ""
            raise ArgumentError(
                f"GraphBuilder.quantize: scheme {scheme!r} is unknown.{nearest(scheme, _SCHEMES)} "
                f"Use one of {', '.join(_SCHEMES)}, or a scale such as 0.1."
                if scheme not in _SCHEMES
                else f"GraphBuilder.quantize: {scheme!r} computes its scale and zero point.{surplus}"
            )
        if not isinstance(scheme, str):
            _check_scale(scheme)
        if device is not None:
            self._place("quantize", "the node", backends.device(device))
        if isinstance(scheme, str):
            return self._emit(OPS[_SCHEMES[scheme]], (x,), attrs, name)
        return self._emit(ops.quantize, (x, scheme, *rest), attrs, name)

    def dequantize(
        self, w: Any, scale: Any, zero: Any = None, *args: Any, name: str | None = None, **attrs: Any
    ) -> Any:
        """Return (w - zero) * scale as floats; the scale is a number, a tensor or a node."""
        if isinstance(scale, (int, float)):
            _check_scale(scale)
        return self._emit(ops.dequantize, (w, scale, zero, *args), attrs, name)

    def bitlinear(self, x: Any, layer: Any, *, name: str | None = None) -> Any:
        """Apply a layer such as tt.nn.BitLinear to x, or multiply x by a pair (packed weights, scale)."""
        if callable(layer):
            return self.call(layer, x, name=name)
        if not isinstance(layer, tuple) or len(layer) != 2:
            raise ArgumentError(
                f"GraphBuilder.bitlinear takes a layer, or a pair (packed weights, scale), given {type(layer).__name__}; "
                f"tt.nn.BitLinear(weights) makes a layer of quantised weights."
            )
        return self._emit(ops.quantized_matmul, (x, *layer), {}, name)

    @checked_except("fn")
    def call(self, fn: Callable[..., Any], *args: Any, name: str | None = None) -> Any:
        """Record the calls of fn on these nodes in the graph. fn takes tensors and returns one, or a tuple."""
        if not callable(fn):
            raise ArgumentError(f"GraphBuilder.call takes a function of tensors, given {type(fn).__name__}.")
        what = getattr(fn, "__name__", type(fn).__name__).strip("<>").lower()
        name = self._choose_name("call", what, name)
        with self._recording("call", name, [("", a) for a in args]):
            results = fn(*(self._operand("call", a) for a in args))
            for r in results if isinstance(results, tuple) else (results,):
                if not isinstance(r, Tensor):
                    raise TraceError(
                        f"the function returned {type(r).__name__}; return a tensor or a tuple of tensors."
                    )
        return self._results(name, results)

    def __getattr__(self, row: str) -> Callable[..., Any]:
        if row not in OPS or row in _INTERNAL:
            raise UnknownOpError(
                f"GraphBuilder has no op {row!r}.{nearest(row, [o for o in OPS if o not in _INTERNAL])}"
            )
        op = OPS[row]

        def add_node(*args: Any, name: str | None = None, **kwargs: Any) -> Any:
            return self._emit(op, args, kwargs, name)

        add_node.__name__, add_node.__doc__ = op.name, op.doc
        return add_node

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(o for o in OPS if o not in _INTERNAL)]

    def build(self) -> NamedGraph:
        """Return the graph of all nodes that the outputs need."""
        if not self._outputs:
            raise ArgumentError("GraphBuilder.build: no output was set; name one with b.output('y', y).")
        outputs = tuple(v.node for v in self._outputs.values())
        bare = Graph(tuple(self._inputs.values()), outputs, {}, False)
        needed = dict.fromkeys((*bare.inputs, *bare.order()))
        captured = {n: t for n, t in self._trace.captured.items() if n in needed}
        for t in captured.values():
            self._place("build", f"the captured tensor {t.spec}", t.device)
        by_user_first = sorted(self._names.values(), key=lambda v: v.name in self._generated)
        names = {
            v.node: v.name for v in reversed(by_user_first)
        }  # of two names of a node, the first one, chosen by the user if any
        counts, used = dict(self._counts), set(self._names)
        for n in needed:
            if n not in names:
                names[n] = _fresh("captured" if n in captured else n.op.name, counts, used)
                used.add(names[n])
        graph = Graph(bare.inputs, outputs, captured, len(outputs) == 1)
        device = self._device[1] if self._device else None
        return NamedGraph(graph, tuple(self._inputs), tuple(self._outputs), {n: names[n] for n in needed}, device)

    @classmethod
    def from_edges(cls, nodes: Mapping[str, Sequence[Any]], outputs: Mapping[str, str] | Sequence[str]) -> GraphBuilder:
        """Return a builder of a graph described as data: {name: (op, [operands], attributes)}, in any order.

        An operand is the name of a node ("q.1": the second result of an op with several), a tensor, a number or None. The op
        "input" adds an argument described by its attributes: ("input", [], {"shape": (64, 256), "dtype": "f32"}).
        """
        entries = {name: _entry(name, entry) for name, entry in nodes.items()}
        names = dict(outputs) if isinstance(outputs, Mapping) else {o: o for o in outputs}
        reads = _reads(entries, names)
        order = _topological_sort(reads)
        b = cls()
        for name in sorted(order, key=lambda n: entries[n][0] != "input"):
            row, operands, attrs = entries[name]
            if row == "input":
                if "shape" not in attrs or attrs.keys() - {"shape", "dtype", "device"} or operands:
                    raise ArgumentError(
                        f"from_edges: input {name!r} takes shape, dtype and device and reads nothing, given {attrs}."
                    )
                b.input(name, **attrs)
                continue
            if row not in OPS or row in _INTERNAL:
                raise ArgumentError(f"from_edges: node {name!r} has no op {row!r}.{nearest(row, ['input', *OPS])}")
            b._emit(OPS[row], tuple(b._names[o] if isinstance(o, str) else o for o in operands), attrs, name)
        for out, name in names.items():
            b.output(out, b._names[name])
        return b

    # ---- from a call to a node

    def _emit(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None) -> Any:
        name = self._choose_name(op.name, op.name, name)
        if "out" in kwargs:
            raise ArgumentError(f'GraphBuilder.{op.name}("{name}"): a node has no out=; its result is a new node.')
        with self._recording(op.name, name, _operands(op, args, kwargs)):
            results = op.call(
                *(self._operand(op.name, a) for a in args), **{k: self._operand(op.name, v) for k, v in kwargs.items()}
            )
            if op in _INDEXING:
                node = self._trace.read(results)
                graph_text.check_bounds(op, tuple(i.spec for i in node.inputs if i is not None), dict(node.attrs))
        return self._results(name, results)

    def _results(self, name: str, results: Any) -> Any:
        if not isinstance(results, tuple):
            return self._named(name, self._trace.read(results))
        nodes = [self._trace.read(t) for t in results]
        if nodes and nodes[0].op is ops.item and nodes[0].inputs[0] is not None:
            self._named(name, nodes[0].inputs[0])
        for i in range(len(nodes)):
            self._check_name("output", f"{name}.{i}")
        return tuple(self._named(f"{name}.{i}", n) for i, n in enumerate(nodes))

    def _operand(self, what: str, x: Any) -> Any:
        """Return the traced tensor of a node; other values as they are."""
        if isinstance(x, NamedNode):
            self._check_owner(what, x)
            if not isinstance(x.spec, Spec):
                raise ArgumentError(
                    f"GraphBuilder.{what}: {x!r} has {len(x.spec)} results; read one: {x.name + '.0'!r}."
                )
            return self._trace.tensor(x.node, "argument")
        if isinstance(x, Tensor) and not x.is_traced:
            self._place(what, f"the captured tensor {x.spec}", x.device)
        if isinstance(x, (list, tuple)):
            return tuple(self._operand(what, v) for v in x)
        return x

    @contextmanager
    def _recording(self, what: str, name: str, operands: list[tuple[str, Any]]) -> Iterator[None]:
        """Record the calls inside; an error names this node and those it reads."""
        try:
            with tracing(self._trace):
                yield
        except (TritiumError, OverflowError) as error:
            if str(error).startswith("GraphBuilder."):
                raise
            reads = [f"{k}{v.name!r} {v.spec}" for k, v in operands if isinstance(v, NamedNode)]
            reads += [f"{k}a captured tensor {v.spec}" for k, v in operands if isinstance(v, Tensor)]
            why = str(error).removeprefix(f"{what}: ")
            context = f" It reads {', '.join(reads)}." if reads else ""
            why = why if why.endswith((".", "?")) else f"{why}."
            raise type(error)(f'GraphBuilder.{what}("{name}"): {why}{context}') from None

    # ---- names and devices

    def _named(self, name: str, node: Node) -> NamedNode:
        self._names[name] = NamedNode(name, node, self)
        return self._names[name]

    def _check_name(self, what: str, name: Any) -> None:
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ArgumentError(f"GraphBuilder.{what}: {shown(name)} is not a name; give a word such as 'x'.")
        if name in self._names:
            raise ArgumentError(
                f"GraphBuilder.{what}: the name {name!r} is taken by {self._names[name]!r}; choose another."
            )

    def _choose_name(self, what: str, stem: str, name: str | None) -> str:
        """Return the name chosen by the user, or a generated one."""
        if name is None:
            name = _fresh(stem, self._counts, self._names)
            self._generated.add(name)
            return name
        self._check_name(what, name)
        return name

    def _check_owner(self, what: str, value: NamedNode) -> None:
        if value.builder is not self:
            raise ArgumentError(f"GraphBuilder.{what}: {value!r} is a node of another builder; make it in this one.")

    def _place(self, what: str, who: str, device: Device) -> None:
        if self._device is None:
            self._device = (who, device)
        elif device is not self._device[1]:
            other, there = self._device
            raise DeviceError(
                f"GraphBuilder.{what}: {who} is on {device}, {other} on {there}; a graph runs on one device. Move one with "
                f".to({str(there)!r})."
            )


def _check_scale(scale: Any) -> None:
    """Raise unless a scale is a number above 0, a tensor, an array or a node."""
    if isinstance(scale, (NamedNode, Tensor, np.ndarray)):
        return
    if isinstance(scale, bool) or not isinstance(scale, (int, float, np.integer, np.floating)):
        raise ArgumentError(
            f"GraphBuilder.quantize: a scheme ({', '.join(_SCHEMES)}) or a scale is needed, given {shown(scale)}; a scale is a "
            f"number above 0, a tensor or a node."
        )
    if not 0 < scale < float("inf"):
        raise ArgumentError(f"GraphBuilder.quantize: a scale must be finite and above 0, given {shown(scale)}.")


def _fresh(stem: str, counts: dict[str, int], used: Any) -> str:
    """Return an unused name: matmul_1, matmul_2, …"""
    while True:
        counts[stem] = counts.get(stem, 0) + 1
        name = f"{stem}_{counts[stem]}"
        if name not in used:
            return name


def _operands(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the operands of a call, each with the name of its parameter."""
    if op.variadic:
        return [("", x) for x in (args[0] if args and isinstance(args[0], (list, tuple)) else args)]
    operands = dict(zip(op.inputs, args, strict=False)) | {k: v for k, v in kwargs.items() if k in op.inputs}
    return [(f"{k} = " if len(op.inputs) > 1 else "", v) for k, v in operands.items()]


# ---- graphs described as data


def _entry(name: str, entry: Any) -> tuple[str, list[Any], dict[str, Any]]:
    if not isinstance(entry, (tuple, list)) or not 1 <= len(entry) <= 3 or not isinstance(entry[0], str):
        raise ArgumentError(
            f"from_edges: node {name!r} must be (op, [operands], {{attributes}}), given {shown(entry)}."
        )
    row, operands, attrs = (*entry, (), {})[:3] if len(entry) < 3 else entry
    return row, list(operands), dict(attrs or {})


def _reads(
    entries: Mapping[str, tuple[str, list[Any], dict[str, Any]]], outputs: dict[str, str]
) -> dict[str, list[str]]:
    """Return the nodes that each node reads; raise if a name is undefined."""
    undefined: dict[str, str] = {}

    def base(word: str, reader: str) -> str:
        node = word if word in entries else word.rpartition(".")[0]
        if node not in entries:
            undefined.setdefault(word, reader)
        return node

    reads = {
        n: [base(o, f"node {n!r}") for o in operands if isinstance(o, str)] for n, (_, operands, _) in entries.items()
    }
    for out, name in outputs.items():
        base(name, f"output {out!r}")
    if undefined:
        names = ", ".join(f"{word!r}{graph_text.hint(word, entries)}, read by {who}" for word, who in undefined.items())
        raise ArgumentError(f"from_edges: there is no node {names}.")
    return reads


def _topological_sort(reads: dict[str, list[str]]) -> list[str]:
    """Return the names in topological order, else in their original order; raise if there is a cycle."""
    done: dict[str, None] = {}
    path: dict[str, Iterator[str]] = {}
    for start in reads:
        if start in done:
            continue
        path[start] = iter(reads[start])
        while path:
            name = next(reversed(path))
            for other in path[name]:
                if other in path:
                    within = list(path)
                    cycle = [*within[within.index(other) :], other][::-1]  # as the data flows
                    raise ArgumentError(f"from_edges: the nodes form a cycle: {' -> '.join(cycle)}; a graph has none.")
                if other not in done:
                    path[other] = iter(reads[other])
                    break
            else:
                done[name] = None
                del path[name]
    return list(done)


# ---- the built graph


@dataclass(frozen=True, eq=False, repr=False)
class NamedGraph:
    """A graph whose inputs, outputs and nodes have names."""

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    names: Mapping[Node, str]  # of every node, inputs first, in topological order
    device: Device | None = None  # that the tensors must be on; None: any one device
    program: Program | None = None  # run by execute; None: the nodes run one by one, as built

    def compile(self, *, verify: bool = False, disable: str | Iterable[str] = ()) -> NamedGraph:
        """Return the same graph compiled to one optimised program; `verify` compares every node on the next execution's inputs.

        `disable` names passes to leave out, as in tritium.compile.
        """
        device = self.device or next((t.device for t in self.graph.captured.values()), backends.device(None))
        return replace(self, program=Program(self.graph, device.backend, verify=verify, disable=disable))

    def find_fusion_opportunities(self) -> list[FusionOpportunity]:
        """Return groups of nodes that can run as one call, with the bytes and the time that should save."""
        return find_fusion_opportunities(self.graph, self.device)

    def generate_execution_plan(self) -> ExecutionPlan:
        """Return the steps a program of this graph runs, the memory of their results, and their estimated time."""
        return generate_execution_plan(self.program or self.graph)

    def explain(self) -> str:
        """Return a report of the rewrites and fusions that the compiler applies, and of those it does not, with the reason."""
        program = self.program or self.compile().program
        assert program is not None
        return program.explain()

    def topological_sort(self) -> list[str]:
        """Return the names of all nodes: inputs first, each after those it reads; the order is deterministic."""
        return list(self.names.values())

    def execute(self, feeds: Mapping[str, Any]) -> dict[str, Tensor]:
        """Run the graph: return the outputs by name from the inputs by name. NumPy arrays are accepted too."""
        specs = {name: node.spec for name, node in zip(self.inputs, self.graph.inputs, strict=True)}
        unknown = [n for n in feeds if n not in specs]
        if unknown:
            names = ", ".join(f"{n!r}{graph_text.hint(str(n), specs)}" for n in unknown)
            raise ArgumentError(f"execute: the graph has no input {names}; it has {_listed(specs)}.")
        missing = {n: s for n, s in specs.items() if n not in feeds}
        if missing:
            raise ArgumentError(f"execute: missing {_listed(missing)}.")
        args = [self._check_feed(n, feeds[n], s) for n, s in specs.items()]
        results = (self.program or self.graph)(*args)
        return dict(zip(self.outputs, results if isinstance(results, tuple) else (results,), strict=True))

    def _check_feed(self, name: str, value: Any, spec: Spec) -> Tensor:
        if isinstance(value, (np.ndarray, np.generic)):
            value = asarray(value)
            value = value if self.device is None or value.spec != spec else value.to(device=self.device)
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"execute: input {name!r} must be a tensor {spec}, given {type(value).__name__}; make one with "
                f"tritium.asarray(…)."
            )
        if value.spec != spec:
            cast = f"; cast it with .to({str(spec.dtype)!r})" if value.shape == spec.shape else ""
            raise ArgumentError(f"execute: input {name!r} must be {spec}, given {value.spec}{cast}.")
        if self.device is not None and value.device is not self.device:
            raise DeviceError(
                f"execute: input {name!r} must be on {self.device}, given on {value.device}; move it with "
                f".to({str(self.device)!r})."
            )
        return value

    def svg(self) -> str:
        """Return a picture of the graph with its names, as SVG."""
        from tritium.graph import picture as graph_picture  # few programs draw

        return graph_picture.svg(self.graph, self.names, self.outputs)

    def _repr_svg_(self) -> str | None:
        return self.svg() if len(self.names) <= MOST_DRAWN else None

    def __str__(self) -> str:
        return self.graph.text(self.names)

    def __repr__(self) -> str:
        return f"<graph {', '.join(self.inputs)} -> {', '.join(self.outputs)}: {len(self.names)} nodes>"


def _listed(specs: Mapping[str, Spec]) -> str:
    return ", ".join(f"{n!r} ({s})" for n, s in specs.items()) or "no inputs"

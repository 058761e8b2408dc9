"""SizedProgram: a compiled graph whose sizes vary. Passes, fusion, order and kernels are decided once, for all of them.

Each number of the program (a shape, a stride, an offset, an attribute) is a polynomial of the sizes; native code evaluates
them for the sizes of a call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from tritium import buffer, launch, ops
from tritium.backends import Backend
from tritium.compiler import steps
from tritium.compiler.program import Program
from tritium.compiler.steps import Call, UnableError
from tritium.errors import ArgumentError
from tritium.graph.graph import Graph, Names, Node, constant_node
from tritium.graph.size import Size, Sizes, is_varying, settled
from tritium.layout import Layout
from tritium.op import exact, make_room
from tritium.tensor import Tensor

MAX_EXACT = 16  # programs for one size each, which serve profilers and reports
MAX_CONDITIONS = 6  # that a report lists


class SizedProgram(Program):
    """A program for all sizes that give the comparisons of its graph the same outcome."""

    def __init__(
        self,
        graph: Graph,
        backend: Backend,
        layouts: tuple[Layout, ...],
        sizes: Sizes,
        *,
        name: str,
        disable: Iterable[str],
    ) -> None:
        self.sizes = sizes
        self.key = object()  # under which a function keeps it
        self._exact: dict[tuple[int, ...], Program] = {}
        self._exact_lock = threading.Lock()
        with sizes.trusted():
            super().__init__(graph, backend, layouts, name=name, disable=disable)

    def _plan_steps(self) -> None:
        built = self.steps = steps.build(self.graph, self.backend, self.layouts, self.disabled)
        if built.python:
            raise UnableError(f"a step is called from Python: {next(iter(built.python.values()))}")
        self.ran = launch.Ran(self.name, self.launches)
        arguments = steps.program_arguments(built, self.graph, self.layouts)
        sizes = self.sizes
        _number(arguments, sizes)
        patterns = tuple(
            (n.spec.dtype, _pattern(n.spec.shape), None if layout.is_contiguous else layout.strides)
            for n, layout in zip(self.graph.inputs, self.layouts, strict=True)
        )
        atoms = tuple((a.kind, a.operands) for a in sizes.atoms[len(sizes.labels) :])
        guards = tuple(sizes.guards.values())
        self.native = buffer.native.Programs(
            arguments,
            self.graph.single,
            (self.ran,),
            self._spans,
            patterns,
            len(sizes.labels),
            atoms,
            tuple(sizes.slots),
            guards,
        )

    def _spans(self, numbers: tuple[int, ...]) -> tuple[Any, ...]:
        """Return the launch records that a profiler shows for a call of these sizes."""
        values = self.sizes.evaluate_atoms(numbers)
        assert self.steps is not None
        calls = [_settled_call(c, values) for c in self.steps.calls]
        return (self.ran, *steps.launch_records(calls, self.backend.device, self.graph))

    def __call__(self, *args: Tensor) -> Any:
        """Run on tensors of any sizes that it was made for."""
        result = None if launch.watchers else self.native(*args)
        return self.for_call(args)(*args) if result is None else result

    def ready(self, args: tuple[Tensor, ...]) -> Any:
        return self.native

    def fits(self, args: Sequence[Tensor]) -> bool:
        """Return True if it was made for tensors of these sizes; the last arguments may be left out."""
        return self.native.sizes(*args) is not None

    def for_call(self, args: Sequence[Tensor]) -> Program:
        """Return the program of the same graph for the sizes of these tensors alone."""
        numbers = self.native.sizes(*args)
        if numbers is None:
            specs = ", ".join(str(getattr(x, "spec", type(x).__name__)) for x in args)
            raise ArgumentError(f"{self.name}: this program is for other tensors than {specs}; call the function.")
        with self._exact_lock:
            program = self._exact.get(numbers)
            if program is None:
                values = self.sizes.evaluate_atoms(numbers)
                layouts = tuple(settled(layout, values) for layout in self.layouts)
                graph = settled_graph(self.source, values)
                program = Program(graph, self.backend, layouts, name=self.name, disable=self.disabled)
                program.varying = self.varying_text(numbers)
                make_room(self._exact, MAX_EXACT)
                self._exact[numbers] = program
        return program

    def varying_text(self, numbers: Sequence[int] = ()) -> str:
        """Return which sizes vary, and for which of them this program is, as a line of a report."""
        sizes = self.sizes
        names = []
        for i, label in enumerate(sizes.labels):
            low, high = sizes.bounds[i]
            now = f" (now {numbers[i]})" if numbers else ""
            names.append(f"{label} from {low} to {high:,}{now}")
        conditions = sizes.conditions()
        more = f" and {len(conditions) - MAX_CONDITIONS} more" if len(conditions) > MAX_CONDITIONS else ""
        where = f", where {', '.join(conditions[:MAX_CONDITIONS])}{more}" if conditions else ""
        return f"one program for every {' and '.join(names)}{where}"


def _number(value: Any, sizes: Sizes) -> None:
    """Number the sizes among the arguments of a native program."""
    if type(value) is Size:
        sizes.slot(value)
    elif isinstance(value, (tuple, list)):
        for part in value:
            _number(part, sizes)
    elif isinstance(value, dict):
        _number(tuple(value.values()), sizes)


def _pattern(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape of an argument as native code matches it: -1 stands for the first size that varies."""
    return tuple(-1 - n.polynomial[0][0][0] if type(n) is Size else n for n in shape)


def _settled_call(c: Call, values: Sequence[int]) -> Call:
    inputs = tuple(None if v is None else v._replace(spec=settled(v.spec, values)) for v in c.inputs)
    outputs = tuple(v._replace(spec=settled(v.spec, values)) for v in c.outputs)
    return c._replace(inputs=inputs, outputs=outputs, op_attrs={k: settled(v, values) for k, v in c.op_attrs.items()})


def settled_graph(graph: Graph, values: Sequence[int]) -> Graph:
    """Return a graph with the numbers of its sizes, for values of all atoms."""
    new: dict[Node | None, Node | None] = {None: None}
    for n in dict.fromkeys((*graph.order(), *graph.inputs, *graph.captured)):
        attrs = tuple((name, settled(value, values)) for name, value in n.attrs)
        if n.op is ops.full and n.spec.shape == () and is_varying(n.attrs):  # a number among the operands of an op
            new[n] = constant_node(dict(attrs)["fill_value"], n.spec.dtype)
            continue
        new[n] = Node(
            n.op, tuple(new[i] for i in n.inputs), attrs, settled(n.spec, values), exact(attrs) if attrs else ()
        )

    def node(n: Node) -> Node:
        return new[n]  # type: ignore[return-value]

    names = graph.names
    has_scopes = names.has_scopes if isinstance(names, Names) else bool(names)
    return graph._replace(
        inputs=tuple(map(node, graph.inputs)),
        outputs=tuple(map(node, graph.outputs)),
        captured={node(n): x for n, x in graph.captured.items()},
        writes=tuple((i, node(n)) for i, n in graph.writes),
        names=Names(lambda: {node(n): name for n, name in names.items() if n in new}, has_scopes),
    )

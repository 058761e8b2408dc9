"""A function compiled for arguments of fixed specs: rewrite rules, fusion, order, memory plan, and one native call.

Knows nothing of how arguments are bound to a Python function.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tritium import dtype as dt, launch, ops, recording
from tritium.backends import Backend
from tritium.backends.values.device import ValueBackend
from tritium.buffer import overlap
from tritium.compiler import decode_step, steps
from tritium.compiler.foreign import ForeignProgram
from tritium.compiler.fuse import Fused, Opportunity, fuse, note
from tritium.compiler.passes import Note, Simplified, simplify
from tritium.compiler.patterns import Applied, apply_patterns
from tritium.compiler.steps import Steps, UnableError
from tritium.errors import ArgumentError, VerifyError
from tritium.garbage import no_collections
from tritium.graph.batch import batched
from tritium.graph.graph import Graph, Node, run_node
from tritium.layout import Layout
from tritium.op import Cost, Kind, Spec, interpreter
from tritium.tensor import Tensor, rows

# The overheads that decide if inputs are stacked, in bytes that could be moved meanwhile: one call of a step, and copying
# one item to the stack, checking it and slicing its results (0.1 us and 6.5 us at 10 GB/s).
STEP_BYTES, ITEM_BYTES = 1 << 10, 1 << 16
NODE_BYTES = 1 << 18  # one call of a program that runs node by node in Python (26 us)


@dataclass
class Counters:
    """Counts of what was compiled in this process."""

    programs: int = 0
    fusions_found: int = 0
    fusions_applied: int = 0


counters = Counters()


class Program:
    """A compiled graph. Several threads may call it at once; every result is the caller's own memory."""

    def __init__(
        self,
        graph: Graph,
        backend: Backend,
        layouts: tuple[Layout, ...] | None = None,
        *,
        verify: bool = False,
        name: str = "program",
    ) -> None:
        self.source, self.backend, self.name = graph, backend, name
        with no_collections():
            self._compile(layouts, verify)

    def _compile(self, layouts: tuple[Layout, ...] | None, verify: bool) -> None:
        graph, backend = self.source, self.backend
        self.layouts = layouts or tuple(Layout(n.spec.shape, n.spec.strides, 0) for n in graph.inputs)
        simple = simplify(graph, lambda n, xs: run_node(n, xs, backend.device))
        custom = apply_patterns(simple.graph)
        fused = fuse(custom.graph, backend.refuses)
        self.graph = fused.graph
        self.origin = _origins(simple, custom, fused)
        self.opportunities: list[Opportunity] = fused.opportunities
        self._notes = [*simple.notes, *custom.notes]
        self.unchecked = custom.used  # a user's fusions are compared with their ops at the first call
        self.verifies = verify  # at the next call
        self.steps: Steps | None = None
        self.native: Any = None
        self.foreign: ForeignProgram | None = None  # where the device's own compiler runs it
        self.why_not_native = ""
        self._batches: dict[int, Program | str] = {}
        self._lock = threading.Lock()
        self._plan_steps()
        counters.programs += 1
        counters.fusions_found += len(self.opportunities)
        counters.fusions_applied += sum(not o.reason for o in self.opportunities)

    def _plan_steps(self) -> None:
        try:
            self.steps = steps.build(self.graph, self.backend, self.layouts)
        except UnableError as why:
            self.steps, self.why_not_native = None, str(why)
        self.ran = launch.Ran(self.name, self.launches)  # the launch record when it runs node by node under a profiler
        if self.steps is not None:
            spans = (self.ran, *(c.launch_record(self.backend.device) for c in self.steps.calls))
            self.native = steps.native_program(self.steps, self.graph, self.layouts, spans)
        elif isinstance(self.backend, ValueBackend) and self.backend.compiler:
            foreign = ForeignProgram(self.graph, self.backend)
            self.foreign = foreign if foreign.is_compiled else None
            reason = self.backend.why_not_compiled
            self.why_not_native = (
                f"{self.backend.device} cannot use {self.backend.compiler} here{reason and f': {reason}'}"
            )

    @property
    def notes(self) -> list[Note]:
        """Return the notes of all passes: rewrites that were applied, and those that were not, with the reason."""
        together = [] if self.foreign is None else [decode_step.note(t) for t in self.foreign.decode_steps]
        return [*self._notes, *(note(o) for o in self.opportunities), *together]

    # -- running

    def __repr__(self) -> str:
        return f"<program {len(self.graph.inputs)} arguments, {self.launches} calls, arena {sized(self.arena_bytes)}>"

    def __call__(self, *args: Tensor) -> Any:
        """Run on tensors of the specs it was made for. One native call, unless a step has no native kernel or a profiler is active."""
        if self.verifies or self.unchecked:
            self._check(args)
        if self.native is not None and not launch.watchers:
            result = self.native(*args)
            if result is not None:
                return result
        if self.foreign is not None and not launch.watchers and not recording.active:
            check_arguments(self.graph, args)
            check_donated(self.graph, args)
            return self.foreign(*args)
        return self.run_nodes(*args)

    def ready(self, args: tuple[Tensor, ...]) -> Any:
        """Return the fast path for calls like the last one, with `args`, or None.

        It returns None itself if a call's arguments do not fit.
        """
        if self.foreign is None or self.verifies or self.unchecked:
            return self.native
        return self.foreign.again(args)

    def _check(self, args: tuple[Tensor, ...]) -> None:
        """Verify the program on these arguments: with verify=True, and at the first use of a user's fusion."""
        names = ", ".join(p.name for p in self.unchecked)
        try:
            verify(self, args)
        except VerifyError as error:
            if not names:
                raise
            raise VerifyError(f"The pattern {names} does not compute what its ops do. {error}") from None
        self.unchecked, self.verifies = (), False

    def run_nodes(self, *args: Tensor) -> Any:
        """Run the optimised graph node by node: without a native program, and under a profiler."""
        check_donated(self.graph, args)
        token = interpreter.set(None)
        try:
            return recording.carry_out(self.ran, lambda: self.graph(*args))
        finally:
            interpreter.reset(token)

    def run_many(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the results for many inputs (tuples of tensors, or tensors).

        Inputs are stacked and run at once if the graph allows it and the cost model favours it, else one by one. Results
        equal those of a loop, products within the op's rounding. Results of a stacked run are parts of one block of memory.
        """
        samples = [x if isinstance(x, tuple) else (x,) for x in inputs]
        many = self.stacked(len(samples))
        if isinstance(many, str):
            return [self(*sample) for sample in samples]
        for sample in samples:
            check_arguments(self.source, sample)
        result = many(*(_stacked(column) for column in zip(*samples, strict=True)))
        if self.source.single:
            return rows(result)
        return list(zip(*(rows(part) for part in result), strict=True))

    def stacked(self, n: int) -> Program | str:
        """Return the program that runs n inputs at once, or the reason why they run one by one."""
        if n < 2 or self.graph.writes:
            return "a donated argument is written" if self.graph.writes else "there is one input"
        many = self._batch(n)
        if isinstance(many, str):
            return many
        ends = sum(s.spec.nbytes for s in (*self.graph.inputs, *self.graph.outputs))
        apart = n * (self.bytes_moved + self._overhead_bytes)
        together = many.bytes_moved + many._overhead_bytes + n * (2 * ends + ITEM_BYTES)
        return many if together < apart else "stacking them would take longer than it saves"

    @property
    def _overhead_bytes(self) -> int:
        """Return the overhead of all calls of one run, in bytes that could be moved meanwhile."""
        return self.launches * (STEP_BYTES if self.native is not None else NODE_BYTES)

    def _batch(self, n: int) -> Program | str:
        """Return the program for n inputs at once, or the reason why there is none. Up to 8 sizes are cached."""
        with self._lock:
            if n not in self._batches:
                graph = batched(self.source, n)
                if len(self._batches) >= 8:
                    self._batches.pop(next(iter(self._batches)))
                self._batches[n] = graph if isinstance(graph, str) else Program(graph, self.backend, name=self.name)
            return self._batches[n]

    def why_not_stacked(self, n: int = 32) -> str:
        """Return the reason why run_many runs n inputs one by one; "" if it stacks them."""
        many = self.stacked(n)
        return many if isinstance(many, str) else ""

    # -- numbers

    @property
    def launches(self) -> int:
        """Return the number of kernel calls of one run."""
        if self.steps is not None:
            return len(self.steps.calls)
        inside = {n for t in self.foreign.decode_steps for n in t.nodes[:-1]} if self.foreign is not None else ()
        return sum(n not in inside for n in self.graph.calls())

    @property
    def bytes_moved(self) -> int:
        """Return the bytes that all steps read and write."""
        return sum(c.read + c.written for c in self._costs())

    def _costs(self) -> list[Cost]:
        if self.steps is not None:
            return [c.cost for c in self.steps.calls]
        return [self.cost_of(n) for n in self.graph.order()]

    def cost_of(self, n: Node) -> Cost:
        """Return the work and bytes of a node."""
        specs = tuple(i.spec if i is not None and isinstance(i.spec, Spec) else None for i in n.inputs)
        free = n.op.kind is Kind.VIEW or n.op in (ops.given, ops.const)
        return Cost(0, 0, 0) if free else n.op.cost(n.spec, *specs, **dict(n.attrs))

    @property
    def last_s(self) -> float | None:
        """Return the seconds of the last run of the native program; None: not run yet."""
        return self.native.last_ns * 1e-9 if self.native is not None and self.native.runs else None

    @property
    def arena_bytes(self) -> int:
        return self.steps.plan.peak_bytes if self.steps else 0

    @property
    def naive_bytes(self) -> int:
        """Return the bytes of all temporaries without sharing."""
        return self.steps.plan.naive_bytes if self.steps else 0

    @property
    def lower_bound_bytes(self) -> int:
        """Return the most bytes alive at one step: no plan needs less in this order."""
        return self.steps.plan.lower_bound_bytes if self.steps else 0

    @property
    def bytes_per_call(self) -> int:
        """Return the bytes of arguments, results and arena of one call."""
        ends = sum(n.spec.nbytes for n in (*self.graph.inputs, *self.graph.outputs))
        return ends + self.arena_bytes

    # -- reports

    def verify(self, *args: Tensor) -> None:
        """Compare every node with the graph as it was written; the first that differs is named in a VerifyError."""
        verify(self, args)

    def explain(self) -> str:
        """Return a report of the rewrites and fusions that were applied, and of those that were not, with the reason."""
        return "\n".join(explanation(self))


def _stacked(column: tuple[Tensor, ...]) -> Tensor:
    """Stack tensors of one spec along a new first axis."""
    first = column[0]
    to = ops.empty((len(column), *first.shape), dtype=first.dtype, device=first.device)
    for x, row in zip(column, rows(to), strict=True):
        ops.copy(x, out=row)
    return to


def check_arguments(graph: Graph, args: tuple[Any, ...]) -> None:
    if len(args) != len(graph.inputs):
        raise ArgumentError(f"The graph takes {len(graph.inputs)} tensors, {len(args)} were given.")
    for i, (n, x) in enumerate(zip(graph.inputs, args, strict=True)):
        if not isinstance(x, Tensor) or x.spec != n.spec:
            raise ArgumentError(f"Argument {i} must be {n.spec}, given {getattr(x, 'spec', type(x).__name__)}.")


def check_donated(graph: Graph, args: tuple[Any, ...]) -> None:
    """Raise if a donated argument shares memory with another argument or captured tensor: the order of access is undefined."""
    for i, _ in graph.writes:
        if isinstance(args[i], Tensor):
            args[i].storage.own()  # memory shared with clones is copied now
        for k, other in enumerate((*args, *graph.captured.values())):
            if k != i and isinstance(args[i], Tensor) and isinstance(other, Tensor) and overlap(args[i], other):
                what = f"argument {k}" if k < len(args) else "a tensor that the function captured"
                raise ArgumentError(
                    f"The donated argument {i} ({args[i].spec}) shares memory with {what} ({other.spec}); pass a clone() of one."
                )


def _origins(simple: Simplified, custom: Applied, fused: Fused) -> dict[Node, Node]:
    """Return, for every node of the optimised graph, the node of the source graph with the same value."""
    out = {}
    for new, old in fused.origin.items():
        before = custom.origin.get(old, old)
        out[new] = simple.origin.get(before, before)
    return out


# ---- verify


def verify(p: Program, args: tuple[Any, ...]) -> None:
    """Compare every node of the optimised graph with the source graph, on the source graph's values, in order.

    Then compare the results of the native program with those of its nodes one by one.
    """
    check_arguments(p.source, args)
    token = interpreter.set(None)
    try:
        plain = _plain_values(p.source, args, p.backend.device)
        values: dict[Node, Any] = {}
        for n in p.graph.order():
            old = p.origin.get(n)
            known = n.op is ops.given
            value = (
                _input_value(p, n, args).contiguous()
                if known
                else run_node(n, [_lookup(values, i) for i in n.inputs], p.backend.device)
            )
            if not known and old in plain and isinstance(n.spec, Spec):
                compare(plain[old], value, old, n)
            values[n] = plain[old] if old in plain and isinstance(n.spec, Spec) else value
        _verify_whole(p, args)
    finally:
        interpreter.reset(token)


def _lookup(values: dict[Node, Any], i: Node | None) -> Any:
    return None if i is None else values[i]


def _input_value(p: Program, n: Node, args: tuple[Any, ...]) -> Tensor:
    return p.graph.captured[n] if n in p.graph.captured else args[p.graph.inputs.index(n)]


def _copy_strided(x: Tensor) -> Tensor:
    """Return a copy with the same strides: a program is compiled for a layout."""
    if x.is_contiguous() or x.dtype.is_packed or 0 in x.strides:
        return ops.copy(x)
    need = sum((n - 1) * abs(s) for n, s in zip(x.shape, x.strides, strict=True)) + 1
    first = sum(-(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True) if s < 0)
    base = ops.empty((need,), dtype=x.dtype, device=x.device)
    strided = Tensor(base.storage, x.dtype, x.shape, x.strides, first)
    return ops.copy(x, out=strided)


def _verify_whole(p: Program, args: tuple[Any, ...]) -> None:
    """Raise unless the native program returns the same bits as its nodes one by one, donated arguments included."""
    if p.native is None:
        return
    mine, theirs = ([_copy_strided(x) for x in args] for _ in range(2))
    got, want = p.native(*mine), p.graph(*theirs)
    if got is None:  # an argument with stride 0 has no copy of the same layout
        return
    pairs = zip(*((r,) if isinstance(r, Tensor) else r for r in (want, got)), strict=True)
    written = ((theirs[i], mine[i]) for i, _ in p.graph.writes)
    for k, (a, b) in enumerate((*pairs, *written)):
        compare_tensors(a, b, f"verify: result {k} of the planned program", 0)


def _plain_values(graph: Graph, args: tuple[Any, ...], device: Any) -> dict[Node, Any]:
    """Compute every value of the source graph, as contiguous tensors: a sum over strided memory may add in another order."""
    inputs = dict(graph.captured) | dict(zip(graph.inputs, args, strict=True))
    values: dict[Node, Any] = {}
    for n in graph.order():
        value = inputs[n] if n in inputs else run_node(n, [_lookup(values, i) for i in n.inputs], device)
        values[n] = value if isinstance(value, tuple) else value.contiguous()
    return values


def compare(want: Tensor, got: Tensor, old: Node, new: Node) -> None:
    """Raise unless two values are equal, or as close as their ops guarantee; the error names the node."""
    compare_tensors(want, got, f"verify: {new!r}, which replaces {old!r},", tolerance(new, old))


def compare_tensors(want: Tensor, got: Tensor, who: str, ulps: float) -> None:
    """Raise if the result of a replacement differs from that of the ops as written by more than so many ulps."""
    if want.spec != got.spec:
        raise VerifyError(f"{who} returns {got.spec} where the ops as written return {want.spec}.")
    a, b = want._host(), got._host()
    if bool(((a == b) | ((a != a) & (b != b))).all()):
        return
    with np.errstate(all="ignore"):
        expected, actual = a.astype("f8"), b.astype("f8")
        limit = ulps * _epsilon(want) * max(1.0, float(abs(expected[np.isfinite(expected)]).max(initial=0.0)))
        wrong = ~(
            (abs(expected - actual) <= limit) | (expected == actual) | ((expected != expected) & (actual != actual))
        )
    if wrong.any():
        index = tuple(int(i[0]) for i in wrong.nonzero())
        raise VerifyError(
            f"{who} differs from the ops as written: at {list(index)} it is {actual[index]:.9g} instead of "
            f"{expected[index]:.9g} (allowed: {limit:.3g})."
        )


def _epsilon(x: Tensor) -> float:
    return float(dt.finfo(x.dtype).eps) if x.dtype.is_float else 0.0


def tolerance(new: Node, old: Node) -> float:
    """Return the tolerance in ulps: the sum over the ops that computed the value."""
    if new.op is ops.fused or new.op is ops.item:
        body = dict(new.inputs[0].attrs if new.op is ops.item and new.inputs[0] else new.attrs).get("body")
        return sum(s.op.ulps for s in body.steps) if body is not None else old.op.ulps
    return max(new.op.ulps, old.op.ulps)


# ---- explain


def explanation(p: Program) -> list[str]:
    """Return the lines of Program.explain."""
    lines = [f"{len(p.source.calls())} calls written, {p.launches} run, {sized(p.bytes_moved)} moved"]
    if p.steps is not None:
        lines.append(
            f"memory: arena {sized(p.arena_bytes)}, {sized(p.naive_bytes)} without sharing, at least "
            f"{sized(p.lower_bound_bytes)}"
        )
        lines.append("runs as one native call")
    elif isinstance(p.backend, ValueBackend) and p.foreign is not None:
        why = p.foreign.alone
        lines.append(f"runs call by call: {why}" if why else f"runs as one call of {p.backend.compiler}")
    else:
        lines.append(f"runs node by node: {p.why_not_native}")
    for title, applied in (("applied", True), ("not applied", False)):
        notes = [n for n in p.notes if n.applied is applied]
        lines += [f"{title}:"] if notes else []
        lines += [f"  {n.what}: {n.node}: {n.why}" for n in notes]
    return lines


def sized(n: float) -> str:
    """Return a number of bytes with a unit, such as 1.5 MB."""
    for unit in ("B", "KB", "MB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.2f} GB"

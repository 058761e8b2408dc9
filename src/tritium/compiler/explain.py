"""The execution plan of a graph: fusions and their gain, the steps of its program, and their memory and time.

Estimates are from the cost model with this machine's measured ceilings, and are named as such.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tritium import backends, ops
from tritium.backends import Device
from tritium.compiler import cost
from tritium.compiler.fuse import Opportunity, pattern, saved_bytes
from tritium.compiler.plan import Block, memory_groups
from tritium.compiler.program import Program, sized
from tritium.graph.graph import Graph, Node, methods
from tritium.op import Cost, outputs


class FusionOpportunity(NamedTuple):
    """Nodes that can run as one call: the estimated gain, and if they were fused."""

    pattern: str
    nodes: tuple[Node, ...]
    bytes_saved: int
    estimated_gain_s: float
    estimated_speedup: float
    applied: bool
    reason: str  # why it was not applied

    def __str__(self) -> str:
        text = f"{self.pattern}: {sized(self.bytes_saved)} less to move, estimated {self.estimated_speedup:.2f}x"
        return text if self.applied else f"{text} (not applied: {self.reason})"


class PlannedStep(NamedTuple):
    """One call of a program."""

    name: str
    kernel: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    flops: int
    nbytes: int
    estimated_s: float
    bound: str  # "compute", "memory" or "call"
    offset: int | None  # of the result in the arena; None: the result is the caller's memory
    where: str = ""  # the scopes and layers of its ops, as the function names them


class ExecutionPlan(NamedTuple):
    """The steps of a program, their memory and their estimated time."""

    steps: tuple[PlannedStep, ...]
    fusion_opportunities: tuple[FusionOpportunity, ...]
    memory_groups: tuple[tuple[int, ...], ...]  # steps whose results share bytes of the arena, one after another
    estimated_memory_usage: int  # bytes of the arena
    naive_memory_usage: int
    estimated_execution_time: float  # seconds
    estimated_bytes: int
    measured_s: float | None  # of the last run; None: not run yet

    @property
    def error(self) -> float | None:
        """Return the relative error of the estimate: 0.5 if the last run took 50 % longer; None: not run yet."""
        return None if self.measured_s is None else self.measured_s / self.estimated_execution_time - 1

    def __str__(self) -> str:
        lines = [
            f"{len(self.steps)} step{'s' * (len(self.steps) != 1)}, {sized(self.estimated_bytes)} moved, arena "
            f"{sized(self.estimated_memory_usage)} ({sized(self.naive_memory_usage)} without sharing)",
            f"estimated {self.estimated_execution_time * 1e6:.1f} us"
            + ("" if self.measured_s is None else f", last run {self.measured_s * 1e6:.1f} us ({self.error:+.0%})"),
        ]
        for i, s in enumerate(self.steps):
            where = "result" if s.offset is None else f"arena+{s.offset}"
            lines.append(
                f"{i:3} {s.name}{f' ({s.where})' if s.where else ''} [{s.kernel}] {', '.join(s.inputs)} -> {', '.join(s.outputs)}: "
                f"{s.estimated_s * 1e6:.2f} us, {s.bound}-bound, {where}"
            )
        return "\n".join(lines)


def opportunity(o: Opportunity) -> FusionOpportunity:
    """Return an opportunity of the fuser with its estimated gain."""
    body = o.fragment
    apart = sum(cost.seconds(s.op, c) for s, c in body.costs())
    ends = ops.fused.cost(body.out, *body.inputs, body=body)
    integer = next((s.op for s in body.steps if s.op in cost.INTEGER), None)
    together = cost.seconds(integer or body.steps[-1].op, ends)
    return FusionOpportunity(
        pattern(body), o.nodes, saved_bytes(body), apart - together, apart / together, not o.reason, o.reason
    )


def find_fusion_opportunities(graph: Graph, device: Device | str | None = None) -> list[FusionOpportunity]:
    """Return the fusion opportunities of a graph, the largest gain first."""
    opportunities = [opportunity(o) for o in _program(graph, device).opportunities]
    return sorted(opportunities, key=lambda o: -o.estimated_gain_s)


def _program(graph: Graph, device: Device | str | None = None) -> Program:
    captured_device = next((t.device for t in graph.captured.values()), None)
    return Program(graph, (captured_device or backends.device(device)).backend)


def generate_execution_plan(source: Graph | Program) -> ExecutionPlan:
    """Return the execution plan of a graph or of a program; a program that has run adds its measured time."""
    p = source if isinstance(source, Program) else _program(source)
    model = cost.model(cost.threads())
    steps = tuple(_plan_step(s, model) for s in _calls(p))
    blocks = p.steps.blocks if p.steps is not None else []
    lives = [Block(m.nbytes, m.first, max(m.first, m.last)) for m in blocks]
    groups = memory_groups(lives, p.steps.plan) if p.steps is not None else []
    return ExecutionPlan(
        steps,
        tuple(opportunity(o) for o in p.opportunities),
        tuple(tuple(blocks[i].first for i in g) for g in groups),
        p.arena_bytes,
        p.naive_bytes,
        sum(s.estimated_s for s in steps),
        sum(s.nbytes for s in steps),
        p.last_s,
    )


class _Call(NamedTuple):
    """A call of a program, native or not."""

    name: str
    kernel: str
    op: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    cost: Cost
    op_attrs: dict[str, Any]
    offset: int | None
    where: str


def _calls(p: Program) -> list[_Call]:
    """Return the calls of a program, native or not, in one form."""
    if p.steps is not None:
        return [
            _Call(
                step_name(c.node), c.kernel.isa, c.op, tuple(x.spec for x in c.inputs if x is not None),
                tuple(o.spec for o in c.outputs), c.cost, c.op_attrs,
                c.outputs[0].memory.index if c.outputs[0].memory.where == "arena" else None,
                p.graph.names.get(c.node, ""),
            )
            for c in p.steps.calls
        ]  # fmt: skip
    return [
        _Call(step_name(n), "node by node", n.op, tuple(i.spec for i in n.inputs if i is not None), outputs(n.spec),
              p.cost_of(n), dict(n.attrs), None, p.graph.names.get(n, ""))
        for n in p.graph.calls()
    ]  # fmt: skip


def step_name(n: Node) -> str:
    """Return the name of an op, or of the ops of a fused node."""
    body = dict(n.attrs).get("body")
    return n.op.name if body is None else f"fused {pattern(body)}"


def _plan_step(c: _Call, model: cost.Model) -> PlannedStep:
    body = c.op_attrs.get("body")
    integer = c.op in cost.INTEGER or (body is not None and any(s.op in cost.INTEGER for s in body.steps))
    return PlannedStep(
        c.name, c.kernel, tuple(map(str, c.inputs)), tuple(map(str, c.outputs)), c.cost.flops, c.cost.read + c.cost.written,
        model.seconds(c.cost, integer), model.bound(c.cost, integer), c.offset,
        c.where,
    )  # fmt: skip


methods["find_fusion_opportunities"] = find_fusion_opportunities
methods["generate_execution_plan"] = generate_execution_plan

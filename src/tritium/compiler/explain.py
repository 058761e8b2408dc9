"""What becomes of a graph: fusions and their gain, the steps of its program, memory and time, estimated and run.

Knows nothing of tracing. Estimates come from the cost model on this machine's measured ceilings and say so.
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
    """Nodes that can be one call: what it saves, by the cost model, and whether it was done."""

    pattern: str
    nodes: tuple[Node, ...]
    bytes_saved: int
    estimated_gain_s: float
    estimated_speedup: float
    applied: bool
    reason: str  # why it was not

    def __str__(self) -> str:
        said = f"{self.pattern}: {sized(self.bytes_saved)} less to move, estimated {self.estimated_speedup:.2f}x"
        return said if self.applied else f"{said} (not applied: {self.reason})"


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
    offset: int | None  # of the result in the arena; None: it is the caller's


class ExecutionPlan(NamedTuple):
    """The steps of a program, their memory, and how long they should take."""

    steps: tuple[PlannedStep, ...]
    fusion_opportunities: tuple[FusionOpportunity, ...]
    memory_groups: tuple[tuple[int, ...], ...]  # results of steps that share bytes of the arena, one after another
    estimated_memory_usage: int  # the arena
    naive_memory_usage: int
    estimated_execution_time: float  # seconds
    estimated_bytes: int
    measured_s: float | None  # the last run; None: not run yet

    @property
    def error(self) -> float | None:
        """How far the last run was from the estimate: 0.5 is half as long again; None: not run yet."""
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
                f"{i:3} {s.name} [{s.kernel}] {', '.join(s.inputs)} -> {', '.join(s.outputs)}: "
                f"{s.estimated_s * 1e6:.2f} us, {s.bound}-bound, {where}"
            )
        return "\n".join(lines)


def opportunity(o: Opportunity) -> FusionOpportunity:
    """An opportunity of the fuser with its gain."""
    body = o.fragment
    apart = sum(cost.seconds(s.op, c) for s, c in body.costs())
    ends = ops.fused.cost(body.out, *body.inputs, body=body)
    integer = next((s.op for s in body.steps if s.op in cost.INTEGER), None)
    together = cost.seconds(integer or body.steps[-1].op, ends)
    return FusionOpportunity(
        pattern(body), o.nodes, saved_bytes(body), apart - together, apart / together, not o.reason, o.reason
    )


def find_fusion_opportunities(graph: Graph, device: Device | str | None = None) -> list[FusionOpportunity]:
    """Of a graph, with the largest gain first."""
    found = [opportunity(o) for o in _program(graph, device).opportunities]
    return sorted(found, key=lambda o: -o.estimated_gain_s)


def _program(graph: Graph, device: Device | str | None = None) -> Program:
    found = next((t.device for t in graph.captured.values()), None)
    return Program(graph, (found or backends.device(device)).backend)


def generate_execution_plan(of: Graph | Program) -> ExecutionPlan:
    """The plan of a graph, or of a program that has run."""
    p = of if isinstance(of, Program) else _program(of)
    model = cost.model(cost.threads())
    steps = tuple(_planned(s, model) for s in _calls(p))
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
    name: str
    kernel: str
    op: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    cost: Cost
    said: dict[str, Any]  # attributes
    offset: int | None


def _calls(p: Program) -> list[_Call]:
    """The calls of a program, native or not, in one form."""
    if p.steps is not None:
        return [
            _Call(
                step_name(c.node), c.kernel.isa, c.op, tuple(x.spec for x in c.inputs if x is not None),
                tuple(o.spec for o in c.outputs), c.cost, c.said,
                c.outputs[0].memory.index if c.outputs[0].memory.where == "arena" else None,
            )
            for c in p.steps.calls
        ]  # fmt: skip
    return [
        _Call(step_name(n), "node by node", n.op, tuple(i.spec for i in n.inputs if i is not None), outputs(n.spec),
              p.cost_of(n), dict(n.attrs), None)
        for n in p.graph.calls()
    ]  # fmt: skip


def step_name(n: Node) -> str:
    body = dict(n.attrs).get("body")
    return n.op.name if body is None else f"fused {pattern(body)}"


def _planned(c: _Call, model: cost.Model) -> PlannedStep:
    body = c.said.get("body")
    integer = c.op in cost.INTEGER or (body is not None and any(s.op in cost.INTEGER for s in body.steps))
    return PlannedStep(
        c.name, c.kernel, tuple(map(str, c.inputs)), tuple(map(str, c.outputs)), c.cost.flops, c.cost.read + c.cost.written,
        model.seconds(c.cost, integer), model.bound(c.cost, integer), c.offset,
    )  # fmt: skip


methods["find_fusion_opportunities"] = find_fusion_opportunities
methods["generate_execution_plan"] = generate_execution_plan

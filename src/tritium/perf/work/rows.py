"""Cases from the op table's samples, and from the calls a real network makes: no shape lists by hand.

Knows nothing of candidates: `calls` has the recipes. A call is sent to a worker as JSON: its op, specs and attributes.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tritium import dtype as dt, ops
from tritium.arguments import checked
from tritium.errors import ArgumentError
from tritium.fragment import Fragment
from tritium.graph.graph import Graph, Node, trace
from tritium.layout import Layout
from tritium.op import OPS, Kind, Op, Spec, outputs
from tritium.perf.records.case import Case, Context, Recipe, Work
from tritium.perf.words import nearest

INTEGER = (ops.integer_matmul, ops.quantized_matmul)


@checked
def cases(row: Op | str, *, device: str = "cpu", threads: int | None = None, seed: int = 0) -> list[Case]:
    """Return a case for each sample of an op; none for ops that have no value of their own."""
    from tritium import testing

    if isinstance(row, str):
        if row not in OPS:
            raise ArgumentError(f"cases: there is no op {row!r}.{nearest(row, OPS)}")
        row = OPS[row]
    listed = {}
    for number, sample in enumerate(() if row in testing.NOT_CALLED else row.samples):
        name = f"{row.name} {testing.case_id(sample)}".strip()
        arguments = {"row": row.name, "sample": number, "device": device, "threads": threads, "seed": seed}
        specs = tuple(None if d is None else d.spec for d in sample.inputs)
        attrs = row.complete(dict(sample.attrs))
        out = row.decide(specs, attrs).out
        recipe = Recipe("tritium.perf.work.calls:sampled", arguments)
        listed[name] = Case(name, recipe, _context(row, out, device, threads), _work(row, out, specs, attrs))
    return list(listed.values())


def _context(row: Op, out: Any, device: str, threads: int | None) -> Context:
    first = outputs(out)[0]
    shape = tuple(n for n in first.shape if n is not None)
    return Context(row.name, shape, first.dtype.name, device, threads=threads or 1)


def _work(row: Op, out: Any, specs: tuple[Spec | None, ...], attrs: dict[str, Any]) -> Work:
    if row.kind is Kind.DYNAMIC:
        return Work(read=sum(s.nbytes for s in specs if s is not None))
    if row is ops.update_cache and specs[1] is not None:  # only the new tokens move
        return Work(read=specs[1].nbytes, written=Spec(specs[1].shape, out.dtype).nbytes)
    cost = row.cost(out, *specs, **attrs)
    return Work(cost.flops, cost.read, cost.written, row in INTEGER)


# ---- from traces


@checked
def traced(
    what: Any, *specs: Any, tokens: int = 1, device: str = "cpu", threads: int | None = None, seed: int = 0
) -> list[Case]:
    """Return the distinct calls of a graph, of a function on specs, or of a model that reads `tokens` tokens at once.

    The facts of a case say how often the network makes the call; views, constants and arguments do no work and are left out.
    """
    counts: Counter[str] = Counter()
    nodes: dict[str, Node] = {}
    for node in _graph(what, specs, tokens).order():
        if node.op.kind not in (Kind.VIEW, Kind.SOURCE) and node.op not in (ops.const, ops.given, ops.item):
            key = json.dumps(_call(node))
            counts[key] += 1
            nodes.setdefault(key, node)
    cases_by_name: dict[str, Case] = {}
    for key, node in nodes.items():
        input_specs = [None if i is None else i.spec for i in node.inputs]
        name = f"{node.op.name} {','.join(str(s) for s in input_specs if s is not None)}"
        name = name if name not in cases_by_name else f"{name} #{sum(n.startswith(name) for n in cases_by_name) + 1}"
        options = {"count": counts[key], "device": device, "threads": threads, "seed": seed}
        recipe = Recipe("tritium.perf.work.calls:called", json.loads(key) | options)
        work = _work(node.op, node.spec, tuple(input_specs), dict(node.attrs))
        cases_by_name[name] = Case(name, recipe, _context(node.op, node.spec, device, threads), work)
    return list(cases_by_name.values())


def _graph(what: Any, specs: tuple[Any, ...], tokens: int) -> Graph:
    """Return the graph of what is traced."""
    from tritium.models.load import Model

    if isinstance(what, Graph):
        return what
    if isinstance(what, Model):
        return _model_graph(what, tokens)
    if callable(what):
        return trace(what, *specs)
    raise ArgumentError(
        f"traced: a graph, a model or a function and its specs are needed, given {type(what).__name__}."
    )


def _model_graph(model: Any, tokens: int) -> Graph:
    """Return the graph of one forward pass on this many tokens, with an empty KV cache."""
    session = model.session(slots=1)
    if not 1 <= tokens <= session.capacity:
        raise ArgumentError(f"traced: tokens must be 1 to {session.capacity}, given {tokens}.")
    inputs = [Spec((1, tokens), dt.i32), Spec((1, 3), dt.i32), Spec((1,), dt.i32)]
    caches = [t.spec for t in session.caches]
    return trace(model._programs.last.fn, *inputs, *caches, donate=range(3, 3 + len(caches)))


def _call(node: Node) -> dict[str, Any]:
    """Return a node as JSON: its op, the specs of its distinct inputs, the index of each input among them, attributes."""
    distinct = list(dict.fromkeys(i for i in node.inputs if i is not None))
    return {
        "row": node.op.name,
        "specs": [as_json(i.spec) for i in distinct],
        "places": [None if i is None else distinct.index(i) for i in node.inputs],
        "attrs": {name: as_json(value) for name, value in dict(node.attrs).items()},
    }


def as_json(value: Any) -> Any:
    """Return an attribute as JSON; `calls.from_json` reads it."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": repr(value)}  # JSON has no infinity
    if isinstance(value, dt.DType):
        return {"dtype": value.name}
    if isinstance(value, Spec):
        return {"spec": [list(value.shape), value.dtype.name]}
    if isinstance(value, Layout):
        return {"layout": [list(value.shape), list(value.strides), value.offset]}
    if isinstance(value, Fragment):
        steps = [
            [step.op.name, list(step.inputs), {k: as_json(v) for k, v in step.attrs}, as_json(step.spec)]
            for step in value.steps
        ]
        return {"body": [[as_json(s) for s in value.inputs], steps, list(value.outputs)]}
    if isinstance(value, tuple):
        return [as_json(v) for v in value]
    raise ArgumentError(f"traced: an attribute of type {type(value).__name__} cannot be sent to a worker.")

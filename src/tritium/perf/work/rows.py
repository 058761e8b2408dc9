"""Cases from the table's own samples, and from the calls a real network makes: nobody writes shape lists by hand.

Knows nothing of candidates: `calls` has the recipes. A call is handed to a worker as JSON: its op, specs and attributes.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tritium import dtype as dt, ops
from tritium.errors import ArgumentError
from tritium.fragment import Fragment
from tritium.graph.graph import Graph, Node, trace
from tritium.layout import Layout
from tritium.op import OPS, Kind, Op, Spec, outputs
from tritium.perf.records.case import Case, Context, Recipe, Work
from tritium.perf.words import nearest

INTEGER = (ops.integer_matmul, ops.quantized_matmul)


def cases(row: Op | str, *, device: str = "cpu", threads: int | None = None, seed: int = 0) -> list[Case]:
    """A case for each sample of a row; none for rows that have no value of their own."""
    from tritium import testing

    if isinstance(row, str):
        if row not in OPS:
            raise ArgumentError(f"cases: the table has no row {row!r}.{nearest(row, OPS)}")
        row = OPS[row]
    found = {}
    for number, sample in enumerate(() if row in testing.NOT_CALLED else row.samples):
        said = f"{row.name} {testing.case_id(sample)}".strip()
        arguments = {"row": row.name, "sample": number, "device": device, "threads": threads, "seed": seed}
        specs = tuple(None if d is None else d.spec for d in sample.inputs)
        attrs = row.defaults | dict(sample.attrs)
        out = row.decide(specs, attrs).out
        recipe = Recipe("tritium.perf.work.calls:sampled", arguments)
        found[said] = Case(said, recipe, _context(row, out, device, threads), _work(row, out, specs, attrs))
    return list(found.values())


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


def traced(
    what: Any, *specs: Any, tokens: int = 1, device: str = "cpu", threads: int | None = None, seed: int = 0
) -> list[Case]:
    """The distinct calls of a graph, of a function on specs, or of a model that reads `tokens` tokens at once.

    Each case tells in its facts how often the network makes the call; views, constants and arguments do no work and are left out.
    """
    counts: Counter[str] = Counter()
    nodes: dict[str, Node] = {}
    for node in _graph(what, specs, tokens).order():
        if node.op.kind not in (Kind.VIEW, Kind.SOURCE) and node.op not in (ops.const, ops.given, ops.item):
            key = json.dumps(_call(node))
            counts[key] += 1
            nodes.setdefault(key, node)
    found: dict[str, Case] = {}
    for key, node in nodes.items():
        given = [None if i is None else i.spec for i in node.inputs]
        name = f"{node.op.name} {','.join(str(s) for s in given if s is not None)}"
        name = name if name not in found else f"{name} #{sum(n.startswith(name) for n in found) + 1}"
        more = {"count": counts[key], "device": device, "threads": threads, "seed": seed}
        recipe = Recipe("tritium.perf.work.calls:called", json.loads(key) | more)
        work = _work(node.op, node.spec, tuple(given), dict(node.attrs))
        found[name] = Case(name, recipe, _context(node.op, node.spec, device, threads), work)
    return list(found.values())


def _graph(what: Any, specs: tuple[Any, ...], tokens: int) -> Graph:
    from tritium.models.load import Model

    if isinstance(what, Graph):
        return what
    if isinstance(what, Model):
        return _of_model(what, tokens)
    if callable(what):
        return trace(what, *specs)
    raise ArgumentError(
        f"traced: a graph, a model or a function and its specs are needed, given {type(what).__name__}."
    )


def _of_model(model: Any, tokens: int) -> Graph:
    """One run of the network on so many tokens, with an empty cache behind it."""
    session = model.session(slots=1)
    if not 1 <= tokens <= session.capacity:
        raise ArgumentError(f"traced: tokens must be 1 to {session.capacity}, given {tokens}.")
    whole = [Spec((1, tokens), dt.i32), Spec((1, 3), dt.i32), Spec((1,), dt.i32)]
    caches = [t.spec for t in session.caches]
    return trace(model._programs.last.fn, *whole, *caches, donate=range(3, 3 + len(caches)))


def _call(node: Node) -> dict[str, Any]:
    """Return a node as JSON holds it: its op, the specs of its distinct inputs, which of them each place takes, attributes."""
    distinct = list(dict.fromkeys(i for i in node.inputs if i is not None))
    return {
        "row": node.op.name,
        "specs": [as_json(i.spec) for i in distinct],
        "places": [None if i is None else distinct.index(i) for i in node.inputs],
        "attrs": {name: as_json(value) for name, value in dict(node.attrs).items()},
    }


def as_json(value: Any) -> Any:
    """Return an attribute as JSON holds it; `calls.from_json` reads it."""
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
    raise ArgumentError(f"traced: an attribute of type {type(value).__name__} cannot be handed to a worker.")

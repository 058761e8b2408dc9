"""Cases from the table's own samples, and from the calls a real network makes: nobody writes shape lists by hand.

Knows nothing of peers beyond NumPy. A call is handed to a worker as the text of a graph of one node, which is read, never
evaluated; its values come from a seed, and the right answer from the reference kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tritium import dtype as dt
from tritium import ops
from tritium.errors import ArgumentError, nearest
from tritium.graph.graph import Graph, Node, Trace, trace
from tritium.op import OPS, Kind, Op, Spec, outputs
from tritium.ops import Draw
from tritium.perf.records.case import Case, Made, Recipe, UnsupportedError
from tritium.perf.records.context import Context, Work
from tritium.perf.work import peers
from tritium.perf.work.libraries import OWN, numpy_functions
from tritium.perf.work.operations import ROUNDING

Data = np.ndarray[Any, Any]
INTEGER = (ops.integer_matmul, ops.quantized_matmul)
OTHERWISE = (
    "rope",
    "attention",
    "linear",
    "dequantize",
)  # rows whose arguments are not those of the table of `libraries`


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
        recipe = Recipe("tritium.perf.work.rows:sampled", arguments)
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


def sampled(
    candidate: str, *, row: str, sample: int, device: str = "cpu", threads: int | None = None, seed: int = 0
) -> Made:
    """The recipe of a sample."""
    from tritium import testing

    op, drawn = OPS[row], OPS[row].samples[sample]
    attrs, data = dict(drawn.attrs), testing.arrays(op, drawn, seed)
    return _made(candidate, op, data, attrs, device, threads)


def _made(candidate: str, op: Op, data: list[Any], attrs: dict[str, Any], device: str, threads: int | None) -> Made:
    """A call of a row on values."""
    from tritium import testing

    library = peers.library(candidate, device, threads)
    if library.name not in OWN:
        return _on_numpy(library, op, data, attrs)
    xs = [None if x is None else testing.laid(x, "contiguous").to(library.device) for x in data]
    more: dict[str, Any] = {"device": library.device} if op.kind is Kind.SOURCE else {}
    more |= {"out": xs[0]} if op is ops.update_cache else {}  # as every network does
    call: Callable[[], Any] = partial(testing.call, op, xs, attrs, **more)
    if library.compiles:
        if op is ops.update_cache:
            raise UnsupportedError("update_cache writes where the cache lies; compiled alone it would copy all of it.")
        if op.kind in (Kind.SOURCE, Kind.DYNAMIC):
            raise UnsupportedError(
                f"{op.name} cannot be compiled alone: it has no tensor of a known shape to begin with."
            )
        given = [x for x in xs if x is not None]
        places = [i for i, x in enumerate(xs) if x is not None]

        def body(*tensors: Any) -> Any:
            known = dict(zip(places, tensors, strict=True))
            return testing.call(op, [known.get(i) for i in range(len(xs))], attrs)

        call = partial(library.compile(body), *given)
    expected = None if op.kind is Kind.VIEW else lambda: flat(testing.expected(op, data, attrs))
    return Made(call, library.wait, lambda r: flat(_host(r)), expected, _tolerance(op, data))


def _host(result: Any) -> Any:
    from tritium import testing

    return tuple(testing.values(r) for r in result) if isinstance(result, tuple) else testing.values(result)


def flat(result: Any) -> Data:
    """All elements of all results, one after another."""
    several = result if isinstance(result, tuple) else (result,)
    return np.concatenate([np.atleast_1d(np.asarray(r)).astype(np.float64).ravel() for r in several])


def _tolerance(op: Op, data: list[Any]) -> float:
    if not op.ulps:
        return 0.0 if op.kind is not Kind.CONTRACT else ROUNDING["f32"]
    kinds = [dt.dtype(x.dtype).name for x in data if x is not None and x.dtype.name != "bool"]
    return 10 * max((ROUNDING[k] for k in kinds if k in ROUNDING), default=0.0) or ROUNDING["f32"]


def _on_numpy(library: Any, op: Op, data: list[Any], attrs: dict[str, Any]) -> Made:
    """The same call as a user of NumPy writes it, where the names and meanings agree."""
    from tritium import testing

    plain = not attrs and all(type(x) is np.ndarray for x in data)
    if library.name != "numpy" or not plain or op.name in OTHERWISE or op.name not in numpy_functions():
        raise UnsupportedError(f"no call of {library.name} is written for this sample of {op.name}.")
    call = partial(numpy_functions()[op.name], *data)
    return Made(
        call, None, flat, lambda: flat(testing.expected(op, data, attrs)), max(_tolerance(op, data), ROUNDING["f32"])
    )


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
            said = str(_alone(node))
            counts[said] += 1
            nodes.setdefault(said, node)
    found: dict[str, Case] = {}
    for said, node in nodes.items():
        given = [None if i is None else i.spec for i in node.inputs]
        name = f"{node.op.name} {','.join(str(s) for s in given if s is not None)}"
        name = name if name not in found else f"{name} #{sum(n.startswith(name) for n in found) + 1}"
        recipe = Recipe(
            "tritium.perf.work.rows:called", {"graph": said, "count": counts[said], "device": device, "threads": threads, "seed": seed}
        )  # fmt: skip
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


def _alone(node: Node) -> Graph:
    """The node as a graph of its own: what it reads are arguments."""
    own = Trace()
    given: dict[Node, Node] = {}
    for i in node.inputs:
        if i is not None and i not in given:
            given[i] = own.given(len(given), i.spec)
    single = isinstance(node.spec, Spec)
    made = own.node(node.op, tuple(None if i is None else given[i] for i in node.inputs), node.spec, dict(node.attrs))
    results = (
        (made,) if single else tuple(own.node(ops.item, (made,), s, {"index": n}) for n, s in enumerate(node.spec))
    )
    return Graph(tuple(given.values()), results, {}, single)


def called(
    candidate: str, *, graph: str, count: int = 1, device: str = "cpu", threads: int | None = None, seed: int = 0
) -> Made:
    """The recipe of one call of a trace."""
    from tritium import testing
    from tritium.graph.text import parse

    node = parse(graph).outputs[0]
    node = node.inputs[0] or node if node.op is ops.item else node
    rng = np.random.default_rng(seed)
    attrs = dict(node.attrs)
    drawn: dict[Node, Any] = {}
    for number, i in enumerate(node.inputs):
        if i is not None and i not in drawn:
            indices = _indices(node, number, attrs, rng)
            drawn[i] = testing.draw(Draw(i.spec), rng) if indices is None else indices
    data = [None if i is None else drawn[i] for i in node.inputs]
    made = _made(candidate, node.op, data, attrs, device, threads)
    made.facts = {"count": count}
    return made


def _indices(node: Node, number: int, attrs: dict[str, Any], rng: np.random.Generator) -> Data | None:
    """Values of an input that says where: within bounds, and for a cache as if it were full. None: any values do."""
    specs = [None if i is None else i.spec for i in node.inputs]
    spec = specs[number]
    if spec is None or not spec.dtype.is_integer or spec.dtype.is_packed:
        return None
    if node.op in (ops.attention, ops.update_cache) and number == len(specs) - 1:
        new, cache = (0, 1) if node.op is ops.attention else (1, 0)
        tokens, capacity = specs[new].shape[1], specs[cache].shape[2]  # type: ignore[union-attr]
        rows = [[slot, capacity - tokens, tokens] for slot in range(spec.shape[0])]
        return np.asarray(rows, spec.dtype.numpy).reshape(spec.shape)
    if number > 0 and specs[0] is not None and node.op.kind is Kind.MOVE:
        axis = attrs.get("axis")
        bound = specs[0].shape[axis] if isinstance(axis, int) else min(specs[0].shape, default=1)
        return rng.integers(0, max(bound, 1), spec.shape).astype(spec.dtype.numpy)
    return None

"""Recipes of single calls: the samples of the op table, and the calls a network makes.

A call is JSON: the name of its op, specs and attributes, which are read and never evaluated; values come from a seed,
and the expected answer from the reference kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

import tritium as tt
from tritium import testing
from tritium.perf.records.case import Made, UnsupportedError
from tritium.perf.work.libraries import OWN, Library, library_of, numpy_functions
from tritium.perf.work.operations import ROUNDING, dtype_named

Data = np.ndarray[Any, Any]
OTHERWISE = (
    "rope",
    "attention",
    "linear",
    "quantize",
    "dequantize",
)  # ops whose arguments differ from the table of `libraries`


class Drawn(NamedTuple):
    """The distribution of an input's values, in the form `testing.draw` reads."""

    spec: tt.Spec
    low: float = -3.0
    high: float = 3.0


@cache
def table() -> dict[str, tt.Op]:
    """Return the ops of the measured package by name."""
    return {op.name: op for op in [*(op for op, _ in testing.cases()), *testing.NOT_CALLED]}


def row_named(name: str) -> tt.Op:
    """Return an op; raise UnsupportedError if the measured package has none of this name."""
    if name not in table():
        raise UnsupportedError(f"tritium {tt.__version__} has no op {name!r}.")
    return table()[name]


def sampled(
    candidate: str, *, row: str, sample: int, device: str = "cpu", threads: int | None = None, seed: int = 0
) -> Made:
    """Build the call of a sample."""
    op, chosen = row_named(row), row_named(row).samples[sample]
    attrs, data = dict(chosen.attrs), testing.arrays(op, chosen, seed)
    return _build(candidate, op, data, attrs, device, threads)


def _build(candidate: str, op: tt.Op, data: list[Any], attrs: dict[str, Any], device: str, threads: int | None) -> Made:
    """Build the call of an op on values."""
    library = library_of(candidate, device, threads)
    if library.name not in OWN:
        return _on_numpy(library, op, data, attrs)
    xs = [None if x is None else testing.laid(x, "contiguous").to(library.device) for x in data]
    options: dict[str, Any] = {"device": library.device} if op.kind.name == "SOURCE" else {}
    options |= {"out": xs[0]} if op is tt.update_cache else {}  # in place, as every network does
    call: Callable[[], Any] = partial(testing.call, op, xs, attrs, **options)
    if library.compiles:
        if op is tt.update_cache:
            raise UnsupportedError(
                "update_cache writes into the cache in place; compiled alone it would copy all of it."
            )
        if op.kind.name in ("SOURCE", "DYNAMIC"):
            raise UnsupportedError(
                f"{op.name} cannot be compiled alone: it has no tensor of a known shape to begin with."
            )
        tensors = [x for x in xs if x is not None]
        positions = [i for i, x in enumerate(xs) if x is not None]

        def body(*arguments: Any) -> Any:
            known = dict(zip(positions, arguments, strict=True))
            return testing.call(op, [known.get(i) for i in range(len(xs))], attrs)

        call = partial(library.compile(body), *tensors)
    expected = None if op.kind.name == "VIEW" else lambda: flat(testing.expected(op, data, attrs))
    return Made(call, library.wait, lambda r: flat(_host(r)), expected, _tolerance(op, data))


def _host(result: Any) -> Any:
    """Return a result as NumPy arrays."""
    return tuple(testing.values(r) for r in result) if isinstance(result, tuple) else testing.values(result)


def flat(result: Any) -> Data:
    """Return all elements of all results, one after another; of complex numbers both parts."""
    results = [np.atleast_1d(np.asarray(r)).ravel() for r in (result if isinstance(result, tuple) else (result,))]
    parts = [p for r in results for p in ((r.real, r.imag) if np.iscomplexobj(r) else (r,))]
    return np.concatenate([p.astype(np.float64) for p in parts])


def _tolerance(op: tt.Op, data: list[Any]) -> float:
    """Return the tolerance of an op on these values."""
    if not op.ulps:
        return 0.0 if op.kind.name != "CONTRACT" else ROUNDING["f32"]
    kinds = [dtype_named(x.dtype).name for x in data if x is not None and x.dtype.name != "bool"]
    return 10 * max((ROUNDING[k] for k in kinds if k in ROUNDING), default=0.0) or ROUNDING["f32"]


def _on_numpy(library: Library, op: tt.Op, data: list[Any], attrs: dict[str, Any]) -> Made:
    """Build the same call as a user of NumPy writes it, if names and meanings agree."""
    is_plain = not attrs and all(type(x) is np.ndarray for x in data)
    if library.name != "numpy" or not is_plain or op.name in OTHERWISE or op.name not in numpy_functions():
        raise UnsupportedError(f"no call of {library.name} is written for this sample of {op.name}.")
    call = partial(numpy_functions()[op.name], *data)
    return Made(
        call, None, flat, lambda: flat(testing.expected(op, data, attrs)), max(_tolerance(op, data), ROUNDING["f32"])
    )


# ---- from traces


def called(
    candidate: str,
    *,
    row: str,
    specs: Sequence[Any],
    places: Sequence[int | None],
    attrs: dict[str, Any],
    count: int = 1,
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
) -> Made:
    """Build one call of a trace: input i is the one of `specs` that `places[i]` names."""
    op, known = row_named(row), {name: from_json(value) for name, value in attrs.items()}
    distinct: list[tt.Spec] = [from_json(spec) for spec in specs]
    inputs = [None if index is None else distinct[index] for index in places]
    rng = np.random.default_rng(seed)
    values: dict[int, Any] = {}
    for number, index in enumerate(places):
        if index is not None and index not in values:
            indices = _indices(op, inputs, number, known, rng)
            drawn: Any = Drawn(distinct[index])
            values[index] = testing.draw(drawn, rng) if indices is None else indices
    data = [None if index is None else values[index] for index in places]
    call = _build(candidate, op, data, known, device, threads)
    call.facts = {"count": count}
    return call


def from_json(value: Any) -> Any:
    """Read what `rows.as_json` wrote."""
    if isinstance(value, list):
        return tuple(from_json(v) for v in value)
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "float":
        return float(held)
    if kind == "dtype":
        return dtype_named(held)
    if kind == "spec":
        return tt.Spec(tuple(held[0]), dtype_named(held[1]))
    if kind == "layout":
        return type(_attribute("update", "layout"))(tuple(held[0]), tuple(held[1]), held[2])
    return _body(*held)


def _attribute(row: str, name: str) -> Any:
    """Return an attribute of an op's first sample: the public API has no names for the classes of layouts and fused bodies."""
    return dict(row_named(row).samples[0].attrs)[name]


def _body(inputs: Sequence[Any], steps: Sequence[Any], results: Sequence[int]) -> Any:
    """Return the body of a fused call."""
    sample = _attribute("fused", "body")
    step = type(sample.steps[0])
    fragment_steps = tuple(
        step(row_named(name), tuple(places), tuple((k, from_json(v)) for k, v in attrs.items()), from_json(spec))
        for name, places, attrs, spec in steps
    )
    return type(sample)(tuple(from_json(s) for s in inputs), fragment_steps, tuple(results))


def _indices(
    op: tt.Op, specs: Sequence[tt.Spec | None], number: int, attrs: dict[str, Any], rng: np.random.Generator
) -> Data | None:
    """Return values of an input that holds indices: within bounds, and for a KV cache as if it were full. None: any values do."""
    spec = specs[number]
    if spec is None or not spec.dtype.is_integer or spec.dtype.is_packed:
        return None
    if op in (tt.attention, tt.update_cache) and number == len(specs) - 1:
        new, cache = (0, 1) if op is tt.attention else (1, 0)
        tokens, capacity = specs[new].shape[1], specs[cache].shape[2]  # type: ignore[union-attr]
        rows = [[slot, capacity - tokens, tokens] for slot in range(spec.shape[0])]
        return np.asarray(rows, spec.dtype.numpy).reshape(spec.shape)
    if number > 0 and specs[0] is not None and op.kind.name == "MOVE":
        axis = attrs.get("axis")
        bound = specs[0].shape[axis] if isinstance(axis, int) else min(specs[0].shape, default=1)
        return rng.integers(0, max(bound, 1), spec.shape).astype(spec.dtype.numpy)
    return None

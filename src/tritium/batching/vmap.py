"""vmap: a function of one sample becomes a function of many, without a loop over them.

The function is traced for one sample, its graph is rewritten for all of them, and the calls of that graph run, or are
recorded in the trace that is active: so vmap can be nested, compiled and lazy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tritium import ops
from tritium.arguments import checked_except
from tritium.errors import ArgumentError, ShapeError, TraceError, shown
from tritium.functions import asarray
from tritium.garbage import no_collections
from tritium.graph.batch import batched
from tritium.graph.graph import Graph, Node, Trace, Traced, tracing
from tritium.op import Op, Spec
from tritium.tensor import Tensor

TENSORS = (Tensor, np.ndarray)


class InnerTrace(Trace):
    """A trace inside another: tensors of the outer one are captured by it, with the value they have when they are read."""

    def __init__(self) -> None:
        super().__init__()
        self._outside: dict[Node, Node] = {}  # from a node of the outer trace to its placeholder here

    def read(self, x: Tensor) -> Node:
        storage = x.storage
        if not isinstance(storage, Traced) or storage.cell.trace is self:
            return super().read(x)
        outer = storage.cell.trace
        node = outer.read(x)
        placeholder = self._outside.get(node)
        if placeholder is None:
            self.lowest -= 1
            placeholder = self._outside[node] = self.placeholder(self.lowest, node.spec)
            self.captured[placeholder] = outer.tensor(node, "captured")
        return placeholder

    def write(self, out: Tensor, node: Node, op: Op) -> Tensor:
        if isinstance(out.storage, Traced) and out.storage.cell.trace is not self:
            raise TraceError(
                f"{op.name}: a function under vmap writes to a tensor from outside ({out.spec}), which all samples share. "
                f"Write to a copy: y = x.clone()."
            )
        return super().write(out, node, op)


# ---- nested values and their axes


class Place(NamedTuple):
    """A tensor among nested values, and the axis that belongs to it."""

    name: str  # for errors: "argument 0['w']"
    value: Any
    axis: Any


def _items(value: Any) -> list[tuple[Any, str, Any]] | None:
    """Return the parts of a container as (key, name, value); None: it is no container."""
    if isinstance(value, dict):
        return [(k, f"[{k!r}]", v) for k, v in value.items()]
    if isinstance(value, (tuple, list)):
        fields = getattr(value, "_fields", ())
        return [(i, f".{fields[i]}" if fields else f"[{i}]", v) for i, v in enumerate(value)]
    return None


def _places(name: str, value: Any, axis: Any, option: str) -> Iterator[Place]:
    """Yield the tensors in a value. `axis` is an int or None for all of them, or has the structure of the value."""
    nested = isinstance(axis, (tuple, list, dict))
    if isinstance(value, TENSORS):
        if nested or isinstance(axis, bool) or not (axis is None or hasattr(axis, "__index__")):
            raise ArgumentError(f"vmap: {option} has {shown(axis)} for {name}, a tensor; give an int or None.")
        yield Place(name, value, axis)
        return
    parts = _items(value)
    if parts is None:
        return
    if nested:
        keys = set(axis) if isinstance(axis, dict) else set(range(len(axis)))
        if isinstance(axis, dict) != isinstance(value, dict) or keys != {key for key, _, _ in parts}:
            raise ArgumentError(
                f"vmap: {option} has {shown(axis)} for {name}, which is a {type(value).__name__} of {len(parts)}; give an "
                f"int, None, or an axis for each part."
            )
    for key, label, part in parts:
        yield from _places(name + label, part, axis[key] if nested else axis, option)


def _rebuild(value: Any, tensors: Iterator[Any]) -> Any:
    """Return a nested value with other tensors in place of its own, in order."""
    if isinstance(value, TENSORS):
        return next(tensors)
    if isinstance(value, dict):
        return {k: _rebuild(v, tensors) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_rebuild(v, tensors) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts) if isinstance(value, tuple) else parts
    return value


def _normal_axis(place: Place, ndim: int, option: str) -> int:
    axis = place.axis.__index__()
    if -ndim <= axis < ndim:
        return int(axis % ndim)
    axes = f"its axes are 0 to {ndim - 1}" if ndim else "it has none"
    raise ShapeError(f"vmap: {option} asks for axis {axis} of {place.name}, which has {ndim} dimensions; {axes}.")


# ---- the transform


@checked_except("fn", "in_axes", "out_axes")
def vmap(fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """Return a function that maps fn over an axis of its arguments: its results are those of a loop, stacked.

    `in_axes` is the axis of every argument, or a tuple with one for each; None shares an argument among all samples. For an
    argument that is a tuple, list or dict, an axis may have its structure. Keyword arguments are mapped along axis 0.
    `out_axes` is the axis of the results along which the samples lie, likewise; None for results that are the same for
    all. Numbers and other values that are no tensors are shared.
    """
    if not callable(fn):
        raise ArgumentError(f"vmap: a function is needed, given {type(fn).__name__}.")
    for option, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
        if isinstance(axes, bool) or not (axes is None or isinstance(axes, (int, tuple, list, dict))):
            raise ArgumentError(f"vmap: {option} must be an int, None, or a tuple of them, given {shown(axes)}.")
    if isinstance(in_axes, dict):
        raise ArgumentError(f"vmap: in_axes must be an int, None, or a tuple of them, given {shown(in_axes)}.")

    @functools.wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        return _call(fn, in_axes, out_axes, args, kwargs)

    return mapped


def _argument_places(in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Place]:
    if isinstance(in_axes, (tuple, list)) and len(in_axes) != len(args):
        raise ArgumentError(
            f"vmap: in_axes has {len(in_axes)} axes, but {len(args)} positional arguments were given; give one for each "
            f"(None shares an argument)."
        )
    axes = in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
    places = [p for i, x in enumerate(args) for p in _places(f"argument {i}", x, axes[i], "in_axes")]
    return places + [p for name, x in kwargs.items() for p in _places(f"argument {name!r}", x, 0, "in_axes")]


def _call(fn: Callable[..., Any], in_axes: Any, out_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    places = [
        p if isinstance(p.value, Tensor) else p._replace(value=asarray(p.value))
        for p in _argument_places(in_axes, args, kwargs)
    ]
    tensors: list[Tensor] = []
    sizes: dict[str, int] = {}
    for p in places:
        if p.axis is None:
            tensors.append(p.value)
            continue
        axis = _normal_axis(p, p.value.ndim, "in_axes")
        sizes[f"{p.name} ({p.value.spec}) along axis {p.axis}"] = p.value.shape[axis]
        tensors.append(ops.moveaxis(p.value, axis, 0))
    if not sizes:
        raise ArgumentError("vmap: no argument is mapped; give a tensor, and an axis of it in in_axes.")
    if len(set(sizes.values())) > 1:
        (one, n), (other, m) = next((a, b) for a in sizes.items() for b in sizes.items() if a[1] != b[1])
        raise ShapeError(f"vmap: the mapped axes must have one size, given {n} for {one} and {m} for {other}.")
    n = next(iter(sizes.values()))
    which = [i for i, p in enumerate(places) if p.axis is not None]
    graph, result = _trace_sample(fn, tensors, which, args, kwargs)
    results = _run_batched(_name(fn), graph, n, which, tensors)
    shared = _shared_outputs(graph, which)
    outs = [
        _arrange(p._replace(value=x), n, is_shared)
        for p, x, is_shared in zip(_places("the result", result, out_axes, "out_axes"), results, shared, strict=True)
    ]
    return _rebuild(result, iter(outs))


def _name(fn: Any) -> str:
    return str(getattr(fn, "__name__", "function"))


def _trace_sample(
    fn: Callable[..., Any], tensors: list[Tensor], which: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Graph, Any]:
    """Return the graph of one sample, and the function's result, with traced tensors in it."""
    mapped = set(which)
    with no_collections(), tracing(InnerTrace()) as t:
        specs = [Spec(x.shape[1:], x.dtype) if i in mapped else x.spec for i, x in enumerate(tensors)]
        arguments = [t.argument(i, s) for i, s in enumerate(specs)]
        inputs = tuple(t.placeholder(i, s) for i, s in enumerate(specs))
        sample_args, sample_kwargs = _rebuild((args, kwargs), iter(arguments))
        result = fn(*sample_args, **sample_kwargs)
        outputs = [x if isinstance(x, Tensor) else asarray(x) for x in (p.value for p in _places("", result, 0, ""))]
        if not outputs:
            raise TraceError(
                f"vmap: {_name(fn)} returned {shown(result)}; return a tensor, or a tuple, list or dict of them."
            )
        return Graph(inputs, tuple(t.read(x) for x in outputs), t.captured, False), result


def _run_batched(name: str, graph: Graph, n: int, which: list[int], tensors: list[Tensor]) -> list[Tensor]:
    """Return the results of all samples along a new first axis."""
    many = batched(graph, max(n, 1), which)
    if isinstance(many, str):
        raise TraceError(f"vmap: {name} cannot be mapped: {many}")
    if n:
        return list(many(*tensors))
    first = tensors[which[0]]
    device = None if first.is_traced else first.device
    return [ops.empty((0, *x.spec.shape), dtype=x.spec.dtype, device=device) for x in graph.outputs]


def _shared_outputs(graph: Graph, which: list[int]) -> list[bool]:
    """Return, for each output of the graph of one sample, True if it depends on no mapped argument."""
    depends = {graph.inputs[i] for i in which}
    for node in graph.order():
        if any(i in depends for i in node.inputs):
            depends.add(node)
    return [x not in depends for x in graph.outputs]


def _arrange(place: Place, n: int, is_shared: bool) -> Tensor:
    """Return a result with the samples along its axis of out_axes; without them for None."""
    x: Tensor = place.value
    if place.axis is not None:
        return ops.moveaxis(x, 0, _normal_axis(place, x.ndim, "out_axes"))
    if not is_shared or not n:
        why = "differs from sample to sample" if n else "has no sample to take it from"
        raise ArgumentError(f"vmap: out_axes is None for {place.name}, which {why}; give the axis of its samples.")
    return x[0]

"""The op `fused` in NumPy: the steps of its body, one after another.

A backend with something faster lists it before this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tritium import ops
from tritium.backends.reference import packed
from tritium.backends.reference.cast import cast, parsed
from tritium.fragment import Fragment, Step
from tritium.op import Kind, Op, Spec, outputs

Fn = Callable[..., Any]


def empty(spec: Spec) -> Any:
    return packed.empty(spec.shape, spec.dtype) if spec.dtype.is_packed else np.empty(spec.shape, spec.dtype.numpy)


def constant(value: Any, spec: Spec) -> np.ndarray[Any, Any]:
    """Return a number of a graph as a 0-d array, rounded once."""
    result = np.empty((), spec.dtype.numpy)
    cast(np.asarray(parsed(value, spec.dtype)), out=result)
    return result


def run_step(step: Step, xs: list[Any], kernels: Mapping[Op, Fn]) -> Any:
    attrs = dict(step.attrs)
    if step.op is ops.const:
        return constant(attrs["value"], step.spec)
    if step.op is ops.item:
        return xs[0][attrs["index"]]
    if step.op.kind is Kind.VIEW:
        return xs[0].reshape(step.spec.shape)  # a fragment only ever adds or drops axes of size 1
    results = tuple(empty(s) for s in outputs(step.spec))
    several = not isinstance(step.spec, Spec)
    kernels[step.op](*xs, out=results if several else results[0], **attrs)
    return results if several else results[0]


def kernel(kernels: Mapping[Op, Fn]) -> Fn:
    """Return the reference kernel of `fused`, by the reference kernels of its steps."""

    def fused(*xs: Any, out: Any, body: Fragment) -> None:
        values: list[Any] = list(xs)
        for step in body.steps:
            values.append(run_step(step, [None if i is None else values[i] for i in step.inputs], kernels))
        for to, v in zip(out if isinstance(out, tuple) else (out,), body.outputs, strict=True):
            to[...] = values[v]

    return fused

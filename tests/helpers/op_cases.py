"""What tests of every op share: which rows compute, extreme values, blanks and their cases."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import pytest

import tritium as tt
from at import at
from tritium.op import OPS, Kind, Op, Trait
from tritium.ops import Sample
from tritium.testing import case_id, cases, values


def numpy(x: Any) -> Any:
    return tuple(values(t) for t in x) if isinstance(x, tuple) else values(x)


def one_by_one(items: Sequence[Any], run: Callable[[Any], None]) -> None:
    """Try each item in one test: a failure says at which, and a skip leaves out that one; all of them skip the test."""
    skipped = []
    for item in items:
        try:
            with at(case_id(item) or item):
                run(item)
        except pytest.skip.Exception as reason:
            skipped.append(reason)
    if skipped and len(skipped) == len(items):
        raise skipped[0]


def by_op(given: Iterable[tuple[Op, Sample]]) -> Callable[[Any], Any]:
    """Parametrize a test of an op and a sample by op: its samples are tried one by one in the same test."""
    samples: dict[Op, list[Sample]] = {}
    for op, sample in given:
        samples.setdefault(op, []).append(sample)

    def decorate(test: Any) -> Any:
        @wraps(test)
        def each(op: Op, **fixtures: Any) -> None:
            one_by_one(samples[op], lambda sample: test(op=op, sample=sample, **fixtures))

        signature = inspect.signature(test)
        parameters = [p for p in signature.parameters.values() if p.name != "sample"]
        each.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return pytest.mark.parametrize("op", list(samples), ids=case_id)(each)

    return decorate


COMPUTING = cases(Kind.MAP, Kind.REDUCE, Kind.CONTRACT, Kind.MOVE, Kind.DYNAMIC)

TRACED = cases(Kind.SOURCE, Kind.VIEW, Kind.MAP, Kind.REDUCE, Kind.CONTRACT, Kind.MOVE)


def out_cases() -> list[tuple[Op, Sample]]:
    return cases(Kind.MAP, Kind.REDUCE, Kind.CONTRACT, Kind.MOVE)


def blank(like: tt.Tensor, strided: bool) -> tt.Tensor:
    """Memory for a result, row by row or every other element of a larger one; packed ones have one way only."""
    if not strided or like.dtype.is_packed:
        return tt.empty(like.shape, dtype=like.dtype, device=like.device)
    return tt.empty((*like.shape, 2), dtype=like.dtype, device=like.device)[..., 1]


def keeps_its_spec(op: Op, sample: Sample) -> bool:
    """Whether the result has the shape and dtype of the first input, so that it can be written there."""
    specs = tuple(None if d is None else d.spec for d in sample.inputs)
    return op.decide(specs, op.complete(dict(sample.attrs))).out == specs[0]


IN_PLACE = [(o, s) for o, s in out_cases() if o.traits & Trait.IN_PLACE and o.inputs and keeps_its_spec(o, s)]

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-45, 3e38, -3e38], np.float32)

PLAIN_MAPS = [o for o in OPS.values() if o.kind is Kind.MAP and o.inputs and not o.params and not o.optional]


def maps(arity: int, *, floats: bool) -> list[Op]:
    """Rows y = f(x, …) without attributes that take floats, or that compute in the integer dtype they are given."""
    found = [o for o in PLAIN_MAPS if len(o.inputs) == arity and o is not tt.divmod]
    if floats:
        return [o for o in found if all(d and d.spec.dtype.is_float for d in o.samples[0].inputs)]
    return [o for o in found if o.domain not in (tt.ops.floating, tt.ops.truth)]


def extremes(op: Op, name: str) -> list[Any]:
    """The ends of an integer dtype's range, each with each; integers have no negative powers."""
    kind = tt.dtype.dtype(name)
    info = tt.iinfo(kind)
    x = np.array([info.min, info.max, 0, 1, 3] + ([-1] if info.min else []), kind.numpy)
    data = [np.ascontiguousarray(g) for g in np.meshgrid(x, x)] if len(op.inputs) == 2 else [x]
    if op is tt.pow:
        data[1] = np.where(data[1] < 0, 2, data[1]).astype(kind.numpy)
    return data

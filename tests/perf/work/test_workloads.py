"""Workloads: a transformer layer with BitLinear, decoding, and batches of items."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tritium.errors import ShapeError
from tritium.perf.engine.worker import checked, resolve
from tritium.perf.records.case import Case, Made, UnsupportedError
from tritium.perf.work import recipes as work, workloads

CASES = [
    *workloads.workloads(width=192, tokens=7, context=24, batch=3, items=70),
    *workloads.cases("transformer_layer", [(1, 256), (2, 5, 256, 12)]),
]


def made(case: Case, candidate: str = "tritium") -> Made:
    found: Made = resolve(case.recipe.target)(candidate, **json.loads(json.dumps(dict(case.recipe.arguments))))
    return found


@pytest.mark.parametrize("candidate", ["tritium", "tritium.compile", "numpy"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_workload_gives_the_right_answer_every_time(case: Case, candidate: str) -> None:
    one = made(case, candidate)
    for _ in range(2):  # the cache is written again in the same places
        said = checked(one, one.call())
        assert "status" not in said, said


def test_prefill_decode_and_batches_are_there() -> None:
    assert {c.context.operation for c in workloads.workloads()} == {"prefill", "decode", "batch_processing"}


def test_decoding_gives_one_token_for_each_sequence() -> None:
    (case,) = workloads.cases("decode", [(3, 16, 192)])
    assert (case.work.items, case.work.item) == (3, "token")
    assert made(case).call().shape == (3, 1, 192)
    assert (case.context.batch, case.context.sequence_length) == (3, 16)


def test_the_weights_of_a_layer_are_counted_at_two_bits() -> None:
    (case,) = workloads.cases("decode", [(1, 16, 256)])
    s = workloads.sizes_of("decode", (1, 16, 256))
    assert case.context.parameters == s.parameters
    assert s.parameters // 4 < case.work.read < s.parameters // 4 + 40_000
    other = made(case, "numpy").work
    assert other is not None
    assert other.read > 4 * s.parameters
    assert not other.integer


def test_the_grid_takes_workloads_by_name() -> None:
    found = work.grid(["prefill", "add"], [(8, 192)])
    assert [c.name for c in found] == ["prefill 8x192", "add 8x192 f32"]


@pytest.mark.parametrize("shape", [(8,), (1, 8, 100), (1, 8, 64, 4), (1, 2, 64, 4, 5)])
def test_a_shape_that_means_no_layer_is_refused(shape: tuple[int, ...]) -> None:
    assert work.refuses("prefill", shape, "f32")
    with pytest.raises(ShapeError):
        workloads.sizes_of("prefill", shape)
    with pytest.raises(UnsupportedError):
        workloads.workload("tritium", workload="prefill", shape=shape)
    assert workloads.cases("prefill", [shape]) == []


def test_activations_rounded_to_int8_are_near_the_floats() -> None:
    s = workloads.sizes_of("prefill", (4, 192))
    given = workloads.values("prefill", s, 0)
    rounded, exact = (workloads.right("prefill", s, given, r) for r in (True, False))
    assert 0 < np.abs(rounded - exact).max() < 0.1 * np.abs(exact).max()

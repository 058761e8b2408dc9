"""Cases from the table's samples and from traces of networks."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tritium as tt
from tritium import ops
from tritium.errors import ArgumentError
from tritium.models import load as model
from tritium.op import OPS, Kind
from tritium.perf.engine.worker import checked, resolve
from tritium.perf.records.case import Made, UnsupportedError
from tritium.perf.work import rows
from tritium.perf.work.calls import flat

CALLED = ("tritium", "tritium.compile", "numpy")


def follow(case: rows.Case, candidate: str) -> Made | None:
    try:
        found: Made = resolve(case.recipe.target)(candidate, **json.loads(json.dumps(dict(case.recipe.arguments))))
    except UnsupportedError:
        return None
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("candidate", CALLED)
def test_every_sample_of_the_table_gives_the_right_answer(candidate: str) -> None:
    seen = 0
    for name in OPS:
        for case in rows.cases(name):
            one = follow(case, candidate)
            if one is not None:
                said = checked(one, one.call())
                assert "status" not in said, (case.name, said)
                seen += 1
    assert seen > (100 if candidate == "numpy" else 500)


def test_rows_without_a_value_have_no_cases() -> None:
    assert rows.cases(ops.given) == []


def test_an_unknown_row_names_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'softmax'"):
        rows.cases("sofmax")


def test_a_trace_gives_each_distinct_call_once_with_its_count() -> None:
    def fn(x: tt.Tensor, w: tt.Tensor) -> tt.Tensor:
        return tt.relu(tt.relu(x @ w) @ w) + x

    found = {c.name: c for c in rows.traced(fn, tt.Spec((4, 4)), tt.Spec((4, 4)))}
    assert list(found) == ["matmul f32[4,4],f32[4,4]", "relu f32[4,4]", "add f32[4,4],f32[4,4]"]
    counts = [dict(c.recipe.arguments)["count"] for c in found.values()]
    assert counts == [2, 2, 1]
    one = follow(found["relu f32[4,4]"], "tritium")
    assert one is not None
    assert one.facts["count"] == 2


def test_a_graph_can_be_given_itself() -> None:
    graph = tt.trace(lambda x: tt.exp(x).sum(), tt.Spec((4, 4)))
    assert [c.context.operation for c in rows.traced(graph)] == ["exp", "sum"]


@pytest.mark.parametrize("tokens", [1, 5])
def test_every_call_of_a_model_gives_the_right_answer(tokens: int) -> None:
    found = rows.traced(tt.load(model.shipped()), tokens=tokens)
    assert {"quantized_matmul", "attention", "update_cache", "rms_norm"} <= {c.context.operation for c in found}
    assert all(c.work.moved or c.work.flops for c in found)
    for case in found:
        one = follow(case, "tritium")
        assert one is not None
        said = checked(one, one.call())
        assert "status" not in said, (case.name, said)
        assert said == checked(one, one.call())


def test_views_and_constants_are_no_cases() -> None:
    found = rows.traced(lambda x: (x.T + 1.0).reshape(16), tt.Spec((4, 4)))
    assert [OPS[c.context.operation].kind for c in found] == [Kind.MAP]


def test_writing_a_cache_moves_only_the_new_tokens() -> None:
    cache, new = tt.Spec((1, 2, 64, 8), tt.f16), tt.Spec((1, 1, 2, 8))
    (case,) = rows.traced(lambda c, x, p: tt.update_cache(c, x, p), cache, new, tt.Spec((1, 3), tt.i32))
    assert case.work.moved == 16 * 4 + 16 * 2


def test_what_cannot_be_traced_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="a graph, a model or a function"):
        rows.traced(3)


def test_cases_of_the_table_and_of_a_network_are_measured_like_any_other() -> None:
    listed = [tt.perf.cases("relu")[0], *tt.perf.traced(lambda x: tt.softmax(x * 2.0), tt.Spec((4, 8)))]
    plan = tt.perf.Plan("once", generations=1, rounds=1, batches=1, warmup_batches=1, metrics=("wall",), canary=False)
    found = tt.perf.measure(listed, [tt.perf.Arm("tritium")], plan)
    assert [run.status for run in found] == ["ok"] * len(listed), [run.reason for run in found]
    assert all("within" in run.checked or "same" in run.checked for run in found)


def test_both_parts_of_complex_numbers_are_compared() -> None:
    assert flat((np.array([1 + 2j, 3 - 4j]), np.float32(5))).tolist() == [1.0, 3.0, 2.0, -4.0, 5.0]

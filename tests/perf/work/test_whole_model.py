"""The model in the package as a workload: its cases, its check, and who cannot run it."""

from __future__ import annotations

import numpy as np
import pytest

from tritium.perf.records.case import UnsupportedError
from tritium.perf.suites import suites
from tritium.perf.work import recipes, whole_model


@pytest.mark.parametrize("name", ["model_prefill", "model_decode"])
def test_every_answer_is_the_one_of_the_other_way(name: str) -> None:
    (case,) = recipes.grid([name], [(6,)])
    assert case.name == f"{name} 6"
    assert (case.work.items, case.work.item) == (6, "token")
    made = whole_model.workload("tritium", **case.recipe.arguments)
    assert made.answer is not None
    assert made.expected is not None
    result = np.asarray(made.answer(made.call()))
    np.testing.assert_allclose(result, made.expected(), rtol=made.tolerance)
    assert len(result) == (6 if name == "model_decode" else 256)
    np.testing.assert_array_equal(result, made.answer(made.call()))  # a call leaves nothing behind


def test_a_wrong_token_is_detected() -> None:
    made = whole_model.workload("tritium", workload="model_decode", tokens=4)
    assert made.expected is not None
    assert [*made.call()[:3], 0] != made.expected()


def test_libraries_without_models_and_lengths_beyond_the_context_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="numpy has no whole model"):
        whole_model.workload("numpy", workload="model_decode", tokens=4)
    with pytest.raises(UnsupportedError, match="needs a context of"):
        whole_model.workload("tritium", workload="model_decode", tokens=10_000)
    assert "takes (tokens,)" in recipes.refuses("model_decode", (4, 4), "f32")
    assert "not f16" in recipes.refuses("model_decode", (4,), "f16")
    assert recipes.batched("model_decode", 2, (4,)) is None


def test_a_quick_comparison_has_the_flagship_unless_it_is_narrowed() -> None:
    names = {case.name for case in suites.grid(suites.options_of("compare", quick=True)).cases}
    assert {"bitlinear 1x2560 f32", "bitlinear 64x2560 f32", "model_decode 32"} < names
    narrowed = suites.options_of("compare", quick=True).changed(operations=("add",))
    assert {case.context.operation for case in suites.grid(narrowed).cases} == {"add"}
    longer = {case.name for case in suites.grid(suites.options_of("compare")).cases}
    assert "model_decode 32" not in longer

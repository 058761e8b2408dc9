"""Cases of operations: names, shapes, values, answers, and what each candidate is asked to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from null import Null
from tritium.errors import ArgumentError
from tritium.perf.engine.worker import Worker, checked, resolve
from tritium.perf.records.case import Case, Made, UnsupportedError
from tritium.perf.work import recipes as work
from tritium.perf.work.operations import OPERATIONS, inputs, operation_named, work_of

scipy = find_spec("scipy") is not None
SHAPES = [(64, 128), (1, 64), (33, 192)]
KINDS = ("f32", "f64", "f16", "bf16", "i8", "i32", "i4", "tern2", "tern5")


def made(case: Case, candidate: str = "tritium") -> Made:
    found: Made = resolve(case.recipe.target)(candidate, **json.loads(json.dumps(dict(case.recipe.arguments))))
    return found


def assert_right(one: Made) -> None:
    result = one.call()
    if one.wait is not None:
        one.wait(result)
    said = checked(one, result)
    assert "status" not in said, said
    assert not said["checked"].startswith("not checked"), said
    json.dumps(dict(one.facts), allow_nan=False)


@pytest.mark.parametrize("name", list(OPERATIONS))
@pytest.mark.parametrize("candidate", ["tritium", "tritium.compile", "numpy"])
def test_every_operation_gives_the_right_answer(name: str, candidate: str) -> None:
    for case in work.grid([name], SHAPES, KINDS):
        if candidate == "numpy" and name == "gelu" and not scipy:
            with pytest.raises(UnsupportedError, match="erf"):
                made(case, candidate)
        else:
            assert_right(made(case, candidate))


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_every_operation_takes_some_shape_and_dtype(name: str) -> None:
    assert work.grid([name], SHAPES, ["f32"])


def test_a_wrong_answer_is_noticed() -> None:
    (case,) = work.grid(["matmul"], [(32, 32)])
    one = made(case)
    one.call = lambda right=one.call: right() * 1.001  # type: ignore[misc]
    assert checked(one, one.call())["status"] == "wrong"


def test_candidates_get_the_same_values() -> None:
    a, b = (inputs(OPERATIONS["matmul"], (8, 9, 10), "f32", seed=3) for _ in range(2))
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)
    assert not np.array_equal(a[0], inputs(OPERATIONS["matmul"], (8, 9, 10), "f32", seed=4)[0])


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_values_are_never_all_zeros(name: str) -> None:
    for dtype in OPERATIONS[name].dtypes:
        for x in inputs(OPERATIONS[name], (64, 64), dtype, seed=0):
            assert len(np.unique(x.astype(np.float64))) > 1


@pytest.mark.parametrize(
    ("shape", "sizes"), [((8,), [(8, 8), (8, 8)]), ((4, 8), [(4, 8), (8, 8)]), ((4, 8, 3), [(4, 8), (8, 3)])]
)
def test_the_shape_of_a_product_is_one_two_or_three_sizes(shape: tuple[int, ...], sizes: list[tuple[int, ...]]) -> None:
    assert OPERATIONS["matmul"].shapes(shape) == sizes


@given(m=st.integers(1, 64), k=st.integers(1, 64), n=st.integers(1, 64))
def test_a_product_does_two_operations_for_each_pair(m: int, k: int, n: int) -> None:
    found = work_of(OPERATIONS["matmul"], (m, k, n), "f32")
    assert (found.flops, found.read, found.written) == (2 * m * k * n, 4 * (m * k + k * n), 4 * m * n)


def test_ternary_weights_are_read_at_two_bits() -> None:
    found = work_of(OPERATIONS["bitlinear"], (1, 256, 512), "f32")
    assert found.integer
    assert found.read == 4 * 256 + 256 * 512 // 4


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 9), more=st.integers(0, 9), width=st.sampled_from([64, 128]))
def test_attention_is_right_at_any_place_in_its_context(tokens: int, more: int, width: int) -> None:
    (case,) = work.grid(["attention"], [(2, tokens, width, tokens + more)])
    for candidate in ("tritium", "numpy"):
        assert_right(made(case, candidate))


def test_the_grid_is_every_combination_that_can_be_done() -> None:
    found = work.grid(["matmul", "add"], [(8, 8), (16, 16)], ["f32", "f16"])
    assert [c.name for c in found][:4] == ["matmul 8x8 f32", "matmul 8x8 f16", "matmul 16x16 f32", "matmul 16x16 f16"]
    assert len(found) == 8
    assert len({c.name for c in found}) == 8


def test_what_an_operation_refuses_is_left_out_and_explained() -> None:
    assert work.grid(["gelu"], [(8, 8)], ["i8"]) == []
    assert "takes f32, f64, f16, bf16, not i8" in work.refuses("gelu", (8, 8), "i8")
    assert "(m, k)" in work.refuses("matmul", (1, 2, 3, 4), "f32")
    assert work.refuses("gelu", (8, 8), "f32") == ""


def test_an_unknown_operation_names_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'matmul'"):
        work.grid(["matmull"], [(8, 8)])


@pytest.mark.parametrize(
    ("alias", "name"), [("mul", "multiply"), ("swish", "silu"), ("bit_linear", "bitlinear"), ("gemm", "matmul")]
)
def test_other_names_mean_the_same_operation(alias: str, name: str) -> None:
    assert operation_named(alias) is OPERATIONS[name]
    assert alias in work.operation_names()


def test_a_case_says_what_it_is_in_its_context() -> None:
    (case,) = work.grid(["linear"], [(4, 64)], ["tern2"], threads=2)
    assert (case.context.operation, case.context.shape, case.context.precision) == ("linear", (4, 64), "tern2")
    assert case.context.threads == 2


@pytest.mark.parametrize("candidate", ["tritium", "numpy"])
def test_layouts_give_the_same_answer(candidate: str) -> None:
    found = work.layouts(["add", "sum", "matmul"], [(24, 40)])
    assert {c.name.split()[-1] for c in found} == {"f32", "transposed", "strided"}
    for case in found:
        assert_right(made(case, candidate))


def test_layouts_lie_as_they_say() -> None:
    for layout, strides in (("contiguous", (40, 1)), ("transposed", (1, 24)), ("strided", (80, 2))):
        (case,) = work.grid(["relu"], [(24, 40)], layouts=[layout])
        call: Any = made(case).call
        assert call.args[0].strides == strides


def test_weights_of_every_dtype_are_one_product() -> None:
    found = work.dtypes([(4, 64)])
    assert [c.context.precision for c in found] == ["f32", "f16", "bf16", "i8", "tern2"]
    stored = {c.context.precision: made(c).facts.get("bytes of weights") for c in found}
    assert stored["tern2"] < stored["i8"]


def test_a_peer_multiplies_the_dequantised_weights_and_says_so() -> None:
    (case,) = work.grid(["bitlinear"], [(2, 64)])
    own, other = made(case, "tritium"), made(case, "numpy")
    assert own.facts["weights"] == "tern2"
    assert "dequantised" in other.facts["weights"]
    assert other.work is not None
    assert not other.work.integer
    assert other.work.read > case.work.read


def test_a_large_answer_is_checked_on_some_rows() -> None:
    (case,) = work.grid(["add"], [(512, 1024)])
    one = made(case)
    assert one.facts["checked parts"] == "64 of 512"
    assert one.answer is not None
    assert one.answer(one.call()).shape == (64, 1024)


def test_the_first_and_the_last_row_are_among_those_checked() -> None:
    rows = work.spread(OPERATIONS["matmul"], (1000, 4096))
    assert rows is not None
    assert rows[0] == 0
    assert rows[-1] == 999


def test_a_device_that_is_not_here_is_skipped_with_the_reason() -> None:
    (case,) = work.grid(["add"], [(4, 4)], devices=["cuda"])
    assert case.name == "add 4x4 f32 on cuda"
    for candidate in ("tritium", "numpy"):
        with pytest.raises(UnsupportedError, match="cuda"):
            made(case, candidate)


def test_a_dtype_a_library_lacks_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from tritium.perf.work import libraries

    def narrow(device: str, threads: int | None) -> libraries.Library:
        return replace(libraries.use_numpy(device, threads), dtypes=("f32",), notes={"dtype": "it is narrow"})

    monkeypatch.setitem(libraries.LIBRARIES, "numpy", narrow)
    with pytest.raises(UnsupportedError, match="narrow"):
        work.operation("numpy", operation="add", shape=[4], dtype="f16")


def test_the_threads_asked_for_are_set() -> None:
    before = tt.get_num_threads()
    try:
        work.operation("tritium", operation="add", shape=[4], threads=1)
        assert tt.get_num_threads() == 1
    finally:
        tt.set_num_threads(before)


def test_many_values_repeat_with_a_period_that_divides_no_row() -> None:
    (x,) = inputs(OPERATIONS["relu"], (2048, 1024), "f32", seed=0)
    assert len(np.unique(x[:, 0])) > 2000


def test_attention_is_checked_head_by_head() -> None:
    (case,) = work.grid(["attention"], [(600, 256)])
    one = made(case)
    assert one.facts["checked parts"] == "2 of 4"
    assert_right(one)


def test_a_library_holds_the_values_in_memory_of_its_own() -> None:
    (case,) = work.grid(["relu"], [(64, 64)])
    call: Any = made(case).call
    assert call.args[0].data_ptr % 64 == 0
    assert not call.args[0].storage.imported


# ---- transfers and batches


@pytest.mark.parametrize("name", [n for n in OPERATIONS if work.transfers(n)])
@pytest.mark.parametrize("candidate", ["tritium", "tritium.compile", "numpy"])
def test_with_its_transfers_an_operation_gives_the_same_answer_on_the_host(name: str, candidate: str) -> None:
    for case in work.grid([name], SHAPES[:1], ("f32", "bf16", "tern2"), transfer=True):
        assert case.name.endswith("x128 " + case.context.precision + ", with transfer")
        assert case.context.transfer == "included"
        if candidate == "numpy" and name == "gelu" and not scipy:
            continue
        one = made(case, candidate)
        assert one.wait is None
        assert isinstance(one.call(), (np.ndarray, np.generic))
        assert_right(one)


def test_weights_stay_and_inputs_travel() -> None:
    facts = {
        name: made(case).facts["transfer"]
        for name in ("matmul", "softmax", "linear", "bitlinear")
        for case in work.grid([name], [(8, 64)], transfer=True)
    }
    assert facts["matmul"] == facts["softmax"] == "all inputs in, the result out"
    assert facts["linear"] == facts["bitlinear"] == "activations in, the result out; weights stay"


def test_packed_arrays_have_no_way_to_numpy() -> None:
    assert work.grid(["quantize", "dequantize", "prefill"], [(64, 64)], transfer=True) == []
    with pytest.raises(UnsupportedError, match="packed weights"):
        work.operation("tritium", operation="quantize", shape=[64, 64], transfer=True)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("matmul", (512, 256), (8, 256)),
        ("bitlinear", (512, 256, 128), (8, 256, 128)),
        ("softmax", (512,), (8, 512)),
        ("attention", (16, 64), (8, 16, 64)),
        ("attention", (2, 16, 64, 32), (8, 16, 64, 32)),
        ("decode", (16, 64), (8, 16, 64)),
        ("batch_processing", (32, 64), (32, 64, 8)),
        ("add", (512, 256), None),
        ("quantize", (512, 256), None),
    ],
)
def test_a_batch_is_rows_sequences_or_items(
    name: str, shape: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    found = work.batched(name, 8, shape)
    assert found == expected
    if found is not None:
        assert not work.refuses(name, found, "f32")


# ---- devices that compute late


class Late(Null):
    """A device that notes what was settled."""

    settled: ClassVar[list[tuple[int, ...]]] = []

    def settle(self, arrays: Any) -> None:
        self.settled += [tuple(a.shape) for a in arrays]


@pytest.fixture
def late() -> Iterator[list[tuple[int, ...]]]:
    Late.settled.clear()
    tt.register("late", Late)
    yield Late.settled
    tt.unregister("late")


def test_what_is_uploaded_is_there_before_the_clock_and_the_result_before_it_stops(
    late: list[tuple[int, ...]],
) -> None:
    (case,) = work.grid(["matmul"], [(3, 64)])
    one = made(case, "tritium:late")
    assert late == [(3, 64), (64, 64)]
    late.clear()
    result = one.call()
    assert late == []
    assert one.wait is not None
    one.wait(result)
    assert late == [(3, 64)]


def test_every_tensor_of_a_result_is_waited_for(late: list[tuple[int, ...]]) -> None:
    from tritium.perf.work.libraries import settled

    x, y = tt.ones((2,), device="late"), tt.ones((3,), device="late")
    assert settled({"a": (x, [y]), "b": None})["a"][0] is x
    assert late == [(2,), (3,)]
    late.clear()
    settled(tt.quant.ternary(tt.ones((4, 8), device="late")))
    assert (4, 8) in late


def test_weights_are_there_before_the_clock(late: list[tuple[int, ...]]) -> None:
    (case,) = work.grid(["bitlinear"], [(3, 64)])
    made(case, "tritium:late")
    assert (64, 64) in late


def test_memory_that_is_not_the_pools_is_not_measured_as_nothing(late: list[tuple[int, ...]]) -> None:
    (case,) = work.grid(["add"], [(3, 64)])
    worker = Worker(1)
    asked = {"target": case.recipe.target, "arguments": dict(case.recipe.arguments), "case": case.name, "check": True}
    assert worker.answer({"do": "make", "candidate": "tritium:late", **asked})["status"] == "ok"
    found = worker.answer({"do": "memory", "case": case.name, "own": True})["memory"]
    assert found["peak_bytes"] == {"reason": found["allocated_bytes"]["reason"]}

"""Recorded objects become what a person reads: names, specs, work, lanes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import tritium as tt
from made_timelines import any_spans, nested, scope
from tritium import launch, ops, recording
from tritium.fragment import Fragment, Step
from tritium.op import Spec
from tritium.see.trace import spans
from tritium.see.trace.spans import (
    Threads,
    clip_times,
    close_scopes,
    describe,
    find_crossing,
    lanes,
    number_events,
    order_outer_first,
    separate_scopes,
)
from tritium.see.trace.timeline import Timeline, What

F32 = Spec((8, 4))
CPU = tt.device("cpu")


def launched(op: object, *inputs: Spec | None, out: object = F32, **attrs: object) -> launch.Launched:
    return launch.Launched(op, "avx512", CPU, inputs, out, attrs)  # type: ignore[arg-type]


def test_a_call_has_its_row_kernel_device_specs_and_work() -> None:
    found = describe(launched(ops.add, F32, F32))
    assert found == What("add", "op", "avx512", "cpu", "f32[8,4], f32[8,4] -> f32[8,4]", 32, 256, 128)


def test_an_input_left_out_and_several_outputs_are_told() -> None:
    assert describe(launched(ops.rms_norm, F32, None)).detail == "f32[8,4], none -> f32[8,4]"
    spec = Spec((4,), tt.i8)
    assert describe(launched(ops.quantize_activations, F32, out=(spec, F32))).detail == "f32[8,4] -> (i8[4], f32[8,4])"


def test_scopes_programs_and_transfers_are_kinds_of_their_own() -> None:
    assert describe(recording.Scope("attn")) == What("attn", "scope", device="")
    assert describe(launch.Ran("layer", 7)) == What("layer", "program", device="", detail="7 steps")
    assert describe(launch.Ran("", 1)).name == "program"
    moved = describe(launch.Launched(None, "cpu->mlx", CPU, (F32,), F32, {}))
    assert (moved.name, moved.kind, moved.kernel, moved.moved) == ("transfer", "transfer", "cpu->mlx", 256)


def test_a_fused_group_is_named_by_its_rows() -> None:
    steps = tuple(Step(op, (i,), (), F32) for i, op in enumerate([ops.exp, ops.negative, ops.sqrt, ops.abs, ops.tanh]))
    body = Fragment((F32,), steps[:2], (2,))
    assert describe(launched(ops.fused, F32, body=body)).name == "fused exp+negative"
    long = Fragment((F32,), steps, (5,))
    assert describe(launched(ops.fused, F32, body=long)).name == "fused exp+negative+sqrt+abs+… (5 rows)"


def test_int8_products_are_known_as_such() -> None:
    a, b = Spec((2, 4), tt.i8), Spec((3, 4), tt.i8)
    assert describe(launched(ops.integer_matmul, a, b, out=Spec((2, 3), tt.i32))).integer
    assert not describe(launched(ops.add, F32, F32)).integer


def test_objects_alike_have_one_number_whether_they_are_one_or_several() -> None:
    one = launched(ops.add, F32, F32)
    whats, number = number_events([one, launched(ops.add, F32, F32), recording.Scope("x"), one])
    assert (len(whats), number.tolist()) == (2, [0, 0, 1, 0])
    assert number_events([])[0] == ()


def test_attributes_in_a_list_are_no_obstacle() -> None:
    a, odd = launched(ops.sum, F32, axis=(0,)), launched(ops.sum, F32, axis=[0])
    assert number_events([a, odd, odd])[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1, True), (1, 1.0), ((0,), (False,))])
def test_attributes_that_only_compare_equal_are_told_apart(one: object, other: object) -> None:
    calls = [launched(ops.sum, F32, axis=value) for value in (one, other)]
    assert spans._key(calls[0]) != spans._key(calls[1])
    seen = ((F32.shape, F32.dtype),)
    found = [launch.launched(ops.sum, "avx512", CPU, seen, seen, {"axis": v}) for v in (one, other, one)]
    assert found[0] is found[2]
    assert found[0] is not found[1]


def test_lanes_are_named_by_their_threads_and_no_two_alike() -> None:
    names, number = lanes([7, 9, 7, 5, 3], {7: "main", 9: "worker", 5: "worker"})
    assert names == ("main", "worker", "worker #2", "thread 4")
    assert number == {7: 0, 9: 1, 5: 2, 3: 3}


def test_what_began_before_the_profile_begins_with_it() -> None:
    start, elapsed = clip_times(np.array([5, 20]), np.array([10, 3]), 10)
    assert (start.tolist(), elapsed.tolist()) == ([0, 10], [5, 3])


def test_an_identity_that_is_used_again_is_told_apart_by_the_names_it_had() -> None:
    threads = Threads({7: [(10, "first"), (20, "second"), (30, "third")], 8: [(5, "other")]}, {7: "late", 9: "main"})
    assert [threads.names[threads.holder(7, at)] for at in (0, 10, 19, 20, 35)] == [
        "first", "first", "first", "second", "third",
    ]  # fmt: skip
    assert threads.holder(8, 99) == 8
    assert (threads.names[8], threads.names[9]) == ("other", "main")
    found = threads.holders(np.array([7, 7, 9, 7]), np.array([12, 25, 25, 31]))
    assert [threads.names[i] for i in found.tolist()] == ["first", "second", "main", "third"]


def test_scopes_left_open_end_with_the_profile_unless_they_ended_just_then() -> None:
    times = np.array([[50, 10, 7]])
    left = [("ended", 50, 7), ("open", 60, 7), ("before", 5, 7)]
    recorded, found, number = close_scopes(["x"], times, left, 10, 100)
    assert (recorded, number) == (["x", "open"], 1)
    assert found.tolist() == [[50, 10, 7], [60, 40, 7]]


def columns(*spans: tuple[int, int, int]) -> tuple[np.ndarray, ...]:
    return tuple(np.array([s[i] for s in spans]) for i in range(3))


def test_spans_that_only_touch_or_lie_inside_each_other_do_not_cross() -> None:
    assert find_crossing(*columns((0, 10, 0), (10, 20, 0), (0, 5, 0), (2, 2, 0), (5, 15, 1))).tolist() == []
    assert find_crossing(*columns((0, 10, 0), (5, 15, 0), (6, 8, 0), (20, 30, 0))).tolist() == [0, 1]


@given(any_spans())
def test_what_is_not_crosswise_is_nested(t: Timeline) -> None:
    found = set(find_crossing(t.start_ns, t.end_ns, t.lane).tolist())
    rows_ = list(zip(t.lane.tolist(), t.start_ns.tolist(), t.end_ns.tolist(), strict=True))
    crossed = {
        k for i, a in enumerate(rows_) for j, b in enumerate(rows_)
        if a[0] == b[0] and a[1] < b[1] < a[2] < b[2] for k in (i, j)
    }  # fmt: skip
    assert found == crossed


@given(nested())
def test_nested_spans_are_not_put_apart(t: Timeline) -> None:
    whats = [scope(w.name) for w in t.whats]
    lane, named, moved = separate_scopes(whats, t.what, t.start_ns, t.elapsed_ns, t.lane, t.lanes)
    assert (moved, named, lane.tolist()) == (0, t.lanes, t.lane.tolist())


def test_scopes_that_cross_get_lanes_of_their_own_and_calls_stay() -> None:
    whats = [scope("a"), scope("b"), What("exp"), scope("sync")]
    what, start, elapsed = columns((0, 0, 10), (1, 5, 10), (2, 6, 1), (3, 20, 5), (0, 30, 5), (1, 33, 5))
    lane, named, moved = separate_scopes(whats, what, start, elapsed, np.zeros(6, np.int64), ("main",))
    assert (moved, named) == (4, ("main", "main, overlapping", "main, overlapping 2"))
    assert lane.tolist() == [1, 2, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("kinds", "order"),
    [(["op", "scope"], [1, 0]), (["program", "op"], [0, 1]), (["op", "scope", "scope"], [2, 1, 0])],
)
def test_of_spans_alike_the_outer_comes_first(kinds: list[str], order: list[int]) -> None:
    whats = [What("x", kind) for kind in kinds]  # type: ignore[arg-type]
    assert order_outer_first(whats, np.arange(len(kinds))).tolist() == order

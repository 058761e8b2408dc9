"""Folded stacks: every ns once, one line a stack, and no name that breaks a line."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given, settings, strategies as st

from hostile import NAMES
from made_timelines import any_spans, decode, named, nested, op, scope
from tritium.see.trace import check as trace_check, folded
from tritium.see.trace.timeline import Samples, Timeline, timeline
from tritium.see.trace.tree import tree


def stacks(text: str) -> dict[str, list[int]]:
    assert not list(trace_check.folded(text))
    lines = [line.split(" ") for line in text.splitlines()]
    assert len({line[0] for line in lines}) == len(lines)
    return {line[0]: list(map(int, line[1:])) for line in lines}


def test_a_line_is_a_stack_and_its_own_ns() -> None:
    t = timeline([(scope("layer"), 0, 100, 0), (op("a"), 10, 30, 0), (op("b"), 50, 20, 0)], ["main"], 100)
    assert folded.text(t) == "layer 50\nlayer;a 30\nlayer;b 20\n"


def test_the_lane_comes_first_where_there_are_several() -> None:
    t = timeline([(op("a"), 0, 3, 0), (op("a"), 0, 4, 1)], ["main", "a worker"], 9)
    assert folded.text(t) == "a_worker;a 4\nmain;a 3\n"


@settings(max_examples=50)
@given(nested())
def test_the_sum_of_all_lines_is_the_time_of_the_tree(t: Timeline) -> None:
    assert sum(v[0] for v in stacks(folded.text(t)).values()) == tree(t).total_ns


@settings(max_examples=50)
@given(any_spans(), any_spans())
def test_two_columns_are_the_two_folded_texts(a: Timeline, b: Timeline) -> None:
    both = stacks(folded.two_column(a, b))
    assert sum(v[0] for v in both.values()) == sum(v[0] for v in stacks(folded.text(a)).values())
    assert sum(v[1] for v in both.values()) == sum(v[0] for v in stacks(folded.text(b)).values())


def test_two_columns_meet_where_only_one_side_has_several_lanes() -> None:
    a = timeline([(op("a"), 0, 3, 0)], ["main"], 9)
    b = timeline([(op("a"), 0, 5, 0), (op("c"), 0, 1, 1)], ["main", "worker"], 9)
    assert folded.two_column(a, b) == "main;a 3 5\nworker;c 0 1\n"


def test_what_is_on_one_side_only_is_zero_on_the_other() -> None:
    lines = stacks(folded.two_column(decode(copies=True), decode()))
    assert lines["step;layer_0;copy"] == [2400, 0]


def test_hostile_names_keep_a_line_a_line_and_a_frame_a_frame() -> None:
    text = folded.text(named(NAMES))
    found = stacks(text)
    assert all(len(stack.split(";")) in (2, 3) for stack in found)
    assert text.replace("\n", "").isprintable()
    assert all(re.fullmatch(r"\S+ \d+", line) for line in text.splitlines())


@given(st.text(max_size=40))
def test_any_name_is_one_frame(name: str) -> None:
    frame = folded.frame(name)
    assert frame
    assert frame.isprintable()
    assert not set("; \n") & set(frame)


def test_sampled_stacks_are_a_tree_in_which_every_sample_counts_once() -> None:
    at = 10 * np.arange(1, 5)
    samples = Samples(("main", "f", "g"), ((0,), (0, 1), (0, 1, 2)), at, at * 0, np.array([0, 1, 2, 2]), 10)
    root = folded.build_sample_tree(samples)
    assert root.total_ns == 40
    assert folded.format_tree(root) == "main 10\nmain;f 10\nmain;f;g 20\n"


def test_a_late_sample_counts_as_the_time_since_the_one_before() -> None:
    at = np.array([10, 20, 600, 610])  # the third waited for the GIL
    samples = Samples(("main", "call"), ((0,), (0, 1)), at, at * 0, np.array([0, 0, 1, 0]), 10)
    assert samples.weight_ns.tolist() == [10, 10, 580, 10]
    root = folded.build_sample_tree(samples)
    assert root.total_ns == 610
    late = folded.frame(folded.LATE)
    assert stacks(folded.format_tree(root)) == {"main": [30], "main;call": [10], f"main;call;{late}": [570]}


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 10**10), st.integers(1, 3)), min_size=1, max_size=30),
    st.integers(1, 10**9),
)
def test_weights_of_a_thread_sum_to_the_time_of_its_last_sample(moments: list[tuple[int, int]], every: int) -> None:
    times = np.cumsum([gap for gap, _ in moments])
    rows = [(at, lane) for at, (_, threads) in zip(times.tolist(), moments, strict=True) for lane in range(threads)]
    at, lane = np.array(rows).T
    samples = Samples(("main",), ((0,),), at, lane, at * 0, every)
    assert samples.weight_ns[lane == 0].sum() == times[-1]
    assert folded.build_sample_tree(samples).total_ns == samples.weight_ns.sum()
    assert ((samples.late_ns >= 0) & (samples.late_ns < samples.weight_ns)).all()

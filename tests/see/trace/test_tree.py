"""Parents, own times and the call tree, of known timelines and of random ones."""

from __future__ import annotations

from hypothesis import given, strategies as st

from made_profiles import ADD, MATMUL, SCOPE, made
from tritium.see.trace.timeline import Timeline, What
from tritium.see.trace.tree import own_ns, parents, tree

NESTED = ((SCOPE, 0, 100), (MATMUL, 10, 30), (ADD, 40, 20), (SCOPE, 100, 50), (ADD, 100, 50))


def test_a_parent_is_the_innermost_span_around() -> None:
    assert parents(made(*NESTED)).tolist() == [-1, 0, 0, -1, 3]


def test_spans_that_touch_are_not_inside_each_other() -> None:
    assert parents(made((SCOPE, 0, 10), (ADD, 10, 5))).tolist() == [-1, -1]


def test_lanes_do_not_enclose_each_other() -> None:
    assert parents(made((SCOPE, 0, 100), (ADD, 10, 5, 1))).tolist() == [-1, -1]


def test_own_time_is_without_what_is_directly_inside() -> None:
    assert own_ns(made(*NESTED)).tolist() == [50, 30, 20, 0, 50]


def test_the_tree_adds_up_calls_that_were_reached_the_same_way() -> None:
    root = tree(made(*NESTED))
    step = root.children["step"]
    assert (root.total_ns, step.total_ns, step.own_ns, step.count) == (150, 150, 50, 2)
    assert (step.children["add"].total_ns, step.children["add"].count) == (70, 2)


def test_lanes_are_the_first_level_where_there_are_several() -> None:
    t = made((ADD, 0, 10), (ADD, 0, 30, 1))
    assert {name: node.total_ns for name, node in tree(t).children.items()} == {"thread 0": 10, "thread 1": 30}


def test_walk_gives_the_longest_first() -> None:
    found = [path for path, _ in tree(made(*NESTED)).walk()]
    assert found == [("step",), ("step", "add"), ("step", "matmul")]


@st.composite
def nested(draw: st.DrawFn) -> Timeline:
    """Spans of random lengths, some inside others, on two lanes."""
    spans = []
    for lane in (0, 1):
        at = 0
        for _ in range(draw(st.integers(0, 6))):
            length = draw(st.integers(1, 50))
            spans.append((What(draw(st.sampled_from("abc")), "scope"), at, length, lane))
            inside = at
            while (left := at + length - inside) > 0 and draw(st.booleans()):
                part = draw(st.integers(1, left))
                spans.append((What(draw(st.sampled_from("abc")), "op"), inside, part, lane))
                inside += part
            at += length + draw(st.integers(0, 5))
    return made(*spans, total=1000)


@given(nested())
def test_own_times_sum_to_the_time_of_the_outermost_spans(t: Timeline) -> None:
    outermost = t.elapsed_ns[parents(t) < 0].sum() if len(t) else 0
    assert own_ns(t).sum() == outermost == tree(t).total_ns


@given(nested())
def test_a_parent_encloses_its_child_on_the_same_lane(t: Timeline) -> None:
    for child, parent in enumerate(parents(t).tolist()):
        if parent >= 0:
            assert t.lane[parent] == t.lane[child]
            assert t.start_ns[parent] <= t.start_ns[child]
            assert t.end_ns[parent] >= t.end_ns[child]


@given(nested())
def test_every_node_is_at_least_as_long_as_its_children(t: Timeline) -> None:
    for _, node in tree(t).walk():
        assert node.total_ns >= sum(c.total_ns for c in node.children.values())

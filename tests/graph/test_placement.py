"""Placement: boxes keep their distance, edges lead down, and what follows one another stands straight."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from tritium.graph.placement import BEND, MARGIN, Box, Edge, _spread, place


def box(width: float = 60.0) -> Box:
    return Box("map", width=width, height=20)


def test_a_box_is_below_all_it_reads_and_an_input_right_above_its_reader() -> None:
    a, b, c, late = box(), box(), box(), box()
    place([a, b, c, late], [Edge(a, b), Edge(b, c), Edge(a, c), Edge(late, c)], 40, lambda b: b)
    assert [x.layer for x in (a, b, c, late)] == [0, 1, 2, 1]
    assert a.y < b.y < c.y


def test_a_chain_beside_a_long_edge_stands_straight_and_so_does_the_edge() -> None:
    chain = [box() for _ in range(6)]
    edges = [*(Edge(a, b) for a, b in pairwise(chain)), Edge(chain[0], chain[-1], 0.2)]
    layers, segments, bands = place(chain, edges, 40, lambda b: b)
    bends = [b for layer in layers for b in layer if b.look == BEND]
    assert len({b.x for b in chain[1:-1]}) == 1
    assert len({b.x for b in bends}) == 1
    assert len(bends) == 4
    assert all(e.target.layer == e.source.layer + 1 for e in segments)
    assert min(b.x - b.width / 2 for layer in layers for b in layer) == pytest.approx(MARGIN)
    assert all(above[1] < below[0] for above, below in pairwise(bands))


def test_edges_of_one_source_share_their_bends() -> None:
    chain = [box() for _ in range(5)]
    edges = [*(Edge(a, b) for a, b in pairwise(chain)), Edge(chain[0], chain[3]), Edge(chain[0], chain[4])]
    layers, _, _ = place(chain, edges, 40, lambda b: b)
    assert sum(b.look == BEND for layer in layers for b in layer) == 3


def test_a_longer_edge_starts_from_a_copy() -> None:
    chain = [box() for _ in range(6)]
    edges = [*(Edge(a, b) for a, b in pairwise(chain)), Edge(chain[0], chain[-1])]
    copies: list[Box] = []

    def copy(of: Box) -> Box:
        copies.append(of)
        return box(30.0)

    layers, _, _ = place(chain, edges, 3, copy)
    assert copies == [chain[0]]
    assert not any(b.look == BEND for layer in layers for b in layer)


def test_edges_that_need_not_cross_do_not() -> None:
    top, bottom = [box() for _ in range(6)], [box() for _ in range(6)]
    edges = [Edge(a, b) for a, b in zip(top, reversed(bottom), strict=True)]
    place([*top, *bottom], edges, 40, lambda b: b)
    assert [b.x for b in sorted(top, key=lambda t: t.x)] == [
        a.target.x for a in sorted(edges, key=lambda e: e.source.x)
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(-500, 500), st.floats(10, 200), st.floats(0.1, 10)), min_size=1, max_size=12))
def test_boxes_are_spread_in_order_without_touching(given: list[tuple[float, float, float]]) -> None:
    layer = [box(width) for _, width, _ in given]
    _spread(layer, [x for x, _, _ in given], [w for _, _, w in given])
    for a, b in pairwise(layer):
        assert b.x - b.width / 2 - (a.x + a.width / 2) >= 25.9
    if len(layer) == 1:
        assert layer[0].x == given[0][0]


def test_boxes_with_room_stand_where_they_want() -> None:
    layer = [box(), box(), box()]
    _spread(layer, [0.0, 100.0, 300.0], [1.0] * 3)
    assert [b.x for b in layer] == [0, 100, 300]
    _spread(layer, [0.0, 0.0, 300.0], [1.0] * 3)
    assert [b.x for b in layer] == [-43, 43, 300]

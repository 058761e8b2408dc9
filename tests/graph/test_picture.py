"""The picture of a graph: well formed, complete, the same every time, and never larger than a person can use."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium import ops
from tritium.compiler.builder import GraphBuilder
from tritium.errors import ArgumentError
from tritium.fragment import Fragment, Step
from tritium.graph import picture as graph_picture
from tritium.graph.graph import Graph, Trace
from tritium.op import Kind, Spec

SVG = "{http://www.w3.org/2000/svg}"
V = Spec((3,))
M = Spec((2, 3))


def drawn(picture: str) -> ET.Element:
    root = ET.fromstring(picture)
    assert root.tag == f"{SVG}svg"
    return root


def words(picture: str) -> list[str]:
    return ["".join(t.itertext()) for t in drawn(picture).iter(f"{SVG}text")]


def looks(picture: str) -> list[str]:
    """The look of every box, the legend left out."""
    return [
        g.get("class", "").removeprefix("tg-")
        for g in drawn(picture).iter(f"{SVG}g")
        if g.find(f"{SVG}title") is not None
    ]


def boxes(picture: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of every box."""
    found = []
    for g in drawn(picture).iter(f"{SVG}g"):
        if g.find(f"{SVG}title") is not None:
            r = g.find(f"{SVG}rect")
            assert r is not None
            x, y, w, h = (float(r.get(k, "")) for k in ("x", "y", "width", "height"))
            found.append((x, y, x + w, y + h))
    return found


def attention(x: Any, y: Any) -> Any:
    return tt.softmax(x @ y.T * 2.0, axis=0)


def test_nodes_inputs_and_outputs_have_boxes_with_row_and_spec() -> None:
    picture = graph_picture.svg(tt.trace(attention, M, M))
    assert sorted(looks(picture)) == ["argument", "argument", "contract", "map", "output", "reduce", "view"]
    shown = words(picture)
    for word in ("argument 0", "argument 1", "matmul", "f32[2,2]", "axis=0", "(·, 2.0)", "output", "contract"):
        assert word in shown


def test_the_view_box_holds_everything_and_there_is_no_script() -> None:
    picture = graph_picture.svg(tt.trace(attention, M, M))
    _, _, width, height = map(float, drawn(picture).get("viewBox", "").split())
    assert all(
        0 <= left < right <= width and 0 <= top < bottom <= height for left, top, right, bottom in boxes(picture)
    )
    assert "<script" not in picture
    assert not re.search(r'(href|src)="', picture)
    assert "prefers-color-scheme:dark" in picture


def test_a_picture_is_the_same_every_time() -> None:
    assert graph_picture.svg(tt.trace(attention, M, M)) == graph_picture.svg(tt.trace(attention, M, M))


def test_captured_tensors_and_several_outputs_are_marked() -> None:
    w = tt.ones(3)
    picture = graph_picture.svg(tt.trace(lambda x: tt.divmod(x * w, 2.0), V))
    assert looks(picture).count("captured") == 1
    assert looks(picture).count("output") == 2
    assert {"captured 0", "output 0", "output 1", "[0]", "[1]"} <= set(words(picture))


def test_what_donated_arguments_will_hold_is_drawn() -> None:
    def fn(cache: Any, x: Any) -> Any:
        cache[1] = x
        return x * 2.0

    assert "write 0" in words(graph_picture.svg(tt.trace(fn, M, V, donate=[0])))


def test_a_fused_node_lists_its_steps_with_their_numbers() -> None:
    steps = (
        Step(ops.add, (0, 1), (), M),
        Step(ops.const, (), (("value", 0.5), ("dtype", tt.f32)), Spec(())),
        Step(ops.clip, (2, None, 3), (), M),
    )
    shown = words(fused_picture(steps))
    assert "%2 = add(%0, %1)" in shown
    assert "%4 = clip(%2, –, 0.5)" in shown
    assert not any("const" in s for s in shown)


def test_a_long_fused_node_says_how_many_steps_are_left_out() -> None:
    steps = tuple(Step(ops.exp, (1 + i,), (), M) for i in range(30))
    assert "… and 17 more steps" in words(fused_picture(steps))


def fused_picture(steps: tuple[Step, ...]) -> str:
    t = Trace()
    args = tuple(t.read(t.argument(i, M)) for i in range(2))
    body = Fragment((M, M), steps, (len(steps) + 1,))
    return graph_picture.svg(Graph(args, (t.node(ops.fused, args, M, {"body": body}),), {}, True))


def test_names_are_shown_and_escaped() -> None:
    b = GraphBuilder()
    x = b.input('<x> & "y"', (3,))
    b.output("out<1>", b.exp(b.negative(x), name="a&b"))
    picture = b.build().svg()
    shown = words(picture)
    assert {'<x> & "y"', "out<1>", "expa&b", "negative"} <= set(shown)
    assert "negative_1" not in shown


def test_text_that_xml_forbids_is_replaced() -> None:
    graph = tt.trace(tt.exp, V)
    assert "a·b" in words(graph_picture.svg(graph, {graph.inputs[0]: "a\x00b"}))


def test_long_words_are_cut_and_stay_in_the_tip() -> None:
    picture = graph_picture.svg(tt.trace(lambda x: x.reshape((1,) * 15 + (3,)), V))
    assert any(s.endswith("…") for s in words(picture))
    assert "f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,3]" in picture


def test_every_kind_of_row_in_a_graph_has_a_look() -> None:
    assert {k.value for k in Kind if k is not Kind.DYNAMIC} <= set(graph_picture.LOOKS)


def test_a_number_may_be_a_result() -> None:
    t = Trace()
    node = t.node(ops.const, (), Spec(()), {"value": 2.5, "dtype": tt.f32})
    assert "value=2.5" in words(graph_picture.svg(Graph((), (node,), {}, True)))


def test_an_empty_graph_is_an_empty_picture() -> None:
    assert looks(graph_picture.svg(tt.trace(lambda: ()))) == []


# ---- size


def views(x: Any, n: int) -> Any:
    for _ in range(n):
        x = tt.exp(x.reshape(3, 2).T.reshape(2, 3).flip(axis=0))
    return x


def test_views_are_boxes_in_a_small_graph_and_labels_in_a_large_one() -> None:
    small, large = (graph_picture.svg(tt.trace(lambda x, n=n: views(x, n), M)) for n in (5, 100))
    assert looks(small).count("view") == 20
    assert looks(large).count("view") == 0
    assert looks(large).count("map") == 100
    assert "reshape · 2 views · flip" in words(large)


def test_an_edge_that_would_pass_many_layers_starts_from_a_copy() -> None:
    def fn(x: Any) -> Any:
        y = x
        for _ in range(60):
            y = tt.exp(y)
        return y + x

    assert "↑ argument 0" in words(graph_picture.svg(tt.trace(fn, V)))


def test_thousands_of_nodes_are_drawn_and_more_are_refused() -> None:
    def chain(x: Any, n: int) -> Any:
        for i in range(n):
            x = tt.sin(x) if i % 2 else tt.cos(x)
        return x

    assert looks(graph_picture.svg(tt.trace(lambda x: chain(x, 4000), V))).count("map") == 4000
    with pytest.raises(
        ArgumentError, match="has 20001 nodes, more than the 10000 that can be drawn; draw a part of it"
    ):
        graph_picture.svg(tt.trace(lambda x: chain(x, 20_000), V))


# ---- random graphs


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_boxes_never_overlap_and_every_node_is_below_what_it_reads(pairs: list[tuple[int, int]]) -> None:
    def fn(x: Any) -> Any:
        found = [x]
        for i, (a, b) in enumerate(pairs):
            found.append(tt.atan2(found[a % len(found)], found[b % len(found)]) if a != b else tt.exp(found[i]))
        return tuple(found)

    picture = graph_picture.svg(tt.trace(fn, V))
    found = boxes(picture)
    for i, a in enumerate(found):
        for b in found[:i]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    for path in drawn(picture).iter(f"{SVG}path"):
        if path.get("class") is None:
            xs = re.findall(r"[MCV ](-?[\d.]+)", path.get("d", ""))
            assert float(xs[1]) < float(xs[-1])  # from its start down to its end


# ---- the picture of the docs


def test_the_picture_of_the_docs_is_the_one_that_is_drawn() -> None:
    up, down = (tt.quant.from_integers(np.ones(s), 1.0) for s in ((512, 128), (128, 512)))  # tern2 on every machine
    b = GraphBuilder()
    x = b.input("tokens", (16, 128))
    h = b.bitlinear(b.rms_norm(x, tt.ones(128), name="normed"), (up.data, up.scale), name="up")
    y = b.bitlinear(b.rms_norm(b.relu2(h), tt.ones(512)), (down.data, down.scale), name="down")
    b.output("y", b.add(x, y))
    drawing = Path(__file__).parents[2] / "docs" / "img" / "graph.svg"
    if "TRITIUM_DRAW" in os.environ:
        drawing.write_text(b.build().svg() + "\n", encoding="utf-8")
    assert drawing.read_text(encoding="utf-8") == b.build().svg() + "\n", "TRITIUM_DRAW=1 draws it anew"

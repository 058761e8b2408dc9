"""Notebooks: tensors, graphs, profiles, tables and memory show themselves, escaped and small."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

import tritium as tt
from hostile import NAMES
from tritium.perf.tables.table import Table

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "&amp;", "\x1b[31m", *NAMES[::200]]


def parse(html: str) -> ET.Element:
    """The elements of a fragment: it is well formed, and holds no script, link or handler."""
    root = ET.fromstring(f"<div>{html}</div>")
    for element in root.iter():
        assert element.tag in {
            "div",
            "table",
            "caption",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "pre",
            "code",
            "b",
            "ul",
            "li",
        }
        assert set(element.attrib) <= {"style"}
    return root


def cells(html: str) -> list[list[str]]:
    return [[cell.text or "" for cell in row] for row in parse(html).iter("tr")]


@pytest.mark.parametrize(
    "shape", [(), (1,), (9,), (10,), (1000,), (3, 4), (100, 100), (0,), (2, 0), (2, 3, 4), (1, 1, 50, 50)]
)
@pytest.mark.parametrize("kind", ["f32", "bf16", "i8", "bool"])
def test_tensors_of_every_shape_are_small_tables(shape: tuple[int, ...], kind: str) -> None:
    x = tt.ones(shape).to(kind)
    html = x._repr_html_()
    assert len(html) < 8000
    assert f"{x.spec} on cpu" in "".join(parse(html).itertext())


def test_a_matrix_shows_its_edges() -> None:
    x = tt.arange(400, dtype="f32").reshape(20, 20)
    table = cells(x._repr_html_())
    assert table[0] == ["0", "1", "2", "3", "…", "16", "17", "18", "19"]
    assert table[1][:2] == ["0", "1"]
    assert table[-1][-1] == "399"
    assert cells(x.T[::-1]._repr_html_())[1][0] == "19"
    assert cells(tt.asarray([np.nan, np.inf, -0.5])._repr_html_())[1] == ["nan", "inf", "-0.5"]
    ternary, _ = tt.quantize_ternary(tt.ones((4, 8)))
    assert cells(ternary._repr_html_())[1] == ["1"] * 8


def test_a_traced_tensor_shows_that_it_has_no_values() -> None:
    shown: list[str] = []

    def write(x: tt.Tensor) -> tt.Tensor:
        shown.append(x._repr_html_())
        return x + 1

    tt.trace(write, tt.Spec((2,)))
    assert "traced" in shown[0]
    parse(shown[0])


def test_graphs_are_drawn_unless_they_are_large() -> None:
    graph = tt.trace(lambda x: tt.softmax(x) + 1, tt.Spec((2, 3)))
    picture = graph._repr_svg_()
    assert picture is not None
    assert ET.fromstring(picture).tag.endswith("svg")
    builder = tt.GraphBuilder()
    builder.output("y", builder.relu(builder.input("<script>", (2, 2))))
    drawn = builder.build()._repr_svg_()
    assert drawn is not None
    assert "<script>" not in drawn
    ET.fromstring(drawn)

    def long(x: tt.Tensor) -> tt.Tensor:
        for i in range(300):
            x = x * (1 + i)
        return x

    assert tt.trace(long, tt.Spec((2,)))._repr_svg_() is None


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_in_tables_profiles_and_memory_are_text(name: str) -> None:
    table = Table(name, (name, "ns"), ((name, "1"),), frozenset(("ns",)), (name,))
    assert len(cells(table._repr_html_())) == 2
    with tt.track_memory(name) as memory:
        x = tt.ones((16, 16))
    for page in (memory._repr_html_(), memory.record()._repr_html_()):
        assert len(page) < 20_000
        parse(page)
    del x


def test_a_profile_shows_its_longest_operations() -> None:
    with tt.profile("<b>bold</b>") as p:
        recording: Any = p._repr_html_()
        tt.softmax(tt.ones((32, 32)) @ tt.ones((32, 32)))
    assert recording is None  # a notebook then shows the text
    html = p._repr_html_()
    assert html is not None
    assert len(html) < 20_000
    assert any("matmul" in row[0] for row in cells(html))
    assert "<b>bold</b>" not in html

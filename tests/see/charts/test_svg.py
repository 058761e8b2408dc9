"""SVG elements: short numbers, texts that fit and do nothing, the same bytes from the same content."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tritium.errors import ArgumentError
from tritium.see.charts import svg

HEAD = '<svg xmlns="http://www.w3.org/2000/svg">'
anything = st.text(st.characters(codec=None), max_size=300)


@pytest.mark.parametrize(
    ("x", "said"), [(0, "0"), (-0.01, "0"), (1.0, "1"), (12.34, "12.3"), (-0.26, "-0.3"), (1e5, "100000")]
)
def test_a_coordinate_is_rounded_to_a_tenth(x: float, said: str) -> None:
    assert svg.number(x) == said


def walked(d: str) -> list[tuple[float, float]]:
    """The places of a path of M and relative l, read as SVG says."""
    first, _, rest = d.partition("l")
    x, y = map(float, first[1:].split())
    found = [(x, y)]
    figures = [float(n) for n in re.findall(r"-?\d*\.?\d+", rest)]
    for dx, dy in zip(figures[::2], figures[1::2], strict=True):
        x, y = x + dx, y + dy
        found.append((x, y))
    return found


@given(st.lists(st.tuples(st.floats(-2000, 2000), st.floats(-2000, 2000)), min_size=1, max_size=60))
def test_a_path_ends_where_its_last_place_is(pairs: list[tuple[float, float]]) -> None:
    x, y = walked(svg.points(pairs))[-1]
    assert abs(x - pairs[-1][0]) <= 0.051
    assert abs(y - pairs[-1][1]) <= 0.051


@given(anything, st.floats(0, 400))
def test_a_text_fits_or_is_shortened_to_fit(name: str, room: float) -> None:
    shown = svg.fit(name, room)
    assert svg.text_width(shown) <= max(room, svg.text_width("…")) + 1e-6
    assert shown.isprintable()


def test_a_long_name_keeps_both_ends() -> None:
    shown = svg.fit("matmul/a-very-long-name-of-a-case-indeed/f32", 160)
    assert shown.startswith("matmul")
    assert "…" in shown
    assert shown.endswith("f32")


@given(anything, st.floats(60, 400))
def test_lines_fit(said: str, room: float) -> None:
    assert all(svg.text_width(line) <= room + 1e-6 for line in svg.wrap(said, room))


@given(anything)
def test_any_text_makes_xml_that_says_it(name: str) -> None:
    drawn = ET.fromstring(f"{HEAD}{svg.text(0, 0, name)}{svg.mark((name, name), svg.text(1, 1, name))}</svg>")
    assert len(list(drawn.iter())) == 5  # svg, text, g, title, text: no name made an element


def test_a_link_leads_into_the_page_only() -> None:
    assert '<a href="#case-1"' in svg.mark(("x",), link="#case-1")
    for bad in ("javascript:x", "https://x", '#a"onload="x', "#", "a"):
        with pytest.raises(ArgumentError, match="link"):
            svg.mark(("x",), link=bad)


def test_ids_follow_from_the_content() -> None:
    a, b = svg.Drawing(10, 10, svg.hatch("k1")[0]), svg.Drawing(10, 10, svg.hatch("k2")[0])
    first = svg.document(a, "t", "d", css="x{}")
    assert first == svg.document(a, "t", "d", css="x{}")
    assert first.split('id="')[1][:11] != svg.document(b, "t", "d", css="x{}").split('id="')[1][:11]
    assert first != svg.document(a, "t", "d", css="x{}", name="again")
    assert svg.ID not in first


def test_a_picture_with_links_is_a_group() -> None:
    assert 'role="img"' in svg.document(svg.Drawing(1, 1, svg.mark(("x",))), "t", "d")
    assert 'role="group"' in svg.document(svg.Drawing(1, 1, svg.mark(("x",), link="#x")), "t", "d")


def test_both_themes_have_the_same_colours() -> None:
    assert set(svg.THEMES["light"]) == set(svg.THEMES["dark"])
    assert all(f"var({name})" in svg.page_css() for name in svg.variables("light") if name not in ("--panel",))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", svg.THEMES)
def test_texts_can_be_read_on_their_ground(name: str) -> None:
    t = svg.theme(name)
    for ink in ("ink", "muted", "good", "bad"):
        assert contrast(t[ink], t["paper"]) >= 4.5, ink
    for shape in ("unsure", "fine"):
        assert contrast(t[shape], t["paper"]) >= 3.0, shape
    for i in range(7):
        assert contrast(t["ink"], t[f"heat{i}"]) >= 4.5, i
        assert contrast(t["muted"], t[f"heat{i}"]) >= 3.0, i
    for i in range(1, svg.SERIES + 1):
        assert contrast(t[f"c{i}"], t["paper"]) >= 2.4, i


# How colours look without one kind of cone: Machado, Oliveira and Fernandes 2009, whole loss.
SIGHTS = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = [[0.4339, 0.3762, 0.1899], [0.2127, 0.7152, 0.0722], [0.0178, 0.1095, 0.8727]]  # of linear sRGB, white at 1


def lab(colour: str, sight: str) -> np.ndarray[Any, Any]:
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    v = np.array(XYZ) @ np.clip(np.array(SIGHTS[sight]) @ linear, 0, 1)
    x, y, z = np.where(v > 0.008856, np.cbrt(v), 7.787 * v + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def least_apart(theme: str, names: list[str], sight: str) -> float:
    seen = [lab(svg.theme(theme)[n], sight) for n in names]
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2))


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", svg.THEMES)
def test_colours_stay_apart_for_every_kind_of_sight(theme: str, sight: str) -> None:
    series = [f"c{i}" for i in range(1, svg.SERIES + 1)]
    assert least_apart(theme, series, sight) > 17
    assert least_apart(theme, series[:4], sight) > 20
    assert least_apart(theme, list(svg.STATES), sight) > 12


def test_a_theme_has_plain_colours() -> None:
    assert "var(" not in svg.file_css("light")
    assert svg.theme("dark")["ink"] in svg.file_css("dark")
    with pytest.raises(ArgumentError, match="use light or dark"):
        svg.file_css("blue")

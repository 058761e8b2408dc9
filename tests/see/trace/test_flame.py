"""Flame graphs: totals that are the profile's, readable without script, harmless whatever the names; zoom and search."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings

from flame_svg import bare, bars, harmless, parsed, tip
from hostile import NAMES
from made_timelines import any_spans, decode, named, nested, op
from tritium import escape
from tritium.errors import ArgumentError
from tritium.see.trace import flame, flame_look, folded
from tritium.see.trace.flame_frames import Room, clipped, layout, share
from tritium.see.trace.flame_look import DARK, FILLS, LIGHT, name_class
from tritium.see.trace.timeline import Timeline, timeline
from tritium.see.trace.tree import Node, tree


def below(found: list[ET.Element]) -> dict[int, list[int]]:
    """For every bar the bars directly under it, read from their order and depth."""
    out: dict[int, list[int]] = {i: [] for i in range(len(found))}
    way: list[int] = []
    for i, bar in enumerate(found):
        depth = int(bar.get("data-d", "-1"))
        way = way[:depth]
        if way:
            out[way[-1]].append(i)
        way.append(i)
    return out


# ---- totals


@settings(max_examples=40)
@given(nested())
def test_the_root_is_as_long_as_the_profile_and_callees_fit_into_their_caller(t: Timeline) -> None:
    node = tree(t)
    found = bars(parsed(flame.svg(node)))
    at, length = ([int(b.get(key, "")) for b in found] for key in ("data-x", "data-w"))
    tops = sum(e for e, above in zip(t.elapsed_ns.tolist(), _parents(t), strict=True) if above < 0)
    assert length[0] == node.total_ns == tops
    for i, inner in below(found).items():
        assert sum(length[k] for k in inner) <= length[i]
        edges = [at[i], *(at[k] + length[k] for k in inner)]
        assert [at[k] for k in inner] == edges[: len(inner)], "bars of a row follow each other"


def _parents(t: Timeline) -> list[int]:
    from tritium.see.trace.tree import parents

    return parents(t).tolist()


@settings(max_examples=40)
@given(any_spans())
def test_a_bar_is_never_wider_than_the_bar_above_it_even_where_spans_cross(t: Timeline) -> None:
    found = bars(parsed(flame.svg(tree(t))))
    length = [int(b.get("data-w", "")) for b in found]
    for i, inner in below(found).items():
        assert sum(length[k] for k in inner) <= length[i]


def test_every_place_of_the_tree_is_a_bar_with_its_total() -> None:
    node = tree(decode())
    found = sorted((tip(b)[0], int(b.get("data-w", ""))) for b in bars(parsed(flame.svg(node))))
    assert found == sorted([(n.name, n.total_ns) for _, n in node.walk()] + [("all", node.total_ns)])


def test_narrow_bars_are_one_bar_that_says_how_many_and_totals_stay_true() -> None:
    root = Node("all", 1_000_500, 0, 0, {"big": Node("big", 1_000_000, 1_000_000, 1)})
    root.children |= {f"tiny {i}": Node(f"tiny {i}", 1, 1, 1) for i in range(500)}
    frames = layout(root, Room(0, 1000, root.total_ns))
    assert [(f.name, f.length) for f in frames] == [("all", 1_000_500), ("big", 1_000_000), ("… 500 more", 500)]
    assert "… 500 more" in flame.svg(root)


def test_a_very_deep_tree_is_cut_and_it_is_said() -> None:
    root = top = Node("all", 100)
    for i in range(2000):
        top.children[f"f{i}"] = Node(f"f{i}", 100, 0, 1)
        top = top.children[f"f{i}"]
    text = flame.svg(root)
    assert len(bars(parsed(text))) == 251
    assert "levels below 250 are not drawn" in text


def test_callees_stand_in_the_order_of_their_first_call() -> None:
    shown = [tip(b)[0] for b in bars(parsed(flame.svg(tree(decode(steps=1)))))]
    assert shown[:5] == ["all", "step", "layer 0", "rms_norm", "ternary_matmul"]


# ---- reading without script


def test_a_tip_says_name_total_share_calls_and_own_time() -> None:
    t = timeline(
        [(op("a"), 0, 3_000_000, 0), (op("a"), 4_000_000, 1_000_000, 0), (op("b"), 6_000_000, 4_000_000, 0)], ["m"], 10
    )
    (found,) = (tip(b) for b in bars(parsed(flame.svg(tree(t)))) if tip(b)[0] == "a")
    assert found == ["a", "4.00 ms · 50.0 % of all · 2 calls", "own 4.00 ms · 50.0 %"]


def test_another_unit_is_said_as_it_is() -> None:
    root = Node("all", 3 << 20, 0, 0, {"x": Node("x", 3 << 20, 3 << 20, 2)})
    assert "3.00 MiB · 100.0 % of all" in flame.svg(root, unit="B")


def test_the_words_name_where_most_time_goes() -> None:
    root = parsed(flame.svg(tree(decode())))
    words = next(e.text for e in root if bare(e) == "desc")
    assert words is not None
    assert "Most own time: ternary_matmul" in words


def test_a_label_has_no_more_characters_than_its_bar_has_room_for() -> None:
    assert clipped("ternary_matmul", 1000) == "ternary_matmul"
    assert clipped("ternary_matmul", 60) == "ternar…"
    assert clipped("ternary_matmul", 20) == ""
    assert clipped("日本語日本語", 60) == "日本…"


def test_an_empty_profile_is_a_picture_that_says_so() -> None:
    text = flame.svg(tree(timeline([], [], 0)))
    parsed(text)
    assert "nothing was recorded" in text


def test_without_script_there_is_none_and_all_else_is_the_same() -> None:
    still, moving = (flame.svg(tree(decode()), interactive=i) for i in (False, True))
    assert "<script" not in still
    assert re.sub(r"<script>.*</script>\n", "", moving, flags=re.DOTALL) == still


def test_a_picture_too_narrow_to_show_anything_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least 320"):
        flame.svg(tree(decode()), width=100)


def test_the_same_tree_gives_the_same_bytes() -> None:
    assert flame.svg(tree(decode())) == flame.svg(tree(decode()))
    assert flame.inline(tree(decode())) == flame.inline(tree(decode()))


# ---- looks


def lightness(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    low, high = sorted((lightness(a), lightness(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_stands_out_from_what_it_is_on(theme: dict[str, str]) -> None:
    for key in (*FILLS, "hit"):
        ink = theme["ink" if key in ("root", "same") else "on"]
        assert contrast(theme[key], ink) >= 4.5, key
    assert contrast(theme["paper"], theme["muted"]) >= 4.5
    assert contrast(theme["paper"], theme["focus"]) >= 3


def test_both_themes_have_the_same_colours_and_the_stylesheet_all_of_them() -> None:
    assert LIGHT.keys() == DARK.keys()
    for key in LIGHT:
        assert f"var(--fl-{key})" in flame_look.css(), key
    assert "prefers-color-scheme:dark" in flame_look.css()


def test_a_name_has_always_the_same_colour() -> None:
    assert name_class("matmul") == name_class("matmul")
    assert len({name_class(f"op {i}") for i in range(100)}) == 12


@pytest.mark.parametrize(
    ("part", "whole", "said"), [(1, 2, "50.0 %"), (1, 10**6, "< 0.1 %"), (0, 5, "0.0 %"), (0, 0, "0.0 %")]
)
def test_shares_are_said_with_one_decimal(part: int, whole: int, said: str) -> None:
    assert share(part, whole) == said


# ---- for a page


def test_the_page_s_version_has_the_same_bars_and_neither_script_nor_style() -> None:
    alone, inline = parsed(flame.svg(tree(decode()))), parsed(flame.inline(tree(decode())))
    harmless(inline, scripts=0)
    assert not [e for e in inline.iter() if bare(e) == "style"]
    assert [tip(b) for b in bars(inline)] == [tip(b) for b in bars(alone)]
    assert "id" not in {key for e in inline.iter() for key in e.attrib}


# ---- hostile names


def test_hostile_names_are_text_and_nothing_else() -> None:
    node = tree(named(NAMES))
    for text, scripts in ((flame.svg(node, NAMES[0]), 1), (flame.inline(node), 0)):
        root = parsed(text)
        harmless(root, scripts)
        shown = {tip(b)[0] for b in bars(root)}
        assert shown <= {escape.visible(n) for n in NAMES} | {"all"} | {s for s in shown if s.endswith(" more")}


def test_every_hostile_name_is_harmless_as_a_title_and_as_a_bar() -> None:
    for name in NAMES:
        node = Node(name, 10, 0, 1, {name: Node(name, 10, 10, 1)})
        text = flame.svg(node, name, interactive=False)
        root = parsed(text)
        harmless(root, scripts=0)
        assert text.replace("\n", "").isprintable()
        assert [tip(b)[0] for b in bars(root)] == [escape.visible(name)] * 2


def test_the_script_makes_neither_code_nor_markup_of_text() -> None:
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "eval(",
        "Function(",
        "document.write",
        "setTimeout",
        "import(",
        "fetch(",
        "http:",
        "]]>",
    ):
        assert word not in flame_look.script().replace("http://www.w3.org/", ""), word


# ---- in a browser

STEPS = """
var svg = document.querySelector("svg.flame"), out = {};
function name(g) { return g.querySelector("title").textContent.split("\\n")[0]; }
function bar(wanted) { return Array.from(svg.querySelectorAll(".f")).filter(function (g) { return name(g) === wanted; })[0]; }
function width(g) { return +g.querySelector("rect").getAttribute("width"); }
function press(g, key) { g.dispatchEvent(new KeyboardEvent("keydown", { key: key, bubbles: true })); }
function visible() { return svg.querySelectorAll(".f:not(.gone)").length; }
out.all = visible();
out.before = width(bar("layer 1"));
bar("layer 1").dispatchEvent(new MouseEvent("click", { bubbles: true }));
out.zoomed = width(bar("layer 1"));
out.root = width(bar("all"));
out.fewer = visible();
out.hash = location.hash;
press(bar("layer 1"), "Escape");
out.reset = visible();
bar("all").focus();
press(bar("all"), "ArrowDown");
out.focus = name(document.activeElement);
press(document.activeElement, "Enter");
bar("step").dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
out.info = svg.querySelector(".fl-info").textContent;
var box = svg.querySelector("input");
box.value = "TERNARY";
box.dispatchEvent(new Event("input", { bubbles: true }));
out.found = svg.querySelector("[role=status]").textContent;
out.hits = svg.querySelectorAll(".hit").length;
out.link = location.hash;
out.owned = typeof window.owned;
document.querySelector("desc").textContent = JSON.stringify(out);
"""


def browsed(path: Path, where: Path) -> dict:
    """What the steps saw in headless Chromium."""
    command = [
        shutil.which("chromium") or "", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={where / 'browser'}",
        "--window-size=1000,600", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    told = re.search(r"<desc>(\{.*?\})</desc>", done.stdout)
    assert told, done.stdout[-2000:]
    return json.loads(told[1])


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_zoom_search_keys_and_permalink_work_in_a_browser(tmp_path: Path) -> None:
    text = flame.svg(tree(decode())).replace("</svg>\n", f"<script><![CDATA[{STEPS}]]></script></svg>")
    (tmp_path / "x.svg").write_text(text, encoding="utf-8")
    out = browsed(tmp_path / "x.svg", tmp_path)
    assert out["all"] == out["reset"] == 1 + 1 + 3 * 4 + 1
    assert out["zoomed"] == out["root"] > 2 * out["before"]
    assert out["fewer"] == 6
    assert out["hash"].startswith("#flame=")
    assert out["focus"] == "step"
    assert out["info"].startswith("step · ")
    assert out["hits"] == 3
    assert re.fullmatch(r"matched \d+\.\d %", out["found"])
    assert out["link"].endswith("~TERNARY")
    assert out["owned"] == "undefined"


def test_python_stacks_have_a_flame_graph_too() -> None:
    t = named(["main", "f (a.py:3)", "g"])
    assert t.samples is not None
    text = flame.svg(folded.build_sample_tree(t.samples), "Python stacks")
    assert [tip(b)[0] for b in bars(parsed(text))] == ["Python stacks", "main", "f (a.py:3)", "g"]


def test_a_report_can_be_imported_without_reading_the_stylesheet() -> None:
    code = "import tritium.see.reports.report; from tritium.see.trace import flame_look; print(flame_look._asset.cache_info().currsize)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60) == "0\n"

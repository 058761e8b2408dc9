"""Differential flame graphs: what was slowed is named, in colour, in the tips and in words; what vanished is seen."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings

from flame_svg import bare, bars, harmless, parsed, tip
from hostile import NAMES
from made_timelines import any_spans, decode, named
from tritium import escape
from tritium.see.trace import flame
from tritium.see.trace.flame_diff import LISTED, Change, changes
from tritium.see.trace.timeline import Timeline
from tritium.see.trace.tree import Node, tree


def panes(root: ET.Element) -> list[list[ET.Element]]:
    return [bars(e) for e in root.iter() if bare(e) == "g" and e.get("class") == "pane"]


def lines(root: ET.Element) -> list[str]:
    return [e.text or "" for e in root.iter() if bare(e) == "text"]


def styles(found: list[ET.Element]) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for bar in found:
        out.setdefault(tip(bar)[0], set()).add(bar.get("class", "").split()[1])
    return out


def test_the_slowed_op_is_the_first_change_and_the_only_red_one() -> None:
    before, after = tree(decode()), tree(decode(1.5))
    first, *others = changes(before, after)
    assert first == Change("ternary_matmul", 36_000, 54_000, 6, 6)
    assert first.ratio == 1.5
    assert not any(c.delta for c in others)
    root = parsed(flame.diff_svg(before, after))
    for found in panes(root):
        of = styles(found)
        assert of.pop("ternary_matmul") == {"m4"}
        assert of.pop("all") == {"root"}
        assert set.union(*of.values()) == {"same"}
    words = next(e.text or "" for e in root if bare(e) == "desc")
    assert "Largest changes of own time: ternary_matmul 36.0 µs → 54.0 µs · ×1.50" in words


def test_what_became_faster_is_blue_and_bears_its_sign() -> None:
    root = parsed(flame.diff_svg(tree(decode(1.5)), tree(decode())))
    after, _ = panes(root)
    (bar, *_) = (b for b in after if tip(b)[0] == "ternary_matmul")
    assert "l4" in bar.get("class", "")
    assert (bar.get("data-p"), bar.get("data-s")) == ("▼ ", " −6.00 µs")


def test_the_list_says_sign_change_ratio_values_and_name_without_colour() -> None:
    said = lines(parsed(flame.diff_svg(tree(decode()), tree(decode(1.5)))))
    at = said.index("Largest changes of own time")
    assert said[at + 1 : at + 6] == ["▲", "+18.0 µs", "×1.50", "36.0 µs → 54.0 µs", "ternary_matmul"]


def test_what_vanished_is_in_the_pane_of_before_and_what_is_new_in_the_other() -> None:
    with_copies, without = tree(decode(copies=True)), tree(decode())
    after, before = panes(parsed(flame.diff_svg(with_copies, without)))
    assert "copy" not in styles(after)
    (bar, *_) = (b for b in before if tip(b)[0] == "copy")
    assert tip(bar)[1] == "gone"
    assert bar.get("data-s") == " (gone)"
    after, before = panes(parsed(flame.diff_svg(without, with_copies)))
    assert any(tip(b)[:2] == ["copy", "new"] for b in after)
    assert "copy" not in styles(before)


def test_a_tip_says_before_after_ratio_and_share() -> None:
    after, _ = panes(parsed(flame.diff_svg(tree(decode()), tree(decode(1.5)))))
    (found, *_) = (tip(b) for b in after if tip(b)[0] == "ternary_matmul")
    assert found[1].startswith("12.0 µs → 18.0 µs · ×1.50 · +6.00 µs (")
    (found, *_) = (tip(b) for b in after if tip(b)[0] == "softmax")
    assert found[1] == "1.40 µs, as before"


def test_both_panes_have_one_scale() -> None:
    root = parsed(flame.diff_svg(tree(decode()), tree(decode(1.5))))
    fulls = {e.get("data-full") for e in root.iter() if e.get("class") == "pane"}
    assert fulls == {str(tree(decode(1.5)).total_ns)}


def test_next_to_nothing_is_never_a_strong_colour() -> None:
    before, after = (Node("all", t, 0, 0, {"a": Node("a", t, t, 1)}) for t in (10_000, 10_001))
    for found in panes(parsed(flame.diff_svg(before, after))):
        assert styles(found)["a"] == {"same"}


def test_nothing_changed_is_said() -> None:
    assert "Nothing changed." in lines(parsed(flame.diff_svg(tree(decode()), tree(decode()))))


def test_the_list_is_short_and_says_how_many_more_there_are() -> None:
    before = Node("all", 100, 0, 0, {f"op {i}": Node(f"op {i}", 5, 5, 1) for i in range(20)})
    after = Node("all", 200, 0, 0, {f"op {i}": Node(f"op {i}", 10, 10, 1) for i in range(20)})
    said = lines(parsed(flame.diff_svg(before, after)))
    assert f"… and {20 - LISTED} smaller changes" in said


@settings(max_examples=30)
@given(any_spans(), any_spans())
def test_the_sum_of_all_changes_is_the_change_of_all_own_time(a: Timeline, b: Timeline) -> None:
    before, after = tree(a), tree(b)
    own = [sum(n.own_ns for _, n in root.walk()) for root in (before, after)]
    found = changes(before, after)
    assert sum(c.delta for c in found) == own[1] - own[0]
    assert [abs(c.delta) for c in found] == sorted((abs(c.delta) for c in found), reverse=True)
    parsed(flame.diff_svg(before, after))


@pytest.mark.parametrize("page", [False, True])
def test_hostile_names_are_text_and_nothing_else(page: bool) -> None:
    before, after = tree(named(NAMES[:400])), tree(named(NAMES[200:]))
    text = flame.diff_inline(before, after, NAMES[0]) if page else flame.diff_svg(before, after, NAMES[0])
    root = parsed(text)
    harmless(root, scripts=0 if page else 1)
    assert {tip(b)[0] for found in panes(root) for b in found} & {escape.visible(n) for n in NAMES}


def test_every_hostile_name_is_harmless_in_tips_lists_and_titles() -> None:
    for name in NAMES:
        before, after = (Node("all", t, 0, 0, {name: Node(name, t, t, 1)}) for t in (100, 200))
        text = flame.diff_svg(before, after, name, interactive=False)
        harmless(parsed(text), scripts=0)
        assert text.replace("\n", "").isprintable()


def test_the_same_trees_give_the_same_bytes() -> None:
    before, after = tree(decode()), tree(decode(1.5, copies=True))
    assert flame.diff_svg(before, after) == flame.diff_svg(before, after)

"""The page of a profile: all that a terminal shows, shares that name what they are of, and names that cannot act."""

from __future__ import annotations

from pathlib import Path

import pytest

import tritium as tt
from hostile import NAMES
from html_pages import ALLOWED, Page
from made_timelines import decode, named, op
from tritium.see.profile import page as profile_page, sections
from tritium.see.profile.profile import Profile
from tritium.see.trace.timeline import timeline


def test_the_page_has_every_part_of_the_terminal() -> None:
    p = Profile(named(["a", "b", "c", "d"]))
    whole = " ".join(" ".join(s.text() for s in sections.sections(p)).split())
    for line in profile_page.tree_lines(p.tree()):
        assert " ".join(line.split()) in whole
    for part in (
        p.bottlenecks().lines(brief=True),
        p.critical_path().lines()[:1],
        profile_page.stack_lines(p.timeline),
    ):
        for line in part:
            assert " ".join(line.split()) in whole
    for counter in p.timeline.counters:
        assert " ".join(profile_page.counter_line(counter).split()) in whole
    assert all(" ".join(note.split()) in whole for note in p.timeline.notes)


def test_every_share_names_what_it_is_of() -> None:
    two = timeline([(op("matmul"), 0, 50, 0), (op("add"), 60, 10, 1)], ("a", "b"), 100)
    p = Profile(two)
    text = p.text()
    for words in (
        "share: own time, of the run of 100 ns on each of 2 lanes.", "What bounds it, as shares of the run of 100 ns on each of 2 lanes",
        "its parts as shares of the path", "Call tree, as shares of the 60 ns in spans",
    ):  # fmt: skip
        assert words in text
    page = p.html()
    assert "83.3 % of the time in spans · 25.0 % of the run on 2 lanes" in page
    assert ">of 2 lanes</th>" in page


@pytest.mark.parametrize("suffix", [".html", ".htm"])
def test_the_page_is_one_file_that_loads_nothing(tmp_path: Path, suffix: str) -> None:
    path = Profile(decode()).export(tmp_path / f"x{suffix}")
    text = path.read_text()
    page = Page(text)
    assert not [v for name in ("src", "srcset") for v in page.values(name)]
    assert all(h.startswith("#") or h == "data:," for h in page.values("href"))
    assert text == Profile(decode()).html()
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {"timeline", "operations", "critical", "calls"} <= set(ids)


def test_an_empty_profile_has_a_page() -> None:
    assert "nothing was recorded" in Profile(timeline([], [], 0)).html()


def test_hostile_names_are_only_text() -> None:
    text = Profile(named(NAMES[:300])).html()
    page = Page(text)
    assert len(page.scripts) == 3  # the columns, the data inside, the script
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert {tag for tag, _ in page.elements} <= ALLOWED | {"canvas"}


def test_a_recorded_profile_has_a_page() -> None:
    x = tt.rand((8, 8), seed=0)
    layer = tt.compile(lambda x: tt.softmax(x @ x))
    with tt.profile("small", counters=None, ceilings=False) as p:
        for _ in range(3):
            layer(x)
    titles = [s.title for s in sections.sections(p)]
    assert titles[:3] == ["Profile", "Timeline", "Operations"]
    assert [s.id for s in p.parts()] == [s.id for s in sections.sections(p)[2:-1]]

"""The site of all histories: whole, linked, the same for the same history; and badges."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hostile import NAMES
from html_pages import ALLOWED, Page
from made_results import results
from tritium.errors import ArgumentError
from tritium.perf.store.history import History
from tritium.see.histories import badge
from tritium.see.histories.site import write_site


def filled(folder: Path, names: tuple[str, ...] = ("parse", "print"), runs: int = 12, step: float = 1.2) -> History:
    """A history whose first case is slower from the middle on."""
    history = History(folder)
    for i in range(runs):
        times = {name: 1e-3 * (step if name == names[0] and i >= runs // 2 else 1) for name in names}
        made = results(times, seed=i)
        environment = replace(made.environment, commit=f"{i + 1:040x}")
        history.add(replace(made, environment=environment, committed=f"2026-01-{i + 1:02d}T00:00:00Z"))
    return history


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_a_site_has_an_overview_a_page_for_each_case_and_badges(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as history:
        written = write_site(history, tmp_path / "site", "my project")
    every = files(tmp_path / "site")
    assert written.pages == len([name for name in every if name.endswith(".html")]) == 3
    assert {".nojekyll", "index.html", "site.json", "badges/all.svg"} <= set(every)
    index = Page(every["index.html"].decode())
    assert "1 of 2 cases slower than their best" in index.seen
    assert "+20." in index.seen or "+19." in index.seen
    for name, text in every.items():
        if name.endswith(".html"):
            page = Page(text.decode())
            assert {tag for tag, _ in page.elements} <= ALLOWED
            for link in page.values("href"):
                target = link.partition("#")[0]
                assert (
                    not target or target == "data:," or (tmp_path / "site" / name).parent.joinpath(target).exists()
                ), link
        elif name.endswith(".svg"):
            ET.fromstring(text)


def test_the_same_history_gives_the_same_bytes_and_pages_that_are_gone_are_removed(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as history:
        write_site(history, tmp_path / "site", "p")
        first = files(tmp_path / "site")
        write_site(history, tmp_path / "site", "p")
        assert files(tmp_path / "site") == first
    with filled(tmp_path / "other", ("parse",)) as history:
        write_site(history, tmp_path / "site", "p")
    assert len([name for name in files(tmp_path / "site") if name.startswith("cases/")]) == 1


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "mine.html").write_text("keep")
    with filled(tmp_path / "store", runs=2) as history, pytest.raises(ArgumentError, match="no site of histories"):
        write_site(history, tmp_path, "p")
    assert (tmp_path / "cases" / "mine.html").read_text() == "keep"
    with History(tmp_path / "empty") as history, pytest.raises(ArgumentError, match="no runs"):
        write_site(history, tmp_path / "site", "p")


def test_hostile_names_are_text_and_file_names_stay_in_the_folder(tmp_path: Path) -> None:
    names = (*(n for n in NAMES[::60] if n.isprintable()), "../../escape", "a/b")
    with filled(tmp_path / "store", names, runs=2) as history:
        write_site(history, tmp_path / "site", "<script>alert(1)</script>")
    every = files(tmp_path / "site")
    assert len([n for n in every if n.startswith("cases/")]) == len(names)
    assert not (tmp_path / "escape").exists()
    for name, text in every.items():
        if name.endswith(".html"):
            page = Page(text.decode())
            assert {tag for tag, _ in page.elements} <= ALLOWED, name
            assert not [a for _, attrs in page.elements for a in attrs if a.startswith("on")]
        if name.endswith(".svg"):
            assert {e.tag.rpartition("}")[2] for e in ET.fromstring(text).iter()} <= {
                "svg",
                "title",
                "rect",
                "path",
                "g",
                "text",
            }


def test_a_badge_says_how_a_case_stands(tmp_path: Path) -> None:
    with filled(tmp_path / "slower") as history:
        assert badge.state_of(history.trend("parse")).tone == "bad"
        assert badge.state_of(history.trend("print")) == badge.State("no slow-down above 2%", "good")
        assert badge.overall(history) == badge.State("1 of 2 slower", "bad")
        assert badge.state_of(history.trend("nothing")).tone == "quiet"
    with filled(tmp_path / "faster", step=0.8) as history:
        assert badge.state_of(history.trend("parse")).tone == "good"
        assert badge.overall(history).text == "2 cases, none slower"
    with filled(tmp_path / "few", runs=11, step=1.0) as history:
        assert badge.state_of(history.trend("parse")) == badge.State("11 of 12 runs", "quiet")
        assert badge.overall(history) == badge.State("too few runs", "quiet")
    with filled(tmp_path / "enough", step=1.0) as history:
        assert badge.state_of(history.trend("parse")).tone == "good"
        assert badge.overall(history) == badge.State("2 cases, none slower", "good")


def test_a_site_of_noisy_runs_stands_and_says_which_steps_it_does_not_show(tmp_path: Path) -> None:
    def page(name: str, runs: int, sd: float) -> str:
        with History(tmp_path / name) as history:
            for i in range(runs):
                made = results({"add": 1e-3}, seed=i, sd=sd)
                flags = ("45 rounds kept though other work broke in",)
                made = replace(made, runs=tuple(replace(r, flags=flags) for r in made))
                history.add(replace(made, committed=f"2026-01-{i + 1:02d}T00:00:00Z"))
            write_site(history, tmp_path / f"{name}-site", "p")
        return Page((tmp_path / f"{name}-site" / "index.html").read_text()).seen

    noisy = page("noisy", 12, 0.2)
    assert "No case is slower than its best" in noisy
    assert re.search(r"Steps below (19|2\d)\.\d % are not shown\.", noisy)
    few = page("few", 11, 0.01)
    assert "Too few runs to show a step" in few
    assert "12 runs or more can show a step." in few

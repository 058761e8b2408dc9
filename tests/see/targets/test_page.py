"""The page of the targets: its sections and tones, its size, its forms, and names that try to be more than names."""

from __future__ import annotations

import base64
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from hostile import NAMES
from html_pages import ALLOWED, Page
from made_results import ENVIRONMENT
from measured import ENVIRONMENT as WITH_GPU
from tritium.errors import ArgumentError
from tritium.perf.records.environment import Level, Limits
from tritium.see.reports.blocks import Banner, Cell, Code, Fold, Grid, Lines
from tritium.see.reports.sections import Section
from tritium.see.targets import page as targets_page
from tritium.see.targets.file import Measured
from tritium.see.targets.targets import TARGETS, Figure, Reached, Target

FASTER = Target("001", "a table", "a call", "cpu", "< 1 ms", 1e-3, "s", True, lambda bench, device: "")
RATE = Target("000", "a table", "a product", "gpu", "15-25 GFLOPS", 15, "GFLOP/s", False, lambda bench, device: "")
PASS = Reached(FASTER, "pass", Figure(5e-4, 4e-4, 8e-4, 2e-4, "made up"))
MISSED = Reached(RATE, "not reached", Figure(5, 3, 6, 10, "another"))
UNDECIDED = Reached(FASTER, "undecided", Figure(1e-3, 0.9e-3, 1.1e-3))
ABSENT = Reached(RATE, "not measured", reason="no GPU")


def made(*found: Reached, environment: Any = ENVIRONMENT) -> Measured:
    return Measured(found, environment, "2026-01-02T03:04:05Z", 0.1)


def section(measured: Measured, id: str) -> Section:
    return next(s for s in targets_page.sections(measured) if s.id == id)


def banner(*found: Reached) -> Banner:
    (block,) = section(made(*found), "verdict").blocks
    assert isinstance(block, Banner)
    return block


def table(*found: Reached) -> Grid:
    block = section(made(*found), "targets").blocks[0]
    assert isinstance(block, Grid)
    return block


# ---- sections


def test_the_verdict_counts_what_was_measured_and_names_the_rest() -> None:
    top = banner(PASS, MISSED, UNDECIDED, ABSENT)
    assert top.headline == "1 of 3 measured targets reached"
    assert top.counts == (
        (1, "pass", "good"), (1, "not reached", "bad"), (1, "undecided", "unsure"), (1, "not measured", "quiet"),
    )  # fmt: skip
    assert top.lede.endswith("1 more was not measured.")
    assert top.command == "tritium targets --quick"
    assert top.about[1:3] == ("2026-01-02", ENVIRONMENT.hard.cpu)


@pytest.mark.parametrize(
    ("found", "tone"),
    [((PASS,), "good"), ((PASS, UNDECIDED), "unsure"), ((UNDECIDED, MISSED), "bad"), ((ABSENT,), "unsure")],
)
def test_the_tone_is_that_of_the_worst_outcome(found: tuple[Reached, ...], tone: str) -> None:
    assert banner(*found).tone == tone


def test_nothing_measured_is_said_as_such() -> None:
    assert banner(ABSENT).headline == "No target could be measured"
    assert [type(b) for b in section(made(ABSENT), "targets").blocks] == [Grid]


def test_a_row_has_its_figure_its_badge_and_how_far_the_target_is_reached() -> None:
    grid = table(PASS, MISSED, ABSENT)
    assert grid.heads[:6] == ("target", "guide", "asked", "measured", "possible here", "outcome")
    first, second, last = grid.rows
    assert [c.text for c in first[:6]] == ["a call (cpu)", "001", "< 1 ms", "500 µs (400…800)", "200 µs", "pass"]
    assert first[5] == Cell("pass", "good", badge=True)
    assert [c.text for c in last[3:6]] == ["", "", "not measured"]
    reached, missed, none = (row[-1].span for row in grid.rows)
    assert none is None
    assert reached is not None
    assert missed is not None
    assert (reached.ratio, reached.low, reached.high) == pytest.approx((2, 1.25, 2.5))  # half the time: twice as good
    assert (missed.ratio, missed.low, missed.high) == pytest.approx((1 / 3, 0.2, 0.4))
    assert (first[3].sort, second[3].sort, last[3].sort) == (-reached.ratio, -missed.ratio, None)


def test_a_figure_of_nothing_has_no_ratio() -> None:
    none = replace(PASS, figure=Figure(0.0, 0.0, 0.0))
    assert table(none).rows[0][-1].span is None
    targets_page.html(made(none))


def test_what_a_figure_was_measured_by_is_folded_below() -> None:
    fold = section(made(PASS, ABSENT), "targets").blocks[1]
    assert isinstance(fold, Fold)
    (grid,) = fold.blocks
    assert isinstance(grid, Grid)
    assert [[c.text for c in row] for row in grid.rows] == [["a call (cpu)", "a table", "made up"]]


def test_notes_are_those_of_the_terminal_and_absent_where_there_are_none() -> None:
    (lines,) = section(made(MISSED, ABSENT), "notes").blocks
    assert isinstance(lines, Lines)
    assert [line.text for line in lines.lines] == [
        "000 a product: beyond this machine, whose ceilings allow 10 GFLOP/s", "not measured (1): no GPU",
    ]  # fmt: skip
    assert "notes" not in [s.id for s in targets_page.sections(made(PASS))]


def test_the_machine_is_that_of_the_record() -> None:
    limits = Limits(2, 80e9, 320e9, (Level("L1", 65536.0, 1e11), Level("DRAM", None, 2e10)))
    text = targets_page.text(made(PASS, environment=replace(WITH_GPU, limits=limits)))
    assert "processor    A CPU" in text
    assert "GPUs         A GPU" in text
    assert "80 GFLOP/s" in text


def test_how_to_reproduce_ends_with_the_command() -> None:
    code = section(made(PASS), "reproduce").blocks[0]
    assert isinstance(code, Code)
    assert code.text.splitlines()[-1] == "tritium targets --quick"
    assert "100 ms for each figure" in str(section(made(PASS), "reproduce"))


# ---- the file


def test_the_page_of_every_target_is_small_and_whole() -> None:
    found = tuple(
        Reached(t, "pass", Figure(1.2345, 1.2, 1.3, 1.1, f"a call that does {t.what} in many words")) for t in TARGETS
    )
    text = targets_page.html(made(*found, environment=WITH_GPU))
    assert len(text.encode()) < 70_000
    page = Page(text)
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert f"'sha256-{base64.b64encode(sha256(page.scripts[1].encode()).digest()).decode()}'" in policy
    assert "flameGraph" not in page.scripts[1]
    assert page.scripts[0] == "{}"
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {h[1:] for h in page.values("href") if h.startswith("#")} <= set(ids)
    assert page.values("placeholder") == ["Filter targets"]
    assert page.values("data-noun") == ["target"]
    assert "Made by Tritium from targets measured at 2026-01-02T03:04:05Z." in page.seen


def test_the_same_record_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = targets_page.html(made(PASS, ABSENT))
    monkeypatch.delattr("tritium.perf.records.json_io.utc_now")
    assert targets_page.html(made(PASS, ABSENT)) == before


@pytest.mark.parametrize("start", range(0, len(NAMES), 60))
def test_no_name_acts(start: int) -> None:
    found = []
    for name in NAMES[start : start + 60]:
        target = replace(FASTER, guide=name, section=name, what=name, device=name, asked=name)
        found += [
            Reached(target, "pass", Figure(1e-4, 9e-5, 2e-4, 1.0, name)),
            Reached(target, "not measured", reason=name),
        ]
    odd = NAMES[start]
    hard = replace(ENVIRONMENT.hard, cpu=odd, gpus=(odd,))
    machine = replace(ENVIRONMENT, hard=hard, commit=odd, packages={odd: odd}, variables={odd: odd})
    measured = replace(made(*found, environment=machine), created=odd)
    page = Page(targets_page.html(measured))
    assert {tag for tag, _ in page.elements} <= ALLOWED
    assert not [k for _, attrs in page.elements for k in attrs if k.startswith("on")]
    assert not page.values("src")
    assert all(h.startswith("#") or h == "data:," for h in page.values("href"))
    assert len(page.scripts) == 2
    for text in (targets_page.text(measured), targets_page.markdown(measured)):
        assert not [c for c in text if not c.isprintable() and c != "\n"]


def test_every_form_is_saved_by_its_ending_and_others_are_refused(tmp_path: Path) -> None:
    measured = made(PASS, ABSENT)
    for ending, form in (("html", targets_page.html), ("md", targets_page.markdown), ("txt", targets_page.text)):
        assert targets_page.save(measured, tmp_path / f"a.{ending}").read_text(encoding="utf-8") == form(measured)
    assert targets_page.save(measured, tmp_path / "a.json").read_text(encoding="utf-8") == measured.json()
    with pytest.raises(
        ArgumentError, match=r"targets: a name that ends in '\.pdf' is not a format .* \.html, \.md, \.txt or \.json"
    ):
        targets_page.save(measured, tmp_path / "a.pdf")
    assert not (tmp_path / "a.pdf").exists()

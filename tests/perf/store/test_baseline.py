"""Baselines: kept under a name, every version for good."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tritium.errors import ArgumentError, BaselineError, FormatError
from tritium.perf.store import baseline, results as store

sys.path.append(str(Path(__file__).parents[3] / "bench"))

from fault_calls import sample


@pytest.fixture
def at(tmp_path: Path) -> Path:
    return tmp_path / "baselines"


def test_a_baseline_holds_all_of_the_results(at: Path) -> None:
    made = baseline.create("main", sample(3), "before the rewrite", root=at)
    found = baseline.load("main", at)
    assert found == replace(sample(3), kind="baseline", name="main", description="before the rewrite")
    assert (found.runs, found.environment) == (sample(3).runs, sample(3).environment)
    assert (made.label, made.commit, made.suite, made.runs, made.release) == ("main@1", f"{3:040x}", "3", 6, False)


def test_the_default_folder_is_the_users_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path))
    baseline.create("main", sample(1))
    assert (tmp_path / "baselines" / "main" / "v0001.json").is_file()
    assert [v.label for v in baseline.list()] == ["main@1"]


def test_a_taken_name_needs_force_and_the_old_version_stays(at: Path) -> None:
    baseline.create("main", sample(1), root=at)
    with pytest.raises(ArgumentError, match=r"main exists \(version 1\).*--force"):
        baseline.create("main", sample(2), root=at)
    baseline.create("main", sample(2), force=True, root=at)
    assert [baseline.load(name, at).suite for name in ("main", "main@1", "main@2")] == ["2", "1", "2"]
    assert [v.number for v in baseline.show("main", at)] == [1, 2]


def test_a_list_shows_the_newest_of_each(at: Path) -> None:
    for name, number in (("b", 1), ("a", 2), ("b", 3)):
        baseline.create(name, sample(number), force=True, root=at)
    assert [(v.label, v.suite) for v in baseline.list(at)] == [("a@1", "2"), ("b@2", "3")]


def test_no_folder_is_no_baselines(at: Path) -> None:
    assert baseline.list(at) == ()
    assert baseline.last_release(at) is None


def test_a_promoted_baseline_says_where_it_came_from(at: Path) -> None:
    baseline.create("main", sample(1), "good", root=at)
    baseline.promote("main", root=at)
    baseline.create("main", sample(2), force=True, root=at)
    assert baseline.promote("main", root=at).label == "stable@2"
    found = baseline.load("stable", at)
    assert (found.suite, found.name, found.notes) == ("2", "stable", ("promoted from main@2",))
    assert baseline.load("stable@1", at).description == "good"
    assert baseline.promote("main@1", root=at).suite == "1"


def test_a_baseline_is_not_promoted_to_itself(at: Path) -> None:
    baseline.create("main", sample(1), root=at)
    with pytest.raises(ArgumentError, match="to itself"):
        baseline.promote("main@1", "main", root=at)


def test_the_last_release_is_the_one_measured_last(at: Path) -> None:
    baseline.create("v2", sample(20), release=True, root=at)
    baseline.create("v1", sample(10), release=True, root=at)
    baseline.create("main", sample(30), root=at)
    found = baseline.last_release(at)
    assert found is not None
    assert found.name == "v2"
    baseline.promote("main", "v3", release=True, root=at)
    found = baseline.last_release(at)
    assert found is not None
    assert found.name == "v3"


def test_a_path_is_loaded_as_a_file(at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(sample(1), tmp_path / "r.json")
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "r.json", "r.json", "./r.json"):
        assert baseline.load(path, at) == sample(1)
    with pytest.raises(FileNotFoundError):
        baseline.load("no.json", at)


def test_an_unknown_name_gets_the_nearest_one(at: Path) -> None:
    with pytest.raises(BaselineError, match="there are none in"):
        baseline.load("main", at)
    baseline.create("main", sample(1), root=at)
    with pytest.raises(BaselineError, match="Did you mean 'main'"):
        baseline.load("mian", at)
    for name in ("main@2", "main@", "main@x"):
        with pytest.raises(BaselineError, match="there are 1"):
            baseline.load(name, at)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "letters"), (".hidden", "letters"), ("a/b", "letters"), ("a b", "letters"), ("x" * 65, "letters"),
        ("ä", "letters"), ("a\n", "letters"), ("..", "letters"), ("end.", "ends neither"), ("r.json", "ends neither"),
        ("CON", "Windows"), ("nul.txt", "Windows"), ("com1", "Windows"),
    ],
)  # fmt: skip
def test_an_unsafe_name_is_explained(at: Path, name: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        baseline.create(name, sample(1), root=at)
    assert not at.exists()


@given(st.text(max_size=12))
def test_a_name_that_passes_stays_in_the_folder(name: str) -> None:
    try:
        baseline.check_name(name)
    except ArgumentError:
        return
    place = Path("/base")
    assert (place / name).parent == place
    assert name.isascii()
    assert name.isprintable()


def test_names_that_differ_only_in_case_are_refused(at: Path) -> None:
    baseline.create("Main", sample(1), root=at)
    with pytest.raises(ArgumentError, match="there is one called Main"):
        baseline.create("main", sample(1), force=True, root=at)


def test_interrupted_or_empty_results_are_no_baseline(at: Path) -> None:
    with pytest.raises(ArgumentError, match="interrupted"):
        baseline.create("main", replace(sample(1), complete=False), root=at)
    failed = tuple(replace(run, status="crashed") for run in sample(1).runs)
    with pytest.raises(ArgumentError, match="no case of these results was measured"):
        baseline.create("main", replace(sample(1), runs=failed), root=at)


def test_a_damaged_version_is_named_and_the_others_offered(at: Path) -> None:
    baseline.create("main", sample(1), root=at)
    newest = baseline.create("main", sample(2), force=True, root=at)
    newest.path.write_text("{}")
    with pytest.raises(FormatError, match=r"Other versions are kept: main@1\."):
        baseline.load("main", at)
    assert [bool(v.fault) for v in baseline.show("main", at)] == [False, True]
    assert "not results of tritium" in baseline.page(baseline.list(at))
    assert baseline.create("main", sample(3), force=True, root=at).number == 3


def test_other_files_in_the_folder_are_no_baselines(at: Path) -> None:
    baseline.create("main", sample(1), root=at)
    (at / "notes.txt").write_text("x")
    (at / "empty").mkdir()
    (at / "main" / "v2.json").write_text("x")
    (at / "main" / "readme").write_text("x")
    assert [v.label for v in baseline.list(at)] == ["main@1"]


def test_a_page_obeys_no_name(at: Path) -> None:
    baseline.create("main", replace(sample(1), suite="\x1b[31mred"), "a release\n::error::x", release=True, root=at)
    text = baseline.page(baseline.list(at))
    assert "\x1b" not in text
    assert len(text.splitlines()) == 2
    assert "main@1" in text
    assert "release a release" in text

"""`tritium history`: whatever names a results file holds, a terminal and a log see text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hostile import NAMES
from made_results import changed, results
from measured import HOSTILE, hostile
from tritium.cli.history import history
from tritium.errors import TritiumError
from tritium.perf.store import results as store


def run(*args: Any) -> str:
    """Everything it prints, of an error too."""
    found = CliRunner().invoke(history, [str(a) for a in args])
    assert found.exception is None or isinstance(found.exception, (SystemExit, TritiumError)), found.exception
    return found.output + (str(found.exception) if isinstance(found.exception, TritiumError) else "")


@pytest.mark.parametrize("name", [*HOSTILE.values(), *NAMES[::40]], ids=ascii)
def test_no_name_in_the_history_moves_a_terminal_or_commands_a_log(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    case = hostile(name).runs[0].case
    printed = [
        run("--add", store.save(hostile(name), tmp_path / "r.json")), run("--json"), run(f"--arm={name}", "--", case), run("--", f"{case}x"),
        run("--", f"{name[:-1]}y"), run(f"--metric={name}", "--", case), run(f"--arm={name}", "--json", "--", case),
    ]  # fmt: skip
    for text in printed:
        assert all(c.isprintable() or c == "\n" for c in text), ascii(text)
        if not text.startswith(("[", "{")):  # JSON is exact
            assert not [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]


@pytest.mark.parametrize(("busy", "marked"), [(0, 0), (1, 1), (5, 0)])
def test_a_case_over_time_marks_the_runs_that_were_disturbed_more_than_the_others(
    busy: int, marked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    for i in range(5):
        made = replace(results({"add": 1e-3}, seed=i), created=f"2026-01-0{i + 1}T12:00:00Z")
        if i < busy:
            made = changed(made, "add", flags=("9 rounds kept though other work broke in",))
        run("--add", store.save(made, tmp_path / "r.json"))
    lines = run("add").splitlines()
    assert sum(line.endswith(" !") for line in lines) == marked
    assert ("!: other load disturbed this run more than usual in this history." in lines) == bool(marked)
    assert "12 runs or more can show a step" in lines


def test_a_run_whose_canaries_spread_more_than_usual_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    for i in range(3):
        made = results({"add": 1e-3}, seed=i, canary_sd=0.2 if i == 1 else 0.01)
        run("--add", store.save(replace(made, created=f"2026-01-0{i + 1}T12:00:00Z"), tmp_path / "r.json"))
    marked = [line for line in run("add").splitlines() if line.endswith(" !")]
    assert len(marked) == 1
    assert marked[0].startswith("2026-01-02")

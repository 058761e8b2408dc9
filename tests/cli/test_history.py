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


@pytest.mark.parametrize(("busy", "noisy"), [(0, False), (1, False), (2, True)])
def test_a_case_over_time_says_first_that_its_runs_are_too_noisy_to_tell(
    busy: int, noisy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    for i in range(5):
        made = replace(results({"add": 1e-3}, seed=i), created=f"2026-01-0{i + 1}T12:00:00Z")
        if i < busy:
            made = changed(made, "add", flags=("3 rounds kept though other work broke in",))
        run("--add", store.save(made, tmp_path / "r.json"))
    lines = run("add").splitlines()
    assert lines[0].startswith("Too noisy to tell for sure: 2 of 5 runs were disturbed by other load.") == noisy
    assert sum(line.endswith(" !") for line in lines) == busy


def test_runs_whose_canaries_spread_are_too_noisy_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    for i in range(3):
        made = replace(results({"add": 1e-3}, seed=i, canary_sd=0.2), created=f"2026-01-0{i + 1}T12:00:00Z")
        run("--add", store.save(made, tmp_path / "r.json"))
    assert run("add").startswith("Too noisy to tell for sure: 3 of 3 runs were disturbed")

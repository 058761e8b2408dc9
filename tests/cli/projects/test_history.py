"""`tritium history run|machines|site|badge`, `tritium bisect` and `regression-test --project` on a small repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import made_programs
from made_repository import git, repository
from tritium.cli.history import history
from tritium.cli.projects.bisect import bisect
from tritium.cli.regression import regression_test


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path / "cache"))
    made_programs.use(monkeypatch)
    hashes = repository(tmp_path / "repo", [made_programs.script(s) for s in (0.1, 0.1001, 0.12)])
    monkeypatch.chdir(tmp_path / "repo")
    return hashes


def run(command: object, *args: str) -> Result:
    return CliRunner().invoke(command, list(args))  # type: ignore[arg-type]


def test_a_range_is_measured_shown_and_published(project: list[str], tmp_path: Path) -> None:
    options = ("--command", "sh run.sh", "--processes", "2")
    first = run(history, "run", "main~2..main", *options)
    assert first.exit_code == 0, first.output
    assert "3 of 3 revisions measured, 0 were known" in first.output
    assert "0 of 3 revisions measured, 3 were known" in run(history, "run", "main~2..main", *options).output
    shown = run(history, "sh run.sh", "--project", ".")
    assert [commit[:10] in shown.output for commit in project] == [True] * 3, shown.output
    assert "3 runs" in run(history, "--project", ".").output
    assert project[2][:10] in run(history, "machines", "sh run.sh", "--project", ".").output
    assert run(history, "badge", "b.svg", "--project", ".", "--case", "sh run.sh").exit_code == 0
    site = run(history, "site", "site", "--project", ".", "--json")
    assert json.loads(site.stdout)["cases"] == 1, site.output
    assert Path("site/index.html").exists()
    assert "performance" in Path("b.svg").read_text()


def test_a_bisection_names_the_commit(project: list[str]) -> None:
    done = run(bisect, "main~2..main", "--command", "sh run.sh")
    assert done.exit_code == 0, done.output
    assert f"{project[2]} is the first slow commit" in done.output
    assert run(bisect, "main").exit_code == 2
    assert len(git(Path.cwd(), "worktree", "list").splitlines()) == 1


def test_two_revisions_of_a_project_are_gated(project: list[str]) -> None:
    options = ("--project", ".", "--command", "sh run.sh", "--looks", "1", "--processes", "15", "--no-report")
    done = run(regression_test, "--against", "main~1", *options, "--comment", "c.md")
    assert done.exit_code == 1, done.output
    assert Path("c.md").read_text().startswith("<!-- tritium: performance -->\n### ❌ 1 slower\n")
    counted = run(regression_test, "--against", "main~1", *options, "--instructions")
    assert (counted.exit_code, "leave it out with --command" in counted.output) == (2, True)
    refused = run(regression_test, "--against", "main", "--command", "x")
    assert (refused.exit_code, "--project" in refused.output) == (2, True)

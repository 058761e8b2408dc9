"""The GitHub Action: its steps run as bash with a stand-in for `tritium` and for `gh`; what they call is what counts."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RECORD = (
    '#!/usr/bin/env python3\nimport json, sys\nopen("{log}", "a").write(json.dumps(sys.argv[1:]) + "\\n")\n{rest}\n'
)


@pytest.fixture
def action() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    return loaded


def step(action: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [s for s in action["runs"]["steps"] if s["name"] == name]
    return dict(found)


def run(action: dict[str, Any], name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub does: bash, that stops at an error."""
    names = dict.fromkeys(step(action, name)["env"], "") | variables
    environment = (
        os.environ | names | {"PATH": f"{folder}:{os.environ['PATH']}", "GITHUB_OUTPUT": str(folder / "output")}
    )
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(action, name)["run"]]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=30, check=False)


def stand_in(folder: Path, name: str, rest: str = "") -> Path:
    """Write a program that records its arguments; return the record."""
    log = folder / f"{name}.log"
    (folder / name).write_text(RECORD.format(log=log, rest=rest), encoding="utf-8")
    (folder / name).chmod(0o755)
    return log


def calls(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_inputs_become_arguments_and_never_shell(action: dict[str, Any], tmp_path: Path) -> None:
    log = stand_in(tmp_path, "tritium", "sys.exit(1)")
    values = {"BASE": "main", "THRESHOLD": "5%", "PROJECT": ".", "BUILD": 'make "$(touch owned)"', "ALLOW": "true"}
    done = run(action, "Measure both revisions", tmp_path, **values, COMMANDS="./a --x\n\n./b 'y z'\n")
    assert done.returncode == 0, done.stderr  # the verdict is the last step's, after the comment
    (arguments,) = calls(log)
    assert arguments[:3] == ["regression-test", "--against", "main"]
    assert arguments[arguments.index("--build") + 1] == values["BUILD"]
    assert [arguments[i + 1] for i, a in enumerate(arguments) if a == "--command"] == ["./a --x", "./b 'y z'"]
    assert "--allow-inconclusive" in arguments
    assert not (tmp_path / "owned").exists()
    assert (tmp_path / "output").read_text() == "gate=1\n"
    assert run(action, "Verdict", tmp_path, GATE="1").returncode == 1
    assert "${{" not in "".join(s["run"] for s in action["runs"]["steps"])  # an input inside of a script would be run


@pytest.mark.parametrize(
    ("old", "gate", "changes", "methods"),
    [("", "1", "10", ["POST"]), ("77", "0", "00", ["PATCH"]), ("", "0", "00", []), ("", "0", "01", ["POST"])],
)
def test_one_comment_is_written_and_updated(
    action: dict[str, Any], tmp_path: Path, old: str, gate: str, changes: str, methods: list[str]
) -> None:
    (tmp_path / "performance-comment.md").write_text("<!-- tritium: performance -->\n### text\n", encoding="utf-8")
    log = stand_in(tmp_path, "gh", f'print("{old}") if "--jq" in sys.argv and "{old}" else None')
    done = run(action, "Comment", tmp_path, REPOSITORY="o/r", NUMBER="5", GATE=gate, CHANGES=changes)
    assert done.returncode == 0, done.stderr
    first, *rest = calls(log)
    assert '"<!-- tritium: performance -->"' in first[-1]
    assert [call[call.index("--method") + 1] for call in rest] == methods
    assert all("body=@performance-comment.md" in call for call in rest)


def test_a_token_that_may_only_read_is_a_warning(action: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "performance-comment.md").write_text("<!-- tritium: performance -->\n", encoding="utf-8")
    stand_in(tmp_path, "gh", "sys.exit(1)")
    done = run(action, "Comment", tmp_path, REPOSITORY="o/r", NUMBER="5", GATE="1", CHANGES="10")
    assert (done.returncode, done.stdout[:11]) == (0, "::warning::"), done.stderr


def test_the_workflow_of_this_project_uses_the_action_of_this_commit() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "performance.yml").read_text(encoding="utf-8"))
    gate = workflow["jobs"]["gate"]
    (own,) = [s for s in gate["steps"] if s.get("uses") == "./"]
    inputs = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]
    assert set(own["with"]) <= set(inputs)
    assert gate["permissions"] == {"contents": "read", "pull-requests": "write"}

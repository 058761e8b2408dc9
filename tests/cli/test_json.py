"""--json: every command that prints facts has it, and prints JSON with it and nothing else on standard output."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from made_results import results
from tritium.cli import text
from tritium.cli.root import cli
from tritium.perf.store import results as store

ROOT = Path(__file__).parents[2]
PRINT_NO_FACTS = {
    "chat",
    "dashboard",
    "lm-eval",
    "serve",
    "report",
}  # a conversation, servers, another program (its --output_path), and a page in a file (--format json)


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that can be called, by its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
            if not command.invoke_without_command:
                continue
        yield " ".join((*path, name)), command


@pytest.mark.parametrize(("name", "command"), list(commands(cli)), ids=[name for name, _ in commands(cli)])
def test_every_command_that_prints_facts_has_the_shared_option(name: str, command: click.Command) -> None:
    options = [p for p in command.params if "--json" in p.opts]
    if name in PRINT_NO_FACTS:
        assert not options
        return
    assert len(options) == 1, f"tritium {name}: add @json_option() of cli.text"
    option = options[0]
    form = {p.name for p in command.params if {"--format", "--output-format"} & set(p.opts)}
    assert option.name == "as_json" if option.expose_value else form, "with formats it stands for one of them"


def run(*words: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(cli, [str(word) for word in words], prog_name="tritium")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    store.save(results({"add": 1e-3, "mul": 2e-3}, seed=0), tmp_path / "old.json")
    store.save(results({"add": 1e-3, "mul": 2e-3}, seed=1), tmp_path / "new.json")
    return tmp_path


def test_baselines_and_results_as_json(folder: Path) -> None:
    assert run("baseline", "list", "--json") == []
    made = run("baseline", "create", "main", "old.json", "--json")
    assert (made["name"], made["number"]) == ("main", 1)
    assert run("baseline", "promote", "main", "--json")["name"] == "stable"
    assert [v["name"] for v in run("baseline", "list", "--json")] == ["main", "stable"]
    assert run("baseline", "show", "main", "--json")[0]["path"].endswith(".json")
    shown = run("results", "show", "old.json", "--json")
    assert shown["results"] == json.loads(Path("old.json").read_text())["results"]
    assert "csv" in run("results", "convert", "--list", "--json")["writes"]
    assert run("results", "convert", "old.json", "--to", "csv", "-o", "old.csv", "--json")["format"] == "csv"
    assert run("results", "import", "old.json", "-o", "again.json", "--json")["path"].endswith("again.json")
    assert any(suite["name"] == "comprehensive" for suite in run("bench", "--json"))
    assert run("history", "--json") == []


def test_a_gate_prints_its_verdict_as_json(folder: Path) -> None:
    verdict = run("regression-check", "--baseline", "old.json", "--current", "new.json", "--json", "--no-report")
    assert verdict == run(
        "regression-check", "--baseline", "old.json", "--current", "new.json", "--output-format", "json", "--no-report"
    )


def test_a_format_that_was_given_wins_over_the_flag(folder: Path) -> None:
    done = CliRunner().invoke(
        cli, ["regression-check", "--baseline", "old.json", "--current", "new.json", "--json", "--output-format", "markdown", "--no-report"]
    )  # fmt: skip
    with pytest.raises(json.JSONDecodeError):
        json.loads(done.stdout)


def test_programs_under_a_profile_or_with_their_memory_tracked(folder: Path) -> None:
    (folder / "script.py").write_text(
        "import tritium as tt\nprint('its own output')\nx = tt.ones((64, 64)) @ tt.ones((64, 64))\n"
    )
    assert run("memory", "--json", "script.py")["devices"][0]["peak"] >= 3 * 64 * 64 * 4
    for name in ("a.json", "b.json"):
        CliRunner().invoke(cli, ["profile", "-q", "--output", name, "--chrome", "chrome.json", "script.py"])
    assert run("profile", "show", "a.json", "--json") == json.loads(Path("a.json").read_text())
    assert run("profile", "diff", "a.json", "b.json", "--json")["changes"]
    assert run("profile", "check", "chrome.json", "--json")["valid"] is True
    (folder / "bad.json").write_text('{"traceEvents": [{"ph": "X"}]}')
    assert run("profile", "check", "bad.json", "--json", code=1)["faults"]


def test_models_and_tables_as_json(folder: Path) -> None:
    import tritium

    model = Path(tritium.__file__).parent / "data" / "kjv.gguf"
    shutil.copy(model, "in.gguf")
    converted = run("convert", "in.gguf", "out.gguf", "--to", "tq2_0", "--json")
    assert converted["to"] == "tq2_0"
    assert converted["path"].endswith("out.gguf")
    tables = run("reproduce", "--project", ROOT, "--json")
    assert {t["name"] for t in tables} >= {"compiled"}


def test_json_is_ascii_and_takes_paths_and_records(capsys: pytest.CaptureFixture[str]) -> None:
    text.print_json({"path": Path("ü"), "plan": results({"add": 1e-3}).runs[0].work})
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert json.loads(printed)["path"] == "ü"

"""What GitHub is told: escaped as it wants, within its limits, and nothing a name could add."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given, strategies as st

from made_results import results
from measured import HOSTILE
from tritium.errors import ArgumentError
from tritium.perf.formats import exports, github
from tritium.perf.gate.compare import compare_stored
from tritium.perf.gate.page import severity_text
from tritium.perf.gate.verdict import Suite, Verdict, no_baseline, suite_of


def verdict(case: str = "matmul 64x64 f32", outcome: Any = "SLOWER", **more: Any) -> Verdict:
    about = {"arm": "head", "ratio": 1.25, "interval": (1.2, 1.3), "passes": False, "level": "critical"}
    return Verdict(case, "wall", "base", outcome=outcome, **(about | more))


def suite(*verdicts: Verdict) -> Suite:
    return suite_of(verdicts, base="main", head="topic")


def commands(text: str) -> list[str]:
    """The commands the runner of GitHub would find in a log."""
    return [line for line in text.split("\n") if line.lstrip().startswith("::") or "##[" in line]


def test_an_annotation_has_the_form_and_the_escapes_of_github() -> None:
    made = github.Annotation("warning", "50 % slower\nthan a::b", "a,b: c", "src/a.py", 3)
    assert str(made) == "::warning file=src/a.py,line=3,title=a%2Cb%3A c::50 %25 slower%0Athan a::b"
    assert str(github.Annotation("error", "x")) == "::error::x"


def test_regressions_are_errors_doubts_warnings_and_news_notices() -> None:
    found = github.annotated(
        suite(verdict(), verdict("b", "INCONCLUSIVE"), verdict("c", "FASTER"), verdict("d", "EQUIVALENT"))
    )
    assert [line.split(" ")[0] for line in found] == ["::error", "::warning", "::notice"]
    assert "matmul 64x64 f32" in found[0]
    assert "1.250 (1.200 … 1.300)" in found[0]


def test_a_regression_the_gate_lets_pass_is_a_notice() -> None:
    assert github.annotated(suite(verdict(passes=True)))[0].startswith("::notice")


def test_a_missing_baseline_is_an_error() -> None:
    (line,) = github.annotated(no_baseline("v1", "there is no baseline v1"))
    assert line.startswith("::error title=no baseline::")
    assert "no baseline v1" in line


def test_at_most_ten_of_a_kind_are_told_and_the_tenth_counts_the_rest() -> None:
    found = github.annotated(
        suite(*(verdict(f"case {i}") for i in range(25)), *(verdict(f"w {i}", "INCONCLUSIVE") for i in range(10)))
    )
    errors, warnings = ([line for line in found if line.startswith(k)] for k in ("::error", "::warning"))
    assert (len(errors), len(warnings)) == (10, 10)
    assert errors[-1].endswith("16 more like this; the summary of the job lists them.")
    assert "more like this" not in warnings[-1]


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_gives_no_other_command(name: str) -> None:
    made = suite(verdict(name, reason=name, unit=name), verdict(name, "MISSING", arm=name, ratio=None))
    for line in github.annotated(made):
        assert "\n" not in line
        assert "\r" not in line
        assert re.match(r"::(error|warning|notice) title=[A-Z -]+::", line)
        assert line.isprintable()
        assert len(commands(line)) == 1


def test_a_summary_is_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    assert github.append_summary("one")
    assert github.append_summary("two")
    assert file.read_text() == "one\n\ntwo\n\n"


def test_a_summary_stays_below_what_github_takes(tmp_path: Path) -> None:
    file = tmp_path / "summary"
    text = "\n".join("| a line of a table, größer |" for _ in range(40_000))
    assert github.append_summary("x" * 900_000, file)
    assert github.append_summary(text, file)
    assert file.stat().st_size <= 1024 * 1024
    assert file.read_text().endswith(github.CUT)
    assert not github.append_summary(text, file), "there is no room left"
    assert file.stat().st_size <= 1024 * 1024


@given(st.binary(max_size=300), st.integers(-10, 400))
def test_what_is_kept_of_a_summary_fits(data: bytes, room: int) -> None:
    assert len(github._fitting(data, room)) <= max(room, 0)


def test_without_github_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    assert not github.append_summary("x")
    assert not github.set_output("a", "b")
    assert github.publish(suite(verdict())) == []


def outputs(text: str) -> dict[str, str]:
    """As the runner reads them: name<<END, lines, END."""
    found, lines = {}, iter(text.split("\n"))
    for line in lines:
        if line:
            name, end = line.split("<<")
            value = []
            for inner in lines:
                if inner == end:
                    break
                value.append(inner)
            found[name] = "\n".join(value)
    return found


@pytest.mark.parametrize("name", [n for n in HOSTILE.values() if "\ud800" not in n])
def test_a_value_adds_no_output(name: str, tmp_path: Path) -> None:
    file = tmp_path / "output"
    assert github.set_output("one", name, file)
    assert github.set_output("two", "2", file)
    assert outputs(file.read_bytes().decode()) == {"one": name, "two": "2"}


@pytest.mark.parametrize("name", ["", "a b", "a=b", "a\nb", "1a"])
def test_the_name_of_an_output_is_a_word(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="name of an output"):
        github.set_output(name, "x", tmp_path / "output")


def test_publish_writes_summary_and_outputs_and_gives_the_annotations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    found = github.publish(suite(verdict()), more=["more text"])
    assert len(found) == 1
    assert "| SLOWER | `matmul 64x64 f32`" in (tmp_path / "summary").read_text()
    assert "more text" in (tmp_path / "summary").read_text()
    told = outputs((tmp_path / "output").read_text())
    assert (told["overall_status"], told["exit_code"], told["slower"]) == ("HasCriticalRegressions", "1", "1")


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_the_summary_shows_hostile_names_as_code(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.delenv("GITHUB_OUTPUT", raising=False)
    github.publish(suite(verdict(name, reason=name)))
    for line in (tmp_path / "summary").read_text().splitlines():
        outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", line.replace("### ❌", ""))
        assert not set("<>`@[]*#\\") & set(outside), line


# ---- the ready workflow

WORKFLOW = Path(__file__).parents[3] / "examples" / "github-workflow.yml"


def commands_of_the_workflow() -> list[list[str]]:
    """What the workflow types, word by word."""
    lines = (line.strip().removeprefix("run: ") for line in WORKFLOW.read_text().splitlines())
    return [shlex.split(line.partition(" >> ")[0]) for line in lines if line.startswith("tritium ")]


def test_the_workflow_is_yaml_that_measures_the_base_in_the_same_job() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    found = yaml.safe_load(WORKFLOW.read_text())
    assert found["permissions"] == {"contents": "read"}
    assert set(found[True]) == {"pull_request", "push"}, "yaml reads `on` as true"
    (job,) = found["jobs"].values()
    steps = job["steps"]
    assert "github.event.pull_request.base.sha" in job["env"]["BASE"]
    assert steps[0]["with"]["fetch-depth"] == 0
    (gate,) = [s for s in steps if "--against" in s.get("run", "")]
    assert '--against "$BASE"' in gate["run"], "a name from an event is data, never a part of the script"
    assert "continue-on-error" not in gate
    assert "|| true" not in WORKFLOW.read_text()
    (upload,) = [s for s in steps if "upload-artifact" in s.get("uses", "")]
    assert upload["if"] == "${{ always() }}"
    assert not [s for s in steps if "${{" in s.get("run", "")], "nothing is put into a script"


def test_the_workflow_uploads_what_its_commands_write() -> None:
    """Every file that an option names, and the page that `compare` and `regression-test` write beside it."""
    from tritium.cli.report import name_beside

    uploaded = WORKFLOW.read_text().partition("path: |")[2].split()
    named = {"compare": ["--output"], "results": ["-o"], "regression-test": ["--results", "--verdict"]}
    for words in commands_of_the_workflow():
        for option, name in pairwise(words):
            if option in named[words[1]]:
                assert any(fnmatch(name, pattern) for pattern in uploaded), name
            if option in ("--output", "--verdict"):
                assert str(name_beside(Path(name))) in uploaded


@pytest.mark.parametrize("words", commands_of_the_workflow(), ids=" ".join)
def test_every_command_of_the_workflow_has_the_options_it_uses(words: list[str]) -> None:
    from tritium.cli.root import cli

    command: Any = cli
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        command, rest = command.get_command(click.Context(command), rest[0]), rest[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {w for w in rest if w.startswith("-")} <= known
    formats = [b for a, b in pairwise(rest) if a == "--to"]
    assert set(formats) <= set(exports.FORMATS)


def test_the_workflow_types_what_it_promises() -> None:
    assert [words[1] for words in commands_of_the_workflow()] == [
        "compare",
        "results",
        "results",
        "results",
        "regression-test",
    ]


# ---- the comment


def test_a_comment_shows_what_matters_by_severity() -> None:
    before = results({"parse": 1e-3, "print": 1e-3, "sum": 1e-3, "@owner <b>": 1e-3})
    after = results({"parse": 1.2e-3, "print": 1e-3, "sum": 0.8e-3, "@owner <b>": 1.4e-3}, seed=1)
    judged = compare_stored(before, after)
    text = github.comment(judged)
    first, title, *_ = text.splitlines()
    assert first == "<!-- tritium: performance -->"
    assert title == "### ❌ 2 slower, 1 faster"
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == 3
    assert "`print`" not in text
    severities = [float(row.split("|")[4]) for row in rows]
    assert severities == sorted(severities, reverse=True)
    assert min(severities) > 1
    assert "no change that matters" in text
    assert "`@owner" in text  # in a code span nobody is called
    assert github.comment(judged, "linux").splitlines()[0] != first  # each name has its own comment


def test_severity_stands_in_the_terminal_where_something_changed() -> None:
    slower = Verdict("a", "wall", "base", "head", "SLOWER", 1.2, interval95=(1.1, 1.2**2 / 1.1))
    exact = Verdict("b", "peak_bytes", "base", "head", "SLOWER", 2.0, exact=True)
    assert severity_text(slower) == "2.1 × its noise"
    assert severity_text(exact) == ""
    assert severity_text(replace(slower, outcome="EQUIVALENT")) == ""


def test_severity_is_the_change_divided_by_its_noise() -> None:
    verdict = Verdict("a", "wall", "base", "head", "SLOWER", 1.21, interval95=(1.1, 1.331))
    assert verdict.severity == pytest.approx(2)
    assert Verdict("a", "wall", "base", "head", "EQUIVALENT", 1.0, interval95=(0.9, 1.1)).severity == 0
    assert Verdict("a", "peak_bytes", "base", "head", "SLOWER", 2.0, exact=True).severity == float("inf")
    assert Verdict("a", "wall", "base", "head", "MISSING").severity is None

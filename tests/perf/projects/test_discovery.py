"""Benchmarks of a project: found by name, imported only where one is registered, nothing outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritium.errors import ArgumentError
from tritium.perf.projects import discovery
from tritium.perf.suites import suites

BENCHMARK = 'import tritium as tt\n\n\n@tt.perf.benchmark("{name}")\ndef run():\n    return 1\n'


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_files_are_found_by_name_and_by_what_they_register(tmp_path: Path) -> None:
    project, outside = tmp_path / "project", write(tmp_path / "bench_outside.py", BENCHMARK.format(name="outside"))
    expected = [
        write(project / "bench_a.py", BENCHMARK.format(name="a")),
        write(
            project / "benchmarks" / "deep" / "parser_bench.py",
            "from tritium.perf import benchmark\n@benchmark('p')\ndef p(): ...",
        ),
    ]
    script = write(project / "bench_script.py", "raise SystemExit('a script is not imported')")
    for folder in (".hidden", "build", "node_modules", "own-env"):
        write(project / folder / "bench_no.py", BENCHMARK.format(name="no"))
    write(project / "own-env" / "pyvenv.cfg", "")
    (project / "bench_link.py").symlink_to(outside)
    (project / "linked").symlink_to(tmp_path)
    write(project / "test_bench_x.txt", BENCHMARK)
    assert discovery.files(project) == [p.resolve() for p in expected]
    assert script not in discovery.files(project)


def test_a_suite_has_the_benchmarks_of_a_project(tmp_path: Path) -> None:
    write(tmp_path / "bench_mine.py", BENCHMARK.format(name="mine in a project"))
    assert discovery.load(tmp_path) == ["mine in a project"]
    grid = suites.grid(suites.options_of("project"))
    assert "mine in a project" in [case.name for case in grid.cases]
    assert [arm.name for arm in grid.arms] == ["tritium"]


def test_a_project_without_benchmarks_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"bench_\*\.py or \*_bench\.py"):
        discovery.load(tmp_path)
    write(tmp_path / "bench_wrong.py", "@benchmark('x'\n")
    with pytest.raises(SyntaxError):  # its own error, not silence
        discovery.load(tmp_path)


def test_a_folder_with_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MOST_FILES", 3)
    for i in range(4):
        write(tmp_path / f"{i}.txt", "")
    with pytest.raises(ArgumentError, match="more than 3 files"):
        discovery.files(tmp_path)

"""What profile and memory run: scripts, modules and workloads, as Python would run them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tritium.cli_target import check_target, make_workload, run_target
from tritium.errors import ArgumentError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(folder: Path, code: str, name: str = "script.py") -> str:
    (folder / name).write_text(code)
    return str(folder / name)


def test_a_script_sees_its_arguments_its_folder_and_its_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script(folder, "value = 7", "its_neighbour.py")
    path = script(
        folder, "import sys, its_neighbour\nprint(__name__, sys.argv[1:], its_neighbour.value, sys.argv[0] == __file__)"
    )
    argv, paths = list(sys.argv), list(sys.path)
    assert run_target(path, None, ["--x", "1"]) == 0
    assert capsys.readouterr().out == "__main__ ['--x', '1'] 7 True\n"
    assert (sys.argv, sys.path) == (argv, paths)


def test_a_module_runs_as_main(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script(folder, "import sys\nprint(__name__, sys.argv[1:])\nsys.exit(4)", "target_module.py")
    assert run_target(None, "target_module", ["a"]) == 4
    assert capsys.readouterr().out == "__main__ ['a']\n"


def test_a_folder_with_a_main_file_runs(folder: Path) -> None:
    (folder / "app").mkdir()
    script(folder / "app", "raise SystemExit(5)", "__main__.py")
    assert run_target(str(folder / "app"), None) == 5


@pytest.mark.parametrize(
    ("code", "expected", "says"),
    [("", 0, ""), ("raise SystemExit", 0, ""), ("raise SystemExit(3)", 3, ""), ("raise SystemExit('no')", 1, "no\n"),
     ("raise KeyboardInterrupt", 130, "KeyboardInterrupt")],
)  # fmt: skip
def test_the_exit_code_is_that_of_the_script(
    folder: Path, capsys: pytest.CaptureFixture[str], code: str, expected: int, says: str
) -> None:
    assert run_target(script(folder, code), None) == expected
    assert says in capsys.readouterr().err


def test_an_error_is_shown_without_our_own_frames(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_target(script(folder, "def f():\n    raise ValueError('mine')\nf()"), None) == 1
    told = capsys.readouterr().err
    assert "ValueError: mine" in told
    assert "cli_target" not in told
    assert "runpy" not in told


def test_threads_are_waited_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('done'))).start()"
    assert run_target(script(folder, code), None) == 0
    assert capsys.readouterr().out == "done\n"


@pytest.mark.parametrize(
    ("given", "says"),
    [((None, None, None), "none was given"), (("x.py", "m", None), "SCRIPT and -m MODULE"),
     (("nothing.py", None, None), "no script nothing.py"),
     ((None, "no_such_module_at_all", None), "no such module"), ((None, "no_such.thing", None), "no_such"),
     ((None, None, "prefil"), "Did you mean 'prefill'")],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_before_anything_runs(
    folder: Path, given: tuple[str | None, ...], says: str
) -> None:
    with pytest.raises(ArgumentError, match=says):
        check_target(*given)


def test_a_workload_is_made_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    name, call = make_workload("decode")
    assert name.startswith("decode")
    assert call().shape[-1] == 1024

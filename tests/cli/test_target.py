"""What profile and memory run: scripts, modules and workloads, as Python would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tritium.cli.target import check_target, make_workload, run_target, workload_case
from tritium.errors import ArgumentError
from tritium.perf.engine import worker
from tritium.perf.records.case import Made, UnsupportedError


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
    assert os.path.join("tritium", "cli") not in told
    assert "runpy" not in told


def test_threads_are_waited_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('done'))).start()"
    assert run_target(script(folder, code), None) == 0
    assert capsys.readouterr().out == "done\n"


@pytest.mark.parametrize(
    ("given", "says"),
    [((None, None, None), "none was given"), (("x.py", "m", None), "SCRIPT and -m MODULE"),
     (("nothing.py", None, None), "no script nothing.py"), ((".", None, None), "a folder without __main__.py"),
     ((None, "no_such_module_at_all", None), "no such module"), ((None, "no_such.thing", None), "no_such"),
     ((None, None, "prefil"), "Did you mean 'prefill'")],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_before_anything_runs(
    folder: Path, given: tuple[str | None, ...], says: str
) -> None:
    with pytest.raises(ArgumentError, match=says):
        check_target(*given)


def test_a_workload_is_made_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(lambda: "begun", wait=lambda result: f"{result} and done")
    monkeypatch.setattr(worker, "resolve", lambda target: lambda candidate, **arguments: made)
    name, call = make_workload("decode 1x8x64")
    assert (name, call()) == ("decode 1x8x64", "begun and done")


def test_a_workload_that_a_candidate_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(candidate: str, **_: object) -> Made:
        raise UnsupportedError(f"{candidate} has no f32")

    monkeypatch.setattr(worker, "resolve", lambda target: refuses)
    with pytest.raises(ArgumentError, match="--workload decode 1x8x64: numpy has no f32"):
        make_workload("decode 1x8x64", "numpy")


def test_a_workload_computes_the_shape_of_its_name() -> None:
    name, call = make_workload("decode 1x8x64")
    assert name == "decode 1x8x64"
    assert call().shape[-1] == 64


@pytest.mark.parametrize(("asked", "name"), [("decode", "decode 1x256x1024"), ("prefill 2x8x64", "prefill 2x8x64"),
                                             ("transformer_layer", "transformer_layer 1x64x1024")])  # fmt: skip
def test_a_workload_is_named_with_or_without_a_shape(asked: str, name: str) -> None:
    assert workload_case(asked).name == name


@pytest.mark.parametrize(
    ("asked", "said"),
    [("decod", "Did you mean 'decode'"), ("decode big", "is not a shape"), ("decode 1x8x65", "multiple of 64")],
)
def test_a_workload_that_is_none_is_refused(asked: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        workload_case(asked)


def test_the_command_line_begins_without_measuring_or_seeing() -> None:
    code = (
        "import sys, tritium.cli.root; print([m for m in sys.modules if m.startswith(('tritium.perf', 'tritium.see'))])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60) == "[]\n"

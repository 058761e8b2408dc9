"""The command line, as a shell meets it: text, JSON, hints and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tritium as tt
from tritium.op import OPS

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"


def tritium(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tritium", *args]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | env, timeout=120, encoding="utf-8")


def test_devices_tells_what_is_here_and_what_is_not() -> None:
    done = tritium("devices")
    assert done.returncode == 0
    assert done.stderr == ""
    here, *_ = done.stdout.splitlines()
    assert here.startswith("cpu  (default: ")
    assert "cores" in done.stdout
    assert "memory" in done.stdout
    assert any(line.startswith("cuda") and "not available: " in line for line in done.stdout.splitlines())


def test_devices_says_which_kernels_run() -> None:
    said = tritium("devices").stdout
    assert ("isa" in said and "blas" in said) if tt.buffer.native is not None else "numpy" in said


def test_devices_as_json_says_the_same() -> None:
    done = tritium("devices", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0
    assert told["default"] == "cpu"
    assert told["why"]
    assert [d["name"] for d in told["devices"] if d["available"]] == ["cpu"]
    assert all(d["why"] and d["remedy"] for d in told["devices"] if not d["available"])


def test_ops_lists_every_row_with_its_kernels() -> None:
    done = tritium("ops")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert [line.split()[0] for line in lines[2:]] == list(OPS)
    (add,) = [line for line in lines if line.startswith("add ")]
    assert "cpu: " in add
    assert "numpy" in add
    assert "Sum, element by element." in add


def test_ops_as_json_is_one_object_per_row() -> None:
    rows = json.loads(tritium("ops", "--json").stdout)
    assert [r["name"] for r in rows] == list(OPS)
    assert {r["name"]: r["kernels"]["cpu"] for r in rows}["add"][-1] == "numpy"


def test_ops_of_one_row_tells_all_about_it() -> None:
    done = tritium("ops", "softmax")
    assert done.returncode == 0
    assert done.stdout.startswith("softmax(x, /, axis=-1, *, out=None)\n")
    for said in (
        "exp(x) over its sum",
        "kind     reduce",
        "kernels  cpu: ",
        "ulps     16",
        "lower    yes",
        "traits   in_place",
        "samples  ",
    ):
        assert said in done.stdout


def test_an_unknown_row_gets_a_hint_and_exit_code_2() -> None:
    done = tritium("ops", "sofmax")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "'sofmax' is not an operation. Did you mean 'softmax'?" in done.stderr


def test_an_unknown_command_is_exit_code_2() -> None:
    done = tritium("devces")
    assert done.returncode == 2
    assert "devces" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_option_is_exit_code_2() -> None:
    assert tritium("devices", "--jsn").returncode == 2


def test_an_error_on_purpose_is_one_line_and_exit_code_2() -> None:
    done = tritium("devices", TRITIUM_DEVICE="cuda")
    assert done.returncode == 2
    assert done.stderr.startswith("error: TRITIUM_DEVICE=cuda: Device 'cuda' is not available")
    assert "cuda   not available" in done.stdout
    assert done.stderr.count("\n") == 1


def test_help_and_version() -> None:
    assert "devices" in tritium("--help").stdout
    assert "ops" in tritium("-h").stdout
    assert tritium("--version").stdout == f"tritium, version {tt.__version__}\n"


def test_the_console_script_is_the_same_function() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from tritium.cli.root import main; main()", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert tt.__version__ in done.stdout


def test_the_log_level_reaches_the_log() -> None:
    assert "backend of cpu made" in tritium("--log-level", "debug", "devices").stderr
    assert "backend of cpu made" in tritium("devices", TRITIUM_LOG="debug").stderr


def test_a_wrong_log_level_in_the_environment_is_told() -> None:
    done = tritium("devices", TRITIUM_LOG="loud")
    assert done.returncode == 0
    assert "TRITIUM_LOG=loud is not a logging level" in done.stderr


def test_the_page_of_operations_is_up_to_date() -> None:
    if not PAGE.exists():
        pytest.skip("docs/ops.md is not written yet")
    assert tritium("ops", "--markdown").stdout == PAGE.read_text(encoding="utf-8"), (
        "run: tritium ops --markdown > docs/ops.md"
    )

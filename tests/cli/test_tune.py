"""`tritium tune`: what it prints, what it keeps, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tritium as tt
from tritium import backends
from tritium.buffer import native
from tritium.cli.root import cli
from tritium.errors import ArgumentError
from tritium.machine import tuned
from tritium.models.load import shipped
from tritium.perf.tune import choices as tune_choices, cuda as tune_cuda, file as tune_file, racing as tune
from tritium.see.doctor.checks import check_tuned
from tritium.see.doctor.readings import read_tuned_file


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path))
    monkeypatch.delenv("TRITIUM_TUNED", raising=False)
    monkeypatch.setattr(tune_choices, "WIDTH", 128)
    monkeypatch.setattr(tune_choices, "STREAMED_BYTES", 1 << 16)
    tune._functions.clear()
    backends.retuned()
    yield tmp_path
    monkeypatch.undo()
    backends.retuned()


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["tune", *args])


needs_native = pytest.mark.skipif(native is None, reason="there is no native library")


@needs_native
def test_a_target_is_raced_shown_and_kept(cache: Path) -> None:
    done = run("--op", "storage", "--quick")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0].split() == ["what", "choice", "why"]
    assert "storage" in done.output
    assert str(cache) in done.output
    assert len(tune.history("storage")) == 1


@needs_native
def test_json_has_every_time() -> None:
    done = run("--op", "storage", "--op", "device", "--quick", "--json")
    rows = json.loads(done.output)
    assert [r["name"] for r in rows] == ["storage", "device"]
    assert rows[0]["race"]["candidates"][0]["seconds"]
    assert rows[1]["race"] is None


@needs_native
def test_the_list_and_the_doctor_name_a_file_that_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tune.tune("gemm", [1, 2], lambda config: sum(range(1000 * config)))
    monkeypatch.setattr(tuned, "build", lambda: "1-1")  # another native library than the one that was tuned
    backends.retuned()
    text = " ".join(run("--list").output.split())
    assert f"{tuned.path()} is not used (it belongs to another native library); run tritium tune again." in text
    listed = json.loads(run("--list", "--json").output)
    assert listed["unused"] == "it belongs to another native library"
    finding = check_tuned(read_tuned_file({}))
    assert (finding.severity, finding.remedy) == ("warning", "tritium tune")
    assert "another native library" in finding.evidence


def test_the_list_tells_what_was_tuned_and_what_was_not() -> None:
    tt.tune("my own", [1], lambda c: 1.0)
    run("--op", "tiling", "--quick")
    text = run("--list").output
    assert "not tuned: as shipped" in text
    assert "UTC" in text
    assert "Tuned by programs: my own" in text
    assert "cpu is the only device here" in text
    listed = json.loads(run("--list", "--json").output)
    assert "storage" in " ".join(listed["tunable"])


def test_explain_prints_the_candidates_safely() -> None:
    tt.tune("x", ["a", "\x1b[31mred"], lambda c: 1.0 + (c != "a"))
    done = run("--explain", "x")
    assert done.exit_code == 0
    assert "'a'" in done.output
    assert "\x1b" not in done.output


@needs_native
def test_revalidate_has_exit_code_1_when_a_choice_no_longer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("--revalidate", "--op", "storage", "--quick").output.startswith("Nothing of it was tuned")
    run("--op", "storage", "--quick")
    found = tune_choices.revalidate(["storage"], quick=True)
    for holds in (True, False):
        monkeypatch.setattr(
            tune_choices, "revalidate", lambda *_, h=holds, **__: [tune.replace(d, holds=h) for d in found]
        )
        assert run("--revalidate").exit_code == (0 if holds else 1)
    assert json.loads(run("--revalidate", "--json").output)[0]["op"] == "storage"


def test_clear_forgets() -> None:
    tt.tune("x", [1], lambda c: 1.0)
    tt.tune("y", [1], lambda c: 1.0)
    assert run("--clear", "--op", "x").output.startswith("1 race forgotten")
    assert {t.op for t in tune.history()} == {"y"}
    assert run("--clear").output.startswith("1 race forgotten")
    assert tune_file.tunings() == ()


def test_options_that_exclude_each_other_are_refused() -> None:
    done = run("--list", "--clear")
    assert done.exit_code == 2
    assert "--list and --clear do not go together" in done.output


@pytest.mark.parametrize(
    ("args", "says"),
    [(["--op", "kernal"], "Did you mean 'kernel'?"), (["--explain", "q"], "nothing was tuned under 'q'")],
)
def test_errors_are_one_line_and_exit_code_2(args: list[str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tritium", "tune", *args], capture_output=True, text=True, env=os.environ, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_clear_refuses_a_name_that_nothing_is_tuned_under() -> None:
    done = CliRunner().invoke(cli, ["tune", "--clear", "--op", "kernal"])
    assert isinstance(done.exception, ArgumentError)
    assert "Did you mean 'kernel'?" in str(done.exception)


# ---- products of a GPU


def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_cuda, "absence", lambda: "there is no GPU of CUDA: it was taken out")


@pytest.mark.parametrize(
    "args", [["--op", "cuda"], ["--sizes", "64x64"], ["--batches", "1,2"], ["--op", "cuda/product", "--quick"]]
)
def test_without_a_gpu_its_products_are_shown_with_the_reason(monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    without_a_gpu(monkeypatch)
    done = run(*args)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[2].split(maxsplit=2) == [
        "cuda/product",
        "-",
        "there is no GPU of CUDA: it was taken out",
    ]
    assert done.output.count("cuda/product") == 1
    assert "it was taken out" in run("--list").output


def test_sizes_come_from_the_command_or_from_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        tune_choices, "fill", lambda names, quick, progress, sizes, batches: asked.append((names, sizes, batches)) or []
    )
    run("--sizes", "64,64x128", "--batches", "1,8")
    run("--model", str(shipped()), "--op", "cuda")
    run("--op", "tiling")
    assert asked == [
        (("cuda",), ((64, 64), (64, 128)), (1, 8)),
        (("cuda",), ((512, 256), (256, 256), (1536, 256), (256, 768)), ()),
        (("tiling",), (), ()),
    ]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--sizes", "64", "--op", "tiling"], "--sizes is for the products of a GPU, not for --op tiling"),
        (["--batches", "1", "--list"], "--batches is for the products of a GPU, not for --list"),
        (["--sizes", "64", "--model", str(shipped())], "--sizes and --model do not go together"),
        (["--sizes", "2x3x4"], "2x3x4 is not rows x columns; write 2560x6912"),
        (["--sizes", "0x4"], "every size must be 1 or more"),
        (["--batches", "0"], "whole numbers from 1 on"),
        (["--model", "nowhere.gguf"], "does not exist"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(args: list[str], says: str) -> None:
    done = run(*args)
    assert done.exit_code == 2
    assert says in done.output

"""compare and bench, called as a person calls them: what they measure, print, write, refuse, and exit with."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from config_texts import BENCHMARK, ENERGY, REGRESSION
from fake_engine import ENGINE, QUICK, Engine, called, passed
from null import Null
from tritium import backends
from tritium.cli import bench as cli_bench
from tritium.cli.text import progress
from tritium.errors import TritiumError, install_command
from tritium.perf.records.run import Results
from tritium.perf.store import results as store
from tritium.perf.suites import suites
from tritium.perf.suites.suites import NAMES, SUITES
from tritium.perf.work import registry


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    made = Engine()
    monkeypatch.setattr(ENGINE, "measure", made)
    monkeypatch.chdir(tmp_path)
    return made


def refused(*args: str) -> str:
    """What is said to wrong arguments; the exit code is 2."""
    found = called(*args)
    if isinstance(found.exception, TritiumError):  # `main` makes it one line and exit code 2
        return str(found.exception)
    assert found.exit_code == 2, found.output
    return str(found.output)


# ---- compare


def test_a_quick_comparison_prints_a_table_a_guide_and_what_to_do_next(engine: Engine) -> None:
    found = passed(*QUICK)
    assert "vs numpy" in found.stdout
    assert "matmul 64x64 f32" in found.stdout
    assert "Device selection guide" in found.stdout
    assert "training" in found.stdout
    assert "written: results.json" in found.stdout
    assert "next: " in found.stdout
    assert engine.asked["plan"].name == "quick"
    assert not engine.asked["plan"].gates


OTHERS = "also measured when installed: "
EVERYWHERE = ("compare", "--quick", "--peers", "none", "--operations", "add")


@pytest.mark.parametrize(
    ("kinds", "line"),
    [
        ({"torch": "torch"}, "torch (pip install torch)"),
        ({"mlx": "mlx", "torch": "torch"}, f"mlx, torch ({install_command('mlx', 'torch')})"),
        ({"torch": "torch", "mps": "torch"}, "torch, mps (pip install torch)"),
    ],
)
def test_a_comparison_ends_with_a_line_on_devices_that_packages_would_bring(
    engine: Engine, kinds: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "installable", lambda: kinds)
    for args in (EVERYWHERE, ("compare", "--operations", "add")):
        lines = passed(*args).stdout.splitlines()
        assert lines[-1] == OTHERS + line
        assert [other for other in lines if other.startswith(OTHERS)] == [OTHERS + line]
    assert OTHERS not in passed("bench", "layout", "--quick", "--operations", "add").output  # of the default device


def test_no_line_on_other_devices_where_none_would_be_measured(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "installable", lambda: {"torch": "torch"})
    Path("bench.json").write_text(BENCHMARK)
    plain = [passed(*EVERYWHERE, "--format", name) for name in ("json", "csv", "markdown")]
    chosen = [passed(*EVERYWHERE, "--devices", "cpu"), passed("compare", "--config", "bench.json")]
    engine.complete = False
    for found in (*plain, *chosen, called(*EVERYWHERE)):
        assert "written: " in found.output
        assert OTHERS not in found.output
    engine.complete = True
    monkeypatch.setattr(backends, "installable", dict)
    assert passed(*EVERYWHERE).stdout.splitlines()[-1].startswith("next: ")


def test_every_device_that_is_here_is_compared(engine: Engine) -> None:
    backends.register("far", Null)
    backends.register("near", Null)
    try:
        passed("compare", "--quick", "--operations", "add", "--peers", "numpy")
    finally:
        backends.unregister("far")
        backends.unregister("near")
    here = [str(d) for d in backends.present() if d != "cpu"]
    assert engine.arms == ["tritium", *(f"tritium:{name}" for name in (*here, "far", "near")), "numpy"]


def test_the_results_are_in_the_file_named(engine: Engine) -> None:
    Path("here").mkdir()
    passed(*QUICK, "--output", "here/there.json")
    kept = store.load("here/there.json")
    assert kept.kind == "compare"
    assert kept.arms == ("tritium", "numpy")
    assert len(kept.runs) == 2 * len(engine.names)
    assert not Path("results.json").exists()


def test_options_change_what_is_measured(engine: Engine) -> None:
    passed("compare", "--devices", "cpu", "--peers", "none", "--operations", "add,softmax", "--sizes", "8,4x2",
           "--dtypes", "f16", "--seed", "3", "--threads", "1", "--generations", "4")  # fmt: skip
    assert engine.names == ["add 8x8 f16", "add 4x2 f16", "softmax 8x8 f16", "softmax 4x2 f16"]
    assert engine.arms == ["tritium"]
    plan = engine.asked["plan"]
    assert (plan.name, plan.generations, plan.seed, plan.threads) == ("default", 4, 3, 1)
    assert engine.asked["cases"][0].recipe.arguments["seed"] == 3


@pytest.mark.parametrize(
    ("args", "budget_s", "processes"),
    [
        ((), None, 15),
        (("--quick",), 60, 28),
        (("--quick", "--processes", "5"), 60, 5),
        (("--quick", "--minutes", "2.5"), 150, 28),
        (("--minutes", "0.5"), 30, 15),  # its results gate: every case in every process
        (("--minutes", "4", "--thorough"), 240, 28),
    ],
)
def test_a_quick_comparison_has_a_minute_and_any_other_what_it_is_given(
    engine: Engine, args: tuple[str, ...], budget_s: float | None, processes: int
) -> None:
    found = passed("compare", *args, "--devices", "cpu", "--peers", "numpy", "--operations", "add")
    plan = engine.asked["plan"]
    assert (plan.budget_s, plan.generations) == (budget_s, processes)
    within = "" if budget_s is None else f"within {budget_s:g} s, at most "
    assert f"on tritium, numpy: {within}{processes} fresh processes each" in found.stderr
    assert 0 <= engine.asked["spent_s"] < 30


def test_other_suites_have_a_budget_only_where_it_is_given(engine: Engine) -> None:
    passed("bench", "layout", "--quick", "--operations", "add")
    assert (engine.asked["plan"].budget_s, engine.asked["plan"].generations) == (None, 8)
    passed("bench", "layout", "--quick", "--operations", "add", "--minutes", "0.25")
    assert (engine.asked["plan"].budget_s, engine.asked["plan"].generations) == (15, 28)


def test_the_minute_of_a_quick_comparison_holds_for_a_file_of_settings(engine: Engine) -> None:
    Path("bench.json").write_text(BENCHMARK)
    passed("compare", "--quick", "--config", "bench.json")
    assert engine.asked["plan"].budget_s == 60


def test_a_terminal_shows_that_libraries_are_looked_for_before_they_are(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(cli_bench, "status", seen.append)
    monkeypatch.setattr(
        suites,
        "options_of",
        lambda *args, find=suites.options_of, **more: (seen.append("found"), find(*args, **more))[1],
    )
    passed(*QUICK)
    assert seen == ["looking for devices and libraries …", "found", ""]
    seen.clear()
    refused("compare", "--devices", "nowhere")
    assert seen == ["looking for devices and libraries …", "found", ""]


def test_devices_batches_and_transfers_are_asked_for(engine: Engine) -> None:
    found = passed(
        "compare", "--devices", "cpu,cpu:reference", "--devices", "cuda", "--peers", "none", "--operations", "matmul",
        "--sizes", "8,16", "--dtypes", "f32", "--batches", "1, 4", "--transfer", "included",
    )  # fmt: skip
    assert engine.arms == ["tritium", "reference"]
    assert engine.names == [f"matmul {b}x{n} f32, with transfer" for b in (1, 4) for n in (8, 16)]
    assert "device cuda skipped: " in found.stderr
    assert "With transfer: from NumPy arrays to NumPy arrays" in found.stdout
    assert "Crossover sizes" not in found.stdout  # the report has them
    assert "Crossover sizes" in Path("report.html").read_text(encoding="utf-8")
    assert "Crossover sizes" in passed("compare", "--peers", "reference", "--operations", "add", "--no-report").stdout


def test_thorough_measures_longer(engine: Engine) -> None:
    passed("compare", "--thorough", "--peers", "none", "--operations", "add")
    assert engine.asked["plan"].name == "thorough"
    assert "choose one" in refused("compare", "--quick", "--thorough")


def test_formats_for_programs_keep_standard_output_to_themselves(engine: Engine) -> None:
    found = passed(*QUICK, "--format", "json")
    assert json.loads(found.stdout)["results"]["kind"] == "compare"
    assert "crossovers" in json.loads(found.stdout)["derived"]
    assert "written: results.json" in found.stderr
    rows = list(csv.reader(io.StringIO(passed(*QUICK, "--format", "csv").stdout)))
    assert len({len(row) for row in rows}) == 1
    assert "| --- |" in passed(*QUICK, "--format", "markdown").stdout.replace("|---|", "| --- |")


def test_what_is_left_out_is_told_and_kept(engine: Engine) -> None:
    found = passed(
        "compare", "--quick", "--peers", "neon,avx2,numpy", "--operations", "add,bitlinear", "--dtypes", "f32,f64"
    )
    assert "left out: bitlinear takes f32" in found.stderr
    assert any("bitlinear" in note for note in store.load("results.json").notes)
    assert any(
        "tritium neon is left out" in n or "tritium avx2 is left out" in n for n in store.load("results.json").notes
    )


def test_progress_goes_to_standard_error(engine: Engine) -> None:
    found = passed(*QUICK)
    assert "0 %  first" in found.stderr
    assert "0 %" not in found.stdout


def test_a_run_in_which_nothing_worked_says_so(engine: Engine) -> None:
    engine.status = "failed"
    found = called(*QUICK)
    assert found.exit_code == 2
    assert "nothing could be measured" in found.stderr
    assert "it is so" in found.stdout
    assert store.load("results.json").runs[0].status == "failed"


def test_an_interrupted_run_is_written_and_tells_how_to_go_on(engine: Engine) -> None:
    engine.complete = False
    found = called(*QUICK)
    assert found.exit_code == 130
    assert "interrupted in process 2 of 8" in found.stderr
    assert "--resume" in found.stderr
    assert not store.load("results.json").complete


def test_the_journal_lies_beside_the_results_and_is_gone_when_all_is_measured(engine: Engine) -> None:
    Path("results.json.journal").write_text("", encoding="utf-8")
    passed(*QUICK, "--resume")
    assert engine.asked["journal"] == Path("results.json.journal")
    assert engine.asked["resume"] is True
    assert not Path("results.json.journal").exists()
    assert "nothing to resume" in passed(*QUICK, "--resume").stderr


def test_ctrl_c_before_the_first_sample_writes_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **more: Any) -> Results:
        raise KeyboardInterrupt

    monkeypatch.setattr(ENGINE, "measure", interrupted)
    found = called(*QUICK)
    assert found.exit_code == 130
    assert "results.json was not written." in found.stderr
    assert not Path("results.json").exists()
    Path("results.json.journal").write_text("", encoding="utf-8")
    assert "--resume goes on from results.json.journal" in called(*QUICK).stderr


def test_what_was_measured_is_not_lost_to_a_place_that_cannot_be_written(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = store.save

    def full(results: Results, path: Any) -> Path:
        if Path(path).resolve().parent == Path.cwd():
            from tritium.errors import SaveError

            raise SaveError("results.json: not saved: No space left on device.")
        return good(results, path)

    monkeypatch.setattr(store, "save", full)
    shared = Path("shared")
    shared.mkdir()
    victim = Path("victim")
    victim.write_text("mine", encoding="utf-8")
    for second in range(int(time.time()) - 5, int(time.time()) + 60):  # every name that a clock makes
        (shared / f"tritium-{second}-results.json").symlink_to(victim.resolve())
    monkeypatch.setenv("TMPDIR", str(shared.resolve()))
    monkeypatch.setattr("tempfile.tempdir", None)
    error = refused(*QUICK)
    assert "No space left" in error
    folder = next(p for p in shared.iterdir() if p.is_dir() and not p.is_symlink())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert str(folder / "results.json") in error
    assert store.load(folder / "results.json").complete
    assert victim.read_text(encoding="utf-8") == "mine"


def test_results_that_no_folder_takes_are_in_the_journal(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from tritium.errors import SaveError

    def full(results: Results, path: Any) -> Path:
        raise SaveError("results.json: not saved: No space left on device.")

    monkeypatch.setattr(store, "save", full)
    assert "--resume continues" in refused(*QUICK)


def test_on_a_terminal_progress_is_one_line_that_is_taken_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress("2 cases") as report:
        report(1, 4, "matmul")
        drawn = capsys.readouterr().err
    erased = capsys.readouterr().err
    assert drawn.startswith("2 cases\n")
    assert re.search(r"\r\x1b\[2K 25 % .* matmul", drawn)
    assert drawn.count("\n") == 1
    assert erased.endswith("\x1b[1A\x1b[2K")  # up to the line of the bar, and clear it


def test_elsewhere_progress_is_a_line_every_few_seconds_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with progress("2 cases") as report:
        for done in range(10):
            report(done, 10, "matmul")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["2 cases", "  0 %  matmul"]
    assert 3 <= len(lines) < 7
    assert all("left" in line for line in lines[2:])


# ---- config files


def written(text: str, name: str = "config.json") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_the_guides_file_runs_unchanged_and_absent_devices_are_told(engine: Engine) -> None:
    found = passed("compare", "--config", written(BENCHMARK), "--peers", "none")
    sizes = {tuple(c.context.shape) for c in engine.asked["cases"]}
    assert sizes == {(n, n) for n in (64, 128, 256, 512, 1024, 2048)}
    assert {c.context.precision for c in engine.asked["cases"]} == {"f32", "f16"}
    assert {c.context.operation for c in engine.asked["cases"]} == {
        "matmul",
        "add",
        "multiply",
        "quantize",
        "bitlinear",
    }
    plan = engine.asked["plan"]
    assert (plan.warmup_batches, plan.generations * plan.rounds, plan.timeout_s) == (5, 10, 30.0)
    for device in ("metal", "mlx"):
        if device not in "".join(engine.arms):
            assert f"device {device} skipped: " in found.stderr
            assert any(n.startswith(f"device {device} skipped: ") for n in store.load("results.json").notes)


def asked_with(engine: Engine, **keys: Any) -> tuple[Any, ...]:
    small = {"tensor_sizes": [[8, 8]], "operations": ["add"], "data_types": ["f32"], "devices": ["cpu"]}
    passed("compare", "--config", written(json.dumps(small | keys)), "--peers", "none")
    return (engine.names, engine.arms, engine.asked["plan"], engine.asked["notes"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tensor_sizes", [[4, 4]]), ("warmup_iterations", 2), ("measurement_iterations", 30), ("operations", ["multiply"]),
        ("devices", ["cpu", "cpu:9"]), ("data_types", ["f16"]), ("timeout", "7s"), ("batch_sizes", [2]), ("transfer", "both"),
    ],
)  # fmt: skip
def test_every_key_of_the_file_changes_what_is_measured(engine: Engine, key: str, value: Any) -> None:
    assert asked_with(engine) != asked_with(engine, **{key: value})


def test_an_option_comes_before_the_file(engine: Engine) -> None:
    passed("compare", "--config", written(BENCHMARK), "--sizes", "8", "--operations", "add", "--peers", "none")
    assert engine.names == ["add 8x8 f32", "add 8x8 f16"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BENCHMARK.replace("tensor_sizes", "tensor_size"), "Did you mean 'tensor_sizes'?"),
        (BENCHMARK.replace("30s", "30 parsecs"), "there are ns, us, ms, s, min, h and d"),
        (BENCHMARK.replace("bitlinear", "bitlinaer"), "Did you mean 'bitlinear'?"),
        (ENERGY, "this is an energy file"),
        (REGRESSION, "this is a regression file"),
    ],
)
def test_a_file_that_is_wrong_is_explained(engine: Engine, text: str, said: str) -> None:
    assert said in refused("compare", "--config", written(text))


def test_results_given_as_settings_are_named(engine: Engine) -> None:
    passed(*QUICK)
    assert "this is a file of results" in refused("compare", "--config", "results.json", "--output", "other.json")


def test_results_never_replace_the_settings(engine: Engine) -> None:
    Path("mine.json").write_text("{}")
    assert "is the configuration" in refused("compare", "--config", "mine.json", "--output", "mine.json")
    assert Path("mine.json").read_text() == "{}"


def test_a_folder_that_is_not_there_is_refused_before_measuring(engine: Engine) -> None:
    assert "there is no folder" in refused(*QUICK, "--output", "typo/results.json")
    assert not engine.asked


# ---- wrong arguments


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("compare", "--operations", "matmull"), "Did you mean 'matmul'?"),
        (("compare", "--peers", "numpyy"), "Did you mean 'numpy'?"),
        (("compare", "--dtypes", "f31"), "Did you mean 'f32'?"),
        (("compare", "--devices", "cpuu"), "Did you mean 'cpu'?"),
        (("compare", "--devices", "mlx:7,cpu:9"), "none of the devices"),
        (("compare", "--devices", "cpu", "--devices", "cpu:portabel"), "Did you mean 'cpu:portable'?"),
        (("compare", "--batches", "1,0"), "whole numbers from 1 on"),
        (("compare", "--batches", "1,,2"), "whole numbers from 1 on"),
        (("compare", "--transfer", "some"), "'some' is not one of"),
        (("compare", "--sizes", "12q"), "'12q' is not a size"),
        (("compare", "--sizes", "0"), "every size must be 1 or more"),
        (("compare", "--operations", "add,,mul"), "names parted by commas"),
        (("compare", "--format", "xml"), "'xml' is not one of"),
        (("compare", "--config", "absent.json"), "does not exist"),
        (("compare", "--operations", "bitlinear", "--dtypes", "f64"), "no case is left to measure"),
        (("bench", "quantisation"), "Did you mean 'quantization'?"),
        (("bench", "energy", "--duration", "10 parsecs"), "there are ns, us, ms, s, min, h and d"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_explained(engine: Engine, args: tuple[str, ...], said: str) -> None:
    assert said in refused(*args)


# ---- bench


def test_the_list_names_every_suite_and_what_it_measures() -> None:
    found = passed("bench", "--list").stdout
    for suite in SUITES.values():
        assert suite.doc in found
        assert all(alias in found for alias in suite.aliases)
    assert "tritium bench NAME" in passed("bench").stdout


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if NAMES[name] == "table" else name for name in NAMES]
)
def test_every_suite_runs_by_every_name_it_has(engine: Engine, name: str) -> None:
    found = passed("bench", name, "--quick", "--peers", "none")
    suite = NAMES[name]
    assert store.load(f"{suite}_results.json").suite == suite
    assert f"written: {suite}_results.json" in found.stdout
    assert set(SUITES[suite].metrics) <= set(engine.asked["plan"].metrics)


def test_all_suites_are_measured_one_after_the_other(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    chosen = (
        "bench",
        "all",
        "--quick",
        "--peers",
        "none",
        "--no-report",
        "--folder",
        str(folder),
        "--suites",
        "layout,memory",
    )
    assert "2 of 2 suites measured." in passed(*chosen).stdout
    assert sorted(f.name for f in folder.iterdir()) == ["layout_results.json", "memory_results.json"]
    (folder / "memory_results.json").unlink()
    again = passed(*chosen, "--resume", "--json")
    assert [row["suite"] for row in json.loads(again.stdout)] == ["memory"]  # the other was there
    assert "is not a suite" in refused("bench", "all", "--suites", "layot")


def test_the_benchmarks_of_the_project_in_this_folder_are_measured(engine: Engine) -> None:
    assert "no benchmarks" in refused("bench", "project")
    Path("bench_own.py").write_text(
        'import tritium as tt\n@tt.perf.benchmark("own of this folder")\ndef own():\n    return 1\n'
    )
    done = passed("bench", "project", "--quick")
    assert "1 benchmark in 1 file" in done.stderr
    assert "own of this folder" in store.load("project_results.json").cases


def test_every_suite_has_its_help() -> None:
    for name in SUITES:
        assert SUITES[name].doc[1:] in " ".join(passed("bench", name, "--help").stdout.split())
    assert "--allow-estimates" in passed("bench", "energy", "--help").stdout
    assert "--allow-estimates" not in passed("bench", "layout", "--help").stdout


def test_the_model_is_still_a_command_of_bench() -> None:
    assert "Tokens per second" in passed("bench", "model", "--help").stdout


def test_the_energy_file_reaches_the_meter(engine: Engine) -> None:
    path = written(ENERGY.replace("100ms", "50ms").replace('"thermal_monitoring": true', '"thermal_monitoring": false'))
    passed("bench", "energy", "--quick", "--config", path, "--allow-estimates", "--tdp", "65", "--duration", "80s")
    options = engine.asked["options"]
    assert options["monitoring_interval_s"] == 0.05
    assert options["thermal_monitoring"] is False
    assert options["allow_estimates"] is True
    assert options["tdp_w"] == 65.0
    assert options["power_measurement_duration_s"] == 80 / engine.asked["plan"].generations
    assert "this is a benchmark file" in refused("bench", "energy", "--config", written(BENCHMARK))


def test_a_users_benchmark_is_measured_beside_the_others(engine: Engine) -> None:
    file = Path("own_for_cli.py").resolve()
    file.write_text(
        "from tritium.perf.work.registry import benchmark\n\n@benchmark('own_for_cli')\ndef own():\n    sum(range(9))\n",
        encoding="utf-8",
    )
    try:
        passed(*QUICK, "--load", str(file), "--operations", "add,own_for_cli")
        assert engine.names[-1] == "own_for_cli"
        passed(*QUICK, "--load", str(file))
        assert engine.names[-1] == "own_for_cli"
        assert engine.names[0].startswith("matmul")
    finally:
        registry._registered.pop("own_for_cli", None)


# ---- the real thing

REAL = ("compare", "--devices", "cpu", "--operations", "add", "--sizes", "16", "--dtypes", "f32", "--peers", "numpy")


def tritium(folder: Path, *args: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tritium", *args]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **pipes, **more)


@pytest.mark.slow
def test_a_real_comparison_in_a_process_of_its_own(tmp_path: Path) -> None:
    process = tritium(tmp_path, *REAL, "--quick", "--generations", "1")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "add 16x16 f32" in out
    kept = store.load(tmp_path / "results.json")
    assert [r.status for r in kept if r.case == "add 16x16 f32"] == ["ok", "ok"]
    assert "  0 %  looking at the machine" in err


def test_a_wrong_argument_of_a_real_process_exits_with_2(tmp_path: Path) -> None:
    process = tritium(tmp_path, "compare", "--operations", "matmull")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.strip().startswith("error: operations: 'matmull' is not an op")
    assert len(err.strip().splitlines()) == 1


def generations(journal: Path) -> int:
    """The processes whose samples a journal holds."""
    return sum(entry["what"] == "generation" for entry in store.Journal.read(journal)[0])


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_resume_goes_on(tmp_path: Path) -> None:
    args = (*REAL, "--quick", "--generations", "4")
    process = tritium(tmp_path, *args)
    journal = tmp_path / "results.json.journal"
    for _ in range(600):  # the signal may take back a record that is being written: the one before it stays
        if journal.exists() and generations(journal) > 1:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("it ended before it could be interrupted")
    assert process.returncode == 130, err
    assert not store.load(tmp_path / "results.json").complete
    again = tritium(tmp_path, *args, "--resume")
    _, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    kept = store.load(tmp_path / "results.json")
    assert kept.complete
    assert any(note.startswith("resumed after ") for note in kept.notes)
    assert all(len(r.series[0].values) == 4 for r in kept)
    assert not journal.exists()

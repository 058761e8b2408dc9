"""`tritium reproduce`: what it lists, what it refuses before it begins, what it runs, and how two runs are compared."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from speed_tables import speed_table
from tritium.cli.projects import reproduce
from tritium.errors import ArgumentError
from tritium.perf.records import speed
from tritium.perf.records.speed import Entry, Figure, Host, Need

# A script as those of bench/: writes the table it finds beside itself, with the arguments it was given as a note.
SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from tritium.perf.records import speed
at = sys.argv.index("--results")
made = speed.load(Path(__file__).with_name("made.json"))
speed.save(replace(made, notes=(" ".join(sys.argv[1:at]),)), sys.argv[at + 1])
"""


@pytest.fixture(name="checkout")
def _checkout(tmp_path: Path) -> Path:
    """A checkout with one table, and a script that measures it again."""
    folder = tmp_path / "checkout"
    (folder / "docs" / "results").mkdir(parents=True)
    (folder / "bench").mkdir()
    (folder / "bench" / "results.py").write_text("")
    (folder / "bench" / "dense.py").write_text(SCRIPT)
    speed.save(speed_table(), folder / "docs" / "results" / "small.json")
    speed.save(speed_table(date="2026-02-03"), folder / "bench" / "made.json")
    return folder


@pytest.fixture(name="work")
def _work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def tritium(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tritium", "reproduce", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, encoding="utf-8")


def change(checkout: Path, **changes: object) -> None:
    speed.save(speed_table(**changes), checkout / "docs" / "results" / "small.json")


# ---- what there is


def test_tables_are_listed_with_machine_date_duration_and_command(checkout: Path) -> None:
    done = tritium(checkout / "docs")
    assert done.returncode == 0, done.stderr
    assert "small: A small table" in done.stdout
    assert "A CPU, 2 CPUs; 2026-01-02; about 90 s" in done.stdout
    assert "python bench/dense.py --quick" in done.stdout


def test_a_duration_that_is_not_known_is_not_made_up() -> None:
    assert "date not recorded; duration not recorded" in reproduce.listing([speed_table(minutes=None, date="")])


def test_outside_of_a_checkout_it_says_what_to_do(work: Path) -> None:
    done = tritium(work)
    assert done.returncode == 2
    assert "Change into one, or name it with --project DIR" in done.stderr
    done = tritium(work, "--project", str(work))
    assert done.returncode == 2
    assert "there is no docs/results beside bench/" in done.stderr


def test_an_unknown_name_is_told_with_the_nearest(checkout: Path, work: Path) -> None:
    done = tritium(work, "smal", "--project", str(checkout))
    assert done.returncode == 2
    assert "there is no table 'smal'; there are small. Did you mean 'small'?" in done.stderr


# ---- a run


def test_a_table_is_measured_again_and_shown_beside_the_old_one(checkout: Path, work: Path) -> None:
    before = (checkout / "docs" / "results" / "small.json").read_bytes()
    done = tritium(work, "small", "--project", str(checkout))
    assert done.returncode == 0, done.stderr
    assert "running: python bench/dense.py --quick; it took 90 s" in done.stderr
    new = speed.load(work / "small.json")
    assert (new.date, new.notes) == ("2026-02-03", ("--quick",))
    assert "here / recorded" in done.stdout
    assert "2026-01-02" in done.stdout
    assert "2026-02-03" in done.stdout
    assert "machines differ" not in done.stdout
    assert (checkout / "docs" / "results" / "small.json").read_bytes() == before


def test_nothing_is_written_over_unless_it_is_given_up(checkout: Path, work: Path) -> None:
    (work / "small.json").write_text("mine")
    done = tritium(work, "small", "--project", str(checkout))
    assert done.returncode == 2
    assert "--overwrite replaces it" in done.stderr
    assert (work / "small.json").read_text() == "mine"
    assert tritium(work, "small", "--project", str(checkout), "--overwrite").returncode == 0
    assert speed.load(work / "small.json").date == "2026-02-03"


def test_the_committed_file_is_never_written(checkout: Path) -> None:
    done = tritium(checkout / "docs" / "results", "small", "--overwrite")
    assert done.returncode == 2
    assert "is the committed results file" in done.stderr


def test_what_is_missing_is_said_before_anything_runs(checkout: Path, work: Path) -> None:
    needs = (Need("module", "no_such_module", "pip install it"), Need("file", "llama-bench-x", "build llama.cpp"))
    change(checkout, needs=needs)
    done = tritium(work, "small", "--project", str(checkout))
    assert done.returncode == 2
    assert "no_such_module is missing: pip install it" in done.stderr
    assert "llama-bench-x is missing: build llama.cpp" in done.stderr
    assert "running" not in done.stderr
    assert not (work / "small.json").exists()


def test_a_gpu_is_needed_where_the_table_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from tritium.perf.records import environment

    gpu = Need("gpu", "cuda", "an NVIDIA GPU is needed")
    for listed in ((), ("NVIDIA H200",)):
        monkeypatch.setattr(environment, "gpus", lambda listed=listed: listed)
        assert reproduce.has(gpu) == bool(listed)


def test_a_peer_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce.importlib.util, "find_spec", lambda name: None)
    (line,) = reproduce.absent_peers(speed_table())
    assert line.startswith("numpy is not installed: its figures will be missing")


def test_a_script_that_writes_nothing_is_an_error(checkout: Path, work: Path) -> None:
    (checkout / "bench" / "dense.py").write_text("raise SystemExit(3)")
    done = tritium(work, "small", "--project", str(checkout))
    assert done.returncode == 2
    assert "bench/dense.py ended with exit code 3 and wrote no figures" in done.stderr


def test_figures_of_a_script_that_misses_a_limit_are_shown(checkout: Path, work: Path) -> None:
    (checkout / "bench" / "dense.py").write_text(SCRIPT + "sys.exit('a limit is missed')\n")
    done = tritium(work, "small", "--project", str(checkout))
    assert done.returncode == 0
    assert "ended with exit code 1" in done.stderr
    assert "here / recorded" in done.stdout


# ---- a command is data


@pytest.mark.parametrize("word", ["$(touch owned)", "; touch owned", "`touch owned`", "a\nb"])
def test_no_shell_reads_the_arguments(checkout: Path, work: Path, word: str) -> None:
    change(checkout, command=("bench/dense.py", word))
    done = tritium(work, "small", "--project", str(checkout))
    assert done.returncode == 0, done.stderr
    assert speed.load(work / "small.json").notes == (word,)
    assert not (work / "owned").exists()


def test_a_script_that_is_elsewhere_is_not_run(checkout: Path, work: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.py"
    foreign.write_text("open('owned', 'w')")
    (checkout / "bench" / "link.py").symlink_to(foreign)
    for script in ("bench/link.py", "bench/absent.py"):
        with pytest.raises(ArgumentError, match="is no script of"):
            reproduce.script_of(checkout, speed_table(command=(script,)))
    change(checkout, command=("bench/link.py",))
    assert tritium(work, "small", "--project", str(checkout)).returncode == 2
    assert not (work / "owned").exists()


# ---- side by side


def test_on_the_same_machine_every_figure_is_compared() -> None:
    rows = (Entry(("add", "1"), {"tritium": Figure(20.0), "× numpy": Figure(1.0, 0.9, 1.1)}),)
    text = reproduce.comparison(speed_table(), speed_table(rows=rows))
    (time,) = [line for line in text.splitlines() if "tritium, µs" in line]
    (ratio,) = [line for line in text.splitlines() if "× numpy" in line]
    assert time.endswith("2.00")
    assert ratio.endswith("0.50")
    assert "5 recorded figures have no counterpart here" in text


def test_on_another_machine_only_ratios_are_compared() -> None:
    other = Host("Another CPU", 8)
    text = reproduce.comparison(speed_table(), speed_table(machine=other))
    assert "The machines differ: times do not compare, only ratios within one machine (×) do." in text
    assert "recorded: A CPU, 2 CPUs; tritium 0.1" in text
    assert "here:     Another CPU, 8 CPUs" in text
    rows = [line for line in text.splitlines() if line.startswith(("add", "mul"))]
    assert [line.endswith("1.00") for line in rows] == ["× numpy" in line for line in rows]


def test_runs_without_a_common_figure_say_so() -> None:
    rows = (Entry(("sub", "1"), {"tritium": Figure(20.0)}),)
    assert "no figure in common" in reproduce.comparison(speed_table(), speed_table(rows=rows))


def test_text_of_a_file_cannot_drive_the_terminal() -> None:
    evil = replace(speed_table(title="\x1b[2Jtitle"), machine=Host("\x1b]0;cpu"))
    assert "\x1b" not in reproduce.listing([evil])
    assert "\x1b" not in reproduce.comparison(evil, evil)

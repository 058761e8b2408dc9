"""`tritium memory`: the page it prints, the files it writes, and the exit code of the script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tritium.cli.root import cli
from tritium.errors import ArgumentError
from tritium.see.memory.file import events_csv, load

SCRIPT = """import sys
import tritium as tt
import keeper

x = tt.ones(1000)
keeper.kept.append(x + x)
print("said", sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keeper.py").write_text("kept = []")
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.delitem(__import__("sys").modules, "keeper", raising=False)
    return tmp_path / "script.py"


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, ["memory", *map(str, args)])


def test_the_page_follows_what_the_script_said(script: Path) -> None:
    done = run("script.py", "--leaks", "-x")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("said ['--leaks', '-x']\nMemory of script.py: ")
    assert "script.py:6" in done.output
    assert "Still alive at the end: 7.81 KiB" in done.output


def test_the_exit_code_passes_through(script: Path) -> None:
    script.write_text(SCRIPT + "sys.exit(7)\n")
    done = run("--leaks", script)
    assert done.exit_code == 7
    assert "Memory of" in done.output


def test_a_script_that_fails_still_gets_its_page(script: Path) -> None:
    script.write_text(SCRIPT + "1 / 0\n")
    done = run(script)
    assert done.exit_code == 2
    assert "ZeroDivisionError" in done.output
    assert "Memory of" in done.output


LEAKY = {
    "a list of the module": ("""
kept = []
def step(x):
    y = x @ x
    kept.append(y * 0.5)
for _ in range(100):
    step(tt.ones((32, 32)))
""", 6),
    "an attribute of an object": ("""
class Trainer:
    def __init__(self):
        self.history = {}
    def step(self, i):
        self.history[i] = tt.full((32, 32), float(i)) + 1.0
def main():
    trainer = Trainer()
    for i in range(100):
        trainer.step(i)
    return trainer
trainer = main()
""", 7),
    "an attribute of a class": ("""
class Layer:
    seen = []
    def __call__(self, x):
        y = tt.exp(x)
        Layer.seen.append(y)
        return y.sum()
for _ in range(100):
    Layer()(tt.ones((32, 32)))
""", 6),
    "a closure": ("""
def counter():
    cells = []
    def look(x):
        cells.append(x * 2.0)
    return look
look = counter()
for _ in range(100):
    look(tt.ones((32, 32)))
""", 6),
    "a module in sys.modules": ("""
import sys, types
sys.modules["planted"] = types.ModuleType("planted")
sys.modules["planted"].items = []
def main():
    for _ in range(100):
        sys.modules["planted"].items.append(tt.zeros((32, 32)))
main()
""", 8),
    "a list, before sys.exit": ("""
import sys
kept = []
for i in range(100):
    kept.append(tt.ones((32, 32)) + float(i))
sys.exit(0)
""", 6),
    "a thread": ("""
import threading
kept = []
def work():
    for i in range(100):
        kept.append(tt.ones((32, 32)) + float(i))
threading.Thread(target=work).start()
""", 7),
}  # fmt: skip


@pytest.mark.parametrize("what", LEAKY)
def test_the_line_that_grows_is_named_and_an_exit_code(script: Path, what: str) -> None:
    code, line = LEAKY[what]
    script.write_text("import tritium as tt\n" + code)
    done = run("--leaks", "script.py")
    assert done.exit_code == 1, done.output
    named = [line for line in done.output.splitlines() if line.startswith("leak: ")]
    assert named == [f"leak: script.py:{line}: 100 blocks alive, 400 KiB, one more each step"]
    advice = done.output.split("What would save memory\n\n")[1]
    assert re.match(rf"[34]\d\d KiB of what is alive \(high\): script.py:{line}: ", advice)
    assert run("script.py").exit_code == 0  # where nobody asked


def test_the_line_of_an_imported_module_is_named(script: Path, tmp_path: Path) -> None:
    (tmp_path / "keeper.py").write_text("kept = []\ndef keep(x):\n    kept.append(x * 2.0)\n")
    script.write_text(
        "import keeper\nimport tritium as tt\nfor _ in range(200):\n    keeper.keep(tt.ones((256, 256)))\n"
    )
    done = run("--leaks", "script.py")
    assert done.exit_code == 1
    assert "leak: keeper.py:3: 200 blocks alive, 50 MiB, one more each step" in done.output


SOUND = {
    "buffers that are written in place": """
buffers = [tt.zeros((32, 32)) for _ in range(16)]
for i in range(300):
    buffers[i % 16].add_(1.0)
""",
    "a ring": """
import collections
ring = collections.deque(maxlen=16)
for i in range(300):
    ring.append(tt.ones((32, 32)) * float(i))
""",
    "a cache that fills and stays": """
cache = {}
for i in range(300):
    if i % 40 not in cache:
        cache[i % 40] = tt.full((32, 32), float(i))
    cache[i % 40] + 1.0
""",
    "a batch that is collected and cleared": """
batch = []
for i in range(330):
    batch.append(tt.ones((32, 32)))
    if len(batch) == 50:
        tt.stack(batch).sum()
        batch.clear()
""",
    "a model and one step": """
layers = [tt.randn((32, 32), seed=i) for i in range(24)]
x = tt.ones((1, 32))
for w in layers:
    x = tt.relu(x @ w) + x
""",
    "variables of a function": """
def main():
    made = [tt.ones((32, 32)) for _ in range(100)]
    return tt.stack(made).sum()
main()
""",
    "one tensor": "x = tt.ones(100_000)",
    "nothing": "",
}


@pytest.mark.parametrize("what", SOUND)
def test_what_stays_as_large_as_it_is_is_no_leak(script: Path, what: str) -> None:
    script.write_text("import tritium as tt\n" + SOUND[what])
    done = run("--leaks", "script.py")
    assert done.exit_code == 0, done.output
    assert "leak: " not in done.output
    assert "of what is alive" not in done.output


@pytest.mark.parametrize(("end", "code"), [("1 / 0", 2), ("sys.exit(1)", 2), ("sys.exit('no')", 2), ("sys.exit(7)", 7)])
def test_one_is_the_verdict_on_leaks_and_never_the_code_of_the_program(script: Path, end: str, code: int) -> None:
    script.write_text(
        f"import tritium as tt, sys\nkept = []\nfor _ in range(99):\n    kept.append(tt.ones(999))\n{end}\n"
    )
    done = run("--leaks", "script.py")
    assert done.exit_code == code
    assert "leak: " not in done.output  # of a program that did not get to its end
    assert run("script.py").exit_code == (1 if end.startswith("sys.exit(") and code == 2 else code)


def test_files_hold_all_that_was_seen(script: Path, tmp_path: Path) -> None:
    done = run("--output", "m.json", "--output", "m.csv", "--top", 1, script)
    assert done.exit_code == 0
    found = load(tmp_path / "m.json")
    assert found.name == str(script)
    assert [(a.op, a.nbytes) for a in found.leaks] == [
        ("full", 4000),
        ("add", 4000),
    ]  # a variable of the script, and the module's
    assert (tmp_path / "m.csv").read_text() == events_csv(found.events)


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        (["m.xml"], "known are .json, .csv"),
        (["script.json"], "that is the script"),
        (["link.json"], "that is the script"),
        (["hard.json"], "that is the script"),
        (["m.json", "m.csv", "./m.json"], "named twice"),
        (["new/m.json"], "there is no such folder"),
    ],
)
def test_an_output_that_cannot_be_or_would_destroy_is_refused_before_the_script_runs(
    script: Path, tmp_path: Path, outputs: list[str], says: str
) -> None:
    named = script.rename(tmp_path / "script.json")
    (tmp_path / "link.json").symlink_to(named)
    (tmp_path / "hard.json").hardlink_to(named)
    before = sorted(tmp_path.iterdir())
    done = run(*(word for path in outputs for word in ("--output", path)), named)
    assert done.exit_code != 0
    assert says in done.output + str(done.exception)
    assert "said" not in done.output
    assert (named.read_text(), sorted(tmp_path.iterdir())) == (SCRIPT, before)


def test_a_file_is_written_where_it_was_named_though_the_script_goes_elsewhere(script: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    script.write_text("import os\nos.chdir('sub')\n")
    assert run("--output", "m.json", script).exit_code == 0
    assert (tmp_path / "m.json").exists()


def test_an_option_that_is_none_is_not_taken_for_a_script(script: Path) -> None:
    done = run("--jsn", "m.json", script)
    assert done.exit_code == 2
    assert re.search("No such option:? .?--jsn", done.output)  # click words it in two ways


def test_a_module_is_run(script: Path) -> None:
    done = run("-m", "script", "a")
    assert done.exit_code == 0
    assert "said ['a']" in done.output
    assert "Memory of script: " in done.output


def test_a_workload_is_tracked() -> None:
    done = run("--workload", "decode")
    assert done.exit_code == 0, done.output
    assert "Memory of decode: " in done.output
    assert "tritium/" in done.output


def test_a_name_cannot_command_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31mred.py"
    path.write_text("import tritium as tt\nx = tt.ones(1000)\n")
    done = run(path)
    assert done.exit_code == 0
    assert "\x1b" not in done.output


def test_what_cannot_be_run_is_an_error() -> None:
    assert isinstance(run("nothing.py").exception, ArgumentError)
    assert run().exit_code == 2

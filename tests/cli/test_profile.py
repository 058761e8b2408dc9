"""tritium profile, called as a person calls it: whose words are whose, what is written, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from made_profiles import LIMITS, everything, repetitions
from tritium.cli.profile import profile
from tritium.cli.root import cli
from tritium.errors import ArgumentError, FormatError, PackageError
from tritium.see.profile import profile as session
from tritium.see.profile.profile import Profile, load_profile
from tritium.see.trace import nvtx

SCRIPT = """
import sys
import tritium as tt

def main():
    x = tt.ones((8, 8))
    with tt.scope("work"):
        for _ in range(3):
            tt.exp(x)

print("said", __name__, sys.argv[1:], __file__)
main()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "this_machines_limits", lambda n: LIMITS)
    path = list(sys.path)
    yield tmp_path
    assert sys.path == path
    assert session._current is None


def run(*args: Any) -> Any:
    return CliRunner().invoke(profile, [str(a) for a in args])


def script(folder: Path, text: str = SCRIPT, name: str = "a.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_script_runs_as_alone_and_its_profile_is_printed_and_written(folder: Path) -> None:
    found = run(script(folder), "x", "y")
    assert found.exit_code == 0, found.output
    assert "said __main__ ['x', 'y']" in found.output
    assert "exp" in found.output
    assert "recording cost about" in found.output
    assert "written: profile.json" in found.output
    p = load_profile("profile.json")
    assert p.name == "a.py"
    assert {r.name: r.count for r in p.ops()}["exp"] == 3


def test_words_behind_the_script_are_its_own(folder: Path) -> None:
    found = run("-q", "--top", 3, script(folder), "--top", "9", "-q", "--", "--help", "--output=x", "show")
    assert found.exit_code == 0, found.output
    assert "['--top', '9', '-q', '--', '--help', '--output=x', 'show']" in found.output
    assert "recording cost" not in found.output


def test_an_option_before_the_script_that_is_none_is_refused(folder: Path) -> None:
    found = run("--tpo", "3", script(folder))
    assert found.exit_code == 2
    assert "No such option" in found.output
    assert "said" not in found.output


def test_a_module_is_run_with_its_words(folder: Path) -> None:
    script(folder, SCRIPT, "amodule.py")
    found = run("-m", "amodule", "--flag", "-m")
    assert found.exit_code == 0, found.output
    assert "said __main__ ['--flag', '-m']" in found.output
    assert load_profile("profile.json").name == "amodule"


def test_the_exit_code_of_a_script_is_passed_on_after_the_profile_was_written(folder: Path) -> None:
    found = run(script(folder, SCRIPT + "\nsys.exit(7)\n"))
    assert found.exit_code == 7
    assert Path("profile.json").exists()
    assert run("-q", script(folder, "import sys\nsys.exit()\n")).exit_code == 0


def test_an_exception_shows_the_traceback_of_the_script_alone(folder: Path) -> None:
    found = run("-q", script(folder, SCRIPT + "\n1 / 0\n"))
    assert found.exit_code == 1
    assert "ZeroDivisionError" in found.output
    assert "a.py" in found.output
    assert os.path.join("tritium", "cli") not in found.output
    assert "runpy" not in found.output
    p = load_profile("profile.json")
    assert {r.name for r in p.ops()} >= {"exp"}
    assert "the program ended with exit code 1; what ran before it is here" in p.timeline.notes


def test_threads_of_a_script_are_waited_for_and_profiled(folder: Path) -> None:
    late = "import threading, time\nimport tritium as tt\ndef late():\n    time.sleep(0.05)\n    tt.exp(tt.ones(3))\n"
    found = run("-q", script(folder, late + "threading.Thread(target=late).start()\n"))
    assert found.exit_code == 0, found.output
    assert {r.name for r in load_profile("profile.json").ops()} >= {"exp"}


def test_the_hook_of_a_script_shows_its_errors(folder: Path) -> None:
    hook = "import sys\nsys.excepthook = lambda kind, error, trace: print('hooked', kind.__name__)\n1 / 0\n"
    before = sys.excepthook
    try:
        found = run("-q", script(folder, hook))
    finally:
        sys.excepthook = before
    assert found.exit_code == 1
    assert "hooked ZeroDivisionError" in found.output
    assert "Traceback" not in found.output


def test_a_module_that_is_none_is_an_error_and_no_profile(folder: Path) -> None:
    found = run("-m", "no_such_module_at_all")
    assert isinstance(found.exception, ArgumentError)
    assert not Path("profile.json").exists()


def test_an_error_of_tritium_in_a_script_is_the_scripts_own(folder: Path) -> None:
    found = run("-q", script(folder, "import tritium as tt\ntt.add(tt.ones(2), tt.ones(3))\n"))
    assert found.exit_code == 1
    assert "ShapeError" in found.output


def test_interruption_keeps_the_profile(folder: Path) -> None:
    found = run("-q", script(folder, SCRIPT + "\nraise KeyboardInterrupt\n"))
    assert found.exit_code == 130
    assert Path("profile.json").exists()


def test_sys_path_begins_with_the_folder_of_the_script(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    script(inner, "VALUE = 7", "beside_it.py")
    path = script(inner, "import beside_it\nprint('value', beside_it.VALUE)\n")
    assert "value 7" in run("-q", path).output


def test_a_file_that_is_not_there_is_told_with_what_could_be_meant() -> None:
    found = run("none.py")
    assert found.exit_code == 2
    assert "there is no file none.py" in found.output
    assert "Did you mean 'show'" in run("shwo").output


def test_nothing_to_profile_says_what_to_give() -> None:
    found = run()
    assert found.exit_code == 2
    assert "--workload NAME" in found.output
    both = run("--workload", "decode", "a.py")
    assert "choose one" in both.output


@pytest.mark.parametrize("to", ["json", "csv", "markdown"])
def test_other_formats_are_printed_alone_but_for_the_script(to: str, folder: Path) -> None:
    found = CliRunner().invoke(
        profile, ["--format", to, str(script(folder, "import tritium as tt\ntt.exp(tt.ones(2))\n"))]
    )
    said = found.stdout
    if to == "json":
        assert json.loads(said)["kind"] == "tritium profile"
    assert "exp" in said
    assert "written: p" not in said
    assert "written" in found.stderr


def test_outputs_are_written_by_suffix_and_by_option(folder: Path) -> None:
    found = run("-q", "--output", "p.json.gz", "--output", "p.csv", "--chrome", "c.json", "--speedscope", "s.json", "--folded", "f.txt",
                script(folder))  # fmt: skip
    assert found.exit_code == 0, found.output
    assert {p.name for p in folder.iterdir()} == {"a.py", "p.json.gz", "p.csv", "c.json", "s.json", "f.txt"}
    for name in ("c.json", "s.json", "f.txt"):
        checked = run("check", name)
        assert checked.exit_code == 0, checked.output
    assert "a good chrome trace" in run("check", "c.json").output


def test_what_cannot_be_written_is_refused_before_the_script_runs(folder: Path) -> None:
    for wrong in ("p.xyz", "nowhere/p.json"):
        found = run("--output", wrong, script(folder))
        assert found.exit_code == 2
        assert "said" not in found.output


def test_the_script_is_never_written_over_and_no_file_twice(folder: Path) -> None:
    path = script(folder)
    (folder / "link").symlink_to(path)
    for wrong, said in (
        (("--chrome", path), "would be written over"), (("--folded", "link"), "would be written over"),
        (("--flame", "other.py"), "would be written over"),
        (("--output", "p.json", "--chrome", folder / "p.json"), "is named twice"),
        (("--chrome", "profile.json"), "is named twice"),
    ):  # fmt: skip
        found = run(*wrong, path)
        assert found.exit_code == 2
        assert said in found.output
        assert "said" not in found.output
    assert path.read_text(encoding="utf-8") == SCRIPT


def test_what_is_shown_or_compared_is_not_written_over() -> None:
    Profile(everything()).save("p.json")
    before = Path("p.json").read_bytes()
    assert run("show", "p.json", "--output", "./p.json").exit_code == 2
    assert run("diff", "p.json", "p.json", "--folded", "p.json").exit_code == 2
    assert Path("p.json").read_bytes() == before


def test_ranges_that_cannot_be_set_are_one_line_before_the_script_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvtx, "_is_installed", lambda package: False)
    found = run("--nvtx", script(folder))
    assert isinstance(found.exception, PackageError)  # the command line says it in one line and ends with 2
    assert "pip install nvtx" in str(found.exception)
    assert "said" not in found.output
    assert not Path("profile.json").exists()


FORKS = """
import os
import tritium as tt
tt.exp(tt.ones(3))
child = os.fork()
tt.log(tt.ones(3))
if child:
    os.waitpid(child, 0)
else:
    raise SystemExit(3)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_copy_of_the_script_prints_and_writes_nothing(folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tritium", "profile", str(script(folder, FORKS))]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | {"TRITIUM_PURE": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("recording cost about") == done.stdout.count("written: profile.json") == 1
    assert {r.name for r in load_profile("profile.json").ops()} >= {"exp", "log"}


def test_a_script_may_profile_itself(folder: Path) -> None:
    own = """
import tritium as tt
from tritium.see import start_session, stop_session
with tt.profile("mine", counters=None, ceilings=False, stacks="1ms") as p, tt.scope("inner"):
    tt.exp(tt.ones(3))
p.save("mine.json")
start_session(counters=None, ceilings=False)
stop_session()
try:
    stop_session()
except tt.errors.ArgumentError:
    print("none is left")
"""
    found = run("-q", "--stacks", "1ms", script(folder, own))
    assert found.exit_code == 0, found.output
    assert "none is left" in found.output
    assert {r.name for r in load_profile("mine.json").scopes()} == {"inner"}
    assert {r.name for r in load_profile("profile.json").scopes()} == {"inner"}
    assert "tritium profile" not in load_profile("mine.json").timeline.lanes


def test_a_bad_duration_is_told(folder: Path) -> None:
    found = run("--stacks", "often", script(folder))
    assert isinstance(found.exception, ArgumentError)
    assert "not a duration" in str(found.exception)


def test_stacks_and_limit_reach_the_profile(folder: Path) -> None:
    assert run("-q", "--stacks", "1ms", "--limit", "10min", "--capacity", 2, script(folder)).exit_code == 0
    t = load_profile("profile.json").timeline
    assert t.samples is not None
    assert (len(t), t.dropped > 0) == (2, True)


# ---- workloads


def test_a_workload_is_profiled_without_its_making() -> None:
    found = run("--workload", "decode 1x8x64", "--duration", "1ms")
    assert found.exit_code == 0, found.output
    p = load_profile("profile.json")
    (scope,) = [r for r in p.scopes() if r.kind == "scope"]
    assert scope.name == "decode 1x8x64"
    assert scope.count >= 3
    assert p.ops()


# ---- files


def test_show_prints_what_was_written_and_converts_it() -> None:
    Profile(everything()).save("p.json")
    assert run("show", "p.json").output == Profile(everything()).text() + "\n"
    assert run("show", "p.json", "--format", "csv").stdout_bytes.decode() == Profile(everything()).csv()
    assert "written: p.md" in run("show", "p.json", "--output", "p.md").output
    assert Path("p.md").read_text(encoding="utf-8") == Profile(everything()).markdown()


def test_show_puts_several_processes_on_one_clock() -> None:
    for name, began in (("a", 10**9), ("b", 2 * 10**9)):
        Profile(replace(everything(), name=name, began_ns=began, samples=None)).save(f"{name}.json")
    assert "written: both.html" in run("show", "a.json", "b.json", "--output", "both.html").output
    shown = run("show", "a.json", "b.json").output
    assert shown.startswith("a and b: 1 s, 12 spans on 4 lanes")
    Profile(everything()).save("old.json")
    refused = run("show", "a.json", "old.json")
    assert isinstance(refused.exception, ArgumentError)
    assert "no time of day" in str(refused.exception)


def test_sampled_stacks_begin_in_the_script(folder: Path) -> None:
    text = SCRIPT.replace("import sys", "import sys, time").replace("    x = ", "    time.sleep(0.05)\n    x = ")
    assert run("-q", "--stacks", "1ms", script(folder, text)).exit_code == 0
    samples = load_profile("profile.json").timeline.samples
    assert samples is not None
    first = {samples.frames[stack[0]] for stack in samples.stacks if any("(a.py:" in samples.frames[i] for i in stack)}
    assert {f.partition(" (")[0] for f in first} == {"<module>"}
    assert not [f for f in samples.frames if "click" in f or "runpy" in f]


def test_diff_names_the_operation_that_became_slower() -> None:
    times = {"matmul": (40, 100_000.0), "softmax": (40, 30_000.0)}
    for i in range(6):
        Profile(repetitions(i, 1, times)[0]).save(f"a{i}.json")
        Profile(repetitions(50 + i, 1, times | {"softmax": (40, 40_000.0)})[0]).save(f"b{i}.json")
    found = run("diff", "a0.json", "b0.json")
    assert found.exit_code == 0
    assert found.output.startswith("not clear (one profile a side; repeat each 5 times): softmax: +")
    more = [w for i in range(1, 6) for w in ("--also-before", f"a{i}.json", "--also-after", f"b{i}.json")]
    repeated = run("diff", "a0.json", "b0.json", *more).output
    assert repeated.startswith("softmax: +")
    assert "by 6 and 6 repetitions" in repeated
    assert run("diff", "a0.json", "b0.json", "--format", "markdown").output.startswith("`not clear")


def test_diff_writes_the_difference_as_a_picture_and_as_stacks_with_two_columns() -> None:
    for name, ns in (("a", 30_000.0), ("b", 40_000.0)):
        Profile(repetitions(1, 1, {"softmax": (4, ns)})[0]).save(f"{name}.json")
    found = run("diff", "a.json", "b.json", "--flame", "d.svg", "--folded", "d.folded")
    assert found.exit_code == 0, found.output
    assert found.output.endswith("written: d.svg\nwritten: d.folded\n")
    assert Path("d.svg").read_text(encoding="utf-8").startswith("<svg")
    way, before, after = Path("d.folded").read_text(encoding="utf-8").splitlines()[-1].split(" ")
    assert way.endswith("softmax")
    assert 0 < int(before) < int(after)
    assert run("check", "d.folded").exit_code == 0


def test_check_counts_what_it_checked() -> None:
    p = Profile(everything())
    for path, said in (
        (p.export("s.speedscope.json"), f"a good speedscope, {len(p.timeline)} spans"),
        (p.export("c.trace.json"), f"a good chrome trace, {len(p.timeline)} spans"),
    ):
        assert said in run("check", path).output
    Path("one.folded").write_text("a;b 3\n", encoding="utf-8")
    assert run("check", "one.folded").output.endswith("a good folded stacks, 1 line\n")


def test_check_tells_faults_and_fails() -> None:
    Path("bad.json").write_text('{"traceEvents": [{"ph": "X"}]}', encoding="utf-8")
    found = run("check", "bad.json")
    assert found.exit_code == 1
    assert "no good chrome trace" in found.output


def test_a_file_that_is_no_profile_is_one_line() -> None:
    Path("x.json").write_text("{}", encoding="utf-8")
    found = run("show", "x.json")
    assert isinstance(found.exception, FormatError)
    assert "not a profile of tritium" in str(found.exception)
    assert run("show", "none.json").exit_code == 2


def test_help_tells_the_commands() -> None:
    said = CliRunner().invoke(cli, ["profile", "--help"]).output
    assert all(word in said for word in ("diff", "show", "check", "SCRIPT [ARGS]…", "--stacks"))


def test_from_a_shell_the_exit_code_and_the_output_are_the_scripts(folder: Path) -> None:
    path = script(folder, "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit('bye')\n")
    command = [sys.executable, "-m", "tritium", "profile", "-q", str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | {"TRITIUM_PURE": "1"}, check=False
    )
    assert (done.returncode, done.stdout) == (1, "out\n")
    assert done.stderr.splitlines()[:2] == ["err", "bye"]

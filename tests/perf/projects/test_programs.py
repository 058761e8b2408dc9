"""Programs as contenders: interleaved, counted exactly, failures named; hyperfine's options and formats."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import made_programs
from tritium.errors import ArgumentError
from tritium.perf.gate.verdict import Rules
from tritium.perf.projects import programs, timing
from tritium.perf.projects.programs import (
    Parameter,
    Program,
    combinations,
    measure_programs,
    run_once,
    scan,
    substituted,
    words_of,
)

QUICK = Program(("true",))


def logged(path: Path, text: str) -> Program:
    return Program(f"echo {text} >> {path}")


def test_rounds_are_interleaved_and_counted_exactly(tmp_path: Path) -> None:
    log = tmp_path / "log"
    results = measure_programs({("time", n): logged(log, n) for n in "abc"}, runs=17, warmup=2)
    names = log.read_text().split()
    assert names[:6] == list("aabbcc")  # warm-up, which does not count
    rounds = ["".join(names[i : i + 3]) for i in range(6, len(names), 3)]
    assert len(rounds) == 17
    assert {"".join(sorted(r)) for r in rounds} == {"abc"}
    assert len(set(rounds)) > 2
    assert all(len(run.series[0].flat) == 17 and len(run.series[0].values) == 15 for run in results)
    assert results.plan.gates
    assert not measure_programs({("time", "a"): QUICK}, runs=3).plan.gates


def test_what_surrounds_a_run_is_run_and_not_timed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    around = {n: f"sleep 0.02; echo {n} >> {log}" for n in ("setup", "prepare", "conclude", "cleanup")}
    measure_programs({("time", "a"): Program("true", **around)}, runs=2)  # type: ignore[arg-type]
    assert log.read_text().split() == ["setup", *["prepare", "conclude"] * 3, "cleanup"]
    with pytest.raises(ArgumentError, match=r"--prepare 'exit 2' ended with exit code 2"):
        measure_programs({("time", "a"): Program("true", prepare="exit 2")}, runs=2)


def test_a_program_that_fails_is_named_and_the_others_go_on() -> None:
    results = measure_programs({("time", "bad"): Program("echo why >&2; exit 3"), ("time", "good"): QUICK}, runs=2)
    bad, good = results
    assert (bad.status, bad.reason) == ("failed", "it ended with exit code 3; it said: why")
    assert good.status == "ok"
    for accepted in (None, frozenset({0, 3})):
        ignored = measure_programs({("time", "bad"): Program("exit 3", "sh", accepted=accepted)}, runs=2)
        assert (ignored.runs[0].status, ignored.runs[0].facts["exit_codes"]) == ("ok", [3])


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    results = measure_programs(
        {("time", "a"): Program(f"(sleep 5; touch {tmp_path}/late) & sleep 5")}, runs=2, timeout_s=0.1
    )
    assert results.runs[0].status == "timed out"
    assert not (tmp_path / "late").exists()
    with pytest.raises(ArgumentError, match="no program 'no-such-program'"):
        run_once(Program("no-such-program"))


def test_cpu_time_and_memory_are_those_of_the_program() -> None:
    code = "x = bytearray(300_000_000); print(len(x))"
    outcome = run_once(Program((sys.executable, "-S", "-c", code)))
    assert outcome.rss_bytes > 250e6
    assert outcome.cpu > 0
    small = measure_programs({("time", "a"): QUICK}, runs=2).runs[0].of("rss_bytes")
    assert small is not None
    assert small.kind == "not measured"  # below that of this process, which the system counts first


@pytest.mark.parametrize(
    ("line", "shell", "words"),
    [
        ("sort -u 'a b'", "auto", ["sort", "-u", "a b"]),
        ("sort a | uniq", "auto", ["sh", "-c", "sort a | uniq"]),
        ("X=1 env", "auto", ["sh", "-c", "X=1 env"]),
        ("a | b", "none", ["a", "|", "b"]),
        ("a b", "bash", ["bash", "-c", "a b"]),
        ("a b", "bash --norc -c", ["bash", "--norc", "-c", "a b"]),
    ],
)
def test_a_shell_runs_what_needs_one(line: str, shell: str, words: list[str]) -> None:
    assert words_of(line, shell) == words
    for wrong in ("", "'"):
        with pytest.raises(ArgumentError):
            words_of(wrong, "none")


def test_parameters_replace_names() -> None:
    assert scan("n", "1", "4").values == ("1", "2", "3", "4")
    assert scan("n", "0.5", "1", "0.25").values == ("0.50", "0.75", "1.00")
    assert scan("n", "3", "1", "-1").values == ("3", "2", "1")
    for wrong in (("1", "0", "1"), ("a", "2", "1"), ("0", "1", "0"), ("0", "1e9", "1"), ("nan", "1", "1")):
        with pytest.raises(ArgumentError, match="parameter n"):
            scan("n", *wrong)
    values = combinations([Parameter("a", ("1", "2")), Parameter("b", ("x",))])
    assert [substituted("run {a} {b} {c}", v) for v in values] == ["run 1 x {c}", "run 2 x {c}"]


def test_a_slower_program_is_found_and_exports_are_hyperfines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_programs.use(monkeypatch)
    for name, seconds in (("a", 0.002), ("b", 0.02)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.sh").write_text(made_programs.script(seconds)["run.sh"])
    pair = {("time", arm): Program(made_programs.RUN, folder=tmp_path / arm.strip("=|")) for arm in ("a", "=b|")}
    results = measure_programs(pair, runs=15)
    suite = timing.judged(results, Rules(metrics=("wall",)))
    assert [(v.arm, v.outcome) for v in suite.verdicts] == [("=b|", "SLOWER")]
    assert (suite.verdicts[0].severity or 0) > 1
    page = timing.page(results, suite)
    assert "SLOWER" in page
    assert "times as long as a" in page
    exported = json.loads(timing.as_json(results))["results"]
    assert [len(row["times"]) for row in exported] == [15, 15]
    assert {"command", "mean", "stddev", "median", "user", "system", "min", "max", "times", "exit_codes"} <= set(
        exported[0]
    )
    assert timing.as_csv(results).splitlines()[2].startswith("'=b|,")
    assert "| `=b¦` |" in timing.as_markdown(results, suite) or "`=b\\|`" in timing.as_markdown(results, suite)


def test_an_interrupt_keeps_the_rounds_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = 0

    def interrupted(program: Program, output: int = subprocess.DEVNULL, timeout_s: float = 1.0) -> programs.Outcome:
        nonlocal runs
        runs += 1
        if runs > 6:
            raise KeyboardInterrupt
        return programs.Outcome(0.1, 0.1, 0.0, 1e9, 0)

    monkeypatch.setattr(programs, "run_once", interrupted)
    results = measure_programs({("time", "a"): QUICK}, runs=20)
    assert (results.complete, len(results.runs[0].series[0].flat)) == (False, 5)

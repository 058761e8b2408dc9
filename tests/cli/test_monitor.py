"""`tritium monitor` as a shell sees it: what is printed, sent and kept, the exit codes, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from made_results import results
from tritium.cli.root import cli
from tritium.machine.files import lock
from tritium.perf.records.run import PLANS, Results
from tritium.perf.store import baseline, results as store
from tritium.perf.store.history import History
from tritium.see.monitor.alerts import Webhook, read_alerts

CASES = {"matmul": 1e-3, "add": 1e-4, "softmax": 5e-4, "bitlinear": 2e-3, "sum": 3e-5}


def made(seed: int, **slower: float) -> Results:
    cases = {name: s * slower.get(name, 1.0) for name, s in CASES.items()}
    return replace(results(cases, seed=seed, generations=8), plan=PLANS["quick"])


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path / "cache"))
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Rounds that are given instead of measured; gives how measuring was asked for."""

    def rounds(*given: Any) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []
        left = list(given)

        def measurement(suite: Any, before: Any, **how: Any) -> Callable[[int], Results]:
            asked.append({"suite": suite, "baseline": before, **how})

            def measure(_: int) -> Results:
                found = left.pop(0)
                if isinstance(found, Exception):
                    raise found
                return found() if callable(found) else found

            return measure

        monkeypatch.setattr("tritium.see.monitor.monitor.measurement", measurement)
        return asked

    return rounds


def called(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["monitor", "--every", "10ms", *arguments])


def test_a_round_for_cron_leaves_with_a_code_that_tells_whether_something_is_open(measuring: Any) -> None:
    measuring(made(1), made(2), made(3, add=1.3), made(4, add=1.3), made(5))
    codes = [called("--times", "1").exit_code for _ in range(5)]
    assert codes == [0, 0, 1, 1, 0]


def test_rounds_and_alerts_are_printed(measuring: Any) -> None:
    measuring(made(1), made(2, add=1.1), RuntimeError("no\x1b[31mmemory"))
    done = called("--times", "3")
    assert "is the baseline from now on" in done.output
    assert re.search(r"round 2 .*1 SLOWER, .*; 1 alert", done.output)
    assert "WARNING: add [tritium] wall: +" in done.output
    assert "round 3 (0 s) failed: RuntimeError: no\\x1b[31mmemory" in done.output
    assert "\x1b[31mm" not in done.output
    assert done.exit_code == 1


def test_the_line_of_a_round_tells_what_is_still_open(measuring: Any) -> None:
    measuring(made(1), made(2, add=1.3, sum=1.3), made(3, add=1.3, sum=1.3), made(4))
    lines = [line for line in called("--times", "4").output.splitlines() if " round " in line and "every" not in line]
    opened = [int(m[1]) if (m := re.search(r"; open: (\d+)", line)) else 0 for line in lines]
    assert opened == [0, 2, 2, 0]


def test_thresholds_are_read_as_everywhere_and_said(measuring: Any) -> None:
    measuring(made(1), made(2, add=1.1), made(3))
    done = called("--times", "2", "--warn", "20.0", "--critical", "0.4")
    assert "--warn 20.0 is read as 20 %" in done.output
    assert "--critical 0.4 is read as 40 %" in done.output
    assert done.exit_code == 0


@pytest.mark.parametrize(
    "bad",
    [
        ("--warn", "20%", "--critical", "10%"), ("--warn", "-1"), ("--every", "soon"), ("--threshold", "0"), ("--times", "0"),
        ("--webhook", "file:///etc/passwd"), ("--command", "'"), ("--command", ""), ("--baseline", "never-made"),
        ("--port", "70000"), ("--suite", "qick"),
    ],
)  # fmt: skip
def test_wrong_usage_is_told_before_anything_is_measured(bad: tuple[str, ...]) -> None:
    done = called("--times", "1", *bad)
    assert done.exit_code in (1, 2)  # the group's main makes 2 of an error of ours
    assert done.exit_code == 2 or type(done.exception).__name__ == "ArgumentError"


def test_an_absolute_limit_is_kept_beside_the_relative_one(measuring: Any) -> None:
    measuring(made(1))
    done = called("--times", "1", "--threshold", "1.5ms")
    assert "CRITICAL: bitlinear [tritium] wall: a call takes 2" in done.output
    assert done.exit_code == 1


def test_alerts_go_to_the_file_and_the_command(measuring: Any, tmp_path: Path) -> None:
    measuring(made(1), made(2, add=1.3))
    code = "import sys; open('got', 'a').write(sys.stdin.read())"
    (tmp_path / "run.py").write_text(code)
    called("--times", "2", "--file", "alerts.jsonl", "--command", f"{sys.executable} run.py", "--log")
    (alert,) = read_alerts("alerts.jsonl")
    assert (alert.event, alert.standing.case) == ("raised", "add")
    assert json.loads(Path("got").read_text())["standing"]["case"] == "add"


def test_a_sink_that_fails_does_not_stop_the_rounds(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritium.see.monitor.alerts.Webhook", partial(Webhook, sleep=lambda _: None))
    measuring(made(1), made(2, add=1.3), made(3, add=1.3))
    done = called("--times", "3", "--command", "/no/such/program", "--webhook", "http://127.0.0.1:1/secret/")
    assert done.output.count("round") == 3 + 1  # and the line at the start
    assert "secret" not in done.output


def test_a_baseline_by_name_or_file_is_what_is_judged_by(measuring: Any) -> None:
    baseline.create("v1", made(1))
    store.save(made(1), "old.json")
    for name in ("v1", "old.json"):
        asked = measuring(made(2, add=1.3))
        assert called("--times", "1", "--baseline", name, "--threads", "2").exit_code == 1
        assert asked[0]["baseline"].cases == made(1).cases
        assert asked[0]["threads"] == 2


def test_forget_begins_anew(measuring: Any) -> None:
    measuring(made(1), made(2, add=1.3), made(3, add=1.3), made(4, add=1.3))
    assert [called("--times", "1").exit_code for _ in range(2)] == [0, 1]
    done = called("--times", "1", "--forget")
    assert "is the baseline from now on" in done.output
    assert called("--times", "1").exit_code == 0


def test_rounds_are_kept_in_the_history_when_it_is_asked_for(measuring: Any) -> None:
    measuring(made(1), made(2), made(3))
    called("--times", "2", "--history")
    called("--times", "1")
    with History() as history:
        assert len(history.runs()) == 2


def test_two_watches_do_not_share_a_state(measuring: Any, tmp_path: Path) -> None:
    measuring(made(1))
    with lock(tmp_path / "state" / ".lock"):
        done = called("--times", "1", "--state", "state")
    assert "has held the lock" in str(done.exception)


def test_prometheus_is_told_while_it_runs(measuring: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pages: list[str] = []

    def second() -> Results:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/metrics")
        pages.append(connection.getresponse().read().decode())
        return made(2)

    measuring(made(1), second)
    done = called("--times", "2", "--port", str(port))
    assert f"http://127.0.0.1:{port}/metrics" in done.output
    assert "tritium_monitor_rounds 1.0" in pages[0]
    assert "tritium_sample_info" in pages[0]
    assert 'tritium_wall_seconds{case="add"' in pages[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_real_process_cleanly(number: int, tmp_path: Path) -> None:
    """While it measures: the workers end with it, and the exit code is 0."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    child = subprocess.Popen(
        [sys.executable, "-m", "tritium", "monitor", "--every", "1h", "--state", "state"], stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert child.stderr is not None
        for line in child.stderr:
            if line.startswith("watching"):
                break
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, out + err
    assert "stopped" in err
    assert "Traceback" not in err

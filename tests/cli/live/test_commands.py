"""The commands of the live view, called as a person calls them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from tritium.cli.root import cli
from tritium.see.live import snapshot
from tritium.see.live.snapshot import Snapshot


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITIUM_RUNTIME", str(tmp_path / "run"))
    return snapshot.folder(make=True)


def write(place: Path, **fields: int) -> None:
    name = "a\x1b[31mb"
    snapshot.write(
        Snapshot(os.getpid(), name, "1", 100.0, 200.0, 1.0, 1.0, 3 << 20, 0, 0, 0, {"add": 5}, **fields), place
    )  # fmt: skip


def test_top_says_how_to_begin(place: Path) -> None:
    shown = CliRunner().invoke(cli, ["top", "--times", "1"])
    assert shown.exit_code == 0, shown.output
    assert "TRITIUM_LIVE=1" in shown.output


def test_top_lists_processes_and_no_name_acts(place: Path) -> None:
    write(place, running=1, requests_failed=2)
    shown = CliRunner().invoke(cli, ["top", "--times", "1"])
    assert str(os.getpid()) in shown.output
    assert "3.0 MiB" in shown.output
    assert "1 run, 0 wait, 2 failed" in shown.output
    assert "\x1b" not in shown.output


def test_top_prints_json_by_line(place: Path) -> None:
    write(place)
    lines = CliRunner().invoke(cli, ["top", "--times", "2", "--every", "10ms", "--json"]).output.splitlines()
    assert [json.loads(line)["processes"][0]["pid"] for line in lines] == [os.getpid()] * 2


def heed_interrupts() -> None:
    """Undo what shells do to programs in the background: SIGINT is ignored there, and inherited so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_dashboard_serves_until_it_is_stopped(place: Path) -> None:
    command = [sys.executable, "-m", "tritium", "dashboard"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    ) as running:
        try:
            assert running.stdout is not None
            address = running.stdout.readline().split()[1]
            assert "Tritium, live" in urllib.request.urlopen(address, timeout=20).read().decode()
            running.send_signal(signal.SIGINT)
            assert running.wait(20) == 0
        finally:
            running.kill()

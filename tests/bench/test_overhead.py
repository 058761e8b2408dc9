"""The benchmark of recording and tracking in its shortest form: that it runs, keeps raw values and judges by its limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def _from_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


@pytest.mark.slow
def test_a_short_run_prints_every_figure_beside_its_limit(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "overhead.py"), "--rounds", "3", "--processes", "1", "--only", "add"]
    done = subprocess.run([*command, "--json", str(tmp_path / "out.json")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 or "a limit is missed" in done.stderr, done.stderr
    for figure in ("a span costs", "limit 0.1%", "recording on", "memory on", " 5%", "10%"):
        assert figure in done.stdout
    kept = json.loads((tmp_path / "out.json").read_text())
    assert {c["what"] for c in kept["cells"]} == {"recording on", "memory on"}
    assert all(len(c["on_ns"]) == len(c["off_ns"]) == 3 for c in kept["cells"])
    assert len(kept["off"][0]["never"]) == len(kept["off"][0]["off"]) == 3


def test_a_figure_is_judged_by_its_interval() -> None:
    from overhead import verdict

    assert verdict(-0.01, 0.04, 0.05) == "met"
    assert verdict(0.01, 0.06, 0.05) == "unsure"
    assert verdict(0.06, 0.09, 0.05) == "MISSED"


def test_a_short_call_has_no_limit() -> None:
    from overhead import Cell, line

    short = Cell("recording on", "add", 8, [5e3] * 9, [6e3] * 9)
    slow = Cell("recording on", "add", 80, [5e4] * 9, [6e4] * 9)
    assert line(short)[1] == ""
    assert line(slow)[1] == "MISSED"
    assert "+20.00%" in line(slow)[0]

"""Programs that are not run: `sh run.sh` takes as long as the file says, to a thousandth, whatever else the machine does."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tritium.perf.projects import programs
from tritium.perf.projects.programs import Outcome, Program

RUN = "sh run.sh"


def script(seconds: float) -> dict[str, str]:
    """Return the file of a program that takes so long."""
    return {"run.sh": f"sleep {seconds}\n"}


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the running of programs."""
    rng = random.Random(0)

    def run_once(program: Program, output: Any = subprocess.DEVNULL, timeout_s: float = 600.0) -> Outcome:
        word, value = ((program.folder or Path.cwd()) / "run.sh").read_text().split()
        if word == "exit":
            return Outcome(0.001, 0.0, 0.0, 1e9, int(value), "why")
        wall = float(value) * (1 + rng.gauss(0, 0.001))
        return Outcome(wall, wall / 2, wall / 4, 1e9, 0)

    monkeypatch.setattr(programs, "run_once", run_once)

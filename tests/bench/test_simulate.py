"""The simulation: its noise is what it says, its gate takes the planned course, and a small run prints every table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def _from_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


@pytest.mark.parametrize("family", ["normal", "log-normal", "bimodal"])
def test_noise_has_the_spread_it_says(family: str) -> None:
    from noise import FAMILIES, log_ratios

    (kind,) = (f for f in FAMILIES if f.name == family)
    values = log_ratios(np.random.default_rng(0), kind, 4000, (15, 3), 0.02, effect=0.05)
    means = values.mean(axis=2)
    assert means.std() == pytest.approx(0.02, rel=0.02)
    assert means.mean() == pytest.approx(0.05, abs=0.0005)


@pytest.mark.parametrize("family", ["drifting", "autocorrelated"])
def test_noise_in_time_favours_neither_arm(family: str) -> None:
    from noise import FAMILIES, log_ratios

    (kind,) = (f for f in FAMILIES if f.name == family)
    means = log_ratios(np.random.default_rng(0), kind, 4000, (15, 3), 0.02).mean(axis=2)
    assert means.mean() == pytest.approx(0, abs=0.0005)
    assert means.std() > 0.0201


class Fresh:
    """Fresh measurements of a fixed ratio; counts how often each test asked."""

    def __init__(self, *ratios: float) -> None:
        self.ratios, self.asked = ratios, [0] * len(ratios)

    def __call__(self, test: int) -> Any:
        self.asked[test] += 1
        return values(self.ratios[test], self.asked[test])


def values(ratio: float, seed: int = 0, sd: float = 0.002) -> Any:
    return np.log(ratio) + np.random.default_rng(seed).normal(0, sd, (15, 3))


def test_what_is_slower_twice_is_slower() -> None:
    from simulate import Gate

    fresh = Fresh(1.1, 1.0)
    _, said = Gate([values(1.1), values(1.0)], fresh).run()
    assert [j.outcome for j in said] == ["SLOWER", "EQUIVALENT"]
    assert fresh.asked == [1, 0]


def test_what_is_slower_once_is_not() -> None:
    from simulate import Gate

    first, said = Gate([values(1.1)], Fresh(1.0)).run()
    assert first[0].outcome == "SLOWER"
    assert said[0].outcome == "EQUIVALENT"


def test_what_is_open_is_measured_twice_more_at_most() -> None:
    from simulate import Gate

    class Wild(Fresh):
        def __call__(self, test: int) -> Any:
            self.asked[test] += 1
            return values(1.0, self.asked[test], 0.4)

    wild = Wild(1.0, 1.0)
    _, said = Gate([values(1.2, 7, 0.4), values(1.0)], wild).run()
    assert [j.outcome for j in said] == ["INCONCLUSIVE", "EQUIVALENT"]
    assert wild.asked == [2, 0]


@pytest.mark.slow
def test_a_small_run_prints_every_table_and_keeps_counts(tmp_path: Path) -> None:
    kept = tmp_path / "out.json"
    command = [sys.executable, str(BENCH / "simulate.py"), "--quick", "--seed", "1", "--json", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n### ") == 6
    found = json.loads(kept.read_text())
    assert found["seed"] == 1
    assert {c["family"] for c in found["unchanged"]} == {
        "normal",
        "log-normal",
        "bimodal",
        "drifting",
        "autocorrelated",
    }
    assert all(c["alarms"] <= c["suites"] for c in found["unchanged"])

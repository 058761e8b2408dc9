"""Bisection with measured times made up: right, with few builds, and never sure of the wrong commit."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from tritium.errors import ArgumentError, BuildError
from tritium.perf.projects.bisect import LOOK, LOOKS, Bisection, bisect


class Made:
    """Commits are numbers; from `culprit` on they are slower."""

    def __init__(
        self, culprit: int, slow: float = 0.08, sd: float = 0.01, seed: int = 0, broken: Sequence[int] = ()
    ) -> None:
        self.culprit, self.slow, self.sd, self.broken = culprit, slow, sd, broken
        self.rng = random.Random(seed)
        self.prepared: list[str] = []
        self.released: list[str] = []

    def prepare(self, commit: str) -> None:
        self.prepared.append(commit)
        if int(commit) in self.broken:
            raise BuildError("it does not compile")

    def release(self, commit: str) -> None:
        self.released.append(commit)

    def measure(self, commits: Sequence[str], rounds: int, look: int) -> list[list[float]]:
        rows = []
        for _ in range(rounds):
            drift = self.rng.gauss(0, 0.2)  # of the machine: the same for all in a round
            rows.append([drift + self.time(int(c)) for c in commits])
        return rows

    def time(self, commit: int) -> float:
        late = self.rng.expovariate(2) if self.rng.random() < 0.05 else 0.0
        return math.log1p(self.slow) * (commit >= self.culprit) + self.rng.gauss(0, self.sd) + late


def search(probe: Made, commits: int = 64) -> Bisection:
    return bisect([str(i) for i in range(commits)], probe)


def test_8_percent_in_64_commits_take_8_builds_19_times_in_20() -> None:
    right = 0
    for seed in range(20):
        probe = Made(random.Random(seed).randrange(1, 64), sd=0.02, seed=seed)
        outcome = search(probe)
        right += outcome.culprit == str(probe.culprit) and outcome.builds <= 8
        assert outcome.builds == len(probe.prepared)
        assert set(probe.prepared[2:]) == set(probe.released)
    assert right >= 19


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_clear_slow_down_is_found_wherever_it_is(data: st.DataObject) -> None:
    commits = data.draw(st.integers(2, 40))
    culprit = data.draw(st.integers(1, commits - 1))
    outcome = search(Made(culprit, slow=0.3, seed=data.draw(st.integers(0, 99))), commits)
    assert outcome.culprit == str(culprit)
    assert outcome.builds <= 2 + math.ceil(math.log2(commits))
    assert 1.1 < outcome.ratio < 1.6


def test_without_a_slow_down_there_is_nothing_to_search() -> None:
    for slow in (0.0, -0.1, 0.01):
        outcome = search(Made(20, slow=slow))
        assert (outcome.culprit, outcome.suspects, outcome.builds) == ("", (), 2)
        assert "nothing to search" in outcome.reason


def test_a_commit_that_cannot_be_built_is_passed_over() -> None:
    outcome = search(Made(10, slow=0.2, broken=[31, 32]))
    assert outcome.culprit == "10"
    near = search(Made(32, slow=0.2, broken=[30, 31, 32, 33]))
    assert (near.culprit, near.suspects) == ("", tuple(map(str, range(30, 35))))
    assert [t.reason for t in near.tests if t.side == "unknown"] == ["it does not compile"] * 4


def test_noise_leaves_it_undecided_and_never_wrong() -> None:
    for seed in range(5):
        probe = Made(40, slow=0.05, sd=0.12, seed=seed)
        outcome = search(probe)
        assert outcome.culprit in ("", "40")
        assert all(t.rounds <= LOOK * LOOKS for t in outcome.tests)
        assert not outcome.suspects or "40" in outcome.suspects


def test_a_range_of_one_commit_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a good one and a later bad one"):
        bisect(["a"], Made(1))

"""The benchmark of bisections on few searches: drawn times, a repository that is made, and a summary that counts right."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_repository import git

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def _from_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def test_searches_of_drawn_times_are_right_with_little_noise() -> None:
    import bisection

    counts = bisection.summary(list(bisection.simulated(6, 0.01)))
    assert (counts["right"], counts["wrong"], counts["right_in_8_builds"]) == (6, 0, 6)
    loud = bisection.summary(list(bisection.simulated(2, 0.5)))
    assert (loud["right"], loud["wrong"]) == (0, 0)


def test_a_repository_is_slower_from_one_commit_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bisection

    monkeypatch.setattr(bisection, "COMMITS", 5)
    names = bisection.repository(tmp_path, 3, 100)
    assert len(names) == 5
    counts = [int(git(tmp_path, "show", f"{name}:work.py").split("range(")[1].split(")")[0]) for name in names]
    assert counts == [100, 100, 100, 108, 108]

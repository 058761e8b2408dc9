"""Writers of model files, ceilings and tuned choices, killed at random moments: the attack of bench/attack_kills.py, a few times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import attack_kills


@pytest.mark.slow
def test_nothing_is_lost_or_left_behind_when_writers_are_killed(tmp_path: Path) -> None:
    outcomes = list(attack_kills.attack_all(tmp_path, 12, seed=1))
    assert [o.wrong for o in outcomes] == [[]] * len(outcomes)
    assert sum(o.kills for o in outcomes) == 12
    assert all(o.commits for o in outcomes)

"""The benchmark of saved programs: both ways compute the same, and are timed."""

from __future__ import annotations

from pathlib import Path

import pytest

import tritium as tt

BENCH = Path(__file__).parents[2] / "bench"


def test_both_ways_are_timed_and_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import saved

    name, path = "transformer, 1 block", str(tmp_path / "program")
    assert saved.time_first(name, "saved", path) == 0
    assert all(saved.time_first(name, way, path) > 0 for way in saved.WAYS)
    fn, x = saved.FUNCTIONS[name]()
    assert (tt.load_program(path)(x) == tt.compile(fn)(x)).all()

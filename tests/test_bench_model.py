"""How fast a model is: the statistics with known numbers, the energy counter with files of our own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import tritium as tt
from tritium.bench_model import Energy, Measured, measure
from tritium.errors import ArgumentError


def test_an_interval_holds_the_typical_value() -> None:
    m = Measured("tokens/s", (9.0, 10.0, 11.0))
    low, high = m.interval
    assert m.median == 10
    assert low < 9.96 < high
    assert math.isclose(low * high, 990 ** (2 / 3), rel_tol=1e-9)  # symmetric about the geometric mean
    assert "3 samples" in str(m)


def test_one_sample_has_no_interval_and_none_says_why() -> None:
    assert "…" not in str(Measured("s", (1.0,)))
    assert str(Measured("J", (), "no counter")) == "not measured: no counter"


def counter(folder: Path, microjoules: int) -> None:
    made = folder / "intel-rapl:0"
    made.mkdir(exist_ok=True)
    (made / "energy_uj").write_text(str(microjoules))
    (made / "max_energy_range_uj").write_text("1000000000")


def test_energy_is_the_difference_of_two_readings(tmp_path: Path) -> None:
    counter(tmp_path, 5_000_000)
    energy = Energy.open(tmp_path)
    before = energy.read()
    counter(tmp_path, 7_500_000)
    assert energy.since(before) == 2.5
    energy.add(2.5, 2.0, 10)
    assert energy.row().samples == (0.25,)


def test_a_counter_that_ran_over_begins_again(tmp_path: Path) -> None:
    counter(tmp_path, 999_000_000)
    energy = Energy.open(tmp_path)
    before = energy.read()
    counter(tmp_path, 1_000_000)
    assert energy.since(before) == 2.0


def test_each_package_runs_over_by_itself(tmp_path: Path) -> None:
    for name, microjoules in (("intel-rapl:0", 999_000_000), ("intel-rapl:1", 10_000_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(str(microjoules))
        (tmp_path / name / "max_energy_range_uj").write_text("1000000000")
    energy = Energy.open(tmp_path)
    before = energy.read()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1000000")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("12000000")
    assert energy.since(before) == 4.0


@pytest.mark.parametrize(
    ("joules", "seconds", "says"),
    [(1.0, 0.1, "too short"), (0.0, 5.0, "did not move")],
)
def test_a_doubtful_reading_is_not_told(tmp_path: Path, joules: float, seconds: float, says: str) -> None:
    counter(tmp_path, 0)
    energy = Energy.open(tmp_path)
    energy.add(joules, seconds, 10)
    assert not energy.row().samples
    assert says in energy.row().absent


def test_without_a_counter_there_is_a_reason(tmp_path: Path) -> None:
    assert "no energy counter" in Energy.open(tmp_path).row().absent


def test_all_that_is_measured_is_there_with_its_samples() -> None:
    found = measure(tt.load, prefill=8, decode=4, repeat=3, batch=2)
    assert [len(found.rows[name].samples) for name in ("ready", "prefill", "first token", "decode")] == [3, 3, 3, 3]
    assert found.bandwidth > 0
    assert found.weight_bytes < tt.load().nbytes * 1.01
    assert "2 sequences together" in found.page()


def test_more_than_the_context_is_refused() -> None:
    with pytest.raises(ArgumentError, match="context holds 256"):
        measure(tt.load, prefill=200, decode=57)

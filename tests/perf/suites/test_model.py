"""How fast a model is: the statistics with known numbers, the energy with a meter of our own."""

from __future__ import annotations

import math
from typing import Any

import pytest

import tritium as tt
from tritium.errors import ArgumentError
from tritium.perf.meters.meter import EnergyMeter
from tritium.perf.meters.sensors import Sensor
from tritium.perf.suites.model import Measured, _decode, _joules, measure


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


def test_the_interval_is_students() -> None:
    low, high = Measured("s", (1.0, math.e**2)).interval
    assert math.isclose(math.log(high) - 1, 12.706, rel_tol=1e-3)  # t for one degree of freedom, and a spread of 1
    assert math.isclose(math.log(low) + math.log(high), 2, rel_tol=1e-9)


class Meter(EnergyMeter):
    """A meter that calls so many times and tells what it is told to."""

    def __init__(self, value: float | None, reason: str = "", **details: Any) -> None:
        self.answer = {"value": value, "kind": "measured" if value else "not measured", "reason": reason}
        self.details = {"domain": "package-0", **details}
        self.calls = 0

    def window(self, call: Any, *_: Any, **__: Any) -> dict[str, Any]:
        self.calls += 1
        call()
        return self.answer | {"source": "RAPL", "details": self.details}


def test_energy_of_prefill_and_decode_is_told_for_each_token_with_where_it_was_measured() -> None:
    rows = measure(tt.load, prefill=8, decode=4, repeat=3, batch=2, meter=Meter(40.0)).rows
    assert rows["prefill energy"].samples == (2.5,) * 3  # 40 J for 8 tokens of 2 sequences
    assert rows["decode energy"].samples == (5.0,) * 3  # 40 J for 4 tokens of 2 sequences
    assert rows["decode energy"].unit == "J/token, of package-0 (RAPL)"
    assert not [name for name in rows if "above idle" in name]  # nobody knows the idle power


def test_energy_above_idle_is_a_second_number() -> None:
    rows = measure(tt.load, prefill=8, decode=4, repeat=3, meter=Meter(40.0, above_idle_j=60.0, calls=3)).rows
    assert rows["decode energy"].median == 10.0
    assert rows["decode energy above idle"].median == 5.0  # 60 J in 3 calls of 4 tokens
    assert rows["prefill energy above idle"].median == 2.5


class Sensors:
    """A RAPL counter of 30 W, 10 of them while idle, with a clock that a call moves."""

    def __init__(self) -> None:
        self.now = self.joules = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.joules += 10 * seconds

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.joules += 30 * seconds


def test_idle_power_is_taken_off_readings_of_a_counter() -> None:
    world = Sensors()
    sensor = Sensor("rapl", "package-0", "package", "cpu", lambda: world.joules, range_j=1e6)
    meter = EnergyMeter(
        sensors=[sensor], background=False, clock=world.clock, sleep=world.sleep, busy=lambda: None, thermal_monitoring=False
    )  # fmt: skip
    rows = _joules("decode energy", lambda: world.work(0.05), 5, meter, windows=2)
    assert rows["decode energy"].median == pytest.approx(0.3)  # 30 W for 50 ms, 5 tokens
    assert rows["decode energy above idle"].median == pytest.approx(0.2)
    assert len(rows["decode energy"].samples) == 2


def test_energy_that_is_not_measured_says_why() -> None:
    meter = Meter(None, "virtual_machine: no counter")
    rows = measure(tt.load, prefill=8, decode=4, repeat=3, meter=meter).rows
    for phase in ("prefill", "decode"):
        assert str(rows[f"{phase} energy"]) == "not measured: virtual_machine: no counter"
    assert meter.calls == 2  # one for each phase: the next would say the same


def test_an_estimate_is_no_energy_of_a_model() -> None:
    meter = Meter(1.0)
    meter.answer["kind"] = "estimate"
    assert not measure(tt.load, prefill=8, decode=4, repeat=3, meter=meter).rows["decode energy"].samples


def test_all_that_is_measured_is_there_with_its_samples() -> None:
    found = measure(tt.load, prefill=8, decode=4, repeat=3, batch=2)
    assert [len(found.rows[name].samples) for name in ("ready", "prefill", "first token", "decode")] == [3, 3, 3, 3]
    assert found.bandwidth > 0
    assert found.weight_bytes < tt.load().nbytes * 1.01
    assert "batch 2" in found.page()


def test_what_is_decoded_is_what_a_greedy_reader_gets() -> None:
    model = tt.load()
    session, prompt = model.session(slots=2), model.tokenizer.encode("And God said")
    for slot in range(2):
        first = int(session.extend(slot, prompt).argmax())
    _decode(session, first, 7)
    found = model.generate(prompt, max_tokens=7, ignore_eos=True).tokens
    assert [tuple(session.tokens(slot)[len(prompt) :]) for slot in range(2)] == [found] * 2


def test_more_than_the_context_is_refused() -> None:
    with pytest.raises(ArgumentError, match="context is 256"):
        measure(tt.load, prefill=200, decode=57)

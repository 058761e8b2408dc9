"""The machine as the system describes it; and bytes and seconds for a person, right at the borders of the units."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tritium.machine.facts import (
    SIZES,
    TIMES,
    arm_name,
    bytes_text,
    processor,
    seconds_text,
    this_machine,
    usable_threads,
)
from tritium.perf import amounts


def test_the_fingerprint_has_the_processor_and_its_usable_threads() -> None:
    machine = this_machine()
    assert (machine.cpu, machine.usable) == (processor(), usable_threads())
    assert 1 <= machine.usable <= machine.cpus


def test_arm_cores_have_the_names_of_their_part_numbers() -> None:
    cpu = "processor\t: 0\nCPU implementer\t: {}\nCPU part\t: {}\n"
    assert arm_name(cpu.format("0x41", "0xd0c")).startswith("Neoverse-N1 (")
    assert arm_name(cpu.format("0x41", "0xd05") + cpu.format("0x41", "0xd0b")).startswith("Cortex-A55 and Cortex-A76 (")
    for unknown in (cpu.format("0x41", "0xfff"), cpu.format("0x48", "0xd0c"), cpu.format("0x41", "odd"), ""):
        assert arm_name(unknown) == ""


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [(0, "0 B"), (1, "1 B"), (1000, "1000 B"), (1023, "1023 B"), (1024, "1 KiB"), (1024000, "1000 KiB"),
     ((1 << 20) - 1, "1024 KiB"), (1 << 20, "1 MiB"), (1536 << 20, "1.5 GiB"), (5000 << 30, "5000 GiB")],
)  # fmt: skip
def test_bytes_have_the_largest_unit_that_is_not_above_them(nbytes: int, said: str) -> None:
    assert bytes_text(nbytes) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0 ns"), (4e-10, "0.4 ns"), (9.997e-7, "1000 ns"), (1.5e-6, "1.5 µs"), (0.9997, "1000 ms"), (1.0, "1 s"),
     (59.0, "59 s"), (90.0, "1.5 min")],
)  # fmt: skip
def test_seconds_have_the_largest_unit_that_is_not_above_them(seconds: float, said: str) -> None:
    assert seconds_text(seconds) == said


@given(st.integers(1, 10**15))
def test_bytes_read_back_within_half_a_percent(nbytes: int) -> None:
    value, unit = bytes_text(nbytes).split()
    assert "e" not in value
    assert float(value) * {u: one for one, u in SIZES}[unit] == pytest.approx(nbytes, rel=6e-3)


@given(st.floats(1e-9, 1e6))
def test_seconds_read_back_within_half_a_percent(seconds: float) -> None:
    value, unit = seconds_text(seconds).split()
    assert "e" not in value
    assert float(value) * {u: one for one, u in TIMES}[unit] == pytest.approx(seconds, rel=6e-3)


def test_pages_of_results_spell_them_alike() -> None:
    assert (amounts.bytes_text, amounts.seconds_text) == (bytes_text, seconds_text)

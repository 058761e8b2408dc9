"""Memory records: their timeline, and the figures that follow from others."""

from __future__ import annotations

import pytest

from memories import record
from tritium.see.memory.records import Event, Idle, change


def test_the_timeline_of_a_record_ends_at_its_current_bytes() -> None:
    m = record()
    course = m.timeline()
    assert course.values[-1] == m.devices[0].current
    assert course.at_ns.tolist() == [5, 6, 8]
    assert len(m.timeline("nowhere").values) == 0


def test_fragmentation_comes_from_the_free_blocks() -> None:
    assert record().idle.fragmentation == pytest.approx(1 / 3)
    assert Idle(0, 0, 0, (), 5).fragmentation == 0.0


def test_figures_that_follow_from_others() -> None:
    m = record()
    assert m.devices[0].net == 4 << 20
    assert m.use("nowhere") is None
    assert change(Event("hidden", 0, 5, 0, "", "", "")) == 0

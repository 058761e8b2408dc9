"""tracemalloc beside our own figures: started and stopped as it was found."""

from __future__ import annotations

import tracemalloc

from tritium.see.memory.python import Traced


def test_it_starts_and_stops_tracemalloc_itself() -> None:
    traced = Traced()
    assert traced.use() is None
    traced.start()
    assert tracemalloc.is_tracing()
    held = bytearray(200_000)
    traced.stop()
    assert not tracemalloc.is_tracing()
    use = traced.use()
    assert use is not None
    assert use.peak >= use.current >= len(held)
    assert use.sites[0].nbytes >= len(held)
    assert "test_python.py" in use.sites[0].site


def test_tracing_that_ran_already_goes_on() -> None:
    tracemalloc.start()
    try:
        traced = Traced()
        traced.start()
        traced.stop()
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()

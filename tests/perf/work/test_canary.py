"""Canaries and the clock: the same work for every candidate, on a cache line, in values that stay what they are."""

from __future__ import annotations

import numpy as np
import pytest

from tritium.perf.work import canary
from tritium.perf.work.canary import COMPUTE, MEMORY, canaries, clock, is_canary, ones


@pytest.mark.parametrize("n", [1, 15, 16, 4096, 4097])
def test_memory_of_a_canary_begins_on_a_cache_line(n: int) -> None:
    for _ in range(5):
        found = ones(n)
        assert found.shape == (n,)
        assert found.ctypes.data % 64 == 0
        assert (found == 1).all()


@pytest.mark.parametrize("name", [COMPUTE, MEMORY])
def test_a_canary_does_the_same_however_often_it_is_called(name: str) -> None:
    made = canary.canary("numpy", name=name)
    for _ in range(3):
        made.call()
    assert np.all(ones(canary.SIZES[name]) == 1)
    assert made.facts == {"candidate": "numpy"}


def test_every_canary_is_a_case_that_says_its_bytes() -> None:
    assert [c.name for c in canaries()] == [COMPUTE, MEMORY]
    assert all(is_canary(c.name) and c.work.moved == 8 * canary.SIZES[c.name] for c in canaries())
    assert not is_canary("matmul 64x64 f32")


def test_a_look_at_the_clock_is_a_time() -> None:
    look = clock()
    assert all(0 < look() < 1 for _ in range(3))

"""stats: every counter of the runtime in one look."""

from __future__ import annotations

import tritium as tt


def test_programs_and_fusions_are_counted() -> None:
    before = tt.stats()
    fn = tt.compile(lambda x: tt.relu(x * 2.0 + 1.0))
    x = tt.ones(3)
    for _ in range(4):
        fn(x)
    after = tt.stats()
    assert after["programs"]["made"] == before["programs"]["made"] + 1
    assert after["programs"]["hits"] >= before["programs"]["hits"] + 3
    assert after["fusion"]["found"] >= before["fusion"]["found"]
    assert 0 <= after["fusion"]["success_rate"] <= 1
    assert after["clock"]["monotonic_s"] >= before["clock"]["monotonic_s"]


def test_the_pool_and_hidden_copies_are_there() -> None:
    before = tt.stats()
    tt.ones((4, 3)).mT.reshape(12)
    after = tt.stats()
    assert after["copies"]["hidden"] == before["copies"]["hidden"] + 1
    assert after["pool"]["hits"] + after["pool"]["misses"] > before["pool"]["hits"] + before["pool"]["misses"]
    assert 0 <= after["pool"]["hit_rate"] <= 1

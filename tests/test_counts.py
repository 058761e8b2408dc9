"""stats: every counter of the runtime in one look."""

from __future__ import annotations

import gc

import tritium as tt
from tritium import counts


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
    fusion = after["fusion"]
    assert fusion["success_rate"] == (fusion["applied"] / fusion["found"] if fusion["found"] else None)
    assert after["clock"]["monotonic_s"] >= before["clock"]["monotonic_s"]


def test_the_pool_and_hidden_copies_are_there() -> None:
    before = tt.stats()
    tt.ones((4, 3)).mT.reshape(12)
    after = tt.stats()
    assert after["copies"]["hidden"] == before["copies"]["hidden"] + 1
    assert after["pool"]["hits"] + after["pool"]["misses"] > before["pool"]["hits"] + before["pool"]["misses"]
    assert 0 <= after["pool"]["hit_rate"] <= 1


def test_pools_and_caches_are_summed() -> None:
    gc.collect()
    before = tt.stats()
    pool, cache = tt.memory.TensorPool(), tt.memory.TensorCache(4)
    lent = pool.get_or_create_tensor(10)
    pool.return_to_pool(pool.get_or_create_tensor(30))
    pool.get_or_create_tensor(30)  # idle a moment ago; dropped at once
    cache.put("a", tt.ones(2))
    cache.get("a"), cache.get("b")
    after = tt.stats()

    def growth(part: str, name: str) -> int:
        return int(after[part][name] - before[part][name])

    assert [growth("tensor_pools", n) for n in ("pools", "hits", "misses", "lost", "lent_bytes", "idle_bytes")] == [
        1, 1, 2, 1, 40, 0,
    ]  # fmt: skip
    assert [growth("caches", n) for n in ("caches", "hits", "misses", "size", "max_size", "nbytes")] == [
        1,
        1,
        1,
        1,
        4,
        8,
    ]
    assert 0 <= after["caches"]["hit_rate"] <= 1
    assert 0 < after["caches"]["utilization"] <= 1
    assert 0 < after["tensor_pools"]["utilization"] <= 1
    assert lent.nbytes == 40
    del pool, cache, lent
    gone = tt.stats()
    assert [gone["tensor_pools"][n] for n in ("hits", "misses", "lost")] == [
        after["tensor_pools"][n] for n in ("hits", "misses", "lost")
    ], "what a dropped pool counted stays"
    assert gone["caches"]["hits"] == after["caches"]["hits"]
    for part, name in (
        ("tensor_pools", "pools"),
        ("tensor_pools", "lent_bytes"),
        ("caches", "caches"),
        ("caches", "nbytes"),
    ):
        assert gone[part][name] == before[part][name]


def test_rates_of_nothing_are_none() -> None:
    tt.memory.reset()
    assert tt.stats()["pool"]["hit_rate"] is None
    assert counts.share(0, 0) is None
    x = tt.ones(10)
    assert x.nbytes == 40
    assert 0 < tt.stats()["pool"]["utilization_percent"] < 100

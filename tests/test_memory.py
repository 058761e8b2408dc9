"""Memory: every counter exact, pools and caches that keep their word, watchers that hear everything."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium import backends, buffer, memory
from tritium.errors import ArgumentError, DeviceError, OutOfMemoryError, PoolError, TritiumError
from tritium.memory import Stats, TensorCache, TensorPool


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    """Nothing of another test dies while counters are compared; the pool's knobs are put back."""
    gc.collect()
    was = memory.configuration()
    yield
    memory.configure(was)


def since(start: Stats, field: str) -> int:
    now: int = getattr(memory.stats(), field)
    before: int = getattr(start, field)
    return now - before


def at_once(work: Callable[[int], Any], count: int = 8) -> list[Any]:
    """Run work(0) … work(count - 1) in threads that start together; their results."""
    gate = threading.Barrier(count)
    results: list[Any] = [None] * count

    def run(i: int) -> None:
        gate.wait()
        try:
            results[i] = work(i)
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for r in results:
        if isinstance(r, BaseException):
            raise r
    return results


# ---- the pool's figures


def test_one_tensor_is_one_allocation_and_one_free() -> None:
    start = memory.stats()
    x = tt.empty(1000)
    assert (since(start, "allocations"), since(start, "frees"), since(start, "live")) == (1, 0, 1)
    assert since(start, "current_bytes") == 4000
    del x
    assert (since(start, "allocations"), since(start, "frees"), since(start, "live")) == (1, 1, 0)
    assert since(start, "current_bytes") == since(start, "current_block_bytes") == 0


def test_a_view_and_a_clone_allocate_nothing() -> None:
    x = tt.empty((10, 10))
    start = memory.stats()
    views = [x.T, x[2:], x.reshape(-1), x.flip(), x.expand(3, 10, 10), x.clone()]
    assert since(start, "allocations") == 0
    assert len(views) == 6


def test_a_view_keeps_the_memory_alive() -> None:
    start = memory.stats()
    part = tt.empty(1000)[:1]
    assert since(start, "current_bytes") == 4000
    del part
    assert since(start, "current_bytes") == 0


def test_in_place_allocates_nothing() -> None:
    x, y = tt.ones(1000), tt.ones(1000)
    x += y
    start = memory.stats()
    x += y
    tt.exp(y, out=x)
    assert since(start, "allocations") == 0


def test_the_first_write_after_a_clone_is_one_allocation() -> None:
    x, one = tt.ones(1000), tt.ones(1)
    y = x.clone()
    start = memory.stats()
    y += one
    y += one
    assert since(start, "allocations") == 1
    assert since(start, "current_bytes") == 4000


def test_a_freed_block_is_a_hit_for_the_next() -> None:
    memory.trim()
    start = memory.stats()
    x = tt.empty(5000)
    del x
    y = tt.empty(5000)
    assert (since(start, "misses"), since(start, "hits")) == (1, 1)
    del y


def test_hits_and_misses_are_all_allocations() -> None:
    memory.reset()
    kept = [tt.empty(n) for n in (1, 100, 100, 10_000) for _ in range(5)]
    del kept
    again = [tt.empty(n) for n in (1, 100, 100, 10_000) for _ in range(5)]
    now = memory.stats()
    assert len(again) == 20
    assert now.hits + now.misses == now.allocations == 40
    assert now.hits >= 20
    assert now.hit_rate == now.hits / 40


def test_idle_memory_is_pooled_and_trim_gives_it_back() -> None:
    memory.trim()
    assert memory.stats().pooled_bytes == 0
    x = tt.empty(100_000)
    del x
    now = memory.stats()
    assert now.pooled_bytes >= 400_000
    assert now.largest_free_bytes == now.pooled_bytes
    assert now.fragmentation == 0
    assert memory.trim() == now.pooled_bytes
    assert memory.stats().pooled_bytes == 0
    assert memory.stats().trims == now.trims + 1


def test_trim_keeps_what_it_is_told_to_keep() -> None:
    memory.trim()
    blocks = [tt.empty(10_000) for _ in range(4)]
    del blocks
    pooled = memory.stats().pooled_bytes
    released = memory.trim(keep_bytes=pooled // 2)
    assert memory.stats().pooled_bytes == pooled - released <= pooled // 2
    assert released < pooled


def test_two_idle_blocks_of_one_size_are_half_fragmented() -> None:
    memory.trim()
    blocks = [tt.empty(10_000) for _ in range(2)]
    del blocks
    assert memory.stats().fragmentation == 0.5


def test_peak_is_the_most_ever_alive() -> None:
    memory.reset()
    base = memory.stats().current_bytes
    x = tt.empty(1000)
    y = tt.empty(2000)
    del x, y
    z = tt.empty(10)
    assert memory.stats().peak_bytes == base + 12_000
    memory.reset()
    assert memory.stats().peak_bytes == base + 40
    del z


def test_reset_forgets_what_was_but_not_what_is() -> None:
    x = tt.empty(1000)
    before = memory.stats()
    memory.reset()
    now = memory.stats()
    assert (now.allocations, now.frees, now.hits, now.misses, now.hidden_copies, now.transfers) == (0, 0, 0, 0, 0, 0)
    assert (now.live, now.current_bytes) == (before.live, before.current_bytes)
    del x
    assert memory.stats().live == before.live - 1


def test_classes_add_up_to_the_whole() -> None:
    memory.reset()
    kept = [tt.empty(n) for n in (1, 100, 5000, 70_000, 3_000_000, 8_000_000)]
    dropped = [tt.empty(n) for n in (1, 300, 9000)]
    del dropped
    now = memory.stats()
    assert sum(c.live for c in now.classes) == now.live
    assert sum(c.free * c.size for c in now.classes) <= now.pooled_bytes
    assert sum(c.hits for c in now.classes) == now.hits
    assert sum(c.misses for c in now.classes) == now.misses
    assert len(kept) == 6


def test_shares_are_between_0_and_1() -> None:
    kept = tt.empty(33)
    now = memory.stats()
    assert 0 <= now.hit_rate <= 1
    assert 0 < now.utilization <= 1
    assert 0 <= now.overhead < 1
    assert 0 <= now.fragmentation < 1
    del kept


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200_000)), max_size=20))
def test_counters_follow_any_sequence(acts: list[tuple[bool, int]]) -> None:
    start = memory.stats()
    alive: list[tt.Tensor] = []
    made = 0
    for make, n in acts:
        if make or not alive:
            alive.append(tt.empty(n, dtype="i8"))
            made += 1
        else:
            alive.pop(n % len(alive))
        assert since(start, "allocations") == made
        assert since(start, "live") == len(alive)
        assert since(start, "current_bytes") == sum(x.nbytes for x in alive)
        assert since(start, "hits") + since(start, "misses") == made
    alive.clear()
    assert since(start, "current_bytes") == since(start, "live") == 0


def test_usage_tells_before_after_and_peak() -> None:
    with memory.usage() as seen:
        x = tt.empty(1000)
        y = tt.empty(3000)
        del x
    assert (seen.net_bytes, seen.peak_above_start, seen.allocations) == (12_000, 16_000, 2)
    assert seen.after.current_bytes - seen.before.current_bytes == 12_000
    del y


def test_usage_nests_and_leaves_the_outer_peak_right() -> None:
    memory.reset()
    with memory.usage() as outer:
        a = tt.empty(1000)
        del a
        with memory.usage() as inner:
            b = tt.empty(10)
            del b
    assert (outer.peak_above_start, inner.peak_above_start) == (4000, 40)
    assert memory.stats().peak_bytes == outer.peak_bytes


def test_usage_is_told_even_after_an_error() -> None:
    kept: list[tt.Tensor] = []
    with suppress(KeyError), memory.usage() as seen:
        kept.append(tt.empty(1000))
        raise KeyError
    assert seen.net_bytes == 4000


def test_a_limit_of_zero_keeps_nothing_idle() -> None:
    memory.configure(limit=0)
    x = tt.empty(1000)
    del x
    assert memory.stats().pooled_bytes == 0
    assert memory.stats().limit == 0


def test_configure_changes_what_stats_shows() -> None:
    memory.configure(small_block_size=4096, large_block_threshold=1 << 20, limit=1 << 22)
    now = memory.stats()
    assert (now.small_block_size, now.large_block_threshold, now.limit) == (4096, 1 << 20, 1 << 22)
    memory.configure(limit=1 << 21)
    assert memory.stats().small_block_size == 4096


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"small_block_size": 0}, "small_block_size=0 must be positive: from 1 to 68719476736 bytes"),
        ({"small_block_size": 2048, "large_block_threshold": 1024}, "small_block_size=2048 .*from 1 to 1024 bytes"),
        ({"large_block_threshold": 1}, "small_block_size=65536 .*from 1 to 1 bytes"),
        ({"large_block_threshold": "65GiB"}, "large_block_threshold='65GiB' .*from 1 to 68719476736 bytes"),
        ({"limit": -1}, "limit=-1 must be 0 or more: from 0 to 1152921504606846976 bytes"),
        ({"limit": 10**400}, r"limit=2\*\*1328… must be 0 or more"),
        ({"limit": "1GX"}, "limit='1GX' is not a size; give whole bytes .*KiB"),
        ({"limit": "1G"}, "limit='1G' is not a size"),
        ({"limit": "0.5 B"}, "limit='0.5 B' is not a size"),
        ({"limit": 1e9}, "limit=1000000000.0 is not a size"),
        ({"limit": True}, "limit=True is not a size"),
        ({"limit": [1]}, r"limit=\[1\] is not a size"),
        ({"memory_limit": 0}, "memory_limit=0 must be positive: from 1 to"),
        ({"mlx_integration": "yes"}, "mlx_integration='yes' must be True or False"),
        ({"config": 4096}, "configure: a MemoryPoolConfig is needed, given 4096"),
    ],
)
def test_configure_refuses_what_makes_no_sense(values: dict[str, Any], text: str) -> None:
    before = memory.stats()
    with pytest.raises(ArgumentError, match=text):
        memory.configure(**values)
    now = memory.stats()
    assert (now.limit, now.memory_limit) == (before.limit, before.memory_limit)
    assert (now.small_block_size, now.large_block_threshold) == (before.small_block_size, before.large_block_threshold)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1GB", 10**9), ("64 KiB", 65536), ("1.5 mib", 3 << 19), ("0.001KB", 1), ("4096", 4096), (" 7 b ", 7), ("1TiB", 1 << 40)],
)  # fmt: skip
def test_sizes_are_read_from_text(text: str, nbytes: int) -> None:
    memory.configure(limit=text)
    assert memory.stats().limit == memory.configuration().limit == nbytes
    assert memory.trim("1 KiB") >= 0


@settings(max_examples=50, deadline=None)
@given(
    st.text(max_size=12) | st.integers() | st.floats() | st.binary(max_size=4) | st.none() | st.tuples(st.integers())
)
def test_a_size_is_read_or_refused(value: Any) -> None:
    with suppress(ArgumentError):
        assert 0 <= memory.parse_bytes("limit", value) <= memory.MOST_BYTES
    with suppress(ArgumentError):
        assert memory.parse_seconds("ttl", value) > 0


def test_a_configuration_has_the_defaults_of_the_guide() -> None:
    config = memory.MemoryPoolConfig()
    assert (config.small_block_size, config.large_block_threshold) == (64 * 1024, 16 * 1024 * 1024)
    built = (
        memory.MemoryPoolConfig()
        .with_small_block_size("4 KiB")
        .with_large_block_threshold(1 << 20)
        .with_limit("32MB")
        .with_memory_limit("40GiB")
        .with_mlx_integration(False)
    )
    assert built == memory.MemoryPoolConfig(4096, 1 << 20, 32_000_000, 40 << 30, False)
    memory.configure(built)
    assert memory.configuration() == built
    now = memory.stats()
    assert (now.small_block_size, now.large_block_threshold) == (4096, 1 << 20)
    assert (now.limit, now.memory_limit) == (32_000_000, 40 << 30)
    memory.configure(config)
    default = memory.configuration()
    assert default.memory_limit is None
    assert default.limit is not None
    assert default.limit > 32_000_000


def test_thresholds_are_those_of_the_allocator() -> None:
    memory.configure(small_block_size=4096, large_block_threshold="64 KiB", limit="1MiB")
    memory.trim()
    memory.reset()
    start = {tier.name: tier.live for tier in memory.stats().tiers}
    alive = [tt.empty(n, dtype="i8") for n in (10, 4096, 4097, 65536, 65537, 10**6)]
    now = memory.stats()
    assert [tier.live - start[tier.name] for tier in now.tiers] == [2, 2, 2]
    assert [c.misses for c in now.classes if c.size == 0] == [2]
    del alive
    assert {tier.name: tier.live for tier in memory.stats().tiers} == start
    assert memory.stats().pooled_bytes <= 1 << 20
    assert sum(tier.free_bytes for tier in memory.stats().tiers) == memory.stats().pooled_bytes


def test_mlx_integration_needs_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[Any] = []
    before = memory.configuration()
    if not any(found.name == "mlx" and found.available for found in tt.devices()):
        with pytest.raises(DeviceError, match="mlx"):
            memory.configure(before.with_mlx_integration().with_limit(4096))
        assert memory.configuration() == before
        assert memory.stats().limit == before.limit
    backend = SimpleNamespace(limit=lambda **named: limits.append(named))
    device = backends.device
    monkeypatch.setattr(backends, "device", lambda d: SimpleNamespace(backend=backend) if d == "mlx" else device(d))
    memory.configure(before.with_mlx_integration().with_limit("1MiB"))
    assert limits == [{"cache_bytes": 1 << 20}]


def test_memory_limit_bounds_live_tensors() -> None:
    base = memory.stats().current_block_bytes
    memory.configure(memory_limit=base + (1 << 20))
    x = tt.empty(800_000, dtype="i8")
    before = memory.stats()
    with pytest.raises(OutOfMemoryError, match=r"does not fit in memory: .*memory_limit of tt.memory.configure.*del"):
        tt.empty(800_000, dtype="i8")
    after = memory.stats()
    assert after - before == replace(
        after - after, resident_bytes=(after - before).resident_bytes, pooled_bytes=(after - before).pooled_bytes
    )
    del x
    assert tt.empty(800_000, dtype="i8").nbytes == 800_000


def test_nearly_full_memory_is_logged_once_per_crossing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "tritium")
    base = memory.stats().current_block_bytes
    limit = 10 * base + (64 << 20)
    memory.configure(memory_limit=limit)
    below = tt.empty(limit // 10 * 7 - base, dtype="i8")
    assert not caplog.records
    now = memory.stats()
    assert now.utilization_percent == 100 * now.current_block_bytes / limit
    for crossings in (1, 2):
        part = tt.empty(limit // 10, dtype="i8")
        for _ in range(3):
            above = [tt.empty(limit // 8, dtype="i8"), tt.empty(100)]
            assert len(caplog.records) == crossings, "once, not at each allocation, nor while it stays above 80 %"
            del above
        assert f"of their memory limit of {limit} bytes" in caplog.records[-1].getMessage()
        del part
    del below


def test_idle_memory_that_the_pool_gives_back_by_itself_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "tritium.memory")
    memory.configure(limit=1 << 20)
    memory.trim()
    tt.empty(8)
    caplog.clear()
    trims = memory.stats().trims
    blocks = [tt.empty(600_000, dtype="i8") for _ in range(3)]
    capacity = memory.stats().current_block_bytes
    blocks.clear()
    capacity -= memory.stats().current_block_bytes
    tt.empty(8)  # what happened is told at the next allocation
    own = [r.getMessage() for r in caplog.records if "by itself" in r.getMessage()]
    assert sum(int(re.findall(r"[0-9]+", m)[1]) for m in own) == memory.stats().trims - trims == 2
    assert sum(int(re.findall(r"[0-9]+", m)[0]) for m in own) == capacity // 3 * 2
    caplog.clear()
    memory.trim()
    tt.empty(8)
    assert ["by itself" in r.getMessage() for r in caplog.records] == [False]


def test_a_difference_of_snapshots_tells_what_happened_in_between() -> None:
    before = memory.stats()
    x = tt.empty(1000)
    y = tt.empty((30, 40)).mT.reshape(-1)
    change = memory.stats() - before
    assert (change.allocations, change.frees, change.live, change.hidden_copies) == (3, 1, 2, 1)
    assert change.current_bytes == x.nbytes + y.nbytes
    assert change.hits + change.misses == 3
    assert change.hit_rate == change.hits / 3
    assert (before - before).hit_rate is None
    with pytest.raises(TypeError):
        before - 1  # type: ignore[operator]


def test_resident_bytes_are_beside_those_of_the_pool() -> None:
    now = memory.stats()
    assert now.resident_bytes is None or now.resident_bytes > 1 << 20
    assert now.memory_limit is None or now.memory_limit > 1 << 20


def test_shares_of_nothing_are_none() -> None:
    memory.reset()
    assert memory.stats().hit_rate is None
    assert TensorPool().get_stats().hit_rate is None
    assert TensorPool().get_stats().utilization is None
    assert TensorCache().stats().hit_rate is None
    nothing = replace(memory.stats(), current_block_bytes=0, pooled_bytes=0, memory_limit=None)
    assert nothing.utilization is None
    assert nothing.utilization_percent is None


def block_bytes(nbytes: int) -> int:
    """Return the size of the block that holds a new tensor of so many bytes."""
    before = memory.stats()
    x = tt.empty(nbytes, dtype="i8")
    size = (memory.stats() - before).current_block_bytes
    assert x.nbytes == nbytes
    return size


@settings(max_examples=100, deadline=None)
@given(st.integers(2048, 1 << 15) | st.integers(1 << 15, 1 << 22) | st.integers(1 << 22, 1 << 29))
def test_less_than_a_twentieth_of_a_block_is_lost(nbytes: int) -> None:
    assert nbytes <= block_bytes(nbytes) < nbytes / 0.95


@pytest.mark.parametrize("shape", [(1025, 1024), (513, 1000), (4097, 4097), (2048, 257), (681, 768)])
def test_matrices_just_above_a_power_of_two_lose_little(shape: tuple[int, int]) -> None:
    nbytes = 4 * shape[0] * shape[1]
    assert nbytes <= block_bytes(nbytes) < nbytes / 0.95


@pytest.mark.parametrize("seed", range(5))
def test_a_mix_of_sizes_has_less_than_5_percent_overhead(seed: int) -> None:
    random = Random(seed)
    before = memory.stats()
    alive = [tt.empty(int(2 ** random.uniform(0, 24)), dtype="i8") for _ in range(200)]
    for i in range(0, 200, 2):  # blocks that others have used count as well
        alive[i] = tt.empty(int(2 ** random.uniform(0, 24)), dtype="i8")
    change = memory.stats() - before
    assert change.current_bytes == sum(x.nbytes for x in alive)
    assert 0 <= change.current_block_bytes - change.current_bytes < 0.05 * change.current_block_bytes


def test_trim_refuses_less_than_nothing() -> None:
    with pytest.raises(ArgumentError, match="keep_bytes=-1"):
        memory.trim(-1)


def test_eight_threads_keep_every_counter_exact() -> None:
    one, matrix = tt.ones(1), tt.ones((16, 16))
    (matrix @ matrix).reshape(-1)
    gc.collect()
    start = memory.stats()
    rounds = 200

    def work(i: int) -> float:
        total = 0.0
        for k in range(rounds):
            x = tt.empty(64 * (1 + (i + k) % 5))  # 1 allocation
            tt.multiply(one, one, out=x[:1])
            y = matrix + one  # 1
            z = y.T.reshape(-1)  # 1, hidden
            y += y
            total += z.numpy()[0]
        return total

    results = at_once(work)
    gc.collect()
    assert results == [2.0 * rounds] * 8
    assert (
        since(start, "allocations")
        == since(start, "frees")
        == since(start, "hits") + since(start, "misses")
        == 8 * rounds * 3
    )
    assert since(start, "live") == since(start, "current_bytes") == since(start, "current_block_bytes") == 0
    assert since(start, "hidden_copies") == 8 * rounds
    assert since(start, "hidden_copy_bytes") == 8 * rounds * 1024


def test_tensors_freed_by_another_thread_are_counted() -> None:
    start = memory.stats()
    handed: list[list[tt.Tensor]] = [[tt.empty(100 + i) for _ in range(50)] for i in range(8)]
    at_once(lambda i: handed[(i + 1) % 8].clear())
    assert since(start, "frees") == since(start, "allocations") == 400
    assert since(start, "current_bytes") == 0


# ---- copies behind a view's back


def test_reshape_of_a_transpose_is_a_hidden_copy() -> None:
    x = tt.ones((3, 4))
    start = memory.stats()
    x.T.reshape(12)
    assert since(start, "hidden_copies") == 1
    assert since(start, "hidden_copy_bytes") == 48


def test_a_plain_reshape_and_an_asked_copy_are_not_hidden() -> None:
    x = tt.ones((3, 4))
    start = memory.stats()
    x.reshape(12), x[1:].reshape(-1), x.T.contiguous(), tt.copy(x), x.clone(), x[:, None].reshape(3, 4)
    assert since(start, "hidden_copies") == 0


# ---- those who watch


Heard = tuple[str, int, int, bool]


@pytest.fixture
def heard() -> Iterator[list[Heard]]:
    events: list[Heard] = []
    buffer.watch(lambda *event: events.append(event))
    try:
        yield events
    finally:
        buffer.watch(None)


def test_a_buffer_watcher_hears_of_life_and_death(heard: list[Heard]) -> None:
    x = tt.empty(1000)
    address = x.address
    del x
    assert [(kind, at, n) for kind, at, n, _ in heard] == [("alloc", address, 4000), ("free", address, 4000)]


def test_a_buffer_watcher_hears_whether_a_block_was_reused(heard: list[Heard]) -> None:
    memory.trim()
    for _ in range(2):
        x = tt.empty(5000)
        del x
    assert [reused for kind, _, _, reused in heard if kind == "alloc"] == [False, True]


def test_a_buffer_watcher_hears_of_copy_on_write_and_imports(heard: list[Heard]) -> None:
    x, one = tt.empty(1000), tt.empty(1)
    y = x.clone()
    heard.clear()
    tt.exp(one, out=y[:1])
    data = np.ones(4)
    z = tt.from_numpy(data)
    kinds = [(kind, n) for kind, _, n, _ in heard]
    assert kinds == [("copy", 4000), ("wrap", 32)]
    assert heard[1][1] == data.ctypes.data
    del z


def test_events_add_up_to_the_counters(heard: list[Heard]) -> None:
    start = memory.stats()
    for i in range(20):
        a = tt.empty(100 * i)
        b = a.clone()
        b.zero_()
        del a, b
    born = sum(kind in ("alloc", "copy") for kind, *_ in heard)
    died = sum(kind == "free" for kind, *_ in heard)
    assert born == since(start, "allocations") == died == since(start, "frees")


def test_nothing_is_heard_after_the_watcher_left() -> None:
    events: list[Any] = []
    buffer.watch(lambda *event: events.append(event))
    buffer.watch(None)
    tt.empty(1000)
    assert not events


@pytest.mark.parametrize("watcher", [3, None, "print", [print]])
def test_a_watcher_that_cannot_be_called_is_refused(watcher: Any) -> None:
    with pytest.raises(ArgumentError, match="watch: a function of one event is needed"):
        tt.watch(watcher)
    assert (tt.ones(3) + 1).tolist() == [2, 2, 2]


def test_a_launch_watcher_hears_every_kernel_with_its_cost() -> None:
    x = tt.ones((2, 3))
    tt.add(x, x)
    events: list[tt.Event] = []
    tt.watch(events.append)
    try:
        tt.add(x, x)
        x @ x.T
        x.reshape(-1)
    finally:
        tt.unwatch(events.append)
    tt.add(x, x)
    assert [e.op for e in events] == [tt.add, tt.matmul]
    add, matmul = events
    assert add.inputs == (x.spec, x.spec)
    assert add.out == x.spec
    assert add.device == "cpu"
    assert add.kernel
    assert add.cost == (6, 48, 24)
    assert matmul.cost == (2 * 2 * 2 * 3, 48, 16)
    assert add.elapsed_ns >= 0
    assert matmul.start_ns >= add.start_ns + add.elapsed_ns


def test_watchers_leave_one_by_one() -> None:
    first: list[Any] = []
    second: list[Any] = []
    x = tt.ones(3)
    tt.watch(first.append)
    hear = tt.watch(second.append)
    x + x
    tt.unwatch(first.append)
    x + x
    tt.unwatch(hear)
    x + x
    assert (len(first), len(second)) == (1, 2)


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_resident_memory_is_told_or_openly_not(tmp_path: Path) -> None:
    if Path("/proc/self/statm").exists():
        assert (memory.resident_bytes() or 0) > 1 << 20
    (tmp_path / "statm").write_text("9 3 0")
    assert memory.resident_bytes(tmp_path / "statm") == 3 * os.sysconf("SC_PAGE_SIZE")
    for text in ("", "9", "a b"):
        (tmp_path / "statm").write_text(text)
        assert memory.resident_bytes(tmp_path / "statm") is None
    assert memory.resident_bytes(tmp_path / "nowhere") is None


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_a_long_loop_keeps_memory_flat() -> None:
    x, y = tt.ones((64, 64)), tt.ones((64, 64))
    count = 10**6 if buffer.native is not None else 15_000

    def loop(n: int) -> None:
        z = x
        for _ in range(n):
            z = tt.add(x, y)
        assert z.shape == (64, 64)

    loop(count // 10)
    gc.collect()
    before, start = rss_bytes(), memory.stats()
    loop(count)
    gc.collect()
    assert rss_bytes() - before < 4 << 20
    assert since(start, "live") == since(start, "current_bytes") == 0


# ---- TensorPool


def test_a_returned_tensor_is_lent_again() -> None:
    pool = TensorPool()
    x = pool.get_or_create_tensor((4, 4), "f32", "cpu")
    pool.return_to_pool(x)
    assert pool.get_or_create_tensor((4, 4)) is x
    assert pool.get_or_create_tensor((4, 4)) is not x


@pytest.mark.parametrize("other", [((4, 4), "f16"), ((4, 4), "bf16"), ((16,), "f32"), ((2, 8), "f32")])
def test_shape_and_dtype_are_the_key(other: tuple[Any, str]) -> None:
    pool = TensorPool()
    x = pool.get_or_create_tensor((4, 4))
    pool.return_to_pool(x)
    y = pool.get_or_create_tensor(*other)
    assert y is not x
    assert y.spec == tt.Spec(other[0], tt.dtype.dtype(other[1]))


def test_names_of_a_dtype_are_one_key() -> None:
    pool = TensorPool()
    x = pool.get_or_create_tensor(8, "half")
    pool.return_to_pool(x)
    assert pool.get_or_create_tensor((8,), tt.f16) is x
    assert x.dtype is tt.f16


def test_returning_twice_is_an_error() -> None:
    pool = TensorPool()
    x = pool.get_or_create_tensor(4)
    pool.return_to_pool(x)
    with pytest.raises(
        PoolError, match=r"f32\[4\] is not lent by this pool: it was returned already, or never came from it"
    ):
        pool.return_to_pool(x)
    assert len(pool) == 1


@pytest.mark.parametrize(
    "foreign",
    [lambda x: tt.empty(4), lambda x: x.clone(), lambda x: x[:], lambda x: TensorPool().get_or_create_tensor(4)],
)
def test_a_foreign_tensor_is_an_error(foreign: Any) -> None:
    pool = TensorPool()
    x = pool.get_or_create_tensor(4)
    with pytest.raises(PoolError):
        pool.return_to_pool(foreign(x))
    pool.return_to_pool(x)


def test_a_pool_is_bounded() -> None:
    pool = TensorPool(max_size=2)
    lent = [pool.get_or_create_tensor(4) for _ in range(5)]
    for x in lent:
        pool.return_to_pool(x)
    assert len(pool) == 2
    assert pool.get_stats().pooled_bytes == 32
    with pytest.raises(ArgumentError, match="max_size=-1"):
        TensorPool(max_size=-1)


def test_a_lent_tensor_that_is_dropped_is_lost_and_its_memory_free() -> None:
    pool = TensorPool()
    start = memory.stats()
    for _ in range(20):
        pool.get_or_create_tensor(1000)
    kept = pool.get_or_create_tensor(1000)
    assert (memory.stats() - start).current_bytes == 4000
    s = pool.get_stats()
    assert (s.total_allocations, s.total_deallocations, s.lost, s.current_memory_usage) == (21, 0, 20, 4000)
    assert not pool._dropped
    pool.return_to_pool(kept)
    assert pool.get_stats().lost == 20


def test_a_dropped_tensor_that_was_returned_is_not_lost() -> None:
    pool = TensorPool(max_size=0)
    x = pool.get_or_create_tensor(10)
    pool.return_to_pool(x)
    with pytest.raises(PoolError, match="returned already"):
        pool.return_to_pool(x)
    del x
    assert pool.get_stats().lost == 0
    assert len(pool) == 0


def test_a_pool_full_of_old_shapes_pools_new_ones() -> None:
    pool = TensorPool(max_size=3)
    for n in (1, 2, 3):
        pool.return_to_pool(pool.get_or_create_tensor(n))
    pool.return_to_pool(pool.get_or_create_tensor(1))  # now 2 is the least recently used
    for n in range(10, 60):
        with pool.borrow(n) as x:
            pass
        assert len(pool) == 3
        with pool.borrow(n) as again:
            assert again is x
    assert pool.get_stats().evictions == 50
    assert pool.get_stats().pooled_bytes == 4 * (57 + 58 + 59)


def test_a_pool_works_as_the_guide_calls_it() -> None:
    optimizer = TensorPool(100)
    device = tt.device("cpu")
    tensor = optimizer.get_or_create_tensor([64, 128], "f32", device)
    optimizer.return_to_pool(tensor, device)
    optimizer.return_to_pool(optimizer.get_or_create_tensor((64, 128), "f32", "cpu"), "cpu")
    other = optimizer.get_or_create_tensor((64, 128))
    assert other is tensor
    optimizer.return_to_pool(other)
    stats = optimizer.get_stats()
    assert (stats.pool_hits, stats.pool_misses, stats.peak_memory_usage) == (2, 1, tensor.nbytes)


def test_a_pool_refuses_wrong_arguments_without_a_trace() -> None:
    pool = TensorPool()
    x = pool.get_or_create_tensor(4)
    before = pool.get_stats()
    for wrong in (None, 3, "x", [x]):
        with pytest.raises(PoolError, match="a tensor that this pool lent is needed"):
            pool.return_to_pool(wrong)  # type: ignore[arg-type]
    with pytest.raises(DeviceError):
        pool.return_to_pool(x, "nowhere")
    for shape in (2**60, (2**40, 2**40), "x", (-1,), None):
        with pytest.raises(TritiumError):
            pool.get_or_create_tensor(shape)
    assert pool.get_stats() == before
    pool.return_to_pool(x, "cpu")
    for size in ("x", 1.5, None, True, 10**400):
        with pytest.raises(ArgumentError, match="TensorPool: max_size"):
            TensorPool(size)  # type: ignore[arg-type]


def test_statistics_of_a_pool_are_reset() -> None:
    pool = TensorPool()
    x = pool.get_or_create_tensor(4)
    pool.return_to_pool(pool.get_or_create_tensor(100))
    pool.get_or_create_tensor(7)
    pool.reset()
    s = pool.get_stats()
    assert (s.total_allocations, s.total_deallocations, s.pool_hits, s.pool_misses, s.lost) == (0, 0, 0, 0, 0)
    assert (s.current_memory_usage, s.peak_memory_usage, s.pooled_bytes) == (16, 16, 400)
    pool.return_to_pool(x)
    assert pool.get_stats().total_deallocations == 1


ACTS = st.sampled_from(("get", "get", "get", "return", "return", "drop", "reset", "clear", "twice"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ACTS, st.integers(0, 5)), max_size=40), st.integers(0, 4))
def test_a_pool_counts_as_a_plain_model(acts: list[tuple[str, int]], size: int) -> None:
    pool, lent, idle, used = TensorPool(size), list[tt.Tensor](), list[int](), dict[int, int]()
    names = ("allocations", "returns", "hits", "misses", "lost", "evictions", "peak")
    n = dict.fromkeys(names, 0)
    for time, (act, key) in enumerate(acts):
        if act == "get":
            n["allocations"] += 1
            n["hits" if key in idle else "misses"] += 1
            if key in idle:
                idle.remove(key)
            used[key] = time
            lent.append(pool.get_or_create_tensor((2, key + 1)))
        elif act in ("return", "twice") and lent:
            x = lent.pop(key % len(lent))
            pool.return_to_pool(x)
            n["returns"] += 1
            idle.append(x.shape[1] - 1)
            used[x.shape[1] - 1] = time
            if len(idle) > size:
                idle.remove(min(idle, key=used.__getitem__))
                n["evictions"] += size > 0
            if act == "twice":
                with pytest.raises(PoolError):
                    pool.return_to_pool(x)
            del x
        elif act == "drop" and lent:
            del lent[key % len(lent)]
            n["lost"] += 1
        elif act == "clear":
            pool.clear()
            idle.clear()
        current = sum(x.nbytes for x in lent)
        n["peak"] = max(n["peak"], current)
        if act == "reset":
            pool.reset()
            n = dict.fromkeys(names, 0) | {"peak": current}
        s = pool.get_stats()
        assert (s.total_allocations, s.total_deallocations) == (n["allocations"], n["returns"])
        assert (s.pool_hits, s.pool_misses, s.lost, s.evictions) == (n["hits"], n["misses"], n["lost"], n["evictions"])
        assert (s.current_memory_usage, s.peak_memory_usage) == (current, n["peak"])
        assert s.pooled_bytes == sum(8 * (k + 1) for k in idle)
        assert len(pool) == len(idle)


def test_a_finalizer_may_return_a_tensor_inside_the_pool() -> None:
    pool = TensorPool()
    tensor = pool.get_or_create_tensor(5)

    class Owner:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            pool.return_to_pool(tensor)

    Owner()
    with pool._lock:
        gc.collect()
    assert pool.get_stats().total_deallocations == 1


def test_a_borrowed_tensor_comes_back_even_after_an_error() -> None:
    with TensorPool() as pool:
        with suppress(KeyError), pool.borrow((2, 2), zero=True) as x:
            assert x.tolist() == [[0, 0], [0, 0]]
            x += 1
            raise KeyError
        with pool.borrow((2, 2)) as y:
            assert y is x
            assert y.tolist() == [[1, 1], [1, 1]]
        with pool.borrow((2, 2), zero=True) as y:
            assert y.tolist() == [[0, 0], [0, 0]]
        assert len(pool) == 1
    assert len(pool) == 0


def test_a_pool_counts_what_it_does() -> None:
    pool = TensorPool()
    x, y = pool.get_or_create_tensor(4), pool.get_or_create_tensor(8)
    pool.return_to_pool(x)
    pool.get_or_create_tensor(4)
    pool.return_to_pool(y)
    s = pool.get_stats()
    assert (s.total_allocations, s.total_deallocations, s.pool_hits, s.pool_misses) == (3, 2, 1, 2)
    assert (s.current_memory_usage, s.peak_memory_usage, s.pooled_bytes) == (16, 48, 32)
    assert s.hit_rate == 1 / 3
    pool.clear()
    assert pool.get_stats().pooled_bytes == 0
    assert len(pool) == 0


def test_a_pool_is_exact_under_eight_threads() -> None:
    pool = TensorPool(max_size=4)

    def work(i: int) -> None:
        for k in range(100):
            with pool.borrow((8, 1 + k % 3)) as x:
                x.copy_(float(i))
                assert x.tolist() == [[i] * x.shape[1]] * 8

    at_once(work)
    s = pool.get_stats()
    assert s.total_allocations == s.total_deallocations == s.pool_hits + s.pool_misses == 800
    assert s.current_memory_usage == 0
    assert len(pool) <= 4


# ---- TensorCache


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_least_recently_used_leaves_first() -> None:
    cache = TensorCache(max_size=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1  # a is now the younger
    cache.put("c", 3)
    assert "a" in cache
    assert "b" not in cache
    assert "c" in cache
    assert cache.stats().evictions == 1


def test_putting_again_refreshes_and_replaces() -> None:
    cache = TensorCache(max_size=2, max_bytes=100)
    cache.put("a", tt.zeros(4))
    cache.put("b", tt.zeros(4))
    cache.put("a", tt.zeros(8))
    assert cache.stats().nbytes == 48
    assert len(cache) == 2
    cache.put("c", tt.zeros(1))
    assert "b" not in cache
    assert "a" in cache


def test_looking_whether_a_key_is_there_does_not_refresh_it() -> None:
    cache = TensorCache(max_size=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert "a" in cache
    cache.put("c", 3)
    assert "a" not in cache


def test_values_expire_by_the_clock_given() -> None:
    clock = Clock()
    cache = TensorCache(ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now = 9.9
    assert cache.get("a") == 1
    assert "a" in cache
    clock.now = 10.0
    assert "a" not in cache
    assert cache.get("a", "gone") == "gone"
    s = cache.stats()
    assert (s.hits, s.misses, s.expirations, s.size, s.hit_rate) == (1, 1, 1, 0, 0.5)


def test_reading_does_not_prolong_a_life() -> None:
    clock = Clock()
    cache = TensorCache(ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now = 6
    cache.get("a")
    clock.now = 12
    assert cache.get("a") is None


def test_cleanup_removes_what_expired() -> None:
    clock = Clock()
    cache = TensorCache(ttl=10, clock=clock)
    cache.put("a", tt.zeros(4))
    clock.now = 5
    cache.put("b", tt.zeros(2))
    clock.now = 12
    assert cache.cleanup() == 1
    assert len(cache) == 1
    assert cache.stats().nbytes == 8
    assert cache.cleanup() == 0


def test_no_ttl_keeps_forever() -> None:
    clock = Clock()
    cache = TensorCache(ttl=None, clock=clock)
    cache.put("a", 1)
    clock.now = 1e12
    assert cache.get("a") == 1


def test_bytes_are_bounded() -> None:
    cache = TensorCache(max_bytes=100)
    for key in "abc":
        cache.put(key, tt.zeros(10))
    assert len(cache) == 2
    assert cache.stats().nbytes == 80
    assert "a" not in cache
    cache.put("huge", tt.zeros(26))
    assert "huge" not in cache
    assert len(cache) == 2


def test_a_value_too_large_replaces_nothing_but_its_own_key() -> None:
    cache = TensorCache(max_bytes=100)
    cache.put("a", tt.zeros(10))
    cache.put("a", tt.zeros(100))
    assert "a" not in cache
    assert cache.stats().nbytes == 0


def test_clear_forgets_everything() -> None:
    cache = TensorCache()
    cache.put("a", tt.zeros(10))
    cache.clear()
    assert len(cache) == 0
    assert cache.stats().nbytes == 0


@pytest.mark.parametrize(("text", "seconds"), [("1h", 3600), ("5 min", 300), ("250ms", 0.25), ("1.5 s", 1.5), ("7", 7)])
def test_a_time_to_live_is_read_from_text(text: str, seconds: float) -> None:
    clock = Clock()
    cache = TensorCache(100, text, "1MB", clock)
    assert (cache.ttl, cache.max_bytes) == (seconds, 10**6)
    cache.put("a", 1)
    clock.now = seconds * 0.99
    assert cache.get("a") == 1
    clock.now = seconds
    assert cache.get("a") is None


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"max_size": "x"}, "max_size must be an integer, given 'x'"),
        ({"max_size": 1.5}, "max_size must be an integer, given 1.5"),
        ({"ttl": "1 fortnight"}, "ttl: '1 fortnight' has the unit 'fortnight'; there are ns, us, ms, s, min, h and d"),
        ({"ttl": float("nan")}, "ttl must be a number .* given nan"),
        ({"ttl": float("inf")}, "ttl: a duration above 0 is needed .* given inf"),
        ({"ttl": [1]}, r"ttl must be .* given \[1\]"),
        ({"ttl": 10**400}, r"ttl must be .* given 2\*\*1328"),
        ({"max_bytes": "lots"}, "max_bytes='lots' is not a size"),
        ({"clock": 3}, "clock must be a function, given 3"),
    ],
)
def test_a_cache_refuses_what_makes_no_sense(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        TensorCache(**wrong)


def test_a_key_must_be_hashable() -> None:
    cache = TensorCache()
    calls: list[Callable[[], Any]] = [
        lambda: cache.put([1], 2), lambda: cache.get({}), lambda: [1] in cache,  # type: ignore[arg-type]
        lambda: cache.get_or_compute([1], lambda: 2),  # type: ignore[arg-type]
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ArgumentError, match="cannot be a key"):
            call()
    with pytest.raises(ArgumentError, match="compute must be a function, given 3"):
        cache.get_or_compute(1, 3)  # type: ignore[arg-type]
    assert cache.stats() == TensorCache().stats()


def test_a_cache_tells_how_full_it_is_and_forgets_counts() -> None:
    cache = TensorCache(10, max_bytes=100)
    cache.put("a", tt.zeros(20))
    cache.get("a"), cache.get("b")
    assert cache.stats().utilization == 0.8
    assert cache.stats().hit_rate == 0.5
    cache.reset()
    s = cache.stats()
    assert (s.hits, s.misses, s.size, s.nbytes, s.hit_rate) == (0, 0, 1, 80, None)


@pytest.mark.parametrize("wrong", [{"max_size": 0}, {"ttl": 0}, {"max_bytes": 0}])
def test_a_cache_without_room_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"must be positive|above 0 is needed"):
        TensorCache(**wrong)


def test_a_value_is_computed_once_under_eight_threads() -> None:
    cache = TensorCache()
    calls: list[int] = []

    def compute() -> tt.Tensor:
        calls.append(1)
        threading.Event().wait(0.02)
        return tt.ones(3)

    found = at_once(lambda i: cache.get_or_compute("key", compute))
    assert len(calls) == 1
    assert all(x is found[0] for x in found)


def test_a_failed_computation_is_tried_again_and_leaves_nothing() -> None:
    cache = TensorCache()
    with pytest.raises(ZeroDivisionError):
        cache.get_or_compute("key", lambda: 1 // 0)
    assert cache.get_or_compute("key", lambda: 5) == 5
    assert not cache._pending


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(("get", "put")), st.integers(0, 5)), max_size=40), st.integers(1, 4))
def test_a_cache_is_the_textbook_lru(acts: list[tuple[str, int]], size: int) -> None:
    cache = TensorCache(max_size=size)
    model: list[int] = []
    for act, key in acts:
        if act == "get":
            assert (cache.get(key) is not None) == (key in model)
        if act == "put" or key in model:
            model = [k for k in model if k != key] + [key]
        if act == "put":
            cache.put(key, key + 1)
            model = model[-size:]
        assert [k for k in range(6) if k in cache] == sorted(model)


# ---- pack


def test_packed_tensors_are_views_of_one_buffer() -> None:
    given_tensors = [
        tt.arange(5, dtype="i8"),
        tt.ones((2, 3), dtype="f16").T,
        tt.tensor(2.5, dtype="f64"),
        tt.zeros((0, 3)),
        tt.ones(17, dtype="bf16"),
    ]
    start = memory.stats()
    packed = tt.pack(given_tensors)
    assert len({id(p.storage) for p in packed}) == 1
    assert since(start, "live") == 1
    for p, g in zip(packed, given_tensors, strict=True):
        assert p.spec == g.spec
        assert p.is_contiguous()
        assert p.address % 64 == 0
        assert p.tolist() == g.tolist()


def test_packed_tensors_do_not_overlap() -> None:
    packed = tt.pack([tt.zeros(n, dtype="i8") for n in (1, 63, 64, 65, 3)])
    for i, p in enumerate(packed):
        p += i + 1
    assert [set(p.tolist()) for p in packed] == [{1}, {2}, {3}, {4}, {5}]


def test_packing_copies() -> None:
    x = tt.zeros(3)
    (p,) = tt.pack([x])
    p += 1
    assert x.tolist() == [0, 0, 0]


@pytest.mark.parametrize("wrong", [3, None, [1], [None], ["x"], "xy", [np.ones(3)], [[1.0]], object()])
def test_packing_refuses_what_is_no_tensor(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="pack: a list of tensors is needed, given"):
        tt.pack(wrong)


def test_the_rows_of_a_tensor_are_packed() -> None:
    rows = tt.pack(tt.arange(6).reshape(2, 3))
    assert [row.tolist() for row in rows] == [[0, 1, 2], [3, 4, 5]]


def test_nothing_packs_to_nothing() -> None:
    assert tt.pack([]) == []


def test_computing_a_key_that_asks_for_itself_is_an_error() -> None:
    cache = memory.TensorCache()
    with pytest.raises(ArgumentError, match="asks for 1 itself"):
        cache.get_or_compute(1, lambda: cache.get_or_compute(1, lambda: 2))


def test_a_product_of_transposed_views_copies_nothing() -> None:
    a, b, out = tt.ones((64, 48)), tt.ones((32, 48)), tt.empty((64, 32))
    start = memory.stats()
    tt.matmul(a, b.T, out=out)
    tt.matmul(b.T.T, a.T, out=out.T)
    assert [since(start, name) for name in ("allocations", "hidden_copies")] == [0, 0]
    assert set(out.numpy().ravel().tolist()) == {48.0}


def test_a_loop_that_writes_into_out_allocates_nothing() -> None:
    x, w, b = tt.ones((8, 16)), tt.ones((16, 4)), tt.ones(4)
    hidden, result = tt.empty((8, 4)), tt.empty((8, 4))
    with tt.track_memory() as tracker:
        start = memory.stats()
        for _ in range(10):
            tt.matmul(x, w, out=hidden)
            tt.add(hidden, b, out=hidden)
            tt.relu(hidden, out=hidden)
            tt.softmax(hidden, out=result)
        assert since(start, "allocations") == 0
    assert tracker.allocations == 0
    assert result.tolist() == [[0.25] * 4] * 8


def test_zeros_of_a_reused_block_are_zeros() -> None:
    """Blocks of the pool hold what was in them: `empty` shows it, `zeros` and `ones` do not."""
    for make, value in ((tt.zeros, 0.0), (tt.ones, 1.0)):
        for count in (1, 100, 5000, 300_000):
            dirty = tt.full(count, 7.0)
            address = dirty.address
            del dirty
            start = memory.stats()
            x = make(count)
            assert (since(start, "hits"), x.address) == (1, address)
            assert set(x.numpy().tolist()) == {value}
            del x


def test_a_compiled_program_takes_its_memory_from_the_pool() -> None:
    step = tt.compile(lambda x, w: tt.softmax(tt.cumulative_sum(x @ w, axis=0)).sum(axis=0))
    x, w = tt.ones((64, 256)), tt.ones((256, 256))
    step(x, w)
    step(x, w)
    start = memory.stats()
    step(x, w)
    assert since(start, "hits") == since(start, "allocations") > 0
    assert since(start, "misses") == 0


def test_statistics_are_tables_in_a_notebook() -> None:
    before = tt.memory.stats()
    kept = tt.ones((64, 64))
    html = tt.memory.stats()._repr_html_()
    assert "<table>" in html
    assert "current_bytes" in html
    assert "classes" not in html
    assert "allocations" in (tt.memory.stats() - before)._repr_html_()
    del kept

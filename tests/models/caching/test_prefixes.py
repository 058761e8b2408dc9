"""The radix tree of prefixes: what was stored is found, as it was, within the bound; what is in use stays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium.errors import ArgumentError
from tritium.models.caching.memory import SlotMemory
from tritium.models.caching.prefixes import PAGE, PrefixCache, common, default_limit

CAPACITY = 3 * PAGE + 7
LONG = list(range(CAPACITY))


class Cache:
    """A prefix cache over two slots: the first is written, the second loaded. The memory of a token is what came before it."""

    def __init__(self, pages: int, recurrent: bool = False) -> None:
        self.kv = tt.zeros((2, 2, CAPACITY, 3))
        self.state = tt.zeros((2, 5))
        self.memory = SlotMemory([self.kv], [self.state] if recurrent else [])
        page = PAGE * (self.memory.token_bytes + 8)
        self.prefixes = PrefixCache(self.memory, pages * page)

    def fill(self, tokens: Sequence[int]) -> None:
        values = self.kv.numpy()
        values[0] = -1
        h = 7
        for i, t in enumerate(tokens):
            h = (h * 31 + t + 1) % 65521
            values[0, :, i] = h
        self.state.numpy()[0] = h

    def store(self, tokens: Sequence[int]) -> None:
        self.fill(tokens)
        self.prefixes.store(0, tokens)

    def load(self, tokens: Sequence[int], start: int = 0) -> int:
        """Load what is known of some tokens and compare it with what was stored."""
        match = self.prefixes.match(tokens, len(tokens))
        self.fill(tokens)
        self.kv.numpy()[1] = -2
        self.prefixes.load(1, match, start)
        expected, loaded = self.kv.numpy()[0], self.kv.numpy()[1]
        first = min(start, match.length)
        assert np.array_equal(loaded[:, first : match.length], expected[:, first : match.length])
        assert (loaded[:, :first] == -2).all()
        assert (loaded[:, match.length :] == -2).all()
        return match.length


def check(cache: Cache) -> None:
    """The tree, its pages and its order are whole."""
    prefixes = cache.prefixes
    nodes = list(prefixes.nodes())
    assert len({n.page for n in nodes}) == len(nodes) == prefixes.pages
    assert prefixes.nbytes <= prefixes.limit
    for node in nodes:
        assert node.children == sorted(node.children)
        assert not node.children or len(node.tokens) == PAGE
        assert node.parent is not None
        assert node in node.parent.children


texts = st.lists(st.integers(0, 2), min_size=1, max_size=8)
pieces = st.lists(st.sampled_from([[0] * PAGE, [1] * PAGE, [0, 1] * (PAGE // 2), [2], [0, 0], [1, 2, 1]]), max_size=4)
sequences = texts | pieces.map(lambda parts: [0, *(t for part in parts for t in part)][:CAPACITY])


@settings(max_examples=50)
@given(st.lists(sequences, min_size=1, max_size=6), sequences)
def test_a_match_is_the_longest_prefix_of_all_that_was_stored(stored: list[list[int]], query: list[int]) -> None:
    cache = Cache(100)
    for tokens in stored:
        cache.store(tokens)
    assert cache.load(query) == max(common(tokens, query) for tokens in stored)
    check(cache)


@settings(max_examples=30)
@given(st.lists(sequences, min_size=1, max_size=8), st.integers(1, 6))
def test_the_bound_holds_and_what_is_found_is_right(stored: list[list[int]], pages: int) -> None:
    cache = Cache(pages)
    for tokens in stored:
        cache.store(tokens)
        check(cache)
        for other in stored:
            assert cache.load(other) <= len(other)


def test_the_least_recently_used_page_makes_way() -> None:
    cache = Cache(3)
    for first in (1, 2, 3):
        cache.store([first] * PAGE)
    assert cache.load([1] * PAGE) == PAGE
    cache.store([4] * PAGE)
    assert [cache.load([t] * PAGE) for t in (1, 2, 3, 4)] == [PAGE, 0, PAGE, PAGE]
    assert cache.prefixes.counts.evictions == 1


def test_the_end_of_a_path_makes_way_before_its_beginning() -> None:
    cache = Cache(3)
    cache.store(LONG[: 3 * PAGE])
    cache.store([7] * PAGE)
    assert cache.load(LONG) == 2 * PAGE


def test_what_a_request_runs_on_stays() -> None:
    cache = Cache(2)
    cache.fill(LONG)
    node = cache.prefixes.store(0, LONG[: 2 * PAGE])
    cache.prefixes.pin(node)
    cache.store([7] * PAGE)
    assert (cache.load(LONG), cache.load([7] * PAGE)) == (2 * PAGE, 0)
    cache.prefixes.release(node)
    cache.store([7] * PAGE)
    assert (cache.load(LONG), cache.load([7] * PAGE)) == (PAGE, PAGE)


def test_a_page_that_is_not_full_grows() -> None:
    cache = Cache(4)
    for count in (3, 9, PAGE + 2):
        cache.store(LONG[:count])
    assert cache.prefixes.pages == 2
    assert cache.load(LONG) == PAGE + 2


def test_what_a_slot_has_already_is_not_copied() -> None:
    cache = Cache(4)
    cache.store(LONG)
    assert cache.load(LONG, start=PAGE + 3) == CAPACITY


def test_states_are_found_where_they_were_kept() -> None:
    cache = Cache(100, recurrent=True)
    cache.store(LONG[: PAGE + 5])
    cache.prefixes.snapshot(0, LONG[: PAGE + 5])
    state = cache.state.numpy()[0].copy()
    cache.store(LONG)
    match = cache.prefixes.match(LONG, len(LONG))
    assert (match.length, match.known) == (PAGE + 5, len(LONG))
    cache.load(LONG)
    assert np.array_equal(cache.state.numpy()[1], state)
    assert cache.prefixes.match(LONG, PAGE + 4).length == 0


def test_states_count_and_make_way_with_their_page() -> None:
    cache = Cache(2, recurrent=True)
    prefixes = cache.prefixes
    for first in range(5):
        cache.store([first] * PAGE)
        prefixes.snapshot(0, [first] * PAGE)
        check(cache)
    assert prefixes.nbytes == prefixes.pages * (prefixes.page_bytes + 20)
    prefixes.clear()
    assert (prefixes.nbytes, prefixes.pages) == (0, 0)


def test_a_cache_of_no_bytes_keeps_nothing() -> None:
    cache = Cache(0)
    cache.store(LONG)
    assert cache.load(LONG) == 0


@pytest.mark.parametrize("nbytes", [-1, True, 1.5, 7])
def test_a_bound_that_holds_no_page_is_refused(nbytes: object) -> None:
    with pytest.raises(ArgumentError, match="prefix_cache"):
        PrefixCache(Cache(1).memory, nbytes)  # type: ignore[arg-type]


def test_the_usual_bound_is_that_of_the_slots() -> None:
    memory = Cache(1).memory
    slot = 4 * PAGE * (memory.token_bytes + 8)
    assert default_limit(memory, 3, CAPACITY) == 3 * slot
    assert default_limit(memory, 10**9, CAPACITY) == 1 << 30


@settings(max_examples=30)
@given(texts, texts)
def test_common_counts_what_two_begin_with(one: list[int], two: list[int]) -> None:
    count = common(one, tuple(two))
    assert one[:count] == two[:count]
    assert count == min(len(one), len(two)) or one[count] != two[count]

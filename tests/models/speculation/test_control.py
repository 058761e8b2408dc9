"""How many tokens to guess: by the measured cost of steps, and by how often guesses came true."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tritium.models.speculation.control import STALE, Costs, Offer, Trust, choose

SIZES = (1, 2, 4, 8, 16)


def costs(*seconds: float) -> Costs:
    """A curve that was measured."""
    curve = Costs(SIZES)
    for size, value in zip(SIZES, seconds, strict=False):
        for _ in range(4):
            curve.record(size, value)
    return curve


def test_more_is_guessed_where_more_costs_little() -> None:
    assert choose([Offer(15, 0.9)], costs(1, 1.1, 1.2, 1.4, 1.8)) == [15]
    assert choose([Offer(15, 0.9)], costs(1, 1.1, 1.2, 3.0, 6.0)) == [3]


def test_nothing_is_guessed_where_it_does_not_pay() -> None:
    assert choose([Offer(15, 0.1)], costs(1, 1.5, 2, 4, 8)) == [0]
    assert choose([Offer(15, 0.99)], costs(1, 2, 4, 8, 16)) == [0]
    assert choose([Offer(0, 0.99)], costs(1, 1, 1, 1, 1)) == [0]


def test_what_fills_a_program_anyway_is_free() -> None:
    assert choose([Offer(5, 0.2), Offer(5, 0.1), Offer(0, 0.9)], costs(1, 2, 4, 8, 16)) == [1, 0, 0]


def test_the_likeliest_guesses_of_all_are_taken() -> None:
    assert choose([Offer(15, 0.9), Offer(15, 0.2)], costs(1, 1.1, 1.2, 4, 8)) == [2, 0]


def test_an_unknown_size_is_tried_one_after_another() -> None:
    curve = costs(1)
    for size in (2, 4, 8):
        assert choose([Offer(15, 0.9)], curve) == [size - 1]
        for _ in range(3):
            curve.record(size, 1.0)


def test_the_first_time_of_a_size_is_not_counted_and_old_ones_are_forgotten() -> None:
    curve = Costs(SIZES)
    curve.record(3, 9.0)
    assert curve.curve == {}
    curve.record(3, 2.0)
    curve.record(3, 3.0)
    assert curve.curve == {4: 2.0}
    assert curve.known(4)
    for _ in range(2 * STALE):
        curve.record(1, 1.0)
    assert curve.curve == {1: 1.0}


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 15), st.floats(0, 1)), min_size=1, max_size=16),
    st.lists(st.floats(1e-3, 1), min_size=0, max_size=5),
)
def test_what_is_chosen_was_offered_and_fits_a_program(offers: list[tuple[int, float]], seconds: list[float]) -> None:
    counts = choose([Offer(*o) for o in offers], costs(*seconds))
    assert all(0 <= count <= offer for count, (offer, _) in zip(counts, offers, strict=True))
    assert len(offers) + sum(counts) <= SIZES[-1]


def test_trust_follows_what_came_true_lately() -> None:
    trust = Trust()
    trust.count(40, 0)
    assert trust.share > 0.95
    for _ in range(40):
        trust.count(0, 1)
    assert trust.share < 0.1
    assert Trust().share == pytest.approx(0.5)

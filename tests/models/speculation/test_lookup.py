"""Guesses by lookup: what followed the same tokens before."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from tritium.models.speculation.lookup import SIZES, Lookup


def expected(tokens: list[int], most: int) -> list[int]:
    """The tokens after the last earlier occurrence of the last ones, written as a search."""
    for size in SIZES:
        if len(tokens) < size:
            continue
        tail = tokens[-size:]
        for at in range(len(tokens) - 1, size - 1, -1):
            if tokens[at - size : at] == tail:
                longer = list(tokens)
                for i in range(most):
                    longer.append(longer[at + i])
                return longer[len(tokens) :]
    return []


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 8), st.data())
def test_a_guess_is_what_followed_before(tokens: list[int], most: int, data: st.DataObject) -> None:
    lookup, count = Lookup(), 0
    while count < len(tokens):
        count = data.draw(st.integers(count + 1, len(tokens)))
        guess, size = lookup.guess(tokens[:count], most)
        assert guess == expected(tokens[:count], most)
        assert bool(guess) == (size in SIZES)


def test_a_sequence_that_repeats_itself_is_guessed_to_go_on() -> None:
    assert Lookup().guess([9, 1, 2, 3, 1, 2, 3, 1, 2], 7) == ([3, 1, 2, 3, 1, 2, 3], 4)

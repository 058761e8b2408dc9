"""Sizes that vary: arithmetic as of integers, comparisons that are noted, and what needs the number."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from tritium.graph.size import Size, SizeNeededError, Sizes, evaluate, is_varying, polynomial_of, settled, traced_value


def expression(rng: random.Random, depth: int = 4) -> Callable[[Any, Any], Any]:
    """Return a random function of two sizes, with arithmetic, branches and limits."""
    if depth == 0:
        return rng.choice([lambda n, m: n, lambda n, m: m, lambda n, m, k=rng.randint(-9, 40): k])
    a, b = expression(rng, depth - 1), expression(rng, depth - 1)
    divisor = rng.randint(1, 9)
    return rng.choice(
        [
            lambda n, m: a(n, m) + b(n, m),
            lambda n, m: a(n, m) - b(n, m),
            lambda n, m: a(n, m) * b(n, m),
            lambda n, m: a(n, m) // divisor,
            lambda n, m: a(n, m) % divisor,
            lambda n, m: max(a(n, m), b(n, m)),
            lambda n, m: a(n, m) if b(n, m) < 17 else b(n, m),
            lambda n, m: a(n, m) if b(n, m) else 5,
            lambda n, m: a(n, m) if n == m else b(n, m),
            lambda n, m: abs(a(n, m)) // n,
        ]
    )


@pytest.mark.parametrize("seed", range(60))
def test_where_comparisons_have_the_same_outcome_a_polynomial_is_what_integers_give(seed: int) -> None:
    rng = random.Random(seed)
    fn = expression(rng)
    sizes = Sizes()
    n, m = sizes.add("n", rng.randint(2, 50)), sizes.add("m", rng.randint(2, 50))
    result = fn(n, m)
    assert traced_value(result) == fn(n.traced, m.traced)
    served = 0
    for _ in range(40):
        numbers = [rng.randint(2, 60), rng.randint(2, 60)]
        values = sizes.evaluate_atoms(numbers)
        if sizes.holds(values):
            served += 1
            assert evaluate(polynomial_of(result), values) == fn(*numbers)
    assert sizes.holds(sizes.values)
    assert served or sizes.guards


def test_what_holds_for_every_size_is_not_noted() -> None:
    sizes = Sizes()
    n = sizes.add("n", 37)
    assert n > 1
    assert n != 0
    assert n != 1
    assert n >= 2
    assert n * 64 > 64
    assert not n < 0
    assert n == n
    assert (n * 64) // 64 == n
    assert (n * 64) % 8 == 0
    assert (n * n * 6) // (n * 2) == 3 * n
    assert not sizes.guards
    assert n >= 16
    assert n != 40
    assert sizes.conditions() == ["n != 40"]
    assert sizes.bounds[0][0] == 16
    assert not sizes.holds([15])
    assert not sizes.holds([40])
    assert not sizes.holds([1])
    assert sizes.holds([41])


@pytest.mark.parametrize(
    "needing",
    [
        lambda n: range(n),
        lambda n: [0] * n,
        lambda n: [1, 2, 3][n],
        lambda n: math.log2(n),
        lambda n: math.isqrt(n),
        lambda n: n / 2,
        lambda n: 2.0 * n,
        lambda n: n < 1.5,
        lambda n: 2**n,
        lambda n: n**-1,
        lambda n: n & 1,
        lambda n: n << 1,
        lambda n: int(n),
        lambda n: round(n),
        lambda n: f"{n}",
        lambda n: str(n),
        lambda n: n in {1, 2},
        lambda n: {37: "x"}.get(n),
        lambda n: n.real,
    ],
)
def test_what_needs_the_number_says_so(needing: Callable[[Any], Any]) -> None:
    sizes = Sizes()
    n = sizes.add("n", 37)
    with pytest.raises(SizeNeededError):
        needing(n + 1)
    assert list(sizes.needed) == [0]


def test_after_the_trace_a_size_is_its_traced_number() -> None:
    sizes = Sizes()
    n = sizes.add("n", 37)
    sizes.is_open = False
    assert int(n) == 37
    assert n / 2 == 18.5
    assert f"{n:3d}" == " 37"
    assert list(range(n))[-1] == 36
    assert n & 1 == 1
    assert n < 40
    assert not sizes.guards


def test_bits_are_counted_for_all_sizes_that_have_as_many() -> None:
    sizes = Sizes()
    n = sizes.add("n", 37)
    assert n.bit_length() == 6
    assert [k for k in range(2, 200) if sizes.holds([k])] == list(range(32, 64))


def test_sizes_of_two_traces_are_never_equal() -> None:
    one, other = Sizes(), Sizes()
    n, m = one.add("n", 8), other.add("n", 8)
    with one.trusted(), other.trusted():
        assert n != m
        assert hash(n) != hash(m)
        assert not one.guards
        assert not other.guards
        assert len({n, one.add("m", 8)}) == 2


def test_the_largest_of_sizes_is_computed_for_each() -> None:
    sizes = Sizes()
    n = sizes.add("n", 8)
    most = sizes.largest([64, n * 3, n * n])
    assert isinstance(most, int)
    assert type(most) is Size
    assert most.traced == 64
    assert not sizes.guards
    assert [evaluate(most.polynomial, sizes.evaluate_atoms([k])) for k in (2, 10, 30)] == [64, 100, 900]


def test_tuples_are_settled_at_any_depth() -> None:
    sizes = Sizes()
    n = sizes.add("n", 8)
    value = ((0, n, 1), "at", (n * 2,))
    assert is_varying(value)
    assert not is_varying(((0, 8, 1), "at"))
    assert settled(value, [5]) == ((0, 5, 1), "at", (10,))

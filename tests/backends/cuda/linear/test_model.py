"""The model of product times: it grows with the work, knows every tile that is tried, and ranks what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tritium.backends.cuda.linear import choice as cuda_tuned, measured, model
from tritium.backends.cuda.linear.choice import Case, choice
from tritium.backends.cuda.linear.spread import ALONG

CASES = st.tuples(st.integers(64, 33_000), st.integers(64, 33_000), st.integers(9, 9000)).map(lambda size: Case(*size))


def tile(n: int = 8192, m: int = 2048, row_bytes: int = 2048, number: int = 0, **others: int) -> model.Tile:
    return model.Tile(n, m, row_bytes, *(others.get(name, value) for name, value in SHAPE.items()), False, number)


SHAPE = {"rows": 128, "tokens": 128, "step": 64, "turns": 0}


@given(CASES)
def test_every_candidate_of_ternary_weights_has_a_time(case: Case) -> None:
    times = [cuda_tuned.tile_us(case, c, 132) for c in cuda_tuned.wgmmas(case)]
    assert times
    assert sum(us is None for us in times) <= len(times) // 2  # tiles that are always far from the fastest
    assert all(us is None or us > 1 for us in times)


@given(CASES, st.integers(1, 8))
def test_more_columns_never_take_less(case: Case, more: int) -> None:
    wider = case._replace(k=case.k + 512 * more)
    for c in cuda_tuned.wgmmas(case):
        us, longer = (cuda_tuned.tile_us(one, c, 132) for one in (case, wider))
        assert us is None or c.get("spread") == ALONG or longer >= us


def test_a_second_round_takes_the_steps_of_the_first_again() -> None:
    one, two = (model.terms(tile(n=128 * count, m=128), 132) for count in (132, 133))
    assert (one.steps, two.steps) == (32, 64)
    assert one.costs["round"] == 0 < two.costs["round"]


@pytest.mark.parametrize(("number", "steps"), [(0, 64), (1, 40), (ALONG, 36), (-2, 48)])
def test_a_last_round_of_one_tile_is_cut_or_shared(number: int, steps: float) -> None:
    assert model.terms(tile(n=128 * 133, m=128, number=number), 132).steps == steps


def test_two_programs_beside_each_other_are_one_round() -> None:
    beside = tile(n=128 * 200, m=128)._replace(beside=True)
    assert model.terms(beside, 132).doubled
    assert model.terms(beside, 132).steps == 32
    assert not model.terms(beside, 200).doubled


def test_a_tile_that_was_not_measured_has_no_time() -> None:
    assert model.tile_us(tile(rows=512), 132) is None


@pytest.mark.parametrize(
    ("n", "k", "m", "faster", "slower"),
    [  # of bench/cuda_sweep.py on an H200; µs 14.2 and 26.7, 157 and 198, 9.1 and 11.8, 91 and 118
        (5120, 5120, 256, (128, 96, 64, 0, 6, 104, 136, 0), (256, 128, 64, 0, 3, 168, 240, 0)),
        (8192, 8192, 2048, (256, 128, 32, 0, 6, 168, 240, 1), (256, 64, 64, 0, 6, 168, 240, 1)),
        (8192, 8192, 32, (64, 32, 128, 1, 6, 168, 240, 0), (128, 32, 128, 0, 6, 168, 240, 0)),
        (8192, 2048, 4096, (256, 128, 64, 0, 3, 168, 240, 1), (128, 64, 128, 0, 4, 168, 240, 1)),
    ],
)
def test_what_was_faster_has_the_lesser_time(
    n: int, k: int, m: int, faster: tuple[int, ...], slower: tuple[int, ...]
) -> None:
    times = [cuda_tuned.tile_us(Case(n, k, m), choice("wgmma", *cut), 132) for cut in (faster, slower)]
    assert None not in times
    assert times[0] < times[1]


def test_no_cost_is_negative_and_doubled_steps_are_no_faster_than_two() -> None:
    assert min(measured.COSTS.values()) >= 0
    for key, time in measured.TILE_TIMES.items():
        assert 0 < time.start < 10, key
        assert 0 < time.step <= time.doubled <= 3 * time.step, key

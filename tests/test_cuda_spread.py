"""Tiles are dealt so that no program is idle for long, and the jobs of the kernel are every step of every tile once."""

from __future__ import annotations

from types import FunctionType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritium.backends.cuda_spread import spread

SPREADS = st.tuples(
    st.sampled_from([0, 1, 2, -2, -7]), st.integers(1, 3000), st.integers(1, 200), st.sampled_from([128, 256, 512]), st.integers(1, 140)
)  # fmt: skip


@given(SPREADS)
def test_programs_are_never_more_than_jobs_nor_parts_more_than_steps(given: tuple[int, int, int, int, int]) -> None:
    number, tiles, steps, _, processors = given
    programs, split, whole = spread(*given)
    assert 1 <= split <= steps
    assert (split == 1) == (whole == tiles)
    assert 1 <= programs <= whole + (tiles - whole) * split
    if number > 0:
        assert programs <= number * processors
        assert whole == tiles or (whole % programs == 0 and (tiles - whole) * split <= programs)


@pytest.mark.parametrize(
    ("tiles", "steps", "split"),
    [(320, 10, 2), (320, 27, 2), (160, 27, 3), (132 + 12, 32, 4), (132 + 1, 200, 10),
     (132 + 100, 200, 1), (264, 32, 1), (100, 32, 1), (320, 4, 1)],
)  # fmt: skip
def test_a_last_round_is_shared_where_that_ends_it_sooner(tiles: int, steps: int, split: int) -> None:
    assert spread(1, tiles, steps, 256, 132) == (
        min(tiles, 132), split, tiles if split == 1 else tiles // 132 * 132,
    )  # fmt: skip


@settings(deadline=None)
@given(SPREADS)
def test_jobs_are_every_step_of_every_tile_once(given: tuple[int, int, int, int, int]) -> None:
    cuda_wgmma = pytest.importorskip("tritium.backends.cuda_wgmma", reason="the kernel is written in Triton's Gluon")
    numbers = SimpleNamespace(maximum=max, where=lambda which, one, other: one if which else other)
    job, jobs = (FunctionType(f.fn.__code__, {"gl": numbers}) for f in (cuda_wgmma._job, cuda_wgmma._jobs))
    _, tiles, steps, _, _ = given
    programs, split, whole = spread(*given)
    count = jobs(whole, tiles - whole, split)
    assert programs <= count
    seen: dict[int, list[tuple[int, int, int]]] = {}
    for t in range(count):
        tile, part, first, n = job(t, whole, tiles - whole, steps, split)
        assert n > 0
        seen.setdefault(tile, []).append((first, n, part))
    assert set(seen) == set(range(tiles))
    for tile, parts in seen.items():
        assert [part for _, _, part in parts] == list(range(1 if tile < whole else split))
        ends = [0, *(first + n for first, n, _ in parts)]
        assert [first for first, _, _ in parts] == ends[:-1]
        assert ends[-1] == steps

"""Tiles are dealt so that no program is idle for long, and the jobs of the kernel are every step and token of every tile once."""

from __future__ import annotations

from collections import Counter
from types import FunctionType

import pytest
from hypothesis import given, settings, strategies as st

from tritium.backends.cuda.linear.spread import ALONG, FEWEST, MOST_PARTS, is_possible, spread, tensors

SPREADS = st.tuples(
    st.sampled_from([0, 1, 2, ALONG, -2, -7]), st.integers(1, 3000), st.integers(1, 200),
    st.sampled_from([16, 32, 64, 128, 160, 192, 256]), st.integers(1, 140),
)  # fmt: skip


@given(SPREADS)
def test_programs_are_never_more_than_jobs_nor_parts_more_than_steps(given: tuple[int, int, int, int, int]) -> None:
    number, tiles, steps, tokens, processors = given
    programs, split, pieces, whole, parts = spread(*given)
    assert 1 <= split <= steps
    assert (pieces == parts == 1) == (whole == tiles)
    assert 1 <= programs <= whole * split
    if number == ALONG:
        assert programs <= processors
        assert 1 <= parts <= MOST_PARTS
        assert parts == 1 or (steps >= 2 * parts and (tiles - whole) * parts <= programs and whole % programs == 0)
    elif number > 0:
        left = tiles % programs
        assert split == 1
        assert programs <= number * processors
        assert (pieces > 1) == (0 < 2 * left <= programs and tokens >= 2 * FEWEST and tokens.bit_count() == 1)
    if pieces > 1:
        assert whole % programs == 0
        assert (tiles - whole) * pieces <= programs
        assert tokens // pieces >= FEWEST


@pytest.mark.parametrize(
    ("tiles", "tokens", "pieces"),
    [(320, 128, 2), (160, 128, 4), (13 * 132 + 12, 128, 4), (132 + 33, 128, 4), (132 + 34, 128, 2), (132 + 66, 128, 2),
     (132 + 67, 128, 1), (132 + 1, 256, 4), (132 + 1, 64, 2), (132 + 1, 32, 1), (264, 128, 1), (100, 128, 1),
     (132 + 1, 160, 1), (132 + 1, 192, 1)],
)  # fmt: skip
def test_tiles_of_a_last_round_are_cut_where_every_piece_has_a_program(tiles: int, tokens: int, pieces: int) -> None:
    whole = tiles if pieces == 1 else tiles // 132 * 132
    assert spread(1, tiles, 10, tokens, 132) == (min(tiles, 132), 1, pieces, whole, 1)


@pytest.mark.parametrize(
    ("tiles", "steps", "parts"),
    [(133, 40, 8), (132 + 33, 40, 4), (132 + 33, 6, 3), (199, 40, 1), (264, 40, 1), (100, 40, 1)],
)
def test_tiles_of_a_last_round_share_their_columns_where_every_part_has_a_program(
    tiles: int, steps: int, parts: int
) -> None:
    whole = tiles if parts == 1 else tiles // 132 * 132
    assert spread(ALONG, tiles, steps, 160, 132) == (min(tiles, 132), 1, 1, whole, parts)


@given(st.integers(1, 400))
def test_the_tensors_of_a_tile_are_powers_of_two(tokens: int) -> None:
    parts = tensors(tokens)
    assert sum(parts) == tokens
    assert all(part.bit_count() == 1 for part in parts)
    assert is_possible(tokens) == (len(parts) <= 2 and parts[-1] >= 16)


@settings(deadline=None)
@given(SPREADS)
def test_jobs_are_every_step_and_token_of_every_tile_once(given: tuple[int, int, int, int, int]) -> None:
    cuda_wgmma = pytest.importorskip(
        "tritium.backends.cuda.linear.wgmma", reason="the kernel is written in Triton's Gluon"
    )
    part_of, piece, jobs = (
        FunctionType(f.fn.__code__, {}) for f in (cuda_wgmma._part, cuda_wgmma._piece, cuda_wgmma._jobs)
    )
    job = FunctionType(cuda_wgmma._job.fn.__code__, {"_part": part_of})
    _, tiles, steps, _, _ = given
    programs, split, pieces, whole, parts = spread(*given)
    seen: dict[int, list[tuple[int, int, int]]] = {}
    turns: list[tuple[int, int]] = []  # of each job, its program and which of that program's it is
    for program in range(programs):
        for t in range(program, whole * split, programs):
            tile, part, first, n = job(t, whole, steps, split)
            assert n > 0
            seen.setdefault(tile, []).append((part, first, n))
            turns.append((program, t // programs))
    assert set(seen) == set(range(whole))
    if parts > 1:
        for program in range(programs):
            for t in range(whole + program, whole + (tiles - whole) * parts, programs):
                tile, part, first, n = part_of(t - whole, tiles - whole, steps, parts)
                assert n > 0
                seen.setdefault(whole + tile, []).append((part, first, n))
                turns.append((program, t // programs))
        assert set(seen) == set(range(tiles))
    for tile, shares in seen.items():
        shares.sort()
        assert [part for part, _, _ in shares] == list(range(split if tile < whole else parts))
        ends = [0, *(first + n for _, first, n in shares)]
        assert [first for _, first, _ in shares] == ends[:-1]
        assert ends[-1] == steps
    if pieces > 1:
        late = [(p, t) for p in range(programs) for t in range(whole + p, jobs(whole, tiles, pieces), programs)]
        turns += [(program, t // programs) for program, t in late]
        found = Counter(piece(t, whole, pieces) for _, t in late)
        assert found == Counter((tile, i) for tile in range(whole, tiles) for i in range(pieces))
    of_program = Counter(program for program, _ in turns)
    assert sorted(turns) == [(program, j) for program in range(programs) for j in range(of_program[program])]

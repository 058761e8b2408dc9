"""plan: where temporaries live. No two alive together overlap, and the arena is close to what is alive at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from statistics import mean

import pytest
from hypothesis import given, strategies as st

from tritium.compiler.plan import Block, Plan, memory_groups, plan
from tritium.errors import ArgumentError


def together(a: Block, b: Block) -> bool:
    return a.first <= b.last and b.first <= a.last


def overlap(a: Block, at: int, b: Block, bt: int) -> bool:
    return at < bt + b.size and bt < at + a.size


def clashes(blocks: Sequence[Block], offsets: Sequence[int]) -> list[tuple[int, int]]:
    return [
        (i, j)
        for i, a in enumerate(blocks)
        for j, b in enumerate(blocks[:i])
        if together(a, b) and overlap(a, offsets[i], b, offsets[j])
    ]


def by_size(blocks: Sequence[Block]) -> int:
    """The arena of the plainest greedy plan: the largest block first, each as low as it goes."""
    placed: list[tuple[int, Block]] = []
    for block in sorted(blocks, key=lambda b: -b.size):
        near = [(at, b) for at, b in placed if together(block, b)]
        lows = [0, *(at + b.size for at, b in near)]
        low = min(at for at in lows if not any(overlap(block, at, b, bt) for bt, b in near))
        placed.append((low, block))
    return max(at + b.size for at, b in placed)


def transformer(layers: int, tokens: int, width: int, heads: int, hidden: int) -> list[Block]:
    """The temporaries of a transformer, step by step, in f32."""
    made: list[list[int]] = []

    def step(elements: int, *reads: int) -> int:
        for r in reads:
            made[r][2] = len(made)
        made.append([4 * elements, len(made), len(made)])
        return len(made) - 1

    x = step(tokens * width)
    for _ in range(layers):
        normed = step(tokens * width, x)
        q, k, v = (step(tokens * width, normed) for _ in range(3))
        scores = step(heads * tokens * tokens, q, k)
        weights = step(heads * tokens * tokens, scores)
        mixed = step(tokens * width, weights, v)
        x = step(tokens * width, step(tokens * width, mixed), x)
        normed = step(tokens * width, x)
        scale = step(tokens, normed)
        gate, up = (step(tokens * hidden, normed, scale) for _ in range(2))
        x = step(tokens * width, step(tokens * width, step(tokens * hidden, gate, up)), x)
    return [Block(*b) for b in made]


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Block]:
    span = draw(st.integers(0, 20))
    block = st.builds(
        lambda size, first, steps: Block(size, first, first + steps),
        st.one_of(st.integers(0, 300), st.sampled_from([0, 64, 4096, 65536])),
        st.integers(0, 30),
        st.integers(0, span),
    )
    return draw(st.lists(block, max_size=40))


# ---- what holds for every plan


@given(lifetimes(), st.sampled_from([1, 3, 16, 64, 128]))
def test_blocks_alive_together_never_overlap(blocks: list[Block], alignment: int) -> None:
    assert not clashes(blocks, plan(blocks, alignment).offsets)


@given(lifetimes(), st.sampled_from([1, 64]))
def test_the_arena_lies_between_the_lower_bound_and_the_sum(blocks: list[Block], alignment: int) -> None:
    made = plan(blocks, alignment)
    sizes = [-(-b.size // alignment) * alignment for b in blocks]
    live = [sum(s for s, b in zip(sizes, blocks, strict=True) if b.first <= t <= b.last) for t in range(60)]
    assert made.naive_bytes == sum(sizes)
    assert made.lower_bound_bytes == max(live)
    assert made.lower_bound_bytes <= made.peak_bytes <= made.naive_bytes
    assert made.peak_bytes == max((o + s for o, s in zip(made.offsets, sizes, strict=True)), default=0)


@given(lifetimes(), st.sampled_from([1, 3, 64]))
def test_every_offset_is_aligned(blocks: list[Block], alignment: int) -> None:
    made = plan(blocks, alignment)
    assert all(o >= 0 and o % alignment == 0 for o in made.offsets)
    assert made.peak_bytes % alignment == 0


@given(lifetimes())
def test_the_same_blocks_get_the_same_plan(blocks: list[Block]) -> None:
    assert plan(blocks) == plan(list(blocks))


@given(lifetimes(), st.integers(-1000, 1000))
def test_only_the_order_of_the_steps_matters_not_when_they_begin(blocks: list[Block], shift: int) -> None:
    assert plan([Block(b.size, b.first + shift, b.last + shift) for b in blocks]) == plan(blocks)


# ---- examples


def test_no_blocks_need_no_arena() -> None:
    assert plan([]) == Plan((), 0, 0, 0)


def test_an_empty_block_takes_no_room() -> None:
    made = plan([Block(0, 0, 9), Block(10, 0, 9), Block(0, 3, 3)], alignment=1)
    assert (made.peak_bytes, made.naive_bytes) == (10, 10)


def test_a_size_is_rounded_up_to_the_alignment() -> None:
    made = plan([Block(1, 0, 0), Block(65, 0, 0)])
    assert (made.peak_bytes, made.naive_bytes, made.lower_bound_bytes) == (192, 192, 192)


def test_a_block_read_at_the_step_that_makes_another_is_alive_with_it() -> None:
    assert plan([Block(64, 0, 1), Block(64, 1, 2)]).peak_bytes == 128
    assert plan([Block(64, 0, 0), Block(64, 1, 2)]).peak_bytes == 64


def test_a_chain_lives_in_two_blocks() -> None:
    assert plan([Block(64, i, i + 1) for i in range(100)]).peak_bytes == 128


def test_a_stack_of_lifetimes_needs_its_sum() -> None:
    made = plan([Block(64 * (i + 1), i, 20 - i) for i in range(10)])
    assert made.peak_bytes == made.naive_bytes == made.lower_bound_bytes


def test_where_the_largest_first_is_best_it_is_found() -> None:
    blocks = [Block(128, 0, 1), Block(64, 1, 2), Block(192, 2, 3), Block(64, 3, 4)]
    assert by_size(blocks) == plan(blocks).peak_bytes == plan(blocks).lower_bound_bytes == 256


def test_where_the_largest_first_is_not_best_a_lower_plan_is_found() -> None:
    blocks = [Block(4, 1, 3), Block(2, 4, 5), Block(3, 4, 7), Block(3, 3, 5)]
    made = plan(blocks, alignment=1)
    assert made.peak_bytes == made.lower_bound_bytes < by_size(blocks)


def test_random_blocks_need_a_fiftieth_more_than_is_alive_and_less_than_the_largest_first() -> None:
    random = Random(0)
    over, greedy = [], []
    for _ in range(100):
        firsts = [random.randrange(40) for _ in range(40)]
        blocks = [Block(int(2 ** random.uniform(6, 20)), f, f + random.randrange(12)) for f in firsts]
        made = plan(blocks, alignment=1)
        over.append(made.peak_bytes / made.lower_bound_bytes)
        greedy.append(by_size(blocks) / made.lower_bound_bytes)
    assert mean(over) < 1.02
    assert mean(over) < mean(greedy)


@pytest.mark.parametrize(
    "sizes",
    [(128, 512, 8, 2048), (1, 512, 8, 2048), (100, 300, 3, 900), (177, 320, 5, 853), (1024, 256, 8, 1024)],
    ids=str,
)
def test_a_transformer_of_12_layers_needs_at_most_a_tenth_more_than_is_alive(sizes: tuple[int, int, int, int]) -> None:
    blocks = transformer(12, *sizes)
    made = plan(blocks)
    assert not clashes(blocks, made.offsets)
    assert made.peak_bytes <= 1.1 * made.lower_bound_bytes
    assert made.peak_bytes * 10 < made.naive_bytes


def test_deeper_networks_need_no_larger_arena() -> None:
    assert plan(transformer(2, 64, 128, 4, 512)).peak_bytes == plan(transformer(300, 64, 128, 4, 512)).peak_bytes


def test_many_blocks_alive_together_are_planned_too() -> None:
    blocks = [Block(64 * (1 + i * 7919 % 97), i * 31 % 1000, i * 31 % 1000 + 1 + i * 17 % 900) for i in range(1500)]
    made = plan(blocks)  # so many pairs that only the sweeps run
    assert not clashes(blocks, made.offsets)
    assert made.peak_bytes <= 1.02 * made.lower_bound_bytes


def test_gaps_side_by_side_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritium.compiler.plan.DENSE", 0)  # only the sweeps
    around, wide = Block(64, 0, 7), Block(192, 3, 4)
    lower_first = [Block(128, 0, 1), Block(64, 0, 2), Block(128, 6, 7), Block(64, 5, 7)]
    upper_first = [Block(128, 0, 2), Block(64, 0, 1), Block(128, 5, 7), Block(64, 6, 7)]
    assert plan([*lower_first, around, wide]).peak_bytes == 256
    assert plan([*upper_first, around, wide]).peak_bytes == 256


def test_a_plan_prints_its_figures() -> None:
    text = "arena of 128 bytes for 3 blocks of 192 bytes; at least 128 are alive together"
    assert str(plan([Block(64, i, i + 1) for i in range(3)])) == text


# ---- groups


def test_blocks_that_share_memory_are_one_group() -> None:
    blocks = [Block(64, 0, 9), Block(64, 0, 1), Block(64, 2, 3), Block(0, 0, 9)]
    groups = memory_groups(blocks, plan(blocks))
    assert sorted(groups) == [[0], [1, 2]]


@given(lifetimes())
def test_groups_hold_every_block_with_bytes_once_and_share_no_address(blocks: list[Block]) -> None:
    made = plan(blocks)
    groups = memory_groups(blocks, made)
    assert sorted(i for g in groups for i in g) == [i for i, b in enumerate(blocks) if b.size]
    ranges = [(min(made.offsets[i] for i in g), max(made.offsets[i] + blocks[i].size for i in g)) for g in groups]
    assert ranges == sorted(ranges)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges))


@given(lifetimes())
def test_blocks_of_one_group_are_joined_by_overlaps(blocks: list[Block]) -> None:
    made = plan(blocks)
    for group in memory_groups(blocks, made):
        reached, rest = {group[0]}, set(group[1:])
        while near := {
            i for i in rest for j in reached if overlap(blocks[i], made.offsets[i], blocks[j], made.offsets[j])
        }:
            reached |= near
            rest -= near
        assert not rest


# ---- refusals


@pytest.mark.parametrize("block", [Block(-1, 0, 0), Block(8, 3, 2)])
def test_a_block_that_cannot_be_is_refused(block: Block) -> None:
    with pytest.raises(ArgumentError, match="block 1"):
        plan([Block(8, 0, 0), block])


def test_an_alignment_below_one_is_refused() -> None:
    with pytest.raises(ArgumentError, match="alignment=0"):
        plan([], alignment=0)

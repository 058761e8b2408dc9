"""schedule: the order of the steps. It keeps what must come first, and its peak is as low as it can be found."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import mean

import pytest
from hypothesis import given, settings, strategies as st

from tritium.compiler import order as orders
from tritium.compiler.order import Item, lifetimes, order, peak
from tritium.compiler.plan import Block, plan
from tritium.errors import ArgumentError

NONE: frozenset[int] = frozenset()


def reads(item: Item) -> set[int]:
    return {*item.inputs} if item.alias is None else {*item.inputs, item.alias}


def needs(item: Item) -> set[int]:
    return reads(item) | {*item.after}


def is_valid(items: Sequence[Item], numbers: Sequence[int]) -> bool:
    at = {i: position for position, i in enumerate(numbers)}
    return sorted(numbers) == list(range(len(items))) and all(at[j] < at[i] for i in numbers for j in needs(items[i]))


def alive(items: Sequence[Item], keep: frozenset[int], done: frozenset[int], item: int) -> int:
    """The bytes alive while an item runs after those done, as they are defined."""

    def owner(i: int) -> int:
        alias = items[i].alias
        return i if alias is None else owner(alias)

    wanted = {j for i, it in enumerate(items) if i not in done for j in reads(it)}
    memories = {owner(j) for j in done} & {owner(j) for j in wanted | keep}
    return sum(items[r].nbytes for r in memories | {owner(item)})


def optimum(items: Sequence[Item], keep: frozenset[int]) -> int:
    """The lowest peak of all orders: every set of items that may come first is looked at."""
    lowest: dict[frozenset[int], int] = {frozenset(): 0}
    for _ in items:
        grown: dict[frozenset[int], int] = {}
        for done, so_far in lowest.items():
            for i in {i for i, it in enumerate(items) if needs(it) <= done} - done:
                reached = max(so_far, alive(items, keep, done, i))
                grown[done | {i}] = min(reached, grown.get(done | {i}, reached))
        lowest = grown
    (best,) = lowest.values()
    return best


@st.composite
def graphs(draw: st.DrawFn, most: int = 30) -> tuple[list[Item], frozenset[int]]:
    items: list[Item] = []
    for i in range(draw(st.integers(0, most))):
        before = st.lists(st.integers(0, i - 1), max_size=3).map(tuple) if i else st.just(())
        inputs = draw(before)
        alias = draw(st.sampled_from(inputs)) if inputs and draw(st.integers(0, 3)) == 0 else None
        after = draw(before) if draw(st.integers(0, 5)) == 0 else ()
        items.append(Item(inputs, draw(st.sampled_from([0, 1, 2, 7, 10, 100])), alias, after))
    keep = draw(st.frozensets(st.integers(0, len(items) - 1), max_size=3)) if items else NONE
    return items, keep


# ---- what holds for every graph


@given(graphs())
def test_every_item_comes_once_and_after_what_it_needs(graph: tuple[list[Item], frozenset[int]]) -> None:
    assert is_valid(graph[0], order(*graph))


@given(graphs())
def test_the_peak_is_never_above_that_of_the_given_order(graph: tuple[list[Item], frozenset[int]]) -> None:
    items, keep = graph
    given_order = list(range(len(items)))
    found = order(items, keep)
    assert peak(items, keep, found) < peak(items, keep, given_order) or found == given_order


@given(graphs())
def test_the_same_items_get_the_same_order(graph: tuple[list[Item], frozenset[int]]) -> None:
    assert order(*graph) == order(list(graph[0]), frozenset(sorted(graph[1], reverse=True)))


@given(graphs(most=8))
def test_up_to_eight_items_get_the_best_order_there_is(graph: tuple[list[Item], frozenset[int]]) -> None:
    assert peak(*graph, order(*graph)) == optimum(*graph)


@given(graphs())
def test_the_peak_counts_what_is_alive_at_each_step(graph: tuple[list[Item], frozenset[int]]) -> None:
    found = order(*graph)
    steps = [alive(*graph, frozenset(found[:position]), i) for position, i in enumerate(found)]
    assert peak(*graph, found) == max(steps, default=0)


@given(graphs())
def test_without_kept_results_the_peak_is_what_the_plan_calls_its_lower_bound(
    graph: tuple[list[Item], frozenset[int]],
) -> None:
    items, _ = graph
    found = order(items, NONE)
    blocks = [b for b in lifetimes(items, NONE, found) if b]
    assert plan(blocks, alignment=1).lower_bound_bytes == peak(items, NONE, found)


# ---- orders


def tree(depth: int, nbytes: int = 8) -> tuple[list[Item], frozenset[int]]:
    """A sum of 2**depth leaves, all leaves first, then level by level."""
    items = [Item((), nbytes) for _ in range(2**depth)]
    level = list(range(len(items)))
    while len(level) > 1:
        items += [Item((a, b), nbytes) for a, b in zip(level[::2], level[1::2], strict=True)]
        level = list(range(len(items) - len(level) // 2, len(items)))
    return items, frozenset(level)


def test_no_items_have_an_order_too() -> None:
    assert order([], NONE) == []
    assert peak([], NONE, []) == 0


def test_equal_peaks_leave_the_order_as_it_was() -> None:
    items = [Item((), 8), Item((), 8), Item((1,), 8), Item((0,), 8), Item((2, 3), 8)]
    assert peak(items, NONE, [0, 1, 3, 2, 4]) == peak(items, NONE, range(5))
    assert order(items, NONE) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("depth", [1, 2, 3, 6, 10])
def test_a_tree_of_sums_needs_one_block_for_each_level(depth: int) -> None:
    items, keep = tree(depth)
    assert peak(items, keep, range(len(items))) >= 8 * 2**depth
    assert peak(items, keep, order(items, keep)) == 8 * (depth + 2)


def test_the_heavier_branch_goes_first() -> None:
    items = [Item((), 1), Item((), 100), Item((1,), 1), Item((0, 2), 1)]
    assert order(items, NONE) == [1, 2, 0, 3]
    assert peak(items, NONE, [1, 2, 0, 3]) == 101


@pytest.mark.parametrize(
    "items",
    [
        [Item((), 1), Item((0,), 50), Item((0,), 50), Item((1,), 2), Item((2,), 2), Item((3, 4), 1)],
        [Item((), 4), Item((0,), 8), Item((0,), 9), Item((1, 2), 4), Item((3,), 8), Item((3,), 9), Item((4, 5), 1)],
        [Item((), 64), Item((0,), 16), Item((0,), 64), Item((1,), 64), Item((2,), 1), Item((3,), 1), Item((4, 5), 8)],
    ],
    ids=["two sides", "one after another", "uneven sides"],
)
def test_a_diamond_gets_the_best_order(items: list[Item]) -> None:
    keep = frozenset([len(items) - 1])
    assert peak(items, keep, order(items, keep)) == optimum(items, keep)


def test_towers_are_built_one_after_another() -> None:
    width, height = 50, 6
    items = [Item((i - width,) if i >= width else (), 64) for i in range(width * height)]
    items += [Item((i,), 1) for i in range(len(items) - width, len(items))]
    items.append(Item(tuple(range(len(items) - width, len(items))), 1))
    keep = frozenset([len(items) - 1])
    assert peak(items, keep, range(len(items))) > width * 64
    assert peak(items, keep, order(items, keep)) == 128 + width - 1


ONLY_ONE_WAY = {  # graphs whose best order only one of the candidates finds: inputs and bytes of each item
    "depth first": "- 1, - 9, 0 1, - 1, - 9, 1 9, - 9, 6 9, - 1, 4 9, 6+8 1",
    "forward": "- 9, 0 9, - 9, 0+2 9, - 9, 3+4 9, 5 9, 6 9, 7 1, 1 1, 1+2 1",
    "backward": "- 9, 0 1, - 9, 2 1, 2+3 9, 0+1 9, 1+4 1, 2+4 9, 2+4 9, - 1, 5 1",
}


@pytest.mark.parametrize("text", ONLY_ONE_WAY.values(), ids=ONLY_ONE_WAY)
def test_each_way_of_ordering_finds_what_the_others_do_not(text: str) -> None:
    items = []
    for inputs, nbytes in (word.split() for word in text.split(", ")):
        items.append(Item(() if inputs == "-" else tuple(map(int, inputs.split("+"))), int(nbytes)))
    keep = frozenset(range(len(items))) - {j for it in items for j in it.inputs}
    assert peak(items, keep, order(items, keep)) == optimum(items, keep)


def test_sixty_random_items_need_a_fifth_less_than_in_the_order_given() -> None:
    random = Random(0)
    shares = []
    for _ in range(60):
        items: list[Item] = []
        for i in range(60):
            count = min(i, random.choice([0, 1, 1, 2, 3]))
            items.append(Item(tuple(random.sample(range(max(0, i - 30), i), count)), random.choice([1, 4, 16, 64])))
        keep = frozenset(range(60)) - {j for it in items for j in it.inputs}
        shares.append(peak(items, keep, order(items, keep)) / peak(items, keep, range(60)))
    assert mean(shares) < 0.78


def test_what_overwrites_memory_waits_for_its_readers() -> None:
    items = [Item((), 8), Item((0,), 100), Item((0,), 8, alias=0, after=(1,)), Item((1, 2), 1)]
    assert order(items, frozenset([3])) == [0, 1, 2, 3]


def test_a_chain_of_20000_items_and_a_sum_of_20000_are_no_trouble() -> None:
    count = 20_000
    chain = [Item((i - 1,) if i else (), 8 + i % 2) for i in range(count)]
    assert order(chain, NONE) == list(range(count))
    views = [Item((), 8), *(Item((i,), 0, alias=i) for i in range(count))]
    assert lifetimes(views, NONE, range(count + 1))[0] == Block(8, 0, count)
    uneven = [*(Item((), 100) for _ in range(count)), *(Item((i,), 1) for i in range(count))]
    uneven.append(Item(tuple(range(count, 2 * count)), 1))
    assert peak(uneven, NONE, order(uneven, NONE)) == 100 + count


# ---- the peak


def test_inputs_and_result_are_alive_together() -> None:
    assert peak([Item((), 3), Item((), 4), Item((0, 1), 5)], NONE, [0, 1, 2]) == 12


def test_a_view_and_a_result_in_place_cost_nothing_but_keep_their_memory() -> None:
    items = [Item((), 8), Item((0,), 8, alias=0), Item((), 5), Item((1,), 1)]
    assert peak(items, NONE, range(4)) == 13


def test_what_is_kept_lives_to_the_end() -> None:
    items = [Item((), 8), Item((0,), 8), Item((1,), 8), Item((2,), 8)]
    assert peak(items, NONE, range(4)) == 16
    assert peak(items, frozenset([0]), range(4)) == 24


def test_a_result_that_nobody_reads_dies_at_once() -> None:
    assert peak([Item((), 8), Item((), 8)], NONE, [0, 1]) == 8


# ---- lifetimes


def test_a_block_lives_from_where_it_is_made_to_its_last_use() -> None:
    items = [Item((), 0), Item((0,), 8), Item((1,), 16), Item((1, 2), 4)]
    assert lifetimes(items, frozenset([3]), range(4)) == [None, Block(8, 1, 3), Block(16, 2, 3), None]


def test_positions_are_those_of_the_order() -> None:
    items = [Item((), 1), Item((), 100), Item((1,), 1), Item((0, 2), 1)]
    found = lifetimes(items, NONE, [1, 2, 0, 3])
    assert found == [Block(1, 2, 3), Block(100, 0, 1), Block(1, 1, 3), Block(1, 3, 3)]


def test_uses_of_aliases_are_uses_of_the_memory() -> None:
    items = [Item((), 8), Item((0,), 8, alias=0), Item((1,), 8, alias=1), Item((), 1), Item((2,), 1)]
    assert lifetimes(items, NONE, range(5)) == [Block(8, 0, 4), None, None, Block(1, 3, 3), Block(1, 4, 4)]


def test_memory_kept_through_an_alias_is_the_callers() -> None:
    assert lifetimes([Item((), 8), Item((0,), 8, alias=0)], frozenset([1]), [0, 1]) == [None, None]


# ---- refusals


@pytest.mark.parametrize(
    "item", [Item((1,), 0), Item((2,), 0), Item((-1,), 0), Item((), 0, alias=1), Item((), 0, after=(1,))], ids=str
)
def test_an_item_before_what_it_needs_is_refused(item: Item) -> None:
    with pytest.raises(ArgumentError, match="item 1 needs"):
        order([Item((), 0), item], NONE)


def test_negative_bytes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="item 0 makes -1 bytes"):
        order([Item((), -1)], NONE)


def test_keeping_an_item_that_is_not_there_is_refused() -> None:
    with pytest.raises(ArgumentError, match="keep names item 3"):
        order([Item((), 1)], frozenset([3]))


# ---- an order that is proved to be the best


@settings(max_examples=40)
@given(graphs())
def test_the_proof_changes_no_order(graph: tuple[list[Item], frozenset[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "_is_forced", lambda *_: False)
        searched = order(*graph)
    assert order(*graph) == searched


@settings(max_examples=40)
@given(graphs(most=8))
def test_what_must_be_alive_with_an_item_is_alive_in_the_best_order(graph: tuple[list[Item], frozenset[int]]) -> None:
    items, keep = graph
    steps = orders._steps(items, keep)
    best = optimum(items, keep)
    assert all(orders._alive_with(steps, i) <= best for i in range(len(items)))


def test_a_recurrence_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Item((), 4), Item((), 4)]  # a state and an output
    for _ in range(50):
        state, output = len(items) - 2, len(items) - 1
        items.append(Item((output,), 16))  # reads the output while the state waits
        items += [Item((state, output + 1), 4), Item((output + 1, output + 2), 4)]
    monkeypatch.setattr(orders, "_smooth", None)  # the last search there is
    last = frozenset({len(items) - 1})
    assert peak(items, last, order(items, last)) == 16 + 4 + 4

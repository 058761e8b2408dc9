"""Growth: which lines rise until the end, by tables of blocks made and freed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

import tritium as tt
from tritium.see.memory.growth import Change, growing, rises
from tritium.see.memory.records import Growth

KIB = 1 << 10
Course = tuple[list[Change], list[int]]  # the changes of a line, and the sizes of what is alive


def course(levels: Sequence[int]) -> list[int]:
    """The changes that lead through levels, from none."""
    return [b - a for a, b in zip([0, *levels], levels, strict=False)]


def rising(levels: Sequence[int], end: int | None = None, every: int = 3) -> bool:
    """Whether a line rises that has these levels (KiB), one at every third tick of the clock, until the end."""
    changes = course([n * KIB for n in levels])
    return rises(
        [10 + every * i for i in range(len(levels))],
        changes,
        sum(changes),
        10 + every * len(levels) if end is None else end,
    )


@pytest.mark.parametrize(
    ("levels", "rose"),
    [
        (range(1, 9), True),  # one more each step, eight steps
        (range(1, 201), True),
        ([n // 4 for n in range(4, 400)], True),  # one more every four steps
        ([n + 5 * (n % 2) for n in range(1, 100)], True),  # beside temporaries
        ([8] * 50, False),
        ([*range(1, 33), *[32] * 200], False),  # a cache that is full
        ([*range(1, 33), *[32] * 11], False),  # just before the last quarter
        ([*range(1, 33), *[32] * 5], True),
        ([min(n, 16) + n % 2 for n in range(1, 300)], False),  # a ring of 16
        ([n % 50 + 1 for n in range(330)], False),  # a batch that is collected and cleared
        ([n % 90 + 1 for n in range(330)], False),
        ([round(64 * (1 - 0.98**n)) + 1 for n in range(400)], False),  # a cache filled by chance
        (range(40, 0, -1), False),
        ([*range(1, 100), 0], False),  # freed at the end
        ([1, 1, 1, 1, 1, 1, 1, 90], False),  # once
    ],
)  # fmt: skip
def test_what_rises_until_the_end(levels: Sequence[int], rose: bool) -> None:
    assert rising(levels) is rose


def test_the_time_after_the_last_change_counts() -> None:
    levels = range(1, 101)
    assert rising(levels, end=10 + 3 * 100)
    assert rising(levels, end=10 + 3 * 114)  # the last quarter begins at 85.5 and sees 15 of 100: more than an eighth
    assert not rising(levels, end=10 + 3 * 118)  # it sees 12 of 99
    assert not rising(levels, end=10 + 3 * 500)


def test_a_rise_of_less_than_a_kibibyte_is_none() -> None:
    assert rises(range(10), [114] * 10, 1140, 10)  # by 1,026 bytes above the first
    assert not rises(range(10), [113] * 10, 1130, 10)


def test_what_was_alive_before_the_log_is_no_rise() -> None:
    assert not rises(range(10), [KIB, -KIB] * 5, 90 * KIB, 10)
    assert rises(range(10), [KIB] * 10, 90 * KIB, 10)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(0, 500))
def test_any_course_is_judged_and_a_line_without_more_than_at_its_first_never_rises(
    levels: list[int], later: int
) -> None:
    rose = rising(levels, end=10 + 3 * len(levels) + later)
    assert not (rose and levels[-1] <= levels[0])


def line(count: int, *, where: Sequence[int] = (0,), nbytes: int = KIB, freed: Sequence[int] = ()) -> Course:
    made = [Change(10 * i + j, nbytes, "add", w) for i in range(count) for j, w in enumerate(where)]
    ended = [Change(10 * i + 5, -nbytes, "add", where[0]) for i in freed]
    return sorted([*made, *ended]), [nbytes] * (len(made) - len(ended))


def grown(end: int, **courses: Course) -> tuple[Growth, ...]:
    """What grows of lines by their names: device and file, as cpu_a."""
    named = {tuple(name.split("_")): course for name, course in courses.items()}
    lines: Any = {(device, f"{file}.py:3" if file else ""): course for (device, file), course in named.items()}
    return growing({k: v[0] for k, v in lines.items()}, {k: v[1] for k, v in lines.items()}, end)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        (line(200), "a.py:3: 200 blocks alive, 200 KiB, one more each step"),
        (line(100, where=(0, 1)), "a.py:3: 200 blocks alive, 200 KiB, 2 more each step"),
        (line(200, freed=range(0, 200, 2)), "a.py:3: 100 blocks alive, 100 KiB, one more every 2 steps"),
        (line(100, where=(0, 1), freed=range(0, 100, 2)), "a.py:3: 150 blocks alive, 150 KiB, 1.5 more each step"),
    ],
)
def test_the_rate_is_said_by_the_steps_of_the_line(events: Course, says: str) -> None:
    (growth,) = grown(events[0][-1].clock, cpu_a=events)
    assert str(growth) == says


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=80),
    st.integers(0, 50),
)
def test_any_course_has_a_rate(steps: list[tuple[bool, int, int]], later: int) -> None:
    blocks: list[Change] = []
    changes: list[Change] = []
    for i, (frees, where, size) in enumerate(steps):
        if frees and blocks:
            changes.append(blocks.pop(0)._replace(clock=i))
            changes[-1] = changes[-1]._replace(nbytes=-changes[-1].nbytes)
        else:
            blocks.append(Change(i, size * KIB, "add", where))
            changes.append(blocks[-1])
    for growth in grown(len(steps) + later, cpu_a=(changes, [b.nbytes for b in blocks])):
        assert growth.rate.endswith((" more each step", " steps"))


def test_a_line_whose_last_events_are_frees_of_small_blocks_has_a_rate_in_bytes() -> None:
    made = [Change(10 * i, 100 * KIB, "add", 0) for i in range(12)]
    freed = [Change(115, -KIB, "add", 0)] * 40  # of blocks from before the log
    (growth,) = grown(120, cpu_a=([*made, *freed], [100 * KIB] * 12))
    assert (growth.nbytes, growth.more_bytes, growth.rate) == (1200 * KIB, 1160 * KIB, "96.7 KiB more each step")


def test_one_block_that_becomes_larger_grows_by_bytes() -> None:
    changes = [
        c
        for i in range(1, 51)
        for c in (Change(3 * i, 64 * i, "concat", 0), Change(3 * i + 1, -64 * (i - 1), "concat", 0))
    ]
    (growth,) = grown(160, cpu_a=(changes, [3200]))
    assert growth == Growth("a.py:3", "concat", "cpu", 1, 3200, 3200, "64 B more each step")
    assert str(growth) == "a.py:3: 1 block alive, 3.12 KiB, 64 B more each step"


def test_a_line_is_judged_from_eight_steps_and_if_it_is_known() -> None:
    assert grown(80, cpu_a=line(8)) != ()
    assert grown(70, cpu_a=line(7)) == ()
    assert grown(80, cpu_=line(8)) == ()
    assert grown(80, cpu_a=([], [KIB] * 9)) == ()


def test_the_largest_comes_first_and_equals_by_their_line() -> None:
    first, *others = grown(200, cpu_b=line(20), mlx_c=line(20, nbytes=2 * KIB), cpu_a=line(20))
    assert str(first) == "c.py:3: 20 blocks alive on mlx, 40 KiB, one more each step"
    assert [g.site for g in others] == ["a.py:3", "b.py:3"]


# ---- tracked


@pytest.fixture
def hoard() -> Iterator[list[tt.Tensor]]:
    made: list[tt.Tensor] = []
    yield made
    made.clear()


def test_a_list_that_is_appended_to_is_named_first_in_the_advice(hoard: list[tt.Tensor]) -> None:
    x = tt.ones((64, 64))
    with tt.track_memory() as m:
        for _ in range(20):
            x.T.reshape(-1)  # a hidden copy saves more bytes
            x.T.reshape(-1)
            hoard.append(x + 1.0)
    here = test_a_list_that_is_appended_to_is_named_first_in_the_advice.__code__.co_firstlineno + 6
    (growth,) = m.growth()
    assert (growth.site.rpartition(":")[2], growth.op, growth.blocks, growth.nbytes) == (
        str(here),
        "add",
        20,
        20 * 16384,
    )
    first = m.advice()[0]
    assert (first.kind, first.potential_savings, first.of, first.priority) == (
        "growth",
        20 * 16384,
        "what is alive",
        "high",
    )
    assert first.description.startswith(f"{growth}. Something keeps them")
    assert m.record().growth == (growth,)


def test_calls_that_allocate_nothing_are_time_too() -> None:
    with tt.track_memory() as m:
        buffers = [tt.zeros((16, 16)) for _ in range(16)]
        assert len(m.growth()) == 1  # until now
        for i in range(32):
            buffers[i % 16].add_(1.0)
    assert m.growth() == ()
    assert len(m.leaks()) == 16


def test_growth_is_that_at_the_end_whatever_runs_later(hoard: list[tt.Tensor]) -> None:
    with tt.track_memory() as m:
        for _ in range(10):
            hoard.append(tt.zeros(1000))
    with tt.track_memory():
        for _ in range(100):
            hoard[0].add_(1.0)
    assert [g.blocks for g in m.growth()] == [10]

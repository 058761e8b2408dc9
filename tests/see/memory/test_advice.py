"""Advice: each line names what it is about, and its saving is what the figures say; nothing found, nothing said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from tritium import memory
from tritium.memory import ClassStats
from tritium.see.memory import advice
from tritium.see.memory.advice import Life, Observations
from tritium.see.memory.records import Event

MIB = 1 << 20
STATS = replace(memory.stats(), classes=(), pooled_bytes=0, limit=64 * MIB)


def life(
    born: int,
    died: int | None,
    *,
    nbytes: int = MIB,
    op: str = "add",
    site: str = "m.py:12",
    end: str = "",
    **more: Any,
) -> Life:
    return Life(nbytes, op, site, "MainThread", more.get("reused", True), born, died, end or site if died else "", "MainThread")  # fmt: skip


def seen(lives: list[Life] = [], *, base: int = 0, events: tuple[Event, ...] = (), **more: Any) -> Observations:  # noqa: B006
    """Lives put into accounts, the way a tracker does it."""
    count = max([x.born for x in lives] + [x.died or 0 for x in lives], default=0)
    changes = np.zeros(count, np.int64)
    for x in lives:
        changes[x.born - 1] += x.nbytes
        if x.died is not None:
            changes[x.died - 1] -= x.nbytes
    course = base + np.cumsum(changes)
    peak = int(max(base, course.max(initial=0)))
    at = int(course.argmax()) + 1 if count else 0
    return replace(Observations(lives, 1, changes, base, peak, at, events, STATS, STATS, {"cpu": peak}), **more)


def test_nothing_is_said_where_nothing_is_found() -> None:
    assert advice.advice(seen()) == ()
    assert advice.advice(seen([life(1, None), life(2, 3, op="matmul")])) == ()


# ---- temporaries


def test_temporaries_of_one_line_alive_together_are_named_with_the_peak_without_them() -> None:
    # r = (a + b) + (c + d) on line 12: two sums live until the third is made.
    lives = [life(1, None, site="m.py:1", op="full"), life(2, 5), life(3, 6), life(4, None)]
    (found,) = advice.temporaries(seen(lives))
    assert found.potential_savings == 2 * MIB
    assert "3 tensors of 1 MiB at m.py:12 (add)" in found.description
    assert "the peak would be 2 MiB instead of 4 MiB" in found.description
    assert (found.of, found.priority) == ("the peak", "high")


def test_a_tensor_replaced_by_its_successor_could_have_been_written_over() -> None:
    # x = x + 1: what x was comes from another line, and dies on this one.
    (found,) = advice.temporaries(seen([life(1, 3, site="m.py:3", op="matmul", end="m.py:12"), life(2, None)]))
    assert found.potential_savings == MIB


def test_a_loop_that_replaces_its_tensor_saves_one_and_no_more() -> None:
    lives = [life(2 * i + 1, 2 * i + 4 if i < 9 else None) for i in range(10)]
    (found,) = advice.temporaries(seen(lives))
    assert found.potential_savings == MIB
    assert "2 tensors" in found.description


def test_lines_without_which_the_peak_stays_are_named_together() -> None:
    two = [
        life(1, 3, site="m.py:1"),
        life(2, 4, site="m.py:1", end="m.py:9"),
        life(5, 7, site="m.py:5"),
        life(6, None, site="m.py:5"),
    ]
    (found,) = advice.temporaries(seen(two))
    assert "m.py:1 " in found.description
    assert "m.py:5 " in found.description
    lower = [*two, life(8, 10, site="m.py:8", nbytes=1024), life(9, None, site="m.py:8", nbytes=1024)]
    (found,) = advice.temporaries(seen(lower))
    assert "m.py:8" not in found.description  # it is not what makes the peak


@pytest.mark.parametrize(
    "lives",
    [
        [life(1, 4, op="matmul"), life(2, 5, op="matmul"), life(3, None, op="matmul")],  # not element by element
        [life(1, 4, end="m.py:20"), life(2, None)],  # lives on after its line
        [life(1, 2), life(3, 4), life(5, 6)],  # one at a time
        [life(1, 4, nbytes=100), life(2, 5, nbytes=100), life(3, None, nbytes=100)],  # not worth a line
    ],
)
def test_what_in_place_work_would_not_save_is_not_said(lives: list[Life]) -> None:
    assert advice.temporaries(seen(lives)) == []


def test_a_log_that_lost_events_gives_no_advice_on_the_peak() -> None:
    lives = [life(2, 5), life(3, 6), life(4, None)]
    assert advice.temporaries(replace(seen(lives), first=2)) == []


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4), st.booleans()), max_size=20))
def test_the_saving_is_never_more_than_the_peak_and_never_negative(drawn: list[tuple[int, int, bool]]) -> None:
    lives, number = [], 0
    for length, line, ends in drawn:
        number += 1
        lives.append(life(number, None, site=f"m.py:{line}"))
        if ends:
            number += length
            lives[-1] = life(lives[-1].born, number, site=f"m.py:{line}")
    used = {x.born for x in lives}
    lives = [x if x.died not in used else life(x.born, None, site=x.site) for x in lives]
    for found in advice.temporaries(seen(lives)):
        assert 0 < found.potential_savings < seen(lives).peak


def test_a_real_expression_is_advised_on() -> None:
    a, b = tt.ones(100_000), tt.ones(100_000)
    with tt.track_memory() as m:
        r = (a + b) * (a - b)
    (found,) = [a for a in m.advice() if a.kind == "temporaries"]
    assert found.potential_savings == 800_000
    assert "3 tensors of 391 KiB" in found.description
    assert "test_advice.py:" in found.description
    assert "(add, multiply, subtract)" in found.description or "(multiply, subtract)" in found.description
    del r


# ---- the others


def test_blocks_the_pool_does_not_keep_are_named() -> None:
    big = [life(2 * i + 1, 2 * i + 2, nbytes=100 * MIB, op="matmul", reused=False) for i in range(5)]
    (found,) = advice.repeated(seen(big))
    assert found.potential_savings == 400 * MIB
    assert "4 of 5 allocations of 100 MiB by matmul at m.py:12" in found.description
    assert "larger than the pool's limit of 64 MiB" in found.description
    assert advice.repeated(seen([x._replace(reused=True) for x in big])) == []
    assert advice.repeated(seen([x._replace(died=None) for x in big])) == []


def event(kind: Any, nbytes: int, **more: Any) -> Event:
    return Event(kind, 0, nbytes, 0, more.pop("op", ""), more.pop("site", "m.py:7"), "MainThread", **more)


def test_hidden_copies_are_summed_by_line() -> None:
    events = (
        event("hidden", MIB, op="reshape"),
        event("hidden", MIB, op="reshape"),
        event("hidden", 5, op="reshape", site="m.py:9"),
    )
    first, second = advice.hidden_copies(seen(events=events))
    assert first.potential_savings == 2 * MIB
    assert "reshape at m.py:7 had to copy 2 times, 2 MiB in total" in first.description
    assert second.potential_savings == 5


def test_bytes_that_go_back_and_forth_are_named() -> None:
    way = [
        event("transfer", MIB, device="cpu", to="gpu"),
        event("transfer", MIB, device="gpu", to="cpu", site="m.py:9"),
    ]
    (found,) = advice.round_trips(seen(events=(*way, *way, way[0])))
    assert found.potential_savings == 4 * MIB
    assert "1 MiB went from cpu to gpu and back 2 times at m.py:7, m.py:9" in found.description
    assert advice.round_trips(seen(events=tuple(way))) == []  # a result comes home once


def test_idle_blocks_nobody_asked_for_are_named() -> None:
    before = replace(STATS, classes=(ClassStats(MIB, 0, 3, 5, 1), ClassStats(2 * MIB, 0, 1, 0, 1)))
    after = replace(STATS, classes=(ClassStats(MIB, 0, 3, 9, 1), ClassStats(2 * MIB, 0, 1, 0, 1)), pooled_bytes=5 * MIB)
    (found,) = advice.idle(seen(before=before, after=after))
    assert found.potential_savings == 2 * MIB
    assert "1 idle block (2 MiB)" in found.description
    large = replace(STATS, classes=(ClassStats(0, 0, 2, 0, 2),), pooled_bytes=70 * MIB)
    (found,) = advice.idle(seen(before=replace(large, pooled_bytes=0), after=large))
    assert found.potential_savings == 70 * MIB
    assert advice.idle(seen(before=before, after=replace(before, classes=before.classes[:1]))) != []
    assert advice.idle(seen()) == []


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_zeros_stay_as_they_are_in_two_bits_and_one_odd_value_does_not(dtype: str) -> None:
    values = np.zeros((64, 64), np.float32)
    (zeros,) = advice.ternary({"w": tt.tensor(values).to(dtype)}, 0)
    assert "its values do not change" in zeros.description
    values[-1, -2:] = 1.0, 0.5
    (odd,) = advice.ternary({"w": tt.tensor(values).to(dtype)}, 0)
    assert "its values change" in odd.description


def test_float_matrices_that_would_be_smaller_in_two_bits_are_named() -> None:
    w = tt.tensor(np.random.default_rng(0).integers(-1, 1, (64, 64), endpoint=True).astype(np.float32) * 0.5)
    model = {"layers": [w, tt.randn((64, 128), seed=1)], "bias": tt.ones(64), "ids": tt.arange(100)}
    second, first = advice.ternary(model, 0)
    assert (first.potential_savings, second.potential_savings) == (64 * 64 * 4 - 1028, 64 * 128 * 4 - 2052)
    assert "['layers'][0] f32[64,64] takes 16 KiB; as tern2 with a scale 1 KiB" in first.description.replace(" ", " ")
    assert "its values do not change" in first.description
    assert "its values change" in second.description
    assert advice.advice(seen(), model) == (second, first)

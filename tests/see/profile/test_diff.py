"""Before and after: a seeded slow operation is named, equal profiles are not blamed, and sums add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from made_profiles import made, repetitions
from made_results import ENVIRONMENT, HARD
from tritium.errors import ArgumentError
from tritium.perf.tables.table import NONE
from tritium.see.profile.diff import diff
from tritium.see.trace.timeline import What

TIMES = {"matmul": (20, 100_000.0), "softmax": (20, 30_000.0), "add": (40, 5_000.0)}
SLOW = TIMES | {"softmax": (20, 36_000.0)}


def test_a_slowed_operation_is_named_over_repetitions() -> None:
    found = diff(repetitions(1, 10, TIMES), repetitions(2, 10, SLOW))
    culprit = found.culprit
    assert culprit is not None
    assert culprit.name == "softmax"
    assert culprit.clear
    assert culprit.interval[0] < 20 * 6_000 < culprit.interval[1] or culprit.change_ns == pytest.approx(
        120_000, rel=0.2
    )
    assert found.sentence().startswith("softmax: +")
    assert "a call 30" in found.sentence()


def test_of_one_profile_a_side_nothing_is_clear_and_the_headline_says_so() -> None:
    many = {name: (10 * calls, ns) for name, (calls, ns) in TIMES.items()}
    slow = many | {"softmax": (200, 36_000.0)}
    found = diff(repetitions(1, 1, many, 0.02)[0], repetitions(2, 1, slow, 0.02)[0])
    assert found.culprit is None
    assert not any(c.clear for c in found.changes)
    assert found.sentence().startswith("not clear (one profile a side; repeat each 5 times): softmax: +")
    assert "clear" not in {row[-1] for row in found.table().rows}
    assert found.interval is None
    assert "intervals are over the calls" in found.text()
    mixed = diff(repetitions(1, 5, TIMES), repetitions(2, 1, SLOW))
    assert mixed.culprit is None
    assert mixed.sentence().startswith("not clear")


def test_fewer_than_two_values_have_no_interval() -> None:
    once = TIMES | {"rand": (1, 900.0)}
    found = diff(repetitions(1, 1, once), repetitions(2, 1, once))
    (rand,) = (c for c in found.changes if c.name == "rand")
    assert rand.interval is None
    (row,) = (r for r in found.table().rows if r[0] == "rand")
    assert row[4] == NONE
    assert all(c.interval is not None for c in found.changes if c.name != "rand")


@pytest.mark.parametrize("seed", range(5))
def test_equal_profiles_blame_nobody(seed: int) -> None:
    found = diff(repetitions(seed, 10, TIMES), repetitions(100 + seed, 10, TIMES))
    assert found.culprit is None
    assert found.sentence().startswith("no operation changed clearly")


def test_two_repetitions_a_side_are_too_few_to_blame_anyone() -> None:
    assert diff(repetitions(1, 2, TIMES, 1e-6), repetitions(2, 2, SLOW, 1e-6)).culprit is None


def test_changes_of_operations_and_of_the_gaps_sum_to_that_of_the_run() -> None:
    found = diff(repetitions(1, 8, TIMES), repetitions(2, 8, SLOW, gap=700))
    assert found.between_ns is not None
    assert sum(c.change_ns for c in found.changes) + found.between_ns == pytest.approx(found.change_ns)
    assert found.between_ns == pytest.approx(80 * 200, rel=0.2)
    alone = diff(repetitions(1, 1, TIMES), repetitions(2, 1, SLOW, gap=700))
    assert alone.between_ns == pytest.approx(80 * 200)


def test_more_calls_are_told_from_slower_calls() -> None:
    more = TIMES | {"add": (80, 5_000.0)}
    found = diff(repetitions(1, 8, TIMES), repetitions(2, 8, more))
    culprit = found.culprit
    assert culprit is not None
    assert (culprit.name, culprit.count_before, culprit.count_after) == ("add", 40, 80)
    assert "40 → 80 calls" in culprit.how
    assert culprit.by_calls_ns == pytest.approx(culprit.change_ns, rel=0.1)


def test_new_and_gone_operations_are_told() -> None:
    gone = {name: t for name, t in TIMES.items() if name != "add"}
    found = {
        c.name: c.how for c in diff(repetitions(1, 6, TIMES), repetitions(2, 6, gone | {"erf": (5, 900.0)})).changes
    }
    assert (found["add"], found["erf"]) == ("gone", "new")


def test_another_kernel_is_told() -> None:
    a, b = made((What("add", kernel="avx2"), 0, 100)), made((What("add", kernel="numpy"), 0, 900))
    (change,) = diff(a, b).changes
    assert change.kernels == "avx2 → numpy"
    assert "kernel avx2 → numpy" in change.how


def test_the_same_profiles_give_the_same_answer() -> None:
    sides = repetitions(1, 5, TIMES), repetitions(2, 5, SLOW)
    assert diff(*sides) == diff(*sides)


def test_a_faster_run_names_what_made_it_faster() -> None:
    found = diff(repetitions(2, 10, SLOW), repetitions(1, 10, TIMES))
    assert found.culprit is not None
    assert found.culprit.name == "softmax"
    assert found.sentence().startswith("softmax: -")


@pytest.mark.slow
def test_intervals_cover_the_true_change_nearly_always() -> None:
    covered = 0
    for seed in range(40):
        found = diff(repetitions(seed, 10, TIMES, 0.02), repetitions(1000 + seed, 10, SLOW, 0.02))
        (change,) = (c for c in found.changes if c.name == "softmax")
        covered += change.interval[0] <= 20 * 6_000 * np.exp(0.02**2) <= change.interval[1]
    assert covered >= 34


def test_other_machines_are_said_not_to_compare() -> None:
    other = replace(ENVIRONMENT, hard=replace(HARD, cpu="another"), python="3.99")
    found = diff(made((What("add"), 0, 9)), made((What("add"), 0, 9), environment=other))
    assert any("another machine: cpu" in note for note in found.notes)
    assert any(note.startswith("python: ") for note in found.notes)


def test_several_lanes_and_dropped_spans_are_said() -> None:
    t = made((What("add"), 0, 9), (What("add"), 0, 9, 1), dropped=3)
    found = diff(t, t)
    assert found.between_ns is None
    assert any("several threads" in note for note in found.notes)
    assert any("dropped" in note for note in found.notes)


def test_runs_of_unequal_length_are_compared_piece_by_piece() -> None:
    add, piece = What("add"), What("piece", "scope")
    short = made(*((w, 1000 * i, 100) for i in range(10) for w in (piece, add)), total=10_000)
    long = made(*((w, 1000 * i, 100) for i in range(30) for w in (piece, add)), total=30_000)
    assert any("compare with per='piece'" in note for note in diff(short, long).notes)
    found = diff(short, long, per="piece")
    assert found.change_ns == 0
    (change,) = found.changes
    assert (change.count_before, change.count_after, change.change_ns, change.clear) == (1, 1, 0, False)
    with pytest.raises(ArgumentError, match="there are piece"):
        diff(short, long, per="peace")


def test_empty_profiles_have_no_changes() -> None:
    found = diff(made(), made())
    assert (found.changes, found.culprit, found.explained) == ((), None, None)
    assert "no operation changed clearly; 0 in all" in found.text()


def test_what_is_no_profile_is_refused() -> None:
    for wrong in ([], 7, [7]):
        with pytest.raises(ArgumentError, match="before must be a profile"):
            diff(wrong, made())  # type: ignore[arg-type]


def test_pages_obey_no_name() -> None:
    t = [made((What("\x1b]0;x\x07|<b>=1+1"), 0, n)) for n in (100, 900)]
    found = diff(t[0], t[1])
    assert "\x1b" not in found.text() + found.markdown()
    assert "`" in found.markdown()
    assert found.table().rows[0][-1] == ""

"""Scores, the few that matter, and what bounds a run: against timelines whose answer is known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from made_profiles import ADD, MATMUL, SCOPE, TINY, made
from tritium.see.profile.hotspots import BottleneckAnalyzer, bottlenecks, gaps, hotspots, percent, score_rows, vital
from tritium.see.profile.op_table import rows
from tritium.see.trace.timeline import Samples, What


def test_the_score_is_the_per_cent_of_the_run_that_could_go() -> None:
    (row,) = score_rows(rows(made((MATMUL, 0, 400_000))))  # 40 % of the time, at 5 % of the ceiling
    assert row.score == pytest.approx(38)
    assert row.why == "40 % of the time, at 5 % of what this machine can: up to 38 % of the run could be saved"


def test_what_runs_at_the_ceiling_scores_nothing() -> None:
    (row,) = score_rows(rows(made((MATMUL, 0, 20_000))))
    assert row.score == 0
    assert "as fast as this machine can" in row.why


def test_what_would_be_faster_than_this_machine_can_is_overstated_and_has_no_score() -> None:
    (row,) = score_rows(rows(made((MATMUL, 0, 10_000))))
    assert (row.overstated, row.ceiling_share, row.score, row.bound) == (True, None, None, "")
    assert "the counted work overstates what was done" in row.why
    assert "as fast as" not in row.why
    found = bottlenecks(made((MATMUL, 0, 10_000), total=10_000))
    assert found.main == "unknown"
    assert "overstates" in str(found)


def test_a_little_more_than_the_ceiling_is_the_ceiling() -> None:
    (row,) = score_rows(rows(made((MATMUL, 0, 19_000))))
    assert (row.overstated, row.ceiling_share, row.score) == (False, 1.0, 0)


def test_without_a_ceiling_there_is_no_score_but_a_reason() -> None:
    (row,) = score_rows(rows(made((MATMUL, 0, 400_000), environment=None)))
    assert row.score is None
    assert (
        row.why
        == "40 % of the time; how far it is from the ceiling is not known: this machine's ceilings were not measured"
    )


def test_a_small_call_is_told_what_it_takes_and_what_it_needs() -> None:
    (row,) = score_rows(rows(made((TINY, 0, 5_000))))
    assert "a call takes 5 µs for work of" in row.why


def test_hotspots_are_ordered_by_what_could_be_gained() -> None:
    found = score_rows(rows(made((MATMUL, 0, 20_500), (ADD, 30_000, 400_000), (TINY, 500_000, 30_000))))
    assert [r.name for r in hotspots(found)] == ["add", "relu", "matmul"]
    assert len(hotspots(found, 1)) == 1


def test_the_vital_few_take_eighty_per_cent() -> None:
    names = [What(name) for name in "abcd"]
    found = rows(made(*((w, 1000 * i, t) for i, (w, t) in enumerate(zip(names, (500, 300, 150, 50), strict=True)))))
    assert [r.name for r in vital(found)] == ["a", "b"]
    assert [r.name for r in vital(found, 0.81)] == ["a", "b", "c"]
    assert vital(()) == ()


def test_gaps_between_calls_are_overhead_and_the_rest_is_idle() -> None:
    t = made((SCOPE, 100, 500), (ADD, 150, 100), (ADD, 300, 100), total=1000)
    assert gaps(t) == (200, 300, 500)


def test_calls_inside_calls_are_covered_once() -> None:
    t = made((ADD, 0, 100), (MATMUL, 10, 50), (ADD, 100, 10), total=110)
    assert gaps(t) == (110, 0, 0)


def test_a_run_is_bound_by_what_takes_most_of_it() -> None:
    found = bottlenecks(made((MATMUL, 0, 100_000), (ADD, 150_000, 800_000)))
    assert found.main == "memory"
    assert "fused" in found.remedy
    assert found.shares["compute"] == pytest.approx(0.1)
    assert found.shares["overhead"] == pytest.approx(0.05)
    assert [r.name for r in found.vital] == ["add"]


def test_a_run_of_many_gaps_is_overhead_bound_and_says_so() -> None:
    t = made((SCOPE, 0, 1_000_000), *((ADD, 100_000 * i, 10_000) for i in range(10)))
    found = bottlenecks(t)
    assert found.main == "overhead"
    assert "90 %  between calls" in str(found)
    assert "tt.compile" in str(found)


def test_a_run_that_is_mostly_outside_its_calls_says_so_first() -> None:
    found = bottlenecks(made((ADD, 0, 100_000), total=10_000_000))
    assert found.main == "idle"
    assert "99 %  before the first call and after the last" in str(found)
    assert "mostly outside the calls" in str(found)
    assert "memory-bound" not in str(found)


def test_stacks_are_not_asked_for_where_they_were_sampled() -> None:
    gaps_ = (SCOPE, 0, 1_000_000), (ADD, 0, 10_000)
    some = np.zeros(1, np.int64)
    samples = Samples(("f",), ((0,),), some, some, some, 10)
    assert "stacks='10ms'" in bottlenecks(made(*gaps_)).remedy
    found = bottlenecks(made(*gaps_, samples=samples)).remedy
    assert "stacks='10ms'" not in found
    assert "the samples of its stacks show which" in found


def test_first_calls_are_named_as_such_and_not_as_small_ones() -> None:
    alone = made((TINY, 0, 9_000_000), total=10_000_000)
    (row,) = score_rows(rows(alone))
    assert row.bound == "first"
    assert "in its first call" in row.why
    assert "mostly first calls" in str(bottlenecks(alone))
    several = made((MATMUL, 0, 9_000_000), *((MATMUL, 9_000_000 + 30_000 * i, 25_000) for i in range(20)))
    assert rows(several)[0].bound == "first"


def test_a_slow_call_among_others_and_a_large_one_alone_are_no_first_calls() -> None:
    assert rows(made((MATMUL, 0, 9_000_000)))[0].bound == "compute"
    assert rows(made((MATMUL, 0, 25_000), (MATMUL, 30_000, 900_000)))[0].bound == "compute"
    assert rows(made((TINY, 0, 30_000)))[0].bound == "latency"
    shapes = made((replace(MATMUL, detail="large"), 0, 900_000), (MATMUL, 900_000, 25_000))
    assert rows(shapes)[0].bound == "compute"


def test_missing_ceilings_are_said_and_not_guessed() -> None:
    found = bottlenecks(made((MATMUL, 0, 500_000), environment=None))
    assert found.shares["unknown"] == pytest.approx(0.5)
    assert "ceilings: this machine's ceilings were not measured" in str(found)


def test_an_empty_profile_is_told_as_such() -> None:
    found = bottlenecks(made(total=0))
    assert found.main == ""
    assert str(found) == "nothing was recorded"


def test_the_guides_name_gives_the_same() -> None:
    t = made((MATMUL, 0, 500_000))
    assert str(BottleneckAnalyzer().analyze(SimpleNamespace(timeline=t))) == str(bottlenecks(t))


def test_hostile_names_do_nothing_on_a_terminal() -> None:
    t = made((What("\x1b[31m::error::x"), 0, 500_000))
    assert "\x1b" not in str(bottlenecks(t))


@given(
    st.lists(
        st.tuples(st.sampled_from([MATMUL, ADD, TINY, SCOPE]), st.integers(0, 1000), st.integers(0, 100)), max_size=20
    )
)
def test_the_shares_of_a_run_sum_to_one(parts: list[tuple[What, int, int]]) -> None:
    at, spans = 0, []
    for what, took, gap in parts:
        spans.append((what, at, took))
        at += took + gap
    found = bottlenecks(made(*spans, total=max(at, 1)))
    assert sum(found.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("share", "said"), [(0.32, "32 %"), (0.0042, "0.42 %"), (0.0001, "<0.1 %"), (0, "0 %"), (1, "100 %")]
)
def test_shares_read_well(share: float, said: str) -> None:
    assert percent(share) == said

"""Profiles of several processes on one clock."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tritium as tt
from made_timelines import decode, op
from tritium.errors import ArgumentError, SaveError
from tritium.see.profile.profile import Profile
from tritium.see.timelines.merge import merge
from tritium.see.trace.timeline import Counter, Samples, Timeline, timeline


def process(name: str, began_ns: int, frame: str = "main (a.py:1)") -> Timeline:
    zeros = np.zeros(2, np.int64)
    samples = Samples((frame,), ((0,),), np.array([100, 200], np.int64), zeros, zeros, 100)
    counter = Counter("pool", "B", np.array([50], np.int64), np.array([1.0]))
    spans = [(op("a"), 0, 60, 0), (op("b"), 80, 20, 1)]
    return timeline(
        spans, ("MainThread", "worker"), 300, name=name, began_ns=began_ns, samples=samples, counters=(counter,), after=[(0, 1)]
    )  # fmt: skip


def test_the_lanes_of_all_are_on_one_clock() -> None:
    t = merge([process("server", 1_000), process("client", 1_500, "read (b.py:2)")])
    assert t.lanes == ("server: MainThread", "server: worker", "client: MainThread", "client: worker")
    assert t.elapsed_total_ns == 800
    assert sorted(zip(t.lane.tolist(), t.start_ns.tolist(), strict=True)) == [(0, 0), (1, 80), (2, 500), (3, 580)]
    assert [(int(t.lane[a]), int(t.lane[b])) for a, b in t.after] == [(0, 1), (2, 3)]
    assert [(c.name, c.at_ns.tolist()) for c in t.counters] == [("server: pool", [50]), ("client: pool", [550])]
    assert t.samples is not None
    assert t.samples.weight_ns.tolist() == [100, 100, 100, 100]  # each process has moments of its own
    assert [t.samples.frames[t.samples.stacks[s][-1]] for s in t.samples.stack.tolist()] == ["main (a.py:1)"] * 2 + [
        "read (b.py:2)"
    ] * 2


def test_equal_names_are_numbered_and_one_profile_stays_as_it_is() -> None:
    assert merge([process("x", 5), process("x", 6)]).lanes[::2] == ("x #1: MainThread", "x #2: MainThread")
    one = process("x", 5)
    assert merge([one]) is one


def test_lanes_of_overlapping_scopes_stay_the_last() -> None:
    apart = replace(process("x", 5), apart=1)
    assert merge([apart, process("y", 5)]).lanes == ("x: MainThread", "y: MainThread", "y: worker", "x: worker")


@pytest.mark.parametrize(
    ("timelines", "words"),
    [
        ([], "no profiles were given"),
        ([decode(), decode()], "no time of day"),
        ([process("a", 1), process("b", 10**18)], "7 days apart"),
    ],
)
def test_what_is_no_one_run_is_refused(timelines: list[Timeline], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        merge(timelines)


def test_recorded_profiles_know_their_time_of_day_and_merge() -> None:
    recorded = []
    for name in ("one", "two"):
        with tt.profile(name, counters=None, ceilings=False) as p:
            tt.ones(3) + 1
        recorded.append(p)
    both = tt.see.merge_profiles(recorded, "both")
    assert (both.name, len(both.timeline)) == ("both", sum(len(p.timeline) for p in recorded))
    assert recorded[1].timeline.began_ns >= recorded[0].timeline.began_ns + recorded[0].timeline.elapsed_total_ns


def test_several_processes_are_not_saved_as_one() -> None:
    with pytest.raises(SaveError, match="keep their files"):
        Profile(merge([process("a", 1), process("b", 1)])).save("x.json")

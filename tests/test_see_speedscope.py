"""Speedscope files: balanced, in order, by the published schema, and harmless whatever the names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from hostile import NAMES
from made_timelines import any_spans, decode, million, named, op, scope
from tritium.errors import ArgumentError
from tritium.perf import names
from tritium.see import speedscope, trace_check
from tritium.see.timeline import Samples, Timeline, timeline


def loaded(t: Timeline, **how: object) -> dict:
    data = json.loads(speedscope.text(t, **how))  # type: ignore[arg-type]
    assert not list(trace_check.speedscope(data))
    return data


def totals(data: dict, profile: int = 0) -> dict[str, int]:
    """The time of every frame of an evented profile, summed as speedscope does."""
    out: dict[str, int] = {}
    for event in data["profiles"][profile]["events"]:
        name = data["shared"]["frames"][event["frame"]]["name"]
        out[name] = out.get(name, 0) + (event["at"] if event["type"] == "C" else -event["at"])
    return out


@settings(max_examples=50)
@given(any_spans())
def test_every_file_passes_the_checker_even_where_spans_cross(t: Timeline) -> None:
    data = loaded(t)
    assert sum(len(p["events"]) for p in data["profiles"]) == 2 * len(t)


def test_the_time_of_every_name_is_the_timeline_s() -> None:
    t = decode()
    expected = {w.name: 0 for w in t.whats}
    for what, ns in zip(t.what.tolist(), t.elapsed_ns.tolist(), strict=True):
        expected[t.whats[what].name] += ns
    assert totals(loaded(t)) == expected


def test_a_lane_is_a_profile_in_nanoseconds_as_long_as_the_whole() -> None:
    t = timeline([(op(), 0, 5, 0), (op(), 2, 5, 1)], ["MainThread", "worker"], 100)
    profiles = loaded(t)["profiles"]
    assert [p["name"] for p in profiles] == ["MainThread", "worker"]
    assert {(p["unit"], p["startValue"], p["endValue"]) for p in profiles} == {("nanoseconds", 0, 100)}


def test_python_stacks_are_sampled_profiles_with_places() -> None:
    at = np.array([0, 1000, 2000], np.int64)
    samples = Samples(
        ("main (app.py:3)", "inner (a b.py:12)", "<frozen>"), ((0,), (0, 1), (0, 2)), at, at * 0, np.array([0, 1, 1]), 1000
    )  # fmt: skip
    data = loaded(decode(samples=samples))
    sampled = data["profiles"][-1]
    assert (sampled["type"], sampled["name"], sampled["weights"]) == (
        "sampled",
        "MainThread: Python stacks",
        [1000] * 3,
    )
    frames = [[data["shared"]["frames"][f] for f in stack] for stack in sampled["samples"]]
    assert frames[1] == [{"name": "main", "file": "app.py", "line": 3}, {"name": "inner", "file": "a b.py", "line": 12}]


@pytest.mark.parametrize(("weight", "unit", "each"), [("bytes", "bytes", 96), ("flops", "none", 1000)])
def test_a_stack_can_weigh_what_its_ops_moved_or_computed(weight: str, unit: str, each: int) -> None:
    t = timeline([(scope("s"), 0, 100, 0), (op("a"), 1, 5, 0), (op("a"), 10, 5, 0), (op("b"), 20, 5, 0)], ["main"], 100)
    data = loaded(t, weight=weight)
    (profile,) = data["profiles"]
    found = {
        tuple(data["shared"]["frames"][f]["name"] for f in stack): w
        for stack, w in zip(profile["samples"], profile["weights"], strict=True)
    }
    assert profile["unit"] == unit
    assert found == {("s", "a"): 2 * each, ("s", "b"): each}


def test_a_weight_there_is_none_of_is_refused() -> None:
    with pytest.raises(ArgumentError, match="time, bytes, flops"):
        speedscope.text(decode(), "grams")


def test_an_empty_timeline_is_a_file_with_an_empty_profile() -> None:
    for weight in speedscope.WEIGHTS:
        assert len(loaded(timeline([], ["main"], 0), weight=weight)["profiles"]) == 1


def test_the_file_is_shorter_than_its_cap_and_its_name_says_what_is_left_out() -> None:
    t = million(5000)
    data = loaded(t, cap_bytes=200_000)
    assert len(speedscope.text(t, cap_bytes=200_000)) < 200_000
    kept = sum(len(p["events"]) for p in data["profiles"]) // 2
    assert data["name"] == f"profile (the last {5000 - kept} of 5000 spans are left out)"


def test_hostile_names_are_text_and_nothing_else() -> None:
    text = speedscope.text(named(NAMES))
    assert text.isascii()
    assert not set("<>&") & set(text)
    data = json.loads(text)
    assert not list(trace_check.speedscope(data))
    assert {names.visible(n) for n in NAMES} <= {f["name"] for f in data["shared"]["frames"]}


def test_the_same_timeline_gives_the_same_bytes_also_gzipped(tmp_path: Path) -> None:
    t = decode()
    first, second = (speedscope.write(t, tmp_path / f"{n}.json.gz").read_bytes() for n in "ab")
    assert first == second
    assert gzip.decompress(first).decode() == speedscope.text(t)

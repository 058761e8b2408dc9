"""The checker: finds every fault that was put in, says where, and finds none in what is right."""

from __future__ import annotations

import copy
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_timelines import on_device
from made_timelines import decode, op
from tritium.errors import FormatError
from tritium.see.trace import check as trace_check, chrome, folded, speedscope
from tritium.see.trace.timeline import timeline

A, B, C = (op("a"), 0, 100, 0), (op("b"), 10, 50, 0), (op("c"), 200, 9, 0)
TRACE = json.loads("".join(chrome.chunks(timeline([A, B, C], ["main"], 999))))
SCOPE = json.loads("".join(speedscope.chunks(timeline([A, B], ["main"], 999))))
X = [i for i, e in enumerate(TRACE["traceEvents"]) if e["ph"] == "X"]


def changed(data: Any, *path_and_value: Any) -> Any:
    """A copy with one place replaced; a value of `...` removes it."""
    *path, last, value = path_and_value
    out = copy.deepcopy(data)
    at = out
    for key in path:
        at = at[key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return out


CHROME_FAULTS: list[tuple[tuple[Any, ...], str]] = [
    (("traceEvents", {}), "traceEvents: a list"),
    (("traceEvents", ...), "traceEvents is missing"),
    (("displayTimeUnit", "s"), "ms or ns"),
    (("otherData", []), "otherData: an object"),
    (("traceEvents", 0, "ph", "Q"), r"traceEvents\[0\]\.ph"),
    (("traceEvents", 0, 7), r"traceEvents\[0\]\.ph"),
    (("traceEvents", 0, "args", "name", 3), r"args\.name: text"),
    (("traceEvents", 0, "name", "colour"), "process_name"),
    (("traceEvents", 0, "name", "thread_name"), "no process_name"),
    (("traceEvents", 1, "tid", 9), "no thread_name"),
    (("traceEvents", X[0], "name", ...), rf"traceEvents\[{X[0]}\]: name is missing"),
    (("traceEvents", X[0], "name", 5), "name: text"),
    (("traceEvents", X[0], "name", "\ud800"), "name: text"),
    (("traceEvents", X[0], "ts", "0"), "ts: a finite number"),
    (("traceEvents", X[0], "ts", True), "ts: a finite number"),
    (("traceEvents", X[0], "ts", float("inf")), "ts: a finite number"),
    (("traceEvents", X[0], "ts", -1), "negative"),
    (("traceEvents", X[0], "dur", -1), "negative"),
    (("traceEvents", X[0], "dur", ...), "dur is missing"),
    (("traceEvents", X[0], "pid", 1.5), "pid: a whole number"),
    (("traceEvents", X[0], "args", 5), "args: an object"),
    (("traceEvents", X[1], "dur", 0.2), "ends 110 ns after the span it began in"),
    (("traceEvents", X[2], "ts", 0.001), "earlier than the span before it"),
]


@pytest.mark.parametrize(("change", "said"), CHROME_FAULTS)
def test_a_fault_in_a_chrome_trace_is_found_with_its_place(change: tuple[Any, ...], said: str) -> None:
    faults = list(trace_check.chrome(changed(TRACE, *change)))
    assert any(re.search(said, fault) for fault in faults), faults


def test_a_right_trace_has_no_fault() -> None:
    assert not list(trace_check.chrome(TRACE))
    assert not list(trace_check.chrome(json.loads("".join(chrome.chunks(on_device())))))


@pytest.mark.parametrize("value", [{}, {"value": "3"}, {"value": None}, {"value": True}])
def test_a_counter_needs_numbers(value: dict[str, Any]) -> None:
    event = {"ph": "C", "pid": 1, "name": "pool", "ts": 0, "args": value}
    assert any(
        "numbers" in f for f in trace_check.chrome(changed(TRACE, "traceEvents", [*TRACE["traceEvents"], event]))
    )


def test_a_counter_must_not_go_back_in_time() -> None:
    events = [{"ph": "C", "pid": 1, "name": "pool", "ts": at, "args": {"B": 1}} for at in (5, 3)]
    assert any("earlier" in f for f in trace_check.chrome({"traceEvents": events}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.pop(0), "no arrow began with it"),
        (lambda a: a.pop(1), "ends nowhere"),
        (lambda a: a[0].update(ts=77.0), "where a span begins"),
        (lambda a: a[2].update(id=1), "another arrow has it too"),
        (lambda a: a[0].update(ts=0.2, tid=1), "points back"),
    ],
)
def test_an_arrow_has_two_ends_at_spans_and_points_forward(
    change: Callable[[list[dict[str, Any]]], Any], said: str
) -> None:
    data = json.loads("".join(chrome.chunks(on_device())))
    arrows = [e for e in data["traceEvents"] if e["ph"] in "sf"]
    others = [e for e in data["traceEvents"] if e["ph"] not in "sf"]
    change(arrows)
    faults = list(trace_check.chrome({"traceEvents": others + arrows}))
    assert any(said in f for f in faults), faults


P = ("profiles", 0)
SPEEDSCOPE_FAULTS: list[tuple[tuple[Any, ...], str]] = [
    (("$schema", "x"), r"\$schema"),
    (("shared", ...), "shared is missing"),
    (("shared", "frames", {}), "frames: a list"),
    (("shared", "frames", 0, {}), "name is missing"),
    (("shared", "frames", 0, "line", "3"), "line: a finite number"),
    (("profiles", []), "at least one"),
    (("activeProfileIndex", 7), "no such profile"),
    (("name", 7), "name: text"),
    ((*P, "type", "drawn"), "evented or sampled"),
    ((*P, "unit", "weeks"), "unit: one of"),
    ((*P, "endValue", -1), "smaller than startValue"),
    ((*P, "name", ...), "name is missing"),
    ((*P, "events", ...), "events is missing"),
    ((*P, "events", 0, "frame", 9), "no such frame"),
    ((*P, "events", 0, "frame", 0.5), "no such frame"),
    ((*P, "events", 0, "type", "Z"), "O or C"),
    ((*P, "events", 0, "at", ...), "at is missing"),
    ((*P, "events", 1, "at", -5), "earlier than the event before it"),
    ((*P, "events", 3, "at", 5000), "outside the profile"),
    ((*P, "events", 2, "frame", 0), "not the one opened last"),
    ((*P, "events", 3, ...), "never closed"),
]


@pytest.mark.parametrize(("change", "said"), SPEEDSCOPE_FAULTS)
def test_a_fault_in_a_speedscope_file_is_found_with_its_place(change: tuple[Any, ...], said: str) -> None:
    faults = list(trace_check.speedscope(changed(SCOPE, *change)))
    assert any(re.search(said, fault) for fault in faults), faults


@pytest.mark.parametrize(
    ("samples", "weights", "said"),
    [([[0]], [], "as many"), ([[5]], [1], r"samples[0]"), ([0], [1], r"samples[0]"), ([[0]], [-1], "weights[0]"), ([[0]], ["1"], "weights[0]")],
)  # fmt: skip
def test_a_sampled_profile_has_stacks_of_frames_and_a_weight_for_each(samples: Any, weights: Any, said: str) -> None:
    profile = {
        "type": "sampled", "name": "x", "unit": "none", "startValue": 0, "endValue": 9, "samples": samples, "weights": weights,
    }  # fmt: skip
    faults = list(trace_check.speedscope(changed(SCOPE, "profiles", [profile])))
    assert any(said in f for f in faults), faults


@pytest.mark.parametrize("text", ["a", "a;b", "a;;b 3", ";a 3", "a -3", " 3", "a 1\n\nb 2", "a 1\nb 2 3\n"])
def test_folded_lines_without_a_frame_or_a_number_are_faults(text: str) -> None:
    assert list(trace_check.folded(text))


def test_files_are_told_apart_and_checked(tmp_path: Path) -> None:
    t = decode()
    made = [
        (chrome.write(t, tmp_path / "a.json"), "chrome trace"),
        (chrome.write(t, tmp_path / "a.json.gz"), "chrome trace"),
        (speedscope.write(t, tmp_path / "b.json.gz"), "speedscope"),
    ]
    (tmp_path / "c.folded").write_text(folded.text(t))
    for path, kind in [*made, (tmp_path / "c.folded", "folded stacks")]:
        found = trace_check.check(path)
        assert (found.kind, found.faults) == (kind, ())
    assert trace_check.check(made[0][0]).spans == len(t)
    assert trace_check.check(made[2][0])[2:] == (len(t), "span")
    assert trace_check.check(tmp_path / "c.folded").counted == "line"
    only = {
        "name": "s",
        "type": "sampled",
        "unit": "none",
        "startValue": 0,
        "endValue": 2,
        "samples": [[0], [0]],
        "weights": [1, 1],
    }
    said = {"$schema": speedscope.SCHEMA, "shared": {"frames": [{"name": "f"}]}, "profiles": [only]}
    (tmp_path / "d.json").write_text(json.dumps(said))
    assert trace_check.check(tmp_path / "d.json") == ("speedscope", (), 2, "sample")


@pytest.mark.parametrize(
    "content",
    [b'{"a":1}', b"[1]", b'{"traceEvents":[', b'{"traceEvents":[],"traceEvents":[]}', b'{"traceEvents":[NaN]}', b"\xff\xfe", b"",
     gzip.compress(b"{}", mtime=0)[:-4], b"[" * 100_000],
)  # fmt: skip
def test_a_file_that_is_none_of_them_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(FormatError):
        trace_check.check(tmp_path / "x")


def test_many_faults_are_cut_short(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(json.dumps({"traceEvents": [1] * 1000}))
    faults = trace_check.check(tmp_path / "x").faults
    assert len(faults) == trace_check.MOST + 1
    assert faults[-1] == "… and more"


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_check.files, "MAX_BYTES", 10_000)
    (tmp_path / "x.gz").write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(FormatError, match="unpacks to more"):
        trace_check.check(tmp_path / "x.gz")

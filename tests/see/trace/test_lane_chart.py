"""The picture of a timeline: a row for each lane, every span once, the critical path, and no name that acts."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from hostile import NAMES
from made_timelines import any_spans, million, named, op, scope
from tritium.see.trace import lane_chart
from tritium.see.trace.lane_chart import Stretch
from tritium.see.trace.timeline import Timeline, timeline

SVG = "{http://www.w3.org/2000/svg}"


def boxes(text: str, kind: str) -> list[ElementTree.Element]:
    return [r for r in ElementTree.fromstring(text).iter(f"{SVG}rect") if r.get("class") == kind]


def test_a_row_for_each_lane_and_the_path_above_its_spans() -> None:
    spans = [(scope("load"), 0, 400, 0), (op("read"), 100, 100, 0), (scope("run"), 400, 600, 1)]
    t = timeline(spans, ["main", "worker"], 1000)
    text = lane_chart.svg(t, "a run", [Stretch(0, 0, 400), Stretch(1, 400, 1000)], "both lanes")
    load, read, run = (dict(b.items()) for b in boxes(text, "s"))
    assert float(load["y"]) < float(read["y"]) < float(run["y"])  # nested below, then the next lane
    assert float(load["x"]) + float(load["width"]) == pytest.approx(float(run["x"]), abs=0.1)
    first, second = boxes(text, "p")
    assert float(first.get("y", "")) < float(load["y"]) < float(second.get("y", "")) < float(run["y"])
    words = " ".join(ElementTree.fromstring(text).itertext())
    assert all(word in words for word in ("a run", "main", "worker", "both lanes", "3 spans"))


@settings(max_examples=25, deadline=None)
@given(any_spans())
def test_any_timeline_is_a_picture_with_its_spans_inside(t: Timeline) -> None:
    for box in boxes(lane_chart.svg(t), "s"):
        assert float(box.get("x", "")) >= lane_chart.LEFT - 0.1
        assert float(box.get("x", "")) + float(box.get("width", "")) <= lane_chart.WIDTH


def test_of_many_spans_the_rest_is_counted() -> None:
    t = million(6000)
    text = lane_chart.svg(t)
    drawn = len(boxes(text, "s"))
    assert drawn <= lane_chart.MOST_SPANS
    assert f"{6000 - drawn} of 6000 spans" in text


def test_hostile_names_are_text() -> None:
    root = ElementTree.fromstring(lane_chart.svg(named(NAMES), NAMES[0]))
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= {"svg", "title", "style", "text", "line", "g", "rect"}


def test_stretches_that_touch_are_joined() -> None:
    assert lane_chart.join([Stretch(0, 0, 5), Stretch(0, 5, 9), Stretch(1, 9, 12)]) == [
        Stretch(0, 0, 9),
        Stretch(1, 9, 12),
    ]

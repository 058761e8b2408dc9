"""Charts: honest, whole, escaped, small, and the same bytes from the same description."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from hostile import NAMES
from tritium.errors import ArgumentError
from tritium.see.charts import charts as c
from tritium.see.charts.svg import text_width

SVG = "{http://www.w3.org/2000/svg}"
WIDTHS = (c.NARROW, 440, c.WIDE, 1400)


def made(name: str = "matmul/512", value: float = 1.9e-3) -> list[c.Chart]:
    """A chart of each kind in which every text is `name` and every number `value`."""
    n, v = name, value
    return [
        c.Bars(n, (c.Bar(n, v, v, v, n, note=n), c.Bar(n, v, group="b"), c.Bar("x", None, absent=n),
                   c.Bar("y", v, estimate=True), c.Bar("z", None, absent="failed: x")), "s", n, n),
        c.Speedup(n, (c.Ratio(n, v, v, v, note=n), c.Ratio("x", None, absent=n), c.Ratio("y", 2.0, 1.5, 2.5)), n, n, n),
        c.Forest(n, (c.Ratio(n, v, v, v, "SLOWER", note=n), c.Ratio("x", None, outcome="MISSING", absent=n),
                     c.Ratio("y", 1.01, 0.99, 1.03, "EQUIVALENT", margin=0.1)), 0.05, c.Ratio(n, v, v, v), n, n),
        c.Stacks(n, (c.Stack(n, (c.Part(n, v), c.Part("b", v))), c.Stack("x", absent=n)), "B", v, n, n),
        c.Trend(n, tuple(c.TrendPoint(n, v, v, v, n, n) for _ in range(5)), "s", (c.TrendStep(2, v, note=n),),
                (c.TrendLevel(0, 1, v, v, v),), (3,), (v,) * 5, n, n),
        c.Distribution(n, (c.Strip(n, (v,) * 9, (3,), v, v, v), c.Strip("b", (), absent=n)), "s", n, n),
        c.Roofline(n, (c.Roof(n, v), c.Roof(n, v, "memory")), (c.Dot(n, v, v, n, v, n), c.Dot("x", 2.0, 1e9)), "FLOP/s", n, n, n),
        c.Heat(n, (n, "x"), (n, "y"), ((c.Cell(v, note=n), c.Cell(v, low=v, high=v)), (c.Cell(None, n), c.Cell(None, "failed", n))),
               "s", subtitle=n, note=n),
        c.OverTime(n, (c.Track(n, "B", (0.0, v, 2.0), (c.Layer(n, (v, v, v)), c.Layer("b", (1.0, v, 2.0))), "step", v, n),
                       c.Track(n, "W", (), (), absent=n)), None, n, n),
        c.Raster(n, (n, "x", "y"), (0.0, v, 2.0), ((v, 1.0, v), (math.nan, 0.0, v), (math.nan,) * 3), "B", "steps", n, n),
    ]  # fmt: skip


def drawn(chart: c.Chart, **how: Any) -> ET.Element:
    return ET.fromstring(c.svg(chart, **how))


def texts(chart: c.Chart, **how: Any) -> list[str]:
    return [t.text or "" for t in drawn(chart, **how).iter(f"{SVG}text")]


def tips(chart: c.Chart) -> list[str]:
    marks = [g for g in drawn(chart, standalone=False).iter(f"{SVG}g") if g.get("class") == "m"]
    return [g[0].text or "" for g in marks]


KINDS = [type(chart).__name__ for chart in made()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_whole_at_every_width(kind: str, width: int) -> None:
    chart = made()[KINDS.index(kind)]
    for standalone in (True, False):
        found = drawn(chart, width=width, standalone=standalone)
        _, _, across, down = map(float, (found.get("viewBox") or "").split())
        assert (across, found.get("role")) == (width, "img")
        assert down > 20
        for text in found.iter(f"{SVG}text"):
            assert -1 <= float(text.get("x", "0")) <= width + 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_description_gives_the_same_bytes(kind: str) -> None:
    i = KINDS.index(kind)
    assert c.responsive(made()[i]) == c.responsive(made()[i])
    assert c.svg(made()[i]) != c.svg(made("other")[i])


@pytest.mark.parametrize("kind", KINDS)
def test_ids_do_not_repeat_in_a_page(kind: str) -> None:
    ids = re.findall(r'\sid="([^"]+)"', c.responsive(made()[KINDS.index(kind)]))
    assert len(ids) == len(set(ids))


def elements(found: ET.Element) -> set[tuple[str, tuple[str, ...]]]:
    return {(e.tag, tuple(sorted(e.attrib))) for e in found.iter()}


@pytest.mark.parametrize("kind", KINDS)
def test_no_name_becomes_an_element_or_an_attribute(kind: str) -> None:
    i = KINDS.index(kind)
    known = {e for width in (c.NARROW, c.WIDE) for e in elements(drawn(made("harmless")[i], width=width))}
    known |= {(f"{SVG}text", ("class", "x", "y")), (f"{SVG}text", ("x", "y"))}
    for n, name in enumerate(NAMES[i :: len(KINDS)]):
        found = elements(drawn(made(name)[i], width=(c.NARROW, c.WIDE)[n % 2]))
        assert found <= known, name


def test_all_hostile_names_together_stay_names() -> None:
    names = tuple(NAMES)
    many: list[c.Chart] = [
        c.Bars("t", tuple(c.Bar(n, 1.0, group=n) for n in names), "s"),
        c.Forest("t", tuple(c.Ratio(n, 1.1, 1.0, 1.2, "SLOWER") for n in names)),
        c.Heat("t", names, ("a",), tuple((c.Cell(None, n),) for n in names), "s"),
    ]
    allowed = {"svg", "g", "path", "text", "title"}
    for chart in many:
        found = drawn(chart, standalone=False)
        assert {e.tag.removeprefix(SVG) for e in found.iter()} == allowed
        assert {a for e in found.iter() for a in e.attrib if a.startswith("on") or "href" in a} == set()


strange = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -1.0, 1e-308, 1e308, -1e308, 1.0, 1e-3, 1e12])
)


@settings(max_examples=20)
@example(1e308, c.NARROW)
@example(-1e308, c.WIDE)
@example(1e-308, c.WIDE)
@example(math.nan, c.NARROW)
@example(0.0, c.WIDE)
@given(strange, st.sampled_from(WIDTHS))
def test_no_number_makes_a_chart_that_is_not_one(value: float, width: int) -> None:
    for chart in made("case", value):
        whole = c.svg(chart, width=width, standalone=False)
        ET.fromstring(whole)
        places = re.sub(r">[^<]*<", "><", re.sub(r'aria-label="[^"]*"|id="[^"]*"|url[^"]*', "", whole))
        assert not re.search(r"nan|inf|\de[+-]?\d", places)
        c.table(chart).text()


@settings(max_examples=20)
@given(st.lists(st.tuples(st.text(max_size=80), st.floats(1e-9, 1e3), st.booleans()), min_size=1, max_size=30))
def test_names_of_rows_do_not_overlap(given_: list[tuple[str, float, bool]]) -> None:
    rows = tuple(
        c.Bar(f"{i}{n}", v if ok else None, absent="" if ok else f"not measured: {i}")
        for i, (n, v, ok) in enumerate(given_)
    )
    for width in (c.NARROW, c.WIDE):
        found = drawn(c.Bars("t", rows, "s"), width=width, standalone=False)
        boxes = []
        for text in found.iter(f"{SVG}text"):
            x, y, said = float(text.get("x", "0")), float(text.get("y", "0")), text.text or ""
            kinds = (text.get("class") or "").split()
            wide = text_width(said, 11 if "t" in kinds else 12)
            start = x - wide if "r" in kinds else x - wide / 2 if "c" in kinds else x
            boxes.append((start, y - 8, start + wide, y, said))
        for i, a in enumerate(boxes):
            for b in boxes[i + 1 :]:
                apart = a[2] <= b[0] + 0.5 or b[2] <= a[0] + 0.5 or a[3] <= b[1] or b[3] <= a[1]
                assert apart, (width, a, b)


# ---- honesty


def bars_of(chart: c.Chart) -> list[str]:
    found = drawn(chart, standalone=False)
    return [p.get("d", "") for p in found.iter(f"{SVG}path") if (p.get("class") or "") in ("k1", "v")]


def test_bars_start_at_zero() -> None:
    chart = c.Bars("t", (c.Bar("a", 100.0), c.Bar("b", 101.0)), "s")
    starts, lengths = zip(
        *(map(float, re.findall(r"M([\d.]+) [\d.]+h([\d.]+)", d)[0]) for d in bars_of(chart)), strict=True
    )
    assert len(set(starts)) == 1
    assert lengths[0] / lengths[1] == pytest.approx(100 / 101, rel=1e-3)
    assert "0" in texts(chart)


def test_what_was_not_measured_is_words_and_no_bar() -> None:
    chart = c.Bars(
        "t", (c.Bar("a", 1.0), c.Bar("b", None, absent="not measured: no counter"), c.Bar("c", math.nan)), "J"
    )
    assert len(bars_of(chart)) == 1
    assert "not measured: no counter" in texts(chart)
    assert "not a number" in texts(chart)


def test_amounts_far_apart_are_dots_on_an_axis_that_says_log() -> None:
    chart = c.Bars("t", (c.Bar("a", 1e-6), c.Bar("b", 1.0)), "s")
    assert any("log scale" in t for t in texts(chart))
    assert all("a4 4" in d for d in bars_of(chart))
    near = c.Bars("t", (c.Bar("a", 0.5), c.Bar("b", 1.0)), "s")
    assert not any("log scale" in t for t in texts(near))


def test_decibels_are_logarithms_already() -> None:
    chart = c.Bars("t", (c.Bar("a", 2.0), c.Bar("b", 70.0)), "dB", better="more is better")
    assert "dB · more is better" in texts(chart)


def test_a_key_names_only_what_has_data() -> None:
    rows = (c.Bar("x", 1.0, group="a"), c.Bar("x", None, group="b", absent="skipped"), c.Bar("x", 2.0, group="c"))
    assert {"a", "c"} <= set(texts(c.Bars("t", rows, "s")))
    assert "b" not in texts(c.Bars("t", rows, "s"))
    ratios = (c.Ratio("x", 2.0, group="a"), c.Ratio("x", None, group="b", absent="skipped"))
    assert "a" in texts(c.Speedup("t", ratios))
    assert "b" not in texts(c.Speedup("t", ratios))


def test_samples_of_contenders_decades_apart_are_on_a_log_axis() -> None:
    slow, fast = (
        c.Strip(name, tuple(v * (1 + i % 7 / 100) for i in range(60))) for name, v in (("a", 1.0), ("b", 1e-3))
    )
    chart = c.Distribution("t", (slow, fast), "s")
    assert {"1 ms", "10 ms", "100 ms", "1 s"} <= set(texts(chart))
    densities = [
        p.get("d", "") for p in drawn(chart).iter(f"{SVG}path") if (p.get("class") or "") in ("k1 s1 p", "k2 s2 p")
    ]
    assert len(densities) == 2
    assert all(len(d) > 100 for d in densities)


def test_bytes_far_apart_have_ticks_at_powers_of_two() -> None:
    ticks = texts(c.Bars("t", (c.Bar("a", 3000.0), c.Bar("b", 1e6)), "B"))
    assert {"4 KiB", "64 KiB", "1 MiB"} <= set(ticks)


def test_an_estimate_is_hatched_and_says_so() -> None:
    chart = c.Bars("t", (c.Bar("a", 1.0, estimate=True), c.Bar("b", 2.0)), "J")
    whole = c.svg(chart)
    assert whole.count("<pattern ") == 1
    assert re.search(r'fill="url\(#c[0-9a-f]{10}k1\)"', whole)
    assert "1 J estimate" in texts(chart)


def test_many_rows_absent_for_one_reason_are_told_once() -> None:
    chart = c.Bars("t", tuple(c.Bar(f"case {i}", None, absent="not measured: no RAPL") for i in range(50)), "J")
    assert texts(chart, standalone=False) == ["50 cases: not measured: no RAPL"]
    assert "case 49" in tips(chart)[0]
    assert len(c.table(chart).rows) == 50


def test_intervals_are_drawn_wherever_they_are_known() -> None:
    with_, without = ((c.Bar("a", 1.0, 0.9, 1.1),), (c.Bar("a", 1.0),))
    count = lambda rows: c.svg(c.Bars("t", rows, "s"), standalone=False).count('class="e"')
    assert (count(with_), count(without)) == (1, 0)
    assert "95 %" in tips(c.Bars("t", with_, "s"))[0]


def test_twice_as_fast_and_half_as_fast_are_equally_far_from_one() -> None:
    found = drawn(c.Speedup("t", (c.Ratio("a", 2.0), c.Ratio("b", 0.5))), standalone=False)
    d = {p.get("class"): p.get("d", "") for p in found.iter(f"{SVG}path")}
    length = lambda kind: float(re.findall(r"h([\d.]+)", d[kind])[0])
    assert length("kgood") == pytest.approx(length("kbad"), abs=0.2)


def test_a_speedup_whose_interval_has_one_is_neither_good_nor_bad() -> None:
    whole = c.svg(c.Speedup("t", (c.Ratio("a", 1.2, 0.9, 1.5),)), standalone=False)
    assert 'class="kfine"' in whole
    assert 'class="kgood"' not in whole


def test_an_outcome_has_its_colour_and_its_shape() -> None:
    shapes = {}
    for outcome in ("SLOWER", "FASTER", "EQUIVALENT", "INCONCLUSIVE", "CHANGED-SMALL"):
        found = drawn(c.Forest("t", (c.Ratio("a", 1.1, 1.0, 1.2, outcome),)), standalone=False)
        marks = [p for p in found.iter(f"{SVG}path") if set((p.get("class") or "").split()) & {"i", "bg"}]
        shapes[outcome] = re.sub(r"[-\d. ]+", "", marks[-1].get("d", "")) + (marks[-1].get("class") or "")
    assert len(set(shapes.values())) == 5


def test_an_interval_that_leaves_the_axis_ends_in_arrows() -> None:
    rows = (c.Ratio("a", 1.01, 1.0, 1.02), c.Ratio("b", 1.0, 1e-9, 1e9, "INCONCLUSIVE"))
    whole = c.svg(c.Forest("t", rows), standalone=False)
    assert "l-5 3l5 3" in whole
    assert "l5 3l-5 3" in whole


def test_failures_in_a_matrix_are_words_on_hatched_ground() -> None:
    cells = ((c.Cell(1.0), c.Cell(None, "out of memory")), (c.Cell(None, "failed"), c.Cell(None, "not measured")))
    chart = c.Heat("t", ("a", "b"), ("cpu", "cuda:0"), cells, "s")
    assert {"out of memory", "failed", "not measured"} <= set(texts(chart))
    assert c.svg(chart).count("url(#") == 2


def test_a_cell_is_coloured_by_how_far_it_is_from_the_best_of_its_row() -> None:
    cells = ((c.Cell(1.0), c.Cell(1.05), c.Cell(100.0)), (c.Cell(8.0), c.Cell(4.0), c.Cell(4.0)))
    kinds = re.findall(
        r'</title><path class="(t\d)"', c.svg(c.Heat("t", ("a", "b"), ("x", "y", "z"), cells, "s"), standalone=False)
    )
    assert kinds == ["t0", "t1", "t6", "t3", "t0", "t0"]


def test_a_matrix_needs_a_cell_for_each_column() -> None:
    with pytest.raises(ArgumentError, match="cells are needed"):
        c.Heat("t", ("a",), ("x", "y"), ((c.Cell(1.0),),), "s")


def test_a_history_names_its_steps_and_where_its_axis_starts() -> None:
    points = tuple(c.TrendPoint(f"c{i}", 1.0 if i < 5 else 1.2, 0.99, 1.21) for i in range(10))
    chart = c.Trend("t", points, "s", steps=(c.TrendStep(5, 1.2),), canary=(1.0,) * 10)
    assert "+20.0 %" in texts(chart)
    assert any("axis from" in t for t in texts(chart))
    assert any("canary" in t for t in texts(chart))
    assert any(tip.startswith("+20.0 % from c5 on\nworse") for tip in tips(chart))


def test_a_long_history_draws_every_point_and_stays_small() -> None:
    chart = c.Trend("t", tuple(c.TrendPoint(f"{i:07x}", 1 + i % 7 / 100) for i in range(3000)), "s")
    whole = c.svg(chart, standalone=False)
    assert whole.count("a1.8 1.8 0 1 0 3.6 0") + len(re.findall(r"h0(?=[m\"])", whole)) == 3000
    assert len(whole) < 120_000


def test_a_far_sample_is_counted_at_the_edge_and_does_not_flatten_the_rest() -> None:
    values = tuple(1 + i % 10 / 1000 for i in range(100))
    chart = c.Distribution("t", (c.Strip("a", (*values, 50.0)),), "s")
    assert "1 beyond, up to 50 s" in texts(chart)
    assert not any(t.startswith("40") for t in texts(chart))


def test_samples_are_drawn_in_time_order() -> None:
    chart = c.Distribution("t", (c.Strip("a", tuple(1 + i / 100 for i in range(50))),), "s")
    path = next(p for p in drawn(chart, width=440).iter(f"{SVG}path") if "dots" in (p.get("class") or ""))
    steps = re.findall(r"m(-?\d+) ?(-?\d+)h0", path.get("d", ""))
    assert len(steps) == 50
    assert all(int(dx) > 0 for dx, _ in steps[1:])
    assert all(int(dy) <= 0 for _, dy in steps[1:])


def test_no_peak_is_lost_of_many_samples() -> None:
    values = [1.0] * 100_000
    values[77_777] = 9.0
    track = c.Track("memory", "B", tuple(i / 1000 for i in range(100_000)), (c.Layer("x", tuple(values)),))
    whole = c.svg(c.OverTime("t", (track,)), standalone=False)
    assert "maximum 9 B" in whole
    assert len(whole) < 20_000
    edge = re.findall(r'class="j s1" d="([^"]+)"', whole)[0]
    assert len(set(re.findall(r"-\d+", edge))) >= 1


def test_a_track_without_samples_says_why() -> None:
    chart = c.OverTime("t", (c.Track("GPU", "W", (), (), absent="not measured: no device"),))
    assert "not measured: no device" in texts(chart)


def test_a_layer_needs_a_value_for_each_moment() -> None:
    with pytest.raises(ArgumentError, match="2 times"):
        c.Track("x", "B", (0.0, 1.0), (c.Layer("a", (1.0,)),))


def test_a_dot_under_the_roof_is_drawn_under_it() -> None:
    chart = c.Roofline("t", (c.Roof("peak", 1e11), c.Roof("DRAM", 1e10, "memory")), (c.Dot("gemv", 1.0, 5e9),))
    whole = c.svg(chart, standalone=False)
    roof = float(re.findall(r"peak\n100 GFLOP/s</title><path[^>]*d=\"M[\d.]+ ([\d.]+)H", whole)[0])
    dot = float(re.findall(r"gemv\n5 GFLOP/s at 1 FLOP/B</title><path[^>]*d=\"M[\d.]+ ([\d.]+)a", whole)[0])
    assert dot > roof


ROOFS = (
    c.Roof("f32", 3.5e11), c.Roof("int8", 1e13, main=False, unit="OP/s"), c.Roof("L2", 2e11, "memory", main=False),
    c.Roof("L3", 4e10, "memory", main=False), c.Roof("DRAM", 3.4e10, "memory"),
)  # fmt: skip


@pytest.mark.parametrize("width", [340, 720])
def test_the_main_roofs_are_named_before_those_that_lie_close(width: int) -> None:
    near = c.Roofline("t", (*ROOFS, c.Roof("bf16", 3.6e11, main=False)), (c.Dot("gemv", 1.0, 5e9),))
    found = texts(near, width=width)
    assert "DRAM 34 GB/s" in found
    assert "f32 350 GFLOP/s" in found
    assert not [t for t in found if t.startswith("bf16")]


def test_the_name_of_the_last_slope_stands_below_it() -> None:
    whole = drawn(c.Roofline("t", ROOFS, (c.Dot("gemv", 1.0, 5e9),)), standalone=False)
    heights = {
        (t.text or "").split()[0]: float(t.get("y", "")) for t in whole.iter(f"{SVG}text") if "GB/s" in (t.text or "")
    }
    assert heights.pop("DRAM") > 0
    assert set(heights) == {"L2", "L3"}
    assert max(heights.values()) < 0


@pytest.mark.parametrize("share", [0.5, 0.98, 1.0])
def test_the_name_of_a_dot_stands_on_no_level_roof_if_there_is_room(share: float) -> None:
    chart = c.Roofline(
        "t", (c.Roof("peak", 1e11), c.Roof("DRAM", 1e10, "memory")), (c.Dot("on it", 100.0, share * 1e11),)
    )
    whole = c.svg(chart, standalone=False)
    roof = float(re.findall(r"peak\n100 GFLOP/s</title><path[^>]*d=\"M[\d.]+ ([\d.]+)H", whole)[0])
    base = float(re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>on it</text>', whole)[0])
    assert base < roof - 1 or base - 9 > roof


def test_a_roof_has_a_unit_of_its_own() -> None:
    chart = c.Roofline("t", ROOFS, (c.Dot("gemv", 1.0, 5e9),))
    assert "int8 10 TOP/s" in texts(chart)
    assert ("int8", "compute", "-", "10 TOP/s", "") in c.table(chart).rows


def test_the_name_of_a_level_roof_makes_way_for_a_dot() -> None:
    def end(dot: c.Dot) -> float:
        whole = drawn(c.Roofline("t", ROOFS[:1], (c.Dot("a", 0.1, 1e9), c.Dot("far", 1e4, 1e9), dot)), standalone=False)
        return float(next(t.get("x", "") for t in whole.iter(f"{SVG}text") if (t.text or "").startswith("f32")))

    assert end(c.Dot("on it", 1e4, 3.7e11)) < end(c.Dot("below", 1e4, 1e10)) - 12


# ---- pages, files, tables


def test_a_chart_without_rows_says_so() -> None:
    empty: list[c.Chart] = [
        c.Bars("t", (), "s"), c.Speedup("t", ()), c.Forest("t", ()), c.Stacks("t", (), "B"),
        c.Trend("t", (), "s"), c.Heat("t", (), (), (), "s"), c.OverTime("t", ()), c.Roofline("t", (), ()),
    ]  # fmt: skip
    for chart in empty:
        assert "nothing to show" in texts(chart), type(chart)
        assert c.table(chart).rows == ()
    assert "failed: x" in texts(c.Distribution("t", (c.Strip("a", (), absent="failed: x"),), "s"))


def test_in_a_page_the_title_is_not_drawn_and_no_style_is_repeated() -> None:
    chart = c.Bars("The title", (c.Bar("a", 1.0),), "s", subtitle="below it")
    assert {"The title", "below it"} <= set(texts(chart))
    inline = c.svg(chart, standalone=False)
    assert "The title" not in texts(chart, standalone=False)
    assert 'aria-label="The title. below it"' in inline
    assert "<style" not in inline


def test_every_class_that_is_drawn_has_a_rule() -> None:
    used = {k for chart in made() for k in " ".join(re.findall(r'class="([^"]+)"', c.responsive(chart))).split()}
    known = set(re.findall(r"\.([a-z][a-z0-9-]*)", c.css()))
    assert used - known <= {"v"}  # hatched: its fill is an attribute


def test_a_theme_leaves_no_variable() -> None:
    for theme in ("light", "dark"):
        assert "var(" not in c.svg(made()[0], theme=theme)
    assert "prefers-color-scheme:dark" in c.svg(made()[0])


def test_both_layouts_stand_in_a_page() -> None:
    both = c.responsive(made()[0])
    assert re.findall(r'class="(chart-\w+)"><svg[^>]*? width="(\d+)"', both) == [
        ("chart-wide", "920"),
        ("chart-narrow", "360"),
    ]
    assert ".chart-narrow{display:none}" in c.css()


def test_a_hundred_cases_stay_small() -> None:
    names = [f"operation/{i:03d} with a name of usual length" for i in range(100)]
    many: list[c.Chart] = [
        c.Bars(
            "t",
            tuple(c.Bar(n, 1 + i / 50, 0.9 + i / 50, 1.1 + i / 50, note="24 samples") for i, n in enumerate(names)),
            "s",
        ),
        c.Speedup("t", tuple(c.Ratio(n, 1 + i / 50, 1.0, 1.1 + i / 50) for i, n in enumerate(names))),
        c.Forest("t", tuple(c.Ratio(n, 1 + i / 500, 1.0, 1.1 + i / 500, "EQUIVALENT") for i, n in enumerate(names))),
        c.Stacks("t", tuple(c.Stack(n, (c.Part("a", 1e6), c.Part("b", 1e6))) for n in names), "B"),
    ]
    cards = [
        c.Distribution(n, (c.Strip("now", tuple(1 + (i * j) % 17 / 100 for i in range(150))),), "s")
        for j, n in enumerate(names)
    ]
    total = sum(len(c.responsive(chart)) for chart in many)
    total += sum(len(c.svg(chart, width=440, standalone=False)) for chart in cards)
    assert total < 600_000


def test_a_table_tells_all_the_chart_knows() -> None:
    table = c.table(c.Bars("t", (c.Bar("a", 1.5e-3, 1.4e-3, 1.6e-3), c.Bar("b", None, absent="failed: x")), "s"))
    assert table.rows == (("a", "1.5 ms", "1.4 ms … 1.6 ms", ""), ("b", "", "", "failed: x"))


def test_parts_are_stacked_end_to_end_and_told_with_their_sum() -> None:
    chart = c.Stacks(
        "t",
        (c.Stack("peak", (c.Part("matmul", 3 << 20), c.Part("add", 1 << 20))), c.Stack("end", absent="nothing")),
        "B",
    )
    boxes = re.findall(r'<path class="k[12]" d="M([\d.]+) [\d.]+h([\d.]+)', c.svg(chart, standalone=False))[-2:]
    (first, long), (second, short) = [(float(x), float(w)) for x, w in boxes]
    assert (round(second - first, 1), round(long / short, 1)) == (round(long, 1), 3.0)
    assert c.table(chart).rows == (("peak", "3 MiB", "1 MiB", "4 MiB", ""), ("end", "-", "-", "-", "nothing"))
    assert "nothing" in texts(chart)


@pytest.mark.parametrize(("limit", "where"), [(8e6, "red line"), (8e9, "beyond the axis")])
def test_a_limit_of_stacks_is_a_line_or_words(limit: float, where: str) -> None:
    chart = c.Stacks("t", (c.Stack("peak", (c.Part("a", 4e6),)),), "B", limit)
    assert any(where in t for t in texts(chart))
    assert ('class="j sbad"' in c.svg(chart, standalone=False)) == (where == "red line")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"width": 10}, "px"),
        ({"theme": "blue"}, "use light or dark"),
        ({"theme": "light", "standalone": False}, "page"),
    ],
)
def test_what_cannot_be_drawn_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        c.svg(made()[0], **how)
    with pytest.raises(ArgumentError, match="A chart is needed"):
        c.svg("bars")  # type: ignore[arg-type]


# ---- maps over time


def levels(chart: c.Raster, row: int) -> list[tuple[str, float]]:
    """Return the opacity of each run of a row's cells, "" for zeros, and its width in px, in the order of time."""
    mark = [g for g in drawn(chart, standalone=False).iter(f"{SVG}g") if g.get("class") == "m"][row]
    runs = [
        (float(x), p.get("stroke-opacity", ""), float(end) - float(x))
        for p in mark.iter(f"{SVG}path") if p.get("shape-rendering")
        for x, end in re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", p.get("d", ""))
    ]  # fmt: skip
    return [(opacity, width) for _, opacity, width in sorted(runs)]


def test_a_map_is_deeper_where_values_are_larger_and_has_gaps() -> None:
    rows = ((1e-4, 1e-3, 1e-2, 1.0), (0.0, math.nan, 1e-4, 1e-4))
    chart = c.Raster("t", ("a", "b"), (1.0, 2.0, 3.0, 4.0), rows, clock="steps")
    depths = [float(depth) for depth, _ in levels(chart, 0)]
    assert depths == sorted(depths)
    assert (depths[0], depths[-1], len(depths)) == (0.12, 1.0, 4)
    zero, two = levels(chart, 1)
    assert (zero[0], two[0]) == ("", "0.12")
    assert two[1] == pytest.approx(2 * zero[1], abs=0.2)
    assert {"1 steps", "4 steps", "0.0001", "1", "a", "b"} <= set(texts(chart))
    assert tips(chart)[0] == "a\nfirst 0.0001, last 1\nmost 1 at 4 steps"


@pytest.mark.parametrize(("values", "bounds"), [((2.0, 10.0), {"0", "10"}), ((0.31, 0.39), {"0.3", "0.4"})])
def test_a_linear_map_begins_at_0_unless_its_values_are_near(values: tuple[float, ...], bounds: set[str]) -> None:
    chart = c.Raster("t", ("a",), (1.0, 2.0), (values,))
    assert bounds <= set(texts(chart))
    shallow, deep = (float(depth) for depth, _ in levels(chart, 0))
    assert shallow < 0.5 < deep


def test_a_map_loses_no_peak_of_many_times_and_says_which_rows_it_leaves_out() -> None:
    values = [1.0] * 5000
    values[3777] = 900.0
    chart = c.Raster("t", ("a",), tuple(map(float, range(5000))), (tuple(values),))
    assert "1.0" in [depth for depth, _ in levels(chart, 0)]
    many = c.Raster("t", tuple(f"row {i}" for i in range(3000)), (0.0,), ((1.0,),) * 3000)
    assert len(tips(many)) <= 280
    assert any(text.endswith("of 3000 rows, evenly chosen") for text in texts(many))
    assert len(c.table(many).rows) == 3000


def test_a_map_needs_a_value_for_each_time() -> None:
    with pytest.raises(ArgumentError, match="2 values are needed"):
        c.Raster("t", ("a",), (1.0, 2.0), ((1.0,),))

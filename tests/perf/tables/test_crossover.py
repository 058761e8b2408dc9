"""From which size on another arm is faster: found where intervals show it, told in words, never where they do not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from made_results import ENVIRONMENT, run
from tritium.errors import ArgumentError
from tritium.perf.records.case import Context
from tritium.perf.records.run import Plan, Results
from tritium.perf.store import results as store
from tritium.perf.tables import crossover, pages
from tritium.perf.tables.selection import device_selection_guide
from tritium.see.reports import report as reports

SIDES = (128, 256, 512, 1024, 2048)
Cost = Callable[[int], float]


def compared(
    costs: Mapping[str, Cost], sides: tuple[int, ...] = SIDES, *, sd: float = 0.005, seed: int = 0, batch: int | None = None,
    transfer: str = "", shapes: Callable[[int], tuple[int, ...]] = lambda n: (n, n), generations: int = 15,
) -> Results:  # fmt: skip
    """A product of every side on every arm, of chosen cost."""
    rng = np.random.default_rng(seed)
    runs = []
    for arm, cost in costs.items():
        for n in sides:
            shape = shapes(n)
            name = f"matmul {'x'.join(map(str, shape))} f32" + (", with transfer" if transfer else "")
            context = Context("matmul", shape, "f32", "cpu" if arm == "tritium" else arm.partition(":")[2], batch)
            made = run(name, arm, cost(n), rng, sd=sd, generations=generations)
            runs.append(replace(made, context=replace(context, transfer=transfer)))
    return Results("compare", "compare", "2026-01-31T12:00:00Z", "", Plan(), ENVIRONMENT, tuple(costs), tuple(runs))


def steady(seconds: float) -> Cost:
    return lambda n: seconds


CPU: Cost = lambda n: 1e-9 * n**2
GPU: Cost = lambda n: 1e-9 * (600**0.5) * n**1.5  # as fast as the CPU at 600


def only(results: Results) -> crossover.Crossover:
    (found,) = crossover.crossovers(results)
    return found


def test_two_lines_cross_where_they_cross() -> None:
    found = only(compared({"tritium": CPU, "tritium:gpu": GPU}))
    assert (found.kind, found.small, found.large, found.between) == ("crosses", "tritium", "tritium:gpu", (512, 1024))
    assert found.size == pytest.approx(600, rel=0.05)
    assert found.text.startswith("tritium:gpu from about ")
    assert found.text.endswith(" on (between 512 and 1024), tritium below")


def test_the_order_of_the_arms_changes_nothing() -> None:
    found = only(compared({"tritium:gpu": GPU, "tritium": CPU}))
    assert (found.small, found.large) == ("tritium", "tritium:gpu")
    assert found.size == pytest.approx(600, rel=0.05)


@given(meet=st.floats(160, 1700), steep=st.floats(0.3, 2), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_a_crossing_is_found_between_the_sizes_around_it(meet: float, steep: float, seed: int) -> None:
    other: Cost = lambda n: CPU(n) * (meet / n) ** steep
    found = only(compared({"a": CPU, "b": other}, sd=1e-4, seed=seed))
    assert found.between is not None
    assert found.size is not None
    assert found.between[0] <= found.size <= found.between[1]
    assert found.size == pytest.approx(meet, rel=0.02)


def test_an_arm_that_is_faster_everywhere_has_no_crossover() -> None:
    found = only(compared({"tritium": CPU, "tritium:gpu": lambda n: 3 * CPU(n)}))
    assert found.text == "always tritium: no crossover in 128…2048"


def test_where_no_interval_is_on_a_side_nothing_is_told() -> None:
    found = only(compared({"a": CPU, "b": CPU}, sd=0.03))
    assert found.text == "no difference is shown in 128…2048"


def test_a_size_that_is_not_decided_does_not_make_a_crossing() -> None:
    found = only(compared({"a": CPU, "b": lambda n: CPU(n) * (1.0 if n < 512 else 0.5)}))
    assert found.kind == "partly"
    assert found.text.startswith("b at ")
    assert found.text.endswith("512, 1024, 2048; no difference is shown at the others")


@pytest.mark.parametrize("seed", range(5))
def test_chance_makes_no_crossing(seed: int) -> None:
    found = only(compared({"a": CPU, "b": lambda n: CPU(n) * (1.0 if n < 512 else 0.5)}, sd=0.01, seed=seed))
    assert found.kind == "partly"


def test_more_than_one_change_is_told_size_by_size() -> None:
    found = only(compared({"a": CPU, "b": lambda n: CPU(n) * (2.0 if n in (128, 1024) else 0.5)}))
    assert found.kind == "several"
    assert found.text == "changes more than once: 128 a, 256 b, 512 b, 1024 a, 2048 b"


def test_few_processes_say_how_many_are_needed() -> None:
    given = replace(compared({"a": CPU, "b": GPU}, generations=3), plan=Plan(generations=3))
    table = crossover.table(given)
    assert table is not None
    assert table.below[-1].endswith("6 processes or more can show that; there were 3.")


def test_one_process_shows_no_crossing() -> None:
    given = compared({"a": CPU, "b": GPU}, generations=1)
    assert all(c.kind != "crosses" or all(p.interval for p in c.points if p.side) for c in crossover.crossovers(given))


def test_one_size_is_no_series() -> None:
    given = compared({"a": CPU, "b": GPU}, (512,))
    assert crossover.crossovers(given) == ()
    assert crossover.table(given) is None


def test_batches_and_transfers_stand_apart() -> None:
    plain, eight = compared({"a": CPU, "b": GPU}), compared({"a": CPU, "b": CPU}, batch=8, shapes=lambda n: (8, n))
    moved = compared({"a": CPU, "b": lambda n: 3 * CPU(n)}, transfer="included")
    given = replace(plain, runs=(*plain.runs, *eight.runs, *moved.runs))
    found = {c.case: c for c in crossover.crossovers(given)}
    assert list(found) == ["matmul f32", "matmul f32, batch 8", "matmul f32, with transfer"]
    assert (found["matmul f32"].kind, found["matmul f32, with transfer"].kind) == ("crosses", "always")
    assert (found["matmul f32, batch 8"].batch, found["matmul f32, with transfer"].transfer) == (8, "included")
    assert [p.size for p in found["matmul f32, batch 8"].points] == list(SIDES)


def test_shapes_of_several_lengths_are_counted_in_elements() -> None:
    found = only(compared({"a": CPU, "b": GPU}, (64, 256), shapes=lambda n: (n, 2 * n)))
    assert found.unit == "elements"
    assert found.range_text == "8192…131,072 elements"


def test_a_machine_that_was_not_the_same_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritium.perf.gate.compare._broken_canary", lambda *_: "the machine was not the same")
    assert crossover.crossovers(compared({"a": CPU, "b": GPU})) == ()


def test_meeting_is_exact_for_powers() -> None:
    assert math.isclose(crossover.meeting(100, 2.0, 400, 0.5), 200)


def test_a_page_has_a_row_where_the_size_decides_and_a_sentence_where_it_does_not() -> None:
    given = compared({"a": steady(1e-5), "b": CPU, "c": lambda n: 2 * CPU(n), "d": GPU, "e": steady(1e-5)})
    rows, lines = crossover.notable(crossover.crossovers(given), "a")
    assert ("b", "d") in {c.arms for c in rows}
    assert ("b", "c") not in {c.arms for c in rows}
    assert "a and e: no difference is shown: matmul f32 (128…2048)." in lines
    assert "a and b: a at every size: matmul f32 (128…2048)." in lines
    pairs = [line.split(":")[0] for line in lines]
    assert len(pairs) == len(set(pairs))
    table = crossover.table(compared({"a": CPU, "b": lambda n: 2 * CPU(n)}))
    assert table is not None
    assert table.rows[0][-1] == "no pair of contenders changes order with the size"


# ---- where they are told


GIVEN = compared({"tritium": CPU, "tritium:gpu": GPU})


def test_the_text_page_tells_them_and_what_the_clock_holds() -> None:
    page = pages.page(GIVEN)
    assert "Crossover sizes: the faster of two contenders" in page
    assert "tritium:gpu from about" in page
    assert "Device work only: transfers are excluded" in page
    assert "With transfer" not in page
    assert "With transfer: from NumPy arrays" in pages.page(compared({"tritium": CPU, "a": GPU}, transfer="included"))


def test_the_guide_has_them_as_evidence() -> None:
    guide = device_selection_guide(GIVEN)
    assert guide.crossovers == crossover.crossovers(GIVEN)
    training = next(r for r in guide.recommendations if r.use_case == "training")
    assert training.arms == ("tritium:gpu",)
    assert "matmul f32: tritium:gpu from about" in training.evidence


def test_the_report_has_a_section_of_them_or_says_how_to_get_it() -> None:
    (section,) = (s for s in reports.report(GIVEN).sections if s.id == "crossovers")
    assert "tritium:gpu from about" in section.text()
    one = reports.report(compared({"tritium": CPU}))
    assert "crossovers" not in [s.id for s in one.sections]
    assert "--devices cpu,mlx" in one.text()


@pytest.mark.parametrize("fmt", ["summary", "json", "csv", "markdown", "html"])
def test_every_format_of_a_comparison_names_its_cases(fmt: str) -> None:
    text = tt.perf.export_results(GIVEN, fmt)
    assert "matmul 512x512 f32" in text
    assert text.endswith("\n")


def test_a_format_there_is_not_names_those_there_are() -> None:
    with pytest.raises(
        ArgumentError, match=r"'sumary'; there are summary, json, csv, markdown, html\. Did you mean 'summary'"
    ):
        tt.perf.export_results(GIVEN, "sumary")


def test_json_has_what_is_derived_beside_and_reads_back_as_measured(tmp_path: Path) -> None:
    text = tt.perf.export_results(GIVEN, "json")
    derived = json.loads(text)["derived"]
    assert derived["crossovers"][0]["kind"] == "crosses"
    assert derived["crossovers"][0]["text"].startswith("tritium:gpu from about")
    assert [r["use_case"] for r in derived["device_selection_guide"]][:2] == ["training", "batch inference"]
    (tmp_path / "results.json").write_text(text, encoding="utf-8")
    assert store.load(tmp_path / "results.json") == GIVEN
    assert "derived" not in store.save(GIVEN, tmp_path / "again.json").read_text(encoding="utf-8")

"""Results as tables: what a cell says, and what it must never say."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from made_results import changed, results
from tritium.perf.gate.verdict import Verdict
from tritium.perf.records.case import Context, Work
from tritium.perf.records.environment import Level, Limits
from tritium.perf.records.run import PLANS, Results, Series, not_measured
from tritium.perf.tables import energy, pages, tables
from tritium.perf.tables.table import Table

ARMS = {"tritium": 1.0, "numpy": 2.0, "torch": 1.0}
CASES = {"matmul 64x64 f32": 2e-3, "add 64x64 f32": 2e-5}


def found(**more: Any) -> Results:
    return results(CASES, arms=ARMS, **more)


def row(table: Table, case: str) -> dict[str, str]:
    cells = next(r for r in table.rows if r[0] == case)
    return dict(zip(table.heads, cells, strict=True))


def number(text: str) -> float:
    return float(re.match(r"[0-9.]+", text)[0])  # type: ignore[index]


def test_a_row_for_each_case_and_none_for_canaries() -> None:
    assert [r[0] for r in tables.comparison(found()).rows] == [*CASES, "geometric mean"]


def test_the_first_arm_is_told_with_its_interval_and_the_others_as_times_as_fast() -> None:
    cells = row(tables.comparison(found()), "matmul 64x64 f32")
    middle, low, high = map(float, re.fullmatch(r"([0-9.]+) ms \(([0-9.]+)…([0-9.]+)\)", cells["tritium"]).groups())  # type: ignore[union-attr]
    assert low <= middle <= high
    assert low > 1.9
    assert high < 2.1
    assert number(cells["vs numpy"]) == pytest.approx(2, rel=0.03)
    assert "…" in cells["vs numpy"]


def test_a_difference_that_is_not_shown_is_marked() -> None:
    cells = row(tables.comparison(found(sd=0.05)), "matmul 64x64 f32")
    assert cells["vs torch"].endswith("~")
    assert not cells["vs numpy"].endswith("~")


def test_one_round_has_no_interval() -> None:
    given = replace(found(generations=1, rounds=1), plan=replace(PLANS["quick"], generations=1))
    assert re.fullmatch(r"[0-9.]+×", row(tables.comparison(given), "matmul 64x64 f32")["vs numpy"])


def test_a_brief_table_has_no_intervals_of_ratios_but_its_marks() -> None:
    cells = row(tables.comparison(found(sd=0.05), brief=True), "matmul 64x64 f32")
    assert re.fullmatch(r"[0-9.]+×", cells["vs numpy"])
    assert re.fullmatch(r"[0-9.]+× ~", cells["vs torch"])


@pytest.mark.parametrize("status", ["timed out", "crashed", "out of memory", "wrong", "skipped", "failed"])
def test_a_failure_is_a_word_in_its_cell_and_its_reason_stands_below(status: str) -> None:
    given = changed(found(), "matmul 64x64 f32", "numpy", status=status, series=(), reason="it was too large")
    table = tables.comparison(given)
    assert row(table, "matmul 64x64 f32")["vs numpy"] == status
    assert f"numpy: {status}: matmul 64x64 f32: it was too large" in table.below


def test_where_the_first_arm_failed_the_others_times_are_told() -> None:
    given = changed(found(), "matmul 64x64 f32", "tritium", status="crashed", series=(), reason="signal 11")
    cells = row(tables.comparison(given), "matmul 64x64 f32")
    assert cells["tritium"] == "crashed"
    assert re.fullmatch(r"4(.0\d?)? ms|3.9\d? ms", cells["vs numpy"])


def test_one_reason_of_many_cases_is_one_line() -> None:
    given = found()
    for case in CASES:
        given = changed(given, case, "torch", status="skipped", series=(), reason="no such thing")
    assert [line for line in tables.troubles(given) if line.startswith("torch")] == [
        "torch: skipped: matmul 64x64 f32, add 64x64 f32: no such thing"
    ]


def test_an_arm_that_works_otherwise_is_remarked_on_once() -> None:
    said = "tern2 dequantised to f32 before timing"
    given = found()
    for case in CASES:
        given = changed(given, case, "numpy", facts={"weights": said}, context=Context("bitlinear"))
        given = changed(given, case, "tritium", facts={"weights": "tern2"})
    assert tables.remarks(given) == [f"numpy: bitlinear: {said}"]


def test_flags_are_counted() -> None:
    given = changed(found(), "add 64x64 f32", "numpy", flags=("no steady state",))
    assert any(line == "1 of 6 cells reached no steady state." for line in tables.troubles(given))


def test_the_rate_is_of_what_limits_and_the_share_is_of_the_ceiling() -> None:
    limits = Limits(2, 1e11, 1e12, (Level("DRAM", None, 1e10),))
    given = replace(found(), environment=replace(found().environment, limits=limits))
    busy = changed(given, "matmul 64x64 f32", work=Work(10**8, 1000, 1000))
    cells = row(tables.comparison(busy), "matmul 64x64 f32")
    assert cells["rate"].endswith("GFLOP/s")
    assert number(cells["rate"]) == pytest.approx(50, rel=0.03)
    assert number(cells["of ceiling"]) == pytest.approx(50, abs=2)
    moving = changed(given, "add 64x64 f32", work=Work(10, 40_000, 20_000))
    cells = row(tables.comparison(moving), "add 64x64 f32")
    assert cells["rate"].endswith("GB/s")
    assert number(cells["of ceiling"]) == pytest.approx(30, abs=2)


def test_integer_work_is_told_as_such() -> None:
    given = changed(found(), "matmul 64x64 f32", work=Work(10**9, 10, 10, True))
    assert row(tables.comparison(given), "matmul 64x64 f32")["rate"].endswith(" GOP/s")


def test_work_that_counts_nothing_is_told_in_calls() -> None:
    given = changed(found(), "add 64x64 f32", work=Work())
    cells = row(tables.comparison(given), "add 64x64 f32")
    assert re.fullmatch(r"[0-9.]+ k calls/s", cells["rate"])
    assert cells["of ceiling"] == "-"


def test_one_process_is_said_to_tell_nothing_of_others() -> None:
    given = replace(found(generations=1), plan=replace(PLANS["quick"], generations=1))
    assert any("leave out variance between processes" in line for line in tables.comparison(given).below)


@given(st.lists(st.floats(1e-6, 1e-3), min_size=2, max_size=12))
def test_the_interval_of_a_time_holds_the_median(values: list[float]) -> None:
    wall = Series("wall", "s", tuple(((v,),) for v in values))
    interval = tables.time_interval(wall)
    assert interval is not None
    assert interval[0] <= (wall.median or 0) <= interval[1]
    assert math.isfinite(interval[0] + interval[1])


HOSTILE = "<b>x</b> | \x1b[31m @all `x` ::error::"


def test_no_line_of_markdown_is_a_command_in_a_log() -> None:
    page = Table("::error::x", ("case",), (("::error::x",),), below=("::error::x", "  ::stop::x")).markdown()
    assert not any(line.lstrip().startswith("::") for line in page.splitlines())


def test_a_name_obeys_neither_terminal_nor_markdown() -> None:
    given = results({HOSTILE: 1e-3}, arms={"tritium": 1.0})
    text, page = tables.comparison(given).text(), tables.comparison(given).markdown()
    assert "\x1b" not in text + page
    line = next(x for x in page.splitlines() if "all" in x)
    assert line.count(" | ") == 3
    assert "``" in line


def test_every_line_of_a_text_table_has_the_same_columns() -> None:
    lines = tables.comparison(found()).text().splitlines()
    rule = lines[1]
    assert {len(x) for x in (lines[0], rule)} == {len(rule)}
    assert all(len(x) <= len(rule) for x in lines[2:5])


# ---- suites


def test_memory_is_told_or_said_not_to_be_measured() -> None:
    peak = Series("peak_bytes", "B", (((4096.0,),),), exact=True)
    given = found()
    for arm in ARMS:
        wall = given.of("add 64x64 f32", arm).series  # type: ignore[union-attr]
        more = peak if arm == "tritium" else not_measured("peak_bytes", "B", "unsupported: not its pool")
        given = changed(given, "add 64x64 f32", arm, series=(*wall, more))
    table = tables.details(given, "memory")
    assert table is not None
    cells = {r[1]: r[3] for r in table.rows if r[0] == "add 64x64 f32"}
    assert cells == {"tritium": "4 KiB", "numpy": "not measured", "torch": "not measured"}
    assert "peak_bytes of numpy: not measured: unsupported: not its pool" in table.below


def test_a_suite_that_only_times_has_no_further_table() -> None:
    assert tables.details(found(), "compare") is None


def test_a_scheme_is_one_row_with_its_steps_bytes_and_loss() -> None:
    given = results(
        {"quantize int8 8x8": 1e-3, "dequantize int8 8x8": 2e-3, "matmul int8 8x8": 4e-6}, arms={"tritium": 1.0}
    )
    facts = {"bytes after": 68, "times smaller": 3.76, "bits a weight": 8.5, "sqnr dB": 39.61}
    for case in given.cases[:3]:
        context = Context(case.split()[0], (8, 8), "int8")
        given = changed(given, case, context=context, facts=facts, work=Work(items=1, item="token"))
    (cells,) = tables.quantization(given).rows
    assert cells[:2] == ("int8", "8x8")
    assert cells[5:9] == ("68 B", "3.76×", "8.50", "39.6 dB")
    assert cells[9].endswith("k tokens/s")


def test_layouts_get_advice_with_its_number() -> None:
    given = results(
        {"add 8x8 f32": 1e-3, "add 8x8 f32 strided": 3e-3, "sum 8x8 f32": 1e-3, "sum 8x8 f32 strided": 1e-3},
        arms={"tritium": 1.0},
    )
    one, two = tables.advice(given, "strided", "contiguous")
    assert re.fullmatch(r"add 8x8 f32: prefer contiguous, (3.0|2.9)\d× \(2\.\d\d…3\.\d\d\) as fast as strided\.", one)
    assert re.fullmatch(r"sum 8x8 f32: strided and contiguous take the same time: \S+× \(0\.9\d…1\.0\d\)\.", two)


def test_advice_is_not_given_where_the_interval_of_the_ratio_decides_nothing() -> None:
    given = results({"add 8x8 f32": 1e-3, "add 8x8 f16": 9e-4}, arms={"tritium": 1.0}, sd=0.3, generations=4)
    (line,) = tables.advice(given, "f16", "f32")
    assert re.fullmatch(r"add 8x8: no difference between f16 and f32 is shown: \S+× \(0\.\d\d…\d\.\d\d\)\.", line)
    once = results({"add 8x8 f32": 1e-3, "add 8x8 f16": 5e-4}, arms={"tritium": 1.0}, generations=1, rounds=1)
    assert "no difference between f16 and f32 is shown" in tables.advice(once, "f16", "f32")[0]


def test_advice_on_two_cases_that_share_the_moods_of_their_processes_stands() -> None:
    """The times of either spread by ±30 %, their ratio does not: both were measured in the same processes."""
    given = results({"add 8x8 f32": 1e-3}, arms={"tritium": 1.0}, sd=0.3)
    run = given.runs[0]
    faster = tuple(
        tuple(tuple((0.9 + 0.001 * (i % 3)) * v for v in b) for b in g) for i, g in enumerate(run.series[0].values)
    )
    twin = replace(run, case="add 8x8 f16", series=(replace(run.series[0], values=faster),))
    (line,) = tables.advice(replace(given, runs=(run, twin)), "f16", "f32")
    assert line == "add 8x8: prefer f16, 1.11× (1.11…1.11) as fast as f32."


def test_the_ends_of_an_interval_are_not_scaled_by_the_rounding_of_its_middle() -> None:
    wall = Series("wall", "s", tuple((((v * 1e-3),),) for v in (1.0044, 1.0049, 1.0051, 1.0049)))
    run = changed(found(), found().cases[0], series=(wall,)).runs[0]
    assert tables.time_text(run) == "1.00 ms (1.00…1.01)"


def test_dtypes_get_advice_in_either_direction() -> None:
    given = results({"add 8x8 f32": 1e-3, "add 8x8 f16": 5e-4}, arms={"tritium": 1.0})
    (line,) = tables.advice(given, "f16", "f32")
    assert re.fullmatch(r"add 8x8: prefer f16, (2\.0|1\.9)\d× \(1\.9\d…2\.0\d\) as fast as f32\.", line)


# ---- energy


def with_energy(given: Results, series: Series) -> Results:
    runs = tuple(replace(r, series=(*r.series, series)) for r in given)
    return replace(given, runs=runs, suite="energy")


def test_energy_is_told_as_power_joules_and_operations() -> None:
    details = {"details": {"watts": 20.0, "calls_per_degree": 123.0, "battery_hours": 2.5}}
    page = energy.table(with_energy(found(), Series("energy", "J", (((0.02,),),), details=details)))
    assert page.rows[0][3:] == ("20 W", "20 mJ", "-", "50", "123", "2.5 h")


def test_energy_above_idle_is_a_cell_of_its_own() -> None:
    for above, shown in ((1.0, "10 mJ"), (-1.0, "nothing")):
        details = {"watts": 20.0, "above_idle_j": above, "calls": 100}
        page = energy.table(with_energy(found(), Series("energy", "J", (((0.02,),),), details=details)))
        assert page.rows[0][5] == shown


def test_joules_are_beside_times_where_they_are_known() -> None:
    given = found()
    assert "energy" not in tables.comparison(given).heads
    for kind, shown in (("measured", "20 mJ"), ("estimate", "20 mJ (estimate)")):
        table = tables.comparison(
            replace(with_energy(given, Series("energy", "J", (((0.02,),),), kind=kind)), suite="x")
        )
        assert table.heads[2] == "energy"
        assert table.rows[0][2] == shown
    absent = replace(with_energy(given, not_measured("energy", "J", "no_device: none")), suite="x")
    assert "energy" not in tables.comparison(absent).heads


def taking(joules: dict[str, dict[str, float]], kind: str = "measured") -> Results:
    """Results in which each contender takes these joules in each case."""
    given = found()
    runs = [
        replace(given.runs[0], case=case, arm=arm, series=(*given.runs[0].series, Series("energy", "J", (((j,),),), kind=kind)))
        for arm, cases in joules.items()
        for case, j in cases.items()
    ]  # fmt: skip
    return replace(given, arms=tuple(joules), runs=tuple(runs), suite="energy")


def test_the_league_orders_contenders_by_joules_and_shares_places() -> None:
    given = taking({"a": {"x": 2.0, "y": 8.0}, "b": {"x": 1.0, "y": 4.0, "z": 1.0}, "c": {"x": 1.0, "y": 4.1}})
    table = energy.league(given)
    assert table is not None
    assert [row[:3] for row in table.rows] == [("1", "b", "1.00×"), ("1", "c", "1.01×"), ("3", "a", "2.00×")]
    assert [row[4] for row in table.rows] == ["2 of 2 cases", "0 of 2 cases", "0 of 2 cases"]
    assert "League of energy" in pages.page(given)


def test_no_league_of_one_of_none_in_common_or_of_estimates() -> None:
    assert energy.league(taking({"a": {"x": 1.0}})) is None
    assert energy.league(taking({"a": {"x": 1.0}, "b": {"y": 1.0}})) is None
    assert energy.league(taking({"a": {"x": 1.0}, "b": {"x": 2.0}}, "estimate")) is None


def test_energy_that_was_not_measured_is_a_reason_and_never_a_number() -> None:
    given = with_energy(found(), not_measured("energy", "J", "virtual_machine: no counter"))
    page = energy.table(given)
    assert all(r[3:] == ("not measured", "-", "-", "-", "-", "-") for r in page.rows)
    assert page.below == ("energy: not measured: virtual_machine: no counter",)


def test_the_reason_of_absent_energy_is_a_sentence_too() -> None:
    series = replace(not_measured("energy", "J", "virtual_machine"), details={"says": "it shows no counter"})
    page = energy.table(with_energy(found(), series))
    assert page.below == ("energy: not measured: virtual_machine: it shows no counter",)


def test_operations_for_a_joule_are_never_written_as_powers_of_ten() -> None:
    cells = energy.table(with_energy(found(), Series("energy", "J", (((2.5e-5,),),)))).rows[0]
    assert cells[6] == "40 k"


def test_an_estimate_is_called_one() -> None:
    series = Series("energy", "J", (((0.02,),),), kind="estimate", details={"watts": 65.0})
    cells = energy.table(with_energy(found(), series)).rows[0]
    assert cells[3] == "65 W (estimate)"
    assert cells[4] == "20 mJ (estimate)"
    assert cells[6].endswith(" (estimate)")


# ---- pages


@pytest.mark.parametrize(
    "suite", ["compare", "comprehensive", "memory", "workloads", "layout", "dtype", "quantization", "energy"]
)
def test_every_suite_has_a_page_of_text_and_of_markdown(suite: str) -> None:
    given = replace(found(), suite=suite)
    assert "matmul 64x64 f32" in pages.page(given)
    assert pages.markdown(given).count("| --- |") + pages.markdown(given).count("--:") >= 1
    assert ("Device selection guide" in pages.page(given)) == (suite in ("compare", "comprehensive"))


def test_a_narrow_page_drops_intervals_of_ratios() -> None:
    assert "(0." not in pages.page(replace(found(), suite="layout"), 60).split("\n\n")[1]
    assert "…" in pages.page(replace(found(), suite="layout"), 200)


def test_the_same_results_give_the_same_page() -> None:
    assert pages.page(replace(found(), suite="compare")) == pages.page(replace(found(), suite="compare"))


@pytest.mark.parametrize(
    ("generations", "said"), [(2, "50 % intervals"), (4, "88 % intervals"), (8, "95 % intervals"), (1, "One process")]
)
def test_the_legend_says_how_sure_the_intervals_are(generations: int, said: str) -> None:
    assert said in pages.page(found(generations=generations))


@pytest.mark.parametrize(
    ("few", "many", "said"),
    [
        (6, 14, "95 % intervals over 6 to 14 processes."),
        (2, 14, "95 % intervals over 2 to 14 processes, less sure over fewer than 6."),
        (3, 5, "94 % intervals over 3 to 5 processes, less sure over fewer than 6."),
        (5, 5, "94 % intervals over 5 processes."),
        (1, 4, "88 % intervals over 1 to 4 processes, less sure over fewer than 6."),
        (1, 1, "One process for each contender: the intervals leave out variance between processes."),
    ],
)
def test_the_legend_counts_the_processes_of_cells_that_were_dealt_different_numbers(
    few: int, many: int, said: str
) -> None:
    given = found(generations=many)
    run = next(r for r in given.runs if r.arm == "numpy")
    wall = replace(run.series[0], values=((), *run.series[0].values[: few - 1], run.series[0].values[-1]))
    stopped = replace(run, case="stopped", status="too slow", series=())
    changed = replace(given, runs=(*(replace(r, series=(wall,)) if r is run else r for r in given.runs), stopped))
    assert pages.page(changed).count(said) == 1


def test_what_is_too_slow_has_its_reason_below_the_table() -> None:
    runs = tuple(
        replace(r, status="too slow", reason="stopped: a call takes 2 s (880× a call of tritium)", series=())
        if r.arm == "numpy" and r.case == "matmul 64x64 f32" else r for r in found().runs
    )  # fmt: skip
    given = replace(found(), runs=runs)
    assert row(tables.comparison(given), "matmul 64x64 f32")["vs numpy"] == "too slow"
    assert "numpy: too slow: matmul 64x64 f32: stopped: a call takes 2 s (880× a call of tritium)" in pages.page(given)


# ---- the verdict in one sentence


def test_a_headline_names_the_library_and_the_speedup() -> None:
    headline = tables.headline(found())
    assert (headline.standing, headline.arm, headline.deciding) == ("faster", "numpy", "")
    assert re.fullmatch(r"tritium is 2\.0\d× as fast as numpy|tritium is 1\.9\d× as fast as numpy", headline.text)
    slower = results(CASES, arms={"tritium": 2.0, "numpy": 1.0})
    assert tables.headline(slower).standing == "slower"


def test_a_headline_prefers_a_library_to_a_variant_of_the_first_contender() -> None:
    given = results(CASES, arms={"tritium": 1.0, "tritium:mlx": 30.0, "tritium portable": 8.0, "numpy": 2.0})
    assert tables.headline(given).text.endswith("as fast as numpy")
    assert pages.verdict(given)[0].startswith(tables.headline(given).text)
    alone = results(CASES, arms={"tritium": 1.0, "tritium portable": 8.0})
    assert tables.headline(alone).text.endswith("as fast as tritium portable")
    assert "geometric mean of 2 cases" in pages.verdict(alone)[0]
    variants = results(CASES, arms={"tritium": 1.0, "tritium portable": 8.0, "tritium neon": 2.0})
    assert tables.headline(variants).arm == "tritium portable"
    assert "geometric mean of 2 cases" in pages.verdict(variants)[0]


def test_contenders_that_take_the_same_time_are_said_to_and_it_is_decided() -> None:
    given = results(CASES, arms={"tritium": 1.0, "torch": 1.0}, sd=0.005)
    assert tables.headline(given) == ("tritium is as fast as torch", "alike", "torch", "")
    assert re.fullmatch(
        r"tritium is as fast as torch \((0\.99|1\.00)…1\.0[01], geometric mean of 2 cases\)\.", pages.verdict(given)[0]
    )


def test_a_headline_whose_interval_decides_nothing_says_what_would() -> None:
    given = replace(results(CASES, arms={"tritium": 1.0, "torch": 1.08}, sd=0.12, seed=3), elapsed_s=150.0)
    headline = tables.headline(given)
    assert (headline.text, headline.standing) == ("tritium and torch: no difference is shown", "undecided")
    suite = tables.speedups(given)["torch"]
    assert suite.geomean is not None
    assert suite.geomean_interval is not None
    assert headline.deciding == tables.would_decide(given, suite.geomean, suite.geomean_interval)
    assert headline.deciding == "about 59 more processes (10 min) would decide"
    assert pages.verdict(given)[0].endswith(f", geometric mean of 2 cases); {headline.deciding}.")


# The sd of a process is half the interval over 1.96 and times the root of 15; 14.9 (sd / distance)² processes are planned.
@pytest.mark.parametrize(
    ("ratio", "interval", "text"),
    [
        (1.2, (1 / 1.05, 1.2**2 * 1.05), "about 79 more processes (13 min) would decide"),
        (0.8, (0.8**2 / 1.02, 1.02), "about 54 more processes (9 min) would decide"),
        (1.0, (1 / 1.04, 1.04), "about 88 more processes (15 min) would decide"),  # 0.03 away from either margin
        (1.2, (1.1, 1.31), "about 4 more processes (40 s) would decide"),  # never fewer than a quarter more
        (1.02, (0.9, 1.156), "more than 100 more processes would be needed: "),
    ],
)  # fmt: skip
def test_what_would_decide_follows_from_the_width_of_the_interval_and_its_place(
    ratio: float, interval: tuple[float, float], text: str
) -> None:
    given = replace(results(CASES, arms={"tritium": 1.0, "torch": 1.0}), elapsed_s=150.0)
    assert tables.would_decide(given, ratio, interval).startswith(text)


@pytest.mark.parametrize(
    ("ratio", "interval", "outcome"),
    [
        (0.5, (0.4, 0.6), "FASTER"), (2.0, (1.8, 2.2), "SLOWER"), (1.01, (1.005, 1.02), "EQUIVALENT"), (1.02, (1.005, 1.031), "SLOWER"),
        (1.1, (0.9, 1.3), "INCONCLUSIVE"),
        (1.0, (0.972, 1.029), "EQUIVALENT"), (1.0, (0.97, 1.029), "INCONCLUSIVE"), (1.0, (0.98, 1.03), "INCONCLUSIVE"),
        (1.0, (1 / 1.03, 1.02), "INCONCLUSIVE"),
        (0.9, (0.8, 1.0), "INCONCLUSIVE"), (1.1, (1.0, 1.2), "INCONCLUSIVE"),
        (2.0, (2.0, 2.0), "INCONCLUSIVE"), (2.0, None, "INCONCLUSIVE"),
    ],
)  # fmt: skip
def test_the_outcome_of_a_ratio_is_decided_by_its_interval(
    ratio: float, interval: tuple[float, float] | None, outcome: str
) -> None:
    assert tables.ratio_outcome(ratio, interval) == outcome


@pytest.mark.parametrize(
    ("ratio", "interval", "q", "word"),
    [
        (0.5, (0.4, 0.6), 0.05, "FASTER"), (2.0, (1.8, 2.2), 0.051, "INCONCLUSIVE"), (2.0, (1.8, 2.2), None, "SLOWER"),
        (1.0, (0.99, 1.01), 0.9, "EQUIVALENT"), (1.1, (0.9, 1.3), 0.01, "INCONCLUSIVE"),
    ],
)  # fmt: skip
def test_a_difference_is_named_only_where_interval_and_false_share_allow_it(
    ratio: float, interval: tuple[float, float] | None, q: float | None, word: str
) -> None:
    assert tables.outcome_beside(Verdict("a", "wall", "x", "y", "EQUIVALENT", ratio, interval95=interval, q=q)) == word


def test_no_verdict_is_no_standing() -> None:
    assert tables.outcome_beside(None) == ""
    assert tables.outcome_beside(Verdict("a", "wall", "x", "y", "MISSING")) == "MISSING"
    assert tables.outcome_beside(Verdict("a", "wall", "x", "y", "NOT COMPARABLE")) == ""


# ---- noise


def flagged(given: Results, rounds: dict[str, int], text: str = "rounds kept though other work broke in") -> Results:
    """The same results, of which some cases had so many disturbed rounds on every contender."""
    runs = (replace(r, flags=(f"{rounds[r.case]} {text}",)) if r.case in rounds else r for r in given)
    return replace(given, runs=tuple(runs))


TEN = {f"add {n}x{n} f32": 1e-6 * n for n in range(1, 11)}
BUSY = "add 3x3 f32"


def test_a_headline_stands_however_many_cells_were_disturbed() -> None:
    quiet = results(TEN, arms={"tritium": 1.0, "numpy": 2.0}, sd=0.2)
    every = flagged(quiet, dict.fromkeys(quiet.cases, 45))
    assert tables.headline(every) == tables.headline(quiet)
    assert tables.headline(every).standing == "faster"
    assert pages.page(every) == pages.page(quiet)
    first, second = pages.verdict(every)
    assert re.fullmatch(
        r"tritium is \d\.\d\d× as fast as numpy \(1\.\d\d…2\.\d\d, geometric mean of 10 cases\)\.", first
    )
    assert re.fullmatch(
        r"This machine is noisy: intervals are ±\d+ % wide at the median; 10 of 10 comparisons are decided all the same\.",
        second,
    )
    assert "This machine is noisy" in pages.markdown(every).splitlines()[2]


def test_canaries_that_spread_do_not_speak_for_cases_that_do_not() -> None:
    wild = results(CASES, arms={"tritium": 1.0, "numpy": 2.0}, canary_sd=0.3)
    assert tables.headline(wild).standing == "faster"
    assert re.fullmatch(
        r"Intervals are ±\d\.\d % wide at the median; 2 of 2 comparisons are decided\.", pages.verdict(wild)[1]
    )


def test_the_noise_of_one_contender_is_that_of_its_times_and_of_one_round_nothing() -> None:
    alone = results(CASES, arms={"tritium": 1.0}, sd=0.3)
    assert re.fullmatch(r"This machine is noisy: intervals are ±\d+ % wide at the median\.", pages.verdict(alone)[1])
    once = results(CASES, arms={"tritium": 1.0, "numpy": 2.0}, generations=1, rounds=1)
    assert tables.noise(once, tables.speedups(once)) == ""
    assert len(pages.verdict(once)) == 1
    assert tables.headline(once)[1:] == ("undecided", "numpy", "")
    assert re.fullmatch(r"tritium is [12]\.\d\d× as fast as numpy", tables.headline(once).text)


def test_the_noise_counts_differences_and_equal_times_as_decided() -> None:
    given = results(CASES, arms={"tritium": 1.0, "numpy": 2.0, "torch": 1.0}, sd=0.005)
    assert tables.noise(given, tables.speedups(given)).endswith("; 4 of 4 comparisons are decided")
    wide = results(CASES, arms={"tritium": 1.0, "numpy": 2.0, "torch": 1.0}, sd=0.1, seed=1)
    assert tables.noise(wide, tables.speedups(wide)).endswith("; 2 of 4 comparisons are decided all the same")


def test_a_cell_is_marked_where_more_rounds_were_disturbed_than_is_usual_in_the_run() -> None:
    quiet = results(TEN, arms={"tritium": 1.0, "numpy": 2.0})
    busy = flagged(quiet, {BUSY: 3})
    assert tables.disturbed_cells(busy) == {(BUSY, "tritium"), (BUSY, "numpy")}  # 3 of 45, and 0 of 405: p is 0.001
    cells = row(tables.comparison(busy), BUSY)
    assert cells["tritium"].endswith(") !")
    assert cells["vs numpy"].endswith(") !")
    assert sum("!" in cell for r in tables.comparison(busy).rows for cell in r) == 2
    sentence = "2 of 20 cells were disturbed by other load more than twice as often as the other cases (marked !)"
    assert tables.warnings(busy) == [(sentence, "the intervals include it; measure again where they do not decide")]
    assert tables.troubles(busy) == [f"{sentence}."]
    assert tables.disturbed_cells(flagged(quiet, {BUSY: 2})) == frozenset()  # p is 0.01, of ten


@pytest.mark.parametrize(
    ("usual", "busy", "marked"),
    [(45, 45, False), (22, 44, False), (10, 20, False), (10, 21, True), (4, 20, True), (0, 45, True)],
)
def test_where_every_case_is_disturbed_none_is_marked(usual: int, busy: int, marked: bool) -> None:
    rounds = dict.fromkeys(TEN, usual) | {BUSY: busy}
    given = flagged(results(TEN, arms={"tritium": 1.0, "numpy": 2.0}), rounds)
    assert bool(tables.disturbed_cells(given)) == marked


def test_cells_that_waited_or_were_repeated_count_as_disturbed_and_canaries_and_failures_do_not() -> None:
    given = results(TEN, arms={"tritium": 1.0, "numpy": 2.0})
    repeated = flagged(given, {BUSY: 9}, "rounds repeated: other work or the hypervisor broke in")
    assert len(tables.disturbed_cells(repeated)) == 2
    waited = changed(given, BUSY, "numpy", flags=("waited: the CPU time is 20% of the wall time",))
    assert tables.disturbed_cells(waited) == {(BUSY, "numpy")}
    assert tables.disturbed_cells(changed(waited, BUSY, "numpy", status="crashed")) == frozenset()
    assert tables.disturbed_cells(flagged(given, {"canary compute": 45})) == frozenset()
    assert tables.disturbed_cells(flagged(results({BUSY: 1e-3}), {BUSY: 45})) == frozenset()  # nothing beside it


def test_a_narrow_page_leaves_rates_out_before_intervals() -> None:
    given = replace(found(), suite="layout")
    wide, narrow, narrowest = (pages.page(given, width).split("\n\n")[1] for width in (200, 100, 70))
    assert "of ceiling" in wide
    assert "of ceiling" not in narrow
    assert "vs numpy" in narrow
    assert "…" in narrow.splitlines()[2].partition("×")[2]
    assert max(map(len, narrow.splitlines()[:3])) <= 100
    assert max(map(len, narrowest.splitlines()[:3])) <= 70


def test_a_headline_of_one_contender_or_of_nothing() -> None:
    assert tables.headline(results(CASES, arms={"tritium": 1.0})) == ("2 cases measured", "measured", "", "")
    nothing = replace(found(), runs=tuple(replace(r, status="failed") for r in found().runs))
    assert tables.headline(nothing).standing == "nothing"
    assert pages.verdict(nothing) == ["Nothing could be measured."]


def test_the_page_begins_with_the_verdict_and_may_leave_crossovers_out() -> None:
    given = replace(found(), suite="compare")
    assert pages.page(given).splitlines()[0] == pages.verdict(given)[0]
    assert "Crossover" not in pages.page(given, crossovers=False)


def test_the_flagship_is_named_where_it_was_measured() -> None:
    names = {"bitlinear 1x2560 f32": 1e-4, "bitlinear 64x2560 f32": 3e-3, "model_decode 32": 1e-2}
    contexts = {
        "bitlinear 1x2560 f32": (Context("bitlinear", (1, 2560)), Work()),
        "bitlinear 64x2560 f32": (Context("bitlinear", (64, 2560)), Work()),
        "model_decode 32": (Context("model_decode", (32,)), Work(items=32, item="token")),
    }
    given = tables.without_canaries(results(names, arms={"tritium": 1.0, "numpy": 4.0}))
    runs = tuple(replace(run, context=contexts[run.case][0], work=contexts[run.case][1]) for run in given.runs)
    line = pages.verdict(replace(given, runs=runs))[1]
    assert line.startswith("BitLinear 2560×2560: 1 token in ")
    assert "64 tokens in" in line
    assert re.search(r"the packaged model decodes 3,\d\d\d tokens/s\.$", line)


def test_results_of_other_tools_claim_nothing_that_was_not_measured() -> None:
    """Neither what the clock left out, nor a number of threads that the file does not have."""
    from dataclasses import replace

    from tritium.perf.tables import pages

    values = found()
    device = replace(values.runs[0], context=replace(values.runs[0].context, device="cuda"))
    hard = replace(values.environment.hard, threads=0)
    own = replace(values, runs=(device,))
    foreign = replace(own, kind="import", environment=replace(own.environment, hard=hard))
    assert "transfers are excluded" in " ".join(tables.clocks(own))
    assert tables.clocks(foreign) == []
    assert "0 threads" not in pages.page(foreign, 120)


def test_an_estimate_of_energy_says_so_beside_every_figure() -> None:
    values = found()
    details = {"watts": 10.0, "calls_per_degree": 1e3, "above_idle_j": 0.5, "calls": 1000}
    series = Series("energy", "J", (((1e-3,),),), kind="estimate", details=details)
    run = replace(values.runs[0], series=(*values.runs[0].series, series))
    (row,) = energy.table(replace(values, runs=(run,))).rows
    assert [cell.endswith("(estimate)") for cell in row[3:8]] == [True] * 5

"""Reports: what they say of results, verdicts, histories and profiles, in which order, and what they leave out and why."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import made_report
from made_results import changed, results
from report_sections import FEW, banner, section, unpacked
from tritium.errors import ArgumentError, PackageError, TritiumError
from tritium.perf.formats import imports
from tritium.perf.gate.compare import compare_stored
from tritium.perf.gate.page import page as verdict_page
from tritium.perf.gate.verdict import BASE, HEAD, Verdict, no_baseline, suite_of
from tritium.perf.records.run import Results, Series
from tritium.perf.store import results as store
from tritium.see.reports import summary as section_summary
from tritium.see.reports.blocks import Card, Grid, Line, Lines, Picture
from tritium.see.reports.inputs import Inputs, anchor
from tritium.see.reports.machine import data_of
from tritium.see.reports.report import (
    Report,
    generate_comprehensive_report,
    generate_executive_summary,
    generate_html_report,
    generate_memory_analysis,
    generate_performance_analysis,
    report,
)
from tritium.see.reports.sections import Section

ORDER = (
    "verdict", "summary", "environment", "ratios", "overview", "cases", "memory", "energy", "history", "roofline", "profile",
    "devices", "crossovers", "advice", "noise", "reproduce", "data", "absent",
)  # fmt: skip


def lines(part: Section) -> list[Line]:
    return [line for b in part.blocks if isinstance(b, Lines) for line in b.lines]


@pytest.fixture(scope="module")
def few() -> Report:
    return report(FEW)


@pytest.fixture(scope="module")
def full() -> Report:
    given = made_report.failing(FEW)
    return report(
        given, history=made_report.trends(given), profile=made_report.profile(), before=made_report.profile(2),
        selftest=made_report.selftest(),
    )  # fmt: skip


# ---- order and what is missing


def test_sections_stand_in_the_order_of_reading(full: Report) -> None:
    ids = [s.id for s in full.sections]
    assert ids == [i for i in ORDER if i in ids]
    assert {"history", "profile", "devices"} <= set(ids)


def test_what_is_not_there_is_said_once_at_the_end_with_the_way_to_get_it(few: Report) -> None:
    assert [s.id for s in few.sections][-1] == "absent"
    told = " ".join(line.text for line in lines(few.sections[-1]))
    assert "tritium bench energy" in told
    assert "tritium profile" in told
    assert "tritium history" in told
    assert not {"energy", "profile", "history"} & {s.id for s in few.sections}


def test_every_link_leads_to_something_on_the_page(full: Report) -> None:
    there = {s.id for s in full.sections} | {c.id for s in full.sections for c in s.blocks if isinstance(c, Card)}
    links = [line.link for s in full.sections for line in lines(s) if line.link]
    links += [
        c.link for s in full.sections for b in s.blocks if isinstance(b, Grid) for row in b.rows for c in row if c.link
    ]
    assert links
    assert set(links) <= there


# ---- banner


@pytest.mark.parametrize(
    ("slower", "headline", "tone"), [(True, "1 slower", "bad"), (False, "No regression, 1 faster", "good")]
)
def test_the_banner_says_the_verdict_at_a_glance(slower: bool, headline: str, tone: str) -> None:
    made, suite = made_report.verdicts(slower)
    top = banner(report(made, verdicts=suite))
    assert (top.headline, top.tone) == (headline, tone)
    assert f"exit code {suite.exit_code}" in top.exit_code
    assert top.command == "tritium regression-test --against v1.0"
    assert (3, "equivalent", "fine") in top.counts or (4, "equivalent", "fine") in top.counts


def test_a_plan_that_does_not_gate_is_inconclusive() -> None:
    quick = replace(FEW, plan=replace(FEW.plan, gates=False))
    assert banner(report(quick, baseline=quick)).headline == "Inconclusive"


@pytest.mark.parametrize(
    ("needed", "sentence"),
    [
        ((None,), "1 is INCONCLUSIVE."),
        ((1,), "1 is INCONCLUSIVE; about 1 more process would decide it."),
        ((7, 100), "2 are INCONCLUSIVE; about 100 more processes would decide all of them."),
        ((7, 3629), "would decide 1 of them; more than 100 more processes would be needed for 1 of them: "),
        ((3629, 101), "2 are INCONCLUSIVE; more than 100 more processes would be needed for all of them: "),
        ((3629,), "1 is INCONCLUSIVE; more than 100 more processes would be needed for it: "),
    ],
)
def test_the_page_of_a_gate_limits_processes_as_the_terminal_does(
    needed: tuple[int | None, ...], sentence: str
) -> None:
    verdicts = [
        Verdict(case, "wall", BASE, HEAD, "INCONCLUSIVE", 1.0, (0.9, 1.1), passes=False, more_generations=n)
        for case, n in zip(FEW.cases, needed, strict=False)
    ]
    suite = suite_of(verdicts, base="v1", head="now")
    page = report(FEW, verdicts=suite)
    texts = [line.text for line in lines(section(page, "summary"))]
    assert any(sentence in text for text in texts), texts
    everything = page.text() + page.html() + verdict_page(suite)
    assert "3,629" not in everything
    assert "3629 more" not in everything
    if max(n or 0 for n in needed) > 100:
        assert any(
            "a quieter machine needs fewer, and tritium doctor names what disturbs this one." in t for t in texts
        )


def test_no_baseline_and_another_machine_have_their_own_words() -> None:
    assert banner(report(FEW, verdicts=no_baseline("x", "there is none"))).headline == "No baseline"
    other = replace(FEW, environment=replace(FEW.environment, hard=replace(FEW.environment.hard, cpu="another cpu")))
    found = report(FEW, baseline=other)
    assert banner(found).headline == "Not comparable"
    env = section(found, "environment")
    assert any(isinstance(b, Line) and b.tone == "bad" and "Not comparable" in b.text for b in env.blocks)
    grid = next(b for b in env.blocks if isinstance(b, Grid))
    assert [c.text for c in grid.rows[0]] == ["cpu", "another cpu", "a cpu", "prevents a comparison"]


def test_without_a_gate_the_headline_names_another_library_not_a_variant(few: Report) -> None:
    assert banner(few).headline == "tritium is 1.60× as fast as numpy"
    assert banner(few).tone == "good"


def test_one_arm_alone_is_counted_and_not_compared() -> None:
    found = report(made_report.many(12, {"tritium": 1.0}))
    assert banner(found).headline == "12 cases measured"
    assert "ratios" not in {s.id for s in found.sections}


def broken(given: Results, *cases: str) -> Results:
    """The same results, of which these cases were disturbed in every round, by default all."""
    flag = ("45 rounds kept though other work broke in",)
    return replace(given, runs=tuple(replace(r, flags=flag if r.case in (cases or given.cases) else ()) for r in given))


@pytest.mark.parametrize(
    ("arms", "headline", "tone"),
    [
        ({"tritium": 1.0}, "12 cases measured", ""),
        ({"tritium": 1.0, "numpy": 3.0}, "tritium is 3", "good"),
        ({"tritium": 3.0, "numpy": 1.0}, "tritium is 0.3", "bad"),
        ({"tritium": 1.0, "numpy": 1.0}, "tritium is as fast as numpy", "fine"),
    ],
)
def test_a_banner_stands_where_its_interval_decides_however_disturbed_the_run(
    arms: dict[str, float], headline: str, tone: str
) -> None:
    made = made_report.many(12, arms)
    found, quiet = report(broken(made)), report(broken(made, "none"))
    top = banner(found)
    assert top.headline.startswith(headline)
    assert top.tone == tone
    assert (top.headline, top.tone, top.lede, top.counts) == (
        banner(quiet).headline, banner(quiet).tone, banner(quiet).lede, banner(quiet).counts,
    )  # fmt: skip
    compared = "; 12 of 12 comparisons are decided" if len(arms) == 2 else ""
    assert top.lede.endswith(f" % wide at the median{compared}.")
    assert "Intervals are ±" in top.lede
    assert [line.text for line in lines(section(found, "advice"))] == [
        line.text for line in lines(section(quiet, "advice"))
    ]


def test_a_banner_is_amber_only_where_its_own_sentence_is_not_decided() -> None:
    made = replace(
        results({"a": 1e-3, "b": 1e-3}, arms={"tritium": 1.0, "numpy": 1.08}, sd=0.12, seed=3), elapsed_s=150.0
    )
    top = banner(report(made))
    assert (top.headline, top.tone) == ("tritium and numpy: no difference is shown", "unsure")
    assert " About 59 more processes (10 min) would decide. This machine is noisy: intervals are ±" in top.lede
    assert [count for count in top.counts if count[1] == "no difference shown"] == [(2, "no difference shown", "fine")]


def test_advice_says_what_would_decide_and_stands_where_the_interval_of_its_case_does() -> None:
    made = made_report.many(24, {"tritium": 3.0, "numpy": 1.0})
    quiet = broken(made, "none")
    case = next(c for c in quiet.cases if f"For {c}," in str(section(report(quiet), "advice")))
    told = lines(section(report(broken(made, case)), "advice"))
    assert told[0].text == (
        "2 of 48 cells were disturbed by other load more than twice as often as the other cases (marked !): "
        "the intervals include it; measure again where they do not decide."
    )
    assert any(f"For {case}, numpy is 3" in line.text for line in told)
    wide = replace(
        results({"a": 1e-3, "b": 1e-3}, arms={"tritium": 1.0, "numpy": 1.08}, sd=0.12, seed=3), elapsed_s=150.0
    )
    first = lines(section(report(wide), "advice"))[0]
    assert first.text.startswith("2 of 2 comparisons are not decided: ")
    assert (first.tone, first.link) == ("unsure", "ratios")


def test_advice_on_ceilings_and_first_calls_needs_the_nearer_end_of_the_interval() -> None:
    """Half of the processes are five times as fast: at the fast end the ceiling is near and the first call not so long."""
    made = made_report.many(2, {"tritium": 1.0})
    cold = [replace(r, flags=(), first_call_s=30 * (r.seconds or 1) + 0.06) for r in made]

    def told(factor: float) -> str:
        runs = []
        for r in cold:
            values = tuple(
                tuple(tuple(v * (factor if i % 2 else 1) for v in b) for b in g)
                for i, g in enumerate(r.series[0].values)
            )
            runs.append(replace(r, series=(replace(r.series[0], values=values), *r.series[1:])))
        return str(section(report(replace(made, runs=tuple(runs))), "advice"))

    assert "of its ceiling" in told(1.0)
    assert "Call " in told(1.0)
    assert "of its ceiling" not in told(1e-4)
    assert "Call " not in told(1e4)


def test_disturbed_rows_are_marked_as_on_a_terminal_and_skipped_ones_are_no_failure() -> None:
    made = made_report.many(12, {"tritium": 1.0, "numpy": 3.0})
    busy, left_out = made.cases[2], made.cases[3]
    given = changed(broken(made, busy), left_out, "numpy", status="skipped", reason="no such op", series=())
    found = report(given)
    ratios = next(b for b in section(found, "ratios").blocks if isinstance(b, Grid))
    assert [row[0].text for row in ratios.rows if row[2].text.endswith(" !")] == [busy]
    marked = next(row for row in ratios.rows if row[0].text == busy)
    assert (marked[2].tone, marked[2].tip) == (
        "good",
        "other load disturbed it more than twice as often as the other cases",
    )
    matrix = next(b for b in section(found, "devices").blocks if isinstance(b, Grid))
    assert [row[0].text for row in matrix.rows if any(cell.text.endswith(" !") for cell in row)] == [busy]
    assert [c.title for c in section(found, "cases").blocks if isinstance(c, Card) and c.brief.endswith(" !")] == [busy]
    lost = next(row for row in ratios.rows if row[0].text == left_out)
    assert [cell.tone for cell in lost if cell.text == "skipped"] == ["quiet"]
    tones = {cell.text: cell.tone for row in matrix.rows for cell in row if cell.badge}
    assert tones == {"skipped": "quiet"}
    assert " !" in found.html()
    failed = next(b for b in section(report(made_report.failing(FEW)), "devices").blocks if isinstance(b, Grid))
    assert {cell.tone for row in failed.rows for cell in row if cell.badge} == {"bad"}


@pytest.mark.parametrize(
    ("outcome", "headline", "tone"), [("EQUIVALENT", "No regression", "good"), ("SLOWER", "1 slower", "bad")]
)
def test_a_gate_of_disturbed_runs_stands_and_says_how_noisy_they_were(outcome: Any, headline: str, tone: str) -> None:
    made = compare_stored(broken(FEW), broken(FEW))
    first = replace(made.verdicts[0], outcome=outcome, level="warning" if outcome == "SLOWER" else "")
    top = banner(report(broken(FEW), verdicts=suite_of((first, *made.verdicts[1:]))))
    assert (top.headline, top.tone) == (headline, tone)
    assert top.lede.endswith(" % wide at the median; 24 of 24 comparisons are decided.")


def test_a_run_of_which_nothing_succeeded_says_so() -> None:
    lost = replace(FEW, runs=tuple(replace(r, status="failed", reason="no", series=()) for r in FEW.runs))
    found = report(lost)
    assert banner(found).headline == "Nothing could be measured"
    assert banner(found).tone == "bad"
    assert found.html()
    assert "failed: 12 cases" in found.text()


def test_an_interrupted_run_says_so() -> None:
    assert any("interrupted" in note for note in banner(report(replace(FEW, complete=False))).notes)


# ---- summary and recommendations


ALONE = results({"a": 1e-3}, generations=1)


@pytest.mark.parametrize("made", [FEW, made_report.many(2, {"tritium": 1.0}), results({"a": 1e-3, "b": 2e-3}), ALONE])
def test_a_summary_has_three_to_six_sentences_each_with_a_number(made: Any) -> None:
    told = lines(generate_executive_summary(made))
    assert 3 <= len(told) <= 6
    assert all(any(c.isdigit() for c in line.text) for line in told)
    assert all(line.link for line in told)


def test_the_summary_of_a_gate_names_the_worst_case_with_its_interval() -> None:
    made, suite = made_report.verdicts()
    text = str(generate_executive_summary(made, suite))
    assert "1 of 5 verdicts is SLOWER; the worst, matmul 512x512 f32, by +20" in text
    assert "1 is FASTER; the most, softmax 512x512 f32, by -20" in text


@pytest.mark.parametrize("judged", [True, False])
def test_revisions_are_told_from_old_to_new_and_never_as_peers(judged: bool) -> None:
    made, suite = made_report.verdicts()
    whole = report(made, verdicts=suite if judged else None)
    text = whole.text()
    assert "as fast as" not in text
    assert "largest gain" not in text
    assert "by +20.0 %" in text
    assert "to 120 µs (matmul 512x512 f32)" in text, "times are those of the new revision"
    assert str(generate_executive_summary(made)) == str(generate_executive_summary(made, suite))


def test_every_recommendation_has_a_number_and_a_place(full: Report) -> None:
    told = lines(section(full, "advice"))
    assert told
    assert all(any(c.isdigit() for c in line.text) and line.link for line in told)


def test_a_faster_library_is_recommended_with_its_ratio(full: Report) -> None:
    third = FEW.cases[2]
    line = next(line for line in lines(section(full, "advice")) if "numpy is" in line.text)
    assert third in line.text
    assert line.link == anchor(third)


def test_a_slower_case_is_what_to_look_at_first() -> None:
    made, suite = made_report.verdicts()
    first = lines(section(report(made, verdicts=suite), "advice"))[0]
    assert first.text.startswith("Look at matmul 512x512 f32 first: wall +20")


def test_a_run_of_which_nothing_stands_out_says_so() -> None:
    one = made_report.many(1, {"tritium": 1.0})
    plain = replace(one, runs=tuple(replace(r, flags=(), first_call_s=None) for r in one.runs))
    assert lines(section_summary.recommendations(Inputs(plain)))[0].tone == "good"


# ---- cards and matrix


def test_every_case_has_a_card_with_raw_values_and_how_it_was_checked(few: Report) -> None:
    cards = [b for b in section(few, "cases").blocks if isinstance(b, Card)]
    assert [c.title for c in cards] == [c for c in FEW.cases if not c.startswith("canary")]
    strips = next(b for b in cards[0].blocks if isinstance(b, Picture)).chart.strips
    assert [len(s.values) for s in strips] == [45, 45, 45]
    assert len(strips[0].breaks) == 14
    told = " ".join(line.text for b in cards[0].blocks if isinstance(b, Lines) for line in b.lines)
    assert "equal to NumPy in f64" in told
    assert "peak_bytes: not measured: unsupported" in told


def test_failures_stand_in_the_matrix_with_their_reason(full: Report) -> None:
    grid = next(b for b in section(full, "devices").blocks if isinstance(b, Grid))
    cells = {(row[0].text, head): cell for row in grid.rows for head, cell in zip(grid.heads, row, strict=True)}
    assert cells[FEW.cases[0], "numpy"].text == "failed"
    assert cells[FEW.cases[0], "numpy"].tip == "ValueError: no such dtype"
    assert cells[FEW.cases[1], "tritium portable"].text == "out of memory"


def test_more_cases_than_cards_keep_the_most_notable() -> None:
    made = results({f"add {i}": 1e-6 for i in range(130)}, generations=2, rounds=2)
    slow = changed(made, "add 129", status="failed", reason="no", series=())
    found = report(slow)
    cards = [b for b in section(found, "cases").blocks if isinstance(b, Card)]
    assert len(cards) == 120
    assert cards[0].title == "add 129"
    assert "The 120 most notable of 130" in section(found, "cases").lede


# ---- history, noise, reproduce


# ---- the data inside


def test_the_results_inside_load_back_equal(tmp_path: Path) -> None:
    small = made_report.many(2)
    data = data_of(small)
    (tmp_path / "r.json").write_bytes(unpacked(data.results))
    assert store.load(tmp_path / "r.json") == small
    assert data.inside == "every value, as measured"


def test_results_too_large_are_thinned_and_say_so(tmp_path: Path) -> None:
    data = data_of(made_report.many(100))
    assert "a value for each round" in data.inside
    (tmp_path / "r.json").write_bytes(unpacked(data.results))
    thin = store.load(tmp_path / "r.json")
    assert any("thinned" in note for note in thin.notes)
    assert len(thin.runs) == len(made_report.many(100).runs)


def test_the_figures_hold_every_metric_of_every_run() -> None:
    rows = list(csv.DictReader(io.StringIO(data_of(FEW).figures)))
    assert len(rows) == sum(max(1, len(r.series)) for r in FEW.runs)
    wall = next(r for r in rows if r["metric"] == "wall")
    assert float(wall["low"]) <= float(wall["median"]) <= float(wall["high"])


# ---- limits


def test_the_same_input_gives_the_same_bytes() -> None:
    assert report(made_report.many(5)).html() == report(made_report.many(5)).html()


@pytest.mark.slow
def test_a_hundred_cases_on_three_arms_are_at_most_1_5_mb() -> None:
    html = report(made_report.many(100)).html()
    assert len(html.encode()) <= 1_500_000
    assert html.count('<details class="card"') == 100


# ---- forms


@pytest.mark.parametrize(
    ("name", "begins"), [("r.html", "<!doctype html>"), ("r.md", "# "), ("r.txt", "+ tritium"), ("r.json", "{")]
)
def test_the_suffix_chooses_the_form(few: Report, tmp_path: Path, name: str, begins: str) -> None:
    path = few.save(tmp_path / name)
    assert path.read_text(encoding="utf-8").startswith(begins)


@pytest.mark.parametrize("name", ["r.docx", "r", "r.htlm"])
def test_another_suffix_is_an_error_that_names_the_forms(few: Report, tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="html, markdown, text, json"):
        few.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_every_chart_and_flame_graph_is_written_as_a_png(full: Report, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="PNG needs resvg: pip install resvg_py")
    written = full.charts(tmp_path / "new" / "folder", "png")
    assert len(written) == len(full.pictures)
    assert {"flame.png", "flame-diff.png", "devices.png"} <= {p.name for p in written}
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in written)


def test_the_five_charts_of_the_guide_are_drawn(tmp_path: Path) -> None:
    """Performance, speed-up, memory, energy and history, each scaled to its data, with the names of its cases."""
    joules = Series("energy", "J", (((2.5e-3,), (2.6e-3,)),))
    runs = tuple(replace(run, series=(*run.series, joules)) for run in FEW.runs)
    pages = report(replace(FEW, runs=runs), history=made_report.trends(FEW))
    written = {path.name.partition("-")[0].removesuffix(".svg"): path for path in pages.charts(tmp_path)}
    assert {"overview", "speedup", "memory", "energy", "trend"} <= written.keys()
    for name in ("overview", "speedup", "memory", "energy"):
        assert " 64x64 f32" in written[name].read_text(encoding="utf-8")
    assert "mJ" in written["energy"].read_text(encoding="utf-8")
    slower = replace(FEW, runs=tuple(replace(run, series=(_scaled(run.series[0], 1000),)) for run in FEW.runs))
    (bars,) = [p.chart for p in report(slower).pictures if p.name == "overview-add"]
    assert all(bar.value is None or bar.value > 1e-3 for bar in bars.rows)
    assert "ms" in report(slower).charts(tmp_path / "slower")[0].parent.joinpath("overview-add.svg").read_text("utf-8")


def _scaled(series: Series, factor: float) -> Series:
    return replace(series, values=tuple(tuple(tuple(v * factor for v in b) for b in g) for g in series.values))


def test_without_the_package_no_png_and_no_folder_is_made(
    full: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(PackageError, match="pip install"):
        full.charts(tmp_path / "new", "png")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ArgumentError, match="svg or png"):
        full.charts(tmp_path / "new", "gif")


def test_json_holds_the_sections(few: Report) -> None:
    found = json.loads(few.json())
    assert found["schema"] == 1
    assert [s["id"] for s in found["sections"]] == [s.id for s in few.sections]


def test_anything_but_results_is_refused() -> None:
    with pytest.raises(TritiumError, match="Results are needed"):
        report("results.json")  # type: ignore[arg-type]


# ---- sections alone


def test_sections_can_be_made_alone_and_printed() -> None:
    assert "as fast as numpy" in str(generate_executive_summary(FEW))
    parts = generate_performance_analysis(FEW)
    assert [p.id for p in parts] == ["ratios", "overview", "roofline", "devices"]
    assert "<section" in parts[0].html()
    assert parts[0].markdown().startswith("## Ratios")
    memory = generate_memory_analysis(FEW)
    assert "Peak memory of a call" in str(memory)


def test_a_section_without_data_says_why() -> None:
    bare = results({"a": 1e-3})
    told = generate_memory_analysis(bare)
    assert "tritium bench memory" in told.text()
    assert "tritium bench memory" in told.html()


def test_the_comprehensive_report_is_one_object(few: Report) -> None:
    made, suite = made_report.verdicts()
    found = generate_comprehensive_report(made, suite, profile=made_report.profile())
    assert isinstance(found, Report)
    assert generate_html_report(found) == found.html()
    assert generate_html_report(FEW) == few.html()


# ---- words that fit what is there


def test_an_earlier_profile_alone_is_refused() -> None:
    with pytest.raises(ArgumentError, match="as profile too"):
        report(FEW, before=made_report.profile())


def test_a_mean_is_told_with_the_cases_it_is_over() -> None:
    assert "Geometric mean over 12 cases: " in banner(report(FEW)).lede
    fewer = replace(FEW, runs=tuple(r for r in FEW.runs if (r.case, r.arm) != (FEW.cases[0], FEW.arms[-1])))
    told = banner(report(fewer)).lede
    assert f"beside {FEW.arms[1]} over 12 cases, " in told
    assert f"beside {FEW.arms[-1]} over 11 cases. Intervals are ±" in told


def test_the_note_of_a_chart_stands_once_in_each_of_its_layouts() -> None:
    page = report(made_report.many(60)).html()
    assert page.count(">the 20 largest and the 20 smallest of ") == 2


def test_one_cell_has_and_two_have() -> None:
    def told(count: int) -> str:
        runs = [replace(r, flags=("several modes",) if i < count else ()) for i, r in enumerate(FEW.runs)]
        return str(section(report(replace(FEW, runs=tuple(runs))), "advice"))

    assert "1 of 36 cells has times of several modes" in told(1)
    assert "2 of 36 cells have times of several modes" in told(2)


def test_a_band_is_spoken_of_only_where_one_is_drawn(few: Report) -> None:
    made, suite = made_report.verdicts()
    judged = report(made, verdicts=suite)
    assert "band" not in section(few, "ratios").lede
    assert 'class="band"' not in section(few, "ratios").html()
    assert "band" in section(judged, "ratios").lede
    assert 'class="band"' in section(judged, "ratios").html()


def test_equal_times_are_told_once() -> None:
    same = FEW.runs[0].series
    runs = tuple(replace(r, series=same) for r in FEW.runs if r.arm == "tritium")
    text = str(generate_executive_summary(replace(FEW, runs=runs, arms=("tritium",))))
    assert "in all of 12 cases" in text
    assert "Calls take from" not in text


# ---- any results


def test_a_stored_baseline_is_judged(few: Report) -> None:
    found = report(FEW, baseline=FEW)
    assert found.inputs.verdicts is not None
    assert found.inputs.verdicts.counts == compare_stored(FEW, FEW).counts
    assert "ratios" in {s.id for s in found.sections}


def test_results_without_a_single_run_make_a_page() -> None:
    found = report(replace(FEW, runs=(), arms=()))
    assert banner(found).headline == "Nothing could be measured"
    assert "</html>" in found.html()
    assert found.text()
    assert found.markdown()


def test_every_golden_file_makes_a_page() -> None:
    golden = Path(__file__).parents[2] / "golden" / "results-1.json"
    found = report(imports.load(golden))
    assert found.html()
    assert found.text()
    assert found.markdown()

"""What it cost and what bounds it on a page: memory, history, roofline and profile."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import numpy as np
import pytest

import made_report
from made_results import results, series
from report_sections import FEW, section
from tritium.perf.records.case import Context, Work
from tritium.perf.records.run import Results, Run, Series
from tritium.perf.store.trends import trend
from tritium.perf.suites import suites
from tritium.perf.tables import pages, tables
from tritium.see.charts import charts
from tritium.see.reports.blocks import Fold, Grid, Line, Picture
from tritium.see.reports.report import Report, generate_memory_analysis, report


@pytest.fixture(scope="module")
def full() -> Report:
    return report(FEW, history=made_report.trends(FEW), profile=made_report.profile(), before=made_report.profile(2))


def of_suite(name: str, peers: tuple[str, ...], seed: int = 0) -> Results:
    """Results as the suite of this name would have them: its own cases, with made times, peaks and energy."""
    options = suites.options_of(name, quick=True).changed(peers=peers)
    grid = suites.grid(options)
    rng = np.random.default_rng(seed)
    joules = {"watts": 7.5, "calls_per_degree": 12.0, "battery_hours": 3.25}
    runs = []
    for arm in grid.arms:
        for case in grid.cases[:12]:
            wall = series(float(rng.uniform(1e-5, 1e-3)), rng, generations=3)
            more = [
                Series(metric, "B", (((float(rng.integers(1, 2**30)),),),))
                for metric in ("peak_bytes", "allocated_bytes", "rss_bytes")
            ]
            energy = Series("energy", "J", (((float(rng.uniform(1e-6, 1)),),),), details=joules)
            run = Run(case.name, arm.name, case.context, Work(10**6, 1000, 1000), series=(wall, *more, energy))
            runs.append(replace(run, facts={"sqnr dB": 21.5, "bits a weight": 1.625, "times smaller": 19.7}))
    made = results({"add": 1e-3})
    arms = tuple(arm.name for arm in grid.arms)
    return replace(made, suite=name, arms=arms, runs=tuple(runs))


@pytest.mark.parametrize("peers", [(), ("numpy",)])
@pytest.mark.parametrize("name", ["compare", *suites.SUITES])
def test_the_page_of_a_suite_shows_what_its_terminal_shows(name: str, peers: tuple[str, ...]) -> None:
    made = of_suite(name, peers)
    findings = pages.findings_of(made, crossovers=False)
    page = html.unescape(re.sub(r"<[^>]+>", " ", report(made).html()))
    texts = [cell for table in findings.tables for row in (table.heads, *table.rows, table.below) for cell in row]
    texts += [*findings.advice, *(f"{r.use_case}: {r.choice}: {r.evidence}" for r in findings.guide)]
    texts += [*tables.clocks(made), *tables.remarks(made), *tables.troubles(made)]
    assert not [text for text in texts if " ".join(text.split()) not in " ".join(page.split())]
    terminal = pages.page(made, crossovers=False)
    for text in (*findings.advice, *(table.text() for table in findings.tables)):
        assert text in terminal
    if name in ("layout", "dtype"):
        assert findings.advice
    if name in ("memory", "workloads", "energy", "quantization"):
        assert findings.tables
    if name in ("compare", "comprehensive"):
        assert findings.guide


def test_the_flagship_is_named_in_the_summary_as_below_the_verdict_of_a_terminal() -> None:
    made = of_suite("compare", ("numpy",))
    product = replace(made.runs[0].context, operation="bitlinear", shape=(1, 2560))
    flagship = replace(made, runs=tuple(replace(r, context=product) if r.case == made.cases[0] else r for r in made))
    line = pages.verdict(flagship)[1]
    assert line.startswith("BitLinear 2560×2560: 1 token in ")
    assert line in " ".join(report(flagship).text().split())
    flags = ("45 rounds kept though other work broke in",)
    noisy = replace(flagship, runs=tuple(replace(r, flags=flags) for r in flagship))
    assert line in " ".join(report(noisy).text().split())


def test_a_history_says_first_how_small_a_step_it_shows() -> None:
    given = made_report.trends(FEW)
    first = section(report(FEW, history=given), "history").blocks[0]
    assert first == Line("Steps below 2.0 % are not shown in the median case.", "quiet")
    wide = {
        key: trend([replace(p, low=p.log_median - 0.05, high=p.log_median + 0.05) for p in t.points], "wall")
        for key, t in given.items()
    }
    first = section(report(FEW, history=wide), "history").blocks[0]
    assert first == Line("Steps below 10.5 % are not shown in the median case.", "quiet")


def test_a_history_with_nothing_in_it_says_so() -> None:
    assert "no runs are stored on this machine" in str(report(FEW, history={}).text())
    one = {key: replace(t, points=t.points[:1]) for key, t in made_report.trends(FEW).items()}
    assert "only one run of these cases is stored" in report(FEW, history=one).text()
    assert "no earlier runs were given" in report(FEW).text()


def test_int8_is_told_in_operations_and_only_where_the_first_arm_has_some() -> None:
    def roofs(arm: str) -> tuple[charts.Roof, ...]:
        runs = [replace(r, work=replace(r.work, integer=r.arm == arm)) for r in FEW.runs]
        picture = section(report(replace(FEW, runs=tuple(runs))), "roofline").blocks[0]
        assert isinstance(picture, Picture)
        assert picture.chart.unit == ("OP/s" if arm == "tritium" else "FLOP/s")
        return tuple(picture.chart.roofs)

    assert {r.name: r.unit for r in roofs("tritium")} == {
        "f32": "FLOP/s",
        "int8": "OP/s",
        "L1": "B/s",
        "L2": "B/s",
        "DRAM": "B/s",
    }
    assert "int8" not in {r.name for r in roofs("numpy")}


def test_a_profile_says_what_its_ceiling_and_its_difference_leave_out(full: Report) -> None:
    told = " ".join(str(section(full, "profile")).split())
    assert "are counted as one operation and take many" in told
    assert "of one profile each and may be due to the load of the machine" in told
    alone = report(FEW, profile=made_report.profile())
    assert "of one profile each" not in " ".join(str(section(alone, "profile")).split())


def test_a_change_point_is_in_the_history(full: Report) -> None:
    part = section(full, "history")
    trend = next(b for b in part.blocks if isinstance(b, Picture)).chart
    assert [s.index for s in trend.steps] == [18]
    grid = next(b for b in part.blocks if isinstance(b, Grid))
    assert "+12" in grid.rows[0][-1].text


def test_buffers_reported_wrongly_by_hand_are_named() -> None:
    odd = replace(made_report.tracked(), unknown_frees=("a",), repeated_ids=("b", "c"))
    text = " ".join(generate_memory_analysis(FEW, odd).text().split())
    assert "flagged: 1 buffer was freed manually without an allocation: a" in text
    assert "flagged: 2 buffers were allocated manually under an id that was alive" in text


def test_a_tracked_run_tells_what_holds_its_memory_by_operation() -> None:
    memory = generate_memory_analysis(FEW, made_report.tracked())
    chart = next(b.chart for b in memory.blocks if isinstance(b, Picture) and isinstance(b.chart, charts.Stacks))
    peak, left = chart.rows
    assert peak.total == 50 << 20, "the parts add up to the peak"
    assert [p.name for p in peak.parts] == [
        *(f"op{i}" for i in range(5)),
        "other operations",
        "before it began",
        "not listed",
    ]
    assert [(p.name, p.value) for p in left.parts] == [("op0", 9 << 20)]
    assert chart.limit == 64 << 20
    assert "outlived it" in memory.text()


def test_a_history_opens_with_the_users_cases_and_folds_the_canaries_at_the_end() -> None:
    own = made_report.trends(FEW)
    first = next(iter(own.values()))
    canary = {("canary compute", "tritium"): first, ("canary memory", "tritium"): first}
    part = section(report(FEW, history=canary | dict(list(own.items())[1:])), "history")
    opened = [b.chart.title for b in part.blocks if isinstance(b, Picture)]
    assert opened
    assert not any("canary" in title for title in opened)
    folds = [b for b in part.blocks if isinstance(b, Fold)]
    assert [p.chart.title for p in folds[-1].blocks] == ["canary compute on tritium", "canary memory on tritium"]
    grid = next(b for b in part.blocks if isinstance(b, Grid))
    assert [row[0].text for row in grid.rows][-2:] == ["canary compute", "canary memory"]


@pytest.mark.parametrize(
    ("created", "commit", "labels"),
    [
        ("2026-01-{:02d}T12:00:00Z", "{:02d}abcdef", ["01abcde", "02abcde", "03abcde"]),
        ("2026-01-{:02d}T12:00:00Z", "same", ["2026-01-01", "2026-01-02", "2026-01-03"]),
        ("2026-01-05T{:02d}:30:00Z", "same", ["01-05 01:30", "01-05 02:30", "01-05 03:30"]),
        ("2026-01-05T12:30:{:02d}Z", "", ["01-05 12:30:01", "01-05 12:30:02", "01-05 12:30:03"]),
    ],
)
def test_the_runs_of_a_history_can_be_told_apart(created: str, commit: str, labels: list[str]) -> None:
    (key, t), *_ = made_report.trends(FEW).items()
    points = [
        replace(p, created=created.format(i), commit=commit.format(i)) for i, p in enumerate(t.points[:3], start=1)
    ]
    part = section(report(FEW, history={key: trend(points, "wall")}), "history")
    chart = next(b for b in part.blocks if isinstance(b, Picture)).chart
    assert [p.label for p in chart.points] == labels


def test_the_page_of_quantisation_shows_what_each_scheme_keeps() -> None:
    names = {"quantize int8 64x64": 1e-5, "dequantize int8 64x64": 2e-5, "quantize fp16 64x64": 3e-5}
    facts = {"sqnr dB": 40.7, "bits a weight": 8.01, "times smaller": 3.99, "bytes after": 4100}
    plain = results(names, arms={"tritium": 1.0})
    runs = tuple(
        run if run.case.startswith("canary") else replace(
            run, context=Context(run.case.split()[0], (64, 64), run.case.split()[1]), facts=facts
        )
        for run in plain.runs
    )  # fmt: skip
    page = report(replace(plain, runs=runs, suite="quantization", kind="bench"))
    (section,) = (s for s in page.sections if s.id == "schemes")
    for text in (section.text(), section.html(), section.markdown(), page.html()):
        for word in ("SQNR", "40.7 dB", "8.01", "3.99×", "int8", "fp16"):
            assert word in text
    others = report(replace(plain, suite="compare"))
    assert "schemes" not in {s.id for s in others.sections}
    assert "Schemes" not in others.html()

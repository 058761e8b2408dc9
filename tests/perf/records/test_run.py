"""Results as records: what a notebook shows of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import made_results
from tritium.perf.records.run import Flag, disturbed_rounds, flag_counts


def test_results_are_a_table_of_median_times_in_a_notebook() -> None:
    results = made_results.results(
        {"add [8]": 1e-6, "<b> [8]": 2e-3}, arms={"tritium": 1.0, "numpy": 2.0}, canary=False
    )
    html = replace(results, notes=("torch was left out",), complete=False)._repr_html_()
    assert html.count("<tr>") == 3
    assert "&lt;b&gt; [8]" in html
    assert "numpy" in html
    assert "torch was left out" in html
    assert "interrupted" in html
    failed = replace(results.runs[0], status="failed", series=())
    assert "failed" in replace(results, runs=(failed, *results.runs[1:]))._repr_html_()


# ---- flags

REPEATED = "15 rounds repeated: other work or the hypervisor broke in"
KEPT = "30 rounds kept though other work broke in"


def test_the_texts_of_flags_in_files_are_read_as_flags_with_their_rounds() -> None:
    texts = (
        REPEATED,
        KEPT,
        "several modes",
        "no steady state",
        "waited: the CPU time is 20% of the wall time",
        "only a summary",
    )
    assert flag_counts(texts) == {
        Flag.REPEATED: 15, Flag.KEPT: 30, Flag.MODES: 0, Flag.UNSTEADY: 0, Flag.WAITED: 0,
    }  # fmt: skip
    assert flag_counts(["other work or the hypervisor broke in"]) == {Flag.DISTURBED: 0}
    assert flag_counts(["2 rounds kept though other work broke in", KEPT]) == {Flag.KEPT: 32}  # of two looks
    assert flag_counts(["it waited", "12 several", "rounds"]) == {}


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ((), (0, 40)), ((REPEATED,), (15, 55)), ((KEPT,), (30, 40)), ((REPEATED, KEPT), (45, 55)),
        (("waited: the CPU time is 20% of the wall time",), (40, 40)), (("waited: …", REPEATED), (55, 55)),
        (("other work or the hypervisor broke in",), (40, 40)), (("no steady state", "several modes"), (0, 40)),
    ],
)  # fmt: skip
def test_a_cell_counts_its_disturbed_rounds_among_all_that_were_timed(
    flags: tuple[str, ...], found: tuple[int, int]
) -> None:
    assert disturbed_rounds(flags, 40) == found
    run = made_results.results({"add": 1e-3}, generations=8, rounds=5, canary=False).runs[0]
    assert replace(run, flags=flags).disturbed_rounds == found
    assert replace(run, series=(), flags=()).disturbed_rounds == (0, 0)


def test_a_process_takes_its_share_of_the_whole_time() -> None:
    results = made_results.results({"add": 1e-3}, generations=8)
    assert replace(results, elapsed_s=100.0).process_s == 12.5
    assert results.process_s == 0.0
    assert replace(results, runs=(), elapsed_s=100.0).process_s == 0.0

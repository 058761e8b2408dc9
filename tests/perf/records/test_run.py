"""Results as records: what a notebook shows of them."""

from __future__ import annotations

from dataclasses import replace

import made_results


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

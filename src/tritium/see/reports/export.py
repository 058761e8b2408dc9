"""A comparison as text in one of five formats: `tt.perf.export_results`.

Measures nothing and never prints. It is here, above `perf`, because one of the formats is the report.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tritium.arguments import checked
from tritium.errors import ArgumentError, nearest
from tritium.machine.facts import digest
from tritium.perf.formats import exports
from tritium.perf.records.json_io import plain
from tritium.perf.records.run import Results
from tritium.perf.tables import pages
from tritium.perf.tables.selection import device_selection_guide


@checked
def export_results(results: Results, fmt: str = "summary") -> str:
    """Return a comparison as text: summary (the page), json (with what is derived), csv, markdown, or html (the report)."""
    if fmt not in FORMATS:
        raise ArgumentError(f"there is no format {fmt!r}; there are {', '.join(FORMATS)}.{nearest(str(fmt), FORMATS)}")
    return FORMATS[fmt](results)


def with_derived(results: Results) -> str:
    """Return a results file with what is derived from the results; a reader derives it again."""
    body, guide = plain(results), device_selection_guide(results)
    derived = {
        "crossovers": [plain(c) | {"text": c.text} for c in guide.crossovers],
        "device_selection_guide": [plain(r) for r in guide.recommendations],
    }
    document = {"schema": results.schema, "sha256": digest(body), "results": body, "derived": derived}
    return json.dumps(document, allow_nan=False) + "\n"


def _html(results: Results) -> str:
    from tritium.see.reports.report import generate_html_report  # charts and flame graphs: only for a report

    return generate_html_report(results)


FORMATS: dict[str, Callable[[Results], str]] = {
    "summary": lambda results: pages.page(results) + "\n",
    "json": with_derived,
    "csv": exports.csv,
    "markdown": lambda results: pages.markdown(results) + "\n",
    "html": _html,
}

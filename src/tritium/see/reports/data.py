"""The raw data inside a page: a file of results that loads back, packed small, and a table of figures.

Knows nothing of how a page looks. What does not fit is thinned step by step, and the page says to what.
"""

from __future__ import annotations

import base64
import csv as csv_text
import gzip
import io
import json
from dataclasses import dataclass, replace
from typing import Any

from tritium import escape
from tritium.machine.facts import digest
from tritium.perf.records.json_io import plain
from tritium.perf.records.run import Results, Series, rounds_of
from tritium.perf.tables.tables import time_interval

MOST = 250_000  # characters of packed data in a page
DIGITS = 6  # of thinned values
BYTES_A_VALUE = 8.5  # of a double written as JSON, packed: fewer never
HEADS = ("case", "arm", "status", "reason", "metric", "unit", "kind", "median", "low", "high", "samples")


@dataclass(frozen=True)
class Data:
    """What a page carries."""

    sha256: str  # that the file of the results has in it; "": there is no such file
    download: str  # that the download has in it; "": there is none
    inside: str  # "every value", in words
    nbytes: int  # of the results as JSON; 0: they are not inside
    results: str  # base64 of gzip of a results file; "": not inside
    figures: str  # CSV


def data_of(results: Results, sha256: str = "") -> Data:
    """As much of the results as a page can carry, and the figures of all; `sha256`: what their file has in it.

    Read from a file, a whole number may be a double (64, 64.0), which changes the hash of what is inside, not its meaning.
    """
    figures, whole = figures_csv(results), plain(results)
    if BYTES_A_VALUE * sum(len(s.flat) for r in results.runs for s in r.series) < MOST:
        inside = digest(whole)
        text, packed = _packed(whole, inside, results.schema)
        if len(packed) <= MOST:
            return Data(sha256, inside, "every value, as measured", text, packed, figures)
    body = plain(_rounds(results))
    inside = digest(body)
    text, packed = _packed(body, inside, results.schema)
    if len(packed) <= MOST:
        told = f"a value for each round, {DIGITS} digits; the file of results has every batch"
        return Data(sha256, inside, told, text, packed, figures)
    return Data(
        sha256, "", "figures only: the raw values would not fit; they are in the file of results", 0, "", figures
    )


def _packed(body: dict[str, Any], sha256: str, schema: int) -> tuple[int, str]:
    """The bytes of a results file, and the file packed."""
    text = json.dumps({"schema": schema, "sha256": sha256, "results": body}, allow_nan=False).encode()
    return len(text), base64.b64encode(gzip.compress(text, 6, mtime=0)).decode()


def _rounds(results: Results) -> Results:
    """The value of each round instead of every batch, to six digits; the results say so themselves."""
    said = f"thinned for a report: a value for each round, {DIGITS} digits"
    runs = tuple(replace(run, series=tuple(_thin(s) for s in run.series)) for run in results.runs)
    return replace(results, runs=runs, notes=(*results.notes, said))


def _thin(series: Series) -> Series:
    values = tuple(tuple((float(f"{v:.{DIGITS}g}"),) for v in generation) for generation in rounds_of(series))
    details = {k: v for k, v in series.details.items() if k != "broken"}
    return replace(series, values=values, details=details)


def figures_csv(results: Results) -> str:
    """A row for each metric of each run, without raw values. No cell is a formula."""
    out = io.StringIO()
    rows = csv_text.writer(out, quoting=csv_text.QUOTE_NONNUMERIC, lineterminator="\n")
    rows.writerow(HEADS)
    for run in results.runs:
        about = [escape.csv(text) for text in (run.case, run.arm, run.status, run.reason)]
        for s in run.series or (Series("", ""),):
            low, high = (time_interval(s) if s.flat and s.unit == "s" else None) or ("", "")
            words = [escape.csv(s.metric), escape.csv(s.unit), escape.csv(s.kind if s.metric else "")]
            middle = "" if s.median is None else s.median
            rows.writerow([*about, *words, middle, low, high, len(s.flat)])
    return out.getvalue()

"""A report: results, verdicts, profiles and tracked memory as sections, in reading order.

Knows nothing of HTML or terminals: `see.reports.html` and `see.reports.text` write it. Nothing is measured here, no clock
is read, and the same input gives the same bytes.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritium import escape
from tritium.arguments import checked, checked_except
from tritium.errors import ArgumentError, nearest
from tritium.machine.files import write_bytes, write_text
from tritium.perf.gate.verdict import BASE, HEAD, Suite
from tritium.perf.records import json_io as records
from tritium.perf.records.run import Results
from tritium.see.charts import charts
from tritium.see.reports import cases, html as html_page, machine, resources, summary
from tritium.see.reports.blocks import Block, Card, Drawing, Fold, Picture
from tritium.see.reports.inputs import Inputs
from tritium.see.reports.machine import Data, data_of
from tritium.see.reports.sections import Section

if TYPE_CHECKING:
    from tritium.perf.gate.selftest import Selftest
    from tritium.perf.store.history import History
    from tritium.perf.store.trends import Trend

    Trends = Mapping[tuple[str, str], Trend]

SCHEMA = 1
FORMATS = {".html": "html", ".htm": "html", ".md": "markdown", ".txt": "text", ".json": "json"}


@dataclass(frozen=True, eq=False)
class Report:
    """A complete report. `html()`, `markdown()` and `text()` are its formats; `save` chooses by the suffix."""

    title: str
    sections: tuple[Section, ...]
    inputs: Inputs
    data: Data = field(repr=False)

    def html(self) -> str:
        """Return one self-contained file, readable offline and without script."""
        created = escape.visible(self.inputs.results.created)
        footer = f"Made by Tritium from results of {created}. Offline, and the same bytes from the same results."
        data = {"name": _stem(self.inputs.results.suite), "gzip": self.data.results, "csv": self.data.figures}
        return html_page.page(self.title, self.sections, footer, data, flames=True)

    def markdown(self) -> str:
        """Return the report for a pull request."""
        from tritium.see.reports import text as text_page  # not needed for a page

        return text_page.markdown(self.sections)

    def text(self) -> str:
        """Return the report for a terminal."""
        from tritium.see.reports import text as text_page

        return text_page.text(self.sections)

    def json(self) -> str:
        """Return every section with its blocks as JSON."""
        sections = [_plain(s) for s in self.sections]
        body = {
            "schema": SCHEMA,
            "title": self.title,
            "created": self.inputs.results.created,
            "sha256": self.data.sha256 or self.data.download,
            "sections": sections,
        }
        return records.dumps(body, indent=1) + "\n"

    def save(self, path: str | os.PathLike[str], to: str | None = None) -> Path:
        """Write the report in the format of its suffix (or `to`): .html, .md, .txt or .json. Whole or not at all."""
        return write_text(path, getattr(self, form_of(path, to))())

    @cached_property
    def pictures(self) -> tuple[Picture | Drawing, ...]:
        """Return every chart and drawing, including those for export only."""
        return tuple(p for s in self.sections for b in s.blocks for p in _pictures(b))

    def charts(self, folder: str | os.PathLike[str], to: str = "svg") -> list[Path]:
        """Write every chart into a folder, as SVG or PNG. All are drawn before the first is written."""
        if to not in ("svg", "png"):
            raise ArgumentError(f"charts are written as svg or png, not as {to!r}.")
        svgs = {f"{_file(p.name)}.{to}": _draw(p, to) for p in self.pictures}
        if to == "svg":
            return [write_text(Path(folder) / name, svg, parents=True) for name, svg in svgs.items()]
        from tritium.see import png  # for PNG only

        pixels = {name: png.render(svg) for name, svg in svgs.items()}
        return [write_bytes(Path(folder) / name, data, parents=True) for name, data in pixels.items()]


@checked_except("results")
def report(
    results: Results, *, verdicts: Suite | None = None, baseline: Results | None = None, history: History | Trends | None = None,
    profile: Any = None, before: Any = None, memory: Any = None, selftest: Selftest | None = None, sha256: str = "",
) -> Report:  # fmt: skip
    """Return a report of results, and of verdicts, a baseline, a history, profiles, tracked memory and a self-test if given.

    `before` is the profile that `profile` is compared with; `sha256` is that stored in the results file.
    """
    if not isinstance(results, Results):
        raise ArgumentError(f"report: Results are needed (tt.perf.load returns them), given {type(results).__name__}.")
    if before is not None and profile is None:
        raise ArgumentError("report: before is an earlier profile; give the later one as profile too.")
    if verdicts is None and baseline is not None:
        from tritium.perf.gate.compare import compare_stored  # needed for a comparison only

        verdicts = replace(
            compare_stored(baseline, results),
            base=baseline.name or f"baseline of {baseline.created[:10]}",
            head="now",
        )
    tracked = memory.record() if hasattr(memory, "record") else memory  # a tracker, or its record
    inputs = replace(_collect(results, verdicts), baseline=baseline, profile=profile, before=before, memory=tracked)
    trends = _trends(history, inputs)
    why = _no_history(history, trends) if history is not None else ""
    return _build(replace(inputs, trends=trends, no_history=why, selftest=selftest, sha256=sha256))


def _collect(results: Results, verdicts: Suite | None) -> Inputs:
    """Return results with their verdicts; two revisions without any are judged by the default rules, as neither is a peer."""
    if verdicts is None and results.arms == (BASE, HEAD):
        from tritium.perf.gate.compare import compare_paired

        verdicts = replace(compare_paired(results, BASE, HEAD), base=BASE, head=HEAD)
    return Inputs(results, verdicts)


def _build(inputs: Inputs) -> Report:
    data = data_of(inputs.results, inputs.sha256)
    candidates = [section for make in ORDER if (section := make(inputs)) is not None]
    candidates.append(machine.data(inputs, data))
    present = [s for s in candidates if not s.absent]
    missing = machine.missing([s for s in candidates if s.absent])
    sections = (*present, missing) if missing.blocks else tuple(present)
    return Report(_title(inputs), sections, inputs, data)


ORDER = (
    summary.banner,
    summary.summary,
    machine.environment,
    cases.ratios,
    cases.overview,
    cases.cards,
    resources.suite,
    resources.memory,
    resources.energy,
    resources.history,
    resources.roofline,
    resources.profile,
    cases.devices,
    cases.crossovers,
    summary.recommendations,
    machine.noise,
    machine.reproduce,
)


def _title(inputs: Inputs) -> str:
    results = inputs.results
    return " · ".join(filter(None, ("Tritium", results.name or results.suite or results.kind, results.created[:10])))


def _trends(history: History | Trends | None, inputs: Inputs) -> dict[tuple[str, str], Trend]:
    """Return the trends themselves; of a history those of every case of the first contender."""
    if history is None or isinstance(history, Mapping):
        return dict(history or {})
    arm = inputs.first
    available = {(case, name) for case, metric, name in history.cases() if metric == "wall"}
    trends = {
        (case, arm): history.trend(case, "wall", arm) for case in inputs.results.cases if (case, arm) in available
    }
    return {key: trend for key, trend in trends.items() if trend is not None}


def _no_history(history: History | Trends, trends: Trends) -> str:
    """Return why a requested history shows nothing; "" where it does."""
    longest = max((len(t.points) for t in trends.values()), default=0)
    if longest >= resources.LEAST_POINTS:
        return ""
    if longest:
        return "only one run of these cases is stored, and two make a history; tritium history --add results.json adds the next"
    if not isinstance(history, Mapping) and history.cases():
        return "no run stored on this machine has a case of these results"
    return "no runs are stored on this machine; tritium history --add results.json adds one"


# ---- helpers


def form_of(path: str | os.PathLike[str], to: str | None = None, what: str = "report") -> str:
    """Return the format of a suffix (or `to`): html, markdown, text or json."""
    suffix = Path(path).suffix.lower()
    form = to or FORMATS.get(suffix, "")
    if form not in set(FORMATS.values()):
        description = repr(to) if to else f"a name that ends in {suffix!r}" if suffix else "a name without a suffix"
        raise ArgumentError(
            f"{what}: {escape.visible(description)} is not a format of a report; there are {', '.join(dict.fromkeys(FORMATS.values()))}: "
            f"name the file .html, .md, .txt or .json.{nearest(suffix, FORMATS)}"
        )
    return form


def _pictures(block: Block) -> Iterator[Picture | Drawing]:
    if isinstance(block, (Picture, Drawing)):
        yield block
    elif isinstance(block, (Card, Fold)):
        for inner in block.blocks:
            yield from _pictures(inner)


def _stem(suite: str) -> str:
    """Return the name of a download: letters, digits and dashes."""
    stem = "".join(c if c.isascii() and c.isalnum() else "-" for c in suite)[:40].strip("-")
    return stem or "results"


def _file(name: str) -> str:
    """Return a file name: the name itself where it is plain, else with a hash."""
    plain = name.replace(" ", "-")
    return (
        plain if plain.replace("-", "").isalnum() and plain.isascii() and len(plain) <= 60 else escape.file_name(name)
    )


def _draw(picture: Picture | Drawing, to: str) -> str:
    if isinstance(picture, Picture):
        return charts.svg(picture.chart, theme="light" if to == "png" else None)
    return _inline_colours(picture.file) if to == "png" else picture.file


def _inline_colours(svg: str) -> str:
    """Return an SVG without CSS variables, which some renderers lack: each replaced by its first, light value."""
    values: dict[str, str] = {}
    for name, value in re.findall(r"(--[\w-]+):([^;{}<>]+)", svg):
        values.setdefault(name, value)
    return re.sub(r"var\((--[\w-]+)\)", lambda match: values.get(match[1], "currentColor"), svg)


def _plain(value: Any) -> Any:
    """Return blocks as JSON values, each with its kind; drawings as their lines, non-finite numbers as null."""
    if isinstance(value, Drawing):
        value = replace(value, svg="", file="")
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__.lower()} | {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- single sections, by the names of the guides


@checked
def generate_comprehensive_report(
    results: Results, comparisons: Suite | None = None, memory: Any = None, profile: Any = None, **more: Any
) -> Report:
    """Return the complete report."""
    return report(results, verdicts=comparisons, memory=memory, profile=profile, **more)


@checked
def generate_executive_summary(results: Results, comparisons: Suite | None = None) -> Section:
    """Return three to six sentences, each with its number."""
    return summary.summary(_collect(results, comparisons))


@checked
def generate_performance_analysis(results: Results, comparisons: Suite | None = None) -> tuple[Section, ...]:
    """Return ratios, overview, roofline and devices; empty sections are left out."""
    inputs = _collect(results, comparisons)
    makers = (cases.ratios, cases.overview, resources.roofline, cases.devices)
    return tuple(s for make in makers if not (s := make(inputs)).absent)


@checked
def generate_memory_analysis(results: Results, memory: Any = None) -> Section:
    """Return the peaks of every case, and a tracked run; a section with the reason where nothing was measured."""
    return resources.memory(Inputs(results, memory=memory.record() if hasattr(memory, "record") else memory))


@checked
def generate_html_report(found: Report | Results, **more: Any) -> str:
    """Return the page of a report or of results."""
    return (found if isinstance(found, Report) else report(found, **more)).html()

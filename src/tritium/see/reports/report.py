"""A report: what was measured, judged, profiled and tracked, as sections in the order a person reads them.

Knows nothing of HTML or terminals: `see.reports.html` and `see.reports.text` write it down. Nothing is measured here, no clock is
read, and the same input gives the same bytes.
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
from tritium.errors import ArgumentError, nearest
from tritium.perf.files import write_bytes, write_text
from tritium.perf.gate.verdict import BASE, HEAD, Suite
from tritium.perf.records import json_io as records
from tritium.perf.records.run import Results
from tritium.see.charts import charts
from tritium.see.reports import cases, html as html_page, machine, resources, summary
from tritium.see.reports.blocks import Block, Card, Drawing, Fold, Picture
from tritium.see.reports.inputs import Given
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
    """A page with everything on it. `html()`, `markdown()`, `text()` are its forms; `save` chooses by the name."""

    title: str
    sections: tuple[Section, ...]
    given: Given
    data: Data = field(repr=False)

    def html(self) -> str:
        """One file that needs nothing else: offline, without script too."""
        created = escape.visible(self.given.results.created)
        made = f"Made by Tritium from results of {created}. Offline, and the same bytes from the same results."
        data = {"name": _stem(self.given.results.suite), "gzip": self.data.results, "csv": self.data.figures}
        return html_page.whole(self.title, self.sections, made, data, flames=True)

    def markdown(self) -> str:
        """For a pull request."""
        from tritium.see.reports import text as text_page  # a page does without it

        return text_page.markdown(self.sections)

    def text(self) -> str:
        """For a terminal."""
        from tritium.see.reports import text as text_page

        return text_page.text(self.sections)

    def json(self) -> str:
        """Every section with its blocks, for programs."""
        told = [_plain(s) for s in self.sections]
        body = {
            "schema": SCHEMA,
            "title": self.title,
            "created": self.given.results.created,
            "sha256": self.data.sha256 or self.data.download,
            "sections": told,
        }
        return records.dumps(body, indent=1) + "\n"

    def save(self, path: str | os.PathLike[str], to: str | None = None) -> Path:
        """Write it, in the form its suffix (or `to`) names: .html, .md, .txt or .json. Whole or not at all."""
        return write_text(path, getattr(self, form_of(path, to))())

    @cached_property
    def pictures(self) -> tuple[Picture | Drawing, ...]:
        """Every chart and drawing, those only meant for export included."""
        return tuple(p for s in self.sections for b in s.blocks for p in _pictures(b))

    def charts(self, folder: str | os.PathLike[str], to: str = "svg") -> list[Path]:
        """Write every chart into a folder, as SVG or PNG. All are drawn before the first is written."""
        if to not in ("svg", "png"):
            raise ArgumentError(f"charts are written as svg or png, not as {to!r}.")
        drawn = {f"{_file(p.name)}.{to}": _drawn(p, to) for p in self.pictures}
        if to == "svg":
            return [write_text(Path(folder) / name, svg, parents=True) for name, svg in drawn.items()]
        from tritium.see import png  # of pixels alone

        pixels = {name: png.render(svg) for name, svg in drawn.items()}
        return [write_bytes(Path(folder) / name, data, parents=True) for name, data in pixels.items()]


def report(
    results: Results, *, verdicts: Suite | None = None, baseline: Results | None = None, history: History | Trends | None = None,
    profile: Any = None, before: Any = None, memory: Any = None, selftest: Selftest | None = None, sha256: str = "",
) -> Report:  # fmt: skip
    """A report of results; of verdicts, a baseline, a history, profiles, tracked memory and a self-test where they are given.

    `before` is the profile that `profile` is compared with; `sha256` is what the file of the results has in it.
    """
    if not isinstance(results, Results):
        raise ArgumentError(f"report: Results are needed (tt.perf.load gives them), given {type(results).__name__}.")
    if before is not None and profile is None:
        raise ArgumentError("report: before is an earlier profile; give the later one as profile too.")
    if verdicts is None and baseline is not None:
        from tritium.perf.gate.compare import compare_stored  # where there is something to compare with

        verdicts = replace(
            compare_stored(baseline, results),
            base=baseline.name or f"baseline of {baseline.created[:10]}",
            head="now",
        )
    tracked = memory.record() if hasattr(memory, "record") else memory  # a tracker, or what one left
    given = replace(_given(results, verdicts), baseline=baseline, profile=profile, before=before, memory=tracked)
    trends = _trends(history, given)
    why = _no_history(history, trends) if history is not None else ""
    return _made(replace(given, trends=trends, no_history=why, selftest=selftest, sha256=sha256))


def _given(results: Results, verdicts: Suite | None) -> Given:
    """Results with their verdicts; two revisions without any are judged by the usual rules: nobody is the peer of the other."""
    if verdicts is None and results.arms == (BASE, HEAD):
        from tritium.perf.gate.compare import compare_paired

        verdicts = replace(compare_paired(results, BASE, HEAD), base=BASE, head=HEAD)
    return Given(results, verdicts)


def _made(given: Given) -> Report:
    data = data_of(given.results, given.sha256)
    made = [make(given) for make in ORDER]
    made.append(machine.data(given, data))
    there = [s for s in made if not s.absent]
    missing = machine.missing([s for s in made if s.absent])
    sections = (*there, missing) if missing.blocks else tuple(there)
    return Report(_title(given), sections, given, data)


ORDER = (
    summary.banner,
    summary.summary,
    machine.environment,
    cases.ratios,
    cases.overview,
    cases.cards,
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


def _title(given: Given) -> str:
    results = given.results
    return " · ".join(filter(None, ("Tritium", results.name or results.suite or results.kind, results.created[:10])))


def _trends(history: History | Trends | None, given: Given) -> dict[tuple[str, str], Trend]:
    """Return the trends themselves; of a history that of every case of the first arm."""
    if history is None or isinstance(history, Mapping):
        return dict(history or {})
    arm = given.first
    known = {(case, of) for case, metric, of in history.cases() if metric == "wall"}
    found = {(case, arm): history.trend(case, "wall", arm) for case in given.results.cases if (case, arm) in known}
    return {key: trend for key, trend in found.items() if trend is not None}


def _no_history(history: History | Trends, found: Trends) -> str:
    """Why a history that was asked for shows nothing; "" where it does."""
    most = max((len(t.points) for t in found.values()), default=0)
    if most >= resources.LEAST_POINTS:
        return ""
    if most:
        return (
            "one run is kept of these cases, and two make a history; tritium history --add results.json keeps the next"
        )
    if not isinstance(history, Mapping) and history.cases():
        return "of the runs kept on this machine none has a case of these results"
    return "no runs are kept on this machine; tritium history --add results.json keeps one"


# ---- pieces


def form_of(path: str | os.PathLike[str], to: str | None = None, what: str = "report") -> str:
    """The form that the suffix of a name (or `to`) asks for: html, markdown, text or json."""
    suffix = Path(path).suffix.lower()
    form = to or FORMATS.get(suffix, "")
    if form not in set(FORMATS.values()):
        given = repr(to) if to else f"a name that ends in {suffix!r}" if suffix else "a name without a suffix"
        raise ArgumentError(
            f"{what}: {escape.visible(given)} is no form of a report; there are {', '.join(dict.fromkeys(FORMATS.values()))}: "
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
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in suite)[:40].strip("-")
    return kept or "results"


def _file(name: str) -> str:
    """A name of a file: as it is where it is plain, with a hash where it is not."""
    plain = name.replace(" ", "-")
    return (
        plain if plain.replace("-", "").isalnum() and plain.isascii() and len(plain) <= 60 else escape.file_name(name)
    )


def _drawn(picture: Picture | Drawing, to: str) -> str:
    if isinstance(picture, Picture):
        return charts.svg(picture.chart, theme="light" if to == "png" else None)
    return _in_plain_colours(picture.file) if to == "png" else picture.file


def _in_plain_colours(svg: str) -> str:
    """An SVG without CSS variables, which not everyone knows: each as it is declared first, in light colours."""
    known: dict[str, str] = {}
    for name, value in re.findall(r"(--[\w-]+):([^;{}<>]+)", svg):
        known.setdefault(name, value)
    return re.sub(r"var\((--[\w-]+)\)", lambda found: known.get(found[1], "currentColor"), svg)


def _plain(value: Any) -> Any:
    """Blocks as JSON has them, each with its kind; drawings as their words, what is no number as null."""
    if isinstance(value, Drawing):
        value = replace(value, svg="", file="")
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__.lower()} | {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- sections alone, by the names of the guides


def generate_comprehensive_report(
    results: Results, comparisons: Suite | None = None, memory: Any = None, profile: Any = None, **more: Any
) -> Report:
    """All of it in one object."""
    return report(results, verdicts=comparisons, memory=memory, profile=profile, **more)


def generate_executive_summary(results: Results, comparisons: Suite | None = None) -> Section:
    """Three to six sentences, each with its number."""
    return summary.summary(_given(results, comparisons))


def generate_performance_analysis(results: Results, comparisons: Suite | None = None) -> tuple[Section, ...]:
    """Ratios, overview, roofline and devices; those that have nothing to tell are left out."""
    given = _given(results, comparisons)
    makers = (cases.ratios, cases.overview, resources.roofline, cases.devices)
    return tuple(s for make in makers if not (s := make(given)).absent)


def generate_memory_analysis(results: Results, memory: Any = None) -> Section:
    """Peaks of every case, and what a tracked run tells; a section that says why where nothing was measured."""
    return resources.memory(Given(results, memory=memory.record() if hasattr(memory, "record") else memory))


def generate_html_report(found: Report | Results, **more: Any) -> str:
    """The page, of a report or of results."""
    return (found if isinstance(found, Report) else report(found, **more)).html()

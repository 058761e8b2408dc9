"""The page of the guides' targets: the verdict, the table, the notes, the machine, and the command to reproduce it.

Knows nothing of measuring, and reads neither this machine nor the clock: the same record yields the same bytes.
"""

from __future__ import annotations

import os
from pathlib import Path

from tritium.machine.facts import seconds_text
from tritium.machine.files import write_text
from tritium.perf.amounts import many, verb
from tritium.see.reports import html as report_html, machine as section_machine
from tritium.see.reports.blocks import Banner, Block, Cell, Code, Facts, Fold, Grid, Line, Lines, Span, Tone
from tritium.see.reports.machine import threads_text
from tritium.see.reports.report import form_of
from tritium.see.reports.sections import Section
from tritium.see.reports.text import section_markdown, section_text
from tritium.see.targets.file import Measured
from tritium.see.targets.targets import HEADS, Reached, counts, notes, rows

TONES: dict[str, Tone] = {"pass": "good", "not reached": "bad", "undecided": "unsure", "not measured": "quiet"}
RATIO = "target reached, as a ratio"
ENDS = ("missed", "reached")


def save(measured: Measured, path: str | os.PathLike[str]) -> Path:
    """Write the page in the format of the suffix: .html, .md, .txt or .json. Atomic."""
    writers = {"html": html, "markdown": markdown, "text": text, "json": Measured.json}
    return write_text(path, writers[form_of(path, what="targets")](measured))


def html(measured: Measured) -> str:
    """Return the page as one self-contained HTML file."""
    title = " · ".join(filter(None, ("Tritium", "targets", measured.created[:10])))
    footer = f"Made by Tritium from targets measured at {measured.created}. Offline, and the same bytes from the same figures."
    return report_html.page(title, sections(measured), footer, noun="target")


def markdown(measured: Measured) -> str:
    """Return the page as Markdown for a pull request."""
    return "\n\n".join(section_markdown(s) for s in sections(measured)) + "\n"


def text(measured: Measured) -> str:
    """Return the page as text for a terminal."""
    return "\n\n".join(section_text(s) for s in sections(measured)) + "\n"


def sections(measured: Measured) -> tuple[Section, ...]:
    """Return the sections in reading order; empty ones are left out."""
    candidates = (_verdict(measured), _table(measured), _notes(measured), _machine(measured), _reproduce(measured))
    return tuple(s for s in candidates if s.blocks)


def _verdict(measured: Measured) -> Section:
    count, env = counts(measured.results), measured.environment
    known = len(measured.results) - count["not measured"]
    tone: Tone = "bad" if count["not reached"] else "unsure" if count["undecided"] or not known else "good"
    headline = (
        f"{count['pass']} of {many(known, 'measured target')} reached" if known else "No target could be measured"
    )
    left = count["not measured"]
    lede = "The targets are the guides' own, for their own libraries and machines."
    if left and known:
        lede += f" {left} more {verb(left, 'was', 'were')} not measured."
    facts = ("targets", measured.created[:10], env.hard.cpu, *env.hard.gpus, threads_text(env.hard))
    tallies = tuple((n, outcome, TONES[outcome]) for outcome, n in count.items() if n)
    banner = Banner(headline, tone, lede, tallies, tuple(filter(None, facts)), measured.command, "")
    return Section("verdict", "Targets", (banner,))


def _table(measured: Measured) -> Section:
    lede = (
        "Reached: the whole 95 % interval reaches the target. Not reached: none of it does. Undecided: the target is inside the interval. "
        "Possible here: what this machine's measured ceilings allow."
    )
    pairs = zip(measured.results, rows(measured.results), strict=True)
    guide, name, *rest, by = HEADS
    body = [(r, ["" if cell == "-" else cell for cell in row]) for r, row in pairs]
    table = Grid((name, guide, *rest, RATIO), tuple(_row(r, row) for r, row in body), filtered=True, ends=ENDS)
    sources = tuple((Cell(row[1]), Cell(r.target.section), Cell(row[-1])) for r, row in body if r.figure is not None)
    folded = Fold("What each figure was measured by", (Grid((name, "table of the guide", by), sources, filtered=True),))
    return Section("targets", "Every target", (table, folded) if sources else (table,), lede)


def _row(reached: Reached, row: list[str]) -> tuple[Cell, ...]:
    """Return the cells of a row, without the long description of the measurement, which is folded."""
    guide, name, target, figure, possible, outcome, _ = row
    tone = TONES[outcome]
    span = _span(reached)
    order = None if span is None else -span.ratio  # the furthest beyond its target first, the furthest below it last
    return (
        Cell(name), Cell(guide), Cell(target), Cell(figure.replace(" … ", "…"), sort=order), Cell(possible), Cell(outcome, tone, badge=True),
        Cell("", tone, order, span=span),
    )  # fmt: skip


def _span(reached: Reached) -> Span | None:
    """Return the ratio to the target with its interval: 2 is twice as good as required; None without a ratio."""
    target, figure = reached.target, reached.figure
    if figure is None or min(target.limit, figure.value, figure.low, figure.high) <= 0:
        return None
    ratio, a, b = (
        target.limit / v if target.lower else v / target.limit for v in (figure.value, figure.low, figure.high)
    )
    return Span(ratio, min(a, b), max(a, b)) if figure.low < figure.high else Span(ratio)


def _notes(measured: Measured) -> Section:
    lines = [Line(note, "quiet" if note.startswith("not measured") else "unsure") for note in notes(measured.results)]
    return Section("notes", "Notes", (Lines(tuple(lines)),) if lines else ())


def _machine(measured: Measured) -> Section:
    return Section("environment", "Environment", tuple(section_machine.machine(measured.environment)))


def _reproduce(measured: Measured) -> Section:
    env = measured.environment
    facts = (
        ("commit", section_machine.commit_text(env)),
        ("timing", f"{seconds_text(measured.seconds)} for each figure"),
        ("measured", measured.created),
    )
    blocks: tuple[Block, ...] = (
        Code("\n".join(section_machine.commands(env, measured.command))),
        Facts(tuple((name, Cell(value)) for name, value in facts)),
    )
    return Section("reproduce", "How to reproduce", blocks)

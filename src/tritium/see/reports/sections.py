"""What a report is made of: sections of blocks (text, facts, tables, charts, cards), and what they are made from.

Knows nothing of HTML, Markdown or terminals: the same blocks give all three. Text in a block is as it was given; whoever
writes it down escapes it for that place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from tritium import escape
from tritium.perf.gate.selftest import Selftest
from tritium.perf.gate.verdict import Suite, Verdict
from tritium.perf.records.environment import Hard
from tritium.perf.records.run import Results, Run
from tritium.perf.store.trends import Trend
from tritium.perf.tables import tables
from tritium.perf.work.canary import is_canary

if TYPE_CHECKING:
    from tritium.see.memory.file import Memory
    from tritium.see.profile.profile import Profile

Tone = Literal["", "good", "bad", "unsure", "fine", "quiet"]
TONES: dict[str, Tone] = {
    "SLOWER": "bad", "MISSING": "bad", "NOT COMPARABLE": "unsure", "INCONCLUSIVE": "unsure", "CHANGED-SMALL": "unsure",
    "FASTER": "good", "EQUIVALENT": "fine",
}  # fmt: skip
WORDS = {
    "SLOWER": "slower", "MISSING": "missing", "NOT COMPARABLE": "not comparable", "INCONCLUSIVE": "inconclusive",
    "CHANGED-SMALL": "changed a little", "FASTER": "faster", "EQUIVALENT": "equivalent",
}  # fmt: skip
IMPORTED = "import"  # kind of results that others measured
FALSE_SHARE = 0.05  # of coloured differences that may be none: Benjamini-Hochberg


# ---- blocks


@dataclass(frozen=True)
class Span:
    """A ratio and its interval, drawn on the scale its column shares; `margin`: the band that means no change."""

    ratio: float
    low: float | None = None
    high: float | None = None
    margin: float = 0.0


@dataclass(frozen=True)
class Cell:
    """One place of a table."""

    text: str
    tone: Tone = ""
    sort: float | None = None  # what it is ordered by; None: its text
    tip: str = ""
    link: str = ""  # an anchor of the page
    span: Span | None = None
    heat: float | None = None  # 0: the best of its row, 1: the worst that is told apart
    badge: bool = False


@dataclass(frozen=True)
class Line:
    """A sentence or two. A link leads to the number it speaks of."""

    text: str
    tone: Tone = ""
    link: str = ""
    link_text: str = ""


@dataclass(frozen=True)
class Lines:
    """Sentences one below the other; numbered where their order matters."""

    lines: tuple[Line, ...]
    numbered: bool = False


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    rows: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True)
class Grid:
    """A table that can be sorted; `filtered`: its rows obey the page's filter, by their first cell."""

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: frozenset[str] = frozenset()
    caption: str = ""
    filtered: bool = False
    ends: tuple[str, str] = ("", "")  # what lies left and right of 1 in a column of spans


@dataclass(frozen=True)
class Picture:
    """A chart of `see.charts.charts`; `shown` False: only for export, the page tells the same by a table."""

    name: str  # of the file it is exported to
    chart: Any
    shown: bool = True
    small: bool = False  # for a card
    told: bool = False  # where there are no pictures, its numbers stand as a table


@dataclass(frozen=True)
class Drawing:
    """Finished SVG (a flame graph), its lines for places without pictures, and what is in the file of its own."""

    name: str
    title: str
    svg: str
    lines: tuple[str, ...]
    file: str = ""  # standalone SVG


@dataclass(frozen=True)
class Code:
    """Something to type, or as it was typed."""

    text: str


@dataclass(frozen=True)
class Card:
    """One case: closed, a line; open, everything known of it."""

    id: str
    title: str
    mark: Cell
    brief: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Fold:
    """Blocks that open on demand."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Banner:
    """What it comes to, at a glance."""

    headline: str
    tone: Tone
    lede: str
    counts: tuple[tuple[int, str, Tone], ...]
    about: tuple[str, ...]  # suite, date, machine
    command: str
    exit_code: str
    notes: tuple[str, ...] = ()


Block = Banner | Line | Lines | Facts | Grid | Picture | Drawing | Code | Card | Fold


@dataclass(frozen=True)
class Section:
    """One part of a report. Printed, it is text; `markdown()` and `html()` are the other forms."""

    id: str
    title: str
    blocks: tuple[Block, ...] = ()
    lede: str = ""
    absent: str = ""  # why there is nothing in it, and how to get it

    def text(self) -> str:
        from tritium.see.reports.text import section_text

        return section_text(self)

    def markdown(self) -> str:
        from tritium.see.reports.text import section_markdown

        return section_markdown(self)

    def html(self) -> str:
        """A piece of a page, without style or script."""
        from tritium.see.reports.html import section_html

        return section_html(self)

    def __str__(self) -> str:
        return self.text()


def absent(id: str, title: str, why: str) -> Section:
    return Section(id, title, absent=why)


# ---- what a report is made from


@dataclass(frozen=True, eq=False)
class Given:
    """Everything a report may tell of. Only the results must be there."""

    results: Results
    verdicts: Suite | None = None
    baseline: Results | None = None
    trends: Mapping[tuple[str, str], Trend] = field(default_factory=dict)  # of a case on an arm
    profile: Profile | None = None
    before: Profile | None = None  # the profile it is compared with
    memory: Memory | None = None  # of a tracked run
    selftest: Selftest | None = None
    no_history: str = ""  # why a history that was asked for shows nothing
    sha256: str = ""  # in the file of the results; "": they came from no such file

    @property
    def imported(self) -> bool:
        """Measured by others: the plan, the command and the threads are not known."""
        return self.results.kind == IMPORTED

    @cached_property
    def cases(self) -> tuple[str, ...]:
        return tuple(case for case in self.results.cases if not is_canary(case))

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for run in self.results.runs if not is_canary(run.case))

    @cached_property
    def by_key(self) -> dict[tuple[str, str], Run]:
        return {run.key: run for run in reversed(self.results.runs)}

    def of(self, case: str, arm: str) -> Run | None:
        return self.by_key.get((case, arm))

    @cached_property
    def revisions(self) -> tuple[str, str] | None:
        """The arms of the old and the new revision, where the verdicts are of two in one measurement."""
        judged = self.verdicts.verdicts if self.verdicts is not None else ()
        return next(((v.base_arm, v.arm) for v in judged if v.base_arm != v.arm), None)

    @property
    def first(self) -> str:
        """The arm the page speaks of: the one the others stand beside; of two revisions the new one."""
        if self.revisions is not None:
            return self.revisions[1]
        return self.results.arms[0] if self.results.arms else ""

    @cached_property
    def beside(self) -> dict[str, Suite]:
        """For each other arm, how the first compares with it; ratios are first / other. None where arms are revisions."""
        return {} if self.revisions is not None else tables.speedups(self.results)

    @cached_property
    def against(self) -> dict[tuple[str, str], Verdict]:
        """The verdict of a case beside another arm."""
        return {(v.case, arm): v for arm, s in self.beside.items() for v in s.verdicts if v.metric == "wall"}

    @cached_property
    def judged(self) -> dict[str, tuple[Verdict, ...]]:
        """The gate's verdicts of each case."""
        out: dict[str, list[Verdict]] = {}
        for v in self.verdicts.verdicts if self.verdicts is not None else ():
            out.setdefault(v.case, []).append(v)
        return {case: tuple(found) for case, found in out.items()}


def anchor(case: str) -> str:
    """The place of a case on the page."""
    return "case-" + escape.file_name(case)


def standing(v: Verdict | None) -> str:
    """How the first arm stands beside another: an outcome by its interval and by the share of false differences allowed."""
    if v is None or v.ratio is None:
        return "MISSING" if v is not None and v.outcome == "MISSING" else ""
    between = tables.told_apart(v.interval95)
    if between is None or between[0] <= 1 <= between[1] or (v.q is not None and v.q > FALSE_SHARE):
        return "INCONCLUSIVE"
    return "FASTER" if v.ratio < 1 else "SLOWER"


def share(run: Run, results: Results) -> float | None:
    """The least time the machine's ceilings allow to the time it took; None where they are not known."""
    limits, seconds = results.environment.limits, run.seconds
    if limits is None or not seconds or run.status != "ok" or not (run.work.flops or run.work.moved):
        return None
    least = limits.least_s(run.work.flops, run.work.moved, run.work.integer)
    return None if least is None else least / seconds


def half_widths(given: Given) -> list[float]:
    """Half the interval of every time, as a share of it."""
    walls = [wall for run in given.runs if (wall := run.of("wall")) is not None and wall.median]
    found = [(wall.median, tables.time_interval(wall)) for wall in walls]
    return [(between[1] - between[0]) / 2 / middle for middle, between in found if between is not None and middle]


def many(count: int, noun: str) -> str:
    """1 case, 2 cases, 3 processes."""
    ending = "" if count == 1 else "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count:,} {noun}{ending}"


def threads_text(hard: Hard) -> str:
    """How many threads measured; nothing where nobody tells."""
    return many(hard.threads, "thread") if hard.threads else ""


def verb(count: int, one: str, more: str) -> str:
    """1 is, 2 are; 1 has, 2 have."""
    return one if count == 1 else more


def percent(part: float, places: int = 0) -> str:
    """A share as tables write it: 9 %, <1 %."""
    least = 0.01 / 10**places
    return f"{100 * part:.{places}f} %" if part >= least or not part else f"<{100 * least:g} %"

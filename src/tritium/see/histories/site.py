"""A site of all histories in one folder: an overview, a page for every case with each machine, badges, and the data.

Pages link to each other by relative names and load nothing: the folder works from a file, from any server and from GitHub
Pages. What is written is the same for the same history.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritium.errors import ArgumentError
from tritium.escape import file_name
from tritium.machine.files import named, write_text
from tritium.perf.gate.page import amount
from tritium.perf.records.json_io import dumps
from tritium.perf.store.history import History
from tritium.perf.store.machines import Machine, by_machine, machine_of
from tritium.perf.store.trends import LEAST_RUNS, Trend, describe, disturbed, sensitivity
from tritium.perf.work.canary import is_canary
from tritium.see.histories.badge import overall, state_of, svg
from tritium.see.reports import html
from tritium.see.reports.blocks import Banner, Block, Cell, Code, Contents, Grid, Line, Picture, Span, Tone
from tritium.see.reports.resources import date_labels, trend_chart

PICTURES = 4  # charts of the overview
CHANGES = 50  # rows of the overview's list of changes
MARK = "site.json"  # the data of the site; a folder without it is not overwritten


@dataclass(frozen=True)
class Story:
    """One case on one contender: its trend on every machine."""

    case: str
    metric: str
    arm: str
    machines: tuple[tuple[Machine, Trend], ...]  # the one with the newest run first

    @property
    def page(self) -> str:
        return f"{file_name(f'{self.case} {self.arm} {self.metric}')}.html"

    @property
    def title(self) -> str:
        extra = [self.arm] * (self.arm not in ("tritium", "project")) + [self.metric] * (self.metric != "wall")
        return " · ".join([self.case, *extra])


@dataclass(frozen=True)
class Site:
    """The counts of a written site."""

    pages: int
    cases: int
    size: int


def stories(history: History, metrics: Sequence[str] = ("wall",)) -> list[Story]:
    """Return every case that the history has in these metrics."""
    listed = []
    for case, metric, arm in history.cases():
        if metric in metrics and not is_canary(case):
            trends = by_machine(history, case, metric, arm)
            machines = tuple((machine_of(history, f, t.points, len(t.steps)), t) for f, t in trends.items())
            listed.append(Story(case, metric, arm, machines))
    return listed


def write_site(history: History, folder: Path, title: str, metrics: Sequence[str] = ("wall",)) -> Site:
    """Write the pages, badges and data of a history into a folder; pages of cases that are gone are removed."""
    _check(folder)
    every = stories(history, metrics)
    if not every:
        raise ArgumentError(f"{named(history.folder)}: no runs; tritium history run A..B measures some.")
    texts = {
        "index.html": overview(every, title),
        ".nojekyll": "",
        "badges/all.svg": _badge_of_all(history, metrics[0]),
    }
    for story in every:
        texts[f"cases/{story.page}"] = case_page(story, title)
        state = state_of(story.machines[0][1])
        texts[f"badges/{Path(story.page).stem}.svg"] = svg(story.case, state.text, state.tone)
    texts[MARK] = dumps({"title": title, "stories": every}, indent=1) + "\n"
    for place in ("cases", "badges"):
        for file in (folder / place).glob("*.*"):
            if f"{place}/{file.name}" not in texts:
                file.unlink()
    for name, text in texts.items():
        write_text(folder / name, text, parents=True)
    return Site(1 + len(every), len(every), sum(len(t.encode()) for t in texts.values()))


def _check(folder: Path) -> None:
    """Raise ArgumentError rather than write over something else."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise ArgumentError(f"{named(folder)}: there are files in it that are no site of histories; name a new folder.")


def _badge_of_all(history: History, metric: str) -> str:
    state = overall(history, metric)
    return svg("performance", state.text, state.tone)


# ---- the overview


def overview(every: Sequence[Story], title: str) -> str:
    """Return the page of all cases: what changed first, then every case."""
    ranked = sorted(every, key=_rank)
    changes = _changes(every)
    pictures: list[Block] = [
        Picture(f"{s.page}", trend_chart(s.title, s.machines[0][0].label, s.machines[0][1]))
        for s in ranked[:PICTURES]
        if s.machines[0][1].steps
    ]
    blocks: tuple[Block, ...] = (
        (*pictures, changes) if changes.rows else (Line("No history has a change point.", "fine"),)
    )
    best = "The last level of each case against its best of 90 days, on the machine with the newest run."
    badges = (Code("![performance](badges/all.svg)"), Line("The folder badges/ has one for every case."))
    sections = [
        Contents("verdict", "Overview", (_banner(every, title),)),
        Contents("changes", "Changes", blocks, "Steps of a level, newest first: change points, not noise."),
        Contents("histories", "Cases", (_table(every),), best),
        Contents("badges", "Badges", badges),
    ]
    return html.page(f"{title}: histories", sections, _footer(every))


def _rank(story: Story) -> tuple[float, str]:
    trend = story.machines[0][1]
    return -max((abs(math.log(s.ratio)) for s in trend.steps), default=0.0), story.title


def _banner(every: Sequence[Story], title: str) -> Banner:
    trends = [s.machines[0][1] for s in every]
    slower = sum(t.against_best.low > 1 for t in trends)
    faster = sum(bool(t.steps) and t.steps[-1].ratio < 1 and t.against_best.low <= 1 for t in trends)
    decided = slower or any(len(t.points) >= LEAST_RUNS for t in trends)
    headline = "No case is slower than its best" if decided else "Too few runs to show a step"
    if slower:
        headline = f"{slower} of {len(every)} cases slower than their best"
    machines = {m.fingerprint for s in every for m, _ in s.machines}
    runs = {p.run for s in every for _, t in s.machines for p in t.points}
    last = max(t.points[-1].created for t in trends)
    tone: Tone = "bad" if slower else "good" if decided else ""
    return Banner(
        f"{title}: {headline}", tone, f"{sensitivity(trends).capitalize()}.",
        ((slower, "slower", "bad"), (faster, "faster since", "good"), (len(every) - slower - faster, "level", "")),
        (f"{len(runs)} runs", f"{len(machines)} machine{'s' * (len(machines) != 1)}", f"until {last[:10]}"), "", "",
    )  # fmt: skip


def _changes(every: Sequence[Story]) -> Grid:
    """Return the change points of all cases, newest first; machines are named where there are several."""
    steps = [(step, s, m) for s in every for m, t in s.machines for step in t.steps]
    steps.sort(key=lambda row: (row[0].point.created, abs(math.log(row[0].ratio))), reverse=True)
    several = len({m.fingerprint for s in every for m, _ in s.machines}) > 1
    rows = tuple(
        (
            Cell(s.title, page=f"cases/{s.page}"),
            Cell(f"{100 * (step.ratio - 1):+.1f} %", "bad" if step.ratio > 1 else "good", step.ratio),
            Cell(step.point.commit[:10] or "-"), Cell(step.point.created[:10]), *([Cell(m.label, "quiet")] * several),
        )
        for step, s, m in steps[:CHANGES]
    )  # fmt: skip
    heads = ("case", "change", "from", "when", *["machine"] * several)
    return Grid(heads, rows, frozenset({"change"}), "Change points", filtered=True)


def _table(every: Sequence[Story]) -> Grid:
    heads = ("case", "now", "against its best", "", "runs", "last run", "machines")
    rows = []
    for s in every:
        t = s.machines[0][1]
        a = t.against_best
        unit = t.points[-1].unit
        rows.append((
            Cell(s.title, page=f"cases/{s.page}"), Cell(amount(t.last.value, unit), sort=t.last.value),
            Cell(f"{100 * (a.ratio - 1):+.1f} %", "bad" if a.low > 1 else "", a.ratio), Cell("", span=Span(a.ratio, a.low, a.high)),
            Cell(str(len(t.points)), sort=float(len(t.points))), Cell(t.points[-1].created[:10]),
            Cell(str(len(s.machines)), sort=float(len(s.machines))),
        ))  # fmt: skip
    right = frozenset({"now", "against its best", "runs", "machines"})
    return Grid(heads, tuple(rows), right, "Every case", filtered=True, ends=("faster", "slower"))


# ---- one case


def case_page(story: Story, title: str) -> str:
    """Return the page of one case: each machine with its chart, levels and runs."""
    newest = story.machines[0][1]
    state = state_of(newest)
    tones: dict[str, Tone] = {"good": "good", "bad": "bad"}
    facts = (f"{len(newest.points)} runs", f"{len(story.machines)} machine{'s' * (len(story.machines) != 1)}")
    banner = Banner(story.title, tones.get(state.tone, ""), "; ".join(describe(newest)[:3]), (), facts, "", "")
    sections = [Contents("verdict", story.title, (banner,))]
    for machine, t in story.machines:
        chart = trend_chart(story.title, machine.label, t)
        blocks: tuple[Block, ...] = (Picture(f"{story.page}-{machine.fingerprint}", chart), _runs(t))
        lede = f"{machine.cpu}, {machine.threads} threads."
        sections.append(Contents(f"m-{machine.fingerprint[:8]}", machine.label, blocks, lede))
    sections.append(
        Contents("back", "All cases", (Grid((title,), ((Cell("Overview of all cases", page="../index.html"),),)),))
    )
    return html.page(f"{story.title}: {title}", sections, _footer([story]), home="../index.html", noun="run")


def _runs(t: Trend) -> Grid:
    """Return the runs of a trend, newest first; few and short columns, because phones show them too."""
    changes = {s.index: s.ratio for s in t.steps}
    unit, when, busy = t.points[-1].unit, date_labels(t), disturbed(t.points)
    rows = tuple(
        (
            Cell(p.commit[:7] or p.run), Cell(when[i], tip=p.created), Cell(amount(p.value, unit), sort=p.value),
            Cell(f"{100 * math.expm1((p.high - p.low) / 2):.1f} %", sort=p.high - p.low), _change(changes.get(i), i in busy),
        )
        for i, p in reversed(list(enumerate(t.points)))
    )  # fmt: skip
    heads = ("commit", "when", "value", "±", "changed")
    return Grid(
        heads,
        rows,
        frozenset({"value", "±", "changed"}),
        "Runs, newest first; ±: half of the 95 % interval",
        filtered=True,
    )


def _change(ratio: float | None, busy: bool) -> Cell:
    """Return the step that begins at a point, or that other load disturbed its run more than usual."""
    if ratio is not None:
        return Cell(f"{100 * (ratio - 1):+.1f} %", "bad" if ratio > 1 else "good", ratio)
    return Cell("disturbed" if busy else "", "unsure")


def _footer(every: Sequence[Story]) -> str:
    last = max(t.points[-1].created for s in every for _, t in s.machines)
    return f"Histories until {last}, written by Tritium. Times are medians with 95 % intervals."

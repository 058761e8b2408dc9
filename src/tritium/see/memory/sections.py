"""The page of tracked memory as sections: charts, and every part that a terminal shows.

The tables are those of `see.memory.page`, so that no format has less than another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from tritium.machine.facts import bytes_text, seconds_text
from tritium.perf.amounts import many
from tritium.perf.tables.table import Table
from tritium.see.charts import charts
from tritium.see.memory import page
from tritium.see.memory.records import Allocation, Record
from tritium.see.reports.blocks import Banner, Block, Cell, Grid, Line, Lines, Picture, Tone, figure_cell
from tritium.see.reports.html import page as html_page
from tritium.see.reports.sections import Section

ROWS = 100  # of a table
HOLDERS = 5  # operations with a colour of their own; with the three sums, all eight colours


def html(m: Record) -> str:
    """Return the page as one file that needs no network."""
    footer = f"Written by Tritium from memory tracked at {m.began}. Offline, and the same bytes from the same record."
    return html_page(f"{m.name or 'memory'} · Tritium", sections(m), footer, noun="operation", home="#memory")


def sections(m: Record) -> tuple[Section, ...]:
    """Return the sections of the page, in reading order."""
    tabled = [(part.title, part) for part in page.parts(m, ROWS)]
    sections = [Section("memory", "Memory", (_banner(m),)), Section("time", "Over time", tuple(_pictures(m)))]
    for title, part in tabled:
        if title.startswith(page.COURSE):
            continue  # the chart has it
        head = title or "Devices"
        sections.append(Section(_anchor(head), head, tuple(_blocks(part, titled=False))))
    return tuple(s for s in sections if s.blocks)


def blocks(m: Record) -> tuple[Block, ...]:
    """Return everything as the blocks of one section, for a report."""
    tables = [part for part in page.parts(m, ROWS) if not part.title.startswith(page.COURSE)]
    return (*_pictures(m), *(b for part in tables for b in _blocks(part, titled=True)))


def _anchor(title: str) -> str:
    return "m-" + re.sub(r"[^a-z]+", "-", title.lower().split(":")[0]).strip("-")


def _banner(m: Record) -> Banner:
    peaks = [f"{d.device}: peak {bytes_text(d.peak)}, {bytes_text(d.current)} at the end" for d in m.devices]
    leaked = sum(a.nbytes for a in m.leaks)
    tone: Tone = "bad" if m.leaks else ""
    head = f"{m.name or 'Memory'}: {bytes_text(max((d.peak for d in m.devices), default=0))} at the peak"
    lede = f"{many(len(m.leaks), 'allocation')} outlived it: {bytes_text(leaked)}." if m.leaks else ""
    facts = (m.began, seconds_text(m.elapsed_ns / 1e9), many(sum(d.allocations for d in m.devices), "allocation"))
    return Banner(head, tone, lede, (), facts, "", "", (*peaks, str(m.pressure), *m.notes))


def _blocks(part: page.Part, titled: bool) -> Iterator[Block]:
    """Yield a part of the terminal's page as a table with its notes, or as sentences."""
    if isinstance(part, Table):
        rows = tuple(
            tuple(
                figure_cell(text) if head in part.right else Cell(text)
                for text, head in zip(row, part.heads, strict=True)
            )
            for row in part.rows
        )
        ordered = _named_first(Grid(part.heads, rows, part.right, (part.title or "Devices") if titled else ""))
        yield ordered
        if part.below:
            yield Lines(tuple(Line(text, "quiet") for text in part.below))
        return
    if titled:
        yield Line(part.title, "quiet")
    yield Lines(tuple(Line(line) for line in part.lines))


def _named_first(grid: Grid) -> Grid:
    """Return the table with the columns of names before those of figures: a row is found by its name."""
    names = [i for i, head in enumerate(grid.heads) if head not in grid.right]
    names.sort(key=lambda i: grid.heads[i] != "line")
    order = [*names, *(i for i in range(len(grid.heads)) if i not in names)]
    heads = tuple(grid.heads[i] for i in order)
    return Grid(
        heads, tuple(tuple(row[i] for i in order) for row in grid.rows), grid.right, grid.caption, filtered=True
    )


# ---- charts


def _pictures(m: Record) -> Iterator[Block]:
    name = m.name or "the tracked run"
    tracks = []
    for use in m.devices:
        line = m.timeline(use.device)
        times_s = tuple(float(t) * 1e-9 for t in line.at_ns)
        limit = float(use.limit) if use.limit and use.limit < 4 * use.peak else None
        layer = charts.Layer("live", tuple(float(v) for v in line.values))
        tracks.append(
            charts.Track(use.device, "B", times_s, (layer,), "step", limit, "limit" if limit else "", line.absent)
        )
    if tracks:
        yield Picture(
            "memory-over-time",
            charts.OverTime(
                f"Memory of {name}", tuple(tracks), end_s=m.elapsed_ns * 1e-9, subtitle="live bytes over time"
            ),
        )
    if m.at_peak.nbytes:
        yield Picture("memory-by-operation", _holders(m, name), told=True)


def _holders(tracked: Record, name: str) -> charts.Stacks:
    """Return the chart of CPU memory by operation, at the peak and after the run."""
    peak, use = tracked.at_peak, tracked.use()
    largest = [op for op, _ in _by_op(peak.allocations).most_common(HOLDERS)]
    rest = (charts.Part("before it began", peak.earlier), charts.Part("not listed", peak.missing))
    at_peak = (*_parts(peak.allocations, largest), *(p for p in rest if p.value))
    leaked = _parts([a for a in tracked.leaks if a.device == "cpu"], largest)
    return charts.Stacks(
        f"What holds the memory of {name}",
        (charts.Stack("at the peak", at_peak), charts.Stack("outlived it", leaked, "nothing")),
        "B",
        None if use is None else use.limit,
        "bytes of the CPU by the operation that allocated them",
    )


def _by_op(allocations: Sequence[Allocation]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for a in allocations:
        sums[a.op or "no operation"] += a.nbytes
    return sums


def _parts(allocations: Sequence[Allocation], largest: Sequence[str]) -> tuple[charts.Part, ...]:
    """Return the operations named, in their order, and all others together."""
    sums = _by_op(allocations)
    parts = [charts.Part(op, sums.pop(op)) for op in largest if op in sums]
    return (*parts, charts.Part("other operations", sums.total())) if sums else tuple(parts)

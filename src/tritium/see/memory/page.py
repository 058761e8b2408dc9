"""The report of a memory tracker: text for a terminal, or Markdown for a pull request.

Names from users are escaped for their target; what was not measured is marked as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tritium import escape
from tritium.machine.facts import bytes_text, seconds_text
from tritium.perf.amounts import rate_text
from tritium.perf.tables.table import Table
from tritium.see.memory.records import Allocation, Record

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60
NONE = "-"
COURSE = "Over time"


@dataclass(frozen=True)
class Lines:
    """A part of the page that is not a table."""

    title: str
    lines: tuple[str, ...]

    def text(self) -> str:
        return "\n".join([self.title, "", *(escape.terminal(line, None) for line in self.lines)])

    def markdown(self) -> str:
        return "\n".join([f"### {self.title}", "", *(f"- {escape.markdown(line, None)}" for line in self.lines)])

    def _repr_html_(self) -> str:
        listed = "".join(f"<li>{escape.html(line)}</li>" for line in self.lines)
        return f"<div>{escape.html(self.title)}</div><ul>{listed}</ul>"


Part = Table | Lines


def text(m: Record, top: int = 10) -> str:
    """Return the page for a terminal."""
    return "\n\n".join([_title(m, escape.terminal), *(p.text() for p in parts(m, top))]) + "\n"


def markdown(m: Record, top: int = 10) -> str:
    """Return the page for a pull request or a report."""
    return "\n\n".join([f"## {_title(m, escape.markdown)}", *(p.markdown() for p in parts(m, top))]) + "\n"


def html(m: Record, top: int = 5) -> str:
    """Return the page for a notebook: shorter than that for a terminal."""
    return "".join([f"<b>{_title(m, escape.html)}</b>", *(p._repr_html_() for p in parts(m, top))])


def _title(m: Record, escaped: Callable[[str], str]) -> str:
    name = f" of {escaped(m.name)}" if m.name else ""
    return f"Memory{name}: {seconds_text(m.elapsed_ns / 1e9)}, from {escaped(m.began)}"


def parts(m: Record, top: int = 10) -> list[Part]:
    """Return the parts that are not empty, in order."""
    candidates: Iterable[Part | None] = (
        _devices(m), _course(m), _sites(m, top), _at_peak(m, top), _leaks(m, top), _moved(m), _python(m, top),
        _pool(m), _advice(m),
    )  # fmt: skip
    return [p for p in candidates if p is not None]


def _devices(m: Record) -> Table:
    rows = tuple(
        (
            d.device, bytes_text(d.start), bytes_text(d.peak), bytes_text(d.current), _signed(d.net), str(d.allocations),
            f"{d.reused / d.allocations:.0%}" if d.allocations else NONE, str(d.frees),
            f"{bytes_text(d.used)} of {bytes_text(d.limit)}" if d.used is not None and d.limit is not None else NONE,
        )
        for d in m.devices
    )  # fmt: skip
    heads = (
        "device",
        "at start",
        "peak",
        "at end",
        "net",
        "allocations",
        "from idle blocks",
        "frees",
        "in use of the limit",
    )
    notes = [str(m.pressure)]
    flagged = (
        (m.unknown_frees, "freed manually without an allocation"),
        (m.repeated_ids, "allocated manually under an id that was alive; the older one counts as freed"),
    )
    for ids, what in flagged:
        if ids:
            listed = ", ".join(escape.visible(i, 40) for i in ids[:5])
            notes.append(f"flagged: {len(ids)} {'buffer was' if len(ids) == 1 else 'buffers were'} {what}: {listed}")
    return Table("", heads, rows, frozenset(heads[1:]), (*notes, *(f"note: {n}" for n in m.notes)))


def _signed(n: int) -> str:
    return f"-{bytes_text(-n)}" if n < 0 else f"+{bytes_text(n)}"


def _course(m: Record) -> Lines | None:
    """Return a sparkline of the live bytes over time: the maximum of each interval."""
    course = m.timeline()
    if len(course.values) < 2:
        return None
    times, values = course.at_ns, course.values
    least, most = values.min(), values.max()
    columns = np.minimum(WIDTH - 1, times * WIDTH // max(1, m.elapsed_ns))
    last, bars = values[0], ""
    for i in range(WIDTH):
        inside = values[columns == i]
        height = max(last, inside.max(initial=last))
        last = inside[-1] if len(inside) else last
        bars += BARS[round((len(BARS) - 1) * (height - least) / (most - least))] if most > least else BARS[0]
    return Lines(f"{COURSE} (cpu)", (f"{bytes_text(int(least))} {bars} {bytes_text(int(most))}",))


def _sites(m: Record, top: int) -> Table | None:
    if not m.sites:
        return None
    heads = ("bytes", "times", "mean size", "from idle blocks", "still alive", "op", "line")
    rows = tuple(
        (
            bytes_text(s.nbytes), str(s.count), bytes_text(round(s.mean)), f"{s.reused / s.count:.0%}" if s.count else NONE,
            bytes_text(s.live) if s.live else NONE, s.op or NONE, s.site or NONE,
        )
        for s in m.sites[:top]
    )  # fmt: skip
    return Table("Largest allocators", heads, rows, frozenset(heads[:5]), _more(len(m.sites), top, "ops and lines"))


def _at_peak(m: Record, top: int) -> Table | None:
    peak = m.at_peak
    if not peak.allocations and not peak.missing:
        return None
    heads = ("bytes", "of the peak", "blocks", "block size", "op", "line")
    groups = _group(peak.allocations)
    rows = tuple(
        (
            bytes_text(nbytes * len(group)), f"{nbytes * len(group) / peak.nbytes:.0%}", str(len(group)), bytes_text(nbytes),
            group[0].op or NONE, group[0].id or group[0].site or NONE,
        )
        for nbytes, group in groups[:top]
    )  # fmt: skip
    earlier = [f"{bytes_text(peak.earlier)} were alive before tracking began"] if peak.earlier else []
    notes = [*_more(len(groups), top, "kinds"), *earlier]
    return Table(
        f"Alive at the peak of {bytes_text(peak.nbytes)}", heads, rows, frozenset(heads[:4]),
        (*notes, *([peak.note] if peak.note else [])),
    )  # fmt: skip


def _group(allocations: Sequence[Allocation]) -> list[tuple[int, list[Allocation]]]:
    """Group allocations of one size, op and line, the most bytes first."""
    groups: dict[tuple[int, str, str, str], list[Allocation]] = {}
    for a in allocations:
        groups.setdefault((a.nbytes, a.op, a.site, a.id), []).append(a)
    return sorted(((k[0], group) for k, group in groups.items()), key=lambda g: -g[0] * len(g[1]))


def _leaks(m: Record, top: int) -> Table | None:
    if not m.leaks:
        return None
    heads = ("bytes", "blocks", "oldest", "op", "line", "thread")
    groups = _group(m.leaks)
    rows = tuple(
        (
            bytes_text(nbytes * len(group)), str(len(group)), seconds_text(max(a.age_ns for a in group) / 1e9), group[0].op or NONE,
            group[0].id or group[0].site or NONE, group[0].thread,
        )
        for nbytes, group in groups[:top]
    )  # fmt: skip
    total = bytes_text(sum(a.nbytes for a in m.leaks))
    return Table(
        f"Still alive at the end: {total}", heads, rows, frozenset(heads[:3]), _more(len(groups), top, "kinds")
    )


def _moved(m: Record) -> Table | None:
    if not m.moved:
        return None
    heads = ("from", "to", "times", "bytes", "rate")
    rows = tuple(
        (t.source, t.target, str(t.count), bytes_text(t.nbytes), rate_text(t.rate, "B") if t.rate else "not timed")
        for t in m.moved
    )
    return Table("Transfers", heads, rows, frozenset(heads[2:]))


def _python(m: Record, top: int) -> Table | None:
    if m.python is None:
        return None
    rows = tuple((bytes_text(s.nbytes), str(s.count), s.site) for s in m.python.sites[:top])
    title = f"Python's own objects: {bytes_text(m.python.current)}, at most {bytes_text(m.python.peak)}"
    return Table(title, ("grown by", "objects", "line"), rows, frozenset(("grown by", "objects")))


def _pool(m: Record) -> Lines:
    i = m.idle
    if not i.nbytes:
        return Lines("The pool", ("no idle blocks",))
    blocks = ", ".join(
        f"{n} × {bytes_text(size)}" if size else f"{n} large" for size, n in sorted(i.classes, reverse=True)[:8]
    )
    return Lines(
        "The pool",
        (
            f"{bytes_text(i.nbytes)} idle in {i.blocks} blocks, the largest {bytes_text(i.largest)}: fragmentation "
            f"{i.fragmentation:.0%}; limit {bytes_text(i.limit)}",
            f"free blocks: {blocks}{' …' if len(i.classes) > 8 else ''}",
        ),
    )


def _advice(m: Record) -> Lines | None:
    if not m.advice:
        return None
    return Lines(
        "What would save memory",
        tuple(f"{bytes_text(a.potential_savings)} of {a.of} ({a.priority}): {a.description}" for a in m.advice),
    )


def _more(count: int, top: int, what: str) -> tuple[str, ...]:
    return (f"… and {count - top} more {what}",) if count > top else ()

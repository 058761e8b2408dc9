"""The page of a profile as sections: the timeline, and everything that a terminal shows, with charts and flame graphs.

Every share names what it is of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tritium.escape import terminal
from tritium.perf.amounts import many, rate_text, seconds_text
from tritium.perf.tables.table import NONE
from tritium.see.charts import charts
from tritium.see.profile import critical, page, roofline
from tritium.see.profile.hotspots import percent
from tritium.see.profile.op_table import OpRow, kernel_rows, lane_time_ns, used_lanes
from tritium.see.reports.blocks import Banner, Block, Cell, Drawing, Fold, Grid, Line, Lines, Picture
from tritium.see.reports.html import page as html_page
from tritium.see.reports.machine import machine
from tritium.see.reports.sections import Section
from tritium.see.timelines import view
from tritium.see.timelines.gaps import Gap, Wait, find_gaps, gap_lines, sum_gaps
from tritium.see.trace import flame, folded
from tritium.see.trace.timeline import Counter, Timeline
from tritium.see.trace.tree import Node

if TYPE_CHECKING:
    from tritium.see.profile.profile import Profile

OPS = 200  # rows of a table
WAITS = 40
SPOTS = 10
NODES = 12  # of a flame graph as text
KINDS = {
    "item": "waits for an item", "room": "waits for room", "wake": "handover", "launch": "waits for a call",
    "python": "by the samples", "unknown": "no evidence",
}  # fmt: skip
TITLES = {
    "operations": "Operations", "kernels": "GPU kernels", "hotspots": "Hotspots", "bounds": "What bounds it", "critical": "Critical path",
    "gaps": "Gaps", "calls": "Call tree", "stacks": "Python stacks", "roofline": "Roofline", "counters": "Counters",
    "notes": "Notes",
}  # fmt: skip
LEDES = {
    "operations": "Shares are own time, of {whole}.",
    "kernels": "Times on the streams of the GPU, recorded by its driver; shares are of the run.",
    "hotspots": "By what could be gained: the share of the run that would be saved at the ceiling.",
    "bounds": "Shares are of {whole}.",
    "critical": "The longest chain of work that waited for each other; its parts are shares of the path.",
    "gaps": "Times without a span between two spans of a lane, and what was waited for.",
    "calls": "Width is time in spans; a tooltip has the share of the run too.",
    "stacks": "Samples at their true times: each counts as the time since the one before.",
}


def html(p: Profile) -> str:
    """Return the page as one file that needs no network."""
    t = p.timeline
    title = f"{t.name or 'profile'} · Tritium"
    footer = f"Written by Tritium from a profile of {t.began or 'an unknown time'}. Offline, and the same bytes from the same profile."
    return html_page(title, sections(p), footer, noun="operation", flames=True, home="#profile")


def sections(p: Profile) -> tuple[Section, ...]:
    """Return the sections of a profile's own page, in reading order; empty ones are left out."""
    t, gaps = p.timeline, find_gaps(p.timeline)
    lede = "A row for each thread and device. Names have the colours of the flame graph below."
    every = (
        Section("profile", "Profile", (_banner(p),)),
        Section("timeline", "Timeline", (_timeline(t, gaps),), lede),
        *parts(p, gaps, beside_timeline=True),
        Section("environment", "Environment", () if t.environment is None else tuple(machine(t.environment))),
    )
    return tuple(s for s in every if s.blocks)


def parts(p: Profile, gaps: Sequence[Gap] | None = None, *, beside_timeline: bool = False) -> tuple[Section, ...]:
    """Return what the terminal shows, as sections; a report has them below its own heading.

    `beside_timeline`: the page has a timeline, to which gaps lead.
    """
    t = p.timeline
    waits = sum_gaps(find_gaps(t) if gaps is None else gaps)
    blocks: dict[str, Iterable[Block]] = {
        "operations": _operations(p), "kernels": _kernels(t), "hotspots": _hotspots(p), "bounds": [_listed(p.bottlenecks().lines(brief=True))],
        "critical": _critical(p), "gaps": _gaps(t, waits, beside_timeline), "calls": _calls(p), "stacks": _stacks(t),
        "roofline": _roofline(p), "counters": _counters(t), "notes": [_listed(t.notes)] if t.notes else [],
    }  # fmt: skip
    every = (
        Section(name, TITLES[name], tuple(part), LEDES.get(name, "").format(whole=page.whole_text(t)))
        for name, part in blocks.items()
    )
    return tuple(s for s in every if s.blocks)


def _listed(lines: Sequence[str]) -> Lines:
    return Lines(tuple(Line(line.strip()) for line in lines))


def _banner(p: Profile) -> Banner:
    t, bounds = p.timeline, p.bottlenecks()
    facts = [t.began, f"{many(len(t), 'span')} on {many(len(t.lanes), 'lane')}"]
    if t.environment is not None:
        facts += [t.environment.hard.cpu, many(t.environment.hard.threads, "thread")]
    lede = bounds.lines(brief=True)[-1] if bounds.main else ""
    path, cost = critical.critical_path(t), page.head(t).splitlines()[-1]
    head = f"{t.name or 'Profile'}: {seconds_text(p.seconds)}"
    on_path = f"critical path: {seconds_text(path.total_ns * 1e-9)}, {percent(path.share)} of the run"
    notes = (on_path, cost, *t.notes[:3])
    return Banner(head, "", lede, (), tuple(filter(None, facts)), "", "", notes)


def _timeline(t: Timeline, gaps: Sequence[Gap]) -> Block:
    lines = [f"{many(len(t), 'span')} on {many(len(t.lanes), 'lane')}: {', '.join(t.lanes[:8])}"]
    return view.block(t, gaps, critical.path_pieces(t), lines)


# ---- operations

HEADS = (
    "operation", "calls", "total", "own", "{}", "mean", "p50", "p95", "p99", "rate", "bytes", "of ceiling", "bound", "score",
)  # fmt: skip


def _operations(p: Profile) -> Iterator[Block]:
    if not (rows := p.ops()):
        return
    yield _grid(p, rows, "Kernels, the longest first")
    if any(r.detail for r in p.ops("layer")):
        yield Fold("By layer of compiled functions", (_grid(p, p.ops("layer"), "Layers"),))
    if len(shapes := p.ops("specs")) > len(rows):
        yield Fold("By shape", (_grid(p, shapes, "Kernels and shapes"),))
    if scopes := p.scopes():
        yield Fold("Scopes and compiled programs", (_grid(p, scopes, "Scopes"),))
    if any(page.is_transcendental(r) for r in rows):
        yield Line(page.UNCOUNTED, "quiet")


def _kernels(t: Timeline) -> Iterator[Block]:
    rows = kernel_rows(t)
    if not rows:
        return
    heads = ("kernel", "calls", "total", "of the run", "mean", "p50", "p95", "p99")
    cells = tuple(
        (Cell(r.name), Cell(f"{r.count:,}", sort=float(r.count)), Cell(seconds_text(r.own_ns * 1e-9), sort=float(r.own_ns)),
         Cell(percent(r.share), sort=r.share),
         *(Cell(seconds_text(ns * 1e-9), sort=float(ns)) for ns in (r.mean_ns, r.p50_ns, r.p95_ns, r.p99_ns)))
        for r in rows[:OPS]
    )  # fmt: skip
    caption = "GPU kernels, the longest first" + (f", {OPS} of {len(rows)}" if len(rows) > OPS else "")
    yield Grid(heads, cells, frozenset(heads[1:]), caption, filtered=True)


def _grid(p: Profile, rows: Sequence[OpRow], caption: str) -> Grid:
    lanes = len(used_lanes(p.timeline))
    heads = tuple(h.format("of the run" if lanes < 2 else f"of {lanes} lanes") for h in HEADS)
    cells = tuple(_cells(r) for r in rows[:OPS])
    if len(rows) > OPS:
        caption += f", {OPS} of {len(rows)}"
    return Grid(heads, cells, frozenset(heads[1:]) - {"bound"}, caption, filtered=True)


def _cells(r: OpRow) -> tuple[Cell, ...]:
    name = f"{r.label} · {r.detail}" if r.detail else r.label
    times = (r.total_ns, r.own_ns)
    return (
        Cell(name), Cell(f"{r.count:,}", sort=float(r.count)), *(Cell(seconds_text(ns * 1e-9), sort=float(ns)) for ns in times),
        Cell(percent(r.share), sort=r.share),
        *(Cell(seconds_text(ns * 1e-9), sort=float(ns)) for ns in (r.mean_ns, r.p50_ns, r.p95_ns, r.p99_ns)),
        Cell(NONE if r.gflops is None else rate_text(r.gflops * 1e9, "OP" if r.integer else "FLOP"), sort=r.gflops),
        Cell(NONE if r.gbs is None else rate_text(r.gbs * 1e9, "B"), sort=r.gbs),
        Cell(">100 %" if r.overstated else NONE if r.ceiling_share is None else percent(r.ceiling_share), sort=r.ceiling_share),
        Cell(r.bound or NONE), Cell(NONE if r.score is None else f"{r.score:.0f}", sort=r.score, tip=r.why),
    )  # fmt: skip


def _hotspots(p: Profile) -> Iterator[Block]:
    spots = [r for r in p.hotspots(SPOTS) if r.share >= page.LEAST]
    scores = ["" if r.score is None else f" (score {r.score:.0f})" for r in spots]
    lines = [terminal(f"{r.label}: {r.why}{score}", None) for r, score in zip(spots, scores, strict=True)]
    if lines:
        yield _listed(lines)


# ---- waiting


def _critical(p: Profile) -> Iterator[Block]:
    path = p.critical_path()
    if not path.total_ns:
        return
    yield _listed(path.lines()[:1])
    rows = tuple(
        (Cell(name), Cell(seconds_text(ns * 1e-9), sort=float(ns)), Cell(percent(ns / path.total_ns), sort=float(ns)))
        for name, ns in path.parts[:WAITS]
    )
    yield Grid(("on the path", "time", "of the path"), rows, frozenset({"time", "of the path"}), filtered=True)
    if path.several and not path.known:
        yield Line(path.lines()[-1], "unsure")


def _gaps(t: Timeline, waits: Sequence[Wait], beside_timeline: bool) -> Iterator[Block]:
    if not waits:
        return
    rows = tuple(_wait_cells(t, w, beside_timeline) for w in waits[:WAITS])
    heads = ("lane", "kind", "reason", "gaps", "time", "of the run", "longest")
    yield Grid(
        heads,
        rows,
        frozenset(heads[3:]),
        "Gaps by lane and reason" + "; the longest leads to the timeline" * beside_timeline,
    )
    if len(waits) > WAITS:
        rest = sum(w.total_ns for w in waits[WAITS:])
        yield Line(f"{len(waits) - WAITS} more reasons: {seconds_text(rest * 1e-9)}.", "quiet")
    if t.samples is None and any(w.kind == "unknown" for w in waits):
        yield Line(gap_lines(t, waits)[-1], "quiet")


def _wait_cells(t: Timeline, w: Wait, beside_timeline: bool) -> tuple[Cell, ...]:
    longest_ns, link = w.longest.elapsed_ns, _shown(t, w.longest) if beside_timeline else ""
    return (
        Cell(t.lanes[w.lane]), Cell(KINDS[w.kind], "unsure" if w.kind == "unknown" else ""), Cell(w.reason),
        Cell(f"{w.gaps:,}", sort=float(w.gaps)), Cell(seconds_text(w.total_ns * 1e-9), sort=float(w.total_ns)),
        Cell(percent(w.total_ns / max(1, t.elapsed_total_ns)), sort=float(w.total_ns)),
        Cell(seconds_text(longest_ns * 1e-9), sort=float(longest_ns), link=link),
    )  # fmt: skip


def _shown(t: Timeline, gap: Gap) -> str:
    """Return the place on the page that shows a gap: the timeline, zoomed to it."""
    pad = gap.elapsed_ns // 2
    return f"timeline&tl={max(0, gap.start_ns - pad)}~{min(t.elapsed_total_ns, gap.end_ns + pad)}"


# ---- trees


def wholes(t: Timeline, root: Node) -> list[tuple[str, int]]:
    """Return what the shares of a call tree are of."""
    lanes = len(used_lanes(t))
    return [
        ("the time in spans", root.total_ns),
        ("the run" if lanes < 2 else f"the run on {lanes} lanes", lane_time_ns(t)),
    ]


def _calls(p: Profile) -> Iterator[Block]:
    t, root = p.timeline, p.tree()
    if not root.total_ns:
        return
    title, shares = t.name or "profile", wholes(t, root)
    drawn = flame.inline(root, wholes=shares)
    yield Drawing("flame", f"Flame graph of {title}", drawn, longest(root), flame.svg(root, title, wholes=shares))
    yield Fold("As a list", (_listed(page.tree_lines(root, OPS)),))


def longest(root: Node, most: int = NODES) -> tuple[str, ...]:
    """Return the nodes of a call tree with the longest own times, as text."""
    rows = sorted(root.walk(), key=lambda item: -item[1].own_ns)[:most]
    total_ns = max(root.total_ns, 1)
    return tuple(
        f"{' › '.join(path)}: {seconds_text(node.own_ns / 1e9)} ({percent(node.own_ns / total_ns)} of the time in it)"
        for path, node in rows
        if node.own_ns
    )


def _stacks(t: Timeline) -> Iterator[Block]:
    if t.samples is None or not len(t.samples.stack):
        return
    root, title = folded.build_sample_tree(t.samples), f"{t.name or 'profile'}: Python stacks"
    shares = [("the sampled time of all threads", root.total_ns)]
    drawn = flame.inline(root, key="stacks", wholes=shares)
    yield Drawing("stacks", title, drawn, longest(root), flame.svg(root, title, wholes=shares))
    yield _listed(page.stack_lines(t, NODES))


# ---- charts


def _roofline(p: Profile) -> Iterator[Block]:
    points = p.roofline()
    if points.points and points.roofs:
        yield Picture("roofline", roofline.plot(points, "Operations under the ceilings"))


def _counters(t: Timeline) -> Iterator[Block]:
    tracks = tuple(_track(c) for c in t.counters if len(c.values))
    if tracks:
        chart = charts.OverTime("Beside the spans", tracks, end_s=t.elapsed_total_ns * 1e-9, subtitle="on their clock")
        yield Picture("counters", chart)
    if t.counters:
        yield _listed([page.counter_line(c) for c in t.counters])


def _track(c: Counter) -> charts.Track:
    known = np.isfinite(c.values)
    times = tuple(float(ns) * 1e-9 for ns in c.at_ns[known])
    return charts.Track(c.name, c.unit, times, (charts.Layer(c.name, tuple(map(float, c.values[known]))),))

"""The page of a profile: text, the same in Markdown, and its table as CSV.

Knows nothing of terminals or files, and never prints.
"""

from __future__ import annotations

import csv as csv_text
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields

import numpy as np

from tritium import escape, ops
from tritium.op import Trait
from tritium.perf.amounts import bytes_text, rate_text, seconds_text
from tritium.perf.tables.table import NONE, Table
from tritium.see.profile.critical import critical_path
from tritium.see.profile.hotspots import bottlenecks, hotspots, percent, score_rows
from tritium.see.profile.op_table import OVERSTATED, PARTS, OpRow, kernel_rows, rows, used_lanes
from tritium.see.timelines.gaps import find_gaps, gap_lines, sum_gaps
from tritium.see.trace.timeline import Column, Counter, Timeline
from tritium.see.trace.tree import Node, tree

SPOTS = 5
TREE_LINES = 25
TREE_DEPTH = 8
LEAST = 0.005  # of the run: smaller operations are in the table only
TRANSCENDENTAL = frozenset(row.name for row in ops.rows_with(Trait.TRANSCENDENTAL))
UNCOUNTED = "An exp, a tanh and the like are counted as one operation and take many: their ceiling cannot be reached."
Sections = list[tuple[str, list[str]]]


def text(t: Timeline, table: Sequence[OpRow], top: int, own: Column) -> str:
    """Return the page for a terminal, the most important first. `table`: scored operations; `own`: own times of the spans."""
    parts = [head(t)]
    if operations := op_table(table, top, whole_text(t)):
        parts.append(operations.text())
    if kernels := kernel_table(t, top, own):
        parts.append(kernels.text())
    parts += [
        "\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in _sections(t, table, own) if lines
    ]
    return "\n\n".join(parts)


def markdown(t: Timeline, table: Sequence[OpRow], top: int, own: Column) -> str:
    """Return the page for a pull request; names are code spans, in which no markup is interpreted."""
    out = [escape.markdown(head(t).replace("\n", "; "), None)]
    if operations := op_table(table, top, whole_text(t)):
        out.append(operations.markdown())
    if kernels := kernel_table(t, top, own):
        out.append(kernels.markdown())
    for title, lines in _sections(t, table, own):
        if lines:
            out.append(f"### {title}\n\n" + "\n".join(f"- {escape.markdown(line, None)}" for line in lines))
    return "\n\n".join(out) + "\n"


def html(t: Timeline, table: Sequence[OpRow], top: int = 10) -> str:
    """Return what was recorded and the longest operations, for a notebook."""
    lines = "".join(f"<div>{escape.html(line, None)}</div>" for line in head(t).splitlines())
    operations = op_table(table, top, whole_text(t))
    return lines if operations is None else lines + operations._repr_html_()


def _sections(t: Timeline, table: Sequence[OpRow], own: Column) -> Sections:
    root, whole = tree(t), whole_text(t)
    return [
        ("Hotspots, by what could be gained", hotspot_lines(r for r in hotspots(table, SPOTS) if r.share >= LEAST)),
        (f"What bounds it, as shares of {whole}", bottlenecks(t, table).lines(brief=True)),
        ("Critical path, its parts as shares of the path", critical_path(t, own=own).lines()),
        ("Gaps between spans, and what was waited for", gap_lines(t, sum_gaps(find_gaps(t)))),
        (f"Call tree, as shares of the {seconds_text(root.total_ns * 1e-9)} in spans", tree_lines(root)),
        ("Python, by samples of its stacks, as shares of the sampled time", stack_lines(t)),
        ("Beside", [counter_line(c) for c in t.counters]),
        ("Notes", [escape.terminal(note, None) for note in t.notes]),
    ]


def whole_text(t: Timeline) -> str:
    """Return what the shares of operations are of: the run, or that of each active lane."""
    run, lanes = f"the run of {seconds_text(t.elapsed_total_ns * 1e-9)}", len(used_lanes(t))
    return run if lanes < 2 else f"{run} on each of {lanes} lanes"


def overhead(t: Timeline) -> float | None:
    """Return the share of the run that recording took: spans and scopes, each times the cost of one.

    None where a cost is unknown: a scope costs far more than a span, whose cost does not stand for it.
    """
    scopes = int(t.kind("scope").sum())
    if t.event_cost_ns is None or not t.elapsed_total_ns or (scopes and t.scope_cost_ns is None):
        return None
    kernels = int(t.kind("kernel").sum())  # recorded by the driver
    spans_ns = (len(t) + t.dropped - scopes - kernels) * t.event_cost_ns
    return (spans_ns + scopes * (t.scope_cost_ns or 0.0)) / t.elapsed_total_ns


def head(t: Timeline) -> str:
    """Return what was recorded, on which machine, and the cost of recording."""
    spans = f"{len(t)} span{'s' * (len(t) != 1)} on {len(t.lanes)} lane{'s' * (len(t.lanes) != 1)}"
    first = f"{escape.terminal(t.name) + ': ' if t.name else ''}{seconds_text(t.elapsed_total_ns * 1e-9)}, {spans}"
    if t.environment is not None:
        hard = t.environment.hard
        first += escape.terminal(f"; {hard.cpu}, {hard.threads} thread{'s' * (hard.threads != 1)}")
    if t.began:
        first += escape.terminal(f"; {t.began}")
    cost = overhead(t)
    if cost is None:
        return f"{first}\nthe cost of recording was not measured"
    scopes = "" if t.scope_cost_ns is None else f", {t.scope_cost_ns:.0f} ns a scope"
    return f"{first}\nrecording cost about {100 * cost:.2g} % of the run ({t.event_cost_ns:.0f} ns a span{scopes})"


# ---- operations


HEADS = (
    "operation",
    "calls",
    "total",
    "own",
    "share",
    "mean",
    "p50",
    "p95",
    "p99",
    "rate",
    "bytes",
    "of ceiling",
    "bound",
)


def op_table(operations: Sequence[OpRow], top: int, whole: str) -> Table | None:
    """Return a table with a row for each operation, the longest first; None where nothing was called.

    `whole`: what the shares are of.
    """
    if not operations:
        return None
    hidden = operations[top:]
    footnotes = [f"share: own time, of {whole}."]
    if hidden:
        rest = percent(sum(r.share for r in hidden))
        footnotes.append(f"{len(hidden)} more, {rest} of the time; --top shows more, the file holds all.")
    if any(r.overstated for r in operations[:top]):
        footnotes.append(f">100 %: {OVERSTATED}.")
    if any(is_transcendental(r) and r.ceiling_share is not None for r in operations[:top]):
        footnotes.append(UNCOUNTED)
    return Table("", HEADS, tuple(_cells(r) for r in operations[:top]), frozenset(HEADS[1:12]), tuple(footnotes))


def kernel_table(t: Timeline, top: int, own: Column) -> Table | None:
    """Return a table with a row for each kernel of a GPU, the longest first; None where none was recorded."""
    table = kernel_rows(t, own)
    if not table:
        return None
    heads = ("GPU kernel", "calls", "total", "share", "mean", "p50", "p95", "p99")
    cells = tuple(
        (r.name, str(r.count), seconds_text(r.own_ns * 1e-9), percent(r.share),
         *(seconds_text(ns * 1e-9) for ns in (r.mean_ns, r.p50_ns, r.p95_ns, r.p99_ns)))
        for r in table[:top]
    )  # fmt: skip
    footnotes = [f"share: time on streams, of the run of {seconds_text(t.elapsed_total_ns * 1e-9)}."]
    if hidden := table[top:]:
        footnotes.append(f"{len(hidden)} more, {percent(sum(r.share for r in hidden))} of the run.")
    return Table("", heads, cells, frozenset(heads[1:]), tuple(footnotes))


def is_transcendental(r: OpRow) -> bool:
    """Return True if an operation, or one of a fusion group, counts as one and takes many."""
    return bool(TRANSCENDENTAL.intersection(re.findall(r"\w+", r.name)))


def _cells(r: OpRow) -> tuple[str, ...]:
    reached = r.ceiling_share
    return (
        r.label, str(r.count), *(seconds_text(ns * 1e-9) for ns in (r.total_ns, r.own_ns)), percent(r.share),
        *(seconds_text(ns * 1e-9) for ns in (r.mean_ns, r.p50_ns, r.p95_ns, r.p99_ns)),
        NONE if r.gflops is None else rate_text(r.gflops * 1e9, "OP" if r.integer else "FLOP"),
        NONE if r.gbs is None else rate_text(r.gbs * 1e9, "B"),
        ">100 %" if r.overstated else NONE if reached is None else percent(reached), r.bound or NONE,
    )  # fmt: skip


def hotspot_lines(spots: Iterable[OpRow]) -> list[str]:
    """Return the score and the reason of each row, one line each."""
    return [
        escape.terminal(f"{NONE if r.score is None else f'{r.score:.0f}':>3}  {r.label}: {r.why}", None) for r in spots
    ]


def csv(t: Timeline, own: Column, guard: bool = True) -> str:
    """Return a CSV row for each operation and specs, every number in full."""
    columns = [f.name for f in fields(OpRow)]
    heads = [*columns, "ceiling_share"]
    out = io.StringIO()
    writer = csv_text.writer(out, quoting=csv_text.QUOTE_NONNUMERIC)
    writer.writerow(heads)
    for row in score_rows((*rows(t, by="specs", own=own), *rows(t, kinds=PARTS, own=own))):
        writer.writerow([_cell(getattr(row, name), guard) for name in heads])
    return out.getvalue()


def _cell(value: object, guard: bool) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape.csv(value, guard) if isinstance(value, str) else value


# ---- the rest


def tree_lines(root: Node, most: int = TREE_LINES) -> list[str]:
    """Return the call tree with total and own times; short and deep nodes are counted only."""
    total_ns = root.total_ns or 1
    out: list[str] = []
    hidden = 0
    for path, node in root.walk():
        if len(out) >= most or len(path) > TREE_DEPTH or node.total_ns < LEAST * total_ns:
            hidden += 1
            continue
        own = f", own {seconds_text(node.own_ns * 1e-9)}" if node.children and node.own_ns else ""
        calls = f" ×{node.count}" if node.count > 1 else ""
        share = percent(node.total_ns / total_ns)
        out.append(
            f"{share:>6}  {'  ' * (len(path) - 1)}{escape.terminal(node.name)}{calls}  {seconds_text(node.total_ns * 1e-9)}{own}"
        )
    return [*out, f"{hidden} more places"] if hidden and out else out


def stack_lines(t: Timeline, most: int = SPOTS) -> list[str]:
    """Return the source lines that most samples were in; none where no stacks were sampled."""
    s = t.samples
    if s is None or not len(s.stack):
        return []
    innermost = np.array([stack[-1] if stack else -1 for stack in s.stacks])[s.stack]
    known, total_ns = innermost >= 0, max(1, int(s.weight_ns.sum()))
    times = np.bincount(innermost[known], s.weight_ns[known], len(s.frames))
    order = np.argsort(-times, kind="stable")[:most]
    lines = [
        f"{percent(times[i] / total_ns):>6}  {escape.terminal(s.frames[i])}  {seconds_text(times[i] * 1e-9)}"
        for i in order.tolist()
        if times[i]
    ]
    lines.append(
        f"of {len(s.stack)} samples, one every {seconds_text(s.every_ns * 1e-9)}, {seconds_text(total_ns * 1e-9)} in all; "
        "waiting threads are among them"
    )
    late = s.late_ns > 0
    if late.any():
        lines.append(
            f"{seconds_text(int(s.late_ns.sum()) * 1e-9)} of it in {int(late.sum())} late samples: a native call held the GIL, "
            "or the sampler had no CPU; counted where the thread was when that ended"
        )
    return lines


def counter_line(c: Counter) -> str:
    """Return the minimum, mean and maximum of a counter; or why it is absent."""
    name = escape.terminal(c.name)
    if not len(c.values):
        return escape.terminal(f"{name}: {c.absent or 'no values'}", None)
    format_value = bytes_text if c.unit == "B" else lambda v: f"{v:.3g} {escape.terminal(c.unit)}"
    low, mean, high = float(np.min(c.values)), float(np.mean(c.values)), float(np.max(c.values))
    return f"{name}: {format_value(low)} … {format_value(high)}, mean {format_value(mean)}, {len(c.values)} readings"

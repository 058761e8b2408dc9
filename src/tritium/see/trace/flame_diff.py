"""Differential flame graphs: changes of own time between two call trees, as a picture and as text.

Knows nothing of timelines or statistics: `perf` decides if a change is more than noise. A bar's colour shows the change of
its own time, so that the op itself is marked and not its callers. One pane has the widths of after, the other those of
before, which shows what is gone. The largest changes are listed as text below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tritium.see.trace.flame_frames import (
    LEAST_PX,
    Frame,
    Look,
    Page,
    Room,
    calls,
    clipped,
    depth,
    format_value,
    layout,
    line,
    pane,
    share,
    top,
)
from tritium.see.trace.flame_look import MARGIN, PAGE_MARGIN, ROW, STEPS
from tritium.see.trace.tree import Node

LEVELS = (0.03, 0.15, 0.4, 0.75)  # shares of the strongest colour's change at which each colour begins
LEAST_STRONG = 0.01  # of the total: a smaller change never gets the strongest colour, else noise would stand out
LISTED = 10  # changes below the picture
LEAST_LISTED = 0.0005  # of the total
LEAST_WIDTH = 640  # px that the list needs
LEGEND_PX = 36
HINT = "Red is more own time than before, blue is less; the stronger, the larger the change."


@dataclass(frozen=True)
class Change:
    """The own time of one name before and after, over all callers."""

    name: str
    before: int
    after: int
    calls_before: int = 0
    calls_after: int = 0

    @property
    def delta(self) -> int:
        return self.after - self.before

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before else None


def changes(before: Node, after: Node) -> tuple[Change, ...]:
    """Return the change of own time of every name, the largest change first."""
    totals: dict[str, list[int]] = {}
    for side, root in enumerate((before, after)):
        for _, node in root.walk():
            sums = totals.setdefault(node.name, [0, 0, 0, 0])
            sums[side] += node.own_ns
            sums[2 + side] += node.count
    result = (Change(name, *sums) for name, sums in totals.items())
    return tuple(sorted(result, key=lambda c: (-abs(c.delta), c.name)))


def diff_svg(
    before: Node,
    after: Node,
    title: str = "What changed",
    unit: str = "ns",
    *,
    width: int = 1200,
    interactive: bool = True,
) -> str:
    """Return a standalone file, readable without script and without colours."""
    return _Diff(before, after, unit, width, LEAST_PX).draw(title, alone=True, moves=interactive)


def diff_inline(
    before: Node,
    after: Node,
    title: str = "What changed",
    unit: str = "ns",
    *,
    width: int = 1200,
    key: str = "flame-diff",
) -> str:
    """Return the graph for a page that has the stylesheet and the script of flame graphs."""
    return _Diff(before, after, unit, width, 5 * LEAST_PX).draw(title, alone=False, moves=False, key=key)


class _Pair(NamedTuple):
    """Total and own time of a bar before and after."""

    before: int
    after: int
    own_before: int
    own_after: int


class _Diff:
    def __init__(self, before: Node, after: Node, unit: str, width: int, least_px: float) -> None:
        self.before, self.after, self.unit = before, after, unit
        self.width, self.least_px = max(width, LEAST_WIDTH), least_px
        self.full = max(before.total_ns, after.total_ns)
        self.partner = {**_partners(before, after), **_partners(after, before)}
        largest = max(_own_changes(before, self.partner) + _own_changes(after, self.partner))
        self.strong = max(1, largest, round(LEAST_STRONG * self.full))

    def draw(self, title: str, *, alone: bool, moves: bool, key: str = "flame-diff") -> str:
        changed = [c for c in changes(self.before, self.after) if c.delta]
        margin = MARGIN if alone else PAGE_MARGIN
        room = Room(margin, self.width - 2 * margin, self.full, self.least_px)
        body, y = top(title, self._summary(), HINT, room, alone)
        body += self._legend(margin, y + 8)
        y += LEGEND_PX
        for name, root in (("after", self.after), ("before", self.before)):
            frames = layout(root, room)
            body += line("fl-head", margin, y + 12, f"{name.capitalize()}: {format_value(root.total_ns, self.unit)}")
            body += pane(frames, room, y + 20, self._after if name == "after" else self._before)
            y += 20 + ROW * depth(frames) + 16
        listed, y = self._list(changed, margin, y)
        page = Page(self.width, y + MARGIN, title, self._describe(changed), alone, moves, LEAST_WIDTH, margin, key)
        return page.around(body + listed)

    def _after(self, f: Frame) -> Look:
        others = [self.partner[id(n)] for n in f.nodes]
        before = sum(o.total_ns for o in others if o)
        own = before if f.more else sum(o.own_ns for o in others if o)
        return self._look(f, _Pair(before, f.total, own, f.own), sum(o.count for o in others if o), f.called, "new")

    def _before(self, f: Frame) -> Look:
        others = [self.partner[id(n)] for n in f.nodes]
        after = sum(o.total_ns for o in others if o)
        own = after if f.more else sum(o.own_ns for o in others if o)
        return self._look(f, _Pair(f.total, after, f.own, own), f.called, sum(o.count for o in others if o), "gone")

    def _look(self, f: Frame, pair: _Pair, called_before: int, called_after: int, absent: str) -> Look:
        step, sign = self._step(pair.own_after - pair.own_before)
        tip = [self._describe_change("", pair.before, pair.after)]
        if not f.more:
            tip.append(self._describe_change("own ", pair.own_before, pair.own_after))
        if called_before != called_after:
            tip.append(f"{calls(called_before) or 'no call'} → {calls(called_after) or 'no call'}")
        if f.depth and not (pair.before and pair.after):
            return Look(step, (absent, *tip), f"{sign} ".lstrip(), f" ({absent})")
        change = _signed(pair.own_after - pair.own_before, self.unit)
        return Look(step if f.depth else "root", tuple(tip), f"{sign} ".lstrip(), f" {change}" if sign else "")

    def _describe_change(self, what: str, before: int, after: int) -> str:
        if before == after:
            return f"{what}{format_value(before, self.unit)}, as before"
        times = f" · ×{after / before:.2f}" if before and after else ""
        part = share(abs(after - before), self.full)
        change = _signed(after - before, self.unit)
        return f"{what}{format_value(before, self.unit)} → {format_value(after, self.unit)}{times} · {change} ({part} of all)"

    def _step(self, delta: int) -> tuple[str, str]:
        """Return the CSS class of a change and its sign; no sign for a negligible change."""
        part = abs(delta) / self.strong
        step = sum(part >= level for level in LEVELS)
        return ("same", "") if step == 0 else (f"m{step}", "▲") if delta > 0 else (f"l{step}", "▼")

    def _summary(self) -> str:
        before, after = self.before.total_ns, self.after.total_ns
        times = f", ×{after / before:.2f}" if before and after else ""
        change = _signed(after - before, self.unit)
        return f"{format_value(before, self.unit)} before → {format_value(after, self.unit)} after ({change}{times})"

    def _describe(self, changed: list[Change]) -> str:
        most = "; ".join(f"{c.name} {self._describe_change('', c.before, c.after)}" for c in changed[:3])
        return f"{self._summary()}. Largest changes of own time: {most or 'none'}."

    def _legend(self, left: int, y: int) -> str:
        """Return the legend from less to more, as text and colours."""
        classes = [*(f"l{i}" for i in range(STEPS, 0, -1)), "same", *(f"m{i + 1}" for i in range(STEPS))]
        start = left + 50
        boxes = "".join(
            f'<rect class="{style}" x="{start + 26 * i}" y="{y - 8}" width="25" height="12" rx="2"/>'
            for i, style in enumerate(classes)
        )
        end = start + 26 * len(classes) + 8
        strongest = round(LEVELS[-1] * self.strong)
        return (
            line("fl-muted", left, y + 2, "▼ less") + boxes + "\n"
            + line("fl-muted", end, y + 2, f"more ▲ · strongest: {format_value(strongest, self.unit)}, {share(strongest, self.full)} of all")
        )  # fmt: skip

    def _list(self, changed: list[Change], left: int, y: int) -> tuple[str, int]:
        """Return the largest changes as text (sign, change, ratio, before and after, name) and the y below them."""
        out = line("fl-head", left, y + 12, "Largest changes of own time" if changed else "Nothing changed.")
        y += 34
        listed = [c for c in changed[:LISTED] if abs(c.delta) >= LEAST_LISTED * self.full]
        for c in listed:
            ratio = "new" if not c.before else "gone" if not c.after else f"×{c.ratio:.2f}"
            times = f"{format_value(c.before, self.unit)} → {format_value(c.after, self.unit)}"
            counted = "" if c.calls_before == c.calls_after else f"  ({c.calls_before} → {c.calls_after} calls)"
            out += line("fl-row", left, y, "▲" if c.delta > 0 else "▼")
            out += line("fl-row r", left + 110, y, _signed(c.delta, self.unit))
            out += line("fl-row r", left + 170, y, ratio)
            out += line("fl-row r fl-muted", left + 330, y, times)
            out += line("fl-row", left + 350, y, clipped(c.name, self.width - left - 370) + counted)
            y += 19
        if len(changed) > len(listed):
            out += line("fl-muted", left, y, f"… and {len(changed) - len(listed)} smaller changes")
            y += 19
        return out, y - 10


def _partners(a: Node, b: Node) -> dict[int, Node | None]:
    """Return for every node of a tree the node with the same path in the other."""
    out: dict[int, Node | None] = {id(a): b}
    todo: list[tuple[Node, Node | None]] = [(a, b)]
    while todo:
        node, other = todo.pop()
        for name, child in node.children.items():
            match = other.children.get(name) if other is not None else None
            out[id(child)] = match
            todo.append((child, match))
    return out


def _own_changes(root: Node, partner: dict[int, Node | None]) -> list[int]:
    return [abs(n.own_ns - (o.own_ns if (o := partner[id(n)]) else 0)) for _, n in root.walk()] or [0]


def _signed(delta: int, unit: str) -> str:
    return f"{'+' if delta > 0 else '−' if delta < 0 else '±'}{format_value(abs(delta), unit)}"

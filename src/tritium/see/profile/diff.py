"""Two profiles of the same work, before and after: which operation took more time, by how much, and how sure that is.

Knows nothing of drawing or of gates. Either side may be several profiles, repetitions of one run: then a value is the
time an operation took in a repetition, and intervals are over repetitions. Of one profile a side, a value is a block of
calls in a row (so that calls that hang together stay together), and intervals tell nothing of other processes: nothing is
clear then. There is no interval of fewer than 2 values a side.

The time of an operation is the sum of its own times in a run. Over repetitions the change is the median of all differences,
with its exact rank-sum interval: a run that was disturbed weighs no more than another. Over calls it is the difference of
the sums, with an interval by bootstrap. Intervals are of 95 %. What the changes of the operations leave of the change of
the run is the time between calls. Runs of unequal length are compared per entry of a scope (`per`).

A change is `clear` where the interval leaves out 0 and the two samples differ (Brunner-Munzel, Holm over all operations,
1 %), or the number of calls changed, which is no matter of chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from tritium import escape
from tritium.errors import ArgumentError
from tritium.perf.amounts import seconds_text
from tritium.perf.records.environment import differences
from tritium.perf.stats.estimates import Interval, brunner_munzel_p, holm, unpaired
from tritium.perf.stats.resample import Floats, bits, draws, seed_of
from tritium.perf.tables.table import NONE, Table
from tritium.see.profile.op_table import CALLS, PARTS, Timelined, used_lanes
from tritium.see.trace.timeline import Timeline
from tritium.see.trace.tree import own_ns

Given: TypeAlias = Timelined | Timeline | Sequence[Timelined | Timeline]
Key = tuple[str, str, str]  # kind, name, device
RESAMPLES = 2000
BLOCKS = 100  # of calls of one profile, at most
ALPHA = 0.01
SHOWN = 15
SINGLE = "not clear (one profile a side; repeat each 5 times)"


@dataclass(frozen=True)
class OpChange:
    """One operation, before and after: ns in a run."""

    name: str
    device: str
    before_ns: float
    after_ns: float
    change_ns: float
    interval: Interval | None  # of the change, 95 %; None: fewer than 2 values a side
    count_before: float  # calls in a run, the mean over repetitions
    count_after: float
    p: float  # that the times are alike, adjusted for the number of operations
    clear: bool
    kernels: str = ""  # "a → b" where another kernel runs now

    @property
    def ratio(self) -> float | None:
        return self.after_ns / self.before_ns if self.before_ns else None

    @property
    def by_calls_ns(self) -> float:
        """The part of the change that comes from calling it more or less often, at the old time of a call."""
        each = self.before_ns / self.count_before if self.count_before else 0.0
        return (self.count_after - self.count_before) * each

    @property
    def how(self) -> str:
        """In words: what changed."""
        if not self.count_before:
            return "new"
        if not self.count_after:
            return "gone"
        said = []
        if abs(self.by_calls_ns) > abs(self.change_ns) / 10 and self.count_after != self.count_before:
            said.append(f"{_number(self.count_before)} → {_number(self.count_after)} calls")
        if abs(self.change_ns - self.by_calls_ns) > abs(self.change_ns) / 10:
            each = [ns / n for ns, n in ((self.before_ns, self.count_before), (self.after_ns, self.count_after))]
            said.append(f"a call {seconds_text(each[0] * 1e-9)} → {seconds_text(each[1] * 1e-9)}")
        if self.kernels:
            said.append(f"kernel {self.kernels}")
        return ", ".join(said)


@dataclass(frozen=True)
class ProfileDiff:
    """What changed between two profiles: operations by the size of their change, and the run as a whole."""

    changes: tuple[OpChange, ...]
    before_ns: float  # of a run
    after_ns: float
    change_ns: float
    interval: Interval | None  # of its change; None of one profile a side
    between_ns: float | None  # the change of the time between calls; None where several lanes ran at once
    repetitions: tuple[int, int]
    notes: tuple[str, ...] = ()

    @property
    def single(self) -> bool:
        """One side is a single profile: how much such runs differ by themselves is not known."""
        return min(self.repetitions) < 2

    @property
    def culprit(self) -> OpChange | None:
        """The operation whose clear change is largest in the direction of the whole; None: none is clear."""
        sign = 1 if self.change_ns >= 0 else -1
        found = [c for c in self.changes if c.clear and sign * c.change_ns > 0]
        return max(found, key=lambda c: abs(c.change_ns), default=None)

    @property
    def explained(self) -> float | None:
        """The share of the change of the run that clear changes of operations make up; None where nothing changed."""
        return sum(c.change_ns for c in self.changes if c.clear) / self.change_ns if self.change_ns else None

    def sentence(self) -> str:
        """Who did it."""
        whole = f"{signed(self.change_ns)} in all"
        found = self.culprit
        if self.single:
            sign = 1 if self.change_ns >= 0 else -1
            moved = [c for c in self.changes if sign * c.change_ns > 0]
            if moved:
                return f"{SINGLE}: {self._told(max(moved, key=lambda c: abs(c.change_ns)), whole)}"
        if found is None:
            return f"no operation changed clearly; {whole}"
        return self._told(found, whole)

    def _told(self, found: OpChange, whole: str) -> str:
        share = found.change_ns / self.change_ns if self.change_ns else 0.0
        part = f", {100 * share:.0f} % of {whole}" if 0 < share <= 1.5 else f"; {whole}"
        return f"{found.name}: {_with_interval(found)}{part}: {found.how}"

    def table(self, top: int = SHOWN) -> Table:
        """A row for each operation that changed, the largest change first."""
        heads = ("operation", "before", "after", "change", "95 %", "calls", "")
        rows = [
            (
                c.name if c.device in ("", "cpu") else f"{c.name} on {c.device}", _time(c.before_ns), _time(c.after_ns),
                signed(c.change_ns), _ends(c.interval) or NONE,
                f"{_number(c.count_before)} → {_number(c.count_after)}" if c.count_before != c.count_after
                else _number(c.count_after),
                "clear" if c.clear else "",
            )
            for c in self.changes[:top]
        ]  # fmt: skip
        if self.between_ns is not None:
            rows.append(("(between calls)", NONE, NONE, signed(self.between_ns), "", "", ""))
        whole = _time(self.before_ns), _time(self.after_ns), signed(self.change_ns), _ends(self.interval)
        rows.append(("the run", *whole, "", ""))
        left = len(self.changes) - top
        more = (f"{left} more operations changed by less.",) if left > 0 else ()
        return Table("", heads, tuple(rows), frozenset(heads[1:6]), more)

    def text(self, top: int = SHOWN) -> str:
        """For a terminal."""
        a, b = self.repetitions
        basis = (
            f"{a} and {b} repetitions"
            if max(a, b) > 1
            else "one profile each: intervals are over the calls in it; give more (--also-before, --also-after)"
        )
        lines = [escape.terminal(self.sentence(), None), "", self.table(top).text(), "", f"by {basis}"]
        return "\n".join([*lines, *(f"note: {escape.terminal(note, None)}" for note in self.notes)])

    def markdown(self, top: int = SHOWN) -> str:
        """For a pull request."""
        lines = [escape.markdown(self.sentence(), None), "", self.table(top).markdown(), ""]
        return "\n".join([*lines, *(f"- {escape.markdown(note, None)}" for note in self.notes)]).rstrip() + "\n"

    def __str__(self) -> str:
        return self.text()


def signed(ns: float) -> str:
    """+3.1 ms."""
    return f"{'-' if ns < 0 else '+'}{_time(abs(ns))}" if ns else "0"


def _time(ns: float) -> str:
    return seconds_text(ns * 1e-9) if ns else NONE


def _number(n: float) -> str:
    return f"{n:.0f}" if n == int(n) else f"{n:.1f}"


def _with_interval(c: OpChange) -> str:
    return signed(c.change_ns) + (f" ({_ends(c.interval)}, 95 %)" if c.interval is not None else "")


def _ends(interval: Interval | None) -> str:
    return "" if interval is None else f"{signed(interval[0])} … {signed(interval[1])}"


# ---- comparing


def diff(before: Given, after: Given, per: str | None = None) -> ProfileDiff:
    """What changed between two profiles, or between two lists of repetitions of one run.

    Where one ran longer than the other, name in `per` the scope that is one piece of the work: times and calls are then those
    of one piece.
    """
    old, new = _timelines(before, "before"), _timelines(after, "after")
    sides = [[_Side(t, per) for t in side] for side in (old, new)]
    over_runs = min(len(old), len(new)) > 1
    changes = [
        _change(key, sides[0], sides[1], over_runs)
        for key in dict.fromkeys(k for s in (*sides[0], *sides[1]) for k in s.own)
    ]
    adjusted = holm([c.p for c in changes]) if changes else []
    changes = [replace(c, p=p, clear=over_runs and _clear(c, p)) for c, p in zip(changes, adjusted, strict=True)]
    totals = [np.array([s.elapsed for s in side]) for side in sides]
    run = _over_runs(totals[0], totals[1])
    calls = sum(c.change_ns for c in changes)
    alone = all(len(used_lanes(t)) <= 1 for t in (*old, *new))
    return ProfileDiff(
        tuple(sorted(changes, key=lambda c: (-abs(c.change_ns), c.name, c.device))), run.before, run.after, run.change,
        run.interval if over_runs else None, run.change - calls if alone else None, (len(old), len(new)),
        tuple(_notes(old, new, alone, per)),
    )  # fmt: skip


def _timelines(given: Given, which: str) -> list[Timeline]:
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    found = [g if isinstance(g, Timeline) else getattr(g, "timeline", None) for g in listed]
    if not found or not all(isinstance(t, Timeline) for t in found):
        raise ArgumentError(
            f"diff: {which} must be a profile or a list of profiles of the same work, given a {type(given).__name__}."
        )
    return [t for t in found if t is not None]


class _Side:
    """One profile: the own times of the calls of each operation, in order of time, and the kernels that ran."""

    def __init__(self, t: Timeline, per: str | None) -> None:
        self.pieces = entered(t).get(per, 0) if per is not None else 1
        if not self.pieces:
            known = ", ".join(escape.visible(name) for name in entered(t)) or "none"
            raise ArgumentError(f"diff: per={per!r} is no scope of every profile; there are {known}.")
        self.elapsed = t.elapsed_total_ns / self.pieces
        keys: dict[Key, int] = {}
        number = np.full(len(t.whats), -1, np.int64)
        self.kernels: dict[Key, dict[str, None]] = {}
        for i, w in enumerate(t.whats):
            if w.kind in CALLS:
                key: Key = (w.kind, w.name, w.device)
                number[i] = keys.setdefault(key, len(keys))
                self.kernels.setdefault(key, {})[w.kernel] = None
        mine, own = number[t.what], own_ns(t)
        self.own: dict[Key, Floats] = {}
        for key, n in keys.items():
            at = np.flatnonzero(mine == n)
            if len(at):
                self.own[key] = own[at[np.argsort(t.start_ns[at], kind="stable")]] / self.pieces

    def total(self, key: Key) -> float:
        return float(self.own[key].sum()) if key in self.own else 0.0

    def count(self, key: Key) -> float:
        return len(self.own.get(key, ())) / self.pieces


def entered(t: Timeline) -> dict[str, int]:
    """How often each scope and each program was entered."""
    times = np.bincount(t.what, minlength=len(t.whats)).tolist()
    out: dict[str, int] = {}
    for w, n in zip(t.whats, times, strict=True):
        if w.kind in PARTS and n:
            out[w.name] = out.get(w.name, 0) + n
    return out


class Shift(NamedTuple):
    """How far one sample lies from another."""

    before: float
    after: float
    change: float
    interval: Interval | None
    p: float  # that they are alike


def _change(key: Key, old: list[_Side], new: list[_Side], over_runs: bool) -> OpChange:
    counts = [sum(s.count(key) for s in side) / len(side) for side in (old, new)]
    if over_runs:
        found = _over_runs(*(np.array([s.total(key) for s in side]) for side in (old, new)))
    else:
        found = _over_calls(_calls(old, key), _calls(new, key), len(old), len(new))
    ran = [", ".join(dict.fromkeys(k for s in side for k in s.kernels.get(key, ()))) for side in (old, new)]
    kernels = " → ".join(ran) if all(ran) and ran[0] != ran[1] else ""
    return OpChange(key[1], key[2], *found[:4], counts[0], counts[1], found.p, False, kernels)


def _over_runs(old: Floats, new: Floats) -> Shift:
    """By the times of repetitions."""
    found = unpaired([[v] for v in old], [[v] for v in new], [0.95])
    return _shift(float(np.median(old)), float(np.median(new)), found.difference, found.intervals[0.95], found.p)


def _calls(side: list[_Side], key: Key) -> Floats:
    return np.concatenate([s.own.get(key, np.zeros(0)) for s in side])


def _over_calls(old: Floats, new: Floats, *runs: int) -> Shift:
    """By the times of calls: blocks of them are drawn again, many times, from themselves."""
    blocks = [_blocks(calls) for calls in (old, new)]
    source = bits(seed_of(blocks[0], blocks[1]))
    drawn = [_drawn(source, b) / n for b, n in zip(blocks, runs, strict=True)]
    low, high = np.quantile(drawn[1] - drawn[0], (0.025, 0.975))
    sums = [float(calls.sum()) / n for calls, n in zip((old, new), runs, strict=True)]
    each = [b * (len(b) / len(calls)) if len(calls) else b for b, calls in zip(blocks, (old, new), strict=True)]
    enough = min(map(len, blocks)) > 1
    p = brunner_munzel_p(each[0], each[1]) if enough else 1.0
    return _shift(sums[0], sums[1], sums[1] - sums[0], (float(low), float(high)) if enough else None, p)


def _shift(before: float, after: float, change: float, interval: Interval | None, p: float) -> Shift:
    """In thousandths of a ns: what dividing by the pieces left beyond them is no change."""
    ends = None if interval is None else (round(interval[0], 3), round(interval[1], 3))
    return Shift(round(before, 3), round(after, 3), round(change, 3), ends, p)


def _blocks(calls: Floats) -> Floats:
    """The sums of blocks of calls in a row, all as long as each other but for one call."""
    if not len(calls):
        return np.zeros(0)
    parts = min(len(calls), BLOCKS)
    edges = np.arange(parts) * len(calls) // parts
    return np.add.reduceat(calls, edges)


def _drawn(source: np.random.PCG64, blocks: Floats) -> Floats:
    """Sums of as many blocks as there are, drawn with replacement."""
    if not len(blocks):
        return np.zeros(RESAMPLES)
    return blocks[draws(source, RESAMPLES, len(blocks))].sum(axis=1)


def _clear(c: OpChange, p: float) -> bool:
    leaves_out_zero = c.interval is not None and (c.interval[0] > 0 or c.interval[1] < 0)
    return leaves_out_zero and (p < ALPHA or c.count_before != c.count_after)


def _notes(old: list[Timeline], new: list[Timeline], alone: bool, per: str | None) -> list[str]:
    out = [f"times and calls are of one {per}"] if per is not None else []
    for name, n in entered(old[0]).items():
        if per is None and (now := entered(new[0]).get(name, n)) != n:
            out.append(
                f"{name} was entered {n} → {now} times; if that is one piece of the work, compare with per={name!r}"
            )
    first, last = old[0].environment, new[0].environment
    if first is not None and last is not None:
        hard, soft = differences(first, last)
        out += [f"another machine: {k}: {a} → {b}; times cannot be compared" for k, (a, b) in hard.items()]
        out += [f"{k}: {a} → {b}" for k, (a, b) in soft.items()]
    if not alone:
        out.append("several threads ran at once: changes of operations do not add up to that of the run")
    if any(t.dropped for t in (*old, *new)):
        out.append("spans were dropped in one of the profiles: its sums are too small")
    return out

"""Differences of two profiles of the same work: which operation took more time, by how much, and how certain that is.

Either side may be several profiles, repetitions of one run: then a sample is the time of an operation in one repetition,
and intervals are over repetitions. With one profile a side, a sample is a block of consecutive calls (so that correlated
calls stay together), and intervals say nothing about other processes: no change is clear then. There is no interval with
fewer than 2 samples a side.

The time of an operation is the sum of its own times in a run. Over repetitions the change is the median of all differences,
with its exact rank-sum interval: a disturbed run weighs no more than another. Over calls it is the difference of
the sums, with an interval by bootstrap. Intervals are of 95 %. The part of the run's change that its operations do not
account for is the time between calls. Runs of unequal length are compared per entry of a scope (`per`).

A change is `clear` where the interval excludes 0 and the two samples differ (Brunner-Munzel, Holm over all operations,
1 %) or the number of calls changed, which is not random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from tritium import escape
from tritium.arguments import checked_except
from tritium.errors import ArgumentError
from tritium.perf.amounts import seconds_text
from tritium.perf.records.environment import differences
from tritium.perf.stats.estimates import Interval, brunner_munzel_p, holm, unpaired
from tritium.perf.stats.resample import Floats, bits, draws, seed_of
from tritium.perf.tables.table import NONE, Table
from tritium.see.profile.op_table import CALLS, PARTS, Timelined, used_lanes
from tritium.see.trace.timeline import Timeline
from tritium.see.trace.tree import own_ns

Profiles: TypeAlias = Timelined | Timeline | Sequence[Timelined | Timeline]
Key = tuple[str, str, str]  # kind, name, device
RESAMPLES = 2000
BLOCKS = 100  # of calls of one profile, at most
ALPHA = 0.01
SHOWN = 15
SINGLE = "not clear (one profile a side; repeat each 5 times)"


@dataclass(frozen=True)
class OpChange:
    """The time of one operation before and after, in ns a run."""

    name: str
    device: str
    before_ns: float
    after_ns: float
    change_ns: float
    interval: Interval | None  # of the change, 95 %; None: fewer than 2 samples a side
    count_before: float  # calls in a run, the mean over repetitions
    count_after: float
    p: float  # p-value of the times being alike, adjusted for the number of operations
    clear: bool
    kernels: str = ""  # "a → b" where another kernel runs now

    @property
    def ratio(self) -> float | None:
        return self.after_ns / self.before_ns if self.before_ns else None

    @property
    def by_calls_ns(self) -> float:
        """Return the part of the change that is due to more or fewer calls, at the old time of a call."""
        each = self.before_ns / self.count_before if self.count_before else 0.0
        return (self.count_after - self.count_before) * each

    @property
    def how(self) -> str:
        """Return what changed in words: the number of calls, the time of a call, the kernel."""
        if not self.count_before:
            return "new"
        if not self.count_after:
            return "gone"
        parts = []
        if abs(self.by_calls_ns) > abs(self.change_ns) / 10 and self.count_after != self.count_before:
            parts.append(f"{_number(self.count_before)} → {_number(self.count_after)} calls")
        if abs(self.change_ns - self.by_calls_ns) > abs(self.change_ns) / 10:
            each = [ns / n for ns, n in ((self.before_ns, self.count_before), (self.after_ns, self.count_after))]
            parts.append(f"a call {seconds_text(each[0] * 1e-9)} → {seconds_text(each[1] * 1e-9)}")
        if self.kernels:
            parts.append(f"kernel {self.kernels}")
        return ", ".join(parts)


@dataclass(frozen=True)
class ProfileDiff:
    """The difference of two profiles: operations by the size of their change, and the whole run."""

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
        """Return True if one side is a single profile, so that the variance between runs is unknown."""
        return min(self.repetitions) < 2

    @property
    def culprit(self) -> OpChange | None:
        """Return the operation with the largest clear change in the direction of the run's; None: none is clear."""
        sign = 1 if self.change_ns >= 0 else -1
        candidates = [c for c in self.changes if c.clear and sign * c.change_ns > 0]
        return max(candidates, key=lambda c: abs(c.change_ns), default=None)

    @property
    def explained(self) -> float | None:
        """Return the share of the run's change that clear changes of operations make up; None where nothing changed."""
        return sum(c.change_ns for c in self.changes if c.clear) / self.change_ns if self.change_ns else None

    def sentence(self) -> str:
        """Return the main cause of the change as a sentence."""
        total = f"{signed(self.change_ns)} in all"
        culprit = self.culprit
        if self.single:
            sign = 1 if self.change_ns >= 0 else -1
            moved = [c for c in self.changes if sign * c.change_ns > 0]
            if moved:
                return f"{SINGLE}: {self._describe(max(moved, key=lambda c: abs(c.change_ns)), total)}"
        if culprit is None:
            return f"no operation changed clearly; {total}"
        return self._describe(culprit, total)

    def _describe(self, change: OpChange, total: str) -> str:
        share = change.change_ns / self.change_ns if self.change_ns else 0.0
        part = f", {100 * share:.0f} % of {total}" if 0 < share <= 1.5 else f"; {total}"
        return f"{change.name}: {_with_interval(change)}{part}: {change.how}"

    def table(self, top: int = SHOWN) -> Table:
        """Return a table with a row for each operation that changed, the largest change first."""
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
        run = _time(self.before_ns), _time(self.after_ns), signed(self.change_ns), _ends(self.interval)
        rows.append(("the run", *run, "", ""))
        hidden = len(self.changes) - top
        more = (f"{hidden} more operations changed by less.",) if hidden > 0 else ()
        return Table("", heads, tuple(rows), frozenset(heads[1:6]), more)

    def text(self, top: int = SHOWN) -> str:
        """Return the difference for a terminal."""
        a, b = self.repetitions
        basis = (
            f"{a} and {b} repetitions"
            if max(a, b) > 1
            else "one profile each: intervals are over the calls in it; give more (--also-before, --also-after)"
        )
        lines = [escape.terminal(self.sentence(), None), "", self.table(top).text(), "", f"by {basis}"]
        return "\n".join([*lines, *(f"note: {escape.terminal(note, None)}" for note in self.notes)])

    def markdown(self, top: int = SHOWN) -> str:
        """Return the difference for a pull request."""
        lines = [escape.markdown(self.sentence(), None), "", self.table(top).markdown(), ""]
        return "\n".join([*lines, *(f"- {escape.markdown(note, None)}" for note in self.notes)]).rstrip() + "\n"

    def __str__(self) -> str:
        return self.text()


def signed(ns: float) -> str:
    """Return a time with its sign: +3.1 ms."""
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


@checked_except("before", "after")
def diff(before: Profiles, after: Profiles, per: str | None = None) -> ProfileDiff:
    """Compare two profiles, or two lists of repetitions of one run.

    Where one ran longer than the other, name in `per` the scope that is one unit of the work: times and calls are then
    per unit.
    """
    old, new = _timelines(before, "before"), _timelines(after, "after")
    sides = [[_Side(t, per) for t in side] for side in (old, new)]
    over_runs = min(len(old), len(new)) > 1
    changes = [
        _change(key, sides[0], sides[1], over_runs)
        for key in dict.fromkeys(k for s in (*sides[0], *sides[1]) for k in s.own)
    ]
    adjusted = holm([c.p for c in changes]) if changes else []
    changes = [replace(c, p=p, clear=over_runs and _is_clear(c, p)) for c, p in zip(changes, adjusted, strict=True)]
    totals = [np.array([s.elapsed for s in side]) for side in sides]
    run = _over_runs(totals[0], totals[1])
    calls = sum(c.change_ns for c in changes)
    alone = all(len(used_lanes(t)) <= 1 for t in (*old, *new))
    return ProfileDiff(
        tuple(sorted(changes, key=lambda c: (-abs(c.change_ns), c.name, c.device))), run.before, run.after, run.change,
        run.interval if over_runs else None, run.change - calls if alone else None, (len(old), len(new)),
        tuple(_notes(old, new, alone, per)),
    )  # fmt: skip


def _timelines(profiles: Profiles, side: str) -> list[Timeline]:
    items = list(profiles) if isinstance(profiles, (list, tuple)) else [profiles]
    timelines = [g if isinstance(g, Timeline) else getattr(g, "timeline", None) for g in items]
    if not timelines or not all(isinstance(t, Timeline) for t in timelines):
        raise ArgumentError(
            f"diff: {side} must be a profile or a list of profiles of the same work, given a {type(profiles).__name__}."
        )
    return [t for t in timelines if t is not None]


class _Side:
    """One profile: own times of the calls of each operation in order of time, and the kernels that ran."""

    def __init__(self, t: Timeline, per: str | None) -> None:
        self.units = count_entries(t).get(per, 0) if per is not None else 1
        if not self.units:
            names = ", ".join(escape.visible(name) for name in count_entries(t)) or "none"
            raise ArgumentError(f"diff: per={per!r} is no scope of every profile; there are {names}.")
        self.elapsed = t.elapsed_total_ns / self.units
        keys: dict[Key, int] = {}
        group_of_what = np.full(len(t.whats), -1, np.int64)
        self.kernels: dict[Key, dict[str, None]] = {}
        for i, w in enumerate(t.whats):
            if w.kind in CALLS:
                key: Key = (w.kind, w.name, w.device)
                group_of_what[i] = keys.setdefault(key, len(keys))
                self.kernels.setdefault(key, {})[w.kernel] = None
        group_of_span, own = group_of_what[t.what], own_ns(t)
        self.own: dict[Key, Floats] = {}
        for key, n in keys.items():
            spans = np.flatnonzero(group_of_span == n)
            if len(spans):
                self.own[key] = own[spans[np.argsort(t.start_ns[spans], kind="stable")]] / self.units

    def total(self, key: Key) -> float:
        return float(self.own[key].sum()) if key in self.own else 0.0

    def count(self, key: Key) -> float:
        return len(self.own.get(key, ())) / self.units


def count_entries(t: Timeline) -> dict[str, int]:
    """Return the number of times each scope and each compiled program was entered."""
    times = np.bincount(t.what, minlength=len(t.whats)).tolist()
    out: dict[str, int] = {}
    for w, n in zip(t.whats, times, strict=True):
        if w.kind in PARTS and n:
            out[w.name] = out.get(w.name, 0) + n
    return out


class Shift(NamedTuple):
    """The distance of one sample from another."""

    before: float
    after: float
    change: float
    interval: Interval | None
    p: float  # p-value of their being alike


def _change(key: Key, old: list[_Side], new: list[_Side], over_runs: bool) -> OpChange:
    counts = [sum(s.count(key) for s in side) / len(side) for side in (old, new)]
    if over_runs:
        shift = _over_runs(*(np.array([s.total(key) for s in side]) for side in (old, new)))
    else:
        shift = _over_calls(_calls(old, key), _calls(new, key), len(old), len(new))
    kernels_run = [", ".join(dict.fromkeys(k for s in side for k in s.kernels.get(key, ()))) for side in (old, new)]
    kernels = " → ".join(kernels_run) if all(kernels_run) and kernels_run[0] != kernels_run[1] else ""
    return OpChange(key[1], key[2], *shift[:4], counts[0], counts[1], shift.p, False, kernels)


def _over_runs(old: Floats, new: Floats) -> Shift:
    """Return the shift of the times of repetitions."""
    estimate = unpaired([[v] for v in old], [[v] for v in new], [0.95])
    return _shift(
        float(np.median(old)), float(np.median(new)), estimate.difference, estimate.intervals[0.95], estimate.p
    )


def _calls(side: list[_Side], key: Key) -> Floats:
    return np.concatenate([s.own.get(key, np.zeros(0)) for s in side])


def _over_calls(old: Floats, new: Floats, *runs: int) -> Shift:
    """Return the shift of the times of calls, with a bootstrap over blocks of calls."""
    blocks = [_blocks(calls) for calls in (old, new)]
    source = bits(seed_of(blocks[0], blocks[1]))
    resampled = [_resample(source, b) / n for b, n in zip(blocks, runs, strict=True)]
    low, high = np.quantile(resampled[1] - resampled[0], (0.025, 0.975))
    sums = [float(calls.sum()) / n for calls, n in zip((old, new), runs, strict=True)]
    each = [b * (len(b) / len(calls)) if len(calls) else b for b, calls in zip(blocks, (old, new), strict=True)]
    enough = min(map(len, blocks)) > 1
    p = brunner_munzel_p(each[0], each[1]) if enough else 1.0
    return _shift(sums[0], sums[1], sums[1] - sums[0], (float(low), float(high)) if enough else None, p)


def _shift(before: float, after: float, change: float, interval: Interval | None, p: float) -> Shift:
    """Return a shift in thousandths of a ns: rounding errors of the division by units are no change."""
    ends = None if interval is None else (round(interval[0], 3), round(interval[1], 3))
    return Shift(round(before, 3), round(after, 3), round(change, 3), ends, p)


def _blocks(calls: Floats) -> Floats:
    """Return the sums of blocks of consecutive calls, equal in length up to one call."""
    if not len(calls):
        return np.zeros(0)
    parts = min(len(calls), BLOCKS)
    edges = np.arange(parts) * len(calls) // parts
    return np.add.reduceat(calls, edges)


def _resample(source: np.random.PCG64, blocks: Floats) -> Floats:
    """Return sums of as many blocks as there are, drawn with replacement."""
    if not len(blocks):
        return np.zeros(RESAMPLES)
    return blocks[draws(source, RESAMPLES, len(blocks))].sum(axis=1)


def _is_clear(c: OpChange, p: float) -> bool:
    excludes_zero = c.interval is not None and (c.interval[0] > 0 or c.interval[1] < 0)
    return excludes_zero and (p < ALPHA or c.count_before != c.count_after)


def _notes(old: list[Timeline], new: list[Timeline], alone: bool, per: str | None) -> list[str]:
    out = [f"times and calls are of one {per}"] if per is not None else []
    for name, n in count_entries(old[0]).items():
        if per is None and (now := count_entries(new[0]).get(name, n)) != n:
            out.append(
                f"{name} was entered {n} → {now} times; if that is one unit of the work, compare with per={name!r}"
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

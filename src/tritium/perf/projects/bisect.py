"""The commit that made something slower, with few builds: a binary search whose every step is a sequential test.

Knows nothing of git, builds or programs: a `Probe` prepares commits and measures them. The good end, the bad end and the
commit in question run side by side, so that drift of the machine cancels. In each round its time is compared with the middle
between the two ends: below, it is still fast; above, it is slow. Rounds are added at planned looks until the gate's exact
interval (of Walsh averages, which a few disturbed rounds hardly move) excludes the other side, and no further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tritium.errors import ArgumentError, BuildError
from tritium.perf.stats.estimates import hodges_lehmann, walsh_interval

LOOK = 12  # rounds between two looks; the least p of 12 signed ranks is 0.0005
LOOKS = 16
ALPHA = 0.01  # of one decision; each of 16 looks has a sixteenth of it (Bonferroni)
MARGIN = 0.03  # the least slow-down that is searched
Side = Literal["good", "bad", "unknown"]
Rounds = list[list[float]]  # log seconds: round, commit


class Probe(Protocol):
    """The world of a search: commits that can be built and measured."""

    def prepare(self, commit: str) -> None:
        """Build a commit; BuildError: it cannot be built."""

    def measure(self, commits: Sequence[str], rounds: int, look: int) -> Rounds:
        """Return the logarithm of the seconds of each commit in each round, measured side by side."""

    def release(self, commit: str) -> None:
        """Forget a commit that is not needed any more."""


@dataclass(frozen=True)
class Test:
    """One decision: a commit beside the two ends."""

    commit: str
    side: Side
    ratio: float | None = None  # to the good end
    rounds: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Bisection:
    """The outcome of a search."""

    culprit: str  # the first slow commit; "": not decided
    ratio: float  # of the bad end to the good one
    interval: tuple[float, float]
    suspects: tuple[str, ...]  # what it can be: one commit, or those that could not be told apart
    tests: tuple[Test, ...]
    builds: int
    reason: str = ""


@dataclass
class Search:
    """The state of one search over commits, oldest first; the first is the good end, the last the bad one."""

    commits: Sequence[str]
    probe: Probe
    margin: float = MARGIN
    alpha: float = ALPHA
    report: Callable[[str], None] = lambda _: None
    tests: list[Test] = field(default_factory=list)
    builds: int = 0
    skipped: set[str] = field(default_factory=set)

    def run(self) -> Bisection:
        """Return the commit that made it slower, or those it is among."""
        if len(self.commits) < 2:
            raise ArgumentError(
                f"bisect: {len(self.commits)} commit was given; a good one and a later bad one are needed."
            )
        self._built(self.commits[0])
        self._built(self.commits[-1])
        effect, interval, certain = self._ends()
        if not certain:
            reason = (
                "the bad end is not slower than the good one by the margin, with certainty: nothing to search. Give other ends, "
                "a smaller --threshold, or a quieter machine"
            )
            return Bisection("", math.exp(effect), interval, (), tuple(self.tests), self.builds, reason)
        low, high = 0, len(self.commits) - 1
        while high - low > 1:
            place = self._next(low, high)
            if place is None:
                break
            side = self._decided(self.commits[place], effect)
            if side == "unknown":
                self.skipped.add(self.commits[place])
            elif side == "good":
                low = place
            else:
                high = place
        suspects = tuple(self.commits[low + 1 : high + 1])
        culprit = suspects[0] if len(suspects) == 1 else ""
        reason = "" if culprit else "the commits between could not be built or told apart"
        return Bisection(culprit, math.exp(effect), interval, suspects, tuple(self.tests), self.builds, reason)

    def _next(self, low: int, high: int) -> int | None:
        """Return the place nearest to the middle that was not skipped; None where all were."""
        places = [i for i in range(low + 1, high) if self.commits[i] not in self.skipped]
        return min(places, key=lambda i: (abs(i - (low + high) / 2), i), default=None)

    def _built(self, commit: str) -> None:
        self.builds += 1
        self.probe.prepare(commit)

    def _ends(self) -> tuple[float, tuple[float, float], bool]:
        """Return the log ratio of the two ends, its interval as ratios, and whether it is a slow-down for certain."""
        ends = (self.commits[0], self.commits[-1])
        values: list[float] = []
        effect, interval, certain = 0.0, (1.0, 1.0), False
        for look in range(LOOKS):
            values += [bad - good for good, bad in self.probe.measure(ends, LOOK, look)]
            effect = hodges_lehmann(values)
            low, high = walsh_interval(values)
            interval = math.exp(low), math.exp(high)
            certain = self._sign(values) > 0 and effect >= math.log1p(self.margin)
            if certain or high < math.log1p(self.margin):
                break
        side: Side = "bad" if certain else "unknown"
        self._note(Test(ends[1], side, math.exp(effect), len(values)))
        return effect, interval, certain

    def _sign(self, values: Sequence[float]) -> int:
        """Return the sign of values as far as it is certain: 1, -1, or 0 where it is not."""
        low, high = walsh_interval(values, 1 - self.alpha / LOOKS)
        return 1 if low > 0 else -1 if high < 0 else 0

    def _decided(self, commit: str, effect: float) -> Side:
        """Return the side of a commit: that of the end it is as fast as."""
        try:
            self._built(commit)
        except BuildError as error:
            self._note(Test(commit, "unknown", reason=str(error)))
            return "unknown"
        ends = self.commits[0], self.commits[-1]
        beyond: list[float] = []
        ratios: list[float] = []
        side: Side = "unknown"
        for look in range(LOOKS):
            try:
                rows = self.probe.measure((ends[0], commit, ends[1]), LOOK, look)
            except BuildError as error:  # it was built, and does not run
                self._note(Test(commit, "unknown", reason=str(error)))
                self.probe.release(commit)
                return "unknown"
            beyond += [here - (good + bad) / 2 for good, here, bad in rows]
            ratios += [here - good for good, here, _ in rows]
            sign = self._sign(beyond)
            if sign:
                side = "bad" if sign > 0 else "good"
                break
        self.probe.release(commit)
        reason = "" if side != "unknown" else f"between the two ends after {len(beyond)} rounds"
        self._note(Test(commit, side, math.exp(hodges_lehmann(ratios)), len(beyond), reason))
        return side

    def _note(self, test: Test) -> None:
        self.tests.append(test)
        ratio = "" if test.ratio is None else f", {100 * (test.ratio - 1):+.1f} % after {test.rounds} rounds"
        self.report(f"{test.commit[:10]}: {test.side}{ratio}{f' ({test.reason})' if test.reason else ''}")


def bisect(
    commits: Sequence[str], probe: Probe, *, margin: float = MARGIN, report: Callable[[str], None] = lambda _: None
) -> Bisection:
    """Return the first slow commit among commits, oldest first, of which the first is fast and the last is slow."""
    return Search(commits, probe, margin, report=report).run()

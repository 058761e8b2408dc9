"""The same suite measured again and again, judged beside a baseline, and alerts where it got slower.

Knows nothing of the command line. A round that fails is told once and the next one goes on; moments that were missed are not
made up for. The baseline is what was given, else the first good round, kept for the next start.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tritium import escape
from tritium.errors import ArgumentError, FormatError, TritiumError
from tritium.perf.amounts import seconds_text
from tritium.perf.formats.exports import Family, Sample, exposition, prometheus
from tritium.perf.gate import noise, regression
from tritium.perf.gate.compare import compare_stored
from tritium.perf.gate.drift import OTHERS
from tritium.perf.gate.verdict import Rules, Suite, Verdict
from tritium.perf.records import json_io as records
from tritium.perf.records.run import PLANS, Results
from tritium.perf.stats.estimates import describe
from tritium.perf.store import results as store
from tritium.perf.suites.config import Alerts
from tritium.perf.work.canary import is_canary
from tritium.see.monitor.alerts import Alert, Desk, Level, Standing
from tritium.settings import log

QUICK = "quick"  # the cases of the suite `regression`, by the quick plan
ROUND = "round"  # whether the last round could be measured
COMPARISON = "comparison"  # whether it could be compared


# ---- one round


def measurement(
    suite: str | None = None, baseline: Results | None = None, *, own: Sequence[str] = (), threads: int | None = None,
    generations: int | None = None,
) -> Callable[[int], Results]:  # fmt: skip
    """A function that measures one round: the suite, or the cases of the baseline where no suite is named.

    It takes the number of the round. Only Tritium itself is measured, not the libraries beside it. `own`: benchmarks of the
    user's that are measured too.
    """
    from tritium.perf.engine.measuring import measure
    from tritium.perf.suites import suites

    named = suite or (QUICK if baseline is None else None)
    name = "regression" if named in (QUICK, None) else str(named)
    options = suites.options_of(name, plan=PLANS["quick" if named == QUICK else "default"], own=own)
    options = replace(options.changed(threads=threads, generations=generations), peers=("none",))
    if baseline is not None and named is None:
        options, grid = regression.as_before(baseline, options)
        kept = tuple(arm for arm in grid.arms if arm.name not in OTHERS)
        grid = replace(grid, arms=kept or grid.arms)
    else:
        grid = suites.grid(options)
    name = options.suite
    if not grid.cases:
        raise ArgumentError(f"{name}: no case is left to measure. {' '.join(grid.notes)}")
    command = f"tritium monitor --suite {named or name}"  # not as typed: addresses of webhooks are secrets

    def measured(number: int) -> Results:
        plan = replace(options.plan, seed=options.plan.seed + number)
        return measure(grid.cases, grid.arms, plan, kind="monitor", suite=name, notes=grid.notes, command=command)

    return measured


def rules_of(levels: Alerts) -> Rules:
    """By which a round is judged: from the warning on it is slower, from the critical share on it is critical."""
    rules = regression.rules_of(levels.warning, paired=False, noise_floor=noise.noise_floor())
    return replace(rules, warning=levels.warning, critical=levels.critical)


# ---- what a round says


def standings(suite: Suite) -> list[Standing]:
    """How every case stands by its verdict. What could not be decided says nothing: the level stays as it was."""
    out = [f for v in suite.verdicts if (f := _of_verdict(v)) is not None]
    unlike = suite.of("NOT COMPARABLE")
    whole = bool(unlike) and len(unlike) == len(suite.verdicts)
    says = unlike[0].reason if whole else ""
    out.append(Standing(COMPARISON, "the comparison with the baseline", level="warning" if whole else "ok", says=says))
    return out


def _of_verdict(v: Verdict) -> Standing | None:
    level = _level(v)
    if level is None:
        return None
    if v.outcome == "MISSING":
        says = v.reason
    elif v.change is None:
        says = v.reason or v.outcome.lower()
    else:
        low, high = v.interval95 or v.interval or (v.ratio, v.ratio)
        says = f"{v.change:+.1%} beside the baseline ({low:.3f} to {high:.3f} times, 95 %)"
    return Standing(
        "change", v.case, v.arm, v.metric, level, says, value=v.new, base=v.old, unit=v.unit, ratio=v.ratio,
        interval=v.interval95 or v.interval,
    )  # fmt: skip


def _level(v: Verdict) -> Level | None:
    if v.outcome == "SLOWER":
        return v.level or "ok"  # slower by less than the warning
    if v.outcome == "MISSING":
        return "critical"
    undecided = v.outcome == "NOT COMPARABLE" or (v.outcome == "INCONCLUSIVE" and not v.passes)
    return None if undecided else "ok"


def over_limit(results: Results, limit_s: float) -> list[Standing]:
    """Which calls certainly take longer than an absolute limit: their whole interval lies above it."""
    out = []
    for run in results:
        wall = run.of("wall")
        if run.status != "ok" or wall is None or not wall.flat or is_canary(run.case) or run.arm in OTHERS:
            continue
        s = describe(wall.flat)
        over = s.interval[0] > limit_s
        says = f"a call takes {seconds_text(s.median)}; the limit is {seconds_text(limit_s)}"
        out.append(
            Standing("limit", run.case, run.arm, "wall", "critical" if over else "ok", says, s.median, limit_s, "s", None, s.interval)
        )  # fmt: skip
    return out


@dataclass(frozen=True)
class Round:
    """What one round did."""

    number: int
    at: str
    elapsed_s: float
    alerts: tuple[Alert, ...] = ()
    results: Results | None = None
    suite: Suite | None = None  # None: nothing to compare with, or it failed
    baseline: bool = False  # it became the baseline
    failed: str = ""
    next_s: float | None = None  # until the next one
    open: int = 0  # alerts that are open now, those of earlier rounds too

    def line(self) -> str:
        """For a terminal or a log."""
        if self.failed:
            said = f"failed: {escape.terminal(self.failed, 300)}"
        elif self.suite is None:
            said = "is the baseline from now on" if self.baseline else "was interrupted"
        else:
            said = ", ".join(f"{n} {outcome}" for outcome, n in self.suite.counts.items() if n) or "nothing was judged"
        told = f"; {len(self.alerts)} alert{'s' * (len(self.alerts) != 1)}" if self.alerts else ""
        still = f"; open: {self.open}" if self.open else ""
        return f"{self.at} round {self.number} ({self.elapsed_s:.0f} s) {said}{told}{still}"


# ---- the loop


class Monitor:
    """Measures at an interval until it is stopped, or so many times.

    `stop()` may be called from another thread; `interrupt` is for signals: it breaks off waiting and measuring, never the
    delivery of alerts.
    """

    def __init__(
        self,
        measure: Callable[[int], Results],
        desk: Desk,
        *,
        every_s: float = 3600.0,
        levels: Alerts = Alerts(),
        limit_s: float | None = None,
        baseline: Results | None = None,
        keep_baseline: Path | None = None,
        keep: Callable[[Results], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
        now: Callable[[], str] = records.utc_now,
    ) -> None:
        self.measure, self.desk, self.every_s, self.limit_s = measure, desk, every_s, limit_s
        self.levels, self.baseline, self.keep_baseline, self.keep = levels, baseline, keep_baseline, keep
        self.rounds = self.failures = 0
        self.last: Round | None = None
        self._clock, self._now = clock, now
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait  # True: asked to stop meanwhile
        self._asked = self._breakable = False
        if baseline is None and keep_baseline is not None and keep_baseline.is_file():
            self.baseline = _kept(keep_baseline)

    def run(self, times: int | None = None, report: Callable[[Round], object] = lambda _: None) -> Level:
        """Round after round; gives the worst level that is open at the end."""
        began, number = self._clock(), 0
        while not self._stopping and (times is None or number < times):
            number += 1
            found = self._round(number)
            rest = None
            if not self._stopping and number != times:
                passed = self._clock() - began
                rest = (passed // self.every_s + 1) * self.every_s - passed  # moments that were missed stay so
            self.last = found = replace(found, next_s=rest, open=len(self.desk.levels))
            report(found)
            if rest is not None:
                self._breakably(partial(self._wait, rest))
        return self.desk.worst

    def stop(self) -> None:
        """End after what is being done."""
        self._ended.set()

    def interrupt(self, *_: object) -> None:
        """As a handler of signals: end now where that is harmless, else after what is being done."""
        again, self._asked = self._asked, True
        if self._breakable or again:
            raise KeyboardInterrupt

    @property
    def _stopping(self) -> bool:
        return self._asked or self._ended.is_set()

    def _breakably(self, act: Callable[[], object]) -> None:
        """Do what a signal may end at once."""
        try:
            self._breakable = True
            if not self._asked:
                act()
        except KeyboardInterrupt:
            self._asked = True
        finally:
            self._breakable = False

    def _round(self, number: int) -> Round:
        at, began = self._now(), self._clock()
        results, failed = self._measured(number)
        if self._stopping and (results is None or not results.complete):
            return Round(number, at, self._clock() - began)
        suite, more, first = None, list[Standing](), False
        if results is not None and not failed:
            suite, more, first, failed = self._judged(results)
        self.rounds += 1
        self.failures += bool(failed)
        alerts = self.desk.tell([Standing(ROUND, "the round", level="warning" if failed else "ok", says=failed), *more])
        return Round(number, at, self._clock() - began, tuple(alerts), results, suite, first, failed)

    def _measured(self, number: int) -> tuple[Results | None, str]:
        """The results of a round, and why it failed. Whatever a measurement raises, the loop goes on."""
        results: Results | None = None
        why = "it was interrupted"

        def act() -> None:
            nonlocal results, why
            try:
                results, why = self.measure(number), ""
            except Exception as error:
                log.warning("monitor: round %d failed%s", number, _traced(error))
                why = escape.visible(f"{type(error).__name__}: {error}", 300)

        self._breakably(act)
        if results is not None and not any(run.status == "ok" for run in results if not is_canary(run.case)):
            reasons = [f"{run.case}: {run.status}: {run.reason}" for run in results]
            why = escape.visible("nothing could be measured. " + "; ".join(reasons[:1]), 300)
        if results is not None and not results.complete:  # by Ctrl-C, which a measurement takes to itself
            self._asked, why = True, "it was interrupted"
        return results, why

    def _judged(self, results: Results) -> tuple[Suite | None, list[Standing], bool, str]:
        """The verdicts, what they say, whether this round became the baseline, and why judging failed."""
        self._kept(results)
        more = over_limit(results, self.limit_s) if self.limit_s is not None else []
        if self.baseline is None:
            self.baseline = results
            self._keep_first(results)
            return None, more, True, ""
        try:
            suite = compare_stored(self.baseline, results, rules_of(self.levels))
        except Exception as error:  # a round that cannot be judged is one that failed
            log.warning("monitor: a round could not be judged%s", _traced(error))
            return None, more, False, escape.visible(f"{type(error).__name__}: {error}", 300)
        return suite, [*standings(suite), *more], False, ""

    def _kept(self, results: Results) -> None:
        if self.keep is None:
            return
        try:
            self.keep(results)
        except Exception as error:  # a history that cannot be written must not end the watch
            log.error("monitor: the round is not kept: %s", escape.terminal(str(error), 300))

    def _keep_first(self, results: Results) -> None:
        if self.keep_baseline is not None:
            try:
                store.save(replace(results, kind="baseline", name="first round"), self.keep_baseline)
            except (TritiumError, OSError) as error:
                log.error("monitor: the baseline is not kept for the next start: %s", escape.terminal(str(error), 300))

    # for Prometheus

    def page(self) -> str:
        """What Prometheus reads: the last round's figures, how many rounds there were, and what is open."""
        last = self.last
        opened = [
            Sample(1, {"kind": kind, "case": case, "arm": arm, "metric": metric, "level": level})
            for (kind, case, arm, metric), level in list(self.desk.levels.items())
        ]
        verdicts = last.suite.verdicts if last is not None and last.suite is not None else ()
        ratios = [
            Sample(v.ratio, {"case": v.case, "arm": v.arm, "metric": v.metric, "outcome": v.outcome})
            for v in verdicts
            if v.ratio is not None
        ]
        text = exposition(
            [
                Family("tritium_monitor_rounds", "Rounds since the start.", [Sample(self.rounds)]),
                Family("tritium_monitor_failed_rounds", "Rounds that failed.", [Sample(self.failures)]),
                Family("tritium_monitor_interval_seconds", "From round to round.", [Sample(self.every_s)]),
                Family("tritium_monitor_alert", "Alerts that are open.", opened),
                Family("tritium_monitor_ratio", "The last round beside the baseline; above 1 is slower.", ratios),
            ]
        )
        return text + (prometheus(last.results) if last is not None and last.results is not None else "")


def _kept(path: Path) -> Results:
    try:
        return store.load(path)
    except FormatError as error:
        raise FormatError(f"{error} It is the baseline of the rounds before; begin anew with --forget.") from None


def _traced(error: Exception) -> str:
    """Where an error came from, for a log, line by line and nothing in them obeyed; "" for errors raised on purpose."""
    if isinstance(error, TritiumError):
        return ""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "".join(f"\n  {escape.terminal(line, None)}" for line in lines)

"""A monitor: measures a suite at an interval, compares each round with a baseline, and sends alerts where it got slower.

A failed round is reported once, and the next one runs; missed rounds are skipped. The baseline is the given one, else
the first good round, which is saved for the next start.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tritium import escape
from tritium.arguments import checked_class
from tritium.errors import ArgumentError, FormatError, TritiumError
from tritium.perf.amounts import seconds_text
from tritium.perf.formats.exports import prometheus
from tritium.perf.formats.telemetry import Family, Sample, exposition
from tritium.perf.gate import noise, regression
from tritium.perf.gate.compare import compare_stored
from tritium.perf.gate.page import QUIETER, joint_advice
from tritium.perf.gate.separate import OTHERS
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
ROUND = "round"  # the last round was measured or failed
COMPARISON = "comparison"  # it could be compared or not
MISSING = "missing"  # a case of the baseline was measured or not: told even where its change was critical before
BLIND = "blind"  # the last round could decide some case or none


# ---- one round


def measurement(
    suite: str | None = None, baseline: Results | None = None, *, own: Sequence[str] = (), threads: int | None = None,
    generations: int | None = None,
) -> Callable[[int], Results]:  # fmt: skip
    """Return a function that measures one round: the suite, or the cases of the baseline where no suite is named.

    Its argument is the number of the round. Only Tritium is measured, no peer libraries. `own`: the user's own benchmarks,
    measured as well.
    """
    from tritium.perf.engine.measuring import measure
    from tritium.perf.suites import suites

    suite_name = suite or (QUICK if baseline is None else None)
    name = "regression" if suite_name in (QUICK, None) else str(suite_name)
    options = suites.options_of(name, plan=PLANS["quick" if suite_name == QUICK else "default"], own=own)
    options = replace(options.changed(threads=threads, generations=generations), peers=("none",))
    if baseline is not None and suite_name is None:
        options, grid = regression.as_before(baseline, options)
        arms = tuple(arm for arm in grid.arms if arm.name not in OTHERS)
        grid = replace(grid, arms=arms or grid.arms)
    else:
        grid = suites.grid(options)
    name = options.suite
    if not grid.cases:
        raise ArgumentError(f"{name}: no case is left to measure. {' '.join(grid.notes)}")
    command = f"tritium monitor --suite {suite_name or name}"  # not as typed: webhook URLs are secrets

    def measure_round(number: int) -> Results:
        plan = replace(options.plan, seed=options.plan.seed + number)
        return measure(grid.cases, grid.arms, plan, kind="monitor", suite=name, notes=grid.notes, command=command)

    return measure_round


def rules_of(levels: Alerts) -> Rules:
    """Return the rules of a round: slower from the warning share on, critical from the critical share on."""
    rules = regression.rules_of(levels.warning, paired=False, known=noise.known())
    return replace(rules, warning=levels.warning, critical=levels.critical)


# ---- the standings of a round


def standings(suite: Suite) -> list[Standing]:
    """Return the level of every case by its verdict. An undecided case is left out: its level stays unchanged."""
    out = [f for v in suite.verdicts for f in _standings_of(v)]
    out.append(Standing(BLIND, "all cases", level="warning" if is_blind(suite) else "ok", says=_why_blind(suite)))
    incomparable = suite.of("NOT COMPARABLE")
    all_incomparable = bool(incomparable) and len(incomparable) + suite.counts["MISSING"] == len(suite.verdicts)
    reason = incomparable[0].reason if all_incomparable else ""
    out.append(
        Standing(
            COMPARISON, "the comparison with the baseline", level="warning" if all_incomparable else "ok", says=reason
        )
    )
    return out


def is_blind(suite: Suite) -> bool:
    """Return True if cases were timed and not one could be decided: a slowdown would not be noticed."""
    timed = [v for v in suite.verdicts if not v.exact and v.outcome != "MISSING"]
    return bool(timed) and all(v.outcome == "INCONCLUSIVE" and v.sensitivity is None for v in timed)


def _why_blind(suite: Suite) -> str:
    """Return why a blind round could decide nothing, and what to do; "" for any other."""
    if not is_blind(suite):
        return ""
    undecided = [v for v in suite.of("INCONCLUSIVE") if not v.exact]
    largest = max((v.change for v in undecided if v.change is not None), default=None)
    change = "" if largest is None else f", the largest change {largest:+.0%}"
    reason = next((v.reason for v in undecided if v.reason), "the intervals are wide")
    more = joint_advice(undecided, suite.process_s) or QUIETER
    sentences = (
        f"no verdict can be reached: {len(undecided)} INCONCLUSIVE{change}; {reason}",
        suite.noise,
        more.capitalize(),
    )
    return ". ".join(filter(None, sentences))


def _standings_of(v: Verdict) -> Iterator[Standing]:
    """Yield if the case was measured, and the level of its change; the latter stays open while the case is missing."""
    if v.metric == "wall":
        lost = v.outcome == "MISSING"
        yield Standing(
            MISSING, v.case, v.arm, v.metric, "critical" if lost else "ok", v.reason if lost else "measured again"
        )
    level = _level(v)
    if level is None:
        return
    if v.change is None:
        sentence = v.reason or v.outcome.lower()
    else:
        low, high = v.interval95 or v.interval or (v.ratio, v.ratio)
        sentence = f"{v.change:+.1%} beside the baseline ({low:.3f} to {high:.3f} times, 95 %)"
    yield Standing(
        "change", v.case, v.arm, v.metric, level, sentence, value=v.new, base=v.old, unit=v.unit, ratio=v.ratio,
        interval=v.interval95 or v.interval,
    )  # fmt: skip


def _level(v: Verdict) -> Level | None:
    if v.outcome == "SLOWER":
        return v.level or "ok"  # slower by less than the warning
    undecided = v.outcome in ("NOT COMPARABLE", "MISSING") or (v.outcome == "INCONCLUSIVE" and not v.passes)
    return None if undecided else "ok"


def over_limit(results: Results, limit_s: float) -> list[Standing]:
    """Return the levels of all calls against an absolute limit; critical where the whole interval is above it."""
    out = []
    for run in results:
        wall = run.of("wall")
        if run.status != "ok" or wall is None or not wall.flat or is_canary(run.case) or run.arm in OTHERS:
            continue
        s = describe(wall.flat)
        over = s.interval[0] > limit_s
        sentence = f"a call takes {seconds_text(s.median)}; the limit is {seconds_text(limit_s)}"
        out.append(
            Standing("limit", run.case, run.arm, "wall", "critical" if over else "ok", sentence, s.median, limit_s, "s", None, s.interval)
        )  # fmt: skip
    return out


@dataclass(frozen=True)
class Round:
    """The outcome of one round."""

    number: int
    at: str  # its start, UTC
    elapsed_s: float
    alerts: tuple[Alert, ...] = ()
    results: Results | None = None
    suite: Suite | None = None  # None: nothing to compare with, or it failed
    baseline: bool = False  # it became the baseline
    failed: str = ""
    next_s: float | None = None  # until the next one
    open: int = 0  # alerts that are open now, those of earlier rounds too

    def line(self) -> str:
        """Return the round as a line for a terminal or a log."""
        if self.failed:
            outcome_text = f"failed: {escape.terminal(self.failed, 300)}"
        elif self.suite is None:
            outcome_text = "is the baseline from now on" if self.baseline else "was interrupted"
        else:
            outcome_text = (
                ", ".join(f"{n} {outcome}" for outcome, n in self.suite.counts.items() if n) or "nothing was judged"
            )
            if is_blind(self.suite):
                outcome_text = f"is blind, no case could be decided: {outcome_text}"
        alerts = f"; {len(self.alerts)} alert{'s' * (len(self.alerts) != 1)}" if self.alerts else ""
        open_alerts = f"; open: {self.open}" if self.open else ""
        return f"{self.at} round {self.number} ({self.elapsed_s:.0f} s) {outcome_text}{alerts}{open_alerts}"


# ---- the loop


@checked_class
class Monitor:
    """A loop that measures at an interval until it is stopped, or a number of times.

    `stop()` may be called from another thread; `interrupt` is a signal handler: it interrupts waiting and measuring, never
    the delivery of alerts.
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
        self._wait = wait or self._ended.wait  # returns True if stopped meanwhile
        self._interrupted = self._breakable = False
        if baseline is None and keep_baseline is not None and keep_baseline.is_file():
            self.baseline = _load_baseline(keep_baseline)

    def run(self, times: int | None = None, report: Callable[[Round], object] = lambda _: None) -> Level:
        """Run rounds one after another; return the worst level that is open at the end."""
        start_s, number = self._clock(), 0
        while not self._stopping and (times is None or number < times):
            number += 1
            round_ = self._round(number)
            wait_s = None
            if not self._stopping and number != times:
                elapsed_s = self._clock() - start_s
                wait_s = (elapsed_s // self.every_s + 1) * self.every_s - elapsed_s  # missed rounds are skipped
            self.last = round_ = replace(round_, next_s=wait_s, open=len(self.desk.levels))
            report(round_)
            if wait_s is not None:
                self._run_breakable(partial(self._wait, wait_s))
        return self.desk.worst

    def stop(self) -> None:
        """End after the current round."""
        self._ended.set()

    def interrupt(self, *_: object) -> None:
        """Handle a signal: end at once while waiting or measuring, else after the current step."""
        repeated, self._interrupted = self._interrupted, True
        if self._breakable or repeated:
            raise KeyboardInterrupt

    @property
    def _stopping(self) -> bool:
        return self._interrupted or self._ended.is_set()

    def _run_breakable(self, action: Callable[[], object]) -> None:
        """Run an action that a signal may interrupt."""
        try:
            self._breakable = True
            if not self._interrupted:
                action()
        except KeyboardInterrupt:
            self._interrupted = True
        finally:
            self._breakable = False

    def _round(self, number: int) -> Round:
        utc, start_s = self._now(), self._clock()
        results, failed = self._measure(number)
        if self._stopping and (results is None or not results.complete):
            return Round(number, utc, self._clock() - start_s)
        suite, levels, is_baseline = None, list[Standing](), False
        if results is not None and results.complete and (not failed or self.baseline is not None):
            suite, levels, is_baseline, unjudged = self._judge(results, store=not failed)
            failed = failed or unjudged
        self.rounds += 1
        self.failures += bool(failed)
        alerts = self.desk.tell(
            [Standing(ROUND, "the round", level="warning" if failed else "ok", says=failed), *levels]
        )
        return Round(number, utc, self._clock() - start_s, tuple(alerts), results, suite, is_baseline, failed)

    def _measure(self, number: int) -> tuple[Results | None, str]:
        """Return the results of a round, and why it failed. Whatever a measurement raises, the loop goes on."""
        results: Results | None = None
        failure = "it was interrupted"

        def measure_once() -> None:
            nonlocal results, failure
            try:
                results, failure = self.measure(number), ""
            except Exception as error:
                log.warning("monitor: round %d failed%s", number, _format_traceback(error))
                failure = escape.visible(f"{type(error).__name__}: {error}", 300)

        self._run_breakable(measure_once)
        if results is not None and not any(run.status == "ok" for run in results if not is_canary(run.case)):
            reasons = [f"{run.case}: {run.status}: {run.reason}" for run in results]
            failure = escape.visible("nothing could be measured. " + "; ".join(reasons[:1]), 300)
        if results is not None and not results.complete:  # by Ctrl-C, which the measurement caught
            self._interrupted, failure = True, "it was interrupted"
        return results, failure

    def _judge(self, results: Results, *, store: bool) -> tuple[Suite | None, list[Standing], bool, str]:
        """Return the verdicts, their levels, True if this round became the baseline, and why judging failed.

        A round of which nothing could be measured is judged too, and not stored: every case of it is missing.
        """
        if store:
            self._store(results)
        levels = over_limit(results, self.limit_s) if self.limit_s is not None else []
        if self.baseline is None:
            self.baseline = results
            self._save_baseline(results)
            return None, levels, True, ""
        try:
            suite = compare_stored(self.baseline, results, rules_of(self.levels))
        except Exception as error:  # a round that cannot be judged has failed
            log.warning("monitor: a round could not be judged%s", _format_traceback(error))
            return None, levels, False, escape.visible(f"{type(error).__name__}: {error}", 300)
        return suite, [*standings(suite), *levels], False, ""

    def _store(self, results: Results) -> None:
        if self.keep is None:
            return
        try:
            self.keep(results)
        except Exception as error:  # an unwritable history must not end the monitoring
            log.error("monitor: the round is not saved: %s", escape.terminal(str(error), 300))

    def _save_baseline(self, results: Results) -> None:
        if self.keep_baseline is not None:
            try:
                store.save(replace(results, kind="baseline", name="first round"), self.keep_baseline)
            except (TritiumError, OSError) as error:
                log.error("monitor: the baseline is not saved for the next start: %s", escape.terminal(str(error), 300))

    # for Prometheus

    def page(self) -> str:
        """Return the page for Prometheus: the figures of the last round, the number of rounds, the open alerts."""
        last = self.last
        alerts = [
            Sample(1, {"kind": kind, "case": case, "arm": arm, "metric": metric, "level": level})
            for (kind, case, arm, metric), level in list(self.desk.levels.items())
        ]
        verdicts = last.suite.verdicts if last is not None and last.suite is not None else ()
        blind = last is not None and last.suite is not None and is_blind(last.suite)
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
                Family("tritium_monitor_blind", "1: the last round could decide no case.", [Sample(float(blind))]),
                Family("tritium_monitor_alert", "Alerts that are open.", alerts),
                Family("tritium_monitor_ratio", "The last round beside the baseline; above 1 is slower.", ratios),
            ]
        )
        return text + (prometheus(last.results) if last is not None and last.results is not None else "")


def _load_baseline(path: Path) -> Results:
    try:
        return store.load(path)
    except FormatError as error:
        raise FormatError(f"{error} It is the baseline of earlier rounds; use --forget to start over.") from None


def _format_traceback(error: Exception) -> str:
    """Return the traceback of an error for a log, escaped line by line; "" for errors of Tritium."""
    if isinstance(error, TritiumError):
        return ""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "".join(f"\n  {escape.terminal(line, None)}" for line in lines)

"""The regression gate: a measurement beside a stored baseline, or beside another revision measured in the same job.

Tests are planned before the first one: at most two more looks at what is inconclusive, and one confirmation
of what is slower with fresh processes. Never "again until it is green".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tritium
from tritium.arguments import checked
from tritium.errors import ArgumentError, BaselineError
from tritium.perf.gate import noise
from tritium.perf.gate.compare import compare_paired, compare_stored, no_baseline
from tritium.perf.gate.noise import QUIET, Noise
from tritium.perf.gate.page import STATUS_TEXT
from tritium.perf.gate.verdict import Rules, Status, Suite, Verdict, is_counted, suite_of
from tritium.perf.records.case import Arm, Case
from tritium.perf.records.environment import this_environment
from tritium.perf.records.run import PLANS, Plan, Results, Run
from tritium.perf.store import baseline as baselines, results as store
from tritium.perf.suites.config import RegressionConfig, fraction
from tritium.perf.work.canary import is_canary

if TYPE_CHECKING:
    from tritium.perf.engine.measuring import Progress
    from tritium.perf.suites.config import Options
    from tritium.perf.suites.suites import Grid

STORED_MARGIN = 0.10  # of separate runs; pairs are judged by the margins of Rules
EXTRA_LOOKS = 2
FURTHER_S = 600.0  # for what the first look leaves open
COUNTED = "instructions"  # counted now where the baseline has them
Source = Results | str | os.PathLike[str]
Judge = Callable[[Results, Sequence[Case]], Suite]
Measure = Callable[[Sequence[Case], int], Results]


def rules_of(
    threshold: float | str | None = None, config: RegressionConfig | None = None, *, paired: bool, looks: int = 1,
    known: Noise = QUIET, sensitivity: float | str | None = None,
) -> Rules:  # fmt: skip
    """Return the rules of a threshold, a sensitivity and a settings file. The threshold is the margin of every timed metric.

    Without a threshold, a margin is at most half of the sensitivity: a change at the margin is found one time in two.
    """
    target = None if sensitivity is None else fraction(sensitivity, "sensitivity")
    limit = config.regression_threshold if threshold is None and config is not None else threshold
    margin = fraction(limit) if limit is not None else None if paired else STORED_MARGIN
    rules = Rules(paired=paired, looks=looks, noise_floor=known.floor, separate=known.separate, sensitivity=target)
    if limit is None and target is not None:
        margin = min(margin if margin is not None else rules.margins["wall"], target / 2)
    if margin is not None:
        rules = replace(rules, margins={m: v if is_counted(m) else margin for m, v in rules.margins.items()})
    if config is not None:
        rules = replace(
            rules, minimum_samples=config.minimum_samples, confidence=config.confidence_level,
            warning=config.alert_thresholds.warning, critical=config.alert_thresholds.critical,
        )  # fmt: skip
    return rules


def loaded(source: Source) -> Results:
    """Return results, read where needed: from a file of any format that `tt.perf.load` knows, or from a named baseline."""
    if isinstance(source, Results):
        return source
    path = Path(source)
    folder = path.is_dir() and os.sep in os.fspath(source)  # as criterion writes; a name alone is a baseline's
    return tritium.perf.load(source) if path.is_file() or folder else baselines.load(source)


@checked
def regression_check(
    baseline: Source, current: Source, threshold: float | str | None = None, *, config: RegressionConfig | None = None,
    sensitivity: float | str | None = None,
) -> Suite:  # fmt: skip
    """Compare results with earlier ones of the same machine. Without a baseline the suite reports that; it does not pass.

    With a sensitivity it passes only if so large a slow-down of any case would have been found.
    """
    results = loaded(current)
    rules = rules_of(threshold, config, paired=False, known=noise.known(), sensitivity=sensitivity)
    head = _label(current, results)
    try:
        before = loaded(baseline)
    except (BaselineError, FileNotFoundError) as error:
        return no_baseline(str(baseline), why_absent(baseline, error), head=head, paired=False, command=results.command)
    return _with_floor(replace(compare_stored(before, results, rules), base=_label(baseline, before), head=head), rules)


def _with_floor(suite: Suite, rules: Rules) -> Suite:
    """Return the suite, with a note if its margin is wider than requested."""
    requested, used = rules.margins["wall"], rules.margin("wall")
    if used <= requested:
        return suite
    note = f"the margin is {used:.1%} and not {requested:.1%}: twice the noise floor of this machine (tritium selftest --aa)"
    return replace(suite, notes=(*suite.notes, note))


def _label(source: Source, results: Results) -> str:
    """Return the name of results with their time and commit."""
    name = results.name if isinstance(source, Results) else os.fspath(source)
    origin = ", ".join(filter(None, (results.created, results.environment.commit[:12])))
    return f"{name or results.kind} ({origin})" if origin else name


def why_absent(source: Source, error: Exception) -> str:
    """Return what to do about a missing baseline."""
    if isinstance(error, BaselineError):
        return str(error)
    return f"there is no file {source}. Keep one: tritium compare --output {source}, or tritium baseline create NAME."


# ---- measuring now


@dataclass(frozen=True)
class Gated:
    """The verdicts of a gate, and everything that was measured for it."""

    suite: Suite
    results: Results
    confirmation: Results | None = None  # of what was slower, with fresh processes
    first: Suite | None = None  # the verdicts before the confirmation

    @property
    def overall_status(self) -> Status:
        return self.suite.overall_status

    @property
    def regressions_detected(self) -> tuple[Verdict, ...]:
        return self.suite.regressions_detected


def regression_test(
    cases: Sequence[Case],
    arms: Sequence[Arm],
    *,
    baseline: Source | None = None,
    plan: Plan = PLANS["default"],
    threshold: float | str | None = None,
    sensitivity: float | str | None = None,
    config: RegressionConfig | None = None,
    suite: str = "regression",
    extra_looks: int = EXTRA_LOOKS,
    further_s: float = FURTHER_S,
    confirm: bool = True,
    notes: Sequence[str] = (),
    progress: Progress | None = None,
    by: Measure | None = None,
) -> Gated:
    """Measure and compare: with a stored baseline, or, without one, the second contender with the first, side by side.

    What is undecided, or short of the sensitivity, is measured further for at most `further_s`. `by` measures cases with a seed
    where it is not the engine that does.
    """
    from tritium.perf.engine.measuring import measure

    if baseline is None and len(arms) != 2:
        raise ArgumentError(f"side by side two contenders are compared, the old one first; {len(arms)} were given.")
    rules = rules_of(
        threshold, config, paired=baseline is None, looks=1 + extra_looks, known=noise.known(), sensitivity=sensitivity
    )

    def fresh(selected: Sequence[Case], seed: int, processes: int = plan.generations) -> Results:
        if by is not None:
            return by(selected, seed)
        seeded = replace(plan, seed=plan.seed + seed, generations=processes)
        return measure(selected, arms, seeded, kind="regression", suite=suite, notes=notes, progress=progress)

    judge = _judge(baseline, arms, rules)
    results = fresh(cases, 0)
    verdicts = judge(results, ())
    for look in range(extra_looks):
        undecided = {
            v.case for v in verdicts.verdicts if v.is_open or (not v.passes and v.more_generations is not None)
        }
        processes = _further(verdicts, plan, further_s - (results.elapsed_s if look else 0.0))
        settled = verdicts.overall_status not in ("AllPass", "Inconclusive") or not undecided
        if settled or not processes or not results.complete or not plan.gates:
            break
        results = merged(results, fresh(_named(cases, undecided), 1000 * (look + 1), processes))
        verdicts = judge(results, ())
    slower = _named(cases, {v.case for v in verdicts.verdicts if v.outcome == "SLOWER" and not v.exact})
    if not confirm or not slower or not results.complete:
        return Gated(verdicts, results)
    second = fresh(slower, 5000)
    return Gated(confirmed(verdicts, judge(second, slower)), results, second, verdicts)


def _further(suite: Suite, plan: Plan, seconds: float) -> int:
    """Return how many more processes to measure within these seconds: as many as the first time, or what is missing."""
    had = min((v.generations for v in suite.verdicts if v.is_open or not v.passes), default=0)
    missing = max(plan.generations, (suite.processes or 0) - had if suite.must_reach else 0)
    return min(missing, int(seconds / suite.process_s)) if suite.process_s > 0 else missing


def _judge(baseline: Source | None, arms: Sequence[Arm], rules: Rules) -> Judge:
    """Return the function that compares results with the baseline, or contender with contender.

    With cases, the baseline's other cases do not count as missing."""
    if baseline is None:
        return lambda results, _: _with_floor(compare_paired(results, arms[0].name, arms[1].name, rules), rules)
    before = loaded(baseline)
    base = _label(baseline, before)

    def stored(results: Results, selected: Sequence[Case]) -> Suite:
        named = {case.name for case in selected}
        runs = tuple(r for r in before if r.case in named or is_canary(r.case))
        compared = compare_stored(replace(before, runs=runs) if selected else before, results, rules)
        return _with_floor(replace(compared, base=base, head="now"), rules)

    return stored


def _named(cases: Sequence[Case], names: set[str]) -> list[Case]:
    return [case for case in cases if case.name in names]


def merged(first: Results, more: Results) -> Results:
    """Return the results with the processes of a second measurement appended to the first, case by case."""
    extra = {run.key: run for run in more}
    runs = tuple(_merged(run, extra[run.key]) if run.key in extra else run for run in first)
    notes = tuple(dict.fromkeys((*first.notes, *more.notes)))
    return replace(
        first, runs=runs, notes=notes, complete=first.complete and more.complete, elapsed_s=first.elapsed_s + more.elapsed_s
    )  # fmt: skip


def _merged(first: Run, more: Run) -> Run:
    if first.status != "ok" or more.status != "ok":
        return more if first.status == "ok" else first
    other = {s.metric: s.values for s in more.series if s.kind == "measured"}
    series = tuple(replace(s, values=s.values + other.get(s.metric, ())) if s.values else s for s in first.series)
    flags = tuple(dict.fromkeys((*first.flags, *more.flags)))
    return replace(first, series=series, flags=flags, steady=first.steady and more.steady)


def confirmed(first: Suite, second: Suite) -> Suite:
    """Return the verdicts after a second measurement with fresh processes: slower is only what was slower twice."""
    again = {(v.case, v.metric, v.arm): v for v in second.verdicts}
    verdicts = []
    for v in first.verdicts:
        repeat = again.get((v.case, v.metric, v.arm))
        if v.outcome != "SLOWER" or v.exact or repeat is None:
            verdicts.append(v)
        elif repeat.outcome == "SLOWER":
            verdicts.append(replace(v, reason=f"confirmed: {repeat.ratio:.3f} in a second, fresh run"))
        else:
            reason = f"slower in the first run ({v.ratio:.3f}), not in the second" + (
                f": {repeat.reason}" if repeat.reason else ""
            )
            verdicts.append(replace(repeat, reason=reason))
    fields = {
        name: getattr(first, name)
        for name in (
            "geomean",
            "geomean_interval",
            "base",
            "head",
            "paired",
            "new_cases",
            "hard",
            "soft",
            "drift",
            "command",
            "created",
            "noise",
            "sensitivity",
            "usual_sensitivity",
            "target",
            "must_reach",
            "processes",
            "process_s",
        )
    }
    return suite_of(verdicts, gates=first.gates, notes=first.notes, **fields)


# ---- by the names of the guides


@checked
def create_baseline(
    name: str, description: str = "", *, suite: str = "regression", plan: Plan = PLANS["default"], results: Results | None = None,
    force: bool = False, progress: Progress | None = None,
) -> baselines.Version:  # fmt: skip
    """Store results under a name; without results, measure a suite now."""
    from tritium.perf.suites import suites

    baselines.check_name(name)
    if results is None:
        options = suites.options_of(suite, plan=plan)
        results = suites.measure(options, suites.grid(options), kind="baseline", progress=progress)
    return baselines.create(name, results, description, force=force)


@checked
def run_regression_tests(
    baseline: Source, *, suite: str | None = None, threshold: float | str | None = None, config: RegressionConfig | None = None,
    plan: Plan = PLANS["default"], sensitivity: float | str | None = None, progress: Progress | None = None,
) -> Gated:  # fmt: skip
    """Measure the baseline's suite and compare. `.overall_status` is AllPass, HasRegressions, HasCriticalRegressions …"""
    from tritium.perf.suites import suites

    before = loaded(baseline)
    options, grid = as_before(before, suites.options_of(suite or "regression", plan=plan), suite)
    return regression_test(
        grid.cases, grid.arms, baseline=before, plan=options.plan, threshold=threshold, sensitivity=sensitivity, config=config,
        suite=options.suite, notes=grid.notes, progress=progress,
    )  # fmt: skip


def unlike(before: Results, threads: int | None) -> Suite | None:
    """Return the verdicts on a baseline of an unlike machine, before anything is measured; None on the same machine."""
    current = this_environment(threads or before.environment.hard.threads, limits=False)
    suite = compare_stored(before, replace(before, environment=current))
    return suite if suite.hard else None


def as_before(before: Results, options: Options, suite: str | None = None) -> tuple[Options, Grid]:
    """Return what to measure beside a baseline: its cases, contenders and threads; or the suite of the options, if one is named."""
    from tritium.perf.suites import suites

    if options.plan.threads is None:
        options = options.changed(threads=before.environment.hard.threads)
    if any((series := run.of(COUNTED)) is not None and series.flat for run in before):
        options = options.changed(metrics=tuple(dict.fromkeys((*options.plan.metrics, COUNTED))))
    if suite is not None:
        return options, suites.grid(options)
    name = before.suite if before.suite in (*suites.SUITES, suites.COMPARE.name, suites.PROJECT.name) else "regression"
    options = suites.options_of(name, plan=options.plan).changed(metrics=options.plan.metrics)
    grid = suites.like(before, options)
    if not grid.cases:
        raise ArgumentError(f"no case of the baseline can be measured here. {' '.join(grid.notes)}")
    return options, grid


# ---- keeping the baseline up to date


def update_baseline(tested: Gated, name: str, *, requested: bool) -> str:
    """Store what was measured as the new baseline, only if requested and only if everything passed; return what was done."""
    if not requested:
        return ""
    status = STATUS_TEXT[tested.suite.overall_status] if tested.results.complete else "interrupted"
    if status != STATUS_TEXT["AllPass"]:
        return f"the baseline stays as it is: {status}, and only a pass may replace it"
    path = Path(name)
    if path.is_file() or path.suffix == ".json":
        backup = f", {_back_up(path)} keeps the one before" if path.is_file() else ""
        store.save(replace(tested.results, kind="baseline"), path)
        return f"the baseline {name} is now this run{backup}"
    version = baselines.create(name.partition("@")[0], tested.results, "updated after a pass", force=True)
    return f"the baseline {version.name} is now this run ({version.label})"


def _back_up(path: Path) -> str:
    """Copy a results file beside itself under the time it was measured; return the copy's name."""
    results = store.load(path)
    moment = "".join(c for c in results.created if c.isalnum())
    return store.save(results, path.with_name(f"{path.stem}-{moment}{path.suffix}")).name

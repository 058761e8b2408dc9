"""Results in, verdicts out: contenders measured side by side, or a run beside a stored one.

Pure: the same results produce the same verdicts. A case that is missing, failed, unsteady, too small or of other work is a
verdict too, never a pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from tritium.arguments import checked
from tritium.errors import ArgumentError, nearest
from tritium.perf.gate import one_process, separate
from tritium.perf.gate.judge import Estimate, Judged, decide, estimate, judge
from tritium.perf.gate.page import markdown, page
from tritium.perf.gate.verdict import (
    EXIT_CODES,
    OUTCOMES,
    Interval,
    Outcome,
    Rules,
    Suite,
    Verdict,
    allow,
    level_of,
    no_baseline,
    sensitivity_of,
    suite_of,
)
from tritium.perf.records.environment import differences
from tritium.perf.records.run import IMPORTED, Results, Run, Series
from tritium.perf.stats import estimates as stats
from tritium.perf.work.canary import is_canary

__all__ = [
    "EXIT_CODES", "OUTCOMES", "Judged", "Outcome", "Rules", "Suite", "Verdict", "allow", "compare_paired", "compare_stored",
    "judge", "markdown", "no_baseline", "page",
]  # fmt: skip

AGAIN = "Measure both revisions in one job: tritium regression-test --against REV."


@dataclass(frozen=True)
class Pair:
    """One case before and after, in one metric."""

    old: Run
    new: Run
    before: Series
    after: Series

    @property
    def metric(self) -> str:
        return self.before.metric

    @property
    def key(self) -> tuple[str, str, str]:
        return (*self.old.key, self.metric)

    def verdict(self, outcome: Outcome, rules: Rules, **fields: Any) -> Verdict:
        """Return a verdict on this pair with its names, margin and unit."""
        return Verdict(
            self.old.case, self.metric, self.old.arm, self.new.arm, outcome, margin=rules.margin(self.metric),
            unit=self.before.unit, exact=self.before.exact, **fields,
        )  # fmt: skip


# ---- which runs can be compared


def _usable(old: Run, arm: str, new: Run | None, complete: bool) -> Run | Verdict:
    """Return the current run, or the verdict on a case that was measured before and is not now."""
    if new is not None and new.status == "ok":
        return new
    if not complete and (new is None or new.status == "interrupted"):
        reason = "the run was interrupted before it"
        return Verdict(old.case, "wall", old.arm, arm, "INCONCLUSIVE", reason=reason, passes=False)
    if new is None:
        reason = "it is in the baseline and was not measured now"
    else:
        reason = f"{new.status} now, measured before" + (f": {new.reason}" if new.reason else "")
    return Verdict(old.case, "wall", old.arm, arm, "MISSING", reason=reason, passes=False)


def _unlike(old: Run, new: Run) -> str:
    """Return why two runs of the same name are different work, or "". Two contenders may be on two devices."""
    device = ("device",) if old.arm == new.arm else ()
    for name in ("operation", "shape", "precision", *device, "batch", "sequence_length", "parameters", "transfer"):
        before, after = getattr(old.context, name), getattr(new.context, name)
        if before != after:
            return f"the same name, but different work: {name} was {before}, is {after}"
    return ""


def _pairs(old: Run, new: Run, rules: Rules) -> Iterator[Pair | Verdict]:
    """Yield the metrics that both runs have, and a verdict for each metric that was measured before and is not now."""
    for metric in rules.metrics:
        before, after = old.of(metric), new.of(metric)
        if before is None or before.kind != "measured" or not before.flat:
            continue
        if after is None or after.kind != "measured" or not after.flat:
            absence = _absence(after)
            yield Verdict(
                old.case, metric, old.arm, new.arm, "INCONCLUSIVE", margin=rules.margin(metric), unit=before.unit,
                reason=f"measured before, not now: {absence}", passes=rules.sensitivity is None,
            )  # fmt: skip
            continue
        if before.exact and before.source != after.source:
            reason = f"counted by {before.source} before, by {after.source} now"
            yield Verdict(
                old.case, metric, old.arm, new.arm, "INCONCLUSIVE", margin=rules.margin(metric), unit=before.unit,
                reason=reason, passes=rules.sensitivity is None,
            )  # fmt: skip
            continue
        yield Pair(old, new, before, after)


def _absence(series: Series | None) -> str:
    """Return why a series that is needed has no values."""
    if series is None:
        return "it was not requested"
    return series.reason or {"estimate": "only an estimate"}.get(series.kind, "it has no values")


def _matched(
    runs: Sequence[tuple[Run, Run | None]], arm: str, complete: bool, rules: Rules
) -> tuple[list[Pair], list[Verdict]]:
    """Return the pairs that can be compared, and verdicts on cases that are missing or are different work."""
    pairs: list[Pair] = []
    verdicts: list[Verdict] = []
    for old, new in runs:
        current = _usable(old, arm or old.arm, new, complete)
        if isinstance(current, Verdict):
            verdicts.append(current)
        elif difference := _unlike(old, current):
            verdicts.append(
                Verdict(old.case, "wall", old.arm, current.arm, "NOT COMPARABLE", reason=difference, passes=False)
            )
        else:
            matches = list(_pairs(old, current, rules))
            pairs += [match for match in matches if isinstance(match, Pair)]
            verdicts += [match for match in matches if isinstance(match, Verdict)]
    return pairs, verdicts


def _weak(pair: Pair, rules: Rules) -> tuple[str, int | None]:
    """Return why the samples cannot decide, or "", and how many more processes would let them."""
    samples = min(one_process.samples(pair.before), one_process.samples(pair.after))
    if samples < rules.minimum_samples:
        generations = max(len(pair.after.values), 1)
        missing = math.ceil((rules.minimum_samples - samples) * generations / max(samples, 1))
        return f"{samples} samples; {rules.minimum_samples} are needed", missing
    unsteady = [name for name, run in (("before", pair.old), ("now", pair.new)) if not run.steady]
    return f"no steady state {' and '.join(unsteady)}: it was still getting faster or slower" if unsteady else "", None


# ---- one verdict


def _exact(pair: Pair, rules: Rules) -> Verdict:
    """Return the verdict on values that the same work repeats exactly (bytes, counts), without statistics."""
    a, b = pair.before.flat, pair.after.flat
    old, new = median(a), median(b)
    ratio = new / old if old else (1.0 if new == old else None)
    margin = rules.margin(pair.metric)
    apart = min(b) > max(a) or max(b) < min(a)
    outcome: Outcome
    reason = ""
    if (min(a), max(a)) == (min(b), max(b)):
        outcome, ratio = "EQUIVALENT", 1.0
    elif ratio is None:
        outcome, reason = "SLOWER", f"from 0 to {new:g} {pair.before.unit}"
    elif max(ratio, 1 / ratio if ratio else math.inf) <= 1 + margin:
        outcome = "CHANGED-SMALL" if apart else "EQUIVALENT"
    elif not apart:
        outcome, reason = "INCONCLUSIVE", "the values of one run differ by more than the two runs do"
    else:
        outcome = "SLOWER" if ratio > 1 else "FASTER"
    level = level_of(math.inf if ratio is None else ratio, rules) if outcome == "SLOWER" else ""
    return pair.verdict(
        outcome, rules, ratio=ratio, old=old, new=new, generations=min(len(pair.before.values), len(pair.after.values)),
        level=level, reason=reason, passes=outcome != "SLOWER" and (outcome != "INCONCLUSIVE" or rules.sensitivity is None),
    )  # fmt: skip


def _timed(pair: Pair, e: Estimate, judged: Judged, rules: Rules, **fields: Any) -> Verdict:
    """Return the verdict on a timed pair; INCONCLUSIVE where the samples are too few or unsteady."""
    outcome, reason, passes, more = judged.outcome, judged.reason, judged.passes, judged.more_generations
    weak, missing = _weak(pair, rules)
    if weak:
        outcome, reason, passes, more = "INCONCLUSIVE", weak, missing is None and rules.sensitivity is None, missing
    return pair.verdict(
        outcome, rules, ratio=judged.ratio, interval=judged.interval, interval95=judged.interval95,
        interval90=judged.interval90, p=judged.p, p_adjusted=judged.p_adjusted, q=judged.q, generations=e.generations,
        more_generations=more, reason=reason, passes=passes,
        level=level_of(judged.ratio, rules) if outcome == "SLOWER" else "",
        sensitivity=None if weak else judged.sensitivity, processes=judged.processes, **fields,
    )  # fmt: skip


Measured = Callable[[int], tuple[Estimate, dict[str, Any]]]  # by how many tests are judged together


def _verdicts(
    pairs: Sequence[Pair], measure: Callable[[Pair], Measured | None], rules: Rules
) -> tuple[list[Verdict], list[Estimate]]:
    """Return a verdict on every pair, the timed ones judged together, and the estimates of wall time."""
    out = [_exact(p, rules) for p in pairs if p.before.exact]
    ready = [(p, measured) for p in pairs if not p.before.exact and (measured := measure(p)) is not None]
    timed = [(p, measured(len(ready))) for p, measured in ready]
    judged = decide([e for _, (e, _) in timed], [rules.margin(p.metric) for p, _ in timed], rules)
    out += [_timed(p, e, j, rules, **fields) for (p, (e, fields)), j in zip(timed, judged, strict=True)]
    seen = {(v.case, v.arm, v.metric) for v in out}
    for p in pairs:
        if (p.old.case, p.new.arm, p.metric) not in seen:
            reason = "no values that can be matched"
            out.append(p.verdict("INCONCLUSIVE", rules, reason=reason, passes=rules.sensitivity is None))
    return out, [e for p, (e, _) in timed if p.metric == "wall"]


# ---- side by side


def log_ratios(before: Series, after: Series) -> list[list[float]]:
    """Return the log ratio of every round that both contenders measured, by process."""
    out = []
    for old, new in zip(before.values, after.values, strict=False):
        pairs = [(median(a), median(b)) for a, b in zip(old, new, strict=False) if a and b]
        logs = [math.log(b / a) for a, b in pairs if a > 0 and b > 0]
        if logs:
            out.append(logs)
    return out


@checked
def compare_paired(results: Results, base_arm: str, arm: str, rules: Rules = Rules()) -> Suite:
    """Compare two contenders of one measurement: rounds were interleaved, so each is paired with its neighbour in time."""
    for name in (base_arm, arm):
        if name not in results.arms:
            raise ArgumentError(
                f"compare_paired: no contender is called {name!r}; there are {', '.join(results.arms)}.{nearest(name, results.arms)}"
            )
    runs = [(results.of(case, base_arm), results.of(case, arm)) for case in results.cases if not is_canary(case)]
    pairs, verdicts = _matched(
        [(a, b) for a, b in runs if a is not None and a.status == "ok"], arm, results.complete, rules
    )
    new_cases = [b.case for a, b in runs if (a is None or a.status != "ok") and b is not None and b.status == "ok"]

    def measured(pair: Pair) -> Measured | None:
        ratios = log_ratios(pair.before, pair.after)
        figures = {"old": pair.before.median, "new": pair.after.median}
        return (lambda tests: (estimate(ratios, rules, tests), figures)) if ratios else None

    judged, walls = _verdicts(pairs, measured, rules)
    verdicts += judged
    if reason := _broken_canary(results, base_arm, arm, rules):
        verdicts = [
            replace(v, outcome="NOT COMPARABLE", reason=reason, passes=False, level="", more_generations=None)
            if v.p is not None
            else v
            for v in verdicts
        ]
    mean = _geomean([p for p in pairs if p.metric == "wall"]) or separate.geomean(walls)
    return suite_of(
        verdicts, gates=results.plan.gates, geomean=mean and mean[0], geomean_interval=mean and mean[1], base=base_arm,
        head=arm, paired=True, new_cases=tuple(new_cases), command=results.command, created=results.created,
        notes=(*_notes(results), *disagreements(verdicts), *_nothing(verdicts, f"no case was measured on {base_arm}")),
        **sensitivity_of(verdicts, rules), process_s=results.process_s,
    )  # fmt: skip


def _broken_canary(results: Results, base_arm: str, arm: str, rules: Rules) -> str:
    """Return why the two contenders did not have the same machine, or "": a canary took longer in one of them."""
    edge = math.log1p(rules.margin("wall") / 2)
    for case in filter(is_canary, results.cases):
        old, new = results.of(case, base_arm), results.of(case, arm)
        series = [r.of("wall") for r in (old, new) if r is not None and r.status == "ok"]
        ratios = log_ratios(series[0], series[1]) if len(series) == 2 and series[0] and series[1] else []
        if len(ratios) < 2:
            continue
        canary = estimate(ratios, rules, 1)
        low, high = canary.intervals[rules.confidence]
        if (low > edge or high < -edge) and canary.p < rules.alpha:
            return f"{case} took {math.exp(canary.log):.3f} times as long in {arm} as in {base_arm}: the machine was not the same"
    return ""


def _geomean(pairs: Sequence[Pair]) -> tuple[float, Interval] | None:
    """Return the geometric mean over cases, by process: what moves all cases of a process moves this as much."""
    values = [stats.generation_values(logs) for p in pairs if (logs := log_ratios(p.before, p.after))]
    if not values or len({len(v) for v in values}) > 1 or len(values[0]) < 2:
        return None
    means = np.mean(values, axis=0)
    low, high = stats.walsh_interval(means)
    return math.exp(stats.hodges_lehmann(means)), (math.exp(low), math.exp(high))


def _notes(*results: Results) -> tuple[str, ...]:
    """Return the notes of the results, and notes on what is incomplete or does not gate."""
    notes = [note for r in results for note in r.notes]
    notes += [f"{r.name or r.kind} is not complete: it was interrupted" for r in results if not r.complete]
    notes += [f"{r.plan.name} runs show intervals and do not gate" for r in results if not r.plan.gates]
    return tuple(dict.fromkeys(notes))


def _nothing(verdicts: Sequence[Verdict], reason: str) -> tuple[str, ...]:
    """Return a note if there are no verdicts."""
    return () if verdicts else (f"nothing was judged: {reason}",)


DIRECTIONS = {"SLOWER": 1, "FASTER": -1, "EQUIVALENT": 0, "CHANGED-SMALL": 0}  # of a verdict that is decided
MEANINGS = {
    (1, 0): "not more work, but slower work: memory, caches, the clock or where code lies",
    (-1, 0): "not less work, but faster work: memory, caches, the clock or where code lies",
    (0, 1): "more work that does not take longer here",
    (0, -1): "less work that does not take less time here",
    (1, -1): "less work takes longer: other instructions, memory or caches",
    (-1, 1): "more work takes less time: other instructions, memory or caches",
}  # by the direction of time and of instructions


def disagreements(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return a note for every case whose time and instructions went different ways, and what that means."""
    by_metric = {(v.case, v.arm, v.metric): v for v in verdicts}
    out = []
    for v in verdicts:
        count = by_metric.get((v.case, v.arm, "instructions"))
        if v.metric != "wall" or count is None or v.ratio is None or count.ratio is None:
            continue
        meaning = MEANINGS.get((DIRECTIONS.get(v.outcome, 2), DIRECTIONS.get(count.outcome, 2)))
        if meaning is not None:
            out.append(
                f"{v.case}: time and instructions disagree ({100 * (v.ratio - 1):+.1f} % and "
                f"{100 * (count.ratio - 1):+.1f} %): {meaning}"
            )
    return tuple(out)


# ---- a stored run


@checked
def compare_stored(baseline: Results, current: Results, rules: Rules = Rules(paired=False)) -> Suite:
    """Compare a run with an earlier one of the same machine, at the same speed of the machine."""
    hard, soft = differences(baseline.environment, current.environment)
    imported = IMPORTED in (baseline.plan.name, current.plan.name)
    before = [r for r in baseline if r.status == "ok" and not is_canary(r.case) and r.arm not in separate.OTHERS]
    pairs, verdicts = _matched([(r, current.of(*r.key)) for r in before], "", current.complete, rules)
    shifts = {p.key: separate.shift(p.old, p.new, p.metric, baseline, current) for p in pairs if not p.before.exact}
    walls = [s for (*_, metric), s in shifts.items() if s is not None and metric == "wall"]
    wider = separate.spread(walls, rules.separate)

    def measured(pair: Pair) -> Measured | None:
        moved, old, new = shifts[pair.key], pair.before.median, pair.after.median
        if moved is None or not old or not new or min(old, new) <= 0:
            return None
        if imported and one_process.has_one_process(pair.before, pair.after):
            return partial(one_process.estimate, pair.before, pair.after, rules)
        figures = {"raw_ratio": new / old, "old": old, "new": old * math.exp(moved.log)}
        return lambda tests: (separate.estimate(moved, rules, tests, wider), figures)

    judged, estimates = _verdicts(pairs, measured, rules)
    verdicts += [replace(v, more_generations=None) for v in judged] if imported else judged
    if hard:
        reason = "unlike machines: " + "; ".join(f"{name} was {a}, is {b}" for name, (a, b) in hard.items())
        verdicts = [
            replace(v, outcome="NOT COMPARABLE", reason=reason, passes=False, level="", more_generations=None)
            if v.outcome != "MISSING"  # a case that crashes does so on any machine
            else v
            for v in verdicts
        ]
    mean = separate.geomean(estimates)
    moved = math.exp(median(s.drift for s in walls)) if walls and not any(s.unseen for s in walls) else None
    reason = "no case of the baseline has a metric that is judged"
    return suite_of(
        verdicts, gates=baseline.plan.gates and current.plan.gates, geomean=mean and mean[0],
        geomean_interval=mean and mean[1], base=baseline.name, paired=False, new_cases=_new_cases(baseline, current),
        hard=hard, soft=soft, drift=moved,
        notes=(
            *_notes(baseline, current), *(_imported_notes(pairs) if imported else _drift_notes(moved, wider)),
            *disagreements(verdicts), *_nothing(verdicts, reason),
        ),
        command=current.command, created=current.created,
        **sensitivity_of(verdicts, rules), process_s=current.process_s,
    )  # fmt: skip


def _drift_notes(moved: float | None, wider: float) -> tuple[str, ...]:
    """Return notes on the machine's speed between the runs, and on cases that lie further apart than processes tell."""
    if moved is None:
        speed = f"nothing looked at the machine's speed in both runs: its drift is unknown. {AGAIN}"
    else:
        speed = f"the clock took {100 * (moved - 1):+.1f} % time; each case is compared at the speed of the earlier run"
    apart = f"separate runs of equal code lie {wider:.1f} times as far apart here as their processes tell; the intervals include it"
    return (speed, apart) if wider > 1.05 else (speed,)


def _imported_notes(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Return a note on what is assumed of results of other tools."""
    return (one_process.ASSUMED,) if any(one_process.has_one_process(p.before, p.after) for p in pairs) else ()


def _new_cases(baseline: Results, current: Results) -> tuple[str, ...]:
    """Return the cases that only the current run has."""
    known = {run.key for run in baseline if run.status == "ok"}
    runs = (
        r
        for r in current
        if r.status == "ok" and r.key not in known and not is_canary(r.case) and r.arm not in separate.OTHERS
    )
    return tuple(dict.fromkeys(run.case for run in runs))

"""Results in, verdicts out: arms measured side by side, or a run beside a stored one.

Knows nothing of measuring, files or exit codes of commands. Pure: the same results give the same verdicts. What is missing,
failed, unsteady, too little or unlike is a verdict too, never a pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from tritium.errors import ArgumentError, nearest
from tritium.perf.gate import drift
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
    suite_of,
)
from tritium.perf.records.environment import differences
from tritium.perf.records.run import Results, Run, Series
from tritium.perf.stats import estimates as stats
from tritium.perf.work.canary import is_canary

__all__ = [
    "EXIT_CODES", "OUTCOMES", "Judged", "Outcome", "Rules", "Suite", "Verdict", "allow", "compare_paired", "compare_stored",
    "judge", "markdown", "no_baseline", "page",
]  # fmt: skip

AGAIN = "Measure both revisions in one job: tritium regression-test --against REV."


@dataclass(frozen=True)
class Pair:
    """One case as it was and as it is, in one metric."""

    old: Run
    new: Run
    before: Series
    after: Series

    @property
    def metric(self) -> str:
        return self.before.metric

    def verdict(self, outcome: Outcome, rules: Rules, **about: Any) -> Verdict:
        return Verdict(
            self.old.case, self.metric, self.old.arm, self.new.arm, outcome, margin=rules.margin(self.metric),
            unit=self.before.unit, exact=self.before.exact, **about,
        )  # fmt: skip


# ---- what can be compared at all


def _usable(old: Run, arm: str, new: Run | None, complete: bool) -> Run | Verdict:
    """The run as it is now; or the verdict of a case that was measured before and is not now."""
    if new is not None and new.status == "ok":
        return new
    if not complete and (new is None or new.status == "interrupted"):
        why = "the run was interrupted before it"
        return Verdict(old.case, "wall", old.arm, arm, "INCONCLUSIVE", reason=why, passes=False)
    if new is None:
        why = "it is in the baseline and was not measured now"
    else:
        why = f"{new.status} now, measured before" + (f": {new.reason}" if new.reason else "")
    return Verdict(old.case, "wall", old.arm, arm, "MISSING", reason=why, passes=False)


def _unlike(old: Run, new: Run) -> str:
    """Why two runs of the same name are not of the same work. Two arms may well be on two devices."""
    device = ("device",) if old.arm == new.arm else ()
    for name in ("operation", "shape", "precision", *device, "batch", "sequence_length", "parameters", "transfer"):
        a, b = getattr(old.context, name), getattr(new.context, name)
        if a != b:
            return f"the same name, but other work: {name} was {a}, is {b}"
    return ""


def _pairs(old: Run, new: Run, rules: Rules) -> Iterator[Pair | Verdict]:
    """The metrics of a case that both have; a verdict where one was measured and is not any more."""
    for metric in rules.metrics:
        before, after = old.of(metric), new.of(metric)
        if before is None or before.kind != "measured" or not before.flat:
            continue
        if after is None or after.kind != "measured" or not after.flat:
            told = _absence(after)
            yield Verdict(
                old.case, metric, old.arm, new.arm, "INCONCLUSIVE", margin=rules.margin(metric), unit=before.unit,
                reason=f"measured before, not now: {told}", passes=False,
            )  # fmt: skip
            continue
        yield Pair(old, new, before, after)


def _absence(series: Series | None) -> str:
    """Why a series that is needed is not there."""
    if series is None:
        return "nobody asked for it"
    return series.reason or {"estimate": "only an estimate"}.get(series.kind, "it has no values")


def _matched(
    both: Sequence[tuple[Run, Run | None]], arm: str, complete: bool, rules: Rules
) -> tuple[list[Pair], list[Verdict]]:
    """What can be compared, and verdicts of what cannot: cases that are lost, or are of other work."""
    pairs: list[Pair] = []
    verdicts: list[Verdict] = []
    for old, new in both:
        now = _usable(old, arm or old.arm, new, complete)
        if isinstance(now, Verdict):
            verdicts.append(now)
        elif unlike := _unlike(old, now):
            verdicts.append(Verdict(old.case, "wall", old.arm, now.arm, "NOT COMPARABLE", reason=unlike, passes=False))
        else:
            found = list(_pairs(old, now, rules))
            pairs += [f for f in found if isinstance(f, Pair)]
            verdicts += [f for f in found if isinstance(f, Verdict)]
    return pairs, verdicts


def _samples(series: Series) -> int:
    return sum(1 for generation in series.values for batches in generation if batches)


def _weak(pair: Pair, rules: Rules) -> tuple[str, int | None]:
    """Why whatever the numbers say decides nothing, and how many generations more would let them."""
    found = min(_samples(pair.before), _samples(pair.after))
    if found < rules.minimum_samples:
        generations = max(len(pair.after.values), 1)
        missing = math.ceil((rules.minimum_samples - found) * generations / max(found, 1))
        return f"{found} samples; {rules.minimum_samples} are needed", missing
    unsteady = [name for name, run in (("before", pair.old), ("now", pair.new)) if not run.steady]
    return f"no steady state {' and '.join(unsteady)}: it was still getting faster or slower" if unsteady else "", None


# ---- one verdict


def _exact(pair: Pair, rules: Rules) -> Verdict:
    """Values that the same work repeats exactly: bytes, counts. No statistics."""
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
        outcome, reason = "INCONCLUSIVE", "it differs from call to call by more than between the two"
    else:
        outcome = "SLOWER" if ratio > 1 else "FASTER"
    level = level_of(math.inf if ratio is None else ratio, rules) if outcome == "SLOWER" else ""
    return pair.verdict(
        outcome, rules, ratio=ratio, old=old, new=new, generations=min(len(pair.before.values), len(pair.after.values)),
        level=level, reason=reason, passes=outcome not in ("SLOWER", "INCONCLUSIVE"),
    )  # fmt: skip


def _timed(pair: Pair, e: Estimate, judged: Judged, rules: Rules, **about: Any) -> Verdict:
    """A judgement with its names; what the samples cannot carry becomes inconclusive."""
    outcome, reason, passes, more = judged.outcome, judged.reason, judged.passes, judged.more_generations
    weak, missing = _weak(pair, rules)
    if weak:
        outcome, reason, passes, more = "INCONCLUSIVE", weak, False, missing
    return pair.verdict(
        outcome, rules, ratio=judged.ratio, interval=judged.interval, interval95=judged.interval95,
        interval90=judged.interval90, p=judged.p, p_adjusted=judged.p_adjusted, q=judged.q, generations=e.generations,
        more_generations=more, reason=reason, passes=passes,
        level=level_of(judged.ratio, rules) if outcome == "SLOWER" else "", **about,
    )  # fmt: skip


def _verdicts(
    pairs: Sequence[Pair], measure: Callable[[Pair], tuple[Estimate, dict[str, Any]] | None], rules: Rules
) -> tuple[list[Verdict], list[Estimate]]:
    """Every pair judged, the timed ones together; and the estimates of wall time."""
    out = [_exact(p, rules) for p in pairs if p.before.exact]
    timed = [(p, found) for p in pairs if not p.before.exact and (found := measure(p)) is not None]
    judged = decide([e for _, (e, _) in timed], [rules.margin(p.metric) for p, _ in timed], rules)
    out += [_timed(p, e, j, rules, **about) for (p, (e, about)), j in zip(timed, judged, strict=True)]
    seen = {(v.case, v.arm, v.metric) for v in out}
    for p in pairs:
        if (p.old.case, p.new.arm, p.metric) not in seen:
            out.append(p.verdict("INCONCLUSIVE", rules, reason="no values that can be matched", passes=False))
    return out, [e for p, (e, _) in timed if p.metric == "wall"]


# ---- side by side


def log_ratios(before: Series, after: Series) -> list[list[float]]:
    """The log ratio of every round both arms measured, by generation."""
    out = []
    for old, new in zip(before.values, after.values, strict=False):
        pairs = [(median(a), median(b)) for a, b in zip(old, new, strict=False) if a and b]
        found = [math.log(b / a) for a, b in pairs if a > 0 and b > 0]
        if found:
            out.append(found)
    return out


def compare_paired(results: Results, base_arm: str, arm: str, rules: Rules = Rules()) -> Suite:
    """Two arms of one measurement: their rounds were interleaved, so each is compared with its neighbour in time."""
    for name in (base_arm, arm):
        if name not in results.arms:
            raise ArgumentError(
                f"compare_paired: no arm is called {name!r}; there are {', '.join(results.arms)}.{nearest(name, results.arms)}"
            )
    both = [(results.of(case, base_arm), results.of(case, arm)) for case in results.cases if not is_canary(case)]
    pairs, verdicts = _matched(
        [(a, b) for a, b in both if a is not None and a.status == "ok"], arm, results.complete, rules
    )
    fresh = [b.case for a, b in both if (a is None or a.status != "ok") and b is not None and b.status == "ok"]

    def measured(pair: Pair) -> tuple[Estimate, dict[str, Any]] | None:
        ratios = log_ratios(pair.before, pair.after)
        figures = {"old": pair.before.median, "new": pair.after.median}
        return (estimate(ratios, rules), figures) if ratios else None

    judged, walls = _verdicts(pairs, measured, rules)
    verdicts += judged
    if broken := _broken_canary(results, base_arm, arm, rules):
        verdicts = [
            replace(v, outcome="NOT COMPARABLE", reason=broken, passes=False, level="", more_generations=None)
            if v.p is not None
            else v
            for v in verdicts
        ]
    mean = _geomean([p for p in pairs if p.metric == "wall"]) or drift.geomean(walls)
    return suite_of(
        verdicts, gates=results.plan.gates, geomean=mean and mean[0], geomean_interval=mean and mean[1], base=base_arm,
        head=arm, paired=True, new_cases=tuple(fresh), command=results.command, created=results.created,
        notes=(*_notes(results), *_nothing(verdicts, f"no case was measured on {base_arm}")),
    )  # fmt: skip


def _broken_canary(results: Results, base_arm: str, arm: str, rules: Rules) -> str:
    """Why the two arms did not have the same machine: work that no version changes took longer in one of them."""
    edge = math.log1p(rules.margin("wall") / 2)
    for case in filter(is_canary, results.cases):
        old, new = results.of(case, base_arm), results.of(case, arm)
        series = [r.of("wall") for r in (old, new) if r is not None and r.status == "ok"]
        ratios = log_ratios(series[0], series[1]) if len(series) == 2 and series[0] and series[1] else []
        if len(ratios) < 2:
            continue
        found = estimate(ratios, rules)
        low, high = found.intervals[rules.confidence]
        if (low > edge or high < -edge) and found.p < rules.alpha:
            return f"{case} took {math.exp(found.log):.3f} times as long in {arm} as in {base_arm}: the machine was not the same"
    return ""


def _geomean(pairs: Sequence[Pair]) -> tuple[float, Interval] | None:
    """The geometric mean over cases, by generation: what moves all cases of a generation moves this as much."""
    rows = [stats.generation_values(found) for p in pairs if (found := log_ratios(p.before, p.after))]
    if not rows or len({len(r) for r in rows}) > 1 or len(rows[0]) < 2:
        return None
    means = np.mean(rows, axis=0)
    low, high = stats.walsh_interval(means)
    return math.exp(stats.hodges_lehmann(means)), (math.exp(low), math.exp(high))


def _notes(*results: Results) -> tuple[str, ...]:
    found = [note for r in results for note in r.notes]
    found += [f"{r.name or r.kind} is not complete: it was interrupted" for r in results if not r.complete]
    found += [f"{r.plan.name} runs show intervals and do not gate" for r in results if not r.plan.gates]
    return tuple(dict.fromkeys(found))


def _nothing(verdicts: Sequence[Verdict], why: str) -> tuple[str, ...]:
    return () if verdicts else (f"nothing was judged: {why}",)


# ---- a stored run


def compare_stored(baseline: Results, current: Results, rules: Rules = Rules(paired=False)) -> Suite:
    """A run beside an earlier one of the same machine. What the canaries say the machine did in between is taken out."""
    hard, soft = differences(baseline.environment, current.environment)
    drifts = {metric: drift.drift(baseline, current, metric) for metric in rules.metrics}
    wall = drifts.get("wall", drift.Drift(None, None))
    before = [r for r in baseline if r.status == "ok" and not is_canary(r.case) and r.arm not in drift.OTHERS]
    pairs, verdicts = _matched([(r, current.of(*r.key)) for r in before], "", current.complete, rules)

    def measured(pair: Pair) -> tuple[Estimate, dict[str, Any]] | None:
        raw = drift.shift(pair.before, pair.after)
        if raw is None:
            return None
        found = drift.estimate(pair.old, raw, drifts[pair.metric], rules)
        return found, {"raw_ratio": math.exp(raw.log), "old": raw.old, "new": raw.new}

    judged, walls = _verdicts(pairs, measured, rules)
    verdicts += judged
    if why := _unlike_machines(hard, wall):
        verdicts = [
            replace(v, outcome="NOT COMPARABLE", reason=why, passes=False, level="", more_generations=None)
            for v in verdicts
        ]
    mean = drift.geomean(walls)
    return suite_of(
        verdicts, gates=baseline.plan.gates and current.plan.gates, geomean=mean and mean[0],
        geomean_interval=mean and mean[1], base=baseline.name, paired=False, new_cases=_new_cases(baseline, current),
        hard=hard, soft=soft, drift=wall.worst if wall.known else None,
        notes=(*_notes(baseline, current), *_drift_notes(wall), *_nothing(verdicts, "the baseline holds no case of Tritium")),
        command=current.command, created=current.created,
    )  # fmt: skip


def _unlike_machines(hard: dict[str, tuple[str, str]], wall: drift.Drift) -> str:
    if hard:
        return "unlike machines: " + "; ".join(f"{name} was {a}, is {b}" for name, (a, b) in hard.items())
    if wall.too_much:
        return f"work that no version changes took {wall.worst:.2f} times as long: the machine was not itself. {AGAIN}"
    return ""


def _drift_notes(wall: drift.Drift) -> tuple[str, ...]:
    if wall.compute is None or wall.memory is None:
        return (f"no canary in both runs: how much the machine itself drifted is not known. {AGAIN}",)
    told = [
        f"{kind} {100 * math.expm1(s.log):+.1f} %" for kind, s in (("compute", wall.compute), ("memory", wall.memory))
    ]
    return (f"the machine's own drift, taken out: {', '.join(told)} time",)


def _new_cases(baseline: Results, current: Results) -> tuple[str, ...]:
    known = {run.key for run in baseline if run.status == "ok"}
    fresh = (
        r
        for r in current
        if r.status == "ok" and r.key not in known and not is_canary(r.case) and r.arm not in drift.OTHERS
    )
    return tuple(dict.fromkeys(run.case for run in fresh))

"""The whole procedure of a gate on measurements of known truth: false alarms, detection, coverage and change points.

    python bench/simulate.py [--quick] [--seed 0] [--json FILE]

It calls what the product calls: `judge.estimate` and `judge.decide` for the verdicts, `stats` for the intervals, `changes`
for the history. What it does itself is the course of a gate: three planned looks, the undecided cases measured again, and
one confirmation of what is slower.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from noise import FAMILIES, MOODY, UNLIKE, Family, Floats, log_ratios

from tritium.perf.gate.judge import Estimate, Judged, decide, estimate
from tritium.perf.gate.verdict import Rules
from tritium.perf.stats import estimates as stats
from tritium.perf.stats.changes import change_points
from tritium.perf.stats.resample import student_quantile, walsh

Plan = tuple[int, int]
DEFAULT, THOROUGH, QUICK = (15, 3), (28, 3), (8, 2)
MARGIN = 0.03
RULES = Rules(looks=3)
EFFECTS = (0.03, 0.05, 0.10)
SDS = (0.005, 0.01, 0.02, 0.03)


@dataclass(frozen=True)
class Size:
    """How much is simulated."""

    suites: int  # of 50 tests, each family and noise
    thorough: int
    covered: int  # samples for a coverage
    compared: int  # samples for the comparison of intervals
    resamples: int
    histories: int
    steps: int


SIZES = {"full": Size(1000, 40, 20_000, 400, 999, 100, 1000), "quick": Size(4, 1, 150, 12, 199, 2, 6)}


@dataclass(frozen=True)
class Cell:
    """One kind of noise, one plan, one size of a suite: what the gate said in how many suites."""

    family: str
    sd: float
    plan: Plan
    tests: int
    suites: int
    significant: int  # suites in which any test was certain at the first look, whatever its size
    alarms: int  # suites with a slower case after looks and confirmation
    first: dict[str, int]  # outcomes of single tests at the first look
    last: dict[str, int]  # and at the last
    passed: int  # suites that exit 0


# ---- a gate


@dataclass
class Gate:
    """One suite on its way through looks and confirmation. `measure(test)` gives fresh log ratios of a test."""

    data: list[Floats]
    measure: Callable[[int], Floats]
    margin: float = MARGIN
    rules: Rules = RULES

    def run(self, estimates: list[Estimate] | None = None) -> tuple[list[Judged], list[Judged]]:
        """The verdicts of the first look, and the last ones."""
        data = list(self.data)
        found = list(estimates) if estimates else [estimate(d, self.rules, len(data)) for d in data]
        first = said = self._said(found)
        for _ in range(self.rules.looks - 1):
            open_ = [
                i for i, j in enumerate(said)
                if j.outcome == "INCONCLUSIVE" and j.more_generations is not None and j.interval90[1] >= 1 + self.margin
            ]  # fmt: skip
            if not open_ or any(j.outcome == "SLOWER" for j in said):
                break
            for i in open_:
                data[i] = np.concatenate([data[i], self.measure(i)])
                found[i] = estimate(data[i], self.rules, len(data))
            said = self._said(found)
        slower = [i for i, j in enumerate(said) if j.outcome == "SLOWER"]
        again = self._said([estimate(self.measure(i), self.rules, len(slower)) for i in slower])
        last = list(said)
        for i, judged in zip(slower, again, strict=True):
            if judged.outcome != "SLOWER":
                last[i] = judged
        return first, last

    def _said(self, found: Sequence[Estimate]) -> list[Judged]:
        return decide(found, [self.margin] * len(found), self.rules)


def unchanged(
    rng: np.random.Generator, family: Family, sd: float, plan: Plan, tests: int, suites: int
) -> tuple[Cell, list[list[Estimate]], Floats]:
    """Suites in which nothing changed; with what was estimated at the first look, for other questions."""
    first: Counter[str] = Counter()
    last: Counter[str] = Counter()
    significant = alarms = passed = 0
    every: list[list[Estimate]] = []
    values = log_ratios(rng, family, suites * tests, plan, sd).reshape(suites, tests, *plan)
    for data in values:
        found = [estimate(d, RULES, len(data)) for d in data]
        gate = Gate(list(data), lambda _: log_ratios(rng, family, 1, plan, sd)[0])
        begun, said = gate.run(found)
        every.append(found)
        significant += any(j.p_adjusted < RULES.look_alpha for j in begun)
        alarms += any(j.outcome == "SLOWER" for j in said)
        passed += all(j.passes for j in said)
        first.update(j.outcome for j in begun)
        last.update(j.outcome for j in said)
    return (
        Cell(family.name, sd, plan, tests, suites, significant, alarms, dict(first), dict(last), passed),
        every,
        values,
    )


@dataclass(frozen=True)
class Found:
    """One case of a suite made slower: in how many suites the gate failed for it, or at least named it."""

    family: str
    sd: float
    effect: float
    margin: float
    suites: int
    slower: int
    named: int  # slower, or changed by less than the margin


def slowed(
    rng: np.random.Generator, family: Family, sd: float, plan: Plan, effect: float, margin: float, aa: list[list[Estimate]], values: Floats
) -> Found:  # fmt: skip
    """The suites of `unchanged` once more, with the first case slower by a share."""
    slower = named = 0
    by = math.log1p(effect)
    for found, data in zip(aa, values, strict=True):

        def measure(i: int) -> Floats:
            return log_ratios(rng, family, 1, plan, sd, by if i == 0 else 0.0)[0]

        case = data[0] + by
        gate = Gate([case, *data[1:]], measure, margin)
        _, said = gate.run([estimate(case, RULES, len(found)), *found[1:]])
        slower += said[0].outcome == "SLOWER"
        named += said[0].outcome in ("SLOWER", "CHANGED-SMALL") and said[0].ratio > 1
    return Found(family.name, sd, effect, margin, len(aa), slower, named)


# ---- intervals


@dataclass(frozen=True)
class Coverage:
    family: str
    plan: Plan
    n: int
    covered95: int
    covered90: int


def coverage(rng: np.random.Generator, family: Family, plan: Plan, n: int) -> Coverage:
    """How often the intervals hold the truth: the centre of what the generations vary around."""
    truth = 0.0 if family is not UNLIKE else _centre(rng, family, plan)
    held = [0, 0]
    for data in log_ratios(rng, family, n, plan, 0.02):
        found = stats.ratio_intervals(data)
        for k, confidence in enumerate((0.95, 0.90)):
            held[k] += found[confidence][0] <= truth <= found[confidence][1]
    return Coverage(family.name, plan, n, held[0], held[1])


def _centre(rng: np.random.Generator, family: Family, plan: Plan) -> float:
    means = log_ratios(rng, family, 400_000, (2, plan[1]), 0.02).mean(axis=2)
    return float(np.median(means.mean(axis=1)))  # the median of the average of two: what Hodges-Lehmann estimates


@dataclass(frozen=True)
class Compared:
    """One way to an interval of 95 %: how often it holds the truth, and how wide it is."""

    way: str
    family: str
    plan: Plan
    share: float  # of a generation's variance that its rounds make
    n: int
    covered: int
    width: float


def _bca(found: Floats, means: Floats, wide: float) -> tuple[float, float]:
    """Bias-corrected and accelerated quantiles of resampled estimates."""
    curve, at = NormalDist(), stats.hodges_lehmann(means)
    below = float(np.mean(found < at) + np.mean(found == at) / 2)
    bias = curve.inv_cdf(min(max(below, 1 / len(found)), 1 - 1 / len(found)))
    rest = np.array([stats.hodges_lehmann(np.delete(means, i)) for i in range(len(means))])
    pull = rest.mean() - rest
    spread = float((pull**2).sum())
    bend = float((pull**3).sum()) / (6 * spread**1.5) if spread else 0.0
    ends = [curve.cdf(bias + z / max(1 - bend * z, 0.1)) for z in (bias - wide, bias + wide)]
    low, high = np.quantile(found, ends)
    return float(low), float(high)


def _two_levels(rng: np.random.Generator, data: Floats, resamples: int) -> tuple[float, float]:
    """Generations drawn, then rounds within each: the noise of rounds counts twice."""
    n, m = data.shape
    picked = data[rng.integers(0, n, (resamples, n))]
    drawn = np.take_along_axis(picked, rng.integers(0, m, (resamples, n, m)), axis=2)
    return _bca(np.median(walsh(drawn.mean(axis=2)), axis=1), data.mean(axis=1), 1.959964)


def _one_level(rng: np.random.Generator, data: Floats, resamples: int) -> tuple[float, float]:
    """Generations drawn, quantiles widened as Student's t is wider than the normal."""
    means = data.mean(axis=1)
    n = len(means)
    wide = math.sqrt(n / (n - 1)) * student_quantile(0.975, n - 1)
    return _bca(np.median(walsh(means[rng.integers(0, n, (resamples, n))]), axis=1), means, wide)


def _exact(rng: np.random.Generator, data: Floats, resamples: int) -> tuple[float, float]:
    return stats.ratio_intervals(data)[0.95]


WAYS = {"exact (used)": _exact, "bootstrap of generations": _one_level, "bootstrap of both": _two_levels}


def compared(rng: np.random.Generator, size: Size) -> Iterator[Compared]:
    """The interval that is used beside two that are not."""
    for plan in (DEFAULT, QUICK):
        for family in (FAMILIES[0], FAMILIES[2]):
            for share in (0.05, 0.9):
                values = log_ratios(rng, family, size.compared, plan, 0.02, share=share)
                for way, interval in WAYS.items():
                    ends = np.array([interval(rng, data, size.resamples) for data in values])
                    held = int(((ends[:, 0] <= 0) & (ends[:, 1] >= 0)).sum())
                    width = float((ends[:, 1] - ends[:, 0]).mean())
                    yield Compared(way, family.name, plan, share, size.compared, held, width)


# ---- histories


@dataclass(frozen=True)
class History:
    family: str
    points: int  # of stationary series
    false: int  # found in them
    false_any: int  # also those smaller than 2 %
    steps: int
    by_points: dict[int, int]  # steps found when so many points follow


def history(rng: np.random.Generator, name: str, noise: Callable[[int], Floats], size: Size) -> History:
    """Stationary series of 1,000 points, and a step of 3 % after 95 quiet ones: found, in place, by the fifth point?"""
    false = false_any = 0
    for _ in range(size.histories):
        values = noise(1000)
        false_any += len(change_points(values, least_change=0.0))
        false += len(change_points(values))
    by: Counter[int] = Counter()
    for _ in range(size.steps):
        values = noise(100)
        values[95:] += math.log(1.03)
        for points in (3, 4, 5):
            if any(abs(c.index - 95) <= 2 and c.ratio > 1 for c in change_points(values[: 95 + points])):
                by.update(range(points, 6))  # an alert stays open
                break
    return History(name, 1000 * size.histories, false, false_any, size.steps, {k: by[k] for k in (3, 4, 5)})


def histories(rng: np.random.Generator, size: Size) -> Iterator[History]:
    kinds = {f.name: f.old for f in FAMILIES[:3]}
    for name, unit in kinds.items():
        yield history(rng, name, lambda n, unit=unit: 0.01 * unit(rng, (n,)), size)


# ---- pages


def percent(found: int, of: int) -> str:
    low, high = stats.share_interval(found, of)
    return f"{100 * found / of:.2f} % ({100 * low:.2f} … {100 * high:.2f})"


def short(found: int, of: int) -> str:
    return f"{100 * found / of:.1f} %" if of else "–"


def table(head: str, rows: Iterable[Sequence[str]]) -> list[str]:
    columns = head.split(" | ")
    return ["", f"| {head} |", "|" + " --- |" * len(columns), *(f"| {' | '.join(row)} |" for row in rows)]


def plan_text(plan: Plan) -> str:
    return f"{plan[0]} × {plan[1]}"


def page(r: dict[str, list[Any]], goals: Sequence[tuple[str, str, bool]]) -> list[str]:
    """Everything as Markdown."""
    lines = ["", "### Nothing changed"]
    lines += table(
        "noise | sd | plan | tests | suites | any test certain | false alarms (95 %) | equivalent at once | at the end "
        "| inconclusive at the end | exit 0",
        [
            (c.family, f"{100 * c.sd:g} %", plan_text(c.plan), str(c.tests), f"{c.suites:,}", short(c.significant, c.suites),
             percent(c.alarms, c.suites), short(c.first.get("EQUIVALENT", 0), c.suites * c.tests),
             short(c.last.get("EQUIVALENT", 0), c.suites * c.tests), short(c.last.get("INCONCLUSIVE", 0), c.suites * c.tests),
             short(c.passed, c.suites))
            for c in r["unchanged"]
        ],
    )  # fmt: skip
    lines += ["", "### One of 50 cases slower: share of gates that fail"]
    rows = {}
    for f in r["slowed"]:
        rows.setdefault((f.family, f.sd), {})[f.effect, f.margin] = f
    asked = list(dict.fromkeys((f.effect, f.margin) for f in r["slowed"]))
    head = ["noise", "sd", *(f"+{100 * e:g} %, margin {100 * m:g} %" for e, m in asked), "+3 % named, margin 3 %"]
    lines += table(
        " | ".join(head),
        [
            (name, f"{100 * sd:g} %", *(short(found[k].slower, found[k].suites) for k in asked),
             short(found[0.03, MARGIN].named, found[0.03, MARGIN].suites))
            for (name, sd), found in rows.items()
        ],
    )  # fmt: skip
    lines += ["", "### How often an interval holds the truth"]
    lines += table(
        "noise | plan | samples | 95 % | 90 %",
        [
            (c.family, plan_text(c.plan), f"{c.n:,}", short(c.covered95, c.n), short(c.covered90, c.n))
            for c in r["coverage"]
        ],
    )
    lines += ["", "### Intervals that could have been used"]
    lines += table(
        "way | noise | plan | rounds' share of variance | holds the truth (95 %) | mean width",
        [
            (
                c.way,
                c.family,
                plan_text(c.plan),
                f"{100 * c.share:g} %",
                percent(c.covered, c.n),
                f"{100 * c.width:.2f} %",
            )
            for c in r["compared"]
        ],
    )
    lines += ["", "### Change points: noise 1 %, step 3 %"]
    lines += table(
        "noise | stationary points | false points per 1,000 | of any size | step found by 3 points | by 4 | by 5 (95 %)",
        [
            (h.family, f"{h.points:,}", f"{1000 * h.false / h.points:.3f}", f"{1000 * h.false_any / h.points:.3f}",
             short(h.by_points[3], h.steps), short(h.by_points[4], h.steps), percent(h.by_points[5], h.steps))
            for h in r["histories"]
        ],
    )  # fmt: skip
    lines += [
        "",
        "### Goals",
        *table("goal | figure | met", [(g, figure, "yes" if met else "no") for g, figure, met in goals]),
    ]
    return lines


def goals_of(r: dict[str, list[Any]]) -> list[tuple[str, str, bool]]:
    """What was to be reached, what was, and whether it is enough."""
    big = [c for c in r["unchanged"] if c.tests == 50 and c.plan == DEFAULT]
    alarms, suites = sum(c.alarms for c in big), sum(c.suites for c in big)
    certain = max(c.significant / c.suites for c in big)
    quiet = [f for f in r["slowed"] if f.sd <= 0.01]
    noisy = [f for f in r["slowed"] if f.effect == 0.10]
    five = min(f.slower / f.suites for f in quiet if f.effect == 0.05)
    three = min(f.slower / f.suites for f in quiet if f.effect == 0.03 and f.margin < MARGIN)
    same = min(f.slower / f.suites for f in quiet if f.effect == 0.03 and f.margin == MARGIN)
    named = min(f.named / f.suites for f in quiet if f.effect == 0.03 and f.margin == MARGIN)
    ten = min(f.slower / f.suites for f in noisy)
    held = [c.covered95 / c.n for c in r["coverage"] if c.family in {f.name for f in FAMILIES}]
    step, worst = (min(h.by_points[5] / h.steps for h in r["histories"][:k]) for k in (1, None))
    false = max(h.false / h.points for h in r["histories"])
    return [
        ("false alarms ≤ 1 % of suites of 50", percent(alarms, suites), stats.share_interval(alarms, suites)[1] <= 0.01),
        ("any test certain ≤ 1 % of suites, worst noise", f"{100 * certain:.2f} %", certain <= 0.01),
        ("+5 % found ≥ 95 %, sd ≤ 1 %, worst noise", f"{100 * five:.1f} %", five >= 0.95),
        ("+3 % found ≥ 90 % with the margin of 3 %, sd ≤ 1 %, worst noise", f"{100 * same:.1f} %", same >= 0.9),
        ("+3 % found ≥ 90 % with a margin of 2 %, sd ≤ 1 %, worst noise", f"{100 * three:.1f} %", three >= 0.9),
        ("+3 % named ≥ 90 % with the margin of 3 %, sd ≤ 1 %, worst noise", f"{100 * named:.1f} %", named >= 0.9),
        ("+10 % found ≥ 95 %, sd ≤ 3 %, worst noise", f"{100 * ten:.1f} %", ten >= 0.95),
        ("95 % intervals hold the truth 93–97 %, five kinds of noise, three plans", f"{100 * min(held):.1f} … {100 * max(held):.1f} %",
         min(held) >= 0.93 and max(held) <= 0.97),
        ("3 % step at 1 % normal noise found within 5 points ≥ 95 %", f"{100 * step:.1f} %", step >= 0.95),
        ("the same, worst noise", f"{100 * worst:.1f} %", worst >= 0.95),
        ("false change points ≤ 1 in 1,000, worst noise", f"{1000 * false:.3f}", false <= 0.001),
    ]  # fmt: skip


# ---- all of it


def simulate(seed: int, size: Size, told: Callable[[str], None]) -> dict[str, list[Any]]:
    """Every part with draws of its own, so that a change of one leaves the others as they are."""
    parts = np.random.SeedSequence(seed).spawn(6)
    rngs = [np.random.Generator(np.random.PCG64(p)) for p in parts]
    out: dict[str, list[Any]] = {"unchanged": [], "slowed": []}
    for family in FAMILIES:
        for sd in SDS:
            told(f"{family.name}, {100 * sd:g} %")
            cell, found, values = unchanged(rngs[0], family, sd, DEFAULT, 50, size.suites)
            out["unchanged"].append(cell)
            few = max(2, size.suites // 2)
            asked = [(e, MARGIN) for e in EFFECTS] + [(0.03, 0.02)]
            for effect, margin in asked:
                out["slowed"].append(slowed(rngs[1], family, sd, DEFAULT, effect, margin, found[:few], values[:few]))
    for family in FAMILIES:
        told(f"{family.name}, other sizes")
        out["unchanged"].append(unchanged(rngs[2], family, 0.02, DEFAULT, 5, size.suites)[0])
        out["unchanged"].append(unchanged(rngs[2], family, 0.02, THOROUGH, 50, size.thorough)[0])
    told("intervals")
    out["coverage"] = [
        coverage(rngs[3], f, plan, size.covered) for f in (*FAMILIES, UNLIKE) for plan in (QUICK, DEFAULT, THOROUGH)
    ]
    out["coverage"] += [coverage(rngs[5], MOODY, plan, size.covered) for plan in (QUICK, DEFAULT, THOROUGH)]
    out["compared"] = list(compared(rngs[3], size))
    told("change points")
    out["histories"] = list(histories(rngs[4], size))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a few of each: that it runs, not what it shows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every count")
    asked = parser.parse_args()
    size, start = SIZES["quick" if asked.quick else "full"], time.perf_counter()
    found = simulate(
        asked.seed, size, lambda what: print(f"{time.perf_counter() - start:6.0f} s  {what}", file=sys.stderr)
    )
    goals = goals_of(found)
    print("\n".join(page(found, goals)))
    if asked.json:
        kept = {name: [asdict(row) for row in rows] for name, rows in found.items()}
        about = {"seed": asked.seed, "size": asdict(size), "goals": [list(g) for g in goals]}
        asked.json.write_text(json.dumps(about | kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

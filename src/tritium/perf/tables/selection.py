"""Device selection guide: the best device or library for each use case, from the numbers of one run.

Knows no device by name. A use case names its representative cases and its criterion; the best contender of this run is
recommended, and if no difference is shown, both are named. What this run did not measure is not recommended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from tritium.arguments import checked
from tritium.perf.amounts import bytes_text, seconds_text
from tritium.perf.gate.verdict import Interval, told_apart
from tritium.perf.records.run import Results, Run
from tritium.perf.tables.tables import RULES, ratio_outcome, ratio_text, speed_text, would_decide
from tritium.perf.work.canary import is_canary
from tritium.perf.work.operations import MODEL_WORKLOADS

if TYPE_CHECKING:
    from tritium.perf.tables.crossover import Crossover

TERNARY = ("bitlinear", "linear", "transformer_layer", "decode", "prefill")
DENSE = ("matmul",)
UNFELT_S = 0.2  # total wait below which nobody notices a difference
SIZED = ("training", "batch inference")  # use cases of large sizes, supported by crossovers
MOST_CROSSOVERS = 2  # in one sentence


@dataclass(frozen=True)
class Recommendation:
    """A recommendation for one use case, with its evidence. No contender: this run cannot decide."""

    use_case: str
    arms: tuple[str, ...]  # several: no difference between them is shown
    evidence: str
    cases: tuple[str, ...] = ()

    @property
    def choice(self) -> str:
        """Return the recommended contenders, or why there are none."""
        return " or ".join(self.arms) or "not measured"

    def __str__(self) -> str:
        return f"{self.use_case}: {self.choice}: {self.evidence}"


@dataclass(frozen=True)
class Guide:
    """A recommendation for every use case, and the sizes from which another contender is faster."""

    recommendations: tuple[Recommendation, ...]
    crossovers: tuple[Crossover, ...] = ()

    @property
    def use_case_recommendations(self) -> tuple[tuple[str, str], ...]:
        """Return pairs of a use case and what to use for it; those without a recommendation are left out."""
        return tuple((r.use_case, " or ".join(r.arms)) for r in self.recommendations if r.arms)


@checked
def device_selection_guide(results: Results) -> Guide:
    """Return the recommendations of one run."""
    runs = (r for r in results.runs if not is_canary(r.case) and r.context.operation not in MODEL_WORKLOADS)
    usable = replace(results, runs=tuple(runs))
    crossings = _crossovers(usable)
    return Guide(tuple(_with_sizes(judge(usable), usable, crossings) for judge in USE_CASES), crossings)


def _crossovers(results: Results) -> tuple[Crossover, ...]:
    if len(results.arms) < 2:
        return ()
    from tritium.perf.tables.crossover import crossovers  # needs two contenders

    return crossovers(results)


def _with_sizes(r: Recommendation, results: Results, crossings: Sequence[Crossover]) -> Recommendation:
    """Return the recommendation with the size from which it holds, if its contender is slower at small sizes."""
    if not crossings or r.use_case not in SIZED or len(r.arms) != 1:
        return r
    from tritium.perf.tables.crossover import title

    runs = [run for run in results.runs if run.case in r.cases]
    titles = {title(run) for run in runs}
    best = next((run.arm for run in runs if _named([run], run.arm) == r.arms[0]), "")
    crossed = [c for c in crossings if c.kind == "crosses" and c.case in titles and c.large == best]
    evidence = "".join(f"; {c.case}: {c.text}" for c in crossed[:MOST_CROSSOVERS])
    return replace(r, evidence=r.evidence + evidence)


# ---- the cases of a use case


def _elements(run: Run) -> int:
    return math.prod(run.context.shape)


def _contexts(results: Results) -> list[Run]:
    """Return one run of each case, for its context."""
    seen: dict[str, Run] = {}
    for run in results.runs:
        seen.setdefault(run.case, run)
    return list(seen.values())


def _largest(runs: Iterable[Run]) -> list[str]:
    """Return the case with the most work of each op."""
    ordered = sorted(runs, key=lambda r: (r.context.operation, _elements(r)))
    return [max(group, key=_elements).case for _, group in groupby(ordered, key=lambda r: r.context.operation)]


def _smallest(runs: Iterable[Run]) -> list[str]:
    """Return the case with the least work of each op."""
    ordered = sorted(runs, key=lambda r: (r.context.operation, _elements(r)))
    return [next(iter(group)).case for _, group in groupby(ordered, key=lambda r: r.context.operation)]


def _among(results: Results, operations: Sequence[str], precision: str | None = None) -> list[Run]:
    """Return one run of each case of these ops, in this precision."""
    return [
        r for r in _contexts(results)
        if r.context.operation in operations and precision in (None, r.context.precision)
    ]  # fmt: skip


def training(results: Results) -> Recommendation:
    """Recommend by the largest f32 products, which dominate a training step."""
    cases = _largest(_among(results, DENSE, "f32"))
    return _fastest("training", results, cases, "no f32 matmul was measured")


def batch_inference(results: Results) -> Recommendation:
    """Recommend by the largest ternary products and layers; dense ones if there are none."""
    cases = _largest(_among(results, TERNARY)) or _largest(_among(results, DENSE))
    return _fastest("batch inference", results, cases, "no bitlinear and no matmul was measured")


def latency(results: Results) -> Recommendation:
    """Recommend by the smallest size of every op."""
    return _fastest("latency", results, _smallest(_contexts(results)), "nothing was measured")


# ---- ranking of contenders


def _complete(results: Results, cases: Sequence[str]) -> dict[str, list[Run]]:
    """Return the contenders that ran all of these cases, with their runs."""
    out = {}
    for arm in results.arms:
        runs = [results.of(case, arm) for case in cases]
        if runs and all(r is not None and r.status == "ok" and r.seconds for r in runs):
            out[arm] = [r for r in runs if r is not None]
    return out


def _geomean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def _named(runs: Sequence[Run], arm: str) -> str:
    """Return a contender with its implementation: "tritium (avx2)", "numpy 2.4"."""
    optimisation = next((r.context.optimisation for r in runs if r.context.optimisation), "")
    if optimisation.startswith(arm):
        return optimisation
    return f"{arm} ({optimisation})" if optimisation and optimisation not in arm else arm


def _fastest(use_case: str, results: Results, cases: Sequence[str], nothing: str) -> Recommendation:
    """Recommend the contender with the shortest times, together with those that show no difference from it."""
    arms = _complete(results, cases)
    if not arms:
        return Recommendation(
            use_case, (), nothing if not cases else f"no contender completed {_listed(cases)}", tuple(cases)
        )
    part = replace(results, runs=tuple(r for r in results.runs if r.case in cases))
    anchor = next(iter(arms))
    best, *rest = sorted(arms, key=lambda arm: 1.0 if arm == anchor else _ratio(part, arms, arm, anchor)[0])
    alike, evidence, undecided = [best], "", ""
    for other in rest:
        ratio, between = _ratio(part, arms, best, other)
        outcome = ratio_outcome(ratio, between)
        value, _, interval = ratio_text(ratio, between).removesuffix(" ~").partition(" ")
        text = f"; {value} {other} {interval}".rstrip()
        if between is None or outcome == "FASTER":  # None: one round
            evidence = evidence or text
            continue
        alike.append(other)
        if outcome in ("INCONCLUSIVE", "SLOWER") and not undecided:
            more = would_decide(results, ratio, between)
            undecided = f"{text}: no difference is shown{', ' * bool(more)}{more}"
    if len(alike) > 1:
        evidence = (undecided or f"; they differ by less than {100 * RULES.margin('wall'):g} %") + evidence
    if not rest:
        failed = ", ".join(arm for arm in results.arms if arm != best)
        evidence = f"; {failed} did not complete all of it" if failed else "; nothing else was measured"
    return Recommendation(
        use_case,
        tuple(_named(arms[arm], arm) for arm in alike),
        _evidence(arms[best], results) + evidence,
        tuple(cases),
    )


def _ratio(part: Results, arms: dict[str, list[Run]], arm: str, other: str) -> tuple[float, Interval | None]:
    """Return the time of a contender relative to another by their paired rounds, and its interval."""
    from tritium.perf.gate.compare import compare_paired  # needs two contenders

    suite = compare_paired(part, other, arm, RULES)
    if suite.geomean is not None:
        return suite.geomean, told_apart(suite.geomean_interval)
    pairs = zip(arms[arm], arms[other], strict=True)
    return _geomean(a.seconds / b.seconds for a, b in pairs if a.seconds and b.seconds), None


def _evidence(runs: Sequence[Run], results: Results) -> str:
    """Return the time and rate of a case, or the mean time of several."""
    if len(runs) == 1:
        rate = speed_text(runs[0], results)[0]
        return f"{runs[0].case} in {seconds_text(runs[0].seconds or 0)}" + (f", {rate}" if rate != "-" else "")
    mean = _geomean(r.seconds for r in runs if r.seconds)
    return f"{seconds_text(mean)} on average over {_listed([r.case for r in runs])}"


def _listed(cases: Sequence[str]) -> str:
    return ", ".join(cases) if len(cases) < 3 else f"{len(cases)} cases ({cases[0]} …)"


def memory_limited(results: Results) -> Recommendation:
    """Recommend by bytes that stay: stored weights if the cases report them, else the resident growth of a call."""
    cases = _largest(_among(results, TERNARY)) or [r.case for r in _contexts(results)]
    for quantity, read in MEMORY.items():
        totals = {}
        for arm, runs in _complete(results, cases).items():
            sizes = [read(r) for r in runs]
            known = [s for s in sizes if s is not None]
            if known and len(known) == len(sizes):
                totals[arm] = sum(known)
        if len(totals) > 1 or (totals and len(results.arms) == 1):
            return _smallest_of("memory-limited", quantity, totals, cases)
    return Recommendation(
        "memory-limited", (), "no bytes of weights and no resident memory were measured", tuple(cases)
    )


def _number(value: object) -> float | None:
    """Return a number as float; None for anything else."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _resident(run: Run) -> float | None:
    series = run.of("rss_bytes")
    return None if series is None else series.median


MEMORY: dict[str, Callable[[Run], float | None]] = {
    "weights": lambda run: _number(run.facts.get("bytes of weights")),
    "resident growth": _resident,
}


def _smallest_of(use_case: str, quantity: str, totals: dict[str, float], cases: Sequence[str]) -> Recommendation:
    """Recommend the contenders with the fewest bytes."""
    least = min(totals.values())
    best = tuple(arm for arm, n in totals.items() if n <= 1.01 * least)
    rest = {arm: n for arm, n in totals.items() if arm not in best}
    evidence = f"{quantity} of {bytes_text(least)} for {_listed(cases)}"
    if rest:
        second = min(rest, key=lambda a: rest[a])
        evidence += f"; {second} {bytes_text(rest[second])}"
    return Recommendation(use_case, best, evidence, tuple(cases))


def development(results: Results) -> Recommendation:
    """Recommend by the shortest wait: the first calls of all cases together, compilation and warm-up included."""
    cases = list(results.cases)
    waits = {}
    for arm in results.arms:
        runs = [r for c in cases if (r := results.of(c, arm)) is not None and r.status == "ok"]
        firsts = [r.first_call_s for r in runs if r.first_call_s is not None]
        if firsts:
            waits[arm] = (len(cases) - len(firsts), sum(firsts))
    if not waits:
        return Recommendation("development", (), "no first call was timed", tuple(cases))
    ranked = sorted(waits, key=lambda a: waits[a])
    alike = tuple(a for a in ranked if waits[a][0] == waits[ranked[0]][0] and waits[a][1] < UNFELT_S)
    if len(alike) > 1:
        each = ", ".join(f"{a} {seconds_text(waits[a][1])}" for a in alike)
        evidence = f"first calls, each timed once, take less than {seconds_text(UNFELT_S)} in all: {each}"
        return Recommendation("development", alike, evidence, tuple(cases))
    failed, first = waits[ranked[0]]
    evidence = f"first calls, each timed once, take {seconds_text(first)} in all" + (
        f", {failed} of {len(cases)} cases fail" if failed else ""
    )
    if len(ranked) > 1:
        failed, first = waits[ranked[1]]
        evidence += f"; {ranked[1]} {seconds_text(first)}" + (
            f" and {failed} of {len(cases)} cases fail" if failed else ""
        )
    return Recommendation("development", (ranked[0],), evidence, tuple(cases))


USE_CASES: tuple[Callable[[Results], Recommendation], ...] = (
    training, batch_inference, latency, memory_limited, development,
)  # fmt: skip

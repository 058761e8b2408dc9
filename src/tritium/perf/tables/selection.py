"""Which device or library for which use: derived from the numbers of one run, with the numbers beside.

Knows no device by name. A use case names the cases that stand for it and what counts there; the best arm of this run is
recommended, and where no difference is shown, both are named. What this run does not hold is not told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from tritium.perf.amounts import bytes_text, seconds_text
from tritium.perf.records.run import Results, Run
from tritium.perf.tables.tables import RULES, speed_text, told_apart
from tritium.perf.work.canary import is_canary

if TYPE_CHECKING:
    from tritium.perf.tables.crossover import Crossover

TERNARY = ("bitlinear", "linear", "transformer_layer", "decode", "prefill")
DENSE = ("matmul",)
UNFELT_S = 0.2  # of waiting in all: nobody chooses by less
SIZED = ("training", "batch inference")  # use cases of large sizes, of which a crossover is evidence
MOST_CROSSOVERS = 2  # in one sentence


@dataclass(frozen=True)
class Recommendation:
    """What to use for one use, and why. No arm: this run cannot tell."""

    use_case: str
    arms: tuple[str, ...]  # several: no difference between them is shown
    evidence: str
    cases: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.use_case}: {' or '.join(self.arms) or 'not told'}: {self.evidence}"


@dataclass(frozen=True)
class Guide:
    """A recommendation for every use case, and the sizes from which another arm is the faster one."""

    recommendations: tuple[Recommendation, ...]
    crossovers: tuple[Crossover, ...] = ()

    @property
    def use_case_recommendations(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a use case and what to use for it; those this run tells nothing of are left out."""
        return tuple((r.use_case, " or ".join(r.arms)) for r in self.recommendations if r.arms)


def device_selection_guide(results: Results) -> Guide:
    """The recommendations of one run."""
    usable = replace(results, runs=tuple(r for r in results.runs if not is_canary(r.case)))
    found = _crossovers(usable)
    return Guide(tuple(_with_sizes(judge(usable), usable, found) for judge in USE_CASES), found)


def _crossovers(results: Results) -> tuple[Crossover, ...]:
    if len(results.arms) < 2:
        return ()
    from tritium.perf.tables.crossover import crossovers  # of two arms

    return crossovers(results)


def _with_sizes(r: Recommendation, results: Results, found: Sequence[Crossover]) -> Recommendation:
    """The evidence, and from which size on it holds: where the arm that is recommended is the slower one at small sizes."""
    if not found or r.use_case not in SIZED or len(r.arms) != 1:
        return r
    from tritium.perf.tables.crossover import title

    of = [run for run in results.runs if run.case in r.cases]
    titles = {title(run) for run in of}
    best = next((run.arm for run in of if _named([run], run.arm) == r.arms[0]), "")
    told = [c for c in found if c.kind == "crosses" and c.case in titles and c.large == best]
    said = "".join(f"; {c.case}: {c.text}" for c in told[:MOST_CROSSOVERS])
    return replace(r, evidence=r.evidence + said)


# ---- which cases stand for a use


def _elements(run: Run) -> int:
    return math.prod(run.context.shape)


def _of_first(results: Results) -> list[Run]:
    """One run of each case, for its context."""
    seen: dict[str, Run] = {}
    for run in results.runs:
        seen.setdefault(run.case, run)
    return list(seen.values())


def _largest(runs: Iterable[Run]) -> list[str]:
    """The case with most work of each operation."""
    by = sorted(runs, key=lambda r: (r.context.operation, _elements(r)))
    return [max(same, key=_elements).case for _, same in groupby(by, key=lambda r: r.context.operation)]


def _smallest(runs: Iterable[Run]) -> list[str]:
    by = sorted(runs, key=lambda r: (r.context.operation, _elements(r)))
    return [next(iter(same)).case for _, same in groupby(by, key=lambda r: r.context.operation)]


def _among(results: Results, operations: Sequence[str], precision: str | None = None) -> list[Run]:
    return [
        r for r in _of_first(results)
        if r.context.operation in operations and precision in (None, r.context.precision)
    ]  # fmt: skip


def training(results: Results) -> Recommendation:
    """The largest f32 products: what a training step spends its time on."""
    cases = _largest(_among(results, DENSE, "f32"))
    return _fastest("training", results, cases, "no f32 matmul was measured")


def batch_inference(results: Results) -> Recommendation:
    """The largest ternary products and layers; dense ones where there are none."""
    cases = _largest(_among(results, TERNARY)) or _largest(_among(results, DENSE))
    return _fastest("batch inference", results, cases, "no bitlinear and no matmul was measured")


def latency(results: Results) -> Recommendation:
    """The smallest size of every operation."""
    return _fastest("latency", results, _smallest(_of_first(results)), "nothing was measured")


# ---- how arms are judged


def _complete(results: Results, cases: Sequence[str]) -> dict[str, list[Run]]:
    """The arms that did all of these cases, with their runs."""
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
    """An arm with what computes there: "tritium (avx2)", "numpy 2.4"."""
    how = next((r.context.optimisation for r in runs if r.context.optimisation), "")
    if how.startswith(arm):
        return how
    return f"{arm} ({how})" if how and how not in arm else arm


def _fastest(use_case: str, results: Results, cases: Sequence[str], nothing: str) -> Recommendation:
    """The arm with the shortest times; with it those from which no difference is shown."""
    arms = _complete(results, cases)
    if not arms:
        return Recommendation(use_case, (), nothing if not cases else f"no arm did {_listed(cases)}", tuple(cases))
    part = replace(results, runs=tuple(r for r in results.runs if r.case in cases))
    anchor = next(iter(arms))
    best, *rest = sorted(arms, key=lambda arm: 1.0 if arm == anchor else _ratio(part, arms, arm, anchor)[0])
    alike, said = [best], ""
    for other in rest:
        ratio, between = _ratio(part, arms, best, other)
        if between is None:  # one round: a ratio, and nothing of its doubt
            said = said or f"; {1 / ratio:.2f}× {other}"
        elif between[1] < 1 and 1 / ratio >= 1 + RULES.margin("wall"):
            said = said or f"; {1 / ratio:.2f}× {other} ({1 / between[1]:.2f}…{1 / between[0]:.2f})"
        else:
            alike.append(other)
    if len(alike) > 1:
        said = f"; no difference between them is shown{said}"
    if not rest:
        failed = ", ".join(arm for arm in results.arms if arm != best)
        said = f"; {failed} did not do all of it" if failed else "; nothing else was measured"
    return Recommendation(
        use_case, tuple(_named(arms[arm], arm) for arm in alike), _told(arms[best], results) + said, tuple(cases)
    )


def _ratio(part: Results, arms: dict[str, list[Run]], arm: str, other: str) -> tuple[float, tuple[float, float] | None]:
    """The time of an arm to that of another, by the pairs of their rounds, and its interval."""
    from tritium.perf.gate.compare import compare_paired  # of two arms

    suite = compare_paired(part, other, arm, RULES)
    if suite.geomean is not None:
        return suite.geomean, told_apart(suite.geomean_interval)
    pairs = zip(arms[arm], arms[other], strict=True)
    return _geomean(a.seconds / b.seconds for a, b in pairs if a.seconds and b.seconds), None


def _told(runs: Sequence[Run], results: Results) -> str:
    if len(runs) == 1:
        rate = speed_text(runs[0], results)[0]
        return f"{runs[0].case} in {seconds_text(runs[0].seconds or 0)}" + (f", {rate}" if rate != "-" else "")
    mean = _geomean(r.seconds for r in runs if r.seconds)
    return f"{seconds_text(mean)} on average over {_listed([r.case for r in runs])}"


def _listed(cases: Sequence[str]) -> str:
    return ", ".join(cases) if len(cases) < 3 else f"{len(cases)} cases ({cases[0]} …)"


def memory_limited(results: Results) -> Recommendation:
    """The bytes that stay: stored weights where a case tells them, else the resident growth of a call."""
    cases = _largest(_among(results, TERNARY)) or [r.case for r in _of_first(results)]
    for what, read in MEMORY.items():
        found = {}
        for arm, runs in _complete(results, cases).items():
            sizes = [read(r) for r in runs]
            known = [s for s in sizes if s is not None]
            if known and len(known) == len(sizes):
                found[arm] = sum(known)
        if len(found) > 1 or (found and len(results.arms) == 1):
            return _smallest_of("memory-limited", what, found, cases)
    return Recommendation(
        "memory-limited", (), "no bytes of weights and no resident memory were measured", tuple(cases)
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _resident(run: Run) -> float | None:
    series = run.of("rss_bytes")
    return None if series is None else series.median


MEMORY: dict[str, Callable[[Run], float | None]] = {
    "weights": lambda run: _number(run.facts.get("bytes of weights")),
    "resident growth": _resident,
}


def _smallest_of(use_case: str, what: str, found: dict[str, float], cases: Sequence[str]) -> Recommendation:
    least = min(found.values())
    best = tuple(arm for arm, n in found.items() if n <= 1.01 * least)
    rest = {arm: n for arm, n in found.items() if arm not in best}
    said = f"{what} of {bytes_text(least)} for {_listed(cases)}"
    if rest:
        second = min(rest, key=lambda a: rest[a])
        said += f"; {second} {bytes_text(rest[second])}"
    return Recommendation(use_case, best, said, tuple(cases))


def development(results: Results) -> Recommendation:
    """The least waiting: the first calls of all cases together, compilation and warm-up included."""
    cases = list(results.cases)
    found = {}
    for arm in results.arms:
        runs = [r for c in cases if (r := results.of(c, arm)) is not None and r.status == "ok"]
        firsts = [r.first_call_s for r in runs if r.first_call_s is not None]
        if firsts:
            found[arm] = (len(cases) - len(firsts), sum(firsts))
    if not found:
        return Recommendation("development", (), "no first call was timed", tuple(cases))
    ranked = sorted(found, key=lambda a: found[a])
    alike = tuple(a for a in ranked if found[a][0] == found[ranked[0]][0] and found[a][1] < UNFELT_S)
    if len(alike) > 1:
        each = ", ".join(f"{a} {seconds_text(found[a][1])}" for a in alike)
        said = f"first calls take less than {seconds_text(UNFELT_S)} in all: {each}"
        return Recommendation("development", alike, said, tuple(cases))
    failed, first = found[ranked[0]]
    said = f"first calls take {seconds_text(first)} in all" + (
        f", {failed} of {len(cases)} cases fail" if failed else ""
    )
    if len(ranked) > 1:
        failed, first = found[ranked[1]]
        said += f"; {ranked[1]} {seconds_text(first)}" + (f" and {failed} of {len(cases)} cases fail" if failed else "")
    return Recommendation("development", (ranked[0],), said, tuple(cases))


USE_CASES: tuple[Callable[[Results], Recommendation], ...] = (
    training, batch_inference, latency, memory_limited, development,
)  # fmt: skip

"""Results as a page of text: the comparison, the other metrics of the suite, advice, crossovers, the selection guide.

Knows nothing of terminals, and never prints. `width` is the widest line it may use; a wide table then drops its intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tritium import escape
from tritium.arguments import checked
from tritium.perf import amounts
from tritium.perf.gate import page as verdict_page
from tritium.perf.gate.verdict import Suite, told_apart
from tritium.perf.records.run import Results
from tritium.perf.tables import tables
from tritium.perf.tables.selection import Recommendation, device_selection_guide
from tritium.perf.tables.table import Table

GUIDED = ("compare", "comprehensive")
FLAGSHIP_WIDTH = 2560  # columns from which a ternary product is named beside the verdict
ADVISED = {
    "layout": (("transposed", "contiguous"), ("strided", "contiguous")),
    "dtype": (("f16", "f32"), ("bf16", "f32")),
}


@checked
def page(results: Results | Suite, width: int = 200, *, crossovers: bool = True) -> str:
    """Return the whole page for people: of results, or of the verdicts of a comparison. Begins with the verdict.

    `crossovers=False` leaves out the sizes at which contenders cross, for a run whose report has them.
    """
    if isinstance(results, Suite):
        return verdict_page.page(results)
    suites = tables.speedups(results)
    comparison = tables.comparison(results, beside=suites)
    for narrower in ({"rates": False}, {"brief": True}, {"rates": False, "brief": True}):
        if max(map(len, comparison.text().splitlines()[:3])) <= width:
            break
        comparison = tables.comparison(results, beside=suites, **narrower)
    findings = findings_of(results, crossovers=crossovers)
    parts = ["\n".join([*verdict(results, suites), _head(results)]), comparison.text()]
    parts += [t.text() for t in findings.tables]
    if findings.advice:
        parts.append("\n".join(["Advice", *(escape.terminal(line) for line in findings.advice)]))
    if findings.guide:
        parts.append(_guide_text(findings.guide))
    return "\n\n".join(parts)


class Findings(NamedTuple):
    """The results of a suite besides its comparison, the same on a terminal and on the page of its report."""

    tables: tuple[Table, ...] = ()  # other metrics of the suite, and the sizes at which contenders cross
    advice: tuple[str, ...] = ()
    guide: tuple[Recommendation, ...] = ()


def findings_of(results: Results, *, crossovers: bool = True) -> Findings:
    """Return what the suite of these results shows besides its comparison. The texts are not escaped."""
    return Findings(
        tuple(_details(results, crossovers)),
        tuple(line for slow, fast in ADVISED.get(results.suite, ()) for line in tables.advice(results, slow, fast)),
        device_selection_guide(results).recommendations if results.suite in GUIDED else (),
    )


def markdown(results: Results) -> str:
    """Return the same for a pull request, tables only."""
    suites = tables.speedups(results)
    shown = [tables.comparison(results, beside=suites), *_details(results)]
    lines = [*verdict(results, suites), _head(results)]
    return "\n\n".join([*(escape.markdown(line, None) for line in lines), *(t.markdown() for t in shown)])


def verdict(results: Results, beside: dict[str, Suite] | None = None) -> list[str]:
    """Return the verdict in one sentence, then the figures of the flagship where they were measured, then how noisy it was."""
    suites = tables.speedups(results) if beside is None else beside
    headline = tables.headline(results, suites)
    text = headline.text + (_mean(suites[headline.arm]) if headline.arm else "")
    lines = ["; ".join(filter(None, (text, headline.deciding))), flagship_text(results, suites)]
    return [escape.terminal(f"{line}.", 400) for line in (*lines, tables.noise(results, suites)) if line]


def _mean(suite: Suite) -> str:
    """Return the interval of a geometric mean, and its number of cases."""
    interval = told_apart(suite.geomean_interval)
    cases = sum(v.metric == "wall" and v.ratio is not None for v in suite.verdicts)
    over = f"geometric mean of {cases} case{'s' * (cases != 1)}"
    return f" ({1 / interval[1]:.2f}…{1 / interval[0]:.2f}, {over})" if interval is not None else f" ({over})"


def flagship_text(results: Results, suites: dict[str, Suite]) -> str:
    """Return the figures of the ternary product and of the packaged model, "" where none was measured."""
    products, rates, width = [], [], 0
    for case in results.cases:
        run = results.of(case, results.arms[0])
        if run is None or run.status != "ok" or not run.seconds:
            continue
        if run.context.operation == "bitlinear" and max(run.context.shape[-1:], default=0) >= FLAGSHIP_WIDTH:
            tokens, width = run.context.shape[0], run.context.shape[-1]
            time, ratios = amounts.seconds_text(run.seconds), _beside(case, results.arms[0], suites)
            products.append(f"{tokens} token{'s' * (tokens != 1)} in {time}{ratios}")
        elif run.context.operation == "model_decode":
            rates.append(f"the packaged model decodes {run.items_per_s:,.0f} tokens/s")
    named = [f"BitLinear {width}×{width}: {products[0]}", *products[1:]] if products else []
    return "; ".join([*named, *rates])


def _beside(case: str, first: str, suites: dict[str, Suite]) -> str:
    """Return how fast the first contender is beside each library in one case."""
    ratios = {
        arm: tables.ratio_text(v.ratio, v.interval95)
        for arm, suite in suites.items()
        for v in suite.verdicts
        if not tables.is_variant(arm, first) and v.case == case and v.metric == "wall" and v.ratio
    }
    return f", {', '.join(f'{ratio} vs {arm}' for arm, ratio in ratios.items())}" if ratios else ""


def _head(results: Results) -> str:
    """Return the line about the machine and the plan."""
    hard, plan = results.environment.hard, results.plan
    threads = amounts.many(hard.threads, "thread") if hard.threads else ""  # files of other tools do not say
    several = f" and {len(results.machines) - 1} more" if len(results.machines) > 1 else ""
    text = f"{', '.join(filter(None, (hard.cpu, threads))) or 'unknown machine'}{several}; {plan.name} plan"
    return escape.terminal(text + ("" if plan.gates else " (shows intervals, does not gate)"))


def _details(results: Results, crossovers: bool = True) -> list[Table]:
    """Return the tables of a suite besides the comparison."""
    counts, joules = _instructions(results), _energy(results)
    if results.suite == "energy":
        return [*joules, *([] if counts is None else [counts])]
    if results.suite in OWN:
        return [OWN[results.suite](results), *joules, *([] if counts is None else [counts])]
    more = counts, tables.details(results, results.suite), *joules, _crossovers(results) if crossovers else None
    return [t for t in more if t is not None]


def _instructions(results: Results) -> Table | None:
    """Return the instructions of a call beside its time; None where nobody asked for them."""
    if "instructions" not in results.plan.metrics:
        return None
    counts = [(r, s) for r in results if (s := r.of("instructions")) is not None]
    rows = [(r.case, r.arm, tables.time_text(r), f"{s.median:,.0f}") for r, s in counts if s.median is not None]
    heads = ("case", "contender", "time", "instructions")
    reasons = dict.fromkeys(f"not counted: {s.reason}" for _, s in counts if not s.flat)
    sources = dict.fromkeys(f"counted by {s.source}" for _, s in counts if s.flat)
    return Table("Instructions of a call", heads, tuple(rows), frozenset(heads[2:]), (*sources, *reasons))


def _crossovers(results: Results) -> Table | None:
    """Return the sizes at which two arms cross; None where there is one arm, or no operation with two sizes."""
    if results.suite not in GUIDED or len(results.arms) < 2:
        return None
    from tritium.perf.tables import crossover  # of two arms

    return crossover.table(results)


def _guide_text(recommendations: Sequence[Recommendation]) -> str:
    """Return the device selection guide as text."""
    width = max(len(r.use_case) for r in recommendations)
    rows = [f"  {r.use_case:<{width}}  {r.choice}: {r.evidence}" for r in recommendations]
    return "\n".join(
        ["Device selection guide, by the numbers of this run", *(escape.terminal(row, 300) for row in rows)]
    )


def _energy(results: Results) -> list[Table]:
    """Return the tables of energy; nothing where nobody asked for it."""
    if results.suite != "energy" and not any(run.of("energy") is not None for run in results):
        return []
    from tritium.perf.tables import energy  # most results have none

    return [t for t in (energy.table(results), energy.league(results)) if t is not None]


OWN = {"quantization": tables.quantization}

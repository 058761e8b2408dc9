"""Verdicts of a suite for people: a page for a terminal, and one in Markdown.

What matters is first and says what to do next; the rest is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tritium import escape
from tritium.arguments import duration_text
from tritium.perf.amounts import many, percent, seconds_text
from tritium.perf.gate.verdict import OUTCOMES, PASS, Status, Suite, Verdict

TOO_MANY = 100  # processes; nobody waits for more
PAIRED = "measure both revisions in one job, tritium regression-test --against REV"
QUIETER = "a quieter machine needs fewer, and tritium doctor names what disturbs this one"
SHOWN = 12  # of one outcome; the rest is counted
STATUS_TEXT: dict[Status, str] = {
    "AllPass": "no regression", "HasRegressions": "regression", "HasCriticalRegressions": "critical regression",
    "NoBaseline": "no baseline", "Inconclusive": "inconclusive", "NotComparable": "not comparable",
}  # fmt: skip
METRIC_NAMES = {
    "wall": "time",
    "cpu": "CPU time",
    "peak_bytes": "memory",
    "energy": "energy",
    "instructions": "instructions",
}
CHANGES = ("SLOWER", "INCONCLUSIVE", "CHANGED-SMALL", "FASTER")  # outcomes of which the severity is shown
NOISE = "× its noise: the severity, a change divided by half the width of its 95 % interval; at 1 it may be none"
LISTED = ("SLOWER", "MISSING", "NOT COMPARABLE", "INCONCLUSIVE", "CHANGED-SMALL", "FASTER")
UNITS = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "1": ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")),
}


def page(suite: Suite) -> str:
    """Return the page for a terminal: the counts, then only what matters, then what it means for the gate."""
    return f"{differences(suite)}\n{ending(suite)}"


def differences(suite: Suite) -> str:
    """Return the page without its meaning for a gate."""
    lines = [headline(suite)]
    if suite.noise:
        lines.append(f"{escape.terminal(suite.noise, None)}.")
    if compared := subject(suite):
        lines.append(compared)
    for outcome in LISTED:
        listed = suite.of(outcome)
        if outcome == "NOT COMPARABLE" and len(listed) > 1 and len({v.reason for v in listed}) == 1:
            lines.append(f"  {outcome}: {escape.terminal(listed[0].reason, None)}")
            continue
        lines += [_line(v, suite) for v in listed[:SHOWN]]
        if len(listed) > SHOWN:
            lines.append(f"  … and {len(listed) - SHOWN} more {outcome}; all of them are in the verdict file")
    lines += [
        f"  new          {escape.terminal(case)}: not in the baseline, not judged" for case in suite.new_cases[:SHOWN]
    ]
    if any(severity_text(v) for v in suite.verdicts):
        lines.append(NOISE)
    if suite.geomean is not None and suite.geomean_interval is not None:
        lines.append(f"all together {_ratio(suite.geomean, suite.geomean_interval)}, information only")
    for title, fields in (("differs, and forbids to compare", suite.hard), ("differs", suite.soft)):
        lines += [
            f"{title}: {escape.terminal(k)}: {escape.terminal(a)} → {escape.terminal(b)}"
            for k, (a, b) in fields.items()
        ]
    lines += [f"note: {escape.terminal(note)}" for note in suite.notes]
    return "\n".join(lines)


def headline(suite: Suite) -> str:
    """Return the counts at a glance; outcomes that did not occur are left out, except two."""
    if suite.overall_status == "NoBaseline":
        return "no baseline: nothing was compared"
    always = ("SLOWER", "EQUIVALENT")
    counts = [f"{suite.counts.get(o, 0)} {o}" for o in OUTCOMES if suite.counts.get(o, 0) or o in always]
    return " · ".join(counts) + _judged_text(suite)


def _judged_text(suite: Suite) -> str:
    """Return how many cases the verdicts are on, where a case has several: of its time, its memory …"""
    cases = len({(v.case, v.arm) for v in suite.verdicts})
    if cases == len(suite.verdicts):
        return ""
    judged = {v.metric for v in suite.verdicts}
    metrics = " and ".join(METRIC_NAMES.get(m, m) for m in sorted(judged, key=[*METRIC_NAMES, *sorted(judged)].index))
    return f" ({metrics} of {cases} case{'s' * (cases != 1)})"


def subject(suite: Suite) -> str:
    """Return the names of the two sides that were compared."""
    if not suite.base and not suite.head:
        return ""
    how = "side by side" if suite.paired else "separate runs"
    return f"{escape.terminal(suite.base)} → {escape.terminal(suite.head or 'now')}, {how}"


def ending(suite: Suite) -> str:
    """Return the status, the exit code and its meaning."""
    text = f"{STATUS_TEXT[suite.overall_status]}: exit code {suite.exit_code}"
    if suite.exit_code == PASS and suite.overall_status != "AllPass":
        text += f", because --allow-{' --allow-'.join(suite.allowed)} was given"
    if not suite.gates:
        text += "; quick runs do not gate"
    return "\n".join(filter(None, (sensitivity_text(suite), text)))


def sensitivity_text(suite: Suite) -> str:
    """Return what slow-down would have been found, and what finds a smaller one; "" where no time was judged."""
    if suite.target is None:
        return ""
    if suite.sensitivity is None:
        text = "no slow-down of every case, however clear, would have been certain"
    else:
        text = f"a slow-down above {percent(suite.sensitivity)} of any case would have been found nine times in ten"
        if suite.usual_sensitivity is not None and suite.usual_sensitivity < suite.sensitivity:
            text += f", above {percent(suite.usual_sensitivity)} of half of them"
        if suite.sensitivity <= suite.target:
            return text
    target = f"for {percent(suite.target)}"
    if suite.processes is not None and suite.process_s > 0:
        text += (
            f"; {target} run --processes {suite.processes}, about {duration_text(suite.processes * suite.process_s)}"
        )
        text += "" if suite.paired else " each"
    return text if suite.paired else f"{text}; {target} in less time: {PAIRED}"


def _line(v: Verdict, suite: Suite) -> str:
    """Return the line of one verdict."""
    name = escape.terminal(v.case) + ("" if v.arm in ("", "head") else f" [{escape.terminal(v.arm)}]")
    parts = [
        f"  {v.outcome:<14} {name}  {METRIC_NAMES.get(v.metric, v.metric)}",
        figure(v),
        severity_text(v),
        v.level.upper(),
        escape.terminal(v.reason, None),
        advice(v, suite),
    ]
    return "  ".join(p for p in parts if p)


def severity_text(v: Verdict) -> str:
    """Return the change as a multiple of its own noise; "" where it has no noise or is none."""
    if v.severity is None or not math.isfinite(v.severity) or v.outcome not in CHANGES:
        return ""
    return f"{v.severity:.1f} × its noise"


def figure(v: Verdict) -> str:
    """Return the ratio with its interval and margin; both values where they are exact."""
    if v.exact and v.old is not None and v.new is not None:
        return f"{amount(v.old, v.unit)} → {amount(v.new, v.unit)}{change(v.ratio)}"
    if v.ratio is None:
        return ""
    times = f"{measured(v.old, v.unit)} → {measured(v.new, v.unit)}  " if v.old and v.new else ""
    return f"{times}{_ratio(v.ratio, v.interval)}, margin ±{100 * v.margin:g} %"


def advice(v: Verdict, suite: Suite) -> str:
    """Return how many more processes would decide, or what to do if that is too many."""
    if v.more_generations is None:
        return ""
    if v.more_generations > TOO_MANY:
        return deciding(v.more_generations)
    where = "" if suite.paired else " in both runs"
    more = more_processes(v.more_generations, suite.process_s)
    return f"about {more}{where}: --processes {v.generations + v.more_generations}"


def more_processes(count: int, each_s: float = 0.0) -> str:
    """Return so many more processes, with the time they take where it is known: 12 more processes (3 min)."""
    took = f" ({duration_text(max(count * each_s, 1))})" if each_s else ""
    return f"{many(count, 'more process')}{took}"


def deciding(count: int | None, each_s: float = 0.0) -> str:
    """Return how many more processes would decide, or what to do if that is too many; "" where more do not help."""
    if count is None:
        return ""
    if count > TOO_MANY:
        return f"more than {TOO_MANY} more processes would be needed: {QUIETER}"
    return f"about {more_processes(count, each_s)} would decide"


def joint_advice(verdicts: Sequence[Verdict], each_s: float = 0.0) -> str:
    """Return what would decide several verdicts: so many more processes, or a quieter machine where that is too many."""
    needed = [v.more_generations for v in verdicts if v.more_generations is not None]
    within = [n for n in needed if n <= TOO_MANY]

    def whom(count: int) -> str:
        return "it" if len(verdicts) == 1 else "all of them" if count == len(verdicts) else f"{count} of them"

    parts = [f"{deciding(max(within), each_s)} {whom(len(within))}"] if within else []
    if beyond := len(needed) - len(within):
        parts.append(f"more than {TOO_MANY} more processes would be needed for {whom(beyond)}: {QUIETER}")
    return "; ".join(parts)


def change(ratio: float | None) -> str:
    """Return a ratio as a change in per cent."""
    return "" if ratio is None else f" ({100 * (ratio - 1):+.1f} %)"


def _ratio(ratio: float, interval: Sequence[float] | None) -> str:
    return f"{ratio:.3f}" + (f" ({interval[0]:.3f} … {interval[1]:.3f})" if interval else "")


def measured(value: float, unit: str) -> str:
    """Return a measured value; a time is spelled as in every other table and page."""
    return seconds_text(value) if unit == "s" else amount(value, unit)


def amount(value: float, unit: str) -> str:
    """Return a value in the unit that fits its size."""
    for size, name in UNITS.get(unit, ()):
        if abs(value) >= size:
            return f"{_digits(value / size)} {name}".strip()
    return f"{_digits(value)} {unit}".strip()


def _digits(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


def mark(suite: Suite) -> str:
    """Return the sign of a suite: whether it fails the gate, passes though its status is another, or passes."""
    return "❌" if suite.exit_code != PASS else "⚠️" if suite.overall_status != "AllPass" else "✅"


def markdown(suite: Suite) -> str:
    """Return the page for a pull request or a job summary: the same in Markdown, every verdict in a table."""
    lines = [
        f"### {mark(suite)} {headline(suite)}",
        "",
        *([f"{escape.prose(suite.noise, None)}.", ""] if suite.noise else []),
        f"`{ending(suite)}`",
        "",
    ]
    if suite.verdicts:
        lines += ["| verdict | case | metric | ratio (interval) | margin | note |", "|---|---|---|---|---|---|"]
    for v in suite.verdicts:
        arm = "" if v.arm in ("", "head") else f" {escape.markdown(v.arm)}"
        shown = (
            f"{amount(v.old, v.unit)} → {amount(v.new, v.unit)}{change(v.ratio)}"
            if v.exact and v.old is not None and v.new is not None
            else "" if v.ratio is None else _ratio(v.ratio, v.interval)
        )  # fmt: skip
        note = "; ".join(p for p in (v.level, v.reason, advice(v, suite)) if p)
        remark, metric = escape.markdown(note, None) if note else "", METRIC_NAMES.get(v.metric, v.metric)
        lines.append(
            f"| {v.outcome} | {escape.markdown(v.case)}{arm} | {metric} | {shown} | ±{100 * v.margin:g} % | {remark} |"
        )
    lines += [
        f"| new | {escape.markdown(case)} | | | | not in the baseline |" for case in suite.new_cases if suite.verdicts
    ]
    if suite.geomean is not None and suite.geomean_interval is not None:
        lines += ["", f"All together {_ratio(suite.geomean, suite.geomean_interval)}, information only."]
    fields = suite.hard | suite.soft
    lines += [
        "",
        *(f"- {escape.markdown(k)}: {escape.markdown(a)} → {escape.markdown(b)}" for k, (a, b) in fields.items()),
    ]
    lines += [f"- {escape.markdown(note, None)}" for note in suite.notes]
    return "\n".join(lines).rstrip() + "\n"

"""The report of bench/ternary.py: medians, intervals, rates, shares of the machine's ceilings, ratios; text or Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ternary_products import BASE
from timing import machine


def figures(cell: dict[str, Any], threads: int, ceilings: Any) -> dict[str, dict[str, Any]]:
    """For each library of a cell: the median time, rates, shares of ceilings, and its ratio to tritium, with intervals."""
    import numpy as np

    samples = cell["ns"]
    rounds = len(samples[BASE])
    chosen = np.random.default_rng(0).integers(rounds, size=(2000, rounds))  # the same for all: ratios stay paired
    boot = {name: np.median(np.array(values)[chosen], axis=1) for name, values in samples.items()}
    work, found = 2 * cell["batch"] * cell["n"] * cell["k"], {}
    for name, values in samples.items():
        ns = float(np.median(values))
        low, high = (float(v) for v in np.percentile(boot[name], [2.5, 97.5]))
        ratio = [ns / float(np.median(samples[BASE])), *map(float, np.percentile(boot[name] / boot[BASE], [2.5, 97.5]))]
        gops, gbs = work / ns, cell["nbytes"][name] / ns
        row = {"us": [ns / 1e3, low / 1e3, high / 1e3], "gops": gops, "gbs": gbs, "ratio": ratio}
        if kernel := cell["kernels"].get(name):
            row |= {"kernel": kernel} | shares(ceilings, kernel, gops, gbs, threads)
        found[name] = row
    return found


def shares(ceilings: Any, kernel: str, gops: float, gbs: float, threads: int) -> dict[str, float | None]:
    """The shares of the int8 instruction a kernel uses (of the fastest one, if it has no name here), and of DRAM."""
    if ceilings is None:
        return {}
    known = {row.name for row in ceilings.rows if row.kind == "int8" and row.samples}
    compute = ceilings.share(gops=gops, threads=threads, name=kernel if kernel in known else None)
    return {"of_int8": compute, "of_dram": ceilings.share(gbs=gbs, threads=threads)}


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def times(ratio: Sequence[float]) -> str:
    """A ratio and its interval."""
    middle, low, high = ratio
    digits = 1 if middle >= 10 else 2
    return f"{middle:.{digits}f}x ({low:.{digits}f} … {high:.{digits}f})"


def lines_of(heads: list[str], rows: list[list[str]], markdown: bool) -> str:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    if markdown:
        rows = [heads, ["-" * width for width in widths], *rows]
        return "\n".join("| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows)
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in [heads, *rows])


def table(cells: list[dict[str, Any]], threads: int, ceilings: Any, markdown: bool) -> str:
    """The cells of one batch: a row for each shape."""
    peers = [name for name in dict.fromkeys(name for cell in cells for name in cell["ns"]) if name != BASE]
    heads = ["out × in", "µs", "GOP/s", "GB/s", "kernel", "of int8", "of DRAM", *peers]
    rows = []
    for cell in cells:
        found = figures(cell, threads, ceilings)
        mine = found[BASE]
        us, low, high = mine["us"]
        row = [f"{cell['n']}×{cell['k']}", f"{us:.4g} ±{50 * (high - low) / us:.0f}%", f"{mine['gops']:.4g}"]
        row += [f"{mine['gbs']:.3g}", mine["kernel"], percent(mine.get("of_int8")), percent(mine.get("of_dram"))]
        rows.append(row + [times(found[name]["ratio"]) if name in found else "" for name in peers])
    return lines_of(heads, rows, markdown)


def summary(results: list[dict[str, Any]], markdown: bool) -> str:
    """The range over the shapes: tritium's GOP/s and how much faster it is than each peer."""
    groups: dict[tuple[int, int], list[dict[str, dict[str, Any]]]] = {}
    for result in results:
        for cell in result["cells"]:
            groups.setdefault((cell["batch"], result["threads"]), []).append(figures(cell, result["threads"], None))
    peers = [n for n in dict.fromkeys(n for of in groups.values() for found in of for n in found) if n != BASE]
    rows = []
    for (batch, threads), of in sorted(groups.items()):
        row = [str(batch), str(threads), spread([found[BASE]["gops"] for found in of])]
        rows.append(row + [spread([found[name]["ratio"][0] for found in of if name in found]) for name in peers])
    return lines_of(["batch", "threads", f"{BASE} GOP/s", *(f"x {name}" for name in peers)], rows, markdown)


def spread(values: list[float]) -> str:
    if not values:
        return ""
    low, high = (f"{v:.0f}" if v >= 100 else f"{v:.1f}" if v >= 10 else f"{v:.2f}" for v in (min(values), max(values)))
    return low if low == high else f"{low}–{high}"


def report(results: list[dict[str, Any]], ceilings: Any, cold: int, load: float, markdown: bool) -> str:
    out = [
        f"{machine()}, load before the run {load:.1f}",
        ", ".join(f"{n} {v}" for n, v in results[0]["versions"].items()),
    ]
    out.append(
        f"Cold weights: copies of more than {cold / 2**20:.0f} MiB. Ratios are peer / {BASE}: above 1, {BASE} is faster."
    )
    for result in results:
        threads = result["threads"]
        for batch in dict.fromkeys(cell["batch"] for cell in result["cells"]):
            cells = [cell for cell in result["cells"] if cell["batch"] == batch]
            title = f"batch {batch}, {threads} thread{'s' * (threads > 1)}"
            out += ["", f"### {title}" if markdown else title, "", table(cells, threads, ceilings, markdown)]
        if of := result["head"]:
            title = f"int8 output head, one token, {threads} thread{'s' * (threads > 1)}"
            out += ["", f"### {title}" if markdown else title, "", table([of], threads, ceilings, markdown)]
    out += ["", "### ranges over the shapes" if markdown else "ranges over the shapes", "", summary(results, markdown)]
    if result := next((r for r in results if r["overhead_ns"]), None):
        out += ["", told_overhead(result["overhead_ns"])]
    notes = [note for result in results for note in result["notes"]]
    if ceilings.disturbed:
        notes.append("the ceilings were measured beside other work and may be too low; --refresh on a quiet machine")
    if load > 0.5:
        notes.append(f"other work was running (load {load:.1f})")
    return "\n".join(out + [f"Note: {note}." for note in dict.fromkeys(notes)])


def told_overhead(ns: dict[str, list[float]]) -> str:
    import numpy as np

    layer, kernel = (np.array(ns[name]) for name in ("layer(x)", "kernel"))
    chosen = np.random.default_rng(0).integers(len(layer), size=(2000, len(layer)))
    low, high = np.percentile(np.median(layer[chosen], axis=1) - np.median(kernel[chosen], axis=1), [2.5, 97.5]) / 1e3
    extra = (np.median(layer) - np.median(kernel)) / 1e3
    return (
        f"BitLinear 256×256: layer(x) {np.median(layer) / 1e3:.2f} µs, its kernel alone {np.median(kernel) / 1e3:.2f} µs: "
        f"the call costs {extra:.2f} µs ({low:.2f} … {high:.2f})"
    )

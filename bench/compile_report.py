"""The report of bench/compile.py: tables of medians and ratios, and a line for each goal; text or Markdown."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from compile_words import COMPILED, EAGER, IN_TURN
from ternary_report import lines_of
from timing import machine

Cell = dict[str, Any]
Result = dict[str, Any]
AHEAD_FROM = 1 << 16  # numbers from which a compiled chain must be ahead of every peer
STEP_NS, MLP_SHARE, ARENA_SHARE, COMPILE_MS, STEEPER = 300, 1.10, 1.10, 100, 1.25


def sized(n: float) -> str:
    """A count of numbers: 64K, 16M."""
    for unit in ("", "K", "M"):
        if n < 1024:
            return f"{n:.0f}{unit}"
        n /= 1024
    return f"{n:.0f}G"


def short(us: float) -> str:
    return f"{us:.0f}" if us >= 100 else f"{us:.3g}"


def spread(values: list[float]) -> float:
    """Half of the 95 % bootstrap interval of the median, in percent of it."""
    import numpy as np

    chosen = np.random.default_rng(0).integers(len(values), size=(1000, len(values)))
    low, high = np.percentile(np.median(np.array(values)[chosen], axis=1), [2.5, 97.5])
    return float(50 * (high - low) / np.median(values))


def peers_of(cells: list[Cell]) -> list[str]:
    names = dict.fromkeys(name for cell in cells for name in cell["ns"])
    return [name for name in names if name not in (EAGER, COMPILED, IN_TURN) and not name.startswith("kernel ")]


def best_peer(cell: Cell) -> tuple[str, float]:
    """The fastest of the others, and its time over ours."""
    us = {name: median(cell["ns"][name]) for name in peers_of([cell])}
    if not us:
        return "", float("inf")
    best = min(us, key=us.__getitem__)
    return best, us[best] / median(cell["ns"][COMPILED])


def timed_cells(cell: Cell, peers: list[str]) -> list[str]:
    """Ours with its spread, then eager and every peer with their ratios, then the best of them."""
    ours = median(cell["ns"][COMPILED])
    out = [f"{short(ours / 1e3)} ±{spread(cell['ns'][COMPILED]):.0f}%"]
    for name in (EAGER, *peers):
        ns = median(cell["ns"][name]) if name in cell["ns"] else None
        out.append("" if ns is None else f"{short(ns / 1e3)} ({ns / ours:.2f}x)")
    best, ratio = best_peer(cell)
    return [*out, f"{best} {ratio:.2f}x" if best else ""]


def timed_table(cells: list[Cell], first: dict[str, Callable[[Cell], str]], markdown: bool) -> str:
    peers = peers_of(cells)
    heads = [*first, "compiled µs", "eager", *peers, "best peer"]
    rows = [[*(told(cell) for told in first.values()), *timed_cells(cell, peers)] for cell in cells]
    return lines_of(heads, rows, markdown)


def kb(n: float) -> str:
    return f"{n / 1024:.1f} KB" if n < 1 << 20 else f"{n / (1 << 20):.1f} MB"


def memory_table(cells: list[Cell], markdown: bool) -> str:
    heads = [
        "",
        "rows → launches",
        "bytes moved, eager → compiled",
        "peak, eager",
        "peak",
        "arena",
        "naive",
        "bound",
        "/",
    ]
    rows = []
    for c in cells:
        share = f"{c['arena'] / c['bound']:.2f}" if c["bound"] else "–"
        row = [c["title"], f"{c['rows']} → {c['launches']}", f"{kb(c['eager_bytes'])} → {kb(c['bytes'])}"]
        rows.append(row + [kb(c[k]) for k in ("eager_peak", "peak", "arena", "naive", "bound")] + [share])
    return lines_of(heads, rows, markdown)


def chains(cells: list[Cell], markdown: bool) -> list[str]:
    out = []
    for kind in dict.fromkeys(c["kind"] for c in cells):
        first = {"rows": lambda c: str(c["length"]), "numbers": lambda c: sized(c["size"])}
        out += ["", f"{kind} chains", "", timed_table([c for c in cells if c["kind"] == kind], first, markdown)]
    return out


def rows(cells: list[Cell], markdown: bool) -> list[str]:
    return ["", timed_table(cells, {"": lambda c: c["title"]}, markdown), "", memory_table(cells, markdown)]


def mlp(cells: list[Cell], markdown: bool) -> list[str]:
    out = rows(cells, markdown)
    for cell in cells:
        alone = {name: median(ns) for name, ns in cell["ns"].items() if name.startswith("kernel ")}
        each = ", ".join(f"{name.split()[-1]} {short(ns / 1e3)}" for name, ns in alone.items())
        ours, turn = median(cell["ns"][COMPILED]), median(cell["ns"][IN_TURN])
        told = f"{cell['title']}: its {len(alone)} kernels called in turn take {short(turn / 1e3)} µs, and compiled is "
        told += f"{ours / turn:.3f} of that. Each alone in a loop: {short(sum(alone.values()) / 1e3)} µs ({each}). "
        out += ["", f"{told}The steps inside a compiled call take {short(median(cell['own']) / 1e3)} µs."]
    return out


def slope_ns(cells: list[Cell], name: str = COMPILED) -> float:
    """What one more step costs: between the two longest programs; of the only one, its mean."""
    have = sorted((c for c in cells if name in c["ns"]), key=lambda c: c["count"])
    if len(have) < 2:
        return median(have[0]["ns"][name]) / have[0]["count"] if have else float("nan")
    a, b = have[-2:]
    return (median(b["ns"][name]) - median(a["ns"][name])) / (b["count"] - a["count"])


def steps(cells: list[Cell], markdown: bool) -> list[str]:
    out = []
    for kind in dict.fromkeys(c["kind"] for c in cells):
        mine = [c for c in cells if c["kind"] == kind]
        first = {
            "steps": lambda c: str(c["count"]),
            "ns a step": lambda c: f"{median(c['ns'][COMPILED]) / c['launches']:.0f}",
        }
        each = ", ".join(f"{name} {slope_ns(mine, name):.0f}" for name in (COMPILED, EAGER, *peers_of(mine)))
        out += ["", kind, "", timed_table(mine, first, markdown), "", f"ns for one more step: {each}"]
    return out


def per_thousand_ms(cell: Cell) -> float:
    return cell["ns"]["total"] / cell["nodes"] * 1e-3


def growth(cells: list[Cell], markdown: bool) -> list[str]:
    names = list(cells[0]["ns"])
    heads = ["nodes", *(f"{name} ms" for name in names), "ms per 1,000", ""]
    most = max(map(per_thousand_ms, cells))
    rows = []
    for c in cells:
        per = per_thousand_ms(c)
        bar = "▇" * max(1, round(20 * per / most))
        rows.append([str(c["nodes"]), *(f"{c['ns'][n] / 1e6:.2f}" for n in names), f"{per:.1f}", bar])
    return ["", lines_of(heads, rows, markdown)]


SECTIONS: dict[str, tuple[str, Callable[[list[Cell], bool], list[str]]]] = {
    "chains": ("Fused chains", chains),
    "rows": ("Rows: softmax, norms, rounding", rows),
    "mlp": ("Feed-forward block with BitLinear, 2560 → 6912 → 2560", mlp),
    "steps": ("What one step of a program costs", steps),
    "memory": ("Memory of reference models", lambda cells, markdown: ["", memory_table(cells, markdown)]),
    "growth": ("How long it takes to compile", growth),
}


# ---- goals


def said(goal: str, met: bool, number: str) -> str:
    return f"{'met    ' if met else 'NOT met'}  {goal}: {number}"


def chain_goal(cells: list[Cell], threads: int) -> list[str]:
    large = [c for c in cells if c["section"] == "chains" and c["size"] >= AHEAD_FROM]
    if not large:
        return []
    ratios = [(best_peer(c), c) for c in large]
    behind = sorted((r, name, c["title"]) for (name, r), c in ratios if r <= 1)
    worst = f"least ahead {min(r for (_, r), _ in ratios):.2f}x" if not behind else ""
    told = "; ".join(f"{title}: {name} {r:.2f}x" for r, name, title in behind[:5])
    number = f"ahead in {len(large) - len(behind)} of {len(large)}. {worst}{told}"
    return [said(f"ahead of every peer on fused chains from 64K, {threads} thread(s)", not behind, number)]


def mlp_goal(cells: list[Cell], threads: int) -> list[str]:
    out = []
    for c in cells:
        if c["section"] == "mlp" and c["batch"] == 1:
            share = median(c["ns"][COMPILED]) / median(c["ns"][IN_TURN])
            out.append(
                said(
                    f"MLP at batch 1 within 10 % of its kernels, {threads} thread(s)",
                    share <= MLP_SHARE,
                    f"{share:.3f}",
                )
            )
    return out


def step_goal(cells: list[Cell], threads: int) -> list[str]:
    mine = [c for c in cells if c["section"] == "steps"]
    slopes = {kind: slope_ns([c for c in mine if c["kind"] == kind]) for kind in dict.fromkeys(c["kind"] for c in mine)}
    told = ", ".join(f"{kind} {ns:.0f} ns" for kind, ns in slopes.items())
    return [said("a step of a program at most 300 ns", max(slopes.values()) <= STEP_NS, told)] if slopes else []


def arena_goal(cells: list[Cell], threads: int) -> list[str]:
    mine = [c["arena"] / c["bound"] for c in cells if c["section"] == "memory" and c["bound"]]
    return (
        [said("arena at most 1.1 of the lower bound", max(mine) <= ARENA_SHARE, f"{max(mine):.3f} at worst")]
        if mine
        else []
    )


def growth_goal(cells: list[Cell], threads: int) -> list[str]:
    mine = {c["title"]: c for c in cells if c["section"] == "growth"}
    out = []
    if "1000 nodes" in mine:
        ms = per_thousand_ms(mine["1000 nodes"])
        out.append(said("1,000 nodes compiled in at most 100 ms", ms <= COMPILE_MS, f"{ms:.1f} ms"))
        longest = max(mine.values(), key=lambda c: c["nodes"])
        steeper = per_thousand_ms(longest) / ms
        told = f"{longest['nodes']} nodes take {steeper:.2f} times as long a node as 1,000"
        out.append(said("compile time grows linearly", steeper <= STEEPER, told))
    return out


def goals(results: list[Result]) -> list[str]:
    tables = (chain_goal, mlp_goal, step_goal, arena_goal, growth_goal)
    return [line for goal in tables for r in results for line in goal(r["cells"], r["threads"])]


def report(results: list[Result], markdown: bool) -> str:
    versions = {name: told for r in results for name, told in r["versions"].items()}
    loads = [f"{load:.1f}" for r in results for load in r["loads"]]
    out = [f"{machine()}, load before and after each run {', '.join(loads)}"]
    out.append(", ".join(f"{name} {told}" for name, told in versions.items()))
    out.append(
        "Median µs of a call, ± half of its 95 % interval; (peer / tritium compiled: above 1, tritium is faster)."
    )
    for name, (title, table) in SECTIONS.items():
        for result in results:
            cells = [c for c in result["cells"] if c["section"] == name]
            if cells:
                threads = f"{result['threads']} thread{'s' * (result['threads'] > 1)}"
                head = f"{title}, {threads}"
                out += ["", f"### {head}" if markdown else f"== {head}", *table(cells, markdown)]
    out += ["", "### Goals" if markdown else "== Goals", ""]
    out += [f"- {line}" if markdown else line for line in goals(results)]
    notes = dict.fromkeys(note for result in results for note in result["notes"])
    return "\n".join(out + [""] + [f"Note: {note}." for note in notes])

"""Which of two arms is faster at which sizes, and where they meet.

Knows nothing of how a page looks, and computes no statistics of its own.
"""

from __future__ import annotations

from tritium.perf.tables import crossover
from tritium.perf.tables.tables import ratio_text
from tritium.see.reports.blocks import Block, Cell, Grid, Line, Lines, Tone
from tritium.see.reports.inputs import Given
from tritium.see.reports.sections import Section, absent

TONES: dict[str, Tone] = {"crosses": "good", "several": "unsure"}
ABSENT = "two sizes of an operation on two arms are needed: tritium compare --devices cpu,mlx --sizes 256,512,1024"


def crossovers(given: Given) -> Section:
    """A row where the faster of two arms depends on the size, with what was measured at each size in its tip."""
    title = "Crossover sizes"
    if given.revisions is not None:
        return absent("crossovers", title, "the arms are two revisions, of which one is not chosen by size")
    found = crossover.crossovers(given.results)
    if not found:
        return absent("crossovers", title, ABSENT)
    rows, lines = crossover.notable(found, given.first)
    blocks: list[Block] = []
    if rows:
        blocks.append(Grid(crossover.HEADS, tuple(map(_row, rows)), caption="Where the faster arm depends on the size"))
    if lines:
        blocks.append(Lines(tuple(Line(text, "quiet") for text in lines)))
    lede = (
        "An arm is named where the whole 95 % interval of the ratio is on its side, by at least 3 %; a crossing is found "
        "on the straight line between two such sizes, on logarithmic axes."
    )
    return Section("crossovers", title, tuple(blocks), lede)


def _row(c: crossover.Crossover) -> tuple[Cell, ...]:
    told = "; ".join(f"{'x'.join(map(str, p.shape))}: {ratio_text(p.ratio, p.interval)}" for p in c.points)
    tip = f"how many times as fast {c.arms[1]} is: {told}"
    faster = Cell(c.text, TONES.get(c.kind, ""), c.size, tip)
    return Cell(c.case), Cell(" and ".join(c.arms)), Cell(c.range_text), faster

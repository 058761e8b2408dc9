"""The page of a training: loss, schedules, weights that flip, zeros and gradients over the steps, and each layer in maps and a table.

Knows nothing of PyTorch: it draws the rows that `tritium.torch.Watch` records, or the file it saves. Rows are checked, since they
may be another's.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from tritium.errors import ArgumentError, FormatError
from tritium.machine.files import read_bytes, write_text
from tritium.see.charts.raster import Raster
from tritium.see.charts.time import Layer, OverTime, Track
from tritium.see.reports import html
from tritium.see.reports.blocks import Block, Cell, Facts, Grid, Picture
from tritium.see.reports.sections import Section

MOST_BYTES = 64 << 20  # of a file
MOST_ROWS, MOST_LAYERS = 100_000, 10_000
MOST_REASON = 300  # characters
SERIES = {"loss": "loss", "learning_rate": "learning rate", "weight_decay": "weight decay", "lambda": "lambda"}
PARTS = {
    "flips": "flipped weights",
    "zeros": "zero weights",
    "gradient": "gradient norm",
}
MAPS = {
    "gradient": "Norm of the gradient by layer",
    "flips": "Flipped weights by layer",
    "zeros": "Zero weights by layer",
}
SHARES = {"flips": 100.0, "zeros": 100.0}  # parts that are shares, in per cent

Row = Mapping[str, Any]


def training_page(source: Any, path: str | os.PathLike[str], *, title: str = "training") -> Path:
    """Write the page of a training as one HTML file; `source` is a Watch, its rows, or the file that its `save` writes."""
    return write_text(path, page_of(rows_of(source), title))


def rows_of(source: Any) -> list[Row]:
    """Return the checked rows of a Watch, of a list or of a file."""
    if isinstance(source, str | os.PathLike):
        try:
            content = json.loads(read_bytes(source, MOST_BYTES))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"training_page: {os.fspath(source)} is no JSON: {str(error)[:100]}.") from None
        if not isinstance(content, dict) or content.get("schema") != 1 or "training" not in content:
            raise FormatError(
                f"training_page: {os.fspath(source)} is no file of Watch.save, which has 'schema': 1 and 'training'."
            )
        rows = content["training"]
    else:
        rows = getattr(source, "rows", source)
    if not isinstance(rows, Sequence) or isinstance(rows, str) or len(rows) > MOST_ROWS:
        raise ArgumentError(
            f"training_page: a Watch, at most {MOST_ROWS} rows or a file is needed, given {type(source).__name__}."
        )
    for row in rows:
        _check(row)
    return list(rows)


def _check(row: Any) -> None:
    layers = row.get("layers") if isinstance(row, Mapping) else None
    if not isinstance(layers, Mapping) or len(layers) > MOST_LAYERS or _number(row.get("step")) is None:
        raise FormatError(
            f"training_page: a row has a step and layers by name, at most {MOST_LAYERS}; given {str(row)[:80]}."
        )
    if not all(isinstance(name, str) and isinstance(numbers, Mapping) for name, numbers in layers.items()):
        raise FormatError(f"training_page: layers are numbers by name, given {str(layers)[:80]}.")


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def page_of(rows: Sequence[Row], title: str) -> str:
    """Return the page as HTML."""
    sections = [s for s in (_summary(rows, title), _curves(rows), _maps(rows), _layers(rows)) if s.blocks]
    footer = (
        f"Made by Tritium from {len(rows)} records of a training. Offline, and the same bytes from the same records."
    )
    return html.page(f"Tritium · {title}", sections, footer, noun="layer", home="#summary")


def _summary(rows: Sequence[Row], title: str) -> Section:
    if not rows:
        return Section("summary", title, (Facts((("records", Cell("none: the training has not reached its first")),)),))
    losses = [x for x in (_number(row.get("loss")) for row in rows) if x is not None]
    facts = [
        ("steps", Cell(f"{int(rows[-1]['step'])}")),
        ("records", Cell(f"{len(rows)}")),
        ("layers", Cell(f"{len(rows[-1]['layers'])}")),
    ]
    if losses:
        facts.append(("loss", Cell(f"{losses[0]:.4g} at first, {losses[-1]:.4g} at last, {min(losses):.4g} at least")))
    if isinstance(rows[-1].get("absent"), str):
        facts.append(("absent", Cell(rows[-1]["absent"][:MOST_REASON])))
    return Section("summary", title, (Facts(tuple(facts)),))


def _mean(row: Row, part: str) -> float:
    """Return the mean over layers, of gradients the norm of all; NaN where no layer has a number."""
    values = [x for x in (_number(layer.get(part)) for layer in row["layers"].values()) if x is not None]
    if not values:
        return math.nan
    return math.hypot(*values) if part == "gradient" else fmean(values)


def _curves(rows: Sequence[Row]) -> Section:
    steps = tuple(float(row["step"]) for row in rows)
    tracks = []
    for key, name in SERIES.items():
        values = [_number(row.get(key)) for row in rows]
        if any(v is not None for v in values):
            tracks.append(_track(name, steps, [math.nan if v is None else v for v in values]))
    for part, name in PARTS.items():
        means = [_mean(row, part) for row in rows]
        if any(math.isfinite(v) for v in means):
            tracks.append(_track(f"{name}, {'all' if part == 'gradient' else 'mean of'} layers", steps, means))
    flipped = "A weight is flipped if its ternary value changed since the record before."
    chart = OverTime("Loss, schedules and weights", tuple(tracks), subtitle=flipped, unit="steps")
    blocks: tuple[Block, ...] = (Picture("curves", chart, told=True),) if tracks else ()
    return Section("curves", "Over the steps", blocks)


def _track(name: str, steps: tuple[float, ...], values: Sequence[float]) -> Track:
    return Track(name, "", steps, (Layer(name, tuple(values)),))


def _maps(rows: Sequence[Row]) -> Section:
    """Draw each part as a map of layers over the steps."""
    steps, blocks = tuple(float(row["step"]) for row in rows), []
    names = list(rows[-1]["layers"]) if rows else []
    shared = _shared(names)
    subtitle = f"Names without {shared}" if shared else ""
    for part, title in MAPS.items():
        lines = [[_number(row["layers"].get(name, {}).get(part)) for row in rows] for name in names]
        if any(value is not None for line in lines for value in line):
            values = tuple(tuple(math.nan if v is None else v * SHARES.get(part, 1.0) for v in line) for line in lines)
            short = tuple(name.removeprefix(shared) for name in names)
            unit = "%" if part in SHARES else ""
            chart = Raster(title, short, steps, values, unit, "steps", subtitle)
            blocks.append(Picture(f"map-{part}", chart, told=True))
    lede = "One row for each layer: the deeper the colour, the larger the number."
    return Section("maps", "Layers over the steps", tuple(blocks), lede=lede)


def _shared(names: Sequence[str]) -> str:
    """Return what all names begin with, up to a dot: of one name, nothing."""
    if len(names) < 2:
        return ""
    alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*(name.split(".")[:-1] for name in names), strict=False))
    return "".join(f"{parts[0]}." for parts in alike)


def _layers(rows: Sequence[Row]) -> Section:
    if not rows:
        return Section("layers", "Layers")
    columns: list[list[Cell]] = []
    heads = ["layer"]
    names = list(rows[-1]["layers"])
    for part, which, show in COLUMNS:
        values = {
            n: [x for x in (_number(r["layers"].get(n, {}).get(part)) for r in rows) if x is not None] for n in names
        }
        if any(values.values()):
            heads.append(f"{part}, {which}")
            columns.append([show([PICKS[which](values[n])] if values[n] else []) for n in names])
    body = [(Cell(name), *cells) for name, *cells in zip(names, *columns, strict=True)]
    grid = Grid(tuple(heads), tuple(body), right=frozenset(heads[1:]), caption="Each layer", filtered=True)
    return Section(
        "layers",
        "Layers",
        (grid,),
        lede="A layer whose weights no longer flip has settled; one that is all zeros is dead." if columns[2:] else "",
    )


def _share(values: Sequence[float]) -> Cell:
    return Cell(f"{100 * values[0]:.3g} %", sort=values[0]) if values else Cell("–")


def _figure(values: Sequence[float]) -> Cell:
    return Cell(f"{values[0]:.3g}", sort=values[0]) if values else Cell("–")


PICKS: dict[str, Callable[[Sequence[float]], float]] = {"first": lambda v: v[0], "last": lambda v: v[-1], "most": max}
COLUMNS = (  # of the table of layers: part, which of its numbers, and how it is written
    ("zeros", "first", _share), ("zeros", "last", _share), ("flips", "last", _share), ("flips", "most", _share),
    ("gradient", "last", _figure), ("gradient", "most", _figure),
)  # fmt: skip

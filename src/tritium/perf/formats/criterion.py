"""Results of Rust's criterion: its folder target/criterion, or the messages of cargo-criterion.

Of a folder, the newest run of each benchmark is read, never a saved baseline.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tritium.errors import FormatError
from tritium.machine.files import decoded, named, read_bytes
from tritium.perf.formats.fields import (
    MAX_RUNS,
    MAX_VALUES,
    NOT_CHECKED,
    Lines,
    array_of,
    count_of,
    environment_of,
    object_of,
    one_process,
    results_of,
    text_of,
    time_of,
    times_of,
    unit_of,
    word_of,
)
from tritium.perf.records.case import Context, Work
from tritium.perf.records.json_io import loads
from tritium.perf.records.run import Results, Run, Series

NEWEST = "new"  # the subfolder of a benchmark's latest run
DEEPEST = 8  # folders below target/criterion


def looks_like_criterion(data: Any) -> bool:
    return isinstance(data, Lines) and isinstance(data.first, dict) and "reason" in data.first and "id" in data.first


def messages(data: Lines, where: str) -> Results:
    """Read the lines of cargo criterion --message-format=json."""
    runs = []
    for place, line in data:
        message = object_of(line, place)
        if message.get("reason") == "benchmark-complete":
            scale = unit_of(word_of(message, "unit", place), f"{place}.unit")
            values = _per_iteration(message.get("iteration_count"), message.get("measured_values"), scale, place)
            throughput = [object_of(t, place) for t in array_of(message.get("throughput") or [], place, 16)]
            amounts = {word_of(t, "unit", place): count_of(t, "per_iteration", place) for t in throughput}
            runs.append(_run(text_of(message.get("id"), f"{place}.id"), values, _work(amounts)))
    if not runs:
        raise FormatError(f"{where}: no line says that a benchmark is complete.")
    return results_of("criterion", "", environment_of(), runs)


def folder(path: Path, where: str) -> Results:
    """Read a folder target/criterion: the run called "new" of every benchmark."""
    runs = [_benchmark(place) for place in _benchmarks(path, where)]
    if not runs:
        raise FormatError(
            f"{where}: a folder without a benchmark of criterion ({NEWEST}/benchmark.json and {NEWEST}/sample.json). "
            "Name target/criterion, or a file."
        )
    return results_of("criterion", "", environment_of(), runs)


def _benchmarks(path: Path, where: str) -> Iterator[Path]:
    """Yield the folders of the latest runs, in the order of their names; links are not followed."""
    for count, (place, inner, files) in enumerate(os.walk(path)):
        inner.sort()
        if count >= MAX_RUNS:
            raise FormatError(f"{where}: more than {MAX_RUNS} folders; name target/criterion itself.")
        here = Path(place)
        if len(here.relative_to(path).parts) >= DEEPEST:
            inner.clear()
        if here.name == NEWEST and {"benchmark.json", "sample.json"} <= set(files):
            yield here


def _benchmark(place: Path) -> Run:
    """Return the run of one benchmark's folder."""
    description, sample = (_json(place / name) for name in ("benchmark.json", "sample.json"))
    where = named(place)
    values = _per_iteration(sample.get("iters"), sample.get("times"), 1e-9, where)
    per_call = description.get("throughput")
    amounts = object_of(per_call, f"{where}.throughput") if per_call is not None else {}
    counts = {text_of(k, where).lower(): count_of(amounts, k, where) for k in amounts}
    return _run(text_of(description.get("full_id"), f"{where}.full_id"), values, _work(counts))


def _json(path: Path) -> dict[str, Any]:
    where = named(path)
    return object_of(loads(decoded(read_bytes(path), where), where), where)


def _per_iteration(iterations: Any, totals: Any, scale: float, where: str) -> list[float]:
    """Return the seconds of one iteration in every sample."""
    counts = array_of(iterations, f"{where}: iterations", MAX_VALUES)
    times = times_of(totals, f"{where}: times", scale)
    if len(counts) != len(times) or not times:
        raise FormatError(f"{where}: {len(times)} times of {len(counts)} samples; one for each is needed.")
    place = f"{where}: iterations"
    return [
        time_of(t / time_of(n, f"{place}[{i}]"), f"{place}[{i}]")
        for i, (t, n) in enumerate(zip(times, counts, strict=True))
    ]


def _work(amounts: dict[str, int]) -> Work:
    """Return the work of a call by what the benchmark declared."""
    moved = amounts.get("bytes", 0) or amounts.get("bytesdecimal", 0)
    items = amounts.get("elements", 0)
    return Work(read=moved, items=items or 1, item="element" if items else "call")


def _run(case: str, values: list[float], work: Work) -> Run:
    return Run(
        case, "criterion", Context(case, precision=""), work, iterations=1, checked=NOT_CHECKED,
        series=(Series("wall", "s", one_process(values), source="criterion"),),
    )  # fmt: skip

"""Fields of files that other tools wrote: each is checked for type, size and range before it is used.

Names stay text, numbers are finite, arrays are counted, and every error names the place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tritium import escape
from tritium.errors import FormatError
from tritium.machine.facts import digest
from tritium.perf.records.environment import Environment, Hard
from tritium.perf.records.json_io import loads
from tritium.perf.records.run import IMPORTED, Plan, Results, Run, Series, Values

MAX_NAME = 4096
MAX_RUNS = 100_000
MAX_VALUES = 10_000_000  # of one benchmark
ROUNDS = 10_000  # of a process; more values than that share rounds, in the order they were taken
SUMMARY_ONLY = "only a summary: the file holds no raw values"
NOT_CHECKED = "not checked: imported"
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


class Lines:
    """A file with one JSON object per line; a line is parsed when it is its turn."""

    def __init__(self, lines: Sequence[str], where: str) -> None:
        self._lines, self._where = lines, where
        self.first = loads(lines[0], f"{where}: line 1")

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield the place and the object of every line."""
        for number, line in enumerate(self._lines, 1):
            place = f"{self._where}: line {number}"
            yield place, loads(line, place)


def text_of(value: Any, where: str) -> str:
    """Return text of a bearable length, or raise FormatError."""
    if not isinstance(value, str):
        raise FormatError(f"{where}: text is needed, given {type(value).__name__}.")
    if len(value) > MAX_NAME:
        raise FormatError(f"{where}: {len(value)} characters; at most {MAX_NAME} make a name.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise FormatError(f"{where}: holds half a character (a lone surrogate); write whole ones.") from None
    return value


def number_of(value: Any, where: str) -> float:
    """Return a finite number, or raise FormatError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FormatError(f"{where}: a number is needed, given {type(value).__name__}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise FormatError(f"{where}: {str(value)[:30]} is no finite number.")
    return number


def time_of(value: Any, where: str) -> float:
    """Return a number above 0, or raise FormatError."""
    number = number_of(value, where)
    if number <= 0:
        raise FormatError(f"{where}: a time of {number:g} s; more than 0 is needed.")
    return number


def times_of(value: Any, where: str, scale: float = 1.0) -> list[float]:
    """Return the times of an array in seconds; the place of a wrong one is spelled only when it is needed."""
    values = array_of(value, where, MAX_VALUES)
    out = [v * scale if type(v) is float and 0 < v < math.inf else 0.0 for v in values]
    for i, v in enumerate(out):
        if not v:
            out[i] = time_of(values[i], f"{where}[{i}]") * scale
    return out


def object_of(value: Any, where: str) -> dict[str, Any]:
    """Return an object, or raise FormatError."""
    if not isinstance(value, dict):
        raise FormatError(f"{where}: an object is needed, given {type(value).__name__}.")
    return value


def array_of(value: Any, where: str, most: int | None = None) -> list[Any]:
    """Return an array of at most so many entries (default: as many as runs are read), or raise FormatError."""
    most = MAX_RUNS if most is None else most
    if not isinstance(value, list):
        raise FormatError(f"{where}: an array is needed, given {type(value).__name__}.")
    if len(value) > most:
        raise FormatError(f"{where}: {len(value)} entries; at most {most} are read.")
    return value


def word_of(table: Mapping[str, Any], key: str, where: str) -> str:
    """Return text that may be absent or a number."""
    value = table.get(key)
    return "" if value is None else text_of(value if isinstance(value, str) else str(value)[:100], f"{where}.{key}")


def count_of(table: Mapping[str, Any], key: str, where: str, most: int = 2**53) -> int:
    """Return an integer that may be absent; its key may be a stranger's word."""
    place = f"{where}.{escape.visible(key, 60)}"
    value = number_of(table.get(key) or 0, place)
    if value != int(value) or not 0 <= value <= most:
        raise FormatError(f"{place}: {value:g}; an integer from 0 to {most} is needed.")
    return int(value)


def unit_of(name: str, where: str) -> float:
    """Return the seconds of a unit of time."""
    if name not in SECONDS:
        raise FormatError(f"{where}: the unit {name[:30]!r}; {', '.join(SECONDS)} are known.")
    return SECONDS[name]


def environment_of(*, cpu: str = "", architecture: str = "", system: str = "", cpus: int = 0, python: str = "", kernel: str = "",
                   commit: str = "", dirty: bool = False, flags: Sequence[str] = (), gpus: tuple[str, ...] = ()) -> Environment:  # fmt: skip
    """Return the environment a file describes; two files of one machine get the same fingerprint."""
    hashed = digest(sorted(flags))[:16] if flags else ""
    hard = Hard(cpu, hashed, cpus, cpus, architecture, system, "", 0, gpus)
    return Environment(hard, python, "", commit, dirty, {}, kernel, 0.0, "", "", "", 0.0, None)


def results_of(
    format: str, created: str, environment: Environment, runs: Iterable[Run], notes: Sequence[str] = ()
) -> Results:
    """Return runs from elsewhere as results; duplicate names are numbered."""
    seen: Counter[tuple[str, str]] = Counter()
    out = []
    for run in runs:
        seen[run.key] += 1
        out.append(run if seen[run.key] == 1 else replace(run, case=f"{run.case} ({seen[run.key]})"))
        if len(out) > MAX_RUNS:
            raise FormatError(f"{format}: more than {MAX_RUNS} runs.")
    if not out:
        raise FormatError(f"{format}: the file holds no benchmark; measure one first.")
    values = [s.values for run in out for s in run.series if s.values]
    metrics = tuple(dict.fromkeys(s.metric for run in out for s in run.series))
    plan = Plan(
        IMPORTED, max((len(v) for v in values), default=1), max((len(g) for v in values for g in v), default=1), 1,
        metrics=metrics or ("wall",),
    )  # fmt: skip
    return Results(
        "import", format, created, f"imported from {format}", plan, environment,
        tuple(dict.fromkeys(run.arm for run in out)), tuple(out), tuple(notes),
    )  # fmt: skip


def one_process(values: Sequence[float]) -> Values:
    """Return the values as rounds of one process: one in each, or several where there are very many."""
    size = -(-len(values) // ROUNDS) or 1
    return (tuple(tuple(values[i : i + size]) for i in range(0, len(values), size)),)


def summary(value: float, source: str, *, samples: int = 0, stdev: float = 0.0) -> Series:
    """Return the series of a time without raw values: its figure, and how many samples it stands for, as far as the file says."""
    details: dict[str, Any] = {"samples": samples} if samples else {}
    if stdev > 0:
        details["stdev"] = stdev
    return Series("wall", "s", one_process([value]), source=source, details=details)

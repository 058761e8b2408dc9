"""What the scripts of this folder write with `--results FILE`: figures with intervals, the machine, versions, the command.

The schema is that of `tritium.perf.records.speed`; docs/results/ holds such files, and bench/speed.py fills docs/speed.md
with them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import monotonic

from tritium.perf.records import speed
from tritium.perf.records.environment import this_environment
from tritium.perf.records.json_io import utc_now
from tritium.perf.records.speed import Column, Entry, Figure, Host, Need, SpeedTable
from tritium.perf.stats import estimates as stats

__all__ = ["Column", "Entry", "Figure", "Host", "Need", "SpeedTable"]
DIGITS = 6  # significant, of a sample in a file
OPTION = "--results"
ROOT = Path(__file__).resolve().parents[1]
OUTPUTS = (OPTION, "--json", "--output")  # options that name a file to write
BEGAN = monotonic()  # this module is imported when a script begins
MODULES = {
    "torch": "pip install torch",
    "triton": "pip install triton",
    "transformers": "pip install transformers",
}  # what a script cannot run without, and how to get it
GPU = Need("gpu", "cuda", "an NVIDIA GPU with its driver is needed")


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--results FILE` to a script."""
    parser.add_argument(
        OPTION, type=result_file, metavar="FILE", help="write figures, intervals, machine and command: NAME.json"
    )


def result_file(text: str) -> Path:
    """Return the path of a results file; its name is the name of the table."""
    path = Path(text)
    if path.suffix != ".json" or not speed.NAME.fullmatch(path.stem):
        raise argparse.ArgumentTypeError(
            f"{text!r}: a name of small letters, digits and hyphens is needed, as dense.json"
        )
    return path


def need(module: str) -> Need:
    return Need("module", module, MODULES[module])


# ---- figures


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def figure(samples: Iterable[float], *, scale: float = 1.0, processes: int = 1) -> Figure:
    """Return the median of samples with its exact 95 % interval; `scale` makes the unit of the column."""
    values = [rounded(value * scale) for value in samples]
    low, high = stats.median_interval(values)
    return Figure(rounded(median(values)), rounded(low), rounded(high), tuple(values), processes)


def value(number: float, interval: Sequence[float] | None = None, processes: int | None = None) -> Figure:
    """Return a figure without samples."""
    low, high = (None, None) if interval is None else map(rounded, interval)
    middle = rounded(number)
    if low is not None and high is not None:  # an estimate may lie beside the interval of another estimator
        low, high = min(low, middle), max(high, middle)
    return Figure(middle, low, high, (), processes)


def ratio(theirs: Sequence[float], ours: Sequence[float], processes: int = 1) -> Figure:
    """Return theirs / ours of samples taken in the same rounds: the pseudomedian of their log ratios, with its interval."""
    logs = [math.log(a / b) for a, b in zip(theirs, ours, strict=True)]
    low, high = stats.walsh_interval(logs)
    return value(math.exp(stats.hodges_lehmann(logs)), (math.exp(low), math.exp(high)), processes)


def ratio_of(theirs: Figure, ours: Figure) -> Figure:
    """Return theirs / ours of two figures: the interval is the widest that theirs allow, unknown where one is unknown."""
    if theirs.low is None or theirs.high is None or ours.low is None or ours.high is None or ours.low <= 0:
        return value(theirs.median / ours.median)
    return value(theirs.median / ours.median, (theirs.low / ours.high, theirs.high / ours.low))


def compared(samples: Mapping[str, Sequence[float]], base: str, scale: float = 1.0) -> dict[str, Figure]:
    """Return a figure for every contender of a round-robin run, and `× NAME` for every one but the base."""
    figures = {name: figure(values, scale=scale) for name, values in samples.items()}
    return figures | {f"× {name}": ratio(v, samples[base]) for name, v in samples.items() if name != base}


def compared_columns(names: Iterable[str], base: str, unit: str, meaning: str) -> list[Column]:
    """Return the columns of `compared`: times of all, then how many times as fast the base is."""
    names = list(names)
    times = [Column(name, unit, f"{meaning}, {name}") for name in names]
    ratios = [
        Column(f"× {name}", "×", f"time of {name} / time of {base}: above 1, {base} is faster", "ratio")
        for name in names
        if name != base
    ]
    return times + ratios


# ---- files


def without_folders(word: str) -> str:
    """Return a word of a command with a file of the repository relative to it, and of any other file the name alone."""
    option, sign, value = word.rpartition("=")
    path = Path(value)
    if not path.is_absolute():
        return word
    return f"{option}{sign}{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}"


def command_line(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a run: a script of bench/ and its arguments, without the files it writes."""
    script, *rest = words
    kept: list[str] = []
    left = iter(rest)
    for word in left:
        if word in OUTPUTS:
            next(left, None)
        elif word.partition("=")[0] not in OUTPUTS:
            kept.append(without_folders(word))
    return (f"bench/{Path(script).name}", *kept)


def host(threads: int) -> tuple[Host, dict[str, str]]:
    """Return this machine, and the versions of what computes."""
    here = this_environment(threads, limits=False)
    hard = here.hard
    machine = Host(
        hard.cpu, hard.cpus, hard.usable, here.memory_gib, f"{hard.system} {hard.architecture}", hard.gpus, here.virtual,
        here.load,
    )  # fmt: skip
    versions = {"tritium": here.tritium, "python": here.python} | here.packages
    if here.commit:
        versions["commit"] = here.commit[:12] + ("+changes" if here.dirty else "")
    return machine, versions


def write(
    path: Path,
    title: str,
    labels: Sequence[str],
    columns: Iterable[Column],
    rows: Iterable[Entry],
    *,
    threads: int = 1,
    versions: Mapping[str, str] | None = None,
    needs: Iterable[Need] = (),
    notes: Iterable[str] = (),
) -> None:
    """Write the results file of a run that ends now; columns without a figure are left out."""
    machine, known = host(threads)
    entries = tuple(row for row in rows if row.figures)
    used = {name for row in entries for name in row.figures}
    table = SpeedTable(
        path.stem, title, speed.MEASURED, utc_now()[:10], command_line(sys.argv), round((monotonic() - BEGAN) / 60, 2),
        machine, known | dict(versions or {}), tuple(labels), tuple(c for c in columns if c.name in used), entries,
        tuple(needs), tuple(dict.fromkeys(notes)),
    )  # fmt: skip
    speed.save(table, path)

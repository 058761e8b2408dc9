"""The kernels of a decode step, of bench/cuda.py: how often each is launched, and how long the step waits for it.

A step is a replay of its CUDA graph under torch's profiler. A kernel may be launched before the one in front of it has ended, so its own
duration counts that wait; "alone" is the time from the end of the kernels before it to its end.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from cuda_models import decode_step, random_model
from cuda_report import Options, Shown
from torch.profiler import ProfilerActivity, profile

from tritium.perf.tables.table import Table

MODELS = ("bitnet-2b-4t", "bonsai-8b")
SEQUENCES, QUICK_SEQUENCES = (1, 8, 64), (1,)
HELD = 128  # tokens of each sequence
STEPS = 10
SHOWN = 16  # kernels of a table


class Launch(NamedTuple):
    """One kernel on the device, in nanoseconds; gap: from the end of all kernels before it to its start, negative where they overlap."""

    name: str
    grid: tuple[int, ...]
    start: float
    end: float
    gap: float = 0.0

    @property
    def alone(self) -> float:
        return self.end - self.start + min(self.gap, 0.0)


def launches(step: Callable[[], Any]) -> list[list[Launch]]:
    """Return the kernels of each of some steps, in the order of their ends."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        for _ in range(STEPS):
            step()
            torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = [
        Launch(e["name"], tuple(e["args"].get("grid", ())), 1e3 * e["ts"], 1e3 * (e["ts"] + e["dur"]))
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    return [with_gaps(part) for part in apart(sorted(kernels, key=lambda k: k.start))]


def apart(kernels: list[Launch]) -> list[list[Launch]]:
    """Return the kernels of each step: the host waits between steps, so the longest pauses separate them."""
    ends = [max(k.end for k in kernels[: i + 1]) for i in range(len(kernels) - 1)]
    pauses = sorted(range(len(ends)), key=lambda i: ends[i] - kernels[i + 1].start)[: STEPS - 1]
    bounds = [0, *sorted(i + 1 for i in pauses), len(kernels)]
    return [kernels[a:b] for a, b in pairwise(bounds)]


def with_gaps(kernels: list[Launch]) -> list[Launch]:
    """Return kernels in the order of their ends, with the gap before each."""
    done, last = [], kernels[0].start
    for k in sorted(kernels, key=lambda k: k.end):
        done.append(k._replace(gap=k.start - last))
        last = k.end
    return done


def summed(steps: list[list[Launch]]) -> list[dict[str, Any]]:
    """Return each kernel at each grid: launches of a step, and medians over steps of its µs alone, its own µs and the gaps before it."""
    by_step: list[dict[Any, list[Launch]]] = []
    for step in steps:
        groups: dict[Any, list[Launch]] = defaultdict(list)
        for k in step:
            groups[k.name, k.grid].append(k)
        by_step.append(groups)
    rows = []
    for name, grid in by_step[0]:
        each = [groups[name, grid] for groups in by_step if (name, grid) in groups]
        sums = {
            "alone": [sum(k.alone for k in ks) / 1e3 for ks in each],
            "own": [sum(k.end - k.start for k in ks) / 1e3 for ks in each],
            "gaps": [sum(max(k.gap, 0.0) for k in ks) / 1e3 for ks in each],
        }
        rows.append(
            {"kernel": name, "grid": grid, "launches": len(each[0]), **{key: median(us) for key, us in sums.items()}}
        )
    return sorted(rows, key=lambda row: -row["alone"])


def _texts(row: dict[str, Any]) -> tuple[str, ...]:
    times = (f"{row[key]:.1f}" for key in ("alone", "own", "gaps"))
    return row["kernel"][:60], "×".join(map(str, row["grid"])), str(row["launches"]), *times


def kernels(options: Options) -> Iterator[Shown]:
    for name in MODELS:
        model = random_model(name, options.seed)
        for sequences in QUICK_SEQUENCES if options.quick else SEQUENCES:
            steps = launches(decode_step(model, sequences, HELD))[1:]  # the first finds other clocks
            rows = summed(steps)
            whole = median((max(k.end for k in s) - min(k.start for k in s)) / 1e3 for s in steps)
            heads = ("kernel", "grid", "launches", "µs alone", "µs of its own", "gaps before, µs")
            texts = tuple(map(_texts, rows[:SHOWN]))
            rest = sum(r["alone"] for r in rows[SHOWN:])
            count = sum(r["launches"] for r in rows)
            below = ("", f"{count} kernels in {whole:.0f} µs; those not shown {rest:.1f} µs.")
            title = f"Kernels of a decode step, {model.name}, sequences: {sequences}"
            table = Table(title, heads, texts, frozenset(heads[2:]), below)
            yield Shown(table, (), {"model": name, "sequences": sequences, "us": whole, "kernels": rows})
        del model
        torch.cuda.empty_cache()

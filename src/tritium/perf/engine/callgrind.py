"""Instructions of a call where the processor shows no counters: the worker runs in valgrind's callgrind, which counts them.

One process of each contender is started so, with one thread, and calls are counted between two markers: a function of
the C library that nothing else calls, before which callgrind writes what it counted since. Valgrind knows instructions
up to AVX2, so kernels for later ones are not the ones counted; the source says so.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritium.perf.engine.process import GoneError, Process
from tritium.perf.meters.absent import Absent
from tritium.perf.records.case import Arm, Case
from tritium.perf.records.run import Run, Series, not_measured

METRIC = "instructions"
MARKER = "srand48_r"  # of the C library; the worker calls srand48, which calls it, before and after the calls
SOURCE = "callgrind, one thread, kernels up to AVX2"
CALLS = 4  # after one that is not counted
START_S = 900.0  # Python starts some fifty times slower
CASE_S = 900.0


def filled(runs: Sequence[Run], cases: Sequence[Case], arms: Sequence[Arm]) -> tuple[Run, ...]:
    """Return the runs with instructions counted by callgrind where the processor did not count them."""
    lacking = {r.key for r in runs if r.status == "ok" and not _has(r)}
    counts: dict[tuple[str, str], Series] = {}
    for arm in arms:
        uncounted = [case for case in cases if (case.name, arm.name) in lacking]
        if uncounted:
            counts |= {(name, arm.name): series for name, series in _counted(uncounted, arm).items()}
    return tuple(_with(run, counts[run.key]) if run.key in counts else run for run in runs)


def _has(run: Run) -> bool:
    series = run.of(METRIC)
    return series is not None and bool(series.flat)


def _with(run: Run, series: Series) -> Run:
    """Return a run with this series; why the processor did not count stays with one that could not be counted here either."""
    before = run.of(METRIC)
    if not series.flat and before is not None and before.reason:
        series = replace(series, reason=f"{before.reason}; {series.reason}")
    return replace(run, series=(*(s for s in run.series if s.metric != METRIC), series))


def _counted(cases: Sequence[Case], arm: Arm) -> dict[str, Series]:
    """Return the instructions of a call of every case on one contender."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        absent = Absent("no_driver", "valgrind is not installed: apt-get install valgrind", "callgrind")
        return {case.name: not_measured(METRIC, "1", absent.reason, SOURCE) for case in cases}
    with tempfile.TemporaryDirectory(prefix="tritium-callgrind-") as folder:
        prefix = (valgrind, "--tool=callgrind", "-q", f"--callgrind-out-file={folder}/out", f"--dump-before={MARKER}")
        process = Process(arm, threads=1, cpus=(), rng=random.Random(0), prefix=prefix)
        try:
            process.wait_until_ready(START_S)
            return {case.name: _one(process, case, arm, Path(folder)) for case in cases}
        except (GoneError, TimeoutError) as gone:
            reason = f"the worker in valgrind ended: {gone or 'it took too long to start'}"
            return {case.name: not_measured(METRIC, "1", reason, SOURCE) for case in cases}
        finally:
            process.kill()


def _one(process: Process, case: Case, arm: Arm, folder: Path) -> Series:
    """Return the instructions of one case: those of a few calls, less those of none."""
    recipe = {"target": case.recipe.target, "arguments": dict(case.recipe.arguments), "candidate": arm.candidate}
    totals: list[int] = []
    once: list[dict[str, Any]] = [{"do": "make", **recipe}, {"do": "first", "check": False}]
    for request in (*once, *({"do": "marked", "calls": n} for n in (0, CALLS))):
        answer = process.ask(CASE_S, CASE_S, case=case.name, **request)
        if answer["status"] != "ok":
            return not_measured(METRIC, "1", f"in valgrind it {answer['status']}: {answer['reason']}", SOURCE)
        if request["do"] == "marked":
            total = _total(folder)
            if total is None:
                return not_measured(METRIC, "1", "callgrind did not see the marks around the calls", SOURCE)
            totals.append(total)
    process.ask(CASE_S, CASE_S, case=case.name, do="drop")
    return Series(METRIC, "1", (((max(totals[1] - totals[0], 0) / CALLS,),),), source=SOURCE, exact=True)


def _total(folder: Path) -> int | None:
    """Return the instructions between the two markers, and remove callgrind's files; None if there were not two."""
    files = {int(f.suffix[1:]): f for f in folder.iterdir() if f.suffix[1:].isdecimal()}
    lines = files[max(files)].read_text("utf-8", "replace").splitlines() if len(files) == 2 else []
    for file in files.values():
        file.unlink()
    return next((int(line.split()[1]) for line in reversed(lines) if line.startswith("totals:")), None)

"""Who made it slower: the two arms of a case profiled in fresh processes by turns, and compared operation by operation.

Knows nothing of gates. Both arms must hold a Tritium that can record; what is compared is what its operations take.

    found = tt.see.attribute(case, base, head)
    print(found.sentence())       softmax: +3.1 ms (+2.9 ms … +3.3 ms, 95 %), 96 % of +3.2 ms in all: a call 155 µs → 310 µs
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tritium import escape
from tritium.errors import ArgumentError, TritiumError
from tritium.perf.engine import worker
from tritium.perf.gate.verdict import Suite, Verdict
from tritium.perf.records.case import Arm, Case
from tritium.perf.suites.config import duration
from tritium.recording import scope
from tritium.see.profile import file as profile_file
from tritium.see.profile.diff import ProfileDiff, diff
from tritium.see.profile.profile import profile
from tritium.see.trace.timeline import Timeline

CODE = "from tritium.see.profile.attribution import main; main()"
TIMEOUT_S = 300.0
CASE = "a case of the benchmarks, as one of tritium.perf.work.workloads.workloads()"
ARM = "an arm, as tritium.perf.records.case.Arm(name, candidate)"
MOST_CALLS = 20_000  # lest their spans do not fit


def attribute(
    case: Case, before: Arm, after: Arm, *, repeats: int = 6, seconds: str | float = 0.2, calls: int | None = None
) -> ProfileDiff:
    """What changed between two arms of a case, over so many fresh processes of each.

    The first process finds how many calls take `seconds`, if `calls` does not say; all others make as many. Fewer than 5
    repetitions cannot make a slower call clear.
    """
    for given, kind, example in ((case, Case, CASE), (before, Arm, ARM), (after, Arm, ARM)):
        if not isinstance(given, kind):
            raise ArgumentError(f"attribute: {given!r} is no {kind.__name__.lower()}; give {example}.")
    if repeats < 2:
        raise ArgumentError(f"attribute: repeats={repeats}; at least 2 are needed, 6 are usual.")
    request: dict[str, Any] = {
        "target": case.recipe.target, "arguments": dict(case.recipe.arguments), "name": case.name, "calls": calls,
        "seconds": duration(seconds, "attribute: seconds"),
    }  # fmt: skip
    found: dict[int, list[Timeline]] = {0: [], 1: []}
    for turn in range(repeats):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):  # what the machine does meanwhile hits both alike
            made = _profiled((before, after)[side], request)
            found[side].append(made)
            request["calls"] = request["calls"] or int(made.kind("scope").sum())
    return diff(found[0], found[1])


def attributed(
    suite: Suite, cases: Iterable[Case], before: Arm, after: Arm, *, most: int = 3, progress: Callable[[str], None] | None = None
) -> Iterator[tuple[Verdict, str]]:  # fmt: skip
    """For the first `most` confirmed regressions of time, the sentence that names the operation; or why that is not known.

    `progress` is told the name of each case before its arms are profiled, which takes some 20 s.
    """
    known = {case.name: case for case in cases}
    slower = [v for v in suite.of("SLOWER") if v.metric == "wall" and v.case in known]
    for v in slower[:most]:
        if progress is not None:
            progress(v.case)
        try:
            said = attribute(known[v.case], before, after).sentence()
        except TritiumError as error:
            said = f"not attributed to an operation: {error}"
        yield v, said


def _profiled(arm: Arm, request: dict[str, Any]) -> Timeline:
    """The profile of one arm, made by a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "profile.json")
        asked = json.dumps(request | {"candidate": arm.candidate, "path": path})
        try:
            done = subprocess.run(
                [arm.python, "-c", CODE], input=asked, capture_output=True, text=True, env=arm.variables(),
                timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise TritiumError(f"attribute: {arm.name} took more than {TIMEOUT_S:.0f} s; give fewer seconds.") from None
        except OSError as error:
            raise TritiumError(f"attribute: {arm.name} could not be started: {error}.") from None
        if done.returncode:
            last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
            raise TritiumError(f"attribute: {escape.visible(arm.name)} failed: {escape.visible(last)}")
        return profile_file.load(path)


def main() -> None:
    """In the process of an arm: follow the recipe, profile so many calls, write the file."""
    request = json.load(sys.stdin)
    made = worker.resolve(request["target"])(request["candidate"], **request["arguments"])
    calls = request["calls"] or min(MOST_CALLS, worker.calibrated(made.call, made.wait, request["seconds"])[0])
    wait = made.wait or (lambda result: result)
    wait(made.call())
    with profile(request["name"], counters=None, ceilings=False) as p:
        for _ in range(calls):
            with scope(request["name"]):
                wait(made.call())
    p.save(request["path"])

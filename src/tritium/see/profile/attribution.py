"""Attribution of a regression: both contenders of a case profiled in alternating fresh processes, compared per operation.

Both contenders need a Tritium that can record; compared is the time of its operations.

    difference = tt.see.attribute(case, base, head)
    print(difference.sentence())  softmax: +3.1 ms (+2.9 ms … +3.3 ms, 95 %), 96 % of +3.2 ms in all: a call 155 µs → 310 µs
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
from tritium.arguments import checked, checked_except, read_duration
from tritium.errors import ArgumentError, TritiumError, shown
from tritium.perf.engine import worker
from tritium.perf.gate.verdict import Suite, Verdict
from tritium.perf.records.case import Arm, Case
from tritium.recording import scope
from tritium.see.profile import file as profile_file
from tritium.see.profile.diff import ProfileDiff, diff
from tritium.see.profile.profile import profile
from tritium.see.trace.timeline import Timeline

CODE = "from tritium.see.profile.attribution import main; main()"
TIMEOUT_S = 300.0
CASE = "a case of the benchmarks, such as one of tritium.perf.work.workloads.workloads()"
CONTENDER = "a contender, such as tritium.perf.records.case.Arm(name, candidate)"
MOST_CALLS = 20_000  # so that their spans fit the recorder


@checked_except("case", "before", "after")
def attribute(
    case: Case, before: Arm, after: Arm, *, repeats: int = 6, seconds: str | float = 0.2, calls: int | None = None
) -> ProfileDiff:
    """Compare two contenders of a case, each profiled in `repeats` fresh processes.

    Unless `calls` is set, the first process measures how many calls take `seconds`; all others make as many. With fewer
    than 5 repetitions no slower call can become clear.
    """
    for value, kind, example in ((case, Case, CASE), (before, Arm, CONTENDER), (after, Arm, CONTENDER)):
        if not isinstance(value, kind):
            raise ArgumentError(f"attribute: {shown(value)} is not {example}.")
    if repeats < 2:
        raise ArgumentError(f"attribute: repeats={repeats}; at least 2 are needed, 6 are usual.")
    request: dict[str, Any] = {
        "target": case.recipe.target, "arguments": dict(case.recipe.arguments), "name": case.name, "calls": calls,
        "seconds": read_duration(seconds, "attribute: seconds"),
    }  # fmt: skip
    timelines: dict[int, list[Timeline]] = {0: [], 1: []}
    for round_ in range(repeats):
        for side in (0, 1) if round_ % 2 == 0 else (1, 0):  # drift of the machine then affects both alike
            timeline = _profile_arm((before, after)[side], request)
            timelines[side].append(timeline)
            request["calls"] = request["calls"] or int(timeline.kind("scope").sum())
    return diff(timelines[0], timelines[1])


@checked
def attributed(
    suite: Suite, cases: Iterable[Case], before: Arm, after: Arm, *, most: int = 3, progress: Callable[[str], None] | None = None
) -> Iterator[tuple[Verdict, str]]:  # fmt: skip
    """Yield the first `most` confirmed regressions of time, each with a sentence naming the operation or why it is unknown.

    `progress` is called with the name of each case before its contenders are profiled, which takes some 20 s.
    """
    cases_by_name = {case.name: case for case in cases}
    slower = [v for v in suite.of("SLOWER") if v.metric == "wall" and v.case in cases_by_name]
    for v in slower[:most]:
        if progress is not None:
            progress(v.case)
        try:
            sentence = attribute(cases_by_name[v.case], before, after).sentence()
        except TritiumError as error:
            sentence = f"not attributed to an operation: {error}"
        yield v, sentence


def _profile_arm(arm: Arm, request: dict[str, Any]) -> Timeline:
    """Return the profile of one contender, recorded in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "profile.json")
        message = json.dumps(request | {"candidate": arm.candidate, "path": path})
        try:
            process = subprocess.run(
                [arm.python, "-c", CODE], input=message, capture_output=True, text=True, env=arm.variables(),
                timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise TritiumError(f"attribute: {arm.name} took more than {TIMEOUT_S:.0f} s; give fewer seconds.") from None
        except OSError as error:
            raise TritiumError(f"attribute: {arm.name} could not be started: {error}.") from None
        if process.returncode:
            last = next((line for line in reversed(process.stderr.splitlines()) if line.strip()), "without a message")
            raise TritiumError(f"attribute: {escape.visible(arm.name)} failed: {escape.visible(last)}")
        return profile_file.load(path)


def main() -> None:
    """Run in the process of a contender: follow the recipe, profile the calls, write the file."""
    request = json.load(sys.stdin)
    work = worker.resolve(request["target"])(request["candidate"], **request["arguments"])
    calls = request["calls"] or min(MOST_CALLS, worker.calibrated(work.call, work.wait, request["seconds"])[0])
    wait = work.wait or (lambda result: result)
    wait(work.call())
    with profile(request["name"], counters=None, ceilings=False) as p:
        for _ in range(calls):
            with scope(request["name"]):
                wait(work.call())
    p.save(request["path"])

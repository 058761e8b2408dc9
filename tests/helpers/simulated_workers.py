"""Workers that measure nothing: a clock goes on by what each command would take, so that an hour is simulated in a second."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tritium.perf.engine import measuring
from tritium.perf.engine.process import GoneError
from tritium.perf.records.case import Arm, Case, Context, Recipe
from tritium.perf.records.environment import Environment

MAKE_S = 0.01


@dataclass
class Machine:
    """A machine whose calls take what `call_s` says for a case, a contender and the number of the call in its process."""

    call_s: Callable[[str, str, int], float]
    start_s: float = 0.5
    noise: float = 0.01  # log standard deviation between processes
    now: float = 1000.0
    seed: int = 0
    log: list[tuple[str, str, str, float]] = field(default_factory=list)  # contender, command, case, when it began

    def install(self, patch: pytest.MonkeyPatch, environment: Environment) -> Machine:
        """Let the engine use this machine and its clock."""
        patch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(measuring, "Process", lambda arm, **_: Simulated(self, arm))
        patch.setattr(measuring, "this_environment", lambda threads: environment)
        return self

    def processes(self, arm: str) -> int:
        """Return how many processes of a contender began."""
        return sum(a == arm and command == "start" for a, command, _, _ in self.log)


class Simulated:
    """One worker: the commands of `worker.Worker`, which take simulated time."""

    def __init__(self, machine: Machine, arm: Arm) -> None:
        self.machine, self.arm, self.calls = machine, arm, 0
        machine.log.append((arm.name, "start", "", machine.now))
        self.speed = random.Random(f"{machine.seed} {len(machine.log)}").lognormvariate(0, machine.noise)

    def wait_until_ready(self, start_s: float) -> None:
        took_s = self.machine.start_s
        self.machine.now += min(took_s, start_s)
        if took_s > start_s:
            raise TimeoutError

    def ask(self, timeout_s: float, limit_s: float, **request: Any) -> dict[str, Any]:
        machine = self.machine
        machine.log.append((self.arm.name, request["do"], request["case"], machine.now))
        took_s, answer = self.answer(request)
        if took_s > timeout_s:
            machine.now += max(0.0, timeout_s)
            raise GoneError("timed out", f"it took more than {limit_s:.3g} s in all")
        machine.now += took_s
        return {"status": "ok"} | answer

    def answer(self, request: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        if request["do"] in ("make", "drop"):
            return MAKE_S, {"make_s": MAKE_S, "facts": {}}
        self.calls += 1
        call_s = self.speed * self.machine.call_s(request["case"], self.arm.name, self.calls)
        if request["do"] == "first":
            return call_s, {"first_call_s": call_s, "checked": "the same values"}
        if request["do"] == "calibrate":
            return call_s, {"calls": max(1, round(request["least_s"] / call_s)), "each_s": call_s}
        batches, calls = request["batches"], request["calls"]
        quiet = {"clock": [1e-6, 1e-6], "stolen": 0.0, "switches": 0}
        return (request["before"] + batches * calls) * call_s, {
            "wall": [call_s] * batches,
            "cpu": [call_s] * batches,
        } | quiet

    def kill(self) -> None:
        """Do nothing: there is no process."""


def cases(*names: str) -> list[Case]:
    return [Case(name, Recipe("nowhere:nothing"), Context(name)) for name in names]


def arms(names: Sequence[str]) -> list[Arm]:
    return [Arm(name, name) for name in names]

"""An engine that measures nothing, for tests of commands."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
from click.testing import CliRunner

from made_results import ENVIRONMENT, run
from tritium.cli.root import cli
from tritium.perf.records.run import Results
from tritium.perf.work.canary import COMPUTE

ENGINE = importlib.import_module("tritium.perf.engine.measuring")


class Engine:
    """Takes the place of measuring: keeps what it was asked, and gives made-up times."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.complete = True
        self.status = "ok"
        self.statuses: dict[tuple[str, str], str] = {}  # of (case, arm), in place of the one above
        self.canary = False  # as the engine: a canary on every arm, which works everywhere

    def __call__(self, cases: Any, arms: Any, plan: Any, **more: Any) -> Results:
        self.asked = {"cases": cases, "arms": arms, "plan": plan} | more
        more["progress"](0, 2, "first")
        rng = np.random.default_rng(0)
        runs = []
        for case in cases:
            for i, arm in enumerate(arms):
                made = run(case.name, arm.name, 1e-3 * (i + 1), rng, case.work, generations=plan.generations)
                status = self.statuses.get((case.name, arm.name), self.status)
                made = replace(made, context=case.context, status=status, first_call_s=0.01)
                runs.append(made if status == "ok" else replace(made, series=(), reason="it is so"))
        runs += [run(COMPUTE, arm.name, 1e-6, rng) for arm in arms if self.canary]
        notes = (
            *more["notes"],
            *(() if self.complete else ("interrupted in process 2 of 8; the samples so far are kept",)),
        )
        return Results(
            more["kind"], more["suite"], "2026-01-31T12:00:00Z", "tritium", plan, ENVIRONMENT,
            tuple(a.name for a in arms), tuple(runs), notes, self.complete, 1.0,
        )  # fmt: skip

    @property
    def names(self) -> list[str]:
        return [case.name for case in self.asked["cases"]]

    @property
    def arms(self) -> list[str]:
        return [arm.name for arm in self.asked["arms"]]


def called(*args: str) -> Any:
    return CliRunner().invoke(cli, list(args))


def passed(*args: str) -> Any:
    found = called(*args)
    assert found.exit_code == 0, found.output
    return found


QUICK = ("compare", "--quick", "--devices", "cpu", "--peers", "numpy")

"""What one measurement is asked for: one record, made where a command or a call begins, and read by every step below it.

Knows nothing of suites or measuring. A value has one name all the way: that of the field of the record it belongs to, which
is also the key of a file and the parameter of the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from tritium.perf.records.run import PLANS, Plan
from tritium.perf.suites.config import BenchmarkConfig, EnergyConfig

R = TypeVar("R", BenchmarkConfig, Plan, EnergyConfig)


@dataclass(frozen=True)
class Options:
    """The options of one measurement."""

    suite: str = "compare"
    config: BenchmarkConfig = field(default_factory=BenchmarkConfig)  # what: operations, tensor_sizes, devices …
    plan: Plan = PLANS["default"]  # how long and by which rules: generations, threads, seed, metrics …
    energy: EnergyConfig | None = None  # how energy is read; None: not at all
    peers: tuple[str, ...] | None = None  # which libraries to compare with; None: as the suite says
    quick: bool = False
    output: Path = Path("results.json")
    resume: bool = False  # go on from the journal beside `output`
    format: str = "text"  # of what is printed
    report: bool = True  # write a page beside `output`

    @property
    def kind(self) -> str:
        """What the results are called in their file."""
        return "compare" if self.suite == "compare" else "bench"

    @property
    def journal(self) -> Path:
        return self.output.with_name(f"{self.output.name}.journal")

    @property
    def recipe(self) -> dict[str, Any]:
        """The arguments that every recipe takes."""
        return {"threads": self.plan.threads, "seed": self.plan.seed}

    def changed(self, **values: Any) -> Options:
        """Return these options with other values, each put into the record that has a field of that name.

        A value of None leaves the field as it is.
        """
        present = {name: value for name, value in values.items() if value is not None}
        parts: dict[str, Any] = {"config": _updated(self.config, present), "plan": _updated(self.plan, present)}
        if self.energy is not None:
            parts["energy"] = _updated(self.energy, present)
        own = {f.name: present[f.name] for f in fields(self) if f.name in present}
        return replace(self, **(parts | own))


def _updated(record: R, values: Mapping[str, Any]) -> R:
    return replace(record, **{f.name: values[f.name] for f in fields(record) if f.name in values})

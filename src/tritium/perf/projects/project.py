"""A project of anyone: where it is, how it is built, what is measured of it; and its revisions measured side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tritium.errors import ArgumentError
from tritium.perf.engine.measuring import measure
from tritium.perf.projects import discovery
from tritium.perf.projects.programs import Program, measure_programs
from tritium.perf.records.case import Arm, Case, Context, Recipe
from tritium.perf.records.run import PLANS, Plan, Results
from tritium.perf.revisions.trees import Tree, project_root, variables_of
from tritium.perf.work import registry

if TYPE_CHECKING:
    from tritium.perf.engine.measuring import Progress

RECIPE = "tritium.perf.projects.recipes:build_case"
SHAPES = ((256, 256),)  # of benchmarks that take a shape and name none
PROGRAM = "program"  # the target of a case that is a command


@dataclass(frozen=True)
class Project:
    """A project and what is measured of it: commands, or the benchmarks in its files."""

    root: Path
    build: str = ""
    cases: tuple[Case, ...] = ()
    paths: tuple[str, ...] = ()  # folders of a tree for PYTHONPATH; none: src and the tree itself
    timeout_s: float = 600.0

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def programs(self) -> bool:
        """Return True if commands are measured."""
        return bool(self.cases) and self.cases[0].recipe.target == PROGRAM

    def arm(self, name: str, tree: Tree) -> Arm:
        """Return the contender that runs a tree."""
        variables = {
            **variables_of(tree, self.root, self.paths),
            "TRITIUM_TUNED": "0",
        }  # tuned for one build, not for all
        return Arm(name, environment=tuple(variables.items()), optimisation=tree.commit[:12])

    def measure(
        self, trees: Mapping[str, Tree], plan: Plan = PLANS["default"], *, cases: Sequence[Case] | None = None, seed: int = 0,
        kind: str = "regression", notes: Sequence[str] = (), progress: Progress | None = None,
    ) -> Results:  # fmt: skip
        """Measure trees side by side, by the names of their contenders."""
        chosen = self.cases if cases is None else cases
        plan = replace(plan, seed=plan.seed + seed)
        if not self.programs:
            arms = [self.arm(name, tree) for name, tree in trees.items()]
            return measure(chosen, arms, plan, kind=kind, suite=self.name, notes=notes, progress=progress)
        programs = {(c.name, name): self._program(c, tree) for c in chosen for name, tree in trees.items()}
        return measure_programs(
            programs, runs=plan.iterations, groups=plan.generations, least_runs=plan.generations, seed=plan.seed, kind=kind, suite=self.name,
            timeout_s=self.timeout_s, notes=notes, progress=progress,
        )  # fmt: skip

    def summary(self, plan: Plan, trees: int) -> str:
        """Return one line for a person who waits."""
        what = "command" if self.programs else "case"
        many = f"{len(self.cases)} {what}{'s' * (len(self.cases) != 1)}"
        return f"{self.name}: {many} in {trees} trees, interleaved, at least {plan.generations} processes each"

    def recorded(self, results: Results, commit: str, *, committed: str = "", dirty: bool = False) -> Results:
        """Return results with the commit of the project in place of Tritium's own."""
        return replace(
            results, environment=replace(results.environment, commit=commit, dirty=dirty), committed=committed
        )

    def _program(self, case: Case, tree: Tree) -> Program:
        variables = tuple(variables_of(tree, self.root, self.paths).items())
        return Program(case.recipe.arguments["command"], folder=tree.folder, variables=variables)


def project(
    folder: Path, build: str = "", commands: Sequence[str] = (), files: Sequence[str] = (), paths: Sequence[str] = (),
    cases: Sequence[Case] = (),
) -> Project:  # fmt: skip
    """Return a project: of its commands, of these cases, of these files of benchmarks, or of those found in its folder."""
    root = project_root(folder).resolve()
    if commands:
        return Project(root, build, tuple(_of_command(line) for line in dict.fromkeys(commands)), tuple(paths))
    if cases:
        return Project(root, build, tuple(cases), tuple(paths))
    names = [name for file in files for name in registry.load(file)] or discovery.load(Path(folder))
    own = tuple(_in_tree(case) for name in names for case in registry.cases(name, SHAPES))
    return Project(root, build, own, tuple(paths))


def _of_command(line: str) -> Case:
    if not line.strip():
        raise ArgumentError("--command is empty; give a program and its arguments.")
    return Case(line, Recipe(PROGRAM, {"command": line}), Context(line))


def _in_tree(case: Case) -> Case:
    return replace(case, recipe=replace(case.recipe, target=RECIPE))

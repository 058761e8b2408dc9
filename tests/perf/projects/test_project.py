"""Revisions of a project, measured: its commands, its benchmarks, and whose code they import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import made_programs
from made_repository import git, repository
from tritium.errors import ArgumentError, BuildError
from tritium.perf.gate import regression
from tritium.perf.projects import recipes
from tritium.perf.projects.bisect import bisect
from tritium.perf.projects.probe import ProjectProbe, case_named
from tritium.perf.projects.project import project
from tritium.perf.projects.span import ARM, chosen, known, run_range
from tritium.perf.records.run import Plan
from tritium.perf.revisions.git import Commit, commits
from tritium.perf.revisions.trees import trees
from tritium.perf.store.history import History

FAST = Plan("test", 5, 1, 1, 1e-4, iterations=5, canary=False, metrics=("wall", "cpu"))
BENCH = """import tritium as tt
import speed


@tt.perf.benchmark("spin of a project")
def spin():
    return speed.spin()
"""
SPEED = "def spin():\n    {act}\n"


program = made_programs.script


def test_many_revisions_become_runs_and_missing_ones_are_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_programs.use(monkeypatch)
    root = tmp_path / "repo"
    hashes = repository(
        root, [program(0.001), program(0.02), {"run.sh": "exit 3\n"}, program(0.02), {"no": "1", **program(0.001)}]
    )
    own = project(root, commands=["sh run.sh"], build="test ! -e no")
    listed = commits(root, f"{hashes[0]}..main")
    with History(tmp_path / "store") as history:
        first = run_range(own, chosen(listed, 2), history, FAST)
        assert list(first.runs) == [hashes[0]]
        assert "exit code 1" in first.failures[hashes[4]]  # of the build
        second = run_range(own, listed, history, FAST, together=2)
        assert [c.hash for c in second.known] == [hashes[0]]
        assert set(second.runs) == {hashes[1], hashes[3]}
        assert "exit code 3" in second.failures[hashes[2]]  # of the program
        points = history.series("sh run.sh", "wall", ARM)
        assert [p.commit for p in points] == [hashes[0], hashes[1], hashes[3]]
        assert points[1].value > 2 * points[0].value
        assert [p.created for p in points] == [c.created for c in listed if c.hash in {p.commit for p in points}]
        assert known(history, own, listed) == tuple(c for c in listed if c.hash in {p.commit for p in points})
    assert len(git(root, "worktree", "list").splitlines()) == 1


def test_revisions_are_spaced_evenly_with_both_ends() -> None:
    listed = [Commit(str(i), "") for i in range(100)]
    assert [c.hash for c in chosen(listed, 4)] == ["0", "33", "66", "99"]
    assert chosen(listed, None) == tuple(listed)
    with pytest.raises(ArgumentError, match="2 or more"):
        chosen(listed, 1)


def test_each_tree_runs_its_own_code_under_the_same_benchmarks(tmp_path: Path) -> None:
    old, _ = repository(
        tmp_path,
        [
            {"speed.py": SPEED.format(act="raise RuntimeError('old code')")},
            {"speed.py": SPEED.format(act="return 1"), "bench_it.py": BENCH},
        ],
    )
    own = project(tmp_path)
    assert [case.name for case in own.cases] == ["spin of a project"]
    plan = Plan("test", 1, 1, 1, 1e-4, canary=False, metrics=("wall", "cpu"), warmup_batches=1)
    with trees(own.root) as every:
        pair = {"base": every.tree(old), "head": every.tree(git(tmp_path, "rev-parse", "HEAD"))}
        arms = [own.arm(name, tree) for name, tree in pair.items()]
        gated = regression.regression_test(
            own.cases,
            arms,
            plan=plan,
            confirm=False,
            extra_looks=0,
            by=lambda cases, seed: own.measure(pair, plan, cases=cases, seed=seed),
        )
    base, head = gated.results
    assert (base.status, "old code" in base.reason, head.status) == ("failed", True, "ok"), gated.results
    assert head.context.optimisation != base.context.optimisation  # the commits


def test_a_module_of_the_checkout_in_place_of_the_tree_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, tree = tmp_path / "root", tmp_path / "tree"
    for folder in (root, tree):
        (folder / "pkg").mkdir(parents=True)
        (folder / "pkg" / "mod_of_project.py").write_text("")
    module = type(sys)("mod_of_project")
    monkeypatch.setitem(sys.modules, "mod_of_project", module)
    module.__file__ = str(tree / "pkg" / "mod_of_project.py")
    recipes.check_imports(tree, root, root / "benchmarks")
    module.__file__ = str(root / "pkg" / "mod_of_project.py")
    with pytest.raises(BuildError, match=r"mod_of_project was imported from .*--path"):
        recipes.check_imports(tree, root, root / "benchmarks")
    recipes.check_imports(tree, root, root / "pkg")  # the benchmarks' own folder


def test_a_slow_down_of_a_project_is_bisected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_programs.use(monkeypatch)
    hashes = repository(tmp_path, [program(0.001 if i < 2 else 0.02) | {"n": str(i)} for i in range(3)])
    own = project(tmp_path, commands=["sh run.sh"])
    with trees(own.root) as every:
        outcome = bisect(hashes, ProjectProbe(own, every, case_named(own, None)))
    assert outcome.culprit == hashes[2]
    with pytest.raises(ArgumentError, match="Name one with --case"):
        case_named(project(tmp_path, commands=["a", "b"]), None)

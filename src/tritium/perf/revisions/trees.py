"""Revisions checked out in temporary folders and built by the project's own command.

Every tree is a git worktree of its own, built once and removed in the end, so that two revisions are built and run in the
same way and the checkout stays as it is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tritium.errors import ArgumentError, BuildError
from tritium.perf.revisions.git import TAIL, git, top

BUILD_S = 1800.0
TREE, ROOT = (
    "TRITIUM_TREE",
    "TRITIUM_PROJECT",
)  # variables of a build, a program and a worker: its tree, and the checkout


@dataclass(frozen=True)
class Tree:
    """One revision, checked out and built."""

    folder: Path
    commit: str


@dataclass
class Trees:
    """The trees of one project, made when they are asked for."""

    root: Path
    build: str = ""  # a command of the shell, run in each tree; "": nothing is to be built
    report: Callable[[str], None] = lambda _: None
    folder: Path = field(default_factory=Path)
    built: dict[str, Tree] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  # of builds, by commit
    count: int = 0

    def tree(self, commit: str, label: str = "") -> Tree:
        """Return the built tree of a commit. BuildError: it cannot be built, and is not tried twice."""
        if commit in self.failures:
            raise BuildError(self.failures[commit])
        if commit not in self.built:
            self.report(f"building {label or commit[:12]}" if self.build else f"checking out {label or commit[:12]}")
            try:
                self.built[commit] = self._made(commit)
            except BuildError as error:
                self.failures[commit] = str(error)
                raise
        return self.built[commit]

    def second(self, commit: str) -> Tree:
        """Return another tree of a commit that has one: a revision beside itself shows the noise of a measurement."""
        first = self.built.pop(commit)
        try:
            return self._made(commit)
        finally:
            self.built[f"{commit} again"] = self.built.pop(commit, first)
            self.built[commit] = first

    def release(self, commit: str) -> None:
        """Remove the tree of a commit that is not needed any more."""
        tree = self.built.pop(commit, None)
        if tree is not None:
            git(self.root, "worktree", "remove", "--force", str(tree.folder), check=False)

    def _made(self, commit: str) -> Tree:
        """Check out and build; folders have names of one length, because paths are part of what a program reads."""
        self.count += 1
        place = self.folder / f"t{self.count:05d}-{commit[:12]}"
        git(self.root, "worktree", "add", "--detach", "--quiet", str(place), commit)
        self.built[commit] = tree = Tree(place, commit)
        try:
            if (place / ".gitmodules").exists():
                git(place, "submodule", "update", "--init", "--recursive", "--quiet")
            if self.build:
                run_build(self.build, tree, self.root)
        except BaseException:
            self.release(commit)
            raise
        return tree


@contextmanager
def trees(root: Path, build: str = "", report: Callable[[str], None] = lambda _: None) -> Iterator[Trees]:
    """Yield the trees of a project; all of them are removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="tritium-trees-", ignore_cleanup_errors=True) as folder:
        every = Trees(root, build, report, Path(folder).resolve())
        try:
            yield every
        finally:
            for commit in list(every.built):
                every.release(commit)


def project_root(folder: str | os.PathLike[str]) -> Path:
    """Return the root of the git checkout of a project."""
    place = Path(folder)
    if not place.is_dir():
        raise ArgumentError(f"--project {folder}: there is no such folder.")
    root = top(place)
    if root is None:
        raise ArgumentError(
            f"--project {folder}: it is in no git checkout; revisions of a project are checked out with git."
        )
    return root


def variables_of(tree: Tree, root: Path, paths: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables of what runs in a tree: where it is, and its folders first in PYTHONPATH."""
    folders = (
        [tree.folder / p for p in paths] if paths else [p for p in (tree.folder / "src", tree.folder) if p.is_dir()]
    )
    before = os.environ.get("PYTHONPATH", "")
    listed = [*map(str, folders), *([before] if before else [])]
    return {"PYTHONPATH": os.pathsep.join(listed), TREE: str(tree.folder), ROOT: str(root)}


def run_build(command: str, tree: Tree, root: Path) -> None:
    """Run the build command of a project in a tree; BuildError has the end of its output."""
    variables = os.environ | variables_of(tree, root)
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, shell=True, cwd=tree.folder, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = child.wait(BUILD_S)
        except subprocess.TimeoutExpired:
            raise BuildError(f"building {tree.commit[:12]} took longer than {BUILD_S:.0f} s and was ended.") from None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        log.seek(max(log.seek(0, os.SEEK_END) - TAIL, 0))
        output = log.read().decode("utf-8", "replace").strip()
    if code:
        raise BuildError(f"{tree.commit[:12]}: --build {command!r} ended with exit code {code}:\n{output}")

"""Two revisions of this package, checked out, built the same way and verified, ready to be measured side by side.

The revision is built from a git worktree in a temporary folder; the checkout is left as it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tritium.errors import ArgumentError, BuildError
from tritium.perf.gate.verdict import BASE as BASE, HEAD as HEAD
from tritium.perf.records.case import Arm
from tritium.perf.revisions.git import TAIL, commit_of, git
from tritium.perf.revisions.trees import BUILD_S


@dataclass(frozen=True)
class Built:
    """A built revision: the folder for PYTHONPATH, and its commit."""

    folder: Path
    commit: str  # "" : the working tree

    def arm(self, name: str, candidate: str = "tritium") -> Arm:
        """Return the contender that runs this build."""
        variables = (("PYTHONPATH", str(self.folder)), ("TRITIUM_TUNED", "0"))  # tuned for one build, not for two
        return Arm(name, candidate, environment=variables, optimisation=self.commit[:12])


def repository(start: Path | None = None) -> Path:
    """Return the checkout of this package: the one around the working directory, else the one this file is in."""
    for folder in filter(None, (start or Path.cwd(), Path(__file__).parents[4])):
        output = git(folder, "rev-parse", "--show-toplevel", check=False)
        root = Path(output) if output else None
        if root is not None and (root / "src" / "tritium" / "__init__.py").exists():
            return root
    raise ArgumentError(
        "--against builds another revision of tritium, so it needs a git checkout of it. "
        "Run it in one, or compare with a stored baseline: --baseline NAME."
    )


@contextmanager
def revisions(
    revision: str, root: Path | None = None, report: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[Built, Built]]:
    """Build the revision and the working tree and yield both; they are deleted afterwards."""
    root = root or repository()
    commit = commit_of(root, revision)
    with tempfile.TemporaryDirectory(prefix="tritium-against-") as folder_name:
        folder = Path(folder_name)
        tree = folder / "tree"
        git(root, "worktree", "add", "--detach", "--quiet", str(tree), commit)
        try:
            report(f"building {revision} ({commit[:12]})")
            base = Built(build(tree, folder / BASE), commit)
        finally:
            git(root, "worktree", "remove", "--force", str(tree), check=False)
        report("building the working tree")
        yield base, Built(build(root, folder / HEAD), "")


def build(source: Path, target: Path) -> Path:
    """Install the package of a source tree into a folder of its own; its dependencies are those of this interpreter."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--target",
        str(target),
    ]
    done: subprocess.CompletedProcess[str] | None = None
    for options in (
        ["--no-build-isolation"],
        [],
    ):  # the build tools of this environment, else fresh ones from the index
        try:
            done = subprocess.run(
                [*command, *options, str(source)], capture_output=True, text=True, timeout=BUILD_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise BuildError(f"building {source.name} took longer than {BUILD_S:.0f} s and was ended.") from None
        if done.returncode == 0:
            check(target)
            return target
    output = (done.stderr or done.stdout).strip()[-TAIL:] if done else ""
    raise BuildError(
        f"{source}: it could not be built with pip (exit code {done.returncode if done else '?'}):\n{output}"
    )


def check(folder: Path) -> None:
    """Raise BuildError unless a worker with this folder in PYTHONPATH imports the package from it."""
    script = "import tritium, sys; sys.stdout.write(tritium.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BuildError(f"the revision was built but cannot be imported:\n{done.stderr.strip()[-TAIL:]}")
    module = Path(done.stdout).resolve()
    if folder.resolve() not in module.parents:
        raise BuildError(
            f"the revision was built, but {sys.executable} imports tritium from {module.parent}: an editable installation comes "
            "first. Uninstall it there, or run in an environment without it."
        )

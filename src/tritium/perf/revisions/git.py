"""A repository as git describes it: commits of a name, of a range, and a commit of the working tree as it is.

Nothing in the checkout changes: no branch, no index, no file.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tritium.errors import ArgumentError, BuildError

TAIL = 800  # characters of a failed command's output that are shown
GIT_S = 300.0
MOST_COMMITS = 100_000  # of a range; more are a mistake
AUTHOR = {
    "GIT_AUTHOR_NAME": "tritium", "GIT_AUTHOR_EMAIL": "tritium@localhost",
    "GIT_COMMITTER_NAME": "tritium", "GIT_COMMITTER_EMAIL": "tritium@localhost",
}  # fmt: skip


@dataclass(frozen=True)
class Commit:
    """One commit: its hash, its time (UTC, ISO 8601) and the first line of its message."""

    hash: str
    created: str
    subject: str = ""

    @property
    def short(self) -> str:
        return self.hash[:10]


def git(root: Path, *arguments: str, check: bool = True, variables: dict[str, str] | None = None) -> str:
    """Return git's output; "" if it fails and check is False."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=GIT_S, check=False, env=os.environ | (variables or {})
        )  # fmt: skip
    except FileNotFoundError:
        raise ArgumentError("revisions are measured with git, which is not installed.") from None
    if done.returncode and check:
        raise BuildError(f"git {arguments[0]} failed: {done.stderr.strip()[-TAIL:]}")
    return done.stdout.strip() if done.returncode == 0 else ""


def top(folder: Path) -> Path | None:
    """Return the root of the checkout around a folder; None where there is none."""
    output = git(folder, "rev-parse", "--show-toplevel", check=False)
    return Path(output) if output else None


def commit_of(root: Path, revision: str, option: str = "--against") -> str:
    """Return the full commit hash of a revision; `option` is the one that named it."""
    commit = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", check=False)
    if commit:
        return commit
    hint = ""
    if git(root, "rev-parse", "--is-shallow-repository", check=False) == "true":
        hint = " The checkout is shallow; fetch more of it (actions/checkout: fetch-depth: 0)."
    raise ArgumentError(f"{option} {revision}: git knows no such commit here. Give a branch, a tag or a commit.{hint}")


def commits(root: Path, revisions: str) -> tuple[Commit, ...]:
    """Return the commits of a range, oldest first: A..B is A and all after it up to B, along the first parents.

    A single name is one commit. Commits of the same second get times one second apart, in their order: a history is
    ordered by them.
    """
    first, dots, last = revisions.partition("..")
    end = commit_of(root, (last or "HEAD") if dots else revisions, "revisions")
    begin = commit_of(root, first, "revisions") if dots and first else end if not dots else ""
    output = git(root, "log", "--first-parent", "--reverse", f"--max-count={MOST_COMMITS}", "--format=%H %ct %s", end)
    listed, moment = [], 0
    for line in output.splitlines():
        commit, _, rest = line.partition(" ")
        seconds, _, subject = rest.partition(" ")
        moment = max(int(seconds), moment + 1)
        listed.append(Commit(commit, f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}", subject))
    places = [i for i, commit in enumerate(listed) if commit.hash == begin]
    if begin and not places:
        raise ArgumentError(
            f"{revisions}: {first} is not among the first parents of {last or 'HEAD'}; give an older commit of the same line."
        )
    return tuple(listed[places[0] if begin else 0 :])


def head(root: Path) -> str:
    """Return the commit that is checked out."""
    return git(root, "rev-parse", "HEAD")


def snapshot(root: Path) -> str:
    """Return a commit that holds the working tree as it is, with files that are new and not ignored.

    It is on no branch, and git removes it some day.
    """
    with tempfile.TemporaryDirectory(prefix="tritium-index-") as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        last = head(root)
        git(root, "read-tree", last, variables=index)
        git(root, "add", "--all", variables=index)
        tree = git(root, "write-tree", variables=index)
        if tree == git(root, "rev-parse", f"{last}^{{tree}}"):
            return last
        return git(root, "commit-tree", tree, "-p", last, "-m", "the working tree", variables=AUTHOR)

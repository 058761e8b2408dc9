"""Small git repositories for tests: commits whose files are given, one after the other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str, seconds: int | None = None) -> str:
    """Return git's output; `seconds`: the time of a commit."""
    when = {} if seconds is None else {"GIT_COMMITTER_DATE": f"{seconds} +0000", "GIT_AUTHOR_DATE": f"{seconds} +0000"}
    done = subprocess.run(
        ["git", "-C", str(folder), *IDENTITY, *arguments], capture_output=True, text=True, check=True, env=os.environ | when
    )  # fmt: skip
    return done.stdout.strip()


def repository(folder: Path, versions: Sequence[Mapping[str, str]]) -> list[str]:
    """Make a repository with a commit for each version, all of the same second; return their hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    hashes = []
    for i, files in enumerate(versions):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--allow-empty", "-m", f"version {i}", seconds=1_700_000_000)
        hashes.append(git(folder, "rev-parse", "HEAD"))
    return hashes

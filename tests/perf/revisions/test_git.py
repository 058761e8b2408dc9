"""Ranges, times and snapshots of a repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_repository import git as run, repository
from tritium.errors import ArgumentError
from tritium.perf.revisions import git


def test_a_range_has_both_ends_and_times_in_order(tmp_path: Path) -> None:
    hashes = repository(tmp_path, [{"a": str(i)} for i in range(5)])
    listed = git.commits(tmp_path, f"{hashes[1]}..main")
    assert [c.hash for c in listed] == hashes[1:]
    assert [c.subject for c in listed] == [f"version {i}" for i in range(1, 5)]
    times = [c.created for c in listed]
    assert times == sorted(set(times))  # all were committed in the same second
    assert git.commits(tmp_path, "main~2..main")[0].created == listed[1].created  # whatever the range
    assert [c.hash for c in git.commits(tmp_path, "main~1")] == [hashes[3]]
    assert [c.hash for c in git.commits(tmp_path, "..main~3")] == hashes[:2]


def test_merged_branches_are_one_commit_and_their_ends_are_refused(tmp_path: Path) -> None:
    hashes = repository(tmp_path, [{"a": "0"}, {"a": "1"}])
    run(tmp_path, "checkout", "--quiet", "-b", "side", hashes[0])
    (tmp_path / "b").write_text("side")
    run(tmp_path, "add", "b")
    run(tmp_path, "commit", "--quiet", "-m", "side")
    run(tmp_path, "checkout", "--quiet", "main")
    run(tmp_path, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
    assert [c.subject for c in git.commits(tmp_path, f"{hashes[0]}..main")] == ["version 0", "version 1", "merge"]
    with pytest.raises(ArgumentError, match="not among the first parents"):
        git.commits(tmp_path, "side..main")
    with pytest.raises(ArgumentError, match="no such commit"):
        git.commits(tmp_path, "nowhere..main")


def test_a_snapshot_has_what_is_not_committed_and_changes_nothing(tmp_path: Path) -> None:
    repository(tmp_path, [{"a": "old", ".gitignore": "ignored\n"}])
    assert git.snapshot(tmp_path) == git.head(tmp_path)
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("untracked")
    (tmp_path / "ignored").write_text("secret")
    before = run(tmp_path, "status", "--porcelain")
    commit = git.snapshot(tmp_path)
    assert run(tmp_path, "show", f"{commit}:a") == "new"
    assert run(tmp_path, "ls-tree", "--name-only", commit).split() == [".gitignore", "a", "b"]
    assert run(tmp_path, "status", "--porcelain") == before
    assert run(tmp_path, "branch", "--list").split() == ["*", "main"]

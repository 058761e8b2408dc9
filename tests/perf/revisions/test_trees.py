"""Trees of revisions: built in their own folders, removed in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_repository import git, repository
from tritium.errors import ArgumentError, BuildError
from tritium.perf.revisions.trees import project_root, trees, variables_of


def test_a_tree_is_checked_out_built_once_and_removed(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    old, new = repository(root, [{"src/a.py": "x = 1"}, {"src/a.py": "x = 2"}])
    built: list[str] = []
    with trees(
        root, 'cp src/a.py "$TRITIUM_TREE/built.py" && test "$TRITIUM_PROJECT" != "$TRITIUM_TREE"', built.append
    ) as every:
        tree = every.tree(old)
        assert (tree.folder / "built.py").read_text() == "x = 1"
        assert every.tree(old) is tree
        again = every.second(old)
        assert again.folder != tree.folder
        assert len(str(again.folder)) == len(str(tree.folder)) == len(str(every.tree(new).folder))
        assert variables_of(tree, root)["PYTHONPATH"].startswith(f"{tree.folder}/src:{tree.folder}")
        assert variables_of(tree, root, ["lib"])["PYTHONPATH"].startswith(f"{tree.folder}/lib")
        every.release(new)
        assert len(git(root, "worktree", "list").splitlines()) == 3
    assert not tree.folder.exists()
    assert git(root, "worktree", "list").splitlines() == git(root, "worktree", "list").splitlines()[:1]
    assert built == [f"building {old[:12]}", f"building {new[:12]}"]
    assert (root / "src" / "a.py").read_text() == "x = 2"


def test_a_build_that_fails_says_how_and_is_not_tried_again(tmp_path: Path) -> None:
    (commit,) = repository(tmp_path, [{"a": "1"}])
    tried: list[str] = []
    with trees(tmp_path, "echo broken here; exit 3", tried.append) as every:
        for _ in range(2):
            with pytest.raises(BuildError, match=r"(?s)exit code 3.*broken here"):
                every.tree(commit)
    assert len(tried) == 1
    assert len(git(tmp_path, "worktree", "list").splitlines()) == 1


def test_a_project_is_in_git(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no such folder"):
        project_root(tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match="in no git checkout"):
        project_root(tmp_path)

"""The recipe of a benchmark in a tree of its project: the user's function, and a check that the tree's code is what it runs.

It runs in a worker, so it uses only public names of the package.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tritium.errors import BuildError
from tritium.perf.records.case import Made
from tritium.perf.work import registry

TREE, ROOT = "TRITIUM_TREE", "TRITIUM_PROJECT"  # as in perf.revisions.trees


def build_case(candidate: str, **arguments: Any) -> Made:
    """Build the user's function in a worker, and check whose code it imported."""
    case = registry.made(candidate, **arguments)
    tree, root = os.environ.get(TREE), os.environ.get(ROOT)
    if tree and root:
        check_imports(Path(tree), Path(root), Path(arguments["file"]).parent)
    return case


def check_imports(tree: Path, root: Path, beside: Path) -> None:
    """Raise BuildError if a module comes from the checkout and not from the tree that is measured.

    The benchmarks themselves do: both revisions run the same ones. So does this package, which measures.
    """
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name.partition(".")[0] == "tritium":
            continue
        path = Path(file).resolve()
        inside = path.is_relative_to(root) and not path.is_relative_to(tree) and "site-packages" not in path.parts
        if inside and path.parent != beside:
            raise BuildError(
                f"the revision was checked out in {tree}, but {name} was imported from {path}: an editable installation or a "
                "path comes first. Uninstall it, or name the folder of the modules in the tree with --path."
            )

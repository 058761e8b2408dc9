"""Benchmarks of a project, found by the names of their files as pytest finds tests.

A file is `bench_*.py` or `*_bench.py`, anywhere in the project. It is imported only if a decorator called `benchmark` is in
its text: other scripts of such a name are not run. Nothing outside of the project is imported.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from tritium.errors import ArgumentError
from tritium.machine.files import named
from tritium.perf.work import registry

PATTERNS = ("bench_*.py", "*_bench.py")
DECORATOR = "benchmark"
SKIPPED = {"build", "dist", "node_modules", "site-packages", "venv", "env", "__pycache__"}
MOST_FILES, MOST_BYTES = 100_000, 4 << 20  # names looked at, and bytes of a file that is parsed


def files(project: Path) -> list[Path]:
    """Return the files of a project with benchmarks, by path."""
    return [path for path in sorted(_named(project.resolve())) if _registers(path)]


def _named(project: Path) -> Iterator[Path]:
    """Yield the files of such names; hidden folders, environments and builds are not searched, links not followed."""
    seen = 0
    for folder, folders, names in os.walk(project):
        here = Path(folder)
        folders[:] = sorted(
            f for f in folders if f not in SKIPPED and not f.startswith(".") and not _environment(here / f)
        )
        seen += len(names)
        if seen > MOST_FILES:
            raise ArgumentError(
                f"{named(project)}: more than {MOST_FILES:,} files to look through for benchmarks; name the folder with "
                "--project, or the files with --load."
            )
        for name in names:
            path = here / name
            if any(fnmatchcase(name, p) for p in PATTERNS) and not path.is_symlink() and path.is_file():
                yield path


def _environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").exists() or (folder / "conda-meta").is_dir()


def _registers(path: Path) -> bool:
    """Return True if a function of the file has a decorator called `benchmark`; the file is read and not run."""
    if path.stat().st_size > MOST_BYTES:
        return False
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return DECORATOR.encode() in path.read_bytes()  # to be imported, so that its error is told
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return any(_name(d) == DECORATOR for f in functions for d in f.decorator_list)


def _name(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def load(project: Path) -> list[str]:
    """Import the benchmarks of a project and return their names; ArgumentError where there are none."""
    names = [name for path in files(project) for name in registry.load(path)]
    if not names:
        raise ArgumentError(
            f'{named(project)}: no benchmarks. Write @tt.perf.benchmark("name") above a function in a file called '
            f"{' or '.join(PATTERNS)}, or name files with --load."
        )
    return names

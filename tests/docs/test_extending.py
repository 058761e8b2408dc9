"""The pages "Add a …": what each shows is done to a copy of the package, and what it promises is run there.

A page says at its top how many files its example takes; the number is counted from its blocks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from doc_pages import NOT_EDITABLE, ROOT, Block, Edit, parse
from tritium.buffer import native

FILES = {  # what each page promises
    "add-an-op.md": ["src/tritium/backends/reference/kernels.py", "src/tritium/ops.py"],
    "add-a-backend.md": ["mirror.py"],
    "add-a-format.md": ["src/tritium/io/codecs.py", "src/tritium/io/formats.py", "src/tritium/io/ggml.py"],
    "add-a-family.md": ["src/tritium/families/__init__.py", "src/tritium/families/granite.py"],
    "add-a-command.md": ["src/tritium/cli/hello.py", "src/tritium/cli/root.py"],
    "add-a-chart.md": ["src/tritium/see/charts/charts.py", "src/tritium/see/charts/lollipop.py"],
}
NUMBERS = {"one file": 1, "two files": 2, "three files": 3}


def text(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    return parse(text(page))[0]


def edits(page: str) -> list[tuple[Edit, str]]:
    return [(block.edit, block.code) for block in blocks(page) if block.edit is not None]


def test_every_page_about_adding_something_is_here() -> None:
    assert {file.name for file in (ROOT / "docs").glob("add-*.md")} == set(FILES)


@pytest.mark.parametrize("page", FILES)
def test_a_page_touches_the_files_it_promises(page: str) -> None:
    assert sorted({edit.path for edit, _ in edits(page)}) == FILES[page]


@pytest.mark.parametrize("page", FILES)
def test_a_page_says_how_many_files_it_takes(page: str) -> None:
    promised = re.search(r"\*\*(one file|two files|three files)\*\*", text(page))
    assert promised, "the number is in bold, in words"
    assert NUMBERS[promised[1]] == len(FILES[page])


def edited_copy(page: str, folder: Path) -> dict[str, str]:
    """Make the package with the edits of a page, and return the environment in which it is the one imported."""
    shutil.copytree(
        ROOT / "src" / "tritium",
        folder / "src" / "tritium",
        symlinks=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    if native is not None and not list((folder / "src" / "tritium").glob("_native*.so")):
        shutil.copy(native.__file__, folder / "src" / "tritium")
    for edit, code in edits(page):
        edit.apply(folder, code)
    (folder / "src" / "sitecustomize.py").write_text(NOT_EDITABLE, encoding="utf-8")
    programs = folder / "bin"
    programs.mkdir()
    tritium = programs / "tritium"
    tritium.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tritium "$@"\n', encoding="utf-8")
    tritium.chmod(0o755)
    path = os.pathsep.join([str(folder / "src"), str(folder)])
    return os.environ | {"PYTHONPATH": path, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("page", FILES)
def test_what_a_page_promises_holds_after_its_edits(page: str, tmp_path: Path) -> None:
    environment = edited_copy(page, tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    run = [block for block in blocks(page) if block.with_edits]
    assert run, "a page runs what it shows"
    here = f"import tritium; assert tritium.__file__.startswith({str(tmp_path)!r}), tritium.__file__\n"
    # The Python blocks of a page are one program. Empty lines make a traceback point at the line of the page.
    program = here
    for block in run:
        if block.language == "python":
            program += "\n" * (block.line - 1 - program.count("\n")) + block.code
    commands = [block.code for block in run if block.language == "sh"]
    script = work / page.replace(".md", ".py")
    script.write_text(program, encoding="utf-8")
    calls = [[sys.executable, str(script)], *(["sh", "-euc", code] for code in commands)]
    for call in calls:
        done = subprocess.run(call, cwd=work, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_an_edit_goes_after_or_before_the_one_line_that_starts_so(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    Edit("a.py", "after", "x =").apply(tmp_path, "between\n")
    Edit("a.py", "before", "x =").apply(tmp_path, "first\n")
    assert (tmp_path / "a.py").read_text() == "first\nx = 1\nbetween\ny = 2\n"
    with pytest.raises(ValueError, match=r"0 lines of a\.py start with 'z'"):
        Edit("a.py", "after", "z").apply(tmp_path, "")
    with pytest.raises(ValueError, match="no new file"):
        Edit("a.py").apply(tmp_path, "")

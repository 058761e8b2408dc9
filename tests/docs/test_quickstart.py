"""The quickstart notebook: its cells run in order, and what it shows is what they give.

Cells tagged `varies` show drawn or long texts: they run, but another processor may write others.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
PAGE: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
CELLS = [c for c in PAGE["cells"] if c["cell_type"] == "code"]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def stored(cell: dict[str, Any]) -> str:
    """The text under a cell."""
    return "".join("".join(o["text"] if "text" in o else o["data"]["text/plain"]) for o in cell["outputs"])


def run(code: str, names: dict[str, Any]) -> str:
    """What a cell prints, and the value of its last line, as a notebook shows them."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(tree, NOTEBOOK.name, "exec"), names)
        value = eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names) if last else None
    return out.getvalue() + ("" if value is None else repr(value))


def test_the_notebook_shows_what_its_cells_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in CELLS:
        found = run(source(cell), names)
        assert bool(found) == bool(stored(cell)), source(cell)
        if "varies" not in cell["metadata"].get("tags", ()):
            assert found == stored(cell), source(cell)


def test_cells_were_run_once_and_in_order() -> None:
    assert [c["execution_count"] for c in CELLS] == list(range(1, len(CELLS) + 1))


def test_links_of_the_notebook_lead_somewhere() -> None:
    prose = "".join(source(c) for c in PAGE["cells"] if c["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)]+)\)", prose)
    assert links
    assert not [link for link in links if not (NOTEBOOK.parent / link).resolve().exists()]

"""The pages: every python block of README.md and docs/ runs, and every relative link leads somewhere.

The blocks of one page share a namespace and run in order, in an empty folder. A block right after a comment
`<!-- not run: reason -->` is skipped, with that reason; a page with `<!-- needs: package -->` where that package is absent.
"""

from __future__ import annotations

import gc
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
RUN_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = sorted({*ROOT.glob("*.md"), *RUN_PAGES})

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*(\w*)")
NOT_RUN = re.compile(r"^\s*<!--\s*not run:\s*(.+?)\s*-->\s*$")
NEEDS = re.compile(r"^<!--\s*needs:\s*(\w+)\s*-->\s*$", re.MULTILINE)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)|^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    line: int  # of its first line of code, from 1
    code: str
    not_run: str | None


def parse(text: str) -> tuple[list[Block], str]:
    """The fenced blocks of a page, and its prose without them."""
    blocks: list[Block] = []
    prose: list[str] = []
    fence, language, start, reason = "", "", 0, None
    code: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        mark = FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip(" `~"):
                blocks.append(Block(language, start, "\n".join(code) + "\n", reason))
                fence, reason = "", None
            else:
                code.append(line)
        elif mark:
            fence, language, start, code = mark[1], mark[2], number + 1, []
        else:
            prose.append(line)
            if line.strip():
                found = NOT_RUN.match(line)
                reason = found[1] if found else None
    if fence:
        raise ValueError(f"the block before line {start} is never closed")
    return blocks, "\n".join(prose)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def python_blocks(page: Path) -> list[Block]:
    return [block for block in parse(page.read_text(encoding="utf-8"))[0] if block.language == "python"]


NOT_RUN_BLOCKS = {
    f"{name(page)}:{block.line}": block.not_run for page in RUN_PAGES for block in python_blocks(page) if block.not_run
}


def anchors(page: Path) -> set[str]:
    """The fragments GitHub gives the headings of a page."""
    seen: dict[str, int] = {}
    for heading in HEADING.findall(parse(page.read_text(encoding="utf-8"))[1]):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        if seen[slug]:
            seen[f"{slug}-{seen[slug]}"] = 0
    return set(seen)


@pytest.mark.parametrize("page", [page for page in RUN_PAGES if python_blocks(page)], ids=name)
def test_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS.findall(page.read_text(encoding="utf-8")):
        pytest.importorskip(package, reason=f"the page needs {package}")
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.chdir(tmp_path)
    gc.collect()
    gc.disable()  # what earlier tests left in cycles must not be freed under a page that counts memory
    try:
        for block in python_blocks(page):
            if not block.not_run:
                # Empty lines in front make a traceback point at the line of the page.
                code = compile("\n" * (block.line - 1) + block.code, page, "exec")
                exec(code, vars(module))
    finally:
        gc.enable()


if NOT_RUN_BLOCKS:  # an empty list of parameters would be reported as a skip of its own

    @pytest.mark.parametrize("block", NOT_RUN_BLOCKS)
    def test_block_not_run(block: str) -> None:
        pytest.skip(NOT_RUN_BLOCKS[block])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"(`+).*?\1", "", parse(page.read_text(encoding="utf-8"))[1], flags=re.DOTALL)
    dead = []
    for inline, reference in LINK.findall(prose):
        link = unquote(inline or reference)
        if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            dead.append(f"{link}: there is no {path}")
        elif fragment and target.suffix == ".md" and fragment not in anchors(target):
            dead.append(f"{link}: {target.name} has no such heading")
    assert not dead, "\n".join(dead)


def test_parse_finds_blocks_and_reasons() -> None:
    text = "a\n\n<!-- not run: needs a GPU -->\n\n```python\nx = 1\n```\n````sh\n```\n````\n```python\ny\n```\n"
    blocks, prose = parse(text)
    assert blocks == [
        Block("python", 6, "x = 1\n", "needs a GPU"),
        Block("sh", 9, "```\n", None),
        Block("python", 12, "y\n", None),
    ]
    assert prose.splitlines()[0] == "a"

"""Write what the python blocks of pages print below them, as they print it here.

    python tools/outputs.py docs/guides/000-tensor-performance.md

Every block runs as in tests/docs, with nothing tuned. Output below a block that is marked (see tests/helpers/doc_pages.py) is written
anew; a block that prints and shows nothing gets a measured one. Long output ends with a line of three dots.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from doc_pages import ANY, LIBRARIES, Block, difference, outputs, parse  # noqa: E402

LONGEST = 14  # lines of output that are shown


def main(pages: list[str]) -> None:
    """Rewrite the pages."""
    for page in map(Path, pages):
        text = page.read_text(encoding="utf-8")
        page.write_text(rewritten(text, printed(page.resolve(), parse(text)[0])), encoding="utf-8")


def printed(page: Path, blocks: list[Block]) -> dict[int, str]:
    """Return what each block prints that runs here, by its line."""
    os.environ["TRITIUM_CACHE"] = tempfile.mkdtemp()
    module = sys.modules["page"] = ModuleType("page")
    found: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        gc.disable()
        for block in blocks:
            if block.language != "python" or not block.in_place or block.not_run or not all(map(is_here, block.needs)):
                continue
            with redirect_stdout(io.StringIO()) as out:
                exec(compile("\n" * (block.line - 1) + block.code, page.name, "exec"), vars(module))
            found[block.line] = out.getvalue()
        os.chdir(ROOT)
    return found


def is_here(library: str) -> bool:
    """Return True if a library that a block needs can be used here."""
    from tritium.backends import devices

    try:
        __import__(LIBRARIES[library])
    except ImportError:
        return False
    return library == "torch" or any(d.available for d in devices() if d.name.partition(":")[0] == library)


def rewritten(text: str, found: dict[int, str]) -> str:
    """Return a page with the output of its blocks below them."""
    lines, blocks = text.splitlines(), parse(text)[0]
    shown = outputs(blocks)
    for block in reversed([b for b in blocks if b.line in found]):
        new = [line.rstrip() for line in found[block.line].rstrip("\n").splitlines()]
        new = [*new[:LONGEST], ANY] if len(new) > LONGEST + 1 else new
        if block.line in shown:
            old = shown[block.line]
            if not old.prints and not difference(old, found[block.line]):
                continue  # it may leave out words that differ elsewhere
            start = old.line - 1
            length = 0 if lines[start].startswith("```") else len(old.code.splitlines())
            lines[start : start + length] = new
        elif found[block.line].strip():
            end = block.line - 1 + len(block.code.splitlines()) + 1  # after its closing fence
            lines[end:end] = ["", "<!-- prints, measured -->", "```text", *new, "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])

"""The pages README.md and docs/*.md as blocks: code between fences, and what the comment before it says.

`<!-- not run: reason -->`       the block is not run
`<!-- needs mlx -->`             it runs where that library (of cuda: a GPU) is here; `<!-- page needs torch -->`: so do all of a page
`<!-- new file: PATH -->`        it is the whole of that file
`<!-- edit: PATH, after: … -->`  it goes into that file after the one line that starts so; or `before: …`
`<!-- with the edits -->`        it runs over a copy of the package that has all files and edits of the page
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*(\w*)")
MARK = re.compile(r"^\s*<!--\s*(not run:|needs|page needs|new file:|edit:|with the edits)\s*(.*?)\s*-->\s*$")
EDIT = re.compile(r"(\S+), (after|before): (.+)")
LIBRARIES = {
    "mlx": "mlx.core",
    "torch": "torch",
    "cuda": "torch",
    "transformers": "transformers",
    "accelerate": "accelerate",
}  # what a page may need, and the module that is imported


@dataclass(frozen=True)
class Edit:
    """The file a block belongs to, and where it goes; no place: it is the whole file."""

    path: str
    place: str = ""  # "after" or "before"
    anchor: str = ""

    def apply(self, folder: Path, code: str) -> None:
        """Write the block to its file below a folder."""
        file = folder / self.path
        if not self.place:
            if file.exists():
                raise ValueError(f"{self.path} exists already; it is no new file")
            file.write_text(code, encoding="utf-8")
            return
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        matches = [n for n, line in enumerate(lines) if line.lstrip().startswith(self.anchor)]
        if len(matches) != 1:
            raise ValueError(f"{len(matches)} lines of {self.path} start with {self.anchor!r}; an edit needs one")
        at = matches[0] + (self.place == "after")
        file.write_text("".join([*lines[:at], code, *lines[at:]]), encoding="utf-8")


@dataclass(frozen=True)
class Block:
    language: str
    line: int  # of its first line of code, from 1
    code: str
    not_run: str | None = None
    needs: tuple[str, ...] = ()
    edit: Edit | None = None
    with_edits: bool = False

    @property
    def in_place(self) -> bool:
        """True if the block runs with the other blocks of its page: the package as it is is all it needs."""
        return not self.with_edits and (self.edit is None or not self.edit.path.startswith("src/"))


def parse(text: str) -> tuple[list[Block], str]:
    """Return the fenced blocks of a page, and its prose without them."""
    blocks: list[Block] = []
    prose: list[str] = []
    whole: tuple[str, ...] = ()  # what the page needs
    marks: dict[str, str] = {}  # of the next block
    fence, language, start = "", "", 0
    code: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        opening, mark = FENCE.match(line), MARK.match(line)
        if fence:
            if opening and opening[1].startswith(fence) and not line.strip(" `~"):
                blocks.append(_block(language, start, code, marks, whole))
                fence, marks = "", {}
            else:
                code.append(line)
        elif opening:
            fence, language, start, code = opening[1], opening[2], number + 1, []
        elif mark and mark[1] == "page needs":
            whole = libraries(mark[2])
        elif mark:
            marks[mark[1]] = mark[2]
        else:
            prose.append(line)
            if line.strip() and marks:
                raise ValueError(f"line {number}: no block follows the comment before it")
    if fence or marks:
        raise ValueError(f"the block before line {start} is never closed, or a comment has no block")
    return blocks, "\n".join(prose)


def _block(language: str, start: int, code: list[str], marks: dict[str, str], whole: tuple[str, ...]) -> Block:
    edit = None
    if "new file:" in marks:
        edit = Edit(marks["new file:"])
    elif "edit:" in marks:
        match = EDIT.fullmatch(marks["edit:"])
        if match is None:
            raise ValueError(f"line {start}: an edit of a block is `PATH, after: LINE` or `PATH, before: LINE`")
        edit = Edit(*match.groups())
    needs = (*whole, *libraries(marks.get("needs", "")))
    return Block(language, start, "\n".join(code) + "\n", marks.get("not run:"), needs, edit, "with the edits" in marks)


def libraries(words: str) -> tuple[str, ...]:
    """Return the libraries that a comment names."""
    names = tuple(words.split())
    if unknown := set(names) - set(LIBRARIES):
        raise ValueError(f"a page may need {', '.join(LIBRARIES)}, not {', '.join(sorted(unknown))}")
    return names

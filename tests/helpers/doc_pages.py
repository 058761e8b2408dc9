"""The pages README.md and docs/*.md as blocks: code between fences, and what the comment before it says.

`<!-- not run: reason -->`       the block is not run
`<!-- needs mlx -->`             it runs where that library (of cuda: a GPU) is here; `<!-- page needs torch -->`: so do all of a page
`<!-- new file: PATH -->`        it is the whole of that file
`<!-- edit: PATH, after: … -->`  it goes into that file after the one line that starts so; or `before: …`
`<!-- with the edits -->`        it runs over a copy of the package that has all files and edits of the page
`<!-- prints -->`                it is what the python block before it prints; a line of three dots stands for any lines
`<!-- prints, measured -->`      it is what that block printed where the page was measured: other numbers and units, and another order of
                                 the lines, are as good; `python tools/outputs.py PAGE` writes it anew
`<!-- prints, here -->`          it is what that block printed there, in words that depend on the machine and what is installed
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Lines of Python: what an editable install imports comes before PYTHONPATH, and is not wanted where another copy of the package is.
NOT_EDITABLE = (
    "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != '_tritium_editable']\n"
)
MEASURED, HERE = ", measured", ", here"
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*(\w*)")
MARK = re.compile(r"^\s*<!--\s*(not run:|needs|page needs|new file:|edit:|with the edits|prints)\s*(.*?)\s*-->\s*$")
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
    prints: str | None = None  # "", MEASURED or HERE: it is the output of the python block before it

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
    if (printed := marks.get("prints")) not in (None, "", MEASURED, HERE):
        raise ValueError(f"line {start}: a block prints, prints{MEASURED} or prints{HERE}; not prints{printed}")
    if printed is not None and language != "text":
        raise ValueError(f"line {start}: what a block prints is in a block of text")
    text = "\n".join(code) + "\n"
    return Block(language, start, text, marks.get("not run:"), needs, edit, "with the edits" in marks, printed)


def libraries(words: str) -> tuple[str, ...]:
    """Return the libraries that a comment names."""
    names = tuple(words.split())
    if unknown := set(names) - set(LIBRARIES):
        raise ValueError(f"a page may need {', '.join(LIBRARIES)}, not {', '.join(sorted(unknown))}")
    return names


# ---- what blocks print

ANY = "…"  # a line of it stands for any lines, none included; within a line, for any text
UNIT = r"(?:ns|µs|us|ms|s|min|h|B|KiB|MiB|GiB|KB|MB|GB|TB|%|k|M|G|T|×|x)(?:/s|/token)?(?![A-Za-z])"
NUMBER = re.compile(rf"[-+±]?\d[\d.,]*(?:e[-+]?\d+)?(?:\s?{UNIT})?")
LOOPS = ("avx512vnni", "avx512bw", "avx512", "avxvnni", "avx2", "amx", "neon", "dotprod", "i8mm", "portable")
KERNEL = re.compile(rf"\b(?:{'|'.join(LOOPS)})\b")


def outputs(blocks: list[Block]) -> dict[int, Block]:
    """Return the shown output of each python block that has one, by the line of that block."""
    found: dict[int, Block] = {}
    before: Block | None = None
    for block in blocks:
        if block.prints is not None:
            if before is None or before.language != "python":
                raise ValueError(f"line {block.line}: no python block is before what it prints")
            found[before.line] = block
        before = block
    return found


def difference(shown: Block, printed: str) -> str:
    """Return why a text is not what a block is said to print; "" if it is."""
    if shown.prints == HERE:
        return "" if printed.strip() else "it prints nothing"
    wanted, given = ([_plain(line) for line in text.splitlines() if line.strip()] for text in (shown.code, printed))
    patterns = [_pattern(line, measured=shown.prints == MEASURED) for line in wanted]
    if shown.prints == MEASURED:
        return _unordered(wanted, patterns, given)
    whole = "\n".join(
        r"(?:.*\n)*?.*" if line == ANY else pattern for line, pattern in zip(wanted, patterns, strict=True)
    )
    text = "\n".join(given)
    return "" if re.fullmatch(whole.replace("\n(?:.*\\n)*?.*", r"(?:\n.*)*"), text) else f"it prints\n{text}"


def _unordered(wanted: list[str], patterns: list[str], given: list[str]) -> str:
    left = list(given)
    for line, pattern in zip(wanted, patterns, strict=True):
        if line == ANY:
            continue
        match = next((other for other in left if re.fullmatch(pattern, other)), None)
        if match is None:
            return f"nothing like {line!r} is in\n" + "\n".join(given)
        left.remove(match)
    return "" if not left or ANY in wanted else "it also prints\n" + "\n".join(left)


def _plain(line: str) -> str:
    """Return a line whose widths do not matter."""
    return re.sub(r"-{3,}", "---", " ".join(line.split()))


def _pattern(line: str, *, measured: bool) -> str:
    """Return the pattern of a line; of a measured one, any number with any unit and the kernels of any machine."""
    if not measured:
        return ".*".join(map(re.escape, line.split(ANY)))
    parts, at = [], 0
    for match in re.finditer(f"{KERNEL.pattern}|{NUMBER.pattern}|{ANY}", line):
        parts.append(re.escape(line[at : match.start()]))
        word = match[0]
        kernels = "|".join((*LOOPS, "numpy"))
        parts.append(".*" if word == ANY else f"(?:{kernels})" if KERNEL.fullmatch(word) else NUMBER.pattern)
        at = match.end()
    return "".join([*parts, re.escape(line[at:])])

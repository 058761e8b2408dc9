"""The pages: every python block of README.md and docs/ runs, and every relative link leads somewhere.

The blocks of one page share a namespace and run in order, in an empty folder. A block right after the comment
`<!-- needs mlx -->` runs where that library can be imported (of cuda: where there is a GPU), and is skipped with the reason
elsewhere; after `<!-- page needs torch -->` that holds for every block of the page. One after `<!-- not run: reason -->` is
always skipped, with that reason; `doc_pages` has all such comments. What is to be run over an edited copy of the package is run by
`test_extending`. A block of text after `<!-- prints -->` is what the block before it prints, `<!-- prints, measured -->` what it printed
where the page was measured: only the numbers, units and the order of lines may differ; `<!-- prints, here -->` if words may, too.
The name of a page's test tells the libraries it needs, so that `-k mlx` finds it.
"""

from __future__ import annotations

import gc
import importlib
import platform
import re
import sys
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

from doc_pages import HERE, LIBRARIES, MEASURED, ROOT, Block, difference, outputs, parse
from tritium.backends import Backend, Found, devices
from tritium.backends.values.device import ValueBackend
from tritium.buffer import native

RUN_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = sorted({*ROOT.glob("*.md"), *RUN_PAGES})

MEASURING = re.compile(
    r"docs/(bench|doctor|energy|guides/.*|monitoring|profiling|regressions|report|tuning)\.md"
)  # for seconds

MEASURED_HERE = native is not None and platform.machine() == "x86_64"  # where the words of measured output are the same
DEVICES = ("cuda",)  # whose library may be here without the device
OWN_WORK = {
    *("new", "listed", "retuned", "choose"),  # of every backend: built on the others
    *("hold", "value", "put", "ready", "doubt", "tracing", "number"),  # of those that keep values
}
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)|^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)", re.MULTILINE)
MACHINE = re.compile(r"(?<![\w.~…/-])/(?:home|root|work|mnt|private|Users|Volumes)/[^/\s\"'`)]+/[^\s\"'`)]*")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)


@cache
def absent(library: str) -> str | None:
    """Why a library cannot be used here; None: it can."""
    try:
        importlib.import_module(LIBRARIES[library])
    except ImportError as error:
        return f"needs {library}: {error}"
    if library in DEVICES:
        found = next(d for d in devices() if d.name.partition(":")[0] == library)
        return None if found.available else f"needs {library}: {found.why}"
    return None


def why_not(block: Block) -> str | None:
    """Why a block does not run here; None: it does."""
    return block.not_run or next(filter(None, map(absent, block.needs)), None)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def python_blocks(page: Path) -> list[Block]:
    blocks = parse(page.read_text(encoding="utf-8"))[0]
    return [block for block in blocks if block.language == "python" and block.in_place]


def name_and_needs(page: Path) -> str:
    return "+".join([name(page), *sorted({library for block in python_blocks(page) for library in block.needs})])


BLOCKS = {f"{name_and_needs(page)}:{block.line}": block for page in RUN_PAGES for block in python_blocks(page)}
NOT_RUN_HERE = {where: why for where, block in BLOCKS.items() if (why := why_not(block))}


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


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * bool(MEASURING.fullmatch(name(page))), id=name_and_needs(page))
        for page in RUN_PAGES
        if python_blocks(page)
    ],
)
def test_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = python_blocks(page)
    if all(map(why_not, blocks)):
        pytest.skip(f"no block runs here: {why_not(blocks[0])}")
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.chdir(tmp_path)
    shown = outputs(parse(page.read_text(encoding="utf-8"))[0])
    wrong: list[str] = []
    gc.collect()
    gc.disable()  # what earlier tests left in cycles must not be freed under a page that counts memory
    try:
        for block in blocks:
            if why_not(block) is None:
                # Empty lines in front make a traceback point at the line of the page.
                code = compile("\n" * (block.line - 1) + block.code, page, "exec")
                with redirect_stdout(StringIO()) as printed:
                    exec(code, vars(module))
                sys.stdout.write(printed.getvalue())
                if (text := shown.get(block.line)) is not None and (text.prints != MEASURED or MEASURED_HERE):
                    why = difference(text, printed.getvalue())
                    wrong += [f"{name(page)}:{text.line}: {why}"] if why else []
    finally:
        gc.enable()
    assert not wrong, "\n\n".join(wrong)


if NOT_RUN_HERE:  # an empty list of parameters would be reported as a skip of its own

    @pytest.mark.parametrize("block", NOT_RUN_HERE)
    def test_block_not_run(block: str) -> None:
        pytest.skip(NOT_RUN_HERE[block])


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


def test_no_file_names_a_folder_of_the_machine_that_made_it() -> None:
    texts = [
        file
        for file in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*")]
        if file.suffix in (".md", ".json", ".txt", ".svg", ".html")
    ]
    found = {name(file): MACHINE.findall(file.read_text(encoding="utf-8")) for file in texts}
    assert len(texts) > 100
    assert {file: paths for file, paths in found.items() if paths} == {}


@pytest.mark.parametrize("kind", [Backend, ValueBackend])
def test_the_page_about_backends_names_every_method(kind: type[Backend]) -> None:
    said = (ROOT / "docs" / "add-a-backend.md").read_text(encoding="utf-8")
    methods = {n for n, what in vars(kind).items() if callable(what) and not n.startswith("_")} - OWN_WORK
    assert sorted(n for n in methods if f"`{n}" not in said) == []


def test_parse_finds_blocks_and_reasons() -> None:
    text = "a\n\n<!-- not run: no such GPU -->\n\n```python\nx = 1\n```\n````sh\n```\n````\n```python\ny\n```\n"
    blocks, prose = parse(text)
    assert blocks == [
        Block("python", 6, "x = 1\n", "no such GPU"),
        Block("sh", 9, "```\n"),
        Block("python", 12, "y\n"),
    ]
    assert prose.splitlines()[0] == "a"


def test_parse_finds_what_a_block_and_a_page_need() -> None:
    blocks, _ = parse("<!-- page needs torch -->\n```python\nx\n```\n<!-- needs mlx -->\n```python\ny\n```\n")
    assert [block.needs for block in blocks] == [("torch",), ("torch", "mlx")]


@pytest.mark.parametrize("text", ["<!-- needs mlx -->\nno block\n", "<!-- needs tea -->\n```\n```\n", "```python\n"])
def test_a_mark_that_marks_nothing_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"block|may need"):
        parse(text)


def shown_block(text: str, measured: bool | None) -> Block:
    return Block("text", 1, text, prints=HERE if measured is None else MEASURED if measured else "")


@pytest.mark.parametrize(
    ("shown", "printed", "measured", "same"),
    [
        ("a 1\nb\n", "a 1\nb\n", False, True),
        ("a 1\n", "a 2\n", False, False),
        ("a …\n", "a 2 3\n", False, True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", False, True),
        ("a\n…\nd\n", "a\nd\n", False, True),
        ("a\n…\nd\n", "a\nb\n", False, False),
        ("add: 12.5 µs, 3.1e-5 J\n", "add:   7 ms, 2 J\n", True, True),
        ("add: 12.5 µs\n", "sub: 12.5 µs\n", True, False),
        ("b 1\na 2\n", "a 9\nb 8\n", True, True),
        ("a 1\n", "a 1\nb 2\n", True, False),
        ("a 1\n…\n", "a 1\nb 2\n", True, True),
        ("kernel avx512vnni\n", "kernel avx2\n", True, True),
        ("kernel avx512vnni\n", "kernel fast\n", True, False),
        ("x    1\n-----\n", "x 1000000\n-------------\n", True, True),
        ("no device\n", "three devices\n", None, True),
        ("no device\n", "\n", None, False),
    ],
)
def test_what_is_printed_is_compared_with_what_is_shown(
    shown: str, printed: str, measured: bool | None, same: bool
) -> None:
    assert (difference(shown_block(shown, measured), printed) == "") == same


@pytest.mark.parametrize(
    "text", ["<!-- prints -->\n```text\n1\n```\n", "```sh\n1\n```\n<!-- prints -->\n```text\n1\n```\n"]
)
def test_output_without_a_python_block_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no python block"):
        outputs(parse(text)[0])


@pytest.mark.parametrize("mark", ["prints twice", "prints"])
def test_output_in_no_block_of_text_is_an_error(mark: str) -> None:
    with pytest.raises(ValueError, match=r"prints, measured|block of text"):
        parse(f"```python\n1\n```\n<!-- {mark} -->\n```sh\n1\n```\n")


def test_a_block_whose_library_is_absent_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    absent.cache_clear()
    monkeypatch.setitem(LIBRARIES, "mlx", "no_such_library")
    assert why_not(Block("python", 1, "", needs=("mlx",))) == "needs mlx: No module named 'no_such_library'"
    assert why_not(Block("python", 1, "")) is None
    absent.cache_clear()


def test_a_block_whose_device_is_absent_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    absent.cache_clear()
    monkeypatch.setitem(LIBRARIES, "cuda", "sys")  # what stands for a library that is there
    monkeypatch.setattr(
        sys.modules[__name__], "devices", lambda: [Found("cpu", True, {}), Found("cuda", False, {}, "no GPU")]
    )
    assert why_not(Block("python", 1, "", needs=("cuda",))) == "needs cuda: no GPU"
    absent.cache_clear()

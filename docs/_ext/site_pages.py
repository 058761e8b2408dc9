"""The pages as the site shows them: the README in front, links that leave docs/ turned into links to the repository, navigation.

The sources stay readable where they are. `docs/index.md` lists every page under a group; that list is the navigation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

INCLUDE = re.compile(r"^<!-- site: include (\S+) -->$", re.MULTILINE)
FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
LINK = re.compile(r"(\]\(\s*<?)([^)\s>#]+)((?:#[^)\s>]*)?[^)]*\))")
GROUP = re.compile(r"^### (.+)$")
ENTRY = re.compile(r"^- \[[^\]]+\]\(([^)#]+)\.md\)")
SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
REST = "Reference"  # the group of pages that the list does not name


class Links:
    """Rewrites the relative links of Markdown pages for the site."""

    def __init__(self, root: Path, repository: str) -> None:
        self.root, self.docs, self.repository = root, root / "docs", repository

    def target(self, link: str, source: Path, page: Path) -> str:
        """Return where a link of the file `source` leads when it is shown on `page`."""
        path = (source.parent / link).resolve()
        if path == self.root / "README.md":
            path = self.docs / "index.md"
        if not path.is_relative_to(self.root) or not path.exists():
            raise ExtensionError(f"{source.relative_to(self.root)}: the link {link} leads to no file of the repository")
        if path.is_file() and path.is_relative_to(self.docs) and not path.is_relative_to(self.docs / "_ext"):
            return os.path.relpath(path, page.parent)
        kind = "tree" if path.is_dir() else "blob"
        return f"{self.repository}/{kind}/main/{path.relative_to(self.root).as_posix()}"

    def rewrite(self, text: str, source: Path, page: Path) -> str:
        """Return a page's text with every relative link outside of code rewritten."""

        def replace(match: re.Match[str]) -> str:
            link = match[2]
            return match[0] if SCHEME.match(link) else f"{match[1]}{self.target(link, source, page)}{match[3]}"

        return outside_code(text, lambda prose: LINK.sub(replace, prose))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return a Markdown text with `change` applied to what is neither in a fence nor between backticks."""
    lines, fence = [], ""
    for line in text.splitlines(keepends=True):
        mark = FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip(" `~\n"):
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            parts, end = [], 0
            for code in CODE.finditer(line):
                parts += [change(line[end : code.start()]), code[0]]
                end = code.end()
            line = "".join([*parts, change(line[end:])]) if not parts or "](" not in line else _around(line, change)
        lines.append(line)
    return "".join(lines)


def _around(line: str, change: Callable[[str], str]) -> str:
    """Return a line changed with its code put aside: the text of a link may hold code."""
    codes = [m[0] for m in CODE.finditer(line)]
    changed = change(CODE.sub("\0", line))
    for code in codes:
        changed = changed.replace("\0", code, 1)
    return changed


def groups(index: str) -> dict[str, list[str]]:
    """Return the pages of each group of the list in docs/index.md, in its order."""
    listed: dict[str, list[str]] = {}
    group = ""
    for line in index.splitlines():
        if heading := GROUP.match(line):
            group = heading[1].strip()
            listed[group] = []
        elif group and (entry := ENTRY.match(line)):
            listed[group].append(entry[1])
    return listed


def navigation(index: str, pages: set[str]) -> dict[str, list[str]]:
    """Return the groups with all pages of docs/: one that is not listed is put at the end of the reference."""
    listed = groups(index)
    if REST not in listed:
        raise ExtensionError(f"docs/index.md has no group '### {REST}'; it has: {', '.join(listed) or 'none'}")
    known = {page for group in listed.values() for page in group}
    listed[REST] = [*listed[REST], *sorted(pages - known - {"index"})]
    return listed


def toctrees(listed: dict[str, list[str]]) -> str:
    """Return hidden tables of contents, one for each group."""
    blocks = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: {group}", "", *pages, "```"])
        for group, pages in listed.items()
    ]
    return "\n\n" + "\n\n".join(blocks) + "\n"


def read_source(app: Sphinx, docname: str, content: list[str]) -> None:
    """Rewrite a page as Sphinx reads it."""
    links = Links(Path(app.srcdir).parent, app.config.repository_url)
    page = Path(app.env.doc2path(docname))
    text = content[0]
    listed = toctrees(navigation(text, set(app.env.found_docs))) if docname == "index" else ""
    text = links.rewrite(text, page, page)

    def include(match: re.Match[str]) -> str:
        source = links.root / match[1]
        app.env.note_dependency(str(source))
        return links.rewrite(source.read_text(encoding="utf-8"), source, page)

    content[0] = INCLUDE.sub(include, text) + listed


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hook with Sphinx."""
    app.add_config_value("repository_url", "", "env")
    app.connect("source-read", read_source)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

"""A table of text: aligned for a terminal, or Markdown for a pull request.

Knows nothing of results; cells are escaped for where they are shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from tritium import escape

NONE = "-"  # a cell without a value


@dataclass(frozen=True)
class Table:
    """A table of text; columns named in `right` hold numbers."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = frozenset()
    below: tuple[str, ...] = ()  # notes below the table

    def text(self) -> str:
        """Return the table with aligned columns, for a terminal."""
        cells = [[escape.terminal(c) for c in row] for row in (self.heads, *self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.heads))]
        sides = [str.rjust if head in self.right else str.ljust for head in self.heads]
        lines = ["  ".join(s(c, w) for c, w, s in zip(row, widths, sides, strict=True)).rstrip() for row in cells]
        return "\n".join(
            [
                *([self.title, ""] if self.title else []),
                lines[0],
                "  ".join("-" * w for w in widths),
                *lines[1:],
                *(escape.terminal(line, None) for line in self.below),
            ]
        )

    def markdown(self) -> str:
        """Return the table in Markdown for a pull request, every cell escaped."""
        rule = ["--:" if head in self.right else "---" for head in self.heads]
        rows = [[escape.prose(c) for c in row] for row in (self.heads, *self.rows)]
        lines = [rows[0], rule, *rows[1:]]
        body = "\n".join("| " + " | ".join(row) + " |" for row in lines)
        below = "".join(f"\n\n{escape.prose(line, None)}" for line in self.below)
        return (f"### {escape.prose(self.title)}\n\n" if self.title else "") + body + below

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return escape.html_table(self.heads, self.rows, title=self.title, right=self.right, below=self.below)

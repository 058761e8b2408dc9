"""Sections of a report: blocks that can be written as text, Markdown and HTML."""

from __future__ import annotations

from dataclasses import dataclass

from tritium.see.reports.blocks import Contents
from tritium.see.reports.html import section_html


@dataclass(frozen=True)
class Section(Contents):
    """One part of a report. Printed, it is text; `markdown()` and `html()` are the other forms."""

    def text(self) -> str:
        """Return the section for a terminal."""
        from tritium.see.reports.text import section_text  # not needed for a page

        return section_text(self)

    def markdown(self) -> str:
        """Return the section for a pull request."""
        from tritium.see.reports.text import section_markdown

        return section_markdown(self)

    def html(self) -> str:
        """Return the section as a part of a page, without style or script."""
        return section_html(self)

    def __str__(self) -> str:
        return self.text()


def absent(id: str, title: str, why: str) -> Section:
    """Return an empty section with the reason."""
    return Section(id, title, absent=why)

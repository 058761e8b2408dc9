"""How tests read a page: what it may contain, and its elements."""

from __future__ import annotations

from html.parser import HTMLParser

ALLOWED = set(
    "html head meta title link style body a header div input button nav ol ul li main section p span h1 h2 h3 b i small code pre dl "
    "dt dd details summary table caption thead tbody tr th td figure figcaption footer script noscript "
    "svg g path circle rect line text tspan desc polygon polyline defs pattern clippath use".split()
)


class Page(HTMLParser):
    """What a parser sees: elements, their attributes, ids, links, and the text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[str] = []
        self.seen = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        if tag in ("script", "style"):
            self.open.append(tag)
            self.scripts += [""] if tag == "script" else []

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open:
            self.seen += data
        elif self.open[-1] == "script":
            self.scripts[-1] += data

    def values(self, attribute: str) -> list[str]:
        return [attrs[attribute] for _, attrs in self.elements if attribute in attrs]

"""A report, or other sections, as one HTML file: offline, with a strict content policy, readable without script.

Every text is escaped; the only script is page.js beside this file, and the policy has its hash.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any

from tritium.escape import attribute, html, script_json
from tritium.see.charts import charts
from tritium.see.reports.blocks import (
    Banner,
    Block,
    Card,
    Cell,
    Code,
    Contents,
    Drawing,
    Embed,
    Facts,
    Fold,
    Grid,
    Line,
    Lines,
    Picture,
    Span,
)
from tritium.see.trace import flame_look

LONG = 2000  # characters of a sentence, a reason, a command
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
GLYPHS = {"good": "✓", "bad": "▲", "unsure": "?", "fine": "=", "": "•", "quiet": "•"}
WIDE, HIGH = 220, 18  # px of a span's drawing
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
STEPS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
RANGE = re.compile(r"\(?[\d.]+…[\d.]+\)?", re.ASCII)
WIDE_TABLE = 5  # columns: a narrow screen shows the rows of such a table as blocks, each cell with its head
LABELLED = 7  # columns of a table with plots: its cells have their heads on a narrow screen too
MANY = 10  # columns: the table is set tighter
EMPTY = ("", "-")
DATE = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d)?")  # it is not broken at its hyphens
ENDS = 100.0  # ratios beyond it are drawn at the edge


@cache
def _asset(name: str) -> str:
    return resources.files("tritium.see.reports").joinpath(name).read_text(encoding="utf-8")


@cache
def _script(flames: bool) -> str:
    graphs = 'for (const graph of document.querySelectorAll("svg.flame")) flameGraph(graph);'
    return f"{_asset('page.js')}\n{flame_look.script()}\n{graphs}\n" if flames else _asset("page.js")


@cache
def _style(flames: bool) -> str:
    light = "".join(f"{name}:{value};" for name, value in charts.variables("light").items())
    paper = f"@media print{{:root,:root[data-theme]{{{light}}}}}"  # print in light colours whatever the theme
    graphs = f"{flame_look.css()}\n" if flames else ""
    return f"{charts.css()}\n{graphs}{_asset('page.css')}{paper}\n"


def page(
    title: str, sections: Sequence[Contents], footer: str, inside: Mapping[str, str] | None = None,
    *, noun: str = "case", flames: bool = False, home: str = "#verdict",
) -> str:  # fmt: skip
    """Return the HTML file of these sections. `footer`: its last line; `inside`: data that can be saved from it.

    `noun`: the name of what the filter selects; `flames`: include script and style of flame graphs; `home`: where the name at
    the top leads.
    """
    embedded = [b for s in sections for b in s.blocks if isinstance(b, Embed)]
    script = "\n".join([_script(flames), *dict.fromkeys(b.script for b in embedded)])
    style = "".join([_style(flames), *dict.fromkeys(b.style for b in embedded)])
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    toc = "".join(f'<li><a href="#{s.id}">{html(s.title)}</a></li>' for s in sections)
    body = "\n".join(section_html(s) for s in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY.format(digest)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="tritium">
<title>{html(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header class="bar">
<a class="brand" href="{attribute(home)}">{LOGO}<span>Tritium</span></a>
<details class="menu"><summary>Contents</summary><nav aria-label="Contents, as a menu"><ol>{toc}</ol></nav></details>
<div class="tools" hidden>
<input id="filter" type="search" placeholder="Filter {noun}s" aria-label="Filter {noun}s by name" autocomplete="off" spellcheck="false"
 data-noun="{noun}">
<button id="theme" type="button" aria-label="Colours: as the system">auto</button>
</div>
</header>
<div class="frame">
<nav class="toc" aria-label="Contents"><ol>{toc}</ol></nav>
<main id="main" tabindex="-1">
{body}
</main>
</div>
<footer><p>{html(footer, LONG)}</p></footer>
<script type="application/json" id="inside">{script_json(dict(inside or {}))}</script>
<script>{script}</script>
</body>
</html>
"""


LOGO = (
    '<svg class="logo" viewBox="0 0 24 24" width="22" height="22" aria-hidden="true"><circle cx="12" cy="5.5" r="3.5"/>'
    '<circle cx="5.5" cy="17" r="3.5"/><circle cx="18.5" cy="17" r="3.5"/></svg>'
)


def section_html(section: Contents) -> str:
    """Return one section with its heading. The first, the banner, has its own."""
    inner = "\n".join(_block(b) for b in section.blocks)
    if section.blocks and isinstance(section.blocks[0], Banner):
        return f'<section id="{section.id}" class="top" aria-label="{attribute(section.title)}">\n{inner}\n</section>'
    lede = f'<p class="lede">{html(section.lede, LONG)}</p>\n' if section.lede else ""
    if section.absent:
        inner = f'<p class="quiet">{html(section.absent, LONG)}</p>'
    extra = EXTRA.get(section.id, "")
    head = f'<h2 id="h-{section.id}">{html(section.title)}<a class="here" href="#{section.id}" aria-label="Link to this section">#</a></h2>'
    if section.id in FOLDED:
        inner = f'<details class="fold"><summary>{head}</summary>{lede}{inner}</details>'
        return f'<section id="{section.id}" aria-labelledby="h-{section.id}">{inner}</section>'
    cards = ' class="cards"' if section.blocks and isinstance(section.blocks[0], Card) else ""
    return f'<section id="{section.id}" aria-labelledby="h-{section.id}">\n{head}\n{lede}{extra}<div{cards}>\n{inner}\n</div>\n</section>'


FOLDED = ("absent",)
EXTRA = {
    "cases": '<p class="tools" hidden><button type="button" id="open-all">Open all</button><span id="count" role="status"></span></p>\n',
    "data": (
        '<p class="tools" hidden><button type="button" data-save="json">Download results.json</button>'
        '<button type="button" data-save="csv">Download figures.csv</button></p>\n<noscript><p class="quiet">Without script the data '
        "cannot be saved from here: it is in the element #inside of this file, as base64 of gzip.</p></noscript>\n"
    ),
}


# ---- blocks


def _block(block: Block) -> str:
    return BLOCKS[type(block)](block)


def _banner(b: Banner) -> str:
    counts = "".join(
        f'<li class="{tone}"><b>{n:,}</b> <span>{html(word)}</span></li>' for n, word, tone in b.counts
    )  # fmt: skip
    facts = "".join(f"<span>{html(text)}</span>" for text in b.about)
    lede = f'<p class="lede">{_prose(b.lede)}</p>' if b.lede else ""
    command = f"<code>{html(b.command, LONG)}</code>" if b.command else ""
    code = f'<span class="exit">{html(b.exit_code, LONG)}</span>' if b.exit_code else ""
    notes = "".join(f"<li>{html(note, LONG)}</li>" for note in b.notes)
    return (
        f'<div class="banner {b.tone}">\n<p class="about">{facts}</p>\n'
        f'<h1><span class="glyph" aria-hidden="true">{GLYPHS[b.tone]}</span>{html(b.headline)}</h1>\n{lede}\n'
        f'<ul class="counts">{counts}</ul>\n<p class="typed">{command}{code}</p>\n'
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "") + "</div>"
    )  # fmt: skip


def _prose(text: str) -> str:
    """Return a sentence as HTML; an interval stays on one line."""
    return RANGE.sub(r'<span class="nb">\g<0></span>', html(text, LONG))


def _sentence(line: Line) -> str:
    link = ""
    if line.link:
        link = f' <a class="to" href="#{attribute(line.link)}" aria-label="{attribute(line.link_text or "See the number")}">→</a>'
    return f"{_prose(line.text)}{link}"


def _line(line: Line) -> str:
    return f'<p class="line {line.tone}">{_sentence(line)}</p>'


def _lines(block: Lines) -> str:
    tag = "ol" if block.numbered else "ul"
    items = "".join(f'<li class="{line.tone}">{_sentence(line)}</li>' for line in block.lines)
    return f'<{tag} class="lines">{items}</{tag}>'


def _facts(block: Facts) -> str:
    rows = "".join(f"<div><dt>{html(name)}</dt><dd>{html(cell.text, LONG)}</dd></div>" for name, cell in block.rows)
    return f'<dl class="facts">{rows}</dl>'


def _code(block: Code) -> str:
    lines = "\n".join(html(line, LONG) for line in block.text.split("\n"))
    return f'<pre tabindex="0"><code>{lines}</code></pre>'


def _card(card: Card) -> str:
    inner = "\n".join(_block(b) for b in card.blocks)
    return (
        f'<details class="card" id="{card.id}"><summary><span class="name">{html(card.title)}</span>'
        f'<span class="brief">{html(card.brief)}</span>{_badge(card.mark)}</summary>\n<div class="body">{inner}'
        f'<p class="quiet"><a href="#{card.id}">Link to this case</a></p></div></details>'
    )


def _fold(fold: Fold) -> str:
    inner = "\n".join(_block(b) for b in fold.blocks)
    return f'<details class="fold"><summary>{html(fold.title)}</summary>{inner}</details>'


def _picture(picture: Picture) -> str:
    if not picture.shown:
        return ""
    chart = picture.chart
    if picture.small:
        return (
            f'<figure class="small">{charts.svg(chart, width=400, standalone=False, key=_key(picture.name))}</figure>'
        )
    subtitle = f"<p>{html(chart.subtitle, LONG)}</p>" if chart.subtitle else ""
    return (
        f'<figure class="figure"><figcaption><h3>{html(chart.title)}</h3>{subtitle}</figcaption>'
        f"{charts.responsive(chart, key=_key(picture.name))}</figure>"
    )


def _key(name: str) -> str:
    """Return a salt for the ids of a chart: one page may have two charts of the same data."""
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _drawing(drawing: Drawing) -> str:
    rows = "".join(f"<li>{html(line, LONG)}</li>" for line in drawing.lines)
    return (
        f'<figure class="figure flames"><figcaption><h3>{html(drawing.title)}</h3></figcaption>'
        f'<div class="scroll" role="region" aria-label="{attribute(drawing.title)}" tabindex="0">{drawing.svg}</div>'
        f'<details class="fold"><summary>As text</summary><ol class="lines">{rows}</ol></details></figure>'
    )


# ---- tables


def _badge(cell: Cell) -> str:
    if not cell.text:
        return ""
    return f'<span class="badge {cell.tone}"{_tip(cell.tip)}>{html(cell.text)}</span>'


def _tip(tip: str) -> str:
    return f' data-tip="{attribute(tip, LONG)}" tabindex="0"' if tip else ""


def _grid(grid: Grid) -> str:
    scale = _scale([c.span for row in grid.rows for c in row if c.span is not None])
    spans = {i for row in grid.rows for i, c in enumerate(row) if c.span is not None}
    heads = "".join(
        f'<th scope="col"{_class("r" if head in grid.right else "", "plot" if i in spans else "")}>{html(head)}'
        + (f"{_axis(scale, grid.ends)}</th>" if i in spans else "</th>")
        for i, head in enumerate(grid.heads)
    )
    right = [head in grid.right for head in grid.heads]
    wide = len(grid.heads) >= WIDE_TABLE and not spans
    labelled = wide or len(grid.heads) >= LABELLED
    labels = grid.heads if labelled else ("",) * len(grid.heads)
    rows = "\n".join(_row(row, right, scale, labels) for row in grid.rows)
    label = f' aria-label="{attribute(grid.caption)}"' if grid.caption else ' aria-label="Table"'
    caption = f"<caption><span>{html(grid.caption)}</span></caption>" if grid.caption else ""
    kinds = {"filtered": grid.filtered, "spans": bool(spans), "wide": wide, "many": len(grid.heads) >= MANY}
    kind = _class("grid", *(name for name, applies in kinds.items() if applies))
    return (
        f'<div class="scroll" role="region"{label} tabindex="0"><table{kind}>{caption}'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )


def _class(*names: str) -> str:
    classes = " ".join(filter(None, names))
    return f' class="{classes}"' if classes else ""


def _row(row: Sequence[Cell], right: Sequence[bool], scale: Reach, labels: Sequence[str]) -> str:
    return "<tr>" + "".join(_cell(c, i == 0, right[i], scale, labels[i]) for i, c in enumerate(row)) + "</tr>"


def _cell(cell: Cell, first: bool, right: bool, scale: Reach, label: str) -> str:
    """Return a cell; `label`: the head of its column, which a narrow screen shows beside it."""
    classes = ["r" if right else "", "" if cell.badge else cell.tone, "plot" if cell.span is not None else ""]
    classes.append("no" if label and cell.text in EMPTY and cell.span is None else "")
    classes.append("nb" if DATE.fullmatch(cell.text) else "")
    if cell.heat is not None:
        classes.append(f"h{round(6 * cell.heat)}")
    sort = "" if cell.sort is None or not math.isfinite(cell.sort) else f' data-s="{cell.sort:.6g}"'
    if cell.badge:
        inner, tip = _badge(cell), ""
    elif cell.span is not None:
        inner, tip = _span(cell.span, scale), ""
    else:
        inner, tip = _figure(cell.text) if right and label else html(cell.text, LONG), _tip(cell.tip)
    if cell.link or cell.page:
        target = f"#{attribute(cell.link)}" if cell.link else attribute(cell.page)
        inner = f'<a href="{target}">{inner}</a>'
    class_attribute = _class(*classes)
    named = f' data-h="{attribute(label)}"' if label else ""
    if first:
        return f'<th scope="row"{class_attribute}>{inner}</th>'
    return f"<td{class_attribute}{sort}{tip}{named}>{inner}</td>"


def _figure(text: str) -> str:
    """Return a figure as HTML; it may be broken before its interval, and nowhere else."""
    value, bracket, interval = text.partition(" (")
    if not bracket:
        return html(text, LONG)
    return f'<span class="nb">{html(value, LONG)}</span> <span class="nb">({html(interval, LONG)}</span>'


Reach = tuple[float, float]


def _scale(spans: Sequence[Span]) -> Reach:
    """Return the ends of the column's log axis: 1 and the bands are always inside."""
    ends = [
        e for s in spans for e in (s.ratio, s.low, s.high, 1 + 1.5 * s.margin, 1 / (1 + 1.5 * s.margin)) if e and e > 0
    ]
    low, high = max(min(ends, default=0.9), 1 / ENDS), min(max(ends, default=1.1), ENDS)
    low, high = min(low, 0.98), max(high, 1.02)
    room = (high / low) ** 0.04
    return low / room, high * room


def _x(value: float, scale: Reach) -> float:
    part = math.log(max(value, 1e-9) / scale[0]) / math.log(scale[1] / scale[0])
    return round(WIDE * min(max(part, 0.0), 1.0), 1)


def _span(span: Span, scale: Reach) -> str:
    centre, x = _x(1, scale), _x(span.ratio, scale)
    left, right = _x(1 / (1 + span.margin), scale), _x(1 + span.margin, scale)
    band = f'<path class="band" d="M{left:g} 0H{right:g}V{HIGH}H{left:g}z"/>' if span.margin else ""
    line = ""
    if span.low is not None and span.high is not None:
        line = f'<path class="ci" d="M{_x(span.low, scale):g} {HIGH // 2}H{_x(span.high, scale):g}"/>'
    return (
        f'<svg class="span" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" aria-hidden="true">{band}'
        f'<path class="one" d="M{centre:g} 0V{HIGH}"/>{line}<circle cx="{x:g}" cy="{HIGH // 2}" r="4"/></svg>'
    )


def _axis(scale: Reach, ends: tuple[str, str]) -> str:
    """Return the axis in the head of a column of spans."""
    wide = scale[1] / scale[0] > 1.7
    step = next((s for s in STEPS if 1 + s <= scale[1] or 1 / (1 + s) >= scale[0]), STEPS[-1])
    values = [t for t in TICKS if scale[0] <= t <= scale[1]] if wide else [1 / (1 + step), 1, 1 + step]
    while len(values) > 5:
        values = [v for i, v in enumerate(values) if v == 1 or (i - values.index(1)) % 2 == 0]
    ticks = "".join(
        f'<text x="{min(max(_x(v, scale), 12), WIDE - 12):g}" y="11">{f"{v:g}" if wide else f"{v:.2f}"}×</text>'
        for v in values if scale[0] <= v <= scale[1]
    )  # fmt: skip
    directions = f"<small><i>← {html(ends[0])}</i><i>{html(ends[1])} →</i></small>" if ends[0] else ""
    return f'{directions}<svg class="axis" viewBox="0 0 {WIDE} 14" width="{WIDE}" height="14" aria-hidden="true">{ticks}</svg>'


BLOCKS: dict[type, Callable[[Any], str]] = {
    Banner: _banner, Line: _line, Lines: _lines, Facts: _facts, Code: _code, Card: _card, Fold: _fold, Picture: _picture,
    Drawing: _drawing, Embed: lambda e: e.html, Grid: _grid,
}  # fmt: skip

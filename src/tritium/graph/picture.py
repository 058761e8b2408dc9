"""A picture of a graph: one SVG, inputs at the top, each node below all it reads.

The picture holds its own style for light and dark pages, no script, and is the same for the same graph.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple
from unicodedata import east_asian_width

from tritium import ops
from tritium.errors import ArgumentError
from tritium.fragment import Fragment, spec_text, value_text
from tritium.graph.graph import Graph, Node, methods
from tritium.graph.placement import BEND, MARGIN, Box, Edge, Placed, place
from tritium.op import Kind, Spec

MOST = 10_000  # nodes; a larger picture is unreadable
LARGE = 400  # nodes; above this, views become labels of edges
_STEPS = 14  # of a fused node that are shown
_TEXT = 40  # characters of a line
_LINE = 17.0  # from one line of text to the next
_TITLE_EM, _TEXT_EM = 7.9, 7.25  # width of a character: monospaced, 13 and 12 px


class Look(NamedTuple):
    """The colours of a kind of box."""

    fill: str
    stroke: str
    dark_fill: str
    dark_stroke: str


LOOKS = {
    "argument": Look("#e7f6ec", "#1f9254", "#12301f", "#3fb778"),
    "captured": Look("#f4f2ee", "#9a8f7c", "#2a2722", "#8d8371"),
    "output": Look("#1f9254", "#1f9254", "#2a9d61", "#2a9d61"),
    "source": Look("#f2f4f7", "#8a94a6", "#22272e", "#6b7688"),
    "view": Look("#ffffff", "#b3bac5", "#161b22", "#4d5665"),
    "map": Look("#eaf1fe", "#2f6fde", "#15243f", "#5b93f5"),
    "reduce": Look("#fdf3e1", "#b9720a", "#33260f", "#e0a03e"),
    "contract": Look("#f2ebfd", "#7a45d6", "#281c42", "#a57df0"),
    "move": Look("#e3f6f4", "#0f8a7e", "#0e302d", "#3dbcae"),
    "fused": Look("#fdeaf0", "#c8385a", "#3a1a24", "#f0708f"),
}
_DASHED = ("captured", "view")
_ROUND = ("argument", "output", "captured")


def svg(graph: Graph, names: Mapping[Node, str] | None = None, outputs: Sequence[str] | None = None) -> str:
    """Return the picture of a graph. `names`: of nodes; `outputs`: names of the results."""
    order = list(dict.fromkeys((*graph.order(), *graph.inputs)))
    if len(order) > MOST:
        raise ArgumentError(
            f"svg: the graph has {len(order)} nodes, more than the {MOST} that can be drawn; draw a part of it: trace one "
            f"layer or one block."
        )
    boxes, edges = _boxes(graph, order, graph.names if names is None else names, outputs or ())
    placed = place(boxes, edges, 12 if len(order) > LARGE else 40, _copy)
    return _draw(placed, len(order))


# ---- boxes and edges


def _boxes(
    graph: Graph, order: list[Node], names: Mapping[Node, str], outputs: Sequence[str]
) -> tuple[list[Box], list[Edge]]:
    """Return a box for each node and each output, and the edges between them.

    Constants are shown in the box that reads them. Items are labels of edges, and so are views in a large graph.
    """
    number = {n: i for i, n in enumerate(order)}
    box_of: dict[Node, Box] = {}
    boxes: list[Box] = []
    edges: list[Edge] = []

    def is_label(n: Node) -> bool:
        return n.op is ops.item or (len(order) > LARGE and n.op.kind is Kind.VIEW)

    def follow(n: Node) -> tuple[Box, str]:
        label: list[str] = []
        while is_label(n) and n.inputs[0] is not None:
            label.append(f"[{dict(n.attrs)['index']}]" if n.op is ops.item else n.op.name)
            n = n.inputs[0]
        shown = label[::-1] if len(label) < 4 else [label[-1], f"{len(label) - 2} views", label[0]]
        if n not in box_of:  # a constant that is an output, or seen through a view
            box_of[n] = _box(n, names, number)
            boxes.append(box_of[n])
        return box_of[n], " · ".join(shown)

    for n in order:
        if n.op is ops.const or is_label(n):
            continue
        box = box_of[n] = _box(n, names, number)
        operands = [i for i in n.inputs if i is not None and i.op is not ops.const]
        for i, port in zip(operands, _ports(operands), strict=True):
            source, label = follow(i)
            edges.append(Edge(source, box, port, label))
        boxes.append(box)
    results = [
        *((n, f"output {i}") for i, n in enumerate(graph.outputs)),
        *((n, f"write {i}") for i, n in graph.writes),
    ]
    for index, (n, title) in enumerate(results):
        source, label = follow(n)
        title = outputs[index] if index < len(outputs) else "output" if len(results) == 1 else title
        boxes.append(_resize(Box("output", _short(title), tip=f"output {index}: {spec_text(n.spec)}")))
        edges.append(Edge(source, boxes[-1], 0.0, label))
    return boxes, edges


def _ports(operands: list[Node]) -> list[float]:
    """Return the ports of operands: spread evenly or, if only one of them is computed, that one in the middle."""
    main = [index for index, i in enumerate(operands) if i.inputs]
    if len(main) != 1:
        return [(index + 1) / (len(operands) + 1) - 0.5 for index in range(len(operands))]
    before, after = main[0], len(operands) - 1 - main[0]
    return [0.45 * (index - before) / (max(before, after) + 0.5) for index in range(len(operands))]


def _box(n: Node, names: Mapping[Node, str], number: Mapping[Node, int]) -> Box:
    attrs = dict(n.attrs)
    name = names.get(n, "")
    inputs = ", ".join("none" if i is None else f"%{number[i]}" for i in n.inputs)
    tip = f"%{number[n]} = {n.op.name}({inputs}): {spec_text(n.spec)}"
    if n.op is ops.given:
        look = "argument" if attrs["index"] >= 0 else "captured"
        title = name or f"{look} {attrs['index'] if attrs['index'] >= 0 else -1 - attrs['index']}"
        return _resize(Box(look, _short(title), "", (_short(str(n.spec)),), tip))
    shown = [f"{k}={value_text(v)}" for k, v in n.attrs if k != "body" and _is_informative(n, k, v)]
    if any(i is not None and i.op is ops.const for i in n.inputs):
        shown.insert(0, f"({', '.join(_operand(i) for i in n.inputs)})")
    body = attrs.get("body")
    lines = [*_steps(body)] if isinstance(body, Fragment) else [_short(", ".join(shown))] if shown else []
    lines += [_short(s) for s in ([str(n.spec)] if isinstance(n.spec, Spec) else map(str, n.spec))]
    own = "" if re.fullmatch(rf"{n.op.name}_\d+", name) else name
    return _resize(Box(n.op.kind.value, n.op.name, _short(own), tuple(lines), f"{name}: {tip}" if name else tip))


def _is_informative(n: Node, key: str, value: object) -> bool:
    """Return True if an attribute is neither its default nor part of the spec."""
    is_in_spec = key == "dtype" and isinstance(n.spec, Spec) and value is n.spec.dtype
    return not is_in_spec and not (key in n.op.defaults and n.op.defaults[key] == value)


def _operand(n: Node | None) -> str:
    if n is None:
        return "–"
    return value_text(dict(n.attrs)["value"]) if n.op is ops.const else "·"


def _steps(body: Fragment) -> list[str]:
    """Return the steps of a fragment with constants inlined."""
    values = {v: value_text(dict(s.attrs)["value"]) for v, s in body.numbered() if s.op is ops.const}
    steps = []
    for v, s in body.numbered():
        if s.op is not ops.const:
            read = ", ".join("–" if i is None else values.get(i, f"%{i}") for i in s.inputs)
            steps.append(_short(f"%{v} = {s.op.name}({read})"))
    return steps if len(steps) <= _STEPS else [*steps[: _STEPS - 1], f"… and {len(steps) - _STEPS + 1} more steps"]


def _copy(source: Box) -> Box:
    """Return a small box that refers to one further up."""
    return _resize(Box(source.look, f"↑ {source.name or source.title}", tip=f"from further up: {source.tip}"))


def _short(text: str) -> str:
    clean = "".join(c if c.isprintable() else "·" for c in text)
    return clean if len(clean) <= _TEXT else clean[: _TEXT - 1] + "…"


def _columns(text: str) -> int:
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def _resize(box: Box) -> Box:
    title = _columns(box.title) + (_columns(box.name) + 2 if box.name else 0)
    box.width = max(64.0, title * _TITLE_EM + 28, *(_columns(s) * _TEXT_EM + 28 for s in box.lines or ("",)))
    box.height = 14 + _LINE * (1 + len(box.lines))
    return box


# ---- drawing


def _px(value: float) -> str:
    """Return a coordinate with at most one digit after the point."""
    return f"{value:.1f}".removesuffix(".0")


def _path(e: Edge, bands: list[tuple[float, float]]) -> str:
    """Return the path of an edge: straight inside a layer, a smooth curve between two of them."""
    x0, x1 = e.source.x, e.target.x + e.port * e.target.width
    start = bands[e.source.layer][1] if e.source.look == BEND else e.source.y + e.source.height
    end = bands[e.target.layer][1] if e.target.look == BEND else e.target.y - 1.5
    out, into = bands[e.source.layer][1], min(bands[e.target.layer][0], end)
    middle = (out + into) / 2
    turn = f"C{_px(x0)} {_px(middle)} {_px(x1)} {_px(middle)} {_px(x1)} {_px(into)}"
    into_box = "" if end == into else f"V{_px(end)}"
    arrow = "" if e.target.look == BEND else ' marker-end="url(#tg-arrow)"'
    return f'<path d="M{_px(x0)} {_px(start)}{"" if start == out else f"V{_px(out)}"}{turn}{into_box}"{arrow}/>'


def _label(e: Edge, bands: list[tuple[float, float]]) -> str:
    x = e.target.x + e.port * e.target.width
    y = bands[e.target.layer][0] - (25 if e.port > 0 else 12)  # labels of neighbours do not touch
    return f'<text class="tg-label" x="{_px(x)}" y="{_px(y)}">{escape(e.label)}</text>'


def _rect(b: Box) -> list[str]:
    left, rx = b.x - b.width / 2, min(b.height / 2, 16.0) if b.look in _ROUND else 7.0
    name = f'<tspan class="tg-name" dx="8">{escape(b.name)}</tspan>' if b.name else ""
    y = b.y + 20
    out = [
        f'<g class="tg-{b.look}"><title>{escape(b.tip)}</title>',
        f'<rect x="{_px(left)}" y="{_px(b.y)}" width="{_px(b.width)}" height="{_px(b.height)}" rx="{_px(rx)}"/>',
        f'<text class="tg-title" x="{_px(b.x)}" y="{_px(y)}">{escape(b.title)}{name}</text>',
    ]
    for line in b.lines:
        y += _LINE
        out.append(f'<text x="{_px(b.x)}" y="{_px(y)}">{escape(line)}</text>')
    return [*out, "</g>"]


def _legend(looks: list[str], width: float, y: float) -> tuple[list[str], float]:
    """Return the legend, a sample of every kind of box in the picture, and the y it ends at."""
    out: list[str] = []
    x = MARGIN
    for look in looks:
        wide = 24 + _columns(look) * _TEXT_EM + 16
        if x > MARGIN and x + wide > width - MARGIN + 16:
            x, y = MARGIN, y + 22
        out.append(
            f'<g class="tg-{look}"><rect x="{_px(x)}" y="{_px(y)}" width="16" height="12" rx="3"/>'
            f'<text class="tg-legend" x="{_px(x + 23)}" y="{_px(y + 10)}">{look}</text></g>'
        )
        x += wide
    return out, y + 12


def _style(looks: list[str]) -> str:
    font = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
    light = [f".tg-{k} rect{{fill:{LOOKS[k].fill};stroke:{LOOKS[k].stroke}}}" for k in looks]
    dark = [f".tg-{k} rect{{fill:{LOOKS[k].dark_fill};stroke:{LOOKS[k].dark_stroke}}}" for k in looks]
    return "".join([
        f".tg{{--page:#fff;--ink:#1f2937;--quiet:#5b6472;--line:#98a2b3;font:12px {font}}}",
        ".tg text{fill:var(--quiet);text-anchor:middle}.tg rect{stroke-width:1.3}",
        ".tg .tg-title{fill:var(--ink);font-size:13px;font-weight:600}.tg .tg-name{fill:var(--quiet);font-weight:400}",
        ".tg .tg-output .tg-title{fill:#fff}.tg .tg-legend{text-anchor:start}",
        ".tg .tg-label{stroke:var(--page);stroke-width:4px;paint-order:stroke;font-size:11px}",
        ".tg-edges{fill:none;stroke:var(--line);stroke-width:1.4}.tg-head{fill:var(--line)}.tg-page{fill:var(--page)}",
        *(f".tg-{k} rect{{stroke-dasharray:4 3}}" for k in looks if k in _DASHED),
        *light,
        "@media(prefers-color-scheme:dark){.tg{--page:#0d1117;--ink:#e5e9f0;--quiet:#9aa4b2;--line:#6b7688}",
        *dark,
        "}",
    ])  # fmt: skip


def _draw(placed: Placed, count: int) -> str:
    layers, edges, bands = placed
    boxes = [b for layer in layers for b in layer if b.look != BEND]
    looks = [k for k in LOOKS if any(b.look == k for b in boxes)]
    width = max((b.x + b.width / 2 for layer in layers for b in layer), default=0.0) + MARGIN
    width = max(width, 220.0)
    legend, bottom = _legend(looks, width, (bands[-1][1] if bands else 0.0) + MARGIN)
    height = bottom + MARGIN / 1.5
    count_text = f"{count} nodes" if count != 1 else "1 node"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tg" viewBox="0 0 {_px(width)} {_px(height)}" width="{_px(width)}" '
        f'height="{_px(height)}" style="max-width:100%;height:auto" role="img">',
        f"<title>A graph of {count_text}</title><style>{_style(looks)}</style>",
        '<defs><marker id="tg-arrow" viewBox="0 0 8 8" refX="6.5" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tg-head" d="M0 0.8L7.2 4L0 7.2z"/></marker></defs>',
        f'<rect class="tg-page" width="{_px(width)}" height="{_px(height)}" rx="10"/>',
        '<g class="tg-edges">',
        *(_path(e, bands) for e in edges),
        "</g>",
        *(line for b in boxes for line in _rect(b)),
        *(_label(e, bands) for e in edges if e.label),
        *legend,
        "</svg>",
    ]
    return "\n".join(parts)


methods["svg"] = svg

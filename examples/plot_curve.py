"""Draws the loss curves of trainings as one SVG: solid what was trained on, dots what was held out.

The loss of a distilled network is not bits of the text, so that its line joins the dots.

python examples/plot_curve.py curve.svg ternary=kjv/log.json f32=float/log.json
"""

from __future__ import annotations

import json
import math
import sys
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 340, 56, 44, 16
COLOURS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce")


def draw(logs: dict[str, dict]) -> str:
    """The picture of several logs, each by its name."""
    held = {
        name: [(row["step"], row["val_bits_per_byte"]) for row in log["curve"] if "val_bits_per_byte" in row]
        for name, log in logs.items()
    }
    points = {
        name: held[name] if log.get("teacher") else [(row["step"], row["loss"] / math.log(2)) for row in log["curve"]]
        for name, log in logs.items()
    }
    most = max(x for rows in points.values() for x, _ in rows)
    low = min(1.0, math.floor(4 * min(y for rows in points.values() for _, y in rows)) / 4)
    high = 3.0

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - 16) * step / most

    def y(bits: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - min(bits, high)) / (high - low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" role="img">',
        "<title>Bits per byte while training</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for i in range(5):
        bits = low + (high - low) * i / 4
        out.append(f'<path d="M{LEFT} {y(bits):.1f}H{WIDTH - 16}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(bits) + 4:.1f}" text-anchor="end" fill="#333">{bits:g}</text>')
        step = most * i / 4
        out.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 24}" text-anchor="middle" fill="#333">{step:.0f}</text>')
    out.append(f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle" fill="#333">steps</text>')
    out.append(
        f'<text x="14" y="{HEIGHT / 2:.0f}" text-anchor="middle" fill="#333" transform="rotate(-90 14 {HEIGHT / 2:.0f})">bits per byte</text>'
    )
    for i, (name, colour) in enumerate(zip(logs, COLOURS, strict=False)):
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points[name])
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.5" fill="{colour}"/>' for a, b in held[name]]
        final = logs[name]["bits_per_byte"]["held_out"]
        text = f"{escape(name)}: {final:.3f} held out at the end"
        out.append(f'<path d="M{WIDTH - 260} {TOP + 16 + 20 * i}h24" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{WIDTH - 228}" y="{TOP + 20 + 20 * i}" fill="#333">{text}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    if len(sys.argv) < 3 or any("=" not in a for a in sys.argv[2:]):
        raise SystemExit(__doc__)
    named = dict(a.split("=", 1) for a in sys.argv[2:])
    logs = {name: json.loads(Path(path).read_text(encoding="utf-8")) for name, path in named.items()}
    Path(sys.argv[1]).write_text(draw(logs), encoding="utf-8")


if __name__ == "__main__":
    main()

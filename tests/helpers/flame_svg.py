"""How tests read a flame graph: its bars, tips and texts."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

NS = "{http://www.w3.org/2000/svg}"

ELEMENTS = {"svg", "title", "desc", "style", "script", "g", "rect", "text", "div"}

DATA = ("d", "x", "w", "y", "m", "full", "least", "key")

PLAIN = {"class", "viewBox", "width", "height", "x", "y", "rx", "role", *(f"data-{k}" for k in DATA)}

WORDS = {"aria-label", "data-p", "data-s"}  # attributes that hold text and are never taken for anything else


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)


def bare(element: ET.Element) -> str:
    return element.tag.removeprefix(NS)


def bars(root: ET.Element) -> list[ET.Element]:
    return [e for e in root.iter() if bare(e) == "g" and "f" in e.get("class", "").split()]


def tip(bar: ET.Element) -> list[str]:
    return next(e.text or "" for e in bar if bare(e) == "title").split("\n")


def harmless(root: ET.Element, scripts: int) -> None:
    """Nothing in it but what we draw: no handler, no address, no element of others', no other script."""
    for e in root.iter():
        assert bare(e) in ELEMENTS, e.tag
        assert e.attrib.keys() <= PLAIN | WORDS, e.attrib
        assert all(re.fullmatch(r"[\w .%-]*", value) for key, value in e.attrib.items() if key in PLAIN), e.attrib
    assert sum(bare(e) == "script" for e in root.iter()) == scripts

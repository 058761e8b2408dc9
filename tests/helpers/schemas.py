"""JSON schemas of many kinds, as tools, configurations and records have them: `SCHEMAS` by name."""

from __future__ import annotations

from typing import Any


def record(required: list[str] | None = None, closed: bool = True, **properties: Any) -> dict[str, Any]:
    """An object with these properties, all of them required unless said."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": not closed}


TEXT, WHOLE, NUMBER, TRUTH = ({"type": t} for t in ("string", "integer", "number", "boolean"))
SHORT = {"type": "string", "maxLength": 12}

SCHEMAS: dict[str, Any] = {
    "any object": {"type": "object"},
    "text": TEXT,
    "whole": WHOLE,
    "number": NUMBER,
    "null": {"type": "null"},
    "person": record(name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 150}),
    "optional fields": record(["id"], id=WHOLE, nickname=SHORT, email={"type": "string", "format": "email"}),
    "open object": record(closed=False, a=WHOLE),
    "nested": record(user=record(name=SHORT, address=record(street=SHORT, number=WHOLE))),
    "array": {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 5},
    "empty array": {"type": "array", "items": TEXT, "maxItems": 0},
    "tuple": {"type": "array", "prefixItems": [SHORT, WHOLE, TRUTH], "items": False, "minItems": 3},
    "array of objects": {"type": "array", "items": record(k=SHORT, v=NUMBER), "minItems": 1, "maxItems": 3},
    "enum": {"enum": ["red", "green", "blue"]},
    "mixed enum": {"enum": [1, "a", None, True, {"a": [1, 2]}]},
    "const": record(kind={"const": "circle"}, radius=NUMBER),
    "bounds": record(a={"type": "number", "minimum": -1.5, "maximum": 2.5}, b={"type": "integer", "exclusiveMinimum": 10, "maximum": 99}),
    "multiple": record(a={"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}),
    "pattern": record(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}),
    "lengths": record(a={"type": "string", "minLength": 3, "maxLength": 6}),
    "date": record(day={"type": "string", "format": "date"}, at={"type": "string", "format": "date-time"}),
    "uuid": record(id={"type": "string", "format": "uuid"}),
    "several types": record(v={"type": ["string", "null", "integer"], "maxLength": 8}),
    "any of": record(v={"anyOf": [WHOLE, SHORT, {"type": "null"}]}),
    "one of by kind": {"oneOf": [record(kind={"const": "a"}, x=WHOLE), record(kind={"const": "b"}, y=TRUTH)]},
    "all of": {"allOf": [record(closed=False, a=WHOLE), record(closed=False, b=SHORT)]},
    "definitions": {"$defs": {"point": record(x=NUMBER, y=NUMBER)}, **record(a={"$ref": "#/$defs/point"}, b={"$ref": "#/$defs/point"})},
    "tree": {"$defs": {"node": record(["value"], value=WHOLE, left={"$ref": "#/$defs/node"}, right={"$ref": "#/$defs/node"})},
             "$ref": "#/$defs/node"},
    "map": {"type": "object", "additionalProperties": WHOLE, "maxProperties": 3},
    "pattern properties": {"type": "object", "patternProperties": {"^x-": SHORT}, "additionalProperties": False},
    "unicode": record(**{"größe": WHOLE, "名前": SHORT, "a b": TRUTH, 'q"q': WHOLE}),
    "weather tool": record(["location"], location={"type": "string", "description": "City", "maxLength": 20},
                           unit={"type": "string", "enum": ["celsius", "fahrenheit"]}),
    "pydantic": {"title": "Answer", **record(["steps", "final"], steps={"items": record(explanation=SHORT, output=SHORT), "title": "Steps",
                 "type": "array", "maxItems": 3}, final={"title": "Final", "type": "string", "maxLength": 10})},
}  # fmt: skip

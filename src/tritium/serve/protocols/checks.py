"""Checks of single values in the JSON of requests: each returns the value as it is used, or raises ValueError saying what is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tritium.serve.protocols.common import ProtocolError
from tritium.serve.protocols.fields import FieldError

MOST_STOPS = 16
MOST_TOKEN_IDS = 4096
RESERVED = {"messages", "bos_token", "eos_token", "add_generation_prompt", "tools"}  # names a template has already


def number(low: float, high: float) -> Callable[[Any], float]:
    def check(v: Any) -> float:
        if isinstance(v, bool) or not isinstance(v, (int, float)) or not low <= v <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return float(v)

    return check


def whole(low: int, high: int) -> Callable[[Any], int]:
    def check(v: Any) -> int:
        if isinstance(v, float) and v.is_integer():
            v = int(v)
        if isinstance(v, bool) or not isinstance(v, int) or not low <= v <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return v

    return check


def length(v: Any) -> int | None:
    """A number of tokens; -1, as llama.cpp has it, bounds nothing."""
    return None if isinstance(v, int) and not isinstance(v, bool) and v == -1 else whole(0, 1 << 31)(v)


def flag(v: Any) -> bool:
    if not isinstance(v, bool):
        raise ValueError("true or false")
    return v


def string(v: Any) -> str:
    try:
        if isinstance(v, str):
            v.encode()  # JSON can write half a character (\ud800), which no text can hold
            return v
    except UnicodeEncodeError:
        pass
    raise ValueError("a string of whole characters")


def stops(v: Any) -> tuple[str, ...]:
    strings = [v] if isinstance(v, str) else v
    if not isinstance(strings, list) or len(strings) > MOST_STOPS or not all(isinstance(s, str) and s for s in strings):
        raise ValueError(f"a string, or a list of at most {MOST_STOPS} strings, none of them empty")
    return tuple(string(s) for s in strings)


def biases(v: Any) -> dict[int, float]:
    needed = "an object of token ids (as strings) and numbers from -100 to 100"
    if not isinstance(v, dict) or len(v) > 1024 or not all(k.isascii() and k.isdigit() and len(k) <= 10 for k in v):
        raise ValueError(needed)
    try:
        return {whole(0, 1 << 31)(int(k)): number(-100, 100)(x) for k, x in v.items()}
    except ValueError:
        raise ValueError(needed) from None


def ids(v: Any) -> tuple[int, ...]:
    return tuple(map(whole(0, 1 << 31), v))


def token_ids(v: Any) -> tuple[int, ...]:
    if not isinstance(v, list) or len(v) > MOST_TOKEN_IDS:
        raise ValueError(f"a list of at most {MOST_TOKEN_IDS} token ids")
    return ids(v)


def template_values(v: Any) -> dict[str, Any]:
    """Further names that the chat template reads, such as enable_thinking."""
    if not isinstance(v, dict) or set(v) & RESERVED:
        raise ValueError(f"an object without {', '.join(sorted(RESERVED))}")
    return v


def text(v: Any, param: str) -> str:
    try:
        return string(v)
    except ValueError as e:
        raise wrong(param, str(e)) from None


def wrong(param: str, needed: str) -> FieldError:
    return FieldError(param, f"{param} must be {needed}.")


def value(fields: Mapping[str, Any], name: str, check: Callable[[Any], Any], default: Any) -> Any:
    if name not in fields:
        return default
    try:
        return check(fields[name])
    except ValueError as e:
        raise wrong(name, str(e)) from None


def read_json(body: bytes) -> dict[str, Any]:
    """Return the object in a body."""

    def constant(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(body.decode("utf-8"), parse_constant=constant)
    except (ValueError, RecursionError) as e:
        why = "it is nested too deeply" if isinstance(e, RecursionError) else str(e)
        raise ProtocolError(400, f"The body is not JSON: {why}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ProtocolError(400, "The body must be a JSON object.", code="invalid_json")
    return value

"""Tool calls: what a chat template is shown of tools, the calls in the text of an answer as it comes, and grammars that force them.

Models write calls in few styles, each with the JSON of a name and its arguments:

    hermes    <tool_call>{"name": "f", "arguments": {…}}</tool_call>    Qwen, Hermes, Falcon
    llama     {"name": "f", "parameters": {…}}                          the whole answer; Llama 3
    mistral   [TOOL_CALLS][{"name": "f", "arguments": {…}}]
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tritium.errors import ArgumentError
from tritium.models.text.constraints import JSON_OPTIONS, Format

MOST_TOOLS = 128
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')
_BETWEEN = " \t\r\n,;]"  # what may stand between two calls without markers


class Style(NamedTuple):
    """The form of a model's calls: text before and after each, and the key of the arguments. No text: the answer is a call as a whole."""

    name: str
    begins: str
    ends: str
    key: str


STYLES = {
    "hermes": Style("hermes", "<tool_call>", "</tool_call>", "arguments"),
    "llama": Style("llama", "", "", "parameters"),
    "mistral": Style("mistral", "", "", "arguments"),
}
# What a template that writes calls in a style has in it; the first that fits.
_SIGNS = (
    ("hermes", "<tool_call>"),
    ("mistral", "[TOOL_CALLS]"),
    ("llama", '"parameters"'),
    ("llama", "<|python_tag|>"),
)


def style_of(template: str, name: str | None = None) -> Style:
    """Return the style of a model's calls: the one named, else what its chat template shows; ArgumentError where it shows none."""
    if "tools" not in template:
        raise ArgumentError(
            "The chat template of this model does not show tools to it: the model was not made for them. Start the server with another "
            "template."
        )
    name = name or next((style for style, sign in _SIGNS if sign in template), None)
    if name is None:
        raise ArgumentError(
            f"The chat template of this model does not tell how it writes calls; start the server with tool_style {' or '.join(STYLES)}."
        )
    return STYLES[name]


@dataclass(frozen=True)
class Tool:
    """A function that a model may call."""

    name: str
    description: str | None = None
    parameters: Any = None  # a JSON schema
    strict: bool = False

    @property
    def shown(self) -> dict[str, Any]:
        """Return the tool as chat templates know it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = {"type": "object", "properties": {}} if self.parameters is None else self.parameters
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Toolbox:
    """The tools of a request. choice: "auto", "required", or the name of the one that must be called."""

    tools: tuple[Tool, ...]
    choice: str = "auto"
    is_named: bool = False
    parallel: bool = True

    def format(self, style: Style) -> Format | None:
        """Return the grammar of answers: calls alone where one is required; text and calls where a tool is strict; else None."""
        forced = self.is_named or self.choice == "required"
        tools = [t for t in self.tools if t.name == self.choice] if self.is_named else self.tools
        if not forced and not any(t.strict for t in tools):
            return None
        rules = ["%llguidance {}", _start(style, forced, self.parallel and not self.is_named)]
        rules += [f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}"]
        for i, tool in enumerate(tools):
            head = f'{{"name": {json.dumps(tool.name)}, "{style.key}": '
            head, tail = (f"\n{head}", f"}}\n{style.ends}") if style.begins else (head, "}")
            schema = tool.parameters if forced or tool.strict else None
            schema = {"type": "object"} if schema is None else schema
            rules.append(f"call_{i}: {json.dumps(head)} args_{i} {json.dumps(tail)}")
            rules.append(f"args_{i}: %json {json.dumps(_with_options(schema))}")
        return Format("grammar", "\n".join(rules) + "\n")


def _start(style: Style, forced: bool, several: bool) -> str:
    """Return the first rules of a grammar: what stands before, between and after calls."""
    if not style.begins:
        many = 'start: "[" call (", " call)* "]"' if style.name == "mistral" else 'start: call (";" call)*'
        one = 'start: "[" call "]"' if style.name == "mistral" else "start: call"
        rule = many if several else one
        return rule if forced else f"{rule} | TEXT\nTEXT: /[^{{\\[](.|\\n)*/"
    begins = json.dumps(style.begins)
    if forced:
        return f"start: {begins} call" + (f' ("\\n" {begins} call)*' if several else "")
    return f"start: (begun call){'*' if several else '?'} TEXT\nbegun[lazy]: TEXT {begins}\nTEXT: /(.|\\n)*/"


def _with_options(schema: Any) -> Any:
    return {**schema, "x-guidance": JSON_OPTIONS} if isinstance(schema, dict) else schema


# ---- calls in a text


@dataclass
class CallPart:
    """Some of a call: its number in the answer, its id and name where it begins, and more text of its arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass
class Parts:
    """Content and parts of calls that were read from some text."""

    text: str = ""
    calls: list[CallPart] = field(default_factory=list)


class _Value:
    """The end of a JSON value in a text that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = self._escaped = self._opened = False

    def length(self, text: str) -> int | None:
        """Return how much of this text belongs to the value; None for all of it, and more may come."""
        for i, c in enumerate(text):
            if self._quoted:
                if self._escaped:
                    self._escaped = False
                elif c == "\\":
                    self._escaped = True
                elif c == '"':
                    self._quoted = False
            elif c == '"':
                self._quoted = True
            elif c in "{[":
                self._depth, self._opened = self._depth + 1, True
            elif c in "}]" and self._depth:
                self._depth -= 1
            elif c in "},]" and not self._depth:
                return i
            if self._opened and not self._depth and not self._quoted:
                return i + 1
        return None


class CallReader:
    """Content and calls of one answer, as its text comes. Text that is no call after all is content."""

    def __init__(self, style: Style, names: Sequence[str]) -> None:
        self._style, self._names = style, frozenset(names)
        self._state = self._outside if style.begins else self._bare
        self._held = ""  # text that was not given out yet
        self._value = _Value()
        self.count = 0  # of calls so far

    def push(self, text: str) -> Parts:
        """Return what is certain now."""
        self._held += text
        parts = Parts()
        while self._state(parts):
            pass
        return parts

    def flush(self) -> Parts:
        """Return the rest, when no more text comes."""
        parts = self._whole(self._held) if self._state == self._head else None
        if parts is None:
            is_text = self._state in (self._outside, self._bare, self._head, self._plain)
            held = self._held if is_text else ""
            begun = self._style.begins if self._state == self._head else ""
            parts = Parts("" if self.count and not held.strip(_BETWEEN) else self._opening + begun + held)
        self._held = ""
        return parts

    # The states: each takes what it can from the held text, and returns whether another may go on.

    def _outside(self, parts: Parts) -> bool:
        """Take content until a call begins. Space before a call is not given out, so the last of it is held."""
        text, begins = self._held, self._style.begins
        start = text.find(begins)
        if start >= 0:
            parts.text += text[:start].rstrip() if not text[:start].isspace() else ""
            self._held, self._state = text[start + len(begins) :], self._head
            return True
        certain = len(text) - next(
            (n for n in range(min(len(begins) - 1, len(text)), 0, -1) if begins.startswith(text[-n:])), 0
        )
        certain = len(text[:certain].rstrip())
        parts.text, self._held = parts.text + text[:certain], text[certain:]
        return False

    def _bare(self, parts: Parts) -> bool:
        """Take the beginning of an answer, or what follows a call, of a style without markers."""
        text = self._held.lstrip(_BETWEEN + "[" if not self.count or self._style.name == "mistral" else _BETWEEN)
        if not text:
            return False
        if text[0] == "{":
            self._opening, self._held = self._held[: len(self._held) - len(text)], text
            self._state = self._head
        else:
            self._state = self._plain
        return True

    _opening = ""  # what stood before a call of such a style, to be given out if it is none

    def _plain(self, parts: Parts) -> bool:
        parts.text, self._held = parts.text + self._held, ""
        return False

    def _head(self, parts: Parts) -> bool:
        """Take the name of a call. One whose keys come in another order is read when it is whole."""
        match = _HEAD.match(self._held)
        if match is not None and match.end() < len(self._held):
            name = loaded(match[1])
            if isinstance(name, str) and (self._style.begins or name in self._names):
                parts.calls.append(self._begin(name))
                self._held, self._value, self._state = self._held[match.end() :], _Value(), self._arguments
                return True
        end = self._held.find(self._style.ends) if self._style.ends else -1
        if end < 0:
            return False
        whole = self._whole(self._held[:end])
        if whole is None:  # no call after all
            parts.text += self._style.begins + self._held[: end + len(self._style.ends)]
        else:
            parts.calls += whole.calls
        self._held, self._state = self._held[end + len(self._style.ends) :], self._outside
        return True

    def _whole(self, text: str) -> Parts | None:
        """Return the call in the text of its JSON; None where it is none."""
        value = loaded(text.strip().rstrip("]").strip() if not self._style.begins else text)
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        if not self._style.begins and value["name"] not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        part = self._begin(value["name"])
        part.arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return Parts("", [part])

    def _begin(self, name: str) -> CallPart:
        self.count += 1
        return CallPart(self.count - 1, f"call_{uuid.uuid4().hex[:24]}", name)

    def _arguments(self, parts: Parts) -> bool:
        length = self._value.length(self._held)
        text = (
            self._held[:length].rstrip() if length is not None and self._held[:1] not in "{[" else self._held[:length]
        )
        self._held = "" if length is None else self._held[length:]
        if text:
            if parts.calls and parts.calls[-1].index == self.count - 1:
                parts.calls[-1].arguments += text
            else:
                parts.calls.append(CallPart(self.count - 1, arguments=text))
        if length is None:
            return False
        self._state = self._tail
        return True

    def _tail(self, parts: Parts) -> bool:
        """Skip what closes a call."""
        closing = self._style.ends or "}"
        end = self._held.find(closing)
        if end < 0:
            self._held = self._held[-len(closing) :]
            return False
        self._held, self._opening = self._held[end + len(closing) :], ""
        self._state = self._outside if self._style.begins else self._bare
        return True


def loaded(text: str) -> Any:
    """Return the value of a JSON text; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None

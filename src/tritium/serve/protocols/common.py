"""The types that all protocols share: a checked request, parts of answers as they come, whole answers, and errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tritium.escape import visible
from tritium.models.sampling import Logprobs, Sampler
from tritium.models.text.tokenizer import Tokenizer
from tritium.serve.protocols.formats import NamedFormat
from tritium.serve.protocols.tools import CallPart, Toolbox
from tritium.serve.scheduler import Usage

MOST_MESSAGE = 2000  # characters of an error


class ProtocolError(Exception):
    """A request that gets an error for an answer: its HTTP status, and what OpenAI's error object holds."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        # A message may quote what a client, a file or a template wrote; the reader may be a terminal or a log.
        message, param = visible(str(self), MOST_MESSAGE), self.param and visible(self.param)
        return {"error": {"message": message, "type": kind(self.status), "param": param, "code": self.code}}


def kind(status: int) -> str:
    """Return the type OpenAI gives errors of a status."""
    named = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return named.get(status, "invalid_request_error" if status < 500 else "server_error")


@dataclass(frozen=True)
class Query:
    """A completion or chat request, checked. `logprobs` is how many alternatives to tell beside each token."""

    chat: bool
    model: str | None
    prompts: tuple[str | tuple[int, ...], ...]
    messages: tuple[dict[str, Any], ...]
    sampler: Sampler
    max_tokens: int | None
    n: int
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    logprobs: int | None
    echo: bool = False
    form: NamedFormat | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] | None = None
    adds_bos: bool = True
    template_values: Mapping[str, Any] = field(default_factory=dict)
    toolbox: Toolbox | None = None
    body_fields: Mapping[str, Any] = field(default_factory=dict)  # fields of the body that an answer repeats


# ---- answers


@dataclass(frozen=True)
class Part:
    """New content of one answer since the last part. `finish` is None while more is to come, else that of
    `scheduler.Event`; `stop` is the stop string that ended it."""

    text: str
    calls: tuple[CallPart, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    finish: str | None = None
    usage: Usage = field(default_factory=Usage)
    stop: str | None = None


@dataclass
class Call:
    """A whole tool call."""

    id: str
    name: str
    arguments: str


class Reply:
    """One whole answer: its parts together."""

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self.text, self.finish, self.usage = "", "stop", Usage()
        self.stop: str | None = None
        self.calls: list[Call] = []
        self.logprobs: list[Logprobs] = []
        for part in parts:
            self.add(part)

    def add(self, part: Part) -> None:
        """Add the next part."""
        self.text += part.text
        self.logprobs += part.logprobs
        self.usage = part.usage
        self.finish, self.stop = part.finish or self.finish, part.stop or self.stop
        for call in part.calls:
            if call.name is not None:
                self.calls.append(Call(call.id or "", call.name, ""))
            self.calls[call.index].arguments += call.arguments


@dataclass(frozen=True)
class Labels:
    """The id, creation time, model and tokenizer that all objects of one answer share."""

    id: str  # without the prefix that says what it is
    created: int
    model: str
    tokenizer: Tokenizer


class Writer(Protocol):
    """The events of one streamed answer, or of several."""

    def begin(self, count: int) -> list[bytes]:
        """Return what comes before all parts of `count` answers."""

    def part(self, index: int, part: Part) -> list[bytes]:
        """Return the events of a part of an answer."""

    def end(self, usages: Sequence[Usage]) -> list[bytes]:
        """Return what comes after all parts."""


class Dialect(Protocol):
    """A protocol: bodies to requests, answers to JSON."""

    def read(self, body: bytes, *, context: int | None = None, choices: int | None = None) -> Query:
        """Return the request in a body; ProtocolError names the field at fault."""

    def whole(self, query: Query, labels: Labels, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return the answer when all of it is there."""

    def writer(self, query: Query, labels: Labels) -> Writer:
        """Return what writes the answer as it comes."""

    def error(self, error: ProtocolError) -> dict[str, Any]:
        """Return the body of an error."""

    def failed(self, error: ProtocolError) -> bytes:
        """Return the event of an error in a stream."""


def sse(value: dict[str, Any] | str, event: str | None = None) -> bytes:
    """Return one event of a stream."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return (f"event: {event}\n" if event else "").encode() + f"data: {text}\n\n".encode()

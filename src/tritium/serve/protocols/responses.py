"""OpenAI's Responses API as a chat without memory: its items to messages, and answers to items, whole or streamed.

Nothing is kept between requests: a client sends the items of earlier responses back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tritium.models.sampling import Sampler
from tritium.serve.protocols import openai
from tritium.serve.protocols.checks import flag, number, read_json, string, text, value, whole, wrong
from tritium.serve.protocols.common import Call, Labels, Part, ProtocolError, Query, Reply, sse
from tritium.serve.protocols.fields import FieldError, Fields, Refusal
from tritium.serve.protocols.formats import NamedFormat, make
from tritium.serve.protocols.tools import MOST_TOOLS, Tool
from tritium.serve.scheduler import Usage

STATELESS = "responses are not kept; send the earlier items in input"
FIELDS = Fields(
    (
        "model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "stream", "tools", "tool_choice",
        "parallel_tool_calls", "text", "metadata", "top_logprobs",
    ),
    (
        "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "include", "reasoning", "client_metadata",
    ),
    {
        "store": Refusal(STATELESS, (False,)),
        "previous_response_id": Refusal(STATELESS),
        "conversation": Refusal(STATELESS),
        "background": Refusal("a response is given while it is waited for", (False,)),
        "prompt": Refusal("prompts are not kept here"),
        "truncation": Refusal("input is read whole or refused", ("disabled",)),
        "service_tier": Refusal("all requests are served alike, first come, first served", ("auto", "default")),
        "max_tool_calls": Refusal("tools are called by the client"),
        "stream_options": Refusal("events are not padded", ({}, {"include_obfuscation": False})),
        "context_management": Refusal("input is read whole or refused", ([],)),
    },
    {
        "messages": "is for /v1/chat/completions; /v1/responses takes input",
        "max_tokens": "is for /v1/chat/completions; /v1/responses takes max_output_tokens",
        "response_format": "is for /v1/chat/completions; /v1/responses takes text.format",
    },
)  # fmt: skip
TEXT = Fields(("format",), refused={"verbosity": Refusal("set max_output_tokens or ask in the input", ("medium",))})
FORMAT = Fields(("type", "schema"), ("name", "description", "strict"))
MESSAGE = Fields(("type", "role", "content"), ("id", "status", "phase"))
PART = Fields(("type", "text"), ("annotations", "logprobs"))
CALL = Fields(("type", "call_id", "name", "arguments"), ("id", "status"))
OUTPUT = Fields(("type", "call_id", "output"), ("id", "status"))
TOOL = Fields(("type", "name", "description", "parameters", "strict"))
TEXTS = ("input_text", "output_text", "text")


# ---- requests


def items(v: Any) -> tuple[dict[str, Any], ...]:
    """Check the input: a text, or items that become the messages of a chat."""
    if isinstance(v, str):
        return ({"role": "user", "content": string(v)},)
    if not isinstance(v, list) or not v:
        raise ValueError("a string or a list of items, not empty")
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(v):
        where = f"input[{i}]"
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if not isinstance(kind, str) or kind not in ITEMS:
            raise wrong(f"{where}.type", f"one of {', '.join(ITEMS)}")
        message = ITEMS[kind](item, where)
        # Calls of one turn are items of their own here, and one message in a chat.
        if kind == "function_call" and messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
        elif message:
            messages.append(message)
    if not messages:
        raise ValueError("a list with at least one message")
    return tuple(messages)


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    fields = MESSAGE.select(item, f"{where}.")
    role = fields.get("role")
    if not isinstance(role, str) or role not in openai.ROLES or role == "tool":
        raise wrong(f"{where}.role", "one of system, developer, user, assistant")
    return {"role": openai.ROLES[role], "content": content(fields.get("content"), f"{where}.content")}


def content(v: Any, where: str) -> str:
    """Check text, or a list of parts that are all text."""
    return openai.content(v, where, PART, TEXTS)


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    fields = CALL.select(item, f"{where}.")
    call = openai.shown_call(fields.get("call_id"), fields.get("name"), fields.get("arguments", "{}"), where)
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _output(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    fields = OUTPUT.select(item, f"{where}.")
    result = {"role": "tool", "content": content(fields.get("output"), f"{where}.output")}
    return result | {"tool_call_id": text(fields.get("call_id"), f"{where}.call_id")}


def _reasoning(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Drop earlier reasoning, as chat templates do."""
    return {}


ITEMS: dict[str, Callable[[Mapping[str, Any], str], dict[str, Any]]] = {
    "message": _message, "function_call": _call, "function_call_output": _output, "reasoning": _reasoning,
}  # fmt: skip


def tools(v: Any) -> tuple[Tool, ...]:
    """Check the tools."""
    if not isinstance(v, list) or len(v) > MOST_TOOLS:
        raise ValueError(f"a list of at most {MOST_TOOLS} tools")
    toolset = []
    for i, entry in enumerate(v):
        where = f"tools[{i}]"
        if not isinstance(entry, dict) or entry.get("type") != "function":
            raise wrong(f"{where}.type", "function; there are no other tools here")
        toolset.append(openai.make_tool(TOOL.select(entry, f"{where}."), where))
    return tuple(toolset)


def text_format(v: Any) -> NamedFormat | None:
    """Check text.format."""
    if not isinstance(v, dict):
        raise ValueError('an object such as {"format": {"type": "text"}}')
    form = TEXT.select(v, "text.").get("format", {"type": "text"})
    if not isinstance(form, dict) or form.get("type") not in ("text", "json_object", "json_schema"):
        raise wrong("text.format.type", "text, json_object or json_schema")
    fields = FORMAT.select(form, "text.format.")
    if fields["type"] == "text":
        return None
    if fields["type"] == "json_object":
        return make("text.format", schema={"type": "object"})
    if "schema" not in fields:
        raise wrong("text.format.schema", "a JSON schema")
    return make("text.format.schema", schema=fields["schema"])


def _metadata(v: Any) -> dict[str, Any]:
    if not isinstance(v, dict):
        raise ValueError("an object")
    return v


CHECKS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "model": (string, None),
    "input": (items, None),
    "instructions": (string, None),
    "max_output_tokens": (whole(1, 1 << 31), None),
    "temperature": (number(0, 2), 1.0),
    "top_p": (number(0, 1), 1.0),
    "stream": (flag, False),
    "tools": (tools, ()),
    "tool_choice": (openai.tool_choice, None),
    "parallel_tool_calls": (flag, True),
    "text": (text_format, None),
    "metadata": (_metadata, None),
    "top_logprobs": (whole(0, openai.MOST_LOGPROBS), None),
}
REPEATED = (
    "instructions",
    "max_output_tokens",
    "temperature",
    "top_p",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "metadata",
)


class Responses:
    """/v1/responses."""

    def read(self, body: bytes, *, context: int | None = None, choices: int | None = None) -> Query:
        """Return the request in a body; ProtocolError names the field at fault."""
        sent = read_json(body)
        try:
            fields = FIELDS.select(sent)
            f = {name: value(fields, name, *row) for name, row in CHECKS.items()}
            if f["input"] is None:
                raise FieldError("input", "input is missing.", "missing_required_parameter")
            box = openai.toolbox(f["tools"], f["tool_choice"] or "auto", f["parallel_tool_calls"])
            if box is not None and f["text"] is not None:
                raise FieldError("text", "text.format and tools were given: leave out one, or send tool_choice none.")
        except FieldError as e:
            raise ProtocolError(400, str(e), param=e.param, code=e.code) from None
        first = () if f["instructions"] is None else ({"role": "system", "content": f["instructions"]},)
        return Query(
            chat=True, model=f["model"], prompts=(), messages=(*first, *f["input"]),
            sampler=Sampler(temperature=f["temperature"], top_p=f["top_p"]), max_tokens=f["max_output_tokens"], n=1, stop=(),
            stream=f["stream"], include_usage=True, logprobs=f["top_logprobs"], form=f["text"], toolbox=box,
            body_fields={name: sent.get(name) for name in REPEATED},
        )  # fmt: skip

    def whole(self, query: Query, labels: Labels, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return the response."""
        (reply,) = replies
        status = _status(reply.finish)
        output = (
            []
            if reply.calls and not reply.text
            else [_message_item(labels, reply.text, status, _logprobs(query, labels, reply))]
        )
        output += [_call_item(call) for call in reply.calls]
        return _response(query, labels, status, output, reply.usage, reply.finish)

    def writer(self, query: Query, labels: Labels) -> ResponsesWriter:
        """Return what writes the response as it comes."""
        return ResponsesWriter(query, labels)

    def error(self, error: ProtocolError) -> dict[str, Any]:
        """Return the body of an error."""
        return error.body

    def failed(self, error: ProtocolError) -> bytes:
        """Return the event of an error in a stream."""
        fields = error.body["error"]
        return sse(
            {"type": "error", "code": fields["code"], "message": fields["message"], "param": fields["param"]}, "error"
        )


# ---- answers


def _status(finish: str) -> str:
    return "completed" if finish == "stop" else "incomplete"


def _logprobs(query: Query, labels: Labels, reply: Reply | Part) -> list[dict[str, Any]]:
    return openai.entries(reply.logprobs, labels.tokenizer)["content"] if query.logprobs is not None else []


def _message_item(labels: Labels, words: str, status: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    part = {"type": "output_text", "text": words, "annotations": [], "logprobs": logprobs}
    return {"id": f"msg_{labels.id}", "type": "message", "status": status, "role": "assistant", "content": [part]}


def _call_item(call: Call, status: str = "completed") -> dict[str, Any]:
    fields = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
    return {"id": f"fc_{call.id}", "type": "function_call", "status": status, **fields}


def _response(
    query: Query, labels: Labels, status: str, output: list[dict[str, Any]], usage: Usage | None, finish: str = "stop"
) -> dict[str, Any]:
    body = query.body_fields
    counts = usage and {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.reused_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    return {
        "id": f"resp_{labels.id}", "object": "response", "created_at": labels.created, "status": status, "background": False,
        "error": None, "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body["instructions"], "max_output_tokens": body["max_output_tokens"], "model": labels.model, "output": output,
        "parallel_tool_calls": body["parallel_tool_calls"] is not False, "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None}, "store": False, "temperature": query.sampler.temperature,
        "text": body["text"] or {"format": {"type": "text"}}, "tool_choice": body["tool_choice"] or "auto", "tools": body["tools"] or [],
        "top_p": query.sampler.top_p, "truncation": "disabled", "usage": counts, "user": None, "metadata": body["metadata"] or {},
    }  # fmt: skip


class ResponsesWriter:
    """The events of a streamed response."""

    def __init__(self, query: Query, labels: Labels) -> None:
        self._query, self._labels, self._reply = query, labels, Reply()
        self._count = 0  # of events
        self._output: list[dict[str, Any]] = []  # items that are whole
        self._open: Call | str | None = None  # the item that is being written: a call, or "message"

    def _event(self, kind: str, **more: Any) -> bytes:
        self._count += 1
        return sse({"type": kind, "sequence_number": self._count - 1, **more}, kind)

    def begin(self, count: int) -> list[bytes]:
        """Return the response before anything is in it."""
        empty = _response(self._query, self._labels, "in_progress", [], None)
        return [self._event(f"response.{name}", response=empty) for name in ("created", "in_progress")]

    def part(self, index: int, part: Part) -> list[bytes]:
        """Return the events of a part: of the message, and of calls."""
        self._reply.add(part)
        events = []
        if part.text or (part.finish and not self._reply.calls and not self._output):
            if self._open != "message":
                events += self._close() + self._begin_message()
            logprobs = _logprobs(self._query, self._labels, part)
            events.append(
                self._event(
                    "response.output_text.delta", **self._place(), content_index=0, delta=part.text, logprobs=logprobs
                )
            )
        for call in part.calls:
            if call.name is not None:
                events += self._close() + self._begin_call(self._reply.calls[call.index])
            if call.arguments:
                events.append(
                    self._event("response.function_call_arguments.delta", **self._place(), delta=call.arguments)
                )
        return events

    def _place(self) -> dict[str, Any]:
        item = f"fc_{self._open.id}" if isinstance(self._open, Call) else f"msg_{self._labels.id}"
        return {"item_id": item, "output_index": len(self._output)}

    def _begin_message(self) -> list[bytes]:
        self._open = "message"
        item = {**_message_item(self._labels, "", "in_progress", []), "content": []}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        added = self._event("response.output_item.added", output_index=len(self._output), item=item)
        return [added, self._event("response.content_part.added", **self._place(), content_index=0, part=part)]

    def _begin_call(self, call: Call) -> list[bytes]:
        self._open = call
        item = _call_item(Call(call.id, call.name, ""), "in_progress")
        return [self._event("response.output_item.added", output_index=len(self._output), item=item)]

    def _close(self) -> list[bytes]:
        """Return the events that end the item which is being written."""
        if self._open is None:
            return []
        place, status = self._place(), _status(self._reply.finish)
        if isinstance(self._open, Call):
            item = _call_item(self._open)
            done = [
                self._event(
                    "response.function_call_arguments.done",
                    **place,
                    name=self._open.name,
                    arguments=self._open.arguments,
                )
            ]
        else:
            item = _message_item(
                self._labels, self._reply.text, status, _logprobs(self._query, self._labels, self._reply)
            )
            (part,) = item["content"]
            done = [
                self._event(
                    "response.output_text.done", **place, content_index=0, text=part["text"], logprobs=part["logprobs"]
                )
            ]
            done.append(self._event("response.content_part.done", **place, content_index=0, part=part))
        done.append(self._event("response.output_item.done", output_index=len(self._output), item=item))
        self._output.append(item)
        self._open = None
        return done

    def end(self, usages: Sequence[Usage]) -> list[bytes]:
        """Return the whole response."""
        events, status = self._close(), _status(self._reply.finish)
        response = _response(self._query, self._labels, status, self._output, usages[0])
        return [*events, self._event(f"response.{status}", response=response)]

"""Anthropic's Messages API as a chat: its blocks to messages, and answers to blocks, whole or streamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tritium.escape import visible
from tritium.models.sampling import Sampler
from tritium.serve.protocols import openai
from tritium.serve.protocols.checks import flag, number, read_json, stops, string, text, value, whole, wrong
from tritium.serve.protocols.common import MOST_MESSAGE, Labels, Part, ProtocolError, Query, Reply, sse
from tritium.serve.protocols.fields import FieldError, Fields, Refusal
from tritium.serve.protocols.formats import NamedFormat, make
from tritium.serve.protocols.tools import MOST_TOOLS, Tool, loaded
from tritium.serve.scheduler import Usage

FIELDS = Fields(
    (
        "model", "messages", "max_tokens", "system", "stop_sequences", "stream", "temperature", "top_p", "top_k", "tools", "tool_choice",
        "output_config", "output_format",
    ),
    ("metadata", "betas", "speed", "inference_geo", "cache_control", "thinking"),
    {
        "service_tier": Refusal("all requests are served alike, first come, first served", ("auto", "standard_only")),
        "container": Refusal("tools are called by the client"),
        "mcp_servers": Refusal("tools are called by the client", ([],)),
        "context_management": Refusal("messages are read whole or refused"),
    },
)  # fmt: skip
MESSAGE = Fields(("role", "content"))
TEXT = Fields(("type", "text"), ("cache_control", "citations"))
USE = Fields(("type", "id", "name", "input"), ("cache_control", "caller"))
RESULT = Fields(("type", "tool_use_id", "content", "is_error"), ("cache_control",))
TOOL = Fields(
    ("type", "name", "description", "input_schema", "strict"),
    ("cache_control", "eager_input_streaming", "defer_loading", "allowed_callers", "input_examples"),
)
CHOICE = Fields(("type", "name", "disable_parallel_tool_use"))
OUTPUT = Fields(("format",), refused={"effort": Refusal("the effort of a model cannot be set", ("medium", "high"))})
FORMAT = Fields(("type", "schema"))
REASONS = {"stop": "end_turn", "length": "max_tokens", "context": "max_tokens"}
KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


# ---- requests


def messages(v: Any) -> tuple[dict[str, Any], ...]:
    """Check the messages; results of tools become messages of their own."""
    if not isinstance(v, list) or not v:
        raise ValueError("a list of messages, not empty")
    chat: list[dict[str, Any]] = []
    for i, message in enumerate(v):
        where = f"messages[{i}]"
        if not isinstance(message, dict):
            raise wrong(where, "an object with role and content")
        fields = MESSAGE.select(message, f"{where}.")
        if fields.get("role") not in ("user", "assistant", "system"):
            raise wrong(f"{where}.role", "user, assistant or system")
        chat += _split(fields["role"], fields.get("content"), f"{where}.content")
    return tuple(chat)


def _split(role: str, content: Any, where: str) -> list[dict[str, Any]]:
    """Return one message of blocks as messages of a chat."""
    if not isinstance(content, list):
        return [{"role": role, "content": text(content, where)}]
    texts, calls, results = [], [], []
    for i, block in enumerate(content):
        here = f"{where}[{i}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            texts.append(text(TEXT.select(block, f"{here}.").get("text"), f"{here}.text"))
        elif kind == "tool_use" and role == "assistant":
            fields = USE.select(block, f"{here}.")
            calls.append(openai.shown_call(fields.get("id"), fields.get("name"), fields.get("input", {}), here))
        elif kind == "tool_result" and role == "user":
            results.append(_result(RESULT.select(block, f"{here}."), here))
        elif kind not in (
            "thinking",
            "redacted_thinking",
        ):  # earlier thinking is not shown again, as chat templates have it
            raise wrong(
                f"{here}.type",
                "text, tool_use (of the assistant) or tool_result (of the user): this server reads text alone",
            )
    message: dict[str, Any] = {"role": role, "content": "".join(texts)}
    if calls:
        message["tool_calls"] = calls
    return [*results, *([message] if texts or calls or not results else [])]


def _result(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    content = fields.get("content", "")
    if isinstance(content, list):
        parts = [(p, f"{where}.content[{i}]") for i, p in enumerate(content)]
        if bad := [here for p, here in parts if not isinstance(p, dict) or p.get("type") != "text"]:
            raise wrong(f"{bad[0]}.type", "text: this server reads text alone")
        content = "".join(text(TEXT.select(p, f"{here}.").get("text"), f"{here}.text") for p, here in parts)
    return {
        "role": "tool", "content": text(content, f"{where}.content"), "tool_call_id": text(fields.get("tool_use_id"), f"{where}.tool_use_id")
    }  # fmt: skip


def system(v: Any) -> str:
    """Check the system prompt: a text, or blocks of text."""
    if not isinstance(v, list):
        return text(v, "system")
    if bad := [i for i, block in enumerate(v) if not isinstance(block, dict) or block.get("type") != "text"]:
        raise wrong(f"system[{bad[0]}].type", "text")
    return "\n".join(text(TEXT.select(b, f"system[{i}].").get("text"), f"system[{i}].text") for i, b in enumerate(v))


def tools(v: Any) -> tuple[Tool, ...]:
    """Check the tools."""
    if not isinstance(v, list) or len(v) > MOST_TOOLS:
        raise ValueError(f"a list of at most {MOST_TOOLS} tools")
    toolset = []
    for i, entry in enumerate(v):
        where = f"tools[{i}]"
        if not isinstance(entry, dict) or entry.get("type", "custom") not in ("custom", None):
            raise wrong(f"{where}.type", "custom: tools are called by the client")
        toolset.append(openai.make_tool(TOOL.select(entry, f"{where}."), where, "input_schema"))
    return tuple(toolset)


def tool_choice(v: Any) -> tuple[str | tuple[str], bool]:
    """Check which tool is to be called, and whether several may be."""
    names: dict[Any, str] = {"auto": "auto", "any": "required", "none": "none"}
    kind = v.get("type") if isinstance(v, dict) else None
    if kind not in (*names, "tool"):
        raise ValueError("an object whose type is auto, any, tool or none")
    fields = CHOICE.select(v, "tool_choice.")
    parallel = not value(fields, "disable_parallel_tool_use", flag, False)
    if kind == "tool":
        return (text(fields.get("name"), "tool_choice.name"),), parallel
    return names[kind], parallel


def output_format(v: Any) -> NamedFormat | None:
    """Check the format of an answer."""
    if not isinstance(v, dict) or v.get("type") != "json_schema" or "schema" not in v:
        raise ValueError('{"type": "json_schema", "schema": …}')
    return make("output_format.schema", schema=FORMAT.select(v, "output_format.")["schema"])


def output_config(v: Any) -> NamedFormat | None:
    """Check the configuration of an answer, which may have a format."""
    if not isinstance(v, dict):
        raise ValueError("an object")
    form = OUTPUT.select(v, "output_config.").get("format")
    return None if form is None else output_format(form)


CHECKS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "model": (string, None),
    "messages": (messages, None),
    "max_tokens": (whole(0, 1 << 31), None),
    "system": (system, None),
    "stop_sequences": (stops, ()),
    "stream": (flag, False),
    "temperature": (number(0, 1), 1.0),
    "top_p": (number(0, 1), 1.0),
    "top_k": (whole(0, 1 << 31), 0),
    "tools": (tools, ()),
    "tool_choice": (tool_choice, ("auto", True)),
    "output_config": (output_config, None),
    "output_format": (output_format, None),
}


class Messages:
    """/v1/messages. `counting`: the tokens of a request are counted, so it needs no max_tokens."""

    def __init__(self, counting: bool = False) -> None:
        self._counting = counting

    def read(self, body: bytes, *, context: int | None = None, choices: int | None = None) -> Query:
        """Return the request in a body; ProtocolError names the field at fault."""
        try:
            fields = FIELDS.select(read_json(body))
            f = {name: value(fields, name, *row) for name, row in CHECKS.items()}
            needed = ("messages",) if self._counting else ("messages", "max_tokens")
            if missing := [name for name in needed if f[name] is None]:
                raise FieldError(missing[0], f"{missing[0]} is missing.", "missing_required_parameter")
            choice, parallel = f["tool_choice"]
            box = openai.toolbox(f["tools"], choice, parallel)
            form = f["output_format"] or f["output_config"]
            if box is not None and form is not None:
                raise FieldError(
                    form.param, f"{form.param} and tools were given: leave out one, or send tool_choice none."
                )
        except FieldError as e:
            raise ProtocolError(400, str(e), param=e.param, code=e.code) from None
        first = () if f["system"] is None else ({"role": "system", "content": f["system"]},)
        return Query(
            chat=True, model=f["model"], prompts=(), messages=(*first, *f["messages"]),
            sampler=Sampler(temperature=f["temperature"], top_p=f["top_p"], top_k=f["top_k"]), max_tokens=f["max_tokens"], n=1,
            stop=f["stop_sequences"], stream=f["stream"], include_usage=True, logprobs=None, form=form, toolbox=box,
        )  # fmt: skip

    def whole(self, query: Query, labels: Labels, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return the answer."""
        (reply,) = replies
        content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text or not reply.calls else []
        content += [{"type": "tool_use", "id": c.id, "name": c.name, "input": _input(c.arguments)} for c in reply.calls]
        return {**_message(labels, usage_object(reply.usage)), "content": content, **_reason(reply)}

    def writer(self, query: Query, labels: Labels) -> MessagesWriter:
        """Return what writes the answer as it comes."""
        return MessagesWriter(labels)

    def error(self, error: ProtocolError) -> dict[str, Any]:
        """Return the body of an error."""
        kind = KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": visible(str(error), MOST_MESSAGE)}}

    def failed(self, error: ProtocolError) -> bytes:
        """Return the event of an error in a stream."""
        return sse(self.error(error), "error")


# ---- answers


def _input(arguments: str) -> Any:
    """Return the arguments of a call as the object they should be; what a cut-off call has of them is none."""
    parsed = loaded(arguments)
    return parsed if isinstance(parsed, dict) else {}


def _message(labels: Labels, usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{labels.id}", "type": "message", "role": "assistant", "model": labels.model, "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": usage,
    }  # fmt: skip


def _reason(reply: Reply) -> dict[str, Any]:
    reason = "stop_sequence" if reply.stop else REASONS[reply.finish]
    return {
        "stop_reason": "tool_use" if reply.calls and reply.finish == "stop" else reason,
        "stop_sequence": reply.stop,
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the usage; tokens that were reused are counted apart, as Anthropic has it."""
    return {
        "input_tokens": usage.prompt_tokens - usage.reused_tokens, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.reused_tokens, "output_tokens": usage.completion_tokens,
    }  # fmt: skip


class MessagesWriter:
    """The events of a streamed answer."""

    def __init__(self, labels: Labels) -> None:
        self._labels, self._reply = labels, Reply()
        self._index = -1  # of the block that is being written
        self._open: str | None = None
        self._begun = False

    @staticmethod
    def _event(kind: str, **more: Any) -> bytes:
        return sse({"type": kind, **more}, kind)

    def begin(self, count: int) -> list[bytes]:
        """Return nothing: the first event has the usage of the prompt."""
        return []

    def part(self, index: int, part: Part) -> list[bytes]:
        """Return the events of a part: of text, and of calls."""
        events = (
            []
            if self._begun
            else [self._event("message_start", message=_message(self._labels, usage_object(part.usage)))]
        )
        self._begun = True
        self._reply.add(part)
        if part.text:
            if self._open != "text":
                events += self._close() + self._start({"type": "text", "text": ""})
            events.append(self._delta({"type": "text_delta", "text": part.text}))
        for call in part.calls:
            if call.name is not None:
                events += self._close() + self._start(
                    {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
                )
            if call.arguments:
                events.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
        return events

    def _start(self, block: dict[str, Any]) -> list[bytes]:
        self._index, self._open = self._index + 1, block["type"]
        return [self._event("content_block_start", index=self._index, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        self._open = None
        return [self._event("content_block_stop", index=self._index)]

    def end(self, usages: Sequence[Usage]) -> list[bytes]:
        """Return why it ended, and the end."""
        delta = self._event("message_delta", delta=_reason(self._reply), usage=usage_object(usages[0]))
        return [*self._close(), delta, self._event("message_stop")]

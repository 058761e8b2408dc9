"""OpenAI's completions and chat completions: JSON to a request, and answers to JSON, whole or streamed.

Which fields there are, and which are refused, is listed in `protocols.fields`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from tritium.models.sampling import Logprobs, Sampler
from tritium.models.text.tokenizer import Tokenizer
from tritium.serve.protocols.checks import (
    biases,
    flag,
    ids,
    length,
    number,
    read_json,
    stops,
    string,
    template_values,
    text,
    token_ids,
    value,
    whole,
    wrong,
)  # fmt: skip
from tritium.serve.protocols.common import Labels, Part, ProtocolError, Query, Reply, sse
from tritium.serve.protocols.fields import (
    CALL,
    CALL_FUNCTION,
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    FUNCTION,
    MESSAGE,
    PART,
    STREAM_OPTIONS,
    TOOL,
    FieldError,
    Fields,
)  # fmt: skip
from tritium.serve.protocols.formats import READERS, only
from tritium.serve.protocols.tools import MOST_TOOLS, NAME, CallPart, Tool, Toolbox, loaded
from tritium.serve.scheduler import Usage

MOST_LOGPROBS = 20
DEFAULT_MAX_TOKENS = 16  # of a completion, as OpenAI has it; a chat answer ends by itself
FINISH = {"stop": "stop", "length": "length", "context": "length"}


def prompts(v: Any) -> tuple[str | tuple[int, ...], ...]:
    """Check the prompts of a completion."""
    if isinstance(v, str):
        return (string(v),)
    if isinstance(v, list) and v:
        if isinstance(v[0], str):
            return tuple(string(s) for s in v)
        if isinstance(v[0], int):
            return (ids(v),)
        if all(isinstance(p, list) and p for p in v):
            return tuple(ids(p) for p in v)
    raise ValueError("a string, a list of strings, a list of token ids or a list of such lists, not empty")


# ---- chats

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def messages(v: Any) -> tuple[dict[str, Any], ...]:
    """Check the messages of a chat."""
    if not isinstance(v, list) or not v:
        raise ValueError("a list of messages, not empty")
    return tuple(message(m, f"messages[{i}]") for i, m in enumerate(v))


def message(m: Any, where: str) -> dict[str, Any]:
    """Check one message; the result is what a chat template reads."""
    if not isinstance(m, dict):
        raise wrong(where, "an object with role and content")
    role = m.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong(f"{where}.role", f"one of {', '.join(ROLES)}")
    fields = MESSAGE.select(m, f"{where}.")
    result: dict[str, Any] = {"role": ROLES[role]}
    calls = fields.get("tool_calls")
    if calls and role != "assistant":
        raise FieldError(f"{where}.tool_calls", f"{where}.tool_calls is for messages of the assistant.")
    if "content" in fields or not calls:
        result["content"] = content(fields.get("content"), f"{where}.content")
    else:
        result["content"] = ""
    for name in ("name", "tool_call_id", "reasoning_content"):  # for templates that write them
        if fields.get(name):
            result[name] = text(fields[name], f"{where}.{name}")
    if calls:
        result["tool_calls"] = tool_calls(calls, f"{where}.tool_calls")
    return result


def content(v: Any, where: str, parts: Fields = PART, kinds: Sequence[str] = ("text",)) -> str:
    """Check text, or a list of parts that are all text. parts, kinds: the fields of a part, and what its type may be."""
    if not isinstance(v, list):
        return text(v, where)
    texts = []
    for i, part in enumerate(v):
        if not isinstance(part, dict) or part.get("type") not in kinds:
            needed = repr(kinds[0]) if len(kinds) == 1 else f"one of {', '.join(kinds)}"
            raise wrong(f"{where}[{i}].type", f"{needed}: this server reads text alone")
        texts.append(text(parts.select(part, f"{where}[{i}].").get("text"), f"{where}[{i}].text"))
    return "".join(texts)


def tool_calls(v: Any, where: str) -> list[dict[str, Any]]:
    """Check the calls in a message of the assistant. Templates read arguments as an object, so their text is parsed."""
    if not isinstance(v, list):
        raise wrong(where, "a list of tool calls")
    calls = []
    for i, call in enumerate(v):
        here = f"{where}[{i}]"
        if (
            not isinstance(call, dict)
            or call.get("type", "function") != "function"
            or not isinstance(call.get("function"), dict)
        ):
            raise wrong(here, "an object with type function and a function")
        fields = CALL.select(call, f"{here}.")
        function = CALL_FUNCTION.select(fields["function"], f"{here}.function.")
        calls.append(
            shown_call(fields.get("id"), function.get("name"), function.get("arguments", "{}"), f"{here}.function")
        )
    return calls


def shown_call(id_: Any, name: Any, arguments: Any, where: str) -> dict[str, Any]:
    """Return a call of an earlier answer as chat templates know it."""
    parsed = loaded(text(arguments, f"{where}.arguments")) if isinstance(arguments, str) else arguments
    if not isinstance(parsed, dict):
        raise wrong(f"{where}.arguments", "the text of a JSON object")
    function = {"name": text(name, f"{where}.name"), "arguments": parsed}
    return ({} if id_ is None else {"id": text(id_, f"{where}.id")}) | {"type": "function", "function": function}


def tools(v: Any) -> tuple[Tool, ...]:
    """Check the tools of a chat."""
    if not isinstance(v, list) or len(v) > MOST_TOOLS:
        raise ValueError(f"a list of at most {MOST_TOOLS} tools")
    toolset = []
    for i, entry in enumerate(v):
        where = f"tools[{i}]"
        if (
            not isinstance(entry, dict)
            or entry.get("type") != "function"
            or not isinstance(entry.get("function"), dict)
        ):
            raise wrong(where, "an object with type function and a function; there are no other tools here")
        function = FUNCTION.select(TOOL.select(entry, f"{where}.")["function"], f"{where}.function.")
        toolset.append(make_tool(function, f"{where}.function"))
    return tuple(toolset)


def make_tool(fields: Mapping[str, Any], where: str, schema: str = "parameters") -> Tool:
    """Check one tool, whose JSON schema is in the field `schema`."""
    name, parameters = fields.get("name"), fields.get(schema)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise wrong(f"{where}.name", "1 to 64 letters, digits, underscores, dots and dashes")
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong(f"{where}.{schema}", "a JSON schema: an object")
    described = fields.get("description")
    strict = fields.get("strict", False)
    if not isinstance(strict, bool):
        raise wrong(f"{where}.strict", "true or false")
    return Tool(name, None if described is None else text(described, f"{where}.description"), parameters, strict)


def tool_choice(v: Any) -> str | tuple[str]:
    """Check which tool is to be called: none, auto, required, or a name in a tuple."""
    if isinstance(v, dict) and v.get("type") == "function":
        function = v.get("function", v)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            return (name,)
    if isinstance(v, str) and v in ("none", "auto", "required"):
        return v
    raise ValueError('"none", "auto", "required" or {"type": "function", "function": {"name": …}}')


def toolbox(offered: tuple[Tool, ...], choice: str | tuple[str], parallel: bool) -> Toolbox | None:
    """Return the tools of a request as a whole; None where the model is not to call any."""
    if isinstance(choice, tuple) and choice[0] not in [t.name for t in offered]:
        raise FieldError("tool_choice", f"tool_choice names {choice[0]!r}, which is not among the tools.")
    if choice == "required" and not offered:
        raise FieldError("tool_choice", "tool_choice is required, but there are no tools.")
    if not offered or choice == "none":
        return None
    if isinstance(choice, tuple):
        return Toolbox(offered, choice[0], is_named=True, parallel=False)
    return Toolbox(offered, choice, parallel=parallel)


# ---- requests


def usage_wanted(v: Any) -> bool:
    if not isinstance(v, dict):
        raise ValueError('an object such as {"include_usage": true}')
    return flag(STREAM_OPTIONS.select(v, "stream_options.").get("include_usage", False))


SAMPLER = {  # field: (check, what it is when absent)
    "temperature": (number(0, 2), 1.0),
    "top_p": (number(0, 1), 1.0),
    "presence_penalty": (number(-2, 2), 0.0),
    "frequency_penalty": (number(-2, 2), 0.0),
    "logit_bias": (biases, None),
    "seed": (whole(-(1 << 63), (1 << 63) - 1), None),
    # Not OpenAI's, but common among local servers:
    "top_k": (whole(0, 1 << 31), 0),
    "min_p": (number(0, 1), 0.0),
    "typical_p": (number(0, 1), 1.0),
    "repetition_penalty": (number(0.01, 100), 1.0),
}
COMMON = {
    "model": (string, None),
    "n": (whole(1, 128), 1),
    "stop": (stops, ()),
    "stream": (flag, False),
    "stream_options": (usage_wanted, False),
    "max_tokens": (length, None),
    "min_tokens": (whole(0, 1 << 31), 0),
    "stop_token_ids": (token_ids, ()),
    "allowed_token_ids": (token_ids, None),
    "ignore_eos": (flag, False),
    "repeat_last_n": (whole(-1, 1 << 31), None),
    **{name: (read, None) for name, read in READERS.items()},
}
COMPLETION = {
    "prompt": (prompts, None),
    "logprobs": (whole(0, MOST_LOGPROBS), None),
    "echo": (flag, False),
    "add_special_tokens": (flag, True),
}
CHAT = {
    "messages": (messages, None),
    "max_completion_tokens": (whole(1, 1 << 31), None),
    "logprobs": (flag, False),
    "top_logprobs": (whole(0, MOST_LOGPROBS), None),
    "chat_template_kwargs": (template_values, None),
    "tools": (tools, ()),
    "tool_choice": (tool_choice, None),
    "parallel_tool_calls": (flag, True),
}


def read_request(body: bytes, *, chat: bool, context: int | None = None, choices: int | None = None) -> Query:
    """Return a body as a request; ProtocolError (400) names the field at fault.

    Lists of more than `context` token ids and of more than `choices` prompts are refused by their length, before any
    entry is looked at.
    """
    sent = read_json(body)
    if not chat:
        _check_lengths(sent.get("prompt"), context, choices)
    checks: dict[str, tuple[Callable[[Any], Any], Any]] = {**SAMPLER, **COMMON, **(CHAT if chat else COMPLETION)}
    try:
        fields = (CHAT_FIELDS if chat else COMPLETION_FIELDS).select(sent)
        f = {name: value(fields, name, *row) for name, row in checks.items()}
        form = only(f)
        box = toolbox(f["tools"], f["tool_choice"] or "auto", f["parallel_tool_calls"]) if chat else None
        if box is not None and form is not None:
            raise FieldError(
                form.param,
                f"{form.param} and tools were given: an answer cannot be both; leave out one, or send tool_choice none.",
            )
    except FieldError as e:
        raise ProtocolError(400, str(e), param=e.param, code=e.code) from None
    needed = "messages" if chat else "prompt"
    if f[needed] is None:
        raise ProtocolError(400, f"{needed} is missing.", param=needed, code="missing_required_parameter")
    _check_together(f, chat)
    logprobs = (f["top_logprobs"] or 0 if f["logprobs"] else None) if chat else f["logprobs"]
    most = f["max_tokens"] if not chat or f["max_completion_tokens"] is None else f["max_completion_tokens"]
    most = DEFAULT_MAX_TOKENS if not chat and "max_tokens" not in fields else most
    if most is not None and f["min_tokens"] > most:
        message = f"min_tokens is {f['min_tokens']}, more than max_tokens ({most})."
        raise ProtocolError(400, message, param="min_tokens", code="invalid_value")
    return Query(
        chat=chat,
        model=f["model"],
        prompts=() if chat else f["prompt"],
        messages=f["messages"] if chat else (),
        sampler=_sampler(f),
        max_tokens=most,
        n=f["n"],
        stop=f["stop"],
        stream=f["stream"],
        include_usage=f["stream_options"],
        logprobs=logprobs,
        echo=not chat and f["echo"],
        form=form,
        min_tokens=f["min_tokens"],
        stop_token_ids=f["stop_token_ids"],
        ignore_eos=f["ignore_eos"],
        allowed_token_ids=f["allowed_token_ids"],
        adds_bos=chat or f["add_special_tokens"],
        template_values=(chat and f["chat_template_kwargs"]) or {},
        toolbox=box,
    )


def _sampler(f: Mapping[str, Any]) -> Sampler:
    """Return the sampler of a request. llama.cpp's repeat_last_n looks back at all tokens for -1, and at none for 0."""
    options = {name: f[name] for name in SAMPLER}
    window = f["repeat_last_n"]
    if window == 0:
        options["repetition_penalty"] = 1.0
    elif window is not None:
        options["repetition_window"] = max(window, 0)
    return Sampler(**options)


def _check_lengths(prompt: Any, context: int | None, choices: int | None) -> None:
    if not isinstance(prompt, list) or not prompt:
        return
    several = not isinstance(prompt[0], int)
    if several and choices is not None and len(prompt) > choices:
        raise too_many_choices(len(prompt), choices)
    longest = max((len(p) for p in prompt if isinstance(p, list)), default=0) if several else len(prompt)
    if context is not None and longest > context:
        message = (
            f"The prompt has {longest} tokens; the context holds {context}. Leave out {longest - context} or more."
        )
        raise ProtocolError(400, message, code="context_length_exceeded")


def too_many_choices(count: int, most: int) -> ProtocolError:
    """Return the error for more answers than a request may have."""
    message = f"n times the prompts is {count}; this server gives at most {most} answers to a request."
    return ProtocolError(400, message, param="n", code="invalid_value")


def _check_together(f: Mapping[str, Any], chat: bool) -> None:
    if chat and f["top_logprobs"] is not None and not f["logprobs"]:
        raise ProtocolError(400, "top_logprobs needs logprobs: true.", param="top_logprobs", code="invalid_value")


# ---- answers


class Completions:
    """/v1/completions."""

    def read(self, body: bytes, *, context: int | None = None, choices: int | None = None) -> Query:
        """Return the request in a body; ProtocolError names the field at fault."""
        return read_request(body, chat=False, context=context, choices=choices)

    def whole(self, query: Query, labels: Labels, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return all answers."""
        choices = []
        for i, reply in enumerate(replies):
            logprobs = None if query.logprobs is None else columns(reply.logprobs, labels.tokenizer)
            choices.append(
                {"index": i, "text": reply.text, "logprobs": logprobs, "finish_reason": FINISH[reply.finish]}
            )
        return self._object(labels, choices, usage=usage_object([r.usage for r in replies], n=query.n))

    def writer(self, query: Query, labels: Labels) -> CompletionsWriter:
        """Return what writes the answer as it comes."""
        return CompletionsWriter(query, labels)

    def error(self, error: ProtocolError) -> dict[str, Any]:
        """Return the body of an error."""
        return error.body

    def failed(self, error: ProtocolError) -> bytes:
        """Return the event of an error in a stream."""
        return sse(error.body)

    @staticmethod
    def _object(labels: Labels, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        kind = {
            "id": f"cmpl-{labels.id}",
            "object": "text_completion",
            "created": labels.created,
            "model": labels.model,
        }
        return {**kind, "choices": choices, **more}


class CompletionsWriter(Completions):
    """The events of streamed completions."""

    def __init__(self, query: Query, labels: Labels) -> None:
        self._query, self._labels = query, labels
        self._more: dict[str, Any] = {"usage": None} if query.include_usage else {}
        self._offsets = dict[int, int]()  # characters of the tokens told so far, by answer

    def begin(self, count: int) -> list[bytes]:
        """Return nothing: the first event is text."""
        return []

    def part(self, index: int, part: Part) -> list[bytes]:
        """Return the event of a part of an answer."""
        logprobs = None
        if self._query.logprobs is not None:
            offset = self._offsets.get(index, 0)
            logprobs = columns(part.logprobs, self._labels.tokenizer, offset)
            self._offsets[index] = offset + sum(map(len, logprobs["tokens"]))
        finish = FINISH[part.finish] if part.finish else None
        choice = {"index": index, "text": part.text, "logprobs": logprobs, "finish_reason": finish}
        return [sse(self._object(self._labels, [choice], **self._more))]

    def end(self, usages: Sequence[Usage]) -> list[bytes]:
        """Return the usage where it was asked for, and the end mark."""
        total = usage_object(usages, n=self._query.n) if self._query.include_usage else None
        return [*([sse(self._object(self._labels, [], usage=total))] if total else []), sse("[DONE]")]


class Chat:
    """/v1/chat/completions."""

    def read(self, body: bytes, *, context: int | None = None, choices: int | None = None) -> Query:
        """Return the request in a body; ProtocolError names the field at fault."""
        return read_request(body, chat=True, context=context, choices=choices)

    def whole(self, query: Query, labels: Labels, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return all answers."""
        choices = []
        for i, reply in enumerate(replies):
            message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
            if reply.calls:
                message["content"] = reply.text or None
                message["tool_calls"] = [
                    {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                    for c in reply.calls
                ]
            logprobs = None if query.logprobs is None else entries(reply.logprobs, labels.tokenizer)
            finish = finish_reason(reply.finish, bool(reply.calls))
            choices.append({"index": i, "message": message, "logprobs": logprobs, "finish_reason": finish})
        usage = usage_object([r.usage for r in replies], n=query.n)
        return self._object("chat.completion", labels, choices, usage=usage)

    def writer(self, query: Query, labels: Labels) -> ChatWriter:
        """Return what writes the answer as it comes."""
        return ChatWriter(query, labels)

    def error(self, error: ProtocolError) -> dict[str, Any]:
        """Return the body of an error."""
        return error.body

    def failed(self, error: ProtocolError) -> bytes:
        """Return the event of an error in a stream."""
        return sse(error.body)

    @staticmethod
    def _object(kind: str, labels: Labels, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": f"chatcmpl-{labels.id}", "object": kind, "created": labels.created, "model": labels.model}
        return {**head, "choices": choices, **more}


class ChatWriter(Chat):
    """The events of a streamed chat."""

    def __init__(self, query: Query, labels: Labels) -> None:
        self._query, self._labels = query, labels
        self._more: dict[str, Any] = {"usage": None} if query.include_usage else {}
        self._called = set[int]()  # answers with calls

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return sse(self._object("chat.completion.chunk", self._labels, choices, **(self._more | more)))

    def begin(self, count: int) -> list[bytes]:
        """Return the role of each answer."""
        delta = {"role": "assistant", "content": ""}
        return [
            self._event([{"index": i, "delta": delta, "logprobs": None, "finish_reason": None}]) for i in range(count)
        ]

    def part(self, index: int, part: Part) -> list[bytes]:
        """Return the event of a part of an answer."""
        delta: dict[str, Any] = {"content": part.text} if part.text else {}
        if part.calls:
            self._called.add(index)
            delta["tool_calls"] = [self._call(c) for c in part.calls]
        logprobs = None if self._query.logprobs is None else entries(part.logprobs, self._labels.tokenizer)
        finish = finish_reason(part.finish, index in self._called) if part.finish else None
        return [self._event([{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}])]

    @staticmethod
    def _call(call: CallPart) -> dict[str, Any]:
        if call.name is None:
            return {"index": call.index, "function": {"arguments": call.arguments}}
        function = {"name": call.name, "arguments": call.arguments}
        return {"index": call.index, "id": call.id, "type": "function", "function": function}

    def end(self, usages: Sequence[Usage]) -> list[bytes]:
        """Return the usage where it was asked for, and the end mark."""
        total = usage_object(usages, n=self._query.n) if self._query.include_usage else None
        return [*([self._event([], usage=total)] if total else []), sse("[DONE]")]


def finish_reason(finish: str, called: bool) -> str:
    """Return why an answer ended, as OpenAI names it."""
    return "tool_calls" if called and finish == "stop" else FINISH[finish]


def usage_object(all_: Sequence[Usage], *, n: int = 1) -> dict[str, Any]:
    """Return sums over the answers to one request. The `n` answers to one prompt count it once, as OpenAI has it."""
    prompt_tokens, completion_tokens = sum(u.prompt_tokens for u in all_[::n]), sum(u.completion_tokens for u in all_)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(u.reused_tokens for u in all_[::n])},
    }


def entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    """Return one token of a chat with its log-probability."""
    raw = tokenizer.bytes_of(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(raw)}


def entries(logprobs: Sequence[Logprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return log-probabilities as chats have them."""
    rows = [
        {**entry(tokenizer, p.token, p.logprob), "top_logprobs": [entry(tokenizer, t, v) for t, v in p.top]}
        for p in logprobs
    ]
    return {"content": rows, "refusal": None}


def columns(logprobs: Sequence[Logprobs], tokenizer: Tokenizer, offset: int = 0) -> dict[str, Any]:
    """Return log-probabilities as completions have them, whose tokens begin `offset` characters into the text."""

    def named(token: int) -> str:
        return tokenizer.bytes_of(token).decode("utf-8", "replace")

    tokens = [named(p.token) for p in logprobs]
    offsets = list(accumulate(map(len, tokens[:-1]), initial=offset)) if tokens else []
    unknown = [math.isnan(p.logprob) for p in logprobs]  # the first token of a prompt: nothing is before it
    top = [None if u else {named(t): finite(v) for t, v in p.top} for u, p in zip(unknown, logprobs, strict=True)]
    return {
        "tokens": tokens,
        "token_logprobs": [None if u else finite(p.logprob) for u, p in zip(unknown, logprobs, strict=True)],
        "top_logprobs": top,
        "text_offset": offsets,
    }


def finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999 for what cannot happen."""
    return max(logprob, -9999.0)

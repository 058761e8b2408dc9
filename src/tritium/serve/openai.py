"""The shapes of the OpenAI protocol: JSON to a request, tokens to JSON, and what is wrong with a body.

Knows nothing of sockets, keys or threads. Which fields there are, and which are refused, is listed in `serve.fields`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tritium.escape import visible
from tritium.models.sampling import Logprobs, Sampler
from tritium.serve.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    MESSAGE,
    PART,
    STREAM_OPTIONS,
    FieldError,
)
from tritium.serve.formats import READERS, NamedFormat, only
from tritium.serve.scheduler import Usage

if TYPE_CHECKING:
    from tritium.models.text.tokenizer import Tokenizer

MOST_MESSAGE = 2000  # characters of an error
MOST_STOPS = 16
MOST_LOGPROBS = 20
MOST_TOKEN_IDS = 4096
RESERVED = {"messages", "bos_token", "eos_token", "add_generation_prompt", "tools"}  # names a template has already
DEFAULT_MAX_TOKENS = 16  # of a completion, as OpenAI has it; a chat answer ends by itself

FINISH = {"stop": "stop", "length": "length", "context": "length"}


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
    """The type OpenAI gives errors of a status."""
    named = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return named.get(status, "invalid_request_error" if status < 500 else "server_error")


@dataclass(frozen=True)
class Asked:
    """A completion or chat request, checked. `logprobs` is how many alternatives to tell beside each token."""

    chat: bool
    model: str | None
    prompts: tuple[str | tuple[int, ...], ...]
    messages: tuple[dict[str, str], ...]
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


# ---- fields: each check gives the value as we use it, or raises ValueError saying what was needed


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
    given = [v] if isinstance(v, str) else v
    if not isinstance(given, list) or len(given) > MOST_STOPS or not all(isinstance(s, str) and s for s in given):
        raise ValueError(f"a string, or a list of at most {MOST_STOPS} strings, none of them empty")
    return tuple(string(s) for s in given)


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


def prompts(v: Any) -> tuple[str | tuple[int, ...], ...]:
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


ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def messages(v: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(v, list) or not v:
        raise ValueError("a list of messages, not empty")
    return tuple(message(m, f"messages[{i}]") for i, m in enumerate(v))


def message(m: Any, where: str) -> dict[str, str]:
    if not isinstance(m, dict):
        raise _wrong(where, "an object with role and content")
    role = m.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _wrong(f"{where}.role", f"one of {', '.join(ROLES)} (tools are not supported)")
    fields = MESSAGE.select(m, f"{where}.")
    result = {"role": ROLES[role], "content": content(fields.get("content"), f"{where}.content")}
    if "name" in fields:  # for templates that write it
        result["name"] = _text(fields["name"], f"{where}.name")
    return result


def content(v: Any, where: str) -> str:
    """Text, or a list of parts that are all text."""
    if not isinstance(v, list):
        return _text(v, where)
    texts = []
    for i, part in enumerate(v):
        if not isinstance(part, dict) or part.get("type") != "text":
            raise _wrong(f"{where}[{i}].type", "'text': this server reads text alone")
        texts.append(_text(PART.select(part, f"{where}[{i}].").get("text"), f"{where}[{i}].text"))
    return "".join(texts)


def usage_wanted(v: Any) -> bool:
    if not isinstance(v, dict):
        raise ValueError('an object such as {"include_usage": true}')
    return flag(STREAM_OPTIONS.select(v, "stream_options.").get("include_usage", False))


def token_ids(v: Any) -> tuple[int, ...]:
    if not isinstance(v, list) or len(v) > MOST_TOKEN_IDS:
        raise ValueError(f"a list of at most {MOST_TOKEN_IDS} token ids")
    return ids(v)


def template_values(v: Any) -> dict[str, Any]:
    """Further names that the chat template reads, such as enable_thinking."""
    if not isinstance(v, dict) or set(v) & RESERVED:
        raise ValueError(f"an object without {', '.join(sorted(RESERVED))}")
    return v


def _text(v: Any, param: str) -> str:
    try:
        return string(v)
    except ValueError as e:
        raise _wrong(param, str(e)) from None


def _wrong(param: str, needed: str) -> FieldError:
    return FieldError(param, f"{param} must be {needed}.")


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
}


def read_json(body: bytes) -> dict[str, Any]:
    """The object in a body."""

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


def read_request(body: bytes, *, chat: bool, context: int | None = None, choices: int | None = None) -> Asked:
    """A body as a request; ProtocolError (400) names the field at fault.

    Lists of more than `context` token ids and of more than `choices` prompts are refused by their length, before any
    entry is looked at.
    """
    value = read_json(body)
    if not chat:
        _check_lengths(value.get("prompt"), context, choices)
    checks: dict[str, tuple[Callable[[Any], Any], Any]] = {**SAMPLER, **COMMON, **(CHAT if chat else COMPLETION)}
    try:
        fields = (CHAT_FIELDS if chat else COMPLETION_FIELDS).select(value)
        f = {name: _value(fields, name, *row) for name, row in checks.items()}
        form = only(f)
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
    return Asked(
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
    )


def _sampler(f: Mapping[str, Any]) -> Sampler:
    """The sampler of a request. llama.cpp's repeat_last_n looks back at all tokens for -1, and at none for 0."""
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
    """The error for more answers than a request may have."""
    message = f"n times the prompts is {count}; this server gives at most {most} answers to a request."
    return ProtocolError(400, message, param="n", code="invalid_value")


def _value(fields: Mapping[str, Any], name: str, check: Callable[[Any], Any], default: Any) -> Any:
    if name not in fields:
        return default
    try:
        return check(fields[name])
    except ValueError as e:
        raise _wrong(name, str(e)) from None


def _check_together(f: Mapping[str, Any], chat: bool) -> None:
    if chat and f["top_logprobs"] is not None and not f["logprobs"]:
        raise ProtocolError(400, "top_logprobs needs logprobs: true.", param="top_logprobs", code="invalid_value")


# ---- answers


@dataclass(frozen=True)
class Labels:
    """What every object of one answer carries."""

    id: str
    created: int
    model: str
    chat: bool

    def wrap(self, choices: list[dict[str, Any]], *, part: bool, **more: Any) -> dict[str, Any]:
        thing = ("chat.completion.chunk" if part else "chat.completion") if self.chat else "text_completion"
        return {
            "id": self.id,
            "object": thing,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }


def usage_object(all_: Sequence[Usage], *, n: int = 1) -> dict[str, Any]:
    """Sums over the answers to one request. The `n` answers to one prompt count it once, as OpenAI has it."""
    asked, made = sum(u.prompt_tokens for u in all_[::n]), sum(u.completion_tokens for u in all_)
    return {
        "prompt_tokens": asked,
        "completion_tokens": made,
        "total_tokens": asked + made,
        "prompt_tokens_details": {"cached_tokens": sum(u.reused_tokens for u in all_[::n])},
    }


def choice(chat: bool, index: int, text: str, finish: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    """One whole answer."""
    said = {"message": {"role": "assistant", "content": text, "refusal": None}} if chat else {"text": text}
    return {"index": index, **said, "logprobs": logprobs, "finish_reason": FINISH[finish]}


def delta(
    chat: bool, index: int, text: str, finish: str | None, logprobs: dict[str, Any] | None, *, first: bool = False
) -> dict[str, Any]:
    """One part of a streamed answer."""
    said: dict[str, Any] = {"text": text}
    if chat:
        said = {"delta": ({"role": "assistant"} if first else {}) | ({"content": text} if text or first else {})}
    return {"index": index, **said, "logprobs": logprobs, "finish_reason": FINISH[finish] if finish else None}


def logprobs_object(found: Sequence[Logprobs], tokenizer: Tokenizer, *, chat: bool, offset: int = 0) -> dict[str, Any]:
    """Log-probabilities as chat has them, or as completions do, whose tokens begin `offset` characters into the text."""

    def named(token: int) -> str:
        return tokenizer.bytes_of(token).decode("utf-8", "replace")

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": named(token), "logprob": finite(logprob), "bytes": list(tokenizer.bytes_of(token))}

    if chat:
        return {
            "content": [
                {**entry(p.token, p.logprob), "top_logprobs": [entry(t, v) for t, v in p.top]} for p in found
            ],
            "refusal": None,
        }  # fmt: skip
    tokens = [named(p.token) for p in found]
    offsets = list(accumulate(map(len, tokens[:-1]), initial=offset)) if tokens else []
    unknown = [math.isnan(p.logprob) for p in found]  # the first token of a prompt: nothing is before it
    top = [None if u else {named(t): finite(v) for t, v in p.top} for u, p in zip(unknown, found, strict=True)]
    return {
        "tokens": tokens,
        "token_logprobs": [None if u else finite(p.logprob) for u, p in zip(unknown, found, strict=True)],
        "top_logprobs": top,
        "text_offset": offsets,
    }


def finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999 for what cannot happen."""
    return max(logprob, -9999.0)


def sse(value: dict[str, Any] | str) -> bytes:
    """One event of a stream."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()

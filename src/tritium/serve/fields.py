"""Which fields the JSON objects of a request may have: accepted, accepted without effect, refused; all others are unknown.

Knows nothing of what accepted fields mean (serve_openai). A field that is dropped in silence gives a wrong answer that
looks right, so every field is listed here or refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

LONGEST_NAME = 64  # of an unknown field in an error; more would only cost time to compare


class FieldError(Exception):
    """A field of a request is at fault; `param` names it whole, such as `messages[0].name`."""

    def __init__(self, param: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param, self.code = param, code


@dataclass(frozen=True)
class Refusal:
    """Why a known field is not supported, and the values besides null that ask for nothing and are accepted."""

    reason: str
    neutral: tuple[Any, ...] = ()

    def allows(self, value: Any) -> bool:
        return value is None or any(_same(value, n) for n in self.neutral)

    def message(self, param: str) -> str:
        values = " or ".join(json.dumps(n) for n in self.neutral)
        return f"{param} is not supported by this server: {self.reason}. Leave it out" + (
            f", or send {values}." if values else "."
        )


@dataclass(frozen=True)
class Fields:
    """The fields of one JSON object. `elsewhere` are those of the same object in another route, and what to do."""

    accepted: tuple[str, ...]
    without_effect: tuple[str, ...] = ()
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def select(self, value: Mapping[str, Any], where: str = "") -> dict[str, Any]:
        """The accepted fields of an object that are not null; FieldError for the first that is refused or unknown."""
        for name, v in value.items():
            if name in self.accepted or name in self.without_effect:
                continue
            param = where + _shown(name)
            if name in self.refused:
                if not self.refused[name].allows(v):
                    raise FieldError(param, self.refused[name].message(param), "unsupported_parameter")
            elif name in self.elsewhere:
                if v is not None:
                    raise FieldError(param, f"{param} {self.elsewhere[name]}.", "unsupported_parameter")
            else:
                raise FieldError(param, f"Unknown parameter: {param}. {self._advice(name)}", "unknown_parameter")
        return {name: v for name, v in value.items() if v is not None and name in self.accepted}

    def _advice(self, name: str) -> str:
        known = {*self.accepted, *self.without_effect, *self.refused}
        near = get_close_matches(name[:LONGEST_NAME].lower(), sorted(known), n=1)
        return f"Did you mean {near[0]}?" if near else f"Supported here: {', '.join(sorted(self.accepted))}."


def _same(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but not true."""
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    return (numbers or type(a) is type(b)) and bool(a == b)


def _shown(name: str) -> str:
    """A name as an error can carry it: JSON allows any length, control characters and halves of characters."""
    return name if len(name) <= LONGEST_NAME and name.isprintable() else ascii(name[:LONGEST_NAME])


TOOLS = "the model is not offered tools"
FORMAT = "answers are plain text, not constrained to a schema, grammar or choice"
END = "an answer ends at the model's own end token, at a string in stop, or at max_tokens"
SAMPLING = "sampling has temperature, top_p, top_k, min_p and the penalties"
TEMPLATE = "messages are written out by the template of the model or of the server"

SAMPLER = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed",
    "top_k", "min_p", "repetition_penalty",  # not OpenAI's, but common among local servers
)  # fmt: skip
COMMON = (*SAMPLER, "model", "n", "stop", "stream", "stream_options", "max_tokens", "response_format")

# They describe the caller or the bookkeeping of OpenAI's service: no value of theirs changes an answer.
WITHOUT_EFFECT = (
    "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls",
)  # fmt: skip

REFUSED = {
    # OpenAI's.
    "tools": Refusal(TOOLS, ([],)),
    "tool_choice": Refusal(TOOLS, ("none", "auto")),
    "functions": Refusal(TOOLS, ([],)),
    "function_call": Refusal(TOOLS, ("none", "auto")),
    "modalities": Refusal("it reads and writes text alone", (["text"], [])),
    "audio": Refusal("it reads and writes text alone"),
    "prediction": Refusal("predicted outputs are not used"),
    "web_search_options": Refusal("it does not search"),
    "reasoning_effort": Refusal("the effort of a model cannot be set", ("none",)),
    "verbosity": Refusal("set max_tokens or ask in a message", ("medium",)),
    "service_tier": Refusal("all requests are served alike, first come, first served", ("auto", "default")),
    "store": Refusal("answers are not kept", (False,)),
    "suffix": Refusal("text is added at the end of a prompt only", ("",)),
    "best_of": Refusal("every answer that is generated is returned; n says how many", (1,)),
    # Those of vLLM, SGLang and llama.cpp.
    "guided_json": Refusal(FORMAT),
    "guided_regex": Refusal(FORMAT),
    "guided_choice": Refusal(FORMAT),
    "guided_grammar": Refusal(FORMAT),
    "structured_outputs": Refusal(FORMAT),
    "json_schema": Refusal(FORMAT),
    "grammar": Refusal(FORMAT, ("",)),
    "regex": Refusal(FORMAT),
    "ebnf": Refusal(FORMAT),
    "min_tokens": Refusal(END, (0,)),
    "n_predict": Refusal("the field is called max_tokens here"),
    "max_new_tokens": Refusal("the field is called max_tokens here"),
    "stop_token_ids": Refusal(END, ([],)),
    "ignore_eos": Refusal(END, (False,)),
    "include_stop_str_in_output": Refusal("a stop string is never part of the answer", (False,)),
    "skip_special_tokens": Refusal("special tokens are never part of the answer", (True,)),
    "repeat_penalty": Refusal("the field is called repetition_penalty here", (1,)),
    "typical_p": Refusal(SAMPLING, (1,)),
    "mirostat": Refusal(SAMPLING, (0,)),
    "use_beam_search": Refusal(SAMPLING, (False,)),
    "length_penalty": Refusal(SAMPLING, (1,)),
    "prompt_logprobs": Refusal("log-probabilities of a prompt are not kept"),
    "cache_prompt": Refusal("prompts always reuse what a slot holds", (True,)),
    "add_generation_prompt": Refusal(TEMPLATE, (True,)),
    "continue_final_message": Refusal(TEMPLATE, (False,)),
    "chat_template": Refusal(TEMPLATE),
    "chat_template_kwargs": Refusal(TEMPLATE, ({},)),
}

COMPLETION = ("prompt", "logprobs", "echo")
CHAT = ("messages", "max_completion_tokens", "logprobs", "top_logprobs")

COMPLETION_FIELDS = Fields(
    (*COMMON, *COMPLETION), WITHOUT_EFFECT, REFUSED,
    {
        "messages": "is for /v1/chat/completions; /v1/completions takes prompt",
        "max_completion_tokens": "is for /v1/chat/completions; /v1/completions takes max_tokens",
        "top_logprobs": "is for /v1/chat/completions; /v1/completions takes their number as logprobs",
    },
)  # fmt: skip
CHAT_FIELDS = Fields(
    (*COMMON, *CHAT), WITHOUT_EFFECT, REFUSED,
    {
        "prompt": "is for /v1/completions; /v1/chat/completions takes messages",
        "echo": "is for /v1/completions; an answer of /v1/chat/completions is the new message alone",
    },
)  # fmt: skip
STREAM_OPTIONS = Fields(
    ("include_usage",),
    refused={
        "include_obfuscation": Refusal("events are not padded", (False,)),
        "continuous_usage_stats": Refusal("usage comes with the last event", (False,)),
    },
)
RESPONSE_FORMAT = Fields(("type",))
MESSAGE = Fields(
    ("role", "content", "name"),
    ("cache_control",),
    {
        # Null or empty in every message that a client sends back as it received it.
        "refusal": Refusal("a message has text content alone"),
        "annotations": Refusal("a message has text content alone", ([],)),
        "audio": Refusal("a message has text content alone"),
        "tool_calls": Refusal(TOOLS, ([],)),
        "tool_call_id": Refusal(TOOLS),
        "function_call": Refusal(TOOLS),
        "reasoning_content": Refusal("the template is not shown earlier reasoning", ("",)),
    },
)
PART = Fields(("type", "text"), ("cache_control",))

# Every object of a request by the name its fields are shown under.
OBJECTS = {
    "stream_options.": STREAM_OPTIONS,
    "response_format.": RESPONSE_FORMAT,
    "messages[].": MESSAGE,
    "messages[].content[].": PART,
}

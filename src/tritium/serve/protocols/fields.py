"""The fields that JSON objects of a request may have: accepted, accepted without effect, refused; all others are unknown.

A field that is dropped in silence gives a wrong answer that looks right, so every field is listed here or refused by
name.
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
    """The reason why a known field is not supported, and the values besides null that ask for nothing and are accepted."""

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
    """The fields of one JSON object. `elsewhere` are those of the same object in another route, and what to do; `aliases` are
    accepted fields that mean the same as another."""

    accepted: tuple[str, ...]
    without_effect: tuple[str, ...] = ()
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def select(self, value: Mapping[str, Any], where: str = "") -> dict[str, Any]:
        """Return the accepted fields of an object that are not null, aliases under the name they stand for; FieldError for
        the first that is refused or unknown."""
        self._check(value, where)
        chosen = {name: v for name, v in value.items() if v is not None and name in self.accepted}
        for alias, name in self.aliases.items():
            if alias in chosen:
                if name in chosen:
                    raise FieldError(
                        where + alias, f"{where}{alias} and {where}{name} mean the same; send one of them."
                    )
                chosen[name] = chosen.pop(alias)
        return chosen

    def _check(self, value: Mapping[str, Any], where: str) -> None:
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

    def _advice(self, name: str) -> str:
        known = {*self.accepted, *self.without_effect, *self.refused}
        near = get_close_matches(name[:LONGEST_NAME].lower(), sorted(known), n=1)
        return f"Did you mean {near[0]}?" if near else f"Supported here: {', '.join(sorted(self.accepted))}."


def _same(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but not true."""
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    return (numbers or type(a) is type(b)) and bool(a == b)


def _shown(name: str) -> str:
    """Return a name as an error can carry it: JSON allows any length, control characters and halves of characters."""
    return name if len(name) <= LONGEST_NAME and name.isprintable() else ascii(name[:LONGEST_NAME])


TOOLS = "it was replaced by tools and tool_choice"
SAMPLING = "sampling has temperature, top_p, top_k, min_p, typical_p and the penalties"
TEMPLATE = "messages are written out by the template of the model or of the server"
WHOLE = "a prompt is read whole or refused; cut it before it is sent"
ORDER = "all requests are served alike, first come, first served"
INSIDE = "the server does not tell what happens inside the model"
FIXED = "the model is served as it was loaded"
ADAPTER = "an adapter of tritium serve --lora NAME=PATH is asked for by its name in model"

SAMPLER = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed",
    "top_k", "min_p", "typical_p", "repetition_penalty",  # not OpenAI's, but common among local servers
)  # fmt: skip
# What vLLM, SGLang and llama.cpp have besides; the formats of an answer are in `serve.formats`.
FORMATS = (
    "response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "json_schema",
    "grammar", "regex", "ebnf",
)  # fmt: skip
ENDS = ("min_tokens", "stop_token_ids", "ignore_eos", "allowed_token_ids", "repeat_last_n")
ALIASES = {"n_predict": "max_tokens", "max_new_tokens": "max_tokens", "repeat_penalty": "repetition_penalty"}
COMMON = (
    *SAMPLER, "model", "n", "stop", "stream", "stream_options", "max_tokens", *FORMATS, *ENDS, *ALIASES,
)  # fmt: skip

# They describe the caller, the bookkeeping of a service or the choice of an engine: no value of theirs changes an answer.
WITHOUT_EFFECT = (
    "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "guided_decoding_backend", "request_id", "rid", "cache_salt",
)  # fmt: skip

REFUSED = {
    # OpenAI's.
    "functions": Refusal(TOOLS, ([],)),
    "function_call": Refusal(TOOLS, ("none", "auto")),
    "modalities": Refusal("it reads and writes text alone", (["text"], [])),
    "audio": Refusal("it reads and writes text alone"),
    "prediction": Refusal("predicted outputs are not used"),
    "web_search_options": Refusal("it does not search"),
    "reasoning_effort": Refusal("the effort of a model cannot be set", ("none",)),
    "verbosity": Refusal("set max_tokens or ask in a message", ("medium",)),
    "service_tier": Refusal(ORDER, ("auto", "default")),
    "store": Refusal("answers are not kept", (False,)),
    "suffix": Refusal("text is added at the end of a prompt only", ("",)),
    "best_of": Refusal("every answer that is generated is returned; n says how many", (1,)),
    # Those of vLLM, SGLang and llama.cpp.
    "guided_whitespace_pattern": Refusal("whitespace in JSON is one space, or a line break and its indentation"),
    "structural_tag": Refusal("a format is one of JSON schema, regex, grammar and choice"),
    "include_stop_str_in_output": Refusal("a stop string is never part of the answer", (False,)),
    "no_stop_trim": Refusal("a stop string is never part of the answer", (False,)),
    "stop_regex": Refusal("stop has strings; regex says what the whole answer looks like"),
    "bad_words": Refusal("logit_bias has tokens; regex and grammar say what an answer looks like", ([],)),
    "skip_special_tokens": Refusal("special tokens are never part of the answer", (True,)),
    "spaces_between_special_tokens": Refusal("special tokens are never part of the answer", (True,)),
    "return_tokens_as_token_ids": Refusal("tokens are told as text", (False,)),
    "return_token_ids": Refusal("tokens are told as text; /tokenize has their numbers", (False,)),
    "return_tokens": Refusal("tokens are told as text; /tokenize has their numbers", (False,)),
    "mirostat": Refusal(SAMPLING, (0,)),
    "mirostat_tau": Refusal(SAMPLING),
    "mirostat_eta": Refusal(SAMPLING),
    "dynatemp_range": Refusal(SAMPLING, (0,)),
    "dynatemp_exponent": Refusal(SAMPLING),
    "xtc_probability": Refusal(SAMPLING, (0,)),
    "xtc_threshold": Refusal(SAMPLING),
    "dry_multiplier": Refusal(SAMPLING, (0,)),
    "dry_base": Refusal(SAMPLING),
    "dry_allowed_length": Refusal(SAMPLING),
    "dry_penalty_last_n": Refusal(SAMPLING),
    "dry_sequence_breakers": Refusal(SAMPLING),
    "top_n_sigma": Refusal(SAMPLING, (-1,)),
    "samplers": Refusal("the order of samplers is fixed"),
    "min_keep": Refusal(SAMPLING, (0,)),
    "use_beam_search": Refusal(SAMPLING, (False,)),
    "length_penalty": Refusal(SAMPLING, (1,)),
    "early_stopping": Refusal(SAMPLING, (False,)),
    "logits_processors": Refusal(SAMPLING, ([],)),
    "custom_logit_processor": Refusal(SAMPLING),
    "custom_params": Refusal(SAMPLING),
    "thinking_token_budget": Refusal("an answer has max_tokens, whatever it consists of"),
    "t_max_predict_ms": Refusal("an answer has max_tokens, not a time", (0,)),
    "n_indent": Refusal("regex and grammar say what an answer looks like", (0,)),
    "n_probs": Refusal("log-probabilities are asked for by logprobs", (0,)),
    "post_sampling_probs": Refusal("log-probabilities are those of the model", (False,)),
    "prompt_logprobs": Refusal("ask /v1/completions for echo and logprobs"),
    "return_hidden_states": Refusal(INSIDE, (False,)),
    "timings_per_token": Refusal("times are in /metrics", (False,)),
    "return_progress": Refusal("times are in /metrics", (False,)),
    "truncate_prompt_tokens": Refusal(WHOLE),
    "n_keep": Refusal(WHOLE, (0,)),
    "n_discard": Refusal(WHOLE, (0,)),
    "cache_prompt": Refusal("prompts always reuse what the server holds", (True,)),
    "id_slot": Refusal("the server chooses the slot", (-1,)),
    "priority": Refusal(ORDER, (0,)),
    "lora": Refusal(ADAPTER, ([],)),
    "lora_path": Refusal(ADAPTER),
    "session_params": Refusal("a session is the messages of a request"),
    "kv_transfer_params": Refusal(FIXED),
    "vllm_xargs": Refusal(FIXED, ({},)),
    "mm_processor_kwargs": Refusal("it reads and writes text alone", ({},)),
    "documents": Refusal(TEMPLATE, ([],)),
    "separate_reasoning": Refusal("reasoning is part of the answer", (False,)),
    "stream_reasoning": Refusal("reasoning is part of the answer", (True,)),
    "include_reasoning": Refusal("reasoning is part of the answer", (True,)),
    "continue_final_message": Refusal(TEMPLATE, (False,)),
    "add_generation_prompt": Refusal(TEMPLATE, (True,)),
    "chat_template": Refusal(TEMPLATE),
}

COMPLETION = ("prompt", "logprobs", "echo", "add_special_tokens")
CHAT = (
    "messages", "max_completion_tokens", "logprobs", "top_logprobs", "chat_template_kwargs", "tools", "tool_choice",
    "parallel_tool_calls",
)  # fmt: skip

COMPLETION_FIELDS = Fields(
    (*COMMON, *COMPLETION), WITHOUT_EFFECT, REFUSED,
    {
        "messages": "is for /v1/chat/completions; /v1/completions takes prompt",
        "max_completion_tokens": "is for /v1/chat/completions; /v1/completions takes max_tokens",
        "top_logprobs": "is for /v1/chat/completions; /v1/completions takes their number as logprobs",
        "chat_template_kwargs": "is for /v1/chat/completions; /v1/completions has no template",
        "tools": "is for /v1/chat/completions; /v1/completions has no template to show them",
        "tool_choice": "is for /v1/chat/completions; /v1/completions has no tools",
        "parallel_tool_calls": "is for /v1/chat/completions; /v1/completions has no tools",
    },
    ALIASES,
)  # fmt: skip
CHAT_FIELDS = Fields(
    (*COMMON, *CHAT), WITHOUT_EFFECT, REFUSED,
    {
        "prompt": "is for /v1/completions; /v1/chat/completions takes messages",
        "echo": "is for /v1/completions; an answer of /v1/chat/completions is the new message alone",
        "add_special_tokens": "is for /v1/completions; the chat template writes special tokens",
    },
    ALIASES,
)  # fmt: skip
STREAM_OPTIONS = Fields(
    ("include_usage",),
    refused={
        "include_obfuscation": Refusal("events are not padded", (False,)),
        "continuous_usage_stats": Refusal("usage comes with the last event", (False,)),
    },
)
RESPONSE_FORMAT = Fields(
    ("type", "json_schema", "schema"),
    refused={"structural_tag": Refusal("a format is one of JSON schema, regex, grammar and choice")},
)
JSON_SCHEMA = Fields(("schema",), ("name", "description", "strict"))
STRUCTURED_OUTPUTS = Fields(
    ("json", "regex", "choice", "grammar", "json_object"),
    ("backend", "disable_fallback"),
    {
        "structural_tag": Refusal("a format is one of JSON schema, regex, grammar and choice"),
        "whitespace_pattern": Refusal("whitespace in JSON is one space, or a line break and its indentation"),
        "disable_any_whitespace": Refusal(
            "whitespace in JSON is one space, or a line break and its indentation", (False,)
        ),
        "disable_additional_properties": Refusal("say additionalProperties in the schema", (False,)),
    },
)
MESSAGE = Fields(
    ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"),
    ("cache_control",),
    {
        # Null or empty in every message that a client sends back as it received it.
        "refusal": Refusal("a message has text and tool calls alone"),
        "annotations": Refusal("a message has text and tool calls alone", ([],)),
        "audio": Refusal("a message has text and tool calls alone"),
        "function_call": Refusal(TOOLS),
    },
)
CALL = Fields(("id", "type", "function"), ("index",))
CALL_FUNCTION = Fields(("name", "arguments"))
TOOL = Fields(("type", "function"), ("cache_control",))
FUNCTION = Fields(("name", "description", "parameters", "strict"))
PART = Fields(("type", "text"), ("cache_control",))

# Every object of a request by the name its fields are shown under.
OBJECTS = {
    "stream_options.": STREAM_OPTIONS,
    "response_format.": RESPONSE_FORMAT,
    "response_format.json_schema.": JSON_SCHEMA,
    "structured_outputs.": STRUCTURED_OUTPUTS,
    "tools[].": TOOL,
    "tools[].function.": FUNCTION,
    "messages[].": MESSAGE,
    "messages[].tool_calls[].": CALL,
    "messages[].tool_calls[].function.": CALL_FUNCTION,
    "messages[].content[].": PART,
}

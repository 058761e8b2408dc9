"""The shapes of the OpenAI protocol: every body is a request or a 400 that names what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from markov import TOKENIZER, encode
from tritium.models.sampling import Logprobs, Sampler
from tritium.serve.protocols import fields, openai
from tritium.serve.protocols.common import ProtocolError, Query
from tritium.serve.protocols.openai import read_request
from tritium.serve.protocols.tools import Tool, Toolbox
from tritium.serve.scheduler import Usage

USER = [{"role": "user", "content": "hi"}]
FIELDS = sorted(
    {*fields.COMMON, *fields.COMPLETION, *fields.CHAT, *fields.WITHOUT_EFFECT, *fields.REFUSED}
)  # of either route


def asked(chat: bool = False, **body: Any) -> Query:
    return read_request(json.dumps(body).encode(), chat=chat)


def fault(body: bytes, chat: bool = False) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        read_request(body, chat=chat)
    assert caught.value.status == 400
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    return caught.value


def test_defaults_are_those_of_openai() -> None:
    found = asked(prompt="a")
    assert found.sampler == Sampler(temperature=1.0)
    assert (found.max_tokens, found.n, found.stop, found.stream, found.logprobs) == (16, 1, (), False, None)
    assert asked(chat=True, messages=USER).max_tokens is None


def test_null_is_as_good_as_absent() -> None:
    empty = dict.fromkeys([f for f in FIELDS if f not in ("prompt", "messages")])
    assert asked(prompt="a", **empty) == asked(prompt="a")
    assert asked(chat=True, messages=USER, **empty) == asked(chat=True, messages=USER)


def test_all_fields_arrive() -> None:
    found = asked(
        prompt=["a", "b"], temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2, presence_penalty=-1,
        frequency_penalty=2, logit_bias={"5": -100}, seed=-3, n=2, stop=["x", "y"], stream=True, logprobs=3, max_tokens=7,
        stream_options={"include_usage": True}, model="m", user="me",
    )  # fmt: skip
    assert found.prompts == ("a", "b")
    assert found.sampler == Sampler(
        temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2, presence_penalty=-1.0,
        frequency_penalty=2.0, logit_bias={5: -100.0}, seed=-3,
    )  # fmt: skip
    assert (found.n, found.stop, found.stream, found.include_usage) == (2, ("x", "y"), True, True)
    assert (found.logprobs, found.max_tokens, found.model) == (3, 7, "m")


def test_messages_are_roles_and_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts, "name": "n"}]
    found = asked(chat=True, messages=given, max_tokens=5, max_completion_tokens=6, logprobs=True, top_logprobs=2)
    assert found.messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab", "name": "n"},
    )
    assert (found.max_tokens, found.logprobs) == (6, 2)


@pytest.mark.parametrize(
    ("prompt", "found"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3)))],
)
def test_a_prompt_has_four_forms(prompt: Any, found: Any) -> None:
    assert asked(prompt=prompt).prompts == found


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(f, v) for f in ("temperature", "top_p", "presence_penalty", "min_p") for v in ("1", True, [], 3, -3, 1e400)],
        *[(f, v) for f in ("n", "max_tokens", "seed", "top_k") for v in ("1", True, 1.5, {}, 1 << 70, -(1 << 70))],
        *[("stop", v) for v in (1, [1], "", [""], ["a"] * 17, "\ud800", {})],
        *[("logit_bias", v) for v in (1, [], {"a": 1}, {"1": 101}, {"1": "1"}, {"-1": 1}, {"9" * 5000: 1}, {"²": 1})],
        *[("prompt", v) for v in (1, [], [[]], ["a", 1], [1, "a"], [True], [-1], [1.5], {}, "\ud800", [["a"]])],
        *[("stream", v) for v in (1, "true", [])],
        *[("stream_options", v) for v in (1, [], {"include_usage": 1})],
        *[("logprobs", v) for v in (-1, 21, "1", True)],
        ("model", 5),
        ("echo", 1),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(field: str, value: Any) -> None:
    body = json.dumps({"prompt": "a", field: value}).encode()
    error = fault(body)
    expected = (None, "invalid_json") if value == float("inf") else (field, "invalid_value")
    assert (error.param, error.code) == expected
    assert error.param is None or field in str(error)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "a"}], "messages[0].role"),
        ([{"role": "function", "content": "a"}], "messages[0].role"),
        ([{"role": [], "content": "a"}], "messages[0].role"),
        ([*USER, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0].type"),
        ([{"role": "assistant", "content": "a", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "content": "a", "tool_calls": 3}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "a", "tool_calls": [{}]}], "messages[0].tool_calls"),
        (
            [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "["}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": 1, "arguments": "{}"}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
        ([{"role": "tool", "content": "a", "tool_call_id": 5}], "messages[0].tool_call_id"),
    ],
    ids=str,
)
def test_a_wrong_message_is_named(messages: Any, param: str) -> None:
    assert fault(json.dumps({"messages": messages}).encode(), chat=True).param == param


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"5", b'"a"', b"\xff", b"{'a': 1}", b'{"a": NaN}', b"[" * 100_000, b'{"n": 1' + b"0" * 5000],
    ids=lambda b: repr(b)[:20],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    assert fault(body).code == "invalid_json"


def test_what_is_missing_is_named() -> None:
    assert fault(b"{}").param == "prompt"
    assert fault(b"{}", chat=True).param == "messages"


def test_fields_that_need_another_say_so() -> None:
    assert (
        fault(b'{"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1}', chat=True).param == "top_logprobs"
    )
    assert fault(b'{"prompt": "a", "min_tokens": 3, "max_tokens": 2}').param == "min_tokens"


def function(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def test_tools_arrive() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    offered = [function("f", description="d", parameters=schema, strict=True), function("g")]
    box = asked(chat=True, messages=USER, tools=offered).toolbox
    assert box == Toolbox((Tool("f", "d", schema, True), Tool("g")))
    assert asked(chat=True, messages=USER, tools=offered, tool_choice="none").toolbox is None
    assert asked(chat=True, messages=USER, tools=[]).toolbox is None
    named = asked(
        chat=True, messages=USER, tools=offered, tool_choice={"type": "function", "function": {"name": "g"}}
    ).toolbox
    assert named is not None
    assert (named.choice, named.is_named, named.parallel) == ("g", True, False)
    one = asked(chat=True, messages=USER, tools=offered, tool_choice="required", parallel_tool_calls=False).toolbox
    assert one is not None
    assert (one.choice, one.is_named, one.parallel) == ("required", False, False)


def test_calls_and_results_of_earlier_answers_arrive_as_templates_read_them() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    given = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]},
             {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]  # fmt: skip
    assert asked(chat=True, messages=given).messages[1:] == (
        {"role": "assistant", "content": "", "tool_calls": [call | {"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": 3}, "tools"),
        ({"tools": [function()] * 129}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        ({"tools": [function(parameters=3)]}, "tools[0].function.parameters"),
        ({"tools": [function(strict=1)]}, "tools[0].function.strict"),
        ({"tools": [function(schema={})]}, "tools[0].function.schema"),
        ({"tools": [function()], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [function()], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [function()], "regex": "a"}, "regex"),
        ({"tools": [function()], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
    ids=lambda v: json.dumps(v)[:50] if isinstance(v, dict) else "",
)
def test_a_wrong_tool_is_named(body: dict[str, Any], param: str) -> None:
    assert fault(json.dumps({"messages": USER, **body}).encode(), chat=True).param == param


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["user", "text", "system", 0, 1]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "include_usage", "1"]) | st.text(), inner),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6), st.booleans())
def test_any_json_is_a_request_or_a_400(body: dict[str, Any], chat: bool) -> None:
    body.setdefault("messages" if chat else "prompt", USER if chat else "a")
    check(outcome(json.dumps(body).encode(), chat))


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_request_or_a_400(body: bytes, chat: bool) -> None:
    check(outcome(body, chat))


def outcome(body: bytes, chat: bool) -> Query | ProtocolError:
    try:
        return read_request(body, chat=chat)
    except ProtocolError as e:
        return e


def check(found: Query | ProtocolError) -> None:
    if isinstance(found, ProtocolError):
        assert found.status == 400
        assert json.dumps(found.body, ensure_ascii=False).encode()
    else:
        assert isinstance(found.sampler, Sampler)
        assert all(s.encode() for s in found.stop)


def test_log_probabilities_of_completions_are_columns() -> None:
    a, b = encode("ab")
    found = [Logprobs(a, -0.5, ((a, -0.5), (b, -1.0))), Logprobs(b, -float("inf"), ())]
    assert openai.columns(found, TOKENIZER, 3) == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -9999.0],
        "top_logprobs": [{"a": -0.5, "b": -1.0}, {}],
        "text_offset": [3, 4],
    }
    assert openai.columns([], TOKENIZER)["text_offset"] == []


def test_log_probabilities_of_chats_are_rows() -> None:
    (a,) = encode("a")
    content = openai.entries([Logprobs(a, -0.5, ((a, -0.5),))], TOKENIZER)["content"]
    entry = {"token": "a", "logprob": -0.5, "bytes": [97]}
    assert content == [{**entry, "top_logprobs": [entry]}]


def test_usage_counts_every_answer_and_each_prompt_once() -> None:
    assert openai.usage_object([Usage(3, 4, 1), Usage(3, 5, 2), Usage(8, 1, 0), Usage(8, 1, 8)], n=2) == {
        "prompt_tokens": 11,
        "completion_tokens": 11,
        "total_tokens": 22,
        "prompt_tokens_details": {"cached_tokens": 1},
    }

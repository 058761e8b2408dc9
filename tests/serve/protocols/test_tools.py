"""Tool calls: found in text however it is cut, forced and constrained by grammars, and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("h11", reason="needs the extra 'run'")

from calls import events, post
from markov import TOKENIZER, Model
from noise_model import NoiseModel, NoiseSession
from tritium.errors import ArgumentError
from tritium.models import generation
from tritium.models.sampling import Sampler
from tritium.models.text.chat import render
from tritium.models.text.constraints import constrain
from tritium.serve.protocols.common import Part, Reply
from tritium.serve.protocols.tools import STYLES, CallReader, Tool, Toolbox, style_of
from tritium.serve.server import Server

HERMES = (
    "{% if tools %}{{ tools | tojson }} use <tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}\n{% endfor %}"
)  # fmt: skip
POINT = {
    "type": "object", "required": ["x", "tag"], "additionalProperties": False, "$defs": {"tag": {"enum": ["a", "b"]}},
    "properties": {"x": {"type": "integer"}, "tag": {"$ref": "#/$defs/tag"}},
}  # fmt: skip
TOOLS = (Tool("f", "draws", POINT, strict=True), Tool("g", parameters={"type": "object", "properties": {}}))
OFFERED = [{"type": "function", "function": {"name": "f", "parameters": POINT, "strict": True}},
           {"type": "function", "function": {"name": "g"}}]  # fmt: skip
USER = [{"role": "user", "content": "hi"}]


def read(style: str, text: str, *cuts: int) -> tuple[str, list[tuple[str, str]]]:
    """The content and the calls of a text that comes in pieces."""
    reader, reply, places = (
        CallReader(STYLES[style], ["f", "g"]),
        Reply(),
        [0, *sorted(c % (len(text) + 1) for c in cuts), len(text)],
    )
    for start, end in pairwise(places):
        found = reader.push(text[start:end])
        reply.add(Part(found.text, tuple(found.calls)))
    found = reader.flush()
    reply.add(Part(found.text, tuple(found.calls)))
    assert len({c.id for c in reply.calls}) == len(reply.calls)
    return reply.text, [(c.name, c.arguments) for c in reply.calls]


CASES = [
    ("hermes", "just text ", ("just text ", [])),
    ("hermes", "a < b <tool", ("a < b <tool", [])),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', ("", [("f", '{"x": 1}')])),
    ("hermes", 'So:\n\n<tool_call>{"name": "f", "arguments": {"s": "}</tool_call>\\"", "l": [1, {}]}}</tool_call>\n'
     '<tool_call>{"arguments": {"q": 1}, "name": "g"}</tool_call>\n',
     ("So:", [("f", '{"s": "}</tool_call>\\"", "l": [1, {}]}'), ("g", '{"q": 1}')])),
    ("hermes", '<tool_call>{"name": bad}</tool_call> rest', ('<tool_call>{"name": bad}</tool_call> rest', [])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x"', ("", [("f", '{"x"')])),
    ("hermes", '<tool_call>{"na', ('<tool_call>{"na', [])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call> and more', (" and more", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": 5}</tool_call>', ("", [("f", "5")])),
    ("llama", '{"name": "f", "parameters": {"x": 1}}', ("", [("f", '{"x": 1}')])),
    ("llama", ' {"name": "f", "parameters": {}}; {"name": "g", "parameters": {"b": {}}}', ("", [("f", "{}"), ("g", '{"b": {}}')])),
    ("llama", '{"parameters": {}, "name": "g"}', ("", [("g", "{}")])),
    ("llama", '{"name": "other", "parameters": {}}', ('{"name": "other", "parameters": {}}', [])),
    ("llama", '{"answer": 3}', ('{"answer": 3}', [])),
    ("llama", '  plain {"name": "f"}', ('  plain {"name": "f"}', [])),
    ("mistral", '[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]', ("", [("f", '{"x": 1}'), ("g", "{}")])),
    ("mistral", "[1, 2]", ("[1, 2]", [])),
]  # fmt: skip


@pytest.mark.parametrize(("style", "text", "expected"), CASES, ids=[c[1][:30] for c in CASES])
def test_calls_are_found(style: str, text: str, expected: Any) -> None:
    assert read(style, text) == expected
    assert read(style, text, *range(len(text))) == expected


@settings(max_examples=150)
@given(st.sampled_from(CASES), st.lists(st.integers(0, 500), max_size=6))
def test_calls_do_not_depend_on_how_a_text_is_cut(case: Any, cuts: list[int]) -> None:
    style, text, expected = case
    assert read(style, text, *cuts) == expected


@settings(max_examples=150)
@given(
    st.sampled_from(sorted(STYLES)),
    st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", '{"name": "f", ', '"arguments": ', "{", "}", "[", "]", '"', "\\", "x", " "]
        )
    ),
    st.lists(st.integers(0, 500), max_size=4),
)
def test_any_text_is_read_alike_however_it_is_cut(style: str, pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    assert read(style, text, *cuts) == read(style, text)


def test_arguments_come_as_they_are_written() -> None:
    reader = CallReader(STYLES["hermes"], ["f"])
    parts = [reader.push(c) for c in '<tool_call>{"name": "f", "arguments": {"x": 12}}</tool_call>']
    assert [c.arguments for p in parts for c in p.calls if c.arguments] == list('{"x": 12}')
    assert [c.name for p in parts for c in p.calls if c.name] == ["f"]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "box",
    [Toolbox(TOOLS, "required"), Toolbox(TOOLS, "required", parallel=False), Toolbox(TOOLS, "f", is_named=True, parallel=False)],
    ids=["required", "one", "named"],
)  # fmt: skip
def test_a_call_that_is_required_comes_and_is_valid(style: str, box: Toolbox) -> None:
    pytest.importorskip("llguidance", reason="needs the extra 'run'")
    start = constrain(TOKENIZER, box.format(STYLES[style]))
    for seed in range(3):
        sampler = Sampler(temperature=1.0, seed=seed)
        text = generation.generate(
            NoiseSession(seed=seed), TOKENIZER, "x", sampler=sampler, max_tokens=600, constrain=start
        )
        content, calls = read(style, text.text)
        if text.finish_reason != "stop":
            continue
        assert content == ""
        assert calls
        assert box.parallel or len(calls) == 1
        for name, arguments in calls:
            value = json.loads(arguments)
            assert name in ("f", "g")
            assert name == "g" or (set(value) == {"x", "tag"} and value["tag"] in ("a", "b"))
            assert not box.is_named or name == "f"


def test_a_strict_tool_constrains_calls_in_running_text() -> None:
    pytest.importorskip("llguidance", reason="needs the extra 'run'")
    form = Toolbox(TOOLS).format(STYLES["hermes"])
    constraint = constrain(TOKENIZER, form)()[0]
    for token in TOKENIZER.encode('I think <tool_call>\n{"name": "f", "arguments": {"x": 1, "tag": "'):
        assert constraint.mask()[token]  # type: ignore[index]
        constraint.advance(token)
    assert TOKENIZER.decode([i for i, ok in enumerate(constraint.mask()) if ok]) == "ab"  # type: ignore[arg-type]
    assert Toolbox((Tool("g"),)).format(STYLES["hermes"]) is None


def test_the_style_is_that_of_the_template() -> None:
    assert style_of("{{ tools }} <tool_call>").name == "hermes"
    assert style_of("{{ tools }} [TOOL_CALLS]").name == "mistral"
    assert style_of('{{ tools }} {"name": x, "parameters": y}').name == "llama"
    assert style_of("{{ tools }}", "llama").name == "llama"
    with pytest.raises(ArgumentError, match="not made for them"):
        style_of("{{ messages }}")
    with pytest.raises(ArgumentError, match="tool_style hermes or llama or mistral"):
        style_of("{{ tools }}")


# ---- over HTTP


@pytest.fixture(scope="module")
def noise() -> Iterator[Server]:
    pytest.importorskip("llguidance", reason="needs the extra 'run'")
    with Server(NoiseModel(), port=0, grace_s=5.0, chat_template=HERMES) as server:  # type: ignore[arg-type]
        yield server


def chat(server: Server, **body: Any) -> Any:
    status, found = post(server, "chat/completions", messages=USER, **body)
    assert status == 200, found
    return found["choices"][0]


def test_a_required_call_is_answered_whole_and_streamed(noise: Server) -> None:
    options = {
        "tools": OFFERED,
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "max_tokens": 500,
        "seed": 4,
    }
    choice = chat(noise, **options)
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert (call["type"], call["function"]["name"]) == ("function", "f")
    assert json.loads(call["function"]["arguments"])["tag"] in ("a", "b")
    parts = [e["choices"][0] for e in events(noise, "chat/completions", messages=USER, **options)]
    deltas = [d for p in parts for d in p["delta"].get("tool_calls", [])]
    assert "".join(d["function"]["arguments"] for d in deltas) == call["function"]["arguments"]
    assert [d["function"]["name"] for d in deltas if "name" in d["function"]] == ["f"]
    assert deltas  # one at least: what is not read at once comes joined
    assert parts[-1]["finish_reason"] == "tool_calls"


def test_calls_of_the_model_s_own_choice_are_found() -> None:
    call = '<tool_call>\n{"name": "g", "arguments": {"q": "é"}}\n</tool_call>'
    prompt = render(HERMES, USER, tools=[Tool("g").shown])
    with Server(
        Model(template=HERMES, says={prompt: f"Let me look. {call}", render(HERMES, USER): call}), port=0, grace_s=5.0
    ) as server:  # type: ignore[arg-type]
        offered = [{"type": "function", "function": {"name": "g"}}]
        choice = chat(server, tools=offered)
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Let me look.", "tool_calls")
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "g", "arguments": '{"q": "é"}'}
        plain = chat(server, tools=offered, tool_choice="none")
        assert (plain["message"]["content"], plain["finish_reason"]) == (call, "stop")


def test_a_tool_whose_schema_cannot_be_followed_is_refused(noise: Server) -> None:
    bad = {
        "type": "function",
        "function": {"name": "h", "strict": True, "parameters": {"type": "array", "uniqueItems": True}},
    }
    status, found = post(noise, "chat/completions", messages=USER, tools=[bad])
    assert (status, found["error"]["param"]) == (400, "tools")
    assert "uniqueItems" in found["error"]["message"]

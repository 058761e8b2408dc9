"""Anthropic's Messages API: blocks to messages, events that make up the whole answer, and Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("h11", reason="needs the extra 'run'")

from calls import call
from markov import Model, expected
from noise_model import NoiseModel
from tritium.serve.protocols.common import ProtocolError, Query
from tritium.serve.protocols.messages import Messages
from tritium.serve.server import Server

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}|{% endfor %}go:"
)  # fmt: skip
USER = [{"role": "user", "content": "hi"}]
TOOL = {
    "name": "f", "description": "d", "strict": True,
    "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(Model(template=TEMPLATE, says={"user: hi|go:": "one END two"}), port=0, grace_s=5.0) as s:  # type: ignore[arg-type]
        yield s


@pytest.fixture(scope="module")
def noise() -> Iterator[Server]:
    pytest.importorskip("llguidance", reason="needs the extra 'run'")
    with Server(NoiseModel(), port=0, grace_s=5.0, chat_template=TEMPLATE) as s:  # type: ignore[arg-type]
        yield s


def read(**body: Any) -> Query:
    return Messages().read(json.dumps({"max_tokens": 9, **body}).encode())


def post(server: Server, **body: Any) -> Any:
    status, _, found = call(server, "POST", "/v1/messages", {"temperature": 0, "max_tokens": 50, **body})
    assert status == 200, found
    return found


def events(server: Server, **body: Any) -> list[Any]:
    pairs = [event.split("\n") for event in post(server, stream=True, **body).split("\n\n") if event]
    values = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name.removeprefix("event: ") for name, _ in pairs] == [v["type"] for v in values]
    return values


def test_blocks_become_messages() -> None:
    asked = read(
        system=[{"type": "text", "text": "be"}, {"type": "text", "text": "brief", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "5"}], "is_error": False},
                {"type": "text", "text": "so?"},
            ]},
        ],
    )  # fmt: skip
    call_ = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assert asked.messages == (
        {"role": "system", "content": "be\nbrief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": [call_]},
        {"role": "tool", "content": "5", "tool_call_id": "t1"},
        {"role": "user", "content": "so?"},
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": USER, "max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": ["a"]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}]}]},
         "messages[0].content[0].content[0].type"),
        ({"messages": USER, "system": [{"type": "image"}]}, "system[0].type"),
        ({"messages": USER, "temperature": 1.5}, "temperature"),
        ({"messages": USER, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"messages": USER, "tools": [{"name": "f", "input_schema": 3}]}, "tools[0].input_schema"),
        ({"messages": USER, "tool_choice": "auto"}, "tool_choice"),
        ({"messages": USER, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"messages": USER, "output_format": {"type": "xml"}}, "output_format"),
        ({"messages": USER, "mcp_servers": [{}]}, "mcp_servers"),
        ({"messages": USER, "stop_sequence": ["a"]}, "stop_sequence"),
    ],
    ids=lambda v: json.dumps(v)[:60] if isinstance(v, dict) else "",
)  # fmt: skip
def test_what_is_wrong_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        read(**body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert Messages().error(caught.value)["error"]["type"] == "invalid_request_error"


def test_an_answer(server: Server) -> None:
    found = post(server, messages=USER, model="markov")
    assert (found["type"], found["role"], found["stop_reason"]) == ("message", "assistant", "end_turn")
    assert found["content"] == [{"type": "text", "text": "one END two"}]
    usage = found["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len("user: hi|go:")
    stopped = post(server, messages=USER, stop_sequences=["END"])
    assert (stopped["stop_reason"], stopped["stop_sequence"], stopped["content"][0]["text"]) == (
        "stop_sequence",
        "END",
        "one ",
    )
    cut = post(server, messages=[{"role": "user", "content": "other"}], max_tokens=4)
    assert (cut["stop_reason"], cut["content"][0]["text"]) == ("max_tokens", expected("user: other|go:", 4))


def test_events_make_up_the_answer(server: Server) -> None:
    found = events(server, messages=USER, stop_sequences=["two"])
    names = [e["type"] for e in found]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(e["delta"]["text"] for e in found if e["type"] == "content_block_delta") == "one END "
    assert found[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "two"}


def test_a_call(noise: Server) -> None:
    options = {
        "messages": USER,
        "tools": [TOOL],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "max_tokens": 300,
    }
    found = post(noise, **options)
    (block,) = found["content"]
    assert (found["stop_reason"], block["type"], block["name"], set(block["input"])) == (
        "tool_use",
        "tool_use",
        "f",
        {"x"},
    )
    parts = events(noise, **options)
    text = "".join(e["delta"]["partial_json"] for e in parts if e["type"] == "content_block_delta")
    assert json.loads(text) == block["input"]
    assert parts[1]["content_block"]["name"] == "f"
    assert parts[-2]["delta"]["stop_reason"] == "tool_use"


def test_anthropic_s_own_client(server: Server, noise: Server) -> None:
    anthropic = pytest.importorskip("anthropic", reason="the client of this protocol")
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        message = client.messages.create(model="markov", max_tokens=50, messages=USER, extra_body={"temperature": 0})
        assert (message.content[0].text, message.stop_reason) == ("one END two", "end_turn")
        with client.messages.stream(
            model="markov", max_tokens=50, messages=USER, extra_body={"temperature": 0}
        ) as stream:
            assert "".join(stream.text_stream) == "one END two"
            assert stream.get_final_message().usage.output_tokens == 12
        assert client.messages.count_tokens(model="markov", messages=USER).input_tokens == len("user: hi|go:")
        with pytest.raises(anthropic.NotFoundError, match="'other' is not served here"):
            client.messages.create(model="other", max_tokens=5, messages=USER)
    with anthropic.Anthropic(base_url=noise.url, api_key="any", max_retries=0) as client:
        with client.messages.stream(
            model="noise", max_tokens=300, messages=USER, tools=[TOOL], tool_choice={"type": "tool", "name": "f"}
        ) as stream:
            final = stream.get_final_message()
        (block,) = final.content
        assert (block.name, set(block.input), final.stop_reason) == ("f", {"x"}, "tool_use")
        more = [*USER, {"role": "assistant", "content": final.content},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "5"}]}]  # fmt: skip
        assert client.messages.create(model="noise", max_tokens=3, messages=more, tools=[TOOL]).usage.output_tokens <= 3

"""The Responses API: items to messages, events that make up the whole response, and OpenAI's own client."""

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
from tritium.serve.protocols.responses import Responses
from tritium.serve.server import Server

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}|{% endfor %}go:"
)  # fmt: skip
TOOL = {
    "type": "function", "name": "f", "strict": True,
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(Model(template=TEMPLATE, says={"user: hi|go:": "one two"}), port=0, grace_s=5.0) as s:  # type: ignore[arg-type]
        yield s


@pytest.fixture(scope="module")
def noise() -> Iterator[Server]:
    pytest.importorskip("llguidance", reason="needs the extra 'run'")
    with Server(NoiseModel(), port=0, grace_s=5.0, chat_template=TEMPLATE) as s:  # type: ignore[arg-type]
        yield s


def read(**body: Any) -> Query:
    return Responses().read(json.dumps(body).encode())


def post(server: Server, **body: Any) -> Any:
    status, _, found = call(server, "POST", "/v1/responses", {"temperature": 0, **body})
    assert status == 200, found
    return found


def events(server: Server, **body: Any) -> list[Any]:
    found = post(server, stream=True, **body)
    pairs = [event.split("\n") for event in found.split("\n\n") if event]
    values = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name.removeprefix("event: ") for name, _ in pairs] == [v["type"] for v in values]
    assert [v["sequence_number"] for v in values] == list(range(len(values)))
    return values


def test_items_become_messages() -> None:
    asked = read(
        instructions="be brief",
        input=[
            {"role": "user", "content": "a"},
            {"type": "message", "role": "assistant", "id": "m", "status": "completed",
             "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}]},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}', "id": "fc", "status": "completed"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]},
        ],
    )  # fmt: skip
    function = {"name": "f", "arguments": {"x": 1}}
    assert asked.messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": [
            {"id": "c1", "type": "function", "function": function},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}},
        ]},
        {"role": "tool", "content": "done", "tool_call_id": "c1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "owner", "content": "a"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}]}, "input[0].arguments"),
        ({"input": "a", "max_tokens": 3}, "max_tokens"),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "a", "store": True}, "store"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "a", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "a", "text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"input": "a", "text": {"verbosity": "low"}}, "text.verbosity"),
        ({"input": "a", "temprature": 1}, "temprature"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        read(**body)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_response(server: Server) -> None:
    found = post(server, input="hi", max_output_tokens=50, metadata={"a": "b"})
    assert (found["object"], found["status"], found["error"], found["metadata"]) == (
        "response",
        "completed",
        None,
        {"a": "b"},
    )
    (item,) = found["output"]
    assert (item["type"], item["role"], item["content"][0]["text"]) == ("message", "assistant", "one two")
    assert found["usage"]["total_tokens"] == found["usage"]["input_tokens"] + found["usage"]["output_tokens"]
    cut = post(server, input="other", max_output_tokens=5)
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert cut["output"][0]["content"][0]["text"] == expected("user: other|go:", 5)


def test_events_make_up_the_response(server: Server) -> None:
    found = events(server, input="hi", top_logprobs=1)
    names = [e["type"].removeprefix("response.") for e in found]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert "".join(e["delta"] for e in found if e["type"] == "response.output_text.delta") == "one two"
    last, whole = found[-1]["response"], post(server, input="hi", top_logprobs=1)
    for changing in ("id", "created_at", "usage"):
        assert last.pop(changing)
        assert whole.pop(changing)
    assert last["output"][0].pop("id").startswith("msg_")
    assert whole["output"][0].pop("id").startswith("msg_")
    assert last == whole
    assert len(whole["output"][0]["content"][0]["logprobs"]) == len("one two")


def test_a_format_and_a_call(noise: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    assert set(json.loads(post(noise, input="a", text=form)["output"][0]["content"][0]["text"])) == {"a"}
    options = {"input": "a", "tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}
    (item,) = post(noise, **options)["output"]
    assert (item["type"], item["name"], set(json.loads(item["arguments"]))) == ("function_call", "f", {"x"})
    found = events(noise, **options)
    names = [e["type"].removeprefix("response.") for e in found]
    assert names[2] == "output_item.added"
    assert names[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    deltas = "".join(e["delta"] for e in found if e["type"] == "response.function_call_arguments.delta")
    assert deltas == item["arguments"] == found[-3]["arguments"]


def test_openai_s_own_client(server: Server, noise: Server) -> None:
    openai = pytest.importorskip("openai", reason="the client of this protocol")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        response = client.responses.create(model="markov", input="hi", temperature=0)
        assert (response.output_text, response.status) == ("one two", "completed")
        with client.responses.stream(model="markov", input="hi", temperature=0) as stream:
            texts = [e.delta for e in stream if e.type == "response.output_text.delta"]
            assert "".join(texts) == stream.get_final_response().output_text == "one two"
        with pytest.raises(openai.BadRequestError, match="previous_response_id is not supported"):
            client.responses.create(model="markov", input="hi", previous_response_id="resp_1")
    with openai.OpenAI(base_url=f"{noise.url}/v1", api_key="any", max_retries=0) as client:
        response = client.responses.create(
            model="noise", input="a", tools=[TOOL], tool_choice="required", parallel_tool_calls=False
        )
        (item,) = response.output
        again = [
            {"role": "user", "content": "a"},
            item,
            {"type": "function_call_output", "call_id": item.call_id, "output": "5"},
        ]
        assert (
            client.responses.create(model="noise", input=again, tools=[TOOL], max_output_tokens=9).usage.output_tokens
            <= 9
        )

"""Fields of requests: each is accepted, accepted without effect or refused by name, and the documentation lists them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tritium.models.sampling import Sampler
from tritium.models.text.constraints import Format
from tritium.serve.protocols import fields, formats, openai
from tritium.serve.protocols.common import ProtocolError, Query
from tritium.serve.protocols.openai import read_request

USER = [{"role": "user", "content": "hi"}]
PAGE = Path(__file__).parents[3] / "docs" / "serve.md"


def read(chat: bool = True, **body: Any) -> Query:
    return read_request(json.dumps({"messages": USER} | body if chat else {"prompt": "a"} | body).encode(), chat=chat)


def fault(chat: bool = True, **body: Any) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        read(chat, **body)
    assert caught.value.status == 400
    error = caught.value.body["error"]
    assert error["type"] == "invalid_request_error"
    assert caught.value.param is not None
    assert caught.value.param in error["message"]
    assert json.dumps(error, ensure_ascii=False).encode()
    return caught.value


def test_every_accepted_field_is_read() -> None:
    """The lists of names and the tables of checks are the same fields."""
    assert set(fields.SAMPLER) == set(openai.SAMPLER)
    read = {*openai.SAMPLER, *openai.COMMON, *fields.ALIASES}
    assert set(fields.CHAT_FIELDS.accepted) == {*read, *openai.CHAT}
    assert set(fields.COMPLETION_FIELDS.accepted) == {*read, *openai.COMPLETION}
    assert set(fields.FORMATS) == set(formats.READERS)
    assert set(fields.ALIASES.values()) <= read
    for f in (fields.CHAT_FIELDS, fields.COMPLETION_FIELDS, *fields.OBJECTS.values()):
        names = [*f.accepted, *f.without_effect, *f.refused, *f.elsewhere]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("temprature", "temperature"), ("maxTokens", "max_tokens"), ("max_token", "max_tokens"), ("Seed", "seed"),
     ("stops", "stop"), ("top-k", "top_k"), ("response_fromat", "response_format"), ("meta_data", "metadata")],
)  # fmt: skip
@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("value", [1, None], ids=["value", "null"])
def test_a_misspelt_field_is_refused_with_the_nearest(name: str, nearest: str, chat: bool, value: Any) -> None:
    error = fault(chat, **{name: value})
    assert (error.param, error.code) == (name, "unknown_parameter")
    assert f"Did you mean {nearest}?" in str(error)


def test_a_field_like_no_other_is_refused_with_what_is_supported() -> None:
    assert "Supported here: add_special_tokens, allowed_token_ids, ebnf, echo, " in str(fault(False, zzz=1))


@pytest.mark.parametrize("name", ["", "\ud800", "\n", "x" * 1_000_000, "é" * 100], ids=ascii)
def test_any_name_can_be_told(name: str) -> None:
    error = fault(**{name: 1})
    assert error.code == "unknown_parameter"
    assert len(str(error)) < 1000


@pytest.mark.parametrize(
    ("body", "param", "nearest"),
    [
        ({"messages": [*USER, {"role": "user", "content": "a", "contents": "b"}]}, "messages[1].contents", "content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "texts": 1}]}]},
         "messages[0].content[0].texts", "text"),
        ({"stream": True, "stream_options": {"includeUsage": True}}, "stream_options.includeUsage", "include_usage"),
        ({"response_format": {"type": "text", "typ": 1}}, "response_format.typ", "type"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameter": {}}}]}, "tools[0].function.parameter", "parameters"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_an_unknown_field_inside_another_is_named_whole(body: dict[str, Any], param: str, nearest: str) -> None:
    error = fault(**body)
    assert (error.param, error.code) == (param, "unknown_parameter")
    assert f"Did you mean {nearest}?" in str(error)


@pytest.mark.parametrize("name", sorted(fields.REFUSED))
@pytest.mark.parametrize("chat", [True, False])
def test_a_field_that_is_not_supported_is_refused_unless_it_asks_for_nothing(name: str, chat: bool) -> None:
    refusal = fields.REFUSED[name]
    error = fault(chat, **{name: {"some": "value"}})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert refusal.reason in str(error)
    for neutral in (None, *refusal.neutral):
        assert read(chat, **{name: neutral}) == read(chat)
        assert neutral is None or json.dumps(neutral) in str(error)


def test_a_number_is_not_a_truth() -> None:
    assert fault(best_of=True).param == "best_of"
    assert fault(store=0).param == "store"
    assert read(best_of=1.0) == read()


@pytest.mark.parametrize("name", fields.WITHOUT_EFFECT)
@pytest.mark.parametrize("value", [None, True, "x", {"a": "b"}], ids=str)
def test_a_field_without_effect_has_none(name: str, value: Any) -> None:
    for chat in (True, False):
        assert read(chat, **{name: value}) == read(chat)


@pytest.mark.parametrize(
    ("chat", "name", "value"),
    [(True, "prompt", "a"), (True, "echo", True), (False, "messages", USER), (False, "max_completion_tokens", 5),
     (False, "top_logprobs", 2), (False, "tools", []), (False, "tool_choice", "auto"), (True, "add_special_tokens", True)],
)  # fmt: skip
def test_a_field_of_the_other_route_is_refused_with_its_own(chat: bool, name: str, value: Any) -> None:
    error = fault(chat, **{name: value})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert "is for /v1/" in str(error)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
OBJECT = Format("schema", '{"type": "object"}')


@pytest.mark.parametrize(
    ("body", "form", "param"),
    [
        ({"response_format": {"type": "json_object"}}, OBJECT, "response_format"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, Format.of(schema=SCHEMA), "response_format.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
         Format.of(schema=SCHEMA), "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, OBJECT, "response_format.json_schema.schema"),
        ({"guided_json": SCHEMA}, Format.of(schema=SCHEMA), "guided_json"),
        ({"guided_json": json.dumps(SCHEMA)}, Format.of(schema=SCHEMA), "guided_json"),
        ({"json_schema": SCHEMA}, Format.of(schema=SCHEMA), "json_schema"),
        ({"guided_regex": "[0-9]{3}"}, Format("regex", "[0-9]{3}"), "guided_regex"),
        ({"regex": "a+"}, Format("regex", "a+"), "regex"),
        ({"guided_choice": ["a", "b"]}, Format("choice", '["a", "b"]'), "guided_choice"),
        ({"guided_grammar": "start: /a/"}, Format("grammar", "start: /a/"), "guided_grammar"),
        ({"grammar": 'root ::= "a"'}, Format("grammar", 'root ::= "a"'), "grammar"),
        ({"ebnf": 'root ::= "a"'}, Format("grammar", 'root ::= "a"'), "ebnf"),
        ({"structured_outputs": {"json": SCHEMA}}, Format.of(schema=SCHEMA), "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a"}}, Format("regex", "a"), "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a"], "json_object": False}}, Format("choice", '["a"]'), "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "start: /a/"}}, Format("grammar", "start: /a/"), "structured_outputs.grammar"),
        ({"structured_outputs": {"json_object": True}}, OBJECT, "structured_outputs.json_object"),
    ],
    ids=lambda v: json.dumps(v)[:60] if isinstance(v, dict) else "",
)  # fmt: skip
@pytest.mark.parametrize("chat", [True, False])
def test_a_format_is_read_in_every_dialect(body: dict[str, Any], form: Format, param: str, chat: bool) -> None:
    assert read(chat, **body).form == (form, param)


@pytest.mark.parametrize(
    "body",
    [{"response_format": {"type": "text"}}, {"grammar": ""}, {"structured_outputs": {}}, {"structured_outputs": {"json_object": False}}],
    ids=str,
)  # fmt: skip
def test_a_format_that_asks_for_nothing_is_none(body: dict[str, Any]) -> None:
    assert read(**body) == read()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *[({"response_format": v}, "response_format") for v in ({}, "text", [], 1, {"type": "xml"})],
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": []}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}, "response_format.json_schema.schema"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"regex": ""}, "regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": "a"}, "structured_outputs"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
        ({"regex": "a", "guided_json": {}}, "regex"),
    ],
    ids=lambda v: json.dumps(v)[:60] if isinstance(v, dict) else "",
)  # fmt: skip
def test_a_wrong_format_is_named(body: dict[str, Any], param: str) -> None:
    assert fault(**body).param == param


@pytest.mark.parametrize(("alias", "name"), fields.ALIASES.items())
@pytest.mark.parametrize("chat", [True, False])
def test_an_alias_is_the_field_it_stands_for(alias: str, name: str, chat: bool) -> None:
    assert read(chat, **{alias: 2}) == read(chat, **{name: 2}) != read(chat)
    error = fault(chat, **{alias: 2, name: 2})
    assert error.param == alias
    assert f"{alias} and {name} mean the same" in str(error)


def test_fields_of_other_servers_arrive() -> None:
    found = read(False, min_tokens=2, stop_token_ids=[1, 2], ignore_eos=True, allowed_token_ids=[3], typical_p=0.5,
                 add_special_tokens=False)  # fmt: skip
    assert (found.min_tokens, found.stop_token_ids, found.ignore_eos, found.allowed_token_ids) == (
        2,
        (1, 2),
        True,
        (3,),
    )
    assert (found.sampler.typical_p, found.adds_bos) == (0.5, False)
    assert read(chat_template_kwargs={"enable_thinking": False}).template_values == {"enable_thinking": False}
    assert read(False, n_predict=-1).max_tokens is None
    assert read(repetition_penalty=2, repeat_last_n=-1).sampler == Sampler(
        temperature=1.0, repetition_penalty=2.0, repetition_window=0
    )
    assert read(repetition_penalty=2, repeat_last_n=0).sampler == Sampler(temperature=1.0)
    assert read(repeat_penalty=2, repeat_last_n=7).sampler.repetition_window == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_tokens", -1), ("min_tokens", 17), ("stop_token_ids", 1), ("stop_token_ids", [-1]), ("stop_token_ids", ["a"]),
     ("stop_token_ids", [0] * 5000), ("ignore_eos", 1), ("allowed_token_ids", {}), ("repeat_last_n", -2), ("typical_p", 2),
     ("max_tokens", -2), ("add_special_tokens", 0)],
    ids=lambda v: str(v)[:20],
)  # fmt: skip
def test_wrong_values_of_other_servers_fields_are_named(name: str, value: Any) -> None:
    assert fault(False, **{name: value}).param == name
    assert fault(chat_template_kwargs={"messages": []}).param == "chat_template_kwargs"


@pytest.mark.parametrize("name", sorted(fields.MESSAGE.refused))
def test_a_field_of_a_message_that_is_not_supported_is_refused(name: str) -> None:
    message = {"role": "assistant", "content": "a"}
    assert fault(messages=[message | {name: [{"some": "value"}]}]).param == f"messages[0].{name}"
    for neutral in (None, *fields.MESSAGE.refused[name].neutral):
        assert read(messages=[message | {name: neutral}]) == read(messages=[message])


def test_a_message_may_be_sent_back_as_it_was_received() -> None:
    """As `message.model_dump()` of the openai package writes it."""
    received = {
        "role": "assistant", "content": "a", "refusal": None, "annotations": None, "audio": None, "function_call": None,
        "tool_calls": None,
    }  # fmt: skip
    assert read(messages=[*USER, received]).messages[1] == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m"},
        {"model": "m", "stream": True, "stream_options": {"include_usage": True}},
        {"model": "m", "stream": False, "n": 1, "temperature": 0.7},
        {"model": "m", "temperature": 0.7, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "n": 1,
         "max_tokens": 256, "logit_bias": {}, "best_of": 1, "stop": None, "seed": 1, "user": "u"},
        {"model": "m", "functions": [], "store": False, "metadata": {"a": "b"}, "service_tier": "auto"},
    ],
    ids=["plain", "stream", "chat framework", "completion framework", "agent"],
)  # fmt: skip
@pytest.mark.parametrize("chat", [True, False])
def test_what_common_clients_send_is_taken(body: dict[str, Any], chat: bool) -> None:
    assert read(chat, **body).model == "m"


# ---- the documentation


def rows(title: str) -> Iterator[list[str]]:
    """The cells of the table below a title of the page, without its head."""
    section = re.split(r"^#+ ", PAGE.read_text(encoding="utf-8").partition(f"### {title}\n")[2], flags=re.M)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_lists_every_accepted_field() -> None:
    listed = {name: cells[1] for cells in rows("Accepted") for name in names(cells[0])}
    routes = dict.fromkeys(fields.COMMON, "both")
    routes |= dict.fromkeys(fields.COMPLETION, "completions") | dict.fromkeys(fields.CHAT, "chat")
    routes["logprobs"] = "both"
    nested = {prefix + name: "" for prefix, f in fields.OBJECTS.items() for name in f.accepted}
    nested |= {name: "chat" if name.startswith(("messages", "tools")) else "both" for name in nested}
    assert listed == routes | nested


def test_the_page_lists_every_field_without_effect() -> None:
    listed = [name for cells in rows("Accepted without effect") for name in names(cells[0])]
    nested = [prefix + name for prefix, f in fields.OBJECTS.items() for name in f.without_effect]
    assert sorted(listed) == sorted([*fields.WITHOUT_EFFECT, *nested])


def test_the_page_lists_every_refused_field_with_the_values_that_are_taken() -> None:
    listed = {tuple(names(cells[0])): (names(cells[1]), cells[2]) for cells in rows("Refused")}
    table = dict(fields.REFUSED)
    table |= {prefix + name: r for prefix, f in fields.OBJECTS.items() for name, r in f.refused.items()}
    assert listed == {(name,): ([json.dumps(n) for n in r.neutral], r.reason) for name, r in table.items()}

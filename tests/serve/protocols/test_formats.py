"""Structured output over HTTP: every dialect, whole and streamed, alone and among others."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("h11", reason="needs the extra 'run'")
pytest.importorskip("llguidance", reason="needs the extra 'run'")

from calls import begin, completion, events, post
from cheap import Cheap
from markov import Model, expected
from noise_model import NoiseModel
from schemas import SCHEMAS
from tritium.buffer import native
from tritium.models.load import load
from tritium.models.text import constraints
from tritium.serve.exchange import Limits
from tritium.serve.server import Server

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
SCHEMA = SCHEMAS["weather tool"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(NoiseModel(), port=0, grace_s=5.0, slots=8, chat_template=TEMPLATE) as found:  # type: ignore[arg-type]
        yield found


def is_weather(text: str) -> bool:
    value = json.loads(text)
    return len(value["location"]) <= 20 and value.get("unit", "celsius") in ("celsius", "fahrenheit")


DIALECTS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": SCHEMA}}},
    {"response_format": {"type": "json_object", "schema": SCHEMA}},
    {"guided_json": SCHEMA},
    {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    {"json_schema": SCHEMA},
]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: next(iter(d)))
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_schema_is_followed(server: Server, dialect: dict[str, Any], temperature: int) -> None:
    options = {"temperature": temperature, "seed": 5, **dialect}
    text = completion(server, "a", 300, **options)["choices"][0]["text"]
    assert is_weather(text)
    parts = events(server, "completions", prompt="a", max_tokens=300, **options)
    assert "".join(e["choices"][0]["text"] for e in parts) == text
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("options", "pattern"),
    [({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"), ({"regex": "[0-9]{3}"}, "[0-9]{3}"), ({"guided_choice": ["yes", "no"]}, "yes|no"),
     ({"grammar": 'root ::= "a" [x-z]{2}'}, "a[x-z]{2}"), ({"ebnf": 'root ::= "b" [x-z]{2}'}, "b[x-z]{2}"),
     ({"structured_outputs": {"regex": "q{4}"}}, "q{4}"), ({"response_format": {"type": "json_object"}}, r"(?s)\{.*\}")],
    ids=lambda v: str(v)[:30],
)  # fmt: skip
def test_other_formats_are_followed(server: Server, options: dict[str, Any], pattern: str) -> None:
    status, found = post(
        server,
        "chat/completions",
        messages=[{"role": "user", "content": "b"}],
        max_tokens=600,
        n=3,
        seed=1,
        temperature=1,
        **options,
    )
    assert status == 200
    for choice in found["choices"]:
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["message"]["content"])


def test_texts_are_those_of_a_request_alone(server: Server) -> None:
    """Formats, least lengths, plain samplers and log-probabilities side by side, eight at a time."""
    bodies: list[dict[str, Any]] = []
    for i in range(4):
        common = {"prompt": f"prompt {i}", "seed": i, "max_tokens": 40, "temperature": 1}
        bodies += [
            common,
            common | {"guided_regex": "[a-z ]{30}"},
            common | {"min_tokens": 30},
            common | {"top_p": 0.8, "logprobs": 2},
        ]
        bodies += [common | {"temperature": 0, "guided_json": SCHEMA}, common | {"ignore_eos": True, "top_k": 4}]

    def ask(body: dict[str, Any]) -> Any:
        status, found = post(server, "completions", **body)
        assert status == 200
        return found["choices"]

    alone = [ask(b) for b in bodies]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, bodies)) == alone


def test_least_and_stop_tokens(server: Server) -> None:
    text = completion(server, "seed", 60, temperature=1, seed=2)["choices"][0]
    assert text["finish_reason"] == "stop"  # the model ends it
    count = len(text["text"].encode("utf-8", "replace"))
    longer = completion(server, "seed", 60, temperature=1, seed=2, min_tokens=count + 20)
    assert longer["usage"]["completion_tokens"] > count + 20
    endless = completion(server, "seed", 60, temperature=1, seed=2, ignore_eos=True)
    assert (endless["usage"]["completion_tokens"], endless["choices"][0]["finish_reason"]) == (60, "length")
    only = completion(server, "seed", 20, temperature=1, seed=2, allowed_token_ids=[70, 71], ignore_eos=True)
    assert len(set(only["choices"][0]["text"])) <= 2


def test_a_prompt_is_told_with_its_log_probabilities(server: Server) -> None:
    found = completion(server, "score", 2, echo=True, logprobs=1, seed=3, ignore_eos=True)["choices"][0]
    columns = found["logprobs"]
    assert found["text"].startswith("score")
    assert columns["tokens"][:5] == list("score")
    assert len(columns["tokens"]) == len(columns["token_logprobs"]) == len(columns["top_logprobs"]) == 7
    assert columns["token_logprobs"][0] is columns["top_logprobs"][0] is None
    assert all(
        max(top.values()) >= p
        for p, top in zip(columns["token_logprobs"][1:], columns["top_logprobs"][1:], strict=True)
    )
    assert columns["text_offset"][:6] == [0, 1, 2, 3, 4, 5]
    whole = completion(server, "score", 0, echo=True, logprobs=1)["choices"][0]
    assert (whole["text"], whole["finish_reason"]) == ("score", "length")
    assert whole["logprobs"]["token_logprobs"] == columns["token_logprobs"][:5]


def test_a_prompt_is_told_in_a_stream(server: Server) -> None:
    options = {"prompt": "score", "max_tokens": 3, "echo": True, "logprobs": 1, "seed": 3, "ignore_eos": True}
    whole = post(server, "completions", **options)[1]["choices"][0]
    parts = [e["choices"][0] for e in events(server, "completions", **options)]
    assert "".join(p["text"] for p in parts) == whole["text"]
    for column, values in whole["logprobs"].items():
        assert [v for p in parts for v in p["logprobs"][column]] == values


CLIENTS = int(os.environ.get("TRITIUM_SERVED_CLIENTS", "20"))


def mixed(i: int) -> dict[str, Any]:
    """A request of one of many kinds; every third begins as others do, and copies what it read."""
    verse = "In the beginning God created the heaven and the earth. And the earth was without form, and void; "
    options: list[dict[str, Any]] = [
        {"temperature": 0}, {"temperature": 0, "guided_regex": "[a-z ,]{20,40}[.]"}, {"temperature": 1, "seed": i, "top_k": 8},
        {"temperature": 1, "seed": i, "guided_json": SCHEMA}, {"temperature": 0.8, "top_p": 0.9, "seed": i, "logprobs": 2},
        {"temperature": 0, "min_tokens": 30, "repetition_penalty": 1.2}, {"temperature": 0, "guided_choice": ["good", "evil", "very good"]},
        {"temperature": 1, "seed": i, "typical_p": 0.9}, {"temperature": 0, "echo": True, "logprobs": 1}, {"temperature": 1, "seed": i, "n": 2},
    ]  # fmt: skip
    prompt = verse * 2 + str(i % 4) if i % 3 else f"{i} And God said "
    return {"prompt": prompt, "max_tokens": 32, **options[i % len(options)]}


@pytest.mark.skipif(native is None, reason="a real model answers so many only with the native library")
def test_prefixes_guesses_formats_and_aborts_leave_each_text_as_alone() -> None:
    bodies, many = [mixed(i) for i in range(CLIENTS)], Limits(connections=512, client_connections=512)

    def ask(server: Server, body: dict[str, Any]) -> Any:
        status, found = post(server, "completions", **body)
        assert status == 200, found
        return [(c["text"], c["finish_reason"], told(c["logprobs"])) for c in found["choices"]]

    with Server(load(), port=0, grace_s=5.0, slots=1, prefix_cache=0, speculate=False) as plain:
        alone = [ask(plain, body) for body in bodies]
    with Server(load(), port=0, grace_s=5.0, slots=8, queue=256, speculate=True, limits=many) as busy:
        assert busy.scheduler.speculator is not None
        busy.scheduler.speculator.costs = Cheap()
        aborted = [begin(busy, {**bodies[i], "max_tokens": 200, "stream": True}) for i in range(0, CLIENTS, 5)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            futures = [pool.submit(ask, busy, body) for body in bodies]
            for sock in aborted:
                sock.close()
            assert [f.result() for f in futures] == alone
        assert busy.scheduler.prefixes.counts.hits > 0
        assert busy.scheduler.speculator.counts.accepted > 0


def told(logprobs: dict[str, Any] | None) -> Any:
    return None if logprobs is None else (logprobs["tokens"], logprobs["token_logprobs"])


# ---- while a format is compiled


def test_a_stream_and_other_requests_go_on_while_a_format_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = threading.Event(), threading.Event()
    plain = constraints._Compiler.compile

    def slow(self: Any, form: Any) -> Any:
        begun.set()
        assert over.wait(20)
        return plain(self, form)

    monkeypatch.setattr(constraints._Compiler, "compile", slow)
    with Server(Model(step_s=0.005), port=0, grace_s=5.0) as server, ThreadPoolExecutor(2) as pool:  # type: ignore[arg-type]
        waiting = pool.submit(completion, server, "1", 20, regex="[0-9]{3}")
        assert begun.wait(20)
        stream = pool.submit(completion, server, "endless", 480)
        while server.scheduler.meter.tokens < 8:
            time.sleep(0.005)
        assert completion(server, "abc", 8)["choices"][0]["text"] == expected("abc", 8)  # read, generated and answered
        assert (
            server.scheduler.meter.tokens >= 23
        )  # the stream had one beside each of its 7 decode steps; the first came from the prompt
        assert not waiting.done()
        over.set()
        assert re.fullmatch("[0-9]{3}", waiting.result()["choices"][0]["text"])
        assert stream.result()["choices"][0]["text"] == expected("endless", 480)


def test_the_vocabulary_is_read_before_requests_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(Model(), port=0, grace_s=5.0) as server:  # type: ignore[arg-type]
        monkeypatch.setattr(constraints, "_Vocabulary", None)  # nothing reads it again
        assert re.fullmatch("[0-9]{3}", completion(server, "1", 20, regex="[0-9]{3}")["choices"][0]["text"])

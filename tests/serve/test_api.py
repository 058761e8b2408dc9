"""Routes beside completions: tokens and texts, embeddings, what the server is; and the shape of errors by route."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("h11", reason="needs the extra 'run'")

from calls import call
from markov import Model, encode
from tritium.models.load import load
from tritium.serve.server import Server

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(Model(template=TEMPLATE), port=0, grace_s=5.0) as s:  # type: ignore[arg-type]
        yield s


@pytest.fixture(scope="module")
def real() -> Iterator[Server]:
    with Server(load(), port=0, grace_s=5.0) as s:
        yield s


def post(server: Server, path: str, body: Any) -> tuple[int, Any]:
    status, _, found = call(server, "POST", path, body)
    return status, found


@pytest.mark.parametrize("field", ["prompt", "content"])
def test_a_text_becomes_tokens_and_text_again(server: Server, field: str) -> None:
    status, found = post(server, "/tokenize", {field: "añ", "with_pieces": True})
    assert (status, found["tokens"], found["count"], found["max_model_len"]) == (200, list(encode("añ")), 3, 512)
    assert found["token_strs"][0] == "a"
    assert post(server, "/detokenize", {"tokens": found["tokens"]}) == (200, {"prompt": "añ", "content": "añ"})


def test_messages_become_the_tokens_of_their_prompt(server: Server) -> None:
    found = post(server, "/tokenize", {"messages": [{"role": "user", "content": "hi"}]})[1]
    assert found["tokens"] == list(encode("user: hi\nassistant:"))
    body = {"model": "markov", "messages": [{"role": "user", "content": "hi"}]}
    assert post(server, "/v1/messages/count_tokens", body) == (200, {"input_tokens": found["count"]})


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "a"}, "content"),
        ("/tokenize", {"promt": "a"}, "promt"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": [1, 2]}, "input"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "dimension": 3}, "dimension"),
    ],
    ids=str,
)
def test_a_wrong_body_is_named(server: Server, path: str, body: Any, param: str) -> None:
    status, found = post(server, path, body)
    assert (status, found["error"]["param"]) == (400, param)


def test_embeddings_are_those_of_the_model(real: Server) -> None:
    texts = ["In the beginning", "the end"]
    status, found = post(real, "/v1/embeddings", {"input": texts, "model": real.name})
    vectors = np.array([row["embedding"] for row in found["data"]], np.float32)
    np.testing.assert_array_equal(vectors, load().embed(texts))
    assert (status, [row["index"] for row in found["data"]], found["usage"]["total_tokens"]) == (200, [0, 1], 23)
    coded = post(real, "/v1/embeddings", {"input": texts[0], "encoding_format": "base64"})[1]["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(coded), "<f4"), vectors[0])
    size = vectors.shape[1]
    assert post(real, "/v1/embeddings", {"input": "a", "dimensions": size})[0] == 200
    assert post(real, "/v1/embeddings", {"input": "a", "dimensions": size - 1})[1]["error"]["param"] == "dimensions"
    assert post(real, "/v1/embeddings", {"input": "a" * 5000})[1]["error"]["code"] == "context_length_exceeded"


def test_a_model_without_embeddings_says_so(server: Server) -> None:
    assert post(server, "/v1/embeddings", {"input": "a"})[0] == 501


def test_the_server_says_what_it_is(server: Server) -> None:
    status, _, found = call(server, "GET", "/props")
    assert (status, found["total_slots"], found["chat_template"]) == (200, 4, TEMPLATE)
    assert found["default_generation_settings"]["n_ctx"] == 512


def test_the_vocabulary_is_told(server: Server) -> None:
    status, _, found = call(server, "GET", "/tokenizer_info")
    assert (status, found["eos_token"], found["chat_template"], found["vocab_size"]) == (200, "<end>", TEMPLATE, 257)


def test_an_error_has_the_shape_of_its_protocol() -> None:
    with Server(Model(template=TEMPLATE), port=0, grace_s=5.0, api_key="k") as s:  # type: ignore[arg-type]
        status, _, found = call(s, "POST", "/v1/messages", {})
        assert (status, found["type"], found["error"]["type"]) == (401, "error", "authentication_error")
        status, _, found = call(s, "POST", "/v1/messages", {}, x_api_key="k")
        assert (status, found["error"]["type"]) == (400, "invalid_request_error")
        assert call(s, "POST", "/v1/responses", {})[2]["error"]["code"] == "invalid_api_key"
        assert json.dumps(call(s, "POST", "/elsewhere", {}, x_api_key="k")[2]["error"])

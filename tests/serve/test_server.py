"""The server: right answers for all who may ask, whatever others do; nothing of them stays behind."""

from __future__ import annotations

import gc
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("h11", reason="needs the extra 'run'")

from calls import begin, call, completion, events, post
from markov import Model, encode, expected
from tritium.errors import ArgumentError, PackageError
from tritium.models.load import load
from tritium.serve import intake
from tritium.serve.exchange import Limits
from tritium.serve.protocols import common, openai as protocol
from tritium.serve.server import Server

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
USER = [{"role": "user", "content": "hi"}]
LONG = {"prompt": "endless", "max_tokens": 500, "temperature": 0}


def make(
    template: str | None = TEMPLATE, says: dict[str, str] | None = None, step_s: float = 0.0, **options: Any
) -> Server:
    return Server(Model(template=template, says=says or {}, step_s=step_s), port=0, **{"grace_s": 5.0, **options})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with make(says={"p": "one END two", "é": "añ😀"}) as found:
        yield found


def until(what: Callable[[], bool]) -> bool:
    end = time.monotonic() + 15
    while not what() and time.monotonic() < end:
        time.sleep(0.005)
    return what()


def quiet(server: Server) -> bool:
    return server.scheduler.running == server.scheduler.waiting == 0


# ---- answers


def test_a_completion(server: Server) -> None:
    found = completion(server, "abc", 12)
    assert found["object"] == "text_completion"
    assert found["model"] == "markov"
    assert found["choices"] == [
        {"index": 0, "text": expected("abc", 12), "logprobs": None, "finish_reason": "length"},
    ]
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (3, 12)


def test_a_chat(server: Server) -> None:
    status, found = post(server, "chat/completions", messages=USER, max_tokens=9)
    text = expected("user: hi\nassistant:", 9)
    assert (status, found["object"]) == (200, "chat.completion")
    assert found["choices"][0]["message"] == {"role": "assistant", "content": text, "refusal": None}


def test_streams_say_the_same_in_parts(server: Server) -> None:
    parts = events(server, "completions", prompt="abc", max_tokens=12, stream_options={"include_usage": True})
    *texts, usage = parts
    assert "".join(c["text"] for p in texts for c in p["choices"]) == expected("abc", 12)
    assert [c["finish_reason"] for p in texts for c in p["choices"]][-1] == "length"
    assert all(p["usage"] is None for p in texts)
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 12)
    assert len({p["id"] for p in parts}) == 1


def test_a_streamed_chat_begins_with_its_role(server: Server) -> None:
    parts = events(server, "chat/completions", messages=USER, max_tokens=5)
    deltas = [p["choices"][0]["delta"] for p in parts]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(d.get("content", "") for d in deltas) == expected("user: hi\nassistant:", 5)
    assert "usage" not in parts[0]


def test_streams_break_no_character(server: Server) -> None:
    parts = events(server, "completions", prompt="é", max_tokens=50)
    assert "".join(c["text"] for p in parts for c in p["choices"]) == "añ😀"
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_is_not_part_of_the_answer(server: Server) -> None:
    for stop in ("END", ["zzz", "END"]):
        choice = completion(server, "p", 50, stop=stop)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("one ", "stop")


def test_several_prompts_and_choices_keep_their_order(server: Server) -> None:
    found = completion(server, ["a", "bb", "ccc"], 6, n=2, echo=True)
    texts = [p + expected(p, 6) for p in ("a", "bb", "ccc") for _ in range(2)]
    assert [(c["index"], c["text"]) for c in found["choices"]] == list(enumerate(texts))
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (6, 36)
    parts = events(server, "completions", prompt=["a", "bb", "ccc"], max_tokens=6, n=2)
    for i, text in enumerate(texts):
        said = "".join(c["text"] for p in parts for c in p["choices"] if c["index"] == i)
        assert text.endswith(said)
        assert len(said) == 6


def test_a_prompt_may_be_tokens(server: Server) -> None:
    assert completion(server, list(encode("abc")), 5)["choices"][0]["text"] == expected("abc", 5)


def test_a_seed_repeats_and_choices_differ(server: Server) -> None:
    def texts(seed: int) -> list[str]:
        return [c["text"] for c in completion(server, "a", 12, seed=seed, temperature=2, n=3)["choices"]]

    assert texts(1) == texts(1)
    assert len({*texts(1), *texts(2)}) == 6


def test_log_probabilities(server: Server) -> None:
    choice = completion(server, "abc", 4, logprobs=2)["choices"][0]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]
    assert [len(t) for t in choice["logprobs"]["top_logprobs"]] == [2] * 4
    _, chat = post(server, "chat/completions", messages=USER, max_tokens=3, logprobs=True, top_logprobs=1)
    content = chat["choices"][0]["logprobs"]["content"]
    assert "".join(e["token"] for e in content) == chat["choices"][0]["message"]["content"]
    assert all(e["top_logprobs"][0]["token"] == e["token"] for e in content)


def test_a_bias_changes_the_answer(server: Server) -> None:
    (z,) = encode("z")
    assert completion(server, "abc", 4, logit_bias={str(z): 100})["choices"][0]["text"] == "zzzz"


def test_the_models_and_the_health(server: Server) -> None:
    status, _, models = call(server, "GET", "/v1/models")
    assert (status, [m["id"] for m in models["data"]]) == (200, ["markov"])
    assert call(server, "GET", "/v1/models/markov")[2] == models["data"][0]
    assert call(server, "GET", "/health")[2]["status"] == "ok"


def test_the_public_client(server: Server) -> None:
    openai = pytest.importorskip("openai", reason="needs the openai package")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
    with client:
        assert [m.id for m in client.models.list()] == ["markov"]
        plain = client.completions.create(model="markov", prompt="abc", max_tokens=7, temperature=0)
        assert plain.choices[0].text == expected("abc", 7)
        assert plain.usage.total_tokens == 10
        chat = client.chat.completions.create(model="markov", messages=USER, max_completion_tokens=7, temperature=0)
        assert chat.choices[0].message.content == expected("user: hi\nassistant:", 7)
        parts = list(
            client.chat.completions.create(
                model="markov",
                messages=USER,
                max_tokens=7,
                temperature=0,
                stream=True,
                logprobs=True,
                stream_options={"include_usage": True},
            )
        )
        assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == expected(
            "user: hi\nassistant:", 7
        )
        assert parts[-1].usage.completion_tokens == 7
        with pytest.raises(openai.NotFoundError, match="'other' is not served here"):
            client.completions.create(model="other", prompt="a")
        with pytest.raises(openai.BadRequestError, match="not made for them") as caught:
            client.chat.completions.create(
                model="markov", messages=USER, tools=[{"type": "function", "function": {"name": "f"}}]
            )
        assert caught.value.param == "tools"


# ---- what is refused


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param", "code"),
    [
        ("POST", "completions", b"{", 400, None, "invalid_json"),
        ("POST", "completions", b"[]", 400, None, "invalid_json"),
        ("POST", "completions", {}, 400, "prompt", "missing_required_parameter"),
        ("POST", "completions", {"prompt": "a", "temperature": "hot"}, 400, "temperature", "invalid_value"),
        ("POST", "completions", {"prompt": "a", "n": 17}, 400, "n", "invalid_value"),
        ("POST", "completions", {"prompt": ["a"] * 17}, 400, "n", "invalid_value"),
        ("POST", "completions", {"prompt": ""}, 400, None, "invalid_value"),
        ("POST", "completions", {"prompt": [257]}, 400, None, "invalid_value"),
        ("POST", "completions", {"prompt": "a", "logit_bias": {"257": 1}}, 400, "logit_bias", "invalid_value"),
        ("POST", "completions", {"prompt": "a" * 513}, 400, None, "context_length_exceeded"),
        ("POST", "completions", {"prompt": "a", "model": "gpt"}, 404, "model", "model_not_found"),
        ("POST", "completions", {"prompt": "a", "temprature": 0}, 400, "temprature", "unknown_parameter"),
        ("POST", "completions", {"prompt": "a", "guided_regex": "(a"}, 400, "guided_regex", "invalid_value"),
        ("POST", "completions", {"prompt": "a", "stop_token_ids": [257]}, 400, "stop_token_ids", "invalid_value"),
        ("POST", "completions", {"prompt": "a", "allowed_token_ids": []}, 400, "allowed_token_ids", "invalid_value"),
        ("POST", "completions", {"prompt": "a", "mirostat": 2}, 400, "mirostat", "unsupported_parameter"),
        ("POST", "completions", {"prompt": "a", "suffix": "b"}, 400, "suffix", "unsupported_parameter"),
        ("POST", "chat/completions", {"messages": [{"role": "user"}]}, 400, "messages[0].content", "invalid_value"),
        ("POST", "completions", {"prompt": "a?"}, 500, None, None),
        ("POST", "elsewhere", {}, 404, None, "unknown_url"),
        ("GET", "completions", None, 405, None, "method_not_allowed"),
        ("DELETE", "models", None, 405, None, "method_not_allowed"),
        ("POST", "completions", b" " * (5 << 20), 413, None, None),
    ],
    ids=lambda v: str(v)[:40],
)
def test_errors_have_the_shape_of_openai(
    server: Server, method: str, path: str, body: Any, status: int, param: str | None, code: str | None
) -> None:
    got, headers, found = call(server, method, f"/v1/{path}", body)
    assert got == status, found
    assert {"message", "type", "param", "code"} == set(found["error"])
    assert (found["error"]["param"], found["error"]["code"]) == (param, code)
    assert found["error"]["type"] == ("server_error" if status == 500 else "invalid_request_error")
    assert status != 405 or headers["allow"] in ("GET", "POST")


def test_a_model_that_fails_ends_a_stream_with_an_error(server: Server) -> None:
    _, text = post(server, "completions", prompt="a?", stream=True)
    assert "cannot read this" in json.loads(text.removeprefix("data: "))["error"]["message"]
    assert "[DONE]" not in text


def test_a_model_without_template_cannot_chat() -> None:
    with make(template=None) as s:
        status, found = post(s, "chat/completions", messages=USER)
        assert (status, found["error"]["param"]) == (400, "messages")
        assert "no chat template" in found["error"]["message"]
    with make(template=None, chat_template=TEMPLATE) as s:
        assert post(s, "chat/completions", messages=USER, max_tokens=1)[0] == 200


def test_a_template_is_shown_the_name_in_a_message() -> None:
    with make(template="{% for m in messages %}{{ m.name }}: {{ m.content }}{% endfor %}") as s:
        status, found = post(s, "chat/completions", messages=[{**USER[0], "name": "ann"}], max_tokens=4)
    assert (status, found["choices"][0]["message"]["content"]) == (200, expected("ann: hi", 4))


def test_a_template_that_refuses_is_a_400() -> None:
    with make(template="{{ raise_exception('roles must alternate') }}") as s:
        status, found = post(s, "chat/completions", messages=USER)
    assert status == 400
    assert "roles must alternate" in found["error"]["message"]


@pytest.mark.parametrize(
    "template",
    [
        "{{", "{% if 1 %}" * 120 + "x" + "{% endif %}" * 120, "{{ " + "9" * 5000 + " }}", "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{{a}}" * 30_000,
        "{{ 'x' * 99999999 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ messages.nothing.at.all }}",
        "{{ 1 / 0 }}", "{{ '%d' % 'x' }}",
        "{{ ('x'|e).zfill(4000000000) }}", "{{ '\ud800' }}", "{% for i in 5 %}{% endfor %}", "{% break %}", "{{ caller() }}",
    ],
    ids=range(15),
)  # fmt: skip
def test_whatever_is_wrong_with_a_template_is_a_400_with_the_reason(template: str) -> None:
    with make(template=template) as s:
        status, found = post(s, "chat/completions", messages=USER, max_tokens=1)
        assert status == 400 or (template == "{{ '\ud800' }}" and status == 200), found
        assert status == 200 or "chat template" in found["error"]["message"]
        assert completion(s, "abc", 4)["choices"][0]["text"] == expected("abc", 4)


def test_a_full_queue_says_when_to_come_back() -> None:
    with make(slots=1, queue=0, step_s=0.005) as s:
        held = begin(s, LONG)
        assert until(lambda: s.scheduler.running == 1)
        status, headers, found = call(s, "POST", "/v1/completions", {"prompt": "a"})
        held.close()
    assert (status, found["error"]["code"]) == (503, "busy")
    assert int(headers["retry-after"]) >= 1


def test_an_answer_has_at_most_max_tokens() -> None:
    with make(max_tokens=3) as s:
        choice = completion(s, "abc", 100)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (expected("abc", 3), "length")


# ---- who may ask


def test_a_key_is_asked_for_and_compared() -> None:
    with make(api_key="s3cret") as s:
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic s3cret"},
            {"authorization": "Bearer"},
        ):
            status, got, found = call(s, "GET", "/v1/models", **headers)
            assert (status, found["error"]["code"]) == (401, "invalid_api_key")
            assert got["www-authenticate"] == "Bearer"
        assert call(s, "GET", "/v1/models", authorization="Bearer s3cret")[0] == 200
        assert call(s, "GET", "/health")[0] == 200
        assert call(s, "GET", "/v1/models", authorization="Bearer s3crét")[0] == 401


@pytest.mark.parametrize(
    ("header", "status", "code"),
    [
        (b"host: localhost", 401, "invalid_api_key"),
        (b"host: localhost\r\nauthorization: Bearer wrong", 401, "invalid_api_key"),
        (b"host: evil.example\r\nauthorization: Bearer s3cret", 403, "host_not_allowed"),
        (b"host: localhost\r\norigin: https://evil.example\r\nauthorization: Bearer s3cret", 403, "origin_not_allowed"),
    ],
)
@pytest.mark.parametrize("framing", [b"content-length: 1000000000", b"transfer-encoding: chunked"])
def test_who_may_not_ask_is_refused_before_the_body(header: bytes, status: int, code: str, framing: bytes) -> None:
    with make(api_key="s3cret", limits=Limits(read_s=600)) as s:
        sock = socket.create_connection(("127.0.0.1", s.port), timeout=20)
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\n%s\r\n%s\r\n\r\n" % (header, framing))
        parts = []
        while part := sock.recv(65536):  # ends: the server closes, and no byte of a body was sent
            parts.append(part)
        sock.close()
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == code


def test_a_trusted_page_can_read_why_its_key_is_refused() -> None:
    with make(api_key="s3cret", allowed_origins=["https://good.example"]) as s:
        status, headers, _ = call(s, "POST", "/v1/completions", {}, origin="https://good.example")
    assert (status, headers["access-control-allow-origin"]) == (401, "https://good.example")


def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITIUM_API_KEY", "k")
    with make() as s:
        assert call(s, "GET", "/v1/models")[0] == 401
        assert call(s, "GET", "/v1/models", authorization="Bearer k")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_listening_for_others_needs_a_key_or_a_word(host: str) -> None:
    with pytest.raises(ArgumentError, match="API key is needed"):
        make(host=host)
    make(host=host, api_key="k")
    make(host=host, allow_anonymous=True)


def test_an_address_that_cannot_be_had_is_said(server: Server) -> None:
    with pytest.raises(ArgumentError, match=r"cannot listen on 127\.0\.0\.1"):
        Server(Model(), port=server.port).start()
    with pytest.raises(ArgumentError, match="no address of this machine"):
        Server(Model(), host="a" * 64)


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST:80", 200), ("127.0.0.1:8080", 200), ("[::1]:80", 200), ("evil.example", 403),
     ("localhost.evil.example:80", 403), ("box.lan", 200), ("", 403)],
)  # fmt: skip
def test_a_name_the_server_does_not_know_is_refused(host: str, status: int) -> None:
    with make(allowed_hosts=["box.lan"]) as s:
        assert call(s, "GET", "/health", host=host)[0] == status


def test_web_pages_are_refused_unless_allowed() -> None:
    with make(allowed_origins=["https://good.example"]) as s:
        status, headers, found = call(s, "GET", "/v1/models", origin="https://evil.example")
        assert (status, found["error"]["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in headers
        status, headers, _ = call(s, "OPTIONS", "/v1/completions", origin="https://good.example")
        assert (status, headers["access-control-allow-origin"]) == (204, "https://good.example")
        status, headers, _ = call(s, "GET", "/v1/models", origin="https://good.example")
        assert (status, headers["access-control-allow-origin"]) == (200, "https://good.example")
        assert call(s, "OPTIONS", "/v1/completions")[0] == 405


def test_an_absent_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    monkeypatch.delitem(sys.modules, "tritium.serve.http")
    monkeypatch.delattr("tritium.serve.http", raising=False)
    with pytest.raises(
        PackageError, match=r"^Serving a model needs the package 'h11', which is not installed; pip install h11\.$"
    ):
        make()


# ---- many, slow and gone


def test_thirty_two_clients_at_once_all_get_their_own_text() -> None:
    def one(i: int) -> None:
        prompt = f"client {i:02d} " * (1 + i % 7)
        if i % 2:
            text = completion(s, prompt, 20 + i)["choices"][0]["text"]
        else:
            parts = events(s, "completions", prompt=prompt, max_tokens=20 + i)
            text = "".join(c["text"] for p in parts for c in p["choices"])
        assert text == expected(prompt, 20 + i)

    with make() as s, ThreadPoolExecutor(32) as pool:
        for done in [pool.submit(one, i) for i in range(32)]:
            done.result()
        assert quiet(s)


def test_the_model_in_the_package_says_to_many_what_it_says_alone() -> None:
    model = load()
    prompts = [f"And {who} said" for who in ("God", "Moses", "he", "she", "they", "Abraham")] * 2
    with Server(model, port=0, slots=3) as s, ThreadPoolExecutor(len(prompts)) as pool:
        told = list(pool.map(lambda p: completion(s, p, 20)["choices"][0]["text"], prompts))
    assert told == [model.generate(p, max_tokens=20).text for p in prompts]


def test_readers_that_read_nothing_hold_nobody_up() -> None:
    with make(slots=2) as s:
        lagging = [begin(s, {**LONG, "max_tokens": 200, "stream": True, "logprobs": 20, "n": 2}) for _ in range(4)]
        assert completion(s, "quick", 30)["choices"][0]["text"] == expected("quick", 30)
        assert until(lambda: quiet(s))  # they take no slot once all is said
        for sock in lagging:
            sock.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(stream: bool) -> None:
    with make(slots=1, step_s=0.01) as s:
        sock = begin(s, {**LONG, "stream": stream})
        assert until(lambda: s.scheduler.running == 1)
        if stream:
            assert sock.recv(100)
        sock.close()
        assert until(lambda: quiet(s))
        assert len(s.scheduler.session.tokens(0)) < 400
        assert completion(s, "next", 3)["choices"][0]["text"] == expected("next", 3)


def test_a_client_that_leaves_the_queue_is_never_run() -> None:
    with make(slots=1, step_s=0.005) as s:
        first = begin(s, LONG)
        assert until(lambda: s.scheduler.running == 1)
        second = begin(s, LONG)
        assert until(lambda: s.scheduler.waiting == 1)
        second.close()
        assert until(lambda: s.scheduler.waiting == 0)
        assert s.scheduler.running == 1
        first.close()


def test_many_requests_leave_nothing_behind() -> None:
    def count() -> tuple[int, int]:
        """Threads and open files, less those that read texts: a server has two, each started when it is first needed."""
        gc.collect()
        reading = sum(t.name.startswith("tritium-serve-text") for t in threading.enumerate())
        return threading.active_count() - reading, len(os.listdir("/proc/self/fd"))

    def at_most(limit: tuple[int, int]) -> bool:
        return all(now <= then for now, then in zip(count(), limit, strict=True))

    def some() -> None:
        for i in range(30):
            completion(s, f"{i}", 2)
            events(s, "completions", prompt=f"{i}", max_tokens=2)
            call(s, "POST", "/v1/completions", b"{")
            begin(s, {**LONG, "stream": True}).close()
        assert until(lambda: quiet(s))

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to count open files")
    outside = count()
    with make() as s:
        some()
        before = count()
        some()
        assert until(lambda: at_most(before)), (before, count())
    assert until(lambda: at_most(outside)), (outside, count())


def test_half_a_request_runs_out_of_time() -> None:
    with make(limits=Limits(read_s=0.2)) as s:
        sock = socket.create_connection(("127.0.0.1", s.port), timeout=20)
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{")
        text = sock.recv(10000)
        assert text.startswith(b"HTTP/1.1 408")
        assert json.loads(text.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        sock.close()


def test_a_body_in_tiny_chunks_does_not_delay_others() -> None:
    """The bound on the work between two passes of the event loop is tested in tests/serve/test_http.py; this is the whole server."""
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with make(limits=Limits(framing_bytes=16 << 20)) as s:
        sock = socket.create_connection(("127.0.0.1", s.port), timeout=60)
        sender = threading.Thread(target=sock.sendall, args=(head + b"1\r\n \r\n" * 60_000 + b"0\r\n\r\n",))
        sender.start()
        longest = 0.0
        while sender.is_alive():
            begin_s = time.monotonic()
            assert call(s, "GET", "/health")[0] == 200
            longest = max(longest, time.monotonic() - begin_s)
        answer = sock.recv(65536)
        sock.close()
        sender.join()
    assert answer.startswith(b"HTTP/1.1 400")  # spaces are no JSON
    assert longest < 2.0


# ---- the end


class Slow:
    """The tokenizer of the model, which splits texts that begin with `slow` only when the test says so."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.go, self.entered = inner, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode(self, text: str, bos: bool = True) -> list[int]:
        if text.startswith("slow"):
            self.entered.set()
            assert self.go.wait(60)
            text = text[:6]
        return list(self.inner.encode(text, bos))


def test_long_bodies_delay_no_short_one_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "LONG_BODIES", 4)
    long = {"prompt": "slow" + " " * (intake.SHORT_BYTES + 1), "max_tokens": 1}
    with make() as s:
        slow = s.scheduler.tokenizer = Slow(s.scheduler.tokenizer)  # type: ignore[assignment]
        held = [begin(s, long) for _ in range(2)]
        assert until(lambda: s._service.intake.long.held.total() == 2)
        assert completion(s, "abc", 4)["choices"][0]["text"] == expected("abc", 4)
        status, headers, found = call(s, "POST", "/v1/completions", long)
        assert (status, headers["retry-after"], found["error"]["code"]) == (429, "1", "busy")
        assert found["error"]["type"] == "rate_limit_error"
        s._service.intake.long.held["192.0.2.1"] += 2  # as if others held the rest
        status, headers, found = call(s, "POST", "/v1/completions", long)
        assert (status, headers["retry-after"], found["error"]["code"]) == (503, "1", "busy")
        s._service.intake.long.held["192.0.2.1"] -= 2
        slow.go.set()
        for h in held:
            assert h.recv(100).startswith(b"HTTP/1.1 200")
            h.close()
        assert until(lambda: s._service.intake.long.held.total() == 0)


def test_a_client_that_leaves_gives_its_place_among_long_bodies_back() -> None:
    long = {"prompt": "slow" + " " * (intake.SHORT_BYTES + 1), "max_tokens": 1}
    with make() as s:
        slow = s.scheduler.tokenizer = Slow(s.scheduler.tokenizer)  # type: ignore[assignment]
        held = [begin(s, long) for _ in range(4)]
        assert until(lambda: s._service.intake.long.held.total() == 4)
        for h in held:
            h.close()
        assert until(lambda: s._service.intake.long.held.total() == 1)  # the one in the thread
        slow.go.set()
        assert until(lambda: s._service.intake.long.held.total() == 0)


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        ([1] * 600_000, "context_length_exceeded", None),
        ([[1], [1] * 600_000], "context_length_exceeded", None),
        (["a"] * 400_000, "invalid_value", "n"),
        ([[]] * 400_000, "invalid_value", "n"),
        ([True] * 513, "context_length_exceeded", None),
    ],
    ids=["ids", "lists", "texts", "empty lists", "flags"],
)
def test_long_lists_are_refused_by_their_length(
    server: Server, prompt: Any, code: str, param: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_at(*_: Any) -> Any:
        raise AssertionError("the entries were looked at")

    monkeypatch.setitem(protocol.COMPLETION, "prompt", (looked_at, None))
    status, found = post(server, "completions", prompt=prompt)
    assert status == 400
    assert (found["error"]["code"], found["error"]["param"]) == (code, param)


def test_a_panic_of_a_binding_is_an_answer_and_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicError(BaseException):
        pass

    def panic(*_: Any, **__: Any) -> Any:
        raise PanicError("index out of bounds")

    with make() as s:
        with monkeypatch.context() as m:
            m.setattr(type(s._service.api.answers), "read", panic)
            status, found = post(s, "completions", prompt="a")
            assert (status, found["error"]["type"]) == (500, "server_error")
        assert completion(s, "abc", 4)["choices"][0]["text"] == expected("abc", 4)


HOSTILE = [
    "<script>alert(1)</script>", "\x1b[2J\x1b]0;owned\x07", "a\r\nset-cookie: x=1", "\u202egnp.exe", "\udcff\udcfe", "x" * 5000,
    "::error::owned", "\x9b31m\x85", "'\"><img src=x onerror=alert(1)>", "%1b%5b2J", "\x00", "../../etc/passwd", "é/ü 世界",
]  # fmt: skip


def harmless(text: str) -> bool:
    return text.isprintable() and len(text) <= common.MOST_MESSAGE + 1


def texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (t for pair in value.items() for v in pair for t in texts(v))
    elif isinstance(value, list):
        yield from (t for v in value for t in texts(v))


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_model_name_is_one_printable_line_everywhere(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "tritium"), make(name=name, grace_s=0.0) as s:
        for method, path, body in [
            ("GET", "/v1/models", None), ("GET", "/nowhere", None),
            ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "temperature": 0}),
            ("POST", "/v1/completions", {"prompt": "a", "model": "other"}),
        ]:  # fmt: skip
            status, headers, found = call(s, method, path, body)
            assert status in (200, 404)
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["content-type"] == "application/json"
            assert all(map(harmless, texts(found)))
        assert call(s, "GET", f"/v1/models/{quote(s.name)}")[2]["id"] == s.name
        assert completion(s, "a", 1, model=s.name)["model"] == s.name
    assert all(map(harmless, (r.getMessage() for r in caplog.records)))


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_hostile_text_in_a_request_comes_back_as_one_printable_line(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    escaped = quote(name, safe="", errors="surrogatepass")
    chat = {"role": "user", "content": "a"}
    with caplog.at_level("INFO", "tritium"):
        for path, body in [
            (f"/v1/models/{escaped}", None), (f"/{escaped}", None), ("/v1/completions", {"prompt": "a", name: 1}),
            ("/v1/completions", {"prompt": "a", "model": name}), ("/v1/completions", {"prompt": "a", "response_format": {"type": name}}),
            ("/v1/completions", {"prompt": name, "n": name}), ("/v1/chat/completions", {"messages": [{**chat, "role": name}]}),
            ("/v1/chat/completions", {"messages": [{**chat, name: name}]}), ("/v1/chat/completions", {"messages": [chat], name: name}),
            ("/v1/chat/completions", {"messages": [{**chat, "content": [{"type": name}]}]}),
            ("/v1/completions", {"prompt": "a", "stream_options": {name: True}}), ("/v1/completions", {"prompt": "a", "logit_bias": {name: 1}}),
        ]:  # fmt: skip
            status, headers, found = call(server, "POST" if body else "GET", path, body)
            assert status in (400, 404), (path, found)
            assert headers["x-content-type-options"] == "nosniff"
            assert all(map(harmless, texts(found))), (path, body)
            assert set(headers) <= {
                "date",
                "content-type",
                "content-length",
                "x-content-type-options",
                "connection",
                "allow",
            }
    assert all(map(harmless, (r.getMessage() for r in caplog.records)))


@pytest.mark.parametrize("field", ["host", "origin", "authorization", "x-anything"])
def test_hostile_headers_come_back_as_one_printable_line(server: Server, field: str) -> None:
    for name in HOSTILE:
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        lines = {"host": b"localhost", "connection": b"close", field: name.encode("utf-8", "surrogatepass")}
        sock.sendall(
            b"GET /v1/models HTTP/1.1\r\n"
            + b"".join(b"%s: %s\r\n" % (k.encode(), v) for k, v in lines.items())
            + b"\r\n"
        )
        answer = bytearray()
        while part := sock.recv(65536):
            answer += part
        sock.close()
        head, _, body = bytes(answer).partition(b"\r\n\r\n")
        assert head.split()[1] in (b"200", b"400", b"403"), name
        assert all(map(harmless, texts(json.loads(body)))), name
        assert b"cookie" not in head.lower()


def test_stopping_lets_running_requests_end() -> None:
    s = make(slots=1, step_s=0.002).start()
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(completion, s, p, 60) for p in ("first", "second")]
        assert until(lambda: s.scheduler.running == 1 and s.scheduler.waiting == 1)
        s.stop()
        assert [r.result()["choices"][0]["text"] for r in running] == [expected(p, 60) for p in ("first", "second")]
    with pytest.raises(ConnectionError):
        call(s, "GET", "/health")
    s.stop()


def test_stopping_cuts_off_what_takes_too_long_and_says_so() -> None:
    s = make(slots=2, step_s=0.01).start()
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(post, s, "completions", **LONG)
        streamed = pool.submit(post, s, "completions", stream=True, **LONG)
        assert until(lambda: s.scheduler.running == 2)
        s.stop(grace_s=0.05)
        assert whole.result()[0] == 503
        assert whole.result()[1]["error"]["code"] == "shutting_down"
        last = streamed.result()[1].strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_in_good_order(number: int) -> None:
    code = "import markov; from tritium.serve.server import serve; " \
        "serve(markov.Model(step_s=0.002), port=0, ready=lambda s: print(s.port, flush=True)); print('over')"  # fmt: skip
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), *sys.path])}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        raw = json.dumps({"prompt": "abc", "max_tokens": 100, "temperature": 0}).encode()
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        c.request("POST", "/v1/completions", raw)
        assert until(lambda: health(port)["running"] == 1)
        child.send_signal(number)
        assert json.loads(c.getresponse().read())["choices"][0]["text"] == expected("abc", 100)
        assert child.stdout.read() == "over\n"
        assert child.wait(20) == 0
        c.close()
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def health(port: int) -> Any:
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    c.request("GET", "/health")
    found = json.loads(c.getresponse().read())
    c.close()
    return found

"""The ASGI app: the same responses as the server's own front end, by the protocol alone and behind uvicorn and hypercorn."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from markov import Model, expected
from tritium.errors import ArgumentError
from tritium.models.load import load
from tritium.serve.asgi import App, app as package_app, create_app
from tritium.serve.exchange import Limits

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
LOCAL = ("127.0.0.1", 8080)


def make(step_s: float = 0.0, model: Any = None, **options: Any) -> App:
    return create_app(model or Model(template=TEMPLATE, step_s=step_s), **options)


@asynccontextmanager
async def living(app: App) -> AsyncIterator[App]:
    """Run an app's life as a server does: started before, shut down after."""
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outbox: asyncio.Queue[Any] = asyncio.Queue()
    life = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    try:
        yield app
    finally:
        await inbox.put({"type": "lifespan.shutdown"})
        assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
        await life


class Client:
    """One request by the ASGI protocol: `parts` of its body, then silence until it `leaves`."""

    def __init__(self, method: str, path: str, parts: Sequence[bytes] = (b"",), **scope: Any) -> None:
        headers = {"host": "localhost", **scope.pop("headers", {})}
        raw = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
        self.scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path, "query_string": b"",
            "headers": raw, "server": LOCAL, "client": ("127.0.0.1", 5), **scope,
        }  # fmt: skip
        self.parts = list(parts)
        self.leaves = asyncio.Event()
        self.sent: list[Any] = []
        self.wrote = asyncio.Event()
        self.taken = 0

    async def receive(self) -> dict[str, Any]:
        if self.taken < len(self.parts):
            self.taken += 1
            return {
                "type": "http.request",
                "body": self.parts[self.taken - 1],
                "more_body": self.taken < len(self.parts),
            }
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        self.wrote.set()

    async def call(self, app: App) -> Client:
        await app(self.scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def text(self) -> str:
        assert not self.sent[-1].get("more_body", False)
        return b"".join(m["body"] for m in self.sent[1:]).decode()


def posted(path: str, body: Any, **scope: Any) -> Client:
    return Client("POST", path, [json.dumps({"temperature": 0, **body}).encode()], **scope)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


async def until(what: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not what() and time.monotonic() < end:
        await asyncio.sleep(0.005)
    return what()


def scheduler(app: App) -> Any:
    assert app._service is not None
    return app._service.scheduler


def test_a_completion_whole_and_streamed() -> None:
    async def test() -> None:
        async with living(make()) as app:
            whole = await posted("/v1/completions", {"prompt": "abc", "max_tokens": 12}).call(app)
            assert (whole.status, json.loads(whole.text)["choices"][0]["text"]) == (200, expected("abc", 12))
            lengths = [v for n, v in whole.sent[0]["headers"] if n == b"content-length"]
            assert lengths == [str(len(whole.text.encode())).encode()]
            body = {"prompt": "abc", "max_tokens": 12, "stream": True}
            stream = await posted("/v1/completions", body).call(app)
            *events, done = [line.removeprefix("data: ") for line in stream.text.split("\n\n") if line]
            assert done == "[DONE]"
            texts = [json.loads(e)["choices"][0]["text"] for e in events]
            assert "".join(texts) == expected("abc", 12)

    run(test)


def test_a_body_in_pieces_is_one_body() -> None:
    async def test() -> None:
        raw = json.dumps({"prompt": "é", "max_tokens": 3, "temperature": 0}, ensure_ascii=False).encode()
        async with living(make()) as app:
            client = await Client("POST", "/v1/completions", [raw[i : i + 1] for i in range(len(raw))]).call(app)
            assert json.loads(client.text)["choices"][0]["text"] == expected("é", 3)

    run(test)


@pytest.mark.parametrize(
    ("client", "status"),
    [
        (lambda: Client("GET", "/health"), 200),
        (lambda: Client("GET", "/app/health", root_path="/app"), 200),
        (lambda: Client("GET", "/health", root_path="/app"), 200),
        (lambda: Client("GET", "/v1/models/mark%ov"), 404),
        (lambda: Client("GET", "/v1/completions"), 405),
        (lambda: Client("POST", "/v1/completions", [b"{"]), 400),
        (lambda: Client("GET", "/health", headers={"host": "evil.example"}), 403),
        (lambda: Client("GET", "/health", headers={"origin": "https://evil.example"}), 403),
        (lambda: Client("GET", "/health", headers={"x": "a" * 20_000}), 431),
        (lambda: Client("GET", "/health", server=("192.0.2.1", 80)), 403),
        (lambda: Client("GET", "/health", server=None), 403),
        (lambda: Client("GET", "/health", server=("/run/x.sock", None)), 200),
        (lambda: Client("GET", "/health", server=("::1", 80)), 200),
        (lambda: Client("POST", "/v1/completions", headers={"content-length": "1e3"}), 400),
        (lambda: Client("POST", "/v1/completions", headers={"content-length": "9" * 5000}), 413),
    ],
)
def test_requests_are_admitted_by_the_same_rules(client: Callable[[], Client], status: int) -> None:
    async def test() -> None:
        async with living(make()) as app:
            assert (await client().call(app)).status == status

    run(test)


def test_a_key_or_leave_admits_others_by_any_address() -> None:
    async def test() -> None:
        async with living(make(api_key="secret")) as app:
            far: dict[str, Any] = {"server": ("192.0.2.1", 80)}
            assert (await Client("GET", "/v1/models", **far).call(app)).status == 401
            assert (await Client("GET", "/v1/models", headers={"x-api-key": "secret"}, **far).call(app)).status == 200
        async with living(make(allow_anonymous=True)) as app:
            assert (await Client("GET", "/v1/models", server=("192.0.2.1", 80)).call(app)).status == 200

    run(test)


def test_a_large_body_is_refused_before_it_is_read() -> None:
    async def test() -> None:
        limits = Limits(body_bytes=100)
        async with living(make(limits=limits)) as app:
            told = await Client("POST", "/v1/completions", [b"x"] * 9, headers={"content-length": "101"}).call(app)
            assert (told.status, told.taken) == (413, 0)
            untold = await Client("POST", "/v1/completions", [b"x" * 60] * 9).call(app)
            assert (untold.status, untold.taken) == (413, 2)

    run(test)


def test_a_slow_sender_and_a_slow_reader_are_given_up() -> None:
    async def test() -> None:
        async with living(make(limits=Limits(read_s=0.05, write_s=0.05))) as app:
            silent = Client("POST", "/v1/completions", [])
            assert (await silent.call(app)).status == 408

            class Stuck(Client):
                async def send(self, message: Any) -> None:
                    await super().send(message)
                    if len(self.sent) > 1:
                        await asyncio.sleep(60)

            body = {"prompt": "abc", "max_tokens": 400, "stream": True}
            stuck = Stuck("POST", "/v1/completions", [json.dumps(body).encode()])
            with pytest.raises(ConnectionAbortedError):
                await stuck.call(app)
            assert await until(lambda: scheduler(app).running == 0)

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(stream: bool) -> None:
    async def test() -> None:
        async with living(make(step_s=0.01)) as app:
            body = {"prompt": "endless", "max_tokens": 500, "stream": stream}
            client = posted("/v1/completions", body)
            call = asyncio.create_task(client.call(app))
            assert await until(lambda: scheduler(app).running == 1)
            if stream:
                await client.wrote.wait()
            client.leaves.set()
            await call
            assert await until(lambda: scheduler(app).running == 0)
            assert scheduler(app).meter.tokens < 500

    run(test)


def test_a_cancelled_call_frees_its_slot() -> None:
    async def test() -> None:
        async with living(make(step_s=0.01)) as app:
            call = asyncio.create_task(posted("/v1/completions", {"prompt": "a", "max_tokens": 500}).call(app))
            assert await until(lambda: scheduler(app).running == 1)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            assert await until(lambda: scheduler(app).running == 0)

    run(test)


def test_a_client_that_leaves_before_its_request_is_whole_is_not_answered() -> None:
    async def test() -> None:
        async with living(make()) as app:
            client = Client("POST", "/v1/completions", [])
            client.leaves.set()
            assert (await client.call(app)).sent == []

    run(test)


def test_clients_at_once_each_get_their_own_text() -> None:
    async def test() -> None:
        async with living(make(slots=4)) as app:
            prompts = [f"client {i} " * (1 + i % 5) for i in range(24)]
            calls = [posted("/v1/completions", {"prompt": p, "max_tokens": 9}).call(app) for p in prompts]
            for prompt, client in zip(prompts, await asyncio.gather(*calls), strict=True):
                assert json.loads(client.text)["choices"][0]["text"] == expected(prompt, 9)

    run(test)


def test_without_a_lifespan_the_first_request_starts_it() -> None:
    async def test() -> None:
        app = make()
        both = await asyncio.gather(*(Client("GET", "/health").call(app) for _ in range(2)))
        assert [c.status for c in both] == [200, 200]
        assert app._service is not None
        app._service.close()

    run(test)


def test_a_model_that_cannot_be_loaded_fails_the_start(tmp_path: Path) -> None:
    async def test() -> None:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "lifespan.startup"}

        async def send(message: Any) -> None:
            sent.append(message)

        await create_app(tmp_path / "absent.gguf")({"type": "lifespan"}, receive, send)
        assert sent[0]["type"] == "lifespan.startup.failed"
        assert "absent.gguf" in sent[0]["message"]

    run(test)


def test_other_protocols_are_refused() -> None:
    async def test() -> None:
        client = Client("GET", "/")
        client.scope["type"] = "websocket"
        client.leaves.set()
        await client.call(make())
        assert client.sent == [{"type": "websocket.close", "code": 1000}]
        client.scope["type"] = "smoke"
        with pytest.raises(NotImplementedError, match="smoke"):
            await client.call(make())

    run(test)


def test_wrong_options_are_told_at_once() -> None:
    with pytest.raises(ArgumentError, match="tool_style"):
        make(tool_style="x")
    with pytest.raises(ArgumentError, match="slotts"):
        make(slotts=3)


def test_the_app_of_the_package_serves_the_model_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with living(package_app) as app:
            client = await Client("GET", "/v1/models").call(app)
            assert json.loads(client.text)["data"][0]["id"] == load().name
        monkeypatch.setenv("TRITIUM_MODEL", "absent.gguf")
        with pytest.raises(Exception, match=r"absent\.gguf"):
            await package_app.start()

    run(test)


# ---- behind servers


def _behind_uvicorn(app: App, client: Callable[[int], Awaitable[None]]) -> None:
    uvicorn = pytest.importorskip("uvicorn", reason="the app is tried behind uvicorn: pip install uvicorn")
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = time.monotonic() + 20
        while not server.started and time.monotonic() < end:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        asyncio.run(client(port))
    finally:
        server.should_exit = True
        thread.join()


async def _raw(port: int, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
        raw
    )
    writer.write(head + raw)
    await writer.drain()
    return reader, writer


def test_behind_uvicorn_streams_come_in_pieces_and_leaving_frees_the_slot() -> None:
    app = make(step_s=0.005)

    async def client(port: int) -> None:
        reader, writer = await _raw(port, {"prompt": "abc", "max_tokens": 20, "temperature": 0, "stream": True})
        text = (await reader.read()).decode()
        writer.close()
        assert "200 OK" in text
        assert text.count("data: ") > 5
        assert "[DONE]" in text
        reader, writer = await _raw(port, {"prompt": "endless", "max_tokens": 490, "stream": True})
        await reader.readuntil(b"data: ")
        writer.close()
        assert await until(lambda: scheduler(app).running == 0)
        assert scheduler(app).meter.ended["abort"] == 1

    _behind_uvicorn(app, client)


def test_behind_hypercorn() -> None:
    asyncio_server = pytest.importorskip(
        "hypercorn.asyncio", reason="the app is tried behind hypercorn: pip install hypercorn"
    )
    from hypercorn.config import Config

    async def test() -> None:
        config, over, app = Config(), asyncio.Event(), make()
        config.bind = ["127.0.0.1:0"]
        config.errorlog = None
        sockets = config.create_sockets()
        port = sockets.insecure_sockets[0].getsockname()[1]
        sockets.insecure_sockets[0].listen()  # the app starts before hypercorn listens
        config.create_sockets = lambda: sockets  # type: ignore[method-assign]
        server = asyncio.create_task(asyncio_server.serve(app, config, shutdown_trigger=over.wait))
        assert await until(lambda: app._service is not None)
        reader, writer = await _raw(port, {"prompt": "abc", "max_tokens": 8, "temperature": 0})
        text = (await reader.read()).decode()
        writer.close()
        assert json.loads(text.partition("\r\n\r\n")[2])["choices"][0]["text"] == expected("abc", 8)
        over.set()
        await server

    run(test)

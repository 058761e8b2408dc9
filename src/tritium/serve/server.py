"""An OpenAI-compatible server for one model: who may ask what, and how a request becomes an answer.

Knows nothing of the bytes on the wire (`serve.http`) nor of the order of work in the model (scheduler). Listens on this
machine alone unless told otherwise; elsewhere it asks for an API key.
"""

from __future__ import annotations

import asyncio
import json
import math
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tritium import settings
from tritium.arguments import checked, checked_class, parse_bytes
from tritium.errors import ArgumentError, PackageError, TritiumError, install_command, shown
from tritium.escape import visible
from tritium.serve.access import PREFLIGHT, Access, Address
from tritium.serve.answers import Answers, protocol_error
from tritium.serve.intake import Intake
from tritium.serve.protocols import openai
from tritium.serve.protocols.common import Dialect, ProtocolError
from tritium.serve.protocols.tools import STYLES
from tritium.serve.scheduler import Scheduler
from tritium.settings import log

if TYPE_CHECKING:
    from tritium.models.load import Model
    from tritium.serve.http import HTTPRequest, HTTPResponse, Limits

NO_SNIFF = {"x-content-type-options": "nosniff"}  # an answer may hold any text: no browser may take it for a page


@checked_class
class Server:
    """A model behind a port: `with Server(model, port=0) as s: … s.url …`.

    `slots` requests run at once, each with `context` tokens; `queue` more may wait. `max_tokens` bounds every answer and
    `max_choices` the answers to one request. `allowed_hosts` are names by which clients may call the server besides
    localhost and addresses; `allowed_origins` are web pages that may (none by default). `chat_template` replaces the
    model's own, `tool_style` (hermes, llama or mistral) how its tool calls are read. `grace_s` is how long running requests may go on
    after `stop()`. `prefix_cache` bounds the bytes of prefixes kept for other requests ("512 MiB", 0: none; default: what the slots
    take when full, at most 1 GiB). `speculate` False guesses no tokens; `draft` is a smaller model that guesses.
    """

    def __init__(
        self,
        model: Model,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        api_key: str | None = None,
        allow_anonymous: bool = False,
        slots: int = 4,
        context: int | None = None,
        queue: int = 64,
        max_tokens: int | None = None,
        max_choices: int = 16,
        chat_template: str | None = None,
        tool_style: str | None = None,
        name: str | None = None,
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
        grace_s: float = 30.0,
        limits: Limits | None = None,
        prefix_cache: int | str | None = None,
        speculate: bool | None = None,
        draft: Model | None = None,
    ) -> None:
        self._http = _http()
        self._access = Access(
            settings.api_key() if api_key is None else api_key, tuple(allowed_hosts), tuple(allowed_origins)
        )
        self._address = Address.of(host, port)
        if self._access.key is None and not allow_anonymous and not self._address.is_local:
            raise ArgumentError(
                f"serve: others can reach {host}, so an API key is needed: give api_key (or set TRITIUM_API_KEY), listen on"
                " 127.0.0.1, or say allow_anonymous to let everyone in."
            )
        if tool_style not in (None, *STYLES):
            raise ArgumentError(f"serve: tool_style must be {', '.join(STYLES)} or None, given {shown(tool_style)}.")
        if not 0 <= grace_s < math.inf:
            raise ArgumentError(f"serve: grace_s must be seconds from 0 on, given {grace_s!r}.")
        if not hasattr(model, "session"):
            raise ArgumentError(
                f"serve: model must be a Model, given {shown(model)}; load one with tritium.load(path)."
            )
        self.limits = limits or self._http.Limits()
        self.host, self.port, self.grace_s = host, port, grace_s
        self.name = visible(name or model.name)  # a file may be called anything; a name is one printable line
        self._make_session = partial(model.session, slots=slots, context=context)
        self._make_draft = None if draft is None else partial(model.draft_session, draft=draft)
        self._make_scheduler = partial(
            Scheduler, tokenizer=model.tokenizer, queue=queue, speculate=speculate,
            prefix_cache=None if prefix_cache is None else parse_bytes("serve: prefix_cache", prefix_cache),
        )  # fmt: skip
        self._make_answers = partial(
            Answers, name=self.name, max_tokens=max_tokens, max_choices=max_choices, template=chat_template,
            tool_style=tool_style,
        )  # fmt: skip
        self._created = int(time.time())
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread: threading.Thread | None = None
        self.scheduler: Scheduler
        self._answers: Answers
        self._intake: Intake

    # Life.

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def start(self) -> Server:
        """Listen, in a thread of its own; returns when requests are taken."""
        if self._thread is not None:
            raise ArgumentError("Server: it was started already; make another.")
        listener = self._address.listen()
        try:
            session = self._make_session()
            draft = None if self._make_draft is None else self._make_draft(session)
            self.scheduler = self._make_scheduler(session, draft=draft)
        except BaseException:
            listener.close()
            raise
        self._answers = self._make_answers(self.scheduler)
        self.port = listener.getsockname()[1]
        self._intake = Intake()
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(listener, ready)), name="tritium-serve", daemon=True
        )
        self._thread.start()
        ready.wait()
        log.info("serving %s at %s", self.name, self.url)
        return self

    def stop(self, grace_s: float | None = None) -> None:
        """Take no more, let running requests end for `grace_s` seconds, cancel the rest. May be called again."""
        if self._thread is None:
            return
        if grace_s is not None:
            self.grace_s = grace_s
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self.scheduler.close(drain=False)
        self._intake.close()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def _main(self, listener: socket.socket, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        site = self._http.Site(self._handle, self._refuse, self.limits, admit=self._admit)
        try:
            await site.start(listener)
        finally:
            ready.set()
        await self._stop.wait()
        if not await site.drain(self.grace_s):
            # What still runs is cancelled, and its readers have a moment to be told so.
            await self._loop.run_in_executor(None, partial(self.scheduler.close, drain=False))
            await site.drain(1.0)
        await site.cut()

    # A request: who asks, and for what.

    def _admit(self, head: HTTPRequest) -> HTTPResponse | None:
        """What refuses a caller by the header, so that only those who may ask have their body read."""
        try:
            self._access.check(head.method, head.path, head.headers)
        except ProtocolError as e:
            return self._finish(head, self._error(e))
        return None

    async def _handle(self, request: HTTPRequest) -> HTTPResponse:
        try:
            if request.method == "OPTIONS" and "origin" in request.headers:
                response = self._http.HTTPResponse(204, b"", PREFLIGHT)
            else:
                response = await self._route(request)(request)
        except ProtocolError as e:
            response = self._error(e)
        return self._finish(request, response)

    def _finish(self, request: HTTPRequest, response: HTTPResponse) -> HTTPResponse:
        """Log a response, with the headers that let a trusted page read it."""
        if more := self._access.cors(request.headers.get("origin")):
            response = replace(response, headers={**response.headers, **more})
        log.info("%s %s: %d", request.method, visible(request.path), response.status)
        return response

    def _route(self, request: HTTPRequest) -> Callable[[HTTPRequest], Awaitable[HTTPResponse]]:
        routes: dict[str, tuple[str, Callable[[HTTPRequest], Awaitable[HTTPResponse]]]] = {
            "/health": ("GET", self._health),
            "/v1/models": ("GET", self._models),
            f"/v1/models/{self.name}": ("GET", self._one_model),
            "/v1/completions": ("POST", partial(self._generate, dialect=openai.Completions())),
            "/v1/chat/completions": ("POST", partial(self._generate, dialect=openai.Chat())),
        }
        path = unquote(request.path)
        if path not in routes:
            raise ProtocolError(
                404, f"There is no {visible(path)} here; there are: {', '.join(routes)}.", code="unknown_url"
            )
        method, route = routes[path]
        if request.method != method:
            raise ProtocolError(
                405, f"{path} takes {method}, not {visible(request.method)}.", code="method_not_allowed", headers={"allow": method}
            )  # fmt: skip
        return route

    def _json(self, value: Any, status: int = 200, **headers: str) -> HTTPResponse:
        body = json.dumps(value, ensure_ascii=False).encode()
        return self._http.HTTPResponse(status, body, {"content-type": "application/json", **NO_SNIFF, **headers})

    def _error(self, e: ProtocolError) -> HTTPResponse:
        return self._json(e.body, e.status, **e.headers)

    def _refuse(self, status: int, message: str) -> HTTPResponse:
        return self._error(ProtocolError(status, message, headers={"retry-after": "1"} if status in (429, 503) else {}))

    async def _health(self, _: HTTPRequest) -> HTTPResponse:
        s = self.scheduler
        return self._json({"status": "ok", "slots": s.session.slots, "running": s.running, "waiting": s.waiting})

    async def _models(self, _: HTTPRequest) -> HTTPResponse:
        return self._json({"object": "list", "data": [self._card()]})

    async def _one_model(self, _: HTTPRequest) -> HTTPResponse:
        return self._json(self._card())

    def _card(self) -> dict[str, Any]:
        about = {"context_length": self.scheduler.session.capacity}
        return {"id": self.name, "object": "model", "created": self._created, "owned_by": "tritium", **about}

    # Text.

    async def _generate(self, request: HTTPRequest, *, dialect: Dialect) -> HTTPResponse:
        # Reading a body and splitting a text into tokens may be long: beside the event loop, so that others go on.
        prepare = partial(self._answers.prepare, request.body, dialect)
        asked, requests = await self._intake.run(len(request.body), request.client, prepare)
        try:
            tickets = self.scheduler.submit_all(requests)
        except TritiumError as e:
            raise protocol_error(e) from None

        def release() -> None:
            for t in tickets:
                t.cancel()

        if asked.stream:
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", **NO_SNIFF}
            return self._http.HTTPResponse(200, self._answers.streamed(asked, tickets, dialect), headers, release)
        try:
            return self._json(await self._answers.whole(asked, tickets, dialect))
        except TritiumError as e:
            raise protocol_error(e) from None
        finally:
            release()


@checked
def serve(
    model: Model | str | Path | None = None, *, ready: Callable[[Server], None] | None = None, **options: Any
) -> None:
    """Serve a model (None: the one in the package) until SIGINT or SIGTERM; call this in the main thread.

    Running requests end first, for `grace_s` seconds; a second signal does what it did before. `ready(server)` is called
    when requests are taken. The other options are those of `Server`.
    """
    if model is None or isinstance(model, (str, Path)):
        from tritium.models.load import load

        model = load(model)
    server, over = Server(model, **options), threading.Event()
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for s, handler in before.items():
            signal.signal(s, handler)

    def asked(number: int, frame: Any) -> None:
        restore()
        over.set()

    for s in before:
        signal.signal(s, asked)
    try:
        with server:
            if ready is not None:
                ready(server)
            over.wait()
    finally:
        restore()


def _http() -> Any:
    try:
        from tritium.serve import http as serve_http
    except ImportError as e:
        if e.name != "h11":
            raise
        raise PackageError(
            f"serve: the package 'h11' is needed and not installed; {install_command('serve')}."
        ) from None
    return serve_http

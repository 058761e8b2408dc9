"""The server's routes as an ASGI app, so that TLS, HTTP/2 and workers come from uvicorn, hypercorn or another ASGI server.

`app` serves the model that TRITIUM_MODEL names, else the one in the package; `create_app` takes a model and the options of `Server`. The
ASGI server bounds connections, headers and idle times; the app bounds bodies before they take memory, the time for one to arrive, and
the time a reader leaves its response unread. A client that goes away cancels the work done for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tritium import settings
from tritium.arguments import checked
from tritium.serve.access import is_loopback
from tritium.serve.exchange import HTTPRequest, HTTPResponse, Limits, RefusedError, answer, check_size, client_of
from tritium.serve.service import Service
from tritium.settings import log

if TYPE_CHECKING:
    from tritium.models.load import Model

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

ANONYMOUS = (
    "Others can reach the address this server listens on, so an API key is needed: set TRITIUM_API_KEY or give api_key or api_key_file,"
    " listen on 127.0.0.1, or say allow_anonymous to let everyone in."
)


class App:
    """An ASGI application. The model is loaded when the ASGI server starts it, else at the first request."""

    def __init__(self, make: Callable[[], Service], limits: Limits, *, allow_anonymous: bool = False) -> None:
        self._make, self.limits, self.allow_anonymous = make, limits, allow_anonymous
        self._service: Service | None = None
        self._starting = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._exchange(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})  # before it is accepted: the client gets a 403
        else:
            raise NotImplementedError(f"tritium.serve.asgi answers http, not {scope['type']!r}.")  # as ASGI demands

    async def start(self) -> Service:
        """Load the model, once, beside the event loop."""
        async with self._starting:
            if self._service is None:
                self._service = await asyncio.to_thread(self._load)
            return self._service

    def _load(self) -> Service:
        service = self._make()
        service.start()
        log.info("serving %s as an ASGI app", service.name)
        return service

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as e:
            log.exception("the model could not be served")
            await send({"type": "lifespan.startup.failed", "message": str(e)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        service, self._service = self._service, None
        if service is not None:
            await asyncio.to_thread(service.close)
        await send({"type": "lifespan.shutdown.complete"})

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read a request, then answer it for as long as its client is there."""
        service = await self.start()
        head = _head(scope)
        try:
            if (refusal := self._refusal(scope, head, service)) is not None:
                await self._write(refusal, head.method, send)
                return
            body = await self._read(head, receive)
        except RefusedError as e:
            await self._write(service.refuse(e.status, str(e)), head.method, send)
            return
        if body is None:
            return
        work = asyncio.create_task(self._respond(service, replace(head, body=body), send))
        disconnect_task = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((work, disconnect_task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect_task.cancel()
            if not work.done():
                log.debug("%s: the client went away", head.path)
                work.cancel()
            results = await asyncio.gather(work, disconnect_task, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    def _refusal(self, scope: Scope, head: HTTPRequest, service: Service) -> HTTPResponse | None:
        """Return what refuses a request by its header."""
        if sum(len(n) + len(v) for n, v in scope["headers"]) > self.limits.header_bytes:
            raise RefusedError(431, f"The header is larger than {self.limits.header_bytes} bytes.")
        if service.is_anonymous and not self.allow_anonymous and not is_loopback(scope.get("server")):
            raise RefusedError(403, ANONYMOUS)
        if (response := service.admit(head)) is not None:
            return response
        length = head.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise RefusedError(400, "Content-Length is no number of bytes.")
        check_size(int(length) if len(length) < 20 else self.limits.body_bytes + 1, self.limits)
        return None

    async def _read(self, head: HTTPRequest, receive: Receive) -> bytes | None:
        """Return the body, counted as it comes; None where the client left before its end."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.read_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    check_size(len(body), self.limits)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise RefusedError(408, f"The request did not arrive within {self.limits.read_s:g} s.") from None

    async def _respond(self, service: Service, request: HTTPRequest, send: Send) -> None:
        await self._write(await answer(service.handle, service.refuse, request), request.method, send)

    async def _write(self, response: HTTPResponse, method: str, send: Send) -> None:
        """Send a response, piece by piece where it comes in pieces."""
        headers = dict(response.headers)
        if isinstance(response.body, bytes):
            headers["content-length"] = str(len(response.body))
        raw = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
        try:
            await self._send(send, {"type": "http.response.start", "status": response.status, "headers": raw})
            if isinstance(response.body, bytes):
                body = b"" if method == "HEAD" else response.body
                await self._send(send, {"type": "http.response.body", "body": body})
                return
            async with aclosing(response.body) as pieces:
                async for piece in pieces:
                    await self._send(send, {"type": "http.response.body", "body": piece, "more_body": True})
            await self._send(send, {"type": "http.response.body", "body": b""})
        finally:
            response.release()

    async def _send(self, send: Send, message: Message) -> None:
        try:
            async with asyncio.timeout(self.limits.write_s):
                await send(message)
        except TimeoutError:
            raise ConnectionAbortedError(f"the client took nothing for {self.limits.write_s:g} s") from None


def _head(scope: Scope) -> HTTPRequest:
    """Return a request without its body, as the other front end has it: the path in percent-encoding, below the app's root."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    # Of a header given twice the first counts.
    headers = {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in reversed(list(scope["headers"]))
    }
    client = scope.get("client")
    peer = client_of(tuple(client) if client else None)
    return HTTPRequest(str(scope["method"]), quote(path, safe="/:@", errors="replace"), headers, b"", peer)


async def _disconnected(receive: Receive) -> None:
    """Return when the client has gone; what it sends after its request is not read."""
    while (await receive())["type"] != "http.disconnect":
        pass


@checked
def create_app(
    model: Model | str | Path | None = None,
    *,
    limits: Limits | None = None,
    allow_anonymous: bool = False,
    **options: Any,
) -> App:
    """Return an ASGI app that serves a model: a `Model`, its file or name, or None for the one in the package.

    A file is loaded when the ASGI server starts, in each of its workers. `limits` bounds bodies and waits; connections, headers and
    idle times are the ASGI server's. Without an API key only requests to a loopback address are answered, unless `allow_anonymous`.
    The other options are those of `Server`, without `host`, `port` and `grace_s`, which belong to the ASGI server.
    """
    limits = limits or Limits()
    if model is None or isinstance(model, (str, Path)):
        return App(lambda: Service(_loaded(model), **options), limits, allow_anonymous=allow_anonymous)
    service = Service(model, **options)  # now, so that a wrong option is told here
    return App(lambda: service, limits, allow_anonymous=allow_anonymous)


def _loaded(model: str | Path | None) -> Model:
    from tritium.models.load import load, require_packages

    require_packages(model, "chatting with")  # not "serving": HTTP is the ASGI server's
    return load(model)


app = App(lambda: Service(_loaded(settings.model())), Limits())

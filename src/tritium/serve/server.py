"""An OpenAI-compatible server for one model: who may ask what, and how a request becomes an answer.

Knows nothing of the bytes on the wire (`serve.http`) nor of the order of work in the model (scheduler). Listens on this
machine alone unless told otherwise; elsewhere it asks for an API key.
"""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritium import settings
from tritium.arguments import checked, checked_class, parse_bytes
from tritium.errors import ArgumentError, PackageError, install_command, shown
from tritium.escape import visible
from tritium.serve.access import PREFLIGHT, Access, Address, Keys, Quota
from tritium.serve.answers import Answers
from tritium.serve.api import Api
from tritium.serve.intake import Intake
from tritium.serve.protocols.common import ProtocolError
from tritium.serve.protocols.tools import STYLES
from tritium.serve.scheduler import Scheduler
from tritium.settings import log

if TYPE_CHECKING:
    from tritium.models.load import Model
    from tritium.serve.http import HTTPRequest, HTTPResponse, Limits


@checked_class
class Server:
    """A model behind a port: `with Server(model, port=0) as s: … s.url …`.

    `slots` requests run at once, each with `context` tokens; `queue` more may wait. `max_tokens` bounds every answer and
    `max_choices` the answers to one request. A client may send `rate` requests a minute and have `share` answers at once (None:
    any number). `api_key_file` has keys, one on a line, and is read again when it changes. `allowed_hosts` are names by which clients
    may call the server besides localhost and addresses; `allowed_origins` are web pages that may (none by default). `chat_template`
    replaces the model's own, `tool_style` (hermes, llama or mistral) how its tool calls are read. `grace_s` is how long running
    requests may go on after `stop()`. `sensors` lists what measures energy for /metrics, such as `tritium.perf.meters.probe.probe`.
    `prefix_cache` bounds the bytes of prefixes kept for other requests ("512 MiB", 0: none; default: what the slots take when full, at
    most 1 GiB). `speculate` False guesses no tokens; `draft` is a smaller model that guesses.
    """

    scheduler: Scheduler
    _api: Api
    _intake: Intake
    _loop: asyncio.AbstractEventLoop
    _stop: asyncio.Event

    def __init__(
        self,
        model: Model,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        api_key: str | None = None,
        api_key_file: str | Path | None = None,
        allow_anonymous: bool = False,
        slots: int = 4,
        context: int | None = None,
        queue: int = 64,
        max_tokens: int | None = None,
        max_choices: int = 16,
        rate: float | None = None,
        share: int | None = None,
        chat_template: str | None = None,
        tool_style: str | None = None,
        name: str | None = None,
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
        grace_s: float = 30.0,
        limits: Limits | None = None,
        sensors: Callable[[], Sequence[Any]] = tuple,
        prefix_cache: int | str | None = None,
        speculate: bool | None = None,
        draft: Model | None = None,
    ) -> None:
        self._http = _http()
        key = settings.api_key() if api_key is None and api_key_file is None else api_key
        self._access = Access(Keys(key, api_key_file), tuple(allowed_hosts), tuple(allowed_origins))
        self._address = Address.of(host, port)
        if not self._access.keys.are_needed and not allow_anonymous and not self._address.is_local:
            raise ArgumentError(
                f"serve: others can reach {host}, so an API key is needed: give api_key or api_key_file (or set TRITIUM_API_KEY), listen on"
                " 127.0.0.1, or say allow_anonymous to let everyone in."
            )
        _check_options(model, tool_style, grace_s)
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
        self._make_api = partial(
            Api,
            self._http,
            quota=Quota(rate, share),
            embed=getattr(model, "embed", None),
            caller=self._caller,
            sensors=sensors,
        )
        self._thread: threading.Thread | None = None

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
        self.port = listener.getsockname()[1]
        self._intake = Intake()
        self._api = self._make_api(self._make_answers(self.scheduler), self._intake)
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
        self._api.close()

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
            return self._finish(head, self._api.error(e, head.path))
        return None

    async def _handle(self, request: HTTPRequest) -> HTTPResponse:
        try:
            if request.method == "OPTIONS" and "origin" in request.headers:
                response = self._http.HTTPResponse(204, b"", PREFLIGHT)
            else:
                response = await self._api.route(request)(request)
        except ProtocolError as e:
            response = self._api.error(e, request.path)
        return self._finish(request, response)

    def _finish(self, request: HTTPRequest, response: HTTPResponse) -> HTTPResponse:
        """Log a response, with the headers that let a trusted page read it."""
        if more := self._access.cors(request.headers.get("origin")):
            response = replace(response, headers={**response.headers, **more})
        log.info("%s %s: %d", request.method, visible(request.path), response.status)
        return response

    def _refuse(self, status: int, message: str) -> HTTPResponse:
        headers = {"retry-after": "1"} if status in (429, 503) else {}
        return self._api.error(ProtocolError(status, message, headers=headers), "")

    def _caller(self, request: HTTPRequest) -> str:
        """Return who a request counts for: the owner of its key, or its address."""
        return self._access.caller(request.headers) or request.client


def _check_options(model: Any, tool_style: str | None, grace_s: float) -> None:
    """Raise for a model that is none, an unknown style of tool calls, or a time that is none."""
    if tool_style not in (None, *STYLES):
        raise ArgumentError(f"serve: tool_style must be {', '.join(STYLES)} or None, given {shown(tool_style)}.")
    if not 0 <= grace_s < math.inf:
        raise ArgumentError(f"serve: grace_s must be seconds from 0 on, given {grace_s!r}.")
    if not hasattr(model, "session"):
        raise ArgumentError(f"serve: model must be a Model, given {shown(model)}; load one with tritium.load(path).")


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

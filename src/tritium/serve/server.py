"""An OpenAI-compatible server for one model: a socket and a thread of its own around the routes.

Listens on this machine alone unless told otherwise; elsewhere it asks for an API key.
"""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritium.arguments import checked, checked_class
from tritium.errors import ArgumentError, require
from tritium.serve.access import Address
from tritium.serve.exchange import Limits
from tritium.serve.scheduler import Scheduler
from tritium.serve.service import Service
from tritium.settings import log

if TYPE_CHECKING:
    from tritium.models.load import Model


@checked_class
class Server:
    """A model behind a port: `with Server(model, port=0) as s: … s.url …`.

    `slots` requests run at once, each with `context` tokens, on CUDA of all together `pool` (default: as memory allows); `queue` more
    may wait. `max_tokens` bounds every answer and
    `max_choices` the answers to one request. A client may send `rate` requests a minute and have `share` answers at once (None:
    any number). `api_key_file` has keys, one on a line, and is read again when it changes. `allowed_hosts` are names by which clients
    may call the server besides localhost and addresses; `allowed_origins` are web pages that may (none by default). `chat_template`
    replaces the model's own, `tool_style` (hermes, llama or mistral) how its tool calls are read. `grace_s` is how long running
    requests may go on after `stop()`. `sensors` lists what measures energy for /metrics, such as `tritium.perf.meters.probe.probe`.
    `prefix_cache` bounds the bytes of prefixes kept for other requests ("512 MiB", 0: none; default: what the slots take when full, at
    most 1 GiB). `speculate` False guesses no tokens; `draft` is a smaller model that guesses. `spans` records an
    OpenTelemetry span of every request.
    """

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
        pool: int | None = None,
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
        spans: bool = False,
    ) -> None:
        self._http = _http()
        if not 0 <= grace_s < math.inf:
            raise ArgumentError(f"serve: grace_s must be seconds from 0 on, given {grace_s!r}.")
        self._service = Service(
            model, api_key=api_key, api_key_file=api_key_file, slots=slots, context=context, pool=pool, queue=queue,
            max_tokens=max_tokens, max_choices=max_choices, rate=rate, share=share, chat_template=chat_template,
            tool_style=tool_style, name=name, allowed_hosts=allowed_hosts, allowed_origins=allowed_origins, sensors=sensors,
            prefix_cache=prefix_cache, speculate=speculate, draft=draft, spans=spans,
        )  # fmt: skip
        self._address = Address.resolve(host, port)
        if self._service.is_anonymous and not allow_anonymous and not self._address.is_local:
            raise ArgumentError(
                f"serve: others can reach {host}, so an API key is needed: give api_key or api_key_file (or set TRITIUM_API_KEY), listen on"
                " 127.0.0.1, or say allow_anonymous to let everyone in."
            )
        self.limits = limits or Limits()
        self.host, self.port, self.grace_s = host, port, grace_s
        self.name = self._service.name
        self._thread: threading.Thread | None = None

    # Life.

    @property
    def scheduler(self) -> Scheduler:
        """Return what runs the requests, once it was started."""
        return self._service.scheduler

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
            self._service.start()
        except BaseException:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
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
        self._service.close()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def _main(self, listener: socket.socket, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        service = self._service
        site = self._http.Site(service.handle, service.refuse, self.limits, admit=service.admit)
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


@checked
def serve(
    model: Model | str | Path | None = None, *, ready: Callable[[Server], None] | None = None, **options: Any
) -> None:
    """Serve a model (None: the one in the package) until SIGINT or SIGTERM; call this in the main thread.

    Running requests end first, for `grace_s` seconds; a second signal does what it did before. `ready(server)` is called
    when requests are taken. The other options are those of `Server`.
    """
    if model is None or isinstance(model, (str, Path)):
        from tritium.models.load import load, require_packages

        require_packages(model, "serving")
        model = load(model)
    server, over = Server(model, **options), threading.Event()
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for s, handler in before.items():
            signal.signal(s, handler)

    def request_stop(number: int, frame: Any) -> None:
        restore()
        over.set()

    for s in before:
        signal.signal(s, request_stop)
    try:
        with server:
            if ready is not None:
                ready(server)
            over.wait()
    finally:
        restore()


def _http() -> Any:
    require("Serving a model", "h11")
    from tritium.serve import http as serve_http

    return serve_http

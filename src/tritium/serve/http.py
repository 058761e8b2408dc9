"""HTTP/1.1 on asyncio where every wait has an end: slow senders, slow readers, quiet and too many connections.

Knows nothing of models, routes or keys: `admit(head)` may refuse a request by its header, `handle(request)` gives a
response. The grammar of HTTP is h11's. The connections are our own because the common servers bound neither the time a
request may take to arrive nor the time a client may leave its response unread. A client that goes away cancels the work
done for it. Bytes are parsed TURN_BYTES at a time, with a pass of the event loop between, so that a request which is
expensive to parse delays the other connections by milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from email.utils import formatdate
from http import HTTPStatus

import h11

from tritium.serve.exchange import HTTPRequest, HTTPResponse, Limits, RefusedError, answer, check_size, client_of
from tritium.settings import log

LINGER_S = 1.0  # a refused sender is heard out this long, so that it reads the refusal instead of a reset connection
WRITE_BUFFER = 64 << 10  # bytes that wait for one reader before its writer waits too
READ_BUFFER = 64 << 10  # bytes of one sender that wait to be parsed before no more are read from its socket
# Bytes parsed between two passes of the event loop. A chunk of one byte takes 6, and h11 10 to 40 us: 4 to 14 ms a turn.
TURN_BYTES = 2 << 10


class Site:
    """A listening socket and its connections.

    A connection too many takes the place of one that has no whole request, first of the client that holds the most; if
    there is none it is turned away.

    `admit(head)` sees a request without its body as soon as the header is there; a response refuses it, and the body is
    not read. `refuse(status, message)` words what is refused before it is handled.
    """

    def __init__(
        self,
        handle: Callable[[HTTPRequest], Awaitable[HTTPResponse]],
        refuse: Callable[[int, str], HTTPResponse],
        limits: Limits,
        *,
        admit: Callable[[HTTPRequest], HTTPResponse | None] = lambda head: None,
    ) -> None:
        self.handle, self.refuse, self.limits, self.admit = handle, refuse, limits, admit
        self.connections: set[Connection] = set()
        self.stopping = False
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), sock=listener, backlog=128)

    def refuse_connection(self, new: Connection) -> RefusedError | None:
        """Make room for a connection, by ending one that only waits; why it is turned away if there is none."""
        active = [c for c in self.connections if c is not new and not c.leaving]
        held = Counter(c.client for c in active)
        own = held[new.client]
        if own >= self.limits.client_connections:
            error = RefusedError(429, f"{own} connections are open from your address, the most this server allows.")
            active = [c for c in active if c.client == new.client]
        elif len(active) >= self.limits.connections:
            error = RefusedError(503, "The server has too many connections; try again later.")
            active = [c for c in active if held[c.client] >= own]  # a client with fewer does not lose to one with more
        else:
            return None
        spare = [c for c in active if c.stage is not None]
        if not spare:
            return error
        max(spare, key=lambda c: (held[c.client], -(c.stage or 0), -c.since)).make_way()
        return None

    async def drain(self, grace_s: float) -> bool:
        """Accept nothing more and let what runs end; whether all did within `grace_s` seconds."""
        self.stopping = True
        if self._server is not None:
            self._server.close()
        for c in list(self.connections):
            c.finish()
        if closing := [c.closed for c in self.connections]:
            await asyncio.wait(closing, timeout=grace_s)
        return not self.connections

    async def cut(self) -> None:
        """End every connection now."""
        rest = list(self.connections)
        for c in rest:
            c.abort()
        await asyncio.gather(*(c.task for c in rest), return_exceptions=True)


class Connection(asyncio.Protocol):
    """One client: its requests are read, handled and answered one after the other, in one task."""

    def __init__(self, site: Site) -> None:
        self.site, self.limits = site, site.limits
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=site.limits.header_bytes)
        self.loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self.transport: asyncio.Transport
        self.task: asyncio.Task[None]
        self._arrived, self._writable = asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._waiting = True  # for the first byte of a request
        self._discarding = False
        self._busy = False  # with a request that was read
        self._has_head = False
        self._replaced = False  # by a connection that needs the place
        self.client = ""
        self.leaving = False  # answered for the last time, or told to go
        self.since = self.loop.time()  # when it began to wait for the request it has not sent whole
        self._inbox = bytearray()  # received and not given to the parser yet
        self._fed = 0  # bytes given to the parser since the header of this request
        self._method = ""
        self._cut: asyncio.TimerHandle | None = None

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self.client = client_of(transport.get_extra_info("peername"))
        error = self.site.refuse_connection(self)
        self.site.connections.add(self)
        self.task = self.loop.create_task(self._talk() if error is None else self._reject_and_close(error))
        if error is not None:
            self.leaving = True
            if sum(c.leaving for c in self.site.connections) > self.limits.connections:
                self.abort()  # so many hear why already

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        self._inbox += data
        self._arrived.set()
        if self._busy:
            # Reading goes on, or a client that leaves would not be noticed; so requests sent ahead are bounded here.
            if len(self._inbox) > self.limits.header_bytes + self.limits.body_bytes + READ_BUFFER:
                self.abort()
        elif len(self._inbox) > READ_BUFFER:
            self.transport.pause_reading()

    def eof_received(self) -> None:
        """The client sends no more: it is taken to be gone, and the transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.site.connections.discard(self)
        if self._cut is not None:
            self._cut.cancel()
        self.task.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # What the site asks.

    @property
    def stage(self) -> int | None:
        """Return how far its request has arrived: 0 nothing, 1 some of the header, 2 some of the body; None for a whole one."""
        if self._busy:
            return None
        return 2 if self._has_head else 0 if self._waiting and not self._inbox else 1

    def make_way(self) -> None:
        """End, with a refusal if a request has begun."""
        self.leaving = self._replaced = True
        self._arrived.set()

    def finish(self) -> None:
        """Close when no request is under way; else after its answer."""
        if self._waiting and not self._inbox:
            self.close()

    def abort(self) -> None:
        self.task.cancel()
        self.transport.abort()

    def close(self) -> None:
        """Send what is buffered, then close; a reader that does not take it is cut off."""
        self.leaving = True
        if not self.closed.done() and self._cut is None:
            self._cut = self.loop.call_later(self.limits.write_s, self.transport.abort)
            self.transport.close()

    # The conversation.

    async def _talk(self) -> None:
        wait_s = min(self.limits.header_s, self.limits.read_s)
        try:
            while not self.site.stopping and (request := await self._read(wait_s)) is not None:
                await self._write(await answer(self.site.handle, self.site.refuse, request))
                if self._replaced:
                    break
                if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
                    break
                self.http.start_next_cycle()
                wait_s = self.limits.idle_s
        except RefusedError as e:
            await self._reject(e)
        except (ConnectionError, h11.LocalProtocolError) as e:
            log.debug("a connection ended early: %s", e)
            self.transport.abort()
        except Exception:
            log.exception("a connection failed")
            self.transport.abort()
        finally:
            self.close()

    async def _reject_and_close(self, error: RefusedError) -> None:
        try:
            await self._reject(error)
        finally:
            self.close()

    async def _read(self, wait_s: float) -> HTTPRequest | None:
        """Return the next whole request; None when none came for `wait_s` seconds or the client closed."""
        head: HTTPRequest | None = None
        body = bytearray()
        self._waiting, self._busy, self._has_head = True, False, False
        self.since, limit_s = self.loop.time(), min(self.limits.header_s, self.limits.read_s)
        try:
            async with asyncio.timeout(wait_s) as clock:
                while True:
                    event = self._next_event()
                    if event is h11.NEED_DATA:
                        if head is not None:
                            self._check_framing(self._fed - len(body))
                        if not await self._more():
                            return None
                        if self._waiting:
                            self._waiting, self.since = False, self.loop.time()
                            clock.reschedule(self.since + limit_s)
                    elif isinstance(event, h11.Request):
                        self._waiting, self._has_head, limit_s = False, True, self.limits.read_s
                        clock.reschedule(self.since + limit_s)
                        self._fed = len(self.http.trailing_data[0])
                        head = self._check_head(event)
                    elif isinstance(event, h11.Data):
                        body += event.data
                        check_size(len(body), self.limits)
                    elif isinstance(event, h11.EndOfMessage):
                        break
                    else:
                        return None
        except TimeoutError:
            if self._waiting:
                return None
            part = "The request" if self._has_head else "The header of the request"
            raise RefusedError(408, f"{part} did not arrive within {limit_s:g} s.") from None
        assert head is not None
        self._busy = True
        self.transport.resume_reading()
        return replace(head, body=bytes(body))

    def _check_head(self, event: h11.Request) -> HTTPRequest:
        """Return the request without its body; RefusedError where the header alone is reason enough."""
        self._method = event.method.decode("ascii")
        if len(event.target) + sum(len(n) + len(v) for n, v in event.headers) > self.limits.header_bytes:
            raise RefusedError(431, f"The header is larger than {self.limits.header_bytes} bytes.")
        # Of a header given twice the first counts.
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in reversed(event.headers)}
        target = event.target.decode("latin-1").partition("?")[0]
        head = HTTPRequest(self._method, target, headers, b"", self.client)
        response = self.site.admit(head)
        if response is not None:
            raise RefusedError(response.status, "The request was not admitted.", response)
        if "transfer-encoding" in headers and ("content-length" in headers or event.http_version < b"1.1"):
            # RFC 9112, 6.1: another server on the way may see other ends of the requests, so none may follow.
            raise RefusedError(
                400, "The request has Transfer-Encoding with Content-Length or HTTP/1.0; send one of them."
            )
        check_size(int(headers.get("content-length", "0")), self.limits)
        return head

    def _next_event(self) -> object:
        try:
            return self.http.next_event()
        except h11.RemoteProtocolError as e:
            hint = e.error_status_hint
            raise RefusedError(hint if hint in (431, 501) else 400, f"The request is not HTTP/1.1: {e}.") from None

    def _check_framing(self, nbytes: int) -> None:
        if nbytes > self.limits.framing_bytes:
            raise RefusedError(
                413,
                f"The chunked body has more than {self.limits.framing_bytes} bytes of chunk sizes, extensions and trailers."
                " Send larger chunks, or the whole body with Content-Length.",
            )

    async def _more(self) -> bool:
        """Give the parser up to TURN_BYTES more, after at least one pass of the event loop; False to end in silence."""
        if self._inbox:
            await asyncio.sleep(0)
        else:
            if self.http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            if not self._replaced:
                self._arrived.clear()
            await self._arrived.wait()
        if self._replaced:
            if self._waiting and not self._inbox:
                return False
            raise RefusedError(
                503, "The request was too slow to arrive while others waited for a connection; try again."
            )
        piece = bytes(self._inbox[:TURN_BYTES])
        del self._inbox[:TURN_BYTES]
        if len(self._inbox) <= READ_BUFFER:
            self.transport.resume_reading()
        self._fed += len(piece)
        self.http.receive_data(piece)
        return True

    async def _reject(self, error: RefusedError) -> None:
        """Answer, then hear the sender out for a moment: closing on unread bytes would reset the answer away."""
        self._discarding = self.leaving = True
        self._inbox.clear()
        self.transport.resume_reading()
        with contextlib.suppress(ConnectionError, h11.LocalProtocolError, TimeoutError):
            await self._write(error.response or self.site.refuse(error.status, str(error)), last=True)
            if self.transport.can_write_eof():
                self.transport.write_eof()
            async with asyncio.timeout(LINGER_S):
                await asyncio.shield(self.closed)

    async def _write(self, response: HTTPResponse, *, last: bool = False) -> None:
        headers = {"date": formatdate(usegmt=True), **response.headers}
        if isinstance(response.body, bytes):
            headers["content-length"] = str(len(response.body))
        if last or self.site.stopping or self._replaced:
            headers["connection"] = "close"
        try:
            raw = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
            reason = HTTPStatus(response.status).phrase.encode("ascii")
            head = h11.Response(status_code=response.status, headers=raw, reason=reason)
            if isinstance(response.body, bytes):
                body = b"" if self._method == "HEAD" else response.body
                await self._send(head, h11.Data(data=body), h11.EndOfMessage())
                return
            await self._send(head)
            async with contextlib.aclosing(response.body) as pieces:
                async for piece in pieces:
                    await self._send(h11.Data(data=piece))
            await self._send(h11.EndOfMessage())
        finally:
            response.release()

    async def _send(self, *events: h11.Event) -> None:
        data = b"".join(self.http.send(e) or b"" for e in events)
        if self.transport.is_closing():
            raise ConnectionResetError("the client went away")
        if data:
            self.transport.write(data)
        try:
            async with asyncio.timeout(self.limits.write_s):
                await self._writable.wait()
        except TimeoutError:
            raise ConnectionAbortedError(f"the client took nothing for {self.limits.write_s:g} s") from None

"""Connections: whatever a client does or leaves undone, it is answered or cut off, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

import pytest

pytest.importorskip("h11", reason="needs the extra 'run'")

from tritium.serve.exchange import HTTPRequest, HTTPResponse, Limits, client_of
from tritium.serve.http import TURN_BYTES, Connection, Site

QUICK = Limits(read_s=0.3, idle_s=0.3, write_s=0.3, body_bytes=1000, header_bytes=2000, connections=4)


class Running:
    """A site in a thread."""

    def __init__(
        self,
        handle: Callable[[HTTPRequest], Awaitable[HTTPResponse]],
        limits: Limits,
        admit: Callable[[HTTPRequest], HTTPResponse | None],
    ) -> None:
        self.site = Site(handle, lambda status, message: HTTPResponse(status, message.encode()), limits, admit=admit)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.main()))
        self.thread.start()
        self.ready.wait()

    async def main(self) -> None:
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        await self.site.start(self.listener)
        self.ready.set()
        await self.over.wait()
        await self.site.drain(0.5)
        await self.site.cut()

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # stopped before
            self.loop.call_soon_threadsafe(self.over.set)
        self.thread.join()

    def connect(self) -> socket.socket:
        s = socket.create_connection(("127.0.0.1", self.port))
        s.settimeout(10)
        return s


@contextlib.contextmanager
def running(
    handle: Callable[[HTTPRequest], Awaitable[HTTPResponse]] | None = None,
    limits: Limits = QUICK,
    admit: Callable[[HTTPRequest], HTTPResponse | None] = lambda head: None,
) -> Iterator[Running]:
    found = Running(handle or echo, limits, admit)
    try:
        yield found
    finally:
        found.stop()
    assert not found.site.connections


async def echo(request: HTTPRequest) -> HTTPResponse:
    return HTTPResponse(200, f"{request.method} {request.path} ".encode() + request.body)


def read_all(s: socket.socket) -> bytes:
    """Until the server closes."""
    parts = []
    with s:
        while part := s.recv(65536):
            parts.append(part)
    return b"".join(parts)


def until(what: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not what() and time.monotonic() < end:
        time.sleep(0.01)
    return what()


def test_two_requests_on_one_connection() -> None:
    with running() as r:
        c = http.client.HTTPConnection("127.0.0.1", r.port, timeout=10)
        for i in range(2):
            c.request("POST", f"/{i}?query", b"body")
            answer = c.getresponse()
            assert (answer.status, answer.read()) == (200, f"POST /{i} body".encode())
        c.close()


def test_requests_sent_ahead_are_answered_in_order() -> None:
    with running() as r:
        s = r.connect()
        s.sendall(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\nGET /b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        got = read_all(s)
    assert got.index(b"GET /a") < got.index(b"GET /b")


def test_a_body_in_chunks_is_whole() -> None:
    with running() as r:
        c = http.client.HTTPConnection("127.0.0.1", r.port, timeout=10)
        c.request("POST", "/", iter([b"ab", b"cd"]), encode_chunked=True, headers={"transfer-encoding": "chunked"})
        assert c.getresponse().read() == b"POST / abcd"
        c.close()


def test_a_sender_that_asks_first_is_told_to_go_on() -> None:
    with running() as r:
        s = r.connect()
        s.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n")
        assert s.recv(1000).startswith(b"HTTP/1.1 100")
        s.sendall(b"ok")
        assert b"POST / ok" in s.recv(1000)
        s.close()


def test_an_old_client_gets_its_answer_and_the_end() -> None:
    with running() as r:
        s = r.connect()
        s.sendall(b"GET /old HTTP/1.0\r\n\r\n")
        assert read_all(s).endswith(b"GET /old ")


def test_a_head_request_gets_no_body() -> None:
    with running() as r:
        s = r.connect()
        s.sendall(b"HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert read_all(s).endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50) + b"\r\n\r\n", 400),  # a TLS hello
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no host
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 5000, 431),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: " + b"9" * 1500 + b"\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"200\r\n" + b"x" * 512 + b"\r\n"
         b"200\r\n" + b"x" * 512 + b"\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n", 501),
        (b"GET /", 408),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf", 408),
    ],
    ids=lambda v: str(v)[:60],
)  # fmt: skip
def test_what_is_no_request_is_refused_and_the_connection_ends(sent: bytes, status: int) -> None:
    with running() as r:
        s = r.connect()
        s.sendall(sent)
        got = read_all(s)
        assert got.startswith(b"HTTP/1.1 %d " % status), got
        assert b"connection: close" in got.lower()
        assert until(lambda: not r.site.connections)


def test_a_large_body_is_refused_while_it_is_sent() -> None:
    with running() as r:
        s = r.connect()
        s.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5000000\r\n\r\n" + bytes(2_000_000))
        assert read_all(s).startswith(b"HTTP/1.1 413 ")


@pytest.mark.slow
def test_a_request_sent_byte_by_byte_runs_out_of_time() -> None:
    with running() as r:
        s = r.connect()
        with contextlib.suppress(ConnectionError):
            for _ in range(60):
                s.sendall(b"G")
                time.sleep(0.01)
        assert until(lambda: not r.site.connections)
        s.close()


def test_a_connection_that_says_nothing_is_closed() -> None:
    with running() as r:
        assert read_all(r.connect()) == b""


def test_a_connection_kept_for_nothing_is_closed() -> None:
    with running() as r:
        s = r.connect()
        s.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert read_all(s).startswith(b"HTTP/1.1 200")


class Gate:
    """A handler that waits until the test lets it go on; /free is answered at once."""

    def __init__(self) -> None:
        self.entered, self.open = 0, threading.Event()

    async def handle(self, request: HTTPRequest) -> HTTPResponse:
        if request.path != "/free":
            self.entered += 1
            while not self.open.is_set():
                await asyncio.sleep(0.005)
        return await echo(request)


GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
FREE = b"GET /free HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
CALM = Limits(connections=4, client_connections=4)  # waits that no test outlives


def ask(r: Running, sent: bytes = FREE) -> bytes:
    s = r.connect()
    s.sendall(sent)
    return read_all(s)


def test_too_many_connections_are_turned_away_and_later_ones_are_not() -> None:
    gate = Gate()
    with running(gate.handle, Limits(connections=4)) as r:
        held = [r.connect() for _ in range(4)]
        for h in held:
            h.sendall(GET)
        assert until(lambda: gate.entered == 4)
        assert ask(r).startswith(b"HTTP/1.1 503")
        for h in held:
            h.close()
        assert until(lambda: not r.site.connections)
        assert ask(r).startswith(b"HTTP/1.1 200")
        gate.open.set()


def test_one_client_has_no_more_than_its_share() -> None:
    gate = Gate()
    with running(gate.handle, Limits(connections=8, client_connections=3)) as r:
        held = [r.connect() for _ in range(3)]
        for h in held:
            h.sendall(GET)
        assert until(lambda: gate.entered == 3)
        answer = ask(r)
        assert answer.startswith(b"HTTP/1.1 429")
        assert b"3 connections are open from your address" in answer
        next(c for c in r.site.connections.copy() if c.stage is None).client = "192.0.2.1"  # as if it were another's
        assert ask(r).startswith(b"HTTP/1.1 200")
        gate.open.set()
        for h in held:
            h.close()


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        (b"", b""),
        (b"GET /free HTTP/1.1\r\nho", b"HTTP/1.1 503 "),
        (b"POST /free HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhal", b"HTTP/1.1 503 "),
        (b"GET /free HTTP/1.1\r\nhost: x\r\n\r\n", b"HTTP/1.1 200 "),
    ],
    ids=["silent", "header", "body", "between requests"],
)
@pytest.mark.parametrize("limits", [CALM, Limits(connections=8, client_connections=4)], ids=["server", "client"])
def test_connections_that_only_wait_lock_nobody_out(sent: bytes, seen: bytes, limits: Limits) -> None:
    with running(Gate().handle, limits) as r:
        held = []
        for i in range(4):
            held.append(r.connect())
            held[-1].sendall(sent)
            assert until(lambda i=i: len(r.site.connections) == i + 1)  # type: ignore[misc]
        stage = 0 if seen != b"HTTP/1.1 503 " else 1 if b"GET" in sent else 2
        assert until(lambda: [c.stage for c in r.site.connections] == [stage] * 4)
        for _ in range(8):
            assert ask(r).startswith(b"HTTP/1.1 200")
        assert read_all(held[0]).startswith(seen)  # the one that waited longest went first
        for h in held[1:]:
            h.close()


def test_a_client_with_few_connections_does_not_lose_one_to_a_client_with_many() -> None:
    gate = Gate()
    with running(gate.handle, Limits(connections=4, client_connections=4)) as r:
        other = r.connect()
        assert until(lambda: len(r.site.connections) == 1)
        next(iter(r.site.connections)).client = "192.0.2.1"
        held = [r.connect() for _ in range(3)]
        for h in held:
            h.sendall(GET)
        assert until(lambda: gate.entered == 3)
        assert ask(r).startswith(b"HTTP/1.1 503")
        other.sendall(FREE)
        assert read_all(other).startswith(b"HTTP/1.1 200")
        gate.open.set()
        for h in held:
            h.close()


def test_a_flood_of_refused_connections_is_not_heard_out() -> None:
    gate = Gate()
    with running(gate.handle, Limits(connections=2)) as r:
        held = [r.connect() for _ in range(2)]
        for h in held:
            h.sendall(GET)
        assert until(lambda: gate.entered == 2)
        refused = [r.connect() for _ in range(20)]
        assert until(lambda: len(r.site.connections) <= 4)
        gate.open.set()
        for h in (*held, *refused):
            h.close()


def test_a_header_has_less_time_than_a_body() -> None:
    with running(limits=Limits(header_s=0.2, read_s=60)) as r:
        assert read_all(r.connect()) == b""
        answer = ask(r, b"GET / HTT")
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"The header of the request did not arrive within 0.2 s" in answer
        s = r.connect()
        s.sendall(b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 4\r\n\r\n")
        time.sleep(0.4)
        s.sendall(b"body")
        assert read_all(s).endswith(b"POST / body")


@pytest.mark.parametrize(
    ("peername", "client"),
    [
        (("192.0.2.7", 5), "192.0.2.7"), (("::ffff:192.0.2.7", 5, 0, 0), "192.0.2.7"), (("2001:db8:1:2:3::4", 5, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::"), (None, ""), ("", ""), (("name", 1), "name"),
    ],
)  # fmt: skip
def test_a_client_is_an_address_or_a_network_of_ipv6(peername: object, client: str) -> None:
    assert client_of(peername) == client


@pytest.mark.parametrize(
    "fields",
    [
        b"HTTP/1.1\r\ncontent-length: 4\r\ntransfer-encoding: chunked", b"HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 0",
        b"HTTP/1.1\r\nTransfer-Encoding: Chunked\r\nContent-Length: 5", b"HTTP/1.0\r\ntransfer-encoding: chunked",
    ],
)  # fmt: skip
def test_two_framings_of_one_request_end_the_connection(fields: bytes) -> None:
    """RFC 9112, 6.1: what follows may be a request that somebody else smuggled in."""
    version, _, rest = fields.partition(b"\r\n")
    with running() as r:
        answer = ask(r, b"POST / " + version + b"\r\nhost: x\r\n" + rest + b"\r\n\r\n0\r\n\r\n" + FREE)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in answer.lower()
    assert answer.count(b"HTTP/1.1 ") == 1


class Endless:
    """A response without end, and whether it was given up."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.sent = 0

    async def handle(self, request: HTTPRequest) -> HTTPResponse:
        return HTTPResponse(200, self.pieces(), release=self.released.set)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        while True:
            self.sent += 1
            yield bytes(65536)
            await asyncio.sleep(0)


def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    endless = Endless()
    with running(endless.handle) as r:
        s = r.connect()
        s.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert endless.released.wait(10)
        assert endless.sent < 1000  # what the kernel buffers, not more
        assert until(lambda: not r.site.connections)
        s.close()


def test_a_reader_that_leaves_ends_its_response() -> None:
    endless = Endless()
    with running(endless.handle) as r:
        s = r.connect()
        s.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert s.recv(1000)
        s.close()
        assert endless.released.wait(10)


def test_a_reader_that_leaves_cancels_the_handler() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def handle(request: HTTPRequest) -> HTTPResponse:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            ended.set()
        raise AssertionError

    with running(handle) as r:
        s = r.connect()
        s.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert begun.wait(10)
        s.close()
        assert ended.wait(10)


def test_a_handler_that_fails_is_a_500_and_the_connection_lives() -> None:
    async def handle(request: HTTPRequest) -> HTTPResponse:
        if request.path == "/bad":
            raise ZeroDivisionError("secret")
        return await echo(request)

    with running(handle) as r:
        c = http.client.HTTPConnection("127.0.0.1", r.port, timeout=10)
        c.request("GET", "/bad")
        answer = c.getresponse()
        assert answer.status == 500
        assert b"secret" not in answer.read()
        c.request("GET", "/good")
        assert c.getresponse().status == 200
        c.close()


def test_a_flood_sent_ahead_is_cut_off() -> None:
    begun = threading.Event()

    async def handle(request: HTTPRequest) -> HTTPResponse:
        begun.set()
        await asyncio.sleep(60)
        raise AssertionError

    with running(handle) as r:
        s = r.connect()
        s.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert begun.wait(10)
        with contextlib.suppress(ConnectionError):
            s.sendall(bytes(1_000_000))
        assert until(lambda: not r.site.connections)
        s.close()


def test_draining_closes_quiet_connections_and_waits_for_busy_ones() -> None:
    begun = threading.Event()

    async def handle(request: HTTPRequest) -> HTTPResponse:
        begun.set()
        await asyncio.sleep(0.2)
        return await echo(request)

    with running(handle, Limits()) as r:
        quiet, busy = r.connect(), r.connect()
        busy.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert begun.wait(10)
        r.stop()
        assert read_all(quiet) == b""
        assert read_all(busy).startswith(b"HTTP/1.1 200")


# ---- a client that costs much takes turns with the others

CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
MOST_EVENTS = TURN_BYTES // 6 + 8  # b"1\r\nx\r\n" is the shortest chunk; the rest is heads, ends and waits
PATIENT = Limits(framing_bytes=8 << 20, read_s=120)


class Turns:
    """The most events of HTTP that were handled between two passes of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events = self.most = self.total = 0
        next_event = Connection._next_event

        def count(connection: Connection) -> object:
            self.events += 1
            self.total += 1
            self.most = max(self.most, self.events)
            return next_event(connection)

        monkeypatch.setattr(Connection, "_next_event", count)

    def watch(self, r: Running) -> None:
        def tick() -> None:
            self.events = 0
            if not r.over.is_set():
                r.loop.call_soon(tick)

        r.loop.call_soon_threadsafe(tick)


def chunked(sizes: list[int], extension: bytes = b"") -> bytes:
    return b"".join(b"%x%s\r\n%s\r\n" % (n, extension, b"x" * n) for n in sizes) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        CHUNKED + chunked([1] * 50_000),
        CHUNKED + chunked([1, 1, 1, 4000, 1, 70_000] * 15 + [1] * 10_000),
        CHUNKED + chunked([1] * 20_000, b";extension=1"),
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 3000 + CHUNKED + chunked([1]),
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\n" + bytes(2_000_000),
    ],
    ids=["small chunks", "mixed chunks", "extensions", "many requests", "one large body"],
)
def test_no_client_holds_the_event_loop(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    turns = Turns(monkeypatch)
    with running(limits=PATIENT) as r:
        turns.watch(r)
        s = r.connect()
        sender = threading.Thread(target=s.sendall, args=(sent,))
        sender.start()
        answer = bytearray()
        while b"POST / " not in answer:
            answer += s.recv(65536)
        sender.join()
        s.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert turns.most <= MOST_EVENTS, (turns.most, turns.total)


@pytest.mark.slow
def test_slow_small_chunks_run_out_of_time() -> None:
    with running() as r:
        s = r.connect()
        s.sendall(CHUNKED)
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                s.sendall(b"1\r\nx\r\n")
                time.sleep(0.01)
        assert until(lambda: not r.site.connections)
        s.close()


@pytest.mark.parametrize(
    "body",
    [
        chunked([1] * 2000),
        chunked([100] * 100, b";" + b"x" * 500),
        b"0\r\n" + b"".join(b"t%d: x\r\n" % i for i in range(2000)) + b"\r\n",
    ],
    ids=["chunks", "extensions", "trailers"],
)
def test_framing_is_bounded(body: bytes) -> None:
    with running(limits=Limits(framing_bytes=2000)) as r:
        s = r.connect()
        s.sendall(CHUNKED + body)
        answer = read_all(s)
    assert answer.startswith(b"HTTP/1.1 413 "), answer
    assert b"2000 bytes" in answer
    assert b"Content-Length" in answer


def test_usual_chunks_are_far_from_the_bound_on_framing() -> None:
    with running(limits=Limits()) as r:
        s = r.connect()
        s.sendall(CHUNKED + chunked([1024] * 2000))
        assert b"HTTP/1.1 200" in s.recv(1000)
        s.close()


def test_a_sender_is_paused_while_its_bytes_wait() -> None:
    """What is sent faster than it is parsed waits in the sender's kernel, not in this process."""
    most = 0
    received = Connection.data_received

    def data_received(self: Connection, data: bytes) -> None:
        nonlocal most
        received(self, data)
        most = max(most, len(self._inbox))

    with pytest.MonkeyPatch.context() as m:
        m.setattr(Connection, "data_received", data_received)
        with running(limits=PATIENT) as r:
            s = r.connect()
            s.sendall(CHUNKED + chunked([1] * 120_000))
            assert b"HTTP/1.1 200" in s.recv(1000)
            s.close()
    assert most <= 512 << 10  # one read of the transport (256 KiB) above the mark


# ---- who may not ask is told so at the header


def test_a_caller_is_refused_before_the_body() -> None:
    def admit(head: HTTPRequest) -> HTTPResponse | None:
        return None if head.headers.get("pass") == "yes" else HTTPResponse(401, b"who?", {"www-authenticate": "Bearer"})

    async def handle(request: HTTPRequest) -> HTTPResponse:
        assert request.headers["pass"] == "yes"
        return await echo(request)

    slow = Limits(read_s=60)
    heads = [
        CHUNKED,
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    ]
    with running(handle, slow, admit) as r:
        for sent in heads:
            s = r.connect()
            s.sendall(sent)
            answer = read_all(s)  # the server does not wait for the rest
            assert answer.startswith(b"HTTP/1.1 401 "), answer
            assert b"www-authenticate" in answer
            assert b"connection: close" in answer.lower()
            assert answer.endswith(b"who?")
        s = r.connect()
        s.sendall(b"POST / HTTP/1.1\r\nhost: x\r\npass: yes\r\ncontent-length: 2\r\nconnection: close\r\n\r\nab")
        assert read_all(s).endswith(b"POST / ab")

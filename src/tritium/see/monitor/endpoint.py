"""A scrape endpoint for Prometheus, or a page for a browser: texts of functions over HTTP.

Serves `GET` of a few paths only, few requests at a time, each within seconds. Listens on the loopback
address unless remote access is allowed.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tritium import escape
from tritium.arguments import checked_class
from tritium.errors import ArgumentError
from tritium.settings import log

CONNECTIONS = 8  # at once; further ones are closed unread
READ_S = 5.0  # for the next byte of a request
WHOLE_S = 15.0  # for a request and its response
MOST_BYTES = 16 << 20  # of a page
TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Served(NamedTuple):
    """A text at a path: the function that returns it, its type, and further headers."""

    text: Callable[[], str]
    type: str = TYPE
    headers: Mapping[str, str] = {}


def is_loopback(host: str) -> bool:
    """Return True if an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    """One request. The response contains nothing of it."""

    server: _Server
    server_version, sys_version = "tritium", ""
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d\n"
    timeout = READ_S

    def do_GET(self) -> None:
        if self.server.private and not self._is_local():
            self._respond(HTTPStatus.FORBIDDEN, "this address serves this machine only: use localhost.\n")
            return
        page = self.server.pages.get(self.path)
        if page is None:
            self._respond(HTTPStatus.NOT_FOUND, f"there are {' and '.join(self.server.pages)}.\n")
            return
        try:
            text = page.text()
        except Exception as error:  # the next request may succeed
            log.warning("endpoint: the page failed: %s", escape.terminal(f"{type(error).__name__}: {error}"))
            self._respond(HTTPStatus.INTERNAL_SERVER_ERROR, "the page failed; see the log.\n")
            return
        self._respond(HTTPStatus.OK, text, page)

    def _is_local(self) -> bool:
        """Return True if the Host header is a loopback name; a web page's own name may resolve to this address."""
        host = self.headers.get("Host", "localhost")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return is_loopback(name)

    def _respond(self, status: HTTPStatus, text: str, page: Served | None = None) -> None:
        body = text.encode("utf-8", "backslashreplace")
        if len(body) > MOST_BYTES:
            status, body, page = HTTPStatus.INTERNAL_SERVER_ERROR, b"the page is too large.\n", None
        self.send_response(status)
        headers = {
            **(page.headers if page else {}), "Content-Type": page.type if page else TYPE, "Content-Length": str(len(body)),
            "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Connection": "close",
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse with the status alone: the message of the base class quotes the request in the status line."""
        super().send_error(code)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("endpoint: %s", escape.terminal(format % args))


class _Server(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False
    request_queue_size = CONNECTIONS

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Served], private: bool) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.pages, self.private = pages, private
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind as the parent of HTTPServer does; HTTPServer's own resolves our name, which may block."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "localhost", self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._room.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread left; the caller closes the connection
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        timer = threading.Timer(WHOLE_S, _disconnect, (request,))
        timer.daemon = True
        try:
            try:
                timer.start()
            except RuntimeError:  # no thread left to enforce the time limit, so it is not answered
                self.handle_error(request, client_address)
                self.shutdown_request(request)
                return
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("endpoint: a request was not answered", exc_info=True)


def _disconnect(request: socket.socket) -> None:
    """Close a connection that exceeded its time."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


@checked_class
class Endpoint:
    """A server of `text()` at /metrics, from `start` to `stop` or in a `with`. Port 0: a free one, see `port` and `url`.

    `pages` are further texts by their paths.
    """

    def __init__(
        self, text: Callable[[], str], port: int = 0, host: str = "127.0.0.1", *, allow_remote: bool = False,
        pages: Mapping[str, Served] | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(port, int) or not 0 <= port <= 65535:
            raise ArgumentError(f"port: a number from 0 (a free one) to 65535 is needed, given {port!r}.")
        self.private = is_loopback(host)
        if not self.private and not allow_remote:
            raise ArgumentError(
                f"host: {host!r} can be reached from other machines, and the page has no authentication. Use 127.0.0.1, or "
                "pass allow_remote=True."
            )
        self.host, self.port = "127.0.0.1" if host == "localhost" else host, port
        self._pages = {"/metrics": Served(text), "/health": Served(lambda: "ok\n"), **(pages or {})}
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Endpoint:
        """Listen; raise ArgumentError where the port is in use."""
        if self._server is not None:
            return self
        try:
            self._server = _Server((self.host, self.port), self._pages, self.private)
        except OSError as error:
            raise ArgumentError(
                f"port {self.port} of {self.host} cannot be used: {error.strerror or error}. Choose another, or 0 for a free one."
            ) from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True, name="tritium endpoint"
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop listening. Requests in progress are completed."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            if self._thread is not None:
                self._thread.join(READ_S)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def __enter__(self) -> Endpoint:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

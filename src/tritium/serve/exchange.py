"""A request and its response, as the front ends (`http`, `asgi`) and the routes (`api`) share them; what one client may take."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

from tritium.settings import log


@dataclass(frozen=True)
class Limits:
    """Bounds on the bytes, connections and seconds that clients may take of the server."""

    body_bytes: int = 2 << 20
    header_bytes: int = 16 << 10
    framing_bytes: int = 64 << 10  # of a chunked body beside its data: sizes, extensions, trailers
    connections: int = 128
    read_s: float = 15.0  # for a whole request to arrive
    idle_s: float = 60.0  # between two requests of one connection
    write_s: float = 30.0  # for a reader to take a full buffer
    header_s: float = 5.0  # for the header of a request to arrive, and for a new connection to send its first byte
    client_connections: int = 64  # of `connections`, those of one address


@dataclass(frozen=True)
class HTTPRequest:
    method: str
    path: str  # without the query
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    client: str = ""  # the address it came from, as `client_of` has it


@dataclass(frozen=True)
class HTTPResponse:
    """A body of bytes, or of pieces that are sent as they come; `release` is called when it is sent or given up."""

    status: int
    body: bytes | AsyncGenerator[bytes, None]
    headers: Mapping[str, str] = field(default_factory=dict)
    release: Callable[[], None] = lambda: None


class RefusedError(Exception):
    """A request that is answered without being handled; the connection ends with it."""

    def __init__(self, status: int, message: str, response: HTTPResponse | None = None) -> None:
        super().__init__(message)
        self.status, self.response = status, response


async def answer(
    handle: Callable[[HTTPRequest], Awaitable[HTTPResponse]],
    refuse: Callable[[int, str], HTTPResponse],
    request: HTTPRequest,
) -> HTTPResponse:
    """Return the response of `handle`; a fault in it is logged, and the client gets a 500 that does not repeat it."""
    try:
        return await handle(request)
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return refuse(500, "The server failed to handle the request; its log says why.")


def check_size(nbytes: int, limits: Limits) -> None:
    """Raise RefusedError (413) for a body that is too large."""
    if nbytes > limits.body_bytes:
        raise RefusedError(413, f"The body has more than {limits.body_bytes} bytes, the most this server takes.")


def client_of(peername: object) -> str:
    """The client behind an address: the address itself, or its network of 64 bits, of which IPv6 gives one to each."""
    if not isinstance(peername, tuple) or not peername:
        return ""
    try:
        address = ip_address(str(peername[0]).partition("%")[0])
    except ValueError:
        return str(peername[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(getattr(address, "ipv4_mapped", None) or address)

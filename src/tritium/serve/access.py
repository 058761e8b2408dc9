"""Who may call a server: the address it listens on, the key, the names it answers to, the web pages it trusts.

Knows nothing of models or of connections. A key is never written anywhere, and compared in constant time.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from tritium.errors import ArgumentError
from tritium.escape import visible
from tritium.serve.protocols.common import ProtocolError

OPEN = ("/health",)  # paths that need no key
PREFLIGHT = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "authorization, content-type",
    "access-control-max-age": "600",
}


@dataclass(frozen=True)
class Access:
    """The rules of one server. `hosts` are its names besides localhost and plain addresses, `origins` pages that may call."""

    key: str | None = field(default=None, repr=False)
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()

    def __post_init__(self) -> None:
        k = self.key
        if k is not None and (not k or not k.isascii() or not k.isprintable() or k.strip() != k):
            raise ArgumentError("serve: an API key must be printable ASCII without spaces around it, and not empty.")

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """ProtocolError for a caller who may not.

        A page in somebody's browser can reach a local port by a name it controls, or send a form without seeing the
        answer. The first shows in Host, the second in Origin.
        """
        name = hostname(headers.get("host", ""))
        if not is_address(name) and name != "localhost" and name not in map(str.lower, self.hosts):
            raise ProtocolError(
                403, f"This server does not answer to the name {visible(name)!r}. Call it by its address, or start it with that name "
                "in allowed_hosts.", code="host_not_allowed",
            )  # fmt: skip
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins:
            raise ProtocolError(
                403, f"Pages of {visible(origin)!r} may not call this server. Start it with that in allowed_origins.",
                code="origin_not_allowed",
            )  # fmt: skip
        if self.key is None or path in OPEN or method == "OPTIONS":
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("latin-1"), self.key.encode())
        if scheme.lower() != "bearer" or not same:
            raise ProtocolError(
                401, "A valid API key is needed: send the header 'Authorization: Bearer KEY'.", code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )  # fmt: skip

    def cors(self, origin: str | None) -> dict[str, str]:
        """What lets a trusted page read the answer."""
        return {"access-control-allow-origin": origin, "vary": "origin"} if origin in self.origins and origin else {}


def read_key(path: str | Path) -> str:
    """The key in a file: its first line."""
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or not lines[0].strip():
        raise ArgumentError(f"serve: {path} holds no API key; write it on the first line.")
    return lines[0].strip()


@dataclass(frozen=True)
class Address:
    """Where to listen, found once, so that what was judged safe is what is bound."""

    family: socket.AddressFamily
    host: str
    port: int

    @classmethod
    def of(cls, host: str, port: int) -> Address:
        try:
            family, *_, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        except (OSError, OverflowError, UnicodeError) as e:
            raise ArgumentError(f"serve: {host!r}, port {port!r} is no address of this machine: {e}.") from None
        return cls(family, str(found[0]), int(found[1]))

    @property
    def is_local(self) -> bool:
        return ip_address(self.host.partition("%")[0]).is_loopback

    def listen(self) -> socket.socket:
        try:
            return socket.create_server((self.host, self.port), family=self.family)
        except OSError as e:
            raise ArgumentError(
                f"serve: cannot listen on {self.host}, port {self.port}: {e.strerror}. Choose another port (0: any free one)."
            ) from None


def hostname(header: str) -> str:
    """The name in a Host header, without port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True

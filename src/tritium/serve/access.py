"""Access rules of a server: the address it listens on, keys, the names it answers to, web pages it trusts, quotas.

A key is never written anywhere, and compared in constant time.
"""

from __future__ import annotations

import hmac
import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from tritium.errors import ArgumentError
from tritium.escape import visible
from tritium.serve.protocols.common import ProtocolError
from tritium.settings import log

OPEN = (
    "/",
    "/health",
)  # paths that need no key: the page to chat in, which asks for it, and a word whether the server runs
PREFLIGHT = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "authorization, content-type, x-api-key, anthropic-version",
    "access-control-max-age": "600",
}


MOST_KEYS = 1024
MOST_FILE = 1 << 18  # bytes of a file of keys


class Keys:
    """API keys and the names of those who have them: one key, or a file of them that is read again when it changes.

    A line of the file is a key, or a name and a key; lines that begin with # are comments. A file that cannot be read any more, or
    holds no key, changes nothing: the last keys stay.
    """

    def __init__(self, key: str | None = None, file: str | Path | None = None) -> None:
        if key is not None and file is not None:
            raise ArgumentError("serve: api_key and api_key_file were both given; give one of them.")
        self._file, self._seen = None if file is None else Path(file), (0, 0, 0)
        self._keys: dict[bytes, str] = {} if key is None else {_checked(key).encode(): ""}
        if self._file is not None:
            self._seen, self._keys = _stamp(self._file), read_keys(self._file)

    @property
    def are_needed(self) -> bool:
        """Return True if a caller must have a key."""
        return bool(self._keys) or self._file is not None

    def name_of(self, key: str) -> str | None:
        """Return the name of who has a key, "" without one; None for a wrong key. Every key is compared, in constant time."""
        self._refresh()
        raw_key, name = key.encode("latin-1", "replace"), None
        for known, owner in self._keys.items():
            if hmac.compare_digest(raw_key, known):
                name = owner
        return name

    def _refresh(self) -> None:
        if self._file is None:
            return
        try:
            stamp = _stamp(self._file)
            if stamp != self._seen:
                self._seen, self._keys = stamp, read_keys(self._file)
                log.info("API keys were read again: %d", len(self._keys))
        except (OSError, ArgumentError) as e:
            log.warning("the API keys stay as they were: %s", visible(str(e)))

    def __repr__(self) -> str:
        return f"<{len(self._keys)} API keys>"


def _stamp(file: Path) -> tuple[int, int, int]:
    s = file.stat()
    return s.st_mtime_ns, s.st_size, s.st_ino


def _checked(key: str) -> str:
    if not key or not key.isascii() or not key.isprintable() or key.strip() != key:
        raise ArgumentError("serve: an API key must be printable ASCII without spaces around it, and not empty.")
    return key


def read_keys(path: str | Path) -> dict[bytes, str]:
    """Return the keys in a file, and whose they are."""
    with Path(path).open("rb") as file:
        raw = file.read(MOST_FILE + 1)
    if len(raw) > MOST_FILE:
        raise ArgumentError(f"serve: {path} is longer than {MOST_FILE} bytes; it is no file of API keys.")
    keys: dict[bytes, str] = {}
    for line in raw.decode("utf-8", "replace").splitlines():
        words = line.split()
        if words and not words[0].startswith("#"):
            if len(words) > 2:
                raise ArgumentError(
                    f"serve: {path}: a line has {len(words)} words; a key, or a name and a key, are needed."
                )
            keys[_checked(words[-1]).encode()] = visible(words[0]) if len(words) == 2 else f"key {len(keys) + 1}"
    if not keys or len(keys) > MOST_KEYS:
        raise ArgumentError(
            f"serve: {path} holds {len(keys) or 'no'} API key{'s' * (len(keys) > 1)}; 1 to {MOST_KEYS} are needed, one on a line."
        )
    return keys


@dataclass(frozen=True)
class Access:
    """The rules of one server. `hosts` are its names besides localhost and plain addresses, `origins` pages that may call."""

    keys: Keys = field(default_factory=Keys)
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Raise ProtocolError for a caller who may not call.

        A page in somebody's browser can reach a local port by a name it controls, or send a form without seeing the
        answer. The first shows in Host, the second in Origin. The server's own page has the origin that Host names.
        """
        host = headers.get("host", "")
        name = hostname(host)
        if not is_address(name) and name != "localhost" and name not in map(str.lower, self.hosts):
            raise ProtocolError(
                403, f"This server does not answer to the name {visible(name)!r}. Call it by its address, or start it with that name "
                "in allowed_hosts.", code="host_not_allowed",
            )  # fmt: skip
        origin = headers.get("origin")
        own = (f"http://{host}", f"https://{host}")
        if origin is not None and origin.lower() not in map(str.lower, own) and origin not in self.origins:
            raise ProtocolError(
                403, f"Pages of {visible(origin)!r} may not call this server. Start it with that in allowed_origins.",
                code="origin_not_allowed",
            )  # fmt: skip
        if self.keys.are_needed and path not in OPEN and method != "OPTIONS" and self.caller(headers) is None:
            raise ProtocolError(
                401, "A valid API key is needed: send the header 'Authorization: Bearer KEY', or 'x-api-key: KEY'.",
                code="invalid_api_key", headers={"www-authenticate": "Bearer"},
            )  # fmt: skip

    def caller(self, headers: Mapping[str, str]) -> str | None:
        """Return the name of who calls, by the key; "" where it has none, None without a valid key."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        named = self.keys.name_of(key.strip()) if scheme.lower() == "bearer" else None
        return named if named is not None else self.keys.name_of(headers.get("x-api-key", "").strip())

    def cors(self, origin: str | None) -> dict[str, str]:
        """Return the headers that let a trusted page read the answer; none for other pages."""
        return {"access-control-allow-origin": origin, "vary": "origin"} if origin in self.origins and origin else {}


# ---- how much one client may have

MOST_CLIENTS = 65536


@dataclass
class _Client:
    allowance: float  # requests it may send now
    last_update: float  # of the allowance, on the clock of the quota
    held: int = 0  # answers that run or wait


class Quota:
    """The limits of each client: `rate` requests a minute, saved up to a minute's; `share` answers that run or wait at once."""

    def __init__(
        self, rate: float | None = None, share: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if rate is not None and not 0 < rate < math.inf:
            raise ArgumentError(f"serve: rate must be requests a minute, more than 0, given {rate!r}.")
        if share is not None and share < 1:
            raise ArgumentError(f"serve: share must be 1 or more answers at once, given {share!r}.")
        self.rate, self.share, self._clock = rate, share, clock
        self._clients: dict[str, _Client] = {}

    def admit(self, client: str) -> None:
        """Count a request; ProtocolError (429) for one too many, with the time after which to try again."""
        if self.rate is None:
            return
        now, most = self._clock(), max(1.0, self.rate)
        known = self._known(client, now)
        known.allowance = min(most, known.allowance + (now - known.last_update) * self.rate / 60)
        known.last_update = now
        if known.allowance < 1:
            wait = max(1, math.ceil((1 - known.allowance) * 60 / self.rate))
            raise ProtocolError(
                429, f"More than {self.rate:g} requests a minute came from you; try again in {wait} s.", code="rate_limit_exceeded",
                headers={"retry-after": str(wait)},
            )  # fmt: skip
        known.allowance -= 1

    def take(self, client: str, count: int) -> None:
        """Hold a place for each of `count` answers; ProtocolError (429) where that is more than the client's share."""
        known = self._known(client, self._clock())
        if self.share is not None and known.held + count > self.share:
            raise ProtocolError(
                429, f"{known.held} of your answers run or wait, and {count} more would be more than {self.share}; try again later.",
                code="rate_limit_exceeded", headers={"retry-after": "1"},
            )  # fmt: skip
        known.held += count

    def give_back(self, client: str, count: int) -> None:
        """Free the places of answers that ended."""
        if client in self._clients:
            self._clients[client].held -= count

    def _known(self, client: str, now: float) -> _Client:
        if client not in self._clients:
            if len(self._clients) >= MOST_CLIENTS:
                # A client that holds nothing and has a whole minute's requests saved up is as good as a new one.
                full = [c for c, k in self._clients.items() if not k.held and now - k.last_update >= 60]
                for c in full or [c for c, k in self._clients.items() if not k.held][:1]:
                    del self._clients[c]
            self._clients[client] = _Client(max(1.0, self.rate or 1.0), now)
        return self._clients[client]


@dataclass(frozen=True)
class Address:
    """The address to listen on, resolved once, so that what was judged safe is what is bound."""

    family: socket.AddressFamily
    host: str
    port: int

    @classmethod
    def resolve(cls, host: str, port: int) -> Address:
        try:
            family, *_, sockaddr = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        except (OSError, OverflowError, UnicodeError) as e:
            raise ArgumentError(f"serve: {host!r}, port {port!r} is no address of this machine: {e}.") from None
        return cls(family, str(sockaddr[0]), int(sockaddr[1]))

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
    """Return the name in a Host header, without port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def is_loopback(server: Any) -> bool:
    """Return True if an ASGI server's own address can be reached from this machine alone: loopback, or a Unix socket."""
    if not server:
        return False
    host, port = server
    if port is None:  # the path of a Unix socket
        return True
    name = str(host).partition("%")[0]
    return name == "localhost" or (is_address(name) and ip_address(name).is_loopback)


def is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True

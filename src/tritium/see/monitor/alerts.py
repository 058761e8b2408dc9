"""Alerts: told when the level of something changes, and to whom: a log, a file, a command, a web address.

Knows nothing of measuring. What stays as it is is told once; what gets worse, eases or recovers is told again. Who cannot be
reached gets it later: an alert is written down before it is sent, and forgotten when it was taken. So a restart tells
nothing twice and loses nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from tritium import escape
from tritium.errors import ArgumentError, FormatError, SaveError, TritiumError
from tritium.perf import files
from tritium.perf.records import json_io as records
from tritium.settings import log

SCHEMA = 1
WAITING = 100  # alerts that are kept for those who cannot be reached
Level = Literal["ok", "warning", "critical"]
Event = Literal["raised", "worse", "eased", "recovered"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "critical")


class UnsentError(TritiumError, RuntimeError):
    """An alert could not be delivered; it is kept, and tried again."""


@dataclass(frozen=True)
class Standing:
    """How one thing stands now. Equal in the first four: the same thing."""

    kind: str  # "change", "limit", "comparison", "round"
    case: str
    arm: str = ""
    metric: str = ""
    level: Level = "ok"
    says: str = ""  # one sentence without the names
    value: float | None = None
    base: float | None = None  # what it was, or may be at most
    unit: str = ""
    ratio: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.kind, self.case, self.arm, self.metric


@dataclass(frozen=True)
class Alert:
    """A level that changed."""

    at: str  # UTC, ISO 8601
    event: Event
    before: Level
    standing: Standing

    @property
    def level(self) -> Level:
        return self.standing.level

    def line(self, shown: Callable[[str], str] = escape.terminal) -> str:
        """One line for people; names are made harmless by `shown`."""
        f = self.standing
        word = f.level.upper() if self.event != "recovered" else "RECOVERED"
        told = {"worse": f", was {self.before}", "eased": f", was {self.before}"}.get(self.event, "")
        named = " ".join(filter(None, (shown(f.case), f"[{shown(f.arm)}]" if f.arm else "", shown(f.metric))))
        return f"{word}{told}: {named}: {shown(f.says)}" if f.says else f"{word}{told}: {named}"

    def json(self) -> str:
        """One line of plain ASCII; `text` is harmless in a chat or a page."""
        data = {"schema": SCHEMA, "text": self.line(escape.label), **records.plain(self)}
        return json.dumps(data, allow_nan=False)


def alert_of(data: Any, where: str) -> Alert:
    """An alert as `json` wrote it."""
    if not isinstance(data, dict):
        raise FormatError(f"{where}: an alert is an object, given {type(data).__name__}.")
    records.check_schema(data.get("schema", SCHEMA), SCHEMA, where)
    return records.read(Alert, {k: v for k, v in data.items() if k not in ("schema", "text")}, where)


# ---- what changed


def event_of(before: Level, now: Level) -> Event | None:
    """What a change of level is called; None where there is none."""
    if before == now:
        return None
    if now == "ok":
        return "recovered"
    if before == "ok":
        return "raised"
    return "worse" if LEVELS.index(now) > LEVELS.index(before) else "eased"


def changes(
    levels: dict[tuple[str, str, str, str], Level], standings: Iterable[Standing], at: str
) -> tuple[dict[tuple[str, str, str, str], Level], list[Alert]]:
    """The levels after these standings, and an alert for each that changed. What no standing speaks of stays as it is."""
    after, out = dict(levels), []
    for standing in standings:
        before = after.get(standing.key, "ok")
        event = event_of(before, standing.level)
        if event is None:
            continue
        if standing.level == "ok":
            after.pop(standing.key, None)
        else:
            after[standing.key] = standing.level
        out.append(Alert(at, event, before, standing))
    return after, out


# ---- sinks


class Sink(Protocol):
    """Someone alerts are sent to. `send` returns when it was taken, and raises UnsentError when not."""

    @property
    def name(self) -> str: ...  # for people, without secrets

    @property
    def key(self) -> str: ...  # to find it again after a restart

    def send(self, alert: Alert) -> None: ...


@dataclass(frozen=True)
class Log:
    """Python's logging, under `tritium`."""

    name: str = "log"
    key: str = "log"

    def send(self, alert: Alert) -> None:
        level = {"ok": log.info, "warning": log.warning, "critical": log.error}[alert.level]
        level("alert: %s", alert.line())


@dataclass(frozen=True)
class File:
    """A file of JSON lines: each is on the disk before it counts as sent."""

    path: Path

    @property
    def name(self) -> str:
        return f"file {files.named(self.path)}"

    @property
    def key(self) -> str:
        return f"file {_short(str(self.path.absolute()))}"

    def send(self, alert: Alert) -> None:
        try:
            append_line(self.path, alert.json())
        except OSError as error:
            raise UnsentError(f"{self.name}: {error.strerror or error}") from None


@dataclass(frozen=True)
class Command:
    """A program without a shell: the alert as JSON on its standard input, some seconds to take it, exit code 0."""

    argv: tuple[str, ...]
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if isinstance(self.argv, str) or not self.argv or not all(isinstance(a, str) and a for a in self.argv[:1]):
            raise ArgumentError(f"command: a list of a program and its arguments is needed, given {self.argv!r}.")

    @property
    def name(self) -> str:
        return f"command {files.named(self.argv[0])}"

    @property
    def key(self) -> str:
        return f"command {_short(*self.argv)}"

    def send(self, alert: Alert) -> None:
        with tempfile.TemporaryFile() as said:  # not a pipe: what the program leaves running must not hold us
            try:
                child = subprocess.Popen(
                    list(self.argv), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
                )  # fmt: skip
            except OSError as error:
                raise UnsentError(f"{self.name} cannot be started: {error.strerror or error}") from None
            try:
                child.communicate(f"{alert.json()}\n".encode(), timeout=self.timeout_s)
            except subprocess.TimeoutExpired:
                raise UnsentError(f"{self.name} did not end within {self.timeout_s:g} s and was killed") from None
            finally:
                if child.poll() is None:
                    with suppress(OSError):
                        os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
            if child.returncode:
                said.seek(max(said.seek(0, os.SEEK_END) - 400, 0))
                tail = escape.visible(said.read(400).decode("utf-8", "replace").strip(), 400)
                raise UnsentError(f"{self.name} left with exit code {child.returncode}: {tail}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An alert goes to the address that was given, and to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


AGAIN = (408, 425, 429, 500, 502, 503, 504)  # answers after which a second try may help


@dataclass(frozen=True)
class Webhook:
    """A web address: the alert as JSON in a POST. Only http and https; redirects are not followed."""

    url: str = field(repr=False)  # the address often is the secret
    timeout_s: float = 10.0
    tries: int = 3
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits or not self.url.isprintable() or " " in self.url:
            raise ArgumentError("webhook: an address that begins with http:// or https:// and names a host is needed.")
        if self.tries < 1:
            raise ArgumentError(f"webhook: tries must be 1 or more, given {self.tries}.")

    @property
    def name(self) -> str:
        return f"webhook {escape.visible(urlsplit(self.url).hostname or '')}"

    @property
    def key(self) -> str:
        return f"webhook {_short(self.url)}"

    def send(self, alert: Alert) -> None:
        body = alert.json().encode()
        for attempt in range(self.tries):
            if attempt:
                self.sleep(2.0 ** (attempt - 1))
            why, again = self._post(body)
            if not why:
                return
            if not again:
                break
        raise UnsentError(f"{self.name}: {why}")

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Why it was not taken ("": it was), and whether another try may help."""
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json", "User-Agent": "tritium"})
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self.timeout_s):
                return "", False
        except urllib.error.HTTPError as error:
            error.close()
            return f"it answered {error.code}", error.code in AGAIN
        except (OSError, ValueError) as error:  # unreachable, too slow, or no HTTP
            told = getattr(error, "reason", None) or error
            return escape.visible(f"{type(error).__name__}: {told}".replace(self.url, "…")), True
        except Exception as error:  # http.client has errors of its own for what is no answer
            return escape.visible(type(error).__name__), True


def _short(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def append_line(path: Path, line: str) -> None:
    """Add a line to a file and wait until the disk has it. What a kill left of the line before is ended first."""
    files.make_folder(path.absolute().parent)
    new = not path.exists()
    handle = files.again(os.open, path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        files.write_all(handle, ("\n" * torn + line + "\n").encode("utf-8", "backslashreplace"))
        files.sync(handle)
    finally:
        os.close(handle)
    if new:
        files.sync_folder(path.absolute().parent)


def read_alerts(path: str | os.PathLike[str]) -> list[Alert]:
    """The alerts of a file. A line that a kill tore is left out, and said in the log."""
    where, out = files.named(path), []
    for number, line in enumerate(files.read_bytes(path).splitlines(), 1):
        place = f"{where}: line {number}"
        try:
            out.append(alert_of(records.loads(line, place), place))
        except FormatError as error:
            log.warning("%s It is left out.", error)
    return out


# ---- the desk


@dataclass(frozen=True)
class _Open:
    kind: str
    case: str
    arm: str
    metric: str
    level: Level


@dataclass(frozen=True)
class _Waiting:
    sink: str
    alert: Alert


@dataclass(frozen=True)
class _State:
    open: tuple[_Open, ...] = ()
    waiting: tuple[_Waiting, ...] = ()
    schema: int = SCHEMA


class Desk:
    """Takes standings, and sends what changed to every sink. `state`: a file that lets it go on after a restart."""

    def __init__(
        self, sinks: Sequence[Sink] = (), state: Path | None = None, *, now: Callable[[], str] = records.utc_now
    ) -> None:
        self.sinks, self.state, self.now = tuple(sinks), state, now
        self.levels: dict[tuple[str, str, str, str], Level] = {}
        self._waiting: list[_Waiting] = []
        if state is not None and state.exists():
            self._restore(state)

    @property
    def worst(self) -> Level:
        return max(self.levels.values(), key=LEVELS.index, default="ok")

    @property
    def waiting(self) -> int:
        """Alerts somebody has not taken yet."""
        return len(self._waiting)

    def tell(self, standings: Iterable[Standing]) -> list[Alert]:
        """Send an alert for each standing whose level changed, and what is still waiting. Gives the new ones."""
        self.levels, new = changes(self.levels, standings, self.now())
        self._waiting += [_Waiting(sink.key, alert) for alert in new for sink in self.sinks]
        if self._waiting or new:
            self._save()
            self._send()
            if len(self._waiting) > WAITING:
                log.error("alerts: %d could not be delivered and are dropped.", len(self._waiting) - WAITING)
                del self._waiting[:-WAITING]
            self._save()
        return new

    def _send(self) -> None:
        """To each sink in order; one that refuses keeps the rest waiting, and the others nothing."""
        by_key = {sink.key: sink for sink in self.sinks}
        refused: set[str] = set()
        left: list[_Waiting] = []
        for entry in self._waiting:
            sink = by_key.get(entry.sink)
            if sink is None:
                continue  # nobody is listening there any more
            if entry.sink not in refused and self._taken(sink, entry.alert):
                continue
            refused.add(entry.sink)
            left.append(entry)
        self._waiting = left

    def _taken(self, sink: Sink, alert: Alert) -> bool:
        try:
            sink.send(alert)
        except Exception as error:  # whatever a sink does, the desk goes on
            log.error("alerts: not sent, kept for the next round: %s", escape.terminal(str(error), 500))
            return False
        return True

    def _save(self) -> None:
        if self.state is None:
            return
        found = _State(tuple(_Open(*key, level) for key, level in self.levels.items()), tuple(self._waiting))
        try:
            files.write_text(self.state, json.dumps(records.plain(found), allow_nan=False) + "\n", parents=True)
        except SaveError as error:
            log.error("alerts: %s A restart may tell something twice.", error)

    def _restore(self, path: Path) -> None:
        try:
            found = records.load(_State, path)
            records.check_schema(found.schema, SCHEMA, files.named(path))
        except FormatError as error:
            log.warning("alerts: %s What is open will be told again.", error)
            return
        self.levels = {(o.kind, o.case, o.arm, o.metric): o.level for o in found.open}
        self._waiting = list(found.waiting)

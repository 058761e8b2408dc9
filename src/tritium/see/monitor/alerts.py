"""Alerts on changes of level, delivered to sinks: a log, a file, a command, a webhook.

An unchanged level is reported once; one that gets worse, eases or recovers is reported again. Alerts to an unreachable
sink are retried later: an alert is saved before it is sent, and deleted when it was delivered. So a restart repeats
nothing and loses nothing.
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
from tritium.arguments import checked_class
from tritium.errors import ArgumentError, FormatError, SaveError, TritiumError
from tritium.machine import files
from tritium.perf.records import json_io as records
from tritium.settings import log

SCHEMA = 1
WAITING = 100  # alerts that are kept for unreachable sinks
Level = Literal["ok", "warning", "critical"]
Event = Literal["raised", "worse", "eased", "recovered"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "critical")


class UnsentError(TritiumError, RuntimeError):
    """An alert that could not be delivered; it is kept, and sent again later."""


@dataclass(frozen=True)
class Standing:
    """The current level of one condition. The first four fields identify the condition."""

    kind: str  # "change", "missing", "limit", "comparison", "blind", "round"
    case: str
    arm: str = ""
    metric: str = ""
    level: Level = "ok"
    says: str = ""  # one sentence without the names
    value: float | None = None
    base: float | None = None  # the baseline's value, or the limit
    unit: str = ""
    ratio: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.kind, self.case, self.arm, self.metric


@dataclass(frozen=True)
class Alert:
    """A change of level."""

    at: str  # UTC, ISO 8601
    event: Event
    before: Level
    standing: Standing

    @property
    def level(self) -> Level:
        return self.standing.level

    def line(self, shown: Callable[[str], str] = escape.terminal) -> str:
        """Return the alert as one line of text; names are escaped by `shown`."""
        standing = self.standing
        word = standing.level.upper() if self.event != "recovered" else "RECOVERED"
        previous = {"worse": f", was {self.before}", "eased": f", was {self.before}"}.get(self.event, "")
        subject = " ".join(
            filter(
                None, (shown(standing.case), f"[{shown(standing.arm)}]" if standing.arm else "", shown(standing.metric))
            )
        )
        return (
            f"{word}{previous}: {subject}: {shown(standing.says)}" if standing.says else f"{word}{previous}: {subject}"
        )

    def json(self) -> str:
        """Return the alert as one line of ASCII JSON; its `text` is safe in a chat or a page."""
        data = {"schema": SCHEMA, "text": self.line(escape.label), **records.plain(self)}
        return json.dumps(data, allow_nan=False)


def alert_of(data: Any, where: str) -> Alert:
    """Return the alert that `json` wrote."""
    if not isinstance(data, dict):
        raise FormatError(f"{where}: an alert is an object, given {type(data).__name__}.")
    records.check_schema(data.get("schema", SCHEMA), SCHEMA, where)
    return records.read(Alert, {k: v for k, v in data.items() if k not in ("schema", "text")}, where)


# ---- what changed


def event_of(before: Level, now: Level) -> Event | None:
    """Return the name of a change of level; None where there is none."""
    if before == now:
        return None
    if now == "ok":
        return "recovered"
    if before == "ok":
        return "raised"
    return "worse" if LEVELS.index(now) > LEVELS.index(before) else "eased"


def changes(
    levels: dict[tuple[str, str, str, str], Level], standings: Iterable[Standing], time_utc: str
) -> tuple[dict[tuple[str, str, str, str], Level], list[Alert]]:
    """Return the levels after these standings, and an alert for each change. Levels without a standing stay unchanged."""
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
        out.append(Alert(time_utc, event, before, standing))
    return after, out


# ---- sinks


class Sink(Protocol):
    """A receiver of alerts. `send` returns when the alert was delivered, and raises UnsentError when not."""

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
    """A file of JSON lines: each is synced to disk before it counts as sent."""

    path: Path

    @property
    def name(self) -> str:
        return f"file {files.named(self.path)}"

    @property
    def key(self) -> str:
        return f"file {_hash(str(self.path.absolute()))}"

    def send(self, alert: Alert) -> None:
        try:
            append_line(self.path, alert.json())
        except OSError as error:
            raise UnsentError(f"{self.name}: {error.strerror or error}") from None


@dataclass(frozen=True)
class Command:
    """A program run without a shell: the alert as JSON on its standard input, a time limit, exit code 0 for success."""

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
        return f"command {_hash(*self.argv)}"

    def send(self, alert: Alert) -> None:
        with tempfile.TemporaryFile() as stderr:  # not a pipe: a child the program leaves running must not block us
            try:
                child = subprocess.Popen(
                    list(self.argv), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
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
                stderr.seek(max(stderr.seek(0, os.SEEK_END) - 400, 0))
                tail = escape.visible(stderr.read(400).decode("utf-8", "replace").strip(), 400)
                raise UnsentError(f"{self.name} ended with exit code {child.returncode}: {tail}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect handler that follows none: an alert goes to the configured address only."""

    def redirect_request(self, *_: Any) -> None:
        return None


AGAIN = (408, 425, 429, 500, 502, 503, 504)  # status codes worth a retry


@dataclass(frozen=True)
class Webhook:
    """A webhook: the alert as JSON in a POST. Only http and https; redirects are not followed."""

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
        return f"webhook {_hash(self.url)}"

    def send(self, alert: Alert) -> None:
        body = alert.json().encode()
        for attempt in range(self.tries):
            if attempt:
                self.sleep(2.0 ** (attempt - 1))
            why, retry = self._post(body)
            if not why:
                return
            if not retry:
                break
        raise UnsentError(f"{self.name}: {why}")

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Return why the alert was not accepted ("": it was), and whether a retry may help."""
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json", "User-Agent": "tritium"})
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self.timeout_s):
                return "", False
        except urllib.error.HTTPError as error:
            error.close()
            return f"the server answered {error.code}", error.code in AGAIN
        except (OSError, ValueError) as error:  # unreachable, too slow, or not HTTP
            reason = getattr(error, "reason", None) or error
            return escape.visible(f"{type(error).__name__}: {reason}".replace(self.url, "…")), True
        except Exception as error:  # http.client raises errors of its own for an invalid response
            return escape.visible(type(error).__name__), True


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def append_line(path: Path, line: str) -> None:
    """Append a line to a file and sync it to disk. A line torn by a kill is ended first."""
    files.make_folder(path.absolute().parent)
    new = not path.exists()
    handle = files.again(os.open, path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        files.write_all(handle, ("\n" * torn + line + "\n").encode("utf-8", "backslashreplace"))
        files.flush(handle)
    finally:
        os.close(handle)
    if new:
        files.sync(path.absolute().parent)


def read_alerts(path: str | os.PathLike[str]) -> list[Alert]:
    """Return the alerts of a file. A line torn by a kill is skipped, with a warning in the log."""
    where, out = files.named(path), []
    for number, line in enumerate(files.read_bytes(path).splitlines(), 1):
        place = f"{where}: line {number}"
        try:
            out.append(alert_of(records.loads(line, place), place))
        except FormatError as error:
            log.warning("%s The line is skipped.", error)
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


@checked_class
class Desk:
    """A dispatcher: takes standings and sends every change to every sink. `state`: a file that survives restarts."""

    def __init__(
        self, sinks: Sequence[Sink] = (), state: str | Path | None = None, *, now: Callable[[], str] = records.utc_now
    ) -> None:
        self.sinks, self.state, self.now = tuple(sinks), None if state is None else Path(state), now
        self.levels: dict[tuple[str, str, str, str], Level] = {}
        self._waiting: list[_Waiting] = []
        if self.state is not None and self.state.exists():
            self._restore(self.state)

    @property
    def worst(self) -> Level:
        return max(self.levels.values(), key=LEVELS.index, default="ok")

    @property
    def waiting(self) -> int:
        """Return the number of deliveries still to be made."""
        return len(self._waiting)

    def tell(self, standings: Iterable[Standing]) -> list[Alert]:
        """Send an alert for each standing whose level changed, and all that wait; return the new ones."""
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
        """Send to each sink in order; a sink that fails keeps its own alerts waiting, not those of others."""
        by_key = {sink.key: sink for sink in self.sinks}
        failed: set[str] = set()
        unsent: list[_Waiting] = []
        for entry in self._waiting:
            sink = by_key.get(entry.sink)
            if sink is None:
                continue  # that sink is no longer configured
            if entry.sink not in failed and self._deliver(sink, entry.alert):
                continue
            failed.add(entry.sink)
            unsent.append(entry)
        self._waiting = unsent

    def _deliver(self, sink: Sink, alert: Alert) -> bool:
        try:
            sink.send(alert)
        except Exception as error:  # one failing sink must not stop the others
            log.error("alerts: not sent, kept for the next round: %s", escape.terminal(str(error), 500))
            return False
        return True

    def _save(self) -> None:
        if self.state is None:
            return
        state = _State(tuple(_Open(*key, level) for key, level in self.levels.items()), tuple(self._waiting))
        try:
            files.write_text(self.state, json.dumps(records.plain(state), allow_nan=False) + "\n", parents=True)
        except SaveError as error:
            log.error("alerts: %s After a restart an alert may be sent twice.", error)

    def _restore(self, path: Path) -> None:
        try:
            state = records.load(_State, path)
            records.check_schema(state.schema, SCHEMA, files.named(path))
        except FormatError as error:
            log.warning("alerts: %s Open alerts will be sent again.", error)
            return
        self.levels = {(o.kind, o.case, o.arm, o.metric): o.level for o in state.open}
        self._waiting = list(state.waiting)

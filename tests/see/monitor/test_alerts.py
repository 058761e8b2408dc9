"""Alerts: a change of level is told once, to everyone, through failures and restarts."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings, strategies as st

from hostile import NAMES
from tritium import escape
from tritium.errors import ArgumentError, FormatError
from tritium.see.monitor import alerts
from tritium.see.monitor.alerts import LEVELS, Alert, Command, Desk, File, Level, Log, Standing, UnsentError, Webhook

SLOW = Standing(
    "change",
    "matmul 512x512 f32",
    "tritium",
    "wall",
    "warning",
    "+7.0% beside the baseline",
    1.07e-3,
    1e-3,
    "s",
    1.07,
    (1.05, 1.09),
)
ALERT = Alert("2026-11-15T12:00:00Z", "raised", "ok", SLOW)


class Kept:
    """A sink that keeps what it takes, and refuses when it is told to."""

    def __init__(self, key: str = "kept") -> None:
        self.name = self.key = key
        self.taken: list[Alert] = []
        self.refuses = False

    def send(self, alert: Alert) -> None:
        if self.refuses:
            raise UnsentError("nobody is there")
        self.taken.append(alert)


def at(level: Level, case: str = "x") -> Standing:
    return Standing("change", case, "tritium", "wall", level)


# ---- what is told


def test_a_level_that_stays_is_told_once() -> None:
    sink = Kept()
    desk = Desk([sink])
    for level in ("ok", "warning", "warning", "critical", "critical", "warning", "ok", "ok"):
        desk.tell([at(level)])  # type: ignore[arg-type]
    assert [(a.event, a.level, a.before) for a in sink.taken] == [
        ("raised", "warning", "ok"), ("worse", "critical", "warning"), ("eased", "warning", "critical"),
        ("recovered", "ok", "warning"),
    ]  # fmt: skip


steps = st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from(LEVELS)), max_size=12)


@given(steps)
def test_no_two_alerts_in_a_row_are_equal_and_every_change_is_told(rounds: list[dict[str, Level]]) -> None:
    sink = Kept()
    desk = Desk([sink])
    for found in rounds:
        desk.tell([at(level, case) for case, level in found.items()])
    for case in "abc":
        told = [a.level for a in sink.taken if a.standing.case == case]
        seen = ["ok", *(found[case] for found in rounds if case in found)]
        assert told == [level for level, _ in groupby(seen)][1:]
        assert all(a != b for a, b in pairwise(told))


@settings(max_examples=15)
@given(steps, st.integers(0, 12), st.lists(st.booleans(), min_size=12, max_size=12))
def test_nothing_is_lost_or_told_twice_through_failures_and_a_restart(
    rounds: list[dict[str, Level]], restart: int, refuses: list[bool]
) -> None:
    def told(disturbed: bool, state: Path) -> list[Alert]:
        sink = Kept()
        desk = Desk([sink], state, now=lambda: "now")
        for i, found in enumerate(rounds):
            if disturbed and i == restart:
                desk = Desk([sink], state, now=lambda: "now")
            sink.refuses = disturbed and refuses[i]
            desk.tell([at(level, case) for case, level in found.items()])
        sink.refuses = False
        desk.tell([])
        return sink.taken

    quick = (
        mock.patch(f"tritium.machine.files.{name}", return_value=None) for name in ("sync", "flush")
    )  # no power cut here
    with tempfile.TemporaryDirectory() as folder, next(quick), next(quick):
        assert told(True, Path(folder) / "a.json") == told(False, Path(folder) / "b.json")


def test_things_that_differ_in_arm_or_metric_are_told_apart() -> None:
    desk = Desk()
    first = at("warning")
    assert (
        len(
            desk.tell(
                [first, replace(first, arm="other"), replace(first, metric="energy"), replace(first, kind="limit")]
            )
        )
        == 4
    )
    assert desk.worst == "warning"


def test_what_nothing_is_said_of_stays_open() -> None:
    desk = Desk()
    desk.tell([at("critical", "a"), at("warning", "b")])
    desk.tell([at("ok", "b")])
    assert desk.worst == "critical"
    assert desk.tell([at("critical", "a")]) == []


# ---- failures and restarts


def test_one_sink_that_fails_does_not_keep_another_from_its_alerts(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Kept("bad"), Kept("good")
    bad.refuses = True
    desk = Desk([bad, good])
    with caplog.at_level(logging.ERROR, "tritium"):
        desk.tell([at("warning", "a"), at("warning", "b")])
    assert ([a.standing.case for a in good.taken], desk.waiting) == (["a", "b"], 2)
    assert len(caplog.records) == 1, "the second is not even tried"
    bad.refuses = False
    desk.tell([])
    assert ([a.standing.case for a in bad.taken], desk.waiting) == (["a", "b"], 0)


def test_a_sink_may_raise_anything() -> None:
    class Broken(Kept):
        def send(self, alert: Alert) -> None:
            raise ZeroDivisionError

    desk = Desk([Broken()])
    desk.tell([at("warning")])
    assert desk.waiting == 1


def test_what_waits_is_bounded_and_the_newest_stay(caplog: pytest.LogCaptureFixture) -> None:
    sink = Kept()
    sink.refuses = True
    desk = Desk([sink])
    desk.tell([at("warning", str(i)) for i in range(alerts.WAITING + 30)])
    assert desk.waiting == alerts.WAITING
    assert "30 could not be delivered" in caplog.text
    sink.refuses = False
    desk.tell([])
    assert sink.taken[-1].standing.case == str(alerts.WAITING + 29)


def test_many_alerts_at_once_all_arrive() -> None:
    sink = Kept()
    Desk([sink]).tell([at("warning", str(i)) for i in range(3 * alerts.WAITING)])
    assert len(sink.taken) == 3 * alerts.WAITING


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99}', '{"open": [1]}'])
def test_a_damaged_state_is_said_and_begun_anew(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    desk = Desk([Kept()], state)
    assert desk.levels == {}
    assert "will be sent again" in caplog.text
    desk.tell([at("warning")])
    assert Desk([], state).worst == "warning"


def test_a_state_that_cannot_be_written_does_not_stop_the_alerts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    sink = Kept()
    Desk([sink], tmp_path / "file" / "state.json").tell([at("warning")])
    assert len(sink.taken) == 1
    assert "not saved" in caplog.text


def test_alerts_for_a_sink_that_is_no_longer_named_are_let_go(tmp_path: Path) -> None:
    sink = Kept()
    sink.refuses = True
    Desk([sink], tmp_path / "state.json").tell([at("warning")])
    desk = Desk([Kept("other")], tmp_path / "state.json")
    desk.tell([])
    assert desk.waiting == 0


# ---- the log and the file


@pytest.mark.parametrize(
    ("level", "number"), [("warning", logging.WARNING), ("critical", logging.ERROR), ("ok", logging.INFO)]
)
def test_the_log_has_the_level_of_the_alert(level: Level, number: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tritium"):
        Log().send(replace(ALERT, standing=at(level)))
    assert [r.levelno for r in caplog.records] == [number]


def test_a_file_gets_a_line_for_each_and_reads_back(tmp_path: Path) -> None:
    sink = File(tmp_path / "new" / "alerts.jsonl")
    other = replace(ALERT, event="recovered", standing=at("ok"))
    for alert in (ALERT, other):
        sink.send(alert)
    assert alerts.read_alerts(sink.path) == [ALERT, other]
    assert len(sink.path.read_text().splitlines()) == 2


def test_a_line_that_a_kill_tore_spoils_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = File(tmp_path / "alerts.jsonl")
    sink.send(ALERT)
    with sink.path.open("ab") as file:
        file.write(b'{"schema": 1, "at": "2026-')
    sink.send(ALERT)
    assert alerts.read_alerts(sink.path) == [ALERT, ALERT]
    assert "line 2" in caplog.text


def test_a_file_that_cannot_be_written_is_an_alert_that_was_not_sent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnsentError, match="alerts"):
        File(tmp_path / "file" / "alerts").send(ALERT)


@pytest.mark.parametrize(
    "data", [[], {"schema": 2}, {"schema": 1}, {"at": "", "event": "x", "before": "ok", "standing": {}}]
)
def test_what_is_no_alert_is_refused(data: Any) -> None:
    with pytest.raises(FormatError):
        alerts.alert_of(data, "given")


# ---- commands


def python(code: str, *more: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *more)


def test_a_command_gets_the_alert_on_its_input_and_its_arguments_as_they_are(tmp_path: Path) -> None:
    code = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read() + sys.argv[2])"
    Command(python(code, str(tmp_path / "out"), "; touch owned $(x)")).send(ALERT)
    line, rest = (tmp_path / "out").read_text().split("\n")
    assert (alerts.alert_of(json.loads(line), "out"), rest) == (ALERT, "; touch owned $(x)")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("/no/such/program",), "cannot be started"),
        (
            python("import sys; print('out of paper\\n\\x1b[31m', file=sys.stderr); sys.exit(3)"),
            r"exit code 3: out of paper",
        ),
        (python("import os; os.kill(os.getpid(), 9)"), "exit code -9"),
    ],
)
def test_a_command_that_fails_says_how(argv: tuple[str, ...], says: str) -> None:
    with pytest.raises(UnsentError, match=says) as error:
        Command(argv).send(ALERT)
    assert str(error.value).isprintable()


def test_a_command_that_does_not_end_is_killed_with_all_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        "open(sys.argv[1], 'w').write(str(p.pid)); p.wait()"
    )
    with pytest.raises(UnsentError, match="killed"):
        Command(python(code, str(tmp_path / "pid")), timeout_s=2.0).send(ALERT)
    child = int((tmp_path / "pid").read_text())
    for _ in range(500):
        if not alive(child):
            return
        time.sleep(0.01)
    pytest.fail("what it started lives on")


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("argv", [(), "rm -rf x", ("",)])
def test_a_command_is_a_list(argv: Any) -> None:
    with pytest.raises(ArgumentError, match="a list of a program"):
        Command(argv)


# ---- web addresses


class Site:
    """A web server that answers with given codes, the last one for ever, and keeps what it got."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.got, self.paths = list(codes), list[bytes](), list[str]()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                site.got.append(self.rfile.read(int(self.headers["Content-Length"])))
                site.paths.append(self.path)
                code = site.codes.pop(0) if len(site.codes) > 1 else site.codes[0]
                self.send_response(code)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook?token=secret"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    made = Site(*request.param)
    yield made
    made.server.shutdown()
    made.server.server_close()


def hook(url: str, slept: list[float] | None = None) -> Webhook:
    return Webhook(url, sleep=(slept if slept is not None else []).append)


@pytest.mark.parametrize("site", [(204,)], indirect=True)
def test_a_webhook_gets_the_alert_as_json(site: Site) -> None:
    hook(site.url).send(ALERT)
    assert alerts.alert_of(json.loads(site.got[0]), "got") == ALERT
    assert site.paths == ["/hook?token=secret"]


@pytest.mark.parametrize("site", [(503, 429, 200)], indirect=True)
def test_a_webhook_is_tried_again_where_that_may_help(site: Site) -> None:
    slept: list[float] = []
    hook(site.url, slept).send(ALERT)
    assert (len(site.got), slept) == (3, [1.0, 2.0])


@pytest.mark.parametrize(("site", "count"), [((500,), 3), ((404,), 1), ((302,), 1), ((307,), 1)], indirect=["site"])
def test_a_webhook_gives_up_and_follows_nobody_elsewhere(site: Site, count: int) -> None:
    with pytest.raises(UnsentError, match=f"answered {site.codes[0]}") as error:
        hook(site.url).send(ALERT)
    assert len(site.got) == count
    assert "secret" not in str(error.value)
    assert "secret" not in repr(hook(site.url))


def test_a_webhook_nobody_answers_is_not_sent_and_its_address_not_told() -> None:
    with pytest.raises(UnsentError, match=r"webhook 127\.0\.0\.1") as error:
        hook("http://127.0.0.1:1/secret").send(ALERT)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://x/y", "javascript:1", "x", "", "http://", "http://a b/", "http://a/\n", "http://[x", "http://a:0/"]
)  # fmt: skip
def test_only_web_addresses_are_taken(url: str) -> None:
    with pytest.raises(ArgumentError, match="http://"):
        Webhook(url)


# ---- names


@pytest.mark.parametrize("name", NAMES[::3])
def test_a_hostile_name_does_nothing_wherever_an_alert_goes(name: str) -> None:
    alert = Alert("now", "raised", "ok", Standing("change", name, name, name, "critical", name, unit=name))
    line, text = alert.line(), json.loads(alert.json())["text"]
    assert line.isprintable()
    assert "##[" not in line
    assert "::" not in line.lstrip()[:2]
    assert alert.json().isascii()
    assert not set('<>&`|"') & set(text)
    assert alerts.alert_of(json.loads(alert.json()), "x") == alert
    assert escape.terminal(line, None) == line

"""The page for Prometheus: two paths, this machine only, bounded, and it ends when it is told to."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from hostile import NAMES
from tritium.errors import ArgumentError
from tritium.see.monitor import endpoint, metrics_file
from tritium.see.monitor.collector import Collector
from tritium.see.monitor.endpoint import Endpoint, is_loopback
from tritium.see.monitor.metrics_file import Column, Metrics, Row
from tritium.see.monitor.sources import Memory


@pytest.fixture
def page() -> Iterator[Endpoint]:
    with Endpoint(lambda: "tritium_x 1.0\n") as made:
        yield made


def asked(made: Endpoint, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", made.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.getheaders()}
    finally:
        connection.close()


def test_the_metrics_are_served_as_prometheus_reads_them(page: Endpoint) -> None:
    status, body, headers = asked(page, "/metrics")
    assert (status, body) == (200, "tritium_x 1.0\n")
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert headers["x-content-type-options"] == "nosniff"
    assert page.url == f"http://127.0.0.1:{page.port}/metrics"


def test_the_health_is_told(page: Endpoint) -> None:
    assert asked(page, "/health")[:2] == (200, "ok\n")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metrics?x=1", "/../etc/passwd", "/%2e%2e/x", "/<script>"])
def test_there_is_nothing_else(page: Endpoint, path: str) -> None:
    status, body, _ = asked(page, path)
    assert (status, body) == (404, "there are /metrics and /health.\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "X"])
def test_only_get_is_answered(page: Endpoint, method: str) -> None:
    assert asked(page, "/metrics", method)[0] == 501


@pytest.mark.parametrize(
    ("host", "status"), [("evil.example", 403), ("localhost:9", 200), ("127.0.0.1", 200), ("[::1]:80", 200)]
)
def test_a_page_elsewhere_whose_name_leads_here_gets_nothing(page: Endpoint, host: str, status: int) -> None:
    assert asked(page, "/metrics", Host=host)[0] == status


def test_a_page_that_cannot_be_made_is_an_error_of_that_request_only(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[str | Exception] = [ValueError("a secret\n::error::"), "fine\n"]

    def text() -> str:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    with Endpoint(text) as made, caplog.at_level(logging.WARNING, "tritium"):
        status, body, _ = asked(made, "/metrics")
        assert status == 500
        assert "secret" not in body
        assert asked(made, "/metrics")[:2] == (200, "fine\n")
    assert "\n::" not in caplog.text


def test_a_page_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MOST_BYTES", 10)
    with Endpoint(lambda: "x" * 11) as made:
        assert asked(made, "/metrics")[:2] == (500, "the page is too large.\n")


def test_more_connections_than_there_is_room_for_are_closed(page: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [socket.create_connection(("127.0.0.1", page.port), timeout=10) for _ in range(endpoint.CONNECTIONS)]
    try:
        for _ in range(200):  # until the threads of those before have their room
            try:
                status = asked(page, "/health")[0]
            except (http.client.HTTPException, OSError):
                break
            assert status == 200
        else:
            pytest.fail("it took as many connections as there were")
    finally:
        for one in held:
            one.close()
    for _ in range(500):
        try:
            assert asked(page, "/health")[0] == 200
            return
        except (http.client.HTTPException, OSError):
            threading.Event().wait(0.01)
    pytest.fail("it did not find room again")


@pytest.mark.parametrize("kind", [threading.Timer, threading.Thread])
def test_where_no_thread_can_be_started_the_room_is_given_back(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Endpoint(lambda: "tritium_x 1.0\n") as made:
        with monkeypatch.context() as patch:
            patch.setattr(kind, "start", start)
            for _ in range(endpoint.CONNECTIONS + 1):
                with pytest.raises((http.client.HTTPException, OSError)):
                    asked(made, "/metrics")
        assert asked(made, "/metrics")[0] == 200


def test_a_request_that_never_ends_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "WHOLE_S", 0.05)
    with Endpoint(lambda: "x") as made, socket.create_connection(("127.0.0.1", made.port), timeout=10) as slow:
        slow.sendall(b"GET /metr")
        assert slow.recv(100) == b""


def test_after_a_stop_nobody_listens_and_the_port_is_free() -> None:
    made = Endpoint(lambda: "x").start()
    assert made.start() is made
    made.stop()
    made.stop()
    with pytest.raises(OSError, match="refused"):
        asked(made, "/health")
    with Endpoint(lambda: "y", made.port) as again:
        assert asked(again, "/metrics")[:2] == (200, "y")


def test_a_port_that_is_taken_is_told(page: Endpoint) -> None:
    with pytest.raises(ArgumentError, match="Choose another, or 0"):
        Endpoint(lambda: "x", page.port).start()
    with pytest.raises(ArgumentError, match="65535"):
        Endpoint(lambda: "x", 70000)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_an_address_others_can_reach_must_be_asked_for(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ArgumentError, match="allow_remote"):
        Endpoint(lambda: "x", host=host)


def test_an_address_others_can_reach_is_used_when_it_was_asked_for() -> None:
    with Endpoint(lambda: "x", host="0.0.0.0", allow_remote=True) as made:
        assert asked(made, "/metrics", Host="my-server:9100")[0] == 200


def test_a_collector_is_served_and_reads_back() -> None:
    seen = Collector("1h", sources=[Memory()])
    seen.flush()
    with Endpoint(lambda: seen.export_metrics("prometheus")) as made:
        assert metrics_file.loads(asked(made, "/metrics")[1]) == seen.metrics()


def test_hostile_names_come_through_as_names() -> None:
    table = Metrics(tuple(Column(name, "B") for name in NAMES), (Row(0.0, (1.0,) * len(NAMES)),))
    with Endpoint(lambda: table.text("prometheus")) as made:
        assert metrics_file.loads(asked(made, "/metrics")[1]) == table


@pytest.mark.parametrize("name", NAMES[::12], ids=ascii)
def test_nothing_of_a_request_is_in_the_answer(page: Endpoint, name: str, caplog: pytest.LogCaptureFixture) -> None:
    raw = name.encode("utf-8", "surrogatepass")
    with caplog.at_level(logging.DEBUG, "tritium"):
        for sent in (
            b"GET /" + raw + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", raw + b" / HTTP/1.1\r\n\r\n", b"GET / " + raw + b"\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\nhost: " + raw + b"\r\n\r\n", b"GET /metrics HTTP/1.1\r\n" + raw + b": x\r\n\r\n",
        ):  # fmt: skip
            with socket.create_connection(("127.0.0.1", page.port), timeout=10) as s:
                s.sendall(sent)
                s.shutdown(socket.SHUT_WR)
                answer = b""
                while part := s.recv(65536):
                    answer += part
            assert len(raw) < 12 or raw not in answer
            assert not answer or answer.splitlines()[-1].isascii()
    for record in caplog.records:
        assert record.getMessage().isprintable()

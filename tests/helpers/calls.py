"""Requests to a server of a test, and what it answers."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

from tritium.serve.server import Server


def call(server: Server, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of an answer; the text itself where it is no JSON."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    c.request(method, path, raw, {k.replace("_", "-"): v for k, v in headers.items()})
    answer = c.getresponse()
    text = answer.read()
    c.close()
    found = {k.lower(): v for k, v in answer.getheaders()}
    return answer.status, found, json.loads(text) if "json" in found.get("content-type", "") else text.decode()


def post(server: Server, path: str, **body: Any) -> tuple[int, Any]:
    status, _, found = call(server, "POST", f"/v1/{path}", {"temperature": 0, **body})
    return status, found


def completion(server: Server, prompt: Any, count: int = 8, **body: Any) -> Any:
    status, found = post(server, "completions", prompt=prompt, max_tokens=count, **body)
    assert status == 200, found
    return found


def events(server: Server, path: str, **body: Any) -> list[Any]:
    """What a stream said, without its end mark."""
    status, found = post(server, path, stream=True, **body)
    assert status == 200
    lines = [line.removeprefix("data: ") for line in found.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def begin(server: Server, body: dict[str, Any], path: str = "completions") -> socket.socket:
    """A request that was sent, and its answer not read."""
    raw = json.dumps(body).encode()
    s = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    s.sendall(
        b"POST /v1/%s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(raw)) + raw
    )
    return s

"""Attack `tritium serve` with malformed requests, silent connections and kills, with a health check beside them; print counts.

Knows nothing of how the server works: it starts one in a process of its own, with the model in the package, and talks to it through
sockets. Attackers come from 127.0.0.2 and the health check from 127.0.0.1 where the system has both.

    python bench/attack_server.py                       1,000 malformed requests, 200 silent connections, 5 kills
    python bench/attack_server.py --count 200 --kills 1 a short look
    python bench/attack_server.py --seed 7              other requests

malformed. Each is a request with random changes to its line, headers, framing or body, sent whole, in pieces, or cut short. The server
may answer it with any status but 500, or close; the health check beside it must be answered each time.
silent. More connections than the server takes are opened and say nothing, or half a header; the health check must go on.
bodies. Long prompts and lists of token ids at once; a request of one token beside them must be answered.
kills. Clients ask for texts, the server is killed (SIGKILL, or SIGTERM every second time) and started again on the same port. A client
gets the right text, an error of the protocol, or a broken connection; never another text. Nothing may stay in its temporary folder.

Exits with 1 if anything was wrong, a health check that waited HEALTH_S included.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEALTH_S = 1.0  # the longest that a health check may wait
CLIENTS = 16
SERVE = (
    "import sys; from tritium.serve.server import serve;"
    " serve(None, port=int(sys.argv[1]), slots=2, grace_s=0.5, ready=lambda s: print(s.port, flush=True))"
)
ATTACKER, HONEST = "127.0.0.2", "127.0.0.1"
PROMPT = {"prompt": "In the beginning", "max_tokens": 12, "temperature": 0}
METHODS = [b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"G\x00T", b"get", b"", b"A" * 5000, b"PRI"]
TARGETS = [
    b"/health", b"/v1/completions", b"/v1/chat/completions", b"/v1/models", b"/", b"*", b"http://evil/health", b"/%00%1b[2J",
    b"/../../etc/passwd",
    b"/" + b"a" * 20_000, b"/a b", b"\xff\xfe", b"/?" + b"x" * 9000, b"",
]  # fmt: skip
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"", b"HTTP/1.1 x"]
HEADERS = [
    b"content-length: 5", b"content-length: 99999999999", b"content-length: -1", b"content-length: 5, 5", b"content-length: 0x5",
    b"transfer-encoding: chunked", b"transfer-encoding: gzip, chunked", b"transfer-encoding: identity", b"Transfer-Encoding : chunked",
    b"expect: 100-continue", b"expect: nonsense", b"connection: upgrade\r\nupgrade: websocket", b"host: evil", b"host: ", b"origin: http://evil",
    b"authorization: Bearer " + b"x" * 3000, b"x: " + b"y" * 17_000, b"\x00: \x00", b" folded: x", b"no colon", b"x: a\r\n b", b": empty",
    b"cookie: \xff\xfe\x80", b"range: bytes=0-", b"content-type: multipart/form-data", b"content-encoding: gzip", b"x:" * 500,
]  # fmt: skip
BODIES = [
    b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'{"prompt": ""}', b'{"prompt": [1, "a"]}', b'{"prompt": 1e999}', b'{"prompt": "\\ud800"}',
    b'{"prompt": "a", "n": 99999}', b'{"prompt": "a", "max_tokens": -1}', b'{"a": ' * 20_000, b"[" * 100_000,
    b'{"prompt": "a", "seed": ' + b"9" * 9000 + b"}",
    b'{"messages": [{}]}', b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', b'{"prompt": "a", "stop": ["",""]}',
    b'{"prompt": ' + json.dumps([1] * 100_000).encode() + b"}", b'{"prompt": "a", "logit_bias": {"-1": 1}}', b'{"prompt": NaN}', b"0" * 70_000,
    b'{"prompt": "a", "prompt": "b", "stream": "yes"}', b'{"prompt": "a", "model": "<script>"}', b"a=1&b=2", b'{"prompt":"a","\x00":1}',
]  # fmt: skip
CHUNKS = [
    b"5\r\nhello\r\n0\r\n\r\n",
    b"zz\r\n",
    b"1\r\nx\r\n" * 5000,
    b"-1\r\n",
    b"FFFFFFFFFFFFFFFFF\r\n",
    b"5;" + b"x" * 9000,
    b"5\r\nhelloXX",
    b"0\r\nx: y\r\n" * 50,
]


@dataclass
class Tally:
    """What came of an attack."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    checks: int = 0  # health checks that were answered
    longest_s: float = 0.0  # the longest that one of them waited

    def judge(self) -> None:
        """Add what the health check saw to what was wrong."""
        if self.longest_s >= HEALTH_S:
            self.wrong.append(f"a health check waited {self.longest_s:.2f} s")
        if not self.checks:
            self.wrong.append("no health check was answered")


def source(address: str) -> tuple[str, int]:
    """Return the address to call from: this one, or the usual one where the system has no other."""
    with socket.socket() as s:
        try:
            s.bind((address, 0))
        except OSError:
            return HONEST, 0
    return address, 0


class Process:
    """A server in a process of its own; start it again with the port it had."""

    def __init__(self, folder: str) -> None:
        self.folder, self.port = folder, 0
        self.child: subprocess.Popen[str]

    def start(self) -> None:
        """Start, and wait until requests are accepted."""
        env = {**os.environ, "TMPDIR": self.folder}
        self.child = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(self.port)], stdout=subprocess.PIPE, text=True, env=env
        )
        assert self.child.stdout is not None
        self.port = int(self.child.stdout.readline())

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal and wait; return the exit status."""
        self.child.send_signal(number)
        status = self.child.wait(60)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return status


@contextlib.contextmanager
def serving() -> Iterator[Process]:
    """Run a server, and end it whatever happens."""
    with tempfile.TemporaryDirectory() as folder:
        server = Process(folder)
        server.start()
        try:
            yield server
        finally:
            if server.child.poll() is None:
                server.end()


def ask(port: int, body: bytes | None, path: str = "/v1/completions", timeout: float = 60) -> tuple[int, Any]:
    """Return the status and the JSON of a good request."""
    c = http.client.HTTPConnection(HONEST, port, timeout=timeout)
    try:
        c.request("GET" if body is None else "POST", path, body)
        response = c.getresponse()
        return response.status, json.loads(response.read())
    finally:
        c.close()


@contextlib.contextmanager
def watching(port: int, tally: Tally) -> Iterator[None]:
    """Check the health every 20 ms, each time on a connection of its own, and note how long it takes."""
    over = threading.Event()

    def check() -> None:
        while not over.is_set():
            begin = time.monotonic()
            try:
                status, _ = ask(port, None, "/health", timeout=30)
            except (OSError, http.client.HTTPException, ValueError) as error:
                tally.wrong.append(f"a health check failed: {type(error).__name__}: {error}")
                return
            tally.longest_s = max(tally.longest_s, time.monotonic() - begin)
            tally.checks += status == 200
            over.wait(0.02)

    thread = threading.Thread(target=check)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def malformed(choose: random.Random) -> bytes:
    """Return the bytes of a request in which something is wrong, most of the time."""
    body, headers = choose.choice(BODIES), [b"host: localhost"]
    method, target, version = b"POST", choose.choice([b"/v1/completions", b"/v1/chat/completions"]), b"HTTP/1.1"
    kind = choose.randrange(5)
    if kind == 0:
        method, target, version = choose.choice(METHODS), choose.choice(TARGETS), choose.choice(VERSIONS)
    if kind == 1:
        headers = [*choose.sample(HEADERS, choose.randrange(1, 5)), *choose.choice([[], headers])]
    if kind == 2:
        headers.append(b"transfer-encoding: chunked")
        body = b"".join(choose.choice(CHUNKS) for _ in range(choose.randrange(1, 4)))
    elif choose.random() < 0.8:
        headers.append(b"content-length: %d" % (len(body) + choose.choice([0, 0, 0, 0, 1, -1])))
    raw = b"\r\n".join([b" ".join([method, target, version]), *headers, b"", body])
    if kind == 3:
        for _ in range(choose.randrange(1, 6)):
            i = choose.randrange(len(raw))
            raw = (
                raw[:i]
                + choose.choice([b"", b"\r\n", b"\x00", bytes([choose.randrange(256)]), b"\n", b" " * 100])
                + raw[i + choose.choice([0, 1, 9]) :]
            )
    if kind == 4:
        raw = choose.choice(
            [
                raw * 3,
                raw[: choose.randrange(len(raw))],
                choose.randbytes(choose.choice([10, 1000, 50_000])),
                b"\x16\x03\x01" + raw,
            ]
        )
    return raw


def send(port: int, raw: bytes, choose: random.Random) -> str:
    """Send a request whole or in pieces, read what comes, and return the status or how it ended."""
    with socket.create_connection((HONEST, port), timeout=30, source_address=source(ATTACKER)) as s:
        pieces = choose.choice([1, 1, 1, 2, 7])
        step = max(1, -(-len(raw) // pieces))
        try:
            for i in range(0, len(raw), step):
                s.sendall(raw[i : i + step])
            if choose.random() < 0.1:
                return "left"
            s.settimeout(choose.choice([0.2, 0.5, 1.0]))  # the rest of a request that never comes is not waited for
            answer = s.recv(65536)
        except TimeoutError:
            return "no answer before the attacker left"
        except OSError:
            return "connection ended"
    return answer.split(b" ", 2)[1].decode("ascii", "replace") if answer.startswith(b"HTTP/1.1 ") else "closed"


def attack_requests(port: int, count: int, seed: int) -> Tally:
    """Send malformed requests, CLIENTS at once."""
    tally = Tally()

    def one(i: int) -> None:
        choose = random.Random(seed * 1_000_003 + i)
        raw = malformed(choose)
        try:
            result = send(port, raw, choose)
        except OSError as error:
            result = f"no connection: {type(error).__name__}"
        tally.counts[result] += 1
        if result == "500" or result.startswith("no connection"):
            tally.wrong.append(f"{result} for {raw[:300]!r}")

    with watching(port, tally), ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(one, range(count)))
    tally.judge()
    return tally


def attack_connections(port: int, count: int) -> Tally:
    """Open connections that say nothing or half a header, and keep them for a while."""
    tally = Tally()
    with watching(port, tally):
        held = []
        for i in range(count):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection((HONEST, port), timeout=30, source_address=source(ATTACKER)))
                held[-1].sendall(
                    [
                        b"",
                        b"GET /health HTTP/1.1\r\nhost: ",
                        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{",
                    ][i % 3]
                )
        time.sleep(1.0)
        for s in held:
            s.close()
    tally.counts["opened"] = len(held)
    tally.judge()
    return tally


def attack_bodies(port: int, count: int) -> Tally:
    """Send bodies of nearly 2 MB at once, of text and of token ids, and a request of one token beside them."""
    tally = Tally()
    # Written out here: this process must not be what makes the health check wait.
    texts = [{"prompt": "And God said, Let there be light. " * 60_000}, {"prompt": [1] * 650_000}]
    bodies = [json.dumps({**body, "max_tokens": 1}).encode() for body in texts]

    def long(i: int) -> None:
        try:
            status, _ = ask(port, bodies[i % 2], timeout=120)
            tally.counts[f"{status} for a long body"] += 1
        except OSError as error:
            tally.wrong.append(f"a long body: {type(error).__name__}: {error}")

    with watching(port, tally), ThreadPoolExecutor(CLIENTS) as pool:
        waiting = [pool.submit(long, i) for i in range(count)]
        time.sleep(0.2)
        begin = time.monotonic()
        status, _ = ask(port, json.dumps({**PROMPT, "max_tokens": 1}).encode())
        tally.counts[f"{status} for one token beside them, after {time.monotonic() - begin:.2f} s"] += 1
        if status != 200:
            tally.wrong.append(f"the request of one token got {status}")
        for w in waiting:
            w.result()
    tally.judge()
    return tally


def attack_life(server: Process, kills: int, expected: str) -> Tally:
    """Kill and restart the server while clients ask it for texts."""
    tally, over = Tally(), threading.Event()

    def client(stream: bool) -> None:
        while not over.is_set():
            try:
                text = read_text(server.port, stream)
            except (OSError, http.client.HTTPException):
                tally.counts["broken connection"] += 1
                over.wait(0.02)
                continue
            tally.counts[
                "right text" if text == expected else "error of the protocol" if text is None else "wrong"
            ] += 1
            if text not in (expected, None):
                tally.wrong.append(f"a client got {text!r}")

    threads = [threading.Thread(target=client, args=(i % 2 == 1,)) for i in range(6)]
    for t in threads:
        t.start()
    choose = random.Random(kills)
    for i in range(kills):
        time.sleep(choose.uniform(0.1, 0.6))
        number = (signal.SIGKILL, signal.SIGTERM)[i % 2]
        status = server.end(number)
        if number == signal.SIGTERM and status != 0:
            tally.wrong.append(f"SIGTERM ended the server with {status}")
        if left := os.listdir(server.folder):
            tally.wrong.append(f"left in the temporary folder: {left[:5]}")
        server.start()  # fails if the port is not free
        tally.checks += ask(server.port, None, "/health")[0] == 200
        if (text := read_text(server.port, False)) not in (expected, None):
            tally.wrong.append(f"after a restart the text is {text!r}")
    over.set()
    for t in threads:
        t.join()
    tally.judge()
    return tally


def read_text(port: int, stream: bool) -> str | None:
    """Return the whole text of an answer, None for an error of the protocol; HTTPException for one that was cut off."""
    c = http.client.HTTPConnection(HONEST, port, timeout=60)
    try:
        c.request("POST", "/v1/completions", json.dumps({**PROMPT, "stream": stream}))
        response = c.getresponse()
        raw = response.read().decode()
    finally:
        c.close()
    if response.status != 200:
        return None if "error" in json.loads(raw) else f"status {response.status} without an error"
    if not stream:
        return str(json.loads(raw)["choices"][0]["text"])
    events = [line.removeprefix("data: ") for line in raw.split("\n\n") if line]
    if events[-1] != "[DONE]":  # the last event says why
        return None if "error" in json.loads(events[-1]) else "a stream without an end"
    return "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1])


def resident(pid: int) -> int:
    """Return the MiB of memory that a process has, 0 where the system does not say."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    return 0


def run(count: int, silent: int, bodies: int, kills: int, seed: int) -> dict[str, Tally]:
    """Attack one server with everything; return the tallies by the name of the attack."""
    with serving() as server:
        expected = read_text(server.port, False)
        assert isinstance(expected, str)
        before = resident(server.child.pid)
        tallies = {
            "malformed": attack_requests(server.port, count, seed),
            "silent": attack_connections(server.port, silent),
        }
        tallies["bodies"] = attack_bodies(server.port, bodies)
        tallies["malformed"].counts[f"MiB of memory before, {resident(server.child.pid)} after"] = before
        if (text := read_text(server.port, False)) != expected:
            tallies["bodies"].wrong.append(f"the text after the attacks is {text!r}")
        if kills:
            tallies["kills"] = attack_life(server, kills, expected)
    return tallies


def main() -> int:
    """Attack and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="Malformed requests.")
    parser.add_argument("--silent", type=int, default=200, help="Connections that say nothing.")
    parser.add_argument("--bodies", type=int, default=24, help="Bodies of nearly 2 MB.")
    parser.add_argument("--kills", type=int, default=5, help="Kills and restarts.")
    parser.add_argument("--seed", type=int, default=1, help="The same seed gives the same requests.")
    args = parser.parse_args()
    tallies = run(args.count, args.silent, args.bodies, args.kills, args.seed)
    for name, tally in tallies.items():
        print(f"{name}: {tally.checks} health checks, the longest waited {tally.longest_s:.3f} s")
        for result, count in sorted(tally.counts.items()):
            print(f"{count:8}  {result}")
        for wrong in tally.wrong[:20]:
            print(f"WRONG: {wrong}")
    return 1 if any(t.wrong for t in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

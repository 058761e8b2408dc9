"""Measures whether a server grows: many requests, whole, streamed, left, wrong and with a format, and what the process holds meanwhile.

The server is a process of its own. After every thousandth request it tells its resident memory, the bytes of its prefix cache, open
files, threads and Python objects, once nothing runs. The first fifth fills caches; growth is what comes after it. The text of every
whole answer is compared with that of the same request when it came first.

    python bench/serve_growth.py                       # 20,000 requests
    python bench/serve_growth.py --requests 2000 --every 200
"""

from __future__ import annotations

import argparse
import gc
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tritium as tt
from tritium.serve import Server

PROMPTS = [
    f"{a} {b}" for a in ("And God", "In the", "Blessed", "The LORD", "And it") for b in ("said", "came", "is", "was to")
]
KINDS = ("whole", "stream", "leave", "wrong", "format")


def serve() -> None:
    """Serve the model in the package, and tell what the process holds for every line that comes in."""
    with Server(tt.load(), port=0, slots=4, queue=64, prefix_cache="2 MiB") as server:
        print(server.port, flush=True)
        for _ in sys.stdin:
            scheduler = server.scheduler
            end = time.monotonic() + 30
            while (scheduler.running or scheduler.waiting) and time.monotonic() < end:
                time.sleep(0.01)
            gc.collect()
            with open("/proc/self/statm", encoding="ascii") as file:
                resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            held = {
                "resident": resident, "cache": scheduler.prefixes.nbytes, "files": len(os.listdir("/proc/self/fd")),
                "threads": threading.active_count(), "objects": len(gc.get_objects()),
            }  # fmt: skip
            print(json.dumps(held), flush=True)


def body(kind: str, draw: random.Random) -> dict[str, Any]:
    """Return the body of a request."""
    asked: dict[str, Any] = {
        "prompt": draw.choice(PROMPTS), "max_tokens": draw.choice((1, 4, 12)), "temperature": draw.choice((0, 0.8)), "seed": draw.randrange(3)
    }  # fmt: skip
    if kind == "format":
        asked |= {"regex": f"[a-z]{{{draw.randrange(2, 6)}}} [0-9]", "max_tokens": 12}
    elif kind == "wrong":
        asked |= draw.choice(({"max_tokenss": 1}, {"prompt": 7}, {"temperature": "hot"}, {"n": 10**6}))
    elif kind == "leave":
        asked |= {"max_tokens": 200, "stream": True}
    elif kind == "stream":
        asked["stream"] = True
    return asked


def send(port: int, kind: str, asked: dict[str, Any]) -> str:
    """Send a request; the answer's text, "" where it has none."""
    raw = json.dumps(asked).encode()
    if kind == "leave":
        with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
            s.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(raw) + raw
            )
            s.recv(16)
        return ""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", raw)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    expected = 400 if kind == "wrong" else 200
    if response.status != expected:
        raise SystemExit(f"{kind} {asked}: {response.status} {text[:300]!r}")
    return str(json.loads(text)["choices"][0]["text"]) if kind in ("whole", "format") else ""


def measure(requests: int, every: int, clients: int) -> tuple[list[dict[str, int]], int]:
    """Return what the server held after every `every` requests, and how many texts were not those of before."""
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    port, draw = int(server.stdout.readline()), random.Random(0)
    texts: dict[str, str] = {}
    wrong, rows = 0, []
    with ThreadPoolExecutor(clients) as pool:
        for start in range(0, requests, every):
            jobs = [(kind := draw.choice(KINDS), body(kind, draw)) for _ in range(min(every, requests - start))]
            for (kind, asked), text in zip(jobs, pool.map(lambda job: send(port, *job), jobs), strict=True):
                if kind in ("whole", "format"):
                    wrong += texts.setdefault(json.dumps(asked), text) != text
            server.stdin.write("\n")
            server.stdin.flush()
            rows.append({"requests": start + len(jobs), **json.loads(server.stdout.readline())})
            print("  ".join(f"{name} {value:,}" for name, value in rows[-1].items()), flush=True)
    server.stdin.close()
    server.wait()
    return rows, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.serve:
        serve()
        return
    rows, wrong = measure(a.requests, a.every, a.clients)
    settled, last = rows[len(rows) // 5], rows[-1]
    growth = {name: last[name] - settled[name] for name in last if name != "requests"}
    count = last["requests"] - settled["requests"]
    print(
        f"growth over the last {count:,} requests: " + ", ".join(f"{name} {value:+,}" for name, value in growth.items())
    )
    print(f"texts that differ from those of before: {wrong}")
    limits = {"resident": 4 << 20, "cache": 2 << 20, "files": 4, "threads": 4, "objects": 2000}
    grown = [name for name, most in limits.items() if growth[name] > most]
    if grown or wrong:
        raise SystemExit(f"the server grew: {', '.join(grown)}" if grown else "a text was wrong")


if __name__ == "__main__":
    main()

"""Measures `tritium serve` beside llama.cpp's llama-server: the same model file, threads, slots and requests, round by round in turn.

    python bench/make_model.py mid.gguf --format tq2_0 --arch bitnet --layers 16 --hidden 1024 --intermediate 2816 --heads 16 --kv-heads 4 \\
        --head-dim 64 --vocab 32000
    python bench/serve_llama.py mid.gguf --llama-server llama.cpp/build/bin/llama-server

Options after -- are those of `tritium bench serve`. Its exit code is that of this script: 1 where the second server, llama-server, is slower.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

ROUNDS = "--rates 2,inf --requests 8 --rounds 12 -p 64 -n 48 --ignore-eos".split()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait(url: str, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    """Wait until a server answers to /health."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"{process.args!r} ended with {process.returncode} before it served.")
        try:
            with urlopen(f"{url}/health", timeout=2) as response:
                if response.status == 200:
                    return
        except (URLError, OSError):
            time.sleep(0.2)
    raise SystemExit(f"{url} did not answer within {seconds:g} s.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", required=True, type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=512, help="tokens of one slot")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    a, options = parser.parse_args(words[:at]), words[at + 1 :] or ROUNDS
    ports = free_port(), free_port()
    ours = [sys.executable, "-m", "tritium", "serve", str(a.model), "--port", str(ports[0]), "--slots", str(a.slots),
            "--context", str(a.context), "--threads", str(a.threads), "--name", "model"]  # fmt: skip
    theirs = [str(a.llama_server), "-m", str(a.model), "--port", str(ports[1]), "-np", str(a.slots), "-c", str(a.context * a.slots),
              "-t", str(a.threads), "-tb", str(a.threads), "--alias", "model"]  # fmt: skip
    with ExitStack() as stack:
        urls = []
        for port, command in zip(ports, (ours, theirs), strict=True):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            urls.append(f"http://127.0.0.1:{port}")
            wait(urls[-1], process)
        measure = [sys.executable, "-m", "tritium", "bench", "serve", *urls, "--model", "model", *options]
        return subprocess.run(measure, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

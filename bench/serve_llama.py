"""Measures `tritium serve` beside llama.cpp's llama-server: the same model file, threads, slots and requests, round by round in turn.

    python bench/make_model.py mid.gguf --format tq2_0 --arch bitnet --layers 16 --hidden 1024 --intermediate 2816 --heads 16 --kv-heads 4 \\
        --head-dim 64 --vocab 32000
    python bench/serve_llama.py mid.gguf --llama-server llama.cpp/build/bin/llama-server --results docs/results/serve-llama.json

It measures as `tritium bench serve` does and prints its page. Exit code 1 where a request failed, or llama-server is faster in anything.
"""

from __future__ import annotations

import argparse
import math
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import results
from results import Column, Entry

from tritium.perf.gate.serving import Load, ServingReport, Workload, measure

OURS, THEIRS = "tritium serve", "llama-server"
METRICS = {  # by the names of a round's values: unit, what one of it is worth, whether it is the inverse of what a round has
    "first token": ("ms", 1e3, False),
    "between tokens": ("ms", 1e3, False),
    "throughput": ("tokens/s", 1.0, True),
}


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


def version(program: Path) -> str:
    """Return the version that llama-server prints; empty where it prints none."""
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("version:")]
    return lines[0].removeprefix("version:").strip() if lines else ""


def entries(loads: Sequence[Load], w: Workload) -> list[Entry]:
    """Return a row for every metric at every rate: both servers, and how many times as good ours is."""
    rows = []
    for ours, theirs in zip(loads[::2], loads[1::2], strict=True):
        rate = "all at once" if math.isinf(ours.rate) else f"{ours.rate:g} a second"
        pairs = [(a.values(w), b.values(w)) for a, b in zip(ours.rounds, theirs.rounds, strict=True)]
        for metric, (unit, scale, inverse) in METRICS.items():
            known = [(a[metric], b[metric]) for a, b in pairs if metric in a and metric in b]
            if not known:
                continue
            one, two = ([pair[i] for pair in known] for i in (0, 1))
            shown = [[1 / v for v in values] if inverse else values for values in (one, two)]
            figures = {name: results.figure(v, scale=scale) for name, v in zip((OURS, THEIRS), shown, strict=True)}
            figures[f"× {THEIRS}"] = results.ratio(two, one)
            rows.append(Entry((rate, f"{metric}, {unit}"), figures))
    return rows


def write(path: Path, report: ServingReport, a: argparse.Namespace) -> None:
    """Write the results file."""
    columns = [Column(name, "", f"median of {a.rounds} rounds") for name in (OURS, THEIRS)]
    columns.append(Column(f"× {THEIRS}", "×", f"above 1: {OURS} is so many times as good", "ratio"))
    known = version(a.llama_server)
    results.write(
        path, f"{OURS} beside {THEIRS}", ("requests", "metric"), columns, entries(report.loads, report.workload), threads=a.threads,
        versions={"llama.cpp": known} if known else {},
        notes=[
            f"{a.requests} requests a round, prompts of {a.words} words, answers of {a.tokens} tokens, {a.slots} slots of {a.context} "
            "tokens each."
        ],
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", required=True, type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=512, help="tokens of one slot")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[1, math.inf], help="requests a second; inf: all at once"
    )
    parser.add_argument("--requests", type=int, default=8, help="of a round")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--words", type=int, default=32, help="of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    results.add_option(parser)
    a = parser.parse_args()
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
        load = Workload(words=a.words, tokens=a.tokens, ignore_eos=True)
        report = measure(urls, rates=a.rates, requests=a.requests, rounds=a.rounds, workload=load, model="model")
    print(report.page())
    if a.results:
        write(a.results, report, a)
    return int(bool(report.failed) or any(c.judged.outcome == "FASTER" for c in report.comparisons))


if __name__ == "__main__":
    sys.exit(main())

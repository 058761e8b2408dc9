"""One slice of executions in a process of its own, so that a reader that dies, hangs or eats memory harms nobody else.

Knows nothing of other slices: `run.py` starts it, watches it and adds up. The input under way is kept in a mapped file, to be
found there when the process is gone.
"""

from __future__ import annotations

import gc
import hashlib
import json
import mmap
import os
import signal
import struct
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import harness
import mutate
import seeds

import tritium
from tritium.errors import FormatError

NOW = struct.Struct("<QQ")  # executions begun, length of the input
SLOT = NOW.size + mutate.MOST + 64
TOGETHER = 16  # executions for which the clock is wound once
SAMPLE = 2048  # one in so many is run again counting memory
MOST_KEPT = 3000
ENOUGH_S = 60.0  # of processor time for one input alone


def lines_seen() -> list[int]:
    """A list that grows when a line of a reader is run for the first time; costs nothing once they all were (Python 3.12)."""
    grown: list[int] = []
    watch = getattr(sys, "monitoring", None)
    if watch is None:
        return grown
    package = Path(tritium.__file__).parent
    inside = (str(package / "io"), str(package / "perf"))

    def line(code: Any, number: int) -> Any:
        if code.co_filename.startswith(inside):
            grown.append(number)
        return watch.DISABLE

    watch.use_tool_id(watch.COVERAGE_ID, "fuzz")
    watch.register_callback(watch.COVERAGE_ID, watch.events.LINE, line)
    watch.set_events(watch.COVERAGE_ID, watch.events.LINE)
    return grown


def limit_memory() -> None:
    """No execution may take more than twice its input and 64 MB: beyond that the system refuses (where it can)."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return
    most = pages * mmap.PAGESIZE + harness.SPARE + 2 * mutate.MOST + (32 << 20)  # 32 MB for the pool and its notes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def path_of(error: BaseException) -> int:
    """The lines an error came through, as one number: two errors raised in different ways differ."""
    found, tb = 0, error.__traceback__
    while tb is not None:
        found = hash((found, tb.tb_lineno, tb.tb_frame.f_code))
        tb = tb.tb_next
    return found


class Slice:
    """Runs inputs of one reader and notes what they did."""

    def __init__(self, reader: str, work: Path) -> None:
        self.reader, self.read = reader, harness.READERS[reader]
        self.kept = work / "kept" / reader
        self.failed = work / "failures" / reader
        for where in (self.kept, self.failed):
            where.mkdir(parents=True, exist_ok=True)
        self.pool = list(seeds.kept(reader).values())
        self.pool += [p.read_bytes() for p in sorted(self.kept.iterdir())]
        slot = work / f"now-{reader}"
        slot.write_bytes(bytes(SLOT))
        with slot.open("r+b") as file:
            self.now = mmap.mmap(file.fileno(), SLOT)
        self.paths: set[int] = set()
        self.outcomes: Counter[str] = Counter()
        self.failures: dict[str, dict[str, Any]] = {}
        self.slowest_s, self.peak, self.new = 0.0, 0, 0
        self.lines = lines_seen()

    def once(self, data: bytes) -> bool:
        """One execution; whether it went a way not seen before."""
        before, outcome = len(self.lines), "ok"
        path = 0
        try:
            self.read(data)
        except FormatError as error:
            outcome, path = "FormatError", path_of(error)
            if not harness.fair(error):
                outcome = "unfair message"
                self.fail(data, outcome, error)
        except Exception as error:
            outcome = type(error).__name__
            self.fail(data, outcome, error)
        self.outcomes[outcome] += 1
        if len(self.lines) == before and path in self.paths:
            return False
        self.paths.add(path)
        return True

    def fail(self, data: bytes, outcome: str, error: Exception) -> None:
        key = f"{self.reader} {outcome} {harness.origin(error)}"
        found = self.failures.setdefault(
            key, {"kind": "memory" if outcome == "MemoryError" else "crash", "text": str(error)[:200], "count": 0}
        )
        found["count"] += 1
        if "file" not in found or len(data) < found["size"]:
            path = self.failed / hashlib.sha256(key.encode()).hexdigest()[:16]
            path.write_bytes(data)
            found |= {"file": str(path), "size": len(data)}

    def look_closer(self, data: bytes) -> None:
        """The processor time of one input alone; a slow machine is not a slow reader."""
        found = harness.judge(self.reader, data, memory=False)
        self.slowest_s = max(self.slowest_s, found.cpu_s)
        if found.fault == "hang":
            path = self.failed / hashlib.sha256(data).hexdigest()[:16]
            path.write_bytes(data)
            self.failures[f"{self.reader} hang {path.name}"] = {
                "kind": "hang", "text": f"{found.cpu_s:.2f} s", "count": 1, "file": str(path), "size": len(data),
            }  # fmt: skip

    def run(self, seed: str, count: int) -> None:
        for data in self.pool:
            self.once(data)  # what is in the pool is not new
        self.outcomes.clear()
        gc.collect()
        gc.freeze()
        limit_memory()
        rng, pool, now = Random(seed), self.pool, self.now
        last = time.perf_counter()
        for i in range(count):
            data = mutate.make(rng, self.reader, pool)
            NOW.pack_into(now, 0, i + 1, len(data))
            now[NOW.size : NOW.size + len(data)] = data
            if not i % TOGETHER:
                signal.setitimer(signal.ITIMER_PROF, harness.LIMIT_S)  # unhandled, it ends even a loop in C
            if self.once(data) and len(pool) < MOST_KEPT:
                self.keep(data)
            if not i % SAMPLE:
                self.peak = max(self.peak, harness.peak_of(self.reader, data))
            then, last = last, time.perf_counter()
            if last - then > max(self.slowest_s * 2, 0.002):
                signal.setitimer(signal.ITIMER_PROF, 0)
                self.look_closer(data)
                signal.setitimer(signal.ITIMER_PROF, harness.LIMIT_S)
                last = time.perf_counter()
        signal.setitimer(signal.ITIMER_PROF, 0)

    def keep(self, data: bytes) -> None:
        self.pool.append(data)
        self.new += 1
        (self.kept / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)

    def report(self) -> dict[str, Any]:
        return {
            "executions": self.outcomes.total(), "kept": self.new, "outcomes": dict(self.outcomes),
            "slowest_ms": self.slowest_s * 1e3, "peak": self.peak, "failures": self.failures,
        }  # fmt: skip


def main(job: str, reader: str, *rest: str) -> Any:
    """slice READER WORK SEED COUNT, big READER NAME, or replay READER FILE."""
    warnings.simplefilter("ignore")
    if job == "slice":
        work, seed, count = rest
        one = Slice(reader, Path(work))
        one.run(seed, int(count))
        return {"digest": seeds.digest(reader), **one.report()}
    data = seeds.big(reader)[rest[0]]() if job == "big" else Path(rest[0]).read_bytes()
    signal.setitimer(signal.ITIMER_PROF, ENOUGH_S)
    return {"digest": seeds.digest(reader), "size": len(data), **vars(harness.judge(reader, data))}


if __name__ == "__main__":
    found = main(*sys.argv[1:])
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    if os.environ.get("FUZZ_TMP") is None:
        sys.exit(0)
    os._exit(0)  # run.py removes the folders of its workers itself

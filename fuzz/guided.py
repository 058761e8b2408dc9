"""The same harnesses under atheris (libFuzzer): inputs are guided by the coverage of the readers.

Knows nothing of its own about inputs: half of the changes are libFuzzer's, half those of `mutate`. Started by
`python fuzz/run.py --engine atheris`; needs `pip install atheris`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import seeds
from state import State, say, table

HERE = Path(__file__).parent
STATS = {"executions": "number_of_executed_units", "kept": "new_units_added"}


def command(reader: str, work: Path, runs: int, seed: int) -> list[str]:
    """libFuzzer's own limits are wide: it counts wall time and the whole process; what it stops at is judged again."""
    found, kept = work / "failures" / reader, work / "guided" / reader
    for where in (found, kept):
        where.mkdir(parents=True, exist_ok=True)
    options = [f"-runs={runs}", f"-seed={seed}", "-max_len=4096", "-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1",
               "-verbosity=0", f"-artifact_prefix={found}/guided-"]  # fmt: skip
    return [sys.executable, str(HERE / "guided.py"), reader, *options, str(kept), *map(str, seeds.homes(reader))]


def run(args: argparse.Namespace, state: State, names: list[str]) -> int:
    """A slice of each reader in turn, until each has its executions; those of this engine are counted with the others."""
    end, failed = time.monotonic() + args.minutes * 60, False
    for name in names:
        row = state.reader(name)
        while row["executions"] < args.executions and time.monotonic() < end:
            count = min(args.slice, args.executions - row["executions"])
            env = os.environ | {
                "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
            }
            done = subprocess.run(
                command(name, args.work, count, args.seed + row["slices"]),
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", done.stderr))
            if STATS["executions"] not in stats:
                say(f"{name}: atheris ended with {done.returncode}\n{done.stderr[-1500:]}")
                return 1
            failed |= done.returncode != 0
            state.add(name, found(done, stats, seeds.digest(name), name))
            state.save()
            say(f"{name:12} +{stats[STATS['executions']]} = {row['executions']:,}  guided")
            if done.returncode:
                break  # it would stop there again
    say(table(state))
    return int(failed)


def found(done: subprocess.CompletedProcess[str], stats: dict[str, str], digest: str, name: str) -> dict[str, Any]:
    """What one run did, as a worker tells it."""
    report: dict[str, Any] = {key: int(stats[value]) for key, value in STATS.items()}
    failures: dict[str, Any] = {}
    if artifact := re.search(r"Test unit written to (\S+)", done.stderr):
        text = next((line.strip() for line in done.stdout.splitlines() if "Error" in line), "stopped by libFuzzer")
        failures[f"{name} guided {Path(artifact[1]).name}"] = {"kind": "crash", "text": text[:200], "file": artifact[1]}
    return report | {
        "outcomes": {"guided": report["executions"]},
        "slowest_ms": 0.0,
        "peak": 0,
        "digest": digest,
        "failures": failures,
    }


def fuzz(reader: str, options: list[str]) -> None:
    """In the process of libFuzzer."""
    import atheris

    with atheris.instrument_imports(include=["tritium.io"]):
        import harness
    import mutate

    from tritium.errors import FormatError

    read, pool = harness.READERS[reader], list(seeds.kept(reader).values())

    def one(data: bytes) -> None:
        with suppress(FormatError):
            read(data)

    def change(data: bytes, most: int, seed: int) -> bytes:
        if seed & 1:
            return bytes(atheris.Mutate(data, most))
        return mutate.make(Random(seed), reader, [bytes(data)] if data else pool)[:most]

    atheris.Setup([sys.argv[0], *options], one, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(sys.argv[1], sys.argv[2:])

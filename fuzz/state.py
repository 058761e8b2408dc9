"""What was fuzzed so far: executions, outcomes and failures of every reader, in one file; and as a table.

Knows nothing of how inputs are made or run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import seeds


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class State:
    """What was done, in one file that is replaced as a whole."""

    def __init__(self, work: Path) -> None:
        self.path = work / "state.json"
        self.data: dict[str, Any] = {"version": 1, "readers": {}, "failures": {}}
        if self.path.exists():
            self.data = json.loads(self.path.read_text(encoding="utf-8"))

    def reader(self, name: str) -> dict[str, Any]:
        empty = {
            "executions": 0,
            "slices": 0,
            "kept": 0,
            "outcomes": {},
            "slowest_ms": 0.0,
            "peak": 0,
            "digests": {},
            "big": "",
        }
        return self.data["readers"].setdefault(name, empty)

    def save(self) -> None:
        new = self.path.with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            json.dump(self.data, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)

    def add(self, name: str, found: dict[str, Any]) -> None:
        row = self.reader(name)
        for key in ("executions", "kept"):
            row[key] += found[key]
        row["slices"] += 1
        for outcome, n in found["outcomes"].items():
            row["outcomes"][outcome] = row["outcomes"].get(outcome, 0) + n
        for key in ("slowest_ms", "peak"):
            row[key] = max(row[key], found[key])
        row["digests"][found["digest"]] = row["digests"].get(found["digest"], 0) + found["executions"]
        for key, failure in found["failures"].items():
            self.fail(key, name, found["digest"], **failure)

    def fail(self, key: str, name: str, digest: str, count: int = 1, **failure: Any) -> None:
        old = self.data["failures"].get(key, {"count": 0})
        if "fixed" in old or not old["count"]:
            say(f"  FAILURE {key}: {failure['text']}")
        self.data["failures"][key] = failure | {"reader": name, "digest": digest, "count": old["count"] + count}


def table(state: State) -> str:
    rows = [
        (
            "reader",
            "executions",
            "on this code",
            "kept",
            "ok",
            "FormatError",
            "others",
            "slowest ms",
            "big ms",
            "peak MB",
        )
    ]
    total = 0
    for name, row in state.data["readers"].items():
        others = {k: v for k, v in row["outcomes"].items() if k not in ("ok", "FormatError")}
        total += row["executions"]
        latest = row["digests"].get(seeds.digest(name), 0)
        rows.append((
            name, f"{row['executions']:,}", f"{latest:,}", str(row["kept"]), f"{row['outcomes'].get('ok', 0):,}",
            f"{row['outcomes'].get('FormatError', 0):,}", " ".join(f"{k} {v}" for k, v in others.items()) or "-",
            f"{row['slowest_ms']:.0f}", f"{row.get('slowest_big_ms', 0):.0f}", f"{row['peak'] / 2**20:.1f}",
        ))  # fmt: skip
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) if i in (0, 6) else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
        for r in rows
    ]
    live = [k for k, f in state.data["failures"].items() if not f.get("fixed")]
    return "\n".join(
        [
            *lines,
            f"{total:,} executions in all, {len(live)} failures open, {len(state.data['failures']) - len(live)} fixed",
        ]
    )

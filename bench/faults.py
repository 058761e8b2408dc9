"""What results, journals, history and baselines survive: kill -9 at random moments, many writers at once, failing calls.

Knows nothing of measuring; fault_calls.py makes system calls fail.

    python bench/faults.py                    1,000 kills, 16 processes, every fault at every call (some minutes)
    python bench/faults.py --kills 50         a short look
    python bench/faults.py --folder DIR       on the file system of DIR

kills. A process writes results over older ones, a record of a journal, a run of a history and a version of a baseline,
again and again. It tells each through a pipe once the call has returned, which is what "committed" means, and only then
goes on. It is killed a random time after its first commit, or (one in four) after its start, while it opens the stores;
until then this process keeps reading the results.
Then everything is read: every file must be whole, every committed number must be there, the index must be whole and agree
with the files. The next writer goes on where the killed one was, in the same folder.
processes. All save at once: into one history, one baseline, one results file and one of their own each.
A kill is not a power cut: what the system has in memory is not lost by it. That each file and folder is flushed before
it is said to be there is what the failing calls show.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from fault_calls import SUBJECTS, Tally, inject, limited, sample

from tritium.errors import TritiumError
from tritium.perf.store import baseline, results as store
from tritium.perf.store.history import History

LONGEST_S = 0.25  # a writer lives at most so long
KINDS = ("results", "journal", "history", "baseline")
KILLS_IN_A_FOLDER = 25
OPENING = 0.25  # this share of the kills may hit a writer that is still opening its stores


@dataclass
class Kills:
    """What came of killing writers."""

    kills: int = 0
    committed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    reads: int = 0  # of the results while they were written
    torn: int = 0  # journals whose last record was cut off
    unfinished: int = 0  # temporary files of dead writers
    unindexed: int = 0  # runs saved but not in the index, found again
    idle: int = 0  # killed before anything was committed
    lost: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)


# ---- kills


def write_on(folder: Path, number: int, tell: int) -> None:
    """Write everything again and again, from this number on; never returns."""
    with store.Journal(folder / "journal") as journal, History(folder / "history") as history:
        while True:
            results = sample(number)
            store.save(results, folder / "results.json")
            os.write(tell, b"results %d\n" % number)
            journal.append({"number": number, "text": "x" * 60_000})
            os.write(tell, b"journal %d\n" % number)
            history.add(results)
            os.write(tell, b"history %d\n" % number)
            baseline.create("main", results, force=True, root=folder / "baselines")
            os.write(tell, b"baseline %d\n" % number)
            number += 1


def kill_one(folder: Path, number: int, wait_s: float, opening: bool, found: Kills) -> dict[str, set[int]]:
    """Start a writer, kill it, and give what it said it had committed. `opening`: the time counts from its start."""
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(hear)
            write_on(folder, number, tell)
        except BaseException as error:
            os.write(2, f"the writer failed: {error!r}\n".encode())
        os._exit(70)
    os.close(tell)
    if not opening:
        select.select([hear], [], [])  # its first commit, or its end
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        _read_along(folder / "results.json", found)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
        found.corrupt.append(f"the writer from {number} on could not go on")
    with open(hear, "rb") as file:
        said = file.read().decode().splitlines()
    committed: dict[str, set[int]] = {kind: set() for kind in KINDS}
    for line in said:
        kind, _, text = line.partition(" ")
        committed[kind].add(int(text))
    return committed


def _read_along(path: Path, found: Kills) -> None:
    try:
        store.load(path)
        found.reads += 1
    except FileNotFoundError:
        pass
    except TritiumError as error:
        found.corrupt.append(f"read while written: {error}")


def present(folder: Path, found: Kills) -> dict[str, set[int]]:
    """Every number that is there, of each kind; what is damaged is noted."""
    there: dict[str, set[int]] = {kind: set() for kind in KINDS}
    looks: dict[str, Callable[[Path, Kills], set[int]]] = {
        "results": _results, "journal": _journal, "history": _history, "baseline": _baselines,
    }  # fmt: skip
    for kind, look in looks.items():
        try:
            there[kind] = look(folder, found)
        except FileNotFoundError:
            continue
        except (TritiumError, sqlite3.Error, ValueError) as error:
            found.corrupt.append(f"{kind}: {error}")
    return there


def _results(folder: Path, found: Kills) -> set[int]:
    return set(range(1, int(store.load(folder / "results.json").suite) + 1))


def _journal(folder: Path, found: Kills) -> set[int]:
    records, torn = store.Journal.read(folder / "journal")
    found.torn += torn
    return {record["number"] for record in records}


def _history(folder: Path, found: Kills) -> set[int]:
    place = folder / "history"
    if not place.exists():
        return set()
    indexed = _indexed(place / "index-1.sqlite", found)
    with History(place) as history:
        found.corrupt += [f"history: {name}: {why}" for name, why in history.unreadable.items()]
        found.corrupt += [f"history: the index was damaged: {p.name}" for p in place.glob("*.aside")]
        kept = history.runs()
        found.unindexed += len(kept) - indexed
        for run in kept:
            if store.load_with_digest(run.path)[1] != run.sha256:
                found.corrupt.append(f"history: {run.id} is not what the index says")
        return {int(run.suite) for run in kept}


def _indexed(index: Path, found: Kills) -> int:
    """How many runs the index has before it is healed; it must be whole as the kill left it."""
    if not index.exists():
        return 0
    with closing(sqlite3.connect(index)) as data:
        state = data.execute("PRAGMA integrity_check").fetchone()[0]
        if state != "ok":
            found.corrupt.append(f"history: the index: {state}")
        made = data.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone()
        return data.execute("SELECT count(*) FROM runs").fetchone()[0] if made else 0


def _baselines(folder: Path, found: Kills) -> set[int]:
    place = folder / "baselines"
    if not baseline.list(place):
        return set()
    versions = baseline.show("main", place)
    found.corrupt += [f"baseline {v.label}: {v.fault}" for v in versions if v.fault]
    if [v.number for v in versions] != list(range(1, len(versions) + 1)):
        found.corrupt.append(f"baseline: versions are {[v.number for v in versions]}")
    return {int(v.suite) for v in versions if not v.fault}


def kill_many(
    folder: Path, kills: int, seed: int, longest_s: float = LONGEST_S, progress: Callable[[int], None] = lambda n: None
) -> Kills:
    """Kill writers at random moments, and look at everything after each."""
    found, rng = Kills(), random.Random(seed)
    while found.kills < kills:
        place = folder / f"from-{found.kills}"
        place.mkdir()
        number, due = 1, {kind: set[int]() for kind in KINDS}
        for _ in range(min(KILLS_IN_A_FOLDER, kills - found.kills)):
            committed = kill_one(place, number, rng.uniform(0, longest_s), rng.random() < OPENING, found)
            found.kills += 1
            found.idle += not any(committed.values())
            there = present(place, found)
            for kind in KINDS:
                due[kind] |= committed[kind]
                found.committed[kind] += len(committed[kind])
                found.lost += [f"kill {found.kills}: {kind} {n}" for n in sorted(due[kind] - there[kind])]
            number = max((n for numbers in there.values() for n in numbers), default=0) + 1
            progress(found.kills)
        found.unfinished += len(list(place.rglob("*.tmp")))
        shutil.rmtree(place)
    return found


# ---- many processes


def save_at_once(folder: Path, processes: int, saves: int) -> list[str]:
    """All processes save at once; gives what was lost or damaged."""
    children = []
    for p in range(processes):
        child = os.fork()
        if child == 0:
            code = 70
            try:
                _save_some(folder, p, saves)
                code = 0
            except BaseException as error:
                os.write(2, f"process {p}: {error!r}\n".encode())
            finally:
                os._exit(code)
        children.append(child)
    wrong = [f"process {i} failed" for i, c in enumerate(children) if os.waitpid(c, 0)[1] != 0]
    numbers = set(range(processes * saves))
    with History(folder / "history") as history:
        wrong += [f"lost from the history: {n}" for n in numbers - {int(k.suite) for k in history.runs()}]
        wrong += list(history.unreadable.values())
    versions = baseline.show("main", folder / "baselines")
    wrong += [f"lost from the baselines: {n}" for n in numbers - {int(v.suite) for v in versions if not v.fault}]
    if int(store.load(folder / "shared.json").suite) not in numbers:
        wrong.append("the shared file holds what nobody wrote")
    for p in range(processes):
        if int(store.load(folder / f"own-{p}.json").suite) != (p + 1) * saves - 1:
            wrong.append(f"process {p}: its own file is not its last")
    return wrong + [f"left behind: {p}" for p in folder.rglob("*.tmp")]


def _save_some(folder: Path, process: int, saves: int) -> None:
    with History(folder / "history") as history:
        for number in range(process * saves, (process + 1) * saves):
            results = sample(number)
            history.add(results)
            baseline.create("main", results, force=True, root=folder / "baselines")
            store.save(results, folder / "shared.json")
            store.save(results, folder / f"own-{process}.json")


# ---- the table


def faults(kills: Kills, tallies: list[Tally], wrong: list[str]) -> list[str]:
    """Everything that must not be."""
    return [*kills.lost, *kills.corrupt, *wrong, *(f"{t.subject}: {b}" for t in tallies for b in t.broken)]


def table(kills: Kills, tallies: list[Tally], processes: int, saves: int, wrong: list[str]) -> str:
    committed = ", ".join(f"{n} {kind}" for kind, n in kills.committed.items())
    lines = [
        f"kill -9            {kills.kills} writers ({kills.idle} before their first commit); committed: {committed}",
        f"                   lost {len(kills.lost)}, corrupt {len(kills.corrupt)}; {kills.reads} reads while written",
        f"                   healed: {kills.torn} torn journals, {kills.unindexed} runs not indexed, "
        f"{kills.unfinished} unfinished files",
        f"processes          {processes} x {saves} saves x 4 places; lost or damaged {len(wrong)}",
        "",
        f"{'failing calls':36} {'calls':>6} {'faults':>7} {'refused':>8} {'went on':>8} {'broken':>7}",
    ]
    lines += [
        f"{t.subject:36} {t.calls or '':>6} {t.faults:>7} {t.refused:>8} {t.done:>8} {len(t.broken):>7}"
        for t in tallies
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--saves", type=int, default=20, help="of each process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    asked = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        places = {part: Path(name) / part for part in ("kills", "processes", "calls")}
        for place in places.values():
            place.mkdir()
        shown = sys.stderr.isatty()
        kills = kill_many(
            places["kills"], asked.kills, asked.seed, progress=lambda n: _show(n, asked.kills) if shown else None
        )
        wrong = save_at_once(places["processes"], asked.processes, asked.saves)
        tallies = []
        for i, subject in enumerate(SUBJECTS):
            (places["calls"] / str(i)).mkdir()
            tallies.append(inject(subject, places["calls"] / str(i)))
        tallies.append(limited(places["calls"]))
    bad = faults(kills, tallies, wrong)
    lines = [table(kills, tallies, asked.processes, asked.saves, wrong), "", *bad[:20]]
    lines.append(f"{'FAILED' if bad else 'nothing lost, nothing corrupt'} ({time.monotonic() - began:.0f} s)")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if bad else 0


def _show(done: int, total: int) -> None:
    sys.stderr.write(f"\rkills {done}/{total}" + ("\n" if done == total else ""))


if __name__ == "__main__":
    sys.exit(main())

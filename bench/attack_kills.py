"""What model files, ceilings and tuned choices survive: kill -9 at random moments of writers that replace them.

    python bench/attack_kills.py               400 kills (some minutes)
    python bench/attack_kills.py --kills 40    a short look

A process replaces a target again and again, by turns with one of two contents: a converted file, a converted folder, the
same folder where the file system cannot exchange two names, a prepacked file, the file of ceilings, the file of tuned
choices. It is killed at a random moment. After each kill the target must be whole and one of the two contents; a folder
replaced in two steps may be under the name it was put aside by, and the next writer must give its name back. While the
writer lives, a reader looks for the target: an exchanged one is never missing. At the end one more writer runs to its end,
and nothing but the target may be left in the folder.

A kill is not a power cut: what the system has in memory is not lost by it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tritium as tt
from tritium.machine import ceilings, files, tuned
from tritium.machine.facts import this_machine
from tritium.models.load import shipped
from tritium.perf.tune import file as tune_file

LONGEST_S = 0.3  # after the first commit
Write = Callable[[Path, int], None]  # (target, version)


@dataclass(frozen=True)
class Subject:
    """A target that is replaced: its name, the writer, and whether it may be absent for a moment."""

    title: str
    name: str
    write: Write
    two_steps: bool = False


@dataclass
class Outcome:
    """The counts of one subject, and what went wrong."""

    title: str
    kills: int = 0
    commits: int = 0
    reads: int = 0
    swept: int = 0  # temporaries a kill left, removed by a later writer
    restored: int = 0  # folders that got their name back
    wrong: list[str] = field(default_factory=list)


# ---- writers


def convert_file(target: Path, version: int) -> None:
    tt.io.convert(shipped(), target, to=("i2_s", "tq2_0")[version], overwrite=True)


def convert_folder(target: Path, version: int) -> None:
    tt.io.convert(shipped(), target, to=("hf", "f16")[version], overwrite=True)


def convert_in_two_steps(target: Path, version: int) -> None:
    files.rename_with = lambda flags, source, target: False  # as on a file system that exchanges no names
    convert_folder(target, version)


def prepack(target: Path, version: int) -> None:
    tt.load(head=(None, "int8")[version]).save(target, overwrite=True)


def write_ceilings(target: Path, version: int) -> None:
    rows = (ceilings.Ceiling("f32", "f32", 1, "", (float(1 + version),) * 2_000),)
    ceilings._write(target, ceilings.Ceilings(this_machine(), (), rows, True, "", 0.0))


def write_tuned(target: Path, version: int) -> None:
    os.environ["TRITIUM_CACHE"] = str(target.parent)
    tune_file.choose({"kernel/attack": tuned.Choice("x" * (20_000 + version), "attacked")})


def subjects() -> list[Subject]:
    machine = this_machine()
    return [
        Subject("convert, a file", "m.gguf", convert_file),
        Subject("convert, a folder", "m", convert_folder),
        Subject("a folder in two steps", "m", convert_in_two_steps, two_steps=True),
        Subject("prepack", "m.tritium", prepack),
        Subject("ceilings", f"ceilings-{machine.key}.json", write_ceilings),
        Subject("tuned choices", tuned.path(machine).name, write_tuned),
    ]


# ---- what is there


def digest(target: Path) -> str:
    """Return the hash of a file, or of the names and bytes of a folder's files."""
    total = hashlib.sha256()
    for path in sorted(target.iterdir()) if target.is_dir() else [target]:
        total.update(path.name.encode() if target.is_dir() else b"")
        total.update(path.read_bytes())
    return total.hexdigest()


def in_a_child(body: Callable[[], None]) -> int:
    """Start a process that runs the body; its number."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            body()
            code = 0
        except BaseException as error:
            os.write(2, f"the writer failed: {error!r}\n".encode())
        finally:
            os._exit(code)
    return child


def write_once(subject: Subject, target: Path, version: int) -> None:
    """Write one version in a process of its own: this one starts no threads, which a fork would not copy."""
    child = in_a_child(lambda: subject.write(target, version))
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError(f"{subject.title}: the writer failed")


def left(target: Path) -> list[Path]:
    return [p for p in target.parent.iterdir() if p.name.startswith(".") and p != target]


def kill_one(subject: Subject, target: Path, wait_s: float, whole: set[str], outcome: Outcome) -> None:
    """Start a writer, kill it `wait_s` after its first commit, and check what is there."""
    hear, tell = os.pipe()

    def write_on() -> None:
        os.close(hear)
        version = 0
        while True:
            subject.write(target, version)
            os.write(tell, b".")
            version = 1 - version

    child = in_a_child(write_on)
    os.close(tell)
    select.select([hear], [], [])
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        outcome.reads += 1
        if not subject.two_steps and not target.exists():
            outcome.wrong.append("the target was missing while it was replaced")
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        outcome.wrong.append("the writer could not go on")
    with open(hear, "rb") as file:
        outcome.commits += len(file.read())
    outcome.kills += 1
    place = target if target.exists() else files.set_aside(target)
    if place is None or digest(place) not in whole:
        outcome.wrong.append(f"kill {outcome.kills}: {'nothing is there' if place is None else 'it is not whole'}")
    outcome.restored += place is not None and place != target
    outcome.swept += len(left(target))


def attack(subject: Subject, folder: Path, kills: int, rng: random.Random) -> Outcome:
    """Kill writers of one subject so many times."""
    outcome, target = Outcome(subject.title), folder / subject.name
    whole = set()
    for version in (1, 0):
        write_once(subject, target, version)
        whole.add(digest(target))
    if len(whole) != 2:
        raise RuntimeError(f"{subject.title}: the two versions are the same")
    for _ in range(kills):
        kill_one(subject, target, rng.uniform(0, LONGEST_S), whole, outcome)
    write_once(subject, target, 0)
    outcome.wrong += [f"left behind: {p.name}" for p in left(target)]
    if not target.exists() or digest(target) not in whole:
        outcome.wrong.append("the last writer left no whole target")
    return outcome


def attack_all(folder: Path, kills: int, seed: int) -> Iterator[Outcome]:
    """Share the kills among the subjects; each has a folder of its own."""
    rng, listed = random.Random(seed), subjects()
    for i, subject in enumerate(listed):
        place = folder / str(i)
        place.mkdir()
        yield attack(subject, place, kills // len(listed) + (i < kills % len(listed)), rng)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    options = parser.parse_args()
    start, wrong, kills = time.monotonic(), 0, 0
    out = sys.stdout
    out.write(f"{'':24} {'kills':>6} {'commits':>8} {'reads':>7} {'swept':>6} {'restored':>9} {'wrong':>6}\n")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for o in attack_all(Path(name), options.kills, options.seed):
            counts = f"{o.kills:>6} {o.commits:>8} {o.reads:>7} {o.swept:>6} {o.restored:>9} {len(o.wrong):>6}"
            out.write("\n".join([f"{o.title:24} {counts}", *o.wrong[:5]]) + "\n")
            out.flush()
            wrong, kills = wrong + len(o.wrong), kills + o.kills
    verdict = "FAILED" if wrong else "nothing lost, nothing left behind"
    out.write(f"{kills} kills: {verdict} ({time.monotonic() - start:.0f} s)\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""System calls that fail on purpose: each call that writes is made to fail in turn, and what is on the disk is looked at.

Knows nothing of killing processes; faults.py does. SQLite's own calls are not made through Python: `limited` fails those, by
the system's limit on the size of a file, which cuts a write short and then refuses it.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tritium.errors import TritiumError
from tritium.perf.records.case import Context, Work
from tritium.perf.records.environment import Environment, Hard
from tritium.perf.records.run import Plan, Results, Run, Series, Values
from tritium.perf.store import baseline, results as store
from tritium.perf.store.history import History

CALLS = ("open", "write", "fsync", "replace", "ftruncate", "mkdir")
ONCE = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EINTR": errno.EINTR}
FOR_GOOD = {"full": errno.ENOSPC, "dead": errno.EIO}  # from a call on, every one fails
FAULTS = (*ONCE, "short", "short, then full", *FOR_GOOD)
HEALED = ("EINTR", "short")  # these must not fail anything


def sample(number: int, *, cases: int = 3, created: str = "") -> Results:
    """Results as a measurement leaves them, told apart by their suite."""
    hard = Hard("a CPU", "f1a95", 4, 2, "x86_64", "Linux", "native", 2)
    environment = Environment(
        hard, "3.11.7", "0.5", f"{number:040x}", False, {"numpy": "2.4"}, "6.1", 16.0, "", "", "mains", 0.1, None
    )
    values: Values = tuple(
        tuple((1e-3 * (1 + 0.01 * ((number * 7 + g * 3 + r) % 11)), 1.1e-3) for r in range(3)) for g in range(6)
    )
    runs = tuple(
        Run(f"case {i}", arm, Context("add", (64, 64)), Work(4096, 32768, 16384), series=(Series("wall", "s", values),))
        for i in range(cases)
        for arm in ("tritium", "numpy")
    )
    moment = (
        created
        or f"2026-01-{1 + number // 86400 % 28:02}T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
    )
    return Results("bench", str(number), moment, "tritium bench", Plan(), environment, ("tritium", "numpy"), runs)


@dataclass
class Count:
    """How many calls were made, and whether the fault took place."""

    calls: int = 0
    struck: bool = False


@contextmanager
def failing(at: int = -1, fault: str = "") -> Iterator[Count]:
    """Within, call number `at` of those in CALLS fails; -1: none does, they are only counted."""
    count = Count()
    real = {name: getattr(os, name) for name in CALLS}

    def through(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            number, count.calls = count.calls, count.calls + 1
            late = 0 <= at < number
            if number == at or (late and (fault in FOR_GOOD or fault == "short, then full")):
                if "short" in fault and not late:
                    if name != "write" or len(arguments[1]) < 2:
                        return real[name](*arguments, **more)
                    count.struck = True
                    return real["write"](arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                if fault == "short, then full" and (not count.struck or name not in ("write", "open", "mkdir")):
                    return real[name](*arguments, **more)
                count.struck = True
                code = (ONCE | FOR_GOOD).get(fault, errno.ENOSPC)
                raise OSError(code, os.strerror(code))
            return real[name](*arguments, **more)

        return call

    for name in CALLS:
        setattr(os, name, through(name))
    try:
        yield count
    finally:
        for name, function in real.items():
            setattr(os, name, function)


@dataclass(frozen=True)
class Subject:
    """Something that is written: how its folder looks before, the writing, and what must hold after."""

    name: str
    prepare: Callable[[Path], Any]
    act: Callable[[Path], Any]
    state: Callable[[Path], Any]  # what a reader sees


def _results_state(folder: Path) -> Any:
    path = folder / "results.json"
    return store.load(path).suite if path.exists() else None


def _new_state(folder: Path) -> Any:
    path = folder / "new" / "deep" / "results.json"
    return store.load(path).suite if path.exists() else None


def _journal(folder: Path, *numbers: int) -> None:
    with store.Journal(folder / "journal") as journal:
        for number in numbers:
            journal.append({"number": number, "text": "x" * 200})


def _journal_state(folder: Path) -> Any:
    records, torn = store.Journal.read(folder / "journal")
    return [r["number"] for r in records], torn


def _history(folder: Path, number: int) -> None:
    with History(folder / "history") as history:
        history.add(sample(number))


def _history_state(folder: Path) -> Any:
    with History(folder / "history") as history:
        assert not history.unreadable, history.unreadable
        assert not list((folder / "history").glob("*.aside")), "the index was damaged"
        assert [k.sha256 for k in history.runs()] == [store.load_with_digest(k.path)[1] for k in history.runs()]
        return [int(k.suite) for k in history.runs()]


def _baseline_state(folder: Path) -> Any:
    found = [v for b in baseline.list(folder / "baselines") for v in baseline.show(b.name, folder / "baselines")]
    assert not [v.fault for v in found if v.fault]
    return [(v.label, v.suite) for v in found]


SUBJECTS = (
    Subject(
        "results over older ones",
        lambda f: store.save(sample(1), f / "results.json"),
        lambda f: store.save(sample(2), f / "results.json"),
        _results_state,
    ),
    Subject(
        "results in new folders",
        lambda f: None,
        lambda f: store.save(sample(2), f / "new" / "deep" / "results.json"),
        _new_state,
    ),
    Subject("journal", lambda f: _journal(f, 1, 2), lambda f: _journal(f, 3, 4), _journal_state),
    Subject("history", lambda f: _history(f, 1), lambda f: _history(f, 2), _history_state),
    Subject(
        "baseline",
        lambda f: baseline.create("main", sample(1), root=f / "baselines"),
        lambda f: baseline.create("main", sample(2), force=True, root=f / "baselines"),
        _baseline_state,
    ),
    Subject(
        "promotion",
        lambda f: baseline.create("main", sample(1), root=f / "baselines"),
        lambda f: baseline.promote("main", root=f / "baselines"),
        _baseline_state,
    ),
)


@dataclass(frozen=True)
class Tally:
    """What came of the faults of one subject."""

    subject: str
    calls: int  # of the undisturbed writing
    faults: int = 0  # that took place
    refused: int = 0  # writings that said they failed
    done: int = 0  # writings that went on all the same
    broken: tuple[str, ...] = ()  # what must not be


def inject(subject: Subject, folder: Path) -> Tally:
    """Fail every call of the subject's writing in turn, in every way."""
    before, after, calls = _undisturbed(subject, folder / "clean")
    tally = Tally(subject.name, calls)
    for fault in FAULTS:
        for at in range(calls):
            tally = _strike(subject, folder / "struck", fault, at, before, after, tally)
    return tally


def _undisturbed(subject: Subject, folder: Path) -> tuple[Any, Any, int]:
    folder.mkdir()
    subject.prepare(folder)
    before = subject.state(folder)
    with failing() as count:
        subject.act(folder)
    return before, subject.state(folder), count.calls


def _strike(subject: Subject, folder: Path, fault: str, at: int, before: Any, after: Any, tally: Tally) -> Tally:
    folder.mkdir()
    try:
        subject.prepare(folder)
        error: BaseException | None = None
        with failing(at, fault) as count:
            try:
                subject.act(folder)
            except Exception as caught:
                error = caught
        if not count.struck:
            return tally
        wrong = _wrong(subject, folder, fault, before, after, error)
        return replace(
            tally, faults=tally.faults + 1, refused=tally.refused + (error is not None),
            done=tally.done + (error is None), broken=(*tally.broken, *(f"{fault} at call {at}: {w}" for w in wrong)),
        )  # fmt: skip
    finally:
        shutil.rmtree(folder)


def _wrong(
    subject: Subject, folder: Path, fault: str, before: Any, after: Any, error: BaseException | None
) -> list[str]:
    found = []
    left = sorted(p.name for p in folder.rglob("*.tmp"))
    if left:
        found.append(f"left behind: {left}")
    try:
        now = subject.state(folder)
    except Exception as unreadable:
        return [*found, f"unreadable: {unreadable!r}"]
    if error is None and now != after:
        found.append(f"it said it was written, but {now} is there")
    if error is not None:
        if fault in HEALED:
            found.append(f"it failed: {error!r}")
        if not isinstance(error, TritiumError) or not str(error).endswith("."):
            found.append(f"unclear: {error!r}")
        if now != before and not _whole(before, now, after):
            found.append(f"{now} is there, neither {before} nor {after}")
    return found


def _whole(before: Any, now: Any, after: Any) -> bool:
    """A refused writing may have got as far as being there; of several records, as far as some of them."""
    if now == after:
        return True
    return (
        isinstance(now, tuple) and now[0] in [after[0][:n] for n in range(len(before[0]), len(after[0]))] and not now[1]
    )


# ---- SQLite's own calls


def limited(folder: Path, step: int = 1024, most: int = 80 << 10) -> Tally:
    """Add to a history while no file may grow beyond a limit, for every limit; the index is SQLite's own writing."""
    history = next(s for s in SUBJECTS if s.name == "history")
    tally = Tally("history, SQLite's writes cut short", 0)
    for limit in range(0, most, step):
        place = folder / "limited"
        place.mkdir()
        try:
            history.prepare(place)
            code = _in_child(lambda place=place, limit=limit: _add_within(place, limit))
            state = _seen(history, place)
            wrong = () if state in ([1], [1, 2]) and code in (0, 3) and (code == 3 or state == [1, 2]) else (
                f"limit {limit}: exit {code}, {state}",
            )  # fmt: skip
            tally = replace(
                tally, faults=tally.faults + (code == 3), refused=tally.refused + (code == 3), done=tally.done + (code == 0),
                broken=(*tally.broken, *wrong),
            )  # fmt: skip
        finally:
            shutil.rmtree(place)
    return tally


def _seen(subject: Subject, place: Path) -> Any:
    try:
        return subject.state(place)
    except Exception as error:
        return repr(error)


def _add_within(place: Path, limit: int) -> int:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        _history(place, 2)
    except TritiumError:
        return 3
    return 0


def _in_child(work: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

"""Results on the disk: whole or not at all, and read with suspicion; the journal; the lock."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tritium.errors import BusyError, FormatError, SaveError
from tritium.machine import files
from tritium.machine.facts import digest
from tritium.perf.records.run import SCHEMA
from tritium.perf.store import results as store

BENCH = Path(__file__).parents[3] / "bench"
GOLDEN = Path(__file__).parents[2] / "golden"
sys.path.append(str(BENCH))

import fault_calls  # noqa: E402
import faults  # noqa: E402
from fault_calls import SUBJECTS, sample  # noqa: E402


def as_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def rewritten(path: Path, change: Any, *, signed: bool = True) -> Path:
    """The file after a change to what it holds, with a hash that fits it when `signed`."""
    held = as_json(path)
    change(held)
    if signed:
        held["sha256"] = digest(held["results"])
    path.write_text(json.dumps(held))
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return store.save(sample(1), tmp_path / "results.json")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where there is such a thing: thousands of flushes to a disk take long, and fail no other way."""
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if os.access(place, os.W_OK) else None) as name:
        yield Path(name)


# ---- results


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    results = replace(sample(3), command="a × \udc80 \n\x1b[31m", notes=("left out",))
    assert store.load(store.save(results, tmp_path / "a" / "b" / "r.json")) == results


def test_a_run_stands_on_a_line_of_its_own(saved: Path) -> None:
    lines = [line for line in saved.read_text().splitlines() if line.startswith('{"case"')]
    assert len(lines) == len(sample(1).runs)
    assert json.loads(lines[0].rstrip(","))["arm"] == "tritium"


def test_another_layout_of_the_same_content_is_read(saved: Path) -> None:
    saved.write_text(json.dumps(as_json(saved), indent=3, sort_keys=True))
    assert store.load(saved) == sample(1)


def test_the_file_of_schema_1_stays_readable() -> None:
    results, sha = store.load_with_digest(GOLDEN / "results-1.json")
    assert sha == "dc1ca459d5deb74add59b13b4880369a12e98986f71b11992d44e27b551ebe2a"
    assert (results.suite, results.schema, results.arms, len(results.runs)) == ("golden", 1, ("tritium", "numpy"), 5)
    run = results.of("matmul 64x64 f32", "tritium")
    assert run is not None
    assert run.seconds == 1.25e-05
    assert [s.metric for s in run.series] == ["wall", "peak_bytes", "energy"]
    assert run.series[2].kind == "not measured"
    assert [r.status for r in results][-1] == "timed out"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "empty"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (b"{", "not JSON"),
        (b"[]", "not results of tritium"),
        (b'{"schema": 1}', "not results of tritium"),
        (b'{"schema": 1, "schema": 1}', "twice"),
        (b'{"schema": NaN}', "NaN is not JSON"),
        (b'{"schema": 1e999}', "too large"),
        (b"[" * 100_000, "deep"),
        (b'{"a":' * 60 + b"1" + b"}" * 60, "deep"),
    ],
)
def test_what_is_no_results_file_is_refused(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(FormatError, match=said) as caught:
        store.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(schema=SCHEMA + 1), "newer tritium"),
        (lambda d: d["results"].update(schema=SCHEMA + 1), "newer tritium"),
        (lambda d: d.update(schema="1"), "whole number from 1"),
        (lambda d: d.update(schema=True), "whole number from 1"),
        (lambda d: d.update(schema=0), "whole number from 1"),
        (lambda d: d.update(more=1), "unknown key 'more'"),
        (lambda d: d["results"].update(suit="x"), "Did you mean 'suite'"),
        (lambda d: d["results"].pop("plan"), "plan missing"),
        (lambda d: d["results"]["runs"][0].update(status="fine"), r"runs\[0\].status"),
    ],
)
def test_a_wrong_content_is_named(saved: Path, change: Any, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        store.load(rewritten(saved, change))


def test_a_changed_number_is_damage(saved: Path) -> None:
    with pytest.raises(FormatError, match="damaged, or changed by hand"):
        store.load(rewritten(saved, lambda d: d["results"].update(elapsed_s=7.0), signed=False))


@given(at=st.integers(0, 1 << 30), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_another_result(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    path = store.save(sample(1, cases=1), tmp_path_factory.mktemp("flip") / "r.json")
    raw = bytearray(path.read_bytes())
    raw[at % len(raw)] ^= 1 << bit
    path.write_bytes(raw)
    with suppress(FormatError):
        assert store.load(path) == sample(1, cases=1)  # a space that became another one changes nothing


@given(st.binary(max_size=200))
def test_noise_is_refused(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    path = tmp_path_factory.mktemp("noise") / "r.json"
    path.write_bytes(noise)
    with pytest.raises(FormatError):
        store.load(path)


def test_a_cut_file_is_refused(saved: Path) -> None:
    raw = saved.read_bytes()
    for size in range(0, len(raw) - 1, 97):
        saved.write_bytes(raw[:size])
        with pytest.raises(FormatError):
            store.load(saved)


def test_a_file_beyond_the_limit_is_refused(saved: Path) -> None:
    with pytest.raises(FormatError, match="larger than 0 MiB"):
        files.read_bytes(saved, 100)


def test_a_pipe_or_folder_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(FormatError, match="plain file"):
            store.load(path)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.json"):
        store.load(tmp_path / "no.json")


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    bad = replace(sample(1), elapsed_s="soon")
    with pytest.raises(FormatError, match="elapsed_s: a number is needed"):
        store.save(bad, tmp_path / "r.json")
    assert not list(tmp_path.iterdir())


# ---- any file


def test_a_link_keeps_pointing_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    store.write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_a_device_is_written_to_and_stays_a_device() -> None:
    store.write_text("/dev/null", "gone")
    assert not Path("/dev/null").is_file()


def test_standard_output_is_a_place_to_write(tmp_path: Path) -> None:
    code = "from tritium.perf.store.results import write_text; write_text('/dev/stdout', 'told')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "told"


def test_a_folder_is_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="directory"):
        store.write_text(tmp_path, "x")


def test_a_file_gets_the_permissions_the_user_gives_files(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        path = store.write_text(tmp_path / "f", "x")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_private_file_stays_private(saved: Path) -> None:
    saved.chmod(0o600)
    store.save(sample(2), saved)
    assert saved.stat().st_mode & 0o777 == 0o600


def test_a_system_that_writes_nothing_is_an_error(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda handle, data: 0)
    with pytest.raises(SaveError, match="the system wrote nothing"):
        store.save(sample(2), saved)


@pytest.mark.parametrize("has", [True, False])
def test_the_fuller_flush_of_macos_is_used_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: bool
) -> None:
    seen: list[str] = []

    def full(handle: int, command: int) -> int:
        seen.append("full")
        if not has:
            raise OSError(errno.ENOTSUP, "no")
        return 0

    real = os.fsync
    monkeypatch.setattr(files, "FULL_SYNC", 51)
    monkeypatch.setattr(files.fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append("fsync") or real(handle))
    store.write_text(tmp_path / "f", "x")
    assert seen == (["full", "fsync"] if has else ["full", "fsync", "fsync"])  # the last one is the folder's


def test_a_missing_folder_is_an_error_unless_it_may_be_made(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="No such file"):
        store.write_text(tmp_path / "no" / "f", "x")


def test_the_file_and_its_folder_are_flushed_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for name in ("write", "fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, _n=name, _r=real: seen.append(_n) or _r(*a))
    store.write_text(tmp_path / "f", "x")
    assert seen == ["write", "fsync", "replace", "fsync"]


def left_behind(path: Path, age_s: float, pid: int = 1) -> Path:
    left = path.with_name(f".{path.name}.{pid}.0123abcd.tritium.tmp")
    left.write_text("half")
    os.utime(left, (time.time() - age_s,) * 2)
    return left


def test_what_a_dead_writer_left_is_swept(saved: Path) -> None:
    old, young, other = (
        left_behind(saved, 3600), left_behind(saved, 0, pid=2), left_behind(saved.with_name("other"), 3600),
    )  # fmt: skip
    store.save(sample(2), saved)
    assert [p.exists() for p in (old, young, other)] == [False] * 3  # nobody holds their locks


def test_what_a_living_writer_holds_is_not_swept(saved: Path) -> None:
    import fcntl

    left = left_behind(saved, 3600)
    with left.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store.save(sample(2), saved)
    assert left.exists()


def test_a_full_disk_is_said_in_words(saved: Path) -> None:
    with fault_calls.failing(1, "full"), pytest.raises(SaveError) as caught:
        store.save(sample(2), saved)
    assert caught.value.errno == errno.ENOSPC
    for part in (str(saved), "No space left on device", "what was there before is untouched", "choose another place"):
        assert part in str(caught.value)


def test_a_file_system_without_folder_sync_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, "no")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    assert store.write_text(tmp_path / "f", "x").read_text() == "x"


# ---- faults


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
def test_every_failing_call_leaves_the_old_or_the_new(subject: fault_calls.Subject, memory: Path) -> None:
    tally = fault_calls.inject(subject, memory)
    assert not tally.broken
    assert tally.faults >= 5 * tally.calls
    assert tally.refused
    assert tally.done


def test_a_writing_in_place_would_be_caught(memory: Path) -> None:
    def in_place(folder: Path) -> None:
        with open(folder / "results.json", "wb", buffering=0) as file:
            files.write_all(file.fileno(), (folder / "new").read_bytes())

    def prepare(folder: Path) -> None:
        store.save(sample(1), folder / "results.json")
        store.save(sample(2), folder / "new")

    naive = fault_calls.Subject("in place", prepare, in_place, SUBJECTS[0].state)
    assert any("unreadable" in b for b in fault_calls.inject(naive, memory).broken)


@pytest.mark.slow
def test_an_index_whose_writes_are_cut_short_stays_whole(memory: Path) -> None:
    tally = fault_calls.limited(memory, step=3000)
    assert not tally.broken
    assert tally.refused
    assert tally.done


@pytest.mark.slow
def test_nothing_committed_is_lost_when_writers_are_killed(tmp_path: Path) -> None:
    found = faults.kill_many(tmp_path, 30, seed=1, longest_s=0.15)
    assert found.kills == 30
    assert sum(found.committed.values()) > 0
    assert not found.lost
    assert not found.corrupt


def test_sixteen_processes_saving_at_once_lose_nothing(tmp_path: Path) -> None:
    assert faults.save_at_once(tmp_path, 16, 2) == []


def test_a_lost_run_would_be_noticed(tmp_path: Path) -> None:
    assert faults.save_at_once(tmp_path, 2, 2) == []
    next((tmp_path / "history" / "runs").glob("*.json")).unlink()
    found = faults.Kills()
    assert len(faults.present(tmp_path, found)["history"]) == 3


# ---- journal


def test_a_journal_gives_back_its_records(tmp_path: Path) -> None:
    records = [{"what": "plan", "text": "é\n\udc80"}, {"what": "generation", "number": 0}]
    with store.Journal(tmp_path / "deep" / "j") as journal:
        for record in records:
            journal.append(record)
    assert store.Journal.read(tmp_path / "deep" / "j") == (records, False)


def test_a_journal_goes_on_where_it_ended_unless_truncated(tmp_path: Path) -> None:
    for truncate, expected in ((False, [1]), (False, [1, 2]), (True, [3])):
        with store.Journal(tmp_path / "j", truncate=truncate) as journal:
            journal.append({"n": expected[-1]})
        assert [r["n"] for r in store.Journal.read(tmp_path / "j")[0]] == expected


def test_a_journal_cut_anywhere_keeps_the_records_before_the_cut(memory: Path) -> None:
    path = memory / "j"
    ends = []
    with store.Journal(path) as journal:
        for n in range(3):
            journal.append({"n": n, "text": "x" * 20})
            ends.append(path.stat().st_size)
    raw = path.read_bytes()
    for size in range(len(raw) + 1):
        path.write_bytes(raw[:size])
        records, torn = store.Journal.read(path)
        assert len(records) == sum(end <= size for end in ends)
        assert torn == (size not in (0, len(store.Journal.HEADER), *ends))
        with store.Journal(path) as journal:
            journal.append({"n": 9})
        again, torn = store.Journal.read(path)
        assert [r["n"] for r in again] == [*(r["n"] for r in records), 9]
        assert not torn


def test_a_tail_of_zeros_is_a_torn_record(tmp_path: Path) -> None:
    with store.Journal(tmp_path / "j") as journal:
        journal.append({"n": 1})
    with (tmp_path / "j").open("ab") as file:
        file.write(bytes(500))
    assert store.Journal.read(tmp_path / "j") == ([{"n": 1}], True)


def test_damage_before_the_end_is_an_error(tmp_path: Path) -> None:
    with store.Journal(tmp_path / "j") as journal:
        for n in range(3):
            journal.append({"n": n})
    raw = bytearray((tmp_path / "j").read_bytes())
    raw[len(store.Journal.HEADER) + 20] ^= 1
    (tmp_path / "j").write_bytes(raw)
    with pytest.raises(FormatError, match=r"record 1 .* is damaged, and whole ones follow"):
        store.Journal.read(tmp_path / "j")


@pytest.mark.parametrize("text", [b"tritium journal 2\n", b"{}\n", b"\0" * 40])
def test_what_is_no_journal_is_refused_and_left_alone(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "j").write_bytes(text)
    with pytest.raises(FormatError, match="not a journal of this version"):
        store.Journal(tmp_path / "j")
    assert (tmp_path / "j").read_bytes() == text


@given(st.binary(max_size=120))
def test_a_journal_of_noise_gives_no_record(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    path = tmp_path_factory.mktemp("noise") / "j"
    path.write_bytes(store.Journal.HEADER + noise)
    assert store.Journal.read(path) == ([], bool(noise))


def test_two_processes_do_not_write_one_journal(tmp_path: Path) -> None:
    with store.Journal(tmp_path / "j"), pytest.raises(BusyError, match="another process is writing"):
        store.Journal(tmp_path / "j")


def test_a_journal_that_cannot_take_back_a_record_takes_no_more(tmp_path: Path) -> None:
    with store.Journal(tmp_path / "j") as journal:
        journal.append({"n": 1})
        with fault_calls.failing(1, "dead"), pytest.raises(SaveError, match="records before this one are untouched"):
            journal.append({"n": 2})
        with pytest.raises(SaveError, match="nothing more is written"):
            journal.append({"n": 3})
    assert store.Journal.read(tmp_path / "j")[0][0] == {"n": 1}


def test_a_closed_journal_takes_no_more(tmp_path: Path) -> None:
    journal = store.Journal(tmp_path / "j")
    journal.close()
    journal.close()
    with pytest.raises(SaveError):
        journal.append({})


def test_a_record_that_was_interrupted_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    with store.Journal(tmp_path / "j") as journal:
        journal.append({"n": 1})
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                journal.append({"n": 2})
        journal.append({"n": 3})
    assert store.Journal.read(tmp_path / "j") == ([{"n": 1}, {"n": 3}], False)


@pytest.mark.parametrize(
    "head", [b"-0000012", b"0x000012", b" 0000012", b"+0000012", b"0000_012", b"ffffffff", b"0000001G"]
)
def test_a_length_that_is_none_is_a_torn_record(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "j").write_bytes(store.Journal.HEADER + head + b" 00000000 \n")
    assert store.Journal.read(tmp_path / "j") == ([], True)


def test_a_record_must_be_an_object(tmp_path: Path) -> None:
    with store.Journal(tmp_path / "j") as journal:
        journal.append([1])  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="record 1: an object is needed"):
        store.Journal.read(tmp_path / "j")


@pytest.mark.parametrize(("code", "works"), [(errno.ENOLCK, True), (errno.EIO, False)])
def test_a_journal_needs_no_locks_but_a_working_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, works: bool
) -> None:
    monkeypatch.setattr(store.fcntl, "flock", refuse(code))
    if works:
        store.Journal(tmp_path / "j").close()
    else:
        with pytest.raises(SaveError, match="the journal cannot be opened"):
            store.Journal(tmp_path / "j")


def refuse(code: int) -> Any:
    def call(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    return call


# ---- lock


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.fcntl, "flock", refuse(errno.ENOLCK))
    with pytest.raises(SaveError, match="has no locks; use a local folder"), store.lock(tmp_path / "l"):
        pass


def test_a_lock_of_another_users_process_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.lock(tmp_path / "l"):
        monkeypatch.setattr(os, "kill", refuse(errno.EPERM))
        with pytest.raises(BusyError, match=f"process {os.getpid()} has held"), store.lock(tmp_path / "l", 0.01):
            pass


@pytest.mark.parametrize(
    ("owner", "said"),
    [(b"", "another process has held"), (b"999999999", "is gone, but one it started"), (b"1", "process 1 has held")],
)
def test_who_holds_a_lock_is_said_as_far_as_it_is_known(tmp_path: Path, owner: bytes, said: str) -> None:
    import fcntl

    with (tmp_path / "l").open("wb") as held:
        held.write(owner)
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match=said), store.lock(tmp_path / "l", 0.01):
            pass


def test_a_lock_is_held_by_one_and_says_by_whom(tmp_path: Path) -> None:
    with store.lock(tmp_path / "l"):
        for _ in range(2):  # asking does not wipe the owner's number
            with pytest.raises(BusyError, match=f"process {os.getpid()} has held"), store.lock(tmp_path / "l", 0.01):
                pass
    with store.lock(tmp_path / "l", 0):
        pass


def test_a_dead_owner_holds_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    child = os.fork()
    if child == 0:
        with store.lock(tmp_path / "l"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with caplog.at_level("INFO", "tritium"), store.lock(tmp_path / "l", 0):
        pass
    assert f"process {child} ended without giving the lock back" in caplog.text


def test_a_lock_waits_for_its_turn(tmp_path: Path) -> None:
    counter = tmp_path / "n"
    counter.write_text("0")
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            for _ in range(10):
                with store.lock(tmp_path / "l"):
                    counter.write_text(str(int(counter.read_text()) + 1))
            os._exit(0)
        children.append(child)
    assert [os.waitpid(c, 0)[1] for c in children] == [0] * 8
    assert counter.read_text() == "80"


# ---- file systems


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("/dev/sda / ext4 rw 0 0\nserver:/x {at} nfs4 rw 0 0", "nfs4"),
        ("server:/ / nfs rw 0 0\n/dev/sdb {at} xfs rw 0 0", ""),
        ("//host/x {at} cifs rw 0 0\n/dev/sdb {at} ext4 rw 0 0", ""),
        ("me@host: {at} fuse.sshfs rw 0 0", "fuse.sshfs"),
        ("short", ""),
    ],
)
def test_a_network_file_system_is_known_by_its_mount(tmp_path: Path, mounts: str, expected: str) -> None:
    place = tmp_path / "a folder"
    place.mkdir()
    (tmp_path / "mounts").write_text(mounts.format(at=str(place).replace(" ", "\\040")))
    assert files.network_filesystem(place / "below", tmp_path / "mounts") == expected


def test_an_unknown_table_of_mounts_forbids_nothing(tmp_path: Path) -> None:
    assert files.network_filesystem(tmp_path, tmp_path / "no") == ""


@pytest.mark.parametrize(("flags", "code", "expected"), [(0x1000, 0, ""), (0, 0, "nfs"), (0, -1, "")])
def test_macos_says_by_statfs_what_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, code: int, expected: str
) -> None:
    class System:
        @staticmethod
        def statfs(path: bytes, space: Any) -> int:
            space.raw = bytes(64) + flags.to_bytes(4, sys.byteorder) + bytes(4) + b"nfs".ljust(4024, b"\0")
            return code

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(files.ctypes, "CDLL", lambda _: System)
    assert files.network_filesystem(tmp_path) == expected

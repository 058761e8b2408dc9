"""Files and folders that are replaced in one step, and what killed writers leave."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tritium.errors import FormatError
from tritium.machine import files

EXCHANGES = pytest.param("exchange", id="exchange")
TWO_STEPS = pytest.param("two steps", id="two steps")


def listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def model_folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "a").write_text(text)
    (path / "b").write_text(text)
    return path


def fill(folder: Path, text: str) -> None:
    for name in ("a", "b"):
        (folder / name).write_text(text)


def without_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "rename_with", lambda flags, source, target: False)


def in_a_child(body: Callable[[], None]) -> int:
    """Run in a process of its own and return how it ended."""
    child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(70)
    return os.waitpid(child, 0)[1]


def kill_at(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Make call `number` of a function of os end this process, before it is made."""
    real, calls = getattr(os, name), 0

    def call(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **more)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("way", [EXCHANGES, TWO_STEPS])
def test_a_folder_is_replaced_whole(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "two steps":
        without_exchange(monkeypatch)
    target = model_folder(tmp_path / "m", "old")
    with files.replacing(target, folder=True) as temporary:
        fill(temporary, "new")
        assert (target / "a").read_text() == "old"
    assert [(target / n).read_text() for n in ("a", "b")] == ["new", "new"]
    assert listing(tmp_path) == ["m"]


@pytest.mark.parametrize("way", [EXCHANGES, TWO_STEPS])
def test_a_failure_leaves_the_old_folder(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "two steps":
        without_exchange(monkeypatch)
        real = os.replace

        def fail(source: Path, target: Path) -> None:
            if str(source).endswith(".tmp"):
                raise OSError(errno.EIO, "broken")
            real(source, target)

        monkeypatch.setattr(os, "replace", fail)
    target = model_folder(tmp_path / "m", "old")

    def write() -> None:
        with files.replacing(target, folder=True) as temporary:
            fill(temporary, "new")
            if way == "exchange":
                raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        write()
    assert (target / "a").read_text() == "old"
    assert listing(tmp_path) == ["m"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="renameat2 is Linux's")
def test_two_names_are_exchanged_in_one_step(tmp_path: Path) -> None:
    one, two = model_folder(tmp_path / "1", "one"), model_folder(tmp_path / "2", "two")
    if not files.rename_with(files.EXCHANGE, one, two):
        pytest.skip("this file system exchanges no names")
    assert ((one / "a").read_text(), (two / "a").read_text()) == ("two", "one")


@pytest.mark.parametrize("number", [1, 2])
def test_a_folder_survives_a_kill_between_two_renames(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_exchange(monkeypatch)
    target = model_folder(tmp_path / "m", "old")

    def write() -> None:
        kill_at(monkeypatch, "replace", number)
        with files.replacing(target, folder=True) as temporary:
            fill(temporary, "new")

    assert os.WIFSIGNALED(in_a_child(write))
    if number == 2:  # its name was taken away, and nothing had it yet
        assert not target.exists()
        aside = files.set_aside(target)
        assert aside is not None
        assert (aside / "a").read_text() == "old"
    files.sweep(tmp_path)
    assert (target / "a").read_text() == "old"
    assert listing(tmp_path) == ["m"]


@pytest.mark.parametrize("folder", [False, True])
def test_the_next_writer_of_any_name_sweeps_what_a_killed_one_left(tmp_path: Path, folder: bool) -> None:
    def write() -> None:
        with files.replacing(tmp_path / "m", folder=folder):
            os.kill(os.getpid(), signal.SIGKILL)

    assert os.WIFSIGNALED(in_a_child(write))
    assert len(listing(tmp_path)) == 1
    files.write_bytes(tmp_path / "other", b"x")
    assert listing(tmp_path) == ["other"]


def test_the_temporary_of_a_living_writer_stays(tmp_path: Path) -> None:
    with files.replacing(tmp_path / "m", folder=True) as first:
        with files.replacing(tmp_path / "m", folder=True) as second:
            fill(second, "second")
        assert first.is_dir()
        fill(first, "first")
    assert (tmp_path / "m" / "a").read_text() == "first"
    assert listing(tmp_path) == ["m"]


@pytest.mark.parametrize(
    "name", [".m.tmp", ".m.12.0123abcd.tmp", "m.12.0123abcd.tritium.tmp", ".m.12.0123abcd.tritium.tmp.gguf"]
)
def test_files_of_others_are_not_swept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("theirs")
    files.sweep(tmp_path)
    assert listing(tmp_path) == [name]


def test_a_sweep_follows_no_link(tmp_path: Path) -> None:
    victim = model_folder(tmp_path / "victim", "mine")
    (tmp_path / ".m.12.0123abcd.tritium.tmp").symlink_to(victim)
    left = tmp_path / ".m.13.0123abcd.tritium.tmp"
    left.mkdir()
    (left / "link").symlink_to(victim)
    files.sweep(tmp_path)
    assert (victim / "a").read_text() == "mine"
    assert not left.exists()


def test_what_another_user_owns_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / ".m.12.0123abcd.tritium.tmp"
    left.write_text("theirs")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    files.sweep(tmp_path)
    assert left.exists()


def test_a_planted_link_is_never_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    names = iter([tmp_path / "planted", tmp_path / "free"])
    (tmp_path / "planted").symlink_to(victim)
    monkeypatch.setattr(files, "unfinished", lambda target: next(names))
    with pytest.raises(FileExistsError):
        files.create(tmp_path / "m", folder=False)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("way", [EXCHANGES, TWO_STEPS])
@pytest.mark.parametrize("folder", [False, True])
def test_a_target_that_appeared_meanwhile_is_not_replaced(
    tmp_path: Path, way: str, folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "two steps":
        without_exchange(monkeypatch)
    target = tmp_path / "m"

    def write() -> None:
        with files.replacing(target, folder=folder, overwrite=False) as temporary:
            if folder:
                fill(temporary, "new")
                model_folder(target, "theirs")
            else:
                temporary.write_text("new")
                target.write_text("theirs")

    with pytest.raises(OSError, match=r"exists|not empty"):
        write()
    assert (target / "a" if folder else target).read_text() == "theirs"
    assert listing(tmp_path) == ["m"]


def test_a_new_file_has_the_mode_of_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "m"
    target.write_text("old")
    for mode in (0o600, 0o400, 0o644):
        target.chmod(mode)
        files.write_bytes(target, b"new")
        assert target.stat().st_mode & 0o777 == mode


def test_names_of_every_length_have_temporaries(tmp_path: Path) -> None:
    for name in ("x" * 255, "ä" * 127, "名" * 85):
        files.write_bytes(tmp_path / name, b"x")
        assert listing(tmp_path) == [name]
        (tmp_path / name).unlink()


def test_a_file_system_without_locks_is_swept_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    left = tmp_path / ".m.12.0123abcd.tritium.tmp"
    left.write_text("perhaps alive")
    files.write_bytes(tmp_path / "m", b"x")
    assert left.exists()
    assert (tmp_path / "m").read_bytes() == b"x"


def test_a_scratch_folder_is_gone_at_the_end(tmp_path: Path) -> None:
    with files.scratch(tmp_path / "m") as folder:
        (folder / "x").write_text("x")
    assert listing(tmp_path) == []


def test_it_imports_little() -> None:
    code = "import sys, tritium.machine.files; print('tritium.io' in sys.modules, 'tritium.perf' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.split() == ["False", "False"]


# ---- reading


def test_reading_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 1000)
    tracemalloc.start()
    try:
        assert files.read_bytes(tmp_path / "f") == b"x" * 1000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11])
def test_a_file_is_read_up_to_its_bound(tmp_path: Path, size: int) -> None:
    (tmp_path / "f").write_bytes(b"x" * size)
    if size <= 10:
        assert files.read_bytes(tmp_path / "f", 10) == b"x" * size
    else:
        with pytest.raises(FormatError, match="larger than"):
            files.read_bytes(tmp_path / "f", 10)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc, whose files say that they are empty")
def test_a_file_larger_than_it_says_is_read_whole() -> None:
    assert b"VmPeak" in files.read_bytes("/proc/self/status")

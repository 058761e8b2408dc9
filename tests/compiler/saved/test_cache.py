"""A folder of optimised programs: loaded by other processes, checked, bounded, and written again where it was damaged."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tritium as tt
from tritium.compiler.saved import cache, file
from tritium.compiler.saved.cache import SUFFIX, ProgramCache

W = tt.randn((8, 8), seed=1)
MASK = tt.ones(8)
X = tt.randn((4, 8), seed=2)


def network(x: tt.Tensor) -> tuple[tt.Tensor, tt.Tensor]:
    with tt.scope("first"):
        h = tt.gelu(x @ W) * (MASK + tt.arange(8) * 2.0)
    return tt.softmax(h + 1), h.sum(axis=0)


def compiled(folder: Path, fn: Any = network, **options: Any) -> Any:
    return tt.compile(fn, cache=folder, **options)


def counts(fn: Any) -> tuple[int, int]:
    return fn._cache.loaded, fn._cache.written


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def same(mine: Any, theirs: Any) -> None:
    assert [(x.spec, x.numpy().tobytes()) for x in mine] == [(x.spec, x.numpy().tobytes()) for x in theirs]


def test_a_second_function_loads_what_the_first_compiled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = compiled(tmp_path / "new" / "folder"), compiled(tmp_path / "new" / "folder")
    same(first(X), network(X))
    assert counts(first) == (0, 1)
    same(second(X), network(X))
    assert counts(second) == (1, 0)
    assert second.program(X).graph.text({}) == first.program(X).graph.text({})
    assert second.explain(X) == first.explain(X)
    assert "# first" in str(second.graph(X))
    second.program(X).verify(X)
    assert not caplog.records


def test_captured_tensors_are_not_stored_and_stay_those_of_the_function(tmp_path: Path) -> None:
    w = tt.randn((256, 256), seed=3)
    fn = lambda x: x @ w + 1
    compiled(tmp_path, fn)(tt.ones((2, 256)))
    (path,) = files_in(tmp_path)
    assert path.stat().st_size < w.nbytes // 4
    again = compiled(tmp_path, fn)
    again(tt.ones((2, 256)))
    assert counts(again) == (1, 0)
    w += 1
    same((again(tt.ones((2, 256))),), (fn(tt.ones((2, 256))),))


@pytest.mark.parametrize(
    "other",
    [
        lambda x: (tt.softmax(tt.gelu(x @ W) * (MASK + tt.arange(8) * 2.0) + 2), x.sum(axis=0)),
        lambda x: (tt.softmax(x), x),
    ],
)
def test_another_graph_has_a_file_of_its_own(tmp_path: Path, other: Any) -> None:
    compiled(tmp_path)(X)
    fn = compiled(tmp_path, other)
    same(fn(X), other(X))
    assert counts(fn) == (0, 1)
    assert len(files_in(tmp_path)) == 2


def test_layouts_shapes_and_passes_have_files_of_their_own(tmp_path: Path) -> None:
    compiled(tmp_path)(X)
    for fn, x in (
        (compiled(tmp_path), X[:3]),
        (compiled(tmp_path), tt.randn((8, 4), seed=1).T),
        (compiled(tmp_path, disable="fuse"), X),
    ):
        same(fn(x), fn.fn(x))
        assert counts(fn) == (0, 1)


def test_another_version_or_machine_compiles_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(tmp_path)(X)
    (path,) = files_in(tmp_path)
    monkeypatch.setattr(file, "version", lambda: "0.0.1")
    fn = compiled(tmp_path)
    same(fn(X), network(X))
    assert counts(fn) == (0, 1)
    other = next(p for p in files_in(tmp_path) if p != path)
    monkeypatch.undo()
    other.replace(path)  # a file of another version under the name of this one
    fn = compiled(tmp_path)
    same(fn(X), network(X))
    assert counts(fn) == (0, 1)
    assert counts_after(tmp_path) == (1, 0)


def counts_after(folder: Path) -> tuple[int, int]:
    fn = compiled(folder)
    same(fn(X), network(X))
    return counts(fn)


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "bit", "other"])
def test_a_damaged_file_is_ignored_with_a_warning_and_written_again(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    compiled(tmp_path)(X)
    (path,) = files_in(tmp_path)
    data = path.read_bytes()
    if damage == "other":  # a good program, of another function
        compiled(tmp_path / "other", lambda x: (x + 1, x.sum(axis=0)))(X)
        damaged = files_in(tmp_path / "other")[0].read_bytes()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        damaged = {"empty": b"", "cut": data[:-40], "text": b"no program", "bit": flipped}[damage]
    path.write_bytes(damaged)
    fn = compiled(tmp_path)
    same(fn(X), network(X))
    assert counts(fn) == (0, 1)
    assert "cannot be used, and is written again" in caplog.text
    assert counts_after(tmp_path) == (1, 0)


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    fn = compiled(tmp_path / "file")
    same(fn(X), network(X))
    assert counts(fn) == (0, 0)
    assert [r.levelno for r in caplog.records] == [logging.WARNING] * len(caplog.records)
    assert "was not written to" in caplog.text


def test_the_folder_is_bounded_and_keeps_what_is_used(tmp_path: Path) -> None:
    folder = ProgramCache(tmp_path, max_files=3)

    def load(k: int, folder: ProgramCache = folder) -> None:
        fn = compiled(tmp_path, lambda x: tt.exp(x) + float(k))
        fn._cache = folder
        fn(X)

    for k in (0, 1, 2):
        load(k)
        os.utime(max(files_in(tmp_path), key=os.path.getmtime), (k, k))
    load(0)  # used now: 1 is the one that goes
    load(3)
    assert len(files_in(tmp_path)) == 3
    before = folder.loaded, folder.written
    load(0)
    load(1)
    assert (folder.loaded, folder.written) == (before[0] + 1, before[1] + 1)
    load(7, ProgramCache(tmp_path, max_bytes=1))
    assert len(files_in(tmp_path)) == 1


def test_patterns_and_attributes_that_no_file_holds_are_compiled(tmp_path: Path) -> None:
    tt.add_pattern(tt.FusionPattern("relu_add", ["relu", "add"], lambda x, y: tt.maximum(x, 0.0) + y))
    try:
        fn = compiled(tmp_path, lambda x: tt.relu(x) + x)
        fn(X)
        assert counts(fn) == (0, 0)
    finally:
        tt.remove_pattern("relu_add")


def test_donated_arguments_and_numbers_are_served(tmp_path: Path) -> None:
    def step(cache: tt.Tensor, rate: float) -> tt.Tensor:
        cache += rate
        return cache * rate

    for _ in range(2):
        fn = tt.compile(step, donate="cache", cache=tmp_path)
        for rate in (0.5, 1.5, 2.5, 3.5, 4.5):
            cache_tensor = tt.ones(4)
            assert fn(cache_tensor, rate).tolist() == [(1 + rate) * rate] * 4
            assert cache_tensor.tolist() == [1 + rate] * 4
    assert counts(fn) == (4, 0)


SCRIPT = """
import sys
import tritium as tt
w = tt.randn((8, 8), seed=1)
fn = tt.compile(lambda x: tt.softmax(tt.gelu(x @ w) + 1), cache=sys.argv[1])
x = tt.randn((4, 8), seed=2)
assert (fn(x) == fn.fn(x)).all()
print(fn._cache.loaded, fn._cache.written)
"""


def test_a_second_process_loads(tmp_path: Path) -> None:
    run = lambda: subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    assert run() == ["0", "1"]
    assert run() == ["1", "0"]


def test_a_copy_of_a_function_uses_the_same_folder(tmp_path: Path) -> None:
    import copy

    compiled(tmp_path)(X)
    fn = copy.copy(compiled(tmp_path))
    fn(X)
    assert counts(fn) == (1, 0)
    assert cache.MAX_BYTES == 256 << 20

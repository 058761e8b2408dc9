"""Ceilings: measured once per machine, kept in a file that is never believed when it is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import tritium as tt
from tritium.buffer import native
from tritium.errors import ArgumentError
from tritium.machine import facts
from tritium.machine.ceilings import Ceiling, Ceilings, as_dict, dram_bytes, scaled, working_set
from tritium.machine.facts import Cache, Machine

MODULE = sys.modules["tritium.machine.ceilings"]  # tt.ceilings is the function
MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Loops that answer at once; the thread counts they were asked for."""
    asked: list[int] = []

    def loops(levels: Any, threads: int, samples: int, seconds: float) -> list[Ceiling]:
        asked.append(threads)
        return [
            Ceiling("fast_f32", "f32", threads, "fma", (1e9 * threads, 3e9 * threads, 2e9 * threads)),
            Ceiling("slow", "int8", threads, "madd", (1e9,)),
            Ceiling("quick", "int8", threads, "dot", (4e9,)),
            Ceiling("gone", "int8", threads, "dot", (), "this CPU has none"),
            Ceiling("DRAM read", "bytes", threads, "1 MiB", (2e9,)),
        ]

    monkeypatch.setattr(MODULE, "_native_loops", loops)
    monkeypatch.setattr(MODULE, "_numpy_loops", loops)
    return asked


def the_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def counts() -> list[int]:
    return sorted({1, facts.this_machine().usable})


def test_the_second_call_reads_the_file(folder: Path, measured: list[int]) -> None:
    first = tt.ceilings()
    second = tt.ceilings()
    assert measured == counts()
    assert first == second
    assert first.path == str(the_file(folder))


def test_refresh_measures_again(measured: list[int]) -> None:
    tt.ceilings()
    tt.ceilings(refresh=True)
    assert measured == counts() * 2


def test_a_full_request_does_not_take_quick_figures(measured: list[int]) -> None:
    assert tt.ceilings(quick=True).quick
    assert not tt.ceilings().quick
    assert measured == counts() * 2


def test_a_quick_request_takes_full_figures(measured: list[int]) -> None:
    tt.ceilings()
    assert not tt.ceilings(quick=True).quick
    assert measured == counts()


def test_another_thread_count_is_added_to_the_file(measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "this_machine", lambda: replace(facts.this_machine(), usable=4))
    assert tt.ceilings(threads=[1]).threads == (1,)
    assert tt.ceilings(threads=[3]).threads == (1, 3)
    assert tt.ceilings(threads=[1, 3]).threads == (1, 3)
    assert measured == [1, 3]


@pytest.mark.parametrize(
    ("threads", "says"),
    [
        (0, "this process may use"),
        (-1, "this process may use"),
        (10_000, "this process may use"),
        (1.5, "threads must be an integer"),
    ],
)
def test_thread_counts_that_cannot_be_are_refused(measured: list[int], threads: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        tt.ceilings(threads=[threads])
    assert measured == []


@pytest.mark.parametrize(
    "change",
    [{"cpu": "another"}, {"flags": "0"}, {"usable": 77, "affinity": "0"}, {"memory_gib": 0.5}, {"system": "x"}],
)
def test_another_machine_has_a_file_of_its_own(
    folder: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    tt.ceilings(threads=[1])
    other = replace(facts.this_machine(), **change)
    monkeypatch.setattr(MODULE, "this_machine", lambda: other)
    tt.ceilings(threads=[1])
    assert measured == [1, 1]
    assert len(list(folder.iterdir())) == 2


def cut(text: str) -> str:
    return text[: len(text) // 2]


def with_schema(text: str) -> str:
    return json.dumps(json.loads(text) | {"schema": 0})


def with_other_samples(text: str) -> str:
    return text.replace("3000000000.0", "9000000000.0")


def resealed(change: Callable[[dict[str, Any]], None]) -> Callable[[str], str]:
    """A file whose checksum is right and whose contents are not."""

    def spoil(text: str) -> str:
        document = json.loads(text)
        change(document["ceilings"])
        return json.dumps(document | {"sha256": facts.digest(document["ceilings"])})

    return spoil


SPOILT: dict[str, tuple[Callable[[str], str], str]] = {
    "empty": (lambda text: "", "Expecting value"),
    "cut": (cut, ""),
    "another kind": (lambda text: "[]", "not a JSON object"),
    "deep": (lambda text: "[" * 100_000, ""),
    "huge": (lambda text: text + " " * (2 << 20), "larger than"),
    "old schema": (with_schema, "schema 0"),
    "changed": (with_other_samples, "checksum"),
    "no body": (lambda text: '{"schema": 1}', "checksum"),
    "another machine": (resealed(lambda body: body["machine"].update(cpu="another")), "another machine"),
    "negative": (resealed(lambda body: body["rows"][0].update(samples=[-1.0])), "not positive rates"),
    "text": (resealed(lambda body: body["rows"][0].update(samples=["fast"])), "not positive rates"),
    "no samples": (resealed(lambda body: body["rows"][0].update(samples=[])), "neither"),
    "no rows": (resealed(lambda body: body.pop("rows")), "rows"),
    "more fields": (resealed(lambda body: body.update(more=1)), "more"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_file_is_reported_and_measured_again(
    folder: Path, measured: list[int], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    good = tt.ceilings(threads=[1])
    spoil, said = SPOILT[name]
    the_file(folder).write_text(spoil(the_file(folder).read_text()))
    again = tt.ceilings(threads=[1])
    assert measured == [1, 1]
    assert again.rows == good.rows
    assert "is not used" in caplog.text
    assert said in caplog.text
    caplog.clear()
    tt.ceilings(threads=[1])
    assert not caplog.text


def test_a_file_is_written_whole_or_not_at_all(
    folder: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tt.ceilings(threads=[1])
    before = the_file(folder).read_bytes()

    def fails(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    found = tt.ceilings(threads=[1], refresh=True)
    assert found.rows
    assert found.path == ""
    assert "No space left" in caplog.text
    assert the_file(folder).read_bytes() == before


def test_a_folder_that_cannot_be_made_is_reported(
    folder: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("TRITIUM_CACHE", str(folder / "file" / "below"))
    assert tt.ceilings(threads=[1]).rows
    assert "could not be written" in caplog.text


def test_json_has_every_sample_with_its_figures(measured: list[int]) -> None:
    told = json.loads(json.dumps(as_dict(tt.ceilings(threads=[1])), allow_nan=False))
    assert told["schema"] == 1
    assert told["machine"]["cpu"]
    first, *_, gone, _ = told["rows"]
    assert first == {
        "name": "fast_f32",
        "kind": "f32",
        "threads": 1,
        "how": "fma",
        "samples": [1e9, 3e9, 2e9],
        "absent": "",
        "unit": "FLOP/s",
        "best": 3e9,
        "median": 2e9,
        "spread": 1.0,
    }
    assert gone["absent"] == "this CPU has none"
    assert gone["samples"] == []


def test_a_share_is_of_the_best_sample(measured: list[int]) -> None:
    found = tt.ceilings(threads=[1])
    assert found.share(gflops=1.5) == 0.5
    assert found.share(gops=1.0) == 0.25  # of the faster instruction
    assert found.share(gops=1.0, name="slow") == 1.0
    assert found.share(gbs=1.0) == 0.5
    assert found.share(gops=1.0, name="gone") is None
    assert str(found.of("gone")) == "not measured: this CPU has none"
    assert str(found.of("fast_f32")) == "3 GFLOP/s (median 2 GFLOP/s, spread 100%)"


def test_samples_that_differ_widely_are_told(measured: list[int]) -> None:
    calm = tt.ceilings(threads=[1])
    assert not calm.disturbed  # one row of four
    wide = [replace(row, samples=(1e9, 2e9)) for row in calm.rows if row.samples]
    assert replace(calm, rows=tuple(wide)).disturbed


def test_a_share_of_nothing_or_of_two_things_is_refused(measured: list[int]) -> None:
    found = tt.ceilings(threads=[1])
    with pytest.raises(ArgumentError, match="0 rates"):
        found.share()
    with pytest.raises(ArgumentError, match="2 rates"):
        found.share(gops=1, gbs=1)
    with pytest.raises(ArgumentError, match="in OP/s, the rate given in B/s"):
        found.share(gbs=1, name="slow")


def test_an_unknown_name_or_thread_count_says_what_there_is(measured: list[int]) -> None:
    found = tt.ceilings(threads=[1])
    with pytest.raises(ArgumentError, match="Did you mean 'DRAM read'"):
        found.of("DRAM reads")
    with pytest.raises(ArgumentError, match=r"with 1 threads, not 3; measure with tt.ceilings\(threads=\[3\]\)"):
        found.of("slow", 3)
    with pytest.raises(ArgumentError, match="there are f32, int8, bytes"):
        found.peak("f16")
    assert found.peak("int8", 3) is None


def test_caches_are_read_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_allowed", lambda: [2, 3, 8])
    levels = [
        ("1", "Data", "48K", "2,8"),
        ("1", "Instruction", "32K", "2"),
        ("3", "Unified", "30M", "0-9"),
        ("2", "Unified", "x", ""),
    ]
    for i, values in enumerate(levels):
        index = tmp_path / "cpu2" / "cache" / f"index{i}"
        index.mkdir(parents=True)
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            (index / name).write_text(f"{value}\n")
    assert facts.caches(tmp_path) == (Cache(1, 48 << 10, 2), Cache(3, 30 * MIB, 3))


LEVELS = (Cache(1, 32 << 10, 2), Cache(2, MIB, 2), Cache(3, 32 * MIB, 8))


def test_a_working_set_fits_its_level_and_not_the_one_below() -> None:
    assert [working_set(LEVELS, i, 1) for i in range(3)] == [(16 << 10, ""), (256 << 10, ""), (8 * MIB, "")]
    assert [working_set(LEVELS, i, 8)[0] for i in range(3)] == [8 << 10, 128 << 10, 2 * MIB]


def test_a_level_no_larger_than_the_one_below_is_not_measured() -> None:
    nbytes, why = working_set((Cache(1, 32 << 10, 1), Cache(2, 4 * MIB, 1), Cache(3, 8 * MIB, 2)), 2, 2)
    assert nbytes == 0
    assert why == "half of a thread's share of L3 is 2 MiB, L2 holds 4 MiB"


def test_memory_is_walked_in_twice_the_last_cache_or_not_at_all() -> None:
    usable = facts.this_machine().usable
    big = (Cache(3, 300 * MIB, usable),)
    assert dram_bytes((Cache(3, 8 * MIB, usable),), 64 << 30) == (256 * MIB, "")
    assert dram_bytes(big, 64 << 30) == (600 * MIB, "")
    assert "a quarter of the free memory is 256 MiB" in dram_bytes(big, 1 << 30)[1]
    assert "too close" in dram_bytes((Cache(3, 4 << 30, usable),), 64 << 30)[1]


def test_a_fingerprint_is_stable_and_says_what_is_in_it() -> None:
    here = facts.this_machine()
    assert here == facts.this_machine()
    assert here.key == facts.this_machine().key
    assert set(asdict(here)) == set(Machine.__dataclass_fields__)
    assert here.usable <= here.cpus
    assert here.loops == ("numpy" if native is None else "native")


def test_rates_are_told_with_three_digits() -> None:
    assert scaled(743.4e9, "OP/s") == "743 GOP/s"
    assert scaled(5.871e12, "OP/s") == "5.87 TOP/s"
    assert scaled(999.9e9, "OP/s") == "1 TOP/s"
    assert scaled(0.5e9, "B/s") == "0.5 GB/s"
    assert scaled(0.5e12, "OP/s", like=2e12) == "0.5 TOP/s"


@pytest.mark.skipif(native is None, reason="native loops")
def test_every_native_instruction_is_measured_or_says_why_not() -> None:
    for name, kind, instruction, absence in native.ceiling_peaks():
        assert kind in ("f32", "int8")
        assert instruction
        if absence:
            with pytest.raises(ValueError, match="not available here"):
                native.ceiling_peak_rates(name, 1, 1, 0.001)
        else:
            assert all(rate > 0 for rate in native.ceiling_peak_rates(name, 2, 2, 0.001))


@pytest.mark.skipif(native is None, reason="native loops")
@pytest.mark.parametrize("nbytes", [1, 5000, 100_000, 20 * MIB + 77])
def test_every_native_stream_takes_any_size(nbytes: int) -> None:
    ways = ["read", "read4", "copy", "copy_nt", "triad", "triad_nt"]
    rates = native.ceiling_stream_rates(ways, nbytes, 2, 2, 0.0005)
    assert [len(of) for of in rates] == [2] * 6
    assert all(rate > 0 for of in rates for rate in of)


@pytest.mark.skipif(native is None, reason="native loops")
@pytest.mark.parametrize("bad", [(0, 1, 0.001), (1, 0, 0.001), (1, 1, 0.0), (1, 1, float("nan")), (5000, 1, 0.001)])
def test_native_loops_refuse_what_cannot_be(bad: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="ceilings: "):
        native.ceiling_peak_rates(native.ceiling_peaks()[0][0], *bad)
    with pytest.raises(ValueError, match="ceilings: "):
        native.ceiling_stream_rates(["read"], 1000, *bad)
    with pytest.raises(ValueError, match="no stream 'write'"):
        native.ceiling_stream_rates(["write"], 1000, 1, 1, 0.001)


def told(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tritium", "ceilings", "--quick", *args]
    environment = os.environ | {"TRITIUM_CACHE": str(folder)} | env
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, encoding="utf-8")


@pytest.mark.slow
def test_the_command_measures_and_shows_a_table(folder: Path) -> None:
    done = told(folder)
    assert done.returncode == 0, done.stderr
    for said in ("compute, f32", "memory", "1 thread", "DRAM read", "FLOP/s", "GB/s", f"Kept in {the_file(folder)}"):
        assert said in done.stdout
    before = the_file(folder).read_bytes()
    rows = json.loads(told(folder, "--json").stdout)["rows"]
    assert the_file(folder).read_bytes() == before
    assert all(bool(row["samples"]) != bool(row["absent"]) for row in rows)


@pytest.mark.slow
def test_without_native_code_numpy_measures_and_says_so(folder: Path) -> None:
    done = told(folder, "--json", TRITIUM_PURE="1")
    assert done.returncode == 0, done.stderr
    found = {(row["name"], row["threads"]): row for row in json.loads(done.stdout)["rows"]}
    assert found["numpy_f32", 1]["best"] > 0
    assert "lower bound" in found["numpy_f32", 1]["how"]
    assert "TRITIUM_PURE is set" in found["int8", 1]["absent"]


def test_ceilings_compare_equal_by_value(measured: list[int]) -> None:
    assert isinstance(tt.ceilings(threads=[1]), Ceilings)
    assert tt.ceilings(threads=[1]) == tt.ceilings(threads=[1])

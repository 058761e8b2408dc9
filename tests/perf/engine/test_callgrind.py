"""Instructions counted by callgrind: who is asked, what is kept, and what is said where it cannot count."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from measured import run
from tritium.perf.engine import callgrind
from tritium.perf.engine.worker import Worker
from tritium.perf.meters.counters import Counter
from tritium.perf.records.case import Arm, Case, Context, Made, Recipe
from tritium.perf.records.run import Run, Series, not_measured

LONG = pytest.mark.skipif(
    "TRITIUM_LONG" not in os.environ or shutil.which("valgrind") is None,
    reason="Python starts for a minute in valgrind: TRITIUM_LONG=1, and valgrind",
)


def case(name: str) -> Case:
    return Case(name, Recipe("tritium.perf.gate.selftest_cases:spin", {}), Context(name))


def with_counts(name: str, series: Series) -> Run:
    return replace(run(name), series=(*(s for s in run(name).series if s.metric != "instructions"), series))


def lacking(name: str) -> Run:
    return with_counts(name, not_measured("instructions", "1", "no PMU"))


def counted(value: float) -> Series:
    return Series("instructions", "1", (((value,),),), source=callgrind.SOURCE, exact=True)


def test_only_what_the_processor_did_not_count_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def count(cases: list[Case], arm: Arm) -> dict[str, Series]:
        asked.extend(c.name for c in cases)
        return {c.name: counted(7.0) for c in cases}

    monkeypatch.setattr(callgrind, "_counted", count)
    known = with_counts("a", replace(counted(5.0), source="perf_event_open"))
    failed = replace(lacking("c"), status="failed")
    arm = Arm(known.arm)
    first, second, third = callgrind.filled([known, lacking("b"), failed], [case("a"), case("b"), case("c")], [arm])
    assert asked == ["b"]
    assert first == known
    assert second.of("instructions") == counted(7.0)
    assert third == failed


def test_without_valgrind_both_reasons_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callgrind.shutil, "which", lambda _: None)
    only = lacking("a")
    (out,) = callgrind.filled([only], [case("a")], [Arm(only.arm)])
    series = out.of("instructions")
    assert series is not None
    assert "no PMU" in series.reason
    assert "apt-get install valgrind" in series.reason


@pytest.mark.parametrize(("files", "total"), [(["1", "2"], 123), (["1"], None), (["1", "2", "3"], None), ([], None)])
def test_the_second_of_two_files_holds_the_calls(tmp_path: Path, files: list[str], total: int | None) -> None:
    for i, name in enumerate(files):
        (tmp_path / f"out.{name}").write_text(f"events: Ir\nfn=(1) f\n1 2\n\ntotals: {122 + i}\n")
    (tmp_path / "out").write_text("")
    assert callgrind._total(tmp_path) == total
    assert not list(tmp_path.glob("out.*"))


def test_a_worker_calls_between_two_marks() -> None:
    worker, calls = Worker(1), [0]

    def call() -> None:
        calls[0] += 1

    worker.made["a"] = Made(call)
    assert worker.answer({"do": "marked", "case": "a", "calls": 3}) == {"status": "ok"}
    assert calls == [3]


def test_instructions_are_exact_and_cycles_are_not() -> None:
    assert [Counter(name).exact for name in ("instructions", "cycles")] == [True, False]


@LONG
def test_callgrind_counts_the_same_work_alike_and_more_work_as_more() -> None:
    from tritium.perf.suites import suites

    options = suites.options_of("compare", quick=True).changed(
        operations=("add",), tensor_sizes=((64, 64), (128, 128)), data_types=("f32",), peers=("none",), devices=("cpu",)
    )
    grid = suites.grid(options)
    first, again = (callgrind._counted(grid.cases, grid.arms[0]) for _ in range(2))
    counts = [[s.flat[0] for s in found.values()] for found in (first, again)]
    assert counts[0] == pytest.approx(counts[1], rel=0.01)
    assert counts[0][1] > 2 * counts[0][0]

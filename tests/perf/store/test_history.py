"""The history of runs: kept for good, found again whatever happens to the index, and read as a trend."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from tritium.errors import FormatError, SaveError
from tritium.perf.records.run import Results, Run, Series, not_measured
from tritium.perf.store import history as module, results as store
from tritium.perf.store.history import History, canary_of, point_of, value_of
from tritium.perf.store.trends import (
    LEAST_RUNS,
    Point,
    describe,
    disturbed,
    joined,
    least_step,
    sensitivity,
    steps,
    trend,
)

sys.path.append(str(Path(__file__).parents[3] / "bench"))

from fault_calls import sample

CANARIES = ("canary compute", "canary memory")


def timed(
    seconds: float, number: int = 0, *, cpu: str = "a CPU", canary_s: float | None = 1e-4, threads: int = 2
) -> Results:
    """Results of one day, with one case, and the canaries unless there are none."""
    base = sample(number, cases=1)
    day = f"{datetime(2026, 1, 1) + timedelta(days=number):%Y-%m-%dT%H:%M:%SZ}"
    hard = replace(base.environment.hard, cpu=cpu, threads=threads)

    def run(case: str, s: float) -> Run:
        values = tuple((((s * f,),)) for f in (0.999, 1.0, 1.001, 1.0, 1.0))
        return Run(case, "tritium", base.runs[0].context, series=(Series("wall", "s", values),))

    canaries = [run(name, canary_s) for name in CANARIES] if canary_s else []
    return replace(
        base, created=day, runs=(run("case", seconds), *canaries), environment=replace(base.environment, hard=hard)
    )  # fmt: skip


def point(
    number: int, log: float, *, fingerprint: str = "m", canary: float | None = -9.0, half: float = 0.004
) -> Point:
    day = f"{datetime(2026, 1, 1) + timedelta(days=number):%Y-%m-%dT%H:%M:%SZ}"
    return Point(f"run-{number}", day, f"c{number}", fingerprint, 2, canary, "s", log, log - half, log + half, 15)


def noisy(levels: list[tuple[int, float]], seed: int = 0, sd: float = 0.004) -> list[Point]:
    rng = np.random.default_rng(seed)
    logs = [level + rng.normal(0, sd) for count, level in levels for _ in range(count)]
    return [point(i, log) for i, log in enumerate(logs)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "history"


# ---- keeping


def test_a_run_is_kept_as_it_was(folder: Path) -> None:
    with History(folder) as history:
        run = history.add(sample(5))
        assert history.load(run) == sample(5)
        (kept,) = history.runs()
    assert (kept.id, kept.suite, kept.commit, kept.threads) == (run, "5", f"{5:040x}", 2)
    assert store.load_with_digest(kept.path) == (sample(5), kept.sha256)


def test_the_same_results_twice_are_one_run(folder: Path) -> None:
    with History(folder) as history:
        assert history.add(sample(1)) == history.add(sample(1))
        assert len(history.runs()) == 1


def test_a_run_added_again_mends_its_damaged_file(folder: Path) -> None:
    with History(folder) as history:
        run = history.add(sample(1))
        (folder / "runs" / f"{run}.json").write_text("{")
        history.add(sample(1))
        assert history.load(run) == sample(1)


def test_the_default_folder_is_the_users_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path))
    with History() as history:
        history.add(sample(1))
    assert len(list((tmp_path / "history" / "runs").glob("*.json"))) == 1


def test_the_index_is_durable_by_its_settings(folder: Path) -> None:
    with History(folder) as history:
        asked = {
            name: history._data.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "user_version")
        }
    assert asked == {"journal_mode": "wal", "synchronous": 2, "user_version": module.VERSION}


def test_runs_are_sorted_by_the_moment_they_were_made(folder: Path) -> None:
    zones = ["2026-01-02T00:30:00+02:00", "2026-01-01T22:00:00Z", "2026-01-01T23:00:00"]
    with History(folder) as history:
        for i, created in enumerate(zones):
            history.add(sample(i, created=created))
        assert [k.suite for k in history.runs()] == ["1", "0", "2"]


def test_a_moment_that_is_none_is_refused(folder: Path) -> None:
    with History(folder) as history, pytest.raises(FormatError, match="a time such as"):
        history.add(sample(1, created="../../etc"))


def test_a_network_file_system_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "network_filesystem", lambda path: "nfs4")
    with pytest.raises(SaveError, match=r"nfs4.*TRITIUM_DATA"):
        History(folder)
    assert not folder.exists()


# ---- healing


def test_a_run_saved_before_a_crash_is_indexed_at_the_next_opening(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with History(folder) as history:
        history.add(sample(1))
        with monkeypatch.context() as patch:
            patch.setattr(History, "_insert", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                history.add(sample(2))
        assert len(history.runs()) == 1
    with History(folder) as history:
        assert [k.suite for k in history.runs()] == ["1", "2"]


def test_a_removed_file_is_forgotten(folder: Path) -> None:
    with History(folder) as history:
        run = history.add(sample(1))
        history.add(sample(2))
    (folder / "runs" / f"{run}.json").unlink()
    with History(folder) as history:
        assert [k.suite for k in history.runs()] == ["2"]
        assert len(history.series("case 0")) == 1


def test_the_index_rebuilt_is_the_index(folder: Path) -> None:
    with History(folder) as history:
        for n in range(4):
            history.add(sample(n))
        before = history.runs(), history.cases(), history.series("case 1", "wall", "numpy")
        assert history.rebuild() == 4
        assert (history.runs(), history.cases(), history.series("case 1", "wall", "numpy")) == before
    for file in folder.glob("index*"):
        file.unlink()
    with History(folder) as history:
        assert (history.runs(), history.cases(), history.series("case 1", "wall", "numpy")) == before


@pytest.mark.parametrize("damage", ["noise", "empty", "version", "page"])
def test_a_damaged_index_is_made_anew(folder: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    with History(folder) as history:
        for n in range(3):
            history.add(sample(n))
        index = history.index
    raw = index.read_bytes()
    index.write_bytes(
        {"noise": b"noise" * 2000, "empty": b"", "version": raw, "page": raw[:4096] + bytes([255]) * 4096 + raw[8192:]}[
            damage
        ]
    )
    if damage == "version":
        with sqlite3.connect(index) as data:
            data.execute("PRAGMA user_version = 99")
        data.close()
    with caplog.at_level(logging.WARNING, "tritium"), History(folder) as history:
        assert [k.suite for k in history.runs()] == ["0", "1", "2"]
    aside = list(folder.glob("*.aside"))
    assert len(aside) == (damage != "empty")
    assert ("made anew" in caplog.text) == (damage != "empty")


def test_a_damaged_run_file_is_named_and_the_rest_kept(folder: Path) -> None:
    with History(folder) as history:
        history.add(sample(1))
    (folder / "runs" / "bad.json").write_text("{")
    with History(folder) as history:
        assert list(history.unreadable) == ["bad.json"]
        assert len(history.runs()) == 1


def test_what_dead_writers_left_is_swept(folder: Path) -> None:
    History(folder).close()
    left = folder / "runs" / ".x.json.77.0123abcd.tritium.tmp"
    left.write_text("half")
    os.utime(left, (0, 0))
    History(folder).close()
    assert not left.exists()


def test_a_full_disk_under_the_index_loses_no_run(folder: Path) -> None:
    with History(folder) as history:
        history.add(sample(1))
        pages = history._data.execute("PRAGMA page_count").fetchone()[0]
        history._data.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(SaveError, match="full; the run file is kept"):
            history.add(sample(2, cases=300))
        assert len(history.runs()) == 1
    with History(folder) as history:
        assert [k.suite for k in history.runs()] == ["1", "2"]


def test_an_index_that_cannot_be_opened_says_why(folder: Path) -> None:
    (folder / "index-2.sqlite").mkdir(parents=True)
    with pytest.raises(SaveError, match="cannot be opened"):
        History(folder)


def test_an_index_that_cannot_be_made_is_not_put_aside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(data: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(module, "_create", full)
    with pytest.raises(SaveError, match="cannot be opened: database or disk is full"):
        History(folder)
    assert not list(folder.glob("*.aside"))


def test_an_index_damaged_while_open_says_what_to_do(folder: Path) -> None:
    with History(folder) as history:
        history._data.execute("DROP TABLE series")
        with pytest.raises(FormatError, match="made anew from the run files"):
            history.series("case 0")
        with pytest.raises(SaveError, match="the run file is kept"):
            history.add(sample(1))


# ---- series


def test_only_what_was_measured_is_in_a_series(folder: Path) -> None:
    good, bad = sample(1).runs[:2]
    absent = not_measured("energy", "J", "no_device")
    with History(folder) as history:
        history.add(
            replace(sample(1), runs=(replace(good, series=(*good.series, absent)), replace(bad, status="wrong")))
        )
        assert history.cases() == (("case 0", "wall", "tritium"),)


def test_a_series_holds_the_log_median_of_each_run(folder: Path) -> None:
    with History(folder) as history:
        for n, s in enumerate((1e-3, 2e-3)):
            history.add(timed(s, n))
        points = history.series("case")
        assert history.cases() == tuple(sorted((name, "wall", "tritium") for name in ("case", *CANARIES)))
    assert [p.value for p in points] == pytest.approx([1e-3, 2e-3])
    assert all(p.low < p.log_median < p.high and p.n == 5 for p in points)
    assert [p.canary for p in points] == pytest.approx([math.log(1e-4)] * 2)


def test_runs_with_other_threads_are_another_series(folder: Path) -> None:
    with History(folder) as history:
        for n, threads in enumerate((1, 2, 1)):
            history.add(timed(1e-3, n, threads=threads))
        assert [p.threads for p in history.series("case")] == [1, 1]


def test_a_case_nobody_measured_has_no_series(folder: Path) -> None:
    with History(folder) as history:
        assert history.series("no such") == ()
        assert history.changes("no such") == ()
        assert history.trend("no such") is None


def test_what_was_not_measured_or_is_zero_has_no_value() -> None:
    for series in (
        None,
        not_measured("energy", "J", "no_device"),
        Series("x", "B"),
        Series("x", "B", (((0.0,),),)),
        Series("x", "B", (((),),)),
    ):
        assert value_of(series) is None


def test_an_estimate_is_not_kept_as_a_measurement() -> None:
    assert value_of(Series("energy", "J", (((1.0,),),), kind="estimate")) is None


def test_one_generation_is_valued_by_its_rounds() -> None:
    value = value_of(Series("wall", "s", (((1.0,), (2.0,), (4.0,)),)))
    assert value is not None
    assert value == pytest.approx((math.log(2), 0.0, math.log(4), 3))


def test_the_canary_of_a_run_needs_both_canaries() -> None:
    whole = timed(1.0, canary_s=4e-4)
    assert canary_of(whole) == pytest.approx(math.log(4e-4))
    assert canary_of(replace(whole, runs=whole.runs[:-1])) is None


def test_a_release_needs_the_case_to_be_a_point() -> None:
    found = point_of(timed(1e-3), "case", "wall", "tritium")
    assert found is not None
    assert found.value == pytest.approx(1e-3)
    assert point_of(timed(1e-3), "other", "wall", "tritium") is None
    assert point_of(timed(1e-3), "case", "energy", "tritium") is None


# ---- trends


def test_a_machine_twice_as_fast_is_joined_by_its_canary() -> None:
    slow, fast = math.log(2e-3), math.log(1e-3)
    points = [point(0, slow, fingerprint="old", canary=math.log(2e-4)), point(1, fast, canary=math.log(1e-4))]
    assert [p.log_median for p in joined(points, "wall")] == pytest.approx([fast, fast])
    assert [p.log_median for p in joined(points, "peak_bytes")] == pytest.approx([slow, fast])
    assert len(joined(points, "energy")) == 1


def test_a_machine_without_a_canary_begins_anew() -> None:
    points = [point(0, 0.0, fingerprint="old", canary=None), point(1, 0.0), point(2, 0.0)]
    assert [p.run for p in joined(points, "wall")] == ["run-1", "run-2"]


def test_a_step_is_found_where_it_is() -> None:
    (step,) = steps(noisy([(20, 0.0), (20, 0.05)]))
    assert step.index == 20
    assert step.point.commit == "c20"
    assert step.ratio == pytest.approx(math.exp(0.05), rel=0.01)
    assert not step.new_machine


def test_a_step_within_the_runs_own_doubt_is_none() -> None:
    points = [replace(p, low=p.log_median - 0.06, high=p.log_median + 0.06) for p in noisy([(20, 0.0), (20, 0.05)])]
    assert steps(points) == ()
    assert steps(()) == ()


def test_a_step_at_a_new_machine_says_so() -> None:
    points = [replace(p, fingerprint="old" if i < 20 else "m") for i, p in enumerate(noisy([(20, 0.0), (20, 0.05)]))]
    assert [s.new_machine for s in steps(points)] == [True]


def test_a_run_of_one_value_does_not_outweigh_the_rest() -> None:
    points = noisy([(30, 0.0)])
    odd = replace(points[7], log_median=0.3, low=0.3, high=0.3, n=1)
    assert steps([*points[:7], odd, *points[8:]]) == ()


def test_the_last_level_stands_against_the_best_of_90_days() -> None:
    found = trend(noisy([(20, 0.10), (20, 0.0), (20, 0.06)]), "wall")
    assert [s.points for s in found.segments] == [20, 20, 20]
    assert found.best == found.segments[1]
    assert found.best.value == pytest.approx(1, rel=0.01)
    assert found.against_best.ratio == pytest.approx(math.exp(0.06), rel=0.01)
    assert 1 < found.against_best.low < found.against_best.ratio < found.against_best.high


def test_what_is_older_than_90_days_is_no_best() -> None:
    found = trend(noisy([(20, -0.10), (100, 0.0)]), "wall")
    assert len(found.segments) == 2
    assert found.best == found.last
    assert found.against_best.ratio == 1


def test_a_release_is_compared_in_the_newest_machines_units() -> None:
    release = point(0, -0.05 + math.log(3), fingerprint="old", canary=-9.0 + math.log(3))
    found = trend(noisy([(10, 0.0)]), "wall", replace(release, run="v1"))
    assert found.against_release is not None
    assert found.against_release.ratio == pytest.approx(math.exp(0.05), rel=0.01)
    assert found.against_release.other_machine
    assert len(found.points) == 10
    alone = trend(noisy([(10, 0.0)]), "wall", replace(release, run="v1", canary=None))
    assert alone.against_release is None


def test_a_trend_is_told_in_sentences(folder: Path) -> None:
    with History(folder) as history:
        for n in range(24):
            history.add(timed(1e-3 * (1.1 if n >= 12 else 1) * (1 + n % 3 * 1e-4), n))
        found = history.trend("case", release=replace(timed(1.05e-3, 3), name="v1"))
        assert [s.index for s in history.changes("case")] == [12]
    assert found is not None
    said = "\n".join(describe(found))
    for part in (
        "24 runs, 2 levels",
        "+10.0 % from 2026-01-13",
        "more than the best of 90 days",
        "+4.8 %",
        "than the last release",
    ):
        assert part in said


def test_runs_that_nothing_joins_are_counted() -> None:
    found = trend([point(0, 0.0, fingerprint="old", canary=None), *(point(i, 0.0) for i in range(1, 4))], "wall")
    assert found.left_out == 1
    assert "1 runs of other machines are left out" in describe(found)[-1]


# ---- noise


def busy(rounds: tuple[int, ...], spreads: tuple[float, ...] = (), processes: int = 15) -> list[Point]:
    """Points of runs with so many disturbed rounds, and canaries that spread so much."""
    return [
        replace(
            point(i, 0.0), n=processes, spread=spreads[i] if spreads else 0.0,
            flags=(f"{n} rounds kept though other work broke in",) if n else (),
        )
        for i, n in enumerate(rounds)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rounds", "spreads", "marked"),
    [
        ((0, 0, 0, 0, 0), (), set()),
        ((45, 45, 45, 45, 45), (), set()),  # the machine is always like that
        ((0, 4, 0, 0, 0), (), {1}),  # p is 1/5 to the fourth, of five
        ((0, 2, 0, 0, 0), (), set()),  # chance
        ((10, 10, 20, 10, 10), (), set()),  # exactly twice
        ((10, 10, 26, 10, 10), (), {2}),
        ((0, 0, 0), (0.02, 0.051, 0.02), {1}), ((0, 0, 0), (0.02, 0.05, 0.02), set()),  # widely
        ((0, 0, 0), (0.1, 0.2, 0.1), set()), ((0, 0, 0), (0.1, 0.21, 0.1), {1}), ((0, 0, 0), (0.3, 0.3, 0.3), set()),
        ((0, 9, 0, 0), (0.2, 0.01, 0.01, 0.01), {0, 1}), ((45,), (0.3,), set()),
    ],
)  # fmt: skip
def test_a_run_is_disturbed_beside_the_others_of_its_history(
    rounds: tuple[int, ...], spreads: tuple[float, ...], marked: set[int]
) -> None:
    assert disturbed(busy(rounds, spreads)) == marked


def test_a_run_of_more_processes_may_have_more_disturbed_rounds() -> None:
    points = busy((5, 10, 5, 5, 5))
    assert disturbed([replace(p, n=30) if i == 1 else p for i, p in enumerate(points)]) == frozenset()
    quiet = busy((0, 0, 0, 0, 0))
    assert disturbed([*quiet[:4], replace(quiet[4], flags=("waited: the CPU time is 20% of the wall time",))]) == {4}


def test_a_history_says_how_small_a_step_it_shows() -> None:
    points = [replace(p, low=p.log_median - 0.03, high=p.log_median + 0.03) for p in noisy([(12, 0.0)])]
    assert least_step(points) == pytest.approx(math.expm1(0.06))
    assert least_step(noisy([(12, 0.0)])) == 0.02
    wide, fine = trend(points, "wall"), trend(noisy([(12, 0.0)]), "wall")
    assert sensitivity([wide]) == "steps below 6.2 % are not shown"
    assert sensitivity([wide, fine, fine]) == "steps below 2.0 % are not shown in the median case"
    few = trend(points[:11], "wall")
    assert sensitivity([few]) == "12 runs or more can show a step"
    assert sensitivity([few, wide]) == "steps below 6.2 % are not shown in the median case"
    assert describe(wide)[-1] == "steps below 6.2 % are not shown"


def test_so_many_runs_can_show_a_step_and_two_fewer_cannot() -> None:
    half = LEAST_RUNS // 2
    assert steps(noisy([(half, 0.0), (half, 0.7)]))
    assert not steps(noisy([(half - 1, 0.0), (half - 1, 0.7)]))

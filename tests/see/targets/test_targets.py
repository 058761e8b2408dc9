"""The guides' targets: how a figure is judge, what is not measured and why, and a short measurement of each kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tritium import backends
from tritium.errors import ArgumentError
from tritium.perf.records.case import Made
from tritium.perf.suites import quick
from tritium.see.targets import targets
from tritium.see.targets.targets import (
    TARGETS,
    Bench,
    Figure,
    Reached,
    Target,
    counts,
    judge,
    measure_targets,
    rows,
    summary,
)
from tritium.threads import get_num_threads

FASTER = Target("000", "a table", "a call", "cpu", "< 1 ms", 1e-3, "s", True, lambda bench, device: figure(1e-4))
RATE = Target(
    "000", "a table", "a product", "cpu", "15-25 GFLOPS", 15, "GFLOP/s", False, lambda bench, device: figure(20)
)


def figure(value: float, spread: float = 0.1, possible: float | None = None) -> Figure:
    return Figure(value, value * (1 - spread), value * (1 + spread), possible, "made up")


@pytest.mark.parametrize(
    ("target", "value", "outcome"),
    [
        (FASTER, 0.5e-3, "pass"), (FASTER, 0.95e-3, "undecided"), (FASTER, 2e-3, "not reached"),
        (RATE, 20, "pass"), (RATE, 15.5, "undecided"), (RATE, 10, "not reached"),
    ],
)  # fmt: skip
def test_a_target_is_reached_by_the_whole_interval(target: Target, value: float, outcome: str) -> None:
    assert judge(target, figure(value)) == outcome


@given(st.floats(1e-9, 1e9), st.floats(0, 0.9), st.booleans())
def test_better_figures_are_never_judged_worse(value: float, spread: float, lower: bool) -> None:
    order = ["not reached", "undecided", "pass"]
    target = replace(RATE, lower=lower)
    now, better = (order.index(judge(target, figure(v, spread))) for v in (value, value / 2 if lower else value * 2))
    assert better >= now


def test_the_table_has_the_targets_of_the_guides_once() -> None:
    cells = [(t.guide, t.section, t.what, t.device, t.asked) for t in TARGETS]
    assert len(set(cells)) == len(cells)
    asked = {(t.guide, t.what.partition(",")[0], t.device): t.asked for t in TARGETS if t.guide == "001"}
    assert asked == {
        ("001", "matrix multiply", "cpu"): "< 10ms", ("001", "matrix multiply", "gpu"): "< 1ms",
        ("001", "element-wise", "cpu"): "< 1ms", ("001", "element-wise", "gpu"): "< 0.1ms",
        ("001", "reduction", "cpu"): "< 2ms", ("001", "reduction", "gpu"): "< 0.2ms",
        ("001", "graph compilation", "cpu"): "< 100ms", ("001", "graph compilation", "gpu"): "< 100ms",
    }  # fmt: skip


def test_a_device_that_is_absent_says_why() -> None:
    (found,) = measure_targets((replace(FASTER, device="nowhere"),))
    assert found.outcome == "not measured"
    assert "nowhere" in found.reason
    assert rows((found,))[0][3:] == ["-", "-", "not measured", "-"]
    assert summary((found,))[-1] == f"not measured (1): {found.reason}"


def test_a_figure_that_cannot_be_had_says_why() -> None:
    def fails(bench: Bench, device: str) -> Figure:
        raise ArgumentError("no such size.")

    found = measure_targets((replace(FASTER, figure=lambda bench, device: "no kernel"), replace(FASTER, figure=fails)))
    assert [(r.outcome, r.reason) for r in found] == [
        ("not measured", "no kernel"),
        ("not measured", "ArgumentError: no such size"),
    ]


def test_what_the_machine_cannot_do_is_said() -> None:
    found = (
        Reached(replace(FASTER, limit=1e-6), "not reached", figure(1e-4, possible=1e-5)),
        Reached(RATE, "pass", figure(20, possible=100)),
    )
    told = summary(found)
    assert told[0] == "1 pass, 1 not reached. The targets are the guides' own."
    assert told[1:] == ["000 a call: beyond this machine, whose ceilings allow 10 µs"]


def test_a_row_shows_the_interval_in_the_unit_of_the_value() -> None:
    (row,) = rows((Reached(FASTER, "pass", figure(0.5e-3, possible=1e-4)),))
    assert row == ["000", "a call (cpu)", "< 1 ms", "500 µs (450 … 550)", "100 µs", "pass", "made up"]
    (share,) = rows((Reached(replace(RATE, unit="%"), "pass", Figure(0.95, 0.95, 0.95)),))
    assert share[3:5] == ["95 %", "-"]


def test_large_numbers_have_no_exponent() -> None:
    (row,) = rows((Reached(RATE, "pass", Figure(12345, 9999, 14321)),))
    assert row[3] == "12300 GFLOP/s (10000 … 14300)"
    (row,) = rows((Reached(FASTER, "pass", Figure(915e-9, 646e-9, 1.204e-6)),))
    assert row[3] == "915 ns (646 … 1200)"


def test_outcomes_are_counted_in_the_order_of_the_words() -> None:
    found = (Reached(RATE, "not measured", reason="no GPU"), Reached(FASTER, "pass", figure(1e-4)))
    assert list(counts(found).items()) == [("pass", 1), ("not reached", 0), ("undecided", 0), ("not measured", 1)]


def test_a_device_with_a_clock_of_its_own_is_timed_by_it() -> None:
    told: list[int] = []

    def timer() -> Any:
        before = len(told)
        return lambda: 1000 * (len(told) - before)  # a microsecond for each call

    def call() -> None:
        told.append(1)

    case = targets._case("a call")
    found = targets.time_by_device(case, Made(call), timer, seconds=0.01)
    assert set(found.samples) == {1e-6}
    assert found.name == "a call, by the device's clock"
    assert len(found.samples) >= 7


@pytest.mark.parametrize(("device", "own"), [("cuda:0", True), ("cpu", False), ("mlx:gpu", False)])
def test_only_cuda_has_such_a_clock(monkeypatch: pytest.MonkeyPatch, device: str, own: bool) -> None:
    monkeypatch.setattr(targets, "time_by_device", lambda case, made, timer, seconds: "own")
    monkeypatch.setattr(targets.quick, "timed", lambda *args, **options: "host")
    monkeypatch.setattr(targets, "grid", lambda *args, **options: [targets._case("add")])
    monkeypatch.setattr(targets.worker, "resolve", lambda target: lambda candidate: None)
    monkeypatch.setattr(targets.backends, "device", lambda name: backends.Device("cpu", 0))
    assert Bench(0.01).timed("add", (8,), device) == ("own" if own else "host")


def test_progress_is_told() -> None:
    told: list[Any] = []
    measure_targets((FASTER, RATE), progress=lambda *args: told.append(args))
    assert told == [(0, 2, "a call"), (1, 2, "a product")]


@pytest.mark.parametrize("name", ["pool_share", "overhead", "success_share", "copy_free_share"])
def test_shares_lie_between_0_and_1(name: str) -> None:
    found = getattr(targets, name)(Bench(0.01), "cpu")
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_every_other_figure_of_the_cpu_can_be_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path))
    small = [t for t in TARGETS if t.device == "cpu" and t.unit != "%"] + [
        t for t in TARGETS if t.figure is targets.call_cost
    ]
    found = measure_targets(tuple(small), seconds=0.01)
    for r in found:
        if r.figure is None:
            assert r.target.figure is targets.times_scalar, r.reason
            continue
        assert 0 < r.figure.low <= r.figure.value <= r.figure.high, r
        assert r.figure.possible is None or r.figure.possible > 0


def test_scalar_code_is_beside_one_thread_and_adds_one_element_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = get_num_threads()
    used: list[int] = []
    timed = quick.timed
    monkeypatch.setattr(quick, "timed", lambda *args, **given: used.append(get_num_threads()) or timed(*args, **given))
    found = targets.times_one_by_one(Bench(0.01), "cpu")
    assert isinstance(found, Figure)
    assert used == [1]
    assert get_num_threads() == threads
    assert "subtract.reduce" in found.how


def test_a_sum_that_is_not_in_order_is_no_scalar_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert targets.subtracts_in_order()
    monkeypatch.setattr(targets, "subtracts_in_order", lambda: False)
    assert "does not go element by element" in str(targets.times_one_by_one(Bench(0.01), "cpu"))


def test_memory_beyond_what_was_asked_for_is_told_of_odd_shapes_too() -> None:
    assert any(n % 8 for shape in targets.MIXTURE for n in shape)
    found = targets.overhead(Bench(0.01), "cpu")
    assert found.value > 0
    shares = [targets._overhead_share(shape) for shape in targets.MIXTURE]
    assert found.value == pytest.approx(sum(shares) / len(shares), abs=0.02)
    assert f"{max(shares):.1%}" in found.how


def test_no_row_names_a_ratio_of_two_calls_the_cost_of_one() -> None:
    (row,) = (t for t in TARGETS if t.figure is targets.call_cost)
    assert row.what == "a call of 8 elements beside 1000x1000"

"""A cell becomes a run: values by generation, absences with their reasons, and what a reader must know."""

from __future__ import annotations

from typing import Any

from tritium.perf.engine.measuring import Cell, run_of
from tritium.perf.records.case import Arm, Case, Context, Recipe, Work
from tritium.perf.records.run import Run

CASE = Case("add", Recipe("x:y"), Context("add"), Work(flops=10))


def run(cell: Cell) -> Run:
    return run_of(CASE, Arm("tritium", optimisation="avx2"), cell, threads=2)


def timed(wall: list[float], cpu: list[float] | None = None) -> Cell:
    cell = Cell()
    for i, v in enumerate(wall):
        cell.add("wall", i, [[v]])
        cell.add("cpu", i, [[(cpu or wall)[i]]])
    return cell


def test_a_run_names_the_device_of_its_arm() -> None:
    assert run(timed([1.0])).context.device == "cpu"
    found = run_of(CASE, Arm("tritium:mlx:gpu", "tritium:mlx:gpu"), timed([1.0], [0.1]), threads=2)
    assert found.context.device == "mlx:gpu"
    assert not [flag for flag in found.flags if "waited" in flag]  # another processor was at work


def test_generations_that_were_left_out_are_empty() -> None:
    cell = Cell()
    cell.add("wall", 0, [[1.0]])
    cell.add("wall", 3, [[2.0]])
    wall = run(cell).of("wall")
    assert wall is not None
    assert wall.values == (((1.0,),), (), (), ((2.0,),))


def test_a_metric_that_is_absent_once_keeps_its_values_and_says_so() -> None:
    cell = timed([1.0])
    cell.note("energy", 0, {"unit": "J", "value": 3.0, "source": "fake"})
    cell.note("energy", 1, {"unit": "J", "reason": "window_too_short"})
    cell.note("energy", 2, {"unit": "J", "value": 4.0, "source": "fake"})
    found = run(cell).of("energy")
    assert found is not None
    assert found.values == (((3.0,),), (), ((4.0,),))
    assert (found.kind, found.reason, found.details["absent"]) == ("measured", "", ["window_too_short"])


def test_a_metric_that_was_never_read_says_why() -> None:
    cell = timed([1.0])
    cell.note("energy", 0, {"unit": "J", "reason": "no_device: none", "kind": "not measured", "domain": "package"})
    found = run(cell).of("energy")
    assert found is not None
    assert (found.kind, found.reason, found.values) == ("not measured", "no_device: none", ())
    assert found.details == {"domain": "package"}


def test_the_context_names_threads_and_kernels() -> None:
    found = run(timed([1.0]))
    assert (found.context.threads, found.context.optimisation) == (2, "avx2")
    assert found.work == Work(flops=10)


def test_nothing_measured_is_interrupted() -> None:
    assert run(Cell()).status == "interrupted"


def flags(**about: Any) -> tuple[str, ...]:
    cell = timed(about.pop("wall", [1.0] * 10), about.pop("cpu", None))
    for name, value in about.items():
        setattr(cell, name, value)
    return run(cell).flags


def test_an_undisturbed_run_has_no_flags() -> None:
    assert flags() == ()


def test_every_disturbance_is_told() -> None:
    assert flags(steady=False) == ("no steady state",)
    assert flags(broken=[[1.0]] * 3) == ("3 rounds repeated: other work or the hypervisor broke in",)
    assert flags(kept=2) == ("2 rounds kept though other work broke in",)


def test_two_modes_are_told() -> None:
    assert flags(wall=[1.0, 1.01, 1.02, 1.03, 5.0, 5.01, 5.02, 5.03] * 15) == ("several modes",)


def test_a_process_that_waited_is_told() -> None:
    assert flags(wall=[1.0] * 10, cpu=[0.2] * 10) == ("waited: the CPU time is 20% of the wall time",)

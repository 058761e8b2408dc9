"""One case on several machines, side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from made_results import results
from tritium.perf.records.run import Results
from tritium.perf.store.history import History
from tritium.perf.store.machines import beside


def measured(seconds: float, commit: str, day: int, cpu: str = "a cpu", threads: int = 2) -> Results:
    made = results({"add": seconds}, seed=day)
    hard = replace(made.environment.hard, cpu=cpu, threads=threads)
    environment = replace(made.environment, commit=commit, hard=hard)
    return replace(made, environment=environment, committed=f"2026-01-{day:02d}T00:00:00Z")


def test_each_machine_has_its_column_and_each_commit_its_row(tmp_path: Path) -> None:
    with History(tmp_path) as history:
        for day in range(1, 5):
            history.add(measured(1e-3, f"{day:040x}", day))
        history.add(measured(5e-3, f"{2:040x}", 2, "another", 8))
        history.add(measured(5e-3, f"{9:040x}", 9, "another", 8))
        table = beside(history, "add", "wall", "tritium")
    assert [m.cpu for m in table.machines] == ["another", "a cpu"]  # the newest run first
    assert [m.runs for m in table.machines] == [2, 4]
    assert [row.commit[-1] for row in table.rows] == ["1", "2", "3", "4", "9"]  # by commit, whenever it was measured
    both = table.rows[1].values
    assert None not in both
    assert [v is None for v in table.rows[0].values] == [True, False]
    assert table.unit == "s"

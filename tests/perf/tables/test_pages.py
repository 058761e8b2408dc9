"""What a page shows besides the comparison."""

from __future__ import annotations

from dataclasses import replace

from measured import results, run
from tritium.perf.records.run import Series
from tritium.perf.tables.pages import findings_of, page


def test_instructions_are_beside_the_time_where_they_were_asked_for() -> None:
    others = tuple(s for s in run().series if s.metric != "instructions")
    count = Series("instructions", "1", (((12345.0,),),), source="callgrind", exact=True)
    plain = results(replace(run(), series=(*others, count)))
    asked = replace(plain, plan=replace(plain.plan, metrics=(*plain.plan.metrics, "instructions")))
    titles = [[t.title for t in findings_of(r).tables] for r in (plain, asked)]
    assert ["Instructions of a call" in each for each in titles] == [False, True]
    assert "12,345" in page(asked)
    assert "counted by callgrind" in page(asked)


def test_why_instructions_were_not_counted_is_told() -> None:
    plain = results()
    asked = replace(plain, plan=replace(plain.plan, metrics=(*plain.plan.metrics, "instructions")))
    assert "not counted: no_permission" in page(asked)

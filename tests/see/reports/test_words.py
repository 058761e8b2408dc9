"""Numbers in sentences: shares and nouns."""

from __future__ import annotations

import pytest

from tritium.perf.amounts import many, percent


@pytest.mark.parametrize(
    ("part", "places", "text"),
    [(0.094, 0, "9 %"), (0.004, 0, "<1 %"), (0.0, 0, "0 %"), (0.0004, 1, "<0.1 %"), (0.316, 1, "31.6 %")],
)
def test_shares_are_written_as_tables_write_them(part: float, places: int, text: str) -> None:
    assert percent(part, places) == text


def test_nouns_agree_with_their_number() -> None:
    assert [many(1, "case"), many(2, "case"), many(2, "process"), many(1200, "batch")] == [
        "1 case",
        "2 cases",
        "2 processes",
        "1,200 batches",
    ]

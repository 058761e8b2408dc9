"""docs/speed.md: every table comes from a results file, is fresh, and prints no uncertain ratio plainly."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from doc_pages import ROOT
from speed_tables import speed_table
from tritium.perf.records import speed as records
from tritium.perf.records.speed import Column, Figure

sys.path.insert(0, str(ROOT / "bench"))
try:
    import speed
finally:
    sys.path.remove(str(ROOT / "bench"))

PAGE = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
FILES = sorted((ROOT / "docs" / "results").glob("*.json"))
RATIO = Column("× numpy", "×", "numpy / tritium", "ratio")
POSITIVE = st.floats(1e-3, 1e5)


@st.composite
def figures(draw: st.DrawFn) -> Figure:
    low, median, high = sorted(draw(st.tuples(POSITIVE, POSITIVE, POSITIVE)))
    return Figure(median) if draw(st.booleans()) else Figure(median, low, high)


# ---- the page


def test_the_page_is_what_the_files_give() -> None:
    assert speed.filled(PAGE) == PAGE, "run: python bench/speed.py --write"


def test_the_table_of_the_readme_is_what_the_files_give() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert speed.filled_readme(readme) == readme, "run: python bench/speed.py --write"
    assert len(speed.summary().splitlines()) == 8
    with pytest.raises(ValueError, match="there must be one"):
        speed.filled_readme("# Tritium")


def test_no_table_is_without_a_results_file() -> None:
    assert speed.tables_without_a_file(PAGE) == []


def test_every_results_file_is_shown() -> None:
    texts = [PAGE, *(path.read_text(encoding="utf-8") for path in speed.OTHERS)]
    assert all(speed.filled(text) == text for text in texts)
    assert speed.unused("\n".join(texts)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_results_file_is_whole(path: Path) -> None:
    table = records.load(path)
    assert table.name == path.stem
    assert (ROOT / table.command[0]).is_file()
    assert table.machine.cpu
    if table.recorded == records.MEASURED:
        assert table.date
        assert table.versions["tritium"]
        ratios = [c.name for c in table.columns if c.kind == "ratio"]
        shown = [row.figures[name] for row in table.rows for name in ratios if name in row.figures]
        assert all(figure.low is not None for figure in shown)
    else:
        assert "no raw samples" in table.recorded
        assert not any(f.samples for row in table.rows for f in row.figures.values())


def test_the_cpu_path_of_mlx_is_no_measure_of_ternary_products() -> None:
    columns = [c.name for path in FILES if path.stem.startswith("ternary") for c in records.load(path).columns]
    assert columns
    assert not [name for name in columns if "mlx" in name]


# ---- the renderer


@given(st.lists(figures(), min_size=1, max_size=5))
def test_a_ratio_is_plain_only_where_every_interval_is_known_and_narrow(ratios: list[Figure]) -> None:
    text = speed.cell(ratios, RATIO)
    narrow = all(
        f.low is not None and f.high is not None and f.high - f.low <= 0.3 * f.median * (1 + 1e-8) for f in ratios
    )
    assert text.startswith("~") != narrow
    if any(f.spread is not None and f.spread > 0.151 for f in ratios):
        assert re.search(r"\(±(\d+|>1000) %\)$", text)
    if narrow:
        assert "±" not in text


@given(st.lists(figures(), min_size=1, max_size=5))
def test_the_spread_that_is_printed_is_the_widest(ratios: list[Figure]) -> None:
    match = re.search(r"±(\d+) %", speed.cell(ratios, RATIO))
    if match:
        widest = max(f.spread for f in ratios if f.spread is not None)
        assert int(match[1]) == round(100 * widest)


def test_marks_are_explained_below_the_table() -> None:
    text = speed.render(speed_table(), speed.block_of("small"))
    assert "| add | 1 | 10 ±1 % | 20 | 2.00 |" in text
    assert "~4.00 (±25 %)" in text
    assert speed.WIDE_TEXT in text
    assert speed.UNKNOWN_TEXT in text
    assert "A CPU, 2 CPUs; tritium 0.1, numpy 2.4; 2026-01-02. `python bench/dense.py --quick`" in text
    plain = speed.render(speed_table(), speed.block_of("small case=add threads=1"))
    assert "~" not in plain


def test_a_block_chooses_rows_and_columns() -> None:
    text = speed.render(speed_table(), speed.block_of("small threads=1 columns=tritium"))
    assert text.splitlines()[:4] == [
        "| case | tritium, µs |",
        "| --- | --- |",
        "| add | 10 ±1 % |",
        "| mul | 12 ±1 % |",
    ]


def test_a_block_shows_the_rows_with_the_smallest_ratios() -> None:
    rows = speed.render(speed_table(), speed.block_of("small worst=2 columns=tritium")).splitlines()[2:4]
    assert rows == ["| add | 1 | 10 ±1 % |", "| mul | 1 | 12 ±1 % |"]
    least = speed.render(speed_table(), speed.block_of("small case=mul,add threads=1,2 worst=1")).splitlines()[2:4]
    assert least[0].startswith("| add | 1 |")
    assert not least[1]
    plain = speed_table(columns=speed_table().columns[:2])
    with pytest.raises(ValueError, match="no row of the block has a ratio"):
        speed.render(plain, speed.block_of("small worst=1"))


def test_a_column_without_a_figure_is_left_out() -> None:
    assert "numpy, µs" not in speed.render(speed_table(), speed.block_of("small case=mul"))


def test_rows_are_folded_to_a_range_with_its_widest_interval() -> None:
    text = speed.render(speed_table(), speed.block_of("small fold=threads"))
    assert "| add | 5–10 ±20 % | 20 | ~2.00–4.00 (±25 %) |" in text
    assert "Ranges are over threads" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("small tea", "'tea' is no option"),
        ("small tea=1", "no label tea"),
        ("small fold=tea", "no label tea"),
        ("small columns=tea", "no column tea"),
        ("small threads=9", "no row has"),
        ("small worst=0", "a number of rows is needed"),
        ("small worst=few", "a number of rows is needed"),
    ],
)
def test_a_wrong_block_is_named(options: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        speed.render(speed_table(), speed.block_of(options))


def test_a_block_without_a_file_names_those_there_are(tmp_path: Path) -> None:
    records.save(speed_table(), tmp_path / "small.json")
    with pytest.raises(ValueError, match=r"there is no tea\.json .* there are: small"):
        speed.filled("<!-- results: tea -->\n<!-- end -->\n", tmp_path)


def test_filling_twice_changes_nothing(tmp_path: Path) -> None:
    records.save(speed_table(), tmp_path / "small.json")
    once = speed.filled("before\n\n<!-- results: small -->\nold\n<!-- end -->\n\nafter\n", tmp_path)
    assert "old" not in once
    assert speed.filled(once, tmp_path) == once


def test_a_table_without_a_marker_is_found() -> None:
    assert speed.tables_without_a_file("text\n\n| a | b |\n|---|---|\n| 1 | 2 |\n") == [3]
    assert speed.tables_without_a_file("a | b\n--- | ---\n1 | 2\n") == [1]
    assert speed.tables_without_a_file("<!-- results: x -->\n| a |\n|---|\n<!-- end -->\n\n---\n") == []


def test_a_stale_page_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "speed.md"
    page.write_text(PAGE.replace("| 1 | 1 | 102–138 |", "| 1 | 1 | 902–938 |"), encoding="utf-8")
    monkeypatch.setattr(speed, "PAGE", page)
    if page.read_text(encoding="utf-8") == PAGE:
        page.write_text(PAGE.replace("<sub>", "<sub>old ", 1), encoding="utf-8")
    assert speed.main(["--check"]) == 1
    assert "run: python bench/speed.py --write" in capsys.readouterr().out
    assert speed.main(["--write"]) == 0
    assert page.read_text(encoding="utf-8") == PAGE

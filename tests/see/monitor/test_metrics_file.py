"""Tables of measurements: written, read back as they were, and never obeyed."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from hostile import NAMES
from tritium.errors import ArgumentError, FormatError
from tritium.perf.meters.absent import REASONS, Absent
from tritium.perf.records.case import Context
from tritium.see.monitor import metrics_file
from tritium.see.monitor.metrics_file import FORMATS, Column, Metrics, Operation, Row

WHY = Absent("no_driver", "the driver's library is not installed", "NVML", "gpu")
TABLE = Metrics(
    (Column("rss", "B"), Column("gpu_busy", "%")),
    (Row(0.1, (1024.0, WHY)), Row(0.2, (2048.0, WHY)), Row(0.30000000000000004, (4096.5, 12.0))),
    "2026-11-15T12:30:00.250Z",
    0.1,
    (Operation(0.15, 4.2e-07, Context("matmul", (64, 64), "f16", "cpu", 32, 512, 10**6, "O2", 2), ((64, 64), (64, 64))),),
    ("collecting took 0.01 % of one CPU",),
)  # fmt: skip

texts = st.text(
    st.one_of(st.characters(), st.sampled_from("=+-@|`\\\"';,:%#[]{}<>&\t\r\n\x1b\u202e\ud800")), max_size=12
)
numbers = st.floats(allow_nan=False, allow_infinity=False)
absent = st.builds(Absent, st.sampled_from(REASONS), texts, texts, texts)


@st.composite
def tables(draw: Any) -> Metrics:
    columns = draw(st.lists(st.builds(Column, texts, texts), max_size=4, unique_by=lambda c: c.name))
    values = st.tuples(*(st.one_of(numbers, absent) for _ in columns))
    rows = draw(st.lists(st.builds(Row, numbers, values), max_size=4))
    sizes = st.lists(st.lists(st.integers(0, 10**6), max_size=3).map(tuple), max_size=2).map(tuple)
    context = st.builds(
        Context, texts, precision=texts, device=texts, batch=st.none() | st.integers(1, 9), optimisation=texts
    )
    operations = draw(st.lists(st.builds(Operation, numbers, numbers, context, sizes), max_size=2))
    notes = draw(st.lists(texts, max_size=2))
    return Metrics(tuple(columns), tuple(rows), draw(texts), draw(numbers), tuple(operations), tuple(notes))


@given(tables(), st.sampled_from(["json", "csv"]))
@settings(max_examples=50)
def test_json_and_csv_are_read_back_exactly(table: Metrics, to: str) -> None:
    assert metrics_file.loads(table.text(to)) == table


@given(tables())
@settings(max_examples=50)
def test_prometheus_text_gives_the_last_row_back_exactly(table: Metrics) -> None:
    last = Metrics(table.columns, table.rows[-1:], table.began, table.interval_s, (), table.notes)
    assert metrics_file.loads(table.text("prometheus")) == last


@given(tables())
@settings(max_examples=50)
def test_the_parser_of_prometheus_itself_reads_every_value(table: Metrics) -> None:
    parser = pytest.importorskip(
        "prometheus_client.parser", reason="needs prometheus_client: pip install prometheus_client"
    )
    families = list(parser.text_string_to_metric_families(table.text("prometheus")))
    samples = [sample for family in families for sample in family.samples]
    values = [v for v in table.rows[-1].values if not isinstance(v, Absent)] if table.rows else []
    read = [s.value for s in samples if s.name.startswith("tritium_sample_value")]
    assert sorted(read) == sorted(values)
    assert len([s for s in samples if s.name == metrics_file.COLUMN]) == len(table.columns)


@pytest.mark.parametrize("to", FORMATS)
def test_a_time_below_a_millisecond_is_not_rounded(to: str) -> None:
    made = Metrics((Column("operation_time", "s"),), (Row(1e-7, (7.123456789012345e-07,)),))
    assert metrics_file.loads(made.text(to)).rows == made.rows


@pytest.mark.parametrize("end", ["json", "csv", "prom"])
def test_a_file_is_written_and_read_by_the_end_of_its_name(tmp_path: Path, end: str) -> None:
    path = TABLE.save(tmp_path / "new" / f"metrics.{end}")
    found = metrics_file.load(path)
    assert found.rows[-1] == TABLE.rows[-1]
    assert found.columns == TABLE.columns


def test_an_unknown_format_names_those_there_are() -> None:
    with pytest.raises(ArgumentError, match="json, csv, prometheus"):
        TABLE.text("jsn")
    with pytest.raises(ArgumentError, match=r"\.csv"):
        TABLE.save("metrics.xls")


# ---- names that try to be more


@pytest.mark.parametrize("start", range(0, len(NAMES), 60))
def test_no_name_is_a_formula_or_a_line_of_its_own_in_csv(start: int) -> None:
    some = NAMES[start : start + 60]
    made = Metrics(tuple(Column(name, name) for name in some), (Row(0.0, (1.0,) * len(some)),), notes=some)
    text = made.text("csv")
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len(rows) == 3 + 2 * len(some)
    for cell in (cell for row in rows for cell in row):
        assert cell.isprintable()
        assert cell.lstrip()[:1] not in tuple("=+-@＝＋－＠")
    assert metrics_file.loads(text) == made


def test_no_name_ends_its_label_in_prometheus_text() -> None:
    made = Metrics(tuple(Column(name, "B") for name in NAMES), (Row(0.0, (1.0,) * len(NAMES)),))
    sample = re.compile(r'[a-z_][a-zA-Z0-9_]*(\{(\w+="([^"\\\n]|\\["\\n])*",?)*\})? [-+.e0-9]+')
    for line in made.text("prometheus").split("\n"):
        assert not line or line.startswith("# ") or sample.fullmatch(line), line
        assert line.isprintable()
    assert metrics_file.loads(made.text("prometheus")) == made


def test_json_is_plain_ascii_that_ends_no_script() -> None:
    made = Metrics(tuple(Column(name, "B") for name in NAMES), (), notes=NAMES)
    text = made.text("json")
    assert text.isascii()
    assert "<" not in text
    assert metrics_file.loads(text) == made


# ---- what is refused


def test_a_table_has_one_column_of_a_name() -> None:
    with pytest.raises(ArgumentError, match="two columns are called 'x'"):
        Metrics((Column("x", "B"), Column("x", "%")))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ArgumentError, match="Absent with the reason"):
        Metrics((Column("x", "B"),), (Row(0.0, (value,)),))


def test_a_column_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'rss'"):
        TABLE.of("rs")
    assert TABLE.of("gpu_busy") == (WHY, WHY, 12.0)
    assert TABLE.last == {"rss": 4096.5, "gpu_busy": 12.0}


def damaged(change: Any) -> str:
    data = json.loads(TABLE.text("json"))
    change(data)
    return json.dumps(data)


CHANGES: dict[str, tuple[Any, str]] = {
    "a newer schema": (lambda d: d.update(schema=2), "newer tritium"),
    "no schema": (lambda d: d.update(schema="1"), "schema"),
    "another key": (lambda d: d.update(more=1), "not metrics"),
    "a lost value": (lambda d: d["metrics"]["columns"][0]["values"].pop(), "2 values for 3 rows"),
    "no reason": (lambda d: d["metrics"]["columns"][1].update(absent=[]), "neither a value nor a reason"),
    "a reason over a value": (
        lambda d: d["metrics"]["columns"][1]["absent"][0].update(stop=3),
        "are listed as absent, but have values",
    ),
    "an unknown reason": (lambda d: d["metrics"]["columns"][1]["absent"][0]["why"].update(code="lost"), "no reason"),
    "two columns of a name": (lambda d: d["metrics"]["columns"][1].update(name="rss"), "two columns"),
    "text for a number": (lambda d: d["metrics"].update(interval_s="1"), "a number is needed"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_damaged_json_file_is_refused_with_the_reason(name: str) -> None:
    change, says = CHANGES[name]
    with pytest.raises(FormatError, match=says):
        metrics_file.loads(damaged(change))


LINES = TABLE.text("csv").splitlines()
PROM = TABLE.text("prometheus")


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", "x", "[1]", "{", '{"schema": 1}', LINES[0], "\n".join([LINES[0], LINES[2]]), "kind\nabout\n",
        "\n".join([*LINES[:2], '"row","",x,1,1' + ',""' * 11]), "\n".join([*LINES[:2], '"row"']),
        LINES[0] + '\n"about","[1]","","",""' + ',""' * 11,
        PROM.replace('column="gpu_busy"} 12.0', 'column="gpu_busy"} twelve'), PROM.replace("tritium_sample_info", "other"),
        PROM.replace('{column="rss"} 4096.5', "{} 4096.5"), PROM.replace('schema="1"', 'schema="' + "9" * 5000 + '"'),
        PROM.replace('column="rss"} 4', 'column="rss} 4'), "# HELP\nx\n", "tritium_x 1 2 3\n",
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        metrics_file.loads(text, "given")


@given(st.text(max_size=60))
def test_no_text_is_more_than_refused(text: str) -> None:
    for begin in ("", "{", "kind", "#\n", '"kind"\nabout,'):
        with pytest.raises(FormatError):
            metrics_file.loads(begin + text)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.json").touch()
    with pytest.raises(FormatError, match="empty"):
        metrics_file.load(tmp_path / "empty.json")

"""Records and JSON: what is written is read back the same, and nothing else is read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from tritium.errors import ArgumentError, FormatError
from tritium.perf.meters.absent import Absent
from tritium.perf.records import json_io as records


def test_a_moment_is_utc_with_a_z() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", records.utc_now())
    assert re.fullmatch(r".*:\d\d\.\d{3}Z", records.utc_now("milliseconds"))


@pytest.mark.parametrize(
    ("schema", "says"), [(3, "newer tritium"), (0, "whole number"), (True, "whole number"), ("1", "whole")]
)
def test_a_schema_that_is_none_or_newer_is_refused(schema: object, says: str) -> None:
    records.check_schema(2, 2, "x")
    with pytest.raises(FormatError, match=f"x: .*{says}"):
        records.check_schema(schema, 2, "x")


@dataclass(frozen=True)
class Inner:
    name: str
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Outer:
    count: int
    share: float
    state: Literal["on", "off"]
    inner: Inner
    pair: tuple[int, str] = (0, "")
    many: tuple[Inner, ...] = ()
    rows: list[int] = field(default_factory=list)
    maybe: float | None = None
    either: int | str = 0
    flag: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Chain:
    next: Chain | None = None
    end: None = None


FULL = Outer(
    3, 0.5, "on", Inner("é\n", (1.0, 2.5e-300)), (1, "x"), (Inner("a"), Inner("b")), [1, 2], 1.5, "text", True,
    {"deep": [1, {"x": None}]}, {"a": 1}, {"k": "v"},
)  # fmt: skip
LEAST: dict[str, Any] = {"count": 1, "share": 1, "state": "on", "inner": {"name": "n"}}

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def test_a_record_is_read_back_the_same() -> None:
    assert records.read(Outer, records.loads(records.dumps(FULL), "x"), "x") == FULL


def test_null_is_read_where_nothing_else_may_be() -> None:
    assert records.read(Chain, {"end": None, "next": {"end": None}}, "x") == Chain(Chain())


def test_fields_with_a_default_may_be_missing() -> None:
    assert records.read(Outer, LEAST, "x") == Outer(1, 1.0, "on", Inner("n"))


@given(PLAIN)
def test_any_json_survives(value: Any) -> None:
    assert records.loads(records.dumps(value), "x") == value
    assert records.read(Outer, LEAST | {"facts": {"k": value}}, "x").facts == {"k": value}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_survives_to_the_bit(value: float) -> None:
    back = records.loads(records.dumps([value]), "x")[0]
    assert math.copysign(1, back) == math.copysign(1, value)
    assert back == value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cuont": 1}, r"x: unknown key 'cuont'.*Did you mean 'count'"),
        ({"count": 1.5}, "x.count: a whole number is needed, given 1.5"),
        ({"count": True}, "x.count: a whole number is needed, given true"),
        ({"count": None}, "x.count: a whole number is needed, given null"),
        ({"share": "1"}, "x.share: a number is needed"),
        ({"share": False}, "x.share: a number is needed"),
        ({"share": 10**400}, "x.share: a number a double can hold"),
        ({"state": "onn"}, "x.state: 'onn' is not one of on, off. Did you mean 'on'"),
        ({"state": []}, "x.state"),
        ({"inner": []}, "x.inner: an object is needed"),
        ({"inner": {}}, "x.inner: name missing"),
        ({"inner": {"name": "n", "values": [1.0, "a"]}}, r"x.inner.values\[1\]: a number is needed"),
        ({"pair": [1]}, "x.pair: 2 values are needed, 1 were given"),
        ({"many": {}}, "x.many: an array is needed"),
        ({"many": [{"name": 1}]}, r"x.many\[0\].name: text is needed"),
        ({"rows": [1, "2"]}, r"x.rows\[1\]: a whole number"),
        ({"maybe": "x"}, "x.maybe: a number is needed"),
        ({"either": 1.5}, "x.either: text is needed"),
        ({"flag": 1}, "x.flag: true or false is needed"),
        ({"sizes": {"\x1b[31m": "x"}}, r"x.sizes.'\\x1b\[31m': a whole number"),
        ({"sizes": []}, "x.sizes: an object is needed"),
        ({"given": 3}, "x.given: an object is needed"),
        (
            {"many": [{"name": "a"}, {"name": "b", "value": []}]},
            r"x.many\[1\]: unknown key 'value'.*Did you mean 'values'",
        ),
        ({"inner": {"nam": "n"}}, r"x.inner: unknown key 'nam'.*Did you mean 'name'"),  # before the one that is missing
    ],
)
def test_a_wrong_value_is_named_with_its_place(change: dict[str, Any], said: str) -> None:
    with pytest.raises(FormatError, match=said):
        records.read(Outer, LEAST | change, "x")


def test_a_record_in_a_record_without_end_is_refused() -> None:
    data: dict[str, Any] = {}
    for _ in range(50):
        data = {"next": data}
    with pytest.raises(FormatError, match="more than 40 deep"):
        records.read(Chain, data, "x")


def test_an_error_of_the_record_itself_is_raised_as_it_is() -> None:
    with pytest.raises(ArgumentError, match=r"Absent: 'no_diver' is no reason\. Did you mean 'no_driver'"):
        records.read(Absent, {"code": "no_diver", "says": "x"}, "x")


def test_a_value_beside_records_is_read() -> None:
    assert records.read(list[Inner], [{"name": "a"}], "x") == [Inner("a")]
    assert records.read(int, 10**30, "x") == 10**30


def test_missing_fields_are_all_named() -> None:
    with pytest.raises(FormatError, match="x: share, state missing"):
        records.read(Outer, {"count": 1, "inner": {"name": "n"}}, "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1, column 1"),
        ('{"a": 1,\n "b": }', "line 2"),
        ('{"a": 1, "a": 2}', "^x: the key 'a' stands there twice.$"),
        ("[NaN]", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("[1e999]", "too large"),
        ("-1e999", "too large"),
        ('{"a": {"b": [1, 1e999]}}', "too large"),
        ("9" * 5000, "not JSON"),
        ("[" * 41 + "]" * 41, "more than 40 deep"),
        ("[" * 200_000, "more than 40 deep"),
        ('{"a":' * 200_000, "more than 40 deep"),
    ],
)
def test_what_is_not_plain_json_is_refused(text: str, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        records.loads(text, "x")


def test_forty_levels_are_read() -> None:
    assert records.loads("[" * 40 + "]" * 40, "x")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(FormatError):
            records.loads(text, "x")
        return
    with suppress(FormatError):  # stricter than Python: NaN, 1e999, a key twice
        assert records.loads(text, "x") == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float64("nan"), np.float32("inf")])
def test_what_is_no_number_is_not_written(value: Any) -> None:
    with pytest.raises(ValueError, match="cannot be recorded"):
        records.dumps({"a": [value]})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.float64(0.1), 0.1), (np.array(7), 7),
        (ml_dtypes.bfloat16(1.5), 1.5), (True, True), (10**30, 10**30),
    ],
)  # fmt: skip
def test_numbers_of_numpy_are_written_as_numbers(value: Any, expected: Any) -> None:
    back = records.loads(records.dumps([value]), "x")[0]
    assert back == expected
    assert type(back) is type(expected)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", 1j, np.ones(3)])
def test_what_json_has_no_word_for_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be recorded"):
        records.dumps({"a": value})


def test_half_a_character_in_a_key_is_refused() -> None:
    with pytest.raises(FormatError, match="half a character"):
        records.read(Inner, {"name": "x", "\ud800": 1}, "x")


@pytest.mark.parametrize("kind", [str, bytes])
def test_more_arrays_than_memory_should_hold_are_refused(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    monkeypatch.setattr(records, "MAX_CONTAINERS", 3)
    text = '[[1], {"a": 2}]'
    assert records.loads(text if kind is str else text.encode(), "x") == [[1], {"a": 2}]
    text = "[[], [], {}]"
    with pytest.raises(FormatError, match="4 arrays and objects; at most 3"):
        records.loads(text if kind is str else text.encode(), "x")

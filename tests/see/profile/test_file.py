"""Profiles on the disk: read back exactly, the same bytes each time, and nothing believed that could not be."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from made_profiles import everything, made
from measured import HOSTILE
from tritium.errors import FormatError, SaveError
from tritium.see.profile import file as profile_file
from tritium.see.profile.file import dump, load, parse, save
from tritium.see.trace.timeline import Timeline, What


def same(a: Any, b: Any) -> bool:
    """Equal in every field, columns by their values and dtypes."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if type(a).__eq__ is object.__eq__ and hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
def test_what_is_saved_is_read_back_exactly(name: str, tmp_path: Path) -> None:
    assert same(load(save(everything(), tmp_path / name)), everything())


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
def test_what_would_be_too_large_to_read_back_is_not_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_file, "MAX_BYTES", 1000)
    with pytest.raises(SaveError, match="smaller capacity="):
        save(everything(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_the_same_profile_is_the_same_bytes(tmp_path: Path) -> None:
    files = [save(everything(), tmp_path / name).read_bytes() for name in ("a.json.gz", "b.json.gz")]
    assert files[0] == files[1]
    assert gzip.decompress(files[0]).decode() == dump(everything())
    again = parse(dump(everything()).encode(), "x")
    assert dump(again) == dump(everything())


def test_an_empty_profile_is_one_too(tmp_path: Path) -> None:
    t = made(environment=None)
    assert same(load(save(t, tmp_path / "p.json")), t)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_come_back_as_they_were(text: str, tmp_path: Path) -> None:
    t = made((What(text, "scope", text, text, text), 0, 1), name=text, notes=(text,))
    assert same(load(save(t, tmp_path / "p.json")), t)


@given(
    st.lists(
        st.tuples(st.text(max_size=5), st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.integers(0, 3)), max_size=10
    )
)
def test_any_spans_come_back(spans: list[tuple[str, int, int, int]]) -> None:
    t = made(*((What(name), start, took, lane) for name, start, took, lane in spans))
    assert same(parse(dump(t).encode("utf-8", "backslashreplace"), "x"), t)


# ---- what is refused


def changed(change: Callable[[dict[str, Any]], Any]) -> bytes:
    data = json.loads(dump(everything()))
    change(data)
    return json.dumps(data).encode()


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of the value at a path like spans.start_ns.0."""

    def change(data: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        at: Any = data
        for key in parents:
            at = at[int(key) if isinstance(at, list) else key]
        at[int(last) if isinstance(at, list) else last] = value

    return change


WRONG = {
    "kind": (put("kind", "other"), "not a profile of tritium"),
    "schema": (put("schema", "1"), "its schema is '1'"),
    "newer": (put("schema", 99), "newer tritium"),
    "extra": (put("more", 1), "'more' is unknown"),
    "about key": (put("about.colour", 1), "unknown key 'colour'"),
    "about type": (put("about.name", 7), "text is needed"),
    "negative total": (put("about.elapsed_total_ns", -1), "elapsed_total_ns"),
    "huge flops": (put("about.whats.0.flops", 1 << 70), "flops"),
    "cost": (put("about.event_cost_ns", -1.0), "below 0"),
    "after": (put("about.after", [[0, 99]]), "cannot have waited"),
    "after backwards": (put("about.after", [[1, 0]]), "cannot have waited"),
    "scope cost": (put("about.scope_cost_ns", -1.0), "below 0"),
    "lanes apart": (put("about.apart", 99), "lanes cannot be"),
    "kind of what": (put("about.whats.0.kind", "bug"), "is not one of"),
    "float": (put("spans.start_ns.0", 1.5), "whole numbers"),
    "bool": (put("spans.start_ns.0", True), "whole numbers"),
    "text": (put("spans.start_ns.0", "0"), "whole numbers"),
    "negative": (put("spans.elapsed_ns.0", -1), "from 0"),
    "late": (put("spans.elapsed_ns.0", (1 << 62) - 1), "2\\^62"),
    "far": (put("spans.start_ns.0", 1 << 63), "from 0"),
    "what": (put("spans.what.0", 99), "spans.what: numbers from 0"),
    "lane": (put("spans.lane.0", 2), "spans.lane: numbers from 0"),
    "short": (put("spans.lane", [0]), "must have the same length"),
    "no column": (put("spans", {"what": []}), "missing"),
    "no object": (put("spans", []), "an object is needed"),
    "order": (put("spans.start_ns.0", 900_000), "must be ordered"),
    "counters": (put("counters", {}), "an array is needed"),
    "counter back": (put("counters.0.at_ns.1", 0), None),
    "counter goes back": (put("counters.0.at_ns.0", 200_000), "must not decrease"),
    "counter value": (put("counters.0.values.0", "x"), "numbers is needed"),
    "counter unit": (put("counters.0.unit", None), "text is needed"),
    "frame": (put("samples.frames.0", 1), "text is needed"),
    "stack": (put("samples.stacks.0", [7]), "numbers from 0"),
    "stacks": (put("samples.stacks", 7), "arrays is needed"),
    "moment": (put("samples.stack.0", 5), "numbers from 0"),
    "every": (put("samples.every_ns", 0), "above 0"),
    "sample lane": (put("samples.lane.0", 9), "numbers from 0"),
}


@pytest.mark.parametrize("which", WRONG)
def test_a_file_that_cannot_be_is_refused_and_says_where(which: str) -> None:
    change, said = WRONG[which]
    if said is None:
        assert parse(changed(change), "p.json").counters
        return
    with pytest.raises(FormatError, match=said) as error:
        parse(changed(change), "p.json")
    assert str(error.value).startswith("p.json")


def test_nothing_outside_a_file_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {
        b"": "empty", b"{": "not JSON", b"[]": "not a profile", b"\xff\xfe": "not UTF-8", b'{"kind": NaN}': "NaN",
        b"\x1f\x8bnot gzip": "cannot be unpacked", gzip.compress(b"{}", mtime=0)[:-4]: "ends too early",
        gzip.compress(b"{}", mtime=0) * 2: "goes on after its end",
    }  # fmt: skip
    for i, (raw, said) in enumerate(cases.items()):
        path = tmp_path / f"{i}.json"
        path.write_bytes(raw)
        with pytest.raises(FormatError, match=said):
            load(path)
    monkeypatch.setattr(profile_file, "MAX_BYTES", 1 << 20)
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b" " * (4 << 20)))
    with pytest.raises(FormatError, match="unpacks to more than 1 MiB"):
        load(bomb)
    with pytest.raises(FormatError, match="there is no such file"):
        load(tmp_path / "none.json")


@given(st.data())
def test_any_one_value_replaced_gives_a_profile_or_a_format_error(data: st.DataObject) -> None:
    """No other exception, whatever stands where."""
    original = json.loads(dump(everything()))
    document = copy.deepcopy(original)
    at: Any = document
    while True:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if isinstance(at[key], (dict, list)) and at[key] and data.draw(st.booleans()):
            at = at[key]
            continue
        at[key] = data.draw(st.sampled_from([None, -1, 0, 1.5, 1 << 80, "x", [], {}, [[]], True]))
        break
    with suppress(FormatError):
        assert isinstance(parse(json.dumps(document).encode(), "p"), Timeline)

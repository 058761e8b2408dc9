"""Files that come in pieces or packed: whole, the same bytes for the same text, and never larger than was said."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tritium.errors import FormatError
from tritium.machine import files


def test_a_gzipped_file_holds_the_text_and_no_time(tmp_path: Path) -> None:
    first, second = (
        files.write_chunks(tmp_path / f"{n}.json.gz", ["a", "ü", "\ud800"]).read_bytes() for n in ("x", "y")
    )
    assert first == second
    assert gzip.decompress(first).decode() == "aü\\ud800"


def test_a_plain_file_holds_the_text(tmp_path: Path) -> None:
    assert files.write_chunks(tmp_path / "x.json", ["a", "b"]).read_text() == "ab"


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_the_folders_of_a_file_in_pieces_are_made(name: str, tmp_path: Path) -> None:
    assert files.write_chunks(tmp_path / "new" / "er" / name, ["a"]).is_file()


@given(st.binary(max_size=200))
def test_what_is_packed_is_unpacked(data: bytes) -> None:
    assert files.unpacked(gzip.compress(data), len(data), "x") == data


@given(st.binary(max_size=50).filter(lambda data: not data.startswith(files.GZIP)))
def test_what_is_not_packed_stays_as_it_is(data: bytes) -> None:
    assert files.unpacked(data, 0, "x") == data


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (gzip.compress(b" " * (3 << 20)), "more than 2 MiB"),
        (gzip.compress(b"{}", mtime=0)[:-4], "ends too early"),
        (gzip.compress(b"{}", mtime=0) * 2, "goes on after its end"),
        (files.GZIP + b"no gzip", "cannot be unpacked"),
    ],
)
def test_a_packed_file_that_is_too_large_or_damaged_is_refused(raw: bytes, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        files.unpacked(raw, 2 << 20, "x")

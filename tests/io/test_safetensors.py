"""Safetensors: what is written is read, by us and by the package that owns the format."""

from __future__ import annotations

import io
import json
import re
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tiny
from tritium.errors import FormatError
from tritium.io import safetensors

ARRAYS = {
    "f32": np.arange(6, dtype="<f4").reshape(2, 3), "bf16": np.arange(3).astype(ml_dtypes.bfloat16), "u8": np.arange(5, dtype="u1"),
    "none": np.empty((0, 4), "<f2"), "one": np.array(7, "<i8"), "yes": np.array([True, False]), "é": np.zeros(2, "<u4"),
}  # fmt: skip


def written(metadata: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    safetensors.write(out, metadata or {}, [tiny.piece(n, a) for n, a in ARRAYS.items()])
    return out.getvalue()


def test_arrays_and_notes_come_back() -> None:
    f = safetensors.parse(written({"format": "pt", "é": "ü"}))
    assert f.metadata == {"format": "pt", "é": "ü"}
    for name, array in ARRAYS.items():
        found = f.array(name)
        assert found.dtype == array.dtype
        assert np.array_equal(found, array), name


def test_arrays_are_views_of_the_buffer() -> None:
    raw = bytearray(written())
    f = safetensors.parse(raw)
    raw[f.tensors["u8"].offset] = 9
    assert f.array("u8")[0] == 9


def test_data_begins_at_a_multiple_of_64_bytes() -> None:
    assert safetensors.parse(written()).tensors["f32"].offset % 64 == 0


def test_spaces_escapes_and_any_order_of_fields_are_read() -> None:
    header = b' { "a\\u00e9\\n" : { "data_offsets" : [ 0 , 4 ] , "shape":[1],\n"dtype" : "F32" } }  '
    f = safetensors.parse(struct.pack("<Q", len(header)) + header + bytes(4))
    assert list(f.tensors) == ["aé\n"]


def test_the_safetensors_package_reads_what_we_write() -> None:
    package = pytest.importorskip("safetensors")
    found = dict(package.deserialize(written({"format": "pt"})))
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name]["shape"] == list(array.shape)
        assert bytes(found[name]["data"]) == array.tobytes()


def test_we_read_what_the_safetensors_package_writes() -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    arrays = {n: a for n, a in ARRAYS.items() if a.dtype != ml_dtypes.bfloat16}
    f = safetensors.parse(numpy.save(arrays, {"k": "v"}))
    assert f.metadata == {"k": "v"}
    assert all(np.array_equal(f.array(n), a) for n, a in arrays.items())


def test_headers_are_read_as_json_reads_them() -> None:
    raw = written({"format": "pt"})
    (n,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + n])
    f = safetensors.parse(raw)
    assert {k: (v["dtype"], tuple(v["shape"])) for k, v in header.items() if k != "__metadata__"} == {
        t.name: (t.dtype, t.shape) for t in f.tensors.values()
    }


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_short_way_through_a_header_is_the_long_one(data: st.DataObject) -> None:
    """A tensor in the usual order of fields is read by one expression; the result and any fault are those of reading each sign."""
    space = st.sampled_from(["", "", "", " ", "\n\t"])
    number = st.sampled_from(["0", "1", "24", "9" * 19, "01", "-1", "1.0", "9" * 20, ""])
    numbers = st.lists(number, max_size=9).map(lambda ns: f"[{','.join(ns)}]")
    fields = [
        f'"dtype"{data.draw(space)}:{data.draw(space)}"{data.draw(st.sampled_from(["F32", "U8", "F99", "x"]))}"',
        f'"shape":{data.draw(space)}{data.draw(numbers)}',
        f'"data_offsets":{data.draw(st.sampled_from(["[0,24]", "[0, 24]", "[24,0]", "[ 0,24]", "[0]", "[0,1,2]"]))}',
    ]
    order = data.draw(st.sampled_from([(0, 1, 2), (0, 1, 2), (1, 0, 2), (0, 1), (0, 1, 2, 2)]))
    text = data.draw(space) + "{" + ",".join(fields[i] for i in order) + data.draw(st.sampled_from(["}", "}", "]", ""]))

    def read() -> tuple[object, object]:
        header = safetensors._Header(text)
        try:
            return header.tensor("t"), header.position
        except FormatError as error:
            return "fault", str(error)

    short = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safetensors, "_USUAL", re.compile("(?!)"))
        assert read() == short

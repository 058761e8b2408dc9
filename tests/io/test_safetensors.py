"""Safetensors: what is written is read, by us and by the package that owns the format."""

from __future__ import annotations

import io
import json
import struct

import ml_dtypes
import numpy as np
import pytest

import tiny
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

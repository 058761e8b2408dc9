"""Tensors by name in a safetensors file: what is saved is loaded, by us and by the package that owns the format."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import tritium as tt
from tritium import dtype, errors
from tritium.io import safetensors

KINDS = [t for t in dtype.ALL if not t.is_packed]
names = st.text('aé🙂"\\/ \n\0', max_size=5)  # what JSON escapes, and what it does not
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def plain(kind: Any, *shape: int) -> tt.Tensor:
    return tt.asarray(np.random.default_rng(0).integers(0, 2, shape)).to(kind)


@few
@given(
    st.dictionaries(
        names.filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(KINDS), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), st.booleans()),
        max_size=6,
    ),
    st.dictionaries(names, names, max_size=3),
    st.booleans(),
)  # fmt: skip
def test_what_is_saved_is_loaded(tmp_path: Path, described: Any, notes: dict[str, str], mapped: bool) -> None:
    saved = {
        name: x[::-1] if turned and (x := plain(kind, *shape)).ndim else plain(kind, *shape)
        for name, (kind, shape, turned) in described.items()
    }
    tt.save(tmp_path / "x.safetensors", saved, metadata=notes)
    loaded = tt.load_tensors(tmp_path / "x.safetensors", mapped=mapped)
    assert loaded.metadata == notes
    assert loaded.keys() == saved.keys()
    for name, x in saved.items():
        got = loaded[name]
        assert got.dtype is x.dtype
        assert got.shape == x.shape
        assert got.tolist() == x.tolist()


def test_the_package_of_the_format_reads_and_writes_the_same_file(tmp_path: Path) -> None:
    theirs = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(3, dtype=np.int8)}
    tt.save(tmp_path / "x", arrays, metadata={"by": "us"})
    for name, data in theirs.load_file(tmp_path / "x").items():
        np.testing.assert_array_equal(data, arrays[name])
    theirs.save_file(arrays, tmp_path / "y", metadata={"by": "them"})
    loaded = tt.load_tensors(tmp_path / "y")
    assert loaded.metadata == {"by": "them"}
    assert {name: x.tolist() for name, x in loaded.items()} == {name: a.tolist() for name, a in arrays.items()}


def test_a_loaded_tensor_is_the_mapped_file_and_read_only(tmp_path: Path) -> None:
    path = tmp_path / "x"
    tt.save(path, {"odd": tt.ones(3, dtype="u8"), "x": tt.ones((4, 4)), "wide": tt.ones(2, dtype="f64")})
    loaded = tt.load_tensors(path)
    assert all(x.storage.imported for x in loaded.values())
    with pytest.raises(errors.ViewError):
        loaded["x"] += 1
    mine = loaded["x"].clone()
    mine += 1
    tt.save(path, loaded | {"x": mine})  # over the file that is mapped
    assert loaded["x"].tolist() == [[1.0] * 4] * 4
    assert tt.load_tensors(path)["x"].tolist() == [[2.0] * 4] * 4


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    tt.save(path, {"x": tt.ones(2)})

    def full(*args: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors, "write", full)
    with pytest.raises(errors.FormatError, match="nothing was changed"):
        tt.save(path, {"x": tt.zeros(2)})
    assert tt.load_tensors(path)["x"].tolist() == [1.0, 1.0]
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_what_cannot_be_saved_says_why(tmp_path: Path) -> None:
    path = tmp_path / "x"
    ternary, _ = tt.quantize_ternary(tt.ones((4, 8)))
    for tensors, error, words in [
        (tt.ones(2), errors.ArgumentError, "a dict of tensors by name"), ({1: tt.ones(2)}, errors.ArgumentError, "a name is a string"),
        ({"__metadata__": tt.ones(2)}, errors.ArgumentError, "a name is a string"), ({"x": ternary}, errors.DTypeError, "as_bytes"),
        ({"x": "text"}, errors.ArgumentError, "a tensor or an array"), ({"\ud800": tt.ones(2)}, errors.ArgumentError, "surrogate"),
        ({"x": tt.ones((1,) * 9)}, errors.ArgumentError, "at most 8"), ({"x": np.array(["a"])}, errors.ArgumentError, "save: 'x'"),
    ]:  # fmt: skip
        with pytest.raises(error, match=words):
            tt.save(path, tensors)
    with pytest.raises(errors.ArgumentError, match="metadata must be a dict of strings"):
        tt.save(path, {}, metadata={"epoch": 3})  # type: ignore[dict-item]
    with pytest.raises(errors.ArgumentError, match="path"):
        tt.save({"x": tt.ones(2)}, path)  # type: ignore[arg-type]
    assert not path.exists()
    tt.save(path, {})
    with pytest.raises(errors.FormatError, match="exists already"):
        tt.save(path, {}, overwrite=False)
    with pytest.raises(errors.TraceError):
        tt.trace(lambda x: tt.save(path, {"x": x}), tt.Spec((2,)))


def file_of(header: str, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header.encode() + data


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff" * 8, struct.pack("<Q", 2**62) + b"{}", file_of("{"), file_of("[]"), file_of('{"x":{}}'),
        file_of('{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', b"\0" * 8),
        file_of('{"x":{"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,4]}}', b"\0" * 4),
        file_of('{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"y":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4),
        file_of('{"x":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}', b"\1\2"),
        file_of('{"x":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}', b"\1\2"),
        file_of('{"x":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}', b"\0" * 8),
    ],
)  # fmt: skip
def test_hostile_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    for mapped in (True, False):
        with pytest.raises(errors.FormatError):
            tt.load_tensors(tmp_path / "x", mapped=mapped)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(errors.FormatError, match="nothing: cannot be read"):
        tt.load_tensors(tmp_path / "nothing")
    with pytest.raises(errors.FormatError):
        tt.load_tensors(tmp_path)
    with pytest.raises(errors.FormatError, match="does not exist"):
        tt.save(tmp_path / "no" / "x", {})

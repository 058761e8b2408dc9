"""Every class of fault known from model files of the wild, as a file that must be refused in one clear error."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from tritium.errors import FormatError
from tritium.io import Ternary, codecs, gguf, open as open_model, safetensors
from tritium.io.model import names, tokenizer
from tritium.io.reader import Reader, contained, product, read_json
from tritium.io.stream import Piece

TOO_MANY = [2**31, 2**32 + 1, 2**62, 2**63, 2**64 - 1]


# ---- GGUF, by hand: what our own writer would never write


def text(s: str | bytes) -> bytes:
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, value: bytes) -> bytes:
    return text(key) + value


def info(name: str | bytes = "w", dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file(
    *, pairs: tuple[bytes, ...] = (), infos: tuple[bytes, ...] = (), data: int = 0, version: int = 3, n_tensors: int | None = None,
    n_pairs: int | None = None, magic: bytes = b"GGUF",
) -> bytes:  # fmt: skip
    head = magic + struct.pack(
        "<IQQ", version, len(infos) if n_tensors is None else n_tensors, len(pairs) if n_pairs is None else n_pairs
    )
    head += b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % 32) + bytes(data)


def refused(raw: bytes, match: str) -> None:
    with pytest.raises(FormatError, match=match):
        gguf.parse(raw)


def test_the_files_made_here_are_good_when_nothing_is_wrong() -> None:
    f = gguf.parse(file(pairs=(pair("a", gguf.number("u32", 7)),), infos=(info(),), data=128))
    assert f.metadata["a"] == 7
    assert f.tensors["w"].nbytes == 128


@pytest.mark.parametrize("n", TOO_MANY)
def test_gguf_metadata_count_beyond_the_file(n: int) -> None:
    refused(file(n_pairs=n), "metadata count.*a count of")


@pytest.mark.parametrize("n", TOO_MANY)
def test_gguf_tensor_count_beyond_the_file(n: int) -> None:
    refused(file(n_tensors=n), "tensor count.*a count of")


@pytest.mark.parametrize("n", TOO_MANY)
@pytest.mark.parametrize("item", [0, 4, 8, 12])
def test_gguf_array_length_beyond_the_file(n: int, item: int) -> None:
    refused(file(pairs=(pair("a", struct.pack("<IIQ", 9, item, n)),)), "value of 'a'.*a count of")


@pytest.mark.parametrize("n", TOO_MANY)
def test_gguf_string_length_beyond_the_file(n: int) -> None:
    refused(file(pairs=(struct.pack("<Q", n) + b"key",)), "length of key 0.*a count of")


def test_gguf_string_in_an_array_beyond_the_file() -> None:
    refused(file(pairs=(pair("a", struct.pack("<IIQQ", 9, 8, 2, 2**63)),), data=64), "value of 'a', string 0")


@pytest.mark.parametrize("dims", [(2**62, 4), (2**32, 2**32), (2**63, 1), (2**16, 2**16, 2**16, 2**16)])
def test_gguf_dimensions_whose_product_overflows(dims: tuple[int, ...]) -> None:
    refused(file(infos=(info(dims=dims),), data=64), r"2\*\*63|a dimension of")


def test_gguf_logical_exabytes_in_a_small_file() -> None:
    refused(file(infos=(info(dims=(2**30, 2**28)),), data=64), "within the")


def test_gguf_too_many_dimensions() -> None:
    refused(file(infos=(info(dims=(1,) * 5),), data=64), "5 dimensions.*at most 4")


def test_gguf_dimension_count_beyond_the_file() -> None:
    refused(file(infos=(text("w") + struct.pack("<I", 2**32 - 1),)), "dimensions.*at most 4")


@pytest.mark.parametrize("value", [0, 1, 3, 24, 2**17, 2**31, 2**32 - 1])
def test_gguf_alignment_that_is_no_sane_power_of_two(value: int) -> None:
    refused(file(pairs=(pair("general.alignment", gguf.number("u32", value)),)), "general.alignment.*power of two")


def test_gguf_alignment_of_the_wrong_type() -> None:
    refused(file(pairs=(pair("general.alignment", gguf.string("32")),)), "general.alignment")


def test_gguf_element_type_is_checked_with_the_count() -> None:
    """An array of INT8 read as 4-byte numbers runs past its end: here its items keep their own size."""
    raw = file(pairs=(pair("tokenizer.ggml.token_type", gguf.array("i8", [1, 2, 3])), pair("z", gguf.number("u8", 9))))
    assert gguf.parse(raw).metadata["tokenizer.ggml.token_type"] == [1, 2, 3]
    assert gguf.parse(raw).metadata["z"] == 9


@pytest.mark.parametrize("kind", [13, 99, 2**31, 2**32 - 1])
def test_gguf_value_type_that_does_not_exist(kind: int) -> None:
    refused(file(pairs=(pair("a", struct.pack("<IQ", kind, 0)),)), f"found type {kind}")


def test_gguf_arrays_of_arrays() -> None:
    refused(file(pairs=(pair("a", struct.pack("<IIQIIQ", 9, 9, 1, 9, 9, 1)),)), "an array of type 9")


def test_gguf_truth_value_that_is_neither() -> None:
    refused(file(pairs=(pair("a", struct.pack("<IB", 7, 2)),)), "truth value 2")
    refused(file(pairs=(pair("a", struct.pack("<IIQBB", 9, 7, 2, 1, 7)),)), "truth value")


@pytest.mark.parametrize("kind", [4, 5, 43, 133, 2**31, 2**32 - 1])
def test_gguf_tensor_type_that_does_not_exist(kind: int) -> None:
    refused(file(infos=(info(kind=kind),), data=128), f"type id {kind}")


def test_gguf_zero_dimensions_divide_nothing() -> None:
    f = gguf.parse(file(infos=(info("a", (0, 4)), info("b", (32, 0), kind=8), info("c", (256, 0, 3), kind=35)), data=0))
    assert [t.nbytes for t in f.tensors.values()] == [0, 0, 0]


@pytest.mark.parametrize("kind", [134, 135, 38, 39, 36])
def test_gguf_zero_dimensions_in_types_that_count_rows(kind: int) -> None:
    for dims in ((0, 0), (0, 5), (64, 0)):
        try:
            gguf.parse(file(infos=(info(dims=dims, kind=kind),), data=32))
        except FormatError:
            continue


def test_gguf_numbers_in_names_are_never_an_index() -> None:
    name = "blk.4294967295000.attn_q.weight"
    assert gguf.parse(file(infos=(info(name),), data=128)).tensors[name].shape == (32,)


def test_gguf_offset_that_is_not_aligned() -> None:
    refused(file(infos=(info(offset=4),), data=256), "offset 4.*multiple of the alignment")


@pytest.mark.parametrize("offset", [2**40, 2**63, 2**64 - 32])
def test_gguf_offset_beyond_the_file(offset: int) -> None:
    refused(file(infos=(info(offset=offset),), data=128), "within the")


def test_gguf_tensors_that_overlap() -> None:
    refused(file(infos=(info("a"), info("b", offset=32)), data=256), "inside that of 'a'")


def test_gguf_the_same_key_twice() -> None:
    one = pair("a", gguf.number("u8", 1))
    refused(file(pairs=(one, one)), "the key 'a' twice")


def test_gguf_the_same_tensor_twice() -> None:
    refused(file(infos=(info(), info(offset=128)), data=256), "the name 'w' twice")


def test_gguf_rows_that_do_not_fit_their_blocks() -> None:
    refused(file(infos=(info(dims=(100, 2), kind=35),), data=256), "rows of 100 values in TQ2_0.*multiple of 256")


def test_gguf_colliding_id_of_no_known_length() -> None:
    refused(file(infos=(info(dims=(128, 2), kind=36),), data=4096), "type id 36 with 4096 bytes.*I2_S 96")


@pytest.mark.parametrize("name", [b"\xff\xfe", b"\x80abc"])
def test_gguf_names_that_are_not_text(name: bytes) -> None:
    refused(file(infos=(info(name),), data=128), "not UTF-8")
    refused(file(pairs=(pair(name, gguf.number("u8", 1)),)), "not UTF-8")


def test_gguf_names_and_keys_without_end() -> None:
    refused(file(infos=(info("w" * 256),), data=128), "a count of 256, needed at most 255")
    refused(file(pairs=(pair("k" * 70000, gguf.number("u8", 1)),)), "a count of 70000, needed at most 65535")


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (b"", "0 bytes left"),
        (b"GG", "2 bytes left"),
        (file(magic=b"GGML"), "not a GGUF file"),
        (file(version=1), "Version 1 was short-lived"),
        (file(version=4), "found 4, needed 2 or 3"),
        (file(version=3 << 24), "big-endian"),
    ],
)
def test_gguf_beginnings_that_are_no_gguf(raw: bytes, match: str) -> None:
    refused(raw, match)


def test_gguf_cut_at_any_byte_is_one_clear_error() -> None:
    whole = file(
        pairs=(pair("a", gguf.array("str", ["x", "yz"])), pair("b", gguf.number("f64", 1))), infos=(info(),), data=128
    )
    for n in range(len(whole)):
        refused(whole[:n], "found")


# ---- safetensors


def safe(header: Any, data: int = 0, *, size: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if size is None else size) + raw + bytes(data)


def row(shape: Any = (2,), span: Any = (0, 8), dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": span} | more


def refused_safe(raw: bytes, match: str) -> None:
    with pytest.raises(FormatError, match=match):
        safetensors.parse(raw)


def test_safetensors_made_here_are_good_when_nothing_is_wrong() -> None:
    assert safetensors.parse(safe({"w": row()}, 8)).array("w").shape == (2,)


@pytest.mark.parametrize("size", TOO_MANY)
def test_safetensors_header_length_beyond_the_file(size: int) -> None:
    refused_safe(safe({"w": row()}, 8, size=size), "header length.*a count of")


def test_safetensors_header_above_the_cap() -> None:
    refused_safe(struct.pack("<Q", 1 << 25) + bytes(1 << 25), "needed at most 8388608")


@pytest.mark.parametrize(
    "shape",
    [[2**62, 4], [2**32, 2**32], [-1], [1.5], ["2"], [True], [None], [[2]], "2", 2, None, {}, [2**64], [1] * 9, [1e3]],
)
def test_safetensors_shapes_that_are_none(shape: Any) -> None:
    with pytest.raises(FormatError):
        safetensors.parse(safe({"w": row(shape)}, 8))


@pytest.mark.parametrize("span", [(0, 2**63), (8, 0), (0,), (0, 8, 8), (4, 12), (-8, 0), (0, 7), (2**63, 2**63 + 8)])
def test_safetensors_offsets_that_do_not_fit(span: Any) -> None:
    with pytest.raises(FormatError):
        safetensors.parse(safe({"w": row(span=span)}, 8))


@pytest.mark.parametrize("dtype", ["F33", "", "pickle", "F32\0", 7, None, ["F32"]])
def test_safetensors_dtypes_that_do_not_exist(dtype: Any) -> None:
    with pytest.raises(FormatError):
        safetensors.parse(safe({"w": row(dtype=dtype)}, 8))


def test_safetensors_zero_dimensions_divide_nothing() -> None:
    f = safetensors.parse(safe({"w": row((0, 5), (0, 0)), "v": row((), (0, 4))}, 4))
    assert f.array("w").shape == (0, 5)
    assert f.array("v").shape == ()


def test_safetensors_the_same_name_twice() -> None:
    one = json.dumps({"w": row()})[1:-1]
    refused_safe(safe(f"{{{one},{one}}}".encode(), 8), "the key 'w' twice")


def test_safetensors_the_same_field_twice() -> None:
    refused_safe(safe(b'{"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8), "'dtype' twice")


def test_safetensors_tensors_that_overlap() -> None:
    refused_safe(safe({"a": row(), "b": row(span=(4, 12))}, 12), "inside that of 'a'")


def test_safetensors_bytes_that_belong_to_nobody() -> None:
    refused_safe(safe({"a": row()}, 9), "1 bytes that belong to no tensor")
    refused_safe(safe({"a": row(), "b": row(span=(12, 20))}, 20), "4 bytes that belong to no tensor")


def test_safetensors_unknown_fields() -> None:
    refused_safe(safe({"w": row(path="/etc/passwd")}, 8), "the key 'path'")


@pytest.mark.parametrize("depth", [10, 10**6])
def test_safetensors_nesting_is_never_followed(depth: int) -> None:
    refused_safe(safe(b'{"w":' + b"[" * depth, 0), r"found '\[+'")


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'{"w"', b'{"w":{}}', b"{} x", b'{"w":{"dtype":', b"\xff\xfe", b'{"\\ud800":{}}']
)
def test_safetensors_headers_that_are_none(raw: bytes) -> None:
    with pytest.raises(FormatError):
        safetensors.parse(safe(raw))


def test_safetensors_numbers_without_end() -> None:
    refused_safe(safe(b'{"w":{"dtype":"F32","shape":[' + b"9" * 100000 + b"]}}"), "whole numbers")


def test_safetensors_cut_at_any_byte_is_one_clear_error() -> None:
    whole = safe({"__metadata__": {"format": "pt"}, "w": row()}, 8)
    for n in range(len(whole)):
        refused_safe(whole[:n], "found")


# ---- memory


@pytest.mark.parametrize(
    "make",
    [
        lambda: gguf.parse(file(n_pairs=2**40)),
        lambda: gguf.parse(file(pairs=(pair("a", struct.pack("<IIQ", 9, 12, 2**40)),))),
        lambda: gguf.parse(file(infos=(info(dims=(2**40,)),), data=64)),
        lambda: safetensors.parse(safe({"w": row([2**40], [0, 2**42])}, 8)),
        lambda: codecs.i2_s.decode(bytes(64), (2**30, 2**10)),
        lambda: codecs.tq1_0.decode(bytes(64), (2**30, 2**10)),
        lambda: codecs.hf.decode(bytes(64), (2**30, 2**10)),
        lambda: codecs.mlx.decode(bytes(64), (2**30, 2**10), np.zeros((1, 1)), np.zeros((1, 1)), 64),
        lambda: codecs.tq2_0.decode(b"", (2**62, 0)),
    ],
)
def test_nothing_is_allocated_for_a_count_that_cannot_be(make: Callable[[], Any]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            make()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# ---- codecs

GOOD = Ternary.from_values(np.random.default_rng(0).integers(-1, 2, (4, 256)), 0.5)


@pytest.mark.parametrize(
    ("codec", "byte", "at"),
    [
        (codecs.i2_s, 64 + 5, "row 1, column 5"),
        (codecs.tq2_0, 66 + 5, "row 1, column 101"),
        (codecs.q2_0, 72 + 2 + 1, "row 1, column 7"),
    ],
    ids=["i2_s", "tq2_0", "q2_0"],
)
def test_illegal_codes_are_named_with_their_place(codec: Any, byte: int, at: str) -> None:
    raw = codec.encode(GOOD)
    raw[byte] |= 0xC0
    with pytest.raises(FormatError, match=f"{at}: found code 3"):
        codec.decode(raw, GOOD.shape)


def test_illegal_codes_in_hf_packing_are_named_with_their_place() -> None:
    raw = codecs.hf.encode(GOOD)
    raw[0, 9] |= 0x0C
    with pytest.raises(FormatError, match="row 1, column 9: found code 3"):
        codecs.hf.decode(raw, GOOD.shape)


def test_code_three_of_q2_0_is_explained() -> None:
    raw = codecs.q2_0.encode(GOOD)
    raw[2] = 3
    with pytest.raises(FormatError, match=r"means \+2 here.*not ternary"):
        codecs.q2_0.decode(raw, GOOD.shape)


@pytest.mark.parametrize("byte", [0, 47, 48, 51])
def test_bytes_that_are_no_ternary_digits_are_named_with_their_place(byte: int) -> None:
    raw = codecs.tq1_0.encode(GOOD)
    legal = set(codecs._BYTE[:: 3 if byte >= 48 else 1].tolist())
    for value in sorted(set(range(256)) - legal):
        raw[2 * 54 + byte] = value
        with pytest.raises(FormatError, match=f"row 2, block 0, byte {byte}: found {value:#04x}"):
            codecs.tq1_0.decode(raw, GOOD.shape)


@pytest.mark.parametrize(
    "codec", [codecs.i2_s, codecs.tq1_0, codecs.tq2_0, codecs.q2_0, codecs.pq2_0, codecs.hf], ids=lambda c: c.name
)
@pytest.mark.parametrize("change", [-1, 1, 32])
def test_packed_bytes_of_the_wrong_length(codec: Any, change: int) -> None:
    raw = codec.encode(GOOD).tobytes()
    with pytest.raises(FormatError, match=f"{len(raw) + change} bytes, needed {len(raw)}"):
        codec.decode(raw + bytes(change) if change > 0 else raw[:change], GOOD.shape)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scales_that_are_not_finite(bad: float) -> None:
    i2_s = codecs.i2_s.encode(GOOD)
    i2_s[256:260] = np.array([bad], "<f4").view(np.uint8)
    tq2 = codecs.tq2_0.encode(GOOD)
    tq2[-2:] = np.array([bad], "<f2").view(np.uint8)
    for call in (
        lambda: codecs.i2_s.decode(i2_s, GOOD.shape),
        lambda: codecs.tq2_0.decode(tq2, GOOD.shape),
        lambda: codecs.hf.decode(codecs.hf.encode(GOOD), GOOD.shape, bad),
        lambda: codecs.floats.decode(np.full((2, 4), bad, np.float32)),
    ):
        with pytest.raises(FormatError, match="needed a finite number"):
            call()


def test_a_scale_of_zero_cannot_divide() -> None:
    with pytest.raises(FormatError, match="1/weight_scale"):
        codecs.hf.decode(codecs.hf.encode(GOOD), GOOD.shape, 0.0, inverted=True)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_scales_of_the_wrong_count(count: int) -> None:
    with pytest.raises(FormatError, match=f"{count} values, needed 1"):
        codecs.hf.decode(codecs.hf.encode(GOOD), GOOD.shape, np.ones(count))
    a = codecs.mlx.encode(GOOD)
    with pytest.raises(FormatError, match="scales and biases"):
        codecs.mlx.decode(a.words, GOOD.shape, np.ones((4, count + 4)), a.biases, a.group)


@pytest.mark.parametrize("group", [-64, 0, 1, 48, 10**9])
def test_mlx_groups_that_do_not_exist(group: int) -> None:
    a = codecs.mlx.encode(GOOD)
    with pytest.raises(FormatError, match="group size"):
        codecs.mlx.decode(a.words, GOOD.shape, a.scales, a.biases, group)


def test_mlx_biases_that_are_not_the_negated_scales() -> None:
    a = codecs.mlx.encode(GOOD)
    with pytest.raises(FormatError, match=r"biases\[0, 0\].*four levels"):
        codecs.mlx.decode(a.words, GOOD.shape, a.scales, -2 * a.scales, a.group)


@pytest.mark.parametrize("shape", [(4,), (4, 4, 4), (-4, 256), (2**40, 2**40)])
def test_shapes_that_are_no_matrix(shape: Any) -> None:
    for codec in (codecs.i2_s, codecs.tq1_0, codecs.q2_0, codecs.hf):
        with pytest.raises(FormatError):
            codec.decode(bytes(64), shape)


@pytest.mark.parametrize(
    "codec", [codecs.i2_s, codecs.tq1_0, codecs.tq2_0, codecs.q2_0, codecs.hf], ids=lambda c: c.name
)
@pytest.mark.parametrize("shape", [(0, 256), (4, 0), (0, 0)])
def test_matrices_without_values_are_read(codec: Any, shape: tuple[int, int]) -> None:
    found = codec.decode(bytes(codec.nbytes(shape)), shape)
    assert found.values().shape == found.dense().shape == shape
    assert found.simplified().shape == shape


# ---- what the fuzzers found


def test_gguf_scalar_of_a_block_type() -> None:
    refused(file(infos=(info(dims=(), kind=35),), data=128), "rows of 1 values in TQ2_0")


@pytest.mark.parametrize("dims", [(2**62, 0), (0, 2**60), (2**20, 2, 0)])
def test_empty_tensors_with_vast_sides(dims: tuple[int, ...]) -> None:
    refused(file(infos=(info(dims=dims),)), "an empty tensor")
    refused_safe(safe({"w": row(list(dims), [0, 0])}), "an empty tensor")


@pytest.mark.parametrize("key", ["general.architecture", "llama.attention.head_count", "tokenizer.ggml.model"])
def test_lists_where_one_value_belongs_are_not_read(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf.Value, "_strings", lambda self: pytest.fail("read the list"))
    assert gguf.scalar(gguf.parse(file(pairs=(pair(key, gguf.array("str", ["a"] * 9)),))).metadata, key) is None


def test_gguf_alignment_that_is_a_list() -> None:
    refused(file(pairs=(pair("general.alignment", gguf.array("u8", [32] * 9)),)), "a value of type 9")


def test_lone_surrogates_have_no_place_in_gguf_or_paths(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="lone surrogate"):
        gguf.string("a\ud800")
    with pytest.raises(FormatError, match="plain file name"):
        contained(tmp_path, "a\ud800")


@pytest.mark.parametrize(
    "raw", [b'{"a":[' + b"[]," * 2_000_000 + b"[]]}", b'{"a":"\xf0\x9f\x99\x82' + b"x" * 24_000_000 + b'"}']
)
def test_json_that_would_grow_beyond_its_budget_is_never_built(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "config.json").write_bytes(raw)
    with pytest.raises(FormatError, match=r"JSON that would take|bytes, needed at most"):
        read_json(tmp_path / "config.json")


# ---- paths, side files, pickles


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", ".", "", "c:x", "a\\b", "a\0b"])
def test_an_index_that_names_files_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(FormatError, match="plain file name inside the model directory"):
        open_model(tmp_path)


def test_a_link_that_leads_out_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    secret = tiny.save(tmp_path / "secret", {"w": np.zeros(3, np.float32)})
    (tmp_path / "model" / "model.safetensors").symlink_to(secret)
    with pytest.raises(FormatError, match="a link that leads to"):
        open_model(tmp_path / "model")


def test_links_of_the_hub_cache_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    snapshot = tmp_path / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    tiny.save(tmp_path / "blobs" / "abc", {"w": np.zeros(3, np.float32)})
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    assert contained(snapshot, "model.safetensors").name == "abc"
    assert list(open_model(snapshot).entries) == ["w"]


def test_links_of_a_folder_in_the_hub_cache_and_of_its_shared_files(tmp_path: Path) -> None:
    repository = tmp_path / "models--a--b"
    inner = repository / "snapshots" / "0123" / "1_Pooling"
    inner.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (tmp_path / "blobs" / "ab").mkdir(parents=True)
    (tmp_path / "blobs" / "ab" / "abcd").write_text("{}")
    (repository / "blobs" / "e1").symlink_to("../../blobs/ab/abcd")
    (inner / "config.json").symlink_to("../../../blobs/e1")
    assert contained(inner, "config.json") == tmp_path / "blobs" / "ab" / "abcd"
    (inner / "secret.json").symlink_to(tmp_path / "secret")
    with pytest.raises(FormatError, match="a link that leads to"):
        contained(inner, "secret.json")


@pytest.mark.parametrize("where", [[], "x", {"w": 3}, None, {}])
def test_an_index_without_a_map_of_files(tmp_path: Path, where: Any) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    with pytest.raises(FormatError, match="weight_map"):
        open_model(tmp_path)


def test_an_index_that_names_a_tensor_its_file_has_not(tmp_path: Path) -> None:
    tiny.save(tmp_path / "a.safetensors", {"w": np.zeros(3, np.float32)})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"v": "a.safetensors"}}))
    with pytest.raises(FormatError, match="no tensor 'v'"):
        open_model(tmp_path)


def test_shards_that_both_hold_a_tensor(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tiny.save(tmp_path / name, {"w": np.zeros(3, np.float32)})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "a", "v": "b"}}))
    with pytest.raises(FormatError, match="each tensor once"):
        open_model(tmp_path)


@pytest.mark.parametrize("head", [b"PK\x03\x04", b"\x80\x02}q"])
def test_pickles_are_never_read(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(head + bytes(64))
    with pytest.raises(FormatError, match=r"pickle.*safetensors first"):
        open_model(tmp_path / "pytorch_model.bin")


@pytest.mark.parametrize("raw", [b'{"a":1,"a":2}', b"[" * 100000, b"{", b"\xff", b"[]", b""])
def test_side_files_that_are_no_plain_json(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "config.json").write_bytes(raw)
    with pytest.raises(FormatError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


def test_side_files_above_the_cap(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"a":"' + b"x" * 100 + b'"}')
    with pytest.raises(FormatError, match="at most 50"):
        read_json(tmp_path / "config.json", most=50)


def test_side_files_that_would_grow_are_refused_before_memory_is_spent(tmp_path: Path) -> None:
    raw = '{"a":"😀'.encode() + b"x" * (12 << 20) + b'"}'
    (tmp_path / "config.json").write_bytes(raw)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="JSON that would take 96 MB"):
            read_json(tmp_path / "config.json")
        assert tracemalloc.get_traced_memory()[1] < len(raw) + (4 << 20)
    finally:
        tracemalloc.stop()


STRANGE = [None, [], {}, "x", -1, 1.5, True, 2**70, 1e39, [1], {"a": []}]


@pytest.mark.parametrize("strange", STRANGE, ids=repr)
def test_configurations_with_strange_values_are_read_or_refused(tmp_path: Path, strange: Any) -> None:
    """Any value may stand anywhere in config.json: the answer is a model or a FormatError, never another exception."""
    source = tiny.hf_packed(tmp_path / "m", "llama")
    good = json.loads((source / "config.json").read_text()) | {"rope_parameters": {}, "quantization": {}}
    for key in good:
        (source / "config.json").write_text(json.dumps(good | {key: strange}))
        try:
            names.config_to_gguf(open_model(source).config, names.ARCHS["llama"])
        except FormatError:
            continue


def test_a_vocabulary_with_vast_gaps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 4_000_000}, "merges": []}}))
    with pytest.raises(FormatError, match="few gaps"):
        tokenizer.to_gguf(tmp_path, {})


# ---- the reader itself


def test_a_reader_never_steps_past_the_end() -> None:
    r = Reader(bytes(5), "test")
    assert r.u32("four") == 0
    with pytest.raises(FormatError, match="two at byte 4: found 1 bytes left, needed 4 bytes"):
        r.u32("two")
    with pytest.raises(FormatError):
        r.take(-1, "backwards")


def test_a_product_with_a_zero_still_checks_the_rest() -> None:
    assert product((0, 5), "x") == 0
    with pytest.raises(FormatError):
        product((0, 2**40, 2**40), "x")


def test_names_in_messages_cannot_steer_a_terminal() -> None:
    with pytest.raises(FormatError) as caught:
        gguf.parse(file(infos=(info("\x1b[2Jw" + "x" * 200, kind=99),), data=128))
    assert "\x1b" not in str(caught.value)


def test_a_piece_that_breaks_its_word_is_an_error() -> None:
    with pytest.raises(FormatError, match="3 bytes were written, 4 were declared"):
        safetensors.write(io.BytesIO(), {}, [Piece("w", (1,), "F32", 4, lambda: [b"abc"])])


def test_forgotten_bytes_are_read_again(tmp_path: Path) -> None:
    from tritium.io.reader import forget, map_file

    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(256)) * 256)
    view = map_file(path)
    for part in (view, view[5:40_000], view[:10], view[:0], memoryview(b"not mapped")):
        before = bytes(part)
        forget(part)
        assert bytes(part) == before

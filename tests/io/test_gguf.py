"""GGUF: what is written is read, by us and by the package that owns the format; ids that collide are told apart."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tritium.errors import FormatError
from tritium.io import Ternary, codecs, ggml, gguf, open as open_model
from tritium.io.stream import Piece

VALUES = {
    "general.architecture": (gguf.string("bitnet-b1.58"), "bitnet-b1.58"),
    "tokens": (gguf.array("str", ["a", "", "Ġé", "🙂"]), ["a", "", "Ġé", "🙂"]),
    "numbers": (gguf.array("i32", [1, -2, 3]), [1, -2, 3]),
    "empty": (gguf.array("f32", []), []),
    "flags": (gguf.array("bool", [True, False]), [True, False]),
    "yes": (gguf.number("bool", True), True),
    "big": (gguf.number("u64", 2**64 - 1), 2**64 - 1),
    "small": (gguf.number("i8", -5), -5),
    "real": (gguf.number("f64", 0.1), 0.1),
}
W = Ternary.from_values(np.random.default_rng(0).integers(-1, 2, (6, 512)), 0.25)


def piece(name: str, kind: str, data: Any, shape: tuple[int, ...]) -> Piece:
    return Piece(name, shape, kind, data.nbytes, lambda: [data])


def written(pieces: list[Piece], **more: bytes) -> bytes:
    out = io.BytesIO()
    gguf.write(out, {k: v for k, (v, _) in VALUES.items()} | more, pieces)
    return out.getvalue()


PIECES = [
    piece("w", "TQ2_0", codecs.tq2_0.encode(W), W.shape),
    piece("v", "F32", np.arange(3, dtype="<f4"), (3,)),
    piece("i", "I2_S", codecs.i2_s.encode(W), W.shape),
]


def test_metadata_and_tensors_come_back() -> None:
    f = gguf.parse(written(PIECES))
    assert dict(f.metadata) == {k: v for k, (_, v) in VALUES.items()}
    assert {t.name: (t.shape, t.type.name) for t in f.tensors.values()} == {
        "w": ((6, 512), "TQ2_0"), "v": ((3,), "F32"), "i": ((6, 512), "I2_S"),
    }  # fmt: skip
    assert bytes(f.data("i")) == codecs.i2_s.encode(W).tobytes()


def test_values_are_kept_byte_for_byte() -> None:
    f = gguf.parse(written(PIECES))
    assert {k: bytes(v.raw) for k, v in f.metadata.values_by_key.items()} == {k: v for k, (v, _) in VALUES.items()}


def test_bytes_that_are_no_text_survive_in_values() -> None:
    raw = gguf.string("ab").replace(b"ab", b"\xff\xfe")
    f = gguf.parse(written([], token=raw))
    assert bytes(f.metadata.values_by_key["token"].raw) == raw
    assert f.metadata["token"] == "\ufffd\ufffd"


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensors_begin_at_multiples_of_the_alignment(alignment: int) -> None:
    f = gguf.parse(written(PIECES, **{"general.alignment": gguf.number("u32", alignment)}))
    assert f.alignment == alignment
    assert all(t.offset % alignment == 0 for t in f.tensors.values())
    assert np.array_equal(np.frombuffer(f.data("v"), "<f4"), [0, 1, 2])


def test_a_file_without_tensors_is_a_file() -> None:
    assert gguf.parse(written([])).tensors == {}


def test_tensors_are_views_of_the_buffer() -> None:
    raw = bytearray(written(PIECES))
    f = gguf.parse(raw)
    raw[f.tensors["v"].offset] = 7
    assert f.data("v")[0] == 7


def test_the_gguf_package_reads_what_we_write(tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    (tmp_path / "x.gguf").write_bytes(written(PIECES[:2]))
    reader = package.GGUFReader(tmp_path / "x.gguf")
    assert [(t.name, t.shape.tolist(), t.tensor_type.name) for t in reader.tensors] == [
        ("w", [512, 6], "TQ2_0"),
        ("v", [3], "F32"),
    ]
    assert np.array_equal(package.quants.dequantize(reader.tensors[0].data, reader.tensors[0].tensor_type), W.dense())
    assert reader.fields["tokens"].contents() == VALUES["tokens"][1]


def test_we_read_what_the_gguf_package_writes(tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    writer = package.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_uint32("llama.attention.head_count", 4)
    writer.add_array("tokens", ["a", "é"])
    kind = package.GGMLQuantizationType.TQ1_0
    writer.add_tensor("w", package.quants.quantize(W.dense(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = open_model(tmp_path / "x.gguf")
    assert model.metadata["tokens"] == ["a", "é"]
    assert np.array_equal(model.entries["w"].ternary().codes, W.codes)
    assert model.entries["w"].ternary().scale == 0.25


def test_type_sizes_are_those_of_the_gguf_package() -> None:
    package = pytest.importorskip("gguf")
    for kind, (block, size) in package.GGML_QUANT_SIZES.items():
        if kind.name != "Q8_1":  # never in a file; the package has it 4 bytes longer than ggml
            row = ggml.BY_NAME[kind.name]
            assert (row.id, row.block, row.size) == (int(kind), block, size), kind


# ---- ids that mean several things


def resolved(type_id: int, dims: tuple[int, ...], span: int, arch: str = "") -> ggml.Choice:
    return ggml.resolve(type_id, dims, arch, span, 32, "test")


@pytest.mark.parametrize(
    "row", [r for rows in ggml.TYPES.values() if len(rows) > 1 for r in rows], ids=lambda r: r.name
)
def test_the_byte_length_tells_what_an_id_means(row: ggml.Type) -> None:
    dims = (512, 64)
    choice = resolved(row.id, dims, row.nbytes(dims, "") or 0)
    assert choice.type is row
    assert f"fits {row.name}" in choice.why


@pytest.mark.parametrize("name", ["TL1", "TL2", "IQ1_BN", "IQ2_BN", "I8_S"])
def test_opaque_layouts_are_refused_by_name_with_what_to_do(name: str) -> None:
    row = ggml.BY_NAME[name]
    size = row.nbytes((256, 4), "")
    data = np.zeros(ggml.align(size or 0, 32), np.uint8)
    out = io.BytesIO()
    gguf.write(out, {"general.architecture": gguf.string("bitnet-b1.58")}, [piece("w", name, data, (4, 256))])
    from tritium.io.model.gguf import read

    entry = read(Path("x"), memoryview(out.getvalue()), None, False).entries["w"]
    with pytest.raises(FormatError, match=f"{name} is not read: .*(checkpoint|I2_S|activations)"):
        entry.ternary()


def test_rotated_models_are_refused() -> None:
    from tritium.io.model.gguf import read

    out = io.BytesIO()
    data = codecs.pq2_0.encode(W)
    gguf.write(out, {"prism.hadamard.size": gguf.number("u32", 128)}, [piece("w", "PQ2_0", data, W.shape)])
    entry = read(Path("x"), memoryview(out.getvalue()), None, False).entries["w"]
    with pytest.raises(FormatError, match="rotates its activations"):
        entry.ternary()

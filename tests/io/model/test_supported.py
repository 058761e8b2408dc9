"""Models whose activations are transformed before every product: looked at, and refused by name wherever they would be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import models
import tiny
import tritium as tt
from tritium import io as tio
from tritium.cli.root import cli
from tritium.errors import FormatError
from tritium.io import codecs, gguf
from tritium.io.stream import Piece

REFUSED = "rotates its activations by a Hadamard transform .*not supported"
SHAPE = replace(models.EVERY_FORMAT, family="llama", theta=10000.0)
KEYS: dict[str, bytes] = {
    "prism.hadamard.size": gguf.number("u32", 128),
    "prism.hadamard.enabled": gguf.number("bool", True),
    "prism.hadamard.signs": gguf.array("i8", [1, -1]),
    "prism.hadamard.kind": gguf.string("signed"),
    "prism.hadamard": gguf.number("f32", 1.0),
    "Prism.Hadamard_Size": gguf.number("u64", 1024),
    "llama.hadamard.block_size": gguf.number("i32", 128),
}
FIELDS: dict[str, dict[str, Any]] = {
    "model_type": {"model_type": "prism_hadamard_qwen35"},
    "architectures": {"architectures": ["PrismHadamardForCausalLM"]},
    "a field": {"hadamard": {"block_size": 1024}},
    "a field in capitals": {"Hadamard_Block": 1024},
    "a field within another": {"text_config": {"modules": [{"hadamard_block": 1024}]}},
    "the mode": {"quantization": {"group_size": 128, "bits": 2, "mode": "affine_hadamard"}},
    "of a module": {"quantization": {"bits": 2, "model.layers.0.mlp.up_proj": {"bits": 2, "hadamard": 128}}},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as safetensors, packed as Hugging Face does."""
    return models.folder(tmp_path_factory.mktemp("source") / "hf", models.random(SHAPE, 3))


@pytest.fixture(scope="module")
def plain(source: Path) -> dict[str, Path]:
    """The same model in each of the formats that Prism writes."""
    paths = {
        "q2_0": source.with_name("q2_0.gguf"),
        "tq2_0": source.with_name("tq2_0.gguf"),
        "mlx": source.with_name("mlx"),
    }
    for to, path in paths.items():
        tt.io.convert(source, path, to=to)
    return paths


def with_keys(path: Path, target: Path, keys: dict[str, bytes], tensors: dict[str, Any] | None = None) -> Path:
    file = gguf.parse(memoryview(path.read_bytes()))
    pieces = [
        Piece(t.name, t.shape, t.type.name, t.nbytes, lambda n=t.name: [np.frombuffer(file.data(n), np.uint8)])
        for t in file.tensors.values()
    ]
    pieces += [Piece(n, a.shape, "F32", a.nbytes, lambda a=a: [a]) for n, a in (tensors or {}).items()]
    with target.open("xb") as out:
        gguf.write(out, {k: v.raw for k, v in file.metadata.values_by_key.items()} | keys, pieces)
    return target


def with_fields(path: Path, target: Path, fields: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    target.mkdir()
    config = json.loads((path / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | fields))
    data = (path / "model.safetensors").read_bytes()
    if tensors:
        file = tio.safetensors.parse(memoryview(data))
        tiny.save(target / "model.safetensors", {n: file.array(n) for n in file.tensors} | tensors, file.metadata)
    else:
        (target / "model.safetensors").write_bytes(data)
    return target


def check_refused(path: Path, tmp_path: Path) -> None:
    """Every way in that would compute with the weights or write them again."""
    with pytest.raises(FormatError, match=REFUSED):
        tt.load(path)
    opened = tt.io.open(path)
    for entry in opened.entries.values():
        for read in (entry.ternary, entry.array, entry.float32):
            with pytest.raises(FormatError, match=REFUSED):
                read()
    for to in ("q2_0", "i2_s", "hf", "mlx", "f32"):
        with pytest.raises(FormatError, match=REFUSED):
            tt.io.convert(path, tmp_path / f"out-{to}", to=to)
    with pytest.raises(FormatError, match=REFUSED):
        tt.io.verify(path, path)
    assert not list(tmp_path.glob("out-*"))


def check_inspected(path: Path, deep: bool) -> None:
    report = tt.io.inspect(path, deep=deep)
    assert report.ternary_weights
    assert len([w for w in report.warnings if "Hadamard transform" in w]) == len(report.warnings) == 1


@pytest.mark.parametrize("key", KEYS)
def test_a_gguf_file_with_keys_of_a_transform_is_refused(key: str, plain: dict[str, Path], tmp_path: Path) -> None:
    path = with_keys(plain["q2_0"], tmp_path / "m.gguf", {key: KEYS[key]})
    check_refused(path, tmp_path)
    check_inspected(path, deep=True)
    assert key in tt.io.inspect(path).warnings[0]


@pytest.mark.parametrize("form", ["q2_0", "tq2_0"])
def test_the_transform_counts_whatever_the_weights_are_stored_as(
    form: str, plain: dict[str, Path], tmp_path: Path
) -> None:
    assert tt.load(plain[form]).config.layers == SHAPE.layers  # the same file without the keys
    check_refused(with_keys(plain[form], tmp_path / "m.gguf", KEYS), tmp_path)


@pytest.mark.parametrize("name", ["blk.0.ffn_down.hadamard_signs", "blk.0.ffn_down.signs"])
def test_a_gguf_file_with_sign_vectors_is_refused(name: str, plain: dict[str, Path], tmp_path: Path) -> None:
    path = with_keys(plain["q2_0"], tmp_path / "m.gguf", {}, {name: np.ones(512, np.float32)})
    check_refused(path, tmp_path)


@pytest.mark.parametrize("fields", FIELDS)
def test_an_mlx_pack_with_a_transform_is_refused(fields: str, plain: dict[str, Path], tmp_path: Path) -> None:
    path = with_fields(plain["mlx"], tmp_path / "m", FIELDS[fields])
    check_refused(path, tmp_path)
    check_refused(path / "model.safetensors", tmp_path)
    check_inspected(path, deep=False)
    check_inspected(path, deep=True)


def test_an_mlx_pack_with_sign_vectors_is_refused_under_another_name(plain: dict[str, Path], tmp_path: Path) -> None:
    """The bytes are ordinary 2-bit weights: only the sign vectors beside them tell."""
    signs = {"model.layers.0.mlp.up_proj.signs": np.ones(256, np.float32)}
    check_refused(with_fields(plain["mlx"], tmp_path / "m", {}, signs), tmp_path)


def test_floats_of_a_model_with_a_transform_are_refused(source: Path, tmp_path: Path) -> None:
    tt.io.convert(source, tmp_path / "floats", to="f32")
    check_refused(with_fields(tmp_path / "floats", tmp_path / "m", FIELDS["a field"]), tmp_path)


def test_a_field_that_says_no_transform_and_a_name_are_let_pass(plain: dict[str, Path], tmp_path: Path) -> None:
    fields = {"hadamard": None, "use_hadamard": False, "_name_or_path": "no-hadamard"}
    path = with_fields(plain["mlx"], tmp_path / "m", fields)
    assert tt.load(path).config == tt.load(plain["mlx"]).config


@pytest.mark.parametrize(
    "block", [{"bits": 2, "group_size": 64, "mode": "other"}, {"bits": 2, "rotation": "x"}, {"bits": 2, "signs": [1]}]
)
def test_an_mlx_pack_quantised_in_a_way_that_is_not_known_is_refused(
    block: dict[str, Any], plain: dict[str, Path], tmp_path: Path
) -> None:
    path = with_fields(plain["mlx"], tmp_path / "m", {"quantization": block})
    with pytest.raises(FormatError, match=rf"quantization\.{list(block)[-1]}: .*not supported"):
        tt.load(path)
    with pytest.raises(FormatError, match=rf"quantization\.{list(block)[-1]}: .*not supported"):
        tt.io.convert(path, tmp_path / "out", to="hf")
    assert any("quantization." in w for w in tt.io.inspect(path).warnings)


def test_a_key_that_has_no_place_in_the_other_container_is_not_dropped(
    source: Path, plain: dict[str, Path], tmp_path: Path
) -> None:
    unknown = with_keys(plain["q2_0"], tmp_path / "m.gguf", {"llama.attention.rotation": gguf.number("u32", 3)})
    with pytest.raises(FormatError, match=r"llama\.attention\.rotation: found 3, .*not understood"):
        tt.io.convert(unknown, tmp_path / "out", to="hf")
    tt.io.convert(unknown, tmp_path / "kept.gguf", to="tq2_0")  # from GGUF to GGUF it goes along
    assert tt.io.open(tmp_path / "kept.gguf").metadata["llama.attention.rotation"] == 3
    with pytest.raises(FormatError, match=r"scale_emb: found 12, .*not understood"):
        tt.io.convert(with_fields(source, tmp_path / "hf", {"scale_emb": 12}), tmp_path / "out.gguf", to="tq2_0")


def test_scaled_angles_go_along_to_the_other_container(plain: dict[str, Path], tmp_path: Path) -> None:
    keys = {"llama.rope.scaling.type": gguf.string("linear"), "llama.rope.scaling.factor": gguf.number("f32", 4.0)}
    path = with_keys(plain["q2_0"], tmp_path / "m.gguf", keys)
    tt.io.convert(path, tmp_path / "hf", to="hf")
    assert tt.load(tmp_path / "hf").config == tt.load(path).config


def test_the_commands_say_so(plain: dict[str, Path], tmp_path: Path) -> None:
    path = with_keys(plain["q2_0"], tmp_path / "m.gguf", {"prism.hadamard.size": KEYS["prism.hadamard.size"]})
    shown = CliRunner().invoke(cli, ["inspect", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "Hadamard transform" in " ".join(shown.output.split())
    for command in (
        ["convert", str(path), str(tmp_path / "out"), "--to", "hf"],
        ["generate", str(path), "--prompt", "a"],
        ["prepack", str(path), str(tmp_path / "out.tritium")],
    ):
        result = CliRunner().invoke(cli, command)
        assert result.exit_code
        assert "prism.hadamard.size" in result.output + str(result.exception), command
    assert not list(tmp_path.glob("out*"))


def test_a_codec_alone_still_reads_the_bytes() -> None:
    """Whoever has the transform can have the values."""
    t = tio.Ternary.from_values(np.random.default_rng(0).integers(-1, 2, (4, 128)), 0.5)
    assert np.array_equal(codecs.pq2_0.decode(memoryview(codecs.pq2_0.encode(t)), t.shape).codes, t.codes)

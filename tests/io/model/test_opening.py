"""Models as opened: what weight_scale means, masters, shards, MLX, the order of Q and K, names and configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from tritium import io as tio
from tritium.errors import FormatError
from tritium.io import Ternary, codecs, open as open_model
from tritium.io.model import names


def same(a: Ternary, b: Ternary) -> bool:
    return np.array_equal(a.codes, b.codes) and np.array_equal(a.scale, b.scale)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return tiny.hf_packed(tmp_path / "model")


def test_a_directory_gives_its_ternary_weights(packed: Path) -> None:
    ternary, plain = tiny.weights()
    model = open_model(packed)
    assert set(model.entries) == set(ternary) | set(plain)
    assert all(same(model.entries[n].ternary(), t) for n, t in ternary.items())
    assert all(np.array_equal(model.entries[n].array(), a) for n, a in plain.items())
    assert all(model.entries[n].role == "ternary" for n in ternary)


def edit(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("quant", "divides"),
    [
        ({"quant_method": "bitnet"}, True),
        ({"quant_method": "bitnet", "linear_class": "bitlinear"}, True),
        ({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}, False),
    ],
)
def test_the_configuration_decides_what_weight_scale_means(packed: Path, quant: Any, divides: bool) -> None:
    true = tiny.weights()[0][Q].scale
    found = open_model(edit(packed, quantization_config=quant)).entries[Q].ternary().scale
    assert found == (np.float32(1) / true if divides else true)


def test_a_variant_overrides_the_configuration(packed: Path) -> None:
    true = tiny.weights()[0][Q].scale
    assert open_model(packed, variant="divide").entries[Q].ternary().scale == np.float32(1) / true


def test_without_a_configuration_the_meaning_must_be_said(packed: Path) -> None:
    (packed / "config.json").unlink()
    with pytest.raises(FormatError, match=r"Pass variant='multiply'"):
        open_model(packed).entries[Q].ternary()
    assert open_model(packed, variant="multiply").entries[Q].ternary().scale == tiny.weights()[0][Q].scale


def test_an_unknown_variant_is_an_error(packed: Path) -> None:
    with pytest.raises(FormatError, match="one of arm64, multiply, divide"):
        open_model(packed, variant="x86")


def test_a_packed_weight_without_its_scale_is_an_error(tmp_path: Path) -> None:
    tiny.save(tmp_path / "model.safetensors", {"a.weight": np.zeros((4, 8), np.uint8)})
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": tiny.AUTO}))
    with pytest.raises(FormatError, match=r"no tensor 'a\.weight_scale'"):
        open_model(tmp_path).entries["a.weight"].ternary()


def dense(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(3)
    tiny.save(folder / "model.safetensors", {Q: rng.normal(size=(8, 64)).astype("f")})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_masters_of_a_bitnet_are_ternarised(tmp_path: Path) -> None:
    online = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
    model = open_model(dense(tmp_path / "m", tiny.config(quantization_config=online)))
    entry = model.entries[Q]
    assert entry.role == "master"
    assert same(entry.ternary(), codecs.floats.absmean(entry.array()))


def test_a_dense_model_is_not_silently_ternarised(tmp_path: Path) -> None:
    folder = dense(tmp_path / "m", tiny.config("llama"))
    with pytest.raises(FormatError, match="not trained to be ternary"):
        open_model(folder).entries[Q].ternary()
    assert open_model(folder).entries[Q].find_ternary() is None
    assert open_model(folder, ternarise=True).entries[Q].ternary().shape == (8, 64)


def test_modules_kept_apart_are_plain(tmp_path: Path) -> None:
    quant = {"quant_method": "bitnet", "modules_to_not_convert": ["layers.0.self_attn"]}
    model = open_model(dense(tmp_path / "m", tiny.config(quantization_config=quant)))
    assert model.entries[Q].role == "plain"


def test_shards_are_one_model(tmp_path: Path) -> None:
    arrays = {f"t{i}": np.full(4, i, np.float32) for i in range(4)}
    names_ = list(arrays)
    for k in (0, 1):
        tiny.save(tmp_path / f"model-{k}.safetensors", {n: arrays[n] for n in names_[2 * k : 2 * k + 2]})
    where = {n: f"model-{i // 2}.safetensors" for i, n in enumerate(names_)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    model = open_model(tmp_path)
    assert {n: e.array()[0] for n, e in model.entries.items()} == {"t0": 0, "t1": 1, "t2": 2, "t3": 3}


def test_mlx_in_other_bits_is_refused_by_name(tmp_path: Path) -> None:
    parts = {
        "a.weight": np.zeros((4, 8), np.uint32),
        "a.scales": np.ones((4, 1), "f"),
        "a.biases": np.ones((4, 1), "f"),
    }
    tiny.save(tmp_path / "model.safetensors", parts)
    (tmp_path / "config.json").write_text(json.dumps({"quantization": {"group_size": 64, "bits": 4}}))
    with pytest.raises(FormatError, match=r"MLX 4-bit.*only 2-bit ternary is read"):
        open_model(tmp_path).entries["a.weight"].ternary()


def test_a_missing_file_and_an_empty_directory_say_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="does not exist"):
        open_model(tmp_path / "none")
    with pytest.raises(FormatError, match="no model file"):
        open_model(tmp_path)


def test_reading_a_model_reads_no_weights(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs.HF, "decode", lambda *a, **k: pytest.fail("decoded before asked for"))
    assert open_model(packed).nbytes > 0


# ---- names, rows, configuration


@pytest.mark.parametrize(
    ("hf", "gguf"),
    [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("lm_head.weight", "output.weight"),
        ("model.layers.7.self_attn.q_proj.weight", "blk.7.attn_q.weight"),
        ("model.layers.12.self_attn.attn_sub_norm.weight", "blk.12.attn_sub_norm.weight"),
        ("model.layers.0.mlp.down_proj.bias", "blk.0.ffn_down.bias"),
        ("model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"),
    ],
)
def test_names_have_their_twins(hf: str, gguf: str) -> None:
    assert names.to_gguf(hf) == gguf
    assert names.to_hf(gguf) == hf
    assert names.common(gguf) == names.common(hf) == hf


def test_old_names_are_common_with_the_new() -> None:
    old = "model.layers.0.self_attn.inner_attn_ln.weight"
    assert names.common(old) == "model.layers.0.self_attn.attn_sub_norm.weight"


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.1.unknown.weight", "model.layers.x.mlp.up_proj.weight", ""])
def test_names_without_twins_stay(name: str) -> None:
    assert names.to_hf(name) is None
    assert names.to_gguf(name) is None
    assert names.common(name) == name.removesuffix(".weight")


def test_llama_rows_of_q_are_interleaved_as_llama_cpp_does() -> None:
    w = np.arange(2 * 8).reshape(16, 1)  # 2 heads of 8 rows
    theirs = w.reshape(2, 2, 4, 1).swapaxes(1, 2).reshape(16, 1)
    assert np.array_equal(w[names.interleave(16, 2)], theirs)
    assert np.array_equal(theirs[names.deinterleave(16, 2)], w)


def test_llama_files_keep_q_and_k_in_pairs_and_entries_undo_it(tmp_path: Path) -> None:
    source = tiny.hf_packed(tmp_path / "llama", "llama")
    tio.convert(source, tmp_path / "a.gguf", to="i2_s")
    model = open_model(tmp_path / "a.gguf")
    true, entry = tiny.weights(0, "llama")[0][Q], model.entries["blk.0.attn_q.weight"]
    stored = codecs.i2_s.decode(entry.raw(), entry.shape)  # type: ignore[arg-type]
    assert np.array_equal(stored.codes, true.codes[names.interleave(tiny.HIDDEN, tiny.HEADS)])
    assert same(entry.ternary(), true)


def test_configurations_come_back_through_gguf(tmp_path: Path, packed: Path) -> None:
    tio.convert(packed, tmp_path / "a.gguf", to="tq2_0")
    tio.convert(tmp_path / "a.gguf", tmp_path / "back", to="hf")
    before, after = (json.loads((p / "config.json").read_text()) for p in (packed, tmp_path / "back"))
    assert {k: after[k] for k in before} == before


def test_a_scaled_rope_is_refused(packed: Path, tmp_path: Path) -> None:
    edit(packed, rope_scaling={"rope_type": "llama3", "factor": 8})
    with pytest.raises(FormatError, match="scaled by a factor for each pair"):
        tio.convert(packed, tmp_path / "a.gguf", to="i2_s")

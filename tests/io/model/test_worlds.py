"""Families whose tensors GGUF stores differently from Hugging Face: experts in stacks, heads of delta nets in another order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import families
import tritium as tt
from families import CONFIGS
from tritium.errors import FormatError
from tritium.io import convert, verify
from tritium.io.model import experts
from tritium.io.model.opening import open as open_model

WIDE = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "head_dim": 32,
    "linear_value_head_dim": 32,
}  # rows that the blocks of GGUF's formats divide
NAMES = ["maple", "qwen3_5"]
FORM = {"maple": "pq2_0"}  # a stack of experts has a scale for each
IDS = list(range(5, 17))


def folder(path: Path, name: str, **more: object) -> Path:
    config = (
        {k: v for k, v in (CONFIGS[name] | WIDE).items() if name == "qwen3_5" or not k.startswith("linear_")}
        | ({"moe_intermediate_size": 128} if name == "maple" else {})
        | more
    )
    return families.write_folder(path, families.random(config, 3))


def logits(path: Path) -> np.ndarray:
    return tt.load(path, kv="f32").session().extend(0, IDS)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_goes_to_gguf_and_back(name: str, tmp_path: Path) -> None:
    source = folder(tmp_path / "m", name)
    convert(source, tmp_path / "m.gguf", to=FORM.get(name, "i2_s"))
    convert(tmp_path / "m.gguf", tmp_path / "back", to="hf")
    wanted = logits(source)
    for path in (tmp_path / "m.gguf", tmp_path / "back"):
        assert np.abs(logits(path) - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert verify(source, tmp_path / "m.gguf", rtol=1e-6).same
    assert verify(source, tmp_path / "back", rtol=1e-6).same
    before, after = (json.loads((p / "config.json").read_text()) for p in (source, tmp_path / "back"))
    kept = {
        k: v for k, v in before.items() if k in after and k not in ("architectures", "rope_parameters", "model_type")
    }
    assert {k: after[k] for k in kept} == kept


def test_gguf_has_the_order_of_delta_nets_that_llama_cpp_writes(tmp_path: Path) -> None:
    """The files of the tests' own writer, which reorders as llama.cpp's converter does, hold the same bytes."""
    w = families.random(CONFIGS["qwen3_5"] | WIDE, 3)
    convert(families.write_folder(tmp_path / "m", w), tmp_path / "ours.gguf", to="i2_s")
    theirs = open_model(families.write_gguf(tmp_path / "theirs.gguf", w))
    ours = open_model(tmp_path / "ours.gguf")
    plain = [n for n, e in ours.entries.items() if e.role != "ternary"]
    assert any("ssm_conv1d" in n for n in plain)
    for name in plain:
        assert ours.entries[name].shape == theirs.entries[name].shape
        np.testing.assert_allclose(
            np.frombuffer(ours.entries[name].raw(), np.float32),
            np.frombuffer(theirs.entries[name].raw(), np.float32),
            rtol=1e-6,
        )
    keys = {k: v for k, v in ours.metadata.items() if k.startswith("qwen35.")}
    assert keys["qwen35.ssm.inner_size"] == 128
    assert keys["qwen35.rope.dimension_sections"] == [2, 1, 1, 0]
    assert verify(ours, theirs, rtol=1e-6).same


def test_a_copy_within_gguf_keeps_the_order(tmp_path: Path) -> None:
    for name in ("qwen3_5", "maple"):
        source = folder(tmp_path / name, name)
        convert(source, tmp_path / f"{name}.gguf", to=FORM.get(name, "i2_s"))
        convert(tmp_path / f"{name}.gguf", tmp_path / f"{name}-2.gguf", to="q2_0")
        assert verify(tmp_path / f"{name}.gguf", tmp_path / f"{name}-2.gguf", rtol=5e-4).same
        assert verify(source, tmp_path / f"{name}-2.gguf", rtol=5e-4).same


def test_experts_that_are_missing_or_differ_are_refused(tmp_path: Path) -> None:
    entries = list(open_model(folder(tmp_path / "m", "maple")).named.values())
    assert experts.has_stacks(experts.stack(entries))
    with pytest.raises(FormatError, match="5 experts without number 2"):
        experts.stack([e for e in entries if e.name != "model.layers.1.mlp.experts.2.up_proj.weight"])


def test_parts_beside_the_decoder_are_left_out_with_a_word(tmp_path: Path) -> None:
    source = folder(tmp_path / "m", "qwen3_5")
    tensors = dict(tt.io.safetensors.parse((source / "model.safetensors").read_bytes()).tensors)
    from tiny import save

    file = tt.io.safetensors.parse((source / "model.safetensors").read_bytes())
    arrays = {n: np.array(file.array(n)) for n in tensors} | {"mtp.norm.weight": np.ones(128, np.float32)}
    save(source / "model.safetensors", arrays, {"format": "pt"})
    done = convert(source, tmp_path / "m.gguf", to="i2_s")
    assert any("mtp.norm.weight" in w for w in done.warnings)
    assert not any("mtp" in n for n in open_model(tmp_path / "m.gguf").entries)

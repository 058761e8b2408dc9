"""Weights folded with a signed Hadamard transform: inputs are rotated as the file's keys say, and nothing else is believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import hadamard

import families
import tritium as tt
from families import CONFIGS, Weights
from tritium.errors import FormatError
from tritium.io import gguf
from tritium.io.model import names

BLOCK = 32
IDS = np.random.default_rng(5).integers(0, 80, 24).tolist()
PRISM = "prism.hadamard."


def sign_vectors(seed: int = 0) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {width: rng.choice([-1, 1], width) for width in (64, 96, 128)}


def keys(w: Weights, signs: dict[int, np.ndarray], **more: bytes) -> dict[str, bytes]:
    """Return the keys of a file whose projections are all folded."""
    arch = names.arch_of(w.config)
    folded = [str(names.to_gguf(name, arch)) for name in w.ternary]
    values = np.concatenate(list(signs.values())).tolist()
    made = {
        "version": gguf.number("u32", 1), "block_size": gguf.number("u32", BLOCK),
        "transform": gguf.string("normalized-sylvester-walsh-hadamard"), "axis": gguf.string("input-last-dimension"),
        "sign_mode": gguf.string("explicit"), "weight_names": gguf.array("str", folded),
        "sign_widths": gguf.array("i32", list(signs)), "sign_values": gguf.array("i32", values),
        "gdn_v_grouped": gguf.number("bool", True),
    }  # fmt: skip
    return {PRISM + key: value for key, value in (made | more).items() if value}


def reference(w: Weights, signs: dict[int, np.ndarray]) -> families.Decoder:
    return families.Decoder(w, frozenset(w.ternary), signs, hadamard(BLOCK) / np.sqrt(BLOCK))


def logits(path: Path) -> np.ndarray:
    session = tt.load(path, kv="f32").session()
    return np.stack([session.extend(0, [i]) for i in IDS])


def test_inputs_of_folded_weights_are_rotated(tmp_path: Path) -> None:
    w, signs = families.random(CONFIGS["qwen3"], 2), sign_vectors()
    ours = logits(families.write_gguf(tmp_path / "m.gguf", w, **keys(w, signs)))
    wanted, plain = reference(w, signs).logits(IDS), families.Decoder(w).logits(IDS)
    assert np.abs(ours - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert np.abs(plain - wanted).max() > 0.1 * np.abs(wanted).max()  # the rotation is not for nothing


def test_a_prepacked_file_rotates_too(tmp_path: Path) -> None:
    w = families.random(CONFIGS["qwen3"], 2)
    path = families.write_gguf(tmp_path / "m.gguf", w, **keys(w, sign_vectors()))
    again = tt.load(path).save(tmp_path / "m.tritium")
    np.testing.assert_array_equal(logits(again), logits(path))


@pytest.mark.parametrize(
    "more",
    [
        {"version": gguf.number("u32", 2)},
        {"transform": gguf.string("dct")},
        {"axis": gguf.string("output")},
        {"sign_mode": gguf.string("identity")},
        {"sign_mode": gguf.string("seeded")},
        {"sign_values": gguf.array("i32", [1, -1])},
        {"sign_values": gguf.array("i32", [0] * 288)},
        {"sign_widths": b""},
        {"weight_names": b""},
        {"inverse_weight_names": gguf.array("str", ["output.weight"])},
        {"rounds": gguf.number("u32", 2)},
    ],
    ids=lambda more: next(iter(more)),
)
def test_keys_that_are_not_understood_are_refused(more: dict[str, Any], tmp_path: Path) -> None:
    w = families.random(CONFIGS["qwen3"], 2)
    path = families.write_gguf(tmp_path / "m.gguf", w, **keys(w, sign_vectors(), **more))
    with pytest.raises(FormatError, match=r"Hadamard transform.*It is not supported"):
        tt.load(path)


def test_blocks_and_widths_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    w, signs = families.random(CONFIGS["qwen3"], 2), sign_vectors()
    path = families.write_gguf(tmp_path / "a.gguf", w, **keys(w, signs, block_size=gguf.number("u32", 64)))
    with pytest.raises(FormatError, match="blocks of 64, needed blocks that divide 96 columns"):
        tt.load(path)
    del signs[96]
    path = families.write_gguf(tmp_path / "b.gguf", w, **keys(w, signs))
    with pytest.raises(FormatError, match=r"hadamard_signs: found \[64, 128\], needed signs for inputs of 96"):
        tt.load(path)


def test_a_part_of_one_product_cannot_be_folded_alone(tmp_path: Path) -> None:
    w = families.random(CONFIGS["qwen3"], 2)
    folded = gguf.array("str", ["blk.0.attn_q.weight"])
    path = families.write_gguf(tmp_path / "m.gguf", w, **keys(w, sign_vectors(), weight_names=folded))
    with pytest.raises(FormatError, match="a rotation of some of"):
        tt.load(path)


def test_a_folded_model_does_not_become_safetensors(tmp_path: Path) -> None:
    w = families.random(CONFIGS["qwen3"], 2)
    path = families.write_gguf(tmp_path / "m.gguf", w, **keys(w, sign_vectors()))
    with pytest.raises(FormatError, match="cannot become safetensors: its weights are rotated"):
        tt.io.convert(path, tmp_path / "out", to="f32")

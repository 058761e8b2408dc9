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
from tritium.io import Ternary, codecs, gguf
from tritium.io.model import names
from tritium.io.stream import Piece

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


class FloatDecoder(families.Decoder):
    """The decoder with activations as they are."""

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        weight = f"{name}.weight"
        dense = families.to_dense(*self.w.ternary[weight]) if weight in self.w.ternary else self.w.plain[weight]
        return self.rotation(x, weight) @ dense.astype(np.float64).T


def rotate_back(rows: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return x of y = H (s * x); H is its own inverse."""
    blocks = rows.astype(np.float64).reshape(len(rows), -1, BLOCK) @ (hadamard(BLOCK) / np.sqrt(BLOCK))
    return blocks.reshape(rows.shape) * signs


def float_logits(path: Path) -> np.ndarray:
    session = tt.load(path, kv="f32", activations="float").session()
    return np.stack([session.extend(0, [i]) for i in IDS])


INVERSE = {"inverse_weight_names": gguf.array("str", ["token_embd.weight"])}


def test_the_output_of_delta_nets_and_a_folded_embedding_are_rotated(tmp_path: Path) -> None:
    """As Ternary-Bonsai-2 has them: rows of the embedding are rotated back, and value heads are in the order of key heads."""
    w, signs = families.random(CONFIGS["qwen3_5"], 4), sign_vectors()
    stored = w.plain["model.embed_tokens.weight"]
    path = families.write_gguf(tmp_path / "m.gguf", w, **keys(w, signs, **INVERSE))
    meant = Weights(w.config, w.ternary, w.plain | {"model.embed_tokens.weight": rotate_back(stored, signs[64])})
    wanted = FloatDecoder(meant, frozenset(w.ternary), signs, hadamard(BLOCK) / np.sqrt(BLOCK)).logits(IDS)
    assert any(name.endswith("linear_attn.out_proj.weight") for name in w.ternary)
    assert np.abs(float_logits(path) - wanted).max() <= 1e-5 * np.abs(wanted).max()
    for other in (FloatDecoder(meant), FloatDecoder(w, frozenset(w.ternary), signs, hadamard(BLOCK) / np.sqrt(BLOCK))):
        assert np.abs(other.logits(IDS) - wanted).max() > 0.05 * np.abs(wanted).max()  # neither rotation is for nothing


def test_the_output_of_delta_nets_in_the_order_of_gguf_is_refused(tmp_path: Path) -> None:
    w = families.random(CONFIGS["qwen3_5"], 4)
    path = families.write_gguf(tmp_path / "m.gguf", w, **keys(w, sign_vectors(), gdn_v_grouped=b""))
    with pytest.raises(
        FormatError, match=r"hadamard_grouped: found False, needed true where the output of a delta net"
    ):
        tt.load(path)


def test_a_tied_head_reads_the_folded_ternary_table(tmp_path: Path) -> None:
    config = CONFIGS["qwen3"] | {"intermediate_size": 64}
    w, signs = families.random(config, 4), sign_vectors()
    table = np.random.default_rng(1).integers(-1, 2, (80, 64)).astype(np.float32) * np.float32(0.125)
    w = Weights(config, w.ternary, w.plain | {"model.embed_tokens.weight": table})
    file = gguf.parse(families.write_gguf(tmp_path / "m.gguf", w, **keys(w, signs, **INVERSE)).read_bytes())
    packed = codecs.q2_0.encode(Ternary.from_values(np.sign(table), 0.125))
    pieces = [Piece(n, t.shape, t.type.name, t.nbytes, lambda n=n: [file.data(n)]) for n, t in file.tensors.items()]
    pieces = [p for p in pieces if p.name != "token_embd.weight"]
    with (tmp_path / "q.gguf").open("wb") as out:
        kept = {k: v.raw for k, v in file.metadata.values_by_key.items()}
        gguf.write(
            out, kept, [*pieces, Piece("token_embd.weight", table.shape, "Q2_0", packed.nbytes, lambda: [packed])]
        )
    assert tt.io.open(tmp_path / "q.gguf").named["model.embed_tokens.weight"].role == "ternary"
    meant = Weights(config, w.ternary, w.plain | {"model.embed_tokens.weight": rotate_back(table, signs[64])})
    wanted = FloatDecoder(meant, frozenset(w.ternary), signs, hadamard(BLOCK) / np.sqrt(BLOCK)).logits(IDS)
    assert np.abs(float_logits(tmp_path / "q.gguf") - wanted).max() <= 1e-5 * np.abs(wanted).max()


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

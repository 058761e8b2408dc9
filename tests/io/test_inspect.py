"""What inspect says of a file, and the three commands of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import families
import tiny
from tritium import io as tio
from tritium.cli import main
from tritium.cli.root import cli
from tritium.io import Ternary, codecs, gguf
from tritium.io.stream import Piece


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return tiny.hf_packed(tmp_path / "model")


def test_the_report_counts_weights_and_bits(packed: Path) -> None:
    r = tio.inspect(packed, deep=True)
    ternary, plain = tiny.weights()
    assert r.ternary_weights == sum(t.shape[0] * t.shape[1] for t in ternary.values())
    assert r.weights == r.ternary_weights + sum(a.size for a in plain.values())
    assert r.bits_per_weight == pytest.approx(2, abs=0.01)
    down = next(k for k in r.kinds if "down_proj" in k.pattern)
    values = np.concatenate([t.values().ravel() for n, t in ternary.items() if "down_proj" in n])
    assert (down.count, down.shape, down.stored, down.scales) == (2, (256, 512), "HF packed", "tensor")
    assert down.zeros == pytest.approx((values == 0).mean())
    assert not r.warnings


def test_the_meaning_of_weight_scale_is_said_with_its_reason(packed: Path) -> None:
    assert "weight_scale multiplies: linear_class is 'autobitlinear'" in tio.inspect(packed).beliefs


def scaled(folder: Path, value: float, quant: dict[str, Any] | None) -> Path:
    folder.mkdir()
    tiny.save(
        folder / "model.safetensors", {"a.weight": np.zeros((4, 8), np.uint8), "a.weight_scale": np.array([value], "f")}
    )
    if quant:
        (folder / "config.json").write_text(json.dumps({"quantization_config": quant}))
    return folder


@pytest.mark.parametrize(
    ("value", "quant", "said"),
    [
        (50.0, tiny.AUTO, "scales look inverted.*mean.*A guess.*--variant divide"),
        (0.02, {"quant_method": "bitnet"}, "scales look inverted.*1/mean.*A guess.*--variant multiply"),
        (50.0, None, "suggests: divide .a guess"),
        (0.02, None, "suggests: multiply .a guess"),
    ],
)
def test_scales_that_look_inverted_are_a_guess(tmp_path: Path, value: float, quant: Any, said: str) -> None:
    import re

    assert re.search(said, " ".join(tio.inspect(scaled(tmp_path / "m", value, quant)).warnings))


@pytest.mark.parametrize(("value", "quant"), [(0.02, tiny.AUTO), (1.2, tiny.AUTO), (50.0, {"quant_method": "bitnet"})])
def test_plausible_scales_raise_no_doubt(tmp_path: Path, value: float, quant: Any) -> None:
    assert not tio.inspect(scaled(tmp_path / "m", value, quant)).warnings


def network(path: Path, codec: Any, *, related: bool = True) -> Path:
    """One feed-forward layer whose neurons differ in how many weights they use."""
    rng = np.random.default_rng(0)
    busy = rng.uniform(0.2, 0.9, 512)
    draw = lambda shape, p: rng.choice([-1, 1], shape) * (rng.random(shape) < p)
    other = busy if related else rng.uniform(0.2, 0.9, 512)
    made = {
        "ffn_gate": draw((512, 256), busy[:, None]),
        "ffn_up": draw((512, 256), busy[:, None]),
        "ffn_down": draw((256, 512), other),
    }
    pieces = []
    for name, w in made.items():
        raw = codec.encode(Ternary.from_values(w, 0.5))
        pieces.append(Piece(f"blk.0.{name}.weight", w.shape, "I2_S", raw.nbytes, lambda raw=raw: [raw]))  # type: ignore[misc]
    with path.open("wb") as file:
        gguf.write(file, {"general.architecture": gguf.string("bitnet-b1.58")}, pieces)
    return path


def test_the_weights_confirm_the_usual_block_order(tmp_path: Path) -> None:
    r = tio.inspect(network(tmp_path / "a.gguf", codecs.i2_s))
    assert any("block order confirmed by the weights" in b for b in r.beliefs)
    assert not r.warnings


def test_the_weights_betray_the_order_of_arm_builds(tmp_path: Path) -> None:
    r = tio.inspect(network(tmp_path / "a.gguf", codecs.i2_s_arm64))
    assert any("looks written by an ARM build" in w and "--variant arm64" in w for w in r.warnings)


def test_weights_that_do_not_tell_are_said_not_to(tmp_path: Path) -> None:
    r = tio.inspect(network(tmp_path / "a.gguf", codecs.i2_s, related=False))
    assert any("the weights do not reveal it" in b for b in r.beliefs)


def test_arm_files_are_read_with_the_variant(tmp_path: Path) -> None:
    usual, arm = network(tmp_path / "a.gguf", codecs.i2_s), network(tmp_path / "b.gguf", codecs.i2_s_arm64)
    tio.convert(arm, tmp_path / "c.gguf", to="i2_s", variant="arm64")
    assert tio.verify(usual, tmp_path / "c.gguf").same
    assert not tio.verify(usual, arm).same


def test_damage_is_found_when_all_is_read(packed: Path, tmp_path: Path) -> None:
    tio.convert(packed, tmp_path / "a.gguf", to="i2_s")
    entry = tio.open(tmp_path / "a.gguf").entries["blk.1.attn_v.weight"]
    raw = bytearray((tmp_path / "a.gguf").read_bytes())
    raw[entry.offset] = 0xFF
    (tmp_path / "a.gguf").write_bytes(raw)
    assert not any("code 3" in w for w in tio.inspect(tmp_path / "a.gguf").warnings)
    assert any(
        "'blk.1.attn_v.weight'" in w and "code 3" in w for w in tio.inspect(tmp_path / "a.gguf", deep=True).warnings
    )


def test_a_file_type_that_lies_is_a_warning(packed: Path, tmp_path: Path) -> None:
    tio.convert(packed, tmp_path / "a.gguf", to="tq2_0")
    raw = (tmp_path / "a.gguf").read_bytes()
    key = b"general.file_type" + b"\x04\x00\x00\x00"
    (tmp_path / "a.gguf").write_bytes(raw.replace(key + b"\x25", key + b"\x26"))
    assert any(
        "general.file_type is 38, but the tensors are TQ2_0" in w for w in tio.inspect(tmp_path / "a.gguf").warnings
    )


# ---- the command line


def run(*args: Any) -> Any:
    return CliRunner().invoke(cli, [str(a) for a in args])


def test_inspect_prints_a_table_and_json(packed: Path) -> None:
    shown = run("inspect", packed).output
    assert "1.20 M weights, 1.18 M of them ternary in 2.00 bits each" in shown
    assert "model.layers.*.mlp.down_proj.weight" in shown
    assert "believed  weight_scale multiplies" in shown
    told = json.loads(run("inspect", packed, "--json").output)
    assert len(told["tensors"]) == 24
    assert told["bits_per_weight"] == pytest.approx(2, abs=0.01)


def test_convert_and_verify_say_how_it_went(packed: Path, tmp_path: Path) -> None:
    done = run("convert", packed, tmp_path / "a.gguf", "--to", "tq1_0")
    assert done.exit_code == 0
    assert "a.gguf  tq1_0 · 24 tensors, 14 ternary" in done.output
    same = run("verify", packed, tmp_path / "a.gguf")
    assert (same.exit_code, same.output) == (0, "same  24 tensors, 14 ternary, 1.20 M weights\n")


def test_verify_exits_with_1_for_a_difference(packed: Path, tmp_path: Path) -> None:
    other = tiny.hf_packed(tmp_path / "other", seed=1)
    done = run("verify", packed, other)
    assert done.exit_code == 1
    assert done.output.startswith("different  tensor 'model.embed_tokens.weight', row 0, column 0: ")


@pytest.mark.parametrize(
    "command", [["verify", "no", "no"], ["inspect", "no"], ["convert", "no", "x.gguf", "--to", "i2_s"]]
)
def test_bad_input_is_one_line_and_exit_code_2(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("sys.argv", ["tritium", *command])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_names_from_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    tiny.save(tmp_path / "a.safetensors", {"\x1b[31mred": np.ones(3, "f")})
    assert "\x1b" not in run("inspect", tmp_path / "a.safetensors").output


def test_it_says_how_activations_will_be_quantised_and_why(tmp_path: Path) -> None:
    w = families.random(families.CONFIGS["qwen3"] | {"hidden_size": 128, "intermediate_size": 128}, group=64)
    said = tio.inspect(families.write_gguf(tmp_path / "m.gguf", w))
    assert not any("activations" in b for b in said.beliefs)  # its floats are ternary only where they are read
    tio.convert(tmp_path / "m.gguf", tmp_path / "q.gguf", to="q2_0")
    wanted = "each group, unless another kind is chosen: a scale for each 64 columns, not trained with int8 tokens"
    assert any(wanted in b for b in tio.inspect(tmp_path / "q.gguf").beliefs)
    packed = tio.inspect(tiny.hf_packed(tmp_path / "hf", "bitnet")).beliefs
    assert any("each token, unless another kind is chosen: as its family is trained" in b for b in packed)

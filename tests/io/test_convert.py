"""Conversions: every format to every format, nothing half-written, nothing lost in silence; and the verdicts of verify."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import families
import tiny
import tritium as tt
from at import EVERYTHING, at
from tritium import io as tio
from tritium.errors import ArgumentError, FormatError
from tritium.io import FORMATS, Ternary, codecs, gguf
from tritium.io.stream import appearing


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk is what conversions of tiny models take most of."""
    monkeypatch.setattr("tritium.machine.files.sync", lambda path: None)


def target(folder: Path, name: str, to: str) -> Path:
    return folder / (f"{name}.gguf" if FORMATS[to].container == "gguf" else name)


@pytest.fixture(scope="module", params=["bitnet", "llama"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def made(family: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model in every format."""
    folder = tmp_path_factory.mktemp(family)
    source = tiny.hf_packed(folder / "source", family)
    out = {"source": source}
    for to in FORMATS:
        out[to] = target(folder, to, to)
        tio.convert(source, out[to], to=to)
    return out


@pytest.mark.parametrize(
    "start", [pytest.param(s, marks=[pytest.mark.slow] * (i % 3 > 0)) for i, s in enumerate(FORMATS)]
)
def test_every_format_becomes_every_other(made: dict[str, Path], family: str, tmp_path: Path, start: str) -> None:
    first = list(FORMATS).index(start) + (family == "llama")
    for to in FORMATS if EVERYTHING else list(FORMATS)[first % 2 :: 2]:  # each pair with one of the families
        out = target(tmp_path, to, to)
        with at(to):
            tio.convert(made[start], out, to=to)
            loose = {"f16", "bf16"} & {start, to}  # norms and embeddings are rounded there; ternary weights are not
            verdict = tio.verify(made["source"], out, rtol=2**-8 if loose else 0)
            assert verdict.same, verdict.difference
            assert verdict.ternary == 14
            assert verdict.scale_error == 0


GROUPED = {128: ("q2_0", "pq2_0", "ptq1_0", "mlx", "f32", "f16", "bf16"), 64: ("q2_0", "mlx", "f32", "f16", "bf16")}


@pytest.mark.parametrize(("group", "to"), [(g, to) for g in GROUPED for to in GROUPED[g]])
def test_groups_and_ternary_tables_come_back_from_every_format_that_holds_them(
    tmp_path: Path, group: int, to: str
) -> None:
    source = tiny.mlx_packed(tmp_path / "source", group, tied=True)
    out = target(tmp_path, "out", to)
    result = tio.convert(source, out, to=to)
    packed = FORMATS[to].codec is not None
    assert result.ternary == 15
    rtol = 2**-8 if to == "bf16" else 0
    verdict = tio.verify(source, out, rtol=rtol)
    assert verdict.same, verdict.difference
    assert verdict.ternary == (15 if packed else 14)
    assert (tio.open(out).named["model.embed_tokens.weight"].role == "ternary") == packed
    tio.convert(out, tmp_path / "back", to="mlx")
    assert tio.verify(source, tmp_path / "back", rtol=rtol).same


@pytest.mark.parametrize(
    ("group", "to"), [(128, "tq2_0"), (128, "tq1_0"), (64, "pq2_0"), (64, "ptq1_0"), (128, "i2_s"), (128, "hf")]
)
def test_groups_that_a_format_cannot_hold_are_refused_with_those_that_can(tmp_path: Path, group: int, to: str) -> None:
    source = tiny.mlx_packed(tmp_path / "source", group)
    with pytest.raises(FormatError, match=r"Write .*q2_0.*mlx") as error:
        tio.convert(source, target(tmp_path, "out", to), to=to)
    assert ("ptq1_0" in str(error.value).split("Write")[1]) == (group == 128 or to in ("i2_s", "hf"))


@pytest.mark.parametrize("to", ["tq1_0", "tq2_0"])
def test_rows_with_scales_of_their_own_come_back(tmp_path: Path, to: str) -> None:
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.01, 2, 256).astype(np.float16).astype(np.float32)
    w = Ternary.from_values(rng.integers(-1, 2, (256, 512)), scale)
    tiny.save(tmp_path / "rows.safetensors", {"model.layers.0.mlp.down_proj.weight": w.dense()})
    tio.convert(tmp_path / "rows.safetensors", tmp_path / "rows.gguf", to=to)
    back = next(iter(tio.open(tmp_path / "rows.gguf").entries.values())).ternary()
    assert back.scale.shape == (256,)
    assert tio.verify(tmp_path / "rows.safetensors", tmp_path / "rows.gguf").same


@pytest.mark.parametrize("to", ["i2_s", "hf"])
def test_ternary_tables_become_floats_where_engines_have_none(tmp_path: Path, to: str) -> None:
    ternary, plain = tiny.weights(0, "llama")
    table = Ternary.from_values(np.random.default_rng(1).integers(-1, 2, (64, 256)), 0.75)
    parts = codecs.mlx.encode(table)
    stem = "model.embed_tokens."
    tensors = plain | {f"{stem}weight": parts.words, f"{stem}scales": parts.scales, f"{stem}biases": parts.biases}
    tensors |= {name: t.dense() for name, t in ternary.items()}
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny.config("llama", quantization={"group_size": 128, "bits": 2})))
    tiny.save(folder / "model.safetensors", tensors)
    result = tio.convert(folder, target(tmp_path, "out", to), to=to)
    assert any("has no ternary tables: model.embed_tokens.weight became floats" in w for w in result.warnings)
    entry = tio.open(result.path).named["model.embed_tokens.weight"]
    assert entry.stored in ("F16", "BF16")
    assert np.array_equal(entry.float32(), table.dense())
    assert tio.verify(folder, result.path).same


@pytest.mark.parametrize("to", ["tq1_0", "tq2_0", "q2_0", "mlx", "f32"])
def test_stacks_of_matrices_come_back(tmp_path: Path, to: str) -> None:
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.01, 2, 3 * 64).astype(np.float16).astype(np.float32)
    w = Ternary.from_values(rng.integers(-1, 2, (3 * 64, 256)), scale)
    data = codecs.tq2_0.encode(w)
    with (tmp_path / "experts.gguf").open("wb") as file:
        name = "blk.0.ffn_gate_exps.weight"
        piece = tio.stream.Piece(name, (3, 64, 256), "TQ2_0", data.nbytes, lambda: [data])
        gguf.write(file, {"general.architecture": gguf.string("of another kind")}, [piece])
    out = target(tmp_path, "out", to)
    tio.convert(tmp_path / "experts.gguf", out, to=to)
    entry = next(iter(tio.open(out).entries.values()))
    assert entry.shape == (3, 64, 256)
    assert np.array_equal(entry.float32(), w.dense().reshape(3, 64, 256))
    with pytest.raises(FormatError, match="hf"):
        tio.convert(tmp_path / "experts.gguf", tmp_path / "hf", to="hf")


@pytest.mark.parametrize(
    ("to", "said"),
    [("pq2_0", r"PQ2_0 \(type 142\)"), ("ptq1_0", r"PTQ1_0 \(type 143\)"), ("q2_0", ""), ("mlx", "")],
)
def test_formats_of_a_fork_say_which_engine_reads_them(tmp_path: Path, to: str, said: str) -> None:
    result = tio.convert(tiny.mlx_packed(tmp_path / "source"), target(tmp_path, "out", to), to=to)
    warned = [w for w in result.warnings if "Prism's fork" in w]
    assert bool(warned) == bool(said)
    assert all(re.match(said, w) for w in warned)


@pytest.mark.parametrize("to", ["tq2_0", "tq1_0", "q2_0", "pq2_0", "ptq1_0"])
def test_llama_cpp_formats_of_a_relu2_model_say_that_llama_cpp_does_not_know_it(tmp_path: Path, to: str) -> None:
    result = tio.convert(tiny.hf_packed(tmp_path / "source"), target(tmp_path, "out", to), to=to)
    assert any("llama.cpp does not know the architecture 'bitnet-b1.58'" in w for w in result.warnings)


FILE_TYPES = {"i2_s": 40, "tq1_0": 36, "tq2_0": 37, "q2_0": 41, "pq2_0": 141, "ptq1_0": 143}


@pytest.mark.parametrize("to", FILE_TYPES)
def test_the_file_type_is_that_of_the_program_that_defines_the_format(made: dict[str, Path], to: str) -> None:
    assert tio.open(made[to]).metadata["general.file_type"] == FILE_TYPES[to]
    assert not any("file_type" in w for w in tio.inspect(made[to]).warnings)


def test_q2_0_in_blocks_of_128_is_read_under_its_early_id(tmp_path: Path) -> None:
    w = Ternary.from_values(np.random.default_rng(0).integers(-1, 2, (64, 512)), 0.5)
    data = codecs.pq2_0.encode(w)
    file = tmp_path / "early.gguf"
    with file.open("wb") as out:
        piece = tio.stream.Piece("blk.0.ffn_up.weight", w.shape, "PQ2_0", data.nbytes, lambda: [data])
        gguf.write(
            out, {"general.architecture": gguf.string("qwen3"), "general.file_type": gguf.number("u32", 41)}, [piece]
        )
    raw = bytearray(file.read_bytes())
    place = raw.index(b"blk.0.ffn_up.weight") + 19 + 4 + 16
    assert raw[place : place + 4] == bytes([142, 0, 0, 0])
    raw[place] = 42
    file.write_bytes(raw)
    entry = tio.open(file).entries["blk.0.ffn_up.weight"]
    assert entry.stored == "PQ2_0"
    assert np.array_equal(entry.float32(), w.dense())
    assert not any("file_type" in w for w in tio.inspect(file).warnings)


REFUSED = {"minicpm": "longrope", "gemma3": "query_pre_attn_scalar"}
OWN = ("maple", "qwen3_5")  # whose tensors are stored differently: tests/io/model/test_worlds.py


@pytest.mark.parametrize("name", [name for name in families.CONFIGS if name not in OWN])
def test_a_family_becomes_gguf_and_comes_back_with_the_same_logits_or_is_refused(tmp_path: Path, name: str) -> None:
    config = families.CONFIGS[name] | {"intermediate_size": 128}
    source = families.write_folder(tmp_path / "source", families.random(config, 1))
    if name in REFUSED:
        with pytest.raises(FormatError, match=REFUSED[name]):
            tio.convert(source, tmp_path / "m.gguf", to="q2_0")
        return
    tio.convert(source, tmp_path / "m.gguf", to="q2_0")
    tio.convert(tmp_path / "m.gguf", tmp_path / "back", to="hf")
    wanted = tt.load(source).session().extend(0, [1, 2, 3])
    for path in (tmp_path / "m.gguf", tmp_path / "back"):
        assert tio.verify(source, path, rtol=2**-20 if name.startswith("gemma") else 0).same
        assert np.array_equal(tt.load(path).session().extend(0, [1, 2, 3]), wanted)


@pytest.mark.parametrize("own_head", [False, True], ids=["tied", "own head"])
@pytest.mark.parametrize("kind", ["TQ1_0", "TQ2_0", "Q2_0"])
def test_files_of_llama_quantize_are_read(tmp_path: Path, kind: str, own_head: bool) -> None:
    """With its own choice of types for tables: Q4_K and Q6_K."""
    folder = os.environ.get("TRITIUM_LLAMA_CPP")
    if not folder:
        pytest.skip("TRITIUM_LLAMA_CPP does not name the folder of llama.cpp's programs")
    source = tiny.hf_packed(tmp_path / "source", "llama", own_head=own_head)
    tio.convert(source, tmp_path / "ours.gguf", to="q2_0")
    theirs = tmp_path / f"{kind}.gguf"
    command = [Path(folder) / "llama-quantize", "--allow-requantize", tmp_path / "ours.gguf", theirs, kind]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    entries, wanted = tio.open(theirs).named, tio.open(tmp_path / "ours.gguf").named
    assert entries["model.embed_tokens.weight"].stored == ("Q4_K" if own_head else "Q6_K")
    assert not own_head or entries["lm_head.weight"].stored == "Q6_K"
    for name, entry in entries.items():
        if wanted[name].role == "ternary":
            assert entry.stored == kind
            assert np.array_equal(entry.float32(), wanted[name].float32())
    logits = [tt.load(path).session().extend(0, [1, 2, 3]) for path in (tmp_path / "ours.gguf", theirs)]
    assert np.corrcoef(*map(np.asarray, logits))[0, 1] > 0.98  # only the tables are rounded


def test_tokenizers_and_metadata_are_carried_from_gguf_to_gguf_byte_for_byte(
    made: dict[str, Path], tmp_path: Path
) -> None:
    tio.convert(made["i2_s"], tmp_path / "a.gguf", to="tq1_0")
    before, after = (tio.open(p).gguf for p in (made["i2_s"], tmp_path / "a.gguf"))
    assert before is not None
    assert after is not None
    raw = [
        {k: bytes(v.raw) for k, v in f.metadata.values_by_key.items() if k != "general.file_type"}
        for f in (before, after)
    ]
    assert raw[0] == raw[1]
    assert (before.metadata["general.file_type"], after.metadata["general.file_type"]) == (40, 36)


def test_tokenizers_come_back_through_gguf(made: dict[str, Path], tmp_path: Path) -> None:
    tio.convert(made["tq2_0"], tmp_path / "back", to="hf")
    tio.convert(tmp_path / "back", tmp_path / "again.gguf", to="tq2_0")
    keys = ("tokens", "token_type", "merges", "pre", "model", "bos_token_id", "eos_token_id")
    one, two = (tio.open(p).metadata for p in (made["tq2_0"], tmp_path / "again.gguf"))
    assert all(one[f"tokenizer.ggml.{k}"] == two[f"tokenizer.ggml.{k}"] for k in keys)
    assert one["tokenizer.chat_template"] == two["tokenizer.chat_template"]
    assert one["tokenizer.ggml.pre"] == "llama-bpe"
    assert one["tokenizer.ggml.token_type"][:3] == [3, 3, 1]
    assert one["tokenizer.ggml.tokens"][56:60] == ["[PAD56]", "[PAD57]", "<user>", "[PAD59]"]


def test_the_tokenizers_package_reads_the_tokenizer_from_gguf(made: dict[str, Path], tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tio.convert(made["i2_s"], tmp_path / "back", to="hf")
    one, two = (tokenizers.Tokenizer.from_file(str(p / "tokenizer.json")) for p in (made["source"], tmp_path / "back"))
    assert one.encode("abcb<user>", add_special_tokens=False).ids == [28, 30, 58]
    assert two.encode("abcb<user>", add_special_tokens=False).ids == [28, 30, 58]
    assert two.encode("ab").ids[0] == 0  # the file says that the first token comes first


def test_torch_transformers_runs_a_model_that_came_through_gguf_with_the_same_logits(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("accelerate", reason="transformers loads packed models with accelerate")
    source = tiny.hf_packed(tmp_path / "a")
    tio.convert(source, tmp_path / "b.gguf", to="tq1_0")
    tio.convert(tmp_path / "b.gguf", tmp_path / "c", to="hf")
    tokens = torch.arange(10)[None]
    logits = []
    for path in (source, tmp_path / "c"):
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto")
        with torch.no_grad():
            logits.append(model(tokens).logits)
    assert torch.equal(*logits)


def test_other_tokenizers_are_kept_beside_and_said(tmp_path: Path) -> None:
    metadata = {"general.architecture": gguf.string("llama"), "llama.attention.head_count": gguf.number("u32", 4),
                "tokenizer.ggml.model": gguf.string("llama"), "tokenizer.ggml.scores": gguf.array("f32", [0.5])}  # fmt: skip
    with (tmp_path / "a.gguf").open("wb") as file:
        gguf.write(file, metadata, [tiny.piece("output_norm.weight", np.ones(4, "f"))])
    done = tio.convert(tmp_path / "a.gguf", tmp_path / "out", to="f32")
    assert any("'llama' cannot become a tokenizer.json" in w for w in done.warnings)
    assert json.loads((tmp_path / "out" / "gguf_metadata.json").read_text())["tokenizer.ggml.scores"] == [0.5]


def test_norms_scales_and_embeddings_of_a_directory_have_one_dtype(made: dict[str, Path], tmp_path: Path) -> None:
    """transformers multiplies them with each other and fails on a mixture; GGUF keeps norms in F32."""
    for to in ("hf", "mlx"):
        tio.convert(made["i2_s"], tmp_path / to, to=to)
        kinds = {e.stored for e in tio.open(tmp_path / to).entries.values() if e.role == "plain"}
        assert kinds == {"BF16"}
        assert json.loads((tmp_path / to / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_scales_that_the_embeddings_dtype_cannot_hold_widen_it_and_say_so(tmp_path: Path) -> None:
    source = tiny.hf_packed(tmp_path / "a", "llama", divide=True)
    done = tio.convert(source, tmp_path / "b", to="hf")
    assert any("widened to F32" in w for w in done.warnings)
    assert done.scale_error == 0


def test_side_files_are_copied_and_code_is_not(tmp_path: Path) -> None:
    source = tiny.hf_packed(tmp_path / "a")
    (source / "modeling.py").write_text("import os")
    config = json.loads((source / "config.json").read_text()) | {"auto_map": {"AutoModel": "modeling.Model"}}
    (source / "config.json").write_text(json.dumps(config))
    tio.convert(source, tmp_path / "b", to="mlx")
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert "auto_map" not in json.loads((tmp_path / "b" / "config.json").read_text())


def test_a_lone_file_carries_its_configuration(tmp_path: Path) -> None:
    source = tiny.hf_packed(tmp_path / "a")
    tio.convert(source, tmp_path / "x.safetensors", to="hf")
    assert tio.verify(source, tmp_path / "x.safetensors").same
    (tmp_path / "config.json").write_text("{}")  # of another model
    assert tio.verify(source, tmp_path / "x.safetensors").same


def test_dividing_scales_come_out_multiplying(tmp_path: Path) -> None:
    source = tiny.hf_packed(tmp_path / "a", "llama", divide=True)
    tio.convert(source, tmp_path / "b", to="hf")
    assert json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"] == tiny.AUTO
    assert tio.verify(source, tmp_path / "b").same


# ---- what is lost is said


def lone(path: Path, w: Ternary) -> Path:
    """A model of one ternary matrix, in plain numbers."""
    return tiny.save(path, {"w": w.dense()})


def test_scales_that_fp16_rounds_are_reported(tmp_path: Path) -> None:
    scale = np.float32(0.1)
    lone(tmp_path / "a.safetensors", Ternary.from_values(np.ones((4, 256)), scale))
    done = tio.convert(tmp_path / "a.safetensors", tmp_path / "b.gguf", to="tq2_0")
    error = abs(float(np.float16(scale)) - float(scale)) / float(scale)
    assert done.scale_error == pytest.approx(error, rel=1e-6)
    assert any("rounded to float16" in w for w in done.warnings)
    verdict = tio.verify(tmp_path / "a.safetensors", tmp_path / "b.gguf")
    assert "scale 0.100000001 and 0.0999755859" in verdict.difference
    assert tio.verify(tmp_path / "a.safetensors", tmp_path / "b.gguf", rtol=2**-11).same


def test_scales_that_fp32_keeps_are_exact(tmp_path: Path) -> None:
    source = lone(tmp_path / "a.safetensors", Ternary.from_values(np.ones((4, 256)), np.float32(0.1)))
    for to in ("i2_s", "hf", "mlx", "f32"):
        out = tmp_path / (f"{to}.gguf" if to == "i2_s" else f"{to}.safetensors")
        assert tio.convert(source, out, to=to).scale_error == 0
        assert tio.verify(source, out).same


def test_a_scale_for_each_group_crosses_the_formats_that_hold_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = Ternary.from_values(rng.integers(-1, 2, (8, 256)), (rng.integers(1, 64, (8, 4)) / 64).astype("f"), 64)
    source = lone(tmp_path / "a.safetensors", w)
    for to in ("q2_0", "mlx", "f32", "bf16"):
        out = tmp_path / (f"{to}.gguf" if to == "q2_0" else f"{to}.safetensors")
        tio.convert(source, out, to=to)
        assert tio.verify(source, out).same
    for to in ("i2_s", "tq2_0", "hf"):
        with pytest.raises(FormatError, match=f"tensor 'w' cannot be {to}: .*(different scales|a scale for each 64)"):
            tio.convert(source, tmp_path / ("x.gguf" if to != "hf" else "x"), to=to)


def test_a_matrix_that_does_not_fit_names_itself_and_the_formats_that_do(tmp_path: Path) -> None:
    source = lone(tmp_path / "a.safetensors", Ternary.from_values(np.ones((4, 192))))
    with pytest.raises(
        FormatError, match=r"tensor 'w' cannot be tq2_0.*K = 192 .*q2_0, mlx, hf, f32, f16, bf16 can hold it"
    ):
        tio.convert(source, tmp_path / "b.gguf", to="tq2_0")


def test_masters_replaced_by_ternary_values_are_said(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    name = "model.layers.0.mlp.up_proj.weight"
    tiny.save(tmp_path / "m" / "model.safetensors", {name: np.random.default_rng(0).normal(size=(8, 64)).astype("f")})
    (tmp_path / "m" / "config.json").write_text(json.dumps(tiny.config()))
    done = tio.convert(tmp_path / "m", tmp_path / "out", to="f32")
    assert any("masters were replaced" in w for w in done.warnings)
    assert tio.verify(tmp_path / "m", tmp_path / "out").same


def test_a_dense_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    name = "model.layers.0.mlp.up_proj.weight"
    tiny.save(tmp_path / "m" / "model.safetensors", {name: np.random.default_rng(0).normal(size=(8, 256)).astype("f")})
    (tmp_path / "m" / "config.json").write_text(json.dumps(tiny.config("llama")))
    with pytest.raises(FormatError, match="not trained to be ternary"):
        tio.convert(tmp_path / "m", tmp_path / "out.gguf", to="i2_s")
    assert tio.convert(tmp_path / "m", tmp_path / "out.gguf", to="i2_s", ternarise=True).ternary == 1


# ---- appearing whole or not at all


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return lone(tmp_path / "a.safetensors", Ternary.from_values(np.ones((4, 256)), 0.5))


def listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_what_is_there_is_not_replaced_unasked(source: Path, tmp_path: Path) -> None:
    (tmp_path / "b.gguf").write_bytes(b"old")
    with pytest.raises(FormatError, match=r"exists already.*--overwrite"):
        tio.convert(source, tmp_path / "b.gguf", to="i2_s")
    assert (tmp_path / "b.gguf").read_bytes() == b"old"
    tio.convert(source, tmp_path / "b.gguf", to="i2_s", overwrite=True)
    assert tio.verify(source, tmp_path / "b.gguf").same


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names")
def test_pipes_are_neither_waited_for_nor_replaced(source: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "a.gguf"
    os.mkfifo(pipe)
    with pytest.raises(FormatError, match="regular file"):
        tio.open(pipe)
    with pytest.raises(FormatError, match="never replaced"):
        tio.convert(source, pipe, to="i2_s", overwrite=True)
    assert pipe.is_fifo()


def test_a_link_to_a_folder_is_not_replaced(source: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(FormatError, match="never replaced"):
        tio.convert(source, tmp_path / "link", to="hf", overwrite=True)


@pytest.mark.parametrize("rtol", [float("nan"), -1.0, float("inf")])
def test_a_tolerance_that_is_none_is_refused(source: Path, rtol: float) -> None:
    with pytest.raises(ArgumentError, match="rtol"):
        tio.verify(source, source, rtol=rtol)


def test_a_model_directory_is_replaced_when_asked(source: Path, tmp_path: Path) -> None:
    tio.convert(source, tmp_path / "b", to="f16")
    tio.convert(source, tmp_path / "b", to="hf", overwrite=True)
    assert tio.open(tmp_path / "b").entries["w.weight"].stored == "HF packed"
    assert listing(tmp_path) == ["a.safetensors", "b"]


def test_a_folder_of_other_things_is_never_replaced(source: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(FormatError, match="other files"):
        tio.convert(source, tmp_path / "home", to="hf", overwrite=True)


@pytest.mark.parametrize("stage", ["write", "verify"])
def test_a_failure_leaves_nothing_behind(
    source: Path, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise FormatError("broken")

    monkeypatch.setattr(*{"write": (codecs.I2S, "encode", fail), "verify": (codecs.I2S, "decode", fail)}[stage])
    before = source.read_bytes()
    with pytest.raises(FormatError, match="broken"):
        tio.convert(source, tmp_path / "b.gguf", to="i2_s")
    assert listing(tmp_path) == ["a.safetensors"]
    assert source.read_bytes() == before


def test_a_wrong_code_on_the_disk_is_found_before_the_file_appears(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = codecs.I2S.encode

    def wrong(self: Any, t: Ternary) -> Any:
        raw = right(self, t)
        raw[0] ^= 0x80  # +1 becomes -1
        return raw

    monkeypatch.setattr(codecs.I2S, "encode", wrong)
    with pytest.raises(FormatError, match="read back differently, row 0, column 0"):
        tio.convert(source, tmp_path / "b.gguf", to="i2_s")
    assert listing(tmp_path) == ["a.safetensors"]


def test_a_name_that_says_another_container_is_an_error(source: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"ends in \.safetensors"):
        tio.convert(source, tmp_path / "b.safetensors", to="i2_s")
    with pytest.raises(FormatError, match=r"ends in \.gguf"):
        tio.convert(source, tmp_path / "b.gguf", to="hf")


def test_the_source_is_never_the_target(source: Path, tmp_path: Path) -> None:
    for out in (source, tmp_path):
        with pytest.raises(FormatError, match="never overwritten"):
            tio.convert(source, out, to="hf", overwrite=True)


def test_a_file_of_the_source_directory_is_never_the_target(tmp_path: Path) -> None:
    folder = tiny.hf_packed(tmp_path / "m")
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(FormatError, match="never overwritten"):
        tio.convert(folder, folder / "model.safetensors", to="f32", overwrite=True)
    assert (folder / "model.safetensors").read_bytes() == before


def test_a_format_nobody_writes_is_an_error_with_a_hint(source: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="Did you mean 'tq2_0'"):
        tio.convert(source, tmp_path / "b", to="tq2")


def test_a_folder_that_is_not_there_is_an_error(source: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="make it first"):
        tio.convert(source, tmp_path / "no" / "b.gguf", to="i2_s")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EROFS, "read-only: choose another folder"),
        (errno.EACCES, "Choose a folder you may write to"),
        (errno.ENOSPC, "Free some space"),
        (errno.ENOENT, "Its folder is gone"),
    ],
)
@pytest.mark.parametrize("to", ["i2_s", "hf"])
def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(
    source: Path, tmp_path: Path, to: str, code: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("tritium.machine.files.create", fail)
    with pytest.raises(FormatError, match=remedy):
        tio.convert(source, target(tmp_path, "b", to), to=to)
    assert listing(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize("to", ["i2_s", "hf"])
def test_a_folder_that_vanishes_is_an_error(source: Path, tmp_path: Path, to: str) -> None:
    place = tmp_path / "there"
    place.mkdir()

    def vanish(done: int, total: int, what: str) -> None:
        if what.startswith("writing"):
            shutil.rmtree(place, ignore_errors=True)

    with pytest.raises(FormatError, match=r"cannot be (written|read)|does not exist"):
        tio.convert(source, target(place, "b", to), to=to, progress=vanish)
    assert listing(tmp_path) == ["a.safetensors"]


def test_a_folder_that_a_killed_writer_put_aside_is_named(tmp_path: Path) -> None:
    folder = tiny.hf_packed(tmp_path / "m")
    folder.rename(tmp_path / ".m.12.0123abcd.tritium.old")
    with pytest.raises(FormatError, match=r"was killed while it replaced it.*\.m\.12.*rename that back"):
        tio.open(tmp_path / "m")
    other = lone(tmp_path / "a.safetensors", Ternary.from_values(np.ones((4, 256)), 0.5))
    tio.convert(other, tmp_path / "b.gguf", to="i2_s")  # any writer in the folder gives it its name back
    assert tio.open(tmp_path / "m").entries


def test_files_are_on_the_disk_before_they_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("tritium.machine.files.sync", lambda path: seen.append(f"sync {path.suffix or 'folder'}"))
    monkeypatch.setattr("tritium.machine.files.place", lambda a, b, _: (seen.append("rename"), a.rename(b)))
    with appearing(tmp_path / "x", folder=False, overwrite=False) as temporary:
        temporary.write_bytes(b"x")
    assert seen == ["sync .tmp", "rename", "sync folder"]


def test_progress_goes_from_start_to_end(source: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    tio.convert(source, tmp_path / "b.gguf", to="i2_s", progress=lambda done, total, what: steps.append((done, total)))
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1]


# ---- verify


def pair(tmp_path: Path, change: Any) -> tuple[Path, Path]:
    values, scale = np.tile(np.array([-1, 0, 1, 0], np.int8), (4, 64)), np.float32(0.5)
    one = tiny.save(tmp_path / "1.safetensors", {"w": Ternary.from_values(values, scale).dense(), "n": np.ones(4, "f")})
    new_values, new_scale, norm = change(values.copy(), scale, np.ones(4, np.float32))
    two = tiny.save(tmp_path / "2.safetensors", {"w": Ternary.from_values(new_values, new_scale).dense(), "n": norm})
    return one, two


def put(a: Any, at: Any, value: Any) -> Any:
    a[at] = value
    return a


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w, s, n: (put(w, (2, 7), 1), s, n), "tensor 'w', row 2, column 7: 0 and +1"),
        (lambda w, s, n: (w, s * 2, n), "tensor 'w': scale 0.5 and 1, apart by 0.5"),
        (lambda w, s, n: (w, s, put(n, 3, 9)), "tensor 'n', element 3: 1 and 9"),
        (lambda w, s, n: (w, s, np.ones(5, "f")), "tensor 'n': shape [4] and [5]"),
        (lambda w, s, n: (w[:, :128], s, n), "tensor 'w': shape [4, 256] and [4, 128]"),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, change: Any, said: str) -> None:
    verdict = tio.verify(*pair(tmp_path, change))
    assert not verdict.same
    assert verdict.difference == said


def test_a_tensor_that_only_one_has_is_named(tmp_path: Path) -> None:
    one = tiny.save(tmp_path / "1.safetensors", {"a": np.ones(4, "f"), "b": np.ones(4, "f")})
    two = tiny.save(tmp_path / "2.safetensors", {"a": np.ones(4, "f")})
    for args in ((one, two), (two, one)):
        assert tio.verify(*args).difference == "tensor 'b' is only in 1.safetensors"


def test_scales_nobody_uses_are_not_compared() -> None:
    from tritium.io.verify import compare_ternary

    w = np.ones((2, 512), np.int8)
    w[0, :256] = 0
    a, b = (Ternary.from_values(w, [[s, 1], [2, 3]], 256) for s in (5, 7))
    assert not compare_ternary(a, b).difference
    assert (
        compare_ternary(a, Ternary.from_values(w, [[5, 1], [2, 4]], 256)).difference
        == ", row 1, columns from 256: scale 3 and 4, apart by 0.25"
    )


def test_a_ternary_weight_is_not_a_dense_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    one = tiny.save(tmp_path / "1.safetensors", {"w": np.ones((4, 64), "f")})
    two = tiny.save(tmp_path / "2.safetensors", {"w": rng.normal(size=(4, 64)).astype("f")})
    assert tio.verify(one, two).difference == "tensor 'w': F32 (ternary) and F32 (not ternary)"


@pytest.mark.parametrize("to", ["tq1_0", "tq2_0", "q2_0", "i2_s"])
def test_a_relu2_model_in_a_format_of_llama_cpp_is_marked(tmp_path: Path, to: str) -> None:
    from tritium.models.load import shipped

    converted = tio.convert(shipped(), tmp_path / "m.gguf", to=to)
    marked = [w for w in converted.warnings if "llama.cpp does not know the architecture 'bitnet-b1.58'" in w]
    assert len(marked) == (to != "i2_s")

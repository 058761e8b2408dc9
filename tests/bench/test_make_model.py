"""The maker of random models on its smallest sizes: what every format and architecture of one seed has in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tritium as tt
from tritium.families import FAMILIES
from tritium.io.model.entry import Entry, ModelFile
from tritium.io.model.opening import open as open_model

BENCH = Path(__file__).parents[2] / "bench"
SMALL = "--layers 1 --hidden 256 --intermediate 512 --heads 4 --kv-heads 2 --vocab 300".split()


@pytest.fixture(autouse=True, scope="module")
def _from_bench() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        yield


def made(target: Path, *options: str) -> ModelFile:
    from make_model import main

    main([str(target), *SMALL, *options])
    return open_model(target)


def same(a: Entry, b: Entry) -> bool:
    if a.role != "ternary":
        return np.array_equal(a.array().astype(np.float32), b.array().astype(np.float32))
    s, t = a.ternary().simplified(), b.ternary().simplified()
    return np.array_equal(s.values(), t.values()) and np.array_equal(s.scale, t.scale)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    return made(tmp_path_factory.mktemp("made") / "plain.gguf")


@pytest.mark.parametrize(
    "options",
    [
        ["--format", "tq2_0", "--arch", "bitnet"],
        ["--format", "tq1_0", "--arch", "llama"],
        ["--format", "q2_0", "--embedding", "bf16"],
        ["--format", "hf", "--embedding", "bf16"],
        ["--format", "hf", "--embedding", "f16"],
    ],
    ids=" ".join,
)
def test_formats_and_architectures_hold_the_same_numbers(plain: ModelFile, tmp_path: Path, options: list[str]) -> None:
    other = made(tmp_path / ("folder" if "hf" in options else "other.gguf"), *options).named
    missing = set(plain.named) - set(other)
    assert all("sub_norm" in name for name in missing)
    assert bool(missing) == ("llama" in options)
    assert all(same(plain.named[name], other[name]) for name in other)


FAMILY = "--layers 4 --heads 8 --head-dim 64 --context 256".split()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_same_logits_in_every_layout(family: str, tmp_path: Path) -> None:
    logits = []
    for form in ("q2_0", "hf", "mlx"):
        path = made(
            tmp_path / (f"{form}.gguf" if form == "q2_0" else form), *FAMILY, "--family", family, "--format", form
        ).path
        logits.append(tt.load(path, kv="f32").session().extend(0, [1, 2, 3]))
    assert 0.5 < logits[0].std() < 2
    for other in logits[1:]:
        np.testing.assert_allclose(other, logits[0], rtol=1e-5, atol=1e-5)


def test_a_preset_has_groups_and_ternary_tables(tmp_path: Path) -> None:
    small = "--preset bonsai-8b --head-dim 64 --context 128".split()
    model = made(tmp_path / "m.gguf", *small)
    assert {e.stored for e in model.entries.values() if e.role == "ternary"} == {"Q2_0"}
    assert model.named["lm_head.weight"].ternary().group == 128
    assert "int8 per group: a scale for each 128 columns" in repr(tt.load(model.path))
    other = made(
        tmp_path / "o.gguf", *small, "--set", "rope_theta=10000", "--no-ternary-tables", "--group", "0", "--tied"
    )
    assert other.metadata["qwen3.rope.freq_base"] == 10000
    assert "lm_head.weight" not in other.named
    assert other.named["model.embed_tokens.weight"].stored == "F16"


@pytest.mark.slow
def test_experts_have_groups_in_every_layout_that_holds_them(tmp_path: Path) -> None:
    logits = []
    for form in ("q2_0", "mlx", "f16"):
        target = tmp_path / (f"{form}.gguf" if form == "q2_0" else form)
        path = made(target, *FAMILY, "--family", "maple", "--group", "128", "--format", form).path
        model = tt.load(path, kv="f32")
        assert "int8 per group: a scale for each 128 columns" in repr(model)
        logits.append(model.session().extend(0, [1, 2, 3]))
    for other in logits[1:]:
        np.testing.assert_array_equal(other, logits[0])


@pytest.mark.parametrize("option", ["--set x", "--set x=y"])
def test_a_field_that_is_no_json_is_refused(tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        made(tmp_path / "none.gguf", *option.split())
    assert "FIELD=JSON" in capsys.readouterr().err


def test_another_seed_is_another_model(plain: ModelFile, tmp_path: Path) -> None:
    other = made(tmp_path / "other.gguf", "--seed", "1").named
    assert not any(same(e, other[name]) for name, e in plain.named.items())


def test_the_vocabulary_has_every_byte_once_and_ends_with_begin_and_end(plain: ModelFile) -> None:
    tokens = plain.metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == 300
    assert [len(t) for t in tokens[:256]] == [1] * 256
    assert [tokens[plain.metadata[f"tokenizer.ggml.{key}_token_id"]] for key in ("bos", "eos")] == tokens[-2:]
    assert all(merge.replace(" ", "") in tokens for merge in plain.metadata["tokenizer.ggml.merges"])


@pytest.mark.parametrize("option", ["--heads 3", "--kv-heads 3", "--vocab 257", "--layers 0"])
def test_a_shape_no_engine_could_run_is_refused(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        made(tmp_path / "none.gguf", *option.split())
    assert "must be" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_shape_a_format_cannot_hold_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="multiple of 256"):
        made(tmp_path / "none.gguf", "--format", "tq2_0", "--intermediate", "640")
    assert not list(tmp_path.iterdir())

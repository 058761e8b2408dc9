"""From entries to parts: what is missing, too much or of another shape is told; projections are joined without loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from time import sleep
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import models
import tiny
import tritium as tt
from models import TINY
from tritium import dtype as dt
from tritium.errors import ArgumentError, FormatError, TritiumError
from tritium.io import Ternary, safetensors
from tritium.io.stream import Piece
from tritium.models.load import load, shipped
from tritium.models.weights import join, make_head, read_layers

LAYER = "model.layers.1."
Tensors = dict[str, Any]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.folder(tmp_path_factory.mktemp("weights") / "m", models.random(TINY))


def changed(base: Path, target: Path, change: Callable[[Tensors], Any], **config: Any) -> Path:
    """The model with other tensors."""
    file = safetensors.parse(memoryview((base / "model.safetensors").read_bytes()))
    tensors = {name: file.array(name) for name in file.tensors}
    change(tensors)
    return models.written(target, tensors, json.loads((base / "config.json").read_text()) | config)


NEEDED = ["model.embed_tokens", "model.norm"]
NEEDED += [LAYER + name for name in (*TINY.projections(), *TINY.norms())]


@pytest.mark.parametrize("name", NEEDED)
def test_a_weight_that_is_missing_is_named(name: str, base: Path, tmp_path: Path) -> None:
    def drop(t: Tensors) -> None:
        for key in [k for k in t if k.startswith(f"{name}.weight")]:
            del t[key]

    with pytest.raises(FormatError, match=rf"no weight '{name}.weight', needed one of shape \[.*incomplete"):
        load(changed(base, tmp_path / "m", drop))


def test_a_head_that_is_not_tied_must_be_there(base: Path, tmp_path: Path) -> None:
    path = changed(base, tmp_path / "m", lambda t: None, tie_word_embeddings=False)
    with pytest.raises(
        FormatError, match=r"no weight 'lm_head.weight', needed one, since tie_word_embeddings is false"
    ):
        load(path)


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_norm.weight", f"{LAYER}self_attn.q_proj.bias", "model.extra", "model.layers.2.mlp.up_proj.weight"]
)  # fmt: skip
def test_a_weight_without_a_place_is_named(name: str, base: Path, tmp_path: Path) -> None:
    path = changed(base, tmp_path / "m", lambda t: t.update({name: np.ones((4, 4), np.float32)}))
    with pytest.raises(
        FormatError, match=rf"1 weights that its configuration has no place for: {name.removesuffix('.weight')}"
    ):
        load(path)


def test_frequencies_that_old_checkpoints_keep_are_no_weights(base: Path, tmp_path: Path) -> None:
    name = f"{LAYER}self_attn.rotary_emb.inv_freq"
    path = changed(base, tmp_path / "m", lambda t: t.update({name: np.ones(4, np.float32)}))
    assert load(path).config == load(base).config


def test_sub_norms_of_a_llama_have_no_place(base: Path, tmp_path: Path) -> None:
    path = changed(base, tmp_path / "m", lambda t: None, model_type="llama", hidden_act="silu")
    with pytest.raises(FormatError, match="4 weights that its configuration has no place for"):
        load(path)


@pytest.mark.parametrize("name", [n for n in NEEDED if n != "model.embed_tokens"])
def test_a_weight_of_another_shape_is_named_with_both_shapes(name: str, base: Path, tmp_path: Path) -> None:
    def grow(t: Tensors) -> None:
        t[f"{name}.weight"] = np.concatenate([t[f"{name}.weight"]] * 2)

    with pytest.raises(FormatError, match=rf"'{name}.weight': found shape \[.*\], needed \[.*\] by the configuration"):
        load(changed(base, tmp_path / "m", grow))


@pytest.mark.parametrize(
    ("field", "value"), [("hidden_size", 64), ("intermediate_size", 64), ("vocab_size", 64), ("num_key_value_heads", 4), ("head_dim", 16)]
)  # fmt: skip
def test_a_configuration_that_is_another_models_is_told(field: str, value: int, base: Path, tmp_path: Path) -> None:
    path = changed(base, tmp_path / "m", lambda t: None, **{field: value})
    with pytest.raises(FormatError, match="by the configuration"):
        load(path)


@pytest.mark.parametrize(
    ("layers", "match"), [(3, "no weight 'model.layers.2"), (1, "11 weights that its configuration has no")]
)
def test_another_number_of_layers_is_told(layers: int, match: str, base: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=match):
        load(changed(base, tmp_path / "m", lambda t: None, num_hidden_layers=layers))


def test_a_packed_weight_without_its_scale_is_told(base: Path, tmp_path: Path) -> None:
    path = changed(base, tmp_path / "m", lambda t: t.pop(f"{LAYER}mlp.up_proj.weight_scale"))
    with pytest.raises(FormatError, match=rf"{LAYER}mlp.up_proj.weight.*weight_scale"):
        load(path)


def test_a_code_that_means_nothing_is_told(base: Path, tmp_path: Path) -> None:
    def damage(t: Tensors) -> None:
        t[f"{LAYER}mlp.up_proj.weight"] = t[f"{LAYER}mlp.up_proj.weight"] | np.uint8(3)

    with pytest.raises(FormatError, match=f"{LAYER}mlp.up_proj.weight"):
        load(changed(base, tmp_path / "m", damage))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_scale_that_is_no_number_is_told(value: float, base: Path, tmp_path: Path) -> None:
    path = changed(base, tmp_path / "m", lambda t: t.update({f"{LAYER}mlp.up_proj.weight_scale": np.float32([value])}))
    with pytest.raises(FormatError, match=f"{LAYER}mlp.up_proj"):
        load(path)


def test_a_head_of_its_own_is_used(tmp_path: Path) -> None:
    """transformers does so too where a file has both, even if the configuration says they are tied."""
    w = models.random(replace(TINY, tied=False))
    for tied in (False, True):
        model = load(models.folder(tmp_path / str(tied), w, tie_word_embeddings=tied), kv="f32")
        want = models.decode(w, [1, 2, 3])[-1]
        np.testing.assert_allclose(model.session().extend(0, [1, 2, 3]), want, atol=1e-4)


def test_layers_in_several_files_are_one_model(base: Path, tmp_path: Path) -> None:
    file = safetensors.parse(memoryview((base / "model.safetensors").read_bytes()))
    path = tmp_path / "m"
    path.mkdir()
    (path / "config.json").write_bytes((base / "config.json").read_bytes())
    parts = {"a.safetensors": {}, "b.safetensors": {}}  # type: dict[str, Tensors]
    for i, name in enumerate(file.tensors):
        parts[sorted(parts)[i % 2]][name] = file.array(name)
    for name, tensors in parts.items():
        tiny.save(path / name, tensors)
    where = {t: name for name, tensors in parts.items() for t in tensors}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    np.testing.assert_array_equal(load(path).session().extend(0, [4, 2]), load(base).session().extend(0, [4, 2]))


@given(st.data())
@settings(max_examples=60)
def test_files_with_bytes_changed_anywhere_never_crash(
    base: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """It loads and runs, or it is refused; a network of damaged numbers may say anything, but only numbers."""
    path = tmp_path_factory.mktemp("fuzz")
    files = {name: bytearray((base / name).read_bytes()) for name in ("config.json", "model.safetensors")}
    for _ in range(data.draw(st.integers(1, 4))):
        raw = files[data.draw(st.sampled_from(sorted(files)))]
        where = data.draw(st.integers(0, min(len(raw), data.draw(st.sampled_from([8, 3000, 1 << 30]))) - 1))
        raw[where] = data.draw(st.integers(0, 255) | st.sampled_from([*b'0123456789",[]{}:']))
    for name, raw in files.items():
        (path / name).write_bytes(raw)
    with suppress(TritiumError), np.errstate(all="ignore"):
        assert load(path).session(context=4).extend(0, [1, 2]).size


# ---- joined projections


def values(n: int, k: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(-1, 2, (n, k))


@pytest.mark.parametrize("storage", [dt.tern2, dt.tern5])
@pytest.mark.parametrize("k", [8, 30, 33])
def test_projections_joined_give_the_bits_of_each(k: int, storage: Any) -> None:
    parts = [Ternary.from_values(values(n, k, n), 0.1 * n) for n in (4, 7, 2)]
    x = tt.tensor(np.random.default_rng(0).standard_normal((3, k)).astype(np.float32))
    joined = tt.nn.BitLinear(join(parts, storage))(x).numpy()
    each = [tt.nn.BitLinear(join([p], storage))(x).numpy() for p in parts]
    np.testing.assert_array_equal(joined, np.concatenate(each, axis=1))


def test_projections_with_scales_of_rows_are_joined() -> None:
    rows = np.linspace(0.1, 0.4, 4).astype(np.float32)
    parts = [Ternary.from_values(values(4, 8, 1), rows), Ternary.from_values(values(2, 8, 2), 3.0)]
    want = np.concatenate([p.dense() for p in parts])
    np.testing.assert_array_equal(join(parts, dt.tern2).dequantize().numpy(), want)


def test_projections_with_scales_of_groups_are_joined() -> None:
    scale = np.random.default_rng(0).uniform(0.1, 1, (4, 2)).astype(np.float32)
    parts = [Ternary.from_values(values(4, 64, 1), scale, 32), Ternary.from_values(values(4, 64, 2), scale * 2, 32)]
    want = np.concatenate([p.dense() for p in parts])
    np.testing.assert_array_equal(join(parts, dt.tern2).dequantize().numpy(), want)


def test_a_head_is_made_as_asked() -> None:
    table = tt.tensor(np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)).to("bf16")
    assert make_head(table, None) is table
    assert [str(make_head(table, h).dtype) for h in ("f32", "f16", "bf16")] == ["f32", "f16", "bf16"]  # type: ignore[union-attr]
    assert isinstance(make_head(table, "int8"), tt.nn.QuantLinear)
    with pytest.raises(ArgumentError, match="head 'q8' is unknown"):
        make_head(table, "q8")


def test_numbers_of_every_float_are_read(tmp_path: Path) -> None:
    w = models.random(TINY)
    found = [
        load(models.folder(tmp_path / str(i), w, dtype=dtype), kv="f32").session().extend(0, [1, 2, 3])
        for i, dtype in enumerate((np.float32, np.float16, ml_dtypes.bfloat16))
    ]
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)
    np.testing.assert_allclose(found[2], found[0], atol=1e-5)


def test_the_file_of_a_model_may_go_once_it_is_loaded(tmp_path: Path) -> None:
    """Mapped bytes stay; pages that were given back are read again."""
    path = models.folder(tmp_path / "m", models.random(TINY))
    model = load(path)
    before = model.session().extend(0, [1, 2, 3])
    (path / "model.safetensors").unlink()
    np.testing.assert_array_equal(model.session().extend(0, [1, 2, 3]), before)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_table_that_ggml_quantised_is_kept_as_f16_and_once(kind: str, tmp_path: Path) -> None:
    gguf_module = pytest.importorskip("gguf", reason="it has the other side's quantisers")
    from tritium.io import gguf

    found = tt.io.open(shipped())
    name = "token_embd.weight"
    table = found.entries[name].float32()
    raw = gguf_module.quants.quantize(table, gguf_module.GGMLQuantizationType[kind])
    pieces = []
    for e in found.entries.values():
        data = raw.tobytes() if e.name == name else bytes(e.raw())
        pieces.append(Piece(e.name, e.shape, kind if e.name == name else e.stored, len(data), lambda data=data: [data]))
    target = tmp_path / "quantised.gguf"
    assert found.gguf is not None
    with target.open("wb") as file:
        gguf.write(file, {k: v.raw for k, v in found.gguf.metadata.values_by_key.items()}, pieces)
    want = gguf_module.quants.dequantize(raw, gguf_module.GGMLQuantizationType[kind])
    model = tt.load(target)
    got = model.network.embedding.weight
    assert got.dtype is tt.f16
    assert model.network.head.weight is got
    np.testing.assert_array_equal(got.numpy(), want.astype(np.float16))
    exact = tt.load(target, head="f32").network.head.weight
    assert isinstance(exact, tt.Tensor)
    np.testing.assert_array_equal(exact.numpy(), want)


# ---- tables that are ternary in the file


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("to", ["mlx", "q2_0", "pq2_0", "ptq1_0"])
def test_ternary_tables_stay_packed(tmp_path: Path, to: str, tied: bool) -> None:
    source = tiny.mlx_packed(tmp_path / "source", tied=tied)
    path = source if to == "mlx" else tmp_path / "model.gguf"
    if to != "mlx":
        tt.io.convert(source, path, to=to)
    model = tt.load(path)
    embedding, head = model.network.embedding, model.network.head
    assert isinstance(embedding, tt.nn.QuantEmbedding)
    assert (head.weight is embedding.weight) == tied
    dense = tt.io.open(source).named["model.embed_tokens.weight"].float32()
    assert np.array_equal(embedding(tt.arange(64)).numpy(), dense)
    logits = tt.load(source).session().extend(0, [1, 2, 3])
    assert np.array_equal(np.asarray(model.session().extend(0, [1, 2, 3])), np.asarray(logits))
    packed = model.save(tmp_path / "model.tritium")
    again = tt.load(packed)
    assert (again.network.head.weight is again.network.embedding.weight) == tied
    assert again.nbytes == model.nbytes
    assert np.array_equal(np.asarray(again.session().extend(0, [1, 2, 3])), np.asarray(logits))


def test_a_ternary_head_is_unpacked_on_demand(tmp_path: Path) -> None:
    source = tiny.mlx_packed(tmp_path / "source", tied=True)
    dense = tt.io.open(source).named["model.embed_tokens.weight"].float32()
    exact = tt.load(source, head="f32")
    assert np.array_equal(exact.network.head.weight.numpy(), dense)
    assert isinstance(exact.network.embedding, tt.nn.QuantEmbedding)
    assert tt.load(source, head="int8").network.head.weight.weight.scheme == "int8"
    assert exact.nbytes > tt.load(source).nbytes


def test_projections_of_one_input_may_have_scales_of_different_widths(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    one = Ternary.from_values(rng.integers(-1, 2, (64, 256)), rng.uniform(1, 2, (64, 2)), 128)
    two = Ternary.from_values(rng.integers(-1, 2, (32, 256)), rng.uniform(1, 2, 32))
    three = Ternary.from_values(rng.integers(-1, 2, (32, 256)), 0.5)
    joined = join([one, two, three], tt.tern2)
    wanted = np.concatenate([t.dense() for t in (one, two, three)])
    assert np.array_equal(joined.dequantize().numpy(), wanted)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_fewer_layers_are_read_at_a_time_towards_the_end(threads: int) -> None:
    lock, running, left, seen = Lock(), 0, 12, []

    def block(i: int) -> Any:
        nonlocal running, left
        with lock:
            running += 1
            seen.append((running, left))
        sleep(0.002)
        with lock:
            running, left = running - 1, left - 1
        if i == 20:
            raise ValueError(i)
        return i

    assert read_layers(block, 12, threads) == tuple(range(12))
    assert all(count <= min(threads, max(1, (rest + 1) // 2)) for count, rest in seen)
    left = 21
    with pytest.raises(ValueError, match="20"):
        read_layers(block, 21, threads)

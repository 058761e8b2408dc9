"""Every family gives the logits of a decoder in float64 written from the formulas, however its tokens arrive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import families
import markov
import tritium as tt
from families import CONFIGS
from tritium.io import gguf
from tritium.models import generation, prepacked
from tritium.models.load import Model

BOUND = 5e-2  # of the largest logit: where an activation fell to another of the 127 steps than in float64
USUAL = 1e-5  # where none did
IDS = np.random.default_rng(5).integers(0, 80, 40).tolist()


def load(path: Path, **options: object) -> Model:
    return tt.load(path, kv="f32", **options)


def every_logit(model: Model, ids: list[int], chunks: tuple[int, ...] = ()) -> np.ndarray:
    """Return the logits after each token, read one by one, or after each of some chunks."""
    session = model.session()
    ends = np.cumsum(chunks or (1,) * len(ids)).tolist()
    starts = [0, *ends[:-1]]
    return np.stack([session.extend(0, ids[a:b]) for a, b in zip(starts, ends, strict=True)])


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_the_formulas(name: str, tmp_path: Path) -> None:
    """Over three seeds. An activation at the middle of two steps may fall to either: then all tokens after it differ a little."""
    exact = 0
    for seed in range(3):
        w = families.random(CONFIGS[name], seed)
        model = load(families.write_folder(tmp_path / str(seed), w))
        ours, wanted = every_logit(model, IDS), families.Decoder(w).logits(IDS)
        largest = np.abs(wanted).max()
        error = np.abs(ours - wanted).max(-1) / largest
        assert error.max() <= BOUND
        exact += int(error.max() <= USUAL)
        top = np.sort(wanted, axis=-1)
        clear = top[:, -1] - top[:, -2] > 2 * BOUND * largest
        assert (ours.argmax(-1) == wanted.argmax(-1))[clear].all()
        assert clear.sum() > len(IDS) // 8
    assert exact >= 2


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_have_the_same_bits_in_chunks_in_batches_and_resumed(name: str, tmp_path: Path) -> None:
    model = load(families.write_folder(tmp_path / "m", families.random(CONFIGS[name], 3)))
    alone = every_logit(model, IDS)
    np.testing.assert_array_equal(every_logit(model, IDS, (17, 1, 22)), alone[[16, 17, 39]])
    session = model.session(slots=3)
    session.extend(1, IDS[:20])
    session.extend(2, IDS[:7])
    rows = session.step([1, 2], [IDS[20], IDS[7]])
    np.testing.assert_array_equal(rows, alone[[20, 7]])
    session.truncate(1, 0)
    session.extend(1, IDS[:9])
    np.testing.assert_array_equal(session.extend(1, IDS[9:12]), alone[11])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prepacked_file_has_the_same_bits(name: str, tmp_path: Path) -> None:
    model = load(families.write_folder(tmp_path / "m", families.random(CONFIGS[name], 4)))
    again = load(model.save(tmp_path / "m.tritium"))
    assert again.config == model.config
    np.testing.assert_array_equal(every_logit(again, IDS[:8], (8,)), every_logit(model, IDS[:8], (8,)))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_gguf_file_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    """One with the names, the order of heads and the norms of llama.cpp's converters, from the same weights."""
    config = CONFIGS[name]
    if name == "gemma3":
        config = config | {"query_pre_attn_scalar": config["head_dim"]}  # no key says another one
    w = families.random(config, 5)
    theirs = load(families.write_gguf(tmp_path / "m.gguf", w))
    ours = load(families.write_folder(tmp_path / "m", w))
    assert theirs.config.description.layers[0].mlp == ours.config.description.layers[0].mlp
    logits, wanted = every_logit(theirs, IDS, (39, 1)), every_logit(ours, IDS, (39, 1))
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=USUAL * np.abs(wanted).max())


def test_a_scale_of_scores_that_gguf_has_no_key_for_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(tt.errors.FormatError, match="query_pre_attn_scalar: found 24, needed 32"):
        families.write_gguf(tmp_path / "m.gguf", families.random(CONFIGS["gemma3"]))


def test_the_state_of_a_recurrent_model_cannot_be_cut(tmp_path: Path) -> None:
    model = load(families.write_folder(tmp_path / "m", families.random(CONFIGS["qwen3_5"], 3)))
    alone = every_logit(model, IDS)
    session = model.session(slots=2)
    session.extend(0, IDS[:10])
    assert (session.reusable(0, 10), session.reusable(0, 9), session.reusable(1, 0)) == (10, 0, 0)
    with pytest.raises(tt.errors.ArgumentError, match="holds 10 tokens as one and cannot be cut to 4"):
        session.truncate(0, 4)
    session.truncate(0, 10)
    np.testing.assert_array_equal(session.extend(0, IDS[10:12]), alone[11])
    session.truncate(0, 0)
    np.testing.assert_array_equal(session.extend(0, IDS[:5]), alone[4])


def test_a_recurrent_model_scores_and_picks_as_it_steps(tmp_path: Path) -> None:
    model = load(families.write_folder(tmp_path / "m", families.random(CONFIGS["qwen3_5"], 3)))
    rows = every_logit(model, IDS).astype(np.float64)
    wanted = [r[t] - np.log(np.exp(r - r.max()).sum()) - r.max() for r, t in zip(rows[4:], IDS[5:], strict=False)]
    session = model.session(slots=2)
    session.extend(1, IDS[:5])
    scores = [*session.score(1, IDS[5:6]), *session.score(1, IDS[6:])]
    np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-5)
    assert session.tokens(1) == IDS
    session.extend(0, IDS[:5])
    picked = session.pick([0], [IDS[5]])
    assert picked.ids == [int(rows[5].argmax())]


def test_a_prompt_of_a_recurrent_model_is_read_again_where_nothing_can_be_kept(tmp_path: Path) -> None:
    model = load(families.write_folder(tmp_path / "m", families.random(CONFIGS["qwen3_5"], 3)))
    session = model.session()
    first, again = (generation.generate(session, markov.TOKENIZER, IDS[:8], max_tokens=4) for _ in range(2))
    more = generation.generate(session, markov.TOKENIZER, [*IDS[:8], *again.tokens], max_tokens=2)
    assert (first.tokens, first.reused, again.reused, more.reused) == (again.tokens, 0, 0, 11)


def test_groups_of_columns_have_activations_of_their_own(tmp_path: Path) -> None:
    """Weights with a scale for each 32 columns: the same in the reference, and what is chosen by default is said."""
    w = families.random(CONFIGS["qwen3"], 1, group=32)
    path = families.write_gguf(tmp_path / "m.gguf", w)
    model = load(path)
    assert model.activations == "group"
    assert "int8 per group: a scale for each 32 columns, not trained with int8 tokens" in repr(model)
    wanted = families.Decoder(w).logits(IDS)
    assert np.abs(every_logit(model, IDS) - wanted).max() <= USUAL * np.abs(wanted).max()
    by_token, exact = (every_logit(load(path, activations=how), IDS, (40,)) for how in ("token", "float"))
    assert np.abs(by_token - exact).max() > np.abs(every_logit(model, IDS, (40,)) - exact).max() > 0
    with pytest.raises(tt.errors.ArgumentError, match="activations 'int4' are unknown"):
        load(path, activations="int4")


def test_a_gguf_file_says_the_factor_of_longrope_or_means_one(tmp_path: Path) -> None:
    """llama.cpp's converter of MiniCPM writes no factor, and llama.cpp then computes with 1; a configuration infers it."""
    w = families.random(CONFIGS["minicpm"], 1)
    inferred = families.long_factor(128, 32)
    for stored, wanted in ((1.25, 1.25), (1.0, 1.0), (None, 1.0)):
        key = {} if stored is None else {"minicpm.rope.scaling.attn_factor": gguf.number("f32", stored)}
        path = families.write_gguf(tmp_path / f"{stored}.gguf", w, **(key or {"minicpm.rope.scaling.attn_factor": b""}))
        assert dict(load(path).config.scaling)["attention_factor"] == pytest.approx(wanted)
    folder = families.write_folder(tmp_path / "m", w)
    assert dict(load(folder).config.scaling)["attention_factor"] == pytest.approx(inferred)


def test_a_token_of_maple_sees_as_many_positions_as_its_window_says(tmp_path: Path) -> None:
    config = CONFIGS["maple"] | {"layer_types": ["sliding_attention"], "num_hidden_layers": 1, "sliding_window": 3}
    session = load(families.write_folder(tmp_path / "m", families.random(config, 1))).session(slots=3)
    far, near, same = (session.extend(slot, [*ids, 7, 8, 9]) for slot, ids in enumerate(([4], [5], [4])))
    assert (far == near).all()  # the fourth position back is not seen
    assert (far == same).all()
    session = load(tmp_path / "m").session(slots=2)
    assert (session.extend(0, [4, 8, 9]) != session.extend(1, [5, 8, 9])).any()  # the third is


def test_norms_of_gemma_in_gguf_have_the_one_that_files_of_hugging_face_leave_out(tmp_path: Path) -> None:
    """llama.cpp's converter adds 1 to each norm; Microsoft's, of models with a norm before each projection, adds nothing."""
    for name, shift in (("gemma3", 1.0), ("gemma3 norms", 0.0)):
        w = families.random(CONFIGS[name] | {"query_pre_attn_scalar": CONFIGS[name]["head_dim"]}, 1)
        entries = tt.io.open(families.write_gguf(tmp_path / f"{name}.gguf", w)).named
        for norm in (
            "model.norm.weight",
            "model.layers.0.self_attn.q_norm.weight",
            "model.layers.0.input_layernorm.weight",
        ):
            np.testing.assert_allclose(entries[norm].float32(), w.plain[norm] + shift, rtol=1e-6)
            assert entries[norm].shift == 1.0 - shift  # of what computation has to add


def test_the_table_of_maple_has_its_own_name_in_files(tmp_path: Path) -> None:
    from tiny import save

    path = families.write_folder(tmp_path / "m", families.random(CONFIGS["maple"], 1))
    wanted = load(path).session().extend(0, [1, 2])
    file = tt.io.safetensors.parse((path / "model.safetensors").read_bytes())
    arrays = {n.replace("embed_tokens", "word_embeddings"): np.array(file.array(n)) for n in file.tensors}
    save(path / "model.safetensors", arrays, {"format": "pt"})
    assert (load(path).session().extend(0, [1, 2]) == wanted).all()


@pytest.mark.parametrize("seed", range(2))
def test_experts_with_groups_have_activations_of_every_kind(seed: int, tmp_path: Path) -> None:
    """Scales for each 32 columns: logits of the formulas by group and with floats, the same bits however tokens arrive."""
    w = families.random(CONFIGS["maple"] | {"moe_intermediate_size": 64}, seed, group=32)
    path = families.write_gguf(tmp_path / "m.gguf", w)
    model = load(path)
    assert model.activations == "group"
    assert "int8 per group: a scale for each 32 columns, not trained with int8 tokens" in repr(model)
    stacks = prepacked.experts(model.network).values()
    assert {(e.group, e.activations, e.scale.dtype) for e in stacks} == {(32, "group", tt.f16)}
    alone, wanted = every_logit(model, IDS), families.Decoder(w).logits(IDS)
    assert np.abs(alone - wanted).max() <= BOUND * np.abs(wanted).max()
    np.testing.assert_array_equal(every_logit(model, IDS, (17, 1, 22)), alone[[16, 17, 39]])
    again = load(model.save(tmp_path / "m.tritium"))
    assert again.activations == "group"
    np.testing.assert_array_equal(every_logit(again, IDS[:8], (8,))[0], alone[7])
    dense = {name: families.to_dense(t, scale) for name, (t, scale) in w.ternary.items()}
    exact = families.Decoder(families.Weights(w.config, {}, w.plain | dense)).logits(IDS)
    floats, by_token = (load(path, activations=how) for how in ("float", "token"))
    errors = [np.abs(every_logit(m, IDS, (40,)) - exact[39]).max() for m in (floats, model, by_token)]
    assert errors[0] <= USUAL * np.abs(exact).max() < errors[1] < errors[2]
    session = floats.session(slots=2)
    session.extend(1, IDS[:20])
    session.extend(0, IDS[:7])
    rows = session.step([1, 0], [IDS[20], IDS[7]])
    np.testing.assert_array_equal(rows, every_logit(floats, IDS[:21])[[20, 7]])


def test_experts_without_groups_take_tokens_or_floats(tmp_path: Path) -> None:
    path = families.write_folder(tmp_path / "m", families.random(CONFIGS["maple"], 1))
    assert load(path).activations == load(path, activations="token").activations == "token"
    assert "activations float: chosen" in repr(load(path, activations="float"))
    with pytest.raises(tt.errors.ArgumentError, match="activations='group' needs weights with a scale for each group"):
        load(path, activations="group")

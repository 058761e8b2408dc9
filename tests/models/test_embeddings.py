"""Embeddings: hidden states after the final norm, pooled as the files say, with the same bits alone, in a batch and in pieces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import families
import models
import tritium as tt
from models import TINY
from tritium import ops
from tritium.errors import ArgumentError, ContextError, FormatError
from tritium.io import gguf
from tritium.io.stream import Piece
from tritium.models import embeddings
from tritium.models.embeddings import POOLINGS, Recipe, from_folder, from_gguf, from_json
from tritium.models.load import Model, shipped
from tritium.nn.linear import QuantLinear

TEXTS = ["In the beginning", "God", "And the LORD spake unto Moses, saying, " * 4, "x", "Let there be light" * 9, "God"]


@pytest.fixture(scope="module")
def model() -> Model:
    return tt.load()


class Letters:
    """A vocabulary of letters for a random model."""

    suffix: tuple[int, ...] = ()

    def encode(self, text: str, bos: bool = True) -> list[int]:
        return [2 + ord(c) % 46 for c in text]


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A random model whose context is longer than any one program."""
    shape = replace(TINY, context=700)
    return tt.load(models.folder(tmp_path_factory.mktemp("embed") / "m", models.random(shape, 3)))


def vectors(model: Model, texts: Any, **options: Any) -> Any:
    """The vectors of texts in `Letters`."""
    more = {"context": model.context, "hidden_size": model.config.hidden_size} | options
    recipe = more.pop("recipe", Recipe())
    return embeddings.embed(model.session, more.pop("tokenizer", Letters()), texts, recipe, **more)  # type: ignore[arg-type]


# ---- hidden states


def test_the_head_makes_logits_of_the_last_vector(model: Model) -> None:
    for text in TEXTS[:4]:
        vector = model.embed(text, pooling="last", normalize=False)
        logits = ops.linear(tt.asarray(vector[None]), model.network.head.weight)
        np.testing.assert_array_equal(logits.numpy()[0], model.session().extend(0, model.tokenizer.encode(text)))


def test_the_first_and_the_mean_are_of_the_states_of_every_token(model: Model) -> None:
    text = "And God said"
    states = np.stack([model.embed(text[: n + 1], pooling="last", normalize=False) for n in range(len(text))])
    np.testing.assert_array_equal(model.embed(text, pooling="cls", normalize=False), states[0])
    np.testing.assert_allclose(
        model.embed(text, pooling="mean", normalize=False), states.mean(axis=0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_text_has_the_same_bits_alone_and_in_a_batch(model: Model, pooling: str) -> None:
    together = model.embed(TEXTS, pooling=pooling)
    assert (together.shape, together.dtype) == ((len(TEXTS), model.config.hidden_size), np.float32)
    for batch in (1, 3, 64):
        np.testing.assert_array_equal(model.embed(TEXTS[::-1], pooling=pooling, batch=batch)[::-1], together)
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_array_equal(model.embed(text, pooling=pooling), vector)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-6)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=5), st.sampled_from(POOLINGS))
def test_texts_of_any_length_in_any_company(roomy: Model, lengths: list[int], pooling: str) -> None:
    texts = ["".join(chr(65 + (i * n) % 50) for i in range(n)) for n in lengths]
    together = vectors(roomy, texts, pooling=pooling)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_array_equal(vectors(roomy, text, pooling=pooling), vector)


def test_a_long_text_in_pieces_is_the_text_token_by_token(roomy: Model) -> None:
    text = "".join(chr(65 + i * i % 50) for i in range(300))
    session = roomy.session()
    states = np.concatenate([session.hidden([0], [[token]])[0] for token in Letters().encode(text)])
    np.testing.assert_array_equal(vectors(roomy, text, pooling="last", normalize=False), states[-1])
    np.testing.assert_array_equal(vectors(roomy, text, pooling="cls", normalize=False), states[0])
    mean = states.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(vectors(roomy, text, pooling="mean", normalize=False), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["torch", "mlx"])
def test_other_devices_give_the_same_vectors(model: Model, device: str) -> None:
    pytest.importorskip("mlx.core" if device == "mlx" else device, reason=f"needs {device}")
    there = model.to(device).embed(["God", "And"], pooling="mean")
    np.testing.assert_allclose(there, model.embed(["God", "And"], pooling="mean"), atol=1e-6)


def test_embedding_disturbs_no_generation(model: Model) -> None:
    one = model.generate("And God said", max_tokens=8)
    model.embed(TEXTS)
    again = model.generate("And God said", max_tokens=8)
    assert (again.tokens, again.reused) == (one.tokens, one.prompt_tokens - 1)


@pytest.mark.parametrize("name", families.CONFIGS)
def test_texts_of_every_family_have_the_same_bits_alone_and_in_a_batch(name: str, tmp_path: Path) -> None:
    """Also with padding beside them, and in slots that held other texts."""
    model = tt.load(families.write_folder(tmp_path / "m", families.random(families.CONFIGS[name], 2)))
    texts = ["In the", "beginning", "God created", "the heaven", "and"]
    for pooling in ("last", "mean"):
        together = vectors(model, texts, pooling=pooling, batch=3)
        for text, vector in zip(texts, together, strict=True):
            np.testing.assert_array_equal(vectors(model, text, pooling=pooling), vector)
    session = model.session()
    logits = session.extend(0, Letters().encode(texts[1]))
    vector = vectors(model, texts[1], pooling="last", normalize=False)
    head = model.network.head
    projected = tt.asarray(vector[None])
    projected = head.weight(projected) if isinstance(head.weight, QuantLinear) else ops.linear(projected, head.weight)
    np.testing.assert_array_equal(projected.numpy()[0] * np.float32(head.multiplier), logits)


# ---- texts


def test_a_text_that_is_too_long_is_refused_or_cut(model: Model) -> None:
    with pytest.raises(ContextError, match=r"text 1 has 300 tokens; the context holds 256.*truncate=True"):
        model.embed(["short", "x" * 300])
    cut = model.embed("xy" * 150, truncate=True)
    np.testing.assert_array_equal(cut, model.embed("xy" * 128))


@pytest.mark.parametrize(
    ("texts", "options", "says"),
    [
        (["a", ""], {}, "text 1 is empty"),
        (["a", 3], {}, "texts"),
        ("a", {"pooling": "max"}, "pooling 'max' is unknown; use last, mean, cls"),
        ("a", {"batch": 65}, "batch must be 1 to 64"),
        ("a", {"prompt_name": "query"}, "no prompt 'query'; it has none"),
        ("a", {"prompt": "a", "prompt_name": "b"}, "both given"),
    ],
)
def test_what_cannot_be_embedded_is_told(model: Model, texts: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        model.embed(texts, **options)


def test_no_texts_give_no_vectors(model: Model) -> None:
    assert model.embed([]).shape == (0, model.config.hidden_size)


def test_a_prompt_is_put_before_every_text(model: Model) -> None:
    np.testing.assert_array_equal(model.embed(["b", "c"], prompt="query: "), model.embed(["query: b", "query: c"]))


def test_prompts_of_the_files_go_by_name_and_by_default(roomy: Model) -> None:
    recipe = Recipe(prompts={"query": "Q:", "document": ""}, default_prompt="query")
    expected = vectors(roomy, "Q:a")
    np.testing.assert_array_equal(vectors(roomy, "a", recipe=recipe), expected)
    np.testing.assert_array_equal(vectors(roomy, "a", recipe=recipe, prompt_name="query"), expected)
    np.testing.assert_array_equal(vectors(roomy, "a", recipe=recipe, prompt_name="document"), vectors(roomy, "a"))
    np.testing.assert_array_equal(vectors(roomy, "a", recipe=recipe, prompt="Q:"), expected)
    with pytest.raises(ArgumentError, match=r"no prompt 'qery'; its prompts are document, query. Did you mean 'query'"):
        vectors(roomy, "a", recipe=recipe, prompt_name="qery")


def test_a_mean_leaves_out_the_prompt_where_the_files_say_so(roomy: Model) -> None:
    recipe = Recipe("mean", pools_prompt=False)
    last = vectors(roomy, "Qz", pooling="last")
    np.testing.assert_allclose(vectors(roomy, "z", recipe=recipe, prompt="Q"), last, rtol=1e-6)
    long = "Q" * 256
    np.testing.assert_allclose(vectors(roomy, "z", recipe=recipe, prompt=long), vectors(roomy, f"{long}z"), rtol=1e-6)


def test_tokens_that_end_a_text_are_put_there_once_and_survive_a_cut(roomy: Model) -> None:
    class Ending(Letters):
        suffix = (2 + ord("~") % 46,)

    np.testing.assert_array_equal(vectors(roomy, "ab", tokenizer=Ending()), vectors(roomy, "ab~"))
    np.testing.assert_array_equal(vectors(roomy, "ab~", tokenizer=Ending()), vectors(roomy, "ab~"))
    cut = vectors(roomy, "a" * 700, tokenizer=Ending(), truncate=True)
    np.testing.assert_array_equal(cut, vectors(roomy, "a" * 699 + "~"))
    with pytest.raises(ContextError, match="701 tokens"):
        vectors(roomy, "a" * 700, tokenizer=Ending())


# ---- what the files say


def pooling_config(**modes: Any) -> dict[str, Any]:
    return {"word_embedding_dimension": 8, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False} | modes


def files(folder: Path, **contents: Any) -> Path:
    (folder / "1_Pooling").mkdir()
    names = {
        "pooling": "1_Pooling/config.json",
        "modules": "modules.json",
        "prompts": "config_sentence_transformers.json",
    }
    for name, content in contents.items():
        (folder / names[name]).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        (pooling_config(pooling_mode_lasttoken=True), "last"),
        (pooling_config(pooling_mode_mean_tokens=True), "mean"),
        (pooling_config(pooling_mode_cls_token=True), "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean", "include_prompt": False}, "mean"),
    ],
)
def test_sentence_transformers_files_say_how_to_pool(config: dict[str, Any], pooling: str, tmp_path: Path) -> None:
    recipe = from_folder(
        files(tmp_path, pooling=config, prompts={"prompts": {"query": "Q: "}, "default_prompt_name": None})
    )
    assert (recipe.pooling, recipe.source) == (pooling, "1_Pooling/config.json says so")
    assert recipe.prompts == {"query": "Q: "}
    assert recipe.pools_prompt is config.get("include_prompt", True)
    assert from_json(recipe.as_json()) == recipe


def test_a_folder_that_says_nothing_takes_the_last_token(tmp_path: Path) -> None:
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Pooling", "Normalize")]
    assert from_folder(files(tmp_path, modules=modules)) == Recipe()


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({"pooling": pooling_config(pooling_mode_max_tokens=True)}, "pooling_mode_max_tokens.*not computed here"),
        (
            {"pooling": pooling_config(pooling_mode_cls_token=True, pooling_mode_mean_tokens=True)},
            "1_Pooling/config.json",
        ),
        ({"pooling": {"pooling_mode": "max"}}, "max"),
        ({"modules": [{"type": "sentence_transformers.models.Dense"}]}, "modules.json, type: found Dense"),
        ({"modules": {}}, "modules.json"),
        ({"prompts": {"prompts": {"a": 3}}}, "prompts"),
        ({"prompts": {"prompts": {"a": "b"}, "default_prompt_name": "c"}}, "default_prompt_name"),
        ({"prompts": {"prompts": {str(i): "" for i in range(300)}}}, "at most 256 texts"),
    ],
)
def test_a_recipe_that_is_not_understood_is_refused(contents: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=says):
        from_folder(files(tmp_path, **contents))


@pytest.mark.parametrize(("kind", "pooling"), [(None, "last"), (0, "last"), (1, "mean"), (2, "cls"), (3, "last")])
def test_a_gguf_key_says_how_to_pool(kind: int | None, pooling: str) -> None:
    keys = {"general.architecture": "llama"} | ({} if kind is None else {"llama.pooling_type": kind})
    recipe = from_gguf(keys)
    assert recipe.pooling == pooling
    assert (recipe.source == f"llama.pooling_type is {kind}") is bool(kind)


@pytest.mark.parametrize("kind", [4, -1, "mean", True, 1.5])
def test_another_pooling_of_a_gguf_is_refused(kind: Any) -> None:
    with pytest.raises(FormatError, match=r"llama\.pooling_type"):
        from_gguf({"general.architecture": "llama", "llama.pooling_type": kind})


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"pooling": 3}', Recipe().as_json().replace(b'"last"', b'"max"'), b"[" * 10**5]
)
def test_a_damaged_recipe_is_refused(raw: bytes) -> None:
    with pytest.raises(FormatError, match=r"embedding.json"):
        from_json(raw)


def test_a_gguf_with_a_pooling_key_loads_and_keeps_it_when_prepacked(tmp_path: Path) -> None:
    parsed = gguf.parse(shipped().read_bytes())
    key = f"{gguf.scalar(parsed.metadata, 'general.architecture')}.pooling_type"
    keys = {k: v.raw for k, v in parsed.metadata.values_by_key.items()} | {key: gguf.number("u32", 1)}
    with (tmp_path / "m.gguf").open("wb") as file:
        gguf.write(file, keys, [copied(parsed, name) for name in parsed.tensors])
    model = tt.load(tmp_path / "m.gguf")
    assert (model.recipe.pooling, model.recipe.source) == ("mean", f"{key} is 1")
    np.testing.assert_array_equal(model.embed("God"), tt.load().embed("God", pooling="mean"))
    packed = tt.load(model.save(tmp_path / "m.tritium"))
    assert packed.recipe == model.recipe
    np.testing.assert_array_equal(packed.embed("God"), model.embed("God"))


def copied(file: gguf.GgufFile, name: str) -> Piece:
    """A tensor of a GGUF file, to be written again."""
    t, raw = file.tensors[name], bytes(file.data(name))
    return Piece(name, t.shape, t.type.name, len(raw), lambda: [raw])


# ---- sessions


def test_a_session_gives_hidden_states_of_several_slots(model: Model) -> None:
    session = model.session(slots=3, context=64)
    ids = [model.tokenizer.encode(text) for text in ("And God", "The LORD is my shepherd", "x")]
    states = session.hidden([2, 0, 1], ids)
    assert [len(s) for s in states] == [7, 23, 1]
    assert session.tokens(2) == ids[0]
    alone = model.session()
    for tokens, rows in zip(ids, states, strict=True):
        alone.truncate(0, 0)
        np.testing.assert_array_equal(alone.hidden([0], [tokens])[0], rows)
        alone.truncate(0, 0)
        np.testing.assert_array_equal(alone.hidden([0], [tokens], last=True)[0], rows[-1:])


@pytest.mark.parametrize(
    ("slots", "ids", "says"),
    [([0, 0], [[1], [1]], "different slots"), ([], [], "different slots"), ([0], [[1], [2]], "different slots"), ([9], [[1]], "slot 9"),
     ([0], [[]], "No token"), ([0], [[-1]], "does not exist")],
)  # fmt: skip
def test_wrong_slots_change_nothing(model: Model, slots: list[int], ids: Any, says: str) -> None:
    session = model.session(slots=2, context=64)
    with pytest.raises(ArgumentError, match=says):
        session.hidden(slots, ids)
    assert session.tokens(0) == session.tokens(1) == []


def test_a_call_takes_as_many_tokens_as_one_program(roomy: Model) -> None:
    with pytest.raises(ArgumentError, match="at most 256 tokens a slot"):
        roomy.session().hidden([0], [[2] * 257])

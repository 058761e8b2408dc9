"""LoRA by request: the numbers of the formula, the same alone, batched and beside other adapters; none for who asked for none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import lora
import tiny
import tritium as tt
from tritium.buffer import native
from tritium.errors import ArgumentError
from tritium.models.caching.prefixes import PrefixCache
from tritium.models.load import Model
from tritium.models.sampling import Sampler
from tritium.serve.scheduler import Request, Scheduler

IDS = list(range(2, 42))
NAMES = (None, "one", "two")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lora")
    tiny.hf_packed(made / "base")
    lora.write(made / "one", rank=3, seed=1)
    lora.write(made / "two", rank=2, seed=2, ends=("k_proj", "up_proj", "down_proj"))
    return made


@pytest.fixture(scope="module")
def base(folder: Path) -> Model:
    return tt.load(folder / "base", kv="f32")


@pytest.fixture(scope="module")
def model(folder: Path, base: Model) -> Model:
    return base.with_adapters({name: folder / name for name in NAMES[1:]})


def logits(model: Model, adapter: str | None) -> np.ndarray:
    session = model.session()
    session.use(0, adapter)
    return session.extend(0, IDS)


def test_a_product_adds_what_the_formula_says(folder: Path, base: Model, model: Model) -> None:
    adapters = model.network.adapters
    assert adapters is not None
    x = tt.asarray(np.random.default_rng(0).normal(size=(3, 5, tiny.HIDDEN)).astype(np.float32))
    layer = adapters.bind(model.network.blocks, tt.asarray(np.array([0, 1, 2], np.int32)))[1].attention.qkv
    plain, y = base.network.blocks[1].attention.qkv(x).numpy(), layer(x).numpy()
    np.testing.assert_array_equal(y[0], plain[0])
    opened = {name: tt.io.peft.open_adapter(folder / name, lora.SHAPES) for name in NAMES[1:]}
    files = {name: {layer: (a, b) for layer, a, b in file.arrays()} for name, file in opened.items()}
    first, rows = 0, {"q_proj": 256, "k_proj": 128, "v_proj": 128}
    for name, count in rows.items():
        for i, adapter in enumerate(NAMES[1:], 1):
            a, b = files[adapter].get(f"model.layers.1.self_attn.{name}", (np.zeros((1, 256)), np.zeros((count, 1))))
            wanted = plain[i, :, first : first + count] + 2 * (x.numpy()[i] @ a.T) @ b.T
            np.testing.assert_allclose(y[i, :, first : first + count], wanted, rtol=1e-4, atol=1e-4)
        first += count


def test_logits_do_not_depend_on_other_adapters(folder: Path, base: Model, model: Model) -> None:
    alone = {name: logits(base.with_adapters({"x": folder / name}), "x") for name in ("one", "two")}
    for name, row in alone.items():
        if native:
            np.testing.assert_array_equal(logits(model, name), row)
        else:  # NumPy multiplies A, and the last bit of a sum depends on the number of its rows
            np.testing.assert_allclose(logits(model, name), row, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(logits(model, None), logits(base, None))
    assert not np.array_equal(alone["one"], alone["two"])


REQUESTS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 40), st.integers(1, 6)), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def alone(model: Model) -> dict[tuple[str | None, int], tuple[int, ...]]:
    return {}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REQUESTS, st.integers(1, 3), st.sampled_from([0, 1 << 22]))
def test_each_text_of_a_batch_is_as_alone(
    model: Model, alone: dict[tuple[str | None, int], tuple[int, ...]], asked: list[tuple[str | None, int, int]], slots: int, cache: int
) -> None:  # fmt: skip
    for name, length, _ in asked:
        if (name, length) not in alone:
            texts = model.generate(IDS[:length], max_tokens=6, adapter=name, ignore_eos=True, session=model.session())
            alone[name, length] = texts.tokens
    with Scheduler(model.session(slots=slots), model.tokenizer, prefix_cache=cache) as scheduler:
        tickets = scheduler.submit_all(
            [Request(tuple(IDS[:n]), most, Sampler(), ends=frozenset(), adapter=name) for name, n, most in asked]
        )
        for (name, length, most), ticket in zip(asked, tickets, strict=True):
            tokens = tuple(t for event in ticket for t in event.tokens)
            assert tokens == alone[name, length][:most]


def test_prompts_of_a_batch_choose_each_its_own(model: Model) -> None:
    prompts, names = [IDS[:30]] * 4, ["one", None, "two", "one"]
    together = model.generate(prompts, max_tokens=5, adapter=names)
    assert [g.tokens for g in together] == [model.generate(IDS[:30], max_tokens=5, adapter=n).tokens for n in names]
    with pytest.raises(ArgumentError, match="2 were given for 1 prompts"):
        model.generate([IDS[:3]], adapter=["one", "two"])


def test_what_was_read_with_another_adapter_is_not_reused(model: Model) -> None:
    session = model.session(slots=2)
    assert session.adapters == ("one", "two")
    first = model.generate(IDS, max_tokens=1, session=session)
    again = model.generate(IDS, max_tokens=1, session=session, adapter="one")
    assert (first.reused, again.reused) == (0, 0)
    assert model.generate(IDS, max_tokens=1, session=session, adapter="one").reused == len(IDS) - 1
    session.use(0, "one")
    session.use(1, "two")
    session.extend(0, IDS)
    with pytest.raises(ArgumentError, match="slot 0 is computed with adapter one and slot 1 with two"):
        session.share(0, 1, 4)
    with pytest.raises(ArgumentError, match="adapter 'three' does not exist; this model has one, two"):
        session.use(0, "three")


def test_prefixes_are_kept_for_each_adapter(model: Model) -> None:
    session = model.session()
    cache = PrefixCache(session.memory, 1 << 22)
    session.use(0, "one")
    session.extend(0, IDS)
    cache.store(0, IDS, "one")
    assert cache.match(IDS, len(IDS), "one").length == len(IDS)
    assert cache.match(IDS, len(IDS)).length == cache.match(IDS, len(IDS), "two").length == 0


def test_names_folders_and_ranks_that_cannot_be_are_refused(
    folder: Path, base: Model, model: Model, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match="adapter 'three' does not exist; this model has one, two"):
        model.generate(IDS, adapter="three")
    with pytest.raises(ArgumentError, match=r"this model has none: model\.with_adapters"):
        base.generate(IDS, adapter="one")
    with pytest.raises(ArgumentError, match="names of at least one printable character"):
        base.with_adapters({"a\nb": folder / "one"})
    lora.write(tmp_path / "large", rank=5000, ends=("layers.0.self_attn.k_proj",))
    with pytest.raises(ArgumentError, match="their ranks are 5003 together; a model takes at most 4096"):
        base.with_adapters({"one": folder / "one", "large": tmp_path / "large"})
    with pytest.raises(ArgumentError, match="a prepacked file has no place for adapters"):
        model.save(tmp_path / "x.tritium")
    assert model.nbytes > base.nbytes

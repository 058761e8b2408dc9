"""Speculative decoding: the tokens of a run without it, for every sampler, batch, constraint and draft model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import families
import models
from cheap import Cheap
from markov import TOKENIZER
from tritium.buffer import native
from tritium.errors import ArgumentError
from tritium.models.generation import generate, generate_batch
from tritium.models.load import Model, load, shipped
from tritium.models.sampling import Context, Sampler
from tritium.models.speculation import speculator
from tritium.models.speculation.control import Costs
from tritium.models.speculation.speculator import Speculator

SHAPE = models.Shape(width=32, inner=48, heads=2, kv_heads=1, vocab=64, context=128)
PASSAGE = models.prompt(SHAPE, 24)
SAMPLERS: list[dict[str, Any]] = [
    {}, {"temperature": 0.7, "seed": 3}, {"temperature": 1.5, "top_k": 5, "seed": 4}, {"temperature": 1.0, "top_p": 0.6, "seed": 5},
    {"repetition_penalty": 1.3}, {"frequency_penalty": 0.5, "temperature": 0.5, "seed": 6}, {"min_p": 0.2, "temperature": 2.0, "seed": 7},
]  # fmt: skip


def lead(logits: Any, context: Context) -> Any:
    """Copies the passage mostly, and now and then lets the model go its own way."""
    at = len(context.tokens) - context.prompt
    out = logits.copy()
    if at % 7 != 6:
        out[PASSAGE[at % len(PASSAGE)]] += 40
    return out


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(models.folder(tmp_path_factory.mktemp("s") / "m", models.random(SHAPE, 4)))


def run(model: Model, prompts: list[list[int]], slots: int = 2, **options: Any) -> list[Any]:
    session = model.session(slots=slots)
    session.costs = Cheap()
    picking = {k: v for k, v in options.items() if k not in ("speculate", "draft", "max_tokens", "logprobs")}
    rest = {k: v for k, v in options.items() if k not in picking} | {"sampler": Sampler(**picking), "ignore_eos": True}
    rest["draft"] = model.draft_session(session, options.get("draft"))
    made = generate_batch(session, TOKENIZER, prompts, **rest)
    for slot in range(slots):
        assert len(session.tokens(slot)) <= session.capacity
    return made


@pytest.mark.parametrize("options", SAMPLERS, ids=str)
@pytest.mark.parametrize("led", [True, False], ids=["copied", "free"])
def test_guesses_change_no_token(model: Model, options: dict[str, Any], led: bool) -> None:
    prompts = [[*PASSAGE, 1, 2, *PASSAGE[:4]], PASSAGE[3:] + PASSAGE[:9], PASSAGE[:5]]
    options = options | ({"processors": (lead,)} if led else {})
    plain = run(model, prompts, speculate=False, max_tokens=30, **options)
    quick = run(model, prompts, speculate=True, max_tokens=30, **options)
    assert [g.tokens for g in quick] == [g.tokens for g in plain]
    assert [g.text for g in quick] == [g.text for g in plain]
    assert all(g.accepted <= g.guessed for g in quick)
    assert not led or sum(g.accepted for g in quick) > 10
    assert sum(g.guessed for g in plain) == 0


def test_log_probabilities_and_the_end_of_the_context_stay(model: Model) -> None:
    options: dict[str, Any] = {"processors": (lead,), "logprobs": 2}
    prompts = [PASSAGE * 4]
    plain, quick = (run(model, prompts, 1, speculate=on, max_tokens=None, **options)[0] for on in (False, True))
    assert (quick.tokens, quick.logprobs, quick.finish_reason) == (plain.tokens, plain.logprobs, "context")
    assert quick.accepted > 0


@settings(max_examples=2 if native is None else 12)
@given(
    st.lists(st.tuples(st.integers(1, 24), st.integers(0, 3)), min_size=1, max_size=5),
    st.integers(1, 3), st.integers(1, 25), st.sampled_from(SAMPLERS),
)  # fmt: skip
def test_any_batch_gives_the_tokens_of_each_alone(
    model: Model, asked: list[tuple[int, int]], slots: int, count: int, options: dict[str, Any]
) -> None:
    prompts = [PASSAGE[:n] * 2 + [t] for n, t in asked]
    options = options | {"processors": (lead,), "max_tokens": count}
    quick = run(model, prompts, slots, **options)
    plain = run(model, prompts, 1, speculate=False, **options)
    assert [g.tokens for g in quick] == [g.tokens for g in plain]


class Even:
    """A constraint: after an even token an odd one. It counts, so that what was not taken back is found."""

    is_done = False

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def mask(self) -> Any:
        odd = np.arange(SHAPE.vocab) % 2 == 1
        return odd if self.tokens and self.tokens[-1] % 2 == 0 else None

    def advance(self, token: int) -> None:
        self.tokens.append(token)

    def rollback(self, count: int) -> None:
        del self.tokens[len(self.tokens) - count :]


@pytest.mark.parametrize("draft", [False, True], ids=["lookup", "draft"])
def test_constraints_hold(model: Model, draft: bool) -> None:
    texts = []
    for on in (True, False):
        session = model.session()
        session.costs = Cheap()
        guesses = model.draft_session(session, model) if draft and on else None
        made = generate(
            session, TOKENIZER, PASSAGE, max_tokens=40, ignore_eos=True, constrain=lambda: [Even()], speculate=on,
            sampler=Sampler(temperature=1.0, seed=2, processors=(lead,)), draft=guesses,
        )  # fmt: skip
        texts.append(made.tokens)
        assert made.guessed > 0 or not on
    assert texts[0] == texts[1]
    assert all(b % 2 for a, b in zip(texts[0], texts[0][1:], strict=False) if a % 2 == 0)


@pytest.mark.parametrize("options", SAMPLERS, ids=str)
def test_a_draft_model_changes_no_token(model: Model, options: dict[str, Any], tmp_path: Path) -> None:
    other = load(models.folder(tmp_path / "d", models.random(SHAPE, 9)))
    prompts = [PASSAGE, PASSAGE[5:15]]
    plain = run(model, prompts, speculate=False, max_tokens=20, **options)
    for draft in (model, other):
        quick = run(model, prompts, draft=draft, max_tokens=20, **options)
        assert [g.tokens for g in quick] == [g.tokens for g in plain]
        # The same model draws the same tokens with the same noise: its guesses are right.
        assert draft is other or sum(g.accepted for g in quick) >= 10


def test_what_cannot_guess_is_refused_by_name(model: Model, tmp_path: Path) -> None:
    small = load(models.folder(tmp_path / "v", models.random(models.Shape(vocab=70), 1)))
    recurrent = load(families.write_folder(tmp_path / "r", families.random(families.CONFIGS["qwen3_5"], 3)))
    with pytest.raises(ArgumentError, match="vocabulary of 70"):
        model.generate(PASSAGE, draft=small)
    with pytest.raises(ArgumentError, match="holds all tokens as one"):
        generate(recurrent.session(), TOKENIZER, [1, 2], speculate=True)
    assert generate(recurrent.session(), TOKENIZER, [1, 2], max_tokens=3).guessed == 0
    with pytest.raises(ArgumentError, match="draft must be a model"):
        model.generate(PASSAGE, draft="small")
    session = model.session(slots=2)
    with pytest.raises(ArgumentError, match="at most 64"):
        session.verify([0, 1], [[1] * 40, [2] * 40])
    with pytest.raises(ArgumentError, match="different slots"):
        session.verify([0, 0], [[1], [2]])


def test_the_draft_model_in_the_package_guesses_for_its_large_one() -> None:
    """Draw at temperature 1: with the noise of the real draw, the small model draws the same token often enough to be of use."""
    large, small = load(), load(shipped("kjv-draft"))
    prompt = large.tokenizer.encode("In the beginning God created")
    results = {}
    for on in (True, False):
        session = large.session()
        session.costs = Cheap()
        results[on] = next(iter(generate_batch(
            session, large.tokenizer, [prompt], max_tokens=60, ignore_eos=True, sampler=Sampler(temperature=1.0, seed=1), speculate=on,
            draft=large.draft_session(session, small) if on else None,
        )))  # fmt: skip
    assert results[True].tokens == results[False].tokens
    assert results[True].guessed >= 40
    assert results[True].accepted / results[True].guessed > 0.25


class Clock:
    """A clock that moves when it is read."""

    def __init__(self, step: float) -> None:
        self.step, self.now, self.spent = step, 0.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        self.spent += self.step
        return self.now


@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize("seconds", [1e-6, 50e-6, 400e-6])
def test_guesses_in_vain_take_a_bounded_share(seconds: float, sequences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, step, steps = Clock(seconds), 1e-3, 20_000
    monkeypatch.setattr(speculator, "perf_counter", clock)
    costs = Costs((1, 2, 4, 8))
    at_work = Speculator(costs)
    states = [Sampler().start([i % 7 for i in range(20)]) for _ in range(sequences)]
    guessers = [at_work.start(state, slot) for slot, state in enumerate(states)]
    draw = np.random.default_rng(0)
    for size in costs.sizes:  # a token more takes as long as a step more: nothing pays
        for _ in range(3):
            costs.record(size, size * step)
    for _ in range(steps):
        guesses = [] if at_work.rests() else at_work.guess(guessers, [9] * sequences)
        rows = sequences + sum(map(len, guesses))
        at_work.record(rows, rows * step)
        for guesser, state in zip(guessers, states, strict=True):
            state.context.tokens.append(int(draw.integers(0, 7)))  # of few kinds: guesses are found, and wrong
            if at_work.has_guesses:
                at_work.learn(guesser, state.context.tokens[-1:])
    assert at_work.counts.guessed < 150  # now and then, to measure what they cost
    # a clock that is read twice moves twice, and one of the two is measured
    assert 0 < clock.spent < 2.2 * speculator.GUESS_SHARE * steps * sequences * step + 50 * seconds

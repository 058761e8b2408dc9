"""Sampling: each filter keeps what it says, draws follow the softmax, seeds repeat, bad logits are told."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from at import AMOUNT
from tritium.errors import ArgumentError
from tritium.models.sampling import Context, Largest, Sampler, bias, candidates, counts, logprobs, repetition

VALUES = st.one_of(st.floats(-30, 30, width=32), st.sampled_from([0.0, 1.0, -1.0, -math.inf]))


@st.composite
def rows(draw: st.DrawFn, most: int = 60) -> np.ndarray:
    row = draw(hnp.arrays(np.float32, st.integers(1, most), elements=VALUES))
    row[draw(st.integers(0, len(row) - 1))] = draw(st.floats(-30, 30, width=32))
    return row


def softmax(row: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    wide = (row.astype(np.float64) - row.max()) / temperature
    return np.exp(wide) / np.exp(wide).sum()


def ranked(row: np.ndarray) -> np.ndarray:
    return np.lexsort((np.arange(row.size), -row.astype(np.float64)))


def context(*tokens: int, prompt: int | None = None) -> Context:
    return Context(list(tokens), len(tokens) if prompt is None else prompt)


# ---- filters


@given(rows(), st.integers(1, 70), st.floats(0.1, 5))
def test_top_k_keeps_the_k_largest_and_the_lowest_ids_among_equals(row: np.ndarray, k: int, temperature: float) -> None:
    ids, found = candidates(row, temperature, top_k=k)
    kept = min(k, row.size)
    assert sorted(ids) == sorted(ranked(row)[:kept])
    expected = softmax(row, temperature)[ids]
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-12)


@given(rows(), st.floats(0, 1, exclude_max=True), st.floats(0.1, 5))
def test_top_p_keeps_the_smallest_set_whose_mass_reaches_p(row: np.ndarray, p: float, temperature: float) -> None:
    ids, _ = candidates(row, temperature, top_p=p)
    mass = softmax(row, temperature)
    assert list(ids) == list(ranked(row)[: ids.size])
    assert mass[ids].sum() >= p - 1e-12
    assert ids.size == 1 or mass[ids[:-1]].sum() < p + 1e-12


@given(rows(), st.floats(0, 1), st.floats(0.1, 5))
def test_min_p_keeps_what_is_at_least_p_times_as_likely_as_the_best(
    row: np.ndarray, p: float, temperature: float
) -> None:
    ids, _ = candidates(row, temperature, min_p=p)
    mass = softmax(row, temperature)
    ratio = mass / mass.max()
    assert set(np.flatnonzero(ratio > p * (1 + 1e-12))) <= set(ids)
    assert set(ids) <= set(np.flatnonzero(ratio >= p * (1 - 1e-12)))
    assert int(row.argmax()) in ids


@given(rows(), st.integers(0, 70), st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 5))
def test_filters_follow_one_another(row: np.ndarray, k: int, p: float, m: float, temperature: float) -> None:
    ids, found = candidates(row, temperature, top_k=k, top_p=p, min_p=m)
    slow = row
    for option in ({"top_k": k}, {"top_p": p}, {"min_p": m}):
        kept, mass = candidates(slow, temperature, **option)
        slow = np.where(np.isin(np.arange(row.size), kept), slow, -np.inf).astype(np.float32)
    assert set(ids[found > 0]) == set(kept[mass > 0])
    assert found.sum() == pytest.approx(1, abs=1e-12)


@given(rows(), st.floats(0.05, 1), st.floats(0.1, 5))
def test_typical_p_keeps_the_fewest_nearest_to_the_mean_surprise(row: np.ndarray, p: float, temperature: float) -> None:
    ids, _ = candidates(row, temperature, typical_p=p)
    share = softmax(row, temperature)
    possible = np.flatnonzero(share > 0)
    surprise = -np.log(share[possible])
    away = dict(zip(possible.tolist(), np.abs(surprise - (share[possible] * surprise).sum()).tolist(), strict=True))
    assert p == 1 or set(ids.tolist()) <= set(possible.tolist())
    assert share[ids].sum() >= p - 1e-9
    if p < 1:
        farthest = max(away[i] for i in ids.tolist())
        others = [away[i] for i in possible.tolist() if i not in ids]
        assert not others or farthest <= min(others) + 1e-9
        assert share[ids].sum() - max(share[i] for i in ids if away[int(i)] == farthest) < p + 1e-9


@pytest.mark.parametrize(
    "option", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.05}, {"typical_p": 0.6}, {"temperature": 0.6}]
)
def test_filters_agree_with_transformers(option: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="transformers' filters need PyTorch")
    process = pytest.importorskip("transformers", reason="their logits processors are the yardstick").generation
    theirs = {
        "top_k": lambda v: process.TopKLogitsWarper(v), "top_p": lambda v: process.TopPLogitsWarper(v),
        "min_p": lambda v: process.MinPLogitsWarper(v), "typical_p": lambda v: process.TypicalLogitsWarper(v),
        "temperature": lambda v: process.TemperatureLogitsWarper(v),
    }  # fmt: skip
    (name, value), rng = *option.items(), np.random.default_rng(0)
    for _ in range(50):
        row = rng.normal(0, 2, 300).astype(np.float32)
        scores = theirs[name](value)(torch.zeros(1, 1, dtype=torch.long), torch.from_numpy(row)[None].clone())
        expected = torch.softmax(scores[0].double(), 0).numpy()
        ids, found = candidates(row, **option)
        full = np.zeros(row.size)
        full[ids] = found
        np.testing.assert_allclose(full, expected, rtol=1e-5, atol=1e-9)


def test_repetition_agrees_with_transformers() -> None:
    torch = pytest.importorskip("torch", reason="transformers' penalty needs PyTorch")
    process = pytest.importorskip("transformers", reason="its penalty is the yardstick").generation
    rng = np.random.default_rng(1)
    row, tokens = rng.normal(0, 2, 100).astype(np.float32), rng.integers(0, 100, 40)
    theirs = process.RepetitionPenaltyLogitsProcessor(1.3)(
        torch.from_numpy(tokens)[None], torch.from_numpy(row)[None].clone()
    )
    np.testing.assert_array_equal(repetition(1.3, 0)(row, context(*tokens)), theirs[0].numpy())


# ---- penalties and bias


def test_repetition_divides_positive_and_multiplies_negative_logits_once() -> None:
    row = np.array([2, -2, 0, 4, -4], np.float32)
    np.testing.assert_array_equal(repetition(2.0)(row, context(0, 0, 1, 2)), [1, -4, 0, 4, -4])
    np.testing.assert_array_equal(row, [2, -2, 0, 4, -4])


def test_repetition_sees_its_window_only() -> None:
    row = np.ones(4, np.float32)
    np.testing.assert_array_equal(repetition(2.0, 2)(row, context(0, 1, 2)), [1, 0.5, 0.5, 1])
    np.testing.assert_array_equal(repetition(2.0, 0)(row, context(0, 1, 2)), [0.5, 0.5, 0.5, 1])


def test_frequency_and_presence_count_generated_tokens() -> None:
    row = np.zeros(4, np.float32)
    seen = context(0, 0, 1, 1, 2, prompt=2)
    np.testing.assert_allclose(counts(0.5, 0.25)(row, seen), [0, -1.25, -0.75, 0])


def test_bias_is_added_and_minus_infinity_forbids() -> None:
    row = np.array([5, 0, 0], np.float32)
    np.testing.assert_array_equal(bias({0: -math.inf, 2: 1.5})(row, context()), [-math.inf, 0, 1.5])
    assert Sampler(logit_bias={0: -math.inf, 2: 1.5}).start().pick(row) == 2


def test_own_processors_come_after_bias_and_before_temperature() -> None:
    seen: list[tuple[list[float], list[int]]] = []

    def watch(logits: np.ndarray, context: Context) -> np.ndarray:
        seen.append((logits.tolist(), list(context.tokens)))
        return -logits

    state = Sampler(logit_bias={0: 10}, processors=[watch], temperature=0.5).start([7])  # type: ignore[arg-type]
    picked = state.pick(np.array([0, 30], np.float32))
    assert seen == [([10, 30], [7])]
    assert picked == 0
    assert state.context.tokens == [7, 0]
    assert state.context.generated == [0]


def test_a_penalty_that_meets_an_unknown_token_names_it() -> None:
    with pytest.raises(ArgumentError, match="logit_bias meets token id 9, but there are 3 logits"):
        Sampler(logit_bias={9: 1}).start().pick(np.zeros(3))
    with pytest.raises(ArgumentError, match="repetition_penalty meets token id 5"):
        Sampler(repetition_penalty=1.1).start([5]).pick(np.zeros(3))


# ---- picking


@given(rows())
def test_greedy_is_argmax_with_ties_to_the_lowest_id(row: np.ndarray) -> None:
    assert Sampler().start().pick(row) == int(np.flatnonzero(row == row.max())[0])


@given(rows(), st.floats(5e-324, 10), st.integers(0, 5), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**64))
def test_forbidden_tokens_are_never_drawn(
    row: np.ndarray, temperature: float, k: int, p: float, m: float, seed: int
) -> None:
    state = Sampler(temperature=temperature, top_k=k, top_p=p, min_p=m, seed=seed).start()
    assert all(math.isfinite(row[state.pick(row)]) for _ in range(5))


@given(st.integers(-(2**70), 2**70), st.floats(0.1, 3))
def test_a_seed_repeats_its_tokens(seed: int, temperature: float) -> None:
    row = np.random.default_rng(0).normal(size=200).astype(np.float32)
    sampler = Sampler(temperature=temperature, seed=seed)
    one, two = ([state.pick(row) for _ in range(10)] for state in (sampler.start(), sampler.start()))
    assert one == two


def test_seeds_and_streams_differ() -> None:
    row = np.zeros(1000, np.float32)
    draws = {
        Sampler(temperature=1, seed=seed).start(stream=stream).pick(row) for seed in range(5) for stream in range(5)
    }
    assert len(draws) > 20


def test_the_draws_of_a_seed_are_fixed_for_ever() -> None:
    state = Sampler(temperature=1, seed=1234).start()
    assert [state.pick(np.zeros(1000, np.float32)) for _ in range(5)] == [804, 917, 88, 622, 336]


def test_without_a_seed_one_is_drawn_and_known() -> None:
    row = np.zeros(10**5, np.float32)
    one, two = (Sampler(temperature=1).start() for _ in range(2))
    assert one.seed != two.seed
    assert one.pick(row) == Sampler(temperature=1, seed=one.seed).start().pick(row)


@pytest.mark.parametrize("option", [{}, {"top_k": 6}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
def test_draws_follow_the_softmax(option: dict[str, Any]) -> None:
    row, n = np.array([1, 0.5, -1, 2, 0, 0.25, -0.5, 1.5], np.float32), 8000 if AMOUNT else 2000
    ids, expected = candidates(row, 0.8, **option)
    state = Sampler(temperature=0.8, seed=5, **option).start()
    drawn = np.bincount([state.pick(row) for _ in range(n)], minlength=row.size)
    assert drawn.sum() == drawn[ids].sum() == n
    chi2 = ((drawn[ids] - n * expected) ** 2 / (n * expected)).sum()
    assert chi2 < 24.3  # 0.1 % of a right sampler's seeds exceed this at 7 degrees of freedom


def test_a_tiny_temperature_is_greedy() -> None:
    row = np.array([1, 3, 2], np.float32)
    assert {Sampler(temperature=1e-300, seed=s).start().pick(row) for s in range(20)} == {1}


def test_a_large_vocabulary_is_cut_as_a_small_one() -> None:
    row = np.random.default_rng(3).normal(0, 3, 128256).astype(np.float32)
    ids, found = candidates(row, 0.7, top_k=40, top_p=0.95, min_p=0.01)
    slow = ranked(row)[:40]
    mass = softmax(row[slow], 0.7)
    keep = min(int(np.searchsorted(np.cumsum(mass), 0.95)) + 1, int((mass >= 0.01 * mass[0]).sum()))
    assert list(ids) == list(slow[:keep])
    np.testing.assert_allclose(found, mass[:keep] / mass[:keep].sum(), rtol=1e-9)


# ---- log-probabilities


@given(rows(), st.integers(0, 8))
def test_logprobs_are_of_the_model_not_of_the_sampler(row: np.ndarray, top: int) -> None:
    state = Sampler(temperature=3, top_k=2, seed=1).start()
    token = state.pick(row)
    found = state.logprobs(top)
    with np.errstate(divide="ignore"):
        expected = np.log(softmax(row))
    assert found.token == token
    assert found.logprob == pytest.approx(expected[token], abs=1e-5)
    assert [i for i, _ in found.top] == list(ranked(row)[:top])
    np.testing.assert_allclose([v for _, v in found.top], expected[ranked(row)[:top]], atol=1e-5)


def test_logprobs_before_a_pick_are_refused() -> None:
    with pytest.raises(ArgumentError, match="call pick"):
        Sampler().start().logprobs()
    assert logprobs(np.zeros(4), 1).logprob == pytest.approx(-math.log(4))


# ---- the largest alone


def largest(row: np.ndarray) -> Largest:
    return Largest(int(row.argmax()), float(row.max()))


@given(st.lists(rows(), min_size=1, max_size=5), st.lists(st.booleans(), min_size=5, max_size=5))
def test_the_largest_logit_tells_a_greedy_sampler_as_much_as_the_row(
    given_: list[np.ndarray], alone: list[bool]
) -> None:
    one, two = Sampler(top_k=3, top_p=0.5, min_p=0.1).start([1]), Sampler().start([1])
    assert not one.needs_logits
    for row, short in zip(given_, alone, strict=False):
        assert one.pick(largest(row) if short else row) == two.pick(row)
    assert one.context == two.context


@pytest.mark.parametrize("option", [
    {"temperature": 0.5}, {"repetition_penalty": 1.1}, {"frequency_penalty": 0.1}, {"presence_penalty": -0.1},
    {"logit_bias": {1: 2.0}}, {"processors": (lambda logits, context: logits,)},
], ids=lambda option: next(iter(option)))  # fmt: skip
def test_what_looks_at_other_logits_needs_them_all(option: dict[str, Any]) -> None:
    state = Sampler(**option).start([1])
    assert state.needs_logits
    with pytest.raises(ArgumentError, match="this sampler needs them all"):
        state.pick(Largest(1, 2.0))
    assert state.context.tokens == [1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_largest_logit_that_is_no_number_is_the_error_of_its_row(bad: float) -> None:
    row, state = np.array([bad, -math.inf, bad]), Sampler().start()
    with pytest.raises(ArgumentError) as whole:
        state.pick(row)
    with pytest.raises(ArgumentError) as short:
        state.pick(largest(row))
    said = (
        str(whole.value)
        .replace("2 of 3 logits", "some logits")
        .replace("the first of token 0", "that of token 0 among them")
    )
    assert str(short.value) == said
    assert state.context.tokens == []


def test_logprobs_need_the_row_of_the_last_token() -> None:
    state = Sampler().start()
    state.pick(np.zeros(4))
    assert state.logprobs().token == 0
    state.pick(Largest(2, 1.0))
    with pytest.raises(ArgumentError, match=r"needs the row of logits.*call pick\(\) with it"):
        state.logprobs()


# ---- errors


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=1), Sampler(temperature=1, top_k=2)], ids=str)
def test_nan_and_infinity_are_errors(sampler: Sampler, bad: float) -> None:
    with pytest.raises(ArgumentError, match=r"1 of 4 logits are NaN or \+inf, the first of token 2"):
        sampler.start().pick(np.array([0, 1, bad, -math.inf]))


@pytest.mark.parametrize("temperature", [0, 1])
def test_nothing_left_to_pick_is_an_error(temperature: float) -> None:
    with pytest.raises(ArgumentError, match="every token is forbidden"):
        Sampler(temperature=temperature).start().pick(np.full(3, -math.inf))


@pytest.mark.parametrize("shape", [(2, 3), (0,), ()])
def test_anything_but_one_row_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="one row of logits"):
        Sampler().start().pick(np.zeros(shape))


def test_a_processor_that_loses_logits_is_told() -> None:
    with pytest.raises(ArgumentError, match="gave an array of shape"):
        Sampler(processors=(lambda row, context: row[:2],)).start().pick(np.zeros(3))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", "1"), ("temperature", True), ("temperature", math.inf),
        ("top_k", -1), ("top_k", 1.5), ("top_p", 1.1), ("top_p", -0.1), ("min_p", 2), ("repetition_penalty", 0),
        ("repetition_window", -1), ("frequency_penalty", math.nan), ("presence_penalty", 1e9), ("seed", 1.5), ("seed", True),
        ("logit_bias", [1]), ("logit_bias", {-1: 0.0}), ("logit_bias", {1: math.nan}), ("logit_bias", {1: math.inf}),
        ("logit_bias", {"1": 1}), ("processors", (3,)),
    ],
)  # fmt: skip
def test_options_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"^{name} must"):
        Sampler(**{name: value})

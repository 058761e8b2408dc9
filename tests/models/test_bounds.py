"""Tokens from bounds: those that the whole row gives, whatever the head, the input and the sampler."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from heads import HEADS, INPUTS, head_of, input_of
from tritium.buffer import native
from tritium.errors import ArgumentError
from tritium.models.bounds import Bounded, draw, may_be_among, may_be_drawn, may_be_largest, uniforms
from tritium.models.certified import LONGEST_REST, Certified
from tritium.models.sampling import Need, Sampler
from tritium.nn.certified import CertifiedHead, certify

needs_native = pytest.mark.skipif(native is None, reason="without the native library sums have no fixed order")
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.05},
    {"temperature": 300.0},
    {"temperature": 1e-300},
    {"temperature": 0.9, "top_k": 3},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 0.7, "min_p": 0.3},
    {"temperature": 2.0, "min_p": 1.0},
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.7, "repetition_window": 0, "temperature": 0.8},
    {"frequency_penalty": 0.6, "presence_penalty": -0.5, "temperature": 0.8, "min_p": 0.05},
    {"logit_bias": {3: 40.0, 5: -math.inf, 7: -1.0}},
    {"logit_bias": {3: 5.0, 5: -math.inf}, "temperature": 1.3, "top_k": 5},
    {"logit_bias": {3: 3e38}, "temperature": 1.0},
    {"logit_bias": {10**6: 1.0}},
]


def approximated(head: CertifiedHead, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a program gives of inputs for `Certified.bounded`."""
    both, logits = head.approximate(tt.asarray(x))
    return both.numpy(), logits.numpy(), head.lengths(both).numpy()


def within(head: CertifiedHead, x: np.ndarray) -> list[Any]:
    return Certified(head).bounded(*approximated(head, x), len(x))


def picks(sampler: Sampler, rows: list[Any], seed: int) -> list[Any]:
    """What is picked from rows one after the other; an error ends it and is part of it."""
    state, tokens = sampler.start([3, 8, 8, 1], stream=seed), list[Any]()
    for row in rows:
        try:
            tokens.append(state.pick(row))
        except ArgumentError as error:
            return [*tokens, str(error)]
    return tokens


@needs_native
@settings(max_examples=int(os.environ.get("TRITIUM_CERTIFIED_TOKENS", "120")))
@given(
    st.sampled_from(HEADS), st.sampled_from(INPUTS), st.sampled_from(["f32", "f16", "bf16"]), st.sampled_from(SAMPLERS),
    st.sampled_from([9, 150, 700]), st.sampled_from([8, 64]), st.integers(0, 10**6),
)  # fmt: skip
def test_tokens_are_those_of_the_whole_row(
    kind: str, of: str, dtype: str, options: dict[str, Any], vocab: int, width: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    head = certify(tt.asarray(head_of(kind, vocab, width, rng)).to(dtype))
    if head is None:
        return
    x = np.stack([input_of(kind, width, rng) for kind in ("normal", "outliers", of, "normal")])
    lost = (head.table.to("f32") - head.copy.dequantize()).numpy()
    x[3] = 100 * (lost[vocab // 2] - lost[vocab // 3])  # one logit is larger than its copy says, the other smaller
    sampler = Sampler(seed=seed, **options)
    assert picks(sampler, within(head, x), seed) == picks(sampler, list(head.whole(x)), seed)


@needs_native
@pytest.mark.parametrize("options", SAMPLERS[:-2], ids=str)
def test_few_rows_are_read(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    table = rng.normal(size=(4000, 256)).astype(np.float32) * np.float32(0.3)
    head = certify(tt.asarray(table).to("f16"))
    assert head is not None
    x = rng.normal(size=(8, 256)).astype(np.float32)
    sampler = Sampler(seed=2, **options)
    assert picks(sampler, within(head, x), 0) == picks(sampler, list(head.whole(x)), 0)
    assert head.statistics.decided == 8
    assert head.statistics.rows < 8 * 200


# ---- what may matter

LOGITS = st.integers(-20, 20).map(lambda n: n / 4)


@st.composite
def bounds(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits with bounds that hold them: the logits, and both."""
    row = np.array(draw(st.lists(LOGITS, min_size=1, max_size=40)), np.float32)
    gaps = [
        np.array(draw(st.lists(st.sampled_from([0, 0.25, 3]), min_size=row.size, max_size=row.size)), np.float32)
    ] * 2
    return row, row - gaps[0], row + gaps[1]


@given(bounds(), st.integers(1, 41))
def test_what_may_be_largest_holds_what_is(rows: Any, k: int) -> None:
    row, lower, upper = rows
    assert set(np.flatnonzero(row == row.max())) <= set(may_be_largest(lower, upper))
    least = np.sort(row)[-min(k, row.size)]
    assert set(np.flatnonzero(row >= least)) <= set(may_be_among(lower, upper, k))


@given(
    bounds(), st.sampled_from([1e-300, 0.1, 1, 7, 1e4]), st.sampled_from([-math.inf, -3, -0.5, 0]), st.integers(0, 99)
)
def test_what_may_be_drawn_holds_what_is(rows: Any, temperature: float, margin: float, seed: int) -> None:
    row, lower, upper = rows
    noise = uniforms(seed, row.size)
    ids = np.flatnonzero(row.astype(np.float64) - row.max() >= margin)
    token = ids[draw(row[ids], temperature, noise[ids])]
    may = may_be_drawn(lower, upper, temperature, noise, margin)
    assert token in may
    assert set(may_be_largest(lower, upper)) <= set(may)


def test_a_draw_is_the_largest_key() -> None:
    rng = np.random.default_rng(0)
    for seed in range(50):
        row, noise, temperature = rng.normal(0, 3, 500).astype(np.float32), uniforms(seed, 500), 0.1 + seed / 10
        keys = row.astype(np.float64) / temperature - np.log(-np.log1p(-noise))
        assert draw(row, temperature, noise) == keys.argmax()


def test_equal_keys_go_to_the_lowest_token() -> None:
    noise = np.full(1000, 0.25)
    assert draw(np.zeros(1000, np.float32), 0.5, noise) == 0
    row = np.where(np.arange(1000) < 300, 0.0, 1.0).astype(np.float32)
    assert draw(row, 0.5, noise) == 300


def test_a_token_s_number_does_not_depend_on_the_size_of_the_vocabulary() -> None:
    np.testing.assert_array_equal(uniforms(7, 1000)[:10], uniforms(7, 10))
    assert (uniforms(7, 10) != uniforms(8, 10)).all()
    assert 0 < uniforms(1, 100000).min() < uniforms(1, 100000).max() < 1


def test_what_a_sampler_needs() -> None:
    def need(**options: Any) -> Need:
        return Sampler(**options).start().need

    assert need() == need(top_p=0.5, top_k=3, min_p=0.1) == Need.LARGEST
    assert need(temperature=1) == need(temperature=1, top_p=0.5, top_k=3) == need(repetition_penalty=2) == Need.BOUNDS
    assert need(temperature=1, top_p=0.5) == need(processors=(lambda logits, context: logits,)) == Need.ROW


def test_log_probabilities_of_bounds_are_refused() -> None:
    zeros = np.zeros(64, np.float32)
    row = Bounded((np.arange(64) == 3) - zeros, zeros, lambda ids: zeros[ids], lambda: zeros)
    state = Sampler().start()
    state.pick(row)
    with pytest.raises(ArgumentError, match="needs the row of logits"):
        state.logprobs()


# ---- when bounds are not enough


@needs_native
def test_a_head_rests_longer_each_time_bounds_are_not_enough() -> None:
    head = certify(tt.asarray(np.ones((100, 16), np.float32)))  # all are equal: every row must be read
    assert head is not None
    certified, x = Certified(head), np.ones((1, 16), np.float32)
    given, tried = approximated(head, x), []
    for step in range(260):
        if certified.rests(1):
            continue
        tried.append(step)
        (row,) = certified.bounded(*given, 1)
        assert Sampler().start().pick(row) == 0
    rests = [b - a - 1 for a, b in pairwise(tried)]
    assert rests == [1, 2, 4, 8, 16, 32, LONGEST_REST, LONGEST_REST]
    assert head.statistics.whole == len(tried)
    assert head.statistics.resting == 260 - len(tried)


@needs_native
def test_a_head_rests_after_a_kernel_read_it_as_a_whole() -> None:
    head = certify(tt.asarray(np.ones((100, 16), np.float32)))
    assert head is not None
    certified = Certified(head)
    certified.decided(np.array([3, 12, 2]))  # of 100 rows 12 are read one by one
    assert not certified.rests(3)
    certified.decided(np.array([13, 1, 100]))
    assert certified.rests(3)
    assert (head.statistics.decided, head.statistics.whole, head.statistics.resting) == (4, 2, 3)
    assert head.statistics.rows == 18


@needs_native
def test_bounds_are_used_again_once_they_are_enough() -> None:
    rng = np.random.default_rng(0)
    head = certify(tt.asarray(rng.normal(size=(100, 16)).astype(np.float32)))
    assert head is not None
    certified = Certified(head)
    given = approximated(head, rng.normal(size=(1, 16)).astype(np.float32))
    (row,) = certified.bounded(*given, 1)
    row.whole()
    assert certified.rests(1)
    for _ in range(5):
        assert not certified.rests(1)
        (row,) = certified.bounded(*given, 1)
        row.largest()


@needs_native
def test_whole_heads_are_read_for_several_sequences_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    head = certify(tt.asarray(rng.normal(size=(60, 16)).astype(np.float32)))
    assert head is not None
    x = rng.normal(size=(11, 16)).astype(np.float32)
    rows, expected, calls, whole = within(head, x), head.whole(x), list[int](), head.whole
    monkeypatch.setattr(head, "whole", lambda some: (calls.append(len(some)), whole(some))[1])
    for row, want in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(row.whole(), want)
    assert calls == [8, 3]

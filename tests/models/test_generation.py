"""Generation: what ends a text, what is held back, what is reused; batches give what single prompts give; perplexity."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import markov
import tiny
from tritium.errors import ArgumentError, ContextError
from tritium.models.generation import (
    Generation,
    Piece,
    Stops,
    common,
    generate,
    generate_batch,
    perplexity,
    stream,
    stream_batch,
)
from tritium.models.load import Model, load
from tritium.models.sampling import Sampler
from tritium.models.text.tokenizer import ALPHABET
from tritium.models.text.vocabulary import ByteTokenizer, Facts


class Chain(markov.Slots):
    """A session whose logits are told by all the tokens in the slot: a wrong cache gives another text."""

    def __init__(self, slots: int = 1, capacity: int = 64, vocab: int = 256) -> None:
        self.slots, self.capacity, self.vocab = slots, capacity, vocab
        self.held: list[list[int]] = [[] for _ in range(slots)]
        self.calls: list[tuple[str, Any]] = []

    def extend(self, slot: int, ids: Sequence[int]) -> np.ndarray:
        assert ids
        self.calls.append(("extend", (slot, list(ids))))
        return self._append(slot, ids)

    def step(self, slots: Sequence[int], ids: Sequence[int]) -> np.ndarray:
        assert len(set(slots)) == len(slots) == len(ids) > 0
        self.calls.append(("step", list(slots)))
        return np.stack([self._append(s, [i]) for s, i in zip(slots, ids, strict=True)])

    def score(self, slot: int, ids: Sequence[int]) -> np.ndarray:
        assert self.held[slot]
        found = []
        for i in ids:
            row = self.logits(self.held[slot]).astype(np.float64)
            found.append(row[i] - row.max() - np.log(np.exp(row - row.max()).sum()))
            self._append(slot, [i])
        return np.array(found, np.float32)

    def _append(self, slot: int, ids: Sequence[int]) -> np.ndarray:
        self.held[slot] += ids
        assert len(self.held[slot]) <= self.capacity
        return self.logits(self.held[slot])

    def logits(self, held: Sequence[int]) -> np.ndarray:
        return np.random.default_rng(list(held)).normal(0, 3, self.vocab).astype(np.float32)


class Script(Chain):
    """A session that says its tokens one after another, whatever the prompt of one token."""

    def __init__(self, tokens: Sequence[int], **options: Any) -> None:
        super().__init__(**options)
        self.said = list(tokens)

    def logits(self, held: Sequence[int]) -> np.ndarray:
        row = np.zeros(self.vocab, np.float32)
        row[self.said[min(len(held), len(self.said)) - 1]] = 1
        return row


class Chunks:
    """A vocabulary whose tokens are any bytes; the last one ends a text."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        self.chunks = list(chunks)
        self.eos = frozenset({len(self.chunks)})
        self.bos, self.chat_template, self.special = None, None, {}
        self.vocab_size = len(self.chunks) + 1

    def bytes_of(self, token: int) -> bytes:
        return self.chunks[token] if token < len(self.chunks) else b""

    def encode(self, text: str, bos: bool = True) -> list[int]:
        return [0]

    def decode(self, ids: Any) -> str:
        return b"".join(map(self.bytes_of, ids)).decode("utf-8", "replace")


def scripted(chunks: Sequence[bytes], **options: Any) -> tuple[list[Piece], Generation]:
    tokenizer = Chunks(chunks)
    session = Script([*range(len(chunks)), len(chunks)], vocab=tokenizer.vocab_size, capacity=500)
    pieces = list(stream(session, tokenizer, [0], **options))  # type: ignore[arg-type]
    assert pieces[-1].generation is not None
    return pieces, pieces[-1].generation


BYTES = ByteTokenizer()
PROMPT = list(b"In the beginning")


@st.composite
def chunked(draw: st.DrawFn, alphabet: str) -> tuple[str, list[bytes]]:
    """A text and its bytes cut anywhere."""
    text = draw(st.text(st.sampled_from(alphabet), max_size=30))
    raw = text.encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    return text, [raw[a:b] for a, b in itertools.pairwise([0, *cuts, len(raw)])]


# ---- stop strings


@given(chunked("aabé"), st.text(st.sampled_from("aabé"), min_size=1, max_size=5))
def test_text_ends_before_the_first_stop_string_however_it_is_cut(cut: tuple[str, list[bytes]], stop: str) -> None:
    text, chunks = cut
    pieces, whole = scripted(chunks, stop=stop)
    assert whole.text == "".join(p.text for p in pieces) == text.partition(stop)[0]
    assert whole.finish_reason == "stop"


@given(chunked("abc"), st.lists(st.text(st.sampled_from("abc"), min_size=1, max_size=4), max_size=4))
def test_of_several_stop_strings_the_first_complete_one_counts(cut: tuple[str, list[bytes]], stops: list[str]) -> None:
    text, chunks = cut
    found = [(i, -len(s)) for i in range(len(text) + 1) for s in stops if text[:i].endswith(s)]
    end, size = min(found) if found else (len(text), 0)
    assert scripted(chunks, stop=stops)[1].text == text[: end + size]


@given(chunked("ab"), st.text(st.sampled_from("ab"), min_size=1, max_size=5))
def test_nothing_is_given_out_that_may_begin_a_stop_string(cut: tuple[str, list[bytes]], stop: str) -> None:
    seen, out, stops = "", "", Stops(stop)
    for chunk in cut[1]:
        seen, out = seen + chunk.decode(), out + stops.push(chunk.decode())
        assert stop not in out
        assert stops.found or all(len(out) <= len(seen) - n for n in range(1, len(stop)) if seen.endswith(stop[:n]))
    assert stop not in out + stops.flush()


@given(chunked("ab"), st.text(st.sampled_from("ab"), min_size=1, max_size=5))
def test_no_more_is_held_back_than_may_begin_a_stop_string(cut: tuple[str, list[bytes]], stop: str) -> None:
    stops, seen, out = Stops(stop), "", ""
    for chunk in cut[1]:
        seen, out = seen + chunk.decode(), out + stops.push(chunk.decode())
        assert stops.found or stop.startswith(seen[len(out) :])


def test_a_stop_string_may_be_longer_than_the_text() -> None:
    assert scripted([b"ab"], stop="abc")[1].text == "ab"


@pytest.mark.parametrize("stop", ["", ["a", ""], [3]])
def test_an_empty_stop_string_is_refused(stop: Any) -> None:
    with pytest.raises(ArgumentError, match="stop strings must be texts of at least one character"):
        scripted([b"a"], stop=stop)


# ---- what ends a text


@given(chunked("aé世🦜"))
def test_without_a_stop_string_all_text_comes_in_whole_characters(cut: tuple[str, list[bytes]]) -> None:
    text, chunks = cut
    pieces, whole = scripted(chunks)
    assert whole.text == "".join(p.text for p in pieces) == text
    assert "�" not in whole.text
    assert whole.tokens == tuple(range(len(chunks)))
    assert [p.token for p in pieces] == [*range(len(chunks)), None]
    assert [p.finish for p in pieces] == [None] * len(chunks) + ["stop"]


def test_half_a_character_at_the_end_is_told() -> None:
    assert scripted(["é".encode()[:1]])[1].text == "�"


def test_max_tokens_ends_with_length() -> None:
    found = generate(Chain(), BYTES, PROMPT, max_tokens=5)
    assert (len(found.tokens), found.finish_reason, found.steps) == (5, "length", 4)


@pytest.mark.parametrize("prompt", [60, 63, 64])
def test_a_full_context_ends_with_context(prompt: int) -> None:
    session = Chain(capacity=64)
    found = generate(session, BYTES, list(range(prompt)))
    assert found.finish_reason == "context"
    assert len(found.tokens) == 64 - prompt + 1  # the last one needs no place
    assert len(session.tokens(0)) == 64


def test_length_is_told_before_context() -> None:
    assert generate(Chain(), BYTES, list(range(64)), max_tokens=1).finish_reason == "length"


def test_last_tokens_can_be_ignored() -> None:
    tokenizer = Chunks([b"a"])
    session = Script([0, 1, 0], vocab=2)
    found = generate(session, tokenizer, [0], ignore_eos=True, max_tokens=3)
    assert (found.tokens, found.text, found.finish_reason) == ((0, 1, 0), "aa", "length")


def test_a_stop_string_wins_over_the_length() -> None:
    assert scripted([b"a", b"b"], stop="b", max_tokens=2)[1].finish_reason == "stop"


# ---- reuse


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_what_two_prompts_share_is_read_once_and_the_text_is_the_same(one: list[int], two: list[int]) -> None:
    session = Chain()
    generate(session, BYTES, one, max_tokens=3)
    held = session.tokens(0)
    found = generate(session, BYTES, two, max_tokens=4)
    fresh = generate(Chain(), BYTES, two, max_tokens=4)
    assert found.tokens == fresh.tokens
    assert (fresh.reused, found.reused) == (0, min(common(held, two), len(two) - 1))
    assert session.calls[-4] == ("extend", (0, two[found.reused :]))


def test_a_prompt_takes_the_slot_that_holds_most_of_it() -> None:
    session = Chain(slots=3)
    for slot, text in enumerate([b"abx", b"abcdx", b"x"]):
        session.extend(slot, list(text))
    assert generate(session, BYTES, list(b"abcde"), max_tokens=1).reused == 4
    assert session.tokens(1) == list(b"abcde")


def test_a_chat_goes_on_where_it_was() -> None:
    session = Chain()
    first = generate(session, BYTES, PROMPT, max_tokens=6)
    longer = generate(session, BYTES, [*PROMPT, *first.tokens, 7, 8], max_tokens=2)
    assert longer.reused == len(PROMPT) + 5  # the sixth was picked, but never read


# ---- batches


@given(
    st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=10), max_size=7), st.integers(1, 4), st.integers(1, 12),
    st.sampled_from([Sampler(), Sampler(temperature=1.5, seed=3), Sampler(temperature=1, repetition_penalty=1.3, seed=1)]),
)  # fmt: skip
def test_a_batch_gives_what_its_prompts_give_alone(
    prompts: list[list[int]], slots: int, most: int, sampler: Sampler
) -> None:
    options: dict[str, Any] = {"max_tokens": most, "stop": ["a"], "sampler": sampler}
    found = generate_batch(Chain(slots, capacity=16), BYTES, prompts, **options)
    alone = generate_batch(Chain(1, capacity=16), BYTES, prompts, **options)
    assert [(g.text, g.tokens, g.finish_reason) for g in found] == [(g.text, g.tokens, g.finish_reason) for g in alone]
    assert len(found) == len(prompts)
    if prompts:
        assert generate(Chain(capacity=16), BYTES, prompts[0], **options).tokens == found[0].tokens


def test_finished_sequences_leave_the_batch_and_waiting_ones_enter() -> None:
    session = Chain(slots=2)
    tokenizer = ByteTokenizer([*ALPHABET, "<end>"], frozenset({256}), facts=Facts(eos=frozenset({256})))
    options: dict[str, Any] = {"sampler": Sampler(processors=(ending,)), "speculate": False}
    session.vocab = 257
    generate_batch(session, tokenizer, [[5], [1], [3]], **options)
    steps = [slots for kind, slots in session.calls if kind == "step"]
    assert steps == [[0, 1], [0, 1], [0, 1], [0, 1], [0]]


def ending(logits: np.ndarray, context: Any) -> np.ndarray:
    """Ends after as many tokens as the prompt's first token says."""
    row = np.zeros_like(logits)
    row[256 if len(context.generated) == context.tokens[0] else 65] = 1
    return row


def test_pieces_of_a_batch_carry_the_number_of_their_prompt() -> None:
    found: dict[int, str] = {0: "", 1: "", 2: ""}
    last: dict[int, Generation | None] = {}
    for i, piece in stream_batch(Chain(slots=2), BYTES, ["a", "b", "c"], max_tokens=4):
        found[i] += piece.text
        last[i] = piece.generation
    assert all(g is not None and g.text == found[i] for i, g in last.items())
    assert len(last) == 3


def test_sequences_of_one_seed_differ() -> None:
    found = generate_batch(Chain(slots=2), BYTES, ["a", "a"], max_tokens=8, sampler=Sampler(temperature=2, seed=4))
    assert found[0].tokens != found[1].tokens
    assert found[0].seed == found[1].seed == 4


def test_no_prompts_give_no_texts() -> None:
    assert generate_batch(Chain(), BYTES, []) == []


# ---- what is told


def test_log_probabilities_are_told_for_each_token() -> None:
    found = generate(Chain(), BYTES, PROMPT, max_tokens=3, logprobs=2)
    assert [p.token for p in found.logprobs] == list(found.tokens)
    assert all(p.top[0] == (p.token, p.logprob) and len(p.top) == 2 for p in found.logprobs)
    assert generate(Chain(), BYTES, PROMPT, max_tokens=3).logprobs == ()


def test_times_are_those_of_the_clock_without_the_readers_own() -> None:
    now = 0.0

    def clock() -> float:
        return now

    class Slow(Chain):
        def extend(self, slot: int, ids: Sequence[int]) -> np.ndarray:
            nonlocal now
            now += 0.5 * len(ids)
            return super().extend(slot, ids)

        def step(self, slots: Sequence[int], ids: Sequence[int]) -> np.ndarray:
            nonlocal now
            now += 0.25
            return super().step(slots, ids)

    def read(pieces: Iterator[Piece]) -> Generation:
        nonlocal now
        for piece in pieces:
            now += 100
            if piece.generation:
                return piece.generation
        raise AssertionError

    found = read(stream(Slow(), BYTES, list(b"abcd"), max_tokens=5, clock=clock))
    assert (found.prefill_s, found.first_token_s, found.decode_s) == (2.0, 2.0, 1.0)
    assert (found.tokens_per_s, found.prefill_tokens_per_s) == (4.0, 2.0)
    alone = generate(Slow(), BYTES, list(b"a"), max_tokens=1, clock=clock)
    assert math.isnan(alone.tokens_per_s)


# ---- how much is asked of a session


@pytest.mark.parametrize(("slots", "prompts", "ahead"), [
    (1, 1, (True, True, False)), (2, 2, (True, True, False)), (1, 2, (True, True, False) * 2),
])  # fmt: skip
def test_the_next_step_is_announced_unless_it_is_the_last(slots: int, prompts: int, ahead: tuple[bool, ...]) -> None:
    session = Chain(slots)
    generate_batch(session, BYTES, [[5, i] for i in range(prompts)], max_tokens=4)
    assert session.ahead == ahead


@pytest.mark.parametrize(("options", "picks"), [
    ({}, 7), ({"sampler": Sampler(top_k=5, top_p=0.5, seed=1)}, 7), ({"logprobs": 0}, 0), ({"logprobs": 2}, 0),
    ({"sampler": Sampler(temperature=1.0, seed=1)}, 0), ({"sampler": Sampler(repetition_penalty=1.5)}, 0),
    ({"sampler": Sampler(processors=(lambda logits, context: logits,))}, 0),
], ids=["greedy", "filters", "logprobs 0", "logprobs 2", "temperature", "penalty", "processor"])  # fmt: skip
def test_only_the_largest_logits_are_asked_for_where_no_others_count(options: dict[str, Any], picks: int) -> None:
    session = Chain(slots=2)
    generate_batch(session, BYTES, [PROMPT, "other"], max_tokens=8, ignore_eos=True, **options)
    assert session.picks == picks
    assert sum(name == "step" for name, _ in session.calls) == 7


@given(st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=5), st.integers(1, 3), st.integers(0, 3))
def test_greedy_text_is_that_of_whole_rows(prompts: list[str], slots: int, equals: int) -> None:
    """Whether the largest are found by the session or here: among equals the lowest, and -inf never."""

    class Few(Chain):
        def logits(self, held: Sequence[int]) -> np.ndarray:
            row = np.round(super().logits(held) / 4)
            row[:equals] = -np.inf
            return row

    def same(logits: Any, context: Any) -> Any:
        return logits

    options = {"max_tokens": 6, "ignore_eos": True}
    found = generate_batch(Few(slots), BYTES, prompts, **options)
    whole = generate_batch(Few(slots), BYTES, prompts, sampler=Sampler(processors=(same,)), **options)
    assert [g.tokens for g in found] == [g.tokens for g in whole]


# ---- refusals


def test_a_prompt_that_does_not_fit_is_refused_before_it_is_read() -> None:
    session = Chain(capacity=10)
    with pytest.raises(ContextError, match=r"The prompt has 16 tokens; the context holds 10\. Leave out 6 tokens"):
        generate_batch(session, BYTES, ["short", PROMPT])
    assert session.calls == []


def test_an_error_comes_with_the_call_not_with_the_first_piece() -> None:
    with pytest.raises(ContextError):
        stream(Chain(capacity=3), BYTES, PROMPT)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ArgumentError, match="The prompt has no tokens; give some text"):
        generate(Chain(), BYTES, "")


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "3"])
def test_max_tokens_must_be_a_count(most: Any) -> None:
    with pytest.raises(ArgumentError, match="max_tokens must be 1 or more"):
        generate(Chain(), BYTES, PROMPT, max_tokens=most)


@pytest.mark.parametrize("call", [stream, generate, generate_batch, stream_batch])
def test_an_unknown_option_is_refused_at_the_call(call: Any) -> None:
    with pytest.raises(TypeError, match=r"unknown option 'max_token'\. Did you mean 'max_tokens'\?"):
        call(Chain(), BYTES, [PROMPT], max_token=3)


def test_one_text_is_no_list_of_prompts() -> None:
    with pytest.raises(ArgumentError, match="A list of prompts is needed"):
        generate_batch(Chain(), BYTES, "abc")


def test_logits_that_are_no_numbers_are_an_error() -> None:
    class Broken(Chain):
        def logits(self, held: Sequence[int]) -> np.ndarray:
            return np.full(self.vocab, math.nan, np.float32)

    with pytest.raises(ArgumentError, match="logits are NaN"):
        generate(Broken(), BYTES, PROMPT)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_logits_that_become_no_numbers_are_an_error(bad: float, logprobs: int | None) -> None:
    class Breaking(Chain):
        def logits(self, held: Sequence[int]) -> np.ndarray:
            return np.full(self.vocab, bad, np.float32) if len(held) > len(PROMPT) + 2 else super().logits(held)

    pieces = stream(Breaking(), BYTES, PROMPT, ignore_eos=True, logprobs=logprobs)
    assert [next(pieces).finish for _ in range(3)] == [None] * 3
    with pytest.raises(ArgumentError, match="every token is forbidden" if bad < 0 else "logits are NaN or .inf"):
        next(pieces)


# ---- perplexity

TEXT = [int(i) for i in np.random.default_rng(0).integers(0, 256, 200)]


class Flat(Chain):
    """Foretells each token with the same logits, so that windows do not matter."""

    def logits(self, held: Sequence[int]) -> np.ndarray:
        return np.linspace(0, 3, self.vocab, dtype=np.float32)


@given(st.integers(2, 40), st.integers(2, 64), st.data(), st.sampled_from([None, 7]))
def test_every_token_is_scored_once_with_enough_before_it(
    count: int, context: int, data: st.DataObject, bos: int | None
) -> None:
    session = Chain()
    seen: list[tuple[list[int], list[int]]] = []
    session.score = lambda slot, ids: (seen.append((session.tokens(slot), list(ids))), np.zeros(len(ids)))[1]  # type: ignore
    most = context - 1
    stride = data.draw(st.one_of(st.none(), st.integers(1, most)))
    found = perplexity(session, TEXT[:count], context=context, stride=stride, bos=bos)
    first = 0 if bos is not None else 1
    assert [t for _, ids in seen for t in ids] == TEXT[first:count]
    assert (found.tokens, found.windows) == (count - first, len(seen))
    at = first
    for n, (before, ids) in enumerate(seen):
        assert len(before) + len(ids) <= context
        body = before[1:] if bos is not None else before
        assert (before[0] == bos) or bos is None
        assert body == TEXT[at - len(body) : at]
        if n:
            room = context - (bos is not None)
            assert len(body) == room - (max(room // 2, 1) if stride is None else stride)
        at += len(ids)


def test_the_perplexity_of_known_probabilities() -> None:
    found = perplexity(Flat(), TEXT, tokenizer=BYTES, context=50, stride=10)
    row = np.linspace(0, 3, 256)
    nats = np.log(np.exp(row).sum()) - row[TEXT[1:]]
    assert found.tokens == found.nbytes == 199
    assert found.nats == pytest.approx(nats.mean(), rel=1e-6)
    assert found.value == pytest.approx(math.exp(nats.mean()), rel=1e-6)
    assert found.bits_per_byte == pytest.approx(nats.mean() / math.log(2), rel=1e-6)
    blocks = nats[:192].reshape(3, 64).mean(axis=1)
    assert found.error == pytest.approx(blocks.std(ddof=1) / math.sqrt(3), rel=1e-5)
    assert found.value_error == pytest.approx(found.value * found.error)


def test_an_even_guess_has_the_size_of_the_vocabulary_as_perplexity() -> None:
    class Even(Chain):
        def logits(self, held: Sequence[int]) -> np.ndarray:
            return np.zeros(self.vocab, np.float32)

    found = perplexity(Even(), TEXT, tokenizer=BYTES)
    assert found.value == pytest.approx(256, rel=1e-5)
    assert found.bits_per_byte == pytest.approx(8, rel=1e-6)
    assert str(found).startswith("perplexity 256.0000 ± 0.0000 over 199 tokens in 6 windows, 8.0000")


def test_a_larger_context_changes_nothing_where_all_fits() -> None:
    one, two = (perplexity(Chain(capacity=n), TEXT[:40]) for n in (40, 64))
    assert one == two
    assert one.windows == 1


def test_progress_hears_each_window_and_the_end() -> None:
    heard: list[Any] = []
    found = perplexity(Chain(), TEXT, progress=heard.append)
    assert [h.windows for h in heard] == list(range(1, found.windows + 1))
    assert heard[-1] == found


def test_the_first_token_is_not_put_twice() -> None:
    assert perplexity(Chain(), [7, *TEXT[:20]], bos=7) == perplexity(Chain(), TEXT[:20], bos=7)


def test_bytes_are_unknown_without_a_tokenizer() -> None:
    found = perplexity(Flat(), TEXT[:2])
    assert math.isnan(found.bits_per_byte)
    assert math.isnan(found.error)
    assert "bits per byte" not in str(found)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"context": 65}, ContextError, "windows of 65 tokens were asked, the session holds 64"),
        ({"context": 1}, ArgumentError, "context must be 2 tokens or more"), ({"context": "9"}, ArgumentError, "context must be"),
        ({"stride": 0}, ArgumentError, "stride must be 1 to 63 for windows of 64, given 0"),
        ({"stride": 64}, ArgumentError, "stride must be 1 to 63"), ({"ids": [1]}, ArgumentError, "2 tokens or more is needed, given 1"),
        ({"ids": []}, ArgumentError, "given 0"),
    ],
)  # fmt: skip
def test_windows_that_cannot_be_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        perplexity(Chain(), **({"ids": TEXT} | options))


def test_scores_that_are_no_numbers_are_an_error() -> None:
    session = Chain()
    session.score = lambda slot, ids: np.full(len(ids), math.nan)  # type: ignore[method-assign]
    with pytest.raises(ArgumentError, match="9 of 9 log-probabilities are NaN"):
        perplexity(session, TEXT[:10])


# ---- a real network


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(tiny.hf_packed(tmp_path_factory.mktemp("model") / "m"))


PROMPTS = [[2, 3, 4], [5, 6, 7, 8, 9], [2, 3, 4, 5, 6, 7, 8], [30]]
WORDS = Chunks([b"%d " % i for i in range(64)])


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=0.9, top_p=0.9, seed=2)], ids=["greedy", "drawn"])
def test_a_networks_batch_gives_what_its_prompts_give_alone(model: Model, sampler: Sampler) -> None:
    options: dict[str, Any] = {"max_tokens": 6, "sampler": sampler}
    many, one = (
        generate_batch(model.session(slots, context=16), WORDS, PROMPTS, **options)  # type: ignore[arg-type]
        for slots in (3, 1)
    )
    assert [g.tokens for g in many] == [g.tokens for g in one]


def test_a_network_that_reuses_its_cache_says_the_same(model: Model) -> None:
    session = model.session(context=32)
    prompt = [*range(2, 12)]
    first = generate(session, WORDS, prompt, max_tokens=8)  # type: ignore[arg-type]
    again = generate(session, WORDS, prompt, max_tokens=8)  # type: ignore[arg-type]
    assert (first.reused, again.reused) == (0, 9)
    assert first.tokens == again.tokens


def test_the_perplexity_of_a_network_is_that_of_its_logits(model: Model) -> None:
    session, ids = model.session(context=16), [3, 9, 27, 17, 51, 25]
    found = perplexity(session, ids)
    nats = []
    for n in range(1, len(ids)):
        session.truncate(0, 0)
        row = session.extend(0, ids[:n]).astype(np.float64)
        nats.append(row.max() + np.log(np.exp(row - row.max()).sum()) - row[ids[n]])
    assert found.nats == pytest.approx(np.mean(nats), rel=1e-5)

"""Continuous batching: right text for everyone, whoever else runs, lags, fails or gives up."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import families
import models
from cheap import Cheap
from markov import EOS, TOKENIZER, Session, encode, expected
from tritium.buffer import native
from tritium.errors import ArgumentError, BusyError, ContextError, TritiumError
from tritium.models.load import Model, load
from tritium.models.sampling import Sampler
from tritium.serve.scheduler import Event, Request, Scheduler, Ticket


def ask(prompt: str, count: int = 8, **options: object) -> Request:
    return Request(encode(prompt), count, **options)  # type: ignore[arg-type]


def told(ticket: Ticket) -> tuple[str, str]:
    """All its text, and how it ended."""
    events = list(ticket)
    assert [e.finish is None for e in events] == [True] * (len(events) - 1) + [False]
    return "".join(e.text for e in events), str(events[-1].finish)


def last(ticket: Ticket) -> Event:
    return list(ticket)[-1]


def test_text_is_what_the_model_says_alone() -> None:
    with Scheduler(Session(), TOKENIZER) as s:
        assert told(s.submit(ask("abc", 20))) == (expected("abc", 20), "length")


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=40), st.integers(1, 30)), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(1, 40),
)
def test_text_does_not_depend_on_who_else_runs(asked: list[tuple[str, int]], slots: int, chunk: int) -> None:
    with Scheduler(Session(slots), TOKENIZER, prefill_chunk=chunk) as s:
        tickets = s.submit_all([ask(p, n) for p, n in asked])
        for (p, n), ticket in zip(asked, tickets, strict=True):
            assert told(ticket) == (expected(p, n), "length")


def test_one_thread_alone_calls_the_session() -> None:
    session = Session()
    with Scheduler(session, TOKENIZER) as s:
        for t in s.submit_all([ask("a"), ask("b")]):
            told(t)
    assert len(session.threads) == 1
    assert threading.get_ident() not in session.threads


def test_running_requests_decode_in_one_call() -> None:
    session = Session(4)
    session.gate.clear()
    with Scheduler(session, TOKENIZER) as s:
        tickets = s.submit_all([ask(p, 10) for p in "abcd"])
        session.gate.set()
        for t in tickets:
            told(t)
    assert max(session.batches) == 4
    assert len(session.batches) < 20


def test_thirty_two_requests_in_four_slots_start_in_the_order_they_came() -> None:
    session = Session(4)
    started: list[int] = []
    with Scheduler(session, TOKENIZER) as s:
        session.gate.clear()
        tickets = s.submit_all([ask(f"{i:02d}", 6) for i in range(32)])
        for i, t in enumerate(tickets):
            t.listen(lambda i=i: started.append(i) if i not in started else None)  # type: ignore[misc]
        session.gate.set()
        for i, t in enumerate(tickets):
            assert told(t)[0] == expected(f"{i:02d}", 6)
    assert started == list(range(32))


def test_a_long_prompt_is_read_in_pieces_between_the_tokens_of_others() -> None:
    session = Session(2)
    session.gate.clear()
    with Scheduler(session, TOKENIZER, prefill_chunk=16) as s:
        quick, slow = s.submit_all([ask("q", 40), ask("x" * 100, 4)])
        session.gate.set()
        assert told(slow)[0] == expected("x" * 100, 4)
        told(quick)
    sizes = [n for slot, n in session.pieces if n > 1]
    # The rest of a piece beside the first prompt, then a quarter of one each time, since somebody waits for his next token.
    assert sizes == [15] + [4] * 21
    assert len(session.batches) >= 21


def test_a_prompt_alone_is_read_in_whole_pieces() -> None:
    session = Session(2)
    with Scheduler(session, TOKENIZER, prefill_chunk=16) as s:
        told(s.submit(ask("x" * 40, 1)))
    assert [n for _, n in session.pieces] == [16, 16, 8]


def test_the_next_turn_of_a_talk_reuses_its_slot() -> None:
    session = Session(3)
    with Scheduler(session, TOKENIZER) as s:
        first = "hello world, how are you"
        answer, _ = told(s.submit(ask(first, 5)))
        told(s.submit(ask("quite another thing", 5)))
        following = last(s.submit(ask(first + answer + "and then", 5)))
    # The last token said was never read by the model.
    assert following.usage.reused_tokens == len(first) + 4
    assert following.usage.prompt_tokens == len(first) + 5 + len("and then")


def test_the_same_prompt_again_reads_its_last_token_alone() -> None:
    session = Session(2)
    with Scheduler(session, TOKENIZER) as s:
        told(s.submit(ask("same prompt", 1)))
        again = s.submit(ask("same prompt", 3))
        assert told(again)[0] == expected("same prompt", 3)
    assert session.pieces[-1][1] == 1


def test_a_foreign_prompt_leaves_a_long_cache_alone() -> None:
    session = Session(2)
    with Scheduler(session, TOKENIZER) as s:
        told(s.submit(ask("a long talk that may go on", 3)))
        told(s.submit(ask("a new one", 3)))
    assert sorted(bool(t) for t in session.held) == [True, True]


def test_text_split_over_tokens_comes_in_whole_characters() -> None:
    said = "aé€😀b"
    session = Session(1, says={"p": said})
    with Scheduler(session, TOKENIZER) as s:
        ticket = s.submit(ask("p", 50))
        pieces = [e.text for e in ticket]
    assert "".join(pieces) == said
    assert "\ufffd" not in "".join(pieces)


def test_a_character_never_finished_is_shown_as_broken() -> None:
    with Scheduler(Session(1, says={"p": "é"}), TOKENIZER) as s:
        assert told(s.submit(ask("p", 1))) == ("\ufffd", "length")


def test_the_end_token_stops_and_counts_but_is_no_text() -> None:
    with Scheduler(Session(1, says={"p": "hi"}), TOKENIZER) as s:
        ticket = s.submit(ask("p", 50))
        events = list(ticket)
    assert "".join(e.text for e in events) == "hi"
    assert events[-1].finish == "stop"
    assert events[-1].usage.completion_tokens == 3
    assert EOS not in [t for e in events for t in e.tokens]


def test_a_stop_string_over_several_tokens_is_never_seen() -> None:
    with Scheduler(Session(1, says={"p": "one END two"}), TOKENIZER) as s:
        assert told(s.submit(ask("p", 50, stop=("END",)))) == ("one ", "stop")


def test_what_only_began_like_a_stop_string_comes_out() -> None:
    with Scheduler(Session(1, says={"p": "one EN"}), TOKENIZER) as s:
        assert told(s.submit(ask("p", 50, stop=("END",)))) == ("one EN", "stop")


def test_tokens_and_log_probabilities_belong_to_the_text() -> None:
    with Scheduler(Session(1, says={"p": "one END two"}), TOKENIZER) as s:
        events = list(s.submit(ask("p", 50, stop=("END",), logprobs=2)))
    tokens = [t for e in events for t in e.tokens]
    probs = [p for e in events for p in e.logprobs]
    assert TOKENIZER.decode(tokens) == "one "
    assert [p.token for p in probs] == tokens
    assert all(len(p.top) == 2 and p.top[0] == (p.token, p.logprob) for p in probs)


def test_a_full_context_ends_with_its_own_reason() -> None:
    with Scheduler(Session(1, context=10), TOKENIZER) as s:
        text, finish = told(s.submit(ask("abcdef", 100)))
    assert finish == "context"
    assert text == expected("abcdef", 5)  # four fit, and one more was told by the last of them


def test_a_prompt_that_fills_the_context_gets_one_token() -> None:
    with Scheduler(Session(1, context=4), TOKENIZER) as s:
        assert told(s.submit(ask("abcd", 9))) == (expected("abcd", 1), "context")


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Request((), 1), ArgumentError),
        (Request((1,), -1), ArgumentError),
        (Request((999,), 1), ArgumentError),
        (Request((1,) * 11, 1), ContextError),
    ],
)
def test_what_cannot_run_is_refused_at_once(request_: Request, error: type[Exception]) -> None:
    with Scheduler(Session(1, context=10), TOKENIZER) as s, pytest.raises(error):
        s.submit(request_)


def test_a_full_queue_is_busy_and_takes_all_or_none() -> None:
    session = Session(1)
    session.gate.clear()
    with Scheduler(session, TOKENIZER, queue=2) as s:
        tickets = s.submit_all([ask("a"), ask("b")])
        with pytest.raises(BusyError, match="no room for 2 more"):
            s.submit_all([ask("c"), ask("d")])
        tickets.append(s.submit(ask("e")))
        with pytest.raises(BusyError):
            s.submit(ask("f"))
        session.gate.set()
        assert [told(t)[0] for t in tickets] == [expected(p, 8) for p in "abe"]
        assert told(s.submit(ask("g")))[0] == expected("g", 8)


def test_a_reader_that_never_reads_holds_nobody_up() -> None:
    with Scheduler(Session(2), TOKENIZER) as s:
        lagging = s.submit(ask("lag", 100))
        assert told(s.submit(ask("other", 100)))[0] == expected("other", 100)
        finished = threading.Event()
        lagging.listen(lambda: finished.set() if not s.running else None)
        assert finished.wait(10) or not s.running
        event = lagging.take()
        assert event is not None
        assert event.text == expected("lag", 100)  # merged into one
        assert event.finish == "length"
        assert lagging.take() is None


def test_a_cancelled_request_frees_its_slot_for_the_next() -> None:
    session = Session(1)
    with Scheduler(session, TOKENIZER) as s:
        session.gate.clear()
        endless, after = s.submit_all([ask("a", 500), ask("b", 4)])
        endless.cancel()
        session.gate.set()
        assert told(endless)[1] == "cancelled"
        assert told(after) == (expected("b", 4), "length")
        assert s.running == s.waiting == 0


def test_a_waiting_request_can_be_cancelled() -> None:
    session = Session(1)
    session.gate.clear()
    with Scheduler(session, TOKENIZER) as s:
        first, second = s.submit_all([ask("a", 4), ask("b", 4)])
        second.cancel()
        session.gate.set()
        assert told(second) == ("", "cancelled")
        assert told(first)[0] == expected("a", 4)
        first.cancel()  # harmless now


def test_a_failing_step_ends_only_the_request_at_fault() -> None:
    session = Session(3)
    session.gate.clear()
    with Scheduler(session, TOKENIZER) as s:
        good, bad, fine = s.submit_all([ask("good", 12), ask("bad!", 12), ask("fine", 12)])
        session.gate.set()
        with pytest.raises(TritiumError, match="RuntimeError: cannot step this"):
            list(bad)
        assert told(good) == (expected("good", 12), "length")
        assert told(fine) == (expected("fine", 12), "length")
        assert told(s.submit(ask("next", 3)))[0] == expected("next", 3)


def test_a_failing_prompt_ends_only_itself() -> None:
    with Scheduler(Session(2), TOKENIZER) as s:
        bad, good = s.submit_all([ask("why?", 5), ask("good", 5)])
        with pytest.raises(TritiumError, match="cannot read this"):
            list(bad)
        assert told(good)[0] == expected("good", 5)


def test_a_failing_processor_ends_only_its_request() -> None:
    def broken(logits: object, context: object) -> None:
        raise ZeroDivisionError("mine")

    with Scheduler(Session(2), TOKENIZER) as s:
        bad, good = s.submit_all([ask("a", 5, sampler=Sampler(processors=(broken,))), ask("good", 5)])  # type: ignore[arg-type]
        with pytest.raises(TritiumError, match="ZeroDivisionError: mine"):
            list(bad)
        assert told(good)[0] == expected("good", 5)


def test_the_largest_logits_will_do_while_all_that_run_are_greedy() -> None:
    session = Session(4)
    with Scheduler(session, TOKENIZER) as s:
        for t in s.submit_all([ask(p, 10) for p in "abcd"]):
            told(t)
    assert session.picks == len(session.batches)


def test_the_next_step_is_announced_unless_it_is_the_last_or_a_prompt_waits() -> None:
    session = Session(1)
    with Scheduler(session, TOKENIZER) as s:
        told(s.submit(ask("abc", 5)))
        assert session.ahead == (True, True, True, False)
        session.gate.clear()
        tickets = s.submit_all([ask("abd", 3), ask("abe", 3)])
        session.gate.set()
        for t in tickets:
            told(t)
    assert session.ahead[4:] == (False, False, True, False)


@pytest.mark.parametrize("other", [
    {"logprobs": 1}, {"sampler": Sampler(temperature=1.0, seed=3)}, {"sampler": Sampler(frequency_penalty=1e-3)},
], ids=["logprobs", "temperature", "penalty"])  # fmt: skip
def test_one_that_needs_all_logits_changes_nobodys_text(other: dict[str, object]) -> None:
    alone = Session(1)
    with Scheduler(alone, TOKENIZER) as s:
        want = told(s.submit(ask("other", 5, **other)))
    assert alone.picks == 0
    session = Session(3)
    session.gate.clear()
    with Scheduler(session, TOKENIZER) as s:
        one, two, three = s.submit_all([ask("good", 20), ask("other", 5, **other), ask("fine", 20)])
        session.gate.set()
        assert told(two) == want
        assert told(one) == (expected("good", 20), "length")
        assert told(three) == (expected("fine", 20), "length")
    assert 0 < session.picks < len(session.batches)  # while it ran, and after


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_logits_that_are_no_numbers_end_only_their_request(bad: float, logprobs: int | None) -> None:
    class Breaking(Session):
        def _logits(self, slot: int) -> np.ndarray:
            row = super()._logits(slot)
            return np.full_like(row, bad) if self.held[slot][0] == encode("b")[0] and len(self.held[slot]) > 6 else row

    with Scheduler(Breaking(2), TOKENIZER) as s:
        broken, good = s.submit_all([ask("bad", 12, logprobs=logprobs), ask("good", 12)])
        with pytest.raises(ArgumentError, match=r"logits are NaN or \+inf"):
            list(broken)
        assert told(good) == (expected("good", 12), "length")


def test_choices_of_one_seed_differ_and_repeat() -> None:
    def texts() -> list[str]:
        sampler = Sampler(temperature=2.0, seed=3)
        with Scheduler(Session(2), TOKENIZER) as s:
            return [told(t)[0] for t in s.submit_all([ask("a", 20, sampler=sampler, stream=i) for i in range(3)])]

    first = texts()
    assert first == texts()
    assert len(set(first)) == 3


def test_close_lets_what_was_taken_end() -> None:
    s = Scheduler(Session(1), TOKENIZER)
    tickets = s.submit_all([ask("a", 50), ask("b", 50)])
    s.close()
    assert [told(t) for t in tickets] == [(expected(p, 50), "length") for p in "ab"]
    with pytest.raises(BusyError, match="shutting down"):
        s.submit(ask("c"))


def test_close_without_draining_cancels() -> None:
    session = Session(1, step_s=0.001)
    s = Scheduler(session, TOKENIZER)
    tickets = s.submit_all([ask("a", 400), ask("b", 400)])
    s.close(drain=False)
    assert [told(t)[1] for t in tickets] == ["cancelled", "cancelled"]


def test_close_stops_draining_after_its_time() -> None:
    session = Session(1, step_s=0.005)
    s = Scheduler(session, TOKENIZER)
    ticket = s.submit(ask("a", 500))
    s.close(timeout=0.05)
    assert told(ticket)[1] == "cancelled"


def test_a_closed_scheduler_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with Scheduler(Session(1), TOKENIZER) as s:
        told(s.submit(ask("a")))
    assert set(threading.enumerate()) <= before


def test_a_ternary_model_says_among_others_what_it_says_alone(tmp_path: Path) -> None:
    model = load(models.folder(tmp_path / "m", models.random(models.Shape(vocab=TOKENIZER.vocab_size))))
    prompts = ["a", "a prompt of some length, read in pieces", "a prompt of some other length", "b", "bc", "a prompt"]
    alone = [models.greedy(model, encode(p), 12)[0] for p in prompts]
    until = [tokens[: tokens.index(EOS)] if EOS in tokens else tokens for tokens in alone]
    with Scheduler(model.session(slots=3), TOKENIZER, prefill_chunk=16) as s:
        for _ in range(2):  # the second time on slots that hold something
            tickets = s.submit_all([ask(p, 12) for p in prompts])
            assert [[t for e in ticket for t in e.tokens] for ticket in tickets] == until


@pytest.mark.skipif(native is None, reason="without the native library sums have no fixed order")
def test_requests_to_a_certified_head_get_the_tokens_of_the_whole() -> None:
    samplers = [Sampler(), Sampler(temperature=0.9, seed=3), Sampler(temperature=1.2, top_k=9, seed=4)]
    samplers.append(Sampler(temperature=0.8, min_p=0.1, repetition_penalty=1.2, seed=5))
    texts = []
    for certified in (True, False):
        model = load(certified=certified)
        prompts = [tuple(model.tokenizer.encode(text)) for text in ("In the", "And God", "Moses", "The LORD")]
        with Scheduler(model.session(slots=3), model.tokenizer) as scheduler:
            requests = [Request(p, 12, s) for p, s in zip(prompts, samplers, strict=True)]
            tickets = scheduler.submit_all(requests)
            texts.append([[token for event in ticket for token in event.tokens] for ticket in tickets])
        assert (model.head_statistics is not None and model.head_statistics.decided > 20) == certified
    assert texts[0] == texts[1]


@pytest.mark.skipif(native is None, reason="without the native library sums have no fixed order")
def test_the_head_is_read_once_for_a_prompt_of_several_pieces() -> None:
    model = load(certified=True)
    head, prompt = model.network.certified, tuple(model.tokenizer.encode("In the beginning God created the heaven"))
    assert head is not None
    assert len(prompt) > 8
    with Scheduler(model.session(slots=1), model.tokenizer, prefill_chunk=4) as scheduler:
        (ticket,) = scheduler.submit_all([Request(prompt, 3, Sampler())])
        tokens = [token for event in ticket for token in event.tokens]
    assert head.statistics.tokens == len(tokens) == 3
    with Scheduler(model.session(slots=1), model.tokenizer, prefill_chunk=4) as scheduler:
        (ticket,) = scheduler.submit_all([Request(prompt, 3, Sampler(), logprobs=0)])
        assert [token for event in ticket for token in event.tokens] == tokens
    assert head.statistics.tokens == 3


def test_no_tokens_are_generated_where_none_are_asked_for() -> None:
    session = Session(1)
    with Scheduler(session, TOKENIZER) as s:
        event = last(s.submit(ask("abc", 0)))
        assert (event.text, event.finish, event.usage.completion_tokens) == ("", "length", 0)
        assert session.held[0] == list(encode("abc"))  # it was read, and the next request reuses it
        assert last(s.submit(ask("abcd", 1))).usage.reused_tokens == 3


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
@pytest.mark.parametrize("count", [0, 1, 6])
def test_a_prompt_is_scored_whatever_its_pieces(chunk: int, count: int) -> None:
    prompt = "score me"
    alone = Session(1)
    alone.extend(0, encode(prompt)[:1])
    want = alone.scored(0, encode(prompt)[1:], 2)
    with Scheduler(Session(2), TOKENIZER, prefill_chunk=chunk) as s:
        s.submit(ask(prompt, 3))  # what a slot holds of it already is scored all the same
        ticket = s.submit(ask(prompt, count, prompt_logprobs=2))
        assert told(ticket) == (expected(prompt, count), "length")
    assert ticket.prompt_logprobs == want


def test_a_request_has_its_own_ends() -> None:
    letter = expected("abc", 3)[2]
    first = expected("abc", 3).index(letter)
    with Scheduler(Session(says={"x": "ab"}), TOKENIZER) as s:
        assert told(s.submit(ask("abc", 9, ends=frozenset(encode(letter))))) == (expected("abc", 9)[:first], "stop")
        text, finish = told(s.submit(ask("x", 9, ends=frozenset())))
    assert (text[:2], finish) == ("ab", "length")


def test_the_real_model_scores_a_prompt_as_it_scores_a_text() -> None:
    model = load()
    ids = tuple(model.tokenizer.encode("In the beginning God created"))
    with Scheduler(model.session(slots=2), model.tokenizer, prefill_chunk=8) as s:
        ticket = s.submit(Request(ids, 4, prompt_logprobs=1))
        text = told(ticket)[0]
    session = model.session()
    session.extend(0, ids[:1])
    np.testing.assert_allclose(
        [p.logprob for p in ticket.prompt_logprobs], session.score(0, ids[1:]), rtol=0, atol=1e-5
    )
    assert [p.top[0][1] >= p.logprob for p in ticket.prompt_logprobs] == [True] * (len(ids) - 1)
    assert text == model.generate(ids, max_tokens=4).text


# ---- prefixes


def read_tokens(session: Session) -> int:
    return sum(n for _, n in session.pieces)


def test_answers_to_one_prompt_share_one_prefill() -> None:
    session, prompt = Session(8), "a long prompt that all of them have " * 6
    session.gate.clear()
    with Scheduler(session, TOKENIZER, prefill_chunk=64) as s:
        tickets = s.submit_all([ask(prompt, 5, stream=i) for i in range(8)])
        session.gate.set()
        assert [told(t) for t in tickets] == [(expected(prompt, 5), "length")] * 8
    # Every one reads its last token by itself, for the logits after it.
    assert read_tokens(session) == len(prompt) + 7


def test_a_prompt_under_way_is_waited_for_up_to_where_they_part() -> None:
    session, system = Session(4), "you are a helpful model of language " * 5
    session.gate.clear()
    with Scheduler(session, TOKENIZER, prefill_chunk=64) as s:
        tickets = s.submit_all([ask(system + q, 5) for q in ("one?"[:-1], "two", "three")])
        session.gate.set()
        assert [told(t)[0] for t in tickets] == [expected(system + q, 5) for q in ("one", "two", "three")]
    assert (
        read_tokens(session) == len(system) + len("one" + "two" + "three") - 1
    )  # two and three share a t, in one page


def test_a_prefix_outlives_its_slot() -> None:
    session, prompt = Session(1), "the first talk, which is long enough for a page or two " * 2
    with Scheduler(session, TOKENIZER) as s:
        told(s.submit(ask(prompt, 3)))
        told(s.submit(ask("another talk that takes the only slot away", 3)))
        again = last(s.submit(ask(prompt + "and on", 3)))
        assert s.prefixes.counts.hits >= len(prompt)
    assert again.usage.reused_tokens == len(prompt)


def test_who_waits_for_a_prompt_goes_on_when_it_is_given_up() -> None:
    session, prompt = Session(2), "a prompt that is being read by somebody who gives up " * 4
    session.gate.clear()
    with Scheduler(session, TOKENIZER, prefill_chunk=16) as s:
        first, second = s.submit_all([ask(prompt, 5), ask(prompt, 5)])
        first.cancel()
        session.gate.set()
        assert told(second) == (expected(prompt, 5), "length")


def test_without_a_prefix_cache_nothing_is_shared() -> None:
    session, prompt = Session(2), "x" * 100
    session.gate.clear()
    with Scheduler(session, TOKENIZER, prefix_cache=0) as s:
        tickets = s.submit_all([ask(prompt, 2)] * 2)
        session.gate.set()
        assert [told(t)[0] for t in tickets] == [expected(prompt, 2)] * 2
    assert read_tokens(session) == 200


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 120), st.text("ab", max_size=5), st.integers(1, 12), st.booleans()),
        min_size=1, max_size=14,
    ),
    st.integers(1, 5),
    st.integers(1, 6),
)  # fmt: skip
def test_shared_prefixes_and_small_bounds_change_no_text(
    asked: list[tuple[int, int, str, int, bool]], slots: int, pages: int
) -> None:
    session = Session(slots)
    page = 32 * (session.memory.token_bytes + 8)
    with Scheduler(session, TOKENIZER, prefill_chunk=48, prefix_cache=pages * page) as s:
        prompts = ["abcd"[which] * shared + "e" + rest for which, shared, rest, _, _ in asked]
        tickets = [s.submit(ask(p, n)) for p, (*_, n, _) in zip(prompts, asked, strict=True)]
        for ticket, (*_, gives_up) in zip(tickets, asked, strict=True):
            if gives_up:
                ticket.cancel()
        for p, ticket, (*_, n, gives_up) in zip(prompts, tickets, asked, strict=True):
            text, finish = told(ticket)
            assert finish == "length" or gives_up
            assert expected(p, n).startswith(text)
            assert finish != "length" or text == expected(p, n)
        assert s.prefixes.nbytes <= s.prefixes.limit


def test_a_recurrent_model_shares_prefixes_by_its_states(tmp_path: Path) -> None:
    model = load(families.write_folder(tmp_path / "m", families.random(families.CONFIGS["qwen3_5"], 3)))
    draw = np.random.default_rng(0)
    system = tuple(draw.integers(0, 60, 40).tolist())
    prompts = [system + tuple(draw.integers(0, 60, n).tolist()) for n in (3, 3, 5, 7)]
    prompts += [prompts[0]] * 2
    alone = []
    for p in prompts:
        session = model.session()
        alone.append([int(session.extend(0, p).argmax())])
        for _ in range(3):
            alone[-1].append(int(session.step([0], alone[-1][-1:])[0].argmax()))
    with Scheduler(model.session(slots=3), TOKENIZER) as s:
        tickets = s.submit_all([Request(p, 4) for p in prompts])
        events = [list(t) for t in tickets]
    assert [[t for e in each for t in e.tokens] for each in events] == alone
    assert [each[-1].usage.reused_tokens >= 40 for each in events[1:]] == [True] * 5


# ---- all of it together


SAMPLERS = (
    Sampler(), Sampler(temperature=0.3, seed=1), Sampler(temperature=1.0, top_k=8, seed=2), Sampler(temperature=0.7, top_p=0.8, seed=3),
    Sampler(repetition_penalty=1.2),
)  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    shape = models.Shape(width=32, inner=48, heads=2, kv_heads=1, layers=1, vocab=64, context=160)
    return load(models.folder(tmp_path_factory.mktemp("small") / "m", models.random(shape, 4)))


@pytest.mark.parametrize("seed", range(int(os.environ.get("TRITIUM_SERVED_SEEDS", "1" if native is None else "3"))))
def test_batches_prefixes_guesses_and_aborts_leave_each_text_as_alone(small: Model, seed: int) -> None:
    draw = random.Random(seed)
    shared = [draw.choices(range(64), k=70) for _ in range(2)]
    requests = []
    for i in range(16):
        period = draw.choices(range(64), k=draw.randint(2, 9)) * 3  # what repeats itself is guessed
        prompt = draw.choice(shared)[: draw.choice((20, 40, 70))] + draw.choice([period, draw.choices(range(64), k=5)])
        logprobs = draw.choice((None, None, 2))
        requests.append(Request(tuple(prompt), draw.randint(1, 40), draw.choice(SAMPLERS), stream=i, logprobs=logprobs))
    session = small.session(slots=draw.randint(1, 6))
    session.costs = Cheap()
    draft = small.draft_session(session, small) if draw.random() < 0.5 else None
    page = 32 * (session.memory.token_bytes + 8)
    options = {"prefix_cache": draw.choice((None, 0, 3 * page, 8 * page)), "prefill_chunk": draw.choice((16, 64, 128))}
    with Scheduler(session, TOKENIZER, draft=draft, **options) as s:
        tickets = s.submit_all(requests)
        given_up = set(draw.sample(range(16), 3))
        for i in given_up:
            tickets[i].cancel()
        events = [list(t) for t in tickets]
        assert s.speculator is not None
        assert s.speculator.counts.guessed >= s.speculator.counts.accepted > 0
        assert s.prefixes.nbytes <= s.prefixes.limit
    single = small.session()
    for i, (r, each) in enumerate(zip(requests, events, strict=True)):
        with Scheduler(single, TOKENIZER, speculate=False, prefix_cache=0) as alone:
            single.truncate(0, 0)
            expected_events = list(alone.submit(r))
        tokens, wanted = ([t for e in es for t in e.tokens] for es in (each, expected_events))
        assert tokens == wanted[: len(tokens)]
        if i not in given_up:
            assert [p for e in each for p in e.logprobs] == [p for e in expected_events for p in e.logprobs]
            assert (len(tokens), each[-1].finish) == (len(wanted), expected_events[-1].finish)


def test_a_draft_session_with_too_few_slots_is_refused(small: Model) -> None:
    with pytest.raises(ArgumentError, match="2 slots is needed"):
        Scheduler(small.session(slots=2), TOKENIZER, draft=small.session())

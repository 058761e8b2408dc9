"""Guesses for the sequences of a session: by lookup in the sequence itself, else by a smaller model; how many, by what they cost.

One thread at a time, that of the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from tritium.errors import ArgumentError
from tritium.models.caching.prefixes import common
from tritium.models.sampling import State
from tritium.models.speculation.control import Costs, Offer, SpeculationCounts, Trust, choose
from tritium.models.speculation.lookup import SIZES, Lookup

Array = np.ndarray[Any, np.dtype[Any]]
MOST = 15  # guesses of one sequence in one step
MOST_DRAFTED = 4  # of those, by a draft model: each takes a step of it
LOOKUP, DRAFT = "lookup", "draft"
SHORT_REST = 2  # tokens after which a sequence guesses again that knew no guess
GUESS_SHARE = 0.005  # of the time of steps: most that guesses in vain may take
MOST_REST = 1024  # steps
WINDOW = 9  # times of guesses that are remembered
LONGEST_REST = 16  # tokens after which a sequence guesses again, whose guesses promised nothing


class DraftSession(Protocol):
    """The part of a draft model's session that is used."""

    @property
    def slots(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def tokens(self, slot: int) -> list[int]: ...
    def truncate(self, slot: int, count: int) -> None: ...
    def extend_all(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> list[Array]: ...


@dataclass(eq=False)
class Guesses:
    """The guesses of one sequence in one step: the tokens, and where they are from; `counted` of them are verified."""

    tokens: list[int]
    source: str
    kind: int  # last tokens that were looked up; 0: of a draft model
    counted: int = 0

    @property
    def verified(self) -> list[int]:
        return self.tokens[: self.counted]


NONE = Guesses([], LOOKUP, 0)


@dataclass(eq=False)
class Guesser:
    """One sequence that guesses: its n-grams, and how far its guesses are to be trusted."""

    state: State
    slot: int
    lookup: Lookup = field(default_factory=Lookup)
    trust: dict[int, Trust] = field(default_factory=dict)  # by the kind of guess
    wakes: int = 0  # the step of the speculator in which it guesses again
    rest: int = 0  # how many steps it rested last
    guesses: Guesses = NONE


class Speculator:
    """Guesses tokens, chooses how many of them to verify, and learns from what came of them.

    draft: a session of a smaller model with the same vocabulary and as many slots, whose guesses are used where lookup has none."""

    def __init__(self, costs: Costs, draft: DraftSession | None = None) -> None:
        self.costs, self.draft = costs, draft
        self.counts = SpeculationCounts()
        self.trust = {kind: Trust() for kind in (*SIZES, 0)}  # of all sequences: what a new one begins with
        self.has_guesses = False  # in the step under way, verified or not: something is to be learnt from it
        self.at_rest = False  # in the step under way
        self._draft_costs: dict[str, float] = {}
        self._step = self._wakes = 0  # the number of this step, and of the next one in which a sequence guesses
        self._recorded = 0  # the number of the last step whose time was counted
        self._guess_s = 0.0  # what the last guesses took, and learning from them
        self._guess_times: deque[float] = deque(maxlen=WINDOW)

    def start(self, state: State, slot: int) -> Guesser:
        """Return the guesser of a new sequence in a slot."""
        self._wakes = 0
        return Guesser(state, slot, trust={kind: Trust(t.share, 1.0) for kind, t in self.trust.items()})

    def rests(self) -> bool:
        """Begin a step; return True if no sequence guesses in it. Most steps of a text that repeats nothing end here."""
        self._step += 1
        self.has_guesses = False
        self.at_rest = self._step < self._wakes
        return self.at_rest

    def guess(self, guessers: Sequence[Guesser], room: Sequence[int]) -> list[list[int]]:
        """Return the tokens of each sequence to verify in the step that `rests` began; `room`: how many more each may have."""
        start = perf_counter()
        if self._guess_s:
            self._guess_times.append(self._guess_s)
        self._guess(guessers, room)
        guesses = [g.guesses.verified for g in guessers]
        if not any(guesses):
            self._wakes = max(min(g.wakes for g in guessers), self._step + 1 + self._least_rest(len(guessers)))
        self._guess_s = perf_counter() - start
        return guesses

    def record(self, rows: int, seconds: float) -> None:
        """Count the time of the step under way, unless it is one of rest: those are many, and their times are known."""
        if not self.at_rest:
            self.costs.record(rows, seconds, self._step - self._recorded)
            self._recorded = self._step

    def _guess(self, guessers: Sequence[Guesser], room: Sequence[int]) -> None:
        for guesser, most in zip(guessers, room, strict=True):
            guesser.guesses = self._looked_up(guesser, min(most, MOST))
        if self.draft is not None:
            self._drafted([(g, most) for g, most in zip(guessers, room, strict=True) if g.guesses is NONE and most > 0])
        self.has_guesses = any(g.guesses is not NONE for g in guessers)
        if self.has_guesses:
            offers = [Offer(len(g.guesses.tokens), g.trust[g.guesses.kind].share) for g in guessers]
            for guesser, count in zip(guessers, choose(offers, self.costs), strict=True):
                guesser.guesses.counted = count

    def _looked_up(self, guesser: Guesser, most: int) -> Guesses:
        if guesser.wakes > self._step or most < 1:
            return NONE
        tokens, kind = guesser.lookup.guess(guesser.state.context.tokens, most)
        if tokens:
            return Guesses(tokens, LOOKUP, kind)
        if self.draft is None:
            guesser.wakes = self._step + 1 + SHORT_REST
        return NONE

    def _least_rest(self, sequences: int) -> int:
        """Return for how many steps to rest so that guesses in vain take no more than their share of the time, as both were measured."""
        step = self.costs.cost(self.costs.size(sequences))
        if not step or not self._guess_times:
            return 0
        return min(int(median(self._guess_times) / (GUESS_SHARE * step)), MOST_REST)

    def _drafted(self, pairs: list[tuple[Guesser, int]]) -> None:
        """Have the draft model guess for sequences, where its guesses promise to pay."""
        draft = self.draft
        assert draft is not None
        pairs = [(g, min(most, MOST_DRAFTED)) for g, most in pairs]
        pairs = [(g, n) for g, n in pairs if len(g.state.context.tokens) + n <= draft.capacity and self._draft_pays(g)]
        if not pairs:
            return
        guesses = [list[int]() for _ in pairs]
        marks = [g.state.mark() for g, _ in pairs]
        parts = []
        for g, _ in pairs:
            tokens = g.state.context.tokens
            shared = min(common(draft.tokens(g.slot), tokens), len(tokens) - 1)
            draft.truncate(g.slot, shared)
            parts.append(tokens[shared:])
        try:
            for _ in range(max(n for _, n in pairs)):
                active = [i for i, (_, n) in enumerate(pairs) if len(guesses[i]) < n]
                start = perf_counter()
                rows = draft.extend_all([pairs[i][0].slot for i in active], [parts[i] for i in active])
                if all(len(parts[i]) == 1 for i in active):
                    self._draft_costs["step"] = perf_counter() - start
                for i, row in zip(active, rows, strict=True):
                    token = pairs[i][0].state.pick(row)  # with the noise of the real draw: what is alike is drawn alike
                    guesses[i].append(token)
                    parts[i] = [token]
        finally:
            for (g, _), mark in zip(pairs, marks, strict=True):
                g.state.rewind(mark)
        for (g, _), tokens in zip(pairs, guesses, strict=True):
            g.guesses = Guesses(tokens, DRAFT, 0)

    def _draft_pays(self, guesser: Guesser) -> bool:
        """Return True if guesses of the draft model promise more tokens a second than none, or their cost is not known."""
        if guesser.wakes > self._step:
            return False
        step, share = self._draft_costs.get("step", 0.0), guesser.trust[0].share
        size = self.costs.size(1 + MOST_DRAFTED)
        alone, verify = self.costs.cost(self.costs.sizes[0]), self.costs.cost(size)
        if not step or not alone or not self.costs.known(size):
            return True
        expected = sum(share**j for j in range(MOST_DRAFTED + 1))
        return expected * alone > 1.03 * (MOST_DRAFTED * step + verify)

    def learn(self, guesser: Guesser, picked: Sequence[int]) -> None:
        """Count what came of the guesses of a step, verified or not, by the tokens that were picked."""
        guesses = guesser.guesses
        if guesses is NONE:
            return
        start = perf_counter()
        self._learn(guesser, guesses, picked)
        self._guess_s += perf_counter() - start

    def _learn(self, guesser: Guesser, guesses: Guesses, picked: Sequence[int]) -> None:
        guesser.guesses = NONE
        hits = common(guesses.tokens, picked)
        misses = int(hits < min(len(picked), len(guesses.tokens)))
        for trust in (guesser.trust[guesses.kind], self.trust[guesses.kind]):
            trust.count(hits, misses)
        self._rest(guesser, guesses.counted)
        if guesses.counted:
            accepted = min(hits, guesses.counted)
            self.counts.steps += 1
            self.counts.guessed += guesses.counted
            self.counts.accepted += accepted
            guessed, before = self.counts.by_source.get(guesses.source, (0, 0))
            self.counts.by_source[guesses.source] = guessed + guesses.counted, before + accepted

    def _rest(self, guesser: Guesser, counted: int) -> None:
        """Have a sequence rest for 2, 4, … tokens whose guesses were not worth verifying: to guess takes time too."""
        guesser.rest = 0 if counted else min(max(2 * guesser.rest, 2), LONGEST_REST)
        guesser.wakes = self._step + 1 + guesser.rest


def check_draft(vocabularies: tuple[int, int], recurrent: bool, name: str) -> None:
    """Raise unless a draft model can guess for a model: the same vocabulary, and tokens that can be taken back."""
    if vocabularies[0] != vocabularies[1]:
        raise ArgumentError(
            f"draft: {name} has a vocabulary of {vocabularies[1]} tokens, the model {vocabularies[0]}; take a draft model of the "
            f"same family, with the same tokenizer."
        )
    if recurrent:
        raise ArgumentError(
            f"draft: the states of {name} cannot be cut back to what was accepted; take a draft model without recurrent layers."
        )

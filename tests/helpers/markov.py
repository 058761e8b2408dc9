"""A model for tests of scheduling: the next token follows from all tokens in the slot, so any mix-up changes the text.

It has the methods of a session, counts how it is called, and fails, waits or says a given text where a test asks it to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import cached_property

import numpy as np

import tritium as tt
from tritium.errors import ContextError
from tritium.models.caching.memory import SlotMemory
from tritium.models.sampling import Logprobs, logprobs
from tritium.models.speculation.control import Costs
from tritium.models.text.tokenizer import ALPHABET
from tritium.models.text.vocabulary import ByteTokenizer, Facts

EOS = 256
TOKENIZER = ByteTokenizer(
    (*ALPHABET, "<end>"), frozenset([EOS]), facts=Facts(eos=frozenset([EOS]), eos_token="<end>", chat_template=None)
)
IDS = {i: TOKENIZER.bytes_of(i) for i in range(256)}
BYTE = {b: i for i, b in IDS.items()}


def encode(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text))


def follows(tokens: Sequence[int]) -> int:
    """A small letter that depends on every token before it."""
    h = 7
    for t in tokens:
        h = (h * 31 + t + 1) % 1000003
    return BYTE[bytes([97 + h % 26])]


def expected(prompt: str, count: int) -> str:
    """What the model says after a prompt."""
    tokens = list(encode(prompt))
    start = len(tokens)
    for _ in range(count):
        tokens.append(follows(tokens))
    return TOKENIZER.decode(tokens[start:])


class Slots:
    """What stands in the slots of a session without a network, whose subclass says what a step gives. The cache of keys and values
    holds for each token its id: what was copied wrongly into a slot is found when it is used."""

    held: list[list[int]]
    capacity: int
    slots: int
    picks = 0  # steps of which only the largest logits were asked for
    ahead: tuple[bool, ...] = ()  # of those, whether the next one was announced

    def step(self, slots: Sequence[int], ids: Sequence[int]) -> np.ndarray:
        raise NotImplementedError

    def bounded(self, slots: Sequence[int], ids: Sequence[int]) -> np.ndarray:
        return self.step(slots, ids)

    def pick(self, slots: Sequence[int], ids: Sequence[int], *, ahead: bool = False) -> tuple[list[int], list[float]]:
        self.picks, self.ahead = self.picks + 1, (*self.ahead, ahead)
        rows = self.step(slots, ids)
        return rows.argmax(axis=-1).tolist(), rows.max(axis=-1).tolist()

    unspeculative = ""
    unshareable = ""
    grain = 1

    @property
    def pool(self) -> int:
        return self.slots * self.capacity

    def spare(self, slot: int) -> None:
        assert 0 <= slot < self.slots

    @cached_property
    def costs(self) -> Costs:
        return Costs((1, 2, 4, 8, 16, 32, 64))

    def verify(
        self, slots: Sequence[int], ids: Sequence[Sequence[int]], *, whole: bool = False
    ) -> list[list[np.ndarray]]:
        assert len(set(slots)) == len(slots)
        assert sum(map(len, ids)) <= 64
        rows = [[self.step([slot], [part[0]])[0]] for slot, part in zip(slots, ids, strict=True)]
        for row, slot, part in zip(rows, slots, ids, strict=True):
            row += [self.extend(slot, [token]) for token in part[1:]]
        return rows

    @cached_property
    def memory(self) -> SlotMemory:
        return SlotMemory([self.cache])

    @cached_property
    def cache(self) -> tt.Tensor:
        return tt.zeros((self.slots, 2, self.capacity, 1))

    def adopt(self, slot: int, tokens: Sequence[int]) -> None:
        assert self.cache.numpy()[slot, :, : len(tokens), 0].tolist() == [list(tokens)] * 2
        self.held[slot] = list(tokens)

    def share(self, source: int, slot: int, count: int) -> None:
        self.memory.copy(source, slot, 0, count)
        self.adopt(slot, self.held[source][:count])

    def extend(self, slot: int, ids: Sequence[int]) -> np.ndarray:
        raise NotImplementedError

    def append(self, slot: int, ids: Sequence[int]) -> None:
        self.extend_all([slot], [ids])

    def extend_bounded(self, slot: int, ids: Sequence[int]) -> np.ndarray:
        return self.extend_all([slot], [ids])[0]

    def extend_all(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> list[np.ndarray]:
        before = [len(self.held[s]) for s in slots]
        try:
            return [self.extend(s, part) for s, part in zip(slots, ids, strict=True)]
        except BaseException:
            for s, count in zip(slots, before, strict=True):
                self.truncate(s, min(count, len(self.held[s])))
            raise

    def write(self, slot: int, ids: Sequence[int]) -> None:
        """Append tokens to a slot and its cache."""
        start = len(self.held[slot])
        self.cache.numpy()[slot, :, start : start + len(ids), 0] = ids
        self.held[slot] += ids

    def adapter(self, slot: int) -> None:
        return None

    def use(self, slot: int, adapter: None) -> None:
        assert adapter is None

    def tokens(self, slot: int) -> list[int]:
        return list(self.held[slot])

    def reusable(self, slot: int, count: int) -> int:
        return count

    def truncate(self, slot: int, count: int) -> None:
        assert 0 <= count <= len(self.held[slot])
        del self.held[slot][count:]


class Session(Slots):
    """The session of such a model. `says[prompt]` is a text it says instead, then ends. A prompt with "!" fails in a step,
    one with "?" while it is read."""

    def __init__(
        self,
        slots: int = 4,
        context: int = 512,
        step_s: float = 0.0,
        says: dict[str, str] | None = None,
        logit: float = 10,
    ) -> None:
        self.slots, self.capacity, self.step_s, self.logit = slots, context, step_s, logit
        self.says = {encode(p): list(encode(t)) for p, t in (says or {}).items()}
        self.held: list[list[int]] = [[] for _ in range(slots)]
        self.gate = threading.Event()  # closed: the model waits before each call
        self.gate.set()
        self.threads: set[int] = set()
        self.batches: list[int] = []  # sequences of each step
        self.pieces: list[tuple[int, int]] = []  # (slot, tokens) of each piece of a prompt

    def extend(self, slot: int, ids: Sequence[int]) -> np.ndarray:
        self._call()
        self.pieces.append((slot, len(ids)))
        assert len(ids)
        if BYTE[b"?"] in ids:
            raise RuntimeError("cannot read this")
        self._append(slot, ids)
        return self._logits(slot)

    def step(self, slots: Sequence[int], ids: Sequence[int]) -> np.ndarray:
        self._call()
        assert len(set(slots)) == len(slots) == len(ids)
        self.batches.append(len(slots))
        if any(BYTE[b"!"] in self.held[s] for s in slots):
            raise RuntimeError("cannot step this")
        for s, t in zip(slots, ids, strict=True):
            self._append(s, [t])
        return np.stack([self._logits(s) for s in slots])

    def scored(self, slot: int, ids: Sequence[int], top: int) -> list[Logprobs]:
        """Append tokens; what the row before each says of it."""
        told = []
        for token in ids:
            told.append(logprobs(self._logits(slot), token, top))
            self.extend(slot, [token])
        return told

    def _call(self) -> None:
        self.threads.add(threading.get_ident())
        assert self.gate.wait(20)
        if self.step_s:
            time.sleep(self.step_s)

    def _append(self, slot: int, ids: Sequence[int]) -> None:
        if len(self.held[slot]) + len(ids) > self.capacity:
            raise ContextError("full")
        self.write(slot, ids)

    def _logits(self, slot: int) -> np.ndarray:
        tokens = self.held[slot]
        token = follows(tokens)
        for prompt, text in self.says.items():
            said = tokens[len(prompt) :]
            if tuple(tokens[: len(prompt)]) == prompt and said == text[: len(said)]:
                token = text[len(said)] if len(said) < len(text) else EOS
        row = np.zeros(TOKENIZER.vocab_size, np.float32)
        row[token] = self.logit
        return row


class Model:
    """What a server needs of a model."""

    name = "markov"

    def __init__(self, *, template: str | None = None, **options: object) -> None:
        self.options = options
        facts = Facts(eos=frozenset([EOS]), eos_token="<end>", chat_template=template)
        self.tokenizer = ByteTokenizer((*ALPHABET, "<end>"), frozenset([EOS]), facts=facts)
        self.made: Session | None = None

    def session(self, slots: int = 1, context: int | None = None) -> Session:
        self.made = Session(slots, context or 512, **self.options)  # type: ignore[arg-type]
        return self.made

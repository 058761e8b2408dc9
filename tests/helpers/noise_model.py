"""A model that says anything: random logits that depend on the tokens before them, so that formats alone give a text its shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from markov import EOS, TOKENIZER, Slots
from tritium.models.sampling import Logprobs, logprobs

CLOSING = TOKENIZER.encode('"}],')  # more likely than others, so that texts of JSON end


class NoiseSession(Slots):
    """A session of such a model."""

    def __init__(self, slots: int = 1, context: int = 4096, seed: int = 0) -> None:
        self.slots, self.capacity, self.seed = slots, context, seed
        self.held: list[list[int]] = [[] for _ in range(slots)]

    def extend(self, slot: int, ids: Sequence[int]) -> np.ndarray:
        self.write(slot, ids)
        return self._row(slot)

    def step(self, slots: Sequence[int], ids: Sequence[int]) -> np.ndarray:
        for slot, token in zip(slots, ids, strict=True):
            self.write(slot, [token])
        return np.stack([self._row(slot) for slot in slots])

    def scored(self, slot: int, ids: Sequence[int], top: int) -> list[Logprobs]:
        told = []
        for token in ids:
            told.append(logprobs(self._row(slot), token, top))
            self.write(slot, [token])
        return told

    def _row(self, slot: int) -> np.ndarray:
        tokens = self.held[slot]
        rng = np.random.default_rng([self.seed, len(tokens), *tokens[-8:]])
        row = rng.normal(0, 2, TOKENIZER.vocab_size).astype(np.float32)
        row[EOS] += 2
        row[CLOSING] += 4
        return row


class NoiseModel:
    """What a server needs of such a model."""

    name = "noise"
    tokenizer = TOKENIZER

    def session(self, slots: int = 1, context: int | None = None) -> NoiseSession:
        return NoiseSession(slots, context or 4096)

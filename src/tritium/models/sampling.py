"""Sampling: one row of logits in, the id of the next token out. Where nothing but the largest logit counts, that will do.

The order of work is fixed:

1. penalties (repetition, then frequency and presence), 2. `logit_bias`, 3. your own `processors`, 4. the masks of `Constraint`s,
5. temperature (0: the largest logit wins and nothing below happens), 6. top-k, 7. typical-p, 8. top-p, 9. min-p, 10. one random draw,
by Gumbel-max.

A logit of -inf forbids its token. NaN and +inf are errors. The draws of a seed are the same on every machine. Most samplers need no
more than bounds on most logits (`bounds`): they pick what they would pick from the whole row.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np

from tritium.errors import ArgumentError
from tritium.models.bounds import Bounded, draw, is_many, may_be_among, may_be_drawn, may_be_largest, uniforms

Array = np.ndarray[Any, np.dtype[Any]]
NEAR = (0.1, 1e-2, 1e-3, 1e-4)  # weights beside the largest that top-p sorts before it sorts all


@dataclass
class Context:
    """The tokens so far; the first `prompt` of them were given."""

    tokens: list[int]
    prompt: int

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt :]


Processor = Callable[[Array, Context], Array]  # gives new logits; must not write into those it was given


class Logprobs(NamedTuple):
    """The log-probability of a token by the model itself, before penalties and temperature: natural logarithms."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest tokens, best first


class Largest(NamedTuple):
    """Of a row of logits its largest, and the lowest id among equals; a NaN is larger than all."""

    token: int
    logit: float


class Need(IntEnum):
    """The data that a token is picked from, least first."""

    LARGEST = 0  # the largest logit and its token
    BOUNDS = 1  # bounds on all logits, and those of few tokens
    ROW = 2  # all logits


class Constraint(Protocol):
    """The tokens that one sequence may continue with: asked before every pick, whatever the sampler and the device.

    A `State` holds its own. `rollback` undoes the last calls of `advance`, for tokens that were guessed and not accepted.
    """

    @property
    def is_done(self) -> bool:
        """Return True if the sequence is complete: nothing but its end may follow."""

    def mask(self) -> Array | None:
        """Return which tokens are allowed now, bool [vocab]; None where all are. Tokens beyond its end are forbidden."""

    def advance(self, token: int) -> None:
        """Take the token that was picked; it must be one that the mask allows."""

    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens."""


class SamplingOptions(TypedDict, total=False):
    """The fields of `Sampler` as options of a call."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    repetition_window: int
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float] | None
    seed: int | None
    processors: tuple[Processor, ...]


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Options by which tokens are picked. The default is greedy: the largest logit, the lowest id among equals.

    Typical-p keeps the tokens whose surprise is nearest to the mean, up to a total probability. Repetition looks at the last
    `repetition_window` tokens, prompt included (0: all of them). Frequency and presence count generated tokens only. Without
    a seed one is drawn; the state knows it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    repetition_window: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    processors: tuple[Processor, ...] = ()

    def __post_init__(self) -> None:
        for name, (low, high, text) in _RANGES.items():
            value = getattr(self, name)
            whole = name in _WHOLE
            if (
                isinstance(value, (bool, np.bool_))
                or not isinstance(value, (int, np.integer) if whole else (int, float, np.integer, np.floating))
                or not low <= value <= high
            ):
                raise ArgumentError(f"{name} must be {text}, given {value!r}.")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer))):
            raise ArgumentError(f"seed must be an integer or None, given {self.seed!r}.")
        object.__setattr__(self, "processors", tuple(self.processors))
        if wrong := [p for p in self.processors if not callable(p)]:
            raise ArgumentError(f"processors must be functions (logits, context) -> logits, given {wrong[0]!r}.")
        _check_bias(self.logit_bias)

    def start(self, prompt: Iterable[int] = (), *, stream: int = 0, constraints: Iterable[Constraint] = ()) -> State:
        """Return the state of one sequence. Sequences that share a seed differ by their `stream`. Of `constraints` that together
        allow no token the later ones give way."""
        tokens = [int(t) for t in prompt]
        seed = secrets.randbits(63) if self.seed is None else int(self.seed)
        return State(self, Context(tokens, len(tokens)), seed, stream, tuple(constraints))

    def steps(self) -> list[Processor]:
        """Return the processors that logits pass through before one is picked, in order."""
        steps: list[Processor] = []
        if self.repetition_penalty != 1:
            steps.append(repetition(self.repetition_penalty, self.repetition_window))
        if self.frequency_penalty or self.presence_penalty:
            steps.append(counts(self.frequency_penalty, self.presence_penalty))
        if self.logit_bias:
            steps.append(bias(self.logit_bias))
        return [*steps, *self.processors]


_RANGES = {
    "temperature": (0, 1e4, "0 (greedy) to 10000"),
    "top_k": (0, 1 << 31, "a whole number of tokens to keep, 0 for all"),
    "top_p": (0, 1, "from 0 to 1 (1 keeps all)"),
    "min_p": (0, 1, "from 0 to 1 (0 keeps all)"),
    "typical_p": (0, 1, "from 0 to 1 (1 keeps all)"),
    "repetition_penalty": (1e-4, 1e4, "from 0.0001 to 10000 (1 leaves logits alone)"),
    "repetition_window": (0, 1 << 31, "a whole number of tokens to look back, 0 for all"),
    "frequency_penalty": (-100, 100, "from -100 to 100 (0 leaves logits alone)"),
    "presence_penalty": (-100, 100, "from -100 to 100 (0 leaves logits alone)"),
}
_WHOLE = {"top_k", "repetition_window"}


def usable(values: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """Return those of recommended values that `Sampler` takes, and for the others why not."""
    used: dict[str, float] = {}
    reasons = []
    for name, value in values.items():
        one: dict[str, Any] = {name: value}
        try:
            Sampler(**one)
        except ArgumentError as error:
            reasons.append(f"not used, of what the model file recommends: {error}")
        else:
            used[name] = value
    return used, reasons


def _check_bias(logit_bias: Mapping[int, float] | None) -> None:
    if logit_bias is None:
        return
    if not isinstance(logit_bias, Mapping):
        raise ArgumentError(f"logit_bias must be a mapping of token id to number, given {type(logit_bias).__name__}.")
    for token, value in logit_bias.items():
        known = isinstance(token, (int, np.integer)) and not isinstance(token, bool) and token >= 0
        if not known or not isinstance(value, (int, float)) or math.isnan(value) or value == math.inf:
            raise ArgumentError(
                f"logit_bias must map token ids to numbers below infinity (-inf forbids), given {token!r}: {value!r}."
            )


class Mark(NamedTuple):
    """An earlier position of a sequence: the number of its tokens, and its random numbers where it has any."""

    length: int
    bits: Any


@dataclass(eq=False)
class State:
    """One sequence being sampled: its tokens, its random numbers. Not for two threads at once."""

    sampler: Sampler
    context: Context
    seed: int
    stream: int = 0
    constraints: tuple[Constraint, ...] = ()
    _steps: list[Processor] = field(init=False, repr=False)
    _bits: np.random.Philox = field(init=False, repr=False)
    _logits: Array | None = field(default=None, init=False, repr=False)
    _uniforms: Array | None = field(default=None, init=False, repr=False)  # of the draw under way
    _mask: Array | None = field(default=None, init=False, repr=False)  # for the next token; None: all are allowed
    _is_masked: bool = field(default=False, init=False, repr=False)  # whether `_mask` is that of the next token

    def __post_init__(self) -> None:
        self._steps = self.sampler.steps()
        # NumPy promises the bits of Philox for ever; of its Generator it does not
        self._bits = np.random.Philox(key=np.array([self.seed % 2**64, self.stream], np.uint64))

    @property
    def needs_logits(self) -> bool:
        """Return True if more than the largest logit counts."""
        return self.need is not Need.LARGEST

    @property
    def need(self) -> Need:
        """Return what a token is picked from. Processors of your own, and top-p or typical-p of the whole vocabulary, need every
        logit."""
        s = self.sampler
        if s.processors or (s.temperature and min(s.top_p, s.typical_p) < 1 and not s.top_k):
            return Need.ROW
        return Need.BOUNDS if self._steps or s.temperature or self.allowed is not None else Need.LARGEST

    @property
    def is_done(self) -> bool:
        """Return True if a constraint says that the sequence is complete."""
        return any(c.is_done for c in self.constraints)

    @property
    def allowed(self) -> Array | None:
        """Return which tokens the constraints allow next, bool [at most vocab]; None where all are."""
        if not self._is_masked:
            self._mask, self._is_masked = self._intersection(), True
        return self._mask

    def _intersection(self) -> Array | None:
        common: Array | None = None
        for constraint in self.constraints:
            mask = constraint.mask()
            if mask is not None:
                count = mask.size if common is None else min(mask.size, common.size)
                both = mask if common is None else mask[:count] & common[:count]
                common = both if common is None or both.any() else common
        return common

    def pick(self, logits: Any) -> int:
        """Pick the next token, which joins the context. Instead of a row a `Bounded` is taken where `need` is BOUNDS or less, and a
        `Largest` where it is LARGEST."""
        if isinstance(logits, Largest):
            return self._accept(logits)
        self._uniforms = None
        seed = int(self._bits.random_raw()) if self.sampler.temperature else 0
        self._logits = None if isinstance(logits, Bounded) else _row(logits)
        token = (
            self._pick_bounded(logits, seed)
            if self._logits is None
            else self._choose_allowed(self._processed(self._logits), seed)
        )
        return self._append(token)

    def mark(self) -> Mark:
        """Return where the sequence is, for `rewind`."""
        return Mark(len(self.context.tokens), self._bits.state if self.sampler.temperature else None)

    def rewind(self, mark: Mark) -> None:
        """Forget all picks since a mark, and the random numbers they took: the same logits pick the same tokens again."""
        count = len(self.context.tokens) - mark.length
        if count:
            for constraint in self.constraints:
                constraint.rollback(count)
            del self.context.tokens[mark.length :]
            self._is_masked = False
        if mark.bits is not None:
            self._bits.state = mark.bits
        self._logits = self._uniforms = None

    def _append(self, token: int) -> int:
        for constraint in self.constraints:
            constraint.advance(token)
        self._is_masked = False
        self.context.tokens.append(token)
        return token

    def _processed(self, logits: Array) -> Array:
        row = logits
        for step in self._steps:
            row = step(row, self.context)
        if self._steps and (not isinstance(row, np.ndarray) or row.shape != logits.shape):
            raise ArgumentError(
                f"sampling: a logits processor gave {_describe(row)}, needed an array of shape {logits.shape}."
            )
        return row

    def _choose_allowed(self, row: Array, seed: int) -> int:
        """Return the token that is picked from a whole row of logits."""
        if self.allowed is None:
            return self._choose(row, seed)
        # Forbidden tokens are left out rather than set to -inf: sums over what is left are then rounded alike, whatever was read.
        ids = np.flatnonzero(_sized(self.allowed, row.size))
        if not ids.size:
            raise ArgumentError("sampling: the constraints allow no token of this vocabulary; loosen them.")
        return int(ids[self._choose(row[ids], seed, ids, row.size)])

    def _choose(self, row: Array, seed: int, tokens: Array | None = None, count: int = 0) -> int:
        """Return the place in a row of logits that is picked; `tokens`, in order, of a vocabulary of `count`, where it is a part."""
        s = self.sampler
        if s.temperature == 0:
            place = int(row.argmax())
            _check(float(row[place]), row)
            return place
        places = filter_tokens(row, s.temperature, top_k=s.top_k, top_p=s.top_p, min_p=s.min_p, typical_p=s.typical_p)
        noise = self._noise(seed, row.size) if tokens is None else self._noise(seed, count)[tokens]
        if places is None:
            return draw(row, s.temperature, noise)
        places = np.sort(places)
        return int(places[draw(row[places], s.temperature, noise[places])])

    def _noise(self, seed: int, count: int) -> Array:
        """Return the uniform numbers of this draw, one for each token."""
        if self._uniforms is None:
            self._uniforms = uniforms(seed, count)
        return self._uniforms

    def _pick_bounded(self, bounded: Bounded, seed: int) -> int:
        """Return the token that is picked from the whole row, of which no more is read than can matter."""
        ids = self._decisive(bounded, seed)
        if ids is None or is_many(ids, bounded.size):
            return self._choose_allowed(self._processed(bounded.whole()), seed)
        logits = self._processed_part(ids, bounded.read(ids), bounded.size)
        return int(ids[self._choose(logits, seed, ids, bounded.size)])

    def _processed_part(self, ids: Array, logits: Array, count: int) -> Array:
        """Return what penalties and biases make of the logits of some tokens."""
        if not self._steps:
            return logits
        row = np.full(count, -np.inf, np.float32)
        row[ids] = logits
        return np.asarray(self._processed(row)[ids])

    def _decisive(self, bounded: Bounded, seed: int) -> Array | None:
        """Return the tokens whose logits decide which one is picked, in order; None where all may."""
        changed, count = self._changed(), bounded.size
        mask = None if self.allowed is None else _sized(self.allowed, count)
        outside = changed.size and not 0 <= changed[0] <= changed[-1] < count
        if self.need is Need.ROW or outside or is_many(changed, count):
            return None
        if mask is not None and not is_many(few := np.flatnonzero(mask), count):
            return few if few.size else None
        lower, upper = bounded.lower, bounded.upper
        if changed.size:  # what penalties make of these is known exactly
            lower, upper = lower.copy(), upper.copy()
            lower[changed] = upper[changed] = self._processed_part(changed, bounded.read(changed), count)
        if mask is not None:
            lower, upper = (np.where(mask, bound, np.float32(-np.inf)) for bound in (lower, upper))
        if not math.isfinite(float(lower.max())):
            return None
        ids = self._may_matter(lower, upper, seed)
        ids = np.union1d(ids, changed) if changed.size else ids
        return ids if mask is None else ids[mask[ids]]

    def _may_matter(self, lower: Array, upper: Array, seed: int) -> Array:
        """Return every token whose logit may decide which one is picked."""
        s = self.sampler
        if s.temperature == 0:
            return may_be_largest(lower, upper)
        if s.top_k:
            return may_be_among(lower, upper, s.top_k)
        return may_be_drawn(lower, upper, s.temperature, self._noise(seed, upper.size), _margin(s.temperature, s.min_p))

    def _changed(self) -> Array:
        """Return the tokens whose logits penalties and biases change, in order."""
        s, ids = self.sampler, set[int]()
        if s.repetition_penalty != 1:
            ids.update(_recent(self.context, s.repetition_window))
        if s.frequency_penalty or s.presence_penalty:
            ids.update(self.context.generated)
        ids.update(s.logit_bias or ())
        return np.fromiter(sorted(ids), np.int64, len(ids))

    def _accept(self, best: Largest) -> int:
        if self.needs_logits:
            raise ArgumentError(
                "sampling: the largest logit alone was given, but this sampler needs them all (needs_logits); give pick() the row."
            )
        _check(best.logit, best.token)
        self._logits = None
        return self._append(best.token)

    def logprobs(self, top: int = 0) -> Logprobs:
        """Return the log-probabilities of the token picked last; to be asked before the logits it came from are written over."""
        if self._logits is None:
            raise ArgumentError(
                "sampling: logprobs() needs the row of logits that a token was picked from; call pick() with it."
            )
        return logprobs(self._logits, self.context.tokens[-1], top)


# ---- processors


def repetition(penalty: float, window: int = 64) -> Processor:
    """Return a processor that makes tokens seen lately less likely: positive logits are divided by `penalty`, negative ones multiplied."""

    def step(logits: Array, context: Context) -> Array:
        ids = _ids(set(_recent(context, window)), logits, "repetition_penalty")
        out, seen = logits.copy(), logits[ids]
        out[ids] = np.where(seen < 0, seen * penalty, seen / penalty)
        return out

    return step


def _recent(context: Context, window: int) -> list[int]:
    return context.tokens[-window:] if window else context.tokens


def counts(frequency: float, presence: float) -> Processor:
    """Return a processor that subtracts from generated tokens `frequency` for each time they came and `presence` once."""

    def step(logits: Array, context: Context) -> Array:
        seen = Counter(context.generated)
        ids = _ids(seen, logits, "frequency_penalty")
        out = logits.copy()
        out[ids] -= np.fromiter(seen.values(), logits.dtype, len(seen)) * frequency + presence
        return out

    return step


def bias(values: Mapping[int, float]) -> Processor:
    """Return a processor that adds a number to the logits of some tokens; -inf forbids them."""

    def step(logits: Array, context: Context) -> Array:
        ids = _ids(values, logits, "logit_bias")
        out = logits.copy()
        out[ids] += np.fromiter(values.values(), logits.dtype, len(values))
        return out

    return step


def _ids(tokens: Iterable[int], logits: Array, what: str) -> Array:
    ids = np.fromiter(tokens, np.int64)
    if ids.size and not (ids.min() >= 0 and ids.max() < logits.size):
        wrong = ids[(ids < 0) | (ids >= logits.size)][0]
        raise ArgumentError(f"sampling: {what} meets token id {wrong}, but there are {logits.size} logits.")
    return ids


# ---- candidates


def candidates(
    logits: Any,
    temperature: float = 1.0,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
) -> tuple[Array, Array]:
    """Return the tokens that may be drawn and their probabilities, summing to 1.

    Top-k keeps the k largest; typical-p the fewest of those whose mass reaches p of theirs, the nearest to their mean surprise
    first; top-p the fewest whose mass reaches p, the likeliest first; min-p those at least p times as likely as the likeliest. At
    least one stays; among equals the lower id. Likeliest first where top-k or top-p cut.
    """
    row = _row(logits)
    ids = filter_tokens(row, temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p)
    weights = _weights(row if ids is None else row[ids], float(row.max()), temperature)
    return np.arange(row.size) if ids is None else ids, weights / weights.sum()


def filter_tokens(
    row: Array, temperature: float, *, top_k: int, top_p: float, min_p: float, typical_p: float = 1.0
) -> Array | None:
    """Return the tokens that may be drawn, as `candidates` does; None where they are all."""
    best = _check(float(row.max()), row)
    ids: Array | None = None  # all
    if (
        top_k
    ):  # also where all are kept: sums below are rounded by the order of the largest, whatever part of a row this is
        ids = largest(row, min(top_k, row.size))
    if typical_p < 1:
        among = row if ids is None else row[ids]
        inner = _typical(_weights(among, best, temperature), typical_p)
        ids = inner if ids is None else ids[inner]
    if top_p < 1:
        among = row if ids is None else row[ids]
        inner = largest(among, _nucleus(_weights(among, best, temperature), top_p))
        ids = inner if ids is None else ids[inner]
    if min_p > 0:
        among = row if ids is None else row[ids]
        near = np.flatnonzero(among.astype(np.float64) - best >= _margin(temperature, min_p))
        ids = near if ids is None else ids[near]
    return ids


def _margin(temperature: float, min_p: float) -> float:
    """Return how far below the largest a logit may be, as a negative number, if its token is p times as likely at least."""
    return temperature * math.log(min_p) if min_p > 0 else -math.inf


def _weights(row: Array, best: float, temperature: float) -> Array:
    with np.errstate(over="ignore", under="ignore"):  # a tiny temperature leaves nothing but the largest
        return np.asarray(np.exp((row.astype(np.float64) - best) / temperature))


def largest(row: Array, k: int) -> Array:
    """Return the ids of the k largest, largest first, among equals the lowest ids."""
    least = np.partition(row, row.size - k)[row.size - k]
    above = np.flatnonzero(row > least)
    ids = np.concatenate([above, np.flatnonzero(row == least)[: k - above.size]])
    return ids[np.argsort(-row[ids], kind="stable")]


def _typical(weights: Array, p: float) -> Array:
    """Return the places of the fewest weights that reach p of the sum, those first whose surprise is nearest to the mean; in order."""
    share = weights / weights.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -np.log(share)
        mean = float(np.where(share > 0, share * surprise, 0.0).sum())
    order = np.argsort(np.abs(surprise - mean), kind="stable")
    count = int(np.searchsorted(np.cumsum(share[order]), p, side="left")) + 1
    return np.sort(order[: min(count, int((share > 0).sum()))])


def _nucleus(weights: Array, p: float) -> int:
    """Return how many of the largest weights reach p of the sum."""
    need = p * weights.sum()
    near = weights
    for least in NEAR:
        some = weights[weights >= least]
        if some.sum() >= need:
            near = some
            break
    ends = np.cumsum(np.sort(near)[::-1])
    return min(int(np.searchsorted(ends, need, side="left")) + 1, near.size)


def logprobs(logits: Any, token: int, top: int = 0) -> Logprobs:
    """Return the logarithm of the probability of `token` and of the `top` likeliest tokens."""
    row = _row(logits)
    best = _check(float(row.max()), row)
    total = best + math.log(float(np.exp(row - np.float32(best)).sum(dtype=np.float64)))
    ids = largest(row, min(top, row.size)) if top > 0 else np.arange(0)
    return Logprobs(token, float(row[token]) - total, tuple((int(i), float(row[i]) - total) for i in ids))


# ---- checks


def _row(logits: Any) -> Array:
    row = np.asarray(logits, np.float32)
    if row.ndim != 1 or not row.size:
        raise ArgumentError(f"sampling: one row of logits is needed, given an array of shape {row.shape}.")
    return row


def _sized(mask: Array, count: int) -> Array:
    """Return a mask of `count` tokens: logits beyond a vocabulary belong to no token."""
    return mask[:count] if mask.size >= count else np.concatenate([mask, np.zeros(count - mask.size, bool)])


def _check(best: float, source: Array | int) -> float:
    """Return the largest logit; raise unless it is a number: NaN and +inf come to the top of max and argmax. source: the row it is
    from, or its token where no more is known."""
    if math.isfinite(best):
        return best
    if best == -math.inf:
        raise ArgumentError(
            "sampling: every token is forbidden (all logits are -inf); loosen logit_bias, the constraints or the logits processors."
        )
    raise ArgumentError(
        f"sampling: {_wrong(source)}; finite numbers or -inf are needed. The weights or a logits processor are at fault."
    )


def _wrong(source: Array | int) -> str:
    if isinstance(source, int):
        return f"some logits are NaN or +inf, that of token {source} among them"
    wrong = np.flatnonzero(~np.isfinite(source) & ~np.isneginf(source))
    return f"{wrong.size} of {source.size} logits are NaN or +inf, the first of token {wrong[0]}"


def _describe(value: Any) -> str:
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__

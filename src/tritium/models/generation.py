"""Text from a session: tokens picked one after another until something ends it, for one prompt or many at once.

The session holds what was read before: a prompt that begins as the last one did is read only from where they part. Also
the perplexity of a text.

    for piece in stream(session, tokenizer, "In the beginning", max_tokens=20):
        ...  # piece.text
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from time import perf_counter
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack

import numpy as np

from tritium.errors import ArgumentError, ContextError, nearest
from tritium.models.bounds import Bounded
from tritium.models.caching.memory import SlotMemory
from tritium.models.caching.prefixes import PAGE, common
from tritium.models.sampling import Constraint, Largest, Logprobs, Need, Sampler, State
from tritium.models.speculation.control import Costs
from tritium.models.speculation.speculator import DraftSession, Guesser, Speculator
from tritium.models.text.tokenizer import Stream, Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]
Prompt = str | Sequence[int]  # a text, or its tokens
Finish = Literal["stop", "length", "context"]
BLOCK = 64  # tokens of a text whose mean is taken as one sample: neighbours are not independent


class Slots(Protocol):
    """The part of a session that generation uses."""

    @property
    def capacity(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def memory(self) -> SlotMemory: ...
    @property
    def costs(self) -> Costs: ...
    @property
    def unspeculative(self) -> str: ...
    @property
    def unshareable(self) -> str: ...
    @property
    def pool(self) -> int: ...
    @property
    def grain(self) -> int: ...
    def spare(self, slot: int) -> None: ...
    def tokens(self, slot: int) -> list[int]: ...
    def adapter(self, slot: int) -> str | None: ...
    def use(self, slot: int, adapter: str | None) -> None: ...
    def reusable(self, slot: int, count: int) -> int: ...
    def truncate(self, slot: int, count: int) -> None: ...
    def extend(self, slot: int, ids: Sequence[int]) -> Array: ...
    def append(self, slot: int, ids: Sequence[int]) -> None: ...
    def extend_bounded(self, slot: int, ids: Sequence[int]) -> Array | Bounded: ...
    def extend_all(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> list[Array]: ...
    def adopt(self, slot: int, tokens: Sequence[int]) -> None: ...
    def share(self, source: int, slot: int, count: int) -> None: ...
    def step(self, slots: Sequence[int], ids: Sequence[int]) -> Array: ...
    def bounded(self, slots: Sequence[int], ids: Sequence[int]) -> Sequence[Array | Bounded]: ...
    def pick(
        self, slots: Sequence[int], ids: Sequence[int], *, ahead: bool = False
    ) -> tuple[list[int], list[float]]: ...
    def verify(
        self, slots: Sequence[int], ids: Sequence[Sequence[int]], *, whole: bool = False
    ) -> list[list[Array | Bounded]]: ...
    def score(self, slot: int, ids: Sequence[int]) -> Array: ...
    def scored(self, slot: int, ids: Sequence[int], top: int) -> list[Logprobs]: ...


@dataclass(frozen=True)
class Generation:
    """The text that was generated, and how long it took. `finish_reason`: stop (a last token or a stop string), length, context."""

    text: str
    tokens: tuple[int, ...]  # without the last token that ended it
    prompt_tokens: int
    reused: int  # tokens of the prompt that the cache already held
    finish_reason: Finish
    first_token_s: float  # from the call
    prefill_s: float
    decode_s: float  # of all steps
    steps: int  # tokens picked after the first, with the one that ended the text
    seed: int
    logprobs: tuple[Logprobs, ...] = ()
    guessed: int = 0  # tokens that were guessed and verified
    accepted: int = 0  # of those, tokens that were right

    @property
    def tokens_per_s(self) -> float:
        """Return the rate of decoding, without the first token; NaN where there was no step."""
        return self.steps / self.decode_s if self.steps and self.decode_s > 0 else math.nan

    @property
    def prefill_tokens_per_s(self) -> float:
        """Return the rate of prefill, without what was reused."""
        return (self.prompt_tokens - self.reused) / self.prefill_s if self.prefill_s > 0 else math.nan


@dataclass(frozen=True)
class Piece:
    """One token and the text it made certain, which may be none. The last piece has `finish` and the whole `generation`."""

    text: str
    token: int | None  # None: a last token, which is not part of the text
    finish: Finish | None = None
    logprobs: Logprobs | None = None
    generation: Generation | None = None


# ---- stop strings


class Stops:
    """Text up to the first stop string. What may yet become one is held back, however the text is cut.

    Of several stop strings the one that is complete first counts, of those that end together the longest.
    """

    def __init__(self, stop: str | Iterable[str] | None = ()) -> None:
        try:
            self.strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
        except TypeError:
            raise ArgumentError(f"stop must be a text or several, given {stop!r}.") from None
        if wrong := [s for s in self.strings if not isinstance(s, str) or not s]:
            raise ArgumentError(f"stop strings must be texts of at least one character, given {wrong[0]!r}.")
        self.found: str | None = None
        self._held = ""

    def push(self, text: str) -> str:
        """Add text; return what can be given out now."""
        if self.found is not None or not text:
            return ""
        held = self._held + text
        ends = [(start + len(s), start, s) for s in self.strings if (start := held.find(s)) >= 0]
        if ends:
            _, start, self.found = min(ends)
            self._held = ""
            return held[:start]
        count = self._may_begin(held)
        self._held = held[len(held) - count :]
        return held[: len(held) - count]

    def flush(self) -> str:
        """Return what was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _may_begin(self, text: str) -> int:
        """Return how many characters at the end a stop string begins with."""
        most = min(len(text), max(map(len, self.strings), default=1) - 1)
        return next((n for n in range(most, 0, -1) if any(s.startswith(text[-n:]) for s in self.strings)), 0)


# ---- one sequence


@dataclass(frozen=True)
class _Limits:
    max_tokens: int | None
    capacity: int
    eos: frozenset[int]
    logprobs: int | None


@dataclass(eq=False)
class _Writer:
    """A sequence while it is being written."""

    index: int
    prompt: list[int]
    state: State
    text: Stream
    stops: Stops
    limits: _Limits
    begun: float  # when it was asked for
    adapter: str | None = None
    slot: int = -1
    reused: int = 0
    first_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    steps: int = 0
    tokens: list[int] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    done: bool = False
    guesser: Guesser | None = None
    guessed: int = 0
    accepted: int = 0

    @property
    def room(self) -> int:
        """Return how many guesses may follow the last token: within the context, and not beyond the last token it may have."""
        room = self.limits.capacity - len(self.prompt) - len(self.tokens)
        return room if self.limits.max_tokens is None else min(room, self.limits.max_tokens - len(self.tokens) - 1)

    def take_all(self, rows: Sequence[Array | Bounded | Largest], guesses: Sequence[int]) -> list[Piece]:
        """Take tokens as long as they are those that were guessed, and the one after them."""
        pieces = list[Piece]()
        for i, row in enumerate(rows):
            pieces.append(self.take(row))
            if self.done or i == len(guesses) or self.tokens[-1] != guesses[i]:
                break
        self.guessed, self.accepted = self.guessed + len(guesses), self.accepted + len(pieces) - 1
        return pieces

    @property
    def need(self) -> Need:
        return self.state.need if self.limits.logprobs is None else Need.ROW

    @property
    def at_last(self) -> bool:
        """Return True if the next token is the last that it may have."""
        return len(self.tokens) + 1 == self.limits.max_tokens

    def take(self, logits: Array | Bounded | Largest) -> Piece:
        """Pick the next token; return its piece, which says whether it was the last."""
        token = self.state.pick(logits)
        if token in self.limits.eos:
            return self._end("stop", None, "", None)
        logprobs = None if self.limits.logprobs is None else self.state.logprobs(self.limits.logprobs)
        self.tokens.append(token)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        text = self.stops.push(self.text.push(token))
        full = len(self.prompt) + len(self.tokens) > self.limits.capacity  # the last token has no place to stand
        at_end = len(self.tokens) == self.limits.max_tokens
        complete = self.stops.found or self.state.is_done
        finish: Finish | None = "stop" if complete else "length" if at_end else "context" if full else None
        if finish:
            return self._end(finish, token, text, logprobs)
        self.parts.append(text)
        return Piece(text, token, None, logprobs)

    def _end(self, finish: Finish, token: int | None, text: str, logprobs: Logprobs | None) -> Piece:
        if self.stops.found is None:
            text += self.stops.push(self.text.flush()) + self.stops.flush()
        self.parts.append(text)
        self.done = True
        return Piece(text, token, finish, logprobs)

    def whole(self, finish: Finish) -> Generation:
        return Generation(
            text="".join(self.parts), tokens=tuple(self.tokens), prompt_tokens=len(self.prompt), reused=self.reused,
            finish_reason=finish, first_token_s=self.first_s, prefill_s=self.prefill_s, decode_s=self.decode_s,
            steps=self.steps, seed=self.state.seed, logprobs=tuple(self.logprobs), guessed=self.guessed, accepted=self.accepted,
        )  # fmt: skip

    def with_generation(self, piece: Piece) -> Piece:
        """Return the last piece with the whole generation; the others as they are."""
        if piece.finish is None:
            return piece
        return Piece(piece.text, piece.token, piece.finish, piece.logprobs, self.whole(piece.finish))


# ---- prompts to text


class TextOptions(TypedDict, total=False):
    """Options of a text, whether a model or a session writes it."""

    sampler: Sampler | None  # picks the tokens; None: the largest logit wins
    max_tokens: int | None  # None goes on until the context is full
    stop: str | Iterable[str] | None  # texts that end it and are not part of it
    logprobs: int | None  # how many alternatives to tell of each token
    ignore_eos: bool  # last tokens do not end it
    speculate: bool | None  # guess tokens, for the same ones at another speed; None: where the device can
    adapter: str | Sequence[str | None] | None  # the name of one of the model's; of several prompts also one for each


class SessionOptions(TextOptions, total=False):
    """Options of a text that a session writes."""

    stop_tokens: Iterable[int]  # further tokens that end it
    constrain: Callable[[], Iterable[Constraint]]  # makes the constraints of each sequence: `models.text.constraints`
    clock: Callable[[], float]
    draft: DraftSession | None  # of a smaller model, that guesses


def stream(session: Slots, tokenizer: Tokenizer, prompt: Prompt, **options: Unpack[SessionOptions]) -> Iterator[Piece]:
    """Yield the continuation of a prompt, token by token. Do not use the session in between."""
    return (piece for _, piece in stream_batch(session, tokenizer, [prompt], **options))


def generate(session: Slots, tokenizer: Tokenizer, prompt: Prompt, **options: Unpack[SessionOptions]) -> Generation:
    """Return the whole continuation of a prompt."""
    return generate_batch(session, tokenizer, [prompt], **options)[0]


def generate_batch(
    session: Slots, tokenizer: Tokenizer, prompts: Sequence[Prompt], **options: Unpack[SessionOptions]
) -> list[Generation]:
    """Return the continuations of several prompts, decoded together."""
    generations = {i: p.generation for i, p in stream_batch(session, tokenizer, prompts, **options) if p.generation}
    return [generations[i] for i in range(len(prompts))]


def stream_batch(
    session: Slots, tokenizer: Tokenizer, prompts: Sequence[Prompt], **options: Unpack[SessionOptions]
) -> Iterator[tuple[int, Piece]]:
    """Yield pieces of several continuations as they come, with the number of their prompt.

    One takes a slot as soon as another has ended. A prompt's random numbers depend on the seed and its number alone, not on how many
    are decoded together."""
    check_options(options, SessionOptions.__optional_keys__)
    if isinstance(prompts, str):
        raise ArgumentError("A list of prompts is needed, given one text; use stream() or generate().")
    eos = frozenset(options.get("stop_tokens", ())) | (frozenset() if options.get("ignore_eos") else tokenizer.eos)
    clock = options.get("clock", perf_counter)
    limits, begun = _Limits(options.get("max_tokens"), session.capacity, eos, options.get("logprobs")), clock()
    sampler, stop = options.get("sampler") or Sampler(), Stops(options.get("stop")).strings
    writers = []
    adapter = options.get("adapter")
    adapters = [adapter] * len(prompts) if isinstance(adapter, str | None) else list(adapter)
    if len(adapters) != len(prompts):
        raise ArgumentError(
            f"adapter: {len(adapters)} were given for {len(prompts)} prompts; give one for all, or one for each."
        )
    for i, prompt in enumerate(prompts):
        ids = fit(session, tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        state = sampler.start(ids, stream=i, constraints=options.get("constrain", tuple)())
        writers.append(_Writer(i, ids, state, Stream(tokenizer), Stops(stop), limits, begun, adapters[i]))
    speculate, draft = options.get("speculate"), options.get("draft")
    if (draft is not None or speculate is True) and session.unspeculative:
        raise ArgumentError(f"speculation: {session.unspeculative}.")
    on = speculate is not False and not session.unspeculative
    return _run(session, deque(writers), Speculator(session.costs, draft) if on else None, clock)


MAX_ALTERNATIVES = 1 << 16


def check_options(options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise for options that do not exist or mean nothing, before anything is read."""
    for name in options:
        if name not in known:
            raise ArgumentError(f"generate: unknown option {name!r}.{nearest(name, known)}")
    max_tokens, logprobs = options.get("max_tokens"), options.get("logprobs")
    if max_tokens is not None and (isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1):
        raise ArgumentError(f"max_tokens must be 1 or more, or None to fill the context, given {max_tokens!r}.")
    if logprobs is not None and (
        isinstance(logprobs, bool) or not isinstance(logprobs, int) or not 0 <= logprobs <= MAX_ALTERNATIVES
    ):
        raise ArgumentError(f"logprobs must be a number of alternatives from 0 on, or None, given {logprobs!r}.")
    if not isinstance(options.get("ignore_eos", False), bool):
        raise ArgumentError(f"ignore_eos must be True or False, given {options['ignore_eos']!r}.")
    Stops(options.get("stop"))


def fit(session: Slots, ids: Sequence[int]) -> list[int]:
    """Return the tokens of a prompt; raise where the context cannot hold them. The length is looked at first."""
    count = len(ids) if isinstance(ids, Sequence) and not isinstance(ids, (str, bytes)) else 0
    if count > session.capacity:
        raise ContextError(
            f"The prompt has {count} tokens; the context holds {session.capacity}. Leave out {count - session.capacity}"
            " tokens or more, or take a model (or a session) with a larger context."
        )
    try:
        tokens = [index(i) for i in ids] if not isinstance(ids, (str, bytes)) else None
    except TypeError:
        tokens = None
    if tokens is None:
        raise ArgumentError(f"A prompt is a text or a list of token numbers, given {ids!r:.80}.")
    if not tokens:
        raise ArgumentError("The prompt has no tokens; give some text.")
    if len(tokens) > session.capacity:
        return fit(session, tokens)
    return tokens


def _run(
    session: Slots, waiting: deque[_Writer], speculator: Speculator | None, clock: Callable[[], float]
) -> Iterator[tuple[int, Piece]]:
    free, active = set(range(session.slots)), list[_Writer]()
    while waiting or active:
        while waiting and free:
            for writer, piece in _prefill(session, waiting, free, clock):
                if writer.done:
                    free.add(writer.slot)
                    session.spare(writer.slot)
                else:
                    active.append(writer)
                    writer.guesser = None if speculator is None else speculator.start(writer.state, writer.slot)
                yield writer.index, writer.with_generation(piece)
        if not active:
            continue
        yield from _decode(session, active, speculator, bool(waiting and free), clock)
        for slot in [w.slot for w in active if w.done]:
            free.add(slot)
            session.spare(slot)
        active = [w for w in active if not w.done]


def _decode(
    session: Slots, active: list[_Writer], speculator: Speculator | None, waited: bool, clock: Callable[[], float]
) -> Iterator[tuple[int, Piece]]:
    """Decode one step for all: yield a token of each, and as many guessed ones more as were right."""
    start = clock()
    slots, last = [w.slot for w in active], [w.tokens[-1] for w in active]
    held = [len(w.prompt) + len(w.tokens) - 1 for w in active]
    guesses = guess_tokens(speculator, active, lambda w: w.room)
    need, begun = max(w.need for w in active), perf_counter()
    if any(guesses):
        tokens = [[token, *more] for token, more in zip(last, guesses, strict=True)]
        rows: Sequence[Sequence[Any]] = session.verify(slots, tokens, whole=need is Need.ROW)
    else:
        ahead = not waited and not any(w.at_last for w in active)
        rows = [[row] for row in decode(session, slots, last, need, ahead=ahead)]
    if speculator is not None:
        speculator.record(sum(map(len, rows)), perf_counter() - begun)
    pieces = [w.take_all(*each) for w, *each in zip(active, rows, guesses, strict=True)]
    seconds = clock() - start
    for w, before, more in zip(active, held, pieces, strict=True):
        w.decode_s, w.steps = w.decode_s + seconds, w.steps + len(more)
        if any(guesses):
            session.truncate(w.slot, before + len(more))
        if speculator is not None and speculator.has_guesses and w.guesser is not None:
            speculator.learn(w.guesser, w.state.context.tokens[-len(more) :])
    for w, more in zip(
        active, pieces, strict=True
    ):  # after all were taken: what the reader does cannot disturb the others
        for piece in more:
            yield w.index, w.with_generation(piece)


class Guessing(Protocol):
    """A sequence that may guess."""

    @property
    def guesser(self) -> Guesser | None: ...


_Sequence = TypeVar("_Sequence", bound=Guessing)


def guess_tokens(
    speculator: Speculator | None, sequences: Sequence[_Sequence], room: Callable[[_Sequence], int]
) -> Sequence[Sequence[int]]:
    """Return the guesses of each sequence that are to be verified in the next step; `room`: how many more one may have."""
    if speculator is None or speculator.rests():
        return [()] * len(sequences)
    known = [s.guesser for s in sequences if s.guesser is not None]
    if len(known) < len(sequences):
        return [()] * len(sequences)
    return speculator.guess(known, [room(s) for s in sequences])


def decode(
    session: Slots, slots: Sequence[int], ids: Sequence[int], need: Need, ahead: bool = False
) -> Iterable[Array | Bounded | Largest]:
    """Append a token to each slot; return what is needed of the logits after it: the less it is, the less is read or brought back.
    ahead: the same slots will most likely have one more after it."""
    if need is not Need.LARGEST:
        return session.step(slots, ids) if need is Need.ROW else session.bounded(slots, ids)
    tokens, logits = session.pick(slots, ids, ahead=ahead)
    return [Largest(*each) for each in zip(tokens, logits, strict=True)]


def _prefill(
    session: Slots, waiting: deque[_Writer], free: set[int], clock: Callable[[], float]
) -> list[tuple[_Writer, Piece]]:
    """Read the prompts of the first that wait, together, and take a token of each; the last token of a prompt is read in any case,
    for its logits. One that begins like another of them waits for the next call, and has that beginning copied."""
    start = clock()
    writers = list[_Writer]()
    while waiting and free and not any(_begins_alike(session, w, waiting[0]) for w in writers):
        writer = waiting.popleft()
        _place(session, writer, free)
        writers.append(writer)
    parts = [w.prompt[w.reused :] for w in writers]
    logits: Sequence[Array | Bounded]
    if len(writers) == 1 and writers[0].need is not Need.ROW:
        logits = [session.extend_bounded(writers[0].slot, parts[0])]
    else:
        logits = session.extend_all([w.slot for w in writers], parts)
    seconds = clock() - start
    pieces = []
    for writer, row in zip(writers, logits, strict=True):
        writer.prefill_s = seconds
        pieces.append((writer, writer.take(row)))
        writer.first_s = clock() - writer.begun
    return pieces


def _begins_alike(session: Slots, writer: _Writer, other: _Writer) -> bool:
    """Return True if a prompt that is about to be read has a page or more of another one that no slot holds."""
    shared = min(common(writer.prompt, other.prompt), len(other.prompt) - 1) if writer.adapter == other.adapter else 0
    return shared - writer.reused >= PAGE


def _place(session: Slots, writer: _Writer, free: set[int]) -> None:
    """Give a writer the free slot that holds most of its prompt; what another slot has more of is copied from there."""
    most = len(writer.prompt) - 1
    same = {s for s in range(session.slots) if session.adapter(s) == writer.adapter}
    shared = {
        s: session.reusable(s, min(common(session.tokens(s), writer.prompt), most)) if s in same else 0
        for s in range(session.slots)
    }
    writer.slot = max(sorted(free), key=lambda slot: shared[slot])
    session.use(writer.slot, writer.adapter)
    source = max(shared, key=lambda slot: shared[slot])
    free.remove(writer.slot)
    if shared[source] - shared[writer.slot] >= PAGE:
        session.share(source, writer.slot, shared[source])
        writer.reused = shared[source]
    else:
        session.truncate(writer.slot, shared[writer.slot])
        writer.reused = shared[writer.slot]


# ---- perplexity


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of a text under a model. The error is that of the mean over blocks of neighbouring tokens."""

    tokens: int  # scored
    windows: int
    nats: float  # the mean of -log p
    error: float  # its standard error; NaN for a text too short to tell
    nbytes: int  # that the scored tokens stand for; 0: not known

    @property
    def value(self) -> float:
        return _exp(self.nats)

    @property
    def value_error(self) -> float:
        return self.value * self.error

    @property
    def bits_per_byte(self) -> float:
        """Return the bits per byte of text; NaN without a tokenizer: tokens alone have no bytes."""
        return self.nats * self._bits

    @property
    def bits_per_byte_error(self) -> float:
        return self.error * self._bits

    @property
    def _bits(self) -> float:
        return self.tokens / self.nbytes / math.log(2) if self.nbytes else math.nan

    def __str__(self) -> str:
        def format_value(value: float, error: float) -> str:
            return f"{value:.4f}" + ("" if math.isnan(error) else f" ± {error:.4f}")

        many = f"{self.tokens} token{'s' * (self.tokens > 1)} in {self.windows} window{'s' * (self.windows > 1)}"
        more = f", {format_value(self.bits_per_byte, self.bits_per_byte_error)} bits per byte" if self.nbytes else ""
        short = "; too short to tell how sure that is" if math.isnan(self.error) else ""
        return f"perplexity {format_value(self.value, self.value_error)} over {many}{more}{short}"


def perplexity(
    session: Slots, ids: Sequence[int], *, context: int | None = None, stride: int | None = None, bos: int | None = None,
    tokenizer: Tokenizer | None = None, progress: Callable[[Perplexity], None] | None = None, slot: int = 0,
) -> Perplexity:  # fmt: skip
    """Return the perplexity of a text in windows of `context` tokens (default: what the session holds). Every token is scored once.

    A window begins `context - stride` tokens before the first it scores, so all but the text's beginning are told with at least
    so many tokens before them; a smaller stride (default: half) costs more and tells more. `bos` is put before every window
    and not scored; without it the first token of the text is not scored either. `progress` hears the result so far.
    """
    ids = [int(i) for i in (ids[1:] if bos is not None and ids[:1] == [bos] else ids)]
    head = [] if bos is None else [bos]
    room, stride = _window(session, len(ids), context, stride, head)
    logprobs: list[Array] = []
    first = end = 1 - len(head)
    windows = 0
    while end < len(ids):
        before = 0 if not windows else max(end - (room - stride), 0)
        after = min(end + stride if windows else room, len(ids))
        session.truncate(slot, 0)
        session.extend(slot, [*head, *ids[before:end]])
        logprobs.append(np.asarray(session.score(slot, ids[end:after]), np.float64))
        end, windows = after, windows + 1
        if progress is not None and end < len(ids):
            progress(_measured(logprobs, windows, ids[first:end], tokenizer))
    result = _measured(logprobs, windows, ids[first:], tokenizer)
    if progress is not None:
        progress(result)
    return result


def _window(session: Slots, count: int, context: int | None, stride: int | None, head: list[int]) -> tuple[int, int]:
    """Return the tokens of the text in a window, and how many of them are scored in all windows but the first."""
    context = session.capacity if context is None else context
    if isinstance(context, bool) or not isinstance(context, int) or context < 2:
        raise ArgumentError(f"perplexity: context must be 2 tokens or more, given {context!r}.")
    if context > session.capacity:
        raise ContextError(
            f"perplexity: windows of {context} tokens were asked, the session holds {session.capacity}; open it with more."
        )
    room = context - len(head)
    stride = max(room // 2, 1) if stride is None else stride
    most = room - (not head)  # something must stand before the first scored token
    if isinstance(stride, bool) or not isinstance(stride, int) or not 1 <= stride <= most:
        raise ArgumentError(f"perplexity: stride must be 1 to {most} for windows of {context}, given {stride!r}.")
    if count + len(head) < 2:
        raise ArgumentError(f"perplexity: a text of {2 - len(head)} tokens or more is needed, given {count}.")
    return room, stride


def _measured(parts: list[Array], windows: int, scored: Sequence[int], tokenizer: Tokenizer | None) -> Perplexity:
    nats = -np.concatenate(parts)
    if np.isnan(nats).any():
        raise ArgumentError(
            f"perplexity: {int(np.isnan(nats).sum())} of {nats.size} log-probabilities are NaN; the model's weights are at fault."
        )
    size = BLOCK if nats.size >= 2 * BLOCK else 1
    means = nats[: nats.size // size * size].reshape(-1, size).mean(axis=1)
    error = (
        float(means.std(ddof=1) / math.sqrt(means.size)) if means.size > 1 and np.isfinite(means).all() else math.nan
    )
    nbytes = sum(len(tokenizer.bytes_of(t)) for t in scored) if tokenizer is not None else 0
    return Perplexity(nats.size, windows, float(nats.mean()), error, nbytes)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf

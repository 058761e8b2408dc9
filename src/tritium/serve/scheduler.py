"""Many requests, one session: continuous batching in one thread that owns the session.

Each turn admits waiting requests to free slots in the order they came, reads a piece of the prompts, and decodes one token for every
running request in a single call. What a request has read and said is kept in a prefix cache for those that begin alike, and one that
begins like a prompt under way waits for it. A reader takes what is there when it likes: pieces it has not taken yet are merged, so
nobody waits for a slow one and memory is bounded by the tokens asked for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from weakref import WeakSet

from tritium.errors import ArgumentError, BusyError, TritiumError
from tritium.models.caching.prefixes import PAGE, Node, PrefixCache, common, default_limit
from tritium.models.generation import Slots, Stops, decode, fit, guess_tokens
from tritium.models.sampling import Constraint, Logprobs, Need, Sampler, State
from tritium.models.speculation.speculator import DraftSession, Guesser, Speculator
from tritium.models.text.tokenizer import Stream, Tokenizer
from tritium.serve.metrics import Meter
from tritium.settings import log


@dataclass(frozen=True)
class Request:
    """A prompt and how to continue it. `stream` tells requests apart that share a seed; `logprobs` is how many alternatives
    to report, and `prompt_logprobs` the same for the tokens of the prompt. `ends` are the tokens that end it (None: the
    model's own)."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampler: Sampler = field(default_factory=Sampler)
    stop: tuple[str, ...] = ()
    stream: int = 0
    logprobs: int | None = None
    constrain: Callable[[], tuple[Constraint, ...]] = tuple
    ends: frozenset[int] | None = None
    prompt_logprobs: int | None = None
    adapter: str | None = None  # by name; None: the model as it is


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reused_tokens: int = 0  # of the prompt, which were in the slot or in the prefix cache


@dataclass(frozen=True)
class Event:
    """New text and tokens since the last event. `finish` is None while more is to come, else stop, length, context or cancelled."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[Logprobs, ...]  # of the tokens, where asked for
    finish: str | None
    usage: Usage


@dataclass
class RequestCounts:
    """Requests of all schedulers of this process that ended: cheap sums, always on."""

    done: int = 0
    failed: int = 0


schedulers: WeakSet[Scheduler] = WeakSet()  # of this process; the live view asks what runs and waits
counters = RequestCounts()


class Ticket:
    """One request on its way. `for event in ticket` waits for what comes; `take()` does not wait."""

    def __init__(self, request: Request, cancel: Callable[[Ticket], None]) -> None:
        self.request = request
        self.submitted = perf_counter()
        self.cancelled = False
        self.first_s: float | None = None  # from the request to its first token
        self.stopped_by: str | None = None  # the stop string that ended it, when it has ended
        self.prompt_logprobs: list[
            Logprobs
        ] = []  # of all tokens of the prompt but the first; whole when the first event comes
        self._cancel = cancel
        self._changed = threading.Condition()
        self._notify: Callable[[], None] | None = None
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[Logprobs] = []
        self._finish: str | None = None
        self._error: TritiumError | None = None
        self._usage = Usage(len(request.prompt))
        self._new = self._over = False

    def take(self) -> Event | None:
        """Return what came since the last call, or None. Raise what ended the request, once all before it was taken."""
        with self._changed:
            if not self._new:
                return None
            if self._error is not None and not self._texts and not self._tokens:
                raise self._error
            event = Event(
                "".join(self._texts), tuple(self._tokens), tuple(self._logprobs), self._finish, self._usage
            )  # fmt: skip
            for pieces in (self._texts, self._tokens, self._logprobs):
                pieces.clear()
            self._new = self._error is not None
            self._over = self._finish is not None
            return event

    def __iter__(self) -> Iterator[Event]:
        while not self._over:
            with self._changed:
                while not self._new:
                    self._changed.wait()
            if (event := self.take()) is not None:
                yield event

    def listen(self, notify: Callable[[], None]) -> None:
        """`notify()` is called from the scheduler's thread whenever `take()` has something new; it must not wait."""
        with self._changed:
            self._notify = notify
            new = self._new
        if new:
            notify()

    @property
    def usage(self) -> Usage:
        """Return the tokens so far, also those that were not taken yet."""
        return self._usage

    @property
    def finish(self) -> str | None:
        """Return why it ended, None while it runs or if it failed."""
        return self._finish

    @property
    def error(self) -> TritiumError | None:
        """Return what ended it, where it failed."""
        return self._error

    def cancel(self) -> None:
        """Give up: the slot is free after the call to the model that is under way. Harmless when all is over."""
        self._cancel(self)

    # Called by the scheduler.

    def put(
        self,
        usage: Usage,
        text: str = "",
        tokens: Sequence[int] = (),
        logprobs: Sequence[Logprobs] = (),
        *,
        finish: str | None = None,
        error: TritiumError | None = None,
    ) -> None:
        with self._changed:
            if self._finish is not None or self._error is not None:
                return
            self._usage, self._finish, self._error = usage, finish, error
            if text:
                self._texts.append(text)
            self._tokens += tokens
            self._logprobs += logprobs
            if not (text or tokens or finish or error):
                return
            self._new = True
            self._changed.notify_all()
            notify = self._notify
        if notify is not None:
            try:
                notify()
            except Exception:  # a listener's fault must not end the others
                log.exception("a listener failed")


@dataclass(eq=False)
class _Run:
    """A request in its slot."""

    ticket: Ticket
    slot: int
    state: State
    text: Stream
    stops: Stops
    length: int  # tokens that stand in the slot
    reused: int
    node: Node | None = None  # of the prefix cache, which it keeps there
    leader: tuple[_Run, int] | None = None  # who is reading the same beginning, and how many tokens it has
    guesser: Guesser | None = None
    marks: set[int] = field(default_factory=set)  # of a recurrent model: lengths of the prompt at which states are kept
    next: int | None = None  # the token picked last; None while the prompt is being read
    count: int = 0  # tokens generated
    seen: int = 0  # characters that came out of the tokens
    sent: int = 0  # characters given to the ticket
    picked_at: float | None = None  # when the last token was
    held: deque[tuple[int, int, Logprobs | None]] = field(default_factory=deque)  # (begins at, token, …), not yet sent

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.ticket.request.prompt

    @property
    def adapter(self) -> str | None:
        return self.ticket.request.adapter

    def piece(self, most: int) -> tuple[int, ...]:
        """Return the next tokens of the prompt, up to the next mark."""
        stop = min([self.length + most, *(m for m in self.marks if m > self.length)])
        return self.prompt[self.length : stop]

    @property
    def need(self) -> Need:
        return self.state.need if self.ticket.request.logprobs is None else Need.ROW

    @property
    def scored(self) -> bool:
        """Return True if the log-probabilities of the prompt are to be told."""
        return self.ticket.request.prompt_logprobs is not None

    @property
    def at_last(self) -> bool:
        """Return True if the next token is the last that the request may have."""
        return self.count + 1 == self.ticket.request.max_tokens

    @property
    def usage(self) -> Usage:
        return Usage(len(self.ticket.request.prompt), self.count, self.reused)


class Scheduler:
    """Runs requests on the slots of a session. `queue` more may wait; beyond that `submit` raises BusyError.

    prefill_chunk: tokens of prompts between two steps of decoding. prefix_cache: most bytes of the prefixes kept for other requests,
    0 for none; by default what the slots take when full, at most 1 GiB. speculate: guess tokens and verify several at once, where that
    is measured to be faster (None: if the session can); draft: a session of a smaller model that guesses, with as many slots.
    """

    def __init__(
        self, session: Slots, tokenizer: Tokenizer, *, queue: int = 64, prefill_chunk: int = 128,
        prefix_cache: int | None = None, speculate: bool | None = None, draft: DraftSession | None = None,
    ) -> None:  # fmt: skip
        if queue < 0 or prefill_chunk < 1:
            raise ArgumentError(
                f"Scheduler: queue must be 0 or more and prefill_chunk 1 or more, given {queue} and {prefill_chunk}."
            )
        self.session, self.tokenizer = session, tokenizer
        self.queue, self.prefill_chunk = queue, prefill_chunk
        memory = session.memory
        if prefix_cache and session.unshareable:
            raise ArgumentError(f"prefix_cache: {session.unshareable}; give 0.")
        usual = 0 if session.unshareable else default_limit(memory, session.slots, session.capacity)
        limit = usual if prefix_cache is None else prefix_cache
        self.prefixes = PrefixCache(memory, limit)
        if (speculate or draft is not None) and session.unspeculative:
            raise ArgumentError(f"speculation: {session.unspeculative}.")
        if draft is not None and draft.slots < session.slots:
            raise ArgumentError(f"draft: a session of {session.slots} slots is needed, given one of {draft.slots}.")
        on = speculate is not False and not session.unspeculative
        self.speculator = Speculator(session.costs, draft) if on else None
        self._waiting: deque[Ticket] = deque()
        self._runs: dict[int, _Run] = {}  # by slot; changed by the thread alone
        self._reading: deque[_Run] = deque()  # those whose prompt is being read, in turn
        self._used: dict[int, int] = dict.fromkeys(range(session.slots), 0)  # the turn each slot was last given away
        self._turns = 0
        self.meter = Meter()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="tritium-scheduler", daemon=True)
        self._thread.start()
        schedulers.add(self)

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close(drain=False)

    @property
    def running(self) -> int:
        """Slots in use."""
        return len(self._runs)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, request: Request) -> Ticket:
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Ticket]:
        """All of them, or none: BusyError when the queue has no room for all."""
        for r in requests:
            self._check(r)
        tickets = [Ticket(r, self._cancel) for r in requests]
        with self._wake:
            if self._closing:
                raise BusyError("the scheduler is shutting down and takes no more requests.")
            room = self.queue + self.session.slots - len(self._runs) - len(self._waiting)
            if len(tickets) > room:
                raise BusyError(
                    f"{len(self._runs)} requests run and {len(self._waiting)} wait: there is no room for {len(tickets)} more"
                    " now. Try again later."
                )
            self._waiting += tickets
            self._wake.notify()
        return tickets

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests; with `drain` let those taken end, for at most `timeout` seconds; cancel the rest."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if drain:
            self._thread.join(timeout)
        with self._wake:
            for ticket in (*self._waiting, *(run.ticket for run in self._runs.values())):
                ticket.cancelled = True
            self._wake.notify()
        self._thread.join()

    def _check(self, r: Request) -> None:
        fit(self.session, r.prompt)
        if r.max_tokens < 0:
            raise ArgumentError(f"max_tokens must be 0 or more, given {r.max_tokens}.")
        if wrong := [t for t in r.prompt if not 0 <= t < self.tokenizer.vocab_size]:
            raise ArgumentError(f"the prompt has token id {wrong[0]}; ids are 0 to {self.tokenizer.vocab_size - 1}.")

    def _cancel(self, ticket: Ticket) -> None:
        with self._wake:
            ticket.cancelled = True
            self._wake.notify()

    # The thread.

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._waiting or self._runs or self._closing):
                    self._wake.wait()
                if not self._waiting and not self._runs:
                    return
            try:
                self._turn()
            except Exception as e:  # a fault of ours: nobody may wait for ever for it
                log.exception("the scheduler failed")
                for run in list(self._runs.values()):
                    self._fail(run, e)

    def _turn(self) -> None:
        self._turns += 1
        self._drop()
        self._admit()
        self._read()
        self._decode()

    def _drop(self) -> None:
        """Remove cancelled requests from the queue and their slots."""
        with self._wake:
            cancelled_tickets = [t for t in self._waiting if t.cancelled]
            for ticket in cancelled_tickets:
                self._waiting.remove(ticket)
        for ticket in cancelled_tickets:
            ticket.put(Usage(len(ticket.request.prompt)), finish="cancelled")
        for run in [r for r in self._runs.values() if r.ticket.cancelled]:
            self._end(run, finish="cancelled")

    def _admit(self) -> None:
        """Give free slots to waiting requests, first come, first served."""
        while self._waiting and len(self._runs) < self.session.slots and self._has_room(self._waiting[0].request):
            ticket, run = self._waiting[0], None
            try:
                run = self._start(ticket)
                self._reading.append(run)
            except Exception as e:
                ticket.put(Usage(len(ticket.request.prompt)), error=to_tritium_error(e))
            with self._wake:  # from the queue to its slot in one move: nobody sees it in neither
                self._waiting.popleft()
                if run is not None:
                    self._runs[run.slot], self._used[run.slot] = run, self._turns

    def _has_room(self, request: Request) -> bool:
        """Return True if the KV cache holds all that a request may take, beside those that run: none of them then fails for want of it."""
        requests, grain = [*(run.ticket.request for run in self._runs.values()), request], self.session.grain
        ends = [min(len(r.prompt) + r.max_tokens, self.session.capacity) for r in requests]
        return sum(-(-end // grain) * grain for end in ends) <= self.session.pool

    def _start(self, ticket: Ticket) -> _Run:
        r = ticket.request
        slot, shared = self._best([s for s in range(self.session.slots) if s not in self._runs], r.prompt, r.adapter)
        self.session.use(slot, r.adapter)
        scored = r.prompt_logprobs is not None
        shared = 0 if scored else shared  # every token is told by the one before it
        state = r.sampler.start(r.prompt, stream=r.stream, constraints=r.constrain())
        run = _Run(ticket, slot, state, Stream(self.tokenizer), Stops(r.stop), shared, shared)
        self.meter.queued.observe(perf_counter() - ticket.submitted)
        self.session.truncate(slot, shared)
        self.prefixes.counts.queries += len(r.prompt)
        self.prefixes.counts.hits += shared
        if self.prefixes.recurrent and len(r.prompt) > 1:
            run.marks.add(len(r.prompt) - 1)
        if not scored:
            self._load(run)
            self._follow(run)
        return run

    def _load(self, run: _Run) -> None:
        """Copy into a slot what the prefix cache has more of its prompt; the last token is read in any case, for its logits."""
        match = self.prefixes.match(run.prompt, len(run.prompt) - 1, run.adapter)
        if self.prefixes.recurrent and match.known - max(match.length, run.length) >= PAGE:
            run.marks.add(match.known)  # others began alike: the next one finds a state here
        if match.length <= run.length:
            return
        self.session.truncate(run.slot, 0 if self.prefixes.recurrent else run.length)
        self.prefixes.load(run.slot, match, 0 if self.prefixes.recurrent else run.length)
        self.session.adopt(run.slot, run.prompt[: match.length])
        self.prefixes.counts.hits += match.length - run.length
        run.length = run.reused = match.length

    def _follow(self, run: _Run) -> None:
        """Let a request wait for the one that is reading most of its prompt, if that is a page or more."""
        if not self.prefixes.limit:
            return
        best = run.length + PAGE - 1
        for other in (o for o in self._reading if o.adapter == run.adapter):
            shared = min(common(other.prompt, run.prompt), len(run.prompt) - 1)
            if shared > max(best, other.length):
                best, run.leader = shared, (other, shared)
        if run.leader is not None and self.prefixes.recurrent:
            run.leader[0].marks.add(best)

    def _waits(self, run: _Run) -> bool:
        """Return True while another request reads what this one begins with; then have it copied."""
        if run.leader is None:
            return False
        other, shared = run.leader
        if other.next is None and other.length < shared and self._runs.get(other.slot) is other:
            return True
        run.leader = None
        self._load(run)
        return False

    def _best(self, free: Sequence[int], prompt: Sequence[int], adapter: str | None) -> tuple[int, int]:
        """Return the slot where most is gained, and how many of its tokens are reused: tokens reused less tokens thrown away;
        among equals the longest unused. What was computed with another adapter is of no use."""
        candidates = []
        for slot in free:
            tokens = self.session.tokens(slot)
            # The last token of a prompt is always read again: its logits are what the first pick needs.
            alike = common(tokens, prompt) if self.session.adapter(slot) == adapter else 0
            shared = self.session.reusable(slot, min(alike, len(prompt) - 1))
            candidates.append((2 * shared - len(tokens), -self._used[slot], slot, shared))
        *_, slot, shared = max(candidates)
        return slot, shared

    def _read(self) -> None:
        """Read a piece of the prompts under way, in turn and together; a smaller piece while others wait for their next token."""
        decoding = len(self._runs) > len(self._reading)
        room = max(1, self.prefill_chunk // 4) if decoding else self.prefill_chunk
        parts: list[tuple[_Run, tuple[int, ...]]] = []
        for run in list(self._reading):
            if room and not self._waits(run):
                parts.append((run, run.piece(room)))
                room -= len(parts[-1][1])
        if not parts:
            return
        for run, _ in parts:
            self._reading.remove(run)
        for run, ids in [p for p in parts if p[0].scored]:
            self._read_scored(run, ids)
        if not (parts := [p for p in parts if not p[0].scored]):
            return
        try:
            rows = self._extend(parts)
        except Exception as e:
            self._read_alone(parts, e)
            return
        for (run, ids), logits in zip(parts, rows, strict=True):
            self._has_read(run, len(ids), logits)

    def _extend(self, parts: list[tuple[_Run, tuple[int, ...]]]) -> Sequence[Any]:
        """Read pieces of prompts; return for each what its next token is picked from. Of one that is read by itself the head is read
        as far as that needs it: not at all before the last piece."""
        run, ids = parts[0]
        if len(parts) == 1 and run.length + len(ids) < len(run.prompt):
            self.session.append(run.slot, ids)
            return [None]
        if len(parts) == 1 and run.need is not Need.ROW:
            return [self.session.extend_bounded(run.slot, ids)]
        return self.session.extend_all([run.slot for run, _ in parts], [ids for _, ids in parts])

    def _read_alone(self, parts: list[tuple[_Run, tuple[int, ...]]], error: Exception) -> None:
        """After reading together failed: one by one, so that only those end that cannot go on."""
        for run, ids in parts:
            try:
                if len(parts) == 1:
                    raise error
                logits = self.session.extend(run.slot, ids)
            except Exception as e:
                self._fail(run, e)
            else:
                self._has_read(run, len(ids), logits)

    def _has_read(self, run: _Run, count: int, logits: Any) -> None:
        run.length += count
        try:
            self._keep(run, run.prompt[: run.length])
            if run.length < len(run.prompt):
                self._reading.append(run)
            elif not run.ticket.request.max_tokens:
                self._end(run, finish="length")
            else:
                if self.speculator is not None:
                    run.guesser = self.speculator.start(run.state, run.slot)
                self._pick(run, logits)
        except Exception as e:
            self._fail(run, e)

    def _read_scored(self, run: _Run, ids: Sequence[int]) -> None:
        try:
            logits = self._score(run, ids)
        except Exception as e:
            self._fail(run, e)
        else:
            self._has_read(run, len(ids), logits)

    def _score(self, run: _Run, ids: Sequence[int]) -> Any:
        """Read a piece of a prompt and tell its tokens' log-probabilities; the logits after it where it is the last piece."""
        r, logits = run.ticket.request, None
        rest = ids if run.length else ids[1:]
        if not run.length:
            logits = self.session.extend(run.slot, ids[:1])
        if rest:
            run.ticket.prompt_logprobs += self.session.scored(run.slot, rest, r.prompt_logprobs or 0)
        if (
            rest and run.length + len(ids) == len(r.prompt) and r.max_tokens
        ):  # the last token once more, for the logits that a token is picked from
            before = len(r.prompt) - 1
            prefix_length = self.session.reusable(run.slot, before)
            self.session.truncate(run.slot, prefix_length)
            logits = self.session.extend(run.slot, r.prompt[prefix_length:])
        return logits

    def _keep(self, run: _Run, tokens: Sequence[int]) -> None:
        """Keep what is in a slot for others that begin alike; of a recurrent model where somebody may go on from."""
        if not self.prefixes.limit or not tokens:
            return
        node = self.prefixes.store(run.slot, tokens, run.adapter)
        self.prefixes.pin(node)
        self._let_go(run)
        run.node = node
        if run.length in run.marks:
            self.prefixes.snapshot(run.slot, tokens, run.adapter)

    def _let_go(self, run: _Run) -> None:
        if run.node is not None:
            self.prefixes.release(run.node)
            run.node = None

    def _decode(self) -> None:
        """Decode one token for every request past prefill."""
        runs = [run for run in self._runs.values() if run.next is not None]
        full = [run for run in runs if run.length >= self.session.capacity]
        for run in full:
            self._end(run, finish="context")
        if not (runs := [run for run in runs if run not in full]):
            return
        guesses = guess_tokens(self.speculator, runs, self._room)
        try:
            ahead = not (self._reading or self._waiting or any(run.at_last for run in runs))
            rows = self._step(runs, guesses, ahead)
        except Exception as e:
            self._decode_alone(runs, e)
            return
        for run, more, guessed in zip(runs, rows, guesses, strict=True):
            self._advance(run, more, guessed)

    def _room(self, run: _Run) -> int:
        """Return how many guesses may follow the next token of a request."""
        return min(self.session.capacity - run.length, run.ticket.request.max_tokens - run.count) - 1

    def _step(self, runs: list[_Run], guesses: Sequence[Sequence[int]], ahead: bool = False) -> Sequence[Sequence[Any]]:
        """One more token in the slots of these, and guesses after it; what the next ones are picked from."""
        slots, ids = [run.slot for run in runs], [run.next for run in runs if run.next is not None]
        need, start = max(run.need for run in runs), perf_counter()
        if any(guesses):
            tokens = [[token, *more] for token, more in zip(ids, guesses, strict=True)]
            rows: Sequence[Sequence[Any]] = self.session.verify(slots, tokens, whole=need is Need.ROW)
        else:
            rows = [[row] for row in decode(self.session, slots, ids, need, ahead)]
        if self.speculator is not None:
            self.speculator.record(sum(map(len, rows)), perf_counter() - start)
        return rows

    def _decode_alone(self, runs: list[_Run], error: Exception) -> None:
        """After a common step failed: one by one, so that only those end that cannot go on."""
        for run in runs:
            try:
                if len(runs) == 1:
                    raise error
                self.session.truncate(run.slot, run.length)
                rows = self._step([run], [()])[0]
            except Exception as e:
                self._fail(run, e)
            else:
                self._advance(run, rows, ())

    def _advance(self, run: _Run, rows: Sequence[Any], guesses: Sequence[int]) -> None:
        """Pick tokens as long as they are those that were guessed, and the one after them."""
        picks = 0
        try:
            for i, row in enumerate(rows):
                run.length += 1
                picks += 1
                self._pick(run, row)
                if self._runs.get(run.slot) is not run or i == len(guesses) or run.next != guesses[i]:
                    break
            if guesses:
                self.session.truncate(run.slot, run.length)
            if self.speculator is not None and self.speculator.has_guesses and run.guesser is not None:
                self.speculator.learn(run.guesser, run.state.context.tokens[-picks:])
        except Exception as e:
            self._fail(run, e)

    def _pick(self, run: _Run, logits: Any) -> None:
        """Sample, turn into text, and send what is certain."""
        r = run.ticket.request
        token = run.next = run.state.pick(logits)
        now, before = perf_counter(), run.picked_at
        self.meter.token(now - (run.ticket.submitted if before is None else before), before is None)
        if before is None:
            run.ticket.first_s = now - run.ticket.submitted
        run.picked_at = now
        run.count += 1
        if token in (self.tokenizer.eos if r.ends is None else r.ends):
            self._end(run, finish="stop")
            return
        run.held.append((run.seen, token, None if r.logprobs is None else run.state.logprobs(r.logprobs)))
        piece = run.text.push(token)
        run.seen += len(piece)
        text = run.stops.push(piece)
        self._send(run, text)
        if run.stops.found or run.state.is_done:
            self._end(run, finish="stop")
        elif run.count >= r.max_tokens:
            self._end(run, finish="length")

    def _send(self, run: _Run, text: str, *, rest: bool = False, **end: Any) -> None:
        """Text, and the tokens whose text has begun to be sent."""
        run.sent += len(text)
        out = []
        while run.held and (rest or run.held[0][0] < run.sent):
            out.append(run.held.popleft())
        logprobs = [p for _, _, p in out if p is not None]
        run.ticket.put(run.usage, text, [token for _, token, _ in out], logprobs, **end)

    def _end(self, run: _Run, *, finish: str | None = None, error: TritiumError | None = None) -> None:
        """Give the slot back, then tell the reader; what was held back is sent unless a stop string cut it off."""
        run.ticket.stopped_by = run.stops.found
        self.meter.end(finish, len(run.ticket.request.prompt), run.count, perf_counter() - run.ticket.submitted)
        counters.done += error is None
        counters.failed += error is not None
        if error is None:
            with suppress(Exception):  # it is there for others; this one has ended well
                run.marks.add(run.length)
                self._keep(run, self.session.tokens(run.slot)[: run.length])
        self._let_go(run)
        self.session.spare(run.slot)
        whole = finish is not None and not run.stops.found
        text = run.stops.push(run.text.flush()) + run.stops.flush() if whole else ""
        with self._wake:
            self._runs.pop(run.slot, None)
        with suppress(ValueError):
            self._reading.remove(run)
        self._send(run, text, rest=whole, finish=finish, error=error)

    def _fail(self, run: _Run, e: Exception) -> None:
        with suppress(Exception):  # what stands in the slot is no longer known
            self.session.truncate(run.slot, 0)
        self._end(run, error=to_tritium_error(e))


def to_tritium_error(e: Exception) -> TritiumError:
    """Return an error as its reader sees it; what we did not raise on purpose goes to the log whole."""
    if isinstance(e, TritiumError):
        return e
    log.error("a request failed", exc_info=e)
    return TritiumError(f"the model failed: {type(e).__name__}: {e}")

"""From a checked request to prompts of tokens, and from what the scheduler tells to answers, whole or streamed.

Knows nothing of HTTP, keys or routes: an answer is a JSON value or the pieces of an event stream.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritium.errors import ArgumentError, BusyError, ContextError, PackageError, TritiumError
from tritium.escape import visible
from tritium.models.sampling import Constraint, Logprobs
from tritium.models.text.chat import render
from tritium.models.text.constraints import constrain
from tritium.serve.protocols import openai
from tritium.serve.protocols.common import Dialect, Labels, Part, ProtocolError, Query, Reply
from tritium.serve.protocols.tools import CallPart, CallReader, Style, style_of
from tritium.serve.scheduler import Event, Request, Scheduler, Ticket, Usage

if TYPE_CHECKING:
    from tritium.models.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Answers:
    """Answers of one model, served as `name`. `max_tokens` bounds each of them, `max_choices` how many one request gets."""

    scheduler: Scheduler
    name: str
    max_tokens: int | None = None
    max_choices: int = 16
    template: str | None = None  # for chats, instead of the model's own
    tool_style: str | None = None  # how the model writes tool calls, instead of what its template shows

    @property
    def tokenizer(self) -> Tokenizer:
        return self.scheduler.tokenizer

    def read(self, body: bytes, dialect: Dialect) -> tuple[Query, list[tuple[int, ...]]]:
        """Return what the bytes of a body ask for, and the tokens of its prompts; ProtocolError says what is wrong with it."""
        query = dialect.read(body, context=self.scheduler.session.capacity, choices=self.max_choices)
        self.check_model(query.model)
        self._check_counts(query)
        return query, self.prompts(query)

    def requests(self, query: Query, prompts: Sequence[tuple[int, ...]]) -> list[Request]:
        """Return the requests for the scheduler; where there is a format it is compiled, which may take long."""
        try:
            constrain = self._constrain(query)
        except PackageError as e:
            raise ProtocolError(501, str(e)) from None
        common: dict[str, Any] = {
            "max_tokens": self._longest(query), "sampler": query.sampler, "stop": query.stop, "logprobs": query.logprobs,
            "constrain": constrain, "ends": self._ends(query), "prompt_logprobs": query.logprobs if query.echo else None,
            "adapter": self.adapter(query.model),
        }  # fmt: skip
        return [Request(p, stream=stream, **common) for p in prompts for stream in range(query.n)]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names by which requests ask: of the model, and of each of its adapters."""
        return self.name, *getattr(self.scheduler.session, "adapters", ())

    def adapter(self, name: str | None) -> str | None:
        """Return the adapter that a request asks for by the name of its model."""
        return None if name in (None, self.name) else name

    def check_model(self, name: str | None) -> None:
        """Raise ProtocolError for the name of another model; an adapter's name is that of the model with it."""
        if name not in (None, *self.names):
            message = f"The model {visible(name or '')!r} is not served here; {', '.join(map(repr, self.names))} is."
            raise ProtocolError(404, message, param="model", code="model_not_found")

    def prompts(self, query: Query) -> list[tuple[int, ...]]:
        """Return the tokens of each prompt of a request."""
        try:
            if query.chat:
                return [self._chat_prompt(query)]
            return [self._prompt(p, bos=query.adds_bos) for p in query.prompts]
        except PackageError as e:
            raise ProtocolError(501, str(e)) from None
        except TritiumError as e:
            param = "messages" if query.chat else "prompt"
            raise ProtocolError(400, str(e), param=param, code="invalid_value") from None

    def _longest(self, query: Query) -> int:
        """Return how many tokens an answer may have."""
        bounds = (query.max_tokens, self.max_tokens, self.scheduler.session.capacity)
        return min(b for b in bounds if b is not None)

    def _ends(self, query: Query) -> frozenset[int]:
        """Return the tokens that end an answer."""
        return frozenset(query.stop_token_ids) | (frozenset() if query.ignore_eos else self.tokenizer.eos)

    def _constrain(self, query: Query) -> Callable[[], tuple[Constraint, ...]]:
        """Return what makes the constraints of an answer; a format is compiled here, beside the event loop."""
        form, param = (None, "") if query.form is None else query.form
        if query.toolbox is not None:
            form, param = query.toolbox.format(self._style()), "tools"
        try:
            return constrain(
                self.tokenizer, form, least=query.min_tokens, ends=self._ends(query), among=query.allowed_token_ids
            )
        except ArgumentError as e:
            raise ProtocolError(400, f"{param} is not valid: {e}", param=param, code="invalid_value") from None

    def _style(self) -> Style:
        """Return how the model writes tool calls; ProtocolError where it was not made for them."""
        try:
            return style_of(self._template(), self.tool_style)
        except ArgumentError as e:
            raise ProtocolError(400, str(e), param="tools", code="unsupported_parameter") from None

    def _check_counts(self, query: Query) -> None:
        count = query.n * max(1, len(query.prompts))
        if count > self.max_choices:
            raise openai.too_many_choices(count, self.max_choices)
        lists = {"logit_bias": query.sampler.logit_bias or (), "stop_token_ids": query.stop_token_ids}
        lists["allowed_token_ids"] = query.allowed_token_ids or ()
        for param, tokens in lists.items():
            if wrong := [t for t in tokens if t >= self.tokenizer.vocab_size]:
                raise ProtocolError(
                    400, f"{param} has token id {wrong[0]}; this model has 0 to {self.tokenizer.vocab_size - 1}.",
                    param=param, code="invalid_value",
                )  # fmt: skip
        if query.allowed_token_ids == ():
            raise ProtocolError(
                400, "allowed_token_ids is empty: no token may follow.", param="allowed_token_ids", code="invalid_value"
            )

    def _prompt(self, prompt: str | tuple[int, ...], *, bos: bool) -> tuple[int, ...]:
        if isinstance(prompt, tuple):
            return prompt
        first = self.tokenizer.bos
        return tuple(self.tokenizer.encode(prompt, bos=bos) or ([] if first is None else [first]))

    def _template(self) -> str:
        template = self.template or self.tokenizer.chat_template
        if template is None:
            raise ArgumentError(
                f"The model {self.name!r} has no chat template: it was not made for chats. Use /v1/completions, or start the server"
                " with a chat_template."
            )
        return template

    def _chat_prompt(self, query: Query) -> tuple[int, ...]:
        t, names = self.tokenizer, dict(query.template_values)
        if query.toolbox is not None:
            self._style()
            names["tools"] = [tool.shown for tool in query.toolbox.tools]
        text = render(self._template(), query.messages, bos_token=t.bos_token, eos_token=t.eos_token, **names)
        return tuple(t.encode(text))

    async def whole(self, query: Query, tickets: list[Ticket], dialect: Dialect) -> dict[str, Any]:
        """Return the answer when all of it is there."""
        replies = [Reply() for _ in tickets]
        async with aclosing(self._parts(query, tickets)) as parts:
            async for i, part in parts:
                replies[i].add(part)
        return dialect.whole(query, self._labels(query), replies)

    async def streamed(self, query: Query, tickets: list[Ticket], dialect: Dialect) -> AsyncGenerator[bytes, None]:
        """Yield the answer as it comes, in server-sent events; an error is the last of them."""
        writer, usages = dialect.writer(query, self._labels(query)), [Usage() for _ in tickets]
        try:
            for event in writer.begin(len(tickets)):
                yield event
            async with aclosing(self._parts(query, tickets)) as parts:
                async for i, part in parts:
                    usages[i] = part.usage
                    for event in writer.part(i, part):
                        yield event
            for event in writer.end(usages):
                yield event
        except TritiumError as e:
            yield dialect.failed(protocol_error(e))
        except ProtocolError as e:
            yield dialect.failed(e)

    async def _parts(self, query: Query, tickets: list[Ticket]) -> AsyncGenerator[tuple[int, Part], None]:
        """Yield the parts of all answers as they come: prompts that are echoed, text, and tool calls where there are tools."""
        readers: dict[int, CallReader] = {}
        if query.toolbox is not None:
            style, names = self._style(), [tool.name for tool in query.toolbox.tools]
            readers = {i: CallReader(style, names) for i in range(len(tickets))}
        begun = set[int]()
        async with aclosing(follow(tickets)) as events:
            async for i, e in events:
                if i not in begun and query.echo:
                    yield i, Part(self._echo(query, i), (), self._prompt_logprobs(query, tickets[i]), None, e.usage)
                begun.add(i)
                text, calls = e.text, tuple[CallPart, ...]()
                if i in readers:
                    pieces = [readers[i].push(e.text), *([readers[i].flush()] if e.finish else [])]
                    text, calls = "".join(p.text for p in pieces), tuple(c for p in pieces for c in p.calls)
                if text or calls or e.logprobs or e.finish:
                    yield i, Part(text, calls, e.logprobs, e.finish, e.usage, tickets[i].stopped_by)

    def _prompt_logprobs(self, query: Query, ticket: Ticket) -> tuple[Logprobs, ...]:
        """Return the log-probabilities of a prompt where the request asks for them; NaN for the first token."""
        if query.logprobs is None:
            return ()
        return Logprobs(ticket.request.prompt[0], math.nan, ()), *ticket.prompt_logprobs

    def _labels(self, query: Query) -> Labels:
        return Labels(uuid.uuid4().hex, int(time.time()), query.model or self.name, self.tokenizer)

    def _echo(self, query: Query, index: int) -> str:
        prompt = query.prompts[index // query.n]
        return prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)


async def follow(tickets: Iterable[Ticket]) -> AsyncGenerator[tuple[int, Event], None]:
    """Yield the events of several tickets as they come, each with the number of its ticket."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()

    def notify() -> None:
        with suppress(RuntimeError):  # the loop has ended, nobody listens
            loop.call_soon_threadsafe(ready.set)

    going = dict(enumerate(tickets))
    for ticket in going.values():
        ticket.listen(notify)
    while going:
        await ready.wait()
        ready.clear()
        for i, ticket in list(going.items()):
            while i in going and (event := ticket.take()) is not None:
                if event.finish == "cancelled":
                    raise ProtocolError(
                        503, "The server is shutting down; the answer was cut off.", code="shutting_down"
                    )
                if event.finish is not None:
                    del going[i]
                yield i, event


STATUS: tuple[tuple[type[TritiumError], int, str | None], ...] = (
    (BusyError, 503, "busy"),
    (ContextError, 400, "context_length_exceeded"),
    (ArgumentError, 400, "invalid_value"),
    (TritiumError, 500, None),
)


def protocol_error(e: TritiumError) -> ProtocolError:
    """Return an error of the model or scheduler as the one that a client receives."""
    status, code = next((status, code) for kind, status, code in STATUS if isinstance(e, kind))
    return ProtocolError(status, str(e), code=code, headers={"retry-after": "1"} if status == 503 else None)

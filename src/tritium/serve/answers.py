"""From a checked request to prompts of tokens, and from what the scheduler tells to answers, whole or streamed.

Knows nothing of HTTP, keys or routes: an answer is a JSON value or the pieces of an event stream.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritium.errors import ArgumentError, BusyError, ContextError, PackageError, TritiumError
from tritium.escape import visible
from tritium.models.sampling import Constraint, Logprobs
from tritium.models.text.chat import render
from tritium.models.text.constraints import constrain
from tritium.serve.protocols import openai
from tritium.serve.protocols.common import Asked, Dialect, Labels, Part, ProtocolError, Reply
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

    def prepare(self, body: bytes, dialect: Dialect) -> tuple[Asked, list[Request]]:
        """From the bytes of a body to the requests for the scheduler; ProtocolError says what is wrong with it."""
        asked = dialect.read(body, context=self.scheduler.session.capacity, choices=self.max_choices)
        self.check_model(asked.model)
        self._check_counts(asked)
        prompts = self.prompts(asked)
        try:
            constrain = self._constrain(asked)
        except PackageError as e:
            raise ProtocolError(501, str(e)) from None
        common: dict[str, Any] = {
            "max_tokens": self._longest(asked), "sampler": asked.sampler, "stop": asked.stop, "logprobs": asked.logprobs,
            "constrain": constrain, "ends": self._ends(asked), "prompt_logprobs": asked.logprobs if asked.echo else None,
        }  # fmt: skip
        return asked, [Request(p, stream=stream, **common) for p in prompts for stream in range(asked.n)]

    def check_model(self, name: str | None) -> None:
        """Raise ProtocolError for the name of another model."""
        if name not in (None, self.name):
            message = f"The model {visible(name or '')!r} is not served here; {self.name!r} is."
            raise ProtocolError(404, message, param="model", code="model_not_found")

    def prompts(self, asked: Asked) -> list[tuple[int, ...]]:
        """Return the tokens of each prompt of a request."""
        try:
            if asked.chat:
                return [self._chat_prompt(asked)]
            return [self._prompt(p, bos=asked.adds_bos) for p in asked.prompts]
        except PackageError as e:
            raise ProtocolError(501, str(e)) from None
        except TritiumError as e:
            param = "messages" if asked.chat else "prompt"
            raise ProtocolError(400, str(e), param=param, code="invalid_value") from None

    def _longest(self, asked: Asked) -> int:
        """Return how many tokens an answer may have."""
        bounds = (asked.max_tokens, self.max_tokens, self.scheduler.session.capacity)
        return min(b for b in bounds if b is not None)

    def _ends(self, asked: Asked) -> frozenset[int]:
        """Return the tokens that end an answer."""
        return frozenset(asked.stop_token_ids) | (frozenset() if asked.ignore_eos else self.tokenizer.eos)

    def _constrain(self, asked: Asked) -> Callable[[], tuple[Constraint, ...]]:
        """Return what makes the constraints of an answer; a format is compiled here, beside the event loop."""
        form, param = (None, "") if asked.form is None else asked.form
        if asked.toolbox is not None:
            form, param = asked.toolbox.format(self._style()), "tools"
        try:
            return constrain(
                self.tokenizer, form, least=asked.min_tokens, ends=self._ends(asked), among=asked.allowed_token_ids
            )
        except ArgumentError as e:
            raise ProtocolError(400, f"{param} is not valid: {e}", param=param, code="invalid_value") from None

    def _style(self) -> Style:
        """Return how the model writes tool calls; ProtocolError where it was not made for them."""
        try:
            return style_of(self._template(), self.tool_style)
        except ArgumentError as e:
            raise ProtocolError(400, str(e), param="tools", code="unsupported_parameter") from None

    def _check_counts(self, asked: Asked) -> None:
        count = asked.n * max(1, len(asked.prompts))
        if count > self.max_choices:
            raise openai.too_many_choices(count, self.max_choices)
        lists = {"logit_bias": asked.sampler.logit_bias or (), "stop_token_ids": asked.stop_token_ids}
        lists["allowed_token_ids"] = asked.allowed_token_ids or ()
        for param, tokens in lists.items():
            if wrong := [t for t in tokens if t >= self.tokenizer.vocab_size]:
                raise ProtocolError(
                    400, f"{param} has token id {wrong[0]}; this model has 0 to {self.tokenizer.vocab_size - 1}.",
                    param=param, code="invalid_value",
                )  # fmt: skip
        if asked.allowed_token_ids == ():
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

    def _chat_prompt(self, asked: Asked) -> tuple[int, ...]:
        t, names = self.tokenizer, dict(asked.template_values)
        if asked.toolbox is not None:
            self._style()
            names["tools"] = [tool.shown for tool in asked.toolbox.tools]
        text = render(self._template(), asked.messages, bos_token=t.bos_token, eos_token=t.eos_token, **names)
        return tuple(t.encode(text))

    async def whole(self, asked: Asked, tickets: list[Ticket], dialect: Dialect) -> dict[str, Any]:
        """The answer when all of it is there."""
        replies = [Reply() for _ in tickets]
        async with aclosing(self._parts(asked, tickets)) as parts:
            async for i, part in parts:
                replies[i].add(part)
        return dialect.whole(asked, self._labels(), replies)

    async def streamed(self, asked: Asked, tickets: list[Ticket], dialect: Dialect) -> AsyncGenerator[bytes, None]:
        """The answer as it comes, in server-sent events. An error is told as the last of them."""
        writer, usages = dialect.writer(asked, self._labels()), [Usage() for _ in tickets]
        try:
            for event in writer.begin(len(tickets)):
                yield event
            async with aclosing(self._parts(asked, tickets)) as parts:
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

    async def _parts(self, asked: Asked, tickets: list[Ticket]) -> AsyncGenerator[tuple[int, Part], None]:
        """The parts of all answers as they come: prompts that are echoed, text, and tool calls where there are tools."""
        readers: dict[int, CallReader] = {}
        if asked.toolbox is not None:
            style, names = self._style(), [tool.name for tool in asked.toolbox.tools]
            readers = {i: CallReader(style, names) for i in range(len(tickets))}
        begun = set[int]()
        async with aclosing(follow(tickets)) as events:
            async for i, e in events:
                if i not in begun and asked.echo:
                    yield i, Part(self._echo(asked, i), (), self._prompt_logprobs(asked, tickets[i]), None, e.usage)
                begun.add(i)
                text, calls = e.text, tuple[CallPart, ...]()
                if i in readers:
                    pieces = [readers[i].push(e.text), *([readers[i].flush()] if e.finish else [])]
                    text, calls = "".join(p.text for p in pieces), tuple(c for p in pieces for c in p.calls)
                if text or calls or e.logprobs or e.finish:
                    yield i, Part(text, calls, e.logprobs, e.finish, e.usage, tickets[i].stopped_by)

    def _prompt_logprobs(self, asked: Asked, ticket: Ticket) -> tuple[Logprobs, ...]:
        """What the model thought of a prompt, where it is to be told: of the first token nothing."""
        if asked.logprobs is None:
            return ()
        return Logprobs(ticket.request.prompt[0], math.nan, ()), *ticket.prompt_logprobs

    def _labels(self) -> Labels:
        return Labels(uuid.uuid4().hex, int(time.time()), self.name, self.tokenizer)

    def _echo(self, asked: Asked, index: int) -> str:
        prompt = asked.prompts[index // asked.n]
        return prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)


async def follow(tickets: Iterable[Ticket]) -> AsyncGenerator[tuple[int, Event], None]:
    """The events of several tickets as they come, each with the number of its ticket."""
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
    """What went wrong below, as a client is told."""
    status, code = next((status, code) for kind, status, code in STATUS if isinstance(e, kind))
    return ProtocolError(status, str(e), code=code, headers={"retry-after": "1"} if status == 503 else None)

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
from tritium.serve import openai
from tritium.serve.openai import Asked, Labels, ProtocolError, sse
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

    @property
    def tokenizer(self) -> Tokenizer:
        return self.scheduler.tokenizer

    def prepare(self, body: bytes, *, chat: bool) -> tuple[Asked, list[Request]]:
        """From the bytes of a body to the requests for the scheduler; ProtocolError says what is wrong with it."""
        capacity = self.scheduler.session.capacity
        asked = openai.read_request(body, chat=chat, context=capacity, choices=self.max_choices)
        if asked.model not in (None, self.name):
            raise ProtocolError(
                404, f"The model {visible(asked.model or '')!r} is not served here; {self.name!r} is.", param="model", code="model_not_found"
            )  # fmt: skip
        self._check_counts(asked)
        try:
            prompts = (
                [self._chat_prompt(asked)] if chat else [self._prompt(p, bos=asked.adds_bos) for p in asked.prompts]
            )
        except PackageError as e:
            raise ProtocolError(501, str(e)) from None
        except TritiumError as e:
            raise ProtocolError(400, str(e), param="messages" if chat else "prompt", code="invalid_value") from None
        try:
            constrain = self._constrain(asked)
        except PackageError as e:
            raise ProtocolError(501, str(e)) from None
        common: dict[str, Any] = {
            "max_tokens": self._longest(asked), "sampler": asked.sampler, "stop": asked.stop, "logprobs": asked.logprobs,
            "constrain": constrain, "ends": self._ends(asked), "prompt_logprobs": asked.logprobs if asked.echo else None,
        }  # fmt: skip
        return asked, [Request(p, stream=stream, **common) for p in prompts for stream in range(asked.n)]

    def _longest(self, asked: Asked) -> int:
        """Return how many tokens an answer may have."""
        bounds = (asked.max_tokens, self.max_tokens, self.scheduler.session.capacity)
        return min(b for b in bounds if b is not None)

    def _ends(self, asked: Asked) -> frozenset[int]:
        """Return the tokens that end an answer."""
        return frozenset(asked.stop_token_ids) | (frozenset() if asked.ignore_eos else self.tokenizer.eos)

    def _constrain(self, asked: Asked) -> Callable[[], tuple[Constraint, ...]]:
        """Return what makes the constraints of an answer; a format is compiled here, beside the event loop."""
        form = None if asked.form is None else asked.form.form
        try:
            return constrain(
                self.tokenizer, form, least=asked.min_tokens, ends=self._ends(asked), among=asked.allowed_token_ids
            )
        except ArgumentError as e:
            param = "" if asked.form is None else asked.form.param
            raise ProtocolError(400, f"{param} is not valid: {e}", param=param, code="invalid_value") from None

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

    def _chat_prompt(self, asked: Asked) -> tuple[int, ...]:
        template = self.template or self.tokenizer.chat_template
        if template is None:
            raise ArgumentError(
                f"The model {self.name!r} has no chat template: it was not made for chats. Use /v1/completions, or start the server"
                " with a chat_template."
            )
        t = self.tokenizer
        text = render(template, asked.messages, bos_token=t.bos_token, eos_token=t.eos_token, **asked.template_values)
        return tuple(t.encode(text))

    async def whole(self, asked: Asked, tickets: list[Ticket]) -> dict[str, Any]:
        """The answer when all of it is there."""
        parts: list[list[Event]] = [[] for _ in tickets]
        async with aclosing(follow(tickets)) as events:
            async for i, event in events:
                parts[i].append(event)
        choices = []
        for i, (ticket, got) in enumerate(zip(tickets, parts, strict=True)):
            text = self._echo(asked, i) + "".join(e.text for e in got)
            logprobs = self._logprobs(
                asked, [*self._prompt_logprobs(asked, ticket), *(p for e in got for p in e.logprobs)]
            )
            choices.append(openai.choice(asked.chat, i, text, got[-1].finish or "stop", logprobs))
        return self._labels(asked).wrap(
            choices, part=False, usage=openai.usage_object([got[-1].usage for got in parts], n=asked.n)
        )

    async def streamed(self, asked: Asked, tickets: list[Ticket]) -> AsyncGenerator[bytes, None]:
        """The answer as it comes, in server-sent events. An error is told as the last of them."""
        labels = self._labels(asked)
        usages = [Usage() for _ in tickets]
        offsets = dict[int, int]()  # characters of the tokens told so far, of each answer that has begun
        more: dict[str, Any] = {"usage": None} if asked.include_usage else {}
        try:
            for i in range(len(tickets)):
                if asked.chat:
                    yield sse(labels.wrap([openai.delta(True, i, "", None, None, first=True)], part=True, **more))
            async with aclosing(follow(tickets)) as events:
                async for i, e in events:
                    if i not in offsets and asked.echo:
                        yield sse(labels.wrap([self._echoed(asked, tickets[i], i)], part=True, **more))
                    if i not in offsets:
                        offsets[i] = sum(self._length(t) for t in tickets[i].request.prompt) if asked.echo else 0
                    usages[i] = e.usage
                    told = self._logprobs(asked, e.logprobs, offsets[i])
                    offsets[i] += len(e.text)
                    yield sse(labels.wrap([openai.delta(asked.chat, i, e.text, e.finish, told)], part=True, **more))
            if asked.include_usage:
                yield sse(labels.wrap([], part=True, usage=openai.usage_object(usages, n=asked.n)))
            yield sse("[DONE]")
        except TritiumError as e:
            yield sse(protocol_error(e).body)
        except ProtocolError as e:
            yield sse(e.body)

    def _echoed(self, asked: Asked, ticket: Ticket, i: int) -> dict[str, Any]:
        """The first part of an answer that begins with its prompt."""
        logprobs = self._logprobs(asked, self._prompt_logprobs(asked, ticket))
        return openai.delta(False, i, self._echo(asked, i), None, logprobs)

    def _prompt_logprobs(self, asked: Asked, ticket: Ticket) -> list[Logprobs]:
        """What the model thought of a prompt, where it is to be told: of the first token nothing."""
        if not asked.echo or asked.logprobs is None:
            return []
        return [Logprobs(ticket.request.prompt[0], math.nan, ()), *ticket.prompt_logprobs]

    def _length(self, token: int) -> int:
        return len(self.tokenizer.bytes_of(token).decode("utf-8", "replace"))

    def _labels(self, asked: Asked) -> Labels:
        return Labels(
            f"{'chatcmpl' if asked.chat else 'cmpl'}-{uuid.uuid4().hex}", int(time.time()), self.name, asked.chat
        )

    def _logprobs(self, asked: Asked, found: Sequence[Any], offset: int = 0) -> dict[str, Any] | None:
        if asked.logprobs is None:
            return None
        return openai.logprobs_object(found, self.tokenizer, chat=asked.chat, offset=offset)

    def _echo(self, asked: Asked, index: int) -> str:
        if not asked.echo:
            return ""
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

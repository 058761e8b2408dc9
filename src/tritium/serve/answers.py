"""From a checked request to prompts of tokens, and from what the scheduler tells to answers, whole or streamed.

Knows nothing of HTTP, keys or routes: an answer is a JSON value or the pieces of an event stream.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritium.errors import ArgumentError, BusyError, ContextError, PackageError, TritiumError
from tritium.escape import visible
from tritium.models.text.chat import render
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
            prompts = [self._chat_prompt(asked)] if chat else [self._prompt(p) for p in asked.prompts]
        except PackageError as e:
            raise ProtocolError(501, str(e)) from None
        except TritiumError as e:
            raise ProtocolError(400, str(e), param="messages" if chat else "prompt", code="invalid_value") from None
        most = min(asked.max_tokens or capacity, self.max_tokens or capacity)
        return asked, [
            Request(prompt, most, asked.sampler, asked.stop, stream, asked.logprobs)
            for prompt in prompts
            for stream in range(asked.n)
        ]

    def _check_counts(self, asked: Asked) -> None:
        count = asked.n * max(1, len(asked.prompts))
        if count > self.max_choices:
            raise openai.too_many_choices(count, self.max_choices)
        if wrong := [t for t in asked.sampler.logit_bias or () if t >= self.tokenizer.vocab_size]:
            raise ProtocolError(
                400, f"logit_bias has token id {wrong[0]}; this model has 0 to {self.tokenizer.vocab_size - 1}.",
                param="logit_bias", code="invalid_value",
            )  # fmt: skip

    def _prompt(self, given: str | tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(given, tuple):
            return given
        first = self.tokenizer.bos
        return tuple(self.tokenizer.encode(given) or ([] if first is None else [first]))

    def _chat_prompt(self, asked: Asked) -> tuple[int, ...]:
        template = self.template or self.tokenizer.chat_template
        if template is None:
            raise ArgumentError(
                f"The model {self.name!r} has no chat template: it was not made for chats. Use /v1/completions, or start the server"
                " with a chat_template."
            )
        t = self.tokenizer
        return tuple(t.encode(render(template, asked.messages, bos_token=t.bos_token, eos_token=t.eos_token)))

    async def whole(self, asked: Asked, tickets: list[Ticket]) -> dict[str, Any]:
        """The answer when all of it is there."""
        parts: list[list[Event]] = [[] for _ in tickets]
        async with aclosing(follow(tickets)) as events:
            async for i, event in events:
                parts[i].append(event)
        choices = []
        for i, got in enumerate(parts):
            echo = self._echo(asked, i)
            logprobs = [p for e in got for p in e.logprobs]
            told = self._logprobs(asked, logprobs)
            text = echo + "".join(e.text for e in got)
            choices.append(openai.choice(asked.chat, i, text, got[-1].finish or "stop", told))
        return self._labels(asked).wrap(
            choices, part=False, usage=openai.usage_object([got[-1].usage for got in parts], n=asked.n)
        )

    async def streamed(self, asked: Asked, tickets: list[Ticket]) -> AsyncGenerator[bytes, None]:
        """The answer as it comes, in server-sent events. An error is told as the last of them."""
        labels = self._labels(asked)
        usages = [Usage() for _ in tickets]
        offsets = [0] * len(tickets)
        more: dict[str, Any] = {"usage": None} if asked.include_usage else {}
        try:
            for i in range(len(tickets)):
                echo = self._echo(asked, i)
                if asked.chat or echo:
                    yield sse(
                        labels.wrap([openai.delta(asked.chat, i, echo, None, None, first=True)], part=True, **more)
                    )
            async with aclosing(follow(tickets)) as events:
                async for i, e in events:
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

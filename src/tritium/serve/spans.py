"""OpenTelemetry spans of requests, named by its semantic conventions for generative AI; no text of a request or a response is in them.

The API of OpenTelemetry is used alone: who runs the server chooses SDK and exporter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tritium.errors import ArgumentError, imported
from tritium.serve.protocols.common import ProtocolError, Query
from tritium.serve.scheduler import Ticket

FINISH = {"context": "length"}  # reasons of the scheduler that clients know by another name


class Span:
    """The span of one request; this one records nothing, for a server without spans."""

    def describe(self, query: Query) -> None:
        """Add the options of a request."""

    def count(self, tokens: int) -> None:
        """Add the tokens of a request that generates none."""

    def end(self, tickets: Sequence[Ticket] = ()) -> None:
        """End with what came of the answers; only the first end counts."""

    def fail(self, error: BaseException) -> None:
        """End with an error."""


class Spans:
    """A source of spans; this one begins spans that record nothing."""

    def begin(self, operation: str, headers: Mapping[str, str], model: str) -> Span:
        """Return the span of a request that came with these headers."""
        return Span()


class OpenTelemetrySpans(Spans):
    """Spans of the tracer provider that was set; ArgumentError where none was, since they would go nowhere."""

    def __init__(self) -> None:
        api = imported("Recording spans", "opentelemetry-api", "propagate", "trace")
        trace, propagate = api.trace, api.propagate
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            raise ArgumentError(
                "serve: spans were asked for, and no tracer provider is set: they would go nowhere. Start the server by"
                " opentelemetry-instrument, or call opentelemetry.trace.set_tracer_provider first."
            )
        self._trace, self._extract = trace, propagate.extract
        self._tracer = trace.get_tracer("tritium.serve")

    def begin(self, operation: str, headers: Mapping[str, str], model: str) -> Span:
        """Return a span below that of the caller, which its traceparent names."""
        span = self._tracer.start_span(
            f"{operation} {model}", context=self._extract(dict(headers)), kind=self._trace.SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation, "gen_ai.provider.name": "tritium", "gen_ai.request.model": model,
                "gen_ai.response.model": model,
            },
        )  # fmt: skip
        return _Recorded(span, self._trace)


class _Recorded(Span):
    def __init__(self, span: Any, trace: Any) -> None:
        self._span, self._trace, self._ended = span, trace, False

    def describe(self, query: Query) -> None:
        sampler = query.sampler
        values: dict[str, Any] = {
            "temperature": sampler.temperature, "top_p": sampler.top_p, "frequency_penalty": sampler.frequency_penalty,
            "presence_penalty": sampler.presence_penalty, "stream": query.stream, "max_tokens": query.max_tokens,
            "top_k": float(sampler.top_k) if sampler.top_k else None, "seed": sampler.seed if (sampler.seed or 0) < 1 << 63 else None,
            "stop_sequences": query.stop or None, "choice.count": query.n if query.n != 1 else None,
        }  # fmt: skip
        for name, value in values.items():
            if value is not None:
                self._span.set_attribute(f"gen_ai.request.{name}", value)
        json = query.form is not None and query.form.form.kind == "schema"
        self._span.set_attribute("gen_ai.output.type", "json" if json else "text")

    def count(self, tokens: int) -> None:
        self._span.set_attribute("gen_ai.usage.input_tokens", tokens)

    def end(self, tickets: Sequence[Ticket] = ()) -> None:
        if self._ended:
            return
        usages = [t.usage for t in tickets]
        if tickets:
            prompts = {t.request.prompt: t.usage for t in tickets}  # the answers to one prompt share it
            self._span.set_attribute("gen_ai.usage.input_tokens", sum(u.prompt_tokens for u in prompts.values()))
            self._span.set_attribute("gen_ai.usage.output_tokens", sum(u.completion_tokens for u in usages))
            self._span.set_attribute(
                "gen_ai.usage.cache_read.input_tokens", sum(u.reused_tokens for u in prompts.values())
            )
        if finished := [FINISH.get(t.finish, t.finish) for t in tickets if t.finish is not None]:
            self._span.set_attribute("gen_ai.response.finish_reasons", finished)
        if firsts := [t.first_s for t in tickets if t.first_s is not None]:
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", min(firsts))
        failed = next((t.error for t in tickets if t.error is not None), None)
        if failed is not None:
            self._set_error(type(failed).__name__, str(failed))
        elif len(finished) < len(tickets) or "cancelled" in finished:
            self._span.set_attribute("error.type", "cancelled")
        self._close()

    def fail(self, error: BaseException) -> None:
        if self._ended:
            return
        if isinstance(error, ProtocolError):
            self._span.set_attribute("error.type", error.code or str(error.status))
            self._span.set_attribute("http.response.status_code", error.status)
            if error.status >= 500:
                self._set_error(error.code or str(error.status), "")
        elif isinstance(error, Exception):
            self._set_error(type(error).__name__, "")
        else:
            self._span.set_attribute("error.type", "cancelled")
        self._close()

    def _set_error(self, kind: str, message: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, message or None))

    def _close(self) -> None:
        self._ended = True
        self._span.end()

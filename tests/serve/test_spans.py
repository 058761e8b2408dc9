"""Spans of requests, in OpenTelemetry's own exporter: names, attributes, parents, errors; nothing of any text."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

pytest.importorskip("h11", reason="needs the extra 'run'")

from calls import begin, call, completion, events, post
from markov import Model
from tritium.errors import ArgumentError, PackageError
from tritium.models.load import load
from tritium.serve.server import Server

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def make(**options: Any) -> Server:
    model = Model(template=TEMPLATE, step_s=options.pop("step_s", 0.0))
    return Server(model, port=0, grace_s=2.0, spans=True, **options)  # type: ignore[arg-type]


class Recorded:
    """A tracer provider that keeps what it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sdk = pytest.importorskip(
            "opentelemetry.sdk.trace", reason="needs OpenTelemetry's SDK: pip install opentelemetry-sdk"
        )
        from opentelemetry import trace
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
        monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)

    def wait(self, count: int = 1) -> list[Any]:
        """Return the spans that ended: a span ends when its response was sent, just after the client has it."""
        end = time.monotonic() + 10
        while len(self.exporter.get_finished_spans()) < count and time.monotonic() < end:
            time.sleep(0.005)
        spans = list(self.exporter.get_finished_spans())
        assert len(spans) == count
        return spans


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(monkeypatch)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_has_a_span_with_its_settings_and_usage(recorded: Recorded, stream: bool) -> None:
    messages = [{"role": "user", "content": "a secret"}]
    body = {"messages": messages, "max_tokens": 7, "n": 2, "top_p": 0.5, "top_k": 3, "seed": 9, "stop": ["ZZ"]}
    with make() as server:
        events(server, "chat/completions", **body) if stream else post(server, "chat/completions", **body)
        (span,) = recorded.wait()
    assert (span.name, span.kind.name) == ("chat markov", "SERVER")
    attributes = dict(span.attributes)
    assert attributes.pop("gen_ai.response.time_to_first_chunk") > 0
    cached = attributes.pop("gen_ai.usage.cache_read.input_tokens")
    assert 0 <= cached < 25
    assert attributes == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "tritium", "gen_ai.request.model": "markov",
        "gen_ai.response.model": "markov", "gen_ai.request.temperature": 0, "gen_ai.request.top_p": 0.5, "gen_ai.request.top_k": 3,
        "gen_ai.request.seed": 9, "gen_ai.request.max_tokens": 7, "gen_ai.request.stream": stream, "gen_ai.request.choice.count": 2,
        "gen_ai.request.frequency_penalty": 0, "gen_ai.request.presence_penalty": 0, "gen_ai.request.stop_sequences": ("ZZ",),
        "gen_ai.output.type": "text", "gen_ai.usage.input_tokens": 25, "gen_ai.usage.output_tokens": 14,
        "gen_ai.response.finish_reasons": ("length", "length"),
    }  # fmt: skip
    assert "secret" not in span.to_json()


def test_attributes_are_those_of_the_conventions(recorded: Recorded) -> None:
    conventions = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    known = {v for v in vars(conventions).values() if isinstance(v, str)}
    with make() as server:
        completion(server, "abc", 3)
        (span,) = recorded.wait()
    assert span.name == "text_completion markov"
    assert {name for name in span.attributes if name not in known} == set()


def test_a_span_is_below_its_callers(recorded: Recorded) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with make() as server:
        call(server, "POST", "/v1/completions", {"prompt": "a"}, traceparent=f"00-{trace}-{parent}-01")
        (span,) = recorded.wait()
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (trace, parent)


def test_errors_and_leaving_are_told(recorded: Recorded) -> None:
    with make(step_s=0.01) as server:
        assert post(server, "completions", prompt="a", max_tokenss=3)[0] == 400
        assert post(server, "completions", prompt="no!", max_tokens=3)[0] == 500
        begin(server, {"prompt": "endless", "max_tokens": 500, "stream": True}).close()
        refused, failed, gone = recorded.wait(3)
    assert refused.attributes["error.type"] == "unknown_parameter"
    assert refused.attributes["http.response.status_code"] == 400
    assert refused.status.status_code.name == "UNSET"
    assert failed.attributes["error.type"] == "TritiumError"
    assert failed.status.status_code.name == "ERROR"
    assert gone.attributes["error.type"] == "cancelled"


def test_embeddings_have_a_span(recorded: Recorded) -> None:
    with Server(load(), port=0, grace_s=2.0, spans=True) as server:
        assert call(server, "POST", "/v1/embeddings", {"input": "light"})[0] == 200
        assert call(server, "POST", "/v1/embeddings", {"input": 1})[0] == 400
        fine, refused = recorded.wait(2)
    assert fine.name == f"embeddings {load().name}"
    assert fine.attributes["gen_ai.usage.input_tokens"] > 0
    assert refused.attributes["error.type"] == "invalid_value"


def test_spans_that_would_go_nowhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.trace", reason="needs OpenTelemetry's API: pip install opentelemetry-api")
    before = threading.active_count()
    with pytest.raises(ArgumentError, match="no tracer provider is set"):
        make().start()
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(PackageError, match="pip install opentelemetry-api"):
        make().start()
    assert threading.active_count() == before

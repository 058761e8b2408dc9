"""Metrics: histograms count, the page is what Prometheus reads, and a server counts its requests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("h11", reason="needs the extra 'run'")

from calls import call, completion
from markov import Model
from tritium.serve.metrics import EnergyCounters, Histogram, Meter, Metric, of_requests, page
from tritium.serve.server import Server


@given(st.lists(st.floats(0, 10)), st.lists(st.floats(0, 10), min_size=1, unique=True).map(sorted))
def test_a_histogram_counts_what_is_at_most_each_bound(values: list[float], bounds: list[float]) -> None:
    histogram = Histogram(bounds)
    for v in values:
        histogram.observe(v)
    counts, total = histogram.read()
    assert counts == [*(sum(v <= b for v in values) for b in bounds), len(values)]
    assert total == pytest.approx(sum(values))


def test_a_page_is_what_prometheus_reads() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="reads the page")
    meter = Meter()
    meter.token(0.2, True)
    meter.token(0.01, False)
    meter.end("stop", 5, 2, 0.3)
    meter.end(None, 5, 0, 0.3)
    text = page([*of_requests(meter, 'a "model"'), Metric("x:y", "odd \\ text\n", "gauge", [({}, 1.5)])])
    families = {f.name: f for f in parser.text_string_to_metric_families(text)}
    first = {s.labels.get("le"): s.value for s in families["vllm:time_to_first_token_seconds"].samples}
    assert (first["0.1"], first["0.25"], first["+Inf"]) == (0, 1, 1)
    ended = {s.labels["finished_reason"]: s.value for s in families["vllm:request_success"].samples}
    assert ended == {"stop": 1, "length": 0, "abort": 0, "error": 1}
    assert {s.labels["model_name"] for s in families["vllm:generation_tokens"].samples} == {'a "model"'}


def test_a_counter_of_joules_goes_on_where_it_begins_anew() -> None:
    readings = iter([90.0, 95.0, 3.0])
    joules = SimpleNamespace(source="rapl", domain="package-0", unit="J", range_j=100.0, read=lambda: next(readings))
    watts = SimpleNamespace(source="battery", domain="all", unit="W", range_j=None, read=lambda: 7.5)
    energy = EnergyCounters(lambda: [joules, watts, object()])
    assert [[v for m in energy.read() for _, v in m.values] for _ in range(3)] == [[0.0, 7.5], [5.0, 7.5], [13.0, 7.5]]
    assert EnergyCounters().read() == []


def test_a_server_counts_its_requests() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="reads the page")
    with Server(Model(), port=0, grace_s=5.0) as s:  # type: ignore[arg-type]
        completion(s, "abc", 12)
        completion(s, "abc", 5)
        status, headers, text = call(s, "GET", "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    values = {(x.name, x.labels.get("le"), x.labels.get("finished_reason")): x.value
              for f in parser.text_string_to_metric_families(text) for x in f.samples}  # fmt: skip
    assert values["vllm:generation_tokens_total", None, None] == 17
    assert values["vllm:prompt_tokens_total", None, None] == 6
    assert values["vllm:prefix_cache_hits_total", None, None] == 2
    assert values["vllm:request_success_total", None, "length"] == 2
    assert values["vllm:time_to_first_token_seconds_count", None, None] == 2
    assert values["vllm:inter_token_latency_seconds_count", None, None] == 15
    assert values["vllm:num_requests_running", None, None] == 0

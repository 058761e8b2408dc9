"""Metrics for Prometheus, OpenMetrics and OpenTelemetry, read by the parsers of these projects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from measured import HOSTILE, hostile, results
from tritium.perf.formats import exports, imports
from tritium.perf.formats.telemetry import Family, Sample, exposition, openmetrics, otlp

GOLDEN = Path(__file__).parents[2] / "golden"


def test_the_parser_of_openmetrics_itself_reads_results() -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    text = exports.export_metrics(imports.load(GOLDEN / "google_benchmark.json"), "openmetrics")
    families = {f.name: f for f in parser.text_string_to_metric_families(text)}
    assert families["tritium_wall_seconds"].type == "summary"
    assert families["tritium_wall_seconds"].unit == "seconds"
    assert families["tritium_build"].type == "info"
    values = imports.load(GOLDEN / "google_benchmark.json").runs[0].series[0].flat
    total = next(s for s in families["tritium_wall_seconds"].samples if s.name.endswith("_sum"))
    assert total.value == pytest.approx(sum(values))


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_no_name_ends_a_line_of_openmetrics(name: str) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    text = exports.export_metrics(hostile(name), "openmetrics")
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1
    assert list(parser.text_string_to_metric_families(text))


def test_counters_are_named_without_their_suffix_and_empty_families_left_out() -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    counted = Family("tritium_tokens_total", 'Tokens of "all" requests.', [Sample(3, {"pid": "1"})], "counter")
    text = openmetrics([counted, Family("tritium_nothing", "Nothing.", [])])
    (family,) = parser.text_string_to_metric_families(text)
    assert (family.name, family.type, family.samples[0].value) == ("tritium_tokens", "counter", 3)
    assert family.documentation == 'Tokens of "all" requests.'
    assert "TYPE tritium_tokens_total counter" in exposition([counted])


def test_a_request_of_opentelemetry_has_every_figure() -> None:
    request = json.loads(exports.export_metrics(results(), "opentelemetry"))
    (resource,) = request["resourceMetrics"]
    assert {"key": "service.name", "value": {"stringValue": "tritium"}} in resource["resource"]["attributes"]
    metrics = {m["name"]: m for m in resource["scopeMetrics"][0]["metrics"]}
    wall = metrics["tritium_wall_seconds"]
    assert wall["unit"] == "s"
    run = results().runs[0]
    point = wall["summary"]["dataPoints"][0]
    assert point["count"] == str(len(run.series[0].flat))
    assert {q["quantile"]: q["value"] for q in point["quantileValues"]}[0.5] == pytest.approx(run.seconds)


def test_the_schema_of_opentelemetry_itself_accepts_a_request() -> None:
    service = pytest.importorskip(
        "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", reason="pip install opentelemetry-proto"
    )
    json_format = pytest.importorskip("google.protobuf.json_format")
    text = exports.export_metrics(results(), "opentelemetry")
    request = json_format.Parse(text, service.ExportMetricsServiceRequest())
    assert len(request.resource_metrics[0].scope_metrics[0].metrics) >= 4


def test_a_counter_is_a_sum_that_only_grows() -> None:
    family = Family("tritium_tokens_total", "Tokens.", [Sample(3)], "counter")
    metric = otlp([family], {}, 5)["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]
    assert metric["sum"]["isMonotonic"] is True
    assert metric["sum"]["dataPoints"] == [{"attributes": [], "timeUnixNano": "5", "asDouble": 3.0}]

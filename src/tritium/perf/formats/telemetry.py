"""Families of metrics as text for Prometheus and OpenMetrics, and as JSON for OpenTelemetry (OTLP).

A family without a value is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tritium import escape

BASE_UNITS = {"s": "seconds", "B": "bytes", "J": "joules", "°C": "celsius", "W": "watts"}
UCUM = {"seconds": "s", "bytes": "By", "joules": "J", "celsius": "Cel", "watts": "W"}  # as OpenTelemetry spells units
CUMULATIVE = 2  # AGGREGATION_TEMPORALITY_CUMULATIVE of OTLP
Type = Literal["gauge", "counter", "summary", "info"]


class Sample(NamedTuple):
    """One value of a metric."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""  # "_sum" and "_count" of a summary


class Family(NamedTuple):
    """A metric: its help text and its values. The names of counters end in _total, those of infos in _info."""

    name: str
    says: str
    samples: Sequence[Sample]
    kind: Type = "gauge"


def exposition(families: Iterable[Family]) -> str:
    """Return Prometheus text, which has no type for infos."""
    out: list[str] = []
    for f in families:
        if f.samples:
            kind = "gauge" if f.kind == "info" else f.kind
            out += [f"# HELP {f.name} {_help(f, quotes=False)}", f"# TYPE {f.name} {kind}", *_lines(f)]
    return "".join(f"{line}\n" for line in out)


def openmetrics(families: Iterable[Family]) -> str:
    """Return OpenMetrics text: families are named without the suffix of their type, units are declared, and the end is marked."""
    out: list[str] = []
    for f in families:
        if f.samples:
            name = _bare(f)
            unit = unit_of(f)
            out.append(f"# TYPE {name} {f.kind}")
            if unit:
                out.append(f"# UNIT {name} {unit}")
            out += [f"# HELP {name} {_help(f, quotes=True)}", *_lines(f)]
    return "".join(f"{line}\n" for line in [*out, "# EOF"])


def unit_of(family: Family) -> str:
    """Return the base unit that ends a family's name, or ""."""
    last = _bare(family).rpartition("_")[2]
    return last if last in UCUM else ""


def _bare(family: Family) -> str:
    return family.name.removesuffix({"counter": "_total", "info": "_info"}.get(family.kind, ""))


def _help(family: Family, *, quotes: bool) -> str:
    text = escape.visible(family.says).replace("\\", "\\\\")
    return text.replace('"', '\\"') if quotes else text


def _lines(family: Family) -> Iterator[str]:
    for s in family.samples:
        yield f"{family.name}{s.suffix}{_labels(s.labels)} {float(s.value)!r}"


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{k}="{escape.prometheus(v)}"' for k, v in labels.items())
    return f"{{{inside}}}" if inside else ""


# ---- OpenTelemetry


def otlp(families: Iterable[Family], resource: Mapping[str, str], time_ns: int, version: str = "") -> dict[str, Any]:
    """Return an ExportMetricsServiceRequest as the JSON of OTLP has it: 64-bit integers are text."""
    metrics = [_otlp_metric(f, str(time_ns)) for f in families if f.samples]
    scope = {"name": "tritium", "version": version}
    return {
        "resourceMetrics": [
            {"resource": {"attributes": _attributes(resource)}, "scopeMetrics": [{"scope": scope, "metrics": metrics}]}
        ]
    }


def _otlp_metric(family: Family, time: str) -> dict[str, Any]:
    """Return one metric; an info is a gauge of 1 with its labels, as collectors translate it."""
    metric = {"name": family.name, "description": escape.visible(family.says), "unit": UCUM.get(unit_of(family), "1")}
    if family.kind == "summary":
        return metric | {"summary": {"dataPoints": list(_summary_points(family, time))}}
    points = [
        {"attributes": _attributes(s.labels), "timeUnixNano": time, "asDouble": float(s.value)} for s in family.samples
    ]
    if family.kind == "counter":
        return metric | {"sum": {"dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": True}}
    return metric | {"gauge": {"dataPoints": points}}


def _summary_points(family: Family, time: str) -> Iterator[dict[str, Any]]:
    """Yield a point for each set of labels, with its quantiles, sum and count."""
    points: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for s in family.samples:
        labels = {k: v for k, v in s.labels.items() if k != "quantile"}
        point = points.setdefault(
            tuple(labels.items()),
            {"attributes": _attributes(labels), "timeUnixNano": time, "count": "0", "sum": 0.0, "quantileValues": []},
        )
        if s.suffix == "_count":
            point["count"] = str(int(s.value))
        elif s.suffix == "_sum":
            point["sum"] = float(s.value)
        else:
            point["quantileValues"].append({"quantile": float(s.labels["quantile"]), "value": float(s.value)})
    yield from points.values()


def _attributes(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": k, "value": {"stringValue": escape.visible(v, None)}} for k, v in labels.items()]

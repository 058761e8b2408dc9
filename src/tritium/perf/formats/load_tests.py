"""Latencies of load tests: k6 and locust, a case for each kind of request.

Failed requests are counted and flagged: their latency is in the values too, as in the tools.
"""

from __future__ import annotations

import csv as csv_text
import io
import math
from array import array
from typing import Any

from tritium.errors import FormatError
from tritium.perf.formats.fields import (
    MAX_RUNS,
    MAX_VALUES,
    NOT_CHECKED,
    SUMMARY_ONLY,
    Lines,
    array_of,
    count_of,
    environment_of,
    number_of,
    object_of,
    one_process,
    results_of,
    summary,
    text_of,
    time_of,
    word_of,
)
from tritium.perf.records.case import Context
from tritium.perf.records.run import Results, Run, Series

LATENCY = "http_req_duration"
FAILED = "http_req_failed"
MOST_EXPANDED = 100_000  # requests of a histogram that become values; more are thinned out evenly


def _run(case: str, tool: str, series: Series, failed: int, requests: int, *, whole: bool) -> Run:
    """Return the run of one kind of request."""
    flags = [f"{failed} of {requests} requests failed"] if failed else []
    facts = {"requests": requests, "failed_requests": failed} if requests else {}
    return Run(
        case, tool, Context("request", precision="", device=""), iterations=1, checked=NOT_CHECKED, series=(series,),
        flags=(*flags, *(() if whole else (SUMMARY_ONLY,))), facts=facts,
    )  # fmt: skip


# ---- k6


def looks_like_k6(data: Any) -> bool:
    if isinstance(data, Lines):
        return isinstance(data.first, dict) and data.first.get("type") in ("Metric", "Point") and "metric" in data.first
    return isinstance(data, dict) and isinstance(data.get("metrics"), dict) and LATENCY in data["metrics"]


def k6(data: Any, where: str) -> Results:
    """Read the points of k6 --out json, or a summary."""
    if isinstance(data, Lines):
        return _points(data, where)
    metrics = data["metrics"]
    latency = object_of(metrics[LATENCY], f"{where}.metrics.{LATENCY}")
    figures = object_of(latency.get("values", latency), f"{where}.metrics.{LATENCY}.values")
    middle = figures.get("med") if figures.get("med") is not None else figures.get("avg")
    requests = _k6_count(metrics, "http_reqs", "count", where)
    failed = _k6_count(metrics, FAILED, "passes", where)  # a rate counts what is true: failed
    series = summary(time_of(middle, f"{where}.metrics.{LATENCY}.med") / 1e3, "k6", samples=requests)
    return results_of("k6", "", environment_of(), [_run(LATENCY, "k6", series, failed, requests, whole=False)])


def _k6_count(metrics: dict[str, Any], name: str, key: str, where: str) -> int:
    entry = object_of(metrics.get(name) or {}, f"{where}.metrics.{name}")
    return count_of(object_of(entry.get("values", entry), f"{where}.metrics.{name}"), key, f"{where}.metrics.{name}")


def _points(lines: Lines, where: str) -> Results:
    """Return a case for each request by its method and name, with the latency of every single one."""
    latencies: dict[str, array[float]] = {}
    failures: dict[str, int] = {}
    created = ""
    for place, line in lines:
        point = object_of(line, place)
        if point.get("type") != "Point" or point.get("metric") not in (LATENCY, FAILED):
            continue
        data = object_of(point.get("data"), f"{place}.data")
        tags = object_of(data.get("tags") or {}, f"{place}.data.tags")
        case = " ".join(filter(None, (word_of(tags, key, f"{place}.data.tags") for key in ("method", "name"))))
        created = created or word_of(data, "time", f"{place}.data")
        if point["metric"] == FAILED:
            failures[case] = failures.get(case, 0) + (number_of(data.get("value"), f"{place}.data.value") != 0)
        else:
            values = latencies.setdefault(case, array("d"))
            values.append(time_of(data.get("value"), f"{place}.data.value") / 1e3)
        if len(latencies) > MAX_RUNS or len(failures) > MAX_RUNS:
            raise FormatError(f"{where}: more than {MAX_RUNS} kinds of requests; group them by the tag name.")
    if not latencies:
        raise FormatError(f"{where}: no point of {LATENCY}.")
    runs = [
        _run(case or LATENCY, "k6", Series("wall", "s", one_process(values), source="k6"), failures.get(case, 0),
             len(values), whole=True)
        for case, values in latencies.items()
    ]  # fmt: skip
    return results_of("k6", created, environment_of(), runs)


# ---- locust


def looks_like_locust(data: Any) -> bool:
    return (
        isinstance(data, list)
        and bool(data)
        and isinstance(data[0], dict)
        and {"response_times", "num_requests"} <= set(data[0])
    )


def locust(data: Any, where: str) -> Results:
    """Read what locust --json prints: a histogram of milliseconds for each request, which locust rounds to two digits."""
    runs = []
    for i, entry in enumerate(array_of(data, where)):
        place = f"{where}[{i}]"
        row = object_of(entry, place)
        case = " ".join(filter(None, (word_of(row, "method", place), word_of(row, "name", place))))
        requests, failed = (count_of(row, key, place) for key in ("num_requests", "num_failures"))
        histogram = object_of(row.get("response_times") or {}, f"{place}.response_times")
        if histogram:
            values = _expanded(histogram, f"{place}.response_times")
            series = Series("wall", "s", one_process(values), source="locust", details={"samples": requests})
            runs.append(_run(case, "locust", series, failed, requests, whole=True))
    return results_of("locust", "", environment_of(), runs, ("locust rounds its latencies to two digits",))


def _expanded(histogram: dict[str, Any], where: str) -> list[float]:
    """Return the seconds of a histogram of milliseconds, thinned out evenly where there are very many."""
    counts: dict[float, int] = {}
    for key, value in histogram.items():
        try:
            milliseconds = float(key[:30])
        except ValueError:
            raise FormatError(f"{where}: {key[:30]!r} is no number of milliseconds.") from None
        if not 0 <= milliseconds < math.inf:
            raise FormatError(f"{where}: {key[:30]!r} milliseconds; a finite number from 0 is needed.")
        counts[milliseconds] = count_of({"n": value}, "n", where)
    total = sum(counts.values())
    share = min(1.0, MOST_EXPANDED / total) if total else 1.0
    out: list[float] = []
    for milliseconds, count in sorted(counts.items()):
        seconds = max(milliseconds, 0.5) / 1e3  # it rounds to whole milliseconds: 0 is less than half of one
        out += [seconds] * (round(count * share) or min(count, 1))
        if len(out) > MAX_VALUES:
            raise FormatError(f"{where}: more than {MAX_VALUES} values.")
    return out


LOCUST_HEAD = "Type,Name,Request Count,Failure Count,"


def looks_like_locust_csv(data: Any) -> bool:
    return isinstance(data, str) and data.replace('"', "").startswith(LOCUST_HEAD)


def locust_csv(text: str, where: str) -> Results:
    """Read the file PREFIX_stats.csv of locust --csv: a summary of each request."""
    runs = []
    try:
        for number, row in enumerate(csv_text.DictReader(io.StringIO(text, newline=""), strict=True), 2):
            place = f"{where}: line {number}"
            requests, failed = (_cell(row, key, place) for key in ("Request Count", "Failure Count"))
            if not requests or row.get("Name") == "Aggregated":
                continue
            middle = _cell(row, "Median Response Time", place) or _cell(row, "Average Response Time", place)
            case = " ".join(filter(None, (word_of(row, "Type", place), word_of(row, "Name", place))))
            count = count_of({"n": requests}, "n", place)
            series = summary(time_of(middle, place) / 1e3, "locust", samples=count)
            runs.append(
                _run(text_of(case, place), "locust", series, count_of({"n": failed}, "n", place), count, whole=False)
            )
    except csv_text.Error as error:
        raise FormatError(f"{where}: not CSV: {error}.") from None
    return results_of("locust", "", environment_of(), runs, ("locust rounds its latencies to two digits",))


def _cell(row: dict[str, Any], column: str, where: str) -> float:
    """Return the number of a cell."""
    try:
        return number_of(float(row[column]), f"{where}, {column}")
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"{where}, {column}: {str(row.get(column))[:30]!r} is not a number.") from None

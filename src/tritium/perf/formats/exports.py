"""Results in the formats of other tools: pytest-benchmark, github-action-benchmark, Bencher, Otava, CSV, telemetry, Markdown.

Nothing is rounded, what was not measured is left out or marked, and names are escaped. CSV and pytest-benchmark files are
read back by `imports`.
"""

from __future__ import annotations

import csv as csv_text
import io
import json
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from tritium import escape
from tritium.arguments import checked
from tritium.errors import ArgumentError, nearest
from tritium.machine.facts import digest
from tritium.perf.amounts import bytes_text, seconds_text
from tritium.perf.formats import telemetry
from tritium.perf.formats.telemetry import BASE_UNITS, Family, Sample
from tritium.perf.records.case import Context, Work
from tritium.perf.records.environment import Environment, Hard
from tritium.perf.records.json_io import plain
from tritium.perf.records.run import Plan, Results, Run, Series
from tritium.perf.stats.estimates import Summary, describe
from tritium.perf.work.canary import is_canary

PYTEST_BENCHMARK = "5.3.1"  # the version whose file format this is
SMALLER_IS_BETTER = ("wall", "cpu", "peak_bytes", "rss_bytes", "allocated_bytes", "instructions", "energy")
NANOSECONDS = {"s": ("ns", 1e9)}  # one unit for every case: charts compare files


@checked
def export_metrics(results: Results, to: str = "json", *, guard: bool = True) -> str:
    """Return results as text in one of `FORMATS`; guard=False lets cells of a CSV file be formulas."""
    if to not in FORMATS:
        raise ArgumentError(f"there is no format {to!r}; there are {', '.join(FORMATS)}.{nearest(to, FORMATS)}")
    return csv(results, guard) if to == "csv" else FORMATS[to].write(results)


def measured(run: Run) -> Iterator[Series]:
    """Return the series of a run that hold measured values."""
    return (s for s in run.series if s.kind == "measured" and s.flat)


def _without_canaries(results: Results) -> list[Run]:
    """Return the runs without canaries, which only track the machine."""
    return [run for run in results if not is_canary(run.case)]


def _named(run: Run, metric: str = "", limit: int = escape.LIMIT) -> str:
    """Return the name of a run, its contender and a metric as one label."""
    return escape.label(" · ".join(part for part in (run.case, run.arm, metric) if part), limit)


def _json(value: Any) -> str:
    """Return JSON that is harmless in a terminal and inside a page."""
    text = json.dumps(value, indent=1, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026") + "\n"


def _context(run: Run) -> list[tuple[str, str]]:
    """Return the fields of a run's context that are set, as text."""
    items = ((f.name, getattr(run.context, f.name)) for f in fields(Context))
    return [(k, "x".join(map(str, v)) if isinstance(v, tuple) else str(v)) for k, v in items if v not in (None, "", ())]


# ---- Tritium's own format


def own(results: Results) -> str:
    """Return the file `tritium` itself writes and reads: everything."""
    body = plain(results)
    return json.dumps({"schema": results.schema, "sha256": digest(body), "results": body}, allow_nan=False) + "\n"


# ---- pytest-benchmark


def pytest_benchmark(results: Results) -> str:
    """Return results as pytest-benchmark writes with --benchmark-json; failed runs, which it leaves out, are listed apart."""
    done = [run for run in results if _timed(run)]
    return _json({
        "machine_info": machine_info(results.environment),
        "commit_info": {
            "id": results.environment.commit or "unversioned", "time": None, "author_time": None,
            "dirty": results.environment.dirty, "project": "tritium", "branch": "(unknown)",
        },
        "benchmarks": [_benchmark(run) for run in done],
        "datetime": results.created,
        "version": PYTEST_BENCHMARK,
        "tritium": plain(results) | {"runs": [plain(run) for run in results if not _timed(run)]},
    })  # fmt: skip


def _timed(run: Run) -> bool:
    return run.status == "ok" and any(s.metric == "wall" for s in measured(run))


def machine_info(environment: Environment) -> dict[str, Any]:
    """Return the fields of pytest-benchmark's machine_info that an environment has."""
    hard = environment.hard
    return {
        "node": "", "processor": hard.cpu, "machine": hard.architecture, "python_version": environment.python,
        "python_implementation_version": environment.python, "release": environment.kernel, "system": hard.system,
        "cpu": {"brand_raw": hard.cpu, "count": hard.cpus, "arch_string_raw": hard.architecture},
    }  # fmt: skip


def _benchmark(run: Run) -> dict[str, Any]:
    """Return the entry of one run."""
    wall = next(s for s in measured(run) if s.metric == "wall")
    imported = run.facts.get("pytest") if isinstance(run.facts.get("pytest"), dict) else None
    name = _named(run)
    info = imported or {"name": name, "group": escape.label(run.case), "params": None, "param": None, "extra_info": {}}
    record = plain(run)
    for series in record["series"]:
        if series["metric"] == "wall":  # stats.data has the values; only the number in each round is missing there
            series["values"] = [[len(batches) for batches in process] for process in wall.values]
    return {
        "group": info.get("group"),
        "name": escape.visible(str(info.get("name", run.case)), None),
        "fullname": escape.visible(run.case, None) if imported else name,
        "params": info.get("params"),
        "param": info.get("param"),
        "extra_info": {**(info.get("extra_info") or {}), "tritium": record},
        "options": {"disable_gc": True, "timer": "perf_counter", "warmup": run.warmup},
        "stats": benchmark_stats(wall.flat) | {"data": list(wall.flat), "iterations": max(run.iterations, 1)},
    }


def benchmark_stats(data: Sequence[float]) -> dict[str, Any]:
    """Return the figures of pytest-benchmark, by its own definitions."""
    ordered, n = sorted(data), len(data)
    mean, stddev = statistics.mean(data), statistics.stdev(data) if n > 1 else 0.0
    q1, q3 = _quartiles(ordered)
    iqr = q3 - q1
    low, high = q1 - 1.5 * iqr, q3 + 1.5 * iqr
    beyond = sum(v < low or v > high for v in data)
    far = sum(v < mean - stddev or v > mean + stddev for v in data)
    return {
        "min": ordered[0], "max": ordered[-1], "mean": mean, "stddev": stddev, "rounds": n,
        "median": statistics.median(data), "iqr": iqr, "q1": q1, "q3": q3,
        "iqr_outliers": beyond, "stddev_outliers": far, "outliers": f"{far};{beyond}",
        "ld15iqr": ordered[min(bisect_left(ordered, low), n - 1)],
        "hd15iqr": ordered[max(bisect_right(ordered, high) - 1, 0)],
        "ops": n / sum(data) if sum(data) else 0, "total": sum(data),
    }  # fmt: skip


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the quartiles by method 2 of Wikipedia for an even count, method 3 for an odd one."""
    n, quarter = len(ordered), len(ordered) // 4
    if n == 1:
        return ordered[0], ordered[0]
    if n % 2 == 0:
        return statistics.median(ordered[: n // 2]), statistics.median(ordered[n // 2 :])
    if n % 4 == 1:
        return (
            0.25 * ordered[quarter - 1] + 0.75 * ordered[quarter],
            0.75 * ordered[3 * quarter] + 0.25 * ordered[3 * quarter + 1],
        )
    return (
        0.75 * ordered[quarter] + 0.25 * ordered[quarter + 1],
        0.25 * ordered[3 * quarter + 1] + 0.75 * ordered[3 * quarter + 2],
    )


# ---- tools that chart many runs


def github_action_benchmark(results: Results) -> str:
    """Return the entries for `tool: customSmallerIsBetter`: times in ns, bytes, joules."""
    rows = []
    for run in _without_canaries(results):
        for series in measured(run):
            if run.status == "ok" and series.metric in SMALLER_IS_BETTER:
                unit, factor = NANOSECONDS.get(series.unit, (series.unit, 1))
                s = describe(series.flat)
                context = [f"{k}: {escape.label(v)}" for k, v in _context(run)]
                extra = [f"samples: {s.n}", "range: the middle half", *context]
                rows.append({
                    "name": _named(run, series.metric), "unit": escape.label(unit), "value": s.median * factor,
                    "range": f"{s.q1 * factor:.6g} … {s.q3 * factor:.6g}", "extra": "\n".join(extra),
                })  # fmt: skip
    return _json(rows)


BENCHER = {"wall": "latency", "cpu": "cpu-time", "peak_bytes": "peak-bytes", "energy": "energy"}


def bencher(results: Results) -> str:
    """Return Bencher Metric Format: medians with their 95 % intervals; times in ns."""
    out: dict[str, dict[str, Any]] = {}
    for run in _without_canaries(results):
        if run.status != "ok":
            continue
        measures: dict[str, Any] = {}
        for series in measured(run):
            factor = NANOSECONDS.get(series.unit, (series.unit, 1))[1]
            s = describe(series.flat)
            measures[BENCHER.get(series.metric, escape.file_name(series.metric))] = {
                "value": s.median * factor, "lower_value": s.interval[0] * factor, "upper_value": s.interval[1] * factor,
            }  # fmt: skip
        if run.items_per_s:
            measures["throughput"] = {"value": run.items_per_s}
        if measures:
            name = _named(run, limit=1024)
            out[f"{name}." if name.endswith("-bencher-ignore") else name] = measures  # that suffix mutes alerts
    return _json(out)


def otava(results: Results) -> str:
    """Return one point in time for Apache Otava's JSON importer: put those of many runs into one array."""
    metrics = [
        {"name": _named(run, series.metric), "unit": escape.label(series.unit), "value": describe(series.flat).median}
        for run in results
        if run.status == "ok"
        for series in measured(run)
    ]
    origin = {"git_repo": "", "branch": "", "git_commit": escape.label(results.environment.commit)}
    labels = {"suite": escape.label(results.suite), "machine": results.environment.hard.key}
    return _json([{"timestamp": _epoch(results.created), "metrics": metrics, "attributes": origin | labels}])


def _epoch(created: str) -> int:
    """Return a time as seconds since 1970; 0 if it cannot be parsed."""
    try:
        return int(datetime.fromisoformat(created).timestamp())
    except ValueError:
        return 0


# ---- Prometheus, OpenMetrics, OpenTelemetry

QUANTILES = {"0.05": "p5", "0.25": "q1", "0.5": "median", "0.75": "q3", "0.95": "p95", "0.99": "p99"}


def prometheus(results: Results) -> str:
    """Return Prometheus text."""
    return telemetry.exposition(families(results))


def openmetrics(results: Results) -> str:
    """Return OpenMetrics text."""
    return telemetry.openmetrics(families(results))


def opentelemetry(results: Results) -> str:
    """Return a metrics request of OTLP in JSON, as an OpenTelemetry collector takes it."""
    e = results.environment
    attributes = {
        "service.name": "tritium",
        "service.version": e.tritium,
        "host.arch": e.hard.architecture,
        "os.type": e.hard.system,
    }
    return _json(telemetry.otlp(families(results), attributes, 10**9 * _epoch(results.created), e.tritium))


def families(results: Results) -> list[Family]:
    """Return a summary of each metric, the context as `_info`, and metrics without values, with the reason."""
    e, runs = results.environment, [(run, {"case": run.case, "arm": run.arm}) for run in results]
    build = {"version": e.tritium, "commit": e.commit, "python": e.python, "cpu": e.hard.cpu, "system": e.hard.system,
             "machine": e.hard.key, "suite": results.suite}  # fmt: skip
    began = Sample(_epoch(results.created), {"suite": results.suite})
    contexts = [Sample(1, labels | dict(_context(run))) for run, labels in runs]
    ended = [Sample(run.status == "ok", labels | {"status": run.status}) for run, labels in runs]
    absent = [
        Sample(1, labels | {"metric": s.metric, "reason": s.reason or "no values"})
        for run, labels in runs
        for s in run.series
        if not s.flat
    ]
    out = [
        Family("tritium_build_info", "Version and machine of the measurement.", [Sample(1, build)], "info"),
        Family("tritium_created_timestamp_seconds", "Start of the run.", [began]),
        Family("tritium_case_info", "Context of each case.", contexts, "info"),
        Family("tritium_run_ok", "1: measured, 0: not.", ended),
        Family("tritium_not_measured", "Metrics without values.", absent),
    ]
    summaries: dict[str, tuple[str, list[Sample]]] = {}
    for run, labels in runs:
        for series in (s for s in run.series if s.flat):
            help_text = f"{series.metric} of one call, over the batches"
            summaries.setdefault(_prometheus_name(series), (help_text, []))[1].extend(_summary(series, labels))
    return [*out, *(Family(name, *summary, "summary") for name, summary in summaries.items())]


def _summary(series: Series, labels: dict[str, str]) -> Iterator[Sample]:
    s = describe(series.flat)
    for quantile, field in QUANTILES.items():
        yield Sample(getattr(s, field), labels | {"quantile": quantile})
    yield Sample(sum(series.flat), labels, "_sum")
    yield Sample(s.n, labels, "_count")


def _prometheus_name(series: Series) -> str:
    """Return a metric's name, as tritium_wall_seconds; an estimate is another metric with another name."""
    unit = BASE_UNITS.get(series.unit, "")
    words = series.metric.removesuffix(f"_{unit}") if unit else series.metric
    parts = ["tritium", words, "estimate" * (series.kind == "estimate"), unit]
    return escape.prometheus_name("_".join(p for p in parts if p))


# ---- CSV: a row for each series, its figures, and its raw values in the last cell

RECORDS: dict[str, type] = {
    "results": Results, "run": Run, "context": Context, "series": Series, "work": Work, "plan": Plan,
    "environment": Environment, "hard": Hard, "statistics": Summary,
}  # fmt: skip
ALL = "*"
SEGMENTS = (
    ("results", "created suite"), ("run", "case arm status reason"), ("context", ALL), ("series", "metric unit kind reason"),
    ("statistics", "n median"), ("rates", "low high"), ("statistics", "mean stdev mad iqr q1 q3 p5 p95 p99 min max cv"),
    ("rates", "items_per_s gflops gbs"), ("run", "checked iterations warmup steady first_call_s flags facts"),
    ("work", ALL), ("series", "source exact details"), ("results", "kind command complete notes elapsed_s name description"),
    ("plan", ALL), ("hard", ALL),
    ("environment", "python tritium commit dirty packages kernel memory_gib virtual governor power_source load temperature_c variables"),
    ("values", "values"),
)  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One column of the CSV file: its head, and the field of a record it holds."""

    head: str
    record: str
    field: str


def _columns() -> tuple[Column, ...]:
    out: dict[str, Column] = {}
    for record, listed in SEGMENTS:
        chosen = [f.name for f in fields(RECORDS[record])] if listed == ALL else listed.split()
        for field in chosen:
            head = f"{record}_{field}" if field in out else field
            out[head] = Column(head, record, field)
    return tuple(out.values())


COLUMNS = _columns()


def csv(results: Results, guard: bool = True) -> str:
    """Return a row for each metric of each run, every number in full. `guard` keeps cells from being formulas."""
    out = io.StringIO()
    writer = csv_text.writer(out, quoting=csv_text.QUOTE_NONNUMERIC)
    writer.writerow([column.head for column in COLUMNS])
    for run in results:
        for series in run.series or (Series("", ""),):
            holders = _holders(results, run, series)
            writer.writerow([_cell(holders[c.record].get(c.field), guard) for c in COLUMNS])
    return out.getvalue()


def _holders(results: Results, run: Run, series: Series) -> dict[str, dict[str, Any]]:
    """Return the records that the columns read from, by name."""
    objects: dict[str, Any] = {
        "results": results, "run": run, "context": run.context, "series": series, "work": run.work, "plan": results.plan,
        "environment": results.environment, "hard": results.environment.hard,
    }  # fmt: skip
    holders: dict[str, dict[str, Any]] = {
        name: {f.name: getattr(record, f.name) for f in fields(record)} for name, record in objects.items()
    }
    holders |= {"statistics": {}, "rates": {}, "values": {"values": _values(series)}}
    if series.flat:
        s = describe(series.flat)
        holders["statistics"] = {f.name: getattr(s, f.name) for f in fields(s)}
        holders["rates"] = {"low": s.interval[0], "high": s.interval[1]}
    if series.metric == "wall" and series.flat:
        holders["rates"] |= {"items_per_s": run.items_per_s, "gflops": run.gflops, "gbs": run.gbs}
    return holders


def _values(series: Series) -> str:
    """Return raw values as text: processes separated by `|`, rounds by `/`, batches by spaces."""
    return " | ".join(" / ".join(" ".join(map(repr, batches)) for batches in rounds) for rounds in series.values)


def _cell(value: Any, guard: bool) -> Any:
    """Return a value as a CSV cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, tuple) and all(type(v) is int for v in value):
        return "x".join(map(str, value))
    return escape.csv(value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False), guard)


# ---- Markdown


def markdown(results: Results) -> str:
    """Return a table for people: median, its 95 % interval, rates, memory; and failures."""
    heads = ["case", "contender", "time of a call", "95 %", "batches", "rate", "peak memory", ""]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|--:|---|--:|--:|--:|---|"]
    for run in _without_canaries(results):
        cells = [escape.markdown(run.case), escape.markdown(run.arm), *_figures(run)]
        lines.append("| " + " | ".join(cells) + " |")
    e = results.environment
    threads = f"{e.hard.threads} threads" if e.hard.threads else ""  # results of other tools may not have it
    origin = [e.hard.cpu, threads, f"Python {e.python}", f"tritium {e.tritium}", e.commit[:12]]
    lines += ["", f"{escape.markdown(', '.join(part for part in origin if part))}, {escape.markdown(results.created)}"]
    return "\n".join([*lines, *(f"- {escape.markdown(note, None)}" for note in results.notes)]) + "\n"


def _figures(run: Run) -> list[str]:
    if not _timed(run):
        return ["", "", "", "", "", f"{run.status}: {escape.markdown(run.reason)}" if run.reason else run.status]
    s = describe(next(s for s in measured(run) if s.metric == "wall").flat)
    rate = f"{run.gflops:.4g} GFLOP/s" if run.gflops else f"{run.gbs:.4g} GB/s" if run.gbs else ""
    peak = run.of("peak_bytes")
    memory = bytes_text(peak.median) if peak and peak.median else ""
    between = f"{seconds_text(s.interval[0])} … {seconds_text(s.interval[1])}"
    return [seconds_text(s.median), between, str(s.n), rate, memory, ", ".join(escape.markdown(f) for f in run.flags)]


@dataclass(frozen=True)
class ExportFormat:
    """A format that results can be written in."""

    suffix: str
    what: str
    write: Callable[[Results], str]


FORMATS = {
    "json": ExportFormat(".json", "Tritium's own: everything, with a hash", own),
    "csv": ExportFormat(".csv", "a row for each metric of each run, raw values included; loads back", csv),
    "markdown": ExportFormat(".md", "a table for people", markdown),
    "pytest-benchmark": ExportFormat(".json", "as pytest --benchmark-json writes it; loads back", pytest_benchmark),
    "github-action-benchmark": ExportFormat(".json", "for its tool customSmallerIsBetter", github_action_benchmark),
    "bencher": ExportFormat(".json", "Bencher Metric Format", bencher),
    "otava": ExportFormat(".json", "one point in time for Apache Otava", otava),
    "prometheus": ExportFormat(".prom", "Prometheus text", prometheus),
    "openmetrics": ExportFormat(".txt", "OpenMetrics text", openmetrics),
    "opentelemetry": ExportFormat(".json", "OTLP metrics in JSON, for an OpenTelemetry collector", opentelemetry),
}

"""Results of Python's benchmark tools: pytest-benchmark, pyperf and asv.

What a file lacks (raw values, the machine) is recorded in flags and notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice, product
from typing import Any

from tritium import escape
from tritium.errors import FormatError
from tritium.perf.formats.fields import (
    MAX_RUNS,
    MAX_VALUES,
    NOT_CHECKED,
    SUMMARY_ONLY,
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
    times_of,
    word_of,
)
from tritium.perf.records.case import Context
from tritium.perf.records.json_io import read
from tritium.perf.records.run import Results, Run, Series

# ---- pytest-benchmark


def looks_like_pytest_benchmark(data: Any) -> bool:
    return isinstance(data, dict) and "benchmarks" in data and "machine_info" in data


def pytest_benchmark(data: Any, where: str) -> Results:
    """Read a file of pytest --benchmark-json, ours included."""
    machine, commit = object_of(data.get("machine_info"), f"{where}.machine_info"), data.get("commit_info") or {}
    rows = array_of(data.get("benchmarks"), f"{where}.benchmarks")
    runs = [_one_benchmark(row, f"{where}.benchmarks[{i}]") for i, row in enumerate(rows)]
    if "tritium" in data:
        rest = read(Results, data["tritium"], f"{where}.tritium")
        return replace(rest, runs=(*runs, *rest.runs))
    object_of(commit, f"{where}.commit_info")
    section = f"{where}.machine_info"
    cpu_info = machine.get("cpu")
    cpu: dict[str, Any] = cpu_info if isinstance(cpu_info, dict) else {}
    flags = array_of(cpu.get("flags") or [], f"{section}.cpu.flags")
    environment = environment_of(
        cpu=word_of(cpu, "brand_raw", section) or word_of(machine, "processor", section), cpus=count_of(cpu, "count", section, 1 << 20),
        architecture=word_of(machine, "machine", section), system=word_of(machine, "system", section),
        python=word_of(machine, "python_version", section), kernel=word_of(machine, "release", section),
        commit=word_of(commit, "id", where).removeprefix("unversioned"), dirty=commit.get("dirty") is True, flags=[str(f) for f in flags],
    )  # fmt: skip
    return results_of("pytest-benchmark", word_of(data, "datetime", where), environment, runs)


def _one_benchmark(row: Any, where: str) -> Run:
    """Return the run of one entry."""
    row, stats = object_of(row, where), object_of(row.get("stats") if isinstance(row, dict) else None, f"{where}.stats")
    data = stats.get("data")
    values = times_of(data, f"{where}.stats.data") if data else [time_of(stats.get("median"), f"{where}.stats.median")]
    extra = row.get("extra_info") if isinstance(row.get("extra_info"), dict) else {}
    if isinstance(extra.get("tritium"), dict):
        return _our_benchmark(extra["tritium"], values, f"{where}.extra_info.tritium")
    case = text_of(row.get("fullname") or row.get("name"), f"{where}.fullname")
    info = {k: row.get(k) for k in ("name", "group", "params", "param")} | {"extra_info": extra}
    source, samples = "pytest-benchmark", count_of(stats, "rounds", f"{where}.stats")
    spread = max(number_of(stats.get("stddev") or 0, f"{where}.stats.stddev"), 0.0)
    series = Series("wall", "s", one_process(values), source=source)
    return Run(
        case, "pytest", Context(word_of(row, "name", where)), iterations=count_of(stats, "iterations", where),
        checked=NOT_CHECKED, flags=() if data else (SUMMARY_ONLY,), facts={"pytest": info},
        series=(series if data else summary(values[0], source, samples=samples, stdev=spread),),
    )  # fmt: skip


def _our_benchmark(record: dict[str, Any], values: list[float], where: str) -> Run:
    """Return a run that Tritium exported, with its values put back into their rounds."""
    series = [dict(object_of(s, where)) for s in array_of(record.get("series"), f"{where}.series")]
    for entry in series:
        if entry.get("metric") == "wall":
            entry["values"] = _in_rounds(entry.get("values"), values, where)
    return read(Run, record | {"series": series}, where)


def _in_rounds(counts: Any, values: Sequence[float], where: str) -> list[list[list[float]]]:
    """Return the values by process and round."""
    remaining, out = iter(values), []
    for process in array_of(counts, where):
        rounds = []
        for count in array_of(process, where, MAX_VALUES):
            if type(count) is not int or not 0 <= count <= len(values):
                raise FormatError(f"{where}: {str(count)[:20]} batches in a round; there are at most {len(values)}.")
            rounds.append(list(islice(remaining, count)))
        out.append(rounds)
    if sum(len(r) for g in out for r in g) != len(values):
        raise FormatError(f"{where}: the rounds do not hold the {len(values)} values of stats.data.")
    return out


# ---- pyperf

PYPERF_UNITS = {"second": ("wall", "s"), "byte": ("bytes", "B"), "integer": ("count", "1")}


def looks_like_pyperf(data: Any) -> bool:
    return isinstance(data, dict) and "benchmarks" in data and "metadata" in data and "version" in data


def pyperf(data: Any, where: str) -> Results:
    """Read a file of pyperf: each of its processes is one here."""
    shared = object_of(data.get("metadata"), f"{where}.metadata")
    runs, dates = [], []
    for i, row in enumerate(array_of(data.get("benchmarks"), f"{where}.benchmarks")):
        section = f"{where}.benchmarks[{i}]"
        metadata = shared | object_of(object_of(row, section).get("metadata") or {}, f"{section}.metadata")
        processes = [object_of(r, f"{section}.runs") for r in array_of(row.get("runs"), f"{section}.runs")]
        dates += [
            str(p["metadata"]["date"])
            for p in processes
            if isinstance(p.get("metadata"), dict) and "date" in p["metadata"]
        ]
        runs.append(_one_pyperf(metadata, processes, section))
    section = f"{where}.metadata"
    system, _, release = word_of(shared, "platform", section).partition("-")
    environment = environment_of(
        cpu=word_of(shared, "cpu_model_name", section), cpus=count_of(shared, "cpu_count", section, 1 << 20), system=system,
        python=word_of(shared, "python_version", section), kernel=release,
    )  # fmt: skip
    return results_of("pyperf", min(dates, default="")[:26].replace(" ", "T"), environment, runs)


def _one_pyperf(metadata: dict[str, Any], processes: list[dict[str, Any]], where: str) -> Run:
    """Return the run of one benchmark."""
    unit = word_of(metadata, "unit", where) or "second"
    if unit not in PYPERF_UNITS:
        raise FormatError(f"{where}: the unit {unit[:30]!r}; {', '.join(PYPERF_UNITS)} are known.")
    metric, short = PYPERF_UNITS[unit]
    check = time_of if unit == "second" else number_of
    values = tuple(
        tuple((check(v, f"{where}.runs[{i}]"),) for v in array_of(p["values"], f"{where}.runs[{i}].values", MAX_VALUES))
        for i, p in enumerate(processes)
        if p.get("values")
    )
    if not values:
        raise FormatError(f"{where}: no run with values.")
    name = text_of(metadata.get("name"), f"{where}.metadata.name")
    warmups = max((len(array_of(p.get("warmups") or [], where)) for p in processes if p.get("values")), default=0)
    notes = {
        k: v
        for k, v in metadata.items()
        if k in ("timer", "cpu_config", "cpu_freq", "timeit_stmt", "command", "description")
    }
    return Run(
        name, "pyperf", Context(name), iterations=count_of(metadata, "loops", where), warmup=warmups,
        checked=NOT_CHECKED, series=(Series(metric, short, values, source="pyperf"),), facts={"pyperf": notes},
    )  # fmt: skip


# ---- asv

ASV_METRICS = {
    "time": ("wall", "s"),
    "peakmem": ("peak_rss", "B"),
    "mem": ("object_bytes", "B"),
    "track": ("value", "1"),
}


def looks_like_asv(data: Any) -> bool:
    return isinstance(data, dict) and "commit_hash" in data and "results" in data and "env_name" in data


def asv(data: Any, where: str) -> Results:
    """Read a result file of airspeed velocity: all benchmarks of one commit in one environment."""
    columns = [
        text_of(c, f"{where}.result_columns") for c in array_of(data.get("result_columns"), f"{where}.result_columns")
    ]
    machine = object_of(data.get("params") or {}, f"{where}.params")
    runs: list[Run] = []
    for name, row in object_of(data["results"], f"{where}.results").items():
        place = f"{where}.results.{escape.visible(name, 60)}"
        cells = array_of(row, place)
        runs += _asv_runs(text_of(name, place), dict(zip(columns, cells, strict=False)), place)
        if len(runs) > MAX_RUNS:
            raise FormatError(f"{where}: more than {MAX_RUNS} runs.")
    cpus = word_of(machine, "num_cpu", f"{where}.params")
    system, _, kernel = word_of(machine, "os", f"{where}.params").partition(" ")
    environment = environment_of(
        cpu=word_of(machine, "cpu", f"{where}.params"), cpus=int(cpus) if cpus.isdecimal() and len(cpus) < 8 else 0,
        architecture=word_of(machine, "arch", f"{where}.params"), system=system, kernel=kernel,
        python=word_of(data, "python", where), commit=word_of(data, "commit_hash", where),
    )  # fmt: skip
    return results_of("asv", _asv_date(data.get("date"), where), environment, runs)


def _asv_date(value: Any, where: str) -> str:
    """Return milliseconds since 1970 as UTC."""
    if value is None:
        return ""
    seconds = number_of(value, f"{where}.date") / 1000
    if not 0 <= seconds < 2**33:
        raise FormatError(f"{where}.date: {seconds * 1000:g}; milliseconds since 1970 are needed.")
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _asv_runs(name: str, row: dict[str, Any], where: str) -> Iterator[Run]:
    """Yield a run for every combination of a benchmark's parameters; null is one that failed, "n/a" one that was skipped."""
    results = array_of(row.get("result") or [], f"{where}.result")
    axes = [array_of(axis, f"{where}.params") for axis in array_of(row.get("params") or [], f"{where}.params", 32)]
    kind = name.rpartition(".")[2].partition("_")[0]
    metric, unit = ASV_METRICS.get(kind, ASV_METRICS["track"])
    for i, (value, chosen) in enumerate(zip(results, islice(product(*axes), MAX_RUNS), strict=False)):
        words = ", ".join(text_of(str(c)[:200], where) for c in chosen)
        case = f"{name}({words})" if words else name
        context = Context(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            yield Run(case, "asv", context, status="failed", reason="the file holds no value", checked=NOT_CHECKED)
            continue
        samples = _of_column(row, "samples", i, where)
        iterations = _of_column(row, "stats_number", i, where)
        series = (
            Series(metric, unit, one_process(times_of(samples, f"{where}.samples[{i}]")), source="asv")
            if samples
            else _asv_summary(metric, unit, number_of(value, f"{where}.result[{i}]"), row, i, where)
        )
        yield Run(
            case, "asv", context, iterations=count_of({"n": iterations}, "n", where) if iterations else 1,
            checked=NOT_CHECKED, series=(series,), flags=() if samples or metric != "wall" else (SUMMARY_ONLY,),
        )  # fmt: skip


def _asv_summary(metric: str, unit: str, value: float, row: dict[str, Any], index: int, where: str) -> Series:
    """Return the series of a value without samples; the quartiles of a time tell its spread."""
    if metric != "wall":
        return Series(metric, unit, one_process([value]), source="asv")
    repeats = _of_column(row, "stats_repeat", index, where)
    quartiles = [_of_column(row, f"stats_q_{q}", index, where) for q in (25, 75)]
    spread = 0.0
    if all(q is not None for q in quartiles):
        low, high = (number_of(q, where) for q in quartiles)
        spread = max(high - low, 0.0) / 1.349  # of a normal distribution
    count = count_of({"n": repeats}, "n", where) if repeats else 0
    return summary(time_of(value, where), "asv", samples=count, stdev=spread)


def _of_column(row: dict[str, Any], column: str, index: int, where: str) -> Any:
    """Return the entry of one combination of parameters; None where the file has none."""
    entries = row.get(column)
    if entries is None:
        return None
    entries = array_of(entries, f"{where}.{column}")
    return entries[index] if index < len(entries) else None

"""Results of tools for compiled programs: Google Benchmark, hyperfine and NVBench.

What a file lacks (raw values, the machine) is recorded in flags and notes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tritium.errors import FormatError, MissingFileError
from tritium.machine.files import named, read_bytes
from tritium.perf.formats.fields import (
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
    unit_of,
    word_of,
)
from tritium.perf.records.case import Context, Work
from tritium.perf.records.run import Results, Run, Series

# ---- Google Benchmark


def looks_like_google(data: Any) -> bool:
    return isinstance(data, dict) and "benchmarks" in data and "context" in data


def google_benchmark(data: Any, where: str) -> Results:
    """Read a file of Google Benchmark: every repetition is a round of one process."""
    context = object_of(data.get("context"), f"{where}.context")
    rows: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for i, entry in enumerate(array_of(data.get("benchmarks"), f"{where}.benchmarks")):
        place = f"{where}.benchmarks[{i}]"
        row = object_of(entry, place)
        name = text_of(row.get("run_name") or row.get("name"), f"{place}.run_name")
        rows.setdefault(name, []).append((place, row))
    runs = [run for name, entries in rows.items() if (run := _google_run(name, entries)) is not None]
    cpus = count_of(context, "num_cpus", f"{where}.context", 1 << 20)
    host = word_of(context, "host_name", f"{where}.context")  # all that the file tells of its processor
    environment = environment_of(cpu=f"host {host}" if host else "", cpus=cpus)
    build = word_of(context, "library_build_type", f"{where}.context")
    notes = ("the benchmark library was built for debugging: its times are too long",) if build == "debug" else ()
    return results_of("google-benchmark", word_of(context, "date", f"{where}.context"), environment, runs, notes)


def _google_run(name: str, entries: list[tuple[str, dict[str, Any]]]) -> Run | None:
    """Return the run of one benchmark: its repetitions, or their median where the file has only aggregates."""
    context = Context(name, precision="", threads=count_of(entries[0][1], "threads", entries[0][0], 1 << 20) or 1)
    for place, row in entries:
        if row.get("error_occurred"):
            reason = word_of(row, "error_message", place)
            return Run(name, "google-benchmark", context, status="failed", reason=reason, checked=NOT_CHECKED)
    single = [(p, r) for p, r in entries if r.get("run_type", "iteration") == "iteration" and "aggregate_name" not in r]
    if not single:
        return _google_summary(name, context, entries)
    wall, cpu = (
        [time_of(r.get(key), f"{p}.{key}") * unit_of(word_of(r, "time_unit", p) or "ns", p) for p, r in single]
        for key in ("real_time", "cpu_time")
    )
    series = (
        Series("wall", "s", one_process(wall), source="google-benchmark"),
        Series("cpu", "s", one_process(cpu), source="google-benchmark"),
    )
    place, row = single[0]
    per_call = wall[0] if "/real_time" in name or "/manual_time" in name else cpu[0]  # of what its rates are
    items, moved = (
        round(number_of(row.get(key) or 0, f"{place}.{key}") * per_call)
        for key in ("items_per_second", "bytes_per_second")
    )
    work = Work(read=max(moved, 0), items=items if items > 0 else 1, item="item" if items > 0 else "call")
    return Run(
        name, "google-benchmark", context, work, iterations=count_of(row, "iterations", place), checked=NOT_CHECKED,
        series=series,
    )  # fmt: skip


def _google_summary(name: str, context: Context, entries: list[tuple[str, dict[str, Any]]]) -> Run | None:
    """Return the run of aggregates; None where they are not of time (complexity)."""
    by_name = {word_of(r, "aggregate_name", p): (p, r) for p, r in entries}
    if not {"median", "mean"} & by_name.keys():
        return None
    place, row = by_name.get("median") or by_name["mean"]
    scale = unit_of(word_of(row, "time_unit", place) or "ns", place)
    spread = 0.0
    if "stddev" in by_name:
        p, r = by_name["stddev"]
        spread = max(number_of(r.get("real_time"), f"{p}.real_time"), 0.0) * scale
    series = summary(
        time_of(row.get("real_time"), f"{place}.real_time") * scale, "google-benchmark",
        samples=count_of(row, "repetitions", place), stdev=spread,
    )  # fmt: skip
    return Run(
        name, "google-benchmark", context, iterations=1, checked=NOT_CHECKED, series=(series,), flags=(SUMMARY_ONLY,)
    )


# ---- hyperfine


def looks_like_hyperfine(data: Any) -> bool:
    if not isinstance(data, dict) or not isinstance(data.get("results"), list) or not data["results"]:
        return False
    first = data["results"][0]
    return isinstance(first, dict) and "command" in first and "mean" in first


def hyperfine(data: Any, where: str) -> Results:
    """Read a file of hyperfine: every run of a command is a process of its own."""
    rows = array_of(data["results"], f"{where}.results")
    runs = [
        _one_command(object_of(row, f"{where}.results[{i}]"), f"{where}.results[{i}]") for i, row in enumerate(rows)
    ]
    return results_of("hyperfine", "", environment_of(), runs)


def _one_command(row: dict[str, Any], where: str) -> Run:
    case = text_of(row.get("command"), f"{where}.command")
    times = row.get("times")
    if times:
        each = tuple(((v,),) for v in times_of(times, f"{where}.times"))
        series = [Series("wall", "s", each, source="hyperfine")]
    else:
        spread = max(number_of(row.get("stddev") or 0, f"{where}.stddev"), 0.0)
        middle = row.get("median") if row.get("median") is not None else row.get("mean")
        series = [summary(time_of(middle, f"{where}.median"), "hyperfine", stdev=spread)]
    if sizes := row.get("memory_usage_byte"):
        counted = [number_of(v, f"{where}.memory_usage_byte") for v in array_of(sizes, where, MAX_VALUES)]
        series.append(Series("rss_bytes", "B", tuple(((v,),) for v in counted), source="hyperfine"))
    codes = row.get("exit_codes")
    failed = sum(c != 0 for c in array_of(codes, f"{where}.exit_codes", MAX_VALUES)) if codes else 0
    flags = [f"{failed} of {len(codes)} runs ended with an exit code other than 0"] if failed and codes else []
    return Run(
        case, "hyperfine", Context(case[:200], precision=""), iterations=1, checked=NOT_CHECKED, series=tuple(series),
        flags=(*flags, *(() if times else (SUMMARY_ONLY,))),
    )  # fmt: skip


# ---- NVBench

# Isolated kernels first: their times are those that NVBench's own scripts compare.
NVBENCH_TIMES = ("nv/cold/time/gpu", "nv/cpu_only/time/cpu", "nv/batch/time/gpu")
NVBENCH_SAMPLES = "nv/json/bin:nv/cold/sample_times"


def looks_like_nvbench(data: Any) -> bool:
    return isinstance(data, dict) and "benchmarks" in data and "devices" in data and "meta" in data


def nvbench(data: Any, where: str, path: Path) -> Results:
    """Read a file of NVBench, with the samples that --jsonbin wrote beside it where they are there."""
    listed = [object_of(d, f"{where}.devices") for d in array_of(data.get("devices") or [], f"{where}.devices", 1024)]
    gpus = {count_of(d, "id", f"{where}.devices"): word_of(d, "name", f"{where}.devices") for d in listed}
    runs: list[Run] = []
    for i, entry in enumerate(array_of(data.get("benchmarks"), f"{where}.benchmarks")):
        place = f"{where}.benchmarks[{i}]"
        row = object_of(entry, place)
        name = text_of(row.get("name"), f"{place}.name")
        for j, state in enumerate(array_of(row.get("states") or [], f"{place}.states")):
            section = f"{place}.states[{j}]"
            runs.append(_one_state(name, object_of(state, section), gpus, path, section))
    environment = environment_of(gpus=tuple(gpus.values()))
    return results_of("nvbench", "", environment, runs)


def _one_state(name: str, state: dict[str, Any], gpus: dict[int, str], path: Path, where: str) -> Run:
    """Return the run of one combination of a benchmark's axes."""
    case = " ".join(filter(None, (name, word_of(state, "name", where))))
    device = gpus.get(count_of(state, "device", where), "")
    context = Context(name, precision="", device=device or "gpu")
    if state.get("is_skipped"):
        reason = word_of(state, "skip_reason", where)
        return Run(case, "nvbench", context, status="skipped", reason=reason, checked=NOT_CHECKED)
    figures = dict(_figures(state, where))
    series = _sidecar(figures, path, where) or _nvbench_summary(figures, where)
    if series is None:
        reason = "the file holds no time of it"
        return Run(case, "nvbench", context, status="failed", reason=reason, checked=NOT_CHECKED)
    raw = len(series.flat) > 1
    return Run(
        case,
        "nvbench",
        context,
        iterations=1,
        checked=NOT_CHECKED,
        series=(series,),
        flags=() if raw else (SUMMARY_ONLY,),
    )


def _figures(state: dict[str, Any], where: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the summaries of a state by their tags; NVBench writes numbers as text."""
    for entry in array_of(state.get("summaries") or [], f"{where}.summaries", 10_000):
        figure = object_of(entry, f"{where}.summaries")
        values = [object_of(v, f"{where}.summaries") for v in array_of(figure.get("data") or [], where, 100)]
        yield word_of(figure, "tag", where), {word_of(v, "name", where): word_of(v, "value", where) for v in values}


def _value(figures: dict[str, dict[str, str]], tag: str, where: str) -> float | None:
    """Return the number of a summary; None where it is absent or not finite, as the noise of a single sample is."""
    text = figures.get(tag, {}).get("value")
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        raise FormatError(f"{where}, {tag}: {text[:30]!r} is not a number.") from None
    return number if math.isfinite(number) else None


def _nvbench_summary(figures: dict[str, dict[str, str]], where: str) -> Series | None:
    """Return the median or mean time of a state, with its spread and the number of its samples."""
    for prefix in NVBENCH_TIMES:
        middle = _value(figures, f"{prefix}/median", where) or _value(figures, f"{prefix}/mean", where)
        if middle is None:
            continue
        relative, absolute = (_value(figures, f"{prefix}/stdev/{kind}", where) for kind in ("relative", "absolute"))
        spread = absolute if absolute is not None else (relative or 0.0) * middle
        samples = _value(figures, f"{prefix.partition('/time')[0]}/sample_size", where) or 0
        count = count_of({"n": samples}, "n", f"{where}, sample_size")
        return summary(time_of(middle, f"{where}, {prefix}"), prefix, samples=count, stdev=max(spread, 0.0))
    return None


def _sidecar(figures: dict[str, dict[str, str]], path: Path, where: str) -> Series | None:
    """Return the samples in the file that --jsonbin wrote: little-endian f32, in a folder beside the JSON file.

    The JSON file names it as seen from the folder where NVBench ran, so only its last two parts count.
    """
    entry = figures.get(NVBENCH_SAMPLES, {})
    if "filename" not in entry or not entry.get("size", "").isdecimal():
        return None
    size = int(entry["size"][:20])
    parts = PurePosixPath(entry["filename"]).parts[-2:]
    if ".." in parts or len(parts) != 2 or not 0 < size <= MAX_VALUES:
        raise FormatError(
            f"{where}: the samples are said to be {size} in {entry['filename'][:100]!r}; that is no such file."
        )
    file = path.parent / parts[0] / parts[1]
    try:
        raw = read_bytes(file, 4 * MAX_VALUES)
    except MissingFileError:
        return None  # moved away from them: the summary is still there
    if len(raw) != 4 * size:
        raise FormatError(f"{named(file)}: {len(raw)} bytes; {size} samples of 4 are needed.")
    values = [time_of(v, f"{named(file)}[{i}]") for i, v in enumerate(struct.unpack(f"<{size}f", raw))]
    return Series("wall", "s", one_process(values), source=f"{NVBENCH_TIMES[0]}, samples")

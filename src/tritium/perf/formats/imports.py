"""Results of other tools: pytest-benchmark, pyperf, llama-bench and our CSV files, read as `Results`.

Knows nothing of comparing. Files are untrusted: size, depth, types and numbers are checked, names stay text, and nothing
in them is run. What such a file lacks (raw values, the machine) is recorded in flags and notes.
"""

from __future__ import annotations

import csv as csv_text
import io
import math
import os
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from itertools import islice
from typing import Any

from tritium import escape
from tritium.arguments import checked
from tritium.errors import ArgumentError, FormatError, nearest
from tritium.machine.facts import digest
from tritium.machine.files import decoded, named, read_bytes
from tritium.perf.formats import exports
from tritium.perf.formats.exports import COLUMNS, RECORDS
from tritium.perf.records.case import Context, Work
from tritium.perf.records.environment import Environment, Hard
from tritium.perf.records.json_io import loads, plain, read
from tritium.perf.records.run import GATING, Plan, Results, Run, Series, Values
from tritium.perf.store import results as store

MAX_NAME = 4096
MAX_RUNS = 100_000
SUMMARY_ONLY = "only a summary: the file holds no raw values"


@checked
def load(path: str | os.PathLike[str], format: str | None = None) -> Results:
    """Return results from a file of any known format, which is detected from the content unless it is named."""
    if format is not None and format not in FORMATS:
        raise ArgumentError(
            f"there is no format {format!r} to read; there are {', '.join(FORMATS)}.{nearest(format, FORMATS)}"
        )
    where, raw = named(path), read_bytes(path)
    if raw.startswith(b"\x1f\x8b"):
        raise FormatError(f"{where}: compressed with gzip; unpack it first: gunzip FILE.")
    text = decoded(raw, where).removeprefix("\ufeff")
    data = None if format == "csv" else _parse(text, where, format)
    detected = format or _detect(text, data, where)
    if format is not None and not FORMATS[format].looks(_head(text) if data is None else data):
        raise FormatError(f"{where}: not a file of {format} ({FORMATS[format].what}).")
    return store.load(path) if detected == "json" else FORMATS[detected].read(text if data is None else data, where)


def _parse(text: str, where: str, format: str | None) -> Any:
    """Return the JSON of a file, or of each of its lines; None if it is not JSON."""
    if text.lstrip()[:1] not in ("{", "["):
        if format is not None:
            raise FormatError(
                f"{where}: a file of {format} is JSON; this one begins with {escape.visible(text[:20])!r}."
            )
        return None
    lines = text.strip().splitlines()
    if len(lines) > 1 and all(line.startswith("{") and line.rstrip().endswith("}") for line in lines):
        return [loads(line, f"{where}: line {i}") for i, line in enumerate(lines, 1)]
    return loads(text, where)


def _detect(text: str, data: Any, where: str) -> str:
    """Return the name of the format of a file, or raise FormatError."""
    for name, format in FORMATS.items():
        if format.looks(_head(text) if data is None else data):
            return name
    raise FormatError(f"{where}: none of the formats that can be read: {', '.join(FORMATS)}.")


def _head(text: str) -> str:
    return text[:4096].partition("\n")[0]


# ---- shared by all readers


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise FormatError(f"{where}: text is needed, given {type(value).__name__}.")
    if len(value) > MAX_NAME:
        raise FormatError(f"{where}: {len(value)} characters; at most {MAX_NAME} make a name.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise FormatError(f"{where}: holds half a character (a lone surrogate); write whole ones.") from None
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FormatError(f"{where}: a number is needed, given {type(value).__name__}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise FormatError(f"{where}: {str(value)[:30]} is no finite number.")
    return number


def _time(value: Any, where: str) -> float:
    number = _number(value, where)
    if number <= 0:
        raise FormatError(f"{where}: a time of {number:g} s; more than 0 is needed.")
    return number


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"{where}: an object is needed, given {type(value).__name__}.")
    return value


def _array(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise FormatError(f"{where}: an array is needed, given {type(value).__name__}.")
    if len(value) > MAX_RUNS:
        raise FormatError(f"{where}: {len(value)} entries; at most {MAX_RUNS} are read.")
    return value


def _word(table: Mapping[str, Any], key: str, where: str) -> str:
    """Return text that may be absent or a number."""
    value = table.get(key)
    return "" if value is None else _text(value if isinstance(value, str) else str(value)[:100], f"{where}.{key}")


def _count(table: Mapping[str, Any], key: str, where: str, most: int = 2**53) -> int:
    """Return an integer that may be absent."""
    value = _number(table.get(key) or 0, f"{where}.{key}")
    if value != int(value) or not 0 <= value <= most:
        raise FormatError(f"{where}.{key}: {value:g}; an integer from 0 to {most} is needed.")
    return int(value)


def _environment(*, cpu: str = "", architecture: str = "", system: str = "", cpus: int = 0, python: str = "", kernel: str = "",
                 commit: str = "", dirty: bool = False, flags: Sequence[str] = (), gpus: tuple[str, ...] = ()) -> Environment:  # fmt: skip
    """Return the environment a file describes; two files of one machine get the same fingerprint."""
    hashed = digest(sorted(flags))[:16] if flags else ""
    hard = Hard(cpu, hashed, cpus, cpus, architecture, system, "", 0, gpus)
    return Environment(hard, python, "", commit, dirty, {}, kernel, 0.0, "", "", "", 0.0, None)


def _results(
    format: str, created: str, environment: Environment, runs: Iterable[Run], notes: Sequence[str] = ()
) -> Results:
    """Return runs from elsewhere as results; duplicate names are numbered."""
    seen: Counter[tuple[str, str]] = Counter()
    out = []
    for run in runs:
        seen[run.key] += 1
        out.append(run if seen[run.key] == 1 else replace(run, case=f"{run.case} ({seen[run.key]})"))
    values = [s.values for run in out for s in run.series]
    generations = max((len(v) for v in values), default=1)
    gates = bool(values) and min(len(v) for v in values) >= GATING
    least = () if gates else (f"fewer than {GATING} processes: shows intervals, gates nothing",)
    plan = Plan(
        "imported", generations, max((len(g) for v in values for g in v), default=1), 1, gates=gates, metrics=("wall",)
    )
    return Results(
        "import", format, created, f"imported from {format}", plan, environment,
        tuple(dict.fromkeys(run.arm for run in out)), tuple(out), (*notes, *least),
    )  # fmt: skip


def _flat(values: Sequence[float]) -> Values:
    """Return the values as one process with a batch in each round."""
    return (tuple((v,) for v in values),)


# ---- pytest-benchmark


def _looks_like_pytest_benchmark(data: Any) -> bool:
    return isinstance(data, dict) and "benchmarks" in data and "machine_info" in data


def pytest_benchmark(data: Any, where: str) -> Results:
    """Read a file of pytest --benchmark-json, ours included."""
    machine, commit = _object(data.get("machine_info"), f"{where}.machine_info"), data.get("commit_info") or {}
    rows = _array(data.get("benchmarks"), f"{where}.benchmarks")
    runs = [_one_benchmark(row, f"{where}.benchmarks[{i}]") for i, row in enumerate(rows)]
    if "tritium" in data:
        rest = read(Results, data["tritium"], f"{where}.tritium")
        return replace(rest, runs=(*runs, *rest.runs))
    _object(commit, f"{where}.commit_info")
    section = f"{where}.machine_info"
    cpu_info = machine.get("cpu")
    cpu: dict[str, Any] = cpu_info if isinstance(cpu_info, dict) else {}
    flags = _array(cpu.get("flags") or [], f"{section}.cpu.flags")
    environment = _environment(
        cpu=_word(cpu, "brand_raw", section) or _word(machine, "processor", section), cpus=_count(cpu, "count", section, 1 << 20),
        architecture=_word(machine, "machine", section), system=_word(machine, "system", section),
        python=_word(machine, "python_version", section), kernel=_word(machine, "release", section),
        commit=_word(commit, "id", where).removeprefix("unversioned"), dirty=commit.get("dirty") is True, flags=[str(f) for f in flags],
    )  # fmt: skip
    return _results("pytest-benchmark", _word(data, "datetime", where), environment, runs)


def _one_benchmark(row: Any, where: str) -> Run:
    """Return the run of one entry."""
    row, stats = _object(row, where), _object(row.get("stats") if isinstance(row, dict) else None, f"{where}.stats")
    data = stats.get("data")
    if data:
        values = [_time(v, f"{where}.stats.data[{i}]") for i, v in enumerate(_array(data, f"{where}.stats.data"))]
    else:
        values = [_time(stats.get("median"), f"{where}.stats.median")]
    extra = row.get("extra_info") if isinstance(row.get("extra_info"), dict) else {}
    if isinstance(extra.get("tritium"), dict):
        return _our_benchmark(extra["tritium"], values, f"{where}.extra_info.tritium")
    case = _text(row.get("fullname") or row.get("name"), f"{where}.fullname")
    info = {k: row.get(k) for k in ("name", "group", "params", "param")} | {"extra_info": extra}
    return Run(
        case, "pytest", Context(_word(row, "name", where)), iterations=_count(stats, "iterations", where),
        checked="not checked: imported", flags=() if data else (SUMMARY_ONLY,), facts={"pytest": info},
        series=(Series("wall", "s", _flat(values), source="pytest-benchmark"),),
    )  # fmt: skip


def _our_benchmark(record: dict[str, Any], values: list[float], where: str) -> Run:
    """Return a run that Tritium exported, with its values put back into their rounds."""
    series = [dict(_object(s, where)) for s in _array(record.get("series"), f"{where}.series")]
    for entry in series:
        if entry.get("metric") == "wall":
            entry["values"] = _in_rounds(entry.get("values"), values, where)
    return read(Run, record | {"series": series}, where)


def _in_rounds(counts: Any, values: Sequence[float], where: str) -> list[list[list[float]]]:
    """Return the values by process and round."""
    remaining, out = iter(values), []
    for process in _array(counts, where):
        rounds = []
        for count in _array(process, where):
            if type(count) is not int or not 0 <= count <= len(values):
                raise FormatError(f"{where}: {str(count)[:20]} batches in a round; there are at most {len(values)}.")
            rounds.append(list(islice(remaining, count)))
        out.append(rounds)
    if sum(len(r) for g in out for r in g) != len(values):
        raise FormatError(f"{where}: the rounds do not hold the {len(values)} values of stats.data.")
    return out


# ---- pyperf

PYPERF_UNITS = {"second": ("wall", "s"), "byte": ("bytes", "B"), "integer": ("count", "1")}


def _looks_like_pyperf(data: Any) -> bool:
    return isinstance(data, dict) and "benchmarks" in data and "metadata" in data and "version" in data


def pyperf(data: Any, where: str) -> Results:
    """Read a file of pyperf: each of its processes is one here."""
    shared = _object(data.get("metadata"), f"{where}.metadata")
    runs, dates = [], []
    for i, row in enumerate(_array(data.get("benchmarks"), f"{where}.benchmarks")):
        section = f"{where}.benchmarks[{i}]"
        metadata = shared | _object(_object(row, section).get("metadata") or {}, f"{section}.metadata")
        processes = [_object(r, f"{section}.runs") for r in _array(row.get("runs"), f"{section}.runs")]
        dates += [
            str(p["metadata"]["date"])
            for p in processes
            if isinstance(p.get("metadata"), dict) and "date" in p["metadata"]
        ]
        runs.append(_one_pyperf(metadata, processes, section))
    section = f"{where}.metadata"
    system, _, release = _word(shared, "platform", section).partition("-")
    environment = _environment(
        cpu=_word(shared, "cpu_model_name", section), cpus=_count(shared, "cpu_count", section, 1 << 20), system=system,
        python=_word(shared, "python_version", section), kernel=release,
    )  # fmt: skip
    return _results("pyperf", min(dates, default="")[:26].replace(" ", "T"), environment, runs)


def _one_pyperf(metadata: dict[str, Any], processes: list[dict[str, Any]], where: str) -> Run:
    """Return the run of one benchmark."""
    unit = _word(metadata, "unit", where) or "second"
    if unit not in PYPERF_UNITS:
        raise FormatError(f"{where}: the unit {unit[:30]!r}; {', '.join(PYPERF_UNITS)} are known.")
    metric, short = PYPERF_UNITS[unit]
    check = _time if unit == "second" else _number
    values = tuple(
        tuple((check(v, f"{where}.runs[{i}]"),) for v in _array(p["values"], f"{where}.runs[{i}].values"))
        for i, p in enumerate(processes)
        if p.get("values")
    )
    if not values:
        raise FormatError(f"{where}: no run with values.")
    name = _text(metadata.get("name"), f"{where}.metadata.name")
    warmups = max((len(_array(p.get("warmups") or [], where)) for p in processes if p.get("values")), default=0)
    notes = {
        k: v
        for k, v in metadata.items()
        if k in ("timer", "cpu_config", "cpu_freq", "timeit_stmt", "command", "description")
    }
    return Run(
        name, "pyperf", Context(name), iterations=_count(metadata, "loops", where), warmup=warmups,
        checked="not checked: imported", series=(Series(metric, short, values, source="pyperf"),), facts={"pyperf": notes},
    )  # fmt: skip


# ---- llama-bench

LLAMA_PARAMETERS = (
    "n_batch", "n_ubatch", "n_threads", "type_k", "type_v", "n_gpu_layers", "split_mode", "main_gpu", "no_kv_offload", "flash_attn",
    "use_mmap", "embeddings", "model_filename", "build_commit",
)  # fmt: skip


def _looks_like_llama_bench(data: Any) -> bool:
    rows = data if isinstance(data, list) else [data]
    return bool(rows) and isinstance(rows[0], dict) and {"avg_ns", "n_prompt", "n_gen"} <= set(rows[0])


def llama_bench(data: Any, where: str) -> Results:
    """Read what llama-bench -o json or -o jsonl prints: one test of a model per row."""
    listed = _array(data if isinstance(data, list) else [data], where)
    rows = [_object(row, f"{where}[{i}]") for i, row in enumerate(listed)]
    vary = [k for k in LLAMA_PARAMETERS if len({str(row.get(k)) for row in rows}) > 1]
    runs = [_one_llama(row, vary, f"{where}[{i}]") for i, row in enumerate(rows)]
    first, gpu = rows[0], _word(rows[0], "gpu_info", where)
    environment = _environment(cpu=_word(first, "cpu_info", where), commit="", gpus=(gpu,) if gpu else ())
    note = f"llama.cpp {_word(first, 'build_commit', where)}"
    return _results("llama-bench", _word(first, "test_time", where), environment, runs, (note,))


def _one_llama(row: dict[str, Any], vary: Sequence[str], where: str) -> Run:
    """Return the run of one test."""
    prompt, generated, depth = (_count(row, k, where) for k in ("n_prompt", "n_gen", "n_depth"))
    test = "+".join([f"pp{prompt}"] * bool(prompt) + [f"tg{generated}"] * bool(generated)) + (
        f" @ d{depth}" if depth else ""
    )
    suffix = "".join(f" {k}={_word(row, k, where)}" for k in vary)
    backend = _word(row, "backends", where) or _word(row, "backend", where) or "CPU"
    samples = row.get("samples_ns")
    listed = _array(samples, f"{where}.samples_ns") if samples else [row.get("avg_ns")]
    values = [_time(v, f"{where}.samples_ns") / 1e9 for v in listed]
    model = _word(row, "model_type", where)
    context = Context(
        {(True, False): "prefill", (False, True): "decode"}.get((bool(prompt), bool(generated)), "generate"),
        precision=_precision(model), device=backend.lower(), batch=_count(row, "n_batch", where) or None,
        sequence_length=prompt + generated + depth, parameters=_count(row, "model_n_params", where) or None,
        optimisation=f"llama.cpp {_word(row, 'build_commit', where)}", threads=_count(row, "n_threads", where, 1 << 20),
    )  # fmt: skip
    return Run(
        f"{model} {test}{suffix}", f"llama.cpp {backend}", context, Work(items=prompt + generated, item="token"), iterations=1,
        checked="not checked: imported", series=(Series("wall", "s", _flat(values), source="llama-bench"),),
        flags=() if samples else (SUMMARY_ONLY,), facts={"model_bytes": _count(row, "model_size", where)},
    )  # fmt: skip


def _precision(model: str) -> str:
    """Return the quantisation in a model's name: "qwen2 7B Q4_K - Medium" is Q4_K."""
    match = re.search(r"\b(?:I?Q\d\w*|TQ\d_\d|I2_S|BF16|F16|F32|MXFP4)\b", model)
    return match[0] if match else ""


# ---- CSV


def _looks_like_csv(data: Any) -> bool:
    return isinstance(data, str) and data.replace('"', "").startswith("created,suite,case,")


def csv(text: Any, where: str) -> Results:
    """Read a CSV file that `exports.csv` wrote, also after a spreadsheet saved it again."""
    rows = _rows(text, where)
    heads = next(rows, [])
    known = {c.head: c for c in COLUMNS}
    missing = [c.head for c in COLUMNS if c.head not in heads and _is_required(c)]
    if missing:
        raise FormatError(f"{where}: not a CSV file of tritium: the columns {', '.join(missing[:5])} are missing.")
    runs: dict[tuple[str, str], Run] = {}
    first: dict[str, dict[str, Any]] = {}
    for number, cells in enumerate(rows, 2):
        if not cells:
            continue
        line = f"{where}: line {number}"
        if len(cells) != len(heads):
            raise FormatError(f"{line}: {len(cells)} cells; the head has {len(heads)}.")
        table = _table(dict(zip(heads, cells, strict=True)), known, line)
        first = first or table
        _add(runs, table, line)
    if not first:
        raise FormatError(f"{where}: no row below the head.")
    hard = read(Hard, first["hard"], where)
    environment = read(Environment, first["environment"] | {"hard": plain(hard)}, where)
    fields = first["results"] | {
        "plan": first["plan"],
        "environment": plain(environment),
        "arms": [],
        "runs": [],
    }
    arms = tuple(dict.fromkeys(arm for _, arm in runs))
    return replace(read(Results, fields, where), arms=arms, runs=tuple(runs.values()))


def _is_required(column: exports.Column) -> bool:
    """Return True if a file without this column cannot be read: a later version may have more fields than the writer's."""
    if column.record not in RECORDS:
        return column.record == "values"
    field = next(f for f in fields(RECORDS[column.record]) if f.name == column.field)
    return column.record != "statistics" and field.default is MISSING and field.default_factory is MISSING


def _rows(text: str, where: str) -> typing.Iterator[list[str]]:
    before = csv_text.field_size_limit(max(len(text), 1 << 17))  # the raw values of a series are one cell
    try:
        yield from csv_text.reader(io.StringIO(text, newline=""), strict=True)
    except csv_text.Error as error:
        raise FormatError(f"{where}: not CSV: {error}.") from None
    finally:
        csv_text.field_size_limit(before)


def _table(cells: dict[str, str], known: Mapping[str, exports.Column], where: str) -> dict[str, dict[str, Any]]:
    """Return the cells of a line as the records they belong to; unknown columns are ignored."""
    out: dict[str, dict[str, Any]] = {record: {} for record in RECORDS}
    for head, cell in cells.items():
        column = known.get(head)
        if column is None or column.record in ("statistics", "rates"):
            continue
        if column.record == "values":
            out["series"]["values"] = _raw_values(escape.from_csv(cell), f"{where}, {head}")
            continue
        hint = typing.get_type_hints(RECORDS[column.record])[column.field]
        out[column.record][column.field] = _from_cell(cell, hint, f"{where}, {head}")
    return out


def _from_cell(cell: str, hint: Any, where: str) -> Any:
    """Return the value of a cell by the type of its field."""
    text = escape.from_csv(cell)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if text == "":
            return None
        hint = next(k for k in arguments if k is not type(None))
    if hint is str or typing.get_origin(hint) is typing.Literal:
        return text
    if hint is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if hint in (int, float):
        return _parse_number(text, hint, where)
    if hint == tuple[int, ...]:
        return [_parse_number(part, int, where) for part in text.split("x")] if text else []
    return loads(text, where) if text else ([] if typing.get_origin(hint) is tuple else {})


def _parse_number(text: str, kind: type, where: str) -> float | int:
    try:
        number = float(text)
    except ValueError:
        raise FormatError(f"{where}: {escape.visible(text, 40)!r} is not a number.") from None
    return _count({"": number}, "", where) if kind is int else _number(number, where)


def _raw_values(text: str, where: str) -> list[list[list[float]]]:
    """Return raw values by process, round and batch."""
    if not text:
        return []
    return [
        [[float(_parse_number(v, float, where)) for v in batches.split()] for batches in rounds.split("/")]
        for rounds in text.split("|")
    ]


def _add(runs: dict[tuple[str, str], Run], table: dict[str, dict[str, Any]], where: str) -> None:
    """Add the series of a line to its run."""
    series = (read(Series, table["series"], where),) if table["series"]["metric"] else ()
    key = (table["run"]["case"], table["run"]["arm"])
    if key not in runs:
        if len(runs) >= MAX_RUNS:
            raise FormatError(f"{where}: more than {MAX_RUNS} runs.")
        runs[key] = read(Run, table["run"] | {"context": table["context"], "work": table["work"], "series": []}, where)
    runs[key] = replace(runs[key], series=(*runs[key].series, *series))


@dataclass(frozen=True)
class ImportFormat:
    """A format that can be read, and the test that recognises it."""

    what: str
    looks: Callable[[Any], bool]
    read: Callable[[Any, str], Results]


FORMATS = {
    "json": ImportFormat(
        "Tritium's own results file", lambda d: isinstance(d, dict) and "results" in d, lambda d, w: read(Results, d, w)
    ),
    "pytest-benchmark": ImportFormat("pytest --benchmark-json", _looks_like_pytest_benchmark, pytest_benchmark),
    "pyperf": ImportFormat("pyperf -o", _looks_like_pyperf, pyperf),
    "llama-bench": ImportFormat("llama-bench -o json or jsonl", _looks_like_llama_bench, llama_bench),
    "csv": ImportFormat("a CSV file of tritium", _looks_like_csv, csv),
}

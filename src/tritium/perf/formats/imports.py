"""Results of other tools and Tritium's own files, read as `Results`; the format is detected from the content.

Files are untrusted: size, depth, types and numbers are checked, names stay text, and nothing in them is run. What such a
file lacks (raw values, the machine) is recorded in flags and notes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritium import escape
from tritium.arguments import checked
from tritium.errors import ArgumentError, FormatError, nearest
from tritium.machine.files import decoded, named, read_bytes
from tritium.perf.formats import criterion, csv_file, llama_bench, load_tests, native_tools, python_tools
from tritium.perf.formats.fields import Lines
from tritium.perf.records.json_io import loads
from tritium.perf.records.run import Results
from tritium.perf.store import results as store


@checked
def load(path: str | os.PathLike[str], format: str | None = None) -> Results:
    """Return results from a file of any known format, which is detected from the content unless it is named.

    A folder is one of criterion (target/criterion).
    """
    if format is not None and format not in FORMATS:
        raise ArgumentError(
            f"there is no format {format!r} to read; there are {', '.join(FORMATS)}.{nearest(format, FORMATS)}"
        )
    where = named(path)
    if Path(path).is_dir():
        return _folder(Path(path), where, format)
    raw = read_bytes(path)
    if raw.startswith(b"\x1f\x8b"):
        raise FormatError(f"{where}: compressed with gzip; unpack it first: gunzip FILE.")
    text = decoded(raw, where).removeprefix("\ufeff")
    data = None if format is not None and FORMATS[format].table else _parse(text, where, format)
    detected = format or _detect(text, data, where)
    if format is not None and not FORMATS[format].looks(_head(text) if data is None else data):
        raise FormatError(f"{where}: not a file of {format} ({FORMATS[format].what}).")
    return FORMATS[detected].read(text if data is None else data, where, Path(path))


def _folder(path: Path, where: str, format: str | None) -> Results:
    """Return the results of a folder, which only criterion writes."""
    if format not in (None, "criterion"):
        raise FormatError(f"{where}: a folder; {format} writes files, name one of them.")
    return criterion.folder(path, where)


def _parse(text: str, where: str, format: str | None) -> Any:
    """Return the JSON of a file, or its lines of JSON; None if it is not JSON."""
    if text.lstrip()[:1] not in ("{", "["):
        if format is not None:
            raise FormatError(
                f"{where}: a file of {format} is JSON; this one begins with {escape.visible(text[:20])!r}."
            )
        return None
    body = text.strip()
    lines = body.splitlines() if "\n" in body else []  # of one line, a copy would double the memory
    if len(lines) > 1 and all(line.startswith("{") and line.rstrip().endswith("}") for line in lines):
        return Lines(lines, where)
    return loads(text, where)


def _detect(text: str, data: Any, where: str) -> str:
    """Return the name of the format of a file, or raise FormatError."""
    for name, format in FORMATS.items():
        if format.looks(_head(text) if data is None else data):
            return name
    raise FormatError(f"{where}: none of the formats that can be read: {', '.join(FORMATS)}.")


def _head(text: str) -> str:
    return text[:4096].partition("\n")[0]


Reader = Callable[[Any, str, Path], Results]  # of the parsed content, its name for errors, and the file itself


@dataclass(frozen=True)
class ImportFormat:
    """A format that can be read, and the test that recognises it."""

    what: str
    looks: Callable[[Any], bool]
    read: Reader
    table: bool = False  # text that is no JSON


def _content(read: Callable[[Any, str], Results]) -> Reader:
    """Return the reader of a format that is all in its content."""
    return lambda data, where, _: read(data, where)


def _looks_like_own(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and "results" in data
        and not isinstance(data["results"], list)
        and "env_name" not in data
    )


FORMATS = {
    "json": ImportFormat("Tritium's own results file", _looks_like_own, lambda data, where, path: store.load(path)),
    "pytest-benchmark": ImportFormat(
        "pytest --benchmark-json",
        python_tools.looks_like_pytest_benchmark,
        _content(python_tools.pytest_benchmark),
    ),
    "pyperf": ImportFormat("pyperf -o", python_tools.looks_like_pyperf, _content(python_tools.pyperf)),
    "asv": ImportFormat(
        "a result file of asv: results/MACHINE/COMMIT-ENVIRONMENT.json",
        python_tools.looks_like_asv,
        _content(python_tools.asv),
    ),
    "criterion": ImportFormat(
        "the folder target/criterion, or cargo criterion --message-format=json",
        criterion.looks_like_criterion,
        _content(criterion.messages),
    ),
    "google-benchmark": ImportFormat(
        "Google Benchmark's --benchmark_out", native_tools.looks_like_google, _content(native_tools.google_benchmark)
    ),
    "hyperfine": ImportFormat(
        "hyperfine --export-json", native_tools.looks_like_hyperfine, _content(native_tools.hyperfine)
    ),
    "nvbench": ImportFormat(
        "NVBench's --json, or --jsonbin with its samples beside it",
        native_tools.looks_like_nvbench,
        native_tools.nvbench,
    ),
    "llama-bench": ImportFormat(
        "llama-bench -o json or jsonl", llama_bench.looks_like_llama_bench, _content(llama_bench.llama_bench)
    ),
    "k6": ImportFormat(
        "k6 --out json, --summary-export or handleSummary", load_tests.looks_like_k6, _content(load_tests.k6)
    ),
    "locust": ImportFormat("locust --json", load_tests.looks_like_locust, _content(load_tests.locust)),
    "locust-csv": ImportFormat(
        "the statistics of locust --csv", load_tests.looks_like_locust_csv, _content(load_tests.locust_csv), table=True
    ),
    "csv": ImportFormat("a CSV file of tritium", csv_file.looks_like_csv, _content(csv_file.csv), table=True),
}

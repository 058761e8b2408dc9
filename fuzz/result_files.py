"""Result files of other tools, Tritium's own and its journals: how each is read, and its seeds.

Knows nothing of running, counting or changing inputs. What a reader accepts must survive being written and read again, and
one in eight is shown as a page, since a number that passes a reader may still break what prints it.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tritium.machine.facts import digest
from tritium.perf.formats import exports, imports
from tritium.perf.records.json_io import dumps, loads, read
from tritium.perf.records.run import Plan, Results, Run, Series
from tritium.perf.store import results as store
from tritium.perf.tables.pages import page

Folder = Callable[[str], Path]
Seeds = dict[str, bytes]
SHOWN = 8  # one accepted file in so many becomes a page
LARGE = 1 << 14  # values above which what was read is not written again

# One reader for each format; a reader's input is the file, and what lies beside it follows after a zero byte.
FORMATS = {
    "asv": "asv",
    "criterion": "criterion",
    "google_benchmark": "google-benchmark",
    "hyperfine": "hyperfine",
    "k6": "k6",
    "llama_bench": "llama-bench",
    "locust": "locust",
    "locust_csv": "locust-csv",
    "nvbench": "nvbench",
    "pyperf": "pyperf",
    "pytest_benchmark": "pytest-benchmark",
    "results": "json",
    "results_csv": "csv",
}
NAMES = (*FORMATS, "criterion_folder", "journal")
KEYS = (
    "results result_columns params env_name commit_hash date python samples stats_repeat stats_number stats_q_25 reason id unit"
    " iteration_count measured_values throughput per_iteration context benchmarks run_name run_type aggregate_name real_time"
    " cpu_time time_unit items_per_second error_occurred command times mean median stddev exit_codes memory_usage_byte metrics"
    " http_req_duration values med type metric data tags method name response_times num_requests num_failures meta devices states"
    " summaries tag value is_skipped device machine_info stats rounds iterations metadata version runs warmups avg_ns n_prompt"
    " n_gen samples_ns schema sha256 series context plan environment full_id iters tritium extra_info"
).split()


def readers(folder: Folder) -> dict[str, Callable[[bytes], None]]:
    """Return the harness of every kind of file; `folder` returns the folder of a name."""
    logging.getLogger("tritium").addHandler(logging.NullHandler())  # every torn journal is a warning

    def of_format(name: str) -> Callable[[bytes], None]:
        def read_file(data: bytes) -> None:
            body, zero, beside = data.partition(b"\0") if name == "nvbench" else (data, b"", b"")
            where = folder(name)
            path = where / "file"
            path.write_bytes(body)
            samples = where / "file-bin" / "0.bin"
            samples.parent.mkdir(exist_ok=True)
            samples.unlink(missing_ok=True)
            if zero:
                samples.write_bytes(beside)
            check(imports.load(path, FORMATS[name]), data)

        return read_file

    def read_folder(data: bytes) -> None:
        """After benchmark.json a zero byte and sample.json."""
        first, _, second = data.partition(b"\0")
        where = folder("criterion_folder") / "a" / "new"
        where.mkdir(parents=True, exist_ok=True)
        (where / "benchmark.json").write_bytes(first)
        (where / "sample.json").write_bytes(second)
        check(imports.load(where.parents[1]), data)

    def read_journal(data: bytes) -> None:
        """A journal is read, and opened for writing: the torn end goes, whole records stay."""
        path = folder("journal") / "journal"
        path.write_bytes(data)
        records, torn = store.Journal.read(path)
        with store.Journal(path) as journal:
            journal.append({"after": 1})
        again, still = store.Journal.read(path)
        assert again == [*records, {"after": 1}], (torn, len(records))
        assert not still

    found = {name: of_format(name) for name in FORMATS}
    return found | {"criterion_folder": read_folder, "journal": read_journal}


def check(results: Results, data: bytes) -> None:
    """Results that were accepted are written and read again without a change, and can be shown."""
    if sum(len(s.flat) for run in results for s in run.series) > LARGE:
        return
    text = dumps(results)
    assert read(Results, loads(text, "again"), "again") == results
    if results.arms and not zlib.crc32(data) % SHOWN:
        page(results)


# ---- seeds


def seeds() -> dict[str, Seeds]:
    """Return all seeds, by reader and name."""
    common = {
        "empty": b"",
        "null": b"null",
        "list": b"[]",
        "twin-keys": b'{"a":1,"a":2}',
        "deep": b'{"results":' + b"[" * 5000 + b"]" * 5000 + b"}",
        "cut": b'{"results":[1,',
        "not-utf8": b'{"\xff":1}',
        "gzip": b"\x1f\x8b\x08\0",
    }
    found = python_tools() | native_tools() | load_tests()
    found |= {"results": own(), "results_csv": own_csv(), "journal": journals()}
    return {name: found[name] | common for name in NAMES}


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def lines(*values: Any) -> bytes:
    return b"\n".join(map(dump, values))


def python_tools() -> dict[str, Seeds]:
    columns = ["result", "params", "version", "stats_q_25", "stats_q_75", "stats_number", "stats_repeat", "samples"]
    cells = [[1e-6, 2e-6], [["10", "20"]], "v", [1e-6, 1e-6], [2e-6, 2e-6], [20, 20], [2, 2], [[1e-6, 1.1e-6], None]]
    asv = {
        "commit_hash": "44c1", "env_name": "py3.11", "date": 1794941987000, "params": {"cpu": "x", "num_cpu": "2", "os": "Linux 6"},
        "python": "3.11", "result_columns": columns, "results": {"b.time_sort": cells, "b.peakmem_x": [[1024], []]},
    }  # fmt: skip
    stats = {"data": [1e-6, 1.1e-6], "median": 1e-6, "stddev": 1e-8, "rounds": 2, "iterations": 1}
    pytest_benchmark = {
        "machine_info": {"cpu": {"brand_raw": "x", "count": 2, "flags": ["avx"]}, "system": "Linux"}, "commit_info": {"id": "1"},
        "benchmarks": [{"name": "a", "fullname": "t.py::a", "stats": stats}], "datetime": "2026-01-01T00:00:00",
    }  # fmt: skip
    pyperf = {
        "metadata": {"cpu_count": 2, "unit": "second", "platform": "Linux-6"}, "version": "1.0",
        "benchmarks": [{"metadata": {"name": "a", "loops": 8}, "runs": [{"values": [1e-6], "warmups": [[1, 1e-6]]}]}],
    }  # fmt: skip
    llama = {
        "avg_ns": 1e6, "n_prompt": 8, "n_gen": 0, "samples_ns": [1e6, 2e6], "model_type": "2B", "n_threads": 2, "build_commit": "a",
    }  # fmt: skip
    return {
        "asv": {
            "valid": dump(asv),
            "product": dump(asv | {"results": {"b.time_x": [[1.0], [list(range(100))] * 32]}}),
            "name-escapes": dump(asv | {"results": {"\x1b[2J": 1}}),
            "date-huge": dump(asv | {"date": 1e300}),
            "columns-text": dump(asv | {"result_columns": "result"}),
        },
        "pytest_benchmark": {
            "valid": dump(pytest_benchmark),
            "rounds-of-nothing": dump(pytest_benchmark | {"benchmarks": [{"name": "a", "stats": {"data": []}}]}),
        },
        "pyperf": {"valid": dump(pyperf), "unit": dump(pyperf | {"metadata": {"unit": "parsec"}})},
        "llama_bench": {
            "valid": dump([llama, llama | {"n_threads": 4}]),
            "valid-lines": lines(llama, llama | {"n_gen": 8, "n_prompt": 0}),
            "tokens-0": dump([llama | {"n_prompt": 0}]),
        },
    }


def native_tools() -> dict[str, Seeds]:
    row = {"name": "f/64", "run_name": "f/64", "run_type": "iteration", "threads": 1, "iterations": 9, "real_time": 2.0,
           "cpu_time": 1.0, "time_unit": "ns", "items_per_second": 1e9, "bytes_per_second": 1e9}  # fmt: skip
    google = {"context": {"num_cpus": 2, "host_name": "h"}, "benchmarks": [row, row | {"real_time": 3.0}]}
    middle = row | {"run_type": "aggregate", "aggregate_name": "median"}
    fine = {
        "results": [
            {"command": "true", "mean": 1.0, "stddev": 0.1, "median": 1.0, "times": [1.0, 1.1], "exit_codes": [0, 1]}
        ]
    }
    figure = lambda tag, **values: {
        "tag": tag,
        "data": [{"name": k, "type": "x", "value": v} for k, v in values.items()],
    }
    state = {"name": "D=0", "device": 0, "is_skipped": False, "summaries": [
        figure("nv/cold/sample_size", value="2"), figure("nv/cold/time/gpu/mean", value="0.0001"),
        figure("nv/cold/time/gpu/stdev/relative", value="0.01"),
        figure("nv/json/bin:nv/cold/sample_times", filename="x/file-bin/0.bin", size="2"),
    ]}  # fmt: skip
    nv = {"meta": {}, "devices": [{"id": 0, "name": "H200"}], "benchmarks": [{"name": "copy", "states": [state]}]}
    done = {"reason": "benchmark-complete", "id": "g/f", "iteration_count": [1, 2], "measured_values": [10.0, 18.0], "unit": "ns",
            "throughput": [{"per_iteration": 64, "unit": "bytes"}]}  # fmt: skip
    described = dump({"full_id": "g/f", "throughput": {"Elements": 4}})
    sample = dump({"iters": [1.0, 2.0], "times": [10.0, 18.0]})
    return {
        "google_benchmark": {
            "valid": dump(google),
            "valid-aggregates": dump(google | {"benchmarks": [middle]}),
            "failed": dump(google | {"benchmarks": [{"name": "f", "error_occurred": True, "error_message": "no"}]}),
            "rate-huge": dump(google | {"benchmarks": [row | {"items_per_second": 1e308, "real_time": 1e300}]}),
        },
        "hyperfine": {
            "valid": dump(fine),
            "valid-summary": dump({"results": [{"command": "true", "mean": 1.0, "median": None, "stddev": None}]}),
            "times-0": dump({"results": [{"command": "true", "mean": 1.0, "times": [0]}]}),
        },
        "nvbench": {
            "valid": dump(nv) + b"\0" + struct.pack("<2f", 1e-4, 2e-4),
            "valid-summary": dump(nv),
            "samples-few": dump(nv) + b"\0" + b"123",
            "samples-nan": dump(nv) + b"\0" + struct.pack("<2f", float("nan"), 1.0),
        },
        "criterion": {"valid": lines(done, {"reason": "group-complete", "id": "g"}), "unit": lines(done | {"unit": "eon"}, {})},
        "criterion_folder": {
            "valid": described + b"\0" + sample,
            "name-escapes": dump({"full_id": "f", "throughput": {"\x1b[2J": "x"}}) + b"\0" + sample,
            "uneven": described + b"\0" + dump({"iters": [1.0], "times": [1.0, 2.0]}),
            "iterations-tiny": described + b"\0" + dump({"iters": [5e-324], "times": [1e300]}),
        },
    }  # fmt: skip


def load_tests() -> dict[str, Seeds]:
    point = lambda metric, value: {"type": "Point", "metric": metric, "data": {
        "time": "2026-01-01T00:00:00Z", "value": value, "tags": {"method": "GET", "name": "http://h/a"}}}  # fmt: skip
    metrics = {
        "http_req_duration": {"avg": 20.0, "med": 15.0},
        "http_reqs": {"count": 9},
        "http_req_failed": {"passes": 1},
    }
    row = {"name": "/", "method": "GET", "num_requests": 3, "num_failures": 1, "response_times": {"10": 2, "380.5": 1}}
    table = (
        b"Type,Name,Request Count,Failure Count,Median Response Time,Average Response Time\r\n"
        b"GET,/,612,0,14,21.9\r\n,Aggregated,612,0,14,21.9\r\n"
    )
    return {
        "k6": {
            "valid": lines(point("http_reqs", 1), point("http_req_duration", 12.5), point("http_req_failed", 1)),
            "valid-summary": dump({"metrics": metrics, "root_group": {}}),
        },
        "locust": {
            "valid": dump([row]),
            "histogram-huge": dump([row | {"response_times": {"10": 2**53, "20": 1}}]),
            "histogram-nan": dump([row | {"response_times": {"nan": 1}}]),
        },
        "locust_csv": {
            "valid": table,
            "number": table.replace(b"612", b"1e999"),
            "quote": table + b'GET,"/',
            "short": table + b"GET\r\n",
        },
    }


def small() -> Results:
    """Return results with one run, as Tritium writes them."""
    from tritium.perf.formats.fields import environment_of
    from tritium.perf.records.case import Context, Work

    wall = Series("wall", "s", (((1e-6, 1.1e-6),),), source="perf_counter")
    run = Run("add 4 f32", "tritium", Context("add", (4,)), Work(flops=4), checked="yes", iterations=1, series=(wall,))
    plan = Plan("short", generations=1, rounds=1, batches=2, gates=False)
    return Results(
        "bench", "fuzz", "2026-01-01T00:00:00Z", "tritium bench", plan, environment_of(cpu="x"), ("tritium",), (run,)
    )


def sealed(body: Any) -> bytes:
    """Return a results file whose hash is right whatever it holds."""
    try:
        sha = digest(body)
    except (TypeError, ValueError, OverflowError, RecursionError):
        sha = ""
    return dump({"schema": 1, "sha256": sha, "results": body})


def own() -> Seeds:
    body = json.loads(dumps(small()))
    return {
        "valid": sealed(body),
        "hash": dump({"schema": 1, "sha256": "0", "results": body}),
        "schema": dump({"schema": 2**70, "sha256": "0", "results": body}),
        "key": sealed(body | {"unknown": 1}),
    }


def own_csv() -> Seeds:
    text = exports.csv(small())
    return {"valid": text.encode(), "cells": (text + "a,b\r\n").encode(), "quote": (text + '"').encode()}


def record(value: Any) -> bytes:
    """Return a record of a journal: its length and CRC-32, then JSON."""
    payload = dump(value)
    return b"%08x %08x %b\n" % (len(payload), zlib.crc32(payload), payload)


def journals() -> Seeds:
    head = store.Journal.HEADER
    whole = head + record({"a": 1}) + record({"b": [1, 2]})
    return {
        "valid": whole,
        "valid-empty": head,
        "valid-torn": whole[:-3],
        "valid-no-head": head[:5],
        "damaged": whole.replace(b'"a"', b'"x"'),
        "length-huge": head + b"ffffffff 00000000 {}\n",
        "list": head + record([1]),
        "nan": head + record(float("nan")),
        "twin-keys": head + (lambda p: b"%08x %08x %b\n" % (len(p), zlib.crc32(p), p))(b'{"a":1,"a":2}'),
    }


# ---- inputs whose checksums are right


def build_journal(rng: Random, edit: Callable[[Random, Any], Any]) -> bytes:
    """Return a journal of some records, at times cut or with a wrong one."""
    out = [store.Journal.HEADER]
    for _ in range(int(rng.random() * 4)):
        value: Any = {"case": "a", "times": [1.0, 2.0], "more": {"x": None}}
        for _ in range(int(rng.random() * 3)):
            value = edit(rng, value)
        out.append(record(value))
    data = b"".join(out)
    if rng.random() < 0.3:
        data = data[: int(rng.random() * (len(data) + 1))]
    if rng.random() < 0.2:
        data = data.replace(b" ", b"  ", 1)
    return data


def build_results(rng: Random, edit: Callable[[Random, Any], Any]) -> bytes:
    """Return a results file with some places changed and the hash of what it then holds."""
    body = json.loads(dumps(small()))
    for _ in range(1 + int(rng.random() * 3)):
        body = edit(rng, body)
    return sealed(body)

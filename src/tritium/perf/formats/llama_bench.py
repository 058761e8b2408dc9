"""Results of llama.cpp's llama-bench: one test of a model per row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tritium.perf.formats.fields import (
    NOT_CHECKED,
    SUMMARY_ONLY,
    Lines,
    array_of,
    count_of,
    environment_of,
    object_of,
    one_process,
    results_of,
    text_of,
    times_of,
    word_of,
)
from tritium.perf.records.case import Context, Work
from tritium.perf.records.run import Results, Run, Series

# What a row measured, and what its name or the environment says already; every other field is a parameter of the test.
NOT_PARAMETERS = frozenset({
    "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts", "test_time", "n_prompt", "n_gen", "n_depth",
    "model_type", "model_size", "model_n_params", "backends", "backend", "cpu_info", "gpu_info", "build_number",
})  # fmt: skip
MOST_PARAMETERS = 16  # in a name


def looks_like_llama_bench(data: Any) -> bool:
    rows = [data.first] if isinstance(data, Lines) else data if isinstance(data, list) else [data]
    return bool(rows) and isinstance(rows[0], dict) and {"avg_ns", "n_prompt", "n_gen"} <= set(rows[0])


def llama_bench(data: Any, where: str) -> Results:
    """Read what llama-bench -o json or -o jsonl prints: one test of a model per row."""
    listed = [row for _, row in data] if isinstance(data, Lines) else data if isinstance(data, list) else [data]
    rows = [object_of(row, f"{where}[{i}]") for i, row in enumerate(array_of(listed, where))]
    vary = _varying(rows, where)
    runs = [_one_llama(row, vary, f"{where}[{i}]") for i, row in enumerate(rows)]
    first, gpu = rows[0], word_of(rows[0], "gpu_info", where)
    environment = environment_of(cpu=word_of(first, "cpu_info", where), commit="", gpus=(gpu,) if gpu else ())
    note = f"llama.cpp {word_of(first, 'build_commit', where)}"
    return results_of("llama-bench", word_of(first, "test_time", where), environment, runs, (note,))


def _varying(rows: Sequence[dict[str, Any]], where: str) -> list[str]:
    """Return the parameters in which the rows differ, also those of a later llama-bench; they become part of the names."""
    keys = dict.fromkeys(text_of(key, where) for row in rows for key in row if key not in NOT_PARAMETERS)
    return [k for k in keys if len({str(row.get(k)) for row in rows}) > 1][:MOST_PARAMETERS]


def _one_llama(row: dict[str, Any], vary: Sequence[str], where: str) -> Run:
    """Return the run of one test."""
    prompt, generated, depth = (count_of(row, k, where) for k in ("n_prompt", "n_gen", "n_depth"))
    test = "+".join([f"pp{prompt}"] * bool(prompt) + [f"tg{generated}"] * bool(generated)) + (
        f" @ d{depth}" if depth else ""
    )
    suffix = "".join(f" {k}={word_of(row, k, where)}" for k in vary)
    backend = word_of(row, "backends", where) or word_of(row, "backend", where) or "CPU"
    samples = row.get("samples_ns")
    values = times_of(samples if samples else [row.get("avg_ns")], f"{where}.samples_ns", 1e-9)
    model = word_of(row, "model_type", where)
    context = Context(
        {(True, False): "prefill", (False, True): "decode"}.get((bool(prompt), bool(generated)), "generate"),
        precision=_precision(model), device=backend.lower(), batch=count_of(row, "n_batch", where) or None,
        sequence_length=prompt + generated + depth, parameters=count_of(row, "model_n_params", where) or None,
        optimisation=f"llama.cpp {word_of(row, 'build_commit', where)}", threads=count_of(row, "n_threads", where, 1 << 20),
    )  # fmt: skip
    return Run(
        f"{model} {test}{suffix}", f"llama.cpp {backend}", context, Work(items=prompt + generated, item="token"), iterations=1,
        checked=NOT_CHECKED, series=(Series("wall", "s", one_process(values), source="llama-bench"),),
        flags=() if samples else (SUMMARY_ONLY,), facts={"model_bytes": count_of(row, "model_size", where)},
    )  # fmt: skip


def _precision(model: str) -> str:
    """Return the quantisation in a model's name: "qwen2 7B Q4_K - Medium" is Q4_K."""
    match = re.search(r"\b(?:I?Q\d\w*|TQ\d_\d|I2_S|BF16|F16|F32|MXFP4)\b", model)
    return match[0] if match else ""

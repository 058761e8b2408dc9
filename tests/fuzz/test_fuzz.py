"""Readers under hostile input: the seeds in the tree, some hundred changed ones for each reader, and the runner itself.

The long runs are made by fuzz/run.py; see docs/fuzzing.md.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tritium.errors import FormatError
from tritium.io import gguf, safetensors
from tritium.io.stream import Piece

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "fuzz"))

import harness  # noqa: E402
import mutate  # noqa: E402
import run  # noqa: E402
import seeds  # noqa: E402

READERS = list(harness.READERS)


def survives(reader: str, data: bytes) -> str:
    """'ok' or 'FormatError'; any other exception fails the test and shows the input."""
    try:
        harness.READERS[reader](data)
    except FormatError as error:
        if harness.fair(error):
            return "FormatError"
        pytest.fail(f"{reader}: {str(error)[:500]!r} is no message for a person\ninput: {data[:2000].hex()}")
    except Exception as error:
        pytest.fail(f"{reader}: {type(error).__name__} at {harness.origin(error)}: {error}\ninput: {data[:2000].hex()}")
    return "ok"


@pytest.mark.parametrize("reader", READERS)
def test_the_seeds_in_the_tree_are_those_of_the_script(reader: str) -> None:
    assert seeds.kept(reader) == seeds.seeds()[reader]


@pytest.mark.parametrize("reader", READERS)
def test_a_seed_is_read_or_refused_and_valid_ones_are_read(reader: str) -> None:
    for name, data in seeds.kept(reader).items():
        found = survives(reader, data)
        assert found == "ok" or not name.startswith("valid") or reader == "convert", (
            name
        )  # not every model fits every format


@pytest.mark.parametrize("reader", READERS)
def test_seeds_are_read_within_twice_their_size_and_64_mb(reader: str) -> None:
    for name, data in seeds.kept(reader).items():
        assert harness.peak_of(reader, data) <= harness.room(reader, data), name


@pytest.mark.parametrize("reader", READERS)
def test_changed_inputs_are_read_or_refused(reader: str) -> None:
    rng, pool = Random(f"test {reader}"), list(seeds.kept(reader).values())
    found = {survives(reader, mutate.make(rng, reader, pool)) for _ in range(200)}
    assert found == {"ok", "FormatError"}, "inputs are too wild or too tame to test anything"


# The classes of faults known from other readers, and the seeds that show them. Each must be refused.
FAULTS = {
    "count times size overflows": "gguf/count-overflow-keys gguf/count-overflow-tensors gguf/count-wraps-times-size"
    " gguf/dims-product-wraps gguf/dims-exabytes safetensors/dims-product-wraps safetensors/dims-exabytes"
    " i2_s/dims-product-wraps tq2_0/dims-huge tq1_0/dims-huge q2_0/dims-product-wraps hf/dims-huge mlx/dims-product-wraps"
    " ptq1_0/dims-huge dequantize/dims-huge dequantize/dims-product-wraps",
    "padding and alignment arithmetic": "gguf/alignment-zero gguf/alignment-huge gguf/alignment-odd gguf/offset-wraps gguf/offset-unaligned",
    "element type confused": "gguf/alignment-array gguf/type-array-of-arrays safetensors/type-confused index/map-numbers tokenizer/id-true",
    "endless loops and allocations from a few bytes": "gguf/count-million-in-40-bytes gguf/count-of-strings gguf/string-endless"
    " gguf/string-key-endless gguf/dims-many safetensors/length-endless safetensors/dims-many tokenizer/id-beyond",
    "division by zero dimensions": "gguf_model/heads-do-not-divide config/bits-0 mlx/group-zero",
    "number in a name used as an index": "gguf_model/name-layer-huge",
    "negative numbers": "gguf/dims-negative gguf/type-negative safetensors/dims-negative mlx/group-negative hf/dims-negative"
    " dequantize/dims-negative tokenizer/id-negative",
    "paths that lead out": "index/path-0 index/path-1 index/path-2 index/path-4 index/path-5 index/path-7 index/path-8 index/path-10",
    "pickles": "hf_model/pickle",
    "names twice": "gguf/key-twice gguf/tensor-twice safetensors/key-twice config/twin-keys index/twin-keys",
    "overlaps and gaps": "gguf/overlap safetensors/overlap safetensors/gap gguf/offset-past-end safetensors/offset-past-end",
    "nesting without end": "safetensors/deep config/deep-list config/deep-object index/deep-list tokenizer/deep-object",
    "codes that are not ternary": "i2_s/illegal-code i2_s_arm64/illegal-code tq2_0/illegal-code q2_0/illegal-code tq1_0/all-ones hf/all-ones"
    " ptq1_0/illegal-code",
    "scales that are not finite": "i2_s/scale-not-finite i2_s_arm64/scale-not-finite hf/scale-zero-inverted floats/nan floats/inf",
    "cut short": "gguf/cut-in-magic gguf/cut-in-data safetensors/cut-in-length i2_s/cut tq1_0/cut tq2_0/cut q2_0/cut ptq1_0/cut hf/cut mlx/cut"
    " dequantize/cut config/cut",
    "result files that do not hold what they say": "results/hash results/key results/schema journal/damaged nvbench/samples-few"
    " criterion_folder/uneven results_csv/cells locust_csv/short",
    "times that are no times": "hyperfine/times-0 nvbench/samples-nan criterion_folder/iterations-tiny locust/histogram-nan"
    " locust_csv/number asv/date-huge journal/nan",
    "result files that nest, repeat and break off": "asv/deep hyperfine/twin-keys k6/cut google_benchmark/not-utf8 pyperf/gzip"
    " journal/twin-keys results_csv/quote locust/list",
    "names that would steer a terminal": "asv/name-escapes criterion_folder/name-escapes",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_class_is_refused(fault: str) -> None:
    for seed in FAULTS[fault].split():
        reader, name = seed.split("/")
        if seed == "gguf_model/name-layer-huge":
            assert survives(reader, seeds.kept(reader)[name]) in ("ok", "FormatError")  # the number is never an index
        else:
            assert survives(reader, seeds.kept(reader)[name]) == "FormatError", seed


# ---- containers, by hypothesis


def gguf_valid() -> bytes:
    file = io.BytesIO()
    pieces = [piece("a", (2, 4), "F32", bytes(32)), piece("b", (2, 3), "F16", bytes(12))]
    gguf.write(file, {"general.architecture": gguf.string("llama"), "k": gguf.array("str", ["x", "yz"])}, pieces)
    return file.getvalue()


def safetensors_valid() -> bytes:
    file = io.BytesIO()
    safetensors.write(file, {"k": "v"}, [piece("a", (2, 4), "F32", bytes(32)), piece("b", (3,), "U8", bytes(3))])
    return file.getvalue()


def piece(name: str, shape: tuple[int, ...], kind: str, data: bytes) -> Any:
    return Piece(name, shape, kind, len(data), lambda: [data])


VALID = {"gguf": gguf_valid, "safetensors": safetensors_valid}


@pytest.mark.parametrize("reader", VALID)
def test_every_beginning_of_a_file_is_refused(reader: str) -> None:
    whole = VALID[reader]()
    assert survives(reader, whole) == "ok"
    end = len(whole) if reader == "safetensors" else len(whole.rstrip(b"\0"))
    for n in range(end):
        assert survives(reader, whole[:n]) == "FormatError", n


@pytest.mark.parametrize("reader", VALID)
@given(at=st.integers(0, 400), value=st.integers(0, 255))
@settings(max_examples=150)
def test_one_changed_byte_is_read_or_refused(reader: str, at: int, value: int) -> None:
    b = bytearray(VALID[reader]())
    b[at % len(b)] = value
    survives(reader, bytes(b))
    survives(f"{'gguf' if reader == 'gguf' else 'hf'}_model", bytes(b))


@given(
    tensors=st.integers(0, 3) | st.integers(0, 2**64 - 1),
    pairs=st.integers(0, 3) | st.integers(0, 2**64 - 1),
    rest=st.binary(max_size=200),
)
@settings(max_examples=150)
def test_any_bytes_after_the_magic_are_read_or_refused(tensors: int, pairs: int, rest: bytes) -> None:
    data = b"GGUF" + (3).to_bytes(4, "little") + tensors.to_bytes(8, "little") + pairs.to_bytes(8, "little") + rest
    survives("gguf", data)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["F32", "U8", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(mutate.KEYS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
ROW = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from([*safetensors.DTYPES, "F4"]) | JSON,
        "shape": st.lists(st.integers(-1, 5) | st.sampled_from(mutate.INTERESTING), max_size=9) | JSON,
        "data_offsets": st.lists(st.integers(-1, 40) | st.sampled_from(mutate.INTERESTING), max_size=3) | JSON,
    },
)


@given(
    rows=st.dictionaries(st.text(max_size=6) | st.just("__metadata__"), ROW | JSON, max_size=4),
    data=st.binary(max_size=40),
)
@settings(max_examples=60)
def test_any_json_header_is_read_or_refused(rows: dict[str, Any], data: bytes) -> None:
    survives("safetensors", seeds.st_file(rows, data))


@pytest.mark.parametrize("reader", mutate.TEXTS)
@given(value=st.dictionaries(st.sampled_from(mutate.KEYS), JSON, max_size=6))
@settings(max_examples=40)
def test_any_json_side_file_is_read_or_refused(reader: str, value: dict[str, Any]) -> None:
    survives(reader, json.dumps(value).encode())


# ---- the runner


def test_judge_names_crash_hang_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(data: bytes) -> None:
        bytearray(80 << 20)

    monkeypatch.setitem(harness.READERS, "fails", lambda data: data[99])
    monkeypatch.setitem(harness.READERS, "greedy", greedy)
    monkeypatch.setitem(harness.READERS, "fine", lambda data: None)
    assert harness.judge("fails", b"x").fault == "crash"
    assert harness.judge("fails", b"x").outcome == "IndexError"
    assert harness.judge("greedy", b"x").fault == "memory"
    assert harness.judge("fine", b"x").fault == ""
    monkeypatch.setattr(harness, "LIMIT_S", -1.0)
    assert harness.judge("fine", b"x").fault == "hang"


def test_the_same_generator_makes_the_same_inputs() -> None:
    for reader in READERS:
        pool = list(seeds.kept(reader).values())
        one, two = ([mutate.make(Random(f"{i}"), reader, pool) for i in range(20)] for _ in range(2))
        assert one == two


@pytest.mark.slow
def test_a_run_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    for wanted in (150, 250):
        words = ["hf", "--executions", str(wanted), "--slice", "100", "--no-big", "--work", str(tmp_path)]
        env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, str(ROOT / "fuzz" / "run.py"), *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        row = json.loads((tmp_path / "state.json").read_text())["readers"]["hf"]
        assert row["executions"] == wanted == sum(row["outcomes"].values())
        assert row["slices"] == (2 if wanted == 150 else 3)


def test_the_runner_knows_the_readers_there_are() -> None:
    assert list(run.READERS) == READERS

"""The types that are dequantised: the numbers of the gguf package, bit for bit, in bounded memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from tritium.errors import FormatError
from tritium.io import ggml
from tritium.io.dequantize import READABLE, dequantize


def blocks(name: str, rows: int, count: int, seed: int) -> np.ndarray[Any, Any]:
    """Random bytes of rows of `count` blocks: every bit pattern, infinite and NaN scales included."""
    return np.random.default_rng(seed).integers(0, 256, (rows, count * ggml.BY_NAME[name].size), np.uint8)


@pytest.mark.parametrize("name", [n for n in READABLE if n != "Q1_0"])
def test_the_gguf_package_dequantizes_the_same_numbers(name: str) -> None:
    quants = pytest.importorskip("gguf.quants", reason="the gguf package owns these types")
    kind = pytest.importorskip("gguf").GGMLQuantizationType[name]
    raw = blocks(name, 4, 50, 3)
    values = dequantize(name, memoryview(raw.tobytes()), (4, 50 * ggml.BY_NAME[name].block))
    with np.errstate(all="ignore"):
        wanted = quants.dequantize(raw, kind)
    assert np.array_equal(values.view(np.uint32), wanted.view(np.uint32))


def test_a_bit_of_q1_0_is_the_sign() -> None:
    raw = np.concatenate([np.array([0.5], "<f2").view(np.uint8), np.arange(16, dtype=np.uint8)])
    wanted = [0.5 if i // 8 >> i % 8 & 1 else -0.5 for i in range(128)]
    assert dequantize("Q1_0", memoryview(raw.tobytes()), (1, 128)).tolist() == [wanted]


@pytest.mark.parametrize("name", READABLE)
def test_a_tensor_is_read_in_chunks(name: str) -> None:
    row = ggml.BY_NAME[name]
    shape = (64, (1 << 20) // 64)
    raw = blocks(name, 64, shape[1] // row.block, 5)
    whole = dequantize(name, memoryview(raw.tobytes()), shape)
    rows = [dequantize(name, memoryview(raw[r].tobytes()), (1, shape[1])) for r in range(2)]
    assert np.array_equal(np.concatenate(rows).view(np.uint32), whole[:2].view(np.uint32))
    tracemalloc.start()
    dequantize(name, memoryview(raw).cast("B"), (64, shape[1]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < whole.nbytes + (24 << 20)


@pytest.mark.parametrize("shape", [(2, 256), (1, 512), (-1, -256), (1 << 40, 1 << 40), (256,), (1, 1, 257)])
def test_bytes_that_do_not_fit_the_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(FormatError, match="Q4_K"):
        dequantize("Q4_K", memoryview(bytes(3 * 144)), shape)


def test_other_types_are_refused_by_name() -> None:
    with pytest.raises(FormatError, match=r"type IQ2_XS: .*GGUF to GGUF carries it over"):
        dequantize("IQ2_XS", memoryview(bytes(74)), (1, 256))


def test_an_empty_tensor_has_no_numbers() -> None:
    assert dequantize("Q4_1", memoryview(b""), (0, 32)).shape == (0, 32)


def test_bytes_that_fit_the_values_but_not_their_blocks_are_refused() -> None:
    """264 values of Q4_1 are 8.25 blocks of 20 bytes: 165 bytes have the right ratio and no whole blocks."""
    with pytest.raises(FormatError, match="whole blocks of 32"):
        dequantize("Q4_1", memoryview(bytes(165)), (264,))

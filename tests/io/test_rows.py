"""Some rows of a weight: the same as of the whole, from their own bytes alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import families
from families import CONFIGS
from tritium import io
from tritium.errors import FormatError
from tritium.io import codecs
from tritium.io.ternary import Ternary


def random(rows: int, columns: int, group: int = 0) -> Ternary:
    rng = np.random.default_rng(rows + columns + group)
    scale = np.float16(rng.uniform(0.5, 2, (rows, columns // group))).astype(np.float32) if group else np.float32(0.75)
    return Ternary.from_values(rng.integers(-1, 2, (rows, columns)), scale, group)


@pytest.mark.parametrize("name", ["I2_S", "TQ1_0", "TQ2_0", "Q2_0", "PQ2_0", "PTQ1_0"])
def test_rows_of_a_gguf_layout_are_decoded_alone(name: str) -> None:
    codec = codecs.GGUF[name]
    t = random(12, 512, 0 if name == "I2_S" else 256)
    data = codec.encode(t)
    damaged = data.copy()
    row = (data.size - (32 if name == "I2_S" else 0)) // 12
    damaged[: 4 * row] = 0xFF  # no layout has such codes
    part = codec.decode_rows(memoryview(damaged), (12, 512), slice(4, 9))
    np.testing.assert_array_equal(part.dense(), t.dense(slice(4, 9)))
    with pytest.raises(FormatError):
        codec.decode_rows(memoryview(damaged), (12, 512), slice(3, 9))


@pytest.mark.parametrize("rows", [slice(0, 3), slice(5, 11), slice(2, 16), slice(12, 16)])
def test_rows_of_hugging_faces_packing_are_decoded_alone(rows: slice) -> None:
    t = random(16, 24)
    packed = codecs.hf.encode(t)
    part = codecs.hf.decode_rows(packed, (16, 24), rows, 0.75, inverted=False)
    np.testing.assert_array_equal(part.dense(), t.dense(rows))
    packed[3, 5] |= 0b11  # row 3, and no other
    if rows.start <= 3 < rows.stop:
        with pytest.raises(FormatError, match="row 3, column 5"):
            codecs.hf.decode_rows(packed, (16, 24), rows, 0.75, inverted=False)
    else:
        codecs.hf.decode_rows(packed, (16, 24), rows, 0.75, inverted=False)


@pytest.mark.parametrize("name", ["llama", "qwen3_5", "maple"])
def test_rows_of_an_entry_are_in_hugging_faces_order(name: str, tmp_path: Path) -> None:
    w = families.random(CONFIGS[name], 1)
    for path in (families.write_folder(tmp_path / "m", w), families.write_gguf(tmp_path / "m.gguf", w)):
        for entry in io.open(path).entries.values():
            if entry.role != "ternary":
                continue
            whole = entry.ternary()
            rows = np.random.default_rng(0).permutation(whole.shape[0])[: whole.shape[0] // 3]
            np.testing.assert_array_equal(entry.ternary_rows(rows).dense(), whole.dense()[rows])

"""Weights of a file as the vLLM plugin hands them over: their numbers, of which only the rows that are used are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny
import tritium as tt

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")

from tritium.vllm.rows import FileRows, narrowest, tensors  # noqa: E402

UP = "model.layers.0.mlp.up_proj"


def matrix(rows: int = 12, columns: int = 4) -> tuple[FileRows, np.ndarray, list[int]]:
    numbers = np.arange(rows * columns, dtype=np.int8).reshape(rows, columns)
    read: list[int] = []

    def some(wanted: np.ndarray) -> np.ndarray:
        read.extend(wanted.tolist())
        return numbers[wanted]

    return FileRows(some, range(rows), columns, torch.int8), numbers, read


def test_a_rank_reads_the_rows_that_it_copies() -> None:
    tensor, numbers, read = matrix()
    own = tensor.narrow(0, 4, 6)[1:3]
    assert isinstance(own, FileRows)
    assert own.shape == (2, 4)
    assert own.to(torch.int8) is own
    assert read == []
    param = torch.zeros(2, 4, dtype=torch.int8)
    param.copy_(own)
    np.testing.assert_array_equal(param.numpy(), numbers[5:7])
    assert read == [5, 6]


def test_any_other_op_sees_the_numbers() -> None:
    tensor, numbers, read = matrix(3)
    np.testing.assert_array_equal((tensor + 1).numpy(), numbers + 1)
    np.testing.assert_array_equal(tensor[:, 1:3].numpy(), numbers[:, 1:3])
    assert tensor.numel() == 12
    assert len(read) == 6


@pytest.mark.parametrize("form", ["hf", "i2_s", "q2_0"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_parts_of_all_ranks_are_the_weights_of_the_file(form: str, ranks: int, tmp_path: Path) -> None:
    folder = tiny.hf_packed(tmp_path / "base", "llama")
    path = folder if form == "hf" else tmp_path / "model.gguf"
    if form != "hf":
        tt.io.convert(folder, path, to=form)
    found = tt.io.open(path)
    assert [narrowest(found, r, ranks) for r in range(ranks)] == [0] * ranks
    for group in (0, 64):
        named = dict(tensors(found, group))
        size = tiny.INNER // ranks
        parts = [(named[f"{UP}.weight"], named[f"{UP}.weight_scale"]) for _ in range(ranks)]
        parts = [(w.narrow(0, r * size, size), s.narrow(0, r * size, size)) for r, (w, s) in enumerate(parts)]
        whole = found.named[f"{UP}.weight"].ternary()
        np.testing.assert_array_equal(torch.cat([w.clone() for w, _ in parts]).numpy(), whole.values())
        scales = torch.cat([s.clone() for _, s in parts]).numpy()
        assert scales.shape == (tiny.INNER, 4 if group else 1)
        np.testing.assert_array_equal(scales, np.broadcast_to(whole.scale.reshape(-1, 1), scales.shape))

"""Models whose head is read through an int8 copy on a GPU: the greedy tokens of the whole head, inside one CUDA graph."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import models
import tritium as tt
from tritium.buffer import native
from tritium.errors import ArgumentError
from tritium.models.load import Model, load

torch = pytest.importorskip("torch", reason="models on CUDA need PyTorch: pip install torch triton")
pytest.importorskip("triton", reason="the certified head on CUDA needs Triton: pip install torch triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="runs on a GPU alone")
needs_native = pytest.mark.skipif(native is None, reason="without the native library the CPU has no certified head")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = models.Shape(width=64, vocab=3000)
    return models.folder(tmp_path_factory.mktemp("certified") / "m", models.random(shape, 3))


def load_pair(path: Path) -> tuple[Model, Model]:
    """Return a model whose head is read through a copy, and the same read as a whole."""
    return load(path, head="f16", certified=True, device="cuda"), load(path, head="f16", certified=False, device="cuda")


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("count", [1, 3, 16])
def test_tokens_and_logits_are_those_of_the_whole_head(
    count: int, ahead: bool, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = load_pair(path)
    one, two = (m.session(slots=count) for m in pair)
    ids, slots = [5 * i for i in range(count)], list(range(count))
    with caplog.at_level(logging.WARNING, "tritium"):
        for _ in range(12):
            picked, whole = one.pick(slots, ids, ahead=ahead), two.pick(slots, ids)
            assert picked == whole
            ids = picked.ids
    assert not [r.getMessage() for r in caplog.records if "captured" in r.getMessage()]
    statistics = pair[0].head_statistics
    assert statistics is not None
    assert statistics.tokens == 12 * count
    assert statistics.decided > statistics.whole
    assert "certified, read through an int8 copy" in pair[0].explain()
    assert pair[1].head_statistics is None


def test_other_samplers_read_the_whole_head(path: Path) -> None:
    one, two = (m.session() for m in load_pair(path))
    np.testing.assert_array_equal(one.step([0], [7]), two.step([0], [7]))
    assert isinstance(one.bounded([0], [8])[0], np.ndarray)


@needs_native
def test_a_copy_moves_with_its_model_and_off_stays_off(path: Path) -> None:
    here = load(path, head="f16", certified=True)
    there = here.to("cuda")
    assert there.network.certified is not None
    for a, b in zip((here.network.certified.error, here.network.certified.norm),  # type: ignore[union-attr]
                    (there.network.certified.error, there.network.certified.norm), strict=True):  # fmt: skip
        np.testing.assert_array_equal(a.numpy(), b.to("cpu").numpy())
    assert there.session().pick([0], [3]).ids == load_pair(path)[1].session().pick([0], [3]).ids
    off = load(path, head="f16", certified=False).to("cuda")
    assert off.network.certified is None
    assert "turned off" in off.explain()


@needs_native
def test_a_prepacked_copy_is_used(path: Path, tmp_path: Path) -> None:
    file = load(path, head="f16", certified=True).save(tmp_path / "m.tritium")
    model = load(file, device="cuda")
    assert model.network.certified is not None
    assert model.network.certified.table.device is tt.device("cuda")
    one, two = model.session(), load_pair(path)[1].session()
    assert [one.pick([0], [i]) for i in (3, 9, 1)] == [two.pick([0], [i]) for i in (3, 9, 1)]


def test_a_head_of_f32_is_refused(path: Path) -> None:
    with pytest.raises(ArgumentError, match="reads the whole head"):
        load(path, head="f32", certified=True, device="cuda")

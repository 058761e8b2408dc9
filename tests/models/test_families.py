"""Every family gives the logits of a decoder in float64 written from the formulas, however its tokens arrive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import families
import tritium as tt
from families import CONFIGS
from tritium.models.load import Model

BOUND = 5e-2  # of the largest logit: where an activation fell to another of the 127 steps than in float64
    2e-2  # of the largest logit: an activation that falls to the next of 127 steps on one side moves a logit by less
)
USUAL = 1e-5  # where none did
IDS = np.random.default_rng(5).integers(0, 80, 40).tolist()


def load(path: Path, **options: object) -> Model:
    return tt.load(path, kv="f32", **options)


def every_logit(model: Model, ids: list[int], chunks: tuple[int, ...] = ()) -> np.ndarray:
    """Return the logits after each token, read one by one, or after each of some chunks."""
    session = model.session()
    ends = np.cumsum(chunks or (1,) * len(ids)).tolist()
    starts = [0, *ends[:-1]]
    return np.stack([session.extend(0, ids[a:b]) for a, b in zip(starts, ends, strict=True)])


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_the_formulas(name: str, tmp_path: Path) -> None:
    """Over three seeds. An activation at the middle of two steps may fall to either: then all tokens after it differ a little."""
    exact = 0
    for seed in range(3):
        w = families.random(CONFIGS[name], seed)
        model = load(families.write_folder(tmp_path / str(seed), w))
        ours, wanted = every_logit(model, IDS), families.Decoder(w).logits(IDS)
        largest = np.abs(wanted).max()
        error = np.abs(ours - wanted).max(-1) / largest
        assert error.max() <= BOUND
        exact += int(error.max() <= USUAL)
        top = np.sort(wanted, axis=-1)
        clear = top[:, -1] - top[:, -2] > 2 * BOUND * largest
        assert (ours.argmax(-1) == wanted.argmax(-1))[clear].all()
        assert clear.sum() > len(IDS) // 8
    assert exact >= 2


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_have_the_same_bits_in_chunks_in_batches_and_resumed(name: str, tmp_path: Path) -> None:
    model = load(families.write_folder(tmp_path / "m", families.random(CONFIGS[name], 3)))
    alone = every_logit(model, IDS)
    np.testing.assert_array_equal(every_logit(model, IDS, (17, 1, 22)), alone[[16, 17, 39]])
    session = model.session(slots=3)
    session.extend(1, IDS[:20])
    session.extend(2, IDS[:7])
    rows = session.step([1, 2], [IDS[20], IDS[7]])
    np.testing.assert_array_equal(rows, alone[[20, 7]])
    session.truncate(1, 0)
    session.extend(1, IDS[:9])
    np.testing.assert_array_equal(session.extend(1, IDS[9:12]), alone[11])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prepacked_file_has_the_same_bits(name: str, tmp_path: Path) -> None:
    model = load(families.write_folder(tmp_path / "m", families.random(CONFIGS[name], 4)))
    again = load(model.save(tmp_path / "m.tritium"))
    assert again.config == model.config
    np.testing.assert_array_equal(every_logit(again, IDS[:8], (8,)), every_logit(model, IDS[:8], (8,)))

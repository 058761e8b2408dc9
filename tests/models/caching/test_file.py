"""Sessions in files: what was saved comes back bit for bit; other bytes are refused before anything is written."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import families
import models
from families import CONFIGS
from tritium.errors import ArgumentError, FormatError
from tritium.models.load import Model, load

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(models.folder(tmp_path_factory.mktemp("m") / "m", models.random(models.Shape(), 0)))


def test_a_slot_comes_back_as_it_was(model: Model, tmp_path: Path) -> None:
    session = model.session(slots=2)
    session.extend(1, TOKENS)
    path = session.save(tmp_path / "s", slot=1)
    other = model.session(slots=3)
    assert other.restore(path, slot=2) == TOKENS == other.tokens(2)
    assert np.array_equal(other.step([2], [7]), session.step([1], [7]))


def test_states_come_back_too(tmp_path: Path) -> None:
    model = load(families.write_folder(tmp_path / "m", families.random(CONFIGS["qwen3_5"], 3)))
    session, other = model.session(), model.session()
    session.extend(0, TOKENS)
    assert other.restore(session.save(tmp_path / "s")) == TOKENS
    assert np.array_equal(other.step([0], [7]), session.step([0], [7]))


def test_an_empty_slot_can_be_saved(model: Model, tmp_path: Path) -> None:
    session = model.session()
    assert session.restore(session.save(tmp_path / "s")) == []


def test_a_file_is_replaced_only_where_asked(model: Model, tmp_path: Path) -> None:
    session = model.session()
    session.save(tmp_path / "s")
    with pytest.raises(FormatError, match="exists already"):
        session.save(tmp_path / "s")
    session.save(tmp_path / "s", overwrite=True)


def test_the_session_of_another_model_is_refused(model: Model, tmp_path: Path) -> None:
    session = model.session()
    session.extend(0, TOKENS)
    path = session.save(tmp_path / "s")
    other = load(models.folder(tmp_path / "m", models.random(models.Shape(), 1))).session()
    with pytest.raises(FormatError, match="saved by another model"):
        other.restore(path)
    assert other.tokens(0) == []
    with pytest.raises(FormatError, match=r"found 14 tokens, needed 0 to 12|bytes, needed at most"):
        model.session(context=12).restore(path)
    wide = load(models.folder(tmp_path / "w", models.random(models.Shape(layers=3), 1))).session()
    with pytest.raises(FormatError, match=r"needed tokens\.2 of shape"):
        wide.restore(path)
    with pytest.raises(ArgumentError):
        other.restore(path, slot=7)


def test_a_larger_file_than_a_slot_is_not_read(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="needed at most"):
        model.session().restore(path)


def test_a_changed_file_is_refused_and_nothing_else_is_raised(model: Model, tmp_path: Path) -> None:
    session = model.session()
    session.extend(0, TOKENS)
    data = session.save(tmp_path / "s").read_bytes()
    draw, path = random.Random(1), tmp_path / "changed"
    for _ in range(100):
        changed = bytearray(data)
        if draw.random() < 0.3:
            del changed[draw.randrange(len(changed)) :]
        else:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        try:
            session.restore(path)
        except FormatError:
            continue
        assert session.tokens(0) == TOKENS  # spaces of a header may change

"""Collection of garbage is put off and comes back, whoever else puts it off meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tritium.garbage import no_collections


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    was, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.unfreeze()
    gc.enable()
    yield
    (gc.enable if was else gc.disable)()
    if frozen:
        gc.freeze()


def test_nothing_is_collected_until_the_last_is_done() -> None:
    first, second = no_collections(), no_collections()
    first.__enter__()
    second.__enter__()
    assert not gc.isenabled()
    first.__exit__(None, None, None)  # as from another thread
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_an_error_turns_it_on_again() -> None:
    with pytest.raises(ZeroDivisionError), no_collections():
        1 / 0  # noqa: B018
    assert gc.isenabled()


def test_what_was_off_stays_off() -> None:
    gc.disable()
    with no_collections():
        pass
    assert not gc.isenabled()


def test_many_objects_that_are_left_are_old_ones() -> None:
    with no_collections():
        left = [[i] for i in range(20_000)]
    young = {id(x) for x in gc.get_objects(generation=0)}
    assert not any(id(x) in young for x in left)
    assert gc.get_freeze_count() == 0  # and are collected as any others


def test_objects_that_the_program_froze_stay_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with no_collections():
        left = [[i] for i in range(20_000)]
    assert len(left) == 20_000
    assert gc.get_freeze_count() >= frozen > 0
    gc.unfreeze()

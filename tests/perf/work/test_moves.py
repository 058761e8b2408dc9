"""Cases of memory and of transfers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tritium.errors import ArgumentError
from tritium.perf.engine.worker import checked, resolve
from tritium.perf.records.case import Case, Made, UnsupportedError
from tritium.perf.work import moves

SIZES = (("small", 1 << 10), ("large", 1 << 20))


def made(case: Case, candidate: str = "tritium") -> Made:
    found: Made = resolve(case.recipe.target)(candidate, **json.loads(json.dumps(dict(case.recipe.arguments))))
    return found


@pytest.mark.parametrize("case", moves.memory(SIZES), ids=lambda c: c.name)
def test_every_act_on_memory_is_right_again_and_again(case: Case) -> None:
    one = made(case)
    for _ in range(3):
        assert "status" not in checked(one, one.call())


@pytest.mark.parametrize("case", moves.memory(SIZES, ["allocate", "clone", "write"]), ids=lambda c: c.name)
def test_numpy_can_be_measured_beside(case: Case) -> None:
    one = made(case, "numpy")
    assert "status" not in checked(one, one.call())


def test_only_tritium_has_a_pool_of_tensors() -> None:
    with pytest.raises(UnsupportedError, match="pool"):
        made(moves.memory(what=["reuse"])[0], "numpy")


def test_a_clone_shares_its_memory_until_it_is_written() -> None:
    (case,) = moves.memory([("one", 4096)], ["clone"])
    assert made(case).call().sharers == 2
    (case,) = moves.memory([("one", 4096)], ["write"])
    assert made(case).call().sharers == 1


def test_a_clone_moves_no_bytes_and_a_copy_does() -> None:
    (case,) = moves.memory([("one", 4096)], ["clone"])
    assert case.work.moved == 0
    copied = made(case, "numpy").work
    assert copied is not None
    assert copied.moved == 8192


@pytest.mark.parametrize("case", moves.transfer([(16, 24)], ["f32", "f16", "bf16", "i8"]), ids=lambda c: c.name)
def test_every_transfer_keeps_the_values(case: Case) -> None:
    if case.context.precision == "bf16" and case.context.operation == "dlpack":
        with pytest.raises(UnsupportedError, match="DLPack"):
            made(case)
        return
    one = made(case)
    assert checked(one, one.call())["checked"] == "the same values"


@pytest.mark.parametrize(("act", "shared"), [("from_numpy", True), ("dlpack", True), ("upload", False)])
def test_what_looks_at_memory_moves_no_bytes(act: str, shared: bool) -> None:
    (case,) = moves.transfer([(16, 24)], what=[act])
    assert (case.work.moved == 0) is shared
    one = made(case)
    assert one.expected is not None
    assert np.shares_memory(one.call().numpy(), one.expected()) is shared


def test_a_download_is_a_copy() -> None:
    one = made(moves.transfer([(4, 4)], what=["download"])[0])
    first, second = one.call(), one.call()
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize("build", [moves.memory, moves.transfer])
def test_an_unknown_act_names_the_known(build: object) -> None:
    with pytest.raises(ArgumentError, match="is unknown"):
        build(what=["alocate" if build is moves.memory else "uplaod"])  # type: ignore[operator]

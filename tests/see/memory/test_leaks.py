"""What is reachable from what is meant to stay, and how a leak is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import tritium as tt
from hostile import NAMES
from tritium.see.memory import leaks
from tritium.see.memory.records import Allocation


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Layer:
    weight: Any


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def closure(x: Any) -> Any:
    def run() -> Any:
        return x

    return run


X = tt.ones(3)


@pytest.mark.parametrize(
    ("root", "path"),
    [
        (X, ""),
        ([0, X], "[1]"),
        ({"a": X}, "['a']"),
        (Pair(1, X), "right"),
        (Layer(X), "weight"),
        ({"layers": [Layer(X)]}, "['layers'][0].weight"),
        (closure(X), "x"),
        (Slotted(X), ""),
    ],
)
def test_a_tensor_is_found_with_the_way_to_it(root: Any, path: str) -> None:
    assert [(p, t is X) for p, t in leaks.tensors_in(root)] == [(path, True)]


def test_a_circle_ends_and_a_tensor_is_told_once() -> None:
    a: list[Any] = [X]
    a += [a, X]
    assert [p for p, _ in leaks.tensors_in(a)] == ["[0]"]


def test_modules_classes_and_globals_are_not_followed() -> None:
    class Holder:
        x = X

    assert list(leaks.tensors_in([tt, Holder, test_modules_classes_and_globals_are_not_followed])) == []


def test_views_and_arrays_of_numpy_lead_to_the_memory_they_look_at() -> None:
    x = tt.ones((4, 4))
    assert leaks.addresses(x[1:]) == {x.storage.address}
    assert x.storage.address in leaks.addresses(x.numpy())
    assert x.storage.address in leaks.addresses(np.array([x, None], object))


def leak(**more: Any) -> Allocation:
    return Allocation(**({"nbytes": 4096, "op": "add", "site": "model.py:12", "thread": "MainThread", "device": "cpu",
                          "at_ns": 0, "age_ns": 2_000_000} | more))  # fmt: skip


def test_a_leak_is_told_by_size_op_line_and_age() -> None:
    assert leaks.describe(leak()) == "4 KiB (4096 bytes) by add at model.py:12, alive for 2 ms"
    told = leaks.describe(leak(op="", site="", thread="worker", device="gpu", id="mine"))
    assert told == "4 KiB (4096 bytes) 'mine' at an unknown line on gpu, alive for 2 ms, thread worker"


def test_many_leaks_are_told_by_the_largest() -> None:
    text = leaks.complaint([leak() for _ in range(30)], "a test")
    assert text.startswith("a test: 30 allocations (120 KiB) are still alive:")
    assert "… and 10 more" in text


@pytest.mark.parametrize("field", ["op", "site", "thread", "device", "id"])
def test_no_name_does_anything_on_a_terminal(field: str) -> None:
    for name in NAMES:
        told = leaks.describe(leak(**{field: name}))
        assert told.isprintable()
        assert "##[" not in told

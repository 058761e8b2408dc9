"""Errors: each is also the Python error people expect, and a near miss gets a hint."""

from __future__ import annotations

import builtins

import pytest

import tritium as tt
from tritium import errors
from tritium.errors import TritiumError, nearest

KINDS = [
    e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, TritiumError) and e is not TritiumError
]
EXPECTED = {
    "ShapeError": "ValueError", "DTypeError": "TypeError", "DeviceError": "RuntimeError", "ArgumentError": "TypeError",
    "BoundsError": "IndexError", "TraceError": "TypeError", "ViewError": "ValueError", "PoolError": "ValueError",
    "FormatError": "ValueError", "QuantError": "ValueError", "BatchError": "RuntimeError", "PipelineError": "RuntimeError",
    "VerifyError": "AssertionError", "PackageError": "ImportError", "ContextError": "ValueError", "BusyError": "RuntimeError",
    "RankError": "RuntimeError", "ClusterError": "RuntimeError",
    "PerformanceError": "AssertionError", "SaveError": "OSError", "BaselineError": "LookupError", "TuneError": "RuntimeError",
    "BuildError": "RuntimeError", "FetchError": "OSError",
    "OutOfMemoryError": "MemoryError", "RangeError": "OverflowError", "ExchangeError": "BufferError", "MissingFileError": "FileNotFoundError",
}  # fmt: skip


def test_every_error_is_known_here() -> None:
    assert {e.__name__ for e in KINDS} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_error_is_also_the_one_python_people_catch(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, getattr(builtins, EXPECTED[name]))
    assert kind.__doc__


@pytest.mark.parametrize(("word", "hint"), [("sofmax", " Did you mean 'softmax'?"), ("zzz", "")])
def test_a_near_miss_gets_a_hint(word: str, hint: str) -> None:
    assert nearest(word, ["softmax", "matmul"]) == hint


def test_hints_for_names_of_other_libraries_name_ours() -> None:
    for wrong, right in (("dim", "axis"), ("dims", "axis"), ("keepdim", "keepdims")):
        with pytest.raises(TritiumError, match=f"unknown argument '{wrong}'. Did you mean '{right}'"):
            tt.sum(tt.ones(2), **{wrong: 0})


def test_a_hint_is_given_only_where_it_helps() -> None:
    with pytest.raises(TritiumError) as caught:
        tt.exp(tt.ones(2), dim=0)
    assert "axis" not in str(caught.value)


def test_an_attribute_given_twice_is_refused() -> None:
    with pytest.raises(TritiumError, match="shape was given twice"):
        tt.ops.reshape(tt.ones(2), (2,), shape=(2,))

"""Sizes that come from counts: the right result or an error of the package, never a crash or an error of NumPy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium import layout, ops
from tritium.errors import ArgumentError, DTypeError, OutOfMemoryError, ShapeError, TritiumError

HUGE = st.one_of(
    st.sampled_from([2**k + d for k in (48, 53, 59, 60, 61, 62, 63, 64, 70, 100, 20000) for d in (-1, 0, 1)]),
    st.integers(2**47, 2**130),
)
COUNTS = st.one_of(HUGE, HUGE.map(lambda n: -n), st.integers(-3, 3))

TAKES_A_COUNT: dict[str, Callable[[int], Any]] = {
    "zeros": lambda n: tt.zeros(n),
    "zeros empty": lambda n: tt.zeros((0, n)),
    "zeros empty twice": lambda n: tt.zeros((n, 0, n), dtype="i8"),
    "ones": lambda n: tt.ones((2, n), dtype="f64"),
    "empty": lambda n: tt.empty((n, 3)),
    "empty packed": lambda n: tt.empty((n, 256), dtype="tern2"),
    "full": lambda n: tt.full((n,), 1.5),
    "rand": lambda n: tt.rand((n,), seed=1),
    "randint": lambda n: tt.randint(0, 5, (n,), seed=1),
    "arange": lambda n: tt.arange(n),
    "arange down": lambda n: tt.arange(0, n, -1),
    "arange floats": lambda n: tt.arange(0.0, float(n) if abs(n) < 2**900 else float("inf"), 0.5),
    "linspace": lambda n: tt.linspace(0.0, 1.0, n),
    "eye": lambda n: tt.eye(n),
    "eye wide": lambda n: tt.eye(0, n),
    "tril": lambda n: tt.tril(tt.ones((3, 3)), k=n),
    "one_hot": lambda n: tt.one_hot(tt.asarray([0, 0]), num_classes=n),
    "broadcast_to": lambda n: tt.broadcast_to(tt.ones(1), (n,)),
    "broadcast_to empty": lambda n: tt.broadcast_to(tt.ones(1), (0, n)),
    "broadcast_to, then add": lambda n: tt.broadcast_to(tt.ones(1), (n,)) + 1,
    "concat": lambda n: tt.concat([tt.broadcast_to(tt.ones(1), (n,))] * 8),
    "stack": lambda n: tt.stack([tt.broadcast_to(tt.ones(1), (n,))] * 8),
    "reshape": lambda n: tt.reshape(tt.ones((0,)), (0, n)),
    "reshape to the rest": lambda n: tt.reshape(tt.ones((0,)), (n, -1)),
    "repeat": lambda n: tt.repeat(tt.ones((4, 4)), n),
    "repeat an axis": lambda n: tt.repeat(tt.ones((4, 4)), n, axis=1),
    "repeat nothing": lambda n: tt.repeat(tt.ones((0,)), n),
    "repeat by a list": lambda n: tt.repeat(tt.ones((3,)), [1, n, 2]) if -(2**63) <= n < 2**63 else tt.ones(1),
    "tile": lambda n: tt.tile(tt.ones((4, 4)), (n, n)),
    "tile nothing": lambda n: tt.tile(tt.ones((0, 4)), (n, 1)),
    "meshgrid": lambda n: tt.meshgrid(*[tt.broadcast_to(tt.ones(1), (n,))] * 2),
    "slice": lambda n: tt.ones(4)[0:n],
    "slice by steps": lambda n: tt.ones((4, 4))[:: n or 1, :: -n or 1],
    "split": lambda n: tt.split(tt.ones(4), n),
    "diff": lambda n: tt.diff(tt.ones(4), n=n),
}


@pytest.mark.parametrize("name", TAKES_A_COUNT)
@settings(max_examples=25, deadline=None)
@given(COUNTS)
def test_a_huge_count_is_served_or_refused(name: str, n: int) -> None:
    with suppress(TritiumError):
        TAKES_A_COUNT[name](n)


def test_the_right_result_where_there_is_one() -> None:
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    t = tt.asarray(x)
    for key in (slice(0, 2**70), slice(-(2**70), 2**70, 2**70), slice(None, None, -(2**70)), slice(2**70, None)):
        assert np.array_equal(t[key].numpy(), x[key])
        assert np.array_equal(t[:, key].numpy(), x[:, key])
    assert tt.diff(tt.ones(4), n=2**40).shape == (0,)
    assert np.array_equal(tt.arange(2**62, 2**62 + 3).numpy(), 2**62 + np.arange(3))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("count", [0, 1, 3, np.int64(2), True])
def test_repeat_by_one_count(axis: int | None, count: Any) -> None:
    x = np.arange(12).reshape(3, 4)
    for data in (x, x[:, ::-1], x.T):
        expected = np.repeat(data, int(count), axis=axis)
        assert np.array_equal(tt.repeat(tt.asarray(data), count, axis=axis).numpy(), expected)


@pytest.mark.parametrize("counts", [[1, 0, 2], (3, 3, 3), np.array([0, 0, 0]), np.array([2, 1, 0], np.uint64), [2]])
def test_repeat_by_counts(counts: Any) -> None:
    x = np.arange(12).reshape(3, 4)
    expected = np.repeat(x, np.asarray(counts, np.int64), axis=0)
    for c in (counts, tt.asarray(counts)):
        assert np.array_equal(tt.repeat(tt.asarray(x), c, axis=0).numpy(), expected)


@pytest.mark.parametrize(
    ("repeats", "error", "message"),
    [
        (-1, ArgumentError, "0 or more, given -1"),
        ([1, -2, 3, 4], ArgumentError, "0 or more, given -2"),
        ([2**62] * 4, ShapeError, "more than can be addressed"),
        (np.array([2**64 - 1, 0, 0, 0], np.uint64), ShapeError, "more than can be addressed"),
        ([1.5, 2.0, 3.0, 4.0], DTypeError, "must be integers"),
        (np.array([1.5, 2, 3, 4]), DTypeError, "must be integers"),
        ([[1, 2], [3, 4]], ShapeError, "one for each"),
        ([1, 2, 3], ShapeError, "one for each"),
        (2.5, ArgumentError, "integer"),
        ("2", ArgumentError, "integer"),
    ],
)
def test_repeat_refuses(repeats: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tt.repeat(tt.ones(4), repeats)


def test_a_size_of_zero_does_not_hide_the_others() -> None:
    assert tt.zeros((0, layout.MAX_ELEMENTS)).shape == (0, layout.MAX_ELEMENTS)
    with pytest.raises(ShapeError, match=r"is empty, but its other axes span .* more than can be addressed"):
        tt.zeros((0, layout.MAX_ELEMENTS + 1))


def test_memory_that_is_not_there_is_the_errors_own() -> None:
    """Of a result, and of a call seen before, which native code replays."""
    with pytest.raises(OutOfMemoryError, match=r"does not fit in memory.*Free tensors"):
        tt.zeros(2**46)
    x = tt.broadcast_to(tt.ones(1), (2**46,))
    for _ in range(3):
        with pytest.raises(OutOfMemoryError, match="does not fit in memory"):
            x + 1
    with pytest.raises(OutOfMemoryError, match="does not fit in memory"):
        tt.repeat(tt.ones((2,)), [2**45, 1])


@pytest.mark.parametrize(
    "numbers", [(0, float("inf"), 1.0), (0, float("nan"), 1.0), (0.0, 1.0, 1e-320), (2**64, 2**64 + 3)]
)
def test_arange_refuses_what_has_no_end(numbers: tuple[float, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"arange: .*give"):
        tt.arange(*numbers)


@pytest.mark.parametrize(
    "call", ["tt.repeat(tt.ones((4, 4)), 2**60)", "tt.repeat(tt.ones(4), tt.asarray([2**62] * 4))"]
)
def test_no_crash(call: str) -> None:
    """In a process of its own: the failure this guards against ended the process."""
    code = f"import tritium as tt\ntry:\n    {call}\nexcept tt.errors.ShapeError:\n    print('refused')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "refused"), done.stderr


def test_sizes_are_integers_of_python() -> None:
    for shape in (True, (True, 2), [True, False]):
        assert all(type(n) is int for n in ops.size_of(shape))

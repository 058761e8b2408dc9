"""Numbers that vary: inputs of a graph, with the bits of the function as written."""

from __future__ import annotations

import copy
import math
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tritium as tt
from tritium import buffer, dtype as dt
from tritium.backends.reference.cast import number
from tritium.eager import constant
from tritium.graph.number import Number, Numbers, ValueNeededError

VALUES = (0.0, -0.0, 1.0, -2.5, 1e-40, 3.4e38, 1e300, math.inf, -math.inf, math.nan, 0.1, 65504.0, 7.0)
WHOLE = (0, 1, -1, 2, 127, -128, 255, 40000, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1, 2**64 - 1)
DTYPES = ("f16", "bf16", "f32", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def bits(x: tt.Tensor) -> tuple[Any, ...]:
    array = x.numpy() if x.dtype != "bf16" else x.to("f32").numpy()
    return x.spec, np.where(array == array, array, 0).tobytes(), (array != array).tobytes()  # a NaN keeps no payload


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return bits(fn(*args))
    except tt.errors.TritiumError as error:
        return type(error), str(error)
    except (ArithmeticError, TypeError) as error:
        return type(error)


def expression(draw: random.Random, depth: int, leaf: Callable[[], str]) -> str:
    if depth == 0:
        return leaf()
    if draw.random() < 0.2:
        return f"(-{expression(draw, depth - 1, leaf)})"
    if draw.random() < 0.1:
        return f"({expression(draw, depth - 1, leaf)} ** 2)"  # a power of large integers would never end
    operator = draw.choice(["+", "-", "*", "/", "//", "%"])
    return f"({expression(draw, depth - 1, leaf)} {operator} {expression(draw, depth - 1, leaf)})"


def random_function(draw: random.Random) -> tuple[Callable[..., Any], str]:
    """Return a function of a tensor and two numbers: arithmetic on numbers beside arithmetic on tensors."""
    names = ["a", "b", "0.5", "3", "2"]
    sums = [expression(draw, draw.randint(0, 2), lambda: draw.choice(names)) for _ in range(3)]
    text = f"lambda x, a, b: tt.{draw.choice(['maximum', 'add', 'multiply'])}(x * {sums[0]}, {sums[1]}) - {sums[2]} * x"
    fn: Callable[..., Any] = eval(text, {"tt": tt})
    return fn, text


@pytest.mark.parametrize("seed", range(int(os.environ.get("TRITIUM_TEST_FUNCTIONS", "40"))))
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_random_functions_of_numbers_keep_their_bits_and_errors(seed: int) -> None:
    draw = random.Random(seed)
    fn, text = random_function(draw)
    compiled = tt.compile(fn)
    dtype = draw.choice(DTYPES)
    x = tt.tensor(np.arange(-4, 5)).to("f32").to(dtype) if dtype[0] != "u" else tt.arange(9, dtype=dtype)
    values = VALUES if draw.random() < 0.6 else WHOLE
    for _ in range(8):
        a, b = draw.choice(values), draw.choice(values)
        assert outcome(compiled, x, a, b) == outcome(fn, x, a, b), (text, a, b)


def test_a_number_that_varies_becomes_an_argument() -> None:
    step = tt.compile(lambda w, g, rate, beta: w * (1 - beta) - rate * g)
    w = tt.randn((5, 7), seed=0)
    for i in range(50):
        rate, beta = 0.1 / (i + 1), 0.9**i
        assert bits(step(w, w, rate, beta)) == bits(step.fn(w, w, rate, beta))
    info = step.cache_info()
    assert (info.misses, info.programs) == (4, 4)
    assert len(step.graph(w, w, 0.25, 0.75).inputs) == 4  # two tensors, rate and 1 - beta


def test_numbers_by_name_in_containers_and_of_other_shapes() -> None:
    fn = tt.compile(lambda x, options, scale=1.0: {"y": x * options["a"] + options["b"][0] * scale})
    for i in range(30):
        x = tt.ones((i % 3 + 1, 4))
        options = {"a": i * 0.5, "b": [i + 1]}
        assert bits(fn(x, options, scale=-float(i))["y"]) == bits(fn.fn(x, options, scale=-float(i))["y"])
    assert fn.cache_info().misses <= 3 + 3 + 1


def test_an_int_and_a_float_are_told_apart() -> None:
    double = tt.compile(lambda x, n: x + n)
    x = tt.arange(4, dtype="i32")
    for i in range(8):
        assert double(x, i).dtype == "i32"
        assert double(x, float(i)).dtype == "f32"


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: x * (2 if n > 3 else 3),
        lambda x, n: x.reshape(n, -1),
        lambda x, n: x[n : n + 1],
        lambda x, n: x * math.sqrt(n),
        lambda x, n: x * len(f"{n:g}"),
        lambda x, n: sum((x for _ in range(n)), x),
        lambda x, n: x * {n: 2}.get(n, 1),
        lambda x, n: x * 2 if type(n) is int else x,
        lambda x, n: x * 2 if isinstance(n, int) and n else x,
        lambda x, n: x * np.float32(n),
        lambda x, n: x * int(n),
        lambda x, n: x * (n & 3) + (n << 1),
        lambda x, n: x * max(n, 4),
        lambda x, n: x * n.bit_length(),
        lambda x, n: tt.full((16,), n) * x,
        lambda x, n: x * round(n / 3),
        lambda x, n: x * copy.copy(n),
    ],
)
def test_a_number_whose_value_is_needed_has_a_program_for_each_value(fn: Callable[..., Any]) -> None:
    compiled = tt.compile(fn)
    x = tt.randn((16,), seed=1)
    for n in (1, 2, 4, 8, 16, 2, 1):
        assert bits(compiled(x, n)) == bits(fn(x, n))
    assert compiled.cache_info().programs == 5


def test_only_the_number_whose_value_is_needed_stays_a_constant() -> None:
    fn = tt.compile(lambda x, rate, axis: (x * rate).sum(axis=axis))
    x = tt.randn((3, 4), seed=2)
    for i in range(40):
        assert bits(fn(x, i * 0.1, i % 2)) == bits(fn.fn(x, i * 0.1, i % 2))
    assert fn.cache_info().misses <= 3 + 2


def test_a_swallowed_error_does_not_hide_that_a_value_was_needed() -> None:
    def guess(x: tt.Tensor, n: float) -> tt.Tensor:
        try:
            return x * math.floor(n)
        except BaseException:  # such code exists
            return x * 0

    compiled = tt.compile(guess)
    x = tt.ones(3)
    for n in range(8):
        assert bits(compiled(x, n + 0.5)) == bits(x * n)


def test_an_error_of_the_function_is_its_own() -> None:
    compiled = tt.compile(lambda x, n: x * (1 / n))
    x = tt.ones(3)
    for n in (1.0, 2.0, 4.0, 8.0, 16.0):
        compiled(x, n)
    with pytest.raises(ZeroDivisionError):
        compiled(x, 0.0)
    byte = tt.compile(lambda x, n: x + n)
    for n in range(9):
        byte(tt.zeros(2, "i8"), n)
    with pytest.raises(tt.errors.RangeError, match="1000 is outside i8"):
        byte(tt.zeros(2, "i8"), 1000)


def test_arithmetic_whose_kind_depends_on_the_value() -> None:
    compiled = tt.compile(lambda x, n: x + 2**n)
    x = tt.arange(3, dtype="i32")
    for n in (0, 1, 2, 3, 4, 5):
        assert bits(compiled(x, n)) == bits(x + 2**n)
    assert compiled(x, -1).dtype == "f32"
    assert bits(compiled(x, -1)) == bits(x + 0.5)


def test_a_number_outlives_its_trace_as_its_value() -> None:
    seen = []
    compiled = tt.compile(lambda x, n: (seen.append(n), x * n)[1])
    for n in range(6):
        compiled(tt.ones(2), n + 0.5)
    assert [float(n) for n in seen][:3] == [0.5, 1.5, 2.5]
    assert seen[3] + 1 == 4.5
    assert type(seen[3] * 2) is float


def test_numbers_in_donated_calls_and_many_runs() -> None:
    update = tt.compile(lambda w, rate: w.multiply_(rate), donate="w")
    w, same = tt.ones(4), tt.ones(4)
    for i in range(10):
        update(w, 1 + i / 8)
        same *= 1 + i / 8
    assert bits(w) == bits(same)
    scaled = tt.compile(lambda x, n: x * n + 1)
    samples = [(tt.full((3,), float(i)), i * 0.5) for i in range(12)]
    for result, sample in zip(scaled.run_many(samples), samples, strict=True):
        assert bits(result) == bits(scaled.fn(*sample))


def test_a_traced_number_says_why_its_value_is_needed() -> None:
    numbers = Numbers(0)
    n = Number(numbers, 0, 0.5)
    assert isinstance(n, float)
    assert not isinstance(n, int)
    for needs in (bool, float, hash, repr, lambda n: n < 1, lambda n: n.hex()):
        with pytest.raises(ValueNeededError):
            needs(n)
    assert numbers.needed == {0: "it decides a branch"}
    numbers.is_open = False
    assert (bool(n), float(n), repr(n), n < 1) == (True, 0.5, "0.5", True)
    assert ((1 - n) * 2).__class__ is float


@pytest.mark.skipif(buffer.native is None, reason="needs native code")
@pytest.mark.parametrize("dtype", DTYPES)
def test_native_numbers_equal_those_of_the_reference(dtype: str) -> None:
    kind = dt.dtype(dtype)
    for value in (*VALUES, *WHOLE, 10**400, True):
        tensor = buffer.native.number(value, kind)
        if tensor is None:
            with pytest.raises(tt.errors.TritiumError):
                constant(value, kind, tt.device("cpu"))
        else:
            with np.errstate(over="ignore"):
                expected = number(value, kind)
            assert (tensor.shape, tensor.dtype) == ((), kind)
            assert np.array_equal(np.asarray(tensor._host(), "f8"), np.asarray(expected, "f8"), equal_nan=True)
            assert np.signbit(np.asarray(tensor._host(), "f8")) == np.signbit(np.asarray(expected, "f8"))
    assert buffer.native.number("1", kind) is None

"""Programs whose sizes vary: the bits of eager at every size, one program for many sizes, and guards where sizes branch."""

from __future__ import annotations

import gc
import logging
import os
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sized_functions as functions
import tritium as tt
from tritium.buffer import native
from tritium.compiler.sized.program import SizedProgram

pytestmark = pytest.mark.skipif(
    native is None, reason="needs the native library: without it there is no native program"
)

W = functions.W
SEEDS = int(os.environ.get("TRITIUM_SIZED_FUNCTIONS", "12"))
FIRST = int(os.environ.get("TRITIUM_SIZED_SEED", "0"))


def same(mine: Any, theirs: Any) -> None:
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (mine, theirs)), strict=True):
        assert a.spec == b.spec
        assert a.numpy().tobytes() == b.numpy().tobytes() or np.array_equal(a.numpy(), b.numpy(), equal_nan=True)


def sized(fn: Any) -> list[SizedProgram]:
    """Return the programs for sizes that vary that a compiled function has."""
    return [e.program for e in fn._entries.values() if isinstance(e.program, SizedProgram)]


def check(fn: Callable[..., Any], lengths: list[int], make: Callable[[int], tuple[Any, ...]]) -> Any:
    compiled = tt.compile(fn)
    for n in lengths:
        same(compiled(*make(n)), fn(*make(n)))
    return compiled


def matrix(n: int) -> tuple[tt.Tensor]:
    return (tt.randn((n, 8), seed=n),)


# ---- the bits of eager


@pytest.mark.parametrize("name", functions.STEPS)
def test_every_step_has_the_bits_of_eager_at_every_length(name: str) -> None:
    step = functions.STEPS[name]
    lengths = [5, 9, 3, 17, 40, 2, 1, 8, 16, 33, 100]
    check(step, lengths, lambda n: (tt.randn((n, 8), seed=n), tt.randn((n + 3, 8), seed=n + 500)))
    compiled = check(step, lengths, lambda n: (tt.randn((n, 8), seed=n), W))
    assert sized(compiled)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_random_functions_have_the_bits_of_a_program_for_each_size_and_of_eager(seed: int) -> None:
    rng = random.Random(seed)
    names, fn = functions.function(seed)
    compiled, exact = tt.compile(fn), tt.compile(fn, disable="sizes")
    other = rng.choice([0, 3])
    for _ in range(14):
        n, m = rng.randint(1, 70), rng.randint(1, 30) if other else 7
        args = (tt.randn((n, 8), seed=n), tt.randn((m, 8), seed=m + 500))
        try:
            want = fn(*args)
        except tt.errors.TritiumError as error:
            with pytest.raises(type(error)):
                compiled(*args)
            continue
        result = compiled(*args)
        same(result, exact(*args))
        if "turned" not in names:  # a product of transposed memory may add in another order than eager
            same(result, want)
    assert compiled.cache_info().misses < 14 or compiled.cache_info().programs == 14, names


def test_sizes_0_and_1_have_programs_of_their_own() -> None:
    fn = lambda x, y: tt.softmax(x * 2) + y
    compiled = tt.compile(fn)
    for n in (5, 6, 7, 8, 9, 1, 0, 10, 1, 0):
        x = tt.randn((n, 8), seed=n)
        for m in {1, n}:
            same(compiled(x, tt.randn((m, 8), seed=m)), fn(x, tt.randn((m, 8), seed=m)))


def test_a_size_of_1_is_not_taken_for_one_that_varies() -> None:
    fn = lambda x, y: x + y
    compiled = tt.compile(fn)
    for n in (4, 5, 6, 7, 8):
        same(compiled(tt.randn((n, 8), seed=1), tt.ones((n, 8))), fn(tt.randn((n, 8), seed=1), tt.ones((n, 8))))
    x = tt.randn((9, 8), seed=1)
    for y in (tt.ones((1, 8)), tt.ones((9, 8)), tt.ones(8), tt.ones((9, 1))):
        same(compiled(x, y), fn(x, y))
    with pytest.raises(tt.errors.ShapeError):
        compiled(x, tt.ones((7, 8)))


def test_two_sizes_vary_alone_and_together() -> None:
    fn = lambda x, y: (tt.softmax(x @ y.mT) @ y, x.reshape(-1), tt.concat([x, y], axis=0))
    compiled = tt.compile(fn)
    for n, m in [(3, 4), (5, 6), (7, 8), (9, 10), (9, 11), (12, 11), (30, 17), (17, 30), (6, 6), (2, 50)]:
        x, y = tt.randn((n, 8), seed=n), tt.randn((m, 8), seed=m)
        same(compiled(x, y), fn(x, y))
    assert len(sized(compiled)) <= 4


def test_ragged_batches_use_few_programs() -> None:
    fn = lambda x: tt.softmax(x * 2 + 1).sum(axis=1)
    compiled = tt.compile(fn)
    rng = random.Random(0)
    for _ in range(60):
        x = tt.randn((rng.randint(2, 9), rng.randint(2, 40), 8), seed=1)
        same(compiled(x), fn(x))
    assert compiled.cache_info().misses <= 8


def test_a_decode_loop_compiles_a_handful_of_times() -> None:
    fn = lambda x, cache: (x + tt.softmax(x @ W @ cache.mT) @ cache, tt.concat([cache, x], axis=0))
    compiled = tt.compile(fn)
    mine = theirs = tt.randn((1, 8), seed=1)
    for i in range(150):
        x = tt.randn((1, 8), seed=i)
        (a, mine), (b, theirs) = compiled(x, mine), fn(x, theirs)
        same(a, b)
    assert compiled.cache_info().misses <= 8


# ---- branches, loops, and what needs the number


def test_a_branch_on_a_size_has_a_program_on_each_side() -> None:
    def fn(x: tt.Tensor) -> tt.Tensor:
        return x * 2 if x.shape[0] > 20 else tt.softmax(x)

    compiled = check(fn, [5, 6, 7, 8, 9, 25, 26, 27, 20, 21, 10], matrix)
    assert len(sized(compiled)) == 2
    assert compiled.cache_info().misses == 5


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: sum((x[i] for i in range(x.shape[0])), tt.zeros(8)),
        lambda x: x * (1 / x.shape[0]),
        lambda x: x * x.shape[0] ** -0.5,
        lambda x: x * 2 if x.shape[0] // 8 in {1, 2} else x,
        lambda x: [x, x * 2, x * 3][x.shape[0] // 30],
        lambda x: x * len(x),
        lambda x: sum((x for _ in range(x.size // 100)), x),
        lambda x: x * int(f"{x.shape[0]}"),
    ],
)
def test_a_size_whose_number_is_needed_keeps_a_program_each(fn: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tritium.recompiles"):
        compiled = check(fn, [5, 6, 7, 8, 9, 17, 40, 70], matrix)
    assert not sized(compiled)
    assert "x.shape[0] has a program for each size: " in caplog.text


def test_a_function_that_asks_for_the_type_of_a_size_keeps_a_program_each() -> None:
    compiled = check(lambda x: x * 2 if type(x.shape[0]) is int else x, [5, 6, 7, 8, 9], matrix)
    assert not sized(compiled)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "i32", "i64"])
def test_a_size_may_be_an_operand(dtype: str) -> None:
    def fn(x: tt.Tensor) -> tuple[tt.Tensor, ...]:
        n = x.shape[0]
        return x.sum(axis=0) * n, x - (n - 3) * 2, tt.full((n, 2), n, dtype=dtype), tt.maximum(x, n) + x.size

    make = lambda n: (
        tt.randn((n, 8), seed=n).to(dtype) if dtype[0] != "i" else tt.arange(n * 8, dtype=dtype).reshape(n, 8),
    )
    assert len(sized(check(fn, [5, 6, 7, 8, 9, 100, 1, 301], make))) == 1
    mean = check(lambda x: x / x.shape[0] + x.shape[0] * x, [5, 6, 7, 8, 9, 100], matrix)
    assert len(sized(mean)) == 1


def test_errors_are_those_of_eager() -> None:
    compiled = tt.compile(lambda x: x[7] + x[: x.shape[0] // 2].sum(axis=0))
    for n in (10, 11, 12, 13, 14):
        compiled(*matrix(n))
    with pytest.raises(tt.errors.BoundsError, match="Index 7 is outside axis 0"):
        compiled(*matrix(5))


# ---- arguments


def test_numbers_and_sizes_vary_together() -> None:
    fn = lambda x, rate: x * rate + x.shape[1]
    compiled = tt.compile(fn)
    for i in range(20):
        x = tt.randn((3 + i % 6, 8), seed=i)
        same(compiled(x, 0.1 * i), fn(x, 0.1 * i))
    assert sized(compiled)


def test_a_donated_argument_of_any_length_is_written() -> None:
    compiled = tt.compile(lambda cache, key: (cache.add_(1), tt.softmax(cache @ key))[1], donate="cache")
    for n in range(3, 30):
        cache, key = tt.randn((n, 8), seed=n), tt.randn((8,), seed=1)
        want = cache + 1
        result = compiled(cache, key)
        same(cache, want)
        same(result, tt.softmax(want @ key))
    assert sized(compiled)
    shared = tt.ones((40, 8))
    with pytest.raises(tt.errors.ArgumentError, match="shares memory"):
        compiled(shared, shared[0])


def test_slices_of_a_larger_tensor_vary() -> None:
    room = tt.randn((4, 64, 8), seed=1)
    fn = lambda x: tt.softmax(x * 2).sum(axis=1)
    compiled = check(fn, list(range(3, 40)), lambda n: (room[:, :n],))
    assert len(sized(compiled)) <= 2
    assert compiled.cache_info().misses <= 8


def test_objects_and_nested_arguments_are_served() -> None:
    class Model:
        def __init__(self) -> None:
            self.w, self.scale = W, 2.0

        @tt.compile
        def run(self, state: dict[str, tt.Tensor], *, flip: bool = False) -> dict[str, tt.Tensor]:
            y = state["x"] @ self.w * self.scale
            return {"y": -y if flip else y}

    model = Model()
    for n in range(3, 20):
        x = tt.randn((n, 8), seed=n)
        same(model.run({"x": x})["y"], x @ W * 2.0)
        same(model.run({"x": x}, flip=True)["y"], -(x @ W * 2.0))
    model.scale = 3.0
    same(model.run({"x": x})["y"], x @ W * 3.0)
    assert sized(Model.run)
    del model
    gc.collect()
    assert Model.run.cache_info().programs == 0


def test_programs_and_their_tensors_end_with_the_function() -> None:
    w = tt.ones((8, 8))
    gone = weakref.ref(w)
    compiled = check(lambda x, w=w: x @ w, [4, 5, 6, 7, 8, 9], matrix)
    assert sized(compiled)
    del compiled, w
    gc.collect()
    assert gone() is None


# ---- what is shown


def test_explain_and_the_log_say_which_sizes_vary(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tritium.recompiles"):
        compiled = check(lambda x: tt.softmax(x.mT * 2), [20, 21, 22, 23], matrix)
    assert "compiled again, 4 programs: x changed from f32[22,8] to f32[any,8]" in caplog.text
    assert "one program for every x.shape[0] from 16 to 32,768" in caplog.text
    x = matrix(30)[0]
    assert "one program for every x.shape[0] from 16 to 32,768 (now 30)" in compiled.explain(x)
    assert compiled.program(x).graph.inputs[0].spec == x.spec
    assert compiled.program(x) is compiled.program(x)
    same(compiled.program(x)(x), compiled.fn(x))
    compiled.program(x).verify(x)


def test_a_profile_shows_the_sizes_of_each_call() -> None:
    compiled = check(lambda x: tt.softmax(x * 2) @ W, [4, 5, 6, 7, 8], matrix)
    with tt.profile(ceilings=False) as profile:
        for n in (9, 10, 11):
            compiled(*matrix(n))
    text = " ".join(row.detail for row in profile.ops(by="specs"))
    assert all(f"f32[{n},8]" in text for n in (9, 10, 11))


def test_a_watched_call_runs_node_by_node() -> None:
    compiled = check(lambda x: tt.softmax(x * 2) @ W, [4, 5, 6, 7, 8], matrix)
    seen: list[Any] = []
    watcher = tt.watch(seen.append)
    try:
        result = compiled(*matrix(12))
    finally:
        tt.unwatch(watcher)
    assert seen
    same(result, compiled.fn(*matrix(12)))


def test_a_saved_program_is_for_one_size(tmp_path: Any) -> None:
    compiled = check(lambda x: tt.softmax(x * 2) @ W, [4, 5, 6, 7, 8], matrix)
    x = matrix(12)[0]
    compiled.save(tmp_path / "p", x)
    same(tt.load_program(tmp_path / "p")(x), compiled(x))
    with pytest.raises(tt.errors.ArgumentError, match="x must be"):
        tt.load_program(tmp_path / "p")(matrix(13)[0])


def test_run_many_takes_inputs_of_several_lengths() -> None:
    compiled = check(lambda x: tt.softmax(x * 2), [4, 5, 6, 7, 8], matrix)
    for many in ([matrix(12)[0]] * 5, [matrix(n)[0] for n in (9, 12, 12, 30)]):
        for mine, x in zip(compiled.run_many(many), many, strict=True):
            same(mine, compiled.fn(x))


def test_sizes_can_be_left_to_a_program_each() -> None:
    compiled = tt.compile(lambda x: x + 1, disable="sizes")
    for n in range(2, 12):
        compiled(*matrix(n))
    assert compiled.cache_info().programs == 10
    verified = tt.compile(lambda x: tt.softmax(x * 2), verify=True)
    for n in range(2, 12):
        verified(*matrix(n))
    assert verified.cache_info().programs == 10


def test_programs_of_many_lengths_are_bounded() -> None:
    compiled = check(lambda x: tt.softmax(x * 2), [4, 5, 6, 7], matrix)
    (program,) = sized(compiled)
    for n in range(8, 120):
        compiled(*matrix(n))
    assert program.native.kept <= 32 < program.native.made


def test_several_threads_use_one_program() -> None:
    from concurrent.futures import ThreadPoolExecutor

    compiled = check(lambda x: tt.softmax(x @ W) * 2, [4, 5, 6, 7], matrix)
    lengths = [random.Random(i).randint(2, 60) for i in range(200)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda n: compiled(*matrix(n)), lengths))
    for n, result in zip(lengths, results, strict=True):
        same(result, compiled.fn(*matrix(n)))


# ---- the native object


def test_hostile_programs_are_refused() -> None:
    x = tt.ones((4, 8))
    compiled = check(lambda x: x + 1, [4, 5, 6, 7], matrix)
    (program,) = sized(compiled)
    good = (((), b"", b"", 0, (), (), ()), True, (), None, ((x.dtype, (-1, 8), None),), 1, (), (), ())
    bad: list[tuple[int, Any, str]] = [
        (5, 0, "1 to 64 sizes"),
        (4, (), "no argument has one of the sizes"),
        (4, ((x.dtype, (-2, 8), None),), "a size that does not exist"),
        (4, ((x.dtype, (-1,) * 99, None),), "too many axes"),
        (4, ((x.dtype, (-1, 8), (1,)),), "strides are as many"),
        (6, (("/", ((), ())),), "must be //, % or max"),
        (6, (("//", ((),)),), "another number of operands"),
        (7, ((((3,), 1),),), "an atom that does not exist"),
        (8, (("==", (((9,), 1),), True),), "an atom that does not exist"),
    ]
    for index, value, message in bad:
        with pytest.raises(ValueError, match=message):
            native.Programs(*good[:index], value, *good[index + 1 :])
    assert native.Programs(*good).sizes(x) == (4,)
    assert program.native.sizes(tt.ones((4, 8), dtype="f64")) is None
    assert program.native.sizes(tt.ones((1, 8))) is None
    assert program.native(x.mT) is None

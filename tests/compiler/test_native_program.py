"""Programs made by hand, step by step, against the same calls made one after the other."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium import dtype as dt
from tritium.buffer import native, watch
from tritium.layout import contiguous_strides
from tritium.tensor import Tensor

pytestmark = pytest.mark.skipif(native is None, reason="needs the native library; this is a pure-Python build")

ARENA, CONSTANTS, ARGS = 0, 1, 2
ALIGNMENT = 64


class Maker:
    """Collects the parts of a program; arguments and captured tensors are given at the start, results at the end."""

    def __init__(self, *args: Tensor, captured: Sequence[Tensor] = (), donated: Sequence[int] = ()) -> None:
        self.args = [(a.dtype, a.shape, a.strides, i in donated) for i, a in enumerate(args)]
        self.tensors = [*args, *captured]
        self.captured = list(captured)
        self.constants = b""
        self.arena_bytes = 0
        self.operands: list[Any] = []
        self.steps: list[Any] = []
        self.results: list[Any] = []
        self.fresh = 0

    def operand(
        self, base: int, offset: int, t: dt.DType, shape: Sequence[int], strides: Sequence[int] | None = None
    ) -> int:
        self.operands.append(
            (base, offset, t, tuple(shape), contiguous_strides(tuple(shape)) if strides is None else tuple(strides))
        )
        return len(self.operands) - 1

    def given(self, i: int) -> int:
        """The whole of an argument; captured tensors are counted after the arguments."""
        a = self.tensors[i]
        return self.operand(ARGS + i, 0, a.dtype, a.shape, a.strides)

    def constant(self, array: Any) -> int:
        at = len(self.constants)
        self.constants += array.tobytes() + bytes(-array.nbytes % ALIGNMENT)
        return self.operand(CONSTANTS, at, dt.dtype(array.dtype), array.shape)

    def temporary(self, t: dt.DType, shape: Sequence[int]) -> int:
        at = self.arena_bytes
        self.arena_bytes += -(-int(np.prod(shape)) * t.numpy.itemsize // ALIGNMENT) * ALIGNMENT
        return self.operand(ARENA, at, t, shape)

    def result(self, t: dt.DType, shape: Sequence[int]) -> int:
        nbytes = int(np.prod(shape)) * t.numpy.itemsize
        self.results.append(("new", t, tuple(shape), contiguous_strides(tuple(shape)), 0, nbytes))
        self.fresh += 1
        return self.operand(ARGS + len(self.tensors) + self.fresh - 1, 0, t, shape)

    def step(self, name: str, inputs: Sequence[int], outputs: int | Sequence[int], **attrs: Any) -> None:
        self.steps.append((native.kernel(name), attrs, inputs, [outputs] if isinstance(outputs, int) else outputs))

    def make(self, **changes: Any) -> Any:
        parts = {
            "args": self.args,
            "captured": self.captured,
            "constants": self.constants,
            "arena_bytes": self.arena_bytes,
            "operands": self.operands,
            "steps": self.steps,
            "results": self.results,
        }
        return native.Program(**(parts | changes))


def floats(*shape: int, seed: int = 0) -> Tensor:
    return tt.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def adder(x: Tensor, y: Tensor, **how: Any) -> Maker:
    """x + y."""
    m = Maker(x, y, **how)
    m.step("add", [m.given(0), m.given(1)], m.result(x.dtype, x.shape))
    return m


def chain(x: Tensor, n: int) -> Maker:
    """relu(x + x), then x is added again and again, in two temporaries that take turns."""
    m = Maker(x)
    given = m.given(0)
    turns = [m.temporary(x.dtype, x.shape) for _ in range(2)]
    m.step("add", [given, given], turns[1])
    m.step("relu", [turns[1]], turns[0])
    for i in range(n):
        m.step("add", [turns[i % 2], given], turns[(i + 1) % 2])
    m.step("add", [turns[n % 2], given], m.result(x.dtype, x.shape))
    return m


def chained(x: Tensor, n: int) -> Any:
    y = tt.relu(x + x)
    for _ in range(n + 1):
        y = y + x
    return y.numpy()


def same(a: Any, b: Any) -> None:
    a, b = (t.numpy() if isinstance(t, Tensor) else t for t in (a, b))
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


# What a program computes.


@pytest.mark.parametrize("shape", [(), (0,), (8,), (3, 5), (200, 331)])
def test_a_chain_has_the_bits_of_its_calls(shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    p = chain(x, 7).make()
    for seed in range(3):
        x = floats(*shape, seed=seed)
        (out,) = p(x)
        same(out, chained(x, 7))
    assert type(out) is Tensor
    assert (out.shape, out.is_contiguous()) == (shape, True)


def test_single_returns_the_tensor_itself() -> None:
    x = floats(4)
    same(chain(x, 1).make(single=True)(x), chained(x, 1))


def test_operands_may_be_reversed_transposed_and_repeated() -> None:
    x, row = floats(6, 4), floats(6, seed=1)
    m = Maker(x, row)
    back = m.operand(ARGS, (5 * 4 + 3) * 4, tt.f32, (4, 6), (-1, -4))  # x[::-1, ::-1].T
    repeated = m.operand(ARGS + 1, 0, tt.f32, (4, 6), (0, 1))
    m.step("multiply", [back, repeated], m.result(tt.f32, (4, 6)))
    (out,) = m.make()(x, row)
    same(out, x.numpy()[::-1, ::-1].T * row.numpy())


def test_arguments_keep_the_layout_the_program_was_made_for() -> None:
    x = floats(6, 4)
    view, other = x[::-1, 1:3], floats(6, 2)
    m = adder(view, other)
    same(m.make(single=True)(view, other), view + other)
    assert m.make()(other, other) is None


@pytest.mark.parametrize("t", [tt.f32, tt.f64, tt.f16, tt.bf16, tt.i8, tt.i64])
def test_constants_are_copied(t: dt.DType) -> None:
    x = tt.arange(5).to(t)
    m = Maker(x)
    m.constant(np.zeros(3, np.uint8))  # what comes next is still aligned
    m.step("add", [m.given(0), m.constant((np.arange(5) * 2).astype(t.numpy))], m.result(t, (5,)))
    same(m.make(single=True)(x), x + x + x)


def test_a_step_of_several_outputs_writes_them_all() -> None:
    x = floats(5, 96)
    m = Maker(x)
    outs = [m.result(tt.i8, (5, 96)), m.result(tt.f32, (5,)), m.result(tt.i32, (5,))]
    m.step("quantize_activations", [m.given(0)], outs)
    for got, wanted in zip(m.make()(x), tt.quantize_activations(x), strict=True):
        same(got, wanted)


@settings(max_examples=150, deadline=None)
@given(st.integers(-3, 25), st.lists(st.tuples(st.integers(0, 4), st.integers(-6, 6)), max_size=3))
def test_an_operand_is_taken_exactly_when_it_lies_inside(start: int, axes: list[tuple[int, int]]) -> None:
    x = floats(24)
    shape, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    reached = start + sum(np.meshgrid(*(np.arange(n) * s for n, s in axes), indexing="ij"), np.zeros(shape, int))
    inside = 0 <= start <= 24 and (reached.size == 0 or (reached.min() >= 0 and reached.max() < 24))
    m = Maker(x)
    m.step("negative", [m.operand(ARGS, 4 * start, tt.f32, shape, strides)], m.result(tt.f32, shape))
    if not inside:
        with pytest.raises(ValueError, match="operand 0 reaches"):
            m.make()
        return
    same(m.make(single=True)(x), -x.numpy()[reached])


def packed_weight(t: dt.DType, n: int, k: int, seed: int = 0) -> Tensor:
    low, high = t.values
    return tt.repack(tt.tensor(np.random.default_rng(seed).integers(low, high + 1, (n, k)).astype(np.int8)), t)


@pytest.mark.parametrize("t", dt.PACKED, ids=str)
@pytest.mark.parametrize("captured", [True, False])
def test_packed_weights_are_read_as_they_lie(t: dt.DType, captured: bool) -> None:
    x, w, scale = floats(3, 130), packed_weight(t, 90, 130), floats(90, seed=2)
    m = Maker(x, captured=[w, scale]) if captured else Maker(x, w, scale)
    kernel = next((k for k in native.kernels("quantized_matmul") if t.code in k.dtypes), None)
    assert kernel is not None
    m.steps.append((kernel, {"group": 0}, [m.given(0), m.given(1), m.given(2), -1], [m.result(tt.f32, (3, 90))]))
    out = m.make(single=True)(*((x,) if captured else (x, w, scale)))
    same(out, tt.quantized_matmul(x, w, scale))


def test_attributes_reach_the_kernel() -> None:
    x = floats(4, 6)
    m = Maker(x)
    m.step("sum", [m.given(0)], m.result(tt.f32, (4, 1)), axis=-1, keepdims=True)
    same(m.make(single=True)(x), tt.sum(x, axis=-1, keepdims=True))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "multiply", "maximum"]), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12),
       st.integers(0, 40))  # fmt: skip
def test_any_elementwise_program_has_the_bits_of_its_calls(calls: list[tuple[str, int, int]], n: int) -> None:
    x, y = floats(n), floats(n, seed=1)
    m = Maker(x, y)
    operands, eager = [m.given(0), m.given(1)], [x, y]
    for i, (name, a, b) in enumerate(calls):
        last = i == len(calls) - 1
        out = m.result(tt.f32, (n,)) if last else m.temporary(tt.f32, (n,))
        a, b = a % len(operands), b % len(operands)
        m.step(name, [operands[a], operands[b]], out)
        operands.append(out)
        eager.append(getattr(tt, name)(eager[a], eager[b]))
    same(m.make(single=True)(x, y), eager[-1])


# Memory: what is captured, donated, cloned, shared.


def test_a_captured_tensor_is_read_as_it_is_now() -> None:
    x, w = floats(8), floats(8, seed=1)
    m = Maker(x, captured=[w])
    m.step("add", [m.given(0), m.given(1)], m.result(tt.f32, (8,)))
    p = m.make(single=True)
    same(p(x), x + w)
    w[:] = 5
    same(p(x), x + 5)
    before = w.clone()
    w[:] = 7  # moves w: its memory was shared
    same(p(x), x + 7)
    same(before, tt.full((8,), 5, dtype="f32"))


def updater(x: Tensor, y: Tensor) -> Maker:
    """x += y; returns x itself."""
    m = Maker(x, y, donated=[0])
    m.step("add", [m.given(0), m.given(1)], m.given(0))
    m.results.append(("arg", 0))
    return m


@pytest.mark.parametrize("n", [8, 100_000])
def test_a_donated_argument_is_updated_in_place(n: int) -> None:
    x, y = floats(n), floats(n, seed=1)
    wanted, address = x + y, x.address
    assert updater(x, y).make(single=True)(x, y) is x
    assert x.address == address
    same(x, wanted)


def test_a_donated_argument_leaves_its_clones_alone() -> None:
    x, y = floats(8), floats(8, seed=1)
    before, wanted = x.clone(), x + y
    updater(x, y).make()(x, y)
    same(x, wanted)
    same(before, floats(8))


def test_a_donated_slice_leaves_the_elements_between_alone() -> None:
    whole, y = floats(8, 6), floats(8, 2, seed=1)
    wanted = whole.numpy().copy()
    wanted[:, 1:3] += y.numpy()
    part = whole[:, 1:3]
    updater(part, y).make()(part, y)
    same(whole, wanted)


def test_a_clone_of_a_donated_argument_shows_what_was_written() -> None:
    x, y = floats(8), floats(8, seed=1)
    m = updater(x, y)
    m.results.append(("clone", ARGS, tt.f32, (4,), (-1,), 7))
    wanted = x.numpy() + y.numpy()
    out, clone = m.make()(x, y)
    same(clone, wanted[:3:-1])
    out[:] = 0
    same(clone, wanted[:3:-1])


def test_a_clone_shares_memory_until_someone_writes() -> None:
    x, w = floats(6), floats(6, seed=1)
    m = Maker(x, captured=[w])
    m.results += [("clone", ARGS, tt.f32, (2, 3), (3, 1), 0), ("clone", ARGS + 1, tt.f32, (6,), (1,), 0)]
    a, b = m.make()(x)
    assert (a.address, b.address) == (x.address, w.address)
    x[:] = 1
    b[:] = 2
    same(a, floats(6).reshape(2, 3))
    same(w, floats(6, seed=1))


def test_a_clone_of_a_slice_begins_where_the_slice_does() -> None:
    x = floats(10)[4:]
    m = Maker(x)
    m.results.append(("clone", ARGS, tt.f32, (3,), (2,), 1))
    same(m.make(single=True)(x), x[1::2])


def test_a_clone_of_numpy_memory_is_a_copy() -> None:
    data = np.arange(4, dtype=np.float32)
    x = tt.from_numpy(data)
    m = Maker(x)
    m.results.append(("clone", ARGS, tt.f32, (4,), (1,), 0))
    out = m.make(single=True)(x)
    data[:] = 9
    same(out, np.arange(4, dtype=np.float32))


def test_results_of_the_same_memory_are_owned_apart() -> None:
    x, y = floats(8), floats(8, seed=1)
    m = adder(x, y)
    m.results.append(("same", 0, tt.f32, (2, 4), (4, 1), 0))
    m.results.append(("same", 0, tt.f32, (4,), (-2,), 7))
    first, second, third = m.make()(x, y)
    wanted = x.numpy() + y.numpy()
    assert first.address == second.address
    first[:] = 0
    second[:] = 1
    same(third, wanted[::-2])


def test_a_result_may_be_a_part_of_what_the_steps_wrote() -> None:
    x, y = floats(8), floats(8, seed=1)
    m = adder(x, y)
    m.results[0] = ("new", tt.f32, (4,), (2,), 1, 32)
    same(m.make(single=True)(x, y), (x + y)[1::2])


def test_donating_one_half_and_cloning_the_other_are_apart() -> None:
    x, y = floats(8), floats(4, seed=1)
    low, high = x[:4], x[4:]
    m = Maker(low, y, high, donated=[0])
    m.step("add", [m.given(0), m.given(1)], m.given(0))
    m.results += [("arg", 0), ("clone", ARGS + 2, tt.f32, (4,), (1,), 0)]
    wanted = x.numpy().copy()
    wanted[:4] += y.numpy()
    _, clone = m.make()(low, y, high)
    same(x, wanted)
    same(clone, wanted[4:])


@pytest.fixture
def events() -> Iterator[list[tuple[str, int]]]:
    seen: list[tuple[str, int]] = []
    watch(lambda kind, address, nbytes, reused: seen.append((kind, nbytes)))
    yield seen
    watch(None)


def test_a_watcher_sees_the_arena_and_the_results(events: list[tuple[str, int]]) -> None:
    x = floats(300)
    p = chain(x, 3).make(single=True)
    del events[:]
    out = p(x)
    assert events == [("alloc", p.arena_bytes), ("alloc", out.nbytes), ("free", p.arena_bytes)]


def test_a_watcher_may_run_the_same_program() -> None:
    x = floats(64)
    p = chain(x, 3).make(single=True)
    inner: list[Tensor] = []

    def watcher(kind: str, address: int, nbytes: int, reused: bool) -> None:
        if not inner:
            inner.append(x)
            inner.append(p(x))

    watch(watcher)
    try:
        outer = p(x)
    finally:
        watch(None)
    same(inner[1], chained(x, 3))
    same(outer, chained(x, 3))


def test_nothing_stays_allocated_after_a_call() -> None:
    x = floats(1000)
    p = chain(x, 3).make()
    gc.collect()
    before = native.pool_stats()["current_bytes"]
    p(x)
    assert native.pool_stats()["current_bytes"] == before


def test_an_arena_that_does_not_fit_raises_and_leaves_nothing() -> None:
    x = floats(8)
    m = adder(x, x)
    for change in ({"arena_bytes": 1 << 55}, {"results": [*m.results, ("new", tt.f32, (2,), (1,), 0, 1 << 55)]}):
        p = m.make(**change)
        gc.collect()
        before = native.pool_stats()["current_bytes"]
        with pytest.raises(MemoryError, match="does not fit in memory"):
            p(x, x)
        assert native.pool_stats()["current_bytes"] == before
        assert p.runs == 0


# What is refused.


def test_other_arguments_are_refused_without_running() -> None:
    x, y = floats(8), floats(8, seed=1)
    p = adder(x, y).make()
    other = [(x,), (x, y, x), (x, 1.0), (x, None), (x, y.to("f64")), (x, floats(9)), (x, floats(1, 8)),
             (x, floats(16)[::2]), (x, tt.empty((8,), dtype="i32"))]  # fmt: skip
    assert [p(*args) for args in other] == [None] * len(other)
    assert p.time(x) is None
    assert p.runs == 0
    with pytest.raises(TypeError, match="by position"):
        p(x, y=y)


def test_strides_of_axes_of_size_one_do_not_matter() -> None:
    x = floats(1, 8)
    odd = floats(4, 8)[::4]
    assert odd.strides != x.strides
    same(adder(x, x).make(single=True)(odd, odd), odd + odd)


def test_donated_memory_that_something_else_reads_is_refused() -> None:
    whole, y = floats(12), floats(8, seed=1)
    x, near = whole[:8], whole[4:]
    p = updater(x, y).make()
    assert p(x, x) is None
    assert p(x, near) is None
    m = Maker(x, captured=[near], donated=[0])
    m.step("add", [m.given(0), m.given(1)], m.given(0))
    assert m.make()(x) is None
    same(whole, floats(12))


def test_donated_arguments_that_meet_are_refused() -> None:
    whole = floats(12)
    x, near, far = whole[:6], whole[5:11], floats(6)
    m = Maker(x, near, donated=[0, 1])
    m.step("add", [m.given(0), m.given(1)], m.given(0))
    m.step("add", [m.given(0), m.given(1)], m.given(1))
    p = m.make()
    assert p(x, near) is None
    assert p(x, x) is None
    assert p(x, far) == ()
    assert p(far, whole[6:]) == ()
    assert p.runs == 2


def test_donated_memory_that_may_not_be_written_is_refused() -> None:
    data = np.zeros(8, np.float32)
    data.flags.writeable = False
    x, y = tt.from_numpy(data), floats(8)
    assert updater(y, y).make()(x, y) is None


# (what the message says, what is changed in operand 0 of x + y)
OUTSIDE: list[tuple[str, dict[str, Any]]] = [
    ("operand 0 has the base 5", {"base": 5}),
    ("operand 0 has the base -1", {"base": -1}),
    ("operand 0 reaches bytes 4 to 36", {"offset": 4}),
    ("operand 0 reaches bytes -4 to 28", {"offset": -4}),
    ("operand 0 reaches bytes -28 to 4", {"strides": (-1,)}),
    ("operand 0 reaches bytes 0 to 60", {"strides": (2,)}),
    ("operand 0 begins at byte 2", {"offset": 2, "shape": (4,)}),
    ("operand 0 sees f32 as i32", {"dtype": dt.i32}),
    ("operand 0 has 1 sizes but 2 strides", {"strides": (1, 1)}),
    ("has no possible shape", {"shape": (-1,)}),
    ("has no possible shape", {"shape": (1 << 40, 1 << 40), "strides": (0, 0)}),
    ("strides that no memory has", {"strides": (1 << 62,)}),
    ("a shape of 33 axes", {"shape": (1,) * 33, "strides": (1,) * 33}),
    ("operand 0 reaches bytes 0 to 32 of base 0, which has 0 to 0", {"base": ARENA}),
    ("operand 0 reaches bytes 0 to 32 of base 1, which has 0 to 0", {"base": CONSTANTS}),
]


@pytest.mark.parametrize(("message", "changes"), OUTSIDE, ids=[m for m, _ in OUTSIDE])
def test_an_operand_outside_its_memory_is_an_error(message: str, changes: dict[str, Any]) -> None:
    m = adder(floats(8), floats(8))
    fields = dict(zip(("base", "offset", "dtype", "shape", "strides"), m.operands[0], strict=True)) | changes
    with pytest.raises(ValueError, match=message):
        m.make(operands=[tuple(fields.values()), *m.operands[1:]])


def test_packed_operands_are_whole_tiles() -> None:
    w = packed_weight(dt.tern2_r64, 128, 130)
    m = Maker(captured=[w])
    for message, offset, shape, strides in [
        ("begins at byte 8", 8, (64, 130), w.strides),
        ("cut through the blocks", 0, (64, 64), (1, 1)),
        ("reaches bytes 0 to", 0, (192, 130), w.strides),
    ]:
        with pytest.raises(ValueError, match=message):
            m.make(operands=[(ARGS, offset, w.dtype, shape, strides)])
    m.make(operands=[(ARGS, 0, w.dtype, (64, 130), w.strides)])


def kernel(name: str) -> Any:
    return native.kernel(name)


# (the error, what the message says, the step instead of x + y; operands are x, y, the result, and y repeated)
STEPS: list[tuple[type[Exception], str, Any]] = [
    (TypeError, "step 0 has a str", lambda: ("add", {}, [0, 1], [2])),
    (TypeError, "step 0 is a int", lambda: 5),
    (TypeError, "does not take", lambda: (kernel("bitwise_and"), {}, [0, 1], [2])),
    (TypeError, "has no attribute 'speed'", lambda: (kernel("add"), {"speed": 1}, [0, 1], [2])),
    (IndexError, "axis 1 does not exist", lambda: (kernel("sum"), {"axis": 1}, [0], [2])),
    (ValueError, r"step 0 \(add\) names the operand 4", lambda: (kernel("add"), {}, [0, 4], [2])),
    (ValueError, r"step 0 \(add\) names the operand -2", lambda: (kernel("add"), {}, [0, -2], [2])),
    (ValueError, r"step 0 \(add\) names the operand -1 among its outputs", lambda: (kernel("add"), {}, [0, 1], [-1])),
    (ValueError, r"step 0 \(add\) has 17 inputs", lambda: (kernel("add"), {}, [0] * 17, [2])),
    (ValueError, r"step 0 \(add\) has 5 outputs", lambda: (kernel("add"), {}, [0, 1], [2] * 5)),
    (ValueError, r"step 0 \(add\) has no output", lambda: (kernel("add"), {}, [0, 1], [])),
    (ValueError, r"step 0 \(add\) writes base 3, which may only be read", lambda: (kernel("add"), {}, [0, 1], [1])),
    (ValueError, r"step 0 \(add\) writes base 1, which may only be read", lambda: (kernel("add"), {}, [0, 1], [4])),
    (ValueError, r"step 0 \(add\) writes elements that share their place", lambda: (kernel("add"), {}, [0, 1], [3])),
]


@pytest.mark.parametrize(("error", "message", "step"), STEPS, ids=[m for _, m, _ in STEPS])
def test_a_step_that_cannot_run_is_an_error(error: type[Exception], message: str, step: Any) -> None:
    m = adder(floats(8), floats(8))
    m.operand(ARGS + 2, 0, tt.f32, (8,), (0,))
    if "base 1" in message:
        m.constant(np.zeros(8, np.float32))
    with pytest.raises(error, match=message):
        m.make(steps=[step()])


def test_a_captured_tensor_is_never_written() -> None:
    x = floats(8)
    m = Maker(x, captured=[floats(8)])
    m.step("add", [m.given(0), m.given(1)], m.given(1))
    with pytest.raises(ValueError, match="may only be read"):
        m.make()


def test_a_part_of_a_donated_argument_with_gaps_is_never_written() -> None:
    x = floats(8, 6)[:, 1:3]
    m = Maker(x, donated=[0])
    part = m.operand(ARGS, 0, tt.f32, (8,), (1,))
    m.step("relu", [part], part)
    with pytest.raises(ValueError, match="writes a part of argument 0, which has gaps"):
        m.make()


F8 = (dt.f32, (8,), (1,))
RESULTS: list[tuple[type[Exception], str, Any]] = [
    (ValueError, "must begin with", ("old", *F8, 0, 32)),
    (ValueError, "must begin with", ()),
    (TypeError, "result 0 is a int", 3),
    (TypeError, "a result is", ("new", *F8)),
    (ValueError, "result 0 reaches bytes 0 to 32 of base 4, which has 0 to 31", ("new", *F8, 0, 31)),
    (ValueError, "result 0 reaches bytes 4 to 36", ("new", *F8, 1, 32)),
    (ValueError, "result 0 reaches bytes -4 to 28", ("new", *F8, -1, 32)),
    (ValueError, "result 0 cannot have -1 bytes", ("new", *F8, 0, -1)),
    (ValueError, "result 0 cannot begin at element", ("new", *F8, 1 << 61, 32)),
    (ValueError, "no earlier new one", ("same", 0, *F8, 0)),
    (ValueError, "clone of base 0", ("clone", 0, *F8, 0)),
    (ValueError, "clone of base 4", ("clone", 4, *F8, 0)),
    (ValueError, "result 0 sees f32 as i32", ("clone", 2, dt.i32, (8,), (1,), 0)),
    (ValueError, "result 0 reaches bytes 4 to 36 of base 2", ("clone", 2, *F8, 1)),
    (ValueError, "argument 0, which is not a donated one", ("arg", 0)),
    (ValueError, "argument 7, which is not a donated one", ("arg", 7)),
]


@pytest.mark.parametrize(("error", "message", "result"), RESULTS, ids=[m for _, m, _ in RESULTS])
def test_a_result_that_cannot_be_made_is_an_error(error: type[Exception], message: str, result: Any) -> None:
    m = Maker(floats(8), floats(8))
    with pytest.raises(error, match=message):
        m.make(results=[result])


def test_the_other_parts_are_checked_too() -> None:
    m = adder(floats(8), floats(8))
    for error, message, change in [
        (TypeError, "captured 0 is a int", {"captured": [1]}),
        (TypeError, "captured 0 must be a tensor", {"captured": [()]}),
        (TypeError, "bytes", {"constants": "text"}),
        (ValueError, "an arena of -1 bytes", {"arena_bytes": -1}),
        (TypeError, "an argument is", {"args": [(dt.f32, (8,))]}),
        (AttributeError, "code", {"args": [("f32", (8,), (1,), False)]}),
        (ValueError, "single is for one result", {"single": True, "results": [], "steps": [], "operands": []}),
        (TypeError, "not iterable", {"steps": None}),
    ]:
        with pytest.raises(error, match=message):
            m.make(**change)


# Threads, counts and clocks.


@pytest.mark.parametrize(("n", "calls"), [(16, 1000), (20_000, 60)])
def test_threads_run_one_program_at_once(n: int, calls: int) -> None:
    given = [floats(n, seed=i) for i in range(8)]
    p = chain(given[0], 5).make(single=True)
    wanted = [chained(x, 5) for x in given]
    wrong: list[int] = []
    start = threading.Barrier(8)

    def work(i: int) -> None:
        start.wait()
        for _ in range(calls):
            if not np.array_equal(p(given[i]).numpy(), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert p.runs == 8 * calls


def test_a_captured_tensor_may_be_replaced_while_others_run() -> None:
    n = 50_000
    x, w = tt.zeros((n,)), tt.zeros((n,))
    m = Maker(x, captured=[w])
    m.step("add", [m.given(0), m.given(1)], m.result(tt.f32, (n,)))
    p = m.make(single=True)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            keep = w.clone()  # the next write moves w while p reads it
            w[:] = 1
            del keep

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(200):
        assert set(np.unique(p(x).numpy())) <= {0.0, 1.0}
    done.set()
    writer.join()


def test_a_program_counts_and_times_its_runs() -> None:
    x = floats(8)
    p = chain(x, 7).make(single=True)
    assert (p.steps, p.runs, p.last_ns) == (10, 0, 0)
    p(x)
    out, spent = p.time(x)
    same(out, chained(x, 7))
    assert len(spent) == p.steps
    assert all(ns >= 0 for ns in spent)
    assert p.runs == 2
    assert p.last_ns >= sum(spent)
    assert "10 steps" in repr(p)


def test_attribute_values_stay_alive_with_the_program() -> None:
    x = floats(4, 6)
    m = Maker(x)
    attrs = {"axis": (0, 1), "keepdims": False}
    m.steps.append((kernel("sum"), attrs, [m.given(0)], [m.result(tt.f32, ())]))
    p = m.make(single=True)
    attrs.clear()
    same(p(x), tt.sum(x))


def test_a_program_keeps_what_it_captured_alive() -> None:
    x = floats(8)
    m = Maker(x, captured=[floats(8, seed=1)])
    m.step("add", [m.given(0), m.given(1)], m.result(tt.f32, (8,)))
    p = m.make(single=True)
    del m
    gc.collect()
    same(p(x), x + floats(8, seed=1))

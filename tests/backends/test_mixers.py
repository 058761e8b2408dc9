"""The native kernels of mixers: the reference's bits on every instruction set, in any chunk and batch, on any number of threads;
states written where they are, and errors for slots and experts that do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from isas import ISAS
from mixers import delta_rule, draw, gates, sylvester
from tritium import ops
from tritium.backends.reference import kernels as reference
from tritium.buffer import native
from tritium.errors import ArgumentError, BoundsError, DTypeError, ShapeError
from tritium.op import Op, outputs

every_isa = pytest.mark.parametrize("isa", ISAS or [pytest.param("", marks=pytest.mark.skip(reason="a pure build"))])
BASES = ("portable", "avx2", "avx512", "neon")  # instruction sets with kernels of their own for weights in rows
few = settings(max_examples=15, deadline=None)


@pytest.fixture(params=[1, 3], ids=["1 thread", "3 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = tt.get_num_threads()
    tt.set_num_threads(request.param)
    yield request.param
    tt.set_num_threads(before)


def strided(x: Any) -> tt.Tensor:
    """The same values in a view with gaps along its last axis and a turned first one."""
    wide = np.zeros((*x.shape, 2), x.dtype)
    wide[..., 1] = x[::-1]
    return tt.tensor(wide)[::-1, ..., 1]


def by_kernel(op: Op, isa: str, *xs: Any, **attrs: Any) -> list[Any]:
    """Results of the kernel of an instruction set, as arrays."""
    ts = [x if x is None or isinstance(x, tt.Tensor) else tt.tensor(x) for x in xs]
    specs = tuple(None if t is None else t.spec for t in ts)
    out = op.decide(specs, op.complete(attrs)).out
    outs = [tt.ones(s.shape, dtype=s.dtype) for s in outputs(out)]
    how = attrs.get("activations", "token")  # products have a kernel for each
    kernels = native.kernels(op.name if how == "token" else f"{op.name}_{how}", isa)
    fits = next(k for k in kernels if specs[max(k.decides, 0)].dtype.code in k.dtypes)  # type: ignore[union-attr]
    fits(*ts, out=tuple(outs) if len(outs) > 1 else outs[0], **op.complete(attrs))
    return [o.numpy() for o in outs]


def by_reference(op: Op, *xs: Any, **attrs: Any) -> list[Any]:
    specs = tuple(None if x is None else tt.Spec(x.shape, tt.tensor(x).dtype) for x in xs)
    out = op.decide(specs, op.complete(attrs)).out
    outs = tuple(np.empty(s.shape, s.dtype.numpy) for s in outputs(out))
    reference.KERNELS[op](*xs, out=outs if len(outs) > 1 else outs[0], **op.complete(attrs))
    return list(outs)


def same(got: list[Any], want: list[Any]) -> None:
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g.view(np.uint8), w.view(np.uint8))


# ---- hadamard


@every_isa
@few
@given(
    st.integers(0, 3), st.sampled_from([1, 2, 3, 8, 24, 40, 256, 1280]), st.sampled_from(["f32", "f16", "bf16"]),
    st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_hadamard_has_the_references_bits(
    isa: str, rows: int, size: int, kind: str, signed: bool, inverse: bool, gaps: bool
) -> None:
    x = draw((rows, 2, size), rows, kind)
    signs = np.sign(draw((size,), 1) + 0.1).astype(np.float32) if signed else None
    got = by_kernel(ops.hadamard, isa, strided(x) if gaps and rows else x, signs, inverse=inverse)
    same(got, by_reference(ops.hadamard, x, signs, inverse=inverse))


@pytest.mark.parametrize(("size", "block"), [(8, None), (40, None), (48, 4), (5120, None), (6144, 1024), (7, 1)])
def test_hadamard_is_sylvesters_matrix_of_each_block_and_its_own_inverse(size: int, block: int | None) -> None:
    x, signs = draw((2, size), 1), np.sign(draw((size,), 2) + 1e-3).astype(np.float32)
    whole = block or size & -size
    h = sylvester(whole) / np.sqrt(whole)
    want = ((x * signs).astype(np.float64).reshape(2, -1, whole) @ h).reshape(2, size)
    got = tt.hadamard(tt.tensor(x), tt.tensor(signs), block=block)
    np.testing.assert_allclose(got.numpy(), want, atol=2e-6 * np.sqrt(whole))
    back = tt.hadamard(got, tt.tensor(signs), block=block, inverse=True)
    np.testing.assert_allclose(back.numpy(), x, atol=1e-5)


def test_hadamard_works_in_place_and_in_programs(threads: int) -> None:
    x = tt.tensor(draw((70, 1024), 1))
    want = tt.hadamard(x).numpy()
    np.testing.assert_array_equal(tt.compile(lambda v: tt.hadamard(v * 1) + 0)(x).numpy(), want)
    y = x.clone()
    assert tt.hadamard(y, out=y) is y
    np.testing.assert_array_equal(y.numpy(), want)


def test_hadamard_refuses_blocks_and_signs_that_do_not_fit() -> None:
    x = tt.zeros((2, 40))
    for block in (0, 3, 16, -8):
        with pytest.raises(
            ArgumentError, match=r"hadamard: block must be a power of two that divides the 40 .* None is 8"
        ):
            tt.hadamard(x, block=block)
    with pytest.raises(ShapeError, match=r"hadamard: signs must have shape \[40\]"):
        tt.hadamard(x, tt.ones(8))
    with pytest.raises(ShapeError, match="at least one axis"):
        tt.hadamard(tt.tensor(1.0))


# ---- rows with a state


def delta_operands(batch: int, tokens: int, heads: tuple[int, int], sizes: tuple[int, int], seed: int) -> list[Any]:
    q, k = (draw((batch, tokens, heads[0], sizes[0]), seed + i) / 3 for i in (0, 1))
    v = draw((batch, tokens, heads[1], sizes[1]), seed + 2)
    return [q, k, v, *gates((batch, tokens, heads[1]), seed + 3)]


def draw_places(rng: np.random.Generator, batch: int, slots: int, tokens: int) -> Any:
    chosen = rng.permutation(slots)[:batch]
    rows = [(slot, rng.choice([0, 5]), rng.integers(0, tokens + 1)) for slot in chosen]
    return np.array(rows, np.int32).reshape(batch, 3)


@every_isa
@few
@given(
    st.integers(0, 3), st.integers(0, 5), st.sampled_from([(1, 1), (2, 4), (3, 3)]),
    st.sampled_from([(1, 1), (8, 16), (5, 70), (16, 128), (0, 4), (4, 0)]), st.booleans(),
)  # fmt: skip
def test_the_delta_rule_has_the_references_bits(
    isa: str, batch: int, tokens: int, heads: tuple[int, int], sizes: tuple[int, int], gaps: bool
) -> None:
    rng = np.random.default_rng(batch * 10 + tokens)
    state, xs = draw((4, heads[1], *sizes), 9), delta_operands(batch, tokens, heads, sizes, 1)
    places = draw_places(rng, batch, 4, tokens)
    given_xs = [strided(x) if gaps and x.size else x for x in (state, *xs)]
    got = by_kernel(ops.gated_delta_rule, isa, *given_xs, places)
    same(got, by_reference(ops.gated_delta_rule, state, *xs, places))


@every_isa
@few
@given(
    st.integers(0, 3),
    st.integers(0, 6),
    st.sampled_from([1, 5, 64, 300]),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)
def test_the_convolution_has_the_references_bits(
    isa: str, batch: int, tokens: int, channels: int, taps: int, biased: bool, gaps: bool
) -> None:
    rng = np.random.default_rng(batch * 10 + tokens)
    state, x = draw((4, taps - 1, channels), 1), draw((batch, tokens, channels), 2)
    weight, bias = draw((taps, channels), 3), draw((channels,), 4) if biased else None
    places = draw_places(rng, batch, 4, tokens)
    xs = [strided(a) if gaps and a.size else a for a in (state, x, weight)]
    got = by_kernel(ops.causal_conv1d, isa, *xs, places, bias)
    same(got, by_reference(ops.causal_conv1d, state, x, weight, places, bias))


def test_the_delta_rule_is_the_formula_in_f64() -> None:
    xs = delta_operands(2, 6, (2, 4), (8, 5), 1)
    state, y = tt.gated_delta_rule(tt.zeros((2, 4, 8, 5)), *xs, np.array([(0, 0, 6), (1, 0, 6)], np.int32))
    for b in range(2):
        memory, want = delta_rule(np.zeros((4, 8, 5)), *(x[b] for x in xs))
        np.testing.assert_allclose(y.numpy()[b], want, atol=1e-6)
        np.testing.assert_allclose(state.numpy()[b], memory, atol=1e-6)


def test_the_convolution_is_numpys() -> None:
    x, weight = draw((1, 9, 3), 1), draw((4, 3), 2)
    _, y = tt.causal_conv1d(tt.zeros((1, 3, 3)), tt.tensor(x), tt.tensor(weight), np.array([(0, 0, 9)], np.int32))
    want = np.stack([np.convolve(x[0, :, c], weight[::-1, c])[:9] for c in range(3)], 1)
    np.testing.assert_allclose(y.numpy()[0], want, atol=1e-6)


@pytest.mark.parametrize("chunks", [[7], [1] * 7, [3, 1, 3], [2, 5]])
@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_tokens_give_the_same_in_chunks_and_batches_and_padding_changes_nothing(
    chunks: list[int], device: str, threads: int
) -> None:
    if device == "torch":
        pytest.importorskip("torch")
    xs, line, weight = delta_operands(3, 7, (2, 4), (16, 64), 1), draw((3, 7, 40), 5), draw((4, 40), 6)
    places = lambda start, n: tt.tensor(
        np.array([(2, start, n), (0, start, n), (3, start, n)], np.int32), device=device
    )
    on = lambda a: tt.tensor(np.ascontiguousarray(a), device=device)
    old = on(draw((5, 4, 16, 64), 7)), on(draw((5, 3, 40), 8))
    whole, y = tt.gated_delta_rule(old[0], *map(on, xs), places(0, 7))
    kept, z = tt.causal_conv1d(old[1], on(line), on(weight), places(0, 7))
    states, start = [x.clone() for x in old], 0
    for n in chunks:
        padded = [np.pad(a[:, start : start + n], [(0, 0), (0, 2), *[(0, 0)] * (a.ndim - 2)], constant_values=np.nan)
                  for a in (*xs, line)]  # fmt: skip
        _, got = tt.gated_delta_rule(states[0], *map(on, padded[:5]), places(start, n), out=(states[0], None))
        _, more = tt.causal_conv1d(states[1], on(padded[5]), on(weight), places(start, n), out=(states[1], None))
        for result, all_tokens in ((got, y), (more, z)):
            np.testing.assert_array_equal(
                result[:, :n].to("cpu").numpy(), all_tokens[:, start : start + n].to("cpu").numpy()
            )
            assert not result[:, n:].to("cpu").numpy().any()
        start += n
    for state, want in zip(states, (whole, kept), strict=True):
        np.testing.assert_array_equal(state.to("cpu").numpy(), want.to("cpu").numpy())
    for slot in (1, 4):
        np.testing.assert_array_equal(whole[slot].to("cpu").numpy(), old[0][slot].to("cpu").numpy())


def test_states_are_written_where_they_are_eagerly_and_in_programs() -> None:
    xs, places = (
        [tt.tensor(x) for x in delta_operands(2, 3, (1, 2), (4, 8), 1)],
        np.array([(1, 2, 3), (0, 0, 2)], np.int32),
    )
    first = draw((3, 2, 4, 8), 2)
    want, y = tt.gated_delta_rule(tt.tensor(first), *xs, places)

    def step(state: tt.Tensor, *operands: tt.Tensor) -> tt.Tensor:
        return tt.gated_delta_rule(state, *operands, out=(state, None))[1]

    program = tt.compile(step, donate=["state"])
    for run in (step, program, program):
        state = tt.tensor(first)
        address = state.address
        np.testing.assert_array_equal(run(state, *xs, tt.tensor(places)).numpy(), y.numpy())
        assert state.address == address
        np.testing.assert_array_equal(state.numpy(), want.numpy())
    if native is not None:
        steps = program.generate_execution_plan(tt.tensor(first), *xs, tt.tensor(places)).steps
        assert [s.name for s in steps] == ["gated_delta_rule"]  # nothing is copied


def test_a_state_that_shares_memory_with_an_operand_or_a_clone_is_not_harmed() -> None:
    xs, places = [tt.tensor(x) for x in delta_operands(1, 2, (2, 2), (4, 4), 1)], np.array([(0, 1, 2)], np.int32)
    state = tt.tensor(draw((1, 2, 4, 4), 2))
    want, y = tt.gated_delta_rule(state, *xs, places)
    held = state.clone()
    before = held.numpy().copy()
    got, _ = tt.gated_delta_rule(state, *xs, places, out=(state, None))
    np.testing.assert_array_equal(got.numpy(), want.numpy())
    np.testing.assert_array_equal(held.numpy(), before)
    shared = tt.tensor(draw((1, 2, 2, 4), 3))  # v, and where y is written
    want, y = tt.gated_delta_rule(held, xs[0], xs[1], shared, *xs[3:], places)
    _, got = tt.gated_delta_rule(held, xs[0], xs[1], shared, *xs[3:], places, out=(tt.empty((1, 2, 4, 4)), shared))
    np.testing.assert_array_equal(got.numpy(), y.numpy())


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (
            [(0, 0, 1), (3, 0, 1)],
            r"sequence 1 is at \(slot 3, start 0, count 1\), outside 3 slots and the 2 tokens given",
        ),
        ([(-1, 0, 1), (0, 0, 1)], r"sequence 0 is at \(slot -1, start 0"),
        ([(0, -1, 1), (1, 0, 1)], r"start -1"),
        ([(0, 0, 3), (1, 0, 1)], r"count 3"),
        ([(2, 0, 1), (2, 1, 1)], "sequences 0 and 1 are both in slot 2; each needs a state of its own"),
    ],
)
def test_places_without_a_state_of_their_own_are_errors_and_nothing_is_written(
    places: list[tuple[int, int, int]], message: str
) -> None:
    at = tt.tensor(np.array(places, np.int32))
    xs = [tt.tensor(x) for x in delta_operands(2, 2, (1, 1), (4, 4), 1)]
    memory, line = draw((3, 1, 4, 4), 1), draw((3, 1, 5), 2)
    state, conv = tt.tensor(memory), tt.tensor(line)
    for _ in ("decided", "replayed"):
        with pytest.raises(BoundsError, match=f"gated_delta_rule: .*{message}"):
            tt.gated_delta_rule(state, *xs, at, out=(state, None))
        with pytest.raises(BoundsError, match=f"causal_conv1d: .*{message}"):
            tt.causal_conv1d(conv, tt.ones((2, 2, 5)), tt.ones((2, 5)), at, out=(conv, None))
    np.testing.assert_array_equal(state.numpy(), memory)
    np.testing.assert_array_equal(conv.numpy(), line)
    empty = tt.tensor(np.array([(2, 0, 0), (2, 1, 1)], np.int32))  # a sequence without tokens shares with anyone
    tt.gated_delta_rule(state, *xs, empty)


def test_states_and_shapes_that_do_not_fit_are_errors() -> None:
    xs, at = [tt.tensor(x) for x in delta_operands(1, 2, (2, 4), (8, 6), 1)], np.array([(0, 0, 2)], np.int32)
    with pytest.raises(DTypeError, match="gated_delta_rule: state must be f32"):
        tt.gated_delta_rule(tt.zeros((1, 4, 8, 6), dtype="f16"), *xs, at)
    with pytest.raises(ShapeError, match=r"state \[slots, 4, 8, 6\] is needed"):
        tt.gated_delta_rule(tt.zeros((1, 4, 6, 8)), *xs, at)
    with pytest.raises(ShapeError, match=r"decay and beta must be \[1,2,4\]"):
        tt.gated_delta_rule(tt.zeros((1, 4, 8, 6)), *xs[:3], xs[3][..., :2], xs[4], at)
    with pytest.raises(ShapeError, match="places must be i32"):
        tt.gated_delta_rule(tt.zeros((1, 4, 8, 6)), *xs, tt.zeros((1, 3)))
    with pytest.raises(ShapeError, match=r"causal_conv1d: weight .* needs state \[slots, 2, 5\]"):
        tt.causal_conv1d(tt.zeros((1, 3, 5)), tt.zeros((1, 2, 5)), tt.zeros((3, 5)), at)


# ---- experts


@every_isa
@few
@given(
    st.sampled_from([t.name for t in ops.WEIGHTS]), st.integers(1, 5), st.integers(0, 6), st.integers(1, 3), st.booleans(),
    st.sampled_from([(0, "token"), (64, "token"), (64, "group"), (48, "group"), (0, "float"), (64, "float")]),
    st.sampled_from(["f32", "f16"]), st.sampled_from(["f32", "f16"]), st.booleans(),
)  # fmt: skip
def test_experts_have_the_bits_of_their_own_products(
    isa: str, kind: str, experts: int, tokens: int, active: int, each: bool, how: tuple[int, str], x_kind: str, scale_kind: str,
    gaps: bool,
) -> None:  # fmt: skip
    """Of a dense product for each expert, whatever else is in the batch."""
    group, activations = how
    isa = "portable" if activations == "float" and isa not in BASES else isa
    kind = "tern2" if activations == "float" else kind
    n, k = 70, 130
    rng = np.random.default_rng(tokens)
    integers = rng.integers(-1, 2, (experts, n, k)).astype(np.int8)
    w = tt.tensor(integers) if kind == "i8" else ops.repack(tt.tensor(integers), dtype=kind)
    scale = np.abs(draw((experts, n, -(-k // group)) if group else (experts, n), 1, scale_kind)) + 0.1
    scale = scale.astype(scale_kind.replace("f", "float"))
    chosen = rng.integers(0, experts, (tokens, active)).astype(np.int32)
    x = draw((tokens, active, k) if each else (tokens, k), 2, x_kind)
    attrs = {"group": group, "activations": activations}
    got = by_kernel(ops.expert_matmul, isa, strided(x) if gaps and x.size else x, w, scale, chosen, **attrs)[0]
    for t in range(tokens):
        for a in range(active):
            e, row = chosen[t, a], tt.tensor(x[t, a] if each else x[t])
            one = ops.repack(tt.tensor(integers[e]), dtype="tern2")
            want = by_kernel(ops.quantized_matmul, isa, row, one, tt.tensor(scale[e]), None, **attrs)[0]
            np.testing.assert_array_equal(got[t, a], want)
            if activations != "float":
                want = ops.quantized_matmul(row, one, tt.tensor(scale[e]), None, group, activations)
                np.testing.assert_array_equal(got[t, a], want.numpy())


@pytest.mark.parametrize("scale", [(), (4,), (4, 6)])
def test_experts_may_have_one_scale_for_all_or_one_each(scale: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    w, x = rng.integers(-1, 2, (4, 6, 9)).astype(np.int8), draw((5, 9), 1)
    scales = np.abs(draw(scale, 2)).astype(np.float32) + np.float32(0.1)
    chosen = rng.integers(0, 4, (5, 2)).astype(np.int32)
    got = tt.expert_matmul(tt.tensor(x), ops.repack(tt.tensor(w), dtype="tern2"), tt.tensor(scales), tt.tensor(chosen))
    full = w * np.broadcast_to(scales if scales.ndim == 2 else scales[..., None], (4, 6))[..., None]
    want = np.einsum("tk,tank->tan", x, full[chosen])
    np.testing.assert_allclose(got.numpy(), want, atol=0.2)


def test_an_expert_that_does_not_exist_is_an_error_eager_replayed_and_compiled() -> None:
    w = ops.repack(tt.zeros((3, 4, 8), dtype="i8"), dtype="tern2")
    program = tt.compile(lambda x, e: tt.expert_matmul(x, w, 1.0, e))
    for call in (lambda x, e: tt.expert_matmul(x, w, 1.0, e), program):
        for bad in (3, -1):
            with pytest.raises(BoundsError, match=f"expert_matmul: index {bad} is outside an axis of size 3"):
                call(tt.ones((2, 8)), tt.tensor(np.array([[0], [bad]], np.int32)))
        assert call(tt.ones((2, 8)), tt.tensor(np.array([[0], [2]], np.int32))).shape == (2, 1, 4)


def test_experts_that_do_not_fit_are_errors() -> None:
    w, e = ops.repack(tt.zeros((3, 4, 8), dtype="i8"), dtype="tern2"), tt.zeros((2, 2), dtype="i32")
    with pytest.raises(ShapeError, match=r"x must be \[2, 8\], or have an axis of 2 experts before the last"):
        tt.expert_matmul(tt.zeros((2, 3, 8)), w, 1.0, e)
    with pytest.raises(DTypeError, match=r"the weights must be \[experts, N, K\]"):
        tt.expert_matmul(tt.zeros((2, 8)), tt.zeros((4, 8), dtype="i8"), 1.0, e)
    with pytest.raises(DTypeError, match="experts must be i32"):
        tt.expert_matmul(tt.zeros((2, 8)), w, 1.0, e.to("i64"))
    with pytest.raises(ShapeError, match=r"scale must have shape \[\] or \[3\] or \[3,4\]"):
        tt.expert_matmul(tt.zeros((2, 8)), w, tt.ones(4), e)
    with pytest.raises(
        ArgumentError, match="expert_matmul: activations='group' needs weights with a scale for each group"
    ):
        tt.expert_matmul(tt.zeros((2, 8)), w, 1.0, e, activations="group")
    with pytest.raises(ArgumentError, match="expert_matmul: activations='int4' is unknown"):
        tt.expert_matmul(tt.zeros((2, 8)), w, 1.0, e, activations="int4")

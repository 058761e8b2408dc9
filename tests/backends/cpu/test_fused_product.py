"""A product with what comes before and after it, as one native call: the bits of the calls one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from at import teams
from isas import ISAS
from product_cases import BY_CODE, draw, layouts, packed
from tritium import dtype as dt, ops
from tritium.backends import fusion
from tritium.buffer import native
from tritium.fragment import Fragment, Step
from tritium.graph.graph import trace
from tritium.tensor import Tensor

pytestmark = pytest.mark.skipif(native is None, reason="needs the native library; this is a pure-Python build")

if native is not None:
    from tritium.backends.cpu import fused_product

Fn = Callable[..., Any]


def body_of(fn: Fn, *xs: Tensor) -> Fragment:
    """Everything a function does as one body; its arguments are the inputs."""
    graph = trace(fn, *(x.spec for x in xs))
    steps = [n for n in graph.order() if n not in graph.inputs]
    number = {n: i for i, n in enumerate((*graph.inputs, *steps))}
    made = (Step(n.op, tuple(None if i is None else number[i] for i in n.inputs), n.attrs, n.spec) for n in steps)
    return Fragment(tuple(n.spec for n in graph.inputs), tuple(made), tuple(number[n] for n in graph.outputs))


def run(body: Fragment, xs: tuple[Tensor, ...], out: Any = None, core: Any = None) -> Any:
    """The body as one call, with another kernel for its product where `core` is given."""
    if core is None:
        call = fused_product.native_call(body)
        assert not isinstance(call, str), call
        kernel, attrs = call
    else:
        cut = fusion.product_parts(body)
        assert not isinstance(cut, str)
        kernel, attrs = native.kernel("fused_product"), {"product": fused_product.fused(body, cut, core)}
    if out is None:
        specs = tuple(body.spec(v) for v in body.outputs)
        out = tuple(tt.ones(s.shape, dtype=s.dtype) for s in specs)
    kernel(*xs, out=out, **attrs)
    return out


def bits(x: Tensor) -> Any:
    a = np.ascontiguousarray(x.numpy())
    return a.view(f"u{a.itemsize}") if a.dtype != bool else a


def check(fn: Fn, *xs: Tensor, core: Any = None, context: str = "") -> None:
    want = fn(*xs)
    got = run(body_of(fn, *xs), xs, core=core)
    for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_array_equal(bits(g), bits(w), err_msg=context)


def normal(seed: int, *shape: int, dtype: str = "f32") -> Tensor:
    return tt.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).to(dtype)


# ---- quantised products: every kernel


def kernels() -> Iterator[Any]:
    """Every native kernel of quantized_matmul here, once, with a dtype of weights it reads."""
    seen = set()
    for isa in native.isas() if native is not None else []:
        for k in native.kernels("quantized_matmul", isa):
            tiled = min(k.dtypes) >= dt.tern2_r64.code
            for code in k.dtypes if tiled else k.dtypes[1:3]:
                if (k.isa, code, tiled) not in seen:
                    seen.add((k.isa, code, tiled))
                    label = f"{k.isa}{'' if tiled else '-plain'}-{BY_CODE[code]}"
                    yield pytest.param((k, BY_CODE[code]), id=label)


every_kernel = pytest.mark.parametrize("how", list(kernels()))
EPS = 1e-5


def relu2(x: Tensor) -> Tensor:
    y = tt.relu(x)
    return y * y


AFTER: dict[str, Fn] = {
    "bias, relu squared and residual": lambda y, b, r, c: relu2(y + b) + r,
    "silu times another": lambda y, b, r, c: tt.silu(y) * r,
    "gelu, a number and a column": lambda y, b, r, c: tt.gelu(y * 0.5) * c + b,
    "a comparison": lambda y, b, r, c: y + b > r,
    "a residual": lambda y, b, r, c: y + r,
    "to a residual": lambda y, b, r, c: r + y,
}


def layer(how: Any, n: int, k: int, group: int = 0) -> tuple[Any, Tensor, Tensor]:
    core, t = how
    scale = np.random.default_rng(n).uniform(0.01, 2, (n, -(-k // group)) if group else (n,)).astype(np.float32)
    return core, packed(draw(t, (n, k), n + k), t), tt.tensor(scale)


@every_kernel
@pytest.mark.parametrize("after", AFTER)
def test_results_go_on_with_the_bits_of_single_calls(after: str, how: Any) -> None:
    n, k = 83, 130
    core, w, s = layer(how, n, k)
    b = normal(1, n)
    for m in (1, 2, 7, 17, 33, 70, 130):
        r, c = normal(2, m, n), normal(3, m, 1)
        check(
            lambda x, w, s, b, r, c: AFTER[after](tt.quantized_matmul(x, w, s, None), b, r, c),
            *(normal(m, m, k), w, s, b, r, c),
            core=core,
            context=f"batch {m}",
        )


@every_kernel
@pytest.mark.parametrize("n", [512, 720])
def test_long_rows_of_results_go_on_in_place(n: int, how: Any) -> None:
    core, w, s = layer(how, n, 64)
    b = normal(1, n)
    for m in (1, 5, 16, 66, 130):
        r, c = normal(2, m, n), normal(3, m, 1)
        for fn in AFTER.values():
            check(
                lambda x, w, s, b, r, c, fn=fn: fn(tt.quantized_matmul(x, w, s, None), b, r, c),
                *(normal(m, m, 64), w, s, b, r, c),
                core=core,
                context=f"batch {m}",
            )


@every_kernel
@pytest.mark.parametrize("half", ["f32", "f16", "bf16"])
def test_a_norm_before_and_a_gate_after_are_part_of_the_call(half: str, how: Any) -> None:
    n, k = 70, 200
    core, w, s = layer(how, n, k)
    g = normal(5, k, dtype=half)
    bias = normal(6, n)
    for m in (1, 5, 40):
        check(
            lambda x, g, w, s, bias, r: tt.silu(tt.quantized_matmul(tt.rms_norm(x, g, eps=EPS), w, s, bias)) * r,
            *(normal(m, m, k, dtype=half), g, w, s, bias, normal(9, m, n, dtype=half)),
            core=core,
            context=f"batch {m}",
        )


@every_kernel
def test_groups_of_weights_are_summed_before_what_comes_after(how: Any) -> None:
    core, w, s = layer(how, 37, 200, 64)
    for m in (1, 9, 40):
        check(
            lambda x, w, s, b: tt.relu(tt.quantized_matmul(x, w, s, None, group=64) + b),
            *(normal(m, m, 200), w, s, normal(4, 37)),
            core=core,
        )


@every_kernel
def test_a_product_of_nothing_goes_through_what_comes_after(how: Any) -> None:
    core, w, s = layer(how, 5, 0)
    check(lambda x, w, s, b: tt.quantized_matmul(x, w, s, b) * 2 + b, tt.zeros((3, 0)), w, s, normal(1, 5), core=core)


@every_kernel
def test_threads_do_not_change_the_bits(how: Any) -> None:
    core, w, s = layer(how, 700, 1100)
    before = tt.get_num_threads()
    try:
        for m, threads in teams((1, 3, 18, 70)):
            tt.set_num_threads(threads)
            check(
                lambda x, g, w, s, r: tt.quantized_matmul(tt.rms_norm(x, g, eps=EPS), w, s, None) + r,
                *(normal(m, m, 1100), normal(5, 1100), w, s, normal(2, m, 700)),
                core=core,
                context=f"{threads} threads, batch {m}",
            )
    finally:
        tt.set_num_threads(before)


@every_kernel
@pytest.mark.parametrize("n", [16, 80, 330, 1000])
def test_threads_share_products_of_any_size(n: int, how: Any) -> None:
    core, w, s = layer(how, n, 64)
    before = tt.get_num_threads()
    try:
        for m, threads in ((65, 1), (66, 5), (97, 16), (130, 3), (200, 40), (333, 7)):
            tt.set_num_threads(threads)
            check(
                lambda x, w, s, r: tt.quantized_matmul(x, w, s, None) + r,
                *(normal(m, m, 64), w, s, normal(2, m, n)),
                core=core,
                context=f"{threads} threads, batch {m}",
            )
            check(
                lambda x, w, s: tt.quantized_matmul(x, w, s, None),
                *(normal(m, m, 64), w, s),
                core=core,
                context=f"{threads} threads, batch {m}",
            )
    finally:
        tt.set_num_threads(before)


def ternary(n: int, k: int) -> tuple[Tensor, Tensor]:
    t = tt.device("cpu").backend.tiling(dt.tern2) if native is not None else dt.tern2
    return packed(draw(t, (n, k), n), t), tt.tensor(np.float32(0.5))


def test_only_the_row_program_may_come_before() -> None:
    w, s = ternary(40, 96)
    x, g = normal(1, 4, 96), normal(2, 96)
    check(lambda x, w, s: tt.quantized_matmul(relu2(x), w, s, None), x, w, s)
    check(lambda x, g, w, s: tt.quantized_matmul(relu2(x) * g, w, s, None), x, normal(3, 4, 96), w, s)
    check(lambda x, g, w, s: tt.quantized_matmul(tt.layer_norm(x, g, eps=EPS) + x, w, s, None), x, g, w, s)
    core = tt.device("cpu").backend.choose(ops.quantized_matmul, (x.spec, w.spec, s.spec, None), {"group": 0}, ()).fn
    sums = lambda x, w, s: tt.quantized_matmul(x / tt.sum(x * x, axis=-1, keepdims=True), w, s, None)
    check(sums, x, w, s, core=core)


MLPS: dict[str, Fn] = {
    "with a norm": lambda a, b, g, w, s, r: (
        tt.quantized_matmul(tt.rms_norm(tt.relu2(a) * b, g, eps=EPS), w, s, None) + r
    ),
    "without": lambda a, b, g, w, s, r: tt.quantized_matmul(tt.relu2(a) * b, w, s, None) + r,
    "a weight for each row": lambda a, b, g, w, s, r: tt.relu(tt.quantized_matmul(tt.abs(a - b) * g, w, s, None)) * r,
}


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_maps_of_halves_of_rows_may_come_before(data: Any) -> None:
    m, n, k = (data.draw(st.integers(low, top)) for low, top in ((1, 70), (1, 100), (16, 300)))
    dtype, fn = data.draw(st.sampled_from(["f32", "f16", "bf16"])), MLPS[data.draw(st.sampled_from(list(MLPS)))]
    both = normal(m, m, 2 * k, dtype=dtype)
    w, s = ternary(n, k)
    check(fn, both[:, :k], both[:, k:], normal(n, k, dtype=dtype), w, s, normal(k, m, n, dtype=dtype))


@every_kernel
def test_maps_before_are_part_of_every_kernel(how: Any) -> None:
    core, w, s = layer(how, 70, 200)
    for m in (1, 5, 40):
        both = normal(m, m, 400)
        check(
            MLPS["with a norm"],
            *(both[:, :200], both[:, 200:], normal(5, 200), w, s, normal(9, m, 70)),
            core=core,
            context=f"batch {m}",
        )


def test_maps_before_that_threads_would_share_are_refused() -> None:
    w, s = ternary(40, 96)
    slow = body_of(lambda x, w, s: tt.quantized_matmul(tt.silu(x), w, s, None), normal(1, 4, 96), w, s)
    assert "silu before a product is more than arithmetic" in str(fused_product.native_call(slow))
    w, s = ternary(2, 70000)
    long = body_of(lambda x, w, s: tt.quantized_matmul(tt.relu(x), w, s, None), normal(1, 1, 70000), w, s)
    assert "at most 65536 are left to one thread" in str(fused_product.native_call(long))


def test_casts_after_the_product_decide_the_dtype() -> None:
    w, s = ternary(33, 64)
    x = normal(1, 6, 64)
    for to in ("f16", "bf16", "i32", "i8"):
        check(lambda x, w, s, to=to: tt.quantized_matmul(x, w, s, None).to(to), x, w, s)


def test_several_results_come_from_one_product() -> None:
    w, s = ternary(65, 64)
    x, b = normal(1, 20, 64), normal(2, 65)
    check(lambda x, w, s, b: (tt.relu(y := tt.quantized_matmul(x, w, s, None)), y + b), x, w, s, b)
    check(lambda x, y, b: (tt.relu(z := x @ y), z + b, z), normal(1, 40, 50), normal(2, 50, 65), b)


def test_leading_axes_are_rows_and_operands_are_broadcast_to_them() -> None:
    w, s = ternary(33, 64)
    x = normal(1, 2, 3, 5, 64)
    for shape in [(), (1,), (33,), (5, 33), (5, 1), (3, 1, 33), (2, 1, 5, 1), (2, 3, 5, 33), (3, 5, 1), (2, 1, 1, 33)]:
        check(lambda x, w, s, r: tt.relu(tt.quantized_matmul(x, w, s, None) + r), x, w, s, normal(2, *shape))
    check(lambda x, g, w, s: tt.quantized_matmul(tt.rms_norm(x, g, eps=EPS), w, s, None) * 2, x, normal(3, 64), w, s)
    check(lambda x, w, s: tt.quantized_matmul(x, w, s, None) * 2, normal(1, 64), w, s)


def test_views_are_read_and_written_where_they_lie() -> None:
    w, s = ternary(33, 77)
    g = tt.tensor(np.repeat(np.arange(77, dtype=np.float32), 2))[::2]

    def fn(x: Tensor, g: Tensor, w: Tensor, s: Tensor, r: Tensor) -> Tensor:
        return tt.silu(tt.quantized_matmul(tt.rms_norm(x, g, eps=EPS), w, s, None)) * r

    for m in (1, 20):
        x, r = normal(m, m, 77).numpy(), normal(2, m, 33).numpy()
        want = fn(tt.tensor(x), g, w, s, tt.tensor(r)).numpy()
        for (name, view), (_, other) in zip(layouts(x), layouts(r), strict=True):
            base = tt.zeros((2 * m, 3 * 33))
            args = (view, g, w, s, other)
            run(body_of(fn, *args), args, out=base[::2, ::3])
            np.testing.assert_array_equal(base.numpy()[::2, ::3], want, err_msg=name)
            assert not base.numpy()[1::2].any()
            assert not base.numpy()[:, 1::3].any()


def test_a_residual_may_be_written_over_and_operands_may_not() -> None:
    w, s = ternary(64, 64)
    x, b, r = normal(1, 40, 64), normal(2, 64), normal(3, 40, 64)

    def fn(x: Tensor, w: Tensor, s: Tensor, b: Tensor, r: Tensor) -> Tensor:
        return tt.relu(tt.quantized_matmul(x, w, s, None) + b) + r

    body, want = body_of(fn, x, w, s, b, r), fn(x, w, s, b, r).numpy()
    assert [fused_product.overwrites(body, i) for i in range(5)] == [False, False, False, False, True]
    run(body, (x, w, s, b, r), out=r)
    np.testing.assert_array_equal(r.numpy(), want)
    dense = body_of(lambda x, y, r: x @ y + r, x, normal(4, 64, 64), r)
    assert not any(fused_product.overwrites(dense, i) for i in range(3))


# ---- f32 matmul: every path


def chain(x: Tensor, y: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return tt.gelu(x @ y + b) + r


SHAPES = {
    "one row": (1, 300, 200),
    "few rows": (7, 400, 100),
    "few columns": (500, 90, 6),
    "few of both": (13, 40, 9),
    "a little more": (15, 70, 8),
    "small": (33, 40, 50),
    "middle": (150, 170, 210),
    "large": (300, 700, 400),
    "nothing to sum": (20, 0, 30),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_matmul_goes_on_with_the_bits_of_single_calls(shape: str) -> None:
    m, k, n = SHAPES[shape]
    check(chain, normal(1, m, k), normal(2, k, n), normal(3, n), normal(4, m, n))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 6])
def test_matmul_has_the_same_bits_on_any_number_of_threads(threads: int, isa: str) -> None:
    core = native.kernel("matmul", isa)
    before = tt.get_num_threads()
    try:
        tt.set_num_threads(threads)
        for m, k, n in [(5, 300, 900), (130, 160, 190), (600, 350, 330), (1030, 65, 1100)]:
            x, y, b, r = normal(1, m, k), normal(2, k, n), normal(3, n), normal(4, m, n)
            product = tt.empty((m, n))
            core(x, y, out=product)
            want = tt.gelu(product + b) + r
            got = run(body_of(chain, x, y, b, r), (x, y, b, r), core=core)[0]
            np.testing.assert_array_equal(bits(got), bits(want), err_msg=str((m, k, n)))
    finally:
        tt.set_num_threads(before)


def test_batches_of_matmul_are_rows_in_order() -> None:
    for a, b in [
        ((3, 4, 9, 20), (20, 30)),
        ((3, 1, 9, 20), (4, 20, 30)),
        ((5, 40, 30), (5, 30, 50)),
        ((4, 20), (6, 20, 30)),
    ]:
        x, y = normal(1, *a), normal(2, *b)
        r = normal(4, *(x @ y).shape)
        check(chain, x, y, normal(3, y.shape[-1]), r)
        check(chain, x, y, r[..., :1], r)


def test_a_matmul_may_end_in_another_dtype_or_in_a_view() -> None:
    x, y, b = normal(1, 40, 50), normal(2, 50, 60), normal(3, 60)
    check(lambda x, y, b: tt.relu(x @ y + b).to("f16"), x, y, b)
    base = tt.zeros((80, 120))
    run(body_of(lambda x, y, b: tt.relu(x @ y + b), x, y, b), (x, y, b), out=base[::2, ::2])
    np.testing.assert_array_equal(base.numpy()[::2, ::2], tt.relu(x @ y + b).numpy())
    assert not base.numpy()[1::2].any()


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_size_has_the_bits_of_single_calls(data: Any) -> None:
    m, n, k = (data.draw(st.integers(1, top)) for top in (70, 200, 300))
    x, b, r = normal(m, m, k), normal(n, n), normal(k, m, n)
    w, s = ternary(n, k)
    check(lambda x, w, s, b, r: tt.silu(tt.quantized_matmul(x, w, s, b)) * r, x, w, s, b, r)
    check(chain, x, normal(5, k, n), b, r)


# ---- what cannot be


REFUSED: dict[str, tuple[Fn, list[Tensor]]] = {
    "2 products": (lambda x: x @ x @ x, [normal(1, 4, 4)]),
    "0 products": (lambda x: tt.relu(x) + 1, [normal(1, 4, 4)]),
    "in f32": (lambda x: x @ x + 1, [normal(1, 4, 4, dtype="f16")]),
    "algorithm": (lambda x: tt.matmul(x, x, algorithm="naive") + 1, [normal(1, 4, 4)]),
    "left operand": (lambda x: tt.relu(x) @ x, [normal(1, 4, 4)]),
    "right operand": (lambda x: x @ tt.relu(x), [normal(1, 4, 4)]),
    "element-wise": (lambda x: tt.softmax(x @ x), [normal(1, 4, 4)]),
    "vector": (lambda x, y: (x @ y) + 1, [normal(1, 4, 4), normal(2, 4)]),
    "shape": (lambda x, y: (tt.relu(x @ y), tt.abs(x)), [normal(1, 3, 4), normal(2, 4, 5)]),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_fused_is_refused_with_a_reason(why: str) -> None:
    fn, xs = REFUSED[why]
    got = fused_product.native_call(body_of(fn, *xs))
    assert isinstance(got, str)
    assert why in got


def test_a_value_before_the_product_may_not_be_used_after_it() -> None:
    w, s = ternary(64, 64)

    def fn(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        y = tt.relu(x)
        return tt.quantized_matmul(y, w, s, None) + y

    assert "used after it" in str(fused_product.native_call(body_of(fn, normal(1, 4, 64), w, s)))


def test_the_kernel_of_the_product_is_the_one_chosen_for_it_alone() -> None:
    w, s = ternary(64, 64)
    x = normal(1, 4, 64)
    body = body_of(lambda x, w, s: tt.quantized_matmul(x, w, s, None) + 1, x, w, s)
    cut = fusion.product_parts(body)
    assert not isinstance(cut, str)
    chosen = tt.device("cpu").backend.choose(ops.quantized_matmul, (x.spec, w.spec, s.spec, None), {"group": 0}, ())
    assert fused_product.core_kernel(body, cut.core) is chosen.fn

"""Manners of NumPy and PyTorch: axes by place, the names people type, arrays of other libraries as operands."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import tritium as tt
from lent import libraries
from tritium import errors
from tritium.errors import ArgumentError, BoundsError, DTypeError, ShapeError, TraceError, ViewError
from tritium.op import OPS, Trait

FLOATS = (np.float32, np.float64)


def array(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(dtype)


# ---- attributes by place


def named_first() -> list[Any]:
    """The public rows whose rule names an attribute, with a sample that sets it."""
    rows = []
    for op in OPS.values():
        if op.positional and Trait.INTERNAL not in op.traits and op.inputs:
            name = op.params[op.positional - 1]
            sample = next(
                (
                    s
                    for s in op.samples
                    if name in dict(s.attrs) and all(d is not None and not d.spec.dtype.is_packed for d in s.inputs)
                ),
                None,
            )
            if sample is not None:
                rows.append(pytest.param(op, sample, id=op.name))
    return rows


@pytest.mark.parametrize(("op", "sample"), named_first())
def test_the_first_named_attribute_of_a_row_may_come_by_place(op: Any, sample: Any) -> None:
    attrs = dict(sample.attrs)
    draw = np.random.default_rng(0)
    tensors = [
        tt.asarray(
            draw.uniform(max(d.low, 0) if d.spec.dtype.is_integer else d.low, d.high, d.spec.shape), dtype=d.spec.dtype
        )
        for d in sample.inputs
    ]
    placed = op.params[: op.positional]
    named = {k: v for k, v in attrs.items() if k not in placed}
    by_place = [attrs.get(k, op.defaults.get(k)) for k in placed]
    wanted, got = op(*tensors, **attrs), op(*tensors, *by_place, **named)
    for w, g in zip(*((r if isinstance(r, tuple) else (r,)) for r in (wanted, got)), strict=True):
        np.testing.assert_array_equal(w._host(), g._host())


@pytest.mark.parametrize("name", "sum prod mean max min std var any all argmax argmin count_nonzero".split())
def test_reductions_take_an_axis_by_place(name: str) -> None:
    data = array(3, 4, 5)
    for axis in (0, 1, -1):
        got = getattr(tt.asarray(data), name)(axis)
        np.testing.assert_allclose(got.numpy(), getattr(np, name)(data, axis), rtol=1e-5)
        again = getattr(tt, name)(tt.asarray(data), axis)  # and when it is replayed
        np.testing.assert_array_equal(got.numpy(), again.numpy())


def test_functions_take_an_axis_by_place() -> None:
    data = array(4, 6)
    x = tt.asarray(data)
    cases = [
        (tt.concat([x, x], 1), np.concatenate([data, data], 1)), (tt.stack((x, x), -1), np.stack((data, data), -1)),
        (tt.roll(x, 1, 0), np.roll(data, 1, 0)), (x.sort(0), np.sort(data, 0)), (x.flip(1), np.flip(data, 1)),
        (tt.repeat(x, 2, 1), np.repeat(data, 2, 1)), (tt.split(x, 3, 1)[1], np.split(data, 3, 1)[1]),
        (tt.unstack(x, 1)[2], data[:, 2]), (tt.take(x, tt.asarray([1, 0]), 1), data[:, [1, 0]]), (tt.tril(x, 1), np.tril(data, 1)),
        (tt.tensordot(x, x.T, 1), data @ data.T), (x.cumulative_sum(0), np.cumsum(data, 0)), (x.expand_dims(1), data[:, None]),
        (tt.searchsorted(tt.arange(4), tt.asarray([1, 2]), "right"), np.searchsorted(np.arange(4), [1, 2], "right")),
    ]  # fmt: skip
    for got, wanted in cases:
        np.testing.assert_array_equal(got.numpy(), wanted)
    graph = tt.compile(lambda x: tt.concat([x.sum(1), x.softmax(-1).max(1)], 0))
    np.testing.assert_array_equal(
        graph(x).numpy(), tt.concat([x.sum(axis=1), x.softmax(axis=-1).max(axis=1)], axis=0).numpy()
    )


def test_only_one_named_attribute_comes_by_place() -> None:
    x = tt.ones((2, 3))
    with pytest.raises(ArgumentError, match=r"dtype must be named: sum\(…, dtype=…\)"):
        x.sum(0, True)
    with pytest.raises(ArgumentError, match="keepdims must be named"):
        tt.mean(x, 0, True)
    with pytest.raises(ArgumentError, match="axis was given twice"):
        tt.sum(x, 0, axis=1)
    with pytest.raises(BoundsError, match="axis must be one integer, given True"):
        x.sum(True)
    with pytest.raises(ArgumentError, match="positional"):
        tt.diff(x, 1)  # NumPy's second argument is n
    assert str(inspect.signature(tt.softmax)) == "(x, /, axis=-1, *, out=None)"


# ---- names of other libraries


@pytest.mark.parametrize("name", sorted(errors.HINTS))
def test_a_hint_names_what_exists(name: str) -> None:
    remedy = errors.HINTS[name]
    for function in re.findall(r"\btt\.([\w.]+)", remedy):
        value: Any = tt
        for part in function.split("."):
            value = getattr(value, part)
    for method in re.findall(r"\bx\.(\w+)", remedy):
        assert hasattr(tt.Tensor, method)
    for owner in (tt, tt.ones(2)):
        if name not in dir(owner):
            with pytest.raises(AttributeError, match=re.escape(remedy)):
                getattr(owner, name)
            assert not hasattr(owner, name)
    assert name not in dir(tt) or name not in dir(tt.ones(2)), "a hint that nobody sees"


def test_names_that_are_nearly_right_are_suggested() -> None:
    for call, words in {
        "tt.sofmax": "'softmax'", "tt.cat": "tt.concat", "x.unsqueeze(0)": "tt.expand_dims", "x.numel()": "x.size",
        "x.half()": "x.to('f16')", "x.sum(dim=0)": "'axis'", "tt.split(x, 1, dim=0)": "'axis'", "x.max(0, keepdim=True)": "'keepdims'",
    }.items():  # fmt: skip
        with pytest.raises((AttributeError, ArgumentError), match=re.escape(words)):
            eval(call, {"tt": tt, "x": tt.ones((2, 2))})


def test_wrong_calls_say_what_is_wrong() -> None:
    x = tt.ones((2, 2))
    with pytest.raises(ArgumentError, match="formats one number, given"):
        f"{x:.2f}"
    assert f"{x[0, 0]:.2f}" == "1.00"
    with pytest.raises(ArgumentError, match="two dtypes were given, 'f16' and 'f32'"):
        x.to("f16", "f32")
    with pytest.raises(DTypeError, match=re.escape("the shape is one tuple: zeros((2, 3))")):
        tt.zeros(2, 3)


def test_dir_shows_the_api_and_nothing_else() -> None:
    shown = [name for name in dir(tt) if not name.startswith("__")]
    assert set(tt.__all__) <= {*shown, *dir(tt)}
    assert not {"sys", "Any", "TYPE_CHECKING", "import_module", "settings", "eager", "indexing"} & set(shown)
    for name in shown:
        assert not name.startswith("_")
        assert name in tt._LATE or hasattr(tt, name)


# ---- arrays of other libraries


@pytest.mark.parametrize("foreign", libraries())
def test_operands_of_other_libraries(foreign: Any) -> None:
    data = array(3, 4)
    y, x = foreign(data), tt.ones((3, 4))
    for got in (x + y, tt.add(x, y), tt.compile(lambda a, b: a + b)(x, y), tt.compile(lambda a: a + y)(x)):
        assert isinstance(got, tt.Tensor)
        np.testing.assert_array_equal(got.numpy(), data + 1)
    np.testing.assert_array_equal((x == y).numpy(), data == 1)
    np.testing.assert_array_equal(tt.einsum("ij,ij->i", x, y).numpy(), data.sum(1))
    np.testing.assert_array_equal(tt.concat([x, y], 1).numpy(), np.concatenate([np.ones((3, 4)), data], 1))
    np.testing.assert_array_equal(tt.split(y, 2, 1)[1].numpy(), data[:, 2:])
    assert x.copy_(y).tolist() == data.tolist()
    layer, mine = (
        tt.nn.BitLinear.from_float(y, bias=foreign(data[:, 0])),
        tt.nn.BitLinear.from_float(data, bias=data[:, 0]),
    )
    np.testing.assert_array_equal(layer(y).numpy(), mine(tt.asarray(data)).numpy())
    normed = tt.nn.BitLinear.from_float(y, norm=foreign(data[0]))
    np.testing.assert_array_equal(normed(y).numpy(), normed(tt.asarray(data)).numpy())


def test_the_other_side_of_an_operator_may_be_torch_or_jax() -> None:
    torch = pytest.importorskip("torch")
    data = array(2, 3)
    x, y = tt.ones((2, 3)), torch.asarray(data)
    np.testing.assert_array_equal((y - x).numpy(), data - 1)
    assert isinstance(y * x, tt.Tensor)
    assert tt.asarray(y).data_ptr == y.data_ptr()


def test_an_operand_that_is_no_array_is_refused_with_the_way_out() -> None:
    for wrong in ("text", [1.0, 2.0], {1: 2}, object()):
        with pytest.raises(ArgumentError, match=r"tritium\.tensor"):
            tt.add(tt.ones(2), wrong)

    class Silent:
        """An object that claims DLPack and has nothing to give."""

        def __dlpack__(self, **options: Any) -> Any:
            raise RuntimeError("nothing here")

        def __dlpack_device__(self) -> Any:
            return 1, 0

    with pytest.raises(errors.ExchangeError, match="nothing here"):
        tt.ones(2) + Silent()


def check_einops() -> None:
    import einops

    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    x = tt.asarray(data)
    for pattern, sizes in (("a b c -> c (a b)", {}), ("a b (c d) -> d c b a", {"d": 2}), ("a b c -> a b c 1", {})):
        got = einops.rearrange(x, pattern, **sizes)
        assert isinstance(got, tt.Tensor)
        np.testing.assert_array_equal(got.numpy(), einops.rearrange(data, pattern, **sizes))
    for how in ("sum", "mean", "max", "min", "prod"):
        np.testing.assert_allclose(
            einops.reduce(x, "a b c -> b", how).numpy(), einops.reduce(data, "a b c -> b", how), rtol=1e-6
        )
    repeated = einops.repeat(data, "a b c -> a r b c", r=3)
    np.testing.assert_array_equal(einops.repeat(x, "a b c -> a r b c", r=3).numpy(), repeated)
    listed = einops.rearrange([data, data], "n a b c -> a n b c")
    np.testing.assert_array_equal(einops.rearrange([x, x], "n a b c -> a n b c").numpy(), listed)
    np.testing.assert_array_equal(einops.einsum(x, x, "a b c, a b c -> b").numpy(), np.einsum("abc,abc->b", data, data))
    packed, shapes = einops.pack([x, x[:, 0]], "a * c")
    assert packed.shape == (2, 4, 4)
    assert einops.unpack(packed, shapes, "a * c")[1].shape == (2, 4)


def test_einops_takes_tensors_whatever_is_imported_first() -> None:
    pytest.importorskip("einops", reason="einops is not installed")
    check_einops()
    code = "import einops, tritium as tt; assert einops.rearrange(tt.ones((2, 3)), 'a b -> b a').shape == (3, 2)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_opt_einsum_contracts_tensors() -> None:
    contract = pytest.importorskip("opt_einsum", reason="opt_einsum is not installed").contract
    a, b, c = array(3, 4), array(4, 5, seed=1), array(5, 2, seed=2)
    for spec, operands in (
        ("ij,jk,kl->il", (a, b, c)),
        ("ij,jk,kl->li", (a, b, c)),
        ("ij,jk->ki", (a, b)),
        ("ij->ji", (a,)),
    ):
        got = contract(spec, *map(tt.asarray, operands))
        assert isinstance(got, tt.Tensor)
        np.testing.assert_allclose(got.numpy(), contract(spec, *operands), rtol=1e-6)


# ---- functions that were missing, against NumPy's

shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=5)
wild = st.floats(width=32) | st.sampled_from([np.inf, -np.inf, np.nan, 0.0, -0.0])


def values(elements: Any = wild, shape: Any = shapes) -> Any:
    return st.sampled_from(FLOATS).flatmap(lambda kind: hnp.arrays(kind, shape, elements=elements.map(np.float32)))


def axis_of(data: np.ndarray[Any, Any], draw: Any) -> Any:
    return draw(st.none() | st.integers(-data.ndim, data.ndim - 1)) if data.ndim else None


few = settings(max_examples=25, deadline=None)


@few
@given(st.data())
def test_isclose_is_numpys(draw: Any) -> None:
    a = draw.draw(values())
    b = np.where(
        draw.draw(hnp.arrays(np.bool_, a.shape)),
        a,
        draw.draw(values(shape=st.just(a.shape)).map(lambda x: x.astype(a.dtype))),
    )
    rtol, atol, equal_nan = draw.draw(
        st.sampled_from([(1e-5, 1e-8, False), (0.5, 0.0, True), (0.0, 2.0, True), (0, 0, False)])
    )
    with np.errstate(all="ignore"):
        wanted = np.isclose(a, b, rtol, atol, equal_nan)
    got = tt.isclose(tt.asarray(a), tt.asarray(b), rtol, atol, equal_nan=equal_nan)
    np.testing.assert_array_equal(got.numpy(), wanted)
    assert tt.allclose(tt.asarray(a), tt.asarray(b), rtol, atol, equal_nan=equal_nan) is bool(wanted.all())


def test_isclose_of_integers_bools_halves_and_wrong_tolerances() -> None:
    assert tt.isclose(tt.asarray([1, 2**53]), tt.asarray([1, 2**53 - 1]), 0, 0).tolist() == [True, False]
    assert tt.allclose(tt.asarray([True]), tt.asarray([True]))
    assert tt.allclose(tt.asarray([1.0, 2.0], dtype="f16"), tt.asarray([1.0, 2.0], dtype="bf16"))
    assert not tt.allclose(tt.asarray([1.0], dtype="f16"), tt.asarray([1.001], dtype="f16"))
    assert tt.allclose(tt.zeros((0, 3)), tt.zeros((0, 3)))
    with pytest.raises(ArgumentError, match="atol=-1"):
        tt.isclose(tt.ones(2), tt.ones(2), 0.0, -1)
    with pytest.raises(TraceError):
        tt.trace(lambda x: tt.ones(2) if tt.allclose(x, x) else x, tt.Spec((2,)))


@few
@given(st.data())
def test_median_and_quantile_are_numpys(draw: Any) -> None:
    data = draw.draw(values(st.floats(-1e6, 1e6, width=32) | st.sampled_from([np.inf, -np.inf, np.nan])))
    axis, keepdims = axis_of(data, draw.draw), draw.draw(st.booleans())
    method = draw.draw(st.sampled_from(["linear", "lower", "higher", "nearest"]))
    q = draw.draw(st.sampled_from([0, 1, 0.5, 0.25, [0.0, 0.3, 1.0], np.array([0.75]), []]))
    x = tt.asarray(data)[..., None][..., 0]
    with np.errstate(all="ignore"):
        wanted = np.quantile(data, q, axis=axis, keepdims=keepdims, method=method)
    got = tt.quantile(x, q, axis, keepdims=keepdims, method=method)
    assert got.dtype is x.dtype
    assert got.shape == wanted.shape
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(got.numpy()[finite], wanted[finite], rtol=1e-5, atol=0.3)
    if np.isfinite(data).all() or np.isnan(data).all():
        np.testing.assert_array_equal(np.isnan(got.numpy()), np.isnan(wanted))
        np.testing.assert_array_equal(
            tt.median(x, axis, keepdims=keepdims).numpy(), tt.quantile(x, 0.5, axis, keepdims=keepdims).numpy()
        )


def test_quantiles_of_awkward_tensors() -> None:
    x = tt.asarray(array(4, 3, 5))
    np.testing.assert_array_equal(tt.median(x, (0, 2)).numpy(), np.median(x.numpy(), (0, 2)))
    np.testing.assert_array_equal(
        tt.median(x.permute(2, 0, 1).flip(0), 1).numpy(), np.median(x.numpy().transpose(2, 0, 1)[::-1], 1)
    )
    assert tt.median(tt.asarray([1, 2, 4])).dtype is tt.f32
    assert tt.median(tt.asarray([1, 2, 4, 5])).item() == 3
    assert tt.median(tt.asarray([1.0, np.nan, 2.0])).isnan().item()
    assert tt.quantile(tt.asarray([-np.inf, 1.0]), 0).item() == -np.inf
    assert tt.quantile(tt.asarray([0.0, 1.0], dtype="bf16"), 0.25).dtype is tt.bf16
    assert tt.quantile(tt.asarray([0.0, 1.0]), 0.3, method="midpoint").item() == 0.5
    assert tt.quantile(x, tt.asarray([0.5]), 0).shape == (1, 3, 5)
    compiled = tt.compile(lambda x: tt.median(x, 1))
    np.testing.assert_array_equal(compiled(x).numpy(), tt.median(x, 1).numpy())
    with pytest.raises(ArgumentError, match="each in 0 … 1"):
        tt.quantile(x, 1.5)
    with pytest.raises(ArgumentError, match="method='best' is unknown"):
        tt.quantile(x, 0.5, method="best")
    with pytest.raises(ShapeError, match="no elements"):
        tt.median(tt.zeros((0, 3)), 0)
    with pytest.raises(BoundsError, match="axis 3"):
        tt.median(x, 3)


@few
@given(st.data())
def test_logsumexp_is_the_logarithm_of_the_sum(draw: Any) -> None:
    data = draw.draw(values(st.floats(-1e4, 1e4, width=32) | st.sampled_from([np.inf, -np.inf])))
    axis, keepdims = axis_of(data, draw.draw), draw.draw(st.booleans())
    wide = data.astype(np.longdouble)
    top = np.max(wide, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(all="ignore"):
        wanted = np.log(np.sum(np.exp(wide - top), axis=axis, keepdims=True)) + top
    wanted = wanted if keepdims else wanted.reshape(np.max(data, axis=axis).shape)
    got = tt.logsumexp(tt.asarray(data), axis, keepdims=keepdims)
    assert got.dtype is tt.asarray(data).dtype
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got.numpy(), wanted.astype(np.float64), rtol=1e-5, atol=1e-5)


def test_logsumexp_of_halves_integers_and_nothing() -> None:
    assert tt.logsumexp(tt.full((100_000,), 5.0, "f16")).item() == pytest.approx(5 + np.log(100_000), rel=1e-3)
    assert tt.logsumexp(tt.zeros((0,))).item() == -np.inf
    assert tt.logsumexp(tt.zeros((0, 3)), 0).tolist() == [-np.inf] * 3
    assert tt.logsumexp(tt.asarray([0, 0])).item() == pytest.approx(np.log(2))
    assert tt.logsumexp(tt.asarray([1.0, np.nan])).isnan().item()
    x = tt.randn((3, 4), seed=0)
    np.testing.assert_allclose(
        tt.compile(lambda x: tt.logsumexp(x, -1))(x).numpy(), tt.logsumexp(x, -1).numpy(), rtol=1e-6
    )


@few
@given(st.data())
@example(None)
def test_pad_is_numpys(draw: Any) -> None:
    if draw is None:
        np.testing.assert_array_equal(tt.pad(tt.asarray(3.0), ()).numpy(), 3.0)
        return
    kind = draw.draw(st.sampled_from(["float32", "float16", "int8", "uint64", "bool"]))
    shape = draw.draw(shapes)
    data = array(*shape, dtype=kind)
    one = st.integers(0, 7)
    pair = st.tuples(one, one)
    width = draw.draw(one | pair | st.tuples(*[pair] * data.ndim))
    mode = draw.draw(st.sampled_from(["constant", "edge", "reflect", "symmetric", "wrap"]))
    backwards = data[..., ::-1] if data.ndim else data
    wanted = np.pad(backwards, width, mode=mode) if data.ndim else data
    x = tt.asarray(data)[..., ::-1] if data.ndim else tt.asarray(data)
    got = tt.pad(x, width, mode)
    assert got.dtype is x.dtype
    np.testing.assert_array_equal(got.numpy(), wanted)
    assert got.data_ptr != x.data_ptr or not got.size


def test_pad_with_a_value_and_what_it_refuses() -> None:
    x = tt.asarray(array(2, 3))
    np.testing.assert_array_equal(
        tt.pad(x, ((1, 0), (0, 2)), constant_values=-7).numpy(), np.pad(x.numpy(), ((1, 0), (0, 2)), constant_values=-7)
    )
    assert tt.compile(lambda x: tt.pad(x, 1))(x).tolist() == np.pad(x.numpy(), 1).tolist()
    assert tt.pad(tt.zeros((0, 2)), 1).shape == (2, 4)
    for wrong in (-1, 1.5, ((1, 2), (3, 4), (5, 6)), "all", ((1, 2, 3),), None):
        with pytest.raises(ArgumentError, match="pad: "):
            tt.pad(x, wrong)
    with pytest.raises(ArgumentError, match="mode='mirror' is unknown"):
        tt.pad(x, 1, "mirror")
    with pytest.raises(ShapeError, match="nothing to repeat"):
        tt.pad(tt.zeros((0, 2)), 1, "edge")
    with pytest.raises(ShapeError):
        tt.pad(x, 2**60)


def test_swapaxes_and_transposes_are_views() -> None:
    data = array(2, 3, 4)
    x = tt.asarray(data)
    for a in range(-3, 3):
        for b in range(-3, 3):
            np.testing.assert_array_equal(tt.swapaxes(x, a, b).numpy(), np.swapaxes(data, a, b))
    assert x.swapaxes(0, 2).data_ptr == x.data_ptr
    np.testing.assert_array_equal(x.transpose((2, 0, 1)).numpy(), data.transpose((2, 0, 1)))
    with pytest.raises(BoundsError, match="axis 3"):
        tt.swapaxes(x, 0, 3)


# ---- random numbers


def test_manual_seed_repeats_what_has_no_seed() -> None:
    from tritium import functions

    default = list(functions._default_generator)
    try:
        first = tt.manual_seed(7)
        a = [tt.rand(5).tolist(), tt.randn(5).tolist(), tt.randint(0, 99, 5).tolist(), tt.randperm(9).tolist()]
        assert first.initial_seed() == 7
        tt.manual_seed(7)
        b = [tt.rand(5).tolist(), tt.randn(5).tolist(), tt.randint(0, 99, 5).tolist(), tt.randperm(9).tolist()]
        assert a == b
        assert tt.rand(5).tolist() != tt.rand(5).tolist()
    finally:
        functions._default_generator[:] = default


def test_generators_are_sequences_of_their_own() -> None:
    one, two = tt.Generator(3), tt.Generator(3)
    assert tt.rand(4, generator=one).tolist() == tt.rand(4, generator=two).tolist()
    assert tt.rand(4, generator=one).tolist() != tt.rand(4, generator=tt.Generator(4)).tolist()
    second = tt.randn(4, generator=one).tolist()
    assert one.manual_seed(3) is one
    assert tt.rand(4, generator=one).tolist() != second
    assert len({tt.Generator(seed).draw() for seed in range(1000)}) == 1000
    assert tt.Generator().initial_seed() != tt.Generator().initial_seed()
    for wrong in (1.5, "x", -1, 2**63, True, None):
        with pytest.raises(ArgumentError, match="seed"):
            tt.Generator(1).manual_seed(wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="both given"):
        tt.rand(2, seed=1, generator=one)
    with pytest.raises(ArgumentError, match="generator"):
        tt.rand(2, generator=7)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="seed"):
        tt.trace(lambda x: x + tt.rand(2, generator=one), tt.Spec((2,)))


@given(st.integers(0, 300), st.integers(0, 2**63 - 1))
@few
def test_randperm_permutes(n: int, seed: int) -> None:
    order = tt.randperm(n, seed=seed)
    assert order.dtype is tt.i64
    assert sorted(order.tolist()) == list(range(n))
    assert order.tolist() == tt.randperm(n, seed=seed).tolist()


def test_randperm_reaches_every_order_and_checks_its_arguments() -> None:
    orders = {tuple(tt.randperm(3, seed=seed).tolist()) for seed in range(100)}
    assert len(orders) == 6
    assert tt.randperm(5, seed=1, dtype="i32").dtype is tt.i32
    with pytest.raises(ArgumentError, match="n=-1"):
        tt.randperm(-1)
    with pytest.raises(DTypeError, match="integer dtype"):
        tt.randperm(3, dtype="f32")
    with pytest.raises(errors.RangeError):
        tt.randperm(300, dtype="u8")


# ---- bytes as another dtype

PLAIN = "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()


@few
@given(st.data())
def test_view_reads_bytes_as_numpy_does(draw: Any) -> None:
    old, new = draw.draw(st.sampled_from(PLAIN)), draw.draw(st.sampled_from(PLAIN))
    shape = draw.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=8))
    base = np.random.default_rng(0).integers(0, 255, (*shape[:-1], shape[-1] * 8) if shape else (8,)).astype(np.uint8)
    data = np.ascontiguousarray(base).view(old)[: shape[0]] if shape else base.view(old)[0:1].reshape(())
    x = tt.asarray(np.array(data))
    if data.ndim and draw.draw(st.booleans()):
        x, data = x[::-1], data[::-1]
    if data.ndim and draw.draw(st.booleans()):
        x, data = x[..., 1:], data[..., 1:]
    try:
        wanted = data.view(new)
    except ValueError:
        with pytest.raises(ViewError, match="cannot be read"):
            x.view(new)
        return
    try:
        got = x.view(new)
    except ViewError:  # elements that begin at odd bytes, which NumPy reads
        assert np.dtype(new).itemsize > np.dtype(old).itemsize or not data.size
        return
    assert got.shape == wanted.shape
    assert np.ascontiguousarray(got.numpy()).tobytes() == wanted.tobytes()


def test_view_of_a_dtype_shares_memory_and_refuses_what_it_cannot_read() -> None:
    x = tt.asarray(np.array([1.0, 2.0], np.float32)).clone()
    bits = x.view(tt.i32)
    assert bits.tolist() == [0x3F800000, 0x40000000]
    assert x.view(dtype="u8").shape == (8,)
    bits[0] = 0x40000000
    assert x.tolist() == [2.0, 2.0]
    assert x.view(tt.f32).data_ptr == x.data_ptr
    for wrong in ("bool", tt.tern2):
        with pytest.raises(DTypeError, match="cannot be read as"):
            x.view(wrong)
    with pytest.raises(ViewError, match="multiple of 8"):
        tt.ones(3).view(tt.f64)
    with pytest.raises(ArgumentError, match="a shape and a dtype"):
        x.view(2, 1, dtype="i32")
    with pytest.raises(TraceError):
        tt.trace(lambda x: x.view(tt.i32), tt.Spec((2,)))
    odd = np.zeros(9, np.uint8)[1:]
    with pytest.raises(ViewError, match=r"aligned|multiple"):
        tt.asarray(odd).view(tt.f32)

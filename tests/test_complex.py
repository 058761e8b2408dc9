"""Complex numbers through all of the package: NumPy is the oracle, a compiled function gives the bits of the eager one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from at import at
from tritium import dtype as dt
from tritium.errors import DTypeError, TritiumError
from tritium.graph.text import parse
from tritium.op import OPS, Kind
from tritium.testing import LAYOUTS, as_laid, laid

KINDS = ("complex64", "complex128")
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 1e-30, 3e4, -90.0)
THEIRS = {"acos": np.arccos, "asin": np.arcsin, "atan": np.arctan, "acosh": np.arccosh, "asinh": np.arcsinh,
          "atanh": np.arctanh, "pow": np.power, "round": np.rint}  # fmt: skip
UNARY = """abs negative positive square sqrt reciprocal sign exp log log1p log2 log10 sin cos tan asin acos atan sinh cosh tanh
    asinh acosh atanh round real imag conj isnan isinf isfinite logical_not""".split()
BINARY = "add subtract multiply divide pow equal not_equal logical_and logical_or logical_xor".split()

parts = st.sampled_from(SPECIAL) | st.floats(-4, 4, width=32)
shapes = st.sampled_from([(), (0, 3), (7,), (3, 4), (2, 1, 3)])


@st.composite
def arrays(draw: Any, shape: Any = None) -> np.ndarray[Any, Any]:
    size = draw(shapes) if shape is None else shape
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    real, imag = (np.where(rng.random(size) < 0.3, rng.choice(SPECIAL, size), rng.normal(0, 2, size)) for _ in range(2))
    values = np.empty(size, draw(st.sampled_from(KINDS)))
    values.real, values.imag = real, imag
    return values


def theirs(name: str) -> Callable[..., Any]:
    return THEIRS.get(name) or getattr(np, name)


def check(got: tt.Tensor, want: Any) -> None:
    want = np.asarray(want)
    assert got.numpy().dtype == want.dtype
    np.testing.assert_array_equal(got.numpy(), want)


@given(st.sampled_from(UNARY), arrays(), st.sampled_from(LAYOUTS))
@settings(max_examples=70)
def test_functions_of_one_number_are_those_of_numpy(name: str, x: np.ndarray[Any, Any], how: str) -> None:
    seen = as_laid(x, how)
    assert seen is not None
    with np.errstate(all="ignore"):
        check(OPS[name](laid(x, how)), theirs(name)(np.array(seen, order="C")))


@given(st.sampled_from(BINARY), arrays((3, 4)), arrays((3, 4)), st.sampled_from([np.s_[:], np.s_[0], np.s_[:, :1]]))
@settings(max_examples=40)
def test_functions_of_two_numbers_are_those_of_numpy(name: str, x: Any, y: Any, part: Any) -> None:
    with np.errstate(all="ignore"):
        check(OPS[name](tt.asarray(x), tt.asarray(y)[part]), theirs(name)(x, y[part]))


@given(arrays((3, 5)))
@settings(max_examples=20)
def test_expm1_is_exact_near_0_and_right_at_infinities(x: np.ndarray[Any, Any]) -> None:
    with np.errstate(all="ignore"):
        small = x.astype(np.complex128) * 1e-9
        np.testing.assert_array_equal(
            tt.expm1(tt.asarray(small)).numpy()[np.isfinite(small)], np.expm1(small)[np.isfinite(small)]
        )
    got = tt.expm1(tt.asarray(np.array([complex(np.inf, 0), complex(-np.inf, np.nan), complex(800, 0)]))).numpy()
    assert got[0] == complex(np.inf, 0)
    assert got[1] == -1
    assert got[2] == complex(np.inf, 0)
    zeros = tt.expm1(tt.asarray(np.array([complex(-0.0, 0.0), complex(-0.0, -0.0)]))).numpy()
    assert [str(z) for z in zeros.tolist()] == ["0j", "-0j"]


def test_tanh_ends_in_a_zero_of_the_sign_of_the_imaginary_part() -> None:
    x = np.array([complex(np.inf, 2), complex(np.inf, -2), complex(-np.inf, 2), complex(-np.inf, -2)])
    got = tt.tanh(tt.asarray(x)).numpy()
    assert got.real.tolist() == [1, 1, -1, -1]
    assert np.signbit(got.imag).tolist() == [False, True, False, True]
    assert not got.imag.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
def test_sums_products_and_means(kind: str, axis: Any) -> None:
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(4, 3, 5)) + 1j * rng.normal(size=(4, 3, 5))).astype(kind)
    rtol = 1e-6 if kind == "complex64" else 1e-13
    for name in ("sum", "prod", "mean"):
        got, want = OPS[name](tt.asarray(x), axis=axis).numpy(), getattr(np, name)(x, axis=axis)
        assert got.dtype == x.dtype
        np.testing.assert_allclose(got, want, rtol=rtol * 10, atol=rtol)
    for name in ("all", "any", "count_nonzero"):
        check(OPS[name](tt.asarray(x), axis=axis), getattr(np, name)(x, axis=axis))
    np.testing.assert_allclose(tt.cumulative_sum(tt.asarray(x), axis=1).numpy(), np.cumsum(x, axis=1), rtol=rtol * 10)


def test_products_of_matrices() -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.normal(size=(5, 5)) + 1j * rng.normal(size=(5, 5)) for _ in range(2))
    for algorithm in ("blas", "naive", "blocked", "parallel"):
        np.testing.assert_allclose(tt.matmul(tt.asarray(a), tt.asarray(b).T, algorithm=algorithm).numpy(), a @ b.T)
    np.testing.assert_allclose(tt.vecdot(tt.asarray(a), tt.asarray(b)).numpy(), np.vecdot(a, b))
    np.testing.assert_allclose(tt.einsum("ij,kj->ik", tt.asarray(a), tt.asarray(b)).numpy(), a @ b.T)
    np.testing.assert_allclose(tt.tensordot(tt.asarray(a), tt.asarray(b), axes=1).numpy(), a @ b)


# ---- dtypes and numbers of Python


@pytest.mark.parametrize(
    ("one", "other", "want"),
    [("c64", "f32", "c64"), ("c64", "f64", "c128"), ("c128", "f32", "c128"), ("c64", "c128", "c128"), ("c64", "i64", "c64"),
     ("c128", "bool", "c128"), ("c64", "bf16", "c64"), ("c64", "f16", "c64")],
)  # fmt: skip
def test_promotion(one: str, other: str, want: str) -> None:
    for pair in ((one, other), (other, one)):
        assert tt.result_type(*map(dt.dtype, pair)).name == want
    assert (tt.zeros((2,), dtype=one) + tt.ones((2,), dtype=other)).dtype.name == want if other != "bool" else True


@pytest.mark.parametrize(
    ("t", "want"), [("f32", "c64"), ("f64", "c128"), ("bf16", "c64"), ("i32", "c64"), ("c128", "c128")]
)
def test_a_complex_number_of_python_is_weak(t: str, want: str) -> None:
    x = tt.ones((2,), dtype=t) * 2j
    assert x.dtype.name == want
    assert x.tolist() == [2j, 2j]
    assert (1.5 + tt.zeros((2,), dtype="c64")).dtype is tt.c64
    assert tt.asarray(1j).dtype is tt.c64
    assert tt.tensor([1, 2.5, 1j]).dtype is tt.c64
    assert tt.result_type(tt.f64, 1j) is tt.c128


def test_dtypes_by_name_and_their_limits() -> None:
    for name in ("c64", "complex64", "complex", complex, np.complex64):
        assert dt.dtype(name) is tt.complex64
    assert dt.dtype(np.dtype("complex128")) is tt.c128
    assert tt.c64 == np.complex64
    assert tt.isdtype("c64", "complex floating")
    assert not tt.isdtype("c64", "real floating")
    assert tt.finfo("c128") == tt.finfo("f64")
    assert tt.__array_namespace_info__().default_dtypes()["complex floating"] is tt.c64
    assert set(tt.__array_namespace_info__().dtypes(kind="complex floating")) == set(KINDS)
    assert tt.can_cast("f32", "c64")
    assert not tt.can_cast("c64", "f64")


@pytest.mark.parametrize("t", [*dt.ALL, *dt.COMPLEX], ids=str)
def test_casts_to_complex_and_back(t: dt.DType) -> None:
    x = tt.astype(tt.tensor([0, 1, 1, 0]), t)
    for kind in dt.COMPLEX:
        assert x.to(kind).tolist() == [0, 1, 1, 0]
        assert x.to(kind).dtype is kind
    z = tt.tensor([0j, 1j, -1.0, 0.0], dtype="c128")
    if t in (dt.bool_, *dt.COMPLEX):
        assert z.to(t).to("bool").tolist() == [False, True, True, False]
    else:
        with pytest.raises(DTypeError, match=r"no imaginary part; take real\(x\), imag\(x\) or abs\(x\)"):
            z.to(t)


def test_parts_of_real_numbers() -> None:
    for t in dt.ALL:
        with at(t):
            x = tt.astype(tt.tensor([0, 1, 1]), t)
            assert (x.real.tolist(), x.imag.tolist(), x.conj().tolist()) == (x.tolist(), [0, 0, 0], x.tolist())
            assert x.real.dtype is x.imag.dtype is x.conj().dtype is t
    z = tt.tensor([1 + 2j])
    assert (z.real.item(), z.imag.item(), z.conj().item(), complex(z)) == (1, 2, 1 - 2j, 1 + 2j)
    assert tt.linspace(0, 1j, 3).tolist() == [0, 0.5j, 1j]


# ---- memory


@given(arrays((4, 5)), st.lists(st.sampled_from([None, 1, 2, -1, -2]), min_size=2, max_size=2))
@settings(max_examples=25)
def test_views_read_and_write_the_same_memory(x: np.ndarray[Any, Any], steps: list[Any]) -> None:
    key = tuple(slice(None, None, s) for s in steps)
    t, m = tt.tensor(x), x.copy()
    t[key] += 1j
    m[key] += 1j
    check(t, m)
    t.T[1], m.T[1] = 2 - 1j, 2 - 1j
    clone = t.clone()
    t[0, ::-1] = t[1]
    m[0, ::-1] = m[1]
    check(t, m)
    check(t.reshape(-1)[tt.tensor([3, 0, 3])], m.reshape(-1)[[3, 0, 3]])
    check(t[t != 0], m[m != 0])
    assert clone.numpy()[1].tobytes() == t.numpy()[1].tobytes()


def test_conversions_share_memory() -> None:
    m = np.array([[1 + 2j, 3.0], [0, -1j]], np.complex64)[:, ::-1]
    x = tt.from_numpy(m)
    x[0, 0] = 7j
    assert m[0, 0] == 7j
    assert x.numpy().ctypes.data == m.ctypes.data
    for again in (tt.from_dlpack(x), tt.from_dlpack(m), tt.asarray(np.from_dlpack(x)), tt.from_dlpack(x, copy=True)):
        check(again, m)
    for other in (pickle.loads(pickle.dumps(x, 2)), pickle.loads(pickle.dumps(x, 5)), copy.deepcopy(x), copy.copy(x)):
        check(other, m)
    assert repr(x[0, 0]) == "Tensor(0.+7.j, dtype=c64, shape=(), device='cpu')"
    assert f"{x[0, 0]:.1f}" == "0.0+7.0j"


# ---- what is no operation of complex numbers


@pytest.mark.parametrize(
    "call",
    [lambda x: x < x, tt.sort, tt.max, tt.argmin, tt.relu, tt.softmax, tt.floor, tt.var, lambda x: x // 2, lambda x: x % 2,
     lambda x: tt.maximum(x, 1), lambda x: tt.clip(x, 0, 1), tt.erf, lambda x: tt.atan2(x, x), float, int,
     lambda x: tt.full((2,), 1j, dtype="f32"), lambda x: tt.tensor([1j], dtype="f32"), lambda x: x & x,
     lambda x: tt.linspace(0, 1j, 3, dtype="f32"), lambda x: x.sum(dtype="f32"), tt.quant.int8,
     lambda x: tt.add(tt.ones(1), 1j, out=tt.ones(1)), lambda x: tt.zeros(1).copy_(1j), lambda x: tt.fft.rfft(x)],
)  # fmt: skip
def test_real_numbers_are_asked_for(call: Callable[..., Any]) -> None:
    with pytest.raises(TritiumError, match=r"real|c64|complex|kind|bits"):
        call(tt.tensor([1 + 2j]))


def test_every_row_computes_or_refuses() -> None:
    """Any row with complex operands gives a tensor or an error of the package's own, and never warns of parts it dropped."""
    x = tt.tensor([[1 + 2j, 3.0, 0.5j], [0.0, -1j, 2.0]])
    for row in OPS.values():
        if row.kind is Kind.SOURCE or not row.inputs or row.params:
            continue
        with at(row.name):
            try:
                results = row(*[x] * row.arity)
            except TritiumError:
                continue
            for result in results if isinstance(results, tuple) else (results,):
                assert isinstance(result.numpy(), np.ndarray)


# ---- graphs and programs

FUNCTIONS: list[Callable[..., Any]] = [
    lambda x, y: (x * 1 + 0) * 2j - 0 + x / 1,
    lambda x, y: tt.exp(x * 1j) + y,
    lambda x, y: tt.where(tt.abs(x) > 1, x, tt.conj(y)),
    lambda x, y: (tt.real(x), tt.imag(x) * y, tt.abs(x * y)),
    lambda x, y: (tt.relu(y) * 3 + 1, x[::-1].T @ x[:, ::-1] + y.T @ y),
    lambda x, y: tt.concat([x, x + y])[1:, None].sum(axis=0),
    lambda x, y: (
        tt.fft.ifft(tt.fft.fft(x, axis=0) * 2, axis=0) + tt.fft.irfft(tt.fft.rfft(y, axis=0), n=y.shape[0], axis=0)
    ),
    lambda x, y: x.reshape(-1)[::-1],
    lambda x, y: tt.linalg.svdvals(x) + tt.linalg.vector_norm(y),
    lambda x, y: tt.negative(-x) * tt.positive(x) + tt.conj(tt.conj(x)).to("c128").to("c64"),
]


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_program_gives_the_bits_of_the_eager_call(fn: Callable[..., Any]) -> None:
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(3, 4)) + 1j * rng.normal(size=(3, 4))).astype(np.complex64)
    x[0, :3] = complex(-0.0, 0.0), complex(0.0, -0.0), complex(-0.0, -0.0)
    args = tt.asarray(x), tt.asarray(rng.normal(size=(3, 4)).astype(np.float32))
    graph = tt.trace(fn, *(tt.Spec(a.shape, a.dtype) for a in args))
    again = parse(str(graph))
    assert str(again) == str(graph)
    for run in (tt.compile(fn), graph):
        got, want = run(*args), fn(*args)
        for g, w in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
            assert g.dtype is w.dtype
            assert g.numpy().tobytes() == np.ascontiguousarray(w.numpy()).tobytes()


def test_a_number_in_a_graph_keeps_its_signs_and_nan() -> None:
    for value in (complex(-0.0, 0.0), complex(np.inf, -np.nan), complex(1e300, -0.5)):
        graph = tt.trace(lambda x, value=value: x * value, tt.Spec((2,), tt.c128))
        text = str(graph)
        assert f"complex({value.real!r}, {value.imag!r})" in text
        assert str(parse(text)) == text

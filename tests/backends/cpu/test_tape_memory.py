"""What a tape loads and stores: casts at their edges, results too large for the cache, results that begin anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tritium as tt
from isas import BASES as ISAS
from tape_cases import Body, check, one_by_one, same_bits
from tritium import ops
from tritium.backends.cpu import tape
from tritium.buffer import native
from tritium.dtype import DType, bf16, bool_, f16, f32, f64, i8, i32
from tritium.fragment import Fragment
from tritium.op import Spec

pytestmark = pytest.mark.skipif(native is None, reason="needs the native library; this is a pure-Python build")

LARGE = 600_011  # elements of f32: more than the two MiB from which results go around the cache, with a tail


@pytest.fixture(params=[1, 2], ids=["one_thread", "two_threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = native.num_threads()
    native.set_num_threads(request.param)
    yield
    native.set_num_threads(before)


# ---- casts

REAL = np.array(
    [0, 0.49, 0.5, 0.99, 1, 1.5, 126.9, 127, 127.5, 127.99, 128, 128.5, 255, 256, 32767, 65504, 1e9, 2147483520,
     2147483648, 4294967296, 1e30, 1e-40, np.inf, np.nan],
    np.float32,
)  # fmt: skip
WHOLE = np.array([0, 1, 2, 127, 128, 129, 255, 256, 32767, 65535, 65536, 16777217, 2**31 - 129, 2**31 - 1], np.int64)


def edges(t: DType) -> np.ndarray[Any, Any]:
    if t is bool_:
        return np.arange(300) % 3 > 0
    if t is i8:
        return np.arange(-300, 300).astype(np.int8)
    if t is i32:
        return np.resize(np.concatenate([WHOLE, -WHOLE, -WHOLE - 1]), 300).astype(np.int32)
    with np.errstate(over="ignore"):
        return np.resize(np.concatenate([REAL, -REAL]), 300).astype(t.numpy)


NARROW = (bool_, i8, i32, f16, bf16, f32)
PAIRS = [(a, b) for a in NARROW for b in NARROW if a is not b] + [(bool_, f64), (f64, bool_)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_casts_have_the_bits_of_their_kernels_at_the_edges(source: DType, target: DType, isa: str) -> None:
    x = edges(source)
    b = Body(Spec(x.shape, source))
    made = b(ops.astype, 0, dtype=target, copy=True)
    body = b.done(made, b(ops.equal, made, made))
    assert one_by_one(body, [x], isa) is not None
    for n in (1, 7, 31, 128, 300):
        b = Body(Spec((n,), source))
        alone = b.done(b(ops.astype, 0, dtype=target, copy=True))
        check(alone, [x[:n]], isa)
        check(alone, [x[-n:]], isa)
    check(body, [x], isa)


# ---- results that go around the cache


def several(shape: tuple[int, ...], other: tuple[int, ...], t: DType) -> Fragment:
    b = Body(Spec(shape, t), Spec(other, t))
    total = b(ops.add, 0, 1)
    return b.done(b(ops.relu, total), b(ops.greater, total, 0), b(ops.multiply, total, total))


def casts(shape: tuple[int, ...], other: tuple[int, ...], t: DType) -> Fragment:
    b = Body(Spec(shape, t), Spec(other, t))
    total = b(ops.multiply, 0, 1)
    return b.done(total, *(b(ops.astype, total, dtype=to, copy=True) for to in (i8, i32, f16)))


def values(body: Fragment) -> list[Any]:
    rng = np.random.default_rng(3)
    return [np.asarray(rng.normal(0, 40, s.shape), s.dtype.numpy) for s in body.inputs]


SHAPES = [
    ((LARGE,), (LARGE,)),
    ((LARGE,), (1,)),
    ((586, 1024), (586, 1)),
    ((586, 1024), (1024,)),
    ((587, 1031), (1031,)),
]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("make", "kind"),
    [(several, f32), (several, f64), (several, bf16), (casts, f32)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_large_results_have_the_bits_of_their_steps(make: Any, kind: DType, shapes: Any, isa: str) -> None:
    body = make(*shapes, kind)
    check(body, values(body), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("skip", [1, 3, 16, 17])
def test_large_results_may_begin_anywhere(skip: int, isa: str) -> None:
    body = several((LARGE,), (LARGE,), f32)
    data = values(body)
    want = one_by_one(body, data, isa)
    assert want is not None
    kernel, attrs = tape.native_call(body, isa)
    wide = [tt.full((LARGE + 2 * skip,), 1, dtype=body.spec(v).dtype) for v in body.outputs]
    made = tuple(w[skip:-skip] for w in wide)
    kernel(*(tt.tensor(x) for x in data), out=made, **attrs)
    for m, w, around in zip(made, want, wide, strict=True):
        assert same_bits(m.numpy(), w)
        rest = around.numpy()
        assert (rest[:skip] == 1).all()
        assert (rest[-skip:] == 1).all()


@pytest.mark.parametrize("isa", ISAS)
def test_a_large_result_may_be_written_over_an_input(isa: str) -> None:
    body = several((LARGE,), (LARGE,), f32)
    data = values(body)
    want = one_by_one(body, data, isa)
    assert want is not None
    assert tape.overwrites(body, 1)
    kernel, attrs = tape.native_call(body, isa)
    x, y = (tt.tensor(d) for d in data)
    made = (y, *(tt.full((LARGE,), 1, dtype=body.spec(v).dtype) for v in body.outputs[1:]))
    kernel(x, y, out=made, **attrs)
    assert all(same_bits(m.numpy(), w) for m, w in zip(made, want, strict=True))


@pytest.mark.parametrize("isa", ISAS)
def test_large_results_that_are_read_next_have_the_same_bits(isa: str) -> None:
    body = several((LARGE,), (1,), f32)
    data = values(body)
    want = one_by_one(body, data, isa)
    assert want is not None
    kernel, attrs = tape.native_call(body, isa)
    made = tuple(tt.full((LARGE,), 1, dtype=body.spec(v).dtype) for v in body.outputs)
    kernel(*(tt.tensor(d) for d in data), out=made, read_next=1, **attrs)
    assert all(same_bits(m.numpy(), w) for m, w in zip(made, want, strict=True))

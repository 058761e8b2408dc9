"""Dtypes: their names, where two meet, and what may be stored where."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from itertools import permutations, product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from tritium import dtype as dt
from tritium.dtype import ALL, COMPLEX, DType, promote
from tritium.errors import DTypeError

dtypes = st.sampled_from(ALL)
weak = st.sampled_from((dt.weak_bool, dt.weak_int, dt.weak_float))

# The row and the column meet in the cell; "-" has no common dtype.
MEETING = """
     bool i8  i16 i32 i64 u8  u16 u32 u64 f16 bf16 f32 f64
bool bool i8  i16 i32 i64 u8  u16 u32 u64 f16 bf16 f32 f64
i8   i8   i8  i16 i32 i64 i16 i32 i64 -   f16 bf16 f32 f64
i16  i16  i16 i16 i32 i64 i16 i32 i64 -   f16 bf16 f32 f64
i32  i32  i32 i32 i32 i64 i32 i32 i64 -   f16 bf16 f32 f64
i64  i64  i64 i64 i64 i64 i64 i64 i64 -   f16 bf16 f32 f64
u8   u8   i16 i16 i32 i64 u8  u16 u32 u64 f16 bf16 f32 f64
u16  u16  i32 i32 i32 i64 u16 u16 u32 u64 f16 bf16 f32 f64
u32  u32  i64 i64 i64 i64 u32 u32 u32 u64 f16 bf16 f32 f64
u64  u64  -   -   -   -   u64 u64 u64 u64 f16 bf16 f32 f64
f16  f16  f16 f16 f16 f16 f16 f16 f16 f16 f16 f32  f32 f64
bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 f32 bf16 f32 f64
f32  f32  f32 f32 f32 f32 f32 f32 f32 f32 f32 f32  f32 f64
f64  f64  f64 f64 f64 f64 f64 f64 f64 f64 f64 f64  f64 f64
"""


def meetings() -> list[tuple[str, str, str]]:
    heads, *rows = (line.split() for line in MEETING.strip().splitlines())
    return [(row, column, cell) for row, *cells in rows for column, cell in zip(heads, cells, strict=True)]


@pytest.mark.parametrize(("a", "b", "meet"), meetings())
def test_two_dtypes_meet_as_the_table_says(a: str, b: str, meet: str) -> None:
    if meet == "-":
        with pytest.raises(DTypeError, match=f"{a} and {b}.*no common.*\\.to\\("):
            promote(dt.dtype(a), dt.dtype(b))
    else:
        assert promote(dt.dtype(a), dt.dtype(b)) is dt.dtype(meet)


@pytest.mark.parametrize(("a", "b", "meet"), [m for m in meetings() if m[2] != "-"])
def test_tensors_add_in_the_dtype_of_the_table(a: str, b: str, meet: str) -> None:
    if a == b == "bool":
        pytest.skip("bool has no arithmetic")
    assert (tt.ones(2, dtype=a) + tt.ones(2, dtype=b)).dtype == meet


@given(dtypes, dtypes)
def test_order_does_not_matter(a: DType, b: DType) -> None:
    try:
        found = promote(a, b)
    except DTypeError:
        with pytest.raises(DTypeError):
            promote(b, a)
    else:
        assert promote(b, a) is found


@given(st.lists(dtypes, min_size=1, max_size=4), weak)
def test_a_weak_scalar_may_stand_anywhere(strong: list[DType], scalar: DType) -> None:
    try:
        found = {promote(*order) for order in permutations([*strong, scalar])}
    except DTypeError:
        return
    assert len(found) == 1


WEAK = [
    ("bool", True, "bool"),
    ("bool", 1, "i64"),
    ("bool", 1.0, "f32"),
    ("i8", True, "i8"),
    ("i8", 1, "i8"),
    ("i8", 1.0, "f32"),
    ("u8", 1, "u8"),
    ("i64", 2.5, "f32"),
    ("f16", 2.5, "f16"),
    ("bf16", 1, "bf16"),
    ("f64", 1.5, "f64"),
    ("f32", True, "f32"),
]


@pytest.mark.parametrize(("name", "scalar", "result"), WEAK)
def test_a_python_number_takes_the_dtype_of_the_tensor(name: str, scalar: Any, result: str) -> None:
    assert tt.result_type(tt.ones(2, dtype=name), scalar) == result


@pytest.mark.parametrize(("values", "result"), [((True,), "bool"), ((1, True), "i64"), ((1, 2.0), "f32")])
def test_numbers_alone_take_the_default_of_the_highest_kind(values: tuple[Any, ...], result: str) -> None:
    assert tt.result_type(*values) == result


def test_nothing_has_no_dtype() -> None:
    with pytest.raises(DTypeError, match="at least one"):
        promote()


NAMES = [
    ("f32", tt.f32),
    ("float32", tt.f32),
    ("half", tt.f16),
    ("double", tt.f64),
    ("bfloat16", tt.bf16),
    ("int", tt.i64),
    ("byte", tt.u8),
    ("bool", tt.bool),
    (bool, tt.bool),
    (int, tt.i64),
    (float, tt.f32),
    (np.float16, tt.f16),
    (np.dtype(">i4"), tt.i32),
    (ml_dtypes.bfloat16, tt.bf16),
    (tt.u16, tt.u16),
    (np.dtype("uint64"), tt.u64),
]


@pytest.mark.parametrize(("given", "meant"), NAMES, ids=str)
def test_a_dtype_has_many_names(given: Any, meant: DType) -> None:
    assert dt.dtype(given) is meant


@pytest.mark.parametrize("name", ["torch.bfloat16", "mlx.core.float32"])
def test_dtypes_of_other_libraries_are_known_by_their_text(name: str) -> None:
    class Other:
        def __str__(self) -> str:
            return name

    assert dt.dtype(Other()).long_name == name.rpartition(".")[2]


def test_a_wrong_name_gets_a_hint_and_the_list() -> None:
    with pytest.raises(DTypeError, match=r"'flot32' is not a dtype\. Did you mean 'float32'\? Use one of bool, i8"):
        dt.dtype("flot32")


@pytest.mark.parametrize("wrong", [None, "", "f128", np.clongdouble, np.dtype("S3"), object])
def test_what_is_not_a_dtype_is_refused(wrong: Any) -> None:
    with pytest.raises(DTypeError, match="is not a dtype"):
        dt.dtype(wrong)


@pytest.mark.parametrize("t", ALL, ids=str)
def test_a_dtype_prints_as_people_write_it(t: DType) -> None:
    assert (str(t), repr(t)) == (t.name, f"tritium.{t.name}")


@pytest.mark.parametrize("t", ALL, ids=str)
def test_a_dtype_equals_its_names_only(t: DType) -> None:
    assert t == t.name
    assert t == t.long_name
    assert hash(t) == hash(t.name)
    assert t != "complex64"
    assert t not in [other for other in ALL if other is not t]


@pytest.mark.parametrize("t", ALL, ids=str)
def test_a_dtype_stays_one_object_through_copies_and_pickles(t: DType) -> None:
    assert copy.deepcopy(t) is t
    assert copy.copy(t) is t
    assert all(pickle.loads(pickle.dumps(t, protocol)) is t for protocol in range(2, 6))


@pytest.mark.parametrize("t", ALL, ids=str)
def test_the_numpy_twin_has_the_same_size(t: DType) -> None:
    assert t.numpy.itemsize == t.nbytes
    assert dt.dtype(t.numpy) is t


def test_native_codes_count_the_rows() -> None:
    assert [t.code for t in ALL] == list(range(len(ALL)))


@pytest.mark.parametrize(("a", "b"), list(product(ALL, ALL)), ids=str)
def test_storing_follows_numpys_same_kind(a: DType, b: DType) -> None:
    twin = {t: np.dtype("f2") if t is tt.bf16 else t.numpy for t in ALL}
    assert dt.same_kind(a, b) == np.can_cast(twin[a], twin[b], "same_kind")


@pytest.mark.parametrize(
    ("source", "target", "can"),
    [
        ("i8", "i16", True),
        ("i16", "i8", False),
        ("f16", "bf16", False),
        ("u64", "i64", False),
        ("bool", "f16", True),
        ("i64", "f16", True),
    ],
)
def test_can_cast_is_promotion(source: str, target: str, can: bool) -> None:
    assert tt.can_cast(source, target) is can


@pytest.mark.parametrize("t", dt.FLOATS, ids=str)
def test_finfo_tells_what_a_float_holds(t: DType) -> None:
    info, want = tt.finfo(t), ml_dtypes.finfo(t.numpy)
    assert (info.bits, info.eps, info.max, info.min) == (
        8 * t.nbytes,
        float(want.eps),
        float(want.max),
        float(want.min),
    )
    assert info.smallest_normal == float(want.smallest_normal)
    assert info.dtype is t


@pytest.mark.parametrize("t", dt.SIGNED + dt.UNSIGNED, ids=str)
def test_iinfo_tells_what_an_integer_holds(t: DType) -> None:
    info, want = tt.iinfo(t.name), np.iinfo(t.numpy)
    assert (info.bits, info.max, info.min, info.dtype) == (want.bits, want.max, want.min, t)


def test_asking_for_limits_does_not_keep_a_tensor_alive() -> None:
    x = tt.ones(3)
    assert tt.finfo(x).dtype is tt.f32
    seen = weakref.ref(x)
    del x
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize(
    ("ask", "t", "other"), [(tt.finfo, "i8", "iinfo"), (tt.iinfo, "f32", "finfo"), (tt.iinfo, "bool", "finfo")]
)
def test_the_wrong_limits_name_the_right_question(ask: Any, t: str, other: str) -> None:
    with pytest.raises(DTypeError, match=f"given {t}.*use {other}"):
        ask(t)


KINDS = {
    "bool": {"bool"},
    "signed integer": {"i8", "i16", "i32", "i64"},
    "unsigned integer": {"u8", "u16", "u32", "u64"},
    "real floating": {"f16", "bf16", "f32", "f64"},
    "complex floating": {"c64", "c128"},
}
KINDS |= {"integral": KINDS["signed integer"] | KINDS["unsigned integer"]}
KINDS |= {"numeric": KINDS["integral"] | KINDS["real floating"] | KINDS["complex floating"]}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_the_standard(kind: str) -> None:
    assert {t.name for t in (*ALL, *COMPLEX) if tt.isdtype(t, kind)} == KINDS[kind]


def test_a_tuple_of_kinds_is_any_of_them() -> None:
    assert tt.isdtype("i8", ("bool", tt.i8))
    assert not tt.isdtype("i16", ("bool", tt.i8))


def test_an_unknown_kind_lists_the_known() -> None:
    with pytest.raises(DTypeError, match=r"'floating' is not a kind.*real floating"):
        tt.isdtype("f32", "floating")


def test_numpy_dtypes_compare_equal() -> None:
    assert tt.f32 == np.float32
    assert tt.bf16 == np.dtype(tt.bf16.numpy)
    assert tt.i64 != np.int32


def test_half_floats_take_two_bytes_and_compute_in_their_dtype() -> None:
    for kind in (tt.f16, tt.bf16):
        x = tt.ones((3, 5), dtype=kind)
        assert (x.itemsize, x.nbytes) == (2, 30)
        for result in (x + x, x * 3, x @ x.T, tt.exp(x), x.sum(axis=0), tt.softmax(x), tt.relu(x)):
            assert (result.dtype, result.nbytes) == (kind, 2 * result.size)


def test_products_of_half_floats_are_summed_in_f32() -> None:
    """Half floats cannot count beyond 2048 (f16) or 256 (bf16): a sum kept in them would stop there."""
    for kind in (tt.f16, tt.bf16):
        row = tt.ones((1, 4096), dtype=kind)
        assert (row @ row.T).item() == tt.sum(row).item() == 4096
        assert (row @ tt.ones((4096, 1))).dtype is (tt.ones((1, 4096)) @ row.T).dtype is tt.f32

"""Einsum: NumPy's results for every spec, cheap orders, few copies, and a path that says so."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import opt_einsum
import pytest
from hypothesis import given, settings, strategies as st
from opt_einsum import path_random, paths

import tritium as tt
from tritium import launch
from tritium.contract import einsum as einsum_module
from tritium.contract.einsum import PATH_CACHE_SIZE, plan
from tritium.errors import ArgumentError, DTypeError, ShapeError, TritiumError

Arr = np.ndarray[Any, Any]


def whole(*shape: int, seed: int = 0, dtype: str = "float32") -> Arr:
    """Small whole numbers: sums of products are exact in every dtype."""
    return np.asarray(np.random.default_rng(seed).integers(-3, 4, shape), dtype)


def rows(spec: str, *operands: Any) -> list[str]:
    return [c.rows for c in tt.einsum_path(spec, *operands).contractions]


def same(got: tt.Tensor, want: Any) -> None:
    assert got.shape == np.shape(want)
    np.testing.assert_array_equal(got.numpy(), want)


# ---- random specs


@st.composite
def seen(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Arr:
    """An array of that shape, perhaps a transposed, sliced or reversed view of another."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    wide = [shape[d] * abs(steps[d]) for d in order]
    base = whole(*wide, seed=draw(st.integers(0, 99)), dtype=dtype)
    back = np.argsort(np.array(order, int))
    return base.transpose(back)[(*(slice(None, None, s) for s in steps), ...)]


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[Arr]]:
    """A spec and operands that NumPy takes."""
    sizes = {c: draw(st.integers(1, 4) | st.just(0)) for c in "ijkl"}
    dots = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))]
    dtype = draw(st.sampled_from(["float32", "float64", "int32", "int64", "int8"]))
    terms, arrays = [], []
    for _ in range(draw(st.integers(1, 4))):
        names = draw(st.lists(st.sampled_from("ijkl"), max_size=3))
        shape = [1 if names.count(c) == 1 and draw(st.integers(0, 5)) == 0 else sizes[c] for c in names]
        if dots and draw(st.booleans()):
            at, width = draw(st.integers(0, len(names))), draw(st.integers(0, len(dots)))
            inner = [1 if draw(st.integers(0, 3)) == 0 else n for n in dots[len(dots) - width :]]
            names, shape = [*names[:at], "...", *names[at:]], [*shape[:at], *inner, *shape[at:]]
        terms.append("".join(names))
        arrays.append(draw(seen(tuple(shape), dtype)))
    spec = ",".join(terms)
    if draw(st.booleans()):
        known = sorted(set(spec) - set(",."))
        out = draw(st.permutations(known))[: draw(st.integers(0, len(known)))]
        at = draw(st.integers(0, len(out)))
        spec += "->" + "".join([*out[:at], *(["..."] if "..." in spec else []), *out[at:]])
    return spec, arrays


@settings(max_examples=400, deadline=None)
@given(calls())
def test_random_specs_equal_numpy(call: tuple[str, list[Arr]]) -> None:
    spec, arrays = call
    tensors = [tt.asarray(a) for a in arrays]
    before = launch.counters.hidden_copies
    got = tt.einsum(spec, *tensors)
    assert launch.counters.hidden_copies == before
    same(got, np.einsum(spec, *arrays))
    path = tt.einsum_path(spec, *tensors)
    assert path.out == got.spec == tt.Spec(got.shape, tensors[0].dtype)
    assert str(path)


@settings(max_examples=100, deadline=None)
@given(calls())
def test_traced_equals_eager(call: tuple[str, list[Arr]]) -> None:
    spec, arrays = call
    tensors = [tt.asarray(a) for a in arrays]
    graph = tt.trace(lambda *xs: tt.einsum(spec, *xs) + 0, *tensors)
    same(graph(*tensors), np.einsum(spec, *arrays))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=6, max_size=9), st.data())
def test_networks_of_many_operands_equal_numpy(sizes: list[int], data: st.DataObject) -> None:
    n = len(sizes) - 1
    arrays = [data.draw(seen((sizes[i], sizes[i + 1]), "float64")) for i in range(n)]
    letters = "abcdefghijk"
    spec = ",".join(letters[i : i + 2] for i in range(n)) + f"->{letters[n]}{letters[0]}"
    same(tt.einsum(spec, *map(tt.asarray, arrays)), np.einsum(spec, *arrays, optimize=True))


# ---- forms


def network(pairs: list[tuple[int, int]], n: int, out: int) -> tuple[str, list[Arr]]:
    """Return the spec and operands of a network: an index for each pair of tensors, the first `out` of them in the result."""
    names = [opt_einsum.get_symbol(k) for k in range(len(pairs) + out)]
    terms = [[names[k] for k, pair in enumerate(pairs) if i in pair] for i in range(n)]
    for k in range(out):
        terms[k].append(names[len(pairs) + k])
    spec = ",".join("".join(t) for t in terms) + "->" + "".join(names[len(pairs) :])
    return spec, [whole(*(2,) * len(t), seed=i) for i, t in enumerate(terms)]


@given(st.sampled_from((17, 40, 60)), st.integers(0, 999), st.integers(0, 2))
@settings(max_examples=8, deadline=None)
def test_large_networks_follow_the_order_of_opt_einsum(n: int, seed: int, out: int) -> None:
    """A ring with a few chords: left to right they have more than 32 open indices."""
    rng = np.random.default_rng(seed)
    ring = rng.permutation(n).tolist()
    chords = [tuple(rng.choice(n, 2, replace=False).tolist()) for _ in range(n // 5)]
    pairs = [tuple(sorted(p)) for p in [*pairwise(ring), (ring[-1], ring[0]), *chords]]
    spec, arrays = network(pairs, n, out)
    want = opt_einsum.contract(spec, *[a.astype(np.float64) for a in arrays])
    got = tt.einsum(spec, *[tt.asarray(a.astype(np.float64)) for a in arrays])
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-6 * (np.abs(want).max() + 1))


def test_a_thousand_operands_are_contracted() -> None:
    names = [opt_einsum.get_symbol(i) for i in range(1001)]
    spec = ",".join(a + b for a, b in pairwise(names)) + f"->{names[0]}{names[-1]}"
    swap = tt.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert tt.einsum(spec, *[swap] * 1000).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(("n", "searches"), [(5, 0), (16, 0), (17, 121), (100, 21), (1000, 3)])
def test_the_search_is_bounded_by_the_number_of_operands(
    n: int, searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[int] = []

    class Search:
        def __init__(self, max_repeats: int) -> None:
            trials.append(max_repeats)

        def __call__(self, *args: Any) -> Any:
            return [(0, 1)] * (n - 1)

    monkeypatch.setattr(path_random, "RandomGreedy", Search)
    inputs = [frozenset({str(i), str(i + 1)}) for i in range(n)]
    list(einsum_module._search(inputs, frozenset(), {str(i): 2 for i in range(n + 1)}))
    assert trials == ([searches] if searches else [])


def test_dense_networks_are_not_searched_by_dynamic_programming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "dynamic_programming", None)
    spec, arrays = network(list(combinations(range(8), 2)), 8, 0)
    want = opt_einsum.contract(spec, *arrays, optimize="greedy")
    np.testing.assert_allclose(tt.einsum(spec, *arrays).numpy(), want, rtol=1e-4)


def test_a_network_too_large_for_every_order_says_so_in_few_words() -> None:
    spec, arrays = network(list(combinations(range(20), 2)), 20, 0)
    with pytest.raises(ShapeError, match=r"orders tried a result is too large for a tensor .*contract some") as caught:
        tt.einsum_path(spec, *[tt.Spec(a.shape) for a in arrays])
    assert len(str(caught.value)) < 600


def test_the_search_leaves_the_random_numbers_of_the_user() -> None:
    random.seed(3)
    want = random.random()
    random.seed(3)
    n = 18
    tt.einsum_path(",".join(chr(97 + i) + chr(98 + i) for i in range(n)) + "->", *[tt.Spec((2, 2))] * n)
    assert random.random() == want


# ---- out


@given(calls())
@settings(max_examples=60)
def test_out_has_the_result_written_into_it(call: tuple[str, list[Arr]]) -> None:
    spec, arrays = call
    want = tt.einsum(spec, *[tt.tensor(a) for a in arrays])
    out = tt.zeros(want.shape, dtype=want.dtype)
    assert tt.einsum(spec, *[tt.tensor(a) for a in arrays], out=out) is out
    same(out, want.numpy())


def test_out_may_be_an_operand_or_of_a_wider_dtype() -> None:
    a = tt.tensor(whole(4, 4))
    want = np.einsum("ij,jk->ki", a.numpy().copy(), a.numpy().copy())
    assert tt.einsum("ij,jk->ki", a, a, out=a) is a
    same(a, want)
    tt.einsum("ij->ji", a, out=a)
    same(a, want.T)
    wide = tt.zeros((4, 4), dtype="f64")
    same(tt.einsum("ij->ji", a, out=wide), want)


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        (np.zeros((3, 3), np.float32), ArgumentError, r"out must be a tensor, given ndarray; tritium.asarray\(a\)"),
        (tt.zeros((2, 3)), ShapeError, r"the result is f32\[3,3\], but out is f32\[2,3\]"),
        (tt.zeros((3, 3), dtype="i32"), DTypeError, "cannot be stored in i32"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: Any, error: type[TritiumError], text: str) -> None:
    with pytest.raises(error, match=text):
        tt.einsum("ij,jk->ik", tt.ones((3, 3)), tt.ones((3, 3)), out=out)


def test_an_absent_arrow_keeps_what_stands_once_in_alphabetical_order() -> None:
    a, b = whole(2, 3), whole(3, 4)
    same(tt.einsum("zj,ja", tt.asarray(a), tt.asarray(b)), (a @ b).T)


def test_lists_of_numbers_say_the_same_as_letters() -> None:
    a, b = whole(2, 3), whole(3, 4)
    x, y = tt.asarray(a), tt.asarray(b)
    same(tt.einsum(x, [0, 1], y, [1, 2], [2, 0]), (a @ b).T)
    same(tt.einsum(x, [7, 1], y, [1, 2]), (a @ b).T)
    same(tt.einsum(x, [..., 1], y, [1, 2], [..., 2]), a @ b)
    assert tt.einsum_path(x, [0, 1], y, [1, 2], [2, 0]).spec == "ab,bc->ca"


def test_operands_may_come_in_a_list() -> None:
    a, b = whole(2, 3), whole(3, 4)
    same(tt.einsum("ik,kj->ij", [tt.asarray(a), tt.asarray(b)]), a @ b)


def test_spaces_do_not_matter() -> None:
    a = whole(2, 3)
    same(tt.einsum(" i j -> j i ", tt.asarray(a)), a.T)


def test_numpy_arrays_and_numbers_are_operands() -> None:
    a = whole(2, 3)
    same(tt.einsum("ij,,->ji", a, 2.0, np.float32(3)), 6 * a.T)
    assert tt.einsum(",", 2, 3).item() == 6


def test_a_number_is_weak() -> None:
    x = tt.arange(3, dtype=tt.i32)
    assert tt.einsum(",i->i", 2, x).dtype is tt.i32
    assert tt.einsum(",i->i", 2.5, x).dtype is tt.f32


@pytest.mark.parametrize(
    ("kinds", "out"), [(("i8", "i8"), "i8"), (("i32", "f16"), "f16"), (("f16", "bf16"), "f32"), (("u8", "i8"), "i16")]
)
@pytest.mark.parametrize("spec", ["ij,jk->ik", "ij,jk->", "ij,jk->ijk", "ij,jk,ij->k"])
def test_the_dtype_is_that_of_promotion_whatever_the_order(spec: str, kinds: tuple[str, str], out: str) -> None:
    given = [tt.ones((2, 3), dtype=kinds[0]), tt.ones((3, 4), dtype=kinds[1]), tt.ones((2, 3), dtype=kinds[0])]
    given = given[: spec.count(",") + 1]
    got = tt.einsum(spec, *given)
    assert got.dtype == out
    same(got.to("f64"), np.einsum(spec, *(x.to("f64").numpy() for x in given)))


def test_half_floats_are_summed_in_single_ones() -> None:
    x = tt.full((4096,), 1.0, dtype=tt.f16)
    y = tt.full((4096,), 1.0 + 2**-10, dtype=tt.f16)
    assert tt.einsum("i,i->", x, y).item() == 4100.0


def test_sizes_of_one_are_repeated_as_in_numpy() -> None:
    a, b = whole(2, 1), whole(3, 4)
    same(tt.einsum("ij,jk->ik", tt.asarray(a), tt.asarray(b)), np.einsum("ij,jk->ik", a, b))


def test_nothing_sums_to_zero() -> None:
    same(tt.einsum("ij,jk->ik", tt.ones((2, 0)), tt.ones((0, 3))), np.zeros((2, 3)))
    assert tt.einsum("ij,ij->", tt.ones((0, 3)), tt.ones((0, 3))).item() == 0


# ---- what it becomes

COMMON = [
    ("ij,jk->ik", [(5, 6), (6, 7)], ["matmul"]),
    ("ij,kj->ik", [(5, 6), (7, 6)], ["matmul"]),
    ("ji,jk->ki", [(6, 5), (6, 7)], ["matmul"]),
    ("bij,bjk->bik", [(3, 5, 6), (3, 6, 7)], ["matmul"]),
    ("ij,j->i", [(5, 6), (6,)], ["matmul"]),
    ("j,ij->i", [(6,), (5, 6)], ["matmul"]),
    ("bhqd,bhkd->bhqk", [(2, 3, 5, 6), (2, 3, 7, 6)], ["matmul"]),
    ("bqhd,bkhd->bhqk", [(2, 5, 3, 6), (2, 7, 3, 6)], ["matmul"]),
    ("bhqk,bkhd->bqhd", [(2, 3, 5, 7), (2, 7, 3, 6)], ["matmul"]),
    ("bsd,dhk->bshk", [(2, 3, 4), (4, 5, 6)], ["matmul"]),
    ("bshk,hkd->bsd", [(2, 3, 5, 6), (5, 6, 4)], ["matmul"]),
    ("bsd,bse->de", [(2, 3, 4), (2, 3, 5)], ["matmul"]),
    ("...d,de->...e", [(2, 3, 4), (4, 5)], ["matmul"]),
    ("i,j->ij", [(5,), (6,)], ["multiply"]),
    ("ij,ij->ij", [(5, 6), (5, 6)], ["multiply"]),
    ("i,i->", [(5,), (5,)], ["multiply sum"]),
    ("ij,ji->", [(5, 6), (6, 5)], ["multiply sum"]),
    ("bi,bi->b", [(50, 6), (50, 6)], ["multiply sum"]),
    ("ij->j", [(5, 6)], ["sum"]),
    ("ij->ji", [(5, 6)], ["view"]),
    ("ii->i", [(5, 5)], ["view"]),
    ("biii->ib", [(2, 5, 5, 5)], ["view"]),
    ("ii", [(5, 5)], ["view", "sum"]),
    ("ij,k->k", [(5, 6), (7,)], ["sum", "multiply"]),
]


@pytest.mark.parametrize(("spec", "shapes", "wanted"), COMMON, ids=[c[0] for c in COMMON])
def test_common_cases_copy_nothing(spec: str, shapes: list[tuple[int, ...]], wanted: list[str]) -> None:
    arrays = [whole(*s, seed=i) for i, s in enumerate(shapes)]
    tensors = [tt.asarray(a) for a in arrays]
    assert rows(spec, *tensors) == wanted
    assert tt.einsum_path(spec, *tensors).copies == 0
    before = launch.counters.hidden_copies
    same(tt.einsum(spec, *tensors), np.einsum(spec, *arrays))
    assert launch.counters.hidden_copies == before


def test_transposes_and_diagonals_are_views() -> None:
    x = tt.zeros((3, 3))
    tt.einsum("ij->ji", x)[0, 1] = 5
    tt.einsum("ii->i", x).copy_(1)
    same(x, [[1, 0, 0], [5, 1, 0], [0, 0, 1]])


def test_a_diagonal_whose_axes_do_not_merge_reads_only_its_elements() -> None:
    a = whole(4, 3, 4)
    assert rows("iji->ij", tt.asarray(a)) == ["arange gather"]
    same(tt.einsum("iji->ij", tt.asarray(a)), np.einsum("iji->ij", a))


def test_a_copy_that_must_be_made_is_in_the_path() -> None:
    a, b = whole(40, 50, 4), whole(50, 40, 4)
    x, y = tt.asarray(a), tt.asarray(b)
    path = tt.einsum_path("ijk,jil->kl", x, y)
    assert path.copies == 1
    assert path.contractions[0].rows == "copy matmul"
    same(tt.einsum("ijk,jil->kl", x, y), np.einsum("ijk,jil->kl", a, b))


def test_rows_that_do_not_merge_stay_apart_where_a_copy_costs_more() -> None:
    a, b = whole(2, 600, 300)[:, :500], whole(300, 4)
    path = tt.einsum_path("bsd,de->bse", tt.asarray(a), tt.asarray(b))
    assert [c.rows for c in path.contractions] == ["matmul"]
    same(tt.einsum("bsd,de->bse", tt.asarray(a), tt.asarray(b)), a @ b)


def test_a_chain_takes_the_cheap_order() -> None:
    sizes = (10, 300, 5, 200, 4)
    spec = "ab,bc,cd,de->ae"
    path = tt.einsum_path(spec, *(tt.Spec((m, n)) for m, n in pairwise(sizes)))
    assert path.flops == 2 * (10 * 300 * 5 + 5 * 200 * 4 + 10 * 5 * 4)
    assert path.naive_flops == 4 * 10 * 300 * 5 * 200 * 4
    assert path.largest == tt.Spec((10, 5))
    assert len(path.contractions) == 3


@pytest.mark.parametrize("n", [3, 4, 5])
def test_a_chain_that_ends_in_a_vector_never_multiplies_matrices(n: int) -> None:
    letters = "abcdefg"
    spec = ",".join(letters[i : i + 2] for i in range(n - 1)) + f",{letters[n - 1]}->a"
    specs = [tt.Spec((50, 50))] * (n - 1) + [tt.Spec((50,))]
    assert tt.einsum_path(spec, *specs).flops == 2 * 50 * 50 * (n - 1)


def test_the_order_is_chosen_by_flops_and_bytes() -> None:
    """Outer products first need fewer flops here than bytes to hold them."""
    path = tt.einsum_path("i,j,ij->", tt.Spec((200,)), tt.Spec((200,)), tt.Spec((200, 200)))
    assert path.largest == tt.Spec((200,))


# ---- the path


def test_a_path_prints_a_line_for_each_contraction() -> None:
    shapes = ((10, 1000), (1000, 5), (5, 500))
    path = tt.einsum_path("ij,jk,kl->il", *(tt.Spec(s) for s in shapes))
    assert str(path).splitlines() == [
        "ij,jk,kl->il: f32[10,1000], f32[1000,5], f32[5,500]",
        "  1  ij,jk->ik  matmul  f32[10,5]    100,000 flops  60,200 bytes  0 copies",
        "  2  kl,ik->il  matmul  f32[10,500]   50,000 flops  30,200 bytes  0 copies",
        "  150,000 flops (naive 75,000,000), 90,400 bytes, 0 copies, largest intermediate f32[10,5] (200 bytes)",
    ]


def test_a_second_call_finds_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = tt.ones((3, 4)), tt.ones((4, 5))
    tt.einsum("ij,jk->ik", x, y)
    with monkeypatch.context() as patched:
        patched.setattr("tritium.contract.einsum.plan", None)
        assert tt.einsum("ij,jk->ik", x, y).tolist() == [[4.0] * 5] * 3
    tt.einsum("ij,jk->ik", x, y.numpy())
    before = plan.cache_info()
    tt.einsum("ij,jk->ik", x, y.numpy())
    after = plan.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)
    assert after.maxsize == PATH_CACHE_SIZE


def test_another_layout_has_its_own_plan() -> None:
    a = whole(40, 50, 4)
    same(tt.einsum("ijk->k", tt.asarray(a)), a.sum((0, 1)))
    turned = np.asfortranarray(a)
    same(tt.einsum("ijk->k", tt.asarray(turned)), a.sum((0, 1)))
    x, y = tt.asarray(a), tt.asarray(turned)
    assert tt.einsum_path("ijk,ijl->kl", x, x).copies == 0
    assert tt.einsum_path("ijk,ijl->kl", x, y).copies == 1


def test_a_path_is_plain_data() -> None:
    one, two = (tt.einsum_path("ij,jk->ik", tt.Spec((2, 3)), tt.Spec((3, 4))) for _ in range(2))
    assert one == two
    assert one.steps[0].op is tt.matmul


def test_the_order_search_is_imported_for_three_operands_only() -> None:
    code = (
        "import sys, tritium as tt; x = tt.ones((2, 2)); tt.einsum('ij,jk->ik', x, x); a = 'opt_einsum' in sys.modules\n"
        "tt.einsum('ij,jk,kl', x, x, x); print(a, 'opt_einsum' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_graph_shows_the_rows() -> None:
    graph = tt.trace(lambda a, b, c: tt.einsum("ij,jk,kl->il", a, b, c), *(tt.Spec((4, 4)),) * 3)
    assert [n.op.name for n in graph.order() if n.op.name != "given"] == ["matmul", "matmul"]


# ---- quantised weights


@pytest.fixture
def weights() -> tt.quant.Quantized:
    return tt.quant.ternary(tt.randn((12, 40), seed=1))


@pytest.mark.parametrize("make", [lambda q: q, lambda q: q.tiled()], ids=["packed", "tiled"])
def test_scaled_weights_multiply_activations(weights: tt.quant.Quantized, make: Any) -> None:
    x = tt.randn((2, 3, 40), seed=2)
    want = weights.matmul(x).numpy()
    q = make(weights)
    assert rows("bsk,nk->bsn", x, q) == ["quantized_matmul"]
    same(tt.einsum("bsk,nk->bsn", x, q), want)
    same(tt.einsum("nk,bks->nbs", q, x.mT), np.moveaxis(want, -1, 0))


def test_grouped_scales_go_along() -> None:
    q = tt.quant.int4(tt.randn((12, 128), seed=1), group=64)
    x = tt.randn((3, 128), seed=2)
    same(tt.einsum("mk,nk->mn", x, q), q.matmul(x).numpy())


def test_packed_integers_multiply_i8(weights: tt.quant.Quantized) -> None:
    x = tt.randint(-100, 100, (3, 40), seed=0, dtype=tt.i8)
    got = tt.einsum("mk,nk->mn", x, weights.data)
    assert got.dtype is tt.i32
    same(got, x.numpy().astype(int) @ tt.repack(weights.data, tt.i8).numpy().astype(int).T)


def test_weights_in_a_chain_are_applied_to_activations_first(weights: tt.quant.Quantized) -> None:
    second = tt.quant.ternary(tt.randn((5, 12), seed=3))
    x = tt.randn((4, 40), seed=2)
    want = second.matmul(weights.matmul(x)).numpy()
    for spec, xs in (("nk,pn,mk->mp", (weights, second, x)), ("mk,nk,pn->mp", (x, weights, second))):
        assert rows(spec, *xs) == ["quantized_matmul", "quantized_matmul"]
        same(tt.einsum(spec, *xs), want)


def test_weights_can_be_traced(weights: tt.quant.Quantized) -> None:
    x = tt.randn((4, 40), seed=2)
    graph = tt.trace(lambda x: tt.einsum("mk,nk->mn", x, weights), x)
    same(graph(x), weights.matmul(x).numpy())


def test_half_weights_are_ordinary_tensors() -> None:
    q = tt.quant.fp16(tt.asarray(whole(5, 6)))
    x = whole(3, 6)
    same(tt.einsum("mk,nk->mn", tt.asarray(x), q), x @ whole(5, 6).T)


@pytest.mark.parametrize("spec", ["mn,nk->mk", "mk,nk->mnk", "mk,nk->m", "mk,kk->m", "nk,nk->n", "mk,nk->kmn"])
def test_weights_elsewhere_ask_to_be_dequantized(spec: str) -> None:
    q = tt.quant.ternary(tt.randn((6, 6), seed=0))
    operands = [q if t in ("nk", "kk") else tt.ones((6, 6)) for t in spec.partition("->")[0].split(",")]
    with pytest.raises(DTypeError, match=r"dequantize\(\)"):
        tt.einsum(spec, *operands)


def test_weights_alone_ask_to_be_dequantized(weights: tt.quant.Quantized) -> None:
    for operand in (weights, weights.data):
        with pytest.raises(DTypeError, match=r"dequantize\(\)"):
            tt.einsum("nk->kn", operand)
    with pytest.raises(DTypeError, match=r"zero points.*dequantize\(\)"):
        tt.einsum("mk,nk->mn", tt.ones((2, 6)), tt.quant.int8(tt.randn((3, 6), seed=0), symmetric=False))
    with pytest.raises(DTypeError, match=r"dequantize\(\)"):  # a size of 1 would have to be repeated
        tt.einsum("mk,nk->mn", tt.ones((2, 5)), tt.quant.ternary(tt.randn((3, 1), seed=0)))
    with pytest.raises(DTypeError, match=r"take i8"):
        tt.einsum("mk,nk->mn", tt.ones((2, 40)), weights.data)


# ---- errors

A, B = tt.Spec((2, 3)), tt.Spec((4, 5))
WRONG = [
    ("i1,jk", (A, B), ArgumentError, "'1' is no index"),
    ("ij->i->j", (A,), ArgumentError, "'-' is no index"),
    ("ij->i,j", (A,), ArgumentError, "one term, given 'i,j'"),
    ("ij,jk", (A,), ArgumentError, "names 2 operands, 1 given"),
    ("", (), ArgumentError, "names 1 operand, 0 given"),
    ("ijk", (A,), ShapeError, r"needs 3 axes, but operand 0 \(f32\[2,3\]\) has 2"),
    ("i", (A,), ShapeError, "needs 1 axis,"),
    ("ij...k", (A,), ShapeError, "at least 3 axes"),
    ("ij,jk->ik", (A, B), ShapeError, r"index 'j' has size 3 in operand 0 \(f32\[2,3\]\) and 4 in operand 1 \(f32\[4,5\]\)"),
    ("ii", (A,), ShapeError, "index 'i' is repeated in operand 0 .* sizes 2 and 3"),
    ("i,ii->i", (tt.Spec((3,)), tt.Spec((1, 3))), ShapeError, "repeated in operand 1"),
    ("ij->k", (A,), ArgumentError, "index 'k' of the result is in no operand"),
    ("ij->ii", (A,), ArgumentError, "index 'i' is in the result twice"),
    ("..j", (A,), ArgumentError, "'.' out of place"),
    ("i...j...", (A,), ArgumentError, "'.' out of place"),
    ("...j->j", (A,), ArgumentError, "the result has no '...'"),
    ("ij->i", (tt.Spec((2, 3), tt.bool),), DTypeError, "bool has no arithmetic"),
    ("ij,ij->ij", (tt.Spec((2, 3), tt.bool),) * 2, DTypeError, "bool has no arithmetic"),
    ("ij", ("text",), ArgumentError, "operand 0 is str"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "operands", "error", "match"), WRONG, ids=[w[0] for w in WRONG])
def test_errors_say_what_is_wrong(spec: str, operands: Any, error: type[TritiumError], match: str) -> None:
    with pytest.raises(error, match=match):
        tt.einsum_path(spec, *operands)


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ((tt.ones(3),), "followed by a list"),
        ((tt.ones(3), 0), "followed by a list"),
        ((tt.ones(3), [0.5]), "0.5 is no index"),
        ((tt.ones(3), [True]), "True is no index"),
        ((tt.ones(3), [1 << 16]), "65536 is no index; use integers from 0 to 65535"),
        ((tt.ones(3), [-1]), "-1 is no index"),
    ],
)
def test_errors_of_lists_say_what_is_wrong(args: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        tt.einsum(*args)


def test_a_spec_has_no_value_to_sum() -> None:
    with pytest.raises(ArgumentError, match="operand 0 is Spec"):
        tt.einsum("ij", A)


@pytest.mark.parametrize("first", [0, 40, 300, 55_000, 65_400])
def test_a_chain_of_many_tensors_with_numbered_indices(first: int) -> None:
    n = 70
    rng = np.random.default_rng(first)
    arrays = [rng.integers(-1, 2, (2, 2)).astype(np.int64) for _ in range(n)]
    args: list[Any] = []
    for i, a in enumerate(arrays):
        args += [tt.asarray(a), [first + i, first + i + 1]]
    wanted = np.eye(2, dtype=np.int64)
    for a in arrays:
        wanted = wanted @ a
    np.testing.assert_array_equal(tt.einsum(*args, [first + n, first]).numpy(), wanted.T)
    np.testing.assert_array_equal(tt.einsum(*args).numpy(), wanted)
    out = tt.zeros((2, 2), dtype="i64")
    assert tt.einsum(*args, [first, first + n], out=out) is out
    np.testing.assert_array_equal(out.numpy(), wanted)

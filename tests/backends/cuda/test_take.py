"""Rows of a table by their numbers on a GPU: NumPy's bits for every dtype, zeros and a word of it for what names no row.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium import dtype as dt, ops
from tritium.layout import Layout
from tritium.op import Spec
from triton_runs import INTERPRETED, PLACE, built, compiles, gpu_rows, in_both_modes, kernels_of, passes, runs, spilled

torch = pytest.importorskip("torch", reason="takes on CUDA need PyTorch: pip install torch triton")
if importlib.util.find_spec("triton") is None:
    pytest.skip("takes on CUDA need Triton: pip install torch triton", allow_module_level=True)

DTYPES = tuple(t for t in dt.ALL if not t.is_packed)


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


kernels = kernels_of("take")


def table(shape: tuple[int, ...], t: dt.DType, seed: int = 0) -> tuple[Any, Any]:
    """Random bits as a tensor of a dtype, and those bytes, row by row."""
    made = torch.empty(shape, dtype=getattr(torch, t.long_name), device=PLACE)
    high = 2 if t is dt.bool_ else 256
    bytes_ = np.random.default_rng(seed).integers(0, high, (*shape, t.nbytes), np.uint8)
    made.view(-1).view(torch.uint8).copy_(torch.from_numpy(bytes_.reshape(-1)))
    return made, bytes_


def bits(x: Any) -> Any:
    return x.cpu().reshape(-1).view(torch.uint8).numpy()


def check(x: Any, bytes_: Any, at: Any) -> None:
    """What is taken, against NumPy."""
    n = x.shape[0]
    got, outside = kernels().take(x, torch.from_numpy(at).to(PLACE))
    bad = (at < -n) | (at >= n)
    assert bool(outside.any()) == bool(bad.any())
    assert got.dtype is x.dtype
    assert tuple(got.shape) == (*at.shape, *x.shape[1:])
    padded = np.concatenate([bytes_, np.zeros((1, *bytes_.shape[1:]), np.uint8)])
    want = padded[np.where(bad, n, np.where(at < 0, at + n, at))]
    np.testing.assert_array_equal(bits(got), want.reshape(-1))


@runs
@settings(max_examples=60 if INTERPRETED else 300, deadline=None)
@given(
    st.integers(0, 9), st.lists(st.integers(0, 40), max_size=2), st.lists(st.integers(0, 6), max_size=3), st.sampled_from(DTYPES),
    st.booleans(), st.booleans(), st.integers(0, 2**32),
)  # fmt: skip
def test_any_rows_agree_with_numpy(
    n: int, row: list[int], shape: list[int], t: dt.DType, wide: bool, some_outside: bool, seed: int
) -> None:
    reach = n + 3 if some_outside else n
    if not reach:
        shape = [0]
    kind = np.int64 if wide else np.int32
    at = np.asarray(np.random.default_rng(seed).integers(-reach, max(reach, 1), tuple(shape)), kind)
    check(*table((n, *row), t, seed), at)


@runs
@pytest.mark.parametrize("t", DTYPES, ids=str)
def test_rows_longer_than_a_program_takes_in_every_dtype(t: dt.DType) -> None:
    check(*table((5, 1031), t), np.array([[4, -1], [0, -5], [2, 2]], np.int32))


@runs
def test_more_numbers_than_a_program_takes() -> None:
    at = np.random.default_rng(1).integers(-7, 7, 1500)
    check(*table((7,), dt.f32), at)
    check(*table((7, 3), dt.f16), at)


@runs
@pytest.mark.parametrize("bad", [7, -8, 2**31 - 1, -(2**31), 2**40, -(2**63), 2**63 - 1])
def test_a_number_outside_reads_nothing_and_is_told(bad: int) -> None:
    at = np.full(700, 3, np.int64)
    at[613] = bad
    check(*table((7,), dt.i64), at)


@runs
def test_no_numbers_no_rows_and_rows_of_nothing() -> None:
    take = kernels().take
    x = torch.ones((4, 3), device=PLACE)
    got, outside = take(x, torch.empty((2, 0), dtype=torch.int32, device=PLACE))
    assert got.shape == (2, 0, 3)
    assert outside.numel() == 0
    got, outside = take(x[:, :0], torch.tensor([3, 4], device=PLACE))
    assert got.shape == (2, 0)
    assert bool(outside.any())
    got, outside = take(x[:0], torch.tensor(0, device=PLACE))
    assert got.tolist() == [0, 0, 0]
    assert bool(outside.any())


@runs
def test_views_of_a_table_and_of_numbers() -> None:
    x, bytes_ = table((9, 5), dt.f16)
    check(x[1:], bytes_[1:], np.array([0, -1]))  # rows of 10 bytes from byte 10 on
    check(x[:, 1:], bytes_[:, 1:], np.array([3, 8]))
    y, its = table((37,), dt.u8)
    check(y[3:35].view(4, 8), its[3:35].reshape(4, 8, 1), np.array([3, 1]))  # whole words that lie between words
    at = np.arange(8)
    got, _ = kernels().take(x, torch.from_numpy(at).to(PLACE)[::3])
    np.testing.assert_array_equal(bits(got), bytes_[::3][:3].reshape(-1))
    columns = torch.from_numpy(np.array([[3, 8, 70], [80, -1, 1], [2, 9, 90]], np.int32)).to(PLACE)
    got, outside = kernels().take(x, columns[:, 1:2])
    assert tuple(got.shape) == (3, 1, 5)
    assert bool(outside.any())
    np.testing.assert_array_equal(bits(got[:2]), bytes_[[8, 8]].reshape(-1))
    got, outside = kernels().take(x, columns[:2, :2].T)  # at no single stride
    assert outside.any()
    np.testing.assert_array_equal(bits(got[[0, 1, 1], [0, 0, 1]]), bytes_[[3, 8, 8]].reshape(-1))


@runs
def test_one_launch_gives_rows_and_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of torch's but new memory: what a graph of it holds."""
    from torch.utils._python_dispatch import TorchDispatchMode

    called: list[str] = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(fn.overloadpacket.__name__)
            return fn(*args, **(kwargs or {}))

    module = kernels()
    x, places = torch.ones((8, 640), device=PLACE), torch.zeros((8, 3), dtype=torch.int32, device=PLACE)
    launched = []
    monkeypatch.setattr(module, "take_kernel", {(8,): lambda *xs, **options: launched.append((xs[6], options))})
    for at in (places[:, :1].contiguous(), places[:, 1:2]):
        with Calls():
            module.take(x, at)
    assert [(step, o["ROWS"], o["COLUMNS"]) for step, o in launched] == [(1, 2, 256), (3, 2, 256)]
    assert set(called) <= {"detach", "empty", "view", "_reshape_alias"}  # none of them launches


# ---- as rows


def rows() -> tuple[Any, list[Any]]:
    kernels()
    return gpu_rows()


def chosen(found: Any, row: Any, layouts: Any, *specs: Spec, **attrs: Any) -> Any:
    return next(k for k in found[row] if k.accepts is None or k.accepts(specs, attrs, layouts))


@runs
@pytest.mark.parametrize("inside", [True, False])
def test_rows_of_take_and_index_have_torch_s_results_and_doubts(inside: bool) -> None:
    found, doubts = rows()
    x, i = Spec((5, 4), dt.f32), Spec((3,), dt.i64)
    given_x, given_i = (
        torch.arange(20.0, device=PLACE).view(5, 4),
        torch.tensor([1, -1, 4 if inside else 5], device=PLACE),
    )
    for row, attrs in ((ops.take, {"axis": 0}), (ops.gather, {"key": ("at", (0, 4, 1))})):
        made = []
        for kernel in found[row][:2]:
            made.append(kernel.fn(Spec((3, 4), dt.f32), **attrs)(given_x, given_i))
        assert chosen(found, row, (None, None), x, i, **attrs).name == "triton"
        assert torch.equal(made[0][:2], made[1][:2])
        assert torch.equal(made[0], made[1]) == inside
        assert doubts[-1] == doubts[-2]
        assert doubts[-1][0] != inside
        assert "an index is outside an axis of size 5." in doubts[-1][1]


@runs
def test_what_is_not_taken_is_torch_s() -> None:
    found, _ = rows()
    x, i = Spec((5, 4), dt.f32), Spec((3,), dt.i64)
    flat, strided = Layout((5, 4), (4, 1), 0), Layout((5, 4), (1, 5), 0)
    at = Layout((3,), (1,), 0)
    assert chosen(found, ops.take, (flat, at), x, i, axis=0).name == "triton"
    assert chosen(found, ops.take, (flat, at), x, i, axis=-2).name == "triton"
    assert chosen(found, ops.take, (at, at), Spec((3,), dt.u64), i, axis=None).name == "triton"
    assert chosen(found, ops.take, (flat, at), x, i, axis=1).name == "torch"
    assert chosen(found, ops.take, (strided, at), x, i, axis=0).name == "torch"
    assert chosen(found, ops.take, (flat, at), x, Spec((3,), dt.u8), axis=0).name == "torch"
    assert chosen(found, ops.take, (flat, at), x, Spec((3,), dt.u32), axis=0).name == "torch int64"
    assert chosen(found, ops.gather, (flat, at), x, i, key=("at", (0, 4, 1))).name == "triton"
    assert chosen(found, ops.gather, (flat, at), x, i, key=((0, 5, 1), "at")).name == "torch"
    assert chosen(found, ops.gather, (flat, at), x, i, key=("at", (0, 4, 2))).name == "torch"
    assert chosen(found, ops.gather, (flat, at, at), x, i, i, key=("at", "at")).name == "torch"


# ---- without a GPU


@compiles
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize("word", ["i8", "i16", "i32", "i64"])
@pytest.mark.parametrize(
    "ones", [(), ("step",), ("count", "step"), ("size", "count", "step", "width", "blocks")], ids=len
)
def test_it_compiles_for_every_gpu(capability: int, word: str, ones: tuple[str, ...]) -> None:
    """Triton makes a constant of a size that is 1."""
    fixed = {"ROWS": 2, "COLUMNS": 256, "EARLY": capability == 90} | dict.fromkeys(ones, 1)
    kinds = {"table": f"*{word}", "out": f"*{word}", "indices": "*i32", "outside": "*i1"}
    made = built(kernels().take_kernel, kinds, fixed, capability, num_warps=2)
    assert ".local" not in made.asm["ptx"]
    assert spilled(made) == 0

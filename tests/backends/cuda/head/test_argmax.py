"""Where the largest of long rows stands on a GPU: NumPy's places, for ties, NaN, infinities and both zeros.

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
from triton_runs import INTERPRETED, PLACE, built, compiles, in_both_modes, kernels_of, passes, runs

torch = pytest.importorskip("torch", reason="argmax on CUDA needs PyTorch: pip install torch triton")
if importlib.util.find_spec("triton") is None:
    pytest.skip("argmax on CUDA needs Triton: pip install torch triton", allow_module_level=True)
from cuda_arrays import Calls, Launches  # noqa: E402

DTYPES = (dt.f32, dt.f16, dt.bf16)
LOGITS = 128_256  # a row of them, as a model of many words has


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


kernels = kernels_of("head.argmax")


def tensor(x: Any, t: dt.DType = dt.f32) -> Any:
    """As a tensor of a dtype, which rounds: several become equal."""
    return torch.from_numpy(np.asarray(x, np.float32)).to(PLACE).to(getattr(torch, t.long_name))


def check(x: Any) -> None:
    """The places that are found, against NumPy."""
    got = kernels().argmax(x)
    want = x.float().cpu().numpy().argmax(axis=-1)
    assert got.dtype is torch.int64
    assert tuple(got.shape) == tuple(x.shape[:-1])
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@pytest.fixture(params=[1, 4, 264])
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many programs for all rows, whatever the GPU is."""
    module = kernels()
    found = module.gpu(torch.device(PLACE))
    monkeypatch.setattr(module, "EACH", 1)
    monkeypatch.setattr(module, "gpu", lambda device: found._replace(processors=request.param))


values = st.sampled_from([-np.inf, -1.5, -1e-45, -0.0, 0.0, 1e-45, 2.25, 3e38, np.inf, np.nan, -np.nan])


@runs
@settings(max_examples=80 if INTERPRETED else 400, deadline=None)
@given(st.data(), st.integers(1024, 5000), st.integers(1, 4), st.sampled_from(DTYPES), st.sampled_from([1, 5, 264]))
def test_any_rows_agree_with_numpy(data: st.DataObject, size: int, rows: int, t: dt.DType, programs: int) -> None:
    """Random ones; one value with a few others in it, which stand where pieces meet; values of a small choice."""
    module = kernels()
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    kind = data.draw(st.sampled_from(["random", "few", "choice"]))
    if kind == "random":
        x = random.standard_normal((rows, size))
    elif kind == "few":
        x = np.full((rows, size), data.draw(values))
        edges = st.sampled_from([0, 1, 1023, 1024, 2047, 2048, size - 1]).filter(lambda i: i < size)
        for _ in range(data.draw(st.integers(0, 4))):
            x[data.draw(st.integers(0, rows - 1)), data.draw(edges | st.integers(0, size - 1))] = data.draw(values)
    else:
        x = random.choice(data.draw(st.lists(values, min_size=1, max_size=4)), (rows, size))
    found = module.gpu(torch.device(PLACE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "gpu", lambda device: found._replace(processors=programs))
        check(tensor(x, t))


@runs
@pytest.mark.parametrize("t", DTYPES, ids=str)
@pytest.mark.parametrize("row", [
    [0.0, -0.0], [-0.0, 0.0], [-0.0, -1.0], [-1.0, -0.0], [-np.inf, -np.inf], [np.inf, np.inf], [np.inf, np.nan],
    [np.nan, np.inf], [np.nan, np.nan], [-np.nan, np.inf], [np.nan, -np.nan], [1.0, -np.nan],
], ids=str)  # fmt: skip
@pytest.mark.usefixtures("shared")
def test_two_values_in_a_row_of_the_least(row: list[float], t: dt.DType) -> None:
    """Side by side, and in pieces that different programs look at."""
    x = np.full((3, 5000), -np.inf)
    for i, at in enumerate([(0, 1), (4997, 4999), (900, 3100)]):
        x[i, at] = row
    check(tensor(x, t))


@runs
@pytest.mark.parametrize("t", DTYPES, ids=str)
@pytest.mark.usefixtures("shared")
def test_a_row_of_logits(t: dt.DType) -> None:
    x = tensor(np.random.default_rng(0).standard_normal((1, LOGITS)), t)
    check(x)
    for last in (float("inf"), float("nan")):
        x[0, LOGITS - 1] = last
        check(x)
    check(torch.full_like(x, float("-inf")))


@runs
@pytest.mark.usefixtures("shared")
def test_subnormals_are_not_zeros() -> None:
    x = np.zeros((2, 1100), np.float32)
    x[0, 700], x[1] = 1e-45, -1e-45
    x[1, 1030] = -0.0
    check(tensor(x))


@runs
@pytest.mark.parametrize("t", DTYPES, ids=str)
@pytest.mark.usefixtures("shared")
def test_views_of_any_strides(t: dt.DType) -> None:
    x = tensor(np.random.default_rng(2).standard_normal((4, 3, 2200)), t)
    check(x[::2, 1])
    check(x[1:, :, 7:1100])  # rows that lie between words
    check(x[:, ::2])
    check(x[0, :1].expand(5, 2200))
    check(x.permute(1, 0, 2))
    check(x[0, 0])
    check(x.reshape(2, 13200)[:, ::3])
    check(x.reshape(2200, 12).T)
    check(x[:0])


@runs
@pytest.mark.parametrize("size", [1, 2, 1023])
def test_short_rows(size: int) -> None:
    check(tensor(np.random.default_rng(size).standard_normal((3, size))))


@runs
def test_rows_that_overlap() -> None:
    """Their stride is 1, of which Triton makes a constant."""
    check(tensor(np.random.default_rng(3).standard_normal(2000)).as_strided((5, 1500), (1, 1)))


@runs
@pytest.mark.parametrize(("rows", "grids"), [(1, [(1, 126), (1,)]), (8, [(8, 32), (8,)]), (300, [(300, 1)])], ids=str)
def test_few_rows_are_two_launches_and_many_are_one(
    rows: int, grids: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of torch's but new memory: what a graph of it holds."""
    calls, launches = Calls(), Launches()
    module = kernels()
    x = torch.empty((rows, LOGITS), device=PLACE)
    found = module.gpu(torch.device(PLACE))._replace(processors=132)
    for name, value in (("gpu", lambda _: found), ("pieces_kernel", launches), ("places_kernel", launches)):
        monkeypatch.setattr(module, name, value)
    with calls:
        module.argmax(x)
    assert launches.grids == grids
    assert set(calls.names) <= {"empty", "view", "_reshape_alias", "_unsafe_view"}  # none of them launches


@runs
@given(st.integers(1, 2**31 - 1), st.integers(1, 10**6), st.integers(1, 600))
def test_pieces_are_long_enough_and_share_the_programs(size: int, rows: int, programs: int) -> None:
    module = kernels()
    length = module.piece(size, rows, programs)
    parts = -(-size // length)
    assert length % module.LEAST == 0
    assert parts == 1 or parts * rows <= programs
    if size <= programs // rows * module.LEAST:
        assert length == module.LEAST


# ---- as a row


def rows_of_argmax() -> list[Any]:
    """The kernels of a GPU's row."""
    kernels()
    from tritium.backends.cuda import rows as cuda_rows
    from tritium.backends.torch import rows as torch_rows
    from tritium.backends.torch.space import Space

    space = Space(torch.device(PLACE), lambda *_: None)
    space.on_host = False
    found: list[Any] = cuda_rows.kernels(space, torch_rows.kernels(space), True)[ops.argmax]
    return found


@runs
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, -1, 2])
def test_the_row_has_torch_s_results(axis: int | None, keepdims: bool) -> None:
    x = tensor(np.random.default_rng(4).standard_normal((2, 3, 1500)))
    ours, torch_s = rows_of_argmax()[:2]
    assert (ours.name, torch_s.name) == ("triton", "torch")
    out = ops.argmax.rule(Spec((2, 3, 1500), dt.f32), axis=axis, keepdims=keepdims)
    got, want = (k.fn(out, axis=axis, keepdims=keepdims)(x) for k in (ours, torch_s))
    assert tuple(got.shape) == out.shape
    assert got.dtype is want.dtype is torch.int64
    assert torch.equal(got, want)


@runs
def test_what_is_not_taken_is_torch_s() -> None:
    found = rows_of_argmax()

    def name(shape: tuple[int, ...], axis: int | None, strides: Any = None, t: dt.DType = dt.f32) -> str:
        layout = None if strides is None else Layout(shape, strides, 0)
        given = (Spec(shape, t),), {"axis": axis, "keepdims": False}, (layout,)
        chosen: str = next(k.name for k in found if k.accepts is None or k.accepts(*given))
        return chosen

    for t in dt.ALL:
        if not t.is_packed:
            assert (name((2, 1024), 1, t=t) == "triton") == (t in DTYPES)
    assert name((2, 1024), -1, (1024, 1)) == "triton"
    assert name((2, 1024), -1, (5000, 1)) == "triton"
    assert name((2, 1024), None, (1024, 1)) == "triton"
    assert name((1024,), None, (1,)) == "triton"
    assert name((1024,), 0) == "triton"
    assert name((4, 3, 1024), 2, (6144, 2048, 1)) == "triton"
    assert name((32, 32), None, (32, 1)) == "triton"
    assert name((2, 1024), None, (5000, 1)) == "torch"
    assert name((4, 3, 1024), 2, (1024, 4096, 1)) == "torch"  # rows that do not follow each other at one stride
    assert name((2, 1024), 1, (1, 2)) == "torch"
    assert name((2, 1024), 1, (2048, 2)) == "torch"
    assert name((1024, 2), 0) == "torch"
    assert name((2, 1023), 1) == "torch"
    assert name((1, 2**31 - 1), 1) == "triton"
    assert name((1, 2**31), 1) == "torch"
    assert name((0, 1024), 1) == "torch"
    assert name((), None, ()) == "torch"


# ---- without a GPU


def ptx_of(name: str, capability: int, kinds: dict[str, str], fixed: dict[str, Any], warps: int, even: Any = ()) -> str:
    """Of a kernel. even: arguments that are multiples of 16."""
    fixed = fixed | {"EARLY": capability == 90}
    return str(built(getattr(kernels(), name), kinds, fixed, capability, even, num_warps=warps).asm["ptx"])


@compiles
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize("t", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("block", "whole"), [(1024, True), (1024, False), (4096, True), (4096, False)])
def test_pieces_compile_for_every_gpu(capability: int, t: str, block: int, whole: bool) -> None:
    kinds = {"x": f"*{t}", "out": "*i64"}
    ptx = ptx_of(
        "pieces_kernel", capability, kinds, {"WHOLE": whole, "BLOCK": block}, 8, ("x", "size", "stride", "length")
    )
    assert ".local" not in ptx
    assert ".ftz" not in ptx  # subnormals are not zeros
    assert "add.f32" in ptx or "add.rn.f32" in ptx  # of 0, which makes +0 of -0
    assert "ld.global.v" in ptx


@compiles
@pytest.mark.parametrize("wide", [{"stride": "i64"}, {"length": "i64"}, {"stride": "i64", "length": "i64"}], ids=str)
def test_sizes_beyond_32_bits_compile(wide: dict[str, str]) -> None:
    for t in ("fp32", "bf16"):
        ptx = ptx_of("pieces_kernel", 90, {"x": f"*{t}", "out": "*i64"} | wide, {"WHOLE": True, "BLOCK": 4096}, 8)
        assert ".local" not in ptx
    ptx_of("pieces_kernel", 90, {"x": "*fp32", "out": "*i64"}, {"WHOLE": True, "BLOCK": 4096, "stride": 1}, 8)


@compiles
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize(("block", "warps"), [(2, 1), (128, 1), (512, 4)])
def test_places_compile_for_every_gpu(capability: int, block: int, warps: int) -> None:
    ptx = ptx_of("places_kernel", capability, {"keys": "*i64", "out": "*i64"}, {"BLOCK": block}, warps)
    assert ".local" not in ptx

"""Rows of a quantised table by their numbers on a GPU: the bits of the definition for every dtype, zeros and a word of it for what names
no row.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium import dtype as dt, ops
from tritium.backends.reference import packed
from tritium.errors import BoundsError, QuantError
from tritium.op import Spec
from triton_runs import INTERPRETED, PLACE, built, compiles, gpu_rows, in_both_modes, kernels_of, passes, runs, spilled

torch = pytest.importorskip("torch", reason="tables on CUDA need PyTorch: pip install torch triton")
if importlib.util.find_spec("triton") is None:
    pytest.skip("tables on CUDA need Triton: pip install torch triton", allow_module_level=True)

DTYPES = (dt.i8, dt.i4, dt.tern2, dt.tern2_r64, dt.i8_r16, dt.i4_r32)


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


kernels = kernels_of("table")


def stored(values: Any, t: dt.DType) -> Any:
    data = packed.pack(values, t).data if t.is_packed else values
    return torch.from_numpy(data).to(PLACE)


def check(n: int, k: int, t: dt.DType, group: int | None, half: bool, at: Any, seed: int = 0) -> None:
    """Against NumPy: integers times scales, rounded once. group: None is one scale for each row, 0 one for all."""
    rng = np.random.default_rng(seed)
    low, high = t.values if t.is_packed else (-128, 127)
    values = rng.integers(low, high + 1, (n, k)).astype(np.int8)
    shape = (n,) if group is None else (n, -(-k // group)) if group else ()
    scale = np.asarray(rng.uniform(0.01, 2, shape), np.float16 if half else np.float32)
    found, outside, damaged = kernels().take_rows(
        stored(values, t), t, (n, k), torch.from_numpy(scale).to(PLACE), torch.from_numpy(at).to(PLACE), group or 0
    )
    bad = (at < -n) | (at >= n)
    steps = scale.astype(np.float32)
    spread = np.repeat(steps, group, 1)[:, :k] if group else steps[:, None] if group is None else np.full((n, 1), steps)
    wanted = np.concatenate([values.astype(np.float32) * spread, np.zeros((1, k), np.float32)])
    np.testing.assert_array_equal(found.cpu().numpy(), wanted[np.where(bad, n, np.where(at < 0, at + n, at))])
    assert bool(outside.any()) == bool(bad.any())
    assert not damaged.any()


@runs
@settings(max_examples=60 if INTERPRETED else 300, deadline=None)
@given(
    st.integers(1, 200), st.integers(1, 300), st.sampled_from(DTYPES), st.sampled_from([None, 0, 5, 64, 128]), st.booleans(),
    st.lists(st.integers(0, 4), max_size=2), st.booleans(), st.booleans(), st.integers(0, 2**32),
)  # fmt: skip
def test_any_rows_are_those_of_the_definition(
    n: int,
    k: int,
    t: dt.DType,
    group: int | None,
    half: bool,
    shape: list[int],
    wide: bool,
    some_outside: bool,
    seed: int,
) -> None:
    reach = n + 3 if some_outside else n
    kind = np.int64 if wide else np.int32
    check(
        n, k, t, group, half, np.asarray(np.random.default_rng(seed).integers(-reach, reach, tuple(shape)), kind), seed
    )


@runs
@pytest.mark.parametrize("t", DTYPES, ids=str)
def test_rows_longer_than_a_program_takes(t: dt.DType) -> None:
    check(70, 2600, t, 128, True, np.array([[69, -1], [0, -70]], np.int32))


@runs
@pytest.mark.parametrize("bad", [70, -71, 2**31 - 1, -(2**31), 2**40, -(2**63), 2**63 - 1])
def test_a_number_outside_reads_nothing_and_is_told(bad: int) -> None:
    at = np.full(9, 3, np.int64)
    at[6] = bad
    check(70, 130, dt.tern2, 64, True, at)


@runs
@pytest.mark.parametrize("t", [dt.tern2, dt.tern2_r64], ids=str)
def test_a_code_that_means_nothing_is_told_where_its_row_is_taken(t: dt.DType) -> None:
    bytes_ = stored(np.zeros((130, 128), np.int8), t)
    bytes_.view(-1)[0] = 255
    one = torch.ones((), device=PLACE)
    ids = torch.arange(130, device=PLACE)
    damaged = [bool(kernels().take_rows(bytes_, t, (130, 128), one, i, 0)[2].any()) for i in ids]
    assert [i for i, bad in enumerate(damaged) if bad] == ([0] if t is dt.tern2 else [0, 16, 32, 48])


@runs
def test_no_numbers_no_rows_and_rows_of_nothing() -> None:
    take, one = kernels().take_rows, torch.ones((), device=PLACE)
    table = stored(np.ones((4, 8), np.int8), dt.tern2)
    none = torch.empty((2, 0), dtype=torch.int32, device=PLACE)
    assert take(table, dt.tern2, (4, 8), one, none, 0)[0].shape == (2, 0, 8)
    some = torch.tensor([3, 1], device=PLACE)
    rows, outside, damaged = take(table[:, :0], dt.tern2, (4, 0), one, some, 0)
    assert rows.shape == (2, 0)
    assert not outside.any()
    assert not damaged.any()
    rows, outside, damaged = take(table[:0], dt.tern2, (0, 8), one, some, 0)
    assert not rows.any()
    assert bool(outside.all())
    assert not damaged.any()


@runs
def test_a_column_of_numbers_is_read_where_it_is() -> None:
    ids = np.array([[3, 68], [9, -1], [0, 7]], np.int32)
    values = np.random.default_rng(0).integers(-1, 2, (70, 40)).astype(np.int8)
    columns = torch.from_numpy(ids).to(PLACE)[:, 1]
    found = kernels().take_rows(
        stored(values, dt.tern2), dt.tern2, values.shape, torch.ones((), device=PLACE), columns, 0
    )[0]
    np.testing.assert_array_equal(found.cpu().numpy(), values[ids[:, 1]].astype(np.float32))


@runs
@pytest.mark.parametrize("damage", [False, True])
def test_as_a_row_it_has_torch_s_results_and_doubts(damage: bool) -> None:
    kernels()
    table, doubts = gpu_rows()
    found = table[ops.take_rows]
    specs = Spec((70, 128), dt.tern2), Spec((70, 2), dt.f16), Spec((3,), dt.i64)
    data = stored(np.random.default_rng(1).integers(-1, 2, (70, 128)).astype(np.int8), dt.tern2)
    if damage:
        data.view(-1)[0] = 255
    w, scale = packed.Packed(data, dt.tern2, (70, 128)), torch.full((70, 2), 0.5, dtype=torch.float16, device=PLACE)
    made = []
    for kernel in found[:2]:
        run = kernel.fn(Spec((3, 128), dt.f32), group=64)
        made.append(run(w, scale, torch.tensor([0, -1, 70 if damage else 4], device=PLACE)))
    accepts = found[0].accepts
    assert (found[0].name, accepts(specs, {}, None)) == ("triton", True)
    assert not accepts((Spec((70, 128), dt.tern5), *specs[1:]), {}, None)
    assert not accepts((*specs[:2], Spec((3,), dt.u8)), {}, None)
    assert torch.equal(made[0][1], made[1][1])
    assert torch.equal(made[0], made[1]) != damage
    assert doubts[:2] == doubts[2:]
    assert [(bad, error) for bad, _, error in doubts[:2]] == [(damage, BoundsError), (damage, QuantError)]


@compiles
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("t", DTYPES, ids=str)
def test_it_compiles_without_spills(t: dt.DType, capability: int) -> None:
    module = kernels()
    code = module.CODES[t]
    types = {
        "table": "*u8", "scale": "*fp16", "indices": "*i64", "out": "*fp32", "outside": "*i1", "damaged": "*i1",
    }  # fmt: skip
    fixed = {
        "COLUMNS": 1024, "LANES": 16 if t.rows > 1 else 0, "BITS": code.bits, "FLIP": code.flip, "LESS": code.less, "MOST": 1, "SCALED": 2,
        "EARLY": capability == 90,
    }  # fmt: skip
    assert not spilled(built(module.table_kernel, types, fixed, capability))

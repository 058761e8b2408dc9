"""Tensors to MLX and back: one copy in, none out until someone writes, and no Python frame for what nobody watches."""

from __future__ import annotations

import logging
import pickle
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tritium as tt
from tritium import buffer, dtype as dt, launch
from tritium.testing import LAYOUTS, laid

mx = pytest.importorskip("mlx.core", reason="MLX is not installed: pip install mlx", exc_type=ImportError)

HERE = tt.device("mlx:cpu")
WAYS: list[Callable[[tt.Tensor], tt.Tensor]] = [  # by native code where it can, and by Python
    lambda x: x.to("mlx").to("cpu"),
    lambda x: x.to(HERE).to(tt.device("cpu")),
    lambda x: x.to(device="mlx").to(device="cpu"),
]
native = pytest.mark.skipif(buffer.native is None, reason="the pure build moves by Python alone")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("kind", dt.ALL, ids=str)
def test_every_dtype_and_layout_comes_back_from_mlx(kind: dt.DType, how: str, way: Any) -> None:
    data = (np.arange(12).reshape(3, 4) % 3 - 1).astype(np.float32)
    x = tt.tensor(data).to(kind) if kind.is_packed else laid(data.astype(kind.numpy), how)
    back = way(x)
    assert (back.device, back.dtype, back.shape) == (tt.device("cpu"), kind, x.shape)
    assert back.is_contiguous()
    assert back.to("f64").tolist() == x.to("f64").tolist()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (1, 5, 1), (2, 3)])
def test_every_shape_comes_back_from_mlx(shape: tuple[int, ...], way: Any) -> None:
    x = tt.full(shape, 2.5)
    back = way(x)
    assert (back.shape, back.tolist()) == (shape, x.tolist())
    part = tt.asarray(np.arange(60.0, dtype=np.float32).reshape(5, 4, 3))[::-1, :1][
        2:3
    ]  # odd strides of axes of size 1
    assert way(part).tolist() == part.tolist()


@pytest.mark.parametrize("way", WAYS)
def test_what_comes_back_from_mlx_is_its_memory_until_it_is_written(way: Any) -> None:
    there = tt.randn((40, 30), seed=1).to("mlx")
    want = there.tolist()
    back = there.to("cpu") if way is WAYS[0] else there.to(device="cpu")
    assert back.storage.imported
    assert back.storage.address == np.array(there.storage.value, copy=False).ctypes.data
    before = tt.memory.stats()
    back[3, 4] = 7.0  # goes to a copy
    assert (tt.memory.stats() - before).allocations >= 1
    assert (back.storage.imported, back[3, 4].item()) == (False, 7.0)
    assert there.tolist() == want
    kept = there.to("cpu")
    there += 1.0  # another value, not another content
    there[0] = 0.0
    assert kept.tolist() == want
    seen = kept.numpy()  # which may be written
    seen[:] = 0.0
    assert kept.tolist() == np.zeros((40, 30)).tolist()


def test_what_comes_back_outlives_the_tensor_on_mlx() -> None:
    want = tt.randn((300, 300), seed=2)
    kept = [want.to("mlx").to("cpu") for _ in range(20)]
    filled = [mx.zeros((300, 300)) + i for i in range(50)]  # takes memory that was freed
    mx.eval(filled)
    assert all((x == want).all() for x in kept)
    assert pickle.loads(pickle.dumps(kept[0])).tolist() == want.tolist()
    clone = kept[1].clone()
    kept[1].zero_()
    assert (clone == want).all()


def test_a_write_after_the_way_to_mlx_stays_on_its_side() -> None:
    x = tt.ones((10, 10))
    for there in (x.to("mlx"), x.to(device="mlx")):
        x += 1.0
        assert there.tolist() == np.ones((10, 10)).tolist()
        x -= 1.0


def test_a_value_that_mlx_laid_out_in_another_way_comes_back_contiguous() -> None:
    there = tt.relu(tt.tensor(np.arange(12.0, dtype=np.float32).reshape(3, 4)).to("mlx").T)
    assert not np.array(there.storage.value, copy=False).flags.c_contiguous
    back = there.to("cpu")
    assert back.is_contiguous()
    assert back.tolist() == np.arange(12.0).reshape(3, 4).T.tolist()


def test_threads_move_values_that_share_what_is_written_down() -> None:
    base = tt.ones((64, 64)).to("mlx")
    lazy = [(base + 1.0) * float(i) for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        back = list(pool.map(lambda x: x.to("cpu")[0, 0].item(), lazy))
    assert back == [2.0 * i for i in range(40)]


# ---- counted, and by whom


def test_transfers_to_mlx_are_counted_by_either_way() -> None:
    x = tt.ones((10, 10))
    for way in WAYS:
        before = tt.memory.stats()
        way(x)
        change = tt.memory.stats() - before
        assert (change.transfers, change.transfer_bytes) == (2, 800)
    spent = launch.counters.transfer_ns
    x.to("mlx")
    assert 0 < launch.counters.transfer_ns - spent < 10**9


@native
def test_a_plain_move_to_mlx_and_back_has_no_frame_of_python_but_the_lock() -> None:
    x, names = tt.ones((10, 10)), []
    there = x.to("mlx")

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        x.to("mlx")
        there.to("cpu")
    finally:
        sys.setprofile(None)
    assert [n for n in names if n not in ("listener", "isEnabledFor")] == ["_lent"]


def test_those_who_watch_are_told_of_moves_to_mlx(caplog: pytest.LogCaptureFixture) -> None:
    x, events = tt.ones((10, 10)), []
    x.to("mlx").to("cpu")
    watcher = tt.watch(events.append)
    try:
        x.to("mlx").to("cpu")
    finally:
        tt.unwatch(watcher)
    assert [e.kernel for e in events if e.op is None] == ["cpu->mlx", "mlx->cpu"]
    with tt.track_memory() as m:
        x.to("mlx").to("cpu")
    assert [(t.source, t.target, t.count, t.nbytes) for t in m.transfers] == [
        ("cpu", "mlx", 1, 400),
        ("mlx", "cpu", 1, 400),
    ]
    with caplog.at_level(logging.DEBUG, "tritium.transfers"):
        x.to("mlx").to("cpu")
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == [
        "f32[10,10] from cpu to mlx",
        "f32[10,10] from mlx to cpu",
    ]


# ---- refused, and how fast


@pytest.mark.parametrize("algorithm", ["naive", "blocked", "parallel"])
def test_an_algorithm_that_mlx_ignores_is_refused_by_name(algorithm: str) -> None:
    a = tt.ones((4, 4), device="mlx")
    message = f"algorithm='{algorithm}' chooses among the products of the CPU, and MLX has one"
    for call in (tt.matmul, tt.compile(lambda x, y, algorithm: tt.matmul(x, y, algorithm=algorithm) + 1.0)):
        with pytest.raises(tt.errors.DeviceError, match=message):
            call(a, a, algorithm=algorithm)
    assert tt.matmul(a, a, algorithm="blas").tolist() == np.full((4, 4), 4.0).tolist()


def least(call: Callable[[], Any], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


@native
@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 1000, 2000])
def test_mlx_is_reached_as_fast_as_by_its_own_copies(size: int) -> None:
    x = tt.randn((size, size), seed=1)
    there, value = x.to("mlx"), mx.array(x.numpy())
    mx.eval(value)
    times = 20_000_000 // size**2
    ratios = []
    for _ in range(5):
        ways = [(lambda: x.to("mlx"), lambda: mx.array(x.numpy())), (lambda: there.to("cpu"), lambda: np.array(value))]
        ratios.append([least(ours, times) / least(theirs, times) for ours, theirs in ways])
    there_ratio, back_ratio = np.min(ratios, 0)
    assert there_ratio < 1.3
    assert back_ratio < 1.0

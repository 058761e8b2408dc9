"""Launches that are recorded and replayed: other inputs and results in their places, memory between kernels shared, nothing else new."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="launches on CUDA need PyTorch: pip install torch triton")
from tritium.backends.cuda.linear import replay  # noqa: E402

HAS_GPU = torch.cuda.is_available()


class Kernel:
    """As Triton's: it is launched by grid and arguments, and gives what is compiled, which is launched by all arguments in order."""

    arg_names = ("x", "q", "out", "K", "BLOCK", "EARLY")

    def __init__(self) -> None:
        self.compiled: list[tuple[Any, ...]] = []
        self.replayed: list[tuple[tuple[int, ...], tuple[Any, ...], int]] = []
        self.bases: list[int] = []  # of boxes, at the time of a launch

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def first(*args: Any, **others: Any) -> Any:
            self.compiled.append((grid, args, others))
            return Compiled(self)

        return first


class Compiled:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*args: Any, stream: int) -> None:
            self._kernel.replayed.append((grid, args, stream))
            self._kernel.bases += [a.base.data_ptr() for a in args if isinstance(a, Box)]

        return run


class Box:
    def __init__(self, base: Any) -> None:
        self.base = base


@pytest.fixture(name="on_cpu", autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "stream_of", lambda device: 7)
    monkeypatch.setattr(replay.Plans, "_can_replay", staticmethod(lambda x: x.numel() > 0))


def layer(kernel: Kernel, boxes: list[Box]) -> Any:
    """A call of two launches: from x to memory between them, from there to the result."""

    def call(x: Any) -> Any:
        q = replay.scratch((x.shape[0], 3), torch.int8, x.device)
        out = torch.empty((x.shape[0], 5))
        boxes.append(Box(out))
        replay.launch(kernel, (x.shape[0],), x, q, q, 3, BLOCK=64, EARLY=True, num_warps=4)
        replay.launch(kernel, (2, 3), q, boxes[-1], out, 3, BLOCK=32, EARLY=False, num_warps=8)
        return out

    return call


def test_a_plan_launches_with_other_inputs_and_results() -> None:
    kernel, boxes = Kernel(), list[Box]()
    plans = replay.Plans(layer(kernel, boxes))
    x, other = torch.ones(2, 4), torch.zeros(2, 4)
    plans(x)
    assert len(kernel.compiled) == 4  # once to make what is kept, once recorded
    y = plans(other)
    assert len(kernel.compiled) == 4
    (grid, args, stream), (late_grid, late, late_stream) = kernel.replayed
    assert (grid, late_grid, stream, late_stream) == ((2, 1, 1), (2, 3, 1), 7, 7)
    assert args[0] == other.data_ptr() != x.data_ptr()
    assert args[3:] == (3, 64, True)
    assert late[2] == y.data_ptr()
    assert kernel.bases == [y.data_ptr()]
    assert late[1].base is None  # a plan keeps no result
    assert args[1] == args[2] == late[0]  # the memory between them
    assert late[3:] == (3, 32, False)
    assert y.shape == (2, 5)


def test_another_shape_or_type_has_a_plan_of_its_own_and_old_ones_go() -> None:
    kernel = Kernel()
    plans = replay.Plans(layer(kernel, []))
    for rows in range(1, 2 * replay.MOST_PLANS):
        plans(torch.ones(rows, 4))
    assert len(plans._plans) == replay.MOST_PLANS
    before = len(kernel.compiled)
    plans(torch.ones(1, 4))
    assert len(kernel.compiled) == before + 4
    plans(torch.ones(1, 4).double())
    assert len(kernel.compiled) == before + 8


def test_memory_between_kernels_is_one_for_all_plans() -> None:
    kernel = Kernel()
    for rows in (4, 2):
        plans = replay.Plans(layer(kernel, []))
        plans(torch.ones(rows, 4))
        plans(torch.ones(rows, 4))
    (_, one, _), _, (_, two, _), _ = kernel.replayed
    assert one[1] == two[1]


def test_a_call_that_does_not_read_its_input_itself_is_never_replayed() -> None:
    kernel = Kernel()

    def call(x: Any) -> Any:
        out = torch.empty((x.shape[0], 5))
        replay.launch(kernel, (1,), x.clone(), out, out, 3, BLOCK=64, EARLY=True)
        return out

    plans = replay.Plans(call)
    for _ in range(3):
        plans(torch.ones(2, 4))
    assert not kernel.replayed


def test_a_plan_keeps_neither_inputs_nor_results() -> None:
    kernel, boxes = Kernel(), list[Box]()
    plans = replay.Plans(layer(kernel, boxes))
    x = torch.ones(2, 4)
    seen = [weakref.ref(plans(x)), weakref.ref(plans(x)), weakref.ref(x)]
    del x
    for kept in (kernel.compiled, kernel.replayed, boxes):
        kept.clear()
    assert [kept() for kept in seen] == [None, None, None]


def test_many_tokens_are_launched_as_ever() -> None:
    kernel = Kernel()
    plans = replay.Plans(layer(kernel, []))
    for _ in range(3):
        plans(torch.ones(replay.MOST_TOKENS + 1, 4))
    assert not kernel.replayed


def test_nothing_is_recorded_behind_a_call_that_fails() -> None:
    def call(x: Any) -> Any:
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        replay.Plan(call, torch.ones(2, 4))
    first, second = (replay.scratch((2,), torch.int8, torch.device("cpu")) for _ in range(2))
    assert first.data_ptr() != second.data_ptr()

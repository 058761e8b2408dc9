"""The end of a program on a GPU: what is small is copied, and what is doubtful told, by one launch; nothing told is taken back.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from triton_runs import CUDA, INTERPRETED, PLACE, built, compiles, in_both_modes, kernels_of, passes, runs, spilled

torch = pytest.importorskip("torch", reason="doubts on CUDA need PyTorch: pip install torch triton")
if importlib.util.find_spec("triton") is None:
    pytest.skip("doubts on CUDA need Triton: pip install torch triton", allow_module_level=True)
from cuda_arrays import Calls, Launches  # noqa: E402


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


kernels = kernels_of("doubts")


def told_of(bad: list[Any], told: Any) -> list[bool]:
    kernels().settle((), bad, told)
    if CUDA:
        torch.cuda.synchronize()
    found: list[bool] = told.tolist()
    return found


shapes = st.one_of(
    st.just(()), st.lists(st.integers(0, 5), max_size=3).map(tuple), st.integers(0, 9000).map(lambda n: (n,))
)


@runs
@settings(max_examples=25 if INTERPRETED else 100, deadline=None)
@given(st.lists(st.tuples(shapes, st.booleans()), max_size=19), st.integers(0, 2**32))
def test_any_doubts_are_told_and_none_is_forgotten(doubts: list[tuple[tuple[int, ...], bool]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    bad = [torch.zeros(shape, dtype=torch.bool, device=PLACE) for shape, _ in doubts]
    for b, (_, is_true) in zip(bad, doubts, strict=True):
        if is_true and b.numel():
            b.view(-1)[int(rng.integers(b.numel()))] = True
    before = rng.integers(0, 2, len(bad)).astype(bool)
    want = [bool(b.any()) or bool(t) for b, t in zip(bad, before, strict=True)]
    told = torch.from_numpy(before.copy()).to(PLACE)
    assert told_of(bad, told) == want
    assert told_of([torch.zeros_like(b) for b in bad], told) == want


@runs
def test_views_and_numbers_tell_too() -> None:
    told = torch.zeros(4, dtype=torch.bool, device=PLACE)
    one = torch.tensor([[0, 1], [0, 0]], device=PLACE)
    assert told_of([one, one.T == 1, one[:, :1], one[1:].to(torch.float32)], told) == [True, True, False, False]


kinds = st.sampled_from(["float32", "float16", "int64", "int32", "uint8", "bool"])


@runs
@settings(max_examples=25 if INTERPRETED else 100, deadline=None)
@given(st.lists(st.tuples(shapes, kinds), max_size=11), st.lists(st.booleans(), max_size=11), st.integers(0, 2**32))
def test_any_values_go_to_their_places_beside_any_doubts(
    values: list[tuple[tuple[int, ...], str]], doubts: list[bool], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    given_ = [torch.from_numpy(rng.integers(0, 2, s)).to(getattr(torch, t)).to(PLACE) for s, t in values]
    places = [torch.full_like(v, 1) for v in given_]
    told = torch.zeros(len(doubts), dtype=torch.bool, device=PLACE)
    bad = [torch.tensor([False, d], device=PLACE) for d in doubts]
    kernels().settle(list(zip(places, given_, strict=True)), bad, told)
    assert all(torch.equal(p, v) for p, v in zip(places, given_, strict=True))
    assert told.tolist() == doubts


@runs
def test_large_values_and_views_are_copied_too() -> None:
    module = kernels()
    large = torch.arange(module.SMALL, dtype=torch.int32, device=PLACE)
    square = torch.arange(6.0, device=PLACE).view(2, 3)
    given_ = [large, square.T, square[:, 1:], square.double()]
    places = [torch.zeros_like(large), *(torch.zeros((3, 2), device=PLACE) for _ in "a")]
    places += [torch.zeros((2, 4), device=PLACE)[:, ::2], torch.zeros((2, 3), device=PLACE)]
    told = torch.zeros(1, dtype=torch.bool, device=PLACE)
    module.settle(list(zip(places, given_, strict=True)), [square > 4], told)
    assert all(torch.equal(p, v.to(p.dtype)) for p, v in zip(places, given_, strict=True))
    assert told.tolist() == [True]


@runs
def test_what_a_program_ends_with_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of torch's: what a graph of it holds."""
    calls, launches = Calls(), Launches()
    module = kernels()
    monkeypatch.setattr(module, "settle_kernel", launches)
    values = [torch.zeros((64, n), device=PLACE) for n in (1, 2, 3)]
    bad = [torch.zeros(64, dtype=torch.bool, device=PLACE) for _ in range(4)]
    told = torch.zeros(4, dtype=torch.bool, device=PLACE)
    copies = [(torch.empty_like(v), v) for v in values]
    with calls:
        module.settle(copies, bad, told)
    assert launches.grids == [(1, 7)]
    assert set(calls.names) <= {"detach", "view", "slice"}  # none of them launches


@runs
def test_a_program_may_return_what_an_argument_was_and_exchange_two() -> None:
    """Nothing is read from where something else has been written meanwhile."""
    kernels()
    from tritium.backends.cuda.graph import Captures
    from tritium.backends.values.device import Form

    one, two, three = (torch.tensor([n, n + 1], dtype=torch.int32, device=PLACE) for n in (1, 5, 9))
    handed = [torch.zeros_like(one), torch.zeros(1, dtype=torch.int32, device=PLACE)]
    ends = Captures(None, list, Form(3, (0, 1, 2), 2, list))  # type: ignore[arg-type]
    made = torch.tensor([70, 80], dtype=torch.int32, device=PLACE)
    results = ends._end([one, three[1:], two, one, made], [one, two, three], handed, None)
    assert [x.tolist() for x in (*handed, *results)] == [[1, 2], [10]] * 2
    assert [x.tolist() for x in (one, two, three)] == [[5, 6], [1, 2], [70, 80]]


@runs
@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_memory_of_the_host_is_written_by_the_kernel_itself() -> None:
    told = torch.zeros(3, dtype=torch.bool, pin_memory=True)
    bad = [torch.tensor([k == 1], device=PLACE) for k in range(3)]
    assert told_of(bad, told) == [False, True, False]
    assert told_of([torch.zeros_like(b) for b in bad], told) == [False, True, False]


@compiles
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("name", ["settle_kernel", "pinned_kernel"])
def test_it_compiles_for_every_gpu(name: str, capability: int, many: bool) -> None:
    module = kernels()
    kernel = getattr(module, name)
    given_ = {n: "*u8" for n in kernel.arg_names if n.startswith(("b", "t", "value", "here"))}
    most = module.MANY if name == "settle_kernel" else module.SOME
    fixed = {"BLOCK": most if many else module.FEW, "EARLY": capability == 90}
    assert spilled(built(kernel, given_, fixed, capability, num_warps=4 if many else 1)) == 0


@runs
@settings(max_examples=25 if INTERPRETED else 100, deadline=None)
@given(shapes, kinds, st.integers(0, 2**32))
def test_a_small_value_is_told_to_the_host_bit_by_bit(shape: tuple[int, ...], kind: str, seed: int) -> None:
    module = kernels()
    value = torch.from_numpy(np.random.default_rng(seed).integers(0, 100, shape)).to(getattr(torch, kind)).to(PLACE)
    assert module.can_write_pinned(value) == (0 < value.nbytes <= module.SMALL)
    assert not module.can_write_pinned(torch.zeros((4, 4), device=PLACE).T[1:])
    if module.can_write_pinned(value):
        here = torch.full(value.shape, 1, dtype=value.dtype, pin_memory=CUDA)
        module.write_pinned(value, here)
        if CUDA:
            torch.cuda.synchronize()
        assert torch.equal(here, value.cpu())

"""What is doubtful on a GPU is told by one launch: which of them, whatever their shapes, and nothing of it is taken back.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_runs import CUDA, INTERPRETED, PLACE, compiles, in_both_modes, kernels_of, passes, runs

torch = pytest.importorskip("torch", reason="doubts on CUDA need PyTorch: pip install 'tritium[cuda]'")
if importlib.util.find_spec("triton") is None:
    pytest.skip("doubts on CUDA need Triton: pip install 'tritium[cuda]'", allow_module_level=True)


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


kernels = kernels_of("cuda_doubts")


def told_of(bad: list[Any], told: Any) -> list[bool]:
    kernels().tell(bad, told)
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
def test_it_compiles_for_every_gpu(capability: int, many: bool) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = kernels()
    kernel = module.tell_kernel
    fixed = {"BLOCK": module.MANY if many else module.FEW, "EARLY": capability == 90}
    kinds = {n: "*u8" if n.startswith(("b", "told")) else "i32" for n in kernel.arg_names} | dict.fromkeys(
        fixed, "constexpr"
    )
    source = ASTSource(kernel, kinds, {(kernel.arg_names.index(k),): v for k, v in fixed.items()})
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4 if many else 1})
    assert ".local" not in made.asm["ptx"]

"""Products with the weights of chosen experts have the bits of the reference, for every kind of scale and of activations.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium import dtype as dt, ops
from tritium.backends.reference import mixers, packed
from tritium.op import Spec
from triton_runs import CUDA, INTERPRETED, PLACE, built, compiles, in_both_modes, passes, runs, spills_at_most

torch = pytest.importorskip("torch", reason="experts on CUDA need PyTorch: pip install torch triton")
from tritium.backends.cuda.experts import products as ce  # noqa: E402
from tritium.backends.cuda.linear import weights as cw  # noqa: E402

KINDS = [  # of them the interpreter, which is slow, takes every second
    (0, "token", ()), (0, "token", (1,)), (0, "token", (1, 1)), (64, "token", (1, 1, 1)), (128, "token", (1, 1, 1)),
    (128, "group", (1, 1, 1)), (64, "group", (1, 1, 1)), (48, "group", (1, 1, 1)), (48, "token", (1, 1, 1)),
]  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install torch triton")
@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


class Case:
    """Random weights, scales, tokens and experts, and what the reference makes of them."""

    def __init__(
        self, experts: int, n: int, k: int, tokens: int, active: int, group: int, activations: str, scales: tuple[int, ...],
        *, each: bool = False, ternary: bool = True, half: bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        high = 2 if ternary else 127
        self.w = rng.integers(-1 if ternary else -127, high, (experts, n, k)).astype(np.int8)
        self.group, self.activations, self.ternary = group, activations, ternary
        shape = (experts, n, -(-k // group) if group else 0)[: len(scales)]
        self.scale = rng.uniform(0.01, 2, shape).astype(np.float16 if half else np.float32)
        self.x = rng.standard_normal((tokens, active, k) if each else (tokens, k)).astype(np.float32)
        self.x[0] *= rng.choice([1e-7, 1.0, 1e5], k)
        if tokens > 1:
            self.x[1, ..., k // 2] = np.nan
        self.chosen = rng.integers(0, experts, (tokens, active)).astype(np.int32)

    def expected(self) -> Any:
        out = np.empty((*self.chosen.shape, self.w.shape[1]), np.float32)
        how: dict[str, Any] = {"group": self.group, "activations": self.activations}
        mixers.KERNELS[ops.expert_matmul](self.x, self.w, np.asarray(self.scale), self.chosen, **how, out=out)
        return out

    def weights(self) -> cw.Weights:
        experts, n, k = self.w.shape
        flat = self.w.reshape(experts * n, k)
        if not self.ternary:
            return cw.int8(torch.from_numpy(flat).to(PLACE))
        return cw.ternary(torch.from_numpy(packed.pack(flat, dt.tern2).data).to(PLACE), (experts * n, k))

    def run(self, **others: Any) -> tuple[Any, Any]:
        experts, n, k = self.w.shape
        share = 1 if self.x.ndim == 3 else self.chosen.shape[1]
        chosen = ce.Chosen(torch.from_numpy(self.chosen).to(PLACE).view(-1), experts, share)
        torch.full((chosen.pairs, n), float("nan"), device=PLACE)  # where the result may come to lie
        x = torch.from_numpy(self.x.reshape(-1, k)).to(PLACE)
        y, outside = ce.product(
            x, self.weights(), torch.from_numpy(np.asarray(self.scale)).to(PLACE), chosen, torch.float32, self.group,
            self.activations, **others,
        )  # fmt: skip
        return y.cpu().numpy().reshape(*self.chosen.shape, n), bool(outside.any())

    def check(self, **others: Any) -> None:
        found, outside = self.run(**others)
        assert not outside
        np.testing.assert_array_equal(found, self.expected())


@runs
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(("group", "activations", "scales"), KINDS[1::2] if INTERPRETED else KINDS)
def test_results_are_those_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, group: int, activations: str, scales: tuple[int, ...], few: bool
) -> None:
    monkeypatch.setattr(ce, "FEW", 99 if few else 0)
    Case(5, 9, 200, 2, 2, group, activations, scales).check()
    if not INTERPRETED:
        Case(5, 37, 1300, 7, 2, group, activations, scales).check()


@runs
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("group", [0, 64])
def test_weights_may_be_int8_and_each_pair_may_have_its_own_token(
    monkeypatch: pytest.MonkeyPatch, group: int, few: bool
) -> None:
    monkeypatch.setattr(ce, "FEW", 99 if few else 0)
    scales = (1, 1, 1) if group else (1, 1)
    Case(4, 9, 130, 2, 2, group, "token", scales, ternary=False).check()
    Case(4, 9, 130, 2, 2, group, "token", scales, each=True, half=bool(group)).check()


@runs
@pytest.mark.parametrize("size", [32] if INTERPRETED else [16, 32, 64, 128])
@pytest.mark.parametrize(("group", "scales"), [(0, (1, 1)), (128, (1, 1, 1))])
def test_tiles_may_have_any_size(size: int, group: int, scales: tuple[int, ...]) -> None:
    Case(3, 9, 260, 40, 1, group, "token", scales).check(picked=ce.Config(128, size, 64, 4, 3))


@runs
@settings(max_examples=3 if INTERPRETED else 40, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 20 if INTERPRETED else 300), st.integers(1, 300 if INTERPRETED else 3000),
    st.integers(1, 5 if INTERPRETED else 300), st.integers(1, 3), st.sampled_from(KINDS), st.booleans(), st.booleans(),
)  # fmt: skip
def test_of_any_size(
    experts: int,
    n: int,
    k: int,
    tokens: int,
    active: int,
    kind: tuple[int, str, tuple[int, ...]],
    each: bool,
    few: bool,
) -> None:
    before, ce.FEW = ce.FEW, 1 << 20 if few else 0
    try:
        Case(experts, n, k, tokens, active, *kind, each=each, seed=k).check()
    finally:
        ce.FEW = before


@runs
@pytest.mark.parametrize(("group", "scales"), [(0, ()), (0, (1,)), (0, (1, 1)), (64, (1, 1, 1))])
def test_float_activations_are_summed_in_double(group: int, scales: tuple[int, ...]) -> None:
    case = Case(4, 9, 130, 2, 2, group, "float", scales)
    case.x = np.nan_to_num(case.x)
    found, outside = case.run()
    assert not outside
    np.testing.assert_allclose(found, case.expected(), rtol=1e-6, atol=1e-30)


@given(st.integers(1, 8), st.integers(1, 70), st.sampled_from([1, 4, 16]), st.booleans())
@settings(max_examples=5 if INTERPRETED else 40, deadline=None)
@runs
def test_tiles_hold_every_pair_of_an_expert_once(experts: int, pairs: int, size: int, few_experts: bool) -> None:
    rng = np.random.default_rng(pairs)
    numbers = rng.integers(0, 1 if few_experts else experts, pairs).astype(np.int32)
    made = ce.arrange(ce.Chosen(torch.from_numpy(numbers).to(PLACE), experts, 1), size)
    order, tiles = made.order.cpu().numpy(), made.tiles.cpu().numpy()
    assert not bool(made.outside.any())
    np.testing.assert_array_equal(order, np.argsort(numbers, kind="stable"))
    seen = []
    for e, first, end in tiles[tiles[:, 0] >= 0]:
        mine = order[first : min(first + size, end)]
        assert (numbers[mine] == e).all()
        assert len(mine)
        seen += mine.tolist()
    assert sorted(seen) == list(range(pairs))


@runs
@pytest.mark.parametrize("bad", [-1, 3])
@pytest.mark.parametrize("few", [True, False])
def test_an_expert_that_does_not_exist_is_reported(monkeypatch: pytest.MonkeyPatch, few: bool, bad: int) -> None:
    monkeypatch.setattr(ce, "FEW", 99 if few else 0)
    case = Case(3, 8, 130, 3, 2, 0, "token", ())
    expected = case.expected()
    case.chosen[2, 1] = bad
    found, outside = case.run()
    assert outside
    good = case.chosen != bad
    np.testing.assert_array_equal(found[good], expected[good])


@runs
def test_products_of_a_program_sort_and_check_the_same_experts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tritium.backends.torch.space import Space

    monkeypatch.setattr(ce, "FEW", 0)
    messages: list[str] = []
    sorted_pairs: list[int] = []
    monkeypatch.setattr(ce, "arrange", lambda c, size, make=ce.arrange: sorted_pairs.append(size) or make(c, size))
    case = Case(3, 8, 130, 4, 2, 0, "token", (1, 1))
    space = Space(torch.device(PLACE), lambda bad, message: messages.append(message))
    w = packed.Packed(torch.from_numpy(packed.pack(case.w, dt.tern2).data).to(PLACE), dt.tern2, case.w.shape)
    run = ce.ROWS[ops.expert_matmul](space)(Spec((4, 2, 8), dt.f32), group=0, activations="token")
    experts = torch.from_numpy(case.chosen).to(PLACE)
    operands = torch.from_numpy(case.x).to(PLACE), w, torch.from_numpy(case.scale).to(PLACE), experts
    for program, times in ((["one"], 1), (["two"], 2), (None, 4)):
        space.tracing = lambda program=program: program
        for _ in range(2):
            np.testing.assert_array_equal(run(*operands).cpu().numpy(), case.expected())
        assert len(sorted_pairs) == len(messages) == times
    assert messages[0] == "expert_matmul: an index is outside an axis of size 3."


@runs
def test_nothing_to_multiply_gives_zeros() -> None:
    from tritium.backends.torch.space import Space

    space = Space(torch.device(PLACE), lambda bad, message: None)
    run = ce.ROWS[ops.expert_matmul](space)(Spec((0, 2, 8), dt.f32), group=0, activations="token")
    made = torch.zeros((3, 8, 16), dtype=torch.int8, device=PLACE)
    x, experts = torch.zeros((0, 16), device=PLACE), torch.zeros((0, 2), dtype=torch.int32, device=PLACE)
    assert run(x, made, torch.ones((), device=PLACE), experts).shape == (0, 2, 8)


def test_tiles_grow_with_the_pairs_of_an_expert() -> None:
    sizes = [ce.config(pairs, 256, codes=True).pairs for pairs in (512, 4096, 16384, 1 << 20)]
    assert sizes == [ce.SMALL, ce.SMALL, ce.LARGE, ce.LARGE]


POINTERS = {
    "w": "*u8", "x": "*i8", "total": "*i32", "token_scale": "*fp32", "scale": "*fp32", "experts": "*i32", "order": "*i32",
    "tiles": "*i32", "out": "*bf16", "outside": "*i1",
}  # fmt: skip


def compiled(kernel: Any, fixed: dict[str, Any], capability: int = 90, words: bool = False, **options: Any) -> Any:
    kinds = {name: kind for name, kind in POINTERS.items() if name in kernel.arg_names}
    kinds |= {"w": "*i32", "x": "*i32"} if words else {}
    even = [name for name in kernel.arg_names if name in kinds or (name in ("N", "KB", "KW") and name not in fixed)]
    return built(
        kernel, kinds, fixed | {"EARLY": capability >= 90}, capability, even, enable_fp_fusion=False, **options
    )


@compiles
@pytest.mark.parametrize(("pairs", "capability"), [(16, 80), (32, 90)])
def test_tiles_are_multiplied_by_tensor_cores_without_spills(pairs: int, capability: int) -> None:
    from tritium.backends.cuda.experts import kernels

    c = ce.config(256 * pairs, 256, codes=True)
    assert c.pairs == pairs
    fixed = {
        "BN": c.rows,
        "BM": c.pairs,
        "BK": c.bytes,
        "CODES": True,
        "BY": 2,
        "EVEN": True,
        "ASM": True,
        "BYTES": True,
    }
    made = compiled(kernels.multiply_tiles, fixed, capability, num_warps=c.warps, num_stages=c.stages)
    assert "mma" in made.asm["ptx"]
    assert spills_at_most(made, 0)


@compiles
def test_kernels_compile_for_hopper_without_spills() -> None:
    from tritium.backends.cuda.experts import kernels

    flags = {"ASM": True, "BYTES": True}
    asm = {"ASM": True}
    grouped = {"BN": 128, "BM": 32, "GROUP": 128, "BY": False}
    few = {"BN": 16, "LEVELS": 1, "PARTS": 1, "GROUP": 128, "BY": False, "KW": 128}
    for made in (
        compiled(
            kernels.pairs, {"BN": ce.HELD // 128, "BK": 128, "CODES": True, "BY": 2} | asm, words=True, num_warps=4
        ),
        compiled(kernels.pairs_grouped, few | asm, words=True, num_warps=4),
        compiled(kernels.multiply_tiles_grouped, grouped | flags, num_warps=4, num_stages=3),
        compiled(kernels.arrange, {"BM": 16, "BLOCK_P": ce.SORTED}, num_warps=8),
    ):
        assert spills_at_most(made, 0)


@pytest.mark.skipif(not CUDA, reason="runs on CUDA alone")
@pytest.mark.parametrize("tokens", [1, 8, 64, 512, 2048])
@pytest.mark.parametrize(("n", "k"), [(1024, 2048), (2048, 512)])
@pytest.mark.parametrize(("group", "scales"), [(0, (1, 1)), (128, (1, 1, 1))])
def test_the_shape_of_maple_has_the_bits_of_the_reference(
    tokens: int, n: int, k: int, group: int, scales: tuple[int, ...]
) -> None:
    """Of some pairs: the reference takes long for all."""
    case = Case(64, n, k, tokens, 8, group, "token", scales)
    found, outside = case.run()
    assert not outside
    some = np.random.default_rng(1).choice(tokens, min(tokens, 16), replace=False)
    case.x, case.chosen = case.x[some], case.chosen[some]
    np.testing.assert_array_equal(found[some], case.expected())

"""Products with a scale for each 64 or 128 columns have the bits of the reference, however they are cut.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium import dtype as dt
from tritium.backends.reference import packed, quantized
from triton_runs import CUDA, INTERPRETED, PLACE, built, compiles, in_both_modes, passes, runs, spills_at_most

torch = pytest.importorskip("torch", reason="layers on CUDA need PyTorch: pip install torch triton")
from tritium.backends.cuda.linear import ternary as ct, weights as cw  # noqa: E402

CASES = [(5, 70, 1, 64), (9, 1100, 3, 128), (9, 2200, 2, 64), (37, 1152, 9, 64), (70, 400, 9, 128)]
LARGE = [(600, 4096, m, group) for m in (1, 8, 16, 64, 200, 700) for group in (64, 128)] + [
    (5120, 13824, 100, 128),
    (2048, 32768, 1, 64),
    (1000, 32704, 8, 128),
    (129, 1088, 2000, 64),
]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install torch triton")
@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


def layer(rng: Any, n: int, k: int, group: int, to: Any = np.float16) -> tuple[Any, cw.Weights, Any]:
    """Weights, as kernels read them, and scales."""
    w = rng.integers(-1, 2, (n, k)).astype(np.int8)
    made = cw.ternary(torch.from_numpy(packed.pack(w, dt.tern2).data).to(PLACE), (n, k))
    return w, made, rng.uniform(0.01, 2, (n, -(-k // group))).astype(to)


def expect(x: Any, w: Any, scale: Any, bias: Any, group: int, activations: str) -> Any:
    out = np.empty((len(x), len(w)), np.float32)
    row = quantized.KERNELS[quantized.ops.quantized_matmul]
    row(x, w, scale, bias, group=group, activations=activations, out=out)
    return out


def check(n: int, k: int, m: int, group: int, activations: str, biased: bool = True, to: Any = np.float16) -> None:
    rng = np.random.default_rng(n + k + m)
    w, made, scale = layer(rng, n, k, group, to)
    x = rng.standard_normal((m, k)).astype(np.float32)
    x[0] *= rng.choice([1e-7, 1.0, 1e5], k)
    if m > 1:
        x[1, k // 2] = np.nan
    bias = rng.standard_normal(n).astype(np.float32) if biased else None
    torch.full((m, n), float("nan"), device=PLACE)  # where the result may come to lie
    found = ct.linear(
        torch.from_numpy(x).to(PLACE), made, torch.from_numpy(scale).to(PLACE),
        None if bias is None else torch.from_numpy(bias).to(PLACE), group=group, by_group=activations == "group",
    )  # fmt: skip
    np.testing.assert_array_equal(found.cpu().numpy(), expect(x, w, scale, bias, group, activations))


@runs
@pytest.mark.parametrize("activations", ["token", "group"])
@pytest.mark.parametrize(("n", "k", "m", "group"), CASES + ([] if INTERPRETED else LARGE))
def test_results_are_those_of_the_reference(n: int, k: int, m: int, group: int, activations: str) -> None:
    check(n, k, m, group, activations)


@runs
@settings(max_examples=4 if INTERPRETED else 30, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 1300), st.integers(1, 12 if INTERPRETED else 300), st.sampled_from([64, 128]),
    st.sampled_from(["token", "group"]), st.booleans(),
)  # fmt: skip
def test_of_any_size(n: int, k: int, m: int, group: int, activations: str, biased: bool) -> None:
    check(n, k, m, group, activations, biased, np.float32)


@runs
@pytest.mark.parametrize("split", [1, 2, 3])
@pytest.mark.parametrize("group", [64, 128])
def test_programs_may_share_the_blocks_of_a_tile(monkeypatch: pytest.MonkeyPatch, split: int, group: int) -> None:
    monkeypatch.setattr(ct, "group_config", lambda *_: None)
    monkeypatch.setattr(ct, "lines_for", lambda *_: ct.Lines(64, 16, 4, 2, split))
    check(20, 2300, 9, group, "token")


@pytest.mark.skipif(not CUDA, reason="runs on CUDA alone")
@pytest.mark.parametrize(
    "cut", [ct.Tiles(16, 1), ct.Tiles(32, 3), ct.Tiles(64, 1), ct.Tiles(64, 2), ct.Tiles(128, 1), ct.Tiles(128, 3)]
)
@pytest.mark.parametrize(("n", "k", "m", "group"), [(300, 2560, 200, 128), (300, 2624, 70, 64), (64, 1152, 9, 128)])
def test_tiles_of_warpgroups_have_the_bits_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, n: int, k: int, m: int, group: int, cut: ct.Tiles
) -> None:
    monkeypatch.setattr(ct, "group_config", lambda *_: cut)
    for activations in ("token", "group") if cut.tokens <= ct.BY_TOKENS else ("token",):
        check(n, k, m, group, activations)
        check(n, k, m, group, activations, biased=False, to=np.float32)


@pytest.mark.skipif(not CUDA, reason="runs on CUDA alone")
@pytest.mark.parametrize(
    "cut", [ct.Pieces(1, 1, 1, 1), ct.Pieces(2, 4, 1, 2), ct.Pieces(1, 2, 2, 4), ct.Pieces(1, 8, 1, 2)]
)
@pytest.mark.parametrize(("n", "k", "m", "group"), [(300, 2560, 40, 128), (295, 2624, 13, 64), (64, 1152, 9, 128)])
def test_fragments_have_the_bits_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, n: int, k: int, m: int, group: int, cut: ct.Pieces
) -> None:
    monkeypatch.setattr(ct, "group_config", lambda *_: cut)
    check(n, k, m, group, "token")
    monkeypatch.setattr(ct, "_group_tiled", lambda *_: False)
    check(n, k, m, group, "token", biased=False, to=np.float32)


@given(st.lists(st.integers(-16256, 16256), min_size=2, max_size=2), st.integers(1, 0x7BFF))
def test_sums_that_begin_with_the_bits_of_a_float_have_terms_rounded_once(sums: list[int], bits: int) -> None:
    """Two sums plus the bits of 1.5 * 2**23 are two floats, and one double that 0 times it plus a constant resets."""
    started = (np.array(sums) + 0x4B400000).astype(np.int32)
    scale = np.array(bits, np.uint16).view(np.float16).astype(np.float64)  # every finite one above 0
    exact = started.view(np.float32).astype(np.float64) * scale - 12582912.0 * scale  # 24 + 11 bits: no rounding
    assert np.array_equal(exact.astype(np.float32), (np.array(sums, np.float64) * scale).astype(np.float32))
    assert np.float32(12582912.0 * scale) == 12582912.0 * scale
    magic = np.full(2, 0x4B400000, np.int32).view(np.float64)
    assert np.array_equal((started.view(np.float64) * 0.0 + magic).view(np.int32), [0x4B400000] * 2)


def test_tiles_are_shared_where_they_are_few() -> None:
    assert ct.group_tiles_for(4096, 4096, 16, 132) == ct.Tiles(16, 4)
    assert ct.group_tiles_for(14336, 4096, 64, 132) == ct.Tiles(64, 1)
    assert ct.group_tiles_for(8192, 8192, 4096, 132).split == 1


def test_one_token_has_two_programs_on_each_multiprocessor_whose_weights_fit_in_registers() -> None:
    """The first three are the fastest of those raced on an H200."""
    assert ct.lone_for(4096, 4096, 128, 132) == ct.Lone(16, 32, 8)
    assert ct.lone_for(14336, 4096, 128, 132) == ct.Lone(64, 32, 8)
    assert ct.lone_for(8192, 8192, 64, 132) == ct.Lone(32, 32, 8)
    assert ct.lone_for(14336, 8192, 128, 132) == ct.Lone(32, 32, 8)
    assert ct.lone_for(2560, 13824, 128, 132) is not None
    assert ct.lone_for(2560, 13824, 64, 132) is None
    assert ct.lone_for(2560, 32768, 128, 132) is None
    assert ct.lone_for(1 << 20, 1024, 128, 132) is None
    assert ct.lone_for(4096, 12288, 128, 132, by_group=True) == ct.Lone(16, 32, 8)
    assert ct.lone_for(24576, 4096, 128, 132, by_group=True) is None


@pytest.mark.skipif(not CUDA, reason="runs on CUDA alone")
@pytest.mark.parametrize(("n", "k", "group"), [(300, 2624, 64), (33, 320, 128), (77, 6912, 128)])
def test_one_token_is_normed_and_quantised_as_by_a_launch_of_its_own(n: int, k: int, group: int) -> None:
    rng = np.random.default_rng(n)
    _, made, scale = layer(rng, n, k, group)
    x, weight = (torch.from_numpy(rng.standard_normal(size).astype(np.float32)).to(PLACE) for size in ((1, k), (k,)))
    norm, of_rows = ct.Norm(weight, 1e-6), torch.from_numpy(scale).to(PLACE)
    found = ct.linear(x, made, of_rows, None, torch.float32, group, norm)
    assert torch.equal(found, ct.product(ct.quantise(x, norm), made, of_rows, None, torch.float32, group))
    found = ct.linear(
        x, made, of_rows, None, torch.float32, group, norm if ct.norms_groups(k, group) else None, by_group=True
    )
    tokens = ct.quantise_lines(x, group, norm if ct.norms_groups(k, group) else None)
    assert torch.equal(found, ct.product(tokens, made, of_rows, None, torch.float32, group, by_group=True))
    x[0, k // 2] = float("nan")
    assert ct.linear(x, made, of_rows, None, torch.float32, group, by_group=True).isnan().all()


def test_few_tokens_are_multiplied_by_fragments_on_hopper() -> None:
    """As it is fastest of what was raced on an H200."""
    assert ct.group_config(4096, 4096, 2, 132) == ct.Pieces(2, 4, 1, 1)
    assert ct.group_config(2560, 6912, 16, 132) == ct.Pieces(1, 8, 1, 2)
    for n, k, faster in ((4096, 4096, True), (14336, 4096, False), (2560, 6912, True), (8192, 8192, False)):
        assert isinstance(ct.group_config(n, k, 32, 132), ct.Pieces) == faster
    assert ct.group_config(4096, 4096, 64, 132) == ct.group_tiles_for(4096, 4096, 64, 132)
    assert ct.group_config(4096, 4096, 32, 132, by_group=True) == ct.Pieces(2, 4, 1, 2)
    assert ct.group_config(4096, 4096, 64, 132, by_group=True) == ct.group_tiles_for(4096, 4096, 64, 132)
    assert ct.group_tiles_for(4096, 4096, 2048, 132, by_group=True).tokens == ct.BY_TOKENS
    assert ct.group_config(4096, 1 << 16, 2, 132) is None
    assert isinstance(ct.group_config(4096, 1 << 16, 16, 132), ct.Tiles)


@given(st.integers(1, 5), st.integers(1, 17))
def test_scales_are_loaded_several_at_once(n: int, groups: int) -> None:
    scale = torch.rand((n, groups)).half()
    found = ct._at_once(scale)
    assert found.element_size() == 8 if groups % 4 == 0 else 4 if groups % 2 == 0 else 2
    assert torch.equal(found.view(torch.float16), scale)
    assert ct._at_once(scale.float()).dtype is torch.float32


@given(st.integers(1, 5), st.integers(1, 1300), st.sampled_from([64, 128]))
def test_units_hold_the_codes_of_four_groups(n: int, k: int, group: int) -> None:
    """Decode as the kernel does: a nibble of a word selects one of three bytes."""
    w = torch.from_numpy(np.random.default_rng(k).integers(-1, 2, (n, k)).astype(np.int8))
    units = cw.ternary_of(w).units(group)
    assert units.shape == (n, -(-cw.wide(k) // (4 * group)) * group)
    words = units.contiguous().view(torch.int32).view(n, -1, 1, group // 4, 1).long()
    shifts = torch.tensor([0, 16, 2, 18]).view(1, 1, 4, 1, 1) + 4 * torch.arange(4)
    found = ((words >> shifts) & 3) - 1  # [n, unit, group, word, column]
    assert torch.equal(found.reshape(n, -1)[:, :k], w.long())


@runs
def test_tokens_may_be_quantised_before() -> None:
    rng = np.random.default_rng(0)
    w, made, scale = layer(rng, 20, 300, 128)
    x = rng.standard_normal((3, 300)).astype(np.float32)
    tokens = ct.quantise(torch.from_numpy(x).to(PLACE))
    added = torch.from_numpy(rng.standard_normal((3, 20)).astype(np.float32))
    found = ct.product(tokens, made, torch.from_numpy(scale).to(PLACE), added.to(PLACE), group=128)
    np.testing.assert_array_equal(found.cpu().numpy(), expect(x, w, scale, None, 128, "token") + added.numpy())


@runs
def test_a_norm_may_stand_before() -> None:
    rng = np.random.default_rng(0)
    _, made, scale = layer(rng, 20, 300, 64)
    x = torch.from_numpy(rng.standard_normal((3, 300)).astype(np.float32)).to(PLACE)
    by, norm = torch.from_numpy(scale).to(PLACE), ct.Norm(None, 1e-6)
    plain = ct.quantise(x, norm)
    assert torch.equal(ct.linear(x, made, by, group=64, norm=norm), ct.product(plain, made, by, group=64))


def test_cuts_fill_the_machine() -> None:
    assert ct.lines_for(4096, 4096, 1, 132).tokens == 0
    few = ct.lines_for(2560, 2560, 16, 132)
    assert few.split > 1
    assert few.split <= -(-2560 // quantized.COLUMNS)
    assert ct.lines_for(8192, 8192, 4096, 132).split == 1


KINDS = {
    "w": "*u8", "x": "*i8", "token_scale": "*fp32", "scale": "*fp16", "bias": "*fp32", "out": "*bf16",
    "partial": "*fp32", "counts": "*i32",
}  # fmt: skip


@compiles
@pytest.mark.parametrize("group", [64, 128])
@pytest.mark.parametrize("cut", [(4096, 4096, 1), (4096, 32768, 4), (4096, 4096, 16), (4096, 4096, 2048)])
def test_kernels_compile_for_hopper_without_spills(cut: tuple[int, int, int], group: int) -> None:
    from tritium.backends.cuda.linear import grouped

    n, k, m = cut
    c = ct.lines_for(n, k, m, 132)
    fixed: dict[str, Any] = {"GROUP": group, "BIAS": 0, "BY": False, "ASM": True, "EARLY": True}
    if c.tokens:
        kernel, kinds = grouped.gemm, KINDS
        fixed |= {"BN": c.rows, "BM": c.tokens, "SPLIT": c.split, "WIDE": 8, "BYTES": True}
    else:
        kernel, kinds = grouped.gemv, {name: kind for name, kind in KINDS.items() if name not in ("partial", "counts")}
        kinds |= {"w": "*i32", "x": "*i32"}
        words = k // 16
        fixed |= {"KW": words, "BN": c.rows, "LEVELS": 2, "PARTS": k // 4096, "READY": True}
    even = [name for name in kernel.arg_names if name in ("N", "KB", "GROUPS", "SCALES") or name in kinds]
    made = built(kernel, kinds, fixed, 90, even, num_warps=c.warps, num_stages=c.stages, enable_fp_fusion=False)
    assert spills_at_most(made, 0)


@compiles
@pytest.mark.parametrize(
    ("cut", "group", "by_group"),
    [(ct.Tiles(16, 4), 128, False), (ct.Tiles(64, 1), 64, False), (ct.Tiles(128, 1), 128, False),
     (ct.Tiles(64, 1), 128, True), (ct.Tiles(32, 2), 64, True)],
)  # fmt: skip
def test_tiles_of_warpgroups_compile_for_hopper_without_spills(cut: ct.Tiles, group: int, by_group: bool) -> None:
    from triton.experimental.gluon import language as gl

    from tritium.backends.cuda.linear import group_tiles

    half = cut.tokens // 2 if cut.tokens > 64 else cut.tokens
    boxes = {
        "w": ("u8", [64, group], gl.uint8),
        "x": ("i8", [cut.tokens, group], gl.int8),
        "box": ("bf16", [half, 64], gl.bfloat16),
    }
    kinds = {name: kind for name, kind in KINDS.items() if name not in boxes} | {"partial": "*i32"}
    for name, (kind, block, of) in boxes.items():
        kinds[name] = f"tensordesc<{kind}{block},{gl.NVMMASharedLayout.get_default_for(block, of)!r}>"
    units, stages = ct._group_stages(cut, group, True)
    fixed = {
        "BM": cut.tokens,
        "GROUP": group,
        "WIDE": units,
        "STAGES": stages,
        "SPLIT": cut.split,
        "BIAS": 1,
        "BY": by_group,
        "REGISTERS": 240,
    }
    even = ["N", "APART", *(name for name, kind in kinds.items() if kind.startswith("*"))]
    made = built(group_tiles.group_tiles, kinds, fixed, 90, even, num_warps=4, maxnreg=168, enable_fp_fusion=False)
    assert made.asm["ptx"].count("wgmma.wait_group") < made.asm["ptx"].count("wgmma.mma_async")
    assert spills_at_most(made, 0)


@compiles
@pytest.mark.parametrize(("cut", "k", "group"), [(ct.Pieces(2, 8, 1, 2), 13824, 64)])
def test_fragments_with_groups_compile_for_hopper_without_spills(cut: ct.Pieces, k: int, group: int) -> None:
    from tritium.backends.cuda.linear import fragments

    kinds = {"w": "*i32", "x": "*i32", "token_scale": "*fp32", "scale": "*i64", "bias": "*fp32", "out": "*bf16"}
    fixed = {
        "BLOCKS": k // 128,
        "NT": cut.tiles,
        "WK": cut.across,
        "WN": cut.beside,
        "TG": cut.groups,
        "TILED": True,
        "GROUP": group,
        "BIAS": 1,
        "BY": False,
    }
    warps = cut.across * cut.beside
    made = built(fragments.group_fragments, kinds, fixed, 90, ["N", *kinds], num_warps=warps, enable_fp_fusion=False)
    rounds = -(-k // (1024 * cut.across))
    assert made.asm["ptx"].count("mma.sync") == rounds * 8 * 4 * cut.tiles * cut.groups
    assert spills_at_most(made, 0)


@compiles
@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize(("k", "group"), [(320, 128), (6912, 64), (13824, 128)])
def test_one_token_of_floats_compiles_for_hopper_without_spills(k: int, group: int, by_group: bool) -> None:
    from tritium.backends.cuda.linear import gemv

    c = ct.lone_for(4096, k, group, 132)
    assert c is not None
    kinds = {"w": "*i32", "x": "*bf16", "weight": "*fp32", "scale": "*fp16", "bias": "*fp32", "out": "*bf16"}
    fixed = {
        "K": k,
        "KW": cw.wide(k) // 16,
        "BN": c.rows,
        "TK": c.lanes,
        "GROUP": group,
        "BY": by_group,
        "EPS": 1e-6,
        "NORM": 2,
        "BIAS": 1,
    }
    made = built(gemv.group_gemv, kinds, fixed, 90, ["N", *kinds], num_warps=c.warps, enable_fp_fusion=False)
    assert spills_at_most(made, 0)

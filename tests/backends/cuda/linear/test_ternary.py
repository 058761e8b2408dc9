"""Layers of ternary and int8 weights on a GPU give the bits of the reference, whatever the shape, the batch and the kernel.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device. Which of both Triton
does is settled when it is imported, so it is not imported here.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium import dtype as dt, settings as tritium_settings
from tritium.backends.cuda.capability import HOPPER
from tritium.backends.cuda.linear import choice as cuda_tuned
from tritium.backends.cuda.linear.choice import Case, Choice, choice
from tritium.backends.cuda.linear.spread import ALONG, spread, tensors
from tritium.backends.reference import packed, quantized
from tritium.errors import ArgumentError
from triton_runs import CUDA, INTERPRETED, PLACE, built, compiles, in_both_modes, passes, runs, spills_at_most

torch = pytest.importorskip("torch", reason="layers on CUDA need PyTorch: pip install torch triton")
from tritium.backends.cuda import counts as cuda_counts  # noqa: E402
from tritium.backends.cuda.gpu import Gpu, gpu  # noqa: E402
from tritium.backends.cuda.linear import (  # noqa: E402
    ternary as ct,
    weights as cw,
)

on_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
MOST = (20, 140, 6) if INTERPRETED else (900, 5000, 600)
KINDS = ["float32", "float16"] + ([] if INTERPRETED else ["bfloat16"])  # the interpreter cuts bf16 instead of rounding
SHAPES = [(5, 3, 1), (17, 70, 2), (33, 257, 5)] + ([] if INTERPRETED else [(1, 1, 1), (16, 128, 8), (70, 300, 17)])


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install torch triton")
@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


# ---- values


def weights(rng: Any, n: int, k: int, codes: bool) -> tuple[Any, cw.Weights]:
    if not codes:
        w = rng.integers(-128, 128, (n, k)).astype(np.int8)
        return w, cw.int8(torch.from_numpy(w).to(PLACE))
    w = rng.integers(-1, 2, (n, k)).astype(np.int8)
    return w, cw.ternary(torch.from_numpy(packed.pack(w, dt.tern2).data).to(PLACE), (n, k))


def poison(m: int, n: int) -> None:
    """The next results of this size come to lie where this was."""
    torch.full((m, n), 123456789, dtype=torch.int32, device=PLACE)
    torch.full((m, n), float("nan"), dtype=torch.float32, device=PLACE)


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found.float().cpu().numpy(), expected)


def ways(case: Case) -> list[Choice]:
    """A few of the ways to compute a case, of every kernel."""
    if INTERPRETED:
        return [choice("gemm_plain", 32, 32, 64, 2, 4, 3), choice("gemv_plain", 32, 128, 4)]
    every = cuda_tuned.candidates(case, gpu(torch.device("cuda", 0)).capability)
    return [found[len(found) // 2] for name in cuda_tuned.NAMES if (found := [c for c in every if c.kernel == name])]


# ---- sums


@runs
@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize(("n", "k", "m"), SHAPES)
def test_sums_are_those_of_integers_by_every_kernel(n: int, k: int, m: int, codes: bool) -> None:
    rng = np.random.default_rng(n + k)
    w, made = weights(rng, n, k, codes)
    q = rng.integers(-128, 128, (m, k)).astype(np.int8)
    for way in [None, *ways(Case(n, k, m, codes))]:
        poison(m, n)
        found = ct.integer_product(torch.from_numpy(q).to(PLACE), made, choice=way)
        np.testing.assert_array_equal(found.cpu().numpy(), quantized.dot(q, w), err_msg=str(way))


@runs
@pytest.mark.parametrize("codes", [True, False])
def test_a_gpu_that_does_not_multiply_int8_gives_the_same_sums(monkeypatch: pytest.MonkeyPatch, codes: bool) -> None:
    monkeypatch.setattr(Gpu, "bytes", False)
    rng = np.random.default_rng(8)
    w, made = weights(rng, 17, 270, codes)
    q = np.full((3, 270), -128, np.int8)
    way = choice("gemm_plain", 32, 32, 64, 2, 4, 3)
    found = ct.integer_product(torch.from_numpy(q).to(PLACE), made, choice=way)
    np.testing.assert_array_equal(found.cpu().numpy(), quantized.dot(q, w))
    x, scale = rng.standard_normal((3, 270)).astype(np.float32), rng.random((17, 9)).astype(np.float32)
    expected = np.empty((3, 17), np.float32)
    quantized.KERNELS[quantized.ops.quantized_matmul](x, w, scale, None, group=32, out=expected)
    same(ct.linear(torch.from_numpy(x).to(PLACE), made, torch.from_numpy(scale).to(PLACE), group=32), expected)


@on_cuda
@settings(max_examples=60, deadline=None)
@given(st.integers(1, MOST[0]), st.integers(1, MOST[1]), st.integers(1, 4096), st.booleans(), st.integers(0, 2**31))
def test_sums_are_exact_at_any_shape_and_batch(n: int, k: int, m: int, codes: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    w, made = weights(rng, n, k, codes)
    q = rng.integers(-128, 128, (m, k)).astype(np.int8)
    poison(m, n)
    found = ct.integer_product(torch.from_numpy(q).to(PLACE), made)
    np.testing.assert_array_equal(found.cpu().numpy(), quantized.dot(q, w))


@on_cuda
@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize("k", [1, 100, 2560, 8200, 32768, 33000, 70000])
def test_one_token_of_any_length_is_multiplied_exactly_however_it_is_cut(k: int, codes: bool) -> None:
    on_hopper()
    made, given, expected = a_product(300, k, 1, codes, seed=k)
    cuts = list(cuda_tuned.gemvs(Case(300, k, 1, codes)))
    for way in [cuts[0], cuts[len(cuts) // 2], cuts[-1]] if cuts else [None]:
        poison(1, 300)
        assert torch.equal(ct.integer_product(given, made, choice=way), expected), way


def on_hopper() -> Gpu:
    """The GPU, if warpgroups multiply there."""
    found = gpu(torch.device("cuda", 0))
    if found.capability != HOPPER:
        pytest.skip("warpgroups multiply on Hopper")
    return found


def a_product(n: int, k: int, m: int, codes: bool, seed: int) -> tuple[cw.Weights, Any, Any]:
    """Weights, integer tokens and the sums of both by the reference, the last two there."""
    rng = np.random.default_rng(seed)
    w, made = weights(rng, n, k, codes)
    q = rng.integers(-128, 128, (m, k)).astype(np.int8)
    return made, torch.from_numpy(q).to(PLACE), torch.from_numpy(quantized.dot(q, w)).to(PLACE)


TURNS = [
    (64, 16, 64, 1, 6, 80, 104), (128, 64, 64, 1, 6, 168, 240), (64, 128, 64, 1, 5, 168, 240), (128, 128, 64, 1, 4, 168, 240),
]  # fmt: skip


@on_cuda
@pytest.mark.parametrize("spread", [0, 1, ALONG, -3])
@pytest.mark.parametrize("numbers", [*TURNS, (128, 64, 64, 0, 6, 104, 136), (256, 128, 64, 0, 4, 168, 240)])
def test_warpgroups_that_take_turns_or_share_tiles_multiply_exactly(numbers: tuple[int, ...], spread: int) -> None:
    on_hopper()
    made, given, expected = a_product(1300, 6912, 300, True, seed=spread + 3)  # 27 steps a tile: more than stages
    poison(300, 1300)
    found = [ct.integer_product(given, made, choice=choice("wgmma", *numbers, spread)) for _ in range(20)]
    assert all(torch.equal(y, expected) for y in found)


@on_cuda
@pytest.mark.parametrize(
    "m", [1, 300, 321, 512]
)  # pieces that lie behind the last token, that hold some, that are full
@pytest.mark.parametrize(
    ("codes", "numbers"),
    [*((True, numbers) for numbers in TURNS[1:]), (True, (128, 64, 64, 0, 6, 104, 136)), (True, (128, 128, 64, 0, 5, 168, 240)),
     (True, (256, 128, 64, 0, 4, 168, 240)), (False, (128, 256, 128, 0, 4, 168, 240)), (False, (64, 128, 128, 1, 6, 104, 136))],
)  # fmt: skip
def test_a_last_round_of_pieces_multiplies_exactly(
    codes: bool, numbers: tuple[int, ...], m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopper = on_hopper()
    made, given, expected = a_product(1300, 2700, m, codes, seed=m)  # 11 steps of codes
    tiles = -(-1300 // numbers[0]) * -(-m // numbers[1])
    dealt = {processors: spread(1, tiles, 11, numbers[1], processors)[2] for processors in range(1, tiles + 1)}
    alike = [[n for n, p in dealt.items() if p == pieces] for pieces in (1, 2, 4) if numbers[1] // pieces >= 32]
    for processors in {n for found in alike for n in (found[0], found[-1])}:
        monkeypatch.setattr(ct, "gpu", lambda _, count=processors: hopper._replace(processors=count))
        poison(m, 1300)
        found = [ct.integer_product(given, made, choice=choice("wgmma", *numbers, 1)) for _ in range(5)]
        assert all(torch.equal(y, expected) for y in found)


TWO_TENSORS = [
    (True, (256, 160, 64, 0, 3, 168, 240)), (True, (256, 160, 32, 0, 6, 168, 240)), (True, (128, 160, 64, 0, 4, 168, 240)),
    (True, (128, 192, 64, 0, 3, 168, 240)), (True, (128, 160, 64, 1, 4, 168, 240)), (False, (256, 160, 128, 0, 3, 168, 240)),
    (False, (128, 160, 128, 0, 5, 104, 136)),
]  # fmt: skip


@on_cuda
@pytest.mark.parametrize("m", [1, 129, 161, 170, 320, 2047])  # of the last tile: tokens of one tensor, of both, all
@pytest.mark.parametrize(("codes", "numbers"), TWO_TENSORS)
def test_tiles_of_two_tensors_of_tokens_multiply_exactly(
    codes: bool, numbers: tuple[int, ...], m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopper = on_hopper()
    made, given, expected = a_product(1301, 2600, m, codes, seed=m)  # 10.5 steps of codes
    for number, processors in ((0, 132), (1, 132), (1, 4), (-3, 132), (ALONG, 5), (ALONG, 4)):
        monkeypatch.setattr(ct, "gpu", lambda _, count=processors: hopper._replace(processors=count))
        poison(m, 1301)
        found = [ct.integer_product(given, made, choice=choice("wgmma", *numbers, number)) for _ in range(5)]
        assert all(torch.equal(y, expected) for y in found)


@on_cuda
@pytest.mark.parametrize("to", ["float16", "bfloat16"])
@pytest.mark.parametrize("number", [0, 1, ALONG, -3])
@pytest.mark.parametrize(
    "numbers", [(128, 128, 64, 0, 4, 168, 240), (128, 80, 64, 0, 6, 104, 136), (64, 64, 128, 1, 5, 168, 240)]
)
def test_results_that_the_copy_engine_writes_are_those_of_other_stores(
    numbers: tuple[int, ...], number: int, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopper = on_hopper()
    monkeypatch.setattr(ct, "gpu", lambda _: hopper._replace(processors=7))
    _, made = weights(np.random.default_rng(9), 776, 2600, True)
    kind, tokens = getattr(torch, to), ct.quantise(torch.randn((333, 2600), device=PLACE))
    scale, bias = torch.rand(776, device=PLACE), torch.randn(776, device=PLACE)
    way = choice("wgmma", *numbers, number)
    poison(333, 776)
    boxed = ct.product(tokens, made, scale, bias, kind, choice=way)
    monkeypatch.setattr(ct, "_is_boxed", lambda *_: False)
    assert torch.equal(boxed, ct.product(tokens, made, scale, bias, kind, choice=way))


@on_cuda
@pytest.mark.parametrize("to", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("codes", "numbers"), TWO_TENSORS)
def test_tiles_of_two_tensors_of_tokens_are_scaled_and_added_to_as_others(
    codes: bool, numbers: tuple[int, ...], to: str
) -> None:
    on_hopper()
    _, made = weights(np.random.default_rng(9), 777, 1100, codes)
    kind = getattr(torch, to)
    tokens = ct.quantise(torch.randn((333, 1100), device=PLACE))
    usual, way = choice("wgmma", 128, 64, 128, 0, 4, 168, 240, 0), choice("wgmma", *numbers, 0)
    for scale in (torch.full((), 0.5, device=PLACE), torch.rand(777, device=PLACE)):
        for bias in (None, torch.randn(777, device=PLACE), torch.randn((333, 777), device=PLACE).to(kind)):
            expected = ct.product(tokens, made, scale, bias, kind, choice=usual)
            poison(333, 777)
            assert torch.equal(ct.product(tokens, made, scale, bias, kind, choice=way), expected)


@on_cuda
@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize(
    "numbers", [(128, 16, 64, 0, 6, 104, 136), (128, 64, 64, 0, 4, 168, 240), (128, 64, 64, 1, 4, 168, 240)]
)
@pytest.mark.parametrize(("k", "parts"), [(300, 2), (800, 4), (2600, 8), (6912, 2), (6912, 3), (6912, 6)])
def test_programs_that_share_tiles_multiply_exactly(codes: bool, numbers: tuple[int, ...], k: int, parts: int) -> None:
    on_hopper()
    made, given, expected = a_product(700, k, 70, codes, seed=k + parts)  # from one step a part to 27
    way = choice("wgmma", *numbers, -parts)
    poison(70, 700)
    assert torch.equal(ct.integer_product(given, made, choice=way), expected)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):  # launches that follow each other at once
        found = [ct.integer_product(given, made, choice=way) for _ in range(20)]
    for _ in range(20):
        for y in found:
            y.fill_(123456789)
        graph.replay()
        assert all(torch.equal(y, expected) for y in found)


SPLIT = choice("gemm_plain", 16, 16, 64, 4, 4, 3)


@runs
def test_counts_are_zero_after_shared_tiles_and_what_was_in_their_memory_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **of: empty(*size, **of).fill_(123))
    w, made = weights(np.random.default_rng(0), 40, 600, True)
    q = torch.ones((5, 600), dtype=torch.int8, device=PLACE)
    expected = quantized.dot(np.ones((5, 600), np.int8), w)
    for _ in range(2):
        found = ct.integer_product(q, made, choice=SPLIT)
        np.testing.assert_array_equal(found.cpu().numpy(), expected)
        assert not bool(cuda_counts.counters(found.device).some(1).any())


@on_cuda
@pytest.mark.parametrize("way", [SPLIT, choice("wgmma", 128, 64, 64, 0, 4, 104, 136, -3)])
def test_graphs_of_shared_tiles_run_beside_each_other(way: Choice) -> None:
    if way is not SPLIT:
        on_hopper()
    made, given, expected = a_product(2560, 6912, 40, True, seed=6)
    graphs = []
    for _ in range(3):
        ct.integer_product(given, made, choice=way)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = [ct.integer_product(given, made, choice=way) for _ in range(20)]
        graphs.append((graph, found, torch.cuda.Stream()))
    for _ in range(5):
        for _, found, _ in graphs:
            for y in found:
                y.fill_(123456789)
        torch.cuda.synchronize()
        for graph, _, stream in graphs:
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(y, expected) for _, found, _ in graphs for y in found)


@on_cuda
def test_a_capture_without_a_rehearsal_is_right() -> None:
    w, made = weights(np.random.default_rng(7), 200, 2560, True)
    q = torch.ones((40, 2560), dtype=torch.int8, device="cuda")
    expected = torch.from_numpy(quantized.dot(np.ones((40, 2560), np.int8), w)).to("cuda")
    ct.integer_product(q, made, choice=SPLIT)  # compiles
    fresh, graph = weights(np.random.default_rng(7), 200, 2560, True)[1], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [ct.integer_product(q, fresh, choice=SPLIT) for _ in range(3)]
    assert torch.equal(ct.integer_product(q, fresh, choice=SPLIT), expected)  # before any replay
    for _ in range(3):
        for y in found:
            y.fill_(123456789)
        graph.replay()
        assert all(torch.equal(y, expected) for y in found)


# ---- tokens


@runs
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("m", "k"), [(1, 1), (3, 70), (2, 300)])
def test_tokens_are_quantised_as_by_the_reference(m: int, k: int, kind: str) -> None:
    x = (torch.randn(m, k, generator=torch.Generator().manual_seed(k)) * 3).to(getattr(torch, kind))
    x[m - 1, 0] = [float("nan"), float("inf"), 0.0][m - 1]
    found = ct.quantise(x.to(PLACE))
    q, scale, total = quantized.tokens(x.float().numpy())
    np.testing.assert_array_equal(found.q[:, :k].cpu().numpy(), q)
    assert not bool(found.q[:, k:].any())
    same(found.scale, scale)
    np.testing.assert_array_equal(found.total.cpu().numpy(), total)


@runs
@pytest.mark.parametrize("k", [1, 200])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_norm_before_the_quantiser_has_the_roundings_of_the_cpu(weighted: bool, k: int) -> None:
    rng = np.random.default_rng(3)
    x, g = rng.standard_normal((4, k)).astype(np.float32), rng.random(2 * k).astype(np.float32)[::2]
    inverse = (1 / np.sqrt((x.astype(np.float64) ** 2).sum(1) / k + 1e-5)).astype(np.float32)
    normed = x * inverse[:, None] * g if weighted else x * inverse[:, None]
    norm = ct.Norm(torch.from_numpy(np.repeat(g, 2)).to(PLACE)[::2] if weighted else None, 1e-5)
    found = ct.quantise(torch.from_numpy(x).to(PLACE), norm)
    q, scale, _ = quantized.tokens(normed)
    np.testing.assert_array_equal(found.q[:, :k].cpu().numpy(), q)
    same(found.scale, scale)


@runs
@pytest.mark.parametrize(("m", "k"), [(1, 1), (8, 128), (13, 200)])
def test_tiled_tokens_are_the_same_rows_in_pieces_of_64(m: int, k: int) -> None:
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(m)).to(PLACE)
    plain, tiled = ct.quantise(x), ct.quantise(x, tiled=True)
    whole = tiled.q.cpu().numpy().reshape(-1, tiled.q.shape[1] // 64, 8, 64)
    for row in range(m):
        np.testing.assert_array_equal(whole[row // 8, :, row % 8].reshape(-1), plain.q[row].cpu().numpy())
    assert torch.equal(tiled.straight().q, plain.q)
    assert torch.equal(ct.integers(plain.q[:, :k], tiled=True).straight().q, plain.q)


@runs
def test_tiled_tokens_are_taken_by_every_kernel() -> None:
    _, made = weights(np.random.default_rng(4), 20, 300, True)
    x, scale = (
        torch.randn(5, 300, generator=torch.Generator().manual_seed(5)).to(PLACE),
        torch.full((), 0.5, device=PLACE),
    )
    for way in ways(Case(20, 300, 5)):
        straight, tiled = (ct.product(ct.quantise(x, tiled=t), made, scale, choice=way) for t in (False, True))
        assert torch.equal(straight, tiled), way


# ---- layers


@runs
@settings(max_examples=6 if INTERPRETED else 25, deadline=None)
@given(
    st.integers(1, MOST[0]), st.integers(1, MOST[1]), st.integers(1, MOST[2]), st.booleans(), st.booleans(),
    st.sampled_from(["one", "rows", "32", "100"]), st.sampled_from(KINDS),
    st.integers(0, 2**31),
)  # fmt: skip
def test_a_layer_is_that_of_the_reference(
    n: int, k: int, m: int, codes: bool, biased: bool, scales: str, to: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    w, made = weights(rng, n, k, codes)
    x = rng.standard_normal((m, k)).astype(np.float32)
    if seed % 3 == 0:
        x[rng.integers(m), rng.integers(k)] = np.nan
    group = int(scales) if scales.isdigit() else 0
    shape = {"one": (), "rows": (n,)}.get(scales, (n, -(-k // max(group, 1))))
    scale = np.asarray(rng.random(shape), np.float32)
    bias = rng.standard_normal(n).astype(np.float32) if biased else None
    expected = np.empty((m, n), np.float32)
    quantized.KERNELS[quantized.ops.quantized_matmul](x, w, scale, bias, group=group, out=expected)
    poison(m, n)
    found = ct.linear(
        torch.from_numpy(x).to(PLACE), made, torch.from_numpy(scale).to(PLACE),
        None if bias is None else torch.from_numpy(bias).to(PLACE), getattr(torch, to), group,
    )  # fmt: skip
    same(found, torch.from_numpy(expected).to(getattr(torch, to)).float().numpy())


@runs
@pytest.mark.parametrize("activations", ["token", "group"])
@pytest.mark.parametrize(("k", "group"), [(1100, 48), (2100, 1040), (70, 128)])
def test_groups_are_added_in_blocks(k: int, group: int, activations: str) -> None:
    rng = np.random.default_rng(k)
    w, made = weights(rng, 20, k, True)
    x, bias = rng.standard_normal((3, k)).astype(np.float32), rng.standard_normal(20).astype(np.float32)
    scale = rng.uniform(0.01, 2, (20, -(-k // group))).astype(np.float16)
    expected = np.empty((3, 20), np.float32)
    row = quantized.KERNELS[quantized.ops.quantized_matmul]
    row(x, w, scale, bias, group=group, activations=activations, out=expected)
    operands = (torch.from_numpy(a).to(PLACE) for a in (scale, bias))
    found = ct.linear(torch.from_numpy(x).to(PLACE), made, *operands, group=group, by_group=activations == "group")
    same(found, expected)


@runs
@pytest.mark.parametrize("m", [1, 3])
def test_a_bias_may_be_part_of_a_larger_tensor(m: int) -> None:
    rng = np.random.default_rng(m)
    w, made = weights(rng, 9, 70, True)
    x, wide = rng.standard_normal((m, 70)).astype(np.float32), rng.standard_normal((9, 2)).astype(np.float32)
    expected = np.empty((m, 9), np.float32)
    quantized.KERNELS[quantized.ops.quantized_matmul](x, w, np.float32(0.5), wide[:, 1], group=0, out=expected)
    scale, bias = torch.full((), 0.5, device=PLACE), torch.from_numpy(wide).to(PLACE)[:, 1]
    same(ct.linear(torch.from_numpy(x).to(PLACE), made, scale, bias), expected)


@runs
@pytest.mark.parametrize(("m", "codes"), [(1, True), (5, True), (5, False), (20 if INTERPRETED else 70, True)])
def test_what_is_added_may_be_of_each_result(m: int, codes: bool) -> None:
    rng = np.random.default_rng(m)
    _, made = weights(rng, 40, 300, codes)
    tokens = ct.quantise(torch.from_numpy(rng.standard_normal((m, 300)).astype(np.float32)).to(PLACE))
    scale, added = torch.full((), 0.5, device=PLACE), torch.from_numpy(rng.standard_normal((m, 40)).astype(np.float32))
    for to in (torch.float32, torch.float16):
        for way in ways(Case(40, 300, m, codes)):
            apart = ct.product(tokens, made, scale, choice=way).cpu() + added
            poison(m, 40)
            found = ct.product(tokens, made, scale, added.to(PLACE), to, choice=way)
            assert torch.equal(found.cpu(), apart.to(to)), way
    groups = torch.from_numpy(rng.random((40, 3)).astype(np.float32)).to(PLACE)
    apart = ct.product(tokens, made, groups, group=100).cpu() + added
    assert torch.equal(ct.product(tokens, made, groups, added.to(PLACE), group=100).cpu(), apart)


ALONE = [(k, codes, norm, gated, "float32") for k, codes in ((2001, True), (2560, True), (6912, True), (1100, False), (1101, False))
         for norm in ("none", "plain", "weighted") for gated in (False, True)]  # fmt: skip
ALONE += [(2560, True, "weighted", False, kind) for kind in ("float16", "bfloat16")]


@on_cuda
@pytest.mark.parametrize(("k", "codes", "norm", "gated", "kind"), ALONE)
def test_one_launch_for_a_token_gives_the_bits_of_two(k: int, codes: bool, norm: str, gated: bool, kind: str) -> None:
    case = Case(300, k, 1, codes, True)
    every = [c for c in cuda_tuned.gemvs(case) if cuda_tuned.fits(case, c)]
    cuts = {every[0], every[len(every) // 2], every[-1], cuda_tuned.shipped(case, (9, 0), 132)}
    assert {c.kernel for c in cuts} == {"gemv"}
    _, made = weights(np.random.default_rng(1), 300, k, codes)
    x, up = (torch.randn((1, k), device=PLACE).to(getattr(torch, kind)) for _ in range(2))
    scale, bias, by = (torch.full((), 0.5, device=PLACE), *(torch.randn(size, device=PLACE) for size in (300, k)))
    before = None if norm == "none" else ct.Norm(by if norm == "weighted" else None, 1e-5)
    for broken in (None, math.inf, math.nan):
        if broken is not None:
            x[0, 1030] = broken
        token = torch.relu(x).square() * up if gated else x
        two = ct.product(ct.quantise(token, before), made, scale, bias)
        assert bool(two.isnan().all()) == (broken is not None)
        for way in cuts:
            one = ct.fused(x, made, scale, bias, torch.float32, before, up if gated else None, choice=way)
            assert torch.equal(one.view(torch.int32), two.view(torch.int32)) or broken is not None, way
            assert torch.equal(one.isnan(), two.isnan()), way


def test_a_token_is_quantised_by_the_product_on_hopper_alone_and_where_programs_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Shaped:
        def __init__(self, *shape: int) -> None:
            self.shape, self.ternary, self.device = shape, True, torch.device("cuda", 0)

    here = Gpu((9, 0), 132, True)
    monkeypatch.setattr(ct, "gpu", lambda device: here)
    found = ct.alone_on(Shaped(1, 2560), Shaped(3840, 2560))
    assert found is not None
    assert found.kernel == "gemv"
    assert ct.alone_on(Shaped(2, 2560), Shaped(3840, 2560)) is None
    assert ct.alone_on(Shaped(1, 2560), Shaped(128256, 2560)) is None
    assert ct.alone_on(Shaped(1, 2560), Shaped(0, 2560)) is None
    for other in (Gpu((8, 0), 108, True), Gpu((9, 0), 132, False)):
        here = other
        assert ct.alone_on(Shaped(1, 2560), Shaped(3840, 2560)) is None


@runs
@pytest.mark.parametrize(("n", "k", "m"), [(3, 0, 2), (0, 5, 2), (3, 5, 0)])
def test_an_empty_layer_has_its_shape(n: int, k: int, m: int) -> None:
    made = cw.ternary_of(torch.zeros((n, k), dtype=torch.int8, device=PLACE))
    y = ct.linear(torch.ones((m, k), device=PLACE), made, torch.ones((), device=PLACE))
    assert y.shape == (m, n)
    assert not bool(y.any())


@compiles
def test_how_warpgroups_are_launched_is_kept_for_a_shape() -> None:
    case = choice("wgmma", 64, 64, 128, 1, 5, 168, 240, -3), 2560, 64, 1728, True
    one = ct._tile(*case, None, 132)
    assert one is ct._tile(*case, None, 132)
    assert (one.spread.programs, one.spread.split, one.sums, one.counts) == (120, 3, 40 * 64 * 64, 80)
    assert not one.boxed
    boxed = ct._tile(*case, torch.bfloat16, 132)
    assert boxed.boxed
    assert boxed.layouts[2] is not None


def test_a_row_with_a_multiprocessor_of_its_own_has_more_warps() -> None:
    assert ct._cut(2560) == (4096, 1, 4)
    assert ct._cut(2560, alone=True) == (4096, 1, 16)
    assert ct._cut(128, alone=True) == (128, 1, 1)
    assert ct._cut(70000, alone=True)[2] == ct._cut(70000)[2] == 16


def test_tokens_of_another_width_are_refused() -> None:
    made = cw.ternary_of(torch.zeros((2, 8), dtype=torch.int8))
    with pytest.raises(ArgumentError, match="tokens have 7 columns and weights 8"):
        ct.linear(torch.ones((1, 7)), made, torch.ones(()))


@on_cuda
def test_a_graph_replays_layers_exactly() -> None:
    rng = np.random.default_rng(5)
    w, made = weights(rng, 640, 2560, True)
    scale, x = torch.full((), 0.5, device="cuda"), torch.zeros((128, 2560), device="cuda")
    ct.linear(x, made, scale)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ys = [ct.linear(x, made, scale) for _ in range(8)]
    for _ in range(8):
        x.copy_(torch.randn(128, 2560))
        graph.replay()
        expected = np.empty((128, 640), np.float32)
        quantized.KERNELS[quantized.ops.quantized_matmul](
            x.cpu().numpy(), w, np.float32(0.5), None, group=0, out=expected
        )
        for y in ys:
            same(y, expected)


# ---- choices


def test_what_a_tuner_found_comes_first() -> None:
    case, mine = Case(100, 200, 3), choice("gemv_plain", 4, 64, 2)
    ct.use({case: mine})
    try:
        assert cuda_tuned.choose(case, (9, 0), 132) == mine
    finally:
        ct.use({})
    assert cuda_tuned.choose(case, (9, 0), 132) != mine


@given(st.integers(64, 20_000), st.integers(64, 20_000), st.integers(9, 4000), st.booleans())
def test_stages_leave_room_for_results_of_four_bytes(n: int, k: int, m: int, codes: bool) -> None:
    room, out = 232448, 2 * 16384 + 256  # of a multiprocessor of Hopper; of both warpgroups, and barriers
    for c in cuda_tuned.wgmmas(Case(n, k, m, codes)):
        nbytes = c.get("bytes") * (c.get("rows") + c.get("tokens") * (4 if codes else 1))
        assert cuda_tuned.FEWEST_STAGES <= ct._stages(c, nbytes) <= (room - out) // nbytes


# ---- early starts


@pytest.mark.parametrize(("said", "early"), [(None, True), ("0", False), ("1", True)])
def test_kernels_start_early_unless_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, said: str | None, early: bool
) -> None:
    monkeypatch.delenv("TRITIUM_CUDA_EARLY", raising=False)
    if said is not None:
        monkeypatch.setenv("TRITIUM_CUDA_EARLY", said)
    hopper, ampere = Gpu((9, 0), 132, True), Gpu((8, 0), 108, False)
    assert tritium_settings.cuda_early() == early
    assert hopper.early == early
    assert not ampere.early
    assert ct._options(hopper, 4, early=True).get("launch_pdl", False) == early
    assert "launch_pdl" not in ct._options(hopper, 4)


# ---- building


# A tile as it is, its columns shared by three programs, those of its last round shared, and in pieces; with the bytes it may spill where
# the sums of parts meet, by the assembler of Triton 3.6.
TILES = {
    "wgmma": (choice("wgmma", 256, 128, 64, 0, 3, 168, 240, 1), 1, 1, 0),
    "wgmma, two tensors": (choice("wgmma", 256, 160, 32, 0, 4, 168, 240, 0), 1, 1, 0),
    "wgmma, shared": (choice("wgmma", 128, 128, 64, 0, 4, 168, 240, -3), 3, 1, 16),
    "wgmma, two tensors, shared": (choice("wgmma", 128, 80, 64, 0, 6, 104, 136, -3), 3, 1, 32),
    "wgmma, last round shared": (choice("wgmma", 128, 96, 64, 0, 6, 104, 136, 3), 1, 0, 32),
    "wgmma, last round in pieces": (choice("wgmma", 128, 128, 64, 0, 4, 168, 240, 1), 1, 2, 0),
}


@compiles
@pytest.mark.parametrize("name", ["gemv", "gemv of integers", "fragments", *TILES])
def test_the_kernels_for_hopper_are_built_without_spilling(name: str) -> None:
    from triton.experimental.gluon import language as gl

    from tritium.backends.cuda.linear import fragments as cuda_fragments, gemv as cuda_gemv, wgmma as cuda_wgmma

    ends = {"total": "*i32", "token_scale": "*fp32", "scale": "*fp32", "bias": "*fp32", "out": "*bf16"}

    def tile(
        cut: Choice, split: int, pieces: int, _: int
    ) -> tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]:
        rows, tokens, step, stages = (cut.get(name) for name in ("rows", "tokens", "bytes", "stages"))
        part, high = rows // 2, (*tensors(tokens), 0)[:2] if pieces < 2 else (tokens, tokens // pieces)
        layouts = [
            gl.NVMMASharedLayout.get_default_for([64, wide], t) for wide, t in ((step, gl.int8), (part, gl.bfloat16))
        ]
        kinds = {"w": f"tensordesc<u8[{part}, {step}],{layouts[0]!r}>", "partial": "*i32", "counts": "*i32"}
        fixed: dict[str, Any] = {
            "BN": rows, "BM": tokens, "BK": step, "STAGES": stages, "TURNS": False, "GROUP": 8, "CODES": True, "SPLIT": split,
            "PIECES": pieces, "REGISTERS": cut.get("most"),
        }  # fmt: skip
        for x, box, count in zip(("x", "x_fewer"), ("box", "box_fewer"), high, strict=True):
            if count:
                kinds |= {
                    x: f"tensordesc<i8[{count}, {step}],{layouts[0]!r}>",
                    box: f"tensordesc<bf16[{count}, {part}],{layouts[1]!r}>",
                }
            else:
                fixed |= {x: None, box: None}
        return cuda_wgmma.wgmma, kinds, fixed, {"num_warps": 4, "maxnreg": cut.get("registers")}

    built_tiles = {name: tile(*TILES[name])} if name in TILES else {}
    kernel, kinds, numbers, options = (built_tiles | {
        "gemv": (
            cuda_gemv.gemv, {"w": "*i32", "x": "*fp32", "gated": "*fp32", "weight": "*fp32"},
            {"K": 2560, "KW": 160, "WIDE": 160, "BN": 64, "TK": 8, "WK": 1, "M": 1, "CODES": True, "FLOATS": True,
             "EPS": 1e-5, "NORM": 2, "GATED": True}, {"num_warps": 8},
        ),
        "gemv of integers": (
            cuda_gemv.gemv, {"w": "*i32", "x": "*i32", "gated": "*bf16", "weight": "*bf16"},
            {"K": 8192, "KW": 512, "WIDE": 512, "BN": 8, "TK": 32, "WK": 1, "M": 1, "CODES": True, "FLOATS": False,
             "EPS": 0.0, "NORM": 0, "GATED": False}, {"num_warps": 4},
        ),
        "fragments": (
            cuda_fragments.fragments, {"w": "*i32", "x": "*i32"},
            {"BLOCKS": 20, "NT": 1, "WK": 4, "WN": 1, "TG": 2, "AHEAD": 5, "TILED": True}, {"num_warps": 4},
        ),
    })[name]  # fmt: skip
    kinds |= ends
    even = [n for n in kernel.arg_names if n in ("N", "KB") or kinds.get(n, "").startswith("*")]
    numbers, options = numbers | {"ROWS": True, "BIAS": 1}, options | {"enable_fp_fusion": False}
    made = built(kernel, kinds, numbers, 90, even, **options)
    word = {"gemv": "dp4a", "gemv of integers": "dp4a", "fragments": "mma.sync"}.get(name, "wgmma.mma_async")
    assert word in made.asm["ptx"]
    assert "fma.rn.f32" not in made.asm["ptx"]
    assert spills_at_most(made, TILES[name][3] if name in TILES else 0)

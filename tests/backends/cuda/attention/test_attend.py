"""Attention on a GPU gives the bits of the reference; what was never written is not read.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device. Which of both Triton
does is settled when it is imported, so it is not imported here.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium.backends.reference.attention import factor_of
from tritium.ops import attention
from triton_runs import (
    INTERPRETED,
    MODE,
    PLACE,
    built,
    compiles,
    in_both_modes,
    kernels_of,
    passes,
    runs,
    spilled,
)

torch = pytest.importorskip("torch", reason="attention on CUDA needs PyTorch: pip install torch triton")
if importlib.util.find_spec("triton") is None:
    pytest.skip("attention on CUDA needs Triton: pip install torch triton", allow_module_level=True)
from cuda_arrays import by_reference, halves, paged, there, unpaged  # noqa: E402


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


kernels, caches = kernels_of("attention.attend"), kernels_of("attention.cache")


sizes = {
    "batch": st.integers(1, 3), "tokens": st.integers(1, 5), "per": st.integers(1, 4), "shared": st.integers(1, 2),
    "size": st.sampled_from([2, 7, 16, 33]), "capacity": st.integers(6, 90), "seed": st.integers(0, 2**32),
    "half": st.booleans(), "placed": st.booleans(),
}  # fmt: skip


@runs
@settings(max_examples=25, deadline=None)  # most have a kernel of their own, which is compiled for seconds
@given(**sizes)
def test_attention_has_the_bits_of_the_reference(
    batch: int, tokens: int, per: int, shared: int, size: int, capacity: int, seed: int, half: bool, placed: bool
) -> None:
    rng = np.random.default_rng(seed)
    kind = np.float16 if half else np.float32
    slots = batch + 1 if placed else batch
    q = rng.standard_normal((batch, tokens, per * shared, size)).astype(np.float32)
    k, v = (rng.standard_normal((slots, shared, capacity, size)).astype(kind) for _ in range(2))
    places = None
    if placed:
        start = rng.integers(0, capacity - tokens + 1, batch)
        count = rng.integers(0, tokens + 1, batch)
        places = np.stack([rng.permutation(slots)[:batch], start, count], 1).astype(np.int32)
        for slot, first, n in places:
            k[slot, :, first + n :] = v[slot, :, first + n :] = np.nan  # nobody has written there
    want = by_reference(attention, np.empty_like(q), q, k, v, places, scale=None)
    given = None if places is None else there(places)
    got = kernels().attend(there(q), there(k), there(v), given, factor_of(size, None))
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@runs
@pytest.mark.parametrize(("tokens", "per"), [(1, 4), (2, 3), (34 if INTERPRETED else 70, 2)])
@pytest.mark.parametrize("window", [1, 31, 33, 100, 1000])
def test_a_window_has_the_bits_of_the_reference(tokens: int, per: int, window: int) -> None:
    rng = np.random.default_rng(window)
    q = rng.standard_normal((3, tokens, 2 * per, 16)).astype(np.float32)
    k, v = (rng.standard_normal((3, 2, 305, 16)).astype(np.float16) for _ in range(2))
    places = np.array([[0, 200, tokens], [2, 0, tokens], [1, 90, tokens - 1]], np.int32)
    want = by_reference(attention, np.empty_like(q), q, k, v, places, scale=None, window=window)
    got = kernels().attend(there(q), there(k), there(v), there(places), factor_of(16, None), window)
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@runs
@settings(max_examples=12, deadline=None)
@given(
    tokens=st.integers(1, 3), block=st.sampled_from([3, 16, 32, 64]), window=st.sampled_from([None, 20]),
    ends=st.lists(st.sampled_from([0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130]), min_size=1, max_size=3), seed=st.integers(0, 2**32),
    half=st.booleans(),
)  # fmt: skip
def test_blocks_have_the_bits_of_slots(
    tokens: int, block: int, window: int | None, ends: list[int], seed: int, half: bool
) -> None:
    rng = np.random.default_rng(seed)
    batch, capacity, kind = len(ends), 140, np.float16 if half else np.float32
    q = rng.standard_normal((batch, tokens, 4, 16)).astype(np.float32)
    k, v = (rng.standard_normal((batch + 1, 2, capacity, 16)).astype(kind) for _ in range(2))
    count = np.minimum(ends, tokens)
    places = np.stack([rng.permutation(batch + 1)[:batch], np.array(ends) - count, count], 1).astype(np.int32)
    for slot, start, n in places:
        k[slot, :, start + n :] = v[slot, :, start + n :] = np.nan
    want = by_reference(attention, np.empty_like(q), q, k, v, places, scale=None, window=window)
    pool, rows = paged(there(np.concatenate([k, v], 1)), places, block, rng)
    np.testing.assert_array_equal(
        by_reference(
            attention,
            np.empty_like(q),
            q,
            *(x.cpu().numpy() for x in pool.chunk(2, 1)),
            rows,
            scale=None,
            window=window,
        ),
        want,
    )
    got = kernels().attend(there(q), *pool.chunk(2, 1), there(rows), factor_of(16, None), window)
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@runs
@pytest.mark.parametrize("start", [0, 31, 32, 300])
@pytest.mark.parametrize(("tokens", "per"), [(1, 4), (2, 3), (5, 4)])
def test_parts_of_the_keys_are_joined(start: int, tokens: int, per: int) -> None:
    """One part with keys, some and all of them; for few queries by the last program, for more by a second launch.

    The next launch finds the counts at zero, as the one before left them.
    """
    rng = np.random.default_rng(start)
    q = rng.standard_normal((1, tokens, 2 * per, 16)).astype(np.float32)
    k, v = (rng.standard_normal((1, 2, 305, 16)).astype(np.float16) for _ in range(2))
    places = np.array([[0, start, tokens]], np.int32)
    k[:, :, start + tokens :] = v[:, :, start + tokens :] = np.nan
    want = by_reference(attention, np.empty_like(q), q, k, v, places, scale=None)
    for _ in range(2):
        got = kernels().attend(there(q), there(k), there(v), there(places), factor_of(16, None))
        np.testing.assert_array_equal(got.cpu().numpy(), want)
    assert kernels().counters(got.device).some(1).sum().item() == 0


on_gpu = pytest.mark.skipif(not torch.cuda.is_available() or MODE != "compiled", reason="needs a GPU of CUDA")


@on_gpu
@settings(max_examples=100, deadline=None)
@given(
    batch=st.integers(1, 9), per=st.integers(1, 5), shared=st.integers(1, 5), capacity=st.integers(1, 700),
    seed=st.integers(0, 2**32), brain=st.booleans(), placed=st.booleans(),
)  # fmt: skip
def test_one_token_of_large_heads_has_the_bits_of_the_reference(
    batch: int, per: int, shared: int, capacity: int, seed: int, brain: bool, placed: bool
) -> None:
    rng = np.random.default_rng(seed)
    slots, kind = batch + placed, torch.bfloat16 if brain else torch.float16
    q = rng.standard_normal((batch, 1, per * shared, 128)).astype(np.float32)
    k, v = (torch.from_numpy(rng.standard_normal((slots, shared, capacity, 128))).to(kind) for _ in range(2))
    places = None
    if placed:
        places = np.stack(
            [rng.permutation(slots)[:batch], rng.integers(0, capacity, batch), rng.integers(0, 2, batch)], 1
        )
        for slot, start, count in places:
            k[slot, :, start + count :] = v[slot, :, start + count :] = torch.nan
        places = places.astype(np.int32)
    wide = (x.float().numpy() for x in (k, v))
    want = by_reference(attention, np.empty_like(q), q, *wide, places, scale=None)
    both = torch.cat([k, v], 1).to(PLACE)
    for _ in range(2):  # the second finds the counts as the first left them
        got = kernels().attend(
            there(q),
            both[:, :shared],
            both[:, shared:],
            None if places is None else there(places),
            factor_of(128, None),
        )
        np.testing.assert_array_equal(got.cpu().numpy(), want)


@on_gpu
def test_one_token_of_large_heads_and_what_is_not_a_number() -> None:
    q = np.ones((1, 1, 4, 128), np.float32)
    k, v = (torch.ones((1, 1, 130, 128), dtype=torch.float16) for _ in range(2))
    v[0, 0, 100, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    k[0, 0, 40, 0] = -torch.inf
    want = by_reference(
        attention, np.empty_like(q), q, k.float().numpy(), v.float().numpy(), None, scale=None, window=None
    )
    got = kernels().attend(there(q), k.to(PLACE), v.to(PLACE), None, factor_of(128, None))
    np.testing.assert_array_equal(got.cpu().numpy(), want)


KINDS = ("alone", "company", "apart", "last", "padded", "outside")


def new_places(rng: np.random.Generator, kind: str, batch: int, slots: int, capacity: int) -> np.ndarray[Any, Any]:
    """Slot, start and count of new tokens. alone: a slot for each; company: several in a slot, some at one place; apart: in a slot,
    but mostly in other shares of its keys; last: at the last places of a slot; padded: some count nothing; outside: some are not
    inside the cache, or say that they bring more than one token."""
    slot = rng.permutation(slots)[:batch] if kind == "alone" else rng.integers(0, max(slots // 3, 1), batch)
    low, high = {"alone": (0, capacity), "apart": (0, capacity), "last": (max(capacity - 3, 0), capacity)}.get(
        kind, (0, min(capacity, 20))
    )
    start = rng.integers(low, high, batch)
    count = rng.integers(0, 2, batch) if kind in ("padded", "outside") else np.ones(batch, np.int64)
    if kind == "outside":
        slot, start, count = (
            np.where(rng.random(batch) < 0.2, bad, good)
            for bad, good in ((rng.choice([-1, slots], batch), slot), (rng.choice([-1, capacity], batch), start),
                              (rng.choice([-1, 2, 3], batch), count))
        )  # fmt: skip
    return np.stack([slot, start, count], 1).astype(np.int32)


@on_gpu
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    ("batch", "per", "shared", "capacity", "brain"),
    [(1, 4, 5, 600, False), (1, 4, 2, 47, True), (1, 1, 1, 16, False), (3, 3, 2, 33, False), (3, 2, 3, 1, True),
     (2, 4, 5, 400, False), (2, 1, 1, 700, True), (8, 4, 5, 192, False), (8, 2, 5, 130, True), (9, 4, 5, 90, True),
     (16, 4, 5, 300, False), (64, 4, 5, 70, False), (90, 4, 5, 140, False), (16, 4, 8, 1100, False), (33, 3, 5, 600, True),
     (64, 1, 2, 40, False), (48, 2, 8, 257, True)],
)  # fmt: skip
def test_new_tokens_in_one_launch_have_the_bits_of_three(
    batch: int, per: int, shared: int, capacity: int, brain: bool, settled: bool
) -> None:
    """Turned, written to the cache and attended to; what nobody has written is not read."""
    if not kernels().decodes(torch.device(PLACE, 0), 128, per * shared, shared):
        pytest.skip("this GPU has no kernel for one new token")
    rng = np.random.default_rng(batch * capacity + per)
    heads, slots, dtype = per * shared, batch + 1, torch.bfloat16 if brain else torch.float16
    factor = factor_of(128, None)
    for kind in KINDS * 3:
        wide = there(rng.standard_normal((batch, 1, (heads + 2 * shared) * 128 + 128)).astype(np.float32))
        x = wide[..., 128:].unflatten(-1, (heads + 2 * shared, 128))  # rows of it are further apart than its heads say
        cos, sin = (there(rng.standard_normal((batch, 1, 64)).astype(np.float32)) for _ in range(2))
        places = new_places(rng, kind, batch, slots, capacity)
        cache = torch.from_numpy(rng.standard_normal((slots, 2 * shared, capacity, 128))).to(dtype)
        if kind == "alone":
            for slot, start, _ in places:
                cache[slot, :, start:] = torch.nan
        apart, together, at = cache.to(PLACE), cache.to(PLACE), there(places)
        turned = caches().rope(x, cos, sin, torch.float32, False, heads + shared)
        caches().write(apart, turned[:, :, heads:], at)
        want = kernels().attend(turned[:, :, :heads], apart[:, :shared], apart[:, shared:], at, factor)
        torch.cuda.synchronize()
        got = kernels().attend_new(x, cos, sin, together, at, factor, settled)
        np.testing.assert_array_equal(got.cpu().numpy(), want.cpu().numpy(), err_msg=kind)
        np.testing.assert_array_equal(together.float().cpu().numpy(), apart.float().cpu().numpy(), err_msg=kind)
        assert kind != "alone" or np.isfinite(got.cpu().numpy()).all()


LENGTHS = (0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 400, 1000, 2049)


@on_gpu
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    ("batch", "per", "shared", "brain"),
    [(1, 4, 5, False), (2, 3, 1, True), (7, 4, 2, False), (16, 4, 5, True), (33, 2, 8, False), (64, 4, 5, False), (90, 1, 2, True)],
)  # fmt: skip
def test_new_tokens_of_blocks_have_the_bits_of_slots(
    batch: int, per: int, shared: int, brain: bool, settled: bool
) -> None:
    """Sequences of very different lengths among each other; the next call finds the counts at zero."""
    if not kernels().decodes(torch.device(PLACE, 0), 128, per * shared, shared, 64):
        pytest.skip("this GPU has no kernel for one new token")
    rng = np.random.default_rng(batch)
    heads, slots, capacity = per * shared, batch + 1, 2176
    dtype, factor = torch.bfloat16 if brain else torch.float16, factor_of(128, None)
    for kind in ("lengths", *KINDS) * 3:
        x = there(rng.standard_normal((batch, 1, heads + 2 * shared, 128)).astype(np.float32))
        cos, sin = (there(rng.standard_normal((batch, 1, 64)).astype(np.float32)) for _ in range(2))
        places = new_places(rng, "alone" if kind == "lengths" else kind, batch, slots, capacity)
        if kind == "lengths":
            places[:, 1] = rng.choice(LENGTHS, batch)
        places[places[:, 0] == slots, 0] = -1  # where there are blocks, a slot may have any name
        cache = torch.randn((slots, 2 * shared, capacity, 128), device=PLACE).to(dtype)
        if kind == "lengths":
            for slot, start, _ in places:
                cache[slot, :, start:] = torch.nan
        apart, at = cache.clone(), there(places)
        turned = caches().rope(x, cos, sin, torch.float32, False, heads + shared)
        caches().write(apart, turned[:, :, heads:], at)
        want = kernels().attend(turned[:, :, :heads], apart[:, :shared], apart[:, shared:], at, factor).cpu().numpy()
        pool, rows = paged(cache, places, 64, rng)
        for _ in range(2):
            got = kernels().attend_new(x, cos, sin, pool, there(rows), factor, settled)
            np.testing.assert_array_equal(got.cpu().numpy(), want, err_msg=kind)
        named = places[:, 0] >= 0
        written = unpaged(pool, rows[named], capacity).float().cpu().numpy()
        np.testing.assert_array_equal(written, apart[places[named, 0]].float().cpu().numpy(), err_msg=kind)
        got = kernels().attend(turned[:, :, :heads], *pool.chunk(2, 1), there(rows), factor)
        np.testing.assert_array_equal(got.cpu().numpy(), want, err_msg=kind)
        assert kind != "lengths" or np.isfinite(want).all()


@compiles
@pytest.mark.parametrize("window", [0, 512])
@pytest.mark.parametrize(("parts", "block"), [(1, 0), (32, 0), (32, 64), (32, 12)])
def test_the_kernels_for_several_tokens_are_built(window: int, parts: int, block: int) -> None:
    """The interpreter lets a name change its type, which a compiler does not."""
    module = kernels()
    common = {"SIZE": 64, "WIDE": 32, "PER": 4, "ROWS": 16, "KEYS": 32, "PARTS": parts, "PLACED": True, "BLOCK": block,
              "WINDOW": window, "EARLY": True}  # fmt: skip
    strides = module.Strides(*["i32"] * 3)
    kinds = {"places": "*i32", "out": "*fp32", "sums": module.PartSums(*["*fp64"] * 3), "o_strides": strides}
    built(module.join_kernel, kinds, common, 90, num_warps=4)
    own = {"USED": 16, "TOGETHER": 1, "LAST": True, "SINGLE": False, "BRAIN": False, "FACTOR": 0.25, "ASM": True}
    lines = module.CacheStrides(*["i32"] * 3)
    kinds |= {
        "q": "*fp32",
        "k": "*i32",
        "v": "*i32",
        "counts": "*i32",
        "q_strides": strides,
        "k_strides": lines,
        "v_strides": lines,
    }
    built(module.attend_kernel, kinds, common | own, 90, num_warps=4)


def kinds_of_new_tokens() -> dict[str, Any]:
    """Return the types of the arguments that both kernels for new tokens take."""
    from tritium.backends.cuda.attention import decode as cuda_decode, shares as cuda_shares

    slots = cuda_decode.SlotStrides("i32", "i32")
    return {
        "x": cuda_decode.Tokens(*["*fp32"] * 3), "k": "*fp16", "v": "*fp16", "places": cuda_shares.Places("*i32", "i32"), "out": "*fp32",
        "sums": kernels().PartSums(*["*fp64"] * 3), "counts": "*i32", "x_strides": cuda_decode.TokenStrides(*["i32"] * 4),
        "k_strides": slots, "v_strides": slots, "o_strides": cuda_decode.OutStrides("i32", "i32"),
    }  # fmt: skip


@compiles
@pytest.mark.parametrize(("parts", "batch"), [(1, 1), (16, 1), (32, 1), (1, 64), (4, 16)])
@pytest.mark.parametrize(("fresh", "settled", "block"), [(False, False, 0), (True, False, 64), (True, True, 64)])
def test_the_kernel_for_new_tokens_is_built(parts: int, batch: int, fresh: bool, settled: bool, block: int) -> None:
    """Products of rotary pairs are rounded before they are added; no register is spilled."""
    from tritium.backends.cuda.attention import decode as cuda_decode

    kernel = cuda_decode.decode
    fixed = {"PER": 4, "USED": 4, "PARTS": parts, "MOST": parts if batch == 1 else 32, "TOKEN": 128, "BLOCK": block,
             "BATCH": 1 if batch == 1 else max(batch, 32), "PLACED": True, "FRESH": fresh, "SETTLED": settled, "FACTOR": 0.25}  # fmt: skip
    kinds = kinds_of_new_tokens()
    options = {"num_warps": cuda_decode.WARPS, "maxnreg": cuda_decode.registers(batch, parts), "launch_pdl": True}
    made = built(kernel, kinds, fixed, 90, kinds, **options)
    ptx = made.asm["ptx"]
    assert ("mul.rn.f32" in ptx) == fresh
    assert "fma.rn.f32" not in ptx
    waits, first_load = ptx.index("griddepcontrol.wait"), ptx.index("ld.global.cg.v2.b32")
    assert (first_load < waits) == settled
    assert spilled(made) == 0


@compiles
@pytest.mark.parametrize("block", [0, 64])
def test_the_kernel_for_many_sequences_is_built(block: int) -> None:
    """Tensor cores multiply in f64, lanes load 16 bytes of keys and values, and no register is spilled."""
    from tritium.backends.cuda.attention import many as cuda_many

    fixed = {
        "PER": 4,
        "USED": 4,
        "PARTS": 2,
        "MOST": 32,
        "TOKEN": 128,
        "BLOCK": block,
        "BATCH": 64,
        "SHARE": cuda_many.LEAST,
        "SETTLED": True,
        "FACTOR": 0.25,
    }
    kinds = kinds_of_new_tokens()
    made = built(
        cuda_many.decode_many, kinds, fixed, 90, kinds, num_warps=4, maxnreg=cuda_many.registers(512, 132), launch_pdl=True
    )  # fmt: skip
    ptx = made.asm["ptx"]
    assert ptx.count("mma.sync.aligned.m16n8k16") == 16
    assert ptx.count("ld.global.cg.v4.b32") >= 16
    assert "fma.rn.f32" not in ptx
    assert spilled(made) == 0


@runs
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_what_is_not_a_number_stays_so(kind: Any) -> None:
    q = np.ones((1, 1, 2, 4), np.float32)
    k, v = np.ones((2, 1, 1, 130, 4), kind)
    v[0, 0, 100], k[0, 0, 40] = [np.inf, -np.inf, np.nan, 2**-24], [-np.inf, 0, 0, 0]
    want = by_reference(attention, np.empty_like(q), q, k, v, None, scale=None)
    got = kernels().attend(there(q), there(k), there(v), None, factor_of(4, None))
    np.testing.assert_array_equal(got.cpu().numpy(), want)
    assert [np.isposinf(want[0, 0, 0]).any(), np.isnan(want).any(), np.isfinite(want).any()] == [True] * 3


@runs
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_caches_may_be_views_and_are_not_copied(kind: Any) -> None:
    rng = np.random.default_rng(7)
    q = rng.standard_normal((2, 1, 6, 16)).astype(np.float32)
    k, v = (rng.standard_normal((3, 2, 70, 16)).astype(kind) for _ in range(2))
    places = np.array([[2, 60, 1], [0, 3, 1]], np.int32)
    want = by_reference(attention, np.empty_like(q), q, k, v, places, scale=None)
    views = halves(k, v)
    got = kernels().attend(there(q), *views, there(places), factor_of(16, None))
    np.testing.assert_array_equal(got.cpu().numpy(), want)
    for view in views:
        assert kernels()._words(view, kind is np.float32).data_ptr() == view.data_ptr()


@pytest.mark.skipif(INTERPRETED or not MODE or not torch.cuda.is_available(), reason="graphs are captured on CUDA")
@pytest.mark.parametrize("size", [16, 128])
def test_graphs_count_in_memory_of_their_own(size: int) -> None:
    rng = np.random.default_rng(10)
    q = there(rng.standard_normal((1, 1, 4, size)).astype(np.float32))
    k, v = (there(rng.standard_normal((1, 2, 512, size)).astype(np.float16)) for _ in range(2))
    places = there(np.array([[0, 400, 1]], np.int32))
    want = kernels().attend(q, k, v, places, 0.25)
    graphs, found = [torch.cuda.CUDAGraph() for _ in range(2)], []
    for graph in graphs:
        with torch.cuda.graph(graph):
            found.append([kernels().attend(q, k, v, places, 0.25) for _ in range(8)])
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(50):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(y, want) for ys in found for y in ys)

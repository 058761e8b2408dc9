"""Weights as kernels of a GPU read them: every code stands where it is looked for, and an arrangement is made once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium import dtype as dt
from tritium.backends.reference import packed

torch = pytest.importorskip("torch", reason="weights on CUDA need PyTorch: pip install torch triton")
from tritium.backends.cuda.linear import (  # noqa: E402
    products as cuda_products,
    weights as cw,
)
from tritium.backends.torch.space import Space  # noqa: E402


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 70), st.integers(1, 300), st.integers(0, 2**31))
def test_every_code_stands_where_tensor_cores_look_for_it(n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.integers(-1, 2, (n, k)).astype(np.int8)
    made = cw.ternary(torch.from_numpy(packed.pack(w, dt.tern2).data), (n, k))
    found = made.fragments().numpy().view(np.uint8).reshape(-1, made.wide // 128, 32, 4, 4)
    t, c, lane, r, b, p = np.meshgrid(*(np.arange(s) for s in (*found.shape, 4)), indexing="ij")
    j = 2 * p + r // 2
    row, column = 16 * t + lane // 4 + 8 * (r % 2), 128 * c + 64 * (j // 4) + 16 * (lane % 4) + 4 * (j % 4) + b
    whole = np.zeros((found.shape[0] * 16, made.wide), np.uint8)
    whole[:n, :k] = w + 1
    np.testing.assert_array_equal((found[..., None] >> (2 * np.arange(4, dtype=np.uint8))) & 3, whole[row, column])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 70), st.integers(1, 300), st.integers(0, 2**31))
def test_pairs_are_the_fields_of_fragments_two_by_two(n: int, k: int, seed: int) -> None:
    w = torch.from_numpy(np.random.default_rng(seed).integers(-1, 2, (n, k)).astype(np.int8))
    made = cw.ternary_of(w)
    codes = (made.fragments().view(torch.uint8).view(-1, 4, 1) >> (2 * torch.arange(4, dtype=torch.uint8))) & 3
    first, second = 3 * codes[:, :, 0] + codes[:, :, 1], 3 * codes[:, :, 2] + codes[:, :, 3]  # [word, byte]
    shifts = 4 * torch.arange(8)
    found = (made.pairs().view(-1, 1).long() >> shifts) & 15
    assert torch.equal(found, torch.tensor(cw.PAIRS)[torch.cat((first, second), 1).long()])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 20), st.integers(1, 300), st.booleans(), st.integers(0, 2**31))
def test_planes_hold_columns_a_quarter_of_a_row_apart(n: int, k: int, straight: bool, seed: int) -> None:
    w = np.random.default_rng(seed).integers(-1, 2, (n, k)).astype(np.int8)
    given = torch.from_numpy(w if straight else packed.pack(w, dt.tern2).data)
    made = cw.ternary_of(given) if straight else cw.ternary(given, (n, k))
    fields = [(made.planes().numpy() >> (2 * s)) & 3 for s in range(4)]
    np.testing.assert_array_equal(np.concatenate(fields, 1)[:, :k], w + 1)
    np.testing.assert_array_equal(made.straight().numpy()[:, :k], w)
    assert not made.straight()[:, k:].any()


@pytest.mark.parametrize("kind", [t for t in dt.PACKED if t.is_ternary], ids=str)
def test_weights_of_every_ternary_dtype_are_read_as_codes(kind: dt.DType) -> None:
    w = np.random.default_rng(2).integers(-1, 2, (70, 300)).astype(np.int8)
    stored = packed.pack(w, kind)
    space = Space(torch.device("cpu"), lambda *told: None)
    made = cuda_products.weights(space, packed.Packed(torch.from_numpy(stored.data), kind, (70, 300)))
    assert made.ternary
    np.testing.assert_array_equal(made.straight().numpy()[:, :300], w)


def test_an_arrangement_is_made_once_when_it_is_needed() -> None:
    made = cw.ternary_of(torch.zeros((16, 128), dtype=torch.int8))
    assert made.held() == {}
    assert made.planes() is made.planes()
    assert made.held() == {"planes": 16 * 32}


@pytest.mark.parametrize("k", [128, 100])
def test_int8_weights_are_laid_row_by_row(k: int) -> None:
    w = torch.arange(6 * k, dtype=torch.int32).to(torch.int8).reshape(k, 6).t()
    found = cw.int8(w).straight()
    assert found.is_contiguous()
    assert torch.equal(found[:, :k], w)
    assert not found[:, k:].any()


def test_an_arrangement_made_in_a_capture_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made, whole = (
        cw.ternary_of(torch.ones((16, 128), dtype=torch.int8)),
        cw.int8(torch.ones((16, 128), dtype=torch.int8)),
    )
    with monkeypatch.context() as patch:
        patch.setattr(cw, "capturing", lambda: True)
        for name in ("planes", "fragments", "pairs", "straight"):
            assert torch.equal(getattr(made, name)(), getattr(made, name)())
            assert not made.keeps(name)
        assert whole.straight() is whole.data
        assert not whole.keeps("straight")
    assert made.held() == whole.held() == {}
    made.planes()
    assert made.keeps("planes")
    assert not made.keeps("fragments")
    assert whole.straight() is whole.data
    assert not whole.keeps("straight")  # who owns it may write it at any time

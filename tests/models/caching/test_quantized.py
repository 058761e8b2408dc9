"""Keys and values in 8 and 4 bits: the bits of the reference, the same in any batch, and a loss that is small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import models
import tritium as tt
from tritium import ops
from tritium.backends.reference.kernels import KERNELS
from tritium.backends.reference.kv_blocks import dequantize_blocks, quantize_blocks
from tritium.errors import ArgumentError, ShapeError
from tritium.models.load import Model, load

SHAPE = models.Shape(width=128, inner=96, heads=4, kv_heads=2, vocab=64, context=160)
KINDS = ("int8", "int8-int4", "int4")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = models.folder(tmp_path_factory.mktemp("q") / "m", models.random(SHAPE, 4))
    kept: dict[str, Model] = {}
    return lambda kv: kept.setdefault(kv, load(path, kv=kv))


numbers = st.floats(-1e5, 1e5, width=32) | st.sampled_from([0.0, float("inf"), float("nan"), 1e-30, 3e38])


@settings(max_examples=60)
@given(hnp.arrays(np.float32, st.tuples(st.just(1), st.just(2), st.just(1), st.sampled_from([32, 64])), elements=numbers),
       st.sampled_from([8, 4]))  # fmt: skip
def test_blocks_have_the_bytes_of_the_reference(values: Any, bits: int) -> None:
    cache = np.full((1, 1, 3, ops.kv_row_bytes(values.shape[3], bits)), 7, np.uint8)
    places = np.array([[0, 1, 2]], np.int32)
    expected = cache.copy()
    with np.errstate(all="ignore"):
        KERNELS[ops.update_quantized_cache](cache, values, places, out=expected)
    written = tt.update_quantized_cache(tt.tensor(cache), tt.tensor(values), tt.tensor(places)).numpy()
    np.testing.assert_array_equal(written, expected)
    assert (written[0, 0, 0] == 7).all()


@pytest.mark.parametrize(("bits", "most"), [(8, 0.01), (4, 0.12)])
def test_what_is_read_is_near_what_was_written(bits: int, most: float) -> None:
    x = np.random.default_rng(1).normal(size=(50, 64))
    error = dequantize_blocks(quantize_blocks(x, bits), 64) - x
    assert np.sqrt(np.mean(error**2)) < most


def test_attention_over_integers_is_that_over_the_numbers_they_stand_for() -> None:
    draw = np.random.default_rng(2)
    k, v = (quantize_blocks(draw.normal(size=(2, 2, 140, 64)), bits) for bits in (8, 4))
    q = draw.normal(size=(3, 5, 4, 64)).astype(np.float32)
    places = np.array([[1, 100, 5], [0, 0, 3], [0, 135, 5]], np.int32)
    wide = [dequantize_blocks(x, 64).astype(np.float32) for x in (k, v)]
    for limits in ({}, {"window": 17}):
        expected = np.zeros_like(q)
        KERNELS[ops.attention](q, *wide, places, out=expected, scale=None, window=limits.get("window"))
        seen = tt.quantized_attention(*(tt.tensor(x) for x in (q, k, v, places)), **limits).numpy()
        np.testing.assert_allclose(seen, expected, atol=2e-6)


@pytest.mark.parametrize("kv", KINDS)
def test_any_batch_and_chunk_gives_the_same_bits(kv: str, made: Any, tmp_path: Path) -> None:
    model, ids = made(kv), models.prompt(SHAPE, 60)
    single = model.session()
    alone = np.stack([single.extend(0, [t]) for t in ids])
    session = model.session(slots=4)
    assert np.array_equal(session.extend(0, ids[:37]), alone[36])
    rows = session.extend_all([1, 2, 3], [ids[:9], ids[:20], ids[:30]])
    assert all(np.array_equal(row, alone[n - 1]) for row, n in zip(rows, (9, 20, 30), strict=True))
    assert np.array_equal(session.step([0, 2], [ids[37], ids[20]]), alone[[37, 20]])
    checked = session.verify([1], [ids[9:13]], whole=True)[0]
    assert np.array_equal(np.stack(checked), alone[9:13])
    session.share(0, 3, 33)
    assert np.array_equal(session.step([3], [ids[33]])[0], alone[33])
    other = model.session()
    other.restore(session.save(tmp_path / "s", slot=3))
    assert np.array_equal(other.step([0], [ids[34]])[0], alone[34])


def test_fewer_bits_take_less_memory_and_stay_near(made: Any) -> None:
    ids = models.prompt(SHAPE, 40)
    rows = {kv: made(kv).session().extend(0, ids) for kv in ("f32", *KINDS)}
    away = [float(np.abs(rows[kv] - rows["f32"]).mean()) for kv in KINDS]
    assert away[0] < away[2]
    assert np.corrcoef(rows["int4"], rows["f32"])[0, 1] > 0.9
    sizes = [made(kv).session().nbytes for kv in ("f16", *KINDS)]
    assert sizes == sorted(sizes, reverse=True)
    layers = SHAPE.layers  # the first has 8 bits and a scale, the others 4
    assert sizes[3] * 32 * layers == sizes[0] * (17 + 9 * (layers - 1))


def test_what_has_no_blocks_is_refused_by_name(tmp_path: Path) -> None:
    narrow = load(models.folder(tmp_path / "m", models.random(models.Shape(), 1)), kv="int4")
    with pytest.raises(ArgumentError, match="head_dim that is a multiple of 32; this model has 16"):
        narrow.session()
    with pytest.raises(ArgumentError, match=r"kv 'int3' is unknown; .* int8-int4"):
        load(kv="int3")
    with pytest.raises(ShapeError, match="rows of 40 bytes"):
        tt.update_quantized_cache(
            tt.zeros((1, 1, 4, 40), dtype=tt.u8), tt.zeros((1, 1, 1, 64)), tt.zeros((1, 3), dtype=tt.i32)
        )
    with pytest.raises(ArgumentError, match="8 or 4 bits"):
        tt.nn.QuantizedKVCache.empty(slots=1, heads=1, capacity=4, size=40)

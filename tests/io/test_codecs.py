"""The layouts of ternary weights: golden bytes, round trips, agreement with the packages that own them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from tritium.errors import FormatError
from tritium.io import Ternary, codecs
from tritium.io.ternary import pack, unpack


def t(n: int) -> np.ndarray:
    """The weights of the golden vectors."""
    i = np.arange(n)
    return ((7 * i + i // 5) % 3 - 1).astype(np.int8)


ROW = Ternary.from_values(t(256).reshape(1, 256), 0.5)
HALF_SCALE = "0000003f" + 28 * "00"
GOLDEN = {
    codecs.i2_s: "25429409502542940950254294095025429409502542940950254294095025420950254294095025429409502542940950254294"
    "095025429409502542940950" + HALF_SCALE,
    codecs.i2_s_arm64: "18618411461861841146186184114618461861841146186184114618618411461146186184114618618411461861841184114"
    "618618411461861841146186184" + HALF_SCALE,
    codecs.tq2_0: "588116600558811660055881166005588116600558811660055881166005588160055881166005588116600558811660055881166005"
    "588116600558811660050038",
    codecs.tq1_0: "465dd11874465dd11874465dd11874465dd11874465dd11874465dd11874465d3192b622663192b622663192b6226631235fcb430038",
    codecs.q2_0: "003824914412492491441249249144124924003891441249249144124924914412492491003844124924914412492491441249249144"
    "003812492491441249249144124924914412",
    codecs.pq2_0: "0038249144124924914412492491441249249144124924914412492491441249249100384412492491441249249144124924914412"
    "492491441249249144124924914412",
    # No package writes PTQ1_0. These bytes follow from the map of its elements in Prism's sources (element e < 80: byte e % 16,
    # digit e // 16; e < 120: byte 16 + (e - 80) % 8, digit (e - 80) // 8; else byte 24 + e % 2, digit (e - 120) // 2), which
    # the test below spells out.
    codecs.ptq1_0: "3192b622663192b622663192b62266310f85af2d900f85af465c003822663192b622663192b622663192b6222d900f85af2d900f1772"
    "0038",
}
BLOCKED = [codecs.tq2_0, codecs.tq1_0, codecs.q2_0, codecs.pq2_0, codecs.ptq1_0]
ids = lambda c: c.name


def same(a: Ternary, b: Ternary) -> bool:
    return (
        a.shape == b.shape
        and a.group == b.group
        and np.array_equal(a.codes, b.codes)
        and np.array_equal(a.scale, b.scale)
    )


@pytest.mark.parametrize("codec", GOLDEN, ids=ids)
def test_golden_bytes_are_written(codec: Any) -> None:
    assert codec.encode(ROW).tobytes().hex() == GOLDEN[codec]


@pytest.mark.parametrize("codec", GOLDEN, ids=ids)
def test_golden_bytes_are_read(codec: Any) -> None:
    assert same(codec.decode(bytes.fromhex(GOLDEN[codec]), (1, 256)).simplified(), ROW)


def test_golden_hf_packing_strides_over_the_rows() -> None:
    w = Ternary.from_values(t(32).reshape(8, 4), 0.5)
    assert codecs.hf.encode(w).tolist() == [[80, 37, 66, 148], [9, 80, 37, 66]]
    assert same(codecs.hf.decode(codecs.hf.encode(w), (8, 4), 0.5), w)


def test_weight_scale_divides_when_inverted() -> None:
    w = Ternary.from_values(t(32).reshape(8, 4))
    assert codecs.hf.decode(codecs.hf.encode(w), (8, 4), [4.0], inverted=True).scale == 0.25


def test_five_ternary_digits_make_the_byte_of_the_example() -> None:
    w = np.zeros((1, 256), np.int8)
    w[0, [0, 32, 64, 96, 128]] = np.array([2, 0, 1, 2, 1]) - 1
    assert codecs.tq1_0.encode(Ternary.from_values(w))[0] == 188


def test_ptq1_0_places_each_value_as_the_map_of_its_elements_says() -> None:
    for e in range(128):
        w = np.full((1, 128), -1, np.int8)
        w[0, e] = 1
        stage, start = (16, 0) if e < 80 else (8, 80) if e < 120 else (2, 120)
        byte, digit = {16: 0, 8: 16, 2: 24}[stage] + (e - start) % stage, (e - start) // stage
        data = codecs.ptq1_0.encode(Ternary.from_values(w))[:26].tolist()
        assert data == [-(-2 * 3 ** (4 - digit) * 256 // 243) if i == byte else 0 for i in range(26)]


def matrices(columns: int, rows: int = 1) -> Any:
    """Ternary matrices of a few rows, K a multiple of `columns` and N of `rows`."""
    shape = st.tuples(st.integers(1, 5).map(lambda n: n * rows), st.integers(1, 3).map(lambda k: k * columns))
    return shape.flatmap(lambda s: hnp.arrays(np.int8, s, elements=st.integers(-1, 1)))


F16 = st.floats(2**-14, 2**14, width=16)


@pytest.mark.parametrize("codec", BLOCKED, ids=ids)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_blocks_come_back_with_codes_and_scales(codec: Any, data: st.DataObject) -> None:
    w = data.draw(matrices(codec.block))
    scale = data.draw(hnp.arrays(np.float32, (w.shape[0], w.shape[1] // codec.block), elements=F16))
    given_ = Ternary.from_values(w, scale, codec.block)
    assert same(codec.decode(codec.encode(given_), given_.shape), given_)


@pytest.mark.parametrize("codec", [codecs.i2_s, codecs.i2_s_arm64], ids=ids)
@given(w=matrices(128), scale=st.floats(-(2.0**90), 2.0**90, width=32))
@settings(max_examples=25, deadline=None)
def test_i2_s_comes_back(codec: Any, w: Any, scale: float) -> None:
    given_ = Ternary.from_values(w, scale)
    assert same(codec.decode(codec.encode(given_).tobytes(), w.shape), given_)


@given(w=matrices(1, rows=4), scale=st.floats(2**-20, 2**20, width=32))
@settings(max_examples=25, deadline=None)
def test_hf_packing_comes_back(w: Any, scale: float) -> None:
    given_ = Ternary.from_values(w, scale)
    assert same(codecs.hf.decode(codecs.hf.encode(given_), w.shape, scale), given_)


@given(w=matrices(32), data=st.data())
@settings(max_examples=25, deadline=None)
def test_mlx_comes_back(w: Any, data: st.DataObject) -> None:
    scale = data.draw(hnp.arrays(np.float32, (w.shape[0], w.shape[1] // 32), elements=F16))
    given_ = Ternary.from_values(w, scale, 32)
    a = codecs.mlx.encode(given_, 32)
    assert a.words.shape == (w.shape[0], w.shape[1] // 16)
    assert same(codecs.mlx.decode(a.words, w.shape, a.scales, a.biases, 32), given_)


@given(w=matrices(7), scale=F16, dtype=st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]))
@settings(max_examples=25, deadline=None)
def test_ternary_floats_come_back_exactly(w: Any, scale: float, dtype: Any) -> None:
    w[0, 0] = 1  # a matrix of zeros has no scale to find
    kept = np.float32(np.dtype(dtype).type(scale))
    given_ = Ternary.from_values(w, kept)
    assert same(codecs.floats.decode(codecs.floats.encode(given_, dtype)), given_)


@given(hnp.arrays(np.uint8, st.tuples(st.integers(0, 4), st.integers(0, 30)), elements=st.integers(0, 2)))
@settings(max_examples=50, deadline=None)
def test_codes_unpack_to_what_was_packed_and_padding_is_zero_weights(codes: Any) -> None:
    packed = pack(codes)
    assert np.array_equal(unpack(packed, codes.shape[1]), codes)
    assert (unpack(packed, 4 * packed.shape[1])[:, codes.shape[1] :] == 1).all()


def test_floats_with_a_scale_for_each_group_are_found_exactly() -> None:
    rng = np.random.default_rng(0)
    w = Ternary.from_values(rng.integers(-1, 2, (6, 512)), rng.uniform(1, 2, (6, 4)).astype("f"), 128)
    assert same(codecs.floats.decode(w.dense()), w)


def test_masters_are_ternarised_by_their_mean_and_ties_go_to_even() -> None:
    w = np.array([[0.5, -0.5, 1.5, -1.5, 1.0, 1.0, 1.0, 1.0]], np.float32)  # mean 1: halves are ties
    found = codecs.floats.absmean(w)
    assert found.scale == 1
    assert found.values().tolist() == [[0, 0, 1, -1, 1, 1, 1, 1]]


def test_masters_of_zero_have_the_smallest_scale() -> None:
    assert codecs.floats.absmean(np.zeros((2, 4), np.float32)).scale == np.float32(1e-5)


def test_a_block_of_zeros_keeps_its_scale() -> None:
    zeros = Ternary.from_values(np.zeros((1, 512)), [[0.5, 2.0]], 256)
    assert codecs.tq2_0.decode(codecs.tq2_0.encode(zeros), (1, 512)).scale.tolist() == [[0.5, 2.0]]


def test_a_block_with_scale_zero_is_read_as_zeros() -> None:
    raw = codecs.tq2_0.encode(ROW)
    raw[64:] = 0
    assert not codecs.tq2_0.decode(raw, (1, 256)).values().any()


def test_blocks_of_zeros_agree_with_any_scale() -> None:
    w = np.ones((2, 512), np.int8)
    w[0, :256] = 0
    t = Ternary.from_values(w, [[0, 0.5], [0.5, 0.5]], 256).simplified()
    assert t.scale.shape == ()
    assert t.scale == 0.5


def test_scales_of_equal_rows_become_one_a_row() -> None:
    t = Ternary.from_values(np.ones((2, 512)), [[1, 1], [2, 2]], 256).simplified()
    assert (t.scale.tolist(), t.group) == ([1, 2], 0)


@pytest.mark.parametrize("codec", [codecs.i2_s, *BLOCKED], ids=ids)
def test_a_matrix_that_does_not_fit_the_block_names_formats_that_do(codec: Any) -> None:
    w = Ternary.from_values(np.zeros((4, 96)))
    with pytest.raises(FormatError, match=r"K = 96 columns, needed a multiple of \d+\. .*hf.*can hold it"):
        codec.encode(w)


def test_one_scale_a_tensor_cannot_hold_several() -> None:
    w = Ternary.from_values(np.ones((4, 128)), [1, 2, 3, 4])
    with pytest.raises(FormatError, match="4 different scales"):
        codecs.i2_s.encode(w)


def test_a_scale_that_fp16_cannot_hold_is_refused() -> None:
    with pytest.raises(FormatError, match=r"1e-09.*fp16"):
        codecs.tq2_0.encode(Ternary.from_values(np.ones((1, 256)), 1e-9))


def test_large_matrices_are_worked_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    w = Ternary.from_values(rng.integers(-1, 2, (52, 512)), 0.5)
    whole = [codecs.hf.encode(w).tobytes(), *(c.encode(w).tobytes() for c in GOLDEN)]
    monkeypatch.setattr("tritium.io.ternary.CHUNK", 3000)
    assert [codecs.hf.encode(w).tobytes(), *(c.encode(w).tobytes() for c in GOLDEN)] == whole
    assert all(same(c.decode(c.encode(w), w.shape).simplified(), w) for c in GOLDEN)
    assert same(codecs.hf.decode(codecs.hf.encode(w), w.shape, 0.5), w)
    assert same(codecs.floats.decode(w.dense()), w)


@given(data=st.data(), widths=st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=2))
@settings(max_examples=30, deadline=None)
def test_scales_that_a_file_repeats_for_its_blocks_become_one_again(data: st.DataObject, widths: list[int]) -> None:
    w = data.draw(hnp.arrays(np.int8, (3, 256), elements=st.integers(-1, 1)))
    own, stored = 64 * widths[0], 64 * widths[0] // widths[1]
    scale = np.arange(1, 3 * 256 // own + 1, dtype=np.float32).reshape(3, -1)
    plain = Ternary.from_values(w, scale, own)
    finer = Ternary(plain.codes, plain.shape, np.repeat(scale, widths[1], axis=1), stored)
    assert np.array_equal(finer.simplified().dense(), plain.dense())
    assert finer.simplified().scale.size <= plain.scale.size


# ---- the packages that own the layouts


@pytest.mark.parametrize("codec", [codecs.tq1_0, codecs.tq2_0], ids=ids)
def test_the_gguf_package_reads_and_writes_the_same_bytes(codec: Any) -> None:
    quants = pytest.importorskip("gguf.quants")
    kind = pytest.importorskip("gguf").GGMLQuantizationType[codec.name.upper()]
    rng = np.random.default_rng(2)
    w = Ternary.from_values(rng.integers(-1, 2, (16, 1024)), 0.25)
    raw = codec.encode(w)
    assert np.array_equal(quants.dequantize(raw.reshape(16, -1), kind), w.dense())
    assert quants.quantize(w.dense(), kind).tobytes() == raw.tobytes()


def test_torch_transformers_pack_and_unpack_the_same_bytes() -> None:
    torch = pytest.importorskip("torch", reason="transformers' packing needs torch")
    bitnet = pytest.importorskip("transformers.integrations.bitnet", reason="transformers owns this packing")
    w = Ternary.from_values(np.random.default_rng(4).integers(-1, 2, (64, 48)))
    packed = bitnet.pack_weights(torch.tensor(w.values().astype(np.float32)))
    assert np.array_equal(packed.numpy(), codecs.hf.encode(w))
    with torch.compiler.set_stance("force_eager"):  # transformers compiles this function, which takes half a minute
        unpacked = bitnet.unpack_weights(torch.tensor(codecs.hf.encode(w)), dtype=torch.float32)
    assert np.array_equal(unpacked.numpy(), w.values())


def test_mlx_dequantizes_the_same_numbers() -> None:
    mx = pytest.importorskip("mlx.core", reason="mlx owns this layout")
    w = Ternary.from_values(np.random.default_rng(5).integers(-1, 2, (8, 256)), 0.75)
    a = codecs.mlx.encode(w)
    args = (mx.array(a.words), mx.array(a.scales), mx.array(a.biases))
    assert np.array_equal(np.array(mx.dequantize(*args, group_size=a.group, bits=2)), w.dense())

"""Layers: the documented formulas bit for bit, the bound on their distance from floats, and state in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from null import Null
from tritium import dtype as dt, nn, quant
from tritium.errors import ArgumentError, DTypeError, QuantError, ShapeError, TraceError


def ternary(n: int, k: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-1, 2, (n, k)).astype(np.int8)


def tokens(*shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def formula(x: Any, t: Any, scale: Any, bias: Any = None) -> Any:
    """The lines of the module's docstring."""
    amax = np.maximum(np.abs(x).max(axis=-1, keepdims=True), np.float32(1e-5))
    q = np.rint(x * (np.float32(127) / amax)).astype(np.int64)
    y = (q @ t.T.astype(np.int64)).astype(np.float32) * (amax / np.float32(127) * np.float32(scale))
    return y if bias is None else y + bias


@pytest.mark.parametrize("storage", ["tern2", "tern5"])
@pytest.mark.parametrize("shape", [(40,), (1, 40), (7, 40), (2, 3, 40), (0, 40), (130, 40)])
def test_forward_is_the_documented_formula_bit_for_bit(shape: tuple[int, ...], storage: str) -> None:
    t, x = ternary(37, 40), tokens(*shape)
    layer = nn.BitLinear.from_ternary(t, scale=0.3, storage=storage)
    y = layer(tt.tensor(x))
    assert y.shape == (*shape[:-1], 37)
    np.testing.assert_array_equal(y.numpy(), formula(x, t, 0.3))


@given(st.integers(1, 150), st.integers(1, 300), st.integers(1, 20), st.integers(0, 99))
def test_every_size_is_exact(n: int, k: int, m: int, seed: int) -> None:
    t, x = ternary(n, k, seed), tokens(m, k, seed=seed)
    scale, bias = tokens(n, seed=seed + 1) ** 2, tokens(n, seed=seed + 2)
    layer = nn.BitLinear.from_ternary(t, bias, scale=scale)
    np.testing.assert_array_equal(layer(tt.tensor(x)).numpy(), formula(x, t, scale, bias))


def test_the_distance_from_the_float_model_is_within_its_bound() -> None:
    w, x = tokens(64, 256) * np.float32(0.02), tokens(9, 256, seed=5)
    layer = nn.BitLinear.from_float(w)
    dense = layer.dequantize().numpy().astype(np.float64)
    y = layer(tt.tensor(x)).numpy()
    bound = np.abs(dense).sum(axis=1) * np.abs(x).max(axis=1, keepdims=True) / 254
    assert (np.abs(y - x @ dense.T) <= bound * (1 + 1e-5)).all()


def test_out_and_views_are_written_in_place() -> None:
    t, x = ternary(5, 8), tokens(3, 8)
    layer = nn.BitLinear.from_ternary(t)
    wide = tt.zeros((3, 10))
    view = wide[:, ::2]
    assert layer(tt.tensor(x), out=view) is view
    np.testing.assert_array_equal(wide.numpy()[:, ::2], formula(x, t, 1.0))
    np.testing.assert_array_equal(wide.numpy()[:, 1::2], 0)
    turned = tt.tensor(np.ascontiguousarray(x.T)).T
    np.testing.assert_array_equal(layer(turned).numpy(), formula(x, t, 1.0))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_floats_come_out_as_they_went_in(dtype: str) -> None:
    t = ternary(5, 8)
    x = tt.tensor(tokens(3, 8)).to(dtype)
    y = nn.BitLinear.from_ternary(t, scale=0.5)(x)
    assert y.dtype == dtype
    want = tt.tensor(formula(x.to("f32").numpy(), t, 0.5)).to(dtype)
    np.testing.assert_array_equal(y.numpy().view(np.uint16), want.numpy().view(np.uint16))


def test_the_input_norm_is_rms_norm() -> None:
    t, x, g = ternary(5, 8), tokens(3, 8), tokens(8, seed=9)
    layer = nn.BitLinear.from_ternary(t, norm=g, eps=1e-6)
    plain = nn.BitLinear.from_ternary(t)
    want = plain(tt.rms_norm(tt.tensor(x), tt.tensor(g), eps=1e-6))
    np.testing.assert_array_equal(layer(tt.tensor(x)).numpy(), want.numpy())


@pytest.mark.parametrize("group", [4, 64, 128, 100])
def test_groups_of_columns_have_their_own_scales(group: int) -> None:
    t, x = ternary(70, 200), tokens(3, 200)
    scale = tokens(70, -(-200 // group)) ** 2
    y = nn.BitLinear.from_ternary(t, scale=scale, group=group)(tt.tensor(x)).numpy()
    q, s, _ = quant.activations(tt.tensor(x))
    total = np.zeros((3, 70), np.float32)
    for g in range(scale.shape[1]):
        part = slice(g * group, (g + 1) * group)
        acc = q.numpy()[:, part].astype(np.int64) @ t[:, part].T.astype(np.int64)
        total = total + acc.astype(np.float32) * scale[:, g]
    np.testing.assert_array_equal(y, total * s.numpy()[:, None])


def test_state_goes_out_and_comes_back() -> None:
    t = ternary(5, 9)
    a = nn.BitLinear.from_ternary(t, tokens(5), scale=tokens(5) ** 2, norm=tokens(9))
    for storage in ("tern2", "tern5"):
        b = nn.BitLinear.from_ternary(np.zeros_like(t), np.zeros(5), scale=np.ones(5), norm=np.ones(9), storage=storage)
        b.load_state_dict(a.state_dict())
        x = tt.tensor(tokens(3, 9))
        np.testing.assert_array_equal(a(x).numpy(), b(x).numpy())
    assert {k: (str(v.dtype), v.shape) for k, v in a.state_dict().items()} == {
        "weight": ("u8", (5, 3)), "weight_scale": ("f32", (5,)), "bias": ("f32", (5,)), "norm": ("f32", (9,)),
    }  # fmt: skip


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    layer = nn.BitLinear.from_ternary(ternary(5, 9))
    before = layer.state_dict()["weight"].tolist()
    with pytest.raises(ArgumentError, match="missing"):
        layer.load_state_dict({"weight": tt.zeros((5, 3), dtype="u8")})
    with pytest.raises(ShapeError, match="weight must have shape"):
        layer.load_state_dict({"weight": tt.zeros((5, 4), dtype="u8"), "weight_scale": tt.ones(())})
    bad = layer.state_dict() | {"weight": tt.full((5, 3), 255, dtype="u8")}
    with pytest.raises(QuantError, match="means no weight"):
        layer.load_state_dict(bad)
    assert layer.state_dict()["weight"].tolist() == before


def test_scales_of_other_groups_are_not_loaded() -> None:
    a, b = (nn.BitLinear.from_float(tokens(6, 130), group=g) for g in (100, 65))
    assert a.state_dict()["weight_scale"].shape == b.state_dict()["weight_scale"].shape
    with pytest.raises(ArgumentError, match="groups of 100 columns"):
        b.load_state_dict(a.state_dict())
    b.load_state_dict(b.state_dict())


def test_a_layer_does_not_change_with_what_it_was_made_of() -> None:
    bias, scale, x = np.zeros(5, np.float32), np.ones(5, np.float32), tt.tensor(tokens(2, 8))
    layer = nn.BitLinear.from_ternary(ternary(5, 8), bias, scale=scale)
    want = layer(x).tolist()
    bias += 5
    scale *= np.nan
    for t in layer.state_dict().values():
        t.copy_(1)
    assert layer(x).tolist() == want


def test_states_of_numpy_arrays_are_taken() -> None:
    layer = nn.BitLinear.from_ternary(ternary(5, 9), tokens(5))
    state = {k: v.numpy() for k, v in layer.state_dict().items()}
    layer.load_state_dict(state | {"bias": [0.0] * 5})
    assert layer.bias is not None
    assert layer.bias.tolist() == [0.0] * 5


def test_a_norm_keeps_half_floats_half() -> None:
    layer = nn.BitLinear.from_ternary(ternary(5, 8), norm=np.ones(8))
    x = tt.tensor(tokens(3, 8)).to("f16")
    assert layer(x).dtype == "f16"
    out = tt.empty((3, 5), dtype="f16")
    layer(x, out=out)
    np.testing.assert_array_equal(out.numpy(), layer(x).numpy())


def test_arrays_of_numpy_go_in() -> None:
    x = tokens(3, 8)
    for layer in (nn.BitLinear.from_ternary(ternary(5, 8)), nn.BitLinear.from_ternary(ternary(5, 8), norm=np.ones(8))):
        np.testing.assert_array_equal(layer(x).numpy(), layer(tt.tensor(x)).numpy())  # type: ignore[arg-type]
    q = quant.int8(tokens(5, 8), symmetric=False)
    np.testing.assert_array_equal(q.matmul(x).numpy(), q.matmul(tt.tensor(x)).numpy())  # type: ignore[arg-type]


def test_scales_are_kept_in_f32() -> None:
    layer = nn.BitLinear.from_ternary(ternary(5, 8), scale=tt.tensor(np.float64(0.1)))
    assert layer.state_dict()["weight_scale"].dtype == "f32"
    with pytest.raises(QuantError, match="infinite in f32"):
        nn.BitLinear.from_ternary(ternary(5, 8), scale=1e300)
    with pytest.raises(ArgumentError, match="scale must be"):
        nn.BitLinear.from_ternary(ternary(5, 8), scale="a")


def test_bytes_of_a_traced_tensor_are_refused() -> None:
    w = tt.repack(tt.tensor(ternary(5, 8)), "tern2")
    with pytest.raises(TraceError, match="as_bytes"):
        tt.trace(nn.as_bytes, w.spec)


def test_packed_weights_are_taken_as_tensors_or_bytes() -> None:
    t, x = ternary(6, 11), tt.tensor(tokens(2, 11))
    want = nn.BitLinear.from_ternary(t, scale=0.5)(x).numpy()
    w = tt.repack(tt.tensor(t), "tern2")
    raw = nn.as_bytes(w)
    for layer in (
        nn.BitLinear.from_packed(w, scale=0.5),
        nn.BitLinear.from_packed(tt.repack(w, "tern5"), scale=0.5),
        nn.BitLinear.from_packed(raw, (6, 11), scale=0.5),
        nn.BitLinear.from_packed(raw.numpy(), (6, 11), scale=0.5),
    ):
        np.testing.assert_array_equal(layer(x).numpy(), want)
    with pytest.raises(ShapeError, match="leave it out"):
        nn.BitLinear.from_packed(w, (7, 7))
    for shape in (None, (3,), 3, "34", (6, 11.0), (6, 13)):
        with pytest.raises(ShapeError, match="shape="):
            nn.BitLinear.from_packed(raw, shape)  # type: ignore[arg-type]


def test_a_layer_moves_to_another_device_and_back() -> None:
    tt.register("null", Null)
    try:
        t, x = ternary(6, 11), tokens(2, 11)
        layer = nn.BitLinear.from_ternary(t, tokens(6), scale=0.5, norm=tokens(11))
        there = layer.to("null")
        assert there.weight.data.device == "null"
        y = there(tt.tensor(x).to("null")).to("cpu").numpy()
        np.testing.assert_allclose(y, layer(tt.tensor(x)).numpy(), rtol=1e-6)
        back = there.to("cpu")
        np.testing.assert_array_equal(back(tt.tensor(x)).numpy(), layer(tt.tensor(x)).numpy())
    finally:
        tt.unregister("null")


@pytest.mark.parametrize(("scheme", "limit"), [("int8", 0.02), ("int4", 0.15), ("ternary", 0.6)])
def test_other_schemes_have_the_same_layer(scheme: str, limit: float) -> None:
    w, x = tokens(100, 256) * np.float32(0.02), tokens(3, 256, seed=4)
    layer = nn.QuantLinear.from_float(w, scheme, tokens(100))
    y = layer(tt.tensor(x)).numpy()
    want = x @ w.T + tokens(100)
    assert np.linalg.norm(y - want) / np.linalg.norm(want - tokens(100)) < limit


def test_what_a_layer_cannot_be_made_of_is_explained() -> None:
    with pytest.raises(DTypeError, match="QuantLinear"):
        nn.BitLinear(quant.int8(tokens(3, 4)))
    with pytest.raises(ArgumentError, match="no integer product"):
        nn.QuantLinear(quant.int8(tokens(3, 4), symmetric=False))
    with pytest.raises(ArgumentError, match="unknown"):
        nn.QuantLinear.from_float(tokens(3, 4), "int3")
    with pytest.raises(ShapeError, match="bias"):
        nn.BitLinear.from_ternary(ternary(3, 4), np.zeros(4))
    with pytest.raises(QuantError, match="element"):
        nn.BitLinear.from_ternary(ternary(3, 4) * 2)
    with pytest.raises(ArgumentError, match="eps"):
        nn.BitLinear.from_ternary(ternary(3, 4), eps=-1)
    with pytest.raises(ShapeError, match="scale must have shape"):
        nn.QuantLinear(quant.Quantized("int8", tt.zeros((3, 4), dtype="i8"), tt.ones(2)))
    with pytest.raises(ArgumentError, match="tokens"):
        nn.BitLinear.from_ternary(ternary(3, 4)).kernel(-1)


def test_a_layer_says_what_it_is_and_which_kernel_it_uses() -> None:
    layer = nn.BitLinear.from_ternary(ternary(3, 4))
    assert "4 -> 3" in repr(layer)
    names = {k.name for k in layer.device.backend.kernels[tt.quantized_matmul]}
    assert layer.kernel() in names
    assert layer.nbytes == layer.weight.data.nbytes + 4


@pytest.mark.parametrize("activations", ["token", "group", "float"])
def test_a_layer_keeps_its_activations(activations: str) -> None:
    t, x = ternary(9, 200), tt.tensor(tokens(3, 200))
    scale = np.random.default_rng(0).uniform(0.1, 2, (9, 5)).astype(np.float16)
    layer = nn.BitLinear.from_ternary(t, scale=scale, group=48, activations=activations)
    assert layer.activations == activations
    assert layer.weight.scale is not None
    assert layer.weight.scale.dtype is dt.f16
    words = {"token": "int8 per token", "group": "int8 per group", "float": "activations float"}
    assert words[activations] in repr(layer)
    want = layer(x).numpy()
    state = layer.state_dict()
    assert state["weight_scale"].dtype is dt.f16
    other = nn.BitLinear.from_ternary(ternary(9, 200, 5), scale=scale * 0 + 1, group=48, activations=activations)
    other.load_state_dict({name: v.numpy() for name, v in state.items()})
    np.testing.assert_array_equal(other(x).numpy(), want)
    assert other.weight.scale is not None
    assert other.weight.scale.dtype is dt.f16
    np.testing.assert_array_equal(layer.to("cpu")(x).numpy(), want)
    np.testing.assert_array_equal(layer.weight.matmul(x, activations=activations).numpy(), want)
    np.testing.assert_array_equal(tt.compile(lambda v: tt.relu(layer(v)))(x).numpy(), np.maximum(want, 0))
    exact = tokens(3, 200).astype(np.float64) @ layer.dequantize().numpy().astype(np.float64).T
    size = np.abs(tokens(3, 200)) @ np.abs(layer.dequantize().numpy()).T
    bound = 200 * 2.0**-23 * size if activations == "float" else np.abs(tokens(3, 200)).max() / 254 * size.max() * 200
    assert (np.abs(want - exact) <= bound).all()


def test_layers_explain_activations_that_are_not_possible() -> None:
    with pytest.raises(ArgumentError, match="BitLinear: activations='group' needs weights with a scale for each group"):
        nn.BitLinear.from_ternary(ternary(3, 4), activations="group")
    with pytest.raises(ArgumentError, match="activations='int8' is unknown; use one of 'token', 'group', 'float'"):
        nn.QuantLinear.from_float(tokens(3, 4), activations="int8")
    with pytest.raises(ArgumentError, match="needs weights with a scale for each group"):
        tt.quantized_matmul(tt.ones((1, 4)), tt.repack(tt.zeros((3, 4), dtype="i8"), "tern2"), 1.0, activations="group")
    grouped = nn.BitLinear.from_float(tokens(4, 64), group=32, activations="group")
    float_kind = nn.BitLinear.from_float(tokens(4, 64), group=32, activations="float")
    with pytest.raises(ArgumentError, match="activations are 'float'; this layer's are 'group'"):
        grouped.load_state_dict(float_kind.state_dict())


@pytest.mark.parametrize("group", [48, 128])
def test_layers_keep_scales_of_groups_column_after_column(group: int) -> None:
    layer = nn.BitLinear.from_float(tokens(70, 300), group=group, scale_dtype="f16")
    scale = layer.weight.scale
    assert scale is not None
    tiled = layer.weight.data.dtype.rows > 1
    assert scale.strides == ((1, 70) if tiled else (scale.shape[1], 1))
    assert layer.weight.plain().scale.strides == (scale.shape[1], 1)  # type: ignore[union-attr]
    again = nn.BitLinear(layer.weight)
    x = tt.tensor(tokens(2, 300))
    np.testing.assert_array_equal(again(x).numpy(), layer(x).numpy())


def test_a_traced_layer_computes_the_same() -> None:
    t, x = ternary(5, 8), tt.tensor(tokens(3, 8))
    layer = nn.BitLinear.from_ternary(t, scale=0.5)
    graph = tt.trace(lambda v: tt.relu(layer(v)), x.spec)
    np.testing.assert_array_equal(graph(x).numpy(), tt.relu(layer(x)).numpy())


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_a_call_reads_packed_weights_as_they_are(how: str) -> None:
    """Weights are quantised when a layer is made; no call quantises, unpacks or dequantises them again."""
    layer, x = nn.BitLinear.from_float(tokens(64, 128)), tt.tensor(tokens(4, 128))
    call = layer if how == "eager" else tt.compile(layer)
    call(x)
    weights = layer.weight.data.address
    with tt.profile(counters=None, ceilings=False) as profile, tt.track_memory() as tracker:
        call(x)
    names = {row.name for row in profile.ops()}
    assert names
    assert not names & {"quantize_ternary", "dequantize", "repack", "astype", "matmul"}
    assert layer.weight.data.address == weights
    assert max(event.nbytes for event in tracker.get_events()) < 64 * 128 * 4, "nothing is as large as float weights"

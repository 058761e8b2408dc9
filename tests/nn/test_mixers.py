"""Gated delta nets and mixtures of experts: the values of transformers' own classes and of plain formulas, the same bits in any
chunk and batch, eagerly and in programs, and errors for weights that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tritium as tt
from mixers import draw, mixture, silu
from tritium import ops
from tritium.errors import ArgumentError, DTypeError, ShapeError
from tritium.nn import MLP, DeltaState, Experts, GatedDeltaNet, MoE, QuantLinear, RMSNorm, Router, gated

HEADS, KEY_HEADS, KEY, VALUE, HIDDEN, TAPS = 4, 2, 8, 6, 24, 4
ROWS = 2 * KEY_HEADS * KEY + HEADS * VALUE


def net(seed: int = 0, quantised: bool = False) -> GatedDeltaNet:
    w = lambda i, *shape: draw(shape, seed + i) / np.float32(np.sqrt(shape[-1]))
    layer = (lambda m: QuantLinear.from_float(m, "int8")) if quantised else tt.tensor
    return GatedDeltaNet(
        layer(w(1, ROWS, HIDDEN)), layer(w(2, HEADS * VALUE, HIDDEN)), tt.tensor(w(3, HEADS, HIDDEN)), tt.tensor(w(4, HEADS, HIDDEN)),
        w(5, ROWS, TAPS), w(6, HEADS), w(7, HEADS), RMSNorm(1 + w(8, VALUE), 1e-6), layer(w(9, HIDDEN, HEADS * VALUE)), heads=HEADS,
        key_heads=KEY_HEADS,
    )  # fmt: skip


def at(*rows: tuple[int, int, int]) -> tt.Tensor:
    return tt.tensor(np.array(rows, np.int32))


# ---- gated delta nets


def transformers_net(seed: int) -> tuple[Any, GatedDeltaNet]:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3_5TextConfig(
        hidden_size=HIDDEN, linear_num_value_heads=HEADS, linear_num_key_heads=KEY_HEADS, linear_key_head_dim=KEY,
        linear_value_head_dim=VALUE, linear_conv_kernel_dim=TAPS, num_hidden_layers=4,
    )  # fmt: skip
    torch.manual_seed(seed)
    module = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    theirs = module.Qwen3_5GatedDeltaNet(config, 0).float().eval()
    w = {name: tt.tensor(p.detach().numpy()) for name, p in theirs.named_parameters()}
    ours = GatedDeltaNet(
        w["in_proj_qkv.weight"], w["in_proj_z.weight"], w["in_proj_b.weight"], w["in_proj_a.weight"], w["conv1d.weight"][:, 0],
        w["A_log"], w["dt_bias"], RMSNorm(w["norm.weight"], config.rms_norm_eps), w["out_proj.weight"], heads=HEADS, key_heads=KEY_HEADS,
    )  # fmt: skip
    return theirs, ours


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_gated_delta_net_is_transformers(seed: int) -> None:
    theirs, ours = transformers_net(seed)
    import torch

    x = draw((2, 70, HIDDEN), seed)
    with torch.no_grad():
        want = theirs(torch.from_numpy(x)).numpy()
    got = ours(tt.tensor(x), DeltaState.empty(slots=2, net=ours), at((1, 0, 70), (0, 0, 70)))
    np.testing.assert_allclose(got.numpy(), want, atol=1e-5)


@pytest.mark.parametrize("quantised", [False, True])
def test_tokens_give_the_same_bits_one_by_one_in_chunks_in_batches_and_in_programs(quantised: bool) -> None:
    ours = net(quantised=quantised)
    x = tt.tensor(draw((2, 9, HIDDEN), 1))
    states = DeltaState.empty(slots=3, net=ours)
    whole = ours(x, states, at((2, 0, 9), (0, 0, 9))).numpy()
    program = tt.compile(lambda x, states, places: ours(x, states, places), donate=["states"])
    for chunks in ([1] * 9, [4, 5], [6, 1, 2]):
        for run in (ours, program):
            mine, start = DeltaState.empty(slots=1, net=ours), 0
            for n in chunks:
                got = run(x[1:, start : start + n], mine, at((0, start, n))).numpy()
                np.testing.assert_array_equal(got, whole[1:, start : start + n])
                start += n
            np.testing.assert_array_equal(mine.memory.numpy()[0], states.memory.numpy()[0])
            np.testing.assert_array_equal(mine.conv.numpy()[0], states.conv.numpy()[0])


def test_a_program_updates_the_states_without_copying_them() -> None:
    ours = net()
    program = tt.compile(lambda x, states, places: ours(x, states, places), donate=["states"])
    states = DeltaState.empty(slots=2, net=ours)
    addresses = [t.address for t in states]
    program(tt.ones((1, 1, HIDDEN)), states, at((1, 0, 1)))
    assert [t.address for t in states] == addresses
    assert [bool(memory.any()) for memory in states.memory.numpy()] == [False, True]
    if tt.device("cpu").backend.kernels[ops.hadamard][0].name != "numpy":
        steps = program.generate_execution_plan(tt.ones((1, 1, HIDDEN)), states, at((1, 0, 1))).steps
        assert "copy" not in [s.name for s in steps]


def test_a_slot_is_used_again_without_being_cleared() -> None:
    ours, x = net(), tt.tensor(draw((1, 5, HIDDEN), 3))
    states = DeltaState.empty(slots=1, net=ours)
    first = ours(x, states, at((0, 0, 5))).numpy()
    np.testing.assert_array_equal(ours(x, states, at((0, 0, 5))).numpy(), first)


def test_a_gated_delta_net_refuses_weights_that_do_not_fit() -> None:
    good = net()
    parts = [good.qkv, good.z, good.b, good.a, good.conv.T, good.a_log, good.dt_bias, good.norm, good.out]
    make = lambda i, part: GatedDeltaNet(*parts[:i], part, *parts[i + 1 :], heads=HEADS, key_heads=KEY_HEADS)
    make(0, good.qkv)
    for i, part, message in (
        (0, tt.zeros((ROWS + 1, HIDDEN)), "rows of Q, K and V"),
        (1, tt.zeros((3, HIDDEN)), f"need z with {HEADS * VALUE} rows"),
        (4, tt.zeros((3, TAPS)), rf"conv must be \[{ROWS}, taps\]"),
        (5, tt.zeros(3), rf"a_log must have shape \[{HEADS}\]"),
        (8, tt.zeros((HIDDEN, 3)), f"need out with {HEADS * VALUE} columns"),
    ):
        with pytest.raises(ShapeError, match=message):
            make(i, part)
    with pytest.raises(ShapeError, match="heads a multiple of key heads"):
        GatedDeltaNet(*parts, heads=HEADS, key_heads=3)


# ---- mixtures of experts

EXPERTS, INNER, ACTIVE = 6, 16, 3


def ternary(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def moe(seed: int = 0, **options: Any) -> tuple[MoE, Any, Any, Any]:
    router = draw((EXPERTS, HIDDEN), seed)
    both, down = ternary(seed + 1, EXPERTS, 2 * INNER, HIDDEN), ternary(seed + 2, EXPERTS, HIDDEN, INNER)
    layers = [Experts.from_float(w) for w in (both, down)]
    scales = [layer.scale.numpy()[:, None, None] for layer in layers]
    made = MoE(Router(tt.tensor(router), active=ACTIVE, **options.pop("router", {})), *layers, **options)
    return made, router, both * scales[0], down * scales[1]


def test_a_mixture_of_experts_is_the_formula() -> None:
    made, router, both, down = moe()
    x = draw((5, HIDDEN), 7)
    want = mixture(x.astype(np.float64), router, both[:, :INNER], both[:, INNER:], down, ACTIVE)
    np.testing.assert_allclose(made(tt.tensor(x)).numpy(), want, atol=0.02 * np.abs(want).max())


def test_a_token_has_the_same_bits_alone_in_a_batch_and_in_a_program() -> None:
    made, *_ = moe()
    x = tt.tensor(draw((2, 6, HIDDEN), 7))
    whole = made(x).numpy()
    program = tt.compile(made)
    for run in (made, program):
        np.testing.assert_array_equal(run(x).numpy(), whole)
        for b in range(2):
            for t in range(6):
                np.testing.assert_array_equal(run(x[b, t]).numpy(), whole[b, t])


@pytest.mark.parametrize("activations", ["token", "group", "float"])
def test_a_mixture_with_groups_is_the_formula_alone_in_a_batch_and_in_a_program(activations: str) -> None:
    """With scales in f16 for groups of 8 columns; the error is that of rounding activations to 127 steps, or of f32."""
    router, weights = (
        draw((EXPERTS, HIDDEN), 1),
        (draw((EXPERTS, 2 * INNER, HIDDEN), 2), draw((EXPERTS, HIDDEN, INNER), 3)),
    )
    layers = [Experts.from_float(w, group=8, scale_dtype="f16", activations=activations) for w in weights]
    assert {(layer.scale.dtype, layer.activations) for layer in layers} == {(tt.f16, activations)}
    dense = [
        np.stack([tt.quant.ternary(m, group=8, scale_dtype="f16").dequantize().numpy() for m in w]).astype(np.float64)
        for w in weights
    ]
    made, x = MoE(Router(tt.tensor(router), active=ACTIVE), *layers), draw((7, HIDDEN), 7)
    want = mixture(x.astype(np.float64), router, dense[0][:, :INNER], dense[0][:, INNER:], dense[1], ACTIVE)
    got, program = made(tt.tensor(x)).numpy(), tt.compile(made)
    np.testing.assert_allclose(got, want, atol=(1e-5 if activations == "float" else 0.03) * np.abs(want).max())
    np.testing.assert_array_equal(program(tt.tensor(x)).numpy(), got)
    for t in range(7):
        for run in (made, program, made.to("cpu")):
            np.testing.assert_array_equal(run(tt.tensor(x[t])).numpy(), got[t])


def test_experts_that_nobody_chose_are_not_looked_at() -> None:
    made, *_ = moe()
    x = tt.tensor(draw((1, HIDDEN), 7))
    want, chosen = made(x).numpy(), set(made.router(x).experts.numpy().ravel().tolist())
    scale = made.down.scale.numpy().copy()
    scale[[e for e in range(EXPERTS) if e not in chosen]] = np.nan
    made.down.scale = tt.tensor(scale)
    np.testing.assert_array_equal(made(x).numpy(), want)


@pytest.mark.parametrize("gate", ["softmax", "sigmoid", "softmax_of_chosen"])
@pytest.mark.parametrize("normalise", [False, True])
def test_a_router_chooses_the_largest_and_weighs_them(gate: str, normalise: bool) -> None:
    weight, x = draw((EXPERTS, HIDDEN), 1), draw((4, HIDDEN), 2)
    bias = draw((EXPERTS,), 3) if gate == "sigmoid" else None
    router = Router(tt.tensor(weight), active=ACTIVE, gate=gate, normalise=normalise, bias=bias, scale=2.5)
    experts, weights = (t.numpy() for t in router(tt.tensor(x)))
    scores = (x @ weight.T).astype(np.float64)
    softmax = lambda s: np.exp(s) / np.exp(s).sum(-1, keepdims=True)
    p = scores if gate == "softmax_of_chosen" else softmax(scores) if gate == "softmax" else 1 / (1 + np.exp(-scores))
    chosen = np.sort(np.argsort(-(p if bias is None else p + bias), axis=-1)[:, :ACTIVE])
    np.testing.assert_array_equal(experts, chosen)
    want = np.take_along_axis(p, chosen, -1)
    want = softmax(want) if gate == "softmax_of_chosen" else want
    want = want / want.sum(-1, keepdims=True) if normalise else want
    np.testing.assert_allclose(weights, 2.5 * want, rtol=1e-5)


def test_a_limit_clamps_the_gate_above_and_up_on_both_sides() -> None:
    gate, up = draw((3, 50), 1) * 9, draw((3, 50), 2) * 9
    want = silu(np.minimum(gate, 7)) * np.clip(up, -7, 7)
    np.testing.assert_allclose(gated(tt.tensor(gate), tt.tensor(up), "silu", 7.0).numpy(), want, rtol=1e-5)
    free = gated(tt.tensor(gate), tt.tensor(up), "silu").numpy()
    np.testing.assert_allclose(free, silu(gate) * up, rtol=1e-5)
    made, *_ = moe(limit=0.01)
    assert (made(tt.ones((1, HIDDEN))).numpy() != moe()[0](tt.ones((1, HIDDEN))).numpy()).any()


def test_a_shared_expert_is_added_with_its_gate() -> None:
    x = tt.tensor(draw((4, HIDDEN), 5))
    mlp = MLP(
        QuantLinear.from_float(draw((2 * INNER, HIDDEN), 1)), QuantLinear.from_float(draw((HIDDEN, INNER), 2)), "silu"
    )
    gate = tt.tensor(draw((1, HIDDEN), 3))
    alone, more = moe()[0](x).numpy(), mlp(x).numpy()
    np.testing.assert_allclose(moe(shared=mlp)[0](x).numpy(), alone + more, rtol=1e-5, atol=1e-5)
    share = 1 / (1 + np.exp(-(x.numpy() @ gate.numpy().T)))
    np.testing.assert_allclose(
        moe(shared=mlp, shared_gate=gate)[0](x).numpy(), alone + share * more, rtol=1e-5, atol=1e-5
    )


def test_experts_are_made_of_matrices_with_scales_of_every_kind() -> None:
    w = draw((3, 5, 128), 1)
    kinds: list[tuple[dict[str, Any], tuple[int, ...], str]] = [
        ({}, (3,), "token"), ({"axis": 0}, (3, 5), "float"), ({"group": 64}, (3, 5, 2), "token"),
        ({"group": 64}, (3, 5, 2), "group"), ({"group": 48, "scale_dtype": "f16"}, (3, 5, 3), "group"),
    ]  # fmt: skip
    for options, shape, how in kinds:
        layer = Experts.from_float(w, **options, activations=how)
        assert (layer.scale.shape, layer.shape) == (shape, (3, 5, 128))
        assert "3 of 128 -> 5" in repr(layer)
        assert "float" in repr(layer) if how == "float" else f"int8 per {how}" in repr(layer)
        x, chosen = tt.tensor(draw((2, 128), 2)), at((0, 2, 1))[0].reshape(1, 3)
        for e in range(3):
            want = QuantLinear(tt.quant.ternary(w[e], **options), activations=how)(x[:1])
            got = layer(x[:1], chosen)[0, chosen.numpy().ravel().tolist().index(e)]
            np.testing.assert_array_equal(got.numpy(), want.numpy()[0])


def test_mixtures_that_do_not_fit_are_errors() -> None:
    made, *_ = moe()
    with pytest.raises(ShapeError, match=r"Router: weights .* and 1 to that many active experts"):
        Router(tt.zeros((2, 4)), active=3)
    with pytest.raises(ArgumentError, match="the gate 'tanh' is unknown; known are softmax"):
        Router(tt.zeros((2, 4)), active=1, gate="tanh")
    with pytest.raises(ShapeError, match="MoE: gate_up"):
        MoE(made.router, made.down, made.gate_up)
    with pytest.raises(ArgumentError, match="MoE: the activation 'tanh' is unknown"):
        MoE(made.router, made.gate_up, made.down, activation="tanh")
    with pytest.raises(ArgumentError, match="MoE: limit must be None or above 0"):
        MoE(made.router, made.gate_up, made.down, limit=0.0)
    with pytest.raises(DTypeError, match=r"Experts: packed or i8 weights \[experts, N, K\]"):
        Experts(tt.zeros((3, 4, 5)), tt.ones(3))
    with pytest.raises(ArgumentError, match="Experts: activations='group' needs weights with a scale for each group"):
        Experts.from_float(draw((2, 3, 8)), activations="group")
    with pytest.raises(ArgumentError, match="at least one matrix"):
        Experts.from_matrices([])
    with pytest.raises(ShapeError, match="all matrices must be alike"):
        Experts.from_matrices([tt.quant.ternary(draw((n, 8))) for n in (3, 4)])


@pytest.mark.parametrize("device", ["torch", "mlx"])
def test_modules_move_to_other_devices(device: str) -> None:
    pytest.importorskip(device)
    x = tt.tensor(draw((2, 3, HIDDEN), 1))
    ours, places = net(quantised=True), at((1, 0, 3), (0, 0, 2))
    want = ours(x, DeltaState.empty(slots=2, net=ours), places).numpy()
    there = ours.to(device)
    got = there(x.to(device), DeltaState.empty(slots=2, net=there, device=device), places.to(device))
    np.testing.assert_allclose(got.to("cpu").numpy(), want, atol=0.05 * np.abs(want).max())
    made, *_ = moe()
    np.testing.assert_allclose(made.to(device)(x.to(device)).to("cpu").numpy(), made(x).numpy(), rtol=1e-4, atol=1e-4)
    tokens, chosen = (
        tt.tensor(draw((5, HIDDEN), 2)),
        tt.tensor(np.array([[0, 2], [1, 2], [2, 0], [1, 0], [0, 1]], np.int32)),
    )
    for how in ("token", "group", "float"):
        layer = Experts.from_float(draw((3, 9, HIDDEN), 3), group=8, scale_dtype="f16", activations=how)
        want = layer(tokens, chosen).numpy()
        got = layer.to(device)(tokens.to(device), chosen.to(device)).to("cpu").numpy()
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max() if how == "float" else 0)

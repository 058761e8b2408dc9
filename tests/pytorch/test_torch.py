"""PyTorch layers: straight-through gradients, the same bits on every path, when weights are packed again, files that say the same."""

from __future__ import annotations

import copy
import io as streams
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tiny import config as tiny_config
from tritium import buffer, io
from tritium.errors import ArgumentError, FormatError, QuantError

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
from tritium.torch import (  # noqa: E402
    BitLinear,
    bit_linears,
    byte_tokenizer,
    export,
    ops as operators,
    replace_linears,
    set_lambda,
    ternarise,
)
from tritium.torch.formulas import round_activations  # noqa: E402

nn, functional = torch.nn, torch.nn.functional


def layer(k: int = 40, n: int = 12, bias: bool = True, seed: int = 0, **options: Any) -> BitLinear:
    torch.manual_seed(seed)
    return BitLinear(k, n, bias=bias, **options)


def tokens(*shape: int, seed: int = 1) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def native(one: BitLinear) -> Any:
    """The same layer of tritium's own."""
    t, g = ternarise(one.weight)
    bias = None if one.bias is None else one.bias.detach().numpy()
    return tt.nn.BitLinear.from_ternary(t.numpy(), bias, scale=g.item())


# ---- values


@pytest.mark.parametrize("shape", [(40,), (1, 40), (7, 40), (2, 3, 40), (0, 40)])
def test_training_and_evaluation_give_the_bits_of_tritium_s_layer(shape: tuple[int, ...]) -> None:
    one, x = layer(), tokens(*shape)
    want = native(one)(tt.tensor(x.numpy())).numpy()
    trained = one(x)
    one.eval()
    with torch.no_grad():
        np.testing.assert_array_equal(one(x).numpy(), want)
    np.testing.assert_array_equal(trained.detach().numpy(), want)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 300), st.integers(1, 60), st.integers(1, 9), st.integers(0, 99), st.sampled_from([1e-6, 0.02, 30.0])
)
def test_both_paths_give_the_same_bits_at_every_size(k: int, n: int, m: int, seed: int, size: float) -> None:
    one, x = layer(k, n, seed=seed), tokens(m, k, seed=seed) * size
    trained = one(x).detach()
    with torch.no_grad():
        assert torch.equal(one.eval()(x), trained)


def test_a_weight_of_half_the_mean_becomes_zero() -> None:
    t, g = ternarise(torch.tensor([[0.5, -0.5, 1.5, -1.5]]))
    assert g.item() == 1
    assert t.tolist() == [[0, 0, 1, -1]]  # 0.5 to the even 0, 1.5 to 2, which is held to 1


def test_ternarise_is_transformers_formula() -> None:
    w = tokens(64, 96).to(torch.bfloat16)
    scale = 1.0 / w.float().abs().mean().clamp(min=1e-5)
    t, g = ternarise(w)
    assert torch.equal(t.float(), (w.float() * scale).round().clamp(-1, 1))
    assert g.item() == pytest.approx(1 / scale.item(), rel=1e-6)


def test_weights_that_are_not_finite_are_refused() -> None:
    with pytest.raises(QuantError, match="diverged"):
        ternarise(torch.tensor([[1.0, float("nan")]]))


@pytest.mark.parametrize("bias", [True, False])
def test_lambda_0_is_a_plain_linear_layer(bias: bool) -> None:
    one, x = layer(bias=bias, lambda_=0.0), tokens(5, 40)
    assert torch.equal(one(x), functional.linear(x, one.weight, one.bias))


def test_lambda_goes_from_plain_to_ternary() -> None:
    one, x = layer(bias=False), tokens(5, 40)
    ternary, plain = one(x), functional.linear(x, one.weight)
    set_lambda(one, 0.5)
    t, g = ternarise(one.weight)
    amax = x.abs().amax(-1, keepdim=True)
    near = (x * (127 / amax)).round() * amax / 127
    want = functional.linear((x + near) / 2, (one.weight + t * g) / 2)
    torch.testing.assert_close(one(x), want)
    assert (one(x) - plain).norm() < (ternary - plain).norm()


def test_a_norm_comes_before_the_rounding() -> None:
    one, x = layer(norm="rms"), tokens(5, 40)
    one.rms_norm.weight.data.uniform_(0.5, 2)
    normed = functional.rms_norm(x, (40,), one.rms_norm.weight, 1e-5)
    want = native(one)(tt.tensor(normed.detach().numpy())).numpy()
    np.testing.assert_array_equal(one(x).detach().numpy(), want)
    with torch.no_grad():
        np.testing.assert_array_equal(one.eval()(x).numpy(), want)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_floats_keep_their_dtype_and_lose_one_rounding(kind: Any) -> None:
    one, x = layer().to(kind), tokens(5, 40).to(kind)
    want = native(one.float())(tt.tensor(x.float().numpy())).numpy()
    one.to(kind)
    close = {"rtol": 2.0 ** (-6 if kind is torch.bfloat16 else -10), "atol": 1e-2}
    for y in (one(x).detach(), torch.no_grad()(one.eval())(x)):
        assert y.dtype is kind
        np.testing.assert_allclose(y.float().numpy(), want, **close)


def test_autocast_gives_its_dtype_on_both_paths() -> None:
    one, x = layer(), tokens(5, 40)
    exact = one(x).detach()
    with torch.autocast("cpu", torch.bfloat16):
        trained = one(x)
        with torch.no_grad():
            evaluated = one.eval()(x)
    for y in (trained, evaluated):
        assert y.dtype is torch.bfloat16
        torch.testing.assert_close(y.float(), exact, rtol=0.02, atol=0.02)


def test_f64_goes_through_torch() -> None:
    one, x = layer().double().eval(), tokens(5, 40).double()
    with torch.no_grad():
        y = one(x)
    assert y.dtype is torch.float64
    np.testing.assert_allclose(
        y.numpy(), native(one.float())(tt.tensor(x.float().numpy())).numpy(), rtol=1e-5, atol=1e-6
    )


# ---- gradients


def test_gradients_pass_both_roundings_as_if_they_were_not_there() -> None:
    one, x = layer(), tokens(5, 40).requires_grad_()
    up = tokens(5, 12, seed=3)
    one(x).backward(up)
    t, g = ternarise(one.weight)
    amax = x.detach().abs().amax(-1, keepdim=True)
    near = (x.detach() * (127 / amax)).round() * (amax / 127)
    torch.testing.assert_close(x.grad, up @ (t * g))
    torch.testing.assert_close(one.weight.grad, up.T @ near)
    torch.testing.assert_close(one.bias.grad, up.sum(0))


def test_gradients_are_those_of_transformers() -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    from transformers.integrations.bitnet import ActQuant, WeightQuant

    one, x = layer(bias=False), tokens(5, 40).requires_grad_()
    up = tokens(5, 12, seed=3)
    quant = {f: getattr(f.forward, "_torchdynamo_orig_callable", f.forward) for f in (ActQuant, WeightQuant)}
    w = one.weight.detach().clone().requires_grad_()
    theirs_x = x.detach().clone().requires_grad_()
    near_x = theirs_x + (quant[ActQuant](None, theirs_x.detach()) - theirs_x).detach()
    near_w = w + (quant[WeightQuant](None, w.detach()) - w).detach()
    y = functional.linear(near_x, near_w)
    y.backward(up)
    mine = one(x)
    mine.backward(up)
    torch.testing.assert_close(mine, y)
    torch.testing.assert_close(x.grad, theirs_x.grad)
    torch.testing.assert_close(one.weight.grad, w.grad)


def test_eval_mode_keeps_the_gradient_where_one_is_asked_for() -> None:
    one, x = layer().eval(), tokens(5, 40).requires_grad_()
    one(x).sum().backward()
    assert x.grad is not None
    frozen = layer().eval().requires_grad_(False)
    y = frozen(x)
    assert y.requires_grad
    assert not frozen(x.detach()).requires_grad


def test_a_layer_used_twice_sums_its_gradients() -> None:
    one, x = layer(16, 16, bias=False), tokens(3, 16)
    one(one(x)).sum().backward()
    twice = one.weight.grad.clone()
    one.weight.grad = None
    inner = one(x)
    one(inner.detach()).sum().backward()
    second = one.weight.grad.clone()
    one.weight.grad = None
    t, g = ternarise(one.weight)
    inner.backward(torch.ones(3, 16) @ (t * g))
    torch.testing.assert_close(twice, second + one.weight.grad)


def test_a_second_derivative_can_be_taken() -> None:
    one, x = layer(), tokens(5, 40).requires_grad_()
    (grad,) = torch.autograd.grad(one(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    assert torch.isfinite(second).all()
    assert second.abs().sum() > 0


def test_functional_transforms_see_the_layer() -> None:
    one, x = layer().eval().requires_grad_(False), tokens(5, 40)
    with torch.no_grad():
        each = torch.func.vmap(one)(x)
        assert torch.equal(each, one(x))
    slope = torch.func.jacrev(one)(x[0])
    t, g = ternarise(one.weight)
    torch.testing.assert_close(slope, t * g)


def test_compiled_training_is_one_graph_of_the_same_values() -> None:
    one, x = layer(), tokens(5, 40)
    want = one(x)
    want.square().sum().backward()
    grad, one.weight.grad = one.weight.grad, None
    whole = torch.compile(one, backend="aot_eager", fullgraph=True)
    y = whole(x)
    y.square().sum().backward()
    assert torch.equal(y, want)
    torch.testing.assert_close(one.weight.grad, grad)


@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"group": 20}, {"group": 20, "activations": "float"}])
def test_compiled_evaluation_is_one_graph_of_the_same_values(options: dict[str, Any]) -> None:
    model = nn.Sequential(layer(**options), nn.ReLU(), layer(12, 8)).eval()
    whole = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for rows in (5, 7):
            x = tokens(rows, 40, seed=rows)
            assert torch.equal(whole(x), model(x))
        model[0].weight.mul_(-1)
        assert torch.equal(whole(x), model(x))


def test_an_exported_layer_computes_the_same() -> None:
    model, x = nn.Sequential(layer(), nn.ReLU()).eval().requires_grad_(False), tokens(5, 40)
    program = torch.export.export(model, (x,))
    assert any("tritium" in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(x), model(x))


def test_forward_derivatives_are_not_lost() -> None:
    one, x, way = layer().eval().requires_grad_(False), tokens(5, 40), tokens(5, 40, seed=2)
    t, g = ternarise(one.weight)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        y = one(torch.autograd.forward_ad.make_dual(x, way))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(y).tangent, way @ (t * g).T)


def test_a_traced_layer_is_no_constant() -> None:
    one = layer().eval()
    with torch.no_grad():
        traced = torch.jit.trace(one, tokens(5, 40), check_trace=False)
        torch.testing.assert_close(traced(tokens(5, 40, seed=7)), one(tokens(5, 40, seed=7)))


def test_zeros_give_the_bias_and_no_gradient_that_is_not_finite() -> None:
    one, x = layer(), torch.zeros(3, 40, requires_grad=True)
    y = one(x)
    assert torch.equal(y, one.bias.expand(3, -1))
    y.sum().backward()
    assert torch.isfinite(x.grad).all()


# ---- packed weights


def test_packed_weights_are_kept_until_the_parameters_change() -> None:
    one, x = layer().eval(), tokens(5, 40)
    with torch.no_grad():
        first = one(x)
        kept = one.packed()
        assert one.packed() is kept
        one.weight.copy_(tokens(12, 40, seed=9))
        assert one.packed() is not kept
        assert not torch.equal(one(x), first)
        np.testing.assert_array_equal(one(x).numpy(), native(one)(tt.tensor(x.numpy())).numpy())


def _sgd(one: BitLinear) -> None:
    optimizer = torch.optim.SGD(one.parameters(), lr=10.0)
    one(tokens(5, 40)).square().sum().backward()
    optimizer.step()


CHANGES = {
    "an optimiser's step in eval mode": _sgd,
    "load_state_dict": lambda one: one.load_state_dict(layer(seed=5).state_dict()),
    "another parameter": lambda one: setattr(one, "weight", nn.Parameter(tokens(12, 40, seed=5))),
    "another bias": lambda one: setattr(one, "bias", nn.Parameter(tokens(12, seed=5))),
    "other data": lambda one: setattr(one.weight, "data", tokens(12, 40, seed=5)),
    "a write to .data and eval": lambda one: (one.weight.data.normal_(), one.eval()),
    "half and float": lambda one: (one.weight.data.mul_(1.001), one.half(), one.float()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_call_after_a_change_sees_old_weights(change: str) -> None:
    one, x = layer().eval(), tokens(5, 40)
    with torch.no_grad():
        one(x)
    CHANGES[change](one)
    with torch.no_grad():
        np.testing.assert_array_equal(one(x).numpy(), native(one)(tt.tensor(x.numpy())).numpy())


@pytest.mark.skipif(buffer.native is None, reason="the pure build hands memory over through NumPy")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_activations_are_read_and_results_given_where_they_lie(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, x, seen = layer(bias=False).to(kind).eval(), tokens(5, 40).to(kind), []
    call = tt.nn.BitLinear.__call__

    def spy(self: Any, a: Any) -> Any:
        y = call(self, a)
        seen.extend((a.data_ptr, y.data_ptr))
        return y

    monkeypatch.setattr(tt.nn.BitLinear, "__call__", spy)
    with torch.no_grad():
        y = one(x)
    assert seen == [x.data_ptr(), y.data_ptr()]


def test_strided_activations_are_read_where_they_lie() -> None:
    one, x = layer().eval(), tokens(40, 6)
    with torch.no_grad():
        assert torch.equal(one(x.T), one(x.T.contiguous()))
        assert torch.equal(one(tokens(5, 80)[:, ::2]), one(tokens(5, 80)[:, ::2].contiguous()))


def test_results_outlive_the_layer() -> None:
    one, x = layer().eval(), tokens(5, 40)
    with torch.inference_mode():
        y = one(x)
        want = y.clone()
        del one
        assert torch.equal(y, want)


def test_copies_and_pickles_leave_packed_weights_behind() -> None:
    one, x = layer().eval(), tokens(5, 40)
    with torch.no_grad():
        want = one(x)
    file = streams.BytesIO()
    torch.save(one, file)
    file.seek(0)
    for other in (copy.deepcopy(one), torch.load(file, weights_only=False)):
        assert other._packed is None
        assert other.weight not in operators._kept
        with torch.no_grad():
            assert torch.equal(other(x), want)


# ---- whole models


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8, bias=False))
        self.lm_head = nn.Linear(8, 11, bias=False)
        self.tied = nn.Linear(8, 11, bias=False)
        self.tied.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        return self.lm_head(self.body(self.embed(ids)))


def test_replace_linears_keeps_parameters_and_leaves_heads(caplog: pytest.LogCaptureFixture) -> None:
    model = Small().eval()
    before = dict(model.named_parameters())
    with caplog.at_level(logging.INFO, "tritium"):
        assert replace_linears(model) is model
    assert set(bit_linears(model)) == {"body.0", "body.2"}
    assert {n: id(p) for n, p in model.named_parameters()} == {n: id(p) for n, p in before.items()}
    assert not model.body[0].training
    assert "2 replaced (body.0, body.2); left alone: lm_head, tied" in caplog.text


def test_a_filter_and_names_choose_what_is_replaced() -> None:
    chosen = replace_linears(Small(), filter=lambda name, m: m.bias is not None)
    assert set(bit_linears(chosen)) == {"body.0"}
    assert set(bit_linears(replace_linears(Small(), skip=("body",)))) == {"lm_head"}


def test_replacing_twice_changes_nothing() -> None:
    model = replace_linears(Small())
    layers = bit_linears(model)
    assert bit_linears(replace_linears(model)) == layers


def test_a_layer_with_two_names_stays_one() -> None:
    shared = nn.Linear(4, 4)
    model = replace_linears(nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)}))
    assert isinstance(model["a"], BitLinear)
    assert model["a"] is model["b"][0]


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no linear layer"):
        replace_linears(nn.Sequential(nn.ReLU()))
    with pytest.raises(ArgumentError, match=r"nn\.Sequential"):
        replace_linears(nn.Linear(3, 4))


def test_layers_that_read_weights_themselves_do_not_go_around_a_bit_linear() -> None:
    model = replace_linears(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)).eval()
    assert set(bit_linears(model)) == {"linear1", "linear2"}  # not self_attn.out_proj, whose weight its owner reads
    x = tokens(2, 3, 16)
    slow = model(x).detach()
    with torch.no_grad():
        torch.testing.assert_close(model(x), slow)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "1", None])
def test_set_lambda_takes_0_to_1(value: Any) -> None:
    with pytest.raises(ArgumentError, match="0 to 1"):
        set_lambda(layer(), value)


def test_set_lambda_reaches_every_layer() -> None:
    model = replace_linears(Small())
    set_lambda(model, 0.25)
    assert {m.lambda_ for m in bit_linears(model).values()} == {0.25}
    with pytest.raises(ArgumentError, match="replace_linears"):
        set_lambda(nn.ReLU(), 0.5)


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'rms'"):
        BitLinear(3, 4, norm="layer")


# ---- scales of rows and groups, activations by group or not at all

KINDS: list[dict[str, Any]] = [
    {"axis": 0}, {"group": 16}, {"group": 32, "activations": "group"}, {"group": 32, "activations": "float"},
    {"activations": "float"},
]  # fmt: skip


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_kernels_compute_what_was_trained(options: dict[str, Any]) -> None:
    one, x = layer(k=96, **options), tokens(2, 5, 96)
    trained = one(x)
    with torch.no_grad():
        run = one.eval()(x)
    assert trained.requires_grad
    torch.testing.assert_close(run, trained, rtol=2e-6, atol=2e-6)
    t, g = ternarise(one.weight, axis=one.axis, group=one.group)
    assert g.shape == ((12, 96 // one.group) if one.group else (12,) if one.axis == 0 else ())
    dense = t * (g.repeat_interleave(one.group, -1) if one.group else g[:, None] if g.ndim else g)
    exact = functional.linear(x, dense, one.bias)
    if one.activations == "float":
        torch.testing.assert_close(run, exact, rtol=2e-6, atol=2e-6)
    else:
        bound = dense.abs().sum(1) * x.abs().max() / 254 + 1e-5
        assert ((run - exact).abs() <= bound).all()


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_gradients_pass_the_roundings_of_groups(options: dict[str, Any]) -> None:
    one, x = layer(k=96, bias=False, **options), tokens(4, 96).requires_grad_()
    one(x).sum().backward()
    t, g = ternarise(one.weight, axis=one.axis, group=one.group)
    dense = t * (g.repeat_interleave(one.group, -1) if one.group else g[:, None] if g.ndim else g)
    torch.testing.assert_close(x.grad, dense.sum(0).expand(4, 96))
    q, a = round_activations(x.detach(), one.group, one.activations)
    rounded = (q * a).flatten(-2) if one.group else q * a
    torch.testing.assert_close(one.weight.grad, rounded.sum(0).expand(12, 96), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"group": 7}, "divide"), ({"group": -8}, "divide"), ({"axis": 1}, "axis"), ({"axis": 0, "group": 8}, "give one"),
        ({"activations": "group"}, "group="), ({"activations": "int4"}, "token"),
    ],
)  # fmt: skip
def test_scales_that_do_not_exist_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        BitLinear(40, 12, **options)


def test_replaced_layers_have_the_scales_asked_for() -> None:
    model = replace_linears(nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 4)), group=8, activations="float")
    assert [(m.group, m.activations) for m in model] == [(8, "float")] * 2


@pytest.mark.parametrize(("form", "group"), [("q2_0", 64), ("pq2_0", 128), ("mlx", 64), ("tq2_0", 256), ("f16", 128)])
def test_files_hold_the_groups_of_the_layers(form: str, group: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Named(group=group, activations="float")
    target = tmp_path / ("model.gguf" if io.FORMATS[form].container == "gguf" else "model")
    assert export(model, target, format=form, tokenizer=byte_tokenizer()).scale_error == 0
    entries = io.open(target).named
    for name, one in bit_linears(model).items():
        t, g = ternarise(one.weight, group=group)
        stored = entries[f"{name}.weight"].ternary()
        np.testing.assert_array_equal(stored.values(), t.numpy())
        np.testing.assert_array_equal(stored.dense(), (t * g.repeat_interleave(group, -1)).numpy())


def test_groups_have_no_place_in_a_packed_directory(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="scale"):
        export(Named(group=64), tmp_path / "hf")
    assert not list(tmp_path.iterdir())


# ---- files


def bitnet(seed: int = 0, kind: Any = torch.float32) -> Any:
    """transformers' own BitNet, small, with our layers."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    torch.manual_seed(seed)
    said = {k: v for k, v in tiny_config().items() if k not in ("model_type", "architectures")}
    model = transformers.BitNetForCausalLM(transformers.BitNetConfig(**said)).to(kind)
    return replace_linears(model)


class Named(nn.Module):
    """A model without transformers that has its names: one layer, and tensors of every kind a file holds."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        shapes = {"self_attn.q_proj": (256, 256), "self_attn.k_proj": (128, 256), "mlp.down_proj": (256, 512)}
        inner: dict[str, Any] = {"self_attn": nn.Module(), "mlp": nn.Module(), "input_layernorm": nn.RMSNorm(256)}
        for name, (n, k) in shapes.items():
            owner, _, last = name.partition(".")
            inner[owner].add_module(last, BitLinear(k, n, **options))
        self.model = nn.ModuleDict(
            {"embed_tokens": nn.Embedding(256, 256), "layers": nn.ModuleList([nn.ModuleDict(inner)])}
        )
        self.lm_head = nn.Linear(256, 256, bias=False)
        self.lm_head.weight = self.model["embed_tokens"].weight
        self.config = tiny_config(num_hidden_layers=1, vocab_size=256)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Named, Path]:
    torch.manual_seed(0)
    model, folder = Named(), tmp_path_factory.mktemp("export") / "hf"
    export(model, folder, tokenizer=byte_tokenizer())
    return model, folder


def test_a_file_holds_what_the_layers_compute_with(packed: tuple[Named, Path]) -> None:
    model, folder = packed
    entries = io.open(folder).entries
    for name, one in bit_linears(model).items():
        t, g = ternarise(one.weight)
        found = entries[f"{name}.weight"].ternary()
        np.testing.assert_array_equal(found.values(), t.numpy())
        assert found.scale == g.numpy()
    table = entries["model.embed_tokens.weight"].array()
    np.testing.assert_array_equal(table, model.model["embed_tokens"].weight.detach().numpy())
    assert "lm_head.weight" not in entries
    said = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert said["linear_class"] == "autobitlinear"
    assert said["quantization_mode"] == "offline"


@pytest.mark.parametrize("form", [f for f in io.FORMATS if f not in ("hf", "f16", "bf16")])
def test_every_format_says_the_same(form: str, packed: tuple[Named, Path], tmp_path: Path) -> None:
    model, folder = packed
    target = tmp_path / ("model.gguf" if io.FORMATS[form].container == "gguf" else "model")
    made = export(model, target, format=form, tokenizer=byte_tokenizer())
    verdict = io.verify(folder, target, rtol=2**-11 if made.scale_error else 0.0)
    assert verdict.same, verdict.difference
    assert verdict.ternary == 3
    assert (made.scale_error == 0) == (form in ("i2_s", "mlx", "f32"))


def test_an_f16_scale_makes_every_format_exact(tmp_path: Path) -> None:
    model = Named()
    for one in bit_linears(model).values():  # as many weights of each sign and of 0 as it takes for a mean of 1/8
        one.weight.data = torch.tensor([0.25, 0.0, -0.25, 0.0]).repeat(one.weight.numel() // 4).view_as(one.weight)
    export(model, tmp_path / "a.gguf", format="i2_s")
    for form in ("tq1_0", "tq2_0", "q2_0"):
        export(model, tmp_path / f"{form}.gguf", format=form)
        assert io.verify(tmp_path / "a.gguf", tmp_path / f"{form}.gguf").same


def test_bf16_masters_keep_scales_in_f32(tmp_path: Path) -> None:
    model = Named().bfloat16()
    for form, name in (("hf", "hf"), ("i2_s", "a.gguf")):
        export(model, tmp_path / name, format=form)
        entries = io.open(tmp_path / name).named
        for layer_name, one in bit_linears(model).items():
            t, g = ternarise(one.weight)
            found = entries[f"{layer_name}.weight"].ternary()
            np.testing.assert_array_equal(found.values(), t.numpy())
            assert found.scale == g.numpy()
    assert io.verify(tmp_path / "hf", tmp_path / "a.gguf").same


def test_a_compiled_model_is_exported_under_its_own_names(tmp_path: Path) -> None:
    model = Named()
    export(torch.compile(model), tmp_path / "hf", config=model.config)
    assert "model.layers.0.mlp.down_proj.weight" in io.open(tmp_path / "hf").entries


def test_a_gguf_carries_name_configuration_and_bytes(packed: tuple[Named, Path], tmp_path: Path) -> None:
    said = packed[0].config | {"eos_token_id": 0}
    export(packed[0], tmp_path / "psalms.gguf", format="i2_s", tokenizer=byte_tokenizer(), config=said)
    found = io.open(tmp_path / "psalms.gguf").metadata
    assert found["general.name"] == "psalms"
    assert found["general.architecture"] == "bitnet-b1.58"
    assert found["tokenizer.ggml.tokens"][65] == "A"
    assert len(found["tokenizer.ggml.tokens"]) == 256
    assert found["tokenizer.ggml.eos_token_id"] == 0


def test_nothing_is_left_beside_what_was_written(packed: tuple[Named, Path], tmp_path: Path) -> None:
    export(packed[0], tmp_path / "a.gguf", format="i2_s")
    with pytest.raises(FormatError, match="exists already"):
        export(packed[0], tmp_path / "a.gguf", format="i2_s")
    export(packed[0], tmp_path / "a.gguf", format="tq2_0", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["a.gguf"]


def test_layers_with_norms_of_their_own_go_to_hf_alone(tmp_path: Path) -> None:
    model = Named(norm="rms", eps=1e-6)
    export(model, tmp_path / "hf")
    said = json.loads((tmp_path / "hf" / "config.json").read_text())["quantization_config"]
    assert (said["use_rms_norm"], said["rms_norm_eps"]) == (True, 1e-6)
    assert "model.layers.0.mlp.down_proj.rms_norm.weight" in io.open(tmp_path / "hf").entries
    with pytest.raises(FormatError, match="norms of their own"):
        export(model, tmp_path / "a.gguf", format="i2_s")


def test_a_dense_projection_stays_dense(tmp_path: Path) -> None:
    model = Named()
    dense = nn.Linear(512, 256, bias=False)
    model.model["layers"][0]["mlp"].down_proj = dense
    for form, name in (("hf", "hf"), ("i2_s", "a.gguf")):
        export(model, tmp_path / name, format=form)
        found = io.open(tmp_path / name).named["model.layers.0.mlp.down_proj.weight"]
        np.testing.assert_array_equal(found.array(), dense.weight.detach().numpy())


REFUSED = {
    "no layer": (lambda: nn.Sequential(nn.Linear(4, 4)), {}, "no BitLinear"),
    "no config": (lambda: nn.Sequential(BitLinear(4, 4)), {}, "config="),
    "rows": (lambda: nn.Sequential(BitLinear(4, 6)), {"config": tiny_config()}, "multiple of 4"),
    "format": (Named, {"format": "tq2"}, "Did you mean 'tq2_0'"),
    "tokenizer": (Named, {"tokenizer": 3}, "tokenizer is"),
    "diverged": (lambda: _with_nan(Named()), {}, "diverged"),
}


def _with_nan(model: Named) -> Named:
    next(iter(bit_linears(model).values())).weight.data[0, 0] = float("nan")
    return model


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_leaves_nothing(case: str, tmp_path: Path) -> None:
    make, options, told = REFUSED[case]
    with pytest.raises((ArgumentError, FormatError, QuantError), match=told):
        export(make(), tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


# ---- transformers


def test_transformers_models_are_replaced_but_for_their_heads() -> None:
    model = bitnet()
    assert len(bit_linears(model)) == 14
    assert type(model.lm_head) is nn.Linear
    ids = torch.arange(10)[None]
    trained = model.train()(ids).logits.detach()
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(ids).logits, trained, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["online", "offline", "packed"])
def test_transformers_own_bit_layers_keep_their_weights_and_scale(mode: str) -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    from transformers.integrations import bitnet as theirs

    w = tokens(12, 40)
    t, g = ternarise(w)
    if mode == "packed":
        old: Any = theirs.BitLinear(40, 12, bias=False, dtype=torch.float32)
        old.weight, old.weight_scale = theirs.pack_weights(t.clone()), 1 / g.reshape(1)
    else:
        old = theirs.AutoBitLinear(40, 12, bias=False, online_quant=mode == "online")
        old.weight.data = w if mode == "online" else t.float()
        if mode == "offline":
            old.weight_scale = g.reshape(1)
    new = replace_linears(nn.Sequential(old))[0]
    got = ternarise(new.weight)
    assert torch.equal(got[0], t)
    assert got[1].item() == pytest.approx(g.item(), rel=1e-6)


def theirs_of(model: Any) -> Any:
    """The same model with transformers' own layers, which round masters on every call."""
    from transformers.integrations.bitnet import AutoBitLinear

    other = copy.deepcopy(model)
    for name, one in bit_linears(other).items():
        n, k = one.weight.shape
        own = AutoBitLinear(k, n, bias=False, online_quant=True)
        own.weight = one.weight
        other.set_submodule(name, own)
    return other


@pytest.mark.usefixtures("_eager")
@pytest.mark.parametrize("seed", range(3))
def test_greedy_tokens_are_those_of_transformers_own_layers(seed: int) -> None:
    # The products differ in the last places of f32, and where a later activation stands between two of 127 steps, by a step:
    # 1/127 of one of 256 terms. So logits agree to a hundredth, and tokens wherever the first leads by more than they differ.
    model = bitnet(seed).eval()
    other, ids, decided = theirs_of(model), [seed], 0
    for _ in range(20):
        with torch.no_grad():
            mine, want = (m(torch.tensor([ids])).logits[0, -1] for m in (model, other))
        apart = float((mine - want).abs().max())
        assert apart <= 0.01 * float(want.abs().max())
        first, second = want.topk(2).values.tolist()
        if first - second > apart:
            decided += 1
            assert int(mine.argmax()) == int(want.argmax())
        ids.append(int(mine.argmax()))
    assert decided > 10


@pytest.fixture
def _eager() -> Any:
    """transformers compiles its unpacking, which takes longer than all else here."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.usefixtures("_eager")
def test_transformers_reads_what_was_exported(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("accelerate", reason="transformers loads packed models with accelerate")
    model = bitnet().eval()
    export(model, tmp_path / "hf")
    ids = torch.arange(12)[None]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-3, atol=1e-3)


def test_tritium_runs_what_was_exported(tmp_path: Path) -> None:
    from tritium.models.load import load

    model = bitnet().eval()
    ids = list(range(12))
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits[0, -1].numpy()
    for form, name in (("hf", "hf"), ("i2_s", "a.gguf")):
        export(model, tmp_path / name, format=form)
        got = load(tmp_path / name, kv="f32").session().extend(0, ids)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-3 * np.abs(want).max())


# ---- the benchmark


def test_a_small_run_of_the_benchmark_checks_tokens_and_keeps_raw_values(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    small = "--hidden 128 --intermediate 256 --layers 1 --heads 2 --kv-heads 1 --vocab 64 --past 4 --tokens 2 --rounds 2 --loops 1"
    script = Path(__file__).parents[2] / "bench" / "torch_linears.py"
    command = [sys.executable, str(script), "--family", "llama", "--threads", "1", "--json", str(tmp_path / "out.json")]
    done = subprocess.run([*command, *small.split()], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "2 greedy tokens are those of torch's operations" in done.stdout
    (run,) = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert {name: len(values) for name, values in run["ns"].items()} == {"f32": 2, "torch ternary": 2, "tritium": 2}


@pytest.mark.parametrize("looks", [False, True], ids=["at once", "after another look"])
def test_a_fused_step_in_eval_mode_is_seen(looks: bool) -> None:
    torch.manual_seed(0)
    layer, x = BitLinear(64, 64).eval(), torch.randn(3, 64)
    layer(x).square().sum().backward()
    with torch.no_grad():
        before = layer(x)
        torch.optim.AdamW(layer.parameters(), lr=0.5, fused=True).step()
        after = layer(x) if looks else copy.deepcopy(layer)(x)
        assert not torch.equal(before, after)
        assert torch.equal(layer(x), copy.deepcopy(layer)(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_a_layer_on_a_gpu_gives_the_bits_of_the_cpu(tokens: int, dtype: Any) -> None:
    torch.manual_seed(tokens)
    layer = BitLinear(200, 96, bias=True).eval()
    x = torch.randn(tokens, 200).to(dtype)
    with torch.inference_mode():
        near = layer(x.float()).to(dtype)  # f32 runs on the kernels of every build
    far = layer.to("cuda")
    with torch.no_grad():
        calls = [far(x.to("cuda")) for _ in range(4)]  # from the third on by launches that are kept
        far.weight.mul_(-1)
        last = far(x.to("cuda"))
    for y in calls:
        assert y.dtype == dtype
        assert torch.equal(y.cpu(), near)
    assert not torch.equal(last.cpu(), near)

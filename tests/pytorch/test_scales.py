"""Scales by tensor, row and group, means or learned: their gradients, and every format that holds them or refuses by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny import config as tiny_config
from tritium import io
from tritium.errors import ArgumentError, FormatError, QuantError

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
from differences import differences  # noqa: E402
from tritium.torch import BitLinear, Recipe, bit_linears, export, prepare, replace_linears, ternarise  # noqa: E402
from tritium.torch.formulas import absmean, round_activations, spread  # noqa: E402
from tritium.torch.layer import SCALES  # noqa: E402

nn, functional = torch.nn, torch.nn.functional

FORMS: dict[str, dict[str, Any]] = {
    "tensor": {}, "row": {"axis": 0}, "tensor f16": {"scale_dtype": "f16"}, "row f16": {"axis": 0, "scale_dtype": "f16"},
    "group 16": {"group": 16}, "group 32, int8 by group": {"group": 32, "activations": "group"},
    "group 32, float": {"group": 32, "activations": "float"}, "tensor, float": {"activations": "float"},
}  # fmt: skip
HELD = {  # which formats hold the scales of a matrix of 256 or 512 columns
    "tensor": set(io.FORMATS),
    "row": set(io.FORMATS) - {"i2_s", "hf"},
    64: {"q2_0", "mlx", "f32", "f16"},
    128: {"q2_0", "pq2_0", "ptq1_0", "mlx", "f32", "f16"},
    256: {"q2_0", "pq2_0", "ptq1_0", "tq1_0", "tq2_0", "mlx", "f32", "f16"},
}


def learned(**options: Any) -> BitLinear:
    torch.manual_seed(0)
    layer = BitLinear(64, 4, bias=True, scales="learned", **options)
    with torch.no_grad():
        layer.scale.mul_(torch.rand_like(layer.scale) + 0.5)
    return layer


def tokens(*shape: int, seed: int = 1) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- values and gradients


def test_a_learned_scale_begins_at_the_mean() -> None:
    torch.manual_seed(0)
    layer = BitLinear(64, 8, group=16, scales="learned")
    assert torch.equal(layer.scale, absmean(layer.weight, group=16))
    plain = BitLinear(64, 8, group=16)
    plain.weight = layer.weight
    x = tokens(3, 64)
    assert torch.equal(layer(x), plain(x))


@pytest.mark.parametrize("options", FORMS.values(), ids=list(FORMS))
def test_kernels_compute_with_learned_scales_as_training_does(options: dict[str, Any]) -> None:
    layer, x = learned(**options), tokens(2, 5, 64)
    trained = layer(x)
    with torch.no_grad():
        packed = layer.eval()(x)
    torch.testing.assert_close(packed, trained, rtol=2e-6, atol=2e-6)
    if not layer.group and layer.activations == "token":
        assert torch.equal(packed, trained)


class Smooth:
    """What a layer computes, in f64 and with what its roundings added held as it was at one point: a smooth function of the rest."""

    def __init__(self, layer: BitLinear, x: Any) -> None:
        self.layer, self.norm = layer, layer.rms_norm
        self.values = {"x": x} | {n: p for n, p in layer.named_parameters() if p is not None}
        self.values = {n: v.detach().double() for n, v in self.values.items()}
        self.g = layer._scales().detach()
        inner = x.detach().float() if self.norm is None else self.norm(x).detach()
        whole = round_activations(inner, layer.group, layer.activations, lambda_=0.0)
        near = round_activations(inner, layer.group, layer.activations)
        self.size = torch.as_tensor(whole[1]).double()
        self.added_x = layer.lambda_ * (near[0] - whole[0]).double()
        scaled = layer.weight.detach() * (1 / spread(self.g, layer.group))
        self.added_w = layer.lambda_ * (scaled.round().clamp(-1, 1) - scaled).double()

    def __call__(self, **changed: Any) -> Any:
        """Return the result with some values changed."""
        v, group = self.values | changed, self.layer.group
        x, g = v["x"], self.g.double()
        g = g + (v["scale"] - self.values["scale"]) if "scale" in v else g  # of groups rounded to f16
        if self.norm is not None:
            x = functional.rms_norm(x, x.shape[-1:], v["rms_norm.weight"], self.norm.eps)
        steps = (x.unflatten(-1, (-1, group)) if group else x) / self.size + self.added_x
        rounded = (steps * self.size).flatten(-2) if group else steps * self.size
        weights = v["weight"] / spread(self.g.double(), group) + self.added_w
        return functional.linear(rounded, weights * spread(g, group), v["bias"])


@pytest.mark.parametrize("lambda_", [1.0, 0.5])
@pytest.mark.parametrize("more", [{}, {"scales": "learned"}, {"norm": "rms"}], ids=["absmean", "learned", "norm"])
@pytest.mark.parametrize("options", FORMS.values(), ids=list(FORMS))
def test_gradients_are_the_finite_differences_of_the_smooth_part(
    options: dict[str, Any], more: dict[str, str], lambda_: float
) -> None:
    """What roundings add is held: what is left is smooth in tokens, weights, scales, bias and norm."""
    torch.manual_seed(0)
    layer, x, up = BitLinear(64, 4, bias=True, lambda_=lambda_, **options, **more), tokens(3, 64), tokens(3, 4, seed=3)
    with torch.no_grad():
        for name, p in layer.named_parameters():
            if name in ("scale", "rms_norm.weight"):
                p.mul_(torch.rand_like(p) + 0.5)
    y = layer(x.requires_grad_())
    y.backward(up)
    smooth = Smooth(layer, x)
    torch.testing.assert_close(y, smooth(), rtol=1e-5, atol=1e-6, check_dtype=False)
    for name, value in ({"x": x} | dict(layer.named_parameters())).items():
        slopes = differences(lambda v, n=name: (smooth(**{n: v}) * up.double()).sum(), value)
        torch.testing.assert_close(
            value.grad, slopes, rtol=2e-6, atol=2e-6, check_dtype=False, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_scale_is_trained_alone() -> None:
    layer, x = learned(axis=0), tokens(64, 64)
    target = functional.linear(x, layer.weight.detach(), layer.bias.detach())
    layer.weight.requires_grad_(False)
    optimizer = torch.optim.SGD([layer.scale], lr=0.05)
    losses = []
    for _ in range(60):
        loss = functional.mse_loss(layer(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.95


@pytest.mark.parametrize("value", [-1.0, 0.0])
def test_a_scale_at_or_below_zero_counts_as_the_least_one_and_has_a_gradient(value: float) -> None:
    layer, x = learned(), tokens(3, 64)
    with torch.no_grad():
        layer.scale.fill_(value)
    assert layer.ternary()[1].item() == pytest.approx(1e-5)
    layer(x).sum().backward()
    assert layer.scale.grad.abs() > 0


def test_a_scale_that_is_not_finite_is_refused() -> None:
    layer = learned()
    layer.scale.data.fill_(float("nan"))
    with pytest.raises(QuantError, match="scales"):
        layer.ternary()


def test_a_write_to_the_scale_is_seen_in_eval() -> None:
    layer, x = learned().eval(), tokens(3, 64)
    with torch.no_grad():
        before = layer(x) - layer.bias
        layer.scale.mul_(0.5)
        t, g = layer.ternary()
        amax = x.abs().amax(-1, keepdim=True)
        want = ((x * (127 / amax)).round() @ t.float().T) * (amax / 127 * g)
        after = layer(x) - layer.bias
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, want)


def test_reset_scale_follows_the_weights_and_replaced_layers_begin_there() -> None:
    layer = learned(group=32)
    layer.weight.data.mul_(3)
    layer.reset_scale()
    assert torch.equal(layer.scale, absmean(layer.weight, group=32))
    (replaced,) = replace_linears(nn.Sequential(nn.Linear(64, 8)), axis=0, scales="learned")
    assert torch.equal(replaced.scale, absmean(replaced.weight, 0))
    assert "scales='learned'" in repr(replaced)


def test_unknown_scales_are_refused() -> None:
    with pytest.raises(ArgumentError, match="'absmean' or 'learned', given 'median'"):
        BitLinear(8, 8, scales="median")


# ---- files


class Named(nn.Module):
    """One layer with the names of transformers."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        inner = {"self_attn": nn.Module(), "mlp": nn.Module()}
        inner["self_attn"].q_proj = BitLinear(256, 32, **options)
        inner["mlp"].down_proj = BitLinear(512, 16, **options)
        self.model = nn.ModuleDict(
            {"embed_tokens": nn.Embedding(8, 256), "layers": nn.ModuleList([nn.ModuleDict(inner)])}
        )
        self.config = tiny_config(num_hidden_layers=1, vocab_size=8)
        for layer in bit_linears(self).values():
            if layer.scale is not None:
                layer.scale.data.mul_(torch.rand_like(layer.scale) + 0.5)


def options_of(form: Any) -> dict[str, Any]:
    return {"tensor": {}, "row": {"axis": 0}}.get(form) or ({"group": form} if isinstance(form, int) else {})


@pytest.mark.parametrize("to", io.FORMATS)
@pytest.mark.parametrize("form", HELD)
def test_a_format_holds_the_scales_or_refuses_them_by_name(form: Any, to: str, tmp_path: Path) -> None:
    model = Named(scales="learned", **options_of(form))
    target = tmp_path / ("model.gguf" if io.FORMATS[to].container == "gguf" else "model")
    if to not in HELD[form] and to != "bf16":
        with pytest.raises(FormatError, match=rf"cannot be {to}"):
            export(model, target, format=to)
        assert not list(tmp_path.iterdir())
        return
    lost = export(model, target, format=to).scale_error
    entries = io.open(target).named
    for name, layer in bit_linears(model).items():
        t, g = layer.ternary()
        stored = entries[f"{name}.weight"].ternary()
        np.testing.assert_array_equal(stored.values(), t.numpy())
        dense = (t * spread(g, layer.group)).numpy()
        np.testing.assert_allclose(stored.dense(), dense, rtol=lost * 1.001, atol=0)
    assert lost <= (2**-8 if to == "bf16" else 2**-11)
    assert lost == 0 or not (isinstance(form, int) and to != "bf16")


def test_exact_refuses_what_would_be_rounded_and_writes_what_is_not(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"tq2_0 rounds the scale of model.layers.0.*i2_s, hf, mlx and f32"):
        export(Named(), tmp_path / "a.gguf", format="tq2_0", exact=True)
    assert not list(tmp_path.iterdir())
    assert export(Named(), tmp_path / "a.gguf", format="i2_s", exact=True).scale_error == 0
    assert export(Named(group=128), tmp_path / "b.gguf", format="q2_0", exact=True).scale_error == 0


@pytest.mark.parametrize(
    ("options", "to"),
    [({}, to) for to in sorted(HELD["tensor"] - {"bf16"})]
    + [({"axis": 0, "scales": scales}, to) for scales in SCALES for to in sorted(HELD["row"] - {"bf16"})],
    ids=str,
)
def test_scales_that_are_f16_in_training_are_in_the_file_to_the_bit(
    options: dict[str, Any], to: str, tmp_path: Path
) -> None:
    model = Named(scale_dtype="f16", **options)
    target = tmp_path / ("model.gguf" if io.FORMATS[to].container == "gguf" else "model")
    assert export(model, target, format=to, exact=True).scale_error == 0
    entries = io.open(target).named
    for name, layer in bit_linears(model).items():
        t, g = layer.ternary()
        assert torch.equal(g, g.half().float())
        np.testing.assert_array_equal(entries[f"{name}.weight"].ternary().dense(), (t * spread(g, 0)).numpy())


@pytest.mark.parametrize("axis", [None, 0])
def test_f16_scales_are_in_every_path_of_a_layer(axis: int | None) -> None:
    torch.manual_seed(0)
    layer, x = BitLinear(64, 8, axis=axis, scale_dtype="f16"), tokens(5, 64)
    mean = absmean(layer.weight, axis)
    t, g = layer.ternary()
    assert torch.equal(g, mean.half().float())
    assert not torch.equal(g, mean)
    assert torch.equal(t, ternarise(layer.weight, axis=axis, scale=g)[0])
    slow = layer(x)
    layer.eval()
    with torch.no_grad():
        assert torch.equal(layer(x), slow)
        whole = torch.compile(layer, backend="eager", fullgraph=True)
        assert torch.equal(whole(x), slow)
    torch.testing.assert_close(torch.autograd.grad(slow.sum(), layer.weight)[0], _straight_through(x))


def _straight_through(x: Any) -> Any:
    """Return the gradient of the sum of a layer's results: the tokens as they were rounded, for each row."""
    q, a = round_activations(x, 0, "token")
    return (q * a).sum(0).expand(8, -1)


def test_unknown_scale_dtypes_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"scale_dtype is None .* or 'f16', given 'bf16'"):
        BitLinear(8, 8, scale_dtype="bf16")
    with pytest.raises(ArgumentError, match="scale_dtype"):
        Recipe.from_scratch(3, scale_dtype="f32")
    model = prepare(nn.Sequential(nn.Linear(8, 8)), Recipe.from_scratch(3, scale_dtype="f16"))
    assert model[0].scale_dtype == "f16"
    with pytest.raises(ArgumentError, match="already"):
        prepare(model, Recipe.from_scratch(3))


def test_ternarise_takes_scales() -> None:
    t, g = ternarise(torch.tensor([[0.4, -0.6, 2.0, 0.1]]), scale=torch.tensor(1.0))
    assert t.tolist() == [[0, -1, 1, 0]]
    assert g.item() == 1


@pytest.mark.parametrize("group", [0, 16])
def test_activations_are_rounded_as_the_formula_says_where_halves_are_common(group: int) -> None:
    # Numbers of few bits lie on halves of a step often: a reciprocal in the formula's place rounds some of them the other way.
    x = (torch.randn((4096, 16), generator=torch.Generator().manual_seed(5)) * 8).bfloat16().float()
    q, by = round_activations(x, group, "token")
    numbers = x.numpy()
    amax = np.maximum(np.abs(numbers).max(1, keepdims=True), np.float32(1e-5))
    np.testing.assert_array_equal(q.reshape(x.shape).numpy(), np.rint(numbers * (np.float32(127) / amax)))
    np.testing.assert_array_equal(by.reshape(amax.shape).numpy(), amax / np.float32(127))

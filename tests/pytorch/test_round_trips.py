"""Networks of every family with scales of every kind, trained in torch and exported to every format: the loaded model has their logits."""

from __future__ import annotations

import copy
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import families
import tritium as tt
from tritium import io
from tritium.errors import FormatError

torch = pytest.importorskip("torch", reason="models of PyTorch are exported")
pytest.importorskip("transformers", reason="the networks are those of transformers")

from torch_families import CLASSES, made, modules  # noqa: E402
from tritium.torch import Recipe, Windows, bit_linears, export, fit, prepare, replace_linears  # noqa: E402
from tritium.torch.formulas import spread  # noqa: E402
from tritium.torch.replace import HEADS  # noqa: E402

WIDE: dict[str, Any] = {  # every matrix has a multiple of 256 columns, which the widest blocks need
    "hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 64,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "bitnet": {}, "llama": {}, "qwen3": {},
    "minicpm": {"scale_depth": 1.4, "rope_scaling": None},
    "gemma3": {"sliding_window": 3, "sliding_window_pattern": 2, "query_pre_attn_scalar": 64},
    "maple": {"sliding_window": 3, "num_experts": 3, "moe_intermediate_size": 256, "layer_types": ["sliding_attention", "full_attention"]},
    "qwen3_5": {
        "linear_key_head_dim": 64, "linear_value_head_dim": 64, "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25, "mrope_section": [4, 2, 2]},
    },
}  # fmt: skip
SCALES: dict[str, dict[str, Any]] = {
    "tensor": {}, "row": {"axis": 0}, "64": {"group": 64}, "128": {"group": 128}, "256": {"group": 256},
    "tensor f16": {"scale_dtype": "f16"}, "row f16": {"axis": 0, "scale_dtype": "f16"},
}  # fmt: skip
HELD = {  # which formats hold the scales
    "tensor": set(io.FORMATS),
    "row": set(io.FORMATS) - {"i2_s", "hf"},
    "64": {"q2_0", "mlx", "f32", "f16", "bf16"},
    "128": {"q2_0", "pq2_0", "ptq1_0", "mlx", "f32", "f16", "bf16"},
    "256": {"q2_0", "pq2_0", "ptq1_0", "tq1_0", "tq2_0", "mlx", "f32", "f16", "bf16"},
}
HELD |= {f"{form} f16": HELD[form] for form in ("tensor", "row")}
TEXTS = np.random.default_rng(3).integers(0, 80, (7, 6))
CLOSE, STEP = (
    1e-5,
    0.05,
)  # of the largest logit: f32 sums in another order; an activation that fell to another int8 step
KINDS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
LONG = os.environ.get("TRITIUM_LONG") == "1"


class Case(NamedTuple):
    family: str
    scales: str
    to: str


EVERY = [Case(f, s, to) for f in FAMILIES for s in SCALES for to in io.FORMATS]
SOME = [
    Case("llama", "tensor", "i2_s"), Case("llama", "row", "q2_0"), Case("llama", "128", "f32"), Case("bitnet", "tensor", "tq1_0"),
    Case("bitnet", "256", "tq2_0"), Case("qwen3", "128", "pq2_0"), Case("qwen3", "tensor", "mlx"), Case("minicpm", "128", "ptq1_0"),
    Case("minicpm", "tensor", "hf"), Case("gemma3", "tensor", "i2_s"), Case("gemma3", "row", "i2_s"), Case("gemma3", "64", "f16"),
    Case("maple", "256", "q2_0"), Case("maple", "row", "mlx"), Case("maple", "tensor", "i2_s"), Case("qwen3_5", "tensor", "tq2_0"),
    Case("bitnet", "tensor f16", "tq1_0"), Case("llama", "row f16", "tq2_0"), Case("minicpm", "tensor f16", "ptq1_0"),
    Case("qwen3_5", "64", "q2_0"), Case("qwen3_5", "128", "q2_0"), Case("qwen3_5", "row", "bf16"),
]  # fmt: skip


def activations(scales: str) -> str:
    return "token" if not scales.isdigit() else "float"


def configuration(family: str) -> dict[str, Any]:
    return families.CONFIGS[family] | WIDE | FAMILIES[family]


@cache
def trained(family: str, scales: str) -> Any:
    """Return a network whose matrices, norms and scales were trained for two steps, or, of a family that transformers does not have, drawn."""
    torch.manual_seed(0)
    fields = configuration(family)
    form = {"scales": "learned", "activations": activations(scales)} | SCALES[scales]
    skip = (*HEADS, "in_proj_a", "in_proj_b")  # which Qwen3.5 has in floats
    recipe = Recipe.from_scratch(2, learning_rate=1e-2, skip=skip, **form)
    if family not in CLASSES:
        net = modules(fields, **form)
        with torch.no_grad():
            for layer in bit_linears(net).values():
                layer.scale.mul_(torch.rand_like(layer.scale) + 0.5)
        return net
    net = made(family, fields)
    with torch.no_grad():
        for weight in net.parameters():
            if weight.ndim > 1:
                weight.normal_(0, weight.shape[-1] ** -0.5)
            else:
                weight.add_(torch.randn_like(weight) * 0.2)
    tokens = torch.randint(80, (200,), generator=torch.Generator().manual_seed(1))
    fit(prepare(net, recipe), Windows(tokens, length=12, batch=2), recipe)
    return net.eval()


def logits_of(path: Path, scales: str) -> Any:
    session = tt.load(path, kv="f32", activations=activations(scales)).session(slots=len(TEXTS))
    return np.stack([session.extend(slot, ids.tolist()) for slot, ids in enumerate(TEXTS)])


def stored(net: Any, to: str) -> Any:
    """Return a network with the numbers that a format stores: its scales rounded, and in plain formats all others too."""
    form, held = io.FORMATS[to], copy.deepcopy(net)
    kind = torch.float32 if form.rounds is None else KINDS[form.rounds.name]
    with torch.no_grad():
        for number in held.parameters() if form.codec is None else ():
            number.copy_(number.to(kind))
        for layer, original in zip(bit_linears(held).values(), bit_linears(net).values(), strict=True):
            t, g = original.ternary()
            layer.scale.copy_(g.to(kind))
            layer.weight.copy_(t * spread(layer.scale, layer.group))  # the same ternary values at another scale
    return held


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The logits of a network in torch; of a family that only tritium runs, those of its export in f32."""

    @cache
    def logits(family: str, scales: str, to: str) -> Any:
        net = stored(trained(family, scales), to)
        if family in CLASSES:
            with torch.no_grad():
                return net(torch.tensor(TEXTS)).logits[:, -1].numpy()
        path = tmp_path_factory.mktemp("f32") / "m"
        export(net, path, format="f32", config=configuration(family))
        return logits_of(path, scales)

    return logits


def has_no_place(case: Case) -> bool:
    """Return True where the order of a family's file keeps scales from a format that holds them elsewhere: GGUF's order of value heads,
    of 64 columns each, divides groups of 128; and one tensor has the experts of a layer, each with its scale."""
    divided = case.family == "qwen3_5" and case.scales == "128" and io.FORMATS[case.to].container == "gguf"
    return divided or (case.family == "maple" and case.to == "i2_s")


@pytest.mark.parametrize("case", EVERY if LONG else SOME, ids="-".join)
def test_an_exported_network_has_its_logits_or_is_refused_by_name(case: Case, wanted: Any, tmp_path: Path) -> None:
    family, scales, to = case
    net, config = trained(family, scales), None if family in CLASSES else configuration(family)
    path = tmp_path / ("m.gguf" if io.FORMATS[to].container == "gguf" else "m")
    if to not in HELD[scales] or has_no_place(case):
        with pytest.raises(FormatError, match=rf"layers\.\d.*cannot be {to}"):
            export(net, path, format=to, config=config)
        assert not path.exists()
        return
    exact = io.FORMATS[to].rounds is None or ((scales.isdigit() or scales.endswith("f16")) and to != "bf16")
    assert export(net, path, format=to, config=config, exact=exact).scale_error == 0 or not exact
    expected = wanted(family, scales, to)
    apart = np.abs(logits_of(path, scales) - expected).max(1) / np.abs(expected).max()
    assert np.median(apart) <= CLOSE, apart
    assert apart.max() <= (STEP if activations(scales) == "token" else CLOSE), apart


@pytest.mark.parametrize(("family", "to"), [("qwen3", "i2_s"), ("gemma3", "tq2_0"), ("llama", "i2_s")])
def test_norms_inside_all_projections_are_in_gguf_where_the_family_has_them(
    family: str, to: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = prepare(made(family, configuration(family)), Recipe.from_scratch(1, norms="all", scale_dtype="f16"))
    with torch.no_grad():
        for name, weight in net.named_parameters():
            weight.add_(torch.rand_like(weight) * (0.5 if "rms_norm" in name else 0.02))
    if family == "llama":
        with pytest.raises(FormatError, match=r"a 'llama' in i2_s has no place for .*gemma3, qwen3 have one"):
            export(net, tmp_path / "m.gguf", format=to)
        return
    export(net, tmp_path / "m.gguf", format=to, exact=True)
    with torch.no_grad():
        expected = net(torch.tensor(TEXTS)).logits[:, -1].numpy()
    apart = np.abs(logits_of(tmp_path / "m.gguf", "tensor") - expected).max(1) / np.abs(expected).max()
    assert np.median(apart) <= CLOSE, apart
    assert apart.max() <= STEP, apart


def test_a_layer_that_a_family_has_in_floats_is_refused_where_the_file_would_have_plain_numbers(tmp_path: Path) -> None:
    fields = configuration("qwen3_5")
    net = made("qwen3_5", fields)
    for options, to in (({}, "f32"), ({"axis": 0}, "q2_0")):
        with pytest.raises(FormatError, match=r"in_proj_b is a BitLinear with int8 activations.*skip="):
            export(replace_linears(copy.deepcopy(net), **options), tmp_path / "m", format=to)
    export(replace_linears(net), tmp_path / "m.gguf", format="i2_s")
    assert not (tmp_path / "m").exists()

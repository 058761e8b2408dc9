"""Recipes as data, what prepare makes of a model, and the schedules an optimiser follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tritium.errors import ArgumentError, FormatError

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
from small_network import HIDDEN, Network  # noqa: E402
from tritium.torch import (  # noqa: E402
    Distillation,
    Recipe,
    Schedule,
    apply_schedules,
    bit_linears,
    export,
    make_optimizer,
    prepare,
)

nn = torch.nn
MAKERS = (Recipe.from_scratch, Recipe.fine_tune, Recipe.distil)


# ---- schedules


def test_a_schedule_is_straight_between_points_and_jumps_where_shares_repeat() -> None:
    schedule = Schedule(((0.0, 0.0), (0.5, 1.0), (0.5, 0.25), (1.0, 0.0)))
    values = [schedule.at(s) for s in (0, 0.25, 0.499, 0.5, 0.75, 1)]
    assert values == pytest.approx([0, 0.5, 0.998, 0.25, 0.125, 0])
    assert Schedule.constant(3.0).at(0.7) == 3
    assert Schedule(((0.5, 2.0),)).at(0.1) == 2


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-9, 9)), min_size=1, max_size=6), st.floats(0, 1))
def test_a_schedule_stays_between_its_values(points: list[tuple[float, float]], share: float) -> None:
    schedule = Schedule(tuple(sorted(points)))
    values = [value for _, value in points]
    assert min(values) - 1e-9 <= schedule.at(share) <= max(values) + 1e-9


@pytest.mark.parametrize(
    "points", [(), ((0.5, 1.0), (0.2, 1.0)), ((0.0, float("nan")),), ((0.0, 1.0), (1.5, 1.0)), ((0.0,),), "ab"]
)
def test_points_that_are_no_schedule_are_refused(points: Any) -> None:
    with pytest.raises(ArgumentError, match="Schedule"):
        Schedule(points)


def test_from_scratch_has_the_two_stages_of_bitnet() -> None:
    recipe = Recipe.from_scratch(100)
    assert [recipe.rate.at(s) for s in (0.0, 0.02, 0.49999, 0.5, 1.0)] == pytest.approx(
        [0, 0.98, 0.5, 1 / 3, 0], abs=1e-4
    )
    assert [recipe.weight_decay.at(s) for s in (0.0, 0.4999, 0.5, 1.0)] == [0.1, 0.1, 0.0, 0.0]
    assert Recipe.fine_tune(100).lambda_.at(0.1) == pytest.approx(0.5)


# ---- JSON


@pytest.mark.parametrize("make", MAKERS)
def test_a_recipe_survives_a_file(make: Any, tmp_path: Path) -> None:
    recipe = make(50, group=32, activations="group", scales="learned")
    assert Recipe.from_json(recipe.to_json()) == recipe
    recipe.save(tmp_path / "recipe.json")
    assert Recipe.load(tmp_path / "recipe.json") == recipe
    assert recipe.with_(steps=7).steps == 7


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[", "no JSON"), ("3", "object"), ('{"steps": 5}', "learning_rate"), ('{"steps": 0, "learning_rate": 1}', "steps"),
        ('{"steps": 5, "learning_rate": 1, "weight_decy": 0}', "Did you mean 'weight_decay'"), ('{"steps": true, "learning_rate": 1}', "steps"),
        ('{"steps": 5, "learning_rate": 1, "rate": {"points": []}}', "Schedule"), ('{"steps": 5, "learning_rate": 1, "rate": 3}', "object"),
        ('{"steps": 5, "learning_rate": 1, "distillation": {"temperature": 0}}', "temperature"), ("[" * 100_000, "no JSON"),
        ('{"steps": 5, "learning_rate": NaN}', "learning_rate"), ('{"steps": 5, "learning_rate": 1, "norms": "pre"}', "norms"),
        ('{"steps": 5, "learning_rate": 1, "axis": 0, "group": 8}', "give one"), (" " * (1 << 21), "characters"),
    ],
)  # fmt: skip
def test_text_that_is_no_recipe_is_refused(text: str, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        Recipe.from_json(text)


@pytest.mark.parametrize(
    "options", [{"text": 0, "logits": 0, "relations": 0}, {"logits": -1}, {"heads": 0}, {"layer": 1.5}]
)
def test_losses_that_are_none_are_refused(options: Any) -> None:
    with pytest.raises(ArgumentError, match="Distillation"):
        Distillation(**options)


# ---- models


def test_prepare_makes_layers_ternary_as_the_recipe_says() -> None:
    recipe = Recipe.fine_tune(10, group=16, activations="float", scales="learned", skip=("lm_head", "v_proj"))
    model = prepare(Network(), recipe)
    layers = bit_linears(model)
    assert len(layers) == 12
    assert not any("v_proj" in name or "lm_head" in name for name in layers)
    assert {(m.group, m.activations, m.scale.shape[1], m.lambda_) for m in layers.values()} == {
        (16, "float", HIDDEN // 16, 0.0),
        (16, "float", 4, 0.0),
    }


@pytest.mark.parametrize(("norms", "count"), [("none", 0), ("sub", 4), ("all", 14)])
def test_norms_are_inserted_where_asked_for(norms: str, count: int) -> None:
    model = Network()
    model.config = {"rms_norm_eps": 1e-3}
    prepare(model, Recipe.from_scratch(10, norms=norms))
    normed = {n: m.rms_norm for n, m in bit_linears(model).items() if m.rms_norm is not None}
    assert len(normed) == count
    assert all(norm.eps == 1e-3 for norm in normed.values())
    assert norms != "sub" or all(n.endswith(("o_proj", "down_proj")) for n in normed)


def test_what_cannot_be_prepared_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a Recipe is needed"):
        prepare(Network(), "from_scratch")
    with pytest.raises(ArgumentError, match="norms='all'"):
        prepare(nn.Sequential(nn.Linear(8, 8)), Recipe.from_scratch(3, norms="sub"))
    model = prepare(Network(), Recipe.from_scratch(3))
    with pytest.raises(ArgumentError, match="already"):
        prepare(model, Recipe.from_scratch(3, group=16))
    model = Network()
    model.model["layers"][0].self_attn.attn_sub_norm = nn.RMSNorm(HIDDEN)
    with pytest.raises(ArgumentError, match="norm of the model"):
        prepare(model, Recipe.from_scratch(3, norms="sub"))


def test_schedules_reach_the_optimiser_and_the_layers() -> None:
    recipe = Recipe.from_scratch(10, scales="learned", lambda_=Schedule(((0.0, 0.0), (1.0, 1.0))))
    model = prepare(Network(), recipe)
    optimizer = make_optimizer(model, recipe)
    assert apply_schedules(model, optimizer, recipe, 0.25) == pytest.approx(
        {"learning_rate": 1e-3 * 0.75, "weight_decay": 0.1, "lambda": 0.25}, rel=0.01
    )
    matrices, others = optimizer.param_groups
    assert (matrices["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert {id(m.scale) for m in bit_linears(model).values()} <= {id(p) for p in others["params"]}
    assert {m.lambda_ for m in bit_linears(model).values()} == {0.25}
    with pytest.raises(ArgumentError, match="make_optimizer"):
        apply_schedules(model, torch.optim.SGD(model.parameters(), lr=1), recipe, 0.5)
    with pytest.raises(ArgumentError, match="nothing to train"):
        make_optimizer(Network().requires_grad_(False), recipe)


# ---- sub-norms in files

LLAMA = {
    "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 32, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
    "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_llama_with_sub_norms_is_written_as_a_bitnet(tmp_path: Path) -> None:
    model = prepare(Network(), Recipe.distil(3))
    export(model, tmp_path / "m", config=LLAMA)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (config["model_type"], config["architectures"], config["hidden_act"]) == (
        "bitnet",
        ["BitNetForCausalLM"],
        "silu",
    )
    from tritium import io

    names = io.open(tmp_path / "m").entries
    assert "model.layers.1.self_attn.attn_sub_norm.weight" in names
    assert "model.layers.1.mlp.ffn_sub_norm.weight" in names
    assert not any("rms_norm" in name for name in names)


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"model_type": "qwen3"}, "norms='all'"), ({"rms_norm_eps": 1e-3}, "eps"), ({"attention_bias": True}, "biases")],
)
def test_sub_norms_that_no_family_has_are_refused(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    model = prepare(Network(), Recipe.distil(3))
    with pytest.raises(FormatError, match=match):
        export(model, tmp_path / "m", config=LLAMA | changes)
    assert not list(tmp_path.iterdir())


def test_a_norm_before_one_layer_alone_is_refused(tmp_path: Path) -> None:
    model = prepare(Network(), Recipe.from_scratch(3))
    bit_linears(model)["model.layers.0.self_attn.q_proj"].rms_norm = nn.RMSNorm(HIDDEN)
    with pytest.raises(FormatError, match="q_proj among them"):
        export(model, tmp_path / "m", config=LLAMA)

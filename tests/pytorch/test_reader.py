"""Ternary files in PyTorch: layers have the codes and scales of a file, and what is written again has them too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import families
import tiny
import tritium as tt
from tritium import io
from tritium.errors import ArgumentError, FormatError
from tritium.families.config import Config
from tritium.io import Ternary, codecs
from tritium.models.load import shipped
from tritium.models.parts import shapes_in_files

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
transformers = pytest.importorskip("transformers", reason="the models are those of transformers")
from tritium.torch import (  # noqa: E402
    BitLinear,
    PackedLinear,
    Recipe,
    Schedule,
    Windows,
    add_adapters,
    bit_linears,
    export,
    fit,
    load,
    load_ternary,
    lora_linears,
    prepare,
    replace_linears,
)

nn = torch.nn
CLOSE = 1e-5  # of the largest logit: f32 sums in another order
STEP = 2e-2  # where an activation falls to another of 127 steps
IDS = list(b"In the beginning God created")
PACKAGED = ("kjv", "kjv-g128")
FAMILIES = ("bitnet", "llama", "qwen3", "qwen3 yarn", "qwen3 norms", "gemma3", "gemma3 norms", "qwen3_5")


@pytest.fixture(autouse=True)
def _eager() -> Any:
    """transformers compiles its quantisation, which takes longer than all else here."""
    with torch.compiler.set_stance("force_eager"):
        yield


def ternary_layers(model: Any) -> dict[str, Any]:
    return {n: m for n, m in model.named_modules() if isinstance(m, BitLinear | PackedLinear)}


def spread(t: Ternary) -> np.ndarray:
    """Return the scales of a matrix as one for each of its weights."""
    scale = t.scale.repeat(t.group, axis=1) if t.group else t.scale[:, None] if t.scale.ndim else t.scale
    return np.broadcast_to(scale, t.shape)


def apart(found: Any, wanted: np.ndarray) -> float:
    """Return the largest difference, as a part of the largest logit."""
    return float(np.abs(found.detach().numpy() - wanted).max() / np.abs(wanted).max())


def our_logits(path: Path, ids: list[int], **options: Any) -> np.ndarray:
    session = tt.load(path, kv="f32", **options).session()
    return np.stack([session.extend(0, [i]) for i in ids])


# ---- the models of the package


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("name", PACKAGED)
def test_layers_have_the_codes_and_scales_of_the_file(name: str, trainable: bool) -> None:
    layers = ternary_layers(load(shipped(name), trainable=trainable))
    assert len(layers) == 28
    entries = io.open(shipped(name)).named
    for layer_name, layer in layers.items():
        assert isinstance(layer, BitLinear if trainable else PackedLinear)
        t, (codes, scale) = entries[f"{layer_name}.weight"].ternary(), layer.ternary()
        assert np.array_equal(codes.numpy(), t.values())
        assert np.array_equal(scale.detach().numpy(), t.scale)
        assert layer.group == t.group == (128 if name == "kjv-g128" else 0)


def test_packed_layers_keep_two_bits_a_weight_and_scales_of_groups_in_f16() -> None:
    layers = ternary_layers(load(shipped("kjv-g128"))).values()
    assert sum(layer.codes.numel() for layer in layers) == 3_145_728 // 4
    assert {layer.scale.dtype for layer in layers} == {torch.float16}


@pytest.mark.parametrize("trainable", [False, True])
def test_a_layer_has_the_bits_of_tritium_s(trainable: bool) -> None:
    t = io.open(shipped()).named["model.layers.1.mlp.up_proj.weight"].ternary()
    layer = load(shipped(), trainable=trainable).get_submodule("model.layers.1.mlp.up_proj")
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    wanted = tt.nn.BitLinear.from_ternary(t.values(), scale=t.scale)(tt.asarray(x.numpy())).numpy()
    assert np.array_equal(layer.train()(x).detach().numpy(), wanted)


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("name", PACKAGED)
def test_logits_are_those_of_the_file(name: str, trainable: bool) -> None:
    ids = torch.tensor([IDS])
    floats = load(shipped(name), trainable=trainable, activations="float")
    assert apart(floats(ids).logits[0], our_logits(shipped(name), IDS, activations="float")) <= CLOSE
    assert apart(load(shipped(name), trainable=trainable)(ids).logits[0], our_logits(shipped(name), IDS)) <= STEP


@pytest.mark.parametrize(("name", "form"), [("kjv", "i2_s"), ("kjv-g128", "q2_0"), ("kjv-g128", "mlx")])
def test_what_was_not_trained_is_written_again_to_the_bit(name: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / ("m" if form == "mlx" else "m.gguf")
    model = load(shipped(name), trainable=True)
    export(model, path, format=form, tokenizer=shipped(name), exact=True)
    assert io.verify(shipped(name), path).same
    wanted = io.open(shipped(name)).named
    for key, entry in io.open(path).named.items():
        t = entry.find_ternary()
        if t is None:
            assert np.array_equal(entry.float32(), wanted[key].float32())
        else:
            assert np.array_equal(t.values(), wanted[key].ternary().values())
            assert np.array_equal(spread(t), spread(wanted[key].ternary()))
    again = tt.load(path)
    assert again.tokenizer.encode("In the") == tt.load(shipped(name)).tokenizer.encode("In the")


def licence() -> Any:
    """Return a text that the packaged models have not seen, and that stays as it is."""
    return torch.tensor(list((Path(__file__).parents[2] / "LICENSE").read_bytes()[:6000]))


@pytest.mark.parametrize("name", PACKAGED)
def test_lora_over_the_weights_of_a_file_learns(name: str) -> None:
    model = add_adapters(load(shipped(name)), rank=4)
    assert len(lora_linears(model)) == 28
    recipe = Recipe.fine_tune(5, learning_rate=2e-2, lambda_=Schedule.constant(1.0))
    losses = fit(model, lambda step: Windows(licence(), length=48, batch=2)(0), recipe)
    assert losses[-1] < losses[0] * 0.8


@pytest.mark.parametrize("name", PACKAGED)
def test_fine_tuning_begins_at_the_file_and_learns(name: str) -> None:
    model, batch = load(shipped(name), trainable=True), Windows(licence(), length=48, batch=2)(0)
    with torch.no_grad():
        start = nn.functional.cross_entropy(model(batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten()).item()
    recipe = Recipe.fine_tune(12, learning_rate=2e-3, lambda_=Schedule.constant(1.0))
    losses = fit(model, lambda step: batch, recipe)
    assert losses[0] == pytest.approx(start, rel=1e-3)
    assert losses[-1] < losses[0] * 0.8


# ---- every family


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("container", ["folder", "gguf"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_of_a_family_has_the_logits_of_its_file(
    name: str, container: str, trainable: bool, tmp_path: Path
) -> None:
    more = {"query_pre_attn_scalar": 32} if name == "gemma3" else {}  # GGUF says no other
    group = 32 if container == "gguf" and "norms" not in name and name != "qwen3_5" else 0
    w = families.random(families.CONFIGS[name] | more, group=group)
    write = families.write_folder if container == "folder" else families.write_gguf
    path = write(tmp_path / f"m.{container}", w)
    ids = list(range(3, 27))
    model = load(path, trainable=trainable, activations="float")
    assert len(ternary_layers(model)) == len(w.ternary)
    bound = 1e-4 if name == "qwen3_5" else CLOSE  # its delta rule is computed in another form there
    assert apart(model(torch.tensor([ids])).logits[0], our_logits(path, ids, activations="float")) <= bound
    assert all(p.requires_grad == trainable for p in model.parameters())


def test_families_that_transformers_does_not_have_are_refused_by_name(tmp_path: Path) -> None:
    config = {k: v for k, v in families.CONFIGS["minicpm"].items() if k != "rope_scaling"}
    path = families.write_gguf(tmp_path / "m.gguf", families.random(config))
    with pytest.raises(FormatError, match=r"no model of type 'minicpm'.*load_ternary"):
        load(path)


def test_experts_are_refused(tmp_path: Path) -> None:
    path = families.write_gguf(tmp_path / "m.gguf", families.random(families.CONFIGS["maple"]))
    with pytest.raises(FormatError, match="maple model has experts"):
        load(path)


# ---- a model of one's own


def llama(**changes: Any) -> Any:
    fields = {k: v for k, v in families.CONFIGS["llama"].items() if k != "model_type"}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(fields | changes)))


def test_a_model_is_filled_in_place_whatever_layers_it_has(tmp_path: Path) -> None:
    path = families.write_folder(tmp_path / "m", families.random(families.CONFIGS["llama"]))
    ids = list(range(3, 27))
    wanted = our_logits(path, ids, activations="float")
    for model in (llama(), replace_linears(llama()), load(path)):
        assert load_ternary(model, path, trainable=True, activations="float") is model
        assert apart(model(torch.tensor([ids])).logits[0], wanted) <= CLOSE


def tree(config: dict[str, Any]) -> Any:
    """Return modules with the names and shapes of a family's files; they cannot be run."""
    root: Any = nn.Module()
    for name, shape in shapes_in_files(Config.from_hf(config)):
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        *path, last = name.removesuffix(".weight").split(".")
        owner = root
        for step in path:
            if step not in dict(owner.named_children()):
                owner.add_module(step, nn.Module())
            owner = owner.get_submodule(step)
        layer: Any = nn.Linear(*shape[::-1], bias=False) if len(shape) == 2 else nn.Module()
        layer.weight = nn.Parameter(torch.zeros(shape))
        owner.add_module(last, layer)
    return root


@pytest.mark.parametrize("trainable", [False, True])
def test_modules_of_a_family_that_transformers_does_not_have_are_filled(trainable: bool, tmp_path: Path) -> None:
    w = families.random(families.CONFIGS["minicpm"])
    model = load_ternary(tree(w.config), families.write_gguf(tmp_path / "m.gguf", w), trainable=trainable)
    layers = ternary_layers(model)
    assert {f"{name}.weight" for name in layers} == set(w.ternary)
    for name, layer in layers.items():
        t, scale = w.ternary[f"{name}.weight"]
        assert np.array_equal(layer.ternary()[0].numpy(), t)
        assert layer.ternary()[1].item() == scale
    for name, numbers in w.plain.items():
        assert np.array_equal(model.state_dict()[name].numpy(), numbers)


def test_a_model_that_the_file_is_not_of_is_refused(tmp_path: Path) -> None:
    path = families.write_folder(tmp_path / "m", families.random(families.CONFIGS["llama"]))
    with pytest.raises(FormatError, match=r"shape \[96, 64\], and the layer of the model \[48, 64\]"):
        load_ternary(llama(intermediate_size=48), path)
    with pytest.raises(FormatError, match=r"has no 'model\.layers\.2\.input_layernorm\.weight'"):
        load_ternary(llama(num_hidden_layers=3), path)
    with pytest.raises(
        FormatError, match=r"has 'model\.layers\.1\.self_attn\.q_proj\.weight', and the model has no tensor"
    ):
        load_ternary(llama(num_hidden_layers=1), path)
    with pytest.raises(FormatError, match="has a head of its own"):
        load_ternary(llama(tie_word_embeddings=True), path)
    with pytest.raises(FormatError, match="which has no linear layers"):
        load_ternary(nn.Module(), path)


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("activations", ["int8", "group"])
def test_activations_that_layers_do_not_have_are_refused(trainable: bool, activations: str) -> None:
    with pytest.raises(ArgumentError, match=f"'token', 'group' .* or 'float', given '{activations}' and group=0"):
        load(shipped("kjv"), trainable=trainable, activations=activations)


def dense_folder(path: Path, scale: Any, group: int = 0, **config: Any) -> tuple[Path, dict[str, Any]]:
    """Write the llama of the tests with plain numbers, each projection random codes times `scale(rows, groups)`."""
    rng, w = np.random.default_rng(0), families.random(families.CONFIGS["llama"])
    tensors: dict[str, Any] = {n: np.float32(a) for n, a in w.plain.items()}
    for name, (t, _) in w.ternary.items():
        codes = rng.integers(-1, 2, t.shape)
        tensors[name] = families.to_dense(codes, np.float32(scale(t.shape[0], t.shape[1] // (group or t.shape[1]))))
    path.mkdir()
    (path / "config.json").write_text(json.dumps(w.config | config))
    tiny.save(path / "model.safetensors", tensors, {"format": "pt"})
    return path, tensors


def test_scales_that_f16_does_not_hold_stay_in_packed_layers_and_are_refused_in_trainable_ones(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    path, tensors = dense_folder(tmp_path / "m", lambda rows, groups: rng.uniform(0.1, 0.2, (rows, groups)), 32)
    for name, layer in ternary_layers(load(path)).items():
        t, g = layer.ternary()
        assert layer.scale.dtype is torch.float32
        assert np.array_equal((t * g.repeat_interleave(32, -1)).numpy(), tensors[f"{name}.weight"])
    with pytest.raises(ArgumentError, match=r"those of groups in f16\. Load it packed"):
        load(path, trainable=True)


def test_masters_stay_latent_weights_with_their_mean_as_scale(tmp_path: Path) -> None:
    w = families.random(families.CONFIGS["llama"])
    tensors: dict[str, Any] = {n: np.float32(a) for n, a in w.plain.items()}
    tensors |= {n: np.random.default_rng(0).normal(size=t.shape).astype(np.float32) for n, (t, _) in w.ternary.items()}
    (tmp_path / "m").mkdir()
    quantization = {"quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear"}}
    (tmp_path / "m" / "config.json").write_text(json.dumps(w.config | quantization))
    tiny.save(tmp_path / "m" / "model.safetensors", tensors, {"format": "pt"})
    entries = io.open(tmp_path / "m").named
    for name, layer in bit_linears(load(tmp_path / "m", trainable=True)).items():
        assert layer.scale is None
        assert np.array_equal(layer.weight.detach().numpy(), tensors[f"{name}.weight"])
        t, (codes, scale) = entries[f"{name}.weight"].ternary(), layer.ternary()
        assert np.array_equal(codes.numpy(), t.values())
        assert scale.item() == t.scale


def test_the_sign_of_a_scale_goes_to_its_codes(tmp_path: Path) -> None:
    t = Ternary(codecs.floats.decode(np.float32([[1, -1, 0, 1]] * 4)).codes, (4, 4), np.float32([0.5, -0.5, 0.0, 2.0]))
    from tritium.torch.files.reader import _signed

    codes, scale = _signed(t)
    assert codes.tolist() == [[1, -1, 0, 1], [-1, 1, 0, -1], [0, 0, 0, 0], [1, -1, 0, 1]]
    assert scale.tolist() == [0.5, 0.5, 0.0, 2.0]


def test_a_network_that_was_not_trained_to_be_ternary_is_refused(tmp_path: Path) -> None:
    w = families.random(families.CONFIGS["llama"])
    tensors = {n: np.float32(a) for n, a in w.plain.items()}
    tensors |= {n: np.random.default_rng(0).normal(size=t.shape).astype(np.float32) for n, (t, _) in w.ternary.items()}
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(w.config))
    tiny.save(tmp_path / "m" / "model.safetensors", tensors, {"format": "pt"})
    with pytest.raises(FormatError, match="no layer of it is both ternary and a linear layer"):
        load(tmp_path / "m")


# ---- dense weights that are ternary already

FORMS = ({}, {"axis": 0}, {"group": 32})


def already(axis: int | None = None, group: int = 0) -> Any:
    """Return a model with a linear layer of ternary weights and their scales, in the form of a recipe's."""
    torch.manual_seed(0)
    t = torch.randint(-1, 2, (16, 64))
    scale = (
        torch.rand(16, 2).add(0.5).half().float()
        if group
        else torch.rand(16).add(0.5)
        if axis == 0
        else torch.tensor(0.3)
    )
    wide = scale.repeat_interleave(32, -1) if group else scale[:, None] if axis == 0 else scale
    model = nn.Sequential(nn.Linear(64, 16, bias=False))
    model[0].weight.data = t * wide
    return model, t, scale


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_learned_scale_begins_at_that_of_weights_that_are_ternary_already(form: dict[str, Any]) -> None:
    model, t, scale = already(**form)
    prepare(model, Recipe.from_scratch(3, scales="learned", **form))
    codes, g = model[0].ternary()
    assert torch.equal(codes, t.to(torch.int8))
    assert torch.equal(g, scale)
    prepare(model, Recipe.from_scratch(3, scales="learned", **form))
    assert torch.equal(model[0].ternary()[1], scale)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_mean_of_weights_that_are_ternary_already_is_refused_as_their_scale(form: dict[str, Any]) -> None:
    model, *_ = already(**form)
    with pytest.raises(ArgumentError, match=r"ternary already, and the mean magnitude would change.*scales='learned'"):
        prepare(model, Recipe.from_scratch(3, **form))


def test_a_form_without_room_for_the_scales_of_ternary_weights_is_refused() -> None:
    model, *_ = already(group=32)
    with pytest.raises(ArgumentError, match=r"have no room for their scales.*axis=None, group=32, scales='learned'"):
        replace_linears(model, scales="learned")


def test_a_row_of_one_weight_is_no_ternary_one() -> None:
    model = nn.Sequential(nn.Linear(1, 16, bias=False))
    masters = model[0].weight
    assert replace_linears(model)[0].weight is masters


def test_layers_that_are_filled_stay_in_the_mode_of_the_model() -> None:
    for trainable in (False, True):
        model = load(shipped("kjv")).train()
        filled = load_ternary(model.eval(), shipped("kjv"), trainable=trainable)
        assert not any(m.training for m in filled.modules())
        assert all(m.training for m in load_ternary(model.train(), shipped("kjv"), trainable=trainable).modules())


def test_prepare_leaves_the_scales_of_a_file_alone() -> None:
    model = load(shipped("kjv"), trainable=True, dtype=torch.bfloat16)
    scales = {name: layer.scale.clone() for name, layer in bit_linears(model).items()}
    with pytest.raises(ArgumentError, match=r"is a BitLinear already .* not as the recipe has it"):
        prepare(model, Recipe.from_scratch(3))
    prepare(model, Recipe.from_scratch(3, scales="learned", skip=("lm_head",)))
    assert all(torch.equal(layer.scale, scales[name]) for name, layer in bit_linears(model).items())


def test_weights_of_one_magnitude_without_zeros_have_it_as_their_mean() -> None:
    model = nn.Sequential(nn.Linear(64, 16, bias=False))
    model[0].weight.data = torch.where(torch.rand(16, 64) < 0.5, 0.25, -0.25)
    assert replace_linears(model)[0].ternary()[1] == 0.25


def test_a_packed_layer_of_transformers_gives_its_scale_to_a_learned_one() -> None:
    from transformers.integrations import bitnet as theirs

    t = torch.randint(-1, 2, (12, 40), generator=torch.Generator().manual_seed(0), dtype=torch.int8)
    old: Any = theirs.AutoBitLinear(40, 12, bias=False)
    old.weight.data, old.weight_scale = t.float(), torch.tensor([0.37])
    layer = replace_linears(nn.Sequential(old), scales="learned")[0]
    assert torch.equal(layer.ternary()[0], t)
    assert layer.ternary()[1].item() == old.weight_scale.item()

"""Models of every family exported: they load here and, where transformers has the class, there, with the same logits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import families
import tritium as tt

torch = pytest.importorskip("torch", reason="models of PyTorch are exported")

from torch_families import CLASSES, made, modules  # noqa: E402
from tritium.torch import bit_linears, export, replace_linears, ternarise  # noqa: E402

OTHERS = {"minicpm": "MiniCPMForCausalLM", "maple": "MapleForCausalLM"}  # families that transformers does not have
IDS = list(range(3, 27))
CLOSE = (
    1e-5  # of the largest logit: f32 sums in another order; no activation fell to another int8 step with these seeds
)


@pytest.fixture(autouse=True)
def _eager() -> Any:
    """transformers compiles its quantisation, which takes longer than all else here."""
    with torch.compiler.set_stance("force_eager"):
        yield


def network(name: str, **options: Any) -> Any:
    """Return a small random model of transformers whose linear layers are ternary."""
    pytest.importorskip("transformers", reason="needs transformers")
    torch.manual_seed(0)
    net = made(name, families.CONFIGS[name])
    with torch.no_grad():
        for weight in net.parameters():
            if weight.ndim > 1:
                weight.normal_(0, weight.shape[-1] ** -0.5)
    return replace_linears(net, **options)


def logits_of(net: Any) -> np.ndarray:
    with torch.no_grad():
        return net(torch.tensor([IDS])).logits[0].numpy()


def our_logits(path: Path, **options: Any) -> np.ndarray:
    session = tt.load(path, kv="f32", **options).session()
    return np.stack([session.extend(0, [i]) for i in IDS])


def apart(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest difference, as a part of the largest logit."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("name", CLASSES)
def test_a_packed_directory_has_the_logits_of_the_model_here_and_in_transformers(name: str, tmp_path: Path) -> None:
    net = network(name)
    export(net, tmp_path / "m")
    wanted = logits_of(net)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["architectures"] == [CLASSES[name][1]]
    assert apart(our_logits(tmp_path / "m"), wanted) <= CLOSE
    pytest.importorskip("accelerate", reason="transformers loads packed models with accelerate")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    assert type(theirs).__name__ == CLASSES[name][1]
    assert apart(logits_of(theirs.eval()), wanted) <= CLOSE


@pytest.mark.parametrize("name", CLASSES)
def test_groups_as_floats_have_the_logits_of_the_model_here_and_in_transformers(name: str, tmp_path: Path) -> None:
    """The form that engines without a ternary layout load, vLLM among them: values times scales, and no quantisation."""
    net = network(name, group=32, activations="float")
    export(net, tmp_path / "m", format="f32")
    wanted = logits_of(net)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["architectures"] == [CLASSES[name][1]]
    assert "quantization_config" not in config
    assert apart(our_logits(tmp_path / "m", activations="float"), wanted) <= CLOSE
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    assert apart(logits_of(theirs.eval()), wanted) <= CLOSE


def weights(net: Any, config: dict[str, Any]) -> families.Weights:
    """Return what the modules hold, as the decoder in NumPy reads it."""
    layers = bit_linears(net)
    parts = {f"{n}.weight": ternarise(layer.weight) for n, layer in layers.items()}
    ternary = {n: (t.numpy().astype(np.int8), np.float32(g)) for n, (t, g) in parts.items()}
    plain = {n: t.numpy() for n, t in net.state_dict().items() if n not in ternary}
    return families.Weights(config, ternary, plain)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("form", ["hf", "f32"])
def test_families_that_transformers_does_not_have_are_exported_by_their_configuration(
    name: str, form: str, tmp_path: Path
) -> None:
    config = families.CONFIGS[name]
    net = modules(config)
    export(net, tmp_path / "m", format=form, config=config)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["architectures"] == [OTHERS[name]]
    wanted = families.Decoder(weights(net, config)).logits(IDS)
    assert apart(our_logits(tmp_path / "m"), wanted) <= CLOSE


def given_classes(config: dict[str, Any], tmp_path: Path) -> Sequence[str]:
    export(modules(config), tmp_path / "m", config=config)
    return json.loads((tmp_path / "m" / "config.json").read_text())["architectures"]


def test_classes_that_a_configuration_names_stay(tmp_path: Path) -> None:
    assert given_classes(families.CONFIGS["llama"] | {"architectures": ["MyLlama"]}, tmp_path) == ["MyLlama"]

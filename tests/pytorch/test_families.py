"""Families against transformers' own classes: the same weights in f32, their projections with int8 activations as ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import families
import tritium as tt

torch = pytest.importorskip("torch", reason="transformers needs torch")
transformers = pytest.importorskip("transformers", reason="the models to compare with are those of transformers")

CLASSES = {
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
}
BOUND, USUAL = 5e-2, 1e-5  # of the largest logit: where an activation fell to another of 127 steps, and where none did
IDS = np.random.default_rng(7).integers(0, 80, 32).tolist()


class Quantised(torch.nn.Module):
    """A projection of int8 activations, after a norm where it has one."""

    def __init__(self, inner: Any, norm: Any, eps: float) -> None:
        super().__init__()
        self.inner, self.norm, self.eps = inner, norm, eps

    def forward(self, x: Any) -> Any:
        if self.norm is not None:
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.norm
        scale = 127 / x.abs().max(dim=-1, keepdim=True).values.clamp(min=1e-5)
        return self.inner((x * scale).round().clamp(-128, 127) / scale)


def theirs(w: families.Weights) -> Any:
    """Return the model of transformers with these weights."""
    kind = w.config["model_type"].removesuffix("_text")
    config, model_class = (getattr(transformers, name) for name in CLASSES[kind])
    fields = {k: v for k, v in w.config.items() if k not in ("model_type", "projection_norms")}
    net = model_class(config(**fields, attn_implementation="eager")).to(torch.float32).eval()
    dense = {name: t.astype(np.float32) * scale for name, (t, scale) in w.ternary.items()}
    norms = {n: a for n, a in w.plain.items() if n.endswith("_proj.norm.weight")}
    state = {n: torch.tensor(a) for n, a in (w.plain | dense).items() if n not in norms}
    missing, unexpected = net.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    net.tie_weights()
    for name in w.ternary:
        path = name.removesuffix(".weight")
        parent, _, last = path.rpartition(".")
        norm = norms.get(f"{path}.norm.weight")
        outer = net.get_submodule(parent)
        held = None if norm is None else torch.tensor(norm)
        setattr(outer, last, Quantised(getattr(outer, last), held, w.config["rms_norm_eps"]))
    return net


def their_logits(net: Any, ids: Sequence[int]) -> np.ndarray:
    with torch.no_grad():
        return net(torch.tensor([list(ids)])).logits[0].numpy()


NAMES = [n for n, c in families.CONFIGS.items() if c["model_type"].removesuffix("_text") in CLASSES]


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    exact = 0
    for seed in range(3):
        w = families.random(families.CONFIGS[name], seed)
        net = theirs(w)
        model = tt.load(families.write_folder(tmp_path / str(seed), w), kv="f32")
        wanted = their_logits(net, IDS)
        session = model.session()
        ours = np.stack([session.extend(0, [i]) for i in IDS])
        error = np.abs(ours - wanted).max() / np.abs(wanted).max()
        assert error <= BOUND
        exact += int(error <= USUAL)
        margin = np.sort(wanted, axis=-1)
        clear = margin[:, -1] - margin[:, -2] > 2 * BOUND * np.abs(wanted).max()
        assert (ours.argmax(-1) == wanted.argmax(-1))[clear].all()
    assert exact >= 2

"""Recipes: how a ternary network is trained, as data that a file holds.

A recipe says which layers become ternary and how, where norms are inserted, and how the learning rate, the weight decay and
lambda go over the training. `prepare(model, recipe)` applies the first half of it; a loop (`tritium.torch.fit`, transformers'
Trainer, your own) follows the second.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from tritium.errors import ArgumentError, nearest
from tritium.torch.files.writer import SUB_NORMS
from tritium.torch.formulas import ACTIVATIONS, SCALE_DTYPES, check_scales
from tritium.torch.layer import SCALES, BitLinear, bit_linears
from tritium.torch.replace import HEADS, replace_linears, set_lambda
from tritium.torch.steps import GRADIENTS

NORMS = ("none", "sub", "all")
MOST_POINTS = 1000  # of a schedule
MOST_TEXT = 1 << 20  # characters of a recipe


@dataclass(frozen=True)
class Schedule:
    """A number over the training: points (share of the training, value), straight lines between them, jumps where shares repeat."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        try:
            points = tuple((float(share), float(value)) for share, value in self.points)
        except (TypeError, ValueError):
            raise ArgumentError(f"Schedule: points are pairs of numbers, given {str(self.points)[:80]}.") from None
        shares = [share for share, _ in points]
        numbers = all(math.isfinite(n) for point in points for n in point)
        if (
            not 0 < len(points) <= MOST_POINTS
            or not numbers
            or shares != sorted(shares)
            or shares[0] < 0
            or shares[-1] > 1
        ):
            raise ArgumentError(
                f"Schedule: 1 to {MOST_POINTS} points of finite numbers are needed, shares from 0 to 1 that do not fall; given "
                f"{str(self.points)[:80]}."
            )
        object.__setattr__(self, "points", points)

    @classmethod
    def constant(cls, value: float) -> Self:
        """Return the schedule of one value."""
        return cls(((0.0, value),))

    def at(self, share: float) -> float:
        """Return the value at a share of the training; at a jump the later one."""
        before = [p for p in self.points if p[0] <= share]
        after = [p for p in self.points if p[0] > share]
        if not before or not after:
            return (before[-1] if before else after[0])[1]
        (x0, y0), (x1, y1) = before[-1], after[0]
        return y0 + (y1 - y0) * (share - x0) / (x1 - x0)


TWO_STAGES = Schedule(((0.0, 0.0), (0.02, 0.98), (0.5, 0.5), (0.5, 1 / 3), (1.0, 0.0)))
ONE_STAGE = Schedule(((0.0, 0.0), (0.05, 1.0), (1.0, 0.0)))
FIRST_HALF = Schedule(((0.0, 0.1), (0.5, 0.1), (0.5, 0.0)))
RAMP = Schedule(((0.0, 0.0), (0.2, 1.0)))


@dataclass(frozen=True)
class Distillation:
    """The losses of a student that learns from a teacher beside the text: their weights, and the layer whose relations count.

    `logits`: of the KL divergence from the teacher's distribution at `temperature`. `relations`: of the KL divergence between
    the attention relations of layer `layer` (counted from the end where negative), each split into `heads`. `text`: of the
    cross-entropy on the text itself.
    """

    text: float = 1.0
    logits: float = 1.0
    temperature: float = 2.0
    relations: float = 1.0
    layer: int = -1
    heads: int = 1

    def __post_init__(self) -> None:
        weights = (self.text, self.logits, self.relations)
        if not all(_is_number(w) and w >= 0 for w in weights) or not any(weights):
            raise ArgumentError(f"Distillation: weights of losses are at least 0 and one is above; given {weights}.")
        if not _is_number(self.temperature) or self.temperature <= 0:
            raise ArgumentError(f"Distillation: temperature is above 0, given {self.temperature!r}.")
        if not _is_count(self.heads) or isinstance(self.layer, bool) or not isinstance(self.layer, int):
            raise ArgumentError(
                f"Distillation: layer is an index and heads at least 1, given {self.layer!r} and {self.heads!r}."
            )


@dataclass(frozen=True)
class Recipe:
    """The recipe of a training: its length, schedules, and the form of ternary layers.

    `rate` is the share of `learning_rate`, `weight_decay` the decay itself, `lambda_` how far layers are quantised. `axis`, `group`,
    `scales`, `activations`, `gradients` and `scale_dtype` are those of `BitLinear`, `skip` that of `replace_linears`. `norms`: RMS norms to
    insert before no layer ("none"), before o_proj and down_proj ("sub", BitNet's) or before each ("all"). `clip` is the largest norm of
    all gradients, 0 for no limit.
    """

    steps: int
    learning_rate: float
    rate: Schedule = TWO_STAGES
    weight_decay: Schedule = field(default_factory=lambda: Schedule.constant(0.0))
    lambda_: Schedule = field(default_factory=lambda: Schedule.constant(1.0))
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    skip: tuple[str, ...] = HEADS
    axis: int | None = None
    group: int = 0
    scales: str = "absmean"
    activations: str = "token"
    gradients: str = "bf16"
    scale_dtype: str | None = None
    norms: str = "none"
    distillation: Distillation | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        object.__setattr__(self, "skip", tuple(self.skip))
        check_scales(self.axis, self.group, self.group)
        faults = {
            "steps is a number of at least 1": not _is_count(self.steps),
            "learning_rate is above 0": not _is_number(self.learning_rate) or self.learning_rate <= 0,
            "betas are two numbers from 0 to below 1": len(self.betas) != 2 or not all(_is_number(b) and 0 <= b < 1 for b in self.betas),
            "clip is at least 0": not _is_number(self.clip) or self.clip < 0,
            "skip holds names": not all(isinstance(name, str) for name in self.skip),
            f"scales are one of {SCALES}": self.scales not in SCALES,
            f"activations are one of {ACTIVATIONS}, 'group' with group=…": self.activations not in ACTIVATIONS
            or (self.activations == "group" and not self.group),
            f"gradients are one of {GRADIENTS}": self.gradients not in GRADIENTS,
            f"scale_dtype is one of {SCALE_DTYPES}": self.scale_dtype not in SCALE_DTYPES,
            f"norms are one of {NORMS}": self.norms not in NORMS,
            "rate, weight_decay and lambda_ are each a Schedule": not all(
                isinstance(s, Schedule) for s in (self.rate, self.weight_decay, self.lambda_)
            ),
            "distillation is a Distillation or None": not isinstance(self.distillation, Distillation | None),
        }  # fmt: skip
        wrong = [needed for needed, fault in faults.items() if fault]
        if wrong:
            raise ArgumentError(f"Recipe: {'; '.join(wrong)}. Given {str(self)[:300]}.")

    @classmethod
    def from_scratch(cls, steps: int, **changes: Any) -> Self:
        """Return BitNet's recipe for a network without weights: two stages of learning rate and of weight decay."""
        start: dict[str, Any] = {"learning_rate": 1e-3, "weight_decay": FIRST_HALF}
        return cls(steps, **start | changes)

    @classmethod
    def fine_tune(cls, steps: int, **changes: Any) -> Self:
        """Return the recipe for a network that was trained in floats: lambda rises over the first fifth."""
        start: dict[str, Any] = {"learning_rate": 1e-4, "rate": ONE_STAGE, "lambda_": RAMP}
        return cls(steps, **start | changes)

    @classmethod
    def distil(cls, steps: int, **changes: Any) -> Self:
        """Return the recipe of BitDistill: norms before o_proj and down_proj, and a teacher's logits and relations beside the text."""
        start: dict[str, Any] = {
            "learning_rate": 1e-4, "rate": ONE_STAGE, "norms": "sub", "distillation": Distillation(),
        }  # fmt: skip
        return cls(steps, **start | changes)

    def with_(self, **changes: Any) -> Self:
        """Return a copy with other values."""
        return replace(self, **changes)

    def to_json(self) -> str:
        """Return the recipe as JSON text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the recipe of a JSON text; raise ArgumentError for fields that do not exist and for values that do not fit."""
        if len(text) > MOST_TEXT:
            raise ArgumentError(f"Recipe: the text has {len(text)} characters; a recipe has at most {MOST_TEXT}.")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise ArgumentError(f"Recipe: this is no JSON: {text[:60]!r}.") from None
        checked = _known(cls, values)
        for name in ("rate", "weight_decay", "lambda_"):
            if name in checked:
                checked[name] = Schedule(**_known(Schedule, checked[name]))
        if checked.get("distillation") is not None:
            checked["distillation"] = Distillation(**_known(Distillation, checked["distillation"]))
        try:
            return cls(**checked)
        except TypeError as error:
            raise ArgumentError(f"Recipe: {error}.") from None

    def save(self, path: str | Path) -> None:
        """Write the recipe to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the recipe of a file."""
        with Path(path).open(encoding="utf-8") as file:
            return cls.from_json(file.read(MOST_TEXT + 1))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _known(kind: Any, values: Any) -> dict[str, Any]:
    """Return the values of a JSON object; raise unless all are fields of this class."""
    if not isinstance(values, Mapping):
        raise ArgumentError(f"{kind.__name__}: a JSON object is needed, given {str(values)[:60]}.")
    names = [f.name for f in fields(kind)]
    for name in values:
        if name not in names:
            raise ArgumentError(f"{kind.__name__}: {name!r} is no field.{nearest(name, names)}")
    return dict(values)


# ---- applied to a model


def prepare(model: nn.Module, recipe: Recipe) -> nn.Module:
    """Make the layers of a model ternary as a recipe says, in the model itself: replace, insert norms, set lambda to its first value."""
    if not isinstance(recipe, Recipe):
        raise ArgumentError(
            f"prepare: a Recipe is needed, given {type(recipe).__name__}; Recipe.from_scratch(steps) is one."
        )
    form: dict[str, Any] = {
        "axis": recipe.axis,
        "group": recipe.group,
        "scales": recipe.scales,
        "activations": recipe.activations,
        "gradients": recipe.gradients,
        "scale_dtype": recipe.scale_dtype,
    }
    present = bit_linears(model)
    for name, layer in present.items():
        options = {key: getattr(layer, key) for key in form if key != "scales"}
        if options | {"scales": "absmean" if layer.scale is None else "learned"} != form:
            raise ArgumentError(
                f"prepare: {name} is a BitLinear already ({layer.extra_repr()}), and not as the recipe has it: {form}. Prepare the "
                "plain model, or give the recipe the layer's options."
            )
    replace_linears(model, skip=recipe.skip, **form)
    for name, layer in bit_linears(model).items():
        if name not in present:
            layer.reset_scale()
    _insert_norms(model, recipe.norms)
    set_lambda(model, recipe.lambda_.at(0.0))
    return model


def _insert_norms(model: nn.Module, norms: str) -> None:
    """Put an RMS norm before each layer, or before those that BitNet has one for; a layer that has one keeps it."""
    if norms == "none":
        return
    layers = {n: m for n, m in bit_linears(model).items() if norms == "all" or n.split(".")[-1] in SUB_NORMS}
    if not layers:
        raise ArgumentError(
            f"prepare: norms='sub' are norms before {' and '.join(SUB_NORMS)}, and no layer has that name; norms='all' puts one before "
            "each layer."
        )
    config = getattr(model, "config", None)
    eps = (config.get("rms_norm_eps") if isinstance(config, Mapping) else getattr(config, "rms_norm_eps", None)) or 1e-5
    normed = [n for n in layers if _has_sub_norm(model, n)]
    if normed:
        raise ArgumentError(f"prepare: {normed[0]} has a norm of the model before it; norms='none' keeps these alone.")
    for layer in layers.values():
        if layer.rms_norm is None:
            place = {"device": layer.weight.device, "dtype": layer.weight.dtype}
            layer.rms_norm = nn.RMSNorm(layer.in_features, eps=eps, **place)


def _has_sub_norm(model: nn.Module, name: str) -> bool:
    """Return True if the owner of a layer has BitNet's norm for it."""
    owner, _, last = name.rpartition(".")
    return last in SUB_NORMS and hasattr(model.get_submodule(owner), SUB_NORMS[last])


def make_optimizer(model: nn.Module, recipe: Recipe, **options: Any) -> torch.optim.AdamW:
    """Return AdamW over the parameters that are trained: weight decay is for matrices, not for norms, biases and scales."""
    scales = {id(m.scale) for m in model.modules() if isinstance(m, BitLinear) and m.scale is not None}
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ArgumentError("make_optimizer: no parameter of the model has requires_grad; there is nothing to train.")
    matrices = [p for p in trained if p.ndim > 1 and id(p) not in scales]
    others = [p for p in trained if p.ndim < 2 or id(p) in scales]
    groups: Iterable[dict[str, Any]] = [
        {"params": matrices, "decays": True}, {"params": others, "decays": False, "weight_decay": 0.0},
    ]  # fmt: skip
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=recipe.betas, **options)


def apply_schedules(model: nn.Module, optimizer: Any, recipe: Recipe, share: float) -> dict[str, float]:
    """Set learning rate, weight decay and lambda to their values at a share of the training; return them, without the lambda of a model
    that has no BitLinear: floats have none, and packed weights stay ternary."""
    values = {
        "learning_rate": recipe.learning_rate * recipe.rate.at(share),
        "weight_decay": recipe.weight_decay.at(share),
    }
    for group in optimizer.param_groups:
        if "decays" not in group:
            raise ArgumentError(
                "apply_schedules: the optimiser does not say which of its parameters decay; make it with make_optimizer(model, recipe)."
            )
        group["lr"] = values["learning_rate"]
        group["weight_decay"] = values["weight_decay"] if group["decays"] else 0.0
    if bit_linears(model):
        values["lambda"] = recipe.lambda_.at(share)
        set_lambda(model, values["lambda"])
    return values

"""Distillation: a ternary student learns a teacher's distribution and the relations of its attention beside the text.

The losses are BitDistill's (arXiv 2510.13998): the KL divergence between the distributions of the next token at a temperature, and
that between relations of queries, keys and values of one layer (MiniLM, arXiv 2012.15828).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tritium.errors import ArgumentError
from tritium.torch.recipes import Distillation, Recipe
from tritium.torch.training import Batches, fit, logits_of

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def logit_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Return T² KL(teacher ‖ student) of distributions at temperature T, the mean over all but the last axis, in nats.

    T² keeps the size of the gradient independent of T."""
    if student.shape != teacher.shape:
        raise ArgumentError(
            f"logit_loss: student and teacher have logits of shapes {tuple(student.shape)} and {tuple(teacher.shape)}; they need the same "
            "vocabulary and the same tokens."
        )
    p, q = (functional.log_softmax(x.float() / temperature, -1) for x in (teacher, student))
    return functional.kl_div(q, p, reduction="none", log_target=True).sum(-1).mean() * temperature**2


def relations(states: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the log of softmax(S Sᵀ / √d) for states [batch, time, heads d]: [batch, heads, time, time]."""
    if states.shape[-1] % heads:
        raise ArgumentError(
            f"relations: {heads} heads do not divide the {states.shape[-1]} columns; give a divisor as heads."
        )
    parts = states.float().unflatten(-1, (heads, -1)).transpose(1, 2)
    return functional.log_softmax(parts @ parts.transpose(-1, -2) / math.sqrt(parts.shape[-1]), -1)


def relation_loss(student: torch.Tensor, teacher: torch.Tensor, heads: int = 1) -> torch.Tensor:
    """Return KL(teacher ‖ student) between relations of states [batch, time, columns], the mean over rows; columns may differ."""
    p, q = relations(teacher, heads), relations(student, heads)
    return functional.kl_div(q, p, reduction="none", log_target=True).sum(-1).mean()


def attention_of(model: nn.Module, layer: int) -> nn.Module:
    """Return the attention of a layer: the module that holds q_proj, k_proj and v_proj."""
    owners = [m for _, m in model.named_modules() if all(hasattr(m, name) for name in PROJECTIONS)]
    if not -len(owners) <= layer < len(owners):
        raise ArgumentError(
            f"distil: the relations of attention layer {layer} are asked for, and the model has {len(owners)} modules with "
            f"{', '.join(PROJECTIONS)}. Give another layer, or relations=0."
        )
    return owners[layer]


@contextmanager
def capture(attention: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Collect what the projections of an attention return while it is called: queries, keys and values in this order."""
    states: list[torch.Tensor] = []
    handles = [
        getattr(attention, name).register_forward_hook(lambda _m, _i, out: states.append(out)) for name in PROJECTIONS
    ]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def distillation_loss(teacher: nn.Module, options: Distillation, student: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of a batch's losses: text, logits, relations."""
    context, following = ids[:, :-1], ids[:, 1:]
    if options.relations:
        ours, theirs = attention_of(student, options.layer), attention_of(teacher, options.layer)
        with torch.no_grad(), capture(theirs) as targets:
            goal = logits_of(teacher, context)
        with capture(ours) as states:
            logits = logits_of(student, context)
        if len(states) != 3 or len(targets) != 3:
            raise ArgumentError("distil: the attention did not call each of its projections once; give relations=0.")
        pairs = zip(states, targets, strict=True)
        related: Any = sum(relation_loss(a, b, options.heads) for a, b in pairs)
    else:
        with torch.no_grad():
            goal = logits_of(teacher, context)
        logits, related = logits_of(student, context), 0.0
    loss = options.relations * related
    if options.logits:
        loss = loss + options.logits * logit_loss(logits, goal, options.temperature)
    if options.text:
        loss = loss + options.text * functional.cross_entropy(logits.flatten(0, 1), following.flatten())
    return loss


@dataclass(frozen=True)
class DistillationLoss:
    """The loss of a student beside a teacher, for `Training` with a recipe of the same `distillation`. The teacher is set to eval mode."""

    teacher: nn.Module
    distillation: Distillation

    def __post_init__(self) -> None:
        if not isinstance(self.distillation, Distillation):
            raise ArgumentError(
                f"DistillationLoss: a Distillation is needed, given {type(self.distillation).__name__}; that of Recipe.distil(steps) is one."
            )
        self.teacher.eval()

    def __call__(self, student: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return distillation_loss(self.teacher, self.distillation, student, ids)


def distil(teacher: nn.Module, student: nn.Module, batches: Batches, recipe: Recipe, **options: Any) -> list[float]:
    """Train a prepared student by a recipe with a distillation; return the loss of each step. Options are those of `fit`.

    The teacher is set to eval mode and is not trained. Both take the same tokens [batch, time]."""
    if recipe.distillation is None:
        raise ArgumentError("distil: the recipe has no distillation; Recipe.distil(steps) has one.")
    if teacher is student:
        raise ArgumentError(
            "distil: teacher and student are the same module; prepare a copy (copy.deepcopy) as the student."
        )
    return fit(student, batches, recipe, loss=DistillationLoss(teacher, recipe.distillation), **options)

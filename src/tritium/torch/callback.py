"""A recipe for transformers' Trainer: its callback sets learning rate, weight decay and lambda before every step.

Imports transformers; `tritium.torch.trainer_callback` imports it when called.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from tritium.errors import ArgumentError
from tritium.torch.recipes import Recipe, apply_schedules
from tritium.torch.watch import Watch


class RecipeCallback(TrainerCallback):
    """Follows the schedules of a recipe, whose steps and clip are those of the Trainer too.

    They depend on the step alone, so a Trainer that resumes from its checkpoint goes on exactly.
    """

    def __init__(self, recipe: Recipe, watch: Watch | None = None) -> None:
        if recipe.distillation is not None:
            raise ArgumentError(
                f"trainer_callback: the recipe has distillation={recipe.distillation}, and a callback cannot change the Trainer's loss. Call "
                "distil(teacher, student, batches, recipe), or give recipe.with_(distillation=None) and a Trainer with a loss of your own."
            )
        self.recipe, self.watch = recipe, watch
        self._values: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Raise where the Trainer takes other steps, or another norm of gradients, than the recipe says, or other processes than the Watch."""
        if self.watch is not None and self.watch.processes.count != args.world_size:
            raise ArgumentError(
                f"trainer_callback: the Trainer runs {args.world_size} processes, and the Watch was made of a model on "
                f"{self.watch.processes.count}: the Trainer divides or copies the model later. Train without watch=, or with Training."
            )
        pairs = (("steps", "max_steps", state.max_steps), ("clip", "max_grad_norm", args.max_grad_norm or 0.0))
        for field, argument, value in pairs:
            mine = getattr(self.recipe, field)
            if mine != value:
                raise ArgumentError(
                    f"trainer_callback: the recipe has {field}={mine!r} and the Trainer {argument}={value!r}; give "
                    f"TrainingArguments({argument}={mine!r}), or recipe.with_({field}={value!r})."
                )

    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Set the schedules to the step that begins."""
        share = state.global_step / state.max_steps
        self._values = apply_schedules(objects["model"], objects["optimizer"], self.recipe, share)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Record the step while its gradients are still there."""
        if self.watch is not None:
            self.watch.record(state.global_step + 1, **self._values)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **objects: Any) -> None:
        """Take the loss that the Trainer logs into the last record."""
        if self.watch is not None and self.watch.rows and logs and "loss" in logs:
            self.watch.rows[-1]["loss"] = float(logs["loss"])

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Set the schedules to their last values: after a ramp of lambda the model is ternary."""
        if state.global_step >= state.max_steps:
            apply_schedules(objects["model"], objects["optimizer"], self.recipe, 1.0)

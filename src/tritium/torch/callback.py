"""A recipe for transformers' Trainer: its callback sets learning rate, weight decay and lambda before every step.

Knows nothing of data. Imports transformers; `tritium.torch.trainer_callback` imports it when called.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from tritium.torch.recipes import Recipe, apply_schedules
from tritium.torch.watch import Watch


class RecipeCallback(TrainerCallback):
    """Follows the schedules of a recipe over the Trainer's own number of steps.

    They depend on the step alone, so a Trainer that resumes from its checkpoint goes on exactly.
    """

    def __init__(self, recipe: Recipe, watch: Watch | None = None) -> None:
        self.recipe, self.watch = recipe, watch
        self._values: dict[str, float] = {}

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

"""Records of the layers while a network trains: weights that flip, zeros, norms of gradients; as rows, a file, or TensorBoard.

Knows nothing of loops and pages. `tritium.see.training_page` draws the rows.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tritium.errors import ArgumentError, PackageError
from tritium.machine.files import replacing
from tritium.torch.layer import bit_linears


class Watch:
    """Records of a training: the loss, schedules, and for each BitLinear the share of weights that changed their ternary value since
    the record before (`flips`), the share of zeros, and the norm of the gradient.

    `every` is the number of steps between two records. `tensorboard` is a folder: each record is written there too. Between two
    records the ternary weights are kept, a byte each.
    """

    def __init__(self, model: nn.Module, *, every: int = 1, tensorboard: str | Path | None = None) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ArgumentError(f"Watch: every is a number of steps of at least 1, given {every!r}.")
        if not bit_linears(model):
            raise ArgumentError("Watch: the model has no BitLinear; call prepare(model, recipe) first.")
        self.model, self.every = model, every
        self.rows: list[dict[str, Any]] = []
        self._writer = None if tensorboard is None else _writer(tensorboard)
        self._codes = self._ternary()

    def _ternary(self) -> dict[str, torch.Tensor]:
        return {name: layer.ternary()[0] for name, layer in bit_linears(self.model).items()}

    def record(self, step: int, loss: float | None = None, **values: float) -> None:
        """Add a row, if this step has one: call it after the optimiser's step, before the gradients are cleared."""
        if step % self.every:
            return
        now, layers = self._ternary(), {}
        for name, layer in bit_linears(self.model).items():
            slope = None if layer.weight.grad is None else float(layer.weight.grad.norm())
            layers[name] = {
                "flips": float((now[name] != self._codes[name]).float().mean()),
                "zeros": float((now[name] == 0).float().mean()),
                "gradient": slope if slope is None or math.isfinite(slope) else None,
            }
        self._codes = now
        finite = {k: v for k, v in values.items() if math.isfinite(v)}
        self.rows.append(
            {"step": step, "loss": loss if loss is None or math.isfinite(loss) else None} | finite | {"layers": layers}
        )
        self._write(self.rows[-1])

    def _write(self, row: dict[str, Any]) -> None:
        if self._writer is None:
            return
        for name, value in row.items():
            if name not in ("step", "layers") and value is not None:
                self._writer.add_scalar(f"training/{name}", value, row["step"])
        for layer, numbers in row["layers"].items():
            for name, value in numbers.items():
                if value is not None:
                    self._writer.add_scalar(f"{name}/{layer}", value, row["step"])
        self._writer.flush()

    def save(self, path: str | Path) -> None:
        """Write the rows as JSON."""
        with replacing(Path(path)) as temporary:
            temporary.write_text(json.dumps({"schema": 1, "training": self.rows}) + "\n", encoding="utf-8")

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        return {"rows": json.dumps(self.rows), "codes": self._codes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a checkpoint was written."""
        if set(state["codes"]) != set(self._codes):
            raise ArgumentError("Watch: the checkpoint is of a model with other layers.")
        self.rows = json.loads(state["rows"])
        self._codes = {name: codes.to(self._codes[name].device) for name, codes in state["codes"].items()}


def _writer(folder: str | Path) -> Any:
    """Return TensorBoard's writer; raise where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise PackageError(
            "Watch: tensorboard= needs TensorBoard, which is not installed: pip install tensorboard."
        ) from None
    return SummaryWriter(str(folder))

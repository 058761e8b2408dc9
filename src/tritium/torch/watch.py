"""Records of the layers while a network trains: weights that flip, zeros, norms of gradients; as rows, a file, or TensorBoard.

`tritium.see.training_page` draws the rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tritium.errors import ArgumentError, PackageError
from tritium.machine.files import replacing
from tritium.torch.adapters import lora_linears
from tritium.torch.layer import bit_linears
from tritium.torch.processes import (
    Processes,
    divided,
    divided_state,
    is_divided,
    local_part,
    ternary_parts,
    whole_state,
)

ABSENT = "flips and zeros: the packed weights of layers with an adapter are frozen"


class Watch:
    """Records of a training: the loss, schedules, and for each BitLinear the share of weights that changed their ternary value since
    the record before (`flips`), the share of zeros, and the norm of the gradient; for each layer with an adapter the norm of the gradient
    of both its matrices.

    `every` is the number of steps between two records. `tensorboard` is a folder: each record is written there too. Between two
    records the ternary weights are kept, a byte each. Of a model that is divided or copied over processes (`shard`,
    DistributedDataParallel) all processes record, each has the numbers of the whole model, and the first writes what is written.
    """

    def __init__(self, model: nn.Module, *, every: int = 1, tensorboard: str | Path | None = None) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ArgumentError(f"Watch: every is a number of steps of at least 1, given {every!r}.")
        self.processes = Processes.from_model(model)
        self.model, self.every = model.module if isinstance(model, DistributedDataParallel) else model, every
        if not bit_linears(self.model) and not lora_linears(self.model):
            raise ArgumentError(
                "Watch: the model has no BitLinear and no adapter; call prepare(model, recipe) or add_adapters(model) first."
            )
        self.rows: list[dict[str, Any]] = []
        self._writer = None if tensorboard is None or self.processes.rank else _writer(tensorboard)
        self._codes = ternary_parts(bit_linears(self.model), self.processes)  # of divided layers this process's rows

    def record(self, step: int, loss: float | None = None, **values: float) -> None:
        """Add a row, if this step has one: call it after the optimiser's step, before the gradients are cleared. All processes call it."""
        if step % self.every:
            return
        known: dict[str, Any] = {k: v for k, v in values.items() if math.isfinite(v)}
        row = {"step": step, "loss": loss if loss is None or math.isfinite(loss) else None} | known
        adapted = lora_linears(self.model)
        slopes = {name: [layer.lora_A.weight.grad, layer.lora_B.weight.grad] for name, layer in adapted.items()}
        layers = self._measure() | {name: {"gradient": _norm(_square(g))} for name, g in slopes.items()}
        self.rows.append(row | ({"absent": ABSENT} if adapted else {}) | {"layers": layers})
        self._write(self.rows[-1])

    @torch.no_grad()
    def _measure(self) -> dict[str, dict[str, float | None]]:
        """Return flips, zeros and the norm of the gradient of each BitLinear, and keep its ternary weights."""
        layers = bit_linears(self.model)
        if not layers:
            return {}
        before, self._codes = self._codes, ternary_parts(layers, self.processes)
        sums = []
        for name, layer in layers.items():
            now = self._codes[name]
            counts = [(now != before[name]).sum().double(), (now == 0).sum().double()]
            sums.append(torch.stack([*counts, _square([layer.weight.grad]).to(now.device)]))
        totals = torch.stack(sums)
        shared = torch.tensor([is_divided(layer.weight) for layer in layers.values()], device=totals.device)
        if shared.any():
            totals = torch.where(shared[:, None], self.processes.sum(totals), totals)
        numbers = {}
        for (name, layer), (flips, zeros, square) in zip(layers.items(), totals.tolist(), strict=True):
            count = layer.weight.numel()
            numbers[name] = {"flips": flips / count, "zeros": zeros / count, "gradient": _norm(square)}
        return numbers

    def _write(self, row: dict[str, Any]) -> None:
        if self._writer is None:
            return
        for name, value in row.items():
            if name not in ("step", "layers", "absent") and value is not None:
                self._writer.add_scalar(f"training/{name}", value, row["step"])
        if "absent" in row and row is self.rows[0]:
            self._writer.add_text("absent", row["absent"], row["step"])
        for layer, numbers in row["layers"].items():
            for name, value in numbers.items():
                if value is not None:
                    self._writer.add_scalar(f"{name}/{layer}", value, row["step"])
        self._writer.flush()

    def save(self, path: str | Path) -> None:
        """Write the rows as JSON. All processes may call this; the first writes."""
        if self.processes.rank == 0:
            with replacing(Path(path)) as temporary:
                temporary.write_text(json.dumps({"schema": 1, "training": self.rows}) + "\n", encoding="utf-8")

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it: whole tensors, for which all processes call it."""
        layers = bit_linears(self.model)
        codes = {
            name: whole_state(divided(part, layers[name].weight)) if is_divided(layers[name].weight) else part
            for name, part in self._codes.items()
        }
        return {"rows": json.dumps(self.rows), "codes": codes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a checkpoint was written."""
        if set(state["codes"]) != set(self._codes):
            raise ArgumentError("Watch: the checkpoint is of a model with other layers.")
        self.rows = json.loads(state["rows"])
        layers = bit_linears(self.model)
        for name, codes in state["codes"].items():
            part = local_part(divided_state(codes, layers[name].weight))
            self._codes[name] = part.to(self._codes[name].device)


def _square(gradients: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """Return the sum of squares of gradients in f64, of divided ones this process's share; NaN where there is none."""
    squares = [local_part(g).double().square().sum() for g in gradients if g is not None]
    return torch.stack(squares).sum() if squares else torch.tensor(math.nan, dtype=torch.float64)


def _norm(square: torch.Tensor | float) -> float | None:
    """Return the norm of a sum of squares; None where it is not finite."""
    norm = math.sqrt(float(square))
    return norm if math.isfinite(norm) else None


def _writer(folder: str | Path) -> Any:
    """Return TensorBoard's writer; raise where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise PackageError(
            "Watch: tensorboard= needs TensorBoard, which is not installed: pip install tensorboard."
        ) from None
    return SummaryWriter(str(folder))

"""A plain training loop that follows a recipe, and checkpoints from which it goes on as if it had not stopped.

Knows nothing of files of models. A checkpoint has the weights, the optimiser's state, the step, the state of every random generator
and, where one watches, its records. Schedules depend on the step alone, and so does the data where batches are a function of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tritium.errors import ArgumentError, FormatError, MissingFileError
from tritium.machine.files import replacing
from tritium.torch.recipes import Recipe, apply_schedules, make_optimizer
from tritium.torch.watch import Watch

Loss = Callable[[nn.Module, Any], torch.Tensor]
Batches = Callable[[int], Any] | Iterable[Any]
PARTS = {"schema", "step", "recipe", "model", "optimizer", "losses", "random", "watch"}


class Windows:
    """Batches of stretches of a text, [batch, length + 1], as a function of the step: a training that goes on reads what it would have.

    `tokens` is a tensor of one dimension. The stretches of a step are drawn from `seed` and the step.
    """

    def __init__(self, tokens: torch.Tensor, *, length: int, batch: int, seed: int = 0) -> None:
        if tokens.ndim != 1 or len(tokens) <= length or length < 1 or batch < 1:
            raise ArgumentError(
                f"Windows: more than length={length} tokens in one dimension and a batch of at least 1 are needed; given tokens of "
                f"shape {tuple(tokens.shape)} and batch={batch}."
            )
        self.tokens, self.length, self.batch, self.seed = tokens, length, batch, seed

    def __call__(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        starts = torch.randint(len(self.tokens) - self.length, (self.batch, 1), generator=generator)
        return self.tokens[(starts + torch.arange(self.length + 1)).to(self.tokens.device)].long()


def logits_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of a model that returns them, or an object that has them, as those of transformers do."""
    out = model(ids)
    logits: torch.Tensor = out if isinstance(out, torch.Tensor) else out.logits
    return logits.float()


def next_token_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each token [batch, time] after the ones before it, in nats."""
    return functional.cross_entropy(logits_of(model, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class Training:
    """A model in training: its optimiser, its step and its schedules. `step(batch)` trains on one batch."""

    def __init__(
        self, model: nn.Module, recipe: Recipe, *, loss: Loss = next_token_loss, watch: Watch | None = None, **optimizer: Any
    ) -> None:  # fmt: skip
        self.model, self.recipe, self.loss, self.watch = model, recipe, loss, watch
        self.optimizer = make_optimizer(model, recipe, **optimizer)
        self.done = 0
        self.losses: list[float] = []

    def step(self, batch: Any) -> float:
        """Train on one batch; return its loss before the step."""
        values = apply_schedules(self.model, self.optimizer, self.recipe, self.done / self.recipe.steps)
        self.model.train()
        loss = self.loss(self.model, batch)
        loss.backward()
        if self.recipe.clip:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.recipe.clip)
        self.optimizer.step()
        self.done += 1
        self.losses.append(loss.item())
        if self.watch is not None:
            self.watch.record(self.done, self.losses[-1], **values)
        self.optimizer.zero_grad(set_to_none=True)
        return self.losses[-1]

    def finish(self) -> None:
        """Set the schedules to their last values: a model that was trained with a ramp of lambda is ternary after it."""
        apply_schedules(self.model, self.optimizer, self.recipe, 1.0)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint. It appears whole or not at all."""
        state = {
            "schema": 1, "step": self.done, "recipe": self.recipe.to_json(), "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(), "losses": torch.tensor(self.losses, dtype=torch.float64), "random": random_state(),
            "watch": None if self.watch is None else self.watch.state_dict(),
        }  # fmt: skip
        with replacing(Path(path)) as temporary:
            torch.save(state, temporary)

    def load(self, path: str | Path) -> None:
        """Continue from a checkpoint of the same recipe: weights, optimiser, step and random generators become those it was written with."""
        state = _read(Path(path))
        theirs = Recipe.from_json(state["recipe"])
        other = [f.name for f in fields(Recipe) if getattr(theirs, f.name) != getattr(self.recipe, f.name)]
        if other:
            raise ArgumentError(
                f"Training.load: {path} was written under another recipe, which differs in {', '.join(other)}. Continue with "
                f"Recipe.from_json of it, or begin anew at another path."
            )
        if (state["watch"] is None) != (self.watch is None):
            raise ArgumentError(
                f"Training.load: {path} was written {'without' if self.watch else 'with'} a Watch; do the same."
            )
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise ArgumentError(f"Training.load: {path} is of another model: {str(error)[:300]}") from None
        if self.watch is not None:
            self.watch.load_state_dict(state["watch"])
        self.done, self.losses = state["step"], state["losses"].tolist()
        set_random_state(state["random"])


def _read(path: Path) -> dict[str, Any]:
    """Return the parts of a checkpoint; nothing in it is executed."""
    if not path.is_file():
        raise MissingFileError(f"Training.load: there is no file {path}.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its readers raise: pickle, zip, struct, its own
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise FormatError(f"Training.load: {path} is no checkpoint: {why}") from None
    if not isinstance(state, dict) or set(state) != PARTS or state["schema"] != 1:
        raise FormatError(f"Training.load: {path} is a file of torch, but no checkpoint of Training.save.")
    return state


def random_state() -> dict[str, Any]:
    """Return the state of the generators of Python, NumPy and torch, as numbers and tensors."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, words, following = random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "torch": torch.get_rng_state(), "cuda": cuda, "python": [version, list(words), following],
        "numpy": [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)],
    }  # fmt: skip


def set_random_state(state: dict[str, Any]) -> None:
    """Set the generators to a state of `random_state`."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    version, words, following = state["python"]
    random.setstate((version, tuple(words), following))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.asarray(keys, np.uint32), *rest))


def fit(
    model: nn.Module,
    batches: Batches,
    recipe: Recipe,
    *,
    loss: Loss = next_token_loss,
    checkpoint: str | Path | None = None,
    save_every: int = 0,
    until: int | None = None,
    watch: Watch | None = None,
    **optimizer: Any,
) -> list[float]:
    """Train a prepared model by a recipe; return the loss of each step, of steps before a checkpoint too.

    `batches` is a function of the step (`Windows` is one), or an iterable that gives the same batches in the same order each
    time: where a training goes on, those that were read are skipped. `loss(model, batch)` is the next-token cross-entropy unless
    given. `checkpoint` is a file: where it exists the training goes on from it; it is written every `save_every` steps and at the
    end. `until` ends the training early, after so many steps in all. Other options are AdamW's.
    """
    training = Training(model, recipe, loss=loss, watch=watch, **optimizer)
    path = None if checkpoint is None else Path(checkpoint)
    if save_every and path is None:
        raise ArgumentError(f"fit: save_every={save_every} needs checkpoint=, the file to write.")
    if path is not None and path.exists():
        training.load(path)
    end = recipe.steps if until is None else min(until, recipe.steps)
    for batch in _from(batches, training.done, end):
        training.step(batch)
        if path is not None and save_every and training.done % save_every == 0 and training.done < end:
            training.save(path)
    if path is not None:
        training.save(path)
    if training.done == recipe.steps:
        training.finish()
    return training.losses


def _from(batches: Batches, first: int, end: int) -> Iterator[Any]:
    """Yield the batches of steps first to end; raise where there are too few."""
    if callable(batches):
        yield from (batches(step) for step in range(first, end))
        return
    count = first
    for batch in islice(batches, first, end):
        yield batch
        count += 1
    if count < end:
        raise ArgumentError(
            f"fit: batches ended after {count}; the recipe has {end} steps. Give more, or a function of the step."
        )

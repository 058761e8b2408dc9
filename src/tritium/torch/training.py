"""A plain training loop that follows a recipe, and checkpoints from which it goes on as if it had not stopped.

A checkpoint has the weights, the optimiser's state, the step, the state of every random generator and, where one watches, its
records. Schedules depend on the step alone, and so does the data where batches are a function of it. Over several processes each
trains on its pieces of a batch, and gradients and losses are the means of all pieces.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tritium.errors import ArgumentError, FormatError, MissingFileError
from tritium.machine.files import replacing
from tritium.torch.processes import Processes, clip_gradients, divided_state, is_sharded, whole_state
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


def head_loss(
    states: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor], targets: torch.Tensor, *, chunk: int = 128
) -> torch.Tensor:
    """Return the cross-entropy of tokens [batch, time] under `head` of hidden states [batch, time, columns], in nats.

    Logits exist for `chunk` tokens at a time, and are computed again in the backward pass: of a large vocabulary all of them at once take
    more memory than the weights of a small network."""
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ArgumentError(f"head_loss: chunk is a number of tokens of at least 1, given {chunk!r}.")
    if states.shape[:-1] != targets.shape or not targets.numel():
        raise ArgumentError(
            f"head_loss: one target for each state is needed, given {tuple(states.shape)} and {tuple(targets.shape)}."
        )
    parts = zip(states.flatten(0, -2).split(chunk), targets.flatten().split(chunk), strict=True)
    losses = [checkpoint(_summed_loss, head, x, y, use_reentrant=False) for x, y in parts]
    return torch.stack(losses).sum() / targets.numel()


def _summed_loss(
    head: Callable[[torch.Tensor], torch.Tensor], states: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    return functional.cross_entropy(head(states).float(), targets, reduction="sum")


class Training:
    """A model in training: its optimiser, its step and its schedules. `step(batch)` trains on one batch.

    A recipe with a distillation needs a loss that has the same as its `distillation`: `DistillationLoss` is one.
    `pieces`: of a batch, along the first axis of its tensors, that a process computes one after the other: their gradients are added.
    Of a model that is divided or copied over processes (`shard`, DistributedDataParallel) each process takes its pieces of the batch, which
    is the same on all of them.
    """

    def __init__(
        self, model: nn.Module, recipe: Recipe, *, loss: Loss = next_token_loss, watch: Watch | None = None, pieces: int = 1,
        **optimizer: Any,
    ) -> None:  # fmt: skip
        if isinstance(pieces, bool) or not isinstance(pieces, int) or pieces < 1:
            raise ArgumentError(f"Training: pieces are a number of at least 1, given {pieces!r}.")
        if getattr(loss, "distillation", None) != recipe.distillation:
            raise ArgumentError(
                f"Training: the recipe has distillation={recipe.distillation} and the loss {getattr(loss, 'distillation', None)}. Call "
                "distil(teacher, student, batches, recipe), give loss=DistillationLoss(teacher, recipe.distillation), or train without a "
                "teacher by recipe.with_(distillation=None)."
            )
        self.model, self.recipe, self.loss, self.watch, self.pieces = model, recipe, loss, watch, pieces
        self.processes = Processes.from_model(model)
        if watch is not None and watch.processes.count != self.processes.count:
            raise ArgumentError(
                f"Training: the model is trained by {self.processes.count} processes, and the Watch was made of one on "
                f"{watch.processes.count}; make it of the model that is trained, after shard or DistributedDataParallel: Watch(model)."
            )
        self.optimizer = make_optimizer(model, recipe, **optimizer)
        self.done = 0
        self.losses: list[float] = []

    def step(self, batch: Any) -> float:
        """Train on one batch; return its loss before the step."""
        values = apply_schedules(self.model, self.optimizer, self.recipe, self.done / self.recipe.steps)
        self.model.train()
        loss = self._backward(batch)
        if self.recipe.clip:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            clip_gradients(parameters, self.recipe.clip, self.processes)
        self.optimizer.step()
        self.done += 1
        self.losses.append(loss)
        if self.watch is not None:
            self.watch.record(self.done, self.losses[-1], **values)
        self.optimizer.zero_grad(set_to_none=True)
        return self.losses[-1]

    def _backward(self, batch: Any) -> float:
        """Add up the gradients of this process's pieces; return the mean loss of the pieces of all."""
        total = torch.zeros((), dtype=torch.float64)
        for i, piece in enumerate(self.processes.pieces(batch, self.pieces)):
            with self._exchanged(last=i == self.pieces - 1):
                loss = self.loss(self.model, piece)
                (loss / self.pieces).backward()
            total += loss.detach().double().cpu()
        device = next(self.model.parameters()).device
        return float(self.processes.sum(total.to(device)).cpu() / (self.pieces * self.processes.count))

    @contextmanager
    def _exchanged(self, last: bool) -> Iterator[None]:
        """Have gradients exchanged between processes after the last piece alone."""
        if isinstance(self.model, DistributedDataParallel) and not last:
            with self.model.no_sync():
                yield
            return
        if is_sharded(self.model):
            self.model.set_requires_gradient_sync(last)
        yield

    def finish(self) -> None:
        """Set the schedules to their last values: a model that was trained with a ramp of lambda is ternary after it."""
        apply_schedules(self.model, self.optimizer, self.recipe, 1.0)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint. It appears whole or not at all. Over several processes all call this, and the first writes the file: it has
        whole tensors, and the generators of every process."""
        state = {
            "schema": 2, "step": self.done, "recipe": self.recipe.to_json(), "model": whole_state(dict(self._plain.state_dict())),
            "optimizer": whole_state(self.optimizer.state_dict()), "losses": torch.tensor(self.losses, dtype=torch.float64),
            "random": self.processes.collect(random_state()),
            "watch": None if self.watch is None else self.watch.state_dict(),
        }  # fmt: skip
        if self.processes.rank == 0:
            with replacing(Path(path)) as temporary:
                torch.save(state, temporary)
        self.processes.wait()

    def load(self, path: str | Path) -> None:
        """Continue from a checkpoint of the same recipe: weights, optimiser, step and random generators become those it was written with.

        Another number of processes may continue; their generators then stay as they are."""
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
            self._load_weights(state["model"])
            self._load_optimizer(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise ArgumentError(f"Training.load: {path} is of another model: {str(error)[:300]}") from None
        if self.watch is not None:
            self.watch.load_state_dict(state["watch"])
        self.done, self.losses = state["step"], state["losses"].tolist()
        if len(state["random"]) == self.processes.count:
            set_random_state(state["random"][self.processes.rank])

    @property
    def _plain(self) -> nn.Module:
        """Return the model without DDP's wrapper, whose name would be in that of every weight."""
        return self.model.module if isinstance(self.model, DistributedDataParallel) else self.model

    def _load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self._plain.load_state_dict(divided_state(weights, self._plain.state_dict()))

    def _load_optimizer(self, whole: dict[str, Any]) -> None:
        """Load a state of whole tensors; those that belong to a divided parameter are divided as it is."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for i, values in whole["state"].items():
            like = {k: parameters[i] for k, v in values.items() if v.shape == parameters[i].shape}
            whole["state"][i] = divided_state(values, like)
        self.optimizer.load_state_dict(whole)


def _read(path: Path) -> dict[str, Any]:
    """Return the parts of a checkpoint; nothing in it is executed."""
    if not path.is_file():
        raise MissingFileError(f"Training.load: there is no file {path}.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its readers raise: pickle, zip, struct, its own
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise FormatError(f"Training.load: {path} is no checkpoint: {why}") from None
    if not isinstance(state, dict) or set(state) != PARTS or state["schema"] != 2:
        raise FormatError(
            f"Training.load: {path} is a file of torch, but no checkpoint of this version's Training.save."
        )
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
    pieces: int = 1,
    **optimizer: Any,
) -> list[float]:
    """Train a prepared model by a recipe; return the loss of each step, of steps before a checkpoint too.

    `batches` is a function of the step (`Windows` is one), or an iterable that gives the same batches in the same order each
    time: where a training goes on, those that were read are skipped. `loss(model, batch)` is the next-token cross-entropy unless
    given. `checkpoint` is a file: where it exists the training goes on from it; it is written every `save_every` steps and at the
    end. `until` ends the training early, after so many steps in all. `pieces` are those of `Training`. Other options are AdamW's.
    """
    training = Training(model, recipe, loss=loss, watch=watch, pieces=pieces, **optimizer)
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

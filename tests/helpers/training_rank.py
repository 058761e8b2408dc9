"""One rank of a training over several processes: trains a tiny network in every way that is tested, and prints what came of it as JSON."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from small_network import Network
from tritium.torch import (
    Distillation,
    Recipe,
    Training,
    Watch,
    Windows,
    add_adapters,
    checkpoint_blocks,
    distil,
    fit,
    prepare,
    shard,
)

LONG = os.environ.get("TRITIUM_LONG") == "1"  # compiling takes seconds on each rank
STEPS, STOP = 4, 2
TEXT = torch.tensor(list(b"The quick brown fox jumps over the lazy dog. " * 20))
FORMS: dict[str, dict[str, Any]] = {
    "tensor": {},
    "tensor f16": {"scale_dtype": "f16"},
    "row": {"axis": 0},
    "group": {"group": 16, "activations": "group"},
}


class Block(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(n), nn.Linear(n, 2 * n, bias=False), nn.Linear(2 * n, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.silu(self.up(self.norm(x))))


class Tiny(nn.Module):
    """Bytes in, logits out; a head of its own, which is not ternary."""

    def __init__(self, n: int = 32) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(256, n), nn.ModuleList(Block(n) for _ in range(2))
        self.dropout, self.lm_head = nn.Dropout(0.0), nn.Linear(n, 256, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.dropout(x))


def recipe(form: str = "tensor", **changes: Any) -> Recipe:
    return Recipe.from_scratch(STEPS, learning_rate=0.01, clip=0.5, **FORMS[form] | changes)


def prepared(form: str = "tensor", *, dropout: float = 0.0) -> Tiny:
    model = plain()
    model.dropout.p = dropout
    prepare(model, recipe(form))
    return model


def plain() -> Tiny:
    torch.manual_seed(0)
    return Tiny()


def compiled(model: Tiny) -> Tiny:
    for block in model.blocks:
        block.compile(fullgraph=True, backend="aot_eager")
    return model


def windows() -> Windows:
    return Windows(TEXT, length=16, batch=8)


def adapted() -> Tiny:
    """Return a network with adapters over packed weights."""
    model = prepared("row")
    torch.manual_seed(1)
    add_adapters(model, rank=2)
    return model


def distilled(wrap: Any) -> list[float]:
    """Return the losses of a student beside a teacher of the same sizes: text, logits and relations."""
    soft = recipe(norms="sub", distillation=Distillation(heads=2))
    teacher, student = Network(seed=1, layers=1), prepare(Network(layers=1), soft)
    windows = Windows(TEXT % 32, length=8, batch=4)
    return distil(teacher, wrap(student), windows, soft, **PIECES[wrap is alone])


def alone(model: nn.Module) -> nn.Module:
    """Return the model, for one process."""
    return model


PIECES: tuple[dict[str, int], ...] = ({}, {"pieces": 2})  # of each of two processes; of one


def watched(make: Any, wrap: Any, folder: Path, name: str, **changes: Any) -> list[dict[str, Any]]:
    """Return the records of a training that stops once and goes on from its file."""
    path = folder / f"{name}.{'one' if wrap is alone else 'two'}.pt"
    for until in (STOP, STEPS):
        model = wrap(make())
        watch = Watch(model)
        options = {"checkpoint": path, "until": until, "watch": watch} | PIECES[wrap is alone]
        fit(model, windows(), recipe(**changes), **options)
    watch.save(path.with_suffix(".json"))
    return watch.rows


WATCHED: dict[str, tuple[Any, Any, dict[str, Any]]] = {  # how a model is made and divided, and changes of its recipe
    "fsdp": (prepared, shard, {}), "fsdp group": (lambda: prepared("group"), shard, FORMS["group"]),
    "learned": (lambda: prepare(plain(), recipe("row", scales="learned")), lambda model: shard(model, packed=False),
                FORMS["row"] | {"scales": "learned"}),
    "ddp": (prepared, DistributedDataParallel, {}),
    "lora": (adapted, lambda model: DistributedDataParallel(model, broadcast_buffers=False), FORMS["row"]),
}  # fmt: skip


class Gathered:
    """Counts the bytes that each rank gives to gathers of FSDP2, whose function has two names in versions of torch."""

    def __init__(self) -> None:
        self.bytes = 0
        self._name = next(n for n in ("all_gather_single", "all_gather_into_tensor") if hasattr(dist, n))
        self._plain = getattr(dist, self._name)

    def __enter__(self) -> Gathered:
        def counted(*args: Any, **options: Any) -> Any:
            self.bytes += min(x.nbytes for x in (*args, *options.values()) if isinstance(x, torch.Tensor))
            return self._plain(*args, **options)

        setattr(dist, self._name, counted)
        return self

    def __exit__(self, *exc: object) -> None:
        setattr(dist, self._name, self._plain)


def resumed(name: str, folder: Path, wrap: Any) -> list[list[float]]:
    """Return the losses of a training with dropout that was not stopped, and of one that was and went on from its file."""
    torch.manual_seed(dist.get_rank())
    whole = fit(wrap(prepared(dropout=0.1)), windows(), recipe())
    torch.manual_seed(dist.get_rank())
    path = folder / f"{name}.pt"
    fit(wrap(prepared(dropout=0.1)), windows(), recipe(), checkpoint=path, until=STOP)
    torch.manual_seed(99)
    return [whole, fit(wrap(prepared(dropout=0.1)), windows(), recipe(), checkpoint=path)]


def failures() -> dict[str, str]:
    """Return what is said where weights cannot be gathered as codes."""
    said = {}
    ramp = recipe(lambda_=Recipe.fine_tune(STEPS).lambda_)
    odd = prepare(nn.Sequential(nn.Linear(32, 31)), recipe(skip=()))
    learned = prepare(Tiny(), recipe(scales="learned"))
    cases = {
        "lambda": lambda: fit(shard(prepare(Tiny(), ramp)), windows(), ramp), "odd": lambda: shard(odd), "learned": lambda: shard(learned),
        "batch": lambda: Training(shard(prepared()), recipe()).step(windows()(0)[:3]), "lora": lambda: shard(adapted()),
        "watch": lambda: Training(shard(prepared()), recipe(), watch=Watch(prepared())),
    }  # fmt: skip
    for name, call in cases.items():
        try:
            call()
        except TypeError as error:
            said[name] = str(error)
    return said


def main(folder: Path) -> dict[str, Any]:
    """Return the losses of every way, and the bytes that it gathered."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results: dict[str, Any] = {"bytes": {}}
    ways = {f"fsdp {form}": (form, shard) for form in FORMS}
    ways["floats"] = "tensor", lambda model: shard(model, packed=False)
    ways["checkpointed"] = "tensor", lambda model: shard(checkpoint_blocks(model))
    if LONG:
        ways["compiled"] = "tensor", lambda model: shard(compiled(model))
    ways["ddp"] = "tensor", DistributedDataParallel
    for name, (form, wrap) in ways.items():
        with Gathered() as counted:
            results[name] = fit(wrap(prepared(form)), windows(), recipe(form))
        results["bytes"][name] = counted.bytes
    results["resumed fsdp"] = resumed("fsdp", folder, shard)
    results["resumed ddp"] = resumed("ddp", folder, DistributedDataParallel)
    results["failures"] = failures()
    for name, wrap in {"fsdp": shard, "ddp": DistributedDataParallel}.items():
        results[f"distilled {name}"] = distilled(wrap)
    results["watched"] = {n: watched(make, wrap, folder, n, **c) for n, (make, wrap, c) in WATCHED.items()}
    training = Training(shard(prepared()), recipe())
    training.step(windows()(0))
    training.save(folder / "shared.pt")
    dist.destroy_process_group()
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))))

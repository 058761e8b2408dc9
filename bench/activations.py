"""What each kind of activations loses: perplexity of a text, and divergence from float activations, for a model with groups.

    python bench/activations.py MODEL --text FILE                 token, group and float side by side
    python bench/activations.py --text FILE --group 128           the small model in the package
    python bench/activations.py MODEL --text FILE --group 128     a model without groups: each group gets its row's scale, as f16
    python bench/activations.py MODEL --text FILE --tokens 20000 --results activations.json

The text is cut into windows of `--context` tokens. Every kind reads the same tokens with the same weights, several windows at a
time, one token after the other. Of each position but the first of a window: the negative log-likelihood of the next token, the
Kullback-Leibler divergence of the kind's distribution from that of float activations, in nats, and whether both prefer the same
token. Shown are means with their standard errors over windows.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from results import Column, Entry, add_option, value, write

import tritium as tt
from tritium import quant
from tritium.models.load import Model
from tritium.nn.linear import BitLinear, QuantLinear

Array = np.ndarray[Any, Any]
BASE = "float"
KINDS = ("token", "group", BASE)


class Loss(NamedTuple):
    """One kind of activations: means over all positions, and their standard errors over windows."""

    kind: str
    nats: float
    nats_error: float
    divergence: float
    divergence_error: float
    agreement: float  # share of positions at which the likeliest token is that of float activations

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats)


# ---- variants of a model


def replaced(part: Any, change: Callable[[QuantLinear], QuantLinear]) -> Any:
    """Return a part of a network with its quantised layers changed; what has none is returned as it is."""
    if isinstance(part, QuantLinear):
        return change(part)
    if isinstance(part, tuple):
        items = [replaced(item, change) for item in part]
        if all(a is b for a, b in zip(items, part, strict=True)):
            return part
        return type(part)(*items) if hasattr(part, "_fields") else tuple(items)
    if not type(part).__module__.startswith(("tritium.nn", "tritium.models")):
        return part
    changed = {name: made for name, old in _fields(part) if (made := replaced(old, change)) is not old}
    if not changed:
        return part
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return dataclasses.replace(part, **changed)
    made = copy.copy(part)
    for name, new in changed.items():
        setattr(made, name, new)
    return made


def _fields(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, with or without slots."""
    names = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
    for name in dict.fromkeys([*names, *getattr(part, "__dict__", ())]):
        if hasattr(part, name):
            yield name, getattr(part, name)


def in_groups(layer: QuantLinear, group: int) -> QuantLinear:
    """Return a layer whose rows have their one scale, as f16, for each group of columns."""
    plain = layer.weight.plain()
    rows, columns = plain.shape
    scale = np.asarray(plain.scale.numpy(), np.float16).reshape(-1, 1)  # type: ignore[union-attr]
    spread = np.broadcast_to(scale, (rows, -(-columns // group)))
    norm = layer.norm if isinstance(layer, BitLinear) else None
    weight = quant.Quantized(plain.scheme, plain.data, tt.asarray(np.ascontiguousarray(spread)), None, group)
    return BitLinear(weight, layer.bias, norm=norm)


def variant(model: Model, kind: str, group: int) -> Model:
    """Return the model with one kind of activations in its ternary layers."""

    def change(layer: QuantLinear) -> QuantLinear:
        if not isinstance(layer, BitLinear):
            return layer
        grouped = layer if layer.weight.group or not group else in_groups(layer, group)
        return grouped.with_activations(kind)

    network = replaced(model.network, change)
    return Model(model.config, network, name=model.name, source=model._source, kv=model.kv, context=model.context)


def has_groups(model: Model) -> bool:
    """Return True if the model has ternary layers, and all of them have groups."""
    groups: list[int] = []

    def look(layer: QuantLinear) -> QuantLinear:
        if isinstance(layer, BitLinear):
            groups.append(layer.weight.group)
        return layer

    replaced(model.network, look)
    return bool(groups) and all(groups)


# ---- measuring


def log_softmax(logits: Any) -> Array:
    x = np.asarray(logits, np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


def windows(ids: Sequence[int], context: int) -> list[list[int]]:
    """Return the text in pieces of `context` tokens; a rest that is shorter is left out unless it is all there is."""
    pieces = [list(ids[at : at + context]) for at in range(0, len(ids) - context + 1, context)]
    return pieces or [list(ids)]


def read_together(models: dict[str, Model], pieces: list[list[int]], bos: int | None) -> Iterator[tuple[Array, ...]]:
    """Yield, of each position of windows of one length, (nats, divergence, agreement) as [kind, window]."""
    slots = list(range(len(pieces)))
    starts = [] if bos is None else [bos]
    tokens = np.array([starts + piece for piece in pieces])
    steps = tokens.shape[1] - 1  # the last token is only predicted
    sessions = {kind: model.session(slots=len(pieces), context=max(steps, 1)) for kind, model in models.items()}
    for i in range(steps):
        now, following = tokens[:, i].tolist(), tokens[:, i + 1]
        logs = {kind: log_softmax(session.step(slots, now)) for kind, session in sessions.items()}
        base = logs[BASE]
        nats = [-found[slots, following] for found in logs.values()]
        apart = [(np.exp(base) * (base - found)).sum(axis=-1) for found in logs.values()]
        agree = [found.argmax(axis=-1) == base.argmax(axis=-1) for found in logs.values()]
        yield np.array(nats), np.array(apart), np.array(agree)


def measure(models: dict[str, Model], ids: Sequence[int], context: int, slots: int, bos: int | None) -> list[Loss]:
    """Return the losses of all kinds on the same tokens."""
    pieces = windows(ids, context)
    sums: list[list[Array]] = [[], [], []]  # means of each window, [kind, window]
    for at in range(0, len(pieces), slots):
        parts = list(read_together(models, pieces[at : at + slots], bos))
        for i, means in enumerate(sums):
            means.append(np.mean([part[i] for part in parts], axis=0))
    nats, apart, agree = (np.concatenate(means, axis=1) for means in sums)
    error = lambda x: float(x.std(ddof=1) / math.sqrt(x.size)) if x.size > 1 else math.nan
    return [
        Loss(
            kind, float(nats[i].mean()), error(nats[i]), float(apart[i].mean()), error(apart[i]), float(agree[i].mean())
        )
        for i, kind in enumerate(models)
    ]


def report(losses: Sequence[Loss]) -> str:
    """Return the table that is printed."""
    lines = [f"{'activations':12}  {'perplexity':>22}  {'KL from float, nats':>24}  {'same first token':>16}"]
    for loss in losses:
        spread = loss.perplexity * loss.nats_error
        lines.append(
            f"{loss.kind:12}  {loss.perplexity:>12.4f} ± {spread:<7.3f}  {loss.divergence:>14.3e} ± {loss.divergence_error:<7.1e}"
            f"  {loss.agreement:>16.2%}"
        )
    return "\n".join(lines)


def write_results(path: Path, losses: Sequence[Loss], note: str) -> None:
    columns = [
        Column("perplexity", "", "exp of the mean negative log-likelihood of the next token"),
        Column("KL", "nats", "mean divergence of the next token's distribution from that of float activations"),
        Column("same token", "%", "positions whose likeliest token is that of float activations"),
    ]
    rows = []
    for loss in losses:
        spread = 1.96 * loss.perplexity * loss.nats_error
        figures = {
            "perplexity": value(loss.perplexity, _interval(loss.perplexity, spread)),
            "KL": value(loss.divergence, _interval(loss.divergence, 1.96 * loss.divergence_error)),
            "same token": value(100 * loss.agreement),
        }
        rows.append(Entry((loss.kind,), figures))
    write(path, "Losses of quantised activations", ("activations",), columns, rows, notes=[note])


def _interval(middle: float, spread: float) -> tuple[float, float] | None:
    return None if math.isnan(spread) else (middle - spread, middle + spread)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", help="a model file or folder; default: the small model in the package")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="a text in UTF-8")
    parser.add_argument("--group", type=int, default=0, help="columns of a group, for models without groups")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of the text that are read (4096)")
    parser.add_argument("--context", type=int, default=256, help="tokens of a window (256)")
    parser.add_argument("--slots", type=int, default=8, help="windows at a time (8)")
    parser.add_argument("--device", default="cpu", help="where to run (cpu)")
    add_option(parser)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> list[Loss]:
    args = arguments(words)
    model = tt.load(args.model, device=args.device)
    if not args.group and not has_groups(model):
        raise SystemExit(
            f"{model.name}: its ternary layers have no groups; give --group 128 to share scales among columns."
        )
    ids = model.tokenizer.encode(args.text.read_text(encoding="utf-8"), bos=False)[: args.tokens]
    if len(ids) < 2:
        raise SystemExit(f"{args.text}: a text of two tokens or more is needed, given {len(ids)}.")
    models = {kind: variant(model, kind, args.group) for kind in KINDS}
    losses = measure(models, ids, min(args.context, len(ids)), args.slots, model.tokenizer.bos)
    print(report(losses))
    if args.results:
        write_results(
            args.results, losses, f"{model.name}, {len(ids)} tokens, windows of {min(args.context, len(ids))}."
        )
    return losses


if __name__ == "__main__":
    main()

"""The model in the package as a workload: prefill of a prompt, and greedy decoding after one.

Other libraries have no such model, and are skipped. Decoding is checked by prefill: each token is the likeliest one after a fresh
prefill of all tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import tritium as tt
from tritium.perf.records.case import Case, Context, Made, Recipe, UnsupportedError, Work
from tritium.perf.work.libraries import OWN, library_of

if TYPE_CHECKING:
    from tritium.models.session import Session

PROMPT = tuple(b"In the beginning")


def refusal(name: str, shape: tuple[int, ...], dtype: str) -> str:
    """Return why the model cannot do this, "" if it can. Shapes are (tokens,)."""
    if dtype != "f32":
        return f"{name} takes tokens, not {dtype}"
    if len(shape) != 1 or shape[0] < 1:
        return f"{name} takes (tokens,), given {shape}"
    return ""


def batched(name: str, batch: int, shape: tuple[int, ...]) -> None:
    """Return None: the model runs one sequence."""
    return


def cases(
    name: str, shapes: Sequence[Sequence[int]], *, devices: Sequence[str] = ("cpu",), threads: int | None = None, seed: int = 0
) -> list[Case]:  # fmt: skip
    """Return a case for each count of tokens."""
    result = []
    for (tokens,) in (shape for shape in map(tuple, shapes) if not refusal(name, shape, "f32")):
        for device in devices:
            arguments = {"workload": name, "tokens": tokens, "seed": seed, "threads": threads, "device": device}
            label = f"{name} {tokens}" + (f" on {device}" if device != "cpu" else "")
            context = Context(name, (tokens,), "f32", device, batch=1, sequence_length=tokens, threads=threads or 1)
            recipe = Recipe("tritium.perf.work.whole_model:workload", arguments)
            result.append(Case(label, recipe, context, Work(items=tokens, item="token")))
    return result


def workload(
    candidate: str, *, workload: str, tokens: int, seed: int = 0, threads: int | None = None, device: str = "cpu"
) -> Made:
    """Make one workload for one candidate."""
    library = library_of(candidate, device, threads)
    if library.name not in OWN:
        raise UnsupportedError(f"{library.name} has no whole model; tritium bench model compares models.")
    model = tt.load(device=library.device)
    needed = tokens + 1 if workload == "model_prefill" else len(PROMPT) + tokens
    if needed > model.config.context:
        raise UnsupportedError(
            f"{workload} of {tokens} tokens needs a context of {needed}; the model has {model.config.context}."
        )
    session = model.session(context=needed)
    prompt = np.random.default_rng(seed).integers(0, model.config.vocab_size, tokens).tolist()
    facts = {"model": model.name, "bytes of weights": model.nbytes}
    if workload == "model_prefill":
        return Made(
            lambda: prefill(session, prompt),
            answer=np.asarray,
            expected=lambda: stepwise(session, prompt),
            tolerance=1e-5,
            facts=facts,
        )
    return Made(
        lambda: decode(session, tokens), answer=np.asarray, expected=lambda: by_prefill(session, tokens), facts=facts
    )


def prefill(session: Session, prompt: Sequence[int]) -> Any:
    """Return the logits after a prompt that is read at once."""
    session.truncate(0, 0)
    return session.extend(0, prompt)


def stepwise(session: Session, prompt: Sequence[int]) -> Any:
    """Return the logits after a prompt that is read token by token."""
    session.truncate(0, 0)
    for token in prompt:
        logits = session.extend(0, [token])
    return logits


def decode(session: Session, tokens: int) -> list[int]:
    """Return the likeliest tokens after the prompt, decoded one by one."""
    result = [int(prefill(session, PROMPT).argmax())]
    while len(result) < tokens:
        result += session.pick([0], result[-1:], ahead=len(result) + 1 < tokens).ids
    return result


def by_prefill(session: Session, tokens: int) -> list[int]:
    """Return the same tokens, each by a prefill of everything before it."""
    result: list[int] = []
    for _ in range(tokens):
        result.append(int(prefill(session, [*PROMPT, *result]).argmax()))
    return result

"""Embeddings: a text as one vector, pooled from the hidden states of its tokens after the final norm.

How a model's texts are pooled, and the prompts it was trained with, are read from its files; where they say nothing, the last
token is taken. A text has the same bits alone and in a batch: padding is never read.

    vectors = model.embed(["In the beginning", "The end"])      # f32 [2, hidden_size], of length 1
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from tritium.errors import ArgumentError, ContextError, FormatError, nearest
from tritium.escape import visible
from tritium.io import ModelFile, gguf
from tritium.io.model import pooling as files
from tritium.io.model.pooling import MODULES, MOST_BYTES, PROMPTS
from tritium.io.reader import contained, fault, read_json, read_side
from tritium.models.session import BUCKETS, TOGETHER, Session
from tritium.models.text.tokenizer import Tokenizer

POOLINGS = ("last", "mean", "cls")
RECIPE = "embedding.json"  # how texts are embedded, in a file of our own
KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")
MOST_PROMPTS, MOST_PROMPT = 256, 1 << 16
TOKENS = 256  # of all texts in one program on a CPU, where more of them are not faster

Array = np.ndarray[Any, np.dtype[np.float32]]
Ids = list[int]


@dataclass(frozen=True)
class Recipe:
    """The way a model embeds texts: pooling and prompts, and the file they are from."""

    pooling: str = "last"
    source: str = "no file says how; the last token is taken"
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None  # the name of one of them
    pools_prompt: bool = True  # whether a mean includes the tokens of the prompt

    def as_json(self) -> bytes:
        """Return the recipe as prepacked files keep it."""
        return json.dumps(asdict(self)).encode()

    def prompt(self, text: str | None, name: str | None) -> str:
        """Return what is put before each text: a text, one of the model's prompts by name, or its default."""
        if text is not None and name is not None:
            raise ArgumentError("embed: prompt and prompt_name were both given; one of them is needed.")
        name = self.default_prompt if text is None and name is None else name
        if name is None:
            return text or ""
        if name not in self.prompts:
            known = (
                f"its prompts are {', '.join(map(visible, sorted(self.prompts)))}" if self.prompts else "it has none"
            )
            raise ArgumentError(
                f"embed: the model has no prompt {visible(name)!r}; {known}.{nearest(name, self.prompts)} Give the text itself as prompt=."
            )
        return self.prompts[name]


# ---- what the files say


def read_recipe(model: ModelFile) -> Recipe:
    """Return the recipe in the files of a model: sentence-transformers' beside safetensors, or the keys of GGUF."""
    if model.gguf is not None:
        return from_gguf(model.metadata)
    return from_folder(model.folder)


def from_gguf(metadata: Mapping[str, Any]) -> Recipe:
    """Return the recipe in the keys of a GGUF file."""
    pooling, key = files.of_gguf(metadata)
    return Recipe(pooling, f"{visible(key)} is {gguf.scalar(metadata, key)}") if pooling else Recipe()


def from_folder(folder: Path) -> Recipe:
    """Return the recipe of sentence-transformers' files in a model folder."""
    _check_modules(folder)
    values: dict[str, Any] = {}
    if (folder / files.FOLDER / "config.json").is_file():
        config = read_json(contained(folder / files.FOLDER, "config.json"), MOST_BYTES)
        source, pools_prompt = f"{files.FOLDER}/config.json says so", config.get("include_prompt") is not False
        values = {"pooling": files.of_config(config), "source": source, "pools_prompt": pools_prompt}
    if (folder / PROMPTS).is_file():
        side = read_json(contained(folder, PROMPTS), MOST_BYTES)
        values |= _prompts(side.get("prompts"), side.get("default_prompt_name"))
    return Recipe(**values)


def from_json(raw: bytes) -> Recipe:
    """Read what `Recipe.as_json` returned."""
    try:
        stored = json.loads(raw) if len(raw) <= 2 * MOST_BYTES else None
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict) or set(stored) != {f.name for f in fields(Recipe)}:
        raise fault(RECIPE, "something else", "the recipe of embeddings that this format keeps there")
    texts = _prompts(stored["prompts"], stored["default_prompt"])
    if stored["pooling"] not in POOLINGS or not isinstance(stored["pools_prompt"], bool):
        raise fault(RECIPE, f"pooling {visible(repr(stored['pooling']))}", f"one of {', '.join(POOLINGS)}")
    return Recipe(stored["pooling"], visible(str(stored["source"])), pools_prompt=stored["pools_prompt"], **texts)


def _check_modules(folder: Path) -> None:
    """Raise for a module of sentence-transformers that would change the vectors and is not computed here."""
    if not (folder / MODULES).is_file():
        return
    raw = read_side(contained(folder, MODULES), MOST_BYTES, "This is no list of modules.")
    try:
        modules = json.loads(bytes(raw))
    except (ValueError, RecursionError):
        modules = None
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise fault(MODULES, "no list of objects", "the modules of sentence-transformers")
    for module in modules:
        kind = str(module.get("type")).rpartition(".")[2]
        if kind not in KNOWN_MODULES:
            raise fault(
                f"{MODULES}, type", visible(kind), ", ".join(KNOWN_MODULES),
                "Its vectors would be wrong without it, and it is not computed here.",
            )  # fmt: skip


def _prompts(prompts: Any, default: Any) -> dict[str, Any]:
    prompts = {} if prompts is None else prompts
    fits = isinstance(prompts, dict) and len(prompts) <= MOST_PROMPTS
    if not fits or not all(isinstance(text, str) and len(text) <= MOST_PROMPT for text in prompts.values()):
        raise fault(f"{PROMPTS}, prompts", "something else", f"at most {MOST_PROMPTS} texts by name")
    if default is not None and default not in prompts:
        raise fault(f"{PROMPTS}, default_prompt_name", visible(repr(default)), "the name of one of its prompts")
    return {"prompts": prompts, "default_prompt": default}


# ---- texts to vectors


def embed(
    session: Callable[..., Session], tokenizer: Tokenizer, texts: str | Sequence[str], recipe: Recipe, *,
    pooling: str | None = None, normalize: bool = True, batch: int = 16, prompt: str | None = None,
    prompt_name: str | None = None, truncate: bool = False, context: int, hidden_size: int,
) -> Array:  # fmt: skip
    """Return the vectors of texts, f32 [n, hidden_size]; of one text, [hidden_size]. `session(slots=…, context=…)` opens a cache."""
    pooling = recipe.pooling if pooling is None else pooling
    if pooling not in POOLINGS:
        raise ArgumentError(f"embed: pooling {visible(str(pooling))!r} is unknown; use {', '.join(POOLINGS)}.")
    if not 1 <= batch <= TOGETHER[-1]:
        raise ArgumentError(f"embed: batch must be 1 to {TOGETHER[-1]} texts, given {batch}.")
    listed = [texts] if isinstance(texts, str) else list(texts)
    before = recipe.prompt(prompt, prompt_name)
    ids = [tokens_of(text, tokenizer, before, context, truncate, i) for i, text in enumerate(listed)]
    skipped = 0 if recipe.pools_prompt or pooling != "mean" or not before else len(tokenizer.encode(before))
    vectors = np.empty((len(ids), hidden_size), np.float32)
    for i, vector in _pooled(session, ids, pooling, batch, context, skipped):
        vectors[i] = _unit(vector) if normalize else vector
    return vectors[0] if isinstance(texts, str) else vectors


def tokens_of(text: Any, tokenizer: Tokenizer, prompt: str, context: int, truncate: bool, number: int) -> Ids:
    """Return the tokens of a text with its prompt and the tokens that end it; raise where there are none, or too many."""
    if not isinstance(text, str):
        raise ArgumentError(f"embed: text {number} must be a str, given {type(text).__name__}.")
    if not text:
        raise ArgumentError(f"embed: text {number} is empty; a text of at least one character is needed.")
    suffix = list(tokenizer.suffix)
    ids = tokenizer.encode(prompt + text)
    if suffix and ids[-len(suffix) :] == suffix:
        ids = ids[: -len(suffix)]
    room = context - len(suffix)
    if len(ids) > room and not truncate:
        raise ContextError(
            f"embed: text {number} has {len(ids) + len(suffix)} tokens; the context holds {context}. Give a shorter text, or cut it "
            "with truncate=True (--truncate)."
        )
    ids = ids[:room] + suffix
    if not ids:
        raise ArgumentError(f"embed: text {number} has no tokens in this model's vocabulary.")
    return ids


def _pooled(
    session: Callable[..., Session], ids: Sequence[Ids], pooling: str, batch: int, context: int, skipped: int
) -> Any:
    """Yield (number, vector) of each text: short ones of like length in one program, a long one in pieces."""
    piece = min(BUCKETS[-1], context)
    short: dict[int, list[int]] = {}
    for i, tokens in enumerate(ids):
        if len(tokens) <= piece:
            short.setdefault(next(b for b in BUCKETS if b >= len(tokens)), []).append(i)
    if short:
        together = session(slots=batch, context=piece)
        on_cpu = together.device.type == "cpu"
        for size, numbers in sorted(short.items()):
            count = min(batch, max(TOKENS // size, 1)) if on_cpu else batch
            for start in range(0, len(numbers), count):
                part = numbers[start : start + count]
                states = _run(together, [ids[i] for i in part], pooling)
                yield from ((i, _pool([s], pooling, skipped)) for i, s in zip(part, states, strict=True))
    long = [i for i, tokens in enumerate(ids) if len(tokens) > piece]
    if long:
        alone = session(slots=1, context=context)
        for i in long:
            cuts = [ids[i][start : start + piece] for start in range(0, len(ids[i]), piece)]
            alone.truncate(0, 0)
            yield i, _pool([alone.hidden([0], [cut], last=pooling == "last")[0] for cut in cuts], pooling, skipped)


def _run(session: Session, ids: list[Ids], pooling: str) -> list[Array]:
    slots = list(range(len(ids)))
    for slot in slots:
        session.truncate(slot, 0)
    return session.hidden(slots, ids, last=pooling == "last")


def _pool(pieces: list[Array], pooling: str, skipped: int) -> Array:
    """Return one vector of the hidden states of a text, which come in pieces."""
    if pooling == "last":
        return pieces[-1][-1]
    if pooling == "cls":
        return pieces[0][0]
    total, count = np.zeros(pieces[0].shape[1]), 0
    for states in pieces:
        rows = states[min(skipped, len(states)) :]
        skipped -= len(states) - len(rows)
        total, count = total + rows.astype(np.float64).sum(axis=0), count + len(rows)
    if not count:
        raise ArgumentError("embed: only the prompt has tokens; the model leaves them out of the mean.")
    return (total / count).astype(np.float32)


def _unit(vector: Array) -> Array:
    """Return a vector of length 1; zeros stay zeros."""
    wide = vector.astype(np.float64)
    length = np.sqrt((wide * wide).sum())
    if not np.isfinite(length):
        raise FormatError("embed: a vector is not finite; the model's weights are at fault.")
    return (wide / length).astype(np.float32) if length else vector

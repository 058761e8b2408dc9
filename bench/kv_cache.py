"""Measures KV caches of integers: bits a byte of a text beside f16, bytes of a token, and seconds of a decode step.

The text is a file (--text), or texts that the model itself writes at temperature 1: of those its own bits a byte are the least possible,
so that nothing but the loss is added. Differences are of the same windows; the error is that of their mean.

    python bench/kv_cache.py --windows 256
    python bench/kv_cache.py model.gguf --text book.txt
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

import tritium as tt
from tritium.models.load import Model

Array = np.ndarray[Any, np.dtype[Any]]
KINDS = ("f16", "int8", "int8-int4", "int4")


def written(model: Model, windows: int, length: int, seed: int) -> list[list[int]]:
    """Return texts that the model writes, each after one token."""
    draw = np.random.default_rng(seed)
    firsts = [[int(t)] for t in draw.integers(0, model.config.vocab_size, windows)]
    made = model.generate(firsts, max_tokens=length - 1, temperature=1.0, seed=seed, ignore_eos=True)
    return [[*first, *g.tokens] for first, g in zip(firsts, made, strict=True)]


def bits(model: Model, texts: list[list[int]]) -> Array:
    """Return the bits a byte of every text."""
    session, tokenizer = model.session(), model.tokenizer
    found = []
    for ids in texts:
        session.truncate(0, 0)
        session.extend(0, ids[:1])
        nbytes = sum(len(tokenizer.bytes_of(t)) for t in ids[1:])
        found.append(-float(session.score(0, ids[1:]).sum()) / math.log(2) / max(nbytes, 1))
    return np.array(found)


def step_s(model: Model, length: int) -> float:
    """Return the least seconds of a decode step after so many tokens."""
    session = model.session()
    session.extend(0, [1] * (length - 20))
    times = []
    for _ in range(15):
        start = time.perf_counter()
        session.step([0], [1])
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model file; default: the small model in the package")
    parser.add_argument("--text", type=Path, help="a text to score instead of the model's own")
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a window")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the bits of every window here")
    a = parser.parse_args()
    plain = tt.load(a.model)
    length = min(a.tokens, plain.context)
    if a.text:
        ids = plain.tokenizer.encode(a.text.read_text(encoding="utf-8"), bos=False)
        texts = [ids[i : i + length] for i in range(0, min(len(ids), a.windows * length) - length + 1, length)]
    else:
        texts = written(plain, a.windows, length, a.seed)
    result: dict[str, Any] = {}
    for kv in KINDS:
        model = tt.load(a.model, kv=kv)
        found = bits(model, texts)
        base = np.array(result["f16"]["bits"]) if result else found
        more = (found - base) / base.mean()
        result[kv] = {
            "bits": found.tolist(), "mean": float(found.mean()), "more": float(more.mean()),
            "error": float(more.std(ddof=1) / math.sqrt(len(texts))), "token_bytes": model.session().memory.token_bytes,
            "step_s": step_s(model, length),
        }  # fmt: skip
        r = result[kv]
        print(
            f"{kv:10} {r['mean']:.4f} bits a byte, {100 * r['more']:+.2f} ± {100 * r['error']:.2f} %; {r['token_bytes']} bytes a token; "
            f"step {1e3 * r['step_s']:.2f} ms",
            flush=True,
        )
    if a.json:
        a.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

"""Decode with the output head as it is, as int8, and certified (f16 tokens from an int8 copy), in one process and interleaved.

    python bench/make_model.py model.gguf --layers 8
    python bench/head.py model.gguf --tokens 16 --rounds 9 --threads 2

Prints tokens/s of each (median, and the range of the middle half of the rounds), ratios to int8 of the same round, how often bounds were
enough, and whether the certified tokens are those of the float head.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import tritium as tt
from tritium.machine.facts import processor
from tritium.models.load import Model
from tritium.models.sampling import Sampler

SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature 0.8": {"temperature": 0.8},
    "top-k 40": {"temperature": 0.8, "top_k": 40},
    "min-p 0.05": {"temperature": 0.8, "min_p": 0.05},
}
PROMPT = tuple(range(100, 132))


def decode(model: Model, session: Any, sampler: Sampler, tokens: int) -> tuple[float, tuple[int, ...]]:
    """Return the decode rate of one text, a token a step, and its tokens. No token is guessed: how many are accepted depends on the text."""
    made = model.generate(
        list(PROMPT), session=session, sampler=sampler, max_tokens=tokens + 1, ignore_eos=True, speculate=False
    )
    return made.tokens_per_s, made.tokens


def measure(models: dict[str, Model], options: dict[str, Any], tokens: int, rounds: int) -> dict[str, Any]:
    """Return rates and tokens of all heads, round by round."""
    sessions = {name: m.session(context=len(PROMPT) + tokens + 2) for name, m in models.items()}
    rates: dict[str, list[float]] = {name: [] for name in models}
    texts: dict[str, list[Any]] = {name: [] for name in models}
    for i in range(rounds + 1):
        names = list(models) if i % 2 else list(models)[::-1]
        for name in names:
            rate, text = decode(models[name], sessions[name], Sampler(seed=i, **options), tokens)
            if i:  # the first compiles
                rates[name].append(rate)
            texts[name].append(text)
    ratios = {n: [a / b for a, b in zip(r, rates["int8"], strict=True)] for n, r in rates.items()}
    equal = sum(a == b for a, b in zip(texts["certified"], texts["as stored"], strict=True))
    return {"rates": rates, "ratios": ratios, "equal_texts": equal, "texts": rounds + 1}


def spread(samples: Sequence[float]) -> str:
    """Return the median and the range of the middle half."""
    low, _, high = quantiles(samples, n=4)
    return f"{median(samples):7.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--sampler", action="append", choices=SAMPLERS)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.threads:
        tt.set_num_threads(args.threads)
    models = {}
    for name, options in (
        ("as stored", {"certified": False}),
        ("int8", {"head": "int8"}),
        ("certified", {"certified": True}),
    ):
        begun = perf_counter()
        models[name] = tt.load(args.model, **options)
        print(f"{name}: loaded in {perf_counter() - begun:.1f} s")
    print(
        f"{processor()}, {tt.get_num_threads()} threads, {platform.system()}, {args.rounds} rounds of {args.tokens} tokens\n"
    )
    results = {}
    for sampler in args.sampler or SAMPLERS:
        result = results[sampler] = measure(models, SAMPLERS[sampler], args.tokens, args.rounds)
        for name in models:
            print(
                f"{sampler:<16} {name:<10} {spread(result['rates'][name])} tokens/s, {spread(result['ratios'][name])} x int8"
            )
        print(
            f"{sampler:<16} {result['equal_texts']} of {result['texts']} texts equal; {models['certified'].head_statistics}\n",
            flush=True,
        )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"machine": processor(), "threads": tt.get_num_threads(), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()

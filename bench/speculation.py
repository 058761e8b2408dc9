"""Measures speculative decoding: tokens a second with and without guesses, interleaved, and whether the tokens are the same.

Three kinds of text: "copy" goes on with a passage that the prompt has already, "plain" with one that it has not, and "sampled" draws
tokens at temperature 1. A model of random weights copies nothing by itself, so a processor may lead it: it lifts the logit of the token
that follows in a text (--lead), at the cost of any other processor, with and without guesses alike.

    python bench/speculation.py                                        the small model in the package
    python bench/make_model.py mid.gguf --layers 16 --hidden 1024 --intermediate 2816 --heads 16 --kv-heads 4 --head-dim 64 --vocab 32000
    python bench/speculation.py mid.gguf --lead
    python bench/speculation.py --draft draft.gguf --text held-out.txt  how many guesses are accepted, whatever they cost

With --text every guess is verified: the prompts are 120 bytes each, cut from the file at equal distances.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tritium as tt
from tritium.models.load import Model
from tritium.models.sampling import Context, Sampler
from tritium.models.speculation.control import Costs

Array = np.ndarray[Any, np.dtype[Any]]


class Lead:
    """A processor that makes the tokens of a text the likeliest, one after another."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def __call__(self, logits: Array, context: Context) -> Array:
        led = logits.copy()
        led[self.tokens[(len(context.tokens) - context.prompt) % len(self.tokens)]] += 1000
        return led


def cases(model: Model, count: int, lead: bool) -> dict[str, tuple[list[int], dict[str, Any]]]:
    """Return for each kind of text a prompt, and how tokens are picked."""
    draw = np.random.default_rng(0)
    vocab = model.config.vocab_size - 8

    def words(n: int) -> list[int]:
        return draw.integers(0, vocab, n).tolist()

    if lead:
        passage, other = words(count), words(count)
        prompt = passage + words(8) + passage[:8]
        led = {"copy": passage[8:] + words(8), "plain": other}
        kinds = {kind: (prompt, {"processors": (Lead(tokens),)}) for kind, tokens in led.items()}
    else:
        text = model.tokenizer.encode(
            "And it came to pass in those days, that there went out a decree from Caesar. " * 3
        )
        plain = model.tokenizer.encode("In the beginning God created")
        kinds = {"copy": (text[: model.context // 2], {}), "plain": (plain, {})}
    return kinds | {"sampled": (kinds["plain"][0], {"temperature": 1.0, "seed": 1})}


def measure(model: Model, count: int, rounds: int, lead: bool, draft: Model | None) -> dict[str, Any]:
    """Return the decode rates of every round, and how many guesses were right."""
    result: dict[str, Any] = {}
    session = model.session(context=min(model.context, 3 * count + 64))
    for kind, (prompt, options) in cases(model, count, lead).items():
        rates: dict[bool, list[float]] = {True: [], False: []}
        texts = set()
        last = None
        for i in range(rounds + 2):  # the first ones compile
            for on in (True, False) if i % 2 else (False, True):
                more = {"draft": draft} if on and draft is not None else {}
                made = model.generate(
                    prompt,
                    session=session,
                    max_tokens=count,
                    ignore_eos=True,
                    speculate=on,
                    sampler=Sampler(**options),
                    **more,
                )
                texts.add(made.tokens)
                last = made if on else last
                if i > 1:
                    rates[on].append(made.tokens_per_s)
        assert last is not None
        ratios = [a / b for a, b in zip(rates[True], rates[False], strict=True)]
        result[kind] = {
            "on": rates[True], "off": rates[False], "ratio": median(ratios), "best": max(rates[True]) / max(rates[False]),
            "same": len(texts) == 1, "guessed": last.guessed, "accepted": last.accepted,
        }  # fmt: skip
    return result | {"curve": session.costs.curve}


class Free(Costs):
    """Costs by which more tokens in a step cost nothing, so that every guess is verified."""

    def known(self, size: int) -> bool:
        return True

    def cost(self, size: int) -> float:
        return 1.0


def accepted(model: Model, draft: Model | None, text: bytes, tokens: int, prompts: int) -> dict[float, tuple[int, int]]:
    """Return for each temperature how many guesses were right and how many were verified, summed over prompts."""
    result = {}
    for temperature in (0.0, 0.7, 1.0):
        session = model.session()
        session.costs = Free(session.costs.sizes)
        right = verified = 0
        for i in range(prompts):
            begin = i * (len(text) - 120) // prompts
            made = model.generate(
                text[begin : begin + 120].decode("utf-8", "replace"), session=session, max_tokens=tokens, ignore_eos=True,
                temperature=temperature, seed=i, draft=draft, speculate=True,
            )  # fmt: skip
            right, verified = right + made.accepted, verified + made.guessed
        result[temperature] = right, verified
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model file; default: the small model in the package")
    parser.add_argument("--draft", help="a smaller model that guesses")
    parser.add_argument("--lead", action="store_true", help="lead the model along a text")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write every rate here")
    parser.add_argument(
        "--text", type=Path, help="verify every guess after prompts of this file, and print the share accepted"
    )
    parser.add_argument("--prompts", type=int, default=12, help="with --text: how many")
    a = parser.parse_args()
    if a.text:
        shares = accepted(
            tt.load(a.model), tt.load(a.draft) if a.draft else None, a.text.read_bytes(), a.tokens, a.prompts
        )
        for temperature, (right, verified) in shares.items():
            share, picked = right / max(verified, 1), a.prompts * a.tokens
            steps = f"{picked / (picked - right):.2f} tokens a step"
            print(f"temperature {temperature:g}: {right} of {verified} guesses accepted ({share:.1%}), {steps}")
        return
    result = measure(tt.load(a.model), a.tokens, a.rounds, a.lead, tt.load(a.draft) if a.draft else None)
    if a.json:
        a.json.write_text(json.dumps(result, indent=1))
    curve = result.pop("curve")
    print("step: " + ", ".join(f"{rows} tokens {1e3 * seconds:.2f} ms" for rows, seconds in curve.items()))
    for kind, r in result.items():
        print(
            f"{kind:8} {median(r['off']):8.1f} -> {median(r['on']):8.1f} tokens/s, {r['ratio']:.2f}x (fastest rounds {r['best']:.2f}x); "
            f"{r['accepted']} of {r['guessed']} guesses right; the same tokens: {r['same']}"
        )


if __name__ == "__main__":
    main()

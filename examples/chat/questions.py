"""Makes questions of four choices from WordNet's definitions.

    apt-get install wordnet-base                                                     # /usr/share/wordnet; its licence is free
    python examples/chat/questions.py SmolLM2-135M-Instruct.Q4_1.gguf --out questions.json

A question gives the definition of a frequent noun, verb or adjective in its first sense; the other three words are of the same kind.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tritium as tt

KINDS = {"noun": "noun", "verb": "verb", "adj": "adjective"}
FREQUENT = 9000  # tokens of the vocabulary among which words are looked for: the earlier a word was merged, the more frequent it is


def senses(folder: Path, kind: str) -> dict[str, str]:
    """Return the definition of each word of a kind in its first sense."""
    with (folder / f"data.{kind}").open(encoding="utf-8") as file:
        glosses = {line[:8]: line.partition("| ")[2].split(";")[0].strip() for line in file if line[0] != " "}
    out = {}
    with (folder / f"index.{kind}").open(encoding="utf-8") as file:
        for line in (line.split() for line in file if line[0] != " "):
            senses_count, pointers = int(line[2]), int(line[3])
            out[line[0]] = glosses[line[4 + pointers + 2]] if senses_count else ""
    return out


def make(folder: Path, words: Iterable[str], count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return questions about words of a list: a definition, four words, and which of them it defines."""
    draw, out, listed = random.Random(seed), [], list(words)
    for kind, name in KINDS.items():
        known = senses(folder, kind)
        usable = [w for w in listed if w in known and 3 <= len(known[w].split()) <= 14 and "(" not in known[w]]
        usable = [w for w in usable if w[:4] not in known[w]]
        for word in draw.sample(usable, min(len(usable), math.ceil(count / len(KINDS)))):
            others = draw.sample([w for w in usable if w[:3] != word[:3] and known[w] != known[word]], 3)
            choices = draw.sample([word, *others], 4)
            question = f'Question: Which {name} means "{known[word]}"?\nAnswer:'
            out.append({"question": question, "choices": choices, "answer": choices.index(word)})
    draw.shuffle(out)
    return out[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", type=Path, help="a GGUF file whose vocabulary has the words")
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--count", type=int, default=900)
    parser.add_argument("--out", type=Path, default=Path("questions.json"))
    args = parser.parse_args()
    tokens = list(tt.io.open(args.words).metadata["tokenizer.ggml.tokens"])[:FREQUENT]
    words = [t[1:] for t in tokens if re.fullmatch("Ġ[a-z]{4,}", t)]
    questions = make(args.wordnet, words, args.count)
    args.out.write_text(json.dumps(questions, indent=0) + "\n", encoding="utf-8")
    print(json.dumps({"questions": len(questions)}))


if __name__ == "__main__":
    main()

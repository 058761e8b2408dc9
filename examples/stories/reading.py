"""Reads texts out of the sampler's log, and judges them. Needs no GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

END = 2  # <|im_end|>
NUMBER = 49152  # in the log: no token, from here on two numbers of 13 bits, the index of a text's prompt and candidate
FORCED, CUT = 65535, 65534  # in the log: a token of the prompt; a text that reached the longest length
META = re.compile(
    r"\b(?:this|the|our|my|short) (?:story|tale|fable|fairy tale)\b|as an ai|chapter|moral of|\btitle\b|"
    r"story about|in a story|cautionary|example of what|all of us|:\n|\n[-*]|once upon a time.{40,}once upon a time",
    re.I | re.S,
)
STOCK = re.compile(
    r"testament|reminder|remind|resilien|tapestry|bustling|nestled|legacy|symbol of|heart of|gentle breeze|journey|change the course|wonder of|"
    r"a sense of|the power of|the importance of|shimmer|mystical|ancient|couldn't help but|whisper",
    re.I,
)


def texts_of(
    log: np.ndarray[Any, Any], likely: np.ndarray[Any, Any], start: int = 0
) -> Iterator[tuple[int, np.ndarray[Any, Any], float, bool]]:
    """Yield (prompt, tokens, mean log-likelihood, ended) of every whole text of a row's log from a prompt's start on."""
    for end in np.flatnonzero((log == END) | (log == CUT)).tolist():
        if end < start:  # of a text that was read before
            continue
        part = log[start:end]
        first = 2 + int(np.argmax(part[2:] != FORCED)) if (part[2:] != FORCED).any() else end - start
        yield (
            int(part[0]) - NUMBER + (int(part[1]) - NUMBER << 13), part[first:],
            float(likely[start + first : end + 1].astype(np.float32).mean()), bool(log[end] == END),
        )  # fmt: skip
        start = end + 1


def clean(text: str) -> str:
    """Return a text in plain characters, a line for each paragraph."""
    for old, new in (("“", '"'), ("”", '"'), ("’", "'"), ("–", "-")):
        text = text.replace(old, new)
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def fault_of(text: str, ended: bool) -> str:
    """Return why a text is dropped, or an empty string."""
    words = re.findall(r"[a-z']+", text.lower())
    groups = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
    sentences = [s.strip() for s in re.split(r"(?<=[.!?])\s+", text) if len(s) > 20]
    if not ended:
        return "does not end"
    if len(words) < 50:
        return "is short"
    if not text.isascii() or META.search(text):
        return "speaks of itself or holds a list"
    if not text.endswith((".", "!", '."', '!"')) or text.count('"') % 2:
        return "ends or quotes badly"
    if len(set(groups)) < 0.93 * len(groups) or len(set(sentences)) < len(sentences):
        return "repeats"
    if max(Counter(w for w in words if len(w) > 4).values(), default=0) > 0.07 * len(words) + 4:
        return "repeats a word"
    return ""


def value_of(text: str, likelihood: float) -> float:
    """Return how good a text is beside the others of its prompt: likelihood, different pairs of words, few stock phrases."""
    words = re.findall(r"[a-z']+", text.lower())
    return (
        likelihood
        + 2 * len({tuple(words[i : i + 2]) for i in range(len(words) - 1)}) / max(len(words) - 1, 1)
        - 0.1 * len(STOCK.findall(text))
    )

"""Reads texts out of the sampler's log, and judges the teacher's sentences in them. Needs no GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

END = 2  # <|im_end|>
NUMBER = 49152  # in the log: no token, from here on two numbers of 13 bits, the index of a text's script
GAP = 100_000  # in a script: the teacher writes a sentence
FORCED, CUT = 65535, 65534  # in the log: a token of the question; a text that reached the longest length
STOCK = re.compile(
    r"testament|reminder|resilien|tapestry|bustling|nestled|legacy|symbol|heart of|journey|a sense of|the power|importance|shimmer|mystical|"
    r"couldn't help but|special|kind of|sort of|not sure|going on|no idea|story|stories|character|reader|chapter|moral|title|"
    r"magical|magic|potion|spell|world|universe|soul|reflection|human|kill|dead|\bdied?\b|death|blood|gun\b|shot|knife|drunk|naked|corpse|flesh|"
    r"something that|anything else|what to do|very much|do something|thing is|the one who|dollar|phone|computer|car\b|cars\b",
    re.I,
)
SAYS = re.compile(
    r"\b(?:said|asked|cried|called|thought|replied|answered|whispered|laughed|shouted|exclaimed|added|told)\b"
)
KNOWN = set(
    "sun sky day next night morning evening ground door house window table floor air wind rain snow water river grass trees tree forest "
    "garden road village others other same first last end way whole time moon stars "
    "light dark fire sea hill path old little big two three best right "
    "people children most very day's middle top side hand beach market town kitchen bed room birds flowers warm cold".split()
)  # what a sentence may call "the" though the text has not named it
PRESENT = re.compile(r"\b(?:is|are|has|have|am|will|can|do|does|you|we|my|your|our)\b")


def texts_of(
    log: np.ndarray[Any, Any], likely: np.ndarray[Any, Any], start: int = 0
) -> Iterator[tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any], bool]]:
    """Yield (script, tokens, log-likelihoods, ended) of every whole text of a row's log from a question's start on.

    The log-likelihood of a token that the script gave is 1."""
    for end in np.flatnonzero((log == END) | (log == CUT)).tolist():
        if end < start:  # of a text that was read before
            continue
        part = log[start:end]
        first = 2 + int(np.argmax(part[2:] != FORCED)) if (part[2:] != FORCED).any() else end - start
        number = int(part[0]) - NUMBER + (int(part[1]) - NUMBER << 13)
        yield number, part[first:], likely[start + first : end], bool(log[end] == END)
        start = end + 1


def segments_of(ids: np.ndarray[Any, Any], likely: np.ndarray[Any, Any]) -> list[tuple[list[int], float]]:
    """Return the runs of given tokens, with likelihood 1, and of the teacher's, with their mean log-likelihood."""
    given = likely > 0
    cuts = [0, *(np.flatnonzero(given[1:] != given[:-1]) + 1).tolist(), len(ids)]
    return [
        (ids[a:b].astype(np.int64).tolist(), float(likely[a:b].astype(np.float32).mean()))
        for a, b in pairwise(cuts)
        if b > a
    ]


def fault_of(sentence: str, before: str, likelihood: float, names: set[str], pronouns: set[str]) -> str:
    """Return why a sentence of the teacher's is cut out of a text, or an empty string."""
    words = re.findall(r"[A-Za-z']+", sentence)
    lower = [w.lower() for w in words]
    spoken = re.findall(r'"[^"]*"', sentence)
    outside = re.sub(r'"[^"]*"', "", sentence)
    if not 4 <= len(words) <= 22:
        return "is short or long"
    if likelihood < -1.25:
        return "is unlikely"
    if (
        not sentence.isascii()
        or sentence.count('"') % 2
        or ";" in sentence
        or ":" in sentence
        or STOCK.search(sentence)
    ):
        return "has a stock phrase or odd signs"
    if (spoken and not SAYS.search(outside)) or len(spoken) > 2:
        return "does not say who speaks"
    if PRESENT.search(outside):
        return "is not in the past tense"
    if any(
        w[0].isupper() and w not in names and not w.startswith("I")
        for w in re.findall(r"(?<=[a-z,] )[A-Za-z]+", sentence)
    ):
        return "has another name"
    if (
        {"he", "she"} & set(lower) - pronouns
        or ({"him", "his"} & set(lower) and "he" not in pronouns)
        or ("her" in lower and "she" not in pronouns)
    ):
        return "has another pronoun"
    old = re.findall(r"[a-z']+", before.lower())
    if set(re.findall(r"\bthe ([a-z']+)", sentence.lower())) - KNOWN - set(old):
        return "speaks of something new as known"
    seen = {tuple(old[i : i + 4]) for i in range(len(old) - 3)}
    new = [tuple(lower[i : i + 4]) for i in range(len(lower) - 3)]
    if any(g in seen for g in new) or len(set(new)) < len(new) or len(set(lower)) < 0.7 * len(lower):
        return "repeats"
    return ""


def clean(text: str) -> str:
    """Return a text in plain characters, a line for each paragraph."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())

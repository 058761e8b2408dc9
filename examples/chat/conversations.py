"""Scripts of conversations for the sampler, and the conversations in its log. Needs no GPU."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stories"))
from reading import CUT, END, NUMBER

Array = np.ndarray[Any, Any]
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER, ASSISTANT = "<|im_start|>user\n", "<|im_start|>assistant\n"


def questions() -> tuple[list[str], list[str], list[str]]:
    """Return the questions with a slot for a topic, the first words, and the topics."""
    whole, first, topics = Path(__file__).with_name("prompts.txt").read_text(encoding="utf-8").strip().split("\n\n")
    return whole.splitlines(), first.splitlines(), [t for line in topics.splitlines() for t in line.split("|")]


def script(index: int, seed: int, lists: tuple[list[str], list[str], list[str]]) -> tuple[str, list[str]]:
    """Return what a conversation begins with, and the rest of its script: "" is where the teacher writes."""
    draw, (whole, first, topics) = random.Random(seed << 32 | index), lists
    kind = draw.random()
    if kind < 0.4:
        begin, rest = USER, ["", f"\n{ASSISTANT}", ""]
    elif kind < 0.65:
        begin, rest = f"{USER}{draw.choice(first)}", ["", f"\n{ASSISTANT}", ""]
    else:
        question = draw.choice(whole).format(topic=draw.choice(topics))
        begin, rest = f"{USER}{question}<|im_end|>\n{ASSISTANT}", [""]
    if draw.random() < 0.2:
        rest += [f"\n{USER}", "", f"\n{ASSISTANT}", ""]
    return SYSTEM + begin, rest


def conversations(log: Array, table: Array, lengths: Array, base: int) -> list[tuple[Array, bool]]:
    """Return every whole conversation of a row's log, and whether it ended by itself."""
    over = np.zeros(len(log), bool)
    over[1:] = (log[1:] == END) & (log[:-1] == END)  # the end of the last answer and that of the script
    out, start = [], 0
    for end in np.flatnonzero(over | (log == CUT)).tolist():
        number = int(log[start]) - NUMBER + (int(log[start + 1]) - NUMBER << 13)
        begin = table[number, : lengths[number]]
        out.append((np.concatenate([begin, log[start + len(begin) - base - 1 : end]]), bool(over[end])))
        start = end + 1
    return out


def is_good(tokens: Array, base: int) -> bool:
    """Return False for a conversation that says nothing or repeats itself."""
    body = tokens[base:].astype(np.int64)
    if len(body) < 24:
        return False
    triples = body[2:] << 32 | body[1:-1] << 16 | body[:-2]
    return bool(len(np.unique(triples)) >= 0.6 * len(triples))

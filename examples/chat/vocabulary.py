"""The teacher's vocabulary cut to English prose, and the files of a tokenizer for what is left.

A token stays if it is plain English, was merged early (its number is low) and the tokens it was merged from stay, so the cut tokenizer
splits a text as the teacher's does wherever all of its tokens stayed. The 256 bytes stay: every text can be written.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer

SPECIAL = 3  # <|endoftext|>, <|im_start|>, <|im_end|>; those after them are for code
FIRST = 17  # bytes begin here
BYTES = FIRST + 256
PLAIN = re.compile(
    r"Ġ?[A-Za-z][a-z]*|Ġ?[A-Z]{1,3}|[0-9]|Ġ?[!-/:-@\[-`{-~]{1,2}|[.,!?]+\"|'[a-z]{1,2}|Ċ{1,2}|Ġ{1,4}|[.:*]+Ċ+|\.\.\.|:\*\*|\*\*:|###"
)


def cut(tokens: list[str], merges: list[str], size: int) -> list[int]:
    """Return the numbers of the tokens that stay, `size` of them, in the teacher's order."""
    parents = {a + b: (a, b) for a, b in (m.split(" ") for m in reversed(merges))}
    stays = list(range(SPECIAL)) + list(range(FIRST, BYTES))
    present = {tokens[i] for i in stays}
    for i in range(BYTES, len(tokens)):
        if len(stays) == size:
            break
        token = tokens[i]
        if PLAIN.fullmatch(token) and all(part in present for part in parents.get(token, ("\0",))):
            stays.append(i)
            present.add(token)
    return stays


def files(tokens: list[str], merges: list[str], rows: list[int], template: str) -> dict[str, Any]:
    """Return tokenizer.json and tokenizer_config.json of the cut vocabulary."""
    vocab = {tokens[row]: i for i, row in enumerate(rows)}
    pairs = [m.split(" ") for m in merges]
    left = [[a, b] for a, b in pairs if a in vocab and b in vocab and a + b in vocab]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": left,
    }  # fmt: skip
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": level, "model": model,
        "added_tokens": [{"id": i, "content": tokens[i]} | flags for i in range(SPECIAL)],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
    }  # fmt: skip
    side = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[1], "eos_token": tokens[2], "pad_token": tokens[2],
        "unk_token": tokens[0], "add_bos_token": False, "clean_up_tokenization_spaces": False, "chat_template": template,
    }  # fmt: skip
    return {"tokenizer.json": whole, "tokenizer_config.json": side}


def tokenizer_of(contents: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of these files."""
    tokenizer: Tokenizer = Tokenizer.from_str(json.dumps(contents["tokenizer.json"]))
    return tokenizer

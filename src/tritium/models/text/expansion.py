"""The number of characters that the steps of a tokenizer.json can make of one: bounded when it is read, measured before a long text.

A step such as Replace may write twenty characters for one; five of them in a row make three million. What a step can do at
most follows from its type and its fields.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.io.reader import fault

MAX_FACTOR = 4096  # characters that all steps together can make of one
MAX_ADDED = 1 << 16  # characters that they add to any text
MAX_STEPS = 64  # of a normalizer or a pre-tokenizer
FREE = 1 << 16  # characters that a text may become without being measured
RATIO = 8  # characters, on average, that one of a long text may become
PIECE = 1024  # characters that are measured at once
# The most characters that Unicode makes of one.
FACTORS = {
    "NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "Strip": 1, "StripAccents": 1, "Nmt": 1, "ByteLevel": 4,
    "BertNormalizer": 36,
}  # fmt: skip
ONCE = ("ByteLevel", "Metaspace")  # pre-tokenizers that write more characters than they read, the more often the more


class Expansion(NamedTuple):
    """A text of n characters becomes at most `factor` * n + `added`."""

    factor: int = 1
    added: int = 0

    def then(self, factor: int, added: int = 0) -> Expansion:
        """Return the expansion of this and a further step."""
        return Expansion(self.factor * factor, self.added * factor + added)


NONE = Expansion()


def steps(part: Any, key: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer, pre-tokenizer or decoder of the package; `key` names the list of a sequence."""
    waiting = [] if part is None else [json.loads(part.__getstate__())]
    while waiting:
        state = waiting.pop(0)
        inner = state.get(key) if isinstance(state, dict) else None
        if isinstance(inner, list):
            waiting[:0] = inner
        elif isinstance(state, dict):
            yield state


def check_steps(inner: Any, where: str) -> Expansion:
    """Return what a vocabulary of the package can make of a text; FormatError where that is too much."""
    pre = [str(s.get("type")) for s in steps(inner.pre_tokenizer, "pretokenizers")]
    for name in ONCE:
        if pre.count(name) > 1:
            raise fault(f"{where}, pre_tokenizer", f"{pre.count(name)} steps {name}", "one", "Do not trust this model.")
    normal = list(steps(inner.normalizer, "normalizers"))
    if max(len(pre), len(normal)) > MAX_STEPS:
        raise fault(where, f"{max(len(pre), len(normal))} steps", f"at most {MAX_STEPS}", "Do not trust this model.")
    total = NONE
    for step in normal:
        total = total.then(*_step(step, f"{where}, normalizer"))
        if total.factor > MAX_FACTOR or total.added > MAX_ADDED:
            raise fault(
                f"{where}, normalizer", f"steps that make up to {total.factor} characters of one and add {total.added}",
                f"at most {MAX_FACTOR} and {MAX_ADDED}", "Do not trust this model.",
            )  # fmt: skip
    return total


def _step(step: dict[str, Any], where: str) -> tuple[int, int]:
    """Return the factor and the added characters of one step."""
    kind = step.get("type")
    if kind == "Prepend":
        return 1, len(step["prepend"])
    if kind == "Precompiled":
        return _longest(step["precompiled_charsmap"]), 0
    if kind == "Replace":
        content, pattern = step["content"], step["pattern"]
        if "Regex" in pattern:  # it may match between all characters
            return 1 + len(content), len(content)
        if not pattern["String"]:
            raise fault(where, "a Replace without a pattern", "a text or a regular expression to replace")
        return max(1, -(-len(content) // len(pattern["String"]))), 0
    if kind not in FACTORS:
        raise fault(where, f"a step {visible(str(kind))!r}", ", ".join([*FACTORS, "Prepend", "Precompiled", "Replace"]))
    return FACTORS[kind], 0


def _longest(charsmap: str) -> int:
    """Return the length of the longest text in SentencePiece's table: a trie, then all texts with a zero after each."""
    try:
        raw = base64.b64decode(charsmap)
    except (binascii.Error, ValueError):
        raw = b""
    texts = raw[4 + int.from_bytes(raw[:4], "little") :]
    return max((len(t.decode("utf-8", "replace")) for t in texts.split(b"\0")), default=1) or 1


def check_text(text: str, normalizer: Any, expansion: Expansion, source: str) -> None:
    """Refuse a text that the normalizer would lengthen too much; a long one is measured piece by piece."""
    if normalizer is None or expansion.factor * len(text) + expansion.added <= FREE:
        return
    limit, total = RATIO * len(text) + FREE, 0
    for begin in range(0, len(text), PIECE):
        total += len(normalizer.normalize_str(text[begin : begin + PIECE]))
        if total > limit:
            raise FormatError(
                f"{source}: the normalizer makes more than {total} characters of the first {begin + PIECE} of this text; at most"
                f" {RATIO} for each are allowed. Do not trust this model."
            )

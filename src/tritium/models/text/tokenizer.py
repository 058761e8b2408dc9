"""Tokenizers: text to token ids and back, and whole characters from streams of tokens.

ids = tokenizer.encode("In the beginning")
stream = Stream(tokenizer)
text = "".join(map(stream.push, ids)) + stream.flush()
"""

from __future__ import annotations

import codecs
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from tritium.errors import ArgumentError, FormatError, TritiumError
from tritium.escape import visible
from tritium.models.text.expansion import NONE, Expansion, check_text

SPACE = "▁"  # how SentencePiece writes a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # and a byte


class Tokenizer(Protocol):
    """The vocabulary as generation uses it. Control tokens have no text: their bytes are empty."""

    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> frozenset[int]: ...
    @property
    def bos_token(self) -> str: ...
    @property
    def eos_token(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def special(self) -> dict[str, int]: ...
    @property
    def suffix(self) -> tuple[int, ...]: ...
    @property
    def sampling(self) -> Mapping[str, float]: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...
    def encode(self, text: str, bos: bool = True) -> list[int]: ...
    def decode(self, ids: Iterable[int]) -> str: ...
    def bytes_of(self, token: int) -> bytes: ...


@dataclass(frozen=True)
class Facts:
    """The facts that files hold about a vocabulary besides its tokens."""

    bos: int | None = None
    eos: frozenset[int] = frozenset()
    adds_bos: bool = False  # whether a text begins with bos
    bos_token: str = ""
    eos_token: str = ""
    chat_template: str | None = None
    warnings: tuple[str, ...] = ()
    suffix: tuple[int, ...] = ()  # tokens that end a text which is embedded
    sampling: Mapping[str, float] = field(default_factory=dict)  # what the file recommends, by the names of `Sampler`


class _Known(ABC):
    """The facts, by name."""

    facts: Facts

    @property
    def bos(self) -> int | None:
        return self.facts.bos

    @property
    def eos(self) -> frozenset[int]:
        return self.facts.eos

    @property
    def bos_token(self) -> str:
        return self.facts.bos_token

    @property
    def eos_token(self) -> str:
        return self.facts.eos_token

    @property
    def suffix(self) -> tuple[int, ...]:
        return self.facts.suffix

    @property
    def chat_template(self) -> str | None:
        return self.facts.chat_template

    @property
    def sampling(self) -> Mapping[str, float]:
        return self.facts.sampling

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.facts.warnings

    @property
    @abstractmethod
    def vocab_size(self) -> int: ...

    @abstractmethod
    def bytes_of(self, token: int) -> bytes: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.vocab_size} tokens>"

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.bytes_of, ids)).decode("utf-8", "replace")

    def _begun(self, ids: list[int], bos: bool) -> list[int]:
        """With the first token before them, where the vocabulary wants one and the text has not written it."""
        first = self.facts.bos
        adds_first = bos and self.facts.adds_bos and first is not None and ids[:1] != [first]
        return [first, *ids] if adds_first and first is not None else ids


def _text(text: Any) -> str:
    """Text that UTF-8 can hold: half a surrogate pair becomes U+FFFD."""
    if not isinstance(text, str):
        raise ArgumentError(f"encode: text must be a str, given {type(text).__name__}; decode bytes first.")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# ---- bytes


def _alphabet() -> list[str]:
    """GPT-2's character for each byte: printable ones stand for themselves, the others follow from 256 on."""
    own = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = iter(range(256, 512))
    return [chr(b) if b in own else chr(next(rest)) for b in range(256)]


ALPHABET = _alphabet()
BYTES = {c: b for b, c in enumerate(ALPHABET)}


@dataclass(eq=False, repr=False)
class ByteTokenizer(_Known):
    """A token for each byte and some special ones: no merges, no package. `tokens` are written in GPT-2's alphabet."""

    tokens: Sequence[str] = tuple(ALPHABET)
    control: frozenset[int] = frozenset()  # without text
    silent: frozenset[int] = frozenset()  # unused numbers: neither written nor read
    facts: Facts = field(default_factory=Facts)

    def __post_init__(self) -> None:
        self._bytes = [bytes([BYTES[t]]) if t in BYTES else t.encode("utf-8", "replace") for t in self.tokens]
        self._ids = {t: i for i, t in enumerate(self.tokens)}
        if missing := [c for c in ALPHABET if c not in self._ids]:
            raise ArgumentError(
                f"ByteTokenizer: tokens for all 256 bytes are needed, {len(missing)} are missing, the first {missing[0]!r}."
            )
        self._of_byte = [self._ids[c] for c in ALPHABET]
        for i in self.control | self.silent:
            self._bytes[i] = b""
        whole = sorted(filter(None, self.special), key=len, reverse=True)  # the longest first, so that it wins
        self._special = re.compile("(" + "|".join(map(re.escape, whole)) + ")") if whole else None

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @property
    def special(self) -> dict[str, int]:
        return {t: i for t, i in self._ids.items() if t not in BYTES and i not in self.silent}

    def encode(self, text: str, bos: bool = True, *, special: bool = True) -> list[int]:
        """The ids of a text; special tokens written in it are taken as such, unless `special` is False."""
        parts = self._special.split(_text(text)) if special and self._special else [_text(text)]
        ids: list[int] = []
        for i, part in enumerate(parts):
            ids += [self._ids[part]] if i % 2 else [self._of_byte[b] for b in part.encode()]
        return self._begun(ids, bos)

    def bytes_of(self, token: int) -> bytes:
        """The bytes a token stands for; none for control tokens and numbers without a token."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""


# ---- the tokenizers package


@contextmanager
def calling_package(word: Callable[[str], TritiumError]) -> Iterator[None]:
    """Raise what `word` makes of an error of the package; its panics are no Exception."""
    try:
        yield
    except (TritiumError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise word(visible(str(error)) or type(error).__name__) from None


@dataclass(eq=False, repr=False)
class PackageTokenizer(_Known):
    """A vocabulary that the `tokenizers` package splits text for. `kind`: "bytes" (GPT-2's alphabet) or "spaces" (▁)."""

    inner: Any
    kind: str
    facts: Facts = field(default_factory=Facts)
    silent: frozenset[int] = frozenset()  # unused numbers: no text
    strips: bool = False  # a text's first space was put there by the vocabulary
    source: str = "tokenizer.json"  # the file it was read from
    expansion: Expansion = NONE  # of its normalizer

    def __post_init__(self) -> None:
        self._added = {
            i: b"" if t.special else t.content.encode() for i, t in self.inner.get_added_tokens_decoder().items()
        }
        self._lock = threading.Lock()

    @cached_property
    def vocab_size(self) -> int:
        return max(self.inner.get_vocab(True).values(), default=-1) + 1

    @property
    def special(self) -> dict[str, int]:
        return {t.content: i for i, t in self.inner.get_added_tokens_decoder().items()}

    def encode(self, text: str, bos: bool = True, *, special: bool = True) -> list[int]:
        """The ids of a text; special tokens written in it are taken as such, unless `special` is False."""
        text = _text(text)
        with self._lock:  # the switch below belongs to the whole vocabulary
            self.inner.encode_special_tokens = not special
            with calling_package(self._failed):
                check_text(text, self.inner.normalizer, self.expansion, self.source)
                ids: list[int] = self.inner.encode(text, add_special_tokens=False).ids
        return self._begun(ids, bos)

    def _failed(self, reason: str) -> FormatError:
        return FormatError(
            f"{self.source}: this model's vocabulary cannot encode the text: {reason}. Its tokenizer is damaged: fetch it again."
        )

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
        text = super().decode(ids)
        return text[1:] if self.strips and text.startswith(" ") else text

    def bytes_of(self, token: int) -> bytes:
        """The bytes a token stands for; none for control tokens and numbers without a token."""
        if token in self._added:
            return self._added[token]
        piece = self.inner.id_to_token(token) if 0 <= token < 1 << 31 and token not in self.silent else None
        if piece is None:
            return b""
        if self.kind == "bytes":
            return bytes(BYTES[c] for c in piece) if all(c in BYTES for c in piece) else piece.encode()
        if byte := _BYTE.fullmatch(piece):
            return bytes.fromhex(byte[1])
        return piece.replace(SPACE, " ").encode()


# ---- streams


class Stream:
    """Text as its tokens come. A character split over tokens is held back until it is whole; `flush` gives what is left."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token makes whole."""
        return self._decoder.decode(self._tokenizer.bytes_of(token))

    def flush(self) -> str:
        """The rest: U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", True)

"""Constraints on a generated text: a JSON schema, a regular expression, a grammar, one of some texts, a least length.

Knows nothing of logits or models: a constraint says which tokens of a vocabulary may come next (`sampling.Constraint`). Formats of
text need the package `llguidance` (extra `run`), which is given the bytes of every token.

    constraint = compile_format(tokenizer, Format("regex", "[0-9]{3}")).start()
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack
from weakref import WeakKeyDictionary, ref

import numpy as np

from tritium.errors import ArgumentError, PackageError, imported
from tritium.escape import visible
from tritium.models.sampling import Constraint
from tritium.models.text.tokenizer import Tokenizer, calling_package

Array = np.ndarray[Any, np.dtype[Any]]


class FormatOptions(TypedDict, total=False):
    """The formats that a text may have, of which one is chosen; the text matches it if it ends before max_tokens."""

    schema: Mapping[str, Any] | bool | str | type[Any] | None  # a JSON schema, its text, or a Pydantic model
    regex: str | None
    grammar: str | None  # of Lark or GBNF
    choice: Sequence[str] | None  # one of these texts


KINDS = tuple(FormatOptions.__annotations__)
MAX_FORMAT = 1 << 16  # characters of a schema, regular expression or grammar
MAX_CHOICES = 4096
MOST_KEPT = 64  # compiled formats of one vocabulary
# Work on the regular expressions of a format when it is compiled, and at one token; more is an error, so that others need not wait.
FUEL = {"initial_lexer_fuel": 200_000, "step_lexer_fuel": 50_000}
# Between the parts of JSON: nothing, one space, or one line break and its indentation. Any number of them, which JSON allows, is
# what a small model falls into and does not come out of.
WHITESPACE = r"[ ]?|\n[ \t]{0,40}"
JSON_OPTIONS = {"whitespace_pattern": WHITESPACE, "lenient": False}


@dataclass(frozen=True)
class Format:
    """The format that a text must have. kind: "schema" (JSON), "regex", "grammar" (Lark or GBNF) or "choice" (a JSON list of texts)."""

    kind: str
    text: str

    @classmethod
    def of(cls, **options: Unpack[FormatOptions]) -> Format | None:
        """Return the one of schema=, regex=, grammar= and choice= that is not None, checked; None without one."""
        chosen = {kind: value for kind, value in options.items() if value is not None}
        if len(chosen) > 1:
            raise ArgumentError(f"A text has one format, given {' and '.join(chosen)}; leave out all but one.")
        for kind, value in chosen.items():
            text = _WRITTEN[kind](value)
            if len(text) > MAX_FORMAT:
                raise ArgumentError(f"{kind}: {len(text)} characters were given, at most {MAX_FORMAT} are read.")
            return cls(kind, text)
        return None


def _schema(value: Any) -> str:
    """Return a JSON schema as text: a mapping, a boolean, or its text; models of Pydantic have a method for it."""
    method = getattr(value, "model_json_schema", None)
    value = method() if callable(method) else value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"schema: the text is not JSON: {visible(str(error))}.") from None
    if not isinstance(value, (Mapping, bool)):
        raise ArgumentError(f"schema: a JSON schema is an object, true or false, given {type(value).__name__}.")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"schema: it cannot be written as JSON: {visible(str(error))}.") from None


def _words(kind: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ArgumentError(f"{kind}: a text of at least one character is needed, given {value!r:.80}.")
        return value

    return check


def _choice(value: Any) -> str:
    texts = list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else []
    if not texts or len(texts) > MAX_CHOICES or not all(isinstance(t, str) and t for t in texts):
        raise ArgumentError(f"choice: 1 to {MAX_CHOICES} texts are needed, none of them empty, given {value!r:.80}.")
    return json.dumps(texts, ensure_ascii=False)


_WRITTEN = {"schema": _schema, "regex": _words("regex"), "grammar": _words("grammar"), "choice": _choice}


# ---- formats, by llguidance


class Grammar:
    """A format that was compiled for a vocabulary. `start()` gives each sequence its own constraint."""

    def __init__(self, matcher: Any, end: int, ends: Collection[int]) -> None:
        self._matcher, self._end, self._ends = matcher, end, frozenset(ends)

    def start(self) -> Constraint:
        """Return the constraint of one sequence, at its beginning."""
        return Matched(self._matcher.deep_copy(), self._end, self._ends)


class Matched:
    """One sequence on its way through a grammar. The library knows one last token, `end`, which no model has; where it is allowed,
    all last tokens of the model are."""

    def __init__(self, matcher: Any, end: int, ends: frozenset[int]) -> None:
        self._matcher, self._end, self._ends = matcher, end, ends
        self._places = np.fromiter(sorted(ends), np.int64, len(ends))
        self._consumed: list[bool] = []  # of each token, whether the library counts it

    @property
    def is_done(self) -> bool:
        """Return True if the text is complete and cannot be continued."""
        return bool(self._matcher.is_stopped())

    def mask(self) -> Array:
        """Return which tokens the grammar allows next."""
        allowed = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8) != 0
        self._check()
        mask = allowed[: self._end]
        mask[self._places] = allowed[self._end]
        return mask

    def advance(self, token: int) -> None:
        """Take a token; after the end any is taken, and none counts."""
        self._consumed.append(not self.is_done)
        if self._consumed[-1]:
            self._matcher.consume_token(self._end if token in self._ends else token)
            self._check()

    def rollback(self, count: int) -> None:
        """Forget the last tokens."""
        if not 0 <= count <= len(self._consumed):
            raise ArgumentError(f"rollback: 0 to {len(self._consumed)} tokens can be forgotten, given {count}.")
        length = len(self._consumed) - count
        consumed, self._consumed = sum(self._consumed[length:]), self._consumed[:length]
        if consumed:
            self._matcher.rollback(consumed)
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ArgumentError(f"The text cannot follow its format: {_reason(self._matcher.get_error())}.")


def _reason(error: str) -> str:
    return visible(" ".join(error.split()), 300).rstrip(".")


class _Vocabulary:
    """A vocabulary as the library reads it: bytes of tokens, and after them one that ends a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # What was compiled is kept as long as its vocabulary, and must not keep it alive.
        self._tokenizer, count = ref(tokenizer), tokenizer.vocab_size
        self.tokens = [b"" if i in tokenizer.eos else tokenizer.bytes_of(i) for i in range(count)] + [b""]
        self.special_token_ids: list[int] = []
        self.eos_token_id, self.bos_token_id = count, None

    def __call__(self, text: str | bytes) -> list[int]:
        tokenizer = self._tokenizer()
        words = str(text, "utf-8", "replace") if isinstance(text, bytes) else text
        return [] if tokenizer is None else tokenizer.encode(words, bos=False)


class _Compiler:
    """The library for one vocabulary, and the formats that were compiled lately."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._library = imported("Structured output", "llguidance")
        self._ends, self._end = tokenizer.eos, tokenizer.vocab_size
        self._tokens = self._library.LLTokenizer(self._library.TokenizerWrapper(_Vocabulary(tokenizer)))
        self._limits = self._library.LLParserLimits(verbose_errors=False, **FUEL)
        self._kept: OrderedDict[Format, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, form: Format) -> Grammar:
        """Return a format as a grammar; ArgumentError where it is none."""
        with self._lock:
            if form in self._kept:
                self._kept.move_to_end(form)
                return self._kept[form]
        with calling_package(lambda reason: ArgumentError(f"{form.kind}: {_reason(reason)}.")):
            matcher = self._library.LLMatcher(self._tokens, self._source(form), log_level=0, limits=self._limits)
            if not matcher.is_error():  # some formats are too large only once they are used
                matcher.compute_logit_bias()
        if matcher.is_error():
            raise ArgumentError(f"{form.kind}: it is not supported: {_reason(matcher.get_error())}.")
        grammar = Grammar(matcher, self._end, self._ends)
        with self._lock:
            self._kept[form] = grammar
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return grammar

    def _source(self, form: Format) -> str:
        """Return a format in the library's own words."""
        matcher = self._library.LLMatcher
        if form.kind == "schema":
            return str(matcher.grammar_from_json_schema(form.text, overrides=JSON_OPTIONS))
        if form.kind == "regex":
            return str(matcher.grammar_from_regex(form.text))
        if form.kind == "choice":
            words = (json.dumps(text, ensure_ascii=False) for text in json.loads(form.text))
            return str(matcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {' | '.join(words)}"))
        return str(self._library.grammar_from("grammar", form.text))


_compilers: WeakKeyDictionary[Any, _Compiler] = WeakKeyDictionary()
_making = threading.Lock()


def compile_format(tokenizer: Tokenizer, form: Format) -> Grammar:
    """Return a format compiled for a vocabulary; those used lately are kept. The first one of a vocabulary reads all its tokens."""
    return _compiler(tokenizer).compile(form)


def read_vocabulary(tokenizer: Tokenizer) -> None:
    """Read a vocabulary for formats to come, where the library is installed.

    It holds the interpreter for the whole time, so no thread can do it beside others: about half a second for 128,256 tokens."""
    with suppress(PackageError):
        _compiler(tokenizer)


def _compiler(tokenizer: Tokenizer) -> _Compiler:
    with _making:
        compiler = _compilers.get(tokenizer)
        if compiler is None:
            compiler = _compilers[tokenizer] = _Compiler(tokenizer)
        return compiler


def constrain(
    tokenizer: Tokenizer, form: Format | None = None, *, least: int = 0, ends: Collection[int] = (),
    among: Collection[int] | None = None,
) -> Callable[[], tuple[Constraint, ...]]:  # fmt: skip
    """Return what makes the constraints of one sequence: a format, no token of `ends` before `least` others, some tokens alone.

    A format that ends earlier, or leaves no choice, wins over the other two."""
    grammar = None if form is None else compile_format(tokenizer, form)
    count = tokenizer.vocab_size

    def start() -> tuple[Constraint, ...]:
        matched = () if grammar is None else (grammar.start(),)
        longer: tuple[Constraint, ...] = (AtLeast(least, ends, count),) if least else ()
        return (*matched, *(() if among is None else (Among(among, count),)), *longer)

    return start


# ---- lengths and sets of tokens


class AtLeast:
    """No last token among the first `count`."""

    def __init__(self, count: int, ends: Collection[int], vocab_size: int) -> None:
        self._left = count
        self._mask = np.ones(vocab_size, bool)
        self._mask[[t for t in ends if 0 <= t < vocab_size]] = False

    is_done = False

    def mask(self) -> Array | None:
        """Return all tokens but the last ones, while more are needed."""
        return self._mask if self._left > 0 else None

    def advance(self, token: int) -> None:
        """Count a token."""
        self._left -= 1

    def rollback(self, count: int) -> None:
        """Forget the last tokens."""
        self._left += count


class Among:
    """Some tokens of the vocabulary alone."""

    def __init__(self, tokens: Collection[int], vocab_size: int) -> None:
        self._mask = np.zeros(vocab_size, bool)
        self._mask[sorted(tokens)] = True

    is_done = False

    def mask(self) -> Array:
        """Return these tokens."""
        return self._mask

    def advance(self, token: int) -> None:
        """Do nothing: the same tokens are allowed everywhere."""

    def rollback(self, count: int) -> None:
        """Do nothing: the same tokens are allowed everywhere."""

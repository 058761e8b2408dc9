"""Bounds on what a chat template may produce, counted before it is allocated: text, lists, formatted fields, results of methods.

Every operator and method that a template can reach has an entry here with its largest result; what has no entry is
refused by name. Imports `jinja2`.
"""

from __future__ import annotations

import operator as operators
import re
import string
import time
from _string import formatter_field_name_split  # type: ignore[import-not-found]
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Sized, ValuesView
from contextvars import ContextVar
from types import GeneratorType
from typing import Any, cast

from jinja2.runtime import Undefined
from markupsafe import Markup, escape

from tritium.escape import visible

MAX_TEXT = 8 << 20  # characters of one value
MAX_WORK = 32 << 20  # characters of all values together
MAX_ITEMS = 2_000_000  # entries of all lists and mappings together, and the number of texts
MAX_NUMBER = 1 << 20  # the largest width or count
MAX_FIELD = 9999  # the largest width of a formatted field
MAX_OPTION = 256  # characters of a format, an attribute path, an indent or a separator
MAX_BITS = 4096  # of a number
MAX_NESTING = 200  # of lists in lists: CPython hashes and frees nested values by recursion
PIECE = 16  # what an entry of a list counts, in characters
OBJECT = 512  # what an object counts that is no data, such as a macro: its `repr` holds its name
ESCAPED = 5  # characters that HTML's escape of one character has at most
CASED = 3  # characters that one character has at most in another case
CHUNK = 1 << 16
LINE_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
FIELD = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?[#0\- +]*(?P<width>\d*)(?:\.(?P<precision>\d*))?[hlL]?(?P<kind>[diouxXeEfFgGcrsa%])"
)

NUMBERS = (int, float, complex)
LISTS = (list, tuple)
VIEWS = (KeysView, ValuesView, ItemsView)
ITERABLES: tuple[type[Any], ...] = (str, dict, range, Undefined, type(iter([])), GeneratorType, *LISTS, *VIEWS)


class SpentError(Exception):
    """A template exceeds its bounds."""


class Budget:
    """The time, characters and entries that one rendering has left."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.deadline = seconds, time.thread_time() + seconds
        self.text, self.items = MAX_WORK, MAX_ITEMS

    def tick(self) -> None:
        """Refuse to go on after the deadline."""
        if time.thread_time() > self.deadline:
            raise SpentError(f"it worked for more than {self.seconds:g} s")

    def reserve(self, text: int = 0, items: int = 0) -> None:
        """Refuse a value of this size before it is allocated."""
        self.tick()
        if text > MAX_TEXT:
            raise SpentError(f"it asked for a text of {text} characters; at most {MAX_TEXT} are allowed")
        if text > self.text:
            raise SpentError(f"it wrote more than {MAX_WORK} characters in all")
        if items > self.items:
            raise SpentError(f"it asked for more than {MAX_ITEMS} entries of lists in all")

    def pay(self, text: int = 0, items: int = 0) -> None:
        """Deduct what was allocated, or is about to be."""
        self.reserve(text, items)
        self.text -= text
        self.items -= items


budget: ContextVar[Budget] = ContextVar("budget")


def tick() -> None:
    """Refuse to go on after the deadline."""
    budget.get().tick()


def reserve(text: int = 0, items: int = 0) -> None:
    """Refuse a value of this size before it is allocated."""
    budget.get().reserve(text, items)


def timed(values: Iterable[Any]) -> Iterator[Any]:
    """The same values, with a look at the time now and then."""
    for i, value in enumerate(values):
        if i % 1024 == 0:
            tick()
        yield value


# ---- values


def charge(value: Any) -> Any:
    """Deduct a result; return it."""
    if isinstance(value, str):
        budget.get().pay(len(value), 1)
    elif isinstance(value, (dict, *LISTS)):
        budget.get().pay(0, len(value) + 1)
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise SpentError(f"it made a number of more than {MAX_BITS} bits")
    return value


def _parts(value: Any) -> list[Any] | tuple[Any, ...] | None:
    """The entries of a container, None for anything else."""
    if isinstance(value, LISTS):
        return value
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, VIEWS) else None


def _walk(value: Any) -> Iterator[tuple[Any, int | None]]:
    """A value and all in it, a shared one as often as it occurs, with its number of entries (None: no container)."""
    level = [value]
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for inner in timed(level):
            parts = _parts(inner)
            yield inner, None if parts is None else len(parts)  # a caller stops here, before the next level grows
            below += parts or ()
        if not below:
            return
        level = below
    raise SpentError(f"it nests lists deeper than {MAX_NESTING}")


def weigh(value: Any) -> Any:
    """Deduct a container; return it. Refuse one that is too large when all it refers to is written out, so that no value
    of a template takes longer than that to print, compare or sort, however often it holds the same list."""
    total = 0
    for inner, entries in _walk(value):
        if entries is not None:
            total += PIECE * (entries + 1)
        elif isinstance(inner, str):
            total += len(inner)
        elif inner is not None and not isinstance(inner, (Undefined, *NUMBERS)):
            total += OBJECT
        if total > MAX_TEXT:
            raise SpentError(f"it made a list or mapping of more than {MAX_TEXT} characters")
    budget.get().pay(0, len(value) + 1 if isinstance(value, Sized) else 1)
    return value


def _quoted(text: str) -> int:
    """The length of a text's `repr`, without making it."""
    if text.isprintable():
        return len(text) + 12 + text.count("\\") + text.count("'")
    return 12 + sum(len(repr(text[i : i + CHUNK])) for i in range(0, len(text), CHUNK))


def size(value: Any, quoted: bool = False) -> int:
    """The largest length of a value's text, or of its `repr`."""
    if isinstance(value, str) and not quoted:
        return len(value)
    total = 0
    for inner, entries in _walk(value):
        if entries is not None:
            total += PIECE + 4 * entries
        elif isinstance(inner, str):
            total += _quoted(inner)
        elif inner is None or isinstance(inner, (Undefined, range, *NUMBERS)):
            total += len(repr(inner))
        else:
            raise SpentError(f"it writes a {type(inner).__name__}, which is no text, number, list or mapping")
        if total > MAX_TEXT:
            raise SpentError(f"it writes a list or mapping of more than {MAX_TEXT} characters")
    return total


def write(value: Any) -> str:
    """The text of a value, as `str` has it, where that is known to be short enough."""
    if type(value) is str:
        return value
    if value is None or isinstance(value, (str, dict, range, Undefined, *NUMBERS, *LISTS, *VIEWS)):
        reserve(size(value))
        return str(value)
    return f"<{type(value).__name__.lower()}>"


def spend(value: Any) -> str:
    """The text of a value, deducted."""
    return str(charge(write(value)))


def join(parts: list[Any], between: str = "") -> str:
    """Values as one text: Jinja's `~`, and its filter `join`."""
    texts = [part if isinstance(part, str) else spend(part) for part in parts]
    reserve(sum(map(len, texts)) + len(between) * len(texts))
    return str(charge(between.join(texts)))


def collect(value: Any) -> list[Any]:
    """A list of what a value yields, each entry deducted before it is kept."""
    if not isinstance(value, ITERABLES):
        raise TypeError(f"{type(value).__name__!r} object is not iterable")
    values: Any = value
    if isinstance(values, Sized):
        budget.get().pay(0, len(values) + 1)
        return list(cast("Iterable[Any]", values))
    entries = []
    for entry in timed(values):
        budget.get().pay(0, 1)
        entries.append(entry)
    return entries


def loop_over(value: Any, filtered: bool = False) -> Any:
    """Return what a loop runs over. `loop.length` makes a list of what has no length, as do loops with a condition; characters
    of a text become objects. All of these are deducted."""
    if filtered or isinstance(value, str) or not isinstance(value, (Undefined, dict, range, *LISTS, *VIEWS)):
        return iter(collect(value))
    return value


def cut(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """A slice."""
    if not isinstance(value, (str, range, *LISTS)):
        if isinstance(value, Undefined):
            return value[start:stop:step]  # raises what Undefined raises
        raise TypeError(f"{type(value).__name__!r} object cannot be sliced")
    count = len(range(*slice(start, stop, step).indices(len(value))))
    reserve(count if isinstance(value, str) else 0, 1 if isinstance(value, str) else count)
    return charge(value[start:stop:step])


def number(value: Any, limit: int = MAX_NUMBER) -> int:
    """A width or a count."""
    if not isinstance(value, int) or abs(value) > limit:
        raise SpentError(f"it asked for {visible(repr(value)) if isinstance(value, int) else type(value).__name__};"
                         f" whole numbers up to {limit} are allowed there")  # fmt: skip
    return value


# ---- formats


def _field(value: Any, kind: str = "s") -> int:
    """The largest length of a value in a field without width."""
    if isinstance(value, NUMBERS):
        return 340 + (2 * value.bit_length() if isinstance(value, int) else 0)  # binary, with separators
    return size(value, quoted=kind in ("r", "a")) * (10 if kind == "a" else 1)


def _width(digits: str | None) -> int:
    if digits and len(digits) > len(str(MAX_FIELD)):
        raise SpentError(f"it asked for a field wider than {MAX_FIELD} characters")
    return int(digits or 0)


def fill(text: str, values: Any) -> str:
    """`text % values`."""
    if "%" in FIELD.sub("", text):
        raise SpentError("it formats with a field other than %[(name)][flags][width][.precision]type")
    entries = iter(values if isinstance(values, tuple) else (values,))
    total = len(text)
    for match in FIELD.finditer(text):
        if match["kind"] == "%":
            continue
        value = next(entries, None) if match["key"] is None else values[match["key"]]
        total += _width(match["width"]) + _width(match["precision"]) + _field(value, match["kind"])
        if total > MAX_TEXT:
            break
    reserve(total * (ESCAPED if isinstance(text, Markup) else 1))
    result: str = text % values
    return result


class Formatter(string.Formatter):
    """`str.format` whose every field is deducted before the next; names are looked up by the sandbox."""

    def __init__(self, getattr_: Callable[[Any, str], Any], getitem: Callable[[Any, Any], Any], markup: bool) -> None:
        self.getattr, self.getitem, self.markup = getattr_, getitem, markup

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        """The value of a field such as `0.name[key]`."""
        first, rest = formatter_field_name_split(field_name)
        value = self.get_value(first, args, kwargs)
        for is_attribute, name in rest:
            value = self.getattr(value, name) if is_attribute else self.getitem(value, name)
        return value, first

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """`!r`, `!s`, `!a`."""
        if conversion in ("r", "a"):
            reserve(_field(value, conversion))
            return charge(repr(value) if conversion == "r" else ascii(value))
        return value if conversion is None else spend(value)

    def format_field(self, value: Any, format_spec: str) -> str:
        """One field as text."""
        if len(format_spec) > MAX_OPTION:
            raise SpentError(f"it formats with a specification of more than {MAX_OPTION} characters")
        width = sum(map(_width, re.findall(r"\d+", format_spec)))
        plain = value if isinstance(value, NUMBERS) else write(value)
        reserve((_field(plain) + 2 * width) * (ESCAPED if self.markup else 1))
        text = format(plain, format_spec)
        if self.markup:
            text = text if isinstance(value, Markup) else str(escape(text))
        return str(charge(text))


# ---- operators


def operate(operator: str, left: Any, right: Any) -> Any:
    """A binary operator, on numbers, texts and lists."""
    run = {"+": operators.add, "-": operators.sub, "*": operators.mul, "/": operators.truediv,
           "//": operators.floordiv, "%": operators.mod, "**": operators.pow}[operator]  # fmt: skip
    if operator == "%" and isinstance(left, str):
        return charge(fill(left, right))
    if isinstance(left, NUMBERS) and isinstance(right, NUMBERS):
        if isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
            times = abs(right) if operator == "**" else 1
            if left.bit_length() * times + right.bit_length() > MAX_BITS:
                raise SpentError(f"it made a number of more than {MAX_BITS} bits")
        return charge(run(left, right))
    if isinstance(left, Undefined) or isinstance(right, Undefined):
        return run(left, right)  # raises what Undefined raises
    for kind in (str, list, tuple):
        count = 0
        if operator == "+" and isinstance(left, kind) and isinstance(right, kind):
            escaped = ESCAPED if isinstance(left, Markup) != isinstance(right, Markup) else 1
            count = escaped * (len(left) + len(right))
        elif operator == "*" and (isinstance(left, kind) or isinstance(right, kind)):
            value, times = (left, right) if isinstance(left, kind) else (right, left)
            count = len(value) * max(number(times), 0) if isinstance(times, int) else 0
        else:
            continue
        reserve(count if kind is str else 0, 1 if kind is str else count)
        return charge(run(left, right)) if kind is str else weigh(run(left, right))
    raise TypeError(f"unsupported operand type(s) for {operator}: {type(left).__name__!r} and {type(right).__name__!r}")


# ---- methods

Bound = Callable[..., tuple[int, int]]  # the largest result of a method: characters, entries


def _none(_own: Any, *_args: Any, **_named: Any) -> tuple[int, int]:
    return 0, 0


def _same(own: str, *_args: Any, **_named: Any) -> tuple[int, int]:
    return len(own), 1


def _cased(own: str, *_args: Any) -> tuple[int, int]:
    return CASED * len(own), 1


def _padded(own: str, width: Any, *_args: Any) -> tuple[int, int]:
    return max(len(own), number(width)), 1


def _copied(own: Any) -> tuple[int, int]:
    return 0, len(own) + 1


def _split(own: str, sep: Any = None, maxsplit: int = -1) -> tuple[int, int]:
    pieces = own.count(sep) if isinstance(sep, str) and sep else len(own) // 2 + 1
    return len(own), (pieces if maxsplit < 0 else min(pieces, maxsplit)) + 2


def _lines(own: str, *_args: Any, **_named: Any) -> tuple[int, int]:
    return len(own), sum(map(own.count, LINE_BREAKS)) + 2


def _replaced(own: str, old: str, new: str, count: int = -1) -> tuple[int, int]:
    places = own.count(old)
    if isinstance(own, Markup):  # the method looks for one or the other, by version
        reserve(ESCAPED * len(old))
        places = max(places, own.count(str(escape(old))))
    places = places if count < 0 else min(places, count)
    return len(own) + places * len(new) * (ESCAPED if isinstance(own, Markup) else 1), 1


def _join(own: str, values: Any) -> str:
    parts = collect(values)
    if isinstance(own, Markup):
        parts = [p if isinstance(p, str) else spend(p) for p in parts]
    total = sum(len(p) for p in parts if isinstance(p, str)) + len(own) * len(parts)
    reserve(total * (ESCAPED if isinstance(own, Markup) else 1))
    return own.join(parts)


def _index(own: Any, value: Any, start: int = 0, stop: int | None = None) -> int:
    """`list.index`, whose error would hold the value's `repr`."""
    for i in range(*slice(start, stop).indices(len(own))):
        if own[i] == value:
            return i
    raise ValueError("the value is not in the list")


STR: dict[str, Bound] = {
    **dict.fromkeys("strip lstrip rstrip removeprefix removesuffix".split(), _same),
    **dict.fromkeys("upper lower capitalize title swapcase casefold".split(), _cased),
    **dict.fromkeys("ljust rjust center zfill".split(), _padded),
    **dict.fromkeys(("partition", "rpartition"), lambda own, *_: (len(own), 4)),
    **dict.fromkeys(
        "startswith endswith find rfind index rindex count isdigit isalpha isalnum isspace isupper islower isnumeric"
        " isdecimal istitle isidentifier isascii isprintable".split(),
        _none,
    ),
    "split": _split, "rsplit": _split, "splitlines": _lines, "replace": _replaced,
}  # fmt: skip
METHODS: dict[type, dict[str, Bound]] = {
    str: STR,
    dict: {"items": _none, "keys": _none, "values": _none, "get": _none, "copy": _copied},
    list: {"count": _none, "copy": _copied},
    tuple: {"count": _none},
}
OWN: dict[tuple[type, str], Callable[..., Any]] = {
    (str, "join"): _join, (list, "index"): _index, (tuple, "index"): _index,
}  # methods that are replaced  # fmt: skip


def kind_of(owner: Any) -> type | None:
    """The type whose methods are listed, also for a subclass of it."""
    return next((kind for kind in METHODS if isinstance(owner, kind)), None)


def has_method(owner: Any, name: str) -> bool:
    """Return True if a template may call this method."""
    kind = kind_of(owner)
    return kind is not None and (name in METHODS[kind] or (kind, name) in OWN or (kind is str and name == "format"))


def call_method(environment: Any, owner: Any, name: str, *args: Any, **named: Any) -> Any:
    """Call a listed method; its largest result is reserved before, the real one deducted after."""
    kind = kind_of(owner)
    if kind is None or not has_method(owner, name):
        raise SpentError(f"it calls {visible(name)!r} of a {type(owner).__name__}, which templates may not use")
    if kind is str and name == "format":
        reserve(len(owner), owner.count("{") + owner.count("}") + 1)
        formatter = Formatter(environment.getattr, environment.getitem, isinstance(owner, Markup))
        return charge(type(owner)(formatter.vformat(str(owner), args, named)))
    if (kind, name) in OWN:
        return charge(OWN[kind, name](owner, *args, **named))
    text, items = METHODS[kind][name](owner, *args, **named)
    reserve(text, items)
    result = getattr(owner, name)(*args, **named)
    if isinstance(result, LISTS):
        budget.get().pay(text)  # its entries are new texts
    return charge(result) if text or items else result

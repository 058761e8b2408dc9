"""Errors by name, remedies, and the check of arguments; every message says what was given, what was needed and what to do.

Knows nothing else of the package.
"""

from __future__ import annotations

import collections.abc as abc
import functools
import inspect
import operator
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar


class TritiumError(Exception):
    """The parent of every error raised on purpose."""


class ShapeError(TritiumError, ValueError):
    """The shapes given to an operation do not fit together."""


class DTypeError(TritiumError, TypeError):
    """An operation is not defined for the dtypes given."""


class DeviceError(TritiumError, RuntimeError):
    """A device is absent, unknown, or two devices were mixed."""


class OutOfMemoryError(TritiumError, MemoryError):
    """A device has no room for what was asked."""


class ArgumentError(TritiumError, TypeError):
    """An argument is unknown, missing or of the wrong type."""


class BoundsError(TritiumError, IndexError):
    """An index or axis lies outside the tensor."""


class RangeError(TritiumError, OverflowError):
    """A number lies outside a dtype."""


class MissingFileError(TritiumError, FileNotFoundError):
    """There is no file of this name."""


class ExchangeError(TritiumError, BufferError):
    """Memory that another library cannot lend or take: DLPack's protocol asks for a BufferError."""


class QuantError(TritiumError, ValueError):
    """A value that cannot be quantised, or a code that means nothing."""


class TraceError(TritiumError, TypeError):
    """Something that needs values was asked while only a graph is being written down."""


class ViewError(TritiumError, ValueError):
    """A view was asked where only a copy is possible, or a write where none is allowed."""


class PoolError(TritiumError, ValueError):
    """A tensor was given to a pool that did not lend it, or twice."""


class FormatError(TritiumError, ValueError):
    """A model file, or a part of one, is damaged, unsafe or of a kind that cannot be read or written."""


class VerifyError(TritiumError, AssertionError):
    """An optimised graph, or a user's fusion, does not give what the rows as written give."""


class BatchError(TritiumError, RuntimeError):
    """A batch failed, or gave another number of results than it has items."""


class PipelineError(TritiumError, RuntimeError):
    """A stage of a pipeline failed (stage None: the source of its items), at which item."""

    def __init__(self, message: str, *, stage: int | None = None, item: int = 0) -> None:
        super().__init__(message)
        self.stage, self.item = stage, item


class PackageError(TritiumError, ImportError):
    """A package that only some uses need is not installed."""


class BusyError(TritiumError, RuntimeError):
    """There is no room for another request now; a later try may find some."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ' Did you mean x?' for the closest known word, else nothing."""

    from difflib import get_close_matches  # only a message needs it: it takes longer to import than this module

    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


class ContextError(TritiumError, ValueError):
    """More tokens than a model's context or a cache can hold."""


class PerformanceError(TritiumError, AssertionError):
    """A measured speed lies below the floor it must keep."""


class SaveError(TritiumError, OSError):
    """A file could not be written; what was there before it is as it was, and what was to be written is still in memory."""


class BaselineError(TritiumError, LookupError):
    """There is no baseline of this name."""


class TuneError(TritiumError, RuntimeError):
    """No candidate of a race could run, or the one that was kept no longer does."""


class BuildError(TritiumError, RuntimeError):
    """Another revision of the package could not be checked out or built."""


# ---- remedies
#
# Tritium is on no package index: `pip install` finds its extras only in a checkout, so errors and pages name the packages.

EXTRAS = {  # as in pyproject.toml; a test compares them
    "model": ("tokenizers>=0.21", "jinja2>=3.1.6"),
    "serve": ("h11>=0.16", "tokenizers>=0.21", "jinja2>=3.1.6"),
    "torch": ("torch>=2.5",),
    "cuda": ("torch>=2.9", "triton>=3.5; sys_platform == 'linux'", "nvidia-ml-py>=12; sys_platform == 'linux'"),
    "mlx": ("mlx>=0.32; sys_platform == 'darwin'", "mlx[cpu]>=0.32; sys_platform == 'linux'"),
    "png": ("resvg_py>=0.5",),
}

_REQUIREMENT = r"[\w.-]+(?:\[[\w,-]+\])?"


def install_command(extra: str, platform: str = sys.platform) -> str:
    """Return the pip command that installs the packages of an extra on a platform; all of them where none is made for it."""
    split = [requirement.partition(";") for requirement in EXTRAS[extra]]
    usable = [r for r, _, marker in split if not marker or f"'{platform}'" in marker]
    names = [match[0] for r in usable or [r for r, _, _ in split] if (match := re.match(_REQUIREMENT, r))]
    import shlex

    return f"pip install {' '.join(map(shlex.quote, names))}"


# ---- arguments of public functions outside the op table
#
# `checked` reads what a function takes from its signature: the names, the counts, and the types of its annotations. It
# refuses the rest before the function runs, so that nothing refused leaves a trace.

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)
_Check = Callable[[Any], Any]  # returns the value, converted where that loses nothing; raises _RefusedError
# The exact types whose values a check returns as they are: all of them (None), or those that pass a test.
_Quick = Mapping[type, Callable[[Any], bool] | None]
# The counts, types and names of arguments that need no binding: the least and the most positional arguments, the types of each
# up to the last that is checked, whether names are needed, a test of named arguments after so many positional ones; and the
# function that binds all others, which refuses or converts them.
_Proof = tuple[
    int, int, tuple[_Quick | None, ...], bool, Callable[[int, dict[str, Any]], bool],
    Callable[[tuple[Any, ...], dict[str, Any]], tuple[list[Any], dict[str, Any]]],
]  # fmt: skip
_LONGEST = 80  # characters of a value in a message
_EXACT = 2**53  # every integer up to it is a float

# Entered by the modules of these classes, which this module does not know: how values of other types become one (None:
# they do not), and what to do where one is missing.
CONVERTERS: dict[type, Callable[[Any], Any]] = {}
WAYS_TO: dict[type, str] = {}


class _RefusedError(Exception):
    """A value is not of a parameter's type."""


class Rule:
    """The values that a parameter takes: those that pass a check (None: any), in words, and those that surely do."""

    __slots__ = ("check", "quick", "words")  # no named tuple: one takes longer to declare than all rules take to build

    def __init__(self, check: _Check | None, words: str, quick: _Quick | None = None) -> None:
        self.check, self.words, self.quick = check, words, quick or {}


class Range(NamedTuple):
    """The bounds of a number: Annotated[int, Range(1)] is an integer of at least 1."""

    least: float = float("-inf")
    most: float = float("inf")

    def __str__(self) -> str:
        if self.least == float("-inf"):
            return f"of at most {self.most}"
        return f"of at least {self.least}" if self.most == float("inf") else f"from {self.least} to {self.most}"


def shown(value: Any) -> str:
    """Return a value for a message: short, without addresses, whatever its own text does."""
    kind: Any = type(value)
    if isinstance(value, int) and abs(value).bit_length() > 128:  # Python refuses to write thousands of digits
        return f"{'-' if value < 0 else ''}2**{abs(value).bit_length() - 1}…"
    if not (
        value is None or value is Ellipsis or kind.__module__ == "builtins" or kind.__repr__ is not object.__repr__
    ):
        return f"an object of type {kind.__name__}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) or kind is object:
        return f"an object of type {kind.__name__}"
    try:
        text = " ".join(repr(value).split())
    except (Exception, RecursionError):
        return f"an object of type {kind.__name__}"
    text = re.sub(r" (object )?at 0x[0-9a-f]+", "", text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}… ({kind.__name__})"


def _integer(value: Any) -> int:
    if isinstance(value, int):
        return value
    try:
        return operator.index(value)
    except TraceError:
        raise
    except Exception:
        raise _RefusedError from None


def _number(value: Any) -> Any:
    """Return a number a float can hold; NaN is none."""
    if isinstance(value, (str, bytes, bytearray)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise _RefusedError
    try:
        as_float = float(value)
    except TraceError:
        raise
    except Exception:
        raise _RefusedError from None
    if as_float != as_float:
        raise _RefusedError
    return value if isinstance(value, (int, float)) else as_float


def _flag(value: Any) -> Any:
    if value is True or value is False or (isinstance(value, int) and value in (0, 1)):
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise _RefusedError


def _path(value: Any) -> Any:
    """Return a path as it is; one with a NUL byte names no file."""
    try:
        text = os.fspath(value)
    except Exception:
        raise _RefusedError from None
    if not isinstance(text, str) or "\0" in text:
        raise _RefusedError
    return value


def _callable(value: Any) -> Any:
    if not callable(value):
        raise _RefusedError
    return value


def _instance(kind: Any) -> _Check:
    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        converted = CONVERTERS[kind](value) if kind in CONVERTERS else None
        if converted is None:
            raise _RefusedError
        return converted

    return check


def _nothing(value: Any) -> None:
    if value is not None:
        raise _RefusedError


_BASIC: dict[Any, Rule] = {
    int: Rule(_integer, "an integer", {int: None, bool: None}),
    float: Rule(
        _number, "a number", {float: lambda x: x == x, int: lambda n: -_EXACT <= n <= _EXACT, bool: None}
    ),  # NaN is no number
    bool: Rule(_flag, "True or False", {bool: None}),
    str: Rule(_instance(str), "a string", {str: None}),
    bytes: Rule(_instance((bytes, bytearray, memoryview)), "bytes", {bytes: None, bytearray: None, memoryview: None}),
    type(None): Rule(_nothing, "None", {type(None): None}),
}
_PATH = Rule(_path, "a path", {str: lambda text: "\0" not in text})
_FUNCTION = Rule(_callable, "a function", {types.FunctionType: None, types.BuiltinFunctionType: None})
_UNCHECKED = Rule(None, "anything")


def _is_path(annotation: Any) -> bool:
    """Return True for os.PathLike and its subclasses, of which pathlib need not be imported."""
    kind = typing.get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, os.PathLike)


def _rule_of(annotation: Any) -> Rule:
    """Return the rule of an annotation."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None:
        annotation = type(None)
    if annotation in (Any, object) or isinstance(annotation, (str, TypeVar, typing.ParamSpec)):
        return _UNCHECKED
    if annotation in _BASIC:
        return _BASIC[annotation]
    if {origin, annotation} & {Callable, abc.Callable}:
        return _FUNCTION
    if _is_path(annotation):
        return _PATH
    if origin is typing.Annotated:
        return _bounded(parts[0], [p for p in parts[1:] if isinstance(p, Range)])
    if origin in (typing.Union, types.UnionType):
        if any(_is_path(p) for p in parts):
            parts = tuple(p for p in parts if p is not str)  # the string is a path too, and checked as one
        return _either([_rule_of(p) for p in parts])
    if origin is typing.Literal:
        return _one_of(parts)
    kind = origin or annotation
    if not isinstance(kind, type):
        return _UNCHECKED
    if getattr(kind, "_is_protocol", False):
        return _with_members(kind)
    if kind is not type and issubclass(kind, abc.Iterable) and kind.__module__ in ("builtins", "collections.abc"):
        return _container(kind, parts)
    way = f" ({WAYS_TO[kind]})" if kind in WAYS_TO else ""
    return Rule(_instance(kind), f"{_with_article(kind.__name__)}{way}", {kind: None})


def _with_members(protocol: type) -> Rule:
    """Return the rule of a protocol: the value has all its public members."""
    members = {n for base in protocol.__mro__ if getattr(base, "_is_protocol", False)
               for n in (*vars(base), *vars(base).get("__annotations__", ())) if not n.startswith("_")}  # fmt: skip

    def check(value: Any) -> Any:
        if isinstance(value, type) or not all(hasattr(value, name) for name in members):
            raise _RefusedError
        return value

    return Rule(check, f"an object with {', '.join(sorted(members))}") if members else _UNCHECKED


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _plural(words: str) -> str:
    """Return "integers" for "an integer"; phrases stay as they are."""
    article, _, noun = words.partition(" ")
    return f"{noun}s" if article in ("a", "an") and " " not in noun else words


def _either(rules: list[Rule]) -> Rule:
    """Return the rule of a union: the value passes one of the checks; what needs no conversion comes first."""
    checks = [rule.check for rule in rules if rule.check is not None]
    if len(checks) < len(rules):
        return _UNCHECKED

    def check(value: Any) -> Any:
        converted: list[Any] = []
        refused: Exception = _RefusedError()
        for one in checks:
            try:
                converted.append(one(value))
            except (_RefusedError, TraceError) as error:
                refused = error
                continue
            if converted[-1] is value:
                return value
        if not converted:
            raise refused
        return converted[0]

    quick: dict[type, Callable[[Any], bool] | None] = {}
    for rule in rules:
        for kind, test in rule.quick.items():
            quick[kind] = None if test is None else quick.get(kind, test)
    return Rule(check, " or ".join(dict.fromkeys(rule.words for rule in rules)), quick)


def _one_of(allowed: tuple[Any, ...]) -> Rule:
    def check(value: Any) -> Any:
        if not any(type(value) is type(a) and value == a for a in allowed):
            raise _RefusedError
        return value

    quick = {kind: frozenset(a for a in allowed if type(a) is kind).__contains__ for kind in map(type, allowed)}
    return Rule(check, f"one of {', '.join(map(repr, allowed))}", quick)


def _bounded(kind: Any, ranges: list[Range]) -> Rule:
    rule = _rule_of(kind)
    inner = rule.check
    if inner is None or not ranges:
        return rule

    def check(value: Any) -> Any:
        converted = inner(value)
        if not all(r.least <= converted <= r.most for r in ranges):
            raise _RefusedError
        return converted

    def inside(value: Any) -> bool:
        test = rule.quick[type(value)]
        return (test is None or test(value)) and all(r.least <= value <= r.most for r in ranges)

    quick: _Quick = {kind: inside for kind in (int, float) if kind in rule.quick}
    return Rule(check, f"{rule.words} {' '.join(map(str, ranges))}", quick)


def _container(kind: Any, parts: tuple[Any, ...]) -> Rule:
    """Return the rule of a sequence, mapping or iterable; the elements of lists, tuples, sets and dicts are checked too."""
    mapping = issubclass(kind, abc.Mapping)
    elements = [_rule_of(p) for p in parts if p is not Ellipsis]
    fixed = kind is tuple and Ellipsis not in parts and parts != ()
    accepted = (list, tuple) if kind in (list, tuple) else kind  # a list where a tuple is accepted is what users write
    texts = not elements or mapping or elements[0].words == "a string" or elements[0].check is None

    def check(value: Any) -> Any:
        if isinstance(value, accepted) and not (isinstance(value, (str, bytes)) and not texts):
            if fixed and len(value) != len(elements):
                raise _RefusedError
            return _checked_elements(value, elements, mapping)
        numbers = not elements or elements[0].check in (None, _integer, _number)
        if kind is abc.Sequence and numbers and hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(
            value, (str, bytes, abc.Mapping)
        ):  # fmt: skip
            return value  # NumPy's arrays and tensors
        if kind is abc.Iterable and hasattr(value, "__getitem__") and hasattr(value, "__len__"):
            return value
        raise _RefusedError

    inside = f" of {' and '.join(dict.fromkeys(_plural(e.words) for e in elements))}" if elements else ""
    name = "a dict" if mapping else f"a tuple of {len(elements)}" if fixed else "a list or tuple"
    words = f"{name}{inside}" if not fixed else f"{name}: {', '.join(e.words for e in elements)}"
    plain = [] if mapping or fixed or len(elements) > 1 else [t for t in (list, tuple) if issubclass(t, accepted)]
    test = _all_quick(elements[0]) if elements else None
    return Rule(check, words, dict.fromkeys(plain, test))


def _all_quick(rule: Rule) -> Callable[[Any], bool] | None:
    """Return the test that each element of a list or tuple is of a quick type; None where any value passes."""
    if rule.check is None:
        return None

    def test(values: Any) -> bool:
        for value in values:
            one = rule.quick.get(type(value), _fails)
            if one is not None and not one(value):
                return False
        return True

    return test


def _fails(value: Any) -> bool:
    return False


def _checked_elements(value: Any, elements: list[Rule], mapping: bool) -> Any:
    """Return a container whose elements pass their checks; a list or tuple with those that were converted."""
    if not elements or not isinstance(value, (list, tuple, set, frozenset, dict)):
        return value
    if isinstance(value, dict):
        if not mapping:
            return value
        for rule, members in zip(elements, (list(value), list(value.values())), strict=False):
            for element in members:
                if rule.check is not None:
                    rule.check(element)
        return value
    several = len(elements) == len(value) and len(elements) > 1
    checks = [elements[i if several else 0].check for i in range(len(value))]
    converted = [e if check is None else check(e) for check, e in zip(checks, value, strict=True)]
    if type(value) not in (list, tuple) or all(c is e for c, e in zip(converted, value, strict=True)):
        return value
    return type(value)(converted)


def checks_of(function: Callable[..., Any], skip: Iterable[str] = ()) -> dict[str, Rule]:
    """Return the rule of each parameter whose annotation says what it takes."""
    names = _names_of(function)
    rules = {
        p.name: _rule_of(_resolved(p.annotation, names))
        for p in inspect.signature(function).parameters.values()
        if p.name not in skip
    }
    return {name: rule for name, rule in rules.items() if rule.check is not None}


def check_value(rule: Rule, value: Any, function: str, parameter: str) -> Any:
    """Return an argument that passes its check; raise an ArgumentError for any other."""
    try:
        return value if rule.check is None else rule.check(value)
    except _RefusedError:
        raise ArgumentError(f"{function}: {parameter} must be {rule.words}, given {shown(value)}.") from None


def _names_of(function: Callable[..., Any]) -> dict[str, Any]:
    module = sys.modules.get(function.__module__)
    return {**vars(typing), **(vars(module) if module is not None else {})}


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """Return an annotation as an object; one that names what only a type checker imports is not checked here."""
    if annotation is inspect.Parameter.empty:
        return Any
    text = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(text, str):
        return annotation
    try:
        return eval(text, names)
    except (NameError, AttributeError, TypeError):
        return Any


class _Default:
    """A default value in a signature: empty, or shown as in messages."""

    def __new__(cls, value: Any) -> Any:
        return value if value is inspect.Parameter.empty else super().__new__(cls)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return self.value.__name__ if callable(self.value) and hasattr(self.value, "__name__") else shown(self.value)


class _Parameters:
    """The parameters of a function, read from its signature at the first call: by then every annotated type exists."""

    def __init__(self, function: Callable[..., Any], own: tuple[str, ...] | None) -> None:
        self.function = function
        self.name = function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__").removesuffix(".__new__")
        parameters = list(inspect.signature(function).parameters.values())
        self.method = bool(parameters) and parameters[0].name in ("self", "cls", "_cls")
        self.checks = {} if own is None else checks_of(function, own)
        several = next((p for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self.places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.rest = None if several is None else several.name
        self.named = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
        self.open = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.required = [
            p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]

    def signature(self) -> str:
        """Return the function's name and its parameters, without their types."""
        parameters = list(inspect.signature(self.function).parameters.values())[1 if self.method else 0 :]
        plain = [p.replace(annotation=p.empty, default=_Default(p.default)) for p in parameters]
        return f"{self.name}{inspect.Signature(plain)}"

    def proof(self) -> _Proof:
        """Return what proves, without binding them, that the function takes its arguments as they are."""
        quick = {name: rule.quick for name, rule in self.checks.items()}
        places = [quick.get(p.name) for p in self.places]
        while places and places[-1] is None:
            places.pop()
        index = {p.name: i for i, p in enumerate(self.places)}
        named = {name: (index.get(name, sys.maxsize), quick.get(name)) for name in self.named}
        needed = {p.name for p in self.required} - index.keys()

        def accepts_named(count: int, kwargs: dict[str, Any]) -> bool:
            for name, value in kwargs.items():
                place, kinds = named.get(name, (-1, None))
                if place < count:  # unknown, or among the positional arguments
                    return False
                if kinds is not None and (test := kinds.get(type(value), _fails)) is not None and not test(value):
                    return False
            return needed <= kwargs.keys()

        least = sum(p in self.required for p in self.places)
        most = sys.maxsize if self.rest is not None and self.rest not in quick else len(self.places)
        return least, most, tuple(places), bool(needed), accepts_named, self.bind

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments, each checked."""
        if len(args) > len(self.places) and self.rest is None:
            raise ArgumentError(self._too_many(len(args)))
        values = [self._value(p.name, v) for p, v in zip(self.places, args, strict=False)]
        values += [self._value(self.rest, v) for v in args[len(self.places) :] if self.rest is not None]
        positional = {p.name for p in self.places[: len(args)]}
        for name in kwargs:
            if name in positional and name in self.named:
                raise ArgumentError(f"{self.name}: {name} was given twice; give it once.")
            if name not in self.named and not self.open:
                raise ArgumentError(
                    f"{self.name}: unknown argument {name!r}.{nearest(name, self.named)} Signature: {self.signature()}"
                )
        missing = [p.name for p in self.required if p.name not in positional and p.name not in kwargs]
        if missing:
            raise ArgumentError(f"{self.name}: missing {', '.join(missing)}. Signature: {self.signature()}")
        return values, {k: self._value(k, v) if k in self.named else v for k, v in kwargs.items()}

    def _too_many(self, count: int) -> str:
        own = 1 if self.method else 0
        named = [n for n in inspect.signature(self.function).parameters if n in self.named][len(self.places) :]
        hint = f"; name the others: {named[0]}=…" if named else ""
        return (
            f"{self.name}: takes {len(self.places) - own} positional arguments, {count - own} were given{hint}. "
            f"Signature: {self.signature()}"
        )

    def _value(self, name: str, value: Any) -> Any:
        return check_value(self.checks[name], value, self.name, name) if name in self.checks else value


def checked(function: _Function, own: tuple[str, ...] | None = ()) -> _Function:
    """Return a function that refuses what its signature and annotations do not take, as an ArgumentError.

    It checks the values of the parameters named in `own` itself (None: of all).
    """
    proof: _Proof | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal proof
        if proof is None:
            proof = _Parameters(function, own).proof()
        least, most, places, needs_names, accepts_named, bind = proof
        count = len(args)
        proven = least <= count <= most
        if places and proven:
            for kinds, value in zip(places, args):  # noqa: B905 - the keyword costs a tenth of the call
                if kinds is not None and (test := kinds.get(type(value), _fails)) is not None and not test(value):
                    proven = False
                    break
        if proven:
            if not kwargs and not needs_names:
                return function(*args)
            if accepts_named(count, kwargs):
                return function(*args, **kwargs)
        values, named = bind(args, kwargs)
        return function(*values, **named)

    call.__dict__["checked"] = True
    return typing.cast(_Function, call)


def checked_except(*own: str) -> Callable[[_Function], _Function]:
    """Check all arguments but these, which the function checks itself, with errors that say more."""
    return lambda function: checked(function, own)


def checked_record(kind: _Class) -> _Class:
    """Check the names and the count of a record's fields; it checks and converts their values itself."""
    plain: Any = kind
    plain.__init__ = checked(plain.__init__, None)
    return kind


def _without_arguments(kind: type) -> Callable[..., None]:
    def __init__(self: Any) -> None:  # noqa: N807
        pass

    __init__.__qualname__ = f"{kind.__qualname__}.__init__"
    return __init__


def checked_class(kind: _Class) -> _Class:
    """Check the arguments of a class's constructor and of its public methods; calls of its objects are left as they are."""
    plain: Any = kind
    if hasattr(kind, "_fields"):  # a named tuple
        plain.__new__ = checked(plain.__new__)
    elif plain.__init__ is object.__init__ and plain.__new__ is object.__new__:
        plain.__init__ = _without_arguments(kind)
    for name, value in list(vars(kind).items()):
        if (name.startswith("_") and name != "__init__") or value is vars(kind).get("__call__"):
            continue
        wrapper = type(value) if isinstance(value, (classmethod, staticmethod)) else None
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if isinstance(function, types.FunctionType) and not hasattr(function, "checked"):
            setattr(kind, name, checked(function) if wrapper is None else wrapper(checked(function)))
    return kind

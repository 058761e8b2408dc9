"""Check the arguments of public functions outside the op table: by signature and annotations; sizes and durations by text.

Knows errors alone. `checked` reads what a function takes from its signature: the names, the counts, and the types of its
annotations. It refuses the rest before the function runs, so that nothing refused leaves a trace.
"""

from __future__ import annotations

import collections.abc as abc
import functools
import inspect
import math
import operator
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from tritium.errors import ArgumentError, OutOfMemoryError, TraceError, TritiumError, hint_argument, nearest, shown

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)
_Check = Callable[[Any], Any]  # returns the value, converted where that loses nothing; raises _RefusedError
# The exact types whose values a check returns as they are: all of them (None), or those that pass a test.
_Quick = Mapping[type, Callable[[Any], bool] | None]
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
    if (
        isinstance(value, int) and -_EXACT <= value <= _EXACT
    ):  # also a size that varies, which has no float while it is traced
        return value
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
        if getattr(value, "ndim", 1) == 0:  # an array without axes has __iter__ all the same
            raise _RefusedError
        if isinstance(value, accepted) and not (isinstance(value, (str, bytes)) and not texts):
            if fixed and len(value) != len(elements):
                raise _RefusedError
            return _checked_elements(value, elements, mapping)
        numbers = not elements or elements[0].check in (None, _integer, _number)
        if kind is abc.Sequence and numbers and _is_indexed(value) and not isinstance(value, (str, bytes, abc.Mapping)):
            if elements and elements[0].check is not None and getattr(value, "ndim", 1) != 1:
                raise _RefusedError
            whole = bool(elements) and elements[0].check is _integer and hasattr(value, "tolist")
            return (
                _checked_elements(value.tolist(), elements, mapping) if whole else value
            )  # NumPy's arrays and tensors
        if kind is abc.Iterable and _is_indexed(value):
            return value
        raise _RefusedError

    listed = dict.fromkeys(_plural(e.words) for e in elements)
    inside = f" of {' and '.join(listed)}" if any(e.check is not None for e in elements) else ""
    name = "a dict" if mapping else f"a tuple of {len(elements)}" if fixed else "a list or tuple"
    words = f"{name}{inside}" if not fixed else f"{name}: {', '.join(e.words for e in elements)}"
    plain = [] if mapping or fixed or len(elements) > 1 else [t for t in (list, tuple) if issubclass(t, accepted)]
    test = _all_quick(elements[0]) if elements else None
    return Rule(check, words, dict.fromkeys(plain, test))


def _is_indexed(value: Any) -> bool:
    """Return True if a value has a length and elements; a class and an array without axes have none."""
    if isinstance(value, type) or not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        return False
    try:
        len(value)
    except Exception:
        return False
    return True


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


# Errors of Python that an argument may be the cause of, deep inside a function: it is looked at only then.
_EXPLAINED = (RecursionError, OverflowError, ValueError, MemoryError)
_DEEPEST = 100  # levels of lists in an argument
_MOST_LOOKED_AT = 100_000  # elements of an argument


def _elements(value: Any) -> Iterator[tuple[int, Any]]:
    """Yield a value and what its lists, tuples, sets and dicts hold, each with its depth; the deepest first, not all of very many."""
    waiting = [(0, value)]
    for _ in range(_MOST_LOOKED_AT):
        if not waiting:
            return
        depth, one = waiting.pop()
        yield depth, one
        inside = [*one, *one.values()] if isinstance(one, dict) else one
        if isinstance(inside, (list, tuple, set, frozenset)) and depth <= _DEEPEST:
            waiting.extend((depth + 1, element) for element in inside)


def _too_deep(value: Any) -> str:
    return f"is nested more than {_DEEPEST} levels deep" if any(d > _DEEPEST for d, _ in _elements(value)) else ""


def _too_large(value: Any) -> str:
    huge = next((n for _, n in _elements(value) if isinstance(n, int) and n.bit_length() > 63), None)
    return "" if huge is None else f"is too large, or holds a number that is: {shown(huge)}"


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
                    f"{self.name}: unknown argument {name!r}.{hint_argument(name, self.named)} Signature: {self.signature()}"
                )
        missing = [p.name for p in self.required if p.name not in positional and p.name not in kwargs]
        if missing:
            raise ArgumentError(f"{self.name}: missing {', '.join(missing)}. Signature: {self.signature()}")
        return values, {k: self._value(k, v) if k in self.named else v for k, v in kwargs.items()}

    def call_bound(
        self, positional: tuple[Any, ...], rest: tuple[Any, ...], named: dict[str, Any], keywords: dict[str, Any]
    ) -> Any:
        """Call the function with its arguments bound and checked; those that are missing were not given."""
        args = tuple(value for value in positional if value is not _MISSING) + rest
        kwargs = {name: value for name, value in keywords.items() if value is not _MISSING} | named
        values, converted = self.bind(args, kwargs)
        try:
            return self.function(*values, **converted)
        except _EXPLAINED as error:
            self.explain(error, tuple(values), (), converted)
            raise

    def explain(
        self, error: BaseException, positional: tuple[Any, ...], rest: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Raise an error of the package in place of one of Python's, where an argument is the cause."""
        if isinstance(error, TritiumError):
            return
        if isinstance(error, MemoryError):
            raise OutOfMemoryError(
                f"{self.name}: this process has no room for what was asked; ask for less, or free some first."
            ) from error
        if isinstance(error, ValueError) and "integer string conversion" not in str(error):
            return
        names = [*(p.name for p in self.places), *([] if self.rest is None else [self.rest] * len(positional + rest))]
        for name, value in (*zip(names, positional + rest, strict=False), *named.items()):
            fault = _too_deep(value) if isinstance(error, RecursionError) else _too_large(value)
            if fault:
                raise ArgumentError(f"{self.name}: {name} {fault}.") from None

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


class _Missing:
    """The value of a parameter that was not given."""


_MISSING: Any = _Missing()


class _Source(NamedTuple):
    """A function that takes plain arguments without binding them: its source, its defaults, and what its tests compare with."""

    text: str
    defaults: tuple[Any, ...]
    named_defaults: dict[str, Any]
    quick: tuple[Any, ...]


GENERATED = "<arguments of tritium>"  # the file of the functions that are generated, in tracebacks
_PATIENCE = 16  # calls that are bound before code is generated, which takes as long as binding fifty
# What a generated function does: the arguments of a call arrive as its own positional parameters, those that were named in a
# dict, where only those that may be named are looked up. Arguments of the types that a rule accepts as they are go on to the
# function; for all others, and for wrong counts and names, `_bind_` binds the arguments as they were given.
_TEMPLATE = """
def make(_bind_, _function_, _quick_):
    def call({parameters}):
        try:
            if {short}:
                return _function_({required})
        except _EXPLAINED as error:
            _quick_[0].explain(error, {positional}, _rest_, {keywords})
            raise
        if _named_:
            _given_ = {positional}
            _left_ = len(_named_)
{lookups}
            if _left_:
                return _bind_({bound})
{tests}
        try:
            return _function_({arguments})
        except _EXPLAINED as error:
            _quick_[0].explain(error, {positional}, _rest_, {keywords})
            raise
    return call
"""


def _source_of(parameters: _Parameters) -> _Source | None:
    """Return the generated function; None where it would need to know which arguments were given."""
    checks, places = parameters.checks, parameters.places
    named = [p for p in inspect.signature(parameters.function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    quick: list[Any] = [parameters]
    if parameters.open or not all(
        p.default is p.empty or p.name not in checks or _is_quick(checks[p.name], p.default) for p in (*places, *named)
    ):
        return None
    variables = {p.name: f"_{i}_" for i, p in enumerate(places)} | {p.name: p.name for p in named}
    positional = "".join(f"{variables[p.name]}, " for p in places)
    keywords = "{" + ", ".join(f"{p.name!r}: {p.name}" for p in named) + "}"
    bound = f"(_given_ if _named_ else ({positional})), _rest_, _named_, {keywords}"
    lookups = [
        f"if {v} is _MISSING and ({v} := _named_.get({p.name!r}, _MISSING)) is not _MISSING: _left_ -= 1"
        for p, v in ((p, variables[p.name]) for p in places if p.kind is p.POSITIONAL_OR_KEYWORD)
    ]
    absent = [f"{variables[p.name]} is _MISSING" for p in parameters.required if p.name not in checks]
    failures = ["_rest_"] if parameters.rest is None else []
    if parameters.rest in checks:
        failures.append(f"_rest_ and not _quick_[{len(quick)}](_rest_)")
        quick.append(_all_quick(checks[parameters.rest]))
    tests = [f"if {test}: return _bind_({bound})" for test in (*failures, *absent)]
    optional = [variables[p.name] for p in places if p.default is not p.empty]
    short = [f"{optional[0]} is _MISSING and not _named_" if optional and not named else "False"]
    short += [f"not ({test})" for test in absent]
    for p in sorted((*places, *named), key=lambda p: p.default is not p.empty):  # those that must be given come first
        v, rule = variables[p.name], checks.get(p.name)
        failure = "" if rule is None else _failure(rule, v, quick)
        if p.kind is not p.KEYWORD_ONLY and p.default is not p.empty:
            quick.append(p.default)
            tests.append(f"if {v} is _MISSING: {v} = _quick_[{len(quick) - 1}]")
            tests += [f"elif {failure}: return _bind_({bound})"] if failure else []
        elif failure:
            tests.append(f"if {failure}: return _bind_({bound})")
            short.append(f"not ({failure})")
    several = [] if parameters.rest is None else ["*_rest_"]
    text = _TEMPLATE.format(
        positional=f"({positional})", bound=bound, keywords=keywords, short=" and ".join(short),
        required=", ".join(variables[p.name] for p in places if p.default is p.empty),
        parameters=", ".join([*(variables[p.name] for p in places), *(["/"] if places else []), "*_rest_",
                              *(p.name for p in named), "**_named_"]),
        lookups="\n".join(f"            {line}" for line in lookups) or "            pass",
        tests="\n".join(f"        {line}" for line in tests) or "        pass",
        arguments=", ".join([*(variables[p.name] for p in places), *several, *(f"{p.name}={p.name}" for p in named)]),
    )  # fmt: skip
    defaults = {p.name: _MISSING if p.default is p.empty else p.default for p in named}
    return _Source(text, (_MISSING,) * len(places), defaults, tuple(quick))


def _is_quick(rule: Rule, value: Any) -> bool:
    test = rule.quick.get(type(value), _fails)
    return test is None or test(value)


def _failure(rule: Rule, variable: str, quick: list[Any]) -> str:
    """Return the test that a variable is not of a quick type; what it compares with is added to `quick`."""
    sure = frozenset(kind for kind, test in rule.quick.items() if test is None)
    parts = []
    if sure:
        only = next(iter(sure)) if len(sure) == 1 else None
        parts.append(f"type({variable}) {'not in' if only is None else 'is not'} _quick_[{len(quick)}]")
        quick.append(only or sure)
    if len(sure) < len(rule.quick):
        parts.append(f"not _quick_[{len(quick)}]({variable})")
        quick.append(functools.partial(_is_quick, rule))
    return " and ".join(parts) or "True"


def checked(function: _Function, own: tuple[str, ...] | None = ()) -> _Function:
    """Return a function that refuses what its signature and annotations do not take, as an ArgumentError.

    It checks the values of the parameters named in `own` itself (None: of all). The first call reads the signature; a
    function that is called often gets code that is written for it.
    """
    parameters: _Parameters | None = None
    calls = 0

    def start(_: Any, __: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal parameters, calls
        if parameters is None:
            parameters = _Parameters(function, own)
        calls += 1
        if calls <= _PATIENCE:
            return parameters.call_bound(args, (), kwargs, {})
        _specialise(call, parameters)
        return call(*args, **kwargs)

    _bind_, _function_, _quick_ = start, function, ()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _bind_(None, (_function_, _quick_), args, kwargs)

    call.__dict__["checked"] = True
    return typing.cast(_Function, call)


def _specialise(call: Any, parameters: _Parameters) -> None:
    """Replace the code of a function by one generated for these parameters.

    Another thread may call it meanwhile: what the new code needs comes first, and serves the old code too, which gives its
    arguments in the last two places.
    """
    cells = dict(zip(call.__code__.co_freevars, call.__closure__, strict=True))
    source = _source_of(parameters)
    if source is None:
        cells["_bind_"].cell_contents = lambda _, __, args, kwargs: parameters.call_bound(args, (), kwargs, {})
        return

    def bind(positional: Any, rest: tuple[Any, ...], named: dict[str, Any], keywords: dict[str, Any]) -> Any:
        if positional is None:
            return parameters.call_bound(tuple(named), (), keywords, {})
        return parameters.call_bound(positional, rest, named, keywords)

    namespace: dict[str, Any] = {}
    exec(compile(source.text, GENERATED, "exec"), globals(), namespace)
    code = namespace["make"](None, None, None).__code__
    cells["_bind_"].cell_contents, cells["_quick_"].cell_contents = bind, source.quick
    call.__defaults__, call.__kwdefaults__ = source.defaults, source.named_defaults
    call.__code__ = code.replace(co_name=call.__name__, co_qualname=call.__qualname__)


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


# ---- sizes and durations

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
}  # fmt: skip
SECONDS = {
    "": 1.0, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "m": 60.0,
    "min": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0, "d": 86400.0, "days": 86400.0,
}  # fmt: skip
MOST_BYTES = 1 << 60
_DURATION = r"\s*((?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:e[+-]?[0-9]{1,3})?)\s*([a-zµ]*)\s*"


def _in_units(value: str, units: Mapping[str, float]) -> tuple[int, float, int] | None:
    """Return the digits of a number with a unit ("1.5 GB"), the unit's size, and the power of ten to divide by."""
    match = re.fullmatch(r"\s*([0-9]{1,30})(?:\.([0-9]{0,30}))?\s*([a-z]*)\s*", value, re.IGNORECASE | re.ASCII)
    if match is None or match[3].lower() not in units:
        return None
    decimals = match[2] or ""
    return int(match[1] + decimals), units[match[3].lower()], 10 ** len(decimals)


def _whole(value: Any) -> int | None:
    """Return an integer; None for any other value, a bool included."""
    with suppress(_RefusedError):
        return None if isinstance(value, bool) else _integer(value)
    return None


def parse_count(where: str, value: Any, least: int, most: int = MOST_BYTES) -> int:
    """Return an integer within a range."""
    number = _whole(value)
    if number is None or not least <= number <= most:
        raise ArgumentError(
            f"{where}={shown(value)} must be {'0 or more' if least == 0 else 'positive'}: an integer from {least} to {most}."
        )
    return number


@checked
def parse_bytes(where: str, value: Any, least: int = 0, most: int = MOST_BYTES) -> int:
    """Return bytes, from their number or text such as "1GB" (10**9) or "64 KiB" (1024 bytes each), within a range."""
    number: Any = value
    if isinstance(value, str) and (parts := _in_units(value, BYTES)) is not None:
        whole, rest = divmod(parts[0] * int(parts[1]), parts[2])
        number = None if rest else whole  # "0.5 B" is no size
    nbytes = _whole(number)
    if nbytes is None:
        raise ArgumentError(
            f'{where}={shown(value)} is not a size; give whole bytes as an integer, or text such as "64 KiB" or "1GB" '
            f"(units B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)."
        )
    if not least <= nbytes <= most:
        raise ArgumentError(
            f"{where}={shown(value)} must be {'0 or more' if least == 0 else 'positive'}: from {least} to {most} bytes."
        )
    return nbytes


@checked
def parse_seconds(where: str, value: Any) -> float:
    """Return seconds above 0, from their number or text such as "1h", "5 min" or "250ms"."""
    return read_duration(value, where)


def duration_text(seconds: float) -> str:
    """Return seconds for people: 42 s, 3 min, 2.5 h."""
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


def read_duration(value: Any, where: str = "duration") -> float:
    """Return seconds above 0, from a number of them or text such as "30s", "100ms", "2min"."""
    seconds = math.nan
    if isinstance(value, str):
        match = re.fullmatch(_DURATION, value, re.IGNORECASE)
        if match is None:
            raise ArgumentError(
                f'{where}: {shown(value)} is not a duration; write "30s", "100ms", or seconds as a number.'
            )
        unit = match[2].lower()
        if unit not in SECONDS:
            raise ArgumentError(
                f"{where}: {shown(value)} has the unit {shown(match[2])}; there are ns, us, ms, s, min, h and d."
                f"{nearest(unit, SECONDS)}"
            )
        seconds = float(match[1]) * SECONDS[unit]
    elif not isinstance(value, bool):
        with suppress(_RefusedError):  # an array, a number beyond any float
            seconds = float(_number(value))
    if not 0 < seconds < math.inf:
        raise ArgumentError(
            f'{where}: a duration above 0 is needed ("30s", "100ms", or seconds), given '
            f"{'nothing' if value is None else shown(value)}."
        )
    return seconds

"""The sandbox in which chat templates run: the syntax, filters, tests and names they may use, all of them listed.

Each filter says how its value is prepared, which bounds what it produces; syntax that produces text or lists is compiled
to calls of `models.chat_budget`. What is not listed is refused by name. Imports `jinja2`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.lexer import TokenStream
from jinja2.runtime import BlockReference, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Namespace as JinjaNamespace

from tritium.escape import visible
from tritium.models.text import chat_budget as bounds
from tritium.models.text.chat_budget import (
    CASED,
    ESCAPED,
    LINE_BREAKS,
    MAX_OPTION,
    NUMBERS,
    SpentError,
    charge,
    reserve,
)

MAX_RANGE = 10_000
MAX_TOKENS = 20_000  # of a template: the largest of known models has about 5000
MAX_NAME = 200  # characters of a name in a template
MAX_PRECISION = 400  # of `round`, beyond any float

# ---- filters

Prepare = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]  # the value as the filter gets it, its result reserved


def _as_is(value: Any, _args: tuple[Any, ...], _named: dict[str, Any]) -> Any:
    return value


def _as_list(value: Any, _args: tuple[Any, ...], _named: dict[str, Any]) -> Any:
    return bounds.collect(value)


def _as_text(factor: int) -> Prepare:
    def prepare(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        text = value if isinstance(value, str) else bounds.spend(value)
        reserve(factor * len(text) + sum(len(v) for v in (*args, *named.values()) if isinstance(v, str)), 1)
        return text

    return prepare


def _as_pieces(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """A text that the filter takes apart on the way."""
    text = _as_text(CASED)(value, args, named)
    reserve(items=len(text) + 1)
    return text


def _as_sorted(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """A list that is ordered or selected by an attribute, whose path is split."""
    for option in (*args[:4], *named.values()):
        if isinstance(option, str) and len(option) > MAX_OPTION:
            raise SpentError(f"it names an attribute with more than {MAX_OPTION} characters")
    return bounds.timed(bounds.collect(value))


def _as_selected(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    paths = {"attribute": named["attribute"]} if "attribute" in named else {}
    return _as_sorted(value, args[:1], paths)


def _as_reversed(value: Any, _args: tuple[Any, ...], _named: dict[str, Any]) -> Any:
    return _as_text(1)(value, (), {}) if isinstance(value, str) else bounds.collect(value)


def _as_grouped(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    entries = list(_as_sorted(value, args, named))
    reserve(items=3 * len(entries))  # a pair and a list for each
    return bounds.timed(entries)


def _as_indented(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    text = value if isinstance(value, str) else bounds.spend(value)
    width = named.get("width", args[0] if args else 4)
    pad = len(_option(width)) * ESCAPED if isinstance(width, str) else bounds.number(width, MAX_OPTION)
    lines = sum(map(text.count, LINE_BREAKS)) + 2
    reserve(len(text) + (pad + 1) * lines, lines)
    return text


def _as_rounded(value: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    bounds.number(named.get("precision", args[0] if args else 0), MAX_PRECISION)
    return _number(value)


def _number(value: Any) -> Any:
    if not isinstance(value, (Undefined, *NUMBERS)):  # texts have `%` and `*` too
        raise TypeError(f"a number is needed, not {type(value).__name__!r}")
    return value


FILTERS: dict[str, Prepare] = {
    **dict.fromkeys("attr count d default dictsort first float int items last length".split(), _as_is),
    **dict.fromkeys("sort unique max min".split(), _as_sorted),
    **dict.fromkeys("map select reject selectattr rejectattr".split(), _as_selected),
    **dict.fromkeys("capitalize lower upper".split(), _as_text(CASED)),
    **dict.fromkeys("safe string trim truncate".split(), _as_text(1)),
    **dict.fromkeys("e escape".split(), _as_text(ESCAPED)),
    "title": _as_pieces, "groupby": _as_grouped, "indent": _as_indented, "list": _as_list, "reverse": _as_reversed, "round": _as_rounded,
    "abs": lambda value, _args, _named: _number(value),
}  # fmt: skip
LAZY = set("items map select reject selectattr rejectattr unique reverse".split())  # Jinja returns an iterator


def _bounded_filter(name: str, prepare: Prepare) -> Callable[..., Any]:
    """A filter of Jinja with its value prepared and its result deducted."""
    call = JINJA_FILTERS[name]
    first = 1 if hasattr(call, "jinja_pass_arg") else 0  # what Jinja passes before the value

    @wraps(call)  # keeps the mark by which Jinja knows what to pass
    def filter_(*args: Any, **named: Any) -> Any:
        bounds.tick()
        before, (value, *rest) = args[:first], args[first:]
        for option in (*rest, *named.values()):
            if type(option) is int:
                bounds.number(option)
        result = call(*before, prepare(value, tuple(rest), named), *rest, **named)
        if name in LAZY and not isinstance(result, str):
            # Evaluated here: CPython crashes when it frees a long chain of generators.
            return iter(bounds.weigh(bounds.collect(iter(list(result)) if name == "reverse" else result)))
        if isinstance(result, (list, tuple, dict)) and result is not value and prepare is not _as_is:
            return bounds.weigh(result)
        return charge(result) if isinstance(result, (str, int)) or name == "dictsort" else result

    return filter_


def _join(values: Any, d: Any = "", attribute: Any = None) -> str:
    entries = list(_as_sorted(values, (attribute,), {}))
    if attribute is not None:
        entries = [entry[attribute] for entry in entries]
    return bounds.join(entries, bounds.spend(d))


def _replace(s: Any, old: Any, new: Any, count: int | None = None) -> Any:
    text, old, new = (v if isinstance(v, str) else bounds.spend(v) for v in (s, old, new))
    return bounds.call_method(None, str(text), "replace", str(old), str(new), -1 if count is None else count)


def _sum(iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
    if attribute is not None:
        raise SpentError("it sums by an attribute; use map(attribute=…)|sum")
    total = _number(start)
    for value in bounds.collect(iterable):
        total = bounds.operate("+", total, _number(value))
    return total


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    return str(charge(bounds.fill(value if isinstance(value, str) else bounds.spend(value), kwargs or args)))


def _option(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_OPTION:
        raise SpentError(f"it asked for an indent or separator that is no text of at most {MAX_OPTION} characters")
    return value


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is, without HTML's escapes; deducted piece by piece."""
    if indent is not None:
        indent = _option(indent) if isinstance(indent, str) else bounds.number(indent, MAX_OPTION)
    if separators is not None:
        between, after = separators
        separators = _option(between), _option(after)
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    text = io.StringIO()
    for piece in encoder.iterencode(value):
        charge(piece)
        text.write(piece)
    reserve(text.tell())
    return text.getvalue()


def _wordcount(s: Any) -> int:
    words = re.finditer(r"\w+", s if isinstance(s, str) else bounds.spend(s))
    return sum(1 for _ in bounds.timed(words))


OWN_FILTERS: dict[str, Callable[..., Any]] = {
    "join": _join, "replace": _replace, "sum": _sum, "format": _format, "tojson": _tojson,
    "wordcount": _wordcount,
}  # replacements for filters of Jinja that allocate before their size is known  # fmt: skip

TESTS = (
    "defined undefined filter test none boolean false true integer float string mapping number sequence iterable callable"
    " sameas escaped in == eq equalto != ne > gt greaterthan ge >= < lt lessthan <= le"
).split()
OWN_TESTS: dict[str, Callable[..., Any]] = {  # Jinja's apply `%` to texts, and `str` to lists
    "odd": lambda value: _number(value) % 2 == 1,
    "even": lambda value: _number(value) % 2 == 0,
    "divisibleby": lambda value, num: _number(value) % _number(num) == 0,
    "lower": lambda value: bounds.spend(value).islower(),
    "upper": lambda value: bounds.spend(value).isupper(),
}

# ---- names


def _public(name: Any) -> str:
    """A name that a template may give to a value of its own."""
    if not isinstance(name, str):
        raise SpentError(f"it names a value with a {type(name).__name__}")
    if name.startswith("_"):
        raise SpentError(f"the name {visible(name)!r} begins with an underscore")
    return name


class Namespace(JinjaNamespace):
    """Jinja's `namespace`, without private names; it prints as its type alone, whatever it holds."""

    def __init__(*args: Any, **named: Any) -> None:  # a template may name a value `self`
        self, *values = args
        JinjaNamespace.__init__(self, {_public(name): value for name, value in _dict(*values, **named).items()})

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(_public(name), value)

    def __repr__(self) -> str:
        return "<namespace>"


def _dict(*args: Any, **named: Any) -> Any:
    if len(args) > 1:
        raise TypeError(f"dict expected at most 1 argument, got {len(args)}")
    entries = args[0] if args and isinstance(args[0], dict) else bounds.collect(args[0]) if args else ()
    reserve(items=len(entries) + len(named))
    return bounds.weigh(dict(entries, **named))


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise SpentError(f"it asked for a range of {len(numbers)}, more than {MAX_RANGE}")
    return numbers


def _raise_exception(message: Any) -> None:
    raise TemplateError(bounds.write(message))


def _strftime_now(form: Any) -> Any:
    return charge(datetime.now().strftime(bounds.write(form)[:MAX_OPTION]))


GLOBALS: dict[str, Callable[..., Any]] = {
    "range": _range, "dict": _dict, "namespace": Namespace, "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
}  # fmt: skip
LOOP = set("index index0 first last length revindex revindex0 depth depth0 previtem nextitem cycle changed".split())

# ---- the environment


def _spread(values: Any) -> Any:
    """Arguments from `*values`."""
    return bounds.collect(values)


def _spread_named(values: Any) -> Any:
    """Arguments from `**values`."""
    if not isinstance(values, dict):
        raise TypeError("arguments after ** must be a mapping")
    return charge(values)


# What compiled templates call; an environment has these as attributes, which no template can replace.
CALLS: dict[str, Callable[..., Any]] = {
    "tick": bounds.tick, "spend": bounds.spend, "weigh": bounds.weigh, "joined": bounds.join, "cut": bounds.cut,
    "loop_over": bounds.loop_over, "spread": _spread, "spread_named": _spread_named,
}  # fmt: skip
CALLABLE = frozenset([*CALLS.values(), *GLOBALS.values()])


def _named(arguments: dict[str, Any]) -> dict[str, Any]:
    """The named arguments that a template wrote: Jinja adds its own to every call in a loop or block."""
    return {name: value for name, value in arguments.items() if name not in ("_loop_vars", "_block_vars")}


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which only what is listed can be reached."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return True if a template may read this attribute."""
        if isinstance(obj, Namespace):
            return not attr.startswith("_")
        if isinstance(obj, LoopContext):
            return attr in LOOP
        if isinstance(obj, BlockReference):
            return attr == "super"
        if isinstance(obj, Macro):
            return attr in ("name", "arguments")
        if isinstance(obj, tuple) and attr in ("grouper", "list"):  # of `groupby`
            return not callable(value)
        return bounds.has_method(obj, attr)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Return an undefined value in place of an attribute that is not listed."""
        name, kind = visible(attribute), type(obj).__name__
        return self.undefined(f"templates may not use {name!r} of a {kind}", name=name, exc=SecurityError)

    def wrap_str_format(self, value: Any) -> None:
        """Leave `str.format` to `call`."""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """A binary operator."""
        return bounds.operate(operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """A call of a listed method, of a macro, a loop or a block, or of a name that the sandbox has."""
        owner = getattr(__obj, "__self__", None) if isinstance(__obj, (BuiltinMethodType, MethodType)) else None
        if owner is not None and bounds.kind_of(owner) is not None:
            return bounds.call_method(__self, owner, __obj.__name__, *args, **_named(kwargs))
        if isinstance(__obj, Macro):
            if args or kwargs:
                bounds.weigh([*args, *_named(kwargs).values()])  # they may come back as one list
        elif isinstance(__obj, LoopContext):
            args = tuple(bounds.loop_over(value, True) for value in args)
        elif not (
            isinstance(__obj, (BlockReference, Undefined))
            or (isinstance(owner, LoopContext) and __obj.__name__ in LOOP)
            or (isinstance(__obj, (FunctionType, type)) and __obj in CALLABLE)
        ):
            raise SecurityError(f"a {type(__obj).__name__} cannot be called")
        return super().call(__context, __obj, *args, **kwargs)

    def _tokenize(self, source: str, name: Any, filename: Any = None, state: Any = None) -> TokenStream:
        return TokenStream(_counted(super()._tokenize(source, name, filename, state)), name, filename)

    def _parse(self, source: str, name: Any, filename: Any) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _rewrite(tree)
        tree.set_environment(self)
        return tree


def _counted(tokens: TokenStream) -> Iterator[Any]:
    """The tokens of a template, as long as they are not too many to compile soon."""
    for count, token in enumerate(tokens):
        if count >= MAX_TOKENS:
            raise TemplateSyntaxError(f"the template has more than {MAX_TOKENS} tokens", token.lineno)
        if token.type == "name" and len(token.value) > MAX_NAME:
            raise TemplateSyntaxError(f"a name has more than {MAX_NAME} characters", token.lineno)
        yield token


class GenerationTag(Extension):
    """`{% generation %}`, which marks what an assistant said: training reads it, here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        """The block as its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def make_environment() -> Sandbox:
    """The sandbox, with the names that Hugging Face's templates use."""
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    environment.filters = {n: _bounded_filter(n, prepare) for n, prepare in FILTERS.items()} | OWN_FILTERS
    environment.tests = {n: JINJA_TESTS[n] for n in TESTS} | OWN_TESTS
    environment.globals = dict(GLOBALS)
    for name, call in CALLS.items():
        setattr(environment, name, call)
    return environment


# ---- syntax

SYNTAX = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Macro, nodes.CallBlock,
    nodes.FilterBlock, nodes.With, nodes.Block, nodes.Assign, nodes.AssignBlock, nodes.Scope, nodes.Break, nodes.Continue,
    nodes.Name, nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr,
    nodes.Filter, nodes.Test, nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat, nodes.Compare,
    nodes.Operand, nodes.BinExpr, nodes.UnaryExpr,
)  # fmt: skip


def _rewrite(node: Any) -> Any:
    """Change a tree, innermost first, so that all it produces is deducted and every loop and macro looks at the time."""
    if not isinstance(node, SYNTAX):
        raise TemplateSyntaxError(f"{type(node).__name__!r} is not allowed in a chat template", node.lineno)
    for name, value in node.iter_fields():
        if isinstance(value, list):
            value[:] = [_rewrite(v) if isinstance(v, nodes.Node) else v for v in value]
        elif isinstance(value, nodes.Node):
            setattr(node, name, _rewrite(value))
    return _bounded(node)


def _call(name: str, *args: Any) -> Any:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)


def _bounded(node: Any) -> Any:
    if isinstance(node, (nodes.Call, nodes.Filter, nodes.Test)):
        node.dyn_args = node.dyn_args and _call("spread", node.dyn_args)
        node.dyn_kwargs = node.dyn_kwargs and _call("spread_named", node.dyn_kwargs)
    elif isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)):
        node.body.insert(0, nodes.ExprStmt(_call("tick")))
        if isinstance(node, nodes.For):
            node.iter = _call("loop_over", node.iter, nodes.Const(node.test is not None))
    elif isinstance(node, nodes.Output):
        # The template's own text too: a loop writes it as often as anything else.
        node.nodes = [
            _call("spend", nodes.Const(n.data) if isinstance(n, nodes.TemplateData) else n) for n in node.nodes
        ]
    elif isinstance(node, nodes.Concat):
        return _call("joined", nodes.List(node.nodes))
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return _call("cut", node.node, *(end or nodes.Const(None) for end in ends))
    elif isinstance(node, (nodes.List, nodes.Dict)) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
        return _call("weigh", node)
    return node

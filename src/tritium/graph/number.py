"""Number: a Python number among the arguments of a traced function whose value the graph takes as an input.

Arithmetic on it is repeated by Python itself for each value, so that results keep their bits. Code that needs the value
while it is traced (a branch, a shape, a function of C) gets ValueNeededError.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tritium.dtype import DType

KINDS = (int, float)
PLAIN = (int, float, bool)


class ValueNeededError(BaseException):
    """Traced code needs the value of a number. No `except Exception` of that code may hide it."""


class Slot(NamedTuple):
    """An input of a graph that holds a number: which one, and the dtype that the ops compute in."""

    number: Number
    dtype: DType


class Numbers:
    """The numbers of one trace. Those that ops use become slots, numbered from `first` on."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.slots: list[Slot] = []
        self.needed: dict[int, str] = {}  # by position: why the value of a number was needed
        self.is_open = True  # while the function is traced; later a number is its value
        self._indices: dict[Any, int] = {}

    def index(self, number: Number, dtype: DType) -> int:
        """Return the index of the input that holds a number in a dtype."""
        key = (number.source, dtype)
        if key not in self._indices:
            self._indices[key] = self.first + len(self.slots)
            self.slots.append(Slot(number, dtype))
        return self._indices[key]


def _binary(fn: Callable[[Any, Any], Any], reflected: bool = False) -> Any:
    def method(self: Number, other: Any) -> Any:
        if type(other) is not Number and type(other) not in PLAIN:
            return NotImplemented
        return _combine(fn, other, self) if reflected else _combine(fn, self, other)

    return method


def _unary(fn: Callable[[Any], Any]) -> Any:
    return lambda self: _combine(fn, self)


def _comparison(fn: Callable[[Any, Any], bool]) -> Any:
    def method(self: Number, other: Any) -> Any:
        if type(other) is not Number and type(other) not in PLAIN:
            return NotImplemented  # a tensor compares its elements
        return fn(self._need("it is compared"), other)

    return method


class Number:
    """A number of an argument, or the result of arithmetic on some. To isinstance it is an int or a float."""

    __slots__ = ("numbers", "source", "traced")

    def __init__(self, numbers: Numbers, source: Any, traced: Any) -> None:
        self.numbers = numbers
        self.source = source  # the position among the numbers of a call, or a function and its operands
        self.traced = traced  # the value while the function is traced

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.traced)

    def evaluator(self) -> Callable[[Sequence[Any]], Any]:
        """Return a function from the numbers of a call to the value."""
        return _evaluator(self.source)

    def text(self, names: Sequence[str]) -> str:
        """Return the number as Python writes it, with these names of the numbers of a call."""
        return _text(self.source, names)

    @property
    def positions(self) -> set[int]:
        """Return the positions of the numbers of a call that it is computed from."""
        return _positions(self.source)

    def _need(self, why: str) -> Any:
        """Return the value of a number after its trace; within it, say why it must be known."""
        if self.numbers.is_open:
            for position in self.positions:
                self.numbers.needed.setdefault(position, why)
            raise ValueNeededError(why)
        return self.traced

    def __bool__(self) -> bool:
        return bool(self._need("it decides a branch"))

    def __float__(self) -> float:
        return float(self._need("it is converted with float()"))

    def __int__(self) -> int:
        return int(self._need("it is converted with int()"))

    def __index__(self) -> int:
        return operator.index(self._need("it is an index or a size"))

    def __hash__(self) -> int:
        return hash(self._need("it is an attribute of an op or a key"))

    def __repr__(self) -> str:
        return repr(self._need("it is shown as text"))

    def __format__(self, spec: str) -> str:
        return format(self._need("it is shown as text"), spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._need(f"its {name} is read"), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._need("it is copied").__reduce_ex__(protocol)

    __str__ = __repr__
    __eq__, __ne__ = _comparison(operator.eq), _comparison(operator.ne)
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)
    __add__, __radd__ = _binary(operator.add), _binary(operator.add, True)
    __sub__, __rsub__ = _binary(operator.sub), _binary(operator.sub, True)
    __mul__, __rmul__ = _binary(operator.mul), _binary(operator.mul, True)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _binary(operator.truediv, True)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _binary(operator.floordiv, True)
    __mod__, __rmod__ = _binary(operator.mod), _binary(operator.mod, True)
    __pow__, __rpow__ = _binary(operator.pow), _binary(operator.pow, True)
    __neg__, __pos__, __abs__ = _unary(operator.neg), _unary(operator.pos), _unary(operator.abs)


def _combine(fn: Callable[..., Any], *operands: Any) -> Any:
    """Return the number that a function of numbers is; the kind of its value is that of the traced one."""
    numbers = next(x.numbers for x in operands if type(x) is Number)
    traced = fn(*(x.traced if type(x) is Number else x for x in operands))
    if not numbers.is_open:
        return traced
    sources = tuple(x.source if type(x) is Number else (type(x), repr(x), x) for x in operands)
    result = Number(numbers, (fn, *sources), traced)
    if type(traced) not in KINDS:
        result._need("arithmetic on it has no real result")
    return result


def _evaluator(source: Any) -> Callable[[Sequence[Any]], Any]:
    if isinstance(source, int):
        return operator.itemgetter(source)
    if source[0] in PLAIN:
        return lambda values: source[2]
    fn, *operands = source
    first, *rest = (_evaluator(s) for s in operands)
    if not rest:
        return lambda values: fn(first(values))
    (second,) = rest
    return lambda values: fn(first(values), second(values))


def _positions(source: Any) -> set[int]:
    """Return the positions of the numbers of a call that an expression reads."""
    if isinstance(source, int):
        return {source}
    return set() if source[0] in PLAIN else {p for s in source[1:] for p in _positions(s)}


_SYMBOLS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.neg: "-", operator.pos: "+", operator.abs: "abs",
}  # fmt: skip


def _text(source: Any, names: Sequence[str]) -> str:
    if isinstance(source, int):
        return names[source]
    if source[0] in PLAIN:
        return str(source[1])
    symbol = _SYMBOLS[source[0]]
    parts = [_text(s, names) if isinstance(s, int) or s[0] in PLAIN else f"({_text(s, names)})" for s in source[1:]]
    return f" {symbol} ".join(parts) if len(parts) > 1 else f"{symbol}({parts[0]})"

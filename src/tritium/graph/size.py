"""Size: a size of an argument of a traced function that may vary, as an integer that knows how it is computed.

Arithmetic on sizes gives polynomials of them, so that every shape, stride and offset of a graph can be computed again for other
sizes. A comparison has the outcome that the traced sizes have, and is noted: the graph is valid for all sizes with the same
outcomes. Code that needs the number itself (a loop, a function of C, a key of a dict) gets SizeNeededError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tritium.buffer import native

LEAST = 2  # the smallest size that varies: 0 and 1 have rules of their own, so they have programs of their own
MOST = 1 << 24  # the largest
MAX_TERMS = 64  # of a polynomial
MAX_POWER = 8

Polynomial = tuple[tuple[tuple[int, ...], int], ...]  # terms, sorted: the atoms that are multiplied, and the factor


class SizeNeededError(BaseException):
    """Traced code needs the number of a size. No `except Exception` of that code may hide it."""


class Atom(NamedTuple):
    """A factor of polynomials: a size that varies, or a function of polynomials."""

    kind: str  # "size", "//", "%" or "max"
    operands: tuple[Polynomial, ...]  # none of a size


Bounds = tuple[float, float]  # the least and the greatest number: integers, or infinities
UNBOUNDED = (-math.inf, math.inf)


class Guard(NamedTuple):
    """A comparison of a polynomial with zero, and its outcome."""

    kind: str  # "==" or "<"
    polynomial: Polynomial
    outcome: bool


class Sizes:
    """The sizes that vary in one trace, and what was found out about them."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.labels: list[str] = []  # of the sizes, which are the first atoms
        self.values: list[int] = []  # of the atoms, while the function is traced
        self.bounds: list[Bounds] = []  # of the atoms, where the comparisons so far have the outcomes that were noted
        self.guards: dict[tuple[str, Polynomial], Guard] = {}
        self.needed: dict[int, str] = {}  # by size: why its number was needed
        self.is_open = True  # until the program is compiled; later a size is its traced number
        self.is_trusted = (
            False  # while code of this package runs, which does not decide by the hash or the text of a size
        )
        self._numbers: dict[tuple[str, tuple[Polynomial, ...]], int] = {}
        self.slots: dict[Polynomial, int] = {}  # the polynomials that a program evaluates, by their number

    def add(self, label: str, value: int) -> Size:
        """Return a new size, which has this value while the function is traced."""
        assert len(self.labels) == len(self.atoms)
        self.labels.append(label)
        self.atoms.append(Atom("size", ()))
        self.values.append(value)
        self.bounds.append((LEAST, MOST))
        return Size(self, (((len(self.atoms) - 1,), 1),), value)

    def number(self, polynomial: Polynomial) -> Any:
        """Return a polynomial as a size, or as an integer if it is constant."""
        if not polynomial:
            return 0
        if len(polynomial) == 1 and not polynomial[0][0]:
            return polynomial[0][1]
        return Size(self, polynomial, evaluate(polynomial, self.values))

    def function(self, kind: str, *operands: Polynomial) -> Any:
        """Return a function of polynomials as a size."""
        key = (kind, operands)
        if key not in self._numbers:
            self._numbers[key] = len(self.atoms)
            values = [evaluate(p, self.values) for p in operands]
            self.atoms.append(Atom(kind, operands))
            self.values.append(_apply(kind, values))
            self.bounds.append(_bounds_of(kind, [self.bounds_of(p) for p in operands]))
        return self.number((((self._numbers[key],), 1),))

    def largest(self, sizes: Iterable[Any]) -> Any:
        """Return the largest of some sizes for whatever sizes are used: no comparison is noted."""
        polynomials = tuple(dict.fromkeys(polynomial_of(x) for x in sizes))
        return self.number(polynomials[0]) if len(polynomials) == 1 else self.function("max", *polynomials)

    def bounds_of(self, polynomial: Polynomial) -> Bounds:
        """Return bounds of a polynomial."""
        low: float = 0
        high: float = 0
        for atoms, factor in polynomial:
            least: float = factor
            most: float = factor
            for a in atoms:
                ends = [_times(x, y) for x in (least, most) for y in self.bounds[a]]
                least, most = min(ends), max(ends)
            low, high = low + least, high + most
        return low, high

    def compare(self, kind: str, polynomial: Polynomial) -> bool:
        """Return the outcome of a comparison with zero, and note it unless all sizes have the same."""
        polynomial = _reduced(kind, polynomial)
        value = evaluate(polynomial, self.values)
        outcome = value == 0 if kind == "==" else value < 0
        low, high = self.bounds_of(polynomial)
        is_known = low > 0 or high < 0 or (kind == "<" and low >= 0)
        if self.is_open and not is_known and any(atoms for atoms, _ in polynomial):
            self.guards.setdefault((kind, polynomial), Guard(kind, polynomial, outcome))
            self._narrow(kind, polynomial, outcome)
        return outcome

    def _narrow(self, kind: str, polynomial: Polynomial, outcome: bool) -> None:
        """Narrow the bounds of a size that was compared with a constant."""
        if kind != "<" or not self._is_size(polynomial):
            return
        constant = sum(factor for atoms, factor in polynomial if not atoms)
        atoms, factor = next(term for term in polynomial if term[0])
        size = atoms[0]
        low, high = self.bounds[size]
        if factor > 0:  # n + constant < 0
            low, high = (low, min(high, -constant - 1)) if outcome else (max(low, -constant), high)
        else:
            low, high = (max(low, constant + 1), high) if outcome else (low, min(high, constant))
        self.bounds[size] = (low, high)

    def _is_size(self, polynomial: Polynomial) -> bool:
        """Return True for one of the sizes, with a constant added or subtracted."""
        rest = [term for term in polynomial if term[0]]
        atoms, factor = rest[0]
        return len(rest) == len(atoms) == 1 and atoms[0] < len(self.labels) and abs(factor) == 1

    @property
    def is_single(self) -> bool:
        """Return True if a size was found equal to a number, so that one value alone is served."""
        is_equal = any(g.kind == "==" and g.outcome and self._is_size(g.polynomial) for g in self.guards.values())
        return is_equal or any(low == high for low, high in self.bounds[: len(self.labels)])

    def need(self, polynomial: Polynomial, why: str) -> None:
        """Say why the number of a size must be known while it is traced."""
        for size in self.sizes_in(polynomial):
            self.needed.setdefault(size, why)
        raise SizeNeededError(why)

    def sizes_in(self, polynomial: Polynomial) -> set[int]:
        """Return the sizes that a polynomial is computed from."""
        numbers: set[int] = set()
        for atoms, _ in polynomial:
            for a in atoms:
                parts = self.atoms[a].operands
                numbers |= {a} if a < len(self.labels) else {s for p in parts for s in self.sizes_in(p)}
        return numbers

    @contextmanager
    def trusted(self, is_trusted: bool = True) -> Iterator[None]:
        """Let code inside the with block use the hash and the text of sizes, or not."""
        before, self.is_trusted = self.is_trusted, is_trusted
        try:
            yield
        finally:
            self.is_trusted = before

    def slot(self, size: Size) -> int:
        """Return the number of a size among those that a program evaluates."""
        size.slot = self.slots.setdefault(size.polynomial, len(self.slots))
        return size.slot

    def evaluate_atoms(self, sizes: Sequence[int]) -> list[int]:
        """Return the values of all atoms for other sizes."""
        values = list(sizes)
        for atom in self.atoms[len(values) :]:
            values.append(_apply(atom.kind, [evaluate(p, values) for p in atom.operands]))
        return values

    def holds(self, values: Sequence[int]) -> bool:
        """Return True if all comparisons have the outcome that they had while the function was traced."""
        if any(not LEAST <= n <= MOST for n in values[: len(self.labels)]):
            return False
        numbers = ((g, evaluate(g.polynomial, values)) for g in self.guards.values())
        return all((n == 0 if g.kind == "==" else n < 0) is g.outcome for g, n in numbers)

    def text(self, polynomial: Polynomial) -> str:
        """Return a polynomial as Python writes it, with the names of sizes."""
        return " + ".join(self._term(atoms, factor) for atoms, factor in reversed(polynomial)) or "0"

    def _term(self, atoms: tuple[int, ...], factor: int) -> str:
        names = [self._atom(a) for a in atoms]
        return " * ".join([*([str(factor)] if factor != 1 or not names else []), *names])

    def _atom(self, number: int) -> str:
        if number < len(self.labels):
            return self.labels[number]
        kind, operands = self.atoms[number]
        texts = [self.text(p) for p in operands]
        return f"max({', '.join(texts)})" if kind == "max" else f"(({texts[0]}) {kind} ({texts[1]}))"

    def conditions(self) -> list[str]:
        """Return what was noted about the sizes besides their bounds, as comparisons that hold."""
        signs = {("==", True): "==", ("==", False): "!=", ("<", True): "<", ("<", False): ">="}
        parts = []
        for g in self.guards.values():
            if g.kind == "<" and self._is_size(g.polynomial):
                continue
            left = tuple(t for t in g.polynomial if t[0])
            constant = -sum(factor for atoms, factor in g.polynomial if not atoms)
            sign = signs[g.kind, g.outcome]
            if all(factor < 0 for _, factor in left):
                left, constant = _scaled(left, -1), -constant
                sign = {"<": ">", ">=": "<="}.get(sign, sign)
            parts.append(f"{self.text(left)} {sign} {constant}")
        return parts


def _times(x: float, y: float) -> float:
    return 0 if 0 in (x, y) else x * y  # also where the other is infinite


def _bounds_of(kind: str, bounds: Sequence[Bounds]) -> Bounds:
    """Return bounds of a function of numbers with these bounds."""
    if kind == "max":
        return max(low for low, _ in bounds), max(high for _, high in bounds)
    (low, high), (divisor, most) = bounds
    if divisor != most or divisor < 1:
        return (0, math.inf) if low >= 0 and divisor > 0 else UNBOUNDED
    if kind == "%":
        return 0, divisor - 1
    return low // divisor if math.isfinite(low) else low, high // divisor if math.isfinite(high) else high


def _apply(kind: str, values: Sequence[int]) -> int:
    if kind == "max":
        return max(values)
    return values[0] // values[1] if kind == "//" else values[0] % values[1]


def evaluate(polynomial: Polynomial, values: Sequence[int]) -> int:
    """Return the value of a polynomial for values of its atoms."""
    total = 0
    for atoms, factor in polynomial:
        for a in atoms:
            factor *= values[a]
        total += factor
    return total


def polynomial_of(x: Any) -> Polynomial:
    """Return a size or an integer as a polynomial."""
    if type(x) is Size:
        return x.polynomial
    return (((), int(x)),) if x else ()


def _collect(terms: Iterable[tuple[tuple[int, ...], int]]) -> Polynomial:
    total: dict[tuple[int, ...], int] = {}
    for atoms, factor in terms:
        total[atoms] = total.get(atoms, 0) + factor
    return tuple(sorted((atoms, factor) for atoms, factor in total.items() if factor))


def _scaled(polynomial: Polynomial, factor: int) -> Polynomial:
    return tuple((atoms, factor * f) for atoms, f in polynomial)


def _product(x: Polynomial, y: Polynomial) -> Polynomial:
    return _collect((tuple(sorted((*a, *b))), f * g) for a, f in x for b, g in y)


def _reduced(kind: str, polynomial: Polynomial) -> Polynomial:
    """Return a polynomial with smaller factors whose comparison with zero has the same outcome."""
    common = math.gcd(*(factor for atoms, factor in polynomial if atoms))
    constant = sum(factor for atoms, factor in polynomial if not atoms)
    if common < 2 or (kind == "==" and constant % common):  # in the latter case it is never zero
        return polynomial if common < 2 else (((), 1),)
    return _collect((atoms, factor // common) for atoms, factor in (((), 0), *polynomial))


def _quotient(x: Polynomial, y: Polynomial) -> Polynomial | None:
    """Return the polynomial that is x // y for all sizes because y divides each term of x; None: there is none."""
    if len(y) != 1 or y[0][1] < 1:
        return None
    divisor, by = y[0]
    terms = []
    for atoms, factor in x:
        rest = list(atoms)
        for a in divisor:
            if a not in rest:
                return None
            rest.remove(a)
        if factor % by:
            return None
        terms.append((tuple(rest), factor // by))
    return _collect(terms)


def _arithmetic(fn: Callable[[Size, Any, Any], Any], reflected: bool = False) -> Any:
    def method(self: Size, other: Any) -> Any:
        if type(other) is not Size and type(other) not in (int, bool):
            return self._meet(other)
        return fn(self, other, self) if reflected else fn(self, self, other)

    return method


def _comparison(kind: str, combine: Callable[[Polynomial, Polynomial], Polynomial], outcome: bool = True) -> Any:
    def method(self: Size, other: Any) -> Any:
        if type(other) is Size and other.sizes is not self.sizes:
            return NotImplemented  # of another trace: sizes of two traces are never equal
        if type(other) is not Size and type(other) not in (int, bool):
            return self._meet(other)
        polynomial = combine(self.polynomial, polynomial_of(other))
        return self.sizes.compare(kind, polynomial) is outcome

    return method


def _difference(x: Polynomial, y: Polynomial) -> Polynomial:
    return _collect((*x, *_scaled(y, -1)))


def _add(size: Size, x: Any, y: Any) -> Any:
    return size.make(_collect((*polynomial_of(x), *polynomial_of(y))))


def _subtract(size: Size, x: Any, y: Any) -> Any:
    return size.make(_difference(polynomial_of(x), polynomial_of(y)))


def _multiply(size: Size, x: Any, y: Any) -> Any:
    return size.make(_product(polynomial_of(x), polynomial_of(y)))


def _divide(kind: str) -> Callable[[Size, Any, Any], Any]:
    def divide(size: Size, x: Any, y: Any) -> Any:
        if y == 0:
            raise ZeroDivisionError("integer division or modulo by zero")
        above, below = polynomial_of(x), polynomial_of(y)
        exact = _quotient(above, below)
        if exact is not None:
            return size.make(exact) if kind == "//" else 0
        return size.sizes.function(kind, above, below)

    return divide


def _power(size: Size, x: Any, y: Any) -> Any:
    if type(x) is not Size or type(y) is Size or not 0 <= y <= MAX_POWER:
        return size.need("it is raised to a power, or is a power")
    result: Any = 1
    for _ in range(y):
        result = result * x
    return result


def _needing(why: str, *names: str) -> Iterator[Any]:
    """Yield methods of int that need the number."""
    for name in names:

        def method(self: Size, *others: Any, fn: Any = getattr(int, name)) -> Any:
            if any(type(x) is not Size and not isinstance(x, (int, float)) for x in others):
                return NotImplemented
            return fn(self.need(why), *map(traced_value, others))

        yield method


class Size:
    """A size that varies, or the result of arithmetic on some. To isinstance it is an int."""

    __slots__ = ("polynomial", "sizes", "slot", "traced")
    varies = True  # for code that does not know this module

    def __init__(self, sizes: Sizes, polynomial: Polynomial, traced: int) -> None:
        self.sizes, self.polynomial = sizes, polynomial
        self.traced = traced  # the number while the function is traced
        self.slot = -1  # the number among those that a program evaluates
        if len(polynomial) > MAX_TERMS:
            self.need("arithmetic on it has too many terms")

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return int

    def make(self, polynomial: Polynomial) -> Any:
        return self.sizes.number(polynomial)

    def need(self, why: str) -> Any:
        """Return the number after the trace; within it, say why it must be known."""
        if self.sizes.is_open:
            self.sizes.need(self.polynomial, why)
        return self.traced

    def _meet(self, other: Any) -> Any:
        """Return what makes Python ask the other operand, unless that is another kind of number, which needs the value."""
        if isinstance(other, (int, float, complex)):
            self.need(f"it meets a {type(other).__name__}")
        return NotImplemented

    def __hash__(self) -> int:
        if self.sizes.is_open and not self.sizes.is_trusted:
            self.need("it is a key")
        return hash((id(self.sizes), self.polynomial))

    def __repr__(self) -> str:
        return repr(self.traced if self.sizes.is_trusted else self.need("it is shown as text"))

    def __format__(self, spec: str) -> str:
        return format(self.traced if self.sizes.is_trusted else self.need("it is shown as text"), spec)

    def __bool__(self) -> bool:
        return not self.sizes.compare("==", self.polynomial)

    def __index__(self) -> int:
        return int(self.need("its number is needed: it is a count, an index or an operand"))

    def __int__(self) -> int:
        return int(self.need("it is converted with int()"))

    def __float__(self) -> float:
        return float(self.need("it is converted with float()"))

    def __getattr__(self, name: str) -> Any:
        if not hasattr(int, name):  # no integer has it
            raise AttributeError(f"'int' object has no attribute {name!r}")
        return getattr(self.need(f"its {name} is read"), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.need("it is copied").__reduce_ex__(protocol)

    def bit_length(self) -> int:
        """Return the number of bits, for all sizes that have as many."""
        bits = self.traced.bit_length()
        self.sizes.compare("<", _difference(self.polynomial, (((), 1 << bits),)))
        self.sizes.compare("<", _difference(self.polynomial, (((), (1 << bits) // 2),)))
        self.sizes.compare("<", self.polynomial)
        return bits

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __neg__(self) -> Any:
        return self.make(_scaled(self.polynomial, -1))

    def __pos__(self) -> Any:
        return self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    __str__ = __repr__
    __eq__, __ne__ = _comparison("==", _difference), _comparison("==", _difference, False)
    __lt__, __ge__ = _comparison("<", _difference), _comparison("<", _difference, False)
    __gt__ = _comparison("<", lambda x, y: _difference(y, x))
    __le__ = _comparison("<", lambda x, y: _difference(y, x), False)
    __add__, __radd__ = _arithmetic(_add), _arithmetic(_add, True)
    __sub__, __rsub__ = _arithmetic(_subtract), _arithmetic(_subtract, True)
    __mul__, __rmul__ = _arithmetic(_multiply), _arithmetic(_multiply, True)
    __floordiv__, __rfloordiv__ = _arithmetic(_divide("//")), _arithmetic(_divide("//"), True)
    __mod__, __rmod__ = _arithmetic(_divide("%")), _arithmetic(_divide("%"), True)
    __pow__, __rpow__ = _arithmetic(_power), _arithmetic(_power, True)
    __truediv__, __rtruediv__ = _needing("it is divided", "__truediv__", "__rtruediv__")
    __and__, __rand__, __or__, __ror__ = _needing("its bits are read", "__and__", "__rand__", "__or__", "__ror__")
    __xor__, __rxor__, __invert__ = _needing("its bits are read", "__xor__", "__rxor__", "__invert__")
    __lshift__, __rlshift__ = _needing("its bits are shifted", "__lshift__", "__rlshift__")
    __rshift__, __rrshift__ = _needing("its bits are shifted", "__rshift__", "__rrshift__")
    __round__, __trunc__ = _needing("it is rounded", "__round__", "__trunc__")
    __floor__, __ceil__ = _needing("it is rounded", "__floor__", "__ceil__")


def traced_value(x: Any) -> int:
    """Return the number that a size has while it is traced, without a note: for choices that no result depends on."""
    value: int = x.traced if type(x) is Size else x
    return value


def sizes_of(value: Any) -> Sizes | None:
    """Return the sizes of the trace that a number varies with; None: it is a plain integer."""
    return value.sizes if type(value) is Size else None


def is_varying(value: Any) -> bool:
    """Return True if a value is a size that varies, or a tuple with one at any depth."""
    return type(value) is Size or (isinstance(value, tuple) and any(map(is_varying, value)))


def settled(value: Any, values: Sequence[int]) -> Any:
    """Return a value with the numbers of its sizes, for values of all atoms; tuples at any depth included."""
    if type(value) is Size:
        return evaluate(value.polynomial, values)
    if not isinstance(value, tuple) or not is_varying(value):
        return value
    parts = [settled(v, values) for v in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


if native is not None:
    native.set_size_type(Size)

"""Ops: each is a row of the op table with a name, a rule, a cost and samples. Calling it runs it or traces it.

Knows nothing of devices, memory or tensors: `interpreter` holds the interpreter of a call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from enum import Enum, Flag, auto
from inspect import Parameter
from itertools import islice
from math import prod
from types import FunctionType
from typing import Any, NamedTuple, Protocol

import numpy as np

from tritium import dtype as dt
from tritium.arguments import check_value, checks_of
from tritium.buffer import MAX_DIMS, Row, native
from tritium.dtype import DType, promote
from tritium.errors import ArgumentError, DTypeError, ShapeError, hint_argument, shown
from tritium.layout import Layout, Shape, check_extent, in_tiles, text, tiled_strides


class Kind(Enum):
    """The class of an op; the fuser, the planner and the cost model read it."""

    SOURCE = "source"  # makes a tensor from attributes alone
    VIEW = "view"  # another layout of the same storage
    MAP = "map"  # element by element
    REDUCE = "reduce"  # along axes: fewer elements, or each depends on its whole axis
    CONTRACT = "contract"  # sums of products
    MOVE = "move"  # copies elements to other places
    FUSED = "fused"  # several of the above as one call
    DYNAMIC = "dynamic"  # the shape of the result depends on values


class Fuse(Enum):
    """The part a row may have in a fused call; whether a device can run the call as one is its own to say."""

    NONE = "none"  # it stays a call of its own
    MAP = "map"  # a step of one pass over the elements
    FOLD = "fold"  # one number of each row, the last axis
    ROW = "row"  # a function of whole rows
    PRODUCT = "product"  # maps before and after it may run inside it
    CODES = "codes"  # it quantises: with the dequantize that alone reads its integers it may be one call
    SHAPE = "shape"  # a view that may add or drop a last axis of size 1


class Axes(Enum):
    """The axes along which an element of the result depends on the operands: the others may be a batch."""

    OWN = "own"  # in a way of its own
    EACH = "each"  # none: element by element, broadcast
    LAST = "last"  # the last ones of its one operand
    SHARED = "shared"  # the last ones of its first operand, with other operands that serve every sample
    NAMED = "named"  # those that the attribute `axis` names; None means all
    REDUCED = "reduced"  # those that `axis` names, joined; None means all as one
    FLAT = "flat"  # the one that `axis` names; None means the elements one after another


class Scale(Enum):
    """The size of which a row's `ulps` are counted."""

    RESULT = "result"  # the element itself
    UNIT = "unit"  # the element, and not less than 1/4: larger numbers cancel on the way to small ones
    TERMS = "terms"  # the sum of the sizes of the terms that were added


class Trait(Flag):
    """Properties that rewriting, planning and code generation may assume."""

    NONE = 0
    COMMUTES = auto()  # operands may change places, up to rounding and the sign of zero
    SYMMETRIC = auto()  # operands may change places, and the result keeps every bit
    ASSOCIATES = auto()  # brackets may change places, up to rounding
    IDEMPOTENT = auto()  # f(f(x)) is f(x)
    INVOLUTION = auto()  # f(f(x)) is x
    IN_PLACE = auto()  # the result, or the first of several, may be written over an input of the same layout
    NO_ROUNDING = auto()  # of half floats in wider lanes: the result is a half float already
    NO_WRAP = auto()  # of small integers in wider lanes: the result is in their range already
    ORDERS = auto()  # asks which element is larger
    KEEPS_REALS = auto()  # of real numbers the result is the operand itself
    CHEAP = auto()  # an instruction or two an element: repeating it costs less than sharing its result
    TRANSCENDENTAL = auto()  # counted as few operations an element, and takes many
    INTERNAL = auto()  # called by other functions of the package: it is no name of `tt`


class Spec(NamedTuple):
    """The type of a tensor: shape and dtype, without values."""

    shape: Shape
    dtype: DType = dt.f32

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Return bytes of the elements, packed dtypes included."""
        t = self.dtype
        return prod(in_tiles(self.shape, t.rows, t.block)) // (t.rows * t.block) * t.nbytes

    @property
    def strides(self) -> Shape:
        """Return the strides of contiguous memory."""
        return tiled_strides(self.shape, self.dtype.rows, self.dtype.block)

    def __str__(self) -> str:
        return f"{self.dtype}{text(self.shape)}"


Specs = tuple[Spec | None, ...]
Call = tuple[tuple[Any, ...], dict[str, Any]]  # a call as the user wrote it, without out


class Cost(NamedTuple):
    """The work of one call: arithmetic, and bytes that must be read and written at least once."""

    flops: int
    read: int
    written: int


class Decision(NamedTuple):
    """The decision of a rule: the dtype each input is cast to, and the result."""

    inputs: Specs
    out: Any  # Spec, or a tuple of Spec for rows of several outputs


def outputs(out: Any) -> tuple[Spec, ...]:
    """Return the result specs of a rule as a tuple."""
    return (out,) if isinstance(out, Spec) else tuple(out)


class Interpreter(Protocol):
    """An interpreter of calls: Eager runs them, Trace records them in a graph."""

    def emit(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any, call: Call | None) -> Any: ...


interpreter: ContextVar[Interpreter | None] = ContextVar("tritium_interpreter", default=None)
eager: list[Interpreter] = []  # set by eager.py: runs calls that are not traced

OPS: dict[str, Op] = {}

SCALARS = (bool, int, float, complex)
_KNOWN_LIMIT = 2048
_DISTINCT, _NESTS = frozenset((int, str, type(None))), (tuple, list)
_PLAIN_DEPTH = 16
_PLAIN = frozenset((bool, int, float, complex, str, type(None)))

Domain = Callable[[DType], DType]


def plain(value: Any, depth: int = 0) -> Any:
    """Return an attribute in Python's own types: NumPy's numbers become Python's, lists and vectors become tuples."""
    kind = type(value)
    if kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, value))):  # most of them: nothing is built
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.ndim < 2 and value.size <= MAX_DIMS and value.dtype.kind in "biufc":
        return plain(value.tolist())
    if kind is tuple or isinstance(value, list):
        if depth > MAX_DIMS:
            raise ArgumentError(f"Lists are nested {depth} deep; no attribute takes more than {MAX_DIMS} levels.")
        return tuple(plain(v, depth + 1) for v in value)
    return value


def check_dtype(context: str, shape: Any, dtype: Any, *others: Any, fill: Any = None) -> None:
    """Raise if sizes were passed one by one, so that one of them is taken for a dtype: zeros(2, 3), full(2, 3, 1.0)."""
    if shape is None or isinstance(dtype, bool) or not isinstance(dtype, (int, np.integer)):
        return
    sizes = [*(shape if isinstance(shape, (tuple, list)) else (shape,)), *(() if fill is None else (fill,)), dtype]
    sizes += [x for x in others if isinstance(x, (int, np.integer))]
    value = "" if fill is None else f", {sizes.pop()}"
    text = "(" + ", ".join(shown(plain(n)) for n in sizes) + ")"
    raise DTypeError(
        f"{context}: {shown(plain(dtype))} is not a dtype; the shape is one tuple: {context}({text}{value})."
    )


def plain_exact(value: Any) -> Any:
    """Return a hashable stand-in in which 0.0 and -0.0, 1 and 1.0 and True stay apart."""
    if isinstance(value, float):
        return (float, value.hex())
    if isinstance(value, complex):
        return (complex, repr(value))
    if isinstance(value, _NESTS) and (parts := _plain_parts(value)) is not None:
        return (tuple, parts)
    if isinstance(value, (tuple, list)):
        return tuple(plain_exact(v) for v in value)
    return (type(value), value)


def _plain_parts(value: Any, depth: int = 0) -> tuple[Any, ...] | None:
    """Return nested tuples and lists as tuples if they have nothing but integers, texts and None: of those no two different
    ones are equal. None: they have other parts, or are nested deeply."""
    parts: list[Any] = []
    for v in value:
        if type(v) not in _DISTINCT:
            v = _plain_parts(v, depth + 1) if isinstance(v, _NESTS) and depth < _PLAIN_DEPTH else None
            if v is None:
                return None
        parts.append(v)
    return tuple(parts)


exact: Callable[[Any], Any] = plain_exact if native is None else native.exact


def make_room(table: dict[Any, Any], limit: int) -> None:
    """Drop the older half of a full table: what is used goes on being found, or is found again at once."""
    if len(table) >= limit:
        for key in list(islice(table, limit // 2)):
            table.pop(key, None)


def read_parameters(rule: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, kind and default (`Parameter.empty`: none) of each parameter of a rule."""
    if not isinstance(rule, FunctionType) or hasattr(rule, "__wrapped__") or hasattr(rule, "__signature__"):
        for p in inspect.signature(rule).parameters.values():
            yield p.name, p.kind, p.default
        return
    # inspect takes 40 µs to make objects of the same facts: a tenth of the time of importing the table
    code, defaults, by_name = rule.__code__, rule.__defaults__ or (), rule.__kwdefaults__ or {}
    positional, names = code.co_argcount, code.co_varnames
    for i in range(positional):
        kind = Parameter.POSITIONAL_ONLY if i < code.co_posonlyargcount else Parameter.POSITIONAL_OR_KEYWORD
        from_end = i - positional + len(defaults)
        yield names[i], kind, defaults[from_end] if from_end >= 0 else Parameter.empty
    end = positional + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        yield names[end], Parameter.VAR_POSITIONAL, Parameter.empty
    for name in names[positional:end]:
        yield name, Parameter.KEYWORD_ONLY, by_name.get(name, Parameter.empty)


class Op(Row):
    """One op: a row of the op table."""

    __slots__ = ("aliases", "axes", "bare", "by_values", "checks", "common", "defaults", "doc", "domain", "expr", "flops", "fuses", "inputs",
                 "kind", "known", "lower", "moved", "name", "operator", "optional", "packed", "params", "positional",
                 "results", "rule", "samples", "settle", "traits", "ulps", "ulps_of", "variadic", "view")  # fmt: skip

    def __init__(
        self,
        rule: Callable[..., Any],
        kind: Kind,
        *,
        name: str | None = None,
        doc: str | None = None,
        domain: Domain | None = None,
        common: tuple[int, ...] | None = None,
        flops: Callable[..., int] | None = None,
        moved: Callable[..., tuple[int, int]] | None = None,
        by_values: int | None = None,
        expr: str | None = None,
        lower: Callable[..., Any] | None = None,
        view: Callable[..., Layout | None] | None = None,
        fuses: Fuse | None = None,
        axes: Axes | None = None,
        traits: Trait = Trait.NONE,
        ulps: float = 0,
        ulps_of: Scale | None = None,
        packed: bool = False,
        operator: str = "",
        aliases: tuple[str, ...] = (),
        results: tuple[str, ...] = (),
        settle: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        varies: str | None = None,
        samples: Sequence[Any] = (),
    ) -> None:
        super().__init__()
        self.name = name or rule.__name__
        self.kind, self.rule, self.domain, self.common = kind, rule, domain, common
        self.doc = doc or inspect.getdoc(rule) or ""
        self.flops = flops or (lambda out, *ins, **attrs: out.size)
        self.moved = moved  # bytes read and written, where that is not all of the operands
        self.by_values = by_values  # where this operand is given, its values tell how much is done: costs are a most
        self.expr, self.lower, self.view, self.traits, self.ulps = expr, lower, view, traits, ulps
        self.fuses = fuses or (Fuse.MAP if kind is Kind.MAP else Fuse.NONE)
        self.axes = axes or (Axes.EACH if kind is Kind.MAP else Axes.OWN)
        self.ulps_of = ulps_of or (Scale.TERMS if kind is Kind.CONTRACT else Scale.RESULT)
        self.packed = packed  # whether it takes packed dtypes; arithmetic does not
        self.operator, self.aliases = operator, aliases  # of Python: "add" is __add__; and other names as a method
        self.results = results  # names of several results: in a chain, the next op's inputs of these names
        self.settle = settle  # turns attributes that may be spelt in several ways into one spelling
        self.samples = tuple(samples)
        self.known: dict[Any, Decision] = {}
        self.bare: dict[str, Any] | None = None  # attributes of a call that gives none
        self.checks: dict[str, Any] | None = None  # of attributes, by the types of the rule: read at the first call
        self._read_signature()
        self.varies = varies  # a number that decides neither the spec of the result nor the kernel
        self.varies_place = -1 if varies is None else self.params.index(varies)
        self.inplace, self.keeps = bool(traits & Trait.IN_PLACE), bool(traits & Trait.KEEPS_REALS)
        OPS[self.name] = self

    def _read_signature(self) -> None:
        """Read the rule's signature: positional-only parameters are tensors, the others attributes."""
        inputs, params, optional = [], [], []
        self.variadic, self.positional = False, 0
        self.defaults: dict[str, Any] = {}
        for name, kind, default in read_parameters(self.rule):
            if kind is Parameter.VAR_POSITIONAL:
                self.variadic = True
            elif kind is Parameter.POSITIONAL_ONLY:
                inputs.append(name)
                if default is None:
                    optional.append(name)
            else:
                params.append(name)
                self.positional += kind is Parameter.POSITIONAL_OR_KEYWORD
                if default is not Parameter.empty:
                    self.defaults[name] = default
        # Users write x.sum(0) and concat([a, b], 1): the first attribute that a rule names may come by its place too.
        self.positional = min(self.positional + 1, len(params))
        self.inputs, self.params, self.optional = tuple(inputs), tuple(params), frozenset(optional)
        self.arity = -1 if self.variadic else len(inputs)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return row, (self.name,)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.doc

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def __signature__(self) -> inspect.Signature:
        """Return the signature for users: tensors first, then attributes, then `out`."""
        free = []
        for p in inspect.signature(self.rule).parameters.values():
            kind = p.kind
            if kind is p.VAR_POSITIONAL:
                p, kind = p.replace(name="arrays"), p.POSITIONAL_ONLY
            elif p.name in self.optional or p.name in self.params[: self.positional]:
                kind = p.POSITIONAL_OR_KEYWORD
            free.append(p.replace(kind=kind, annotation=p.empty))
        if self.kind not in (Kind.VIEW, Kind.DYNAMIC, Kind.SOURCE):
            free.append(inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None))
        return inspect.Signature(free)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Bind the arguments and pass them to the current interpreter."""
        out = kwargs.pop("out", None)
        call = (args, dict(kwargs))
        inputs, attrs = self.bind(args, kwargs)
        return (interpreter.get() or eager[0]).emit(self, inputs, attrs, out, call)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Separate tensors from attributes and fill in defaults."""
        if not kwargs and self.bare is not None and len(args) == self.arity:
            return args, dict(self.bare)
        inputs, attrs = self._bind(args, kwargs)
        if not kwargs and len(args) == self.arity and not self.variadic:
            self.bare = dict(attrs)  # of every call with tensors only
        return inputs, attrs

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.variadic:
            inputs, rest = (tuple(args[0]), args[1:]) if args and isinstance(args[0], (list, tuple)) else (args, ())
            if not inputs:
                raise ArgumentError(f"{self.name}: at least one tensor is needed, none was given.")
        else:
            inputs, rest = args[: self.arity], args[self.arity :]
            if len(inputs) < self.arity:
                inputs = self._named_inputs(inputs, kwargs)
        if len(rest) > self.positional:
            raise ArgumentError(self._too_many(len(args)))
        attrs = self.defaults | dict(zip(self.params, rest, strict=False))
        for name, value in kwargs.items():
            if name not in self.params:
                raise ArgumentError(self._unknown(name))
            if name in self.params[: len(rest)]:
                raise ArgumentError(f"{self.name}: {name} was given twice.")
            attrs[name] = value
        if len(attrs) < len(self.params):
            missing = ", ".join(p for p in self.params if p not in attrs)
            raise ArgumentError(f"{self.name}: missing {missing}. Signature: {self.name}{self.__signature__}")
        if self.checks is None:
            own = ("axis", "dtype", "device")  # these have errors of their own
            self.checks = {} if Trait.INTERNAL in self.traits else checks_of(self.rule, own)
        for name, value in attrs.items():
            attrs[name] = value if name == "dtype" else plain(value)
        if attrs.get("dtype") is not None:
            fill, device = attrs.get("fill_value"), attrs.get("device")
            check_dtype(self.name, attrs.get("shape"), attrs["dtype"], device, fill=fill)
            attrs["dtype"] = dt.dtype(attrs["dtype"])
        if self.settle is not None:
            attrs = self.settle(attrs)
        for name in attrs.keys() & self.checks.keys() if self.checks else ():
            if attrs[name] is not self.defaults.get(name):
                attrs[name] = check_value(self.checks[name], attrs[name], self.name, name)
        return inputs, attrs

    def complete(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return attributes with the defaults of those left out, settled."""
        full = self.defaults | attrs
        return full if self.settle is None else self.settle(full)

    def _too_many(self, count: int) -> str:
        if self.positional < len(self.params):
            name = self.params[self.positional]
            return f"{self.name}: {name} must be named: {self.name}(…, {name}=…). Signature: {self.name}{self.__signature__}"
        return f"{self.name}: takes {self.arity + self.positional} positional arguments, {count} were given."

    def _named_inputs(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        result = list(inputs)
        for name in self.inputs[len(inputs) :]:
            if name in kwargs:
                result.append(kwargs.pop(name))
            elif name in self.optional:
                result.append(None)
            else:
                unknown = next((k for k in kwargs if k not in self.params), None)
                if unknown is not None:
                    raise ArgumentError(self._unknown(unknown))
                raise ArgumentError(f"{self.name}: missing {name}. Signature: {self.name}{self.__signature__}")
        return tuple(result)

    def _unknown(self, name: str) -> str:
        known = [*self.inputs, *self.params, "out"]
        hint = hint_argument(name, known)
        return f"{self.name}: unknown argument {name!r}.{hint} Signature: {self.name}{self.__signature__}"

    def check_given(self, x: Any, index: int) -> None:
        """Raise if an operand that is not optional is None."""
        if x is None and (self.variadic or self.inputs[index] not in self.optional):
            name = "an input" if self.variadic else self.inputs[index]
            raise ArgumentError(f"{self.name}: {name} is None; a tensor or a number is needed.")

    def decide(self, specs: Specs, attrs: dict[str, Any]) -> Decision:
        """Return the rule's decision for these specs, cached. Weak specs (Python scalars) take the common dtype."""
        try:
            key = (specs, exact(tuple(attrs.values())) if attrs else ())
            decision = self.known.get(key)
        except TypeError:
            raise ArgumentError(self._without_hash(attrs)) from None
        if decision is None:
            make_room(self.known, _KNOWN_LIMIT)
            decision = self.known[key] = self._decide(specs, attrs)
        return decision

    def _without_hash(self, attrs: dict[str, Any]) -> str:
        """Return the message for an attribute that is no number, name or tuple: it has no hash."""
        for name, value in attrs.items():
            try:
                hash(exact(value))
            except TypeError:
                return f"{self.name}: {name} cannot be {shown(value)}. Signature: {self.name}{self.__signature__}"
        return f"{self.name}: an attribute is of a wrong type. Signature: {self.name}{self.__signature__}"

    def _decide(self, specs: Specs, attrs: dict[str, Any]) -> Decision:
        if not self.packed:
            self._refuse_packed(specs, attrs.get("dtype"))
        which = [i for i, s in enumerate(specs) if s is not None and (self.common is None or i in self.common)]
        try:
            if which:
                target = promote(*(s.dtype for i in which if (s := specs[i]) is not None))
                target = self.domain(target) if self.domain else target
                specs = tuple(Spec(s.shape, target) if s is not None and i in which else s for i, s in enumerate(specs))
            specs = tuple(Spec(s.shape, promote(s.dtype)) if s is not None and s.dtype.weak else s for s in specs)
            answer = self.rule(*specs, **attrs)
            decision = answer if isinstance(answer, Decision) else Decision(specs, answer)
        except DTypeError as error:
            if str(error).startswith(f"{self.name}:"):
                raise
            operands = ", ".join(str(s) for s in specs if s is not None)
            suffix = f" Given {operands}." if operands else ""
            raise DTypeError(f"{self.name}: {error}{suffix}") from None
        for s in outputs(decision.out):
            if self.kind is not Kind.DYNAMIC:
                check_extent(in_tiles(s.shape, s.dtype.rows, s.dtype.block), self.name)
            if len(s.shape) > MAX_DIMS:
                raise ShapeError(f"{self.name}: {len(s.shape)} dimensions were asked; at most {MAX_DIMS} are possible.")
        return decision

    def _refuse_packed(self, specs: Specs, dtype: DType | None) -> None:
        if dtype is not None and dtype.is_packed:
            raise DTypeError(
                f"{self.name}: {dtype} is packed, and {self.name} does not write packed elements; quantise floats with "
                f"tritium.quant, or pack integers with repack(x, {dtype.name!r})."
            )
        for s in specs:
            if s is not None and s.dtype.is_packed:
                raise DTypeError(
                    f"{self.name}: {s} is packed, and {self.name} does not read packed elements; dequantize() it first "
                    f"(or repack(w, 'i8') for its integers)."
                )

    def cost(self, out: Any, *ins: Spec | None, **attrs: Any) -> Cost:
        """Return the cost of one call on these specs. A view costs nothing."""
        outs = outputs(out)
        if self.kind is Kind.VIEW:
            return Cost(0, 0, 0)
        flops = self.flops(outs[0], *ins, **attrs)
        if self.moved is not None:
            return Cost(flops, *self.moved(outs[0], *ins, **attrs))
        return Cost(flops, sum(s.nbytes for s in ins if s is not None), sum(s.nbytes for s in outs))

    def tells_cost(self, ins: Specs) -> bool:
        """Return True if specs determine the cost of a call, False if it depends on values."""
        return self.by_values is None or len(ins) <= self.by_values or ins[self.by_values] is None


def row(name: str) -> Op:
    """Return the op of a name."""
    return OPS[name]


def op(kind: Kind, **columns: Any) -> Callable[[Callable[..., Any]], Op]:
    """Make a row of the function below: its name, parameters and docstring are the row's."""
    return lambda rule: Op(rule, kind, **columns)

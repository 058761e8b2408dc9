"""einsum: sums of products over named indices, contracted in the cheapest order, and the path that describes it.

A path is plain data; running it is a small loop over ops, so an einsum is traced like any other calls.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations, takewhile
from math import prod
from typing import Any

import numpy as np

from tritium import dtype as dt, ops
from tritium.arguments import GENERATED, checked, checked_except
from tritium.contract.lowering import Contraction, Operand, Order, Terms, count_text, lower, parse, sizes_of
from tritium.errors import ArgumentError, DTypeError, ShapeError, TritiumError, shown
from tritium.fragment import Step
from tritium.functions import asarray
from tritium.interop import adopt_foreign, is_foreign
from tritium.op import SCALARS, Kind, Spec, make_room
from tritium.quant import Quantized
from tritium.tensor import Tensor

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
FIRST_SYMBOL = 0xC0  # the first letter above ASCII
MAX_INDICES = 1 << 16  # numbers of indices in NumPy's other form
VALUES = (Tensor, Quantized, *SCALARS)
PATH_CACHE_SIZE = 512
SPEC_CHARS = 80  # of a spec string, in messages

# Bounds of the search for an order. They count operands and trials, not seconds, so that an einsum has one order everywhere.
OPTIMAL_OPERANDS = 5  # searched exhaustively
DYNAMIC_OPERANDS = (
    16  # searched by dynamic programming, whose time grows with the pairs of operands that share an index:
)
DYNAMIC_PAIRS = 2.5  # at most so many for each operand
GREEDY_TRIALS = 128  # of randomised greedy search
GREEDY_JOINS = 2048  # in all trials together


@dataclass(frozen=True)
class Path:
    """The steps of an einsum, their order and their cost. `print(path)` shows a line for each contraction."""

    spec: str
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]  # values: the operands, the scales of those that have one, then one for each step
    contractions: tuple[Contraction, ...]
    result: int  # the number of the value that is the result
    out: Spec
    naive_flops: int  # of one loop over all indices
    calls: tuple[Any, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "calls", tuple(_calls(self.steps, self.result, len(self.operands))))

    @cached_property
    def run(self) -> Callable[..., Tensor]:
        """Return a function of the operands that makes the calls one after another; a loop over them takes twice as long."""
        return _compile(self.calls, self.result, len(self.operands))

    @property
    def flops(self) -> int:
        return sum(c.cost.flops for c in self.contractions)

    @property
    def bytes(self) -> int:
        """Return the bytes read and written by all steps."""
        return sum(c.nbytes for c in self.contractions)

    @property
    def copies(self) -> int:
        """Return the number of operands or intermediates that must be copied before a product can read them."""
        return sum(c.copies for c in self.contractions)

    @property
    def largest(self) -> Spec | None:
        """Return the largest intermediate that takes memory; None where there is none."""
        intermediates = (c.out for c in self.contractions[:-1] if c.cost.written)
        return max(intermediates, key=lambda s: s.nbytes, default=None)

    def __str__(self) -> str:
        table = [
            (str(i), c.names, c.rows, str(c.out), f"{c.cost.flops:,} flops", f"{c.nbytes:,} bytes",
             count_text(c.copies, "copy", "copies"))
            for i, c in enumerate(self.contractions, 1)
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        sides = (str.rjust, str.ljust, str.ljust, str.ljust, str.rjust, str.rjust, str.rjust)
        lines = ["  ".join(to(text, n) for to, text, n in zip(sides, row, widths, strict=True)) for row in table]
        inner = "none" if self.largest is None else f"{self.largest} ({self.largest.nbytes:,} bytes)"
        total = (
            f"{self.flops:,} flops (naive {self.naive_flops:,}), {self.bytes:,} bytes, "
            f"{count_text(self.copies, 'copy', 'copies')}, largest intermediate {inner}"
        )
        operands = ", ".join(str(o.spec) for o in self.operands)
        return "\n  ".join([f"{self.spec}: {operands}", *lines, total])


def _calls(steps: tuple[Step, ...], result: int, operands: int) -> Iterator[tuple[Any, ...]]:
    """Yield the steps ready to be called: op, inputs, positional and keyword attributes, and the intermediates to free after."""
    last = {v: n for n, s in enumerate(steps) for v in s.inputs if v is not None and operands <= v != result}
    for n, s in enumerate(steps):
        by_name = dict(s.attrs)
        by_place = s.op.params[: s.op.positional] if len(s.inputs) == s.op.arity else ()
        args = tuple(by_name.pop(p) for p in takewhile(by_name.__contains__, by_place))
        yield s.op, s.inputs, args, by_name, tuple(v for v, use in last.items() if use == n)


def _compile(calls: tuple[Any, ...], result: int, operands: int) -> Callable[..., Tensor]:
    """Return the calls of a path as one function of its operands, none of which has a scale."""
    names: dict[str, Any] = {"device_of": _device}

    def named(value: Any) -> str:
        names[name := f"c{len(names)}"] = value
        return name

    lines = [f"def run({', '.join(f'v{i}' for i in range(operands))}):"]
    for n, (op, inputs, args, attrs, done) in enumerate(calls, operands):
        parts = [*(f"v{i}" for i in inputs), *map(named, args), *(f"{k}={named(v)}" for k, v in attrs.items())]
        parts += [] if inputs or attrs else ["device=device_of(v0)"]
        lines.append(f" v{n} = {named(op)}({', '.join(parts)})")
        lines += [f" v{i} = None" for i in done]
    exec(compile("\n".join([*lines, f" return v{result}"]), GENERATED, "exec"), names)
    run: Callable[..., Tensor] = names["run"]
    return run


# ---- the user's side


@checked_except("out")
def einsum(spec: Any, *operands: Any, out: Tensor | None = None) -> Tensor:
    """Sum products of tensors over the indices that the result does not name: einsum('ij,jk->ik', a, b).

    Also einsum('ij,jk->ik', [a, b]) and, as in NumPy, einsum(a, [0, 1], b, [1, 2], [0, 2]). The result is a
    view where one operand only changes its layout (a transpose, a diagonal). With `out` it is written into that tensor's
    memory, which may be that of an operand.
    """
    if out is None and {*map(type, operands)} == {Tensor} and type(spec) is str:
        if len(operands) == 2:  # most calls, without a loop
            x, y = operands
            key: Any = (spec, x.shape, x.strides, id(x.dtype), y.shape, y.strides, id(y.dtype))
        else:
            key = (spec, *[(x.shape, x.strides, id(x.dtype)) for x in operands])
        path = _recent.get(key)
        if path is None:
            make_room(_recent, PATH_CACHE_SIZE)
            path = _recent[key] = plan(spec, _describe(spec, operands, VALUES)[0])
        return path.run(*operands)
    if not isinstance(spec, str):
        spec, operands = _to_text((spec, *operands))
    described, values = _describe(spec, operands, VALUES)
    path = plan(spec, described)
    if out is not None:
        _check_out(path, out)
    return _run(path, values, out)


_recent: dict[Any, Path] = {}  # plans of calls with tensors only, by what is quick to compare; a dtype lives for ever


def _run(path: Path, values: list[Any], out: Tensor | None) -> Tensor:
    """Run the steps of a path on values: the operands, and the scales of those that have one."""
    for step, (op, inputs, args, attrs, done) in enumerate(path.calls, len(values)):
        keywords = attrs if out is None or step != path.result or op.kind is Kind.VIEW else {**attrs, "out": out}
        if keywords:
            value = op(*[values[i] for i in inputs], *args, **keywords)
        elif inputs:
            value = op(*[values[i] for i in inputs], *args)
        else:
            value = op(*args, device=_device(values[0]))
        values.append(value)
        for i in done:
            values[i] = None
    result: Tensor = values[path.result]
    return result if out is None or result is out else ops.copy(result, out=out)


def _check_out(path: Path, out: Any) -> None:
    """Raise before anything is computed if the result cannot be written to `out`."""
    if not isinstance(out, Tensor):
        raise ArgumentError(
            f"einsum: out must be a tensor, given {type(out).__name__}; tritium.asarray(a) is one on a NumPy array's memory."
        )
    if out.shape != path.out.shape:
        raise ShapeError(f"einsum: the result is {path.out}, but out is {out.spec}; pass a tensor of that shape.")
    if not dt.same_kind(path.out.dtype, out.dtype):
        raise DTypeError(
            f"einsum: the result is {path.out}, which cannot be stored in {out.dtype} without losing its kind; "
            f"pass an out of {path.out.dtype}, or cast the result with .to({out.dtype.name!r})."
        )


@checked
def einsum_path(spec: Any, *operands: Any) -> Path:
    """Return the path einsum would take with these tensors, or with tensors of these Specs, and its cost."""
    if not isinstance(spec, str):
        spec, operands = _to_text((spec, *operands))
    return plan(spec, _describe(spec, operands, (*VALUES, Spec))[0])


def _describe(spec: str, operands: tuple[Any, ...], allowed: tuple[Any, ...]) -> tuple[tuple[Operand, ...], list[Any]]:
    """Return the operands as the plan needs them, and the values its steps start with."""
    if {*map(type, operands)} == {Tensor}:
        return tuple([Operand(x.shape, x.dtype, x.strides) for x in operands]), list(operands)
    if len(operands) == 1 and isinstance(operands[0], list):
        operands = tuple(operands[0])
    operands = _convert(spec, operands, allowed)
    described: list[Operand] = []
    values, scales = list(operands), []
    for i, x in enumerate(operands):
        if isinstance(x, Quantized):
            assert x.scale is not None
            described.append(Operand(x.shape, x.data.dtype, x.data.strides, x.scale.spec, x.group))
            values[i] = x.data
            scales.append(x.scale)
        else:
            described.append(Operand(x.shape, x.dtype, x.strides))
    return tuple(described), values + scales


def _convert(spec: str, operands: tuple[Any, ...], allowed: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands as tensors: arrays of other libraries in place, numbers in the dtype of the rest, fp16 weights unwrapped."""
    converted = list(operands)
    for i, x in enumerate(operands):
        if isinstance(x, Quantized):
            if x.zero is not None:
                raise DTypeError(
                    f"einsum {spec!r}: operand {i} ({x.data.spec}) has zero points, which no product reads; "
                    f"dequantize() it first."
                )
            converted[i] = x.data if x.scale is None else x
        elif isinstance(x, (np.ndarray, np.generic)):
            converted[i] = asarray(x) if isinstance(x, np.ndarray) else x.item()
        elif is_foreign(x):
            converted[i] = adopt_foreign(x)
        elif not isinstance(x, allowed):
            raise ArgumentError(
                f"einsum {spec!r}: operand {i} is {type(x).__name__}, not a tensor or a number; "
                f"make a tensor with tritium.tensor(…)."
            )
    numbers = [dt.of_scalar(x) for x in converted if isinstance(x, SCALARS)]
    if numbers:
        tensors = [x for x in converted if isinstance(x, (Tensor, Spec)) and not x.dtype.is_packed]
        kind = dt.promote(*numbers, *(x.dtype for x in tensors))
        device = next((_device(x) for x in tensors if isinstance(x, Tensor)), None)
        converted = [ops.full((), x, kind, device) if isinstance(x, SCALARS) else x for x in converted]
    return tuple(converted)


def _device(x: Any) -> Any:
    return None if x.is_traced else x.device


def _symbol(i: int) -> str:
    """Return the character that stands for a numbered index: a letter, or one above ASCII that is no surrogate."""
    if i < len(LETTERS):
        return LETTERS[i]
    code = FIRST_SYMBOL + i - len(LETTERS)
    return chr(code if code < 0xD800 else code + 0x800)


def _to_text(args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Return the spec string and the operands for NumPy's other form, in which a list of numbers follows each operand."""
    known: Counter[Any] = Counter()

    def term(indices: Any) -> str:
        if not isinstance(indices, (list, tuple)):
            raise ArgumentError(
                f"einsum: each operand must be followed by a list of its indices, given {type(indices).__name__}; "
                f"write einsum(a, [0, 1], b, [1, 2], [0, 2]) or einsum('ij,jk->ik', a, b)."
            )
        for i in indices:
            if i is not Ellipsis and (isinstance(i, bool) or not hasattr(i, "__index__") or not 0 <= i < MAX_INDICES):
                raise ArgumentError(
                    f"einsum: {shown(i)} is no index; use integers from 0 to {MAX_INDICES - 1}, or ... (Ellipsis)."
                )
        known.update(indices)
        return "".join("..." if i is Ellipsis else _symbol(i) for i in indices)

    inputs = ",".join([term(names) for names in args[1::2]])
    if len(args) % 2:
        return f"{inputs}->{term(args[-1])}", args[:-1:2]
    dots = [Ellipsis] if known.pop(Ellipsis, 0) else []
    return f"{inputs}->{term(dots + sorted(i for i, n in known.items() if n == 1))}", args[::2]


# ---- the order


@lru_cache(maxsize=PATH_CACHE_SIZE)
def plan(spec: str, operands: tuple[Operand, ...]) -> Path:
    """Return the cheapest of a few contraction orders, by the flops and bytes of their steps."""
    context = f"einsum {spec if len(spec) <= SPEC_CHARS else spec[: SPEC_CHARS - 1] + '…'!r}"
    terms = parse(spec, operands, context)
    sizes = sizes_of(terms, operands, context)
    candidates = []
    rejections: list[TritiumError] = []
    for order in _orders(terms, sizes, operands):
        try:
            candidates.append(lower(terms, sizes, operands, order, context))
        except (
            DTypeError,
            ShapeError,
        ) as error:  # quantised weights, and large intermediates, may fit in another order
            rejections.append(error)
    if not candidates:
        raise _rejection(rejections, context)
    best = min(candidates, key=lambda lowered: lowered.cost)
    naive = prod(sizes.values()) * (max(1, len(operands) - 1) + (len(sizes) > len(terms.out)))
    return Path(spec, operands, best.steps, best.contractions, best.result, best.out, naive)


def _rejection(rejections: list[TritiumError], context: str) -> TritiumError:
    """Return the error for operands that no order can join."""
    by_dtype = next((e for e in rejections if isinstance(e, DTypeError)), None)
    if by_dtype is not None:
        return by_dtype
    return ShapeError(
        f"{context}: in each of the {count_text(len(rejections), 'order', 'orders')} tried a result is too large for a tensor "
        f"({str(rejections[-1]).rstrip('.')}); contract some of the operands first, or name fewer indices in the result."
    )


def _orders(terms: Terms, sizes: dict[str, int], operands: tuple[Operand, ...]) -> list[Order | None]:
    """Return the candidate orders; None stands for joining values as quantised weights allow."""
    n = len(operands)
    left_to_right: Order = ((0, 1), *((0, k) for k in range(n - 2, 0, -1))) if n > 1 else ()
    orders: dict[Order | None, None] = {left_to_right: None}
    if any(o.is_weight for o in operands):
        orders[None] = None
    if n > 2:
        # Axes of size 1 that others broadcast, and diagonals, are removed before the first product.
        inner = [
            frozenset(s for s, m in zip(names, o.shape, strict=True) if m == sizes[s])
            for names, o in zip(terms.inputs, operands, strict=True)
        ]
        for path in _search(inner, frozenset(terms.out), sizes):
            orders[tuple(tuple(pair) for pair in path)] = None
    return list(orders)


def _search(inputs: list[frozenset[str]], out: frozenset[str], sizes: dict[str, int]) -> Iterator[Any]:
    """Yield the orders of opt_einsum's algorithms whose time is bounded for so many operands."""
    from opt_einsum import paths  # here, since most programs never need it
    from opt_einsum.path_random import RandomGreedy

    n = len(inputs)
    yield paths.greedy(inputs, out, sizes, None)
    if n <= OPTIMAL_OPERANDS:
        yield paths.optimal(inputs, out, sizes, None)
    elif n <= DYNAMIC_OPERANDS and sum(not a.isdisjoint(b) for a, b in combinations(inputs, 2)) <= DYNAMIC_PAIRS * n:
        yield paths.dynamic_programming(inputs, out, sizes, None)
    else:
        search = RandomGreedy(max_repeats=min(GREEDY_TRIALS, GREEDY_JOINS // n + 1))
        state = random.getstate()  # the search seeds Python's global generator, which is the user's
        try:
            path = search(inputs, out, sizes, None)
        finally:
            random.setstate(state)
        yield path

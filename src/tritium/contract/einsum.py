"""Sums of products by the names of their indices: einsum, in the order that costs least, and the path that tells it.

Knows nothing of kernels or devices. A path is plain data; running it is a small loop over rows, so an einsum met while
tracing is written down like any other calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tritium import dtype as dt, ops
from tritium.contract.lowering import Contraction, Operand, Order, Terms, count_text, lower, parse, sizes_of
from tritium.errors import ArgumentError, DTypeError
from tritium.fragment import Step
from tritium.functions import asarray
from tritium.op import SCALARS, Spec
from tritium.quant import Quantized
from tritium.tensor import Tensor

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
VALUES = (Tensor, Quantized, *SCALARS)
PATHS_KEPT = 512
SEARCHES = {5: ("optimal", "greedy"), 10**9: ("auto-hq", "greedy")}  # up to so many operands: opt_einsum's names


@dataclass(frozen=True)
class Path:
    """The steps of an einsum, their order and their cost. `print(path)` shows a line for each contraction."""

    spec: str
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]  # values: the operands, the scales of those that have one, then one for each step
    contractions: tuple[Contraction, ...]
    result: int  # the value that comes out
    out: Spec
    naive_flops: int  # of one loop over all indices
    calls: tuple[Any, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "calls", tuple(_calls(self.steps, self.result, len(self.operands))))

    @property
    def flops(self) -> int:
        return sum(c.cost.flops for c in self.contractions)

    @property
    def bytes(self) -> int:
        """Read and written by all steps."""
        return sum(c.nbytes for c in self.contractions)

    @property
    def copies(self) -> int:
        """Operands or intermediates whose elements must move before a product can read them."""
        return sum(c.copies for c in self.contractions)

    @property
    def largest(self) -> Spec | None:
        """The largest intermediate that takes memory; None when there is none."""
        made = (c.out for c in self.contractions[:-1] if c.cost.written)
        return max(made, key=lambda s: s.nbytes, default=None)

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
        given = ", ".join(str(o.spec) for o in self.operands)
        return "\n  ".join([f"{self.spec}: {given}", *lines, total])


def _calls(steps: tuple[Step, ...], result: int, operands: int) -> Iterator[tuple[Any, ...]]:
    """Steps ready to be called: row, values, attributes by place and by name, and what was made and nobody reads after."""
    last = {v: n for n, s in enumerate(steps) for v in s.inputs if v is not None and operands <= v != result}
    for n, s in enumerate(steps):
        by_name = dict(s.attrs)
        by_place = s.op.params[: s.op.positional] if len(s.inputs) == s.op.arity else ()
        args = tuple(by_name.pop(p) for p in by_place if p in by_name)
        yield s.op, s.inputs, args, by_name, tuple(v for v, at in last.items() if at == n)


# ---- the user's side


def einsum(spec: Any, *operands: Any) -> Tensor:
    """Products of tensors summed over the indices that the result does not name: einsum('ij,jk->ik', a, b).

    Also einsum('ij,jk->ik', [a, b]) and, as in NumPy, einsum(a, [0, 1], b, [1, 2], [0, 2]). Of one operand that is only
    looked at differently (a transpose, a diagonal) the result is a view.
    """
    if not isinstance(spec, str):
        spec, operands = _written((spec, *operands))
    described, values = _described(spec, operands, VALUES)
    path = plan(spec, described)
    for op, inputs, args, attrs, done in path.calls:
        if attrs:
            made = op(*[values[i] for i in inputs], *args, **attrs)
        elif inputs:
            made = op(*[values[i] for i in inputs], *args)
        else:
            made = op(*args, device=_device(values[0]))
        values.append(made)
        for i in done:
            values[i] = None
    return values[path.result]


def einsum_path(spec: Any, *operands: Any) -> Path:
    """What einsum would do with these tensors, or with tensors of these Specs, and what it costs."""
    if not isinstance(spec, str):
        spec, operands = _written((spec, *operands))
    return plan(spec, _described(spec, operands, (*VALUES, Spec))[0])


def _described(spec: str, operands: tuple[Any, ...], allowed: tuple[Any, ...]) -> tuple[tuple[Operand, ...], list[Any]]:
    """What the plan must know of the operands, and the values its steps begin with."""
    if {*map(type, operands)} == {Tensor}:
        return tuple([Operand(x.shape, x.dtype, x.strides) for x in operands]), list(operands)
    if len(operands) == 1 and isinstance(operands[0], list):
        operands = tuple(operands[0])
    operands = _ready(spec, operands, allowed)
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


def _ready(spec: str, operands: tuple[Any, ...], allowed: tuple[Any, ...]) -> tuple[Any, ...]:
    """NumPy arrays looked at in place, numbers in the dtype of the rest, half floats out of their wrapping."""
    found = list(operands)
    for i, x in enumerate(operands):
        if isinstance(x, Quantized):
            if x.zero is not None:
                raise DTypeError(
                    f"einsum {spec!r}: operand {i} ({x.data.spec}) has zero points, which no product reads; "
                    f"dequantize() it first."
                )
            found[i] = x.data if x.scale is None else x
        elif isinstance(x, (np.ndarray, np.generic)):
            found[i] = asarray(x) if isinstance(x, np.ndarray) else x.item()
        elif not isinstance(x, allowed):
            raise ArgumentError(
                f"einsum {spec!r}: operand {i} is {type(x).__name__}, not a tensor or a number; "
                f"make a tensor with tritium.tensor(…)."
            )
    numbers = [dt.of_scalar(x) for x in found if isinstance(x, SCALARS)]
    if numbers:
        given = [x for x in found if isinstance(x, (Tensor, Spec)) and not x.dtype.is_packed]
        kind = dt.promote(*numbers, *(x.dtype for x in given))
        device = next((_device(x) for x in given if isinstance(x, Tensor)), None)
        found = [ops.full((), x, kind, device) if isinstance(x, SCALARS) else x for x in found]
    return tuple(found)


def _device(x: Any) -> Any:
    return None if x.is_traced else x.device


def _written(args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """NumPy's other form, each operand followed by a list of numbers, as a text and operands."""
    known: Counter[Any] = Counter()

    def term(given: Any) -> str:
        if not isinstance(given, (list, tuple)):
            raise ArgumentError(
                f"einsum: each operand must be followed by a list of its indices, given {type(given).__name__}; "
                f"write einsum(a, [0, 1], b, [1, 2], [0, 2]) or einsum('ij,jk->ik', a, b)."
            )
        for i in given:
            if i is not Ellipsis and (isinstance(i, bool) or not hasattr(i, "__index__") or not 0 <= i < len(LETTERS)):
                raise ArgumentError(
                    f"einsum: {i!r} is no index; use integers from 0 to {len(LETTERS) - 1}, or ... (Ellipsis)."
                )
        known.update(given)
        return "".join("..." if i is Ellipsis else LETTERS[i] for i in given)

    inputs = ",".join([term(names) for names in args[1::2]])
    if len(args) % 2:
        return f"{inputs}->{term(args[-1])}", args[:-1:2]
    dots = [Ellipsis] if known.pop(Ellipsis, 0) else []
    return f"{inputs}->{term(dots + sorted(i for i, n in known.items() if n == 1))}", args[::2]


# ---- the order


@lru_cache(maxsize=PATHS_KEPT)
def plan(spec: str, operands: tuple[Operand, ...]) -> Path:
    """The cheapest of a few orders, by the flops and bytes of the steps each becomes."""
    terms = parse(spec, operands)
    sizes = sizes_of(terms, operands, f"einsum {spec!r}")
    tried = []
    refused: DTypeError | None = None
    for order in _orders(terms, sizes, operands):
        try:
            tried.append(lower(terms, sizes, operands, order, f"einsum {spec!r}"))
        except DTypeError as error:  # quantised weights may fit in another order
            refused = error
    if refused is not None and not tried:
        raise refused
    best = min(tried, key=lambda found: found.cost)
    naive = prod(sizes.values()) * (max(1, len(operands) - 1) + (len(sizes) > len(terms.out)))
    return Path(spec, operands, best.steps, best.contractions, best.result, best.out, naive)


def _orders(terms: Terms, sizes: dict[str, int], operands: tuple[Operand, ...]) -> list[Order | None]:
    """Orders worth a look; None joins whatever quantised weights allow."""
    n = len(operands)
    in_turn: Order = ((0, 1), *((0, k) for k in range(n - 2, 0, -1))) if n > 1 else ()
    found: dict[Order | None, None] = {in_turn: None}
    if any(o.is_weight for o in operands):
        found[None] = None
    if n > 2:
        import opt_einsum  # here, since most programs never need it

        symbol = {name: opt_einsum.get_symbol(i) for i, name in enumerate(sizes)}
        # Axes of size 1 that others repeat, and diagonals, are gone before the first product.
        inner = [
            tuple(dict.fromkeys(s for s, m in zip(names, o.shape, strict=True) if m == sizes[s]))
            for names, o in zip(terms.inputs, operands, strict=True)
        ]
        text = ",".join("".join(symbol[s] for s in names) for names in inner)
        text += "->" + "".join(symbol[s] for s in terms.out)
        shapes = [tuple(sizes[s] for s in names) for names in inner]
        for search in next(names for most, names in SEARCHES.items() if n <= most):
            path, _ = opt_einsum.contract_path(text, *shapes, shapes=True, optimize=search)
            found[tuple(tuple(pair) for pair in path)] = None
    return list(found)

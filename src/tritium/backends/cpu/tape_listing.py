"""A tape as it is written: parts of instructions, and what they share.

Whoever cuts a fragment into parts asks a Writer for operands and code.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from tritium import ops
from tritium.backends.cpu.tape_code import (
    Code,
    Instruction,
    Leaf,
    Operand,
    Place,
    Stretch,
    cast,
    lane_of,
    rounding,
)
from tritium.backends.fusion import HALVES, UnfitError
from tritium.backends.reference.fused import constant
from tritium.dtype import DType, bf16, bool_, f16, f32, f64, i8, i32
from tritium.fragment import Fragment, Step
from tritium.op import outputs

MAX_STEPS = 200

Stores = dict[int, list[tuple[Operand, DType]]]  # where values go, and in which dtype


class Reach(IntEnum):
    """The part of a value that a row reads: a row of its own, one element, one element of a tensor without the last axis."""

    FULL, ONE, LEAD = range(3)


class Whole(NamedTuple):
    """A function of whole rows; its results are operands, in order."""

    name: str
    args: tuple[Operand | None, ...]
    results: tuple[Operand, ...]
    dtype: DType
    eps: float

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.results))} = {self.name}({', '.join(map(str, self.args))})"


class Part(NamedTuple):
    """Instructions for each element of a row, or once for a row, or a function of whole rows."""

    kind: str
    code: tuple[Instruction, ...] = ()
    whole: Whole | None = None


class Listing(NamedTuple):
    """All of a tape, to be read by people and by native code."""

    lane: DType
    rows: bool
    inputs: tuple[tuple[DType, Reach], ...]
    outputs: tuple[tuple[DType, Reach], ...]
    constants: tuple[int, ...]  # bits of a lane
    slots: int
    row_dtypes: tuple[DType, ...]  # of the rows between parts
    parts: tuple[Part, ...]

    def __str__(self) -> str:
        lines = []
        for part in self.parts:
            lines += [f"{part.kind}:", *(f"    {i}" for i in (part.code or (part.whole,)))]
        return "\n".join(lines)


def lane_for(body: Fragment) -> DType:
    """Return the dtype of all lanes; raise where there is none."""
    kinds = {s.dtype for s in body.inputs}
    for step in body.steps:
        kinds |= {s.dtype for s in outputs(step.spec)}
    if strange := kinds - {bool_, i8, i32, f16, bf16, f32, f64}:
        raise UnfitError(f"no instructions on {', '.join(sorted(map(str, strange)))}")
    if f64 in kinds and kinds - {f64, bool_}:
        raise UnfitError("f64 and narrower dtypes do not mix")
    return f64 if f64 in kinds else f32


def code_of(step: Step, body: Fragment, args: tuple[int, ...]) -> Code:
    """Return an elementwise step as the machine runs it. `args` are its inputs without views and those left out."""
    name, attrs = step.op.name, dict(step.attrs)
    kinds = [body.spec(i).dtype for i in step.inputs if i is not None]
    t = kinds[1] if name == "where" else kinds[0]
    if name == "astype":
        return Code("astype", t, args, cast(t, step.spec.dtype), False)
    if any(k is not t for k in kinds[name == "where" :]) or step.op in (ops.divmod, ops.dequantize):
        raise UnfitError(f"{name} of {', '.join(map(str, kinds))} has no instruction")
    if name == "nextafter" and t in HALVES:
        raise UnfitError(f"nextafter of {t} has no instruction")
    if name == "gelu" and attrs["approximate"] == "tanh":
        name = "gelu_tanh"
    if name == "clip" and len(args) < 3:
        name = "positive" if len(args) == 1 else "maximum" if step.inputs[1] is not None else "minimum"
    return Code(name, bool_ if name == "where" else lane_of(t), args, rounding(name, step.spec.dtype))


class Writer:
    """Cuts a fragment into parts and numbers what they share."""

    def __init__(self, body: Fragment) -> None:
        self.body, self.lane = body, lane_for(body)
        self.n = len(body.inputs)
        self.same: dict[int, int] = {}  # views and casts that change nothing stand for what they look at
        self.leaves: dict[int, Leaf] = {}  # values that are in memory
        self.constants: dict[int, Operand] = {}
        self.slots, self.row_dtypes = 0, list[DType]()
        self.codes: dict[int, Code] = {}
        if len(body.steps) > MAX_STEPS:
            raise UnfitError(f"it has {len(body.steps)} steps; at most {MAX_STEPS} become a tape")
        for v, spec in enumerate(body.inputs):
            self.leaves[v] = Leaf(Operand(Place.INPUT, v), spec.dtype, self.bare(spec.dtype))

    def bare(self, t: DType) -> bool:
        """Return True if memory of a dtype holds lanes."""
        return t is self.lane or (t is i32 and self.lane is f32)

    def step(self, v: int) -> Step:
        return self.body.steps[v - self.n]

    def known(self, v: int) -> int:
        return self.same.get(v, v)

    def args(self, step: Step) -> tuple[int, ...]:
        return tuple(self.known(i) for i in step.inputs if i is not None)

    def write(self, v: int, code: Code) -> None:
        """Set the code that computes v; where there is nothing to do, v is its argument."""
        if code.direct or code.after:
            self.codes[v] = code
        else:
            self.same[v] = code.args[0]

    def constant(self, step: Step) -> Leaf:
        x: Any = constant(dict(step.attrs)["value"], step.spec)
        wide = np.dtype("i8" if self.lane is f64 else "i4")
        if step.spec.dtype.is_float:
            number = np.asarray(x, self.lane.numpy)
        else:
            number = np.asarray(-int(x) if step.spec.dtype is bool_ else int(x), wide)
        bits = int(number.view(f"u{wide.itemsize}")[()])
        operand = self.constants.setdefault(bits, Operand(Place.CONSTANT, len(self.constants)))
        return Leaf(operand, step.spec.dtype, True)

    def slot(self) -> Operand:
        self.slots += 1
        return Operand(Place.SLOT, self.slots - 1)

    def row(self, t: DType) -> Operand:
        self.row_dtypes.append(t)
        return Operand(Place.ROW, len(self.row_dtypes) - 1)

    def stretch(self, values: list[int], stores: Stores) -> tuple[Instruction, ...]:
        """Return code for these values. Its temporaries follow the permanent slots."""
        codes = {v: self.codes[v] for v in values}
        return tuple(Stretch(codes, self.leaves.__getitem__, self.lane).run(stores))

    def listing(self, rows: bool, reach: Mapping[int, Reach], parts: list[Part]) -> Listing:
        temporary = self.slots
        parts = [p._replace(code=tuple(_moved(i, temporary) for i in p.code)) for p in parts]
        slots = temporary + max((_slots(p.code, temporary) for p in parts), default=0)
        ins = tuple((s.dtype, reach.get(v, Reach.FULL)) for v, s in enumerate(self.body.inputs))
        outs = tuple((self.body.spec(v).dtype, reach.get(v, Reach.FULL)) for v in self.body.outputs)
        return Listing(self.lane, rows, ins, outs, tuple(self.constants), slots, tuple(self.row_dtypes), tuple(parts))


def _moved(i: Instruction, by: int) -> Instruction:
    """Return an instruction with its temporaries numbered after the others; until then they are below zero."""
    x, y = (
        o._replace(number=by - 1 - o.number) if o and o.place is Place.SLOT and o.number < 0 else o for o in (i.x, i.y)
    )
    return i._replace(x=x, y=y)


def _slots(code: tuple[Instruction, ...], permanent: int) -> int:
    used = [o.number for i in code for o in (i.x, i.y) if o and o.place is Place.SLOT]
    return max((u + 1 - permanent for u in used), default=0)

"""Code for a machine with one accumulator: a stretch of elementwise steps as instructions.

A value is a number; an operand is a place and a number in it. Every temporary gets a slot of its own first; stores that
nobody reads are dropped, and slots are shared at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from tritium import ops
from tritium.backends.fusion import EXACT, HALVES, UnfitError
from tritium.dtype import DType, bf16, bool_, f16, f32, f64, i8, i32
from tritium.op import Trait


class Place(IntEnum):
    """Kinds of memory of an operand, in the order of a tape's operands."""

    SCRATCH, INPUT, OUTPUT, CONSTANT, SLOT, ROW = range(6)


class Operand(NamedTuple):
    place: Place
    number: int  # among those of its place

    def __str__(self) -> str:
        return f"{self.place.name.lower()}{self.number}"


class Instruction(NamedTuple):
    """acc = name(acc, x, y), or name(x, acc) if reversed, on lanes of a dtype."""

    name: str
    dtype: DType
    reversed: bool = False
    x: Operand | None = None
    y: Operand | None = None

    def __str__(self) -> str:
        operands = ["acc", *(str(o) for o in (self.x, self.y) if o)]
        if self.name in ("load", "store"):
            return f"{self.name}.{self.dtype} {self.x}"
        return f"{self.name}.{self.dtype} {', '.join(reversed(operands) if self.reversed else operands)}"


class Code(NamedTuple):
    """A step as the machine runs it: instructions that leave it in the accumulator, given its arguments' values."""

    name: str
    dtype: DType  # of the lanes it computes on
    args: tuple[int, ...]
    after: tuple[Instruction, ...] = ()  # rounding to a narrower dtype
    direct: bool = True  # False: `after` is all there is to do


class Leaf(NamedTuple):
    """A value that is somewhere already. Bare: its memory holds lanes, so that instructions read it as it is."""

    operand: Operand
    dtype: DType
    bare: bool


EXACT_INTEGERS = frozenset(row.name for row in ops.rows_with(Trait.NO_WRAP))


def lane_of(t: DType) -> DType:
    """Return the dtype of the lanes in which elements of a dtype are computed."""
    return {f16: f32, bf16: f32, i8: i32}.get(t, t)


def rounding(name: str, t: DType) -> tuple[Instruction, ...]:
    """Return the instructions that round a result in lanes to its dtype."""
    if t in HALVES and name not in EXACT:
        return (Instruction(f"to_{t}", f32),)
    if t is i8 and name not in EXACT_INTEGERS:
        return (Instruction("to_i8", i32),)
    return ()


def cast(a: DType, b: DType) -> tuple[Instruction, ...]:
    """Return the instructions that change one dtype to another, on lanes."""
    x, y = lane_of(a), lane_of(b)
    if {x, y} - {f32, i32, bool_, f64} or (f64 in (x, y) and {x, y} - {f64, bool_}):
        raise UnfitError(f"astype from {a} to {b} has no instruction")
    if a is b:
        return ()
    if b is bool_:
        return (Instruction("to_b8", x),)
    if y.is_integer:
        if x.is_integer:
            return (Instruction("to_i8", i32),) if b is i8 else ()
        return (Instruction("to_i8" if b is i8 and x is f32 else "to_i32", x),)
    if x.is_float:
        return (Instruction(f"to_{b}", f32),) if b in HALVES else ()
    if a is i32 and b in HALVES:
        return (Instruction("to_odd", i32), Instruction(f"to_{b}", f32))
    return (Instruction("to_float", x),)


class Stretch:
    """Instructions for some values, made by evaluating each in the accumulator."""

    def __init__(self, codes: Mapping[int, Code], leaves: Callable[[int], Leaf], lane: DType) -> None:
        self.codes, self.leaf, self.lane = codes, leaves, lane
        self.out: list[Instruction] = []
        self.slots: dict[int, Operand] = {}  # where values computed here are kept
        self.count = 0
        self.acc: int | None = None
        self.uses: dict[int, int] = {}
        for code in codes.values():
            for a in code.args:
                self.uses[a] = self.uses.get(a, 0) + 1

    def run(self, stores: Mapping[int, Iterable[tuple[Operand, DType]]]) -> list[Instruction]:
        """Return the code that computes and stores all values of `stores`; values of several uses are computed once."""
        copies = {v for v in stores if v not in self.codes}  # copied from one place to another
        for v in sorted({*self.codes, *copies, *(a for a in self.uses if self._converted(a) and self.uses[a] > 1)}):
            if v in stores or self.uses.get(v, 0) > 1:
                self.evaluate(v)
                for to, t in stores.get(v, ()):
                    self.emit(Instruction("store", t, False, to))
                if v in self.uses and self.memory(v) is None:
                    self.keep(v)
        return settle(self.out)

    def _converted(self, v: int) -> bool:
        return v not in self.codes and not self.leaf(v).bare

    def emit(self, instruction: Instruction) -> None:
        self.out.append(instruction)

    def keep(self, v: int) -> None:
        """Store the accumulator, which is v, in a slot."""
        self.count += 1
        self.slots[v] = Operand(Place.SLOT, -self.count)
        self.emit(Instruction("store", self.lane, False, self.slots[v]))

    def memory(self, v: int) -> Operand | None:
        """Return the operand from which an instruction can read the lanes of v; None: there is none yet."""
        if v in self.slots:
            return self.slots[v]
        if v in self.codes:
            return None
        leaf = self.leaf(v)
        return leaf.operand if leaf.bare else None

    def evaluate(self, v: int) -> None:
        """Bring v into the accumulator."""
        if self.acc == v:
            return
        operand = self.memory(v)
        if operand is not None:
            self.emit(Instruction("load", self.lane, False, operand))
        elif v in self.codes:
            self._compute(self.codes[v])
        else:
            leaf = self.leaf(v)
            self.emit(Instruction("load", leaf.dtype, False, leaf.operand))
        self.acc = v

    def weight(self, v: int) -> int:
        """Return roughly how many instructions v takes."""
        return 0 if self.memory(v) is not None or v not in self.codes else 1 + sum(map(self.weight, self.codes[v].args))

    def _compute(self, code: Code) -> None:
        args = code.args
        if not code.direct or len(args) == 1:
            self.evaluate(args[0])
            if code.direct:
                self.emit(Instruction(code.name, code.dtype))
        elif len(args) == 2:
            self._binary(code)
        else:
            self._ternary(code)
        for instruction in code.after:
            self.emit(instruction)

    def _spill(self, args: tuple[int, ...], in_acc: int) -> None:
        """Bring all arguments but one into memory, the heaviest first, so that fewer slots are alive at once."""
        for a in sorted({*args} - {in_acc}, key=self.weight, reverse=True):
            if self.memory(a) is None:
                self.evaluate(a)
                self.keep(a)

    def _last(self, args: tuple[int, ...], allowed: tuple[int, ...]) -> int:
        """Return the argument that stays in the accumulator: what is there, else one not in memory, else the first."""
        choice = [args[i] for i in allowed]
        if self.acc in choice and all(self.memory(a) is not None for a in args if a != self.acc):
            assert self.acc is not None
            return self.acc
        homeless = [a for a in choice if self.memory(a) is None]
        return min(homeless, key=self.weight) if homeless else choice[0]

    def _binary(self, code: Code) -> None:
        a, b = code.args
        if a == b:
            self._spill(code.args, -1)
        last = self._last(code.args, (0, 1))
        self._spill(code.args, last)
        self.evaluate(last)
        back = last != a
        self.emit(Instruction(code.name, code.dtype, back, self.memory(a if back else b)))

    def _ternary(self, code: Code) -> None:
        """Compute an op of three arguments: clip holds its first in the accumulator, where any of them."""
        a, b, c = code.args
        if len({a, b, c}) < 3:
            self._spill(code.args, -1)
        last = self._last(code.args, (0, 1, 2) if code.name == "where" else (0,))
        self._spill(code.args, last)
        self.evaluate(last)
        if last == a:
            self.emit(Instruction(code.name, code.dtype, False, self.memory(b), self.memory(c)))
        else:
            back = last == c
            self.emit(Instruction("where_given", code.dtype, back, self.memory(a), self.memory(b if back else c)))


def _temporary(o: Operand | None) -> bool:
    """Return True for a temporary of a stretch, which is numbered below zero; other slots are permanent."""
    return o is not None and o.place is Place.SLOT and o.number < 0


def settle(code: list[Instruction]) -> list[Instruction]:
    """Return code without stores that nobody reads, slots shared by temporaries that are never alive together."""
    last: dict[Operand | None, int] = {}
    for i, one in enumerate(code):
        if one.name != "store":
            last |= {o: i for o in (one.x, one.y) if _temporary(o)}
    instructions: list[Instruction] = []
    home: dict[Operand | None, Operand] = {}
    free: list[Operand] = []
    slot_count = 0
    for i, one in enumerate(code):
        if one.name == "store" and _temporary(one.x):
            if one.x not in last:
                continue
            if not free:
                slot_count += 1
                free.append(Operand(Place.SLOT, -slot_count))
            home[one.x] = free.pop()
        instructions.append(one._replace(x=home.get(one.x, one.x), y=home.get(one.y, one.y)))
        free += [home[o] for o in {one.x, one.y} if _temporary(o) and last.get(o) == i]
    return instructions

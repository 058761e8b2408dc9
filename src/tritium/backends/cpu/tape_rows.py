"""Fragments of rows as tapes: elementwise steps and functions of whole rows take turns while a row is in the cache.

Parts come in stages: numbers of one row each, then a stretch for every element, then functions of whole rows,
whose results the next stage reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from tritium import ops
from tritium.backends.cpu.tape_code import Leaf, Operand, Place
from tritium.backends.cpu.tape_listing import Listing, Part, Reach, Stores, Whole, Writer, code_of
from tritium.backends.fusion import UnfitError
from tritium.dtype import DType, f32, f64, i8, i32
from tritium.fragment import Fragment, Step
from tritium.layout import axes_of
from tritium.op import Fuse, Kind, Spec

MAX_ROW = 65536  # elements: sums of longer rows are cut in pieces that threads share
MIN_ROW = 16  # shorter ones are summed side by side
MAX_KEPT_BYTES = 256 << 10  # of the rows between parts: they stay in the second-level cache

FOLDS = ops.rows_that_fuse(Fuse.FOLD)
WHOLE = ops.rows_that_fuse(Fuse.FOLD, Fuse.ROW)
QUANTIZED = (i8, f32, i32)  # the results of quantize_activations


class Rows:
    """The values of a fragment of rows: the part of each that a row reads, and the stage that computes it."""

    def __init__(self, body: Fragment) -> None:
        self.body, self.writer = body, Writer(body)
        first = next(s for s in body.steps if s.op in WHOLE)
        self.shape: tuple[int, ...] = body.spec(first.inputs[0] or 0).shape
        if not self.shape or not MIN_ROW <= self.shape[-1] <= MAX_ROW:
            raise UnfitError(f"it has rows of {self.shape[-1:]} elements; {MIN_ROW} to {MAX_ROW} become a tape")
        self.reach: dict[int, Reach] = {}
        self.stage: dict[int, int] = {}
        for v, step in body.numbered():
            self._read(v, step)
        self._place()

    @property
    def shapes(self) -> dict[tuple[int, ...], Reach]:
        lead = self.shape[:-1]
        return {self.shape: Reach.FULL, (*lead, 1): Reach.ONE, lead: Reach.LEAD}

    def is_full(self, v: int) -> bool:
        return self.reach.get(v) is Reach.FULL

    def _result(self, v: int, spec: Spec) -> None:
        if spec.shape not in self.shapes:
            raise UnfitError(f"a step makes {spec}, neither all rows nor one element for each")
        self.reach[v] = self.shapes[spec.shape]

    def _read(self, v: int, step: Step) -> None:
        w = self.writer
        if step.op is ops.const:
            w.leaves[v] = w.constant(step)
        elif step.op is ops.item:
            self._result(v, step.spec)
        elif step.op.kind is Kind.VIEW:
            self._look(v, step)
        elif step.op in WHOLE:
            self._whole(v, step)
        elif step.op.kind is Kind.MAP and isinstance(step.spec, Spec):
            self._result(v, step.spec)
            for i in step.inputs:
                if i is not None:
                    self._argument(i, self.reach[v])
            w.write(v, code_of(step, self.body, w.args(step)))
        else:
            raise UnfitError(f"{step.op.name} is neither elementwise nor a function of rows")

    def _argument(self, i: int, to: Reach) -> None:
        """Raise unless an argument fits the step that reads it; note how an input is read."""
        if i < self.writer.n:
            reach = self._seen(self.body.inputs[i].shape, to)
            if self.reach.setdefault(i, reach) is not reach:
                raise UnfitError(f"input {i} is read in two ways")
        if i not in self.reach:
            return  # a constant
        if self.is_full(i) and to is not Reach.FULL:
            raise UnfitError("a number of each row is made of a whole row")
        if not self.is_full(i) and (self.reach[i] is Reach.LEAD) != (to is Reach.LEAD) and not self._single(i):
            raise UnfitError("numbers of rows meet with and without their last axis")

    def _single(self, i: int) -> bool:
        return i < self.writer.n and prod(self.body.inputs[i].shape) == 1

    def _seen(self, shape: tuple[int, ...], to: Reach) -> Reach:
        """Return the part of an input of a shape that a row of a step reads."""
        if prod(shape) == 1:
            return Reach.ONE
        extent = Reach.LEAD if to is Reach.LEAD else Reach.ONE if shape[-1] == 1 else Reach.FULL
        wide = next(s for s, reach in self.shapes.items() if reach is extent)
        tail = wide[len(wide) - len(shape) :]
        if len(shape) > len(wide) or any(a not in (1, b) for a, b in zip(shape, tail, strict=True)):
            raise UnfitError(f"an input of the shape {shape} does not fit rows of {self.shape}")
        return extent

    def _look(self, v: int, step: Step) -> None:
        """Take a view for its source: it adds or drops the last axis of numbers of rows; raise for any other."""
        source = step.inputs[0] or 0
        self._result(v, step.spec)
        if source < self.writer.n or self.is_full(source) or self.is_full(v):
            raise UnfitError(f"{step.op.name} of {self.body.spec(source)} among rows of {self.shape}")
        self.writer.same[v] = self.writer.known(source)

    def _whole(self, v: int, step: Step) -> None:
        name, attrs, x = step.op.name, dict(step.attrs), self.body.spec(step.inputs[0] or 0)
        operands = [i for i in step.inputs if i is not None]
        if (
            x.shape != self.shape
            or not x.dtype.is_float
            or any(self.body.spec(i).dtype is not x.dtype for i in operands)
        ):
            raise UnfitError(f"{name} of {x} among rows of {self.shape}")
        axis = attrs.get("axis", -1)
        if axis is None or axes_of(axis, x.ndim, name) != (x.ndim - 1,):
            raise UnfitError(f"{name} along axis {axis}, not the last alone")
        if (step.op in FOLDS and step.spec.dtype is not x.dtype) or (
            step.op is ops.quantize_activations and x.dtype is f64
        ):
            raise UnfitError(f"{name} of {x.dtype} has no function of rows")
        for i in operands:
            self._argument(i, Reach.FULL)
            if not self.is_full(i):
                raise UnfitError(f"{name} reads numbers that are repeated along a row")
        if isinstance(step.spec, Spec):
            self._result(v, step.spec)

    def ready(self, v: int) -> int:
        """Return the first stage whose stretches can read v."""
        is_whole = v >= self.writer.n and self.writer.step(v).op in WHOLE
        return self.stage.get(v, 0) + is_whole

    def _place(self) -> None:
        """Set the stage of every value: they grow along the steps, and a value used late is computed late, so that less is kept."""
        w = self.writer
        users: dict[int, list[int]] = {}
        for v, step in self.body.numbered():
            if v in w.same:
                continue
            self.stage[v] = max((self.ready(a) for a in w.args(step)), default=0)
            for a in w.args(step):
                users.setdefault(a, []).append(v)
        results = {w.known(v) for v in self.body.outputs}
        for v in sorted(w.codes, reverse=True):
            if v not in results and v in users:
                self.stage[v] = max(self.stage[v], min(self.stage[u] for u in users[v]))


class RowParts:
    """The parts of a fragment of rows, stage by stage."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.writer, self.body = rows, rows.writer, rows.body
        self.parts: list[Part] = []
        self.lanes: dict[int, Operand] = {}  # rows of narrower elements, converted for functions of whole rows
        self.copies: dict[int, Stores] = {}  # by stage: what a stretch only passes on
        self.outputs: Stores = {}
        for i, v in enumerate(self.body.outputs):
            self.outputs.setdefault(self.writer.known(v), []).append(
                (Operand(Place.OUTPUT, i), self.body.spec(v).dtype)
            )
        self.stores: Stores = {v: list(self.outputs.get(v, [])) for v in self.writer.codes}
        self.wholes = [v for v, s in self.body.numbered() if s.op in WHOLE]
        self._keep()
        for stage in range(max(rows.stage.values()) + 2):
            self._stage(stage)
        if sum(t.nbytes for t in self.writer.row_dtypes) * rows.shape[-1] > MAX_KEPT_BYTES:
            raise UnfitError(f"rows of {rows.shape[-1]} elements do not stay in the cache")

    def _keep(self) -> None:
        """Give a home to every value that another stretch or a function of rows reads."""
        w, rows = self.writer, self.rows
        for v, step in self.body.numbered():
            for a in w.args(step) if v in w.codes or step.op in WHOLE else ():
                apart = v not in w.codes or rows.stage[v] != rows.stage.get(a) or rows.is_full(v) != rows.is_full(a)
                if a in w.codes and a not in w.leaves and apart:
                    home = w.row(w.lane) if rows.is_full(a) else w.slot()
                    w.leaves[a] = Leaf(home, w.lane, True)
                    self.stores[a].append((home, w.lane))
        for v, to in self.outputs.items():
            if v < w.n:
                self.copies.setdefault(0, {})[v] = to
            elif w.step(v).op is ops.const:
                raise UnfitError("a result is a constant")

    def _stage(self, stage: int) -> None:
        w, rows = self.writer, self.rows
        ending = [v for v in self.wholes if rows.stage[v] == stage]
        copies = self.copies.get(stage, {})
        for a in (a for v in ending for a in w.args(w.step(v))):
            if not w.leaves[a].bare and a not in self.lanes:
                self.lanes[a] = w.row(w.lane)
                copies.setdefault(a, []).append((self.lanes[a], w.lane))
        for kind, full in (("once", False), ("each", True)):
            stores = {v: s for v, s in copies.items() if rows.is_full(v) is full}
            stores |= {v: s for v, s in self.stores.items() if rows.stage[v] == stage and rows.is_full(v) is full and s}
            if stores:
                here = {v for v in w.codes if rows.stage[v] == stage and rows.is_full(v) is full}
                self.parts.append(Part(kind, w.stretch(self._needed(here, stores), stores)))
        for v in ending:
            self._whole(v)

    def _needed(self, here: set[int], roots: Iterable[int]) -> list[int]:
        values: set[int] = set()
        left = list(roots)
        while left:
            v = left.pop()
            if v in here and v not in values:
                values.add(v)
                left += self.writer.codes[v].args
        return sorted(values)

    def _whole(self, v: int) -> None:
        w, step = self.writer, self.writer.step(v)
        args = tuple(None if i is None else self._row(w.known(i)) for i in step.inputs)
        if isinstance(step.spec, Spec):
            home = w.row(w.lane) if self.rows.is_full(v) else w.slot()
            results = [self._put(v, v, home, w.lane)]
        else:
            results = [w.row(i8), w.slot(), w.slot()]
            for item, one in self.body.numbered():
                if one.op is ops.item and one.inputs == (v,):
                    index = dict(one.attrs)["index"]
                    results[index] = self._put(item, v, results[index], QUANTIZED[index])
        eps, kind = float(dict(step.attrs).get("eps", 0.0)), self.body.spec(step.inputs[0] or 0).dtype
        self.parts.append(Part("whole", (), Whole(step.op.name, args, tuple(results), kind, eps)))

    def _row(self, v: int) -> Operand:
        return self.lanes[v] if v in self.lanes else self.writer.leaves[v].operand

    def _put(self, v: int, maker: int, home: Operand, kind: DType) -> Operand:
        """Return where a result goes: straight to an output of its kind, else home, and on from there in the next stage."""
        outs = self.outputs.get(v, [])
        if self.rows.is_full(v) and outs and outs[0][1] is kind:
            home, outs = outs[0][0], outs[1:]
        self.writer.leaves[v] = Leaf(home, kind, self.writer.bare(kind))
        if outs:
            self.copies.setdefault(self.rows.stage[maker] + 1, {})[v] = outs
        return home


def by_rows(body: Fragment) -> Listing:
    """Return the tape of a fragment of rows."""
    rows = Rows(body)
    stages = RowParts(rows)
    return rows.writer.listing(True, rows.reach, stages.parts)

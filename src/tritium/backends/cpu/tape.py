"""A fragment as a native tape.

What no tape can do is refused with a reason, and runs unfused.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tritium import ops
from tritium.backends.cpu.tape_code import Operand, Place
from tritium.backends.cpu.tape_listing import Listing, Part, Reach, Stores, Whole, Writer, code_of
from tritium.backends.cpu.tape_rows import MAX_ROW, MIN_ROW, WHOLE, by_rows
from tritium.backends.fusion import UnfitError
from tritium.buffer import native
from tritium.fragment import Fragment
from tritium.op import Kind, Spec

KEPT = 1024  # tapes
OTHER = 1 << 40  # sizes from here on stand for others: no tensor has them
KINDS = ("each", "once", "whole")


def elementwise(body: Fragment) -> Listing:
    writer = Writer(body)
    shapes = {s.spec.shape for s in body.steps if s.op is not ops.const and isinstance(s.spec, Spec)}
    if len(shapes) != 1:
        raise UnfitError(f"its steps have {len(shapes)} shapes")
    for v, step in body.numbered():
        if step.op is ops.const:
            writer.leaves[v] = writer.constant(step)
        elif step.op.kind is not Kind.MAP or not isinstance(step.spec, Spec):
            raise UnfitError(f"{step.op.name} is not elementwise")
        else:
            writer.write(v, code_of(step, body, writer.args(step)))
    stores: Stores = {}
    for i, v in enumerate(body.outputs):
        if body.spec(v).shape not in shapes:
            raise UnfitError(f"a result has the shape {body.spec(v).shape}")
        stores.setdefault(writer.known(v), []).append((Operand(Place.OUTPUT, i), body.spec(v).dtype))
    return writer.listing(False, {}, [Part("each", writer.stretch(list(writer.codes), stores))])


def general(body: Fragment) -> Fragment:
    """Return a body of other sizes whose tape, if it has one, is that of this body too.

    A tape depends on which sizes are equal, 0 or 1. Of rows the length has limits, so it becomes one that is not shorter;
    a length that varies (`graph.size`) stays, and notes on which side of the limits it is.
    """
    whole = next((s for s in body.steps if s.op in WHOLE), None)
    rows = () if whole is None else body.spec(whole.inputs[0] or 0).shape[-1:]
    sizes = {0: 0, 1: 1}
    for length in rows:
        is_usual = type(length) is int and MIN_ROW <= length <= MAX_ROW
        sizes.setdefault(length, 1 << (length - 1).bit_length() if is_usual else length)

    def renamed(spec: Any) -> Any:
        if not isinstance(spec, Spec):
            return tuple([renamed(s) for s in spec])
        # A size that varies is found here only by how it is computed: whether it is 0 or 1 is compared.
        known = [n if type(n) is int else 0 if n == 0 else 1 if n == 1 else n for n in spec.shape]
        return Spec(tuple([sizes.setdefault(n, OTHER + len(sizes)) for n in known]), spec.dtype)

    inputs = tuple([renamed(spec) for spec in body.inputs])
    return Fragment(inputs, tuple([s._replace(spec=renamed(s.spec)) for s in body.steps]), body.outputs)


def listing(body: Fragment) -> Listing | str:
    """Return the parts of a tape, or why there is none."""
    program = _listing(general(body))
    return _listing(body) if isinstance(program, str) else program  # a reason names the body's own sizes


def tape_of(body: Fragment) -> Any:
    """Return a native.Tape, or why there is none."""
    tape = _tape_of(general(body))
    return _tape_of(body) if isinstance(tape, str) else tape


@lru_cache(maxsize=KEPT)
def _listing(body: Fragment) -> Listing | str:
    try:
        if not body.inputs:
            raise UnfitError("it has no inputs")
        rows = any(s.op in WHOLE for s in body.steps)
        return by_rows(body) if rows else elementwise(body)
    except UnfitError as why:
        return str(why)


@lru_cache(maxsize=KEPT)
def _tape_of(body: Fragment) -> Any:
    program = _listing(body)
    if isinstance(program, str):
        return program
    if native is None:
        return "there is no native library"
    operands = [(int(Place.SCRATCH), 0, program.lane.code, 0)]
    operands += [(int(Place.INPUT), int(reach), t.code, 0) for t, reach in program.inputs]
    operands += [(int(Place.OUTPUT), int(reach), t.code, 0) for t, reach in program.outputs]
    operands += [(int(Place.CONSTANT), 0, program.lane.code, bits) for bits in program.constants]
    operands += [(int(Place.SLOT), 0, program.lane.code, 0)] * program.slots
    operands += [(int(Place.ROW), 0, t.code, 0) for t in program.row_dtypes]
    if len(operands) > 128:
        return f"it has {len(operands)} operands"
    try:
        return native.Tape(program.lane.code, program.rows, operands, *_numbered(program))
    except ValueError as why:
        return str(why)


def _numbered(program: Listing) -> tuple[list[Any], list[Any]]:
    """Return instructions and parts as native code reads them: operands by number, stretches by their first instruction."""
    sizes = (
        1,
        len(program.inputs),
        len(program.outputs),
        len(program.constants),
        program.slots,
        len(program.row_dtypes),
    )

    def number(o: Operand | None) -> int:
        return -1 if o is None else sum(sizes[: o.place]) + o.number

    instructions: list[Any] = []
    parts: list[Any] = []
    for part in program.parts:
        w = part.whole or Whole("", (), (), program.lane, 0.0)
        operands = [number(o) for o in w.args] + [-1] * (3 - len(w.args))
        operands += [number(o) for o in w.results] + [-1] * (3 - len(w.results))
        parts.append(
            (KINDS.index(part.kind), len(instructions), len(part.code), w.name, tuple(operands), w.dtype.code, w.eps)
        )
        instructions += [(i.name, i.dtype.code, i.reversed, number(i.x), number(i.y)) for i in part.code]
    return instructions, parts


def native_call(body: Fragment, isa: str | None = None) -> Any:
    """Return (kernel, attributes) for kernel(*inputs, out=…, **attributes), or why there is none."""
    tape = tape_of(body)
    return tape if isinstance(tape, str) else (native.kernel("fused", isa), {"tape": tape})


def overwrites(body: Fragment, i: int) -> bool:
    """Return True if result 0 may be written exactly over input i: nothing reads it after its place was written."""
    program, out = listing(body), body.spec(body.outputs[0])
    if isinstance(program, str) or body.inputs[i].shape != out.shape or body.inputs[i].dtype.nbytes != out.dtype.nbytes:
        return False
    if (program.inputs[i][1], program.outputs[0][1]) != (Reach.FULL, Reach.FULL):
        return False
    source, target, written = Operand(Place.INPUT, i), Operand(Place.OUTPUT, 0), False
    for part in program.parts:
        if part.whole:
            if written and source in part.whole.args:
                return False
            written = written or target in part.whole.results
        for one in part.code:
            if written and source in (one.x, one.y):
                return False
            written = written or (one.name == "store" and one.x == target)
    return True

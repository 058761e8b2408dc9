"""A quantiser and the dequantize that reads its integers, as one native call: the integers are never stored.

What no kernel can do is refused with a reason, and runs unfused.
"""

from __future__ import annotations

from typing import Any

from tritium import ops
from tritium.backends.fusion import UnfitError
from tritium.buffer import native
from tritium.dtype import i4
from tritium.fragment import Fragment, Step

BITS = {ops.quantize_int8: 8, ops.quantize_int4: 4}
MAX_AXES = 5  # of what the native kernel takes with scales that are given


def native_call(body: Fragment) -> tuple[Any, dict[str, Any]] | str:
    """Return the native kernel of a body and its attributes, or why there is none."""
    if native is None:
        return "there is no native library"
    try:
        return _call(body)
    except UnfitError as why:
        return str(why)


def overwrites(body: Fragment, i: int) -> bool:
    """Return False: scales are read while results are written."""
    return False


def _call(body: Fragment) -> tuple[Any, dict[str, Any]]:
    values = dict(body.numbered())
    steps = [s for s in body.steps if s.op is not ops.item]
    if len(body.outputs) != 1:
        raise UnfitError("its integers are read elsewhere, so they are stored")
    if len(steps) != 2 or steps[1].op is not ops.dequantize:
        raise UnfitError("only a quantiser and its dequantize are one call, without other steps")
    first, last = steps
    if first.op is ops.quantize:
        return _with_given_scales(body, first, last)
    group = _common_group(first, last)
    reads = [None if i is None else _result(values.get(i)) for i in last.inputs]
    zero = reads[2]
    if reads[:2] != [0, 1] or zero not in (None, 2):
        raise UnfitError("dequantize reads a scale or a zero point that is not its quantiser's")
    attrs = dict(first.attrs)
    rows = attrs["axis"] is not None
    if first.op is ops.quantize_ternary:
        return native.kernel("restore_ternary"), {"group": group, "rows": rows}
    if not attrs["symmetric"] and zero is None:
        raise UnfitError("dequantize does not read the zero points of its quantiser")
    shape = {"bits": BITS[first.op], "group": group, "rows": rows}
    return native.kernel("restore_quantized"), shape | {"symmetric": attrs["symmetric"]}


def _result(step: Step | None) -> int | None:
    """Return which result of the quantiser an item is; -1: it is something else."""
    return dict(step.attrs)["index"] if step is not None and step.op is ops.item else -1


def _common_group(first: Step, last: Step) -> int:
    groups = [dict(s.attrs)["group"] for s in (first, last)]
    if groups[0] != groups[1]:
        raise UnfitError(f"it quantises in groups of {groups[0]} columns and dequantises in groups of {groups[1]}")
    return int(groups[0])


def _with_given_scales(body: Fragment, first: Step, last: Step) -> tuple[Any, dict[str, Any]]:
    group = _common_group(first, last)
    operands = (*first.inputs[1:], *last.inputs[1:])
    if not 1 <= first.spec.ndim <= MAX_AXES:
        raise UnfitError(f"it takes tensors of 1 to {MAX_AXES} axes in one call, not {first.spec}")
    if first.inputs[0] != 0 or any(i is not None and not 0 < i < len(body.inputs) for i in operands):
        raise UnfitError("scales and zero points are read from memory")
    places = sum((i or 0) << 4 * k for k, i in enumerate(operands))
    bits = 4 if first.spec.dtype is i4 else 8
    return native.kernel("restore_given"), {"bits": bits, "group": group, "operands": places}

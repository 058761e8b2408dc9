"""A fused product: what comes before the product, the product, and what comes after it; and as native code runs them.

Knows nothing of tensors, graphs or memory, nor of other devices, which take the same parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tritium import ops
from tritium.backends import device
from tritium.backends.cpu import tape
from tritium.buffer import native
from tritium.dtype import f32
from tritium.fragment import Fragment, Step
from tritium.op import Kind

ARITHMETIC = frozenset(
    {ops.abs, ops.add, ops.astype, ops.maximum, ops.minimum, ops.multiply, ops.negative, ops.relu, ops.relu2, ops.square,
     ops.subtract}
)  # fmt: skip
MAX_BEFORE = 1 << 16  # elements of a row, once for each map before the product, that are not worth another thread


class Parts(NamedTuple):
    """A body cut at its product. Numbers are those of the body's inputs; `after` has the product's result before them."""

    core: Step
    operands: tuple[int | None, ...]  # None: not given; or, in the first place, made by `before`
    before: Fragment | None
    before_inputs: tuple[int, ...]
    after: Fragment | None
    after_inputs: tuple[int, ...]


def refusal(body: Fragment, core: Step) -> str | None:
    """Why a product cannot have anything before or after it."""
    if any(i is not None and i >= len(body.inputs) for i in core.inputs[1:]):
        return "the right operand of the product is computed in the same body"
    if core.op is ops.quantized_matmul:
        return None
    if core.op is not ops.matmul:
        return f"{core.op.name} hands no results over"
    if core.spec.dtype is not f32 or dict(core.attrs)["algorithm"] != "blas":
        return f"matmul hands results over in f32 and with algorithm='blas', not in {core.spec.dtype}"
    if any(body.spec(i).ndim < 2 for i in core.inputs if i is not None):
        return "a product with a vector has no rows to hand over"
    if core.inputs[0] not in range(len(body.inputs)):
        return "matmul reads its left operand from memory"
    return None


def is_const(body: Fragment, value: int) -> bool:
    return body.steps[value - len(body.inputs)].op is ops.const


def needed(body: Fragment, values: Iterable[int], stop: int) -> set[int]:
    """The values that make these, themselves included; what makes `stop` is not looked at."""
    found: set[int] = set()
    left = list(values)
    while left:
        value = left.pop()
        if value in found:
            continue
        found.add(value)
        if value != stop and value >= len(body.inputs):
            left += (i for i in body.steps[value - len(body.inputs)].inputs if i is not None)
    return found


def part(body: Fragment, first: tuple[int, ...], inside: set[int], outputs: tuple[int, ...]) -> Fragment:
    """Some steps of a body as a body of its own, with the values `first` as its inputs."""
    number = {v: i for i, v in enumerate(first)}
    steps: list[Step] = []
    for value, step in body.numbered():
        if value in inside and value not in number:
            number[value] = len(first) + len(steps)
            steps.append(step._replace(inputs=tuple(None if i is None else number[i] for i in step.inputs)))
    return Fragment(tuple(body.spec(v) for v in first), tuple(steps), tuple(number[v] for v in outputs))


def parts(body: Fragment) -> Parts | str:
    """The body cut in three, or why it cannot be."""
    products = [v for v, s in body.numbered() if s.op.kind is Kind.CONTRACT]
    if len(products) != 1:
        return f"it has {len(products)} products, not one"
    at, n = products[0], len(body.inputs)
    core = body.steps[at - n]
    if refused := refusal(body, core):
        return refused
    x = core.inputs[0]
    assert x is not None
    earlier = needed(body, (x,), -1)
    later = needed(body, body.outputs, at)
    if any(v >= n and v in later and not is_const(body, v) for v in earlier):
        return "what comes before the product is used after it too"
    if any(body.steps[v - n].op.kind is not Kind.MAP for v in later if v >= n and v != at and not is_const(body, v)):
        return "after the product come steps that are not element-wise"
    if at not in later or any(body.spec(v).shape != core.spec.shape for v in body.outputs):
        return "a result has not the shape of the product"
    before_inputs = tuple(sorted(v for v in earlier if v < n)) if x >= n else ()
    after_inputs = tuple(sorted(v for v in later if v < n))
    trivial = body.outputs == (at,)
    return Parts(
        core,
        (None if x >= n else x, *core.inputs[1:]),
        part(body, before_inputs, earlier, (x,)) if x >= n else None,
        before_inputs,
        None if trivial else part(body, (at, *after_inputs), later, body.outputs),
        after_inputs,
    )


def unshared(before: Fragment) -> str | None:
    """Why maps do not gain as part of the product, where one thread makes a row: a call of their own is shared among all."""
    maps = [s for s in before.steps if s.op.kind is Kind.MAP]
    if slow := [s.op.name for s in maps if s.op not in ARITHMETIC]:
        return f"{slow[0]} before a product is more than arithmetic, which threads share as a call of its own"
    elements = sum(s.spec.shape[-1] for s in maps)
    if elements > MAX_BEFORE:
        return f"maps before a product make {elements} elements of a row, at most {MAX_BEFORE} are left to one thread"
    return None


def core_kernel(body: Fragment, core: Step) -> Any:
    """The native kernel that would run the product by itself, or why there is none."""
    specs = tuple(None if i is None else body.spec(i) for i in core.inputs)
    chosen = device("cpu").backend.choose(core.op, specs, dict(core.attrs), (None,) * len(specs))
    if native is None or chosen is None or not isinstance(chosen.fn, native.Kernel):
        return f"{core.op.name} has no native kernel for {', '.join(map(str, specs))}"
    return chosen.fn


def fused(body: Fragment, cut: Parts, core: Any) -> Any:
    """The native object that runs a body with this kernel for its product, or why it cannot be."""
    taped: list[Any] = []
    for fragment, inputs in ((cut.before, cut.before_inputs), (cut.after, cut.after_inputs)):
        made = None if fragment is None else tape.tape_of(fragment)
        if isinstance(made, str):
            return made
        taped.append(None if fragment is None else (made, inputs))
    x = body.spec(cut.core.inputs[0])  # type: ignore[arg-type]
    operands = tuple(-1 if i is None else i for i in cut.operands)
    sums = cut.core.op is ops.matmul
    apart = cut.after is not None and not tape.overwrites(cut.after, 0)
    what = (core, dict(cut.core.attrs), operands, cut.core.spec.dtype.code, (x.dtype.code, x.shape))
    return native.FusedProduct(*what, *taped, sums, apart)


def native_call(body: Fragment) -> tuple[Any, dict[str, Any]] | str:
    """The native kernel of a body and its attributes, or why there is none."""
    if native is None:
        return "there is no native library"
    if len(body.inputs) > native.MAX_INPUTS:
        return f"it has {len(body.inputs)} inputs, at most {native.MAX_INPUTS} are possible"
    cut = parts(body)
    if isinstance(cut, str):
        return cut
    if cut.before is not None and (refused := unshared(cut.before)):
        return refused
    core = core_kernel(body, cut.core)
    made = core if isinstance(core, str) else fused(body, cut, core)
    return made if isinstance(made, str) else (native.kernel("fused_product"), {"product": made})


def overwrites(body: Fragment, i: int) -> bool:
    """Whether the first result may be written exactly over input i: the product reads it nowhere else."""
    cut = parts(body)
    if isinstance(cut, str) or cut.after is None or cut.core.op is not ops.quantized_matmul:
        return False
    if i in cut.operands or i in cut.before_inputs or i not in cut.after_inputs:
        return False
    return tape.overwrites(cut.after, 1 + cut.after_inputs.index(i))

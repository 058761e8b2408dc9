"""Shared by devices that compile a fragment: why one does not fit, which ops round nothing, and a fragment cut at its product.

Knows nothing of memory, nor of what any device makes of the parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tritium import ops
from tritium.dtype import bf16, f16, f32
from tritium.errors import TritiumError
from tritium.fragment import Fragment, Step
from tritium.op import Kind, Trait


class UnfitError(TritiumError):
    """The reason for which a fragment does not become one kernel."""


EXACT = frozenset(row.name for row in ops.rows_with(Trait.NO_ROUNDING))
HALVES = (f16, bf16)


# ---- a fused product


class ProductParts(NamedTuple):
    """A body cut at its product. Numbers are those of the body's inputs; `after` has the product's result before them."""

    core: Step
    operands: tuple[int | None, ...]  # None: not given; or, in the first place, made by `before`
    before: Fragment | None
    before_inputs: tuple[int, ...]
    after: Fragment | None
    after_inputs: tuple[int, ...]


def refusal(body: Fragment, core: Step) -> str | None:
    """Return why a product cannot have anything before or after it; None: it can."""
    if any(i is not None and i >= len(body.inputs) for i in core.inputs[1:]):
        return "the right operand of the product is computed in the same body"
    if core.op is ops.quantized_matmul:
        return "a product of floats hands no results over" if dict(core.attrs).get("activations") == "float" else None
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
    result: set[int] = set()
    left = list(values)
    while left:
        value = left.pop()
        if value in result:
            continue
        result.add(value)
        if value != stop and value >= len(body.inputs):
            left += (i for i in body.steps[value - len(body.inputs)].inputs if i is not None)
    return result


def part(body: Fragment, first: tuple[int, ...], inside: set[int], outputs: tuple[int, ...]) -> Fragment:
    """Some steps of a body as a body of its own, with the values `first` as its inputs."""
    number = {v: i for i, v in enumerate(first)}
    steps: list[Step] = []
    for value, step in body.numbered():
        if value in inside and value not in number:
            number[value] = len(first) + len(steps)
            steps.append(step._replace(inputs=tuple(None if i is None else number[i] for i in step.inputs)))
    return Fragment(tuple(body.spec(v) for v in first), tuple(steps), tuple(number[v] for v in outputs))


def product_parts(body: Fragment) -> ProductParts | str:
    """The body cut in three, or why it cannot be."""
    products = [v for v, s in body.numbered() if s.op.kind is Kind.CONTRACT]
    if len(products) != 1:
        return f"it has {len(products)} products, not one"
    product, n = products[0], len(body.inputs)
    core = body.steps[product - n]
    if refused := refusal(body, core):
        return refused
    x = core.inputs[0]
    assert x is not None
    earlier = needed(body, (x,), -1)
    later = needed(body, body.outputs, product)
    if any(v >= n and v in later and not is_const(body, v) for v in earlier):
        return "what comes before the product is used after it too"
    if any(
        body.steps[v - n].op.kind is not Kind.MAP for v in later if v >= n and v != product and not is_const(body, v)
    ):
        return "after the product come steps that are not element-wise"
    if product not in later or any(body.spec(v).shape != core.spec.shape for v in body.outputs):
        return "a result has not the shape of the product"
    before_inputs = tuple(sorted(v for v in earlier if v < n)) if x >= n else ()
    after_inputs = tuple(sorted(v for v in later if v < n))
    trivial = body.outputs == (product,)
    return ProductParts(
        core,
        (None if x >= n else x, *core.inputs[1:]),
        part(body, before_inputs, earlier, (x,)) if x >= n else None,
        before_inputs,
        None if trivial else part(body, (product, *after_inputs), later, body.outputs),
        after_inputs,
    )

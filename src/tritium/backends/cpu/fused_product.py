"""A fused product as native code runs it: tapes before and after a native kernel.

`backends.fusion` cuts the fragment, for every device alike.
"""

from __future__ import annotations

from typing import Any

from tritium import ops
from tritium.backends import device
from tritium.backends.cpu import tape
from tritium.backends.fusion import ProductParts, product_parts
from tritium.buffer import native
from tritium.fragment import Fragment, Step
from tritium.op import Kind, Trait

ARITHMETIC = ops.rows_with(Trait.CHEAP)
MAX_BEFORE = 1 << 16  # elements of a row, once for each map before the product, that are not worth another thread


def unshared(before: Fragment) -> str | None:
    """Return why maps do not gain as part of the product, where one thread computes a row and all share a call of their own."""
    maps = [s for s in before.steps if s.op.kind is Kind.MAP]
    if slow := [s.op.name for s in maps if s.op not in ARITHMETIC]:
        return f"{slow[0]} before a product is more than arithmetic, which threads share as a call of its own"
    elements = sum(s.spec.shape[-1] for s in maps)
    if elements > MAX_BEFORE:
        return f"maps before a product make {elements} elements of a row, at most {MAX_BEFORE} are left to one thread"
    return None


def core_kernel(body: Fragment, core: Step) -> Any:
    """Return the native kernel that would run the product by itself, or why there is none."""
    specs = tuple(None if i is None else body.spec(i) for i in core.inputs)
    chosen = device("cpu").backend.choose(core.op, specs, dict(core.attrs), (None,) * len(specs))
    if native is None or chosen is None or not isinstance(chosen.fn, native.Kernel):
        return f"{core.op.name} has no native kernel for {', '.join(map(str, specs))}"
    return chosen.fn


def fused(body: Fragment, cut: ProductParts, core: Any) -> Any:
    """Return the native object that runs a body with this kernel for its product, or why there is none."""
    taped: list[Any] = []
    for fragment, inputs in ((cut.before, cut.before_inputs), (cut.after, cut.after_inputs)):
        native_tape = None if fragment is None else tape.tape_of(fragment)
        if isinstance(native_tape, str):
            return native_tape
        taped.append(None if fragment is None else (native_tape, inputs))
    x = body.spec(cut.core.inputs[0])  # type: ignore[arg-type]
    operands = tuple(-1 if i is None else i for i in cut.operands)
    sums = cut.core.op is ops.matmul
    apart = cut.after is not None and not tape.overwrites(cut.after, 0)
    width = x.shape[-1] if cut.before is not None else 0  # the kernel of the product knows an operand that is given
    what = (core, dict(cut.core.attrs), operands, cut.core.spec.dtype.code, (x.dtype.code, x.ndim, width))
    return native.FusedProduct(*what, *taped, sums, apart)


def native_call(body: Fragment) -> tuple[Any, dict[str, Any]] | str:
    """Return the native kernel of a body and its attributes, or why there is none."""
    if native is None:
        return "there is no native library"
    if len(body.inputs) > native.MAX_INPUTS:
        return f"it has {len(body.inputs)} inputs, at most {native.MAX_INPUTS} are possible"
    cut = product_parts(body)
    if isinstance(cut, str):
        return cut
    if cut.before is not None and (refused := unshared(cut.before)):
        return refused
    core = core_kernel(body, cut.core)
    product = core if isinstance(core, str) else fused(body, cut, core)
    return product if isinstance(product, str) else (native.kernel("fused_product"), {"product": product})


def overwrites(body: Fragment, i: int) -> bool:
    """Return True if the first result may be written exactly over input i: the product reads it nowhere else."""
    cut = product_parts(body)
    if isinstance(cut, str) or cut.after is None or cut.core.op is not ops.quantized_matmul:
        return False
    if i in cut.operands or i in cut.before_inputs or i not in cut.after_inputs:
        return False
    return tape.overwrites(cut.after, 1 + cut.after_inputs.index(i))

"""Linear layers on a GPU as ops: weights repacked once, a norm before the product in its kernel, maps around it in
others.

Knows nothing of storages, Tritium's tensors or graphs, nor of how a product is computed: that is `cuda.linear.ternary`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch

from tritium import dtype as dt, ops
from tritium.backends.cuda.fused import kernel as cuda_fused
from tritium.backends.cuda.graph import in_graph
from tritium.backends.cuda.linear import choice as cuda_tuned, ternary as cuda_ternary, weights as cuda_weights
from tritium.backends.fusion import ProductParts, product_parts
from tritium.backends.reference.packed import Packed
from tritium.backends.torch.space import Space, Value
from tritium.backends.values.packed import decode
from tritium.backends.values.quantized import scaled
from tritium.fragment import Fragment, Step
from tritium.op import Kind, Op, Spec

Fn = Callable[..., Any]


def weights(space: Space, w: Any) -> Any:
    """Return weights in the layouts of the kernels, made once for each value and cached with it until it is written.

    Matrices of experts [E, N, K] are below each other there.
    """
    packed, matrix = isinstance(w, Packed), (prod(w.shape[:-1]), w.shape[-1])
    if not packed and in_graph():  # it may be written later, which a replay would not see
        return cuda_weights.int8(w.contiguous().reshape(matrix))
    data: Any = w.data if packed else w
    version = (data._version, w.dtype, w.shape) if packed else (data._version,)
    known = getattr(data, "repacked", None)
    if known is not None and known[0] == version:
        return known[1]
    if packed and w.dtype is dt.tern2:
        arranged = cuda_weights.ternary(data, matrix)
    else:
        integers = decode(space, w, checked=False).contiguous().reshape(matrix)
        arranged = cuda_weights.ternary_of(integers) if packed and w.dtype.is_ternary else cuda_weights.int8(integers)
    if not (data.is_inference() or getattr(data, "exported", False)):  # else not all of its writes are counted
        data.repacked = (version, arranged)
    return arranged


def integer_matmul(space: Space) -> Fn:
    def run(q: Value, w: Any) -> Value:
        lead = q.shape[:-1]
        sums = cuda_ternary.integer_product(q.reshape(lead.numel(), q.shape[-1]), weights(space, w))
        return sums.reshape(*lead, w.shape[0])

    return lambda out: run


def quantized_matmul(space: Space) -> Fn:
    def maker(out: Spec, group: int, activations: str) -> Fn:
        to, by_group = space.twin(out.dtype), activations == "group"

        def run(x: Value, w: Any, scale: Value, bias: Value | None) -> Value:
            if activations == "float":
                return scaled(space, x, w, scale, bias, group, activations).to(to)
            return cuda_ternary.linear(x, weights(space, w), _scale(scale), bias, to, group, by_group=by_group)

        return run

    return maker


def _scale(scale: Value) -> Value:
    """Return a scale without an axis where it is one number for all rows."""
    return scale.reshape(()) if scale.ndim == 1 and scale.shape[0] == 1 else scale


# ---- with the ops before and after it


class Parts(NamedTuple):
    """A fusion group divided at its product. Before it is a norm, or what makes tokens, quantised or not, or neither."""

    cut: ProductParts
    norm: Step | None
    tokens: Fragment | None  # of the inputs `cut.before_inputs`, (q, scale, sum) as quantize_activations returns them
    gate: Gate | None = None  # what they are, where the kernel that multiplies one token can make them
    floats: Fragment | None = None  # of the same inputs, tokens that are quantised by groups of columns afterwards


class Gate(NamedTuple):
    """relu2 of one input times another, and a norm or none. Numbers are those of `cut.before_inputs`."""

    gate: int
    up: int
    norm: Step | None


@lru_cache(maxsize=1024)
def parts(body: Fragment) -> Parts | str:
    """Return the parts of a fusion group, or the reason why it does not have these parts."""
    cut = product_parts(body)
    if isinstance(cut, str):
        return cut
    before = cut.before
    if before is None:
        return Parts(cut, None, None)
    is_normed = [s.op for s in before.steps] == [ops.rms_norm]
    if _by_group(cut.core):
        ternary = body.spec(cut.core.inputs[1] or 0).dtype.is_ternary
        fits = ternary and cuda_ternary.norms_groups(before.out.shape[-1], dict(cut.core.attrs)["group"])
        return Parts(cut, before.steps[0], None) if is_normed and fits else Parts(cut, None, None, floats=before)
    if is_normed:
        return Parts(cut, before.steps[0], None)
    if any(s.op not in (ops.rms_norm, ops.const) and s.op.kind is not Kind.MAP for s in before.steps):
        return "before a product stand no more than maps and a root-mean-square norm"
    k = before.out.shape[-1]
    if cuda_tuned.wide(k) != k:
        return f"maps before a product make tokens as its kernels read them, of a multiple of 128 columns, not of {k}"
    return Parts(cut, None, _quantised(before), _gate(before))


def _by_group(product: Step) -> bool:
    """Return True if the input of a product is quantised by groups of columns."""
    return dict(product.attrs).get("activations") == "group"


def _gate(before: Fragment) -> Gate | None:
    n, steps = len(before.inputs), before.steps
    if [s.op for s in steps] not in ([ops.relu2, ops.multiply], [ops.relu2, ops.multiply, ops.rms_norm]):
        return None
    gate, sides = steps[0].inputs[0], steps[1].inputs
    up = sides[1] if sides[0] == n else sides[0]
    norm = steps[2] if len(steps) > 2 else None
    if gate is None or up is None or n not in sides or up == n:
        return None
    if norm is not None and (norm.inputs[0] != n + 1 or any(i is not None and i >= n for i in norm.inputs[1:])):
        return None
    whole = all(before.spec(i) == before.out and before.out.dtype is dt.f32 for i in (gate, up))
    return Gate(gate, up, norm) if whole else None


def _quantised(body: Fragment) -> Fragment:
    """Return a fusion group with its one result quantised."""
    x, index = body.out, len(body.inputs) + len(body.steps)
    specs = (Spec(x.shape, dt.i8), Spec(x.shape[:-1], dt.f32), Spec(x.shape[:-1], dt.i32))
    items = (Step(ops.item, (index,), (("index", i),), s) for i, s in enumerate(specs))
    steps = (*body.steps, Step(ops.quantize_activations, body.outputs, (), specs), *items)
    return Fragment(body.inputs, steps, (index + 1, index + 2, index + 3))


def has_product(body: Fragment) -> bool:
    return any(s.op is ops.quantized_matmul for s in body.steps)


def refuses(body: Fragment) -> str | None:
    """Return the reason why a fusion group with a product does not gain here, or None if it gains."""
    outcome = parts(body)
    if isinstance(outcome, str):
        return outcome
    around = (outcome.tokens, outcome.floats, outcome.cut.after)
    return next((why for b in around if b is not None and (why := cuda_fused.refuses(b)) is not None), None)


def fused_product(space: Space, body: Fragment) -> Fn:
    """Return a function for a fusion group with a product.

    A kernel runs the maps before it, which also quantises, one the product, and one the maps after it.
    """
    split = parts(body)
    assert isinstance(split, Parts), split
    cut, norm, gate = split.cut, split.norm, split.gate
    product, shape = cut.core, cut.core.spec.shape
    columns = body.spec(product.inputs[0] or 0).shape[-1]
    to, group = space.twin(product.spec.dtype), dict(product.attrs)["group"]
    tokens = None if split.tokens is None else cuda_fused.maker(split.tokens.out, split.tokens)
    after = None if cut.after is None else cuda_fused.maker(cut.after.out, cut.after)
    floats = None if split.floats is None else cuda_fused.maker(split.floats.out, split.floats)
    as_bias, by_group = bias_free(product) and _adds(cut), _by_group(product)

    def normed(step: Step | None, first: list[Any]) -> Any:
        if step is None:
            return None
        weight = None if len(step.inputs) < 2 or step.inputs[1] is None else first[step.inputs[1]]
        return cuda_ternary.Norm(weight, dict(step.attrs)["eps"])

    def multiplied(xs: tuple[Any, ...], w: Any, scale: Value, bias: Value | None) -> Value:
        first = [xs[i] for i in cut.before_inputs]
        if floats is not None:
            return cuda_ternary.linear(floats(*first), w, scale, bias, to, group, by_group=True)
        if tokens is None:
            x = first[norm.inputs[0] or 0] if norm is not None else xs[product.inputs[0] or 0]
            return cuda_ternary.linear(x, w, scale, bias, to, group, normed(norm, first), by_group=by_group)
        if gate is not None and not group:
            x, up = (first[i].reshape(-1, columns) for i in (gate.gate, gate.up))
            alone = cuda_ternary.alone_on(x, w)
            if alone is not None:
                return cuda_ternary.fused(x, w, scale, bias, to, normed(gate.norm, first), up, choice=alone).reshape(
                    shape
                )
        q, scales, sums = tokens(*first)
        quantised = cuda_ternary.Tokens(q.reshape(-1, columns), scales.reshape(-1), sums.reshape(-1), columns)
        return cuda_ternary.product(quantised, w, scale, bias, to, group).reshape(shape)

    def run(*xs: Any) -> Any:
        w, scale, bias = (None if i is None else xs[i] for i in (*product.inputs, None)[1:4])
        w, scale, others = weights(space, w), _scale(scale), [xs[i] for i in cut.after_inputs]
        if as_bias:
            return multiplied(xs, w, scale, others[0].reshape(-1, shape[-1])).reshape(shape)
        y = multiplied(xs, w, scale, bias)
        return y if after is None else after(y, *others)

    return run


def bias_free(product: Step) -> bool:
    return len(product.inputs) < 4 or product.inputs[3] is None


def _adds(cut: ProductParts) -> bool:
    """Return True if only the sum with one more input follows a product, in f32 and of its shape."""
    spec, after = cut.core.spec, cut.after
    if after is None or spec.dtype is not dt.f32 or after.inputs != (spec, spec) or after.outputs != (2,):
        return False
    return [(s.op, s.spec) for s in after.steps] == [(ops.add, spec)] and set(after.steps[0].inputs) == {0, 1}


# ---- integers of any width


def matmul(space: Space, of_floats: Fn) -> Fn:
    """Return a maker of integer products, modulo 2**64: limbs of 16 bits are multiplied in f64, whose sums are
    exact.
    """

    def maker(out: Spec, algorithm: Any) -> Fn:
        if out.dtype.is_float:
            return of_floats(out, algorithm=algorithm)
        to, limbs = space.twin(out.dtype), max(out.dtype.nbytes // 2, 1)
        return lambda a, b: _integers(a.to(torch.int64), b.to(torch.int64), limbs).to(to)

    return maker


def _integers(a: Value, b: Value, limbs: int) -> Value:
    step = 1 << 20  # columns: so many products of two parts are below 2**53
    total: Any = 0
    for first in range(0, max(a.shape[-1], 1), step):
        x = a[..., first : first + step]
        y = b[..., first : first + step] if b.ndim == 1 else b[..., first : first + step, :]
        xs, ys = ([((v >> (16 * i)) & 0xFFFF).double() for i in range(limbs)] for v in (x, y))
        for i in range(limbs):
            for j in range(limbs - i):
                total = total + (torch.matmul(xs[i], ys[j]).to(torch.int64) << (16 * (i + j)))
    return total


ROWS: dict[Op, Callable[[Space], Fn]] = {ops.integer_matmul: integer_matmul, ops.quantized_matmul: quantized_matmul}

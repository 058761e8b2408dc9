"""Linear layers on a GPU as rows: weights repacked once, a norm before the product in its kernel, maps after it in one more.

Knows nothing of storages, tensors of ours or graphs, nor of how a product is computed: that is `cuda_ternary`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from tritium import dtype as dt
from tritium import ops
from tritium.backends import cuda_fused
from tritium.backends.cuda_graph import in_graph
from tritium.backends.elements_packed import decode
from tritium.backends.packed import Packed
from tritium.backends.torch_space import Space, Value
from tritium.fragment import Fragment, Step
from tritium.op import Op, Spec

Fn = Callable[..., Any]


def weights(space: Space, w: Any) -> Any:
    """Weights in the arrangements of the kernels. They are made once for each value and stay with it, until it is written."""
    from tritium.backends import cuda_weights

    packed = isinstance(w, Packed)
    if not packed and in_graph():  # it may be written later, which a replay would not see
        return cuda_weights.int8(w.contiguous())
    data: Any = w.data if packed else w
    about = (data._version, w.dtype, w.shape) if packed else (data._version,)
    known = getattr(data, "repacked", None)
    if known is not None and known[0] == about:
        return known[1]
    if packed and w.dtype is dt.tern2:
        made = cuda_weights.ternary(data, w.shape)
    else:
        integers = decode(space, w, checked=False).contiguous()
        made = cuda_weights.ternary_of(integers) if packed and w.dtype.is_ternary else cuda_weights.int8(integers)
    if not (data.is_inference() or getattr(data, "exported", False)):  # else not all of its writes are counted
        data.repacked = (about, made)
    return made


def integer_matmul(space: Space) -> Fn:
    from tritium.backends import cuda_ternary

    def run(q: Value, w: Any) -> Value:
        lead = q.shape[:-1]
        sums = cuda_ternary.integer_product(q.reshape(lead.numel(), q.shape[-1]), weights(space, w))
        return sums.reshape(*lead, w.shape[0])

    return lambda out: run


def quantized_matmul(space: Space) -> Fn:
    from tritium.backends import cuda_ternary

    def maker(out: Spec, group: int) -> Fn:
        to = space.twin(out.dtype)

        def run(x: Value, w: Any, scale: Value, bias: Value | None) -> Value:
            return cuda_ternary.linear(x, weights(space, w), _scale(scale), bias, to, group)

        return run

    return maker


def _scale(scale: Value) -> Value:
    """One number for all rows has no axis."""
    return scale.reshape(()) if scale.ndim == 1 and scale.shape[0] == 1 else scale


# ---- with what stands before and after it


class Parts(NamedTuple):
    """A body with one product: the norm of its tokens, the product, and the maps after it as a body of their own."""

    norm: Step | None
    product: Step
    maps: Fragment | None  # its last input is the product


@lru_cache(maxsize=1024)
def parts(body: Fragment) -> Parts | str:
    """The parts of a body, or why it is not made of them."""
    made = dict(body.numbered())
    products = [(v, s) for v, s in made.items() if s.op is ops.quantized_matmul]
    if len(products) != 1 or not isinstance(products[0][1].spec, Spec):
        return "a kernel has one product of quantised weights"
    at, product = products[0]
    norm = made.get(product.inputs[0] if product.inputs[0] is not None else -1)
    before = {at} if norm is None else {at, product.inputs[0]}
    if norm is not None and (norm.op is not ops.rms_norm or any(i in made for i in norm.inputs if i is not None)):
        return "before a product stands no more than a root-mean-square norm"
    if any(i in made for i in product.inputs[1:] if i is not None):
        return "weights and scales of a product are given"
    count = len(body.inputs)
    number = {v: v for v in range(count)} | {at: count}
    steps: list[Step] = []
    for v, s in made.items():
        if v in before:
            continue
        if any(i in before and i != at for i in s.inputs if i is not None):
            return "the norm before a product is read by the product alone"
        number[v] = count + 1 + len(steps)
        steps.append(s._replace(inputs=tuple(None if i is None else number[i] for i in s.inputs)))
    if not steps:
        return Parts(norm, product, None)
    maps = Fragment((*body.inputs, product.spec), tuple(steps), tuple(number[v] for v in body.outputs))
    return Parts(norm, product, _needed(maps))


def _needed(body: Fragment) -> Fragment:
    """Without the inputs that nobody reads, but for the last."""
    count = len(body.inputs)
    read = {i for s in body.steps for i in s.inputs if i is not None and i < count} | {count - 1}
    kept = sorted(read)
    number = {v: k for k, v in enumerate(kept)} | {count + k: len(kept) + k for k in range(len(body.steps))}
    steps = tuple(s._replace(inputs=tuple(None if i is None else number[i] for i in s.inputs)) for s in body.steps)
    return Fragment(tuple(body.inputs[v] for v in kept), steps, tuple(number[v] for v in body.outputs))


def has_product(body: Fragment) -> bool:
    return any(s.op is ops.quantized_matmul for s in body.steps)


def refuses(body: Fragment) -> str | None:
    """Why a body with a product does not gain here; None: it does."""
    found = parts(body)
    if isinstance(found, str):
        return found
    return None if found.maps is None or len(found.maps.names) < 1 else cuda_fused.refuses(found.maps)


def fused_product(space: Space, body: Fragment) -> Fn:
    """A body with a product, as two kernels."""
    from tritium.backends import cuda_ternary

    found = parts(body)
    assert isinstance(found, Parts), found
    norm, product, maps = found
    to, group = space.twin(product.spec.dtype), dict(product.attrs)["group"]
    eps = dict(norm.attrs)["eps"] if norm is not None else 0.0
    after = None if maps is None else cuda_fused.maker(maps.out, maps)
    kept = () if maps is None else _places(body, maps)
    added = _added(maps, product) if bias_free(product) else None

    def run(*xs: Any) -> Any:
        def given(s: Step, i: int) -> Any:
            at = s.inputs[i] if i < len(s.inputs) else None
            return None if at is None else xs[at]

        before = None
        if norm is None:
            x = given(product, 0)
        else:
            x, before = given(norm, 0), cuda_ternary.Norm(given(norm, 1), eps)
        w, scale, bias = (given(product, i) for i in (1, 2, 3))
        if added is not None and x.numel() == x.shape[-1]:  # of one token the sum is what a bias is
            more = xs[kept[added]]
            y = cuda_ternary.linear(x, weights(space, w), _scale(scale), more.reshape(-1), to, group, before)
            return y.reshape(more.shape)
        y = cuda_ternary.linear(x, weights(space, w), _scale(scale), bias, to, group, before)
        return y if after is None else after(*(xs[i] for i in kept), y)

    return run


def bias_free(product: Step) -> bool:
    return len(product.inputs) < 4 or product.inputs[3] is None


def _added(maps: Fragment | None, product: Step) -> int | None:
    """The input that the maps add to a product of f32, if that is all they do; None: they do something else."""
    if maps is None or len(maps.steps) != 1 or maps.steps[0].op is not ops.add or maps.outputs != (len(maps.inputs),):
        return None
    last = len(maps.inputs) - 1
    others = [i for i in maps.steps[0].inputs if i != last]
    same = all(s == product.spec for s in maps.inputs) and maps.steps[0].spec == product.spec
    return others[0] if len(others) == 1 and last == 1 and same and product.spec.dtype is dt.f32 else None


def _places(body: Fragment, maps: Fragment) -> tuple[int, ...]:
    """Which inputs of a body its maps read, in order."""
    product = next(v for v, s in body.numbered() if s.op is ops.quantized_matmul)
    norm = body.steps[product - len(body.inputs)].inputs[0]
    rest = [s for v, s in body.numbered() if v not in (product, norm)]
    found = sorted({i for s in rest for i in s.inputs if i is not None and i < len(body.inputs)})
    assert len(found) == len(maps.inputs) - 1
    return tuple(found)


# ---- integers of any width


def matmul(space: Space, of_floats: Fn) -> Fn:
    """Products of integers, modulo 2**64: a GPU multiplies them as parts of 16 bits in f64, whose sums are exact."""

    def maker(out: Spec, algorithm: Any) -> Fn:
        if out.dtype.is_float:
            return of_floats(out, algorithm=algorithm)
        to, limbs = space.twin(out.dtype), max(out.dtype.nbytes // 2, 1)
        return lambda a, b: _integers(a.to(torch.int64), b.to(torch.int64), limbs).to(to)

    return maker


def _integers(a: Value, b: Value, limbs: int) -> Value:
    step = 1 << 20  # columns: so many products of two parts are below 2**53
    total: Any = 0
    for at in range(0, max(a.shape[-1], 1), step):
        x = a[..., at : at + step]
        y = b[..., at : at + step] if b.ndim == 1 else b[..., at : at + step, :]
        xs, ys = ([((v >> (16 * i)) & 0xFFFF).double() for i in range(limbs)] for v in (x, y))
        for i in range(limbs):
            for j in range(limbs - i):
                total = total + (torch.matmul(xs[i], ys[j]).to(torch.int64) << (16 * (i + j)))
    return total


ROWS: dict[Op, Callable[[Space], Fn]] = {ops.integer_matmul: integer_matmul, ops.quantized_matmul: quantized_matmul}

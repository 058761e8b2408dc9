"""The words of every library that bench/compile.py compares, and the functions written in those words.

Libraries are imported where used.
"""

from __future__ import annotations

import importlib.metadata
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dense import EPS, np_layer_norm, np_softmax

Array = Any
Function = Callable[..., Any]
EAGER, COMPILED = "tritium", "tritium compiled"  # the two that are ours
IN_TURN = "kernels in turn"


def same(fn: Function) -> Function:
    return fn


@dataclass(frozen=True)
class Words:
    """What one library calls the things that the functions below need; None where it has no such thing."""

    array: Function
    exp: Function
    tanh: Function
    sigmoid: Function
    relu: Function
    maximum: Function
    minimum: Function
    softmax: Function  # of the last axis
    mean: Function  # of the last axis, which stays
    largest: Function  # of the last axis, which stays
    rsqrt: Function
    round: Function
    to_i8: Function
    layer_norm: Function
    gelu: Function | None
    running_sum: Function
    finish: Function | None = None  # waits for a result, or makes a lazy one happen
    forms: dict[str, Function] = field(default_factory=dict)  # by name: what makes a function ready to be called


def use_tritium(threads: int) -> Words:
    import tritium as tt

    tt.set_num_threads(threads)
    return Words(
        array=tt.asarray, exp=tt.exp, tanh=tt.tanh, sigmoid=tt.sigmoid, relu=tt.relu, maximum=tt.maximum,
        minimum=tt.minimum, softmax=partial(tt.softmax, axis=-1), mean=partial(tt.mean, axis=-1, keepdims=True),
        largest=partial(tt.max, axis=-1, keepdims=True), rsqrt=tt.rsqrt, round=tt.round,
        to_i8=lambda x: x.to(tt.i8), layer_norm=partial(tt.layer_norm, eps=EPS), gelu=tt.gelu,
        running_sum=partial(tt.cumulative_sum, axis=-1), forms={EAGER: same, COMPILED: tt.compile},
    )  # fmt: skip


def numpy_words(forms: dict[str, Function]) -> Words:
    import numpy as np

    try:
        from scipy.special import erf  # numpy has none of its own
    except ImportError:
        erf = None
    return Words(
        array=same, exp=np.exp, tanh=np.tanh, sigmoid=lambda x: 1 / (1 + np.exp(-x)), relu=lambda x: np.maximum(x, 0),
        maximum=np.maximum, minimum=np.minimum, softmax=partial(np_softmax, np),
        mean=partial(np.mean, axis=-1, keepdims=True), largest=partial(np.max, axis=-1, keepdims=True),
        rsqrt=lambda x: 1 / np.sqrt(x), round=np.rint, to_i8=lambda x: x.astype(np.int8),
        layer_norm=partial(np_layer_norm, np), gelu=erf and (lambda x: 0.5 * x * (1 + erf(x * math.sqrt(0.5)))),
        running_sum=partial(np.cumsum, axis=-1), forms=forms,
    )  # fmt: skip


def use_torch(threads: int) -> Words:
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    return Words(
        array=torch.from_numpy, exp=torch.exp, tanh=torch.tanh, sigmoid=torch.sigmoid, relu=torch.relu,
        maximum=lambda x, y: torch.maximum(x, y) if isinstance(y, torch.Tensor) else torch.clamp_min(x, y),
        minimum=lambda x, y: torch.minimum(x, y) if isinstance(y, torch.Tensor) else torch.clamp_max(x, y),
        softmax=partial(torch.softmax, dim=-1), mean=partial(torch.mean, dim=-1, keepdim=True),
        largest=partial(torch.amax, dim=-1, keepdim=True), rsqrt=torch.rsqrt, round=torch.round,
        to_i8=lambda x: x.to(torch.int8),
        layer_norm=lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias, EPS),
        gelu=functional.gelu, running_sum=partial(torch.cumsum, dim=-1),
        forms={"torch": same, "torch.compile": partial(compiled_torch, torch)},
    )  # fmt: skip


def compiled_torch(torch: Any, fn: Function) -> Function:
    """For these shapes alone, as all others compile; programs of earlier shapes are forgotten."""
    torch._dynamo.reset()
    return torch.compile(fn, dynamic=False)


def use_jax(threads: int) -> Words:
    import jax
    from jax import numpy as jnp

    return Words(
        array=jnp.asarray, exp=jnp.exp, tanh=jnp.tanh, sigmoid=jax.nn.sigmoid, relu=jax.nn.relu, maximum=jnp.maximum,
        minimum=jnp.minimum, softmax=jax.nn.softmax, mean=partial(jnp.mean, axis=-1, keepdims=True),
        largest=partial(jnp.max, axis=-1, keepdims=True), rsqrt=jax.lax.rsqrt, round=jnp.round,
        to_i8=lambda x: x.astype(jnp.int8), layer_norm=partial(np_layer_norm, jnp),
        gelu=partial(jax.nn.gelu, approximate=False), running_sum=partial(jnp.cumsum, axis=-1),
        finish=jax.block_until_ready, forms={"jax.jit": jax.jit},
    )  # fmt: skip


def use_mlx(threads: int) -> Words:
    import mlx.core as mx
    from mlx import nn

    mx.set_default_device(mx.cpu)
    return Words(
        array=mx.array, exp=mx.exp, tanh=mx.tanh, sigmoid=mx.sigmoid, relu=nn.relu, maximum=mx.maximum,
        minimum=mx.minimum, softmax=partial(mx.softmax, axis=-1), mean=partial(mx.mean, axis=-1, keepdims=True),
        largest=partial(mx.max, axis=-1, keepdims=True), rsqrt=mx.rsqrt, round=mx.round,
        to_i8=lambda x: x.astype(mx.int8), layer_norm=partial(mx.fast.layer_norm, eps=EPS), gelu=nn.gelu,
        running_sum=partial(mx.cumsum, axis=-1), finish=lambda out: mx.eval(out) or out, forms={"mx.compile": mx.compile},
    )  # fmt: skip


LIBRARIES: dict[str, Callable[[int], Words]] = {
    "tritium": use_tritium,
    "numpy": lambda threads: numpy_words({"numpy": same}),
    "torch": use_torch,
    "jax": use_jax,
    "mlx": use_mlx,
}


def load(names: list[str], threads: int, notes: list[str]) -> dict[str, Words]:
    """The libraries that are installed; a note for each other."""
    found = {}
    for name in names:
        try:
            found[name] = LIBRARIES[name](threads)
        except ImportError as error:
            if name == "tritium":
                raise SystemExit(f"tritium, the base of the comparison, does not import: {error}") from error
            notes.append(f"{name} is not installed (pip install '.[bench]' brings the peers)")
    return found


def version(name: str) -> str:
    return getattr(sys.modules[name], "__version__", None) or importlib.metadata.version(name)


# ---- functions in any library's words. Names are bound outside, so that a compiler meets few of them.


def cheap_chain(w: Words, length: int) -> Function:
    """`length` steps of arithmetic on two tensors; values stay within a few units."""
    relu, maximum, minimum = w.relu, w.maximum, w.minimum

    def chain(a: Array, b: Array) -> Array:
        x = a
        for i in range(length):
            step = i % 10
            if step == 0:
                x = x * b
            elif step == 1:
                x = relu(x)
            elif step == 2:
                x = x + a
            elif step == 3:
                x = x * 0.75
            elif step == 4:
                x = x - b
            elif step == 5:
                x = maximum(x, b)
            elif step == 6:
                x = x + 0.5
            elif step == 7:
                x = minimum(x, 3.0)
            elif step == 8:
                x = x - a
            else:
                x = x * 0.5
        return x

    return chain


def smooth_chain(w: Words, length: int) -> Function:
    """`length` steps of which three in five are tanh, sigmoid or exp."""
    tanh, sigmoid, exp = w.tanh, w.sigmoid, w.exp

    def chain(a: Array, b: Array) -> Array:
        x = a
        for i in range(length):
            step = i % 5
            if step == 0:
                x = x * b
            elif step == 1:
                x = tanh(x)
            elif step == 2:
                x = x + a
            elif step == 3:
                x = sigmoid(x)
            else:
                x = exp(x)
        return x

    return chain


CHAINS = {"cheap": cheap_chain, "smooth": smooth_chain}


def masked_softmax(w: Words) -> Function:
    softmax = w.softmax
    return lambda x, mask: softmax(x * 0.125 + mask)


def norm_quantise(w: Words) -> Function:
    """rms_norm and the rounding to int8 of BitNet, in plain arithmetic."""
    mean, largest, rsqrt, maximum, rounded, to_i8 = w.mean, w.largest, w.rsqrt, w.maximum, w.round, w.to_i8

    def run(x: Array, weight: Array) -> tuple[Array, Array]:
        h = x * rsqrt(mean(x * x) + EPS) * weight
        amax = maximum(largest(abs(h)), EPS)
        return to_i8(rounded(h * (127.0 / amax))), amax * (1 / 127)

    return run


def norm_gelu(w: Words) -> Function | None:
    layer_norm, gelu = w.layer_norm, w.gelu
    return gelu and (lambda x, weight, bias: gelu(layer_norm(x, weight, bias)))


def running_sums(w: Words, length: int) -> Function:
    """`length` steps that cannot be one."""
    running_sum = w.running_sum

    def run(x: Array) -> Array:
        for _ in range(length):
            x = running_sum(x)
        return x

    return run


def turned_adds(w: Words, length: int) -> Function:
    """`length` additions of a matrix to its own transpose, which no element-wise loop holds."""

    def run(x: Array) -> Array:
        for _ in range(length):
            x = (x + x.T) * 0.5
        return x

    return run


TINY = {"running sum of 8 numbers": (running_sums, (8,)), "(x + x.T) / 2 of 3×3 numbers": (turned_adds, (3, 3))}


def gated_mlp(w: Words, gate: Function, up: Function, down: Function) -> Function:
    """The feed-forward block of BitNet: down(norm(relu(gate(x))² * up(x))) + x."""
    mean, rsqrt, relu = w.mean, w.rsqrt, w.relu

    def run(x: Array, weight: Array) -> Array:
        g = relu(gate(x))
        h = g * g * up(x)
        return down(h * rsqrt(mean(h * h) + EPS) * weight) + x

    return run

"""A layer with a norm and maps around it gives the bits of the rows one by one; integers of any width multiply exactly.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device. Which of both Triton
does is settled when it is imported, so it is not imported here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium import nn, ops
from tritium.backends.reference.packed import Packed
from tritium.compiler.fuse import fuse, pattern
from tritium.compiler.passes import simplify
from triton_runs import INTERPRETED, PLACE, in_both_modes, passes, runs

torch = pytest.importorskip("torch", reason="layers on CUDA need PyTorch: pip install torch triton")
if importlib.util.find_spec("triton") is None:
    pytest.skip("layers on CUDA need Triton: pip install torch triton", allow_module_level=True)
from tritium.backends.cuda.fused import kernel as cuda_fused  # noqa: E402
from tritium.backends.cuda.linear import products as cuda_products  # noqa: E402
from tritium.backends.torch.space import Space  # noqa: E402


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


LAYER = nn.BitLinear.from_float(tt.randn((24, 40), seed=1))
BIASED = nn.BitLinear.from_float(tt.randn((24, 40), seed=1), tt.randn((24,), seed=2))
NORM = tt.randn((40,), seed=3)
CASES: dict[str, Callable[[Any, Any], Any]] = {
    "norm": lambda x, r: LAYER(tt.rms_norm(x, NORM, eps=1e-5)),
    "sum": lambda x, r: LAYER(x) + r,
    "norm and sum": lambda x, r: r + LAYER(tt.rms_norm(x, NORM, eps=1e-5)),
    "bias and sum": lambda x, r: BIASED(x) + r,
    "maps": lambda x, r: tt.relu(LAYER(x)) * r,
    "twice itself": lambda x, r: (LAYER(tt.rms_norm(x, NORM, eps=1e-5)) + r) * 2,
}


def refuses(body: Any) -> str | None:
    return (cuda_products if cuda_products.has_product(body) else cuda_fused).refuses(body)


def fused(fn: Callable[..., Any], *args: Any) -> tuple[Any, list[Any]]:
    """The one body of a function, and its operands as values of torch."""
    body, given = taken(fn, *args)
    return body, [value(x) for x in given]


def taken(fn: Callable[..., Any], *args: Any) -> tuple[Any, list[Any]]:
    graph = fuse(simplify(tt.trace(fn, *args)).graph, refuses).graph
    (node,) = (n for n in graph.order() if n.op is ops.fused)
    given = [graph.captured[i] if i in graph.captured else args[graph.inputs.index(i)] for i in node.inputs]
    return dict(node.attrs)["body"], given


def value(x: Any) -> Any:
    x = ops.repack(x, "tern2") if x.dtype.is_packed else x
    host = np.array(x.device.backend.download(x))
    data = torch.from_numpy(host.view(np.int16)).view(torch.bfloat16) if x.dtype is tt.bf16 else torch.from_numpy(host)
    data = data.to(PLACE)
    return Packed(data, x.dtype, x.shape) if x.dtype.is_packed else data


@runs
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_body_with_a_product_has_the_bits_of_its_rows(name: str, tokens: int) -> None:
    x, r = tt.randn((tokens, 40), seed=5), tt.randn((tokens, 24), seed=6)
    body, values = fused(CASES[name], x, r)
    space = Space(torch.device(PLACE), lambda *a: None)
    got = cuda_products.fused_product(space, body)(*values)
    np.testing.assert_array_equal(got.cpu().numpy(), CASES[name](x, r).numpy())


def wide(n: int, k: int, biased: bool = False) -> nn.BitLinear:
    return nn.BitLinear.from_float(tt.randn((n, k), seed=n), tt.randn((n,), seed=2) if biased else None)


KINDS = ["f32", "f16"] + ([] if INTERPRETED else ["bf16"])  # the interpreter cuts bf16 instead of rounding
BEFORE: dict[str, Callable[..., Any]] = {
    "an MLP": lambda layer, g, gate, up, r: layer(tt.rms_norm(tt.relu2(gate) * up, g, eps=1e-5)) + r,
    "a plain norm": lambda layer, g, gate, up, r: layer(tt.rms_norm(tt.relu(gate) * up, eps=1e-5)),
    "no norm": lambda layer, g, gate, up, r: r + layer(tt.abs(gate) * up),
    "one map": lambda layer, g, gate, up, r: layer(gate + up),
    "a number, and maps after": lambda layer, g, gate, up, r: tt.relu(layer((gate - 0.5) * up)) * r - 0.5,
    "the same twice": lambda layer, g, gate, up, r: layer(tt.rms_norm(gate * gate + up * g, g)) + r,
}


def has_the_bits_of_its_rows(name: str, layer: nn.BitLinear, lead: tuple[int, ...], seed: int, dtype: str) -> None:
    """With gate and up as the halves of one result's columns."""
    n, k = layer.weight.shape
    both = tt.randn((*lead, 2 * k), seed=seed).to(dtype)
    gate, up, r = both[..., :k], both[..., k:], tt.randn((*lead, n), seed=seed + 1).to(dtype)
    g = tt.randn((k,), seed=3).to(dtype)

    def fn(gate: Any, up: Any, r: Any, g: Any) -> Any:
        return BEFORE[name](layer, g, gate, up, r)

    body, given = taken(fn, gate, up, r, g)
    assert body.steps[0].op is not ops.quantized_matmul
    together = value(both)
    halves = {id(gate): together[..., :k], id(up): together[..., k:]}
    space = Space(torch.device(PLACE), lambda *a: None)
    got = cuda_products.fused_product(space, body)(*(halves[id(x)] if id(x) in halves else value(x) for x in given))
    want = fn(gate, up, r, g)
    assert tuple(got.shape) == want.shape
    np.testing.assert_array_equal(got.float().cpu().numpy(), want.to("f32").numpy())


@runs
@pytest.mark.parametrize("lead", [(), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("name", BEFORE)
def test_maps_before_a_product_have_the_bits_of_their_rows(name: str, lead: tuple[int, ...]) -> None:
    has_the_bits_of_its_rows(name, wide(24, 256), lead, 5, "f32")


@runs
@given(
    st.sampled_from(list(BEFORE)), st.integers(1, 9), st.integers(1, 40), st.integers(1, 4), st.booleans(),
    st.sampled_from(KINDS), st.integers(0, 2**20),
)  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_of_any_size(name: str, m: int, n: int, blocks: int, biased: bool, dtype: str, seed: int) -> None:
    has_the_bits_of_its_rows(name, wide(n, 128 * blocks, biased), (m,), seed, dtype)


def grouped(n: int, k: int, group: int, seed: int = 1) -> nn.BitLinear:
    return nn.BitLinear.from_float(tt.randn((n, k), seed=seed), group=group, activations="group")


@runs
@given(
    st.sampled_from(list(BEFORE)), st.integers(1, 5), st.integers(1, 40), st.integers(1, 4), st.sampled_from([32, 64, 128]),
    st.sampled_from(KINDS), st.integers(0, 2**20),
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_of_activations_by_group(name: str, m: int, n: int, blocks: int, group: int, dtype: str, seed: int) -> None:
    has_the_bits_of_its_rows(name, grouped(n, 128 * blocks, group), (m,), seed, dtype)


@runs
@pytest.mark.parametrize(("k", "group"), [(256, 64), (320, 64), (384, 128), (384, 32), (4224, 128)])
@pytest.mark.parametrize("summed", [False, True])
def test_a_norm_before_activations_by_group(k: int, group: int, summed: bool) -> None:
    """In the launch that quantises, where a CTA holds a whole token and groups have kernels of their own; else before it."""
    layer, g = grouped(8, k, group), tt.randn((k,), seed=2)
    x, r = tt.randn((3, k), seed=3), tt.randn((3, 8), seed=4)

    def fn(x: Any, r: Any) -> Any:
        y = layer(tt.rms_norm(x, g, eps=1e-5))
        return y + r if summed else y

    body, values = fused(fn, x, r)
    found = cuda_products.parts(body)
    assert isinstance(found, cuda_products.Parts)
    assert (found.norm is not None, found.floats is None) == (k <= 4096 and group >= 64,) * 2
    got = cuda_products.fused_product(Space(torch.device(PLACE), lambda *a: None), body)(*values)
    np.testing.assert_array_equal(got.cpu().numpy(), fn(x, r).numpy())


GATES: dict[str, tuple[Callable[..., Any], bool]] = {
    "normed": (lambda a, b: tt.rms_norm(tt.relu2(a) * b, tt.ones((128,))), True),
    "the other way round": (lambda a, b: tt.rms_norm(b * tt.relu2(a)), True),
    "no norm": (lambda a, b: tt.relu2(a) * b, True),
    "a weight made of the gate": (lambda a, b: tt.rms_norm(tt.relu2(a) * b, tt.relu2(a)[0]), False),
    "another activation": (lambda a, b: tt.rms_norm(tt.silu(a) * b), False),
    "of itself": (lambda a, b: tt.square(tt.relu2(a)) * b, False),
    "one more map": (lambda a, b: tt.rms_norm(tt.relu2(a) * b + 1), False),
    "a broadcast": (lambda a, b: tt.rms_norm(tt.relu2(a) * b[:1]), False),
}


@pytest.mark.parametrize("name", GATES)
def test_a_gate_is_known_by_its_rows(name: str) -> None:
    make, known = GATES[name]
    layer, a, b = wide(8, 128), tt.randn((3, 128), seed=1), tt.randn((3, 128), seed=2)
    graph = fuse(simplify(tt.trace(lambda a, b: layer(make(a, b)), a, b)).graph, refuses).graph
    bodies = [dict(n.attrs)["body"] for n in graph.order() if n.op is ops.fused]
    (found,) = (cuda_products.parts(b) for b in bodies if cuda_products.has_product(b))
    assert isinstance(found, cuda_products.Parts)
    assert (found.gate is not None) == known
    if found.gate is not None:
        assert {found.gate.gate, found.gate.up} == {0, 1}
        assert (found.gate.norm is None) == (name == "no norm")


@runs
def test_tokens_that_are_not_finite_are_as_by_their_rows() -> None:
    layer, r = wide(8, 128), tt.zeros((3, 8))
    x = np.ones((3, 128), np.float32)
    x[0, 5], x[1, 7] = np.inf, np.nan
    gate = tt.asarray(x)
    body, values = fused(lambda gate, r: layer(tt.relu2(gate) * gate) + r, gate, r)
    got = cuda_products.fused_product(Space(torch.device(PLACE), lambda *a: None), body)(*values)
    np.testing.assert_array_equal(got.cpu().numpy(), layer(tt.relu2(gate) * gate).numpy())


@runs
def test_weights_are_repacked_once_until_they_are_written() -> None:
    space = Space(torch.device(PLACE), lambda *a: None)
    w = value(LAYER.weight.data)
    first = cuda_products.weights(space, w)
    assert cuda_products.weights(space, w) is first
    w.data.add_(0)
    assert cuda_products.weights(space, w) is not first


def test_what_is_not_a_layer_is_refused_with_a_reason() -> None:
    x = tt.randn((2, 40), seed=1)
    said: list[str | None] = []

    def note(body: Any) -> str | None:
        said.append(refuses(body))
        return said[-1]

    fuse(simplify(tt.trace(lambda x: LAYER(tt.layer_norm(x, NORM)) + 1, x)).graph, note)
    assert "before a product stand no more than maps and a root-mean-square norm" in said


def test_maps_before_tokens_of_odd_widths_stay_a_call_of_their_own() -> None:
    gate, up, r = tt.randn((2, 40), seed=1), tt.randn((2, 40), seed=2), tt.randn((2, 24), seed=3)
    found = fuse(
        simplify(tt.trace(lambda a, b, r: LAYER(tt.rms_norm(tt.relu2(a) * b, NORM)) + r, gate, up, r)).graph, refuses
    )
    reasons = {pattern(o.fragment): o.reason for o in found.opportunities}
    assert reasons == {
        "relu2+multiply+rms_norm+quantized_matmul+add": "maps before a product make tokens as its kernels read them, of a "
        "multiple of 128 columns, not of 40",
        "relu2+multiply": "",
        "rms_norm+quantized_matmul+add": "",
    }


@given(st.sampled_from(["i8", "i16", "i32", "i64"]), st.integers(1, 5), st.integers(0, 70), st.integers(0, 2**32))
def test_integers_multiply_modulo_their_width(kind: str, m: int, k: int, seed: int) -> None:
    t = np.dtype(kind.replace("i", "int"))
    rng, info = np.random.default_rng(seed), np.iinfo(t)
    a, b = (rng.integers(info.min, info.max, s, t, endpoint=True) for s in ((m, k), (k, 3)))
    got = cuda_products._integers(torch.from_numpy(a).long(), torch.from_numpy(b).long(), max(t.itemsize // 2, 1))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got.numpy().astype(t), (a.astype(np.int64) @ b.astype(np.int64)).astype(t))
